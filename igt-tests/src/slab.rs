// SPDX-License-Identifier: GPL-2.0

//! Memory of the kernel that is not freed, as the statistics of its slab show it.

use crate::misc::{self, meminfo};
use crate::Outcome;

/// How often the rounds are made. Memory that is on its way, and slabs that are not full, show once;
/// a leak shows each time.
const TRIES: usize = 3;

/// Runs `round` many times, and checks that the slab does not grow by `bytes` each time. The slab
/// has no objects that are larger than 8 KiB.
///
/// # Errors
///
/// Fails the subtest if it grows, and skips it on a kernel that frees memory late.
#[track_caller]
pub fn repeat(rounds: u64, bytes: u64, mut round: impl FnMut() -> Outcome) -> Outcome {
    misc::need_prompt_frees()?;
    for _ in 0..rounds / 5 {
        round()?;
    }
    let (mut grown, leak) = (0, rounds * bytes / 1024);
    for _ in 0..TRIES {
        let Some(before) = meminfo("SUnreclaim") else {
            fail!("/proc/meminfo has no SUnreclaim");
        };
        for _ in 0..rounds {
            round()?;
        }
        let after = meminfo("SUnreclaim").unwrap_or_default();
        grown = after.saturating_sub(before);
        println!("{rounds} rounds: SUnreclaim {before} -> {after} kB; a leak would be {leak} kB");
        if grown < leak / 3 {
            return Ok(());
        }
    }
    fail!("SUnreclaim grew by {grown} kB over {rounds} rounds; a leak would be {leak} kB")
}

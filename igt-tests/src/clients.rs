// SPDX-License-Identifier: GPL-2.0

//! Clients that together need more VRAM than there is.

use std::time::Duration;

use crate::debugfs::Counter;
use crate::drm::{Drm, Gem, EITHER};
use crate::map::{Map, PAGE};
use crate::misc::{self, meminfo, Lcg};
use crate::pattern::Pattern;
use crate::{Outcome, Stop};

/// Size of an object, in bytes.
pub const PIECE: u64 = 4 * PAGE as u64;

/// An object, its mapping, and its pattern.
type Filled<'a> = (Gem<'a>, Map, Pattern);

fn filled(drm: &Drm, pattern: Pattern) -> Result<Filled<'_>, Stop> {
    let object = drm.create_flags(PIECE, EITHER)?;
    let map = object.map()?;
    check_ok!(map.verify_value(0), "a new object is not zero");
    map.fill(pattern);
    Ok((object, map, pattern))
}

/// How many objects need more VRAM than these bytes: four times as much, twice in a short run.
pub fn too_many(vram: u64) -> u64 {
    let times = if misc::soak() > 1 { 4 } else { 2 };
    times * vram / PIECE
}

/// Creates a number of objects. While `goes_on` returns true, verifies one of them at random and
/// replaces it, so that the new object evicts others. Verifies all of them in the end.
///
/// `goes_on` is called before each round, for the first time when all objects exist.
///
/// # Errors
///
/// Fails the subtest if an object does not have its pattern.
pub fn client(
    drm: &Drm,
    count: u64,
    seed: u64,
    mut goes_on: impl FnMut(u64) -> Result<bool, Stop>,
) -> Outcome {
    let mut random = Lcg::new(seed);
    let mut objects = Vec::new();
    for index in 0..count {
        objects.push(filled(drm, Pattern::new(seed ^ index))?);
    }
    let mut rounds = 0;
    while goes_on(rounds)? {
        let index = random.below(count) as usize;
        let (object, map, pattern) = &objects[index];
        check_ok!(
            map.verify(*pattern),
            "round {rounds}, object {index}, {:?}",
            object.info()?
        );
        objects[index] = filled(drm, Pattern::new(random.word()))?;
        rounds += 1;
    }
    for (index, (object, map, pattern)) in objects.iter().enumerate() {
        check_ok!(
            map.verify(*pattern),
            "at the end, object {index}, {:?}",
            object.info()?
        );
    }
    Ok(())
}

/// The usage of a device, to check later that nothing has leaked.
#[derive(Debug)]
pub struct Usage<'a> {
    drm: &'a Drm,
    free: u64,
    pages: u64,
    moves: u64,
}

impl<'a> Usage<'a> {
    /// Takes the current usage.
    ///
    /// # Errors
    ///
    /// Any error of the ioctls; fails the subtest if the kernel does not count memory of GPUs.
    #[track_caller]
    pub fn now(drm: &'a Drm) -> Result<Self, Stop> {
        Ok(Self {
            drm,
            free: drm.vram_free()?,
            pages: pages()?,
            moves: drm.counter(Counter::Moves)?,
        })
    }

    /// Returns the number of moves since then.
    pub fn moved(&self) -> Result<u64, Stop> {
        Ok(self.drm.counter(Counter::Moves)? - self.moves)
    }

    /// Checks that the usage is as before.
    ///
    /// # Errors
    ///
    /// Fails the subtest if VRAM or system memory of objects does not come back, or if VRAM is
    /// pinned.
    #[track_caller]
    pub fn check_back(&self) -> Outcome {
        self.drm.await_vram_free(self.free)?;
        check_eq!(
            self.drm.counter(Counter::VramPinned)?,
            0,
            "pinned VRAM at the end"
        );
        // Objects are freed late while the engine works on them. Memory that was being freed at the
        // beginning may be free now.
        let mut after = 0;
        let back = misc::poll(Duration::from_secs(5), || {
            after = pages().ok()?;
            (after <= self.pages).then_some(())
        });
        check!(
            back.is_some(),
            "system memory of objects: {} kB before, {after} kB after",
            self.pages
        );
        Ok(())
    }
}

/// System memory of objects, in kB.
#[track_caller]
fn pages() -> Result<u64, Stop> {
    match meminfo("GPUActive") {
        Some(pages) => Ok(pages),
        None => fail!("/proc/meminfo has no GPUActive"),
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Direct I/O to VRAM is not bounced, on a machine that bounces all DMA to system memory.

use std::fs;

use vvram_tests::debugfs::mounted;
use vvram_tests::disk::{Disk, Part, Way};
use vvram_tests::drm::Drm;
use vvram_tests::fixture::patterns;
use vvram_tests::map::{Map, PAGE};
use vvram_tests::uapi::{CREATE_DIRECT_IO, CREATE_VRAM};
use vvram_tests::{check, check_eq, check_ok, igt_main, Outcome, Stop, SysError};

const LEN: usize = 32 * PAGE;
const TRIES: u32 = 20;
const HIGHEST: &str = "swiotlb/io_tlb_used_hiwater";

/// Returns the largest number of slots of bounce buffers that were in use at a time while `body`
/// ran.
#[track_caller]
fn slots(body: impl FnOnce() -> Result<(), SysError>) -> Result<u64, Stop> {
    let path = mounted("debugfs", "/sys/kernel/debug")?.join(HIGHEST);
    let fail = |error: std::io::Error| SysError::io(path.display().to_string(), &error);
    fs::write(&path, "0").map_err(fail)?;
    body()?;
    let text = fs::read_to_string(&path).map_err(fail)?;
    text.trim()
        .parse()
        .map_err(|_| Stop::fail(format_args!("{HIGHEST}: {text}")))
}

fn none() -> Outcome {
    let drm = Drm::open()?;
    let disk = Disk::open()?;
    let (a, b) = patterns();
    let object = drm.create_flags(LEN as u64, CREATE_VRAM | CREATE_DIRECT_IO)?;
    let (vram, ram) = (object.map()?, Map::private(LEN)?);
    disk.fill(a, 0, LEN)?;
    vram.fill(b);
    for way in [Way::Read, Way::Write] {
        let transfer = |map| disk.direct.transfer(way, Part::all(map), 0);
        // The positive control: a slot has 2 KiB.
        let bounced = slots(|| transfer(&ram))?;
        check!(
            bounced >= (LEN / 2048) as u64,
            "{way:?} of RAM took {bounced} slots"
        );
        // The drivers of other devices bounce as well, but not during each try.
        let mut least = u64::MAX;
        for _ in 0..TRIES {
            least = least.min(slots(|| transfer(&vram))?);
            if least == 0 {
                break;
            }
        }
        check_eq!(least, 0, "slots for a {way:?} of VRAM");
        check_ok!(vram.verify(a), "VRAM after a {way:?}");
    }
    disk.verify(a, 0, LEN)
}

igt_main! {
    "none", "no bounce buffer has a part in it", none;
}

// SPDX-License-Identifier: GPL-2.0

//! Direct I/O to VRAM on a machine that bounces all DMA to system memory.
//!
//! The memory of a BAR cannot be bounced. It need not be, below a switch. If the route goes through
//! the host bridge it cannot be mapped, so that I/O has to fail: a request that is tried again and
//! again has its pages pinned for ever.

use std::fs;
use std::time::Duration;

use vvram_tests::debugfs::mounted;
use vvram_tests::disk::{pinned, Disk, Part, Way};
use vvram_tests::drm::Drm;
use vvram_tests::fixture::{patterns, Expect};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::uapi::{CREATE_DIRECT_IO, CREATE_VRAM};
use vvram_tests::{check, check_eq, check_ok, igt_main, Outcome, Stop, SysError};

const LEN: usize = 32 * PAGE;
const TRIES: u32 = 20;
const LIMIT: Duration = Duration::from_secs(20);
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

/// A request ends with an error, does nothing, and releases its pages.
fn fails() -> Outcome {
    check_eq!(Expect::get()?, Expect::HostBridge, "the route");
    let (drm, disk) = (Drm::open()?, Disk::open()?);
    let (a, b) = patterns();
    let object = drm.create_flags(LEN as u64, CREATE_VRAM | CREATE_DIRECT_IO)?;
    let (vram, ram) = (object.map()?, Map::private(LEN)?);
    vram.fill(b);
    disk.fill(a, 0, LEN)?;
    for way in [Way::Read, Way::Write] {
        let end = disk.direct.spawn(way, Part::all(&vram), 0);
        let what = format!("what came of a {way:?} of VRAM");
        check_eq!(end.recv_timeout(LIMIT), Ok(libc::EINVAL), "{what}");
        check_eq!(pinned()?, 0, "pages that stay pinned");
        check_ok!(vram.verify(b), "VRAM after a {way:?}");
        disk.verify(a, 0, LEN)?;
        disk.direct.transfer(way, Part::all(&ram), 0)?;
    }
    check_ok!(ram.verify(a), "RAM that the disk has filled");
    Ok(())
}

igt_main! {
    "none", "no bounce buffer has a part in it", none;
    "fails", "EINVAL where VRAM would have to be bounced", fails;
}

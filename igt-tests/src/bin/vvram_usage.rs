// SPDX-License-Identifier: GPL-2.0

//! The keys of fdinfo for objects in all states: in use, evicted, swapped out, pinned, shared and
//! imported. Every key of both regions is checked in each state.

use std::fs;
use std::time::Duration;

use vvram_tests::debugfs::DebugFs;
use vvram_tests::drm::{Drm, EITHER};
use vvram_tests::edu;
use vvram_tests::fdinfo::FdInfo;
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::Fixture;
use vvram_tests::heap;
use vvram_tests::map::{PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Mode;
use vvram_tests::uapi::{self, DMA_BUF_SYNC_READ as READ, DMA_BUF_SYNC_WRITE as WRITE};
use vvram_tests::{check_eq, fail, igt_main, Outcome, Stop};

const REGIONS: [&str; 2] = ["vram0", "system"];

/// The numbers of pages in a region, by key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    total: u64,
    shared: u64,
    resident: u64,
    active: u64,
}

/// Returns the values of fdinfo for VRAM and for system memory, and the pinned size.
fn usage(drm: &Drm) -> Result<([Usage; 2], u64), Stop> {
    let info = FdInfo::of(drm)?;
    let pages = |stat: &str, region: &str| -> Result<u64, Stop> {
        let bytes = info.bytes(&format!("drm-{stat}-{region}"))?;
        Ok(bytes / PAGE64)
    };
    let mut regions = [Usage::default(); 2];
    for (usage, region) in regions.iter_mut().zip(REGIONS) {
        *usage = Usage {
            total: pages("total", region)?,
            shared: pages("shared", region)?,
            resident: pages("resident", region)?,
            active: pages("active", region)?,
        };
        // No object is purgeable, so this key must not exist.
        if info.text(&format!("drm-purgeable-{region}")).is_ok() {
            fail!("objects of {region} may be thrown away: {info:?}");
        }
    }
    Ok((regions, info.bytes("vvram-pinned-vram0")? / PAGE64))
}

/// Checks the values of fdinfo for VRAM and for system memory, and the pinned size. A new object is
/// active until it is cleared.
#[track_caller]
fn says(drm: &Drm, what: &str, want: [Usage; 2], pinned: u64) -> Outcome {
    let found = misc::poll(Duration::from_secs(10), || {
        (usage(drm).ok()? == (want, pinned)).then_some(())
    });
    if found.is_some() {
        return Ok(());
    }
    Err(Stop::fail(format_args!(
        "{what}: expected {want:?} and {pinned} pinned, saw {:?}",
        usage(drm)?
    )))
}

/// Objects that are in use, in each placement. A read counts as active like a write.
fn active() -> Outcome {
    let drm = Drm::open()?;
    let debugfs = DebugFs::open(&PciDevice::vvram()?)?;
    let vram = drm.create(3 * PAGE64)?;
    let either = drm.create_flags(5 * PAGE64, EITHER)?;
    let system = drm.create_flags(9 * PAGE64, uapi::CREATE_SYSTEM)?;
    let idle = [
        Usage {
            total: 8,
            resident: 8,
            ..Usage::default()
        },
        Usage {
            total: 9,
            resident: 9,
            ..Usage::default()
        },
    ];
    says(&drm, "idle", idle, 0)?;
    let timeline = Timeline::new()?;
    for (step, object, flags) in [(1, &vram, READ), (2, &either, WRITE), (3, &system, READ)] {
        let fence = timeline.fence(step)?;
        object.export()?.add_fence(flags, &fence)?;
    }
    // Each object was exported, and its dma-buf exists as long as the handle.
    let mut want = idle;
    (want[0].shared, want[1].shared) = (8, 9);
    (want[0].active, want[1].active) = (8, 9);
    says(&drm, "all in use", want, 0)?;
    for (vram, system) in [(5, 9), (0, 9), (0, 0)] {
        timeline.step()?;
        (want[0].active, want[1].active) = (vram, system);
        says(&drm, "fewer in use", want, 0)?;
    }
    // The object is active in the region where it is, which is not its preferred one.
    debugfs.write("move", &format!("{} system", either.info()?.id))?;
    either.export()?.add_fence(READ, &timeline.fence(4)?)?;
    (want[0].resident, want[1].resident, want[1].active) = (3, 14, 5);
    says(&drm, "in use in system memory", want, 0)?;
    timeline.step()?;
    want[1].active = 0;
    says(&drm, "idle again", want, 0)
}

/// A transfer of a device, and a pin of a peer.
fn peer() -> Outcome {
    let fixture = Fixture::with_route()?;
    let drm = &fixture.drm;
    let object = drm.create_flags(16 * PAGE64, EITHER)?;
    let other = drm.create_flags(2 * PAGE64, EITHER)?;
    let buffer = object.export()?;
    let peer = &fixture.peer;
    let mut want = [
        Usage {
            total: 18,
            shared: 16,
            resident: 18,
            active: 0,
        },
        Usage::default(),
    ];
    peer.attach(&buffer, Mode::Revocable)?;
    says(drm, "attached", want, 0)?;
    peer.pin_and_map(Mode::Revocable)?;
    says(drm, "pinned and mapped", want, 16)?;
    let slow = edu::slow()?;
    peer.submit_read(0, 16 * PAGE)?;
    let during = usage(drm)?;
    let busy = peer.status()?.flags & uapi::EDU_PEER_STATUS_BUSY;
    check_eq!(busy, uapi::EDU_PEER_STATUS_BUSY, "a transfer of 3 s");
    want[0].active = 16;
    check_eq!(during, (want, 16), "usage during a transfer");
    peer.detach()?;
    drop(slow);
    want[0].active = 0;
    says(drm, "detached", want, 0)?;
    drop(buffer);
    drop(object);
    (want[0].total, want[0].shared, want[0].resident) = (2, 0, 2);
    says(drm, "closed", want, 0)?;
    drop(other);
    says(drm, "without objects", [Usage::default(); 2], 0)
}

/// Objects that were evicted from VRAM for others, and objects that were swapped out.
fn evicted() -> Outcome {
    let drm = Drm::open()?;
    let other = drm.reopen()?;
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)? / PAGE64;
    let objects = [
        drm.create_flags(4 * PAGE64, EITHER)?,
        drm.create_flags(6 * PAGE64, EITHER)?,
    ];
    for object in &objects {
        object.map()?.write(0, 1);
    }
    let mut want = [
        Usage {
            total: 10,
            resident: 10,
            ..Usage::default()
        },
        Usage::default(),
    ];
    says(&drm, "in VRAM", want, 0)?;
    let all = other.create(size * PAGE64)?;
    // The objects are active until their eviction is done, which is before the new object is
    // cleared.
    check_eq!(all.map()?.read(0), 0, "the first word of a new object");
    (want[0].resident, want[1].resident) = (0, 10);
    says(&drm, "evicted", want, 0)?;
    let mut theirs = [Usage::default(); 2];
    (theirs[0].total, theirs[0].resident) = (size, size);
    says(&other, "the other one", theirs, 0)?;
    drop(all);
    // No object moves back by itself.
    says(&drm, "with room in VRAM", want, 0)?;

    // A swapped object is resident in no region.
    const SHRINK: &str = "/sys/kernel/debug/ttm/tt_shrink";
    let gone = misc::poll(Duration::from_secs(10), || {
        let swapped = fs::read_to_string(SHRINK).ok()?;
        let none = swapped.trim() == "0" && usage(&drm).ok()?.0[1].resident == 0;
        none.then_some(())
    });
    want[1].resident = 0;
    if gone.is_none() {
        says(&drm, "swapped out", want, 0)?;
    }
    says(&drm, "swapped out", want, 0)?;
    // An access by the CPU swaps the object in as swappable memory, which does not count as
    // resident.
    check_eq!(objects[0].map()?.read(0), 1, "the word that was written");
    says(&drm, "one brought back by the CPU", want, 0)?;
    let id = objects[0].info()?.id;
    DebugFs::open(&PciDevice::vvram()?)?.write("move", &format!("{id} system"))?;
    want[1].resident = 4;
    says(&drm, "one brought back for devices", want, 0)
}

/// An imported object has no memory of this device.
fn imported() -> Outcome {
    let drm = Drm::open()?;
    let buffer = heap::allocate(7 * PAGE64)?;
    let import = drm.import(&buffer)?;
    let mut want = [Usage::default(); 2];
    (want[1].total, want[1].shared) = (7, 7);
    says(&drm, "imported", want, 0)?;
    import.import_info()?;
    says(&drm, "mapped for the device", want, 0)?;
    let timeline = Timeline::new()?;
    buffer.add_fence(WRITE, &timeline.fence(1)?)?;
    says(&drm, "in use by others", want, 0)?;
    timeline.step()?;
    drop(import);
    says(&drm, "closed", [Usage::default(); 2], 0)
}

igt_main! {
    "active", "objects with fences, in each place", active;
    "peer", "a transfer, a pin and their ends", peer;
    "evicted", "objects out of VRAM, and out of memory", evicted;
    "imported", "objects without memory of their own", imported;
}

// SPDX-License-Identifier: GPL-2.0

//! VRAM and pinned VRAM as regions of the cgroup controller dmem, which a rebind or a reset
//! registers again.

use std::time::Duration;

use vvram_tests::cgroup::{self, Group};
use vvram_tests::drm::{Drm, EITHER};
use vvram_tests::fdinfo::FdInfo;
use vvram_tests::fixture::{patterns, placed};
use vvram_tests::map::PAGE;
use vvram_tests::pci::PciDevice;
use vvram_tests::proc::Child;
use vvram_tests::rebind::Unbound;
use vvram_tests::svm::{check_places, filled, holds};
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, uapi, Outcome};

const MIB: u64 = 1 << 20;

/// There are two regions, both of the size of VRAM.
fn capacity() -> Outcome {
    let size = Drm::open()?.getparam(uapi::PARAM_VRAM_SIZE)?;
    let regions = ["pinned", "vram0"].map(|name| (name.to_owned(), size));
    check_eq!(cgroup::regions()?, regions, "dmem.capacity");
    Ok(())
}

/// The VRAM of a group is counted and limited; the rest of its objects is in system memory.
fn limit() -> Outcome {
    let group = Group::new("limit")?;
    let (seed, _) = patterns();
    group.set("max", 4 * MIB)?;
    let mut child = Child::spawn(|| {
        group.enter()?;
        let drm = Drm::open()?;
        let mut objects = Vec::new();
        for index in 0..8 {
            let object = drm.create_flags(MIB, EITHER)?;
            let map = object.map()?;
            map.fill(seed.derive(index));
            objects.push((object, map));
            let current = group.current();
            check!(
                current.is_some_and(|bytes| bytes <= 4 * MIB),
                "{current:?} bytes are in use, 4 MiB may be"
            );
        }
        let mut in_vram = 0;
        for (object, _) in &objects {
            in_vram += u64::from(object.info()?.placement == uapi::PLACEMENT_VRAM);
        }
        check_eq!(in_vram, 4, "objects of 1 MiB in VRAM");
        check_eq!(group.current(), Some(4 * MIB), "VRAM of the group");
        for (index, (object, map)) in objects.iter().enumerate() {
            check_ok!(
                map.verify(seed.derive(index as u64)),
                "object {index}, {:?}",
                object.info()?
            );
        }
        drop(objects);
        let kept = drm.create(4 * MIB)?;
        expect_errno(
            "an object of VRAM over the limit",
            drm.create(MIB),
            libc::ENOSPC,
        )?;
        // There is room for other groups.
        check!(drm.vram_free()? >= MIB, "VRAM is full");
        drop(kept);
        Ok(())
    })?;
    child.join("the group", Duration::from_secs(60))?;
    group.await_current(0)
}

/// Memory of processes in VRAM does not count as VRAM of their group, but as memory.
fn processes() -> Outcome {
    const PAGES: usize = 64;
    let group = Group::new("processes")?;
    let (seed, _) = patterns();
    group.set("max", MIB / 8)?;
    let mut child = Child::spawn(|| {
        group.enter()?;
        let drm = Drm::open()?;
        let map = filled(PAGES, seed)?;
        drm.svm_migrate(&map, 0..PAGES)?;
        check_places(&map, |_| true)?;
        check_eq!(drm.svm_vram()?, (PAGES * PAGE) as u64, "VRAM of processes");
        check_eq!(group.current(), Some(0), "VRAM of the group");
        let what = FdInfo::of(&drm)?;
        for key in ["drm-total-vram0", "drm-resident-vram0"] {
            check_eq!(what.bytes(key)?, 0, "{key}");
        }
        holds("the CPU", &map, seed, 0..PAGES)
    })?;
    child.join("the group", Duration::from_secs(60))
}

/// The regions belong to the current device, also while objects of the device before still exist.
fn renewed(name: &str, renew: impl Fn(&PciDevice) -> Outcome) -> Outcome {
    let gpu = PciDevice::vvram()?;
    let group = Group::new(name)?;
    let (a, b) = patterns();
    let mut child = Child::spawn(|| {
        group.enter()?;
        let old = Drm::open()?;
        let before = [old.create(MIB)?, old.create_flags(MIB, EITHER)?];
        check_eq!(group.current(), Some(2 * MIB), "VRAM of the group");
        renew(&gpu)?;
        capacity()?;
        check_eq!(
            group.current(),
            Some(0),
            "VRAM that the group has of the new device"
        );
        // Limits apply to the new device.
        group.set("max", MIB)?;
        let new = Drm::open()?;
        let kept = new.create(MIB)?;
        kept.map()?.fill(a);
        placed(&kept, uapi::PLACEMENT_VRAM)?;
        expect_errno("VRAM over the limit", new.create(MIB), libc::ENOSPC)?;
        let other = new.create_flags(MIB, EITHER)?;
        other.map()?.fill(b);
        placed(&other, uapi::PLACEMENT_SYSTEM)?;
        check_eq!(group.current(), Some(MIB), "VRAM of the group");
        // The memory that is freed now belongs to the old device.
        drop(before);
        drop(old);
        check_eq!(group.current(), Some(MIB), "VRAM of the group");
        for (object, pattern) in [(&kept, a), (&other, b)] {
            check_ok!(object.map()?.verify(pattern), "{:?}", object.info()?);
        }
        Ok(())
    })?;
    child.join("the group", Duration::from_secs(60))?;
    group.await_current(0)
}

fn rebound() -> Outcome {
    renewed("rebound", |gpu| {
        let unbound = Unbound::new(gpu)?;
        check_eq!(cgroup::regions()?, [], "regions without a driver");
        unbound.rebind()
    })
}

fn reset() -> Outcome {
    renewed("reset", |gpu| Ok(gpu.reset()?))
}

igt_main! {
    "capacity", "the regions have the size of VRAM", capacity;
    "limit", "what a group has in VRAM is counted and limited", limit;
    "processes", "memory of processes in VRAM is not counted", processes;
    "rebound", "limits reach the device that is bound, not the one before", rebound;
    "reset", "limits reach the device after a reset, not the one before", reset;
}

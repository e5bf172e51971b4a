// SPDX-License-Identifier: GPL-2.0

//! VRAM as a region of the cgroup controller dmem.

use std::time::Duration;

use vvram_tests::cgroup::{self, Group};
use vvram_tests::drm::Drm;
use vvram_tests::proc::Child;
use vvram_tests::scene::patterns;
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, uapi, Outcome};

const EITHER: u32 = uapi::CREATE_VRAM | uapi::CREATE_SYSTEM;
const MIB: u64 = 1 << 20;

fn capacity() -> Outcome {
    let size = Drm::open()?.getparam(uapi::PARAM_VRAM_SIZE)?;
    check_eq!(cgroup::capacity()?, Some(size), "dmem.capacity");
    Ok(())
}

/// What a group has in VRAM is counted and limited; the rest lives in system memory.
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
            if let Err(mismatch) = map.verify(seed.derive(index as u64)) {
                fail!("object {index}, {:?}: {mismatch}", object.info()?);
            }
        }
        drop(objects);
        let kept = drm.create(4 * MIB)?;
        expect_errno(
            "an object of VRAM over the limit",
            drm.create(MIB),
            libc::ENOSPC,
        )?;
        // There is room for others.
        check!(drm.vram_free()? >= MIB, "VRAM is full");
        drop(kept);
        Ok(())
    })?;
    child.join("the group", Duration::from_secs(60))?;
    group.await_current(0)
}

igt_main! {
    "capacity", "the region has the size of VRAM", capacity;
    "limit", "what a group has in VRAM is counted and limited", limit;
}

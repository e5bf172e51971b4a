// SPDX-License-Identifier: GPL-2.0

//! VRAM as a region of the cgroup controller dmem.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use vvram_tests::debugfs::mounted;
use vvram_tests::drm::Drm;
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::proc::Child;
use vvram_tests::scene::patterns;
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, uapi, Outcome, Stop};

const EITHER: u32 = uapi::CREATE_VRAM | uapi::CREATE_SYSTEM;
const MIB: u64 = 1 << 20;

/// A group, removed when dropped.
struct Group {
    root: PathBuf,
    path: PathBuf,
    region: String,
}

impl Group {
    #[track_caller]
    fn new(name: &str) -> Result<Self, Stop> {
        let at = Path::new("/tmp/cgroup");
        let made = fs::create_dir_all(at);
        check!(made.is_ok(), "mkdir {}: {made:?}", at.display());
        let root = mounted("cgroup2", "/tmp/cgroup")?;
        let path = root.join(name);
        let region = format!("drm/{}/vram0", PciDevice::vvram()?.name());
        let group = Self { root, path, region };
        write(&group.root.join("cgroup.subtree_control"), "+dmem")?;
        let made = fs::create_dir(&group.path);
        check!(made.is_ok(), "mkdir {}: {made:?}", group.path.display());
        Ok(group)
    }

    /// The number of the region in a file of a group.
    fn number(&self, of: &Path, file: &str) -> Option<u64> {
        let text = fs::read_to_string(of.join(file)).ok()?;
        let line = text.lines().find(|line| line.starts_with(&self.region))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }

    fn current(&self) -> Option<u64> {
        self.number(&self.path, "dmem.current")
    }

    fn set_max(&self, bytes: u64) -> Outcome {
        write(
            &self.path.join("dmem.max"),
            &format!("{} {bytes}", self.region),
        )
    }

    /// Moves this process into the group.
    fn enter(&self) -> Outcome {
        write(&self.path.join("cgroup.procs"), &process::id().to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Who was in it may not be quite gone.
        misc::poll(Duration::from_secs(5), || fs::remove_dir(&self.path).ok());
    }
}

#[track_caller]
fn write(path: &Path, text: &str) -> Outcome {
    let written = fs::write(path, text);
    check!(
        written.is_ok(),
        "writing {text} to {}: {written:?}",
        path.display()
    );
    Ok(())
}

fn capacity() -> Outcome {
    let group = Group::new("capacity")?;
    let size = Drm::open()?.getparam(uapi::PARAM_VRAM_SIZE)?;
    check_eq!(
        group.number(&group.root, "dmem.capacity"),
        Some(size),
        "capacity of {}",
        group.region
    );
    Ok(())
}

/// What a group has in VRAM is counted and limited; the rest lives in system memory.
fn limit() -> Outcome {
    let group = Group::new("limit")?;
    let (seed, _) = patterns();
    group.set_max(4 * MIB)?;
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
    let none = misc::poll(Duration::from_secs(10), || {
        (group.current()? == 0).then_some(())
    });
    check!(none.is_some(), "{:?} bytes at the end", group.current());
    Ok(())
}

igt_main! {
    "capacity", "the region has the size of VRAM", capacity;
    "limit", "what a group has in VRAM is counted and limited", limit;
}

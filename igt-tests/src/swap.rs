// SPDX-License-Identifier: GPL-2.0

//! Swap, which only the tests that need it turn on.
//!
//! It is on a loop device over a file in memory. The kernel treats that as a disk: a page that was
//! read from there stays there as well, until it is dirty. So a write of a device that nobody marks
//! as one is lost when the page leaves memory again.

use std::ffi::CString;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::cgroup::MemoryGroup;
use crate::disk::{load, run};
use crate::map::Map;
use crate::misc;
use crate::proc::Child;
use crate::svm::{places, Place};
use crate::{Outcome, Stop, SysError};

const LIMIT: Duration = Duration::from_secs(40);
const FOLDER: &str = "/tmp/swap";
const SIZE: u64 = 16 << 20;

/// A swap area, turned off when dropped, and the group of processes that use it.
#[derive(Debug)]
pub struct Swap {
    group: MemoryGroup,
    _device: Device,
}

/// The loop device of the area.
#[derive(Debug)]
struct Device(CString);

impl Device {
    #[track_caller]
    fn new() -> Result<Self, Stop> {
        load("loop")?;
        fs::create_dir_all(FOLDER).map_err(|error| SysError::io(FOLDER, &error))?;
        // The pages of the area must not be swapped out themselves.
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "noswap", "swap", FOLDER]))?;
        let path = Path::new(FOLDER).join("area");
        File::create(&path)
            .and_then(|file| file.set_len(SIZE))
            .map_err(|error| SysError::io(path.display().to_string(), &error))?;
        let name = run(Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&path))?;
        let name = name.trim();
        let text = CString::new(name).map_err(Stop::fail)?;
        let device = Self(text);
        run(Command::new("mkswap").arg(name))?;
        // SAFETY: a NUL terminated path.
        if unsafe { libc::swapon(device.0.as_ptr(), 0) } < 0 {
            return Err(SysError::last(format!("swapon({name})")).into());
        }
        Ok(device)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: a NUL terminated path.
        unsafe { libc::swapoff(self.0.as_ptr()) };
        let name = self.0.to_string_lossy().into_owned();
        let _ = Command::new("losetup").args(["--detach", &name]).status();
        let _ = Command::new("umount").arg(FOLDER).status();
    }
}

impl Swap {
    /// Makes pages of this process leave memory.
    ///
    /// # Errors
    ///
    /// Fails the subtest if one of them stays there.
    #[track_caller]
    pub fn out(&self, map: &Map) -> Outcome {
        let mut last = String::new();
        let gone = misc::poll(Duration::from_secs(10), || {
            // The advice is for the pages that are mapped, the group for those that only the swap
            // cache has.
            map.advise(0..map.pages(), libc::MADV_PAGEOUT).ok()?;
            self.group.reclaim();
            let (cached, places) = (map.cached().ok()?, places(map).ok()?);
            last = format!("{cached} pages are in memory; {places:?}");
            (cached == 0 && !places.contains(&Place::Ram)).then_some(())
        });
        check!(gone.is_some(), "pages are not swapped out: {last}");
        Ok(())
    }

    /// The group of the processes that use it.
    pub fn group(&self) -> &MemoryGroup {
        &self.group
    }
}

/// Runs a test in a process whose memory can be swapped out.
#[track_caller]
pub fn with_swap(what: &str, body: impl FnOnce(&Swap) -> Outcome) -> Outcome {
    let swap = Swap {
        group: MemoryGroup::new(what)?,
        _device: Device::new()?,
    };
    let mut child = Child::spawn(|| {
        swap.group.enter()?;
        body(&swap)
    })?;
    let outcome = child.join(what, LIMIT);
    drop(swap);
    outcome?;
    let areas = fs::read_to_string("/proc/swaps").unwrap_or_default();
    check_eq!(areas.lines().count(), 1, "lines of {areas:?}");
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0

//! Groups of the cgroup controller dmem, with VRAM as its region.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::debugfs::mounted;
use crate::misc;
use crate::pci::PciDevice;
use crate::{Outcome, Stop, SysError};

/// Where the groups are.
const ROOT: &str = "/tmp/cgroup";

/// Returns how much VRAM the controller knows of, in bytes.
///
/// # Errors
///
/// Fails the subtest if the controller is missing.
#[track_caller]
pub fn capacity() -> Result<Option<u64>, Stop> {
    Ok(number(&root()?.join("dmem.capacity"), &region()?))
}

/// Returns how many regions the controller has that are called like VRAM.
///
/// # Errors
///
/// Fails the subtest if the controller is missing.
#[track_caller]
pub fn regions() -> Result<usize, Stop> {
    let path = root()?.join("dmem.capacity");
    let text = fs::read_to_string(&path)
        .map_err(|error| SysError::io(path.display().to_string(), &error))?;
    let region = region()?;
    let names = text.lines().filter_map(|line| line.split(' ').next());
    Ok(names.filter(|name| *name == region).count())
}

/// Where the file system of groups is mounted.
#[track_caller]
fn root() -> Result<PathBuf, Stop> {
    let made = fs::create_dir_all(ROOT);
    check!(made.is_ok(), "mkdir {ROOT}: {made:?}");
    mounted("cgroup2", ROOT)
}

/// What VRAM is called in the files of the controller.
fn region() -> Result<String, Stop> {
    Ok(format!("drm/{}/vram0", PciDevice::vvram()?.name()))
}

/// The number of a region in a file.
fn number(file: &Path, region: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(region))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// A group, removed when dropped.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    region: String,
}

#[track_caller]
fn write(path: &Path, text: &str) -> Outcome {
    match fs::write(path, text) {
        Ok(()) => Ok(()),
        Err(error) => Err(Stop::fail(format_args!(
            "writing {text} to {}: {error}",
            path.display()
        ))),
    }
}

impl Group {
    /// Makes a group below the root.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the controller is missing.
    #[track_caller]
    pub fn new(name: &str) -> Result<Self, Stop> {
        Self::below(&root()?, name)
    }

    /// Makes a group inside of this one, which then has no processes.
    ///
    /// # Errors
    ///
    /// As for [`Group::new`].
    #[track_caller]
    pub fn child(&self, name: &str) -> Result<Self, Stop> {
        Self::below(&self.path, name)
    }

    #[track_caller]
    fn below(parent: &Path, name: &str) -> Result<Self, Stop> {
        write(&parent.join("cgroup.subtree_control"), "+dmem")?;
        let path = parent.join(name);
        let made = fs::create_dir(&path);
        check!(made.is_ok(), "mkdir {}: {made:?}", path.display());
        Ok(Self {
            path,
            region: region()?,
        })
    }

    /// How much VRAM the group has, in bytes.
    pub fn current(&self) -> Option<u64> {
        number(&self.path.join("dmem.current"), &self.region)
    }

    /// Waits until the group has so much VRAM.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that takes too long.
    #[track_caller]
    pub fn await_current(&self, bytes: u64) -> Outcome {
        let there = misc::poll(Duration::from_secs(10), || {
            (self.current()? == bytes).then_some(())
        });
        match there {
            Some(()) => Ok(()),
            None => Err(Stop::fail(format_args!(
                "{} has {:?} bytes of VRAM, not {bytes}",
                self.path.display(),
                self.current()
            ))),
        }
    }

    /// Sets `max`, `min` or `low`, in bytes.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it cannot be set.
    #[track_caller]
    pub fn set(&self, limit: &str, bytes: u64) -> Outcome {
        let text = format!("{} {bytes}", self.region);
        write(&self.path.join(format!("dmem.{limit}")), &text)
    }

    /// Moves this process into the group: what it allocates from now on is the group's.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it cannot be moved.
    #[track_caller]
    pub fn enter(&self) -> Outcome {
        let pid = std::process::id().to_string();
        write(&self.path.join("cgroup.procs"), &pid)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes that were in it may not be quite gone.
        misc::poll(Duration::from_secs(5), || fs::remove_dir(&self.path).ok());
    }
}

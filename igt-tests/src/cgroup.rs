// SPDX-License-Identifier: GPL-2.0

//! Groups of the cgroup controller dmem, whose regions are VRAM and pinned VRAM, and of the
//! controller memory.

use std::fs;
use std::mem::ManuallyDrop;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::debugfs::mounted;
use crate::misc;
use crate::pci::PciDevice;
use crate::{Outcome, Stop, SysError};

/// Where the groups are.
const ROOT: &str = "/tmp/cgroup";

/// Returns the regions of the device in the controller, with their sizes in bytes, in the order of
/// their names.
///
/// # Errors
///
/// Fails the subtest if the controller is missing.
#[track_caller]
pub fn regions() -> Result<Vec<(String, u64)>, Stop> {
    let path = root()?.join("dmem.capacity");
    let text = fs::read_to_string(&path)
        .map_err(|error| SysError::io(path.display().to_string(), &error))?;
    let device = region("")?;
    let mut regions = Vec::new();
    for line in text.lines() {
        let Some((name, size)) = line.split_once(' ') else {
            continue;
        };
        if let (Some(name), Ok(size)) = (name.strip_prefix(&device), size.parse()) {
            regions.push((name.to_owned(), size));
        }
    }
    regions.sort();
    Ok(regions)
}

/// Where the file system of groups is mounted.
///
/// # Errors
///
/// Fails the subtest if it cannot be mounted.
#[track_caller]
pub(crate) fn root() -> Result<PathBuf, Stop> {
    let made = fs::create_dir_all(ROOT);
    check!(made.is_ok(), "mkdir {ROOT}: {made:?}");
    mounted("cgroup2", ROOT)
}

/// Returns the name of a region of the device in the files of the controller.
fn region(name: &str) -> Result<String, Stop> {
    Ok(format!("drm/{}/{name}", PciDevice::vvram()?.name()))
}

/// Returns the value of a region in a file.
fn number(file: &Path, region: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == region)?.1.parse().ok()
}

/// A group, removed when dropped.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    vram: String,
    pinned: String,
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
    #[track_caller]
    pub fn child(&self, name: &str) -> Result<Self, Stop> {
        Self::below(&self.path, name)
    }

    /// Makes a group inside of this one, and moves this process there, which is in this one. The
    /// process cannot remove it: see [`Group::remove_child`].
    ///
    /// # Errors
    ///
    /// Fails the subtest if the user may not do that.
    #[track_caller]
    pub fn divide(&self, name: &str) -> Result<ManuallyDrop<Self>, Stop> {
        let path = self.path.join(name);
        let made = fs::create_dir(&path);
        check!(made.is_ok(), "mkdir {}: {made:?}", path.display());
        // A group with processes cannot have its memory divided.
        enter(&path)?;
        write(&self.path.join("cgroup.subtree_control"), "+dmem")?;
        Ok(ManuallyDrop::new(Self {
            path,
            vram: self.vram.clone(),
            pinned: self.pinned.clone(),
        }))
    }

    /// Removes a group inside of this one.
    pub fn remove_child(&self, name: &str) {
        remove(&self.path.join(name));
    }

    #[track_caller]
    fn below(parent: &Path, name: &str) -> Result<Self, Stop> {
        Ok(Self {
            path: make(parent, name, "dmem")?,
            vram: region("vram0")?,
            pinned: region("pinned")?,
        })
    }

    /// How much VRAM the group has, in bytes.
    pub fn current(&self) -> Option<u64> {
        number(&self.path.join("dmem.current"), &self.vram)
    }

    /// How much VRAM processes of the group have pinned, in bytes.
    pub fn pinned(&self) -> Option<u64> {
        number(&self.path.join("dmem.current"), &self.pinned)
    }

    /// Waits until the group has this much VRAM.
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

    /// Sets `max`, `min` or `low` of VRAM, in bytes.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it cannot be set.
    #[track_caller]
    pub fn set(&self, limit: &str, bytes: u64) -> Outcome {
        Ok(self.try_set(limit, bytes)?)
    }

    /// As [`Group::set`], for callers that may not be permitted to.
    pub fn try_set(&self, limit: &str, bytes: u64) -> Result<(), SysError> {
        let (text, path) = (
            format!("{} {bytes}", self.vram),
            self.path.join(format!("dmem.{limit}")),
        );
        fs::write(&path, &text)
            .map_err(|error| SysError::io(format!("writing {text} to {}", path.display()), &error))
    }

    /// Lets a user make groups inside of this one, and move its processes to them.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the files cannot be given to the user.
    #[track_caller]
    pub fn delegate(&self, user: u32) -> Outcome {
        for name in ["", "cgroup.procs", "cgroup.subtree_control"] {
            let path = self.path.join(name);
            chown(&path, Some(user), None)
                .map_err(|error| SysError::io(format!("chown({})", path.display()), &error))?;
        }
        Ok(())
    }

    /// Sets how many bytes of VRAM processes of the group may pin.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it cannot be set.
    #[track_caller]
    pub fn set_max_pinned(&self, bytes: u64) -> Outcome {
        let text = format!("{} {bytes}", self.pinned);
        write(&self.path.join("dmem.max"), &text)
    }

    /// Moves this process into the group, to which its later allocations are charged.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it cannot be moved.
    #[track_caller]
    pub fn enter(&self) -> Outcome {
        enter(&self.path)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// A group of the controller memory, removed when dropped.
#[derive(Debug)]
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Makes a group below the root.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the controller is missing.
    #[track_caller]
    pub fn new(name: &str) -> Result<Self, Stop> {
        Ok(Self(make(&root()?, name, "memory")?))
    }

    /// Returns how much memory the group is charged for, in bytes.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the kernel does not say so.
    #[track_caller]
    pub fn current(&self) -> Result<u64, Stop> {
        let path = self.0.join("memory.current");
        let text = fs::read_to_string(&path)
            .map_err(|error| SysError::io(path.display().to_string(), &error))?;
        let bytes = text.trim().parse();
        bytes.map_err(|_| Stop::fail(format_args!("{text:?} is no number")))
    }

    /// Sets how much memory the group may have, in bytes. The kernel reclaims what is over it before
    /// this returns.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it cannot be set.
    #[track_caller]
    pub fn set_max(&self, bytes: u64) -> Outcome {
        write(&self.0.join("memory.max"), &bytes.to_string())
    }

    /// Makes the kernel swap out what it can of the group.
    pub fn reclaim(&self) {
        // This fails because the group has less than that.
        let _ = fs::write(self.0.join("memory.reclaim"), "1G swappiness=max");
    }

    /// How many processes of the group the kernel has killed for want of memory.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the kernel does not say so.
    #[track_caller]
    pub fn killed(&self) -> Result<u64, Stop> {
        let path = self.0.join("memory.events");
        let text = fs::read_to_string(&path)
            .map_err(|error| SysError::io(path.display().to_string(), &error))?;
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        match count.and_then(|count| count.parse().ok()) {
            Some(count) => Ok(count),
            None => Err(Stop::fail(format_args!("{text:?} does not count oom_kill"))),
        }
    }

    /// As [`Group::enter`].
    ///
    /// # Errors
    ///
    /// Fails the subtest if the process cannot be moved.
    #[track_caller]
    pub fn enter(&self) -> Outcome {
        enter(&self.0)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Makes the directory of a group that has a controller.
#[track_caller]
fn make(parent: &Path, name: &str, controller: &str) -> Result<PathBuf, Stop> {
    write(
        &parent.join("cgroup.subtree_control"),
        &format!("+{controller}"),
    )?;
    let path = parent.join(name);
    let made = fs::create_dir(&path);
    check!(made.is_ok(), "mkdir {}: {made:?}", path.display());
    Ok(path)
}

/// Moves this process into the group of a directory.
#[track_caller]
fn enter(path: &Path) -> Outcome {
    let pid = std::process::id().to_string();
    write(&path.join("cgroup.procs"), &pid)
}

/// Removes the directory of a group.
fn remove(path: &Path) {
    // The exit of processes that were in the group may not be complete.
    misc::poll(Duration::from_secs(5), || fs::remove_dir(path).ok());
}

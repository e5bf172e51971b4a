// SPDX-License-Identifier: GPL-2.0

//! The reports of a failed device to userspace: events of the kernel, and dumps.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::map::Map;
use crate::misc;
use crate::pci::PciDevice;
use crate::proc::{Child, Exit};
use crate::{Outcome, Stop, SysError};

const LIMIT: Duration = Duration::from_secs(30);
/// After how long without an event no other one is expected.
const QUIET: Duration = Duration::from_secs(1);

/// The events of devices from now on.
#[derive(Debug)]
pub struct Events(OwnedFd);

impl Events {
    /// Begins to receive events.
    pub fn listen() -> Result<Self, SysError> {
        // SAFETY: a call without pointers.
        let fd = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
                libc::NETLINK_KOBJECT_UEVENT,
            )
        };
        if fd < 0 {
            return Err(SysError::last("a socket for events of the kernel"));
        }
        // SAFETY: the kernel made a new fd that nothing else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all-zero is a valid address.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = 1;
        let len = size_of_val(&address) as u32;
        // SAFETY: the pointer is valid for an address of this length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        if bound < 0 {
            return Err(SysError::last("listening to events of the kernel"));
        }
        Ok(Self(socket))
    }

    /// Returns the lines of the next event, if one comes in time.
    fn next(&self, limit: Duration) -> Result<Option<Vec<String>>, SysError> {
        if misc::poll_fd(self.0.as_raw_fd(), libc::POLLIN, limit)? & libc::POLLIN == 0 {
            return Ok(None);
        }
        let mut text = [0u8; 8192];
        // SAFETY: the pointer is valid for as many bytes.
        let len =
            unsafe { libc::recv(self.0.as_raw_fd(), text.as_mut_ptr().cast(), text.len(), 0) };
        let Ok(len) = usize::try_from(len) else {
            return Err(SysError::last("an event of the kernel"));
        };
        let lines = text[..len].split(|byte| *byte == 0);
        Ok(Some(
            lines
                .map(|line| String::from_utf8_lossy(line).into_owned())
                .collect(),
        ))
    }

    /// Waits for the next event that reports a failure of a DRM device below `device`, and returns
    /// the recovery that it names.
    ///
    /// # Errors
    ///
    /// Fails the subtest if none comes.
    #[track_caller]
    pub fn wedged(&self, device: &PciDevice) -> Result<String, Stop> {
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            let Some(lines) = self.next(LIMIT)? else {
                break;
            };
            if let Some(what) = what_helps(&lines, device) {
                return Ok(what.to_owned());
            }
        }
        Err(Stop::fail(format_args!(
            "no event says that {} has failed",
            device.name()
        )))
    }

    /// Returns how many events have reported a failure of a DRM device below `device`. Waits until
    /// no more arrive.
    pub fn count(&self, device: &PciDevice) -> Result<usize, SysError> {
        let mut count = 0;
        while let Some(lines) = self.next(QUIET)? {
            count += usize::from(what_helps(&lines, device).is_some());
        }
        Ok(count)
    }
}

/// Returns the value of `WEDGED`, if the event is of a DRM device below `device`.
fn what_helps<'a>(lines: &'a [String], device: &PciDevice) -> Option<&'a str> {
    let below = format!("/{}/", device.name());
    let is_below = |line: &String| line.starts_with("DEVPATH=") && line.contains(&below);
    if !lines.iter().any(is_below) {
        return None;
    }
    lines.iter().find_map(|line| line.strip_prefix("WEDGED="))
}

/// The path of the dump of a device, if it has one.
fn dump_of(device: &PciDevice) -> Option<PathBuf> {
    let of = fs::canonicalize(device.path("")).ok()?;
    fs::read_dir("/sys/class/devcoredump")
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| fs::canonicalize(path.join("failing_device")).is_ok_and(|is| is == of))
        .map(|path| path.join("data"))
}

/// Whether a device has a dump.
pub fn has_dump(device: &PciDevice) -> bool {
    dump_of(device).is_some()
}

/// Waits for the dump of a device, reads it, and removes it.
///
/// # Errors
///
/// Fails the subtest if there is none.
#[track_caller]
pub fn take_dump(device: &PciDevice) -> Result<String, Stop> {
    let Some(path) = misc::poll(LIMIT, || dump_of(device)) else {
        fail!("{} has left no dump", device.name());
    };
    let said = |error| SysError::io(path.display().to_string(), &error);
    let text = fs::read_to_string(&path).map_err(said)?;
    fs::write(&path, "0").map_err(said)?;
    // A worker removes it.
    let gone = misc::poll(LIMIT, || {
        (dump_of(device).as_ref() != Some(&path)).then_some(())
    });
    check!(gone.is_some(), "the dump {} stays", path.display());
    Ok(text)
}

/// Removes the dump of a device, if it has one.
#[track_caller]
pub fn no_dump(device: &PciDevice) -> Outcome {
    if has_dump(device) {
        take_dump(device)?;
    }
    Ok(())
}

/// Checks that a dump has a line.
///
/// # Errors
///
/// Fails the subtest if there is no such line.
#[track_caller]
pub fn says(dump: &str, line: &str) -> Outcome {
    check!(
        dump.lines().any(|is| is == line),
        "a dump does not say {line:?}:\n{dump}"
    );
    Ok(())
}

/// Checks that accesses to a mapping end in `SIGBUS`.
///
/// # Errors
///
/// Fails the subtest if they do not.
#[track_caller]
pub fn is_taken_away(map: &Map) -> Outcome {
    let exit = Child::spawn(|| {
        map.read(0);
        Ok(())
    })?
    .wait(LIMIT);
    check!(
        exit == Some(Exit::Signal(libc::SIGBUS)),
        "touching what is lost: expected SIGBUS, saw {exit:?}"
    );
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0

//! Callers without privileges, and modes of files.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::{Stop, SysError};

/// The user nobody.
pub const NOBODY: libc::uid_t = 65534;

/// Makes this process run as the user nobody, without capabilities, until its end.
///
/// # Errors
///
/// Any error of the system calls; fails the subtest if a capability is left.
#[track_caller]
pub fn become_nobody() -> Result<(), Stop> {
    // SAFETY: plain system calls; there are no groups to be read.
    unsafe {
        if libc::setgroups(0, std::ptr::null()) < 0
            || libc::setresgid(NOBODY, NOBODY, NOBODY) < 0
            || libc::setresuid(NOBODY, NOBODY, NOBODY) < 0
        {
            return Err(SysError::last("setresuid(nobody)").into());
        }
        // So that the process may read its own files in /proc.
        libc::prctl(libc::PR_SET_DUMPABLE, 1);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        let line = status.lines().find(|line| line.starts_with(set));
        let none = line.is_some_and(|line| line.ends_with("\t0000000000000000"));
        check!(none, "nobody has capabilities: {line:?}");
    }
    Ok(())
}

/// The permission bits of a file.
pub fn mode(path: &Path) -> Result<u32, SysError> {
    let meta = fs::metadata(path);
    let meta = meta.map_err(|error| SysError::io(format!("stat({})", path.display()), &error))?;
    Ok(meta.permissions().mode() & 0o7777)
}

/// A file that has another mode, until this is dropped.
#[derive(Debug)]
pub struct Mode {
    path: PathBuf,
    before: u32,
}

impl Mode {
    /// Changes it.
    pub fn set(path: &Path, mode: u32) -> Result<Self, SysError> {
        let before = self::mode(path)?;
        fs::set_permissions(path, Permissions::from_mode(mode))
            .map_err(|error| SysError::io(format!("chmod({})", path.display()), &error))?;
        Ok(Self {
            path: path.to_path_buf(),
            before,
        })
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        let _ = fs::set_permissions(&self.path, Permissions::from_mode(self.before));
    }
}

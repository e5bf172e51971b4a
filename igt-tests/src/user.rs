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

/// Runs a function without the capability to lock memory, `CAP_IPC_LOCK`, which this task gets back.
///
/// # Errors
///
/// Any error of the system calls, or of the function.
pub fn without_memory_lock<R>(body: impl FnOnce() -> Result<R, Stop>) -> Result<R, Stop> {
    let before = Capabilities::get()?;
    let mut less = before;
    less.effective[0] &= !CAP_IPC_LOCK;
    less.set()?;
    let result = body();
    before.set()?;
    result
}

/// The bit of the capability to lock memory.
const CAP_IPC_LOCK: u32 = 1 << 14;

/// The capabilities of this task, 32 in each word.
#[derive(Clone, Copy)]
struct Capabilities {
    effective: [u32; 2],
    permitted: [u32; 2],
    inheritable: [u32; 2],
}

impl Capabilities {
    /// `_LINUX_CAPABILITY_VERSION_3`, and this task.
    const HEADER: [u32; 2] = [0x2008_0522, 0];

    fn get() -> Result<Self, SysError> {
        let mut header = Self::HEADER;
        // The words of effective, permitted and inheritable capabilities, twice.
        let mut words = [0_u32; 6];
        // SAFETY: both arrays have the layouts of the system call.
        if unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), words.as_mut_ptr()) } < 0 {
            return Err(SysError::last("capget"));
        }
        let [e, p, i, ee, pp, ii] = words;
        Ok(Self {
            effective: [e, ee],
            permitted: [p, pp],
            inheritable: [i, ii],
        })
    }

    fn set(&self) -> Result<(), SysError> {
        let mut header = Self::HEADER;
        let ([e, ee], [p, pp], [i, ii]) = (self.effective, self.permitted, self.inheritable);
        let words = [e, p, i, ee, pp, ii];
        // SAFETY: both arrays have the layouts of the system call.
        if unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), words.as_ptr()) } < 0 {
            return Err(SysError::last("capset"));
        }
        Ok(())
    }
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

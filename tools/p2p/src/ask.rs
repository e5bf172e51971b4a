// SPDX-License-Identifier: GPL-2.0

//! System calls that the standard library does not have: the only unsafe code.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::uapi;

/// The letter of DRM's ioctls, and the first number for drivers.
const DRM: u32 = b'd' as u32;
const DRIVER_BASE: u8 = 0x40;
const PRIME_FD_TO_HANDLE: u8 = 0x2e;
const PRIME_SIZE: usize = 12;
/// The maximum number of importers of a buffer that are asked for.
const IMPORTERS: usize = 256;

/// The number of an ioctl that reads and writes a structure of a size.
fn iowr(number: u8, size: usize) -> libc::Ioctl {
    (3 << 30 | (size as u32) << 16 | DRM << 8 | u32::from(number)) as libc::Ioctl
}

/// Calls an ioctl of DRM with a structure that has no pointers in it, or only valid ones.
///
/// # Safety
///
/// The kernel may follow the pointers in the structure.
unsafe fn ioctl(fd: BorrowedFd<'_>, number: u8, argument: &mut [u8]) -> io::Result<()> {
    let request = iowr(number, argument.len());
    // SAFETY: the number has the size of the argument, beyond which the kernel reads and writes
    // nothing; the caller promises the same of the targets of pointers in it.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, argument.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// QUERY of `drm_peer.h`.
///
/// # Errors
///
/// Fails as the ioctl does.
pub fn query(
    fd: BorrowedFd<'_>,
    driver: uapi::Driver,
    bytes: &mut [u8; uapi::QUERY_SIZE],
) -> io::Result<()> {
    // SAFETY: `struct drm_peer_query` has no pointers.
    unsafe { ioctl(fd, DRIVER_BASE + driver.query, bytes) }
}

/// ATTACHMENTS of `drm_peer.h`: the entries of a buffer that the file has a handle of.
///
/// # Errors
///
/// Fails as the ioctl does.
pub fn attachments(
    fd: BorrowedFd<'_>,
    driver: uapi::Driver,
    handle: u32,
) -> io::Result<Vec<[u8; uapi::ATTACHMENT_SIZE]>> {
    let mut entries = vec![[0; uapi::ATTACHMENT_SIZE]; IMPORTERS];
    let mut head = [0; uapi::ATTACHMENTS_SIZE];
    head[..4].copy_from_slice(&handle.to_ne_bytes());
    head[4..8].copy_from_slice(&(uapi::ATTACHMENT_SIZE as u32).to_ne_bytes());
    head[8..12].copy_from_slice(&(IMPORTERS as u32).to_ne_bytes());
    head[16..24].copy_from_slice(&(entries.as_mut_ptr() as u64).to_ne_bytes());
    // SAFETY: the one pointer leads to as many entries of that size as the structure says.
    unsafe { ioctl(fd, DRIVER_BASE + driver.attachments, &mut head) }?;
    let count = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]) as usize;
    entries.truncate(count);
    Ok(entries)
}

/// The handle of a dma-buf in a DRM file, which has it until it is closed.
///
/// # Errors
///
/// Fails as the ioctl does.
pub fn handle(fd: BorrowedFd<'_>, buffer: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bytes = [0; PRIME_SIZE];
    bytes[8..].copy_from_slice(&buffer.as_raw_fd().to_ne_bytes());
    // SAFETY: `struct drm_prime_handle` has no pointers.
    unsafe { ioctl(fd, PRIME_FD_TO_HANDLE, &mut bytes) }?;
    Ok(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// A file that another process has open, which the caller has to be permitted to trace.
///
/// # Errors
///
/// Fails as pidfd_open(2) and pidfd_getfd(2) do.
pub fn file_of(process: u32, number: i32) -> io::Result<OwnedFd> {
    let owned = |fd: libc::c_long| match i32::try_from(fd) {
        // SAFETY: the kernel has just made the descriptor, which has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the call takes numbers only.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
    // SAFETY: the same.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

/// Whether the caller is root.
pub fn is_root() -> bool {
    // SAFETY: it only returns a number.
    unsafe { libc::geteuid() == 0 }
}

/// The signals that ask a program to end: from now on no thread gets them.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Holds them back, for this thread and those that it starts.
    pub fn block() -> Self {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is made by the first call before the others use it; none of them keeps
        // it.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            Self(set)
        }
    }

    /// Waits for one of them.
    pub fn wait(&self) {
        let mut signal = 0;
        // SAFETY: both are valid for the time of the call.
        unsafe { libc::sigwait(&self.0, &mut signal) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        // DRM_IOCTL_PRIME_FD_TO_HANDLE, DRM_IOCTL_VVRAM_PEER_QUERY
        assert_eq!(iowr(PRIME_FD_TO_HANDLE, PRIME_SIZE) as u32, 0xc00c_642e);
        assert_eq!(iowr(DRIVER_BASE + 7, uapi::QUERY_SIZE) as u32, 0xc038_6447);
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A library that is preloaded into fio, so that its buffers are an object in VRAM.
//!
//! If fio is configured so, it maps a file for its buffers, from offset 0 on. An object of a DRM
//! device is at another offset, of a file that has a handle of it: `VVRAM_FD` and `VVRAM_OFFSET`
//! name that file and the offset. The library uses them in place of the file that fio has opened,
//! which is the same device node.

use std::env;
use std::mem::zeroed;

/// The major number of DRM devices.
const DRM: u64 = 226;

fn number(name: &str) -> Option<i64> {
    env::var(name).ok()?.parse().ok()
}

/// Returns the file and the offset to map in place of offset 0 of `fd`, if that is a DRM device.
fn instead(fd: i32) -> Option<(i64, i64)> {
    // SAFETY: all-zero is a valid value, and the pointer is valid for a write of it.
    let device = unsafe {
        let mut stat: libc::stat = zeroed();
        if libc::fstat(fd, &raw mut stat) < 0 {
            return None;
        }
        stat.st_rdev
    };
    if device >> 8 & 0xfff != DRM {
        return None;
    }
    Some((number("VVRAM_FD")?, number("VVRAM_OFFSET")?))
}

/// Defines a function that replaces `mmap()`, by one of its names.
macro_rules! mmap {
    ($name:ident) => {
        /// mmap(2).
        ///
        /// # Safety
        ///
        /// The requirements of mmap(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            address: *mut libc::c_void,
            len: usize,
            prot: i32,
            flags: i32,
            fd: i32,
            offset: libc::off_t,
        ) -> *mut libc::c_void {
            let (fd, offset) = instead(fd).unwrap_or((fd.into(), offset));
            // SAFETY: as promised by the caller; a mapping of an object has the same requirements
            // as one of a file.
            unsafe {
                libc::syscall(libc::SYS_mmap, address, len, prot, flags, fd, offset) as *mut _
            }
        }
    };
}

mmap!(mmap);
mmap!(mmap64);

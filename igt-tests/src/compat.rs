// SPDX-License-Identifier: GPL-2.0

//! The system calls of a 32-bit program, made by a 64-bit one.
//!
//! `int 0x80` enters the kernel as a 32-bit program does, with pointers of 32 bits, so arguments
//! are copied to a page below 4 GiB. Between [`on`] and the drop of its result, all ioctls of this
//! thread that have an argument of the library are made like this.

use std::cell::Cell;
use std::mem::size_of;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

use crate::map::PAGE;
use crate::SysError;

/// ioctl(2) among the system calls of 32 bits.
const IOCTL: u64 = 54;
/// getpid(2).
const GETPID: u64 = 20;

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread makes the system calls of 32 bits.
pub fn is_on() -> bool {
    ON.get()
}

/// Ends the system calls of 32 bits when it is dropped.
#[derive(Debug)]
#[must_use = "the calls are those of 64 bits again when this is dropped"]
pub struct On(());

/// Makes the ioctls of this thread those of a 32-bit program.
pub fn on() -> On {
    ON.set(true);
    On(())
}

impl Drop for On {
    fn drop(&mut self) {
        ON.set(false);
    }
}

/// Enters the kernel as a 32-bit program does.
///
/// # Safety
///
/// As for the system call.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: u64, first: u64, second: u64, third: u64) -> i32 {
    let result: u64;
    // SAFETY: the caller's promise. Rust does not permit the register of the first argument as an
    // operand, so its value is saved and restored.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {first}",
            "int 0x80",
            "xchg rbx, {first}",
            first = inout(reg) first => _,
            inout("rax") number => result,
            in("rcx") second,
            in("rdx") third,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
        );
    }
    result as i32
}

/// Other processors have no such instruction.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn call(_number: u64, _first: u64, _second: u64, _third: u64) -> i32 {
    -libc::ENOSYS
}

#[cfg(target_arch = "x86_64")]
use libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const MAP_32BIT: i32 = 0;

/// Whether the kernel supports the system calls of 32-bit programs.
pub fn is_available() -> bool {
    // SAFETY: a call without arguments and effects.
    let pid = unsafe { call(GETPID, 0, 0, 0) };
    pid as u32 == std::process::id()
}

/// Memory below 4 GiB, unmapped when dropped.
#[derive(Debug)]
struct Low {
    base: NonNull<u8>,
    len: usize,
}

impl Low {
    fn new(len: usize) -> Result<Self, SysError> {
        let len = len.next_multiple_of(PAGE).max(PAGE);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | MAP_32BIT;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
        let what = "mmap(MAP_32BIT)";
        if base == libc::MAP_FAILED {
            return Err(SysError::last(what));
        }
        match NonNull::new(base.cast()) {
            Some(base) => Ok(Self { base, len }),
            None => Err(SysError::new(what, libc::EFAULT)),
        }
    }
}

impl Drop for Low {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by new() and nothing borrows from it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// As [`crate::drm::ioctl`], as a 32-bit program makes it.
pub fn ioctl<T>(
    fd: RawFd,
    request: u64,
    argument: &mut T,
    what: impl FnOnce() -> String,
) -> Result<i32, SysError> {
    let low = Low::new(size_of::<T>())?;
    let place = low.base.cast::<T>().as_ptr();
    // SAFETY: the page has room for the argument, which is plain data, and the kernel reads and
    // writes as much as the request says.
    let result = unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(argument), place, 1);
        let result = call(IOCTL, fd as u64, request, place as u64);
        ptr::copy_nonoverlapping(place, ptr::from_mut(argument), 1);
        result
    };
    if result < 0 {
        return Err(SysError::new(format!("{} of 32 bits", what()), -result));
    }
    Ok(result)
}

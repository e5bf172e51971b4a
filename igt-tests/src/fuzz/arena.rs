// SPDX-License-Identifier: GPL-2.0

//! The addresses that random calls may change.
//!
//! They begin at a fixed address, far from where the kernel puts other mappings, so nothing else
//! ever gets the place of what was unmapped. All accesses to them may fault.

use std::arch::asm;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use crate::map::PAGE;
use crate::SysError;

const ORDER: Ordering = Ordering::Relaxed;

/// A block: what one call maps at most.
pub const BLOCK: usize = 256 << 10;
/// Blocks of memory, which begin with a huge page, then those of mappings of devices. Mappings of
/// devices never get into the first ones: MADV_POPULATE_READ of a mapping for direct I/O makes the
/// kernel print a warning, which is finding F4.
pub const MEMORY: usize = 16;
/// All blocks.
pub const BLOCKS: usize = 32;
/// Room of a thread for arguments.
pub const ROOM: usize = 1 << 20;

/// The first address.
pub const START: usize = 64 << 30;
/// Threads with room.
const ROOMS: usize = 24;

/// The address of a block.
pub fn block(index: usize) -> usize {
    START + index * BLOCK
}

/// The address of the room of a thread, which is always mapped.
pub fn room(thread: usize) -> usize {
    assert!(thread < ROOMS, "there is no room for thread {thread}");
    START + BLOCKS * BLOCK + thread * ROOM
}

/// Maps memory at a fixed address of the arena.
pub fn map(
    at: usize,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: u64,
) -> Result<(), SysError> {
    assert!(
        (START..START + BLOCKS * BLOCK + ROOMS * ROOM).contains(&at),
        "outside of the arena"
    );
    let (flags, at) = (flags | libc::MAP_FIXED, at as *mut libc::c_void);
    // SAFETY: what was mapped there belongs to the arena, which is only accessed by functions that
    // expect faults, and by the thread that has the room.
    let base = unsafe { libc::mmap(at, len, prot, flags, fd, offset as libc::off_t) };
    if base == libc::MAP_FAILED {
        return Err(SysError::last("mmap()"));
    }
    Ok(())
}

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// Readable and writable.
pub const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Maps the blocks of memory and the rooms, and lets accesses of this process fault.
pub fn begin() -> Result<(), SysError> {
    map(block(0), MEMORY * BLOCK, READ_WRITE, ANONYMOUS, -1, 0)?;
    map(
        room(0),
        ROOMS * ROOM,
        READ_WRITE,
        ANONYMOUS | libc::MAP_NORESERVE,
        -1,
        0,
    )?;
    // SAFETY: all-zero is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the action is valid, and its handler changes registers only.
        if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } < 0 {
            return Err(SysError::last("sigaction()"));
        }
    }
    Ok(())
}

/// What R10 has during an access that may fault. R11 has the address to go on at.
const EXPECTED: u64 = 0x6675_7a7a_6661_756c;

extern "C" fn on_fault(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the registers.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    if registers[libc::REG_R10 as usize] as u64 == EXPECTED {
        registers[libc::REG_RAX as usize] = 1;
        registers[libc::REG_RIP as usize] = registers[libc::REG_R11 as usize];
    } else {
        // Memory of the program itself. An allocation that fails once lets a page fault fail once: if
        // the same instruction faults again, the process dies.
        let at = registers[libc::REG_RIP as usize];
        ELSEWHERE.fetch_add(1, ORDER);
        if LAST.swap(at, ORDER) == at {
            // SAFETY: this sets the default action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// Faults of other instructions in this process, and the last of these.
static ELSEWHERE: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicI64 = AtomicI64::new(0);

/// How many other instructions of this process have faulted.
pub fn faults_elsewhere() -> u32 {
    ELSEWHERE.load(ORDER)
}

/// Does an instruction on the byte at RDI and in CL, which may fault; whether it worked.
macro_rules! works {
    ($instruction:literal, $at:expr, $byte:expr) => {{
        let failed: u64;
        asm!(
            "lea r11, [rip + 2f]",
            "xor eax, eax",
            $instruction,
            "2:",
            out("rax") failed, inout("cl") $byte => _, in("rdi") $at,
            inout("r10") EXPECTED => _, out("r11") _,
            options(nostack)
        );
        failed == 0
    }};
}

/// Reads a byte by an instruction; whether that worked.
pub fn reads(at: usize) -> bool {
    // SAFETY: the instruction reads a byte, or faults and is skipped. [`begin`] has set the handler.
    unsafe { works!("mov cl, byte ptr [rdi]", at, 0u8) }
}

/// Writes a byte of the blocks by an instruction; whether that worked.
pub fn writes(at: usize, byte: u8) -> bool {
    assert!((START..room(0)).contains(&at), "outside of the blocks");
    // SAFETY: as for [`reads`]; nothing but random calls uses the blocks.
    unsafe { works!("mov byte ptr [rdi], cl", at, byte) }
}

/// A file in memory by which a thread moves bytes to and from addresses that may fault.
#[derive(Debug)]
pub struct Ferry(i32);

impl Ferry {
    /// Makes one.
    pub fn new() -> Result<Self, SysError> {
        // SAFETY: the name is NUL terminated.
        match unsafe { libc::memfd_create(c"ferry".as_ptr(), libc::MFD_CLOEXEC) } {
            -1 => Err(SysError::last("memfd_create()")),
            fd => Ok(Self(fd)),
        }
    }

    /// Writes bytes to an address in the arena; whether that worked.
    pub fn put(&self, at: usize, bytes: &[u8]) -> bool {
        assert!(
            at >= START && at + bytes.len() <= room(0) + ROOMS * ROOM,
            "outside of the arena"
        );
        // SAFETY: the kernel reads the bytes, and writes to memory that only random calls use.
        unsafe {
            let len = bytes.len() as isize;
            libc::pwrite(self.0, bytes.as_ptr().cast(), bytes.len(), 0) == len
                && libc::pread(self.0, at as *mut libc::c_void, bytes.len(), 0) == len
        }
    }

    /// Reads bytes of an address; `None` if that did not work.
    pub fn get(&self, at: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        // SAFETY: the kernel reads from the address, if it can, and writes to the bytes.
        let done = unsafe {
            libc::pwrite(self.0, at as *const libc::c_void, len, 0) == len as isize
                && libc::pread(self.0, bytes.as_mut_ptr().cast(), len, 0) == len as isize
        };
        done.then_some(bytes)
    }
}

impl Drop for Ferry {
    fn drop(&mut self) {
        // SAFETY: the file is ours.
        unsafe { libc::close(self.0) };
    }
}

/// A page of a kind of blocks.
pub fn page(blocks: std::ops::Range<usize>, number: u64) -> usize {
    let pages = (blocks.len() * BLOCK / PAGE) as u64;
    block(blocks.start) + (number % pages) as usize * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_may_fault() {
        begin().unwrap();
        let at = block(0);
        assert!(writes(at, 7) && reads(at));
        map(at, PAGE, libc::PROT_READ, ANONYMOUS, -1, 0).unwrap();
        assert!(reads(at) && !writes(at, 7));
        map(at, PAGE, libc::PROT_NONE, ANONYMOUS, -1, 0).unwrap();
        assert!(!reads(at) && !reads(0) && !reads(usize::MAX));
        let ferry = Ferry::new().unwrap();
        assert!(!ferry.put(at, &[1, 2]) && ferry.get(at, 2).is_none());
        map(at, PAGE, READ_WRITE, ANONYMOUS, -1, 0).unwrap();
        assert!(ferry.put(at, &[1, 2]));
        assert_eq!(ferry.get(at, 2), Some(vec![1, 2]));
    }
}

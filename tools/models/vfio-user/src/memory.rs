// SPDX-License-Identifier: GPL-2.0

//! Memory that is mapped: the device's own memory, its BARs, and the memory of the guest.
//!
//! The other threads of the model, QEMU and the processors of the guest read and write it at the
//! same time. All accesses are atomic. The writes of one call are visible before those of the next
//! call of the same thread; within a call there is no order.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::ptr::NonNull;
use std::sync::atomic;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering;

/// Bytes of a page, of the guest and of the devices.
pub const PAGE: u64 = 4096;

/// A mapping. It is unmapped when it is dropped.
pub struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    /// The file that is mapped, if others are to map it too.
    file: Option<File>,
}

// SAFETY: The mapping belongs to the process and not to a thread.
unsafe impl Send for Memory {}
// SAFETY: Shared access is by atomics only.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroes for this process alone; only pages that are written to take memory of the host.
    pub fn private(bytes: u64) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let memory = Self::map(bytes, flags, None)?;
        // SAFETY: The range is the mapping that was just made.
        let done = unsafe {
            libc::madvise(
                memory.base.as_ptr().cast(),
                memory.bytes,
                libc::MADV_NOHUGEPAGE,
            )
        };
        // A kernel without huge pages does not know the advice, nor need it.
        let _ = done;
        Ok(memory)
    }

    /// Zeroes that others can map by the file of the mapping.
    pub fn shared(name: &CStr, bytes: u64) -> io::Result<Self> {
        // SAFETY: The name ends with a zero.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: The descriptor is new and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes)?;
        let mut memory = Self::map(bytes, libc::MAP_SHARED, Some(file.as_fd()))?;
        memory.file = Some(file);
        Ok(memory)
    }

    /// All of a file that another process gave.
    pub fn of_file(file: &File) -> io::Result<Self> {
        Self::map(file.metadata()?.len(), libc::MAP_SHARED, Some(file.as_fd()))
    }

    fn map(bytes: u64, flags: i32, file: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: The kernel chooses an address that is free; the file, if any, is open.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                file.map_or(-1, |file| file.as_raw_fd()),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self {
            base,
            bytes,
            file: None,
        })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The file by which other processes map the memory of [`Self::shared`].
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.as_fd())
    }

    /// The bytes at an offset.
    ///
    /// # Panics
    ///
    /// If they are not inside: the caller has to check.
    fn at(&self, offset: u64, bytes: usize) -> &[AtomicU8] {
        let end = offset.checked_add(bytes as u64);
        assert!(
            end.is_some_and(|end| end <= self.bytes()),
            "{bytes} bytes at {offset:#x} of {:#x}",
            self.bytes
        );
        // SAFETY: The range is inside of the mapping, which lives as long as `self`. An `AtomicU8`
        // is like a byte, and all accesses in this process are atomic.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset as usize).cast(), bytes) }
    }

    /// The aligned words among some bytes, and the bytes before and after them.
    fn words(bytes: &[AtomicU8]) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        // SAFETY: Every pattern of bits is an `AtomicU64`, and `align_to()` ensures the alignment.
        unsafe { bytes.align_to() }
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        match Self::words(self.at(offset, 8)) {
            ([], [word], []) => word,
            _ => panic!("{offset:#x} is not aligned to 8"),
        }
    }

    /// Copies from the mapping.
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        let (head, body, tail) = Self::words(self.at(offset, to.len()));
        let (first, rest) = to.split_at_mut(head.len());
        let (middle, last) = rest.split_at_mut(8 * body.len());
        for (byte, to) in head.iter().zip(first).chain(tail.iter().zip(last)) {
            *to = byte.load(Ordering::Relaxed);
        }
        for (word, to) in body.iter().zip(middle.chunks_exact_mut(8)) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        atomic::fence(Ordering::Acquire);
    }

    /// Copies to the mapping.
    pub fn write(&self, offset: u64, from: &[u8]) {
        atomic::fence(Ordering::Release);
        let (head, body, tail) = Self::words(self.at(offset, from.len()));
        let (first, rest) = from.split_at(head.len());
        let (middle, last) = rest.split_at(8 * body.len());
        for (byte, from) in head.iter().zip(first).chain(tail.iter().zip(last)) {
            byte.store(*from, Ordering::Relaxed);
        }
        for (word, from) in body.iter().zip(middle.chunks_exact(8)) {
            let from = from.try_into().expect("a chunk of 8 bytes");
            word.store(u64::from_ne_bytes(from), Ordering::Relaxed);
        }
    }

    /// Reads an aligned word; later accesses of the model come after it.
    pub fn load(&self, offset: u64) -> u64 {
        u64::from_le(self.word(offset).load(Ordering::Acquire))
    }

    /// Writes an aligned word; earlier accesses of the model came before it.
    pub fn store(&self, offset: u64, value: u64) {
        self.word(offset).store(value.to_le(), Ordering::Release);
    }

    /// Adds to an aligned word in one step, also for the processors of the guest.
    pub fn add(&self, offset: u64, addend: u64) {
        let word = self.word(offset);
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
            Some(u64::from_le(old).wrapping_add(addend).to_le())
        });
    }

    /// Writes the same byte everywhere in a range.
    pub fn fill(&self, offset: u64, bytes: u64, byte: u8) {
        atomic::fence(Ordering::Release);
        let (head, body, tail) = Self::words(self.at(offset, bytes as usize));
        for place in head.iter().chain(tail) {
            place.store(byte, Ordering::Relaxed);
        }
        for word in body {
            word.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed);
        }
    }

    /// Whether all bytes of a range are the same one.
    pub fn is_filled(&self, offset: u64, bytes: u64, byte: u8) -> bool {
        let (head, body, tail) = Self::words(self.at(offset, bytes as usize));
        let wanted = u64::from_ne_bytes([byte; 8]);
        body.iter()
            .all(|word| word.load(Ordering::Relaxed) == wanted)
            && head
                .iter()
                .chain(tail)
                .all(|place| place.load(Ordering::Relaxed) == byte)
    }

    /// The start and the end of the first part of a shared mapping, from an offset on, that takes
    /// memory of the host. The rest was never written or read.
    pub fn data(&self, from: u64) -> Option<(u64, u64)> {
        let file = self.file.as_ref()?.as_raw_fd();
        let seek = |from: u64, to| {
            // SAFETY: This moves the position of the file, which is not used otherwise.
            let at = unsafe { libc::lseek(file, i64::try_from(from).ok()?, to) };
            u64::try_from(at).ok()
        };
        let begin = seek(from, libc::SEEK_DATA)?;
        Some((begin, seek(begin, libc::SEEK_HOLE)?))
    }

    /// Makes pages of a private mapping zeroes that take no memory of the host.
    ///
    /// # Errors
    ///
    /// The error of the kernel; the content is undefined then.
    pub fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let range = self.at(offset, bytes as usize);
        // SAFETY: The range is inside of the mapping. Its content changes, as it does when another
        // thread writes to it.
        let done = unsafe {
            libc::madvise(
                range.as_ptr().cast_mut().cast(),
                range.len(),
                libc::MADV_DONTNEED,
            )
        };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: The mapping is ours, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_alignment_is_read_and_written() {
        let memory = Memory::private(PAGE).unwrap();
        for start in 0..17 {
            for bytes in 0..35 {
                memory.fill(0, PAGE, 0xee);
                let data: Vec<u8> = (0..bytes).map(|i| i as u8 + 1).collect();
                memory.write(start, &data);
                let mut all = vec![0; PAGE as usize];
                memory.read(0, &mut all);
                let end = start as usize + data.len();
                assert_eq!(all[start as usize..end], data);
                assert!(all[..start as usize].iter().all(|&byte| byte == 0xee));
                assert!(all[end..].iter().all(|&byte| byte == 0xee));
            }
        }
    }

    #[test]
    fn one_other_byte_is_seen() {
        let memory = Memory::private(PAGE).unwrap();
        for place in [0, 3, 1000, PAGE - 1] {
            memory.fill(0, PAGE, 0xa5);
            assert!(memory.is_filled(0, PAGE, 0xa5));
            memory.write(place, &[0]);
            assert!(!memory.is_filled(0, PAGE, 0xa5));
        }
    }

    #[test]
    fn a_shared_file_is_the_same_memory() {
        let memory = Memory::shared(c"test", 2 * PAGE).unwrap();
        let file = File::from(memory.file().unwrap().try_clone_to_owned().unwrap());
        let other = Memory::of_file(&file).unwrap();
        memory.store(PAGE, 77);
        other.add(PAGE, 1);
        assert_eq!(memory.load(PAGE), 78);
        assert_eq!(other.bytes(), 2 * PAGE);
    }

    #[test]
    fn what_was_never_touched_takes_no_memory() {
        let memory = Memory::shared(c"test", 1 << 36).unwrap();
        assert_eq!(memory.data(0), None);
        memory.store(1 << 35, 1);
        let (begin, end) = memory.data(0).unwrap();
        assert!((begin..end).contains(&(1 << 35)) && end - begin <= 1 << 21);
        assert_eq!(memory.data(end), None);
    }

    #[test]
    fn discarded_pages_are_zero() {
        let memory = Memory::private(3 * PAGE).unwrap();
        memory.fill(0, 3 * PAGE, 1);
        memory.discard(PAGE, PAGE).unwrap();
        assert!(memory.is_filled(0, PAGE, 1));
        assert!(memory.is_filled(PAGE, PAGE, 0));
        assert!(memory.is_filled(2 * PAGE, PAGE, 1));
    }
}

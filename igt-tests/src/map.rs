// SPDX-License-Identifier: GPL-2.0

//! Shared memory mappings, accessed word by word.

use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::thread::sleep;
use std::time::Duration;

use crate::pattern::{Compare, Mismatch, Pattern};
use crate::SysError;

/// A page, in bytes, of the kernel that the programs are built for.
pub const PAGE: usize = if option_env!("PAGES_64K").is_some() {
    64 << 10
} else {
    4 << 10
};
/// The same for offsets and sizes of objects.
pub const PAGE64: u64 = PAGE as u64;
const PAGE_WORDS: usize = PAGE / 8;

/// A mapping of a file, or of memory, unmapped when dropped.
#[derive(Debug)]
pub struct Map {
    base: NonNull<u64>,
    len: usize,
}

// SAFETY: the mapping belongs to the value, whichever thread has it.
unsafe impl Send for Map {}

// SAFETY: words are accessed with volatile accesses, because processes and devices may change them
// at any time.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes for reading and writing.
    pub fn new(fd: RawFd, offset: u64, len: usize) -> Result<Self, SysError> {
        Self::with_prot(fd, offset, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps `len` bytes with the given protection.
    pub fn with_prot(fd: RawFd, offset: u64, len: usize, prot: i32) -> Result<Self, SysError> {
        Self::with_flags(fd, offset, len, prot, libc::MAP_SHARED)
    }

    /// Maps `len` bytes of zeroed, shared anonymous memory.
    pub fn anonymous(len: usize) -> Result<Self, SysError> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Self::with_flags(-1, 0, len, prot, libc::MAP_SHARED | libc::MAP_ANONYMOUS)
    }

    /// Returns a page of memory that begins with `value`, and that can only be read.
    pub fn read_only<T: Copy>(value: T) -> Result<Self, SysError> {
        const { assert!(size_of::<T>() <= PAGE) };
        let page = Self::anonymous(PAGE)?;
        let base = page.address().as_ptr();
        // SAFETY: the page has room for the value, and nothing else refers to it.
        unsafe { base.cast::<T>().write(value) };
        // SAFETY: the mapping stays readable, and is not written to from here on.
        let status = unsafe { libc::mprotect(base.cast(), PAGE, libc::PROT_READ) };
        if status < 0 {
            return Err(SysError::last("mprotect(PROT_READ)"));
        }
        Ok(page)
    }

    /// Maps `len` bytes of zeroed, private anonymous memory.
    pub fn private(len: usize) -> Result<Self, SysError> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Self::with_flags(-1, 0, len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }

    /// Maps `len` bytes of a file for reading and writing. What is written stays private.
    pub fn private_file(fd: RawFd, len: usize) -> Result<Self, SysError> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Self::with_flags(fd, 0, len, prot, libc::MAP_PRIVATE)
    }

    /// As [`Map::private`], at a multiple of `align` bytes, which is a power of two.
    pub fn private_aligned(len: usize, align: usize) -> Result<Self, SysError> {
        assert!(align.is_power_of_two() && align >= PAGE && len.is_multiple_of(PAGE));
        let map = Self::private(len + align)?;
        let base = map.base.as_ptr().cast::<u8>();
        let before = base.align_offset(align);
        std::mem::forget(map);
        // SAFETY: the parts before and behind the aligned part belong to the mapping, which was
        // just made and which nothing refers to.
        unsafe {
            if before > 0 {
                libc::munmap(base.cast(), before);
            }
            if before < align {
                libc::munmap(base.add(before + len).cast(), align - before);
            }
        }
        // SAFETY: not null, as it is inside of the mapping.
        let base = unsafe { NonNull::new_unchecked(base.add(before).cast()) };
        Ok(Self { base, len })
    }

    /// The address of a page.
    pub fn page_address(&self, page: usize) -> u64 {
        assert!(page <= self.pages(), "page {page} is outside the mapping");
        self.base.as_ptr() as u64 + (page * PAGE) as u64
    }

    /// Calls `f` with the address of some pages and their length, for example to change their
    /// mapping.
    ///
    /// # Errors
    ///
    /// The errno of `what`, the system call that `f` makes, if it returns a negative number.
    pub fn with_pages(
        &self,
        what: &str,
        pages: std::ops::Range<usize>,
        f: impl FnOnce(*mut libc::c_void, usize) -> i32,
    ) -> Result<(), SysError> {
        let address = self.page_address(pages.start) as *mut libc::c_void;
        assert!(pages.end <= self.pages(), "pages outside the mapping");
        if f(address, pages.len() * PAGE) < 0 {
            return Err(SysError::last(what));
        }
        Ok(())
    }

    /// mprotect(2) of some pages.
    pub fn protect(&self, pages: std::ops::Range<usize>, prot: i32) -> Result<(), SysError> {
        // SAFETY: the pages are of the mapping; the caller must not access them while their
        // protection forbids it.
        self.with_pages("mprotect()", pages, |address, len| unsafe {
            libc::mprotect(address, len, prot)
        })
    }

    /// madvise(2) of some pages.
    pub fn advise(&self, pages: std::ops::Range<usize>, advice: i32) -> Result<(), SysError> {
        // SAFETY: the pages are of the mapping, which is accessed with volatile accesses only.
        self.with_pages("madvise()", pages, |address, len| unsafe {
            libc::madvise(address, len, advice)
        })
    }

    /// Makes huge pages of some pages, which have to be in the state for it.
    ///
    /// The kernel does not wait for a page that it cannot isolate at this moment, and returns
    /// `EAGAIN`.
    ///
    /// # Errors
    ///
    /// Any other error of `madvise(MADV_COLLAPSE)`, and `EAGAIN` if it stays.
    pub fn collapse(&self, pages: std::ops::Range<usize>) -> Result<(), SysError> {
        for _ in 1..100 {
            match self.advise(pages.clone(), libc::MADV_COLLAPSE) {
                Err(error) if error.errno == libc::EAGAIN => sleep(Duration::from_millis(10)),
                ended => return ended,
            }
        }
        self.advise(pages, libc::MADV_COLLAPSE)
    }

    /// Writes what was changed to the file of the mapping, and waits for it.
    pub fn sync(&self) -> Result<(), SysError> {
        // SAFETY: the pages are of the mapping, and stay.
        self.with_pages("msync()", 0..self.pages(), |address, len| unsafe {
            libc::msync(address, len, libc::MS_SYNC)
        })
    }

    /// Returns how many pages of the memory or file that is mapped are in system memory, in the page
    /// cache or the swap cache, whether the process has them in its page table or not.
    pub fn cached(&self) -> Result<usize, SysError> {
        let mut pages = vec![0u8; self.pages()];
        // SAFETY: there is a byte for each page.
        self.with_pages("mincore()", 0..self.pages(), |address, len| unsafe {
            libc::mincore(address, len, pages.as_mut_ptr())
        })?;
        Ok(pages.iter().filter(|page| **page & 1 != 0).count())
    }

    /// Moves the mapping to other addresses, by mremap(2).
    pub fn moved(self) -> Result<Self, SysError> {
        let target = Self::private(self.len)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both ranges are mappings of this function: `self`, which is forgotten, and
        // `target`, which is the result.
        let base = unsafe {
            libc::mremap(
                self.base.as_ptr().cast(),
                self.len,
                self.len,
                flags,
                target.base.as_ptr(),
            )
        };
        if base == libc::MAP_FAILED {
            return Err(SysError::last("mremap()"));
        }
        std::mem::forget(self);
        Ok(target)
    }

    /// Unmaps the pages from `first` on.
    pub fn truncate(&mut self, first: usize) -> Result<(), SysError> {
        let pages = first..self.pages();
        // SAFETY: the pages are of the mapping, which ends before them from here on.
        self.with_pages("munmap()", pages, |address, len| unsafe {
            libc::munmap(address, len)
        })?;
        self.len = first * PAGE;
        Ok(())
    }

    fn with_flags(
        fd: RawFd,
        offset: u64,
        len: usize,
        prot: i32,
        flags: i32,
    ) -> Result<Self, SysError> {
        let what = || format!("mmap(len={len}, prot={prot}, offset={offset:#x})");
        let Ok(raw) = libc::off_t::try_from(offset) else {
            return Err(SysError::new(what(), libc::EOVERFLOW));
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no
        // memory that is in use.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, raw) };
        if base == libc::MAP_FAILED {
            return Err(SysError::last(what()));
        }
        match NonNull::new(base.cast()) {
            Some(base) => Ok(Self { base, len }),
            None => Err(SysError::new(what(), libc::EFAULT)),
        }
    }

    /// Where it starts.
    pub fn address(&self) -> NonNull<u64> {
        self.base
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping is empty, which the kernel never allows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.len / PAGE
    }

    /// Reads the word at an index.
    #[inline]
    pub fn read(&self, index: usize) -> u64 {
        assert!(index < self.len / 8, "word {index} is outside the mapping");
        // SAFETY: the index is inside the mapping, which lives as long as self.
        // Other processes and devices may change it, hence volatile.
        unsafe { self.base.as_ptr().add(index).read_volatile() }
    }

    /// Reads the word at an index by a system call, which fails where an access by the process ends
    /// in a signal.
    ///
    /// # Errors
    ///
    /// `EFAULT` in that case, and any error of a pipe.
    pub fn try_read(&self, index: usize) -> Result<u64, SysError> {
        assert!(index < self.len / 8, "word {index} is outside the mapping");
        let (mut read, write) = std::io::pipe().map_err(|error| SysError::io("pipe", &error))?;
        // SAFETY: as for read(). The kernel reads the word, which may be in a mapping of a device.
        let count = unsafe {
            let word = self.base.as_ptr().add(index);
            libc::write(write.as_raw_fd(), word.cast(), 8)
        };
        if count != 8 {
            return Err(SysError::last("write(pipe)"));
        }
        let mut word = [0; 8];
        read.read_exact(&mut word)
            .map_err(|error| SysError::io("read(pipe)", &error))?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Writes the word at an index.
    #[inline]
    pub fn write(&self, index: usize, value: u64) {
        assert!(index < self.len / 8, "word {index} is outside the mapping");
        // SAFETY: as for read().
        unsafe { self.base.as_ptr().add(index).write_volatile(value) }
    }

    /// Writes a pattern over the whole mapping.
    pub fn fill(&self, pattern: Pattern) {
        self.fill_pages(pattern, 0, self.pages());
    }

    /// Writes a pattern over some pages.
    pub fn fill_pages(&self, pattern: Pattern, first: usize, count: usize) {
        for index in first * PAGE_WORDS..(first + count) * PAGE_WORDS {
            self.write(index, pattern.word(index as u64));
        }
    }

    /// Writes one value everywhere.
    pub fn set(&self, value: u64) {
        for index in 0..self.len / 8 {
            self.write(index, value);
        }
    }

    /// Copies all of another mapping of the same size.
    ///
    /// Uses the instruction that the kernel uses for I/O memory on x86-64, so that counts of
    /// instructions can be compared.
    pub fn copy_from(&self, from: &Self) {
        assert_eq!(self.len, from.len, "mappings of different sizes");
        #[cfg(not(target_arch = "x86_64"))]
        for index in 0..self.len / 8 {
            self.write(index, from.read(index));
        }
        // SAFETY: both mappings have that many bytes and live as long as both references. Other
        // processes and devices may change the bytes meanwhile, which does no harm to the
        // instruction.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!(
                "rep movsd",
                inout("rcx") self.len / 4 => _,
                inout("rdi") self.base.as_ptr() => _,
                inout("rsi") from.base.as_ptr() => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Compares the whole mapping with a pattern.
    ///
    /// # Errors
    ///
    /// The first difference, if there is one.
    pub fn verify(&self, pattern: Pattern) -> Result<(), Mismatch> {
        self.verify_pages(pattern, 0, self.pages())
    }

    /// Compares some pages with a pattern.
    ///
    /// # Errors
    ///
    /// The first difference, if there is one.
    pub fn verify_pages(
        &self,
        pattern: Pattern,
        first: usize,
        count: usize,
    ) -> Result<(), Mismatch> {
        let mut compare = Compare::default();
        for index in first * PAGE_WORDS..(first + count) * PAGE_WORDS {
            let want = pattern.word(index as u64);
            compare.word(8 * index as u64, want, self.read(index));
        }
        compare.finish()
    }

    /// Compares the whole mapping with one value.
    ///
    /// # Errors
    ///
    /// The first difference, if there is one.
    pub fn verify_value(&self, value: u64) -> Result<(), Mismatch> {
        let mut compare = Compare::default();
        for index in 0..self.len / 8 {
            compare.word(8 * index as u64, value, self.read(index));
        }
        compare.finish()
    }

    /// Discards a page of memory: the next access gets a new one.
    pub fn discard(&self, page: usize) -> Result<(), SysError> {
        self.advise(page..page + 1, libc::MADV_DONTNEED)
    }

    /// Where a page starts, for system calls that change its mapping.
    fn page(&self, page: usize) -> *mut libc::c_void {
        assert!(page < self.pages(), "page {page} is outside the mapping");
        self.base.as_ptr().wrapping_add(page * PAGE_WORDS).cast()
    }

    /// Unmaps a page of private memory. Until [`Map::refill`] an access by the caller is fatal.
    pub fn punch(&self, page: usize) -> Result<(), SysError> {
        // SAFETY: the page is inside the mapping, of which there are no references.
        self.with_pages("munmap()", page..page + 1, |address, len| unsafe {
            libc::munmap(address, len)
        })
    }

    /// Maps new private memory in the place of a page.
    pub fn refill(&self, page: usize) -> Result<(), SysError> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: as above: the new memory replaces a page inside of the mapping.
        let base = unsafe { libc::mmap(self.page(page), PAGE, prot, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(SysError::last("mmap(MAP_FIXED)"));
        }
        Ok(())
    }

    /// Reads the byte at an offset.
    pub fn byte(&self, offset: usize) -> u8 {
        (self.read(offset / 8) >> (8 * (offset % 8))) as u8
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by new() and nothing borrows from it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

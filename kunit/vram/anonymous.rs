// SPDX-License-Identifier: GPL-2.0

//! Anonymous memory of a process that the thread of a test is attached to.

use crate::bench::PAGE;
use kernel::{
    bindings,
    prelude::*,
    sizes::SZ_2M, //
};

/// How many pages migrate at once at most: those of an entry of a PMD, for pages of 4 KiB.
pub(crate) const LARGEST: usize = SZ_2M / PAGE as usize;

/// Anonymous memory of the process of a test, which begins where such a piece may.
pub(crate) struct Anonymous {
    pub(crate) addr: usize,
    pub(crate) pages: usize,
}

impl Anonymous {
    pub(crate) fn new(pages: usize) -> Result<Self> {
        // `PROT_READ | PROT_WRITE`, and `MAP_PRIVATE | MAP_ANONYMOUS`.
        const PROT: usize = 1 | 2;
        const FLAGS: usize = 0x2 | 0x20;
        let align = SZ_2M;
        let len = pages * PAGE as usize;

        // SAFETY: A test is a thread of the kernel, which the process is made for.
        let addr = unsafe {
            kernel::error::to_result(bindings::kunit_attach_mm())?;
            bindings::vm_mmap(core::ptr::null_mut(), 0, len + align, PROT, FLAGS, 0)
        };

        // CAST: The highest addresses are negative errors.
        if let error @ -4095..0 = addr as isize {
            return Err(Error::from_errno(error as i32));
        }

        let before = addr.next_multiple_of(align) - addr;
        let this = Self {
            addr: addr + before,
            pages,
        };

        // The neighbouring memory is unmapped, so that a small piece is not a part of a large
        // folio.
        // SAFETY: Just mapped, and not used.
        unsafe {
            if before != 0 {
                bindings::vm_munmap(addr, before);
            }
            bindings::vm_munmap(this.addr + len, align - before);
        }
        Ok(this)
    }

    /// As [`Self::new`], with content.
    pub(crate) fn filled(pages: usize, seed: u64) -> Result<Self> {
        let memory = Self::new(pages)?;

        memory.fill(seed)?;
        Ok(memory)
    }

    fn slice(&self, page: usize) -> kernel::uaccess::UserSlice {
        let addr = self.addr + page * PAGE as usize;

        kernel::uaccess::UserSlice::new(kernel::uaccess::UserPtr::from_addr(addr), PAGE as usize)
    }

    /// Writes words that are different in each place, and for each seed.
    pub(crate) fn fill(&self, seed: u64) -> Result {
        for page in 0..self.pages {
            self.slice(page)
                .writer()
                .write_slice(&content(Some(seed), page)?)?;
        }
        Ok(())
    }

    /// Reads a page as the process does, and returns whether it has the words of [`Self::fill`], or
    /// zeroes.
    pub(crate) fn holds(&self, seed: Option<u64>, page: usize) -> Result<bool> {
        self.has(page, seed, page)
    }

    /// As [`Self::holds`], but with the words of another page.
    pub(crate) fn has(&self, page: usize, seed: Option<u64>, other: usize) -> Result<bool> {
        let mut bytes = KVec::from_elem(0u8, PAGE as usize, GFP_KERNEL)?;

        self.slice(page).reader().read_slice(&mut bytes)?;
        Ok(bytes[..] == content(seed, other)?[..])
    }

    /// Returns whether [`Self::holds`] is true for each page.
    pub(crate) fn all_hold(&self, seed: Option<u64>) -> Result<bool> {
        let mut same = true;

        for page in 0..self.pages {
            same &= self.holds(seed, page)?;
        }
        Ok(same)
    }

    pub(crate) fn mm(&self) -> &kernel::mm::Mm {
        // SAFETY: The thread has the memory of the process, since `new()`.
        unsafe { kernel::mm::Mm::from_raw((*bindings::get_current()).mm) }
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: The thread has the memory of the process, in which this was mapped.
        unsafe { bindings::vm_munmap(self.addr, self.pages * PAGE as usize) };
    }
}

/// Returns the words that [`Anonymous::fill`] writes to a page, or zeroes.
pub(crate) fn content(seed: Option<u64>, page: usize) -> Result<KVec<u8>> {
    let mut bytes = KVec::with_capacity(PAGE as usize, GFP_KERNEL)?;

    for index in 0..PAGE / 8 {
        let word = seed.map_or(0, |seed| {
            crate::bench::word(seed, page as u64 * PAGE / 8 + index)
        });

        bytes.extend_from_slice(&word.to_le_bytes(), GFP_KERNEL)?;
    }
    Ok(bytes)
}

// SPDX-License-Identifier: GPL-2.0

//! The mappings of system memory buffers in processes.
//!
//! A process maps the file of a buffer and gets each page on access. The mapping of a page holds a
//! reference to it. When the buffer is revoked all pages are unmapped.

use super::pages::Pages;
use crate::{
    bindings,
    dma_buf::DmaBuf,
    error::to_result,
    prelude::*, //
};
use core::ptr::NonNull;

/// The mappings of a buffer in processes.
///
/// # Invariants
///
/// `inode` is that of the file of the buffer. This value owns a reference to it.
pub(super) struct UserMappings {
    inode: NonNull<bindings::inode>,
}

// SAFETY: An inode may be used and released from any task.
unsafe impl Send for UserMappings {}

// SAFETY: As for `Send`.
unsafe impl Sync for UserMappings {}

impl UserMappings {
    /// Keeps the inode of the file of a buffer.
    ///
    /// It does not keep the file because a reference to the file would keep the buffer. The file
    /// may be gone before the buffer.
    #[inline(never)]
    pub(super) fn new(buf: &DmaBuf) -> Self {
        // INVARIANT: The reference is taken here.
        // SAFETY: The buffer is valid with a reference, so its file is valid and has an inode.
        unsafe {
            let inode = (*(*buf.as_raw()).file).f_inode;

            bindings::ihold(inode);
            Self {
                inode: NonNull::new_unchecked(inode),
            }
        }
    }

    /// Unmaps all pages mapped by processes.
    ///
    /// Sleeps. Mirrors `unmap_mapping_range()`.
    #[inline(never)]
    pub(super) fn unmap(&self) {
        // SAFETY: By the type invariant the inode is valid. All VMAs of the file are in its
        // mapping. A length of 0 means all of them; private copies are unmapped as well.
        unsafe { bindings::unmap_mapping_range(self.inode.as_ref().i_mapping, 0, 0, 1) };
    }
}

impl Drop for UserMappings {
    fn drop(&mut self) {
        // SAFETY: By the type invariant there is a reference, which is dropped here.
        unsafe { bindings::iput(self.inode.as_ptr()) };
    }
}

/// Inserts a page into the VMA of the process accessing it. Sleeps.
///
/// Mirrors `vm_insert_page()`.
///
/// # Errors
///
/// - `EFAULT` if there is no such page.
/// - `ENOMEM` if memory runs out.
///
/// # Safety
///
/// `vmf` must be a valid fault in a VMA with `VM_MIXEDMAP`.
#[inline(never)]
pub(super) unsafe fn insert_page(
    vmf: *mut bindings::vm_fault,
    pages: &Pages,
    index: usize,
) -> Result {
    let page = pages.page(index).ok_or(EFAULT)?;

    // SAFETY: As promised by the caller. The page is valid and the VMA takes a reference.
    let ret = to_result(unsafe {
        let fault = &(*vmf).__bindgen_anon_1;

        bindings::vm_insert_page(fault.vma, fault.address, page.as_ptr())
    });
    match ret {
        // Another thread has inserted the page.
        Err(e) if e == EBUSY => Ok(()),
        ret => ret,
    }
}

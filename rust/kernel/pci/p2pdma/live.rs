// SPDX-License-Identifier: GPL-2.0

//! BAR pages with possible references of other code.
//!
//! Other code cannot take a reference to a page of [`BarPages`], because its count is 0. If a
//! driver lets processes map a part of the BAR, it makes its pages [`Live`]. Then their count is 1,
//! and each page table entry and each user of direct I/O adds to that. They are [`Idle`] again once
//! no other reference is left.
//!
//! There is no notification when a reference is put, so code has to poll to wait for the last one.
//! With a lock held that a page fault takes, such a wait never ends: direct I/O keeps the first
//! pages of a buffer and then faults the next ones in. So [`Busy`] has no way to wait.
//!
//! When the count of a page falls to 0, the page is put into the pool taken by the driver. So the
//! first reference is never put: the count is changed from 1 to 0 if it is the only one.
//!
//! C headers: [`include/linux/page_ref.h`](srctree/include/linux/page_ref.h),
//! [`include/linux/pci-p2pdma.h`](srctree/include/linux/pci-p2pdma.h)

use super::pages::{
    BarPages,
    Pool, //
};
use crate::{
    bindings,
    page::{
        PAGE_MASK,
        PAGE_SHIFT, //
    },
    prelude::*,
    sync::Arc, //
};

/// Consecutive pages of a BAR at a place of a buffer.
struct Piece {
    /// The number of the page in the buffer.
    at: usize,
    /// The offset in the BAR in bytes.
    offset: u64,
    /// How many pages there are.
    count: usize,
}

/// Pages of a buffer in either state.
///
/// # Invariants
///
/// - The pieces are inside the part of the BAR of `pool` with pages. The reference to the pool
///   keeps the pages: an unbind waits for it.
/// - No other code uses the memory of these pages.
struct Pieces {
    pieces: KVVec<Piece>,
    pool: Arc<Pool>,
}

impl Pieces {
    /// Returns whether the pieces are a part of `pages`.
    ///
    /// Otherwise `pages` belong to a later binding of the same device or to another device.
    fn are_of(&self, pages: &BarPages<'_>) -> bool {
        Arc::ptr_eq(&self.pool, &pages.pool)
    }

    /// Returns the pages in the order of the buffer.
    fn iter<'a, 'b>(
        &'a self,
        pages: &'a BarPages<'b>,
    ) -> impl Iterator<Item = *mut bindings::page> + use<'a, 'b> {
        self.pieces
            .iter()
            .flat_map(|piece| (0..piece.count).map(move |page| piece.offset + bytes(page)))
            .filter_map(|offset| pages.page(offset))
    }
}

fn bytes(pages: usize) -> u64 {
    (pages as u64) << PAGE_SHIFT
}

/// Pages of a buffer without references.
///
/// # Invariants
///
/// The counts of the pages are 0.
pub(crate) struct Idle(Pieces);

/// Pages of a buffer with possible references of other code.
///
/// It must not be dropped while the driver is bound: [`Live::try_idle`] consumes it. An unbind
/// waits for a kept value.
///
/// # Invariants
///
/// The counts of the pages are at least 1 and one of each belongs to the value.
#[must_use = "the pages stay live"]
pub(crate) struct Live(Pieces);

/// Pages with other references to at least one of them.
pub(crate) struct Busy(pub(crate) Live);

impl Idle {
    /// Takes the pages of a buffer with `pieces` of the BAR: the offset and the length of each in
    /// bytes, in the order of the buffer.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there are no pieces or if they are not whole pages inside the part of the BAR
    ///   with pages.
    /// - `ENOMEM` if memory runs out.
    ///
    /// # Safety
    ///
    /// The caller must own the memory of these pieces. Until the value, or the value it was
    /// converted to, is idle and dropped, the caller must neither give this memory to other users
    /// nor call this again for a part of it.
    pub(crate) unsafe fn new(
        pages: &BarPages<'_>,
        pieces: impl Iterator<Item = (u64, u64)>,
    ) -> Result<Self> {
        let (mut list, mut at) = (KVVec::new(), 0);

        for (offset, len) in pieces {
            let end = offset.checked_add(len).ok_or(EINVAL)?;

            if (offset | len) & !(PAGE_MASK as u64) != 0 || end > pages.len() {
                return Err(EINVAL);
            }
            // CAST: The BAR is in the address space.
            let count = (len >> PAGE_SHIFT) as usize;
            list.push(Piece { at, offset, count }, GFP_KERNEL)?;
            at += count;
        }
        if at == 0 {
            return Err(EINVAL);
        }

        // INVARIANT: The pieces were checked above. By the safety requirements no other code uses
        // the memory. The pool gives no page to other code, so the count of every page is 0 unless
        // it was made live.
        Ok(Self(Pieces {
            pieces: list,
            pool: pages.pool.clone(),
        }))
    }

    /// Allows other code to have references.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `pages` belong to another device.
    pub(crate) fn unfreeze(self, pages: &BarPages<'_>) -> Result<Live> {
        if !self.0.are_of(pages) {
            return Err(EINVAL);
        }

        for page in self.0.iter(pages) {
            // SAFETY: The page is valid as long as `pages`. Its count is 0 by the type invariant.
            unsafe { bindings::page_ref_unfreeze(page, 1) };
        }
        // INVARIANT: The first references were just counted.
        Ok(Live(self.0))
    }
}

impl Live {
    /// Returns page `index` of the buffer, or [`None`] behind its end. May be called in any
    /// context.
    pub(crate) fn page(&self, pages: &BarPages<'_>, index: usize) -> Option<*mut bindings::page> {
        if !self.0.are_of(pages) {
            return None;
        }

        let list = &self.0.pieces;
        let piece = list.get(list.partition_point(|piece| piece.at + piece.count <= index))?;

        pages.page(piece.offset + bytes(index - piece.at))
    }

    /// Removes the first reference of each page if all of them are the only ones.
    ///
    /// No page table may have an entry for one of the pages: if a task finds it there while its
    /// count is 0 for a moment, it treats this as a kernel bug. May be called in any context.
    ///
    /// # Errors
    ///
    /// [`Busy`] if one of the pages has other references. Then nothing has changed.
    pub(crate) fn try_idle(self, pages: &BarPages<'_>) -> Result<Idle, Busy> {
        if !self.0.are_of(pages) {
            return Err(Busy(self));
        }

        // SAFETY: The page is valid as long as `pages`.
        let freeze =
            |page: &*mut bindings::page| unsafe { bindings::page_ref_freeze(*page, 1) != 0 };
        let frozen = self.0.iter(pages).take_while(freeze).count();
        let all = self.0.pieces.iter().map(|piece| piece.count).sum();

        if frozen == all {
            // INVARIANT: Each count is 0 now.
            return Ok(Idle(self.0));
        }
        for page in self.0.iter(pages).take(frozen) {
            // SAFETY: The page is valid as long as `pages`. Its count was just set to 0 and no
            // other code raises it from there.
            unsafe { bindings::page_ref_unfreeze(page, 1) };
        }
        Err(Busy(self))
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Pages of a BAR that others may have references to.
//!
//! Nobody can take a reference to a page of [`BarPages`], because its count is 0. A driver that lets
//! processes map a part of the BAR makes its pages [`Live`]: their count is 1, and each entry of a
//! page table and each user of direct I/O adds to that. They are [`Idle`] again once that count is
//! all that is left.
//!
//! Nothing tells when a reference is put: who waits for the last one has to look again. A wait with a
//! lock that a page fault takes never ends: direct I/O keeps the first pages of a buffer and then
//! faults the next ones in. [`Busy`] has no way to wait, for that reason.
//!
//! A disk may try to map the pages of a request again and again, and keep them meanwhile. Whoever
//! waits for it has that fail: [`Refused`].
//!
//! A page whose count falls to 0 would be put into the pool that the driver has taken. So the first
//! reference is never put, but exchanged for none if it is the only one.
//!
//! C headers: [`include/linux/page_ref.h`](srctree/include/linux/page_ref.h),
//! [`include/linux/pci-p2pdma.h`](srctree/include/linux/pci-p2pdma.h)

use super::pages::{
    BarPages,
    Pool, //
};
use crate::{
    bindings,
    device,
    page::{
        PAGE_MASK,
        PAGE_SHIFT, //
    },
    pci::Device,
    prelude::*,
    sync::Arc, //
};

/// Some pages of a BAR that follow each other, at a place of a buffer.
struct Piece {
    /// The number of the page in the buffer.
    at: usize,
    /// Where in the BAR it begins, in bytes.
    offset: u64,
    /// How many pages there are.
    count: usize,
}

/// Pages of a buffer, whatever their state is.
///
/// # Invariants
///
/// - The pieces are inside of what has pages in the BAR that `pool` is of. The reference to it keeps
///   the pages: an unbind waits for it.
/// - Nobody else uses the memory that they show.
struct Pieces {
    pieces: KVVec<Piece>,
    pool: Arc<Pool>,
}

impl Pieces {
    /// Tells whether `pages` are those that the pieces are a part of.
    ///
    /// They are of the same device, bound once more, or another one otherwise.
    fn are_of(&self, pages: &BarPages<'_>) -> bool {
        Arc::ptr_eq(&self.pool, &pages.pool)
    }

    /// Returns the pages, in the order of the buffer.
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

/// Pages of a buffer that nobody has a reference to.
///
/// # Invariants
///
/// The counts of the pages are 0.
pub(crate) struct Idle(Pieces);

/// Pages of a buffer that others may have references to.
///
/// It is not dropped while the driver is bound: [`Live::try_idle`] takes it. An unbind waits for one
/// that is kept.
///
/// # Invariants
///
/// The counts of the pages are at least 1, and one of each belongs to the value.
#[must_use = "the pages stay live"]
pub(crate) struct Live(Pieces);

/// Pages of which at least one is referenced by others.
pub(crate) struct Busy(pub(crate) Live);

impl Idle {
    /// Takes the pages of a buffer that has `pieces` of the BAR: the offset and the length of each
    /// in bytes, in the order of the buffer.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if they are not whole pages, or not inside of what has pages.
    /// - `ENOMEM` if memory runs out.
    ///
    /// # Safety
    ///
    /// The caller must have the memory that these pieces show, and must neither give it to others nor
    /// call this again for a part of it before the value, or what it was made into, is idle and
    /// dropped.
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

        // INVARIANT: Checked above, and by the safety requirements. The pool gives no page to
        // others, so all counts are 0 that nobody has made live.
        Ok(Self(Pieces {
            pieces: list,
            pool: pages.pool.clone(),
        }))
    }

    /// Lets others have references.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `pages` are those of another device.
    pub(crate) fn unfreeze(self, pages: &BarPages<'_>) -> Result<Live> {
        if !self.0.are_of(pages) {
            return Err(EINVAL);
        }

        for page in self.0.iter(pages) {
            // SAFETY: The page is valid as long as `pages`, and its count 0 by the type invariant.
            unsafe { bindings::page_ref_unfreeze(page, 1) };
        }
        // INVARIANT: Just counted.
        Ok(Live(self.0))
    }
}

impl Live {
    /// Returns page `index` of the buffer, [`None`] behind its end. May be called in any context.
    pub(crate) fn page(&self, pages: &BarPages<'_>, index: usize) -> Option<*mut bindings::page> {
        if !self.0.are_of(pages) {
            return None;
        }

        let list = &self.0.pieces;
        let piece = list.get(list.partition_point(|piece| piece.at + piece.count <= index))?;

        pages.page(piece.offset + bytes(index - piece.at))
    }

    /// Takes back the first reference of each page, if it is the only one.
    ///
    /// No page table may have one of the pages: a task that finds it there while its count is 0 for a
    /// moment takes that for a fault of the kernel. May be called in any context.
    ///
    /// # Errors
    ///
    /// [`Busy`] if others have a reference to one, and nothing has changed.
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
            // SAFETY: The page is valid as long as `pages`, and its count was just set to 0, from
            // which nobody raises it.
            unsafe { bindings::page_ref_unfreeze(page, 1) };
        }
        Err(Busy(self))
    }
}

/// The memory of a device of which nobody gets a new mapping for DMA, until the value is dropped.
///
/// What is mapped stays so. A request that has referenced pages, and whose driver maps them late or
/// once more, fails as if there were no route.
///
/// Mirrors `pci_p2pdma_refuse()`.
#[must_use = "mappings are permitted when it is dropped"]
pub(crate) struct Refused<'a>(&'a Device<device::Bound>);

impl<'a> Refused<'a> {
    /// Refuses new mappings of all BARs of the device. There is one such value of a device at a time:
    /// the one of the driver that has the pages.
    pub(crate) fn new(pages: &BarPages<'a>) -> Self {
        let pdev = pages.device();

        // SAFETY: The device is bound, and valid.
        unsafe { bindings::pci_p2pdma_refuse(pdev.as_raw(), true) };
        Self(pdev)
    }
}

impl Drop for Refused<'_> {
    fn drop(&mut self) {
        // SAFETY: The device is bound, and valid.
        unsafe { bindings::pci_p2pdma_refuse(self.0.as_raw(), false) };
    }
}

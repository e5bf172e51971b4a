// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The places at which a BAR shows device-private pages.
//!
//! The C code asks for the place where it must not sleep, and without a reference to the page. So
//! the answer is data and not code of a driver: [`P2pPage`] is implemented here only, by types that
//! compute, and that take no lock.
//!
//! The answer for a page is constant while the page is allocated. [`Linear`], [`Layout`] and
//! [`Visible`] never change. For a BAR with an aperture, [`Windows`] has an entry for each page: a
//! driver makes the window in [`Driver::alloc`](super::Driver::alloc), enters it, and removes both
//! when the allocation is dropped. The pages of the allocation are installed after the entry is
//! made, and freed before it is removed.

use crate::{
    drm::vram::{
        Allocator,
        Layout, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

mod sealed {
    pub trait Sealed {}
}

use self::sealed::Sealed;

/// The places at which a BAR shows the pages of a device.
pub trait P2pPage: Send + Sync + 'static + Sealed {
    /// Returns the offset in the BAR at which page `index` of the memory of the device is, in
    /// bytes, or [`None`] if the BAR does not show it.
    ///
    /// May be called in any context.
    fn p2p_page(&self, index: u64) -> Option<u64>;

    /// Returns how many pages, from page `index` on, the BAR shows contiguously as long as the
    /// value exists, if it shows that page: at least 1. The memory may have fewer pages.
    ///
    /// May be called in any context.
    fn adjoining(&self, index: u64) -> u64;
}

/// A BAR that shows memory in its own order, from the first page on.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::pagemap::{
///         Linear,
///         P2pPage, //
///     },
///     page::PAGE_SIZE, //
/// };
///
/// assert_eq!(Linear.p2p_page(3), Some(3 * PAGE_SIZE as u64));
/// assert_eq!(Linear.p2p_page(u64::MAX), None);
/// ```
pub struct Linear;

impl Sealed for Linear {}

impl P2pPage for Linear {
    #[inline]
    fn p2p_page(&self, index: u64) -> Option<u64> {
        index.checked_mul(PAGE_SIZE as u64)
    }

    #[inline]
    fn adjoining(&self, _index: u64) -> u64 {
        u64::MAX
    }
}

impl Sealed for Layout {}

impl P2pPage for Layout {
    #[inline]
    fn p2p_page(&self, index: u64) -> Option<u64> {
        self.bar_offset(index.checked_mul(PAGE_SIZE as u64)?)
    }

    #[inline]
    fn adjoining(&self, index: u64) -> u64 {
        self.left_of_granule(index.saturating_mul(PAGE_SIZE as u64)) / PAGE_SIZE as u64
    }
}

/// A BAR that shows the first bytes of the memory of an [`Allocator`], at the offsets of its
/// layout.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::{
///         pagemap::{
///             P2pPage,
///             Visible, //
///         },
///         vram::{
///             Allocator,
///             Layout, //
///         }, //
///     },
///     page::PAGE_SIZE,
///     prelude::*, //
/// };
///
/// let page = PAGE_SIZE as u64;
/// let mut order = KVVec::new();
/// order.extend_from_slice(&[2, 0, 1], GFP_KERNEL)?;
/// let vram = Allocator::with_layout(0..3 * page, Layout::new(page, order)?)?;
///
/// let view = Visible::new(vram, 2 * page);
/// assert_eq!(view.p2p_page(0), Some(2 * page));
/// assert_eq!(view.p2p_page(1), Some(0));
/// assert_eq!(view.p2p_page(2), None);
/// assert_eq!(view.p2p_page(u64::MAX), None);
///
/// // The next page of memory is not the next page of the BAR.
/// assert_eq!(view.adjoining(0), 1);
/// let view = Visible::new(Allocator::new(0..3 * page)?, 2 * page);
/// assert_eq!(view.adjoining(0), 2);
/// assert_eq!(view.adjoining(1), 1);
/// # Ok::<(), Error>(())
/// ```
pub struct Visible {
    vram: Arc<Allocator>,
    end: u64,
}

impl Visible {
    /// Makes the view of the first `end` bytes of VRAM.
    pub fn new(vram: Arc<Allocator>, end: u64) -> Self {
        Self { vram, end }
    }
}

impl Sealed for Visible {}

impl P2pPage for Visible {
    #[inline]
    fn p2p_page(&self, index: u64) -> Option<u64> {
        let at = index.checked_mul(PAGE_SIZE as u64)?;

        if at.checked_add(PAGE_SIZE as u64)? > self.end {
            return None;
        }
        self.vram.bar_offset(at)
    }

    #[inline]
    fn adjoining(&self, index: u64) -> u64 {
        let at = index.saturating_mul(PAGE_SIZE as u64);
        let shown = self.end.saturating_sub(at);

        shown.min(self.vram.shown_in_order(at)) / PAGE_SIZE as u64
    }
}

/// A BAR that shows memory through windows.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::pagemap::{
///         P2pPage,
///         Windows, //
///     },
///     page::PAGE_SIZE,
///     prelude::*, //
/// };
///
/// let page = PAGE_SIZE as u64;
/// let windows = Windows::new(8)?;
///
/// // Pages 2 and 3 are shown at the page 100 of the BAR.
/// windows.show(2..4, 100 * page)?;
/// assert_eq!(windows.p2p_page(1), None);
/// assert_eq!(windows.p2p_page(2), Some(100 * page));
/// assert_eq!(windows.p2p_page(3), Some(101 * page));
/// assert_eq!(windows.p2p_page(4), None);
///
/// assert_eq!(windows.adjoining(2), 1);
///
/// windows.hide(2..4);
/// assert_eq!(windows.p2p_page(2), None);
///
/// assert_eq!(windows.show(7..9, 0), Err(EINVAL));
/// assert_eq!(windows.show(0..1, page / 2), Err(EINVAL));
/// # Ok::<(), Error>(())
/// ```
pub struct Windows {
    /// The page of the BAR that shows each page of memory, plus 1; 0 if none does.
    shown: KVVec<Atomic<u64>>,
}

impl Windows {
    /// Makes the windows of `pages` pages of memory, none of which is shown yet.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn new(pages: usize) -> Result<Arc<Self>> {
        let mut shown = KVVec::with_capacity(pages, GFP_KERNEL)?;

        for _ in 0..pages {
            shown.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Arc::new(Self { shown }, GFP_KERNEL)?)
    }

    /// Records that the BAR shows `pages` from the offset `offset` on, in bytes. No page of them
    /// may be allocated.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are no such pages, or the offset is not that of a page.
    pub fn show(&self, pages: core::ops::Range<usize>, offset: u64) -> Result {
        let shown = self.shown.get(pages).ok_or(EINVAL)?;
        let first = offset / PAGE_SIZE as u64;

        if offset % PAGE_SIZE as u64 != 0 || first.checked_add(shown.len() as u64 + 1).is_none() {
            return Err(EINVAL);
        }
        for (page, entry) in (first + 1..).zip(shown) {
            entry.store(page, Relaxed);
        }
        Ok(())
    }

    /// Removes the entries of `pages`. No page of them may be allocated any more.
    pub fn hide(&self, pages: core::ops::Range<usize>) {
        for entry in self.shown.get(pages).unwrap_or(&[]) {
            entry.store(0, Relaxed);
        }
    }
}

impl Sealed for Arc<Windows> {}

impl P2pPage for Arc<Windows> {
    #[inline]
    fn p2p_page(&self, index: u64) -> Option<u64> {
        let entry = self.shown.get(usize::try_from(index).ok()?)?;

        entry
            .load(Relaxed)
            .checked_sub(1)?
            .checked_mul(PAGE_SIZE as u64)
    }

    /// The page that is shown behind this one may change.
    #[inline]
    fn adjoining(&self, _index: u64) -> u64 {
        1
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The BAR offsets of device-private pages.
//!
//! The C code asks for the offset without a reference to the page and in a context that must not
//! sleep. So the answer is data and not code of a driver: [`P2pPage`] is implemented here only, by
//! types that compute and take no lock.
//!
//! The answer for a page never changes. There is no type for a BAR with an aperture.

use crate::{
    drm::vram::Allocator,
    page::PAGE_SIZE,
    sync::Arc, //
};

mod sealed {
    pub trait Sealed {}
}

use self::sealed::Sealed;

/// The BAR offsets of the pages of a device.
pub trait P2pPage: Send + Sync + 'static + Sealed {
    /// Returns the BAR offset in bytes of page `index` of the memory of the device, or [`None`] if
    /// the page is not visible in the BAR.
    ///
    /// May be called in any context.
    fn p2p_page(&self, index: u64) -> Option<u64>;

    /// Returns how many pages from page `index` on are contiguous in the BAR as long as the value
    /// exists, if that page is visible: at least 1. The memory may have fewer pages.
    ///
    /// May be called in any context.
    fn adjoining(&self, index: u64) -> u64;
}

/// A BAR with the memory in its own order, from the first page on.
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

/// A BAR with the first bytes of the memory of an [`Allocator`], at the offsets of its layout.
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
    /// Creates the view of the first `end` bytes of VRAM.
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

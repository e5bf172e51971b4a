// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A BAR with its own order of VRAM.

use crate::{
    page::PAGE_SIZE,
    prelude::*, //
};
use core::num::NonZeroU64;

/// The order in which a BAR shows VRAM if it is not the order of VRAM.
///
/// # Invariants
///
/// - `granule` is a multiple of the page size.
/// - `order` has each number below its length once. `granule` times the length does not overflow.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::vram::Layout,
///     page::PAGE_SIZE,
///     prelude::*, //
/// };
///
/// let order = |places: &[u64]| -> Result<KVVec<u64>> {
///     let mut order = KVVec::new();
///     order.extend_from_slice(places, GFP_KERNEL)?;
///     Ok(order)
/// };
/// let page = PAGE_SIZE as u64;
///
/// // The second half of two pages comes first.
/// let layout = Layout::new(page, order(&[1, 0])?)?;
/// assert_eq!(layout.len(), 2 * page);
/// assert_eq!(layout.bar_offset(0), Some(page));
/// assert_eq!(layout.bar_offset(page + 8), Some(8));
/// assert_eq!(layout.bar_offset(2 * page), None);
///
/// // No two pieces share a place, and none is outside.
/// assert_eq!(Layout::new(page, order(&[0, 0])?).err(), Some(EINVAL));
/// assert_eq!(Layout::new(page, order(&[0, 2])?).err(), Some(EINVAL));
/// assert_eq!(Layout::new(page / 2, order(&[0])?).err(), Some(EINVAL));
/// # Ok::<(), Error>(())
/// ```
pub struct Layout {
    granule: NonZeroU64,
    order: KVVec<u64>,
}

impl Layout {
    /// Creates the layout of a BAR with the piece `n` of VRAM at its piece `order[n]`. A piece has
    /// `granule` bytes. VRAM behind the last piece is not shown.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `granule` is not a multiple of the page size or `order` is not a permutation.
    /// - `ENOMEM` if memory runs out.
    pub fn new(granule: u64, order: KVVec<u64>) -> Result<Self> {
        let pieces = order.len();
        let fits = (pieces as u64).checked_mul(granule).is_some();
        if granule % PAGE_SIZE as u64 != 0 || !fits {
            return Err(EINVAL);
        }
        let granule = NonZeroU64::new(granule).ok_or(EINVAL)?;

        let mut taken = KVVec::<bool>::new();
        taken.resize(pieces, false, GFP_KERNEL)?;
        for place in order.iter() {
            let taken = taken.get_mut(usize::try_from(*place)?).ok_or(EINVAL)?;

            if core::mem::replace(taken, true) {
                return Err(EINVAL);
            }
        }

        // INVARIANT: The arguments were checked above.
        Ok(Self { granule, order })
    }

    /// Returns how many bytes of VRAM the BAR shows. This is also the size of that part of the BAR.
    #[inline]
    pub fn len(&self) -> u64 {
        // OVERFLOW: By the type invariant.
        self.order.len() as u64 * self.granule.get()
    }

    /// Returns whether nothing is shown.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the offset in the BAR of offset `offset` of VRAM, or [`None`] if it is not shown.
    pub fn bar_offset(&self, offset: u64) -> Option<u64> {
        let index = usize::try_from(offset / self.granule).ok()?;

        // OVERFLOW: By the type invariant.
        Some(self.order.get(index)? * self.granule.get() + offset % self.granule)
    }

    /// Returns how many bytes of VRAM from `offset` on are in one piece of the BAR.
    pub(super) fn left_of_granule(&self, offset: u64) -> u64 {
        // OVERFLOW: The remainder is less than the granule.
        self.granule.get() - offset % self.granule
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Converts the ranges of a BAR to the scatter table of an importer.
//!
//! An exporter describes a buffer in a BAR as a [`RangeList`]: pieces of one BAR in the order of
//! the buffer. The list is created once and valid as long as the buffer stays where it is.
//! [`MapRequest::map_mmio`] turns it into the table. The kind of route between both devices decides
//! on the addresses: bus addresses below a switch, physical addresses or one IOVA through the host
//! bridge.
//!
//! The importer's maximal segment size limits the entries of a table, not the ranges.
//!
//! C header: [`include/linux/dma-buf-mapping.h`](srctree/include/linux/dma-buf-mapping.h)

use super::{
    table::{
        valid,
        Memory,
        Table, //
    },
    BoundOf,
    Exporter,
    MapRequest, //
};
use crate::{
    alloc::Flags,
    bindings,
    dma::DataDirection,
    error::from_err_ptr,
    page::PAGE_SIZE,
    pci::p2pdma::Provider,
    prelude::*,
    sync::Arc, //
};
use core::{
    ptr::NonNull,
    slice, //
};

pub use super::table::Mapping;

// CAST: The page size is far below 2^64.
const IN_PAGE: u64 = PAGE_SIZE as u64 - 1;

/// A list of physical ranges with neighbours merged.
///
/// Pure arithmetic: it checks lengths and sums, and maps nothing.
///
/// # Invariants
///
/// - Each range is a non-empty multiple of the page size, begins at a page boundary and does not
///   overflow.
/// - `size` is the sum of the lengths.
/// - All ranges are between `start` and `end`.
/// - The ranges are in `all` if it is there, else in `alone` unless `size` is 0.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::exporter::mapping::RangeList,
///     page::PAGE_SIZE,
///     prelude::*, //
/// };
///
/// let page = PAGE_SIZE as u64;
/// let mut list = RangeList::new();
///
/// // Neighbours become one range, in the order of the buffer.
/// list.push(0, page)?;
/// list.push(page, page)?;
/// list.push(8 * page, page)?;
/// assert_eq!(list.len(), 2);
/// assert_eq!(list.size(), 3 * PAGE_SIZE);
/// assert!(list.iter().eq([(0, 2 * page), (8 * page, page)]));
///
/// // Half a page is not a range.
/// assert_eq!(list.push(0, page / 2), Err(EINVAL));
/// # Ok::<(), Error>(())
/// ```
pub struct RangeList {
    /// The only range of a buffer in one piece. Most buffers are in one piece and so need no
    /// allocation.
    alone: bindings::phys_vec,
    /// [`None`] rather than an empty vector: dropping an empty vector calls the allocator.
    all: Option<KVVec<bindings::phys_vec>>,
    size: usize,
    start: u64,
    end: u64,
}

impl Default for RangeList {
    fn default() -> Self {
        Self::new()
    }
}

impl RangeList {
    /// Creates an empty list.
    pub const fn new() -> Self {
        // INVARIANT: There is no range and the sum is 0.
        Self {
            alone: bindings::phys_vec { paddr: 0, len: 0 },
            all: None,
            size: 0,
            start: u64::MAX,
            end: 0,
        }
    }

    /// Creates the list of `pieces` of a BAR in the order of the buffer. Each piece is its offset
    /// in the BAR and its length, both in bytes.
    ///
    /// [`drm::gem::ttm`](crate::drm::gem::ttm) has an example.
    ///
    /// # Errors
    ///
    /// `EINVAL` if one of the pieces is not inside the BAR, and the errors of [`Self::push`].
    pub fn in_bar(
        provider: &Provider<'_>,
        pieces: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<Arc<Self>> {
        let mut list = Self::new();
        let pieces = pieces.into_iter();

        list.reserve(pieces.size_hint().0, GFP_KERNEL)?;
        for (offset, len) in pieces {
            list.push_piece(offset, len)?;
        }
        list.move_to_bar(provider)
    }

    /// Appends `len` bytes at `offset` of a BAR set later by [`Self::move_to_bar`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if no BAR can have such a piece, and the errors of [`Self::push`].
    pub fn push_piece(&mut self, offset: u64, len: u64) -> Result {
        self.push(offset, len)
            .map_err(|e| if e == EOVERFLOW { EINVAL } else { e })
    }

    /// Converts the offsets of a list of pieces of a BAR to physical addresses.
    ///
    /// # Errors
    ///
    /// `EINVAL` if one of the ranges is not inside the BAR or the BAR does not begin at a page
    /// boundary. `ENOMEM` if memory runs out.
    pub fn move_to_bar(mut self, provider: &Provider<'_>) -> Result<Arc<Self>> {
        // No piece ends behind `end`.
        let start = provider.phys_addr(0, self.end)?;
        if start & IN_PAGE != 0 {
            return Err(EINVAL);
        }

        // INVARIANT: Every range is inside of the BAR, where no sum overflows. All are moved by the
        // same number of whole pages.
        // OVERFLOW: The type invariant of the provider excludes it. Without ranges `start` is not
        // used and is `u64::MAX` already.
        for range in self.as_mut_slice() {
            range.paddr += start;
        }
        self.start = self.start.saturating_add(start);
        self.end += start;
        Ok(Arc::new(self, GFP_KERNEL)?)
    }

    /// Makes room for more ranges. The first range always has room.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    #[inline]
    pub fn reserve(&mut self, additional: usize, flags: Flags) -> Result {
        match &mut self.all {
            Some(all) => Ok(all.reserve(additional, flags)?),
            None if additional > usize::from(self.size == 0) => {
                self.give_up_alone(additional, flags)
            }
            None => Ok(()),
        }
    }

    /// Moves a list of at most one range to a vector with room for more.
    fn give_up_alone(&mut self, additional: usize, flags: Flags) -> Result {
        let alone = self.size != 0;
        let mut all = KVVec::with_capacity(additional.saturating_add(alone.into()), flags)?;

        if alone {
            all.push_within_capacity(self.alone)?;
        }
        // INVARIANT: The vector has the same range if there is one.
        self.all = Some(all);
        Ok(())
    }

    fn as_slice(&self) -> &[bindings::phys_vec] {
        match &self.all {
            Some(all) => all,
            None if self.size == 0 => &[],
            None => slice::from_ref(&self.alone),
        }
    }

    fn as_mut_slice(&mut self) -> &mut [bindings::phys_vec] {
        match &mut self.all {
            Some(all) => all,
            None if self.size == 0 => &mut [],
            None => slice::from_mut(&mut self.alone),
        }
    }

    /// Appends the range of `len` bytes at the physical address `start`.
    ///
    /// The range is merged with the range before it if there is no gap.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `len` is 0 or if `start` or `len` is not a multiple of the page size.
    /// - `EOVERFLOW` if the range or the sum of all overflows.
    /// - `ENOMEM` if memory runs out.
    ///
    /// On failure the list is unchanged.
    pub fn push(&mut self, start: u64, len: u64) -> Result {
        if len == 0 || start & IN_PAGE != 0 || len & IN_PAGE != 0 {
            return Err(EINVAL);
        }
        let end = start.checked_add(len).ok_or(EOVERFLOW)?;
        let bytes = usize::try_from(len).map_err(|_| EOVERFLOW)?;
        let size = self.size.checked_add(bytes).ok_or(EOVERFLOW)?;

        match self.as_mut_slice().last_mut() {
            // INVARIANT: The sum is a multiple of the page size and ends where the range checked
            // above does. It is not more than `size`, which does not overflow.
            // OVERFLOW: By the type invariant no range overflows.
            Some(last) if last.paddr + last.len as u64 == start => last.len += bytes,
            _ => {
                let range = bindings::phys_vec {
                    paddr: start,
                    len: bytes,
                };

                self.reserve(1, GFP_KERNEL)?;
                // INVARIANT: The range was checked above. It is the only one or there is room.
                match &mut self.all {
                    Some(all) => all.push_within_capacity(range)?,
                    None => self.alone = range,
                }
            }
        }

        // INVARIANT: `len` bytes from `start` to `end` were appended.
        self.size = size;
        self.start = self.start.min(start);
        self.end = self.end.max(end);
        Ok(())
    }

    /// Returns the number of ranges.
    #[inline]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Returns whether there is no range.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Returns the sum of the lengths, in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the physical address of offset `at` of the buffer, [`None`] behind its end.
    ///
    /// Goes through the ranges one by one.
    pub(crate) fn address(&self, mut at: u64) -> Option<u64> {
        for (start, len) in self.iter() {
            if at < len {
                // OVERFLOW: By the type invariant no range overflows.
                return Some(start + at);
            }
            at -= len;
        }
        None
    }

    /// Iterates over the ranges as physical address and length in bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.as_slice().iter().map(|r| (r.paddr, r.len as u64))
    }
}

impl<'r, E: Exporter> MapRequest<'r, E> {
    /// Maps ranges of a BAR for the importer.
    ///
    /// `provider` finds the provider of the BAR in the exporter's data of its bound device. So the
    /// BAR belongs to this device: the mapping is revoked by the unbind of this device and of no
    /// other. Mirrors `dma_buf_phys_vec_to_sgt()`. Sleeps.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a range is not inside the BAR, if the ranges do not add up to the size of the
    ///   buffer, or if `dir` is none.
    /// - `EINVAL` if the importer has no permitted route to the BAR or takes less than a page at
    ///   once.
    /// - `ENOMEM` or `EIO` if the mapping fails.
    /// - `EBUSY` if there is a mapping for this request already.
    /// - `ENODEV` if the buffer was revoked, and the errors of `provider`.
    ///
    /// # Examples
    ///
    /// A BAR that peers may read and write:
    ///
    /// ```no_run
    /// use kernel::{
    ///     dma::DataDirection,
    ///     dma_buf::exporter::{
    ///         mapping::{
    ///             Mapping,
    ///             RangeList, //
    ///         },
    ///         AttachRequest,
    ///         Exporter,
    ///         LockedBuffer,
    ///         MapRequest,
    ///         Ops, //
    ///     },
    ///     pci::p2pdma::Provider,
    ///     prelude::*,
    ///     sync::Arc,
    ///     types::CovariantForLt, //
    /// };
    ///
    /// /// Where the buffer is.
    /// struct Window(Arc<RangeList>);
    ///
    /// static OPS: Ops<Window> = Ops::new();
    ///
    /// #[vtable]
    /// impl Exporter for Window {
    ///     type Bound = CovariantForLt!(Provider<'_>);
    ///     type Prepared = ();
    ///     type Attachment = ();
    ///
    ///     const NAME: &'static CStr = c"window";
    ///     const OPS: &'static Ops<Self> = &OPS;
    ///
    ///     fn prepare_attach(&self) {}
    ///
    ///     fn attach(
    ///         &self,
    ///         cx: &LockedBuffer<'_, Self>,
    ///         req: &mut AttachRequest<'_>,
    ///         _prepared: (),
    ///     ) -> Result {
    ///         // Importers without a route are refused, and so are those that cannot be revoked.
    ///         if !req.peer2peer() || !req.is_revocable() {
    ///             return Err(EOPNOTSUPP);
    ///         }
    ///         cx.bound().distance(req.device()).map(|_| ()).ok_or(EOPNOTSUPP)
    ///     }
    ///
    ///     fn map<'r>(
    ///         &self,
    ///         _cx: &LockedBuffer<'_, Self>,
    ///         at: &MapRequest<'r, Self>,
    ///         dir: DataDirection,
    ///     ) -> Result<Mapping<'r>> {
    ///         at.map_mmio(|bound| Ok(*bound), &self.0, dir)
    ///     }
    /// }
    /// ```
    pub fn map_mmio(
        &self,
        provider: impl for<'b> FnOnce(&'b BoundOf<'b, E>) -> Result<Provider<'b>>,
        ranges: &RangeList,
        dir: DataDirection,
    ) -> Result<Mapping<'r>> {
        let provider = &provider(self.bound()?)?;

        if ranges.size() != self.dma_buf().size() || !provider.contains(ranges.start, ranges.end) {
            return Err(EINVAL);
        }

        let dir = valid(dir)?;
        // SAFETY: The attachment is valid and its reservation is held while a request exists. The
        // provider is that of a bound device. The ranges were checked to be in its BAR, and the
        // function only reads them.
        let sgt = from_err_ptr(unsafe {
            bindings::dma_buf_phys_vec_to_sgt(
                self.as_raw(),
                provider.as_raw(),
                ranges.as_slice().as_ptr().cast_mut(),
                ranges.len(),
                ranges.size(),
                dir,
            )
        })?;

        // SAFETY: A pointer that is not an error is not null. The table was just created and is
        // mapped in this direction.
        self.keep(unsafe { Table::new(NonNull::new_unchecked(sgt), dir, Memory::Ranges) })
    }
}

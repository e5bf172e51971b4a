// SPDX-License-Identifier: GPL-2.0

//! From the place of a buffer to the scatter table of an importer.
//!
//! An exporter describes a buffer in a BAR as a [`RangeList`]: pieces of one BAR in the order of the
//! buffer. It is made once for as long as the buffer stays where it is. [`MapRequest::map_mmio`] turns
//! it into the table, by the kind of route between both devices: bus addresses below a switch,
//! physical addresses or one IOVA through the host bridge. System memory is mapped from its pages.
//! No table has both.
//!
//! What an importer takes at once limits the entries of a table, not the ranges.
//!
//! C header: [`include/linux/dma-buf-mapping.h`](srctree/include/linux/dma-buf-mapping.h)

use super::{
    direction,
    exporter::{
        Attached,
        BoundOf,
        Brand,
        Exporter,
        Holdings,
        MapRequest, //
    }, //
};
use crate::{
    alloc::kvec::PushError,
    bindings,
    dma::DataDirection,
    error::{
        from_err_ptr,
        to_result, //
    },
    page::PAGE_SIZE,
    pci::p2pdma::Provider,
    prelude::*,
    scatterlist::SGTable,
    sync::Arc,
    types::NotThreadSafe, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

/// A list of physical ranges with neighbours merged.
///
/// Pure arithmetic: lengths and sums are checked, nothing is mapped.
///
/// # Invariants
///
/// - Each range is a non-empty multiple of the page size, begins at a page boundary and does not
///   overflow.
/// - `size` is the sum of the lengths.
/// - All ranges are between `start` and `end`.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::mapping::RangeList,
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
    ranges: KVVec<bindings::phys_vec>,
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
        // INVARIANT: There is no range, and the sum of none is 0.
        Self {
            ranges: KVVec::new(),
            size: 0,
            start: u64::MAX,
            end: 0,
        }
    }

    /// Makes the list of `pieces` of a BAR: the offset in the BAR and the length of each, in bytes,
    /// in the order of the buffer.
    ///
    /// [`drm::gem::peer`](crate::drm::gem::peer) has an example.
    ///
    /// # Errors
    ///
    /// `EINVAL` if one of them is not inside the BAR, and those of [`Self::push`].
    pub fn in_bar(
        provider: &Provider<'_>,
        pieces: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<Arc<Self>> {
        let mut list = Self::new();
        let pieces = pieces.into_iter();

        list.ranges.reserve(pieces.size_hint().0, GFP_KERNEL)?;
        for (offset, len) in pieces {
            list.push(provider.phys_addr(offset, len)?, len)?;
        }
        Ok(Arc::new(list, GFP_KERNEL)?)
    }

    /// Appends `len` bytes at the physical address `start`.
    ///
    /// They are merged with the range before them if they follow it without a gap.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `len` is 0, or `start` or `len` is not a multiple of the page size.
    /// - `EOVERFLOW` if the range or the sum of all overflows.
    /// - `ENOMEM` if memory runs out.
    ///
    /// The list is as before if it fails.
    pub fn push(&mut self, start: u64, len: u64) -> Result {
        // CAST: The page size is far below 2^64.
        const MASK: u64 = PAGE_SIZE as u64 - 1;

        if len == 0 || start & MASK != 0 || len & MASK != 0 {
            return Err(EINVAL);
        }
        let end = start.checked_add(len).ok_or(EOVERFLOW)?;
        let bytes = usize::try_from(len).map_err(|_| EOVERFLOW)?;
        let size = self.size.checked_add(bytes).ok_or(EOVERFLOW)?;

        match self.ranges.last_mut() {
            // INVARIANT: The sum is a multiple of the page size, and ends where the range that was
            // checked above does. It is not more than `size`, which does not overflow.
            // OVERFLOW: By the type invariant no range overflows.
            Some(last) if last.paddr + last.len as u64 == start => last.len += bytes,
            // INVARIANT: The range was checked above.
            _ => self.ranges.push(
                bindings::phys_vec {
                    paddr: start,
                    len: bytes,
                },
                GFP_KERNEL,
            )?,
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
        self.ranges.len()
    }

    /// Tells whether there is no range.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the sum of the lengths, in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Iterates over the ranges as physical address and length in bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|r| (r.paddr, r.len as u64))
    }
}

/// A table of ranges for one attachment, which can be mapped more than once.
///
/// Wraps `struct dma_buf_phys_table`. While it is not mapped it is kept for the next mapping, as long
/// as the buffer stays where it is.
///
/// # Invariants
///
/// `raw` is a valid table of `ranges` for an attachment that outlives it. It is only mapped while a
/// [`Table`] has it.
pub(super) struct RangeTable {
    raw: NonNull<bindings::dma_buf_phys_table>,
    ranges: Arc<RangeList>,
}

impl RangeTable {
    /// Makes a table of `ranges` for an attachment.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the importer has no permitted route to the memory or takes less than a page at
    /// once, and `ENOMEM`.
    ///
    /// # Safety
    ///
    /// `attach` must be valid for as long as the table exists, and the ranges must be in the BAR of
    /// `provider`.
    unsafe fn new(
        attach: *mut bindings::dma_buf_attachment,
        provider: &Provider<'_>,
        ranges: &Arc<RangeList>,
    ) -> Result<Self> {
        // SAFETY: As promised by the caller; the array is valid for its length, and is copied.
        let raw = from_err_ptr(unsafe {
            bindings::dma_buf_phys_table_create(
                attach,
                provider.as_raw(),
                ranges.ranges.as_ptr(),
                ranges.len(),
                ranges.size(),
            )
        })?;

        // INVARIANT: Just made of `ranges`, and not mapped.
        Ok(Self {
            // SAFETY: A pointer that is not an error is not null.
            raw: unsafe { NonNull::new_unchecked(raw) },
            ranges: ranges.clone(),
        })
    }

    /// Maps the table.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EAGAIN` or `EIO`; the table is gone then. A new one may be possible.
    ///
    /// # Safety
    ///
    /// The reservation of the buffer must be held, and the device that exports it must be bound.
    unsafe fn map(self, dir: bindings::dma_data_direction) -> Result<Table> {
        // SAFETY: By the type invariant the table is valid and not mapped, and the caller holds the
        // reservation.
        let sgt =
            from_err_ptr(unsafe { bindings::dma_buf_phys_table_map(self.raw.as_ptr(), dir) })?;

        // INVARIANT: Mapped above.
        Ok(Table {
            // SAFETY: A pointer that is not an error is not null.
            sgt: unsafe { NonNull::new_unchecked(sgt) },
            dir,
            ranges: Some(self),
            void: false,
            last: false,
            has_user: false,
        })
    }
}

impl Drop for RangeTable {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the table is valid, and the attachment is there. It is not
        // mapped: a `Table`, whose `unmap()` is the only way to give it up, has unmapped it. No one
        // else has a pointer to it.
        unsafe { bindings::dma_buf_phys_table_destroy(self.raw.as_ptr()) };
    }
}

/// A scatter table that an importer has, or had.
///
/// # Invariants
///
/// `sgt` is mapped in direction `dir`. It is that of `ranges` or, if there are none, was made by
/// [`MapRequest::map_pages`].
pub(super) struct Table {
    sgt: NonNull<bindings::sg_table>,
    dir: bindings::dma_data_direction,
    ranges: Option<RangeTable>,
    /// The memory of the buffer is not what the table leads to any more.
    pub(super) void: bool,
    /// The table is not kept when it is unmapped.
    last: bool,
    /// The importer has the table, and nobody else has it until it unmaps.
    pub(super) has_user: bool,
}

impl Table {
    /// Returns the pointer to the C structure.
    #[inline]
    pub(super) fn sgt(&self) -> NonNull<bindings::sg_table> {
        self.sgt
    }

    /// Does not let the table be kept when it is unmapped.
    #[inline]
    pub(super) fn forgo(&mut self) {
        self.last = true;
    }

    /// Tells whether the table is one of pages.
    #[inline]
    pub(super) fn has_pages(&self) -> bool {
        self.ranges.is_none()
    }

    /// Unmaps the table, which is kept for the next mapping if it can be of use then.
    ///
    /// # Safety
    ///
    /// `attach` must be the attachment that the table was made for, and the reservation of its
    /// buffer must be held. The table must not be among those of the attachment any more.
    pub(super) unsafe fn unmap(self, attach: *mut bindings::dma_buf_attachment) {
        let (sgt, dir) = (self.sgt.as_ptr(), self.dir);

        // SAFETY: By the type invariants this is a table of the attachment, made in one of the two
        // ways, and the reservation is held.
        unsafe {
            match self.ranges {
                None => {
                    // The pages of a table that is void may belong to somebody else by now.
                    let attrs = if self.void {
                        // CAST: A small number.
                        bindings::DMA_ATTR_SKIP_CPU_SYNC as usize
                    } else {
                        0
                    };

                    bindings::dma_unmap_sgtable((*attach).dev, sgt, dir, attrs);
                    bindings::sg_free_table(sgt);
                    drop(KBox::from_raw(sgt));
                }
                Some(table) => {
                    bindings::dma_buf_phys_table_unmap(sgt);
                    // Once the buffer has moved the next mapping is one of other ranges, and once
                    // it is revoked there is none.
                    if !self.void && !self.last {
                        Holdings::of(attach).set_cached(table);
                    }
                }
            }
        }
    }

    /// Makes the CPU see what the device wrote.
    ///
    /// # Safety
    ///
    /// The table must be mapped for `dev`.
    pub(super) unsafe fn sync_for_cpu(&self, dev: *mut bindings::device) {
        if self.has_pages() {
            // SAFETY: As promised by the caller; the direction is that of the mapping.
            unsafe { bindings::dma_sync_sgtable_for_cpu(dev, self.sgt.as_ptr(), self.dir) };
        }
    }

    /// Makes the device see what the CPU wrote, or only gives the memory back to it.
    ///
    /// # Safety
    ///
    /// The table must be mapped for `dev`.
    unsafe fn sync_for_device(&self, dev: *mut bindings::device, written: bool) {
        let dir = match direction(self.dir) {
            // Otherwise a bounce buffer would be filled with what the CPU saw, over what the device
            // has written since.
            DataDirection::Bidirectional if !written => DataDirection::FromDevice,
            dir => dir,
        };

        if self.has_pages() {
            // SAFETY: As promised by the caller; the direction is that of the mapping, or one of
            // those that it has.
            unsafe { bindings::dma_sync_sgtable_for_device(dev, self.sgt.as_ptr(), dir.into()) };
        }
    }
}

/// The tables that an importer has of an attachment. Most have one at a time, which is kept without
/// an allocation.
pub(super) struct Tables {
    first: Option<Table>,
    others: KVec<Table>,
}

impl Tables {
    pub(super) const fn new() -> Self {
        Self {
            first: None,
            others: KVec::new(),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Table> {
        Iterator::chain(self.first.iter(), self.others.iter())
    }

    #[inline]
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Table> {
        Iterator::chain(self.first.iter_mut(), self.others.iter_mut())
    }

    /// Makes room for one more. Sleeps.
    #[inline]
    pub(super) fn reserve(&mut self) -> Result {
        if self.first.is_some() {
            self.others.reserve(1, GFP_KERNEL)?;
        }
        Ok(())
    }

    /// Adds a table, or returns it if there is no room.
    #[inline]
    fn push(&mut self, table: Table) -> core::result::Result<(), Table> {
        if self.first.is_none() {
            self.first = Some(table);
            return Ok(());
        }
        self.others
            .push_within_capacity(table)
            .map_err(|PushError(table)| table)
    }

    /// Takes out a table for which `f` returns true, [`None`] if there is none.
    #[inline]
    pub(super) fn take(&mut self, mut f: impl FnMut(&mut Table) -> bool) -> Option<Table> {
        if self.first.as_mut().is_some_and(&mut f) {
            return self.first.take();
        }

        let index = self.others.iter_mut().position(f)?;

        self.others.remove(index).ok()
    }
}

/// The proof that [`Exporter::map`] has mapped the buffer.
///
/// `'r` ties it to the call of [`Exporter::map`] that it was made in, so that an exporter can only
/// return a mapping of the attachment that it was asked for. The table belongs to the attachment:
/// it is unmapped when the importer has no more use for it, or when the call fails.
///
/// # Invariants
///
/// `sgt` is among the tables of the attachment, at least until the call is over.
pub struct Mapping<'r> {
    sgt: NonNull<bindings::sg_table>,
    _brand: Brand<'r>,
    _not_send: NotThreadSafe,
}

impl Mapping<'_> {
    /// Returns the pointer to the C structure.
    #[inline]
    pub(super) fn sgt(&self) -> NonNull<bindings::sg_table> {
        self.sgt
    }

    /// Returns the scatter table. An importer uses DMA addresses and lengths only.
    #[inline]
    pub fn table(&self) -> &SGTable {
        // SAFETY: By the type invariant the table is valid, and nothing changes it during the call.
        unsafe { SGTable::from_raw(self.sgt.as_ptr()) }
    }
}

impl<'r, E: Exporter> MapRequest<'r, E> {
    /// Maps ranges of a BAR for the importer.
    ///
    /// `provider` finds the provider of the BAR in what the exporter has of its bound device, so that
    /// it is one of that device: the mapping is taken back when that is unbound, and not when another
    /// one is. The table that the importer had before is mapped again if `ranges` is the same list as
    /// then. Mirrors `dma_buf_phys_table_create()` and `dma_buf_phys_table_map()`. Sleeps.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a range is not inside the BAR, if they do not add up to the size of the buffer,
    ///   if the importer has no permitted route to the BAR or takes less than a page at once, or if
    ///   `dir` is none.
    /// - `ENOMEM` or `EIO` if the mapping fails.
    /// - `EBUSY` if there is a mapping for this request already.
    /// - `ENODEV` if the buffer was revoked, and what `provider` returns.
    pub fn map_mmio(
        &self,
        provider: impl for<'b> FnOnce(&'b BoundOf<'b, E>) -> Result<Provider<'b>>,
        ranges: &Arc<RangeList>,
        dir: DataDirection,
    ) -> Result<Mapping<'r>> {
        let provider = &provider(self.bound()?)?;

        if ranges.size() != self.dma_buf().size() || !provider.contains(ranges.start, ranges.end) {
            return Err(EINVAL);
        }

        let dir = valid(dir)?;
        let table = self
            .holdings()
            .take_cached()
            .filter(|table| Arc::ptr_eq(&table.ranges, ranges))
            // SAFETY: The reservation is held while an `Attached` exists, and the device is bound.
            .and_then(|table| unsafe { table.map(dir) }.ok());
        let table = match table {
            Some(table) => table,
            // SAFETY: As above. The ranges were checked to be in the BAR, and the table is one of
            // the attachment, with which it is dropped at the latest.
            None => unsafe { RangeTable::new(self.as_raw(), provider, ranges)?.map(dir)? },
        };

        self.keep(table)
    }

    /// Makes a table one of the attachment.
    fn keep(&self, table: Table) -> Result<Mapping<'r>> {
        let sgt = table.sgt;

        // There is room for one at least; an exporter that makes several may get an error.
        self.with_tables(|tables| match tables.push(table) {
            // INVARIANT: It is on the list.
            Ok(()) => Ok(Mapping {
                sgt,
                _brand: PhantomData,
                _not_send: NotThreadSafe,
            }),
            Err(table) => {
                // SAFETY: The table was just made for this attachment, and the reservation is held.
                unsafe { table.unmap(self.as_raw()) };
                Err(EBUSY)
            }
        })
    }
}

impl<E: Exporter> Attached<'_, E> {
    /// Makes the CPU see what the importer's device wrote to mappings of system memory.
    ///
    /// Where the device sees the same memory as the CPU nothing is done. What bounces is copied as a
    /// whole: with two importers that bounce the CPU sees what the one has that is synchronized
    /// last. Mirrors `dma_sync_sgtable_for_cpu()`.
    pub fn sync_for_cpu(&self) {
        self.for_each_valid(|dev, table| {
            // SAFETY: The table is one of this attachment.
            unsafe { table.sync_for_cpu(dev) }
        });
    }

    /// Makes the importer's device see what the CPU wrote to system memory, if `dir`, the direction
    /// of the access by the CPU, says that it wrote.
    ///
    /// Mirrors `dma_sync_sgtable_for_device()`.
    pub fn sync_for_device(&self, dir: DataDirection) {
        let written = dir != DataDirection::FromDevice;

        self.for_each_valid(|dev, table| {
            // SAFETY: The table is one of this attachment.
            unsafe { table.sync_for_device(dev, written) }
        });
    }

    fn for_each_valid(&self, f: impl Fn(*mut bindings::device, &Table)) {
        // SAFETY: The attachment is valid, and so is its device.
        let dev = unsafe { (*self.as_raw()).dev };

        self.with_tables(|tables| {
            for table in tables.iter().filter(|table| !table.void) {
                f(dev, table);
            }
        });
    }
}

impl<'r, E: Exporter> MapRequest<'r, E> {
    /// Maps pages of system memory for the importer. Sleeps.
    ///
    /// Mirrors `dma_map_sgtable()`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the pages do not add up to the size of the buffer, or `dir` is none.
    /// - `EBUSY` if there is a mapping for this request already.
    /// - `ENOMEM`, `EIO` or `EREMOTEIO` if the mapping fails.
    ///
    /// # Safety
    ///
    /// The pages must stay until the importer has unmapped them, or was told to let go and the
    /// fences of what it started have signalled.
    // Exporters of system memory alone have others to do it, so there may be no caller.
    #[cfg_attr(not(CONFIG_RUST_DRM_PEER), expect(dead_code))]
    pub(crate) unsafe fn map_pages(
        &self,
        pages: &[*mut bindings::page],
        dir: DataDirection,
    ) -> Result<Mapping<'r>> {
        let size = self.dma_buf().size();
        if pages.len().checked_mul(PAGE_SIZE) != Some(size) {
            return Err(EINVAL);
        }

        let dir = valid(dir)?;
        let count = pages.len().try_into()?;
        let sgt = KBox::new(bindings::sg_table::default(), GFP_KERNEL)?;
        let sgt = KBox::into_raw(sgt);
        // SAFETY: The attachment is valid, and so is its device.
        let dev = unsafe { (*self.as_raw()).dev };

        // SAFETY: The table is not initialized yet, the array is valid for its length and not
        // written to, and the device is valid. On failure nothing is left.
        let ret = to_result(unsafe {
            bindings::sg_alloc_table_from_pages_segment(
                sgt,
                pages.as_ptr().cast_mut(),
                count,
                0,
                size,
                bindings::dma_get_max_seg_size(dev),
                bindings::GFP_KERNEL,
            )
        })
        .and_then(|()| {
            // SAFETY: The table was just made, of pages that the caller promises to stay.
            to_result(unsafe { bindings::dma_map_sgtable(dev, sgt, dir, 0) }).inspect_err(|_| {
                // SAFETY: The table is not mapped.
                unsafe { bindings::sg_free_table(sgt) }
            })
        });
        if let Err(e) = ret {
            // SAFETY: Made above, and not used any more.
            drop(unsafe { KBox::from_raw(sgt) });
            return Err(e);
        }

        // INVARIANT: The table was just made, with at least one entry.
        self.keep(Table {
            // SAFETY: A box is not null.
            sgt: unsafe { NonNull::new_unchecked(sgt) },
            dir,
            ranges: None,
            void: false,
            last: false,
            has_user: false,
        })
    }
}

/// Returns what the DMA core calls a direction; it has a `BUG_ON()` for none.
#[inline]
fn valid(dir: DataDirection) -> Result<bindings::dma_data_direction> {
    match dir {
        DataDirection::None => Err(EINVAL),
        dir => Ok(dir.into()),
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The pieces of VRAM of an object.
//!
//! They are computed when VRAM is allocated and do not change. Faults, copies and mappings for
//! peers all use them. The list mapped by a peer is computed from them once.

use super::{
    quarantine::{
        Quarantine,
        Resets, //
    },
    Layout, //
};
use crate::{
    dma_buf::exporter::mapping::RangeList,
    page::PAGE_SIZE,
    pci::p2pdma::Provider,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SetOnce, //
    }, //
};

/// A piece of the VRAM of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The offset of its start in the object, in bytes.
    pub at: u64,
    /// The offset in VRAM, in bytes.
    pub offset: u64,
    /// The length, in bytes.
    pub len: u64,
}

/// The VRAM of an object in the order of the object.
///
/// # Invariants
///
/// - The ranges are not empty and consist of whole pages. They follow each other without a gap from
///   offset 0 of the object to its end.
/// - All of them are below `end`.
/// - `shown` has the same pieces of the object with their offsets in the BAR, all of them below
///   `bar_end`. It is [`None`] if these are the offsets in VRAM. If the BAR does not show all
///   pieces, it is empty and `bar_end` is the largest number.
pub struct Ranges {
    ranges: KVVec<Range>,
    end: u64,
    shown: Option<KVVec<Range>>,
    bar_end: u64,
    in_bar: SetOnce<Arc<RangeList>>,
    quarantine: Arc<Quarantine>,
    /// 0, or 1 plus the count of resets when a job failed to fill the ranges. They may then have
    /// content of a former owner.
    tainted: Atomic<u64>,
}

impl Ranges {
    /// Creates the list of `pieces` of VRAM in the order of the object. Each piece has an offset
    /// and a length. Neighbours are merged.
    ///
    /// # Errors
    ///
    /// - `EIO` if the pieces do not add up to `size`.
    /// - `ENOMEM` if memory runs out.
    pub(super) fn new(
        pieces: impl Iterator<Item = (u64, u64)>,
        size: u64,
        layout: Option<&Layout>,
        quarantine: &Arc<Quarantine>,
    ) -> Result<Arc<Self>> {
        let (ranges, end) = merged(pieces, size)?;
        let (mut in_order, mut bar_end) = (None, end);

        if let Some(layout) = layout {
            if end <= layout.len() {
                let pages = ranges
                    .iter()
                    .flat_map(|range| (range.offset..range.offset + range.len).step_by(PAGE_SIZE))
                    .filter_map(|at| layout.bar_offset(at));
                let found = merged(pages.map(|at| (at, PAGE_SIZE as u64)), size)?;

                in_order = Some(found.0);
                bar_end = found.1;
            } else {
                // If a part is not shown, no part is accessed.
                in_order = Some(KVVec::new());
                bar_end = u64::MAX;
            }
        }

        // INVARIANT: The allocator gives blocks of whole pages, and they add up to the size.
        Ok(Arc::new(
            Self {
                ranges,
                end,
                shown: in_order,
                bar_end,
                in_bar: SetOnce::new(),
                quarantine: quarantine.clone(),
                tainted: Atomic::new(0),
            },
            GFP_KERNEL,
        )?)
    }

    /// Returns the ranges in the order of the object.
    #[inline]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Returns whether all ranges are below `end`, an offset in VRAM.
    #[inline]
    pub fn is_below(&self, end: u64) -> bool {
        self.end <= end
    }

    /// Returns how many bytes of the ranges are below `end`, an offset in VRAM.
    pub fn bytes_below(&self, end: u64) -> u64 {
        self.ranges
            .iter()
            .map(|range| end.saturating_sub(range.offset).min(range.len))
            .sum()
    }

    /// Returns whether a BAR of `len` bytes shows all ranges.
    #[inline]
    pub(crate) fn is_in_bar(&self, len: u64) -> bool {
        self.bar_end <= len
    }

    /// Returns the pieces with their offsets in the BAR, which shows all of them.
    #[inline]
    pub(crate) fn shown(&self) -> &[Range] {
        self.shown.as_deref().unwrap_or(&self.ranges)
    }

    /// Returns the ranges for peers. Peers see VRAM in the BAR of `provider`.
    ///
    /// Computed at the first call. The reservation of the object must be held.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the BAR does not show all ranges.
    /// - The errors of [`RangeList::in_bar`].
    #[inline]
    pub(crate) fn in_bar(&self, provider: &Provider<'_>) -> Result<&Arc<RangeList>> {
        if let Some(list) = self.in_bar.as_ref() {
            return Ok(list);
        }

        if self.bar_end == u64::MAX {
            return Err(EINVAL);
        }
        let list = RangeList::in_bar(provider, self.shown().iter().map(|r| (r.offset, r.len)))?;

        self.in_bar.populate(list);
        self.in_bar.as_ref().ok_or(EINVAL)
    }

    /// Records whether the ranges could not be filled. Memory still tainted when it is freed is not
    /// allocated again before the device was reset.
    ///
    /// May be called in any context.
    pub(crate) fn set_tainted(&self, is_tainted: bool) {
        let value = if is_tainted {
            // OVERFLOW: A device is not reset that often.
            1 + self.quarantine.resets().0
        } else {
            0
        };

        self.tainted.store(value, Relaxed);
    }

    /// Returns the quarantine of the ranges and the count of resets when they were tainted.
    /// [`None`] if [`Self::set_tainted`] was called last with false or never.
    pub(super) fn tainted(&self) -> Option<(&Quarantine, Resets)> {
        let resets = self.tainted.load(Relaxed).checked_sub(1)?;

        Some((&self.quarantine, Resets(resets)))
    }

    /// Returns the address of a byte of the last range, where VRAM is mapped at `vram`.
    pub(crate) fn last(&self, vram: *mut c_void) -> Option<*mut c_void> {
        let last = self.shown().last()?;

        // CAST: Inside the mapped VRAM.
        Some(vram.wrapping_byte_add(last.offset as usize))
    }

    /// Returns the offset in VRAM of offset `at` of the object.
    pub fn offset(&self, at: u64) -> Option<u64> {
        piece(&self.ranges, at).map(|(offset, _)| offset)
    }

    /// Returns the offset in the BAR of offset `at` of the object and the number of contiguous
    /// bytes from there on.
    pub(crate) fn bar_piece(&self, at: u64) -> Option<(u64, u64)> {
        piece(self.shown(), at)
    }
}

/// Merges pieces to ranges and also returns the largest end of a piece.
fn merged(pieces: impl Iterator<Item = (u64, u64)>, size: u64) -> Result<(KVVec<Range>, u64)> {
    let mut ranges = KVVec::<Range>::new();
    let (mut at, mut end) = (0, 0);

    for (offset, len) in pieces {
        end = end.max(offset.checked_add(len).ok_or(EIO)?);

        match ranges.last_mut() {
            // OVERFLOW: The sum was checked above when the range was created.
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => ranges.push(Range { at, offset, len }, GFP_KERNEL)?,
        }
        // OVERFLOW: The sum of the pieces is at most the size of VRAM.
        at += len;
    }
    if at != size {
        return Err(EIO);
    }
    Ok((ranges, end))
}

/// Returns the offset that the ranges have for `at` of the object and the number of contiguous
/// bytes.
fn piece(ranges: &[Range], at: u64) -> Option<(u64, u64)> {
    // OVERFLOW: The ranges are inside of the object, and of VRAM or a BAR.
    let index = ranges.partition_point(|r| r.at + r.len <= at);
    let range = ranges.get(index)?;
    let skip = at - range.at;

    Some((range.offset + skip, range.len - skip))
}

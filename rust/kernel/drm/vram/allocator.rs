// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The allocator of VRAM.
//!
//! # Locking
//!
//! The allocator has one lock, which sleeps. No other lock is taken while it is held.

use super::{
    quarantine::{
        Blocks,
        Quarantine, //
    },
    Layout,
    Ranges, //
};
use crate::{
    gpu::buddy::{
        GpuBuddy,
        GpuBuddyAllocFlag,
        GpuBuddyAllocFlags,
        GpuBuddyAllocMode,
        GpuBuddyParams, //
    },
    page::{
        PAGE_MASK,
        PAGE_SIZE, //
    },
    prelude::*,
    ptr::Alignment,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use core::{
    mem::ManuallyDrop,
    ops::Range, //
};

/// The allocator of all VRAM or of a part of it on [`GpuBuddy`].
///
/// All references to an allocator allocate from the same memory: a core driver that needs some for
/// itself shares the allocator with the driver creating objects. Offsets are offsets in VRAM
/// wherever the part begins.
///
/// When an object leaves VRAM, TTM frees the VRAM at once while an engine still reads it, because
/// the next object waits for the engine. Other users do not wait. So an allocator whose memory TTM
/// has gives none to them, unless it was created by [`Self::shared`] or they call
/// [`ttm::Device::alloc_block`], which waits.
///
/// [`ttm::Device::alloc_block`]: crate::drm::gem::ttm::Device::alloc_block
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::vram::Allocator,
///     page::PAGE_SIZE, //
/// };
///
/// let page = PAGE_SIZE as u64;
/// let vram = Allocator::new(16 * page..32 * page)?;
///
/// // The firmware has four pages in the middle.
/// let hole = vram.reserve(20 * page..24 * page)?;
/// assert_eq!(vram.avail(), 12 * page);
/// assert_eq!(hole.ranges().ranges()[0].offset, 20 * page);
/// assert_eq!(vram.reserve(23 * page..25 * page).err(), Some(ENOSPC));
///
/// // A block is aligned to its size.
/// let block = vram.alloc_block(4 * PAGE_SIZE)?;
/// assert_eq!(block.ranges().ranges().len(), 1);
/// assert_eq!(block.ranges().ranges()[0].offset % (4 * page), 0);
/// assert_eq!(vram.alloc_block(3 * PAGE_SIZE).err(), Some(EINVAL));
/// drop(block);
///
/// // An allocation that is larger than the remaining pieces has several ranges.
/// let all = vram.alloc(12 * page)?;
/// let ranges = all.ranges().ranges();
/// assert_eq!(ranges.iter().map(|range| range.len).sum::<u64>(), 12 * page);
/// assert!(ranges
///     .iter()
///     .all(|range| range.offset + range.len <= 20 * page || range.offset >= 24 * page));
/// assert_eq!(vram.alloc(page).err(), Some(ENOSPC));
///
/// drop((all, hole));
/// assert_eq!(vram.avail(), vram.size());
/// # Ok::<(), Error>(())
/// ```
pub struct Allocator {
    buddy: GpuBuddy,
    layout: Option<Layout>,
    quarantine: Arc<Quarantine>,
    is_shared: bool,
    /// Memory is given out before the jobs using it are done.
    is_pipelined: Atomic<bool>,
}

impl Allocator {
    /// Creates the allocator of a range of VRAM. The range must consist of whole pages.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the range is empty or otherwise not supported.
    /// - `ENOMEM` if memory runs out.
    pub fn new(range: Range<u64>) -> Result<Arc<Self>> {
        Self::make(range, None, false)
    }

    /// As [`Self::new`] for VRAM that a BAR shows in the order of `layout`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::new`].
    pub fn with_layout(range: Range<u64>, layout: Layout) -> Result<Arc<Self>> {
        Self::make(range, Some(layout), false)
    }

    /// As [`Self::new`] or [`Self::with_layout`] for memory shared by a core driver and TTM.
    ///
    /// VRAM left by an object is only freed when the jobs using it are done. An eviction waits for
    /// them.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::new`].
    pub fn shared(range: Range<u64>, layout: Option<Layout>) -> Result<Arc<Self>> {
        Self::make(range, layout, true)
    }

    fn make(range: Range<u64>, layout: Option<Layout>, is_shared: bool) -> Result<Arc<Self>> {
        if !is_aligned(&range) {
            return Err(EINVAL);
        }

        let buddy = GpuBuddy::new(GpuBuddyParams {
            base_offset: range.start,
            size: range.end.checked_sub(range.start).ok_or(EINVAL)?,
            chunk_size: Alignment::new::<{ PAGE_SIZE }>(),
        })?;

        Ok(Arc::new(
            Self {
                buddy,
                layout,
                quarantine: Quarantine::new()?,
                is_shared,
                is_pipelined: Atomic::new(false),
            },
            GFP_KERNEL,
        )?)
    }

    /// Returns whether the allocator was created by [`Self::shared`].
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns how many bytes of memory there are.
    #[inline]
    pub fn size(&self) -> u64 {
        self.buddy.size()
    }

    /// Returns how many bytes of memory are free.
    #[inline]
    pub fn avail(&self) -> u64 {
        self.buddy.avail()
    }

    /// Returns where the BAR shows offset `offset` of VRAM, or [`None`] if it does not.
    pub fn bar_offset(&self, offset: u64) -> Option<u64> {
        match &self.layout {
            Some(layout) => layout.bar_offset(offset),
            None => Some(offset),
        }
    }

    /// Returns how many bytes of VRAM from `offset` on the BAR shows contiguously.
    pub fn shown_in_order(&self, offset: u64) -> u64 {
        match &self.layout {
            Some(layout) => layout.left_of_granule(offset),
            None => u64::MAX,
        }
    }

    /// Returns the offset in VRAM after the last byte.
    #[inline]
    pub fn end(&self) -> u64 {
        // OVERFLOW: The constructor was given the sum.
        self.buddy.base_offset() + self.buddy.size()
    }

    /// Returns the offset in VRAM of the first byte.
    #[inline]
    pub fn start(&self) -> u64 {
        self.buddy.base_offset()
    }

    /// Returns how many bytes of memory are in quarantine. This memory was freed but may have
    /// content of a former owner because the job to fill it has failed.
    pub fn quarantined(&self) -> u64 {
        self.quarantine.size()
    }

    /// Counts a reset of the device. Memory left unfilled by a failed job until now may be
    /// allocated again, wherever it is by then. Memory in quarantine stays there until
    /// [`Self::end_quarantine`].
    ///
    /// A driver calls this after a reset, when the device works again but jobs have not begun
    /// again. May be called in any context.
    pub fn count_reset(&self) {
        self.quarantine.count_reset();
    }

    /// Frees the quarantined memory of jobs that failed before the last [`Self::count_reset`]. May
    /// sleep.
    pub fn end_quarantine(&self) {
        self.quarantine.end();
    }

    /// Returns whether a BAR of `len` bytes can show the first `visible` bytes of VRAM.
    pub(crate) fn can_be_shown(&self, visible: u64, len: u64) -> bool {
        visible <= self.end().min(len)
            && self
                .layout
                .as_ref()
                .is_none_or(|layout| (visible..=len).contains(&layout.len()))
    }

    /// Records that TTM has the memory.
    pub(crate) fn begin_pipelining(&self) {
        self.is_pipelined.store(!self.is_shared(), Relaxed);
    }

    /// Returns whether memory may be freed before the jobs using it are done.
    #[inline]
    pub(crate) fn is_pipelined(&self) -> bool {
        self.is_pipelined.load(Relaxed)
    }

    fn check_pipelining(&self) -> Result {
        if self.is_pipelined() {
            return Err(EBUSY);
        }
        Ok(())
    }

    /// Allocates `size` bytes anywhere. `size` must be a multiple of the page size.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if TTM has the memory and it is not [`Self::shared`].
    /// - `ENOSPC` if there is no room.
    /// - `ENOMEM` if memory runs out.
    pub fn alloc(&self, size: u64) -> Result<Allocation> {
        self.check_pipelining()?;
        self.alloc_with(
            GpuBuddyAllocMode::Simple,
            size,
            Alignment::new::<{ PAGE_SIZE }>(),
            GpuBuddyAllocFlags::default(),
        )
    }

    /// As [`Self::alloc`] below the offset `end` of VRAM.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::alloc`].
    pub fn alloc_below(&self, size: u64, end: u64) -> Result<Allocation> {
        self.check_pipelining()?;
        let end = end.min(self.end()) & PAGE_MASK as u64;
        let start = self.start();
        if end <= start || size > end - start {
            return Err(ENOSPC);
        }

        self.alloc_with(
            GpuBuddyAllocMode::Range(start..end),
            size,
            Alignment::new::<{ PAGE_SIZE }>(),
            GpuBuddyAllocFlags::default(),
        )
    }

    /// Allocates `size` bytes in one piece. `size` is a power of two and at least the page size.
    /// The piece is at a multiple of `size` from the start of the allocator.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `size` is not a power of two.
    /// - The errors of [`Self::alloc`].
    pub fn alloc_block(&self, size: usize) -> Result<Allocation> {
        self.check_pipelining()?;
        self.alloc_any_block(size)
    }

    /// As [`Self::alloc_block`] for a caller that waits for the jobs still using the memory.
    pub(crate) fn alloc_any_block(&self, size: usize) -> Result<Allocation> {
        self.alloc_with(
            GpuBuddyAllocMode::Simple,
            size as u64,
            Alignment::new_checked(size.max(PAGE_SIZE)).ok_or(EINVAL)?,
            GpuBuddyAllocFlags::default(),
        )
    }

    /// Allocates a range of VRAM such as one used by the firmware.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if TTM has the memory and it is not [`Self::shared`].
    /// - `EINVAL` if the range does not consist of whole pages.
    /// - `ENOSPC` if a part of the range is allocated or the range is not in the memory of this
    ///   allocator.
    /// - `ENOMEM` if memory runs out.
    pub fn reserve(&self, range: Range<u64>) -> Result<Allocation> {
        self.check_pipelining()?;
        if !is_aligned(&range) {
            return Err(EINVAL);
        }
        if range.start < self.start() || range.end > self.end() || range.is_empty() {
            return Err(ENOSPC);
        }

        let size = range.end - range.start;
        self.alloc_with(
            GpuBuddyAllocMode::Range(range),
            size,
            Alignment::new::<{ PAGE_SIZE }>(),
            GpuBuddyAllocFlag::Contiguous.into(),
        )
    }

    /// Allocates memory by `mode`. A range in `mode` is one of VRAM.
    pub(crate) fn alloc_with(
        &self,
        mode: GpuBuddyAllocMode,
        size: u64,
        align: Alignment,
        flags: GpuBuddyAllocFlags,
    ) -> Result<Allocation> {
        if size == 0 || size > self.size() {
            return Err(ENOSPC);
        }
        // The buddy allocator counts from its own start.
        let base = self.buddy.base_offset();
        let mode = match mode {
            GpuBuddyAllocMode::Range(range) => GpuBuddyAllocMode::Range(
                range.start.saturating_sub(base)..range.end.saturating_sub(base),
            ),
            mode => mode,
        };

        let blocks = KBox::pin_init(
            self.buddy.alloc_blocks(mode, size, align, flags),
            GFP_KERNEL,
        )
        // The buddy allocator returns `EINVAL` if it would have to round the size up to more than
        // its memory.
        .map_err(|e| if e == EINVAL { ENOSPC } else { e })?;
        let ranges = Ranges::new(
            blocks.iter().map(|block| (block.offset(), block.size())),
            size,
            self.layout.as_ref(),
            &self.quarantine,
        )?;

        Ok(Allocation {
            ranges,
            blocks: ManuallyDrop::new(blocks),
        })
    }
}

fn is_aligned(range: &Range<u64>) -> bool {
    (range.start | range.end) & !(PAGE_MASK as u64) == 0
}

/// A part of VRAM, freed when the value is dropped.
pub struct Allocation {
    /// Shared with jobs still copying from the memory after it was freed.
    ranges: Arc<Ranges>,
    // Handed over by `drop()`.
    blocks: ManuallyDrop<Blocks>,
}

impl Allocation {
    /// Returns the ranges of the allocation.
    #[inline]
    pub fn ranges(&self) -> &Arc<Ranges> {
        &self.ranges
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: The value is not used any more.
        let blocks = unsafe { ManuallyDrop::take(&mut self.blocks) };

        match self.ranges.tainted() {
            Some((quarantine, since)) => quarantine.add(blocks, since),
            // It returns them to the allocator.
            None => drop(blocks),
        }
    }
}

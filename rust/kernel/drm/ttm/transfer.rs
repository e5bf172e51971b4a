// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Transfers of the content of objects.
//!
//! C header: [`include/drm/ttm/ttm_kmap_iter.h`](srctree/include/drm/ttm/ttm_kmap_iter.h)

use super::{
    blit::VmappedImport,
    dma::{
        Segments,
        Table, //
    },
    view::SCRATCH_PAGES, //
};
use crate::{
    bindings,
    dma_buf::vmap::VMap,
    drm::vram::{
        flush,
        Range,
        Ranges, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc, //
};
use core::{
    marker::PhantomData,
    ops,
    ptr::NonNull, //
};

/// System memory of an object.
///
/// # Invariants
///
/// `tt` is valid for `'a` and has all of its pages.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    tt: NonNull<bindings::ttm_tt>,
    dma: Option<&'a Table>,
    _p: PhantomData<&'a bindings::ttm_tt>,
}

impl<'a> Pages<'a> {
    /// # Safety
    ///
    /// `tt` must be valid for `'a` and have all of its pages during that time.
    pub(crate) unsafe fn from_raw(tt: NonNull<bindings::ttm_tt>) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            tt,
            dma: None,
            _p: PhantomData,
        }
    }

    /// Returns the DMA addresses of the pages for the device with the VRAM: the address and the
    /// length in bytes of each piece in the order of the object. Each piece is a number of
    /// contiguous whole pages and at most as long as a segment of the device may be.
    ///
    /// [`None`] if the engines of the device do no DMA (see [`Engine::DMA`](super::Engine::DMA)).
    #[inline]
    pub fn dma(&self) -> Option<Segments<'a>> {
        self.dma.map(Segments::of)
    }

    /// Returns TTM's iterator for mapping them for the CPU.
    fn iter(&self) -> bindings::ttm_kmap_iter_tt {
        let mut iter = pin_init::zeroed();

        // SAFETY: `iter` is written to only, and `tt` is valid.
        unsafe { bindings::ttm_kmap_iter_tt_init(&mut iter, self.tt.as_ptr()) };
        iter
    }

    /// Returns the pages, one for each page of the object.
    pub(crate) fn as_slice(&self) -> &'a [*mut bindings::page] {
        // SAFETY: By the type invariant the array is valid and does not change.
        unsafe {
            let tt = self.tt.as_ptr();

            core::slice::from_raw_parts((*tt).pages.cast_const(), (*tt).num_pages as usize)
        }
    }
}

/// The memory of one side of a [`Transfer`].
#[derive(Clone, Copy)]
pub enum Memory<'a> {
    /// In VRAM.
    Vram(&'a Ranges),
    /// In system memory.
    Pages(Pages<'a>),
    /// A buffer of another device, mapped into the kernel. Only in a [`Blit`](super::Blit).
    Mapped(&'a VMap),
    /// A buffer of another device, mapped for the device with the VRAM: offsets are DMA addresses.
    /// Only in a [`Blit`](super::Blit) for engines with DMA (see
    /// [`Engine::DMA`](super::Engine::DMA)).
    Peer(&'a [Range]),
}

impl Memory<'_> {
    /// Returns whether the CPU reaches all of the memory. If it is in VRAM, a BAR of `len` bytes
    /// has to show it.
    pub(super) fn is_in_bar(&self, len: u64) -> bool {
        match self {
            Self::Vram(vram) => vram.is_in_bar(len),
            Self::Pages(_) | Self::Mapped(_) => true,
            Self::Peer(_) => false,
        }
    }
}

/// As [`Memory`] for the duration of the job.
pub(crate) enum Side {
    Vram(Arc<Ranges>),
    /// With the DMA addresses if there are engines that need them.
    Pages(NonNull<bindings::ttm_tt>, Option<Arc<Table>>),
    Mapped(VmappedImport),
    /// By its DMA addresses. They stay until the fence of the job has signalled.
    Peer(KVVec<Range>),
}

impl Side {
    /// Returns the side for as long as it is borrowed.
    ///
    /// # Safety
    ///
    /// A side in system memory must have all of its pages for that time.
    pub(super) unsafe fn memory(&self) -> Memory<'_> {
        match self {
            Self::Vram(ranges) => Memory::Vram(ranges),
            Self::Pages(tt, dma) => Memory::Pages(Pages {
                dma: dma.as_deref(),
                // SAFETY: By the safety requirements.
                ..unsafe { Pages::from_raw(*tt) }
            }),
            Self::Mapped(import) => Memory::Mapped(import.map()),
            Self::Peer(pieces) => Memory::Peer(pieces),
        }
    }
}

/// The content of an object to be moved or cleared.
///
/// # Invariants
///
/// - Both sides have at least `size` bytes of whole pages. They are neither [`Side::Mapped`] nor
///   [`Side::Peer`].
/// - A side in system memory has all of its pages until the fence of the job signals. Nothing
///   accesses them after that.
pub struct Transfer {
    from: Option<Side>,
    to: Side,
    size: usize,
}

// SAFETY: By the type invariant the pages stay, and any task may access them.
unsafe impl Send for Transfer {}

// SAFETY: As for `Send`.
unsafe impl Sync for Transfer {}

impl Transfer {
    /// # Safety
    ///
    /// - Both sides must have at least `size` bytes and `size` must be a multiple of the page size.
    ///   Neither may be [`Side::Mapped`] or [`Side::Peer`].
    /// - A side in system memory must have all of its pages until the fence of the job created from
    ///   the value has signalled or the value is dropped.
    pub(crate) unsafe fn new(from: Option<Side>, to: Side, size: usize) -> Self {
        // INVARIANT: By the safety requirements.
        Self { from, to, size }
    }

    /// Returns the source of the content, or [`None`] if the target is to be cleared.
    #[inline]
    pub fn from(&self) -> Option<Memory<'_>> {
        // SAFETY: By the type invariant.
        self.from.as_ref().map(|side| unsafe { side.memory() })
    }

    /// Returns the target of the content.
    #[inline]
    pub fn to(&self) -> Memory<'_> {
        // SAFETY: By the type invariant.
        unsafe { self.to.memory() }
    }

    /// Returns the size in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns whether a BAR of `len` bytes shows all VRAM of both sides.
    pub(super) fn is_in_bar(&self, len: u64) -> bool {
        self.to().is_in_bar(len) && self.from().is_none_or(|from| from.is_in_bar(len))
    }

    /// Does the transfer by the CPU.
    ///
    /// Does not allocate memory. Mirrors `ttm_move_memcpy()`.
    ///
    /// # Safety
    ///
    /// `vram` must be the address of VRAM with all ranges of both sides mapped.
    pub(super) unsafe fn by_cpu(&self, vram: *mut c_void) {
        let mut to = Iter::new(self.to(), vram);
        let mut from = match self.from() {
            Some(from) => Iter::new(from, vram),
            None => Iter::nothing(),
        };

        // SAFETY: By the type invariant the sides have this many pages and the iterators map them.
        // The source is not accessed if there is none.
        unsafe {
            bindings::ttm_move_memcpy(
                self.from.is_none(),
                self.pages(),
                to.as_raw(),
                from.as_raw(),
            );
        }
    }

    /// Calls `f` for one part after the other, with the VRAM offsets of its pages in VRAM: first
    /// the pages of the source and then those of the destination. There are at most
    /// [`SCRATCH_PAGES`].
    ///
    /// Does not allocate memory.
    ///
    /// # Errors
    ///
    /// The errors of `f`.
    pub(super) fn parts(&self, mut f: impl FnMut(Part<'_>, &[u64]) -> Result) -> Result {
        let count = SCRATCH_PAGES / 2;
        let total = self.size >> PAGE_SHIFT;

        for first in (0..total).step_by(count) {
            let part = Part {
                of: self,
                pages: first..total.min(first + count),
            };
            let mut vram = [0; SCRATCH_PAGES];
            let mut used = 0;

            for memory in [self.from(), Some(self.to())].into_iter().flatten() {
                let Memory::Vram(ranges) = memory else {
                    continue;
                };
                for page in part.pages.clone() {
                    let at = (page as u64) << PAGE_SHIFT;

                    *vram.get_mut(used).ok_or(EINVAL)? = ranges.offset(at).ok_or(EINVAL)?;
                    used += 1;
                }
            }
            f(part, vram.get(..used).ok_or(EINVAL)?)?;
            pause();
        }
        Ok(())
    }

    fn pages(&self) -> u32 {
        // CAST: Objects are below 16 TiB, see `Object::new()`.
        (self.size >> PAGE_SHIFT) as u32
    }
}

/// A range of the pages of a [`Transfer`].
pub(super) struct Part<'a> {
    of: &'a Transfer,
    pages: ops::Range<usize>,
}

impl Part<'_> {
    /// Moves the pages by the CPU. The pages in VRAM are at the offsets `shown` of a BAR in the
    /// order of [`Transfer::parts`]. All writes have reached VRAM when this returns.
    ///
    /// Does not allocate memory.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `shown` does not have one offset for each page in VRAM or if an offset is not
    /// that of a page of the BAR.
    ///
    /// # Safety
    ///
    /// `len` bytes of I/O memory must be mapped at `bar`.
    pub(super) unsafe fn by_cpu(&self, shown: &[u64], bar: *mut c_void, len: u64) -> Result {
        let page = PAGE_SIZE as u64;
        let is_inside = |at: &u64| at % page == 0 && at.checked_add(page).is_some_and(|e| e <= len);
        let (from, to) = (self.of.from(), self.of.to());
        let count = |memory: &Memory<'_>| match memory {
            Memory::Vram(_) => self.pages.len(),
            _ => 0,
        };
        let (sources, targets) = shown
            .split_at_checked(from.as_ref().map_or(0, count))
            .ok_or(EINVAL)?;
        if targets.len() != count(&to) || !shown.iter().all(is_inside) {
            return Err(EINVAL);
        }

        let mut to = Iter::part(to, self.pages.start, bar, targets);
        let mut from = match from {
            Some(from) => Iter::part(from, self.pages.start, bar, sources),
            None => Iter::nothing(),
        };
        // SAFETY: Both sides have these pages by the type invariant of the transfer. The pages in
        // VRAM are inside the BAR, as was checked, and the BAR is mapped. The source is not used if
        // there is none.
        unsafe {
            bindings::ttm_move_memcpy(
                self.of.from.is_none(),
                // CAST: At most half of `SCRATCH_PAGES`.
                self.pages.len() as u32,
                to.as_raw(),
                from.as_raw(),
            );
            if let Some(last) = targets.last() {
                // CAST: An offset in the mapped BAR.
                flush(bar.wrapping_byte_add(*last as usize));
            }
        }
        Ok(())
    }
}

/// How many pages are moved before other tasks may use the processor. A page takes some
/// microseconds.
const PAGES_WITHOUT_PAUSE: usize = 256;

/// Offers to reschedule for kernels that do not preempt kernel code. May sleep.
pub(super) fn pause() {
    // SAFETY: The CPU moves bytes in the worker of a `CpuEngine` and where a failed job is
    // finished. Both hold no spinlock and may sleep. Pages mapped by the task with
    // `kmap_local_page()` stay mapped meanwhile.
    unsafe { bindings::cond_resched() };
}

/// Maps the pages of one side.
enum Iter<'a> {
    Vram(VramIter<'a>),
    Pages(bindings::ttm_kmap_iter_tt),
    ShownPart(ShownIter<'a>),
    PagesPart(LaterIter),
}

impl<'a> Iter<'a> {
    fn new(memory: Memory<'a>, vram: *mut c_void) -> Self {
        match memory {
            Memory::Vram(vram_ranges) => Self::Vram(VramIter {
                base: bindings::ttm_kmap_iter { ops: &VRAM_OPS },
                vram,
                ranges: vram_ranges.shown(),
                index: 0,
            }),
            Memory::Pages(pages) => Self::Pages(pages.iter()),
            // Moves are between memories of one device.
            Memory::Mapped(_) | Memory::Peer(_) => Self::nothing(),
        }
    }

    /// As [`Self::new`] for a part beginning with the page `first`. Its pages in VRAM are at the
    /// offsets `shown` of the BAR.
    fn part(memory: Memory<'a>, first: usize, bar: *mut c_void, shown: &'a [u64]) -> Self {
        match memory {
            Memory::Vram(_) => Self::ShownPart(ShownIter {
                base: bindings::ttm_kmap_iter { ops: &SHOWN_OPS },
                bar,
                shown,
            }),
            Memory::Pages(pages) => Self::PagesPart(LaterIter {
                base: bindings::ttm_kmap_iter { ops: &LATER_OPS },
                all: pages.iter(),
                first,
            }),
            // Moves are between memories of one device.
            Memory::Mapped(_) | Memory::Peer(_) => Self::nothing(),
        }
    }

    /// The source of zeroes. It must not be of system memory: TTM skips a transfer between two
    /// sides in system memory.
    fn nothing() -> Self {
        Self::Vram(VramIter {
            base: bindings::ttm_kmap_iter { ops: &VRAM_OPS },
            vram: core::ptr::null_mut(),
            ranges: &[],
            index: 0,
        })
    }

    fn as_raw(&mut self) -> *mut bindings::ttm_kmap_iter {
        match self {
            // Not a pointer to `base` alone because the callback converts it to a pointer to the
            // whole.
            Self::Vram(iter) => (&raw mut *iter).cast(),
            Self::Pages(iter) => (&raw mut *iter).cast(),
            Self::ShownPart(iter) => (&raw mut *iter).cast(),
            Self::PagesPart(iter) => (&raw mut *iter).cast(),
        }
    }
}

/// Maps pages of an object in VRAM one after the other.
#[repr(C)]
struct VramIter<'a> {
    base: bindings::ttm_kmap_iter,
    vram: *mut c_void,
    ranges: &'a [Range],
    /// The index of the range of the previous page.
    index: usize,
}

static VRAM_OPS: bindings::ttm_kmap_iter_ops = bindings::ttm_kmap_iter_ops {
    map_local: Some(vram_map_local),
    unmap_local: None,
    maps_tt: false,
};

/// # Safety
///
/// Called by `ttm_move_memcpy()` with a [`VramIter`] and a page inside the object.
unsafe extern "C" fn vram_map_local(
    iter: *mut bindings::ttm_kmap_iter,
    map: *mut bindings::iosys_map,
    page: usize,
) {
    // SAFETY: `base` is the first field, and the pointer was made from one to the whole.
    let iter = unsafe { &mut *iter.cast::<VramIter<'_>>() };
    let at = (page as u64) << PAGE_SHIFT;

    // `ttm_move_memcpy()` goes through all pages without a pause.
    if page % PAGES_WITHOUT_PAUSE == 0 {
        pause();
    }

    // OVERFLOW: Ranges are inside of the object.
    while iter.index + 1 < iter.ranges.len()
        && iter.ranges[iter.index].at + iter.ranges[iter.index].len <= at
    {
        iter.index += 1;
    }
    let range = &iter.ranges[iter.index];
    // A page does not cross ranges.
    debug_assert!(at >= range.at && at + PAGE_SIZE as u64 <= range.at + range.len);

    let map_to = bindings::iosys_map {
        __bindgen_anon_1: bindings::iosys_map__bindgen_ty_1 {
            // CAST: Inside of VRAM, which is mapped.
            vaddr_iomem: iter
                .vram
                .wrapping_byte_add((range.offset + (at - range.at)) as usize),
        },
        is_iomem: true,
    };
    // SAFETY: The caller passes a valid structure to be filled.
    unsafe { map.write(map_to) };
}

/// Maps pages of VRAM at given offsets of a BAR.
#[repr(C)]
struct ShownIter<'a> {
    base: bindings::ttm_kmap_iter,
    bar: *mut c_void,
    shown: &'a [u64],
}

static SHOWN_OPS: bindings::ttm_kmap_iter_ops = bindings::ttm_kmap_iter_ops {
    map_local: Some(shown_map_local),
    unmap_local: None,
    maps_tt: false,
};

/// # Safety
///
/// Called by `ttm_move_memcpy()` with a [`ShownIter`] and a page inside it.
unsafe extern "C" fn shown_map_local(
    iter: *mut bindings::ttm_kmap_iter,
    map: *mut bindings::iosys_map,
    page: usize,
) {
    // SAFETY: `base` is the first field, and the pointer was made from one to the whole.
    let iter = unsafe { &*iter.cast::<ShownIter<'_>>() };
    let map_to = bindings::iosys_map {
        __bindgen_anon_1: bindings::iosys_map__bindgen_ty_1 {
            // CAST: An offset in the mapped BAR.
            vaddr_iomem: iter.bar.wrapping_byte_add(iter.shown[page] as usize),
        },
        is_iomem: true,
    };

    // SAFETY: The caller passes a valid structure to be filled.
    unsafe { map.write(map_to) };
}

/// Maps pages of system memory. The first one is page `first` of the object.
#[repr(C)]
struct LaterIter {
    base: bindings::ttm_kmap_iter,
    all: bindings::ttm_kmap_iter_tt,
    first: usize,
}

static LATER_OPS: bindings::ttm_kmap_iter_ops = bindings::ttm_kmap_iter_ops {
    map_local: Some(later_map_local),
    unmap_local: Some(later_unmap_local),
    maps_tt: false,
};

/// # Safety
///
/// Called by `ttm_move_memcpy()` with a [`LaterIter`] and a page inside it.
unsafe extern "C" fn later_map_local(
    iter: *mut bindings::ttm_kmap_iter,
    map: *mut bindings::iosys_map,
    page: usize,
) {
    // SAFETY: `base` is the first field, and the pointer was made from one to the whole. TTM has
    // set the operations up.
    unsafe {
        let iter = &mut *iter.cast::<LaterIter>();

        if let Some(map_local) = (*iter.all.base.ops).map_local {
            map_local(&raw mut iter.all.base, map, iter.first + page);
        }
    }
}

/// # Safety
///
/// Called by `ttm_move_memcpy()` with a [`LaterIter`] and a structure filled by
/// [`later_map_local`].
unsafe extern "C" fn later_unmap_local(
    iter: *mut bindings::ttm_kmap_iter,
    map: *mut bindings::iosys_map,
) {
    // SAFETY: As above.
    unsafe {
        let iter = &mut *iter.cast::<LaterIter>();

        if let Some(unmap_local) = (*iter.all.base.ops).unmap_local {
            unmap_local(&raw mut iter.all.base, map);
        }
    }
}

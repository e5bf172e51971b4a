// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Transfers of the content of objects.
//!
//! C header: [`include/drm/ttm/ttm_kmap_iter.h`](srctree/include/drm/ttm/ttm_kmap_iter.h)

use super::{
    blit::VmappedImport,
    dma::{
        Segments,
        Table, //
    }, //
};
use crate::{
    bindings,
    dma_buf::vmap::VMap,
    drm::vram::{
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
    /// `tt` must be valid for `'a`, and have all of its pages during that time.
    pub(crate) unsafe fn from_raw(tt: NonNull<bindings::ttm_tt>) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            tt,
            dma: None,
            _p: PhantomData,
        }
    }

    /// Returns the DMA addresses of the pages for the device whose memory VRAM is: the address and
    /// the length in bytes of each piece, in the order of the object. Each piece is a number of
    /// contiguous whole pages, and at most as long as a segment of the device may be.
    ///
    /// [`None`] if the engines of the device do no DMA, see [`Engine::DMA`](super::Engine::DMA).
    #[inline]
    pub fn dma(&self) -> Option<Segments<'a>> {
        self.dma.map(Segments::of)
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
    /// A buffer of another device, mapped for the device whose memory VRAM is: offsets are DMA
    /// addresses. Only in a [`Blit`](super::Blit), for engines that do DMA, see
    /// [`Engine::DMA`](super::Engine::DMA).
    Peer(&'a [Range]),
}

impl Memory<'_> {
    /// Tells whether the CPU reaches all of the memory. If it is in VRAM, a BAR of `len` bytes has
    /// to show it.
    pub(super) fn is_in_bar(&self, len: u64) -> bool {
        match self {
            Self::Vram(vram) => vram.is_in_bar(len),
            Self::Pages(_) | Self::Mapped(_) => true,
            Self::Peer(_) => false,
        }
    }
}

/// As [`Memory`], for the duration of the job.
pub(crate) enum Side {
    Vram(Arc<Ranges>),
    /// With the DMA addresses, if there are engines that need them.
    Pages(NonNull<bindings::ttm_tt>, Option<Arc<Table>>),
    Mapped(VmappedImport),
    /// By its DMA addresses, which stay until the fence of the job has signalled.
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

/// The content of an object that is to be moved, or made zero.
///
/// # Invariants
///
/// - Both sides have at least `size` bytes, which are whole pages, and are neither [`Side::Mapped`]
///   nor [`Side::Peer`].
/// - A side in system memory has all of its pages until the fence of the job signals; nothing
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
    /// - Both sides must have at least `size` bytes, and `size` must be a multiple of the page size.
    ///   Neither may be [`Side::Mapped`] or [`Side::Peer`].
    /// - A side in system memory must have all of its pages until the fence of the job that the
    ///   value becomes has signalled, or the value is dropped.
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

    /// Tells whether a BAR of `len` bytes shows all VRAM of both sides.
    pub(super) fn is_in_bar(&self, len: u64) -> bool {
        self.to().is_in_bar(len) && self.from().is_none_or(|from| from.is_in_bar(len))
    }

    /// Makes the transfer by the CPU.
    ///
    /// Does not allocate memory. Mirrors `ttm_move_memcpy()`.
    ///
    /// # Safety
    ///
    /// `vram` must be the address of VRAM, in which all ranges of both sides are mapped.
    pub(super) unsafe fn by_cpu(&self, vram: *mut c_void) {
        let mut to = Iter::new(self.to(), vram);
        let mut from = match self.from() {
            Some(from) => Iter::new(from, vram),
            None => Iter::nothing(),
        };

        // SAFETY: By the type invariant the sides have this many pages, which the iterators map.
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

    fn pages(&self) -> u32 {
        // CAST: Objects are below 16 TiB, see `Object::new()`.
        (self.size >> PAGE_SHIFT) as u32
    }
}

/// How many pages are moved before other tasks may use the processor. A page takes some
/// microseconds.
const PAGES_WITHOUT_PAUSE: usize = 256;

/// Offers to reschedule, for kernels that do not preempt kernel code. May sleep.
pub(super) fn pause() {
    // SAFETY: The CPU moves bytes in the worker of a `CpuEngine`, and where a job is finished that
    // has failed; both hold no spinlock and may sleep. The pages that the task has mapped with
    // `kmap_local_page()` stay mapped meanwhile.
    unsafe { bindings::cond_resched() };
}

/// Maps the pages of one side.
enum Iter<'a> {
    Vram(VramIter<'a>),
    Pages(bindings::ttm_kmap_iter_tt),
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
            Memory::Pages(pages) => {
                let mut iter = pin_init::zeroed();

                // SAFETY: `iter` is written to only, and `tt` is valid.
                unsafe { bindings::ttm_kmap_iter_tt_init(&mut iter, pages.tt.as_ptr()) };
                Self::Pages(iter)
            }
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
            // Not a pointer to `base` alone, because the callback converts it to a pointer to the
            // whole.
            Self::Vram(iter) => (&raw mut *iter).cast(),
            Self::Pages(iter) => (&raw mut *iter).cast(),
        }
    }
}

/// Maps pages of an object in VRAM, one after the other.
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
/// Called by `ttm_move_memcpy()` with a [`VramIter`] and a page that is inside of the object.
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

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of a device that takes the place of a piece of the memory of a process.

use super::base::Base;
use crate::{
    bindings,
    drm::vram::dma_device,
    error::to_result,
    page::PAGE_SIZE,
    pm::Awake,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    types::Opaque,
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};
use core::{
    ops::Range,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// What migrates as one, at most.
///
/// A folio of this size is one entry of a page table, where pages have 4 KiB.
pub(super) const LARGEST: usize = if PAGE_SIZE > crate::sizes::SZ_2M {
    PAGE_SIZE
} else {
    crate::sizes::SZ_2M
};

/// Returns the size of the largest chunk that begins at the address `at` and ends at `end`, which
/// is above it: a power of two that the address is a multiple of.
///
/// Both are multiples of the page size.
pub(super) fn largest(at: usize, end: usize) -> usize {
    let room = end.saturating_sub(at).max(PAGE_SIZE);
    let fits = 1 << (usize::BITS - 1 - room.leading_zeros());
    let aligned = 1 << at.trailing_zeros().min(usize::BITS - 1);

    LARGEST.min(fits).min(aligned)
}

/// A chunk: memory of the device, and the process whose memory it is.
///
/// One reference belongs to the C code, from the call of `drm_pagemap_migrate_to_devmem()` until it
/// calls [`release`]. Then a worker puts the one of [`Base`], and with it the allocation.
///
/// # Invariants
///
/// - `base` is valid: it waits for its chunks before it goes.
/// - The pages `first..first + count` are those of `alloc`, and of no other chunk.
#[pin_data]
pub(super) struct Chunk {
    #[pin]
    raw: Opaque<bindings::drm_pagemap_devmem>,
    base: NonNull<Base>,
    first: usize,
    count: usize,
    /// See [`Self::age`].
    age: Atomic<u64>,
    _alloc: KBox<dyn Send + Sync>,
    /// Where the memory is does not lose power: the CPU accesses it where it cannot resume the
    /// device, and others do without asking.
    _awake: Awake,
    #[pin]
    work: Work<Chunk>,
}

impl_has_work! {
    impl HasWork<Self> for Chunk { self.work }
}

// SAFETY: The C structure is constant but for a completion and a time; the rest may be used from
// any task.
unsafe impl Send for Chunk {}

// SAFETY: As for `Send`.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Makes a chunk of the memory of `alloc`, with the pages from `first` on.
    ///
    /// # Safety
    ///
    /// `base` must be valid until it has seen the chunk go. `ops` must be that of a
    /// [`Driver`](super::Driver), with the functions of this file.
    // Not inlined, so that the lock class of the work and its name stay in the kernel crate.
    #[inline(never)]
    pub(super) unsafe fn new(
        base: &Base,
        first: usize,
        count: usize,
        (alloc, awake): (KBox<dyn Send + Sync>, Awake),
        ops: &'static bindings::drm_pagemap_devmem_ops,
    ) -> Result<Arc<Self>> {
        let dpagemap = base.as_raw();
        // SAFETY: The DRM device is valid, and keeps its DMA device while `base` is.
        let dev = unsafe { dma_device((*dpagemap).drm) }.as_raw();
        let init = |raw: *mut bindings::drm_pagemap_devmem| {
            // SAFETY: `raw` is memory for the structure. All that it points to is valid as long as
            // the chunk, the device because the copies are over when its driver is unbound.
            unsafe {
                raw.write_bytes(0, 1);
                bindings::drm_pagemap_devmem_init(
                    raw,
                    dev,
                    ops,
                    dpagemap,
                    // OVERFLOW: At most `LARGEST`.
                    count * PAGE_SIZE,
                    ptr::null_mut(),
                );
            }
        };

        Arc::pin_init(
            pin_init!(Self {
                raw <- Opaque::ffi_init(init),
                base: base.into(),
                first,
                count,
                age: Atomic::new(0),
                _alloc: alloc,
                _awake: awake,
                work <- new_work!("drm::pagemap::Chunk"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the number of the first page.
    #[inline]
    pub(super) fn first(&self) -> usize {
        self.first
    }

    /// Returns the number of the page after the last one.
    #[inline]
    pub(super) fn end(&self) -> usize {
        // OVERFLOW: By the type invariant, both are numbers of pages that exist.
        self.first + self.count
    }

    /// Returns how many bytes it has.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        // OVERFLOW: At most `LARGEST`.
        (self.count * PAGE_SIZE) as u64
    }

    /// Returns its number in the order in which chunks are made.
    #[inline]
    pub(super) fn age(&self) -> u64 {
        self.age.load(Relaxed)
    }

    /// Sets what [`Self::age`] returns, before others know it.
    #[inline]
    pub(super) fn set_age(&self, age: u64) {
        self.age.store(age, Relaxed);
    }

    /// Moves the memory of a process at `range` here. The chunk is gone soon after an error.
    ///
    /// # Safety
    ///
    /// The caller must hold the lock of the memory of the process, `mm`, for reading at least. The
    /// range must be as long as the chunk, which was not migrated to before.
    pub(super) unsafe fn migrate(
        self: Arc<Self>,
        mm: *mut bindings::mm_struct,
        range: Range<usize>,
    ) -> Result {
        // No time for which a fault by the CPU would wait, and no pages of other devices.
        let details = bindings::drm_pagemap_migrate_details::default();
        // SAFETY: The pointer is that of a chunk.
        let devmem = Opaque::cast_into(unsafe { &raw const (*Arc::into_raw(self)).raw });

        // SAFETY: The call takes over the reference, as all operations are there.
        to_result(unsafe {
            bindings::drm_pagemap_migrate_to_devmem(devmem, mm, range.start, range.end, &details)
        })
    }

    /// Moves all of the memory back to the processes that have it.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if some of it is in use just now.
    /// - `ENOMEM` if memory runs out, and what the copy returns.
    pub(super) fn evict(&self) -> Result {
        // SAFETY: The chunk is valid, and the C code takes no reference of it.
        to_result(unsafe { bindings::drm_pagemap_evict_to_ram(self.raw.get()) })
    }

    /// # Safety
    ///
    /// `raw` must be that of a chunk.
    unsafe fn from_raw(raw: *mut bindings::drm_pagemap_devmem) -> *mut Self {
        let raw = Opaque::cast_from(raw).cast_mut();

        // SAFETY: As the caller promises.
        unsafe { crate::container_of!(raw, Self, raw) }
    }
}

impl WorkItem for Chunk {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // SAFETY: By the type invariant.
        unsafe { this.base.as_ref() }.remove(&this);
        // The allocation goes with the last reference, here or where the chunk is evicted.
    }
}

/// Releases a chunk of which no page is in use any more. May be called in any context.
///
/// # Safety
///
/// Called by the C code, once, with the structure of a [`Chunk`] that it got by [`Chunk::migrate`].
pub(super) unsafe extern "C" fn release(raw: *mut bindings::drm_pagemap_devmem) {
    // SAFETY: The C code gives up the reference that `Chunk::migrate()` gave it.
    let chunk = unsafe { Arc::from_raw(Chunk::from_raw(raw)) };
    let base = chunk.base;

    // SAFETY: `base` waits for the chunk, and so for this work.
    let queue = unsafe { base.as_ref() }.queue();
    // A chunk that is on the queue already is released by that.
    let _ = queue.enqueue(chunk);
}

/// Tells which page frames a chunk has.
///
/// # Safety
///
/// Called by the C code with the structure of a [`Chunk`], and an array of `npages` elements.
pub(super) unsafe extern "C" fn populate(
    raw: *mut bindings::drm_pagemap_devmem,
    npages: c_ulong,
    pfns: *mut c_ulong,
) -> c_int {
    // SAFETY: The C code has a reference to the chunk.
    let chunk = unsafe { &*Chunk::from_raw(raw) };
    if npages != chunk.count {
        return EINVAL.to_errno();
    }

    // SAFETY: By the type invariant of the chunk.
    let first = unsafe { chunk.base.as_ref() }.pages().pfn(chunk.first);
    for index in 0..npages {
        // SAFETY: The array has as many elements.
        unsafe { pfns.add(index).write(first + index) };
    }
    0
}

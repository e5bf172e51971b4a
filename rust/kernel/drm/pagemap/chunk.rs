// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of a device used in place of a piece of the memory of a process.

use super::base::Base;
use crate::{
    bindings,
    drm::vram::dma_device,
    error::to_result,
    page::PAGE_SIZE,
    pm::RuntimeGuard,
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

/// The maximum size of memory migrated at once.
///
/// With pages of 4 KiB a folio of this size is one page table entry.
pub(super) const LARGEST: usize = if PAGE_SIZE > crate::sizes::SZ_2M {
    PAGE_SIZE
} else {
    crate::sizes::SZ_2M
};

/// Returns the size of the largest chunk beginning at the address `at` and not reaching beyond
/// `end`. The size is a power of two and `at` is a multiple of it. `end` is above `at`.
///
/// Both are multiples of the page size.
pub(super) fn largest(at: usize, end: usize) -> usize {
    let room = end.saturating_sub(at).max(PAGE_SIZE);
    let fits = 1 << (usize::BITS - 1 - room.leading_zeros());
    let aligned = 1 << at.trailing_zeros().min(usize::BITS - 1);

    LARGEST.min(fits).min(aligned)
}

/// A chunk: memory of the device used for the memory of a process.
///
/// One reference belongs to the C code from the call of `drm_pagemap_migrate_to_devmem()` until it
/// calls [`release`]. Then a worker puts the reference of [`Base`] and thus drops the allocation.
///
/// # Invariants
///
/// - `base` is valid: it waits for its chunks before it is dropped.
/// - The pages `first..first + count` belong to `alloc` and to no other chunk.
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
    /// A runtime PM guard: the CPU accesses the memory in contexts where the device cannot be
    /// resumed. Other devices access it without asking.
    _runtime_guard: RuntimeGuard,
    #[pin]
    work: Work<Chunk>,
}

impl_has_work! {
    impl HasWork<Self> for Chunk { self.work }
}

// SAFETY: The C structure is constant except for a completion and a time. The rest may be used from
// any task.
unsafe impl Send for Chunk {}

// SAFETY: As for `Send`.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Creates a chunk of the memory of `alloc` with the pages from `first` on.
    ///
    /// # Safety
    ///
    /// `base` must be valid until the chunk is gone. `ops` must be that of a
    /// [`Driver`](super::Driver) with the functions of this file.
    // Not inlined, so that the lock class of the work and its name stay in the kernel crate.
    #[inline(never)]
    pub(super) unsafe fn new(
        base: &Base,
        first: usize,
        count: usize,
        (alloc, runtime_guard): (KBox<dyn Send + Sync>, RuntimeGuard),
        ops: &'static bindings::drm_pagemap_devmem_ops,
    ) -> Result<Arc<Self>> {
        let dpagemap = base.as_raw();
        // SAFETY: The DRM device is valid and keeps its DMA device while `base` is.
        let dev = unsafe { dma_device((*dpagemap).drm) }.as_raw();
        let init = |raw: *mut bindings::drm_pagemap_devmem| {
            // SAFETY: `raw` is memory for the structure. Everything it points to is valid as long
            // as the chunk. The device is too, because the copies are over when its driver is
            // unbound.
            unsafe {
                raw.write_bytes(0, 1);
                bindings::drm_pagemap_devmem_init(
                    raw,
                    dev,
                    ops,
                    dpagemap,
                    // OVERFLOW: The size is at most `LARGEST`.
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
                _runtime_guard: runtime_guard,
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
        // OVERFLOW: By the type invariant both are numbers of existing pages.
        self.first + self.count
    }

    /// Returns the size in bytes.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        // OVERFLOW: The size is at most `LARGEST`.
        (self.count * PAGE_SIZE) as u64
    }

    /// Returns the number of the chunk in the order of creation.
    #[inline]
    pub(super) fn age(&self) -> u64 {
        self.age.load(Relaxed)
    }

    /// Sets the number returned by [`Self::age`]. No other code may know the chunk yet.
    #[inline]
    pub(super) fn set_age(&self, age: u64) {
        self.age.store(age, Relaxed);
    }

    /// Moves the memory of a process at `range` here. On an error the chunk is released soon.
    ///
    /// # Safety
    ///
    /// The caller must hold the `mmap_lock` of the process `mm` for reading at least. The range
    /// must be as long as the chunk. Nothing may have been migrated to the chunk before.
    pub(super) unsafe fn migrate(
        self: Arc<Self>,
        mm: *mut bindings::mm_struct,
        range: Range<usize>,
    ) -> Result {
        // The CPU does not wait for the memory at a fault. No pages of other devices are migrated.
        let details = bindings::drm_pagemap_migrate_details::default();
        // SAFETY: The pointer is that of a chunk.
        let devmem = Opaque::cast_into(unsafe { &raw const (*Arc::into_raw(self)).raw });

        // SAFETY: The call takes over the reference, because all operations are set.
        to_result(unsafe {
            bindings::drm_pagemap_migrate_to_devmem(devmem, mm, range.start, range.end, &details)
        })
    }

    /// Moves all of the memory back to the processes owning it.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if some of it is in use just now.
    /// - `ENOMEM` if memory runs out, and the error of the copy.
    pub(super) fn evict(&self) -> Result {
        // SAFETY: The chunk is valid and the C code takes no reference to it.
        to_result(unsafe { bindings::drm_pagemap_evict_to_ram(self.raw.get()) })
    }

    /// # Safety
    ///
    /// `raw` must belong to a chunk.
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
        // The allocation is dropped with the last reference here or where the chunk is evicted.
    }
}

/// Releases a chunk without pages in use. May be called in any context.
///
/// # Safety
///
/// Called once by the C code with the structure of a [`Chunk`] passed to it by [`Chunk::migrate`].
pub(super) unsafe extern "C" fn release(raw: *mut bindings::drm_pagemap_devmem) {
    // SAFETY: The C code gives up the reference passed to it by `Chunk::migrate()`.
    let chunk = unsafe { Arc::from_raw(Chunk::from_raw(raw)) };
    let base = chunk.base;

    // SAFETY: `base` waits for the chunk and thus for this work.
    let queue = unsafe { base.as_ref() }.queue();
    // If the chunk is on the queue already, that work releases it.
    let _ = queue.enqueue(chunk);
}

/// Returns the page frames of a chunk.
///
/// # Safety
///
/// Called by the C code with the structure of a [`Chunk`] and an array of `npages` elements.
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
        // SAFETY: The array has this many elements.
        unsafe { pfns.add(index).write(first + index) };
    }
    0
}

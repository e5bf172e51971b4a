// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The part common to all drivers.
//!
//! # Locking
//!
//! The list of chunks has a mutex. It is taken inside the `mmap_lock` of a process and inside
//! reservations. No other lock is taken while it is held.

use super::chunk::Chunk;
use crate::{
    bindings,
    drm::{
        vram::dma_device,
        workqueue::OwnedQueue, //
    },
    error::to_result,
    mm::{
        pagemap::PrivatePages,
        virt::{
            flags,
            vm_flags_t,
            VmaRef, //
        }, //
    },
    new_mutex,
    page::PAGE_SIZE,
    pm::RuntimeGuard,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Completion,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    types::Opaque, //
};
use core::ops::Range;

/// Areas with one of these flags are mappings of a driver, `VM_SPECIAL`.
const VM_SPECIAL: vm_flags_t = flags::IO | flags::DONTEXPAND | flags::PFNMAP | flags::MIXEDMAP;

/// How many attempts to move everything back are made before a message is logged. They are a
/// millisecond apart.
const PATIENCE: u32 = 10_000;

/// The existing chunks.
struct Chunks {
    /// The chunks by the number of their first page.
    by_page: RBTree<usize, Arc<Chunk>>,
    /// The chunks in the order of their creation: see [`Chunk::age`].
    by_age: RBTree<u64, Arc<Chunk>>,
    /// The number of the next chunk.
    next: u64,
}

// Not inlined, so that the lock class and its name stay in the kernel crate.
#[inline(never)]
fn new_chunks() -> Result<Pin<KBox<Mutex<Chunks>>>> {
    let chunks = Chunks {
        by_page: RBTree::new(),
        by_age: RBTree::new(),
        next: 0,
    };

    KBox::pin_init(new_mutex!(chunks, "drm::pagemap::Base::chunks"), GFP_KERNEL)
}

/// The C structure and the initial reference to it.
///
/// The C code takes a reference to the module of the driver. This reference would prevent unloading
/// the module while a device is bound. So it is put early and taken again before the C code puts
/// it. The module stays until then, because the driver waits for this put when it is unbound.
///
/// # Invariants
///
/// `raw` was initialized and its first reference was not put.
#[pin_data(PinnedDrop)]
struct Handle {
    #[pin]
    raw: Opaque<bindings::drm_pagemap>,
    /// Completed when all references were put.
    #[pin]
    released: Completion,
}

#[pinned_drop]
impl PinnedDrop for Handle {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant. The module is loaded, because its code has created the
        // device and is waiting for this function.
        unsafe {
            bindings::__module_get(module((*self.raw.get()).drm));
            bindings::drm_pagemap_put(self.raw.get());
        }
        // Each chunk had a reference and all chunks are gone. So this does not wait for long.
        self.released.wait_for_completion();
        // SAFETY: The function has no requirements. It waits for the worker putting references.
        unsafe { bindings::drm_pagemap_flush() };
    }
}

/// Returns the module of the driver of a DRM device or null if it is built in.
///
/// # Safety
///
/// `drm` must be valid.
unsafe fn module(drm: *mut bindings::drm_device) -> *mut bindings::module {
    // SAFETY: A valid device has a driver. The driver and its file operations are static.
    unsafe { (*(*(*drm).driver).fops).owner }
}

/// Initializes the C structure without a reference to the module.
///
/// # Errors
///
/// `ENODEV` if the module is being unloaded. Also returns the errors of `drm_pagemap_init()`.
///
/// # Safety
///
/// As for `drm_pagemap_init()`. The structure must be released by [`Handle`].
unsafe fn init_without_module(
    raw: *mut bindings::drm_pagemap,
    pgmap: *mut bindings::dev_pagemap,
    drm: *mut bindings::drm_device,
    ops: &'static bindings::drm_pagemap_ops,
) -> Result {
    // SAFETY: As the caller promises. The C code does not check whether it gets its reference to
    // the module. It can get one, because there is one already.
    unsafe {
        let module = module(drm);

        if !bindings::try_module_get(module) {
            return Err(ENODEV);
        }
        let result = to_result(bindings::drm_pagemap_init(raw, pgmap, drm, ops));
        if result.is_ok() {
            bindings::module_put(module);
        }
        bindings::module_put(module);
        result
    }
}

/// Reports that all references were put. May be called in any context. The memory belongs to
/// [`Base`].
///
/// # Safety
///
/// Called by the C code with the structure of a [`Handle`] when its last reference is put.
pub(super) unsafe extern "C" fn destroy(dpagemap: *mut bindings::drm_pagemap, _is_atomic: bool) {
    let raw = Opaque::cast_from(dpagemap).cast_mut();

    // SAFETY: The operations are for a `Handle` only. It waits for this.
    let handle = unsafe { &*crate::container_of!(raw, Handle, raw) };

    handle.released.complete_all();
}

/// The pages of a device and the chunks owning some of them.
///
/// Dropping it moves everything back. The fields are dropped in this order: the pages, once none is
/// in use; the reference of the C code to the device and its module; and the queue.
#[pin_data(PinnedDrop)]
pub(super) struct Base {
    #[pin]
    pages: PrivatePages,
    #[pin]
    handle: Handle,
    chunks: Pin<KBox<Mutex<Chunks>>>,
    /// How many bytes belong to chunks.
    held: Atomic<u64>,
    /// How many pages were moved back.
    moved_back: Atomic<u64>,
    queue: OwnedQueue,
}

// SAFETY: The C structures have locks of their own or are constant.
unsafe impl Send for Base {}

// SAFETY: As for `Send`.
unsafe impl Sync for Base {}

impl Base {
    /// Creates the pages of `size` bytes of memory of `drm`.
    ///
    /// # Errors
    ///
    /// The errors of [`PrivatePages::new`].
    ///
    /// # Safety
    ///
    /// `drm` must be valid. `page_ops` must have the functions of the DRM core and a function
    /// `p2p_page`. `ops` must have [`destroy`] and a populate function.
    pub(super) unsafe fn new(
        drm: *mut bindings::drm_device,
        page_ops: bindings::dev_pagemap_ops,
        ops: &'static bindings::drm_pagemap_ops,
        size: usize,
    ) -> Result<impl PinInit<Self, Error>> {
        let chunks = new_chunks()?;
        // Memory allocations may wait for the work freeing chunks.
        let queue = OwnedQueue::new(c"drm_pagemap", true)?;
        // SAFETY: As the caller promises. The DRM device keeps its parent.
        let nid = unsafe { bindings::dev_to_node((*drm).dev) };
        // SAFETY: The functions of the DRM core are for pages to which it migrates. All of these
        // pages are.
        let pages = unsafe { PrivatePages::new(page_ops, size, nid, c"drm_pagemap") }?;

        Ok(try_pin_init!(&this in Self {
            pages <- pages,
            handle <- {
                // SAFETY: `this` is the memory of the value and its pages were just initialized.
                let pagemap = unsafe { &(*this.as_ptr()).pages }.as_raw();

                try_pin_init!(Handle {
                    raw <- Opaque::try_ffi_init(move |raw| {
                        // SAFETY: `raw` is memory for the structure and the pages stay where they
                        // are. The device is valid and the operations are static.
                        unsafe { init_without_module(raw, pagemap, drm, ops) }
                    }),
                    released <- Completion::new(),
                }? Error)
            },
            chunks,
            held: Atomic::new(0),
            moved_back: Atomic::new(0),
            queue,
        }? Error))
    }

    /// Returns the C structure.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::drm_pagemap {
        self.handle.raw.get()
    }

    /// Returns the value owning a C structure.
    ///
    /// # Safety
    ///
    /// `raw` must belong to such a value.
    pub(super) unsafe fn from_raw(raw: *mut bindings::drm_pagemap) -> *mut Self {
        let raw = Opaque::cast_from(raw).cast_mut();

        // SAFETY: As the caller promises.
        unsafe {
            let handle = crate::container_of!(raw, Handle, raw);

            crate::container_of!(handle, Self, handle)
        }
    }

    /// Returns the value owning the pages of `pgmap`.
    ///
    /// # Safety
    ///
    /// `pgmap` must belong to such a value.
    #[inline]
    pub(super) unsafe fn from_pgmap(pgmap: *mut bindings::dev_pagemap) -> *mut Self {
        // SAFETY: As the caller promises.
        unsafe { crate::container_of!(PrivatePages::from_raw(pgmap), Self, pages) }
    }

    #[inline]
    pub(super) fn pages(&self) -> &PrivatePages {
        &self.pages
    }

    #[inline]
    pub(super) fn queue(&self) -> &OwnedQueue {
        &self.queue
    }

    /// Returns how many bytes belong to chunks.
    #[inline]
    pub(super) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Returns how many bytes of the pages `range` belong to chunks.
    pub(super) fn held_in(&self, range: &Range<usize>) -> u64 {
        if range.start == 0 && range.end >= self.pages.count() {
            return self.held();
        }

        let chunks = self.chunks.lock();
        let pages: usize = chunks
            .by_page
            .values()
            .map(|chunk| {
                let end = chunk.end().min(range.end);

                end.saturating_sub(chunk.first().max(range.start))
            })
            .sum();

        (pages * PAGE_SIZE) as u64
    }

    /// Returns how many pages were moved back.
    #[inline]
    pub(super) fn moved_back(&self) -> u64 {
        self.moved_back.load(Relaxed)
    }

    /// Counts pages moved back.
    pub(super) fn count_moved_back(&self, pages: u64) {
        self.moved_back.fetch_add(pages, Relaxed);
    }

    /// Returns the number of the next chunk: see [`Chunk::age`].
    pub(super) fn now(&self) -> u64 {
        self.chunks.lock().next
    }

    /// Returns the end of the area of a process containing the address `at`. Also returns whether
    /// the area is private anonymous memory, because no other memory can be migrated.
    ///
    /// # Errors
    ///
    /// `EFAULT` if there is no such area.
    ///
    /// # Safety
    ///
    /// The caller must hold the `mmap_lock` of the process at least for reading.
    pub(super) unsafe fn area(mm: *mut bindings::mm_struct, at: usize) -> Result<(usize, bool)> {
        // SAFETY: As the caller promises.
        let area = unsafe { bindings::vma_lookup(mm, at) };

        if area.is_null() {
            return Err(EFAULT);
        }
        // SAFETY: The area stays while the lock is held.
        unsafe {
            let special = VmaRef::from_raw(area).flags() & VM_SPECIAL;

            Ok((
                VmaRef::from_raw(area).end(),
                (*area).vm_ops.is_null() && special == 0,
            ))
        }
    }

    /// Moves `size` bytes of the memory of a process from the address `at` on to `offset` of the
    /// memory of the device, where they belong to `alloc`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `offset` is not a multiple of `size` or not inside the memory of the device.
    /// - `EEXIST` if another chunk has a part of it.
    /// - `EBUSY` if not all of the memory of the process can move or if it has just moved.
    /// - `EAGAIN` if the device is suspended.
    /// - `ENOMEM` if memory runs out, and the error of the copy.
    ///
    /// # Safety
    ///
    /// The caller must hold the `mmap_lock` of the process at least for reading. For `ops` see
    /// [`Chunk::new`]. `size` must be that of a chunk.
    pub(super) unsafe fn migrate(
        &self,
        mm: *mut bindings::mm_struct,
        at: usize,
        size: usize,
        offset: u64,
        alloc: KBox<dyn Send + Sync>,
        ops: &'static bindings::drm_pagemap_devmem_ops,
    ) -> Result {
        let offset = usize::try_from(offset)?;
        let (first, count) = (offset / PAGE_SIZE, size / PAGE_SIZE);
        let end = first.checked_add(count).ok_or(EINVAL)?;

        // A size is a power of two.
        if offset & size.wrapping_sub(1) != 0 || end > self.pages.count() {
            return Err(EINVAL);
        }
        // The caller keeps the device active meanwhile.
        // SAFETY: The DRM device is valid and keeps its DMA device.
        let runtime_guard =
            RuntimeGuard::if_active(unsafe { dma_device((*self.as_raw()).drm) }).ok_or(EAGAIN)?;
        // SAFETY: The value waits for its chunks. All else is as the caller promises.
        let chunk = unsafe { Chunk::new(self, first, count, (alloc, runtime_guard), ops) }?;

        self.insert(&chunk)?;
        // SAFETY: As the caller promises. The chunk is new.
        unsafe { chunk.migrate(mm, at..at.wrapping_add(size)) }
    }

    fn insert(&self, chunk: &Arc<Chunk>) -> Result {
        let node = RBTreeNode::new(chunk.first(), chunk.clone(), GFP_KERNEL)?;
        let room = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let mut chunks = self.chunks.lock();

        // A page must not be initialized twice even if the driver allocates wrongly.
        if find(&chunks.by_page, chunk.end() - 1).is_some_and(|before| before.end() > chunk.first())
        {
            drop(chunks);
            return Err(EEXIST);
        }
        let age = chunks.next;

        chunks.next += 1;
        chunk.set_age(age);
        chunks.by_page.insert(node);
        chunks.by_age.insert(room.into_node(age, chunk.clone()));
        self.held.fetch_add(chunk.len(), Relaxed);
        Ok(())
    }

    /// Removes a chunk without pages in use.
    pub(super) fn remove(&self, chunk: &Arc<Chunk>) {
        let nodes = {
            let mut chunks = self.chunks.lock();

            self.held.fetch_sub(chunk.len(), Relaxed);
            (
                chunks.by_page.remove_node(&chunk.first()),
                chunks.by_age.remove_node(&chunk.age()),
            )
        };

        // Dropped after the lock is released.
        drop(nodes);
    }

    /// Moves back the chunk containing page `index` if there is one.
    ///
    /// # Errors
    ///
    /// The errors of [`Chunk::evict`].
    pub(super) fn evict(&self, index: usize) -> Result {
        let found = find(&self.chunks.lock().by_page, index).cloned();

        match found {
            Some(chunk) if chunk.end() > index => chunk.evict(),
            _ => Ok(()),
        }
    }

    /// Moves back the oldest chunks with pages in `range` until these had `bytes` bytes. Only
    /// chunks older than the chunk with the number `until` are moved. Chunks in use stay. Returns
    /// how many bytes the moved chunks had.
    pub(super) fn evict_oldest(&self, range: &Range<usize>, until: u64, bytes: u64) -> u64 {
        let (mut freed, mut next) = (0, 0);

        while freed < bytes {
            let found = {
                let chunks = self.chunks.lock();
                let cursor = chunks.by_age.cursor_lower_bound(&next);

                cursor.map(|cursor| cursor.current().1.clone())
            };
            let Some(chunk) = found.filter(|chunk| chunk.age() < until) else {
                break;
            };

            next = chunk.age() + 1;
            if chunk.first() >= range.end || chunk.end() <= range.start {
                continue;
            }
            if chunk.evict().is_ok() {
                freed += chunk.len();
            }
        }
        self.queue.flush();
        freed
    }

    /// Moves back all chunks and waits until they are released. Returns whether all of them are.
    /// Some may be in use or new.
    pub(super) fn try_evict_all(&self) -> bool {
        self.evict_oldest(&(0..usize::MAX), u64::MAX, u64::MAX);
        self.chunks.lock().by_page.is_empty()
    }

    /// Moves back all chunks and waits until the last one is released.
    ///
    /// The caller prevents new chunks. If a page cannot be moved, the move is retried until it
    /// succeeds or the page is freed.
    fn evict_all(&self) {
        let mut attempts: u32 = 0;

        while !self.try_evict_all() {
            attempts = attempts.saturating_add(1);
            if attempts == PATIENCE {
                // SAFETY: The DRM device is valid and keeps its DMA device.
                let dev = unsafe { dma_device((*self.as_raw()).drm) };

                dev_warn!(
                    dev,
                    "{} KiB of memory of processes cannot be moved back, the unbind waits\n",
                    self.held() / crate::sizes::SZ_1K as u64
                );
            }
            fsleep(Delta::from_millis(1));
        }
        // This waits for chunks being released while the list was checked.
        self.queue.flush();
    }
}

/// Returns the last chunk beginning at or before page `index`.
fn find(chunks: &RBTree<usize, Arc<Chunk>>, index: usize) -> Option<&Arc<Chunk>> {
    match chunks.cursor_lower_bound(&index) {
        Some(cursor) => {
            let found = chunks.get(&index);
            let before = cursor.peek_prev().map(|(first, _)| *first);

            found.or_else(|| chunks.get(&before?))
        }
        None => chunks.cursor_back().and_then(|cursor| {
            let last = *cursor.current().0;

            chunks.get(&last)
        }),
    }
}

#[pinned_drop]
impl PinnedDrop for Base {
    fn drop(self: Pin<&mut Self>) {
        self.evict_all();
    }
}

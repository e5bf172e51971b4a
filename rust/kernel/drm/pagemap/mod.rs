// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Device-private memory: memory of a device used in place of memory of a process.
//!
//! A driver with a [`Registration`] migrates pieces of the anonymous memory of a process to the
//! memory of its device by [`migrate()`]. The process keeps its addresses, but its page table
//! entries name device-private pages. An access by the CPU faults and moves the piece back. If the
//! driver needs the memory, it moves pieces back by [`PageMap::evict`]. Dropping the registration
//! moves everything back.
//!
//! A piece is called a chunk. Its size is a power of two from 4 KiB to 2 MiB. It is within one area
//! of the process and its address is a multiple of its size. The allocation for it,
//! [`Driver::alloc`], is contiguous and has the same alignment in the memory of the device. A work
//! item drops the allocation once no page of it is in use: all of it has moved back or the process
//! has freed it. After a `fork()` several processes may have a page.
//!
//! If the memory is visible in a BAR with struct pages, [`BarPages`], each device-private page has
//! an alias. Other PCI devices access the page by the alias without a move: see [`P2pPage`].
//!
//! Chunks are small where a range is not aligned or where VRAM is fragmented. A fault moves one
//! chunk back. Chunks and objects share no block of VRAM: both come from one allocator.
//!
//! # Adoption
//!
//! 1. The probe calls [`enable_p2pdma`] and [`add_p2pdma_pages`]. [`take_pages`] follows before the
//!    DRM device is registered. These pages of the BAR are optional: [`take_pages`] fails with
//!    `EBUSY` if root has mapped some of them through sysfs already.
//! 2. The driver implements [`Driver`]. Without an engine its copies are [`Segments::copy_by_cpu`].
//!    With TTM [`Driver::alloc`] calls `gem::ttm::Device::alloc_block()`. [`Driver::make_room`]
//!    calls `gem::ttm::Device::make_room()`. `TtmObject::reclaim()` returns the [`PageMap`].
//! 3. The registration data have a [`Registration`].
//! 4. An ioctl calls [`migrate()`].
//!
//! An unbind unplugs the DRM device. No memory migrates any more. The drop of the [`Registration`]
//! follows while the driver is still bound. All memory moves back even if its process has exited
//! and only a child has a copy. Then the allocations are dropped and the device-private pages are
//! removed. The pages of the BAR come last.
//!
//! `drivers/gpu/drm/vvram/svm.rs` is an example.
//!
//! [`add_p2pdma_pages`]: crate::pci::Device::add_p2pdma_pages
//! [`enable_p2pdma`]: crate::pci::Device::enable_p2pdma
//! [`take_pages`]: crate::pci::p2pdma::Provider::take_pages
//!
//! # Contexts and locking
//!
//! All of these may sleep, except for the last one:
//!
//! | called | with |
//! |---|---|
//! | [`Driver::alloc`], [`Driver::make_room`] | the mmap lock of the process, for reading |
//! | [`Driver::copy_to_dev`] | the same, and the locks of the folios |
//! | [`Driver::copy_to_ram`] | the locks of the folios; the mmap lock if the CPU faults |
//! | drop of [`Driver::Alloc`] | nothing, in a work item; the mmap lock if a migration fails |
//! | [`P2pPage`] | maybe the RCU read lock: this is not code of a driver |
//!
//! The locks have the order of a page fault: the mmap lock before reservations before the locks of
//! folios. An eviction only tries to lock folios.
//!
//! The copies take no lock held during page faults or reclaim, such as a reservation. Migrations,
//! evictions, [`PageMap::flush`] and an unbind wait for the work item with the locks of their
//! callers held. So the drop of an allocation takes no lock of such a caller and no lock under
//! which user memory is accessed.
//!
//! # Sharing
//!
//! If objects use the same memory, the driver connects the two. Objects get space from a
//! [`PageMap`], which is a [`Reclaim`]. Chunks get it by [`Driver::make_room`]. Jobs may still read
//! memory left by objects, so [`ttm::Device::alloc_block`] waits for these jobs. See [`Reclaim`]
//! for the policy. Chunks are evicted in the order of their creation, because their accesses are
//! unknown.
//!
//! # Power management
//!
//! The device is kept active as long as there is a chunk. A fault by the CPU cannot resume it,
//! because the resume callbacks take locks held by the fault. Other devices do not ask before they
//! access an alias. Before the system sleeps a driver moves everything back by
//! [`PageMap::evict_all`]. Before a driver resets its device it drops the [`Registration`] while
//! the memory still has its content.
//!
//! # Examples
//!
//! The driver of a device with all of its memory visible in a BAR. Its copies are no faster than
//! the CPU:
//!
//! ```
//! use kernel::{
//!     drm::{
//!         self,
//!         pagemap::{
//!             self,
//!             Segments, //
//!         },
//!         vram::{
//!             Allocation,
//!             Allocator,
//!             BarMapping, //
//!         }, //
//!     },
//!     prelude::*,
//!     sync::Arc, //
//! };
//! # use core::marker::PhantomData;
//!
//! struct Memory<'a> {
//!     vram: Arc<Allocator>,
//!     window: BarMapping<'a>,
//! }
//!
//! struct Svm<D>(PhantomData<fn() -> D>);
//!
//! impl<D: drm::Driver + 'static> pagemap::Driver for Svm<D> {
//!     type Drm = D;
//!     type Data<'a> = Memory<'a>;
//!     type Alloc = Allocation;
//!     type View = pagemap::Linear;
//!
//!     fn alloc(
//!         _drm: &drm::Device<D>,
//!         memory: &Memory<'_>,
//!         size: usize,
//!     ) -> Result<Allocation> {
//!         memory.vram.alloc_block(size)
//!     }
//!
//!     fn offset(alloc: &Allocation) -> Option<u64> {
//!         alloc.ranges().offset(0)
//!     }
//!
//!     fn copy_to_dev(memory: &Memory<'_>, segments: Segments<'_>) -> Result {
//!         segments.copy_by_cpu(&memory.window, Some)
//!     }
//!
//!     fn copy_to_ram(memory: &Memory<'_>, segments: Segments<'_>) -> Result {
//!         segments.copy_by_cpu(&memory.window, Some)
//!     }
//! }
//! ```
//!
//! C header: [`include/drm/drm_pagemap.h`](srctree/include/drm/drm_pagemap.h)
//!
//! [`BarPages`]: crate::pci::p2pdma::BarPages
//! [`ttm::Device::alloc_block`]: drm::gem::ttm::Device::alloc_block

mod base;
mod chunk;
mod cpu;
mod registration;
mod segments;
mod view;

pub use self::{
    registration::Registration,
    segments::{
        Direction,
        Peer,
        Segment,
        Segments, //
    },
    view::{
        Linear,
        P2pPage,
        Visible, //
    }, //
};

use self::base::Base;
use crate::{
    bindings,
    drm::{
        self,
        devres::while_registered,
        vram::{
            dma_device,
            fair_share,
            Reclaim, //
        }, //
    },
    error::from_result,
    mm::Mm,
    page::PAGE_SIZE,
    pci::p2pdma::BarPages,
    pm::RuntimeGuard,
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use core::{
    ops::Range,
    ptr,
    slice, //
};

/// The registration data of the DRM driver of `T`.
type RegistrationData<'a, T> = <<T as Driver>::Drm as drm::Driver>::RegistrationData<'a>;

/// How many attempts to allocate a chunk are made before smaller ones are tried.
const ATTEMPTS: usize = 3;

/// How many attempts to move everything back are made. They are a millisecond apart.
const EVICT_ATTEMPTS: usize = 1000;

/// A driver of a device with device-private memory.
pub trait Driver: Sized + Send + Sync + 'static {
    /// The DRM driver of the device.
    type Drm: drm::Driver;

    /// The data for the functions of this trait, such as the allocator and the copy engine. It may
    /// borrow from the bound device and not from itself: the functions get it for a shorter time.
    type Data<'a>: Send + Sync + 'a;

    /// A contiguous allocation in the memory of the device. It is freed when the value is dropped.
    type Alloc: Send + Sync + 'static;

    /// The BAR regions where the memory is visible.
    type View: P2pPage;

    /// Allocates `size` bytes at a multiple of `size`, which is a power of two.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no such piece. Then other users make room or smaller pieces are tried.
    /// Any other error is returned as the error of the migration.
    fn alloc(
        drm: &drm::Device<Self::Drm>,
        data: &Self::Data<'_>,
        size: usize,
    ) -> Result<Self::Alloc>;

    /// Asks other users of the memory of the device to free `bytes` of it. Returns whether these
    /// are free. If not, older device-private memory is evicted.
    ///
    /// Called with the mmap lock of a process held for reading if device-private memory has less
    /// than its half. A driver with objects calls [`ttm::Device::make_room`].
    ///
    /// # Errors
    ///
    /// An error of a signal is returned as the error of the migration. With any other error, older
    /// device-private memory is evicted.
    ///
    /// [`ttm::Device::make_room`]: drm::gem::ttm::Device::make_room
    fn make_room(drm: &drm::Device<Self::Drm>, bytes: u64) -> Result<bool> {
        let _ = (drm, bytes);
        Ok(false)
    }

    /// Returns the offset in bytes of an allocation in the memory of the device. It must not
    /// change.
    ///
    /// Returns [`None`] if it is not in that memory. Then the migration fails with `EINVAL`.
    fn offset(alloc: &Self::Alloc) -> Option<u64>;

    /// Copies from system memory to the memory of the device. When this returns, the copy is
    /// complete and visible to other devices.
    ///
    /// # Errors
    ///
    /// After any error the memory does not migrate.
    fn copy_to_dev(data: &Self::Data<'_>, segments: Segments<'_>) -> Result;

    /// Copies from the memory of the device to system memory. The copy is complete when this
    /// returns.
    ///
    /// The device may be unplugged, but its driver is still bound.
    ///
    /// # Errors
    ///
    /// If an access of a process has caused the copy, the process gets `SIGBUS` after any error. An
    /// unbind retries until the copy succeeds. So if the engine is gone, the driver copies by the
    /// CPU or fills the memory.
    fn copy_to_ram(data: &Self::Data<'_>, segments: Segments<'_>) -> Result;
}

/// Migrates the memory of a process at the addresses `range` to the device `drm`. `range` consists
/// of whole pages.
///
/// `of` returns the value of the device and is called for each piece. The call takes the
/// `mmap_lock` of the process. Under this lock a fault may wait for userspace. An unplug of any
/// device waits for all entered sections. So the call enters the section after it has the lock, and
/// the caller must not be in one.
///
/// Memory not yet accessed by the process is zero on the device. The memory may move back at any
/// time by an access of the CPU or an eviction. A caller needing it on the device has to check
/// again. May sleep. The caller must not hold the `mmap_lock` of a process.
///
/// # Errors
///
/// A part may have been moved when this fails.
///
/// - `EINVAL` if `range` is empty or does not consist of whole pages.
/// - `EOPNOTSUPP` if `of` returns [`None`].
/// - `EFAULT` if the process has no memory there, or has exited.
/// - `EBUSY` if some of it cannot move: it is not private anonymous memory, swapped out, in use by a
///   device, or would exceed the limit of its cgroup. The rest is moved.
/// - `ENOSPC` if there is no more space: all of the memory of the device is used by memory migrated
///   by this call or by immovable memory.
/// - `ENODEV` if the device is not registered any more.
/// - `EINTR` if the task is killed.
/// - `EIO` if system memory cannot be mapped for the device.
/// - `ENOMEM` if memory runs out, and the errors of [`Driver::alloc`], [`Driver::make_room`],
///   [`Driver::copy_to_dev`] and [`RuntimeGuard::new`].
pub fn migrate<T: Driver>(
    drm: &drm::Device<T::Drm>,
    of: impl for<'a, 'b> Fn(&'a RegistrationData<'b, T>) -> Option<&'a PageMap<T>>,
    mm: &Mm,
    range: Range<usize>,
) -> Result {
    let Range { mut start, end } = range;
    let mut result = Ok(());

    if start >= end || (start | end) % PAGE_SIZE != 0 {
        return Err(EINVAL);
    }
    let (_runtime_guard, since) = with_data::<T, _>(drm, |data| {
        let since = of(data).ok_or(EOPNOTSUPP)?.base.now();
        // SAFETY: The DRM device is valid and keeps its DMA device.
        let guard = RuntimeGuard::new(unsafe { dma_device(drm.as_raw()) })?;

        Ok((guard, since))
    })?;

    while start < end {
        // At most a chunk at a time, so that other tasks get the `mmap_lock`.
        let next = start
            .checked_add(1)
            .and_then(|at| at.checked_next_multiple_of(chunk::LARGEST))
            .unwrap_or(end)
            .min(end);

        let users = mm.mmget_not_zero().ok_or(EFAULT)?;
        let lock = users.mmap_read_lock_killable()?;
        // SAFETY: The `mmap_lock` is held.
        let (limit, can_move) = unsafe { Base::area(users.as_raw(), start) }?;
        if !can_move {
            // All of the area is left out at once, because it may be as large as the address space.
            drop(lock);
            result = Err(EBUSY);
            start = limit;
            continue;
        }
        let moved = with_data::<T, _>(drm, |data| {
            let pages = of(data).ok_or(EOPNOTSUPP)?;

            // SAFETY: The `mmap_lock` is held.
            unsafe { pages.populate(users.as_raw(), start, next, since) }
        });

        drop(lock);
        // SAFETY: The current task is valid.
        if unsafe { bindings::fatal_signal_pending(bindings::get_current()) } != 0 {
            return Err(EINTR);
        }
        match moved {
            Err(EBUSY) => result = Err(EBUSY),
            other => other?,
        }
        start = next;
    }
    result
}

/// Calls `f` with the registration data of a device.
///
/// # Errors
///
/// `ENODEV` if the device is not registered. Also returns the errors of `f`.
fn with_data<T: Driver, R>(
    drm: &drm::Device<T::Drm>,
    f: impl FnOnce(&RegistrationData<'_, T>) -> Result<R>,
) -> Result<R> {
    // SAFETY: The device is valid and of `T::Drm`.
    unsafe { while_registered::<T::Drm, _>(drm.as_raw(), f) }
}

/// The device-private memory of a device.
///
/// # Invariants
///
/// `base` has the operations of `T` and belongs to a value of this type. `data` and the pages of
/// the BAR do not outlive the data they borrow from.
// The base is dropped first, because it uses the other fields until then.
#[pin_data]
pub struct PageMap<T: Driver> {
    #[pin]
    base: Base,
    bar: Option<(BarPages<'static>, T::View)>,
    #[pin]
    data: T::Data<'static>,
}

// SAFETY: All fields are `Send` for any lifetime of the data.
unsafe impl<T: Driver> Send for PageMap<T> {}

// SAFETY: As for `Send`.
unsafe impl<T: Driver> Sync for PageMap<T> {}

impl<T: Driver> PageMap<T> {
    const MEMORY_OPS: bindings::drm_pagemap_devmem_ops = bindings::drm_pagemap_devmem_ops {
        devmem_release: Some(chunk::release),
        populate_devmem_pfn: Some(chunk::populate),
        copy_to_devmem: Some(Self::copy_to_devmem),
        copy_to_ram: Some(Self::copy_to_ram),
    };

    // Only pages of one owner are mapped for another device. Each value is an owner of its own.
    const OPS: bindings::drm_pagemap_ops = bindings::drm_pagemap_ops {
        device_map: None,
        device_unmap: None,
        populate_mm: Some(Self::populate_mm),
        destroy: Some(base::destroy),
    };

    /// Creates the pages of `size` bytes of memory of `drm`.
    ///
    /// # Safety
    ///
    /// `drm` must be valid and of `T::Drm`. The value must be dropped while all data borrowed by
    /// `bar` and `data` is still valid.
    unsafe fn new(
        drm: *mut bindings::drm_device,
        size: usize,
        bar: Option<(BarPages<'static>, T::View)>,
        data: impl PinInit<T::Data<'static>, Error>,
    ) -> Result<impl PinInit<Self, Error>> {
        // SAFETY: The DRM core returns its constant table.
        let mut ops = unsafe { ptr::read(bindings::drm_pagemap_pagemap_ops_get()) };

        if bar.is_some() {
            ops.p2p_page = Some(Self::p2p_page);
        }
        // SAFETY: The operations are those of the DRM core and of this type for a base in a value
        // of this type.
        let base = unsafe { Base::new(drm, ops, &Self::OPS, size) }?;

        // INVARIANT: As above and as the caller promises.
        Ok(try_pin_init!(Self {
            bar,
            data <- data,
            // Its pages are visible to other devices at once. These ask for the page of the BAR.
            base <- base,
        }? Error))
    }

    /// Moves the chunk at `offset` of the memory of the device back to the processes owning it.
    ///
    /// A work item drops its allocation, maybe before this returns. A missing chunk is no error.
    /// The caller must not hold a lock that a process may hold as it faults, such as the
    /// `mmap_lock`. May sleep.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if some of it is in use just now.
    /// - `ENOMEM` if memory runs out, and the errors of [`Driver::copy_to_ram`].
    pub fn evict(&self, offset: u64) -> Result {
        // There is no chunk behind the addressable memory.
        usize::try_from(offset).map_or(Ok(()), |at| self.base.evict(at / PAGE_SIZE))
    }

    /// Moves everything back and waits until the allocations have been dropped.
    ///
    /// For the system sleep callback of a driver, because otherwise a chunk prevents the suspend of
    /// the device. The caller must prevent processes from migrating memory to the device meanwhile.
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if some of it is still in use after many attempts.
    pub fn evict_all(&self) -> Result {
        for _ in 0..EVICT_ATTEMPTS {
            if self.base.try_evict_all() {
                return Ok(());
            }
            fsleep(Delta::from_millis(1));
        }
        Err(EBUSY)
    }

    /// Returns how many bytes of the memory of the device are allocated.
    #[inline]
    pub fn held(&self) -> u64 {
        self.base.held()
    }

    /// Returns how many pages have moved back by accesses of the CPU and by evictions.
    #[inline]
    pub fn moved_back(&self) -> u64 {
        self.base.moved_back()
    }

    /// Waits until unused allocations have been dropped. Sleeps. The caller must not hold a lock
    /// taken by this drop.
    pub fn flush(&self) {
        self.base.queue().flush();
    }

    /// Returns the C structure.
    #[inline]
    pub fn as_raw(&self) -> *mut bindings::drm_pagemap {
        self.base.as_raw()
    }

    fn data(&self) -> &T::Data<'_> {
        // SAFETY: By the type invariant all data borrowed by `self.data` is valid as long as the
        // value. Lifetimes do not change the layout.
        unsafe { &*ptr::from_ref(&self.data).cast() }
    }

    /// # Safety
    ///
    /// `base` must belong to a value of this type.
    unsafe fn from_base<'a>(base: *mut Base) -> &'a Self {
        // SAFETY: As the caller promises.
        unsafe { &*crate::container_of!(base, Self, base) }
    }

    /// Returns the DRM device.
    fn drm(&self) -> &drm::Device<T::Drm> {
        // SAFETY: By the type invariant of `Base` the device is valid and of `T::Drm`.
        unsafe { drm::Device::from_raw((*self.base.as_raw()).drm) }
    }

    /// Makes room for `size` bytes. Returns false if nothing could be evicted. Chunks stay if their
    /// number is `since` or above.
    fn make_room(&self, size: usize, since: u64) -> Result<bool> {
        let (bytes, all) = (size as u64, 0..self.base.pages().count());
        // OVERFLOW: The size of the memory has less than 64 bits.
        let is_below = self.held() + bytes <= fair_share(&(0..(all.end * PAGE_SIZE) as u64));

        if is_below {
            match T::make_room(self.drm(), bytes) {
                Ok(true) => return Ok(true),
                Err(e) if e == ERESTARTSYS || e == EINTR => return Err(e),
                // Non-evictable objects are skipped.
                _ => (),
            }
        }
        Ok(self.base.evict_oldest(&all, since, bytes) > 0)
    }

    /// Moves all movable memory in `start..end`. Returns the error of the last busy chunk. If there
    /// is no room, chunks with numbers below `since` may be evicted.
    ///
    /// # Safety
    ///
    /// The caller must hold the `mmap_lock` of the process at least for reading.
    unsafe fn populate(
        &self,
        mm: *mut bindings::mm_struct,
        start: usize,
        end: usize,
        since: u64,
    ) -> Result {
        let (mut at, mut result) = (start, Ok(()));

        while at < end {
            // SAFETY: As the caller promises.
            let (limit, can_move) = unsafe { Base::area(mm, at) }?;
            let limit = limit.min(end);
            if !can_move {
                result = Err(EBUSY);
                at = limit;
                continue;
            }
            let mut size = chunk::largest(at, limit);
            let mut attempt = 0;

            loop {
                // SAFETY: As the caller promises. The size is that of a chunk.
                match unsafe { self.populate_chunk(mm, at, size) } {
                    Ok(()) => break,
                    // Freed chunks may still be on the queue.
                    Err(ENOSPC) if attempt == 0 => {
                        self.flush();
                        attempt = 1;
                    }
                    Err(ENOSPC) if attempt < ATTEMPTS && self.make_room(size, since)? => {
                        attempt += 1;
                    }
                    // A part of it may move or has moved before. There may be room for smaller
                    // pieces.
                    Err(EBUSY | ENOSPC | ENOMEM) if size > PAGE_SIZE => {
                        size /= 2;
                        attempt = 1;
                    }
                    Err(EBUSY) => {
                        result = Err(EBUSY);
                        break;
                    }
                    Err(e) => return Err(e),
                }
            }
            // OVERFLOW: The sum is at most the end of the area.
            at += size;
        }
        result
    }

    /// # Safety
    ///
    /// As for [`Self::populate`]. `size` must be that of a chunk.
    unsafe fn populate_chunk(
        &self,
        mm: *mut bindings::mm_struct,
        at: usize,
        size: usize,
    ) -> Result {
        let alloc = T::alloc(self.drm(), self.data(), size)?;
        let offset = T::offset(&alloc).ok_or(EINVAL)?;
        let alloc = KBox::new(alloc, GFP_KERNEL)? as KBox<dyn Send + Sync>;

        // SAFETY: As the caller promises. The operations are those of this type.
        let migrated = unsafe {
            self.base
                .migrate(mm, at, size, offset, alloc, &Self::MEMORY_OPS)
        };
        // The process has memory at the address. So system memory could not be mapped for the
        // device.
        migrated.map_err(|e| if e == EFAULT { EIO } else { e })
    }

    /// # Safety
    ///
    /// Called by the C code with the structure of a [`PageMap<T>`]. The `mmap_lock` of the process
    /// is held.
    unsafe extern "C" fn populate_mm(
        dpagemap: *mut bindings::drm_pagemap,
        start: c_ulong,
        end: c_ulong,
        mm: *mut bindings::mm_struct,
        _timeslice_ms: c_ulong,
    ) -> c_int {
        // SAFETY: The structure belongs to a valid value.
        let this = unsafe { Self::from_base(Base::from_raw(dpagemap)) };
        let result = with_data::<T, _>(this.drm(), |_| {
            // SAFETY: The `mmap_lock` is held.
            unsafe { this.populate(mm, start, end, this.base.now()) }
        });

        from_result(|| result.map(|()| 0))
    }

    /// # Safety
    ///
    /// Called by the C code with arrays of `npages` elements. One has pages of a [`PageMap<T>`]
    /// locked by the C code, or null. The other has the source addresses.
    unsafe extern "C" fn copy_to_devmem(
        pages: *mut *mut bindings::page,
        addrs: *mut bindings::drm_pagemap_addr,
        npages: c_ulong,
        _fence: *mut bindings::dma_fence,
    ) -> c_int {
        // SAFETY: The arguments are those of the operation.
        unsafe { Self::copy(pages, addrs, npages, Direction::ToDevice) }
    }

    /// # Safety
    ///
    /// As for [`Self::copy_to_devmem`]. The addresses are the destinations.
    unsafe extern "C" fn copy_to_ram(
        pages: *mut *mut bindings::page,
        addrs: *mut bindings::drm_pagemap_addr,
        npages: c_ulong,
        _fence: *mut bindings::dma_fence,
    ) -> c_int {
        // SAFETY: The arguments are those of the operation.
        unsafe { Self::copy(pages, addrs, npages, Direction::ToRam) }
    }

    /// # Safety
    ///
    /// The arguments must be those of this type's operation for `direction`.
    unsafe fn copy(
        pages: *mut *mut bindings::page,
        addrs: *mut bindings::drm_pagemap_addr,
        npages: usize,
        direction: Direction,
    ) -> c_int {
        // SAFETY: Both arrays have this many elements. No other code accesses them meanwhile.
        let (pages, addrs) = unsafe {
            (
                slice::from_raw_parts(pages, npages),
                slice::from_raw_parts(addrs, npages),
            )
        };
        let Some(page) = pages.iter().find(|page| !page.is_null()) else {
            return 0;
        };
        // SAFETY: All pages belong to one value, because each value is an owner of its own. They
        // are in use, so the value is valid.
        let this = unsafe { Self::from_base(Base::from_pgmap(bindings::page_pgmap(*page))) };
        // SAFETY: As the caller promises.
        let segments = unsafe { Segments::new(&this.base, pages, addrs, direction) };

        from_result(|| {
            match direction {
                Direction::ToDevice => T::copy_to_dev(this.data(), segments),
                Direction::ToRam => {
                    this.base.count_moved_back(segments.count_pages());
                    T::copy_to_ram(this.data(), segments)
                }
            }
            .map(|()| 0)
        })
    }

    /// Returns the BAR page showing a page or null if there is none.
    ///
    /// # Safety
    ///
    /// Called by `hmm_range_fault()` with the structure of a [`PageMap<T>`] and the number of one
    /// of its pages. The caller has no reference to the page. `nr_pages` must be valid to be
    /// written.
    unsafe extern "C" fn p2p_page(
        pgmap: *mut bindings::dev_pagemap,
        offset: c_ulong,
        nr_pages: *mut c_ulong,
    ) -> *mut bindings::page {
        // SAFETY: The structure belongs to a value dropped after `memunmap_pages()`. This function
        // waits for the caller's reference to the structure.
        let this = unsafe { Self::from_base(Base::from_pgmap(pgmap)) };
        let alias = || {
            let (pages, view) = this.bar.as_ref()?;
            let left = (this.base.pages().count() as u64)
                .checked_sub(offset as u64)
                .filter(|left| *left > 0)?;
            let at = view.p2p_page(offset as u64)?;
            let alias = pages.page(at)?;
            // OVERFLOW: It is inside the BAR. This was checked when the page was returned.
            let in_bar = (pages.len() - at) / PAGE_SIZE as u64;
            let count = view.adjoining(offset as u64).min(left).min(in_bar);

            // SAFETY: The caller passes memory for the number.
            // CAST: The number is at most that of all pages.
            unsafe { nr_pages.write((count as c_ulong).max(1)) };
            Some(alias)
        };

        alias().unwrap_or(ptr::null_mut())
    }
}

impl<T: Driver> Reclaim for PageMap<T> {
    fn held(&self, range: &Range<u64>) -> u64 {
        self.base.held_in(&pages(range))
    }

    fn reclaim(&self, range: &Range<u64>, bytes: u64) -> u64 {
        self.base.evict_oldest(&pages(range), u64::MAX, bytes)
    }
}

/// Returns the pages overlapping with a range of bytes.
fn pages(range: &Range<u64>) -> Range<usize> {
    // CAST: The address space has less than 64 bits.
    (range.start as usize / PAGE_SIZE)..(range.end as usize).div_ceil(PAGE_SIZE)
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects mapped by processes for direct I/O.
//!
//! An ordinary mapping of VRAM consists of page frames, and direct I/O refuses them. The driver of
//! a BAR with struct pages maps objects with these pages if [`TtmObject::direct_io`] is true. A
//! read or write with `O_DIRECT` then lets the disk access VRAM if there is a route.
//!
//! An object is pinned in VRAM and charged as a pin from its first such mapping until the last
//! mapping and all references to its pages are gone. So a page with a reference is neither moved
//! nor reused, and a fault has nothing to wait for: the page that it inserts does not change.
//!
//! An object unmapped while a disk still accesses it lingers: it keeps its VRAM and a reference to
//! itself until a worker finds that the references to its pages are gone (see `deferred.rs`). An
//! unplug removes the mappings and then waits for the references, because the pages are freed when
//! the driver is unbound. It holds no lock meanwhile: a task with references to the first pages of
//! a buffer may be about to fault the next ones in. A request not yet begun by the disk then fails,
//! so no task waits for a page that never becomes available.
//!
//! # Adoption
//!
//! 1. The probe calls [`enable_p2pdma`], [`add_p2pdma_pages`] and [`take_pages`] before anything
//!    maps the BAR: the first mapping determines the memory type of all later ones. The driver
//!    keeps clones of the [`BarPages`] in the data of its probe and in its registration data
//!    ([`BarPages::of`]). The pool in sysfs is empty then.
//! 2. [`TtmObject::pages`] returns them. Without pages such objects cannot be mapped.
//! 3. [`TtmObject::direct_io`] is true if the client asked for it. It is not true for all objects
//!    because such a mapping pins the object.
//!
//! The pages cost 64 bytes of system memory for each 4 KiB of the BAR and a longer bind. Direct I/O
//! is not for VRAM that a process keeps mapped for its own use. A device with an aperture cannot
//! have it. PCI does not order the writes of a disk to VRAM and the interrupt of the disk: a device
//! with [`Order::Flush`] needs [`flush_writes`] before it reads.
//!
//! [`add_p2pdma_pages`]: crate::pci::Device::add_p2pdma_pages
//! [`enable_p2pdma`]: crate::pci::Device::enable_p2pdma
//! [`take_pages`]: crate::pci::p2pdma::Provider::take_pages
//! [`flush_writes`]: crate::drm::gem::peer::flush_writes
//! [`Order::Flush`]: crate::drm::gem::peer::Order::Flush
//!
//! # Locking
//!
//! `mmap()` and the last `munmap()` take the reservation of the object with the `mmap_lock` held. A
//! fault takes no lock.
//!
//! C headers: [`include/linux/mm.h`](srctree/include/linux/mm.h),
//! [`include/linux/page_ref.h`](srctree/include/linux/page_ref.h)

pub(super) mod deferred;

use super::{
    ClientOf,
    LockedObject,
    Object,
    TtmObject, //
};
use crate::{
    bindings,
    drm::{
        self,
        devres::while_registered,
        gem::{
            peer::Process,
            BaseObject,
            IntoGEMObject, //
        },
        ttm::{
            OpCtx,
            Place, //
        },
        vram::{
            Domain,
            MemType, //
        }, //
    },
    mm::virt::{
        flags,
        VmaNew, //
    },
    page::PAGE_SIZE,
    pci::p2pdma::{
        live::{
            Busy,
            Idle,
            Live, //
        },
        BarPages, //
    },
    pm::RuntimeGuard,
    prelude::*,
    str::CStr,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        }, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};

/// The maximal number of pages mapped by one fault.
const FAULT_AROUND: usize = 16;
/// How often an unplug checks whether references are gone.
const PAUSE: Delta = Delta::from_millis(10);
/// The time in milliseconds before an unplug first reports an object that it waits for, and the
/// maximal time between two reports.
const REMIND_MS: i64 = 1000;
const REMIND_MAX_MS: i64 = 10_000;

/// The state of an object that can be mapped for direct I/O.
///
/// # Invariants
///
/// - The reservation of the object guards `mapped`. It does not change while there are areas and
///   the device is registered. Code that ensures both can read it without the reservation.
/// - While `lingers` is set, the object has a reference to itself.
pub(super) struct Direct {
    /// The number of areas of processes.
    areas: Atomic<u64>,
    lingers: Atomic<bool>,
    mapped: UnsafeCell<Option<Mapped>>,
}

/// The state of an object while it is mapped or lingers. The object is pinned.
struct Mapped {
    /// [`None`] once the device is unplugged and no page has a reference.
    live: Option<Live>,
    /// A runtime PM guard, because an access by a disk does not resume the device.
    runtime_guard: Option<RuntimeGuard>,
    /// The first process that mapped the object.
    process: Process,
}

impl Direct {
    pub(super) const fn new() -> Self {
        Self {
            areas: Atomic::new(0),
            lingers: Atomic::new(false),
            mapped: UnsafeCell::new(None),
        }
    }
}

impl<T: TtmObject> Object<T> {
    /// Sets up the worker for lingering objects if this object may become one. Called with no lock
    /// held.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(super) fn prepare_direct(&self) -> Result {
        if !self.direct_io() {
            return Ok(());
        }
        // SAFETY: The object is valid.
        let dev = NonNull::new(unsafe { (*self.as_raw()).dev }).ok_or(EINVAL)?;

        // SAFETY: The device is that of the object and contains the memory of the object. An unplug
        // calls `unplugging_callback()`.
        unsafe { self.ttm().deferred.prepare(dev, look::<T>) }
    }

    const DIRECT_VM_OPS: bindings::vm_operations_struct = bindings::vm_operations_struct {
        open: Some(open_callback::<T>),
        close: Some(close_callback::<T>),
        fault: Some(fault_callback::<T>),
        ..pin_init::zeroed()
    };

    /// Maps the object for direct I/O.
    ///
    /// # Errors
    ///
    /// - `EINVAL` for a private mapping: its pages would be copied.
    /// - `EOPNOTSUPP` if the device has no struct pages.
    /// - `ENODEV` if it is not registered.
    /// - `EDQUOT` if no more VRAM may be pinned.
    /// - `EBUSY` if the object is pinned in memory without struct pages.
    /// - The errors of [`LockedObject::validate`].
    ///
    /// # Safety
    ///
    /// `vma` must be the area of an ongoing `mmap()` of a file of the device. The caller must have
    /// a reference to the object. On an error the caller puts it; otherwise the area owns it.
    pub(super) unsafe fn map_direct(&self, vma: *mut bindings::vm_area_struct) -> Result {
        // SAFETY: As promised by the caller.
        let area = unsafe { VmaNew::from_raw(vma) };
        if area.flags() & (flags::SHARED | flags::MAYWRITE) == flags::MAYWRITE {
            return Err(EINVAL);
        }
        // SAFETY: The file is an open file of the driver of `T`.
        let client: &ClientOf<T> =
            unsafe { drm::File::from_raw((*(*vma).vm_file).private_data.cast()) };

        let runtime_guard = self.runtime_guard()?;
        self.reserve(true)?
            .view()
            .begin_direct(runtime_guard, client)?;

        area.set_mixedmap();
        area.set_dontexpand();
        area.set_dontdump();
        // SAFETY: The area is being set up. Accesses go to a device whose memory is not encrypted.
        unsafe {
            (*vma).vm_page_prot =
                bindings::pgprot_decrypted(bindings::pgprot_writecombine((*vma).vm_page_prot));
            (*vma).vm_ops = const { &Self::DIRECT_VM_OPS };
            (*vma).vm_private_data = self.as_raw().cast();
        }
        Ok(())
    }

    /// Inserts the faulting page and some pages behind it.
    ///
    /// # Safety
    ///
    /// `vmf` must be a fault in an area of the object. `pages` must be those of its device. The
    /// device must stay registered until this returns.
    unsafe fn insert(
        &self,
        vmf: *mut bindings::vm_fault,
        pages: &BarPages<'_>,
    ) -> bindings::vm_fault_t {
        // SAFETY: There is an area and the device is registered, so the cell does not change.
        let live = unsafe { (*self.direct.mapped.get()).as_ref() }.and_then(|it| it.live.as_ref());
        // SAFETY: The fault, its area and the object are valid.
        let (vma, first, address, flags) = unsafe {
            let fault = &(*vmf).__bindgen_anon_1;
            let start = (*self.as_raw()).vma_node.vm_node.start;

            // CAST: The offset is one of the address space.
            (
                fault.vma,
                fault.pgoff.wrapping_sub(start as usize),
                fault.address,
                (*vmf).flags,
            )
        };
        let page = |index: usize| live.and_then(|live| live.page(pages, index));
        let Some(faulting) = page(first) else {
            return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
        };
        let is_write = flags & bindings::fault_flag_FAULT_FLAG_WRITE != 0;

        // SAFETY: The fault is valid, and the page has a count.
        let ret = unsafe { bindings::vmf_insert_page_mkwrite(vmf, faulting, is_write) };
        if ret != bindings::vm_fault_reason_VM_FAULT_NOPAGE {
            return ret;
        }

        // SAFETY: The area is valid.
        let end = unsafe { (*vma).__bindgen_anon_1.__bindgen_anon_1.vm_end };
        for (index, at) in (address..end)
            .step_by(PAGE_SIZE)
            .enumerate()
            .take(FAULT_AROUND)
            .skip(1)
        {
            let Some(next) = page(first + index) else {
                break;
            };
            // SAFETY: The area has `VM_MIXEDMAP` and the address, and the page has a count. A page
            // not inserted now is inserted when it is accessed.
            let _ = unsafe { bindings::vm_insert_page(vma, at, next) };
        }
        ret
    }
}

impl<T: TtmObject> LockedObject<'_, Object<T>> {
    /// Returns the cell for writing. While there are areas and the device is registered, faults
    /// read it without the reservation: then no code writes to it.
    fn mapped(&mut self) -> &mut Option<Mapped> {
        // SAFETY: The reservation guards the cell and is held. By the type invariant, a reader
        // without the reservation prevents writes.
        unsafe { &mut *self.obj.direct.mapped.get() }
    }

    /// As [`Self::mapped`], for reading the cell while faults may read it as well.
    fn as_mapped(&self) -> Option<&Mapped> {
        // SAFETY: Writers hold the reservation, which is held here.
        unsafe { (*self.obj.direct.mapped.get()).as_ref() }
    }

    /// Counts one more area and makes the pages of the object live for the first one.
    fn begin_direct(&mut self, runtime_guard: RuntimeGuard, client: &ClientOf<T>) -> Result {
        // SAFETY: The device of an object is valid and of `T::Driver`.
        unsafe {
            while_registered::<T::Driver, _>((*self.bo()).base.dev, |reg| {
                self.begin_with(T::pages(reg).ok_or(EOPNOTSUPP)?, runtime_guard, client)
            })
        }
    }

    fn begin_with(
        &mut self,
        pages: &BarPages<'_>,
        runtime_guard: RuntimeGuard,
        client: &ClientOf<T>,
    ) -> Result {
        if T::APERTURE.is_some() {
            return Err(EOPNOTSUPP);
        }
        // The driver's pages are checked: with a wrong start, processes would get pages that are
        // not free.
        if pages.start() != self.ttm().vram_start() {
            return Err(EINVAL);
        }

        if self.as_mapped().is_none() {
            if self.is_pinned() && self.mem_type() != Some(MemType::Vram) {
                return Err(EBUSY);
            }

            // Charged before other objects are evicted.
            self.charge_to(T::pins(client).cloned())?;
            let live = self
                .go_live(pages)
                .inspect_err(|_| self.uncharge_unpinned())?;

            *self.mapped() = Some(Mapped {
                live: Some(live),
                runtime_guard: Some(runtime_guard),
                process: Process::current(),
            });
        }
        self.obj.direct.areas.add(1, Relaxed);
        self.stop_lingering();
        Ok(())
    }

    /// Pins the object in VRAM and makes its pages live there.
    fn go_live(&mut self, pages: &BarPages<'_>) -> Result<Live> {
        let vram = Place::VRAM.below(self.visible().min(pages.len()));

        self.validate_patiently(&Domain::Vram.places_in(vram), &mut OpCtx::interruptible())
            .map_err(|e| if e == EINVAL { EBUSY } else { e })?;
        // This waits for moves of the object to its place.
        self.pin_raw()?;

        let idle = match self.vram() {
            // SAFETY: The object has the memory and keeps it while it is pinned: until the pages
            // are idle again.
            Some(vram) => unsafe {
                Idle::new(
                    pages,
                    vram.shown().iter().map(|range| (range.offset, range.len)),
                )
            },
            None => Err(EINVAL),
        };
        idle.and_then(|idle| idle.unfreeze(pages))
            .inspect_err(|_| self.unpin_raw())
    }

    /// Undoes the setup of the first area if no area is left. An object whose pages have references
    /// lingers.
    fn end_direct(&mut self) {
        if self.obj.direct.areas.load(Relaxed) != 0 {
            return;
        }
        let Some(mapped) = self.mapped() else {
            return;
        };

        let mut live = mapped.live.take();
        if live.is_some() {
            // SAFETY: The device of an object is valid and of `T::Driver`. If it is being
            // unplugged, `unplugging_callback()` does the rest.
            let _ = unsafe {
                while_registered::<T::Driver, _>((*self.bo()).base.dev, |reg| {
                    live = live
                        .take()
                        .and_then(|live| idle_or_busy(live, T::pages(reg)));
                    if live.is_some() {
                        self.linger();
                        self.ttm().deferred.wake();
                    }
                    Ok(())
                })
            };
        }
        if live.is_some() {
            self.linger();
            if let Some(mapped) = self.mapped() {
                mapped.live = live;
            }
            return;
        }
        self.forget_direct();
    }

    /// Undoes [`Self::go_live`]. The pages are idle.
    fn forget_direct(&mut self) {
        let mapped = self.mapped().take();

        if mapped.is_some() {
            self.unpin_raw();
        }
        self.stop_lingering();
    }

    /// Keeps the object until the references to its pages are gone.
    fn linger(&mut self) {
        if !self.obj.direct.lingers.xchg(true, Relaxed) {
            // INVARIANT: This is the reference of the object to itself.
            core::mem::forget(ARef::from(self.obj));
            self.ttm().deferred.add(self.obj.size() as u64);
        }
    }

    /// Undoes [`Self::linger`]. The caller has another reference to the object.
    fn stop_lingering(&mut self) {
        if self.obj.direct.lingers.xchg(false, Relaxed) {
            self.ttm().deferred.sub(self.obj.size() as u64);
            // SAFETY: By the type invariant of `Direct` the reference exists.
            drop(unsafe { ARef::from_raw(NonNull::from(self.obj)) });
        }
    }

    /// Ends the use of the pages after an unplug and returns whether none of them has a reference.
    fn unplug_direct(&mut self, pages: &BarPages<'_>) -> bool {
        let Some(mapped) = self.mapped() else {
            return true;
        };

        mapped.live = mapped
            .live
            .take()
            .and_then(|live| idle_or_busy(live, Some(pages)));
        if mapped.live.is_some() {
            return false;
        }

        mapped.runtime_guard = None;
        // If areas remain, the last `munmap()` ends direct I/O.
        self.end_direct();
        true
    }

    /// Logs the object that an unplug waits for.
    fn report_direct(&self, since: Instant<Monotonic>) {
        let obj = self.obj;
        let (dev, id, size) = (obj.ttm().owner(), obj.id(), obj.size());

        if let Some(mapped) = self.as_mapped() {
            let comm = CStr::from_bytes_until_nul(&mapped.process.comm).unwrap_or(c"?");

            dev_notice!(
                dev,
                "waiting for direct I/O to object {} of {} bytes, which {} ({}) has mapped, since {} s\n",
                id,
                size,
                comm,
                mapped.process.pid,
                since.elapsed().as_millis() / 1000
            );
        }
    }
}

/// Returns `live` if pages still have references, or if this is unknown because `pages` is `None`.
fn idle_or_busy(live: Live, pages: Option<&BarPages<'_>>) -> Option<Live> {
    let Some(pages) = pages else {
        return Some(live);
    };

    match live.try_idle(pages) {
        Ok(_) => None,
        Err(Busy(live)) => Some(live),
    }
}

/// # Safety
///
/// Called by the memory management with an area that is a copy or a part of one of the object.
unsafe extern "C" fn open_callback<T: TtmObject>(vma: *mut bindings::vm_area_struct) {
    // SAFETY: The original area has a reference to the object.
    unsafe {
        let gem = (*vma).vm_private_data.cast::<bindings::drm_gem_object>();
        let obj: &Object<T> = IntoGEMObject::from_raw(gem);

        obj.direct.areas.add(1, Relaxed);
        bindings::drm_gem_object_get(gem);
    }
}

/// # Safety
///
/// Called by the memory management with an area of the object that is removed. Its pages are
/// unmapped.
unsafe extern "C" fn close_callback<T: TtmObject>(vma: *mut bindings::vm_area_struct) {
    // SAFETY: The area has a reference to the object.
    unsafe {
        let gem = (*vma).vm_private_data.cast::<bindings::drm_gem_object>();
        let obj: &Object<T> = IntoGEMObject::from_raw(gem);

        if obj.direct.areas.fetch_sub(1, Relaxed) == 1 {
            // The wait is not interruptible, so it does not fail.
            if let Ok(mut object) = obj.reserve(false) {
                object.view().end_direct();
            }
        }
        bindings::drm_gem_object_put(gem);
    }
}

/// # Safety
///
/// Called by the memory management with a fault in an area of an object of this class.
unsafe extern "C" fn fault_callback<T: TtmObject>(
    vmf: *mut bindings::vm_fault,
) -> bindings::vm_fault_t {
    // SAFETY: The fault is valid, and its area has a reference to the object.
    let obj: &Object<T> = unsafe {
        let vma = (*vmf).__bindgen_anon_1.vma;

        IntoGEMObject::from_raw((*vma).vm_private_data.cast())
    };
    if obj.is_lost() {
        return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    }

    // SAFETY: The device of an object is valid and of `T::Driver`. An unplug waits until this
    // returns and then removes the inserted pages.
    let ret = unsafe {
        while_registered::<T::Driver, _>((*obj.as_raw()).dev, |reg| {
            Ok(obj.insert(vmf, T::pages(reg).ok_or(ENODEV)?))
        })
    };
    ret.unwrap_or(bindings::vm_fault_reason_VM_FAULT_SIGBUS)
}

/// Checks the lingering objects and returns whether some still linger.
///
/// # Safety
///
/// The requirements of [`Look`](deferred::Look).
unsafe fn look<T: TtmObject>(dev: *mut bindings::drm_device) -> bool {
    // SAFETY: The device is valid and of `T::Driver`.
    let drm: &drm::Device<T::Driver> = unsafe { drm::Device::from_raw(dev) };
    let ttm = T::ttm(drm);
    let mut next = 0;

    while let Some(obj) = ttm.object_from(next) {
        next = obj.id() + 1;
        if obj.direct.lingers.load(Relaxed) {
            // The wait is not interruptible, so it does not fail.
            if let Ok(mut object) = obj.reserve(false) {
                object.view().end_direct();
            }
        }
    }
    ttm.deferred.bytes() != 0
}

/// Ends the use of all pages of a device and waits for the pages with references.
///
/// # Safety
///
/// Called with an unplugged device of `T::Driver` whose registration data still exists.
pub(super) unsafe fn unplugging_callback<T: TtmObject>(dev: *mut bindings::drm_device) {
    // SAFETY: The device is valid and of `T::Driver`. It was registered, and its data is not
    // dropped before this returns.
    let drm: &drm::Device<T::Driver, drm::Registered> = unsafe { drm::Device::from_raw(dev) };
    let ttm = T::ttm(drm);

    drm.registration_data_with(|reg| {
        let Some(pages) = T::pages(reg) else {
            return;
        };
        let since = Instant::<Monotonic>::now();
        let for_each = |visit: &dyn Fn(&Object<T>)| {
            let mut next = 0;

            // No page becomes live any more.
            while let Some(obj) = ttm.object_from(next) {
                next = obj.id() + 1;
                visit(&obj);
            }
        };

        // All mappings are removed before the first wait.
        for_each(&|obj| {
            // The wait is not interruptible, so it does not fail.
            if let Ok(mut object) = obj.reserve(false) {
                if !object.view().unplug_direct(pages) {
                    object.view().report_direct(since);
                }
            }
        });

        for_each(&|obj| await_idle(obj, pages, since));
    });
    ttm.deferred.drain();
}

/// Waits until no page of an object has a reference. `since` is the start of the unplug.
fn await_idle<T: TtmObject>(obj: &Object<T>, pages: &BarPages<'_>, since: Instant<Monotonic>) {
    let mut pause = REMIND_MS;
    // The unplug may have waited for other objects before.
    let mut remind_at = since.elapsed().as_millis() + pause;

    loop {
        // The wait is not interruptible, so it does not fail.
        let Ok(mut object) = obj.reserve(false) else {
            return;
        };
        if object.view().unplug_direct(pages) {
            return;
        }
        if since.elapsed().as_millis() >= remind_at {
            object.view().report_direct(since);
            pause = (pause * 2).min(REMIND_MAX_MS);
            remind_at += pause;
        }
        drop(object);
        fsleep(PAUSE);
    }
}

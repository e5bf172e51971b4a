// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory of a DRM device.
//!
//! TTM calls into this folder and into `drm/ttm/tt.rs` only.
//!
//! C header: [`include/drm/ttm/ttm_device.h`](srctree/include/drm/ttm/ttm_device.h)

use super::{
    client::PinShares,
    direct::deferred::Deferred,
    jobs::{
        unpopulate_callback,
        Jobs, //
    },
    mmap::io_mem_pfn_callback,
    moves::{
        can_leave,
        move_callback, //
    },
    vram_manager::VramManager,
    TtmObject, //
};
use crate::{
    bindings,
    container_of,
    device,
    drm::{
        self,
        exec::{
            Exec,
            ExecCtx,
            Flags, //
        },
        gem::{
            aperture::Windows,
            peer::{
                self,
                Unrevocable, //
            },
            ttm::Object,
            BaseObject,
            IntoGEMObject, //
        },
        ttm::{
            engine::Engine,
            placement::{
                Place,
                Places,
                Victims, //
            },
            region::{
                Charge,
                Regions, //
            },
            tt::TtManager,
            validation::Validation, //
        },
        vram::{
            charge,
            dma_device,
            Allocator,
            MemType,
            Objects,
            Room, //
        }, //
    },
    error::to_result,
    pci,
    pm::RuntimeGuard,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex,
        SetOnce, //
    },
    types::Opaque, //
};
use core::{
    cell::UnsafeCell,
    marker::{
        PhantomData,
        PhantomPinned, //
    },
    ptr::{
        self,
        NonNull, //
    }, //
};

/// The memory of one DRM device, `struct ttm_device` with its managers.
///
/// It belongs into the data of the DRM device ([`drm::Driver::Data`]). [`Self::setup`] must be
/// called once after the DRM device was made; there are no objects before.
///
/// # Invariants
///
/// Once `ready` is set, which happens once:
///
/// - `bdev` is an initialized device with the managers `vram` and `tt`; `drm` is the DRM device
///   whose data `self` is part of,
/// - `vram_start` and `visible` do not change.
#[pin_data(PinnedDrop)]
pub struct Device<T: TtmObject> {
    bdev: Opaque<bindings::ttm_device>,
    vram: VramManager,
    tt: TtManager,
    drm: UnsafeCell<*mut bindings::drm_device>,
    /// VRAM as regions of the cgroup controller, to which objects in VRAM, and pins, are charged.
    regions: SetOnce<Regions>,
    /// The physical address of VRAM.
    vram_start: UnsafeCell<u64>,
    /// How much of VRAM the CPU and peers see, in bytes.
    visible: UnsafeCell<u64>,
    ready: Atomic<bool>,
    /// Bytes of VRAM that are pinned.
    pinned: Atomic<u64>,
    /// How many bytes may be pinned.
    pin_limit: Atomic<u64>,
    /// How many bytes may be pinned for one client.
    client_pin_limit: Atomic<u64>,
    /// How often the content of an object was moved.
    move_count: Atomic<u64>,
    pub(super) jobs: Jobs,
    validation: Pin<KBox<Validation>>,
    /// The counters of what importers got.
    peers: peer::Counters,
    holders: peer::Holders,
    /// The task in which the driver suspends or resumes the device, for which objects are moved, or
    /// 0.
    pub(super) transition: Atomic<usize>,
    /// Objects have backups.
    pub(super) has_backups: Atomic<bool>,
    objects: Pin<KBox<Mutex<Objects>>>,
    /// The windows through which peers and the CPU see objects.
    pub(super) windows: Windows,
    /// Objects that are no longer mapped for direct I/O, whose pages still have references.
    pub(super) deferred: Deferred,
    #[pin]
    _pin: PhantomPinned,
    _p: PhantomData<fn(T)>,
}

// SAFETY: Only `setup` writes to the cells, before `ready` is set and without another task; the
// rest is synchronized by TTM or atomic.
unsafe impl<T: TtmObject> Send for Device<T> {}

// SAFETY: As for `Send`.
unsafe impl<T: TtmObject> Sync for Device<T> {}

impl<T: TtmObject> Device<T> {
    const FUNCS: bindings::ttm_device_funcs = bindings::ttm_device_funcs {
        ttm_tt_create: Some(tt_create_callback),
        ttm_tt_destroy: Some(tt_destroy_callback),
        eviction_valuable: Some(eviction_valuable_callback::<T>),
        evict_flags: Some(evict_flags_callback::<T>),
        move_: Some(move_callback::<T>),
        io_mem_reserve: Some(io_mem_reserve_callback::<T>),
        io_mem_pfn: Some(io_mem_pfn_callback::<T>),
        ttm_tt_unpopulate: if <T::Engine<'static, 'static> as Engine>::DMA {
            Some(unpopulate_callback::<T>)
        } else {
            None
        },
        ..pin_init::zeroed()
    };

    /// Makes the memory of a device with one engine, with the VRAM of `allocator`.
    ///
    /// Initially half of it may be pinned.
    ///
    /// # Errors
    ///
    /// - `ENAMETOOLONG` if the name of the driver has more than 31 bytes.
    /// - `ENOMEM` if memory runs out.
    pub fn new(allocator: Arc<Allocator>) -> impl PinInit<Self, Error> {
        Self::with_engines(allocator, &[<T::Driver as drm::Driver>::INFO.name])
    }

    /// As [`Self::new`], with an engine for each of `names`, which name the contexts of their
    /// fences.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no name, `E2BIG` if there are more than
    ///   [`MAX_ENGINES`](drm::ttm::MAX_ENGINES).
    /// - `ENAMETOOLONG` if one has more than 31 bytes.
    /// - `ENOMEM` if memory runs out.
    pub fn with_engines(
        allocator: Arc<Allocator>,
        names: &[&CStr],
    ) -> impl PinInit<Self, Error> + use<T> {
        let vram_size = allocator.size();
        let jobs = Jobs::new(names);

        // INVARIANT: The device is not ready.
        try_pin_init!(Self {
            bdev: Opaque::zeroed(),
            vram: VramManager::new(allocator),
            tt: TtManager::new(),
            drm: UnsafeCell::new(ptr::null_mut()),
            regions: SetOnce::new(),
            vram_start: UnsafeCell::new(0),
            visible: UnsafeCell::new(0),
            ready: Atomic::new(false),
            pinned: Atomic::new(0),
            pin_limit: Atomic::new(vram_size / 2),
            client_pin_limit: Atomic::new(u64::MAX),
            move_count: Atomic::new(0),
            jobs: jobs?,
            validation: Validation::new()?,
            peers: peer::Counters::new(),
            holders: peer::Holders::new(),
            transition: Atomic::new(0),
            has_backups: Atomic::new(false),
            objects: Objects::new()?,
            windows: Windows::new()?,
            deferred: Deferred::new(),
            _pin: PhantomPinned,
            _p: PhantomData,
        })
    }

    /// Starts the memory management of `drm`, whose VRAM is shown by the BAR `bar` of `pdev`.
    ///
    /// `pdev` is the parent of the DRM device, or the parent of the auxiliary device that is its
    /// parent. It becomes the DMA device: `pdev`, not the parent, is kept active for VRAM, maps
    /// system memory, imports buffers, and is named in the tracepoints and the cgroup controller.
    ///
    /// The CPU and peers see the first `visible` bytes of VRAM, at most the size of the BAR.
    /// Objects are moved there when they are to be accessed, unless there are windows:
    /// [`TtmObject::APERTURE`].
    ///
    /// VRAM is a region of the cgroup controller `dmem`, called `drm/<device>/vram0`, and pinned
    /// VRAM is one called `drm/<device>/pinned`, until the DRM device is unplugged.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `pdev` is neither the parent of `drm` nor the parent of its parent, if
    ///   `visible` exceeds VRAM or the BAR, if there is no such BAR, or if [`TtmObject::ttm`] does
    ///   not return a part of the data of `drm`.
    /// - `EBUSY` if it was called before.
    /// - `EOPNOTSUPP` if the engines do DMA, and `pdev` does not reach all system memory.
    /// - `ENOMEM` if memory runs out.
    pub fn setup(
        drm: &drm::UnregisteredDevice<T::Driver>,
        pdev: &pci::Device<device::Bound>,
        bar: u32,
        visible: u64,
    ) -> Result {
        let data: &<T::Driver as drm::Driver>::Data = drm;
        let this = T::ttm(data);
        let dev = drm.as_raw();

        this.vram
            .allocator()
            .check_setup(drm, this, pdev, bar, visible)?;

        let owner: &device::Device<device::Bound> = pdev.as_ref();
        this.setup_jobs(owner)?;
        let vram_start = pdev.resource_start(bar)?;
        vram_start.checked_add(visible).ok_or(EINVAL)?;

        if this.ready.load(Acquire) {
            return Err(EBUSY);
        }

        // SAFETY: No other task uses the cells: an `UnregisteredDevice` is not `Sync`, so no other
        // task can be in this function, and other code waits for `ready`.
        unsafe {
            *this.drm.get() = dev;
            *this.vram_start.get() = vram_start;
            *this.visible.get() = visible;
        }

        let bdev = this.bdev.get();
        // SAFETY: Both devices are valid, and the DRM device is not in use yet: it keeps the other
        // one until after its data is dropped. `bdev` is zeroed. The DRM device outlives `bdev`,
        // which is part of its data.
        to_result(unsafe {
            bindings::drm_dev_set_dma_dev(dev, owner.as_raw());
            bindings::ttm_device_init(
                bdev,
                const { &Self::FUNCS },
                owner.as_raw(),
                (*(*dev).anon_inode).i_mapping,
                (*dev).vma_offset_manager,
                bindings::TTM_ALLOCATION_PROPAGATE_ENOSPC,
            )
        })?;

        // SAFETY: The device was just initialized, and `self` is pinned: the only constructor is a
        // pin-initializer. `PinnedDrop` undoes it. The DMA device of a DRM device is valid as long
        // as the DRM device, and the manager stays until the regions are dropped.
        let regions = unsafe {
            this.vram.init::<T>(bdev);
            this.tt.init(bdev);
            Regions::new(owner.as_raw(), this.vram.as_raw(), this.vram_size())
        };
        let regions = regions.inspect_err(|_| {
            // SAFETY: There is no object, and all of it was set up above.
            unsafe {
                this.tt.fini(bdev);
                this.vram.fini(bdev);
                bindings::ttm_device_fini(bdev);
            }
        })?;
        // SAFETY: The manager was initialized above. The region is valid until `PinnedDrop` takes
        // it from the manager.
        unsafe {
            bindings::ttm_resource_manager_set_dmem_region(this.vram.as_raw(), regions.vram())
        };
        this.regions.populate(regions);

        // INVARIANT: All fields are set.
        this.ready.store(true, Release);
        Ok(())
    }

    /// Removes the mappings of objects in processes, which are made again at the next access.
    ///
    /// An access resumes the device. Sleeps. Mirrors `unmap_mapping_range()`.
    pub(super) fn zap_mappings(&self) {
        if self.ready.load(Acquire) {
            // SAFETY: By the type invariant the device is initialized; its mapping is that of the
            // DRM device, which outlives it.
            unsafe { bindings::unmap_mapping_range((*self.bdev.get()).dev_mapping, 0, 0, 1) };
        }
    }

    /// Ends the use of `drm`, which was unplugged: nothing gets VRAM any more, and engines reach no
    /// system memory.
    pub(super) fn unplugged(&self, drm: *mut bindings::drm_device) {
        if self.bdev(drm).is_ok() {
            self.unregister_regions();
            self.unmap_all();
        }
    }

    fn unregister_regions(&self) {
        if let Some(regions) = self.regions.as_ref() {
            regions.unregister();
        }
    }

    /// Returns the C structure for objects of `drm`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if [`Self::setup`] was not called, or for another device.
    pub(super) fn bdev(&self, drm: *mut bindings::drm_device) -> Result<*mut bindings::ttm_device> {
        // SAFETY: `drm` does not change once `ready` is set.
        if self.ready.load(Acquire) && unsafe { *self.drm.get() } == drm {
            Ok(self.bdev.get())
        } else {
            Err(EINVAL)
        }
    }

    /// Returns the manager of VRAM, and the C structure.
    ///
    /// # Errors
    ///
    /// `EINVAL` before [`Self::setup`].
    pub(super) fn vram_manager(&self) -> Result<(&VramManager, *mut bindings::ttm_device)> {
        if !self.ready.load(Acquire) {
            return Err(EINVAL);
        }
        Ok((&self.vram, self.bdev.get()))
    }

    /// Returns the physical address of VRAM.
    pub(super) fn vram_start(&self) -> u64 {
        // SAFETY: The address does not change once there is an object.
        unsafe { *self.vram_start.get() }
    }

    /// Returns those of `places` that are large enough for `size` bytes.
    ///
    /// TTM logs an error if an object exceeds a place, and evicts all objects from a place that is
    /// too small before it goes on to the next.
    ///
    /// # Errors
    ///
    /// The errors of [`Places::fitting`].
    pub(super) fn fitting(&self, places: &[Place], size: u64) -> Result<Places> {
        Places::fitting(places, size, |mem_type| self.size_of(mem_type))
    }

    /// Returns the allocator of VRAM.
    #[inline]
    pub fn allocator(&self) -> &Allocator {
        self.vram.allocator()
    }

    /// Returns the offset after the last byte of a kind of memory.
    pub(super) fn size_of(&self, mem_type: MemType) -> u64 {
        match mem_type {
            MemType::Vram => self.vram.allocator().end(),
            _ => self.tt.limit(),
        }
    }

    /// Returns the size of VRAM in bytes.
    #[inline]
    pub fn vram_size(&self) -> u64 {
        self.vram.allocator().size()
    }

    /// Returns how much of VRAM the CPU and peers see, in bytes; 0 before [`Self::setup`].
    #[inline]
    pub fn visible(&self) -> u64 {
        if self.ready.load(Acquire) {
            // SAFETY: The size does not change once `ready` is set.
            unsafe { *self.visible.get() }
        } else {
            0
        }
    }

    /// Returns how much of VRAM is free, in bytes. Objects that wait for their deletion still have
    /// theirs.
    #[inline]
    pub fn vram_free(&self) -> u64 {
        self.vram.allocator().avail()
    }

    /// Returns how much of VRAM is charged as pinned, see [`PinAccount`](super::PinAccount), in
    /// bytes.
    #[inline]
    pub fn pinned(&self) -> u64 {
        self.pinned.load(Relaxed)
    }

    /// Returns how much of VRAM may be pinned, in bytes.
    #[inline]
    pub fn pin_limit(&self) -> u64 {
        self.pin_limit.load(Relaxed)
    }

    /// Changes how much of VRAM may be pinned. Objects that are pinned stay pinned.
    pub fn set_pin_limit(&self, bytes: u64) {
        self.pin_limit.store(bytes, Relaxed);
    }

    /// Returns how many bytes of VRAM cannot be reused because pages of objects that are no longer
    /// mapped for direct I/O still have references.
    #[inline]
    pub fn referenced(&self) -> u64 {
        self.deferred.bytes()
    }

    /// Changes how many bytes objects may have in [`Place::TT`]. Objects that are there stay.
    ///
    /// Initially the only limit is that of TTM for all devices together. An object for which there
    /// is no room takes the room of other objects, which are moved to [`Place::SYSTEM`]. One that is
    /// larger than all of it can only go there when it is evicted from VRAM.
    pub fn set_tt_limit(&self, bytes: u64) {
        self.tt.set_limit(bytes);
    }

    /// Returns how much of VRAM may be pinned for one client, in bytes.
    #[inline]
    pub fn client_pin_limit(&self) -> u64 {
        self.client_pin_limit.load(Relaxed)
    }

    /// Changes how much of VRAM may be pinned for one client, see [`PinAccount`]. Objects that are
    /// pinned stay pinned. Initially the limit of a client is that of the device.
    ///
    /// [`PinAccount`]: super::PinAccount
    pub fn set_client_pin_limit(&self, bytes: u64) {
        self.client_pin_limit.store(bytes, Relaxed);
    }

    /// Sets how much of VRAM may be pinned: the limits of all clients and of one, and the policy for
    /// importers that cannot be revoked. To be called after [`Self::setup`].
    pub fn set_pin_shares(&self, shares: &PinShares) {
        let size = self.visible();
        let bytes = |percent: u64| match percent {
            0..100 => size / 100 * percent + size % 100 * percent / 100,
            _ => size,
        };

        self.set_pin_limit(bytes(shares.all));
        self.set_client_pin_limit(bytes(shares.client));
        self.holders().set_policy(match shares.unrevocable {
            0 => Unrevocable::Refuse,
            percent @ 1..100 => Unrevocable::Limit(bytes(percent)),
            _ => Unrevocable::Accept,
        });
    }

    /// Calls `f` to lock objects and to move them to where they are needed, with the device active.
    ///
    /// As [`Exec::run`], but if `f` finds no room it is called again a few times, alone on this
    /// device, because tasks that evict at the same time can block each other and get the same
    /// error. No reservation may be held.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if there is no room.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - Those of [`Exec::run`] and [`RuntimeGuard::new`].
    pub fn exec<R>(
        &self,
        flags: impl Into<Flags>,
        f: impl FnMut(&mut ExecCtx<'_>) -> Result<R>,
    ) -> Result<R> {
        let _runtime_guard = self.runtime_guard()?;

        self.exec_as_is(flags, f)
    }

    /// As [`Self::exec`], for a caller that keeps the device active, or does not need it.
    pub(super) fn exec_as_is<R>(
        &self,
        flags: impl Into<Flags>,
        mut f: impl FnMut(&mut ExecCtx<'_>) -> Result<R>,
    ) -> Result<R> {
        let flags = flags.into();

        self.validation
            .run(|| Exec::run(flags, &mut f))
            // Nothing was done, so the system call can be restarted.
            .map_err(|e| if e == EINTR { ERESTARTSYS } else { e })
    }

    /// Returns how often the content of an object was moved to or from VRAM.
    #[inline]
    pub fn moves(&self) -> u64 {
        self.move_count.load(Relaxed)
    }

    /// Counts a move.
    pub(super) fn count_move(&self) {
        self.move_count.fetch_add(1, Relaxed);
    }

    /// Takes a runtime PM guard of the device.
    ///
    /// # Errors
    ///
    /// `EINVAL` before [`Self::setup`], and those of [`RuntimeGuard::new`].
    pub(super) fn runtime_guard(&self) -> Result<RuntimeGuard> {
        if !self.ready.load(Acquire) {
            return Err(EINVAL);
        }

        RuntimeGuard::new(self.owner())
    }

    /// Returns the device whose memory VRAM is. Only after [`Self::setup`].
    pub(super) fn owner(&self) -> &device::Device {
        // SAFETY: `drm` does not change once `ready` is set; `self` is a part of its data.
        unsafe { dma_device(*self.drm.get()) }
    }

    /// Returns the policy for importers that cannot be revoked, and what they have pinned.
    #[inline]
    pub fn holders(&self) -> &peer::Holders {
        &self.holders
    }

    /// Returns the counters of what importers got.
    #[inline]
    pub fn peers(&self) -> &peer::Counters {
        &self.peers
    }

    /// Returns a number for an object, which no other object gets.
    pub(super) fn number(&self) -> u64 {
        self.objects.lock().number()
    }

    /// Adds an object to the list of all.
    ///
    /// # Safety
    ///
    /// [`Self::remove`] must be called before the memory of the object is freed.
    pub(super) unsafe fn insert(&self, obj: &Object<T>, room: Room) {
        // SAFETY: The object is valid, as it has a reference, and stays in memory until `remove`.
        unsafe {
            self.objects
                .lock()
                .insert(obj.id(), NonNull::new_unchecked(obj.as_raw()), room)
        }
    }

    /// Removes an object from the list of all.
    pub(super) fn remove(&self, id: u64) {
        self.objects.lock().remove(id);
    }

    /// Returns the object with the number `id`.
    pub fn object(&self, id: u64) -> Option<ARef<Object<T>>> {
        self.object_from(id).filter(|obj| obj.id() == id)
    }

    /// Returns the first object whose number is at least `id`.
    ///
    /// To visit all objects, the caller goes on with the number after the returned one. Objects
    /// that are made or freed meanwhile may be missed.
    pub fn object_from(&self, id: u64) -> Option<ARef<Object<T>>> {
        let gem = self.objects.lock().get(id)?;

        // SAFETY: The reference that was just taken belongs to the caller now. All objects of the
        // device are of this class.
        Some(unsafe {
            let obj: &Object<T> = IntoGEMObject::from_raw(gem.as_ptr());
            ARef::from_raw(obj.into())
        })
    }

    /// Charges `bytes` of VRAM that are about to be pinned, also to the cgroup of the current task.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the sum would exceed a limit.
    /// - `ENODEV` if the device was unplugged, and `ENOMEM`.
    pub(super) fn charge_pin(&self, bytes: u64) -> Result<Charge> {
        let group = self.regions.as_ref().ok_or(EINVAL)?.charge_pin(bytes)?;

        charge(&self.pinned, bytes, self.pin_limit())?;
        Ok(group)
    }

    /// Returns whether there could be room in VRAM for `bytes`, if all objects that can leave did.
    ///
    /// Visits all objects, each for a short time: the answer is only true for a moment.
    pub(super) fn could_have_room(&self, bytes: u64) -> bool {
        let (mut room, mut next) = (self.vram_free(), 0);

        while room < bytes {
            let Some(obj) = self.object_from(next) else {
                return false;
            };

            next = obj.id() + 1;
            if obj.may_leave_vram() {
                room += obj.size() as u64;
            }
        }
        true
    }

    /// Undoes [`Self::charge_pin`], except for the cgroup, whose charge ends when it is dropped.
    pub(super) fn uncharge_pin(&self, bytes: u64) {
        self.pinned.fetch_sub(bytes, Relaxed);
    }

    /// Returns the device of a C structure.
    ///
    /// # Safety
    ///
    /// `bdev` must be the device of a `Self` that is valid for `'a`.
    pub(super) unsafe fn from_raw<'a>(bdev: *mut bindings::ttm_device) -> &'a Self {
        // SAFETY: By the safety requirements.
        unsafe { &*container_of!(Opaque::cast_from(bdev), Self, bdev) }
    }
}

#[pinned_drop]
impl<T: TtmObject> PinnedDrop for Device<T> {
    fn drop(self: Pin<&mut Self>) {
        if !self.ready.load(Acquire) {
            return;
        }

        let bdev = self.bdev.get();

        // SAFETY: By the type invariant all of this was set up. Every object keeps the DRM device,
        // and so `self`, until its last reference is gone; the remaining ones wait for their
        // deletion, which the functions below do or wait for.
        unsafe {
            // There is no reclaim after this, and there are no more charges.
            self.unregister_regions();
            (*self.vram.as_raw()).cg = ptr::null_mut();
            // The deletions wait for fences without a limit, and need the managers.
            bindings::drain_workqueue((*bdev).wq);
            self.vram.fini(bdev);
            self.tt.fini(bdev);
            bindings::ttm_device_fini(bdev);
        }
    }
}

/// Where an object goes that leaves VRAM: if there is no room where devices can access it, to memory
/// without a limit, in place of a wait for users of others.
static EVICT_VRAM: [Place; 2] = [
    Place::TT.evicting(Victims::Unused),
    Place::SYSTEM.fallback(),
];
static EVICT_TT: [Place; 1] = [Place::SYSTEM];

/// # Safety
///
/// All callbacks are called by TTM with objects of a [`Device`], with their reservation held. An
/// object may be a ghost, which is left of an object that moved or is being deleted, and has only
/// the fields of the C structure.
pub(super) unsafe extern "C" fn tt_create_callback(
    bo: *mut bindings::ttm_buffer_object,
    page_flags: u32,
) -> *mut bindings::ttm_tt {
    let Ok(tt) = KBox::<Opaque<bindings::ttm_tt>>::new(Opaque::zeroed(), GFP_KERNEL) else {
        return ptr::null_mut();
    };
    let raw = tt.get();

    let caching = bindings::ttm_caching_ttm_cached;
    // SAFETY: The object is valid, and the structure is zeroed. An imported buffer has no pages.
    let ret = unsafe {
        if (*bo).type_ == bindings::ttm_bo_type_ttm_bo_type_sg {
            bindings::ttm_sg_tt_init(raw, bo, page_flags, caching)
        } else {
            bindings::ttm_tt_init(raw, bo, page_flags, caching, 0)
        }
    };
    if ret != 0 {
        return ptr::null_mut();
    }
    KBox::into_raw(tt).cast()
}

/// # Safety
///
/// See [`tt_create_callback`].
pub(super) unsafe extern "C" fn tt_destroy_callback(
    _bdev: *mut bindings::ttm_device,
    tt: *mut bindings::ttm_tt,
) {
    // SAFETY: `tt_create_callback` made it, and it is not used any more.
    unsafe {
        bindings::ttm_tt_fini(tt);
        drop(KBox::from_raw(tt.cast::<Opaque<bindings::ttm_tt>>()));
    }
}

/// # Safety
///
/// See [`tt_create_callback`].
unsafe extern "C" fn evict_flags_callback<T: TtmObject>(
    bo: *mut bindings::ttm_buffer_object,
    placement: *mut bindings::ttm_placement,
) {
    // SAFETY: The object is valid, and `placement` is a structure to be filled.
    unsafe {
        let resource = (*bo).resource;
        let ttm = Device::<T>::from_raw((*bo).bdev);
        // TTM would move all others out of TT for an object that does not fit.
        let fits = (*bo).base.size as u64 <= ttm.size_of(MemType::Tt);
        let places = if !resource.is_null() && (*resource).mem_type == bindings::TTM_PL_VRAM && fits
        {
            &EVICT_VRAM[..]
        } else {
            &EVICT_TT[..]
        };

        *placement = Place::list(places);
    }
}

/// # Safety
///
/// Called by TTM with an object of a device of `T`, which may be a ghost, with its reservation
/// held, and a place that room is needed for, or null if any memory will do: if that of a cgroup is
/// reclaimed, or for another user of VRAM, who may hold the `mmap_lock` of a process.
unsafe extern "C" fn eviction_valuable_callback<T: TtmObject>(
    bo: *mut bindings::ttm_buffer_object,
    place: *const bindings::ttm_place,
) -> bool {
    // SAFETY: As promised by the caller.
    unsafe {
        let victims = if place.is_null() {
            Victims::Own
        } else {
            Place::from_raw(place).victims()
        };

        bindings::ttm_bo_eviction_valuable(bo, place) && can_leave::<T>(bo, victims)
    }
}

/// # Safety
///
/// See [`tt_create_callback`].
unsafe extern "C" fn io_mem_reserve_callback<T: TtmObject>(
    bdev: *mut bindings::ttm_device,
    resource: *mut bindings::ttm_resource,
) -> c_int {
    // SAFETY: The resource is valid and belongs to a valid object of the device, whose reservation
    // is held. The device is that of a `Device<T>` whose cell does not change any more.
    unsafe {
        // A fault has waited for the move by now, and inserts no page before this.
        if Object::<T>::from_bo((*resource).bo).is_some_and(|obj| obj.is_lost()) {
            return EIO.to_errno();
        }
        if (*resource).mem_type == bindings::TTM_PL_VRAM {
            let start = *Device::<T>::from_raw(bdev).vram_start.get();
            let bus = &mut (*resource).bus;

            // `io_mem_pfn_callback` finds the pages; this only marks the resource as I/O memory.
            bus.offset = start;
            bus.is_iomem = true;
            bus.caching = bindings::ttm_caching_ttm_write_combined;
        }
    }
    0
}

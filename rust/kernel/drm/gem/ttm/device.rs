// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory of a DRM device.
//!
//! TTM calls only into this folder and into `drm/ttm/tt.rs`.
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
                Parent,
                ParentOf,
                Unrevocable,
                Vram, //
            },
            ttm::Object,
            BaseObject, //
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
            Allocator,
            MemType, //
        }, //
    },
    error::to_result,
    pm::RuntimeGuard,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SetOnce, //
    },
    types::Opaque, //
};
use core::{
    marker::{
        PhantomData,
        PhantomPinned, //
    },
    ops::Deref,
    ptr, //
};

/// The memory of one DRM device: a `struct ttm_device` with its managers.
///
/// It belongs in the data of the DRM device ([`drm::Driver::Data`]). Objects can be created from
/// the creation of the registration data on. While the DRM device is registered, VRAM is a region
/// of the cgroup controller `dmem`, called `drm/<device>/vram0`. Pinned VRAM is another region,
/// called `drm/<device>/pinned`. Both end when the DRM device is unplugged.
///
/// # Invariants
///
/// Once `peers` is started, `bdev` is an initialized device with the managers `vram` and `tt`. It
/// belongs to the DRM device whose data contains `self`.
#[pin_data(PinnedDrop)]
pub struct Device<T: TtmObject> {
    bdev: Opaque<bindings::ttm_device>,
    vram: VramManager,
    tt: TtManager,
    /// VRAM as regions of the cgroup controller. Objects in VRAM and pins are charged to them.
    regions: SetOnce<Regions>,
    /// How many bytes of VRAM are pinned.
    pinned: Atomic<u64>,
    /// How many bytes may be pinned.
    pin_limit: Atomic<u64>,
    /// How many bytes may be pinned for one client.
    client_pin_limit: Atomic<u64>,
    pub(super) jobs: Jobs,
    validation: Pin<KBox<Validation>>,
    /// VRAM as peers see it.
    peers: Vram<T>,
    /// The task in which the driver suspends or resumes the device and objects are moved for it, or
    /// 0.
    pub(super) transition: Atomic<usize>,
    /// Objects have backups.
    pub(super) has_backups: Atomic<bool>,
    /// The windows through which peers and the CPU see objects.
    pub(super) windows: Windows,
    /// Objects no longer mapped for direct I/O whose pages still have references.
    pub(super) deferred: Deferred,
    #[pin]
    _pin: PhantomPinned,
    _p: PhantomData<fn(T)>,
}

// SAFETY: TTM synchronizes access to the C structure and the managers; the rest is `Send`.
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

    /// Creates the memory of the device `parent` with one engine. `allocator` allocates VRAM. Its
    /// first `visible` bytes are visible to the CPU and peers in the BAR `bar`.
    ///
    /// `parent` is that of the DRM device: the PCI device or an auxiliary device of it. The PCI
    /// device becomes the DMA device. [`enable_p2pdma`](crate::pci::Device::enable_p2pdma) must
    /// have been called for it. It is kept active for VRAM, maps system memory and imports buffers.
    /// The tracepoints and the cgroup controller use its name.
    ///
    /// When objects are to be accessed, they are moved to memory visible to the CPU and peers,
    /// unless there are windows: [`TtmObject::APERTURE`]. Initially half of VRAM may be pinned.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such BAR, if `visible` is more than it shows or if `parent` is not
    ///   prepared.
    /// - `EOPNOTSUPP` if the engines do DMA and the PCI device does not reach all system memory.
    /// - `ENAMETOOLONG` if the name of the driver has more than 31 bytes.
    /// - `ENOMEM` if memory runs out.
    pub fn new(
        parent: &ParentOf<T>,
        bar: u32,
        visible: u64,
        allocator: Arc<Allocator>,
    ) -> impl PinInit<Self, Error> + use<T>
    where
        ParentOf<T>: Parent,
    {
        let name = <T::Driver as drm::Driver>::INFO.name;

        Self::with_engines(parent, bar, visible, allocator, &[name])
    }

    /// As [`Self::new`] with an engine for each of `names`. The contexts of their fences have these
    /// names.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no name.
    /// - `E2BIG` if there are more than [`MAX_ENGINES`](drm::ttm::MAX_ENGINES).
    /// - The errors of [`Self::new`].
    pub fn with_engines(
        parent: &ParentOf<T>,
        bar: u32,
        visible: u64,
        allocator: Arc<Allocator>,
        names: &[&CStr],
    ) -> impl PinInit<Self, Error> + use<T>
    where
        ParentOf<T>: Parent,
    {
        let vram_size = allocator.size();
        let peers = Vram::new(parent, bar, visible, allocator.clone());
        let jobs = parent
            .pci()
            .and_then(|pdev| Self::jobs(pdev.as_ref(), names));

        // INVARIANT: The VRAM is not started.
        try_pin_init!(Self {
            bdev: Opaque::zeroed(),
            vram: VramManager::new(allocator),
            tt: TtManager::new(),
            regions: SetOnce::new(),
            pinned: Atomic::new(0),
            pin_limit: Atomic::new(vram_size / 2),
            client_pin_limit: Atomic::new(u64::MAX),
            jobs: jobs?,
            validation: Validation::new()?,
            peers: peers?,
            transition: Atomic::new(0),
            has_backups: Atomic::new(false),
            windows: Windows::new()?,
            deferred: Deferred::new(),
            _pin: PhantomPinned,
            _p: PhantomData,
        })
    }

    /// Starts the memory management of `drm` right before its registration.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if [`TtmObject::ttm`] does not return a part of the data of `drm`, or if the
    ///   parent of `drm` is not the one passed to [`Self::new`].
    /// - `ENOMEM` if memory runs out.
    pub(super) fn start(drm: &drm::UnregisteredDevice<T::Driver>) -> Result {
        let data: &<T::Driver as drm::Driver>::Data = drm;
        let this = T::ttm(data);
        let (dev, owner) = (drm.as_raw(), this.owner().as_raw());

        this.peers.prepare(drm, this)?;

        let bdev = this.bdev.get();
        // SAFETY: Both devices are valid. `bdev` is zeroed. It is part of the data of the DRM
        // device, so the DRM device outlives it.
        to_result(unsafe {
            bindings::ttm_device_init(
                bdev,
                const { &Self::FUNCS },
                owner,
                (*(*dev).anon_inode).i_mapping,
                (*dev).vma_offset_manager,
                bindings::TTM_ALLOCATION_PROPAGATE_ENOSPC,
            )
        })?;

        // SAFETY: The device was just initialized. `self` is pinned: the only constructor is a
        // pin-initializer. `PinnedDrop` undoes it. The DMA device of a DRM device is valid as long
        // as the DRM device. The manager stays until the regions are dropped.
        let regions = unsafe {
            this.vram.init::<T>(bdev);
            this.tt.init(bdev);
            Regions::new(owner, this.vram.as_raw(), this.vram_size())
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

        // INVARIANT: All of it was set up.
        this.peers.start(drm);
        Ok(())
    }

    /// Removes the mappings of objects in processes until the next access.
    ///
    /// An access resumes the device. Sleeps. Mirrors `unmap_mapping_range()`.
    pub(super) fn zap_mappings(&self) {
        if self.peers.is_started() {
            // SAFETY: By the type invariant the device is initialized. Its mapping is that of the
            // DRM device, and the DRM device outlives it.
            unsafe { bindings::unmap_mapping_range((*self.bdev.get()).dev_mapping, 0, 0, 1) };
        }
    }

    /// Ends the use of the unplugged device `drm`: no VRAM is allocated any more, and engines reach
    /// no system memory.
    pub(super) fn unplugged(&self, drm: *mut bindings::drm_device) {
        if self.is_of(drm) {
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
    /// `EINVAL` if `drm` is another device or was never about to be registered.
    pub(super) fn bdev(&self, drm: *mut bindings::drm_device) -> Result<*mut bindings::ttm_device> {
        self.check(drm)?;
        Ok(self.bdev.get())
    }

    /// Returns the manager of VRAM and the C structure.
    ///
    /// # Errors
    ///
    /// `EINVAL` before the DRM device is about to be registered.
    pub(super) fn vram_manager(&self) -> Result<(&VramManager, *mut bindings::ttm_device)> {
        if !self.peers.is_started() {
            return Err(EINVAL);
        }
        Ok((&self.vram, self.bdev.get()))
    }

    /// Returns those of `places` large enough for `size` bytes.
    ///
    /// TTM logs an error if an object exceeds a place. It evicts all objects from a too small place
    /// before it goes on to the next.
    ///
    /// # Errors
    ///
    /// The errors of [`Places::fitting`].
    pub(super) fn fitting(&self, places: &[Place], size: u64) -> Result<Places> {
        Places::fitting(places, size, |mem_type| self.size_of(mem_type))
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

    /// Returns how many bytes of VRAM are free. Objects waiting for their deletion still have
    /// theirs.
    #[inline]
    pub fn vram_free(&self) -> u64 {
        self.vram.allocator().avail()
    }

    /// Returns how many bytes of VRAM are charged as pinned, see [`PinAccount`](super::PinAccount).
    #[inline]
    pub fn pinned(&self) -> u64 {
        self.pinned.load(Relaxed)
    }

    /// Returns how many bytes of VRAM may be pinned.
    #[inline]
    pub fn pin_limit(&self) -> u64 {
        self.pin_limit.load(Relaxed)
    }

    /// Changes how many bytes of VRAM may be pinned. Pinned objects stay pinned.
    pub fn set_pin_limit(&self, bytes: u64) {
        self.pin_limit.store(bytes, Relaxed);
    }

    /// Returns how many bytes of VRAM cannot be reused because pages of objects no longer mapped
    /// for direct I/O still have references.
    #[inline]
    pub fn referenced(&self) -> u64 {
        self.deferred.bytes()
    }

    /// Changes how many bytes objects may have in [`Place::TT`]. Objects already there stay.
    ///
    /// Initially the only limit is that of TTM for all devices together. If there is no space for
    /// an object, other objects are moved to [`Place::SYSTEM`]. An object larger than the limit can
    /// only go there when it is evicted from VRAM.
    pub fn set_tt_limit(&self, bytes: u64) {
        self.tt.set_limit(bytes);
    }

    /// Returns how many bytes of VRAM may be pinned for one client.
    #[inline]
    pub fn client_pin_limit(&self) -> u64 {
        self.client_pin_limit.load(Relaxed)
    }

    /// Changes how many bytes of VRAM may be pinned for one client, see [`PinAccount`]. Pinned
    /// objects stay pinned. Initially the limit of a client is that of the device.
    ///
    /// [`PinAccount`]: super::PinAccount
    pub fn set_client_pin_limit(&self, bytes: u64) {
        self.client_pin_limit.store(bytes, Relaxed);
    }

    /// Sets how much of VRAM may be pinned: the limits of all clients and of one, and the policy
    /// for non-revocable importers.
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

    /// Calls `f` to lock objects and move them to where they are needed, with the device active.
    ///
    /// As [`Exec::run`], with one difference. Tasks that evict at the same time can block each
    /// other and get `ENOSPC`: if `f` finds no space, it is called again a few times, alone on this
    /// device. No reservation may be held.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if there is no space.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - The errors of [`Exec::run`] and [`RuntimeGuard::new`].
    pub fn exec<R>(
        &self,
        flags: impl Into<Flags>,
        f: impl FnMut(&mut ExecCtx<'_>) -> Result<R>,
    ) -> Result<R> {
        let _runtime_guard = self.runtime_guard()?;

        self.exec_as_is(flags, f)
    }

    /// As [`Self::exec`] for a caller that keeps the device active or does not need it.
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

    /// Takes a runtime PM guard of the device.
    ///
    /// # Errors
    ///
    /// The errors of [`RuntimeGuard::new`].
    pub(super) fn runtime_guard(&self) -> Result<RuntimeGuard> {
        RuntimeGuard::new(self.owner())
    }

    /// Charges `bytes` of VRAM for an upcoming pin, also to the cgroup of the current task.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the sum would exceed a limit.
    /// - `ENODEV` if the device was unplugged.
    /// - `ENOMEM` if memory runs out.
    pub(super) fn charge_pin(&self, bytes: u64) -> Result<Charge> {
        let group = self.regions.as_ref().ok_or(EINVAL)?.charge_pin(bytes)?;

        charge(&self.pinned, bytes, self.pin_limit())?;
        Ok(group)
    }

    /// Returns whether there could be space in VRAM for `bytes` if all evictable objects left.
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

    /// Undoes [`Self::charge_pin`] except for the cgroup. Its charge ends when it is dropped.
    pub(super) fn uncharge_pin(&self, bytes: u64) {
        self.pinned.fetch_sub(bytes, Relaxed);
    }

    /// Returns the device of a C structure.
    ///
    /// # Safety
    ///
    /// `bdev` must be the device of a `Self` valid for `'a`.
    pub(super) unsafe fn from_raw<'a>(bdev: *mut bindings::ttm_device) -> &'a Self {
        // SAFETY: By the safety requirements.
        unsafe { &*container_of!(Opaque::cast_from(bdev), Self, bdev) }
    }
}

impl<T: TtmObject> Deref for Device<T> {
    type Target = Vram<T>;

    #[inline]
    fn deref(&self) -> &Vram<T> {
        &self.peers
    }
}

#[pinned_drop]
impl<T: TtmObject> PinnedDrop for Device<T> {
    fn drop(self: Pin<&mut Self>) {
        if !self.peers.is_started() {
            return;
        }

        let bdev = self.bdev.get();

        // SAFETY: By the type invariant all of this was set up. Every object keeps the DRM device
        // and so `self` until its last reference is gone. The remaining objects wait for their
        // deletion. The functions below delete them or wait for it.
        unsafe {
            // There is no reclaim and no charge after this.
            self.unregister_regions();
            (*self.vram.as_raw()).cg = ptr::null_mut();
            // The deletions wait for fences without a limit and need the managers.
            bindings::drain_workqueue((*bdev).wq);
            self.vram.fini(bdev);
            self.tt.fini(bdev);
            bindings::ttm_device_fini(bdev);
        }
    }
}

/// The destination of an object evicted from VRAM. If there is no space in device-accessible
/// memory, it goes to memory without a limit rather than wait for the work of other users.
static EVICT_VRAM: [Place; 2] = [
    Place::TT.evicting(Victims::Unused),
    Place::SYSTEM.fallback(),
];
static EVICT_TT: [Place; 1] = [Place::SYSTEM];

/// # Safety
///
/// All callbacks are called by TTM with reserved objects of a [`Device`]. An object may be a ghost:
/// the remainder of an object that moved or is being deleted. It has only the fields of the C
/// structure.
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
    // SAFETY: `tt_create_callback` created it, and it is not used any more.
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
/// Called by TTM with an object of a device of `T`, possibly a ghost, and with a place in need of
/// space. The reservation of the object is held. The place is null if any memory will do: if the
/// memory of a cgroup is reclaimed, or for another user of VRAM. This user may hold the `mmap_lock`
/// of a process.
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
    // SAFETY: The resource is valid and belongs to a valid, reserved object of the device. The
    // device is that of a `Device<T>` whose cell does not change any more.
    unsafe {
        // A fault has waited for the move by now and inserts no page before this.
        if Object::<T>::from_bo((*resource).bo).is_some_and(|obj| obj.is_lost()) {
            return EIO.to_errno();
        }
        if (*resource).mem_type == bindings::TTM_PL_VRAM {
            let start = Device::<T>::from_raw(bdev).vram_start();
            let bus = &mut (*resource).bus;

            // `io_mem_pfn_callback` finds the pages; this only marks the resource as I/O memory.
            bus.offset = start;
            bus.is_iomem = true;
            bus.caching = bindings::ttm_caching_ttm_write_combined;
        }
    }
    0
}

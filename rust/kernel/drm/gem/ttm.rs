// SPDX-License-Identifier: GPL-2.0 OR MIT

//! GEM objects that live where TTM puts them.
//!
//! An [`Object`] is made with a list of [`Place`]s and moves when TTM needs room. Whoever wants to
//! look at where it is, move or pin it, reserves it first: [`Reserved`] is the proof that the
//! reservation is held. [`Held`] is the view that it gives, and that the layers of the kernel
//! crate have in callbacks, which are called with the reservation held.
//!
//! Processes map an object through its fake offset, write-combined where it is in VRAM; the kernel
//! maps it for those who import its dma-buf. A mapping of a process is taken away when the object
//! moves and made anew at the next access. An object does not move while the kernel maps it.
//!
//! What is pinned of an object in VRAM is accounted to the client that exported it: see
//! [`PinAccount`].
//!
//! An object may also stand for the buffer of another device, see [`Import`]. It has no memory here
//! and cannot be moved or pinned; processes map what the exporter shows them.
//!
//! VRAM is out of reach while the device is suspended. Who is going to move an object to or from VRAM
//! holds a [`pm::Awake`](crate::pm::Awake) from before it is reserved: with a reservation held the
//! device is not resumed, as its driver may need that to suspend it. [`Object::new`],
//! [`Device::exec`](drm::ttm::Device::exec) and [`copy`] see to it themselves.
//!
//! For locks and lifetimes see [`drm::ttm`].
//!
//! C header: [`include/drm/ttm/ttm_bo.h`](srctree/include/drm/ttm/ttm_bo.h)

mod backing;
mod copy;
pub mod debugfs;
mod import;
mod suspend;

pub use self::{
    copy::{
        copy,
        Part, //
    },
    suspend::Content, //
};
pub use super::import::Import;

use super::{
    close_callback,
    open_callback,
    peer::trace,
    BaseObject,
    Held,
    IntoGEMObject,
    Status, //
};
use crate::{
    bindings,
    container_of,
    dma_buf::exporter,
    dma_resv::{
        LockedResv,
        Usage, //
    },
    drm::{
        self,
        devres::while_registered,
        driver::{
            AllocImpl,
            AllocOps, //
        },
        exec::{
            ExecCtx,
            Flag,
            Flags, //
        },
        private::Sealed,
        ttm::{
            Charge,
            OpCtx,
            Pages,
            PinAccount,
            Place,
            Side,
            Transfer,
            TtmObject,
            VramResource,
            Work, //
        },
        vram::{
            Domain,
            MemType,
            Ranges, //
        }, //
    },
    error::{
        from_result,
        to_result, //
    },
    page::{
        page_align,
        PAGE_SHIFT, //
    },
    pm::Awake,
    prelude::*,
    rbtree::RBTreeNodeReservation,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    types::Opaque, //
};
use core::{
    cell::UnsafeCell,
    ops::Deref,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// How many pages one fault maps at most.
const FAULT_AROUND: usize = 16;

/// How often an object is tried to be placed while others may be in the way, which takes some 100 ms.
const PATIENCE: u32 = 16;

/// A GEM object of TTM.
///
/// # Invariants
///
/// - `bo` is an initialized object of a [`Device`](drm::ttm::Device).
/// - The object owns a reference to its DRM device until its own last reference is gone.
/// - `exported` is null or the dma-buf of the object; the reservation guards it, `pins` and `backup`.
/// - While `pins.off_lru` is set the object is in VRAM, and one of the pins of `bo` is due to that.
/// - An object with `import` is of the type `ttm_bo_type_sg` and shares the reservation of the buffer
///   that it stands for. Others have a reservation of their own.
#[repr(C)]
#[pin_data]
pub struct Object<T: TtmObject> {
    // First, and the GEM object is the first field of it.
    bo: Opaque<bindings::ttm_buffer_object>,
    exported: UnsafeCell<*mut bindings::dma_buf>,
    pins: UnsafeCell<Pins>,
    /// What was in VRAM when the device was suspended, if it loses that. The reservation guards it.
    backup: UnsafeCell<Option<suspend::Backup>>,
    /// What `bo.resource` is, for those without the reservation: a `TTM_PL_*`, or `NO_PLACEMENT`.
    residence: Atomic<u32>,
    id: u64,
    // Keeps the reservation, which TTM uses until it calls `destroy_callback`.
    import: Option<Import>,
    #[pin]
    data: T,
}

/// Why an object is pinned, and on whose account.
struct Pins {
    /// One of the pins that TTM counts only keeps the object off the LRU list.
    off_lru: bool,
    /// That of the client that exported it.
    exporter: Option<Arc<PinAccount>>,
    /// The one that has been charged.
    charged: Option<Arc<PinAccount>>,
    /// What the group of the process that pinned it was charged, while anybody is.
    group: Option<Charge>,
}

// SAFETY: GEM objects may be used and released from any task, and `T` is `Send`.
unsafe impl<T: TtmObject> Send for Object<T> {}

// SAFETY: TTM synchronizes access to the object, the reservation guards `exported` and `pins`, and
// `T` is `Sync`.
unsafe impl<T: TtmObject> Sync for Object<T> {}

impl<T: TtmObject> Object<T> {
    const FUNCS: bindings::drm_gem_object_funcs = bindings::drm_gem_object_funcs {
        free: Some(free_callback::<T>),
        open: Some(open_callback::<T>),
        close: Some(close_callback::<T>),
        print_info: Some(bindings::drm_gem_ttm_print_info),
        export: T::PRIME.export,
        vmap: Some(vmap_callback::<T>),
        vunmap: Some(vunmap_callback::<T>),
        mmap: Some(mmap_callback::<T>),
        status: Some(status_callback::<T>),
        vm_ops: const { &Self::VM_OPS },
        ..pin_init::zeroed()
    };

    const VM_OPS: bindings::vm_operations_struct = bindings::vm_operations_struct {
        open: Some(bindings::ttm_bo_vm_open),
        close: Some(bindings::ttm_bo_vm_close),
        fault: Some(fault_callback::<T>),
        ..pin_init::zeroed()
    };

    /// Makes an object of at least `size` bytes, rounded up to pages, in one of `places`.
    ///
    /// Its content is zero. No reservation may be held.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `size` is 0 or the memory of `dev` was not set up.
    /// - `ENOSPC` if no place has room for it, or it has 16 TiB or more.
    /// - `ENODEV` if it is to be in VRAM and the driver is not bound any more.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - `ENOMEM` if memory runs out.
    /// - Those of [`Awake::new`] if it may be in VRAM.
    pub fn new(
        dev: &drm::Device<T::Driver>,
        size: usize,
        places: &[Place],
        ctx: &mut OpCtx,
        args: T::Args,
    ) -> Result<ARef<Self>> {
        if size == 0 {
            return Err(EINVAL);
        }
        let size = page_align(size).ok_or(ENOSPC)?;
        // TTM counts the pages of a transfer with 32 bits.
        u32::try_from(size >> PAGE_SHIFT).map_err(|_| ENOSPC)?;
        let ttm = T::ttm(dev);
        let places = ttm.fitting(places, size as u64)?;
        let _awake = places
            .iter()
            .any(|place| place.mem_type() == MemType::Vram)
            .then(|| ttm.awake())
            .transpose()?;
        let obj = Self::make(dev, size, &places.without_eviction(), ctx, args, None)?;

        // To evict others, their reservations may have to be waited for, which takes a ticket.
        let flags = if ctx.is_interruptible() {
            Flag::Interruptible.into()
        } else {
            Flags::default()
        };
        let is_placed = |mem_type| {
            places
                .iter()
                .any(|place| mem_type == Some(place.mem_type()))
        };
        if !is_placed(obj.reserve(false)?.mem_type()) {
            ttm.exec_as_is(flags, |exec| {
                obj.lock(exec)?.ok_or(EALREADY)?.validate(&places, ctx)
            })?;
        }
        Ok(obj)
    }

    /// Makes an object of `size` bytes, which are whole pages, in one of `places`.
    ///
    /// One with `import` has no pages and no VRAM.
    fn make(
        dev: &drm::Device<T::Driver>,
        size: usize,
        places: &[Place],
        ctx: &mut OpCtx,
        args: T::Args,
        import: Option<Import>,
    ) -> Result<ARef<Self>> {
        let drm = dev.as_raw();
        let ttm = T::ttm(dev);
        let bdev = ttm.bdev(drm)?;
        let room = RBTreeNodeReservation::new(GFP_KERNEL)?;
        // Who shares a reservation holds it while the object is made, and keeps what it is part of.
        let shared = import.as_ref().map(|import| ARef::from(import.dma_buf()));

        let obj = KBox::pin_init(
            try_pin_init!(Self {
                bo: Opaque::zeroed(),
                exported: UnsafeCell::new(ptr::null_mut()),
                pins: UnsafeCell::new(Pins {
                    off_lru: false,
                    exporter: None,
                    charged: None,
                    group: None,
                }),
                backup: UnsafeCell::new(None),
                residence: Atomic::new(trace::NO_PLACEMENT),
                id: ttm.number(),
                import,
                data <- T::new(dev, size, args),
            }),
            GFP_KERNEL,
        )?;

        // SAFETY: The value is not moved. It belongs to its references from here on.
        let this = KBox::into_raw(unsafe { Pin::into_inner_unchecked(obj) });
        // SAFETY: Just allocated.
        let bo = unsafe { (*this).bo.get() };

        let (bo_type, resv) = match &shared {
            None => (bindings::ttm_bo_type_ttm_bo_type_device, ptr::null_mut()),
            Some(buf) => {
                // Unlocked by what unlocks the object below.
                core::mem::forget(buf.resv().lock());
                (bindings::ttm_bo_type_ttm_bo_type_sg, buf.resv().as_raw())
            }
        };

        // SAFETY: The GEM object is zeroed. The device is valid, and `free_callback` puts the
        // reference. A reservation that is shared is held, and valid as long as the object, which
        // keeps its buffer. On failure TTM calls `destroy_callback`, for an object that shares its
        // reservation later, by a worker which takes it.
        unsafe {
            let gem = &raw mut (*bo).base;

            (*gem).funcs = const { &Self::FUNCS };
            bindings::drm_gem_private_object_init(drm, gem, size);
            bindings::drm_dev_get(drm);

            let mut placement = placement(places);
            let ret = to_result(bindings::ttm_bo_init_reserved(
                bdev,
                bo,
                bo_type,
                &mut placement,
                0,
                &mut ctx.0,
                ptr::null_mut(),
                resv,
                Some(destroy_callback::<T>),
            ));
            if let Err(e) = ret {
                if !resv.is_null() {
                    bindings::dma_resv_unlock(resv);
                }
                bindings::drm_dev_put(drm);
                return Err(e);
            }
        }

        // INVARIANT: Initialized, and the reference to the device was taken above.
        // SAFETY: The value is valid, and the reference is its first.
        let obj: ARef<Self> = unsafe { ARef::from_raw(NonNull::new_unchecked(this)) };
        // SAFETY: The object was made with its reservation held.
        unsafe {
            Held::assume(&*obj).take_off_lru();
            bindings::dma_resv_unlock((*obj.as_raw()).resv);
        }
        // SAFETY: `free_callback` removes it.
        unsafe { ttm.insert(&obj, room) };
        Ok(obj)
    }

    /// Locks the object together with others, in a round of [`Exec`](drm::exec::Exec).
    ///
    /// Returns [`None`] if its reservation is that of an object which is locked already, with
    /// [`Flag::IgnoreDuplicates`].
    ///
    /// # Errors
    ///
    /// Those of [`ExecCtx::prepare_obj`].
    pub fn lock<'a>(&self, exec: &mut ExecCtx<'a>) -> Result<Option<Held<'a, Object<T>>>> {
        let Some(_) = exec.prepare_obj(self, 0)? else {
            return Ok(None);
        };

        // SAFETY: The round has a reference to the object and holds the reservation, and lasts for
        // `'a`.
        Ok(Some(unsafe { Held::assume(&*ptr::from_ref(self)) }))
    }

    /// Returns the number of the object, which no other object of the device has or had.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns where the object was when somebody looked last, [`None`] if it had no memory.
    ///
    /// For statistics: without the reservation, which this does not need, it may be elsewhere by
    /// now.
    #[inline]
    pub fn residence(&self) -> Option<MemType> {
        MemType::from_raw(self.residence.load(Relaxed))
    }

    /// Tells whether the object was in VRAM, and could be evicted, when somebody looked last.
    pub(crate) fn may_leave_vram(&self) -> bool {
        // SAFETY: The object is valid. The count is only looked at, and may change.
        let pins = unsafe { (&raw const (*self.bo()).pin_count).read_volatile() };

        self.residence() == Some(MemType::Vram) && self.domain() == Domain::Either && pins == 0
    }

    /// Returns the object as the subject of a tracepoint.
    pub(crate) fn subject(&self) -> trace::Subject<'_> {
        trace::Subject {
            exporter: self.ttm().owner(),
            id: self.id,
            size: self.size() as u64,
        }
    }

    /// Reserves the object.
    ///
    /// No other reservation may be held.
    ///
    /// # Errors
    ///
    /// `EINTR` if `interruptible`, and a signal is pending.
    pub fn reserve(&self, interruptible: bool) -> Result<Reserved<'_, T>> {
        // SAFETY: The reservation of a valid object is valid.
        unsafe {
            let resv = (*self.as_raw()).resv;

            if interruptible {
                to_result(bindings::dma_resv_lock_interruptible(resv, ptr::null_mut()))?;
            } else {
                bindings::dma_resv_lock(resv, ptr::null_mut());
            }
        }

        // SAFETY: Locked above.
        Ok(Reserved(unsafe { Held::assume(self) }))
    }

    /// Returns the object of a C structure, [`None`] if it is a ghost.
    ///
    /// # Safety
    ///
    /// `bo` must be an object of a device of `T`, valid for `'a`.
    pub(crate) unsafe fn from_bo<'a>(bo: *mut bindings::ttm_buffer_object) -> Option<&'a Self> {
        // A ghost is a bare copy of the C structure, with a destructor and no GEM device. The
        // device of an object is set as long as it exists.
        // SAFETY: `bo` is valid.
        if unsafe { (*bo).base.dev }.is_null() {
            return None;
        }

        // SAFETY: Not a ghost, hence an `Object<T>`.
        Some(unsafe { &*container_of!(Opaque::cast_from(bo), Self, bo) })
    }

    fn bo(&self) -> *mut bindings::ttm_buffer_object {
        self.bo.get()
    }

    /// Returns the memory that the object was made in, whatever [`TtmObject::ttm`] says by now.
    pub(crate) fn ttm(&self) -> &drm::ttm::Device<T> {
        // SAFETY: By the type invariant the object is one of such a device, which is part of the
        // data of the DRM device, and so valid as long as the object.
        unsafe { drm::ttm::Device::from_raw((*self.bo()).bdev) }
    }

    /// Keeps the device awake whose memory VRAM is, which is out of reach otherwise.
    ///
    /// # Errors
    ///
    /// Those of [`Awake::new`].
    pub(crate) fn awake(&self) -> Result<Awake> {
        Awake::new(self.ttm().owner())
    }

    /// As [`Self::awake`] for a task that has a reservation, [`None`] if the device is not awake.
    pub(crate) fn awake_if_active(&self) -> Option<Awake> {
        Awake::if_active(self.ttm().owner())
    }

    /// Takes back what of [`Self::awake`] was forgotten.
    ///
    /// # Safety
    ///
    /// Those of [`Awake::from_forgotten`].
    pub(crate) unsafe fn awake_from_forgotten(&self) -> Awake {
        // SAFETY: As promised by the caller.
        unsafe { Awake::from_forgotten(self.ttm().owner()) }
    }
}

fn placement(places: &[Place]) -> bindings::ttm_placement {
    bindings::ttm_placement {
        // CAST: There are few places.
        num_placement: places.len() as u32,
        placement: places.as_ptr().cast(),
    }
}

impl<T: TtmObject> Sealed for Object<T> {}

super::impl_aref_for_gem_obj! {
    impl<T> for Object<T>
    where
        T: TtmObject
}

impl<T: TtmObject> IntoGEMObject for Object<T> {
    fn as_raw(&self) -> *mut bindings::drm_gem_object {
        // SAFETY: `bo` is valid; no reference is made.
        unsafe { &raw mut (*self.bo.get()).base }
    }

    unsafe fn from_raw<'a>(gem: *mut bindings::drm_gem_object) -> &'a Self {
        // SAFETY: The GEM object is the first field of the first field of a `Self`, and valid for
        // `'a` as the caller promises.
        unsafe { &*gem.cast() }
    }
}

impl<T: TtmObject> Deref for Object<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T: TtmObject> AllocImpl for Object<T> {
    type Driver = T::Driver;

    const ALLOC_OPS: AllocOps = AllocOps {
        gem_create_object: None,
        prime_handle_to_fd: Some(handle_to_fd_callback::<T>),
        prime_fd_to_handle: if T::PRIME.import.is_some() {
            Some(import::fd_to_handle_callback)
        } else {
            None
        },
        gem_prime_import: T::PRIME.import,
        gem_prime_import_sg_table: None,
        dumb_create: None,
        dumb_map_offset: None,
    };

    const UNPLUGGED: Option<unsafe fn(*mut bindings::drm_device)> = Some(unplugged_callback::<T>);
}

impl<T: TtmObject> Held<'_, Object<T>> {
    /// Returns the driver's part of the object.
    #[inline]
    pub fn data(&self) -> &T {
        &self.obj.data
    }

    fn bo(&self) -> *mut bindings::ttm_buffer_object {
        self.obj.bo()
    }

    /// Returns the kind of memory that the object is in, [`None`] if it has none yet.
    pub fn mem_type(&self) -> Option<MemType> {
        // SAFETY: The reservation, which guards the resource, is held.
        unsafe {
            let resource = (*self.bo()).resource;

            if resource.is_null() {
                None
            } else {
                MemType::from_raw((*resource).mem_type)
            }
        }
    }

    /// Returns where in VRAM the object is, [`None`] if it is not.
    pub fn vram(&self) -> Option<&Ranges> {
        if self.mem_type() != Some(MemType::Vram) {
            return None;
        }

        // SAFETY: It is a resource of VRAM, which stays while the reservation is held and the view
        // is not used to move it.
        Some(unsafe { VramResource::from_raw((*self.bo()).resource) }.ranges())
    }

    /// Returns how much of VRAM the CPU and peers see, in bytes.
    #[inline]
    pub fn visible(&self) -> u64 {
        self.ttm().visible()
    }

    /// Tells whether the object is pinned.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        // SAFETY: The reservation, which guards the count and the cell, is held.
        unsafe { (*self.bo()).pin_count > u32::from((*self.obj.pins.get()).off_lru) }
    }

    /// Takes note that the object is used: of those that can be evicted it is the last one now.
    ///
    /// Whoever has the object reserved calls this if it is going to access the content, or has
    /// somebody else do so, and not to look at where it is.
    pub(crate) fn touch(&self) {
        // SAFETY: The object is valid, and its reservation is held, which guards the count and the
        // place. What is pinned is on no LRU list.
        unsafe {
            if (*self.bo()).pin_count == 0 {
                bindings::ttm_bo_move_to_lru_tail_unlocked(self.bo());
            }
        }
    }

    /// Takes an object that is in VRAM and never leaves it off the LRU list, where each task that
    /// evicts would have to pass it over.
    ///
    /// TTM keeps what is pinned off the list, so this is a pin for TTM. It is none for others:
    /// [`Self::is_pinned`] does not tell of it, it is not charged, and [`Self::validate`] moves the
    /// object all the same.
    fn take_off_lru(&mut self) {
        if self.data().domain() == Domain::Vram && self.mem_type() == Some(MemType::Vram) {
            self.set_off_lru(true);
        }
    }

    fn set_off_lru(&mut self, off_lru: bool) {
        // SAFETY: The reservation, which guards the cell, is held.
        let pins = unsafe { &mut *self.obj.pins.get() };

        if pins.off_lru == off_lru {
            return;
        }
        // INVARIANT: Pinned below, by who found it in VRAM, or not pinned any more.
        pins.off_lru = off_lru;
        // SAFETY: The object is valid, and its reservation is held. Only what was pinned here is
        // unpinned.
        unsafe {
            if off_lru {
                bindings::ttm_bo_pin(self.bo());
            } else {
                bindings::ttm_bo_unpin(self.bo());
            }
        }
    }

    /// Moves the object to one of `places`, unless it is in one already.
    ///
    /// Importers are told before it moves. Waits for the work on the object, but not for the move:
    /// its fence is in the reservation. The object counts as used, also if it does not move. To move
    /// it to or from VRAM takes a device that is awake, see the [module](self). Mirrors
    /// `ttm_bo_validate()`.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the device is suspended.
    /// - `EINVAL` if it is pinned elsewhere.
    /// - `EOPNOTSUPP` if it is imported: it is up to its exporter where it is.
    /// - `ENOSPC` if no place has room for it.
    /// - `ENODEV` if the driver is not bound any more.
    /// - `EBUSY` if the work on it, or on what it would evict, takes too long.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - `ENOMEM` if memory runs out.
    pub fn validate(&mut self, places: &[Place], ctx: &mut OpCtx) -> Result {
        if self.obj.import.is_some() {
            return Err(EOPNOTSUPP);
        }

        let places = self.ttm().fitting(places, self.obj.size() as u64)?;

        // TTM does not move what is pinned. Others cannot evict it meanwhile, as it is reserved.
        self.set_off_lru(false);
        let mut placement = placement(&places);
        // SAFETY: The object is valid, and its reservation is held.
        let ret =
            to_result(unsafe { bindings::ttm_bo_validate(self.bo(), &mut placement, &mut ctx.0) });
        self.take_off_lru();
        ret?;

        self.touch();
        Ok(())
    }

    /// As [`Self::validate`], for a task that has no ticket, and holds the reservation of the object
    /// only.
    ///
    /// TTM only tries the locks of those that it would evict then, so that it finds no room while
    /// others look at them. Where there could be room it is tried again, for some time.
    ///
    /// # Errors
    ///
    /// Those of [`Self::validate`].
    pub(crate) fn validate_patiently(&mut self, places: &[Place], ctx: &mut OpCtx) -> Result {
        let size = self.obj.size() as u64;

        for attempt in 0..PATIENCE {
            match self.validate(places, ctx) {
                Err(e) if e == ENOSPC && self.ttm().could_have_room(size) => (),
                ret => return ret,
            }
            fsleep(Delta::from_millis(1 << attempt.min(3)));
        }
        self.validate(places, ctx)
    }

    /// Makes the object stay where it is until [`Self::unpin_raw`]. Calls nest.
    ///
    /// Pages that could be swapped out without a word are moved to where they cannot. Waits for moves
    /// of the object: who has pinned it need not.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if it is in VRAM, of which no more may be pinned.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - Those of [`Self::validate`].
    pub(crate) fn pin_raw(&mut self) -> Result {
        let bo = self.bo();

        if !self.is_pinned() {
            if !matches!(self.mem_type(), Some(MemType::Vram | MemType::Tt)) {
                self.validate(&[Place::TT], &mut OpCtx::uninterruptible())?;
            }
            self.resv().resv().wait(Usage::Kernel, true)?;
            if self.mem_type() == Some(MemType::Vram) {
                self.charge()?;
            }
        }
        // SAFETY: The object is valid, and its reservation is held.
        unsafe { bindings::ttm_bo_pin(bo) };
        Ok(())
    }

    /// Allows the object to move again. Does nothing if it is not pinned.
    ///
    /// Only for whoever called [`Self::pin_raw`].
    pub(crate) fn unpin_raw(&mut self) {
        if !self.is_pinned() {
            return;
        }

        // SAFETY: The object is valid, pinned, and its reservation is held.
        unsafe { bindings::ttm_bo_unpin(self.bo()) };
        self.uncharge_unpinned();
    }

    /// Accounts for the object, which is not pinned and about to be, in VRAM. Does nothing if that was
    /// done. If it is not pinned after all, [`Self::uncharge_unpinned`] follows.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if it is more than may be: of all, of the client that exported it, or of the group
    ///   of the current task.
    /// - `ENODEV` if the device was unplugged, and `ENOMEM`.
    pub(crate) fn charge(&mut self) -> Result {
        let size = self.obj.size() as u64;
        // SAFETY: The reservation, which guards the cell, is held.
        let pins = unsafe { &mut *self.obj.pins.get() };

        if pins.group.is_some() {
            return Ok(());
        }

        let group = self.obj.ttm().charge_pin(size)?;
        if let Some(account) = &pins.exporter {
            account
                .charge(size, self.obj.ttm().client_pin_limit())
                .inspect_err(|_| self.obj.ttm().uncharge_pin(size))?;
        }
        pins.charged = pins.exporter.clone();
        pins.group = Some(group);
        Ok(())
    }

    /// Undoes [`Self::charge`], if that was called and the object is not pinned.
    pub(crate) fn uncharge_unpinned(&mut self) {
        let size = self.obj.size() as u64;
        // SAFETY: The reservation, which guards the cell, is held.
        let pins = unsafe { &mut *self.obj.pins.get() };

        if self.is_pinned() || pins.group.take().is_none() {
            return;
        }

        self.obj.ttm().uncharge_pin(size);
        if let Some(account) = pins.charged.take() {
            account.sub(size);
        }
    }

    /// Says whose account is charged for pins, unless somebody has exported the object already.
    fn set_exporter(&mut self, account: &Arc<PinAccount>) {
        if self.exported().is_null() {
            // SAFETY: The reservation, which guards the cell, is held.
            unsafe { (*self.obj.pins.get()).exporter = Some(account.clone()) };
        }
    }

    /// Returns the pages of an object that is in system memory, which are made if there are none.
    ///
    /// Waits for moves that fill them. The pages stay while the object is pinned, or does not move.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if it is in VRAM, or in system memory that could be swapped out without a word.
    /// - `ENOMEM` if memory runs out, `ERESTARTSYS` if a signal arrived.
    pub(crate) fn pages(&mut self, ctx: &mut OpCtx) -> Result<Pages<'_>> {
        if self.mem_type() != Some(MemType::Tt) {
            return Err(EINVAL);
        }

        // Who maps them for a device may copy them right away, where it cannot reach them.
        self.resv()
            .resv()
            .wait(Usage::Kernel, ctx.is_interruptible())?;
        // SAFETY: The object is valid, and its reservation is held. What is in system memory has a
        // `ttm`, which has all of its pages when it is populated.
        unsafe {
            to_result(bindings::ttm_bo_populate(self.bo(), &mut ctx.0))?;
            Ok(Pages::from_raw(
                NonNull::new((*self.bo()).ttm).ok_or(EINVAL)?,
            ))
        }
    }

    /// Makes what the CPU wrote to an object in VRAM visible to devices.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the driver is not bound any more.
    pub(crate) fn flush(&self) -> Result {
        let Some(vram) = self.vram() else {
            return Ok(());
        };

        // SAFETY: The device is valid and of `T::Driver`.
        unsafe {
            while_registered::<T::Driver, _>((*self.bo()).base.dev, |reg| {
                // What was written before a device was suspended has arrived, and nothing was since.
                if let Some(_awake) = self.obj.awake_if_active() {
                    T::flush(reg, vram);
                }
                Ok(())
            })
        }
    }

    fn ttm(&self) -> &drm::ttm::Device<T> {
        self.obj.ttm()
    }

    /// Remembers, or forgets, the dma-buf of the object, whose importers are told of a move.
    ///
    /// # Safety
    ///
    /// `buf` must be null, or a dma-buf that shares the reservation of the object and stays valid
    /// until this is called again.
    pub(crate) unsafe fn set_exported(&mut self, buf: *mut bindings::dma_buf) {
        // INVARIANT: By the safety requirements.
        // SAFETY: The reservation, which guards the cell, is held.
        unsafe { *self.obj.exported.get() = buf };
    }

    /// Returns the dma-buf of the object, null if there is none.
    pub(crate) fn exported(&self) -> *mut bindings::dma_buf {
        // SAFETY: The reservation, which guards the cell, is held.
        unsafe { *self.obj.exported.get() }
    }
}

/// The proof that an object is reserved. Dropping it ends the reservation.
#[must_use = "the reservation ends when the guard is dropped"]
pub struct Reserved<'a, T: TtmObject>(Held<'a, Object<T>>);

impl<'a, T: TtmObject> Deref for Reserved<'a, T> {
    type Target = Held<'a, Object<T>>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T: TtmObject> Reserved<'_, T> {
    /// Returns the view of the object.
    ///
    /// Not by `DerefMut`: the views of two objects could be swapped, and with them which one is
    /// unlocked.
    #[inline]
    pub(crate) fn view(&mut self) -> Held<'_, Object<T>> {
        // SAFETY: The reservation is held as long as `self` is borrowed.
        unsafe { Held::assume(self.0.obj) }
    }

    /// Moves the object to one of `places`, unless it is in one already.
    ///
    /// See [`Held::validate`].
    ///
    /// # Errors
    ///
    /// Those of [`Held::validate`].
    pub fn validate(&mut self, places: &[Place], ctx: &mut OpCtx) -> Result {
        self.view().validate(places, ctx)
    }

    /// Returns the view of the reservation, by which fences are looked at and added.
    #[inline]
    pub fn resv(&mut self) -> LockedResv<'_> {
        self.0.resv()
    }

    /// Makes the object stay where it is until the value that is returned is dropped. Calls nest.
    ///
    /// If it is in VRAM the device stays awake for that long.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if it is in VRAM, and the device is suspended.
    /// - `EDQUOT` if it is in VRAM, of which no more may be pinned.
    /// - Those of [`Held::validate`].
    pub fn pin(&mut self) -> Result<Pinned<T>> {
        let awake = (self.mem_type() == Some(MemType::Vram))
            .then(|| self.obj.awake_if_active().ok_or(EAGAIN))
            .transpose()?;

        self.view().pin_raw()?;
        Ok(Pinned {
            obj: self.0.obj.into(),
            _awake: awake,
        })
    }
}

/// An object that does not move. Dropping it ends that.
///
/// It is dropped without the reservation, which it takes.
#[must_use = "the object may move again when the value is dropped"]
pub struct Pinned<T: TtmObject> {
    obj: ARef<Object<T>>,
    // Dropped after the object was unpinned.
    _awake: Option<Awake>,
}

impl<T: TtmObject> Deref for Pinned<T> {
    type Target = Object<T>;

    #[inline]
    fn deref(&self) -> &Object<T> {
        &self.obj
    }
}

impl<T: TtmObject> Drop for Pinned<T> {
    fn drop(&mut self) {
        // Without signals it does not fail.
        if let Ok(mut object) = self.obj.reserve(false) {
            object.view().unpin_raw();
        }
    }
}

impl<T: TtmObject> Drop for Reserved<'_, T> {
    fn drop(&mut self) {
        // SAFETY: The reservation is held.
        unsafe { bindings::dma_resv_unlock((*self.obj.as_raw()).resv) };
    }
}

/// Returns what TTM calls a resource as one side of a transfer.
///
/// # Safety
///
/// `resource` must be valid.
unsafe fn side_of(
    bo: *mut bindings::ttm_buffer_object,
    resource: *mut bindings::ttm_resource,
) -> Result<Side> {
    // SAFETY: By the safety requirements.
    unsafe {
        if (*resource).mem_type == bindings::TTM_PL_VRAM {
            Ok(Side::Vram(
                VramResource::from_raw(resource).ranges().clone(),
            ))
        } else {
            Ok(Side::Pages(NonNull::new((*bo).ttm).ok_or(EINVAL)?))
        }
    }
}

/// # Safety
///
/// Called by TTM with an object of a device of `T`, which may be a ghost, with its reservation held
/// and room for a fence in it, and the resource that it is to move to.
pub(crate) unsafe extern "C" fn move_callback<T: TtmObject>(
    bo: *mut bindings::ttm_buffer_object,
    evict: bool,
    ctx: *mut bindings::ttm_operation_ctx,
    to: *mut bindings::ttm_resource,
    _hop: *mut bindings::ttm_place,
) -> c_int {
    // SAFETY: The object and the resource are valid.
    let (obj, to_type) = unsafe { (Object::<T>::from_bo(bo), (*to).mem_type) };
    // SAFETY: As promised by the caller.
    let ret = unsafe {
        // What another device exports has no memory here; it gets a resource when it is made.
        if (*bo).type_ == bindings::ttm_bo_type_ttm_bo_type_sg {
            bindings::ttm_bo_move_null(bo, to);
            return 0;
        }
        move_object::<T>(bo, evict, ctx, to)
    };

    if let Some(obj) = obj {
        // Only moves change it, and the reservation is held.
        let from_type = obj.residence.load(Relaxed);
        if ret.is_ok() {
            obj.residence.store(to_type, Relaxed);
        }
        trace::moved(obj.subject(), from_type, to_type, evict, ret);
    }
    from_result(|| ret.map(|()| 0))
}

/// # Safety
///
/// Those of [`move_callback`].
unsafe fn move_object<T: TtmObject>(
    bo: *mut bindings::ttm_buffer_object,
    evict: bool,
    ctx: *mut bindings::ttm_operation_ctx,
    to: *mut bindings::ttm_resource,
) -> Result {
    let vram = bindings::TTM_PL_VRAM;
    // What is left of an object that moved is about to be freed, and passed over with this error.
    // SAFETY: As the caller promises.
    let (obj, old, to_type) = unsafe {
        (
            Object::<T>::from_bo(bo).ok_or(EBUSY)?,
            (*bo).resource,
            (*to).mem_type,
        )
    };
    // SAFETY: The reservation is held.
    let mut locked = unsafe { Held::assume(obj) };

    // Importers have mapped what is about to move; what they started is in the fences.
    let buf = locked.exported();
    if !old.is_null() && !buf.is_null() {
        trace::invalidate(obj.subject(), obj.residence.load(Relaxed));
        // SAFETY: By the type invariant it is the dma-buf of the object, whose reservation, which
        // they share, is held.
        unsafe { bindings::dma_buf_invalidate_mappings(buf) };
    }

    // SAFETY: `old` is valid unless it is null.
    let from_vram = !old.is_null() && unsafe { (*old).mem_type } == vram;
    let by_engine = from_vram || to_type == vram;
    let must_wait = obj.ttm().is_used_by_others(&locked.resv(), Usage::Bookkeep);
    // Pages that the engine still works on must not be swapped out.
    if must_wait || !by_engine {
        // SAFETY: The object and the context are valid.
        to_result(unsafe { bindings::ttm_bo_wait_ctx(bo, ctx) })?;
    }
    if !old.is_null() && !buf.is_null() {
        // SAFETY: As above; the memory is still there, and what importers started is done.
        unsafe { exporter::retire(buf) };
    }
    if !by_engine {
        // The pages stay what they are.
        // SAFETY: The object is valid, and `to` becomes its resource.
        unsafe { bindings::ttm_bo_move_null(bo, to) };
        return Ok(());
    }

    // SAFETY: The object is valid, and so is its `ttm` if there is one.
    let has_pages = unsafe {
        let tt = (*bo).ttm;

        !tt.is_null() && (bindings::ttm_tt_is_populated(tt) || bindings::ttm_tt_is_swapped(tt))
    };
    // What was never written to is zero, and so are pages that are made below.
    let clear = !from_vram && !has_pages;
    if !clear {
        // TTM has done it for some kinds of memory. Brings back what was swapped out, too.
        // SAFETY: The object and the context are valid; without a `ttm` nothing is done.
        to_result(unsafe { bindings::ttm_bo_populate(bo, ctx) })?;
    }

    // SAFETY: Both resources are valid. Where one is system memory, and looked at, the object was
    // populated above. The pages stay until the fence of the transfer signals: all that could take
    // them away waits for it, as it is in the reservation of whoever has them, the object or a
    // ghost.
    let transfer = unsafe {
        let from = if clear { None } else { Some(side_of(bo, old)?) };

        Transfer::new(from, side_of(bo, to)?, (*bo).base.size)
    };
    // SAFETY: The device of an object is valid and of `T::Driver`.
    let fence = unsafe {
        while_registered::<T::Driver, _>((*bo).base.dev, |reg| {
            obj.ttm()
                .submit(reg, Work::Move(transfer), obj.awake_if_active())
        })
    }?;
    if !clear {
        obj.ttm().count_move();
    }

    if clear {
        // Nobody looks at what the object had before, if it had anything.
        // SAFETY: The object is valid, and `to` becomes its resource. TTM has made room for the
        // fence, and nothing was added since.
        unsafe {
            bindings::dma_resv_add_fence(
                (*bo).base.resv,
                fence.as_raw(),
                bindings::dma_resv_usage_DMA_RESV_USAGE_KERNEL,
            );
            bindings::ttm_bo_move_null(bo, to);
            // It has no pages; an array for them is not needed in VRAM.
            destroy_tt(bo);
        }
        return Ok(());
    }

    // VRAM is given to others at once, as all that is done to it is done by the engine, in order.
    // SAFETY: The object is valid, has a resource, and `to` becomes its new one. The fence was made
    // for this move, and TTM has made room for it.
    let ret = to_result(unsafe {
        bindings::ttm_bo_move_accel_cleanup(bo, fence.as_raw(), evict, true, to)
    });
    if ret.is_err() {
        // The content is on its way, so there is no way back.
        // It cannot fail without signals.
        let _ = fence.wait(false);
        // SAFETY: As above; nothing is under way any more.
        unsafe { bindings::ttm_bo_move_sync_cleanup(bo, to) };
    }
    Ok(())
}

/// Undoes [`Held::take_off_lru`] of an object that is about to be freed.
///
/// If the engine still works on it, it is freed later, and tasks that evict find it on the LRU list
/// and wait for that.
///
/// # Safety
///
/// `bo` must be valid, in VRAM and pinned by [`Held::take_off_lru`] alone, and have no GEM
/// reference.
// Not inlined into modules, which cannot call the function.
#[inline(never)]
unsafe fn put_on_lru(bo: *mut bindings::ttm_buffer_object) {
    // The reservation must not be waited for, as this task may hold others. A task that evicts may
    // hold it: one that has met the object on the list while it was being validated. So this is
    // done with the lock of the list alone, as `ttm_bo_release()` does it.
    // SAFETY: By the safety requirements. Nobody pins an object without a reference. Its resource
    // does not change either: an eviction that sees it unpinned allocates another one first, which
    // takes the lock. What is in VRAM has no `ttm`, for which TTM wants the reservation to be held.
    unsafe {
        let lock = &raw mut (*(*bo).bdev).lru_lock;

        bindings::spin_lock(lock);
        (*bo).pin_count -= 1;
        bindings::ttm_resource_move_to_lru_tail((*bo).resource);
        bindings::spin_unlock(lock);
    }
}

/// Takes away what an object has for system memory, if it has anything.
///
/// # Safety
///
/// `bo` must be reserved, not be in system memory, and have no pages.
// Not inlined into modules, which cannot call the function.
#[inline(never)]
unsafe fn destroy_tt(bo: *mut bindings::ttm_buffer_object) {
    // SAFETY: By the safety requirements.
    unsafe { bindings::ttm_bo_tt_destroy(bo) };
}

/// # Safety
///
/// Called by the DRM core when the last reference to an object of this class is gone.
unsafe extern "C" fn free_callback<T: TtmObject>(gem: *mut bindings::drm_gem_object) {
    // SAFETY: The object is valid and of this class.
    let obj: &Object<T> = unsafe { IntoGEMObject::from_raw(gem) };

    // From here on nobody gets a reference any more.
    obj.ttm().remove(obj.id);

    // SAFETY: The object is valid and part of a TTM object. By the type invariant of `Object` it
    // has a reference to the device. The rest of the object may be used by TTM until the device is
    // released, which waits for that.
    unsafe {
        let dev = (*gem).dev;

        // Nobody changes the cell any more.
        if (*obj.pins.get()).off_lru {
            put_on_lru(obj.bo());
        }
        bindings::ttm_bo_fini(container_of!(gem, bindings::ttm_buffer_object, base));
        bindings::drm_dev_put(dev);
    }
}

/// # Safety
///
/// Called with a device of `T::Driver` that was unplugged.
unsafe fn unplugged_callback<T: TtmObject>(dev: *mut bindings::drm_device) {
    // SAFETY: The device is valid and of `T::Driver`.
    let drm: &drm::Device<T::Driver> = unsafe { drm::Device::from_raw(dev) };

    T::ttm(drm).unplugged(dev);
}

/// # Safety
///
/// Called by TTM when nobody uses the object any more, or [`Object::new`] failed.
unsafe extern "C" fn destroy_callback<T: TtmObject>(bo: *mut bindings::ttm_buffer_object) {
    // SAFETY: The object is an `Object<T>` in a box.
    unsafe {
        bindings::drm_gem_object_release(&raw mut (*bo).base);
        drop(KBox::from_raw(
            container_of!(Opaque::cast_from(bo), Object<T>, bo).cast_mut(),
        ));
    }
}

/// The class knows it, so that drivers are not asked for theirs.
///
/// # Safety
///
/// Called by the DRM core with an object of this class, maybe with a spinlock held.
unsafe extern "C" fn status_callback<T: TtmObject>(
    gem: *mut bindings::drm_gem_object,
) -> bindings::drm_gem_object_status {
    // SAFETY: The object is valid and of this class.
    let obj: &Object<T> = unsafe { IntoGEMObject::from_raw(gem) };

    match obj.residence() {
        Some(MemType::Vram | MemType::Tt) => Status::RESIDENT.0,
        _ => Status::NONE.0,
    }
}

/// Exports an object as the DRM core does, and takes note of the client.
///
/// # Safety
///
/// Called by the DRM core with a device and an open file of `T::Driver`.
unsafe extern "C" fn handle_to_fd_callback<T: TtmObject>(
    dev: *mut bindings::drm_device,
    file: *mut bindings::drm_file,
    handle: u32,
    flags: u32,
    fd: *mut c_int,
) -> c_int {
    from_result(|| {
        // SAFETY: The file is open, and that of `T::Driver`.
        let client = unsafe { drm::File::from_raw(file) };

        if let Some(account) = T::pins(client) {
            // SAFETY: The file is open.
            let gem = unsafe { bindings::drm_gem_object_lookup(file, handle) };
            if gem.is_null() {
                return Err(ENOENT);
            }
            // SAFETY: Objects of the driver are of this class; the lookup took a reference.
            let obj = unsafe {
                let obj: &Object<T> = IntoGEMObject::from_raw(gem);
                ARef::from_raw(obj.into())
            };
            obj.reserve(true)?.view().set_exporter(account);
        }

        // SAFETY: As promised by the caller.
        to_result(unsafe { bindings::drm_gem_prime_handle_to_fd(dev, file, handle, flags, fd) })?;
        Ok(0)
    })
}

/// # Safety
///
/// Called by the DRM core with an object of this class, and the area of an `mmap()` that is under
/// way.
unsafe extern "C" fn mmap_callback<T: TtmObject>(
    gem: *mut bindings::drm_gem_object,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    let mut idx = 0;

    // SAFETY: The device of a valid object is valid.
    unsafe {
        if !bindings::drm_dev_enter((*gem).dev, &mut idx) {
            return ENODEV.to_errno();
        }
        bindings::drm_dev_exit(idx);

        let obj: &Object<T> = IntoGEMObject::from_raw(gem);
        let Some(import) = &obj.import else {
            return bindings::drm_gem_ttm_mmap(gem, vma);
        };

        // The exporter sets what it needs. Of this object nothing must be left.
        (*vma).vm_private_data = ptr::null_mut();
        (*vma).vm_ops = ptr::null();
        let ret = bindings::dma_buf_mmap(import.dma_buf().as_raw(), vma, 0);
        if ret == 0 {
            // The area keeps the buffer, not the object.
            bindings::drm_gem_object_put(gem);
        }
        ret
    }
}

/// # Safety
///
/// Called by the memory management with a fault in an area of an object of this class.
unsafe extern "C" fn fault_callback<T: TtmObject>(
    vmf: *mut bindings::vm_fault,
) -> bindings::vm_fault_t {
    // SAFETY: The fault and its area are valid; TTM keeps the object as the private data of the
    // area, which has a reference to it.
    let (bo, prot) = unsafe {
        let vma = (*vmf).__bindgen_anon_1.vma;

        (
            (*vma).vm_private_data.cast::<bindings::ttm_buffer_object>(),
            (*vma).vm_page_prot,
        )
    };

    // SAFETY: TTM does not map ghosts, and the area has a reference to the object.
    let Some(obj) = (unsafe { Object::<T>::from_bo(bo) }) else {
        return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    };
    // Until the process has what it needs. When the device is suspended it is taken away.
    let mut awake = None;
    if obj.residence() == Some(MemType::Vram) {
        match obj.awake() {
            Ok(now) => awake = Some(now),
            Err(_) => return bindings::vm_fault_reason_VM_FAULT_SIGBUS,
        }
    }

    // SAFETY: As above.
    let ret = unsafe { bindings::ttm_bo_vm_reserve(bo, vmf) };
    if ret != 0 {
        return ret;
    }

    let mut idx = 0;
    let mut ret = bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    // SAFETY: The object is reserved, and its device is valid. An unplug waits for the section, and
    // then takes away what was inserted.
    unsafe {
        if bindings::drm_dev_enter((*bo).base.dev, &mut idx) {
            let locked = Held::assume(obj);
            if awake.is_none() && locked.mem_type() == Some(MemType::Vram) {
                // It has moved there meanwhile.
                awake = obj.awake_if_active();
            }

            ret = match locked.vram() {
                // The next try resumes the device.
                Some(_) if awake.is_none() => bindings::vm_fault_reason_VM_FAULT_NOPAGE,
                _ => insert_pages::<T>(vmf, prot),
            };
            bindings::drm_dev_exit(idx);
        }
    }

    // SAFETY: The fault is valid.
    let flags = unsafe { (*vmf).flags };
    if ret == bindings::vm_fault_reason_VM_FAULT_RETRY
        && flags & bindings::fault_flag_FAULT_FLAG_RETRY_NOWAIT == 0
    {
        // The reservation was given up with the `mmap_lock`.
        return ret;
    }

    // SAFETY: The object was reserved above.
    unsafe { bindings::dma_resv_unlock((*bo).base.resv) };
    ret
}

/// Maps the pages around a fault into the process.
///
/// # Safety
///
/// `vmf` must be a fault in an area of an object of a device of `T`, whose reservation is held, with a
/// device that is awake if the object is in VRAM.
unsafe fn insert_pages<T: TtmObject>(
    vmf: *mut bindings::vm_fault,
    prot: bindings::pgprot_t,
) -> bindings::vm_fault_t {
    // SAFETY: As promised by the caller.
    let ret = unsafe { make_visible::<T>((*(*vmf).__bindgen_anon_1.vma).vm_private_data.cast()) };

    match ret {
        // SAFETY: As promised by the caller.
        Ok(()) => unsafe { bindings::ttm_bo_vm_fault_reserved(vmf, prot, FAULT_AROUND) },
        // The access is tried again: after the signal was handled, or because somebody still uses the
        // object.
        Err(e) if e == EINTR || e == ERESTARTSYS || e == EBUSY => {
            bindings::vm_fault_reason_VM_FAULT_NOPAGE
        }
        Err(e) if e == ENOMEM => bindings::vm_fault_reason_VM_FAULT_OOM,
        Err(_) => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
    }
}

/// Moves an object to where the CPU sees it, which is about to access it.
///
/// # Safety
///
/// `bo` must be an object of a device of `T`, not a ghost, whose reservation is held.
unsafe fn make_visible<T: TtmObject>(bo: *mut bindings::ttm_buffer_object) -> Result {
    // SAFETY: As promised by the caller.
    let mut locked = unsafe { Held::assume(Object::<T>::from_bo(bo).ok_or(EINVAL)?) };
    let visible = locked.visible();

    match locked.vram() {
        Some(vram) if !vram.is_below(visible) => {
            let vram = Place::VRAM.below(visible);
            let second = if locked.data().domain() == Domain::Vram {
                vram
            } else {
                Place::TT.fallback()
            };

            locked.validate_patiently(&[vram, second], &mut OpCtx::interruptible())
        }
        _ => {
            locked.touch();
            Ok(())
        }
    }
}

/// # Safety
///
/// Called with an object of the class `Object<T>`, with its reservation held.
unsafe extern "C" fn vmap_callback<T: TtmObject>(
    gem: *mut bindings::drm_gem_object,
    map: *mut bindings::iosys_map,
) -> c_int {
    from_result(|| {
        // SAFETY: The object is valid and of this class.
        let obj: &Object<T> = unsafe { IntoGEMObject::from_raw(gem) };
        if let Some(import) = &obj.import {
            // SAFETY: The buffer is valid, and its reservation, which is that of the object, is
            // held.
            to_result(unsafe { bindings::dma_buf_vmap(import.dma_buf().as_raw(), map) })?;
            return Ok(0);
        }
        // SAFETY: The reservation is held.
        let mut locked = unsafe { Held::assume(obj) };

        if locked.mem_type() == Some(MemType::Vram) && obj.awake_if_active().is_none() {
            // It is too late to wait for that.
            Awake::request(obj.ttm().owner());
            return Err(EAGAIN);
        }
        if !locked.is_pinned() {
            // SAFETY: The object is valid, and its reservation is held.
            unsafe { make_visible::<T>(obj.bo()) }?;
        }
        match locked.pin_raw() {
            // What may not stay in VRAM for that long is mapped elsewhere.
            Err(e) if e == EDQUOT && locked.data().domain() == Domain::Either => {
                locked.validate(&[Place::TT], &mut OpCtx::uninterruptible())?;
                locked.pin_raw()
            }
            ret => ret,
        }?;
        // SAFETY: As promised by the caller.
        unsafe { vmap_pinned(&locked, map) }
            .inspect_err(|_| locked.unpin_raw())
            .map(|()| 0)
    })
}

/// # Safety
///
/// `map` must be valid for writing.
unsafe fn vmap_pinned<T: TtmObject>(
    locked: &Held<'_, Object<T>>,
    map: *mut bindings::iosys_map,
) -> Result {
    let bo = locked.bo();

    // No move is under way, of which `ttm_bo_vmap()` knows nothing: to pin is to wait for them.
    let Some(vram) = locked.vram() else {
        // SAFETY: The object is valid, reserved and pinned.
        return to_result(unsafe { bindings::ttm_bo_vmap(bo, map) });
    };

    // SAFETY: The device is valid and of `T::Driver`.
    unsafe { while_registered::<T::Driver, _>((*bo).base.dev, |_| Ok(())) }?;
    if !vram.is_below(locked.visible()) {
        return Err(EINVAL);
    }
    let start = locked.ttm().vram_start();

    let mut pfns = KVVec::with_capacity(locked.obj.size() >> PAGE_SHIFT, GFP_KERNEL)?;
    for range in vram.shown() {
        let first = (start + range.offset) >> PAGE_SHIFT;

        for pfn in first..first + (range.len >> PAGE_SHIFT) {
            // CAST: Physical addresses have less than 64 bits.
            pfns.push(pfn as usize, GFP_KERNEL)?;
        }
    }

    let awake = locked.obj.awake_if_active().ok_or(EAGAIN)?;
    let addr = vmap(&pfns)?;
    // Until `vunmap_callback()`.
    awake.forget();
    // SAFETY: The caller wants it to be filled.
    unsafe {
        map.write(bindings::iosys_map {
            __bindgen_anon_1: bindings::iosys_map__bindgen_ty_1 {
                vaddr_iomem: addr.as_ptr(),
            },
            is_iomem: true,
        })
    };
    Ok(())
}

/// Maps pages of I/O memory, which need not be contiguous, write-combined into the kernel.
#[inline(never)]
fn vmap(pfns: &[usize]) -> Result<NonNull<c_void>> {
    // `vmap_pfn()` is for addresses without a `struct page` and warns about others. A BAR has no
    // pages, unless somebody made it device memory.
    // SAFETY: The function has no requirements.
    let has_page = |&pfn| unsafe { bindings::pfn_valid(pfn) } != 0;
    if pfns.iter().any(has_page) {
        return Err(EOPNOTSUPP);
    }

    // SAFETY: The array is valid for its length and not written to.
    let addr = unsafe {
        bindings::vmap_pfn(
            pfns.as_ptr().cast_mut(),
            pfns.len().try_into()?,
            bindings::pgprot_decrypted(bindings::pgprot_writecombine(bindings::pgprot_kernel())),
        )
    };
    NonNull::new(addr).ok_or(ENOMEM)
}

/// # Safety
///
/// Called with what [`vmap_callback`] filled in, which is not used any more, with the reservation
/// held.
unsafe extern "C" fn vunmap_callback<T: TtmObject>(
    gem: *mut bindings::drm_gem_object,
    map: *mut bindings::iosys_map,
) {
    // SAFETY: The object is valid, of this class, and reserved. By the safety requirements what is
    // imported was mapped by `dma_buf_vmap()`, other I/O memory is what `vmap_pfn()` returned, with
    // a user of the device that was forgotten, and the rest is what `ttm_bo_vmap()` did.
    unsafe {
        let obj: &Object<T> = IntoGEMObject::from_raw(gem);

        if let Some(import) = &obj.import {
            bindings::dma_buf_vunmap(import.dma_buf().as_raw(), map);
            return;
        }
        if (*map).is_iomem {
            bindings::vunmap((*map).__bindgen_anon_1.vaddr_iomem);
            drop(obj.awake_from_forgotten());
        } else {
            bindings::ttm_bo_vunmap(obj.bo(), map);
        }
        Held::assume(obj).unpin_raw();
    }
}

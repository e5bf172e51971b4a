// SPDX-License-Identifier: GPL-2.0 OR MIT

//! GEM objects that are created in VRAM and stay there.
//!
//! For drivers without [TTM](drm::ttm): an [`Object`] gets its VRAM from an [`Allocator`] for its
//! whole life. [`gem::peer`](super::peer) exports it to peers like other objects, with reasons,
//! counters, tracepoints and debugfs. An importer that cannot reach VRAM is refused.
//!
//! Such an object is not mapped by processes or by the kernel. A driver that suspends its device
//! has to keep the content of VRAM: nothing is moved and peers keep the device active.
//!
//! # Locking
//!
//! 1. The reservation of an object: held by the policy when it asks where the object is.
//! 2. The SRCU section of `drm_dev_enter()`: VRAM is cleared and flushed in it.
//! 3. The lock of the allocator and the lock of the list of all objects. Neither is taken inside of
//!    the other.
//!
//! C header: [`include/drm/drm_gem.h`](srctree/include/drm/drm_gem.h)

use super::{
    aperture::{
        windows::{
            self,
            Windowed, //
        },
        ApertureHook,
        Holder,
        Wait,
        Windows, //
    },
    close_callback,
    mappings::{
        Call,
        When, //
    },
    open_callback,
    peer::{
        export_callback,
        handle_to_fd,
        import_callback,
        subject,
        trace,
        with_reserved,
        Backing,
        Client,
        Parent,
        ParentOf,
        PeerObject,
        State,
        Vram, //
    },
    BaseObject,
    DriverObject,
    IntoGEMObject,
    LockedObject,
    MappingHooks,
    Status, //
};
use crate::{
    bindings,
    container_of,
    dma_buf::exporter::{
        self,
        mapping::RangeList, //
    },
    dma_resv::{
        DmaResv,
        Usage, //
    },
    drm::{
        self,
        devres::while_registered,
        driver::{
            AllocImpl,
            AllocOps, //
        },
        private::Sealed,
        vram::{
            free_when_idle,
            Allocation,
            Allocator,
            Domain,
            MemType,
            Ranges, //
        }, //
    },
    page::page_align,
    pm::RuntimeGuard,
    prelude::*,
    rbtree::RBTreeNodeReservation,
    sync::{
        aref::ARef,
        Arc, //
    },
    time::Jiffies,
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

/// The driver's part of an object that stays in VRAM.
///
/// It must not own a reference to the DRM device or to an object: the object itself keeps the
/// device alive.
///
/// An unplug waits for importers and for all fences in the reservations of exported objects before
/// the registration data is dropped. So jobs of the device end without help of their drop.
pub trait VramObject:
    PeerObject<Class = Object<Self>> + DriverObject<Driver: drm::Driver<Object = Object<Self>>>
{
    /// How page tables of the device show objects, if it has any: see
    /// [`mapping_hooks`](super::mappings::mapping_hooks).
    ///
    /// Objects do not move, so a page table shows [`Object::ranges`] until the device is unplugged.
    /// Then the calls are made for each object, even if it is in no page table.
    const MAPPINGS: MappingHooks<Self> = MappingHooks::NONE;

    /// The windows that show VRAM to peers if the BAR does not show it at all times: see
    /// [`aperture_hook`](drm::gem::aperture::aperture_hook).
    const APERTURE: ApertureHook<Self> = ApertureHook::NONE;

    /// Returns the VRAM of the device. It is a part of `data`.
    fn vram(data: &<Self::Driver as drm::Driver>::Data) -> &Device<Self>;

    /// Clears the VRAM of a new object. Other objects have used it before.
    ///
    /// Called while the driver is bound, with the device active and no lock held. VRAM is zero when
    /// this returns.
    ///
    /// # Errors
    ///
    /// On an error the object is not created.
    fn clear(reg: &<Self::Driver as drm::Driver>::RegistrationData<'_>, vram: &Ranges) -> Result;

    /// Makes CPU writes to an object through the BAR visible to the device and to peers.
    ///
    /// Called with the reservation of the object held, while the driver is bound and the device
    /// active.
    fn flush(reg: &<Self::Driver as drm::Driver>::RegistrationData<'_>, vram: &Ranges);
}

/// The VRAM of one DRM device for objects that stay there.
///
/// It belongs into the data of the DRM device ([`drm::Driver::Data`]). Objects can be created
/// during and after the creation of the registration data.
pub struct Device<T: VramObject>(Arc<Shared<T>>);

/// The part of the device that objects refer to.
struct Shared<T: VramObject> {
    vram: Vram<T>,
    /// The windows that show objects to peers.
    windows: Windows,
}

impl<T: VramObject> Device<T> {
    /// Creates the VRAM of the device `parent`. `allocator` allocates it, and the BAR `bar` shows
    /// the first `visible` bytes of it to the CPU and peers.
    ///
    /// `parent` is the parent of the DRM device: the PCI device or an auxiliary device of it.
    /// [`enable_p2pdma`](crate::pci::Device::enable_p2pdma) was called for the PCI device. The PCI
    /// device becomes the DMA device, is kept active for peers and is named in the tracepoints.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such BAR, if it shows fewer than `visible` bytes, or if `parent`
    ///   is not prepared.
    /// - `ENOMEM` if memory runs out.
    pub fn new(
        parent: &ParentOf<T>,
        bar: u32,
        visible: u64,
        allocator: Arc<Allocator>,
    ) -> Result<Self>
    where
        ParentOf<T>: Parent,
    {
        Ok(Self(Arc::new(
            Shared {
                vram: Vram::new(parent, bar, visible, allocator)?,
                windows: Windows::new()?,
            },
            GFP_KERNEL,
        )?))
    }
}

impl<T: VramObject> Deref for Device<T> {
    type Target = Vram<T>;

    #[inline]
    fn deref(&self) -> &Vram<T> {
        &self.0.vram
    }
}

/// A GEM object that stays in VRAM.
///
/// # Invariants
///
/// - `gem` is an initialized object on the list of `device` and owns a reference to its DRM device.
/// - `exported` is null or the dma-buf of the object; the reservation guards it.
#[repr(C)]
#[pin_data]
pub struct Object<T: VramObject> {
    // First, because the object is found by its address.
    gem: Opaque<bindings::drm_gem_object>,
    exported: UnsafeCell<*mut bindings::dma_buf>,
    /// The exporting client.
    client: UnsafeCell<Client>,
    id: u64,
    ranges: Arc<Ranges>,
    /// [`None`] once the object is freed. Its VRAM may be in use for longer.
    vram: Option<Allocation>,
    device: Device<T>,
    /// Peers see all of the object.
    is_visible: bool,
    #[pin]
    data: T,
}

// SAFETY: GEM objects may be used and released from any task and `T` is `Send`.
unsafe impl<T: VramObject> Send for Object<T> {}

// SAFETY: The reservation guards `exported` and `client`. The rest does not change and `T` is
// `Sync`.
unsafe impl<T: VramObject> Sync for Object<T> {}

impl<T: VramObject> Object<T> {
    const FUNCS: bindings::drm_gem_object_funcs = bindings::drm_gem_object_funcs {
        free: Some(free_callback::<T>),
        open: Some(open_callback::<T>),
        close: Some(close_callback::<T>),
        export: Some(export_callback::<T>),
        status: Some(status_callback),
        ..pin_init::zeroed()
    };

    /// Returns the device of the object.
    fn drm(&self) -> &drm::Device<T::Driver> {
        // SAFETY: The device of a valid object is valid and of `T::Driver`.
        unsafe { drm::Device::from_raw((*self.as_raw()).dev) }
    }

    /// Creates a zeroed object of at least `size` bytes, rounded up to pages.
    ///
    /// The object is in peer-visible VRAM if there is room.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `size` is 0 or `dev` was never about to be registered.
    /// - `ENOSPC` if there is no room.
    /// - `ENODEV` if the driver is not bound or the DRM device is not registered.
    /// - `ENOMEM` if memory runs out.
    /// - Those of [`VramObject::clear`] and [`RuntimeGuard::new`].
    pub fn new(dev: &drm::Device<T::Driver>, size: usize, args: T::Args) -> Result<ARef<Self>> {
        if size == 0 {
            return Err(EINVAL);
        }
        let size = page_align(size).ok_or(ENOSPC)?;
        let drm = dev.as_raw();
        let data: &<T::Driver as drm::Driver>::Data = dev;
        let device = T::vram(data);
        device.check(drm)?;

        let allocator = device.allocator();
        let vram = match allocator.alloc_below(size as u64, device.visible()) {
            Err(e) if e == ENOSPC => allocator.alloc(size as u64)?,
            ret => ret?,
        };
        {
            let _runtime_guard = RuntimeGuard::new(device.owner())?;

            // SAFETY: The device is valid and of `T::Driver`.
            unsafe { while_registered::<T::Driver, _>(drm, |reg| T::clear(reg, vram.ranges())) }?;
        }

        let room = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let id = device.number();
        let obj = KBox::pin_init(
            try_pin_init!(Self {
                gem: Opaque::zeroed(),
                exported: UnsafeCell::new(ptr::null_mut()),
                client: UnsafeCell::new(Client::NONE),
                id,
                is_visible: vram.ranges().is_below(device.visible()),
                ranges: vram.ranges().clone(),
                vram: Some(vram),
                device: Device(device.0.clone()),
                data <- T::new(dev, size, args),
            }),
            GFP_KERNEL,
        )?;

        // SAFETY: The value is not moved. It belongs to its references from here on.
        let this = KBox::into_raw(unsafe { Pin::into_inner_unchecked(obj) });
        // INVARIANT: The object is initialized, is on the list and has a reference to the device.
        // SAFETY: The GEM object is zeroed and the device valid. `free_callback` puts the reference
        // and takes the object off the list. The reference to the object is its first.
        unsafe {
            let gem = (*this).gem.get();

            (*gem).funcs = const { &Self::FUNCS };
            bindings::drm_gem_private_object_init(drm, gem, size);
            bindings::drm_dev_get(drm);
            let obj: ARef<Self> = ARef::from_raw(NonNull::new_unchecked(this));
            device.insert(&obj, id, room);
            Ok(obj)
        }
    }

    /// Returns where in VRAM the object is.
    #[inline]
    pub fn ranges(&self) -> &Arc<Ranges> {
        &self.ranges
    }
}

impl<T: VramObject> Sealed for Object<T> {}

super::impl_aref_for_gem_obj! {
    impl<T> for Object<T>
    where
        T: VramObject
}

impl<T: VramObject> IntoGEMObject for Object<T> {
    fn as_raw(&self) -> *mut bindings::drm_gem_object {
        self.gem.get()
    }

    unsafe fn from_raw<'a>(gem: *mut bindings::drm_gem_object) -> &'a Self {
        // SAFETY: The GEM object is the first field of a `Self`. It is valid for `'a` as promised
        // by the caller.
        unsafe { &*gem.cast() }
    }
}

impl<T: VramObject> Deref for Object<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T: VramObject> AllocImpl for Object<T> {
    type Driver = T::Driver;

    const ALLOC_OPS: AllocOps = AllocOps {
        gem_create_object: None,
        prime_handle_to_fd: Some(handle_to_fd_callback::<T>),
        prime_fd_to_handle: None,
        gem_prime_import: Some(import_callback::<T>),
        gem_prime_import_sg_table: None,
        dumb_create: None,
        dumb_map_offset: None,
    };

    const UNPLUGGING: Option<unsafe fn(*mut bindings::drm_device)> = Some(unplugging_callback::<T>);

    fn registering(drm: &drm::UnregisteredDevice<T::Driver>) -> Result {
        let data: &<T::Driver as drm::Driver>::Data = drm;
        let device = T::vram(data);

        device.prepare(drm, device)?;
        device.start(drm);
        Ok(())
    }
}

// SAFETY: Only `set_exported()` writes the cell `exported`. The object never moves and has no
// pages. Its VRAM is freed with the last reference and after the fences. The dma-buf has a
// reference.
unsafe impl<T: VramObject> Backing for Object<T> {
    type Data = T;

    const HAS_WINDOWS: bool = T::APERTURE.is_some();

    fn data(&self) -> &T {
        self
    }

    fn vram_of(data: &<T::Driver as drm::Driver>::Data) -> &Vram<T> {
        T::vram(data)
    }

    fn vram(&self) -> &Vram<T> {
        &self.device
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn domain(&self) -> Domain {
        Domain::Vram
    }

    fn last_placement(&self) -> Option<MemType> {
        Some(MemType::Vram)
    }

    fn state(object: &LockedObject<'_, Self>) -> State {
        State {
            mem_type: Some(MemType::Vram),
            pinned: true,
            visible: object.obj.is_visible || T::APERTURE.is_some(),
        }
    }

    fn visible_bytes(object: &LockedObject<'_, Self>) -> u64 {
        object.obj.ranges().bytes_below(object.obj.device.visible())
    }

    fn client(object: &LockedObject<'_, Self>) -> Client {
        // SAFETY: The reservation is held and guards the cell.
        unsafe { *object.obj.client.get() }
    }

    fn can_be_visible(object: &LockedObject<'_, Self>) -> bool {
        if T::APERTURE.is_some() {
            return T::APERTURE.fits(object.obj.drm(), object.obj.size() as u64);
        }

        object.obj.is_visible
    }

    fn migrate(
        _object: &mut LockedObject<'_, Self>,
        _domain: Domain,
        _interruptible: bool,
        _patient: bool,
    ) -> Result {
        Err(EOPNOTSUPP)
    }

    fn pin(_object: &mut LockedObject<'_, Self>) -> Result {
        Ok(())
    }

    fn unpin(_object: &mut LockedObject<'_, Self>) {}

    fn vram_ranges<'a>(object: &'a LockedObject<'_, Self>) -> Result<&'a Ranges> {
        Ok(object.obj.ranges())
    }

    fn window(object: &LockedObject<'_, Self>) -> Result<Arc<RangeList>> {
        windows::window(object, Holder::Importers)
    }

    fn release_window(object: &LockedObject<'_, Self>) {
        windows::release(object.obj, Holder::Importers);
    }

    fn flush(object: &LockedObject<'_, Self>) -> Result {
        // SAFETY: The device is valid and of `T::Driver`.
        unsafe {
            while_registered::<T::Driver, _>((*object.obj.as_raw()).dev, |reg| {
                // Writes before the device was suspended have arrived. There were none since.
                if let Some(_runtime_guard) = RuntimeGuard::if_active(object.obj.owner()) {
                    T::flush(reg, object.obj.ranges());
                }
                Ok(())
            })
        }
    }

    fn exported(object: &LockedObject<'_, Self>) -> *mut bindings::dma_buf {
        // SAFETY: The reservation is held and guards the cell.
        unsafe { *object.obj.exported.get() }
    }

    unsafe fn set_exported(object: &mut LockedObject<'_, Self>, buf: *mut bindings::dma_buf) {
        // INVARIANT: By the safety requirements.
        // SAFETY: The reservation is held and guards the cells.
        unsafe {
            *object.obj.exported.get() = buf;
            if buf.is_null() {
                *object.obj.client.get() = Client::NONE;
            }
        }
    }
}

// SAFETY: The cell has null or the dma-buf of the object, of an exporter of its class. The objects
// on the list of a device are those of the device. An unpinned mapping needs the reservation.
unsafe impl<T: VramObject> Windowed for Object<T> {
    type Data = T;

    const HOOK: ApertureHook<T> = T::APERTURE;

    fn windows(&self) -> &Windows {
        &self.device.0.windows
    }

    fn number(&self) -> u64 {
        self.id
    }

    fn object_at(&self, number: u64) -> Option<ARef<Self>> {
        self.device.object(number)
    }

    fn place<'a>(object: &'a LockedObject<'_, Self>) -> Option<&'a Ranges> {
        Some(object.obj.ranges())
    }

    fn buffer(object: &LockedObject<'_, Self>) -> *mut bindings::dma_buf {
        Self::exported(object)
    }

    fn is_fixed(object: &LockedObject<'_, Self>) -> bool {
        // SAFETY: It is null or the dma-buf of the object, whose reservation is held.
        unsafe { exporter::is_pinned(Self::exported(object)) }
    }

    fn await_importers(object: &LockedObject<'_, Self>, limit: Jiffies, wait: Wait) -> Result {
        // SAFETY: The reservation of a valid object is valid.
        let resv = unsafe { DmaResv::from_raw((*object.obj.as_raw()).resv) };

        resv.wait_timeout(Usage::Bookkeep, wait == Wait::Short, limit)?;
        Ok(())
    }

    fn trace_invalidation(object: &LockedObject<'_, Self>) {
        trace::invalidate(subject(object.obj), MemType::Vram.as_raw());
    }
}

/// # Safety
///
/// Called with an unplugged device of `T::Driver` whose registration data still exists.
unsafe fn unplugging_callback<T: VramObject>(dev: *mut bindings::drm_device) {
    // SAFETY: The device is valid and of `T::Driver`.
    let drm: &drm::Device<T::Driver> = unsafe { drm::Device::from_raw(dev) };
    let (vram, mut next) = (T::vram(drm), 0);

    if let Some(caller) = T::MAPPINGS.caller() {
        while let Some(obj) = vram.object_from(next) {
            next = obj.id + 1;
            for call in [Call::Evicted, Call::Zap] {
                // SAFETY: The object is valid and so is its reservation, which is held. The device
                // is unplugged and its data still exists.
                unsafe {
                    let _resv = DmaResv::from_raw((*obj.as_raw()).resv).lock();
                    let _ = caller(obj.as_raw(), call, When::Unplugged);
                }
            }
        }
    }
    // These are last because they wait for work of other devices.
    // SAFETY: As promised by the caller.
    unsafe {
        vram.close(dev);
        T::APERTURE.close_all(drm, &vram.0.windows);
    }
}

/// # Safety
///
/// Called by the DRM core when the last reference to an object of this class is gone.
unsafe extern "C" fn free_callback<T: VramObject>(gem: *mut bindings::drm_gem_object) {
    // SAFETY: The object is an `Object<T>` in a box. By the type invariant it has a reference to
    // the device and is on the list. Once it is off the list, no task can get a reference.
    unsafe {
        let dev = (*gem).dev;
        let listed: &Object<T> = IntoGEMObject::from_raw(gem);

        listed.device.remove(listed.id);
        let mut obj =
            KBox::from_raw(container_of!(Opaque::cast_from(gem), Object<T>, gem).cast_mut());
        // Work may still use the VRAM. It may depend on other devices. `close()` and an exit of a
        // process must not wait for them.
        if let Some(vram) = obj.vram.take() {
            free_when_idle(vram, DmaResv::from_raw((*gem).resv));
        }
        bindings::drm_gem_object_release(gem);
        drop(obj);
        bindings::drm_dev_put(dev);
    }
}

/// Exports an object as the DRM core does and records the client.
///
/// # Safety
///
/// Called by the DRM core with a device and an open file of `T::Driver`.
unsafe extern "C" fn handle_to_fd_callback<T: VramObject>(
    dev: *mut bindings::drm_device,
    file: *mut bindings::drm_file,
    handle: u32,
    flags: u32,
    fd: *mut c_int,
) -> c_int {
    let note = |client: &drm::File<<T::Driver as drm::Driver>::File>, obj: &Object<T>| {
        let client = Client::of(client);

        with_reserved(obj, true, |object| {
            let is_exported = !Object::<T>::exported(object).is_null();
            // SAFETY: The reservation is held and guards the cell.
            let exporter = unsafe { &mut *object.obj.client.get() };

            if !is_exported || exporter.id == Client::NONE.id {
                *exporter = client;
            }
            Ok(())
        })
    };

    // SAFETY: As promised by the caller; objects of the driver are of this class.
    unsafe { handle_to_fd::<T::Driver, Object<T>>(dev, file, handle, flags, fd, note) }
}

/// # Safety
///
/// Called by the DRM core with an object of this class, possibly with a spinlock held.
unsafe extern "C" fn status_callback(
    _gem: *mut bindings::drm_gem_object,
) -> bindings::drm_gem_object_status {
    Status::RESIDENT.0
}

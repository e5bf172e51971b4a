// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The class of objects for the DRM core and for TTM: its callbacks and its GEM object.

use super::{
    direct,
    import::fd_to_handle_callback,
    moves::put_on_lru,
    placed,
    Device,
    Object,
    TtmObject, //
};
use crate::{
    bindings,
    container_of,
    drm::{
        self,
        driver::{
            AllocImpl,
            AllocOps, //
        },
        gem::{
            self,
            peer::{
                handle_to_fd,
                import_callback,
                Client, //
            },
            IntoGEMObject,
            Status, //
        },
        private::Sealed,
        vram::{
            Domain,
            MemType, //
        }, //
    },
    prelude::*,
    types::Opaque, //
};

impl<T: TtmObject> Sealed for Object<T> {}

crate::drm::gem::impl_aref_for_gem_obj! {
    impl<T> for Object<T>
    where
        T: TtmObject
}

impl<T: TtmObject> IntoGEMObject for Object<T> {
    fn as_raw(&self) -> *mut bindings::drm_gem_object {
        // SAFETY: `bo` is valid; no reference is created.
        unsafe { &raw mut (*self.bo.get()).base }
    }

    unsafe fn from_raw<'a>(gem: *mut bindings::drm_gem_object) -> &'a Self {
        // SAFETY: The GEM object is the first field of the first field of a `Self` and valid for
        // `'a`, as the caller promises.
        unsafe { &*gem.cast() }
    }
}

impl<T: TtmObject> AllocImpl for Object<T> {
    type Driver = T::Driver;

    const ALLOC_OPS: AllocOps = AllocOps {
        gem_create_object: None,
        prime_handle_to_fd: Some(handle_to_fd_callback::<T>),
        prime_fd_to_handle: Some(fd_to_handle_callback),
        gem_prime_import: Some(import_callback::<T>),
        gem_prime_import_sg_table: None,
        dumb_create: None,
        dumb_map_offset: None,
    };

    const UNPLUGGING: Option<unsafe fn(*mut bindings::drm_device)> = Some(unplugging_callback::<T>);
    const UNPLUGGED: Option<unsafe fn(*mut bindings::drm_device)> = Some(unplugged_callback::<T>);

    fn registering(drm: &drm::UnregisteredDevice<T::Driver>) -> Result {
        Device::<T>::start(drm)
    }
}

/// # Safety
///
/// Called by the DRM core when an open file of `T::Driver` gets a handle to an object of this
/// class.
pub(super) unsafe extern "C" fn open_callback<T: TtmObject>(
    gem: *mut bindings::drm_gem_object,
    file: *mut bindings::drm_file,
) -> c_int {
    // SAFETY: The object is valid and of this class.
    let obj: &Object<T> = unsafe { IntoGEMObject::from_raw(gem) };

    if obj.domain() == Domain::Vram {
        // SAFETY: As promised by the caller.
        let account = T::pins(unsafe { drm::File::from_raw(file) });
        let charged = obj
            .reserve(true)
            .and_then(|mut object| object.view().charge_stay(account.cloned()));

        if let Err(e) = charged {
            return e.to_errno();
        }
    }
    gem::open_callback::<T>(gem, file)
}

/// # Safety
///
/// Called by the DRM core when the last reference to an object of this class is gone.
pub(super) unsafe extern "C" fn free_callback<T: TtmObject>(gem: *mut bindings::drm_gem_object) {
    // SAFETY: The object is valid and of this class.
    let obj: &Object<T> = unsafe { IntoGEMObject::from_raw(gem) };

    // From here on no task can get a reference.
    obj.ttm().remove(obj.id());
    // Processes with mappings of the object have references, so no mapping is left.
    obj.close_window();

    // SAFETY: The object is valid and part of a TTM object. By the type invariant of `Object` it
    // has a reference to the device. TTM may use the rest of the object until the device is
    // released, and the release waits for that.
    unsafe {
        let dev = (*gem).dev;

        // No other code changes the cell any more.
        if (*obj.pins.get()).off_lru {
            put_on_lru(obj.bo());
        }
        bindings::ttm_bo_fini(container_of!(gem, bindings::ttm_buffer_object, base));
        bindings::drm_dev_put(dev);
    }
}

/// # Safety
///
/// Called with an unplugged device of `T::Driver` whose registration data still exists.
unsafe fn unplugging_callback<T: TtmObject>(dev: *mut bindings::drm_device) {
    // SAFETY: The device was registered, and its data is not dropped before this returns.
    let registered: &drm::Device<T::Driver, drm::Registered> =
        unsafe { drm::Device::from_raw(dev) };
    registered.registration_data_with(|reg| T::end_jobs(reg));

    if Object::<T>::CALLER.is_some() {
        // SAFETY: As promised by the caller.
        unsafe { placed::unplugging_callback::<T>(dev) };
    }
    // These are last because they wait for work of other devices or processes.
    // SAFETY: As promised by the caller, the device is valid and of `T::Driver`. The unplug has
    // zapped the mappings of processes.
    unsafe {
        let drm: &drm::Device<T::Driver> = drm::Device::from_raw(dev);

        direct::unplugging_callback::<T>(dev);
        T::ttm(drm).close(dev);
        T::APERTURE.close_all(drm, &T::ttm(drm).windows);
    }
}

/// # Safety
///
/// Called with an unplugged device of `T::Driver`.
unsafe fn unplugged_callback<T: TtmObject>(dev: *mut bindings::drm_device) {
    // SAFETY: The device is valid and of `T::Driver`.
    let drm: &drm::Device<T::Driver> = unsafe { drm::Device::from_raw(dev) };

    T::ttm(drm).unplugged(dev);
}

/// # Safety
///
/// Called by TTM when the object has no user any more or [`Object::new`] failed.
pub(super) unsafe extern "C" fn destroy_callback<T: TtmObject>(
    bo: *mut bindings::ttm_buffer_object,
) {
    // SAFETY: The object is an `Object<T>` in a box without another user. Its device is not
    // released before this returns.
    unsafe {
        let obj = container_of!(Opaque::cast_from(bo), Object<T>, bo).cast_mut();

        // The VRAM is free now.
        (*(*obj).pins.get()).uncharge(&*obj);
        bindings::drm_gem_object_release(&raw mut (*bo).base);
        drop(KBox::from_raw(obj));
    }
}

/// Returns the status of an object. The class knows it, so drivers have no callback for it.
///
/// # Safety
///
/// Called by the DRM core with an object of this class, possibly with a spinlock held.
pub(super) unsafe extern "C" fn status_callback<T: TtmObject>(
    gem: *mut bindings::drm_gem_object,
) -> bindings::drm_gem_object_status {
    // SAFETY: The object is valid and of this class.
    let obj: &Object<T> = unsafe { IntoGEMObject::from_raw(gem) };

    match obj.last_placement() {
        Some(MemType::Vram | MemType::Tt) => Status::RESIDENT.0,
        _ => Status::NONE.0,
    }
}

/// Exports an object as the DRM core does and records the client.
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
    let note = |client: &drm::File<<T::Driver as drm::Driver>::File>, obj: &Object<T>| {
        let (account, name) = (T::pins(client), Client::of(client));

        obj.reserve(true)?.view().set_exporter(account, name);
        Ok(())
    };

    // SAFETY: As promised by the caller; objects of the driver are of this class.
    unsafe { handle_to_fd::<T::Driver, Object<T>>(dev, file, handle, flags, fd, note) }
}

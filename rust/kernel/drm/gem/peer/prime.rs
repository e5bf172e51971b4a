// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The PRIME callbacks for exports of objects and imports of dma-bufs by the DRM core.
//!
//! C header: [`include/drm/drm_prime.h`](srctree/include/drm/drm_prime.h)

use super::{
    backing::{
        runtime_guard,
        with_reserved, //
    },
    export::GemExport,
    Backing,
    Object,
    PeerObject, //
};
use crate::{
    bindings,
    dma_buf::{
        exporter::{
            assume_exporter_of,
            exporter_of, //
        },
        DmaBuf, //
    },
    drm::{
        self,
        gem::{
            BaseObject,
            IntoGEMObject, //
        },
        vram::Domain, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Relaxed, //
    }, //
};
use core::{
    mem,
    ptr, //
};

/// # Safety
///
/// Called by the DRM core with an object of the class `Object<T>` that has a handle.
pub(in crate::drm::gem) unsafe extern "C" fn export_callback<T: PeerObject>(
    obj: *mut bindings::drm_gem_object,
    flags: c_int,
) -> *mut bindings::dma_buf {
    // SAFETY: The object is valid and of this class.
    let obj: &Object<T> = unsafe { IntoGEMObject::from_raw(obj) };

    match export::<T>(obj, flags) {
        Ok(buf) => ARef::into_raw(buf).as_ptr().cast(),
        Err(e) => e.to_ptr(),
    }
}

fn export<T: PeerObject>(obj: &Object<T>, flags: c_int) -> Result<ARef<DmaBuf>> {
    if let Some(buf) = obj.imported() {
        return Ok(buf.into());
    }

    let raw = obj.as_raw();

    // An importer would lock all objects sharing the reservation.
    // SAFETY: The object is valid.
    if unsafe { (*raw).resv != &raw mut (*raw)._resv } {
        return Err(EPERM);
    }

    // The next suspend of the device moves an exported object out of VRAM, because importers cannot
    // resume the device. The object cannot be moved while the device is suspended.
    let _runtime_guard = (obj.domain() != Domain::System)
        .then(|| runtime_guard(obj))
        .transpose();

    // The DRM core keeps the dma-buf of an object with handles. A dma-buf still in use after the
    // last handle was closed has to be imported again instead of exported.
    with_reserved(obj, true, |object| {
        if Object::<T>::exported(object).is_null() {
            Ok(())
        } else {
            Err(EBUSY)
        }
    })?;

    // SAFETY: The device of a valid object is valid. Only objects of registered devices have
    // handles, and only objects with handles are exported.
    let dev: &drm::Device<T::Driver, drm::Ioctl> = unsafe { drm::Device::from_raw((*raw).dev) };
    let _guard = dev.registration_guard().ok_or(ENODEV)?;
    let normal: &drm::Device<T::Driver> = dev;

    let export = GemExport::<T>::new(obj, normal)?;

    // CAST: Flags of `open()` are not negative.
    // SAFETY: The device is registered as long as the guard exists. The reservation is that of the
    // object, which `export` keeps alive.
    let buf = unsafe {
        obj.vram().exports((*raw).dev)?.export_with_resv(
            export,
            obj.size(),
            flags as u32,
            (*raw).resv,
        )
    }?;

    // An object that does not know its dma-buf would move without invalidating mappings. Therefore
    // this must not depend on whether the table of `T` has one address.
    // SAFETY: The dma-buf was created above from a `GemExport<T>`.
    let export = unsafe { assume_exporter_of::<GemExport<T>>(&buf) };
    // SAFETY: There is a reference to the dma-buf, so its file and the inode of the file are valid.
    let inode = unsafe { (*(*(*buf.as_raw()).file).f_inode).i_ino };
    with_reserved(obj, false, |object| {
        export.buf.store(buf.as_raw().addr(), Relaxed);
        export.inode.store(inode, Relaxed);
        // SAFETY: The dma-buf shares the reservation of the object; its release resets the pointer.
        unsafe { Object::<T>::set_exported(object, buf.as_raw()) };
        Ok(())
    })?;

    // As `drm_gem_dmabuf_export()` does: mappings of the dma-buf are mappings of the device.
    // SAFETY: The dma-buf and the device are valid and the file is not used by others yet.
    unsafe { (*(*buf.as_raw()).file).f_mapping = (*(*(*raw).dev).anon_inode).i_mapping };
    Ok(buf)
}

/// # Safety
///
/// Called by the DRM core with a device of `T::Driver` and a valid dma-buf.
pub(in crate::drm::gem) unsafe extern "C" fn import_callback<T: PeerObject>(
    dev: *mut bindings::drm_device,
    buf: *mut bindings::dma_buf,
) -> *mut bindings::drm_gem_object {
    // SAFETY: The dma-buf is valid during the call.
    let dma_buf = unsafe { DmaBuf::from_raw(buf) };

    if let Some(export) = exporter_of::<GemExport<T>>(dma_buf) {
        if ptr::eq(export.dev.as_raw(), dev) {
            // The new handle refers to the object itself and not to the dma-buf. The caller gets
            // the reference.
            mem::forget(export.obj.clone());
            return export.obj.as_raw();
        }
    }

    // SAFETY: The device is valid. Only a registered device has files and so imports.
    let dev: &drm::Device<T::Driver, drm::Ioctl> = unsafe { drm::Device::from_raw(dev) };
    // SAFETY: The class of objects lets the core import only with the device lock held and a driver
    // bound.
    match unsafe { Object::<T>::import(dev, dma_buf.into()) } {
        // The caller gets the reference.
        Ok(obj) => {
            let raw = obj.as_raw();

            mem::forget(obj);
            raw
        }
        Err(e) => e.to_ptr(),
    }
}

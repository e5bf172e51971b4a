// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects that stand for the buffer of another device.
//!
//! Such an object has no memory of its own: for TTM it is in system memory without pages and never
//! moves. The exporter decides where the buffer is. The object shares the reservation of the
//! buffer, so work on both sides sees the same fences.
//!
//! How the device reaches the buffer: see [`Import`].
//!
//! # Lifetimes
//!
//! The object keeps the buffer and its reservation until TTM has released it. When the driver is
//! unbound, the device is detached, even if the object still has users. That is why
//! `drm_gem_object.import_attach` is not used: it would dangle then. The DRM core finds the buffer
//! by `drm_gem_object.dma_buf` as long as there is a handle: an export gives the original buffer.
//!
//! # Locking
//!
//! Buffers are imported by the DMA device of the DRM device, the PCI device of its parent. An
//! import takes its device lock, outside of the locks of the DRM core and of all locks listed in
//! [`TtmObject`]: an attachment is a resource of the device, and the device must not be unbound
//! meanwhile.
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

use super::{
    Import,
    Object,
    TtmObject, //
};
use crate::{
    bindings,
    dma_buf::DmaBuf,
    drm::{
        self,
        ttm::{
            OpCtx,
            Place, //
        },
        vram::dma_device, //
    },
    error::{
        from_result,
        to_result, //
    },
    prelude::*,
    sync::aref::ARef, //
};

/// Lets the DRM core import with the device lock held.
///
/// The lock is taken before those of the core. The unbind of a driver holds it and may wait for a
/// process to release a buffer; that process may need the locks of the core for it. It may be this
/// process, so a signal ends the wait for the lock.
///
/// # Safety
///
/// Called by the DRM core with a registered device, one of its files and a handle to be filled.
pub(super) unsafe extern "C" fn fd_to_handle_callback(
    dev: *mut bindings::drm_device,
    file: *mut bindings::drm_file,
    fd: c_int,
    handle: *mut u32,
) -> c_int {
    // SAFETY: The device is valid. It has files, so it is registered and its DMA device does not
    // change.
    let importer = unsafe { dma_device(dev) };

    from_result(|| {
        importer.with_bound_by_any(|_| {
            // SAFETY: As promised by the caller.
            to_result(unsafe { bindings::drm_gem_prime_fd_to_handle(dev, file, fd, handle) })?;
            Ok(0)
        })
    })
}

impl<T: TtmObject> Object<T> {
    /// Creates an object for `buf`, the buffer of another device.
    ///
    /// No reservation may be held.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the size of the buffer is not a multiple of the page size.
    /// - `ENODEV` if the driver of `dev` or of the exporter is no longer bound.
    /// - `EOPNOTSUPP` if the exporter has no way to serve the device.
    /// - Other errors of the exporter.
    /// - `ENOMEM` if memory runs out.
    ///
    /// # Safety
    ///
    /// The device lock of the DMA device of `dev` must be held, and the DMA device be bound to a
    /// driver.
    pub(crate) unsafe fn import(
        dev: &drm::Device<T::Driver, drm::Ioctl>,
        buf: ARef<DmaBuf>,
        args: T::Args,
    ) -> Result<ARef<Self>> {
        let drm: &drm::Device<T::Driver> = dev;
        // SAFETY: The device is registered, so its DMA device does not change. The DMA device is
        // bound to a driver and stays bound until this returns.
        let importer = unsafe { dma_device(drm.as_raw()).as_bound() };
        let import = {
            // Another driver or the same one again may be bound by now.
            let _guard = dev.registration_guard().ok_or(ENODEV)?;

            Import::new(buf, importer, Object::<T>::CALLER)?
        };

        let size = import.dma_buf().size();
        Self::make(
            drm,
            size,
            // There is no limit for the size because no page is allocated.
            &[Place::SYSTEM],
            &mut OpCtx::interruptible(),
            args,
            Some(import),
            None,
        )
    }

    /// Returns the attachment to the buffer behind the object, or [`None`] if the object belongs to
    /// this device.
    #[inline]
    pub fn as_import(&self) -> Option<&Import> {
        self.import.as_ref()
    }

    /// Does [`Import::await_unused`] if the object stands for a buffer of another device.
    ///
    /// # Errors
    ///
    /// See there.
    pub fn await_unused(&self) -> Result {
        self.as_import().map_or(Ok(()), Import::await_unused)
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Device-managed DRM registrations.
//!
//! The data of a [`drm::Registration`] borrows from the bound parent device, so the registration
//! must be dropped before the device is unbound. Nothing in Rust keeps a driver from forgetting a
//! value, which is why [`drm::Registration::new`] is `unsafe`. [`register`] leaves the registration
//! to devres instead, and is safe.
//!
//! C header: [`include/drm/drm_drv.h`](srctree/include/drm/drm_drv.h)

use crate::{
    device::Bound,
    devres::Devres,
    drm::{
        self,
        Driver, //
    },
    prelude::*,
    sync::aref::ARef, //
};

/// Makes the data of a registration.
///
/// A trait and not a closure, because the initializer that it returns depends on the lifetime.
pub trait RegistrationInit<T: Driver> {
    /// Returns the initializer of the registration data.
    ///
    /// `parent` is the bound parent device. The method is generic over the time for which it is
    /// bound: the data may borrow from the device, and from nothing else that is not static.
    ///
    /// What the data needs of device-managed resources is to be acquired here and not later: devres
    /// releases in reverse order, so these resources outlive the data.
    fn init<'a>(
        self,
        parent: &'a T::ParentDevice<Bound>,
    ) -> impl PinInit<T::RegistrationData<'a>, Error>;
}

/// A DRM device that is registered until this is dropped, or its parent device is unbound.
///
/// Either unplugs the DRM device (see [`drm::Registration`]), which waits for all
/// [`RegistrationGuard`](drm::RegistrationGuard)s, and then drops the registration data. An unbind
/// does it after the private data of the bus device was dropped, if the value is still there.
#[must_use = "the device is unplugged when this is dropped"]
pub struct Registration<T: Driver + 'static> {
    drm: ARef<drm::Device<T>>,
    _devres: Devres<drm::Registration<'static, T>>,
}

impl<T: Driver + 'static> Registration<T> {
    /// Registers a DRM device.
    ///
    /// `flags` are passed to `drm_dev_register()`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `parent` is not the parent device of `drm`.
    /// - `ENOMEM` if memory runs out.
    /// - What `data` or `drm_dev_register()` return.
    ///
    /// See [`gem::peer`](drm::gem::peer) for an example.
    pub fn new(
        parent: &T::ParentDevice<Bound>,
        drm: drm::UnregisteredDevice<T>,
        data: impl RegistrationInit<T>,
        flags: usize,
    ) -> Result<Self> {
        let dev = parent.as_ref();

        // SAFETY: The registration is not forgotten: it is dropped below if something fails, and
        // otherwise by devres, which releases all resources of a device when its driver is unbound
        // or the probe fails.
        let reg = unsafe { drm::Registration::<T>::new(dev, drm, data.init(parent), flags) }?;
        let drm = reg.device().into();

        // SAFETY: Lifetimes do not change the layout. Beyond the borrow of `parent` the value is
        // only used to drop it, by devres, while the device is still bound. The data may be used
        // until then:
        //
        // - `RegistrationInit::init()` is generic over the lifetime, so the data cannot borrow from
        //   anything but the bound device, whatever the lifetime is that it was instantiated with
        //   here;
        // - the device-managed resources behind such a borrow were acquired before the call of
        //   `Devres::new()` below, hence they are released after the registration.
        let reg = unsafe {
            pin_init::cast_pin_init::<drm::Registration<'_, T>, drm::Registration<'static, T>, Error>(
                Ok(reg),
            )
        };

        Ok(Self {
            drm,
            _devres: Devres::new(dev, reg)?,
        })
    }

    /// Returns the DRM device.
    #[inline]
    pub fn device(&self) -> &ARef<drm::Device<T>> {
        &self.drm
    }

    /// Calls `f` with the registration data, [`None`] if the device was unplugged.
    ///
    /// An unplug waits until `f` has returned.
    pub fn with_data<R>(
        &self,
        f: impl for<'a> FnOnce(&'a T::RegistrationData<'a>) -> R,
    ) -> Option<R> {
        // SAFETY: The device is valid, and was registered.
        let dev: &drm::Device<T, drm::Ioctl> = unsafe { drm::Device::from_raw(self.drm.as_raw()) };

        Some(dev.registration_guard()?.registration_data_with(f))
    }
}

/// Calls `f` with the registration data, while the driver is bound.
///
/// # Errors
///
/// `ENODEV` if the DRM device is not registered, and what `f` returns.
///
/// # Safety
///
/// `dev` must be a valid device of `D`.
#[cfg(CONFIG_RUST_DRM_PEER)]
pub(crate) unsafe fn while_registered<D: Driver, R>(
    dev: *mut crate::bindings::drm_device,
    f: impl for<'a> FnOnce(&'a D::RegistrationData<'a>) -> Result<R>,
) -> Result<R> {
    struct Section(i32);

    impl Drop for Section {
        fn drop(&mut self) {
            // SAFETY: The section was entered.
            unsafe { crate::bindings::drm_dev_exit(self.0) };
        }
    }

    let mut section = Section(0);
    // SAFETY: The device is valid.
    if !unsafe { crate::bindings::drm_dev_enter(dev, &mut section.0) } {
        core::mem::forget(section);
        return Err(ENODEV);
    }

    // A device that was never registered can be entered too. It has no registration data; once it
    // has, that stays until after an unplug, which waits for this section.
    // SAFETY: The device is valid and of `D`.
    let device: &drm::Device<D> = unsafe { drm::Device::from_raw(dev) };
    if device
        .registration_data
        .load(crate::sync::atomic::Acquire)
        .is_null()
    {
        return Err(ENODEV);
    }

    // SAFETY: The device is registered until the end of the section.
    let dev: &drm::Device<D, drm::Registered> = unsafe { drm::Device::from_raw(dev) };
    dev.registration_data_with(f)
}

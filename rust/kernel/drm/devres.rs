// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Device-managed DRM registrations.
//!
//! The data of a [`drm::Registration`] borrows from the bound parent device. So the registration
//! must be dropped before the device is unbound. [`drm::Registration::new`] is `unsafe` because
//! Rust lets a driver forget a value. [`Registration`] leaves the drop to devres instead and is
//! safe.
//!
//! C header: [`include/drm/drm_drv.h`](srctree/include/drm/drm_drv.h)

use crate::{
    device::Bound,
    devres::{
        Early,
        Turn, //
    },
    drm::{
        self,
        Driver, //
    },
    prelude::*,
    sync::aref::ARef, //
};
use core::{
    marker::PhantomData,
    ops::Deref, //
};

/// A DRM device before its registration, while its registration data is being initialized.
///
/// The parent device is bound for the lifetime `'a`. The lifetime is invariant and the code
/// initializing the data has no other. A value borrowing for `'a` borrows from the parent device
/// and not from anything released earlier. Devres may keep such a value. So functions passing data
/// to devres ask for this type.
pub struct Unregistered<'drm, 'a, T: Driver> {
    drm: &'drm drm::UnregisteredDevice<T>,
    parent: &'a T::ParentDevice<Bound>,
    _invariant: PhantomData<fn(&'a ()) -> &'a ()>,
}

impl<'a, T: Driver> Unregistered<'_, 'a, T> {
    /// Returns the parent device.
    #[inline]
    pub fn parent(&self) -> &'a T::ParentDevice<Bound> {
        self.parent
    }
}

impl<T: Driver> Deref for Unregistered<'_, '_, T> {
    type Target = drm::UnregisteredDevice<T>;

    #[inline]
    fn deref(&self) -> &drm::UnregisteredDevice<T> {
        self.drm
    }
}

/// Initializes the data of a registration.
///
/// A trait and not a closure, because the type of the returned initializer depends on the lifetime.
pub trait RegistrationInit<T: Driver> {
    /// Returns the initializer of the registration data.
    ///
    /// `parent` is the bound parent device. The method is generic over the time for which it is
    /// bound. So the data may only borrow from the device and from static data.
    ///
    /// `drm` is the DRM device. Objects needed before it is registered are created here, such as
    /// GEM objects for firmware. They may be kept in the data: a reference to an object keeps the
    /// DRM device as well, which outlives its registration.
    ///
    /// Device-managed resources used by the data outlive it regardless of when they are acquired.
    /// The registration is released before all of them: see [`Early`].
    fn init<'a>(
        self,
        parent: &'a T::ParentDevice<Bound>,
        drm: Unregistered<'_, 'a, T>,
    ) -> impl PinInit<T::RegistrationData<'a>, Error>;
}

/// For drivers without registration data.
impl<T> RegistrationInit<T> for ()
where
    for<'a> T: Driver<RegistrationData<'a> = ()>,
{
    fn init<'a>(
        self,
        _parent: &'a T::ParentDevice<Bound>,
        _drm: Unregistered<'_, 'a, T>,
    ) -> impl PinInit<(), Error> {
        Ok::<_, Error>(())
    }
}

/// A DRM device registered until the value is dropped or its parent device is unbound.
///
/// Either unplugs the DRM device (see [`drm::Registration`]). The unplug waits for all
/// [`RegistrationGuard`](drm::RegistrationGuard)s. Then the registration data is dropped. If the
/// value still exists, an unbind does this after the private data of the bus device was dropped.
#[must_use = "the device is unplugged when this is dropped"]
pub struct Registration<T: Driver + 'static> {
    drm: ARef<drm::Device<T>>,
    _early: Early<drm::Registration<'static, T>>,
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
    /// - The errors of `data` and of `drm_dev_register()`.
    ///
    /// # Examples
    ///
    /// A device with an object for its firmware, created before the device is registered:
    ///
    /// ```
    /// use kernel::{
    ///     device::{
    ///         Bound,
    ///         Device,
    ///         DeviceContext, //
    ///     },
    ///     drm::{
    ///         self,
    ///         devres::{
    ///             Registration,
    ///             RegistrationInit,
    ///             Unregistered, //
    ///         },
    ///         gem::{
    ///             self,
    ///             BaseObject, //
    ///         },
    ///         UnregisteredDevice, //
    ///     },
    ///     faux,
    ///     page::PAGE_SIZE,
    ///     prelude::*,
    ///     sync::{
    ///         aref::ARef,
    ///         atomic::{
    ///             Atomic,
    ///             Relaxed, //
    ///         }, //
    ///     }, //
    /// };
    ///
    /// struct Example;
    ///
    /// /// How many objects there are.
    /// static OBJECTS: Atomic<u32> = Atomic::new(0);
    ///
    /// struct Bo;
    ///
    /// impl gem::DriverObject for Bo {
    ///     type Driver = Example;
    ///     type Args = ();
    ///
    ///     fn new(
    ///         _dev: &drm::Device<Example>,
    ///         _size: usize,
    ///         _args: (),
    ///     ) -> impl PinInit<Self, Error> {
    ///         OBJECTS.fetch_add(1, Relaxed);
    ///         Ok::<_, Error>(Self)
    ///     }
    /// }
    ///
    /// impl Drop for Bo {
    ///     fn drop(&mut self) {
    ///         OBJECTS.fetch_sub(1, Relaxed);
    ///     }
    /// }
    ///
    /// type Object = gem::Object<Bo>;
    ///
    /// /// Data that exists while the device is registered.
    /// struct Loaded<'a> {
    ///     firmware: ARef<Object>,
    ///     _parent: &'a Device<Bound>,
    /// }
    ///
    /// /// Loads the firmware, which is valid or not.
    /// struct Load(bool);
    ///
    /// impl RegistrationInit<Example> for Load {
    ///     fn init<'a>(
    ///         self,
    ///         parent: &'a faux::Device<Bound>,
    ///         drm: Unregistered<'_, 'a, Example>,
    ///     ) -> impl PinInit<Loaded<'a>, Error> {
    ///         let firmware = Object::new(&drm, 3 * PAGE_SIZE, ())?;
    ///
    ///         if !self.0 {
    ///             return Err(EIO);
    ///         }
    ///         Ok(Loaded {
    ///             firmware,
    ///             _parent: parent.as_ref(),
    ///         })
    ///     }
    /// }
    ///
    /// # struct File;
    /// #
    /// # impl drm::file::DriverFile for File {
    /// #     type Driver = Example;
    /// #
    /// #     fn open(_dev: &drm::Device<Example>) -> Result<Pin<KBox<Self>>> {
    /// #         Ok(KBox::new(Self, GFP_KERNEL)?.into())
    /// #     }
    /// # }
    /// #
    /// #[vtable]
    /// impl drm::Driver for Example {
    ///     type Data = ();
    ///     type RegistrationData<'a> = Loaded<'a>;
    ///     type File = File;
    ///     type Object = Object;
    ///     type ParentDevice<Ctx: DeviceContext> = faux::Device<Ctx>;
    ///
    ///     const INFO: drm::DriverInfo = drm::DriverInfo {
    ///         major: 1,
    ///         minor: 0,
    ///         patchlevel: 0,
    ///         name: c"drm_devres_example",
    ///         desc: c"Firmware in an object",
    ///     };
    ///     const IOCTLS: &'static [drm::ioctl::DrmIoctlDescriptor] = &[];
    /// }
    ///
    /// let faux = faux::Registration::new(c"drm_devres_example", None)?;
    /// let parent: &faux::Device<Bound> = faux.as_ref();
    /// let new = || UnregisteredDevice::<Example>::new(parent, Ok(()));
    ///
    /// let registration = Registration::new(parent, new()?, Load(true), 0)?;
    /// assert_eq!(
    ///     registration.with_data(|loaded| loaded.firmware.size()),
    ///     Some(3 * PAGE_SIZE)
    /// );
    ///
    /// assert_eq!(OBJECTS.load(Relaxed), 1);
    ///
    /// // Objects are dropped with the registration, and if the registration fails.
    /// drop(registration);
    /// assert_eq!(OBJECTS.load(Relaxed), 0);
    /// assert_eq!(Registration::new(parent, new()?, Load(false), 0).err(), Some(EIO));
    /// assert_eq!(OBJECTS.load(Relaxed), 0);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// See [`gem::ttm`](drm::gem::ttm) for a device with VRAM.
    pub fn new(
        parent: &T::ParentDevice<Bound>,
        drm: drm::UnregisteredDevice<T>,
        data: impl RegistrationInit<T>,
        flags: usize,
    ) -> Result<Self> {
        let dev = parent.as_ref();

        // SAFETY: The registration is not forgotten. It is dropped below on failure and by devres
        // otherwise. Devres releases all resources of a device when its driver is unbound or the
        // probe fails.
        let reg = unsafe {
            drm::Registration::<T>::new_with(
                dev,
                drm,
                |drm| {
                    let drm = Unregistered {
                        drm,
                        parent,
                        _invariant: PhantomData,
                    };

                    KBox::pin_init(data.init(parent, drm), GFP_KERNEL)
                },
                flags,
            )
        }?;
        let drm = reg.device().into();

        // SAFETY: Lifetimes do not change the layout. Beyond the borrow of `parent` the value is
        // only used by devres, which drops it while the device is still bound. The data may be used
        // until then:
        //
        // - `RegistrationInit::init()` is generic over the lifetime. So the data can only borrow
        //   from the bound device, whatever lifetime it was instantiated with here;
        // - device-managed resources behind such a borrow are released after the registration.
        let reg = unsafe {
            pin_init::cast_pin_init::<drm::Registration<'_, T>, drm::Registration<'static, T>, Error>(
                Ok(reg),
            )
        };

        Ok(Self {
            drm,
            _early: Early::new(dev, Turn::Interface, reg)?,
        })
    }

    /// Returns the DRM device.
    #[inline]
    pub fn device(&self) -> &ARef<drm::Device<T>> {
        &self.drm
    }

    /// Calls `f` with the registration data. Returns [`None`] if the device was unplugged.
    ///
    /// An unplug waits until `f` has returned.
    pub fn with_data<R>(&self, f: impl FnOnce(&T::RegistrationData<'_>) -> R) -> Option<R> {
        // SAFETY: The device is valid and was registered.
        let dev: &drm::Device<T, drm::Ioctl> = unsafe { drm::Device::from_raw(self.drm.as_raw()) };

        Some(dev.registration_guard()?.registration_data_with(f))
    }
}

/// Calls `f` with the registration data while the driver is bound.
///
/// # Errors
///
/// `ENODEV` if the DRM device is not registered. Also returns the errors of `f`.
///
/// # Safety
///
/// `dev` must be a valid device of `D`.
pub(crate) unsafe fn while_registered<D: Driver, R>(
    dev: *mut crate::bindings::drm_device,
    f: impl FnOnce(&D::RegistrationData<'_>) -> Result<R>,
) -> Result<R> {
    // SAFETY: The device is valid and of `D`. The context is that of any device: the guard proves the
    // rest.
    let dev: &drm::Device<D, drm::Ioctl> = unsafe { drm::Device::from_raw(dev) };

    dev.registration_guard()
        .ok_or(ENODEV)?
        .registration_data_with(f)
}

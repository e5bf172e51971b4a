// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The driver of a fake device. KUnit suites lock its objects.

use crate::{
    device,
    dma_buf::fence::FenceContextOps,
    drm::{
        self,
        gem,
        UnregisteredDevice, //
    },
    faux,
    prelude::*, //
};

pub(crate) struct Driver;
pub(crate) struct File;
#[pin_data]
pub(crate) struct Data {}
#[pin_data]
pub(crate) struct Bo {}

pub(crate) type Object = gem::Object<Bo>;

impl drm::file::DriverFile for File {
    type Driver = Driver;

    fn open(_dev: &drm::Device<Driver>) -> Result<Pin<KBox<Self>>> {
        Ok(KBox::new(Self, GFP_KERNEL)?.into())
    }
}

impl gem::DriverObject for Bo {
    type Driver = Driver;
    type Args = ();

    fn new(_dev: &drm::Device<Driver>, _size: usize, _args: ()) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {})
    }
}

#[vtable]
impl drm::Driver for Driver {
    type Data = Data;
    type RegistrationData<'a> = ();
    type File = File;
    type Object = Object;
    type ParentDevice<Ctx: device::DeviceContext> = faux::Device<Ctx>;

    const INFO: drm::DriverInfo = drm::DriverInfo {
        major: 0,
        minor: 0,
        patchlevel: 0,
        name: c"exec-kunit",
        desc: c"Execution context",
    };
    const IOCTLS: &'static [drm::ioctl::DrmIoctlDescriptor] = &[];
}

impl FenceContextOps for Driver {
    const DRIVER_NAME: &'static CStr = c"exec-kunit";
    type Data = ();
}

/// Creates a device with the name of its parent. The DRM device must be dropped before the parent.
pub(crate) fn device(name: &CStr) -> Result<(UnregisteredDevice<Driver>, faux::Registration)> {
    let faux = faux::Registration::new(name, None)?;
    let drm = UnregisteredDevice::new(faux.as_ref(), try_pin_init!(Data {}))?;

    Ok((drm, faux))
}

// SPDX-License-Identifier: GPL-2.0

//! The DRM driver of the auxiliary device.

use kernel::{
    auxiliary,
    device::{
        self,
        DeviceContext, //
    },
    drm::{
        self,
        devres::RegistrationInit,
        gem::{
            self,
            peer,
            BaseObject, //
        },
        ioctl,
        vram::BarMapping, //
    },
    prelude::*,
    uapi, //
};

use crate::{
    core::{
        ApiOf,
        BAR,
        NAME, //
    },
    gem::{
        Bo,
        BoData, //
    },
    MODULE, //
};

/// The DRM driver and driver of the auxiliary device.
pub(crate) struct Driver;

/// Data of the DRM device. It may outlive the binding of the driver.
pub(crate) struct Data {
    pub(crate) vram: gem::vram::Device<BoData>,
}

/// Data of the bound driver.
pub(crate) struct Bound<'a> {
    /// The mapping of VRAM for the CPU.
    pub(crate) window: BarMapping<'a>,
}

/// The initializer of [`Bound`].
struct Init;

impl RegistrationInit<Driver> for Init {
    fn init<'a>(
        self,
        adev: &'a auxiliary::Device<device::Bound>,
        drm: drm::devres::Unregistered<'_, 'a, Driver>,
    ) -> impl PinInit<Bound<'a>, Error> {
        Ok(Bound {
            window: drm.vram.map_bar(adev, MODULE)?,
        })
    }
}

kernel::auxiliary_device_table!(
    AUX_TABLE,
    <Driver as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(MODULE, NAME), ())]
);

impl auxiliary::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = drm::devres::Registration<Self>;

    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &AUX_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<device::Core<'_>>,
        _info: &'bound (),
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let adev: &auxiliary::Device<device::Bound> = adev;
        let api = adev.registration_data::<ApiOf>()?.get_ref();
        let vram = gem::vram::Device::new(adev, BAR, api.vram.size(), api.vram.clone())?;
        let drm = drm::UnregisteredDevice::<Self>::new(adev, Ok(Data { vram }))?;

        drm::devres::Registration::new(adev, drm, Init, 0)
    }
}

#[vtable]
impl drm::Driver for Driver {
    type Data = Data;
    type RegistrationData<'a> = Bound<'a>;
    type File = File;
    type Object = Bo;
    type ParentDevice<Ctx: DeviceContext> = auxiliary::Device<Ctx>;

    const INFO: drm::DriverInfo = drm::DriverInfo {
        major: 1,
        minor: 0,
        patchlevel: 0,
        name: c"avram",
        desc: c"VRAM of the parent of an auxiliary device",
    };
    const FEAT_RENDER: bool = true;

    fn debugfs_init(dir: &drm::debugfs::Dir<'_, Self>) {
        peer::debugfs::add_files::<BoData>(dir);
    }

    kernel::declare_drm_ioctls! {
        (AVRAM_GEM_CREATE, drm_avram_gem_create, ioctl::RENDER_ALLOW, File::gem_create),
        (
            AVRAM_PEER_ATTACHMENTS,
            drm_peer_attachments,
            ioctl::RENDER_ALLOW,
            peer::ioctl::attachments::<BoData>,
            Ioctl
        ),
        (
            AVRAM_PEER_QUERY,
            drm_peer_query,
            ioctl::RENDER_ALLOW,
            peer::ioctl::query::<BoData>,
            Ioctl
        ),
        (
            AVRAM_PEER_FLUSH,
            drm_peer_flush,
            ioctl::RENDER_ALLOW,
            peer::ioctl::flush::<BoData>,
            Ioctl
        ),
    }
}

/// An open file of the device.
pub(crate) struct File;

impl drm::file::DriverFile for File {
    type Driver = Driver;

    fn open(_dev: &drm::Device<Driver>) -> Result<Pin<KBox<Self>>> {
        Ok(KBox::new(Self, GFP_KERNEL)?.into())
    }
}

impl File {
    fn gem_create(
        dev: &drm::Device<Driver, drm::Registered>,
        _bound: &Bound<'_>,
        data: &mut uapi::drm_avram_gem_create,
        file: &drm::File<Self>,
    ) -> Result<u32> {
        if data.handle != 0 || data.pad != 0 {
            return Err(EINVAL);
        }

        let size = data.size.try_into().map_err(|_| ENOSPC)?;
        let object = Bo::new(dev, size, ())?;

        data.handle = object.create_handle(file)?;
        data.size = object.size() as u64;
        Ok(0)
    }
}

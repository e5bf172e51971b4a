// SPDX-License-Identifier: GPL-2.0

//! Probe, and what exists while the driver is bound.

use kernel::{
    device::{
        self,
        Core,
        DeviceContext, //
    },
    drm::{
        self,
        devres::RegistrationInit,
        gem::{
            iomem::Window,
            peer, //
        },
        ioctl, //
    },
    gpu::buddy::{
        GpuBuddy,
        GpuBuddyParams, //
    },
    page,
    pci,
    prelude::*,
    ptr::Alignment,
    sizes::SZ_1K, //
};

use crate::{
    file::File,
    gem::{
        Bo,
        BoData, //
    },
    hw::{
        Engine,
        Ivshmem,
        Variant, //
    },
};

pub(crate) struct VvramDriver;

/// The DRM device of this driver.
pub(crate) type VvramDevice<Ctx = drm::Normal> = drm::Device<VvramDriver, Ctx>;

/// What lives as long as the DRM device, which may be longer than the driver is bound.
pub(crate) struct VvramData {
    /// Which part of VRAM is whose.
    pub(crate) vram: GpuBuddy,
    /// The size of the part of VRAM that the BAR shows, in bytes.
    pub(crate) cpu_visible: u64,
}

/// What exists while the driver is bound. Fields are dropped in this order.
pub(crate) struct BoundData<'a> {
    /// The exported buffers: taken back before VRAM is out of reach.
    pub(crate) exports: peer::Exports<'a, BoData>,
    engine: KBox<dyn Engine + 'a>,
    /// The CPU's view of the BAR.
    pub(crate) window: Window<'a>,
}

impl BoundData<'_> {
    /// Writes zeroes to `len` bytes at `offset` of VRAM.
    pub(crate) fn clear(&self, offset: u64, len: u64) -> Result {
        self.engine.clear(&self.window, offset, len)
    }
}

/// Makes a [`BoundData`] for a kind of device.
struct Bind(&'static dyn Variant);

impl RegistrationInit<VvramDriver> for Bind {
    fn init<'a>(self, pdev: &'a pci::Device<device::Bound>) -> impl PinInit<BoundData<'a>, Error> {
        let bar = self.0.vram_bar();

        Ok(BoundData {
            exports: peer::exports(pdev, bar)?,
            engine: self.0.engine(pdev)?,
            window: Window::new(pdev, bar, c"vvram")?,
        })
    }
}

kernel::pci_device_table!(
    PCI_TABLE,
    <VvramDriver as pci::Driver>::IdInfo,
    [(
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, 0x1110),
        &Ivshmem as &dyn Variant
    )]
);

impl pci::Driver for VvramDriver {
    type IdInfo = &'static dyn Variant;
    type Data<'bound> = Self;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let variant = *info.ok_or(ENODEV)?;
        let vram_size = variant.vram_size(pdev)?;
        let cpu_visible = variant.cpu_visible_size(pdev)?;

        pdev.enable_device_mem()?;
        pdev.enable_p2pdma()?;

        let drm = drm::UnregisteredDevice::<Self>::new(
            pdev,
            Ok(VvramData {
                vram: GpuBuddy::new(GpuBuddyParams {
                    base_offset: 0,
                    size: vram_size,
                    chunk_size: Alignment::new::<{ page::PAGE_SIZE }>(),
                })?,
                cpu_visible,
            }),
        )?;
        drm::devres::register::<Self>(pdev, drm, Bind(variant), 0)?;

        dev_info!(
            pdev,
            "{}: {} KiB of VRAM, {} KiB of it in BAR {} at {:#x}\n",
            variant.name(),
            vram_size / SZ_1K as u64,
            cpu_visible / SZ_1K as u64,
            variant.vram_bar(),
            pdev.resource_start(variant.vram_bar())?
        );
        Ok(Self)
    }
}

#[vtable]
impl drm::Driver for VvramDriver {
    type Data = VvramData;
    type RegistrationData<'a> = BoundData<'a>;
    type File = File;
    type Object = Bo;
    type ParentDevice<Ctx: DeviceContext> = pci::Device<Ctx>;

    const INFO: drm::DriverInfo = drm::DriverInfo {
        major: 1,
        minor: 0,
        patchlevel: 0,
        name: c"vvram",
        desc: c"VRAM behind a PCI BAR",
    };
    const FEAT_RENDER: bool = true;

    kernel::declare_drm_ioctls! {
        (VVRAM_GETPARAM, drm_vvram_getparam, ioctl::RENDER_ALLOW, File::getparam),
        (VVRAM_GEM_CREATE, drm_vvram_gem_create, ioctl::RENDER_ALLOW, File::gem_create),
        (
            VVRAM_GEM_MMAP_OFFSET,
            drm_vvram_gem_mmap_offset,
            ioctl::RENDER_ALLOW,
            File::gem_mmap_offset
        ),
        (
            VVRAM_GEM_ATTACHMENTS,
            drm_vvram_gem_attachments,
            ioctl::RENDER_ALLOW,
            File::gem_attachments
        ),
    }
}

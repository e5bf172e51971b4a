// SPDX-License-Identifier: GPL-2.0

//! The driver of the PCI device.
//!
//! In other drivers the core uses VRAM itself, such as for firmware: it reserves a part, or shares
//! the allocator.

use kernel::{
    auxiliary,
    device,
    dma::DmaMask,
    drm::vram::Allocator,
    pci,
    prelude::*,
    sync::Arc,
    types::CovariantForLt, //
};

use crate::MODULE;

/// The BAR that shows VRAM.
pub(crate) const BAR: u32 = 2;

/// The name of the auxiliary device.
pub(crate) const NAME: &CStr = c"drm";

/// The data that the core hands to the DRM driver.
pub(crate) struct Api {
    /// The allocator of VRAM.
    pub(crate) vram: Arc<Allocator>,
}

/// The type of [`Api`] for the auxiliary bus.
pub(crate) type ApiOf = CovariantForLt!(Api);

/// The PCI driver.
pub(crate) struct Core;

/// The data of a bound device.
pub(crate) struct Probed<'a> {
    // Dropped when the driver is unbound, which unbinds the DRM driver.
    _drm: auxiliary::Registration<'a, ApiOf>,
}

kernel::pci_device_table!(
    PCI_TABLE,
    <Core as pci::Driver>::IdInfo,
    [(
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, 0x1110),
        ()
    )]
);

impl pci::Driver for Core {
    type IdInfo = ();
    type Data<'bound> = Probed<'bound>;

    const AUTOSUSPEND_MS: Option<u32> = Some(1000);

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    const DMA_MASK: Option<DmaMask> = Some(DmaMask::new::<64>());

    fn probe<'bound>(
        pdev: &'bound pci::Device<device::Core<'_>>,
        _info: Option<&'bound ()>,
    ) -> impl PinInit<Probed<'bound>, Error> + 'bound {
        pdev.enable_device_mem()?;
        // The provider of peer-to-peer memory is the PCI device, not the auxiliary device.
        pdev.enable_p2pdma()?;

        let bound: &'bound pci::Device<device::Bound> = pdev;
        let api = Api {
            vram: Allocator::new(0..pdev.resource_len(BAR)?)?,
        };
        Ok(Probed {
            _drm: auxiliary::Registration::new(bound.as_ref(), NAME, 0, MODULE, api)?,
        })
    }
}

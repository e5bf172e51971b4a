// SPDX-License-Identifier: GPL-2.0

//! The driver of the PCI device.
//!
//! Other drivers have a use of VRAM of their own here, such as for firmware: they reserve it, or share
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

/// What the core hands to the DRM driver.
pub(crate) struct Api {
    /// Who gives out VRAM.
    pub(crate) vram: Arc<Allocator>,
}

/// The type of [`Api`] for the auxiliary bus.
pub(crate) type ApiOf = CovariantForLt!(Api);

/// The PCI driver.
pub(crate) struct Core;

/// What it has of a bound device.
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
        // That of the device which has the memory.
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

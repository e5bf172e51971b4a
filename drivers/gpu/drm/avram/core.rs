// SPDX-License-Identifier: GPL-2.0

//! The driver of the PCI device.
//!
//! The core of another driver may use VRAM itself, for firmware for example. It then reserves a
//! part or shares the allocator.

use kernel::{
    auxiliary,
    device,
    dma::DmaMask,
    drm::vram::Allocator,
    new_mutex,
    pci,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    types::CovariantForLt, //
};

use crate::MODULE;

/// The BAR of VRAM.
pub(crate) const BAR: u32 = 2;

/// The number of the next auxiliary device.
static IDS: Atomic<u32> = Atomic::new(0);

/// The name of the auxiliary device.
pub(crate) const NAME: &CStr = c"drm";

/// Data passed by the core to the DRM driver.
pub(crate) struct Api {
    /// The allocator of VRAM.
    pub(crate) vram: Arc<Allocator>,
}

/// The type of [`Api`] for the auxiliary bus.
pub(crate) type ApiOf = CovariantForLt!(Api);

/// The PCI driver.
pub(crate) struct Core;

/// The auxiliary device. Its drop unbinds the DRM driver and so revokes all buffers.
type Drm<'a> = auxiliary::Registration<'a, ApiOf>;

/// The data of a bound device.
#[pin_data]
pub(crate) struct Probed<'bound> {
    /// [`None`] while the device is reset.
    #[pin]
    drm: Mutex<Option<Drm<'bound>>>,
}

fn register<'a>(pdev: &'a pci::Device<device::Bound>) -> Result<Drm<'a>> {
    let api = Api {
        vram: Allocator::new(0..pdev.resource_len(BAR)?)?,
    };

    let id = IDS.fetch_add(1, Relaxed);

    auxiliary::Registration::new(pdev.as_ref(), NAME, id, MODULE, api)
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

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    const DMA_MASK: Option<DmaMask> = Some(DmaMask::new::<64>());

    const HANDLES_RESET: bool = true;

    // VRAM would lose its content because nothing saves it. A runtime suspend would do the same.
    const SLEEP: pci::Sleep = pci::Sleep::Refused;

    fn probe<'bound>(
        pdev: &'bound pci::Device<device::Core<'_>>,
        _info: Option<&'bound ()>,
    ) -> impl PinInit<Probed<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            pdev.enable_device_mem()?;
            // The provider of peer-to-peer memory is the PCI device and not the auxiliary device.
            pdev.enable_p2pdma()?;

            let drm = register(pdev)?;
            Ok(try_pin_init!(Probed {
                drm <- new_mutex!(Some(drm), "avram::drm"),
            }))
        })
    }

    // The content of VRAM is lost and no importer may access the BAR during the reset.
    fn reset_prepare<'bound>(
        _pdev: &'bound pci::Device<device::Core<'_>>,
        this: Pin<&Self::Data<'bound>>,
    ) {
        let drm = this.drm.lock().take();

        // The drop waits for non-revocable importers. The lock is therefore not held.
        drop(drm);
    }

    fn reset_done<'bound>(
        pdev: &'bound pci::Device<device::Core<'_>>,
        this: Pin<&Self::Data<'bound>>,
    ) {
        match register(pdev) {
            Ok(drm) => *this.drm.lock() = Some(drm),
            Err(e) => dev_err!(pdev, "no device after the reset: {:?}\n", e),
        }
    }
}

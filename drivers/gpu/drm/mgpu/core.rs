// SPDX-License-Identifier: GPL-2.0

//! The driver of the PCI device.

use kernel::{
    auxiliary,
    device,
    dma::DmaMask,
    pci,
    prelude::*,
    sizes::SZ_1K,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    types::CovariantForLt, //
};

use crate::{
    gpu::{
        Gpu,
        Quiet, //
    },
    pagetable,
    report::Event,
    MODULE, //
};

/// The vendor ID and the device ID.
const VENDOR: pci::Vendor = pci::Vendor::from_raw(0x1234);
const DEVICE: u32 = 0x11f0;

/// The BAR of the aperture.
pub(crate) const BAR: u32 = 2;

/// The number of the next auxiliary device.
static IDS: Atomic<u32> = Atomic::new(0);

/// The name of the auxiliary device.
pub(crate) const NAME: &CStr = c"drm";

/// Data passed by the core to the DRM driver.
pub(crate) struct Api {
    pub(crate) gpu: Arc<Gpu>,
}

/// The type of [`Api`] for the auxiliary bus.
pub(crate) type ApiOf = CovariantForLt!(Api);

/// The PCI driver.
pub(crate) struct Core;

/// The data of a bound device. The fields are dropped in this order.
pub(crate) struct Probed<'a> {
    /// The drop of this unbinds the DRM driver and then drops the [`Api`].
    _drm: auxiliary::Registration<'a, ApiOf>,
    /// Resets the device when no driver gives it work any more. Device memory is freed after the
    /// reset.
    quiet: Quiet,
}

kernel::pci_device_table!(
    PCI_TABLE,
    <Core as pci::Driver>::IdInfo,
    [(pci::DeviceId::from_id(VENDOR, DEVICE), ())]
);

impl pci::Driver for Core {
    type IdInfo = ();
    type Data<'bound> = Probed<'bound>;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    // An address in a page table entry has this number of bits.
    const DMA_MASK: Option<DmaMask> = Some(DmaMask::new::<{ pagetable::ADDRESS_BITS }>());

    const SLEEP: pci::Sleep = pci::Sleep::Handled;

    const HANDLES_RESET: bool = true;

    // A piece of a list may have any length.
    const DMA_MAX_SEG_SIZE: Option<u32> = Some(u32::MAX);

    fn probe<'bound>(
        pdev: &'bound pci::Device<device::Core<'_>>,
        _info: Option<&'bound ()>,
    ) -> impl PinInit<Probed<'bound>, Error> + 'bound {
        pdev.enable_device_mem()?;
        // The provider of peer-to-peer memory is the PCI device and not the auxiliary device.
        pdev.enable_p2pdma()?;

        let bound: &'bound pci::Device<device::Bound> = pdev;
        let quiet = Quiet(Gpu::new(pdev)?);
        quiet.0.start(pdev)?;
        let api = Api {
            gpu: quiet.0.clone(),
        };

        let id = IDS.fetch_add(1, Relaxed);

        dev_info!(
            pdev,
            "{} KiB of VRAM, an aperture of {} KiB\n",
            api.gpu.vram.size() / SZ_1K as u64,
            api.gpu.aperture.len() / SZ_1K as u64
        );
        Ok(Probed {
            _drm: auxiliary::Registration::new(bound.as_ref(), NAME, id, MODULE, api)?,
            quiet,
        })
    }

    // The jobs of other devices still run and moves may wait for them.
    fn suspend<'bound>(
        _pdev: &'bound pci::Device<device::Bound>,
        this: Pin<&Probed<'bound>>,
    ) -> Result {
        this.quiet.0.save_vram()
    }

    // Drivers stop the DMA of their devices in `suspend`, so no peer writes to pinned objects any
    // more.
    fn suspend_late<'bound>(
        _pdev: &'bound pci::Device<device::Bound>,
        this: Pin<&Probed<'bound>>,
    ) -> Result {
        this.quiet.0.save_vram()?;
        this.quiet.0.sleep()
    }

    fn resume_early<'bound>(
        _pdev: &'bound pci::Device<device::Bound>,
        this: Pin<&Probed<'bound>>,
    ) -> Result {
        this.quiet.0.wake()
    }

    // VRAM has its content if the system did not sleep.
    fn resume<'bound>(
        _pdev: &'bound pci::Device<device::Bound>,
        this: Pin<&Probed<'bound>>,
    ) -> Result {
        this.quiet.0.recovery.reporter.keep_vram();
        Ok(())
    }

    fn reset_prepare<'bound>(
        _pdev: &'bound pci::Device<device::Core<'_>>,
        this: Pin<&Probed<'bound>>,
    ) {
        this.quiet.0.pause();
    }

    fn reset_done<'bound>(
        _pdev: &'bound pci::Device<device::Core<'_>>,
        this: Pin<&Probed<'bound>>,
    ) {
        this.quiet.0.resume();
    }

    fn error_detected<'bound>(
        _pdev: &'bound pci::Device<device::Core<'_>>,
        this: Pin<&Probed<'bound>>,
        state: pci::ChannelState,
    ) {
        let gpu = &this.quiet.0;

        gpu.link_failed();
        if state == pci::ChannelState::PermFailure {
            gpu.recovery.reporter.tell(Event::Gone);
        }
    }

    // The driver must be bound again. This does not work before the reset of the slot.
    fn slot_reset<'bound>(
        _pdev: &'bound pci::Device<device::Core<'_>>,
        this: Pin<&Probed<'bound>>,
    ) {
        this.quiet.0.recovery.reporter.tell(Event::Wedged);
    }
}

// SPDX-License-Identifier: GPL-2.0

//! QEMU's `edu` device as a peer with access to dma-bufs and to memory of processes.
//!
//! `edu` is a PCI device for teaching. Its DMA engine is a true bus master: its reads and writes
//! pass through switches, host bridges and IOMMUs like the traffic of real hardware. This driver
//! imports dma-bufs on its behalf in the way of each class of importer. It moves bytes between them
//! and userspace to test an exporter with real transfers.
//!
//! It is also the checker of such tests, so it does not trust the exporter. A scatter table that
//! breaks the contract of dma-buf is refused ([`table`]). A transfer that did not happen cannot
//! look like one that did ([`device`]).
//!
//! - [`device`]: registers and the DMA engines,
//! - [`table`]: the rules for scatter tables and the lookup of an offset in one,
//! - [`import`]: the attachment, of one of five classes,
//! - [`job`]: asynchronous transfers with a fence,
//! - [`cpu`]: the CPU in place of the device,
//! - [`client`]: the user of the buffer of an open file, either the device or the CPU,
//! - `memory`: memory of a process by its addresses, which an open file may use as well,
//! - [`file`]: the character device.
//!
//! # Locking
//!
//! In this order, from the outside to the inside:
//!
//! 1. the mutexes of an open file ([`file::PeerFile`]), held during a call. Memory of the caller is
//!    accessed with them held but with none of the locks below. A transfer of memory of a process
//!    does not hold them because its page faults may take as long as the process wants,
//! 2. the lock of the PCI device, held during probe, unbind, attach and the registration of memory,
//! 3. the reservation of the dma-buf or the mirror of memory of a process. The reservation is held
//!    from the lookup in the mapping until the DMA to these addresses is complete or its fence is
//!    published. The mirror is held while one piece is moved. The kernel takes the mirror when the
//!    process changes its page table and when it reclaims memory,
//! 4. a DMA engine ([`device::Engine`]), held while one piece is moved. The path to the signal of a
//!    fence takes no other lock. A task with an engine only tries to take the reservation and does
//!    not wait for it. It takes no other engine.
//!
//! The unbind of the device is called with 2 held. It takes 4. It also takes 3 to detach the
//! attachments and to unmap the memory of processes. The invalidation of a mapping is called with 3
//! held and takes no lock.

use kernel::{
    device::Core,
    dma::DmaMask,
    miscdevice::MiscDeviceRegistration,
    pci,
    prelude::*,
    str::CString,
    sync::Arc, //
};

mod client;
mod cpu;
mod device;
mod file;
mod import;
mod job;
#[cfg(CONFIG_RUST_HMM)]
mod memory;
mod table;

use self::{
    device::Edu,
    file::PeerFile, //
};

/// The vendor of the device. [`pci::Vendor`] has no constant for it.
const VENDOR: pci::Vendor = pci::Vendor::from_raw(0x1234);

/// The device ID.
const DEVICE: u32 = 0x11e8;

/// The data of a bound `edu` device.
#[pin_data(PinnedDrop)]
struct EduPeer {
    #[pin]
    _misc: MiscDeviceRegistration<PeerFile>,
    edu: Arc<Edu>,
}

#[pinned_drop]
impl PinnedDrop for EduPeer {
    fn drop(self: Pin<&mut Self>) {
        // Open files keep `edu` alive. Its DMA memory must not outlive the binding.
        self.edu.revoke();
    }
}

kernel::pci_device_table!(
    PCI_TABLE,
    <EduPeer as pci::Driver>::IdInfo,
    [(pci::DeviceId::from_id(VENDOR, DEVICE), ())]
);

impl pci::Driver for EduPeer {
    type IdInfo = ();
    type Data<'bound> = Self;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    // QEMU limits the device to 28 bits unless its property `dma_mask` is set. No register shows
    // the limit. BARs of peers are usually above 4 GiB, so the machine must be started with
    // `dma_mask` set to all ones.
    const DMA_MASK: Option<DmaMask> = Some(DmaMask::new::<64>());

    // The driver splits every segment anyway.
    const DMA_MAX_SEG_SIZE: Option<u32> = Some(u32::MAX);

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            pdev.enable_device_mem()?;

            let edu = Edu::new(pdev)?;
            let data = edu.clone();
            let name = CString::try_from_fmt(fmt!("edu-peer-{}", pdev.as_ref().name()))?;

            Ok(try_pin_init!(EduPeer {
                edu,
                _misc <- MiscDeviceRegistration::register_named(name, data),
            }))
        })
    }
}

kernel::module_pci_driver! {
    type: EduPeer,
    name: "edu_peer",
    authors: ["The vvram authors"],
    description: "QEMU edu device as dma-buf peer",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
}

// SPDX-License-Identifier: GPL-2.0

//! Devices that are unplugged from the guest, and plugged in again, through QEMU.

use std::time::Duration;

use crate::edu;
use crate::misc;
use crate::pci::PciDevice;
use crate::qmp::Monitor;
use crate::{Need, Outcome, Stop};

/// How long a device may take to be unplugged, and to be plugged in.
pub const LIMIT: Duration = Duration::from_secs(25);

/// Where QEMU finds the modelled edu.
const SOCKET: &str = "/build/sockets/peer.sock";

/// What a device is for QEMU.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// With memory of this size.
    Gpu(u64),
    /// QEMU's edu.
    Edu,
    /// The modelled edu.
    Model,
}

/// A device, with the data that is needed to plug it in again.
#[derive(Debug)]
pub struct Plug {
    device: PciDevice,
    kind: Kind,
}

impl Plug {
    fn new(device: PciDevice, other: &PciDevice, kind: Kind) -> Result<Self, Stop> {
        let slot = |device: &PciDevice| device.name().rsplit_once('.').map(|(s, _)| s.to_string());
        if slot(&device) == slot(other) {
            // Functions of one slot can only be unplugged together.
            return Err(Stop::needs(Need::OwnSlot));
        }
        Ok(Self { device, kind })
    }

    /// Its name in QEMU.
    pub fn id(&self) -> &'static str {
        match self.kind {
            Kind::Gpu(_) => "gpu",
            Kind::Edu | Kind::Model => "peer",
        }
    }

    /// The first GPU.
    ///
    /// # Errors
    ///
    /// Skips if another device shares its slot.
    #[track_caller]
    pub fn gpu() -> Result<Self, Stop> {
        let gpu = PciDevice::vvram()?;
        let (_, size) = gpu.bar(2)?;
        Self::new(gpu, &PciDevice::edu()?, Kind::Gpu(size))
    }

    /// The peer.
    ///
    /// # Errors
    ///
    /// As for [`Self::gpu`].
    #[track_caller]
    pub fn peer() -> Result<Self, Stop> {
        let kind = match edu::is_modelled()? {
            true => Kind::Model,
            false => Kind::Edu,
        };
        Self::new(PciDevice::edu()?, &PciDevice::vvram()?, kind)
    }

    /// The PCI device.
    pub fn device(&self) -> &PciDevice {
        &self.device
    }

    /// Unplugs it, and checks that it is gone from the guest and from QEMU.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it is not unplugged in time.
    #[track_caller]
    pub fn out(&self, monitor: &mut Monitor) -> Outcome {
        monitor.unplug(self.id())?;
        self.gone(monitor)
    }

    /// Waits until a device is gone whose unplug was requested.
    ///
    /// # Errors
    ///
    /// As for [`Self::out`].
    #[track_caller]
    pub fn gone(&self, monitor: &mut Monitor) -> Outcome {
        check!(
            monitor.unplugged(self.id(), LIMIT)?,
            "{} was not unplugged",
            self.device.name()
        );
        check!(
            !self.device.exists(),
            "{} was unplugged, but the kernel still has it",
            self.device.name()
        );
        Ok(())
    }

    /// Removes it by surprise: its driver is not notified before the device stops to answer.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it still answers.
    #[track_caller]
    pub fn vanish(&self) -> Outcome {
        let Some(port) = self.device.port() else {
            fail!("{} is on a root bus", self.device.name());
        };
        port.turn_slot(false)?;
        let answers = self.device.config()?.iter().any(|byte| *byte != 0xff);
        check!(!answers, "{} still answers", self.device.name());
        Ok(())
    }

    /// Makes it appear again below its port, after it has vanished and was removed, and waits for
    /// its driver.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it does not appear.
    #[track_caller]
    pub fn appear(&self, port: &PciDevice) -> Outcome {
        port.turn_slot(true)?;
        PciDevice::rescan()?;
        self.bound()
    }

    fn bound(&self) -> Outcome {
        let bound = misc::poll(LIMIT, || self.device.driver());
        check!(bound.is_some(), "no driver for {}", self.device.name());
        Ok(())
    }

    /// Plugs it in again, and waits for its driver.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it does not appear.
    #[track_caller]
    pub fn back(&self, monitor: &mut Monitor) -> Outcome {
        match self.kind {
            Kind::Gpu(size) => {
                let more = format!("\"memdev\": \"{}\"", monitor.memory(size)?);
                monitor.plug("ivshmem-plain", self.id(), &more, &["d1", "rp1"])?;
            }
            Kind::Edu => {
                let more = format!("\"dma_mask\": {}", u64::MAX);
                monitor.plug("edu", self.id(), &more, &["d2", "rp2"])?;
            }
            Kind::Model => {
                let more = format!("\"socket\": {{\"type\": \"unix\", \"path\": \"{SOCKET}\"}}");
                monitor.plug("vfio-user-pci", self.id(), &more, &["d2", "rp2"])?;
            }
        }
        self.bound()
    }
}

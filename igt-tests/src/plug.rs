// SPDX-License-Identifier: GPL-2.0

//! Devices that are unplugged from the guest, and plugged in again, through QEMU.

use std::path::Path;
use std::time::Duration;

use crate::edu;
use crate::misc;
use crate::pci::PciDevice;
use crate::qmp::Monitor;
use crate::{Need, Outcome, Stop};

/// The ports of the first GPU, of the peer, and of the second GPU, below a switch or root ports.
pub const FIRST: [&str; 2] = ["d1", "rp1"];
const SECOND: [&str; 2] = ["d2", "rp2"];
const THIRD: [&str; 2] = ["d3", "rp3"];

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
    /// Its name in QEMU.
    id: &'static str,
    /// The ports that it may be below.
    ports: [&'static str; 2],
    kind: Kind,
}

impl Plug {
    fn new(
        device: PciDevice,
        other: &PciDevice,
        id: &'static str,
        ports: [&'static str; 2],
        kind: Kind,
    ) -> Result<Self, Stop> {
        let slot = |device: &PciDevice| device.name().rsplit_once('.').map(|(s, _)| s.to_string());
        if slot(&device) == slot(other) {
            // Functions of one slot can only be unplugged together.
            return Err(Stop::needs(Need::OwnSlot));
        }
        Ok(Self {
            device,
            id,
            ports,
            kind,
        })
    }

    /// Its name in QEMU.
    pub fn id(&self) -> &'static str {
        self.id
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
        Self::new(gpu, &PciDevice::edu()?, "gpu", FIRST, Kind::Gpu(size))
    }

    /// The second GPU, on a machine that has one.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none.
    #[track_caller]
    pub fn second_gpu() -> Result<Self, Stop> {
        let gpus = PciDevice::vvrams();
        let [first, second] = gpus.as_slice() else {
            fail!("expected two GPUs, saw {gpus:?}");
        };
        let (_, size) = second.bar(2)?;
        Self::new(second.clone(), first, "gpu2", THIRD, Kind::Gpu(size))
    }

    /// The peer.
    #[track_caller]
    pub fn peer() -> Result<Self, Stop> {
        let kind = match edu::is_modelled()? {
            true => Kind::Model,
            false => Kind::Edu,
        };
        Self::new(
            PciDevice::edu()?,
            &PciDevice::vvram()?,
            "peer",
            SECOND,
            kind,
        )
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
                monitor.plug("ivshmem-plain", self.id, &more, &self.ports)?;
            }
            Kind::Edu => {
                let more = format!("\"dma_mask\": {}", u64::MAX);
                monitor.plug("edu", self.id, &more, &self.ports)?;
            }
            Kind::Model => {
                let more = format!("\"socket\": {{\"type\": \"unix\", \"path\": \"{SOCKET}\"}}");
                monitor.plug("vfio-user-pci", self.id, &more, &self.ports)?;
            }
        }
        self.bound()
    }
}

/// Slots that have more functions than before.
#[derive(Debug)]
pub struct Crowd {
    slots: Vec<Plug>,
    /// The peers that came.
    pub peers: Vec<PciDevice>,
    /// The names of all functions in QEMU.
    ids: Vec<String>,
}

impl Crowd {
    /// Unplugs devices, and plugs new ones in with so many functions each: a GPU is function 0 of
    /// its slot again, and all others are peers. Returns when all have their drivers.
    ///
    /// A slot has addresses for two peers at most.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that takes too long.
    #[track_caller]
    pub fn new(slots: Vec<Plug>, functions: usize, monitor: &mut Monitor) -> Result<Self, Stop> {
        let mut this = Self {
            slots,
            peers: Vec::new(),
            ids: Vec::new(),
        };
        let mut all = Vec::new();
        for slot in &this.slots {
            let (place, _) = slot.device.name().rsplit_once('.').unwrap_or_default();
            slot.out(monitor)?;
            // The guest looks for devices when function 0 is there.
            for function in (0..functions).rev() {
                let at = format!("\"addr\": \"0x0.{function}\", \"multifunction\": true");
                let device = PciDevice::named(&format!("{place}.{function}"));
                let id = match function {
                    0 => slot.id.to_string(),
                    _ => format!("{}-{function}", slot.id),
                };
                match slot.kind {
                    Kind::Gpu(size) if function == 0 => {
                        let more = format!("\"memdev\": \"{}\", {at}", monitor.memory(size)?);
                        monitor.plug("ivshmem-plain", &id, &more, &slot.ports)?;
                    }
                    _ => {
                        let more = format!("\"dma_mask\": {}, {at}", u64::MAX);
                        monitor.plug("edu", &id, &more, &slot.ports)?;
                        this.peers.push(device.clone());
                    }
                }
                all.push(device);
                this.ids.push(id);
            }
        }
        // A device has a driver before the probe has made its node.
        let is_ready = |device: &&PciDevice| {
            let node = Path::new("/dev").join(format!("edu-peer-{}", device.name()));
            device.driver().is_some() && (!this.peers.contains(device) || node.exists())
        };
        let unbound = || -> Vec<_> { all.iter().filter(|d| !is_ready(d)).collect() };
        let bound = misc::poll(LIMIT, || unbound().is_empty().then_some(()));
        check!(bound.is_some(), "no driver for {:?}", unbound());
        this.peers.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(this)
    }

    /// Unplugs all of them, and plugs the old devices in again.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that takes too long.
    #[track_caller]
    pub fn end(self, monitor: &mut Monitor) -> Outcome {
        // All functions of a slot go.
        for slot in &self.slots {
            monitor.unplug(slot.id)?;
        }
        let slots = self.slots.iter().map(|slot| &slot.device);
        let all: Vec<_> = self.peers.iter().chain(slots).collect();
        let gone = misc::poll(LIMIT, || (!all.iter().any(|d| d.exists())).then_some(()));
        check!(gone.is_some(), "functions of {:?} are there", self.slots);
        // QEMU deletes them after the guest has turned the slot off.
        for id in &self.ids {
            let freed = misc::poll(LIMIT, || monitor.is_free(id).ok()?.then_some(()));
            check!(freed.is_some(), "QEMU still has {id}");
        }
        self.slots.iter().try_for_each(|slot| slot.back(monitor))
    }
}

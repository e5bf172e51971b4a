// SPDX-License-Identifier: GPL-2.0

//! The PCI tree of a machine, and the other facts on which its kernel bases the decision.

use std::collections::BTreeMap;

use crate::address::Address;
use crate::config::Space;
use crate::files::{Blind, Root};
use crate::hosts::{self, Cpu, Version};
use crate::kconfig::Kconfig;
use crate::names::{self, Name};

const DEVICES: &str = "sys/bus/pci/devices";
/// A note for a machine on which [`Machine::gpus`] finds nothing.
pub const NO_GPU: &str = "there is no GPU or accelerator; see p2p doctor";

/// The purpose of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A GPU, or another function with a DRM device.
    Gpu,
    /// An accelerator without displays.
    Accelerator,
    /// A network or RDMA device.
    Nic,
    /// An NVMe drive.
    Nvme,
    /// Any other function that may access memory.
    Other,
    /// A bridge or port, which accesses nothing by itself.
    Bridge,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Accelerator => "accelerator",
            Self::Nic => "nic",
            Self::Nvme => "nvme",
            Self::Other => "other",
            Self::Bridge => "bridge",
        }
    }

    /// The kind by the class code, and by the devices that its driver made.
    fn of(class: u32, names: &[Name]) -> Self {
        let has = |wanted: &str| names.iter().any(|name| name.class == wanted);
        match (class >> 16, class >> 8) {
            (0x06, _) => Self::Bridge,
            (0x03, _) => Self::Gpu,
            (0x12, _) => Self::Accelerator,
            (0x02, _) | (_, 0x0c06) => Self::Nic,
            (_, 0x0108) => Self::Nvme,
            _ if has("drm") => Self::Gpu,
            _ if has("accel") => Self::Accelerator,
            _ if has("net") || has("infiniband") => Self::Nic,
            _ => Self::Other,
        }
    }
}

/// A PCI function.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its PCI name.
    pub address: Address,
    /// PCI vendor.
    pub vendor: u16,
    /// PCI device ID.
    pub device: u16,
    /// The class code.
    pub class: u32,
    /// Its purpose.
    pub kind: Kind,
    /// The driver that is bound to it.
    pub driver: Option<String>,
    /// Other names that it has, the best one first.
    pub names: Vec<Name>,
    /// The bridges above it, from the root bus down.
    pub above: Vec<Address>,
    /// The host bridge, as sysfs names its root bus: `pci0000:00`.
    pub host: String,
    /// Its configuration space.
    pub space: Space,
    /// Number of its IOMMU group.
    pub group: Option<String>,
    /// Type of the default domain of that group: `DMA`, `DMA-FQ`, `identity`.
    pub domain: Option<String>,
    /// Number of the NUMA node.
    pub numa: Option<u32>,
    /// Sizes of its memory BARs, in bytes, by the number of the BAR.
    pub bars: BTreeMap<usize, u64>,
}

impl Device {
    /// The shortest name.
    pub fn label(&self) -> String {
        match self.names.first() {
            Some(first) => first.name.clone(),
            None => self.address.short(),
        }
    }

    /// All names other than that of PCI, in one line.
    pub fn all_names(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| name.name.as_str()).collect();
        names.join(", ")
    }

    /// Whether it translates the addresses that the device uses.
    pub fn is_translated(&self) -> bool {
        self.domain
            .as_deref()
            .is_some_and(|it| it.starts_with("DMA"))
    }
}

/// All that is known of a machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The PCI functions.
    pub devices: BTreeMap<Address, Device>,
    /// The first processor.
    pub cpu: Option<Cpu>,
    /// The release of the kernel.
    pub release: String,
    /// Its version.
    pub version: Option<Version>,
    /// Its configuration, as far as it can be read.
    pub kconfig: Kconfig,
    /// The files that could not be read.
    pub notes: Vec<String>,
    /// How to see what the caller may not read.
    pub as_root: &'static str,
}

impl Machine {
    /// Reads a machine.
    ///
    /// # Errors
    ///
    /// The reason why there are no PCI devices.
    pub fn read(root: &Root) -> Result<Self, Blind> {
        let found = root.names(DEVICES)?;
        let mut names = names::all(root);
        let mut devices = BTreeMap::new();
        for address in found.iter().filter_map(|name| Address::parse(name)) {
            let names = names.remove(&address).unwrap_or_default();
            if let Some(device) = device(root, address, names) {
                devices.insert(address, device);
            }
        }
        if devices.is_empty() {
            return Err(Blind::Absent);
        }
        let release = root.text("proc/sys/kernel/osrelease").unwrap_or_default();
        let mut this = Self {
            devices,
            cpu: root
                .text("proc/cpuinfo")
                .ok()
                .and_then(|text| Cpu::parse(&text)),
            version: hosts::version(&release),
            kconfig: Kconfig::read(root, &release),
            release,
            notes: Vec::new(),
            as_root: root.as_root(),
        };
        this.notes = this.unseen();
        Ok(this)
    }

    /// A device.
    pub fn device(&self, address: Address) -> Option<&Device> {
        self.devices.get(&address)
    }

    /// The GPUs and accelerators.
    pub fn gpus(&self) -> impl Iterator<Item = &Device> {
        let devices = self.devices.values();
        devices.filter(|it| matches!(it.kind, Kind::Gpu | Kind::Accelerator))
    }

    /// A device in words: its PCI name, and its other names.
    pub fn called(&self, address: Address) -> String {
        match self.device(address) {
            Some(device) if !device.names.is_empty() => {
                format!("{address} ({})", device.all_names())
            }
            _ => address.to_string(),
        }
    }

    /// The function that stands for a host bridge: the first one on its root bus, if that is
    /// function 0 of device 0 or a root port. [`Err`] if that cannot be seen.
    pub fn host_device(&self, host: &str) -> Result<Option<&Device>, &Device> {
        use crate::config::Port;

        let mut on_root = self.devices.values().filter(|device| device.host == host);
        let Some(first) = on_root.find(|device| device.above.is_empty()) else {
            return Ok(None);
        };
        match first.space.port {
            _ if first.address.devfn == 0 => Ok(Some(first)),
            Port::ROOT => Ok(Some(first)),
            Port::Unknown => Err(first),
            _ => Ok(None),
        }
    }

    /// Whether the kernel has P2PDMA at all; [`None`] if its configuration cannot be read.
    pub fn has_p2pdma(&self) -> Option<bool> {
        self.kconfig.is_set("PCI_P2PDMA")
    }

    /// The unknown facts of the machine, with the reasons.
    fn unseen(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let hidden = |device: &&Device| device.space.acs.redirects().is_none();
        let count = self.devices.values().filter(hidden).count();
        if count > 0 {
            notes.push(format!(
                "the ACS bits of {count} of {} PCI functions cannot be read: {}",
                self.devices.len(),
                self.as_root
            ));
        }
        if self.cpu.is_none() {
            notes.push("the processor cannot be read from /proc/cpuinfo".to_string());
        }
        if self.version.is_none() {
            notes.push("the version of the kernel cannot be read".to_string());
        }
        if self.has_p2pdma().is_none() {
            notes.push(format!(
                "whether the kernel has PCI_P2PDMA is not known ({}): what follows holds if it has",
                self.kconfig.blind()
            ));
        }
        notes
    }
}

fn number(root: &Root, path: &str) -> Option<u32> {
    let text = root.text(path).ok()?;
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Reads a function; [`None`] if it is gone.
fn device(root: &Root, address: Address, names: Vec<Name>) -> Option<Device> {
    let at = format!("{DEVICES}/{address}");
    let file = |name: &str| format!("{at}/{name}");
    let parts = root.real(&at)?;
    // Behind some bridges there is a host of its own, whose bridges alone count.
    let host = parts.iter().rposition(|part| {
        part.strip_prefix("pci")
            .is_some_and(|rest| Address::parse(&format!("{rest}:00.0")).is_some())
    })?;
    let mut above: Vec<_> = parts[host + 1..]
        .iter()
        .filter_map(|part| Address::parse(part))
        .collect();
    above.pop();
    let config = file("config");
    let space = match (root.bytes(&config), root.size(&config)) {
        (Ok(bytes), Ok(size)) => Space::parse(&bytes, size),
        _ => Space::UNKNOWN,
    };
    let class = number(root, &file("class"))?;
    let group = root.link_name(&file("iommu_group"));
    let domain = group.as_ref().and_then(|group| {
        let path = format!("sys/kernel/iommu_groups/{group}/type");
        root.text(&path).ok()
    });
    Some(Device {
        address,
        vendor: number(root, &file("vendor"))?.try_into().ok()?,
        device: number(root, &file("device"))?.try_into().ok()?,
        class,
        kind: Kind::of(class, &names),
        driver: root.link_name(&file("driver")),
        names,
        above,
        host: parts[host].clone(),
        space,
        group,
        domain,
        numa: number(root, &file("numa_node")),
        bars: bars(&root.text(&file("resource")).unwrap_or_default()),
    })
}

/// The sizes of memory BARs, from the file `resource`: start, end and flags of each in a line.
fn bars(text: &str) -> BTreeMap<usize, u64> {
    const MEMORY: u64 = 0x200;
    const BARS: usize = 6;
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let mut found = BTreeMap::new();
    for (bar, line) in text.lines().take(BARS).enumerate() {
        let words: Vec<_> = line.split_whitespace().filter_map(hex).collect();
        if let [start, end, flags] = words[..] {
            if flags & MEMORY != 0 && end > start {
                found.insert(bar, end - start + 1);
            }
        }
    }
    found
}

#[cfg(test)]
impl Machine {
    /// A machine of these devices, whose processor and kernel are unknown.
    pub fn of(devices: &[&Device]) -> Self {
        let nowhere = Root::tree(std::path::Path::new("/nowhere"));
        Self {
            devices: devices
                .iter()
                .map(|it| (it.address, (*it).clone()))
                .collect(),
            cpu: None,
            release: String::new(),
            version: None,
            kconfig: Kconfig::read(&nowhere, ""),
            notes: Vec::new(),
            as_root: nowhere.as_root(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_bars() {
        let text = "0x00000000fe000000 0x00000000feffffff 0x0000000000040200\n\
                    0x000000000000e000 0x000000000000e07f 0x0000000000040101\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                    0x0000380000000000 0x00003807ffffffff 0x000000000014220c\n";
        let want = BTreeMap::from([(0, 16 << 20), (3, 32 << 30)]);
        assert_eq!(bars(text), want);
        assert!(bars("x y z").is_empty());
    }
}

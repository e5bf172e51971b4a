// SPDX-License-Identifier: GPL-2.0

//! `p2p topo`: how each device reaches the memory of each other one.

use std::collections::BTreeMap;

use serde_json::{json, Value};

use crate::address::Address;
use crate::config::{acs_names, Acs};
use crate::decide::{decide, Decision, Forwards, Path};
use crate::files::Root;
use crate::kernel;
use crate::machine::{Device, Kind, Machine, NO_GPU};
use crate::table::Table;
use crate::uapi::{self, Answer};

/// One direction between two devices.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The decision that follows from sysfs.
    pub sysfs: Decision,
    /// The answer of the provider's driver, if it answers.
    pub kernel: Option<Answer>,
}

impl Cell {
    /// How the client reaches the provider: by the kernel, if it was asked.
    pub fn path(&self) -> Path {
        self.kernel.as_ref().map_or(self.sysfs.path, |it| it.path)
    }

    /// The distance, -1 without a route, [`None`] if it is unknown.
    pub fn distance(&self) -> Option<i32> {
        match &self.kernel {
            Some(answer) => Some(answer.distance),
            None => self.sysfs.distance(),
        }
    }

    /// The source of the answer.
    pub fn source(&self) -> &'static str {
        if self.kernel.is_some() {
            "kernel"
        } else {
            "sysfs"
        }
    }

    /// Whether the decision from sysfs differs from the route in the kernel's answer.
    pub fn is_contradicted(&self) -> bool {
        let Some(answer) = &self.kernel else {
            return false;
        };
        // Reasons of the driver, besides the route, are not visible in sysfs, and links are not.
        let of_route = matches!(answer.reason, "none" | "no-route") && answer.path != Path::Link;
        of_route && self.sysfs.path != Path::Unknown && self.sysfs.path != answer.path
    }

    /// Both directions in words, if both are known and differ in the matrix. This one is from the
    /// memory of `a` to `b`.
    pub fn directions(&self, back: &Self, a: &str, b: &str) -> Option<String> {
        let (there, reverse) = (self.path(), back.path());
        let is_known = there != Path::Unknown && reverse != Path::Unknown;
        (is_known && short(there) != short(reverse)).then(|| {
            format!(
                "memory of {a} for {b}: {}, memory of {b} for {a}: {}",
                there.name(),
                reverse.name()
            )
        })
    }

    /// The text in the matrix.
    fn mark(&self) -> String {
        let by_kernel = if self.kernel.is_some() { "*" } else { "" };
        let hops = self.distance().unwrap_or(self.sysfs.hops as i32);
        match self.path() {
            Path::Bus => format!("BUS{hops}{by_kernel}"),
            Path::HostBridge => format!("HOST{hops}{by_kernel}"),
            Path::Link => format!("LINK{by_kernel}"),
            Path::Refused | Path::System => format!("NO{by_kernel}"),
            Path::Unknown => {
                let maybe: Vec<_> = self.sysfs.maybe.iter().map(|it| short(*it)).collect();
                format!("{}?", maybe.join("/"))
            }
        }
    }
}

fn short(path: Path) -> &'static str {
    match path {
        Path::Bus => "BUS",
        Path::HostBridge => "HOST",
        Path::Link => "LINK",
        Path::Refused | Path::System => "NO",
        Path::Unknown => "",
    }
}

/// Which devices are in the matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Which {
    /// All functions, bridges and idle ones as well.
    pub all: bool,
    /// Drivers are not asked.
    pub sysfs_only: bool,
}

/// The matrix.
#[derive(Debug)]
pub struct Topo {
    /// The devices, GPUs first.
    pub devices: Vec<Address>,
    /// Each pair of provider and client, without pairs of a device with itself.
    pub cells: BTreeMap<(Address, Address), Cell>,
    /// The files that could not be read.
    pub notes: Vec<String>,
}

/// Whether a function is in the matrix unless all are asked for.
fn is_shown(device: &Device) -> bool {
    match device.kind {
        Kind::Bridge => false,
        // Many functions of a processor access no memory.
        Kind::Other => device.space.is_master == Some(true),
        _ => true,
    }
}

/// Decides for each pair of devices.
pub fn look(root: &Root, machine: &Machine, which: Which) -> Topo {
    let shown = |device: &&Device| which.all || is_shown(device);
    let mut devices: Vec<_> = machine.devices.values().filter(shown).collect();
    devices.sort_by_key(|device| (device.kind, device.address));
    let mut notes = machine.notes.clone();
    if machine.has_p2pdma() == Some(false) {
        let from = machine.kconfig.from();
        notes.push(format!(
            "nothing is peer to peer: the kernel has no PCI_P2PDMA ({from})"
        ));
    }
    if machine.gpus().next().is_none() {
        notes.push(NO_GPU.to_string());
    }
    let (exporters, closed) = match which.sysfs_only {
        true => (Vec::new(), Vec::new()),
        false => kernel::exporters(root, machine),
    };
    notes.extend(closed);
    let mut cells = BTreeMap::new();
    for provider in &devices {
        let exporter = exporters.iter().find(|it| it.address == provider.address);
        for client in devices.iter().filter(|it| it.address != provider.address) {
            let sysfs = decide(machine, provider, client);
            let asked = exporter.map(|it| it.ask(client.address));
            let kernel = match asked {
                Some(Err(error)) => {
                    notes.push(format!(
                        "{} does not answer about {}: {error}",
                        provider.address, client.address
                    ));
                    None
                }
                Some(Ok(answer)) => Some(answer),
                None => None,
            };
            let cell = Cell { sysfs, kernel };
            if cell.is_contradicted() {
                notes.push(format!(
                    "memory of {} for {}: sysfs leads to {}, the kernel says {}: please report it",
                    provider.address,
                    client.address,
                    cell.sysfs.path.name(),
                    cell.path().name()
                ));
            }
            cells.insert((provider.address, client.address), cell);
        }
    }
    notes.dedup();
    Topo {
        devices: devices.iter().map(|device| device.address).collect(),
        cells,
        notes,
    }
}

impl Topo {
    /// As text.
    pub fn text(&self, machine: &Machine) -> String {
        let mut table = Table::default();
        let label = |address: &Address| {
            let device = machine.device(*address);
            device.map_or_else(|| address.short(), Device::label)
        };
        let mut head = vec![String::new()];
        head.extend(self.devices.iter().map(label));
        head.extend(["NUMA".to_string(), "IOMMU group".to_string()]);
        table.row(head);
        for provider in &self.devices {
            let mut row = vec![label(provider)];
            for client in &self.devices {
                let cell = self.cells.get(&(*provider, *client));
                row.push(cell.map_or_else(|| "X".to_string(), Cell::mark));
            }
            let device = machine.device(*provider);
            let numa = device.and_then(|it| it.numa).map(|it| it.to_string());
            row.push(numa.unwrap_or_else(|| "-".to_string()));
            row.push(device.map(group).unwrap_or_default());
            table.row(row);
        }
        let mut text =
            "Row: the device whose memory it is. Column: the device that accesses it.\n\n"
                .to_string();
        text += &table.text();
        text += "\n";
        text += LEGEND;
        text += "\n";
        let mut names = Table::default();
        for device in self.devices.iter().filter_map(|it| machine.device(*it)) {
            names.row([
                label(&device.address),
                device.address.to_string(),
                device.kind.name().to_string(),
                format!("{:04x}:{:04x}", device.vendor, device.device),
                device
                    .driver
                    .clone()
                    .unwrap_or_else(|| "no driver".to_string()),
                device
                    .names
                    .iter()
                    .skip(1)
                    .map(|it| &*it.name)
                    .collect::<Vec<_>>()
                    .join(", "),
            ]);
        }
        text += &names.text();
        for ((a, b), cell) in self.cells.iter().filter(|((a, b), _)| a < b) {
            let back = self.cells.get(&(*b, *a));
            let found = back.and_then(|back| cell.directions(back, &label(a), &label(b)));
            if let Some(directions) = found {
                text += &format!("\ndiffers by direction: {directions}: see p2p why");
            }
        }
        for ((provider, client), cell) in &self.cells {
            if let Some(answer) = &cell.kernel {
                if !matches!(answer.reason, "none" | "no-route") {
                    text += &format!(
                        "\nmemory of {} for {}: {}",
                        label(provider),
                        label(client),
                        answer.reason
                    );
                }
            }
        }
        for note in &self.notes {
            text += &format!("\nnote: {note}");
        }
        text.truncate(text.trim_end().len());
        text + "\n"
    }

    /// As JSON.
    pub fn json(&self, machine: &Machine) -> Value {
        let devices: Vec<_> = self
            .devices
            .iter()
            .filter_map(|it| machine.device(*it))
            .map(device_json)
            .collect();
        let pairs: Vec<_> = self
            .cells
            .iter()
            .map(|((provider, client), cell)| {
                json!({
                    "provider": provider.to_string(),
                    "client": client.to_string(),
                    "path": cell.path().name(),
                    "distance": cell.distance(),
                    "source": cell.source(),
                    "sysfs": decision_json(&cell.sysfs),
                    "kernel": cell.kernel.as_ref().map(answer_json),
                })
            })
            .collect();
        json!({
            "kernel": machine.release,
            "devices": devices,
            "pairs": pairs,
            "notes": self.notes,
        })
    }
}

/// The IOMMU group of a device and what it does with addresses.
fn group(device: &Device) -> String {
    match (&device.group, &device.domain) {
        (Some(group), Some(domain)) => format!("{group} ({domain})"),
        (Some(group), None) => group.clone(),
        (None, _) => "-".to_string(),
    }
}

fn ids(ids: Option<(u16, u16)>) -> Option<String> {
    ids.map(|(vendor, device)| format!("{vendor:04x}:{device:04x}"))
}

/// A device as JSON.
pub fn device_json(device: &Device) -> Value {
    let acs = match device.space.acs {
        Acs::Unknown => json!("unknown"),
        Acs::None => Value::Null,
        Acs::Control(bits) => json!(acs_names(bits)),
    };
    json!({
        "address": device.address.to_string(),
        "names": device.names.iter().map(|it| it.name.clone()).collect::<Vec<_>>(),
        "kind": device.kind.name(),
        "id": ids(Some((device.vendor, device.device))),
        "class": format!("{:06x}", device.class),
        "driver": device.driver,
        "above": device.above.iter().map(Address::to_string).collect::<Vec<_>>(),
        "host": device.host,
        "port": device.space.port.name(),
        "acs": acs,
        "bus_master": device.space.is_master,
        "iommu_group": device.group,
        "iommu_domain": device.domain,
        "numa": device.numa,
        "bars": device.bars.iter().map(|(bar, size)| (bar.to_string(), json!(size)))
            .collect::<serde_json::Map<_, _>>(),
    })
}

/// The decision that follows from sysfs, as JSON.
pub fn decision_json(it: &Decision) -> Value {
    let redirect = |(port, bits): &(Address, u16)| {
        json!({
            "port": port.to_string(),
            "acs": bits,
            "bits": acs_names(*bits),
        })
    };
    let host = it.host.as_ref().map(|host| {
        let (forwards, why) = match &host.forwards {
            Forwards::Cpu => ("cpu", None),
            Forwards::Listed => ("listed", None),
            Forwards::No => ("no", None),
            Forwards::Unknown(why) => ("unknown", Some(why)),
        };
        json!({ "forwards": forwards, "unknown": why, "id": ids(host.ids) })
    });
    json!({
        "path": it.path.name(),
        "maybe": it.maybe.iter().map(|path| path.name()).collect::<Vec<_>>(),
        "distance": it.distance(),
        "hops": it.hops,
        "bridge": it.bridge.map(|it| it.to_string()),
        "redirects": it.redirects.iter().map(redirect).collect::<Vec<_>>(),
        "unseen": it.unseen.iter().map(Address::to_string).collect::<Vec<_>>(),
        "host": host,
        "has_p2pdma": !it.is_without_p2pdma,
    })
}

/// An answer of a driver as JSON.
pub fn answer_json(it: &Answer) -> Value {
    json!({
        "path": it.path.name(),
        "reason": it.reason,
        "distance": it.distance,
        "route": uapi::bits(&uapi::ROUTE, it.route),
        "bridge": it.bridge.map(|it| it.to_string()),
        "redirect": it.redirect.map(|(port, bits)| json!({
            "port": port.to_string(),
            "acs": bits,
            "bits": acs_names(bits),
        })),
        "host": ids(it.host),
    })
}

const LEGEND: &str = "  X      the device itself
  BUSn   peer to peer by bus address, over n hops, without the host
  HOSTn  peer to peer through the host bridge, by IOVA if an IOMMU translates
  LINK   peer to peer by a link that is not PCI, as the driver says
  NO     no permitted route: from system memory, or the importer is refused
  a/b?   one of these: the answer is unknown, see p2p why and the notes
  *      the kernel's own answer; all others follow from sysfs
";

#[cfg(test)]
impl Cell {
    /// A cell with the answer of a kernel that says nothing but the path.
    pub fn of(sysfs: Decision, kernel: Option<Path>) -> Self {
        Self {
            sysfs,
            kernel: kernel.map(|path| Answer {
                path,
                ..uapi::answer(&[0; uapi::QUERY_SIZE])
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(sysfs: Path, kernel: Option<Path>) -> Cell {
        let sysfs = Decision {
            path: sysfs,
            maybe: Vec::new(),
            hops: 4,
            bridge: None,
            redirects: Vec::new(),
            unseen: Vec::new(),
            host: None,
            is_without_p2pdma: false,
        };
        Cell::of(sysfs, kernel)
    }

    /// The text of a matrix of two devices.
    fn text(there: Cell, back: Cell) -> String {
        let [a, b] = ["0000:01:00.0", "0000:02:00.0"].map(|it| Address::parse(it).unwrap());
        let topo = Topo {
            devices: vec![a, b],
            cells: BTreeMap::from([((a, b), there), ((b, a), back)]),
            notes: Vec::new(),
        };
        topo.text(&Machine::of(&[]))
    }

    #[test]
    fn a_direction_that_is_not_known_does_not_differ() {
        let by_kernel = || cell(Path::Unknown, Some(Path::Bus));
        let unknown = || cell(Path::Unknown, None);
        for (there, back) in [
            (by_kernel(), unknown()),
            (unknown(), by_kernel()),
            (unknown(), unknown()),
        ] {
            let text = text(there, back);
            assert!(!text.contains("differs by direction"), "{text}");
        }
    }

    #[test]
    fn directions_that_differ() {
        let text = text(cell(Path::Bus, None), cell(Path::HostBridge, None));
        let line = "differs by direction: memory of 01:00.0 for 02:00.0: bus, \
                    memory of 02:00.0 for 01:00.0: host-bridge: see p2p why";
        assert!(text.contains(line), "{text}");
        assert_eq!(text.matches("differs").count(), 1, "{text}");
        let (bus, refused) = (
            cell(Path::Bus, None),
            cell(Path::Unknown, Some(Path::Refused)),
        );
        assert_eq!(
            bus.directions(&refused, "a", "b").as_deref(),
            Some("memory of a for b: bus, memory of b for a: refused")
        );
        // Neither is peer to peer.
        let system = cell(Path::Refused, Some(Path::System));
        assert_eq!(refused.directions(&system, "a", "b"), None);
        assert_eq!(bus.directions(&bus, "a", "b"), None);
    }

    #[test]
    fn a_link_that_sysfs_does_not_show() {
        let link = cell(Path::Refused, Some(Path::Link));
        assert!(!link.is_contradicted());
        assert!(cell(Path::Refused, Some(Path::HostBridge)).is_contradicted());
        assert_eq!(link.mark(), "LINK*");
    }
}

// SPDX-License-Identifier: GPL-2.0

//! `p2p why`: the path between two devices, the facts that decide, and advice.

use serde_json::{json, Value};

use crate::address::Address;
use crate::config::acs_names;
use crate::decide::{decide, Forwards, Path};
use crate::drawing::draw;
use crate::files::Root;
use crate::hosts;
use crate::kernel;
use crate::machine::{Device, Machine};
use crate::topo::{answer_json, decision_json, device_json, Cell};

/// How to write the parameter for a number of ports in the configuration of GRUB, whose scripts do
/// not quote the command line of the kernel.
pub fn in_grub(ports: usize) -> Option<&'static str> {
    (ports > 1).then_some(
        "in /etc/default/grub write \\; for each ; (GRUB ends a command there), then run \
         update-grub",
    )
}

/// The answer for one direction.
#[derive(Debug)]
pub struct Why<'a> {
    /// The device that has the memory.
    pub provider: &'a Device,
    /// The device that accesses it.
    pub client: &'a Device,
    /// The decision.
    pub cell: Cell,
    /// The same with both exchanged.
    pub back: Cell,
    /// The files that could not be read.
    pub notes: Vec<String>,
}

/// Decides for two devices.
pub fn look<'a>(
    root: &Root,
    machine: &'a Machine,
    provider: &'a Device,
    client: &'a Device,
    sysfs_only: bool,
) -> Why<'a> {
    let (exporters, mut notes) = match sysfs_only {
        true => (Vec::new(), Vec::new()),
        false => kernel::exporters(root, machine),
    };
    notes.extend(machine.notes.iter().cloned());
    let mut cell = |from: &Device, to: &Device| {
        let exporter = exporters.iter().find(|it| it.address == from.address);
        let asked = exporter.map(|it| it.ask(to.address));
        if let Some(Err(error)) = &asked {
            notes.push(format!(
                "{} does not answer about {}: {error}",
                from.address, to.address
            ));
        }
        Cell {
            sysfs: decide(machine, from, to),
            kernel: asked.and_then(Result::ok),
        }
    };
    let there = cell(provider, client);
    let back = cell(client, provider);
    Why {
        provider,
        client,
        cell: there,
        back,
        notes,
    }
}

fn ids((vendor, device): (u16, u16)) -> String {
    format!("{vendor:04x}:{device:04x}")
}

impl Why<'_> {
    /// The answer in a sentence.
    fn answer(&self) -> String {
        let cell = &self.cell;
        let what = match cell.path() {
            Path::Bus => "peer to peer, by bus address".to_string(),
            Path::HostBridge if self.client.is_translated() => {
                "peer to peer through the host bridge, by IOVA".to_string()
            }
            Path::HostBridge => "peer to peer through the host bridge".to_string(),
            Path::Link => "peer to peer, by a link that is not PCI".to_string(),
            Path::Refused | Path::System => {
                let reason = cell
                    .kernel
                    .as_ref()
                    .map_or("no-route", |answer| answer.reason);

                format!(
                    "not peer to peer ({reason}): from system memory if the buffer may live there, \
                     else refused"
                )
            }
            Path::Unknown => {
                let maybe: Vec<_> = cell.sysfs.maybe.iter().map(|it| it.name()).collect();
                format!("unknown: {}", maybe.join(" or "))
            }
        };
        let hops = match cell.path() {
            Path::Bus | Path::HostBridge => {
                format!(", {} hops", cell.distance().unwrap_or(-1))
            }
            _ => String::new(),
        };
        let source = match cell.source() {
            "kernel" => "the driver of the memory says so",
            _ => "it follows from sysfs",
        };
        format!("{what}{hops} ({source})")
    }

    /// The facts that decide, in the order in which the kernel checks them.
    fn decides(&self, machine: &Machine) -> Vec<String> {
        let it = &self.cell.sysfs;
        let mut lines = Vec::new();
        if self.cell.path() == Path::Link {
            lines.push("the driver knows the link, and the route of PCI does not matter".into());
            return lines;
        }
        if it.is_without_p2pdma {
            let from = machine.kconfig.from();
            lines.push(format!("the kernel is built without PCI_P2PDMA ({from})"));
            return lines;
        }
        match it.bridge {
            Some(bridge) if bridge == self.provider.address => {
                lines.push("it is one device".to_string());
            }
            Some(bridge) => lines.push(format!("both are below {}", machine.called(bridge))),
            None if self.provider.host == self.client.host => lines.push(format!(
                "no bridge is above both: they meet at the root bus of {}",
                self.provider.host
            )),
            None => lines.push(format!(
                "they are below two host bridges, {} and {}",
                self.provider.host, self.client.host
            )),
        }
        for (port, bits) in &it.redirects {
            lines.push(format!(
                "{port} sends requests of peers to the host: {} {} on",
                acs_names(*bits).join(" and "),
                if bits.count_ones() == 1 { "is" } else { "are" }
            ));
        }
        for port in &it.unseen {
            lines.push(format!("the ACS bits of {port} cannot be read"));
        }
        if let Some(host) = &it.host {
            let bridge = host.ids.map_or_else(
                || "which has no function that stands for it".to_string(),
                ids,
            );
            let cpu = machine.cpu.as_ref();
            let processor = cpu.map_or("the processor", |cpu| match cpu.model.as_str() {
                "" => "the processor",
                model => model,
            });
            let family = cpu.map_or(String::new(), |cpu| match cpu.vendor.as_str() {
                "" => String::new(),
                vendor => format!(" ({vendor}, family {})", cpu.family),
            });
            lines.push(match &host.forwards {
                Forwards::Cpu => format!("{processor}: AMD since Zen forwards between root ports"),
                Forwards::Listed => format!(
                    "the host bridge {bridge} is on the kernel's list of those that forward"
                ),
                Forwards::No => format!(
                    "{processor}{family} is not known to forward, and the host bridge {bridge} is \
                     not on the kernel's list, or not for this pair"
                ),
                Forwards::Unknown(why) => why.clone(),
            });
        }
        if let Some(answer) = &self.cell.kernel {
            let reason = answer.reason;
            if !matches!(reason, "none" | "no-route") {
                lines.push(format!("the driver of {}: {reason}", self.provider.address));
            }
        }
        if self.cell.is_contradicted() {
            lines.push("sysfs leads to another answer than the kernel's: please report it".into());
        }
        lines
    }

    /// Advice for an operator.
    fn advice(&self, machine: &Machine) -> Vec<String> {
        let it = &self.cell.sysfs;
        let mut lines = Vec::new();
        if it.is_without_p2pdma {
            lines.push("boot a kernel with CONFIG_PCI_P2PDMA=y".to_string());
            return lines;
        }
        if let Some(answer) = &self.cell.kernel {
            lines.extend(for_reason(answer.reason, self.provider));
        }
        if !it.unseen.is_empty() {
            lines.push(format!("to see the ACS bits, {}", machine.as_root));
        }
        let path = self.cell.path();
        if path != Path::Link && !it.redirects.is_empty() {
            lines.extend(self.without_redirection());
        } else if matches!(path, Path::Refused) && it.bridge.is_none() {
            lines.extend(self.elsewhere(machine));
        }
        if path == Path::Refused {
            lines.extend(self.later(machine));
        }
        if path == Path::Unknown && it.unseen.is_empty() {
            lines.extend(self.to_find_out(machine));
        }
        if path.is_peer() && lines.is_empty() {
            lines.push(match &self.provider.driver {
                _ if self.is_reported() => {
                    "nothing. If a transfer is not peer to peer all the same, p2p ls and p2p watch \
                     name the reason for each buffer"
                        .to_string()
                }
                Some(driver) => format!("nothing. The driver {driver} does not report paths"),
                None => "nothing".to_string(),
            });
        }
        lines
    }

    /// Whether the driver of the memory reports the path of each importer.
    fn is_reported(&self) -> bool {
        kernel::driver_of(self.provider).is_some()
    }

    /// How to get the direct path if ports redirect.
    fn without_redirection(&self) -> Vec<String> {
        let ports: Vec<_> = self
            .cell
            .sysfs
            .redirects
            .iter()
            .map(|it| it.0.to_string())
            .collect();
        let outcome = match self.cell.path() {
            Path::HostBridge | Path::Unknown => "for the direct way",
            _ => "to permit it at all",
        };
        let groups = [self.provider, self.client].map(|it| it.group.clone());
        let mut lines = vec![format!(
            "{outcome}, boot with pci=disable_acs_redir={}",
            ports.join(";")
        )];
        lines.push(match groups {
            [Some(a), Some(b)] if a != b => format!(
                "this joins their IOMMU groups {a} and {b}: both can then be passed to one guest \
                 only, and neither is protected from the other"
            ),
            [Some(_), Some(_)] => "their IOMMU group stays the same".to_string(),
            _ => "without an IOMMU nothing else depends on it; a BIOS may have an option for ACS \
                  as well"
                .to_string(),
        });
        lines.extend(in_grub(ports.len()).map(str::to_string));
        lines
    }

    /// The kernel that is known to forward, if this one is too old for it.
    fn later(&self, machine: &Machine) -> Option<String> {
        let host = self.cell.sysfs.host.as_ref()?;
        if host.forwards != Forwards::No {
            return None;
        }
        let cpu = machine.cpu.as_ref();
        let by_cpu = cpu.and_then(|cpu| cpu.forwards_later(machine.version));
        let same = self.provider.host == self.client.host;
        let listed = host.ids.and_then(|(vendor, device)| {
            hosts::is_listed_later(vendor, device, same, machine.version)
        });
        let (major, minor) = by_cpu.into_iter().chain(listed).min()?;
        Some(format!(
            "boot Linux {major}.{minor} or newer, which has it forward. The kernel of a \
             distribution may do so already: look at drivers/pci/p2pdma.c of its source"
        ))
    }

    /// How to learn whether the host forwards, if that is unknown.
    fn to_find_out(&self, machine: &Machine) -> Vec<String> {
        let mut lines = Vec::new();
        if machine.cpu.is_none() {
            lines.push("make /proc/cpuinfo readable, which names the processor".to_string());
        }
        let hosts = [&self.provider.host, &self.client.host];
        if let Some(device) = hosts.iter().find_map(|it| machine.host_device(it).err()) {
            lines.push(format!(
                "to see whether {} is a root port, {}",
                device.address, machine.as_root
            ));
        }
        let same = self.provider.host == self.client.host;
        let host = self.cell.sysfs.host.as_ref().and_then(|host| host.ids);
        let may_be_listed =
            |(vendor, device)| hosts::is_listed(vendor, device, same, machine.version).is_none();
        if let Some(host) = host.filter(|it| may_be_listed(*it)) {
            lines.push(format!(
                "compare {} with pci_p2pdma_whitelist[] in drivers/pci/p2pdma.c of the source of \
                 this kernel",
                ids(host)
            ));
        }
        let may_count = |cpu: &hosts::Cpu| cpu.forwards(machine.version).is_none();
        if machine.cpu.as_ref().is_some_and(may_count) {
            lines.push(
                "look whether drivers/pci/p2pdma.c of the source of this kernel goes by the \
                 processor, in cpu_supports_p2pdma()"
                    .to_string(),
            );
        }
        // Of other drivers, p2p ls lists importers without their paths.
        if self.is_reported() {
            lines.push(
                "attach a buffer once: p2p ls then shows what the kernel decided".to_string(),
            );
        }
        let (major, minor) = hosts::LIST;
        if machine.version != Some(hosts::LIST) {
            lines.push(format!(
                "boot Linux {major}.{minor}, the kernel version whose list of host bridges this \
                 program has"
            ));
        }
        lines
    }

    /// Where to put a device if the host does not forward.
    fn elsewhere(&self, machine: &Machine) -> Vec<String> {
        let mut lines = vec![
            "put both below one switch, or use a machine whose host bridge or processor forwards"
                .to_string(),
        ];
        for (device, other) in [(self.provider, self.client), (self.client, self.provider)] {
            let top = device.above.first();
            let near = machine.devices.values().filter(|near| {
                top.is_some()
                    && near.address != device.address
                    && near.above.first() == top
                    && near.kind == other.kind
            });
            let near: Vec<_> = near.map(|near| machine.called(near.address)).collect();
            if !near.is_empty() {
                lines.push(format!(
                    "next to {}, below the same root port, there is {}",
                    device.label(),
                    near.join(", ")
                ));
            }
        }
        lines
    }

    /// The exit status: 0 if it is peer to peer, 1 if not, 4 if that is not known.
    pub fn status(&self) -> u8 {
        match self.cell.path() {
            Path::Unknown => 4,
            path if path.is_peer() => 0,
            _ => 1,
        }
    }

    /// As text.
    pub fn text(&self, machine: &Machine) -> String {
        let called = |it: Address| machine.called(it);
        let mut text = format!(
            "Memory of {}, accessed by {}\n\n{}\n",
            called(self.provider.address),
            called(self.client.address),
            draw(machine, self.provider, self.client)
        );
        text += &format!("Answer: {}\n", self.answer());
        let mut section = |title: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                text += &format!("{title}\n");
            }
            for line in lines {
                text += &format!("  - {line}\n");
            }
        };
        section("What decides:", self.decides(machine));
        section("What to do:", self.advice(machine));
        let labels = [self.provider.label(), self.client.label()];
        let directions = self.cell.directions(&self.back, &labels[0], &labels[1]);
        section("It differs by direction:", directions.into_iter().collect());
        section("What could not be seen:", self.notes.clone());
        text
    }

    /// As JSON.
    pub fn json(&self, machine: &Machine) -> Value {
        let cell = |cell: &Cell| {
            json!({
                "path": cell.path().name(),
                "distance": cell.distance(),
                "source": cell.source(),
                "sysfs": decision_json(&cell.sysfs),
                "kernel": cell.kernel.as_ref().map(answer_json),
            })
        };
        let ports = self.provider.above.iter().chain(&self.client.above);
        let mut ports: Vec<_> = ports.filter_map(|it| machine.device(*it)).collect();
        ports.sort_by_key(|it| it.address);
        ports.dedup_by_key(|it| it.address);
        json!({
            "provider": device_json(self.provider),
            "client": device_json(self.client),
            "bridges": ports.iter().map(|it| device_json(it)).collect::<Vec<_>>(),
            "answer": cell(&self.cell),
            "back": cell(&self.back),
            "decides": self.decides(machine),
            "advice": self.advice(machine),
            "notes": self.notes,
        })
    }
}

/// Advice for the reason in a driver's answer.
fn for_reason(reason: &str, provider: &Device) -> Option<String> {
    let debugfs = format!("/sys/kernel/debug/dri/{}", provider.address);
    let sysfs = format!("/sys/bus/pci/devices/{}", provider.address);
    Some(match reason {
        "outside-bar" => {
            "the BAR does not show all of VRAM: see p2p doctor on resizable BARs".into()
        }
        "suspended" => format!(
            "the device does not resume: see the kernel log, or keep it active by writing on to \
             {sysfs}/power/control"
        ),
        "not-revocable" => format!(
            "importers that cannot be revoked get no VRAM: {debugfs}/unrevocable, or the \
             parameter unrevocable_percent of the driver"
        ),
        "no-window" => "the aperture is full: unmap buffers that are not used, see p2p ls".into(),
        "quota" => format!("too much VRAM is pinned: {debugfs}/pin_limit"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Space;
    use crate::machine::Kind;

    fn device(address: &str) -> Device {
        Device {
            address: Address::parse(address).unwrap(),
            vendor: 0x1234,
            device: 0x5678,
            class: 0x03_0000,
            kind: Kind::Gpu,
            driver: None,
            names: Vec::new(),
            above: Vec::new(),
            host: "pci0000:00".to_string(),
            space: Space::UNKNOWN,
            group: None,
            domain: None,
            numa: None,
            bars: BTreeMap::new(),
        }
    }

    #[test]
    fn directions() {
        let [gpu, nic] = ["0000:00:01.0", "0000:00:02.0"].map(device);
        let machine = Machine::of(&[&gpu, &nic]);
        let text = |there: Option<Path>, back: Option<Path>| {
            let cell = |path| Cell::of(decide(&machine, &gpu, &nic), path);
            let why = Why {
                provider: &gpu,
                client: &nic,
                cell: cell(there),
                back: cell(back),
                notes: Vec::new(),
            };
            why.text(&machine)
        };
        // Without a processor, sysfs does not decide.
        let one = text(Some(Path::Bus), None);
        assert!(!one.contains("It differs by direction"), "{one}");
        for (back, name) in [
            (Path::HostBridge, "host-bridge"),
            (Path::Refused, "refused"),
        ] {
            let both = text(Some(Path::Bus), Some(back));
            let want = format!(
                "It differs by direction:\n  - memory of 00:01.0 for 00:02.0: bus, \
                 memory of 00:02.0 for 00:01.0: {name}\n"
            );
            assert!(both.contains(&want), "{both}");
        }
        let link = text(Some(Path::Link), None);
        assert!(link.contains("Answer: peer to peer, by a link that is not PCI (the driver"));
        assert!(link.contains("the route of PCI does not matter"), "{link}");
    }
}

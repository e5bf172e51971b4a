// SPDX-License-Identifier: GPL-2.0

//! The decision of the kernel between two PCI functions, computed from sysfs.
//!
//! It is `pci_p2pdma_decide()` of drivers/pci/p2pdma.c, with a third answer besides
//! yes and no if a port or a host bridge cannot be seen.

use crate::address::Address;
use crate::hosts;
use crate::machine::{Device, Machine};

/// How an importer reaches memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// Peer to peer, by PCI bus address.
    Bus,
    /// Peer to peer through the host bridge.
    HostBridge,
    /// Peer to peer by a link that is not PCI, of which only a driver knows.
    Link,
    /// From system memory.
    System,
    /// Not at all.
    Refused,
    /// It cannot be seen.
    Unknown,
}

impl Path {
    /// The name that debugfs and tracepoints have for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bus => "bus",
            Self::HostBridge => "host-bridge",
            Self::Link => "link",
            Self::System => "system",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it is peer to peer.
    pub fn is_peer(self) -> bool {
        matches!(self, Self::Bus | Self::HostBridge | Self::Link)
    }
}

/// The reason why the host forwards, or does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forwards {
    /// The processor is known to forward.
    Cpu,
    /// The host bridge is listed.
    Listed,
    /// Neither of both.
    No,
    /// It is not known, for the reason in this sentence.
    Unknown(String),
}

/// A route through the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The reason why it is one.
    pub forwards: Forwards,
    /// Vendor and device of the function that stands for the host bridge that was looked up.
    pub ids: Option<(u16, u16)>,
}

/// A decision, and the facts behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How the client reaches the provider.
    pub path: Path,
    /// The possible paths if that is unknown.
    pub maybe: Vec<Path>,
    /// Hops from one to the other, also where there is no route.
    pub hops: u32,
    /// The bridge that both are below.
    pub bridge: Option<Address>,
    /// The ports that redirect, from the provider to the bridge, then from the client.
    pub redirects: Vec<(Address, u16)>,
    /// The ports whose ACS bits cannot be read.
    pub unseen: Vec<Address>,
    /// The route through the host, if it was needed.
    pub host: Option<Host>,
    /// The kernel has no P2PDMA.
    pub is_without_p2pdma: bool,
}

impl Decision {
    /// The distance as the kernel gives it: -1 without a route, [`None`] if that is unknown.
    pub fn distance(&self) -> Option<i32> {
        match self.path {
            Path::Unknown => None,
            path if path.is_peer() => i32::try_from(self.hops).ok(),
            _ => Some(-1),
        }
    }
}

/// The path of a request: ports from the provider up, and from the client up.
fn way(provider: &Device, client: &Device) -> (Vec<Address>, Vec<Address>, Option<Address>) {
    let route = |device: &Device| {
        let mut route = device.above.clone();
        route.push(device.address);
        route
    };
    let (up, down) = (route(provider), route(client));
    let shared = match provider.host == client.host {
        true => up.iter().zip(&down).take_while(|(a, b)| a == b).count(),
        false => 0,
    };
    let reversed = |part: &[Address]| part.iter().rev().copied().collect::<Vec<_>>();
    (
        reversed(&up[shared..]),
        reversed(&down[shared..]),
        shared.checked_sub(1).map(|last| up[last]),
    )
}

/// The decision of the kernel between a provider of memory and a client.
pub fn decide(machine: &Machine, provider: &Device, client: &Device) -> Decision {
    let (up, down, bridge) = way(provider, client);
    let mut this = Decision {
        path: Path::Bus,
        maybe: Vec::new(),
        hops: (up.len() + down.len()) as u32,
        bridge,
        redirects: Vec::new(),
        unseen: Vec::new(),
        host: None,
        is_without_p2pdma: false,
    };
    if bridge.is_some() {
        for port in up.iter().chain(&bridge).chain(&down) {
            let space = machine.device(*port).map(|it| it.space.acs.redirects());
            match space.flatten() {
                Some(0) => {}
                Some(bits) => this.redirects.push((*port, bits)),
                None => this.unseen.push(*port),
            }
        }
    }
    let is_direct = match (bridge, this.redirects.is_empty(), this.unseen.is_empty()) {
        (None, _, _) | (_, false, _) => Some(false),
        (_, true, true) => Some(true),
        (_, true, false) => None,
    };
    if is_direct != Some(true) {
        let host = host(machine, provider, client);
        let through = match &host.forwards {
            Forwards::Cpu | Forwards::Listed => vec![Path::HostBridge],
            Forwards::No => vec![Path::Refused],
            Forwards::Unknown(_) => vec![Path::HostBridge, Path::Refused],
        };
        this.host = Some(host);
        this.maybe = if is_direct.is_none() {
            vec![Path::Bus]
        } else {
            Vec::new()
        };
        this.maybe.extend(through);
        this.path = match this.maybe[..] {
            [only] => only,
            _ => Path::Unknown,
        };
    }
    if machine.has_p2pdma() == Some(false) {
        this.path = Path::Refused;
        this.is_without_p2pdma = true;
    }
    if this.path != Path::Unknown {
        this.maybe.clear();
    }
    this
}

/// Whether there is a route through the host.
fn host(machine: &Machine, provider: &Device, client: &Device) -> Host {
    let unknown = |why: &str| Forwards::Unknown(why.to_string());
    let by_cpu = machine
        .cpu
        .as_ref()
        .map(|cpu| cpu.forwards(machine.version));
    let why = match by_cpu {
        Some(Some(true)) => {
            return Host {
                forwards: Forwards::Cpu,
                ids: None,
            };
        }
        Some(Some(false)) => None,
        Some(None) => Some("it is not known whether this kernel goes by the processor"),
        None => Some("the processor is not known"),
    };
    let same = provider.host == client.host;
    let one = lookup(machine, &provider.host, same);
    let both = match one.forwards {
        Forwards::No => one,
        _ if same => one,
        _ => {
            let other = lookup(machine, &client.host, same);
            match (&one.forwards, &other.forwards) {
                (Forwards::Unknown(_), Forwards::Listed) => one,
                _ => other,
            }
        }
    };
    match (why, &both.forwards) {
        (Some(why), Forwards::No) => Host {
            forwards: unknown(why),
            ..both
        },
        _ => both,
    }
}

/// Looks up one host bridge.
fn lookup(machine: &Machine, host: &str, same: bool) -> Host {
    let (ids, device) = match machine.host_device(host) {
        Ok(None) => {
            return Host {
                forwards: Forwards::No,
                ids: None,
            };
        }
        Ok(Some(device)) => (Some((device.vendor, device.device)), device),
        // It is unknown whether it stands for the bridge; this is the result if it does.
        Err(device) => (None, device),
    };
    let listed = hosts::is_listed(device.vendor, device.device, same, machine.version);
    let kernel = || match &*machine.release {
        "" => "this kernel".to_string(),
        release => format!("Linux {release}"),
    };
    let counts = match device.address.devfn {
        0 => Some(true),
        _ => hosts::is_port_enough(machine.version),
    };
    if counts == Some(false) {
        return Host {
            forwards: Forwards::No,
            ids: None,
        };
    }
    let forwards = match listed {
        Some(true) if counts.is_none() => Forwards::Unknown(format!(
            "it is not known whether {} goes by a root port that is not 00.0, as {} is",
            kernel(),
            device.address
        )),
        Some(true) if ids.is_some() => Forwards::Listed,
        Some(false) => Forwards::No,
        Some(true) => Forwards::Unknown(format!(
            "it is not known whether {} is a root port",
            device.address
        )),
        None => Forwards::Unknown(format!(
            "it is not known whether {} lists {:04x}:{:04x}",
            kernel(),
            device.vendor,
            device.device
        )),
    };
    Host { forwards, ids }
}

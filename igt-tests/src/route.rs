// SPDX-License-Identifier: GPL-2.0

//! The facts about a route between two PCI devices, derived from sysfs.
//!
//! The rules come from the specification of PCI and the documentation of the kernel. Bridges are
//! found by the paths in sysfs, redirections are read from configuration space and the processor
//! from /proc/cpuinfo, so that the answer of the exporter can be compared with them.

use std::collections::BTreeMap;
use std::fs;
use std::rc::Rc;

use crate::pci::{hops, PciDevice};
use crate::uapi;
use crate::uapi::{PeerAddress, PeerQuery};
use crate::Stop;

/// Where extended capabilities begin in configuration space.
const EXTENDED: usize = 0x100;
/// The capability ACS, and the offset of its control register.
const ACS: u16 = 0x0d;
const ACS_CTRL: usize = 6;
/// Redirects requests, redirects completions, controls egress.
const REDIRECT: u16 = 1 << 2 | 1 << 3 | 1 << 5;

/// The ACS control register in a configuration space, if it has one.
fn acs_control(config: &[u8]) -> Option<u16> {
    let word = |at: usize| {
        let bytes = config.get(at..at + 2)?;
        Some(u16::from_le_bytes([bytes[0], bytes[1]]))
    };
    let mut at = EXTENDED;
    // Limited, because a broken list may have no end.
    for _ in 0..4096 / 8 {
        let (id, next) = (word(at)?, word(at + 2)? >> 4);
        if id == ACS {
            return word(at + ACS_CTRL);
        }
        at = usize::from(next);
        if at < EXTENDED {
            return None;
        }
    }
    None
}

/// What is known of a machine, each of which is read once: a read of all configuration space takes a
/// thousand accesses.
#[derive(Debug, Default)]
pub struct Machine {
    /// The bits by which a port redirects.
    ports: BTreeMap<String, u16>,
    /// The hops from a PCI root down to a function.
    routes: BTreeMap<String, Rc<Vec<String>>>,
    /// Whether the processor forwards requests, and the host bridge otherwise.
    host: Option<(bool, (u16, u16))>,
}

impl Machine {
    fn route(&mut self, device: &PciDevice) -> Rc<Vec<String>> {
        let known = self.routes.entry(device.name().to_string());
        known.or_insert_with(|| Rc::new(device.route())).clone()
    }

    #[track_caller]
    fn host(&mut self) -> Result<(bool, (u16, u16)), Stop> {
        if self.host.is_none() {
            let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let ids = PciDevice::named("0000:00:00.0").ids()?;
            self.host = Some((forwards(&cpuinfo), ids));
        }
        Ok(self.host.unwrap_or_default())
    }

    /// The bits by which a port redirects, 0 if it does not.
    #[track_caller]
    fn redirects(&mut self, port: &PciDevice) -> Result<u16, Stop> {
        if let Some(bits) = self.ports.get(port.name()) {
            return Ok(*bits);
        }
        let bits = acs_control(&port.config()?).unwrap_or(0) & REDIRECT;
        self.ports.insert(port.name().to_string(), bits);
        Ok(bits)
    }
}

/// Whether a processor forwards requests between host bridges: AMD since Zen.
fn forwards(cpuinfo: &str) -> bool {
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim())
    };
    let family = value("cpu family").and_then(|text| text.parse::<u32>().ok());
    value("vendor_id") == Some("AuthenticAMD") && family.is_some_and(|family| family >= 0x17)
}

/// The expected answer of PEER_QUERY for the route from `gpu` to `importer`: all output fields,
/// with the path for an importer that takes peer-to-peer memory.
///
/// The host bridges of the machines of the lab are not on the list of the kernel.
///
/// # Errors
///
/// Fails the subtest if sysfs lacks something.
#[track_caller]
pub fn explained(gpu: &PciDevice, importer: &PciDevice) -> Result<PeerQuery, Stop> {
    explained_by(&mut Machine::default(), gpu, importer)
}

/// As [`explained`], with what is known of the machine.
#[track_caller]
pub fn explained_by(
    machine: &mut Machine,
    gpu: &PciDevice,
    importer: &PciDevice,
) -> Result<PeerQuery, Stop> {
    let (down, up) = (machine.route(importer), machine.route(gpu));
    let shared = up
        .iter()
        .zip(down.iter())
        .take_while(|(a, b)| a == b)
        .count();
    let mut want = PeerQuery {
        distance: hops(&up, &down),
        path: uapi::PATH_PEER_BUS,
        ..Default::default()
    };
    // The first common element is the root, which is no bridge.
    if shared > 1 {
        want.route |= uapi::ROUTE_BRIDGE;
        want.bridge = PciDevice::named(&up[shared - 1]).address();
        let way = up[shared - 1..].iter().rev();
        for name in way.chain(down[shared..].iter().rev()) {
            let port = PciDevice::named(name);
            let bits = machine.redirects(&port)?;
            if bits != 0 {
                want.route |= uapi::ROUTE_ACS_REDIRECT;
                want.redirect = port.address();
                want.acs = bits;
                break;
            }
        }
    }
    if want.redirect == PeerAddress::default() && shared > 1 {
        return Ok(want);
    }
    want.route |= uapi::ROUTE_HOST;
    want.path = uapi::PATH_PEER_HOST_BRIDGE;
    let (forwards, host) = machine.host()?;
    if forwards {
        want.route |= uapi::ROUTE_HOST_CPU;
        return Ok(want);
    }
    (want.host_vendor, want.host_device) = host;
    want.path = uapi::PATH_REFUSED;
    want.reason = uapi::REASON_NO_ROUTE;
    want.distance = -1;
    Ok(want)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_register_is_found() {
        let mut config = vec![0u8; 4096];
        assert_eq!(acs_control(&config), None);
        assert_eq!(acs_control(&config[..256]), None);
        // Another capability comes before ACS.
        config[0x100..0x104].copy_from_slice(&[1, 0, 1, 0x15]);
        config[0x150..0x154].copy_from_slice(&[0x0d, 0, 1, 0]);
        config[0x156..0x158].copy_from_slice(&[0x1d, 0]);
        assert_eq!(acs_control(&config), Some(0x1d));
        // The search ends in a list without an end.
        config[0x150..0x154].copy_from_slice(&[2, 0, 1, 0x15]);
        assert_eq!(acs_control(&config), None);
    }

    #[test]
    fn processors() {
        let cpu = |vendor: &str, family: u32| {
            forwards(&format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t: 1\n"
            ))
        };
        assert!(cpu("AuthenticAMD", 25));
        assert!(cpu("AuthenticAMD", 23));
        assert!(!cpu("AuthenticAMD", 6));
        assert!(!cpu("GenuineIntel", 25));
        assert!(!forwards(""));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! include/uapi/drm/drm_peer.h, and the numbers under which drivers have its ioctls.
//!
//! Structures are read and written as bytes.

use crate::address::Address;
use crate::decide::Path;

/// A driver that has the ioctls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its name.
    pub name: &'static str,
    /// The number of ATTACHMENTS.
    pub attachments: u8,
    /// The number of QUERY.
    pub query: u8,
}

/// All of them.
pub const DRIVERS: [Driver; 3] = [
    Driver {
        name: "vvram",
        attachments: 0x03,
        query: 0x07,
    },
    Driver {
        name: "mgpu",
        attachments: 0x03,
        query: 0x07,
    },
    Driver {
        name: "avram",
        attachments: 0x01,
        query: 0x02,
    },
];

/// `struct drm_peer_query`
pub const QUERY_SIZE: usize = 56;
/// `struct drm_peer_attachments`
pub const ATTACHMENTS_SIZE: usize = 32;
/// The first version of `struct drm_peer_attachment`
pub const ATTACHMENT_SIZE: usize = 120;
/// DRM_PEER_IMPORTER_PINNED and those that follow, as debugfs names them.
pub const FLAGS: [&str; 5] = ["pinned", "mapped", "dynamic", "revocable", "peer2peer"];
/// An importer that can do everything: dynamic, revocable, peer to peer.
const ABLE: u32 = 1 << 2 | 1 << 3 | 1 << 4;

/// Names of what DRM_PEER_ROUTE_* say, from bit 0.
pub const ROUTE: [&str; 5] = ["bridge", "acs-redirect", "host", "host-cpu", "host-listed"];
/// DRM_PEER_ROUTE_BRIDGE
const ROUTE_BRIDGE: u32 = 1 << 0;
/// DRM_PEER_ROUTE_ACS_REDIRECT
const ROUTE_REDIRECT: u32 = 1 << 1;

/// Names of the bits that are set.
pub fn bits(names: &[&'static str], value: u32) -> Vec<&'static str> {
    let named = names.iter().enumerate();
    named
        .filter(|(bit, _)| value & 1 << bit != 0)
        .map(|(_, name)| *name)
        .collect()
}

/// The name of `enum drm_peer_path`, as debugfs and tracepoints have it.
pub fn path(number: u32) -> Path {
    match number {
        1 => Path::Bus,
        2 => Path::HostBridge,
        3 => Path::System,
        4 => Path::Refused,
        5 => Path::Link,
        _ => Path::Unknown,
    }
}

/// The name of `enum drm_peer_reason`, as debugfs and tracepoints have it.
pub fn reason(number: u32) -> &'static str {
    match number {
        0 => "none",
        1 => "no-opt-in",
        2 => "not-pci",
        3 => "no-route",
        4 => "outside-bar",
        5 => "suspended",
        6 => "other-importer",
        7 => "no-vram",
        8 => "system-only",
        9 => "not-revocable",
        10 => "no-window",
        11 => "encoded",
        16 => "pinned-elsewhere",
        17 => "quota",
        _ => "unknown",
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..at + 4).unwrap_or(&[0; 4]);
    u32::from_ne_bytes([found[0], found[1], found[2], found[3]])
}

fn half(bytes: &[u8], at: usize) -> u16 {
    let found = bytes.get(at..at + 2).unwrap_or(&[0; 2]);
    u16::from_ne_bytes([found[0], found[1]])
}

fn address(bytes: &[u8], at: usize) -> Address {
    Address {
        domain: word(bytes, at),
        bus: bytes[at + 4],
        devfn: bytes[at + 5],
    }
}

/// The argument of QUERY for VRAM in general.
pub fn question(importer: Address) -> [u8; QUERY_SIZE] {
    let mut bytes = [0; QUERY_SIZE];
    bytes[4..8].copy_from_slice(&ABLE.to_ne_bytes());
    bytes[8..12].copy_from_slice(&importer.domain.to_ne_bytes());
    bytes[12] = importer.bus;
    bytes[13] = importer.devfn;
    bytes
}

/// The answer of QUERY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How the importer would reach VRAM.
    pub path: Path,
    /// The reason why it is not peer to peer.
    pub reason: &'static str,
    /// PCI hops, -1 without a route.
    pub distance: i32,
    /// DRM_PEER_ROUTE_*
    pub route: u32,
    /// The bridge that both are below.
    pub bridge: Option<Address>,
    /// The first port that redirects, and its bits.
    pub redirect: Option<(Address, u16)>,
    /// The IDs of the host bridge that was looked up.
    pub host: Option<(u16, u16)>,
}

/// Reads an answer.
pub fn answer(bytes: &[u8; QUERY_SIZE]) -> Answer {
    let route = word(bytes, 28);
    let host = (half(bytes, 50), half(bytes, 52));
    Answer {
        path: path(word(bytes, 16)),
        reason: reason(word(bytes, 20)),
        distance: i32::from_ne_bytes(word(bytes, 24).to_ne_bytes()),
        route,
        bridge: (route & ROUTE_BRIDGE != 0).then(|| address(bytes, 32)),
        redirect: (route & ROUTE_REDIRECT != 0).then(|| (address(bytes, 40), half(bytes, 48))),
        host: (host.0 != 0).then_some(host),
    }
}

/// One importer of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Importer {
    /// The name of the device.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// How it reaches the buffer; empty if that is not reported.
    pub path: String,
    /// The reason if it is not peer to peer.
    pub reason: String,
    /// PCI hops, -1 without a route; [`None`] if that is not reported.
    pub hops: Option<i32>,
    /// Names of DRM_PEER_IMPORTER_*
    pub flags: Vec<String>,
    /// The time since it was refused, in milliseconds.
    pub age_ms: Option<u64>,
}

/// Reads an entry of ATTACHMENTS.
pub fn importer(bytes: &[u8]) -> Importer {
    let text = |at: usize| {
        let name = bytes.get(at..at + 32).unwrap_or_default();
        let end = name
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(name.len());
        String::from_utf8_lossy(&name[..end]).into_owned()
    };
    let path = path(word(bytes, 96));
    let age = u64::from(word(bytes, 112)) | u64::from(word(bytes, 116)) << 32;
    Importer {
        device: text(0),
        driver: text(64),
        path: path.name().to_string(),
        reason: reason(word(bytes, 100)).to_string(),
        hops: Some(i32::from_ne_bytes(word(bytes, 108).to_ne_bytes())),
        flags: bits(&FLAGS, word(bytes, 104))
            .iter()
            .map(|it| it.to_string())
            .collect(),
        age_ms: (path == Path::Refused).then_some(age / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let importer = Address {
            domain: 0x10000,
            bus: 3,
            devfn: 9,
        };
        let mut bytes = question(importer);
        assert_eq!(bytes[4], 0x1c);
        assert_eq!(address(&bytes, 8), importer);
        bytes[16] = 2;
        bytes[24] = 2;
        bytes[28] = 0x0f;
        bytes[36] = 1;
        bytes[44] = 2;
        bytes[48] = 0x0c;
        bytes[50..54].copy_from_slice(&[0x86, 0x80, 0xc0, 0x29]);
        let found = answer(&bytes);
        let at = |bus| Address {
            bus,
            ..Address::default()
        };
        assert_eq!((found.path, found.reason), (Path::HostBridge, "none"));
        assert_eq!(found.distance, 2);
        assert_eq!(
            (found.bridge, found.redirect),
            (Some(at(1)), Some((at(2), 0x0c)))
        );
        assert_eq!(found.host, Some((0x8086, 0x29c0)));
        assert_eq!(bits(&ROUTE, found.route).len(), 4);
        bytes[28] = 0;
        assert_eq!(
            (answer(&bytes).bridge, answer(&bytes).redirect),
            (None, None)
        );
    }

    #[test]
    fn importers() {
        let mut bytes = [0; ATTACHMENT_SIZE];
        bytes[..3].copy_from_slice(b"dev");
        bytes[32..35].copy_from_slice(b"pci");
        bytes[64..68].copy_from_slice(b"edu\0");
        bytes[96] = 4;
        bytes[100] = 3;
        bytes[104] = 0x14;
        bytes[108..112].copy_from_slice(&[0xff; 4]);
        bytes[112..116].copy_from_slice(&3_000_000u32.to_ne_bytes());
        let found = importer(&bytes);
        assert_eq!((&*found.device, &*found.driver), ("dev", "edu"));
        assert_eq!((&*found.path, &*found.reason), ("refused", "no-route"));
        assert_eq!(found.flags, ["dynamic", "peer2peer"]);
        assert_eq!((found.hops, found.age_ms), (Some(-1), Some(3)));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The configuration space of a PCI function, as much of it as the kernel shows.
//!
//! Without CAP_SYS_ADMIN sysfs shows the first 64 bytes: the command register, but
//! no capability. ACS is in the extended space.

/// The end of the first 64 bytes.
const HEADER: usize = 64;
/// The start of the extended space; a conventional function has none.
const EXTENDED: usize = 0x100;
const COMMAND: usize = 0x04;
const COMMAND_MASTER: u16 = 1 << 2;
const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const CAPABILITIES: usize = 0x34;
const EXPRESS: u8 = 0x10;
const RESIZABLE_BAR: u16 = 0x15;
const ACS: u16 = 0x0d;
const ACS_CTRL: usize = 6;

/// Requests of peers go to the host.
pub const ACS_RR: u16 = 1 << 2;
/// Completions for peers go to the host.
pub const ACS_CR: u16 = 1 << 3;
/// Peers are let through one by one, by a vector.
pub const ACS_EC: u16 = 1 << 5;
/// The bits because of which the kernel does not take the shortest path.
pub const ACS_REDIRECTS: u16 = ACS_RR | ACS_CR | ACS_EC;
/// The names of all bits, as `lspci -vv` has them, from bit 0.
const ACS_NAMES: [&str; 7] = [
    "SrcValid",
    "TransBlk",
    "ReqRedir",
    "CmpltRedir",
    "UpstreamFwd",
    "EgressCtrl",
    "DirectTrans",
];

/// The ACS control register of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acs {
    /// The caller cannot see whether it has one.
    Unknown,
    /// It has no such capability.
    None,
    /// The value of the register.
    Control(u16),
}

impl Acs {
    /// The bits that redirect, [`None`] if they cannot be seen.
    pub fn redirects(self) -> Option<u16> {
        match self {
            Self::Unknown => None,
            Self::None => Some(0),
            Self::Control(bits) => Some(bits & ACS_REDIRECTS),
        }
    }
}

/// The names of the bits that are set.
pub fn acs_names(bits: u16) -> Vec<&'static str> {
    let named = ACS_NAMES.iter().enumerate();
    named
        .filter(|(bit, _)| bits & 1 << bit != 0)
        .map(|(_, name)| *name)
        .collect()
}

/// The type of a PCI Express function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The caller cannot see it.
    Unknown,
    /// The function is not a PCI Express one.
    Conventional,
    /// The type of its capability.
    Express(u8),
}

impl Port {
    /// The type of a root port.
    pub const ROOT: Self = Self::Express(4);

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Conventional => "conventional PCI",
            Self::Express(4) => "root port",
            Self::Express(5) => "upstream port",
            Self::Express(6) => "downstream port",
            Self::Express(7) => "bridge to conventional PCI",
            Self::Express(8) => "bridge from conventional PCI",
            Self::Express(9) => "integrated in the root complex",
            Self::Express(_) => "endpoint",
        }
    }
}

/// The findings in a configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Whether it may access memory by itself, [`None`] if unknown.
    pub is_master: Option<bool>,
    /// Its type.
    pub port: Port,
    /// Its ACS control register.
    pub acs: Acs,
    /// Whether its BARs can be made larger, [`None`] if unknown.
    pub has_resizable_bar: Option<bool>,
}

impl Space {
    /// Of a function that is not seen at all.
    pub const UNKNOWN: Self = Self {
        is_master: None,
        port: Port::Unknown,
        acs: Acs::Unknown,
        has_resizable_bar: None,
    };

    /// Reads the visible part of a space of `size` bytes.
    pub fn parse(bytes: &[u8], size: u64) -> Self {
        // A function that is gone or has no power reads as ones.
        let (Some(command), true) = (word(bytes, COMMAND), word(bytes, 0) != Some(0xffff)) else {
            return Self::UNKNOWN;
        };
        let is_whole = bytes.len() as u64 >= size && bytes.len() > HEADER;
        let is_conventional = size == EXTENDED as u64;
        let extended = |id| match (is_whole, is_conventional) {
            (_, true) => Some(None),
            (true, false) => Some(extended(bytes, id)),
            (false, false) => None,
        };
        Self {
            is_master: Some(command & COMMAND_MASTER != 0),
            port: if is_whole { port(bytes) } else { Port::Unknown },
            acs: match extended(ACS) {
                None => Acs::Unknown,
                Some(None) => Acs::None,
                Some(Some(at)) => word(bytes, at + ACS_CTRL).map_or(Acs::Unknown, Acs::Control),
            },
            has_resizable_bar: extended(RESIZABLE_BAR).map(|at| at.is_some()),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let found = bytes.get(at..at + 2)?;
    Some(u16::from_le_bytes([found[0], found[1]]))
}

/// The content of the Express capability.
fn port(bytes: &[u8]) -> Port {
    if word(bytes, STATUS).unwrap_or(0) & STATUS_CAPABILITIES == 0 {
        return Port::Conventional;
    }
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let mut at = usize::from(byte(CAPABILITIES) & !3);
    // The list has no more members than there is room for.
    for _ in 0..EXTENDED / 4 {
        match at {
            0 => break,
            _ if byte(at) == EXPRESS => return Port::Express(byte(at + 2) >> 4),
            _ => at = usize::from(byte(at + 1) & !3),
        }
    }
    Port::Conventional
}

/// The offset of an extended capability.
fn extended(bytes: &[u8], id: u16) -> Option<usize> {
    let mut at = EXTENDED;
    for _ in 0..4096 / 8 {
        if word(bytes, at)? == id {
            return Some(at);
        }
        at = usize::from(word(bytes, at + 2)? >> 4);
        if at < EXTENDED {
            break;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn express() -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        bytes[..2].copy_from_slice(&[0x86, 0x80]);
        bytes[STATUS] = 0x10;
        bytes[CAPABILITIES] = 0x40;
        bytes[0x40..0x44].copy_from_slice(&[1, 0x50, 0, 0]);
        bytes[0x50..0x54].copy_from_slice(&[EXPRESS, 0, 0x42, 0]);
        bytes[0x100..0x104].copy_from_slice(&[1, 0, 1, 0x15]);
        bytes[0x150..0x154].copy_from_slice(&[0x0d, 0, 1, 0]);
        bytes[0x156] = 0x1d;
        bytes
    }

    #[test]
    fn capabilities() {
        let mut bytes = express();
        let space = Space::parse(&bytes, 4096);
        assert_eq!(space.port, Port::ROOT);
        assert_eq!(space.acs, Acs::Control(0x1d));
        assert_eq!(space.acs.redirects(), Some(ACS_RR | ACS_CR));
        assert_eq!(space.is_master, Some(false));
        assert_eq!(space.has_resizable_bar, Some(false));
        bytes[COMMAND] = 4;
        bytes[0x150] = 0x15;
        let space = Space::parse(&bytes, 4096);
        assert_eq!(space.acs, Acs::None);
        assert_eq!(space.acs.redirects(), Some(0));
        assert_eq!(space.is_master, Some(true));
        assert_eq!(space.has_resizable_bar, Some(true));
    }

    #[test]
    fn lists_without_an_end() {
        let mut bytes = express();
        bytes[0x51] = 0x40;
        bytes[0x50] = 2;
        bytes[0x150..0x154].copy_from_slice(&[2, 0, 1, 0x15]);
        let space = Space::parse(&bytes, 4096);
        assert_eq!((space.port, space.acs), (Port::Conventional, Acs::None));
    }

    #[test]
    fn parts() {
        let bytes = express();
        let space = Space::parse(&bytes[..64], 4096);
        assert_eq!((space.port, space.acs), (Port::Unknown, Acs::Unknown));
        assert_eq!(space.acs.redirects(), None);
        assert_eq!(space.is_master, Some(false));
        // A tree that was copied by a user does not have the rest.
        assert_eq!(Space::parse(&bytes[..64], 64).acs, Acs::Unknown);
        // A conventional function has no ACS, also for root.
        assert_eq!(Space::parse(&bytes[..64], 256).acs, Acs::None);
        assert_eq!(Space::parse(&bytes[..64], 256).port, Port::Unknown);
        assert_eq!(Space::parse(&bytes[..256], 256).acs, Acs::None);
        assert_eq!(Space::parse(&[], 4096), Space::UNKNOWN);
        assert_eq!(Space::parse(&[0xff; 4096], 4096), Space::UNKNOWN);
    }

    #[test]
    fn names_of_bits() {
        assert_eq!(acs_names(0x4d)[..2], ["SrcValid", "ReqRedir"]);
        assert_eq!(acs_names(0x4d)[2..], ["CmpltRedir", "DirectTrans"]);
        assert!(acs_names(0).is_empty());
        // Each of the three sends requests to the host, and nothing else does.
        assert_eq!(Acs::Control(0x7f).redirects(), Some(0x2c));
        assert_eq!(Acs::Control(0x53).redirects(), Some(0));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Names of PCI functions.

use std::fmt;

/// A PCI function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Number of the domain.
    pub domain: u32,
    /// Number of the bus.
    pub bus: u8,
    /// Number of the device times 8, plus that of the function.
    pub devfn: u8,
}

fn hex(text: &str, least: usize, most: usize) -> Option<u32> {
    let is_hex = text.bytes().all(|c| c.is_ascii_hexdigit());
    if !is_hex || !(least..=most).contains(&text.len()) {
        return None;
    }
    u32::from_str_radix(text, 16).ok()
}

impl Address {
    /// The function of a name as sysfs has it, `0000:03:00.0`.
    ///
    /// Domains of bridges that are no PCI host of the platform have more digits than four.
    pub fn parse(text: &str) -> Option<Self> {
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (slot, function) = rest.split_once('.')?;
        let (slot, function) = (hex(slot, 2, 2)?, hex(function, 1, 1)?);
        (slot < 32 && function < 8).then_some(())?;
        Some(Self {
            domain: hex(domain, 4, 8)?,
            bus: hex(bus, 2, 2)?.try_into().ok()?,
            devfn: (slot << 3 | function).try_into().ok()?,
        })
    }

    /// The same of a name without a domain as well, `03:00.0`, which is in domain 0.
    pub fn parse_short(text: &str) -> Option<Self> {
        Self::parse(text).or_else(|| Self::parse(&format!("0000:{text}")))
    }

    /// The name without its domain if that is 0.
    pub fn short(self) -> String {
        let name = self.to_string();
        match self.domain {
            0 => name[5..].to_string(),
            _ => name,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{}",
            self.domain,
            self.bus,
            self.devfn >> 3,
            self.devfn & 7
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let it = Address {
            domain: 0,
            bus: 0x3b,
            devfn: 0x1f << 3 | 7,
        };
        assert_eq!(Address::parse("0000:3b:1f.7"), Some(it));
        assert_eq!(it.to_string(), "0000:3b:1f.7");
        assert_eq!(it.short(), "3b:1f.7");
        assert_eq!(Address::parse_short("3b:1f.7"), Some(it));
        let vmd = Address {
            domain: 0x10000,
            ..it
        };
        assert_eq!(Address::parse("10000:3b:1f.7"), Some(vmd));
        assert_eq!(vmd.short(), "10000:3b:1f.7");
    }

    #[test]
    fn no_names() {
        for text in [
            "",
            "3b:00.0",
            "0000:3b:20.0",
            "0000:3b:00.8",
            "000:3b:00.0",
            "0000:+b:00.0",
            "0000:3b:00.00",
            "pci0000:3b",
        ] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }
}

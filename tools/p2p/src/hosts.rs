// SPDX-License-Identifier: GPL-2.0

//! Forwarding between root ports: processors, and the kernel's list of host bridges.
//!
//! The rules are those of `cpu_supports_p2pdma()` and of `pci_p2pdma_whitelist` of
//! Linux 7.3. The list only grows: an older kernel may lack an entry of it, and a newer
//! kernel may have more.

const INTEL: u16 = 0x8086;
const GOOGLE: u16 = 0x1ae0;
const NVIDIA: u16 = 0x10de;
/// The kernel whose list this is.
pub const LIST: (u32, u32) = (7, 3);
/// The first kernel that checks the processor.
const BY_CPU: (u32, u32) = (5, 10);

/// The entries: vendor, device or all of them, and whether both devices must be below this bridge.
const LISTED: &[(u16, Option<u16>, bool)] = &[
    (INTEL, Some(0x3c00), true),
    (INTEL, Some(0x3c01), true),
    (INTEL, Some(0x2f00), true),
    (INTEL, Some(0x2f01), true),
    (INTEL, Some(0x2030), false),
    (INTEL, Some(0x2031), false),
    (INTEL, Some(0x2032), false),
    (INTEL, Some(0x2033), false),
    (INTEL, Some(0x2020), false),
    (INTEL, Some(0x09a2), false),
    (INTEL, Some(0x0b25), false),
    (INTEL, Some(0x0cfe), false),
    (INTEL, Some(0x11fb), false),
    (INTEL, Some(0x1212), false),
    (INTEL, Some(0x1216), false),
    (INTEL, Some(0x4940), false),
    (INTEL, Some(0x4942), false),
    (INTEL, Some(0x4944), false),
    (INTEL, Some(0x4946), false),
    (INTEL, Some(0x4948), false),
    (GOOGLE, None, false),
    (NVIDIA, Some(0x2f95), false),
    (NVIDIA, Some(0x2f96), false),
    (NVIDIA, Some(0x2f97), false),
    (NVIDIA, Some(0x2f98), false),
];

/// A version of Linux, of which the first two numbers count.
pub type Version = (u32, u32);

/// The version in a text such as `6.12.43+deb13-amd64`.
pub fn version(text: &str) -> Option<Version> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A processor, as /proc/cpuinfo has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// `vendor_id`, which only x86 has.
    pub vendor: String,
    /// `cpu family`
    pub family: u32,
    /// `model name`
    pub model: String,
}

impl Cpu {
    /// Reads the first processor; fields that are not in the file are [`None`].
    pub fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let line = text.lines().find(|line| {
                line.strip_prefix(key)
                    .is_some_and(|rest| rest.trim_start().starts_with(':'))
            })?;
            Some(line.split_once(':')?.1.trim().to_string())
        };
        value("processor")?;
        Some(Self {
            vendor: value("vendor_id").unwrap_or_default(),
            family: value("cpu family")
                .and_then(|text| text.parse().ok())
                .unwrap_or(0),
            model: value("model name").unwrap_or_default(),
        })
    }

    /// Whether it is known to forward, [`None`] if the kernel may not know.
    pub fn forwards(&self, kernel: Option<Version>) -> Option<bool> {
        let is_zen = self.vendor == "AuthenticAMD" && self.family >= 0x17;
        match kernel {
            Some(version) if version >= BY_CPU => Some(is_zen),
            _ if !is_zen => Some(false),
            _ => None,
        }
    }
}

/// Whether a host bridge is listed, [`None`] if that depends on the kernel.
pub fn is_listed(vendor: u16, device: u16, same: bool, kernel: Option<Version>) -> Option<bool> {
    let entry = LISTED
        .iter()
        .find(|(v, d, _)| *v == vendor && d.is_none_or(|d| d == device));
    match (entry, kernel) {
        (Some((_, _, true)), Some(_)) if !same => Some(false),
        (Some(_), Some(version)) if version >= LIST => Some(true),
        (None, Some(version)) if version <= LIST => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: Option<Version> = Some(LIST);

    #[test]
    fn versions() {
        assert_eq!(version("7.3.4"), THIS);
        assert_eq!(version("6.12.43+deb13-amd64"), Some((6, 12)));
        assert_eq!(version("7.3-rc1"), THIS);
        assert_eq!(version("x"), None);
    }

    #[test]
    fn processors() {
        let cpu = |vendor: &str, family: u32| {
            Cpu::parse(&format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel name\t: x\n"
            ))
            .unwrap()
        };
        assert_eq!(cpu("AuthenticAMD", 23).forwards(THIS), Some(true));
        assert_eq!(cpu("AuthenticAMD", 25).forwards(Some((5, 4))), None);
        assert_eq!(cpu("AuthenticAMD", 6).forwards(THIS), Some(false));
        assert_eq!(cpu("GenuineIntel", 25).forwards(THIS), Some(false));
        assert_eq!(cpu("HygonGenuine", 24).forwards(THIS), Some(false));
        assert_eq!(cpu("GenuineIntel", 6).forwards(None), Some(false));
        // arm64 has no vendor_id.
        let arm = Cpu::parse("processor\t: 0\nCPU implementer\t: 0x41\n").unwrap();
        assert_eq!(arm.forwards(THIS), Some(false));
        assert_eq!(Cpu::parse(""), None);
    }

    #[test]
    fn bridges() {
        assert_eq!(is_listed(INTEL, 0x09a2, false, THIS), Some(true));
        assert_eq!(is_listed(INTEL, 0x2f00, true, THIS), Some(true));
        assert_eq!(is_listed(INTEL, 0x2f00, false, THIS), Some(false));
        assert_eq!(is_listed(INTEL, 0x29c0, true, THIS), Some(false));
        assert_eq!(is_listed(GOOGLE, 0x1234, false, THIS), Some(true));
        // An older kernel may not have it yet, a newer one may have more.
        assert_eq!(is_listed(INTEL, 0x09a2, false, Some((5, 4))), None);
        assert_eq!(is_listed(INTEL, 0x29c0, true, Some((5, 4))), Some(false));
        assert_eq!(is_listed(INTEL, 0x29c0, true, Some((8, 0))), None);
        assert_eq!(is_listed(INTEL, 0x09a2, false, Some((8, 0))), Some(true));
        assert_eq!(is_listed(INTEL, 0x09a2, false, None), None);
    }
}

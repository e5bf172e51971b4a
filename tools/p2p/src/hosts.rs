// SPDX-License-Identifier: GPL-2.0

//! Forwarding between root ports: processors, and the kernel's list of host bridges.
//!
//! The rules are those of `cpu_supports_p2pdma()` and of `pci_p2pdma_whitelist` of
//! Linux 7.3, and of older kernels as far as their lists are known. The kernel of a distribution
//! may have more than its version tells, and a newer kernel may have more than Linux 7.3.

const INTEL: u16 = 0x8086;
const GOOGLE: u16 = 0x1ae0;
const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1022;
/// The kernel whose list this is.
pub const LIST: (u32, u32) = (7, 3);
/// The first kernel whose list has its present meaning. Linux 5.2 and 5.3 went by a list on some
/// paths only, which this program does not tell apart.
const FIRST: (u32, u32) = (5, 4);
/// The kernel that checks the processor.
const BY_CPU: Since = since(5, 9);
/// The kernel that takes any root port as the function that stands for the bridge, rather than
/// function 0 of device 0 only.
const BY_PORT: Since = since(5, 19);

/// When the kernel got something. Updates of stable kernels bring entries as well, so a kernel
/// between both versions may have it or not.
#[derive(Clone, Copy, Debug)]
struct Since {
    /// The last version that is known to lack it.
    lacking: Version,
    /// The first version that is known to have it.
    having: Version,
}

/// What came later than the first list. The kernel with that list is the only one whose late
/// updates are known to lack it.
const fn since(major: u32, minor: u32) -> Since {
    Since {
        lacking: FIRST,
        having: (major, minor),
    }
}

/// What the first list has.
const AT_FIRST: Since = Since {
    lacking: (0, 0),
    having: FIRST,
};
/// What is known of the newest list only.
const AT_LAST: Since = since(LIST.0, LIST.1);

impl Since {
    /// Whether a kernel has it, [`None`] if that is not known.
    fn is_in(self, kernel: Version) -> Option<bool> {
        match kernel {
            _ if kernel >= self.having => Some(true),
            _ if kernel >= FIRST && kernel <= self.lacking => Some(false),
            _ => None,
        }
    }
}

/// The entries: vendor, device or all of them, whether both devices must be below this bridge, and
/// when the kernel got it.
const LISTED: &[(u16, Option<u16>, bool, Since)] = &[
    (INTEL, Some(0x3c00), true, AT_FIRST),
    (INTEL, Some(0x3c01), true, AT_FIRST),
    (INTEL, Some(0x2f00), true, AT_FIRST),
    (INTEL, Some(0x2f01), true, AT_FIRST),
    (INTEL, Some(0x2030), false, since(5, 6)),
    (INTEL, Some(0x2031), false, since(5, 7)),
    (INTEL, Some(0x2032), false, since(5, 7)),
    (INTEL, Some(0x2033), false, since(5, 7)),
    (INTEL, Some(0x2020), false, since(5, 6)),
    (INTEL, Some(0x09a2), false, since(5, 18)),
    (INTEL, Some(0x0b25), false, AT_LAST),
    (INTEL, Some(0x0cfe), false, AT_LAST),
    (INTEL, Some(0x11fb), false, AT_LAST),
    (INTEL, Some(0x1212), false, AT_LAST),
    (INTEL, Some(0x1216), false, AT_LAST),
    (INTEL, Some(0x4940), false, AT_LAST),
    (INTEL, Some(0x4942), false, AT_LAST),
    (INTEL, Some(0x4944), false, AT_LAST),
    (INTEL, Some(0x4946), false, AT_LAST),
    (INTEL, Some(0x4948), false, AT_LAST),
    (GOOGLE, None, false, since(7, 1)),
    (NVIDIA, Some(0x2f95), false, AT_LAST),
    (NVIDIA, Some(0x2f96), false, AT_LAST),
    (NVIDIA, Some(0x2f97), false, AT_LAST),
    (NVIDIA, Some(0x2f98), false, AT_LAST),
];
/// Entries that the kernel dropped when it began to check the processor: all are bridges of Zen.
const UNTIL_BY_CPU: &[(u16, Option<u16>, bool, Since)] = &[
    (AMD, Some(0x1450), false, AT_FIRST),
    (AMD, Some(0x15d0), false, since(5, 8)),
    (AMD, Some(0x1630), false, since(5, 8)),
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
        match self.is_zen() {
            true => BY_CPU.is_in(kernel?),
            false => Some(false),
        }
    }

    /// The first version of Linux that goes by it, if this kernel is known not to.
    pub fn forwards_later(&self, kernel: Option<Version>) -> Option<Version> {
        let is_later = self.is_zen() && BY_CPU.is_in(kernel?) == Some(false);
        is_later.then_some(BY_CPU.having)
    }

    fn is_zen(&self) -> bool {
        self.vendor == "AuthenticAMD" && self.family >= 0x17
    }
}

/// Whether a root port stands for its bridge if it is not function 0 of device 0, [`None`] if that
/// depends on the kernel.
pub fn is_port_enough(kernel: Option<Version>) -> Option<bool> {
    BY_PORT.is_in(kernel?)
}

/// The entry of a host bridge.
fn entry(vendor: u16, device: u16, kernel: Version) -> Option<(bool, Since)> {
    let old = match kernel < BY_CPU.having {
        true => UNTIL_BY_CPU,
        false => &[],
    };
    let mut all = LISTED.iter().chain(old);
    let found = all.find(|(v, d, ..)| *v == vendor && d.is_none_or(|d| d == device));
    found.map(|(_, _, same, when)| (*same, *when))
}

/// Whether a host bridge is listed, [`None`] if that depends on the kernel.
pub fn is_listed(vendor: u16, device: u16, same: bool, kernel: Option<Version>) -> Option<bool> {
    let kernel = kernel?;
    match entry(vendor, device, kernel) {
        Some((true, _)) if !same => Some(false),
        Some((_, when)) => when.is_in(kernel),
        None => (kernel <= LIST).then_some(false),
    }
}

/// The first version of Linux that is known to list a host bridge, if this kernel is known not to.
pub fn is_listed_later(
    vendor: u16,
    device: u16,
    same: bool,
    kernel: Option<Version>,
) -> Option<Version> {
    let kernel = kernel?;
    let (needs_same, when) = entry(vendor, device, kernel)?;
    let is_later = when.is_in(kernel) == Some(false) && (same || !needs_same);
    is_later.then_some(when.having)
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
        let zen = cpu("AuthenticAMD", 25);
        assert_eq!(zen.forwards(Some((5, 3))), None);
        assert_eq!(zen.forwards(Some((5, 4))), Some(false));
        assert_eq!(zen.forwards(Some((5, 8))), None);
        assert_eq!(zen.forwards(Some((5, 9))), Some(true));
        assert_eq!(zen.forwards(None), None);
        assert_eq!(zen.forwards_later(Some((5, 4))), Some((5, 9)));
        assert_eq!(zen.forwards_later(Some((5, 8))), None);
        assert_eq!(cpu("GenuineIntel", 6).forwards_later(Some((5, 4))), None);
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
        // A newer one may have more.
        assert_eq!(is_listed(INTEL, 0x29c0, true, Some((5, 4))), Some(false));
        assert_eq!(is_listed(INTEL, 0x29c0, true, Some((8, 0))), None);
        assert_eq!(is_listed(INTEL, 0x09a2, false, Some((8, 0))), Some(true));
        assert_eq!(is_listed(INTEL, 0x09a2, false, None), None);
    }

    #[test]
    fn bridges_of_older_kernels() {
        let listed = |vendor, device, kernel| is_listed(vendor, device, true, Some(kernel));
        // Before the list, before the entry, where it is not known, and with the entry.
        for (device, kernel, want) in [
            (0x09a2, (5, 3), None),
            (0x09a2, (5, 4), Some(false)),
            (0x09a2, (5, 15), None),
            (0x09a2, (5, 17), None),
            (0x09a2, (5, 18), Some(true)),
            (0x09a2, (6, 12), Some(true)),
            (0x2f00, (5, 3), None),
            (0x2f00, (5, 4), Some(true)),
            (0x2030, (5, 4), Some(false)),
            (0x2030, (5, 5), None),
            (0x2030, (5, 6), Some(true)),
            (0x2033, (5, 6), None),
            (0x2033, (5, 7), Some(true)),
            // Stable kernels got it at some time.
            (0x0b25, (6, 12), None),
            (0x0b25, (7, 2), None),
            (0x0b25, LIST, Some(true)),
        ] {
            let found = listed(INTEL, device, kernel);
            assert_eq!(found, want, "{device:04x} in {kernel:?}");
        }
        assert_eq!(listed(GOOGLE, 0x1234, (7, 0)), None);
        assert_eq!(listed(GOOGLE, 0x1234, (7, 1)), Some(true));
        // Whether the entry is there or not, it is not for two bridges.
        assert_eq!(is_listed(INTEL, 0x2f00, false, Some((5, 3))), Some(false));
        // The processor took the place of these.
        assert_eq!(listed(AMD, 0x1450, (5, 4)), Some(true));
        assert_eq!(listed(AMD, 0x1630, (5, 4)), Some(false));
        assert_eq!(listed(AMD, 0x1630, (5, 7)), None);
        assert_eq!(listed(AMD, 0x1630, (5, 8)), Some(true));
        assert_eq!(listed(AMD, 0x1450, (5, 9)), Some(false));
    }

    #[test]
    fn later_kernels() {
        let later = |device, same, kernel| is_listed_later(INTEL, device, same, Some(kernel));
        assert_eq!(later(0x09a2, false, (5, 4)), Some((5, 18)));
        assert_eq!(later(0x09a2, false, (5, 15)), None);
        assert_eq!(later(0x09a2, false, (6, 1)), None);
        assert_eq!(later(0x29c0, false, (5, 4)), None);
        assert_eq!(is_listed_later(INTEL, 0x09a2, false, None), None);
    }

    #[test]
    fn root_ports() {
        assert_eq!(is_port_enough(Some((5, 4))), Some(false));
        assert_eq!(is_port_enough(Some((5, 18))), None);
        assert_eq!(is_port_enough(Some((5, 19))), Some(true));
        assert_eq!(is_port_enough(None), None);
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The configuration that the kernel was built with.

use std::collections::BTreeMap;

use crate::files::{Blind, Root};

const GZ: &str = "proc/config.gz";

/// Options and their values, or why they cannot be read.
#[derive(Clone, Debug)]
pub struct Kconfig {
    options: Result<BTreeMap<String, String>, String>,
    from: String,
}

impl Kconfig {
    /// Reads the configuration from the kernel itself, or from the file of its package in /boot or
    /// with its modules.
    pub fn read(root: &Root, release: &str) -> Self {
        let places = [
            format!("boot/config-{release}"),
            format!("lib/modules/{release}/config"),
            format!("usr/lib/modules/{release}/config"),
        ];
        let mut denied = None;
        match root.bytes(GZ) {
            Ok(bytes) => {
                if let Some(text) = gunzip(&bytes) {
                    return Self::of(&text, GZ);
                }
            }
            Err(Blind::Absent) => {}
            Err(_) => denied = Some(GZ.to_string()),
        }
        for place in places.iter().filter(|_| !release.is_empty()) {
            match root.text(place) {
                Ok(text) => return Self::of(&text, place),
                Err(Blind::Absent) => {}
                Err(_) => denied = Some(place.clone()),
            }
        }
        let why = match denied {
            Some(place) => format!("/{place} can be read by root only"),
            None => format!("there is neither /{GZ} nor /{}", places[0]),
        };
        Self {
            options: Err(why),
            from: String::new(),
        }
    }

    fn of(text: &str, from: &str) -> Self {
        let option = |line: &str| {
            let off = line
                .strip_prefix("# CONFIG_")
                .and_then(|it| it.strip_suffix(" is not set"));
            if let Some(name) = off {
                return Some((name.to_string(), "n".to_string()));
            }
            let (name, value) = line.strip_prefix("CONFIG_")?.split_once('=')?;
            Some((name.to_string(), value.trim_matches('"').to_string()))
        };
        Self {
            options: Ok(text.lines().filter_map(option).collect()),
            from: format!("/{from}"),
        }
    }

    /// The value of an option without its `CONFIG_`: [`None`] if no configuration was read.
    pub fn value(&self, name: &str) -> Option<&str> {
        let options = self.options.as_ref().ok()?;
        Some(options.get(name).map_or("n", String::as_str))
    }

    /// Whether the kernel has such an option, whatever its value. One whose dependencies are not on
    /// is not among them.
    pub fn knows(&self, name: &str) -> bool {
        self.options.as_ref().is_ok_and(|it| it.contains_key(name))
    }

    /// Whether an option is on, built in or as a module.
    pub fn is_set(&self, name: &str) -> Option<bool> {
        Some(matches!(self.value(name)?, "y" | "m"))
    }

    /// The reason why there is none; empty if there is one.
    pub fn blind(&self) -> &str {
        self.options.as_ref().err().map_or("", String::as_str)
    }

    /// The file that it was read from.
    pub fn from(&self) -> &str {
        &self.from
    }
}

/// The content of a file in gzip's format.
fn gunzip(bytes: &[u8]) -> Option<String> {
    const DEFLATE: u8 = 8;
    const NAME: u8 = 8;
    const HEADER: usize = 10;
    let (header, rest) = bytes.split_at_checked(HEADER)?;
    if header[..3] != [0x1f, 0x8b, DEFLATE] || header[3] & !NAME != 0 {
        return None;
    }
    let skipped = match header[3] & NAME {
        0 => 0,
        _ => rest.iter().position(|byte| *byte == 0)? + 1,
    };
    let plain = miniz_oxide::inflate::decompress_to_vec(rest.get(skipped..)?).ok()?;
    String::from_utf8(plain).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let text =
            "CONFIG_PCI_P2PDMA=y\n# CONFIG_HMM_MIRROR is not set\nCONFIG_A=m\nCONFIG_B=\"x\"\n";
        let found = Kconfig::of(text, "x");
        assert_eq!(found.is_set("PCI_P2PDMA"), Some(true));
        assert_eq!(found.is_set("HMM_MIRROR"), Some(false));
        assert_eq!(found.is_set("A"), Some(true));
        assert_eq!(found.value("B"), Some("x"));
        assert!(found.knows("HMM_MIRROR") && !found.knows("C"));
        assert_eq!(found.is_set("C"), Some(false));
        assert_eq!(found.blind(), "");
    }

    #[test]
    fn compressed() {
        let plain = "CONFIG_PCI_P2PDMA=y\n".repeat(100);
        let mut file = vec![0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 3, b'x', 0];
        file.extend(miniz_oxide::deflate::compress_to_vec(plain.as_bytes(), 6));
        assert_eq!(gunzip(&file), Some(plain));
        assert_eq!(gunzip(&file[..20]), None);
        assert_eq!(gunzip(b"text"), None);
    }
}

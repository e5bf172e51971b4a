// SPDX-License-Identifier: GPL-2.0

//! The keys of /proc/<pid>/fdinfo for an open file of the device.

use std::collections::BTreeMap;
use std::fs;

use crate::drm::Drm;
use crate::{Stop, SysError};

/// The keys of one file.
#[derive(Clone, Debug)]
pub struct FdInfo(BTreeMap<String, String>);

/// Parses a number of bytes with a unit.
fn bytes(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let unit = match words.next() {
        None => 1,
        Some("KiB") => 1 << 10,
        Some("MiB") => 1 << 20,
        Some(_) => return None,
    };
    words.next().is_none().then_some(number * unit)
}

impl FdInfo {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// Any error of the file, or a key that is there twice.
    #[track_caller]
    pub fn of(drm: &Drm) -> Result<Self, Stop> {
        let path = format!("/proc/self/fdinfo/{}", drm.fd());
        let text = fs::read_to_string(&path).map_err(|error| SysError::io(&path, &error))?;
        let mut keys = BTreeMap::new();
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let twice = keys.insert(key.to_string(), value.trim().to_string());
            check!(twice.is_none(), "{key} is there twice:\n{text}");
        }
        Ok(Self(keys))
    }

    /// The value of a key.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it is not there.
    #[track_caller]
    pub fn text(&self, key: &str) -> Result<&str, Stop> {
        match self.0.get(key) {
            Some(text) => Ok(text),
            None => Err(Stop::fail(format_args!("{key} is not in {:?}", self.0))),
        }
    }

    /// How long an engine has worked for the file, in nanoseconds.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the key is missing, or its value cannot be parsed.
    #[track_caller]
    pub fn engine(&self, name: &str) -> Result<u64, Stop> {
        let text = self.text(&format!("drm-engine-{name}"))?;
        let ns = text.strip_suffix(" ns").and_then(|ns| ns.parse().ok());
        ns.ok_or_else(|| Stop::fail(format_args!("the time of {name} is {text:?}")))
    }

    /// The value of a key, in bytes.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the key is missing, or its value cannot be parsed.
    #[track_caller]
    pub fn bytes(&self, key: &str) -> Result<u64, Stop> {
        let text = self.text(key)?;
        match bytes(text) {
            Some(bytes) => Ok(bytes),
            None => Err(Stop::fail(format_args!("{key} is {text:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(bytes("0"), Some(0));
        assert_eq!(bytes("12 KiB"), Some(12 << 10));
        assert_eq!(bytes("3 MiB"), Some(3 << 20));
        assert_eq!(bytes("3 GiB"), None);
        assert_eq!(bytes("3 KiB x"), None);
    }
}

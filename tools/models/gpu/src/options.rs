// SPDX-License-Identifier: GPL-2.0

//! The options of each device on the command line.

use std::path::PathBuf;

/// The usage message of the program.
pub const USAGE: &str =
    "usage: gpu --device socket=PATH[,name=NAME][,vram=SIZE][,aperture=SIZE][,strict] ...
A SIZE is a power of two of bytes, with K, M or G. The devices are below one switch. A strict one is
behind an IOMMU. The program ends when its standard input does.";

/// Bytes of VRAM and of the aperture, unless said otherwise.
const VRAM: u64 = 256 << 20;
const APERTURE: u64 = 64 << 20;
/// The smallest and the largest of both.
const SMALLEST: u64 = 1 << 20;
const LARGEST: u64 = 1 << 36;

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub socket: PathBuf,
    /// The name in the log; that of the socket if none is given.
    pub name: String,
    pub vram: u64,
    pub aperture: u64,
    pub strict: bool,
}

/// The devices that a command line names.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Vec<Options>, String> {
    let mut devices = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--device", Some(text)) => devices.push(device(&text)?),
            _ => return Err(USAGE.to_owned()),
        }
    }
    if devices.is_empty() {
        return Err(USAGE.to_owned());
    }
    Ok(devices)
}

fn device(text: &str) -> Result<Options, String> {
    let mut options = Options {
        socket: PathBuf::new(),
        name: String::new(),
        vram: VRAM,
        aperture: APERTURE,
        strict: false,
    };
    for part in text.split(',') {
        match part.split_once('=').unwrap_or((part, "")) {
            ("socket", path) => options.socket = path.into(),
            ("name", name) => name.clone_into(&mut options.name),
            ("vram", size) => options.vram = bytes(size)?,
            ("aperture", size) => options.aperture = bytes(size)?,
            ("strict", "") => options.strict = true,
            _ => return Err(format!("{part} is no setting of a device\n{USAGE}")),
        }
    }
    let Some(stem) = options.socket.file_stem() else {
        return Err(format!("{text} has no socket\n{USAGE}"));
    };
    if options.name.is_empty() {
        options.name = stem.to_string_lossy().into_owned();
    }
    Ok(options)
}

/// A size with its unit, in bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits
        .parse()
        .ok()
        .and_then(|number: u64| number.checked_mul(1 << shift))
        .filter(|size| size.is_power_of_two() && (SMALLEST..=LARGEST).contains(size))
        .ok_or_else(|| format!("{text} is not a power of two from 1M to 64G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Options>, String> {
        parse(text.split(' ').map(str::to_owned))
    }

    #[test]
    fn devices_have_defaults() {
        let devices = parsed(
            "--device socket=/tmp/a.sock --device socket=b,name=gpu,vram=64G,aperture=256M,strict",
        );
        let (a, b) = (
            Options {
                socket: "/tmp/a.sock".into(),
                name: "a".into(),
                vram: 256 << 20,
                aperture: 64 << 20,
                strict: false,
            },
            Options {
                socket: "b".into(),
                name: "gpu".into(),
                vram: 64 << 30,
                aperture: 256 << 20,
                strict: true,
            },
        );
        assert_eq!(devices, Ok(vec![a, b]));
    }

    #[test]
    fn other_settings_are_refused() {
        for text in [
            "",
            "--device",
            "socket=a",
            "--device vram=1G",
            "--device socket=a,strict=1",
            "--device socket=a,vram=3M",
            "--device socket=a,vram=128G",
            "--device socket=a,vram=18446744073709551615G",
            "--device socket=a,aperture=4K",
            "--device socket=a,size=1G",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}

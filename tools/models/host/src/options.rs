// SPDX-License-Identifier: GPL-2.0

//! The options of each device on the command line.

use std::path::PathBuf;

/// The usage message of the program.
pub const USAGE: &str = "usage: models DEVICE ...
DEVICE: --edu socket=PATH[,name=NAME][,strict]
        --gpu socket=PATH[,name=NAME][,strict][,vram=SIZE][,aperture=SIZE][,chaos=SEED]
A SIZE is a power of two of bytes, with K, M or G. The devices are below one switch. A strict one is
behind an IOMMU that reports its mappings. A SEED is a number; 0 is no chaos. The program ends
when its standard input does.";

/// Bytes of VRAM and of the aperture, unless said otherwise.
const VRAM: u64 = 256 << 20;
const APERTURE: u64 = 64 << 20;
/// The smallest and the largest of both.
const SMALLEST: u64 = 1 << 20;
const LARGEST: u64 = 1 << 36;

/// The kind of a device, with the settings that only this kind has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Edu,
    Gpu {
        vram: u64,
        aperture: u64,
        chaos: u64,
    },
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub kind: Kind,
    pub socket: PathBuf,
    /// The name in the log; that of the socket if none is given.
    pub name: String,
    pub strict: bool,
}

/// The devices that a command line names.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Vec<Options>, String> {
    let mut devices = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let kind = match argument.as_str() {
            "--edu" => Kind::Edu,
            "--gpu" => Kind::Gpu {
                vram: VRAM,
                aperture: APERTURE,
                chaos: 0,
            },
            _ => return Err(USAGE.to_owned()),
        };
        devices.push(device(kind, &arguments.next().ok_or(USAGE)?)?);
    }
    if devices.is_empty() {
        return Err(USAGE.to_owned());
    }
    Ok(devices)
}

fn device(kind: Kind, text: &str) -> Result<Options, String> {
    let mut options = Options {
        kind,
        socket: PathBuf::new(),
        name: String::new(),
        strict: false,
    };
    for part in text.split(',') {
        match (
            part.split_once('=').unwrap_or((part, "")),
            &mut options.kind,
        ) {
            (("socket", path), _) => options.socket = path.into(),
            (("name", name), _) => name.clone_into(&mut options.name),
            (("strict", ""), _) => options.strict = true,
            (("vram", size), Kind::Gpu { vram, .. }) => *vram = bytes(size)?,
            (("aperture", size), Kind::Gpu { aperture, .. }) => *aperture = bytes(size)?,
            (("chaos", seed), Kind::Gpu { chaos, .. }) => {
                *chaos = seed.parse().map_err(|_| format!("{seed} is no seed"))?;
            }
            _ => return Err(format!("{part} is no setting of this device\n{USAGE}")),
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
            "--gpu socket=/tmp/a.sock --gpu socket=b,name=gpu,vram=64G,aperture=256M,strict \
             --edu socket=/tmp/peer.sock,strict --gpu socket=c,chaos=18446744073709551615",
        );
        let gpu = |socket: &str, name: &str, vram, aperture, strict, chaos| Options {
            kind: Kind::Gpu {
                vram,
                aperture,
                chaos,
            },
            socket: socket.into(),
            name: name.into(),
            strict,
        };
        let edu = Options {
            kind: Kind::Edu,
            socket: "/tmp/peer.sock".into(),
            name: "peer".into(),
            strict: true,
        };
        assert_eq!(
            devices,
            Ok(vec![
                gpu("/tmp/a.sock", "a", 256 << 20, 64 << 20, false, 0),
                gpu("b", "gpu", 64 << 30, 256 << 20, true, 0),
                edu,
                gpu("c", "c", 256 << 20, 64 << 20, false, u64::MAX),
            ])
        );
    }

    #[test]
    fn other_settings_are_refused() {
        for text in [
            "",
            "--gpu",
            "--nic socket=a",
            "socket=a",
            "--gpu vram=1G",
            "--gpu socket=a,strict=1",
            "--gpu socket=a,vram=3M",
            "--gpu socket=a,vram=128G",
            "--gpu socket=a,vram=18446744073709551615G",
            "--gpu socket=a,aperture=4K",
            "--gpu socket=a,size=1G",
            "--gpu socket=a,chaos",
            "--gpu socket=a,chaos=-1",
            "--edu name=a",
            "--edu socket=a,chaos=1",
            "--edu socket=a,vram=1G",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}

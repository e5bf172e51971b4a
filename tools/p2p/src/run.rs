// SPDX-License-Identifier: GPL-2.0

//! Runs a command.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clap::ArgMatches;
use serde_json::Value;

use crate::files::{Blind, Root};
use crate::machine::{Device, Machine};
use crate::topo::Which;
use crate::watch::{NoEvents, Until};
use crate::{doctor, ls, names, report, topo, watch, why};

/// The reason why a command has no result, with the exit status.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    /// The reason in words.
    pub text: String,
}

impl Failure {
    /// The command line is wrong, or no device has that name.
    pub const USAGE: u8 = 2;
    /// There is no data to show.
    pub const NOTHING: u8 = 3;
    /// Any other error.
    pub const ERROR: u8 = 5;

    fn new(status: u8, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { status, text }
    }

    /// The reason why events cannot be seen.
    fn of_watch(why: NoEvents) -> Self {
        let text = match why {
            NoEvents::NotMounted => "tracefs is not mounted on /sys/kernel/tracing",
            NoEvents::NoDriver => "no driver that has the tracepoints drm_peer_* is loaded",
            NoEvents::Denied => "tracepoints are for root only",
            NoEvents::Copied => "--sysfs shows a copy, which has no live events",
            NoEvents::Failed(error) => return Self::new(Self::ERROR, error),
        };
        Self::new(Self::NOTHING, text)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The reader has seen enough.
            io::ErrorKind::BrokenPipe => Self::new(0, ""),
            _ => Self::new(
                Self::ERROR,
                format!("the output cannot be written: {error}"),
            ),
        }
    }
}

/// Runs the command; returns the exit status.
///
/// # Errors
///
/// The reason why it has no result.
pub fn run(matches: &ArgMatches, out: &mut dyn Write) -> Result<u8, Failure> {
    let root = match matches.get_one::<String>("sysfs") {
        Some(path) => Root::tree(Path::new(path)),
        None => Root::live(),
    };
    let (name, arguments) = matches.subcommand().unwrap_or(("", matches));
    let json = arguments.get_flag("json");
    let mut print = |text: &dyn Fn() -> String, value: &dyn Fn() -> Value| match json {
        true => writeln!(out, "{:#}", value()),
        false => write!(out, "{}", text()),
    };
    let flag = |name: &str| arguments.get_flag(name);
    match name {
        "topo" => {
            let machine = machine(&root)?;
            let which = Which {
                all: flag("all"),
                sysfs_only: flag("sysfs-only"),
            };
            let found = topo::look(&root, &machine, which);
            print(&|| found.text(&machine), &|| found.json(&machine))?;
            match found.devices.is_empty() {
                true => Err(Failure::new(
                    Failure::NOTHING,
                    "no PCI device accesses memory; --all shows the others",
                )),
                false => Ok(0),
            }
        }
        "why" => {
            let machine = machine(&root)?;
            let device = |key: &str| arguments.get_one::<String>(key).map_or("", String::as_str);
            let (provider, client) = pair(&root, &machine, device("MEMORY"), device("DEVICE"))?;
            let found = why::look(&root, &machine, provider, client, flag("sysfs-only"));
            print(&|| found.text(&machine), &|| found.json(&machine))?;
            Ok(found.status())
        }
        "ls" => {
            let machine = Machine::read(&root).ok();
            let found = ls::look(&root, machine.as_ref());
            print(&|| found.text(machine.as_ref()), &|| found.json())?;
            match found.is_blind {
                true => Err(Failure::new(Failure::NOTHING, ls::NO_SOURCE)),
                false => Ok(0),
            }
        }
        "watch" => {
            let number = |key: &str| arguments.get_one::<u64>(key).copied();
            let until = Until {
                count: number("count"),
                time: number("seconds").map(Duration::from_secs),
            };
            match watch::run(&root, json, until, out) {
                Ok(()) => Ok(0),
                Err(why) => Err(Failure::of_watch(why)),
            }
        }
        "doctor" => {
            let machine = machine(&root)?;
            let checks = doctor::look(&root, &machine);
            print(&|| doctor::text(&checks), &|| doctor::json(&checks))?;
            Ok(doctor::status(&checks))
        }
        "report" => {
            let machine = machine(&root)?;
            let device = |key: &str| arguments.get_one::<String>(key);
            let pair = match (device("MEMORY"), device("DEVICE")) {
                (Some(a), Some(b)) => Some(pair(&root, &machine, a, b)?),
                _ => None,
            };
            print(&|| report::text(&root, &machine, pair), &|| {
                report::json(&root, &machine, pair)
            })?;
            Ok(0)
        }
        _ => Err(Failure::new(
            Failure::USAGE,
            "which command? see p2p --help",
        )),
    }
}

/// The machine, or the reason why it cannot be read.
fn machine(root: &Root) -> Result<Machine, Failure> {
    Machine::read(root).map_err(|why| {
        let place = root.path("sys/bus/pci/devices");
        let text = match why {
            Blind::Absent => format!("there are no PCI devices in {}", place.display()),
            _ => format!("{}: {why}", place.display()),
        };
        Failure::new(Failure::NOTHING, text)
    })
}

/// The device of a name.
fn named<'a>(root: &Root, machine: &'a Machine, name: &str) -> Result<&'a Device, Failure> {
    let address = names::resolve(root, name);
    let found = address.and_then(|it| machine.device(it));
    found.ok_or_else(|| {
        let named = machine.devices.values().filter(|it| !it.names.is_empty());
        let some: Vec<_> = named.map(Device::label).collect();
        let known = match some.is_empty() {
            true => String::new(),
            false => format!("; there are {}", some.join(", ")),
        };
        Failure::new(
            Failure::USAGE,
            format!("no PCI device is behind \"{name}\"{known}"),
        )
    })
}

/// The devices of two names, which must not be the same one.
fn pair<'a>(
    root: &Root,
    machine: &'a Machine,
    memory: &str,
    device: &str,
) -> Result<(&'a Device, &'a Device), Failure> {
    let (provider, client) = (named(root, machine, memory)?, named(root, machine, device)?);
    if provider.address == client.address {
        let text = format!(
            "\"{memory}\" and \"{device}\" are the same device, {}",
            provider.address
        );
        return Err(Failure::new(Failure::USAGE, text));
    }
    Ok((provider, client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_cannot_be_seen() {
        let nothing = |why| {
            let failure = Failure::of_watch(why);
            assert_eq!(failure.status, Failure::NOTHING);
            failure.text
        };
        let text = nothing(NoEvents::NotMounted);
        assert!(
            text.contains("not mounted on /sys/kernel/tracing"),
            "{text}"
        );
        let text = nothing(NoEvents::NoDriver);
        assert!(text.starts_with("no driver"), "{text}");
        assert_eq!(nothing(NoEvents::Denied), "tracepoints are for root only");
        let text = nothing(NoEvents::Copied);
        assert!(text.starts_with("--sysfs shows a copy"), "{text}");
        let failed = Failure::of_watch(NoEvents::Failed("x".to_string()));
        assert_eq!((failed.status, &*failed.text), (Failure::ERROR, "x"));
    }
}

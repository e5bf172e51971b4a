// SPDX-License-Identifier: GPL-2.0

//! The part of the PCI tree between two devices, as a drawing.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::address::Address;
use crate::config::{acs_names, Acs};
use crate::machine::{Device, Machine};

/// The ACS bits of a function in words.
pub fn acs(device: &Device) -> String {
    match device.space.acs {
        Acs::Unknown => "ACS cannot be read".to_string(),
        Acs::None => "no ACS".to_string(),
        Acs::Control(0) => "ACS all off".to_string(),
        Acs::Control(bits) => {
            let redirects = if device.space.acs.redirects() == Some(0) {
                ""
            } else {
                ": redirects"
            };
            format!("ACS {}{redirects}", acs_names(bits).join(" "))
        }
    }
}

/// The description of a function in a line.
fn about(device: &Device, mark: &str) -> String {
    let mut parts = vec![device.address.to_string()];
    if !mark.is_empty() {
        parts.push(mark.to_string());
    }
    let what = match device.driver.as_deref() {
        Some(driver) if mark.is_empty() => match device.space.port.name() {
            "" => driver.to_string(),
            port => port.to_string(),
        },
        Some(driver) => driver.to_string(),
        None => device.space.port.name().to_string(),
    };
    if !what.is_empty() {
        parts.push(what);
    }
    if !device.names.is_empty() {
        parts.push(device.all_names());
    }
    format!("{}  [{}]", parts.join("  "), acs(device))
}

/// Draws the paths from the root buses to two devices; the first one is the memory.
pub fn draw(machine: &Machine, provider: &Device, client: &Device) -> String {
    let mut text = String::new();
    let hosts = BTreeSet::from([&provider.host, &client.host]);
    for host in hosts {
        let stands = match machine.host_device(host) {
            Ok(Some(device)) => format!(
                "  {} {:04x}:{:04x}",
                device.address, device.vendor, device.device
            ),
            Ok(None) => "  no function stands for it".to_string(),
            Err(_) => "  which function stands for it cannot be read".to_string(),
        };
        let _ = writeln!(text, "host bridge {host}{stands}");
        let shown: Vec<Vec<Address>> = [provider, client]
            .iter()
            .filter(|device| device.host == **host)
            .map(|device| {
                let mut route = device.above.clone();
                route.push(device.address);
                route
            })
            .collect();
        branch(machine, (provider, client), &shown, "", &mut text);
    }
    text
}

/// Draws the part of these routes that is below a bridge.
fn branch(
    machine: &Machine,
    ends: (&Device, &Device),
    routes: &[Vec<Address>],
    indent: &str,
    text: &mut String,
) {
    let firsts: BTreeSet<Address> = routes.iter().filter_map(|it| it.first().copied()).collect();
    let last = firsts.last().copied();
    for first in &firsts {
        let is_last = Some(*first) == last;
        let mark = match first {
            _ if *first == ends.0.address && *first == ends.1.address => "<- both",
            _ if *first == ends.0.address => "<- memory",
            _ if *first == ends.1.address => "<- accesses it",
            _ => "",
        };
        let line = match machine.device(*first) {
            Some(device) => about(device, mark),
            None => first.to_string(),
        };
        let _ = writeln!(text, "{indent}{} {line}", if is_last { "`-" } else { "|-" });
        let below: Vec<_> = routes
            .iter()
            .filter(|route| route.first() == Some(first))
            .map(|route| route[1..].to_vec())
            .collect();
        let indent = format!("{indent}{}", if is_last { "   " } else { "|  " });
        branch(machine, ends, &below, &indent, text);
    }
}

// SPDX-License-Identifier: GPL-2.0

//! `p2p report`: the output of the other commands in one text, to be attached to a bug report.

use serde_json::{json, Value};

use crate::drawing::acs;
use crate::files::Root;
use crate::machine::{Device, Kind, Machine};
use crate::redact::Redaction;
use crate::table::Table;
use crate::topo::{device_json, Which};
use crate::why::{self, Why};
use crate::{doctor, ls, topo};

/// The device that has the memory, and the one that accesses it.
type Pair<'a> = Option<(&'a Device, &'a Device)>;

/// As text.
pub fn text(root: &Root, machine: &Machine, pair: Pair<'_>) -> String {
    let redaction = Redaction::of(root);
    // Names are in columns, which would not be straight if they changed afterwards.
    let mut shown = machine.clone();
    for device in shown.devices.values_mut() {
        for it in &mut device.names {
            it.name = redaction.text(&it.name);
        }
    }
    let mut text = format!("p2p {} report\n", env!("CARGO_PKG_VERSION"));
    let cpu = machine.cpu.clone().unwrap_or_default();
    text += &format!(
        "kernel {}\nprocessor {} {} family {:#x}\n",
        machine.release, cpu.vendor, cpu.model, cpu.family
    );
    let mut section = |title: &str, body: &str| text += &format!("\n== {title} ==\n{body}");
    section("doctor", &doctor::text(&doctor::look(root, machine)));
    section(
        "topo",
        &topo::look(root, machine, Which::default()).text(&shown),
    );
    section("bridges", &bridges(machine));
    section("ls", &ls::look(root, Some(machine)).text(Some(&shown)));
    if let Some((provider, client)) = pair {
        let found = why::look(root, machine, provider, client, false);
        let redacted = Why {
            provider: shown.device(provider.address).unwrap_or(provider),
            client: shown.device(client.address).unwrap_or(client),
            ..found
        };
        section("why", &redacted.text(&shown));
    }
    redaction.text(&text)
}

fn bridges(machine: &Machine) -> String {
    let mut table = Table::default();
    for device in machine
        .devices
        .values()
        .filter(|it| it.kind == Kind::Bridge)
    {
        let above = device
            .above
            .last()
            .map_or_else(|| device.host.clone(), ToString::to_string);
        let id = format!("{:04x}:{:04x}", device.vendor, device.device);
        let what = device.space.port.name().to_string();
        table.row([
            device.address.to_string(),
            format!("below {above}"),
            id,
            what,
            acs(device),
        ]);
    }
    table.text()
}

/// As JSON.
pub fn json(root: &Root, machine: &Machine, pair: Pair<'_>) -> Value {
    let cpu = machine.cpu.clone().unwrap_or_default();
    let bridges = machine
        .devices
        .values()
        .filter(|it| it.kind == Kind::Bridge);
    let all = json!({
        "p2p": env!("CARGO_PKG_VERSION"),
        "kernel": machine.release,
        "processor": { "vendor": cpu.vendor, "model": cpu.model, "family": cpu.family },
        "doctor": doctor::json(&doctor::look(root, machine)),
        "topo": topo::look(root, machine, Which::default()).json(machine),
        "bridges": bridges.map(device_json).collect::<Vec<_>>(),
        "ls": ls::look(root, Some(machine)).json(),
        "why": pair.map(|(provider, client)| {
            why::look(root, machine, provider, client, false).json(machine)
        }),
    });
    Redaction::of(root).json(all)
}

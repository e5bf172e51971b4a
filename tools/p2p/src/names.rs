// SPDX-License-Identifier: GPL-2.0

//! The names of devices besides their PCI names: nodes, netdevs, RDMA devices, drives.

use std::collections::BTreeMap;

use crate::address::Address;
use crate::files::Root;

/// The classes whose members are names that an operator uses, the best one first.
const CLASSES: [&str; 7] = ["drm", "accel", "infiniband", "net", "nvme", "block", "misc"];
/// How often a name leads to another one, such as from soft RoCE to its netdev.
const STEPS: usize = 4;

/// A name, with the class that it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The class in sysfs.
    pub class: &'static str,
    /// The name.
    pub name: String,
}

/// Whether a member of a class is one that an operator names: no connectors of cards, for example.
fn is_used(class: &str, name: &str) -> bool {
    match class {
        "drm" => name.starts_with("renderD") || name.starts_with("card") && !name.contains('-'),
        "misc" => name.starts_with("edu-peer-"),
        // A drive has a controller, which is named already.
        "block" => !name.starts_with("nvme"),
        _ => true,
    }
}

/// The PCI function closest above a path in sysfs.
fn above(root: &Root, path: &str) -> Option<Address> {
    let parts = root.real(path)?;
    parts.iter().rev().find_map(|part| Address::parse(part))
}

/// The PCI function behind a member of a class, or behind the device below it, such as a netdev.
fn behind(root: &Root, class: &str, name: &str) -> Option<Address> {
    let (mut class, mut name) = (class.to_string(), name.to_string());
    for _ in 0..STEPS {
        let path = format!("sys/class/{class}/{name}");
        if let Some(found) = above(root, &path) {
            return Some(found);
        }
        // Nodes of drivers that are below no device may be named after one.
        if let Some(found) = named_after(&name) {
            return Some(found);
        }
        // Soft RoCE and soft iWARP have a file with the netdev below them, bonds and VLANs link to
        // it.
        name = root.text(&format!("{path}/parent")).ok().or_else(|| {
            let lower = root.names(&path).ok()?;
            Some(
                lower
                    .iter()
                    .find_map(|it| it.strip_prefix("lower_"))?
                    .to_string(),
            )
        })?;
        class = "net".to_string();
    }
    None
}

/// The PCI function that a name ends with, such as `edu-peer-0000:04:00.0`.
fn named_after(name: &str) -> Option<Address> {
    Address::parse(name.rsplit_once('-')?.1)
}

/// The names of all PCI functions that have some.
pub fn all(root: &Root) -> BTreeMap<Address, Vec<Name>> {
    let mut found = BTreeMap::<Address, Vec<Name>>::new();
    for class in CLASSES {
        let mut names = root
            .names(&format!("sys/class/{class}"))
            .unwrap_or_default();
        names.retain(|name| is_used(class, name));
        // Render nodes before cards: a client needs no privilege for them.
        names.sort_by_key(|name| !name.starts_with("renderD"));
        for name in names {
            if let Some(address) = behind(root, class, &name) {
                found.entry(address).or_default().push(Name { class, name });
            }
        }
    }
    found
}

/// The PCI function that a user means: a PCI name, a name of any class, a node or a path in sysfs.
pub fn resolve(root: &Root, text: &str) -> Option<Address> {
    let is_there = |it: &Address| root.exists(&format!("sys/bus/pci/devices/{it}"));
    if let Some(address) = Address::parse_short(text).filter(is_there) {
        return Some(address);
    }
    if let Some(path) = text.strip_prefix("/sys/") {
        return above(root, &format!("sys/{path}"));
    }
    let name = text.strip_prefix("/dev/").unwrap_or(text);
    let name = name.rsplit('/').next().unwrap_or(name);
    if name.is_empty() || name.starts_with('.') {
        return None;
    }
    let classes = root.names("sys/class").unwrap_or_default();
    let first = CLASSES.iter().map(|class| class.to_string());
    first.chain(classes).find_map(|class| {
        let is_member = root.exists(&format!("sys/class/{class}/{name}"));
        is_member.then(|| behind(root, &class, name)).flatten()
    })
}

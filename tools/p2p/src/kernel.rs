// SPDX-License-Identifier: GPL-2.0

//! The answers of drivers that have PEER_QUERY.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;

use crate::address::Address;
use crate::ask;
use crate::files::Root;
use crate::machine::{Device, Machine};
use crate::uapi::{self, Answer, Driver, DRIVERS};

/// A device whose driver answers.
#[derive(Debug)]
pub struct Exporter {
    /// Its PCI name.
    pub address: Address,
    /// Its driver.
    pub driver: Driver,
    node: File,
}

impl Exporter {
    /// The path that an importer with all capabilities would get to VRAM, without an attach. The
    /// device is resumed if the attach would resume it.
    ///
    /// # Errors
    ///
    /// Fails as the ioctl does.
    pub fn ask(&self, importer: Address) -> io::Result<Answer> {
        let mut bytes = uapi::question(importer);
        ask::query(self.node.as_fd(), self.driver, &mut bytes)?;
        Ok(uapi::answer(&bytes))
    }

    /// Its render node.
    pub fn node(&self) -> &File {
        &self.node
    }
}

/// The driver with PEER_QUERY that a device has.
pub fn driver_of(device: &Device) -> Option<Driver> {
    let name = device.driver.as_deref()?;
    DRIVERS.iter().find(|driver| driver.name == name).copied()
}

/// Opens the render nodes of all devices that answer; also returns those that cannot be opened.
pub fn exporters(root: &Root, machine: &Machine) -> (Vec<Exporter>, Vec<String>) {
    let (mut found, mut notes) = (Vec::new(), Vec::new());
    if !root.is_live() {
        return (found, notes);
    }
    for device in machine.devices.values() {
        let nodes = device
            .names
            .iter()
            .filter(|name| name.name.starts_with("renderD"));
        let (Some(driver), Some(name)) = (driver_of(device), nodes.map(|it| &it.name).next())
        else {
            continue;
        };
        let node = root.path(&format!("dev/dri/{name}"));
        match OpenOptions::new().read(true).write(true).open(&node) {
            Ok(node) => found.push(Exporter {
                address: device.address,
                driver,
                node,
            }),
            Err(error) => notes.push(format!(
                "{} is not asked: {}: {error}",
                device.address,
                node.display()
            )),
        }
    }
    (found, notes)
}

// SPDX-License-Identifier: GPL-2.0

//! `p2p ls`: buffers, the processes that have them, and their importers.

use std::os::fd::AsFd;

use serde_json::{json, Value};

use crate::address::Address;
use crate::ask;
use crate::bufinfo;
use crate::files::{Blind, Root};
use crate::kernel::{self, Exporter};
use crate::listing;
use crate::machine::{Device, Machine, NO_GPU};
use crate::processes::{self, Holder};
use crate::table;
use crate::uapi::{self, Importer};

const DEBUGFS: &str = "sys/kernel/debug";
/// The reason why nothing is listed if there is no source.
pub const NO_SOURCE: &str = "neither debugfs nor a process in /proc can be read";

/// A buffer, with the information of all sources.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    /// The device that exported it, if its driver reports that.
    pub device: Option<Address>,
    /// Its driver.
    pub exporter: String,
    /// In bytes.
    pub size: u64,
    /// The inode of the dma-buf, 0 without one.
    pub inode: u64,
    /// The information of the driver.
    pub listed: Option<listing::Buffer>,
    /// Its name.
    pub name: String,
    /// The processes that have it.
    pub holders: Vec<Holder>,
    /// Its importers.
    pub importers: Vec<Importer>,
}

/// All buffers.
#[derive(Debug, Default)]
pub struct Listing {
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// Counters of fallbacks and refusals that are not 0: device, event, reason, count.
    pub counters: Vec<(Address, String, String, u64)>,
    /// The sources that could not be read.
    pub notes: Vec<String>,
    /// No source could be read.
    pub is_blind: bool,
}

/// Reads all sources. A buffer in the listing of a driver is found in the others by its inode.
pub fn look(root: &Root, machine: Option<&Machine>) -> Listing {
    let mut this = Listing::default();
    let mut sources = 0;
    if machine.is_some_and(|it| it.gpus().next().is_none()) {
        this.notes.push(NO_GPU.to_string());
    }
    let devices = machine.iter().flat_map(|it| it.devices.values());
    let ours: Vec<_> = devices
        .filter(|it| kernel::driver_of(it).is_some())
        .collect();
    // The devices whose drivers list their buffers there.
    let mut listed = Vec::new();
    for device in &ours {
        let folder = format!("{DEBUGFS}/dri/{}", drm_parent(root, device));
        match root.text(&format!("{folder}/buffers")) {
            Ok(text) => {
                sources += 1;
                listed.push(device.address);
                let driver = device.driver.clone().unwrap_or_default();
                this.buffers
                    .extend(listing::parse(&text).into_iter().map(|it| Buffer {
                        device: Some(device.address),
                        exporter: driver.clone(),
                        size: it.size,
                        inode: it.inode,
                        name: it.name.clone(),
                        importers: it.importers.clone(),
                        listed: Some(it),
                        ..Buffer::default()
                    }));
                this.counters
                    .extend(counters(root, &folder, device.address));
            }
            Err(why) => this.unseen(root, &format!("{folder}/buffers"), &why),
        }
    }
    let path = format!("{DEBUGFS}/dma_buf/bufinfo");
    match root.text(&path) {
        Ok(text) => {
            sources += 1;
            for found in bufinfo::parse(&text) {
                this.add(found);
            }
        }
        Err(why) => this.unseen(root, &path, &why),
    }
    let processes = processes::look(root);
    sources += processes.seen;
    if processes.hidden > 0 {
        let hidden = processes.hidden;
        this.notes.push(format!(
            "{hidden} processes of others are not looked into: {}",
            root.as_root()
        ));
    }
    for (inode, held) in processes.buffers {
        let buffer = this.of(inode);
        if buffer.exporter.is_empty() {
            buffer.exporter = held.exporter;
        }
        buffer.size = buffer.size.max(held.size);
        if buffer.name.is_empty() {
            buffer.name = held.name;
        }
        buffer.holders = held.holders;
    }
    if let Some(machine) = machine {
        ask_drivers(root, machine, &listed, &mut this);
    }
    this.is_blind = sources == 0;
    if this.is_blind {
        this.notes.push(NO_SOURCE.to_string());
    }
    this
}

/// The device that the DRM device is below: the PCI device, or an auxiliary one of its driver.
fn drm_parent(root: &Root, device: &Device) -> String {
    let nodes = device.names.iter().filter(|it| it.class == "drm");
    let mut parents =
        nodes.filter_map(|it| root.link_name(&format!("sys/class/drm/{}/device", it.name)));
    parents.next().unwrap_or_else(|| device.address.to_string())
}

impl Listing {
    fn unseen(&mut self, root: &Root, path: &str, why: &Blind) {
        // A caller that may not read debugfs cannot see whether the file exists.
        let why = match (why, root.is_live(), ask::is_root()) {
            (Blind::Absent, false, _) => "the copy does not have it".to_string(),
            (Blind::Absent, true, false) => "only root may read it, or it is not there".to_string(),
            (Blind::Absent, true, true) => "it is not there; is debugfs mounted?".to_string(),
            _ => why.to_string(),
        };
        self.notes.push(format!("/{path}: {why}"));
    }

    /// The buffer with an inode.
    fn of(&mut self, inode: u64) -> &mut Buffer {
        let at = self.buffers.iter().position(|it| it.inode == inode);
        let at = at.unwrap_or_else(|| {
            self.buffers.push(Buffer {
                inode,
                ..Buffer::default()
            });
            self.buffers.len() - 1
        });
        &mut self.buffers[at]
    }

    /// Adds the information of the dma-buf core: only the names of importers.
    fn add(&mut self, found: bufinfo::Buffer) {
        let buffer = self.of(found.inode);
        if buffer.listed.is_some() {
            return;
        }
        buffer.exporter = found.exporter;
        buffer.size = found.size;
        buffer.name = found.name;
        buffer.importers = found.attached.into_iter().map(unexplained).collect();
    }
}

/// An importer of which only the name is known.
fn unexplained(device: String) -> Importer {
    Importer {
        device,
        driver: String::new(),
        path: String::new(),
        reason: String::new(),
        hops: None,
        flags: Vec::new(),
        age_ms: None,
    }
}

/// The counters of a device that are not 0.
fn counters(root: &Root, folder: &str, at: Address) -> Vec<(Address, String, String, u64)> {
    let text = root.text(&format!("{folder}/counters")).unwrap_or_default();
    let counter = |line: &str| {
        let mut words = line.split_whitespace();
        let (event, reason) = (words.next()?.to_string(), words.next()?.to_string());
        let count = words.next()?.parse().ok()?;
        (count > 0).then_some((at, event, reason, count))
    };
    text.lines().filter_map(counter).collect()
}

/// Asks drivers about buffers that are not in debugfs, with the files of processes that the caller
/// may trace: PEER_ATTACHMENTS needs no privilege, but a handle.
///
/// A driver that has several devices is not asked: another one than the exporter would import the
/// buffer.
fn ask_drivers(root: &Root, machine: &Machine, listed: &[Address], this: &mut Listing) {
    let (exporters, _) = kernel::exporters(root, machine);
    // Also those whose nodes cannot be opened.
    let is_only = |exporter: &Exporter| {
        let same = |it: &&Device| kernel::driver_of(it) == Some(exporter.driver);
        machine.devices.values().filter(same).count() == 1
    };
    for buffer in this.buffers.iter_mut().filter(|it| it.listed.is_none()) {
        let mut of_driver = exporters
            .iter()
            .filter(|it| it.driver.name == buffer.exporter);
        let Some(exporter) = of_driver.next().filter(|it| is_only(it)) else {
            continue;
        };
        if listed.contains(&exporter.address) {
            continue;
        }
        let fds = buffer
            .holders
            .iter()
            .filter_map(|it| Some((it.pid, it.fd?)));
        let importers = fds
            .filter_map(|(pid, fd)| importers(exporter, pid, fd))
            .next();
        if let Some(importers) = importers {
            buffer.device = Some(exporter.address);
            buffer.importers = importers;
        }
    }
}

fn importers(exporter: &Exporter, pid: u32, fd: i32) -> Option<Vec<Importer>> {
    let file = ask::file_of(pid, fd).ok()?;
    let node = exporter.node().as_fd();
    let handle = ask::handle(node, file.as_fd()).ok()?;
    let entries = ask::attachments(node, exporter.driver, handle).ok()?;
    Some(entries.iter().map(|it| uapi::importer(it)).collect())
}

impl Listing {
    /// As text.
    pub fn text(&self, machine: Option<&Machine>) -> String {
        let called = |name: &str| {
            let device = Address::parse(name).zip(machine);
            device.map_or_else(|| name.to_string(), |(it, machine)| machine.called(it))
        };
        let mut text = String::new();
        for buffer in &self.buffers {
            text += &head(buffer, &called);
            let mut lines = table::Table::default();
            for it in &buffer.importers {
                let how = match (&*it.path, &*it.reason, it.age_ms) {
                    ("", ..) => "attached".to_string(),
                    (path, "none", _) => path.to_string(),
                    (path, reason, None) => format!("{path}: {reason}"),
                    (path, reason, Some(age)) => format!("{path}: {reason}, {age} ms ago"),
                };
                let hops = match it.hops {
                    Some(hops) if hops >= 0 => format!("{hops} hops"),
                    _ => String::new(),
                };
                let name = called(&it.device);
                lines.row(["  <-", &name, &it.driver, &how, &hops, &it.flags.join(" ")]);
            }
            for it in &buffer.holders {
                let how = match (it.fd, it.is_mapped) {
                    (Some(fd), true) => format!("fd {fd}, mapped"),
                    (Some(fd), false) => format!("fd {fd}"),
                    (None, _) => "mapped".to_string(),
                };
                lines.row(["  held by", &format!("{} ({})", it.comm, it.pid), "", &how]);
            }
            text += &lines.text();
        }
        if self.buffers.is_empty() {
            // All other notes are about sources that were not read.
            text += match self.notes.iter().all(|note| note == NO_GPU) {
                true => "no buffers\n",
                false => "no buffers that can be seen\n",
            };
        }
        if !self.counters.is_empty() {
            text += "\nSince the driver was bound:\n";
            let mut lines = table::Table::default();
            for (device, event, reason, count) in &self.counters {
                lines.row([
                    &format!("  {}", device.short()),
                    event,
                    reason,
                    &count.to_string(),
                ]);
            }
            text += &lines.text();
        }
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        text
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let buffers: Vec<_> = self.buffers.iter().map(buffer_json).collect();
        let counters: Vec<_> = self
            .counters
            .iter()
            .map(|(device, event, reason, count)| {
                json!({
                    "device": device.to_string(),
                    "event": event,
                    "reason": reason,
                    "count": count,
                })
            })
            .collect();
        json!({ "buffers": buffers, "counters": counters, "notes": self.notes })
    }
}

/// The line of a buffer.
fn head(buffer: &Buffer, called: &dyn Fn(&str) -> String) -> String {
    let mut parts = vec![match buffer.device {
        Some(device) => called(&device.to_string()),
        None => buffer.exporter.clone(),
    }];
    if let Some(listed) = &buffer.listed {
        parts.push(format!("#{}", listed.id));
    }
    parts.push(table::bytes(buffer.size));
    if !buffer.name.is_empty() {
        parts.push(format!("\"{}\"", buffer.name));
    }
    match &buffer.listed {
        Some(listed) => {
            parts.push(format!(
                "in {} (may live in {})",
                listed.placement, listed.domain
            ));
            let states = [
                (listed.pinned, "pinned"),
                (!listed.exported, "not exported"),
                (listed.orphan, "kept by importers alone"),
            ];
            parts.extend(states.iter().filter(|it| it.0).map(|it| it.1.to_string()));
            if let Some(pid) = listed.pid.filter(|pid| *pid != 0) {
                parts.push(format!("exported by {} ({pid})", listed.comm));
            }
        }
        None => parts.push("placement unknown: its exporter does not report it".to_string()),
    }
    if buffer.inode != 0 {
        parts.push(format!("inode {}", buffer.inode));
    }
    format!("{}\n", parts.join("  "))
}

fn buffer_json(it: &Buffer) -> Value {
    let listed = it.listed.as_ref();
    json!({
        "device": it.device.map(|it| it.to_string()),
        "exporter": it.exporter,
        "size": it.size,
        "inode": it.inode,
        "name": it.name,
        "id": listed.map(|it| it.id),
        "domain": listed.map(|it| it.domain.clone()),
        "placement": listed.map(|it| it.placement.clone()),
        "pinned": listed.map(|it| it.pinned),
        "exported": listed.is_none_or(|it| it.exported),
        "orphan": listed.map(|it| it.orphan),
        "exported_by": listed.and_then(|it| it.pid).map(|pid| json!({
            "pid": pid,
            "comm": listed.map(|it| it.comm.clone()),
        })),
        "holders": it.holders.iter().map(|it| json!({
            "pid": it.pid,
            "comm": it.comm,
            "fd": it.fd,
            "mapped": it.is_mapped,
        })).collect::<Vec<_>>(),
        "importers": it.importers.iter().map(|it| json!({
            "device": it.device,
            "driver": it.driver,
            "path": (!it.path.is_empty()).then_some(&it.path),
            "reason": (!it.reason.is_empty()).then_some(&it.reason),
            "hops": it.hops,
            "flags": it.flags,
            "age_ms": it.age_ms,
        })).collect::<Vec<_>>(),
    })
}

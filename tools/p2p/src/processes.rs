// SPDX-License-Identifier: GPL-2.0

//! The processes that have dma-bufs: as file descriptors and as mappings.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use crate::files::{Blind, Root};

/// How a process has a dma-buf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// One of its file descriptors, if it has one.
    pub fd: Option<i32>,
    /// It has mapped the buffer.
    pub is_mapped: bool,
}

/// A dma-buf that processes have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// In bytes, 0 if it is only mapped.
    pub size: u64,
    /// The exporter.
    pub exporter: String,
    /// Its name.
    pub name: String,
    /// The processes.
    pub holders: Vec<Holder>,
}

/// The dma-bufs of all processes.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    /// By the inode of the dma-buf.
    pub buffers: BTreeMap<u64, Held>,
    /// The number of processes that can be read.
    pub seen: usize,
    /// The number of processes that cannot be read.
    pub hidden: usize,
}

/// Reads all processes.
pub fn look(root: &Root) -> Processes {
    let mut found = Processes::default();
    let pids = root.names("proc").unwrap_or_default();
    for pid in pids.iter().filter_map(|name| name.parse::<u32>().ok()) {
        let comm = root.text(&format!("proc/{pid}/comm")).unwrap_or_default();
        let holder = Holder {
            pid,
            comm,
            fd: None,
            is_mapped: false,
        };
        match root.names(&format!("proc/{pid}/fd")) {
            Ok(fds) => {
                found.seen += 1;
                for fd in fds.iter().filter_map(|name| name.parse().ok()) {
                    descriptor(root, &holder, fd, &mut found);
                }
            }
            Err(Blind::Denied) => found.hidden += 1,
            // It has ended meanwhile.
            Err(_) => continue,
        }
        if let Ok(maps) = root.text(&format!("proc/{pid}/maps")) {
            for inode in maps.lines().filter_map(mapping) {
                hold(&mut found, inode, &holder, |it| it.is_mapped = true);
            }
        }
    }
    found
}

/// The inode in a line of /proc/PID/maps, if it is a mapping of a dma-buf.
fn mapping(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace().skip(4);
    let inode = words.next()?.parse().ok()?;
    words.next()?.starts_with("/dmabuf:").then_some(inode)
}

/// Adds a file descriptor, if it is one of a dma-buf.
fn descriptor(root: &Root, holder: &Holder, fd: i32, found: &mut Processes) {
    let pid = holder.pid;
    let Ok(info) = root.text(&format!("proc/{pid}/fdinfo/{fd}")) else {
        return;
    };
    let value = |key: &str| {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.map(|it| it.trim().to_string())
    };
    let Some(exporter) = value("exp_name") else {
        return;
    };
    // Older kernels have no inode in the file.
    let inode = value("ino").and_then(|it| it.parse().ok()).or_else(|| {
        let path = root.path(&format!("proc/{pid}/fd/{fd}"));
        Some(std::fs::metadata(path).ok()?.ino())
    });
    let Some(inode) = inode else { return };
    hold(found, inode, holder, |it| it.fd = Some(fd));
    let buffer = found.buffers.entry(inode).or_default();
    buffer.exporter = exporter;
    buffer.size = value("size").and_then(|it| it.parse().ok()).unwrap_or(0);
    buffer.name = value("name").unwrap_or_default();
}

/// Records how a process has a buffer.
fn hold(found: &mut Processes, inode: u64, holder: &Holder, how: impl Fn(&mut Holder)) {
    let holders = &mut found.buffers.entry(inode).or_default().holders;
    if !holders.iter().any(|it| it.pid == holder.pid) {
        holders.push(holder.clone());
    }
    holders
        .iter_mut()
        .filter(|it| it.pid == holder.pid)
        .for_each(how);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings() {
        let line = "7f00-7f10 rw-s 00000000 00:0b 42      /dmabuf:frame";
        assert_eq!(mapping(line), Some(42));
        assert_eq!(
            mapping("7f00-7f10 r-xp 00000000 08:01 42      /usr/bin/x"),
            None
        );
        assert_eq!(mapping("7f00-7f10 rw-p 00000000 00:00 0"), None);
        assert_eq!(mapping(""), None);
    }
}

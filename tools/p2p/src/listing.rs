// SPDX-License-Identifier: GPL-2.0

//! The file `buffers` that drivers have in debugfs.

use std::collections::BTreeMap;

use crate::uapi::Importer;

/// One buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// The number in debugfs and tracepoints.
    pub id: u64,
    /// In bytes.
    pub size: u64,
    /// Its domain: `vram`, `system` or `either`.
    pub domain: String,
    /// Its placement.
    pub placement: String,
    /// It does not move.
    pub pinned: bool,
    /// There is a dma-buf.
    pub exported: bool,
    /// Its inode, or 0.
    pub inode: u64,
    /// Importers alone keep it.
    pub orphan: bool,
    /// Its name.
    pub name: String,
    /// The process that exported it.
    pub pid: Option<u32>,
    /// The name of that process.
    pub comm: String,
    /// Its importers, and those that were refused.
    pub importers: Vec<Importer>,
}

fn words(text: &str) -> BTreeMap<&str, &str> {
    text.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .collect()
}

/// Reads the file; lines that it does not know, of a newer driver, are left out.
pub fn parse(text: &str) -> Vec<Buffer> {
    let mut buffers = Vec::<Buffer>::new();
    for line in text.lines() {
        let words = words(line);
        let text = |name: &str| words.get(name).copied().unwrap_or_default().to_string();
        let number = |name: &str| words.get(name).and_then(|word| word.parse().ok());
        let flag = |name: &str| words.get(name) == Some(&"1");
        if line.starts_with("buffer ") {
            let Some(id) = number("id") else { continue };
            buffers.push(Buffer {
                id,
                size: number("size").unwrap_or(0),
                domain: text("domain"),
                placement: text("placement"),
                pinned: flag("pinned"),
                exported: flag("exported"),
                inode: number("ino").unwrap_or(0),
                orphan: flag("orphan"),
                name: text("name"),
                pid: words.get("pid").and_then(|word| word.parse().ok()),
                comm: text("comm"),
                importers: Vec::new(),
            });
        } else if let (Some(buffer), true) = (buffers.last_mut(), words.contains_key("importer")) {
            buffer.importers.push(Importer {
                device: text("importer"),
                driver: text("driver"),
                path: text("path"),
                reason: text("reason"),
                hops: words.get("hops").and_then(|word| word.parse().ok()),
                flags: text("flags")
                    .split(',')
                    .filter(|flag| !flag.is_empty())
                    .map(str::to_string)
                    .collect(),
                age_ms: number("age_ms"),
            });
        }
    }
    buffers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings() {
        let text =
            "buffer id=5 size=8192 domain=either vram_or_fail=0 placement=vram visible=8192 \
                    pinned=1 exported=1 ino=12 orphan=0 client=7 name=frame pid=812 comm=render\n\
                    \timporter=0000:04:00.0 driver=edu_peer path=bus reason=none hops=4 \
                    flags=pinned,mapped\n\
                    \timporter=x driver=y path=refused reason=no-opt-in hops=-1 flags= age_ms=742\n\
                    buffer id=6 size=4096 domain=vram placement=none pinned=0 exported=0 ino=0\n\
                    something=new\n";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].id, found[0].size, found[0].inode), (5, 8192, 12));
        assert_eq!(
            (&*found[0].placement, &*found[0].domain),
            ("vram", "either")
        );
        assert!(found[0].pinned && found[0].exported && !found[0].orphan);
        assert_eq!(
            (found[0].pid, &*found[0].comm, &*found[0].name),
            (Some(812), "render", "frame")
        );
        let [first, second] = &found[0].importers[..] else {
            panic!("{found:?}");
        };
        assert_eq!(
            (&*first.device, &*first.path, first.hops),
            ("0000:04:00.0", "bus", Some(4))
        );
        assert_eq!(first.flags, ["pinned", "mapped"]);
        assert_eq!((&*second.reason, second.age_ms), ("no-opt-in", Some(742)));
        assert!(second.flags.is_empty());
        assert!(!found[1].pinned && found[1].importers.is_empty());
        assert!(parse("\timporter=x\nbuffer size=1\n").is_empty());
    }
}

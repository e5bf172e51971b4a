// SPDX-License-Identifier: GPL-2.0

//! Translation of the addresses that a device uses, through the page tables of its IOMMU, as
//! debugfs shows them.

use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::debugfs::mounted;
use crate::map::{Map, PAGE};
use crate::misc;
use crate::pci::PciDevice;
use crate::{Stop, SysError};

/// Bits of an entry that are an address.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// A mapping of one page of any size: its address for the device and for the processor, and its
/// length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaf {
    from: u64,
    to: u64,
    len: u64,
}

/// The translation between addresses of a device and physical addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// There is none.
    Straight,
    /// An IOMMU of Intel, whose page tables the kernel shows.
    Tables(Tables),
    /// An IOMMU whose page tables are not shown: those of virtio-iommu are in QEMU.
    Opaque,
}

/// Page tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables(Vec<Leaf>);

/// Reads a dump of page tables: a page number, and the entries that lead to it, the highest level
/// first. A large page has fewer of them.
fn parse(text: &str) -> Option<Vec<Leaf>> {
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let mut leaves = Vec::new();
    for line in text.lines() {
        let Some((page, entries)) = line.split_once('|') else {
            continue;
        };
        let entries: Option<Vec<_>> = entries.split_whitespace().map(hex).collect();
        let entries = entries?;
        let len = match entries.len() {
            3 => 1 << 30,
            4 => 1 << 21,
            5 => PAGE as u64,
            _ => return None,
        };
        leaves.push(Leaf {
            from: hex(page.trim())? * PAGE as u64,
            to: entries.last()? & ADDRESS & !(len - 1),
            len,
        });
    }
    Some(leaves)
}

impl Way {
    /// Returns the current translation of a device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there are tables that cannot be read.
    #[track_caller]
    pub fn of(device: &PciDevice) -> Result<Self, Stop> {
        if !device.translated() {
            return Ok(Self::Straight);
        }
        if !device.iommu().is_some_and(|name| name.starts_with("dmar")) {
            return Ok(Self::Opaque);
        }
        let path = mounted("debugfs", "/sys/kernel/debug")?
            .join("iommu/intel")
            .join(device.name())
            .join("domain_translation_struct");
        match fs::read_to_string(&path).ok().as_deref().and_then(parse) {
            Some(leaves) => Ok(Self::Tables(Tables(leaves))),
            None => Err(Stop::fail(format_args!(
                "{} does not show the page tables of an IOMMU",
                path.display()
            ))),
        }
    }

    /// Translates ranges of addresses of the device (start and length), in their order; `None` if
    /// the page tables are not shown.
    ///
    /// # Errors
    ///
    /// Names an address that is not mapped.
    pub fn resolve(&self, ranges: &[(u64, u64)]) -> Result<Option<Vec<(u64, u64)>>, String> {
        match self {
            Self::Straight => Ok(Some(misc::coalesce(ranges.iter().copied()))),
            Self::Tables(tables) => tables.resolve(ranges).map(Some),
            Self::Opaque => Ok(None),
        }
    }
}

impl Tables {
    fn resolve(&self, ranges: &[(u64, u64)]) -> Result<Vec<(u64, u64)>, String> {
        let mut found = Vec::new();
        for (start, len) in ranges {
            let (mut at, end) = (*start, start + len);
            while at < end {
                let leaf = self
                    .0
                    .iter()
                    .find(|l| (l.from..l.from + l.len).contains(&at));
                let Some(leaf) = leaf else {
                    return Err(format!("the IOMMU leads {at:#x} nowhere"));
                };
                let inside = at - leaf.from;
                let step = (leaf.len - inside).min(end - at);
                found.push((leaf.to + inside, step));
                at += step;
            }
        }
        Ok(misc::coalesce(found.into_iter()))
    }
}

/// Whether all of a range is system memory.
///
/// # Errors
///
/// Fails the subtest if /proc/iomem cannot be read.
#[track_caller]
pub fn is_ram((start, len): (u64, u64)) -> Result<bool, Stop> {
    const FILE: &str = "/proc/iomem";
    let text = fs::read_to_string(Path::new(FILE)).unwrap_or_default();
    let ram = ram(&text);
    check!(!ram.is_empty(), "{FILE} has no System RAM:\n{text}");
    Ok(ram
        .iter()
        .any(|(first, last)| *first <= start && start + len - 1 <= *last))
}

/// Returns the physical address of a page of memory of this process.
///
/// # Errors
///
/// Fails the subtest if the page is not populated, or the kernel does not show the address.
#[track_caller]
pub fn physical(map: &Map, page: usize) -> Result<u64, Stop> {
    const FILE: &str = "/proc/self/pagemap";
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    let mut entry = [0; 8];
    let at = map.page_address(page) / PAGE as u64 * 8;
    File::open(FILE)
        .and_then(|file| file.read_exact_at(&mut entry, at))
        .map_err(|error| SysError::io(FILE, &error))?;
    let entry = u64::from_le_bytes(entry);
    check!(
        entry & PRESENT != 0 && entry & FRAME != 0,
        "{FILE} shows no address of page {page}: {entry:#x}"
    );
    Ok((entry & FRAME) * PAGE as u64)
}

/// First and last addresses of memory.
fn ram(text: &str) -> Vec<(u64, u64)> {
    let hex = |word: &str| u64::from_str_radix(word.trim(), 16).ok();
    text.lines()
        .filter_map(|line| {
            let (range, name) = line.split_once(" : ")?;
            let (first, last) = range.split_once('-')?;
            let (first, last) = (hex(first)?, hex(last)?);
            (name == "System RAM" && last > 0).then_some((first, last))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "\
Device 0000:02:00.0 @0x1a2b000
IOVA_PFN         \tPML5E             \tPML4E             \tPDPE              \tPDE               \tPTE
0x00000000fff00 |\t0x0000000000000000\t0x0000000001a00003\t0x0000000001a01003\t0x0000000001a02003\t0x000000e000007803
0x00000000fff01 |\t0x0000000000000000\t0x0000000001a00003\t0x0000000001a01003\t0x0000000001a02003\t0x000000e000003803
0x00000000fff02 |\t0x0000000000000000\t0x0000000001a00003\t0x0000000001a01003\t0x0000000001a02003\t0x000000e000004803
0x0000000100000 |\t0x0000000000000000\t0x0000000001a00003\t0x0000000001a01003\t0x0000000040000083
";

    #[test]
    fn addresses_are_resolved() {
        let way = Way::Tables(Tables(parse(DUMP).expect("a dump")));
        assert_eq!(
            way.resolve(&[(0xfff0_0000, 0x3000)]),
            Ok(Some(vec![
                (0xe0_0000_7000, 0x1000),
                (0xe0_0000_3000, 0x2000)
            ]))
        );
        assert_eq!(
            way.resolve(&[(0x1_0000_1000, 0x1000)]),
            Ok(Some(vec![(0x4000_1000, 0x1000)]))
        );
        assert!(way.resolve(&[(0xfff0_2000, 0x2000)]).is_err());
        assert!(way.resolve(&[(0x1_0020_0000, 0x1000)]).is_err());
        assert_eq!(Way::Opaque.resolve(&[(0, 1)]), Ok(None));
    }

    #[test]
    fn another_form_is_no_dump() {
        assert_eq!(parse("0x1 |\t0x1\n"), None);
        assert_eq!(parse("0x1 |\t0x1\t0x2\tnone\n"), None);
        assert_eq!(parse("nothing\n"), Some(Vec::new()));
    }

    #[test]
    fn memory_is_found() {
        let text = "\
00001000-0009fbff : System RAM
000a0000-000bffff : PCI Bus 0000:00
00100000-3ffdbfff : System RAM
  01000000-01ffffff : Kernel code
";
        assert_eq!(ram(text), vec![(0x1000, 0x9fbff), (0x10_0000, 0x3ffd_bfff)]);
        assert!(ram("00000000-00000000 : System RAM\n").is_empty());
    }
}

// SPDX-License-Identifier: GPL-2.0

//! PCI devices in sysfs: addresses, routes, drivers, and VRAM through its BAR.

use std::collections::HashMap;
use std::fs;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::map::{Map, PAGE};
use crate::misc;
use crate::uapi::PeerAddress;
use crate::{Need, Outcome, Stop, SysError};

const DEVICES: &str = "/sys/bus/pci/devices";
const DRIVERS: &str = "/sys/bus/pci/drivers";
const WORDS: usize = PAGE / 8;
/// The command register of the configuration space, and its bit for bus mastering.
const COMMAND: usize = 4;
const MASTER: u16 = 1 << 2;

/// A PCI device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    name: String,
}

fn write_file(path: &Path, text: &str) -> Result<(), SysError> {
    fs::write(path, text)
        .map_err(|error| SysError::io(format!("writing {text} to {}", path.display()), &error))
}

/// Hops between the ends of two routes. Each route starts with a PCI root, which is not a hop;
/// routes of different roots meet in the host.
pub fn hops(a: &[String], b: &[String]) -> i32 {
    let shared = a.iter().zip(b).take_while(|(x, y)| x == y).count().max(1);
    (a.len() + b.len() - 2 * shared) as i32
}

/// Whether a name is an address such as 0000:03:00.0.
fn is_address(name: &str) -> bool {
    let hex = |text: &str, least: usize, most: usize| {
        (least..=most).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_hexdigit())
    };
    let Some((start, function)) = name.rsplit_once('.') else {
        return false;
    };
    let parts: Vec<_> = start.split(':').collect();
    match parts.as_slice() {
        // Domains of virtual host bridges, such as that of VMD, have five digits or more.
        [domain, bus, slot] => {
            hex(domain, 4, 8) && hex(bus, 2, 2) && hex(slot, 2, 2) && hex(function, 1, 1)
        }
        _ => false,
    }
}

impl PciDevice {
    /// The device of a name such as 0000:03:00.0.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_string(),
        }
    }

    /// The device of a path in sysfs, or the closest one above it.
    pub fn above(path: &Path) -> Option<Self> {
        let path = fs::canonicalize(path).ok()?;
        path.ancestors().find_map(|folder| {
            let name = folder.file_name()?.to_str()?;
            is_address(name).then(|| Self::named(name))
        })
    }

    /// Finds the devices of a vendor and device number, in order.
    pub fn all(vendor: u16, device: u16) -> Vec<Self> {
        let is = |found: &Self| {
            found.number("vendor") == Some(vendor) && found.number("device") == Some(device)
        };
        Self::everything().into_iter().filter(is).collect()
    }

    /// Finds the first device of a vendor and device number.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none.
    #[track_caller]
    pub fn find(vendor: u16, device: u16) -> Result<Self, Stop> {
        match Self::all(vendor, device).into_iter().next() {
            Some(found) => Ok(found),
            None => Err(Stop::fail(format_args!(
                "there is no PCI device {vendor:04x}:{device:04x}"
            ))),
        }
    }

    /// The device whose BAR 2 is the VRAM, the first one if there are several.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none.
    #[track_caller]
    pub fn vvram() -> Result<Self, Stop> {
        Self::find(0x1af4, 0x1110)
    }

    /// All such devices, in order.
    pub fn vvrams() -> Vec<Self> {
        Self::all(0x1af4, 0x1110)
    }

    /// The modelled GPUs, in order.
    pub fn mgpus() -> Vec<Self> {
        Self::all(0x1234, 0x11f0)
    }

    /// QEMU's NVMe drives, in order.
    pub fn nvmes() -> Vec<Self> {
        Self::all(0x1b36, 0x0010)
    }

    /// The peer.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none.
    #[track_caller]
    pub fn edu() -> Result<Self, Stop> {
        Self::find(0x1234, 0x11e8)
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address in the name; all zero if the name is no address.
    pub fn address(&self) -> PeerAddress {
        let parts: Vec<_> = self.name.split([':', '.']).collect();
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        let parsed = || match parts.as_slice() {
            [domain, bus, slot, function] => Some(PeerAddress {
                domain: number(domain)?,
                bus: number(bus)?.try_into().ok()?,
                devfn: (number(slot)? << 3 | number(function)?).try_into().ok()?,
                pad: 0,
            }),
            _ => None,
        };
        parsed().unwrap_or_default()
    }

    /// All PCI devices, in order.
    pub fn everything() -> Vec<Self> {
        let mut found: Vec<_> = fs::read_dir(DEVICES)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        found.sort();
        found.iter().map(|name| Self::named(name)).collect()
    }

    /// Its vendor and device number.
    ///
    /// # Errors
    ///
    /// Fails the subtest if sysfs does not have them.
    #[track_caller]
    pub fn ids(&self) -> Result<(u16, u16), Stop> {
        match (self.number("vendor"), self.number("device")) {
            (Some(vendor), Some(device)) => Ok((vendor, device)),
            other => Err(Stop::fail(format_args!("IDs of {}: {other:?}", self.name))),
        }
    }

    fn number(&self, file: &str) -> Option<u16> {
        let text = fs::read_to_string(self.path(file)).ok()?;
        u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    }

    /// Its configuration space, as far as the kernel shows it.
    pub fn config(&self) -> Result<Vec<u8>, SysError> {
        let path = self.path("config");
        fs::read(&path).map_err(|error| SysError::io(format!("reading {}", path.display()), &error))
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        Path::new(DEVICES).join(&self.name).join(file)
    }

    /// Name of the driver it is bound to.
    pub fn driver(&self) -> Option<String> {
        let link = fs::read_link(self.path("driver")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    }

    /// Unbinds it from its driver; returns when the unbind is done.
    pub fn unbind(&self, driver: &str) -> Result<(), SysError> {
        write_file(&Path::new(DRIVERS).join(driver).join("unbind"), &self.name)
    }

    /// Binds it to a driver.
    pub fn bind(&self, driver: &str) -> Result<(), SysError> {
        write_file(&Path::new(DRIVERS).join(driver).join("bind"), &self.name)
    }

    /// Sets the only driver that may be bound to it; an empty name permits all drivers again.
    pub fn set_override(&self, driver: &str) -> Result<(), SysError> {
        write_file(&self.path("driver_override"), &format!("{driver}\n"))
    }

    /// A file of its power management.
    pub fn power(&self, file: &str) -> Result<String, SysError> {
        let path = self.path("power").join(file);
        let text = fs::read_to_string(&path)
            .map_err(|error| SysError::io(format!("reading {}", path.display()), &error))?;
        Ok(text.trim().to_string())
    }

    /// Writes to a file of its power management.
    pub fn set_power(&self, file: &str, text: &str) -> Result<(), SysError> {
        write_file(&self.path("power").join(file), text)
    }

    /// Whether it exists in sysfs.
    pub fn exists(&self) -> bool {
        self.path("").exists()
    }

    /// Removes it from the kernel, as a hot-unplug does; returns when it is gone.
    pub fn remove(&self) -> Result<(), SysError> {
        write_file(&self.path("remove"), "1")
    }

    /// Resets the function; returns when that is done.
    ///
    /// # Errors
    ///
    /// Any error of the write; ENOTTY if it cannot be reset without other functions.
    pub fn reset(&self) -> Result<(), SysError> {
        let path = self.path("reset");
        match path.try_exists() {
            Ok(true) => write_file(&path, "1"),
            Ok(false) => Err(SysError::new("reset", libc::ENOTTY)),
            Err(error) => Err(SysError::io(path.display().to_string(), &error)),
        }
    }

    /// Resets it, or skips the subtest if it cannot be reset without other functions.
    pub fn need_reset(&self) -> Outcome {
        match self.reset() {
            Err(error) if error.errno == libc::ENOTTY => Err(Stop::needs(Need::OwnSlot)),
            result => Ok(result?),
        }
    }

    /// Makes the kernel look for devices.
    pub fn rescan() -> Result<(), SysError> {
        write_file(Path::new("/sys/bus/pci/rescan"), "1")
    }

    /// The bridge right above the device, if it is not on a root bus.
    pub fn port(&self) -> Option<Self> {
        Self::above(fs::canonicalize(self.path("")).ok()?.parent()?)
    }

    /// The offset of a capability in the configuration space.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the device has none.
    #[track_caller]
    fn capability(&self, id: u8) -> Result<usize, Stop> {
        const FIRST: usize = 0x34;
        let config = self.config()?;
        let byte = |at: usize| config.get(at).copied().unwrap_or_default();
        let mut at = usize::from(byte(FIRST));
        while at != 0 && byte(at) != id {
            at = usize::from(byte(at + 1));
        }
        check!(at != 0, "{} has no capability {id:#x}", self.name);
        Ok(at)
    }

    /// Turns the power of the slot below a port off, or on. The device is gone at once, or there,
    /// and the kernel is not notified.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the port has no slot, or any error of the write.
    #[track_caller]
    pub fn turn_slot(&self, on: bool) -> Outcome {
        const EXPRESS: u8 = 0x10;
        const SLOT_CONTROL: usize = 0x18;
        // Power, and its indicator.
        const MASK: u16 = 0x0700;
        const OFF: u16 = 0x0700;
        const ON: u16 = 0x0100;
        let at = self.capability(EXPRESS)? + SLOT_CONTROL;
        let config = self.config()?;
        let old = u16::from_le_bytes([config[at], config[at + 1]]);
        let new = old & !MASK | if on { ON } else { OFF };
        Ok(self.write_config(at, &new.to_le_bytes())?)
    }

    /// Writes to its configuration space.
    fn write_config(&self, at: usize, bytes: &[u8]) -> Result<(), SysError> {
        let path = self.path("config");
        let file = OpenOptions::new().write(true).open(&path);
        let written = file.and_then(|file| file.write_all_at(bytes, at as u64));
        written.map_err(|error| SysError::io(path.display().to_string(), &error))
    }

    /// Whether it is a bus master.
    pub fn is_master(&self) -> Result<bool, SysError> {
        Ok(u16::from(self.config()?[COMMAND]) & MASTER != 0)
    }

    /// Turns bus mastering on or off.
    pub fn set_master(&self, on: bool) -> Result<(), SysError> {
        let config = self.config()?;
        let old = u16::from_le_bytes([config[COMMAND], config[COMMAND + 1]]);
        let new = old & !MASTER | if on { MASTER } else { 0 };
        self.write_config(COMMAND, &new.to_le_bytes())
    }

    /// A limit of its DMA, which is a number: `dma_mask_bits` or `dma_max_seg_size`.
    pub fn dma_limit(&self, file: &str) -> Result<u32, SysError> {
        let path = self.path(file);
        let text = fs::read_to_string(&path)
            .map_err(|error| SysError::io(format!("reading {}", path.display()), &error))?;
        let what = || format!("a number from {}: {text:?}", path.display());
        text.trim()
            .parse()
            .map_err(|_| SysError::new(what(), libc::EINVAL))
    }

    /// Sets such a limit, until the next probe of a driver. The device must not do DMA meanwhile.
    pub fn set_dma_limit(&self, file: &str, limit: u32) -> Result<(), SysError> {
        write_file(&self.path(file), &limit.to_string())
    }

    /// Start and length of a BAR, in CPU addresses.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is no such BAR.
    #[track_caller]
    pub fn bar(&self, bar: usize) -> Result<(u64, u64), Stop> {
        let text = fs::read_to_string(self.path("resource")).unwrap_or_default();
        let parse = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let found = text.lines().nth(bar).and_then(|line| {
            let mut words = line.split_whitespace().map(parse);
            let (start, end) = (words.next()??, words.next()??);
            (end > start).then(|| (start, end - start + 1))
        });
        found.ok_or_else(|| Stop::fail(format_args!("{} has no BAR {bar}", self.name)))
    }

    /// Maps a part of a BAR, which has to be whole pages.
    pub fn map_bar(&self, bar: u32, offset: u64, len: u64) -> Result<Map, SysError> {
        let path = self.path(&format!("resource{bar}"));
        let file = misc::open(&path)?;
        Map::new(file.as_raw_fd(), offset, len as usize)
    }

    /// Hops from a PCI root down to the device, itself included.
    pub fn route(&self) -> Vec<String> {
        let path = fs::canonicalize(self.path("")).unwrap_or_default();
        path.components()
            .map(|part| part.as_os_str().to_string_lossy().into_owned())
            .skip_while(|part| !part.starts_with("pci"))
            .collect()
    }

    /// Hops to another device: up to the bridge both share, and down again.
    ///
    /// This is computed from sysfs, so that the answer of the exporter can be compared with it.
    pub fn distance(&self, other: &Self) -> i32 {
        hops(&self.route(), &other.route())
    }

    /// Name of the IOMMU in front of it.
    pub fn iommu(&self) -> Option<String> {
        let link = fs::read_link(self.path("iommu")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    }

    /// Whether an IOMMU translates the addresses the device uses.
    pub fn translated(&self) -> bool {
        fs::read_to_string(self.path("iommu_group/type"))
            .is_ok_and(|kind| kind.trim().starts_with("DMA"))
    }
}

/// VRAM as the BAR shows it. Tests find the location of a buffer here, instead of asking the
/// driver.
#[derive(Debug)]
pub struct Bar {
    map: Map,
    start: u64,
}

impl Bar {
    /// Maps BAR 2 of a device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the file in sysfs cannot be mapped.
    #[track_caller]
    pub fn open(device: &PciDevice) -> Result<Self, Stop> {
        let (start, len) = device.bar(2)?;
        let mut last = None;
        for file in ["resource2_wc", "resource2"] {
            let path = device.path(file);
            let result =
                misc::open(&path).and_then(|file| Map::new(file.as_raw_fd(), 0, len as usize));
            match result {
                Ok(map) => return Ok(Self { map, start }),
                Err(error) => last = Some(error),
            }
        }
        let text = last.map(|error| error.to_string()).unwrap_or_default();
        Err(Stop::fail(format_args!(
            "cannot look at VRAM through BAR 2 of {}: {text}",
            device.name
        )))
    }

    /// CPU address of the BAR.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Whether a range of CPU addresses, start and length, is inside of the BAR.
    pub fn has(&self, (start, len): (u64, u64)) -> bool {
        self.start <= start && start + len <= self.start + self.len()
    }

    /// Whether a range of CPU addresses, start and length, overlaps the BAR.
    pub fn touches(&self, (start, len): (u64, u64)) -> bool {
        start < self.start + self.len() && self.start < start + len
    }

    /// Whether the BAR is empty, which it never is.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The word at a byte offset of the BAR.
    pub fn word(&self, offset: u64) -> u64 {
        self.map.read(offset as usize / 8)
    }

    /// The whole BAR.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Finds every page of a mapped buffer in the BAR.
    ///
    /// # Errors
    ///
    /// Fails the subtest if a page is not in the BAR, and so not in VRAM.
    #[track_caller]
    pub fn locate(&self, buffer: &Map) -> Result<Layout, Stop> {
        let found = self.find(buffer);
        let missing = found.iter().filter(|at| at.is_none()).count();
        check!(
            missing == 0,
            "{missing} of {} pages of the buffer are not in VRAM: they cannot be found in the BAR",
            found.len()
        );
        Ok(Layout {
            pages: found.into_iter().flatten().collect(),
        })
    }

    /// Looks for every page of a mapped buffer in the BAR; a page that is not there is not in VRAM.
    ///
    /// Two words at the start of every page are overwritten with a tag through the mapping of the
    /// buffer, searched in the BAR, and restored.
    pub fn find(&self, buffer: &Map) -> Vec<Option<u64>> {
        let nonce = misc::nonce() | 1;
        let tag = |page: usize| nonce.wrapping_add((page as u64) << 1);
        let pages = buffer.pages();
        let saved: Vec<_> = (0..pages)
            .map(|page| (buffer.read(page * WORDS), buffer.read(page * WORDS + 1)))
            .collect();
        let mut wanted = HashMap::with_capacity(pages);
        for page in 0..pages {
            buffer.write(page * WORDS, tag(page));
            buffer.write(page * WORDS + 1, !tag(page));
            wanted.insert(tag(page), page);
        }
        let mut found = vec![None; pages];
        for at in 0..self.map.pages() {
            let word = self.map.read(at * WORDS);
            if let Some(page) = wanted.get(&word) {
                if self.map.read(at * WORDS + 1) == !word {
                    found[*page] = Some(at as u64);
                }
            }
        }
        for (page, (first, second)) in saved.into_iter().enumerate() {
            buffer.write(page * WORDS, first);
            buffer.write(page * WORDS + 1, second);
        }
        found
    }
}

/// The location of the pages of a buffer, as page numbers of the BAR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pages: Vec<u64>,
}

impl Layout {
    /// A layout of given pages.
    pub fn new(pages: Vec<u64>) -> Self {
        Self { pages }
    }

    /// Offset in the BAR of a page of the buffer, in bytes.
    pub fn offset(&self, page: usize) -> u64 {
        self.pages[page] * PAGE as u64
    }

    /// Runs of adjacent pages, in the order of the buffer: offset in the BAR
    /// and length, in bytes.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let pages = self.pages.iter();
        misc::coalesce(pages.map(|page| (page * PAGE as u64, PAGE as u64)))
    }

    /// First and last page of every range, as page numbers of the buffer.
    pub fn boundary_pages(&self) -> Vec<usize> {
        let mut pages = Vec::new();
        let mut first = 0;
        for (_, len) in self.ranges() {
            let count = len as usize / PAGE;
            pages.push(first);
            if count > 1 {
                pages.push(first + count - 1);
            }
            first += count;
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_count_as_the_kernel_does() {
        let split = |text: &str| text.split('/').map(str::to_string).collect::<Vec<_>>();
        let count = |a: &str, b: &str| hops(&split(a), &split(b));
        assert_eq!(count("pci0/gpu", "pci0/edu"), 2);
        assert_eq!(count("pci0/rp1/gpu", "pci0/rp2/edu"), 4);
        assert_eq!(count("pci0/rp1/gpu", "pci0/rp1/edu"), 2);
        assert_eq!(count("pci0/rp1/up/d1/gpu", "pci0/rp1/up/d2/edu"), 4);
        assert_eq!(count("pci0/rp1/up/d1/gpu", "pci0/edu"), 5);
        assert_eq!(count("pci1/rp1/gpu", "pci0/rp2/edu"), 4);
    }

    #[test]
    fn addresses_are_numbers() {
        let address = PciDevice::named("10000:e1:1f.7").address();
        assert_eq!(
            (address.domain, address.bus, address.devfn),
            (0x10000, 0xe1, 0xff)
        );
        assert_eq!(
            PciDevice::named("virtio0").address(),
            PeerAddress::default()
        );
    }

    #[test]
    fn addresses_are_told_from_other_names() {
        for name in ["0000:03:00.0", "10000:e1:1f.7"] {
            assert!(is_address(name), "{name}");
        }
        for name in [
            "",
            "pci0000:00",
            "virtio0",
            "0000:03:00",
            "0000:00.0",
            "0000:3:00.0",
        ] {
            assert!(!is_address(name), "{name}");
        }
    }

    #[test]
    fn ranges_join_adjacent_pages_only() {
        let layout = Layout::new(vec![7, 8, 3, 4, 5, 9]);
        assert_eq!(
            layout.ranges(),
            vec![(0x7000, 0x2000), (0x3000, 0x3000), (0x9000, 0x1000)]
        );
        assert_eq!(layout.boundary_pages(), vec![0, 1, 2, 4, 5]);
        assert_eq!(layout.offset(2), 0x3000);
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The invariants of the harness: values that a subtest must leave as they were.
//!
//! [`Watch`] looks at them before the first subtest of a program and after each one, also if it has
//! failed or was skipped. A look is a [`Snapshot`]: a number for each value of each device. The
//! snapshot after a subtest is the one before the next, so that each subtest costs one look, and a
//! leak is reported for the subtest that has left it, once.
//!
//! # What is watched
//!
//! [`Value`] lists it. For each DRM device of ours it is what the driver counts (the files in
//! debugfs: free and pinned VRAM, what holders of pins have, windows, address spaces, page tables,
//! jobs, objects, importers), and what the operator can set. For the kernel: the modules'
//! users, the objects of TTM and their pages, all dma-bufs and importers, the charges of the cgroup
//! controller dmem, the DMA mappings of our drivers, and which device has which driver and nodes.
//! [`crate::igt`] itself looks for file descriptors and processes that a subtest has left.
//!
//! A file that the driver should have and that cannot be read, or not be parsed, is a difference
//! ([`Value::Unreadable`]), so that a renamed file does not turn the check off.
//!
//! # What is pinned is where it was pinned
//!
//! VRAM that is charged as pinned has to be the size of the pinned objects that the listing has in
//! VRAM ([`Value::Misplaced`]). Subtests seldom leave pins. So a kernel with
//! `CONFIG_RUST_DEBUG_ASSERTIONS` also warns at an unpin of an object that has left VRAM since, and
//! the warning is a failure of the boot.
//!
//! # Values that settle late
//!
//! A worker frees objects, and so do tasks that are being killed. So a look is repeated for some
//! seconds while it differs.
//!
//! Pages of TTM are counted for each processor, and the sum lags behind. Only a sum that differs is
//! made exact before it is compared. The list of DMA mappings is long to read, so it is read only
//! if the number of all mappings of the kernel has changed. A leak that is missed for one of these
//! reasons shows in a later subtest of the program.
//!
//! # Changes on purpose
//!
//! A subtest declares the values that it leaves changed:
//!
//! ```ignore
//! igt_main! {
//!     "reported", "a write to what is not mapped is reported", reported, changes: [Reports];
//! }
//! ```
//!
//! Counters ([`Value::is_counter`]) begin again when a driver is bound, so only a larger number is
//! a difference.
//!
//! # What is not watched
//!
//! Our code has no slab caches of its own; leaks of other allocations are found by kmemleak, and by
//! `vvram_leaks`. Parameters of our modules are not in sysfs. Fences have no list in the kernel:
//! one that is not signalled keeps its job, or shows with its dma-buf. Resets, moves and lost
//! objects are counted events, which subtests check where they make them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::auxiliary;
use crate::cgroup;
use crate::debugfs::{self, mounted, Buffer, Counter};
use crate::drm;
use crate::mgpu;
use crate::misc;
use crate::pci::PciDevice;
use crate::rebind::module_users;

/// How long values may take to be as before.
const SETTLE: Duration = Duration::from_secs(5);

/// Modules whose users are counted: ours, those that have our buffers, and those that tests load.
const MODULES: [&str; 8] = [
    "vvram",
    "mgpu",
    "avram",
    "edu_peer",
    "bar_export",
    "vgem",
    "rdma_rxe",
    "ib_uverbs",
];
/// Drivers whose DMA mappings are counted.
const MAPPERS: [&str; 5] = ["vvram", "mgpu", "avram", "edu_peer", "bar_export"];

/// A value that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// A file that cannot be read or parsed. Such a file is always a difference.
    Unreadable,
    /// The driver of a device.
    Bound,
    /// The nodes of a device in /dev.
    Nodes,
    /// What can be set: limits, policies, power management.
    Settings,
    /// VRAM that is free, in bytes.
    Free,
    /// VRAM that is pinned, in bytes.
    Pinned,
    /// VRAM that is charged as pinned, and not the place of a pinned object, in bytes.
    Misplaced,
    /// VRAM that importers which cannot be revoked have pinned, in bytes.
    Held,
    /// VRAM that holds memory of processes, in bytes.
    Processes,
    /// VRAM that only direct I/O keeps, in bytes.
    DirectIo,
    /// Objects, by their placement.
    Objects,
    /// Objects that are exported, and objects that only importers keep.
    Exported,
    /// Importers that are attached to objects, and those that have mapped or pinned them.
    Importers,
    /// Mappings in address spaces.
    Mappings,
    /// The part of the aperture that no window uses, in bytes.
    Aperture,
    /// VRAM that is not allocated before a reset, in bytes.
    Quarantined,
    /// Rules of the device that its driver has broken.
    Reports,
    /// System memory of objects that engines reach, in bytes.
    DmaMapped,
    /// Address spaces that can still be made, and the memory of page tables.
    Contexts,
    /// Jobs of the rings.
    Jobs,
    /// Objects of TTM, also those that are being freed.
    TtmObjects,
    /// System memory of TTM in use, in kB.
    TtmPages,
    /// Charges of the cgroup controller dmem, in bytes.
    Charged,
    /// dma-bufs of the kernel, by exporter.
    DmaBufs,
    /// Attachments of dma-bufs, by importer.
    Attachments,
    /// DMA mappings, by driver and device.
    Dma,
    /// Users of a module.
    Users,
}

impl Value {
    /// Whether it only grows while the driver is bound, and begins again with 0.
    fn is_counter(self) -> bool {
        self == Self::Reports
    }
}

/// The values at one time: by the value, and by what it is a value of. One that is 0 is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Snapshot(BTreeMap<(Value, String), u64>);

impl Snapshot {
    fn add(&mut self, value: Value, of: impl Into<String>, number: u64) {
        if number != 0 {
            *self.0.entry((value, of.into())).or_default() += number;
        }
    }

    /// Adds what `parse` finds in a file, which has to be there.
    fn read(&mut self, path: &Path, parse: impl FnOnce(&mut Self, &str) -> Option<()>) {
        let text = fs::read_to_string(path).ok();
        if text.and_then(|text| parse(self, &text)).is_none() {
            self.add(Value::Unreadable, path.display().to_string(), 1);
        }
    }

    /// Adds a file with one number.
    fn number(&mut self, value: Value, of: &str, path: &Path) {
        self.read(path, |all, text| {
            all.add(value, of, text.trim().parse().ok()?);
            Some(())
        });
    }

    /// Adds counters of a device, which are all in one file.
    fn counters(&mut self, name: &str, folder: &Path, list: &[(Value, &str, Counter)]) {
        let Some((_, _, first)) = list.first() else {
            return;
        };
        self.read(&folder.join(first.file()), |all, text| {
            for (value, what, counter) in list {
                all.add(*value, format!("{name}{what}"), counter.find(text)?);
            }
            Some(())
        });
    }

    /// Adds a file with one word, as a setting of a device.
    fn setting(&mut self, device: &str, folder: &Path, file: &str) {
        self.read(&folder.join(file), |all, text| {
            let setting = format!("{device}, {file} = {}", text.trim());
            all.add(Value::Settings, setting, 1);
            Some(())
        });
    }

    /// The differences to a later snapshot, but for the values that may change.
    fn differences(&self, after: &Self, changes: &[Value]) -> Vec<String> {
        let keys: BTreeSet<_> = self.0.keys().chain(after.0.keys()).collect();
        let number = |snapshot: &Self, key| snapshot.0.get(key).copied().unwrap_or(0);
        keys.into_iter()
            .filter_map(|key| {
                let (value, of) = key;
                let (then, now) = (number(self, key), number(after, key));
                let differs = match value {
                    Value::Unreadable => now != 0,
                    value if value.is_counter() => now > then,
                    _ => now != then,
                };
                (differs && !changes.contains(value))
                    .then(|| format!("{value:?} of {of}: {then} before, {now} after"))
            })
            .collect()
    }
}

/// The file `buffers`: what there is of each kind, and returns how many bytes of VRAM are pinned.
fn count_buffers(all: &mut Snapshot, device: &str, buffers: &[Buffer]) -> u64 {
    let mut pinned = 0;
    for buffer in buffers {
        let placement = &buffer.placement;
        all.add(Value::Objects, format!("{device}, {placement}"), 1);
        all.add(Value::Exported, device, buffer.exported.into());
        all.add(
            Value::Exported,
            format!("{device}, orphan"),
            buffer.orphan.into(),
        );
        if buffer.pinned && placement == "vram" {
            pinned += buffer.size;
        }
        for importer in &buffer.importers {
            if importer.path == "refused" {
                continue;
            }
            let by = format!("{device}, by {}", importer.device);
            all.add(Value::Importers, &by, 1);
            for state in ["mapped", "pinned"] {
                let is = importer.flags.iter().any(|flag| flag == state);
                all.add(Value::Importers, format!("{by}, {state}"), is.into());
            }
        }
    }
    pinned
}

/// The file `unrevocable`.
fn unrevocable(all: &mut Snapshot, device: &str, text: &str) -> Option<()> {
    let words = debugfs::words(text);
    all.add(Value::Held, device, words.get("held")?.parse().ok()?);
    let limit = words.get("limit").unwrap_or(&"");
    let policy = words.get("policy")?;
    all.add(Value::Settings, format!("{device} {policy} {limit}"), 1);
    Some(())
}

/// The list of all dma-bufs.
fn dma_bufs(all: &mut Snapshot, text: &str) -> Option<()> {
    let (mut devices, mut count) = (false, 0);
    for line in text.lines() {
        let columns: Vec<_> = line.split('\t').collect();
        match columns.as_slice() {
            [_, "Attached Devices:"] => devices = true,
            ["", device] if devices => all.add(Value::Attachments, *device, 1),
            // Not the headline.
            [size, _, _, _, exporter, _, _] if size.parse::<u64>().is_ok() => {
                count += 1;
                all.add(Value::DmaBufs, *exporter, 1);
            }
            _ => devices = devices && !line.starts_with("Total"),
        }
    }
    // The last line.
    let said = text.lines().rev().find(|line| !line.is_empty())?;
    let said = said.strip_prefix("Total ")?.split(' ').next()?;
    (said.parse() == Ok(count)).then_some(())
}

/// The file `dmem.current` of the root group, without the regions of other drivers.
fn charges(all: &mut Snapshot, text: &str) -> Option<()> {
    for line in text.lines() {
        let (region, bytes) = line.split_once(' ')?;
        if region.starts_with("drm/") {
            all.add(Value::Charged, region, bytes.parse().ok()?);
        }
    }
    Some(())
}

/// The list of DMA mappings: how many each device of our drivers has.
fn dma_mappings(text: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        if let (Some(driver), Some(device)) = (words.next(), words.next()) {
            if MAPPERS.contains(&driver) {
                *counts.entry(format!("{driver} {device}")).or_default() += 1;
            }
        }
    }
    counts
}

/// Reads a file with one number.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The DMA mappings of our drivers, as dma-debug counts them.
#[derive(Debug)]
struct Dma {
    folder: PathBuf,
    /// How many mappings the kernel had when the list was read.
    all: Option<u64>,
    ours: BTreeMap<String, u64>,
    reads: u32,
}

impl Dma {
    /// `None` on a kernel that does not check the use of DMA mappings.
    fn find(root: &Path) -> Option<Self> {
        let folder = root.join("dma-api");
        folder.join("dump").exists().then_some(Self {
            folder,
            all: None,
            ours: BTreeMap::new(),
            reads: 0,
        })
    }

    fn add_to(&mut self, all: &mut Snapshot) {
        // A check that has run out of memory lists nothing any more: what it has listed last stays.
        let disabled = fs::read_to_string(self.folder.join("disabled"));
        let works = !disabled.is_ok_and(|text| text.trim() == "Y");
        let value = |name| number(&self.folder.join(name));
        let now = (|| value("nr_total_entries")?.checked_sub(value("num_free_entries")?))();
        if works && (now.is_none() || now != self.all) {
            let path = self.folder.join("dump");
            let ours = &mut self.ours;
            all.read(&path, |_, text| {
                *ours = dma_mappings(text);
                Some(())
            });
            self.all = now;
            self.reads += 1;
        }
        for (of, count) in &self.ours {
            all.add(Value::Dma, of, *count);
        }
    }
}

/// The watch over all values.
#[derive(Debug)]
pub struct Watch {
    /// Where debugfs is mounted.
    root: PathBuf,
    /// The root of all groups, if the kernel has the controller.
    charges: Option<PathBuf>,
    devices: Vec<PciDevice>,
    dma: Option<Dma>,
    before: Snapshot,
    looks: u32,
    /// How long the looks took that found nothing.
    time: Duration,
}

impl Watch {
    /// Takes the first look.
    ///
    /// # Errors
    ///
    /// Fails if debugfs cannot be mounted, or if a value cannot be read.
    pub fn begin() -> Result<Self, String> {
        let root = mounted("debugfs", "/sys/kernel/debug").map_err(|stop| stop.text().to_string());
        let root = root?;
        let charges = cgroup::root().ok().map(|root| root.join("dmem.current"));
        let mut devices = PciDevice::vvrams();
        devices.extend(PciDevice::mgpus());
        devices.extend(PciDevice::edu());
        let mut watch = Self {
            dma: Dma::find(&root),
            root,
            charges: charges.filter(|path| path.exists()),
            devices,
            before: Snapshot::default(),
            looks: 0,
            time: Duration::ZERO,
        };
        watch.before = watch.look();
        let unreadable = Snapshot::default().differences(&watch.before, &[]);
        let unreadable = unreadable
            .into_iter()
            .filter(|text| text.starts_with("Unreadable"));
        match unreadable.collect::<Vec<_>>() {
            none if none.is_empty() => Ok(watch),
            some => Err(some.join("\n")),
        }
    }

    /// Looks at all values after a subtest, and waits until they are as before it.
    ///
    /// # Errors
    ///
    /// Names the values that are not, but for those in `changes`.
    pub fn check(&mut self, changes: &[Value]) -> Result<(), String> {
        let mut after = Snapshot::default();
        let mut differences = Vec::new();
        let same = misc::poll(SETTLE, || {
            let start = Instant::now();
            after = self.look();
            differences = self.before.differences(&after, changes);
            if !differences.is_empty() {
                return None;
            }
            self.looks += 1;
            self.time += start.elapsed();
            Some(())
        });
        self.before = after;
        match same {
            Some(()) => Ok(()),
            None => Err(differences.join("\n")),
        }
    }

    /// How many values there were in the last look, and how often and for how long all looks took
    /// that found no difference.
    pub fn summary(&self) -> String {
        format!(
            "# invariants: {} values, {} looks of {} us, the DMA mappings read {} times",
            self.before.0.len(),
            self.looks,
            self.time.as_micros() / u128::from(self.looks.max(1)),
            self.dma.as_ref().map_or(0, |dma| dma.reads),
        )
    }

    fn look(&mut self) -> Snapshot {
        let mut all = Snapshot::default();
        for module in MODULES {
            let users = module_users(module).unwrap_or(0);
            all.add(Value::Users, module, users.try_into().unwrap_or(u64::MAX));
        }
        let path = self.root.join("ttm/buffer_objects");
        all.number(Value::TtmObjects, "all devices", &path);
        for pci in &self.devices {
            self.device(&mut all, pci);
        }
        self.pages(&mut all);
        all.read(&self.root.join("dma_buf/bufinfo"), dma_bufs);
        if let Some(path) = &self.charges {
            all.read(path, charges);
        }
        if let Some(dma) = &mut self.dma {
            dma.add_to(&mut all);
        }
        all
    }

    /// The pages of TTM. The exact sum is taken only if it seems to have changed.
    fn pages(&self, all: &mut Snapshot) {
        const OF: &str = "all devices";
        let before = self.before.0.get(&(Value::TtmPages, OF.to_string()));
        let mut now = misc::rough_meminfo("GPUActive").unwrap_or(0);
        if before.copied().unwrap_or(0) != now {
            now = misc::meminfo("GPUActive").unwrap_or(0);
        }
        all.add(Value::TtmPages, OF, now);
    }

    fn device(&self, all: &mut Snapshot, pci: &PciDevice) {
        let Some(driver) = pci.driver() else {
            return;
        };
        all.add(Value::Bound, format!("{} {driver}", pci.name()), 1);
        // The delay of the autosuspend has no effect as long as this is "on", as it is at first.
        all.setting(pci.name(), &pci.path(""), "power/control");
        match driver.as_str() {
            drm::DRIVER => self.drm(all, pci.name(), &driver, &pci.path("")),
            mgpu::DRIVER | auxiliary::DRIVER => {
                // The auxiliary device.
                let prefix = format!("{driver}.");
                let below = fs::read_dir(pci.path("")).into_iter().flatten().flatten();
                let mut cards = below.map(|entry| entry.path());
                let is_card = |path: &PathBuf| {
                    let name = path.file_name().unwrap_or_default();
                    name.to_string_lossy().starts_with(&prefix)
                };
                match cards.find(is_card) {
                    Some(card) => self.drm(all, pci.name(), &driver, &card),
                    None => all.add(Value::Unreadable, format!("cards of {}", pci.name()), 1),
                }
            }
            _ => {
                let node = format!("/dev/edu-peer-{}", pci.name());
                all.add(Value::Nodes, &node, Path::new(&node).exists().into());
            }
        }
    }

    /// The DRM device of a PCI device, whose parent in sysfs is `device`: that device itself, or an
    /// auxiliary device, which has another number when it is made again.
    fn drm(&self, all: &mut Snapshot, name: &str, driver: &str, device: &Path) {
        // A folder ends with its name, also if the path has a slash at its end.
        let parent = device.file_name().unwrap_or_default();
        for entry in fs::read_dir(device.join("drm")).into_iter().flatten() {
            let Ok(node) = entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
            else {
                continue;
            };
            // A device that is made again may have another number.
            let kind = node.trim_end_matches(|digit: char| digit.is_ascii_digit());
            all.add(Value::Nodes, format!("{name} {kind}"), 1);
        }
        let folder = self.root.join("dri").join(parent);
        let mut pinned_there = 0;
        // The lists are empty if no device has an object. Only the first look reads them anyway.
        let objects = (Value::TtmObjects, "all devices".to_string());
        let listed = self.looks == 0 || driver == auxiliary::DRIVER || all.0.contains_key(&objects);
        if listed {
            all.read(&folder.join("buffers"), |all, text| {
                pinned_there = count_buffers(all, name, &debugfs::parse(text)?);
                Some(())
            });
        }
        all.read(&folder.join("unrevocable"), |all, text| {
            unrevocable(all, name, text)
        });
        if driver == auxiliary::DRIVER {
            // It has no TTM, and nothing that could be pinned elsewhere.
            all.read(&folder.join("usage"), |all, text| {
                let used = debugfs::words(text).get("used")?.parse().ok()?;
                all.add(Value::Free, format!("{name}, used"), used);
                Some(())
            });
            return;
        }
        let counters = [
            (Value::Free, "", Counter::VramFree),
            (Value::Pinned, "", Counter::VramPinned),
            (Value::DirectIo, "", Counter::DirectIoBusy),
            (Value::Quarantined, "", Counter::Quarantined),
            (Value::DmaMapped, "", Counter::DmaMapped),
        ];
        all.counters(name, &folder, &counters);
        for file in ["pin_limit", "client_pin_limit"] {
            all.setting(name, &folder, file);
        }
        if driver == mgpu::DRIVER {
            all.number(Value::Reports, name, &folder.join("reports"));
            let counters = [
                (Value::Jobs, ", copy", Counter::CopyJobs),
                (Value::Jobs, ", compute", Counter::ComputeJobs),
                (Value::Aperture, "", Counter::ApertureFree),
            ];
            all.counters(name, &folder, &counters);
            let counters = [
                (Value::Contexts, ", address spaces", Counter::Vms),
                (Value::Contexts, ", tables", Counter::PageTables),
            ];
            all.counters(name, &folder, &counters);
        } else {
            let counters = [(Value::Processes, "", Counter::SvmVram)];
            all.counters(name, &folder, &counters);
            if listed {
                all.read(&folder.join("spaces"), |all, text| {
                    all.add(Value::Mappings, name, text.lines().count() as u64);
                    Some(())
                });
            }
        }
        let pinned = all.0.get(&(Value::Pinned, name.to_string()));
        let misplaced = pinned.copied().unwrap_or(0).abs_diff(pinned_there);
        all.add(Value::Misplaced, name, misplaced);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(values: &[(Value, &str, u64)]) -> Snapshot {
        let mut all = Snapshot::default();
        for (value, of, number) in values {
            all.add(*value, *of, *number);
        }
        all
    }

    #[test]
    fn differences() {
        use Value::{Bound, Free, Reports, Unreadable};
        let before = snapshot(&[(Free, "a", 8), (Reports, "a", 2), (Bound, "a x", 1)]);
        assert!(before.differences(&before, &[]).is_empty());
        let after = snapshot(&[(Free, "a", 4), (Reports, "a", 3)]);
        assert_eq!(
            before.differences(&after, &[]),
            [
                "Bound of a x: 1 before, 0 after",
                "Free of a: 8 before, 4 after",
                "Reports of a: 2 before, 3 after",
            ]
        );
        assert_eq!(
            before.differences(&after, &[Reports, Bound]),
            ["Free of a: 8 before, 4 after"]
        );
        // More is a difference as well. A counter may begin again.
        let after = snapshot(&[(Free, "a", 9), (Reports, "a", 1), (Bound, "a x", 1)]);
        assert_eq!(
            before.differences(&after, &[]),
            ["Free of a: 8 before, 9 after"]
        );
        // A file that could not be read before either is a failure.
        let broken = snapshot(&[(Unreadable, "f", 1)]);
        assert_eq!(
            broken.differences(&broken, &[]),
            ["Unreadable of f: 1 before, 1 after"]
        );
    }

    #[test]
    fn buffers_are_counted() {
        let text = "buffer id=7 size=8192 domain=either vram_or_fail=0 placement=vram visible=4096 pinned=1 exported=1 ino=12 orphan=1 client=3 name=a pid=77 comm=x\n\
                    \timporter=p driver=edu_peer path=bus reason=none hops=4 flags=mapped,dynamic,pinned\n\
                    \timporter=x driver=y path=refused reason=quota hops=-1 flags= age_ms=3\n\
                    buffer id=9 size=4096 domain=either vram_or_fail=0 placement=system visible=0 pinned=1 exported=0 ino=0\n";
        let mut all = Snapshot::default();
        let pinned = count_buffers(&mut all, "d", &debugfs::parse(text).unwrap());
        assert_eq!(pinned, 8192);
        let want = snapshot(&[
            (Value::Objects, "d, vram", 1),
            (Value::Objects, "d, system", 1),
            (Value::Exported, "d", 1),
            (Value::Exported, "d, orphan", 1),
            (Value::Importers, "d, by p", 1),
            (Value::Importers, "d, by p, mapped", 1),
            (Value::Importers, "d, by p, pinned", 1),
        ]);
        assert_eq!(all, want);
    }

    #[test]
    fn files_are_parsed() {
        let mut all = Snapshot::default();
        assert!(unrevocable(&mut all, "d", "policy=limit limit=4096 held=12\n").is_some());
        assert!(charges(&mut all, "drm/d/vram0 5\ndrm/d/pinned 0\nother/x 7\n").is_some());
        let want = snapshot(&[
            (Value::Held, "d", 12),
            (Value::Settings, "d limit 4096", 1),
            (Value::Charged, "drm/d/vram0", 5),
        ]);
        assert_eq!(all, want);
        assert!(unrevocable(&mut all, "d", "policy=accept\n").is_none());
        assert!(charges(&mut all, "drm/d/vram0\n").is_none());
    }

    #[test]
    fn dma_bufs_are_counted() {
        let head = "\nDma-buf Objects:\nsize    \tflags   \tmode    \tcount   \texp_name\tino     \tname\n";
        let one = "00004096\t00000002\t00080007\t00000002\tvvram\t00000007\t<none>\n\
                   \tread fence:drm_queue vvram seq 3 signalled\n\
                   \tAttached Devices:\n\t0000:02:00.0\n\t0000:02:00.0\nTotal 2 devices attached\n\n";
        let two = "00008192\t00000002\t00080007\t00000001\tbar_export\t00000008\t<none>\n\
                   \tAttached Devices:\nTotal 0 devices attached\n\n";
        let text = format!("{head}{one}{two}\nTotal 2 objects, 12288 bytes\n");
        let mut all = Snapshot::default();
        assert!(dma_bufs(&mut all, &text).is_some());
        let want = snapshot(&[
            (Value::DmaBufs, "vvram", 1),
            (Value::DmaBufs, "bar_export", 1),
            (Value::Attachments, "0000:02:00.0", 2),
        ]);
        assert_eq!(all, want);
        let none = format!("{head}\nTotal 0 objects, 0 bytes\n");
        assert!(dma_bufs(&mut Snapshot::default(), &none).is_some());
        // Another format is not taken for an empty list.
        let other = format!("{head}\nTotal 1 objects, 4096 bytes\n");
        assert!(dma_bufs(&mut Snapshot::default(), &other).is_none());
        assert!(dma_bufs(&mut Snapshot::default(), "").is_none());
    }

    #[test]
    fn only_our_mappings_are_counted() {
        let text = "vvram 0000:01:00.0 single idx 4 P=0x1 D=1 L=1000 cln=0x1 DMA_TO_DEVICE dma map error checked attrs=0x0\n\
                    vvram 0000:01:00.0 scather-gather idx 5 P=0x1 D=1 L=1000 cln=0x1 DMA_TO_DEVICE dma map error checked attrs=0x0\n\
                    virtio-pci 0000:00:05.0 single idx 6 P=0x1 D=1 L=1000 cln=0x1 DMA_TO_DEVICE dma map error checked attrs=0x0\n";
        let want = BTreeMap::from([("vvram 0000:01:00.0".to_string(), 2)]);
        assert_eq!(dma_mappings(text), want);
    }
}

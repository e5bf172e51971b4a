// SPDX-License-Identifier: GPL-2.0

//! The files of the driver in debugfs.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::misc;
use crate::pci::PciDevice;
use crate::{Outcome, Stop, SysError};

/// Mounts a file system of the kernel, unless it is mounted.
///
/// # Errors
///
/// Fails the subtest if it cannot be mounted.
#[track_caller]
pub fn mounted(kind: &str, at: &str) -> Result<PathBuf, Stop> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let there = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(at) && words.next() == Some(kind)
    };
    if !mounts.lines().any(there) {
        let status = Command::new("mount").args(["-t", kind, kind, at]).status();
        check!(
            status.as_ref().is_ok_and(|status| status.success()),
            "mount -t {kind} {kind} {at}: {status:?}"
        );
    }
    Ok(PathBuf::from(at))
}

/// Words of the form `name=value`.
pub fn words(text: &str) -> BTreeMap<&str, &str> {
    text.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .collect()
}

/// One importer below a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Importer {
    /// Name of the device.
    pub device: String,
    /// Name of its driver.
    pub driver: String,
    /// Name of the path.
    pub path: String,
    /// Name of the reason.
    pub reason: String,
    /// PCI hops, or -1.
    pub hops: i32,
    /// Names of the flags.
    pub flags: Vec<String>,
    /// The line has the age of a refusal.
    pub has_age: bool,
}

/// One buffer of the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its number.
    pub id: u64,
    /// In bytes.
    pub size: u64,
    /// Where it may be placed: `vram`, `system` or `either`.
    pub domain: String,
    /// Importers get it in VRAM or not at all.
    pub vram_or_fail: bool,
    /// Where it is: `none`, `vram`, `system` or `swappable`.
    pub placement: String,
    /// It is pinned.
    pub pinned: bool,
    /// It has a dma-buf.
    pub exported: bool,
    /// Its inode, or 0.
    pub inode: u64,
    /// Bytes in VRAM that the BAR shows.
    pub visible: u64,
    /// Only importers keep it.
    pub orphan: bool,
    /// The client that exported it, or 0.
    pub client: u64,
    /// Its name, or that of the client.
    pub name: String,
    /// The process that exported it, or 0.
    pub pid: u32,
    /// The name of that.
    pub comm: String,
    /// Its importers, and those that were refused.
    pub importers: Vec<Importer>,
}

/// Parses the listing.
pub(crate) fn parse(text: &str) -> Option<Vec<Buffer>> {
    let mut buffers: Vec<Buffer> = Vec::new();
    for line in text.lines() {
        let words = words(line);
        let text = |name: &str| Some((*words.get(name)?).to_string());
        let flag = |name: &str| Some(*words.get(name)? == "1");
        if line.starts_with("buffer ") {
            buffers.push(Buffer {
                id: words.get("id")?.parse().ok()?,
                size: words.get("size")?.parse().ok()?,
                domain: text("domain")?,
                vram_or_fail: flag("vram_or_fail")?,
                placement: text("placement")?,
                pinned: flag("pinned")?,
                exported: flag("exported")?,
                inode: words.get("ino")?.parse().ok()?,
                visible: words.get("visible")?.parse().ok()?,
                orphan: words.get("orphan").is_some_and(|word| *word == "1"),
                client: words.get("client").unwrap_or(&"0").parse().ok()?,
                name: text("name").unwrap_or_default(),
                pid: words.get("pid").unwrap_or(&"0").parse().ok()?,
                comm: text("comm").unwrap_or_default(),
                importers: Vec::new(),
            });
        } else {
            let flags = words.get("flags")?.split(',');
            buffers.last_mut()?.importers.push(Importer {
                device: text("importer")?,
                driver: text("driver")?,
                path: text("path")?,
                reason: text("reason")?,
                hops: words.get("hops")?.parse().ok()?,
                flags: flags
                    .filter(|flag| !flag.is_empty())
                    .map(str::to_string)
                    .collect(),
                has_age: words.contains_key("age_ms"),
            });
        }
    }
    Some(buffers)
}

/// Counters, by the name of the counter and the reason.
pub type Counters = BTreeMap<(String, String), u64>;

/// The differences between two states of the counters, without those that did not change.
pub fn difference(before: &Counters, after: &Counters) -> Vec<(String, String, u64)> {
    after
        .iter()
        .filter_map(|(key, now)| {
            let then = before.get(key).copied().unwrap_or(0);
            (*now != then).then(|| (key.0.clone(), key.1.clone(), now.wrapping_sub(then)))
        })
        .collect()
}

/// A number about all clients of a device together, which its driver shows to root only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// How often the content of an object was moved to or from VRAM.
    Moves,
    /// Free VRAM, in bytes.
    VramFree,
    /// Pinned VRAM, in bytes.
    VramPinned,
    /// VRAM that is not mapped any more, but that direct I/O still accesses, in bytes.
    DirectIoBusy,
    /// VRAM that is not allocated before a reset, in bytes.
    Quarantined,
    /// System memory that the engines reach, in bytes.
    DmaMapped,
    /// Objects that have lost their content.
    Losses,
    /// Jobs that the CPU has done instead of an engine.
    DoneAgain,
    /// vvram: VRAM that holds memory of processes, in bytes.
    SvmVram,
    /// vvram: pages of processes that were moved back.
    SvmMovedBack,
    /// mgpu: how much of the aperture no window uses, in bytes.
    ApertureFree,
    /// mgpu: resets of the ring of the copy engine.
    CopyResets,
    /// mgpu: resets of the ring of the compute engine.
    ComputeResets,
    /// mgpu: jobs of the ring of the copy engine.
    CopyJobs,
    /// mgpu: jobs of the ring of the compute engine.
    ComputeJobs,
    /// mgpu: address spaces.
    Vms,
    /// mgpu: memory of page tables, in bytes.
    PageTables,
}

impl Counter {
    /// The file, and the first word of the line.
    const fn at(self) -> (&'static str, &'static str) {
        match self {
            Self::Moves => ("counters", "moves"),
            Self::VramFree => ("memory", "free"),
            Self::VramPinned => ("memory", "pinned"),
            Self::DirectIoBusy => ("memory", "referenced"),
            Self::Quarantined => ("memory", "quarantined"),
            Self::DmaMapped => ("memory", "dma_mapped"),
            Self::Losses => ("memory", "lost"),
            Self::DoneAgain => ("memory", "done_again"),
            Self::SvmVram => ("svm", "held"),
            Self::SvmMovedBack => ("svm", "moved_back"),
            Self::ApertureFree => ("state", "aperture_free"),
            Self::CopyResets => ("state", "copy_resets"),
            Self::ComputeResets => ("state", "compute_resets"),
            Self::CopyJobs => ("state", "copy_jobs"),
            Self::ComputeJobs => ("state", "compute_jobs"),
            Self::Vms => ("vms", "count"),
            Self::PageTables => ("vms", "page_tables"),
        }
    }

    /// The name of its file.
    pub const fn file(self) -> &'static str {
        self.at().0
    }

    /// Finds it in the text of its file.
    pub fn find(self, text: &str) -> Option<u64> {
        let mut lines = text.lines().map(str::split_whitespace);
        let mut line = lines.find(|line| line.clone().next() == Some(self.at().1))?;
        line.next_back()?.parse().ok()
    }
}

/// Reads a counter of the device behind an open DRM file.
///
/// # Errors
///
/// Any error of the file in debugfs; `ENOENT` if the device is gone.
pub fn counter(file: &File, counter: Counter) -> Result<u64, SysError> {
    let metadata = file.metadata();
    let metadata = metadata.map_err(|error| SysError::io("fstat() of a DRM file", &error))?;
    let root = mounted("debugfs", "/sys/kernel/debug");
    let root = root.map_err(|stop| SysError::new(stop.text(), 0))?;
    // A link to the folder of the device, for as long as that is registered.
    // SAFETY: only some versions of the crate have the function unsafe.
    #[allow(unused_unsafe)]
    let minor = unsafe { libc::minor(metadata.rdev()) };
    let folder = root.join(format!("dri/{minor}"));
    let path = folder.join(counter.file());
    // The node of a device that is being registered is there a moment before the files.
    let opened = misc::poll(Duration::from_secs(1), || match open(&path, true) {
        Err(error) if error.errno == libc::ENOENT => None,
        opened => Some(opened),
    });
    let text = read(&mut opened.unwrap_or_else(|| open(&path, true))?, &path)?;
    let found = counter.find(&text);
    found.ok_or_else(|| SysError::new(format!("finding {counter:?} in {}", path.display()), 0))
}

/// The directory of a device.
#[derive(Debug)]
pub struct DebugFs {
    dir: PathBuf,
}

impl DebugFs {
    /// Finds it.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it is not there.
    #[track_caller]
    pub fn open(device: &PciDevice) -> Result<Self, Stop> {
        let root = mounted("debugfs", "/sys/kernel/debug")?;
        let dir = root.join("dri").join(device.name());
        check!(dir.is_dir(), "{} is not there", dir.display());
        Ok(Self { dir })
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Reads all of a file.
    pub fn read(&self, name: &str) -> Result<String, SysError> {
        let path = self.path(name);
        read(&mut open(&path, true)?, &path)
    }

    /// Writes a text to a file, at once.
    pub fn write(&self, name: &str, text: &str) -> Result<(), SysError> {
        let path = self.path(name);
        write(&mut open(&path, false)?, &path, text)
    }

    /// Moves the object with this number to "vram" or "system", even if it need not move.
    pub fn force(&self, id: u64, place: &str) -> Result<(), SysError> {
        self.write("move", &format!("{id} {place}"))
    }

    /// The listing.
    ///
    /// # Errors
    ///
    /// Any error of the file, or a line that cannot be parsed.
    #[track_caller]
    pub fn buffers(&self) -> Result<Vec<Buffer>, Stop> {
        let text = self.read("buffers")?;
        match parse(&text) {
            Some(buffers) => Ok(buffers),
            None => Err(Stop::fail(format_args!("not a listing:\n{text}"))),
        }
    }

    /// One buffer of the listing.
    ///
    /// # Errors
    ///
    /// As for the listing, or if the buffer is not there.
    #[track_caller]
    pub fn buffer(&self, id: u64) -> Result<Buffer, Stop> {
        let buffers = self.buffers()?;
        match buffers.iter().find(|buffer| buffer.id == id) {
            Some(buffer) => Ok(buffer.clone()),
            None => Err(Stop::fail(format_args!(
                "buffer {id} is not among {buffers:?}"
            ))),
        }
    }

    /// Checks how much importers hold that cannot be revoked.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it is another number of bytes.
    #[track_caller]
    pub fn held(&self, want: u64) -> Outcome {
        let text = self.read("unrevocable")?;
        let held = words(&text).get("held").map(|word| (*word).to_string());
        check_eq!(held, Some(want.to_string()), "bytes held");
        Ok(())
    }

    /// The counters.
    ///
    /// # Errors
    ///
    /// Any error of the file, or a line that cannot be parsed.
    #[track_caller]
    pub fn counters(&self) -> Result<Counters, Stop> {
        let text = self.read("counters")?;
        let mut counters = Counters::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let parsed = match words.as_slice() {
                [event, reason, count] => count
                    .parse()
                    .map(|count| (((*event).into(), (*reason).into()), count))
                    .ok(),
                _ => None,
            };
            let Some((key, count)) = parsed else {
                fail!("not a counter: {line:?}");
            };
            let twice = counters.insert(key, count).is_some();
            check!(!twice, "twice in the list: {line:?}");
        }
        Ok(counters)
    }
}

/// Opens a file to read, or to write.
pub fn open(path: &Path, read: bool) -> Result<File, SysError> {
    open_for(path, read, !read)
}

/// Opens a file to read, to write, or both.
pub fn open_for(path: &Path, read: bool, write: bool) -> Result<File, SysError> {
    OpenOptions::new()
        .read(read)
        .write(write)
        .open(path)
        .map_err(|error| SysError::io(format!("open({})", path.display()), &error))
}

/// Reads the rest of a file.
pub fn read(file: &mut File, path: &Path) -> Result<String, SysError> {
    let mut text = String::new();
    file.read_to_string(&mut text)
        .map_err(|error| SysError::io(format!("reading {}", path.display()), &error))?;
    Ok(text)
}

/// Writes a text by one write(2).
///
/// # Errors
///
/// Any error of write(2), or not all of it.
pub fn write(file: &mut File, path: &Path, text: &str) -> Result<(), SysError> {
    let what = || format!("writing {text:?} to {}", path.display());
    match file.write(text.as_bytes()) {
        Ok(count) if count == text.len() => Ok(()),
        Ok(count) => Err(SysError::new(format!("{}, {count} bytes", what()), 0)),
        Err(error) => Err(SysError::io(what(), &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings() {
        let text = "buffer id=7 size=8192 domain=either vram_or_fail=0 placement=vram visible=4096 pinned=0 exported=1 ino=12 orphan=1 client=3 name=a\\x20b pid=77 comm=x\n\
                    \timporter=0000:03:00.0 driver=edu_peer path=bus reason=none hops=4 flags=mapped,dynamic\n\
                    \timporter=x driver=y path=refused reason=quota hops=-1 flags= age_ms=3\n\
                    buffer id=9 size=4096 domain=vram vram_or_fail=1 placement=vram visible=0 pinned=1 exported=0 ino=0\n";
        let buffers = parse(text).unwrap();
        assert_eq!(buffers.len(), 2);
        assert_eq!(buffers[0].importers[0].flags, ["mapped", "dynamic"]);
        assert!(buffers[0].importers[1].flags.is_empty());
        assert_eq!(buffers[0].importers[1].hops, -1);
        assert!(buffers[1].pinned && !buffers[1].exported);
        assert!(buffers[0].importers[1].has_age && !buffers[0].importers[0].has_age);
        assert_eq!((buffers[0].inode, buffers[1].inode), (12, 0));
        assert_eq!((buffers[0].visible, buffers[1].visible), (4096, 0));
        assert!(buffers[0].orphan && !buffers[1].orphan);
        assert_eq!((buffers[0].client, buffers[0].pid), (3, 77));
        assert_eq!((buffers[1].client, buffers[1].pid), (0, 0));
        assert_eq!((&*buffers[0].name, &*buffers[0].comm), ("a\\x20b", "x"));
        assert!(buffers[1].vram_or_fail && !buffers[0].vram_or_fail);
        assert_eq!(parse("\timporter=x"), None);
        assert_eq!(parse("buffer id=x"), None);
    }

    #[test]
    fn counters_are_found() {
        let text = "free 4096\npinned 7\n";
        assert_eq!(Counter::VramFree.find(text), Some(4096));
        assert_eq!(Counter::VramPinned.find(text), Some(7));
        assert_eq!(
            Counter::Moves.find("map-system none 1\nmoves - 10\n"),
            Some(10)
        );
        // A name that begins like another one, and a line without a number.
        assert_eq!(Counter::VramFree.find("free_of_x 1\n"), None);
        assert_eq!(Counter::VramFree.find("free\n"), None);
    }

    #[test]
    fn differences() {
        let key = |reason: &str| ("a".to_string(), reason.to_string());
        let before = Counters::from([(key("x"), 1), (key("y"), 2)]);
        let after = Counters::from([(key("x"), 1), (key("y"), 5)]);
        assert_eq!(
            difference(&before, &after),
            [("a".to_string(), "y".to_string(), 3)]
        );
    }
}

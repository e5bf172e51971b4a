// SPDX-License-Identifier: GPL-2.0

//! Allocations of the kernel, and its copies from and to user space, that fail on purpose.
//!
//! `/proc/thread-self/fail-nth` makes the nth one of a task fail that comes after it is written to:
//! of those of slabs, of pages, and of copies together. An operation is done again and again, each
//! time with another one that fails, until it needs no more of them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::debugfs::{self, mounted, DebugFs};
use crate::drm::Drm;
use crate::misc::{self, meminfo, Lcg};
use crate::pci::PciDevice;
use crate::rebind::module_users;
use crate::signals::open_files;
use crate::{errno_name, uapi, Outcome, Stop, SysError};

/// More than any operation needs.
const ALL: u32 = 1 << 20;
/// How many of the first ones a short run lets fail, the last one, and one of the others.
const FIRST: u32 = 3;
/// What has to be set before anything fails: those that may sleep, single pages, and pages that
/// may be anywhere, as those of TTM.
const SETTINGS: [(&str, &str); 7] = [
    ("failslab/ignore-gfp-wait", "N"),
    ("failslab/verbose", "0"),
    ("fail_page_alloc/ignore-gfp-wait", "N"),
    ("fail_page_alloc/ignore-gfp-highmem", "N"),
    ("fail_page_alloc/min-order", "0"),
    ("fail_page_alloc/verbose", "0"),
    ("fail_usercopy/verbose", "0"),
];
/// What the kernel has at first for each attribute: a subtest that was killed may have left its own.
const NEUTRAL: [(&str, &str); 6] = [
    ("probability", "0"),
    ("task-filter", "N"),
    ("require-start", "0"),
    ("require-end", "0xffffffffffffffff"),
    ("interval", "1"),
    ("times", "1"),
];
/// The attributes that workers are given: what allocates, and not what copies to processes.
const ALLOCATORS: [&str; 2] = ["failslab", "fail_page_alloc"];

/// Files with settings, whose content is as it was when this is dropped.
#[derive(Debug, Default)]
struct Settings(Vec<(PathBuf, String)>);

impl Settings {
    fn set(&mut self, path: PathBuf, value: &str) -> Result<(), SysError> {
        let failed = |error| SysError::io(format!("{} = {value}", path.display()), &error);
        let before = fs::read_to_string(&path).map_err(failed)?;
        fs::write(&path, value).map_err(failed)?;
        self.0.push((path, before.trim().to_string()));
        Ok(())
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (path, before) in self.0.iter().rev() {
            let _ = fs::write(path, before);
        }
    }
}

/// What to set so that allocations can fail at all.
fn settings() -> Result<(PathBuf, Settings), Stop> {
    let root = mounted("debugfs", "/sys/kernel/debug")?;
    if !Path::new("/proc/self/fail-nth").exists() {
        skip!("the kernel has no fault injection");
    }
    for (attribute, (name, value)) in ALLOCATORS.iter().flat_map(|a| NEUTRAL.map(|n| (a, n))) {
        let path = root.join(attribute).join(name);
        debugfs::write(&mut debugfs::open(&path, false)?, &path, value)?;
    }
    let mut settings = Settings::default();
    for (name, value) in SETTINGS {
        settings.set(root.join(name), value)?;
    }
    Ok((root, settings))
}

/// While it is there, nothing gets huge pages, nor anything else as large.
#[derive(Debug)]
pub struct Fragmented {
    _settings: Settings,
}

impl Fragmented {
    /// Lets allocations of 2 MiB and more fail.
    ///
    /// # Errors
    ///
    /// Skips the subtest if the kernel has no fault injection.
    pub fn new() -> Result<Self, Stop> {
        let (root, mut settings) = settings()?;
        for (name, value) in [("min-order", "9"), ("times", "-1"), ("probability", "100")] {
            settings.set(root.join("fail_page_alloc").join(name), value)?;
        }
        Ok(Self {
            _settings: settings,
        })
    }
}

/// Lets one allocation or copy of this thread fail.
#[derive(Debug)]
pub struct Faults {
    nth: File,
    _settings: Settings,
    // It stays in the thread that opened the file.
    _thread: PhantomData<*const ()>,
}

/// What came of an operation.
#[derive(Debug, Default)]
struct Row {
    /// How many allocations and copies it makes, which may each fail.
    points: u32,
    /// How many of them were made to fail.
    injected: u32,
    /// How many of these it survived.
    survived: u32,
    /// The errors of the others.
    errnos: Vec<i32>,
}

impl Faults {
    /// Sets it up for this thread.
    ///
    /// # Errors
    ///
    /// Skips the subtest if the kernel has no fault injection, fails it if nothing can be made to
    /// fail.
    #[track_caller]
    pub fn new() -> Result<Self, Stop> {
        let (_, settings) = settings()?;
        let nth = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/proc/thread-self/fail-nth")
            .map_err(|error| SysError::io("open(fail-nth)", &error))?;
        let mut faults = Self {
            nth,
            _settings: settings,
            _thread: PhantomData,
        };
        // What the test itself uses is there before anything fails.
        // SAFETY: The call has no requirements.
        if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } < 0 {
            return Err(SysError::last("mlockall").into());
        }
        // A file of /proc is allocated when it is opened.
        let (opened, left) = faults.with(1, || File::open("/proc/self/stat"));
        let error = opened.err().and_then(|error| error.raw_os_error());
        check_eq!(
            (error, left),
            (Some(libc::ENOMEM), 0),
            "error of an open whose first allocation fails, and how many are left"
        );
        Ok(faults)
    }

    /// Calls `op`, the nth allocation or copy of which fails. Returns how many were left of n.
    fn with<R>(&mut self, n: u32, op: impl FnOnce() -> R) -> (R, u32) {
        let armed = self.nth.write_all(format!("{n}\n").as_bytes());
        let result = op();
        let mut text = [0; 16];
        // The read is a copy to user space too: it fails if it is the next one.
        let left = self.nth.read_at(&mut text, 0);
        // And so is the write a copy from it, but not twice.
        let disarmed = (0..2).any(|_| self.nth.write_all(b"0\n").is_ok());
        assert!(
            armed.is_ok() && disarmed,
            "fail-nth cannot be written: {armed:?}"
        );
        let left = match left {
            Ok(len) => std::str::from_utf8(&text[..len])
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(1),
            Err(_) => 1,
        };
        (result, left)
    }

    /// Does an operation with each of its allocations and copies failing: with some of them, unless
    /// the run is a long one.
    ///
    /// Each time `prepare` makes the state, and after the operation the same is tried again if it
    /// failed, which has to work. Then the state is dropped, and all has to be as before.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the operation fails with another error than `allowed` says, if it does
    /// not work afterwards, or if something is left.
    #[track_caller]
    pub fn sweep<S>(
        &mut self,
        name: &str,
        allowed: &[i32],
        prepare: impl Fn() -> Result<S, Stop>,
        op: impl Fn(&mut S) -> Result<(), SysError>,
        undo: impl Fn(&mut S) -> Result<(), SysError>,
    ) -> Outcome {
        let mut row = Row::default();
        // Twice: what is allocated once for all is there the second time.
        for _ in 0..2 {
            let mut state = prepare()?;
            let (result, left) = self.with(ALL, || op(&mut state));
            result?;
            row.points = ALL - left;
        }
        let mut points: Vec<u32> = (1..=row.points).collect();
        if misc::soak() == 1 && row.points > FIRST + 1 {
            let others = row.points - FIRST - 1;
            let other = FIRST + 1 + Lcg::new(misc::nonce()).below(others.into()) as u32;
            points.truncate(FIRST as usize);
            points.extend([other, row.points]);
        }
        for n in points {
            let before = Snapshot::take()?;
            let mut state = prepare()?;
            let open = open_files();
            let (result, left) = self.with(n, || op(&mut state));
            if left > 0 {
                // It made fewer than the first time.
                result?;
                continue;
            }
            row.injected += 1;
            match result {
                Ok(()) => row.survived += 1,
                Err(error) => {
                    if !allowed.contains(&error.errno) {
                        fail!("{name}, {n} of {}: {error}", row.points);
                    }
                    if !row.errnos.contains(&error.errno) {
                        row.errnos.push(error.errno);
                    }
                    // If the result could not be copied, it was done all the same.
                    let _ = undo(&mut state);
                    for fd in open_files() {
                        if !open.contains(&fd) {
                            // SAFETY: nobody knows of this file descriptor.
                            unsafe { libc::close(fd) };
                        }
                    }
                    if let Err(error) = op(&mut state) {
                        fail!("{name}, after {n} of {} failed: {error}", row.points);
                    }
                }
            }
            drop(state);
            before.compare(&format!("{name}, {n} of {}", row.points))?;
        }
        check!(
            row.injected > 0 || row.points == 0,
            "{name}: none of {} points failed",
            row.points
        );
        let errnos: Vec<_> = row.errnos.iter().map(|errno| errno_name(*errno)).collect();
        println!(
            "{name:24} {:4} points, {:4} failed, {:4} survived, {}",
            row.points,
            row.injected,
            row.survived,
            errnos.join(" ")
        );
        Ok(())
    }
}

/// Lets allocations of workers fail that have some of our code in their stack.
///
/// What workers do has no task of ours that `fail-nth` could be written of. So all of the kernel's
/// threads may fail, where the stack has an address in a range.
#[derive(Debug)]
pub struct Workers {
    root: PathBuf,
    _settings: Settings,
}

/// Whose code it is: the symbols of it as kallsyms has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Of a module, by its name.
    Module(&'static str),
    /// Of the kernel crate: everything about DRM and dma-buf.
    Layers,
}

impl Code {
    /// The address of its first function, and the one behind its last.
    fn range(self) -> Option<(u64, u64)> {
        let text = fs::read_to_string("/proc/kallsyms").ok()?;
        let symbols: Vec<(u64, bool)> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
                let module = words.next().unwrap_or_default();
                let is_of = match self {
                    Self::Module(ours) => module.trim_matches(['[', ']']) == ours,
                    Self::Layers => {
                        module.is_empty()
                            && ["_6kernel3drm", "_6kernel7dma_buf"]
                                .iter()
                                .any(|path| name.contains(path))
                    }
                };
                let address = u64::from_str_radix(address, 16).ok()?;
                Some((address, is_of && matches!(kind, "t" | "T")))
            })
            .collect();
        let own = || symbols.iter().filter(|(_, own)| *own).map(|(at, _)| *at);
        let (first, last) = (own().min()?, own().max()?);
        let after = symbols.iter().map(|(at, _)| *at).filter(|at| *at > last);
        Some((first, after.min()?))
    }
}

impl Workers {
    /// Lets each `interval`th of them fail, counted from where the last one who counted ended.
    ///
    /// # Errors
    ///
    /// Skips the subtest if the kernel has no fault injection.
    #[track_caller]
    pub fn new(code: Code, interval: u32) -> Result<Self, Stop> {
        let Some((start, end)) = code.range() else {
            fail!("/proc/kallsyms has no function of {code:?}");
        };
        let (root, mut settings) = settings()?;
        for attribute in ALLOCATORS {
            for (name, value) in [
                ("task-filter", "Y".to_string()),
                ("require-start", start.to_string()),
                ("require-end", end.to_string()),
                ("stacktrace-depth", "32".to_string()),
                ("interval", interval.to_string()),
                ("times", ALL.to_string()),
                ("probability", "100".to_string()),
            ] {
                settings.set(root.join(attribute).join(name), &value)?;
            }
        }
        for thread in kernel_threads() {
            // One that has ended needs none.
            let _ = settings.set(thread.join("make-it-fail"), "1");
        }
        Ok(Self {
            root,
            _settings: settings,
        })
    }

    /// Lets this thread be one of them while it calls `op`. Returns what that does, and how many
    /// allocations have failed.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the thread cannot be made to fail.
    #[track_caller]
    pub fn with_me<R>(&self, op: impl FnOnce() -> R) -> Result<(R, u32), Stop> {
        let mut me = Settings::default();
        me.set(PathBuf::from("/proc/thread-self/make-it-fail"), "1")?;
        let before = self.injected();
        let result = op();
        Ok((result, self.injected() - before))
    }

    /// How many allocations have failed.
    pub fn injected(&self) -> u32 {
        let left = |attribute: &str| {
            let text = fs::read_to_string(self.root.join(attribute).join("times")).ok()?;
            text.trim().parse::<u32>().ok()
        };
        ALLOCATORS
            .iter()
            .map(|attribute| ALL - left(attribute).unwrap_or(ALL))
            .sum()
    }
}

/// The threads of the kernel, which are the children of the one with number 2: those that it makes
/// later have what it has.
fn kernel_threads() -> Vec<PathBuf> {
    let Ok(dir) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let is_one = |path: &Path| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        // The name, in brackets, may have anything in it.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
        Some(parent == "2" || path.ends_with("2"))
    };
    dir.flatten()
        .map(|entry| entry.path())
        .filter(|path| is_one(path) == Some(true))
        .collect()
}

/// What an operation must leave as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Unless the GPU has another driver.
    gpu: Option<Gpu>,
    system: u64,
    users: [Option<i64>; 4],
}

/// What vvram has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gpu {
    vram_free: u64,
    pinned: u64,
    buffers: usize,
    attachments: usize,
}

impl Gpu {
    fn take() -> Result<Self, Stop> {
        let drm = Drm::open()?;
        let vram_free = drm.vram_free()?;
        let pinned = drm.getparam(uapi::PARAM_VRAM_PINNED)?;
        drop(drm);
        let buffers = DebugFs::open(&PciDevice::vvram()?)?.buffers()?;
        Ok(Self {
            vram_free,
            pinned,
            buffers: buffers.len(),
            attachments: buffers.iter().map(|buffer| buffer.importers.len()).sum(),
        })
    }

    /// Whether no more is used than before. What waited to be freed may be gone.
    fn is_as(&self, before: &Self) -> bool {
        self.vram_free >= before.vram_free
            && self.buffers <= before.buffers
            && (self.pinned, self.attachments) == (before.pinned, before.attachments)
    }
}

impl Snapshot {
    /// Takes note.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the driver does not answer.
    pub fn take() -> Result<Self, Stop> {
        let own = PciDevice::vvram()?.driver().as_deref() == Some("vvram");
        Ok(Self {
            gpu: if own { Some(Gpu::take()?) } else { None },
            system: {
                // Each processor has changes of its own, until it is asked for them.
                let _ = std::fs::write("/proc/sys/vm/stat_refresh", "1");
                meminfo("GPUActive").unwrap_or(0)
            },
            users: ["vvram", "edu_peer", "bar_export", "avram"].map(module_users),
        })
    }

    /// Waits until all is as at the time of this.
    ///
    /// # Errors
    ///
    /// Fails the subtest if something is left.
    #[track_caller]
    pub fn compare(&self, what: &str) -> Outcome {
        let mut after = None;
        let same = misc::poll(Duration::from_secs(5), || {
            let now = Self::take().ok()?;
            let gpu = match (&now.gpu, &self.gpu) {
                (Some(now), Some(before)) => now.is_as(before),
                (now, before) => now.is_none() && before.is_none(),
            };
            let same = gpu && now.system <= self.system && now.users == self.users;
            after = Some(now);
            same.then_some(())
        });
        match same {
            Some(()) => Ok(()),
            None => Err(Stop::fail(format_args!(
                "{what}: {self:?} before, {after:?} after"
            ))),
        }
    }
}

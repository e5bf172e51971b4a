// SPDX-License-Identifier: GPL-2.0

//! Allocations of the kernel, and its copies from and to user space, that fail on purpose.
//!
//! After a number n was written to `/proc/thread-self/fail-nth`, the nth of the next slab
//! allocations, page allocations and copies of the task fails. An operation is repeated, each time
//! with another one that fails, until it makes fewer than n.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::debugfs::{self, mounted, Counter, DebugFs};
use crate::drm::Drm;
use crate::mgpu::{self, Mgpu};
use crate::misc::{self, meminfo, Lcg};
use crate::pci::PciDevice;
use crate::rebind::module_users;
use crate::signals::open_files;
use crate::{errno_name, Outcome, Stop, SysError};

/// More than any operation makes.
const ALL: u32 = 1 << 20;
/// A short run makes this many of the first ones fail, the last one, and one of the others.
const FIRST: u32 = 2;
/// The settings with which allocations that may sleep fail, and those of single pages and of
/// highmem pages, which TTM makes.
const SETTINGS: [(&str, &str); 7] = [
    ("failslab/ignore-gfp-wait", "N"),
    ("failslab/verbose", "0"),
    ("fail_page_alloc/ignore-gfp-wait", "N"),
    ("fail_page_alloc/ignore-gfp-highmem", "N"),
    ("fail_page_alloc/min-order", "0"),
    ("fail_page_alloc/verbose", "0"),
    ("fail_usercopy/verbose", "0"),
];
/// The default value of each attribute, because a subtest that was killed may have left another
/// one.
const NEUTRAL: [(&str, &str); 8] = [
    ("probability", "0"),
    ("task-filter", "N"),
    ("require-start", "0"),
    ("require-end", "0xffffffffffffffff"),
    ("reject-start", "0"),
    ("reject-end", "0"),
    ("interval", "1"),
    ("times", "1"),
];
/// The attributes for workers, which fail allocations and not copies to processes.
const ALLOCATORS: [&str; 2] = ["failslab", "fail_page_alloc"];
/// What maps memory in the direct map of x86, for which it writes to a page table that it has not
/// got. See `alloc_low_page()` and `phys_pud_init()`.
const DIRECT_MAP: &str = "init_memory_mapping";
/// The attribute for copies.
const COPIES: &str = "fail_usercopy";

/// Files with settings. The drop of this restores their content.
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

/// Sets everything that is needed so that allocations can fail. Pages that [`DIRECT_MAP`] allocates
/// are exempt.
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
    if let Some((start, end)) = Code::Function(DIRECT_MAP).range() {
        for (name, value) in [
            ("stacktrace-depth", "32".to_string()),
            ("reject-start", start.to_string()),
            ("reject-end", end.to_string()),
        ] {
            settings.set(root.join("fail_page_alloc").join(name), &value)?;
        }
    }
    Ok((root, settings))
}

/// While this exists, allocations of 2 MiB and more fail, so that there are no huge pages.
#[derive(Debug)]
pub struct Fragmented {
    _settings: Settings,
}

impl Fragmented {
    /// Makes allocations of 2 MiB and more fail.
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

/// The errors that an operation may return.
#[derive(Clone, Copy, Debug)]
pub struct Errors {
    /// If an allocation fails.
    pub memory: &'static [i32],
    /// If a copy from or to the process fails.
    pub copy: &'static [i32],
}

/// Makes one allocation or copy of this thread fail.
#[derive(Debug)]
pub struct Faults {
    root: PathBuf,
    nth: File,
    _settings: Settings,
    // Not [`Send`], because the file is that of the thread that has opened it.
    _thread: PhantomData<*const ()>,
}

/// The results of an operation.
#[derive(Debug, Default)]
struct Row {
    /// How many allocations and copies it makes, which may each fail.
    points: u32,
    /// How many of them were made to fail.
    injected: u32,
    /// How many of these the operation succeeded with.
    survived: u32,
    /// The errors of the other ones, and whether a copy had failed.
    errors: BTreeSet<(bool, i32)>,
}

impl Faults {
    /// Sets fault injection up for this thread.
    ///
    /// # Errors
    ///
    /// Skips the subtest if the kernel has no fault injection, fails it if nothing can be made to
    /// fail.
    #[track_caller]
    pub fn new() -> Result<Self, Stop> {
        let (root, mut settings) = settings()?;
        for attribute in ALLOCATORS.iter().chain([&COPIES]) {
            settings.set(root.join(attribute).join("times"), &ALL.to_string())?;
        }
        let nth = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/proc/thread-self/fail-nth")
            .map_err(|error| SysError::io("open(fail-nth)", &error))?;
        let mut faults = Self {
            root,
            nth,
            _settings: settings,
            _thread: PhantomData,
        };
        // The memory of the test itself is populated before anything fails.
        // SAFETY: The call has no requirements.
        if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } < 0 {
            return Err(SysError::last("mlockall").into());
        }
        // Opening a file of /proc allocates memory.
        let before = faults.failed();
        let (opened, left) = faults.with(1, || File::open("/proc/self/stat"));
        let error = opened.err().and_then(|error| error.raw_os_error());
        let [memory, copy] = faults.failed();
        check_eq!(
            (error, left, memory - before[0], copy - before[1]),
            (Some(libc::ENOMEM), 0, 1, 0),
            "error of an open whose first allocation fails, how many are left, and what has failed"
        );
        Ok(faults)
    }

    /// How many allocations and how many copies have failed.
    fn failed(&self) -> [u32; 2] {
        [
            failed(&self.root, &ALLOCATORS),
            failed(&self.root, &[COPIES]),
        ]
    }

    /// Calls `op`, whose nth allocation or copy fails. Returns how many of n were left.
    fn with<R>(&mut self, n: u32, op: impl FnOnce() -> R) -> (R, u32) {
        let armed = self.nth.write_all(format!("{n}\n").as_bytes());
        let result = op();
        let mut text = [0; 16];
        // The read is a copy to user space, too, so it fails if it is the nth one.
        let left = self.nth.read_at(&mut text, 0);
        // The write is a copy from user space, which fails once at most.
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

    /// Repeats an operation, each time with another one of its allocations and copies failing. A
    /// short run does this for some of them only.
    ///
    /// Each time `prepare` makes the state. If the operation has failed, it is repeated, and must
    /// succeed. Then the state is dropped, and the usage must be as before.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the operation fails with an error that is not in `allowed`, if it fails
    /// again without a fault, or if something is left.
    #[track_caller]
    pub fn sweep<S>(
        &mut self,
        name: &str,
        allowed: &Errors,
        prepare: impl Fn() -> Result<S, Stop>,
        op: impl Fn(&mut S) -> Result<(), SysError>,
        undo: impl Fn(&mut S) -> Result<(), SysError>,
    ) -> Outcome {
        self.sweep_and_check(name, allowed, prepare, op, undo, |_| Ok(()))
    }

    /// As [`Self::sweep`]. Each time that the operation has succeeded, `check` looks at its result,
    /// while nothing fails.
    #[track_caller]
    pub fn sweep_and_check<S>(
        &mut self,
        name: &str,
        allowed: &Errors,
        prepare: impl Fn() -> Result<S, Stop>,
        op: impl Fn(&mut S) -> Result<(), SysError>,
        undo: impl Fn(&mut S) -> Result<(), SysError>,
        check: impl Fn(&mut S) -> Outcome,
    ) -> Outcome {
        let mut row = Row::default();
        // Twice, because memory that is allocated only once exists the second time.
        for _ in 0..2 {
            let mut state = prepare()?;
            let (result, left) = self.with(ALL, || op(&mut state));
            result?;
            check(&mut state)?;
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
            let copies = self.failed()[1];
            let (result, left) = self.with(n, || op(&mut state));
            if left > 0 {
                // The operation made fewer allocations and copies than the first time.
                result?;
                continue;
            }
            row.injected += 1;
            match result {
                Ok(()) => row.survived += 1,
                Err(error) => {
                    let is_copy = self.failed()[1] != copies;
                    let (what, errors) = match is_copy {
                        true => ("copy", allowed.copy),
                        false => ("allocation", allowed.memory),
                    };
                    check!(
                        errors.contains(&error.errno),
                        "{name}, {n} of {}, a failed {what}: {error}",
                        row.points
                    );
                    row.errors.insert((is_copy, error.errno));
                    // The operation may have been done although its result could not be copied.
                    let _ = undo(&mut state);
                    for fd in open_files() {
                        if !open.contains(&fd) {
                            // SAFETY: nothing else owns the file descriptor.
                            unsafe { libc::close(fd) };
                        }
                    }
                    check_ok!(op(&mut state), "{name}, after {n} of {} failed", row.points);
                }
            }
            check(&mut state)?;
            drop(state);
            before.compare(&format!("{name}, {n} of {}", row.points))?;
        }
        // An operation that may fail has points at which it does.
        let may_fail = !(allowed.memory.is_empty() && allowed.copy.is_empty());
        check!(
            row.injected > 0 || row.points == 0 && !may_fail,
            "{name}: none of {} points failed",
            row.points
        );
        let of = |is_copy| {
            let of_kind = row.errors.iter().filter(|error| error.0 == is_copy);
            let names: Vec<_> = of_kind.map(|error| errno_name(error.1)).collect();
            names.join(" ")
        };
        println!(
            "{name:24} {:4} points, {:4} failed, {:4} survived, of allocations {}, of copies {}",
            row.points,
            row.injected,
            row.survived,
            of(false),
            of(true)
        );
        Ok(())
    }
}

/// Makes allocations of workers fail whose stack has an address in some code of this project.
///
/// A worker is no task of the test, so `fail-nth` cannot be used. Instead allocations of all kernel
/// threads may fail, if their stack has an address in a range.
#[derive(Debug)]
pub struct Workers {
    root: PathBuf,
    _settings: Settings,
}

/// The code, which is found by its symbols in kallsyms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The code of a module, by its name.
    Module(&'static str),
    /// The code of the kernel crate for DRM and dma-buf.
    Layers,
    /// A function of the kernel, by its name.
    Function(&'static str),
}

impl Code {
    /// The addresses from its first function to the end of its last one.
    fn range(self) -> Option<(u64, u64)> {
        let text = fs::read_to_string("/proc/kallsyms").ok()?;
        let symbols: Vec<(u64, bool)> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
                let module = words.next().unwrap_or_default();
                let is_of = match self {
                    Self::Function(ours) => module.is_empty() && name == ours,
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
        // Nothing need be behind a module that was loaded last.
        Some((first, after.min().unwrap_or(u64::MAX)))
    }
}

impl Workers {
    /// Makes each `interval`th allocation fail. The count continues from the last use.
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
                // The kernel log names the allocation, with a stack.
                ("verbose", "2".to_string()),
            ] {
                settings.set(root.join(attribute).join(name), &value)?;
            }
        }
        for thread in kernel_threads() {
            // Fails for a thread that has ended.
            let _ = settings.set(thread.join("make-it-fail"), "1");
        }
        Ok(Self {
            root,
            _settings: settings,
        })
    }

    /// Includes this thread while it calls `op`. Returns the result of `op`, and how many
    /// allocations have failed.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the thread cannot be included.
    #[track_caller]
    pub fn with_me<R>(&self, op: impl FnOnce() -> R) -> Result<(R, u32), Stop> {
        let mut me = Settings::default();
        me.set(PathBuf::from("/proc/thread-self/make-it-fail"), "1")?;
        let before = self.injected();
        let result = op();
        Ok((result, self.injected() - before))
    }

    /// Checks that none has failed but `own` ones of the test itself: the code that ends jobs must
    /// not wait for memory. KASAN itself allocates when memory is freed.
    ///
    /// # Errors
    ///
    /// Fails the subtest if another one has failed.
    #[track_caller]
    pub fn only(&self, own: u32, code: Code) -> Outcome {
        let failed = self.injected() - own;
        println!("{code:?}: {failed} allocations of workers failed");
        check!(
            failed == 0 || misc::has_kasan(),
            "a worker with {code:?} in its stack has allocated"
        );
        Ok(())
    }

    /// How many allocations have failed.
    pub fn injected(&self) -> u32 {
        failed(&self.root, &ALLOCATORS)
    }
}

/// How many times attributes have made something fail, whose limit was [`ALL`].
fn failed(root: &Path, attributes: &[&str]) -> u32 {
    let left = |attribute: &str| {
        let text = fs::read_to_string(root.join(attribute).join("times")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    let attributes = attributes.iter();
    attributes
        .map(|attribute| ALL - left(attribute).unwrap_or(ALL))
        .sum()
}

/// The threads of the kernel, which are the children of the thread with the id 2. Threads that it
/// makes later inherit its setting.
fn kernel_threads() -> Vec<PathBuf> {
    let Ok(dir) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let is_one = |path: &Path| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        // The name, in parentheses, may have any characters.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
        Some(parent == "2" || path.ends_with("2"))
    };
    dir.flatten()
        .map(|entry| entry.path())
        .filter(|path| is_one(path) == Some(true))
        .collect()
}

/// The usage that an operation must leave unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Of each device with the driver of its tests.
    devices: Vec<Usage>,
    system: u64,
    users: [Option<i64>; 5],
}

/// The usage of a device, by names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Usage {
    device: String,
    /// Of which there must be as much as before, or more: the release of memory may have been
    /// pending.
    free: Vec<(&'static str, u64)>,
    /// Of which there must be as much as before, or less.
    used: Vec<(&'static str, u64)>,
    /// What must be as before.
    same: Vec<(&'static str, u64)>,
}

impl Usage {
    /// The usage that all drivers have.
    fn take(pci: &PciDevice, drm: Drm, debugfs: &DebugFs) -> Result<Self, Stop> {
        let free = vec![("VRAM", drm.vram_free()?)];
        let pinned = drm.counter(Counter::VramPinned)?;
        drop(drm);
        let buffers = debugfs.buffers()?;
        let attachments: usize = buffers.iter().map(|buffer| buffer.importers.len()).sum();
        Ok(Self {
            device: pci.name().to_string(),
            free,
            used: vec![("buffers", buffers.len() as u64)],
            same: vec![("pinned", pinned), ("attachments", attachments as u64)],
        })
    }

    /// Of a modelled GPU.
    fn of_model(pci: &PciDevice) -> Result<Self, Stop> {
        let gpu = Mgpu::open(pci)?;
        let named = |name, counter| Ok::<_, Stop>((name, gpu.drm.counter(counter)?));
        let free = [named("aperture", Counter::ApertureFree)?];
        let used = [
            named("address spaces", Counter::Vms)?,
            named("page tables", Counter::PageTables)?,
            named("mapped memory", Counter::DmaMapped)?,
        ];
        let same = [
            named("lost objects", Counter::Losses)?,
            ("reports", gpu.reports()?),
        ];
        let debugfs = gpu.debugfs()?;
        let mut usage = Self::take(pci, gpu.drm, &debugfs)?;
        usage.free.extend(free);
        usage.used.extend(used);
        usage.same.extend(same);
        Ok(usage)
    }

    /// Whether no more is used than before.
    fn is_as(&self, before: &Self) -> bool {
        let free = self.free.iter().zip(&before.free);
        let used = self.used.iter().zip(&before.used);
        self.device == before.device
            && free.into_iter().all(|(now, before)| now.1 >= before.1)
            && used.into_iter().all(|(now, before)| now.1 <= before.1)
            && self.same == before.same
    }
}

impl Snapshot {
    /// Takes the current usage.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the driver does not answer.
    pub fn take() -> Result<Self, Stop> {
        let mut devices = Vec::new();
        let gpu = PciDevice::vvram()?;
        if gpu.driver().as_deref() == Some("vvram") {
            devices.push(Usage::take(&gpu, Drm::open()?, &DebugFs::open(&gpu)?)?);
        }
        for pci in PciDevice::mgpus() {
            if pci.driver().as_deref() == Some(mgpu::DRIVER) {
                devices.push(Usage::of_model(&pci)?);
            }
        }
        Ok(Self {
            devices,
            system: meminfo("GPUActive").unwrap_or(0),
            users: ["vvram", "edu_peer", "bar_export", "avram", mgpu::DRIVER].map(module_users),
        })
    }

    /// Waits until the usage is as in this snapshot.
    ///
    /// # Errors
    ///
    /// Fails the subtest if something is left.
    #[track_caller]
    pub fn compare(&self, what: &str) -> Outcome {
        let mut after = None;
        let same = misc::poll(Duration::from_secs(5), || {
            let now = Self::take().ok()?;
            let pairs = now.devices.iter().zip(&self.devices);
            let same = now.devices.len() == self.devices.len()
                && pairs.into_iter().all(|(now, before)| now.is_as(before))
                && now.system <= self.system
                && now.users == self.users;
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

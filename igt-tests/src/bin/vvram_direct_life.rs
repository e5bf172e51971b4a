// SPDX-License-Identifier: GPL-2.0

//! VRAM that a disk accesses while it is unmapped or moved, while VRAM is full, or while the driver
//! is unbound.

use std::fs;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use vvram_tests::debugfs::{Counter, DebugFs};
use vvram_tests::disk::{pinned, Disk, Part, StalledRead, Way};
use vvram_tests::drm::{Drm, Gem};
use vvram_tests::fixture::{patterns, placed, squeeze, works, Expect};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::plug::Plug;
use vvram_tests::proc::{Child, KernelLog, Steps};
use vvram_tests::qmp::Monitor;
use vvram_tests::rebind::{with_parameters, Unbound};
use vvram_tests::storm::{Action, Storm};
use vvram_tests::uapi::{self, CREATE_DIRECT_IO, CREATE_SYSTEM, CREATE_VRAM};
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, fail, igt_main, Outcome, Stop, SysError,
};

const LIMIT: Duration = Duration::from_secs(20);
const EITHER: u32 = CREATE_VRAM | CREATE_SYSTEM | CREATE_DIRECT_IO;
const PAGES: usize = 64;
const SIZE: u64 = PAGES as u64 * PAGE64;

fn create(drm: &Drm, pages: usize) -> Result<Gem<'_>, SysError> {
    drm.create_flags((pages * PAGE) as u64, EITHER)
}

fn busy(drm: &Drm) -> Result<u64, SysError> {
    drm.counter(Counter::DirectIoBusy)
}

fn charged(drm: &Drm) -> Result<u64, SysError> {
    drm.counter(Counter::VramPinned)
}

/// Waits until a counter has a value.
#[track_caller]
fn await_counter(drm: &Drm, counter: Counter, want: u64) -> Outcome {
    let found = misc::poll(LIMIT, || (drm.counter(counter).ok()? == want).then_some(()));
    check!(
        found.is_some(),
        "{counter:?}: expected {want}, saw {}",
        drm.counter(counter)?
    );
    Ok(())
}

fn counted() -> Outcome {
    let drm = Drm::open()?;
    let before = charged(&drm)?;
    let object = create(&drm, PAGES)?;
    check_eq!(charged(&drm)?, before, "pinned before a mapping");
    let one = object.map()?;
    check_eq!(charged(&drm)?, before + SIZE, "pinned with one mapping");
    check_eq!(
        object.info()?.pinned,
        1,
        "what GEM_INFO says of a mapped object"
    );
    let two = object.map()?;
    check_eq!(charged(&drm)?, before + SIZE, "pinned with two mappings");
    one.write(0, 1);
    drop(one);
    check_eq!(two.read(0), 1, "the other mapping");
    check_eq!(
        charged(&drm)?,
        before + SIZE,
        "pinned with one of them left"
    );
    let map = two;
    let mut child = Child::spawn(|| {
        check_eq!(map.read(0), 1, "the mapping of a child");
        Ok(())
    })?;
    child.join("the child", LIMIT)?;
    drop(map);
    check_eq!(charged(&drm)?, before, "pinned without a mapping");
    check_eq!(object.info()?.pinned, 0, "what GEM_INFO says then");
    check_eq!(busy(&drm)?, 0, "VRAM kept from use");
    Ok(())
}

fn child_keeps() -> Outcome {
    let drm = Drm::open()?;
    let before = charged(&drm)?;
    let object = create(&drm, 1)?;
    let map = object.map()?;
    map.write(0, 1);
    let end = Steps::new()?;
    let mut child = Child::spawn(|| {
        end.wait("the parent", LIMIT)?;
        check_eq!(map.read(0), 1, "the mapping that the parent has dropped");
        Ok(())
    })?;
    drop(map);
    check_eq!(charged(&drm)?, before + PAGE64, "pinned by the child");
    end.done()?;
    child.join("the child", LIMIT)?;
    await_counter(&drm, Counter::VramPinned, before)
}

fn limits() -> Outcome {
    let drm = Drm::open()?;
    let files = DebugFs::open(&PciDevice::vvram()?)?;
    for name in ["pin_limit", "client_pin_limit"] {
        let object = create(&drm, 2)?;
        let old = files.read(name)?;
        files.write(name, &PAGE64.to_string())?;
        let result = object.map();
        files.write(name, old.trim())?;
        expect_errno(&format!("a mapping over {name}"), result, libc::EDQUOT)?;
        check_eq!(charged(&drm)?, 0, "pinned after that");
        object.map()?.write(0, 1);
    }
    Ok(())
}

fn many() -> Outcome {
    let drm = Drm::open()?;
    let files = DebugFs::open(&PciDevice::vvram()?)?;
    let object = create(&drm, 1)?;
    // More references than one pin of a page takes.
    let maps: Vec<Map> = (0..1100).map(|_| object.map()).collect::<Result<_, _>>()?;
    for map in &maps {
        map.write(0, 1);
    }
    drop(maps);
    check_eq!(busy(&drm)?, 0, "VRAM kept from use");
    files.force(object.info()?.id, "system")?;
    placed(&object, uapi::PLACEMENT_SYSTEM)
}

/// An object does not move while it is mapped, and can move afterwards.
fn moved() -> Outcome {
    let drm = Drm::open()?;
    let files = DebugFs::open(&PciDevice::vvram()?)?;
    let (a, _) = patterns();
    let object = create(&drm, PAGES)?;
    let away = format!("{} system", object.info()?.id);
    for round in 0..3u64 {
        let map = object.map()?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
        if round > 0 {
            check_ok!(map.verify(a.derive(round - 1)), "back in VRAM");
        }
        map.fill(a.derive(round));
        expect_errno(
            "moving a mapped object",
            files.write("move", &away),
            libc::EBUSY,
        )?;
        files.write("move", "evict")?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
        drop(map);
        files.write("move", &away)?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
    }
    Ok(())
}

/// An object that is not mapped any more, but is the target of a disk read that is held up.
struct Lingering<'a> {
    object: Gem<'a>,
    read: StalledRead,
}

/// Starts to read a pattern to an object, and unmaps it.
fn lingering<'a>(drm: &'a Drm, disk: &Disk, pattern: Pattern) -> Result<Lingering<'a>, Stop> {
    Expect::get()?.need_route()?;
    disk.fill(pattern, 0, PAGES * PAGE)?;
    let object = create(drm, PAGES)?;
    let map = object.map()?;
    map.fill(patterns().1);
    let read = disk.stall_in_read(Part::all(&map))?;
    drop(map);
    check_eq!(busy(drm)?, SIZE, "VRAM kept from use");
    check_eq!(charged(drm)?, SIZE, "pinned");
    Ok(Lingering { object, read })
}

/// VRAM that a disk still writes to is not allocated.
fn reused() -> Outcome {
    let (drm, disk) = (Drm::open()?, Disk::open()?);
    let (a, b) = patterns();
    let free = drm.vram_free()?;
    let Lingering { object, mut read } = lingering(&drm, &disk, a)?;
    object.close()?;
    let others = squeeze(&drm)?;
    let taken: u64 = others.iter().map(Gem::size).sum();
    check_eq!(taken, free - SIZE, "VRAM that others get");
    for other in &others {
        other.map()?.fill(b);
    }
    read.finish()?;
    for other in &others {
        check_ok!(other.map()?.verify(b), "the disk wrote to VRAM of others");
    }
    await_counter(&drm, Counter::DirectIoBusy, 0)?;
    await_counter(&drm, Counter::VramPinned, 0)?;
    drop(others);
    drm.await_vram_free(free)
}

/// An object that is mapped again while a disk still writes to it has the same memory.
fn again() -> Outcome {
    let (drm, disk) = (Drm::open()?, Disk::open()?);
    let files = DebugFs::open(&PciDevice::vvram()?)?;
    let (a, _) = patterns();
    let Lingering { object, mut read } = lingering(&drm, &disk, a)?;
    let away = format!("{} system", object.info()?.id);
    expect_errno(
        "moving what is read to",
        files.write("move", &away),
        libc::EBUSY,
    )?;
    files.write("move", "evict")?;
    let map = object.map()?;
    check_eq!(busy(&drm)?, 0, "VRAM kept from use, of a mapped object");
    check_eq!(charged(&drm)?, SIZE, "pinned");
    read.finish()?;
    check_ok!(map.verify(a), "mapped again");
    drop(map);
    await_counter(&drm, Counter::VramPinned, 0)?;
    files.write("move", &away).map_err(Stop::from)
}

/// An object whose last pages a disk still writes to can be mapped again, because its other pages
/// were not freed.
fn in_part() -> Outcome {
    Expect::get()?.need_route()?;
    let (drm, disk) = (Drm::open()?, Disk::open()?);
    let (a, b) = patterns();
    let half = SIZE as usize / 2;
    disk.fill(a, 0, half)?;
    let object = create(&drm, PAGES)?;
    let map = object.map()?;
    map.fill(b);
    let mut read = disk.stall_in_read(Part::of(&map, half, half))?;
    drop(map);
    check_eq!(busy(&drm)?, SIZE, "VRAM kept from use");
    let map = object.map()?;
    check_ok!(
        map.verify_pages(b, 0, PAGES / 2),
        "the pages before those that are read to"
    );
    read.finish()?;
    for word in 0..half / 8 {
        check_eq!(
            map.read(half / 8 + word),
            a.word(word as u64),
            "what was read"
        );
    }
    drop(map);
    await_counter(&drm, Counter::DirectIoBusy, 0)?;
    await_counter(&drm, Counter::VramPinned, 0)
}

/// How the device goes away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    Unbound,
    Reset,
    Unplugged,
    Vanished,
}

impl Goes {
    /// Starts to remove the device; the process ends when the driver has released it.
    fn start(self, gpu: &PciDevice, monitor: &mut Monitor) -> Result<Child, Stop> {
        match self {
            Self::Unbound => Ok(Child::spawn(|| Ok(gpu.unbind("vvram")?))?),
            Self::Reset => Ok(Child::spawn(|| Ok(gpu.reset()?))?),
            Self::Unplugged => {
                monitor.unplug(Plug::gpu()?.id())?;
                Ok(Child::spawn(|| {
                    let gone = misc::poll(LIMIT, || (!gpu.exists()).then_some(()));
                    check!(gone.is_some(), "the device stays");
                    Ok(())
                })?)
            }
            Self::Vanished => {
                Plug::gpu()?.vanish()?;
                Ok(Child::spawn(|| Ok(gpu.remove()?))?)
            }
        }
    }

    /// Brings the device back.
    fn back(self, plug: &Plug, port: &PciDevice, monitor: &mut Monitor) -> Outcome {
        match self {
            Self::Unbound => plug.device().bind("vvram").map_err(Stop::from),
            Self::Reset => Ok(()),
            Self::Unplugged => {
                plug.gone(monitor)?;
                plug.back(monitor)
            }
            Self::Vanished => plug.appear(port),
        }
    }
}

/// The removal of a device waits for the disk, and logs the process that it waits for. The next
/// device has pages that a disk can access.
fn goes(how: Goes) -> Outcome {
    Expect::get()?.need_route()?;
    let plug = Plug::gpu()?;
    let gpu = plug.device();
    let (drm, disk) = (Drm::open()?, Disk::open()?);
    let mut log = KernelLog::open()?;
    let Some(port) = gpu.port() else {
        fail!("{} is on a root bus", gpu.name());
    };
    let object = create(&drm, PAGES)?;
    let map = object.map()?;
    let other = create(&drm, 1)?.map()?;
    other.write(0, 1);
    let id = object.info()?.id;
    // If a check fails, this is dropped after the disk goes on.
    let mut going;
    let mut read = disk.stall_in_read(Part::all(&map))?;
    going = how.start(gpu, read.stalled.monitor())?;
    let wanted =
        format!("waiting for direct I/O to object {id} of {SIZE} bytes, which vvram_direct_li (");
    let mut told = |since: &str| {
        let found = misc::poll(LIMIT, || {
            let is_it = |line: &String| line.contains(&wanted) && line.ends_with(since);
            log.lines().into_iter().find(is_it)
        });
        check!(
            found.is_some(),
            "the driver does not say for whom it waits: {wanted}"
        );
        Ok(())
    };
    told(" 0 s")?;
    told(" 1 s")?;
    check!(going.ended().is_none(), "the driver did not wait");
    read.finish()?;
    going.join("what has waited for the disk", LIMIT)?;
    check_eq!(pinned()?, 0, "pages that stay pinned");
    expect_errno("a mapping afterwards", object.map(), libc::ENODEV)?;
    how.back(&plug, &port, read.stalled.monitor())?;
    // The last references to the old device are dropped while the new one works.
    drop((map, other));
    drop(object);
    reads_to_vram(&disk)?;
    works()
}

/// A disk reads to VRAM.
fn reads_to_vram(disk: &Disk) -> Outcome {
    let (a, b) = patterns();
    disk.fill(a, 0, PAGES * PAGE)?;
    let drm = Drm::open()?;
    let object = create(&drm, PAGES)?;
    let map = object.map()?;
    map.fill(b);
    disk.direct.transfer(Way::Read, Part::all(&map), 0)?;
    placed(&object, uapi::PLACEMENT_VRAM)?;
    check_ok!(map.verify(a), "read to VRAM");
    Ok(())
}

/// Evictions, signals and transfers, all at the same time.
fn storm() -> Outcome {
    Expect::get()?.need_route()?;
    let drm = Drm::open()?;
    let disk = Disk::open()?;
    let (a, b) = patterns();
    disk.fill(a, 0, PAGES * PAGE)?;
    // A mapping is interrupted by a signal, as any wait is.
    let actions = [
        Action::new("map", &[libc::EINTR], 20),
        Action::new("evict", &[], 20),
    ];
    let mut storm = Storm::new(LIMIT, &actions)?;
    let files = DebugFs::open(&PciDevice::vvram()?)?;
    storm.meanwhile(|storm, _| {
        storm.tried("evict", files.write("move", "evict"))?;
        Ok(())
    })?;
    let timer = Ticks::start()?;
    let object = create(&drm, PAGES)?;
    for round in storm.rounds(20) {
        let Some(map) = storm.tried("map", object.map())? else {
            continue;
        };
        map.write(0, b.word(0));
        disk.direct.transfer(Way::Read, Part::all(&map), 0)?;
        check_ok!(map.verify(a), "round {round}");
    }
    drop(timer);
    storm.end()?;
    check_eq!(pinned()?, 0, "pages that stay pinned");
    Ok(())
}

/// A signal in each millisecond, until this is dropped.
struct Ticks;

impl Ticks {
    fn start() -> Result<Self, SysError> {
        extern "C" fn nothing(_signal: i32) {}
        // SAFETY: all-zero is a valid value, and the handler does nothing.
        let status = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut())
        };
        if status < 0 {
            return Err(SysError::last("sigaction(SIGALRM)"));
        }
        Self::set(1000)?;
        Ok(Self)
    }

    fn set(microseconds: i64) -> Result<(), SysError> {
        let every = libc::timeval {
            tv_sec: 0,
            tv_usec: microseconds,
        };
        let timer = libc::itimerval {
            it_interval: every,
            it_value: every,
        };
        // SAFETY: the pointer is valid for a read.
        let status =
            unsafe { libc::syscall(libc::SYS_setitimer, libc::ITIMER_REAL, &raw const timer, 0) };
        if status < 0 {
            return Err(SysError::last("setitimer()"));
        }
        Ok(())
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        let _ = Self::set(0);
    }
}

/// A process that is killed while a disk writes to its VRAM leaves nothing behind.
fn killed() -> Outcome {
    Expect::get()?.need_route()?;
    let drm = Drm::open()?;
    let disk = Disk::open()?;
    let free = drm.vram_free()?;
    let begun = Steps::new()?;
    let stalled = disk.stall()?;
    let mut child = Child::spawn(|| {
        let drm = Drm::open()?;
        let object = create(&drm, PAGES)?;
        let map = object.map()?;
        let read = disk.direct.start(Way::Read, Part::all(&map), 0)?;
        begun.done()?;
        let _ = read.recv();
        Ok(())
    })?;
    begun.wait("the transfer of the child", LIMIT)?;
    child.signal(libc::SIGKILL);
    thread::sleep(Duration::from_millis(100));
    drop(stalled);
    let _ = child.wait(LIMIT);
    await_counter(&drm, Counter::DirectIoBusy, 0)?;
    await_counter(&drm, Counter::VramPinned, 0)?;
    drm.await_vram_free(free)
}

/// Opens the file through which any program of root can map pages of the p2pdma pool of the BAR.
fn open_pool(gpu: &PciDevice) -> Result<fs::File, SysError> {
    let path = format!("/sys/bus/pci/devices/{}/p2pmem/allocate", gpu.name());
    let file = fs::OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|error| SysError::io("open(allocate)", &error))
}

fn from_pool(pool: &fs::File) -> Result<Map, SysError> {
    Map::new(pool.as_raw_fd(), 0, PAGE)
}

/// The driver has all pages of the pool, so that no other program gets any.
fn pool() -> Outcome {
    let drm = Drm::open()?;
    let gpu = PciDevice::vvram()?;
    check!(
        drm.getparam(uapi::PARAM_DIRECT_IO_SIZE)? > 0,
        "no struct pages"
    );
    let path = format!("/sys/bus/pci/devices/{}/p2pmem/available", gpu.name());
    let available = fs::read_to_string(&path).map_err(|error| SysError::io(path, &error))?;
    check_eq!(available.trim(), "0", "available in the pool");
    let pool = open_pool(&gpu)?;
    expect_errno("mapping allocate", from_pool(&pool), libc::ENOMEM)?;
    Ok(())
}

/// Takes a page of the pool as soon as there is one, and keeps it until `end`.
fn take_from_pool(gpu: &PciDevice, begun: &Steps, end: &Steps) -> Outcome {
    begun.done()?;
    let mut pool = None;
    while !end.is_done()? {
        // The file is there a moment before the pages.
        pool = pool.or_else(|| open_pool(gpu).ok());
        for _ in 0..100 {
            if let Some(_page) = pool.as_ref().and_then(|pool| from_pool(pool).ok()) {
                return end.wait("the parent", LIMIT);
            }
        }
    }
    Ok(())
}

/// Another program takes a page before the driver does. The driver then works without struct pages,
/// and has them when it is bound again.
///
/// The pool exists for a moment before the driver takes it, because the kernel logs a line in
/// between.
fn pool_taken() -> Outcome {
    const TRIES: u32 = 100;
    const TAKERS: u32 = 3;
    let gpu = PciDevice::vvram()?;
    let mut log = KernelLog::open()?;
    let size = || {
        Drm::open()?
            .getparam(uapi::PARAM_DIRECT_IO_SIZE)
            .map_err(Stop::from)
    };
    for _ in 0..TRIES {
        let unbound = Unbound::new(&gpu)?;
        let (begun, end) = (Steps::new()?, Steps::new()?);
        let mut takers = Vec::new();
        for _ in 0..TAKERS {
            takers.push(Child::spawn(|| take_from_pool(&gpu, &begun, &end))?);
        }
        for _ in 0..TAKERS {
            begun.wait("a process that wants a page", LIMIT)?;
        }
        log.lines();
        unbound.rebind()?;
        let outcome = match size()? {
            0 => Some(without_pages()),
            _ => None,
        };
        let lines = log.lines();
        if outcome.is_some() {
            // A rebind while the page is still mapped.
            Unbound::new(&gpu)?.rebind()?;
        }
        drop(takers);
        let Some(outcome) = outcome else {
            continue;
        };
        outcome?;
        let is_said = |line: &String| line.contains("no struct pages for BAR 2");
        check!(
            lines.iter().any(is_said),
            "the driver does not say that it has no pages: {lines:?}"
        );
        check!(size()? > 0, "no struct pages when it is bound once more");
        return works();
    }
    fail!("no task was faster than the driver");
}

fn without_pages() -> Outcome {
    let drm = Drm::open()?;
    check_eq!(
        drm.getparam(uapi::PARAM_DIRECT_IO_SIZE)?,
        0,
        "VRAM with pages"
    );
    expect_errno(
        "direct I/O without pages",
        create(&drm, 1),
        libc::EOPNOTSUPP,
    )?;
    drop(drm);
    works()
}

/// The BAR has pages, and the driver uses a part of it that is no multiple of their unit.
fn small() -> Outcome {
    const VISIBLE: u64 = 5000 << 10;
    let drm = Drm::open()?;
    let disk = Disk::open()?;
    let (a, _) = patterns();
    check_eq!(
        drm.getparam(uapi::PARAM_DIRECT_IO_SIZE)?,
        VISIBLE,
        "VRAM with pages"
    );
    disk.fill(a, 0, PAGES * PAGE)?;
    // Objects in the other part of VRAM are moved.
    let mut objects = Vec::new();
    while drm.vram_free()? >= 2 * SIZE {
        objects.push(create(&drm, PAGES)?);
    }
    for object in &objects {
        let map = object.map()?;
        disk.direct.transfer(Way::Read, Part::all(&map), 0)?;
        if let Err(mismatch) = map.verify(a) {
            fail!("{mismatch}");
        }
    }
    Ok(())
}

igt_main! {
    "counted", "a mapping is a pin, and charged as one", counted;
    "child-keeps", "a child that has the mapping keeps the pin", child_keeps;
    "limits", "EDQUOT over the limits of pins", limits;
    "many", "1100 mappings are not mistaken for I/O", many;
    "moved", "EBUSY for moves of what is mapped", moved;
    "reused", "VRAM is not reused before the disk is done", reused;
    "again", "mapped again while the disk is not done", again;
    "in-part", "the same with a disk that has a part of it", in_part;
    "unbind", "an unbind waits for the disk, and names the process", || goes(Goes::Unbound);
    "reset", "a reset waits for the disk, and names the process", || goes(Goes::Reset);
    "unplugged", "an unplug waits for the disk, and names the process", || goes(Goes::Unplugged);
    "vanished", "so does the removal of a device that has gone by surprise",
        || goes(Goes::Vanished);
    "storm", "evictions, signals and transfers", storm;
    "killed", "a killed process leaves nothing behind", killed;
    "without-pages", "the driver works without pages, EOPNOTSUPP for direct I/O", || {
        with_parameters(&["struct_pages=0"], without_pages)
    };
    "small", "a part of VRAM is visible", || with_parameters(&["visible_kib=5000"], small);
    "pool", "p2pmem/allocate returns no pages", pool;
    "pool-taken", "the driver does without the pool if a part of it is in use", pool_taken;
}

// SPDX-License-Identifier: GPL-2.0

//! Failures and how they are reported: moves that fail, waits that time out, buffers that cannot be
//! copied, and an unbind that has to wait for two holders.

use std::time::Duration;

use vvram_tests::bar_export::{self, Exporter};
use vvram_tests::debugfs::{difference, Counter, DebugFs};
use vvram_tests::drm::{path_name, DmaBuf, Gem, EITHER};
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::{
    cpu_reads, patterns, peer_reads, placed, share, squeeze_idle, works, Fixture,
};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::peer::Mode;
use vvram_tests::proc::{Child, KernelLog, Steps};
use vvram_tests::rebind::Unbinding;
use vvram_tests::signals::{await_sleep, catch};
use vvram_tests::trace::Trace;
use vvram_tests::uapi::{self, DMA_BUF_SYNC_READ as READ};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome, Stop};

const LIMIT: Duration = Duration::from_secs(20);
const FENCE: &str = "dma_fence_default_wait";
/// The errno in a tracepoint where the system call returns EINTR.
const ERESTARTSYS: i32 = 512;

/// An object whose events are recorded.
struct Traced<'a> {
    fixture: &'a Fixture,
    trace: Trace,
    debugfs: DebugFs,
    object: Gem<'a>,
    map: Map,
    buffer: DmaBuf,
}

impl<'a> Traced<'a> {
    fn new(fixture: &'a Fixture) -> Result<Self, Stop> {
        let trace = Trace::new()?;
        let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
        let this = Self {
            debugfs: DebugFs::open(&fixture.gpu)?,
            map: object.map()?,
            buffer: object.export()?,
            fixture,
            trace,
            object,
        };
        this.events()?;
        Ok(this)
    }

    /// The events since the last time.
    #[track_caller]
    fn events(&self) -> Result<Vec<String>, Stop> {
        let id = self.object.info()?.id;
        self.trace.events(self.fixture.gpu.name(), id, 2 * PAGE64)
    }

    #[track_caller]
    fn expect(&self, what: &str, want: &[&str]) -> Outcome {
        let seen = self.events()?;
        check_eq!(seen, want, "{what}");
        Ok(())
    }

    /// Moves the object to system memory.
    #[track_caller]
    fn to_system(&self) -> Outcome {
        let id = self.object.info()?.id;
        self.debugfs.write("move", &format!("{id} system"))?;
        self.events()?;
        Ok(())
    }

    /// Checks how much of VRAM is pinned, all of it by importers that cannot be revoked.
    #[track_caller]
    fn pinned(&self, want: u64) -> Outcome {
        let pinned = self.fixture.drm.counter(Counter::VramPinned)?;
        check_eq!(pinned, want, "bytes pinned");
        self.debugfs.held(want)
    }

    /// An event of the peer.
    fn importer(&self, name: &str, path: &str, reason: &str, ret: i32) -> String {
        let importer = self.fixture.peer.name();
        format!("{name} importer={importer} path={path} reason={reason} ret={ret}")
    }
}

/// Runs a call in a child, and interrupts it by a signal.
fn interrupted(call: impl FnOnce() -> Outcome) -> Outcome {
    let told = Steps::new()?;
    let mut child = Child::spawn(|| {
        catch(&told, false)?;
        call()
    })?;
    await_sleep(&mut child, FENCE, "S")?;
    child.signal(libc::SIGUSR1);
    child.join("the call that a signal ends", LIMIT)
}

/// A signal interrupts the move for a pin, and the move of an eviction, and the events have the
/// error.
fn interrupted_moves() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let t = Traced::new(&fixture)?;
    t.map.fill(a);
    let peer = &fixture.peer;
    let path = path_name(fixture.expect.path());
    peer.attach(&t.buffer, Mode::Pinned)?;
    t.to_system()?;
    let timeline = Timeline::new()?;
    t.buffer.add_fence(READ, &timeline.fence(1)?)?;
    interrupted(|| expect_errno("a pin", peer.pin(), libc::EINTR))?;
    t.expect(
        "events of an interrupted pin",
        &[
            "invalidate placement=system",
            &format!("move from=system to=vram evict=0 ret=-{ERESTARTSYS}"),
            &t.importer("pin", "refused", "none", -ERESTARTSYS),
        ],
    )?;
    placed(&t.object, uapi::PLACEMENT_SYSTEM)?;
    t.pinned(0)?;
    timeline.step()?;
    peer.pin()?;
    t.pinned(2 * PAGE64)?;
    t.expect(
        "events of the pin",
        &[
            "invalidate placement=system",
            "move from=system to=vram evict=0 ret=0",
            &t.importer("pin", &path, "none", 0),
        ],
    )?;
    peer.detach()?;
    t.events()?;

    t.buffer.add_fence(READ, &timeline.fence(2)?)?;
    let size = fixture.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    interrupted(|| expect_errno("GEM_CREATE", fixture.drm.create(size), libc::EINTR))?;
    t.expect(
        "events of an interrupted eviction",
        &[
            "invalidate placement=vram",
            &format!("move from=vram to=system evict=1 ret=-{ERESTARTSYS}"),
        ],
    )?;
    placed(&t.object, uapi::PLACEMENT_VRAM)?;
    timeline.step()?;
    drop(fixture.drm.create(size)?);
    t.expect(
        "events of the eviction",
        &[
            "invalidate placement=vram",
            "move from=vram to=system evict=1 ret=0",
        ],
    )?;
    cpu_reads(&t.map, a, &[0, 1])
}

/// A move for which there is no room does not begin, and importers keep their mappings.
fn no_room() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let t = Traced::new(&fixture)?;
    t.map.fill(a);
    let peer = &fixture.peer;
    peer.attach(&t.buffer, Mode::Dynamic)?;
    let taken = squeeze_idle(&fixture.drm)?;
    placed(&t.object, uapi::PLACEMENT_SYSTEM)?;
    peer.map()?;
    t.events()?;
    let moves = fixture.drm.counter(Counter::Moves)?;
    let invalidated = peer.status()?.invalidations;
    let id = t.object.info()?.id;
    expect_errno(
        "a move to VRAM",
        t.debugfs.write("move", &format!("{id} vram")),
        libc::ENOSPC,
    )?;
    t.expect("events of a move without room", &[])?;
    check_eq!(peer.status()?.invalidations, invalidated, "invalidations");
    check_eq!(fixture.drm.counter(Counter::Moves)?, moves, "moves");
    peer_reads(peer, a, &[0, 1])?;
    drop(taken);
    t.debugfs.write("move", &format!("{id} vram"))?;
    t.expect(
        "events of the move",
        &[
            "invalidate placement=system",
            &t.importer("unmap", &path_name(fixture.expect.path()), "none", 0),
            "move from=system to=vram evict=0 ret=0",
        ],
    )
}

/// A fence does not signal: a pin fails after 15 s, and so does a map. Neither moves the object or
/// leaves anything behind.
fn timeout() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let t = Traced::new(&fixture)?;
    let mapped = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let (map, buffer) = (mapped.map()?, mapped.export()?);
    let timeline = Timeline::new()?;
    let [pinning, mapping] = [fixture.peer.reopen()?, fixture.peer.reopen()?];
    pinning.attach(&t.buffer, Mode::Pinned)?;
    mapping.attach(&buffer, Mode::Dynamic)?;
    for (object, map, buffer) in [(&t.object, &t.map, &t.buffer), (&mapped, &map, &buffer)] {
        map.fill(a);
        let id = object.info()?.id;
        t.debugfs.write("move", &format!("{id} system"))?;
        buffer.add_fence(READ, &timeline.fence(1)?)?;
    }
    t.events()?;
    let size = fixture.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let before = t.debugfs.counters()?;
    let mut children = [
        Child::spawn(|| expect_errno("a pin", pinning.pin(), libc::ETIMEDOUT))?,
        Child::spawn(|| expect_errno("a map", mapping.map(), libc::EBUSY))?,
    ];
    for child in &mut children {
        child.join("the wait", 2 * LIMIT)?;
    }
    t.pinned(0)?;
    let counted = difference(&before, &t.debugfs.counters()?);
    let none = ("pin-refused".to_string(), "none".to_string(), 1);
    check_eq!(counted, [none], "what was counted");
    t.expect(
        "events of the pin",
        &[
            "invalidate placement=system",
            &format!("move from=system to=vram evict=0 ret=-{}", libc::EBUSY),
            &t.importer("pin", "refused", "none", -libc::ETIMEDOUT),
        ],
    )?;
    for (object, map, mode) in [
        (&t.object, &t.map, Mode::Pinned),
        (&mapped, &map, Mode::Dynamic),
    ] {
        placed(object, uapi::PLACEMENT_SYSTEM)?;
        check_eq!(object.info()?.pinned, 0, "pinned in mode {mode:?}");
        fixture.check_only(object, mode, false, false)?;
        cpu_reads(map, a, &[0, 1])?;
    }
    fixture.drm.await_vram_free(size)?;
    timeline.step()?;
    for (peer, object, map, mode) in [
        (&pinning, &t.object, &t.map, Mode::Pinned),
        (&mapping, &mapped, &map, Mode::Dynamic),
    ] {
        peer.pin_and_map(mode)?;
        placed(object, uapi::PLACEMENT_VRAM)?;
        fixture.check_table(peer, map)?;
        peer_reads(peer, a, &[1])?;
    }
    Ok(())
}

/// A buffer that the CPU cannot map, the BAR of another device, can be neither the source nor the
/// destination of a copy.
fn no_vmap() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let drm = &fixture.drm;
    let Fixture { edu, .. } = &fixture;
    let free = drm.vram_free()?;
    {
        let exporter = Exporter::of(edu)?;
        let buffer = bar_export::export(&exporter.open()?, 0, 0, 2 * PAGE64)?;
        let import = drm.import(&buffer)?;
        let info = import.import_info()?;
        check_eq!(info.path, uapi::PATH_UNKNOWN, "path of the import");
        let object = drm.create(2 * PAGE64)?;
        let map = object.map()?;
        map.fill(a);
        for (src, dst) in [(&import, &object), (&object, &import), (&import, &import)] {
            let before = vvram_tests::signals::open_files();
            let copied = drm.copy((src, 0), (dst, PAGE64), PAGE64);
            expect_errno("a copy", copied, libc::EINVAL)?;
            check_eq!(
                vvram_tests::signals::open_files(),
                before,
                "open files after the copy"
            );
            check!(buffer.is_idle()?, "a fence of the copy is in the buffer");
        }
        cpu_reads(&map, a, &[0, 1])?;
        // The object still works.
        drm.copy((&object, 0), (&object, PAGE64), PAGE64)?
            .finish()?;
        check_eq!(
            map.read(PAGE / 8),
            map.read(0),
            "the first word of the copy"
        );
    }
    drm.await_vram_free(free)?;
    works()
}

/// An unbind that waits for a device and for the kernel logs both, and later the one that is left.
fn two_holders() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 2)?;
    shared.map.fill(a);
    let (device, kernel) = (&fixture.peer, fixture.peer.reopen()?);
    device.attach_and_map(&shared.buffer, Mode::Pinned)?;
    kernel.attach(&shared.buffer, Mode::Cpu)?;
    kernel.map()?;
    let mapped = |who: &str| {
        let bytes = 2 * PAGE;
        format!("waiting for {who}, which has mapped a revoked dma-buf of {bytes} bytes, since ")
    };
    let mut log = KernelLog::open()?;
    let mut seen = Vec::new();
    let mut unbinding = Unbinding::start(&fixture.gpu)?;
    let mut says = |line: &str, least: u32| {
        let since = |seen: &String| {
            let (_, seconds) = seen.split_once(line)?;
            seconds.strip_suffix(" s")?.parse::<u32>().ok()
        };
        let said = misc::poll(LIMIT, || {
            seen.extend(log.lines());
            let mut times = seen.iter().filter_map(since);
            times.any(|seconds| seconds >= least).then_some(())
        });
        match said {
            Some(()) => Ok(seen.clone()),
            None => Err(Stop::fail(format_args!(
                "the kernel log has no {line:?} of {least} s: {seen:?}"
            ))),
        }
    };
    says(&mapped(device.name()), 0)?;
    says(&mapped("the kernel (vmap)"), 0)?;
    kernel.unmap()?;
    // The reminder, for the one that is left.
    let lines = says(&mapped(device.name()), 10)?;
    let vmap = lines.iter().filter(|line| line.contains("(vmap)")).count();
    check_eq!(vmap, 1, "lines about the kernel's mapping in {lines:?}");
    if let Some(exit) = unbinding.child.ended() {
        fail!("the unbind did not wait for the second holder: {exit:?}");
    }
    peer_reads(device, a, &[1])?;
    device.unmap()?;
    unbinding.finish(LIMIT)?.rebind()?;
    works()
}

igt_main! {
    "interrupted-moves", "tracepoints of moves that a signal ends", interrupted_moves;
    "no-room", "a move without room does not begin", no_room;
    "timeout", "ETIMEDOUT for a pin and EBUSY for a map after 15 s", timeout;
    "no-vmap", "a copy with a buffer that the CPU cannot map", no_vmap;
    "two-holders", "an unbind names both who hold it up, and later the one that is left", two_holders;
}

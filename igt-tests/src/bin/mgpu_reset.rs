// SPDX-License-Identifier: GPL-2.0

//! The modelled GPU does not recover by a reset of a ring: the whole device is reset, by the driver
//! or by the PCI core, or wedged.

use std::time::{Duration, Instant};

use vvram_tests::compute::{ballast, sum, Bench, Op, Vm, HUGE, PARAM_COPY_HANGS, RESULTS};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Gem, EITHER};
use vvram_tests::failure::{is_taken_away, no_dump, says, take_dump, Events};
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::{mapped_by_peer, patterns, peer_reads, placed, Expect};
use vvram_tests::map::PAGE64;
use vvram_tests::mgpu::{holds, take_all, Error, Impatient, Mgpu, COMPUTE};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::{Child, KernelLog};
use vvram_tests::qmp::Monitor;
use vvram_tests::rebind::Unbinding;
use vvram_tests::storm::{Action, Storm};
use vvram_tests::syncfile::SyncFile;
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, uapi, Outcome, Stop};

const SIZE: u64 = 16 * PAGE64;
const LIMIT: Duration = Duration::from_secs(40);
/// The port above the first GPU, of a switch or a root port.
const PORTS: [&str; 2] = ["d3", "rp3"];
/// How many jobs the hardware has at a time.
const JOBS: usize = 8;
/// What the aperture shows where there is no window.
const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Two objects in VRAM, one with a pattern.
fn pair<'a>(gpu: &'a Mgpu, pattern: Pattern) -> Result<(Gem<'a>, Gem<'a>), Stop> {
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    from.map()?.fill(pattern);
    // The clearing of the other object is over, too.
    to.map()?.set(0);
    Ok((from, to))
}

/// Waits for copies, and returns how each has ended.
fn ends(copies: &[SyncFile]) -> Result<Vec<i32>, Stop> {
    copies
        .iter()
        .map(|copy| {
            check!(copy.wait(LIMIT)?, "a fence does not signal");
            Ok(copy.status()?)
        })
        .collect()
}

/// Checks that the device copies.
fn copies(gpu: &Mgpu) -> Outcome {
    let (x, _) = patterns();
    let (from, to) = pair(gpu, x)?;
    let copy = gpu.drm.copy((&from, 0), (&to, 0), SIZE)?;
    copy.finish()?;
    check_eq!(copy.status()?, 1, "status of a copy");
    holds(&to, x, "what was copied")
}

/// A hung job leaves a dump, and an event that needs no action of userspace. There is one dump at a
/// time.
fn reported() -> Outcome {
    let _impatient = Impatient::new()?;
    let gpu = Mgpu::first()?;
    no_dump(&gpu.pci)?;
    let (x, _) = patterns();
    let (from, to) = pair(&gpu, x)?;
    let events = Events::listen()?;
    for (error, errno) in [(Error::Hang, libc::ETIMEDOUT), (Error::Fault, libc::EIO)] {
        gpu.inject(error, 0)?;
        let queued: Vec<_> = (0..JOBS + 3)
            .map(|_| gpu.drm.copy((&from, 0), (&to, 0), SIZE))
            .collect::<Result<_, _>>()?;
        let ends = ends(&queued)?;
        check_eq!(ends[0], -errno, "what came of the first copy");
        check!(
            ends[1..].iter().all(|end| *end == 1),
            "what came of the copies: {ends:?}"
        );
        check_eq!(events.wedged(&gpu.pci)?, "none", "what helps");
        let dump = take_dump(&gpu.pci)?;
        says(&dump, "driver: mgpu")?;
        says(&dump, "ring: 0")?;
        says(&dump, &format!("error: -{errno}"))?;
        says(&dump, "ID: 0x5550474d")?;
        says(&dump, "RING_ENTRIES[0]: 0x40")?;
        if errno == libc::ETIMEDOUT {
            // The ring that hangs has as many jobs as it can, and the queue the others.
            let waits = |line: &str| {
                line.starts_with("context ")
                    && line.contains(": 3 jobs from ")
                    && line.ends_with("waits for its turn")
            };
            check!(
                dump.lines().any(waits),
                "there is no queue with three jobs:\n{dump}"
            );
        }
        // The job that has failed is the first one; the ring may not have all others yet when it
        // faults.
        let jobs: Vec<_> = dump
            .lines()
            .filter(|line| line.contains(" bytes, "))
            .collect();
        println!("{jobs:?}");
        check!(
            jobs.len() == JOBS || errno == libc::EIO && (1..JOBS).contains(&jobs.len()),
            "jobs of the ring: {jobs:?}"
        );
        check_eq!(jobs[0], format!("{SIZE} bytes, begun"), "the first job");
        let is_one = |line: &&str| {
            [
                format!("{SIZE} bytes, begun"),
                format!("{SIZE} bytes, waits"),
            ]
            .iter()
            .any(|is| is == line)
        };
        check!(jobs.iter().all(is_one), "jobs of the ring: {jobs:?}");
        // The entry of a copy of lists.
        let is_copy = |line: &str| {
            line.split(": ")
                .nth(1)
                .is_some_and(|is| is.starts_with("10 "))
        };
        check!(
            dump.lines().any(is_copy),
            "there is no entry that copies:\n{dump}"
        );
        let faults = dump
            .lines()
            .filter(|line| line.starts_with("900: "))
            .count();
        check_eq!(faults, usize::from(errno == libc::EIO), "records of faults");
    }
    gpu.clean()
}

/// The device answers, and does nothing: the whole device is reset, and only once instead of once
/// for each job.
fn stuck() -> Outcome {
    let _impatient = Impatient::new()?;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let (from, to) = pair(&gpu, x)?;
    let map = from.map()?;
    let resets = gpu.drm.counter(Counter::CopyResets)?;
    gpu.inject(Error::Slow, 60_000)?;
    let queued: Vec<_> = (0..100)
        .map(|_| gpu.drm.copy((&from, 0), (&to, 0), SIZE))
        .collect::<Result<_, _>>()?;
    let ends = ends(&queued)?;
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 3, "resets");
    check_eq!(ends[..2], [-libc::ETIMEDOUT; 2], "the first jobs");
    let lost = ends.iter().filter(|end| **end == -libc::EIO).count();
    check!(
        (1..=8).contains(&lost),
        "{lost} jobs were lost with a reset"
    );
    check_eq!(
        ends.iter().filter(|end| **end == 1).count(),
        100 - 2 - lost,
        "jobs that were done"
    );
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        0,
        "objects that are lost"
    );
    // Through the windows from before the reset.
    check_ok!(map.verify(x), "in the window");
    holds(&to, x, "what was copied")?;
    copies(&gpu)?;
    gpu.clean()
}

/// A ring cannot be reset, but the device can. VRAM that was not cleared is allocated again after
/// that.
fn whole() -> Outcome {
    let _impatient = Impatient::with_invalidations()?;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let kept = gpu.drm.create(SIZE)?;
    let map = kept.map()?;
    map.fill(x);
    let resets = gpu.drm.counter(Counter::CopyResets)?;
    let events = Events::listen()?;
    // This job leaves memory that is not cleared: it fails, and the CPU sees no VRAM to do it.
    let mut log = KernelLog::open()?;
    gpu.inject(Error::NoInvalidate, 2)?;
    gpu.inject(Error::Hang, 0)?;
    let lost = gpu.drm.create(SIZE)?;
    check_eq!(events.wedged(&gpu.pci)?, "none", "what helps");
    let system = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let copy = gpu.drm.copy((&lost, 0), (&system, 0), SIZE);
    check!(
        match copy {
            Ok(copy) => ends(&[copy])? == [-libc::EIO],
            Err(error) => error.errno == libc::EIO,
        },
        "what is lost was copied"
    );
    // The target of the copy is lost as well, if the copy was queued.
    let losses = gpu.drm.counter(Counter::Losses)?;
    check!((1..=2).contains(&losses), "{losses} objects are lost");
    let told = format!("object {} has lost its content", lost.info()?.id);
    check!(
        log.lines().iter().any(|line| line.contains(&told)),
        "the log does not say so"
    );
    let free = gpu.drm.vram_free()?;
    drop(lost);
    let kept_away = misc::poll(LIMIT, || {
        (gpu.drm.counter(Counter::Quarantined).ok()? == SIZE).then_some(())
    });
    check!(
        kept_away.is_some(),
        "what was not cleared is not in quarantine"
    );
    check_eq!(gpu.drm.vram_free()?, free, "VRAM that is free");
    gpu.inject(Error::NoRingReset, 0)?;
    gpu.inject(Error::Fault, 0)?;
    let to = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let copy = gpu.drm.copy((&kept, 0), (&to, 0), SIZE)?;
    check_eq!(ends(&[copy])?, [-libc::EIO], "a copy that faulted");
    check_eq!(events.wedged(&gpu.pci)?, "none", "what helps");
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 2, "resets");
    check_eq!(gpu.drm.counter(Counter::Quarantined)?, 0, "in quarantine");
    check_ok!(map.verify(x), "in the window");
    // All memory that is allocated now is cleared.
    drop(take_all(&gpu)?);
    copies(&gpu)?;
    holds(&kept, x, "beside all that")?;
    // The error of the ring before the reset of the device is not taken for one of jobs that wait.
    gpu.inject(Error::Slow, 20)?;
    let queued = (0..JOBS)
        .map(|_| gpu.drm.copy((&kept, 0), (&to, 0), SIZE))
        .collect::<Result<Vec<_>, _>>()?;
    check!(
        ends(&queued)?.iter().all(|end| *end == 1),
        "a copy after the reset has failed"
    );
    gpu.inject(Error::Slow, 0)?;
    check_eq!(
        gpu.drm.counter(Counter::CopyResets)?,
        resets + 2,
        "resets in all"
    );
    gpu.clean()
}

/// The PCI core resets the device, with jobs and with a peer.
fn function() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let (from, to) = pair(&gpu, x)?;
    let shared = gpu.drm.create(SIZE)?;
    let map = shared.map()?;
    map.fill(y);
    let buffer = shared.export()?;
    let peer = mapped_by_peer(&buffer, y, &[0, 15])?;
    let resets = gpu.drm.counter(Counter::CopyResets)?;
    gpu.inject(Error::Slow, 50)?;
    let queued: Vec<_> = (0..30)
        .map(|_| gpu.drm.copy((&from, 0), (&to, 0), SIZE))
        .collect::<Result<_, _>>()?;
    gpu.pci.reset()?;
    let ends = ends(&queued)?;
    let lost = ends.iter().filter(|end| **end == -libc::EIO).count();
    check!(
        (1..=8).contains(&lost),
        "{lost} jobs were lost with the reset"
    );
    check_eq!(
        ends.iter().filter(|end| **end == 1).count(),
        30 - lost,
        "jobs that were done"
    );
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 1, "resets");
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        0,
        "objects that are lost"
    );
    // The windows are where they were.
    check_ok!(map.verify(y), "in the window");
    check_eq!(peer.status()?.invalidations, 0, "invalidations of the peer");
    peer_reads(&peer, y, &[0, 15])?;
    holds(&to, x, "what was copied")?;
    copies(&gpu)?;
    gpu.clean()
}

/// An object that an address space shows loses its content, as it could not be cleared: no job
/// reads what the last owner has left there, not even when the device works again.
fn not_cleared() -> Outcome {
    let _impatient = Impatient::less_with_invalidations()?;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let bench = Bench::new(&gpu)?;
    let ballast = ballast(&gpu, SIZE)?;
    let old = gpu.drm.create(SIZE)?;
    old.map()?.fill(x);
    drop(old);
    gpu.await_no_window()?;
    gpu.drm.await_vram_free(SIZE)?;
    let sum_into = |word: u64| [Op::checksum(HUGE, SIZE, RESULTS + 8 * word)];
    bench.results.write(0, u64::MAX);
    bench.results.write(1, u64::MAX);
    gpu.inject(Error::Hang, 0)?;
    let object = bench.vm.create(SIZE, uapi::CREATE_VRAM)?;
    bench.vm.bind(&object, HUGE)?;
    // The entries are written while the clearing hangs.
    let queued = bench.vm.exec(&sum_into(0))?;
    // Those of the window, through which the CPU would clear the object.
    gpu.inject(Error::NoInvalidate, 2)?;
    check_eq!(ends(&[queued])?, [-libc::EIO], "a job that has waited");
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        1,
        "objects that are lost"
    );
    gpu.pci.reset()?;
    expect_errno(
        "a job after the reset",
        bench.vm.exec(&sum_into(1)).map(drop),
        libc::EIO,
    )?;
    check_eq!(
        [0, 1].map(|word| bench.results.read(word)),
        [u64::MAX; 2],
        "what the jobs have read"
    );
    // Other objects are not concerned.
    bench.vm.unbind(HUGE, SIZE)?;
    bench.vm.done(&[Op::add(RESULTS, 2)])?;
    check_eq!(bench.results.read(0), 1, "the result of the next job");
    drop((object, ballast));
    check_eq!(gpu.drm.counter(Counter::Quarantined)?, 0, "in quarantine");
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        1,
        "objects that are lost"
    );
    drop(bench);
    gpu.clean()
}

/// The PCI core resets the device while another GPU reads and writes its objects: importers are
/// notified before, so that every copy has the right bytes.
fn peers() -> Outcome {
    const ROUNDS: u64 = 3;
    const COPIES: u64 = 8;
    let [gpu, other] = Mgpu::pair()?;
    let (x, y) = patterns();
    let (read, written) = (
        gpu.drm.create_flags(SIZE, EITHER)?,
        gpu.drm.create_flags(SIZE, EITHER)?,
    );
    let imports = [
        other.drm.import(&read.export()?)?,
        other.drm.import(&written.export()?)?,
    ];
    let source = other.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let targets = (0..2 * COPIES)
        .map(|_| other.drm.create_flags(SIZE, uapi::CREATE_SYSTEM))
        .collect::<Result<Vec<_>, _>>()?;
    other.inject(Error::Slow, 10)?;
    for round in 0..ROUNDS {
        let (x, y) = (x.derive(round), y.derive(round));
        read.map()?.fill(x);
        source.map()?.fill(y);
        placed(&read, uapi::PLACEMENT_VRAM)?;
        let invalidations = imports[0].import_info()?.invalidations;
        let queue = |targets: &[Gem<'_>]| -> Result<Vec<SyncFile>, Stop> {
            let mut copies = Vec::new();
            for target in targets {
                copies.push(other.drm.copy((&imports[0], 0), (target, 0), SIZE)?);
                copies.push(other.drm.copy((&source, 0), (&imports[1], 0), SIZE)?);
            }
            Ok(copies)
        };
        let (before, during) = targets.split_at(COPIES as usize);
        let mut copies = queue(before)?;
        let mut reset = Child::spawn(|| Ok(gpu.pci.reset()?))?;
        // These are queued before, in, and after the reset.
        copies.extend(queue(during)?);
        reset.join("the reset", LIMIT)?;
        check!(
            ends(&copies)?.iter().all(|end| *end == 1),
            "a copy of the other GPU has failed in round {round}"
        );
        for (index, target) in targets.iter().enumerate() {
            holds(target, x, &format!("copy {index} of round {round}"))?;
        }
        holds(&written, y, "what the other GPU has written")?;
        check!(
            imports[0].import_info()?.invalidations > invalidations,
            "the importer was not notified"
        );
        // The objects come back to VRAM.
        gpu.force(&read, "vram")?;
        gpu.force(&written, "vram")?;
        holds(&written, y, "what has come back")?;
    }
    other.inject(Error::Slow, 0)?;
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        0,
        "objects that are lost"
    );
    other.clean()?;
    gpu.clean()
}

/// The driver resets the whole device while another GPU reads and writes objects again and again,
/// peer to peer, and the CPU reads what was written.
///
/// Fences depend on such a reset, so it cannot wait for importers: the objects stay in VRAM, the
/// other GPU keeps its mappings, and the aperture works in the reset.
fn whole_peers() -> Outcome {
    const COPIES: usize = 8;
    let _impatient = Impatient::new()?;
    let [gpu, other] = Mgpu::pair()?;
    let (x, y) = patterns();
    // The jobs that fail use other objects, so that no copy of the other GPU waits for them.
    let (from, to) = pair(&gpu, y)?;
    let [read, written] = [0; 2].map(|_| gpu.drm.create_flags(SIZE, EITHER));
    let (read, written) = (read?, written?);
    let windows = [read.map()?, written.map()?];
    windows[0].fill(x);
    let imports = [
        other.drm.import(&read.export()?)?,
        other.drm.import(&written.export()?)?,
    ];
    let source = other.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let source_map = source.map()?;
    let targets = (0..COPIES)
        .map(|_| other.drm.create_flags(SIZE, uapi::CREATE_SYSTEM))
        .collect::<Result<Vec<_>, _>>()?;
    let maps = targets
        .iter()
        .map(Gem::map)
        .collect::<Result<Vec<_>, _>>()?;
    let batch = |round: u64| -> Outcome {
        let y = y.derive(round);
        source_map.fill(y);
        windows[1].set(0);
        let mut copies = Vec::new();
        for (target, map) in targets.iter().zip(&maps) {
            map.set(0);
            copies.push(other.drm.copy((&imports[0], 0), (target, 0), SIZE)?);
        }
        copies.push(other.drm.copy((&source, 0), (&imports[1], 0), SIZE)?);
        check_eq!(ends(&copies)?, [1; COPIES + 1], "copies of the other GPU");
        for map in &maps {
            check_ok!(map.verify(x), "read in batch {round}");
        }
        check_ok!(windows[1].verify(y), "written in batch {round}");
        Ok(())
    };
    batch(0)?;
    let reached = || -> Result<_, Stop> {
        let mut all = Vec::new();
        for (object, import) in [&read, &written].into_iter().zip(&imports) {
            let info = import.import_info()?;
            placed(object, uapi::PLACEMENT_VRAM)?;
            check_eq!(info.path, Expect::get()?.path(), "path of the other GPU");
            all.push(info.invalidations);
        }
        Ok(all)
    };
    let before = reached()?;
    let (resets, losses) = (
        gpu.drm.counter(Counter::CopyResets)?,
        gpu.drm.counter(Counter::Losses)?,
    );
    let mut storm = Storm::new(LIMIT, &[Action::new("batch", &[], 4)])?;
    let mut round = 0;
    storm.meanwhile(|storm, _| {
        round += 1;
        batch(round)?;
        storm.done("batch", 1);
        Ok(())
    })?;
    // One of them may be under way.
    storm.go_on(2)?;
    // The ring makes no progress, also not after two resets of it: the device is reset.
    gpu.inject(Error::Slow, 60_000)?;
    let queued: Vec<_> = (0..JOBS)
        .map(|_| gpu.drm.copy((&from, 0), (&to, 0), SIZE))
        .collect::<Result<_, _>>()?;
    let failed = ends(&queued)?;
    storm.go_on(2)?;
    storm.end()?;
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 3, "resets");
    check!(
        failed.contains(&-libc::EIO),
        "no job has ended with the reset of the device: {failed:?}"
    );
    check_eq!(reached()?, before, "invalidations after the reset");
    batch(0)?;
    holds(&from, y, "an object of the jobs")?;
    check_eq!(gpu.drm.counter(Counter::Losses)?, losses, "lost objects");
    copies(&gpu)?;
    other.clean()?;
    gpu.clean()
}

/// The PCI core resets the device while a process writes and reads objects in VRAM: no write is
/// lost.
fn stores() -> Outcome {
    const ROUNDS: u64 = 3;
    const WRITES: [&str; 2] = ["write to the first", "write to the second"];
    let gpu = Mgpu::first()?;
    let objects = [
        gpu.drm.create_flags(SIZE, uapi::CREATE_VRAM)?,
        gpu.drm.create_flags(SIZE, EITHER)?,
    ];
    let maps = [objects[0].map()?, objects[1].map()?];
    for map in &maps {
        map.set(0);
    }
    // The importer of an object that cannot leave VRAM keeps the window.
    let peer = Peer::open()?;
    peer.attach_and_map(&objects[0].export()?, Mode::Dynamic)?;
    let words = SIZE / 8;
    let actions = WRITES.map(|name| Action::new(name, &[], 2 * words * (ROUNDS + 1)));
    let mut storm = Storm::new(LIMIT, &actions)?;
    // One process for each, as it waits during the reset.
    for (map, name) in maps.iter().zip(WRITES) {
        let mut count = 0;
        storm.meanwhile(|storm, _| {
            let word = (count % words) as usize;
            check_eq!(
                map.read(word),
                // What was written there one round before.
                (count + 1).saturating_sub(words),
                "word {word} before {name}, number {count}"
            );
            map.write(word, count + 1);
            count += 1;
            storm.done(name, 1);
            Ok(())
        })?;
    }
    for _ in 0..ROUNDS {
        storm.go_on(2 * words)?;
        gpu.pci.reset()?;
    }
    storm.go_on(2 * words)?;
    storm.end()?;
    for object in &objects {
        placed(object, uapi::PLACEMENT_VRAM)?;
    }
    peer.unmap()?;
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        0,
        "objects that are lost"
    );
    gpu.clean()
}

/// The device does not complete an invalidation: the driver resets it, and the next job and the
/// next page fault find a device that works.
fn stale() -> Outcome {
    let _impatient = Impatient::with_resets()?;
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let (x, y) = patterns();
    let object = bench.vm.create(SIZE, uapi::CREATE_VRAM)?;
    let map = object.map()?;
    map.fill(x);
    bench.vm.bind(&object, HUGE)?;
    check_eq!(bench.sum(HUGE, SIZE)?, sum(x, 0, SIZE / 8), "the first sum");
    let mut resets = gpu.drm.counter(Counter::CopyResets)?;
    let events = Events::listen()?;

    // The driver sends an invalidation twice. This one is of page tables.
    gpu.inject(Error::NoInvalidate, 2)?;
    bench.vm.unbind(HUGE, SIZE)?;
    bench.vm.bind(&object, 2 * HUGE)?;
    check_eq!(
        bench.sum(2 * HUGE, SIZE)?,
        sum(x, 0, SIZE / 8),
        "the sum after a reset"
    );
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 1, "resets");
    check_eq!(events.wedged(&gpu.pci)?, "none", "what helps");
    check_ok!(map.verify(x), "in the window");

    // Another client causes this one, after jobs were queued that have not begun.
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let queued = (0..3)
        .map(|word| {
            let op = Op::checksum(2 * HUGE, SIZE, RESULTS + 8 * word);
            bench.vm.exec_after(&[op], &[&fence])
        })
        .collect::<Result<Vec<_>, _>>()?;
    {
        let other = Mgpu::first()?;
        let theirs = Bench::new(&other)?;
        theirs.vm.done(&[Op::fill(RESULTS, 8, 1)])?;
        let mut log = KernelLog::open()?;
        gpu.inject(Error::NoInvalidate, 2)?;
        // Nothing but the next job resets the device.
        drop(theirs);
        log.await_line("an invalidation failed", LIMIT)?;
    }
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 1, "resets");
    timeline.step()?;
    check_eq!(ends(&queued)?, [1; 3], "what came of the jobs behind it");
    for word in 0..3 {
        let is = bench.results.read(word);
        check_eq!(is, sum(x, 0, SIZE / 8), "sum {word} behind it");
    }
    resets += 1;
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 1, "resets");
    check_eq!(events.wedged(&gpu.pci)?, "none", "what helps");

    // This one is of a window.
    let other = gpu.drm.create_flags(SIZE, uapi::CREATE_VRAM)?;
    let next = other.map()?;
    gpu.inject(Error::NoInvalidate, 2)?;
    next.fill(y);
    holds(&other, y, "through the window")?;
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 2, "resets");
    check_eq!(events.wedged(&gpu.pci)?, "none", "what helps");
    check_eq!(
        bench.sum(2 * HUGE, SIZE)?,
        sum(x, 0, SIZE / 8),
        "the sum after the second reset"
    );

    // This one is of a window that is closed. It shows the memory until the reset.
    let bar = Bar::open(&gpu.pci)?;
    let shown = bar.locate(&next)?;
    gpu.inject(Error::NoInvalidate, 2)?;
    drop((next, other));
    check_eq!(
        bench.sum(2 * HUGE, SIZE)?,
        sum(x, 0, SIZE / 8),
        "the sum after the third reset"
    );
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 3, "resets");
    for page in 0..(SIZE / PAGE64) as usize {
        check_eq!(
            bar.word(shown.offset(page)),
            POISON,
            "page {page} of a window that is closed"
        );
    }
    check_eq!(events.wedged(&gpu.pci)?, "none", "what helps");
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        0,
        "objects that are lost"
    );
    drop(bench);
    gpu.clean()
}

/// Resets are done, but no ring works after them: the driver gives the device up. A reset by the
/// PCI core helps, when the driver is bound again.
fn lifeless() -> Outcome {
    let _impatient = Impatient::hasty()?;
    let pci = {
        let gpu = Mgpu::first()?;
        let (x, _) = patterns();
        let (from, to) = pair(&gpu, x)?;
        let resets = gpu.drm.counter(Counter::CopyResets)?;
        let events = Events::listen()?;
        gpu.inject(Error::Lifeless, 0)?;
        // A hang costs one job, and a reset of the device those that are in the ring.
        let queued = (0..40)
            .map(|_| gpu.drm.copy((&from, 0), (&to, 0), SIZE))
            .collect::<Result<Vec<_>, _>>()?;
        let ends = ends(&queued)?;
        check!(
            ends.iter()
                .all(|end| [-libc::ETIMEDOUT, -libc::EIO].contains(end)),
            "what came of the copies: {ends:?}"
        );
        check_eq!(ends[39], -libc::EIO, "the last copy");
        loop {
            if events.wedged(&gpu.pci)? == "rebind" {
                break;
            }
        }
        // Two of the ring before each of the device, and the third one of the device is not done.
        check_eq!(
            gpu.drm.counter(Counter::CopyResets)?,
            resets + 8,
            "resets of the ring"
        );
        check!(!gpu.pci.is_master()?, "it is a bus master");
        // No job is to blame for a ring that does not reach the first fence after a reset.
        check_eq!(gpu.drm.getparam(PARAM_COPY_HANGS)?, 1, "copies that hung");
        let copy = gpu.drm.copy((&from, 0), (&to, 0), SIZE);
        check!(
            copy.is_err_and(|error| [libc::EIO, libc::ENODEV].contains(&error.errno)),
            "a copy was queued"
        );
        gpu.pci.clone()
    };
    pci.reset()?;
    anew(&pci)
}

/// The same if only the compute engine does not work any more: copies, which end, do not keep the
/// driver from giving the device up.
fn lifeless_compute() -> Outcome {
    let _impatient = Impatient::hasty()?;
    let pci = {
        let gpu = Mgpu::first()?;
        let (x, _) = patterns();
        let (from, to) = pair(&gpu, x)?;
        let bench = Bench::new(&gpu)?;
        let resets = gpu.drm.counter(Counter::ComputeResets)?;
        let events = Events::listen()?;
        gpu.inject_into(COMPUTE, Error::Lifeless, 0)?;
        let jobs = (0..40)
            .map(|_| bench.vm.exec(&[Op::add(RESULTS, 1)]))
            .collect::<Result<Vec<_>, _>>()?;
        let mut copied = 0;
        // Each reset of the device ends the copies that are in the ring.
        let began = Instant::now();
        while let Ok(copy) = gpu.drm.copy((&from, 0), (&to, 0), SIZE) {
            check!(began.elapsed() < LIMIT, "the device is not given up");
            check!(copy.wait(LIMIT)?, "a fence does not signal");
            copied += u32::from(copy.status()? == 1);
        }
        check!(copied > 2, "only {copied} copies were done");
        check_eq!(ends(&jobs)?[39], -libc::EIO, "the last job");
        while events.wedged(&gpu.pci)? != "rebind" {}
        check_eq!(
            gpu.drm.counter(Counter::ComputeResets)?,
            resets + 8,
            "resets of the ring"
        );
        gpu.pci.clone()
    };
    pci.reset()?;
    anew(&pci)
}

/// Userspace resets the device while objects leave VRAM for other ones: the CPU does the moves that
/// were begun.
fn moves() -> Outcome {
    const COUNT: u64 = 24;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let _ballast = ballast(&gpu, COUNT * SIZE)?;
    let old: Vec<_> = (0..COUNT)
        .map(|_| gpu.drm.create_flags(SIZE, EITHER))
        .collect::<Result<_, _>>()?;
    for (index, object) in (0..).zip(&old) {
        object.map()?.fill(x.derive(index));
        placed(object, uapi::PLACEMENT_VRAM)?;
    }
    let (again, losses) = (gpu.done_again()?, gpu.drm.counter(Counter::Losses)?);
    gpu.inject(Error::Slow, 20)?;
    let new: Vec<_> = (0..COUNT)
        .map(|_| gpu.drm.create(SIZE))
        .collect::<Result<_, _>>()?;
    gpu.pci.reset()?;
    for object in &new {
        check_ok!(object.map()?.verify_value(0), "a new object");
    }
    for (index, object) in (0..).zip(&old) {
        placed(object, uapi::PLACEMENT_SYSTEM)?;
        holds(object, x.derive(index), "what has left")?;
    }
    check!(
        gpu.done_again()? >= again + 2,
        "no two moves were in the ring"
    );
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        losses,
        "objects that are lost"
    );
    gpu.clean()
}
/// An address space with a page for results, a private object in VRAM and one in system memory.
struct Space<'a> {
    bench: Bench<'a>,
    objects: [Gem<'a>; 2],
    patterns: [Pattern; 2],
}

/// The size of an object of a [`Space`]: a large page, and some small pages.
const BYTES: u64 = HUGE + SIZE;
/// The addresses of the objects of a [`Space`], of a shared object, and of a new one.
const OWN: [u64; 2] = [2 * HUGE, 4 * HUGE];
const SHARED: u64 = 6 * HUGE;
const NEW: u64 = 8 * HUGE;

impl<'a> Space<'a> {
    fn new(gpu: &'a Mgpu, shared: &Gem<'_>, pattern: Pattern) -> Result<Self, Stop> {
        let bench = Bench::new(gpu)?;
        let objects = [
            bench.vm.create(BYTES, uapi::CREATE_VRAM)?,
            bench.vm.create(BYTES, uapi::CREATE_SYSTEM)?,
        ];
        let patterns = [pattern.derive(1), pattern.derive(2)];
        for ((object, pattern), address) in objects.iter().zip(patterns).zip(OWN) {
            object.map()?.fill(pattern);
            bench.vm.bind(object, address)?;
        }
        bench.vm.bind(shared, SHARED)?;
        Ok(Self {
            bench,
            objects,
            patterns,
        })
    }

    /// Checks that the engine and the CPU read the patterns, that new objects can be mapped, and
    /// that a read of an address that is not mapped fails.
    fn works(&self, shared: Pattern, round: u64) -> Outcome {
        let (vm, words) = (&self.bench.vm, BYTES / 8);
        for (pattern, address) in self.patterns.into_iter().zip(OWN).chain([(shared, SHARED)]) {
            check_eq!(
                self.bench.sum(address, BYTES)?,
                sum(pattern, 0, words),
                "sum at {address:#x} in round {round}"
            );
        }
        for (object, pattern) in self.objects.iter().zip(self.patterns) {
            holds(object, pattern, "of an address space")?;
        }
        for places in [uapi::CREATE_VRAM, uapi::CREATE_SYSTEM] {
            let object = vm.create(BYTES, places)?;
            vm.bind(&object, NEW)?;
            vm.done(&[Op::copy(OWN[0], NEW, BYTES)])?;
            holds(&object, self.patterns[0], "of a new object")?;
            vm.unbind(NEW, BYTES)?;
        }
        check_eq!(
            vm.run(&[Op::checksum(NEW, 4, RESULTS)])?,
            -libc::EIO,
            "a read where nothing is mapped"
        );
        Ok(())
    }
}

/// Returns how many address spaces and page tables there are.
fn spaces_and_tables(gpu: &Mgpu) -> Result<(u64, u64), Stop> {
    Ok((
        gpu.drm.counter(Counter::Vms)?,
        gpu.drm.counter(Counter::PageTables)?,
    ))
}

/// Waits until the counts of [`spaces_and_tables`] are `before` again.
fn is_free(gpu: &Mgpu, before: (u64, u64)) -> Outcome {
    let done = misc::poll(LIMIT, || {
        (spaces_and_tables(gpu).ok()? == before).then_some(())
    });
    check!(
        done.is_some(),
        "address spaces and page tables are {:?}, they were {before:?}",
        spaces_and_tables(gpu)?
    );
    Ok(())
}

/// The whole device is reset, by the driver and by userspace, with address spaces that have objects
/// in all kinds of memory. No number of an address space is lost.
fn vms() -> Outcome {
    let _impatient = Impatient::new()?;
    let gpu = Mgpu::first()?;
    let before = spaces_and_tables(&gpu)?;
    let losses = gpu.drm.counter(Counter::Losses)?;
    let (x, y) = patterns();
    let shared = gpu.drm.create_flags(BYTES, EITHER)?;
    shared.map()?.fill(y);
    let spaces = [
        Space::new(&gpu, &shared, x.derive(10))?,
        Space::new(&gpu, &shared, x.derive(20))?,
    ];
    for round in 0..2 {
        for space in &spaces {
            space.works(y, round)?;
        }
        let resets = gpu.drm.counter(Counter::ComputeResets)?;
        let vm = &spaces[0].bench.vm;
        if round % 2 == 0 {
            gpu.inject_into(COMPUTE, Error::NoRingReset, 0)?;
            gpu.inject_into(COMPUTE, Error::Fault, 0)?;
            check_eq!(vm.run(&[Op::add(RESULTS, 1)])?, -libc::EIO, "a job");
        } else {
            gpu.inject_into(COMPUTE, Error::Slow, 50)?;
            let jobs = [
                vm.exec(&[Op::checksum(OWN[0], BYTES, RESULTS)])?,
                spaces[1]
                    .bench
                    .vm
                    .exec(&[Op::checksum(OWN[1], BYTES, RESULTS)])?,
            ];
            gpu.pci.reset()?;
            for end in ends(&jobs)? {
                check!(
                    [1, -libc::EIO].contains(&end),
                    "status {end} of a job at a reset"
                );
            }
        }
        check_eq!(
            gpu.drm.counter(Counter::ComputeResets)?,
            resets + 1,
            "resets in round {round}"
        );
    }
    // Address spaces that exist for one round.
    let with = spaces_and_tables(&gpu)?;
    for round in 0..8 {
        let vm = Vm::new(&gpu)?;
        vm.bind(&shared, HUGE)?;
        vm.done(&[
            Op::copy(HUGE, HUGE + BYTES - 8, 8),
            Op::copy(HUGE + 8, HUGE, 8),
        ])?;
        let map = shared.map()?;
        check_eq!(map.read(0), y.word(1), "in round {round}");
        map.write(0, y.word(0));
        map.write(BYTES as usize / 8 - 1, y.word(BYTES / 8 - 1));
        gpu.pci.reset()?;
        if round % 2 == 0 {
            vm.done(&[Op::fill(HUGE, 8, 0)])?;
            map.write(0, y.word(0));
        }
        drop(vm);
        is_free(&gpu, with)?;
    }
    for space in &spaces {
        space.works(y, 99)?;
    }
    holds(&shared, y, "of both")?;
    check_eq!(gpu.drm.counter(Counter::Losses)?, losses, "lost objects");
    drop((spaces, shared));
    is_free(&gpu, before)?;
    gpu.clean()
}

/// The device does not complete the invalidation of an address space that has ended, and of page
/// tables: they are not used again until the device was reset.
fn unforgotten() -> Outcome {
    let _impatient = Impatient::with_invalidations()?;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let shared = gpu.drm.create_flags(BYTES, EITHER)?;
    shared.map()?.fill(x);
    let stays = Space::new(&gpu, &shared, x)?;
    let before = spaces_and_tables(&gpu)?;
    let goes = Space::new(&gpu, &shared, x)?;
    for space in [&stays, &goes] {
        space.works(x, 0)?;
    }
    let with = spaces_and_tables(&gpu)?;
    stays.bench.vm.bind(&shared, NEW)?;
    let more = spaces_and_tables(&gpu)?;
    check!(more.1 > with.1, "a mapping has no page tables");

    // The driver sends an invalidation twice.
    gpu.inject(Error::NoInvalidate, 2)?;
    stays.bench.vm.unbind(NEW, BYTES)?;
    drop(goes);
    check_eq!(
        spaces_and_tables(&gpu)?,
        more,
        "what is free while the device may know it"
    );
    expect_errno(
        "a job",
        stays.bench.vm.exec(&[Op::add(RESULTS, 1)]).map(drop),
        libc::EIO,
    )?;
    gpu.pci.reset()?;
    is_free(&gpu, before)?;
    stays.works(x, 1)?;
    gpu.clean()
}

/// No reset helps: bus mastering of the device is turned off, jobs end, the content of VRAM is
/// lost, and the event asks userspace to bind the driver again.
fn wedged() -> Outcome {
    let _impatient = Impatient::new()?;
    {
        let gpu = Mgpu::first()?;
        no_dump(&gpu.pci)?;
        let (x, y) = patterns();
        let (from, to) = pair(&gpu, x)?;
        let system = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
        let kept = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
        kept.map()?.fill(y);
        let either = gpu.drm.create_flags(SIZE, EITHER)?;
        system.map()?.fill(y);
        either.map()?.fill(y);
        placed(&either, uapi::PLACEMENT_VRAM)?;
        let map = from.map()?;
        check_ok!(map.verify(x), "in the window");
        let peer = Peer::open()?;
        let buffer = either.export()?;
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        let losses = gpu.drm.counter(Counter::Losses)?;
        let events = Events::listen()?;
        let vms = gpu.drm.counter(Counter::Vms)?;
        let vm = Vm::new(&gpu)?;
        let mapped = vm.create(SIZE, EITHER)?;
        vm.bind(&mapped, HUGE)?;
        vm.done(&[Op::fill(HUGE, SIZE, 1)])?;
        drop(mapped);

        gpu.inject(Error::NoRingReset, 0)?;
        gpu.inject(Error::NoReset, 1)?;
        gpu.inject(Error::Hang, 0)?;
        let queued: Vec<_> = (0..20)
            .map(|_| gpu.drm.copy((&from, 0), (&system, 0), SIZE))
            .collect::<Result<_, _>>()?;
        for end in ends(&queued)? {
            check_eq!(end, -libc::EIO, "a copy of a device that is given up");
        }
        check!(!gpu.pci.is_master()?, "it is a bus master");
        check_eq!(events.wedged(&gpu.pci)?, "rebind", "what helps");
        // Objects that were the destination of a copy from there may have lost their content, too.
        let lost = gpu.drm.counter(Counter::Losses)? - losses;
        check!((4..=5).contains(&lost), "{lost} objects are lost");
        let dump = take_dump(&gpu.pci)?;
        says(&dump, &format!("error: -{}", libc::ETIMEDOUT))?;
        is_taken_away(&map)?;
        check!(
            peer.status()?.invalidations > 0,
            "the peer was not notified"
        );
        expect_errno("a map of a peer", peer.map(), libc::EIO)?;
        let copy = gpu.drm.copy((&to, 0), (&system, 0), SIZE);
        check!(
            copy.is_err_and(|error| [libc::EIO, libc::ENODEV].contains(&error.errno)),
            "a copy of what is lost was queued"
        );
        holds(&kept, y, "in system memory")?;
        // A device without bus mastering keeps neither contexts nor page tables.
        drop(vm);
        check_eq!(
            [
                gpu.drm.counter(Counter::Vms)?,
                gpu.drm.counter(Counter::PageTables)?
            ],
            [vms, 0],
            "address spaces, and memory of page tables"
        );
        peer.unmap().or_else(|e| match e.errno {
            libc::EINVAL | libc::ENXIO => Ok(()),
            _ => Err(e),
        })?;
    }
    anew(&PciDevice::mgpus()[0])
}

/// The port above the device detects an error that is not fatal: nothing is lost.
fn harmless() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let object = gpu.drm.create(SIZE)?;
    let map = object.map()?;
    map.fill(x);
    let peer = mapped_by_peer(&object.export()?, x, &[0, 15])?;
    let losses = gpu.drm.counter(Counter::Losses)?;
    let mut log = KernelLog::open()?;
    Monitor::open()?.inject(&PORTS, "COMP_TIME")?;
    log.await_line("device recovery successful", LIMIT)?;
    check_ok!(map.verify(x), "in the window");
    peer_reads(&peer, x, &[0, 15])?;
    check_eq!(peer.status()?.invalidations, 0, "invalidations of the peer");
    check_eq!(gpu.drm.counter(Counter::Losses)?, losses, "lost objects");
    copies(&gpu)?;
    gpu.clean()
}

/// The port above the device detects a fatal error, and its slot is reset: jobs end, the content of
/// VRAM is lost, and the event asks userspace to bind the driver again.
fn fatal() -> Outcome {
    {
        let gpu = Mgpu::first()?;
        let (x, y) = patterns();
        let (from, to) = pair(&gpu, x)?;
        let kept = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
        kept.map()?.fill(y);
        let peer = mapped_by_peer(&from.export()?, x, &[0, 15])?;
        let map = from.map()?;
        check_ok!(map.verify(x), "in the window");
        let losses = gpu.drm.counter(Counter::Losses)?;
        let (events, mut log) = (Events::listen()?, KernelLog::open()?);

        gpu.inject(Error::Slow, 60_000)?;
        let queued: Vec<_> = (0..20)
            .map(|_| gpu.drm.copy((&from, 0), (&to, 0), SIZE))
            .collect::<Result<_, _>>()?;
        Monitor::open()?.inject(&PORTS, "DLP")?;
        for end in ends(&queued)? {
            check_eq!(end, -libc::EIO, "a copy of a device whose link has failed");
        }
        check_eq!(events.wedged(&gpu.pci)?, "rebind", "what helps");
        log.await_line("device recovery successful", LIMIT)?;
        check!(!gpu.pci.is_master()?, "it is a bus master");
        let lost = gpu.drm.counter(Counter::Losses)? - losses;
        check_eq!(lost, 2, "objects that are lost");
        is_taken_away(&map)?;
        check!(
            peer.status()?.invalidations > 0,
            "the peer was not notified"
        );
        expect_errno("a map of a peer", peer.map(), libc::EIO)?;
        holds(&kept, y, "in system memory")?;
    }
    anew(&PciDevice::mgpus()[0])
}

/// Binds the driver again, and checks that the device works.
fn anew(pci: &PciDevice) -> Outcome {
    Unbinding::start(pci)?.finish(LIMIT)?.rebind()?;
    let gpu = Mgpu::open(pci)?;
    check!(gpu.pci.is_master()?, "it is no bus master");
    copies(&gpu)?;
    gpu.clean()
}

/// Bus mastering is off on a device without a driver.
fn unbound() -> Outcome {
    let pci = Mgpu::first()?.pci;
    check!(pci.is_master()?, "it is no bus master");
    let gone = Unbinding::start(&pci)?.finish(LIMIT)?;
    check!(!pci.is_master()?, "it is a bus master");
    gone.rebind()?;
    copies(&Mgpu::open(&pci)?)
}

igt_main! {
    "reported", "a dump and an event", reported;
    "stuck", "a device that does nothing, with many jobs", stuck;
    "whole", "a ring that cannot be reset", whole;
    "not-cleared", "an object that could not be cleared, in an address space", not_cleared;
    "peers", "a reset by the PCI core while another GPU reads and writes", peers;
    "whole-peers", "a reset by the driver while another GPU reads and writes", whole_peers;
    "stores", "a reset by the PCI core while a process writes", stores;
    "stale", "a reset because an invalidation is not done", stale;
    "lifeless", "resets are done, and do not help", lifeless;
    "lifeless-compute", "the same while copies are done", lifeless_compute;
    "function", "a reset by others, with a peer", function;
    "vms", "resets of all of it, with address spaces", vms;
    "unforgotten", "address spaces that it does not forget before a reset", unforgotten;
    "moves", "a reset by others, with moves", moves;
    "wedged", "a device that cannot be reset", wedged;
    "harmless", "an error that is not fatal", harmless;
    "fatal", "a fatal error of its link", fatal;
    "unbound", "a device without a driver is no bus master", unbound;
}

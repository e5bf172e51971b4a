// SPDX-License-Identifier: GPL-2.0

//! The system sleeps, and the modelled GPU loses its registers and the content of VRAM.

use std::time::Duration;

use vvram_tests::asleep::Importers;
use vvram_tests::compute::{sum, Bench, Op, HUGE, RESULTS};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Gem, EITHER};
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::{patterns, peer_reads, placed, Expect};
use vvram_tests::map::{Map, PAGE64};
use vvram_tests::mgpu::{holds, reached, Error, Impatient, Mgpu, COMPUTE};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::power::{begun_sleep, no_system_sleep, system_sleep};
use vvram_tests::queue::copy_after;
use vvram_tests::syncfile::SyncFile;
use vvram_tests::{check, check_eq, check_ok, igt_main, uapi, Outcome, Stop};

const SIZE: u64 = 16 * PAGE64;
const LIMIT: Duration = Duration::from_secs(40);

/// Objects that may be in VRAM only, in either memory, and in system memory only.
struct Objects<'a> {
    all: [(Gem<'a>, Map); 3],
    pattern: Pattern,
}

impl<'a> Objects<'a> {
    fn new(gpu: &'a Mgpu, pattern: Pattern) -> Result<Self, Stop> {
        let make = |places, number| -> Result<_, Stop> {
            let object = gpu.drm.create_flags(SIZE, places)?;
            let map = object.map()?;
            map.fill(pattern.derive(number));
            Ok((object, map))
        };
        let objects = Self {
            all: [
                make(uapi::CREATE_VRAM, 0)?,
                make(EITHER, 1)?,
                make(uapi::CREATE_SYSTEM, 2)?,
            ],
            pattern,
        };
        placed(&objects.all[0].0, uapi::PLACEMENT_VRAM)?;
        placed(&objects.all[1].0, uapi::PLACEMENT_VRAM)?;
        Ok(objects)
    }

    /// Checks, after a sleep, where they are and what they have.
    #[track_caller]
    fn verify(&self) -> Outcome {
        let places = [
            uapi::PLACEMENT_VRAM,
            uapi::PLACEMENT_SYSTEM,
            uapi::PLACEMENT_SYSTEM,
        ];
        for (number, ((object, map), place)) in (0..).zip(self.all.iter().zip(places)) {
            let pattern = self.pattern.derive(number);
            placed(object, place)?;
            check_ok!(map.verify(pattern), "object {number}, mapped before");
            holds(object, pattern, "mapped after that")?;
            placed(object, place)?;
        }
        Ok(())
    }
}

/// Checks that no object has lost its content, and that both engines work on new objects.
#[track_caller]
fn works(gpu: &Mgpu) -> Outcome {
    let (x, _) = patterns();
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    check_ok!(to.map()?.verify_value(0), "a new object");
    from.map()?.fill(x);
    let copy = gpu.drm.copy((&from, 0), (&to, 0), SIZE)?;
    check_eq!(ends(&[copy])?, [1], "status of a copy");
    holds(&to, x, "what was copied")?;
    let bench = Bench::new(gpu)?;
    bench.vm.bind(&to, HUGE)?;
    check_eq!(bench.sum(HUGE, SIZE)?, sum(x, 0, SIZE / 8), "a sum");
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        0,
        "objects that are lost"
    );
    gpu.clean()
}

/// Waits for work, and returns how each part of it has ended.
fn ends(work: &[SyncFile]) -> Result<Vec<i32>, Stop> {
    work.iter()
        .map(|fence| {
            check!(fence.wait(LIMIT)?, "a fence does not signal");
            Ok(fence.status()?)
        })
        .collect()
}

/// Objects of all kinds have their bytes, and those in VRAM that cannot leave it are there again. A
/// sleep is no reset.
fn objects() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let objects = Objects::new(&gpu, x)?;
    let resets = gpu.drm.counter(Counter::CopyResets)?;
    let losses = gpu.power_losses()?;
    for sleep in 1..=2 {
        system_sleep()?;
        check_eq!(
            gpu.power_losses()?,
            losses + sleep,
            "how often it has lost its state"
        );
        check!(gpu.pci.is_master()?, "it is no bus master");
        objects.verify()?;
    }
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets, "resets");
    // What is in system memory comes back to VRAM.
    let either = &objects.all[1].0;
    gpu.force(either, "vram")?;
    placed(either, uapi::PLACEMENT_VRAM)?;
    holds(either, x.derive(1), "what has come back")?;
    works(&gpu)
}

/// The system sleeps with importers of every class.
fn importers() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let has_route = Expect::get()?.need_route().is_ok();
    let importers = Importers::new(&gpu.drm, &Peer::open()?, has_route, x)?;
    system_sleep()?;
    importers.check(y, |_, _| Ok(()))?;
    drop(importers);
    works(&gpu)
}

/// Another GPU reads and writes objects until the system sleeps, and after that, peer to peer.
fn peers() -> Outcome {
    const COPIES: usize = 6;
    Expect::get()?.need_route()?;
    let [gpu, other] = Mgpu::pair()?;
    let (x, y) = patterns();
    let [read, written] = [0; 2].map(|_| gpu.drm.create_flags(SIZE, EITHER));
    let (read, written) = (read?, written?);
    let imports = [
        other.drm.import(&read.export()?)?,
        other.drm.import(&written.export()?)?,
    ];
    let source = other.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let target = other.drm.create(SIZE)?;
    read.map()?.fill(x);
    source.map()?.fill(y);
    placed(&read, uapi::PLACEMENT_VRAM)?;
    let queue = || -> Result<Vec<SyncFile>, Stop> {
        let mut copies = Vec::new();
        for _ in 0..COPIES {
            copies.push(other.drm.copy((&imports[0], 0), (&target, 0), SIZE)?);
            copies.push(other.drm.copy((&source, 0), (&imports[1], 0), SIZE)?);
        }
        Ok(copies)
    };
    other.inject(Error::Slow, 20)?;
    let before = queue()?;
    reached(&read, &imports[0])?;
    let invalidations = imports[0].import_info()?.invalidations;
    system_sleep()?;
    check_eq!(ends(&before)?, [1; 2 * COPIES], "copies before the sleep");
    holds(&target, x, "what the other GPU has read")?;
    holds(&written, y, "what the other GPU has written")?;
    placed(&read, uapi::PLACEMENT_SYSTEM)?;
    // This maps the object again, in VRAM.
    check!(
        imports[0].import_info()?.invalidations > invalidations,
        "the importer was not notified"
    );
    placed(&read, uapi::PLACEMENT_VRAM)?;
    gpu.force(&written, "vram")?;
    target.map()?.set(0);
    written.map()?.set(0);
    check_eq!(ends(&queue()?)?, [1; 2 * COPIES], "copies after the sleep");
    reached(&read, &imports[0])?;
    reached(&written, &imports[1])?;
    holds(&target, x, "what it has read after that")?;
    holds(&written, y, "what it has written after that")?;
    works(&other)?;
    works(&gpu)
}

/// Jobs that have begun end before the system sleeps, and those that wait are done after it, once.
/// The address space of others has an object in VRAM, which comes back for them.
fn jobs() -> Outcome {
    // Together they take some 40 s, so that most of them have not begun when the device is stopped,
    // and those that have begun take less than a sleep waits for.
    const CLIENTS: usize = 4;
    const JOBS: usize = 50;
    let _impatient = Impatient::less()?;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let (bench, system) = (Bench::new(&gpu)?, Bench::new(&gpu)?);
    let clients = [0; CLIENTS].map(|_| Mgpu::open(&gpu.pci));
    let clients = clients.into_iter().collect::<Result<Vec<_>, _>>()?;
    let benches = clients.iter().map(Bench::new);
    let benches = benches.collect::<Result<Vec<_>, _>>()?;
    let objects = [
        bench.vm.create(SIZE, uapi::CREATE_VRAM)?,
        bench.vm.create(SIZE, EITHER)?,
    ];
    for (number, object) in (0..).zip(&objects) {
        object.map()?.fill(x.derive(number));
        bench.vm.bind(object, (number + 1) * HUGE)?;
    }
    let sums = || -> Outcome {
        for (number, object) in (0..).zip(&objects) {
            let (is, want) = (
                bench.sum((number + 1) * HUGE, SIZE)?,
                sum(x.derive(number), 0, SIZE / 8),
            );
            check_eq!(is, want, "sum of object {number}");
            placed(object, uapi::PLACEMENT_VRAM)?;
        }
        Ok(())
    };
    sums()?;
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    system.results.write(0, 0);
    let mut queued = Vec::new();
    // A sleep of the device ends the error.
    gpu.inject_into(COMPUTE, Error::Slow, 100)?;
    for client in &benches {
        client.results.write(0, 0);
        for _ in 0..JOBS {
            queued.push(client.vm.exec(&[Op::add(RESULTS, 1)])?);
        }
    }
    queued.push(system.vm.exec_after(&[Op::add(RESULTS, 100)], &[&fence])?);
    let behind = Bench::new(&gpu)?;
    behind.results.write(0, 0);
    queued.push(behind.vm.exec_after(&[Op::add(RESULTS, 1)], &[&fence])?);

    system_sleep()?;

    check_eq!(behind.results.read(0), 0, "the result of a job that waits");
    timeline.step()?;
    check_eq!(
        ends(&queued)?,
        [1; CLIENTS * JOBS + 2],
        "how the jobs have ended"
    );
    for client in &benches {
        check_eq!(client.results.read(0), JOBS as u64, "their result");
    }
    check_eq!(system.results.read(0), 100, "the result of the one behind");
    check_eq!(behind.results.read(0), 1, "the result of the last one");
    sums()?;
    drop((bench, benches, system, behind));
    works(&gpu)
}

/// Jobs of both engines hang when the system is about to sleep: their rings are reset, and the
/// content of VRAM is saved after that. A job that uses no VRAM may still hang when all is saved.
fn hangs() -> Outcome {
    let _impatient = Impatient::less()?;
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let objects = Objects::new(&gpu, x)?;
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    from.map()?.fill(y);
    let bench = Bench::new(&gpu)?;
    let object = bench.vm.create(SIZE, uapi::CREATE_VRAM)?;
    object.map()?.fill(y);
    bench.vm.bind(&object, HUGE)?;
    check_eq!(bench.sum(HUGE, SIZE)?, sum(y, 0, SIZE / 8), "the first sum");
    gpu.inject(Error::Hang, 0)?;
    gpu.inject_into(COMPUTE, Error::Hang, 0)?;
    let jobs = [
        gpu.drm.copy((&from, 0), (&to, 0), SIZE)?,
        bench.vm.exec(&[Op::add(RESULTS, 1)])?,
    ];
    system_sleep()?;
    check_eq!(ends(&jobs)?, [-libc::ETIMEDOUT; 2], "the jobs that hung");
    objects.verify()?;
    holds(&from, y, "the source of the copy")?;
    check_eq!(bench.sum(HUGE, SIZE)?, sum(y, 0, SIZE / 8), "the sum again");
    let system = Bench::new(&gpu)?;
    gpu.inject_into(COMPUTE, Error::Hang, 0)?;
    let jobs = [
        system.vm.exec(&[Op::add(RESULTS, 1)])?,
        system.vm.exec(&[Op::add(RESULTS, 1)])?,
    ];
    system_sleep()?;
    check_eq!(
        ends(&jobs)?,
        [-libc::ETIMEDOUT, 1],
        "a job that hung late, and the one behind it"
    );
    objects.verify()?;
    drop((bench, object, system));
    works(&gpu)
}

/// A job takes longer than the system waits for it: the system does not sleep, and everything goes
/// on. After its end the system sleeps.
fn refused() -> Outcome {
    const OPS: usize = 32;
    let _impatient = Impatient::less()?;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let objects = Objects::new(&gpu, x)?;
    let bench = Bench::new(&gpu)?;
    bench.results.write(0, 0);
    // Each of them is progress.
    gpu.inject_into(COMPUTE, Error::Slow, 1000)?;
    let job = bench.vm.exec(&[Op::add(RESULTS, 1); OPS])?;
    let next = bench.vm.exec(&[Op::add(RESULTS, 1)])?;
    no_system_sleep()?;
    check!(!job.wait(Duration::ZERO)?, "the job was done before");
    gpu.inject_into(COMPUTE, Error::Slow, 0)?;
    check_eq!(ends(&[job, next])?, [1; 2], "how the jobs have ended");
    check_eq!(bench.results.read(0), OPS as u64 + 1, "their result");
    objects.verify()?;
    system_sleep()?;
    objects.verify()?;
    drop(bench);
    works(&gpu)
}

/// A device is suspended, and then another one is not: what was saved is not needed.
fn begun() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let object = gpu.drm.create(SIZE)?;
    let map = object.map()?;
    map.fill(x);
    let peer = Peer::open()?;
    peer.attach_and_map(&object.export()?, Mode::Pinned)?;
    let table = peer.table()?;
    let before = gpu.drm.counter(Counter::DmaMapped)?;
    begun_sleep()?;
    check_eq!(
        gpu.drm.counter(Counter::DmaMapped)?,
        before,
        "system memory that the engine reaches"
    );
    placed(&object, uapi::PLACEMENT_VRAM)?;
    check_ok!(map.verify(x), "what was not lost");
    map.fill(y);
    system_sleep()?;
    placed(&object, uapi::PLACEMENT_VRAM)?;
    check_ok!(map.verify(y), "what was written between");
    check_eq!(peer.table()?, table, "the addresses of the peer");
    peer_reads(&peer, y, &[0, 15])?;
    peer.detach()?;
    works(&gpu)
}

/// A copy waits while the system sleeps, and its source has no owner any more: it fails, and writes
/// nothing.
fn freed() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let to = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    to.map()?.fill(y);
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let free = gpu.drm.vram_free()?;
    let copy = {
        let from = gpu.drm.create(SIZE)?;
        from.map()?.fill(x);
        copy_after(&gpu.drm, (&from, &to), &[&fence])?
    };
    check_eq!(gpu.drm.vram_free()?, free - SIZE, "VRAM that is free");
    system_sleep()?;
    timeline.step()?;
    check_eq!(ends(&[copy])?, [-libc::EIO], "how the copy has ended");
    holds(&to, y, "the target")?;
    let done = misc::poll(LIMIT, || (gpu.drm.vram_free().ok()? == free).then_some(()));
    check!(done.is_some(), "the source is not free");
    works(&gpu)
}

igt_main! {
    "objects", "objects of all kinds", objects;
    "importers", "importers of every class", importers;
    "peers", "another GPU that reads and writes", peers;
    "jobs", "jobs before, during and after the sleep", jobs;
    "hangs", "jobs that hang meanwhile", hangs;
    "refused", "a job that takes too long", refused;
    "begun", "a sleep that is given up", begun;
    "freed", "a copy of what has no owner", freed;
}

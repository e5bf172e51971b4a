// SPDX-License-Identifier: GPL-2.0

//! The modelled GPU goes away while its ring hangs, or is removed by surprise, or is unplugged,
//! while peers have its memory mapped and it has theirs: no task waits for ever. Processes that use
//! it are killed.

use std::thread;
use std::time::{Duration, Instant};

use vvram_tests::compute::{ballast, sum, Bench, Op, Vm, HUGE, RESULTS};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{DmaBuf, Gem, EITHER};
use vvram_tests::failure::{is_taken_away, Events};
use vvram_tests::fixture::{mapped_by_peer, patterns, peer_reads, placed};
use vvram_tests::map::PAGE;
use vvram_tests::mgpu::{holds, reached, replug, Error, Impatient, Mgpu, COMPUTE, COPY, DRIVER};
use vvram_tests::misc::{self, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::{Child, Exit, KernelLog, Steps};
use vvram_tests::rebind::{Probe, Unbinding};
use vvram_tests::signals::await_sleep;
use vvram_tests::syncfile::SyncFile;
use vvram_tests::uapi::COPIES_MAX;
use vvram_tests::{check, check_eq, expect_errno, igt_main, uapi, Outcome, Stop, SysError};

const SIZE: u64 = 16 * PAGE as u64;
const WORDS: u64 = SIZE / 8;
const LIMIT: Duration = Duration::from_secs(20);
/// Where the kernel waits for an invalidation, and where an unmap waits for its lock:
/// `Invalidator::invalidate`, in `AddressSpace::change`.
const INVALIDATE: &str = "10invalidate";
const UNMAP: &str = "12AddressSpace";

/// Waits for jobs, and returns how they ended.
fn ends(jobs: &[SyncFile]) -> Result<Vec<i32>, Stop> {
    jobs.iter()
        .map(|job| {
            check!(job.wait(LIMIT)?, "a fence does not signal");
            Ok(job.status()?)
        })
        .collect()
}

/// Lets a peer map memory of `gpu` that has the pattern, and queues jobs of `other` which hang and
/// use that memory.
fn in_use(gpu: &Mgpu, other: &Mgpu, pattern: Pattern) -> Result<(Peer, Vec<SyncFile>), Stop> {
    let object = gpu.drm.create_flags(SIZE, EITHER)?;
    object.map()?.fill(pattern);
    let buffer = object.export()?;
    let peer = mapped_by_peer(&buffer, pattern, &[0, 15])?;
    let (import, ours) = (other.drm.import(&buffer)?, other.drm.create(SIZE)?);
    other.drm.copy((&import, 0), (&ours, 0), SIZE)?.finish()?;
    other.inject(Error::Hang, 0)?;
    let copies = several(20, || other.drm.copy((&import, 0), (&ours, 0), SIZE))?;
    Ok((peer, copies))
}

/// Both GPUs have jobs that hang and that use the memory of the other GPU, and a peer has mapped
/// memory of both. One of them is unbound.
fn hung() -> Outcome {
    let _impatient = Impatient::new()?;
    let name = {
        let [a, b] = Mgpu::pair()?;
        let (x, _) = patterns();
        let (peer, by_b) = in_use(&a, &b, x)?;
        let (other, by_a) = in_use(&b, &a, x)?;
        let gone = Unbinding::start(&a.pci)?.finish(LIMIT)?;
        for copies in [by_b, by_a] {
            let ends = ends(&copies)?;
            check!(ends[0] < 0, "the first copy was done: {ends:?}");
        }
        check!(
            peer.status()?.invalidations > 0,
            "the mappings of the peer stayed"
        );
        expect_errno("a map after that", peer.map(), libc::ENODEV)?;
        peer_reads(&other, x, &[0, 15])?;
        b.clean()?;
        gone.rebind()?;
        a.pci.clone()
    };
    works(&name)
}

/// Checks that the device works.
fn works(pci: &PciDevice) -> Outcome {
    let gpu = Mgpu::open(pci)?;
    let (x, _) = patterns();
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    from.map()?.fill(x);
    gpu.drm.copy((&from, 0), (&to, 0), SIZE)?.finish()?;
    holds(&to, x, "after all")?;
    gpu.clean()
}

/// Begins something several times.
fn several<T>(
    count: u32,
    mut begin: impl FnMut() -> Result<T, SysError>,
) -> Result<Vec<T>, SysError> {
    (0..count).map(|_| begin()).collect()
}

/// Checks that no line of the kernel log contains `text`.
fn not_said(log: &mut KernelLog, text: &str) -> Outcome {
    let lines = log.lines();
    let found = lines.iter().find(|line| line.contains(text));
    check!(found.is_none(), "the log says: {found:?}");
    Ok(())
}

/// Maps an import at [`HUGE`], and checks how the device reaches it, where the object is, and the
/// sum that a job finds.
fn mapped(bench: &Bench<'_>, object: &Gem<'_>, import: &Gem<'_>, pattern: Pattern) -> Outcome {
    bench.vm.bind(import, HUGE)?;
    check_eq!(
        bench.sum(HUGE, SIZE)?,
        sum(pattern, 0, WORDS),
        "sum of memory of the other GPU"
    );
    reached(object, import)
}

/// Queues a job that adds up what is mapped at [`HUGE`], and writes the sum to a word of the
/// results.
fn adds(bench: &Bench<'_>, word: usize) -> Result<SyncFile, SysError> {
    adds_after(bench, word, &[])
}

/// As [`adds`], behind fences.
fn adds_after(bench: &Bench<'_>, word: usize, fences: &[&SyncFile]) -> Result<SyncFile, SysError> {
    let to = RESULTS + 8 * word as u64;
    bench.vm.exec_after(&[Op::checksum(HUGE, SIZE, to)], fences)
}

/// Two GPUs that use memory of each other, of which the second one goes away, and a peer that has
/// mapped memory of that one.
struct Fixture<'a> {
    stays: &'a Mgpu,
    goes: &'a Mgpu,
    /// VRAM of the GPU that stays, with a pattern, and the same as the other one has imported it.
    exported: Gem<'a>,
    theirs: Gem<'a>,
    /// Where the GPU that goes copies that to.
    mine: Gem<'a>,
    /// VRAM of the GPU that goes, with another pattern, as the other one has imported it.
    import: Gem<'a>,
    /// Where the GPU that stays copies that to.
    ours: Gem<'a>,
    /// An address space of the GPU that stays, which maps `import` as well.
    bench: Bench<'a>,
    peer: Peer,
    /// The patterns of `exported` and of `import`.
    patterns: [Pattern; 2],
    own: Gem<'a>,
    _buffer: DmaBuf,
}

impl<'a> Fixture<'a> {
    fn new([stays, goes]: &'a [Mgpu; 2]) -> Result<Self, Stop> {
        let (x, y) = patterns();
        let exported = stays.drm.create_flags(SIZE, EITHER)?;
        // Filled by the engine, so that only the importer needs a window.
        let source = stays.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
        source.map()?.fill(x);
        stays
            .drm
            .copy((&source, 0), (&exported, 0), SIZE)?
            .finish()?;
        // An object that is never evicted.
        let own = goes.drm.create(SIZE)?;
        own.map()?.fill(y);
        let buffer = own.export()?;
        let this = Self {
            stays,
            goes,
            theirs: goes.drm.import(&exported.export()?)?,
            exported,
            mine: goes.drm.create(SIZE)?,
            import: stays.drm.import(&buffer)?,
            ours: stays.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?,
            bench: Bench::new(stays)?,
            peer: mapped_by_peer(&buffer, y, &[0, 15])?,
            patterns: [x, y],
            own,
            _buffer: buffer,
        };
        this.read()?.finish()?;
        this.write()?.finish()?;
        mapped(&this.bench, &this.own, &this.import, y)?;
        goes.clean()?;
        Ok(this)
    }

    /// The GPU that stays reads memory of the other one.
    fn read(&self) -> Result<SyncFile, SysError> {
        let (from, to) = (&self.import, &self.ours);
        self.stays.drm.copy((from, 0), (to, 0), SIZE)
    }

    /// The GPU that goes reads memory of the other one.
    fn write(&self) -> Result<SyncFile, SysError> {
        let (from, to) = (&self.theirs, &self.mine);
        self.goes.drm.copy((from, 0), (to, 0), SIZE)
    }

    /// Removes the GPU by surprise. Checks that each of its jobs ends with one of some errors, and
    /// that those of the other GPU, which read its memory, end. More jobs fail. All of its VRAM is
    /// lost, of which processes, importers and userspace are notified.
    fn vanish(&self, jobs: &[SyncFile], errors: &[i32], reads: &[SyncFile]) -> Outcome {
        let events = Events::listen()?;
        self.goes.inject(Error::Removed, 0)?;
        for end in ends(jobs)? {
            check!(
                errors.contains(&-end),
                "a job of a device that is gone: {end}"
            );
        }
        // What it reads where no device answers depends on the bus.
        for end in ends(reads)? {
            check!(
                [1, -libc::EIO].contains(&end),
                "a copy or a job of the other GPU: {end}"
            );
        }
        match self.write() {
            Ok(copy) => check_eq!(ends(&[copy])?, [-libc::ENODEV], "a copy after that"),
            Err(error) => check!(
                [libc::ENODEV, libc::EIO].contains(&error.errno),
                "a copy after that: {error:?}"
            ),
        }
        check_eq!(events.wedged(&self.goes.pci)?, "bus-reset", "what helps");
        is_taken_away(&self.own.map()?)?;
        check!(
            self.peer.status()?.invalidations > 0,
            "the mappings of the peer stayed"
        );
        expect_errno("a map of the peer", self.peer.map(), libc::EIO)?;
        // The timeout may be shorter than these take.
        for read in [self.read(), adds(&self.bench, 0)].into_iter().flatten() {
            ends(&[read])?;
        }
        Ok(())
    }

    /// Unplugs the GPU, and plugs it in again. Its files stay open.
    fn replug(&self) -> Outcome {
        replug(&self.goes.pci, Some(DRIVER), LIMIT)?;
        check!(
            self.peer.status()?.invalidations > 0,
            "the mappings of the peer stayed"
        );
        Ok(())
    }

    /// Checks that the memory of the GPU that has gone is of no use, that the other one needs no
    /// window for it any more, and that both work.
    fn after(&self) -> Outcome {
        for (what, result) in [
            ("a map of the peer", self.peer.map()),
            ("a copy of the other GPU", self.read().map(drop)),
            ("a job of the other GPU", adds(&self.bench, 0).map(drop)),
            ("a copy of a file that is left", self.write().map(drop)),
        ] {
            expect_errno(what, result, libc::ENODEV)?;
        }
        self.bench.vm.unbind(HUGE, SIZE)?;
        self.bench.results.write(0, 0);
        self.bench.vm.done(&[Op::add(RESULTS, 7)])?;
        check_eq!(
            self.bench.results.read(0),
            7,
            "a job of the other GPU without that memory"
        );
        self.stays.await_no_window()?;
        holds(&self.exported, self.patterns[0], "the exported object")?;
        works(&self.goes.pci)?;
        works(&self.stays.pci)?;
        self.stays.clean()
    }
}

/// `begin` begins something in a device, and calls [`Fixture::vanish`]. Checks what comes after.
fn surprise(begin: impl FnOnce(&Fixture<'_>) -> Outcome) -> Outcome {
    let pair = Mgpu::pair()?;
    let fixture = Fixture::new(&pair)?;
    let began = begin(&fixture);
    // Also after a failure, for the next subtest.
    let back = fixture.replug();
    began?;
    back?;
    fixture.after()
}

/// A device is removed by surprise with copies, and jobs of two address spaces, one of which maps
/// memory of the other device, while copies and jobs of that one read its memory.
fn removed() -> Outcome {
    // The timeout is 1000 seconds: the jobs end because the device is gone.
    let _patient = Impatient::never()?;
    surprise(|fixture| {
        let benches = [Bench::new(fixture.goes)?, Bench::new(fixture.goes)?];
        let job = || benches[0].vm.exec(&[Op::add(RESULTS, 1)]);
        job()?.finish()?;
        let [x, _] = fixture.patterns;
        mapped(&benches[1], &fixture.exported, &fixture.theirs, x)?;
        for ring in [COPY, COMPUTE] {
            fixture.stays.inject_into(ring, Error::Slow, 50)?;
            fixture.goes.inject_into(ring, Error::Slow, 60_000)?;
        }
        let mut reads = Vec::new();
        for word in 0..10 {
            reads.push(fixture.read()?);
            reads.push(adds(&fixture.bench, word)?);
        }
        let mut jobs = several(10, || fixture.write())?;
        jobs.extend(several(5, job)?);
        // These wait for the copies of the same memory.
        jobs.extend(several(5, || adds(&benches[1], 0))?);
        fixture.vanish(&jobs, &[libc::ENODEV], &reads)?;
        for ring in [COPY, COMPUTE] {
            fixture.stays.inject_into(ring, Error::Slow, 0)?;
        }
        Ok(())
    })
}

/// A device is removed by surprise while its ring is reset, which it does not complete.
fn removed_in_reset() -> Outcome {
    let _impatient = Impatient::new()?;
    surprise(|fixture| {
        let mut log = KernelLog::open()?;
        fixture.goes.inject(Error::NoRingReset, 0)?;
        fixture.goes.inject(Error::Hang, 0)?;
        let jobs = several(20, || fixture.write())?;
        log.await_line("ring 0 is reset", LIMIT)?;
        fixture.vanish(&jobs, &[libc::ENODEV], &[])?;
        // The wait for the reset has not lasted until its limit.
        not_said(&mut log, "the reset of ring 0 is not done")
    })
}

/// A device is removed by surprise while it leaves an invalidation unanswered: a task waits for it,
/// and another task waits for the lock.
fn removed_in_invalidation() -> Outcome {
    surprise(|fixture| {
        let mut log = KernelLog::open()?;
        let benches = [Bench::new(fixture.goes)?, Bench::new(fixture.goes)?];
        for bench in &benches {
            bench.vm.done(&[Op::add(RESULTS, 1)])?;
        }
        let unmap = |index: usize| -> Outcome {
            let bench: &Bench<'_> = &benches[index];
            Ok(bench.vm.unbind(RESULTS, PAGE as u64)?)
        };
        fixture.goes.inject(Error::NoInvalidate, 0xffff)?;
        let mut first = Child::spawn(|| unmap(0))?;
        await_sleep(&mut first, INVALIDATE, "D")?;
        let mut second = Child::spawn(|| unmap(1))?;
        await_sleep(&mut second, UNMAP, "D")?;
        fixture.vanish(&[], &[], &[])?;
        first.join("the unmap that waits for the device", LIMIT)?;
        second.join("the unmap that waits for a lock", LIMIT)?;
        // The wait has not lasted until its limit.
        not_said(&mut log, "an invalidation failed")
    })
}

/// A device is removed by surprise while objects leave its VRAM for other ones: all of them have
/// lost their content, and the CPU does none of the moves.
fn removed_in_eviction() -> Outcome {
    const COUNT: u64 = 6;
    surprise(|fixture| {
        let gpu = fixture.goes;
        let (x, _) = patterns();
        let ballast = ballast(gpu, COUNT * SIZE)?;
        let old: Vec<_> = (0..COUNT)
            .map(|_| gpu.drm.create_flags(SIZE, EITHER))
            .collect::<Result<_, _>>()?;
        for object in &old {
            object.map()?.fill(x);
            placed(object, uapi::PLACEMENT_VRAM)?;
        }
        let system = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
        system.map()?.fill(x);
        let (again, losses) = (gpu.done_again()?, gpu.drm.counter(Counter::Losses)?);
        // The moves take longer than the test, and less than the timeout.
        gpu.inject(Error::Slow, 4000)?;
        let new: Vec<_> = (0..COUNT)
            .map(|_| gpu.drm.create(SIZE))
            .collect::<Result<_, _>>()?;
        let copies = new
            .iter()
            .map(|object| gpu.drm.copy((object, 0), (&system, 0), SIZE))
            .collect::<Result<Vec<_>, _>>()?;
        // A copy of what is lost fails with another error.
        fixture.vanish(&copies, &[libc::ENODEV, libc::EIO], &[])?;
        for object in &old {
            placed(object, uapi::PLACEMENT_SYSTEM)?;
            is_taken_away(&object.map()?)?;
        }
        let lost = gpu.drm.counter(Counter::Losses)? - losses;
        // So are the other ones in VRAM, and maybe the target of the copies.
        let all = 2 * COUNT + 2 + ballast.len() as u64;
        check!((all..=all + 1).contains(&lost), "{lost} objects are lost");
        check_eq!(gpu.done_again()?, again, "moves by the CPU");
        Ok(())
    })
}

/// A device is unplugged, with slow copies and jobs that use the memory of another one, whose slow
/// copies and jobs use its memory, and with a peer.
fn unplugged() -> Outcome {
    let pair = Mgpu::pair()?;
    let fixture = Fixture::new(&pair)?;
    let [a, b] = &pair;
    let [x, y] = fixture.patterns;
    fixture.ours.map()?.fill(x);
    fixture.bench.results.set(u64::MAX);
    let bench = Bench::new(b)?;
    mapped(&bench, &fixture.exported, &fixture.theirs, x)?;

    a.inject(Error::Slow, 50)?;
    a.inject_into(COMPUTE, Error::Slow, 20)?;
    b.inject(Error::Slow, 100)?;
    let (mut reads, mut sums) = (Vec::new(), Vec::new());
    for word in 0..10 {
        reads.push(fixture.read()?);
        sums.push(adds(&fixture.bench, word)?);
    }
    let writes = several(COPIES_MAX, || fixture.write())?;
    let last = writes.last().ok_or_else(|| Stop::fail("no copy"))?;
    let jobs = several(5, || adds_after(&bench, 0, &[last]))?;
    fixture.replug()?;

    // The unplug has waited for what the other GPU reads, and for the jobs in the ring.
    for copy in &reads {
        check_eq!(copy.status()?, 1, "status of a copy of the other GPU");
    }
    for (word, job) in sums.iter().enumerate() {
        check_eq!(
            (job.status()?, fixture.bench.results.read(word)),
            (1, sum(y, 0, WORDS)),
            "status and sum of job {word} of the other GPU"
        );
    }
    let ends = writes
        .iter()
        .map(SyncFile::status)
        .collect::<Result<Vec<_>, _>>()?;
    let done = ends.iter().take_while(|end| **end == 1).count();
    check!(
        done < ends.len() && ends[done..].iter().all(|end| *end == -libc::ECANCELED),
        "how its copies ended: {ends:?}"
    );
    for job in &jobs {
        check_eq!(job.status()?, -libc::ECANCELED, "status of one of its jobs");
    }
    expect_errno(
        "a job of a file that is left",
        adds(&bench, 0),
        libc::ENODEV,
    )?;
    for ring in [COPY, COMPUTE] {
        a.inject_into(ring, Error::Slow, 0)?;
    }
    holds(&fixture.ours, y, "what the other GPU has read")?;
    fixture.after()
}

/// The calls that a process repeats until it is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    /// Windows for a page fault and for a peer, of objects that exist for one round.
    Windows,
    /// Address spaces that are destroyed with a job in the ring.
    Spaces,
    /// Resets of the device through sysfs.
    Resets,
}

impl Victim {
    const ALL: [Self; 3] = [Self::Windows, Self::Spaces, Self::Resets];

    /// Works for ever, and makes a step when the first round is done.
    fn work(self, pci: &PciDevice, first: &Steps) -> Outcome {
        let gpu = Mgpu::open(pci)?;
        let object = gpu.drm.create(SIZE)?;
        let peer = Peer::open()?;
        for round in 0u64.. {
            match self {
                Self::Windows => {
                    let object = gpu.drm.create(SIZE)?;
                    object.map()?.write(0, round);
                    peer.attach_and_map(&object.export()?, Mode::Dynamic)?;
                    peer.detach()?;
                }
                Self::Spaces => {
                    let vm = Vm::new(&gpu)?;
                    vm.bind(&object, HUGE)?;
                    vm.exec(&[Op::fill(HUGE, SIZE, 1)])?;
                    vm.destroy()?;
                }
                Self::Resets => pci.reset()?,
            }
            if round == 0 {
                first.done()?;
            }
        }
        Ok(())
    }
}

/// Kills a process after at most so many milliseconds. It may have ended before.
fn kill_within(child: &mut Child, what: &str, random: &mut Lcg, most: u64) -> Outcome {
    thread::sleep(Duration::from_millis(random.below(most)));
    child.signal(libc::SIGKILL);
    let exit = child.wait(LIMIT);
    check!(
        matches!(exit, Some(Exit::Signal(libc::SIGKILL) | Exit::Code(0))),
        "a process that was killed during {what} has ended with {exit:?}; {}",
        child.whereabouts()
    );
    Ok(())
}

/// How often a process is killed in each of its calls.
const KILLS: u64 = 3;

/// A process is killed at any time of a call into the driver: what it had is freed, objects of
/// others keep their bytes, and the device works.
fn killed() -> Outcome {
    let mut random = Lcg::new(misc::nonce());
    let [gpu, other] = Mgpu::pair()?;
    let pci = &gpu.pci;
    let (x, y) = patterns();
    let (kept, shared) = (gpu.drm.create(SIZE)?, gpu.drm.create_flags(SIZE, EITHER)?);
    kept.map()?.fill(x);
    shared.map()?.fill(y);
    let import = other.drm.import(&shared.export()?)?;
    let target = other.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let state = || -> Result<[u64; 4], Stop> {
        // A reset has moved it to system memory.
        gpu.force(&shared, "vram")?;
        target.map()?.set(0);
        let copy = other.drm.copy((&import, 0), (&target, 0), SIZE)?;
        check_eq!(ends(&[copy])?, [1], "a copy of the other GPU");
        holds(&target, y, "what the other GPU has read")?;
        holds(&kept, x, "an object of another process")?;
        placed(&shared, uapi::PLACEMENT_VRAM)?;
        let mut state = [0; 4];
        for (value, counter) in state.iter_mut().zip([
            Counter::VramFree,
            Counter::ApertureFree,
            Counter::Vms,
            Counter::PageTables,
        ]) {
            *value = gpu.drm.counter(counter)?;
        }
        Ok(state)
    };
    let before = state()?;
    for victim in (0..KILLS * misc::soak()).flat_map(|_| Victim::ALL) {
        let what = format!("{victim:?}");
        let first = Steps::new()?;
        let mut child = Child::spawn(|| victim.work(pci, &first))?;
        first.wait(&what, LIMIT)?;
        let most = match victim {
            Victim::Resets => 150,
            _ => 20,
        };
        kill_within(&mut child, &what, &mut random, most)?;
        let mut after = state()?;
        let same = misc::poll(LIMIT, || {
            after = state().ok()?;
            (after == before).then_some(())
        });
        check!(
            same.is_some(),
            "free VRAM, aperture and address spaces, and page tables, after {what}: {after:?}, they \
             were {before:?}"
        );
        works(pci)?;
    }
    other.clean()?;
    gpu.clean()
}

/// A process is killed while it binds the driver. The probe may fail then, and the driver can be
/// bound again.
fn killed_in_probe() -> Outcome {
    let mut random = Lcg::new(misc::nonce());
    let (pci, reports) = {
        let gpu = Mgpu::first()?;
        (gpu.pci.clone(), gpu.reports()?)
    };
    let mut most = None;
    for _ in 0..=KILLS * misc::soak() {
        // The drop of this binds the driver anew, whatever the probe has come to.
        let probe = Probe::new(&pci, DRIVER);
        pci.unbind(DRIVER)?;
        let start = Instant::now();
        let mut child = Child::spawn(|| Ok(pci.bind(DRIVER)?))?;
        match most {
            // The first one is not killed.
            None => {
                child.join("a probe", LIMIT)?;
                most = Some(start.elapsed().as_millis() as u64 + 1);
            }
            Some(most) => kill_within(&mut child, "a probe", &mut random, most)?,
        }
        drop(probe);
        works(&pci)?;
    }
    check_eq!(
        Mgpu::open(&pci)?.reports()?,
        reports,
        "reports of {}",
        pci.name()
    );
    Ok(())
}

igt_main! {
    "hung", "of two that hang one is unbound, with peers", hung;
    "unplugged", "one is unplugged, with jobs and peers", unplugged;
    "removed", "one is removed by surprise, with jobs of all engines and peers", removed;
    "removed-in-reset", "the same, while its ring is reset", removed_in_reset;
    "removed-in-invalidation", "the same, while it looks at page tables", removed_in_invalidation;
    "removed-in-eviction", "the same, while objects move", removed_in_eviction;
    "killed", "processes are killed while they use or reset it", killed;
    "killed-in-probe", "processes are killed while they bind its driver", killed_in_probe;
}

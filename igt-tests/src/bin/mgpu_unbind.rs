// SPDX-License-Identifier: GPL-2.0

//! The driver of the modelled GPU is unbound while the device works.

use std::process::Command;
use std::thread;
use std::time::Duration;

use vvram_tests::compute::{sum, Bench, Op, Vm, HUGE, RESULTS};
use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::{mapped_by_peer, patterns, placed};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::mgpu::{
    holds, reached, replug, set_bound, Error, Impatient, Mgpu, COMPUTE, COPY, DRIVER,
};
use vvram_tests::misc::{self, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::proc::Child;
use vvram_tests::queue::copy_after;
use vvram_tests::rebind::{delete_module, module_users, Unbinding};
use vvram_tests::reloads;
use vvram_tests::syncfile::SyncFile;
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, fail, igt_main, uapi, Outcome, Stop, SysError,
};

const SIZE: u64 = 16 * PAGE64;
/// How many words of 64 bits an object and a page have.
const WORDS: u64 = SIZE / 8;
const PAGE_WORDS: usize = PAGE / 8;
const LIMIT: Duration = Duration::from_secs(30);
/// What a window shows that has no memory.
const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Queues copies that take some time each.
fn queue(gpu: &Mgpu, count: usize) -> Result<Vec<SyncFile>, Stop> {
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create_flags(SIZE, EITHER)?);
    // This copy is done before the next ones are slow.
    gpu.drm.copy((&from, 0), (&to, 0), SIZE)?.finish()?;
    gpu.inject(Error::Slow, 50)?;
    let copies = (0..count)
        .map(|_| gpu.drm.copy((&from, 0), (&to, 0), SIZE))
        .collect::<Result<Vec<_>, _>>()?;
    // Handles are closed while the copies are queued.
    Ok(copies)
}

/// Checks that all fences signal: those of jobs that were not done signal with an error.
fn ended(copies: &[SyncFile]) -> Outcome {
    let mut failed = 0;
    for copy in copies {
        copy.finish()?;
        match copy.status()? {
            1 => check_eq!(failed, 0, "copies that failed before one that did not"),
            status => {
                check_eq!(status, -libc::ECANCELED, "status of a copy");
                failed += 1;
            }
        }
    }
    check!(
        failed > 0,
        "all copies were done before the driver had gone"
    );
    Ok(())
}

/// Checks that both engines of the device work.
fn works() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    from.map()?.fill(x);
    gpu.drm.copy((&from, 0), (&to, 0), SIZE)?.finish()?;
    holds(&to, x, "after all")?;
    let bench = Bench::new(&gpu)?;
    bench.vm.bind(&to, HUGE)?;
    check_eq!(bench.sum(HUGE, SIZE)?, sum(x, 0, WORDS), "sum after all");
    gpu.clean()
}

/// Copies an object, and checks that it was done.
fn copied(gpu: &Mgpu, from: &Gem<'_>, to: &Gem<'_>) -> Outcome {
    let copy = gpu.drm.copy((from, 0), (to, 0), SIZE)?;
    copy.finish()?;
    check_eq!(copy.status()?, 1, "status of a copy");
    Ok(())
}

/// Makes an object in VRAM that has a pattern. The engine fills it, so that only importers need a
/// window.
fn filled(gpu: &Mgpu, pattern: Pattern) -> Result<Gem<'_>, Stop> {
    let source = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    source.map()?.fill(pattern);
    let object = gpu.drm.create_flags(SIZE, EITHER)?;
    copied(gpu, &source, &object)?;
    Ok(object)
}

/// Returns a copy of an object, for which no window is needed.
fn fetched(gpu: &Mgpu, object: &Gem<'_>) -> Result<Map, Stop> {
    let system = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let map = system.map()?;
    map.set(0);
    copied(gpu, object, &system)?;
    Ok(map)
}

/// Queues a job that writes the sum of the object at [`HUGE`] to an address.
fn sums(vm: &Vm<'_>, to: u64) -> Result<SyncFile, SysError> {
    vm.exec(&[Op::checksum(HUGE, SIZE, to)])
}

/// The PCI driver is unbound with jobs in the ring and in the queue.
fn core() -> Outcome {
    {
        let gpu = Mgpu::first()?;
        let copies = queue(&gpu, 40)?;
        let gone = Unbinding::start(&gpu.pci)?.finish(LIMIT)?;
        ended(&copies)?;
        expect_errno("an object after that", gpu.drm.create(PAGE64), libc::ENODEV)?;
        gone.rebind()?;
    }
    works()
}

/// The DRM driver is unbound from the auxiliary device, and bound again.
fn auxiliary() -> Outcome {
    {
        let gpu = Mgpu::first()?;
        let copies = queue(&gpu, 40)?;
        set_bound(gpu.device(), false)?;
        ended(&copies)?;
        expect_errno("an object after that", gpu.drm.create(PAGE64), libc::ENODEV)?;
        set_bound(gpu.device(), true)?;
        let again = Mgpu::open(&gpu.pci)?;
        again.inject(Error::Slow, 0)?;
    }
    works()
}

/// The driver is unbound while a peer has mapped a window, which is revoked.
fn exported() -> Outcome {
    {
        let gpu = Mgpu::first()?;
        let (x, _) = patterns();
        let object = gpu.drm.create_flags(SIZE, EITHER)?;
        object.map()?.fill(x);
        let buffer = object.export()?;
        let peer = mapped_by_peer(&buffer, x, &[0, 15])?;
        let copies = queue(&gpu, 40)?;
        let gone = Unbinding::start(&gpu.pci)?.finish(LIMIT)?;
        ended(&copies)?;
        check!(
            peer.status()?.invalidations > 0,
            "the peer was not notified"
        );
        expect_errno("a map after that", peer.map(), libc::ENODEV)?;
        gone.rebind()?;
    }
    works()
}

/// The importer is unbound while its engines work on buffers of another GPU.
fn importer() -> Outcome {
    const JOBS: u64 = 40;
    const SUMS: u64 = 2 * HUGE;
    {
        let [a, b] = Mgpu::pair()?;
        let (x, y) = patterns();
        // The copies use the first one. The jobs read the second one, and write to the third one,
        // which can be read after the unbind. They do not wait for each other.
        let (object, read, written) = (filled(&a, x)?, filled(&a, x)?, filled(&a, y)?);
        let import = b.drm.import(&object.export()?)?;
        let (source, target) = (
            b.drm.import(&read.export()?)?,
            b.drm.import(&written.export()?)?,
        );
        let ours = b.drm.create(SIZE)?;
        let vm = Vm::new(&b)?;
        vm.bind(&source, HUGE)?;
        vm.bind(&target, SUMS)?;
        copied(&b, &import, &ours)?;
        vm.done(&[Op::checksum(HUGE, SIZE, SUMS)])?;
        for (object, import) in [(&object, &import), (&read, &source), (&written, &target)] {
            reached(object, import)?;
        }
        // The unbind waits for the jobs first, so that copies are still under way after that.
        b.inject_into(COPY, Error::Slow, 100)?;
        b.inject_into(COMPUTE, Error::Slow, 20)?;
        // Poison that is written through a window that is closed would be found, also without an
        // IOMMU.
        let copies = (0..20)
            .flat_map(|_| [(&ours, &import), (&import, &ours)])
            .map(|(from, to)| b.drm.copy((from, 0), (to, 0), SIZE))
            .collect::<Result<Vec<_>, _>>()?;
        let jobs = (1..=JOBS)
            .map(|word| sums(&vm, SUMS + 8 * word))
            .collect::<Result<Vec<_>, _>>()?;
        // By then others are in the ring.
        jobs[0].finish()?;
        let gone = Unbinding::start(&b.pci)?.finish(LIMIT)?;
        ended(&copies)?;
        ended(&jobs)?;
        expect_errno("a job after that", sums(&vm, SUMS), libc::ENODEV)?;
        a.await_no_window()?;

        // The jobs that were cancelled have not begun.
        let mut done = 0;
        for job in &jobs {
            done += u64::from(job.status()? == 1);
        }
        check!(done > 0, "no job was done");
        let results = fetched(&a, &written)?;
        let want = sum(x, 0, WORDS);
        for word in 0..WORDS {
            // The first word is that of the job before.
            let want = if word <= done { want } else { y.word(word) };
            check_eq!(
                results.read(word as usize),
                want,
                "word {word} of the results of {done} jobs"
            );
        }
        for (object, what) in [(&object, "what was copied"), (&read, "what was read")] {
            placed(object, uapi::PLACEMENT_VRAM)?;
            check_ok!(fetched(&a, object)?.verify(x), "{what}");
        }
        a.clean()?;
        gone.rebind()?;
    }
    for gpu in Mgpu::pair()? {
        gpu.inject(Error::Slow, 0)?;
        gpu.clean()?;
    }
    works()
}

/// The exporter is unbound while the engines of another GPU work on its buffer.
fn exporter() -> Outcome {
    {
        let [a, b] = Mgpu::pair()?;
        let (x, y) = patterns();
        let object = filled(&a, x)?;
        let import = b.drm.import(&object.export()?)?;
        let ours = b.drm.create(SIZE)?;
        let bench = Bench::new(&b)?;
        bench.vm.bind(&import, HUGE)?;
        copied(&b, &import, &ours)?;
        let want = sum(x, 0, WORDS);
        check_eq!(bench.sum(HUGE, SIZE)?, want, "sum before the unbind");
        reached(&object, &import)?;
        ours.map()?.fill(y);
        bench.results.set(u64::MAX);
        for ring in [COPY, COMPUTE] {
            b.inject_into(ring, Error::Slow, 20)?;
        }
        let at = |job: usize| job % PAGE_WORDS;
        let add = |job: usize| sums(&bench.vm, RESULTS + 8 * at(job) as u64);
        let (mut copies, mut jobs) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            for _ in 0..2 {
                copies.push(b.drm.copy((&import, 0), (&ours, 0), SIZE)?);
            }
            jobs.push(add(jobs.len())?);
        }
        let unbinding = Unbinding::start(&a.pci)?;
        // More jobs are done, until one is refused, once those before it are done.
        let refused = misc::poll(LIMIT, || match add(jobs.len()) {
            Ok(job) => {
                jobs.push(job);
                None
            }
            Err(error) => Some(error),
        });
        let gone = unbinding.finish(LIMIT)?;
        match refused {
            Some(error) => check_eq!(error.errno, libc::ENODEV, "error of a job meanwhile"),
            None => fail!("jobs go on without the exporter"),
        }
        // The unbind has waited for the copies and the jobs.
        for copy in &copies {
            check_eq!(
                copy.status()?,
                1,
                "status of a copy from the device that has gone"
            );
        }
        for (index, job) in jobs.iter().enumerate() {
            check_eq!(
                (job.status()?, bench.results.read(at(index))),
                (1, want),
                "status and sum of job {index} of {}, of the device that has gone",
                jobs.len()
            );
        }
        for ring in [COPY, COMPUTE] {
            b.inject_into(ring, Error::Slow, 0)?;
        }
        holds(&ours, x, "what was copied")?;
        expect_errno(
            "a copy after that",
            b.drm.copy((&import, 0), (&ours, 0), SIZE),
            libc::ENODEV,
        )?;
        // As long as the address space maps the buffer, whatever the job uses.
        for (what, result) in [
            ("a job", add(0)),
            ("the same once more", add(0)),
            ("another job", bench.vm.exec(&[Op::add(RESULTS, 1)])),
        ] {
            expect_errno(&format!("{what} after that"), result, libc::ENODEV)?;
        }
        bench.vm.unbind(HUGE, SIZE)?;
        bench.results.write(0, 0);
        bench.vm.done(&[Op::add(RESULTS, 7)])?;
        check_eq!(bench.results.read(0), 7, "a job without the buffer");
        b.clean()?;
        gone.rebind()?;
    }
    misc::poll(LIMIT, || Mgpu::pair().ok());
    works()
}

/// Queues jobs in both rings, which take some time each. Returns those of the copy engine, and
/// those of the compute engine.
fn both(gpu: &Mgpu, count: usize) -> Result<[Vec<SyncFile>; 2], Stop> {
    let vm = Vm::new(gpu)?;
    // Objects that are private to the address space, and others, in all kinds of memory.
    let objects = [
        vm.create(SIZE, EITHER)?,
        gpu.drm.create(SIZE)?,
        gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?,
    ];
    for (index, object) in (0..).zip(&objects) {
        vm.bind(object, index * HUGE)?;
    }
    vm.done(&[Op::fill(0, SIZE, 1)])?;
    gpu.inject_into(COMPUTE, Error::Slow, 50)?;
    let copies = queue(gpu, count)?;
    let jobs = (0..count)
        .map(|_| vm.exec(&[Op::copy(0, HUGE, SIZE), Op::copy(HUGE, 2 * HUGE, SIZE)]))
        .collect::<Result<Vec<_>, _>>()?;
    // The address space is destroyed, and the handles of its objects are closed, while jobs are
    // queued.
    Ok([copies, jobs])
}

/// The PCI driver is unbound with jobs in both rings, and address spaces of files that stay open.
fn compute() -> Outcome {
    {
        let gpu = Mgpu::first()?;
        let vm = Vm::new(&gpu)?;
        let object = vm.create(SIZE, EITHER)?;
        vm.bind(&object, HUGE)?;
        vm.done(&[Op::fill(HUGE, SIZE, 1)])?;
        let [copies, jobs] = both(&gpu, 40)?;
        let gone = Unbinding::start(&gpu.pci)?.finish(LIMIT)?;
        ended(&copies)?;
        ended(&jobs)?;
        expect_errno(
            "a job after that",
            vm.exec(&[Op::fill(HUGE, 8, 1)]),
            libc::ENODEV,
        )?;
        expect_errno("an unmap after that", vm.unbind(HUGE, SIZE), libc::ENODEV)?;
        gone.rebind()?;
        // The address spaces of the old file do not affect a new one.
        let again = Mgpu::first()?;
        let other = Vm::new(&again)?;
        let object = other.create(SIZE, EITHER)?;
        other.bind(&object, HUGE)?;
        other.done(&[Op::fill(HUGE, SIZE, 3)])?;
        check!(
            object.map()?.verify_value(3 << 32 | 3).is_ok(),
            "bytes of a new address space"
        );
        again.clean()?;
    }
    works()
}

/// Both rings hang: the unbind of either driver does not wait for the timeout, which is long.
fn hung() -> Outcome {
    // The timeout is 1000 seconds.
    let _patient = Impatient::never()?;
    for core in [false, true] {
        let gpu = Mgpu::first()?;
        let object = gpu.drm.create_flags(SIZE, EITHER)?;
        object.map()?.set(1);
        let bench = Bench::new(&gpu)?;
        let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
        gpu.drm.copy((&from, 0), (&to, 0), SIZE)?.finish()?;
        gpu.inject(Error::Hang, 0)?;
        gpu.inject_into(COMPUTE, Error::Hang, 0)?;
        let jobs = [
            gpu.drm.copy((&from, 0), (&to, 0), SIZE)?,
            gpu.drm.copy((&from, 0), (&to, 0), SIZE)?,
            bench.vm.exec(&[Op::add(RESULTS, 1)])?,
            bench.vm.exec(&[Op::add(RESULTS, 1)])?,
        ];
        let gone = if core {
            Some(Unbinding::start(&gpu.pci)?.finish(LIMIT)?)
        } else {
            let device = gpu.device().to_owned();
            Child::spawn(|| Ok(set_bound(&device, false)?))?.join("the unbind", LIMIT)?;
            None
        };
        let ends = jobs
            .iter()
            .map(SyncFile::status)
            .collect::<Result<Vec<_>, _>>()?;
        for pair in ends.chunks(2) {
            check_eq!(pair[0], -libc::ETIMEDOUT, "the job that hangs of {pair:?}");
            check!(
                [1, -libc::ECANCELED].contains(&pair[1]),
                "the job behind it: {pair:?}"
            );
        }
        match gone {
            Some(gone) => gone.rebind()?,
            None => set_bound(gpu.device(), true)?,
        }
    }
    works()
}

/// A device is removed by surprise with jobs in both rings.
fn removed() -> Outcome {
    let _impatient = Impatient::new()?;
    let Some(pci) = PciDevice::mgpus().pop() else {
        fail!("there is no modelled GPU");
    };
    let driver = pci.driver();
    {
        let gpu = Mgpu::open(&pci)?;
        let [copies, jobs] = both(&gpu, 20)?;
        gpu.inject(Error::Removed, 0)?;
        for fences in [&copies, &jobs] {
            let mut failed = 0;
            for fence in fences {
                fence.finish()?;
                failed += u32::from(fence.status()? < 0);
            }
            check!(failed > 0, "all jobs were done by a device that is gone");
        }
    }
    replug(&pci, driver.as_deref(), LIMIT)?;
    let gpu = Mgpu::open(&pci)?;
    let vm = Vm::new(&gpu)?;
    let object = vm.create(SIZE, EITHER)?;
    vm.bind(&object, HUGE)?;
    vm.done(&[Op::fill(HUGE, SIZE, 3)])?;
    check!(
        object.map()?.verify_value(3 << 32 | 3).is_ok(),
        "bytes after it was plugged in again"
    );
    drop((object, vm));
    gpu.clean()
}

/// What a process does with the device again and again.
#[derive(Clone, Copy, Debug)]
enum Caller {
    Jobs,
    Bindings,
    Copies,
    Faults,
}

/// Returns the value, or [`None`] if the device has gone, or was reset.
fn unless_gone<T>(result: Result<T, SysError>) -> Result<Option<T>, SysError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if [libc::ENODEV, libc::EIO].contains(&error.errno) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits for a job. Returns whether it was done, which it was not if it has ended with one of the
/// errors of a device that is not there any more, or was reset.
fn is_done(job: &SyncFile) -> Result<bool, Stop> {
    job.finish()?;
    let status = job.status()?;
    check!(
        [1, -libc::EIO, -libc::ECANCELED, -libc::ENODEV].contains(&status),
        "status of a job: {status}"
    );
    Ok(status == 1)
}

impl Caller {
    const ALL: [Self; 4] = [Self::Jobs, Self::Bindings, Self::Copies, Self::Faults];

    /// Works with a new file until a call fails, and counts what has succeeded in a word of
    /// `counts`. A word that is not its own says that it has to stop.
    fn work(self, pci: &PciDevice, counts: &Map) -> Result<(), Stop> {
        let count = || counts.write(self as usize, counts.read(self as usize) + 1);
        let goes_on = || counts.read(Self::ALL.len()) == 0;
        // It opens the file of a device that is about to go, or has not come yet.
        let Ok(gpu) = Mgpu::open(pci) else {
            return Ok(());
        };
        match self {
            Self::Jobs => {
                let Ok(bench) = Bench::new(&gpu) else {
                    return Ok(());
                };
                let Some(object) = unless_gone(bench.vm.create(SIZE, EITHER))? else {
                    return Ok(());
                };
                if unless_gone(bench.vm.bind(&object, HUGE))?.is_none() {
                    return Ok(());
                }
                for word in 1.. {
                    let ops = [
                        Op::fill(HUGE, SIZE, word),
                        Op::checksum(HUGE, SIZE, RESULTS),
                    ];
                    let job = unless_gone(bench.vm.exec(&ops))?;
                    let done = job.map_or(Ok(false), |job| is_done(&job))?;
                    if !done || !goes_on() {
                        break;
                    }
                    // The page may have been removed meanwhile.
                    if let Ok(sum) = bench.results.try_read(0) {
                        check_eq!(sum, u64::from(word) * (SIZE / 4), "sum");
                        count();
                    }
                }
            }
            Self::Bindings => {
                let Some(vm) = unless_gone(Vm::new(&gpu))? else {
                    return Ok(());
                };
                let Some(object) = unless_gone(vm.create(SIZE, EITHER))? else {
                    return Ok(());
                };
                while goes_on() {
                    let bound = unless_gone(vm.bind(&object, 3 * HUGE - PAGE64))?.is_some()
                        && unless_gone(vm.bind(&object, 5 * HUGE))?.is_some();
                    let job = match bound {
                        true => unless_gone(vm.exec(&[Op::fill(5 * HUGE, SIZE, 1)]))?,
                        false => None,
                    };
                    let Some(job) = job else {
                        break;
                    };
                    let unbound = unless_gone(vm.unbind(3 * HUGE, 2 * PAGE64))?.is_some()
                        && unless_gone(vm.unbind(5 * HUGE, SIZE))?.is_some();
                    if !is_done(&job)? || !unbound {
                        break;
                    }
                    count();
                }
            }
            Self::Copies => {
                let from = unless_gone(gpu.drm.create_flags(SIZE, EITHER))?;
                let to = unless_gone(gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM))?;
                let (Some(from), Some(to)) = (from, to) else {
                    return Ok(());
                };
                while goes_on() {
                    let copy = unless_gone(gpu.drm.copy((&from, 0), (&to, 0), SIZE))?;
                    if !copy.map_or(Ok(false), |copy| is_done(&copy))? {
                        break;
                    }
                    count();
                }
            }
            Self::Faults => {
                while goes_on() {
                    let Some(object) = unless_gone(gpu.drm.create(SIZE))? else {
                        break;
                    };
                    let Some(map) = unless_gone(object.map())? else {
                        break;
                    };
                    let words = (0..SIZE as usize / PAGE)
                        .map(|page| map.try_read(page * PAGE / 8))
                        .collect::<Result<Vec<_>, _>>();
                    match words {
                        Ok(words) => {
                            // Windows show other bytes during a reset, and all ones of a device
                            // that was removed.
                            let known = |word: &u64| [0, POISON, u64::MAX].contains(word);
                            check!(words.iter().all(known), "words of a window: {words:x?}");
                            count();
                        }
                        Err(error) if error.errno == libc::EFAULT => break,
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Processes use the device in all ways while its drivers are unbound, it is reset, and it is
/// removed by surprise: all of that ends, and so does each call. After it the device works.
fn callers() -> Outcome {
    let Some(pci) = PciDevice::mgpus().pop() else {
        fail!("there is no modelled GPU");
    };
    let mut random = Lcg::new(misc::nonce());
    let counts = Map::anonymous(PAGE)?;
    let mut callers = Caller::ALL
        .iter()
        .map(|caller| {
            Child::spawn(|| {
                while counts.read(Caller::ALL.len()) == 0 {
                    caller.work(&pci, &counts)?;
                    // The device may be away for some time.
                    thread::sleep(Duration::from_millis(10));
                }
                Ok(())
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let names = ["the DRM driver", "the PCI driver", "a reset", "a removal"];
    for round in 0..2 * misc::soak() {
        let first = random.below(4) as usize;
        for (way, name) in names.iter().enumerate().cycle().skip(first).take(4) {
            let before = Caller::ALL.map(|caller| counts.read(caller as usize));
            let all_work = misc::poll(LIMIT, || {
                let now = Caller::ALL.map(|caller| counts.read(caller as usize));
                before.iter().zip(now).all(|(b, n)| n > b + 1).then_some(())
            });
            for (caller, child) in Caller::ALL.iter().zip(&mut callers) {
                check!(
                    child.ended().is_none(),
                    "{caller:?} has ended before {name} of round {round}"
                );
            }
            check!(
                all_work.is_some(),
                "before {name} of round {round}: {before:?}, and {:?} later",
                Caller::ALL.map(|caller| counts.read(caller as usize))
            );
            thread::sleep(Duration::from_millis(random.below(30)));
            let gpu = Mgpu::open(&pci)?;
            let (device, driver) = (gpu.device().to_string(), pci.driver());
            match way {
                0 => {
                    drop(gpu);
                    Child::spawn(|| Ok(set_bound(&device, false)?))?.join(name, LIMIT)?;
                    set_bound(&device, true)?;
                }
                1 => Unbinding::start(&pci)?.finish(LIMIT)?.rebind()?,
                2 => {
                    Child::spawn(|| Ok(pci.reset()?))?.join(name, LIMIT)?;
                    gpu.clean()?;
                }
                _ => {
                    gpu.inject(Error::Removed, 0)?;
                    drop(gpu);
                    replug(&pci, driver.as_deref(), LIMIT)?;
                }
            }
        }
    }
    counts.write(Caller::ALL.len(), 1);
    for (caller, mut child) in Caller::ALL.iter().zip(callers) {
        child.join(&format!("{caller:?}"), LIMIT)?;
    }
    let gpu = Mgpu::open(&pci)?;
    let bench = Bench::new(&gpu)?;
    bench.vm.done(&[Op::add(RESULTS, 7)])?;
    check_eq!(bench.results.read(0), 7, "a job after all that");
    drop(bench);
    gpu.await_no_window()?;
    gpu.clean()
}

/// The status of a job, and the names of its fence.
type State = (i32, Vec<(String, String)>);

/// Returns the states of jobs.
fn states(jobs: &[SyncFile]) -> Result<Vec<State>, SysError> {
    jobs.iter()
        .map(|job| Ok((job.status()?, job.names()?)))
        .collect()
}

/// A sync file of a job of either ring does not keep the module loaded, whether the job is in the
/// ring, or waits for a fence of another driver. The fences signal before the module is unloaded,
/// and can be queried and closed while there is no module.
fn sync_file() -> Outcome {
    const SLOW: usize = 12;
    const NAMES: [(&str, &str); 2] = [("ttm", "mgpu-copy"), ("drm_queue", "mgpu-compute")];
    let state = |status: i32, (driver, line): (&str, &str)| -> State {
        (status, vec![(driver.to_string(), line.to_string())])
    };
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    // Of each ring: a job that is done, those that are slow, and one that waits.
    let mut rings = {
        let gpu = Mgpu::first()?;
        let bench = Bench::new(&gpu)?;
        let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
        let submit = |ring: u32, fences: &[&SyncFile]| match ring {
            COPY => copy_after(&gpu.drm, (&from, &to), fences),
            _ => Ok(bench.vm.exec_after(&[Op::add(RESULTS, 1)], fences)?),
        };
        let mut rings = [COPY, COMPUTE].map(|ring| (ring, Vec::new()));
        for (ring, jobs) in &mut rings {
            let done = submit(*ring, &[])?;
            done.finish()?;
            jobs.push(done);
            gpu.inject_into(*ring, Error::Slow, 200)?;
            for _ in 0..SLOW {
                jobs.push(submit(*ring, &[])?);
            }
            jobs.push(submit(*ring, &[&fence])?);
            // When one of them is done others are in the ring.
            jobs[1].finish()?;
        }
        rings.map(|(_, jobs)| jobs)
    };
    for (jobs, names) in rings.iter().zip(NAMES) {
        // The jobs in the ring go on when the file is closed, and the others are cancelled.
        let seen = states(jobs)?;
        check!(
            seen.contains(&state(0, names)),
            "states of jobs that are under way: {seen:?}"
        );
    }
    let unloaded = misc::poll(Duration::from_secs(5), || delete_module(DRIVER).ok());
    let gone = module_users(DRIVER).is_none();
    let seen = [states(&rings[0]), states(&rings[1])];
    // Some fences are freed now, and others when the module is there again.
    let kept = rings.each_mut().map(|jobs| jobs.split_off(SLOW));
    drop(rings);
    let loaded = Command::new("modprobe").arg(DRIVER).status();
    check!(
        unloaded.is_some() && gone,
        "{DRIVER} cannot be unloaded while there are sync files"
    );
    check!(
        loaded.as_ref().is_ok_and(|status| status.success()),
        "modprobe {DRIVER}: {loaded:?}"
    );
    check!(!fence.poll(0)?, "the fence of the test has signalled");
    for ((seen, kept), (_, line)) in seen.into_iter().zip(&kept).zip(NAMES) {
        let seen = seen?;
        let done = seen.iter().take_while(|(status, _)| *status == 1).count();
        // The job that waits is among those that were cancelled.
        check!(
            (3..seen.len()).contains(&done),
            "{done} jobs of {line} were done: {seen:?}"
        );
        for (index, seen) in seen.iter().enumerate() {
            let status = if index < done { 1 } else { -libc::ECANCELED };
            check_eq!(
                *seen,
                state(status, ("detached-driver", "signaled-timeline")),
                "status and names of job {index} of {line} without its module"
            );
        }
        check_eq!(
            states(kept)?,
            seen[SLOW..],
            "states when the module of {line} is there again"
        );
    }
    timeline.step()?;
    drop(kept);
    works()
}

/// The module is reloaded while clients use a GPU.
fn reloaded() -> Outcome {
    let gpus = PciDevice::mgpus();
    reloads::storm(
        &[DRIVER],
        || Some(Drm::try_open_split(DRIVER, &gpus[0])?.0),
        |_| {
            gpus.iter()
                .all(|gpu| gpu.driver().as_deref() == Some(DRIVER))
        },
    )?;
    works()
}

igt_main! {
    "core", "of the PCI driver, with jobs", core;
    "auxiliary", "of the DRM driver, with jobs", auxiliary;
    "exported", "with a peer", exported;
    "importer", "of the GPU whose engines use memory of another one", importer;
    "exporter", "of the GPU whose memory engines of another one use", exporter;
    "compute", "of the PCI driver, with jobs of both engines", compute;
    "hung", "of both drivers, with a timeout that is long, and jobs that hang", hung;
    "sync-file", "of the module, of which sync files of jobs of both engines are left", sync_file;
    "reloaded", "of the module, while clients open and use the device", reloaded;
    "removed", "of a device that is removed by surprise, with jobs of both engines", removed;
    "callers", "also resets and removals, while processes use the device in all ways", callers;
}

// SPDX-License-Identifier: GPL-2.0

//! The modelled GPU fails: jobs fail or are late, and the next ones are done.

use std::time::{Duration, Instant};

use vvram_tests::compute::{ballast, Bench, Op, HUGE, PARAM_COPY_HANGS, PARAM_JOB_HANGS, RESULTS};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Gem, EITHER};
use vvram_tests::failure::Events;
use vvram_tests::fixture::{mapped_by_peer, patterns, peer_reads, placed};
use vvram_tests::map::PAGE64;
use vvram_tests::mgpu::{holds, Error, Impatient, Mgpu, COMPUTE};
use vvram_tests::pattern::Pattern;
use vvram_tests::peer::Mode;
use vvram_tests::proc::KernelLog;
use vvram_tests::syncfile::SyncFile;
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, igt_main, uapi, Outcome, Stop, SysError,
};

const SIZE: u64 = 16 * PAGE64;
/// The size of the first object that is moved by the CPU, in pages.
const FIRST: u64 = 1;
/// How many operations of a job have one fence.
const ENTRIES: u64 = 7;
/// How many jobs of a file hang until it gets no more: `HANGS_MAX` of `kernel::drm::queue`.
const HANGS_MAX: u64 = 3;

/// A copy of a client fails with an error; the copies behind it are done, and the destination of
/// the failed copy is unchanged.
fn fails(error: Error, errno: i32) -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let from = gpu.drm.create(SIZE)?;
    let to: Vec<_> = (0..4)
        .map(|_| gpu.drm.create_flags(SIZE, EITHER))
        .collect::<Result<_, _>>()?;
    from.map()?.fill(x);
    for object in &to {
        object.map()?.fill(y);
    }
    let (resets, losses) = (
        gpu.drm.counter(Counter::CopyResets)?,
        gpu.drm.counter(Counter::Losses)?,
    );
    gpu.inject(error, 0)?;
    let copies: Vec<_> = to
        .iter()
        .map(|to| gpu.drm.copy((&from, 0), (to, 0), SIZE))
        .collect::<Result<_, _>>()?;
    for copy in &copies {
        copy.finish()?;
    }
    let states: Vec<_> = copies
        .iter()
        .map(|copy| copy.status())
        .collect::<Result<_, _>>()?;
    check_eq!(states, [-errno, 1, 1, 1], "what came of the copies");
    holds(&to[0], y, "of the copy that failed")?;
    for object in &to[1..] {
        holds(object, x, "behind the copy that failed")?;
    }
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 1, "resets");
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        losses,
        "objects that are lost"
    );
    gpu.clean()
}

fn hang() -> Outcome {
    let _impatient = Impatient::new()?;
    fails(Error::Hang, libc::ETIMEDOUT)
}

fn fault() -> Outcome {
    // The ring reports that it has stopped, so the timeout is not needed.
    let _patient = Impatient::never()?;
    fails(Error::Fault, libc::EIO)
}

/// Checks every byte of an object by a copy to system memory, for which no window is needed.
fn reads(gpu: &Mgpu, object: &Gem<'_>, want: Option<Pattern>) -> Outcome {
    let copy = gpu.drm.create_flags(object.size(), uapi::CREATE_SYSTEM)?;
    gpu.drm
        .copy((object, 0), (&copy, 0), object.size())?
        .finish()?;
    let map = copy.map()?;
    let found = match want {
        Some(pattern) => map.verify(pattern),
        None => map.verify_value(0),
    };
    check_ok!(found, "what was moved");
    Ok(())
}

/// Moves of an object of `pages` pages fail: the CPU does them, and the log says so.
fn moved(gpu: &Mgpu, error: Error, pages: u64) -> Outcome {
    let (x, y) = patterns();
    let (again, losses, resets) = (
        gpu.done_again()?,
        gpu.drm.counter(Counter::Losses)?,
        gpu.drm.counter(Counter::CopyResets)?,
    );
    let mut log = KernelLog::open()?;
    let size = pages * PAGE64;
    let free = gpu.drm.vram_free()?;
    // Leaves old content in the VRAM that the next object gets.
    let object = gpu.drm.create(size)?;
    object.map()?.fill(y);
    drop(object);
    gpu.drm.await_vram_free(free)?;

    gpu.inject(error, 0)?;
    let object = gpu.drm.create_flags(size, EITHER)?;
    reads(gpu, &object, None)?;
    object.map()?.fill(x);
    for (round, place) in (2..).zip(["system", "vram", "system", "vram"]) {
        gpu.inject(error, 0)?;
        gpu.force(&object, place)?;
        reads(gpu, &object, Some(x))?;
        check_eq!(gpu.done_again()?, again + round, "moves by the CPU");
        if place == "system" {
            gpu.drm.await_vram_free(free)?;
        }
    }
    placed(&object, uapi::PLACEMENT_VRAM)?;
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 5, "resets");
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        losses,
        "objects that are lost"
    );
    let told = format!("object {} was moved by the CPU", object.info()?.id);
    let lines = log.lines();
    let lines = lines.iter().filter(|line| line.contains(&told)).count();
    // There are ten in five seconds at most, for all objects.
    check!(
        lines <= 5 && (lines == 5 || pages != FIRST),
        "{lines} lines of the log say so"
    );
    Ok(())
}

fn again() -> Outcome {
    let _patient = Impatient::never()?;
    let gpu = Mgpu::first()?;
    // No other test has used up the lines of the log.
    std::thread::sleep(Duration::from_secs(5));
    for pages in [FIRST, 16, 77] {
        moved(&gpu, Error::Fault, pages)?;
    }
    gpu.clean()
}

/// Moves fail while all of the aperture shows another object.
fn full() -> Outcome {
    let _patient = Impatient::never()?;
    let gpu = Mgpu::first()?;
    let (_all, _buffer, _holder) = gpu.fill_aperture(Mode::Dynamic)?;
    let (x, _) = patterns();
    let size = 77 * PAGE64;
    let object = gpu.drm.create_flags(size, EITHER)?;
    let source = gpu.drm.create_flags(size, uapi::CREATE_SYSTEM)?;
    source.map()?.fill(x);
    gpu.drm.copy((&source, 0), (&object, 0), size)?.finish()?;
    let again = gpu.done_again()?;
    for (round, place) in (1..).zip(["system", "vram"]) {
        gpu.inject(Error::Fault, 0)?;
        gpu.force(&object, place)?;
        reads(&gpu, &object, Some(x))?;
        check_eq!(gpu.done_again()?, again + round, "moves by the CPU");
    }
    check_eq!(gpu.drm.counter(Counter::ApertureFree)?, 0, "free aperture");
    gpu.clean()
}

/// A move fails of an object that an importer has not unmapped.
fn shown() -> Outcome {
    let _patient = Impatient::never()?;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let object = gpu.drm.create_flags(77 * PAGE64, EITHER)?;
    object.map()?.fill(x);
    let buffer = object.export()?;
    let peer = mapped_by_peer(&buffer, x, &[0, 76])?;
    placed(&object, uapi::PLACEMENT_VRAM)?;
    let again = gpu.done_again()?;
    gpu.inject(Error::Fault, 0)?;
    gpu.force(&object, "system")?;
    check!(
        peer.status()?.invalidations > 0,
        "the peer was not notified"
    );
    holds(&object, x, "after the move")?;
    check_eq!(gpu.done_again()?, again + 1, "moves by the CPU");
    peer.map()?;
    peer_reads(&peer, x, &[0, 1, 75, 76])?;
    gpu.clean()
}

/// An object leaves VRAM for another one, whose memory is cleared after that; the first move fails.
fn behind() -> Outcome {
    let _impatient = Impatient::new()?;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let _ballast = ballast(&gpu, 4 * SIZE)?;
    let size = gpu.drm.vram_free()?;
    for round in 0..4 {
        let leaves = gpu.drm.create_flags(size, EITHER)?;
        let pattern = x.derive(round);
        leaves.map()?.fill(pattern);
        placed(&leaves, uapi::PLACEMENT_VRAM)?;
        let again = gpu.done_again()?;
        gpu.inject(Error::Hang, 0)?;
        let comes = gpu.drm.create(size)?;
        reads(&gpu, &comes, None)?;
        placed(&leaves, uapi::PLACEMENT_SYSTEM)?;
        drop(comes);
        holds(&leaves, pattern, "of the one that has left")?;
        check_eq!(gpu.done_again()?, again + 1, "moves by the CPU");
        gpu.drm.await_vram_free(size)?;
    }
    check_eq!(
        gpu.drm.counter(Counter::Losses)?,
        0,
        "objects that are lost"
    );
    gpu.clean()
}

/// The interrupt of a job is lost, or comes before the job is done: the driver ends the job all the
/// same, and does not wait for its timeout.
fn interrupts() -> Outcome {
    let _patient = Impatient::never()?;
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    let bench = Bench::new(&gpu)?;
    let resets = || -> Result<_, SysError> {
        Ok([
            gpu.drm.counter(Counter::CopyResets)?,
            gpu.drm.counter(Counter::ComputeResets)?,
        ])
    };
    let before = resets()?;
    for (round, error) in (1..).zip([Error::Lost, Error::Early, Error::Lost]) {
        from.map()?.fill(x);
        to.map()?.fill(y);
        gpu.inject(error, 0)?;
        let copy = gpu.drm.copy((&from, 0), (&to, 0), SIZE)?;
        copy.finish()?;
        check_eq!(copy.status()?, 1, "status of a copy after {error:?}");
        holds(&to, x, "what was copied")?;
        // The other ring has nothing to do meanwhile.
        gpu.inject_into(COMPUTE, error, 0)?;
        let job = bench.vm.exec(&[Op::add(RESULTS, 1)])?;
        job.finish()?;
        check_eq!(job.status()?, 1, "status of a job after {error:?}");
        check_eq!(bench.results.read(0), round, "what the jobs have added");
    }
    // The first poll, 100 ms after a job began, finds it not done: there has to be another one.
    from.map()?.fill(x);
    to.map()?.fill(y);
    gpu.inject(Error::Lost, 0)?;
    gpu.inject(Error::Late, 500)?;
    let copy = gpu.drm.copy((&from, 0), (&to, 0), SIZE)?;
    copy.finish()?;
    check_eq!(copy.status()?, 1, "status of a copy that takes five polls");
    holds(&to, x, "what was copied late")?;
    check_eq!(resets()?, before, "resets");
    drop(bench);
    gpu.clean()
}

/// The device ignores an invalidation: the driver repeats it.
fn invalidation() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let object = gpu.drm.create(SIZE)?;
    let map = object.map()?;
    // The invalidation of the new window is lost.
    gpu.inject(Error::NoInvalidate, 0)?;
    map.fill(x);
    holds(&object, x, "through the window")?;
    // The invalidation of the closed window is lost.
    gpu.inject(Error::NoInvalidate, 0)?;
    drop((map, object));
    gpu.await_no_window()?;
    let object = gpu.drm.create(SIZE)?;
    object.map()?.fill(y);
    holds(&object, y, "through the next window")?;
    gpu.clean()
}

/// A job ends while its ring is reset, with jobs behind it that use the same memory: the job that
/// was done is not run again.
fn late() -> Outcome {
    let _impatient = Impatient::new()?;
    let (a, b) = patterns();
    for late in (696..720).step_by(2) {
        // Too many hangs would close the queue of one client.
        let gpu = Mgpu::first()?;
        let objects: Vec<_> = (0..5)
            .map(|_| gpu.drm.create(SIZE))
            .collect::<Result<_, _>>()?;
        let [from, to, x, y, z] = objects.as_slice() else {
            unreachable!("there are five");
        };
        // All of them are cleared by then.
        for object in &objects {
            object.map()?.set(0);
        }
        x.map()?.fill(a);
        z.map()?.fill(b);
        gpu.inject(Error::Late, late)?;
        let copies =
            [(from, to), (x, y), (z, x)].map(|(from, to)| gpu.drm.copy((from, 0), (to, 0), SIZE));
        for (copy, may_fail) in copies.into_iter().zip([true, false, false]) {
            let copy = copy?;
            copy.finish()?;
            let status = copy.status()?;
            check!(
                status == 1 || may_fail && status == -libc::ETIMEDOUT,
                "status {status} with a job that takes {late} ms"
            );
        }
        holds(y, a, "what was copied first")?;
        holds(x, b, "what was copied behind that")?;
        drop(objects);
        gpu.clean()?;
    }
    Ok(())
}

/// A job takes longer than the timeout, but none of its entries does: it does not hang.
fn slow() -> Outcome {
    let _impatient = Impatient::less()?;
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let resets = gpu.drm.counter(Counter::ComputeResets)?;
    let ops: Vec<_> = (0..ENTRIES)
        .map(|word| Op::add(RESULTS + 8 * word, word + 1))
        .collect();
    bench.results.set(0);
    gpu.inject_into(COMPUTE, Error::Slow, 400)?;
    bench.vm.done(&ops)?;
    gpu.inject_into(COMPUTE, Error::Slow, 0)?;
    for word in 0..ENTRIES {
        check_eq!(bench.results.read(word as usize), word + 1, "word {word}");
    }
    check_eq!(gpu.drm.counter(Counter::ComputeResets)?, resets, "resets");
    gpu.clean()
}

/// Jobs of a client fault one after the other: the log and the events report ten of them in five
/// seconds.
fn limited() -> Outcome {
    const FAULTS: usize = 60;
    const RATE: usize = 10;
    // Loads the driver anew, so that nothing was reported yet.
    let _patient = Impatient::never()?;
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let events = Events::listen()?;
    let mut log = KernelLog::open()?;
    let began = Instant::now();
    for _ in 0..FAULTS {
        let status = bench.vm.run(&[Op::fill(HUGE, 4, 0)])?;
        check_eq!(status, -libc::EIO, "status of a job that faults");
    }
    let most = RATE * (2 + began.elapsed().as_secs() as usize / 5);
    let lines = log.lines();
    for what in ["the last fault was", "ring 1 is reset", "device wedged"] {
        let count = lines.iter().filter(|line| line.contains(what)).count();
        check!(
            (1..=most.min(FAULTS - 1)).contains(&count),
            "the log says {count} times: {what}"
        );
    }
    let count = events.count(&gpu.pci)?;
    check!(
        (1..=most.min(FAULTS - 1)).contains(&count),
        "{count} events of {FAULTS} resets of a ring"
    );
    check_eq!(
        gpu.drm.counter(Counter::ComputeResets)?,
        FAULTS as u64,
        "resets"
    );
    gpu.clean()
}

/// Two jobs that hang one after the other, with others behind them.
fn twice() -> Outcome {
    let _impatient = Impatient::new()?;
    for _ in 0..2 {
        fails(Error::Hang, libc::ETIMEDOUT)?;
    }
    let gpu = Mgpu::first()?;
    check!(
        gpu.drm.counter(Counter::CopyResets)? == 2,
        "resets of this driver"
    );
    gpu.clean()
}

/// How many jobs of each client wait behind a job that hangs: some of them are in the ring, the
/// others in the queues of both files.
const BEHIND: usize = 5;

/// Checks what came of a job that hangs and of the jobs of two clients behind it: the one has
/// failed, the others were done, those of a client in their order.
fn only_the_first_fails(hung: &SyncFile, behind: [&[SyncFile]; 2]) -> Outcome {
    hung.finish()?;
    check_eq!(hung.status()?, -libc::ETIMEDOUT, "the job that hangs");
    for (client, jobs) in behind.into_iter().enumerate() {
        let mut since = hung.signalled()?;
        check_eq!(jobs.len(), BEHIND, "jobs of client {client}");
        for (index, job) in jobs.iter().enumerate() {
            job.finish()?;
            check_eq!(job.status()?, 1, "job {index} of client {client}");
            let at = job.signalled()?;
            check!(
                at >= since,
                "job {index} of client {client} has ended before the one in front of it"
            );
            since = at;
        }
    }
    Ok(())
}

/// A copy hangs, with copies of two clients behind it.
fn copies_behind() -> Outcome {
    let _impatient = Impatient::new()?;
    let clients = [Mgpu::first()?, Mgpu::first()?];
    let (x, y) = patterns();
    let resets = clients[0].drm.counter(Counter::CopyResets)?;
    let sets = clients
        .iter()
        .zip(0..)
        .map(|(gpu, client)| {
            let object = |pattern| {
                let object = gpu.drm.create_flags(SIZE, EITHER)?;
                object.map()?.fill(pattern);
                Ok(object)
            };
            let all = (0..=BEHIND)
                .map(|_| object(y))
                .collect::<Result<_, Stop>>()?;
            Ok((object(x.derive(client))?, all))
        })
        .collect::<Result<Vec<(Gem<'_>, Vec<Gem<'_>>)>, Stop>>()?;
    let copy = |client: usize, index: usize| {
        let (from, to) = (&sets[client].0, &sets[client].1[index]);
        clients[client].drm.copy((from, 0), (to, 0), SIZE)
    };
    clients[0].inject(Error::Hang, 0)?;
    let hung = copy(0, BEHIND)?;
    let mut behind = [Vec::new(), Vec::new()];
    for index in 0..BEHIND {
        for (client, jobs) in behind.iter_mut().enumerate() {
            jobs.push(copy(client, index)?);
        }
    }
    only_the_first_fails(&hung, [&behind[0], &behind[1]])?;
    holds(&sets[0].1[BEHIND], y, "of the copy that hung")?;
    for (client, gpu) in clients.iter().enumerate() {
        let pattern = x.derive(client as u64);
        for object in &sets[client].1[..BEHIND] {
            holds(object, pattern, "behind the copy that hung")?;
        }
        let next = copy(client, BEHIND)?;
        next.finish()?;
        check_eq!(next.status()?, 1, "the next copy of client {client}");
        holds(&sets[client].1[BEHIND], pattern, "of the next copy")?;
        check_eq!(gpu.drm.counter(Counter::CopyResets)?, resets + 1, "resets");
        gpu.clean()?;
    }
    Ok(())
}

/// A job of the compute engine hangs, with jobs of two clients behind it.
fn jobs_behind() -> Outcome {
    let _impatient = Impatient::new()?;
    let clients = [Mgpu::first()?, Mgpu::first()?];
    let resets = clients[0].drm.counter(Counter::ComputeResets)?;
    let benches = [Bench::new(&clients[0])?, Bench::new(&clients[1])?];
    for (bench, client) in benches.iter().zip(0..) {
        bench.results.set(0);
        bench.results.write(0, 100 * client);
    }
    // Each job takes the result of the one in front of it.
    let exec = |client: usize, index: u64| {
        let at = RESULTS + 8 * index;
        benches[client]
            .vm
            .exec(&[Op::copy(at, at + 8, 8), Op::add(at + 8, 1)])
    };
    let behind = BEHIND as u64;
    clients[0].inject_into(COMPUTE, Error::Hang, 0)?;
    let hung = exec(0, behind + 2)?;
    let mut jobs = [Vec::new(), Vec::new()];
    for index in 0..behind {
        for (client, jobs) in jobs.iter_mut().enumerate() {
            jobs.push(exec(client, index)?);
        }
    }
    only_the_first_fails(&hung, [&jobs[0], &jobs[1]])?;
    for (client, gpu) in clients.iter().enumerate() {
        let next = exec(client, behind)?;
        next.finish()?;
        check_eq!(next.status()?, 1, "the next job of client {client}");
        for index in 0..=behind + 1 {
            check_eq!(
                benches[client].results.read(index as usize),
                100 * client as u64 + index,
                "result {index} of client {client}"
            );
        }
        check_eq!(
            gpu.drm.counter(Counter::ComputeResets)?,
            resets + 1,
            "resets"
        );
        gpu.clean()?;
    }
    check_eq!(
        benches[0].results.read(BEHIND + 3),
        0,
        "result of the job that hung"
    );
    Ok(())
}

/// A client whose jobs hang again and again gets no more of the engine. Its copies, and other
/// clients, go on.
fn banned() -> Outcome {
    let _impatient = Impatient::new()?;
    let (gpu, other) = (Mgpu::first()?, Mgpu::first()?);
    let (bench, theirs) = (Bench::new(&gpu)?, Bench::new(&other)?);
    let job = || bench.vm.exec(&[Op::add(RESULTS, 1)]);
    bench.results.set(0);
    let mut behind = Vec::new();
    for hangs in 1..=HANGS_MAX {
        // Behind the fence of the driver, with which the ring begins after its reset.
        theirs.vm.done(&[Op::fill(RESULTS, 8, 6)])?;
        gpu.inject_into(COMPUTE, Error::Hang, 0)?;
        let hung = job()?;
        if hangs == HANGS_MAX {
            // More than the ring takes. The client may be banned meanwhile.
            behind.extend((0..2 * BEHIND).map(|_| job()));
        }
        theirs.vm.done(&[Op::fill(RESULTS, 8, 7)])?;
        hung.finish()?;
        check_eq!(hung.status()?, -libc::ETIMEDOUT, "the job that hung");
        check_eq!(gpu.drm.getparam(PARAM_JOB_HANGS)?, hangs, "hangs");
    }

    let mut done = 0;
    for (index, job) in behind.into_iter().enumerate() {
        let end = match job {
            Ok(fence) => {
                fence.finish()?;
                fence.status()?
            }
            Err(error) => -error.errno,
        };
        if end == 1 {
            check_eq!(done, index, "jobs that were done before one");
            done += 1;
        } else {
            check_eq!(end, -libc::ECANCELED, "what came of job {index}");
        }
    }
    println!("{done} jobs were in the ring");
    check!(done < 2 * BEHIND, "no job was cancelled");
    check_eq!(bench.results.read(0), done as u64, "sum of the jobs");
    expect_errno("a job", job().map(drop), libc::ECANCELED)?;

    check_eq!(gpu.drm.getparam(PARAM_COPY_HANGS)?, 0, "copies that hung");
    check_eq!(other.drm.getparam(PARAM_JOB_HANGS)?, 0, "hangs of another");
    let (x, _) = patterns();
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    from.map()?.fill(x);
    gpu.drm.copy((&from, 0), (&to, 0), SIZE)?.finish()?;
    holds(&to, x, "what was copied")?;
    theirs.vm.done(&[Op::fill(RESULTS, 8, 8)])?;
    let new = Mgpu::first()?;
    Bench::new(&new)?.vm.done(&[Op::fill(RESULTS, 8, 9)])?;
    new.clean()?;
    other.clean()?;
    gpu.clean()
}

igt_main! {
    "hang", "a copy that hangs", hang;
    "fault", "a copy that faults", fault;
    "again", "moves that fail are done by the CPU", again;
    "full", "the same, without room for a window", full;
    "shown", "a move that fails, of what a window shows", shown;
    "behind", "a move that hangs, and another one into the same memory", behind;
    "interrupts", "an interrupt is lost, or too early", interrupts;
    "invalidation", "the device does not look at page tables", invalidation;
    "twice", "again", twice;
    "late", "a job that ends while its ring is reset", late;
    "copies-behind", "a copy that hangs, with copies of two clients behind it", copies_behind;
    "jobs-behind", "the same on the compute engine", jobs_behind;
    "slow", "a job that takes longer than the timeout, but makes progress", slow;
    "banned", "a client whose jobs hang again and again", banned;
    "limited", "jobs that fault again and again", limited;
}

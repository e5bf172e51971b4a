// SPDX-License-Identifier: GPL-2.0

//! The queues of the engines of the modelled GPU: the effect of one client on others, and the
//! outcome of jobs that wait.

use std::time::Duration;

use vvram_tests::cgroup::MemoryGroup;
use vvram_tests::compute::{ballast, Bench, Op, HUGE, RESULTS};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Gem, EITHER};
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::{cpu_reads, patterns, placed};
use vvram_tests::foreign::{self, Kind};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::mgpu::{self, holds, set_bound, Error, Impatient, Mgpu};
use vvram_tests::misc;
use vvram_tests::proc::Child;
use vvram_tests::queue::{copy_after, flood, Client};
use vvram_tests::rebind::Unbinding;
use vvram_tests::signals::{await_sleep, interrupt, kill, restart};
use vvram_tests::trace::Jobs;
use vvram_tests::uapi::{
    self, COPIES_MAX, CREATE_SYSTEM, CREATE_VRAM, DMA_BUF_SYNC_WRITE, PLACEMENT_SYSTEM,
    PLACEMENT_VRAM,
};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome, Stop};

const LIMIT: Duration = Duration::from_secs(20);
/// How many jobs are in the ring at a time.
const CREDITS: usize = 8;
/// Where the kernel waits for a fence.
const FENCE: &str = "dma_fence_default_wait";
/// Where it waits for room in the queue of a file, `Queue::permit`.
const ROOM: &str = "6permit";

/// How many jobs of a flood run until the end of a job of another client: one in its turn, and one
/// for each place in the ring that becomes free meanwhile.
const BETWEEN: usize = 1 + CREDITS;

fn one_floods() -> Outcome {
    flood(|| Client::of_copies(Mgpu::first()?.drm), 20, BETWEEN)?;
    Mgpu::first()?.clean()
}

/// The same on the ring of the compute engine.
fn one_floods_exec() -> Outcome {
    let gpu = Mgpu::first()?;
    let vms = gpu.drm.counter(Counter::Vms)?;
    flood(|| Client::of_compute(Mgpu::first()?), 10, BETWEEN)?;
    // The last jobs keep their address spaces until they are freed.
    let freed = misc::poll(LIMIT, || {
        (gpu.drm.counter(Counter::Vms).ok()? == vms).then_some(())
    });
    check!(freed.is_some(), "an address space is left");
    gpu.clean()
}

/// A client makes and frees objects all the time, each of which is cleared by a job of the kernel.
/// Copies of another client have their turns.
fn flood_create() -> Outcome {
    const OBJECTS: usize = 4000;
    const COPIES: usize = 4;
    let (gpu, other) = (Mgpu::first()?, Mgpu::first()?);
    let (x, _) = patterns();
    let (from, to) = (other.drm.create(PAGE64)?, other.drm.create(PAGE64)?);
    from.map()?.fill(x);
    to.map()?.set(0);
    gpu.inject(Error::Slow, 20)?;
    let mut flooder = Child::spawn(|| {
        for _ in 0..OBJECTS {
            gpu.drm.create(PAGE64)?;
        }
        Ok(())
    })?;
    let made = flooder.wait(LIMIT);
    let mut user = Child::spawn(|| {
        for _ in 0..COPIES {
            other.drm.copy((&from, 0), (&to, 0), PAGE64)?.finish()?;
        }
        Ok(())
    })?;
    let copied = user.wait(LIMIT);
    // The last object is not cleared yet.
    let last = gpu.drm.create(PAGE64)?;
    let waits = !last.export()?.sync_file(DMA_BUF_SYNC_WRITE)?.poll(0)?;
    gpu.inject(Error::Slow, 0)?;
    check!(made.is_some(), "the objects were not made in time");
    check!(
        copied.is_some() && waits,
        "copies wait for the objects of another client"
    );
    flooder.join("the objects", LIMIT)?;
    user.join("the copies", LIMIT)?;
    holds(&to, x, "what was copied")?;
    drop(last);
    gpu.clean()
}

/// A client copies `from` an object as often as it may, and `moves` is called meanwhile. Then an
/// object of another client is cleared before the copies are done.
fn flood_while<R>(
    gpu: &Mgpu,
    (from, to): (&Gem, &Gem),
    moves: impl FnOnce() -> Result<R, Stop>,
) -> Result<R, Stop> {
    let other = Mgpu::first()?;
    gpu.inject(Error::Slow, 50 * misc::slower())?;
    let copies = (0..COPIES_MAX)
        .map(|_| copy_after(&gpu.drm, (from, to), &[]))
        .collect::<Result<Vec<_>, _>>()?;
    let moved = moves()?;
    let object = other.drm.create_flags(PAGE64, CREATE_VRAM)?;
    object.export()?.sync_file(DMA_BUF_SYNC_WRITE)?.finish()?;
    let left = copies
        .iter()
        .map(|copy| copy.poll(0))
        .collect::<Result<Vec<_>, _>>()?;
    gpu.inject(Error::Slow, 0)?;
    for copy in &copies {
        copy.finish()?;
        check_eq!(copy.status()?, 1, "status of a copy");
    }
    check!(
        left.contains(&false),
        "an object of another client waits for all copies of one"
    );
    Ok(moved)
}

/// The object moves at the request of a client.
fn flood_moves() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let from = gpu.drm.create_flags(PAGE64, EITHER)?;
    let to = gpu.drm.create(PAGE64)?;
    from.map()?.fill(x);
    to.map()?.fill(y);
    gpu.force(&from, "system")?;
    flood_while(&gpu, (&from, &to), || gpu.force(&from, "vram"))?;
    placed(&from, PLACEMENT_VRAM)?;
    holds(&from, x, "what has moved")?;
    holds(&to, x, "what was copied")?;
    gpu.clean()
}

/// Another client needs more VRAM than there is: an object that nobody uses is evicted, although it
/// was used last.
fn flood_evict() -> Outcome {
    const SIZE: u64 = 16 * PAGE64;
    let (gpu, other) = (Mgpu::first()?, Mgpu::first()?);
    let _ballast = ballast(&gpu, 3 * SIZE)?;
    let (x, y) = patterns();
    let [busy, idle] = [x, y].map(|pattern| -> Result<_, Stop> {
        let object = gpu.drm.create_flags(SIZE, EITHER)?;
        object.map()?.fill(pattern);
        placed(&object, PLACEMENT_VRAM)?;
        Ok(object)
    });
    let (busy, idle) = (busy?, idle?);
    let to = gpu.drm.create_flags(SIZE, CREATE_SYSTEM)?;
    let import = other.drm.import(&idle.export()?)?;
    let third = other.drm.create_flags(SIZE, CREATE_SYSTEM)?;
    let taken = flood_while(&gpu, (&busy, &to), || {
        other.drm.copy((&import, 0), (&third, 0), SIZE)?.finish()?;
        Ok(other.drm.create_flags(3 * SIZE / 2, CREATE_VRAM)?)
    })?;
    placed(&busy, PLACEMENT_VRAM)?;
    placed(&idle, PLACEMENT_SYSTEM)?;
    holds(&to, x, "what was copied")?;
    holds(&idle, y, "what has left")?;
    drop((taken, import));
    gpu.clean()
}

/// A copy waits for a fence of another driver, and copies of other clients do not wait for it.
fn waits() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let (from, to, third) = (
        gpu.drm.create(PAGE64)?,
        gpu.drm.create(PAGE64)?,
        gpu.drm.create(PAGE64)?,
    );
    from.map()?.fill(x);
    to.map()?.fill(y);
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let copy = copy_after(&gpu.drm, (&from, &to), &[&fence])?;
    // A copy of another client is done.
    let other = Mgpu::first()?;
    let (src, dst) = (other.drm.create(PAGE64)?, other.drm.create(PAGE64)?);
    src.map()?.fill(x);
    copy_after(&other.drm, (&src, &dst), &[])?.finish()?;
    holds(&dst, x, "of another client")?;
    check!(!copy.poll(0)?, "the copy did not wait");
    // A copy of the same client waits, because of the order of its queue.
    let behind = copy_after(&gpu.drm, (&from, &third), &[])?;
    check!(!behind.poll(0)?, "the copy behind it did not wait");
    timeline.step()?;
    behind.finish()?;
    check_eq!(
        (copy.status()?, behind.status()?),
        (1, 1),
        "status of the copies"
    );
    holds(&to, x, "after the fence")?;
    holds(&third, x, "behind it")?;
    other.clean()?;
    gpu.clean()
}

/// A copy waits for room in the queue of its file, whose copies wait for a fence of their
/// arguments, or for an implicit fence of an object. No lock is held meanwhile.
fn copy_room() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    for implicit in [false, true] {
        let (from, to) = (gpu.drm.create(PAGE64)?, gpu.drm.create(PAGE64)?);
        let map = to.map()?;
        from.map()?.fill(x);
        map.fill(y);
        let timeline = Timeline::new()?;
        let fence = timeline.fence(1)?;
        let mut ins = vec![&fence];
        if implicit {
            to.export()?.add_fence(uapi::DMA_BUF_SYNC_WRITE, &fence)?;
            ins.clear();
        }
        let jobs = Jobs::new()?;
        let copies = (0..COPIES_MAX)
            .map(|_| copy_after(&gpu.drm, (&from, &to), &ins))
            .collect::<Result<Vec<_>, _>>()?;
        let call = || gpu.drm.copy((&from, 0), (&to, 0), PAGE64).map(drop);
        interrupt(ROOM, call, || Ok(()))?;
        kill(ROOM, call)?;
        restart(ROOM, call, || {
            // Another client has room, and gets the locks.
            let other = Mgpu::first()?;
            let (one, two) = (other.drm.create(PAGE64)?, other.drm.create(PAGE64)?);
            copy_after(&other.drm, (&one, &two), &[])?.finish()?;
            from.info()?;
            cpu_reads(&map, y, &[0])?;
            Ok(timeline.step()?)
        })?;
        let last = copy_after(&gpu.drm, (&from, &to), &[])?;
        for copy in copies.iter().chain([&last]) {
            copy.finish()?;
            check_eq!(copy.status()?, 1, "status of a copy, {implicit}");
        }
        cpu_reads(&map, x, &[0])?;

        // The calls that a signal has ended have queued nothing.
        let events = jobs.events()?;
        let me = std::process::id();
        let context = events.iter().rfind(|event| event.is("submit", me));
        let context = context.map(|event| event.context);
        let submitted = events
            .iter()
            .filter(|event| event.name == "submit" && Some(event.context) == context);
        check_eq!(
            submitted.count(),
            COPIES_MAX as usize + 2,
            "copies that were queued"
        );
    }
    gpu.clean()
}

/// The driver is unbound while jobs wait for a fence of another driver. A copy waits for room
/// behind them. Moves of objects wait for a copy and for a job of the compute engine, inside of the
/// section that the unbind waits for. All of them end, and not because of the fence.
fn unbind_waits() -> Outcome {
    const SIZE: u64 = 4 * PAGE64;
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let (jobs, ended, place) = {
        let gpu = Mgpu::first()?;
        let (from, to) = (gpu.drm.create(PAGE64)?, gpu.drm.create(PAGE64)?);
        let mut jobs = (0..COPIES_MAX)
            .map(|_| copy_after(&gpu.drm, (&from, &to), &[&fence]))
            .collect::<Result<Vec<_>, _>>()?;
        let mut waits = Child::spawn(|| {
            let copy = gpu.drm.copy((&from, 0), (&to, 0), PAGE64);
            expect_errno("a copy without a device", copy, libc::ENODEV)
        })?;
        await_sleep(&mut waits, ROOM, "S")?;

        let other = Mgpu::first()?;
        let bench = Bench::new(&other)?;
        let [copied, used] = [(); 2].map(|()| -> Result<_, Stop> {
            let object = other.drm.create_flags(SIZE, EITHER)?;
            // This waits until the object is cleared.
            object.map()?.set(1);
            placed(&object, uapi::PLACEMENT_VRAM)?;
            Ok(object)
        });
        let (copied, used) = (copied?, used?);
        let target = other.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
        bench.vm.bind(&used, HUGE)?;
        bench.vm.done(&[Op::fill(HUGE, SIZE, 1)])?;
        jobs.push(copy_after(&other.drm, (&copied, &target), &[&fence])?);
        jobs.push(bench.vm.exec_after(&[Op::fill(HUGE, SIZE, 2)], &[&fence])?);
        let mut moves = Vec::new();
        for object in [&copied, &used] {
            let mut child = Child::spawn(|| {
                // The move may succeed when the job is cancelled.
                let _ = other.force(object, "system");
                Ok(())
            })?;
            await_sleep(&mut child, FENCE, "SD")?;
            moves.push(child);
        }

        // The moves would give up after 15 seconds.
        let mut unbinding = Unbinding::start(&gpu.pci)?;
        let ended = misc::poll(Duration::from_secs(1), || unbinding.child.ended());
        let place = unbinding.child.whereabouts();
        check!(!fence.poll(0)?, "the fence of the test has signalled");
        timeline.step()?;
        waits.join("the wait for room", LIMIT)?;
        for mut child in moves {
            child.join("a move", LIMIT)?;
        }
        unbinding.finish(LIMIT)?.rebind()?;
        (jobs, ended, place)
    };
    check!(
        ended.is_some(),
        "the unbind waited for a fence of another driver; {place}"
    );
    for job in &jobs {
        job.finish()?;
        check_eq!(job.status()?, -libc::ECANCELED, "status of a job");
    }
    Mgpu::first()?.clean()
}

/// The driver is unbound while copies wait for a fence of another driver: the unbind does not wait
/// for that fence.
fn unbind() -> Outcome {
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let copies = {
        let gpu = Mgpu::first()?;
        let (from, to) = (gpu.drm.create(PAGE64)?, gpu.drm.create(PAGE64)?);
        let copies = (0..COPIES_MAX)
            .map(|_| copy_after(&gpu.drm, (&from, &to), &[&fence]))
            .collect::<Result<Vec<_>, _>>()?;
        let gone = Unbinding::start(&gpu.pci)?.finish(LIMIT)?;
        check!(!fence.poll(0)?, "the fence of the test has signalled");
        gone.rebind()?;
        copies
    };
    for copy in &copies {
        copy.finish()?;
        check_eq!(copy.status()?, -libc::ECANCELED, "status of a copy");
    }
    timeline.step()?;
    Mgpu::first()?.clean()
}

/// A process asks for the names of fences again and again while the driver is unbound, and the jobs
/// of the fences are done or cancelled: each answer has the names of the ring, or those that the
/// kernel has for a fence that has signalled.
fn unbind_names() -> Outcome {
    const COPY: (&str, &str) = ("ttm", "mgpu-copy");
    const EXEC: (&str, &str) = ("drm_queue", "mgpu-compute");
    const SIGNALLED: (&str, &str) = ("detached-driver", "signaled-timeline");
    const STOP: usize = 0;
    const ROUNDS: usize = 1;
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let control = Map::anonymous(PAGE)?;
    let rounds = |more: u64| -> Outcome {
        let goal = control.read(ROUNDS) + more;
        let done = misc::poll(LIMIT, || (control.read(ROUNDS) >= goal).then_some(()));
        check!(done.is_some(), "{goal} rounds of questions are not done");
        Ok(())
    };
    let (jobs, mut reader) = {
        let gpu = Mgpu::first()?;
        let (from, to) = (gpu.drm.create(PAGE64)?, gpu.drm.create(PAGE64)?);
        let bench = Bench::new(&gpu)?;
        bench.vm.done(&[Op::add(RESULTS, 1)])?;
        copy_after(&gpu.drm, (&from, &to), &[])?.finish()?;
        // Some of them are in the rings, and the last ones wait for the fence of the test.
        for ring in [mgpu::COPY, mgpu::COMPUTE] {
            gpu.inject_into(ring, Error::Slow, 20)?;
        }
        let mut jobs = Vec::new();
        for number in 0..16 {
            let ins: &[_] = if number < 12 { &[] } else { &[&fence] };
            jobs.push((COPY, copy_after(&gpu.drm, (&from, &to), ins)?));
            let add = bench.vm.exec_after(&[Op::add(RESULTS, 1)], ins)?;
            jobs.push((EXEC, add));
        }
        for (want, job) in &jobs[24..] {
            let names = job.names()?;
            check!(
                matches!(&names[..], [(driver, line)] if (driver.as_str(), line.as_str()) == *want),
                "names of a job that waits: {names:?}, expected {want:?}"
            );
        }
        let reader = Child::spawn(|| {
            while control.read(STOP) == 0 {
                for (want, job) in &jobs {
                    let names = job.names()?;
                    let [(driver, line)] = &names[..] else {
                        fail!("names of a job: {names:?}");
                    };
                    let names = (driver.as_str(), line.as_str());
                    // The fence may signal between the questions for both names.
                    check!(
                        [want.0, SIGNALLED.0].contains(&names.0)
                            && [want.1, SIGNALLED.1].contains(&names.1),
                        "names of a job: {names:?}, expected {want:?}"
                    );
                }
                control.write(ROUNDS, control.read(ROUNDS) + 1);
            }
            Ok(())
        })?;
        rounds(2)?;
        let gone = Unbinding::start(&gpu.pci)?.finish(LIMIT)?;
        // The driver is not bound, and the device has no data of it any more.
        rounds(2)?;
        gone.rebind()?;
        (jobs, reader)
    };
    rounds(2)?;
    control.write(STOP, 1);
    reader.join("the questions", LIMIT)?;
    for (index, (_, job)) in jobs.iter().enumerate() {
        job.finish()?;
        let (status, names) = (job.status()?, job.names()?);
        check!(
            status == -libc::ECANCELED || (status == 1 && index < 24),
            "status {status} of job {index}"
        );
        check!(
            matches!(&names[..], [(driver, line)] if (driver.as_str(), line.as_str()) == SIGNALLED),
            "names of a job that has ended: {names:?}"
        );
    }
    timeline.step()?;
    Mgpu::first()?.clean()
}

/// The driver is unbound while a copy hangs: that copy ends by its timeout, and the other copies
/// end before.
fn unbind_hung() -> Outcome {
    let _impatient = Impatient::new()?;
    let copies = {
        let gpu = Mgpu::first()?;
        let (from, to) = (gpu.drm.create(PAGE64)?, gpu.drm.create(PAGE64)?);
        // This copy, and the jobs that clear the objects, are done before the next copy hangs.
        copy_after(&gpu.drm, (&from, &to), &[])?.finish()?;
        gpu.inject(Error::Hang, 0)?;
        let copies = (0..COPIES_MAX)
            .map(|_| copy_after(&gpu.drm, (&from, &to), &[]))
            .collect::<Result<Vec<_>, _>>()?;
        set_bound(gpu.device(), false)?;
        let device = gpu.device().to_string();
        set_bound(&device, true)?;
        copies
    };
    let states: Vec<_> = copies
        .iter()
        .map(|copy| copy.finish().and_then(|()| Ok(copy.status()?)))
        .collect::<Result<_, _>>()?;
    check_eq!(states[0], -libc::ETIMEDOUT, "status of the copy that hangs");
    let done = states[1..].iter().take_while(|state| **state == 1).count();
    check!(
        done < CREDITS
            && states[1 + done..]
                .iter()
                .all(|state| *state == -libc::ECANCELED),
        "states of the others: {:?}",
        &states[1..]
    );
    // A temporary of the last expression would be dropped after `_impatient`, which waits for the
    // file to be closed.
    let gpu = Mgpu::first()?;
    gpu.clean()
}

/// The addresses of scattered memory, which waiting copies keep, are charged to their client, are
/// bounded, as is the number of copies, and are freed with the copies.
fn charged() -> Outcome {
    const PAGES: u64 = 4096;
    // Each piece has an address and a length. Some pages may be adjacent, and each processor keeps
    // memory that it has charged in advance.
    const LISTS: u64 = COPIES_MAX as u64 * PAGES * 16 / 2;
    let group = MemoryGroup::new("copies")?;
    let mut child = Child::spawn(|| {
        group.enter()?;
        let gpu = Mgpu::first()?;
        let scattered = foreign::make(Kind::Udmabuf, PAGES as usize)?;
        let from = gpu.drm.import(&scattered.buffer)?;
        let to = gpu.drm.create(from.size())?;
        let timeline = Timeline::new()?;
        // Maps the import.
        copy_after(&gpu.drm, (&from, &to), &[])?.finish()?;
        let fence = timeline.fence(1)?;
        let before = group.current()?;
        let copies = (0..COPIES_MAX)
            .map(|_| copy_after(&gpu.drm, (&from, &to), &[&fence]))
            .collect::<Result<Vec<_>, _>>()?;
        let with = group.current()?;
        check!(
            (before + LISTS..=before + 4 * LISTS).contains(&with),
            "{before} bytes before {COPIES_MAX} copies, and {with} with them"
        );
        timeline.step()?;
        for copy in &copies {
            copy.finish()?;
        }
        // The memory of the jobs is freed after their fences have signalled.
        let freed = misc::poll(LIMIT, || {
            (group.current().ok()? + LISTS / 2 <= with).then_some(())
        });
        check!(
            freed.is_some(),
            "{with} bytes with the copies, and {} after them",
            group.current()?
        );
        gpu.clean()
    })?;
    child.join("the client", LIMIT * 2)
}

igt_main! {
    "flood", "a client that floods its queue, and another one", one_floods;
    "flood-create", "one client makes objects all the time", flood_create;
    "flood-moves", "one client copies from an object that moves", flood_moves;
    "flood-evict", "one client copies from an object, and another one needs room", flood_evict;
    "flood-exec", "the same with jobs of the compute engine", one_floods_exec;
    "waits", "a copy that waits for an external fence", waits;
    "copy-room", "a copy that waits for room in the queue of its file", copy_room;
    "charged", "the memory of copies that wait", charged;
    "unbind", "of the driver, while copies wait for external fences", unbind;
    "unbind-waits", "of the driver, while calls wait for jobs, and jobs for external fences", unbind_waits;
    "unbind-names", "of the driver, while a process asks for the names of the fences", unbind_names;
    "unbind-hung", "of the DRM driver, while a copy hangs", unbind_hung;
}

// SPDX-License-Identifier: GPL-2.0

//! Jobs of the compute engine of the modelled GPU: their order, and the outcome of jobs that fail.

use std::time::{Duration, Instant};

use vvram_tests::compute::{
    ballast, sum, Bench, Exec, Op, VmFailures, HUGE, JOBS_MAX, LEFT, OPS_MAX, RESULTS,
};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{peer_flush, EITHER};
use vvram_tests::fdinfo::FdInfo;
use vvram_tests::fence::{SyncObj, Timeline};
use vvram_tests::fixture::{patterns, peer_writes};
use vvram_tests::map::PAGE64;
use vvram_tests::mgpu::{holds, take_all, Chaos, Error, Impatient, Mgpu, COMPUTE, COPY};
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::{Child, Steps};
use vvram_tests::queue::beside_jobs;
use vvram_tests::rebind::Unbinding;
use vvram_tests::signals::{await_sleep, interrupt, kill, restart};
use vvram_tests::syncfile::SyncFile;
use vvram_tests::uapi::PeerFlush;
use vvram_tests::{check, check_eq, expect_errno, igt_main, skip, uapi, Outcome, Stop, SysError};

const VRAM: u32 = uapi::CREATE_VRAM;
const SIZE: u64 = 16 * PAGE64;
const WORDS: u64 = SIZE / 8;
const LIMIT: Duration = Duration::from_secs(40);
/// Where the kernel waits for a fence.
const FENCE: &str = "dma_fence_default_wait";
/// Where it waits for room in the queue of a file, `Queue::permit`.
const ROOM: &str = "6permit";

/// Where it waits for a change of mappings: `AddressSpace::await_turns`, which the compiler inlines
/// into a function of the module `exec`.
const TURN: &str = "4mgpu4exec";

/// Jobs of as many operations as are permitted run in their order, and after their fences.
fn order() -> Outcome {
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let (x, _) = patterns();
    let object = bench.vm.create(SIZE, VRAM)?;
    let map = object.map()?;
    map.fill(x);
    bench.vm.bind(&object, HUGE)?;
    // Each job adds to the result of the job before, and copies it.
    let ops: Vec<_> = (0..OPS_MAX as u64 / 2)
        .flat_map(|index| {
            let at = HUGE + 8 * index;
            [Op::add(at, index), Op::copy(at, at + 8, 8)]
        })
        .collect();
    bench.vm.done(&ops)?;
    let mut value = x.word(0);
    for index in 0..OPS_MAX as u64 / 2 {
        value = value.wrapping_add(index);
        check_eq!(map.read(index as usize), value, "word {index}");
    }
    // Jobs do not begin before their fences have signalled, and the next job of the file comes
    // after them.
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    bench.results.set(0);
    let first = bench.vm.exec_after(&[Op::fill(RESULTS, 8, 1)], &[&fence])?;
    let second = bench.vm.exec(&[Op::copy(RESULTS, RESULTS + 8, 8)])?;
    check!(!second.poll(100)?, "a job was done before its fence");
    check_eq!(bench.results.read(0), 0, "the word before the fence");
    timeline.step()?;
    for fence in [&first, &second] {
        fence.finish()?;
        check_eq!(fence.status()?, 1, "status of a job");
    }
    check_eq!(bench.results.read(1), 1 << 32 | 1, "the second job");
    // The fence is put into a sync object.
    let object = SyncObj::new(gpu.drm.fd())?;
    let add = [Op::add(RESULTS, 1)];
    bench.vm.exec_syncs(&add, &[], &[object.sync(0)])?;
    object.wait(i64::MAX)?;
    check_eq!(bench.results.read(0), (1 << 32 | 1) + 1, "the last job");
    gpu.clean()
}

/// Jobs wait for the fences of their arguments only, and nothing waits for them that was not given
/// theirs.
fn explicit() -> Outcome {
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let (x, _) = patterns();
    let object = gpu.drm.create_flags(SIZE, EITHER)?;
    let buf = object.export()?;
    object.map()?.fill(x);
    bench.vm.bind(&object, HUGE)?;

    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    buf.add_fence(uapi::DMA_BUF_SYNC_WRITE, &fence)?;
    check_eq!(
        bench.sum(HUGE, SIZE)?,
        sum(x, 0, WORDS),
        "sum behind a write of others"
    );
    timeline.step()?;

    // Two clients map the same buffer. The job of one waits, that of the other does not.
    let other = Mgpu::first()?;
    let theirs = Bench::new(&other)?;
    let import = other.drm.import(&buf)?;
    theirs.vm.bind(&import, HUGE)?;
    let fence = timeline.fence(2)?;
    let job = bench.vm.exec_after(&[Op::fill(HUGE, 8, 7)], &[&fence])?;
    check_eq!(theirs.sum(HUGE, SIZE)?, sum(x, 0, WORDS), "their sum");
    let write = uapi::DMA_BUF_SYNC_WRITE;
    check!(
        buf.sync_file(write)?.poll(0)?,
        "a job is an implicit fence of the buffer"
    );
    check_eq!(job.status()?, 0, "status of the job that waits");
    timeline.step()?;
    job.finish()?;
    check_eq!(
        object.map()?.read(0),
        7 << 32 | 7,
        "the job that has waited"
    );
    other.clean()?;
    gpu.clean()
}

/// A client that asks for it takes part in implicit synchronization: by the ioctls of the dma-buf.
/// Copies always do.
fn implicit() -> Outcome {
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let (x, y) = patterns();
    let write = uapi::DMA_BUF_SYNC_WRITE;
    let (a, b) = (
        gpu.drm.create_flags(SIZE, EITHER)?,
        gpu.drm.create_flags(SIZE, EITHER)?,
    );
    let buf = b.export()?;
    bench.vm.bind(&b, HUGE)?;
    for round in 0..4 {
        let (x, y) = (x.derive(round), y.derive(round));
        a.map()?.fill(x);
        b.map()?.fill(y);
        // The engines work at their own speed.
        gpu.inject_into(COPY, Error::Slow, 30)?;
        gpu.drm.copy((&a, 0), (&b, 0), SIZE)?;
        let ops = [
            Op::checksum(HUGE, SIZE, RESULTS),
            Op::fill(HUGE, SIZE, 0x5a5a_5a5a),
        ];
        let job = bench.vm.exec_after(&ops, &[&buf.sync_file(write)?])?;
        buf.add_fence(write, &job)?;
        gpu.inject_into(COMPUTE, Error::Slow, 30)?;
        gpu.drm.copy((&b, 0), (&a, 0), SIZE)?.finish()?;
        check_eq!(job.status()?, 1, "status of the job before the copy");
        check_eq!(
            bench.results.read(0),
            sum(x, 0, WORDS),
            "sum of what was copied"
        );
        check!(
            a.map()?.verify_value(0x5a5a_5a5a_5a5a_5a5a).is_ok(),
            "the copy was before the job in round {round}"
        );
        for ring in [COPY, COMPUTE] {
            gpu.inject_into(ring, Error::Slow, 0)?;
        }
    }
    gpu.clean()
}

/// A job without operations signals its fence in the order of the queue, whatever is mapped.
fn empty() -> Outcome {
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let before = bench.vm.exec_after(&[Op::add(RESULTS, 1)], &[&fence])?;
    let behind = bench.vm.exec(&[])?;
    let late = timeline.fence(2)?;
    let waits = bench.vm.exec_after(&[], &[&late])?;
    let last = bench.vm.exec(&[Op::add(RESULTS, 2)])?;
    check!(
        !behind.poll(100)?,
        "a job was done before the one before it"
    );
    timeline.step()?;
    behind.finish()?;
    for job in [&before, &behind] {
        check_eq!(job.status()?, 1, "status of a job");
    }
    check_eq!(bench.results.read(0), 1, "the job before");
    check!(!waits.poll(100)?, "an empty job was done before its fence");
    check_eq!(last.status()?, 0, "status of the job behind it");
    timeline.step()?;
    last.finish()?;
    for job in [&waits, &last] {
        check_eq!(job.status()?, 1, "status of a job");
    }
    check_eq!(bench.results.read(0), 3, "the last job");
    expect_errno(
        "an unknown address space",
        gpu.drm.exec_raw(Exec {
            vm: 1000,
            ..bench.vm.argument(&[])
        }),
        libc::ENOENT,
    )?;
    gpu.clean()
}

/// fdinfo has the PCI device, and how long each engine has worked for the file.
fn fdinfo() -> Outcome {
    const WORK: u64 = 50_000_000;
    let (gpu, other) = (Mgpu::first()?, Mgpu::first()?);
    let (bench, theirs) = (Bench::new(&gpu)?, Bench::new(&other)?);
    let began = Instant::now();
    let info = FdInfo::of(&gpu.drm)?;
    check_eq!(info.text("drm-pdev")?, gpu.pci.name(), "the PCI device");
    let engines = |gpu: &Mgpu| {
        let info = FdInfo::of(&gpu.drm)?;
        Ok::<_, Stop>([info.engine("compute")?, info.engine("copy")?])
    };
    check_eq!([engines(&gpu)?, engines(&other)?], [[0; 2]; 2], "at first");

    let object = gpu.drm.create(2 * PAGE64)?;
    for ring in [COMPUTE, COPY] {
        gpu.inject_into(ring, Error::Slow, 50)?;
    }
    let copy = gpu.drm.copy((&object, 0), (&object, PAGE64), PAGE64)?;
    bench.vm.done(&[Op::add(RESULTS, 1)])?;
    copy.finish()?;
    for ring in [COMPUTE, COPY] {
        gpu.inject_into(ring, Error::Slow, 0)?;
    }
    // The queue learns of the end of a job after its fence has signalled.
    let done = misc::poll(LIMIT, || {
        let now = engines(&gpu).ok()?;
        now.iter().all(|ns| *ns >= WORK).then_some(now)
    });
    let elapsed = began.elapsed().as_nanos() as u64;
    check!(
        done.is_some_and(|now| now.iter().all(|ns| *ns <= elapsed)),
        "{done:?} ns of work in {elapsed} ns, and now {:?}",
        engines(&gpu)?
    );
    check_eq!(engines(&other)?, [0; 2], "of the other file");
    theirs.vm.done(&[Op::add(RESULTS, 1)])?;
    other.clean()?;
    gpu.clean()
}

/// An unmap, or a map over a mapping, waits for the jobs in the ring that use it.
fn unmapped() -> Outcome {
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let (x, y) = patterns();
    let (first, second) = (bench.vm.create(SIZE, VRAM)?, gpu.drm.create(SIZE)?);
    first.map()?.fill(x);
    second.map()?.fill(y);
    for replace in [false, true] {
        bench.vm.bind(&first, HUGE)?;
        bench.sum(HUGE, SIZE)?;
        gpu.inject_into(COMPUTE, Error::Slow, 50)?;
        let jobs: Vec<_> = (0..3)
            .map(|index| {
                bench
                    .vm
                    .exec(&[Op::checksum(HUGE, SIZE, RESULTS + 8 * index)])
            })
            .collect::<Result<_, _>>()?;
        if replace {
            bench.vm.bind(&second, HUGE)?;
        } else {
            bench.vm.unbind(HUGE, SIZE)?;
        }
        gpu.inject_into(COMPUTE, Error::Slow, 0)?;
        for (index, job) in jobs.iter().enumerate() {
            job.finish()?;
            check_eq!(job.status()?, 1, "status of job {index}, {replace}");
            check_eq!(bench.results.read(index), sum(x, 0, WORDS), "its sum");
        }
    }
    check_eq!(
        bench.sum(HUGE, SIZE)?,
        sum(y, 0, WORDS),
        "of what is there now"
    );
    // A map that replaces nothing does not wait.
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let job = bench.vm.exec_after(&[Op::add(RESULTS, 1)], &[&fence])?;
    bench.vm.bind(&first, 8 * HUGE)?;
    check_eq!(
        job.status()?,
        0,
        "status of a job while something was mapped"
    );
    timeline.step()?;
    job.finish()?;
    check_eq!(bench.sum(8 * HUGE, SIZE)?, sum(x, 0, WORDS), "beside it");
    gpu.clean()
}

/// An unmap waits for a job that waits for a fence. Another task of the same file and the unplug of
/// another device do not wait with it, and signals end the wait.
fn unmap_waits() -> Outcome {
    let [gpu, other] = Mgpu::pair()?;
    let bench = Bench::new(&gpu)?;
    let (x, _) = patterns();
    let (first, second) = (bench.vm.create(SIZE, VRAM)?, bench.vm.create(SIZE, VRAM)?);
    first.map()?.fill(x);
    bench.vm.bind(&first, HUGE)?;
    let timeline = Timeline::new()?;
    let [now, next, last] = [1, 2, 3].map(|step| timeline.fence(step));
    let ops = [Op::checksum(HUGE, SIZE, RESULTS)];
    let job = bench.vm.exec_after(&ops, &[&now?])?;
    let unbind = || bench.vm.unbind(HUGE, SIZE);
    let replace = || bench.vm.bind(&second, HUGE);

    interrupt(FENCE, unbind, || Ok(()))?;
    interrupt(FENCE, replace, || Ok(()))?;
    kill(FENCE, replace)?;
    let pci = other.pci.clone();
    drop(other);
    restart(FENCE, unbind, || {
        kill(FENCE, unbind)?;
        let mut gone = Unbinding::start(&pci)?;
        let ended = misc::poll(LIMIT, || gone.child.ended());
        let place = gone.child.whereabouts();
        timeline.step()?;
        gone.finish(LIMIT)?.rebind()?;
        check!(
            ended.is_some(),
            "an unplug waited for the job of another device; {place}"
        );
        Ok(())
    })?;
    check_eq!(job.status()?, 1, "status of the job");
    check_eq!(bench.results.read(0), sum(x, 0, WORDS), "its sum");
    check_eq!(bench.vm.run(&ops)?, -libc::EIO, "what is unmapped is read");

    // Another task queues a job during the wait.
    bench.vm.bind(&first, HUGE)?;
    bench.vm.exec_after(&ops, &[&next?])?;
    let mut child = Child::spawn(|| Ok(unbind()?))?;
    await_sleep(&mut child, FENCE, "S")?;
    let job = bench.vm.exec_after(&ops, &[&last?])?;
    timeline.step()?;
    // The unmap waits for that job, too, and no other one is queued before.
    let mut next = Child::spawn(|| {
        while child_waits(&bench)? {}
        Ok(())
    })?;
    await_sleep(&mut next, TURN, "S")?;
    check!(child.ended().is_none(), "the unmap did not wait");
    check_eq!(job.status()?, 0, "status of the new job");
    timeline.step()?;
    child.join("the unmap", LIMIT)?;
    check_eq!(job.status()?, 1, "status of the new job");
    next.join("the task that goes on queueing", LIMIT)?;
    gpu.clean()
}

/// Queues a job that reads the results; returns whether nothing has ended it yet.
fn child_waits(bench: &Bench<'_>) -> Result<bool, Stop> {
    let job = bench.vm.exec(&[Op::checksum(RESULTS, 8, RESULTS + 8)])?;

    std::thread::sleep(Duration::from_millis(20));
    Ok(job.status()? == 0)
}

/// A client has jobs under way all the time, and unmaps what they use.
fn unmap_streams() -> Outcome {
    const DEPTH: usize = 3;
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let (x, _) = patterns();
    let object = bench.vm.create(SIZE, VRAM)?;
    object.map()?.fill(x);
    gpu.inject_into(COMPUTE, Error::Slow, 10)?;
    beside_jobs(
        DEPTH,
        || bench.vm.exec(&[Op::add(RESULTS + 8, 1)]),
        || {
            for round in 0..4 {
                bench.vm.bind(&object, HUGE)?;
                check_eq!(
                    bench.sum(HUGE, SIZE)?,
                    sum(x, 0, WORDS),
                    "sum in round {round}"
                );
                bench.vm.unbind(HUGE, SIZE)?;
            }
            Ok(())
        },
    )?;
    gpu.inject_into(COMPUTE, Error::Slow, 0)?;
    gpu.clean()
}

/// A wait for room in the queue of a file, whose jobs wait for an external fence. No lock is
/// held meanwhile, and neither the jobs nor the wait hold up an unbind.
fn full() -> Outcome {
    let timeline = Timeline::new()?;
    let [first, second] = [1, 2].map(|step| timeline.fence(step));
    let ops = [Op::add(RESULTS, 1)];
    {
        let gpu = Mgpu::first()?;
        let bench = Bench::new(&gpu)?;
        bench.results.set(0);
        let queue = |fence: &SyncFile| {
            (0..JOBS_MAX)
                .map(|_| bench.vm.exec_after(&ops, &[fence]))
                .collect::<Result<Vec<_>, _>>()
        };
        let call = || bench.vm.exec(&ops).map(drop);
        queue(&first?)?;
        interrupt(ROOM, call, || Ok(()))?;
        kill(ROOM, call)?;
        restart(ROOM, call, || {
            // Another file has room, and gets the locks.
            let other = Mgpu::first()?;
            Bench::new(&other)?.vm.done(&ops)?;
            check_eq!(bench.results.read(0), 0, "jobs before the fence");
            Ok(timeline.step()?)
        })?;
        bench.vm.done(&ops)?;
        check_eq!(
            bench.results.read(0),
            JOBS_MAX as u64 + 2,
            "jobs that were done: a call that has failed queues none"
        );
        gpu.clean()?;

        let jobs = queue(&second?)?;
        let mut child =
            Child::spawn(|| expect_errno("a job without a device", call(), libc::ENODEV))?;
        await_sleep(&mut child, ROOM, "S")?;
        let gone = Unbinding::start(&gpu.pci)?.finish(LIMIT)?;
        child.join("the wait for room", LIMIT)?;
        for job in &jobs {
            check_eq!(job.status()?, -libc::ECANCELED, "status of a job");
        }
        timeline.step()?;
        gone.rebind()?;
    }
    let gpu = Mgpu::first()?;
    Bench::new(&gpu)?.vm.done(&ops)?;
    gpu.clean()
}

/// A job fails; the jobs before and behind it are done.
fn fails(error: Option<Error>, errno: i32) -> Outcome {
    let gpu = Mgpu::first()?;
    let (one, other) = (Bench::new(&gpu)?, Bench::new(&gpu)?);
    let (resets, copies) = (
        gpu.drm.counter(Counter::ComputeResets)?,
        gpu.drm.counter(Counter::CopyResets)?,
    );
    one.results.set(0);
    other.results.set(0);
    if let Some(error) = error {
        gpu.inject_into(COMPUTE, error, 0)?;
    }
    // Each job takes several submissions.
    let adds: Vec<_> = (0..10)
        .map(|index| Op::add(RESULTS + 8 * index, 1))
        .collect();
    let bad = match error {
        Some(_) => adds.clone(),
        None => vec![Op::fill(HUGE, 4, 0)],
    };
    let mut jobs = vec![one.vm.exec(&bad)?];
    for _ in 0..3 {
        jobs.push(other.vm.exec(&adds)?);
        jobs.push(one.vm.exec(&[Op::add(RESULTS + 80, 1)])?);
    }
    // The other engine still works.
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    gpu.drm.copy((&from, 0), (&to, 0), SIZE)?.finish()?;
    for job in &jobs {
        job.finish()?;
    }
    let states: Vec<_> = jobs
        .iter()
        .map(SyncFile::status)
        .collect::<Result<_, _>>()?;
    check_eq!(states, [-errno, 1, 1, 1, 1, 1, 1], "what came of the jobs");
    for index in 0..10 {
        check_eq!(other.results.read(index), 3, "word {index} of the other");
    }
    check_eq!(one.results.read(10), 3, "what was done behind it");
    check_eq!(
        gpu.drm.counter(Counter::ComputeResets)?,
        resets + 1,
        "resets of the compute engine"
    );
    check_eq!(
        gpu.drm.counter(Counter::CopyResets)?,
        copies,
        "of the copy engine"
    );
    gpu.clean()
}

fn fault() -> Outcome {
    fails(None, libc::EIO)?;
    fails(Some(Error::Fault), libc::EIO)
}

fn hang() -> Outcome {
    let _impatient = Impatient::new()?;
    fails(Some(Error::Hang), libc::ETIMEDOUT)
}

/// A client learns which of its jobs have failed by themselves, and of a fault where.
fn failures() -> Outcome {
    let _impatient = Impatient::new()?;
    let gpu = Mgpu::first()?;
    let (bench, other) = (Bench::new(&gpu)?, Bench::new(&gpu)?);
    let mut want = VmFailures {
        vm: bench.vm.number(),
        ..Default::default()
    };
    check_eq!(bench.vm.failures()?, want, "at first");
    let (read, write) = (HUGE + 2 * PAGE64, 5 * HUGE + PAGE64);
    for (access, (op, address)) in [
        (Op::checksum(read, 8, RESULTS), read),
        (Op::fill(write, 8, 1), write),
    ]
    .into_iter()
    .enumerate()
    {
        check_eq!(bench.vm.run(&[op])?, -libc::EIO, "status of {op:?}");
        want = VmFailures {
            access: access as u32,
            address,
            faults: want.faults + 1,
            ..want
        };
        check_eq!(bench.vm.failures()?, want, "after {op:?}");
    }
    // A job behind the fence of the driver, with which the ring begins after its reset.
    bench.vm.done(&[Op::add(RESULTS, 1)])?;
    gpu.inject_into(COMPUTE, Error::Hang, 0)?;
    let hung = bench.vm.run(&[Op::add(RESULTS, 1)])?;
    check_eq!(hung, -libc::ETIMEDOUT, "status of a job that hangs");
    want.hangs = 1;
    check_eq!(bench.vm.failures()?, want, "after the hang");
    let innocent = VmFailures {
        vm: other.vm.number(),
        ..Default::default()
    };
    check_eq!(other.vm.failures()?, innocent, "of another address space");
    gpu.clean()
}

/// Both engines hang, with jobs behind.
fn both_hang() -> Outcome {
    let _impatient = Impatient::new()?;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let bench = Bench::new(&gpu)?;
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    from.map()?.fill(x);
    bench.vm.bind(&to, HUGE)?;
    bench.vm.done(&[Op::fill(HUGE, SIZE, 1)])?;
    gpu.inject(Error::Hang, 0)?;
    gpu.inject_into(COMPUTE, Error::Hang, 0)?;
    let jobs = [
        bench.vm.exec(&[Op::add(RESULTS, 1)])?,
        bench.vm.exec(&[Op::add(RESULTS, 1)])?,
    ];
    let copies = [
        gpu.drm.copy((&from, 0), (&to, 0), SIZE)?,
        gpu.drm.copy((&from, 0), (&to, 0), SIZE)?,
    ];
    for fence in jobs.iter().chain(&copies) {
        fence.finish()?;
    }
    for pair in [&jobs, &copies] {
        let states = [pair[0].status()?, pair[1].status()?];
        check_eq!(states, [-libc::ETIMEDOUT, 1], "what came of both");
    }
    check_eq!(bench.sum(HUGE, SIZE)?, sum(x, 0, WORDS), "after all");
    check_eq!(
        (
            gpu.drm.counter(Counter::CopyResets)?,
            gpu.drm.counter(Counter::ComputeResets)?
        ),
        (1, 1),
        "resets"
    );
    gpu.clean()
}

/// Address spaces are destroyed and files are closed with jobs in the queue, while their objects
/// move.
fn given_up() -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, LEFT)?;
    let vms = gpu.drm.counter(Counter::Vms)?;
    for round in 0..6 {
        gpu.inject_into(COMPUTE, Error::Slow, 20)?;
        let bench = Bench::new(&gpu)?;
        let object = bench.vm.create(SIZE, EITHER)?;
        bench.vm.bind(&object, HUGE)?;
        let jobs: Vec<_> = (0..8)
            .map(|_| bench.vm.exec(&[Op::fill(HUGE, SIZE, 7)]))
            .collect::<Result<_, _>>()?;
        if round % 2 == 0 {
            drop(bench);
            drop(object);
            drop(take_all(&gpu)?);
        } else {
            let taken = take_all(&gpu)?;
            drop((object, bench, taken));
        }
        gpu.inject_into(COMPUTE, Error::Slow, 0)?;
        for job in &jobs {
            job.finish()?;
            check_eq!(job.status()?, 1, "status of a job in round {round}");
        }
    }
    // A process exits while its jobs wait for fences.
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let steps = Steps::new()?;
    let mut child = Child::spawn(|| {
        let gpu = Mgpu::first()?;
        let bench = Bench::new(&gpu)?;
        let object = bench.vm.create(SIZE, EITHER)?;
        bench.vm.bind(&object, HUGE)?;
        bench.vm.exec_after(&[Op::fill(HUGE, SIZE, 7)], &[&fence])?;
        steps.done()?;
        vvram_tests::proc::sleep_forever()
    })?;
    steps.wait("the job", LIMIT)?;
    child.kill()?;
    let done = misc::poll(LIMIT, || {
        (gpu.drm.counter(Counter::Vms).ok()? == vms).then_some(())
    });
    check!(done.is_some(), "an address space is left");
    gpu.clean()
}

/// Unknown values are refused, and no job is queued.
fn bad_input() -> Outcome {
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let drm = &gpu.drm;
    let good = Op::copy(RESULTS, RESULTS + 64, 8);
    let refused =
        |what: &str, result: Result<(), SysError>| expect_errno(what, result, libc::EINVAL);
    bench.results.set(1);
    for op in [
        Op {
            size: (64 << 20) + 1,
            ..good
        },
        Op { value: 1, ..good },
        Op {
            size: 6,
            ..Op::fill(RESULTS, 8, 2)
        },
        Op {
            src: 8,
            ..Op::fill(RESULTS, 8, 2)
        },
        Op {
            value: 1 << 32,
            ..Op::fill(RESULTS, 8, 2)
        },
        Op {
            size: 0,
            ..Op::fill(RESULTS, 8, 2)
        },
        Op::checksum(RESULTS, 6, RESULTS + 8),
        Op::checksum(RESULTS, 8, RESULTS + 4),
        Op {
            value: 1,
            ..Op::checksum(RESULTS, 8, RESULTS)
        },
        Op::add(RESULTS + 4, 1),
        Op {
            src: 8,
            ..Op::add(RESULTS, 1)
        },
        Op {
            size: 8,
            ..Op::add(RESULTS, 1)
        },
    ] {
        // The operation before the bad one is not done either.
        let ops = [Op::fill(RESULTS, 8, 2), op];
        refused(&format!("{op:?}"), bench.vm.exec(&ops).map(drop))?;
    }
    let ops = vec![good; OPS_MAX + 1];
    refused("too many operations", bench.vm.exec(&ops).map(drop))?;
    let argument = bench.vm.argument(&ops[..1]);
    // Entries that are longer than those that the kernel knows.
    let long = |last: u64| [35u64 - 32, 0, RESULTS, 0, 5, last];
    let known = |entry: &[u64; 6]| {
        drm.exec_raw(Exec {
            ops: entry.as_ptr() as u64,
            op_size: 48,
            ..argument
        })
    };
    expect_errno(
        "what the kernel does not know",
        known(&long(1)),
        libc::E2BIG,
    )?;
    known(&long(0))?;
    bench.vm.done(&[good])?;
    check_eq!(bench.results.read(0), 6, "what the only good ones did");
    check_eq!(bench.results.read(8), 6, "and what they copied");
    gpu.clean()
}

/// The device gets no address that an entry of a page table cannot hold, of 52 bits.
fn addresses() -> Outcome {
    for pci in PciDevice::mgpus() {
        let name = pci.name();
        check_eq!(pci.dma_limit("dma_mask_bits")?, 52, "{name}");
    }
    Ok(())
}

/// The device does what its interface permits and what no test asks for: it keeps what it has read
/// of page tables, writes late, and raises interrupts late, twice or for nothing. Jobs and copies
/// have the results that they have without that, in this test and in all others.
fn chaos() -> Outcome {
    let gpu = Mgpu::first()?;
    let registers = Chaos::of(&gpu.pci)?;
    if registers.seed() == 0 {
        skip!("the device does all in order");
    }
    let before = registers.lies();
    let bench = Bench::new(&gpu)?;
    let (x, y) = patterns();
    let vram = bench.vm.create(SIZE, VRAM)?;
    let system = bench.vm.create(SIZE, uapi::CREATE_SYSTEM)?;
    let other = bench.vm.create(SIZE, VRAM)?;
    bench.vm.bind(&other, 2 * HUGE)?;
    let map = vram.map()?;
    let began = Instant::now();
    let mut rounds = 0;
    loop {
        rounds += 1;
        let pattern = if rounds % 2 == 0 { x } else { y };
        map.fill(pattern);
        bench.vm.bind(&vram, HUGE)?;
        bench.vm.bind(&system, HUGE + SIZE)?;
        let sum = sum(pattern, 0, WORDS);
        check_eq!(bench.sum(HUGE, SIZE)?, sum, "round {rounds}");
        bench.vm.done(&[
            Op::copy(HUGE, HUGE + SIZE, SIZE),
            Op::fill(2 * HUGE, SIZE, rounds),
        ])?;
        holds(&system, pattern, "what was copied")?;
        bench.vm.unbind(HUGE, 2 * SIZE)?;
        for _ in 0..2 {
            let fault = bench.vm.run(&[Op::checksum(HUGE, SIZE, RESULTS)])?;
            check_eq!(
                fault,
                -libc::EIO,
                "round {rounds}: what is unmapped is read"
            );
        }
        let now = registers.lies();
        let missing: Vec<_> = (0..before.len())
            .filter(|lie| *lie != Chaos::LOST && now[*lie] == before[*lie])
            .collect();
        if missing.is_empty() {
            break;
        }
        check!(
            began.elapsed() < LIMIT,
            "after {rounds} rounds there were none of {missing:?}"
        );
    }
    gpu.clean()
}

/// A job reads what a peer has written, after a FLUSH.
fn flush() -> Outcome {
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let (x, _) = patterns();
    let object = gpu.drm.create(PAGE64)?;
    let peer = Peer::open()?;
    peer.attach_and_map(&object.export()?, Mode::Dynamic)?;
    bench.vm.bind(&object, HUGE)?;
    for round in 0..10 * misc::soak() {
        peer_writes(&peer, x.derive(round), &[0])?;
        let argument = PeerFlush {
            handle: object.handle(),
            order: 0,
        };
        check_eq!(
            peer_flush(gpu.drm.fd(), uapi::MGPU_PEER_FLUSH, argument)?,
            uapi::ORDER_FLUSH,
            "the order"
        );
        check_eq!(
            bench.sum(HUGE, PAGE64)?,
            sum(x.derive(round), 0, PAGE64 / 8),
            "what the peer has written"
        );
    }
    drop((peer, bench));
    gpu.clean()
}

igt_main! {
    "flush", "what a peer has written", flush;
    "order", "operations and jobs, behind fences", order;
    "explicit", "jobs that wait for no others", explicit;
    "implicit", "both engines on one buffer, with its implicit fences", implicit;
    "empty", "jobs without operations", empty;
    "fdinfo", "the PCI device, and the time of the engines", fdinfo;
    "addresses", "the mask of addresses for DMA", addresses;
    "chaos", "a device that keeps to nothing but its interface", chaos;
    "unmapped", "what jobs use is unmapped behind them", unmapped;
    "unmap-waits", "an unmap that waits for a job holds up no other call", unmap_waits;
    "unmap-streams", "an unmap while jobs are queued all the time", unmap_streams;
    "full", "jobs that wait for room in the queue of their file", full;
    "fault", "nothing is mapped, and errors of the engine", fault;
    "hang", "a job that hangs", hang;
    "failures", "what a client is told about its jobs that fail", failures;
    "both-hang", "on both rings", both_hang;
    "given-up", "address spaces and files with jobs", given_up;
    "bad-input", "operations with fields that they do not use", bad_input;
}

// SPDX-License-Identifier: GPL-2.0

//! The engine of one modelled GPU reads and writes VRAM of another one, peer to peer.

use std::time::Duration;

use vvram_tests::compute::{ballast, sum, Bench, Op, HUGE, LEFT, RESULTS};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::EITHER;
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::{patterns, placed};
use vvram_tests::map::PAGE64;
use vvram_tests::mgpu::{holds, reached, take_all, Error, Mgpu, COMPUTE};
use vvram_tests::proc::Child;
use vvram_tests::queue::beside_jobs;
use vvram_tests::rdma::Model;
use vvram_tests::storm::{Action, Storm};
use vvram_tests::uapi::DMA_BUF_SYNC_READ;
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, uapi, Outcome};

const SIZE: u64 = 16 * PAGE64;
const LIMIT: Duration = Duration::from_secs(40);

/// Each GPU reads and writes what the other one exports, and copies between two of its objects.
fn both_ways() -> Outcome {
    let [a, b] = Mgpu::pair()?;
    for (a, b) in [(&a, &b), (&b, &a)] {
        let (x, y) = patterns();
        let theirs = [
            a.drm.create_flags(SIZE, EITHER)?,
            a.drm.create_flags(SIZE, EITHER)?,
        ];
        theirs[0].map()?.fill(x);
        let imports = [
            b.drm.import(&theirs[0].export()?)?,
            b.drm.import(&theirs[1].export()?)?,
        ];
        let ours = b.drm.create(SIZE)?;
        ours.map()?.fill(y);
        b.drm.copy((&imports[0], 0), (&ours, 0), SIZE)?.finish()?;
        holds(&ours, x, "read from the other GPU")?;
        reached(&theirs[0], &imports[0])?;

        ours.map()?.fill(y);
        b.drm
            .copy((&ours, 8), (&imports[0], PAGE64 + 16), PAGE64)?
            .finish()?;
        let map = theirs[0].map()?;
        let moved = Model::new(x).with_copy(y, 8, PAGE64 + 16, PAGE64);
        check_ok!(moved.verify(&map), "what was written");
        map.fill(x);
        b.drm
            .copy((&imports[0], 0), (&imports[1], 0), SIZE)?
            .finish()?;
        holds(&theirs[1], x, "between two objects of the other GPU")?;
        reached(&theirs[1], &imports[1])?;
    }
    for gpu in [&a, &b] {
        gpu.await_no_window()?;
        gpu.clean()?;
    }
    Ok(())
}

/// The engines wait for each other only by the fences of the buffer.
fn ping_pong() -> Outcome {
    let [a, b] = Mgpu::pair()?;
    let (x, _) = patterns();
    let start = a.drm.create_flags(SIZE, EITHER)?;
    let middle = a.drm.create_flags(SIZE, EITHER)?;
    let import = b.drm.import(&middle.export()?)?;
    let end = b.drm.create_flags(SIZE, EITHER)?;
    for round in 0..16 {
        let pattern = x.derive(round);
        start.map()?.fill(pattern);
        a.drm.copy((&start, 0), (&middle, 0), SIZE)?;
        b.drm.copy((&import, 0), (&end, 0), SIZE)?.finish()?;
        holds(&end, pattern, "at the end")?;
    }
    reached(&middle, &import)?;
    a.clean()?;
    b.clean()
}

/// The objects of one copy do not fit into the aperture of their exporter: one leaves VRAM if it
/// may, else the copy fails. Copies that need one of them take turns.
fn crowd() -> Outcome {
    let [a, b] = Mgpu::pair()?;
    let (x, _) = patterns();
    let size = a.aperture()? / 4 * 3 / PAGE64 * PAGE64;
    let ours = b.drm.create(SIZE)?;
    for (flags, may_leave) in [(EITHER, true), (uapi::CREATE_VRAM, false)] {
        let theirs = [
            a.drm.create_flags(size, flags)?,
            a.drm.create_flags(size, flags)?,
        ];
        let imports = [
            b.drm.import(&theirs[0].export()?)?,
            b.drm.import(&theirs[1].export()?)?,
        ];
        for round in 0..4 {
            for (index, import) in (0..).zip(&imports) {
                let pattern = x.derive(2 * round + index);
                ours.map()?.fill(pattern);
                b.drm.copy((&ours, 0), (import, 0), SIZE)?.finish()?;
                ours.map()?.fill(x.derive(100));
                b.drm.copy((import, 0), (&ours, 0), SIZE)?.finish()?;
                holds(&ours, pattern, "by the window of the other GPU")?;
            }
        }
        for (object, import) in theirs.iter().zip(&imports) {
            placed(object, uapi::PLACEMENT_VRAM)?;
            check!(
                import.import_info()?.invalidations > 0,
                "nothing was invalidated"
            );
        }
        let both = b.drm.copy((&imports[0], 0), (&imports[1], 0), SIZE);
        if may_leave {
            both?.finish()?;
            b.drm.copy((&imports[1], 0), (&ours, 0), SIZE)?.finish()?;
            holds(&ours, x.derive(6), "after the copy of both")?;
        } else {
            expect_errno(
                "a copy of two that do not fit",
                both.map(drop),
                libc::ENOSPC,
            )?;
        }
    }
    a.clean()?;
    b.clean()
}

/// The exporter evicts the object between copies, and while they are queued.
fn moves() -> Outcome {
    let [a, b] = Mgpu::pair()?;
    // Taking the VRAM that is left is quick.
    let _ballast = ballast(&a, LEFT)?;
    let (x, y) = patterns();
    let object = a.drm.create_flags(SIZE, EITHER)?;
    let import = b.drm.import(&object.export()?)?;
    let ours = b.drm.create(SIZE)?;
    for round in 0..8 {
        object.map()?.fill(x.derive(round));
        ours.map()?.fill(y);
        let taken = take_all(&a)?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        if round % 2 == 0 {
            drop(taken);
        }
        b.drm.copy((&import, 0), (&ours, 0), SIZE)?.finish()?;
        holds(&ours, x.derive(round), "after an eviction")?;
    }
    check!(
        import.import_info()?.invalidations > 0,
        "nothing was invalidated"
    );
    a.clean()?;
    b.clean()
}

/// A process evicts all the time, while the other GPU copies.
fn storm() -> Outcome {
    // At times there is no room in VRAM for the object.
    const ACTIONS: [Action; 2] = [
        Action::new("fill", &[], 12),
        Action::new("move to VRAM", &[libc::ENOSPC, libc::EBUSY], 8),
    ];
    let [a, b] = Mgpu::pair()?;
    let mut storm = Storm::new(LIMIT, &ACTIONS)?;
    storm.meanwhile(|storm, _| {
        let a = Mgpu::open(&a.pci)?;
        let size = a.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
        // As much as there is, so that all other objects are evicted.
        let all = [
            a.drm.create_flags(size / 2, EITHER)?,
            a.drm.create_flags(size / 2, EITHER)?,
        ];
        drop(all);
        storm.done("fill", 1);
        Ok(())
    })?;
    let moves = a.drm.counter(Counter::Moves)?;
    let (x, y) = patterns();
    let object = a.drm.create_flags(SIZE, EITHER)?;
    let (files, id) = (a.debugfs()?, object.info()?.id);
    let map = object.map()?;
    let import = b.drm.import(&object.export()?)?;
    let ours = b.drm.create(SIZE)?;
    let own = ours.map()?;
    for round in storm.rounds(8) {
        // Nothing else brings it back for sure once it has left.
        let moved = files.write("move", &format!("{id} vram"));
        storm.tried("move to VRAM", moved)?;
        let pattern = x.derive(round);
        map.fill(pattern);
        own.fill(y);
        b.drm.copy((&import, 0), (&ours, 0), SIZE)?.finish()?;
        check_ok!(own.verify(pattern), "read in round {round}");
        own.fill(y.derive(round));
        b.drm.copy((&ours, 0), (&import, 0), SIZE)?.finish()?;
        check_ok!(map.verify(y.derive(round)), "written in round {round}");
    }
    storm.end()?;
    check!(a.drm.counter(Counter::Moves)? > moves, "nothing has moved");
    a.clean()?;
    b.clean()
}

/// Another driver reads the buffer when a job uses its import for the first time: neither the job
/// nor the call waits for that.
fn read_by_others() -> Outcome {
    let [a, b] = Mgpu::pair()?;
    let bench = Bench::new(&b)?;
    let (x, _) = patterns();
    let object = a.drm.create_flags(SIZE, EITHER)?;
    object.map()?.fill(x);
    let buffer = object.export()?;
    let import = b.drm.import(&buffer)?;
    let timeline = Timeline::new()?;
    buffer.add_fence(DMA_BUF_SYNC_READ, &timeline.fence(1)?)?;
    bench.vm.bind(&import, HUGE)?;
    let mut child = Child::spawn(|| bench.vm.done(&[Op::checksum(HUGE, SIZE, RESULTS)]))?;
    child.join("the job", LIMIT)?;
    check_eq!(bench.results.read(0), sum(x, 0, SIZE / 8), "the sum");
    timeline.step()?;
    reached(&object, &import)?;
    drop(bench);
    b.clean()?;
    a.clean()
}

/// The exporter has jobs that use the buffer all the time: those of the importer come in between.
fn busy() -> Outcome {
    const DEPTH: usize = 3;
    const JOBS: u64 = 8;
    let [a, b] = Mgpu::pair()?;
    let (x, _) = patterns();
    let object = a.drm.create_flags(SIZE, EITHER)?;
    object.map()?.fill(x);
    let import = b.drm.import(&object.export()?)?;
    let (theirs, ours) = (Bench::new(&a)?, Bench::new(&b)?);
    theirs.vm.bind(&object, HUGE)?;
    ours.vm.bind(&import, HUGE)?;
    a.inject_into(COMPUTE, Error::Slow, 20)?;
    let ops = [Op::checksum(HUGE, SIZE, RESULTS)];
    beside_jobs(
        DEPTH,
        || theirs.vm.exec(&ops),
        || {
            for round in 0..JOBS {
                check_eq!(
                    ours.sum(HUGE, SIZE)?,
                    sum(x, 0, SIZE / 8),
                    "sum of the importer in round {round}"
                );
            }
            Ok(())
        },
    )?;
    a.inject_into(COMPUTE, Error::Slow, 0)?;
    reached(&object, &import)?;
    drop((theirs, ours));
    b.clean()?;
    a.clean()
}

igt_main! {
    "read-by-others", "jobs depend on other readers of an import", read_by_others;
    "busy", "while the exporter works on the buffer all the time", busy;
    "both-ways", "the path, where it is, and the bytes", both_ways;
    "ping-pong", "two engines on one buffer", ping_pong;
    "crowd", "more than the aperture shows", crowd;
    "moves", "the object moves between copies", moves;
    "storm", "while the exporter evicts", storm;
}

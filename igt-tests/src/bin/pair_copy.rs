// SPDX-License-Identifier: GPL-2.0

//! One GPU copies from and to the memory of another.

use std::time::Duration;

use vvram_tests::debugfs::{Counter, DebugFs};
use vvram_tests::drm::{path_name, reason_name, Drm, Gem, EITHER};
use vvram_tests::fence::{SyncObj, Timeline};
use vvram_tests::fixture::{patterns, placed, squeeze_idle, Expect};
use vvram_tests::heap;
use vvram_tests::map::PAGE64;
use vvram_tests::misc;
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::proc::Child;
use vvram_tests::queue::{beside_jobs, copy_after};
use vvram_tests::rebind::Unbinding;
use vvram_tests::signals::await_sleep;
use vvram_tests::storm::{Action, Storm};
use vvram_tests::uapi::{self, VvramGemCopy, DMA_BUF_SYNC_WRITE};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome, Stop};

const SIZE: u64 = 4 * PAGE64;
const LIMIT: Duration = Duration::from_secs(20);
/// The function in which the kernel waits for a fence.
const FENCE: &str = "dma_fence_default_wait";

fn gpus() -> Result<[PciDevice; 2], Stop> {
    PciDevice::vvrams()
        .try_into()
        .map_err(|gpus| Stop::fail(format_args!("expected two GPUs, saw {gpus:?}")))
}

/// Checks the path of an import and where the object is.
#[track_caller]
fn reached(object: &Gem<'_>, import: &Gem<'_>) -> Outcome {
    let expect = Expect::get()?;
    let (want, placement) = match expect {
        Expect::Refused => (
            (uapi::PATH_SYSTEM, uapi::REASON_NO_ROUTE),
            uapi::PLACEMENT_SYSTEM,
        ),
        _ => ((expect.path(), uapi::REASON_NONE), uapi::PLACEMENT_VRAM),
    };
    let info = import.import_info()?;
    if (info.path, info.reason) != want {
        return Err(Stop::fail(format_args!(
            "expected path {} for reason {}, saw {} for {}",
            path_name(want.0),
            reason_name(want.1),
            path_name(info.path),
            reason_name(info.reason)
        )));
    }
    check_eq!(object.info()?.placement, placement, "placement");
    Ok(())
}

/// Each device copies in both directions, and between two objects of the other device.
fn both_ways() -> Outcome {
    let mut gpus = gpus()?;
    for _ in 0..2 {
        let (a, b) = (Drm::open_on(&gpus[0])?, Drm::open_on(&gpus[1])?);
        let bars = [Bar::open(&gpus[0])?, Bar::open(&gpus[1])?];
        let (x, y) = patterns();
        let theirs = [a.create_flags(SIZE, EITHER)?, a.create_flags(SIZE, EITHER)?];
        let maps = [theirs[0].map()?, theirs[1].map()?];
        let imports = [
            b.import(&theirs[0].export()?)?,
            b.import(&theirs[1].export()?)?,
        ];
        let ours = b.create(SIZE)?;
        let map = ours.map()?;

        maps[0].fill(x);
        maps[1].fill(y);
        map.fill(y);
        b.copy((&imports[0], 0), (&ours, 0), SIZE)?.finish()?;
        if let Err(mismatch) = map.verify(x) {
            fail!("read from the other GPU: {mismatch}");
        }
        reached(&theirs[0], &imports[0])?;
        bars[1].locate(&map)?;
        if Expect::get()? != Expect::Refused {
            bars[0].locate(&maps[0])?;
        }

        map.fill(y);
        b.copy((&ours, 8), (&imports[0], PAGE64 + 16), PAGE64)?
            .finish()?;
        for index in 0..SIZE as usize / 8 {
            let at = 8 * index as u64;
            let want = if (PAGE64 + 16..2 * PAGE64 + 16).contains(&at) {
                y.word((at - PAGE64 - 8) / 8)
            } else {
                x.word(index as u64)
            };
            check_eq!(
                maps[0].read(index),
                want,
                "word {index} written to the other"
            );
        }
        reached(&theirs[0], &imports[0])?;

        maps[0].fill(x);
        b.copy((&imports[0], 0), (&imports[1], 0), SIZE)?.finish()?;
        if let Err(mismatch) = maps[1].verify(x) {
            fail!("between two objects of the other GPU: {mismatch}");
        }
        reached(&theirs[1], &imports[1])?;
        gpus.swap(0, 1);
    }
    Ok(())
}

/// When a copy is done, the buffer of the other device is neither pinned nor mapped for it any
/// more.
fn released() -> Outcome {
    let gpus = gpus()?;
    let (a, b) = (Drm::open_on(&gpus[0])?, Drm::open_on(&gpus[1])?);
    let (x, y) = patterns();
    let theirs = a.create_flags(SIZE, EITHER)?;
    theirs.map()?.fill(x);
    let import = b.import(&theirs.export()?)?;
    let ours = b.create(SIZE)?;
    let map = ours.map()?;
    map.fill(y);

    b.copy((&import, 0), (&ours, 0), 8)?.finish()?;
    reached(&theirs, &import)?;
    check_eq!(map.read(0), x.word(0), "the word that was copied");
    let released = misc::poll(LIMIT, || {
        let pinned = a.counter(Counter::VramPinned).ok()?;
        (pinned == 0).then_some(())
    });
    check!(released.is_some(), "the object is still pinned");
    // The object can be evicted, and the next copy reads it again.
    let taken = squeeze_idle(&a)?;
    placed(&theirs, uapi::PLACEMENT_SYSTEM)?;
    drop(taken);
    b.copy((&import, 0), (&ours, 0), SIZE)?.finish()?;
    if let Err(mismatch) = map.verify(x) {
        fail!("after a move: {mismatch}");
    }
    Ok(())
}

/// The engines of both devices work on one buffer, and each waits for the other.
fn ping_pong() -> Outcome {
    let gpus = gpus()?;
    let (a, b) = (Drm::open_on(&gpus[0])?, Drm::open_on(&gpus[1])?);
    let (x, _) = patterns();
    let start = a.create_flags(SIZE, EITHER)?;
    let middle = a.create_flags(SIZE, EITHER)?;
    let import = b.import(&middle.export()?)?;
    let end = b.create_flags(SIZE, EITHER)?;
    let (first, last) = (start.map()?, end.map()?);
    for round in 0..16 {
        let pattern = x.derive(round);
        first.fill(pattern);
        // The process does not wait between the copies; only the engines do.
        a.copy((&start, 0), (&middle, 0), SIZE)?;
        b.copy((&import, 0), (&end, 0), SIZE)?.finish()?;
        if let Err(mismatch) = last.verify(pattern) {
            fail!("in round {round}: {mismatch}");
        }
    }
    reached(&middle, &import)
}

/// The exporter evicts objects all the time, while the other device copies.
fn storm() -> Outcome {
    // At times there is no room in VRAM for the object.
    const ACTIONS: [Action; 2] = [
        Action::new("fill", &[], 12),
        Action::new("move to VRAM", &[libc::ENOSPC, libc::EBUSY], 8),
    ];
    let gpus = gpus()?;
    let mut storm = Storm::new(LIMIT, &ACTIONS)?;
    storm.meanwhile(|storm, random| {
        let a = Drm::open_on(&gpus[0])?;
        let size = a.getparam(uapi::PARAM_VRAM_SIZE)?;
        // As much as there is, so that all other objects are evicted.
        let all = [
            a.create_flags(size / 2, EITHER)?,
            a.create_flags(size / 2, EITHER)?,
        ];
        all[random.below(2) as usize].map()?.set(random.word());
        storm.done("fill", 1);
        Ok(())
    })?;
    let (a, b) = (Drm::open_on(&gpus[0])?, Drm::open_on(&gpus[1])?);
    let moves = a.counter(Counter::Moves)?;
    let (x, y) = patterns();
    let object = a.create_flags(SIZE, EITHER)?;
    let (files, id) = (DebugFs::open(&gpus[0])?, object.info()?.id);
    let map = object.map()?;
    let import = b.import(&object.export()?)?;
    let ours = b.create(SIZE)?;
    let own = ours.map()?;
    for round in storm.rounds(8) {
        // Nothing else brings it back once it has left.
        let moved = files.write("move", &format!("{id} vram"));
        storm.tried("move to VRAM", moved)?;
        let pattern = x.derive(round);
        map.fill(pattern);
        own.fill(y);
        b.copy((&import, 0), (&ours, 0), SIZE)?.finish()?;
        if let Err(mismatch) = own.verify(pattern) {
            fail!("read in round {round}: {mismatch}");
        }
        own.fill(y.derive(round));
        b.copy((&ours, 0), (&import, 0), SIZE)?.finish()?;
        if let Err(mismatch) = map.verify(y.derive(round)) {
            fail!("written in round {round}: {mismatch}");
        }
    }
    storm.end()?;
    let moves = a.counter(Counter::Moves)? - moves;
    check!(moves >= 8, "{moves} moves are too few");
    import.import_info()?;
    Ok(())
}

/// The driver of the exporter, or that of the importer, is unbound with copies in the queue of the
/// importer.
fn unbind() -> Outcome {
    let gpus = gpus()?;
    for which in [0, 1] {
        let mut fences = Vec::new();
        {
            let (a, b) = (Drm::open_on(&gpus[0])?, Drm::open_on(&gpus[1])?);
            let object = a.create_flags(SIZE, EITHER)?;
            let import = b.import(&object.export()?)?;
            let ours = b.create(SIZE)?;
            for round in 0..32 {
                let copy = match round % 2 {
                    0 => b.copy((&import, 0), (&ours, 0), SIZE)?,
                    _ => b.copy((&ours, 0), (&import, 0), SIZE)?,
                };
                fences.push(copy);
            }
            let gone = Unbinding::start(&gpus[which])?.finish(LIMIT)?;
            for fence in &fences {
                fence.finish()?;
            }
            expect_errno(
                "a copy after the unbind",
                b.copy((&import, 0), (&ours, 0), SIZE),
                libc::ENODEV,
            )?;
            gone.rebind()?;
        }
        both_ways()?;
    }
    Ok(())
}

/// Copies from and to the buffers of another driver wait for a fence of a third one. The unbind of
/// another GPU does not wait for these copies.
fn unbind_other() -> Outcome {
    let gpus = gpus()?;
    let drm = Drm::open_on(&gpus[0])?;
    let (x, y) = patterns();
    let [source, target, next] = [0; 3].map(|_| heap::allocate(SIZE));
    let (source, target, next) = (source?, target?, next?);
    let (from, to, to_next) = (source.map()?, target.map()?, next.map()?);
    let imports = [drm.import(&source)?, drm.import(&target)?];
    let ours = [drm.create(SIZE)?, drm.create(SIZE)?];
    let maps = [ours[0].map()?, ours[1].map()?];
    from.fill(x);
    to.fill(x);
    to_next.fill(x);
    maps[0].fill(x);
    maps[1].fill(y);

    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    source.add_fence(DMA_BUF_SYNC_WRITE, &fence)?;
    let mut reader = Child::spawn(|| drm.copy((&imports[0], 0), (&ours[0], 0), SIZE)?.finish())?;
    let argument = VvramGemCopy {
        src: ours[1].handle(),
        dst: imports[1].handle(),
        size: SIZE,
        ..Default::default()
    };
    let mut writer = Child::spawn(|| {
        let waits = SyncObj::of(drm.fd(), &fence)?;
        drm.copy_syncs(&argument, &[waits.sync(0)], &[])?;
        Ok(())
    })?;
    // This copy depends on no fence, but comes behind one that does.
    let mut behind = Child::spawn(|| {
        let drm = Drm::open_on(&gpus[0])?;
        let import = drm.import(&next)?;
        let ours = [drm.create(SIZE)?, drm.create(SIZE)?];
        ours[0].map()?.fill(y);
        copy_after(&drm, (&ours[0], &ours[1]), &[&fence])?;
        drm.copy((&ours[0], 0), (&import, 0), SIZE)?.finish()
    })?;
    for child in [&mut reader, &mut writer, &mut behind] {
        await_sleep(child, FENCE, "S")?;
    }
    let mut unbinding = Unbinding::start(&gpus[1])?;
    let ended = misc::poll(LIMIT, || unbinding.child.ended());
    let place = unbinding.child.whereabouts();
    // The fence still holds up both.
    let mut children = [
        (reader, "the copy of an import"),
        (writer, "the copy to an import"),
        (behind, "the copy behind another one"),
    ];
    let waits = children
        .iter_mut()
        .all(|(child, _)| child.ended().is_none());
    from.fill(y);
    timeline.step()?;
    for (mut child, what) in children {
        child.join(what, LIMIT)?;
    }
    unbinding.finish(LIMIT)?.rebind()?;
    check!(
        ended.is_some(),
        "an unbind waited for copies of another device; {place}"
    );
    check!(waits, "a copy did not wait for its fence");
    for (map, what) in [
        (&maps[0], "what was read"),
        (&to, "what was written"),
        (&to_next, "what was written behind another copy"),
    ] {
        if let Err(mismatch) = map.verify(y) {
            fail!("{what}: {mismatch}");
        }
    }
    Ok(())
}

/// The exporter's engine works on a buffer all the time. Copies of the importer come in between.
fn busy() -> Outcome {
    const BIG: u64 = 64 * SIZE;
    const DEPTH: usize = 4;
    const COPIES: u64 = 8;
    let gpus = gpus()?;
    let (a, b) = (Drm::open_on(&gpus[0])?, Drm::open_on(&gpus[1])?);
    let (x, y) = patterns();
    let [shared, other] = [0; 2].map(|_| a.create_flags(BIG, EITHER));
    let (shared, other) = (shared?, other?);
    let map = shared.map()?;
    let import = b.import(&shared.export()?)?;
    let ours = b.create(BIG)?;
    let own = ours.map()?;
    for writes in [true, false] {
        map.fill(x);
        other.map()?.fill(x);
        let (from, to) = if writes {
            (&other, &shared)
        } else {
            (&shared, &other)
        };
        // A wait for fences without their lock begins anew when the list of them is replaced. With
        // DEBUG_MUTEXES each job does so (`dma_resv_reset_max_fences()`), and the wait would end by
        // chance, after seconds. So now and then no job is added for as long as some are under way.
        let mut count = 0;
        let submit = || {
            let job = a.copy((from, 0), (to, 0), BIG)?;
            count += 1;
            if count % (2 * DEPTH) == 0 {
                job.wait(LIMIT)?;
            }
            Ok(job)
        };
        beside_jobs(DEPTH, submit, || {
            for round in 0..COPIES {
                if writes {
                    own.set(0);
                    b.copy((&import, 0), (&ours, 0), BIG)?.finish()?;
                    if let Err(mismatch) = own.verify(x) {
                        fail!("read in round {round}: {mismatch}");
                    }
                } else {
                    own.fill(y.derive(round));
                    b.copy((&ours, 0), (&import, 0), BIG)?.finish()?;
                    if let Err(mismatch) = map.verify(y.derive(round)) {
                        fail!("written in round {round}: {mismatch}");
                    }
                }
            }
            Ok(())
        })?;
    }
    reached(&shared, &import)
}

igt_main! {
    "unbind-other", "the unbind of a GPU does not wait for copies of another one", unbind_other;
    "both-ways", "the path, where it is, and the bytes", both_ways;
    "busy", "while the exporter works on the buffer all the time", busy;
    "released", "nothing is pinned when a copy is done", released;
    "ping-pong", "two engines on one buffer", ping_pong;
    "storm", "while the exporter evicts", storm;
    "unbind", "of either device, with copies in the queue", unbind;
}

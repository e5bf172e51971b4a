// SPDX-License-Identifier: GPL-2.0

//! The engine of one modelled GPU reads and writes VRAM of another one, peer to peer.

use std::time::Duration;

use vvram_tests::compute::{ballast, LEFT};
use vvram_tests::drm::{path_name, reason_name, Gem, EITHER};
use vvram_tests::fixture::{patterns, placed, Expect};
use vvram_tests::map::PAGE;
use vvram_tests::mgpu::{holds, take_all, Mgpu};
use vvram_tests::misc;
use vvram_tests::proc::{Child, Steps};
use vvram_tests::{check, check_eq, fail, igt_main, uapi, Outcome};

const PAGE64: u64 = PAGE as u64;
const SIZE: u64 = 16 * PAGE64;
const LIMIT: Duration = Duration::from_secs(40);

/// Checks the path of an import, and that the object is in VRAM.
fn reached(object: &Gem<'_>, import: &Gem<'_>) -> Outcome {
    let info = import.import_info()?;
    check!(
        (info.path, info.reason) == (Expect::get()?.path(), uapi::REASON_NONE),
        "path {}, reason {}",
        path_name(info.path),
        reason_name(info.reason)
    );
    check_eq!(info.segments, 1, "pieces of the mapping");
    placed(object, uapi::PLACEMENT_VRAM)
}

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
        for index in 0..SIZE / 8 {
            let words = (PAGE64 + 16) / 8..(2 * PAGE64 + 16) / 8;
            let want = if words.contains(&index) {
                y.word(index - words.start + 1)
            } else {
                x.word(index)
            };
            check_eq!(
                map.read(index as usize),
                want,
                "word {index} that was written"
            );
        }
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
    let [a, b] = Mgpu::pair()?;
    let stop = Steps::new()?;
    let exporter = a.pci.clone();
    let mut child = Child::spawn(|| {
        let a = Mgpu::open(&exporter)?;
        let size = a.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
        for _ in 0..12 * misc::soak() {
            // As much as there is, so that all other objects are evicted.
            let all = [
                a.drm.create_flags(size / 2, EITHER)?,
                a.drm.create_flags(size / 2, EITHER)?,
            ];
            drop(all);
        }
        stop.done()?;
        Ok(())
    })?;
    let moves = a.drm.getparam(uapi::PARAM_MOVES)?;
    let (x, y) = patterns();
    let object = a.drm.create_flags(SIZE, EITHER)?;
    let map = object.map()?;
    let import = b.drm.import(&object.export()?)?;
    let ours = b.drm.create(SIZE)?;
    let own = ours.map()?;
    let mut round = 0;
    while child.ended().is_none() || round < 8 {
        let pattern = x.derive(round);
        map.fill(pattern);
        own.fill(y);
        b.drm.copy((&import, 0), (&ours, 0), SIZE)?.finish()?;
        if let Err(mismatch) = own.verify(pattern) {
            fail!("read in round {round}: {mismatch}");
        }
        own.fill(y.derive(round));
        b.drm.copy((&ours, 0), (&import, 0), SIZE)?.finish()?;
        if let Err(mismatch) = map.verify(y.derive(round)) {
            fail!("written in round {round}: {mismatch}");
        }
        round += 1;
    }
    child.join("the one that evicts", LIMIT)?;
    check!(
        a.drm.getparam(uapi::PARAM_MOVES)? > moves,
        "nothing moved in {round} rounds"
    );
    a.clean()?;
    b.clean()
}

igt_main! {
    "both-ways", "the path, where it is, and the bytes", both_ways;
    "ping-pong", "two engines on one buffer", ping_pong;
    "moves", "the object moves between copies", moves;
    "storm", "while the exporter evicts", storm;
}

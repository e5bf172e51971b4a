// SPDX-License-Identifier: GPL-2.0

//! Objects move while jobs of the compute engine of the modelled GPU use them, by virtual
//! addresses.

use std::time::Duration;

use vvram_tests::compute::{ballast, sum, Bench, Op, HUGE, OPS_MAX, PARAM_COMPUTE_RESETS, RESULTS};
use vvram_tests::drm::{path_name, reason_name, Drm, Gem};
use vvram_tests::map::PAGE;
use vvram_tests::mgpu::{take_all, Error, Mgpu, COMPUTE, COPY, EITHER, PARAM_LOSSES, PARAM_RESETS};
use vvram_tests::misc::{self, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::proc::Child;
use vvram_tests::scene::{patterns, placed, Expect};
use vvram_tests::{check, check_eq, fail, igt_main, uapi, Outcome, SysError};

const PAGE64: u64 = PAGE as u64;
const KIB: u64 = 1 << 10;
const SIZE: u64 = 16 * PAGE64;
const WORDS: u64 = SIZE / 8;
const LIMIT: Duration = Duration::from_secs(40);

/// An object that is private to one address space and mapped by another one is evicted while both
/// have jobs in the ring.
fn evicted() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let (a, b) = (Bench::new(&gpu)?, Bench::new(&gpu)?);
    let moves = gpu.drm.getparam(uapi::PARAM_MOVES)?;
    let rounds = 8;
    for round in 0..rounds {
        let object = a.vm.create(SIZE, EITHER)?;
        let map = object.map()?;
        a.vm.bind(&object, HUGE)?;
        b.vm.bind(&object, 5 * HUGE + PAGE64)?;
        let x = x.derive(round);
        map.fill(x);
        gpu.inject_into(COMPUTE, Error::Slow, 20)?;
        let jobs = [
            a.vm.exec(&[Op::checksum(HUGE, SIZE, RESULTS), Op::add(HUGE, 1)])?,
            b.vm.exec(&[
                Op::checksum(5 * HUGE + PAGE64, SIZE, RESULTS),
                Op::add(5 * HUGE + PAGE64 + 8, 1),
            ])?,
        ];
        placed(&object, uapi::PLACEMENT_VRAM)?;
        let taken = take_all(&gpu)?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        for job in jobs {
            job.finish()?;
            check_eq!(job.status()?, 1, "status of a job in round {round}");
        }
        gpu.inject_into(COMPUTE, Error::Slow, 0)?;
        let want = sum(x, 0, WORDS);
        check_eq!(a.results.read(0), want, "the first sum in round {round}");
        // Both jobs are done in the order of the file.
        check_eq!(b.results.read(0), plus_one(x, want), "the second one");
        // The object is back in VRAM now, if there is room.
        let both = plus_one_at(x, 1, plus_one(x, want));
        let (kept, place) = match round % 2 {
            0 => {
                drop(taken);
                (None, uapi::PLACEMENT_VRAM)
            }
            _ => (Some(taken), uapi::PLACEMENT_SYSTEM),
        };
        check_eq!(b.sum(5 * HUGE + PAGE64, SIZE)?, both, "after the eviction");
        check_eq!(a.sum(HUGE, SIZE)?, both, "after the eviction");
        placed(&object, place)?;
        drop(kept);
        for index in 0..WORDS {
            let want = x.word(index).wrapping_add(u64::from(index < 2));
            check_eq!(map.read(index as usize), want, "word {index}");
        }
    }
    check!(
        gpu.drm.getparam(uapi::PARAM_MOVES)? >= moves + rounds,
        "nothing moved"
    );
    drop((a, b));
    gpu.clean()
}

/// Returns the sum after 1 was added to a word.
fn plus_one_at(pattern: Pattern, index: u64, sum: u64) -> u64 {
    let halves = |word: u64| (word & 0xffff_ffff) + (word >> 32);
    let word = pattern.word(index);
    sum.wrapping_sub(halves(word))
        .wrapping_add(halves(word.wrapping_add(1)))
}

fn plus_one(pattern: Pattern, sum: u64) -> u64 {
    plus_one_at(pattern, 0, sum)
}

/// VRAM gets a new owner while the copy engine still reads it: the compute engine waits for that
/// read before it writes there.
fn handed_on() -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, 1024 * KIB)?;
    let bench = Bench::new(&gpu)?;
    let (x, _) = patterns();
    let size = gpu.drm.vram_free()? / 4 * 3 / PAGE64 * PAGE64;
    for round in 0..4u32 {
        let x = x.derive(round.into());
        let before = gpu.drm.create_flags(size, EITHER)?;
        before.map()?.fill(x);
        placed(&before, uapi::PLACEMENT_VRAM)?;
        gpu.inject_into(COPY, Error::Slow, 50)?;
        let after = bench.vm.create(size, EITHER)?;
        bench.vm.bind(&after, HUGE)?;
        let job = bench.vm.exec(&[Op::fill(HUGE, size, 7 + round)])?;
        placed(&after, uapi::PLACEMENT_VRAM)?;
        placed(&before, uapi::PLACEMENT_SYSTEM)?;
        job.finish()?;
        gpu.inject_into(COPY, Error::Slow, 0)?;
        check_eq!(job.status()?, 1, "status of the job");
        if let Err(mismatch) = before.map()?.verify(x) {
            fail!("who has left, in round {round}: {mismatch}");
        }
        check_eq!(
            bench.sum(HUGE, size)?,
            u64::from(7 + round) * size / 4,
            "sum of who has come"
        );
        bench.vm.unbind(HUGE, size)?;
    }
    gpu.clean()
}

/// Two address spaces, each with more than half of the VRAM that is left, take turns: all objects
/// move back for each job. The engine checks all bytes in each round, and the CPU does in the end.
fn turns() -> Outcome {
    let gpu = Mgpu::first()?;
    let left = 2048 * KIB;
    let _ballast = ballast(&gpu, left)?;
    let left = gpu.drm.vram_free()?;
    let piece = 64 * KIB;
    let count = left * 5 / 8 / piece;
    let moves = gpu.drm.getparam(uapi::PARAM_MOVES)?;
    let resets = (
        gpu.drm.getparam(PARAM_RESETS)?,
        gpu.drm.getparam(PARAM_COMPUTE_RESETS)?,
    );
    let wanted = match misc::soak() {
        1 => 600,
        times => 10_000 * times,
    };
    let (x, _) = patterns();
    let benches = [Bench::new(&gpu)?, Bench::new(&gpu)?];
    let mut all = Vec::new();
    for (number, bench) in (0..).zip(&benches) {
        for index in 0..count {
            let pattern = x.derive(number * count + index);
            // Every other object is not private.
            let object = match index % 2 {
                0 => bench.vm.create(piece, EITHER)?,
                _ => gpu.drm.create_flags(piece, EITHER)?,
            };
            object.map()?.fill(pattern);
            // At different pages within a huge page.
            let address = HUGE * (1 + index) + (index % 3) * PAGE64;
            bench.vm.bind(&object, address)?;
            all.push((object, pattern, address));
        }
    }
    let mut rounds = 0;
    while gpu.drm.getparam(uapi::PARAM_MOVES)? < moves + wanted {
        check!(rounds < wanted, "{rounds} rounds have not moved enough");
        for (number, bench) in (0..).zip(&benches) {
            let mine = &all[number * count as usize..(number + 1) * count as usize];
            let mut jobs = Vec::new();
            for (job, part) in (0..).zip(mine.chunks(OPS_MAX / 2)) {
                let ops: Vec<_> = (0..)
                    .zip(part)
                    .flat_map(|(index, (_, _, address))| {
                        let result = RESULTS + 8 * (job * OPS_MAX as u64 / 2 + index);
                        [
                            Op::checksum(*address, piece, result),
                            // The last word counts the rounds.
                            Op::add(address + piece - 8, 1),
                        ]
                    })
                    .collect();
                jobs.push(bench.vm.exec(&ops)?);
            }
            for job in &jobs {
                job.finish()?;
                check_eq!(job.status()?, 1, "status of a job in round {rounds}");
            }
            for (index, (_, pattern, _)) in mine.iter().enumerate() {
                let last = piece / 8 - 1;
                let halves = |word: u64| (word & 0xffff_ffff) + (word >> 32);
                let want = sum(*pattern, 0, last) + halves(pattern.word(last).wrapping_add(rounds));
                check_eq!(
                    bench.results.read(index),
                    want,
                    "sum of object {index} of {number} in round {rounds}"
                );
            }
        }
        rounds += 1;
    }
    for (index, (object, pattern, _)) in all.iter().enumerate() {
        let map = object.map()?;
        for word in 0..piece / 8 {
            let added = if word == piece / 8 - 1 { rounds } else { 0 };
            check_eq!(
                map.read(word as usize),
                pattern.word(word).wrapping_add(added),
                "word {word} of object {index}"
            );
        }
    }
    check_eq!(
        (
            gpu.drm.getparam(PARAM_RESETS)?,
            gpu.drm.getparam(PARAM_COMPUTE_RESETS)?
        ),
        resets,
        "resets"
    );
    check_eq!(gpu.drm.getparam(PARAM_LOSSES)?, 0, "objects that are lost");
    drop((all, benches));
    gpu.clean()
}

/// The same by several processes, which do not wait for each other.
fn storm() -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, 1024 * KIB)?;
    let moves = gpu.drm.getparam(uapi::PARAM_MOVES)?;
    let piece = 32 * KIB;
    let count = gpu.drm.vram_free()? * 5 / 8 / piece;
    let rounds = 12 * misc::soak();
    let children: Vec<_> = (0..3)
        .map(|number: u64| {
            Child::spawn(|| {
                let gpu = Mgpu::open(&gpu.pci)?;
                let mut random = Lcg::new(misc::nonce() ^ number);
                let bench = Bench::new(&gpu)?;
                let objects: Vec<_> = (0..count)
                    .map(|index| {
                        let object = bench.vm.create(piece, EITHER)?;
                        bench.vm.bind(&object, HUGE + index * piece)?;
                        Ok::<_, SysError>(object)
                    })
                    .collect::<Result<_, _>>()?;
                for round in 0..rounds {
                    let word = random.word() as u32;
                    bench.vm.done(&[Op::fill(HUGE, count * piece, word)])?;
                    let want = u64::from(word).wrapping_mul(count * piece / 4);
                    check_eq!(
                        bench.sum(HUGE, count * piece)?,
                        want,
                        "sum of process {number} in round {round}"
                    );
                    let object = &objects[random.below(count) as usize];
                    let both = u64::from(word) << 32 | u64::from(word);
                    if let Err(mismatch) = object.map()?.verify_value(both) {
                        fail!("process {number} in round {round}: {mismatch}");
                    }
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    for mut child in children {
        child.join("one of three", LIMIT)?;
    }
    check!(
        gpu.drm.getparam(uapi::PARAM_MOVES)? > moves + 3,
        "nothing moved"
    );
    gpu.clean()
}

/// Checks by which path the device reaches an imported object.
fn reached(object: &Gem<'_>) -> Outcome {
    match object.attachments()?.as_slice() {
        [one] => check!(
            (one.path, one.reason) == (Expect::get()?.path(), uapi::REASON_NONE),
            "path {}, reason {}",
            path_name(one.path),
            reason_name(one.reason)
        ),
        other => fail!("expected one attachment, saw {other:?}"),
    }
    placed(object, uapi::PLACEMENT_VRAM)
}

/// The engine reads and writes VRAM of another device by virtual addresses; the exporter moves it.
fn peers(exporter: &Drm, evict: impl Fn() -> Outcome) -> Outcome {
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let (x, y) = patterns();
    let object = exporter.create_flags(SIZE, EITHER)?;
    let map = object.map()?;
    map.fill(x);
    let import = gpu.drm.import(&object.export()?)?;
    // Two of its pages are mapped a second time.
    bench.vm.bind(&import, 3 * HUGE - PAGE64)?;
    bench.vm.bind_part(&import, PAGE64, HUGE, 2 * PAGE64)?;
    check_eq!(
        bench.sum(3 * HUGE - PAGE64, SIZE)?,
        sum(x, 0, WORDS),
        "sum of what another device has"
    );
    check_eq!(
        bench.sum(HUGE, 2 * PAGE64)?,
        sum(x, 512, 1024),
        "sum of two pages"
    );
    reached(&object)?;
    bench.vm.done(&[Op::fill(HUGE + 8, 16, 0x1111_1111)])?;
    for index in 0..WORDS {
        let want = match index {
            513 | 514 => 0x1111_1111_1111_1111,
            _ => x.word(index),
        };
        check_eq!(
            map.read(index as usize),
            want,
            "word {index} of the exporter"
        );
    }
    reached(&object)?;
    for round in 0..4 {
        let pattern = y.derive(round);
        map.fill(pattern);
        // The job is in the ring while the exporter needs the room.
        gpu.inject_into(COMPUTE, Error::Slow, 20)?;
        let job = bench
            .vm
            .exec(&[Op::checksum(3 * HUGE - PAGE64, SIZE, RESULTS)])?;
        evict()?;
        job.finish()?;
        gpu.inject_into(COMPUTE, Error::Slow, 0)?;
        check_eq!(job.status()?, 1, "status of a job while it moves");
        check_eq!(
            bench.results.read(0),
            sum(pattern, 0, WORDS),
            "sum while it moves, in round {round}"
        );
        check_eq!(
            bench.sum(3 * HUGE - PAGE64, SIZE)?,
            sum(pattern, 0, WORDS),
            "sum after it has moved, in round {round}"
        );
    }
    check!(
        import.import_info()?.invalidations > 0,
        "nothing was invalidated"
    );
    drop(bench);
    gpu.clean()
}

fn import_gpu() -> Outcome {
    let [_, other] = Mgpu::pair()?;
    peers(&other.drm, || {
        take_all(&other)?;
        Ok(())
    })?;
    other.await_no_window()?;
    other.clean()
}

fn import_vvram() -> Outcome {
    let drm = Drm::open()?;
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    peers(&drm, || {
        // As much as there is, so that all other objects are evicted.
        let all = [
            drm.create_flags(size / 2, EITHER)?,
            drm.create_flags(size / 2, EITHER)?,
        ];
        drop(all);
        Ok(())
    })
}

igt_main! {
    "evicted", "an object of two address spaces moves under their jobs", evicted;
    "handed-on", "VRAM that an object has just left", handed_on;
    "turns", "two address spaces with more than half of VRAM each", turns;
    "storm", "by several processes", storm;
    "import-gpu", "VRAM of another modelled GPU", import_gpu;
    "import-vvram", "VRAM of another device", import_vvram;
}

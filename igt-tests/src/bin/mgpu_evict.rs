// SPDX-License-Identifier: GPL-2.0

//! Objects move while jobs of the compute engine of the modelled GPU use them, by virtual
//! addresses.

use std::time::Duration;

use vvram_tests::compute::{ballast, sum, Bench, Op, Vm, HUGE, LEFT, OPS_MAX, RESULTS};
use vvram_tests::debugfs::{Counter, DebugFs};
use vvram_tests::drm::{path_name, reason_name, DmaBuf, Drm, Gem, EITHER};
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::{patterns, placed, Expect};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::mgpu::{holds, take_all, Error, Mgpu, COMPUTE, COPY};
use vvram_tests::misc::{self, meminfo, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::{Child, Steps};
use vvram_tests::queue::copy_after;
use vvram_tests::storm::{Action, Storm};
use vvram_tests::syncfile::SyncFile;
use vvram_tests::uapi::DMA_BUF_SYNC_READ;
use vvram_tests::{check, check_eq, check_ok, fail, igt_main, skip, uapi, Outcome, Stop, SysError};

const KIB: u64 = 1 << 10;
const SIZE: u64 = 16 * PAGE64;
const WORDS: u64 = SIZE / 8;
const LIMIT: Duration = Duration::from_secs(40);

/// An object that is private to one address space and mapped by another one is evicted while both
/// have jobs in the ring.
fn moved_under_jobs(size: u64, left: u64, rounds: u64) -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, left)?;
    let (x, _) = patterns();
    let words = size / 8;
    let (a, b) = (Bench::new(&gpu)?, Bench::new(&gpu)?);
    let moves = gpu.drm.counter(Counter::Moves)?;
    for round in 0..rounds {
        let object = a.vm.create(size, EITHER)?;
        let map = object.map()?;
        a.vm.bind(&object, HUGE)?;
        b.vm.bind(&object, 5 * HUGE + PAGE64)?;
        let x = x.derive(round);
        map.fill(x);
        gpu.inject_into(COMPUTE, Error::Slow, 20)?;
        let jobs = [
            a.vm.exec(&[Op::checksum(HUGE, size, RESULTS), Op::add(HUGE, 1)])?,
            b.vm.exec(&[
                Op::checksum(5 * HUGE + PAGE64, size, RESULTS),
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
        let want = sum(x, 0, words);
        check_eq!(a.results.read(0), want, "the first sum in round {round}");
        // Both jobs are done in the order of the file.
        check_eq!(b.results.read(0), plus_one(x, want), "the second one");
        // The object is back in VRAM now, if there is room.
        let both = plus_one_at(x, 1, plus_one(x, want));
        let (kept, place) = match round % 3 {
            0 => {
                drop(taken);
                (Vec::new(), uapi::PLACEMENT_VRAM)
            }
            1 => (taken, uapi::PLACEMENT_SYSTEM),
            _ => {
                drop(taken);
                gpu.drm.await_vram_free(left)?;
                (pieces_left(&gpu, left)?, uapi::PLACEMENT_VRAM)
            }
        };
        check_eq!(b.sum(5 * HUGE + PAGE64, size)?, both, "after the eviction");
        check_eq!(a.sum(HUGE, size)?, both, "after the eviction");
        placed(&object, place)?;
        drop(kept);
        for index in 0..words {
            let want = x.word(index).wrapping_add(u64::from(index < 2));
            check_eq!(map.read(index as usize), want, "word {index}");
        }
    }
    check!(
        gpu.drm.counter(Counter::Moves)? >= moves + rounds,
        "nothing moved"
    );
    drop((a, b));
    gpu.clean()
}

/// Takes half of the VRAM that is left, so that no two pieces of the other half are adjacent.
fn pieces_left(gpu: &Mgpu, left: u64) -> Result<Vec<Gem<'_>>, Stop> {
    let mut all = (0..left / PIECE)
        .map(|_| gpu.drm.create(PIECE))
        .collect::<Result<Vec<_>, _>>()?;
    let mut index = 0;
    all.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    gpu.drm.await_vram_free(left / 2)?;
    Ok(all)
}

fn evicted() -> Outcome {
    moved_under_jobs(SIZE, LEFT, 9)
}

/// The same with an object that is mapped by leaves of 2 MiB, and by those of pages.
fn evicted_huge() -> Outcome {
    moved_under_jobs(2 * HUGE + SIZE, 16 << 20, 3)
}

/// Returns the sum after 1 was added to a word.
fn plus_one_at(pattern: Pattern, index: u64, sum: u64) -> u64 {
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
        check_ok!(before.map()?.verify(x), "what has left, in round {round}");
        check_eq!(
            bench.sum(HUGE, size)?,
            u64::from(7 + round) * size / 4,
            "sum of what has come"
        );
        bench.vm.unbind(HUGE, size)?;
    }
    gpu.clean()
}

/// A job is queued before the object that it reads is made and mapped. It must not find the memory
/// before it is cleared, and calls for the object do not wait for the job.
fn early_read() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let free = gpu.drm.vram_free()?;
    for has_fence in [false, true] {
        let bench = Bench::new(&gpu)?;
        let ballast = ballast(&gpu, SIZE)?;
        // The content of the last owner.
        let old = gpu.drm.create(SIZE)?;
        old.map()?.fill(x);
        drop(old);
        gpu.drm.await_vram_free(SIZE)?;
        let timeline = Timeline::new()?;
        let fence = timeline.fence(1)?;
        let ins: &[_] = match has_fence {
            true => &[&fence],
            false => &[],
        };
        if has_fence {
            // The object is not cleared before the jobs begin.
            gpu.inject_into(COPY, Error::Slow, 100)?;
        } else {
            gpu.inject_into(COMPUTE, Error::Slow, 200)?;
        }
        bench.results.write(0, u64::MAX);
        let first = bench.vm.exec_after(&[Op::add(RESULTS + 16, 1)], ins)?;
        let early = bench.vm.exec(&[Op::checksum(HUGE, SIZE, RESULTS)])?;
        let object = bench.vm.create(SIZE, uapi::CREATE_VRAM)?;
        bench.vm.bind(&object, HUGE)?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
        let last = bench
            .vm
            .exec(&[Op::checksum(HUGE, SIZE, RESULTS + 8), Op::fill(HUGE, 8, 1)])?;
        if has_fence {
            check!(!first.poll(0)?, "the first job has ended");
        }
        timeline.step()?;
        early.finish()?;
        for ring in [COPY, COMPUTE] {
            gpu.inject_into(ring, Error::Slow, 0)?;
        }
        all_done(&[first, last])?;
        // It has found nothing, or zeroes.
        match early.status()? {
            1 => check_eq!(bench.results.read(0), 0, "the sum of the early job"),
            status => check_eq!(
                (status, bench.results.read(0)),
                (-libc::EIO, u64::MAX),
                "status and result of the early job"
            ),
        }
        check_eq!(bench.results.read(1), 0, "the sum of the next job");
        drop((object, ballast, bench));
        gpu.drm.await_vram_free(free)?;
    }
    gpu.clean()
}

/// A job is queued before the object that it writes to is made, in whose memory is another object
/// that is on its way out: the job must not write to that memory before the copy is done.
fn early_write() -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, 1024 * KIB)?;
    let bench = Bench::new(&gpu)?;
    let (x, _) = patterns();
    let size = gpu.drm.vram_free()? / 4 * 3 / PAGE64 * PAGE64;
    let before = gpu.drm.create_flags(size, EITHER)?;
    before.map()?.fill(x);
    placed(&before, uapi::PLACEMENT_VRAM)?;
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let early = bench.vm.exec_after(&[Op::fill(HUGE, size, 7)], &[&fence])?;
    gpu.inject_into(COPY, Error::Slow, 100)?;
    let after = gpu.drm.create_flags(size, EITHER)?;
    placed(&after, uapi::PLACEMENT_VRAM)?;
    bench.vm.bind(&after, HUGE)?;
    let last = bench.vm.exec(&[Op::checksum(HUGE, size, RESULTS)])?;
    timeline.step()?;
    early.finish()?;
    gpu.inject_into(COPY, Error::Slow, 0)?;
    all_done(&[last])?;
    // The early job has faulted, or was done after the entries were written.
    let want = match early.status()? {
        1 => 7 * size / 4,
        status => {
            check_eq!(status, -libc::EIO, "status of the early job");
            0
        }
    };
    check_eq!(bench.results.read(0), want, "the sum of what has come");
    check_ok!(before.map()?.verify(x), "what has left");
    gpu.clean()
}

/// Two address spaces, each with more than half of the VRAM that there is: objects of one move back
/// for each of its jobs.
struct Turns<'a> {
    benches: [Bench<'a>; 2],
    /// Every other object is not private.
    parts: [Vec<Part<'a>>; 2],
    /// The size of each object.
    piece: u64,
    rounds: u64,
}

/// An object of [`Turns`].
struct Part<'a> {
    object: Gem<'a>,
    content: Content,
    address: u64,
    /// The sum of all words but the last one.
    sum: u64,
}

/// The content of an object: the words of a pattern from word `first` on.
#[derive(Clone, Copy)]
struct Content {
    pattern: Pattern,
    first: u64,
}

impl Content {
    fn word(self, index: u64) -> u64 {
        self.pattern.word(self.first + index)
    }
}

/// The size of an object of [`Turns`] in most tests.
const PIECE: u64 = 64 * KIB;

/// Returns what the engine adds up for a word.
fn halves(word: u64) -> u64 {
    (word & 0xffff_ffff) + (word >> 32)
}

/// Returns the index of the last word of an object.
fn last(size: u64) -> u64 {
    size / 8 - 1
}

impl<'a> Turns<'a> {
    /// Makes two address spaces that map about `each` bytes, in objects of `piece` bytes. `fill`
    /// fills the object with a number, and returns its content, and the sum of all words but the
    /// last one.
    fn new(
        gpu: &'a Mgpu,
        piece: u64,
        each: u64,
        fill: impl Fn(&Gem<'a>, u64) -> Result<(Content, u64), Stop>,
    ) -> Result<Self, Stop> {
        let count = each / piece;
        // Room for an object, at different pages within a huge page.
        let room = (piece + 2 * PAGE64).next_multiple_of(HUGE);
        let mut this = Self {
            benches: [Bench::new(gpu)?, Bench::new(gpu)?],
            parts: [Vec::new(), Vec::new()],
            piece,
            rounds: 0,
        };
        for (number, (bench, parts)) in (0..).zip(this.benches.iter().zip(&mut this.parts)) {
            for index in 0..count {
                let object = match index % 2 {
                    0 => bench.vm.create(piece, EITHER)?,
                    _ => gpu.drm.create_flags(piece, EITHER)?,
                };
                let (content, sum) = fill(&object, number * count + index)?;
                let address = HUGE + index * room + (index % 3) * PAGE64;
                bench.vm.bind(&object, address)?;
                parts.push(Part {
                    object,
                    content,
                    address,
                    sum,
                });
            }
        }
        Ok(this)
    }

    /// The same with small objects, which the CPU fills, and 5 / 8 of the VRAM that is free.
    fn small(gpu: &'a Mgpu) -> Result<Self, Stop> {
        let (x, _) = patterns();
        Self::new(
            gpu,
            PIECE,
            gpu.drm.vram_free()? * 5 / 8,
            |object, number| {
                let pattern = x.derive(number);
                object.map()?.fill(pattern);
                let content = Content { pattern, first: 0 };
                Ok((content, sum(pattern, 0, last(PIECE))))
            },
        )
    }

    /// Returns the objects that are not private, with their content but for the last word.
    fn shared(&self) -> impl Iterator<Item = (&Gem<'a>, Content)> {
        self.parts
            .iter()
            .flat_map(|parts| parts.iter().skip(1).step_by(2))
            .map(|part| (&part.object, part.content))
    }

    /// Does a round, unless there were `most` of them.
    fn round_of(&mut self, most: u64) -> Outcome {
        check!(
            self.rounds < most,
            "{} rounds have not moved enough",
            self.rounds
        );
        self.round()
    }

    /// Jobs of both address spaces take turns: those of one evict the objects that those of the
    /// other one use. The engine adds all bytes up, and those of one page on their own, and counts
    /// the rounds in the last word.
    fn round(&mut self) -> Outcome {
        const OPS: usize = 3;
        let (piece, rounds) = (self.piece, self.rounds);
        // The last word is not in this page.
        let page = rounds % (piece / PAGE64 - 1);
        let most = OPS_MAX / OPS;
        let mut jobs = Vec::new();
        for job in 0..self.parts[0].len().div_ceil(most) {
            for (bench, parts) in self.benches.iter().zip(&self.parts) {
                let ops: Vec<_> = (0..)
                    .zip(parts)
                    .skip(job * most)
                    .take(most)
                    .flat_map(|(index, part)| {
                        let result = RESULTS + 16 * index;
                        [
                            Op::checksum(part.address, piece, result),
                            Op::checksum(part.address + page * PAGE64, PAGE64, result + 8),
                            Op::add(part.address + piece - 8, 1),
                        ]
                    })
                    .collect();
                jobs.push(bench.vm.exec(&ops)?);
            }
        }
        all_done(&jobs)?;
        for (number, (bench, parts)) in (0..).zip(self.benches.iter().zip(&self.parts)) {
            for (index, part) in parts.iter().enumerate() {
                let content = part.content;
                let last = halves(content.word(last(piece)).wrapping_add(rounds));
                let words = PAGE64 / 8;
                check_eq!(
                    [0, 1].map(|result| bench.results.read(2 * index + result)),
                    [
                        part.sum + last,
                        sum(content.pattern, content.first + page * words, words)
                    ],
                    "sums of object {index} of {number}, and of its page {page}, in round {rounds}"
                );
            }
        }
        self.rounds += 1;
        Ok(())
    }

    /// Checks all bytes of all objects by the CPU, which gets a mapping that `map` returns.
    fn verify(&self, map: impl Fn(&Gem<'a>) -> Result<Map, Stop>) -> Outcome {
        for (index, part) in self.parts.iter().flatten().enumerate() {
            holds_counted(&map(&part.object)?, part.content, |count| {
                count == self.rounds
            })
            .map_err(|stop| Stop::fail(format_args!("object {index}: {}", stop.text())))?;
        }
        Ok(())
    }
}

/// Checks an object to whose last word a number was added, which `is` checks.
fn holds_counted(map: &Map, content: Content, is: impl FnOnce(u64) -> bool) -> Outcome {
    let last = last((map.pages() * PAGE) as u64);
    for word in 0..last {
        check_eq!(
            map.read(word as usize),
            content.word(word),
            "word {word} of {last}"
        );
    }
    let added = map.read(last as usize).wrapping_sub(content.word(last));
    check!(is(added), "{added:#x} was added to the last word");
    Ok(())
}

/// Checks that there was no reset and no loss since `before`, see [`losses`].
fn nothing_lost(gpu: &Mgpu, before: [u64; 3]) -> Outcome {
    check_eq!(losses(gpu)?, before, "resets of both rings, and losses");
    Ok(())
}

fn losses(gpu: &Mgpu) -> Result<[u64; 3], SysError> {
    Ok([
        gpu.drm.counter(Counter::CopyResets)?,
        gpu.drm.counter(Counter::ComputeResets)?,
        gpu.drm.counter(Counter::Losses)?,
    ])
}

fn turns() -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, 2048 * KIB)?;
    let (moves, before) = (gpu.drm.counter(Counter::Moves)?, losses(&gpu)?);
    // The mixed load is with more of them.
    let wanted = match misc::soak() {
        1 => 600,
        times => 10_000 * times,
    };
    let mut turns = Turns::small(&gpu)?;
    while gpu.drm.counter(Counter::Moves)? < moves + wanted {
        turns.round_of(wanted)?;
    }
    turns.verify(|object| Ok(object.map()?))?;
    nothing_lost(&gpu, before)?;
    drop(turns);
    gpu.clean()
}

/// The same with large objects, and with all VRAM of the device.
///
/// The processors of an emulated guest are slow, so the engine fills the objects with parts of a
/// long pattern, and in the end copies them to system memory, where the CPU compares each word.
fn turns_all() -> Outcome {
    const LARGE: u64 = 8 << 20;
    /// How many words later in the pattern the next object begins: no two objects have a page in
    /// common, also at different places.
    const STEP: u64 = PAGE64 / 8 + 1;
    let gpu = Mgpu::first()?;
    let all = gpu.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let each = (all * 9 / 16).next_multiple_of(LARGE);
    // What does not fit is in system memory, as are objects on their way out, and on their way
    // back.
    let Some(memory) = meminfo("MemAvailable") else {
        fail!("/proc/meminfo has no MemAvailable");
    };
    if 4 * (2 * each - all) > memory << 10 {
        skip!("{memory} kB of memory are too few for {all} bytes of VRAM");
    }
    let (moves, before) = (gpu.drm.counter(Counter::Moves)?, losses(&gpu)?);
    let wanted = 40 * misc::soak();
    let (x, _) = patterns();
    let words = LARGE / 8 + 2 * (each / LARGE) * STEP;
    let source = gpu.drm.create_flags(8 * words, uapi::CREATE_SYSTEM)?;
    source.map()?.fill(x);
    // The sum of the words before each word.
    let mut sums = vec![0];
    for word in 0..words {
        sums.push(sums[word as usize] + halves(x.word(word)));
    }
    let mut turns = Turns::new(&gpu, LARGE, each, |object, number| {
        let first = number * STEP;
        all_done(&[gpu.drm.copy((&source, 8 * first), (object, 0), LARGE)?])?;
        let sum = sums[(first + last(LARGE)) as usize] - sums[first as usize];
        Ok((Content { pattern: x, first }, sum))
    })?;
    while gpu.drm.counter(Counter::Moves)? < moves + wanted {
        turns.round_of(wanted)?;
        // The last job was one of the second address space.
        let [others, own] = &turns.parts;
        for part in own {
            placed(&part.object, uapi::PLACEMENT_VRAM)?;
        }
        let mut left = 0;
        for part in others {
            left += u64::from(part.object.info()?.placement == uapi::PLACEMENT_SYSTEM);
        }
        check!(
            left * LARGE >= 2 * each - all,
            "{left} objects of the first address space have left VRAM in round {}",
            turns.rounds
        );
    }
    let sink = gpu.drm.create_flags(LARGE, uapi::CREATE_SYSTEM)?;
    turns.verify(|object| {
        all_done(&[gpu.drm.copy((object, 0), (&sink, 0), LARGE)?])?;
        Ok(sink.map()?)
    })?;
    nothing_lost(&gpu, before)?;
    drop(turns);
    gpu.clean()
}

/// The work of two processes of [`mixed`], which repeat it until `stop` is done.
struct Mix<'a> {
    pci: &'a PciDevice,
    /// Is done when the process has done its work often enough.
    ready: &'a Steps,
    stop: &'a Steps,
}

impl Mix<'_> {
    /// How often each process does its work at least.
    const LEAST: u64 = 3;

    fn go_on(&self, mut step: impl FnMut(u64) -> Outcome) -> Outcome {
        let mut count = 0;
        while !self.stop.is_done()? {
            step(count)?;
            count += 1;
            if count == Self::LEAST {
                self.ready.done()?;
            }
        }
        check!(count >= Self::LEAST, "stopped after {count}");
        Ok(())
    }

    /// vvram reads imported objects that move, and reads and writes imported objects that jobs of
    /// the compute engine use.
    fn of_gpu(&self, shared: &[(DmaBuf, Content)]) -> Outcome {
        let (gpu, drm) = (Mgpu::open(self.pci)?, Drm::open()?);
        let bench = Bench::new(&gpu)?;
        let (x, _) = patterns();
        let mut random = Lcg::new(misc::nonce());
        let (source, sink) = (
            drm.create_flags(PIECE, EITHER)?,
            drm.create_flags(PIECE, EITHER)?,
        );
        let (from, to) = (source.map()?, sink.map()?);
        let theirs: Vec<_> = shared
            .iter()
            .map(|(buffer, content)| Ok::<_, SysError>((drm.import(buffer)?, *content)))
            .collect::<Result<_, _>>()?;
        let mut mine = Vec::new();
        for index in 0..4 {
            let object = gpu.drm.create_flags(PIECE, EITHER)?;
            bench.vm.bind(&object, HUGE * (1 + index))?;
            let import = drm.import(&object.export()?)?;
            mine.push((object, import, HUGE * (1 + index)));
        }
        self.go_on(|count| {
            let (import, content) = &theirs[random.below(theirs.len() as u64) as usize];
            to.set(0);
            all_done(&[drm.copy((import, 0), (&sink, 0), PIECE)?])?;
            holds_counted(&to, *content, |added| added < 1 << 32)?;

            // The CPU does not wait between these jobs.
            let (_, import, address) = &mine[random.below(mine.len() as u64) as usize];
            let (x, word) = (x.derive(count), random.word() as u32);
            from.fill(x);
            let written = drm.copy((&source, 0), (import, 0), PIECE)?;
            let ops = [
                Op::checksum(*address, PIECE, RESULTS),
                Op::fill(*address, PIECE, word),
            ];
            let job = bench.vm.exec_after(&ops, &[&written])?;
            let read = copy_after(&drm, (import, &sink), &[&job])?;
            all_done(&[written, job, read])?;
            check_eq!(
                bench.results.read(0),
                sum(x, 0, PIECE / 8),
                "sum of what vvram wrote, in round {count}"
            );
            filled(&to, word)
        })
    }

    /// The engines of the GPU read and write an object of vvram, which moves.
    fn of_vvram(&self) -> Outcome {
        let (gpu, drm) = (Mgpu::open(self.pci)?, Drm::open()?);
        let bench = Bench::new(&gpu)?;
        let (x, _) = patterns();
        let mut random = Lcg::new(misc::nonce());
        let debugfs = DebugFs::open(&PciDevice::vvram()?)?;
        let (source, object, sink) = (
            drm.create_flags(PIECE, EITHER)?,
            drm.create_flags(PIECE, EITHER)?,
            drm.create_flags(PIECE, EITHER)?,
        );
        let (from, to) = (source.map()?, sink.map()?);
        let import = gpu.drm.import(&object.export()?)?;
        let own = gpu.drm.create_flags(PIECE, EITHER)?;
        bench.vm.bind(&import, HUGE)?;
        bench.vm.bind(&own, 2 * HUGE)?;
        self.go_on(|count| {
            let (x, word) = (x.derive(count), random.word() as u32);
            from.fill(x);
            let place = random.pick(&["system", "vram"]);
            debugfs.write("move", &format!("{} {place}", object.info()?.id))?;
            // Copies wait for each other by the objects.
            let written = drm.copy((&source, 0), (&object, 0), PIECE)?;
            let copied = gpu.drm.copy((&import, 0), (&own, 0), PIECE)?;
            let ops = [
                Op::checksum(HUGE, PIECE, RESULTS),
                Op::checksum(2 * HUGE, PIECE, RESULTS + 8),
                Op::fill(2 * HUGE, PIECE, word),
            ];
            let job = bench.vm.exec_after(&ops, &[&copied])?;
            let back = copy_after(&gpu.drm, (&own, &import), &[&job])?;
            let read = drm.copy((&object, 0), (&sink, 0), PIECE)?;
            all_done(&[written, copied, job, back, read])?;
            check_eq!(
                [0, 1].map(|index| bench.results.read(index)),
                [sum(x, 0, PIECE / 8); 2],
                "sums of what vvram has, and of its copy, in round {count}"
            );
            filled(&to, word)
        })
    }
}

/// Waits for jobs, and checks that none has failed.
fn all_done(jobs: &[SyncFile]) -> Outcome {
    for (index, job) in jobs.iter().enumerate() {
        job.finish()?;
        check_eq!(job.status()?, 1, "status of job {index}");
    }
    Ok(())
}

/// Checks that all of a mapping is filled with a word.
fn filled(map: &Map, word: u32) -> Outcome {
    let both = u64::from(word) << 32 | u64::from(word);
    check_ok!(map.verify_value(both), "what was filled");
    Ok(())
}

/// Two address spaces take turns while vvram imports objects of theirs and other ones, and copies
/// from and to them. The GPU does the same with an object of vvram.
fn mixed() -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, 2048 * KIB)?;
    let (moves, before) = (gpu.drm.counter(Counter::Moves)?, losses(&gpu)?);
    // A move of a device behind an IOMMU takes all steps.
    let wanted = match misc::soak() {
        1 if !gpu.pci.translated() => 50,
        times => 1_200 * times,
    };
    let mut turns = Turns::small(&gpu)?;
    let shared: Vec<_> = turns
        .shared()
        .map(|(object, content)| Ok::<_, SysError>((object.export()?, content)))
        .collect::<Result<_, _>>()?;
    let (ready, stop) = ([Steps::new()?, Steps::new()?], Steps::new()?);
    let [one, two] = [0, 1].map(|index| Mix {
        pci: &gpu.pci,
        ready: &ready[index],
        stop: &stop,
    });
    let mut children = [
        Child::spawn(|| one.of_gpu(&shared))?,
        Child::spawn(|| two.of_vvram())?,
    ];
    let mut is_ready = [false; 2];
    while is_ready != [true; 2] || gpu.drm.counter(Counter::Moves)? < moves + wanted {
        turns.round_of(100 * wanted)?;
        for ((is_ready, ready), child) in is_ready.iter_mut().zip(&ready).zip(&mut children) {
            *is_ready |= ready.is_done()?;
            check!(
                child.ended().is_none(),
                "one of both has ended in round {}",
                turns.rounds
            );
        }
    }
    stop.done()?;
    for mut child in children {
        child.join("one of both", LIMIT)?;
    }
    turns.verify(|object| Ok(object.map()?))?;
    nothing_lost(&gpu, before)?;
    drop((turns, shared));
    gpu.clean()
}

/// VRAM changes its owner and back in each round, while jobs of the compute engine use the objects
/// and the CPU does not wait between them: no job reads the content of another object.
fn reuse() -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, 128 * KIB)?;
    let before = losses(&gpu)?;
    let bench = Bench::new(&gpu)?;
    let mut random = Lcg::new(misc::nonce());
    let size = gpu.drm.vram_free()? / 4 * 3 / PAGE64 * PAGE64;
    let rounds = match misc::soak() {
        1 => 100,
        times => 10_000 * times,
    };
    let (new, old) = (HUGE, 2 * HUGE);
    let kept = bench.vm.create(size, EITHER)?;
    bench.vm.bind(&kept, old)?;
    let mut has = 0;
    for round in 0..rounds {
        let object = bench.vm.create(size, EITHER)?;
        bench.vm.bind(&object, new)?;
        let word = random.word() as u32;
        let jobs = [
            bench
                .vm
                .exec(&[Op::checksum(new, size, RESULTS), Op::fill(new, size, word)])?,
            bench.vm.exec(&[
                Op::checksum(old, size, RESULTS + 8),
                Op::fill(old, size, !word),
            ])?,
            bench.vm.exec(&[Op::checksum(new, size, RESULTS + 16)])?,
        ];
        all_done(&jobs)?;
        let all = |word: u32| u64::from(word) * (size / 4);
        check_eq!(
            [0, 1, 2].map(|index| bench.results.read(index)),
            [0, all(has), all(word)],
            "sums of what is new, what came back, and what was new, in round {round}"
        );
        has = !word;
        bench.vm.unbind(new, size)?;
    }
    drop((kept, bench));
    nothing_lost(&gpu, before)?;
    gpu.clean()
}

/// A copy from an object waits for a fence of another driver: the object is not evicted, and no
/// call waits for the fence, as long as there is another victim, or room in system memory.
fn spared() -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, 2 * SIZE)?;
    let (x, y) = patterns();
    let [busy, idle] = [x, y].map(|pattern| -> Result<_, Stop> {
        let object = gpu.drm.create_flags(SIZE, EITHER)?;
        object.map()?.fill(pattern);
        placed(&object, uapi::PLACEMENT_VRAM)?;
        Ok(object)
    });
    let (busy, idle) = (busy?, idle?);
    let to = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let copy = copy_after(&gpu.drm, (&busy, &to), &[&fence])?;
    // The other object is used last, so that an eviction meets the busy one first.
    let other = Mgpu::first()?;
    let import = other.drm.import(&idle.export()?)?;
    let third = other.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    all_done(&[other.drm.copy((&import, 0), (&third, 0), SIZE)?])?;
    // TTM would wait for 15 seconds.
    let mut child = Child::spawn(|| {
        let gpu = Mgpu::first()?;
        let bench = Bench::new(&gpu)?;
        let object = gpu.drm.create_flags(SIZE, uapi::CREATE_VRAM)?;
        bench.vm.bind(&object, HUGE)?;
        let second = bench.vm.create(SIZE, EITHER)?;
        bench.vm.bind(&second, 2 * HUGE)?;
        bench
            .vm
            .done(&[Op::fill(HUGE, SIZE, 1), Op::fill(2 * HUGE, SIZE, 2)])?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
        placed(&second, uapi::PLACEMENT_SYSTEM)?;
        gpu.clean()
    })?;
    child.join("the other client", Duration::from_secs(2))?;
    check!(!copy.poll(0)?, "the copy has ended");
    placed(&busy, uapi::PLACEMENT_VRAM)?;
    placed(&idle, uapi::PLACEMENT_SYSTEM)?;
    timeline.step()?;
    all_done(&[copy])?;
    holds(&to, x, "what was copied")?;
    holds(&idle, y, "what has left")?;
    gpu.clean()
}

/// An object has left VRAM, and a fence of another driver is on it: a job uses it where it is.
/// Neither the job nor the call waits for the fence.
fn stays() -> Outcome {
    let gpu = Mgpu::first()?;
    let bench = Bench::new(&gpu)?;
    let (x, _) = patterns();
    let object = gpu.drm.create_flags(SIZE, EITHER)?;
    object.map()?.fill(x);
    let buffer = object.export()?;
    // This importer is no peer.
    let peer = Peer::open()?;
    peer.attach_and_map(&buffer, Mode::Static)?;
    peer.unmap()?;
    peer.detach()?;
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    let timeline = Timeline::new()?;
    buffer.add_fence(DMA_BUF_SYNC_READ, &timeline.fence(1)?)?;
    bench.vm.bind(&object, HUGE)?;
    // TTM would wait for 15 seconds.
    let mut child = Child::spawn(|| bench.vm.done(&[Op::checksum(HUGE, SIZE, RESULTS)]))?;
    child.join("the job", Duration::from_secs(12))?;
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    check_eq!(bench.results.read(0), sum(x, 0, WORDS), "the sum");
    timeline.step()?;

    // The next mapping brings it back, once nobody uses it.
    bench.vm.bind(&object, 2 * HUGE)?;
    check_eq!(bench.sum(2 * HUGE, SIZE)?, sum(x, 0, WORDS), "the next sum");
    placed(&object, uapi::PLACEMENT_VRAM)?;
    gpu.clean()
}

/// The same by several processes, which do not wait for each other.
fn storm() -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, 1024 * KIB)?;
    let moves = gpu.drm.counter(Counter::Moves)?;
    let piece = 32 * KIB;
    let count = gpu.drm.vram_free()? * 5 / 8 / piece;
    let mut storm = Storm::new(LIMIT, &[Action::new("job", &[], 36)])?;
    for number in 0..3 {
        storm.client(|storm, random| {
            let gpu = Mgpu::open(&gpu.pci)?;
            let bench = Bench::new(&gpu)?;
            let objects: Vec<_> = (0..count)
                .map(|index| {
                    let object = bench.vm.create(piece, EITHER)?;
                    bench.vm.bind(&object, HUGE + index * piece)?;
                    Ok::<_, SysError>(object)
                })
                .collect::<Result<_, _>>()?;
            for round in storm.rounds(12) {
                let word = random.word() as u32;
                bench.vm.done(&[Op::fill(HUGE, count * piece, word)])?;
                storm.done("job", 1);
                let want = u64::from(word).wrapping_mul(count * piece / 4);
                check_eq!(
                    bench.sum(HUGE, count * piece)?,
                    want,
                    "sum of process {number} in round {round}"
                );
                let object = &objects[random.below(count) as usize];
                let both = u64::from(word) << 32 | u64::from(word);
                check_ok!(
                    object.map()?.verify_value(both),
                    "process {number} in round {round}"
                );
            }
            Ok(())
        })?;
    }
    storm.end()?;
    let moves = gpu.drm.counter(Counter::Moves)? - moves;
    check!(moves > 3, "{moves} moves are too few");
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
    let _ballast = ballast(&other, LEFT)?;
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
        // As much as there is, so that all other objects are evicted. Objects that may be in system
        // memory would be put there rather than to wait for the job.
        let all = [
            drm.create_flags(size / 2, uapi::CREATE_VRAM)?,
            drm.create_flags(size / 2, uapi::CREATE_VRAM)?,
        ];
        drop(all);
        Ok(())
    })
}

/// Returns the counters of what imports, and jobs that use them, take from both devices.
fn resources(gpu: &Mgpu, exporter: &Mgpu) -> Result<[u64; 6], SysError> {
    Ok([
        gpu.drm.vram_free()?,
        gpu.drm.counter(Counter::Vms)?,
        gpu.drm.counter(Counter::PageTables)?,
        gpu.drm.counter(Counter::DmaMapped)?,
        exporter.drm.vram_free()?,
        exporter.drm.counter(Counter::ApertureFree)?,
    ])
}

/// An address space, which maps an imported buffer at [`HUGE`], and a page for results.
struct Importing<'a> {
    vm: Vm<'a>,
    _import: Gem<'a>,
    _page: Gem<'a>,
    results: Map,
}

impl<'a> Importing<'a> {
    fn new(gpu: &'a Mgpu, buffer: &DmaBuf) -> Result<Self, Stop> {
        let vm = Vm::new(gpu)?;
        let import = gpu.drm.import(buffer)?;
        let page = vm.create(PAGE64, uapi::CREATE_SYSTEM)?;
        vm.bind(&import, HUGE)?;
        vm.bind(&page, RESULTS)?;
        Ok(Self {
            results: page.map()?,
            vm,
            _import: import,
            _page: page,
        })
    }

    /// Queues jobs that write the sum of the buffer to the first words of the page.
    fn queue(&self, count: u64) -> Result<Vec<SyncFile>, SysError> {
        (0..count)
            .map(|index| {
                let to = RESULTS + 8 * index;
                self.vm.exec(&[Op::checksum(HUGE, SIZE, to)])
            })
            .collect()
    }
}

/// The last reference to an import is that of a job: the address space is destroyed, and the
/// handles are closed, while jobs use the buffer. The job is freed while the exporter holds the
/// lock of the buffer, and waits for jobs of another client of the importer: more of them than the
/// ring has at a time. The exporter evicts the object, or has no handle of it any more, so that the
/// job drops its last reference as well.
fn import_last() -> Outcome {
    const FEW: u64 = 2;
    const MANY: u64 = 12;
    let [gpu, exporter] = Mgpu::pair()?;
    let second = Mgpu::open(&gpu.pci)?;
    let _ballast = ballast(&exporter, LEFT)?;
    let (x, _) = patterns();
    let before = resources(&gpu, &exporter)?;
    for round in 0..3 {
        let (evicts, closes) = (round % 2 == 0, round >= 1);
        let x = x.derive(round);
        let object = exporter.drm.create_flags(SIZE, EITHER)?;
        object.map()?.fill(x);
        let buffer = object.export()?;
        let [one, other] = [&gpu, &second].map(|gpu| Importing::new(gpu, &buffer));
        let (one, other) = (one?, other?);
        // The buffer is mapped for both.
        all_done(&one.queue(1)?)?;
        all_done(&other.queue(1)?)?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
        let entries = object.attachments()?;
        check!(
            entries.len() == 2
                && entries
                    .iter()
                    .all(|entry| Expect::get().is_ok_and(|want| entry.path == want.path())),
            "the importers in round {round}: {entries:?}"
        );
        gpu.inject_into(COMPUTE, Error::Slow, 20)?;
        let jobs = [one.queue(FEW)?, other.queue(MANY)?];
        let results = [one, other].map(|importing| importing.results);
        drop(buffer);
        let object = (!closes).then_some(object);
        if evicts {
            drop(take_all(&exporter)?);
        }
        if let Some(object) = &object {
            placed(object, uapi::PLACEMENT_SYSTEM)?;
        }
        gpu.inject_into(COMPUTE, Error::Slow, 0)?;
        for (jobs, results) in jobs.iter().zip(&results) {
            all_done(jobs)?;
            for index in 0..jobs.len() {
                check_eq!(
                    results.read(index),
                    sum(x, 0, WORDS),
                    "sum {index} in round {round}"
                );
            }
        }
        if let Some(object) = &object {
            check_ok!(object.map()?.verify(x), "what has left in round {round}");
        }
        drop((results, object));
        let freed = misc::poll(LIMIT, || {
            (resources(&gpu, &exporter).ok()? == before).then_some(())
        });
        check!(
            freed.is_some(),
            "counters after round {round}: {:?}, they were {before:?}",
            resources(&gpu, &exporter)?
        );
    }
    exporter.clean()?;
    second.clean()?;
    gpu.clean()
}

igt_main! {
    "evicted", "an object of two address spaces moves under their jobs", evicted;
    "evicted-huge", "an object that large pages map", evicted_huge;
    "handed-on", "VRAM that an object has just left", handed_on;
    "early-read", "a job that is queued before its object is made", early_read;
    "early-write", "the same, with an object that leaves VRAM for it", early_write;
    "reuse", "VRAM that changes its owner again and again", reuse;
    "turns", "two address spaces with more than half of VRAM each", turns;
    "turns-all", "the same with all VRAM, and with large objects", turns_all;
    "mixed", "two address spaces, with another device that imports, and that exports", mixed;
    "spared", "an object with work that depends on another device", spared;
    "stays", "an object in system memory with such work", stays;
    "storm", "by several processes", storm;
    "import-gpu", "VRAM of another modelled GPU", import_gpu;
    "import-vvram", "VRAM of another device", import_vvram;
    "import-last", "VRAM of another modelled GPU, of which a job has the last reference", import_last;
}

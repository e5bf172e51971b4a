// SPDX-License-Identifier: GPL-2.0

//! Objects and memory of processes share VRAM.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::fixture::patterns;
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::misc::{self, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::svm::{check_places, filled, holds, resident};
use vvram_tests::{check, check_eq, check_ok, igt_main, uapi, Outcome, Stop};

/// The number of pages of an object, and of each migration.
const PIECE: usize = 64;
/// How many pieces each side replaces while the other side does the same.
const ROUNDS: u64 = 120;

/// An object that may be evicted, with a pattern in it.
struct Filled<'a> {
    object: Gem<'a>,
    map: Map,
    pattern: Pattern,
}

impl<'a> Filled<'a> {
    fn new(drm: &'a Drm, pages: usize, pattern: Pattern) -> Result<Self, Stop> {
        let object = drm.create_flags(pages as u64 * PAGE64, EITHER)?;
        let map = object.map()?;
        check_ok!(map.verify_value(0), "a new object is not zero");
        map.fill(pattern);
        Ok(Self {
            object,
            map,
            pattern,
        })
    }

    fn verify(&self) -> Outcome {
        holds("an object", &self.map, self.pattern, 0..self.map.pages())
    }

    fn is_in_vram(&self) -> Result<bool, Stop> {
        Ok(self.object.info()?.placement == uapi::PLACEMENT_VRAM)
    }
}

/// As many objects as VRAM has room for.
fn fill(drm: &Drm, seed: Pattern) -> Result<Vec<Filled<'_>>, Stop> {
    let count = drm.vram_free()? / (PIECE as u64 * PAGE64);
    let objects = (0..count).map(|index| Filled::new(drm, PIECE, seed.derive(index)));
    let objects = objects.collect::<Result<Vec<_>, _>>()?;
    for object in &objects {
        check!(object.is_in_vram()?, "an object is not in VRAM at first");
    }
    Ok(objects)
}

/// Memory of a process evicts half of the objects, and no more.
fn objects_give_way() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let all = drm.vram_free()?;
    let pages = all as usize / PAGE;
    let objects = fill(&drm, a)?;
    let map = filled(pages, b)?;
    // The first half fits, and later pieces replace earlier ones. Each piece is one block.
    for first in (0..pages / 2).step_by(PIECE) {
        drm.svm_migrate(&map, first..first + PIECE)?;
    }
    check_places(&map, |page| page < pages / 2)?;
    drm.svm_migrate(&map, pages / 2..pages / 2 + PIECE)?;
    check_eq!(resident(&map)?, pages / 2, "pages in VRAM");
    check_eq!(drm.svm_vram()?, all / 2, "VRAM of processes");
    let mut left = 0;
    for object in &objects {
        left += u64::from(object.is_in_vram()?) * PIECE as u64 * PAGE64;
        object.verify()?;
    }
    check_eq!(left, all / 2, "VRAM of objects");
    holds("the CPU", &map, b, 0..pages)?;
    drop(objects);
    drm.await_vram_free(all)
}

/// Objects evict half of the memory of processes, and no more.
fn processes_give_way() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let all = drm.vram_free()?;
    let pages = all as usize / PAGE;
    let map = filled(pages, b)?;
    for first in (0..pages).step_by(PIECE) {
        drm.svm_migrate(&map, first..first + PIECE)?;
    }
    check_places(&map, |_| true)?;
    let mut objects = Vec::new();
    for index in 0..2 * (pages / PIECE) as u64 {
        objects.push(Filled::new(&drm, PIECE, a.derive(index))?);
    }
    check_eq!(drm.svm_vram()?, all / 2, "VRAM of processes");
    // The oldest pages were evicted.
    check_places(&map, |page| page >= pages / 2)?;
    check_eq!(drm.vram_free()?, 0, "free VRAM");
    for object in &objects {
        object.verify()?;
    }
    holds("the CPU", &map, b, 0..pages)?;
    drop(objects);
    drm.await_vram_free(all)
}

/// If no object can be evicted, a new object that may only be in VRAM evicts memory of processes,
/// and new memory of processes evicts older memory of processes.
fn what_cannot_leave() -> Outcome {
    let drm = Drm::open()?;
    let (_, b) = patterns();
    let all = drm.vram_free()?;
    let pages = all as usize / PAGE;
    let map = filled(pages, b)?;
    drm.svm_migrate(&map, 0..pages)?;
    let first = drm.create(all / 2)?;
    check_eq!(drm.svm_vram()?, all / 2, "VRAM of processes");
    let second = drm.create(all / 4)?;
    check_eq!(drm.svm_vram()?, all / 4, "VRAM of processes");
    for object in [&first, &second] {
        check_ok!(object.map()?.verify_value(0), "a new object is not zero");
    }
    let more = filled(PIECE, b)?;
    drm.svm_migrate(&more, 0..PIECE)?;
    check_places(&more, |_| true)?;
    check!(drm.svm_vram()? <= all / 4, "VRAM of processes grows");
    holds("the CPU", &map, b, 0..pages)?;
    holds("the CPU", &more, b, 0..PIECE)?;
    drop((first, second));
    drm.await_vram_free(all)
}

/// The state that both sides share.
struct Race {
    /// The number of rounds that each side does at least.
    rounds: u64,
    /// How many rounds were done by objects, and by memory of processes.
    done: [AtomicU64; 2],
    stop: AtomicBool,
}

impl Race {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Counts a round of a side.
    fn count(&self, side: usize) {
        self.done[side].fetch_add(1, Ordering::Relaxed);
    }

    fn rounds_of(&self, side: usize) -> u64 {
        self.done[side].load(Ordering::Relaxed)
    }
}

/// Replaces objects, as many as VRAM has room for.
fn replace_objects(drm: &Drm, race: &Race, count: u64, seed: u64) -> Outcome {
    let mut random = Lcg::new(seed);
    let mut objects = Vec::new();
    while race.goes_on() {
        let next = Filled::new(drm, PIECE, Pattern::new(random.word()))?;
        if (objects.len() as u64) < count {
            objects.push(next);
        } else {
            let index = random.below(count) as usize;
            objects[index].verify()?;
            objects[index] = next;
        }
        race.count(0);
    }
    objects.iter().try_for_each(Filled::verify)
}

/// Migrates memory, as much as VRAM has room for, in random order.
fn move_memory(drm: &Drm, race: &Race, pieces: usize, seed: u64) -> Outcome {
    let mut random = Lcg::new(seed);
    let map = filled(pieces * PIECE, Pattern::new(seed))?;
    while race.goes_on() {
        let first = random.below(pieces as u64) as usize * PIECE;
        let part = first..first + PIECE;
        if random.below(4) == 0 {
            holds("a piece", &map, Pattern::new(seed), part.clone())?;
        }
        match drm.svm_migrate(&map, part) {
            // The memory is being evicted.
            Err(error) if error.errno == libc::EBUSY => continue,
            result => result?,
        }
        race.count(1);
    }
    holds("all pieces", &map, Pattern::new(seed), 0..pieces * PIECE)
}

/// Both sides need all of VRAM, and one of them has it at first. Once a side has had a quarter of
/// it, it never has less, except for pieces that are on the way.
fn fair(objects_first: bool) -> Outcome {
    let drm = Drm::open()?;
    let all = drm.vram_free()?;
    let pieces = all as usize / PAGE / PIECE;
    let (seed, start) = (misc::nonce(), Instant::now());
    println!("seed of the race {seed:#x}");
    let race = Race {
        rounds: ROUNDS * misc::soak(),
        done: [AtomicU64::new(0), AtomicU64::new(0)],
        stop: AtomicBool::new(false),
    };
    let first = usize::from(!objects_first);
    let outcome = std::thread::scope(|scope| {
        let (drm, race) = (&drm, &race);
        let objects = || scope.spawn(move || replace_objects(drm, race, pieces as u64, seed));
        let memory = || scope.spawn(move || move_memory(drm, race, pieces, seed ^ 1));
        let mut workers = vec![if objects_first { objects() } else { memory() }];
        let waited = misc::poll(Duration::from_secs(60), || {
            (race.rounds_of(first) > 2 * pieces as u64 || workers[0].is_finished()).then_some(())
        });
        workers.push(if objects_first { memory() } else { objects() });
        let outcome = match waited {
            Some(()) => watch(drm, race, all, || workers.iter().any(|w| w.is_finished())),
            None => Err(Stop::fail("the first side does not get on")),
        };
        race.stop.store(true, Ordering::Relaxed);
        // The scope waits for the other threads.
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(Stop::fail("panic"))))
            .and(outcome)
    });
    println!("{} ms", start.elapsed().as_millis());
    outcome?;
    drm.await_vram_free(all)
}

/// Checks the shares of both sides, until both have done their rounds.
fn watch(drm: &Drm, race: &Race, all: u64, has_ended: impl Fn() -> bool) -> Outcome {
    // Each side may be losing the piece with which it had more than its share, and be replacing
    // another one.
    let share = all / 4 - 2 * (PIECE * PAGE) as u64;
    let (mut least, mut had_enough) = ([u64::MAX; 2], [false; 2]);
    let begin = [race.rounds_of(0), race.rounds_of(1)];
    let both = misc::poll(Duration::from_secs(120), || {
        let (Ok(memory), Ok(free)) = (drm.svm_vram(), drm.vram_free()) else {
            return Some(());
        };
        let objects = all.saturating_sub(memory + free);
        for (side, has) in [objects, memory].into_iter().enumerate() {
            had_enough[side] |= has >= all / 4;
            if had_enough[side] {
                // Free VRAM was just freed, for the other side or for this one.
                least[side] = least[side].min(has + free);
            }
        }
        let done = (0..2).all(|side| race.rounds_of(side) - begin[side] >= race.rounds);
        (done || has_ended()).then_some(())
    });
    println!(
        "rounds {} and {}, at least {least:?} of {all:#x} bytes for objects and memory",
        race.rounds_of(0),
        race.rounds_of(1)
    );
    check!(both.is_some(), "the rounds take too long");
    for (side, name) in ["objects", "memory of processes"].into_iter().enumerate() {
        check!(had_enough[side], "{name} never had a quarter of VRAM");
        check!(
            least[side] >= share,
            "{name} had {:#x} of {all:#x} bytes of VRAM",
            least[side]
        );
    }
    Ok(())
}

igt_main! {
    "objects-give-way", "memory of a process takes half of what objects have", objects_give_way;
    "processes-give-way", "objects take half of what processes have", processes_give_way;
    "what-cannot-leave", "what cannot leave VRAM is passed over", what_cannot_leave;
    "fair-to-memory", "both want all, and objects had it first", || fair(true);
    "fair-to-objects", "both want all, and a process had it first", || fair(false);
}

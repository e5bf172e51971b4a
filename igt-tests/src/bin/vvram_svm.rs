// SPDX-License-Identifier: GPL-2.0

//! Memory of this process migrates to VRAM and back, while the process changes its address space.
//!
//! The location of each page and the number of pages that have moved back are checked along with
//! the bytes.

use std::time::Duration;

use vvram_tests::debugfs::Counter;
use vvram_tests::drm::Drm;
use vvram_tests::fixture::patterns;
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::misc::{self, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::proc::{Child, Steps};
use vvram_tests::storm::{Action, Storm};
use vvram_tests::svm::{check_places, filled, holds, places, resident, Place, HUGE};
use vvram_tests::{check, check_eq, check_ok, expect_errno, fail, igt_main, Outcome, SysError};

const LIMIT: Duration = Duration::from_secs(20);

/// All pages migrate to VRAM and back, and the size of free VRAM agrees.
fn there_and_back() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let free = drm.vram_free()?;
    check_eq!(drm.svm_vram()?, 0, "VRAM of processes at first");
    let map = filled(24, a)?;
    let before = drm.svm_moved_back()?;
    drm.svm_migrate(&map, 0..24)?;
    check_places(&map, |_| true)?;
    check_eq!(drm.svm_vram()?, 24 * PAGE64, "VRAM of processes");
    check_eq!(drm.vram_free()?, free - 24 * PAGE64, "free VRAM");
    check_eq!(drm.svm_moved_back()?, before, "pages that came back");
    // A range that is in VRAM already may be migrated again.
    drm.svm_migrate(&map, 0..24)?;
    check_eq!(drm.svm_moved_back()?, before, "pages that came back");
    drm.await_vram_free(free - 24 * PAGE64)?;
    drm.svm_evict(&map, 0..24)?;
    check_places(&map, |_| false)?;
    check_eq!(drm.svm_moved_back()?, before + 24, "pages that came back");
    holds("the CPU", &map, a, 0..24)?;
    drm.await_vram_free(free)?;
    map.fill(b);
    drm.svm_migrate(&map, 0..24)?;
    holds("the CPU", &map, b, 0..24)?;
    drm.await_vram_free(free)
}

/// A range of any alignment migrates, and the pages around it stay.
fn ranges() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let free = drm.vram_free()?;
    let pages = 2 * HUGE + 40;
    let map = filled(pages, a)?;
    let mut random = Lcg::new(misc::nonce());
    let mut parts = vec![
        (0, 1),
        (1, 2),
        (3, 5),
        (7, 64),
        (0, HUGE),
        (1, HUGE),
        (HUGE - 1, HUGE + 2),
        (0, pages),
        (pages - 1, 1),
    ];
    for _ in 0..6 {
        let first = random.below(pages as u64) as usize;
        let count = 1 + random.below((pages - first) as u64) as usize;
        parts.push((first, count));
    }
    for (first, count) in parts {
        let part = first..first + count;
        let before = drm.svm_moved_back()?;
        drm.svm_migrate(&map, part.clone())?;
        check_places(&map, |page| part.contains(&page))?;
        check_eq!(
            drm.vram_free()?,
            free - count as u64 * PAGE64,
            "free VRAM with {part:?} there"
        );
        holds("before the range", &map, a, 0..part.start)?;
        holds("behind the range", &map, a, part.end..pages)?;
        check_eq!(drm.svm_moved_back()?, before, "pages that came back");
        holds("the range", &map, a, part)?;
        check_places(&map, |_| false)?;
        check_eq!(
            drm.svm_moved_back()?,
            before + count as u64,
            "pages that came back"
        );
        drm.await_vram_free(free)?;
    }
    Ok(())
}

/// An access by the CPU moves its block back, and the rest stays.
fn chunks() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let map = filled(2 * HUGE, a)?;
    for order in [0, 1, 4, 8, 9] {
        let len = 1usize << order;
        // A block that is aligned to its size, with other blocks around it.
        let (first, all) = if len < HUGE {
            (len, 0..3 * len)
        } else {
            (0, 0..2 * HUGE)
        };
        // It is migrated alone, so that it is one block.
        drm.svm_migrate(&map, first..first + len)?;
        drm.svm_migrate(&map, all.clone())?;
        check_places(&map, |page| all.contains(&page))?;
        let before = drm.svm_moved_back()?;
        let page = first + len / 2;
        check_eq!(
            map.read(page * PAGE / 8),
            a.word((page * PAGE / 8) as u64),
            "a word of page {page}"
        );
        let chunk = first..first + len;
        check_places(&map, |page| all.contains(&page) && !chunk.contains(&page))?;
        check_eq!(
            drm.svm_moved_back()?,
            before + len as u64,
            "pages that came back"
        );
        drm.svm_evict(&map, all)?;
        holds("the CPU", &map, a, 0..2 * HUGE)?;
    }
    Ok(())
}

/// Huge pages migrate, as a whole and in parts.
fn huge() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let free = drm.vram_free()?;
    for part in [0..2 * HUGE, 0..HUGE, 3..HUGE, 100..HUGE + 100] {
        let map = Map::private_aligned(2 * HUGE * PAGE, HUGE * PAGE)?;
        map.advise(0..2 * HUGE, libc::MADV_HUGEPAGE)?;
        map.fill(a);
        let before = drm.svm_moved_back()?;
        drm.svm_migrate(&map, part.clone())?;
        check_places(&map, |page| part.contains(&page))?;
        check_eq!(drm.svm_vram()?, part.len() as u64 * PAGE64, "VRAM");
        check_eq!(drm.svm_moved_back()?, before, "pages that came back");
        // The process frees a part of the block, and the CPU accesses one page.
        map.advise(4..6, libc::MADV_DONTNEED)?;
        map.write(5 * PAGE / 8, 7);
        check_eq!(map.read(5 * PAGE / 8), 7, "what was just written");
        check_eq!(map.read(4 * PAGE / 8), 0, "what was given up");
        holds("the first pages", &map, a, 0..4)?;
        holds("the rest", &map, a, 6..2 * HUGE)?;
        check_places(&map, |_| false)?;
        map.fill(b);
        holds("the CPU", &map, b, 0..2 * HUGE)?;
        drm.await_vram_free(free)?;
    }
    Ok(())
}

/// Memory that was never touched reads as zeroes, whatever VRAM had before, and so do objects.
fn zero() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let all = drm.vram_free()?;
    let pages = (all / PAGE64) as usize;
    {
        let object = drm.create(all)?;
        object.map()?.fill(a);
    }
    drm.await_vram_free(all)?;
    let count = pages.min(4 * HUGE);
    for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_HUGEPAGE] {
        let map = Map::private_aligned(count * PAGE, HUGE * PAGE)?;
        map.advise(0..count, advice)?;
        drm.svm_migrate(&map, 0..count)?;
        check_places(&map, |_| true)?;
        check_ok!(map.verify_value(0), "memory that was never touched");
        check_places(&map, |_| false)?;
        map.fill(a);
        drm.svm_migrate(&map, 0..count)?;
        check_places(&map, |_| true)?;
        drop(map);
        drm.await_vram_free(all)?;
        let object = drm.create(all)?;
        check_ok!(
            object.map()?.verify_value(0),
            "an object in VRAM that a process had"
        );
        object.map()?.fill(a);
        drop(object);
        drm.await_vram_free(all)?;
    }
    Ok(())
}

/// After fork() a child has the same pages, with the content at the time of the fork.
fn fork() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let free = drm.vram_free()?;
    for child_first in [false, true] {
        let map = filled(32, a)?;
        drm.svm_migrate(&map, 0..32)?;
        let (go, read) = (Steps::new()?, Steps::new()?);
        let mut child = Child::spawn(|| {
            check_places(&map, |_| true)?;
            read.done()?;
            go.wait("the parent", LIMIT)?;
            holds("the child", &map, a, 0..32)?;
            read.done()?;
            go.wait("the parent", LIMIT)?;
            map.fill(b.derive(1));
            holds("the child", &map, b.derive(1), 0..32)
        })?;
        // The parent writes only after the child has read.
        read.wait("the child", LIMIT)?;
        check_places(&map, |_| true)?;
        if child_first {
            go.done()?;
            read.wait("the child", LIMIT)?;
        }
        map.fill(b);
        holds("the parent", &map, b, 0..32)?;
        if !child_first {
            go.done()?;
            read.wait("the child", LIMIT)?;
        }
        drm.svm_migrate(&map, 0..32)?;
        check_places(&map, |_| true)?;
        go.done()?;
        child.join("the child", LIMIT)?;
        check_places(&map, |_| true)?;
        holds("the parent", &map, b, 0..32)?;
        drm.await_vram_free(free)?;
    }
    Ok(())
}

/// A child outlives the process that has moved its memory to VRAM.
fn parent_exits() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let free = drm.vram_free()?;
    let (ready, go, done) = (Steps::new()?, Steps::new()?, Steps::new()?);
    let mut parent = Child::spawn(|| {
        let map = filled(32, a)?;
        Drm::open()?.svm_migrate(&map, 0..32)?;
        let child = Child::spawn(|| {
            // This process must not end with its parent.
            // SAFETY: a plain system call.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
            ready.done()?;
            go.wait("the parent to be gone", LIMIT)?;
            check_places(&map, |_| true)?;
            holds("the child", &map, a, 0..32)?;
            done.done().map_err(Into::into)
        })?;
        std::mem::forget(child);
        ready.wait("the child", LIMIT)?;
        Ok(())
    })?;
    parent.join("the parent", LIMIT)?;
    check_eq!(drm.svm_vram()?, 32 * PAGE64, "VRAM of the child");
    go.done()?;
    done.wait("the child", LIMIT)?;
    drm.await_vram_free(free)
}

/// The process moves its memory to other addresses, changes its protection and frees it.
fn changed() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let free = drm.vram_free()?;
    let before = drm.svm_moved_back()?;
    let map = filled(HUGE + 32, a)?;
    drm.svm_migrate(&map, 0..HUGE + 32)?;
    // The CPU accesses one block, and then the rest.
    let mut map = map.moved()?;
    check_places(&map, |_| true)?;
    map.protect(0..32, libc::PROT_NONE)?;
    map.protect(32..64, libc::PROT_READ)?;
    check_places(&map, |_| true)?;
    expect_errno(
        "SVM_EVICT of what cannot be read",
        drm.svm_evict(&map, 0..32),
        libc::EFAULT,
    )?;
    map.protect(0..32, libc::PROT_READ | libc::PROT_WRITE)?;
    check_eq!(drm.svm_moved_back()?, before, "pages that came back");
    map.truncate(HUGE)?;
    drm.await_vram_free(free - (HUGE * PAGE) as u64)?;
    holds("what may be read", &map, a, 32..64)?;
    holds("the CPU", &map, a, 0..HUGE)?;
    check_places(&map, |_| false)?;
    drm.await_vram_free(free)?;
    // Read-only memory migrates, too.
    drm.svm_migrate(&map, 0..HUGE)?;
    check_places(&map, |_| true)?;
    holds("what may be read", &map, a, 32..64)?;
    map.protect(32..64, libc::PROT_READ | libc::PROT_WRITE)?;
    map.fill(b);
    drm.svm_migrate(&map, 0..HUGE)?;
    map.advise(0..HUGE, libc::MADV_DONTNEED)?;
    drm.await_vram_free(free)?;
    check_ok!(map.verify_value(0), "what was given up");
    Ok(())
}

/// The process evicts a part, and the rest stays.
fn evict_part() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let map = filled(64, a)?;
    for page in (0..64).step_by(8) {
        drm.svm_migrate(&map, page..page + 8)?;
    }
    check_places(&map, |_| true)?;
    let before = drm.svm_moved_back()?;
    drm.svm_evict(&map, 20..33)?;
    check_places(&map, |page| !(16..40).contains(&page))?;
    check_eq!(drm.svm_moved_back()?, before + 24, "pages that came back");
    // If no page is in VRAM, the call only populates untouched memory.
    drm.svm_evict(&map, 16..40)?;
    let fresh = Map::private(4 * PAGE)?;
    drm.svm_evict(&fresh, 0..4)?;
    check_eq!(drm.svm_moved_back()?, before + 24, "pages that came back");
    holds("the CPU", &map, a, 0..64)
}

/// For memory that cannot migrate the call fails, and all other pages of the range have migrated.
fn refused() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let map = filled(8, a)?;
    let start = map.page_address(0);
    for (what, addr, size) in [
        ("the end of the address space", !(PAGE64 - 1), PAGE64),
        ("more than there is", start, !(PAGE64 - 1)),
    ] {
        expect_errno(what, drm.svm_migrate_at(addr, size), libc::EINVAL)?;
        expect_errno(what, drm.svm_evict_at(addr, size), libc::EINVAL)?;
    }
    for addr in [0, 1 << 55] {
        expect_errno("nothing", drm.svm_migrate_at(addr, PAGE64), libc::EFAULT)?;
        expect_errno("nothing", drm.svm_evict_at(addr, PAGE64), libc::EFAULT)?;
    }
    let shared = Map::anonymous(2 * PAGE)?;
    shared.fill(a);
    let object = drm.create(2 * PAGE64)?;
    let of_object = object.map()?;
    for (what, other) in [("shared memory", &shared), ("an object", &of_object)] {
        expect_errno(what, drm.svm_migrate(other, 0..2), libc::EBUSY)?;
    }
    check_places(&map, |_| false)?;
    check_eq!(drm.svm_vram()?, 0, "VRAM of processes");

    // A page of shared memory, and a hole, in the middle.
    map.with_pages("mmap()", 3..4, |address, len| {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the page is of the mapping, which is accessed with volatile accesses only.
        let page = unsafe { libc::mmap(address, len, prot, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            -1
        } else {
            0
        }
    })?;
    expect_errno("a shared page", drm.svm_migrate(&map, 0..8), libc::EBUSY)?;
    check_places(&map, |page| page != 3)?;
    holds("before it", &map, a, 0..3)?;
    holds("behind it", &map, a, 4..8)?;
    map.with_pages("munmap()", 3..4, |address, len| {
        // SAFETY: the page is not accessed any more.
        unsafe { libc::munmap(address, len) }
    })?;
    expect_errno("a hole", drm.svm_migrate(&map, 0..8), libc::EFAULT)?;
    check_places(&map, |page| page < 3)?;
    holds("before it", &map, a, 0..3)?;
    holds("behind it", &map, a, 4..8)
}

/// A process that is killed frees its VRAM, and another one keeps its own.
fn processes() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let free = drm.vram_free()?;
    let map = filled(64, a)?;
    drm.svm_migrate(&map, 0..64)?;
    let there = Steps::new()?;
    let mut child = Child::spawn(|| {
        let own = filled(2 * HUGE, b)?;
        Drm::open()?.svm_migrate(&own, 0..2 * HUGE)?;
        check_places(&own, |_| true)?;
        there.done()?;
        vvram_tests::proc::sleep_forever()
    })?;
    there.wait("the child", LIMIT)?;
    // Memory that it shares with this process counts once.
    let both = (64 + 2 * HUGE) as u64 * PAGE64;
    check_eq!(drm.svm_vram()?, both, "VRAM of both");
    check_eq!(drm.vram_free()?, free - both, "free VRAM");
    child.kill()?;
    drm.await_vram_free(free - 64 * PAGE64)?;
    check_places(&map, |_| true)?;
    holds("the CPU", &map, a, 0..64)
}

/// How long each round of the storm is, in operations of each thread.
const OPERATIONS: u64 = 60;

/// Threads of one process migrate, write, read, evict, and free pages of one mapping. Each thread
/// has its own pages, which lie between those of the others.
fn storm() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let threads = 4;
    let pages = HUGE + 128;
    let map = filled(pages, Pattern::new(0))?;
    let moved = drm.svm_moved_back()?;
    // A migration fails while another thread is migrating the same block.
    let migrate = Action::new("SVM_MIGRATE", &[libc::EBUSY], OPERATIONS / 4);
    let evict = Action::new("SVM_EVICT", &[], OPERATIONS / 8);
    let storm = Storm::new(LIMIT, &[migrate, evict])?;
    let seed = storm.seed();
    let failed = std::thread::scope(|scope| {
        let (drm, map, storm) = (&drm, &map, &storm);
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(drm, map, storm, thread, threads, seed)))
            .collect();
        workers
            .into_iter()
            .filter_map(|worker| worker.join().unwrap_or_else(|_| Err("panic".into())).err())
            .next()
    });
    if let Some(text) = failed {
        fail!("{text}");
    }
    let moved = drm.svm_moved_back()? - moved;
    println!("{moved} pages came back");
    check!(
        moved > OPERATIONS * misc::soak(),
        "{moved} pages are too few"
    );
    storm.end()?;
    drop(map);
    drm.await_vram_free(free)
}

/// The work of one thread. Its own pages are those whose number modulo the number of threads is
/// `thread`.
fn work(
    drm: &Drm,
    map: &Map,
    storm: &Storm,
    thread: usize,
    threads: usize,
    seed: u64,
) -> Result<(), String> {
    let mut random = Lcg::new(seed ^ ((thread as u64) << 32));
    let own = map.pages() / threads;
    let mut patterns: Vec<Option<Pattern>> = vec![Some(Pattern::new(0)); own];
    let text = |error: SysError| error.to_string();
    for round in storm.rounds(OPERATIONS) {
        let index = random.below(own as u64) as usize;
        let page = index * threads + thread;
        let first = random.below(map.pages() as u64) as usize;
        let count = 1 + random.below((map.pages() - first).min(64) as u64) as usize;
        match random.below(8) {
            0..=2 => {
                let result = drm.svm_migrate(map, first..first + count);
                storm.tried("SVM_MIGRATE", result).map_err(text)?;
            }
            3 => {
                let result = drm.svm_evict(map, first..first + count);
                storm.tried("SVM_EVICT", result).map_err(text)?;
            }
            4 | 5 => {
                let pattern = Pattern::new(seed ^ (round << 8) ^ thread as u64);
                map.fill_pages(pattern, page, 1);
                patterns[index] = Some(pattern);
            }
            6 => {
                map.discard(page).map_err(text)?;
                patterns[index] = None;
            }
            _ => verify(map, page, patterns[index])?,
        }
    }
    for (index, pattern) in patterns.iter().enumerate() {
        verify(map, index * threads + thread, *pattern)?;
    }
    Ok(())
}

fn verify(map: &Map, page: usize, pattern: Option<Pattern>) -> Result<(), String> {
    match pattern {
        Some(pattern) => map
            .verify_pages(pattern, page, 1)
            .map_err(|mismatch| format!("page {page}: {mismatch}")),
        None => match (0..PAGE / 8).find(|word| map.read(page * PAGE / 8 + word) != 0) {
            Some(word) => Err(format!("word {word} of page {page} is not zero")),
            None => Ok(()),
        },
    }
}

/// The excess over the size of VRAM stays in system memory, and the call fails with ENOSPC.
fn too_much() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let free = drm.vram_free()?;
    let keep = 16 * PAGE64;
    let object = drm.create(free - keep)?;
    let map = filled(20, a)?;
    expect_errno(
        "more than there is",
        drm.svm_migrate(&map, 0..20),
        libc::ENOSPC,
    )?;
    check_eq!(resident(&map)?, 16, "pages that were moved");
    check_eq!(drm.vram_free()?, 0, "free VRAM");
    check_eq!(
        places(&map)?
            .iter()
            .filter(|place| **place == Place::Ram)
            .count(),
        4,
        "pages in system memory"
    );
    holds("the CPU", &map, a, 0..20)?;
    // Memory that an earlier call has migrated is older, and is evicted.
    drm.svm_migrate(&map, 0..16)?;
    let more = filled(16, a)?;
    drm.svm_migrate(&more, 0..16)?;
    check_places(&more, |_| true)?;
    check_places(&map, |_| false)?;
    holds("what went", &map, a, 0..20)?;
    drop(object);
    holds("what came", &more, a, 0..16)?;
    drm.await_vram_free(free)?;
    check_eq!(drm.counter(Counter::SvmVram)?, 0, "VRAM of processes");
    Ok(())
}

igt_main! {
    "there-and-back", "memory moves to VRAM and back, as the numbers say", there_and_back;
    "ranges", "any range moves, and what is around it stays", ranges;
    "chunks", "an access brings back its chunk, of any size, and the rest stays", chunks;
    "huge", "huge pages move, whole and in parts", huge;
    "zero", "new VRAM does not have the bytes of other objects", zero;
    "fork", "parent and child see their own bytes", fork;
    "parent-exits", "a child outlives the process that has moved its memory", parent_exits;
    "changed", "memory in VRAM is remapped, protected and unmapped", changed;
    "evict-part", "the process takes back a part", evict_part;
    "refused", "what does not move is refused, and the rest has moved", refused;
    "processes", "a process that is killed frees its VRAM", processes;
    "too-much", "more than there is stays, and newer memory takes the place of older", too_much;
    "storm", "threads that move, access, take back and give up pages of each other", storm;
}

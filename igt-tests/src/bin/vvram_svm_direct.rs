// SPDX-License-Identifier: GPL-2.0

//! Processes that have memory in VRAM, and objects that are mapped for direct I/O.
//!
//! Both use struct pages of the BAR: the pages of an object get references, and pages that stand
//! for memory of processes must never get one.

use std::time::Duration;

use vvram_tests::debugfs::{Counter, DebugFs};
use vvram_tests::drm::{Drm, Gem};
use vvram_tests::fixture::{patterns, placed};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::misc::{self, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::proc::{Child, Steps};
use vvram_tests::storm::{Action, Storm};
use vvram_tests::svm::{check_places, filled, holds, resident};
use vvram_tests::uapi::{self, CREATE_DIRECT_IO, CREATE_VRAM};
use vvram_tests::{check, check_eq, expect_errno, igt_main, Outcome, SysError};

const PAGES: usize = 64;
const LIMIT: Duration = Duration::from_secs(60);

fn create(drm: &Drm, pages: usize) -> Result<Gem<'_>, SysError> {
    drm.create_flags((pages * PAGE) as u64, CREATE_VRAM | CREATE_DIRECT_IO)
}

/// Checks that nothing is left of processes that have ended.
fn nothing_left(drm: &Drm, free: u64) -> Outcome {
    let left = || -> Result<u64, SysError> {
        Ok(drm.counter(Counter::DirectIoBusy)?
            + drm.counter(Counter::VramPinned)?
            + drm.svm_vram()?)
    };
    let none = misc::poll(LIMIT, || (left().ok()? == 0).then_some(()));
    check!(none.is_some(), "{} bytes are in use", left()?);
    drm.await_vram_free(free)
}

/// Objects that are mapped for direct I/O evict memory of processes, and are not moved for it.
fn objects_stay() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let (free, limit) = (drm.vram_free()?, drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?);
    let pages = free as usize / PAGE;
    let memory = filled(pages, a)?;
    for first in (0..pages).step_by(PAGES) {
        drm.svm_migrate(&memory, first..first + PAGES)?;
    }
    check_places(&memory, |_| true)?;
    let mut objects = Vec::new();
    for index in 0..limit as usize / (PAGES * PAGE) {
        let object = create(&drm, PAGES)?;
        let map = object.map()?;
        map.fill(b.derive(index as u64));
        objects.push((object, map));
    }
    let more = create(&drm, PAGES)?;
    expect_errno("more than may be pinned", more.map(), libc::EDQUOT)?;
    drop(more);
    // More memory of processes does not evict these objects.
    for first in (0..pages).step_by(PAGES) {
        drm.svm_migrate(&memory, first..first + PAGES)?;
    }
    check!(resident(&memory)? > 0, "no memory is in VRAM");
    for (index, (object, map)) in objects.iter().enumerate() {
        placed(object, uapi::PLACEMENT_VRAM)?;
        holds("an object", map, b.derive(index as u64), 0..PAGES)?;
    }
    holds("the memory", &memory, a, 0..pages)?;
    drop(objects);
    drop(memory);
    nothing_left(&drm, free)
}

/// A process forks, and parent and child unmap both kinds of memory at the same time.
fn fork() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let free = drm.vram_free()?;
    for round in 0..10 {
        let (a, b) = (a.derive(round), b.derive(round));
        let memory = filled(PAGES, a)?;
        let object = create(&drm, PAGES)?;
        let map = object.map()?;
        map.fill(b);
        drm.svm_migrate(&memory, 0..PAGES)?;
        let there = Steps::new()?;
        let mut children = Vec::new();
        for index in 0..3 {
            let (there, map, memory) = (&there, &map, &memory);
            children.push(Child::spawn(move || {
                there.done()?;
                holds("the object", map, b, 0..PAGES)?;
                if index > 0 {
                    holds("the memory", memory, a, 0..PAGES)?;
                }
                // The end of the process unmaps both kinds.
                Ok(())
            })?);
        }
        for _ in 0..3 {
            there.wait("a child", LIMIT)?;
        }
        placed(&object, uapi::PLACEMENT_VRAM)?;
        drop((map, memory));
        for child in &mut children {
            child.join("a child", LIMIT)?;
        }
    }
    nothing_left(&drm, free)
}

/// What the processes of [`storm`] do: the memory is being evicted, and other processes use up VRAM.
const ACTIONS: [Action; 3] = [
    Action::new("SVM_MIGRATE", &[libc::EBUSY, libc::ENOSPC], 15),
    Action::new("map", &[libc::EDQUOT, libc::ENOSPC], 15),
    Action::new("evict", &[], 15),
];

/// The work of one process of [`storm`].
fn client(storm: &Storm, random: &mut Lcg) -> Outcome {
    let drm = Drm::open()?;
    let pattern = Pattern::new(random.word());
    let memory = filled(4 * PAGES, pattern)?;
    let mut held: Vec<(Map, Pattern)> = Vec::new();
    for _ in storm.rounds(30) {
        let first = random.below(4) as usize * PAGES;
        storm.tried(
            "SVM_MIGRATE",
            drm.svm_migrate(&memory, first..first + PAGES),
        )?;
        if random.below(2) == 0 {
            holds("a part", &memory, pattern, first..first + PAGES)?;
        }
        if held.len() == 3 {
            let (map, old) = held.swap_remove(random.below(3) as usize);
            holds("an object", &map, old, 0..map.pages())?;
        }
        let pages = 1 + random.below(PAGES as u64 / 2) as usize;
        let new = Pattern::new(random.word());
        let map = create(&drm, pages).and_then(|object| object.map());
        if let Some(map) = storm.tried("map", map)? {
            map.fill(new);
            held.push((map, new));
        }
        if random.below(4) == 0 {
            let (held, memory) = (&held, &memory);
            let mut child = Child::spawn(move || {
                holds(
                    "the memory of a child",
                    memory,
                    pattern,
                    first..first + PAGES,
                )?;
                held.iter()
                    .try_for_each(|(map, new)| holds("an object", map, *new, 0..map.pages()))
            })?;
            child.join("a child", LIMIT)?;
        }
    }
    holds("all of it", &memory, pattern, 0..4 * PAGES)
}

/// Processes with both kinds of memory start and end, while everything that can move is moved.
fn storm() -> Outcome {
    let drm = Drm::open()?;
    let (free, back) = (drm.vram_free()?, drm.svm_moved_back()?);
    let files = DebugFs::open(&PciDevice::vvram()?)?;
    let mut storm = Storm::new(LIMIT, &ACTIONS)?;
    storm.meanwhile(|storm, _| {
        storm.tried("evict", files.write("move", "evict"))?;
        Ok(())
    })?;
    for _ in 0..3 {
        storm.client(client)?;
    }
    storm.end()?;
    check!(drm.svm_moved_back()? > back, "no memory came back");
    check_eq!(drm.counter(Counter::DirectIoBusy)?, 0, "VRAM in use");
    nothing_left(&drm, free)
}

igt_main! {
    "objects-stay", "objects that are mapped for direct I/O take room from processes", objects_stay;
    "fork", "children and their parent unmap both at the same time", fork;
    "storm", "processes with both, and evictions", storm;
}

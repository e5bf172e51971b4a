// SPDX-License-Identifier: GPL-2.0

//! Chaos: each lie is told, and what registers.rst promises holds nevertheless.

use std::sync::Arc;

use client::eventually;
use gpu::registers::error;
use gpu::registers::inject;
use gpu::registers::lie;
use gpu::registers::SEED;
use vfio_user::memory::Memory;
use vfio_user::memory::PAGE;
use vfio_user::switch::Switch;

use crate::machine::Entry;
use crate::machine::Machine;
use crate::machine::Slot;
use crate::machine::BASE;
use crate::machine::CONTEXTS;
use crate::machine::DATA;
use crate::machine::IN_VRAM;
use crate::machine::LEAF;
use crate::machine::LISTS;
use crate::machine::RINGS;
use crate::machine::SEMAPHORE;
use crate::machine::VALID;

const RING: usize = 1;
/// Virtual addresses: of a page of VRAM, of one of another device, of one of memory, and of 1 GiB
/// that takes long to read.
const LOCAL: u64 = 0x40_0000_0000;
const PEER: u64 = LOCAL + PAGE;
const SYSTEM: u64 = LOCAL + 2 * PAGE;
const LONG: u64 = 0x10_0000_0000;
/// A bus address of memory that is not that of the machine, and those of apertures.
const FAR: u64 = 0x50_0000_0000;
const BARS: [u64; 2] = [0x60_0000_0000, 0x70_0000_0000];

fn seeded(seed: u64) -> Machine {
    Machine::with(|options| options.chaos = seed)
}

/// Calls a function for some seeds, which returns how often something happened, and makes sure that
/// it did happen.
fn some(f: impl Fn(&mut Machine) -> u32) {
    let times: u32 = (1..=10).map(|seed| f(&mut seeded(seed))).sum();
    assert!(times > 0);
}

#[test]
fn there_is_a_seed_and_no_chaos_without() {
    let mut machine = seeded(1 << 63 | 5);
    assert_eq!(machine.client.get64(SEED), 1 << 63 | 5);
    let mut machine = Machine::new();
    machine.map(LOCAL, 0, IN_VRAM, 1);
    machine.fault(RING, Entry::fill(LOCAL + PAGE, 8, 1));
    machine.run(RING, &[Entry::fill(LOCAL, 8, 1); 60]);
    assert_eq!(machine.client.get64(SEED), 0);
    assert!((0..lie::COUNT).all(|lie| machine.lies(lie) == 0));
}

/// Changes what is mapped at LOCAL and uses it: with an INVALIDATE for all seeds, and without one,
/// where it has to fault for some. Only that of a table is a report then.
fn with_and_without(lie: usize, change: impl Fn(&mut Machine)) {
    let entry = Entry::fill(LOCAL, 8, 1);
    for seed in 1..=10 {
        let mut machine = seeded(seed);
        change(&mut machine);
        machine.invalidate(1, LOCAL, PAGE);
        machine.run(RING, &[entry; 20]);
        assert!(machine.is_quiet());
    }
    some(|machine| {
        change(machine);
        let before = machine.faults();
        machine.submit(RING, &[entry, Entry::fence(9)]);
        eventually("an end", || {
            machine.error(RING) != 0 || machine.fence_value(RING) == 9
        });
        let faults = machine.faults() - before;
        assert_eq!(
            machine.reports(),
            if lie == lie::TABLE { faults } else { 0 }
        );
        assert!(machine.lies(lie) >= faults);
        faults
    });
}

#[test]
fn what_is_not_mapped_is_kept() {
    with_and_without(lie::NOT_MAPPED, |machine| {
        machine.map(LOCAL + 64 * PAGE, 0, IN_VRAM, 1);
        machine.fault(RING, Entry::fill(LOCAL, 8, 1));
        machine.map(LOCAL, 0, IN_VRAM, 1);
    });
}

#[test]
fn what_is_beside_an_entry_is_kept() {
    with_and_without(lie::NOT_MAPPED, |machine| {
        machine.map(LOCAL + PAGE, 0, IN_VRAM, 1);
        machine.run(RING, &[Entry::fill(LOCAL + PAGE, 8, 1)]);
        machine.map(LOCAL, 0, IN_VRAM, 1);
    });
}

#[test]
fn pointers_to_tables_are_kept() {
    // A root, and a pointer of each level, to a table that both addresses need.
    for (level, far) in [(None, 8 << 30), (Some(0), 16 << 20), (Some(1), 8 * PAGE)] {
        with_and_without(lie::TABLE, |machine| {
            let far = LOCAL + far;
            machine.map(far, 0, IN_VRAM, 1);
            machine.run(RING, &[Entry::fill(far, 8, 1)]);
            let at = level.map_or(CONTEXTS + 8, |level| machine.slot_of(1, LOCAL, level));
            // The old tables stay, and map nothing at LOCAL.
            machine.client.memory.store(at, 0);
            machine.map(LOCAL, 0, IN_VRAM, 1);
        });
    }
}

#[test]
fn roots_beside_a_root_are_kept() {
    with_and_without(lie::NOT_MAPPED, |machine| {
        machine.set_entry(2, LOCAL, 2, VALID | LEAF | IN_VRAM);
        machine.run(RING, &[Entry::fill(LOCAL, 8, 1).context(2)]);
        // Context 1 had no root yet.
        machine.map(LOCAL, 0, IN_VRAM, 1);
    });
}

#[test]
fn what_is_kept_may_be_dropped() {
    some(|machine| {
        machine.map(LOCAL, 0, IN_VRAM, 1);
        machine.run(RING, &[Entry::fill(LOCAL, 8, 1)]);
        machine.map(LOCAL, PAGE, IN_VRAM, 1);
        machine.run(RING, &[Entry::fill(LOCAL, 8, 2); 60]);
        let is_new = machine.vram(PAGE, 1) == [2];
        assert!(!is_new || machine.lies(lie::DROPPED) > 0);
        is_new.into()
    });
}

#[test]
fn a_driver_that_invalidates_all_changes_breaks_no_rule() {
    for seed in 1..=10 {
        let mut machine = seeded(seed);
        machine.map(LOCAL + 64 * PAGE, 1 << 20, IN_VRAM, 400);
        for turn in 0..60 {
            // In several tables of each level.
            let page = (seed * 7 + turn * turn) % 5;
            let at = LOCAL + [0, PAGE, 9 * PAGE, 2 << 20, 1 << 30][page as usize];
            let is_mapped = turn % 3 != 0;
            let entry = Entry::fill(at, 8, turn as u32);
            let other = Entry::fill(LOCAL + (64 + 6 * turn) * PAGE, 8, 0);
            machine.set_entry(1, at, 2, 0);
            if is_mapped {
                machine.map(at, (1 + turn) * PAGE, IN_VRAM, 1);
            }
            machine.invalidate(1, at, PAGE);
            if is_mapped {
                machine.run(RING, &[other, entry]);
                assert_eq!(machine.vram((1 + turn) * PAGE, 1), [turn as u8]);
            } else {
                assert_eq!(machine.fault(RING, entry).error, error::NOT_MAPPED);
            }
        }
        assert!(machine.is_quiet(), "{:?}", machine.slot.log.lines());
        assert!(machine.lies(lie::TABLE) > 0);
    }
}

/// A machine with three targets of writes, of which one is another machine, and what the processors
/// see there.
struct Targets {
    machine: Machine,
    other: Machine,
    apertures: [Memory; 2],
}

impl Targets {
    fn new(seed: u64) -> Self {
        let switch: Arc<Switch> = Arc::default();
        let [mut machine, mut other] = BARS.map(|bar| {
            let slot = Slot::new(&switch, |options| options.chaos = seed);
            let mut machine = Machine::plug(slot);
            machine.client.set_bar(2, bar);
            machine.show(0, Some(0));
            machine
        });
        machine.map(LOCAL, 0, IN_VRAM, 1);
        machine.map(PEER, BARS[1], 0, 1);
        machine.map(SYSTEM, BASE + DATA, 0, 1);
        for slot in 0..512 {
            machine.set_entry(1, LONG + (slot << 21), 1, (BASE + DATA) | VALID | LEAF);
        }
        let apertures = [machine.aperture(), other.aperture()];
        Self {
            machine,
            other,
            apertures,
        }
    }

    fn values(&self) -> [u64; 3] {
        let [local, peer] = &self.apertures;
        [local.load(0), peer.load(0), self.machine.load(DATA)]
    }

    /// Adds ones to the targets, or does less if it is reset, and then something that goes on for
    /// long. Returns when a condition is true.
    fn write(&mut self, then: &[Entry], what: &str, is: impl Fn(&Machine) -> bool) {
        let mut entries = vec![
            Entry::fill(LOCAL, 8, 1),
            Entry::fill(PEER, 8, 1),
            Entry::fill(SYSTEM, 8, 1),
        ];
        entries.extend(then);
        entries.push(Entry::checksum(LONG, LOCAL + 64, 1 << 30));
        self.machine.submit(RING, &entries);
        eventually(what, || is(&self.machine));
    }

    fn end(mut self) {
        self.machine.reset(1 << RING);
        assert!(self.machine.is_quiet() && self.other.is_quiet());
    }
}

const ONES: u64 = 1 << 32 | 1;

#[test]
fn a_write_may_overtake_one_to_another_target() {
    let (mut late, mut overtaken) = (0, 0);
    for seed in 1..=10 {
        let mut targets = Targets::new(seed);
        targets.write(&[], "the entries", |machine| machine.done(RING) >= 3);
        let values = targets.values();
        // What was written to memory is in front of the number of entries.
        assert_eq!(values[2], ONES);
        late += u32::from(values != [ONES; 3]);
        overtaken += targets.machine.lies(lie::OVERTAKEN);
        targets.end();
    }
    assert!(late > 0 && overtaken > 0);
}

#[test]
fn fences_releases_and_invalidates_wait_for_writes() {
    for seed in 1..=10 {
        let mut targets = Targets::new(seed);
        let fence = Entry::new(1).wide(8, 9);
        targets.write(&[fence], "a fence", |machine| {
            machine.fence_value(RING) == 9
        });
        assert_eq!(targets.values(), [ONES; 3]);
        targets.end();

        let mut targets = Targets::new(seed);
        let release = Entry::release(BASE + SEMAPHORE, 9);
        targets.write(&[release], "a release", |machine| {
            machine.load(SEMAPHORE) == 9
        });
        assert_eq!(targets.values(), [ONES; 3]);
        targets.end();

        let mut targets = Targets::new(seed);
        targets.write(&[], "the entries", |machine| machine.done(RING) >= 3);
        targets.machine.invalidate(1, PEER, PAGE);
        assert_eq!(targets.values(), [ONES; 3]);
        targets.end();
    }
}

#[test]
fn a_late_write_is_not_done_once_its_address_is_another_one() {
    // Memory of its own, so that nothing but an INVALIDATE pushes the write.
    let memory = Memory::shared(c"far", 2 * PAGE).unwrap();
    for is_mapped_anew in [false, true] {
        let (mut arrived, mut reported) = (0, 0);
        for seed in 1..=20 {
            let mut machine = Machine::with(|options| {
                options.chaos = seed;
                options.strict = true;
            });
            memory.fill(0, 2 * PAGE, 0);
            machine.client.map_file(FAR, &memory, 0, PAGE);
            machine.map(PEER, FAR, 0, 1);
            for slot in 0..512 {
                machine.set_entry(1, LONG + (slot << 21), 1, (BASE + DATA) | VALID | LEAF);
            }
            let long = Entry::checksum(LONG, LONG + 64, 1 << 30);
            machine.submit(RING, &[Entry::fill(PEER, 8, 1), long]);
            eventually("an entry", || machine.done(RING) >= 1);
            machine.client.unmap(FAR, PAGE);
            if is_mapped_anew {
                machine.client.map_file(FAR, &memory, PAGE, PAGE);
            }
            let is_there = memory.load(0) == ONES;
            machine.invalidate(1, PEER, PAGE);
            assert_eq!(memory.load(PAGE), 0);
            assert_eq!(memory.load(0) == ONES, is_there);
            assert_eq!(machine.reports(), u32::from(!is_there));
            arrived += u32::from(is_there);
            reported += machine.reports();
            machine.reset(1 << RING);
        }
        assert!(arrived > 0 && reported > 0, "{arrived}, {reported}");
    }
}

#[test]
fn another_seed_is_drawn_from_on_request() {
    let run = |number: u32| {
        let mut machine = seeded(7);
        machine.inject(inject::SEED, 0, number);
        let mut entries = vec![Entry::nop(); 60];
        entries.push(Entry::new(1).wide(8, 9));
        machine.submit(RING, &entries);
        eventually("the fence", || machine.fence_value(RING) == 9);
        let lies = [lie::SPURIOUS, lie::AHEAD].map(|lie| machine.lies(lie));
        machine.reset(1 << 31);
        assert_eq!(machine.client.get64(SEED), 7 + (u64::from(number) << 40));
        lies
    };
    let lies: Vec<_> = (0..5).map(run).collect();
    assert!(lies.iter().any(|lies_of| *lies_of != lies[0]), "{lies:?}");
    assert!((0..5).map(run).eq(lies));
    // There is no chaos without a seed.
    let mut machine = Machine::new();
    machine.inject(inject::SEED, 0, 1);
    assert_eq!(machine.client.get64(SEED), 0);
}

#[test]
fn a_ring_that_waits_has_written_all() {
    for seed in 1..=10 {
        for wait in [None, Some(Entry::acquire(BASE + SEMAPHORE, 1))] {
            let mut targets = Targets::new(seed);
            let entries = [LOCAL, PEER, SYSTEM].map(|at| Entry::fill(at, 8, 1));
            let entries: Vec<Entry> = entries.into_iter().chain(wait).collect();
            targets.machine.submit(RING, &entries);
            eventually("the writes", || targets.values() == [ONES; 3]);
            targets.end();
        }
    }
}

#[test]
fn a_read_comes_behind_writes_to_the_same_target() {
    for seed in 1..=10 {
        let mut targets = Targets::new(seed);
        for turn in 0..20 {
            targets.machine.run(
                RING,
                &[
                    Entry::fill(LOCAL, 8, turn),
                    Entry::copy(LOCAL, PEER, 8),
                    Entry::atomic_add(PEER, 1),
                    Entry::copy(PEER, SYSTEM, 8),
                    Entry::fill(LOCAL, 8, 0),
                    Entry::copy(SYSTEM, LOCAL, 8),
                    Entry::checksum(LOCAL, SYSTEM, 8),
                ],
            );
            let (turn, both) = (u64::from(turn), u64::from(turn) << 32 | u64::from(turn));
            assert_eq!(targets.values(), [both + 1, both + 1, 2 * turn + 1]);
        }
        targets.end();
    }
}

#[test]
fn a_reset_of_a_ring_may_lose_what_is_behind_the_last_fence() {
    let (mut lost, mut told) = (0, 0);
    for seed in 1..=10 {
        let mut targets = Targets::new(seed);
        let more = (1..6)
            .flat_map(|word| [LOCAL, PEER].map(|target| Entry::fill(target + 8 * word, 8, 1)));
        let more: Vec<Entry> = more.collect();
        targets.write(&more, "the entries", |machine| machine.done(RING) >= 13);
        targets.machine.reset(1 << RING);
        targets.machine.begin_again();
        let values = |targets: &Targets| {
            let words = |target: &Memory| (0..6).map(|word| target.load(8 * word)).collect();
            targets.apertures.each_ref().map(words)
        };
        let all: [Vec<u64>; 2] = values(&targets);
        for words in &all {
            // What came first is there if what came later is.
            let there = words.iter().take_while(|&&word| word == ONES).count();
            assert!(words[there..].iter().all(|&word| word == 0));
            lost += words.len() - there;
        }
        told += targets.machine.lies(lie::LOST) as usize;
        targets.machine.run(RING, &[Entry::nop(); 30]);
        assert!(values(&targets) == all);
        // What is behind the next fence did not begin.
        let entries = [
            Entry::acquire(BASE + SEMAPHORE, 1),
            Entry::fence(99),
            Entry::fill(LOCAL, 8, 2),
        ];
        targets.machine.submit(RING, &entries);
        targets.machine.reset(1 << RING);
        assert!(values(&targets) == all);
        targets.end();
    }
    assert!(lost > 0 && told >= lost);
}

#[test]
fn nothing_arrives_after_a_reset_of_the_device() {
    for seed in 1..=10 {
        let mut targets = Targets::new(seed);
        targets.write(&[], "the entries", |machine| machine.done(RING) >= 3);
        targets.machine.reset(1 << 31);
        let values = targets.values();
        targets.machine.start();
        targets.machine.run(RING, &[Entry::nop(); 30]);
        assert_eq!(targets.values()[..2], values[..2]);
        assert_eq!(targets.values()[2], 0);
        targets.end();
    }
}

#[test]
fn no_interrupt_comes_after_a_reset() {
    for seed in 1..=10 {
        for bits in [1 << RING, 1 << 31] {
            let mut targets = Targets::new(seed);
            let fences: Vec<Entry> = (1..9).map(Entry::fence).collect();
            targets.write(&fences, "the fences", |machine| {
                machine.fence_value(RING) == 8
            });
            let machine = &mut targets.machine;
            machine.reset(bits);
            machine.client.interrupts();
            let before = machine.lies(lie::SPURIOUS);
            match bits {
                0x8000_0000 => machine.start(),
                _ => machine.begin_again(),
            }
            // One that is late would come before the ring works again.
            let fence = Entry::new(1).wide(8, 99);
            machine.submit(RING, &[fence]);
            eventually("a fence", || machine.fence_value(RING) == 99);
            let spurious = machine.lies(lie::SPURIOUS) - before;
            assert_eq!(machine.client.interrupts(), spurious as usize);
            targets.end();
        }
    }
}

#[test]
fn interrupts_are_late_and_come_twice_and_for_nothing_but_do_come() {
    const LIES: [usize; 3] = [lie::LATE, lie::TWICE, lie::SPURIOUS];
    let mut told = [0; 3];
    for seed in 1..=10 {
        let mut machine = seeded(seed);
        let (mut fences, mut seen) = (0, 0);
        for turn in 1..20 {
            let entries: Vec<Entry> = (1..=turn).map(|i| Entry::fence(fences + i)).collect();
            fences += turn;
            machine.submit(RING, &entries);
            // Each comes at last, behind the value that it is about, and there are no others.
            eventually("the interrupts", || {
                seen += machine.client.interrupts() as u64;
                let value = machine.fence_value(RING);
                let more = u64::from(machine.lies(lie::TWICE) + machine.lies(lie::SPURIOUS));
                assert!(seen <= value + more);
                seen == fences + more
            });
        }
        for (told, lie) in told.iter_mut().zip(LIES) {
            *told += machine.lies(lie);
        }
    }
    assert!(told.iter().all(|&told| told > 0), "{told:?}");
}

#[test]
fn entries_and_lists_are_read_ahead() {
    let wait = Entry::acquire(BASE + SEMAPHORE, 1);
    let mut times = 0;
    for seed in 1..=10 {
        // Whether the entry behind the first one is read ahead follows from the seed.
        let mut machine = seeded(seed);
        machine.client.memory.store(SEMAPHORE, 1);
        machine.submit(0, &[wait, Entry::nop()]);
        eventually("the entries", || machine.done(0) == 2);
        let ahead = machine.lies(lie::AHEAD);
        times += ahead;
        // What is changed behind the doorbell: nothing, the entry, or a list.
        for at in [None, Some(RINGS[0] + 64 + 40), Some(LISTS + 0x800)] {
            let mut machine = seeded(seed);
            let fill = machine.fill_list(&[(BASE + DATA, 8)], 8, 1);
            machine.submit(0, &[wait, fill, Entry::fence(9)]);
            eventually("a read ahead", || machine.lies(lie::AHEAD) == ahead);
            if let Some(at) = at {
                machine.client.memory.store(at, machine.load(at) + 64);
            }
            machine.client.memory.store(SEMAPHORE, 1);
            eventually("the fence", || machine.fence_value(0) == 9);
            // If it was read ahead, it is what it was.
            assert_eq!(machine.reports(), if at.is_some() { ahead } else { 0 });
            assert_eq!(machine.load(DATA) == ONES, at.is_none() || ahead == 1);
        }
    }
    assert!(times > 0);
}

// SPDX-License-Identifier: GPL-2.0

//! Chaos: each lie is told, and what registers.rst promises holds nevertheless.

use client::eventually;
use gpu::registers::error;
use gpu::registers::lie;
use gpu::registers::SEED;
use vfio_user::memory::PAGE;

use crate::machine::Entry;
use crate::machine::Machine;
use crate::machine::CONTEXTS;
use crate::machine::IN_VRAM;

const RING: usize = 1;
/// A virtual address.
const LOCAL: u64 = 0x40_0000_0000;

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
/// where it has to fault and to be reported for some.
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
        machine.submit(RING, &[entry, Entry::fence(9)]);
        eventually("an end", || {
            machine.error(RING) != 0 || machine.fence_value(RING) == 9
        });
        let times = machine.reports();
        assert_eq!(times, u32::from(machine.error(RING) != 0));
        assert!(machine.lies(lie) >= times);
        times
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

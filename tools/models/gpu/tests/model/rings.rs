// SPDX-License-Identifier: GPL-2.0

//! Rings: doorbells, fences, semaphores, faults and resets.

use client::eventually;
use gpu::registers;
use gpu::registers::error;
use gpu::registers::inject;

use crate::machine::Entry;
use crate::machine::Machine;
use crate::machine::BASE;
use crate::machine::DATA;
use crate::machine::ENTRIES;
use crate::machine::SEMAPHORE;

#[test]
fn a_ring_goes_round() {
    let mut machine = Machine::new();
    for round in 0..5 {
        let nops = vec![Entry::nop(); ENTRIES as usize - 1];
        machine.run(0, &nops);
        assert_eq!(machine.done(0), (round + 1) * ENTRIES);
    }
    assert_eq!(machine.done(1), 0);
    assert!(machine.is_quiet());
}

#[test]
fn a_doorbell_may_not_be_too_far_ahead() {
    let mut machine = Machine::new();
    machine.run(0, &[Entry::nop()]);
    machine.doorbell(0, 2 + ENTRIES + 1);
    eventually("a fault", || machine.error(0) != 0);
    let record = machine.record(0);
    assert_eq!((record.error, record.entry), (error::OPERATION, 2));
    // Neither behind.
    machine.reset(1);
    machine.doorbell(0, u32::MAX);
    eventually("a fault", || machine.error(0) == error::OPERATION);
}

#[test]
fn a_ring_that_is_off_does_nothing() {
    let mut machine = Machine::new();
    let register = Machine::of(0, registers::RING_ENTRIES);
    machine.client.set(register, 0);
    machine.submit(0, &[Entry::fence(1)]);
    machine.run(1, &[Entry::nop()]);
    assert_eq!((machine.done(0), machine.fence_value(0)), (0, 0));
    machine.client.set(register, ENTRIES);
    eventually("the fence", || machine.fence_value(0) == 1);
}

#[test]
fn fences_write_and_interrupt() {
    let mut machine = Machine::new();
    let silent = Entry::new(1).wide(8, 1 << 40);
    machine.submit(1, &[silent]);
    eventually("the fence", || machine.done(1) == 1);
    assert_eq!(machine.fence_value(1), 1 << 40);
    assert_eq!(machine.client.interrupts(), 0);
    machine.submit(1, &[Entry::nop(), Entry::fence(7)]);
    machine.client.wait_for_interrupt();
    // Both are there by then.
    assert_eq!((machine.fence_value(1), machine.done(1)), (7, 3));
    assert_eq!(machine.client.interrupts(), 0);
}

#[test]
fn without_a_status_page_there_is_an_interrupt_still() {
    let mut machine = Machine::new();
    machine.client.set64(registers::STATUS_PAGE, 0);
    machine.submit(0, &[Entry::fence(7)]);
    machine.client.wait_for_interrupt();
    assert_eq!((machine.fence_value(0), machine.done(0)), (0, 0));
    assert!(machine.is_quiet());
}

#[test]
fn a_status_page_that_is_not_mapped_is_reported() {
    let mut machine = Machine::new();
    machine.client.set64(registers::STATUS_PAGE, BASE - 4096);
    machine.submit(0, &[Entry::fence(7)]);
    machine.client.wait_for_interrupt();
    assert_eq!(machine.reports(), 2);
}

#[test]
fn registers_may_have_any_value() {
    let mut machine = Machine::new();
    machine.client.set64(registers::STATUS_PAGE, BASE + 0xfff);
    machine
        .client
        .set64(registers::CONTEXT_TABLE, BASE + 0x7fffd);
    machine.invalidate_unseen(0, 0, u64::MAX);
    machine.submit(1, &[Entry::fill(0, 8, 0), Entry::fence(1)]);
    machine.submit(0, &[Entry::fence(0x0102)]);
    machine.client.wait_for_interrupt();
    machine.client.wait_for_interrupt();
    assert_eq!(machine.client.bytes(0xfff, 2), [2, 1]);
    for register in [
        registers::STATUS_PAGE,
        registers::CONTEXT_TABLE,
        registers::INVALIDATE_START,
        Machine::of(0, registers::RING_BASE),
    ] {
        machine.client.set64(register, u64::MAX - 3);
    }
    machine.reset(3);
    machine.begin_again();
    machine.invalidate_unseen(0, 0, u64::MAX);
    machine.invalidate_unseen(1, u64::MAX, u64::MAX);
    machine.submit(1, &[Entry::fill(0, 8, 0), Entry::fence(1)]);
    machine.submit(0, &[Entry::fence(1)]);
    machine.client.wait_for_interrupt();
    machine.client.wait_for_interrupt();
    // All of it goes on.
    machine.reset(1 << 31);
    machine.start();
    machine.run(0, &[Entry::nop()]);
    machine.run(1, &[Entry::nop()]);
}

#[test]
fn rings_wait_for_semaphores_and_not_for_each_other() {
    let mut machine = Machine::new();
    machine.submit(0, &[Entry::acquire(BASE + SEMAPHORE, 5), Entry::fence(1)]);
    machine.run(1, &[Entry::nop()]);
    assert_eq!(machine.done(0), 0);
    machine.client.memory.store(SEMAPHORE, 4);
    machine.run(1, &[Entry::nop()]);
    assert_eq!(machine.done(0), 0);
    machine.run(1, &[Entry::release(BASE + SEMAPHORE, u64::MAX)]);
    eventually("the fence", || machine.fence_value(0) == 1);
    assert!(machine.is_quiet());
}

#[test]
fn a_fault_stops_its_ring_alone() {
    let mut machine = Machine::new();
    machine.submit(0, &[Entry::nop(), Entry::new(99), Entry::fence(1)]);
    machine.client.wait_for_interrupt();
    assert_eq!((machine.error(0), machine.done(0)), (error::OPERATION, 1));
    assert_eq!(machine.record(0).entry, 1);
    machine.run(1, &[Entry::nop()]);
    machine.submit(0, &[Entry::fence(2)]);
    machine.run(1, &[Entry::nop()]);
    assert_eq!((machine.fence_value(0), machine.done(0)), (0, 1));
    machine.reset(1);
    assert_eq!((machine.error(0), machine.done(0)), (0, 0));
    assert_eq!((machine.resets(0), machine.resets(1)), (1, 0));
}

#[test]
fn fault_records_go_round() {
    let mut machine = Machine::new();
    for number in 0..40 {
        let ring = number as usize % 2;
        let entry = Entry::new(1000).context(number);
        assert_eq!(machine.fault(ring, entry).context, number);
    }
    assert_eq!(machine.faults(), 40);
    assert_eq!(machine.record(24).context, 24);
    assert_eq!(machine.record(23).context, 39);
}

#[test]
fn a_reset_forgets_entries_and_keeps_the_rest() {
    let mut machine = Machine::new();
    machine.run(0, &[Entry::nop(), Entry::nop()]);
    machine.inject(inject::HANG, 0, 0);
    machine.submit(0, &[Entry::fence(77)]);
    machine.run(1, &[Entry::nop()]);
    assert_eq!(machine.done(0), 3);
    machine.reset(1);
    assert_eq!((machine.done(0), machine.fence_value(0)), (0, 1));
    assert_eq!(machine.resets(0), 1);
    let base = machine.client.get64(Machine::of(0, registers::RING_BASE));
    assert_eq!(base, BASE + crate::machine::RINGS[0]);
    let entries = machine.client.get(Machine::of(0, registers::RING_ENTRIES));
    assert_eq!(entries, ENTRIES);
    // It counts from 0 again, and does not do the entries from before.
    machine.begin_again();
    machine.run(0, &[Entry::nop()]);
    assert_eq!(machine.done(0), 2);
    assert!(machine.is_quiet());
}

#[test]
fn a_reset_ends_a_wait() {
    let mut machine = Machine::new();
    machine.submit(0, &[Entry::acquire(BASE + SEMAPHORE, 1), Entry::fence(9)]);
    machine.submit(1, &[Entry::acquire(BASE + SEMAPHORE, 1), Entry::fence(9)]);
    machine.reset(3);
    machine.client.memory.store(SEMAPHORE, 1);
    assert_eq!((machine.resets(0), machine.resets(1)), (1, 1));
    machine.begin_again();
    machine.run(0, &[Entry::nop()]);
    machine.run(1, &[Entry::nop()]);
    assert_ne!(machine.fence_value(0), 9);
}

#[test]
fn a_reset_ends_a_long_copy_and_there_is_no_dma_after_it() {
    let mut machine = Machine::new();
    machine.fill_for_long();
    machine.reset(1);
    machine.client.memory.fill(DATA, 1 << 20, 0);
    machine.begin_again();
    machine.run(0, &[Entry::nop(); 30]);
    assert!(machine.client.memory.is_filled(DATA, 1 << 20, 0));
    assert!(machine.is_quiet());
}

#[test]
fn a_reset_of_the_device_clears_all_registers() {
    let mut machine = Machine::new();
    machine.run(0, &[Entry::nop()]);
    machine.fault(1, Entry::new(99));
    machine.inject(inject::SLOW, 0, 10_000);
    machine.inject(inject::FAULT, 1, 0);
    machine.submit(0, &[Entry::fence(55)]);
    let before = machine.client.bytes(0, 4096);
    machine.reset(1 << 31);
    assert_eq!(machine.client.bytes(0, 4096), before);
    for register in [
        registers::STATUS_PAGE,
        registers::CONTEXT_TABLE,
        Machine::of(0, registers::RING_BASE),
        Machine::of(0, registers::RING_ENTRIES),
    ] {
        assert_eq!(machine.client.get64(register), 0);
    }
    // Injected errors and counts are gone as well.
    machine.start();
    machine.run(0, &[Entry::nop()]);
    assert_eq!((machine.done(0), machine.fence_value(0)), (2, 2));
    machine.fault(1, Entry::new(99));
    assert_eq!((machine.faults(), machine.resets(1)), (1, 1));
}

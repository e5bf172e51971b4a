// SPDX-License-Identifier: GPL-2.0

//! Errors on request.

use std::time::Duration;
use std::time::Instant;

use client::eventually;
use client::Client;
use gpu::registers;
use gpu::registers::error;
use gpu::registers::inject;
use gpu::registers::status;
use vfio_user::message::command;
use vfio_user::message::Body;

use crate::machine::Entry;
use crate::machine::Machine;
use crate::machine::BASE;
use crate::machine::STATUS;

#[test]
fn the_next_operation_hangs() {
    let mut machine = Machine::new();
    machine.inject(inject::HANG, 1, 0);
    machine.run(0, &[Entry::nop()]);
    machine.submit(1, &[Entry::fence(9)]);
    machine.run(0, &[Entry::nop()]);
    assert_eq!((machine.fence_value(1), machine.done(1)), (0, 0));
    machine.reset(2);
    machine.begin_again();
    machine.run(1, &[Entry::nop()]);
    // A reset also takes back one that did not begin.
    machine.inject(inject::HANG, 1, 0);
    machine.reset(2);
    machine.begin_again();
    machine.run(1, &[Entry::nop()]);
}

#[test]
fn resets_are_not_done() {
    let mut machine = Machine::new();
    machine.inject(inject::HANG, 1, 0);
    machine.submit(1, &[Entry::fence(9)]);
    machine.inject(inject::SKIP_RING_RESETS, 1, 0);
    machine.client.set(registers::RESET, 2);
    machine.client.set(registers::RESET, 1);
    eventually("that of the other ring", || machine.resets(0) == 1);
    machine.inject(inject::SKIP_DEVICE_RESETS, 0, 1);
    machine.client.set(registers::RESET, registers::RESET_ALL);
    let bits = 2 | registers::RESET_ALL;
    assert_eq!(machine.client.get(registers::RESET), bits);
    // All of that is over with one that is done.
    machine.reset(registers::RESET_ALL);
    machine.start();
    machine.begin_again();
    machine.run(1, &[Entry::nop()]);
    machine.reset(2);
}

/// Makes sure that an entry of the compute engine hangs, and one of the copy engine does not.
fn is_lifeless(machine: &mut Machine) {
    machine.submit(1, &[Entry::fence(9)]);
    machine.run(0, &[Entry::nop()]);
    assert_eq!((machine.fence_value(1), machine.done(1)), (0, 0));
}

#[test]
fn operations_hang_until_a_reset_by_the_bus() {
    for reset in [Client::reset_function, |client: &mut Client| {
        let answer = client.ask(command::DEVICE_RESET, Body::default(), None);
        assert!(answer.is_ok());
    }] {
        let mut machine = Machine::new();
        machine.inject(inject::LIFELESS, 1, 0);
        is_lifeless(&mut machine);
        // The resets by the register are done, which ends the entry, but the next one hangs again.
        for count in 1..3 {
            machine.reset(3);
            assert_eq!(machine.resets(1), count);
            machine.begin_again();
            is_lifeless(&mut machine);
        }
        for _ in 0..2 {
            machine.reset(registers::RESET_ALL);
            machine.start();
            is_lifeless(&mut machine);
        }
        reset(&mut machine.client);
        machine.finish_reset();
        machine.start();
        machine.run(1, &[Entry::nop()]);
        assert!(machine.is_quiet());
    }
}

#[test]
fn operations_hang_until_the_device_is_unplugged() {
    let mut machine = Machine::new();
    machine.inject(inject::LIFELESS, 1, 0);
    is_lifeless(&mut machine);
    let mut machine = Machine::plug(machine.unplug());
    machine.run(1, &[Entry::nop()]);
}

#[test]
fn the_next_operation_faults() {
    let mut machine = Machine::new();
    machine.inject(inject::FAULT, 0, 0);
    let record = machine.fault(0, Entry::fence(1).context(3));
    assert_eq!((record.error, record.context), (error::INJECTED, 3));
    machine.run(0, &[Entry::nop()]);
    machine.run(1, &[Entry::nop()]);
}

#[test]
fn the_next_interrupt_is_lost() {
    for fault in [false, true] {
        let mut machine = Machine::new();
        machine.inject(inject::LOSE_INTERRUPT, 0, 0);
        if fault {
            machine.fault(0, Entry::new(99));
        } else {
            machine.run(0, &[]);
        }
        // That of the other ring is not.
        machine.run(1, &[]);
        machine.client.wait_for_interrupt();
        assert_eq!(machine.client.interrupts(), 0);
        machine.run(0, &[]);
        machine.client.wait_for_interrupt();
    }
}

#[test]
fn the_next_interrupt_is_early() {
    let mut machine = Machine::new();
    let silent = Entry::new(1).wide(8, 1);
    machine.inject(inject::EARLY_INTERRUPT, 0, 0);
    machine.submit(0, &[silent, Entry::fence(2), Entry::fence(3)]);
    eventually("the values", || machine.done(0) == 3);
    assert_eq!(machine.fence_value(0), 3);
    machine.client.wait_for_interrupt();
    machine.client.wait_for_interrupt();
    assert_eq!(machine.client.interrupts(), 0);
    // So early that a reset comes before the value.
    machine.inject(inject::EARLY_INTERRUPT, 0, 60_000);
    machine.submit(0, &[silent, Entry::fence(4)]);
    machine.client.wait_for_interrupt();
    assert_eq!((machine.fence_value(0), machine.done(0)), (1, 4));
    machine.reset(1);
    assert_eq!(machine.fence_value(0), 1);
    machine.begin_again();
    machine.run(0, &[Entry::fence(5)]);
    machine.client.wait_for_interrupt();
}

#[test]
fn the_next_invalidate_is_not_done() {
    let mut machine = Machine::new();
    machine.inject(inject::SKIP_INVALIDATE, 0, 0);
    machine.start_invalidate(1, 0, 4096, 41);
    machine.start_invalidate(1, 0, 4096, 42);
    eventually("the second one", || {
        let number = machine.load32(STATUS + status::INVALIDATED);
        assert_ne!(number, 41);
        number == 42
    });
    machine.inject(inject::SKIP_INVALIDATE, 0, 0);
    machine.start_invalidate(1, 0, 4096, 43);
    machine.run(0, &[Entry::nop()]);
    assert_eq!(machine.load32(STATUS + status::INVALIDATED), 42);
    machine.inject(inject::SKIP_INVALIDATE, 0, 2);
    machine.start_invalidate(1, 0, 4096, 44);
    machine.start_invalidate(1, 0, 4096, 45);
    machine.start_invalidate(1, 0, 4096, 46);
    eventually("the one behind two", || {
        let number = machine.load32(STATUS + status::INVALIDATED);
        assert!(![44, 45].contains(&number));
        number == 46
    });
}

#[test]
fn entries_take_longer() {
    let mut machine = Machine::new();
    machine.inject(inject::SLOW, 0, 30);
    let begin = Instant::now();
    machine.run(0, &[Entry::nop(); 4]);
    assert!(begin.elapsed() >= Duration::from_millis(5 * 30));
    machine.inject(inject::SLOW, 0, 10_000);
    machine.inject(inject::SLOW, 0, 0);
    machine.run(0, &[Entry::nop(); 4]);
    machine.inject(inject::DELAY, 0, 100);
    let begin = Instant::now();
    machine.run(0, &[Entry::nop()]);
    assert!(begin.elapsed() >= Duration::from_millis(100));
    // One that is waited for can be reset.
    machine.inject(inject::DELAY, 0, 60_000);
    machine.submit(0, &[Entry::nop()]);
    machine.reset(1);
}

#[test]
fn reports_may_be_expected() {
    let mut machine = Machine::new();
    let entry = Entry::release(BASE - 8, 1);
    machine.inject(inject::EXPECT_REPORTS, 0, 2);
    for _ in 0..2 {
        machine.fault(0, entry);
    }
    assert_eq!(machine.reports(), 2);
    machine.inject(inject::EXPECT_REPORTS, 0, 2);
    machine.fault(0, entry);
    // A reset takes nothing back.
    machine.client.reset_function();
    machine.finish_reset();
    machine.start();
    machine.fault(0, entry);
    assert_eq!(machine.reports(), 4);
    assert_eq!(machine.slot.log.lines(), [""; 0]);
    machine.fault(0, entry);
    assert_eq!(machine.reports(), 5);
    assert_eq!(machine.slot.log.lines().len(), 1);
    // What is still expected may be taken back.
    machine.inject(inject::EXPECT_REPORTS, 0, 9);
    machine.inject(inject::EXPECT_REPORTS, 0, 0);
    machine.fault(0, entry);
    assert_eq!(machine.slot.log.lines().len(), 2);
}

#[test]
fn many_reports_are_told_in_part() {
    let mut machine = Machine::new();
    for _ in 0..60 {
        machine.fault(0, Entry::release(BASE - 8, 1));
    }
    assert_eq!(machine.reports(), 60);
    assert_eq!(machine.slot.log.lines().len(), 51);
}

#[test]
fn what_is_no_error_is_ignored() {
    let mut machine = Machine::new();
    machine.inject(0, 0, 1);
    machine.inject(255, 0, 1);
    machine.inject(inject::HANG, 2, 0);
    machine.inject(inject::HANG, 255, 0);
    machine.run(0, &[Entry::nop()]);
    machine.run(1, &[Entry::nop()]);
    assert_eq!(machine.client.get(registers::INJECT), 0);
    assert!(machine.is_quiet());
}

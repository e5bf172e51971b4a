// SPDX-License-Identifier: GPL-2.0

//! Errors on request.

use edu::registers;
use edu::registers::inject;
use vfio_user::memory::PAGE;

use crate::machine::Machine;
use crate::machine::BASE;

/// A machine with ones in the first page, twos in the second one, and zeroes in the buffer.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.client.memory.fill(0, PAGE, 1);
    machine.client.memory.fill(PAGE, PAGE, 2);
    machine
}

/// What a transfer to the third page finds in the buffer, if it is one byte.
fn buffered(machine: &mut Machine) -> u8 {
    machine.write(0, BASE + 2 * PAGE, PAGE);
    let data = machine.client.bytes(2 * PAGE, PAGE);
    assert!(data.iter().all(|byte| *byte == data[0]));
    data[0]
}

#[test]
fn a_transfer_that_hangs_is_stopped() {
    let mut machine = machine();
    machine.inject(inject::HANG, 1, 1);
    machine.read(0, BASE, PAGE);
    machine.start_read(0, BASE + PAGE, PAGE);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(machine.is_running(0));
    assert_eq!(machine.client.get64(registers::FAULTS), 1);
    let command = Machine::of(0, registers::COMMAND);
    machine.client.set64(command, registers::STOP);
    machine.finish(0);
    assert_eq!(buffered(&mut machine), 1);
    machine.read(0, BASE + PAGE, PAGE);
    assert_eq!(buffered(&mut machine), 2);
}

#[test]
fn one_that_is_stuck_is_not() {
    for reset in [false, true] {
        let mut machine = machine();
        machine.inject(inject::STUCK, 0, 1);
        machine.start_read(0, BASE, PAGE);
        let command = Machine::of(0, registers::COMMAND);
        machine.client.set64(command, registers::STOP);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(machine.is_running(0));
        match reset {
            true => machine.client.reset_function(),
            false => machine.inject(inject::NONE, 0, 0),
        }
        assert!(!machine.is_running(0));
        assert_eq!(buffered(&mut machine), 0);
        machine.read(0, BASE, PAGE);
        assert_eq!(buffered(&mut machine), 1);
    }
}

#[test]
fn an_interrupt_is_lost() {
    let mut machine = machine();
    machine.inject(inject::LOSE_INTERRUPT, 0, 2);
    for _ in 0..2 {
        machine.write(0, BASE, 8);
    }
    machine.write(1, BASE, 8);
    machine.client.wait_for_interrupt();
    assert_eq!(machine.client.interrupts(), 0);
    assert_eq!(machine.client.get(registers::INTERRUPT_STATUS), 0x200);
    assert_eq!(machine.client.get64(registers::FAULTS), 2);
}

#[test]
fn writes_are_dropped() {
    let mut machine = machine();
    machine.inject(inject::DROP_WRITE, 1, 1);
    for page in 0..3 {
        machine.write(0, BASE + page * PAGE, 8);
    }
    for (page, byte) in [(0, 0), (1, 2), (2, 0)] {
        assert_eq!(machine.client.bytes(page * PAGE, 8), [byte; 8]);
    }
}

#[test]
fn reads_are_dropped_or_return_ones() {
    let mut machine = machine();
    machine.read(0, BASE, PAGE);
    machine.inject(inject::DROP_READ, 0, 1);
    machine.inject(inject::ONES, 1, 1);
    machine.read(0, BASE + PAGE, PAGE);
    assert_eq!(buffered(&mut machine), 1);
    machine.read(0, BASE + PAGE, PAGE);
    assert_eq!(buffered(&mut machine), 0xff);
    machine.read(0, BASE + PAGE, PAGE);
    assert_eq!(buffered(&mut machine), 2);
    assert_eq!(machine.client.get64(registers::FAULTS), 2);
}

#[test]
fn errors_are_taken_back() {
    let mut machine = machine();
    for what in [
        inject::HANG,
        inject::STUCK,
        inject::LOSE_INTERRUPT,
        inject::DROP_WRITE,
        inject::DROP_READ,
        inject::ONES,
        inject::POST,
    ] {
        machine.inject(what, 0, 10);
    }
    machine.client.set64(registers::DELAY, 3);
    machine.inject(inject::NONE, 0, 0);
    machine.read(0, BASE, PAGE);
    assert_eq!(buffered(&mut machine), 1);
    machine.client.wait_for_interrupt();
    assert_eq!(machine.client.get64(registers::FAULTS), 0);
    assert_eq!(machine.client.get64(registers::FLUSHED), 0);
    assert_eq!(machine.client.get64(registers::DELAY), 3);
}

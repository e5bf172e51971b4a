// SPDX-License-Identifier: GPL-2.0

//! Writes that arrive after the end of their transfer.

use client::eventually;
use edu::registers;
use edu::registers::inject;
use vfio_user::memory::PAGE;

use crate::machine::Machine;
use crate::machine::BASE;
use crate::machine::MEMORY;
use crate::machine::REMOTE;

/// Longer than any test takes, in ms.
const LONG: u64 = 600_000;

/// A machine whose memory is full of ones, and whose device has zeroes for it.
fn machine(strict: bool, late: u64) -> Machine {
    let mut machine = Machine::with(strict);
    machine.client.memory.fill(0, MEMORY, 1);
    machine.inject(inject::POST, 0, late);
    machine
}

#[test]
fn a_read_of_a_register_pushes_writes() {
    let mut machine = machine(true, LONG);
    for channel in 0..3 {
        machine.start_write(channel, BASE + channel * PAGE, PAGE);
        // The interrupt comes another way, and pushes nothing.
        machine.client.wait_for_interrupt();
    }
    assert!(machine.client.memory.is_filled(0, MEMORY, 1));
    // Neither does a write of a register.
    machine.client.set(registers::LIVENESS, 1);
    assert!(machine.client.memory.is_filled(0, MEMORY, 1));
    machine.client.get(registers::LIVENESS);
    assert!(machine.client.memory.is_filled(0, 3 * PAGE, 0));
    assert!(machine.client.memory.is_filled(3 * PAGE, PAGE, 1));
    assert_eq!(machine.client.get64(registers::FLUSHED), 3);
    assert_eq!(machine.client.get64(registers::LATE), 0);
}

#[test]
fn a_poll_that_sees_the_end_sees_the_bytes() {
    let mut machine = machine(true, LONG);
    for page in 0..10 {
        machine.write(0, BASE + page * PAGE, PAGE);
        assert!(machine.client.memory.is_filled(page * PAGE, PAGE, 0));
    }
}

#[test]
fn they_arrive_by_themselves_in_order() {
    let mut machine = machine(true, 30);
    machine.start_write(0, BASE, PAGE);
    machine.client.wait_for_interrupt();
    eventually("the write", || machine.client.memory.is_filled(0, PAGE, 0));
    assert_eq!(machine.client.get64(registers::LATE), 1);
    assert_eq!(machine.client.get64(registers::FLUSHED), 0);
    machine.inject(inject::POST, 0, 0);
    machine.start_write(0, BASE + PAGE, PAGE);
    machine.client.wait_for_interrupt();
    assert!(machine.client.memory.is_filled(PAGE, PAGE, 0));
}

#[test]
fn one_that_arrives_where_nothing_is_mapped_any_more_is_reported() {
    let mut machine = machine(true, LONG);
    machine.start_write(2, BASE, PAGE);
    machine.client.wait_for_interrupt();
    machine.client.unmap(BASE, MEMORY);
    machine.client.get(registers::LIVENESS);
    assert!(machine.client.memory.is_filled(0, MEMORY, 1));
    assert_eq!(
        machine.log.lines(),
        [format!(
            "edu: channel 2: write to {BASE:#x}, which is not mapped for DMA"
        )]
    );
}

#[test]
fn none_arrives_after_a_reset() {
    let mut machine = machine(true, LONG);
    machine.start_write(0, BASE, PAGE);
    machine.client.wait_for_interrupt();
    machine.client.reset_function();
    machine.client.get(registers::LIVENESS);
    assert!(machine.client.memory.is_filled(0, MEMORY, 1));
    assert_eq!(machine.log.lines(), [""; 0]);
}

#[test]
fn memory_behind_the_client_is_written_at_once() {
    let mut machine = machine(false, LONG);
    machine.client.map_remote(REMOTE, vec![1; PAGE as usize]);
    machine.start_write(0, REMOTE, PAGE);
    machine.client.wait_for_interrupt();
    assert!(machine.client.remote(REMOTE) == [0; PAGE as usize]);
}

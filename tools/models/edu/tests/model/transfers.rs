// SPDX-License-Identifier: GPL-2.0

//! Transfers, one at a time and on all channels.

use client::eventually;
use client::pattern;
use client::COMMAND_MEMORY;
use edu::registers;
use vfio_user::memory::PAGE;

use crate::machine::Machine;
use crate::machine::BASE;
use crate::machine::MEMORY;
use crate::machine::REMOTE;

/// Longer than any test takes, in us.
const LONG: u64 = 600_000_000;

#[test]
fn bytes_go_through_the_buffer() {
    let mut machine = Machine::new();
    let data = pattern(PAGE, 1);
    machine.client.memory.write(PAGE, &data);
    machine.read(0, BASE + PAGE, PAGE);
    machine.write(0, BASE + 3 * PAGE, PAGE);
    machine.client.wait_for_interrupt();
    assert!(machine.client.bytes(3 * PAGE, PAGE) == data);
    assert_eq!(machine.client.get(registers::INTERRUPT_STATUS), 0x100);
    // A part, from the middle of the buffer.
    machine.start(
        0,
        Machine::buffer(0) + 100,
        BASE + 5 * PAGE + 7,
        50,
        registers::TO_MEMORY,
    );
    machine.finish(0);
    assert!(machine.client.bytes(5 * PAGE + 7, 50) == data[100..150]);
    assert_eq!(machine.client.bytes(5 * PAGE, 7), [0; 7]);
    assert_eq!(machine.client.bytes(5 * PAGE + 57, 7), [0; 7]);
    assert_eq!(machine.client.get64(registers::FINISHED), 3);
    assert_eq!(machine.client.interrupts(), 0);
}

#[test]
fn memory_behind_the_client_is_accessed_by_messages() {
    for strict in [false, true] {
        let mut machine = Machine::with(strict);
        let data = pattern(PAGE, 2);
        machine.client.map_remote(REMOTE, data.clone());
        machine.read(1, REMOTE, PAGE);
        machine.write(1, BASE, PAGE);
        assert!(machine.client.bytes(0, PAGE) == data);
        machine.write(1, REMOTE + 8, 8);
        assert!(machine.client.remote(REMOTE)[8..16] == data[..8]);
        assert_eq!(machine.log.lines(), [""; 0]);
    }
}

#[test]
fn channels_have_buffers_of_their_own_and_work_at_the_same_time() {
    let mut machine = Machine::new();
    for channel in 0..4 {
        let data = pattern(PAGE, channel);
        machine.client.memory.write(channel * PAGE, &data);
        machine.read(channel, BASE + channel * PAGE, PAGE);
    }
    assert_eq!(machine.client.get64(registers::MOST), 1);
    machine.client.set64(registers::MOST, 0);
    machine.client.set64(registers::DELAY, LONG);
    machine.client.memory.fill(0, MEMORY, 0);
    for channel in 0..4 {
        machine.start_write(channel, BASE + channel * PAGE, PAGE);
    }
    for channel in 0..4 {
        assert!(machine.is_running(channel));
    }
    assert_eq!(machine.client.get64(registers::MOST), 4);
    assert!(machine.client.memory.is_filled(0, MEMORY, 0));
    // One is stopped, and another one that comes after it is done at once.
    machine.client.set64(registers::DELAY, 0);
    machine
        .client
        .set64(Machine::of(1, registers::COMMAND), registers::STOP);
    machine.finish(1);
    assert_eq!(machine.client.interrupts(), 0);
    machine.write(1, BASE + 9 * PAGE, PAGE);
    machine.client.wait_for_interrupt();
    assert!(machine.client.bytes(9 * PAGE, PAGE) == pattern(PAGE, 1));
    assert_eq!(machine.client.get(registers::INTERRUPT_STATUS), 0x200);
    assert!(machine.is_running(0) && machine.is_running(2) && machine.is_running(3));
    assert!(machine.client.memory.is_filled(0, 9 * PAGE, 0));
}

#[test]
fn nothing_is_accepted_during_a_transfer() {
    let mut machine = Machine::new();
    machine.client.set64(registers::DELAY, LONG);
    machine.start_read(0, BASE, 8);
    for register in [registers::SOURCE, registers::COUNT, registers::COMMAND] {
        let at = Machine::of(0, register);
        let before = machine.client.get64(at);
        machine.client.set64(at, 0x40);
        assert_eq!(machine.client.get64(at), before);
    }
    assert!(machine.is_running(0));
}

#[test]
fn a_delay_is_kept() {
    let mut machine = Machine::new();
    machine.client.set64(registers::DELAY, 50_000);
    let begin = std::time::Instant::now();
    machine.read(0, BASE, 8);
    assert!(begin.elapsed().as_millis() >= 50);
    machine.client.set64(registers::DELAY, u64::MAX);
    machine.start_read(0, BASE, 8);
    assert!(machine.is_running(0));
}

#[test]
fn what_is_not_in_the_buffer_is_not_moved() {
    let mut machine = Machine::new();
    machine.client.memory.fill(0, MEMORY, 7);
    for (place, bytes) in [
        (Machine::buffer(0) + 1, PAGE),
        (Machine::buffer(1), 8),
        (Machine::buffer(0) - 8, 8),
        (Machine::buffer(0), u64::MAX),
        (0, 8),
    ] {
        machine.start(0, place, BASE, bytes, registers::TO_MEMORY);
        machine.finish(0);
    }
    assert!(machine.client.memory.is_filled(0, MEMORY, 7));
    assert_eq!(machine.client.get64(registers::REPORTS), 5);
    assert_eq!(
        machine.log.lines()[0],
        "edu: channel 0: 4096 bytes at 0x40001 are not in the buffer"
    );
}

#[test]
fn an_address_that_is_not_mapped_is_reported() {
    let mut machine = Machine::with(true);
    machine.client.keep_remote(REMOTE, vec![1; PAGE as usize]);
    machine.write(3, REMOTE, 8);
    assert!(machine.client.remote(REMOTE) == [1; PAGE as usize]);
    machine.read(3, REMOTE + 8, 8);
    let say = |verb: &str, at: u64| {
        format!("edu: channel 3: {verb} {at:#x}, which is not mapped for DMA")
    };
    let lines = [say("write to", REMOTE), say("read of", REMOTE + 8)];
    assert_eq!(machine.log.lines(), lines);
    // Those that a test has announced are counted, and not logged.
    machine.inject(registers::inject::EXPECT_REPORTS, 0, 1);
    machine.write(3, REMOTE, 8);
    assert_eq!(machine.client.get64(registers::REPORTS), 3);
    assert_eq!(machine.log.lines(), lines);
    machine.write(3, REMOTE, 8);
    assert_eq!(machine.log.lines().len(), 3);
}

#[test]
fn only_without_an_iommu_is_the_client_asked_for_what_is_not_mapped() {
    let mut machine = Machine::new();
    machine.client.keep_remote(REMOTE, vec![1; PAGE as usize]);
    machine.write(0, REMOTE, 8);
    assert_eq!(
        machine.client.remote(REMOTE)[..9],
        [0, 0, 0, 0, 0, 0, 0, 0, 1]
    );
    assert_eq!(machine.log.lines(), [""; 0]);
}

#[test]
fn without_bus_mastering_nothing_is_accessed() {
    let mut machine = Machine::with(true);
    machine.client.memory.fill(0, MEMORY, 7);
    machine.client.set_command(COMMAND_MEMORY);
    machine.write(0, BASE, PAGE);
    assert!(machine.client.memory.is_filled(0, MEMORY, 7));
    // The driver may have turned it off because the device did not stop.
    assert_eq!(machine.log.lines(), [""; 0]);
}

#[test]
fn nothing_is_moved_after_a_reset() {
    let mut machine = Machine::new();
    machine.client.memory.fill(0, MEMORY, 7);
    machine.client.set64(registers::DELAY, 20_000);
    machine.start_write(0, BASE, PAGE);
    machine.client.reset_function();
    assert!(!machine.is_running(0));
    // One that follows is moved, and nothing of the other one.
    machine.start_write(0, BASE + PAGE, 1);
    machine.client.wait_for_interrupt();
    assert!(machine.client.memory.is_filled(0, PAGE, 7));
    assert_eq!(machine.client.bytes(PAGE, 2), [0, 7]);
    assert_eq!(machine.client.get64(registers::FINISHED), 1);
}

#[test]
fn the_end_of_a_transfer_before_a_reset_is_not_that_of_one_after_it() {
    let mut machine = Machine::new();
    machine.client.map_remote(REMOTE, vec![3; PAGE as usize]);
    machine.client.hold();
    machine.start_read(0, REMOTE, PAGE);
    eventually("a request", || machine.client.holds());
    machine.client.reset_function();
    machine.client.set64(registers::DELAY, LONG);
    machine.start_read(0, BASE, PAGE);
    machine.client.release();
    // The thread of the channel ends the first one before it begins another one.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(machine.is_running(0));
    assert_eq!(machine.client.get64(registers::FINISHED), 0);
}

#[test]
fn a_device_answers_registers_while_it_waits_for_the_client() {
    let mut machine = Machine::new();
    machine.client.map_remote(REMOTE, vec![3; PAGE as usize]);
    machine.client.hold();
    machine.start_read(0, REMOTE, PAGE);
    eventually("a request", || machine.client.holds());
    assert!(machine.is_running(0));
    machine.read(1, BASE, PAGE);
    machine.client.release();
    machine.finish(0);
    machine.write(0, BASE, PAGE);
    assert!(machine.client.memory.is_filled(0, PAGE, 3));
}

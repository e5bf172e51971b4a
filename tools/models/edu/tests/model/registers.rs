// SPDX-License-Identifier: GPL-2.0

//! The registers that QEMU's edu has as well, and the one by which the devices are told apart.

use client::CONFIG;
use edu::registers;
use vfio_user::memory::PAGE;

use crate::machine::Machine;

#[test]
fn the_device_says_what_it_is() {
    let mut machine = Machine::new();
    let client = &mut machine.client;
    assert_eq!(client.get(registers::IDENTIFICATION), 0x0100_00ed);
    let extension = client.get64(registers::EXTENSION);
    assert_eq!(extension.to_le_bytes()[..4], *b"EDUX");
    assert_eq!(extension >> 32, 4);
    let mut identity = [0; 4];
    client.read_region(CONFIG, 0, &mut identity).unwrap();
    assert_eq!(u32::from_le_bytes(identity), 0x11e8_1234);
    client.read_region(CONFIG, 9, &mut identity[..3]).unwrap();
    assert_eq!(identity[..3], [0x00, 0xff, 0x00]);
}

#[test]
fn it_is_alive() {
    let mut machine = Machine::new();
    machine.client.set(registers::LIVENESS, 0x1234_5678);
    assert_eq!(machine.client.get(registers::LIVENESS), !0x1234_5678);
}

#[test]
fn it_computes_factorials() {
    let mut machine = Machine::new();
    for (number, factorial) in [
        (0, 1),
        (5, 120),
        (13, 1_932_053_504),
        (33, 1 << 31),
        (34, 0),
        (u32::MAX, 0),
    ] {
        machine.client.set(registers::FACTORIAL, number);
        assert_eq!(
            machine.client.get(registers::FACTORIAL),
            factorial,
            "{number}"
        );
    }
    assert_eq!(machine.client.interrupts(), 0);
    machine.client.set(registers::STATUS, u32::MAX);
    assert_eq!(machine.client.get(registers::STATUS), 0x80);
    machine.client.set(registers::FACTORIAL, 3);
    machine.client.wait_for_interrupt();
    assert_eq!(machine.client.get(registers::INTERRUPT_STATUS), 1);
}

#[test]
fn interrupts_are_raised_and_acknowledged() {
    let mut machine = Machine::new();
    machine.client.set(registers::INTERRUPT_RAISE, 0x30);
    machine.client.wait_for_interrupt();
    machine.client.set(registers::INTERRUPT_RAISE, 0x40);
    machine.client.wait_for_interrupt();
    machine.client.set(registers::INTERRUPT_ACK, 0x50);
    assert_eq!(machine.client.get(registers::INTERRUPT_STATUS), 0x20);
    assert_eq!(machine.client.get(registers::INTERRUPT_RAISE), u32::MAX);
    assert_eq!(machine.client.interrupts(), 0);
}

#[test]
fn registers_have_their_width_and_the_rest_reads_as_ones() {
    let mut machine = Machine::new();
    let client = &mut machine.client;
    assert_eq!(client.get64(registers::IDENTIFICATION), u64::MAX);
    client.set64(registers::LIVENESS & !7, 7);
    assert_eq!(client.get(registers::LIVENESS), 0);
    for at in [
        0x0c,
        0x84,
        registers::BUFFER,
        registers::BUFFER + 8,
        registers::INJECT,
        registers::BYTES - 8,
    ] {
        assert_eq!(client.get(at), u32::MAX, "{at:#x}");
    }
    let mut two = [0; 2];
    client.read_region(0, 0, &mut two).unwrap();
    assert_eq!(two, [0xff; 2]);
    let source = Machine::of(0, registers::SOURCE);
    client.set64(source, 0x1234_5678_9abc_def0);
    assert_eq!(client.get(source), 0x9abc_def0);
    // As in QEMU's edu, 32 bits replace all of the register.
    client.set(source, 5);
    assert_eq!(client.get64(source), 5);
    // There is no channel behind the last one.
    client.set64(Machine::of(4, registers::SOURCE), 5);
    assert_eq!(client.get64(Machine::of(4, registers::SOURCE)), u64::MAX);
}

#[test]
fn a_reset_clears_registers() {
    let mut machine = Machine::new();
    let source = Machine::of(2, registers::SOURCE);
    machine.client.set64(source, PAGE);
    machine.client.set64(registers::DELAY, 70);
    machine.client.set(registers::STATUS, 0x80);
    machine.client.set(registers::INTERRUPT_RAISE, 1);
    machine.client.reset_function();
    assert_eq!(machine.client.get64(source), 0);
    assert_eq!(machine.client.get64(registers::DELAY), 0);
    assert_eq!(machine.client.get(registers::STATUS), 0);
    assert_eq!(machine.client.get(registers::INTERRUPT_STATUS), 0);
}

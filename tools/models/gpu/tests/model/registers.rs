// SPDX-License-Identifier: GPL-2.0

//! Registers and configuration space.

use client::CONFIG;
use gpu::registers;

use crate::machine::Machine;
use crate::machine::APERTURE;
use crate::machine::BASE;
use crate::machine::VRAM;

#[test]
fn the_device_says_what_it_is() {
    let mut machine = Machine::new();
    let client = &mut machine.client;
    assert_eq!(client.get(registers::ID), 0x5550_474d);
    assert_eq!(client.get(registers::VERSION), 1);
    assert_eq!(client.get64(registers::VRAM_SIZE), VRAM);
    assert_eq!(client.get(registers::VRAM_SIZE), VRAM as u32);
    assert_eq!(client.get64(registers::APERTURE_SIZE), APERTURE);
    assert_eq!(client.get(registers::RINGS), 2);
    assert_eq!(client.get(registers::CONTEXTS), 512);
    assert_eq!(client.get64(registers::RINGS), 2 | 512 << 32);
    let mut identity = [0; 4];
    client.read_region(CONFIG, 0, &mut identity).unwrap();
    assert_eq!(u32::from_le_bytes(identity), 0x11f0_1234);
    client.read_region(CONFIG, 9, &mut identity[..3]).unwrap();
    assert_eq!(identity[..3], [0x00, 0x80, 0x03]);
}

#[test]
fn sizes_may_be_large() {
    let mut machine = Machine::with(|options| options.vram = 64 << 30);
    let client = &mut machine.client;
    assert_eq!(client.get64(registers::VRAM_SIZE), 64 << 30);
    assert_eq!(client.get(registers::VRAM_SIZE), 0);
    assert_eq!(client.get(registers::VRAM_SIZE + 4), 16);
}

#[test]
fn what_is_read_only_stays() {
    let mut machine = Machine::new();
    let client = &mut machine.client;
    for register in (0..0x20).step_by(4) {
        let before = client.get(register);
        client.set(register, !before);
        assert_eq!(client.get(register), before);
    }
    client.set64(registers::VRAM_SIZE, 1);
    assert_eq!(client.get64(registers::VRAM_SIZE), VRAM);
}

#[test]
fn wide_registers_are_written_at_once_or_in_halves() {
    let mut machine = Machine::new();
    let client = &mut machine.client;
    let ring = Machine::of(1, registers::RING_BASE);
    for register in [
        registers::STATUS_PAGE,
        registers::CONTEXT_TABLE,
        registers::INVALIDATE_START,
        registers::INVALIDATE_SIZE,
        ring,
    ] {
        client.set64(register, 0x1234_5678_9abc_d000);
        assert_eq!(client.get64(register), 0x1234_5678_9abc_d000);
        client.set(register, 0x1111_0000);
        assert_eq!(client.get64(register), 0x1234_5678_1111_0000);
        client.set(register + 4, 0x22);
        assert_eq!(client.get64(register), 0x22_1111_0000);
        assert_eq!(client.get(register + 4), 0x22);
    }
}

#[test]
fn a_ring_has_a_size_that_it_may_have_or_is_off() {
    let mut machine = Machine::new();
    let client = &mut machine.client;
    let register = Machine::of(0, registers::RING_ENTRIES);
    for (written, read) in [
        (8, 8),
        (4096, 4096),
        (4, 0),
        (8192, 0),
        (12, 0),
        (u32::MAX, 0),
        (0, 0),
    ] {
        client.set(register, written);
        assert_eq!(client.get(register), read, "{written}");
    }
}

#[test]
fn the_rest_reads_as_zero() {
    let mut machine = Machine::new();
    let client = &mut machine.client;
    assert_eq!(
        client.get64(Machine::of(0, registers::RING_BASE)),
        BASE + crate::machine::RINGS[0]
    );
    for register in [
        0x044, 0x04c, 0x054, 0x058, 0x0fc, 0x10c, 0x140, 0x800, 0xffc,
    ] {
        client.set(register, 0);
        assert_eq!(client.get(register), 0, "{register:#x}");
    }
    // A part of a register, and one that is written in part.
    let mut byte = [0; 1];
    client.read_region(0, 2, &mut byte).unwrap();
    assert_eq!(byte, [0x50]);
    client
        .write_region(0, registers::STATUS_PAGE, &[1, 2])
        .unwrap();
    assert_eq!(
        client.get64(registers::STATUS_PAGE),
        BASE + crate::machine::STATUS
    );
}

// SPDX-License-Identifier: GPL-2.0

//! The copy engine.

use client::pattern;
use gpu::registers::error;

use crate::machine::Entry;
use crate::machine::Machine;
use crate::machine::Record;
use crate::machine::BASE;
use crate::machine::DATA;
use crate::machine::MEMORY;
use crate::machine::PIECE_IN_VRAM;
use crate::machine::VRAM;

const RING: usize = 0;

#[test]
fn pieces_of_any_size_are_copied() {
    let mut machine = Machine::new();
    let data = pattern(200_000, 1);
    machine.client.memory.write(DATA, &data);
    let there = machine.copy_list(
        &[
            (BASE + DATA, 1),
            (BASE + DATA + 1, 99_999),
            (BASE + DATA + 100_000, 100_000),
        ],
        &[
            (PIECE_IN_VRAM | 3, 4093),
            (PIECE_IN_VRAM | 2_000_000, 0),
            (PIECE_IN_VRAM | 1_000_001, 70_000),
            (PIECE_IN_VRAM | 8192, 500_000),
        ],
        data.len() as u64,
    );
    machine.run(RING, &[there]);
    assert_eq!(machine.vram(3, 4093), data[..4093]);
    assert_eq!(machine.vram(1_000_001, 70_000), data[4093..74_093]);
    assert_eq!(machine.vram(8192, 125_907), data[74_093..]);
    // Bytes behind the last one stay the same.
    assert_eq!(machine.vram(8192 + 125_907, 9), [0; 9]);
    let back = machine.copy_list(
        &[(PIECE_IN_VRAM | 8192, 125_907), (PIECE_IN_VRAM | 3, 4093)],
        &[(BASE + DATA + 500_001, 130_000)],
        130_000,
    );
    machine.run(RING, &[back]);
    let seen = machine.client.bytes(DATA + 500_001, 130_000);
    assert_eq!(seen[..125_907], data[74_093..]);
    assert_eq!(seen[125_907..], data[..4093]);
    assert!(machine.is_quiet());
}

#[test]
fn what_is_left_of_a_list_is_not_looked_at() {
    let mut machine = Machine::new();
    let entry = machine.copy_list(
        &[(BASE + DATA, 16), (1, u64::MAX)],
        &[(PIECE_IN_VRAM, 100), (u64::MAX, 5)],
        16,
    );
    machine.run(RING, &[entry]);
    let entry = machine.copy_list(&[], &[], 0);
    machine.run(RING, &[entry]);
    assert!(machine.is_quiet());
}

#[test]
fn a_pattern_goes_on_over_pieces() {
    let mut machine = Machine::new();
    machine.set_vram(0, &[0xee; 4096]);
    let entry = machine.fill_list(
        &[
            (PIECE_IN_VRAM | 1, 3),
            (BASE + DATA, 5),
            (PIECE_IN_VRAM | 100, 90_000),
        ],
        75_000,
        0x4433_2211,
    );
    machine.run(RING, &[entry]);
    assert_eq!(machine.vram(0, 5), [0xee, 0x11, 0x22, 0x33, 0xee]);
    let wanted: Vec<u8> = [0x11, 0x22, 0x33, 0x44]
        .into_iter()
        .cycle()
        .take(75_000)
        .collect();
    assert_eq!(machine.client.bytes(DATA, 5), wanted[3..8]);
    assert_eq!(machine.vram(100, 74_992), wanted[8..]);
    assert_eq!(machine.vram(100 + 74_992, 1), [0]);
}

#[test]
fn vram_is_cleared() {
    let mut machine = Machine::new();
    machine.set_vram(0, &[0xee; 50_000]);
    let entry = machine.fill_list(
        &[(PIECE_IN_VRAM | 77, 3), (PIECE_IN_VRAM | 5000, 40_000)],
        30_003,
        0,
    );
    machine.run(RING, &[entry]);
    let seen = machine.vram(0, 50_000);
    for (at, byte) in seen.iter().enumerate() {
        let inside = (77..80).contains(&at) || (5000..35_000).contains(&at);
        assert_eq!(*byte, if inside { 0 } else { 0xee }, "{at}");
    }
}

#[test]
fn large_vram_is_cleared_without_memory_of_the_host() {
    let mut machine = Machine::with(|options| options.vram = 64 << 30);
    let last = (64 << 30) - 8;
    machine.set_vram(last, &[1; 8]);
    let entry = machine.fill_list(&[(PIECE_IN_VRAM, 64 << 30)], 64 << 30, 0);
    machine.run(RING, &[entry]);
    assert_eq!(machine.vram(last, 8), [0; 8]);
}

fn record(error: u32, address: u64, write: u32) -> Record {
    Record {
        context: 0,
        ring: RING as u32,
        address,
        write,
        error,
        entry: 0,
    }
}

#[test]
fn what_is_outside_of_vram_faults() {
    let mut machine = Machine::new();
    let memory = [(BASE + DATA, 64)];
    for offset in [
        VRAM - 8,
        VRAM,
        1 << 40,
        PIECE_IN_VRAM - 8,
        PIECE_IN_VRAM - 1,
    ] {
        let outside = [(PIECE_IN_VRAM | offset, 64)];
        let entry = machine.copy_list(&outside, &memory, 64);
        assert_eq!(
            machine.fault(RING, entry),
            record(error::OUTSIDE, offset, 0)
        );
        let entry = machine.copy_list(&memory, &outside, 64);
        assert_eq!(
            machine.fault(RING, entry),
            record(error::OUTSIDE, offset, 1)
        );
        for pattern in [0, 7] {
            let entry = machine.fill_list(&outside, 64, pattern);
            assert_eq!(
                machine.fault(RING, entry),
                record(error::OUTSIDE, offset, 1)
            );
        }
    }
    assert!(machine.is_quiet());
}

#[test]
fn what_is_not_mapped_for_dma_faults_and_is_reported() {
    let mut machine = Machine::new();
    let vram = [(PIECE_IN_VRAM, 64)];
    let mut reports = 0;
    for (address, first) in [
        (BASE - 64, BASE - 64),
        (BASE + MEMORY - 8, BASE + MEMORY),
        (0, 0),
        (PIECE_IN_VRAM - 32, PIECE_IN_VRAM - 32),
    ] {
        let outside = [(address, 64)];
        let entry = machine.copy_list(&outside, &vram, 64);
        assert_eq!(machine.fault(RING, entry), record(error::DMA, first, 0));
        let entry = machine.copy_list(&vram, &outside, 64);
        assert_eq!(machine.fault(RING, entry), record(error::DMA, first, 1));
        reports += 2;
        assert_eq!(machine.reports(), reports);
    }
    // So does a list, and the entry itself.
    let entry = Entry::new(16).with(24, 1).with(28, 1).wide(32, 1);
    assert_eq!(machine.fault(RING, entry), record(error::DMA, 0, 0));
    let lines = machine.slot.log.lines();
    assert_eq!(lines.len() as u32, reports + 1);
    assert_eq!(
        lines[0],
        format!(
            "gpu: ring 0, entry 0: read of {:#x}, which is not mapped for DMA",
            BASE - 64
        )
    );
}

#[test]
fn entries_that_are_not_allowed_fault() {
    let mut machine = Machine::new();
    let copy = machine.copy_list(&[(BASE + DATA, 64)], &[(PIECE_IN_VRAM, 64)], 64);
    let entries = [
        // Operations that no ring has, or only the other one.
        Entry::new(4),
        Entry::new(18),
        Entry::new(u32::MAX),
        Entry::copy(0, 0, 0),
        Entry::atomic_add(0, 0),
        // Lists that are too short, and one of another context.
        copy.with(24, 0),
        copy.with(28, 0),
        copy.wide(32, 65),
        copy.wide(32, u64::MAX),
        copy.context(1),
        // Flags that a fence does not have, and addresses that are not aligned.
        Entry::fence(1).with(16, 2),
        Entry::acquire(BASE + 4, 0),
        Entry::release(BASE + 1, 0),
        Entry::nop().context(512),
    ];
    for entry in entries {
        let record = machine.fault(RING, entry);
        assert_eq!(record.error, error::OPERATION);
    }
    assert!(machine.is_quiet());
    machine.run(RING, &[copy]);
}

// SPDX-License-Identifier: GPL-2.0

//! The compute engine, page tables and translations that are kept.

use client::eventually;
use client::pattern;
use gpu::registers::error;
use vfio_user::memory::PAGE;

use crate::machine::Entry;
use crate::machine::Machine;
use crate::machine::Record;
use crate::machine::BASE;
use crate::machine::CONTEXTS;
use crate::machine::DATA;
use crate::machine::IN_VRAM;
use crate::machine::LEAF;
use crate::machine::READ_ONLY;
use crate::machine::SEMAPHORE;
use crate::machine::VALID;
use crate::machine::VRAM;

const RING: usize = 1;
/// Virtual addresses: of memory, of VRAM, of 2 MiB of VRAM, and the last page.
const SYSTEM: u64 = 0x12_3456_7000;
const LOCAL: u64 = 0x40_0000_0000;
const HUGE: u64 = 0x7f_8000_0000;
const TOP: u64 = (1 << 39) - PAGE;

/// A machine whose context 1 has 16 pages of memory and of VRAM, in reverse order, and 2 MiB of
/// VRAM.
fn machine() -> Machine {
    let mut machine = Machine::new();
    for page in 0..16 {
        let place = (15 - page) * PAGE;
        machine.map(SYSTEM + page * PAGE, BASE + DATA + place, 0, 1);
        machine.map(LOCAL + page * PAGE, place, IN_VRAM, 1);
    }
    machine.set_entry(1, HUGE, 1, (2 << 20) | VALID | LEAF | IN_VRAM);
    machine.map(TOP, BASE + SEMAPHORE, 0, 1);
    machine
}

/// The content at the virtual addresses of the 16 pages of memory.
fn seen(machine: &Machine, inside: u64, bytes: u64) -> Vec<u8> {
    (inside..inside + bytes)
        .map(|at| {
            let place = DATA + (15 - at / PAGE) * PAGE + at % PAGE;
            machine.client.bytes(place, 1)[0]
        })
        .collect()
}

#[test]
fn copies_go_by_virtual_addresses() {
    let mut machine = machine();
    let data = pattern(16 * PAGE, 3);
    for page in 0..16 {
        let part = &data[(page * PAGE) as usize..][..PAGE as usize];
        machine.client.memory.write(DATA + (15 - page) * PAGE, part);
    }
    let bytes = 14 * PAGE;
    machine.run(
        RING,
        &[
            Entry::copy(SYSTEM + 77, LOCAL + 3000, bytes),
            Entry::copy(LOCAL + 3000, HUGE + (1 << 20) - 5, bytes),
        ],
    );
    let wanted = &data[77..77 + bytes as usize];
    assert_eq!(machine.vram((3 << 20) - 5, bytes), wanted);
    // VRAM is in reverse order too.
    assert_eq!(
        machine.vram(15 * PAGE + 3000, PAGE - 3000),
        wanted[..(PAGE - 3000) as usize]
    );
    machine.run(
        RING,
        &[Entry::copy(HUGE + (1 << 20) - 5, SYSTEM + 1, bytes)],
    );
    assert_eq!(seen(&machine, 1, bytes), wanted);
    assert_eq!(
        seen(&machine, 1 + bytes, 5),
        data[1 + bytes as usize..][..5]
    );
    assert!(machine.is_quiet());
}

#[test]
fn fill_checksum_and_add() {
    let mut machine = machine();
    let (at, bytes) = (SYSTEM + 2 * PAGE - 8, 3 * PAGE);
    machine.run(
        RING,
        &[
            Entry::fill(at, bytes, 0x8000_0001),
            Entry::checksum(at, LOCAL + 12, bytes),
            Entry::checksum(at, LOCAL + 100, 0),
            Entry::atomic_add(LOCAL + 8, 5 << 32),
            Entry::atomic_add(SYSTEM + 8, u64::MAX),
            Entry::fill(LOCAL + PAGE, 0, 1),
        ],
    );
    assert_eq!(
        seen(&machine, 2 * PAGE - 12, 8),
        [0, 0, 0, 0, 1, 0, 0, 0x80]
    );
    assert_eq!(
        seen(&machine, 5 * PAGE - 12, 8),
        [1, 0, 0, 0x80, 0, 0, 0, 0]
    );
    let sum = (u64::from(0x8000_0001_u32) * (bytes / 4)).to_le_bytes();
    let vram = machine.vram(15 * PAGE, 120);
    // The add came to the upper half of the first word, of which the sum has the lower half.
    let low = u64::from_le_bytes(vram[8..16].try_into().unwrap());
    let first = u64::from(u32::from_le_bytes(sum[..4].try_into().unwrap()));
    assert_eq!(low, (first << 32).wrapping_add(5 << 32));
    assert_eq!(vram[16..20], sum[4..]);
    assert_eq!(vram[100..108], [0; 8]);
    assert_eq!(seen(&machine, 8, 8), u64::MAX.to_le_bytes());
    assert!(machine.is_quiet());
}

#[test]
fn semaphores_have_virtual_addresses() {
    let mut machine = machine();
    machine.submit(
        RING,
        &[
            Entry::acquire(TOP, 3).context(1),
            Entry::release(LOCAL, 9).context(1),
            Entry::release(BASE + SEMAPHORE + 8, 4),
            Entry::fence(1),
        ],
    );
    machine.run(0, &[Entry::release(BASE + SEMAPHORE, 2)]);
    assert_eq!((machine.done(RING), machine.fence_value(RING)), (0, 0));
    machine.run(0, &[Entry::release(BASE + SEMAPHORE, 4)]);
    eventually("the fence", || machine.fence_value(RING) == 1);
    assert_eq!(machine.load(SEMAPHORE + 8), 4);
    assert_eq!(machine.vram(15 * PAGE, 8), 9_u64.to_le_bytes());
}

fn record(error: u32, address: u64, write: u32) -> Record {
    Record {
        context: 1,
        ring: RING as u32,
        address,
        write,
        error,
        entry: 0,
    }
}

#[test]
fn addresses_that_are_not_mapped_fault() {
    let mut machine = machine();
    machine.set_entry(1, LOCAL + 20 * PAGE, 2, VALID);
    machine.set_entry(1, HUGE + (2 << 20), 1, PAGE | VALID | LEAF | IN_VRAM);
    for address in [
        0,
        SYSTEM + 16 * PAGE,
        LOCAL + 20 * PAGE,
        HUGE + (2 << 20),
        1 << 39,
        u64::MAX - 63,
    ] {
        let read = Entry::checksum(address, LOCAL, 64);
        assert_eq!(
            machine.fault(RING, read),
            record(error::NOT_MAPPED, address, 0)
        );
        let write = Entry::fill(address, 64, 0);
        assert_eq!(
            machine.fault(RING, write),
            record(error::NOT_MAPPED, address, 1)
        );
    }
    // A range that runs out of what is mapped, and one out of all addresses.
    let entry = Entry::fill(SYSTEM + 15 * PAGE, 2 * PAGE, 1);
    let first = record(error::NOT_MAPPED, SYSTEM + 16 * PAGE, 1);
    assert_eq!(machine.fault(RING, entry), first);
    assert_eq!(seen(&machine, 15 * PAGE, 4), [1, 0, 0, 0]);
    let entry = Entry::fill(TOP, 2 * PAGE, 1);
    assert_eq!(
        machine.fault(RING, entry),
        record(error::NOT_MAPPED, 1 << 39, 1)
    );
    // A context without tables, and no contexts at all.
    let entry = Entry::fill(SYSTEM, 64, 0).context(2);
    assert_eq!(machine.fault(RING, entry).error, error::NOT_MAPPED);
    machine.client.set64(gpu::registers::CONTEXT_TABLE, 0);
    let entry = Entry::fill(LOCAL + 5 * PAGE, 64, 0);
    assert_eq!(machine.fault(RING, entry).error, error::NOT_MAPPED);
    assert!(machine.is_quiet());
}

#[test]
fn reserved_bits_are_reported_and_nothing_is_mapped() {
    let at = LOCAL + 32 * PAGE;
    for bit in [4, 11, 52, 62, 63] {
        // In a page, in both pointers to tables, and in the root.
        for level in [2, 1, 0, u32::MAX] {
            let mut machine = machine();
            machine.map(at, 0, IN_VRAM, 1);
            let place = match level {
                u32::MAX => CONTEXTS + 8,
                level => machine.slot_of(1, at, level),
            };
            let entry = machine.load(place) | 1 << bit;
            machine.client.memory.store(place, entry);
            let read = Entry::checksum(at, SYSTEM, 8);
            let wanted = record(error::NOT_MAPPED, at, 0);
            assert_eq!(machine.fault(RING, read), wanted);
            let lines = machine.slot.log.lines();
            let place = BASE + place;
            let says = format!("the entry or root {entry:#x} at {place:#x} has reserved bits");
            assert_eq!(lines, [format!("gpu: ring 1, entry 0: {says}")]);
        }
    }
    // An entry that is not valid may have any.
    let mut machine = machine();
    machine.set_entry(1, at, 2, !VALID);
    machine.fault(RING, Entry::checksum(at, SYSTEM, 8));
    assert!(machine.is_quiet());
}

#[test]
fn what_is_read_only_is_not_written() {
    let mut machine = machine();
    machine.map(LOCAL + 16 * PAGE, 0, IN_VRAM | READ_ONLY, 1);
    let at = LOCAL + 16 * PAGE;
    machine.run(RING, &[Entry::copy(at, SYSTEM, 64)]);
    machine.reset(1 << RING);
    machine.begin_again();
    for entry in [
        Entry::fill(at, 64, 0),
        Entry::copy(SYSTEM, at, 64),
        Entry::atomic_add(at, 1),
        Entry::release(at, 1).context(1),
        Entry::checksum(SYSTEM, at, 4),
    ] {
        assert_eq!(machine.fault(RING, entry), record(error::READ_ONLY, at, 1));
    }
    assert!(machine.is_quiet());
}

#[test]
fn pages_may_be_outside_of_vram_or_not_mapped_for_dma() {
    let mut machine = machine();
    machine.map(LOCAL + 16 * PAGE, VRAM, IN_VRAM, 1);
    machine.map(SYSTEM + 16 * PAGE, BASE - PAGE, 0, 1);
    let at = LOCAL + 16 * PAGE + 8;
    let entry = Entry::copy(at, SYSTEM, 8);
    assert_eq!(machine.fault(RING, entry), record(error::OUTSIDE, at, 0));
    assert_eq!(machine.reports(), 0);
    let at = SYSTEM + 16 * PAGE + 8;
    let entry = Entry::atomic_add(at, 8);
    assert_eq!(machine.fault(RING, entry), record(error::DMA, at, 1));
    assert_eq!(machine.reports(), 1);
    // So may be the tables.
    machine.client.memory.store(CONTEXTS + 16, BASE - PAGE);
    let entry = Entry::fill(8 << 30, 8, 0).context(2);
    let wanted = Record {
        context: 2,
        ..record(error::DMA, BASE - PAGE + 64, 0)
    };
    assert_eq!(machine.fault(RING, entry), wanted);
    assert_eq!(machine.reports(), 2);
}

#[test]
fn entries_that_are_not_allowed_fault() {
    let mut machine = machine();
    for entry in [
        Entry::new(16),
        Entry::new(17),
        Entry::new(36),
        Entry::fill(LOCAL, 62, 0),
        Entry::checksum(LOCAL, SYSTEM, 2),
        Entry::atomic_add(LOCAL + 4, 0),
        Entry::fill(LOCAL, 64, 0).context(0),
        Entry::fill(LOCAL, 64, 0).context(512),
        Entry::fill(LOCAL, 64, 0).context(u32::MAX),
        Entry::acquire(LOCAL, 0).context(512),
    ] {
        assert_eq!(machine.fault(RING, entry).error, error::OPERATION);
    }
    assert!(machine.is_quiet());
}

/// A machine that has used the first page of VRAM at LOCAL, whose entry is another one by now.
fn moved() -> Machine {
    let mut machine = Machine::new();
    machine.map(LOCAL, 0, IN_VRAM, 1);
    machine.map(LOCAL + (4 << 20), 0, IN_VRAM, 1);
    machine.run(RING, &[Entry::fill(LOCAL, 8, 1)]);
    machine.map(LOCAL, PAGE, IN_VRAM, 1);
    machine
}

#[test]
fn a_translation_is_kept_and_its_use_is_reported() {
    let mut machine = moved();
    machine.run(RING, &[Entry::fill(LOCAL, 8, 2), Entry::fill(LOCAL, 4, 3)]);
    assert_eq!(machine.vram(0, 8), [3, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(machine.vram(PAGE, 8), [0; 8]);
    assert_eq!(machine.reports(), 1);
    assert_eq!(
        machine.slot.log.lines(),
        [format!(
            "gpu: ring 1, entry 2: {LOCAL:#x} of context 1 changed without INVALIDATE"
        )]
    );
}

#[test]
fn a_translation_goes_with_an_invalidate_that_covers_it() {
    for (context, start, bytes, covers) in [
        (1, LOCAL, PAGE, true),
        (1, LOCAL + PAGE - 1, 1, true),
        (1, 0, u64::MAX, true),
        (1, 8, u64::MAX - 3, true),
        (2, 0, u64::MAX, false),
        (1, LOCAL, 0, false),
        (1, LOCAL - PAGE, PAGE, false),
        (1, LOCAL + PAGE, u64::MAX, false),
        (600, LOCAL, PAGE, false),
    ] {
        let mut machine = moved();
        machine.invalidate(context, start, bytes);
        machine.run(RING, &[Entry::fill(LOCAL, 8, 2)]);
        let page = if covers { PAGE } else { 0 };
        assert_eq!(machine.vram(page, 4), [2, 0, 0, 0], "{start:#x}+{bytes:#x}");
        assert_eq!(machine.reports(), u32::from(!covers));
    }
}

#[test]
fn an_invalidate_of_no_bytes_keeps_the_first_page_too() {
    let mut machine = Machine::new();
    machine.map(0, 0, IN_VRAM, 1);
    machine.run(RING, &[Entry::fill(0, 8, 1)]);
    machine.map(0, PAGE, IN_VRAM, 1);
    machine.invalidate(1, 0, 0);
    machine.run(RING, &[Entry::fill(0, 8, 2)]);
    assert_eq!(machine.vram(0, 4), [2, 0, 0, 0]);
    assert_eq!(machine.reports(), 1);
}

#[test]
fn a_translation_whose_table_is_gone_is_reported() {
    let mut machine = moved();
    machine.map(LOCAL, 0, IN_VRAM, 1);
    machine.client.memory.store(CONTEXTS + 8, BASE - PAGE);
    machine.run(RING, &[Entry::fill(LOCAL, 8, 2)]);
    assert_eq!(machine.vram(0, 4), [2, 0, 0, 0]);
    assert_eq!(machine.reports(), 1);
}

#[test]
fn a_reset_of_the_device_forgets_translations() {
    let mut machine = moved();
    machine.reset(1 << 31);
    let (status, contexts) = (machine.load(0), machine.load(CONTEXTS + 8));
    assert_ne!((status, contexts), (0, 0));
    machine
        .client
        .set64(gpu::registers::CONTEXT_TABLE, BASE + CONTEXTS);
    machine.client.set64(gpu::registers::STATUS_PAGE, BASE);
    for ring in 0..2 {
        let base = BASE + crate::machine::RINGS[ring];
        let (register, size) = (
            Machine::of(ring, gpu::registers::RING_BASE),
            Machine::of(ring, gpu::registers::RING_ENTRIES),
        );
        machine.client.set64(register, base);
        machine.client.set(size, crate::machine::ENTRIES);
    }
    machine.begin_again();
    machine.run(RING, &[Entry::fill(LOCAL, 8, 2)]);
    assert_eq!(machine.vram(PAGE, 4), [2, 0, 0, 0]);
    assert!(machine.is_quiet());
}

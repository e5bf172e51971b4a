// SPDX-License-Identifier: GPL-2.0

//! The bus: memory that is mapped, memory behind the client, other devices, and wrong addresses.

use std::sync::Arc;

use client::eventually;
use client::pattern;
use client::COMMAND_MEMORY;
use client::COMMAND_ON;
use gpu::registers;
use gpu::registers::error;
use vfio_user::memory::PAGE;
use vfio_user::switch::Switch;

use crate::machine::Entry;
use crate::machine::Machine;
use crate::machine::Slot;
use crate::machine::APERTURE;
use crate::machine::BASE;
use crate::machine::DATA;
use crate::machine::MEMORY;
use crate::machine::PIECE_IN_VRAM;
use crate::machine::SEMAPHORE;

/// Bus addresses of memory that only the client reaches, and of apertures.
const REMOTE: u64 = 0x50_0000_0000;
const BARS: [u64; 2] = [0x60_0000_0000, 0x70_0000_0000];
const BYTES: u64 = 200_000;

/// Copies from VRAM to an address and back to another place in VRAM.
fn there_and_back(machine: &mut Machine, address: u64) {
    let data = pattern(BYTES, address);
    machine.set_vram(0, &data);
    let vram = |offset: u64| [(PIECE_IN_VRAM | offset, BYTES)];
    let there = machine.copy_list(&vram(0), &[(address + 5, BYTES)], BYTES);
    machine.run(0, &[there]);
    let back = machine.copy_list(&[(address + 5, BYTES)], &vram(1 << 20), BYTES);
    machine.run(0, &[back]);
    assert!(machine.vram(1 << 20, BYTES) == data);
}

#[test]
fn memory_behind_the_client_is_accessed_by_messages() {
    for strict in [false, true] {
        let mut machine = Machine::with(|options| options.strict = strict);
        machine.client.map_remote(REMOTE, vec![0; 1 << 20]);
        there_and_back(&mut machine, REMOTE);
        let remote = machine.client.remote(REMOTE);
        assert!(remote[5..5 + BYTES as usize] == pattern(BYTES, REMOTE));
        assert!(machine.is_quiet());
    }
}

#[test]
fn semaphores_may_be_behind_the_client() {
    let mut machine = Machine::new();
    machine.client.map_remote(REMOTE, vec![0; PAGE as usize]);
    machine.submit(0, &[Entry::acquire(REMOTE + 8, 6), Entry::fence(1)]);
    machine.map(0, REMOTE, 0, 1);
    machine.run(1, &[Entry::nop()]);
    assert_eq!(machine.done(0), 0);
    machine.run(1, &[Entry::release(REMOTE + 8, 2), Entry::atomic_add(8, 4)]);
    eventually("the fence", || machine.fence_value(0) == 1);
    assert_eq!(machine.client.remote(REMOTE)[8..16], 6_u64.to_le_bytes());
}

#[test]
fn only_without_an_iommu_is_the_client_asked_for_what_is_not_mapped() {
    let mut machine = Machine::new();
    machine.client.keep_remote(REMOTE, vec![0; 1 << 20]);
    there_and_back(&mut machine, REMOTE);
    assert!(machine.is_quiet());

    let mut machine = Machine::with(|options| options.strict = true);
    machine.client.keep_remote(REMOTE, vec![0; 1 << 20]);
    let entry = machine.fill_list(&[(REMOTE, 64)], 64, 1);
    let record = machine.fault(0, entry);
    assert_eq!((record.error, record.address), (error::DMA, REMOTE));
    assert_eq!(machine.reports(), 1);
    assert!(machine.client.remote(REMOTE).iter().all(|&byte| byte == 0));
}

#[test]
fn a_device_answers_registers_while_it_does_dma() {
    let mut machine = Machine::new();
    machine.client.map_remote(REMOTE, vec![0; 1 << 20]);
    let pieces: Vec<(u64, u64)> = (0..40).map(|_| (REMOTE, 1 << 20)).collect();
    let entry = machine.fill_list(&pieces, 40 << 20, 0x0202_0202);
    machine.submit(0, &[entry, Entry::fence(1)]);
    let mut reads = 0;
    while machine.fence_value(0) != 1 {
        assert_eq!(machine.client.get(registers::ID), registers::MAGIC);
        reads += 1;
    }
    assert!(reads > 0);
    assert_eq!(machine.client.remote(REMOTE)[0], 2);
}

#[test]
fn nothing_is_accessed_once_it_is_unmapped() {
    let mut machine = Machine::with(|options| options.strict = true);
    machine.fill_for_long();
    machine.client.unmap(BASE + DATA, MEMORY - DATA);
    machine.client.memory.fill(DATA, 1 << 20, 0);
    eventually("a fault", || machine.error(0) == error::DMA);
    assert!(machine.client.memory.is_filled(DATA, 1 << 20, 0));
    assert_eq!(machine.reports(), 1);
    // Memory that is mapped again can be accessed again.
    machine.client.map(BASE + DATA, DATA, MEMORY - DATA);
    machine.reset(1);
    machine.begin_again();
    let entry = machine.fill_list(&[(BASE + DATA, 64)], 64, 7);
    machine.run(0, &[entry]);
    assert_eq!(machine.load(DATA), 7 << 32 | 7);
}

#[test]
fn without_bus_mastering_nothing_is_accessed() {
    let mut machine = Machine::new();
    machine.client.set_command(COMMAND_MEMORY);
    machine.submit(0, &[Entry::fence(3)]);
    machine.client.wait_for_interrupt();
    assert_eq!((machine.fence_value(0), machine.done(0)), (0, 0));
    assert!(machine.reports() > 0);
    assert_eq!(
        machine.slot.log.lines()[0],
        format!(
            "gpu: ring 0, entry 0: read of {:#x} with bus mastering off",
            BASE + crate::machine::RINGS[0]
        )
    );
    machine.client.set_command(COMMAND_ON);
    machine.reset(1);
    machine.begin_again();
    machine.run(0, &[Entry::nop()]);
}

/// Two devices below a switch whose apertures are on the bus.
fn pair(strict: bool) -> [Machine; 2] {
    let switch: Arc<Switch> = Arc::default();
    BARS.map(|bar| {
        let slot = Slot::new(&switch, |options| options.strict = strict);
        let mut machine = Machine::plug(slot);
        machine.client.set_bar(2, bar);
        machine
    })
}

#[test]
fn an_engine_accesses_what_another_device_shows() {
    let [mut a, mut b] = pair(false);
    for page in 0..100 {
        b.show(page, Some(200 - page));
    }
    there_and_back(&mut a, BARS[1]);
    let data = pattern(BYTES, BARS[1]);
    assert!(b.vram(199 * PAGE, PAGE) == data[PAGE as usize - 5..2 * PAGE as usize - 5]);
    assert!(a.is_quiet() && b.is_quiet());
    // Both at once, each with the other.
    for page in 0..100 {
        a.show(page, Some(600 - page));
    }
    let repeated = |to: u64| -> Vec<(u64, u64)> { (0..50).map(|_| (to, 400_000)).collect() };
    let entries = [
        a.copy_list(
            &[(PIECE_IN_VRAM | (500 * PAGE), 20 << 20)],
            &repeated(BARS[1]),
            20 << 20,
        ),
        b.copy_list(
            &[(PIECE_IN_VRAM | (100 * PAGE), 20 << 20)],
            &repeated(BARS[0]),
            20 << 20,
        ),
    ];
    // VRAM is smaller: it ends in a fault, if at all.
    a.submit(0, &entries[..1]);
    b.submit(0, &entries[1..]);
    eventually("both", || {
        a.error(0) == error::OUTSIDE && b.error(0) == error::OUTSIDE
    });
}

#[test]
fn a_word_in_another_device_is_accessed_at_once() {
    let [mut a, mut b] = pair(false);
    b.show(3, Some(3));
    a.map(0, BARS[1] + 3 * PAGE, 0, 1);
    let bar = b.aperture();
    bar.store(3 * PAGE + 16, 40);
    a.run(
        1,
        &[
            Entry::atomic_add(16, 2),
            Entry::acquire(BARS[1] + 3 * PAGE + 16, 42),
            Entry::release(BARS[1] + 3 * PAGE + 24, 43),
        ],
    );
    assert_eq!((bar.load(3 * PAGE + 16), bar.load(3 * PAGE + 24)), (42, 43));
}

#[test]
fn a_write_to_what_another_device_does_not_show_is_found() {
    let [mut a, mut b] = pair(false);
    let entry = a.fill_list(&[(BARS[1] + APERTURE - 8, 8)], 8, 1);
    a.run(0, &[entry]);
    b.client.set(registers::CHECK, 0);
    assert_eq!((a.reports(), b.reports()), (0, 1));
}

#[test]
fn a_device_is_where_its_bar_says() {
    let [mut a, mut b] = pair(false);
    b.show(0, Some(0));
    let bar = b.aperture();
    let write = |a: &mut Machine, address: u64| {
        let entry = a.fill_list(&[(address, 8)], 8, 5);
        a.fault(0, entry).error
    };
    assert_eq!(write(&mut a, BARS[1] - 8), error::DMA);
    assert_eq!(write(&mut a, BARS[1] + APERTURE), error::DMA);
    b.client.set_command(0);
    assert_eq!(write(&mut a, BARS[1]), error::DMA);
    b.client.set_command(COMMAND_ON);
    b.client.set_bar(2, BARS[1] + APERTURE);
    assert_eq!(write(&mut a, BARS[1]), error::DMA);
    assert!(bar.is_filled(0, PAGE, 0));
    let entry = a.fill_list(&[(BARS[1] + APERTURE, 8)], 8, 5);
    a.run(0, &[entry]);
    assert_eq!(bar.load(0), 5 << 32 | 5);
    let slot = b.unplug();
    assert_eq!(write(&mut a, BARS[1] + APERTURE), error::DMA);
    assert!(slot.log.lines().is_empty());
}

#[test]
fn behind_an_iommu_addresses_are_not_those_of_the_switch() {
    let [mut a, mut b] = pair(true);
    b.show(0, Some(0));
    let entry = a.fill_list(&[(BARS[1], 8)], 8, 5);
    assert_eq!(a.fault(0, entry).error, error::DMA);
    assert!(b.aperture().is_filled(0, PAGE, 0));
    a.client.memory.store(SEMAPHORE, 0);
    a.client.map(BARS[1], SEMAPHORE, PAGE);
    a.run(0, &[entry]);
    assert_eq!(a.load(SEMAPHORE), 5 << 32 | 5);
}

// SPDX-License-Identifier: GPL-2.0

//! Plugging, reset and removal of a device.

use std::sync::atomic::Ordering;

use client::eventually;
use gpu::registers;
use gpu::registers::inject;
use gpu::registers::status;
use vfio_user::memory::PAGE;
use vfio_user::message::command;
use vfio_user::message::Body;

use crate::machine::Entry;
use crate::machine::Machine;
use crate::machine::APERTURE;
use crate::machine::BASE;
use crate::machine::DATA;
use crate::machine::IN_VRAM;
use crate::machine::LEAF;
use crate::machine::SEMAPHORE;
use crate::machine::STATUS;
use crate::machine::VALID;

/// Makes sure that a device is as after power-on, and works.
fn is_fresh(machine: &mut Machine) {
    let client = &mut machine.client;
    for register in [
        registers::STATUS_PAGE,
        registers::CONTEXT_TABLE,
        Machine::of(1, registers::RING_BASE),
        Machine::of(1, registers::RING_ENTRIES),
    ] {
        assert_eq!(client.get64(register), 0);
    }
    machine.finish_reset();
    assert!(machine.aperture().is_filled(0, APERTURE, 0xa5));
    machine.start();
    for ring in 0..2 {
        machine.run(ring, &[Entry::nop()]);
    }
    assert!(machine.is_quiet());
}

#[test]
fn a_function_level_reset_resets_the_device() {
    let mut machine = Machine::new();
    machine.show(0, Some(0));
    machine.inject(inject::HANG, 0, 0);
    machine.submit(0, &[Entry::nop()]);
    machine.client.reset_function();
    is_fresh(&mut machine);
}

#[test]
fn a_device_in_d3_loses_its_state_and_vram() {
    let mut machine = Machine::new();
    machine.set_vram(7 * PAGE, &[1; 64]);
    machine.show(0, Some(7));
    machine.inject(inject::HANG, 0, 0);
    machine.submit(0, &[Entry::nop()]);
    assert_eq!(machine.client.get(registers::POWER_LOSSES), 0);
    machine.client.lose_power();
    is_fresh(&mut machine);
    assert_eq!(machine.client.get(registers::POWER_LOSSES), 1);
    assert_eq!(machine.vram(7 * PAGE, 64), [0xa5; 64]);
    assert!(machine.is_quiet());
}

#[test]
fn vram_survives_a_function_level_reset() {
    let mut machine = Machine::new();
    machine.set_vram(7 * PAGE, &[1; 64]);
    machine.show(0, Some(7));
    machine.client.reset_function();
    is_fresh(&mut machine);
    assert_eq!(machine.vram(7 * PAGE, 64), [1; 64]);
}

#[test]
fn the_client_resets_the_device() {
    let mut machine = Machine::new();
    machine.show(0, Some(0));
    machine.submit(1, &[Entry::acquire(BASE + SEMAPHORE, 1)]);
    machine
        .client
        .ask(command::DEVICE_RESET, Body::default(), None)
        .unwrap();
    is_fresh(&mut machine);
}

#[test]
fn there_is_no_dma_after_a_reset_by_the_client() {
    let mut machine = Machine::new();
    machine.fill_for_long();
    machine
        .client
        .ask(command::DEVICE_RESET, Body::default(), None)
        .unwrap();
    // At once, and not only when the reset is done.
    machine.client.memory.fill(DATA, 1 << 20, 0);
    machine.finish_reset();
    assert!(machine.client.memory.is_filled(DATA, 1 << 20, 0));
    is_fresh(&mut machine);
}

#[test]
fn a_device_is_unplugged_and_plugged_in_again() {
    let mut machine = Machine::new();
    for round in 0..3 {
        machine.show(round, Some(7));
        machine.run(0, &[Entry::nop()]);
        machine.inject(inject::HANG, 0, 0);
        machine.submit(0, &[Entry::nop()]);
        machine.submit(1, &[Entry::acquire(BASE + SEMAPHORE, 1)]);
        let slot = machine.unplug();
        machine = Machine::plug(slot);
        assert!(machine.aperture().is_filled(0, APERTURE, 0xa5));
        machine.run(0, &[Entry::nop()]);
        machine.run(1, &[Entry::nop()]);
        assert_eq!(machine.resets(0), 0);
        assert_eq!(machine.slot.log.lines(), [""; 0]);
    }
}

#[test]
fn a_client_may_go_while_it_is_asked_for_something() {
    let mut machine = Machine::new();
    let remote = 0x50_0000_0000;
    machine.client.map_remote(remote, vec![0; 1 << 20]);
    let pieces: Vec<(u64, u64)> = (0..60).map(|_| (remote, 1 << 20)).collect();
    let entry = machine.fill_list(&pieces, 60 << 20, 0x0101_0101);
    machine.submit(0, &[entry]);
    eventually("the fill", || machine.client.remote(remote)[0] != 0);
    let mut machine = Machine::plug(machine.unplug());
    machine.run(0, &[Entry::nop()]);
    assert!(machine.is_quiet());
}

#[test]
fn a_reset_of_the_device_drops_invalidates() {
    let mut machine = Machine::new();
    let remote = 0x50_0000_0000;
    machine.client.map_remote(remote, vec![0; PAGE as usize]);
    machine.client.set64(registers::STATUS_PAGE, remote);
    machine.client.hold();
    machine.start_invalidate(1, 0, PAGE, 1);
    eventually("a request", || machine.client.holds());
    machine.start_invalidate(1, 0, PAGE, 2);
    machine.client.set(registers::RESET, registers::RESET_ALL);
    // The page is there again before the second one could be done.
    machine.start();
    machine.client.release();
    machine.finish_reset();
    assert_eq!(machine.load32(STATUS + status::INVALIDATED), 0);
    machine.invalidate(1, 0, PAGE);
    assert!(machine.is_quiet());
}

#[test]
fn the_client_is_answered_while_it_does_not_answer() {
    let mut machine = Machine::new();
    let remote = 0x50_0000_0000;
    machine.client.map_remote(remote, vec![0; PAGE as usize]);
    machine.client.set64(registers::STATUS_PAGE, remote);
    machine.client.hold();
    machine.submit(0, &[Entry::new(99)]);
    machine.start_invalidate(1, 0, PAGE, 1);
    eventually("a request", || machine.client.holds());
    let client = &mut machine.client;
    assert_eq!(client.get(registers::ID), registers::MAGIC);
    client.set(registers::CHECK, 0);
    client.set(registers::RESET, 1);
    client.unmap(remote, PAGE);
    machine.client.reset_function();
    let client = &mut machine.client;
    let reset = client.ask(command::DEVICE_RESET, Body::default(), None);
    assert!(reset.is_ok());
    client.release();
    is_fresh(&mut machine);
}

#[test]
fn a_device_is_removed_by_surprise() {
    let mut machine = Machine::new();
    let aperture = machine.aperture();
    machine.show(5, Some(5));
    machine.submit(1, &[Entry::acquire(BASE + SEMAPHORE, 1), Entry::fence(9)]);
    machine.inject(inject::REMOVE, 0, 0);
    assert!(machine.client.is_closed());
    eventually("poison", || aperture.is_filled(0, APERTURE, 0xa5));
    machine.client.memory.store(SEMAPHORE, 1);
    // A driver cannot detect that it is gone before it reads.
    aperture.write(9 * PAGE, &[1]);
    let slot = machine.unplug();
    assert!(slot.log.lines().is_empty());
    assert_eq!(slot.removals.load(Ordering::SeqCst), 1);
    let mut machine = Machine::plug(slot);
    assert!(aperture.is_filled(0, APERTURE, 0xa5));
    machine.run(0, &[Entry::nop()]);
    machine.client.set(registers::CHECK, 0);
    assert!(machine.is_quiet());
}

#[test]
fn a_client_may_go_while_an_engine_uses_translations() {
    // The check of a large aperture takes long, and the reset comes behind it.
    let mut machine = Machine::with(|options| options.aperture = 64 << 20);
    let large = 2 << 20;
    for page in 0..16 {
        machine.set_entry(1, page * large, 1, VALID | LEAF | IN_VRAM);
    }
    machine.submit(1, &[Entry::fill(0, 16 * large, 1); 63]);
    eventually("the fill", || machine.done(1) > 0);
    let slot = machine.unplug();
    assert_eq!(slot.log.lines(), [""; 0]);
}

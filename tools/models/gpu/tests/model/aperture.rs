// SPDX-License-Identifier: GPL-2.0

//! The aperture.

use gpu::registers;
use vfio_user::memory::PAGE;

use crate::machine::Machine;
use crate::machine::APERTURE;
use crate::machine::BASE;
use crate::machine::CONTEXTS;
use crate::machine::IN_VRAM;
use crate::machine::LEAF;
use crate::machine::READ_ONLY;
use crate::machine::VALID;
use crate::machine::VRAM;

const POISON: u8 = 0xa5;

#[test]
fn it_begins_as_poison() {
    let mut machine = Machine::new();
    let aperture = machine.aperture();
    assert_eq!(aperture.bytes(), APERTURE);
    assert!(aperture.is_filled(0, APERTURE, POISON));
}

#[test]
fn a_large_one_begins_as_zeroes_and_is_checked() {
    let mut machine = Machine::with(|options| options.aperture = 2 << 30);
    let aperture = machine.aperture();
    let last = (2 << 30) - PAGE;
    assert!(aperture.is_filled(0, 1 << 20, 0));
    machine.client.set(registers::CHECK, 1);
    assert_eq!(machine.reports(), 0);
    machine.show(last / PAGE, Some(0));
    machine.show(last / PAGE, None);
    assert!(aperture.is_filled(last, PAGE, POISON));
    machine.client.set(registers::CHECK, 1);
    assert_eq!(machine.reports(), 0);
    aperture.write(last - 1, &[1]);
    machine.client.set(registers::CHECK, 1);
    assert_eq!(machine.reports(), 1);
}

#[test]
fn it_shows_what_is_mapped() {
    let mut machine = Machine::new();
    let aperture = machine.aperture();
    machine.set_vram(VRAM - PAGE, &[7; PAGE as usize]);
    machine.set_vram(0, &[1; 3 * PAGE as usize]);
    machine.show(255, Some(VRAM / PAGE - 1));
    machine.show(3, Some(1));
    assert!(aperture.is_filled(255 * PAGE, PAGE, 7));
    assert!(aperture.is_filled(3 * PAGE, PAGE, 1));
    assert!(aperture.is_filled(0, 3 * PAGE, POISON));
    assert!(aperture.is_filled(4 * PAGE, 251 * PAGE, POISON));
    // Engines and processors see the same bytes.
    aperture.write(3 * PAGE + 5, &[9]);
    assert_eq!(machine.vram(PAGE - 1, 8), [1, 1, 1, 1, 1, 1, 9, 1]);
    machine.set_vram(2 * PAGE - 2, &[8; 4]);
    let mut end = [0; 2];
    aperture.read(4 * PAGE - 2, &mut end);
    assert_eq!(end, [8, 8]);
    machine.show(3, None);
    assert!(aperture.is_filled(3 * PAGE, PAGE, POISON));
    assert_eq!(machine.vram(PAGE + 4, 3), [1, 9, 1]);
    assert_eq!(machine.vram(2 * PAGE - 3, 6), [1, 8, 8, 8, 8, 1]);
    assert!(machine.is_quiet());
}

#[test]
fn two_megabytes_are_mapped_in_one_entry() {
    let mut machine = Machine::with(|options| options.aperture = 4 << 20);
    let aperture = machine.aperture();
    machine.set_vram(2 << 20, &[3; 1 << 20]);
    machine.set_entry(0, 2 << 20, 1, (2 << 20) | VALID | LEAF | IN_VRAM);
    machine.invalidate(0, 0, u64::MAX);
    assert!(aperture.is_filled(0, 2 << 20, POISON));
    assert!(aperture.is_filled(2 << 20, 1 << 20, 3));
    assert!(aperture.is_filled(3 << 20, 1 << 20, 0));
    assert!(machine.is_quiet());
}

#[test]
fn only_an_invalidate_looks_at_the_tables_and_only_where_it_says() {
    let mut machine = Machine::new();
    let aperture = machine.aperture();
    let page = |vram: u64| (vram * PAGE) | VALID | LEAF | IN_VRAM;
    machine.set_entry(0, 0, 2, page(0));
    machine.set_entry(0, PAGE, 2, page(1));
    machine.invalidate(1, 0, u64::MAX);
    machine.invalidate(0, 2 * PAGE, u64::MAX);
    machine.invalidate(0, APERTURE, u64::MAX);
    machine.invalidate(0, 0, 0);
    assert!(aperture.is_filled(0, APERTURE, POISON));
    machine.invalidate(0, PAGE + 7, 1);
    assert!(aperture.is_filled(0, PAGE, POISON));
    assert!(aperture.is_filled(PAGE, PAGE, 0));
    // A table that is gone maps nothing.
    machine.client.memory.store(CONTEXTS, 0);
    machine.invalidate(0, 0, u64::MAX);
    assert!(aperture.is_filled(0, APERTURE, POISON));
    assert!(machine.is_quiet());
}

#[test]
fn a_write_to_nothing_is_reported() {
    let mut machine = Machine::new();
    let aperture = machine.aperture();
    machine.show(1, Some(1));
    aperture.write(PAGE + 9, &[1]);
    machine.client.set(registers::CHECK, 0);
    assert_eq!(machine.reports(), 0);
    machine.show(1, None);
    aperture.write(PAGE + 9, &[1]);
    assert_eq!(machine.reports(), 0);
    machine.client.set(registers::CHECK, 0);
    assert_eq!(machine.reports(), 1);
    machine.client.set(registers::CHECK, 0);
    assert_eq!(machine.reports(), 1);
    // The next mapping detects a wrong write before it overwrites it.
    aperture.write(2 * PAGE, &[1]);
    machine.show(2, Some(2));
    assert_eq!(machine.reports(), 2);
    assert!(aperture.is_filled(2 * PAGE, PAGE, 0));
    assert_eq!(
        machine.slot.log.lines()[0],
        "gpu: aperture: the aperture was written to at 0x1000, where nothing is mapped"
    );
}

#[test]
fn damage_is_found_when_the_device_is_unplugged() {
    let mut machine = Machine::new();
    let aperture = machine.aperture();
    aperture.write(9, &[1]);
    let slot = machine.unplug();
    assert_eq!(slot.log.lines().len(), 1);
    assert!(aperture.is_filled(0, APERTURE, POISON));
}

#[test]
fn a_page_of_vram_is_mapped_once() {
    let mut machine = Machine::new();
    let aperture = machine.aperture();
    machine.show(1, Some(5));
    machine.show(2, Some(5));
    assert_eq!(machine.reports(), 1);
    assert!(aperture.is_filled(2 * PAGE, PAGE, POISON));
    assert_eq!(
        machine.slot.log.lines(),
        ["gpu: aperture: VRAM at 0x5000 is in the aperture at 0x1000, and at 0x2000 as well"]
    );
}

#[test]
fn entries_that_are_not_allowed_are_reported_and_map_nothing() {
    let mut machine = Machine::new();
    let aperture = machine.aperture();
    for entry in [
        PAGE | VALID | LEAF,
        PAGE | VALID | LEAF | IN_VRAM | READ_ONLY,
        VRAM | VALID | LEAF | IN_VRAM,
        PAGE | VALID,
        PAGE | VALID | LEAF | IN_VRAM | 1 << 62,
    ] {
        machine.set_entry(0, 3 * PAGE, 2, entry);
        let before = machine.reports();
        machine.invalidate(0, 0, APERTURE);
        assert_eq!(machine.reports(), before + 1, "{entry:#x}");
        assert!(aperture.is_filled(0, APERTURE, POISON));
    }
    // So is a root.
    machine.set_entry(0, 3 * PAGE, 2, PAGE | VALID | LEAF | IN_VRAM);
    let root = machine.load(CONTEXTS) | 1 << 52;
    machine.client.memory.store(CONTEXTS, root);
    let before = machine.reports();
    machine.invalidate(0, 0, APERTURE);
    assert_eq!(machine.reports(), before + 1);
    assert!(aperture.is_filled(0, APERTURE, POISON));
}

#[test]
fn what_reaches_beyond_vram_is_reported_and_maps_nothing() {
    let mut machine = Machine::with(|options| {
        options.vram = 1 << 20;
        options.aperture = 2 << 20;
    });
    let aperture = machine.aperture();
    machine.set_entry(0, 0, 1, VALID | LEAF | IN_VRAM);
    machine.invalidate(0, 0, u64::MAX);
    assert_eq!(machine.reports(), 1);
    assert!(aperture.is_filled(0, 2 << 20, POISON));
}

#[test]
fn tables_that_are_not_mapped_for_dma_are_reported() {
    let mut machine = Machine::new();
    let aperture = machine.aperture();
    machine.show(0, Some(0));
    machine.client.memory.store(CONTEXTS, BASE - PAGE);
    machine.invalidate(0, 0, APERTURE);
    assert_eq!(machine.reports(), 1);
    assert!(aperture.is_filled(0, APERTURE, POISON));
}

#[test]
fn a_reset_by_the_register_leaves_it_alone() {
    let mut machine = Machine::new();
    let aperture = machine.aperture();
    machine.show(4, Some(4));
    aperture.fill(4 * PAGE, PAGE, 6);
    machine.reset(1);
    assert!(aperture.is_filled(4 * PAGE, PAGE, 6));
    machine.reset(1 << 31);
    assert!(aperture.is_filled(4 * PAGE, PAGE, 6));
    // There are no tables now, so an INVALIDATE unmaps.
    machine.start();
    aperture.fill(4 * PAGE, PAGE, 7);
    machine.client.memory.store(CONTEXTS, 0);
    machine.invalidate(0, 0, APERTURE);
    assert!(aperture.is_filled(0, APERTURE, POISON));
    assert_eq!(machine.vram(4 * PAGE, PAGE), [7; PAGE as usize]);
    assert!(machine.is_quiet());
}

#[test]
fn a_function_level_reset_unmaps_it() {
    let mut machine = Machine::new();
    let aperture = machine.aperture();
    machine.show(4, Some(4));
    aperture.fill(4 * PAGE, PAGE, 6);
    machine.client.reset_function();
    machine.finish_reset();
    assert!(aperture.is_filled(0, APERTURE, POISON));
    machine.start();
    assert_eq!(machine.vram(4 * PAGE, PAGE), [6; PAGE as usize]);
    assert!(machine.is_quiet());
}

// SPDX-License-Identifier: GPL-2.0

//! Memory regions with on-demand paging of objects that are mapped for direct I/O.
//!
//! Such a mapping consists of pages of the BAR. A region with on-demand paging uses them as any
//! other page, without a reference. They do not move as long as they are mapped; when they are
//! unmapped, the region is invalidated.

use std::time::Duration;

use vvram_tests::debugfs::{Counter, DebugFs};
use vvram_tests::drm::{Drm, Gem};
use vvram_tests::fixture::{patterns, placed, works};
use vvram_tests::map::PAGE;
use vvram_tests::misc;
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::rdma::Setup;
use vvram_tests::rebind::Unbound;
use vvram_tests::storm::{Action, Storm};
use vvram_tests::svm::{check_places, filled, holds};
use vvram_tests::uapi::{self, CREATE_DIRECT_IO, CREATE_SYSTEM, CREATE_VRAM};
use vvram_tests::verbs::Nic;
use vvram_tests::{check, check_eq, expect_errno, igt_main, Outcome, SysError};

const PAGES: usize = 16;
const LIMIT: Duration = Duration::from_secs(20);

fn create(drm: &Drm) -> Result<Gem<'_>, SysError> {
    let flags = CREATE_VRAM | CREATE_SYSTEM | CREATE_DIRECT_IO;
    drm.create_flags((PAGES * PAGE) as u64, flags)
}

/// The NIC accesses VRAM, which stays where it is while other objects evict.
fn reaches() -> Outcome {
    let (a, b) = patterns();
    let (drm, nic) = (Drm::open()?, Nic::open(None)?);
    let files = DebugFs::open(&PciDevice::vvram()?)?;
    let object = create(&drm)?;
    let map = object.map()?;
    map.fill(a);
    let setup = Setup::on_demand(&nic, &map)?;
    setup.read(a)?;
    files.write("move", "evict")?;
    setup.write(b)?;
    placed(&object, uapi::PLACEMENT_VRAM)?;
    holds("the CPU", &map, b, 0..PAGES)?;
    // All bytes are in the BAR, once.
    Bar::open(&PciDevice::vvram()?)?.locate(&map)?;
    setup.read(b)
}

/// An access to a region whose object is not mapped any more fails, and the object can move again.
fn unmapped() -> Outcome {
    let (a, b) = patterns();
    let (drm, nic) = (Drm::open()?, Nic::open(None)?);
    let files = DebugFs::open(&PciDevice::vvram()?)?;
    let object = create(&drm)?;
    let map = object.map()?;
    map.fill(a);
    let setup = Setup::on_demand(&nic, &map)?;
    setup.write(b)?;
    drop(map);
    // The region holds no reference that would keep the VRAM.
    check_eq!(drm.counter(Counter::DirectIoBusy)?, 0, "VRAM in use");
    check_eq!(drm.counter(Counter::VramPinned)?, 0, "pinned VRAM");
    files.write("move", &format!("{} system", object.info()?.id))?;
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    setup.refuses("a read of what is not mapped")?;
    holds("a new mapping", &object.map()?, b, 0..PAGES)
}

/// The driver is unbound while the region exists.
fn unbound() -> Outcome {
    let (a, b) = patterns();
    let nic = Nic::open(None)?;
    let drm = Drm::open()?;
    let object = create(&drm)?;
    let map = object.map()?;
    map.fill(a);
    let setup = Setup::on_demand(&nic, &map)?;
    setup.write(b)?;
    let unbound = Unbound::new(&PciDevice::vvram()?)?;
    setup.refuses("a read of VRAM of a device that is gone")?;
    expect_errno("mapping it", object.map(), libc::ENODEV)?;
    unbound.rebind()?;
    drop(setup);
    works()
}

/// Processes with an object that is mapped for direct I/O and memory in VRAM, with a region of
/// each, while all of VRAM is evicted again and again.
fn storm() -> Outcome {
    const ROUNDS: u64 = 12;
    let (a, b) = patterns();
    let files = DebugFs::open(&PciDevice::vvram()?)?;
    let mut storm = Storm::new(LIMIT, &[Action::new("evict", &[], ROUNDS)])?;
    storm.meanwhile(|storm, _| {
        storm.tried("evict", files.write("move", "evict"))?;
        Ok(())
    })?;
    for index in 0..2 {
        let (a, b) = (a.derive(index), b.derive(index));
        storm.client(|storm, _| {
            let (drm, nic) = (Drm::open()?, Nic::open(None)?);
            let memory = filled(PAGES, a)?;
            let of_memory = Setup::on_demand(&nic, &memory)?;
            for round in storm.rounds(ROUNDS) {
                let object = create(&drm)?;
                let map = object.map()?;
                map.fill(b);
                let of_object = Setup::on_demand(&nic, &map)?;
                drm.svm_migrate(&memory, 0..PAGES)?;
                of_object.read(b)?;
                of_memory.read(a)?;
                of_object.write(a)?;
                holds("the object", &map, a, 0..PAGES)?;
                placed(&object, uapi::PLACEMENT_VRAM)?;
                if round % 2 == 0 {
                    // The region outlives the mapping.
                    drop(map);
                    drop(object);
                }
                of_memory.write(a)?;
            }
            drm.svm_migrate(&memory, 0..PAGES)?;
            check_places(&memory, |_| true)?;
            holds("the memory", &memory, a, 0..PAGES)
        })?;
    }
    storm.end()?;
    let drm = Drm::open()?;
    let pinned = || drm.counter(Counter::VramPinned);
    let none = misc::poll(LIMIT, || (pinned().ok()? == 0).then_some(()));
    check!(none.is_some(), "pinned VRAM: {}", pinned()?);
    works()
}

igt_main! {
    "reaches", "the NIC accesses what is mapped, in VRAM", reaches;
    "unmapped", "a region does not keep what is unmapped", unmapped;
    "unbound", "a region does not keep the device", unbound;
    "storm", "with memory of processes in VRAM, and evictions", storm;
}

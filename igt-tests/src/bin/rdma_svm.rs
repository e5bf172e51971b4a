// SPDX-License-Identifier: GPL-2.0

//! Memory regions with on-demand paging of memory that a process has in VRAM.
//!
//! The location of each page shows whether the NIC has accessed it in VRAM: a page that moves back
//! is counted, and shows in the page table. Soft RoCE accesses a BAR by the CPU, if the PCI device
//! of its network device has a route to it.

use std::time::Duration;

use vvram_tests::drm::Drm;
use vvram_tests::fixture::{patterns, works, Expect};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::plug::Plug;
use vvram_tests::proc::{Child, Steps};
use vvram_tests::qmp::Monitor;
use vvram_tests::rdma::{OdpP2p, Setup};
use vvram_tests::rebind::{with_parameters, Unbound};
use vvram_tests::svm::{check_places, filled, holds, places, resident, Place, HUGE};
use vvram_tests::verbs::Nic;
use vvram_tests::{check, check_eq, igt_main, Outcome, Stop};

const PAGES: usize = 32;
const LIMIT: Duration = Duration::from_secs(20);

/// A region that requests peer-to-peer memory, which the NIC reaches.
#[track_caller]
fn asking<'a>(nic: &'a Nic, map: &Map) -> Result<Setup<'a>, Stop> {
    let _asks = reaching()?;
    Ok(Setup::on_demand(nic, map)?)
}

/// Has new regions request peer-to-peer memory, which the NIC reaches.
#[track_caller]
fn reaching() -> Result<OdpP2p, Stop> {
    Expect::get()?.need_route()?;
    Ok(OdpP2p::new(true)?)
}

/// Every operation reaches the pages in VRAM, small and huge ones.
fn reaches() -> Outcome {
    let (a, b) = patterns();
    let (drm, nic) = (Drm::open()?, Nic::open(None)?);
    for huge in [false, true] {
        let map = if huge {
            let map = Map::private_aligned(HUGE * PAGE, HUGE * PAGE)?;
            map.advise(0..HUGE, libc::MADV_HUGEPAGE)?;
            map.fill(a);
            map
        } else {
            filled(PAGES, a)?
        };
        let setup = asking(&nic, &map)?;
        drm.svm_migrate(&map, 0..map.pages())?;
        let back = drm.svm_moved_back()?;
        setup.read(a)?;
        setup.write(b)?;
        setup.read(b)?;
        setup.add(b.word(0), 3)?;
        check_places(&map, |_| true)?;
        check_eq!(drm.svm_moved_back()?, back, "pages that came back");
        check_eq!(map.read(0), b.word(0).wrapping_add(3), "the sum");
        map.write(0, b.word(0));
        holds("the CPU", &map, b, 0..map.pages())?;
        check_eq!(
            drm.svm_moved_back()?,
            back + map.pages() as u64,
            "pages that came back"
        );
        check_places(&map, |_| false)?;
        setup.read(b)?;
    }
    Ok(())
}

/// The CPU accesses one block, the process evicts another part, and the NIC accesses each page
/// where it is.
fn mixed() -> Outcome {
    let (a, b) = patterns();
    let (drm, nic) = (Drm::open()?, Nic::open(None)?);
    let map = filled(PAGES, a)?;
    let setup = asking(&nic, &map)?;
    // Blocks of four pages, except for the last pages, which stay in system memory.
    for first in (0..PAGES - 4).step_by(4) {
        drm.svm_migrate(&map, first..first + 4)?;
    }
    let back = drm.svm_moved_back()?;
    check_places(&map, |page| page < PAGES - 4)?;
    setup.read(a)?;
    check_eq!(
        map.read(5 * PAGE / 8),
        a.word(5 * PAGE as u64 / 8),
        "page 5"
    );
    let there = |page: usize| page < PAGES - 4 && !(4..8).contains(&page);
    setup.write(b)?;
    check_places(&map, there)?;
    setup.read(b)?;
    check_eq!(drm.svm_moved_back()?, back + 4, "pages that came back");

    drm.svm_evict(&map, 8..16)?;
    let there = |page: usize| there(page) && !(8..16).contains(&page);
    setup.read(b)?;
    setup.write(a)?;
    check_places(&map, there)?;
    check_eq!(drm.svm_moved_back()?, back + 12, "pages that came back");
    holds("the CPU", &map, a, 0..PAGES)?;

    drm.svm_migrate(&map, 0..PAGES)?;
    let back = drm.svm_moved_back()?;
    setup.write(b)?;
    setup.read(b)?;
    check_places(&map, |_| true)?;
    check_eq!(drm.svm_moved_back()?, back, "pages that came back");
    holds("the CPU", &map, b, 0..PAGES)
}

/// After fork() the NIC reads pages where they are, and its writes go to the memory of the parent.
fn fork() -> Outcome {
    let (a, b) = patterns();
    let (drm, nic) = (Drm::open()?, Nic::open(None)?);
    let map = filled(PAGES, a)?;
    let setup = asking(&nic, &map)?;
    drm.svm_migrate(&map, 0..PAGES)?;
    let (go, free) = (Steps::new()?, drm.vram_free()?);
    let mut child = Child::spawn(|| {
        go.wait("the parent", LIMIT)?;
        holds("the child", &map, a, 0..PAGES)
    })?;
    let back = drm.svm_moved_back()?;
    setup.read(a)?;
    check_places(&map, |_| true)?;
    check_eq!(drm.svm_moved_back()?, back, "pages that came back");
    setup.write(b)?;
    setup.read(b)?;
    go.done()?;
    child.join("the child", LIMIT)?;
    holds("the CPU", &map, b, 0..PAGES)?;
    drm.svm_migrate(&map, 0..PAGES)?;
    setup.write(a)?;
    check_places(&map, |_| true)?;
    holds("the CPU", &map, a, 0..PAGES)?;
    drm.await_vram_free(free + (PAGES * PAGE) as u64)
}

/// Two processes with regions of their own.
fn processes() -> Outcome {
    let (a, b) = patterns();
    let (there, go) = (Steps::new()?, Steps::new()?);
    let client = |first: Pattern, second: Pattern| {
        let (drm, nic) = (Drm::open()?, Nic::open(None)?);
        let map = filled(PAGES, first)?;
        let setup = Setup::on_demand(&nic, &map)?;
        drm.svm_migrate(&map, 0..PAGES)?;
        there.done()?;
        go.wait("the other one", LIMIT)?;
        for (old, new) in [(first, second), (second, first)] {
            setup.read(old)?;
            setup.write(new)?;
            setup.read(new)?;
        }
        check_places(&map, |_| true)?;
        holds("the CPU", &map, first, 0..PAGES)
    };
    // One setting for both processes: a process of its own could reset it while the other one
    // registers.
    let _asks = reaching()?;
    let mut child = Child::spawn(|| client(a, b))?;
    let mut other = Child::spawn(|| client(b, a))?;
    for _ in 0..2 {
        there.wait("a client", LIMIT)?;
    }
    for _ in 0..2 {
        go.done()?;
    }
    child.join("the first client", LIMIT)?;
    other.join("the second client", LIMIT)
}

/// `leave` makes the device go away. The region outlives it, and works with system memory.
fn outlives(leave: impl FnOnce(&PciDevice) -> Outcome) -> Outcome {
    let (a, b) = patterns();
    let nic = Nic::open(None)?;
    let map = filled(PAGES, a)?;
    let setup = asking(&nic, &map)?;
    {
        let drm = Drm::open()?;
        drm.svm_migrate(&map, 0..PAGES)?;
        setup.read(a)?;
        setup.write(b)?;
        check_places(&map, |_| true)?;
    }
    leave(&PciDevice::vvram()?)?;
    check_places(&map, |_| false)?;
    setup.read(b)?;
    setup.write(a)?;
    setup.read(a)?;
    holds("the CPU", &map, a, 0..PAGES)?;
    Drm::open()?.svm_migrate(&map, 0..PAGES)?;
    setup.write(b)?;
    check_places(&map, |_| true)?;
    holds("the CPU", &map, b, 0..PAGES)?;
    works()
}

fn unbound() -> Outcome {
    outlives(|gpu| Unbound::new(gpu)?.rebind())
}

fn removed() -> Outcome {
    outlives(|gpu| {
        gpu.remove()?;
        PciDevice::rescan()?;
        Ok(())
    })
}

fn unplugged() -> Outcome {
    outlives(|_| {
        let (plug, mut monitor) = (Plug::gpu()?, Monitor::open()?);
        plug.out(&mut monitor)?;
        plug.back(&mut monitor)
    })
}

/// The device goes away while the NIC uses several regions all the time.
fn unplugged_in_use() -> Outcome {
    const CLIENTS: u64 = 3;
    let (a, b) = patterns();
    let (plug, mut monitor) = (Plug::gpu()?, Monitor::open()?);
    let (there, end) = (Steps::new()?, Steps::new()?);
    let _asks = reaching()?;
    let mut clients = Vec::new();
    for index in 0..CLIENTS {
        let (there, end, first, second) = (&there, &end, a.derive(index), b.derive(index));
        clients.push(Child::spawn(move || {
            let nic = Nic::open(None)?;
            let map = filled(PAGES, first)?;
            let setup = Setup::on_demand(&nic, &map)?;
            {
                let drm = Drm::open()?;
                drm.svm_migrate(&map, 0..PAGES)?;
            }
            setup.read(first)?;
            check_places(&map, |_| true)?;
            there.done()?;
            while !end.is_done()? {
                setup.write(second)?;
                setup.read(second)?;
                setup.write(first)?;
                setup.read(first)?;
            }
            check_places(&map, |_| false)?;
            holds("the CPU", &map, first, 0..PAGES)
        })?);
    }
    for _ in 0..CLIENTS {
        there.wait("a client", LIMIT)?;
    }
    plug.out(&mut monitor)?;
    end.done()?;
    for client in &mut clients {
        client.join("a client", LIMIT)?;
    }
    plug.back(&mut monitor)?;
    works()
}

/// Without struct pages of the BAR, and where the BAR does not show the VRAM, memory moves back
/// before the NIC accesses it.
fn no_alias() -> Outcome {
    with_parameters(&["struct_pages=0"], || {
        let (a, b) = patterns();
        let (drm, nic) = (Drm::open()?, Nic::open(None)?);
        let map = filled(PAGES, a)?;
        let setup = asking(&nic, &map)?;
        drm.svm_migrate(&map, 0..PAGES)?;
        let back = drm.svm_moved_back()?;
        setup.read(a)?;
        check_places(&map, |_| false)?;
        check_eq!(
            drm.svm_moved_back()?,
            back + PAGES as u64,
            "pages that came back"
        );
        setup.write(b)?;
        holds("the CPU", &map, b, 0..PAGES)
    })
}

/// How many pages the BAR shows, and how many pages are migrated at a time.
const VISIBLE: usize = 256;
const PIECE: usize = 16;

fn hidden() -> Outcome {
    let kib = (VISIBLE * PAGE) >> 10;
    with_parameters(&[&format!("visible_kib={kib}")], || {
        let (a, b) = patterns();
        let (drm, nic) = (Drm::open()?, Nic::open(None)?);
        let pages = drm.vram_free()? as usize / PAGE;
        check!(pages > 2 * VISIBLE, "{pages} pages are too few");
        let map = filled(pages, a)?;
        for first in (0..pages).step_by(PIECE) {
            drm.svm_migrate(&map, first..first + PIECE)?;
        }
        check_places(&map, |_| true)?;
        let back = drm.svm_moved_back()?;
        let setup = asking(&nic, &map)?;
        setup.read(a)?;
        // Exactly the pages that the BAR shows are still in VRAM.
        let shown = places(&map)?;
        check_eq!(resident(&map)?, VISIBLE, "pages that stay");
        check_eq!(
            drm.svm_moved_back()?,
            back + (pages - VISIBLE) as u64,
            "pages that came back"
        );
        setup.write(b)?;
        check_places(&map, |page| shown[page] == Place::Device)?;
        holds("the CPU", &map, b, 0..pages)
    })
}

igt_main! {
    "reaches", "read, write and fetch-and-add reach memory in VRAM", reaches;
    "mixed", "the NIC follows what the CPU and the process take back", mixed;
    "fork", "what the NIC writes after a fork is the parent's", fork;
    "processes", "two processes with memory in VRAM", processes;
    "unbound", "regions go on from system memory without the driver", unbound;
    "removed", "regions go on from system memory without the device", removed;
    "unplugged", "regions go on from system memory when the device is unplugged", unplugged;
    "unplugged-in-use", "the same while the NIC accesses them", unplugged_in_use;
    "no-alias", "without pages of the BAR memory moves back", no_alias;
    "hidden", "memory that the BAR does not show moves back, and no other", hidden;
}

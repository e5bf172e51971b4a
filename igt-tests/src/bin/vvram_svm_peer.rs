// SPDX-License-Identifier: GPL-2.0

//! The peer accesses memory of this process in VRAM, and after it has moved back.

use std::time::Duration;

use vvram_tests::drm::Drm;
use vvram_tests::faults::Fragmented;
use vvram_tests::fixture::{patterns, Expect};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::memory::{kind_of, reached, reads, writes};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Peer;
use vvram_tests::rebind::Unbinding;
use vvram_tests::svm::{check_places, filled, holds, HUGE};
use vvram_tests::uapi::EDU_PEER_MEMORY_KIND_SYSTEM as SYSTEM;
use vvram_tests::{check_eq, igt_main, Outcome, Stop};

const LIMIT: Duration = Duration::from_secs(60);

/// Memory that the peer has registered.
struct Setup {
    drm: Drm,
    peer: Peer,
    map: Map,
}

impl Setup {
    fn new(map: Map) -> Result<Self, Stop> {
        let (drm, peer) = (Drm::open()?, Peer::open()?);
        peer.register(&map)?;
        Ok(Self { drm, peer, map })
    }
}

/// The peer accesses memory in VRAM in place if it can reach it. If not, exactly the pages that it
/// accesses move back.
fn stays() -> Outcome {
    let expect = Expect::get()?;
    let (a, b) = patterns();
    let setup = Setup::new(filled(4, a)?)?;
    setup.drm.svm_migrate_each(&setup.map, &[0, 1, 2, 3])?;
    let Setup { drm, peer, map } = &setup;
    let back = drm.svm_moved_back()?;
    if expect == Expect::Refused {
        reads(peer, a, &[1])?;
        check_places(map, |page| page != 1)?;
        writes(peer, b, &[2])?;
        check_places(map, |page| page == 0 || page == 3)?;
        reached(peer, 2, SYSTEM)?;
        check_eq!(drm.svm_moved_back()?, back + 2, "pages that came back");
    } else {
        reached(peer, 1, kind_of(expect))?;
        reads(peer, a, &[1])?;
        writes(peer, b, &[2])?;
        check_places(map, |_| true)?;
        check_eq!(drm.svm_moved_back()?, back, "pages that came back");
        // Bytes that were written in VRAM move back with the page, and to VRAM again.
        holds("the CPU", map, b, 2..3)?;
        check_places(map, |page| page != 2)?;
        reached(peer, 2, SYSTEM)?;
        drm.svm_migrate(map, 2..3)?;
        reached(peer, 2, kind_of(expect))?;
        reads(peer, b, &[2])?;
        check_places(map, |_| true)?;
    }
    holds("the CPU", map, b, 2..3)?;
    holds("the CPU", map, a, 0..2)?;
    holds("the CPU", map, a, 3..4)
}

/// The process has marked memory as free with MADV_FREE, and a device writes to it in VRAM. The
/// bytes are not lost when the kernel reclaims memory after the page has moved back.
fn marked_free() -> Outcome {
    Expect::get()?.need_route()?;
    let (a, b) = patterns();
    let setup = Setup::new(filled(4, a)?)?;
    setup.map.advise(0..4, libc::MADV_FREE)?;
    setup.drm.svm_migrate_each(&setup.map, &[1, 2])?;
    writes(&setup.peer, b, &[1])?;
    check_places(&setup.map, |page| page == 1 || page == 2)?;
    setup.drm.svm_evict(&setup.map, 1..3)?;
    check_places(&setup.map, |_| false)?;
    setup.map.advise(0..4, libc::MADV_PAGEOUT)?;
    holds("what the device wrote", &setup.map, b, 1..2)
}

/// Huge pages that are in VRAM.
fn huge_in_vram(pattern: Pattern) -> Result<(Drm, Map), Stop> {
    let drm = Drm::open()?;
    let map = Map::private_aligned(2 * HUGE * PAGE, HUGE * PAGE)?;
    map.advise(0..map.pages(), libc::MADV_HUGEPAGE)?;
    map.fill(pattern);
    drm.svm_migrate(&map, 0..map.pages())?;
    check_places(&map, |_| true)?;
    Ok((drm, map))
}

/// Huge pages move back as small ones if no huge page can be allocated: for a page fault, and at an
/// unbind, which would otherwise wait for ever.
fn fragmented() -> Outcome {
    let (a, _) = patterns();
    let (drm, map) = huge_in_vram(a)?;
    let none = Fragmented::new()?;
    check_eq!(map.read(3), a.word(3), "a word of the first huge page");
    check_places(&map, |page| page >= HUGE)?;
    let unbound = Unbinding::start(&PciDevice::vvram()?)?.finish(LIMIT)?;
    drop(none);
    check_places(&map, |_| false)?;
    holds("the CPU", &map, a, 0..2 * HUGE)?;
    drop(drm);
    unbound.rebind()
}

igt_main! {
    "stays", "the peer reaches memory of a process in VRAM, or has it moved back", stays;
    "marked-free", "what a device wrote to memory marked as free is kept", marked_free;
    "fragmented", "huge pages come back where there is no memory for huge pages", fragmented;
}

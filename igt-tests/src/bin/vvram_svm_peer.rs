// SPDX-License-Identifier: GPL-2.0

//! The peer accesses memory of this process that is in VRAM, and what that is once it is back.

use std::time::Duration;

use vvram_tests::drm::Drm;
use vvram_tests::faults::Fragmented;
use vvram_tests::map::{Map, PAGE};
use vvram_tests::memory::{kind_of, reached, reads, writes};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Peer;
use vvram_tests::rebind::Unbinding;
use vvram_tests::scene::{patterns, Expect};
use vvram_tests::svm::{check_places, filled, holds, HUGE};
use vvram_tests::uapi::EDU_PEER_MEMORY_KIND_SYSTEM as SYSTEM;
use vvram_tests::{check_eq, igt_main, Outcome, Stop};

const LIMIT: Duration = Duration::from_secs(60);

/// Memory that the peer has registered, and where it can be.
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

    /// Moves some pages to VRAM one by one, so that each of them comes back alone.
    fn migrate(&self, pages: &[usize]) -> Outcome {
        for page in pages {
            self.drm.svm_migrate(&self.map, *page..page + 1)?;
        }
        check_places(&self.map, |page| pages.contains(&page))
    }
}

/// The peer reaches memory in VRAM where it is. Where it does not, each page that it accesses moves
/// back, and no other one.
fn stays() -> Outcome {
    let expect = Expect::get()?;
    let (a, b) = patterns();
    let setup = Setup::new(filled(4, a)?)?;
    setup.migrate(&[0, 1, 2, 3])?;
    let Setup { drm, peer, map } = &setup;
    let back = drm.svm_moved_back()?;
    if expect == Expect::Refused {
        reads(peer, a, &[1])?;
        check_places(map, |page| page != 1)?;
        writes(peer, b, &[2])?;
        check_places(map, |page| page == 0 || page == 3)?;
        reached(peer, 2, SYSTEM)?;
        check_eq!(peer.memory_counters()?.denied, 1, "whether it was denied");
        check_eq!(drm.svm_moved_back()?, back + 2, "pages that came back");
    } else {
        reached(peer, 1, kind_of(expect))?;
        reads(peer, a, &[1])?;
        writes(peer, b, &[2])?;
        check_places(map, |_| true)?;
        check_eq!(drm.svm_moved_back()?, back, "pages that came back");
        // What was written there comes back with the page, and goes there again.
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

/// What a device writes to memory that the process has marked as free is not lost when that is
/// reclaimed after it has come back.
fn marked_free() -> Outcome {
    Expect::get()?.need_route()?;
    let (a, b) = patterns();
    let setup = Setup::new(filled(4, a)?)?;
    setup.map.advise(0..4, libc::MADV_FREE)?;
    setup.migrate(&[1, 2])?;
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

/// Huge pages come back as small ones if there is no memory for huge ones: for a page fault, and
/// when the driver is unbound, which would wait for ever otherwise.
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

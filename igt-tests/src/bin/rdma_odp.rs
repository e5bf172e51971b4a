// SPDX-License-Identifier: GPL-2.0

//! Memory regions with on-demand paging whose pages are in the memory of a device.
//!
//! The device is test_hmm, which has the first GPU in place of its own driver. Where each page is
//! is what the device's own mirror of this process says.

use std::fs;

use vvram_tests::dmirror::{Mirror, TestHmm};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::rdma::{Buffer, ON_DEMAND};
use vvram_tests::scene::patterns;
use vvram_tests::verbs::{Nic, Pair, Region};
use vvram_tests::{check_eq, fail, igt_main, Outcome, SysError};

const PAGES: usize = 16;
const SIZE: u32 = (PAGES * PAGE) as u32;
const P2P: &str = "/sys/module/rdma_rxe/parameters/odp_p2p";

/// Whether new regions ask for the memory of peers, which they do not when this is dropped.
struct Asks;

impl Asks {
    fn new(yes: bool) -> Result<Self, SysError> {
        fs::write(P2P, if yes { "Y" } else { "N" }).map_err(|error| SysError::io(P2P, &error))?;
        Ok(Self)
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        let _ = fs::write(P2P, "N");
    }
}

/// Memory of this process that a region is of, and memory to transfer from and to.
struct Setup<'a> {
    pair: Pair<'a>,
    host: Buffer<'a>,
    region: Region<'a>,
    map: &'a Map,
    mirror: &'a Mirror,
}

impl Setup<'_> {
    /// Lets the NIC write a pattern to the region.
    fn write(&self, pattern: Pattern) -> Outcome {
        self.host.fill(pattern)?;
        self.pair
            .write((self.host.region(), 0), (&self.region, 0), SIZE)?;
        Ok(())
    }

    /// Lets the NIC read the region, and compares.
    fn read(&self, pattern: Pattern) -> Outcome {
        self.host.fill(Pattern::new(misc::nonce()))?;
        self.pair
            .read((&self.region, 0), (self.host.region(), 0), SIZE)?;
        holds("the NIC", self.host.map(), pattern)
    }

    /// Compares what the device has.
    fn device_has(&self, pattern: Pattern) -> Outcome {
        if let Err(mismatch) = pattern.verify(&self.mirror.read(self.map)?, 0) {
            fail!("the device: {mismatch}");
        }
        Ok(())
    }
}

#[track_caller]
fn holds(who: &str, map: &Map, pattern: Pattern) -> Outcome {
    if let Err(mismatch) = map.verify(pattern) {
        fail!("{who}: {mismatch}");
    }
    Ok(())
}

/// Registers memory that is on the device, and holds a pattern.
fn with(ask: bool, pattern: Pattern, body: impl FnOnce(&Setup<'_>) -> Outcome) -> Outcome {
    let _asks = Asks::new(ask)?;
    let _hmm = TestHmm::with_memory()?;
    let nic = Nic::open(None)?;
    let mirror = Mirror::open()?;
    let map = Map::private(PAGES * PAGE)?;
    map.fill(pattern);
    mirror.migrate(&map)?;
    mirror.check_places(&map, |_| true)?;
    let setup = Setup {
        pair: Pair::new(&nic)?,
        host: Buffer::host(&nic, "host", u64::from(SIZE))?,
        region: nic.register_memory(&map, nic.all_access() | ON_DEMAND)?,
        map: &map,
        mirror: &mirror,
    };
    body(&setup)
}

/// Every operation reaches the pages where they are.
fn stays() -> Outcome {
    let (a, b) = patterns();
    with(true, a, |setup| {
        setup.read(a)?;
        setup.mirror.check_places(setup.map, |_| true)?;
        setup.write(b)?;
        setup.device_has(b)?;
        setup.read(b)?;

        let old = b.word(0);
        let (on, result) = ((&setup.region, 0), (setup.host.region(), 0));
        setup.pair.fetch_add(result, on, 3)?;
        check_eq!(setup.host.map().read(0), old, "what fetch-and-add returns");
        setup.mirror.check_places(setup.map, |_| true)?;

        check_eq!(setup.map.read(0), old.wrapping_add(3), "the sum");
        setup.map.write(0, old);
        holds("the CPU", setup.map, b)?;
        setup.mirror.check_places(setup.map, |_| false)?;
        setup.read(b)
    })
}

/// What was fetched for reading can be written to.
fn prefetched() -> Outcome {
    let (a, b) = patterns();
    with(true, a, |setup| {
        setup.region.prefetch(SIZE)?;
        setup.mirror.check_places(setup.map, |_| true)?;
        setup.write(b)?;
        setup.mirror.check_places(setup.map, |_| true)?;
        setup.device_has(b)
    })
}

/// The page that the CPU needs moves, and no other one.
fn mixed() -> Outcome {
    let (a, b) = patterns();
    with(true, a, |setup| {
        setup.read(a)?;
        let there = |page| page != 5;
        check_eq!(
            setup.map.read(5 * PAGE / 8),
            a.word(5 * PAGE as u64 / 8),
            "a word of page 5"
        );
        setup.mirror.check_places(setup.map, there)?;
        setup.write(b)?;
        setup.read(b)?;
        setup.mirror.check_places(setup.map, there)?;
        holds("the CPU", setup.map, b)
    })
}

/// A region follows its pages when the device gives up its memory, and back.
fn released() -> Outcome {
    let (a, b) = patterns();
    with(true, a, |setup| {
        setup.write(b)?;
        setup.mirror.release(setup.map)?;
        setup.mirror.check_places(setup.map, |_| false)?;
        setup.read(b)?;
        setup.write(a)?;
        holds("the CPU", setup.map, a)?;
        setup.mirror.migrate(setup.map)?;
        setup.write(b)?;
        setup.mirror.check_places(setup.map, |_| true)?;
        setup.device_has(b)
    })
}

/// A region that does not ask for it has its pages migrated.
fn not_asked() -> Outcome {
    let (a, b) = patterns();
    with(false, a, |setup| {
        setup.read(a)?;
        setup.mirror.check_places(setup.map, |_| false)?;
        setup.write(b)?;
        holds("the CPU", setup.map, b)
    })
}

igt_main! {
    "stays", "read, write and fetch-and-add reach the pages where they are", stays;
    "prefetched", "pages that were fetched for reading can be written to", prefetched;
    "mixed", "the page that the CPU needs moves, and no other one", mixed;
    "released", "a region follows its pages out of the device, and back", released;
    "not-asked", "a region that does not ask for it has its pages migrated", not_asked;
}

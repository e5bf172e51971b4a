// SPDX-License-Identifier: GPL-2.0

//! Memory regions with on-demand paging whose pages are in the memory of a device.
//!
//! The device is test_hmm, which is bound to the first GPU in place of vvram. Its mirror of this
//! process tells where each page is, and how many pages have moved to system memory because of page
//! faults. If the NIC accesses a page without such a fault, it has used the P2PDMA page.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use vvram_tests::dmirror::{Mirror, TestHmm, ABSENT, ON_DEVICE, WRITABLE, ZEROES};
use vvram_tests::fixture::{patterns, Expect};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::misc::{self, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::rdma::{OdpP2p, Setup};
use vvram_tests::svm::{holds, HUGE};
use vvram_tests::verbs::Nic;
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, Outcome, Stop, SysError};

const PAGES: usize = 16;

/// How often a huge page goes while it is prefetched.
const ROUNDS: usize = 100;

/// Memory of this process, and its region.
struct Registration<'a> {
    nic: Setup<'a>,
    map: &'a Map,
    mirror: &'a Mirror,
}

impl Registration<'_> {
    /// How many pages of the device page faults have moved to system memory so far.
    fn faulted(&self) -> Result<u64, SysError> {
        self.mirror.faulted(self.map)
    }

    /// Compares the bytes in the memory of the device.
    fn device_has(&self, pattern: Pattern) -> Outcome {
        check_ok!(
            pattern.verify(&self.mirror.read(self.map)?, 0),
            "the device"
        );
        Ok(())
    }
}

/// When the memory is registered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Registered {
    /// Before it migrates to the device, so that the NIC faults each page in.
    Before,
    /// While it is on the device, so that the registration takes a snapshot of its pages.
    There,
}

/// Registers memory that has a pattern and is on the device afterwards.
fn with(
    ask: bool,
    registered: Registered,
    pattern: Pattern,
    body: impl FnOnce(&Registration<'_>, &mut TestHmm) -> Outcome,
) -> Outcome {
    let _asks = OdpP2p::new(ask)?;
    let mut hmm = TestHmm::with_memory()?;
    let nic = Nic::open(None)?;
    let mirror = Mirror::open()?;
    let map = Map::private(PAGES * PAGE)?;
    map.fill(pattern);
    if registered == Registered::There {
        mirror.migrate(&map)?;
    }
    let setup = Registration {
        nic: Setup::on_demand(&nic, &map)?,
        map: &map,
        mirror: &mirror,
    };
    if registered == Registered::Before {
        mirror.migrate(&map)?;
    }
    mirror.check_places(&map, |_| true)?;
    body(&setup, &mut hmm)?;
    drop(setup);
    drop(mirror);
    hmm.close()
}

/// Every operation reaches the pages where they are, if the NIC has a route. If not, the pages that
/// it accesses move.
fn reaches(registered: Registered) -> Outcome {
    let (a, b) = patterns();
    let expect = Expect::get()?;
    with(true, registered, a, |setup, _| {
        let faulted = setup.faulted()?;
        if expect == Expect::Refused {
            setup.nic.target.prefetch((3 * PAGE) as u32)?;
            setup.mirror.check_places(setup.map, |page| page >= 3)?;
            setup.nic.read(a)?;
            setup.mirror.check_places(setup.map, |_| false)?;
            setup.nic.write(b)?;
            check_eq!(
                setup.faulted()?,
                faulted + PAGES as u64,
                "pages that left the device"
            );
            return holds("the CPU", setup.map, b, 0..PAGES);
        }
        setup.nic.read(a)?;
        setup.mirror.check_places(setup.map, |_| true)?;
        setup.nic.write(b)?;
        setup.device_has(b)?;
        setup.nic.read(b)?;

        let old = b.word(0);
        setup.nic.add(old, 3)?;
        setup.mirror.check_places(setup.map, |_| true)?;
        check_eq!(setup.faulted()?, faulted, "pages that left the device");

        check_eq!(setup.map.read(0), old.wrapping_add(3), "the sum");
        check_eq!(setup.faulted()?, faulted + 1, "pages the CPU has read");
        setup.map.write(0, old);
        holds("the CPU", setup.map, b, 0..PAGES)?;
        setup.mirror.check_places(setup.map, |_| false)?;
        setup.nic.read(b)
    })
}

/// A prefetch faults in pages that are not populated, and leaves pages on the device where they
/// are. Pages that were prefetched for reading can be written to.
fn prefetched() -> Outcome {
    const ABSENT_PAGE: usize = 3;
    Expect::get()?.need_route()?;
    let (a, b) = patterns();
    let there = |page| page != ABSENT_PAGE;
    with(true, Registered::Before, a, |setup, _| {
        let faulted = setup.faulted()?;
        setup.map.discard(ABSENT_PAGE)?;
        let place = || Ok::<_, Stop>(setup.mirror.places(setup.map)?[ABSENT_PAGE]);
        check_eq!(place()?, ABSENT, "the page before the prefetch");
        setup.nic.target.prefetch((PAGES * PAGE) as u32)?;
        check_eq!(place()?, ZEROES, "the page after the prefetch");
        for (page, place) in setup.mirror.places(setup.map)?.into_iter().enumerate() {
            if there(page) {
                check_eq!(place, ON_DEVICE | WRITABLE, "where page {page} is");
            }
        }
        setup.nic.write(b)?;
        setup.mirror.check_places(setup.map, there)?;
        check_eq!(setup.faulted()?, faulted, "pages that left the device");
        setup.device_has(b)
    })
}

/// Only the page that the CPU accesses moves.
fn mixed() -> Outcome {
    Expect::get()?.need_route()?;
    let (a, b) = patterns();
    with(true, Registered::Before, a, |setup, _| {
        let faulted = setup.faulted()?;
        setup.nic.read(a)?;
        let there = |page| page != 5;
        check_eq!(
            setup.map.read(5 * PAGE / 8),
            a.word(5 * PAGE as u64 / 8),
            "a word of page 5"
        );
        setup.mirror.check_places(setup.map, there)?;
        setup.nic.write(b)?;
        setup.nic.read(b)?;
        setup.mirror.check_places(setup.map, there)?;
        check_eq!(setup.faulted()?, faulted + 1, "pages that left the device");
        setup.device_has(b)?;
        holds("the CPU", setup.map, b, 0..PAGES)
    })
}

/// A region follows its pages when the device evicts them, and back.
fn released() -> Outcome {
    Expect::get()?.need_route()?;
    let (a, b) = patterns();
    with(true, Registered::Before, a, |setup, _| {
        setup.nic.write(b)?;
        setup.mirror.release(setup.map)?;
        setup.mirror.check_places(setup.map, |_| false)?;
        setup.nic.read(b)?;
        setup.nic.write(a)?;
        holds("the CPU", setup.map, a, 0..PAGES)?;
        setup.mirror.migrate(setup.map)?;
        setup.nic.write(b)?;
        setup.mirror.check_places(setup.map, |_| true)?;
        setup.device_has(b)
    })
}

/// A region outlives the device: its pages are in system memory then.
fn unbound() -> Outcome {
    Expect::get()?.need_route()?;
    let (a, b) = patterns();
    with(true, Registered::Before, a, |setup, hmm| {
        setup.nic.write(b)?;
        setup.mirror.check_places(setup.map, |_| true)?;
        hmm.unbind()?;
        setup.mirror.check_places(setup.map, |_| false)?;
        setup.nic.read(b)?;
        setup.nic.write(a)?;
        setup.nic.read(a)?;
        holds("the CPU", setup.map, a, 0..PAGES)
    })
}

/// The pages of a region that does not request peer-to-peer memory migrate to system memory.
fn not_asked() -> Outcome {
    let (a, b) = patterns();
    with(false, Registered::Before, a, |setup, _| {
        let faulted = setup.faulted()?;
        setup.nic.read(a)?;
        check_eq!(
            setup.faulted()?,
            faulted + PAGES as u64,
            "pages that left the device"
        );
        setup.mirror.check_places(setup.map, |_| false)?;
        setup.nic.write(b)?;
        holds("the CPU", setup.map, b, 0..PAGES)
    })
}

/// A prefetch fails because of what is behind a huge page, which is discarded meanwhile. The NIC
/// does not use the memory that was there, which others have then.
fn left_behind() -> Outcome {
    let nic = Nic::open(None)?;
    let map = Map::private_aligned((HUGE + 1) * PAGE, HUGE * PAGE)?;
    let others = Map::private_aligned(HUGE * PAGE, HUGE * PAGE)?;
    for memory in [&map, &others] {
        memory.advise(0..HUGE, libc::MADV_HUGEPAGE)?;
    }
    let setup = Setup::on_demand(&nic, &map)?;
    map.protect(HUGE..HUGE + 1, libc::PROT_NONE)?;

    // HMM reports these pages last.
    let first = HUGE - PAGES;
    let (offset, len) = ((first * PAGE) as u64, (PAGES * PAGE) as u32);
    let (a, b) = patterns();
    let prefetch = || setup.target.prefetch(map.len() as u32);
    // The page is discarded while the prefetch runs, or soon after it.
    let latest = {
        map.fill_pages(a, first, PAGES);
        let since = Instant::now();
        expect_errno("a prefetch beyond the huge page", prefetch(), libc::EFAULT)?;
        2 * since.elapsed().as_micros() as u64
    };
    let mut random = Lcg::new(misc::seed());
    for round in 0..ROUNDS {
        map.fill_pages(a, first, PAGES);
        let delay = Duration::from_micros(random.below(latest));
        let begin = Barrier::new(2);
        let (prefetched, discarded) = thread::scope(|scope| {
            let discards = scope.spawn(|| {
                begin.wait();
                let since = Instant::now();
                while since.elapsed() < delay {}
                map.advise(0..HUGE, libc::MADV_DONTNEED)?;
                others.fill_pages(a, first, PAGES);
                Ok::<_, SysError>(())
            });
            begin.wait();
            (
                prefetch(),
                discards
                    .join()
                    .unwrap_or_else(|_| Err(SysError::new("a thread", libc::EIO))),
            )
        });
        discarded?;
        // It is EBUSY if the kernel has tried for too long.
        check!(
            prefetched
                .as_ref()
                .is_err_and(|error| [libc::EFAULT, libc::EBUSY].contains(&error.errno)),
            "a prefetch beyond the huge page: {prefetched:?}"
        );

        map.fill_pages(b, first, PAGES);
        setup
            .pair
            .read((&setup.target, offset), (setup.host.region(), offset), len)?;
        check_ok!(
            setup.host.map().verify_pages(b, first, PAGES),
            "what the NIC has read in round {round}"
        );
        for memory in [&map, &others] {
            memory.advise(0..HUGE, libc::MADV_DONTNEED)?;
        }
    }
    Ok(())
}

igt_main! {
    "stays", "read, write and fetch-and-add reach the pages where they are",
        || reaches(Registered::Before);
    "stays-from-the-start", "the same if they are on the device when they are registered",
        || reaches(Registered::There);
    "prefetched", "a prefetch gets pages that are nowhere, and leaves the others", prefetched;
    "mixed", "the page that the CPU needs moves, and no other one", mixed;
    "released", "a region follows its pages out of the device, and back", released;
    "unbound", "a region outlives the device that its pages are on", unbound;
    "left-behind", "a prefetch that fails leaves no page that has gone", left_behind;
    "not-asked", "a region that does not ask for it has its pages migrated", not_asked;
}

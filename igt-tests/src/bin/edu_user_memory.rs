// SPDX-License-Identifier: GPL-2.0

//! The peer reads and writes memory of processes by their addresses.

use vvram_tests::dmirror::{Mirror, TestHmm, ABSENT};
use vvram_tests::fixture::{cpu_reads, Expect};
use vvram_tests::heap;
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::memory::{
    bytes, complete, ended, kind_of, on_device, reached, reads, writes, Moved, Setup, PAGES,
};
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::uapi::{
    self, EduPeerMemoryMeasure, EduPeerMemoryQuery, EduPeerTransfer,
    EDU_PEER_MEMORY_KIND_SYSTEM as SYSTEM,
};
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, Outcome};

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// System memory, private and shared, populated and not.
fn system() -> Outcome {
    for map in [Map::private(PAGES * PAGE)?, Map::anonymous(PAGES * PAGE)?] {
        let Setup { peer, map, a, b } = Setup::of(map)?;
        reached(&peer, 0, SYSTEM)?;
        reads(&peer, a, &[0])?;
        writes(&peer, b, &[1])?;
        cpu_reads(&map, b, &[1])?;
        cpu_reads(&map, a, &[0, 2, 3])?;
        let counters = peer.memory_counters()?;
        check_eq!(
            (counters.kind, counters.dma_address),
            (uapi::EDU_PEER_MEMORY_KIND_NONE, 0),
            "what was not asked"
        );
    }
    Ok(())
}

/// Pages that are not populated are faulted in, also by a write to a page that was only read
/// before.
fn absent() -> Outcome {
    let Setup { peer, map, a, b } = Setup::new()?;
    map.discard(2)?;
    let mut data = vec![0xa5; PAGE];
    complete(peer.memory_try_read(2 * PAGE64, &mut data), 1)?;
    check!(
        data.iter().all(|byte| *byte == 0),
        "a page that was not there does not read as zeroes"
    );
    writes(&peer, b, &[2])?;
    cpu_reads(&map, b, &[2])?;
    cpu_reads(&map, a, &[1, 3])
}

/// Ranges of bytes that are not aligned to pages.
fn unaligned() -> Outcome {
    const AT: usize = PAGE - 3;
    const LEN: usize = 10;
    let Setup { peer, map, a, b } = Setup::new()?;
    let mut data = [0xa5; LEN + 1];
    let (moved, result) = peer.memory_try_read(AT as u64, &mut data[..LEN]);
    result?;
    check_eq!(moved, LEN as u64, "bytes read");
    check_eq!(data[LEN], 0xa5, "the byte behind those read");
    check_ok!(a.verify(&data[..LEN], AT as u64), "the peer read");
    b.fill(&mut data, AT as u64);
    let (moved, result) = peer.memory_try_write(AT as u64, &data[..LEN]);
    result?;
    check_eq!(moved, LEN as u64, "bytes written");
    for at in AT - 1..=AT + LEN {
        let inside = (AT..AT + LEN).contains(&at);
        let want = if inside { b } else { a }.byte(at as u64);
        check_eq!(map.byte(at), want, "byte {at}");
    }
    let (moved, result) = peer.memory_try_read(PAGES as u64 * PAGE64, &mut []);
    result?;
    check_eq!(moved, 0, "bytes of an empty read at the end");
    Ok(())
}

/// The device accesses pages of the GPU in place if it can reach them. If not, they migrate to
/// system memory one by one, when they are accessed.
fn stays() -> Outcome {
    on_device(|it, _| {
        let Setup { peer, map, a, b } = it.setup;
        let (faulted, invalidations) = (it.faulted()?, it.setup.invalidations()?);
        let kind = kind_of(it.expect);
        check!(invalidations > 0, "the migration invalidated nothing");
        if it.expect == Expect::Refused {
            reads(peer, *a, &[1])?;
            it.check_places(|page| page != 1)?;
            writes(peer, *b, &[2])?;
            reached(peer, 2, kind)?;
            it.check_places(|page| page == 0 || page == 3)?;
            check_eq!(it.faulted()?, faulted + 2, "pages that left the GPU");
            cpu_reads(map, *b, &[2])?;
        } else {
            reached(peer, 1, kind)?;
            reads(peer, *a, &[1])?;
            writes(peer, *b, &[2])?;
            it.check_places(|_| true)?;
            it.device_has(*b, 2)?;
            it.device_has(*a, 3)?;
            check_eq!(it.faulted()?, faulted, "pages that left the GPU");
            check_eq!(it.setup.invalidations()?, invalidations, "invalidations");
            cpu_reads(map, *b, &[2])?;
            it.check_places(|page| page != 2)?;
        }
        cpu_reads(map, *a, &[0, 1, 3])
    })
}

/// Only the page that the CPU accesses moves.
fn mixed() -> Outcome {
    Expect::get()?.need_route()?;
    on_device(|it, _| {
        let Setup { peer, map, a, b } = it.setup;
        let (faulted, kind) = (it.faulted()?, kind_of(it.expect));
        reached(peer, 1, kind)?;
        cpu_reads(map, *a, &[1])?;
        it.check_places(|page| page != 1)?;
        reached(peer, 1, SYSTEM)?;
        let data = bytes(*b, 0, 3);
        complete(peer.memory_try_write(0, &data), 3)?;
        it.check_places(|page| page != 1)?;
        reached(peer, 0, kind)?;
        reached(peer, 2, kind)?;
        check_eq!(it.faulted()?, faulted + 1, "pages that left the GPU");
        for page in [0, 1, 2] {
            it.device_has(*b, page)?;
        }
        cpu_reads(map, *b, &[0, 1, 2])?;
        cpu_reads(map, *a, &[3])
    })
}

/// Of the pages of a region exactly those migrate that the device does not reach: one of eight pages
/// of the GPU is in no BAR.
fn both_kinds() -> Outcome {
    const MANY: usize = 64;
    let expect = Expect::get()?;
    expect.need_route()?;
    let hmm = TestHmm::with_memory()?;
    let map = Map::private(MANY * PAGE)?;
    let (mirror, other) = (Mirror::open()?, Mirror::of_peer(&map)?);
    let Setup { peer, map, a, b } = Setup::of(map)?;
    mirror.release(&map)?;
    mirror.hide_some(&map)?;
    mirror.migrate(&map)?;
    mirror.check_places(&map, |_| true)?;
    let faulted = mirror.faulted(&map)?;
    let seen = other.places(&map)?;
    let hidden = |page: &usize| seen[*page] == ABSENT;
    let count = (0..MANY).filter(hidden).count();
    check!((1..MANY / 2).contains(&count), "{count} pages are hidden");
    println!("{count} of {MANY} pages are in no BAR");

    let mut data = vec![0; MANY * PAGE];
    complete(peer.memory_try_read(0, &mut data), MANY)?;
    check_ok!(a.verify(&data, 0), "the peer read");
    complete(peer.memory_try_write(0, &bytes(b, 0, MANY)), MANY)?;
    mirror.check_places(&map, |page| !hidden(&page))?;
    check_eq!(
        mirror.faulted(&map)?,
        faulted + count as u64,
        "pages that left the GPU"
    );
    for page in 0..MANY {
        let kind = if hidden(&page) {
            SYSTEM
        } else {
            kind_of(expect)
        };
        reached(&peer, page, kind)?;
    }
    check_ok!(b.verify(&mirror.read(&map)?, 0), "the GPU reads");
    drop((peer, other, mirror));
    hmm.close()
}

/// The registration follows pages out of the GPU and back.
fn follows() -> Outcome {
    on_device(|it, _| {
        let Setup { peer, map, b, .. } = it.setup;
        it.mirror.release(map)?;
        it.check_places(|_| false)?;
        reached(peer, 0, SYSTEM)?;
        writes(peer, *b, &[0])?;
        let before = it.setup.invalidations()?;
        it.mirror.migrate(map)?;
        check!(
            it.setup.invalidations()? > before,
            "the migration invalidated nothing"
        );
        it.check_places(|_| true)?;
        it.device_has(*b, 0)?;
        reached(peer, 0, kind_of(it.expect))?;
        reads(peer, *b, &[0])
    })
}

/// Unmapped addresses cannot be accessed, and memory that is mapped there later can.
fn unmapped() -> Outcome {
    let Setup { peer, map, a, b } = Setup::new()?;
    let mut data = vec![0xa5; 3 * PAGE];
    reads(&peer, a, &[1])?;
    let before = peer.memory_counters()?.invalidations;
    map.punch(1)?;
    check_eq!(
        peer.memory_counters()?.invalidations,
        before + 1,
        "invalidations"
    );
    ended(
        "a read of what is unmapped",
        peer.memory_try_read(0, &mut data),
        1,
        libc::EFAULT,
    )?;
    check_ok!(a.verify(&data[..PAGE], 0), "the page before");
    ended(
        "a write to what is unmapped",
        peer.memory_try_write(PAGE64, &data),
        0,
        libc::EFAULT,
    )?;
    expect_errno("a query", peer.memory_page(1), libc::EFAULT)?;
    map.refill(1)?;
    writes(&peer, b, &[1])?;
    cpu_reads(&map, b, &[1])?;
    cpu_reads(&map, a, &[0, 2, 3])
}

/// The device has the same permissions as the process.
fn protected() -> Outcome {
    let Setup { peer, map, a, b } = Setup::new()?;
    writes(&peer, a, &[1])?;
    map.protect(1..2, libc::PROT_READ)?;
    let data = bytes(b, 1, 1);
    ended(
        "a write to what is read-only",
        peer.memory_try_write(PAGE64, &data),
        0,
        libc::EPERM,
    )?;
    reads(&peer, a, &[1])?;
    map.protect(1..2, libc::PROT_NONE)?;
    let mut page = vec![0; PAGE];
    ended(
        "a read of what cannot be accessed",
        peer.memory_try_read(PAGE64, &mut page),
        0,
        libc::EFAULT,
    )?;
    map.protect(1..2, READ_WRITE)?;
    cpu_reads(&map, a, &[0, 1, 2, 3])?;
    writes(&peer, b, &[1])?;
    cpu_reads(&map, b, &[1])
}

/// Invalid calls, before, during and after a registration.
fn bad_input() -> Outcome {
    const INVALID: i32 = libc::EINVAL;
    let peer = Peer::open()?;
    let map = Map::private(PAGES * PAGE)?;
    let start = map.address().as_ptr() as u64;
    let mut word = [0u8; 8];
    expect_errno("the end of nothing", peer.unregister(), INVALID)?;
    expect_errno("a query of nothing", peer.memory_counters(), INVALID)?;
    unchanged(peer.memory_try_read(0, &mut word), 8)?;
    for (address, size) in [
        (start, uapi::EDU_PEER_MEMORY_MAX + PAGE64),
        (start, u64::MAX - PAGE64 + 1),
        (u64::MAX - PAGE64 + 1, 2 * PAGE64),
    ] {
        let result = peer.register_range(address, size);
        expect_errno(&format!("{size:#x} bytes at {address:#x}"), result, INVALID)?;
    }

    // The addresses need not be mapped, and may even be outside of user space.
    for address in [PAGE64, 1 << 63] {
        peer.register_range(address, PAGE64)?;
        expect_errno(
            "a page that is not there",
            peer.memory_page(0),
            libc::EFAULT,
        )?;
        peer.unregister()?;
    }

    peer.register(&map)?;
    let size = map.len() as u64;
    let good = EduPeerTransfer {
        data: word.as_mut_ptr() as u64,
        length: 8,
        ..Default::default()
    };
    for bad in [
        EduPeerTransfer {
            offset: size - 7,
            ..good
        },
        EduPeerTransfer {
            offset: u64::MAX - 3,
            ..good
        },
        EduPeerTransfer {
            length: size + 1,
            ..good
        },
    ] {
        let mut argument = bad;
        // SAFETY: the device moves no bytes, or only to the word.
        let moved = unsafe { peer.memory_transfer_raw(&mut argument) };
        unchanged(moved, bad.length)?;
    }
    let mut argument = EduPeerTransfer {
        data: 8,
        direction: uapi::EDU_PEER_DIRECTION_WRITE,
        ..good
    };
    // SAFETY: nothing is mapped at the address, so nothing is moved.
    let moved = unsafe { peer.memory_transfer_raw(&mut argument) };
    ended("a write from nowhere", moved, 0, libc::EFAULT)?;
    let query = EduPeerMemoryQuery {
        flags: uapi::EDU_PEER_MEMORY_QUERY_MAP,
        ..Default::default()
    };
    for bad in [
        EduPeerMemoryQuery {
            offset: size,
            ..query
        },
        EduPeerMemoryQuery {
            flags: 0,
            offset: 8,
            ..query
        },
    ] {
        let mut argument = bad;
        let result = peer.memory_query_raw(&mut argument);
        expect_errno(&format!("{bad:x?}"), result, INVALID)?;
    }
    let mut last = EduPeerMemoryQuery {
        offset: size - 1,
        ..query
    };
    peer.memory_query_raw(&mut last)?;
    check_eq!(last.kind, SYSTEM, "how the last page is reached");
    Ok(())
}

/// A transfer that is refused writes nothing back.
fn unchanged((length, result): Moved, given: u64) -> Outcome {
    expect_errno("a transfer that makes no sense", result, libc::EINVAL)?;
    check_eq!(length, given, "the length of a transfer that is refused");
    Ok(())
}

/// A file has at most one registration, and may also have an attachment.
fn registered() -> Outcome {
    let Setup { peer, map, a, b } = Setup::new()?;
    expect_errno("a second one", peer.register(&map), libc::EBUSY)?;
    let other = peer.reopen()?;
    other.register(&map)?;
    writes(&other, b, &[0])?;
    reads(&peer, b, &[0])?;
    drop(other);

    let heap = heap::allocate(PAGE64)?;
    peer.attach_and_map(&heap, Mode::Static)?;
    peer.write(0, &bytes(b, 1, 1))?;
    reached(&peer, 1, SYSTEM)?;
    peer.unregister()?;
    expect_errno("a query after it", peer.memory_counters(), libc::EINVAL)?;
    expect_errno("its end again", peer.unregister(), libc::EINVAL)?;
    peer.register(&map)?;
    peer.detach()?;
    reads(&peer, a, &[1])
}

/// A measurement leaves pages on the GPU with EDU_PEER_MEMORY_MEASURE_P2P, and migrates them
/// without.
fn measured() -> Outcome {
    on_device(|it, _| {
        let Setup { peer, a, map, .. } = it.setup;
        let p2p = uapi::EDU_PEER_MEMORY_MEASURE_P2P;
        for flags in [p2p, p2p | uapi::EDU_PEER_MEMORY_MEASURE_WRITE] {
            let cost = peer.memory_measure(PAGES, flags)?;
            check!(cost.time > 0, "the pages cost nothing: {cost:?}");
            it.check_places(|_| it.expect != Expect::Refused)?;
        }
        if it.expect == Expect::Refused {
            it.mirror.migrate(map)?;
        }
        let faulted = it.faulted()?;
        let cost = peer.memory_measure(3, 0)?;
        check!(cost.time > 0, "the pages cost nothing: {cost:?}");
        it.check_places(|page| page == 3)?;
        check_eq!(it.faulted()?, faulted + 3, "pages that left the GPU");
        cpu_reads(map, *a, &[0, 1, 2, 3])?;

        map.protect(1..2, libc::PROT_READ)?;
        peer.memory_measure(PAGES, 0)?;
        let write = peer.memory_measure(PAGES, uapi::EDU_PEER_MEMORY_MEASURE_WRITE);
        expect_errno("a look for pages to write", write, libc::EPERM)?;
        let good = EduPeerMemoryMeasure {
            length: PAGE64,
            ..Default::default()
        };
        for bad in [
            EduPeerMemoryMeasure { length: 0, ..good },
            EduPeerMemoryMeasure { length: 8, ..good },
            EduPeerMemoryMeasure { offset: 8, ..good },
            EduPeerMemoryMeasure {
                offset: PAGES as u64 * PAGE64,
                ..good
            },
            EduPeerMemoryMeasure { flags: 4, ..good },
            EduPeerMemoryMeasure { pad: 1, ..good },
            EduPeerMemoryMeasure { time: 1, ..good },
            EduPeerMemoryMeasure { clock: 1, ..good },
        ] {
            let mut argument = bad;
            let result = peer.memory_measure_raw(&mut argument);
            expect_errno(&format!("{bad:x?}"), result, libc::EINVAL)?;
        }
        Ok(())
    })
}

igt_main! {
    "system", "the peer reads and writes system memory of a process", system;
    "absent", "pages that are not there are faulted in", absent;
    "unaligned", "any bytes, and no others", unaligned;
    "stays", "pages of the GPU stay there if the peer reaches them", stays;
    "both-kinds", "exactly the pages that the device does not reach migrate", both_kinds;
    "mixed", "the page that the CPU needs moves, and no other one", mixed;
    "follows", "a registration follows its pages out of the GPU, and back", follows;
    "unmapped", "EFAULT for what is unmapped, until something is mapped there", unmapped;
    "protected", "the peer may do what the process may", protected;
    "bad-input", "what makes no sense is refused", bad_input;
    "registered", "one registration for each file, beside an attachment", registered;
    "measured", "what finds pages is timed, and leaves them where that is asked for", measured;
}

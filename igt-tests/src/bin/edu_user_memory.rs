// SPDX-License-Identifier: GPL-2.0

//! The peer reads and writes memory of processes by their addresses.
//!
//! Pages that are in the memory of the GPU are made by test_hmm, which has the GPU in place of its
//! own driver. Its own mirror of this process says where each page is, and how many pages it lost
//! to page faults.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use vvram_tests::dmirror::{Mirror, TestHmm};
use vvram_tests::drm::ioctl_raw;
use vvram_tests::heap;
use vvram_tests::map::{Map, PAGE};
use vvram_tests::memory::{bytes, complete, during, ended, kind_of, reached, reads, writes, Moved};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::{Child, Steps};
use vvram_tests::scene::{cpu_reads, patterns, Expect};
use vvram_tests::uapi::{
    self, EduPeerMemoryMeasure, EduPeerMemoryQuery, EduPeerTransfer,
    EDU_PEER_MEMORY_KIND_SYSTEM as SYSTEM,
};
use vvram_tests::userfault::Missing;
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome, Stop};

const PAGES: usize = 4;
const PAGE64: u64 = PAGE as u64;
/// Much longer than a step of a test takes.
const LIMIT: Duration = Duration::from_secs(20);
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Memory of this process that is registered, full of a pattern, and another pattern.
struct Setup {
    peer: Peer,
    map: Map,
    a: Pattern,
    b: Pattern,
}

impl Setup {
    fn of(map: Map) -> Result<Self, Stop> {
        let (a, b) = patterns();
        let peer = Peer::open()?;
        map.fill(a);
        peer.register(&map)?;
        Ok(Self { peer, map, a, b })
    }

    fn new() -> Result<Self, Stop> {
        Self::of(Map::private(PAGES * PAGE)?)
    }

    fn invalidations(&self) -> Result<u64, Stop> {
        Ok(self.peer.memory_counters()?.invalidations)
    }
}

/// A setup whose pages are in the memory of the GPU.
struct OnDevice<'a> {
    setup: &'a Setup,
    mirror: &'a Mirror,
    expect: Expect,
}

impl OnDevice<'_> {
    /// How many pages of the GPU page faults have moved to system memory so far.
    fn faulted(&self) -> Result<u64, Stop> {
        Ok(self.mirror.faulted(&self.setup.map)?)
    }

    fn check_places(&self, on_device: impl Fn(usize) -> bool) -> Outcome {
        self.mirror.check_places(&self.setup.map, on_device)
    }

    /// Compares what the GPU has.
    fn device_has(&self, pattern: Pattern, page: usize) -> Outcome {
        let all = self.mirror.read(&self.setup.map)?;
        let at = page * PAGE;
        if let Err(mismatch) = pattern.verify(&all[at..at + PAGE], at as u64) {
            fail!("the GPU: {mismatch}");
        }
        Ok(())
    }
}

fn on_device(body: impl FnOnce(&OnDevice<'_>, &mut TestHmm) -> Outcome) -> Outcome {
    let expect = Expect::get()?;
    let mut hmm = TestHmm::with_memory()?;
    let mirror = Mirror::open()?;
    let setup = Setup::new()?;
    mirror.migrate(&setup.map)?;
    let it = OnDevice {
        setup: &setup,
        mirror: &mirror,
        expect,
    };
    it.check_places(|_| true)?;
    body(&it, &mut hmm)?;
    drop(setup);
    drop(mirror);
    hmm.close()
}

/// System memory, private and shared, there and not yet there.
fn system() -> Outcome {
    for map in [Map::private(PAGES * PAGE)?, Map::anonymous(PAGES * PAGE)?] {
        let Setup { peer, map, a, b } = Setup::of(map)?;
        reached(&peer, 0, SYSTEM)?;
        reads(&peer, a, &[0])?;
        writes(&peer, b, &[1])?;
        cpu_reads(&map, b, &[1])?;
        cpu_reads(&map, a, &[0, 2, 3])?;
        let counters = peer.memory_counters()?;
        check_eq!(counters.denied, 0, "whether peer-to-peer was denied");
        check_eq!(
            (counters.kind, counters.dma_address),
            (uapi::EDU_PEER_MEMORY_KIND_NONE, 0),
            "what was not asked"
        );
    }
    Ok(())
}

/// Pages that are not there are faulted in, also by a write to what was read before.
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

/// Bytes that neither begin nor end where a page does.
fn unaligned() -> Outcome {
    const AT: usize = PAGE - 3;
    const LEN: usize = 10;
    let Setup { peer, map, a, b } = Setup::new()?;
    let mut data = [0xa5; LEN + 1];
    let (moved, result) = peer.memory_try_read(AT as u64, &mut data[..LEN]);
    result?;
    check_eq!(moved, LEN as u64, "bytes read");
    check_eq!(data[LEN], 0xa5, "the byte behind those read");
    if let Err(mismatch) = a.verify(&data[..LEN], AT as u64) {
        fail!("the peer read: {mismatch}");
    }
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

/// The device reaches pages of the GPU where they are. Where it does not, they move to system
/// memory one by one, as they are accessed.
fn stays() -> Outcome {
    on_device(|it, _| {
        let Setup { peer, map, a, b } = it.setup;
        let (faulted, invalidations) = (it.faulted()?, it.setup.invalidations()?);
        let kind = kind_of(it.expect);
        check!(invalidations > 0, "the migration invalidated nothing");
        if it.expect == Expect::Refused {
            reads(peer, *a, &[1])?;
            it.check_places(|page| page != 1)?;
            check_eq!(peer.memory_counters()?.denied, 1, "whether it was denied");
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
            check_eq!(peer.memory_counters()?.denied, 0, "whether it was denied");
            cpu_reads(map, *b, &[2])?;
            it.check_places(|page| page != 2)?;
        }
        cpu_reads(map, *a, &[0, 1, 3])
    })
}

/// The page that the CPU needs moves, and no other one.
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

/// What is unmapped cannot be accessed, and what is mapped there later can.
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
    if let Err(mismatch) = a.verify(&data[..PAGE], 0) {
        fail!("the page before: {mismatch}");
    }
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

/// The device may do what the process may.
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

/// What makes no sense, before, during and after a registration.
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
        (start, 0),
        (start + 1, PAGE64),
        (start, PAGE64 - 1),
        (start, uapi::EDU_PEER_MEMORY_MAX + PAGE64),
        (start, u64::MAX - PAGE64 + 1),
        (u64::MAX - PAGE64 + 1, 2 * PAGE64),
    ] {
        let result = peer.register_range(address, size);
        expect_errno(&format!("{size:#x} bytes at {address:#x}"), result, INVALID)?;
    }

    // There need not be memory, and there may be none for user space at all.
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
        EduPeerTransfer {
            direction: 2,
            ..good
        },
        EduPeerTransfer { pad: 1, ..good },
    ] {
        let mut argument = bad;
        // SAFETY: nothing is moved, or to the word.
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
        EduPeerMemoryQuery { flags: 2, ..query },
        EduPeerMemoryQuery {
            offset: size,
            ..query
        },
        EduPeerMemoryQuery {
            flags: 0,
            offset: 8,
            ..query
        },
        EduPeerMemoryQuery { kind: 1, ..query },
        EduPeerMemoryQuery {
            dma_address: 1,
            ..query
        },
        EduPeerMemoryQuery {
            invalidations: 1,
            ..query
        },
        EduPeerMemoryQuery { denied: 1, ..query },
        EduPeerMemoryQuery { pad: 1, ..query },
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
    for request in [
        uapi::EDU_PEER_IOC_MEMORY_REGISTER,
        uapi::EDU_PEER_IOC_MEMORY_TRANSFER,
        uapi::EDU_PEER_IOC_MEMORY_QUERY,
    ] {
        // SAFETY: nothing is mapped at the address.
        let result = unsafe { ioctl_raw(peer.fd(), request, 8, || format!("{request:#x} at 8")) };
        expect_errno("an argument at a bad address", result, libc::EFAULT)?;
    }
    Ok(())
}

/// A transfer that is refused writes nothing back.
fn unchanged((length, result): Moved, given: u64) -> Outcome {
    expect_errno("a transfer that makes no sense", result, libc::EINVAL)?;
    check_eq!(length, given, "the length of a transfer that is refused");
    Ok(())
}

/// One registration for each file, beside an attachment.
fn registered() -> Outcome {
    let Setup { peer, map, a, b } = Setup::new()?;
    expect_errno("a second one", peer.register(&map), libc::EBUSY)?;
    let other = peer.reopen()?;
    other.register(&map)?;
    writes(&other, b, &[0])?;
    reads(&peer, b, &[0])?;
    drop(other);

    let heap = heap::allocate(PAGE64)?;
    peer.attach(&heap, Mode::Static)?;
    peer.map()?;
    peer.write(0, &bytes(b, 1, 1))?;
    reached(&peer, 1, SYSTEM)?;
    peer.unregister()?;
    expect_errno("a query after it", peer.memory_counters(), libc::EINVAL)?;
    expect_errno("its end again", peer.unregister(), libc::EINVAL)?;
    peer.register(&map)?;
    peer.detach()?;
    reads(&peer, a, &[1])
}

/// After fork() the memory is still that of the parent, whoever calls.
fn fork() -> Outcome {
    let Setup { peer, map, a, b } = Setup::new()?;
    let (forked, written) = (Steps::new()?, Steps::new()?);
    let mut child = Child::spawn(|| {
        forked.done()?;
        written.wait("the write of the parent", LIMIT)?;
        cpu_reads(&map, a, &[0, 1])?;
        writes(&peer, b, &[1])?;
        cpu_reads(&map, a, &[0, 1])
    })?;
    forked.wait("the child", LIMIT)?;
    writes(&peer, b, &[0])?;
    cpu_reads(&map, b, &[0])?;
    cpu_reads(&map, a, &[1])?;
    written.done()?;
    child.join("the child", LIMIT)?;
    cpu_reads(&map, b, &[0, 1])?;
    cpu_reads(&map, a, &[2, 3])
}

/// Memory of a process that gave the file away, while that is there and later.
fn exited() -> Outcome {
    let (a, b) = patterns();
    let peer = Peer::open()?;
    let map = Map::private(PAGES * PAGE)?;
    let (there, written, seen) = (Steps::new()?, Steps::new()?, Steps::new()?);
    let mut child = Child::spawn(|| {
        map.fill(a);
        peer.register(&map)?;
        there.done()?;
        written.wait("a write by the other process", LIMIT)?;
        cpu_reads(&map, b, &[1])?;
        seen.done()?;
        vvram_tests::proc::sleep_forever()
    })?;
    there.wait("the registration", LIMIT)?;
    expect_errno("a second registration", peer.register(&map), libc::EBUSY)?;
    reads(&peer, a, &[0])?;
    writes(&peer, b, &[1])?;
    written.done()?;
    seen.wait("the process that has the memory", LIMIT)?;
    // It has that memory, and this process has not.
    if let Err(mismatch) = map.verify_value(0) {
        fail!("the memory of this process: {mismatch}");
    }
    child.kill()?;
    gone(&peer)?;
    peer.register(&map)?;
    writes(&peer, b, &[1])?;
    cpu_reads(&map, b, &[1])
}

/// Fails unless the process whose memory is registered is gone; ends the registration.
fn gone(peer: &Peer) -> Outcome {
    let mut word = [0u8; 8];
    expect_errno("a query", peer.memory_page(0), libc::ESRCH)?;
    ended("a read", peer.memory_try_read(0, &mut word), 0, libc::ESRCH)?;
    ended("a write", peer.memory_try_write(0, &word), 0, libc::ESRCH)?;
    check!(
        peer.memory_counters()?.invalidations > 0,
        "the end of the process invalidated nothing"
    );
    Ok(peer.unregister()?)
}

/// A process that runs another program has none of its old memory.
fn executed() -> Outcome {
    let (a, _) = patterns();
    let peer = Peer::open()?;
    let map = Map::private(PAGES * PAGE)?;
    let (there, go) = (Steps::new()?, Steps::new()?);
    let mut child = Child::spawn(|| {
        map.fill(a);
        peer.register(&map)?;
        there.done()?;
        go.wait("the other process", LIMIT)?;
        let error = Command::new("sleep").arg("1000").exec();
        fail!("exec(sleep): {error}");
    })?;
    there.wait("the registration", LIMIT)?;
    reads(&peer, a, &[0])?;
    go.done()?;
    let found = misc::poll(LIMIT, || {
        let result = peer.memory_page(0);
        result.is_err().then_some(())
    });
    check!(found.is_some(), "the memory outlives execve()");
    gone(&peer)?;
    check_eq!(child.ended(), None, "how the other program ended");
    child.kill()
}

/// A page that is migrated to the GPU while the device writes it takes along what is written, and
/// so does one that the CPU gets back.
fn migrated_meanwhile() -> Outcome {
    on_device(|it, _| {
        let Setup { peer, map, a, b } = it.setup;
        it.mirror.release(map)?;
        let data = bytes(*b, 0, 1);
        let moved = during(
            || peer.memory_try_write(0, &data),
            |_| Ok(it.mirror.migrate(map)?),
        )?;
        complete(moved, 1)?;
        it.check_places(|_| true)?;
        it.device_has(*b, 0)?;
        it.device_has(*a, 1)?;
        if it.expect == Expect::Refused {
            return Ok(());
        }

        let data = bytes(*a, 0, 1);
        let moved = during(
            || peer.memory_try_write(0, &data),
            |_| {
                check_eq!(map.read(0), a.word(0), "what the CPU reads");
                Ok(())
            },
        )?;
        complete(moved, 1)?;
        it.check_places(|page| page != 0)?;
        cpu_reads(map, *a, &[0, 1])?;
        reached(peer, 0, SYSTEM)
    })
}

/// munmap() and the end of a registration wait for the piece that is being moved.
fn waited_for() -> Outcome {
    let Setup { peer, map, a, b } = Setup::new()?;
    let data = bytes(b, 0, 2);
    let moved = during(
        || peer.memory_try_write(0, &data[..PAGE]),
        |mover| {
            map.punch(0)?;
            check!(!mover.is_moving(), "munmap() did not wait");
            Ok(())
        },
    )?;
    complete(moved, 1)?;
    map.refill(0)?;
    if let Err(mismatch) = map.verify_pages(a, 1, 3) {
        fail!("the other pages: {mismatch}");
    }
    let moved = during(
        || peer.memory_try_write(PAGE64, &data[PAGE..]),
        |mover| {
            peer.unregister()?;
            check!(!mover.is_moving(), "the end did not wait");
            Ok(())
        },
    )?;
    complete(moved, 1)?;
    cpu_reads(&map, b, &[1])
}

/// A transfer that finds the third of its pages unmapped ends there.
fn unmapped_meanwhile() -> Outcome {
    let Setup { peer, map, a, b } = Setup::new()?;
    // The transfer waits for what it is to write to the third page.
    let data = Map::private(3 * PAGE)?;
    data.fill(b);
    let missing = Missing::new(&data, 2)?;
    let mut argument = EduPeerTransfer {
        length: data.len() as u64,
        data: data.address().as_ptr() as u64,
        direction: uapi::EDU_PEER_DIRECTION_WRITE,
        ..Default::default()
    };
    let moved = std::thread::scope(|scope| {
        // SAFETY: the kernel only reads the mapping.
        let transfer = scope.spawn(|| unsafe { peer.memory_transfer_raw(&mut argument) });
        let outcome = missing.await_access().and_then(|()| {
            map.punch(2)?;
            Ok(missing.supply()?)
        });
        let moved = transfer.join();
        outcome.and(moved.map_err(|_| Stop::fail("the transfer panicked")))
    })?;
    ended("the transfer", moved, 2, libc::EFAULT)?;
    map.refill(2)?;
    cpu_reads(&map, b, &[0, 1])?;
    cpu_reads(&map, a, &[3])?;
    writes(&peer, a, &[2])?;
    cpu_reads(&map, a, &[2])
}

/// A registration ends while a transfer waits for a page of the process: nothing waits for that,
/// and the transfer ends when it has the page.
fn ended_meanwhile() -> Outcome {
    let Setup { peer, map, b, .. } = Setup::new()?;
    let data = bytes(b, 0, 2);
    let missing = Missing::new(&map, 1)?;
    let moved = std::thread::scope(|scope| {
        let transfer = scope.spawn(|| peer.memory_try_write(0, &data));
        let outcome = missing.await_access().and_then(|()| {
            peer.unregister()?;
            expect_errno("a query", peer.memory_counters(), libc::EINVAL)?;
            Ok(missing.supply()?)
        });
        let moved = transfer.join();
        outcome.and(moved.map_err(|_| Stop::fail("the transfer panicked")))
    })?;
    ended("the transfer", moved, 1, libc::ECANCELED)?;
    cpu_reads(&map, b, &[0])?;
    check_eq!(map.read(PAGE / 8), 0, "the first word of page 1");
    Ok(())
}

/// Unbinding the peer ends all use of the memory, and waits for a piece but for no page fault. What
/// is registered later is of the new time.
fn unbound() -> Outcome {
    let Setup { peer, map, a, b } = Setup::new()?;
    let (other, third) = (peer.reopen()?, peer.reopen()?);
    other.register(&map)?;
    let edu = PciDevice::named(peer.name());
    let Some(driver) = edu.driver() else {
        fail!("{} has no driver", edu.name());
    };
    let data = bytes(b, 0, 2);
    // One transfer waits for a page, and the device moves a piece of another one.
    let missing = Missing::new(&map, 3)?;
    let (stuck, moved) = std::thread::scope(|scope| {
        let stuck = scope.spawn(|| {
            let mut data = vec![0; PAGE];
            peer.memory_try_read(3 * PAGE64, &mut data)
        });
        let moved = missing.await_access().and_then(|()| {
            during(
                || other.memory_try_write(0, &data[..PAGE]),
                |mover| {
                    edu.unbind(&driver)?;
                    check!(!mover.is_moving(), "the unbind did not wait");
                    Ok(())
                },
            )
        });
        let supplied = missing.supply();
        match (stuck.join(), moved, supplied) {
            (Ok(stuck), Ok(moved), Ok(())) => Ok((stuck, moved)),
            (_, Err(stop), _) => Err(stop),
            (_, _, Err(error)) => Err(error.into()),
            (Err(_), ..) => Err(Stop::fail("the transfer panicked")),
        }
    })?;
    complete(moved, 1)?;
    ended("the transfer that waited", stuck, 0, libc::ENODEV)?;
    cpu_reads(&map, b, &[0])?;
    cpu_reads(&map, a, &[1, 2])?;
    without_device(&peer, &map)?;
    without_device(&third, &map)?;
    // The process goes on with its memory.
    map.punch(2)?;
    map.refill(2)?;

    edu.bind(&driver)?;
    without_device(&peer, &map)?;
    drop(other);
    let new = Peer::open()?;
    new.register(&map)?;
    reads(&new, b, &[0])?;
    without_device(&peer, &map)
}

/// All calls fail without a device.
fn without_device(peer: &Peer, map: &Map) -> Outcome {
    let mut word = [0u8; 8];
    expect_errno("a registration", peer.register(map), libc::ENODEV)?;
    expect_errno("a query", peer.memory_counters(), libc::ENODEV)?;
    expect_errno("a query of a page", peer.memory_page(0), libc::ENODEV)?;
    expect_errno("the end", peer.unregister(), libc::ENODEV)?;
    let (length, result) = peer.memory_try_read(0, &mut word);
    expect_errno("a read", result, libc::ENODEV)?;
    check_eq!(length, 8, "the length of a transfer that is refused");
    Ok(())
}

/// Pages that are timed stay on the GPU if that is asked for, and else move.
fn measured() -> Outcome {
    on_device(|it, _| {
        let Setup { peer, a, map, .. } = it.setup;
        let faulted = it.faulted()?;
        let p2p = uapi::EDU_PEER_MEMORY_MEASURE_P2P;
        for flags in [p2p, p2p | uapi::EDU_PEER_MEMORY_MEASURE_WRITE] {
            let cost = peer.memory_measure(PAGES, flags)?;
            check!(cost.time > 0, "the pages cost nothing: {cost:?}");
            it.check_places(|_| true)?;
        }
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

/// The registration outlives the GPU that its pages are on.
fn gpu_unbound() -> Outcome {
    on_device(|it, hmm| {
        let Setup { peer, map, a, b } = it.setup;
        if it.expect != Expect::Refused {
            writes(peer, *b, &[1])?;
            it.check_places(|_| true)?;
        }
        hmm.unbind()?;
        it.check_places(|_| false)?;
        reached(peer, 1, SYSTEM)?;
        let now = if it.expect == Expect::Refused { a } else { b };
        reads(peer, *now, &[1])?;
        writes(peer, *b, &[2])?;
        cpu_reads(map, *now, &[1])?;
        cpu_reads(map, *b, &[2])?;
        cpu_reads(map, *a, &[0, 3])
    })
}

igt_main! {
    "system", "the peer reads and writes system memory of a process", system;
    "absent", "pages that are not there are faulted in", absent;
    "unaligned", "any bytes, and no others", unaligned;
    "stays", "pages of the GPU stay there if the peer reaches them", stays;
    "mixed", "the page that the CPU needs moves, and no other one", mixed;
    "follows", "a registration follows its pages out of the GPU, and back", follows;
    "unmapped", "EFAULT for what is unmapped, until something is mapped there", unmapped;
    "protected", "the peer may do what the process may", protected;
    "bad-input", "what makes no sense is refused", bad_input;
    "registered", "one registration for each file, beside an attachment", registered;
    "fork", "the memory stays that of the process that registered it", fork;
    "exited", "memory of another process, until that is gone", exited;
    "executed", "another program has nothing of the memory", executed;
    "migrated-meanwhile", "a migration waits for the piece that is being moved", migrated_meanwhile;
    "waited-for", "munmap and the end of a registration wait for it as well", waited_for;
    "unmapped-meanwhile", "a transfer ends where its pages end", unmapped_meanwhile;
    "ended-meanwhile", "nothing waits for a page fault of a transfer", ended_meanwhile;
    "unbound", "an unbind of the peer waits for a piece, but for no page fault", unbound;
    "measured", "what finds pages is timed, and leaves them where that is asked for", measured;
    "gpu-unbound", "a registration outlives the GPU that its pages are on", gpu_unbound;
}

// SPDX-License-Identifier: GPL-2.0

//! The peer accesses memory of processes while the process, the memory or a device goes away.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use vvram_tests::fixture::{cpu_reads, patterns, Expect};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::memory::{
    bytes, complete, during, ended, on_device, reached, reads, writes, Setup, PAGES,
};
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Peer;
use vvram_tests::proc::{sleep_forever, Child, Steps};
use vvram_tests::uapi::{self, EduPeerTransfer, EDU_PEER_MEMORY_KIND_SYSTEM as SYSTEM};
use vvram_tests::userfault::Missing;
use vvram_tests::{check, check_eq, check_ok, expect_errno, fail, igt_main, Outcome, Stop};

/// Much longer than a step of a test takes.
const LIMIT: Duration = Duration::from_secs(20);

/// After fork() the registration is for the memory of the parent, also for calls of the child.
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

/// Memory of a process that has passed its open file on, while that process lives, and after its
/// exit.
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
        sleep_forever()
    })?;
    there.wait("the registration", LIMIT)?;
    expect_errno("a second registration", peer.register(&map), libc::EBUSY)?;
    reads(&peer, a, &[0])?;
    writes(&peer, b, &[1])?;
    written.done()?;
    seen.wait("the process that has the memory", LIMIT)?;
    // The bytes are in the memory of the child, and not in that of this process.
    check_ok!(map.verify_value(0), "the memory of this process");
    child.kill()?;
    gone(&peer)?;
    peer.register(&map)?;
    writes(&peer, b, &[1])?;
    cpu_reads(&map, b, &[1])
}

/// Checks that calls fail because the process of the registered memory is gone, and ends the
/// registration.
fn gone(peer: &Peer) -> Outcome {
    let mut word = [0u8; 8];
    expect_errno("a query", peer.memory_page(0), libc::ESRCH)?;
    ended("a read", peer.memory_try_read(0, &mut word), 0, libc::ESRCH)?;
    ended("a write", peer.memory_try_write(0, &word), 0, libc::ESRCH)?;
    // The memory counts as gone before its areas are torn down.
    let invalidated = misc::poll(LIMIT, || match peer.memory_counters() {
        Ok(now) if now.invalidations == 0 => None,
        told => Some(told),
    });
    check!(
        invalidated.transpose()?.is_some(),
        "the end of the process invalidated nothing"
    );
    Ok(peer.unregister()?)
}

/// After execve() the old memory of a process is gone.
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

/// A page that migrates to the GPU while the device writes to it keeps the bytes that are written,
/// and so does one that migrates back for the CPU.
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
    check_ok!(map.verify_pages(a, 1, 3), "the other pages");
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
    // The page fault on the source of the third page blocks the transfer.
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

/// A registration ends while a transfer waits for a page fault of the process: the end does not
/// wait for the transfer, which fails when the page fault is done.
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

/// An unbind of the peer ends all accesses to the memory. It waits for the piece that is being
/// moved, but for no page fault. A file that is opened later can register memory again.
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
    // The process can still change its memory.
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

/// The registration outlives the GPU that has its pages.
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
    "fork", "the memory stays that of the process that registered it", fork;
    "exited", "memory of another process, until that is gone", exited;
    "executed", "another program has nothing of the memory", executed;
    "migrated-meanwhile", "a migration waits for the piece that is being moved", migrated_meanwhile;
    "waited-for", "munmap and the end of a registration wait for it as well", waited_for;
    "unmapped-meanwhile", "a transfer ends where its pages end", unmapped_meanwhile;
    "ended-meanwhile", "nothing waits for a page fault of a transfer", ended_meanwhile;
    "unbound", "an unbind of the peer waits for a piece, but for no page fault", unbound;
    "gpu-unbound", "a registration outlives the GPU that its pages are on", gpu_unbound;
}

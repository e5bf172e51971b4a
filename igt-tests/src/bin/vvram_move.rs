// SPDX-License-Identifier: GPL-2.0

//! Objects that move between VRAM and system memory, under peers and the CPU.

use std::fs;
use std::thread;
use std::time::Duration;

use vvram_tests::debugfs::{Counter, DebugFs};
use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::edu;
use vvram_tests::fixture::{
    cpu_reads, in_system_memory, patterns, peer_reads, peer_writes, placed, squeeze, squeeze_idle,
    works, Expect, Fixture,
};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::rebind::Unbound;
use vvram_tests::storm::{Action, Storm};
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, uapi, vm, Outcome, Stop};

const VRAM: u32 = uapi::PLACEMENT_VRAM;
const SYSTEM: u32 = uapi::PLACEMENT_SYSTEM;

/// Checks the entry of PEER_ATTACHMENTS for one importer, by its index.
#[track_caller]
fn attached(object: &Gem<'_>, index: usize, path: u32, reason: u32) -> Outcome {
    let list = object.attachments()?;
    match list.get(index) {
        Some(entry) if entry.path == path && entry.reason == reason => Ok(()),
        _ => Err(Stop::fail(format_args!(
            "expected path {path} for reason {reason} as attachment {index} of {list:?}"
        ))),
    }
}

fn flags() -> Outcome {
    let drm = Drm::open()?;
    for (flags, placement) in [
        (EITHER, VRAM),
        (uapi::CREATE_SYSTEM, SYSTEM),
        (uapi::CREATE_VRAM, VRAM),
    ] {
        let free = drm.vram_free()?;
        let object = drm.create_flags(3 * PAGE64 - 1, flags)?;
        placed(&object, placement)?;
        let info = object.info()?;
        check_eq!(info.what(), flags, "what an object with {flags:#x} is");
        check_eq!(info.size, 3 * PAGE64, "its size");
        check_eq!(info.pinned, 0, "whether it is pinned");
        let used = if placement == VRAM { 3 * PAGE64 } else { 0 };
        drm.await_vram_free(free - used)?;
        check_ok!(
            object.map()?.verify_value(0),
            "a new object with flags {flags:#x} is not zero"
        );
    }
    expect_errno("GEM_INFO of no object", drm.info(0xdead), libc::ENOENT)?;
    Ok(())
}

/// An object whose only placement is VRAM stays there; an object with both placements is evicted
/// for others.
fn alone() -> Outcome {
    let drm = Drm::open()?;
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let (a, b) = patterns();
    let alone = drm.create_flags(4 * PAGE64, uapi::CREATE_VRAM)?;
    let either = drm.create_flags(4 * PAGE64, EITHER)?;
    let (alone_map, either_map) = (alone.map()?, either.map()?);
    alone_map.fill(a);
    either_map.fill(b);
    let others: Vec<Gem<'_>> = (0..16)
        .map(|_| drm.create_flags(size / 8, EITHER))
        .collect::<Result<_, _>>()?;
    placed(&either, SYSTEM)?;
    placed(&alone, VRAM)?;
    for _ in 0..2 {
        for object in &others {
            object.map()?.write(0, 1);
            placed(&alone, VRAM)?;
        }
    }
    cpu_reads(&alone_map, a, &[0, 1, 2, 3])?;
    cpu_reads(&either_map, b, &[0, 1, 2, 3])?;
    // An object that may only be in VRAM gets all that is left, and not a page more.
    expect_errno(
        "all of VRAM beside an object that stays there",
        drm.create_flags(size, uapi::CREATE_VRAM),
        libc::ENOSPC,
    )?;
    placed(&alone, VRAM)?;
    cpu_reads(&alone_map, a, &[0, 1, 2, 3])
}

/// No placement is large enough: the creation fails without a warning of the kernel, and nothing is
/// evicted.
fn too_large() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    for flags in [EITHER, uapi::CREATE_SYSTEM] {
        for size in [1 << 40, 1 << 62, u64::MAX] {
            expect_errno(
                &format!("GEM_CREATE of {size:#x} bytes with flags {flags:#x}"),
                drm.create_flags(size, flags),
                libc::ENOSPC,
            )?;
        }
    }
    drm.await_vram_free(free)?;
    Ok(())
}

/// Objects of four times the size of VRAM, all written and read twice.
fn oversubscribe() -> Outcome {
    let drm = Drm::open()?;
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let free = drm.vram_free()?;
    let piece = size / 16;
    let (seed, _) = patterns();
    let mut objects = Vec::new();
    for index in 0..64 {
        let object = drm.create_flags(piece, EITHER)?;
        placed(&object, VRAM)?;
        let map = object.map()?;
        check_ok!(map.verify_value(0), "object {index} is not zero at first");
        map.fill(seed.derive(index));
        objects.push((object, map));
    }
    let mut in_vram = 0;
    for (object, _) in &objects {
        in_vram += u64::from(object.info()?.placement == VRAM);
    }
    check!(
        (8..=16).contains(&in_vram),
        "{in_vram} of 64 objects of a 16th of VRAM are in VRAM"
    );
    for round in 0..2 {
        for (index, (object, map)) in objects.iter().enumerate() {
            check_ok!(
                map.verify(seed.derive(index as u64)),
                "object {index} in round {round}, {:?}",
                object.info()?
            );
        }
        // All objects that are left in VRAM are evicted.
        let taken = squeeze_idle(&drm)?;
        for (object, _) in &objects {
            placed(object, SYSTEM)?;
        }
        drop(taken);
    }
    drop(objects);
    drm.await_vram_free(free)?;
    Ok(())
}

/// A dynamic peer is invalidated when its object moves out and back, and reads the same bytes at
/// the new place.
fn peer_follows() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let object = fixture.drm.create_flags(4 * PAGE64, EITHER)?;
    let map = object.map()?;
    let buffer = object.export()?;
    let peer = &fixture.peer;
    let peer_path = fixture.expect.path();
    peer.attach(&buffer, Mode::Dynamic)?;
    for round in 0..3 {
        map.fill(a);
        peer.map()?;
        placed(&object, VRAM)?;
        attached(&object, 0, peer_path, uapi::REASON_NONE)?;
        let (_, layout) = fixture.check_table(peer, &map)?;
        fixture.check_vram(&layout, a, &[0, 3])?;
        peer_reads(peer, a, &[0, 3])?;

        let invalidated = peer.status()?.invalidations;
        let taken = squeeze_idle(&fixture.drm)?;
        check!(
            peer.status()?.invalidations > invalidated,
            "the peer was not notified of the move in round {round}"
        );
        check_eq!(
            peer.status()?.flags,
            uapi::EDU_PEER_STATUS_ATTACHED,
            "flags after the move: not mapped"
        );
        placed(&object, SYSTEM)?;
        peer_reads(peer, a, &[0, 1, 2, 3])?;
        placed(&object, SYSTEM)?;
        attached(&object, 0, uapi::PATH_SYSTEM, uapi::REASON_NO_VRAM)?;
        in_system_memory(&fixture, peer)?;
        peer_writes(peer, b, &[1, 2])?;
        cpu_reads(&map, a, &[0, 3])?;
        cpu_reads(&map, b, &[1, 2])?;

        // With room again the next mapping is in VRAM.
        drop(taken);
        peer.unmap()?;
        peer.map()?;
        placed(&object, VRAM)?;
        peer_reads(peer, b, &[1, 2])?;
        cpu_reads(&map, a, &[0, 3])?;
        peer.unmap()?;
    }
    Ok(())
}

/// The importer is invalidated even if no handle of the object is left.
fn peer_follows_without_handle() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    fixture.peer.attach_and_map(&buffer, Mode::Dynamic)?;
    object.close()?;
    drop(map);
    check_eq!(
        fixture.peer.status()?.invalidations,
        0,
        "invalidations so far"
    );
    let taken = squeeze_idle(&fixture.drm)?;
    check!(
        fixture.peer.status()?.invalidations > 0,
        "the peer was not notified that an object without a handle moved"
    );
    // VRAM belongs to other objects now; the peer must not access it.
    for other in &taken {
        other.map()?.fill(a.derive(1));
    }
    peer_reads(&fixture.peer, a, &[0, 1])
}

/// Importers that cannot have peer-to-peer memory get system memory, with the reason.
fn system_path() -> Outcome {
    let fixture = Fixture::open()?;
    let (a, b) = patterns();
    let no_route = fixture.expect == Expect::Refused;
    for mode in [Mode::Static, Mode::NoP2p, Mode::Dynamic, Mode::Pinned] {
        let opted_in = matches!(mode, Mode::Dynamic | Mode::Pinned);
        if opted_in && !no_route {
            continue;
        }
        let reason = if opted_in {
            uapi::REASON_NO_ROUTE
        } else {
            uapi::REASON_NO_OPT_IN
        };
        let object = fixture.drm.create_flags(4 * PAGE64, EITHER)?;
        let map = object.map()?;
        map.fill(a);
        placed(&object, VRAM)?;
        let buffer = object.export()?;
        let peer = fixture.peer.reopen()?;
        peer.attach(&buffer, mode)?;
        placed(&object, VRAM)?;
        peer.pin_and_map(mode)?;
        placed(&object, SYSTEM)?;
        attached(&object, 0, uapi::PATH_SYSTEM, reason)?;
        in_system_memory(&fixture, &peer)?;
        let pinned = matches!(mode, Mode::Static | Mode::Pinned);
        check_eq!(
            object.info()?.pinned,
            u32::from(pinned),
            "pinned in mode {mode:?}"
        );
        check_eq!(fixture.drm.counter(Counter::VramPinned)?, 0, "pinned VRAM");
        peer_reads(&peer, a, &[0, 1, 2, 3])?;
        peer_writes(&peer, b, &[1, 3])?;
        cpu_reads(&map, a, &[0, 2])?;
        cpu_reads(&map, b, &[1, 3])?;
        peer.detach()?;
        check_eq!(
            object.info()?.pinned,
            0,
            "pinned after the detach, mode {mode:?}"
        );
    }
    Ok(())
}

/// All importers get an object that may only be in system memory there.
fn system_only() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    for mode in [Mode::Dynamic, Mode::Pinned, Mode::Revocable] {
        let object = fixture.drm.create_flags(2 * PAGE64, uapi::CREATE_SYSTEM)?;
        object.map()?.fill(a);
        let buffer = object.export()?;
        let peer = fixture.peer.reopen()?;
        peer.attach_and_map(&buffer, mode)?;
        placed(&object, SYSTEM)?;
        attached(&object, 0, uapi::PATH_SYSTEM, uapi::REASON_SYSTEM_ONLY)?;
        in_system_memory(&fixture, &peer)?;
        peer_reads(&peer, a, &[0, 1])?;
    }
    Ok(())
}

/// Two importers, of which one needs system memory: both get system memory.
fn mixed() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    object.map()?.fill(a);
    let buffer = object.export()?;
    let peer = &fixture.peer;
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    placed(&object, VRAM)?;
    let other = peer.reopen()?;
    other.attach(&buffer, Mode::NoP2p)?;
    // The object does not move until it is mapped.
    attached(&object, 0, fixture.expect.path(), uapi::REASON_NONE)?;
    peer_reads(peer, a, &[0])?;
    check_eq!(peer.status()?.invalidations, 0, "invalidations so far");
    other.map()?;
    placed(&object, SYSTEM)?;
    check!(
        peer.status()?.invalidations > 0,
        "the peer was not notified that another importer moved the object"
    );
    for at in [peer, &other] {
        peer_reads(at, a, &[0, 1])?;
        placed(&object, SYSTEM)?;
        in_system_memory(&fixture, at)?;
    }
    attached(&object, 0, uapi::PATH_SYSTEM, uapi::REASON_OTHER_IMPORTER)?;
    attached(&object, 1, uapi::PATH_SYSTEM, uapi::REASON_NO_OPT_IN)?;
    // When the other importer is gone, the path is peer to peer again.
    other.detach()?;
    peer.unmap()?;
    peer.map()?;
    placed(&object, VRAM)?;
    attached(&object, 0, fixture.expect.path(), uapi::REASON_NONE)?;
    peer_reads(peer, a, &[0, 1])
}

/// A pin keeps an object where it is, and an importer that needs another placement is refused.
fn pin_holds() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    for mode in [Mode::Pinned, Mode::Revocable] {
        let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
        let map = object.map()?;
        map.fill(a);
        let buffer = object.export()?;
        let peer = fixture.peer.reopen()?;
        peer.attach(&buffer, mode)?;
        // The pin moves the object to VRAM.
        let taken = squeeze_idle(&fixture.drm)?;
        placed(&object, SYSTEM)?;
        drop(taken);
        peer.pin()?;
        placed(&object, VRAM)?;
        check_eq!(object.info()?.pinned, 1, "pinned in mode {mode:?}");
        check_eq!(
            fixture.drm.counter(Counter::VramPinned)?,
            2 * PAGE64,
            "pinned VRAM"
        );
        peer.map()?;
        fixture.check_table(&peer, &map)?;
        let invalidated = peer.status()?.invalidations;
        let taken = squeeze_idle(&fixture.drm)?;
        placed(&object, VRAM)?;
        check_eq!(
            peer.status()?.invalidations,
            invalidated,
            "invalidations of a pinned peer"
        );
        peer_reads(&peer, a, &[0, 1])?;
        drop(taken);

        for other_mode in [Mode::Static, Mode::NoP2p] {
            let other = fixture.peer.reopen()?;
            expect_errno(
                "attaching for system memory to an object that is pinned in VRAM",
                other.attach(&buffer, other_mode),
                libc::EOPNOTSUPP,
            )?;
            let list = object.attachments()?;
            let last = list.last();
            check!(
                last.is_some_and(|entry| entry.path == uapi::PATH_REFUSED
                    && entry.reason == uapi::REASON_PINNED_ELSEWHERE),
                "expected a refusal for reason pinned-elsewhere at the end of {list:?}"
            );
        }
        peer.unpin()?;
        check_eq!(object.info()?.pinned, 0, "pinned after the unpin");
        check_eq!(fixture.drm.counter(Counter::VramPinned)?, 0, "pinned VRAM");
    }
    Ok(())
}

/// A peer that attaches to an object that is pinned in system memory gets system memory, with the
/// reason.
fn pinned_in_system() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    object.map()?.fill(a);
    let buffer = object.export()?;
    let first = fixture.peer.reopen()?;
    first.attach_and_map(&buffer, Mode::Static)?;
    placed(&object, SYSTEM)?;
    check_eq!(
        object.info()?.pinned,
        1,
        "pinned by the core for a static importer"
    );
    let peer = &fixture.peer;
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    placed(&object, SYSTEM)?;
    attached(&object, 1, uapi::PATH_SYSTEM, uapi::REASON_PINNED_ELSEWHERE)?;
    in_system_memory(&fixture, peer)?;
    peer_reads(peer, a, &[0, 1])?;
    peer_reads(&first, a, &[0, 1])
}

/// A pin leaves an object in system memory if no object in VRAM can be evicted.
fn pinned_without_room() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let taken = squeeze(&fixture.drm)?;
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    object.map()?.fill(a);
    placed(&object, SYSTEM)?;
    let buffer = object.export()?;
    let peer = &fixture.peer;
    peer.attach(&buffer, Mode::Pinned)?;
    peer.pin()?;
    placed(&object, SYSTEM)?;
    check_eq!(object.info()?.pinned, 1, "pinned");
    peer.map()?;
    in_system_memory(&fixture, peer)?;
    peer_reads(peer, a, &[0, 1])?;
    // The object stays there when there is room.
    drop(taken);
    placed(&object, SYSTEM)?;
    peer_reads(peer, a, &[0, 1])
}

/// No more than the limit can be pinned; pinned objects stay pinned, and a failed pin is not
/// charged.
fn quota() -> Outcome {
    let fixture = Fixture::with_route()?;
    let limit = fixture.drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?;
    let size = fixture.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    check_eq!(limit, size / 2, "the limit at first");
    let piece = limit / 4;
    let mut pinned = Vec::new();
    for count in 0..5 {
        let object = fixture.drm.create_flags(piece, EITHER)?;
        let buffer = object.export()?;
        let peer = fixture.peer.reopen()?;
        peer.attach(&buffer, Mode::Pinned)?;
        if count == 4 {
            expect_errno("a pin over the quota", peer.pin(), libc::EDQUOT)?;
            check_eq!(object.info()?.pinned, 0, "pinned after the failure");
            // The failed pin is not charged, and neither is a second pin of the same object.
            check_eq!(
                fixture.drm.counter(Counter::VramPinned)?,
                limit,
                "pinned VRAM"
            );
            peer.detach()?;
        } else {
            peer.pin()?;
            let again = fixture.peer.reopen()?;
            again.attach(&buffer, Mode::Pinned)?;
            again.pin()?;
            check_eq!(
                fixture.drm.counter(Counter::VramPinned)?,
                (count + 1) * piece,
                "pinned VRAM"
            );
            pinned.push((object, peer, again));
        }
    }
    pinned.pop();
    check_eq!(
        fixture.drm.counter(Counter::VramPinned)?,
        3 * piece,
        "pinned VRAM after the files were closed"
    );
    drop(pinned);
    check_eq!(
        fixture.drm.counter(Counter::VramPinned)?,
        0,
        "pinned VRAM at the end"
    );
    Ok(())
}

/// An object does not move while it has a vmap.
fn vmap_holds() -> Outcome {
    let fixture = Fixture::open()?;
    let (a, b) = patterns();
    for flags in [EITHER, uapi::CREATE_SYSTEM] {
        let object = fixture.drm.create_flags(2 * PAGE64, flags)?;
        let map = object.map()?;
        map.fill(a);
        let buffer = object.export()?;
        let peer = fixture.peer.reopen()?;
        peer.attach(&buffer, Mode::Cpu)?;
        peer.map()?;
        let at = object.info()?.placement;
        let iomem = peer.status()?.flags & uapi::EDU_PEER_STATUS_IOMEM != 0;
        check_eq!(iomem, at == VRAM, "I/O memory for flags {flags:#x}");
        let taken = squeeze_idle(&fixture.drm)?;
        placed(&object, at)?;
        peer_reads(&peer, a, &[0, 1])?;
        peer_writes(&peer, b, &[1])?;
        cpu_reads(&map, b, &[1])?;
        peer.unmap()?;
        drop(taken);
        let taken = squeeze_idle(&fixture.drm)?;
        placed(&object, SYSTEM)?;
        cpu_reads(&map, a, &[0])?;
        cpu_reads(&map, b, &[1])?;
        // If there is no room in VRAM, the object is mapped where it is.
        peer_reads(&peer, b, &[1])?;
        check_eq!(
            peer.status()?.flags & uapi::EDU_PEER_STATUS_IOMEM,
            0,
            "I/O memory of an object in system memory"
        );
        drop(taken);
    }
    Ok(())
}

/// Swaps out one object of any driver; returns whether there was one.
fn swap_out() -> Result<bool, Stop> {
    const FILE: &str = "/sys/kernel/debug/ttm/tt_shrink";
    match fs::read_to_string(FILE) {
        Ok(text) => Ok(text.trim() != "0"),
        Err(error) => Err(Stop::fail(format_args!("{FILE}: {error}"))),
    }
}

/// Swapping is a move for which TTM does not call the driver, so no importer may have mapped an
/// object that TTM swaps out.
fn swap() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let object = fixture.drm.create_flags(4 * PAGE64, uapi::CREATE_SYSTEM)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    let peer = &fixture.peer;
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    let invalidated = peer.status()?.invalidations;
    let swapped = misc::poll(Duration::from_secs(10), || match swap_out() {
        Ok(true) if peer.status().is_ok_and(|s| s.invalidations > invalidated) => Some(()),
        _ => None,
    });
    check!(
        swapped.is_some(),
        "the object was not swapped out, or the peer not notified"
    );
    peer_reads(peer, a, &[0, 3])?;
    while swap_out()? {}
    cpu_reads(&map, a, &[0, 1, 2, 3])?;

    // The object is swapped out, then mapped by the kernel, which swaps it in, and then by the
    // peer.
    while swap_out()? {}
    let kernel = peer.reopen()?;
    kernel.attach(&buffer, Mode::Cpu)?;
    peer_reads(&kernel, a, &[0, 1, 2, 3])?;
    check_eq!(object.info()?.pinned, 1, "pinned while the kernel maps it");
    peer.map()?;
    let invalidated = peer.status()?.invalidations;
    while swap_out()? {}
    check_eq!(
        peer.status()?.invalidations,
        invalidated,
        "invalidations of a pinned object"
    );
    peer_writes(peer, b, &[1, 2])?;
    peer_reads(&kernel, b, &[1, 2])?;
    kernel.unmap()?;
    while swap_out()? {}
    check!(
        peer.status()?.invalidations > invalidated,
        "the peer was not notified when the object was swapped out after the kernel's mapping"
    );
    peer_reads(peer, a, &[0, 3])?;
    peer_reads(peer, b, &[1, 2])?;

    // A swapped object moves to VRAM.
    let object = fixture.drm.create_flags(4 * PAGE64, EITHER)?;
    let map = object.map()?;
    map.fill(a);
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let id = object.info()?.id;
    debugfs.force(id, "system")?;
    while swap_out()? {}
    check_eq!(
        debugfs.buffer(id)?.placement,
        "swappable",
        "placement of what was swapped out"
    );
    debugfs.write("move", &format!("{id} vram"))?;
    placed(&object, VRAM)?;
    cpu_reads(&map, a, &[0, 1, 2, 3])
}

/// A move waits for a transfer that is under way, because its addresses are those of the old place.
fn in_flight() -> Outcome {
    // A transfer takes fewer pages if they are large.
    const PAGES: usize = if 4 * PAGE < uapi::EDU_PEER_SUBMIT_MAX {
        4
    } else {
        uapi::EDU_PEER_SUBMIT_MAX / PAGE
    };
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let size = (PAGES * PAGE) as u64;
    let object = fixture.drm.create_flags(size, EITHER)?;
    let (map, buffer) = (object.map()?, object.export()?);
    let peer = &fixture.peer;
    map.fill(a);
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    fixture.check_table(peer, &map)?;
    let mut data = vec![0; PAGES * PAGE];
    b.fill(&mut data, 0);
    let _slow = edu::slow()?;
    peer.submit_write(0, &data)?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    debugfs.write("move", &format!("{} system", object.info()?.id))?;
    placed(&object, SYSTEM)?;
    check_ok!(map.verify(b), "the bytes after the move");
    check_eq!(peer.finish_write()?, size, "bytes written");
    check_eq!(peer.status()?.invalidations, 1, "invalidations");
    peer_reads(peer, b, &[0, PAGES - 1])
}

/// A dynamic peer, and one without peer-to-peer memory, read and write while other processes
/// allocate VRAM all the time.
fn storm() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let object = fixture.drm.create_flags(4 * PAGE64, EITHER)?;
    let map = object.map()?;
    let buffer = object.export()?;
    fixture.peer.attach(&buffer, Mode::Dynamic)?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    fixture.drm.vm_bind(&object, 0)?;
    let invalidation = Action::new("invalidation", &[], 12);
    let unmap = Action::new("unmap", &[libc::EINVAL], 1);
    let mut storm = Storm::new(Duration::from_secs(20), &[invalidation, unmap])?;
    // Each time the object has moved to VRAM, it is evicted while the peer accesses it.
    storm.meanwhile(|_, _| {
        if object.info()?.placement == VRAM {
            drop(squeeze_idle(&Drm::open()?)?);
        }
        thread::sleep(Duration::from_millis(1));
        Ok(())
    })?;
    // A round takes long enough for a move.
    let _slow = edu::slow_by(Duration::from_millis(10))?;
    let mut invalidated = 0;
    for round in storm.rounds(12) {
        let pattern = a.derive(round);
        let page = (round % 4) as usize;
        if round % 2 == 0 {
            peer_writes(&fixture.peer, pattern, &[page])?;
            cpu_reads(&map, pattern, &[page])?;
        } else {
            map.fill(pattern);
        }
        peer_reads(&fixture.peer, pattern, &[page])?;
        // The entries of page tables are those of the object, or not present, also when they are
        // filled again.
        vm::mappings(&debugfs)?;
        let seen = fixture.drm.vm_read(page as u64 * PAGE64, PAGE, 0)?;
        check_eq!(
            pattern.verify(&seen, page as u64 * PAGE64),
            Ok(()),
            "bytes by the page table"
        );
        vm::mappings(&debugfs)?;
        let status = fixture.peer.status()?;
        storm.done("invalidation", status.invalidations - invalidated);
        invalidated = status.invalidations;
        // The next transfer maps it again, in VRAM if there is room at the moment. It fails if the
        // peer was just invalidated by another move.
        if status.flags & uapi::EDU_PEER_STATUS_MAPPED != 0 {
            storm.tried("unmap", fixture.peer.unmap())?;
        }
    }
    storm.end()
}

/// An unbind while a peer maps an object in system memory.
fn unbind_in_system() -> Outcome {
    let fixture = Fixture::with_route()?;
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let map = object.map()?;
    map.write(0, 1);
    let buffer = object.export()?;
    fixture.peer.attach(&buffer, Mode::Dynamic)?;
    let taken = squeeze_idle(&fixture.drm)?;
    fixture.peer.map()?;
    placed(&object, SYSTEM)?;
    let gone = Unbound::new(&fixture.gpu)?;
    check!(
        fixture.peer.status()?.invalidations > 0,
        "the peer was not notified of the unbind"
    );
    expect_errno("map", fixture.peer.map(), libc::ENODEV)?;
    expect_errno("GEM_INFO", object.info(), libc::ENODEV)?;
    gone.rebind()?;
    drop((taken, map));
    works()
}

/// The swapping of a mapped object is the task of TTM. This tests that no bytes are lost when the
/// CPU writes to an object while it is in system memory.
fn cpu_follows() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let object = drm.create_flags(8 * PAGE64, EITHER)?;
    let maps: Vec<Map> = vec![object.map()?, object.map()?];
    maps[0].fill(a);
    for _ in 0..4 {
        placed(&object, VRAM)?;
        let taken = squeeze_idle(&drm)?;
        placed(&object, SYSTEM)?;
        check_ok!(maps[1].verify(a), "in system memory");
        maps[1].fill(b);
        drop(taken);
        // The CPU accesses the object where it is.
        check_ok!(maps[0].verify(b), "still in system memory");
        placed(&object, SYSTEM)?;
        back_to_vram(&object)?;
        check_ok!(maps[0].verify(b), "back in VRAM");
        maps[0].fill(a);
    }
    Ok(())
}

/// Makes a peer map an object, and checks that this moves the object back to VRAM.
fn back_to_vram(object: &Gem<'_>) -> Outcome {
    let buffer = object.export()?;
    let peer = Peer::open()?;
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    peer.detach()?;
    let placed_in_vram = misc::poll(Duration::from_secs(1), || {
        object.info().ok().filter(|info| info.placement == VRAM)
    });
    check!(
        placed_in_vram.is_some(),
        "a peer did not bring the object back"
    );
    Ok(())
}

fn cpu_follows_with_route() -> Outcome {
    let _fixture = Fixture::with_route()?;
    cpu_follows()
}

igt_main! {
    "alone", "with VRAM as its only placement an object stays there", alone;
    "flags", "where new objects are, and what GEM_INFO says", flags;
    "too-large", "ENOSPC for what no memory holds", too_large;
    "oversubscribe", "objects of four times VRAM keep their bytes", oversubscribe;
    "cpu-follows", "mappings of processes follow an object there and back", cpu_follows_with_route;
    "peer-follows", "a dynamic peer follows an object there and back", peer_follows;
    "without-handle", "the same for an object that only a dma-buf keeps", peer_follows_without_handle;
    "system-path", "importers without peer-to-peer memory get system memory", system_path;
    "system-only", "objects of system memory are served from there", system_only;
    "mixed", "one importer in need of system memory moves the object for all", mixed;
    "pin-holds", "pinned objects stay, and refuse importers that cannot reach them there", pin_holds;
    "pinned-in-system", "a peer is notified of a pin in system memory", pinned_in_system;
    "pinned-without-room", "a pin while nothing leaves VRAM", pinned_without_room;
    "quota", "EDQUOT over the limit of pinned VRAM", quota;
    "swap", "peers of what is swapped out are notified, and find the same bytes", swap;
    "vmap-holds", "what the kernel maps does not move", vmap_holds;
    "in-flight", "a transfer that is under way", in_flight;
    "storm", "verified transfers while VRAM is taken all the time, through a dozen moves", storm;
    "unbind-in-system", "an unbind reaches mappings of system memory", unbind_in_system;
}

// SPDX-License-Identifier: GPL-2.0

//! Moves from and to system memory that devices see through bounce buffers.
//!
//! A mapping copies the bytes to the bounce buffer when it is made, and bytes that the device
//! writes are copied back when the mapping is synchronized or unmapped: a move has to do both at
//! the right time. On a machine without bounce buffers these tests pass, too.

use vvram_tests::drm::EITHER;
use vvram_tests::edu;
use vvram_tests::fixture::{cpu_reads, patterns, peer_reads, placed, setting, Fixture};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::memory::reached;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::uapi::{self, DMA_BUF_SYNC_END as END, DMA_BUF_SYNC_WRITE as WRITE};
use vvram_tests::{check, check_eq, expect_errno, heap, igt_main, Outcome};

/// So large that the engine is busy before a move. A bounce buffer is smaller.
const LARGE: u64 = 2 << 20;
/// As much as one asynchronous transfer moves.
const LONG: usize = uapi::EDU_PEER_SUBMIT_MAX / PAGE;

/// The bytes that a move copies to system memory are there when the mapping is made.
fn down() -> Outcome {
    let fixture = Fixture::open()?;
    for mode in [Mode::Static, Mode::NoP2p] {
        let (a, _) = patterns();
        let object = fixture.drm.create_flags((LONG * PAGE) as u64, EITHER)?;
        let (map, buffer) = (object.map()?, object.export()?);
        let (from, to) = (fixture.drm.create(LARGE)?, fixture.drm.create(LARGE)?);

        map.fill(a);
        placed(&object, uapi::PLACEMENT_VRAM)?;
        fixture.peer.attach(&buffer, mode)?;
        // The move is queued behind these copies.
        for _ in 0..8 {
            fixture.drm.copy((&from, 0), (&to, 0), LARGE)?;
        }
        fixture.peer.map()?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        peer_reads(&fixture.peer, a, &[0, LONG / 2, LONG - 1])?;
        fixture.peer.detach()?;
    }
    Ok(())
}

/// The bytes that a device writes to system memory move to VRAM with the object.
fn up() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let object = fixture.drm.create_flags((LONG * PAGE) as u64, EITHER)?;
    let (map, buffer) = (object.map()?, object.export()?);
    let (peer, other) = (&fixture.peer, fixture.peer.reopen()?);

    map.fill(a);
    // The object is in system memory because of the other importer, which then detaches.
    other.attach_and_map(&buffer, Mode::NoP2p)?;
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    other.detach()?;

    let mut data = vec![0u8; LONG * PAGE];
    b.fill(&mut data, 0);
    let _slow = edu::slow()?;
    peer.submit_write(0, &data)?;
    check!(
        peer.status()?.flags & uapi::EDU_PEER_STATUS_BUSY != 0,
        "the transfer is over before it was looked at"
    );
    other.attach_and_map(&buffer, Mode::Dynamic)?;
    placed(&object, uapi::PLACEMENT_VRAM)?;
    cpu_reads(&map, b, &(0..LONG).collect::<Vec<_>>())?;
    check_eq!(peer.finish_write()?, (LONG * PAGE) as u64, "bytes written");
    check_eq!(peer.status()?.invalidations, 1, "invalidations");
    peer_reads(&other, b, &[0, LONG - 1])
}

/// A copy to a buffer of another exporter is an access by the CPU, after whose end devices see the
/// bytes.
fn copied() -> Outcome {
    let fixture = Fixture::open()?;
    let (a, _) = patterns();
    let heap = heap::allocate((LONG * PAGE) as u64)?;
    let import = fixture.drm.import(&heap)?;
    let object = fixture.drm.create((LONG * PAGE) as u64)?;

    let map = object.map()?;
    heap.sync(WRITE)?;
    heap.map()?.fill(a);
    heap.sync(WRITE | END)?;
    fixture.peer.attach_and_map(&heap, Mode::Static)?;
    peer_reads(&fixture.peer, a, &[0, LONG - 1])?;

    // The access has ended when the copy is done, on whichever processor the copy runs.
    for round in 0..8 {
        let b = a.derive(1 + round);
        map.fill(b);
        fixture
            .drm
            .copy((&object, 0), (&import, 0), (LONG * PAGE) as u64)?
            .finish()?;
        peer_reads(&fixture.peer, b, &[0, LONG - 1])?;
    }
    Ok(())
}

/// Memory of processes is refused where DMA is bounced, because no call would synchronize the
/// bounce buffers.
fn user_memory() -> Outcome {
    let peer = Peer::open()?;
    let map = Map::private(PAGE)?;
    if setting("swiotlb").as_deref() == Some("force") {
        expect_errno("what is bounced", peer.register(&map), libc::EOPNOTSUPP)?;
        return expect_errno("a query", peer.memory_counters(), libc::EINVAL);
    }
    peer.register(&map)?;
    reached(&peer, 0, uapi::EDU_PEER_MEMORY_KIND_SYSTEM)
}

igt_main! {
    "down", "a mapping has what a move brought to system memory", down;
    "up", "a move to VRAM takes along what a device wrote", up;
    "copied", "a copy to an imported buffer reaches its other importers", copied;
    "user-memory", "memory of processes cannot be bounced", user_memory;
}

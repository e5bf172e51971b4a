// SPDX-License-Identifier: GPL-2.0

//! Asynchronous moves: the ioctl returns before the copy is done.

use std::time::Duration;

use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::fixture::{patterns, Fixture};
use vvram_tests::map::PAGE;
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Mode;
use vvram_tests::proc::Child;
use vvram_tests::rebind::Unbound;
use vvram_tests::{check, check_eq, check_ok, igt_main, uapi, Outcome};

const VRAM: u32 = uapi::PLACEMENT_VRAM;
const SYSTEM: u32 = uapi::PLACEMENT_SYSTEM;
const MIB: u64 = 1 << 20;
/// How often a test checks for work that is under way, at least and at most. If ioctls waited for
/// moves, the test would never find any. If they do not, the work takes milliseconds and a check
/// takes microseconds, so only a task that is preempted misses it.
const LOOKS: std::ops::Range<u64> = 2..40;

/// Creates an object of all VRAM that is free. The creation clears it.
fn whole_vram(drm: &Drm, flags: u32) -> Result<Gem<'_>, vvram_tests::Stop> {
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    Ok(drm.create_flags(size, flags)?)
}

/// The clearing of a new object goes on after the ioctl has returned; an access waits for it.
fn clear() -> Outcome {
    let drm = Drm::open()?;
    let (mut busy, mut round) = (0, 0);
    while round < LOOKS.start || busy == 0 {
        check!(
            round < LOOKS.end,
            "no work was under way when the ioctl returned, in any of {round} rounds"
        );
        let object = whole_vram(&drm, uapi::CREATE_VRAM)?;
        let buffer = object.export()?;
        busy += u64::from(!buffer.is_idle()?);
        let map = object.map()?;
        check_ok!(
            map.verify_value(0),
            "a new object is not zero in round {round}"
        );
        check!(buffer.is_idle()?, "the object is busy after it was read");
        // The next object must not show these bytes.
        map.set(!0);
        round += 1;
    }
    Ok(())
}

/// An eviction goes on after the ioctl that caused it has returned, and the memory of the new owner
/// is cleared after that: neither object shows the bytes of the other.
fn eviction() -> Outcome {
    let drm = Drm::open()?;
    let (seed, _) = patterns();
    let (mut busy, mut round) = (0, 0);
    while round < LOOKS.start || busy == 0 {
        check!(
            round < LOOKS.end,
            "no work was under way when the ioctl returned, in any of {round} rounds"
        );
        let pattern = seed.derive(round);
        let first = whole_vram(&drm, EITHER)?;
        let map = first.map()?;
        map.fill(pattern);
        let buffer = first.export()?;
        check_eq!(
            first.info()?.placement,
            VRAM,
            "placement before the eviction"
        );
        let moves = drm.counter(Counter::Moves)?;
        let second = whole_vram(&drm, uapi::CREATE_VRAM)?;
        busy += u64::from(!buffer.is_idle()?);
        check_eq!(drm.counter(Counter::Moves)?, moves + 1, "moves");
        check_eq!(
            first.info()?.placement,
            SYSTEM,
            "placement after the eviction"
        );
        check_eq!(
            second.info()?.placement,
            VRAM,
            "placement of the new object"
        );
        check_ok!(
            second.map()?.verify_value(0),
            "the new object is not zero in round {round}"
        );
        check_ok!(map.verify(pattern), "the evicted object in round {round}");
        round += 1;
    }
    Ok(())
}

/// A chain of moves of the same memory: each object moves out while the next one moves in, and all
/// keep their bytes.
fn chain() -> Outcome {
    let drm = Drm::open()?;
    let (seed, _) = patterns();
    let mut objects = Vec::new();
    for index in 0..6 {
        let object = whole_vram(&drm, EITHER)?;
        let map = object.map()?;
        map.fill_pages(seed.derive(index), 0, 8);
        objects.push((object, map));
    }
    // The test does not wait for the moves in between.
    let taken = whole_vram(&drm, uapi::CREATE_VRAM)?;
    for (index, (object, map)) in objects.iter().enumerate() {
        check_eq!(
            object.info()?.placement,
            SYSTEM,
            "placement of an old object"
        );
        check_ok!(
            map.verify_pages(seed.derive(index as u64), 0, 8),
            "object {index}"
        );
        check_eq!(map.read(PAGE), 0, "what was never written to");
    }
    drop(taken);
    Ok(())
}

/// A peer that maps an object during its move reads all of it.
fn peer_waits() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (seed, _) = patterns();
    // The move takes longer than the query of whether it was moved.
    let size = 8 * MIB;
    let object = fixture.drm.create_flags(size, EITHER)?;
    let map = object.map()?;
    let buffer = object.export()?;
    fixture.peer.attach(&buffer, Mode::Dynamic)?;
    let last = (size / PAGE as u64) as usize - 1;
    for round in 0..3 {
        let pattern = seed.derive(round);
        map.fill_pages(pattern, last, 1);
        let taken = whole_vram(&fixture.drm, uapi::CREATE_VRAM)?;
        check_eq!(
            object.info()?.placement,
            SYSTEM,
            "placement in round {round}"
        );
        // The last page is copied last.
        vvram_tests::fixture::peer_reads(&fixture.peer, pattern, &[last])?;
        check_eq!(taken.map()?.read(0), 0, "a new object");
        drop(taken);
        fixture.peer.unmap()?;
        fixture.peer.map()?;
        check!(
            buffer.sync_file(uapi::DMA_BUF_SYNC_WRITE)?.poll(0)?,
            "round {round}: the peer has a mapping, and the content is on its way"
        );
        check_eq!(object.info()?.placement, VRAM, "placement for the peer");
        vvram_tests::fixture::peer_reads(&fixture.peer, pattern, &[last])?;
    }
    fixture.peer.detach()?;
    Ok(())
}

/// The memory of objects that are closed while they are being cleared is freed.
fn closed() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    for _ in 0..50 * misc::soak() {
        drop(drm.create_flags(MIB, EITHER)?);
    }
    drm.await_vram_free(free)
}

/// Tasks that make room at the same time do not fail with ENOSPC.
fn contended() -> Outcome {
    const TASKS: u64 = 4;

    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    // All tasks together never use more than half of VRAM.
    let share = size / 2 / TASKS;
    let mut others = Vec::new();
    for _ in 0..2 * size / MIB {
        others.push(drm.create_flags(MIB, EITHER)?);
    }
    let mut children = Vec::new();
    for _ in 0..TASKS {
        children.push(Child::spawn(move || {
            let drm = Drm::open()?;
            for _ in 0..10 * misc::soak() {
                let objects = [
                    drm.create_flags(share / 2, uapi::CREATE_VRAM)?,
                    drm.create_flags(share / 2, uapi::CREATE_VRAM)?,
                ];
                // Evictable objects take the space back.
                for _ in 0..4 {
                    drop(drm.create_flags(MIB, EITHER)?);
                }
                drop(objects);
            }
            Ok(())
        })?);
    }
    for (index, child) in children.iter_mut().enumerate() {
        child.join(&format!("task {index}"), Duration::from_secs(600))?;
    }
    drop(others);
    drm.await_vram_free(free)
}

/// An unbind completes the moves in the queue before VRAM becomes inaccessible.
fn unbind() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let drm = Drm::open()?;
    let (pattern, _) = patterns();
    let first = whole_vram(&drm, EITHER)?;
    let map = first.map()?;
    map.fill(pattern);
    let buffer = first.export()?;
    let second = whole_vram(&drm, uapi::CREATE_VRAM)?;
    let gone = Unbound::new(&gpu)?;
    check!(buffer.is_idle()?, "a move is under way without a driver");
    gone.rebind()?;
    drop((map, buffer));
    drop((first, second));
    drop(drm);
    let fresh = Drm::open()?;
    let object = fresh.create(16 * PAGE as u64)?;
    let again = object.map()?;
    let mark = Pattern::new(7);
    again.fill(mark);
    check_ok!(again.verify(mark), "after the rebind");
    Ok(())
}

igt_main! {
    "clear", "a new object is cleared behind GEM_CREATE", clear;
    "eviction", "an eviction goes on behind GEM_CREATE, and loses nothing", eviction;
    "chain", "moves of the same memory one behind the other", chain;
    "peer-waits", "a peer that maps an object on its way finds all of it", peer_waits;
    "closed", "objects closed while they are cleared give back their memory", closed;
    "contended", "no ENOSPC for tasks that make room at the same time", contended;
    "unbind", "an unbind finishes the moves that are under way", unbind;
}

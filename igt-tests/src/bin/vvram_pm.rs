// SPDX-License-Identifier: GPL-2.0

//! The device is suspended when it is not needed, and active while it is.
//!
//! Where a test expects that the device stays active, it waits many times as long as a suspend
//! takes, so that it notices a device that is suspended by mistake.

use std::thread;
use std::time::{Duration, Instant};

use vvram_tests::debugfs::{difference, DebugFs};
use vvram_tests::drm::{Drm, EITHER};
use vvram_tests::fixture::{
    cpu_reads, in_system_memory, patterns, peer_reads, peer_writes, placed, share, works, Fixture,
};
use vvram_tests::map::PAGE;
use vvram_tests::misc;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::power::{Auto, DELAY};
use vvram_tests::rebind::Unbound;
use vvram_tests::storm::{Action, Storm};
use vvram_tests::uapi;
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome};

const LIMIT: Duration = Duration::from_secs(120);

/// Open files do not keep the device active; an access to VRAM resumes it, and finds the bytes.
fn idle() -> Outcome {
    let fixture = Fixture::open()?;
    let auto = Auto::new(&fixture.gpu)?;
    let (a, b) = patterns();
    let shared = share(&fixture.drm, 2)?;
    let other = shared.buffer.map()?;
    shared.map.fill(a);
    auto.woken_by("a read of a mapping", || cpu_reads(&shared.map, a, &[0, 1]))?;
    auto.woken_by("a write to a mapping", || {
        shared.map.fill(b);
        Ok(())
    })?;
    auto.woken_by("a read of a mapping of the dma-buf", || {
        cpu_reads(&other, b, &[0, 1])
    })?;
    auto.woken_by("GEM_CREATE", || {
        let object = fixture.drm.create(PAGE as u64)?;
        check_eq!(
            object.info()?.placement,
            uapi::PLACEMENT_VRAM,
            "placement of a new object"
        );
        Ok(())
    })?;
    auto.woken_by("GEM_COPY", || {
        let copied = fixture.drm.copy(
            (&shared.object, 0),
            (&shared.object, PAGE as u64),
            PAGE as u64,
        )?;
        copied.finish()?;
        cpu_reads(&shared.map, b, &[0])
    })?;
    // No move to VRAM is under way.
    auto.sleeps_through("the end of an access", || {
        shared.buffer.sync(uapi::DMA_BUF_SYNC_WRITE)?;
        shared
            .buffer
            .sync(uapi::DMA_BUF_SYNC_WRITE | uapi::DMA_BUF_SYNC_END)?;
        Ok(())
    })
}

/// A peer can access VRAM for as long as it is attached.
fn peer() -> Outcome {
    let fixture = Fixture::with_route()?;
    let auto = Auto::new(&fixture.gpu)?;
    let (a, _) = patterns();
    for mode in [Mode::Dynamic, Mode::Pinned, Mode::Revocable] {
        let shared = share(&fixture.drm, 2)?;
        shared.map.fill(a);
        auto.sleeps("while no peer is attached")?;
        fixture.peer.attach(&shared.buffer, mode)?;
        auto.stays_awake("while a peer is attached")?;
        fixture.peer.pin_and_map(mode)?;
        auto.stays_awake("while a peer has it mapped")?;
        fixture.check_only(&shared.object, mode, mode.needs_pin(), true)?;
        peer_reads(&fixture.peer, a, &[0, 1])?;
        fixture.peer.detach()?;
        auto.sleeps("after the detach")?;
    }
    Ok(())
}

/// An importer that can be revoked gets system memory while the device is suspended.
fn evicted() -> Outcome {
    let fixture = Fixture::with_route()?;
    let auto = Auto::new(&fixture.gpu)?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let (a, b) = patterns();
    let peer = &fixture.peer;
    let before = debugfs.counters()?;
    let mut made = None;
    auto.kept_awake(|| {
        // It begins in VRAM only while the device is active.
        let object = fixture.drm.create_flags(2 * PAGE as u64, EITHER)?;
        let (map, buffer) = (object.map()?, object.export()?);
        map.fill(a);
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        fixture.check_only(&object, Mode::Dynamic, false, true)?;
        fixture.check_table(peer, &map)?;
        peer_reads(peer, a, &[0, 1])?;
        made = Some((object, map, buffer));
        Ok(())
    })?;
    let Some((object, map, buffer)) = made else {
        fail!("no object was made");
    };
    auto.sleeps("while an importer is attached that can be revoked")?;
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    auto.sleeps_through("what an importer does in system memory", || {
        check_eq!(peer.status()?.invalidations, 1, "invalidations");
        peer.map()?;
        in_system_memory(&fixture, peer)?;
        let list = object.attachments()?;
        check_eq!(list.len(), 1, "attachments: {list:?}");
        check_eq!(list[0].path, uapi::PATH_SYSTEM, "path");
        check_eq!(list[0].reason, uapi::REASON_SUSPENDED, "reason");
        cpu_reads(&map, a, &[0, 1])?;
        peer_reads(peer, a, &[0, 1])?;
        peer_writes(peer, b, &[1])?;
        cpu_reads(&map, b, &[1])
    })?;
    let entry = |event: &str, reason: &str| (event.to_string(), reason.to_string(), 1);
    check_eq!(
        difference(&before, &debugfs.counters()?),
        [entry("map-system", "suspended"), entry("moves", "-")],
        "counters"
    );
    auto.kept_awake(|| {
        peer.detach()?;
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        fixture.check_only(&object, Mode::Dynamic, false, true)?;
        fixture.check_table(peer, &map)?;
        peer_reads(peer, a, &[0])?;
        peer_reads(peer, b, &[1])?;
        peer.detach()?;
        Ok(())
    })
}

/// An importer that pins keeps the device active as long as its object is in VRAM, and gets system
/// memory if the device was suspended before.
fn pinned() -> Outcome {
    let fixture = Fixture::with_route()?;
    let auto = Auto::new(&fixture.gpu)?;
    let (a, _) = patterns();
    let peer = &fixture.peer;
    let object = fixture.drm.create_flags(2 * PAGE as u64, EITHER)?;
    let (map, buffer) = (object.map()?, object.export()?);
    map.fill(a);
    auto.kept_awake(|| {
        peer.attach_and_map(&buffer, Mode::Revocable)?;
        fixture.check_only(&object, Mode::Revocable, true, true)
    })?;
    auto.stays_awake("while VRAM is pinned")?;
    peer_reads(peer, a, &[0, 1])?;
    peer.detach()?;
    auto.sleeps("when nothing is pinned")?;

    let late = fixture.peer.reopen()?;
    late.attach(&buffer, Mode::Revocable)?;
    auto.sleeps_through("a pin and a mapping of system memory", || {
        late.pin_and_map(Mode::Revocable)?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        in_system_memory(&fixture, &late)?;
        let list = object.attachments()?;
        check_eq!(list.len(), 1, "attachments: {list:?}");
        check_eq!(list[0].reason, uapi::REASON_SUSPENDED, "reason");
        peer_reads(&late, a, &[0, 1])
    })
}

/// An importer that cannot be revoked keeps the device active as long as it is attached, and so
/// does an importer that must not get system memory.
fn kept() -> Outcome {
    let fixture = Fixture::with_route()?;
    let auto = Auto::new(&fixture.gpu)?;
    let or_fail = EITHER | uapi::CREATE_EXPORT_VRAM_OR_FAIL;
    for (flags, mode) in [(EITHER, Mode::Pinned), (or_fail, Mode::Dynamic)] {
        let object = fixture.drm.create_flags(2 * PAGE as u64, flags)?;
        let buffer = object.export()?;
        auto.sleeps("while no peer is attached")?;
        fixture.peer.attach(&buffer, mode)?;
        auto.stays_awake("while a peer is attached that needs VRAM")?;
        fixture.peer.pin_and_map(mode)?;
        fixture.check_only(&object, mode, mode.needs_pin(), true)?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
        fixture.peer.detach()?;
        auto.sleeps("after the detach")?;
    }
    Ok(())
}

/// The device is suspended and resumed while importers map and processes access VRAM, without a
/// deadlock.
fn storm() -> Outcome {
    let fixture = Fixture::with_route()?;
    let auto = Auto::new(&fixture.gpu)?;
    let (seed, _) = patterns();
    auto.device().set_power("autosuspend_delay_ms", "0")?;
    let mut storm = Storm::new(LIMIT, &[Action::new("suspend", &[], 5)])?;
    let mut was = String::new();
    storm.meanwhile(|storm, _| {
        let status = auto.device().power("runtime_status")?;
        if status == "suspended" && status != was {
            storm.done("suspend", 1);
        }
        was = status;
        Ok(())
    })?;
    for worker in 0..4 {
        let pattern = seed.derive(worker);
        storm.client(|storm, _| {
            let (drm, peer) = (Drm::open()?, Peer::open()?);
            let object = drm.create_flags(2 * PAGE as u64, EITHER)?;
            let (map, buffer) = (object.map()?, object.export()?);
            map.fill(pattern);
            for round in storm.rounds(40) {
                match (round + worker) % 4 {
                    0 | 1 => {
                        peer.attach_and_map(&buffer, Mode::Dynamic)?;
                        peer_reads(&peer, pattern, &[1])?;
                        peer.map()?;
                        peer.detach()?;
                    }
                    2 => drop(drm.create(PAGE as u64)?),
                    _ => cpu_reads(&map, pattern, &[0, 1])?,
                }
            }
            cpu_reads(&map, pattern, &[0, 1])
        })?;
    }
    storm.end()?;
    auto.sleeps("after the storm")
}

/// An importer that uses system memory does not keep the device active.
fn system() -> Outcome {
    let fixture = Fixture::open()?;
    let auto = Auto::new(&fixture.gpu)?;
    let (a, _) = patterns();
    let object = fixture
        .drm
        .create_flags(2 * PAGE as u64, uapi::CREATE_SYSTEM)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    fixture.peer.attach_and_map(&buffer, Mode::Static)?;
    auto.sleeps("while a peer has mapped system memory")?;
    buffer.sync(uapi::DMA_BUF_SYNC_READ)?;
    peer_reads(&fixture.peer, a, &[0, 1])?;
    auto.sleeps("after a transfer to system memory")
}

/// A vmap of VRAM keeps the device active. It is made with the reservation held, so on a suspended
/// device it fails with EAGAIN, and requests a resume without waiting for it. Objects that the
/// suspend has evicted are mapped in system memory, without a resume.
fn kernel() -> Outcome {
    let fixture = Fixture::open()?;
    let auto = Auto::new(&fixture.gpu)?;
    let (a, _) = patterns();
    let either = fixture.drm.create_flags(PAGE as u64, EITHER)?;
    let (map, buffer) = (either.map()?, either.export()?);
    map.fill(a);
    auto.sleeps("at first")?;
    placed(&either, uapi::PLACEMENT_SYSTEM)?;
    auto.sleeps_through("a mapping of system memory", || {
        fixture.peer.attach(&buffer, Mode::Cpu)?;
        fixture.peer.map()?;
        peer_reads(&fixture.peer, a, &[0])?;
        Ok(fixture.peer.detach()?)
    })?;

    let shared = share(&fixture.drm, 1)?;
    shared.map.fill(a);
    auto.sleeps("when the object is exported")?;
    fixture.peer.attach(&shared.buffer, Mode::Cpu)?;
    auto.woken_by("a mapping of VRAM by the kernel", || {
        expect_errno("the mapping", fixture.peer.map(), libc::EAGAIN)
    })?;
    auto.kept_awake(|| Ok(fixture.peer.map()?))?;
    auto.stays_awake("while the kernel maps VRAM")?;
    peer_reads(&fixture.peer, a, &[0])?;
    fixture.peer.unmap()?;
    auto.sleeps("when the kernel has unmapped VRAM")
}

/// The device is unbound and bound again while it is suspended and while it is in use, and all
/// usage counts stay right.
fn unbind() -> Outcome {
    let fixture = Fixture::with_route()?;
    let auto = Auto::new(&fixture.gpu)?;
    for attached in [false, true] {
        let fixture = Fixture::open()?;
        let shared = share(&fixture.drm, 1)?;
        if attached {
            fixture.peer.attach_and_map(&shared.buffer, Mode::Dynamic)?;
        }
        if !attached {
            auto.sleeps("before the unbind")?;
        }
        let gone = Unbound::new(&fixture.gpu)?;
        gone.rebind()?;
        drop(shared);
        drop(fixture);
        rebound(&auto)?;
        works()?;
    }
    Ok(())
}

/// Checks that a new binding has the default autosuspend delay of the driver.
fn rebound(auto: &Auto<'_>) -> Outcome {
    check!(
        auto.device().power("autosuspend_delay_ms")? == "1000",
        "the driver did not set its delay"
    );
    auto.device().set_power("autosuspend_delay_ms", DELAY)?;
    auto.sleeps("after the rebind")
}

/// An importer that maps for each use keeps the object in VRAM as long as the uses follow each
/// other.
fn mapped_often() -> Outcome {
    let fixture = Fixture::with_route()?;
    let _auto = Auto::new(&fixture.gpu)?;
    let delay = Duration::from_millis(500) * misc::slower();
    fixture
        .gpu
        .set_power("autosuspend_delay_ms", &delay.as_millis().to_string())?;
    let object = fixture.drm.create_flags(2 * PAGE as u64, EITHER)?;
    let buffer = object.export()?;
    let peer = &fixture.peer;
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    fixture.check_only(&object, Mode::Dynamic, false, true)?;
    let table = peer.table()?;
    let begin = Instant::now();
    while begin.elapsed() < 3 * delay {
        peer.unmap()?;
        thread::sleep(delay / 50);
        peer.map()?;
        check_eq!(
            peer.table()?,
            table,
            "the table after {:?}",
            begin.elapsed()
        );
    }
    check_eq!(peer.status()?.invalidations, 0, "invalidations");
    Ok(())
}

igt_main! {
    "idle", "suspended while files are open, and woken by accesses to VRAM", idle;
    "peer", "active while a peer is attached", peer;
    "evicted", "suspended while importers go on in system memory", evicted;
    "pinned", "active while VRAM is pinned", pinned;
    "mapped-often", "active while a peer maps again and again", mapped_often;
    "kept", "active while a peer is attached that needs VRAM", kept;
    "storm", "suspended and resumed while VRAM is in use", storm;
    "system", "suspended while a peer uses system memory", system;
    "kernel", "active while the kernel maps VRAM", kernel;
    "unbind", "counted right over an unbind", unbind;
}

// SPDX-License-Identifier: GPL-2.0

//! Devices that are unplugged, and plugged in again, while they are in use.

use std::time::Duration;

use vvram_tests::drm::Drm;
use vvram_tests::edu;
use vvram_tests::fixture::{check_revoked, patterns, peer_reads, share, works, Fixture};
use vvram_tests::map::PAGE;
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::plug::{Plug, LIMIT};
use vvram_tests::proc::{Child, KernelLog};
use vvram_tests::qmp::Monitor;
use vvram_tests::uapi;
use vvram_tests::{check, check_ok, expect_errno, fail, igt_main, Outcome};

fn idle() -> Outcome {
    let plug = Plug::gpu()?;
    let mut monitor = Monitor::open()?;
    let drm = Drm::open()?;
    let shared = share(&drm, 2)?;
    shared.map.write(0, 1);
    for round in 0..3 {
        plug.out(&mut monitor)?;
        check!(
            Drm::try_open().is_none(),
            "there still is a render node in round {round}"
        );
        let dead = libc::ENODEV;
        expect_errno("GETPARAM", drm.getparam(0), dead)?;
        expect_errno("GEM_CREATE", drm.create(1), dead)?;
        expect_errno("PRIME_HANDLE_TO_FD", shared.object.export(), dead)?;
        expect_errno("SYNC", shared.buffer.sync(uapi::DMA_BUF_SYNC_READ), dead)?;
        let peer = Peer::open()?;
        expect_errno(
            "attaching a buffer of a device that is gone",
            peer.attach(&shared.buffer, Mode::Dynamic),
            dead,
        )?;
        plug.back(&mut monitor)?;
        works()?;
    }
    expect_errno("GETPARAM on the old fd", drm.getparam(0), libc::ENODEV)
}

/// Importers that can be revoked.
fn mapped() -> Outcome {
    for mode in [Mode::Dynamic, Mode::Revocable] {
        let fixture = Fixture::with_route()?;
        let plug = Plug::gpu()?;
        let mut monitor = Monitor::open()?;
        let shared = share(&fixture.drm, 2)?;
        let peer = &fixture.peer;
        peer.attach_and_map(&shared.buffer, mode)?;
        fixture.check_only(&shared.object, mode, mode.needs_pin(), true)?;
        plug.out(&mut monitor)?;
        check_revoked(peer, mode)?;
        expect_errno("map", peer.map(), libc::ENODEV)?;
        plug.back(&mut monitor)?;
        expect_errno("map of the old buffer", peer.map(), libc::ENODEV)?;
        peer.detach()?;
        works()?;
    }
    Ok(())
}

/// An importer that cannot be revoked: the device stays until it has detached, and the kernel logs
/// its name.
fn pinned() -> Outcome {
    let fixture = Fixture::with_route()?;
    let plug = Plug::gpu()?;
    let mut monitor = Monitor::open()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 2)?;
    shared.map.fill(a);
    let peer = &fixture.peer;
    peer.attach_and_map(&shared.buffer, Mode::Pinned)?;
    fixture.check_only(&shared.object, Mode::Pinned, true, true)?;
    let mut log = KernelLog::open()?;
    monitor.unplug(plug.id())?;
    let mut lines = Vec::new();
    let named = misc::poll(LIMIT, || {
        lines.extend(log.lines());
        let by = |line: &&String| line.contains("waiting for") && line.contains(peer.name());
        lines.iter().find(by).cloned()
    });
    let Some(named) = named else {
        fail!("the log does not name what the unplug waits for: {lines:?}");
    };
    check!(
        named.contains(plug.device().name()),
        "the message does not name the device that waits: {named}"
    );
    check!(
        !monitor.unplugged(plug.id(), Duration::from_secs(1))?,
        "the device was unplugged under a mapping"
    );
    // The mapping of the importer still works.
    peer_reads(peer, a, &[0, 1])?;
    peer.unmap()?;
    plug.gone(&mut monitor)?;
    plug.back(&mut monitor)?;
    peer.detach()?;
    works()
}

/// The peer is unplugged in all modes at once.
fn peer() -> Outcome {
    let fixture = Fixture::with_route()?;
    let plug = Plug::peer()?;
    let mut monitor = Monitor::open()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 2)?;
    shared.map.fill(a);
    let mut peers = Vec::new();
    for mode in [Mode::Dynamic, Mode::Pinned, Mode::Revocable] {
        let peer = fixture.peer.reopen()?;
        peer.attach_and_map(&shared.buffer, mode)?;
        peers.push(peer);
    }
    let slow = edu::slow()?;
    peers[0].submit_read(0, 2 * PAGE)?;
    plug.out(&mut monitor)?;
    if let Some(slow) = slow {
        slow.leave();
    }
    fixture.check_none(&shared.object)?;
    for peer in &peers {
        expect_errno("status of a peer that is gone", peer.status(), libc::ENODEV)?;
    }
    check_ok!(shared.map.verify(a), "the buffer changed");
    plug.back(&mut monitor)?;
    let fresh = Peer::open()?;
    fresh.attach(&shared.buffer, Mode::Dynamic)?;
    peer_reads(&fresh, a, &[0, 1])?;
    drop(fresh);
    works()
}

/// The same by sysfs: the device is still there, but not for the kernel.
fn remove_rescan() -> Outcome {
    for gpu in [true, false] {
        let fixture = Fixture::with_route()?;
        let shared = share(&fixture.drm, 2)?;
        let device = if gpu { &fixture.gpu } else { &fixture.edu };
        fixture
            .peer
            .attach_and_map(&shared.buffer, Mode::Revocable)?;
        let mut child = Child::spawn(|| Ok(device.remove()?))?;
        child.join("the removal", LIMIT)?;
        check!(!device.exists(), "{} is still there", device.name());
        if gpu {
            expect_errno("map", fixture.peer.map(), libc::ENODEV)?;
            expect_errno("GETPARAM", fixture.drm.getparam(0), libc::ENODEV)?;
        } else {
            expect_errno("status", fixture.peer.status(), libc::ENODEV)?;
            fixture.check_none(&shared.object)?;
        }
        let mut child = Child::spawn(|| Ok(PciDevice::rescan()?))?;
        child.join("the scan", LIMIT)?;
        let bound = misc::poll(LIMIT, || device.driver());
        check!(bound.is_some(), "no driver for {}", device.name());
        drop(shared);
        works()?;
    }
    Ok(())
}

igt_main! {
    "idle", "the exporter goes and comes back, three times; old fds are dead", idle;
    "mapped", "importers that can be notified unmap", mapped;
    "pinned", "one that cannot is waited for, by name", pinned;
    "peer", "the importer goes and comes back", peer;
    "remove-rescan", "remove and rescan of sysfs", remove_rescan;
}

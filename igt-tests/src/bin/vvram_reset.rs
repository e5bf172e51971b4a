// SPDX-License-Identifier: GPL-2.0

//! Reset of the function, by sysfs, with importers of every class, and of its slot.

use std::thread;
use std::time::Duration;

use vvram_tests::drm::Drm;
use vvram_tests::edu;
use vvram_tests::fixture::{patterns, peer_reads, peer_writes, share, works, Fixture};
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::plug::FIRST;
use vvram_tests::proc::{Child, KernelLog};
use vvram_tests::qmp::Monitor;
use vvram_tests::{check, check_ok, expect_errno, fail, igt_main, uapi, Outcome, Stop};

const LIMIT: Duration = Duration::from_secs(20);

/// Opens both devices, if the exporter can be reset.
fn fixture() -> Result<Fixture, Stop> {
    PciDevice::vvram()?.need_reset()?;
    Fixture::open()
}

/// The same, for tests that need a route.
fn fixture_with_route() -> Result<Fixture, Stop> {
    let fixture = fixture()?;
    fixture.expect.need_route()?;
    Ok(fixture)
}

/// Checks that files from before the reset do not work any more.
fn is_gone(old: &Drm) -> Outcome {
    expect_errno(
        "GEM_CREATE on a file from before",
        old.create(1),
        libc::ENODEV,
    )
}

/// Checks that the new device has all of its memory, and works.
fn is_new(fixture: &Fixture) -> Outcome {
    is_gone(&fixture.drm)?;
    let fresh = Drm::open()?;
    fresh.await_vram_free(fresh.getparam(uapi::PARAM_VRAM_SIZE)?)?;
    works()
}

/// Without importers, several times, with a mapped object.
fn idle() -> Outcome {
    let fixture = fixture()?;
    let (pattern, _) = patterns();
    let shared = share(&fixture.drm, 2)?;
    shared.map.fill(pattern);
    for _ in 0..3 {
        fixture.gpu.reset()?;
        is_gone(&fixture.drm)?;
        expect_errno(
            "attaching a dma-buf from before",
            fixture.peer.attach(&shared.buffer, Mode::Dynamic),
            libc::ENODEV,
        )?;
        works()?;
    }
    drop(shared);
    is_new(&fixture)
}

/// The reset revokes importers that can be revoked.
fn revocable() -> Outcome {
    let fixture = fixture_with_route()?;
    let (pattern, _) = patterns();
    let shared = share(&fixture.drm, 2)?;
    let mut peers = Vec::new();
    for mode in [Mode::Dynamic, Mode::Revocable] {
        let peer = fixture.peer.reopen()?;
        peer.attach_and_map(&shared.buffer, mode)?;
        peer_writes(&peer, pattern, &[0])?;
        peer_reads(&peer, pattern, &[0])?;
        peers.push(peer);
    }
    fixture.gpu.reset()?;
    for peer in &peers {
        let status = peer.status()?;
        check!(
            status.invalidations > 0,
            "a peer was not notified: {status:?}"
        );
        check!(
            status.flags & uapi::EDU_PEER_STATUS_MAPPED == 0,
            "a peer kept its mapping: {status:?}"
        );
        expect_errno("map after the reset", peer.map(), libc::ENODEV)?;
    }
    drop((peers, shared));
    is_new(&fixture)
}

/// Checks that a reset waits for the holder that the kernel log names, releases the buffer, and
/// checks that the reset ends.
fn held_up(fixture: &Fixture, holder: &str, release: impl FnOnce() -> Outcome) -> Outcome {
    let mut log = KernelLog::open()?;
    let mut reset = Child::spawn(|| Ok(fixture.gpu.reset()?))?;
    let mut lines = Vec::new();
    let named = misc::poll(LIMIT, || {
        lines.extend(log.lines());
        lines.iter().any(|line| line.contains(holder)).then_some(())
    });
    check!(
        named.is_some(),
        "the kernel log does not name {holder}:\n{}",
        lines.join("\n")
    );
    thread::sleep(Duration::from_millis(300));
    check!(
        reset.ended().is_none(),
        "the reset named its holder, but did not wait for it"
    );
    release()?;
    reset.join("the reset", LIMIT)?;
    Ok(())
}

/// The reset waits for an importer that cannot be revoked, whose mapping works until then.
fn pinned() -> Outcome {
    let fixture = fixture_with_route()?;
    let (pattern, _) = patterns();
    let shared = share(&fixture.drm, 2)?;
    shared.map.fill(pattern);
    let peer = &fixture.peer;
    peer.attach_and_map(&shared.buffer, Mode::Pinned)?;
    held_up(&fixture, peer.name(), || {
        peer_reads(peer, pattern, &[0, 1])?;
        peer.unmap()?;
        Ok(())
    })?;
    expect_errno("map after the reset", peer.map(), libc::ENODEV)?;
    peer.detach()?;
    drop(shared);
    is_new(&fixture)
}

/// A static importer, which cannot be notified, has mapped system memory, so the reset does not
/// wait for it.
fn static_importer() -> Outcome {
    let fixture = fixture()?;
    let object = fixture
        .drm
        .create_flags(8192, uapi::CREATE_VRAM | uapi::CREATE_SYSTEM)?;
    let (pattern, _) = patterns();
    object.map()?.fill(pattern);
    let buffer = object.export()?;
    let peer = &fixture.peer;
    peer.attach_and_map(&buffer, Mode::Static)?;
    let mut reset = Child::spawn(|| Ok(fixture.gpu.reset()?))?;
    reset.join("the reset", LIMIT)?;
    peer_reads(peer, pattern, &[0, 1])?;
    peer.detach()?;
    drop((buffer, object));
    is_new(&fixture)
}

/// The same for a vmap.
fn vmapped() -> Outcome {
    let fixture = fixture()?;
    let shared = share(&fixture.drm, 2)?;
    let peer = &fixture.peer;
    peer.attach(&shared.buffer, Mode::Cpu)?;
    peer.map()?;
    held_up(&fixture, "(vmap)", || Ok(peer.unmap()?))?;
    peer.detach()?;
    drop(shared);
    is_new(&fixture)
}

/// A peer that moves bytes while the function is reset gets an error, not other bytes.
fn mid_transfer() -> Outcome {
    let fixture = fixture_with_route()?;
    let shared = share(&fixture.drm, 32)?;
    let (pattern, _) = patterns();
    shared.map.fill(pattern);
    let _slow = edu::slow()?;
    let mut child = Child::spawn(|| {
        let peer = Peer::open()?;
        peer.attach(&shared.buffer, Mode::Dynamic)?;
        for page in 0..32usize {
            let mut data = vec![0u8; 4096];
            match peer.read(page as u64 * 4096, &mut data) {
                Ok(()) => {
                    check_ok!(pattern.verify(&data, page as u64 * 4096), "page {page}");
                }
                Err(error) if error.errno == libc::ENODEV => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        fail!("the reset came too late")
    })?;
    thread::sleep(Duration::from_millis(250));
    fixture.gpu.reset()?;
    child.join("the peer", LIMIT)?;
    drop(shared);
    is_new(&fixture)
}

/// A fatal error of the link is a reset.
fn fatal() -> Outcome {
    let fixture = fixture_with_route()?;
    let shared = share(&fixture.drm, 2)?;
    let peer = &fixture.peer;
    peer.attach_and_map(&shared.buffer, Mode::Dynamic)?;
    let mut log = KernelLog::open()?;
    Monitor::open()?.inject(&FIRST, "DLP")?;
    log.await_line("device recovery successful", LIMIT)?;
    check!(
        peer.status()?.invalidations > 0,
        "the peer was not notified"
    );
    expect_errno("map after the error", peer.map(), libc::ENODEV)?;
    peer.detach()?;
    drop(shared);
    is_new(&fixture)
}

igt_main! {
    "idle", "resets give a new device each time", idle;
    "revocable", "importers that can be revoked are", revocable;
    "pinned", "an importer that cannot is named and waited for", pinned;
    "static", "one that has system memory is not waited for", static_importer;
    "vmapped", "so is the kernel's own mapping", vmapped;
    "mid-transfer", "a reset in the middle of a transfer", mid_transfer;
    "fatal", "a fatal error of the link", fatal;
}

// SPDX-License-Identifier: GPL-2.0

//! Objects that may move, and that importers get in VRAM or not at all.

use vvram_tests::debugfs::{difference, DebugFs};
use vvram_tests::drm::{Gem, EITHER};
use vvram_tests::fixture::{
    cpu_reads, patterns, peer_reads, peer_writes, placed, squeeze_idle, Expect, Fixture,
};
use vvram_tests::map::PAGE64;
use vvram_tests::peer::Mode;
use vvram_tests::{check, check_eq, expect_errno, igt_main, uapi, Outcome};

const EXPORT: u32 = EITHER | uapi::CREATE_EXPORT_VRAM_OR_FAIL;
const VRAM: u32 = uapi::PLACEMENT_VRAM;
const SYSTEM: u32 = uapi::PLACEMENT_SYSTEM;

/// The flag affects exports only, and is shown by GEM_INFO and debugfs.
fn flags() -> Outcome {
    let fixture = Fixture::open()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let flag = uapi::CREATE_EXPORT_VRAM_OR_FAIL;
    for (flags, shown) in [
        (EITHER, false),
        (EITHER | flag, true),
        (uapi::CREATE_VRAM | flag, true),
        (uapi::CREATE_VRAM, true),
        (uapi::CREATE_SYSTEM, false),
    ] {
        let object = fixture.drm.create_flags(PAGE64, flags)?;
        let info = object.info()?;
        check_eq!(info.what(), flags, "what an object with {flags:#x} is");
        check_eq!(
            debugfs.buffer(info.id)?.vram_or_fail,
            shown,
            "vram_or_fail in debugfs of an object with {flags:#x}"
        );
    }
    for flags in [flag, uapi::CREATE_SYSTEM | flag] {
        expect_errno(
            &format!("GEM_CREATE with {flags:#x}"),
            fixture.drm.create_flags(PAGE64, flags),
            libc::EINVAL,
        )?;
    }
    Ok(())
}

/// An importer that cannot reach VRAM is refused with the reason; a vmap by the kernel is no
/// import.
fn refused() -> Outcome {
    let fixture = Fixture::open()?;
    let (a, _) = patterns();
    let mut cases = vec![
        (Mode::Static, uapi::REASON_NO_OPT_IN),
        (Mode::NoP2p, uapi::REASON_NO_OPT_IN),
    ];
    if fixture.expect == Expect::Refused {
        for mode in [Mode::Dynamic, Mode::Pinned, Mode::Revocable] {
            cases.push((mode, uapi::REASON_NO_ROUTE));
        }
    }
    for (mode, reason) in cases {
        let object = fixture.drm.create_flags(2 * PAGE64, EXPORT)?;
        let buffer = object.export()?;
        let peer = fixture.peer.reopen()?;
        fixture.check_refused(&object, peer.attach(&buffer, mode), mode, reason)?;
        placed(&object, VRAM)?;

        peer.attach(&buffer, Mode::Cpu)?;
        peer_writes(&peer, a, &[0, 1])?;
        cpu_reads(&object.map()?, a, &[0, 1])?;
    }
    Ok(())
}

/// An importer that needs system memory is refused, and does not move the object of importers that
/// have it in VRAM.
fn no_compromise() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let object = fixture.drm.create_flags(2 * PAGE64, EXPORT)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    fixture.peer.attach_and_map(&buffer, Mode::Dynamic)?;
    for mode in [Mode::NoP2p, Mode::Static] {
        expect_errno(
            "an attach that needs system memory",
            fixture.peer.reopen()?.attach(&buffer, mode),
            libc::EOPNOTSUPP,
        )?;
    }
    check_eq!(fixture.peer.status()?.invalidations, 0, "invalidations");
    fixture.check_table(&fixture.peer, &map)?;
    peer_reads(&fixture.peer, a, &[0, 1])?;
    peer_writes(&fixture.peer, b, &[1])?;
    let (_, layout) = fixture.check_table(&fixture.peer, &map)?;
    fixture.check_vram(&layout, b, &[1])
}

/// Checks that an importer cannot map the object, that the object does not move, and that the
/// refusal is counted.
fn cannot(fixture: &Fixture, object: &Gem<'_>, errno: i32, reason: &str) -> Outcome {
    let peer = &fixture.peer;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let before = debugfs.counters()?;
    let mut data = [0u8; 8];
    expect_errno("a mapping", peer.map(), errno)?;
    expect_errno("a transfer", peer.read(0, &mut data), errno)?;
    let mut counted = difference(&before, &debugfs.counters()?);
    counted.retain(|(what, _, _)| what != "moves");
    check_eq!(
        counted,
        [("map-refused".to_string(), reason.to_string(), 2)],
        "what was counted"
    );
    check_eq!(
        peer.status()?.flags & uapi::EDU_PEER_STATUS_MAPPED,
        0,
        "whether the peer has mapped it"
    );
    placed(object, SYSTEM)
}

/// Without room in VRAM the object is evicted. Importers get it only when it can move back.
fn no_room() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let object = fixture.drm.create_flags(4 * PAGE64, EXPORT)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    let (peer, pinning) = (&fixture.peer, fixture.peer.reopen()?);
    peer.attach(&buffer, Mode::Dynamic)?;
    pinning.attach(&buffer, Mode::Pinned)?;
    peer.map()?;
    fixture.check_table(peer, &map)?;
    peer_reads(peer, a, &[0, 3])?;

    let invalidated = peer.status()?.invalidations;
    let taken = squeeze_idle(&fixture.drm)?;
    check!(
        peer.status()?.invalidations > invalidated,
        "the peer was not notified of the move"
    );
    placed(&object, SYSTEM)?;
    cannot(&fixture, &object, libc::ENOSPC, "no-vram")?;
    expect_errno("a pin", pinning.pin(), libc::ENOSPC)?;
    check_eq!(object.info()?.pinned, 0, "pinned after the failure");
    // The CPU can access it.
    cpu_reads(&map, a, &[0, 1, 2, 3])?;
    map.fill(b);
    placed(&object, SYSTEM)?;

    drop(taken);
    pinning.pin_and_map(Mode::Pinned)?;
    placed(&object, VRAM)?;
    peer_reads(&pinning, b, &[0, 3])?;
    peer.map()?;
    fixture.check_table(peer, &map)?;
    let (_, layout) = fixture.check_table(&pinning, &map)?;
    fixture.check_vram(&layout, b, &[0, 1, 2, 3])?;
    peer_writes(peer, a, &[2])?;
    cpu_reads(&map, a, &[2])?;
    cpu_reads(&map, b, &[1, 3])
}

/// An object that a vmap keeps in system memory cannot be imported either.
fn kernel_holds() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let object = fixture.drm.create_flags(2 * PAGE64, EXPORT)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    let (peer, pinning, kernel) = (
        &fixture.peer,
        fixture.peer.reopen()?,
        fixture.peer.reopen()?,
    );
    peer.attach(&buffer, Mode::Dynamic)?;
    pinning.attach(&buffer, Mode::Pinned)?;
    let taken = squeeze_idle(&fixture.drm)?;
    placed(&object, SYSTEM)?;
    kernel.attach(&buffer, Mode::Cpu)?;
    kernel.map()?;
    check_eq!(object.info()?.pinned, 1, "pinned by the kernel's mapping");
    drop(taken);

    cannot(&fixture, &object, libc::EOPNOTSUPP, "pinned-elsewhere")?;
    expect_errno("a pin", pinning.pin(), libc::EOPNOTSUPP)?;
    let late = fixture.peer.reopen()?;
    expect_errno(
        "an attach",
        late.attach(&buffer, Mode::Dynamic),
        libc::EOPNOTSUPP,
    )?;
    let list = object.attachments()?;
    check!(
        list.last()
            .is_some_and(|last| last.refused() && last.reason == uapi::REASON_PINNED_ELSEWHERE),
        "expected a refusal for what is pinned elsewhere: {list:?}"
    );
    peer_reads(&kernel, a, &[0, 1])?;

    kernel.unmap()?;
    check_eq!(object.info()?.pinned, 0, "pinned after that");
    peer.map()?;
    placed(&object, VRAM)?;
    fixture.check_table(peer, &map)?;
    peer_reads(peer, a, &[0, 1])
}

igt_main! {
    "flags", "GEM_INFO and debugfs tell, system memory alone is EINVAL", flags;
    "refused", "importers that cannot reach VRAM, with the reason", refused;
    "no-compromise", "an importer that needs system memory does not get it", no_compromise;
    "no-room", "ENOSPC for the map and the pin, VRAM when there is room", no_room;
    "kernel-holds", "EOPNOTSUPP while the kernel has it in system memory", kernel_holds;
}

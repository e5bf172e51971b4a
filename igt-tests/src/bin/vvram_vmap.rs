// SPDX-License-Identifier: GPL-2.0

//! Access by the kernel itself, through a mapping of dma_buf_vmap().

use vvram_tests::fixture::{cpu_reads, patterns, peer_reads, peer_writes, share, Fixture};
use vvram_tests::heap;
use vvram_tests::map::PAGE;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::{check, check_eq, expect_errno, fail, fragment, igt_main, uapi, Outcome};

const MAPPED: u32 =
    uapi::EDU_PEER_STATUS_ATTACHED | uapi::EDU_PEER_STATUS_MAPPED | uapi::EDU_PEER_STATUS_IOMEM;

/// Writes and reads every page, of an object in one range and of an object in several ranges.
fn bytes() -> Outcome {
    let fixture = Fixture::open()?;
    let (a, b) = patterns();
    let whole = fixture.drm.create(16 * PAGE as u64)?;
    let pieces = fragment::create(&fixture.drm, &fixture.bar, 16 * PAGE as u64, 4)?;
    for object in [&whole, &pieces.object] {
        let map = object.map()?;
        let layout = fixture.bar.locate(&map)?;
        let buffer = object.export()?;
        let pages: Vec<_> = (0..object.pages()).collect();
        let peer = fixture.peer.reopen()?;

        peer.attach(&buffer, Mode::Cpu)?;
        check_eq!(
            peer.status()?.flags,
            uapi::EDU_PEER_STATUS_ATTACHED,
            "flags at first"
        );
        fixture.check_none(object)?;
        peer_writes(&peer, a, &pages)?;
        check_eq!(peer.status()?.flags, MAPPED, "flags of a mapping of VRAM");
        fixture.check_vram(&layout, a, &pages)?;
        cpu_reads(&map, a, &pages)?;
        map.fill(b);
        peer_reads(&peer, b, &pages)?;
        check_eq!(peer.status()?.maps, 1, "mappings made for all of it");
        peer.detach()?;
    }
    Ok(())
}

/// The device reads the bytes that the kernel writes, and the reverse.
fn device() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let shared = share(&fixture.drm, 2)?;
    let kernel = fixture.peer.reopen()?;
    kernel.attach(&shared.buffer, Mode::Cpu)?;
    fixture.peer.attach(&shared.buffer, Mode::Dynamic)?;
    peer_writes(&kernel, a, &[0, 1])?;
    peer_reads(&fixture.peer, a, &[0, 1])?;
    peer_writes(&fixture.peer, b, &[0, 1])?;
    peer_reads(&kernel, b, &[0, 1])?;
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)
}

/// Accesses at any offset and of any length; the bytes around them do not change.
fn unaligned() -> Outcome {
    let fixture = Fixture::open()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 3)?;
    fixture.peer.attach(&shared.buffer, Mode::Cpu)?;
    let size = 3 * PAGE;
    let mut want = vec![0u8; size];
    for (offset, len) in [
        (0, 1),
        (1, 1),
        (4093, 9),
        (8191, 2),
        (5, 4096),
        (size - 1, 1),
    ] {
        let mut data = vec![0u8; len];
        a.fill(&mut data, 0);
        fixture.peer.write(offset as u64, &data)?;
        want[offset..offset + len].copy_from_slice(&data);
        let mut seen = vec![0u8; len];
        fixture.peer.read(offset as u64, &mut seen)?;
        check!(seen == data, "{len} bytes at {offset} read differently");
    }
    let mut seen = vec![0u8; size];
    fixture.peer.read(0, &mut seen)?;
    if let Some(at) = (0..size).find(|at| seen[*at] != want[*at]) {
        fail!("byte {at}: expected {:#x}, saw {:#x}", want[at], seen[at]);
    }
    for (offset, len) in [(size, 1), (size - 1, 2), (usize::MAX, 2)] {
        let mut data = vec![0u8; len];
        expect_errno(
            "a transfer outside of the buffer",
            fixture.peer.read(offset as u64, &mut data),
            libc::EINVAL,
        )?;
    }
    Ok(())
}

/// All users share one vmap, which ends with the last user.
fn two_users() -> Outcome {
    let fixture = Fixture::open()?;
    let (a, b) = patterns();
    let shared = share(&fixture.drm, 1)?;
    let other = fixture.peer.reopen()?;
    for peer in [&fixture.peer, &other] {
        peer.attach(&shared.buffer, Mode::Cpu)?;
        peer.map()?;
        check_eq!(peer.status()?.flags, MAPPED, "flags of a mapping of VRAM");
    }
    peer_writes(&fixture.peer, a, &[0])?;
    peer_reads(&other, a, &[0])?;
    fixture.peer.unmap()?;
    expect_errno("a second unmap", fixture.peer.unmap(), libc::EINVAL)?;
    peer_writes(&other, b, &[0])?;
    cpu_reads(&shared.map, b, &[0])?;
    other.unmap()?;
    check_eq!(
        other.status()?.flags,
        uapi::EDU_PEER_STATUS_ATTACHED,
        "flags at the end"
    );
    Ok(())
}

/// A vmap needs no attachment, hence there is no pin and no scatter table.
fn no_attachment() -> Outcome {
    let fixture = Fixture::open()?;
    let shared = share(&fixture.drm, 1)?;
    fixture.peer.attach(&shared.buffer, Mode::Cpu)?;
    fixture.peer.map()?;
    expect_errno("pin", fixture.peer.pin(), libc::EINVAL)?;
    expect_errno("unpin", fixture.peer.unpin(), libc::EINVAL)?;
    expect_errno("the table", fixture.peer.table(), libc::EINVAL)?;
    fixture.check_none(&shared.object)
}

/// Another exporter, whose memory is not I/O memory.
fn system_memory() -> Outcome {
    let buffer = heap::allocate(PAGE as u64)?;
    let (a, _) = patterns();
    let peer = Peer::open()?;
    peer.attach(&buffer, Mode::Cpu)?;
    peer_writes(&peer, a, &[0])?;
    peer_reads(&peer, a, &[0])?;
    check_eq!(
        peer.status()?.flags,
        MAPPED & !uapi::EDU_PEER_STATUS_IOMEM,
        "flags of a mapping of system memory"
    );
    Ok(())
}

igt_main! {
    "bytes", "every page both ways, in one piece and in several", bytes;
    "device", "the kernel and the device see the same bytes", device;
    "unaligned", "any offset and length", unaligned;
    "two-users", "two users share one mapping", two_users;
    "no-attachment", "neither pin nor table, nor an entry in PEER_ATTACHMENTS", no_attachment;
    "system-memory", "a buffer of the system heap", system_memory;
}

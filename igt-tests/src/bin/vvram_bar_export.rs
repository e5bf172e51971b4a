// SPDX-License-Identifier: GPL-2.0

//! Plain ranges of a BAR as dma-bufs, by the driver bar_export in place of vvram.

use std::os::fd::AsRawFd;
use std::time::Duration;

use vvram_tests::bar_export::{export, export_ranges, export_raw, Exporter, MEMORY};
use vvram_tests::drm::ioctl;
use vvram_tests::fixture::{leads_to, patterns, peer_reads, peer_writes, works, Expect};
use vvram_tests::map::{PAGE, PAGE64};
use vvram_tests::pci::Bar;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::rebind::Unbinding;
use vvram_tests::uapi::{self, BarExport};
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, Outcome};

/// A peer writes and reads the range, and no byte beside it.
fn peer() -> Outcome {
    Expect::get()?.need_route()?;
    let exporter = Exporter::new()?;
    let bar_file = exporter.open()?;
    let peer = Peer::open()?;
    let bar = Bar::open(exporter.gpu())?;
    let (a, b) = patterns();
    let (offset, pages) = (5 * PAGE64, 3usize);
    let size = pages as u64 * PAGE64;
    let buffer = export(&bar_file, MEMORY, offset, size)?;
    check_eq!(buffer.size()?, size, "size of the dma-buf");
    peer.attach_and_map(&buffer, Mode::Dynamic)?;

    leads_to(&peer, &bar, &[5, 6, 7])?;

    let first = offset as usize / PAGE;
    let map = bar.map();
    map.fill_pages(b, first - 1, pages + 2);
    peer_writes(&peer, a, &[0, 1, 2])?;
    for page in 0..pages {
        let mut data = vec![0u8; PAGE];
        for (at, byte) in data.iter_mut().enumerate() {
            *byte = map.byte((first + page) * PAGE + at);
        }
        check_ok!(
            a.verify(&data, (page * PAGE) as u64),
            "page {page} of the range in the BAR"
        );
    }
    for page in [first - 1, first + pages] {
        check_ok!(
            map.verify_pages(b, page, 1),
            "page {page} of the BAR, beside the range"
        );
    }
    peer_reads(&peer, a, &[2, 0, 1])?;
    Ok(())
}

/// An importer that does not take peer-to-peer memory, or that cannot be revoked, is refused.
fn refusals() -> Outcome {
    let exporter = Exporter::new()?;
    let bar_file = exporter.open()?;
    let peer = Peer::open()?;
    let buffer = export(&bar_file, MEMORY, 0, PAGE64)?;
    let refused = Expect::get()? == Expect::Refused;
    for (mode, fits) in [
        (Mode::Static, false),
        (Mode::NoP2p, false),
        (Mode::Pinned, false),
        (Mode::Revocable, true),
        (Mode::Dynamic, true),
    ] {
        let result = peer.attach(&buffer, mode);
        if fits && !refused {
            result?;
            peer.detach()?;
        } else {
            expect_errno(
                &format!("attach in mode {mode:?}"),
                result,
                libc::EOPNOTSUPP,
            )?;
        }
    }
    Ok(())
}

/// Several ranges are one buffer, in the order in which they were given.
fn ranges() -> Outcome {
    Expect::get()?.need_route()?;
    let exporter = Exporter::new()?;
    let bar_file = exporter.open()?;
    let peer = Peer::open()?;
    let bar = Bar::open(exporter.gpu())?;
    let (pattern, _) = patterns();
    // In the order of the buffer: pages 9 and 10, which are neighbours, then 3.
    let pages = [9, 10, 3];
    let buffer = export_ranges(
        &bar_file,
        MEMORY,
        &pages.map(|page: u64| (page * PAGE64, PAGE64)),
    )?;
    check_eq!(buffer.size()?, 3 * PAGE64, "size of the dma-buf");
    peer.attach(&buffer, Mode::Dynamic)?;
    for _ in 0..2 {
        peer.map()?;
        leads_to(&peer, &bar, &pages)?;
        peer_writes(&peer, pattern, &[0, 1, 2])?;
        for (page, at) in pages.iter().enumerate() {
            let mut want = [0u8; 8];
            pattern.fill(&mut want, page as u64 * PAGE64);
            check_eq!(
                bar.word(at * PAGE64),
                u64::from_le_bytes(want),
                "first word of page {at}"
            );
        }
        peer.unmap()?;
    }
    Ok(())
}

/// Invalid ranges.
fn badinput() -> Outcome {
    let exporter = Exporter::new()?;
    let bar_file = exporter.open()?;
    let (_, len) = exporter.gpu().bar(MEMORY as usize)?;
    for (bar, offset, size) in [
        (MEMORY, 0, 0),
        (MEMORY, 0, PAGE64 - 1),
        (MEMORY, 1, PAGE64),
        (MEMORY, len, PAGE64),
        (MEMORY, 0, len + PAGE64),
        (MEMORY, PAGE64, u64::MAX - PAGE64 + 1),
        // The BAR of registers is smaller than a page.
        (0, 0, PAGE64),
        // This BAR does not exist.
        (1, 0, PAGE64),
        (6, 0, PAGE64),
        (u32::MAX, 0, PAGE64),
    ] {
        expect_errno(
            &format!("exporting {size:#x} bytes at {offset:#x} of BAR {bar}"),
            export(&bar_file, bar, offset, size),
            libc::EINVAL,
        )?;
    }
    export(&bar_file, MEMORY, len - PAGE64, PAGE64)?;
    let good = (0, PAGE64);
    for ranges in [&[][..], &[good, (len, PAGE64)], &[(1, PAGE64), good]] {
        expect_errno(
            &format!("exporting {ranges:x?}"),
            export_ranges(&bar_file, MEMORY, ranges),
            libc::EINVAL,
        )?;
    }
    // A null pointer, for as many ranges as there may be.
    let most = BarExport {
        bar: MEMORY,
        count: 1 << 20,
        ..Default::default()
    };
    let result = export_raw(&bar_file, &mut { most });
    expect_errno("the most ranges, at address 0", result, libc::EFAULT)?;
    let mut argument = BarExport::default();
    expect_errno(
        "an unknown ioctl",
        ioctl(
            bar_file.as_raw_fd(),
            uapi::BAR_EXPORT_IOC_EXPORT + 1,
            &mut argument,
            || "unknown".to_string(),
        ),
        libc::ENOTTY,
    )
}

/// Buffers are revoked when the driver is unbound, and an old file exports nothing more.
fn unbind() -> Outcome {
    Expect::get()?.need_route()?;
    let exporter = Exporter::new()?;
    let bar_file = exporter.open()?;
    let peers = [Peer::open()?, Peer::open()?];
    let buffer = export(&bar_file, MEMORY, 0, 2 * PAGE64)?;
    let (pattern, _) = patterns();
    for (peer, mode) in peers.iter().zip([Mode::Dynamic, Mode::Revocable]) {
        peer.attach_and_map(&buffer, mode)?;
        peer_writes(peer, pattern, &[1])?;
    }
    let unbinding = Unbinding::start(exporter.gpu())?;
    let gone = unbinding.finish(Duration::from_secs(20))?;
    for peer in &peers {
        check!(
            peer.status()?.invalidations > 0,
            "an importer was not notified: {:?}",
            peer.status()?
        );
        expect_errno("map without the driver", peer.map(), libc::ENODEV)?;
    }
    expect_errno(
        "export without the driver",
        export(&bar_file, MEMORY, 0, PAGE64),
        libc::ENODEV,
    )?;
    gone.rebind()?;
    expect_errno(
        "export by a file from before",
        export(&bar_file, MEMORY, 0, PAGE64),
        libc::ENODEV,
    )?;
    drop(peers);
    expect_errno(
        "attaching a dma-buf from before",
        Peer::open()?.attach(&buffer, Mode::Dynamic),
        libc::ENODEV,
    )?;
    export(&exporter.open()?, MEMORY, 0, PAGE64)?;
    drop(exporter);
    works()
}

/// Buffers are revoked when the device is reset, and an old file exports others afterwards.
fn reset() -> Outcome {
    Expect::get()?.need_route()?;
    let exporter = Exporter::new()?;
    exporter.gpu().need_reset()?;
    let bar_file = exporter.open()?;
    let peer = Peer::open()?;
    let buffer = export(&bar_file, MEMORY, 0, 2 * PAGE64)?;
    let (pattern, _) = patterns();
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    peer_writes(&peer, pattern, &[1])?;
    let invalidated = peer.status()?.invalidations;
    exporter.gpu().reset()?;
    check!(
        peer.status()?.invalidations > invalidated,
        "the importer was not notified: {:?}",
        peer.status()?
    );
    expect_errno("map after the reset", peer.map(), libc::ENODEV)?;
    let other = Peer::open()?;
    let fresh = export(&bar_file, MEMORY, 0, 2 * PAGE64)?;
    other.attach_and_map(&fresh, Mode::Dynamic)?;
    peer_writes(&other, pattern, &[1])?;
    peer_reads(&other, pattern, &[1])?;
    drop((peer, other, exporter));
    works()
}

igt_main! {
    "peer", "a peer reads and writes the range, and nothing beside it", peer;
    "ranges", "several ranges are one buffer", ranges;
    "refusals", "importers that cannot reach it, or cannot be revoked, are refused", refusals;
    "badinput", "EINVAL for ranges that are none", badinput;
    "unbind", "exports are revoked when the driver is unbound", unbind;
    "reset", "exports are revoked when the device is reset", reset;
}

// SPDX-License-Identifier: GPL-2.0

//! The peer in every mode: which attach is refused and why, the addresses of the mapping, and the
//! bytes.

use std::time::Duration;

use vvram_tests::drm::{path_name, reason_name, text};
use vvram_tests::fixture::{
    cpu_reads, in_system_memory, patterns, peer_reads, peer_writes, share, Expect, Fixture,
};
use vvram_tests::map::{PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{check_table, Mode, Peer};
use vvram_tests::policy::IMPORTERS;
use vvram_tests::proc::Child;
use vvram_tests::rdma::Model;
use vvram_tests::uapi::{self, PeerAttachment, PeerAttachments};
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, fragment, heap, igt_main, skip, slab, Need, Outcome,
    Stop,
};

/// The size of an entry of PEER_ATTACHMENTS.
const RECORD: usize = std::mem::size_of::<PeerAttachment>();
/// The pause between refusals, so that their ages differ.
const PAUSE: Duration = Duration::from_millis(20);

/// Attaches in one mode and moves pages in both directions, or checks the refusal.
fn mode_moves_bytes(mode: Mode) -> Outcome {
    let fixture = Fixture::open()?;
    let (a, b) = patterns();
    let pages = 8;
    let free = fixture.drm.vram_free()?;
    let shared = share(&fixture.drm, pages)?;
    fixture.drm.await_vram_free(free - pages as u64 * PAGE64)?;
    shared.map.fill(a);

    let attached = fixture.peer.attach(&shared.buffer, mode);
    if fixture.expect == Expect::Refused {
        return fixture.check_refused(&shared.object, attached, mode, uapi::REASON_NO_ROUTE);
    }
    check_eq!(attached?, pages as u64 * PAGE64, "size that the peer got");
    fixture.check_only(&shared.object, mode, false, false)?;
    if mode.needs_pin() {
        fixture.peer.pin()?;
        fixture.check_only(&shared.object, mode, true, false)?;
    }
    fixture.peer.map()?;
    fixture.check_only(&shared.object, mode, mode.needs_pin(), true)?;
    let (_, layout) = fixture.check_table(&fixture.peer, &shared.map)?;

    let some = [0, 3, pages - 1];
    let rest: Vec<_> = (0..pages).filter(|page| !some.contains(page)).collect();
    peer_reads(&fixture.peer, a, &some)?;
    peer_writes(&fixture.peer, b, &some)?;
    cpu_reads(&shared.map, b, &some)?;
    cpu_reads(&shared.map, a, &rest)?;
    fixture.check_vram(&layout, b, &some)?;
    fixture.check_vram(&layout, a, &rest)?;

    fixture.peer.unmap()?;
    fixture.check_only(&shared.object, mode, mode.needs_pin(), false)?;
    if mode.needs_pin() {
        fixture.peer.unpin()?;
        fixture.check_only(&shared.object, mode, false, false)?;
    }
    fixture.peer.detach()?;
    fixture.check_none(&shared.object)
}

fn dynamic() -> Outcome {
    mode_moves_bytes(Mode::Dynamic)
}

fn pinned() -> Outcome {
    mode_moves_bytes(Mode::Pinned)
}

fn revocable() -> Outcome {
    mode_moves_bytes(Mode::Revocable)
}

/// Modes that do not take peer-to-peer memory are refused on every topology.
fn mode_refused(mode: Mode) -> Outcome {
    let fixture = Fixture::open()?;
    let shared = share(&fixture.drm, 2)?;
    let attached = fixture.peer.attach(&shared.buffer, mode);
    fixture.check_refused(&shared.object, attached, mode, uapi::REASON_NO_OPT_IN)?;
    let status = fixture.peer.status()?;
    check_eq!(status.flags, 0, "status of the peer after the refusal");
    // The file can attach to a buffer for which the mode is permitted.
    let attached = fixture.peer.attach(&shared.buffer, Mode::Dynamic);
    if fixture.expect == Expect::Refused {
        return expect_errno(
            "attaching in mode Dynamic afterwards",
            attached,
            libc::EOPNOTSUPP,
        );
    }
    attached?;
    Ok(())
}

fn static_refused() -> Outcome {
    mode_refused(Mode::Static)
}

fn no_p2p_refused() -> Outcome {
    mode_refused(Mode::NoP2p)
}

fn attachments_listed() -> Outcome {
    let fixture = Fixture::open()?;
    let shared = share(&fixture.drm, 2)?;
    let object = &shared.object;
    fixture.check_none(object)?;
    // More refusals than are listed.
    for _ in 0..uapi::MAX_REFUSALS + 3 {
        expect_errno(
            "attaching in mode Static",
            fixture.peer.attach(&shared.buffer, Mode::Static),
            libc::EOPNOTSUPP,
        )?;
    }
    let list = object.attachments()?;
    check_eq!(
        list.len(),
        uapi::MAX_REFUSALS,
        "entries after {} refusals",
        uapi::MAX_REFUSALS + 3
    );
    for entry in &list {
        check!(
            entry.refused() && entry.reason == uapi::REASON_NO_OPT_IN,
            "expected refusals for reason no-opt-in only, saw {} for {} in {entry:?}",
            path_name(entry.path),
            reason_name(entry.reason)
        );
    }
    let mut live = 0;
    if fixture.expect != Expect::Refused {
        fixture.peer.attach(&shared.buffer, Mode::Pinned)?;
        live = 1;
        let list = object.attachments()?;
        check_eq!(
            list.len(),
            uapi::MAX_REFUSALS + 1,
            "entries with one attachment"
        );
        fixture.check_entry(&list[0], Mode::Pinned, false, false)?;
        check!(
            list[1..].iter().all(|entry| entry.refused()),
            "refusals come last: {list:?}"
        );
    }
    let all = (uapi::MAX_REFUSALS + live) as u32;

    // A short array is filled to its end, and not further.
    for room in 0..=all {
        let untouched = PeerAttachment {
            device: [0x5a; 32],
            bus: [0x5a; 32],
            driver: [0x5a; 32],
            path: !0,
            reason: !0,
            flags: !0,
            distance: i32::MIN,
            age: !0,
        };
        let mut entries = vec![untouched; all as usize + 1];
        let mut argument = PeerAttachments {
            handle: object.handle(),
            entry_size: RECORD as u32,
            count: room,
            attachments: if room == 0 {
                0
            } else {
                entries.as_mut_ptr() as u64
            },
            ..Default::default()
        };
        fixture.drm.attachments_raw(&mut argument)?;
        check_eq!(argument.count, all, "count with room for {room}");
        for (index, entry) in entries.iter().enumerate() {
            let written = entry.path != untouched.path;
            check!(
                written == (index < room as usize),
                "with room for {room}, entry {index} is {entry:?}"
            );
        }
    }
    let mut argument = PeerAttachments {
        handle: object.handle(),
        entry_size: RECORD as u32,
        count: 1,
        attachments: 8,
        ..Default::default()
    };
    expect_errno(
        "PEER_ATTACHMENTS with a bad array",
        fixture.drm.attachments_raw(&mut argument),
        libc::EFAULT,
    )?;
    Ok(())
}

/// Entries of a size that the caller chooses, and their fields besides the path.
fn attachments_records() -> Outcome {
    let fixture = Fixture::open()?;
    let object = fixture.drm.create((2 * PAGE) as u64)?;
    check_eq!(
        object.records()?,
        (vec![], 0),
        "records and inode of an object that is not exported"
    );
    let buffer = object.export()?;
    for refused in 0..3 {
        let attached = fixture.peer.attach(&buffer, Mode::Static);
        expect_errno("attaching in mode Static", attached, libc::EOPNOTSUPP)?;
        if refused == 0 {
            // The later refusals are younger by this time.
            std::thread::sleep(PAUSE);
        }
    }
    let live = usize::from(fixture.expect != Expect::Refused);
    if live > 0 {
        fixture.peer.attach(&buffer, Mode::Dynamic)?;
    }
    let (records, inode) = object.records()?;
    check_eq!(inode, buffer.inode()?, "the inode of the dma-buf");
    check_eq!(records.len(), live + 3, "records");
    for record in &records {
        check_eq!(text(&record.device), fixture.peer.name(), "the device");
        check_eq!(text(&record.bus), "pci", "its bus");
        check_eq!(text(&record.driver), "edu_peer", "the driver");
    }
    check!(
        records[..live].iter().all(|record| record.age == 0),
        "an attachment has the age of a refusal: {records:?}"
    );
    let ages: Vec<_> = records[live..].iter().map(|record| record.age).collect();
    let pause = PAUSE.as_nanos() as u64;
    check!(
        ages[0] >= ages[1] + pause && ages[1] >= ages[2] && ages[2] > 0,
        "the oldest refusal comes first, {pause} ns before the others: {ages:?}"
    );

    // The entry size of the caller: the fields that both know are equal, and the rest is zero.
    for size in [RECORD, RECORD + 8, 4096] {
        let mut bytes = vec![0x5au8; size * (records.len() + 1)];
        let mut argument = PeerAttachments {
            handle: object.handle(),
            entry_size: size as u32,
            count: records.len() as u32,
            attachments: bytes.as_mut_ptr() as u64,
            ..Default::default()
        };
        fixture.drm.attachments_raw(&mut argument)?;
        check_eq!(argument.entry_size as usize, RECORD, "the kernel's record");
        check_eq!(argument.inode, inode, "the inode");
        for (entry, record) in bytes.chunks(size).zip(&records) {
            check_eq!(text(&entry[..32]), text(&record.device), "the device");
            check_eq!(text(&entry[32..64]), "pci", "its bus");
            check_eq!(text(&entry[64..96]), "edu_peer", "the driver");
            let path = entry[96..100].try_into().map(u32::from_ne_bytes).ok();
            check_eq!(path, Some(record.path), "the path in {size} bytes");
            check!(
                entry[RECORD..].iter().all(|byte| *byte == 0),
                "what the kernel does not know is not zero in {size} bytes"
            );
        }
        check!(
            bytes[size * records.len()..].iter().all(|b| *b == 0x5a),
            "more than {} records of {size} bytes were written",
            records.len()
        );
    }
    for size in [0, 8, RECORD - 8, RECORD + 4, 4104] {
        let mut bytes = vec![0u8; 5000];
        let mut argument = PeerAttachments {
            handle: object.handle(),
            entry_size: size as u32,
            count: 1,
            attachments: bytes.as_mut_ptr() as u64,
            ..Default::default()
        };
        let listed = fixture.drm.attachments_raw(&mut argument);
        expect_errno("a record that never was", listed, libc::EINVAL)?;
        // The entry size is ignored if the count is 0.
        argument.count = 0;
        fixture.drm.attachments_raw(&mut argument)?;
        check_eq!(argument.count as usize, records.len(), "number of records");
    }
    for broken in [
        PeerAttachments {
            pad: 1,
            ..Default::default()
        },
        PeerAttachments {
            inode: 1,
            ..Default::default()
        },
    ] {
        let mut argument = PeerAttachments {
            handle: object.handle(),
            ..broken
        };
        let listed = fixture.drm.attachments_raw(&mut argument);
        expect_errno("what has to be zero", listed, libc::EINVAL)?;
    }
    Ok(())
}

fn map_needs_pin() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 1)?;
    fixture.peer.attach(&shared.buffer, Mode::Pinned)?;
    expect_errno("mapping without a pin", fixture.peer.map(), libc::EINVAL)?;
    let mut data = [0u8; 8];
    expect_errno(
        "a transfer without a pin",
        fixture.peer.read(0, &mut data),
        libc::EINVAL,
    )?;
    fixture.check_only(&shared.object, Mode::Pinned, false, false)?;
    fixture.peer.pin()?;
    fixture.peer.map()?;
    fixture.check_only(&shared.object, Mode::Pinned, true, true)
}

fn pin_balance() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 1)?;
    let object = &shared.object;
    let other = fixture.peer.reopen()?;
    for mode in [Mode::Pinned, Mode::Revocable, Mode::Dynamic] {
        fixture.peer.attach(&shared.buffer, mode)?;
        expect_errno("unpin before pin", fixture.peer.unpin(), libc::EINVAL)?;
        fixture.check_only(object, mode, false, false)?;
        for _ in 0..3 {
            fixture.peer.pin()?;
            fixture.check_only(object, mode, true, false)?;
            fixture.peer.unpin()?;
            fixture.check_only(object, mode, false, false)?;
        }
        expect_errno("a second unpin", fixture.peer.unpin(), libc::EINVAL)?;

        // Two importers: each has its own pin.
        other.attach(&shared.buffer, mode)?;
        fixture.peer.pin()?;
        other.pin()?;
        other.unpin()?;
        let list = object.attachments()?;
        check_eq!(list.len(), 2, "attachments of two files");
        fixture.check_entry(&list[0], mode, true, false)?;
        fixture.check_entry(&list[1], mode, false, false)?;
        other.detach()?;
        fixture.check_only(object, mode, true, false)?;

        // The detach also unmaps and unpins.
        fixture.peer.map()?;
        fixture.check_only(object, mode, true, true)?;
        fixture.peer.detach()?;
        fixture.check_none(object)?;
    }
    Ok(())
}

fn status() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 1)?;
    let peer = &fixture.peer;
    let expect = |what: &str, flags: u32, maps: u64| -> Outcome {
        let status = peer.status()?;
        check_eq!(
            (status.flags, status.invalidations, status.maps, status.pad),
            (flags, 0, maps, 0),
            "status {what} (flags, invalidations, maps, pad)"
        );
        Ok(())
    };
    expect("of a new file", 0, 0)?;
    expect_errno("unmap before attach", peer.unmap(), libc::EINVAL)?;
    peer.attach(&shared.buffer, Mode::Pinned)?;
    expect("attached", uapi::EDU_PEER_STATUS_ATTACHED, 0)?;
    expect_errno("unmap before map", peer.unmap(), libc::EINVAL)?;
    expect_errno("table before map", peer.table(), libc::EINVAL)?;
    peer.pin()?;
    let pinned = uapi::EDU_PEER_STATUS_ATTACHED | uapi::EDU_PEER_STATUS_PINNED;
    expect("pinned", pinned, 0)?;
    peer.map()?;
    expect("mapped", pinned | uapi::EDU_PEER_STATUS_MAPPED, 1)?;
    // A map of a mapped buffer makes no new mapping.
    peer.map()?;
    expect("mapped again", pinned | uapi::EDU_PEER_STATUS_MAPPED, 1)?;
    peer.unmap()?;
    expect("unmapped", pinned, 1)?;
    peer.map()?;
    expect(
        "mapped for the second time",
        pinned | uapi::EDU_PEER_STATUS_MAPPED,
        2,
    )?;
    expect_errno(
        "a second attach",
        peer.attach(&shared.buffer, Mode::Dynamic),
        libc::EBUSY,
    )?;
    peer.detach()?;
    check_eq!(peer.status()?.flags, 0, "status flags after the detach");
    Ok(())
}

/// Moves bytes at odd offsets.
fn unaligned() -> Outcome {
    let size = 3 * PAGE;
    odd_moves(&[
        (0, 1),
        (3, 7),
        (4093, 6),
        (4097, 4095),
        (8195, 13),
        (size - 1, 1),
        (2047, 4099),
    ])
}

/// Moves only the last byte of a page, which may be the last byte of a range of VRAM.
fn last_byte() -> Outcome {
    const VIRTIO_IOMMU: (u16, u16) = (0x1af4, 0x1057);
    if PciDevice::find(VIRTIO_IOMMU.0, VIRTIO_IOMMU.1).is_ok() {
        // QEMU's virtio-iommu translates an address together with the next one, which may be in
        // another mapping.
        skip!("QEMU's virtio-iommu may translate the last byte of a mapping by the next mapping");
    }
    odd_moves(&[(4095, 1), (8191, 1)])
}

/// The peer reads and writes `moves`, pairs of offset and length, of a buffer of three pages. Every
/// byte is checked after each of them.
fn odd_moves(moves: &[(usize, usize)]) -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let pages = 3;
    let shared = share(&fixture.drm, pages)?;
    shared.map.fill(a);
    fixture.peer.attach_and_map(&shared.buffer, Mode::Dynamic)?;
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)?;
    fixture.check_table(&fixture.peer, &shared.map)?;
    let end = pages * PAGE;
    let mut written = vec![false; end];
    for &(offset, length) in moves {
        let mut data = vec![0xa5; length + 2];
        // The byte before and the byte after must stay as they are.
        fixture.peer.read(offset as u64, &mut data[1..=length])?;
        check!(
            data[0] == 0xa5 && data[length + 1] == 0xa5,
            "reading {length} bytes at {offset} wrote outside the caller's memory"
        );
        for (at, byte) in (offset..).zip(&data[1..=length]) {
            let want = if written[at] { b } else { a }.byte(at as u64);
            check!(
                *byte == want,
                "the peer read {length} bytes at {offset}: byte {at} should be {want:#x}, is {byte:#x}"
            );
        }
        b.fill(&mut data[1..=length], offset as u64);
        fixture.peer.write(offset as u64, &data[1..=length])?;
        written[offset..offset + length].fill(true);
        for (at, written) in written.iter().enumerate() {
            let want = if *written { b } else { a }.byte(at as u64);
            let seen = shared.map.byte(at);
            check!(
                seen == want,
                "after the peer wrote {length} bytes at {offset}: byte {at} should be {want:#x}, is {seen:#x}"
            );
        }
    }
    Ok(())
}

/// Every class of importer gets system memory, also those that are refused VRAM.
fn system_heap() -> Outcome {
    let fixture = Fixture::open()?;
    let (a, b) = patterns();
    for mode in IMPORTERS {
        let buffer = heap::allocate(2 * PAGE64)?;
        let map = buffer.map()?;
        map.fill(a);
        fixture.peer.attach_and_map(&buffer, mode)?;
        let table = fixture.peer.table()?;
        check_ok!(check_table(&table, 2 * PAGE64), "mode {mode:?}");
        in_system_memory(&fixture, &fixture.peer)?;
        peer_reads(&fixture.peer, a, &[0, 1])?;
        peer_writes(&fixture.peer, b, &[0, 1])?;
        cpu_reads(&map, b, &[0, 1])?;
        fixture.peer.detach()?;
    }
    Ok(())
}

fn out_of_range() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let size = 2 * PAGE64;
    let shared = share(&fixture.drm, 2)?;
    shared.map.fill(a);
    fixture.peer.attach(&shared.buffer, Mode::Dynamic)?;
    let mut data = vec![0x11u8; 3 * PAGE];
    for (offset, length) in [
        (size, 1),
        (size - 1, 2),
        (0, size + 1),
        (PAGE64, size),
        (1 << 32, 1),
        (1 << 63, 1),
        (u64::MAX, 1),
        (u64::MAX - 7, 16),
        (size, u64::MAX - size + 1),
        (1, u64::MAX),
    ] {
        for direction in [
            uapi::EDU_PEER_DIRECTION_READ,
            uapi::EDU_PEER_DIRECTION_WRITE,
        ] {
            let mut argument = uapi::EduPeerTransfer {
                offset,
                length,
                data: data.as_mut_ptr() as u64,
                direction,
                pad: 0,
            };
            // SAFETY: the caller's memory is larger than the dma-buf, more
            // than which cannot be moved.
            let result = unsafe { fixture.peer.transfer_raw(&mut argument) };
            expect_errno(
                &format!("a transfer of {length:#x} bytes at {offset:#x} of {size:#x}"),
                result,
                libc::EINVAL,
            )?;
        }
    }
    check!(
        data.iter().all(|byte| *byte == 0x11),
        "a refused transfer wrote to the caller's memory"
    );
    check_ok!(
        shared.map.verify(a),
        "a refused transfer wrote to the buffer"
    );
    Ok(())
}

fn multi_range() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let ranges = 6;
    let ragged = fragment::create(
        &fixture.drm,
        &fixture.bar,
        ranges * 16 * PAGE64,
        ranges as usize,
    )?;
    let object = &ragged.object;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    for mode in [Mode::Dynamic, Mode::Pinned] {
        let (ours, theirs) = match mode {
            Mode::Dynamic => (a, b),
            _ => (b, a),
        };
        fixture.peer.attach_and_map(&buffer, mode)?;
        fixture.check_only(object, mode, mode.needs_pin(), true)?;
        let (_, layout) = fixture.check_table(&fixture.peer, &map)?;
        check_eq!(layout, ragged.layout, "places of the buffer");
        // The second mode covers some of the pages, to save time. If the BAR shows VRAM in another
        // order each page is at an edge, of which some are enough.
        let all = layout.boundary_pages();
        let apart = all.len().div_ceil(4 * ranges as usize);
        let edges: Vec<_> = all
            .into_iter()
            .step_by(apart * if mode == Mode::Dynamic { 1 } else { 5 })
            .collect();
        peer_reads(&fixture.peer, ours, &edges)?;
        peer_writes(&fixture.peer, theirs, &edges)?;
        cpu_reads(&map, theirs, &edges)?;
        fixture.check_vram(&layout, theirs, &edges)?;
        fixture.peer.detach()?;
        map.fill(theirs);
    }
    Ok(())
}

/// One transfer across the edge of two ranges.
fn across_ranges() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let ragged = fragment::create(&fixture.drm, &fixture.bar, 4 * PAGE64, 4)?;
    let map = ragged.object.map()?;
    map.fill(a);
    let buffer = ragged.object.export()?;
    fixture.peer.attach_and_map(&buffer, Mode::Dynamic)?;
    fixture.check_only(&ragged.object, Mode::Dynamic, false, true)?;
    fixture.check_table(&fixture.peer, &map)?;
    // From half a page before the first edge to half a page after the last one.
    let (offset, length) = (2048u64, 3 * PAGE);
    let mut data = vec![0u8; length];
    fixture.peer.read(offset, &mut data)?;
    check_ok!(a.verify(&data, offset), "the peer read across ranges");
    b.fill(&mut data, offset);
    fixture.peer.write(offset, &data)?;
    let written = Model::new(a).with_copy(b, offset, offset, length as u64);
    check_ok!(written.verify(&map), "the peer wrote across ranges");
    Ok(())
}

/// dma_buf_phys_vec_to_sgt() once linked every range at IOVA offset 0: the
/// mapping failed, or only the last range was reached.
fn iova_offset() -> Outcome {
    let fixture = Fixture::with_route()?;
    if !fixture.translated() {
        return Err(Stop::needs(Need::Iommu));
    }
    let (a, b) = patterns();
    let ragged = fragment::create(&fixture.drm, &fixture.bar, 8 * PAGE64, 4)?;
    let map = ragged.object.map()?;
    map.fill(a);
    let buffer = ragged.object.export()?;
    fixture.peer.attach_and_map(&buffer, Mode::Dynamic)?;
    fixture.check_only(&ragged.object, Mode::Dynamic, false, true)?;
    fixture.check_table(&fixture.peer, &map)?;
    let all: Vec<_> = (0..8).collect();
    peer_reads(&fixture.peer, a, &all)?;
    peer_writes(&fixture.peer, b, &all)?;
    cpu_reads(&map, b, &all)?;
    fixture.check_vram(&ragged.layout, b, &all)
}

fn two_files() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let shared = share(&fixture.drm, 2)?;
    let object = &shared.object;
    shared.map.fill(a);
    let other = fixture.peer.reopen()?;
    fixture.peer.attach(&shared.buffer, Mode::Dynamic)?;
    other.attach(&shared.buffer, Mode::Pinned)?;
    fixture.peer.map()?;
    other.pin_and_map(Mode::Pinned)?;
    let list = object.attachments()?;
    check_eq!(list.len(), 2, "attachments of two files");
    fixture.check_entry(&list[0], Mode::Dynamic, false, true)?;
    fixture.check_entry(&list[1], Mode::Pinned, true, true)?;
    fixture.check_table(&fixture.peer, &shared.map)?;
    fixture.check_table(&other, &shared.map)?;
    peer_reads(&fixture.peer, a, &[0])?;
    peer_writes(&other, b, &[0])?;
    peer_reads(&fixture.peer, b, &[0])?;
    // One importer detaches, the other one stays.
    fixture.peer.detach()?;
    fixture.check_only(object, Mode::Pinned, true, true)?;
    peer_writes(&other, b, &[1])?;
    cpu_reads(&shared.map, b, &[0, 1])?;
    drop(other);
    fixture.check_none(object)
}

fn close_handle_while_mapped() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let free = fixture.drm.vram_free()?;
    let shared = share(&fixture.drm, 4)?;
    shared.map.fill(a);
    fixture.peer.attach_and_map(&shared.buffer, Mode::Dynamic)?;
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)?;
    let (_, layout) = fixture.check_table(&fixture.peer, &shared.map)?;
    // Handle, mapping and file descriptor of the dma-buf are closed, so only the attachment of the
    // peer is left.
    shared.object.close()?;
    drop(shared.map);
    drop(shared.buffer);
    fixture.drm.await_vram_free(free - 4 * PAGE64)?;
    // New objects must not get the VRAM under the peer.
    let other = fixture.drm.create(free - 4 * PAGE64)?;
    other.map()?.set(!0);
    peer_reads(&fixture.peer, a, &[0, 3])?;
    peer_writes(&fixture.peer, b, &[1, 2])?;
    fixture.check_vram(&layout, a, &[0, 3])?;
    fixture.check_vram(&layout, b, &[1, 2])?;
    check_ok!(
        other.map()?.verify_value(!0),
        "the peer wrote to another object"
    );
    other.close()?;
    fixture.peer.detach()?;
    fixture.drm.await_vram_free(free)?;
    Ok(())
}

/// A close of the file of the peer detaches.
fn close_peer() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 1)?;
    for mode in [Mode::Dynamic, Mode::Pinned, Mode::Revocable] {
        let other = fixture.peer.reopen()?;
        other.attach_and_map(&shared.buffer, mode)?;
        fixture.check_only(&shared.object, mode, mode.needs_pin(), true)?;
        drop(other);
        fixture.check_none(&shared.object)?;
    }
    Ok(())
}

fn one_byte() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let object = fixture.drm.create(1)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    check_eq!(
        fixture.peer.attach(&buffer, Mode::Dynamic)?,
        PAGE64,
        "size of an object of one byte"
    );
    fixture.peer.map()?;
    fixture.check_table(&fixture.peer, &map)?;
    peer_reads(&fixture.peer, a, &[0])
}

fn whole_vram() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let free = fixture.drm.vram_free()?;
    let pages = free as usize / PAGE;
    let shared = share(&fixture.drm, pages)?;
    shared.map.fill(a);
    fixture.peer.attach_and_map(&shared.buffer, Mode::Dynamic)?;
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)?;
    let (table, layout) = fixture.check_table(&fixture.peer, &shared.map)?;
    // The peer takes entries of any length.
    let entries = if fixture.translated() {
        1
    } else {
        layout.ranges().len()
    };
    check_eq!(table.len(), entries, "entries of the scatter table");
    let edges = [0, pages / 2, pages - 1];
    peer_reads(&fixture.peer, a, &edges)?;
    peer_writes(&fixture.peer, b, &edges)?;
    cpu_reads(&shared.map, b, &edges)?;
    fixture.peer.detach()?;
    // An object of this size exceeds the limit of pinned VRAM.
    fixture.peer.attach(&shared.buffer, Mode::Pinned)?;
    expect_errno("pinning all of VRAM", fixture.peer.pin(), libc::EDQUOT)?;
    fixture.check_only(&shared.object, Mode::Pinned, false, false)
}

/// dma_buf_free_sgt() once did not free the scatterlist: every unmap leaked 32 bytes per entry.
fn map_cycles() -> Outcome {
    let fixture = Fixture::with_route()?;
    // A table of 65 to 127 entries is one slab object of 4 KiB; one of 128 and
    // more would come as whole pages, which SUnreclaim does not count. Behind
    // an IOMMU there is one entry however many ranges, so more cycles instead.
    let (ranges, cycles) = if fixture.translated() {
        (1, 4_000)
    } else {
        (100, 200)
    };
    let cycles = cycles * misc::soak();
    let ragged = fragment::create(&fixture.drm, &fixture.bar, ranges * PAGE64, ranges as usize)?;
    let buffer = ragged.object.export()?;
    let map = ragged.object.map()?;
    let peer = &fixture.peer;
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    fixture.check_only(&ragged.object, Mode::Dynamic, false, true)?;
    let (table, _) = fixture.check_table(peer, &map)?;
    check_eq!(table.len() as u64, ranges, "entries of the scatter table");
    peer.unmap()?;
    slab::repeat(cycles, (ranges * 32).next_power_of_two(), || {
        peer.map()?;
        Ok(peer.unmap()?)
    })
}

fn attach_cycles() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 1)?;
    for index in 0..300 {
        let mode = [Mode::Dynamic, Mode::Pinned, Mode::Revocable][index % 3];
        fixture.peer.attach(&shared.buffer, mode)?;
        if index % 2 == 0 {
            fixture.peer.pin_and_map(mode)?;
        }
        fixture.peer.detach()?;
    }
    fixture.check_none(&shared.object)
}

fn concurrent() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 4)?;
    let pattern = Pattern::new(7);
    shared.map.fill(pattern);
    let modes = [Mode::Dynamic, Mode::Pinned, Mode::Revocable, Mode::Static];
    let mut children = Vec::new();
    for (index, mode) in modes.into_iter().enumerate() {
        children.push(Child::spawn(|| {
            let peer = Peer::open()?;
            for round in 0..60 {
                if mode == Mode::Static {
                    expect_errno(
                        "attaching in mode Static",
                        peer.attach(&shared.buffer, mode),
                        libc::EOPNOTSUPP,
                    )?;
                    shared.object.attachments()?;
                    continue;
                }
                peer.attach_and_map(&shared.buffer, mode)?;
                fixture.check_table_of(&peer, 4 * PAGE64)?;
                if round % 30 == 0 {
                    peer_reads(&peer, pattern, &[index])?;
                }
                peer.detach()?;
            }
            Ok(())
        })?);
    }
    for (child, mode) in children.iter_mut().zip(modes) {
        child.join(
            &format!("the process in mode {mode:?}"),
            Duration::from_secs(40),
        )?;
    }
    let left = shared.object.attachments()?;
    check!(
        left.iter().all(|entry| entry.refused()),
        "attachments left over: {left:?}"
    );
    Ok(())
}

igt_main! {
    "dynamic", "attach, map, move bytes in dynamic mode; refused without a route", dynamic;
    "pinned", "the same, pinned", pinned;
    "revocable", "the same, revocable", revocable;
    "static-refused", "an importer without importer ops is refused: no-opt-in", static_refused;
    "no-p2p-refused", "an importer without allow_peer2peer is refused: no-opt-in", no_p2p_refused;
    "attachments-listed", "PEER_ATTACHMENTS counts, orders, bounds and truncates", attachments_listed;
    "attachments-records", "records of any size, the driver, the inode, the age", attachments_records;
    "map-needs-pin", "pinned mode cannot map without a pin", map_needs_pin;
    "pin-balance", "pins show in PEER_ATTACHMENTS, one per importer", pin_balance;
    "status", "the peer's own state, and its errors", status;
    "unaligned", "odd offsets and lengths move these bytes and no others", unaligned;
    "system-heap", "system memory moves in every mode", system_heap;
    "last-byte", "the last byte of a page moves on its own", last_byte;
    "out-of-range", "EINVAL, and nothing moves", out_of_range;
    "multi-range", "a buffer over six ranges, at every edge", multi_range;
    "across-ranges", "one transfer over the edges of ranges", across_ranges;
    "iova-offset", "a buffer over four ranges behind an IOMMU, every byte", iova_offset;
    "two-files", "two attachments of one buffer", two_files;
    "close-handle-while-mapped", "the peer's mapping outlives handle and fd", close_handle_while_mapped;
    "close-peer", "closing the peer's file detaches", close_peer;
    "one-byte", "the smallest object", one_byte;
    "whole-vram", "the largest object, first to last page", whole_vram;
    "map-cycles", "map and unmap leave no scatterlist behind", map_cycles;
    "attach-cycles", "300 attachments come and go", attach_cycles;
    "concurrent", "four processes attach, map and detach at once", concurrent;
}

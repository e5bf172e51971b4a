// SPDX-License-Identifier: GPL-2.0

//! An importer that takes short segments only, or reaches few addresses.
//!
//! The limits are those of the device in the kernel, which tests can set in sysfs. edu itself has
//! none, so a table that breaks them is found by its addresses and lengths.

use vvram_tests::drm::EITHER;
use vvram_tests::fixture::{
    compare_table, cpu_reads, in_system_memory, patterns, peer_reads, peer_writes, placed, share,
    Expect, Fixture,
};
use vvram_tests::iommu::Way;
use vvram_tests::map::PAGE64;
use vvram_tests::memory::{kind_of, reached, reads, writes};
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{check_table, Mode, Peer};
use vvram_tests::svm::{check_places, filled, holds};
use vvram_tests::uapi::{
    self, EduPeerSegment, DMA_BUF_SYNC_END as END, DMA_BUF_SYNC_WRITE as WRITE,
};
use vvram_tests::{
    bar_export, check, check_eq, expect_errno, fail, fragment, igt_main, Outcome, Stop, SysError,
};

const SEGMENT: &str = "dma_max_seg_size";
const MASK: &str = "dma_mask_bits";
/// The size of a buffer, which is no multiple of all limits.
const SIZE: u64 = 45 * PAGE64;
const LIMITS: [u32; 3] = [4096, 3 * 4096 + 100, 65536];
/// Fewer than memory of the guest has, as many as a device of 32 bits has, and more.
const BITS: [u32; 3] = [28, 32, 40];

/// A limit of a device, which has its old value again when this is dropped.
struct Limited<'a> {
    device: &'a PciDevice,
    file: &'static str,
    old: u32,
}

impl<'a> Limited<'a> {
    fn new(device: &'a PciDevice, file: &'static str, limit: u32) -> Result<Self, SysError> {
        let old = device.dma_limit(file)?;
        device.set_dma_limit(file, limit)?;
        Ok(Self { device, file, old })
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        let _ = self.device.set_dma_limit(self.file, self.old);
    }
}

/// Checks a table against the limit of a segment; `ranges` are the lengths of what adjoins.
#[track_caller]
fn short(table: &[EduPeerSegment], limit: u32, ranges: &[u64]) -> Outcome {
    // Whole pages.
    let most = u64::from(limit) / PAGE64 * PAGE64;
    let size = ranges.iter().sum();
    if let Err(text) = check_table(table, size) {
        fail!("{}", text);
    }
    if let Some(long) = table.iter().find(|segment| segment.length > most) {
        fail!("{long:x?} is longer than {most:#x}: {table:x?}");
    }
    let want: u64 = ranges.iter().map(|len| len.div_ceil(most)).sum();
    check_eq!(table.len() as u64, want, "segments of {most:#x} at most");
    Ok(())
}

/// Lets the peer read the pages of a pattern, and write some of them.
#[track_caller]
fn moves_bytes(peer: &Peer, map: &vvram_tests::map::Map) -> Outcome {
    let (a, b) = patterns();
    let (first, last) = (0, map.pages() - 1);
    map.fill_pages(a, first, last + 1);
    // Transfers take long.
    peer_reads(peer, a, &[last])?;
    peer_writes(peer, b, &[last - 1])?;
    cpu_reads(map, b, &[last - 1])?;
    cpu_reads(map, a, &[first, last - 2, last])
}

/// Segments of VRAM in several ranges, for each class of importer.
fn segments_vram() -> Outcome {
    let fixture = Fixture::with_route()?;
    let fragmented = fragment::create(&fixture.drm, &fixture.bar, SIZE, 5)?;
    let (object, layout) = (&fragmented.object, &fragmented.layout);
    let (map, buffer) = (object.map()?, object.export()?);
    let way = Way::of(&fixture.edu)?;
    for (index, limit) in LIMITS.into_iter().enumerate() {
        let _limited = Limited::new(&fixture.edu, SEGMENT, limit)?;
        let mode = [Mode::Dynamic, Mode::Pinned, Mode::Revocable][index % 3];
        let peer = &fixture.peer;
        peer.attach_and_map(&buffer, mode)?;
        fixture.check_only(object, mode, mode.needs_pin(), true)?;
        let table = peer.table()?;
        let way_now = Way::of(&fixture.edu)?;
        compare_table(&table, layout, SIZE, &fixture.bar, &way_now).map_err(Stop::fail)?;
        // One range of addresses of an IOMMU shows all of them.
        let ranges: Vec<_> = match way {
            Way::Straight => layout.ranges().iter().map(|(_, len)| *len).collect(),
            _ => vec![SIZE],
        };
        short(&table, limit, &ranges)?;
        moves_bytes(peer, &map)?;
        placed(object, uapi::PLACEMENT_VRAM)?;
        peer.detach()?;
    }
    Ok(())
}

/// Segments of system memory.
fn segments_system() -> Outcome {
    let fixture = Fixture::open()?;
    for limit in LIMITS {
        let _limited = Limited::new(&fixture.edu, SEGMENT, limit)?;
        let object = fixture.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
        let (map, buffer) = (object.map()?, object.export()?);
        let peer = &fixture.peer;
        peer.attach_and_map(&buffer, Mode::Static)?;
        let table = peer.table()?;
        check_table(&table, SIZE).map_err(Stop::fail)?;
        let most = u64::from(limit) / PAGE64 * PAGE64;
        check!(
            table.iter().all(|segment| segment.length <= most),
            "a segment is longer than {most:#x}: {table:x?}"
        );
        in_system_memory(&fixture, peer)?;
        moves_bytes(peer, &map)?;
        peer.detach()?;
    }
    Ok(())
}

/// The segments of an object that moves have the limit in each place.
fn segments_moved() -> Outcome {
    const LIMIT: u32 = 8192;
    let fixture = Fixture::with_route()?;
    let _limited = Limited::new(&fixture.edu, SEGMENT, LIMIT)?;
    let object = fixture.drm.create_flags(SIZE, EITHER)?;
    let (map, buffer) = (object.map()?, object.export()?);
    let (peer, other) = (&fixture.peer, fixture.peer.reopen()?);
    for _ in 0..2 {
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
        let (table, layout) = fixture.check_table(peer, &map)?;
        let ranges: Vec<_> = match Way::of(&fixture.edu)? {
            Way::Straight => layout.ranges().iter().map(|(_, len)| *len).collect(),
            _ => vec![SIZE],
        };
        short(&table, LIMIT, &ranges)?;
        moves_bytes(peer, &map)?;
        let before = peer.status()?.invalidations;
        // An importer that has no peer-to-peer memory moves the object under the first one.
        other.attach_and_map(&buffer, Mode::NoP2p)?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        let told = peer.status()?.invalidations;
        check!(told > before, "{told} invalidations, {before} before");
        peer.map()?;
        in_system_memory(&fixture, peer)?;
        let table = peer.table()?;
        check!(
            table.iter().all(|s| s.length <= u64::from(LIMIT)),
            "a segment is longer than {LIMIT:#x}: {table:x?}"
        );
        moves_bytes(peer, &map)?;
        other.detach()?;
        peer.detach()?;
    }
    Ok(())
}

/// Checks that a table has only addresses of so many bits.
#[track_caller]
fn within(table: &[EduPeerSegment], bits: u32) -> Outcome {
    let over = table
        .iter()
        .find(|segment| segment.dma_address + segment.length > 1 << bits);
    check!(
        over.is_none(),
        "{over:x?} has more than {bits} bits: {table:x?}"
    );
    Ok(())
}

/// A device that reaches some of system memory. By an IOMMU all of it has addresses that the device
/// reaches. Without one the kernel warns of memory that it does not reach, which an object may have.
fn mask_system() -> Outcome {
    let fixture = Fixture::open()?;
    let first = if fixture.edu.translated() { 0 } else { 1 };
    for bits in BITS.into_iter().skip(first) {
        let _limited = Limited::new(&fixture.edu, MASK, bits)?;
        let object = fixture.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
        let (map, buffer) = (object.map()?, object.export()?);
        let (a, b) = patterns();
        let (peer, last) = (&fixture.peer, map.pages() - 1);
        map.fill(a);
        peer.attach_and_map(&buffer, Mode::Static)?;
        within(&peer.table()?, bits)?;
        peer_reads(peer, a, &[last])?;
        buffer.sync(WRITE)?;
        map.fill(b);
        buffer.sync(WRITE | END)?;
        peer_reads(peer, b, &[0])?;
        peer_writes(peer, a, &[last])?;
        // The access by the CPU gets what the device has written.
        buffer.sync(WRITE)?;
        cpu_reads(&map, a, &[last])?;
        cpu_reads(&map, b, &[0, last - 1])?;
        buffer.sync(WRITE | END)?;
        peer.detach()?;
    }
    Ok(())
}

/// How many bits the addresses of the BAR have.
fn bits_of(fixture: &Fixture) -> u32 {
    u64::BITS - (fixture.bar.start() + fixture.bar.len() - 1).leading_zeros()
}

/// A device that does not reach the BAR gets system memory, or nothing, and is told why. By an
/// IOMMU it reaches all memory.
fn mask_vram() -> Outcome {
    let fixture = Fixture::with_route()?;
    let all = bits_of(&fixture);
    let translated = fixture.translated();
    for bits in [28, all - 1, all] {
        let _limited = Limited::new(&fixture.edu, MASK, bits)?;
        let reached = translated || bits >= all;
        for mode in [Mode::Dynamic, Mode::Pinned] {
            let shared = share(&fixture.drm, 3)?;
            let peer = fixture.peer.reopen()?;
            let attached = peer.attach(&shared.buffer, mode);
            // The question does not know the mask.
            let asked = fixture.drm.query(
                shared.object.handle(),
                mode.attachment_flags(),
                &fixture.edu,
            )?;
            check_eq!(asked.path, fixture.expect.path(), "path of PEER_QUERY");
            if !reached {
                fixture.check_refused(&shared.object, attached, mode, uapi::REASON_NO_ROUTE)?;
                continue;
            }
            attached?;
            peer.pin_and_map(mode)?;
            fixture.check_only(&shared.object, mode, mode.needs_pin(), true)?;
            fixture.check_table(&peer, &shared.map)?;
            within(&peer.table()?, bits)?;
            moves_bytes(&peer, &shared.map)?;
            placed(&shared.object, uapi::PLACEMENT_VRAM)?;
        }
        if reached {
            continue;
        }
        // An object that may be elsewhere is moved there.
        let object = fixture.drm.create_flags(3 * PAGE64, EITHER)?;
        let (map, buffer) = (object.map()?, object.export()?);
        let peer = fixture.peer.reopen()?;
        peer.attach(&buffer, Mode::Dynamic)?;
        let list = object.attachments()?;
        check!(
            matches!(list.as_slice(), [only] if only.path == uapi::PATH_SYSTEM
                && only.reason == uapi::REASON_NO_ROUTE),
            "with {bits} bits PEER_ATTACHMENTS lists {list:?}"
        );
        peer.map()?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        within(&peer.table()?, bits)?;
        let (a, _) = patterns();
        buffer.sync(WRITE)?;
        map.fill(a);
        buffer.sync(WRITE | END)?;
        peer_reads(&peer, a, &[2])?;
    }
    Ok(())
}

/// The same for an exporter that has nothing but its BAR.
fn mask_bar() -> Outcome {
    Expect::get()?.need_route()?;
    let all = bits_of(&Fixture::open()?);
    let exporter = bar_export::Exporter::new()?;
    let file = exporter.open()?;
    let buffer = bar_export::export(&file, bar_export::MEMORY, PAGE64, 2 * PAGE64)?;
    let peer = Peer::open()?;
    let edu = PciDevice::named(peer.name());
    for bits in [all - 1, all] {
        let _limited = Limited::new(&edu, MASK, bits)?;
        let attached = peer.attach(&buffer, Mode::Dynamic);
        if bits < all && !edu.translated() {
            expect_errno("attaching", attached, libc::EOPNOTSUPP)?;
            continue;
        }
        attached?;
        peer.map()?;
        within(&peer.table()?, bits)?;
        let (a, _) = patterns();
        peer_writes(&peer, a, &[0, 1])?;
        peer_reads(&peer, a, &[0, 1])?;
        peer.detach()?;
    }
    Ok(())
}

/// Memory of a process in VRAM, to which the mask of the device does not extend: exactly the pages
/// that the device accesses move. By an IOMMU it reaches all of them, and has to have as many bits
/// as the addresses of the IOMMU.
fn mask_memory() -> Outcome {
    let fixture = Fixture::with_route()?;
    let all = bits_of(&fixture);
    let (a, b) = patterns();
    let first = if fixture.translated() { all } else { all - 1 };
    for bits in first..=all {
        let _limited = Limited::new(&fixture.edu, MASK, bits)?;
        let in_reach = bits == all;
        let (peer, map) = (fixture.peer.reopen()?, filled(4, a)?);
        peer.register(&map)?;
        fixture.drm.svm_migrate_each(&map, &[0, 1, 2, 3])?;
        reads(&peer, a, &[1])?;
        writes(&peer, b, &[2])?;
        check_places(&map, |page| in_reach || page == 0 || page == 3)?;
        let kind = if in_reach {
            kind_of(fixture.expect)
        } else {
            uapi::EDU_PEER_MEMORY_KIND_SYSTEM
        };
        reached(&peer, 2, kind)?;
        holds("the CPU", &map, b, 2..3)?;
        holds("the CPU", &map, a, 0..2)?;
    }
    Ok(())
}

igt_main! {
    "segments-vram", "segments of VRAM in several ranges", segments_vram;
    "segments-system", "segments of system memory", segments_system;
    "segments-moved", "segments of an object that moves", segments_moved;
    "mask-system", "addresses of system memory that the device reaches", mask_system;
    "mask-vram", "a mask that does not cover the BAR: refused, or system memory", mask_vram;
    "mask-bar", "the same for bar_export", mask_bar;
    "mask-memory", "the same for memory of a process in VRAM", mask_memory;
}

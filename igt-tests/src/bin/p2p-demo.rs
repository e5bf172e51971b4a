// SPDX-License-Identifier: GPL-2.0

//! Shows one transfer peer to peer: VRAM over several ranges, exported through
//! dma-buf, read and written by another PCI device, every byte checked.
//!
//! The result is one JSON object in a file. Where PCI has no permitted route, it has the refusal
//! and its reason.

use std::fs;
use std::process::ExitCode;

use vvram_tests::drm::{path_name, reason_name, Drm};
use vvram_tests::fixture::{compare_table, patterns};
use vvram_tests::iommu::Way;
use vvram_tests::map::PAGE;
use vvram_tests::misc::json_string;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::{check, check_eq, check_ok, errno_name, fail, fragment, uapi, Outcome};

const USAGE: &str = "usage: p2p-demo --json FILE [--size BYTES]";
/// The bytes of one transfer of the peer.
const CHUNK: usize = 64 * 1024;
/// The buffer must have at least this many ranges.
const MIN_RANGES: usize = 3;

/// The result.
#[derive(Debug, Default)]
struct Report {
    decision: String,
    reason: String,
    distance: i64,
    size: u64,
    ranges: usize,
    segments: usize,
    bytes_written: u64,
    bytes_read: u64,
    verified: bool,
    error: Option<String>,
}

impl Report {
    fn json(&self) -> String {
        let error = match &self.error {
            Some(text) => json_string(text),
            None => "null".to_string(),
        };
        format!(
            "{{\"decision\": {}, \"reason\": {}, \"distance\": {}, \"size\": {}, \"ranges\": {}, \"segments\": {}, \"bytes_written\": {}, \"bytes_read\": {}, \"verified\": {}, \"error\": {error}}}\n",
            json_string(&self.decision),
            json_string(&self.reason),
            self.distance,
            self.size,
            self.ranges,
            self.segments,
            self.bytes_written,
            self.bytes_read,
            self.verified,
        )
    }
}

/// The peer reads every byte.
fn peer_reads_all(peer: &Peer, pattern: Pattern, report: &mut Report) -> Outcome {
    let mut data = vec![0u8; CHUNK];
    let mut offset = 0;
    while offset < report.size {
        let count = (report.size - offset).min(CHUNK as u64) as usize;
        let data = &mut data[..count];
        data.fill(0xa5);
        peer.read(offset, data)?;
        check_ok!(
            pattern.verify(data, offset),
            "the peer did not read what the CPU wrote"
        );
        offset += count as u64;
        report.bytes_read = offset;
    }
    Ok(())
}

/// The peer writes every byte.
fn peer_writes_all(peer: &Peer, pattern: Pattern, report: &mut Report) -> Outcome {
    let mut data = vec![0u8; CHUNK];
    let mut offset = 0;
    while offset < report.size {
        let count = (report.size - offset).min(CHUNK as u64) as usize;
        let data = &mut data[..count];
        pattern.fill(data, offset);
        peer.write(offset, data)?;
        offset += count as u64;
        report.bytes_written = offset;
    }
    Ok(())
}

fn show(report: &mut Report) -> Outcome {
    let drm = Drm::open()?;
    let peer = Peer::open()?;
    let gpu = PciDevice::vvram()?;
    let edu = PciDevice::named(peer.name());
    let bar = Bar::open(&gpu)?;
    let free = drm.vram_free()?;
    println!(
        "exporter {}, peer {}, {} KiB of VRAM free",
        gpu.name(),
        peer.name(),
        free / 1024
    );

    let ragged = fragment::create(&drm, &bar, report.size, MIN_RANGES)?;
    let object = ragged.object;
    report.size = object.size();
    report.ranges = ragged.layout.ranges().len();
    let map = object.map()?;
    let (ours, theirs) = patterns();
    map.fill(ours);
    let buffer = object.export()?;
    println!(
        "buffer of {} KiB over {} ranges of VRAM",
        report.size / 1024,
        report.ranges
    );

    if let Err(error) = peer.attach(&buffer, Mode::Dynamic) {
        let list = object.attachments()?;
        check!(
            error.errno == libc::EOPNOTSUPP,
            "an attach is refused with EOPNOTSUPP, this one with {}; PEER_ATTACHMENTS lists {list:?}",
            errno_name(error.errno)
        );
        let Some(entry) = list.iter().find(|e| e.refused() && e.device == peer.name()) else {
            fail!("the refusal is not on record: PEER_ATTACHMENTS lists {list:?}");
        };
        report.decision = path_name(entry.path);
        report.reason = reason_name(entry.reason);
        report.distance = entry.distance.into();
        check!(
            entry.reason != uapi::REASON_NONE,
            "the refusal has no reason: {entry:?}"
        );
        report.verified = true;
        println!("refused, {}", report.reason);
        return Ok(());
    }

    peer.map()?;
    let list = object.attachments()?;
    let [entry] = list.as_slice() else {
        fail!("one attachment was expected, PEER_ATTACHMENTS lists {list:?}");
    };
    report.decision = path_name(entry.path);
    report.reason = reason_name(entry.reason);
    report.distance = entry.distance.into();
    check_eq!(
        entry.device.as_str(),
        peer.name(),
        "importer in PEER_ATTACHMENTS"
    );
    check!(
        [uapi::PATH_PEER_BUS, uapi::PATH_PEER_HOST_BRIDGE].contains(&entry.path),
        "the buffer is not reached peer to peer: {entry:?}"
    );
    check!(
        entry.flags & uapi::ATTACHMENT_MAPPED != 0,
        "PEER_ATTACHMENTS does not show the mapping: {entry:?}"
    );

    // One IOVA range behind an IOMMU, else the addresses of the VRAM ranges.
    let table = peer.table()?;
    report.segments = table.len();
    let way = Way::of(&edu)?;
    let compared = compare_table(&table, &ragged.layout, report.size, &bar, &way);
    if let Err(text) = compared {
        fail!("{text}");
    }
    println!(
        "{}, distance {}, {} segments",
        report.decision, report.distance, report.segments
    );

    peer_reads_all(&peer, ours, report)?;
    println!("the peer read {} bytes", report.bytes_read);
    peer_writes_all(&peer, theirs, report)?;
    println!("the peer wrote {} bytes", report.bytes_written);
    check_ok!(
        map.verify(theirs),
        "the CPU did not read what the peer wrote"
    );
    // The bytes are in VRAM where they were before, so nothing was moved.
    for page in 0..object.pages() {
        let at = ragged.layout.offset(page);
        let want = theirs.word((page * PAGE / 8) as u64);
        let seen = bar.word(at);
        check!(
            seen == want,
            "page {page} is not in VRAM at {at:#x}: expected {want:#x}, saw {seen:#x}"
        );
    }
    peer.detach()?;
    let left = object.attachments()?;
    check!(left.is_empty(), "attachments after the detach: {left:?}");
    report.verified = true;

    drop(buffer);
    drop(map);
    object.close()?;
    drm.await_vram_free(free)?;
    println!("every byte verified both ways");
    Ok(())
}

fn main() -> ExitCode {
    let mut json = None;
    let mut size = Some(4 << 20);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = arguments.next(),
            "--size" => size = arguments.next().and_then(|text| text.parse::<u64>().ok()),
            _ => size = None,
        }
    }
    let (Some(json), Some(size)) = (json, size) else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let mut report = Report {
        size,
        distance: -1,
        ..Default::default()
    };
    if let Err(stop) = show(&mut report) {
        eprintln!("p2p-demo: {}", stop.text());
        report.error = Some(stop.text().to_string());
        report.verified = false;
    }
    if let Err(error) = fs::write(&json, report.json()) {
        eprintln!("p2p-demo: {json}: {error}");
        return ExitCode::FAILURE;
    }
    match report.error {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    }
}

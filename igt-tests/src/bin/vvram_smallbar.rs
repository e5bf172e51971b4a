// SPDX-License-Identifier: GPL-2.0

//! A BAR that shows only a part of VRAM, and other parameters of the driver.

use vvram_tests::debugfs::{words, DebugFs};
use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::fdinfo::FdInfo;
use vvram_tests::fixture::{cpu_reads, patterns, peer_reads, peer_writes, works, Expect, Fixture};
use vvram_tests::map::{Map, PAGE64};
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::peer::Mode;
use vvram_tests::rebind::{need_module, reload, with_parameters};
use vvram_tests::{check, check_eq, check_ok, expect_errno, fail, igt_main, uapi, Outcome, Stop};

const VISIBLE: u64 = 1 << 20;

/// Loads the driver so that the BAR shows only the first megabyte, runs a test, and loads the
/// driver without that again.
fn small(body: fn() -> Outcome) -> Outcome {
    with_parameters(&[&format!("visible_kib={}", VISIBLE >> 10)], body)
}

fn params() -> Outcome {
    let drm = Drm::open()?;
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    check!(size > VISIBLE, "VRAM of {size} bytes is all visible");
    check_eq!(
        drm.getparam(uapi::PARAM_VRAM_CPU_VISIBLE_SIZE)?,
        VISIBLE,
        "CPU-visible VRAM"
    );
    Ok(())
}

/// The CPU can access all objects in VRAM, because objects that the BAR does not show are moved.
fn mmap() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let piece = VISIBLE / 4;
    let mut objects = Vec::new();
    while drm.vram_free()? >= piece {
        objects.push(drm.create_flags(piece, EITHER)?);
    }
    check!(objects.len() > 8, "{} objects are too few", objects.len());
    let bar = Bar::open(&PciDevice::vvram()?)?;
    let mut seen = [0, 0];
    for (round, in_vram) in seen.iter_mut().enumerate() {
        for (index, object) in objects.iter().enumerate() {
            let map = object.map()?;
            let pattern = a.derive(index as u64);
            if round == 0 {
                check_ok!(map.verify_value(0), "new object {index} is not zero");
                map.fill(pattern);
            } else if let Err(mismatch) = map.verify(pattern) {
                fail!("object {index}, {:?}: {mismatch}", object.info()?);
            }
            *in_vram += u64::from(visible_now(&bar, object, &map)?);
        }
    }
    println!(
        "{} objects, of which {seen:?} were in VRAM when the CPU used them",
        objects.len()
    );
    // At first all objects were in VRAM, and most of them where the BAR does not show them.
    check!(
        seen[0] > VISIBLE / piece,
        "{} objects were moved to where the CPU sees them",
        seen[0]
    );
    Ok(())
}

/// Checks that an object that the CPU accesses is in the visible part of the BAR, or in system
/// memory. (In these guests the rest of the BAR can be accessed, too.) Returns whether it is in
/// VRAM.
#[track_caller]
fn visible_now(bar: &Bar, object: &Gem<'_>, map: &Map) -> Result<bool, Stop> {
    let pages = bar.find(map);
    let info = object.info()?;
    let want = match info.placement {
        uapi::PLACEMENT_VRAM => 0..VISIBLE / PAGE64,
        // Not in VRAM.
        _ => 0..0,
    };
    let inside = |page: &Option<u64>| match page {
        Some(at) => want.contains(at),
        None => want.is_empty(),
    };
    check!(
        pages.iter().all(inside),
        "the CPU uses {info:?}, at pages {pages:x?} of the BAR, of which {:#x} are visible",
        VISIBLE / PAGE64
    );
    Ok(!want.is_empty())
}

/// Objects are moved to where a peer can reach them.
fn peer() -> Outcome {
    let fixture = Fixture::with_route()?;
    let piece = VISIBLE / 4;
    // Most objects are where the BAR does not show them; each is accessed once.
    let mut objects = Vec::new();
    while fixture.drm.vram_free()? >= piece {
        objects.push(fixture.drm.create_flags(piece, EITHER)?);
    }
    let count = objects.len();
    check!(count > 8, "{count} objects are too few");
    // The last objects were evicted for the others, and only a pin moves them back.
    for index in [0, 1, count / 2, count - 1] {
        let mode = [Mode::Dynamic, Mode::Pinned][index % 2];
        println!("object {index} of {count}, {mode:?}");
        reached(&fixture, &objects[index], mode)?;
    }
    drop(objects);
    let only = fixture.drm.create(piece)?;
    reached(&fixture, &only, Mode::Pinned)
}

/// Attaches the peer to an object that was not accessed yet, and checks the placement and the path.
fn reached(fixture: &Fixture, object: &Gem<'_>, mode: Mode) -> Outcome {
    let (a, b) = patterns();
    let buffer = object.export()?;
    let peer = fixture.peer.reopen()?;
    peer.attach_and_map(&buffer, mode)?;
    check_eq!(object.info()?.placement, uapi::PLACEMENT_VRAM, "placement");
    peer_writes(&peer, a, &[0, 1])?;
    let map = object.map()?;
    cpu_reads(&map, a, &[0, 1])?;
    let (_, layout) = fixture.check_table(&peer, &map)?;
    for (start, len) in layout.ranges() {
        check!(
            start + len <= VISIBLE,
            "{len:#x} bytes at {start:#x} of VRAM are not visible"
        );
    }
    map.fill(b);
    peer_reads(&peer, b, &[1])?;
    peer.detach()?;
    Ok(())
}

/// The use of visible VRAM, in debugfs for all clients, and in fdinfo for one client.
fn usage_of_small() -> Outcome {
    let drm = Drm::open()?;
    let debugfs = DebugFs::open(&PciDevice::vvram()?)?;
    let used = |what: &str, want: u64| -> Outcome {
        let text = debugfs.read("usage")?;
        let words = words(&text);
        check_eq!(
            (words["visible"], words["used"]),
            (&*VISIBLE.to_string(), &*want.to_string()),
            "the file usage {what}"
        );
        let seen = FdInfo::of(&drm)?.bytes("vvram-visible-vram0")?;
        check_eq!(seen, want, "vvram-visible-vram0 {what}");
        Ok(())
    };
    used("at first", 0)?;
    // The object is where the BAR does not show it, until the CPU accesses it.
    let object = drm.create_flags(4 * PAGE64, EITHER)?;
    let id = object.info()?.id;
    used("with an object elsewhere in VRAM", 0)?;
    check_eq!(debugfs.buffer(id)?.placement, "vram", "placement");
    object.map()?.set(0x5a);
    used("with one that the CPU has used", 4 * PAGE64)?;
    check_eq!(debugfs.buffer(id)?.visible, 4 * PAGE64, "visible");
    debugfs.write("move", &format!("{id} system"))?;
    used("with one in system memory", 0)?;
    check_eq!(debugfs.buffer(id)?.visible, 0, "visible");
    drop(object);
    // An object of all VRAM has visible and invisible parts.
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let all = drm.create(size)?;
    used("with all of VRAM", VISIBLE)?;
    let info = FdInfo::of(&drm)?;
    check_eq!(info.bytes("drm-resident-vram0")?, size, "resident");
    drop(all);
    used("at the end", 0)
}

fn usage() -> Outcome {
    small(usage_of_small)
}

/// For an object that is larger than the BAR, the attach has the reason outside-bar.
fn too_large() -> Outcome {
    let fixture = Fixture::open()?;
    let refused = fixture.expect == Expect::Refused;
    let reason = if refused {
        uapi::REASON_NO_ROUTE
    } else {
        uapi::REASON_OUTSIDE_BAR
    };
    let only = fixture.drm.create(2 * VISIBLE)?;
    let buffer = only.export()?;
    let result = fixture.peer.attach(&buffer, Mode::Dynamic);
    fixture.check_refused(&only, result, Mode::Dynamic, reason)?;

    let (a, _) = patterns();
    let either = fixture.drm.create_flags(2 * VISIBLE, EITHER)?;
    let buffer = either.export()?;
    fixture.peer.attach(&buffer, Mode::Dynamic)?;
    let list = either.attachments()?;
    check!(
        matches!(list.as_slice(), [entry] if entry.path == uapi::PATH_SYSTEM && entry.reason == reason),
        "expected system memory for reason {reason}: {list:?}"
    );
    peer_writes(&fixture.peer, a, &[0, 511])?;
    check_eq!(
        either.info()?.placement,
        uapi::PLACEMENT_SYSTEM,
        "placement"
    );
    peer_reads(&fixture.peer, a, &[0, 511])?;
    cpu_reads(&either.map()?, a, &[0, 511])
}

fn pin_percent() -> Outcome {
    need_module("vvram")?;
    for percent in [0, 25, 1000] {
        reload("vvram", &[&format!("pin_percent={percent}")])?;
        let drm = Drm::open()?;
        let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
        let limit = drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?;
        let want = size * percent.min(100) / 100;
        check_eq!(limit, want, "limit of pinned VRAM at {percent} percent");
    }
    reload("vvram", &["pin_percent=0"])?;
    if Expect::get()? != Expect::Refused {
        let fixture = Fixture::open()?;
        let object = fixture.drm.create(PAGE64)?;
        let buffer = object.export()?;
        fixture.peer.attach(&buffer, Mode::Pinned)?;
        expect_errno(
            "a pin where none is allowed",
            fixture.peer.pin(),
            libc::EDQUOT,
        )?;
    }
    reload("vvram", &[])?;
    works()
}

fn visible() -> Outcome {
    small(params)
}

fn mmap_moves() -> Outcome {
    small(mmap)
}

fn peer_moves() -> Outcome {
    small(peer)
}

fn outside_bar() -> Outcome {
    small(too_large)
}

igt_main! {
    "usage", "how much of what the CPU sees is in use", usage;
    "visible", "GETPARAM tells what is visible", visible;
    "mmap", "objects are moved to where the CPU sees them", mmap_moves;
    "peer", "objects are moved to where a peer reaches them", peer_moves;
    "outside-bar", "the reason comes with the attach", outside_bar;
    "pin-percent", "the limit of pinned VRAM", pin_percent;
}

// SPDX-License-Identifier: GPL-2.0

//! The keys of fdinfo about the memory of a client, and about VRAM that is pinned on its behalf.

use vvram_tests::debugfs::{Counter, DebugFs};
use vvram_tests::drm::{Drm, EITHER};
use vvram_tests::fdinfo::FdInfo;
use vvram_tests::fixture::Fixture;
use vvram_tests::map::PAGE64;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Mode;
use vvram_tests::{check, check_eq, igt_main, uapi, Outcome};

const PINNED: &str = "vvram-pinned-vram0";
const VISIBLE: &str = "vvram-visible-vram0";

fn keys() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let drm = Drm::open()?;
    let other = drm.reopen()?;
    let mut ids = Vec::new();
    for file in [&drm, &other] {
        let info = FdInfo::of(file)?;
        check_eq!(info.text("drm-driver")?, "vvram", "drm-driver");
        check_eq!(info.text("drm-pdev")?, gpu.name(), "drm-pdev");
        ids.push(info.text("drm-client-id")?.to_string());
        for region in ["vram0", "system"] {
            for stat in ["total", "shared", "resident", "active"] {
                let key = format!("drm-{stat}-{region}");
                check_eq!(info.bytes(&key)?, 0, "{key} of a client without objects");
            }
        }
        check_eq!(info.bytes(PINNED)?, 0, "{PINNED}");
        check_eq!(info.bytes(VISIBLE)?, 0, "{VISIBLE}");
    }
    check!(ids[0] != ids[1], "two clients are both {}", ids[0]);
    Ok(())
}

/// Checks the keys of both regions.
#[track_caller]
fn memory(drm: &Drm, what: &str, want: &[(&str, u64)]) -> Outcome {
    let info = FdInfo::of(drm)?;
    for (key, pages) in want {
        let key = format!("drm-{key}");
        check!(
            info.bytes(&key)? == pages * PAGE64,
            "{what}: expected {pages} pages as {key}: {info:?}"
        );
    }
    // The CPU sees all of VRAM in these guests.
    check_eq!(
        info.bytes(VISIBLE)?,
        info.bytes("drm-resident-vram0")?,
        "{VISIBLE} {what}"
    );
    Ok(())
}

/// Objects count as total in each region where they may be placed, and as resident in the region
/// where they are.
fn regions() -> Outcome {
    let drm = Drm::open()?;
    let debugfs = DebugFs::open(&PciDevice::vvram()?)?;
    let either = drm.create_flags(3 * PAGE64, EITHER)?;
    let system = drm.create_flags(5 * PAGE64, uapi::CREATE_SYSTEM)?;
    let vram = drm.create(7 * PAGE64)?;
    memory(
        &drm,
        "new",
        &[
            ("total-vram0", 10),
            ("resident-vram0", 10),
            ("shared-vram0", 0),
            ("total-system", 5),
            ("resident-system", 5),
            ("shared-system", 0),
        ],
    )?;
    debugfs.write("move", &format!("{} system", either.info()?.id))?;
    memory(
        &drm,
        "after a move to system memory",
        &[
            ("total-vram0", 10),
            ("resident-vram0", 7),
            ("total-system", 5),
            ("resident-system", 8),
        ],
    )?;
    debugfs.write("move", &format!("{} vram", either.info()?.id))?;
    memory(
        &drm,
        "after a move to VRAM",
        &[("resident-vram0", 10), ("resident-system", 5)],
    )?;

    // A shared object counts for each client.
    let other = drm.reopen()?;
    let buffer = either.export()?;
    let imported = other.import(&buffer)?;
    for (file, pages) in [(&drm, 10), (&other, 3)] {
        memory(
            file,
            "shared",
            &[
                ("total-vram0", pages),
                ("resident-vram0", pages),
                ("shared-vram0", 3),
                ("shared-system", 0),
            ],
        )?;
    }
    drop(imported);
    memory(
        &other,
        "after the close",
        &[("total-vram0", 0), ("shared-vram0", 0)],
    )?;
    drop((vram, system));
    memory(
        &drm,
        "with one object left",
        &[("total-vram0", 3), ("total-system", 0)],
    )
}

/// Checks how much is pinned on behalf of two clients, and on the device.
#[track_caller]
fn pinned(what: &str, want: [(&Drm, u64); 2], device: u64) -> Outcome {
    for (index, (drm, pages)) in want.into_iter().enumerate() {
        let seen = FdInfo::of(drm)?.bytes(PINNED)?;
        check!(
            seen == pages * PAGE64,
            "{what}: expected {pages} pages as {PINNED} of client {index}, saw {seen} bytes"
        );
    }
    let seen = want[0].0.counter(Counter::VramPinned)?;
    check!(
        seen == device * PAGE64,
        "{what}: expected {device} pages pinned of the device, saw {seen} bytes"
    );
    Ok(())
}

/// A pin is on the account of the client that exported the object, whichever clients have handles.
fn two_clients() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = (&fixture.drm, fixture.drm.reopen()?);
    let mine = a.create_flags(2 * PAGE64, EITHER)?;
    let buffer = mine.export()?;
    let theirs = b.import(&buffer)?;
    // The other client exports the object, too: the dma-buf is the same.
    let again = theirs.export()?;
    check_eq!(
        again.inode()?,
        buffer.inode()?,
        "the inode of the second export"
    );
    let own = b.create_flags(4 * PAGE64, EITHER)?;
    let own_buffer = own.export()?;

    let peers = [fixture.peer.reopen()?, fixture.peer.reopen()?];
    pinned("at first", [(a, 0), (&b, 0)], 0)?;
    peers[0].attach(&again, Mode::Pinned)?;
    peers[0].pin()?;
    pinned("one pin", [(a, 2), (&b, 0)], 2)?;
    // A second pin of the same object.
    peers[1].attach(&buffer, Mode::Revocable)?;
    peers[1].pin()?;
    pinned("pinned twice", [(a, 2), (&b, 0)], 2)?;
    let third = fixture.peer.reopen()?;
    third.attach(&own_buffer, Mode::Pinned)?;
    third.pin()?;
    pinned("one of each", [(a, 2), (&b, 4)], 6)?;
    peers[0].unpin()?;
    pinned("pinned once", [(a, 2), (&b, 4)], 6)?;
    peers[1].detach()?;
    pinned("not pinned", [(a, 0), (&b, 4)], 4)?;
    third.unpin()?;
    pinned("none", [(a, 0), (&b, 0)], 0)
}

/// Pinned VRAM stays on the account of a client that is gone, and on that of the device.
fn client_gone() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (b, c) = (&fixture.drm, fixture.drm.reopen()?);
    let a = fixture.drm.reopen()?;
    let handle = a.create_flags(2 * PAGE64, EITHER)?.leak();
    let buffer = a.export(handle, uapi::DRM_CLOEXEC | uapi::DRM_RDWR)?;
    let object = b.import(&buffer)?;
    let peer = fixture.peer.reopen()?;
    peer.attach(&buffer, Mode::Pinned)?;
    peer.pin()?;
    pinned("three clients", [(&a, 2), (b, 0)], 2)?;
    drop(a);
    check_eq!(
        object.info()?.pinned,
        1,
        "pinned after the client was closed"
    );
    pinned("the client is gone", [(b, 0), (&c, 0)], 2)?;
    peer.detach()?;
    pinned("no pin", [(b, 0), (&c, 0)], 0)?;
    // A later pin is still on the account of the client that exported the object.
    peer.attach(&buffer, Mode::Pinned)?;
    peer.pin()?;
    pinned("pinned again", [(b, 0), (&c, 0)], 2)?;
    drop(peer);
    pinned("at the end", [(b, 0), (&c, 0)], 0)
}

igt_main! {
    "keys", "the keys that every client has", keys;
    "regions", "memory by region, where objects may be and where they are", regions;
    "two-clients", "pins are on the account of the client that exported", two_clients;
    "client-gone", "a pin outlives the client", client_gone;
}

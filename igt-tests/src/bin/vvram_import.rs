// SPDX-License-Identifier: GPL-2.0

//! Buffers of other exporters as objects of vvram.

use std::thread;
use std::time::Duration;

use vvram_tests::drm::{DmaBuf, Drm, Gem};
use vvram_tests::fixture::{patterns, works};
use vvram_tests::foreign::{make, KINDS};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::proc::Child;
use vvram_tests::rebind::Unbound;
use vvram_tests::uapi::PeerImportInfo;
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, uapi, Outcome, Stop};

const PAGES: usize = 4;
const LIMIT: Duration = Duration::from_secs(20);

/// Checks that a buffer is attached to these devices and no others.
///
/// An object is deleted by a worker, hence the wait.
#[track_caller]
fn attached(buffer: &DmaBuf, want: &[&str]) -> Outcome {
    let mut seen = Vec::new();
    let found = misc::poll(Duration::from_secs(5), || {
        seen = buffer.attached().ok()?;
        (seen == want).then_some(())
    });
    if found.is_some() {
        return Ok(());
    }
    Err(Stop::fail(format_args!(
        "expected the devices {want:?} to be attached, saw {seen:?}"
    )))
}

/// Checks all information about an imported object of the test.
#[track_caller]
fn described(object: &Gem<'_>) -> Outcome {
    let info = object.info()?;
    check_eq!(info.placement, uapi::PLACEMENT_IMPORTED, "placement");
    check_eq!(info.size, PAGES as u64 * PAGE64, "size");
    check_eq!((info.what(), info.pinned), (0, 0), "what it is, and pinned");
    let import = object.import_info()?;
    check_eq!(
        (import.path, import.reason),
        (uapi::PATH_UNKNOWN, uapi::REASON_NONE),
        "path and reason of an exporter that does not tell"
    );
    check!(
        (1..=PAGES as u32).contains(&import.segments),
        "{PAGES} pages are mapped in {} pieces",
        import.segments
    );
    check_eq!(import.invalidations, 0, "invalidations");
    Ok(())
}

/// For every kind of exporter: the information about the import, the attachments, and the bytes in
/// both directions.
fn foreign() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let (a, b) = patterns();
    for kind in KINDS {
        let foreign = make(kind, PAGES)?;
        let buffer = &foreign.buffer;
        attached(buffer, &[])?;
        let object = drm.import(buffer)?;
        attached(buffer, &[gpu.name()])?;
        described(&object)?;
        drm.await_vram_free(free)?;

        let theirs = buffer.map()?;
        theirs.fill(a);
        let ours = object.map()?;
        check_ok!(
            ours.verify(a),
            "{kind:?}: written through the dma-buf, read through the object"
        );
        ours.fill(b);
        check_ok!(
            theirs.verify(b),
            "{kind:?}: written through the object, read through the dma-buf"
        );
        drop(object);
        attached(buffer, &[])?;
        // The mapping is one of the exporter, and does not need the object.
        check_ok!(ours.verify(b), "{kind:?}: after the handle was closed");
    }
    Ok(())
}

/// A second import of a buffer gives the same handle, and its export gives the same buffer.
fn same_buffer() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let drm = Drm::open()?;
    for kind in KINDS {
        let foreign = make(kind, PAGES)?;
        let buffer = &foreign.buffer;
        let object = drm.import(buffer)?;
        check_eq!(
            drm.import_handle(buffer.fd())?,
            object.handle(),
            "handle of a second import"
        );
        check_eq!(
            object.export()?.inode()?,
            buffer.inode()?,
            "inode of the export of an import of {kind:?}"
        );
        attached(buffer, &[gpu.name()])?;
        // Another file has an object of its own.
        let other_file = drm.reopen()?;
        let other = other_file.import(buffer)?;
        attached(buffer, &[gpu.name(), gpu.name()])?;
        described(&other)?;
        drop(object);
        attached(buffer, &[gpu.name()])?;
        described(&other)?;
        // A buffer can be imported again after its handle was closed.
        let again = drm.import(&other.export()?)?;
        described(&again)?;
        drop((again, other));
        attached(buffer, &[])?;
    }
    Ok(())
}

/// The buffer exists as long as the object, and no longer.
fn close_orders() -> Outcome {
    let (a, _) = patterns();
    for kind in KINDS {
        for drm_first in [false, true] {
            let drm = Drm::open()?;
            let foreign = make(kind, PAGES)?;
            let map = foreign.buffer.map()?;
            map.fill(a);
            let object = drm.import(&foreign.buffer)?;
            described(&object)?;
            if drm_first {
                object.leak();
                drop(drm);
                attached(&foreign.buffer, &[])?;
            } else {
                drop((map, foreign));
                described(&object)?;
                check_ok!(
                    object.map()?.verify(a),
                    "{kind:?}: only the object keeps the buffer"
                );
            }
        }
    }
    Ok(())
}

/// A process that dies leaves nothing attached.
fn killed() -> Outcome {
    for kind in KINDS {
        let foreign = make(kind, PAGES)?;
        let buffer = &foreign.buffer;
        let mut child = Child::spawn(|| {
            let drm = Drm::open()?;
            described(&drm.import(buffer)?)?;
            let object = drm.import(buffer)?;
            described(&object)?;
            vvram_tests::proc::sleep_forever()
        })?;
        let seen = misc::poll(LIMIT, || {
            buffer.attached().ok().filter(|list| list.len() == 1)
        });
        check!(seen.is_some(), "the child does not import {kind:?}");
        child.kill()?;
        attached(buffer, &[])?;
    }
    Ok(())
}

/// An unbind of the importer detaches it, whatever files are open, and does not affect the buffer.
fn unbind() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let (a, b) = patterns();
    for kind in KINDS {
        let foreign = make(kind, PAGES)?;
        let buffer = &foreign.buffer;
        let map = buffer.map()?;
        map.fill(a);
        {
            let drm = Drm::open()?;
            let object = drm.import(buffer)?;
            described(&object)?;
            let ours = object.map()?;
            let gone = Unbound::new(&gpu)?;
            attached(buffer, &[])?;
            expect_errno("PEER_IMPORT_INFO", object.import_info(), libc::ENODEV)?;
            expect_errno("GEM_INFO", object.info(), libc::ENODEV)?;
            expect_errno("PRIME_HANDLE_TO_FD", object.export(), libc::ENODEV)?;
            expect_errno("an import", drm.import(buffer), libc::ENODEV)?;
            check_ok!(
                ours.verify(a),
                "{kind:?}: the mapping of the exporter after the unbind"
            );
            gone.rebind()?;
            expect_errno("PEER_IMPORT_INFO", object.import_info(), libc::ENODEV)?;
            attached(buffer, &[])?;
        }
        let drm = Drm::open()?;
        let object = drm.import(buffer)?;
        described(&object)?;
        object.map()?.fill(b);
        check_ok!(map.verify(b), "{kind:?}: after the rebind");
    }
    works()
}

/// An import that meets an unbind either succeeds or gets `ENODEV`, and nothing stays attached.
fn unbind_race() -> Outcome {
    let gpu = PciDevice::vvram()?;
    for kind in KINDS {
        let foreign = make(kind, 1)?;
        let buffer = &foreign.buffer;
        for round in 0..8 {
            let drm = Drm::open()?;
            let mut child = Child::spawn(|| loop {
                match drm.import(buffer) {
                    Ok(object) => object.close().or_else(|error| match error.errno {
                        libc::ENODEV => Ok(()),
                        _ => Err(error),
                    })?,
                    Err(error) if error.errno == libc::ENODEV => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            })?;
            thread::sleep(Duration::from_millis(3 * round));
            let gone = Unbound::new(&gpu)?;
            child.join("the importer", LIMIT)?;
            attached(buffer, &[])?;
            gone.rebind()?;
        }
    }
    works()
}

/// Imported objects are not evicted, and take no VRAM.
fn pressure() -> Outcome {
    let drm = Drm::open()?;
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let (a, _) = patterns();
    let mut kept = Vec::new();
    for (index, kind) in KINDS.iter().cycle().take(12).enumerate() {
        let foreign = make(*kind, PAGES)?;
        let object = drm.import(&foreign.buffer)?;
        described(&object)?;
        let map = object.map()?;
        map.fill(a.derive(index as u64));
        kept.push((object, map, foreign));
    }
    for _ in 0..2 {
        let mut objects = Vec::new();
        for _ in 0..24 {
            objects.push(drm.create_flags(size / 8, uapi::CREATE_VRAM | uapi::CREATE_SYSTEM)?);
        }
    }
    for (index, (object, map, _)) in kept.iter().enumerate() {
        described(object)?;
        check_ok!(map.verify(a.derive(index as u64)), "import {index}");
    }
    Ok(())
}

fn badinput() -> Outcome {
    let drm = Drm::open()?;
    let own = drm.create(PAGE64)?;
    expect_errno(
        "PEER_IMPORT_INFO of our own",
        own.import_info(),
        libc::EINVAL,
    )?;
    let foreign = make(KINDS[0], PAGES)?;
    let object = drm.import(&foreign.buffer)?;
    expect_errno(
        "PEER_ATTACHMENTS of an import",
        object.attachments(),
        libc::EINVAL,
    )?;
    let good = PeerImportInfo {
        handle: object.handle(),
        ..Default::default()
    };
    for mut bad in [
        PeerImportInfo { path: 1, ..good },
        PeerImportInfo { reason: 1, ..good },
        PeerImportInfo {
            segments: 1,
            ..good
        },
        PeerImportInfo {
            invalidations: 1,
            ..good
        },
    ] {
        let given = format!("{bad:?}");
        expect_errno(&given, drm.import_info_raw(&mut bad), libc::EINVAL)?;
    }
    let mut unknown = PeerImportInfo {
        handle: 0xdead,
        ..good
    };
    expect_errno(
        "PEER_IMPORT_INFO of no object",
        drm.import_info_raw(&mut unknown),
        libc::ENOENT,
    )?;
    let offset = drm.mmap_offset(object.handle())?;
    expect_errno(
        "a mapping past the end",
        Map::new(drm.fd(), offset, (PAGES + 1) * PAGE),
        libc::EINVAL,
    )?;
    described(&object)
}

igt_main! {
    "foreign", "the system heap, udmabuf and vgem: what is reported, and the bytes", foreign;
    "same-buffer", "one handle for a file, and exports give the original", same_buffer;
    "close-orders", "object, dma-buf and DRM file go in any order", close_orders;
    "killed", "a killed process leaves nothing attached", killed;
    "unbind", "the device is detached when its driver goes", unbind;
    "unbind-race", "imports while the driver goes", unbind_race;
    "pressure", "imports stay while VRAM is oversubscribed", pressure;
    "badinput", "EINVAL, ENOENT", badinput;
}

// SPDX-License-Identifier: GPL-2.0

//! Memory of one GPU as an object of another.

use std::time::Duration;

use vvram_tests::auxiliary::{Card, Module, Split};
use vvram_tests::debugfs::DebugFs;
use vvram_tests::drm::{path_name, reason_name, text, Attachment, Drm, Gem, EITHER};
use vvram_tests::fixture::{patterns, placed, squeeze, Expect};
use vvram_tests::map::PAGE64;
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::proc::Child;
use vvram_tests::rebind::Unbinding;
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, fail, igt_main, uapi, vm, Outcome, Stop,
};

const LIMIT: Duration = Duration::from_secs(20);

/// Two devices, of which `a` exports and `b` imports.
struct Pair {
    a: Drm,
    b: Drm,
    gpu_a: PciDevice,
    gpu_b: PciDevice,
    expect: Expect,
}

impl Pair {
    #[track_caller]
    fn open() -> Result<Self, Stop> {
        let gpus = PciDevice::vvrams();
        let [gpu_a, gpu_b] = gpus.as_slice() else {
            fail!("expected two GPUs, saw {gpus:?}");
        };
        Ok(Self {
            a: Drm::open_on(gpu_a)?,
            b: Drm::open_on(gpu_b)?,
            gpu_a: gpu_a.clone(),
            gpu_b: gpu_b.clone(),
            expect: Expect::get()?,
        })
    }

    /// Returns the pair with both roles swapped.
    fn swapped(self) -> Self {
        Self {
            a: self.b,
            b: self.a,
            gpu_a: self.gpu_b,
            gpu_b: self.gpu_a,
            expect: self.expect,
        }
    }

    /// The path and the reason for an object that may be placed in VRAM and in system memory.
    fn path(&self) -> (u32, u32) {
        match self.expect {
            Expect::Refused => (uapi::PATH_SYSTEM, uapi::REASON_NO_ROUTE),
            _ => (self.expect.path(), uapi::REASON_NONE),
        }
    }

    fn distance(&self) -> i32 {
        match self.expect {
            Expect::Refused => -1,
            _ => self.gpu_a.distance(&self.gpu_b),
        }
    }

    /// Checks the answer of PEER_QUERY for the importer and an object.
    #[track_caller]
    fn asked(&self, object: &Gem<'_>, want: (u32, u32)) -> Outcome {
        let class =
            uapi::ATTACHMENT_DYNAMIC | uapi::ATTACHMENT_REVOCABLE | uapi::ATTACHMENT_PEER2PEER;
        let answer = self.a.query(object.handle(), class, &self.gpu_b)?;
        check_eq!((answer.path, answer.reason), want, "path and reason before");
        check_eq!(answer.distance, self.distance(), "distance before");
        Ok(())
    }

    /// Checks what both drivers report about the only import of an object.
    #[track_caller]
    fn check(&self, object: &Gem<'_>, import: &Gem<'_>, want: (u32, u32)) -> Outcome {
        let info = import.import_info()?;
        check!(
            (info.path, info.reason) == want,
            "expected path {} for reason {}, the importer has {} for {}",
            path_name(want.0),
            reason_name(want.1),
            path_name(info.path),
            reason_name(info.reason)
        );
        check!(info.segments > 0, "nothing is mapped: {info:?}");
        let entry = Attachment {
            device: self.gpu_b.name().to_string(),
            path: want.0,
            reason: want.1,
            flags: uapi::ATTACHMENT_DYNAMIC
                | uapi::ATTACHMENT_REVOCABLE
                | uapi::ATTACHMENT_PEER2PEER
                | uapi::ATTACHMENT_MAPPED,
            distance: self.distance(),
        };
        check_eq!(object.attachments()?, vec![entry], "attachments");
        let (records, _) = object.records()?;
        check_eq!(text(&records[0].driver), "vvram", "driver of the importer");
        let told = import.info()?;
        check_eq!(told.placement, uapi::PLACEMENT_IMPORTED, "placement");
        check_eq!(told.size, object.size(), "size");
        check_eq!((told.what(), told.pinned), (0, 0), "what it is, and pinned");
        Ok(())
    }
}

/// Waits until no importer is attached to an object; a worker deletes imports.
#[track_caller]
fn alone(object: &Gem<'_>) -> Outcome {
    let mut seen = Vec::new();
    let found = misc::poll(Duration::from_secs(5), || {
        seen = object.attachments().ok()?;
        seen.is_empty().then_some(())
    });
    if found.is_some() {
        return Ok(());
    }
    Err(Stop::fail(format_args!("still attached: {seen:?}")))
}

/// The path is that of the topology, in both directions, and the bytes are shared.
fn path() -> Outcome {
    let mut pair = Pair::open()?;
    for _ in 0..2 {
        let (x, y) = patterns();
        let free = [pair.a.vram_free()?, pair.b.vram_free()?];
        let object = pair.a.create_flags(4 * PAGE64, EITHER)?;
        let map = object.map()?;
        map.fill(x);
        placed(&object, uapi::PLACEMENT_VRAM)?;
        pair.asked(&object, pair.path())?;
        let buffer = object.export()?;
        let import = pair.b.import(&buffer)?;
        check_eq!(
            object.attachments()?.len(),
            1,
            "attachments before the first use"
        );
        placed(&object, uapi::PLACEMENT_VRAM)?;
        let want = pair.path();
        pair.check(&object, &import, want)?;
        let placement = match pair.expect {
            Expect::Refused => uapi::PLACEMENT_SYSTEM,
            _ => uapi::PLACEMENT_VRAM,
        };
        placed(&object, placement)?;
        check_eq!(pair.b.vram_free()?, free[1], "free VRAM of the importer");

        let other = import.map()?;
        check_ok!(other.verify(x), "read through the import");
        other.fill(y);
        check_ok!(map.verify(y), "written through the import");
        // An import of the dma-buf by its exporter is the object itself.
        let home = import.export()?;
        check_eq!(
            home.inode()?,
            buffer.inode()?,
            "inode of the import's export"
        );
        check_eq!(
            pair.a.import_handle(home.fd())?,
            object.handle(),
            "handle of what comes home"
        );
        drop((other, import));
        alone(&object)?;
        drop((map, object, buffer, home));
        pair.a.await_vram_free(free[0])?;
        pair.b.await_vram_free(free[1])?;
        pair = pair.swapped();
    }
    Ok(())
}

/// An object that may not leave VRAM is accessed there, or the importer is refused.
fn vram_or_fail() -> Outcome {
    let pair = Pair::open()?;
    let object = pair.a.create(4 * PAGE64)?;
    let buffer = object.export()?;
    pair.asked(&object, (pair.expect.path(), pair.path().1))?;
    if pair.expect != Expect::Refused {
        let import = pair.b.import(&buffer)?;
        return pair.check(&object, &import, pair.path());
    }
    expect_errno("an import", pair.b.import(&buffer), libc::EOPNOTSUPP)?;
    let list = object.attachments()?;
    let [entry] = list.as_slice() else {
        fail!("one refusal was expected, PEER_ATTACHMENTS lists {list:?}");
    };
    check!(
        entry.refused()
            && entry.reason == uapi::REASON_NO_ROUTE
            && entry.device == pair.gpu_b.name(),
        "expected a refusal of {} for reason no-route: {entry:?}",
        pair.gpu_b.name()
    );
    Ok(())
}

/// The importer drops its mapping when the object moves, and maps it again at the new place.
fn follows() -> Outcome {
    let pair = Pair::open()?;
    let free = pair.a.vram_free()?;
    let (x, _) = patterns();
    let object = pair.a.create_flags(4 * PAGE64, EITHER)?;
    object.map()?.fill(x);
    let buffer = object.export()?;
    let import = pair.b.import(&buffer)?;
    let other = import.map()?;
    for round in 0..3 {
        pair.check(&object, &import, pair.path())?;
        let invalidated = import.import_info()?.invalidations;
        let taken = squeeze(&pair.a)?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        let want = match pair.expect {
            Expect::Refused => pair.path(),
            _ => {
                let list = object.attachments()?;
                check!(
                    list.iter()
                        .all(|at| at.flags & uapi::ATTACHMENT_MAPPED == 0),
                    "still mapped after the move in round {round}: {list:?}"
                );
                (uapi::PATH_SYSTEM, uapi::REASON_NO_VRAM)
            }
        };
        pair.check(&object, &import, want)?;
        if pair.expect != Expect::Refused {
            check!(
                import.import_info()?.invalidations > invalidated,
                "the importer was not notified of the move in round {round}"
            );
        }
        check_ok!(other.verify(x), "after the move in round {round}");
        drop(taken);
        pair.a.await_vram_free(free)?;
        // The next mapping is in VRAM; this one ends when the handle is closed.
        if pair.expect != Expect::Refused {
            let again = Drm::open_on(&pair.gpu_b)?;
            let second = again.import(&buffer)?;
            let info = second.import_info()?;
            check_eq!(
                (info.path, info.reason),
                pair.path(),
                "path of a new import in round {round}"
            );
            placed(&object, uapi::PLACEMENT_VRAM)?;
            second.close()?;
            let one = misc::poll(LIMIT, || {
                object.attachments().ok().filter(|list| list.len() == 1)
            });
            check!(one.is_some(), "the second import is still attached");
        }
    }
    Ok(())
}

/// Handle, dma-buf and import are closed in every order.
fn close_orders() -> Outcome {
    let pair = Pair::open()?;
    let (x, _) = patterns();
    let free = pair.a.vram_free()?;
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let object = pair.a.create_flags(4 * PAGE64, EITHER)?;
        object.map()?.fill(x);
        let buffer = object.export()?;
        let import = pair.b.import(&buffer)?;
        pair.check(&object, &import, pair.path())?;
        let (mut object, mut buffer, mut import) = (Some(object), Some(buffer), Some(import));
        for what in order {
            match what {
                0 => drop(object.take()),
                1 => drop(buffer.take()),
                _ => drop(import.take()),
            }
            if let Some(import) = &import {
                let info = import.import_info()?;
                check_eq!((info.path, info.reason), pair.path(), "order {order:?}");
                check_ok!(import.map()?.verify(x), "order {order:?}");
            }
        }
        pair.a.await_vram_free(free)?;
    }
    Ok(())
}

/// The exporter is unbound: the importer is revoked at once.
fn unbind_exporter() -> Outcome {
    let pair = Pair::open()?;
    for mapped in [false, true] {
        let a = Drm::open_on(&pair.gpu_a)?;
        let object = a.create_flags(4 * PAGE64, EITHER)?;
        let buffer = object.export()?;
        let import = pair.b.import(&buffer)?;
        if mapped {
            pair.check(&object, &import, pair.path())?;
        }
        let gone = Unbinding::start(&pair.gpu_a)?.finish(LIMIT)?;
        expect_errno("PEER_IMPORT_INFO", import.import_info(), libc::ENODEV)?;
        check_eq!(
            import.info()?.placement,
            uapi::PLACEMENT_IMPORTED,
            "placement of what is gone"
        );
        expect_errno(
            "an import of what is gone",
            Drm::open_on(&pair.gpu_b)?.import(&buffer),
            libc::ENODEV,
        )?;
        gone.rebind()?;
        expect_errno("PEER_IMPORT_INFO", import.import_info(), libc::ENODEV)?;
        drop(import);
    }
    path()
}

/// The importer is unbound: it is detached, and the exporter is not affected otherwise.
fn unbind_importer() -> Outcome {
    let pair = Pair::open()?;
    let free = pair.a.vram_free()?;
    let (x, _) = patterns();
    for mapped in [false, true] {
        let b = Drm::open_on(&pair.gpu_b)?;
        let object = pair.a.create_flags(4 * PAGE64, EITHER)?;
        let map = object.map()?;
        map.fill(x);
        let buffer = object.export()?;
        let import = b.import(&buffer)?;
        if mapped {
            pair.check(&object, &import, pair.path())?;
        }
        let gone = Unbinding::start(&pair.gpu_b)?.finish(LIMIT)?;
        alone(&object)?;
        expect_errno("PEER_IMPORT_INFO", import.import_info(), libc::ENODEV)?;
        check_ok!(map.verify(x), "after the importer was unbound");
        gone.rebind()?;
        drop(import);
    }
    pair.a.await_vram_free(free)?;
    path()
}

/// Each device imports from the other while both run out of VRAM, and no task waits for ever.
fn crosswise() -> Outcome {
    let pair = Pair::open()?;
    let free = [pair.a.vram_free()?, pair.b.vram_free()?];
    let work = |swap: bool| {
        move || {
            let mut pair = Pair::open()?;
            if swap {
                pair = pair.swapped();
            }
            let (x, _) = patterns();
            for round in 0..8 {
                let object = pair.a.create_flags(4 * PAGE64, EITHER)?;
                let map = object.map()?;
                map.fill(x);
                let import = pair.b.import(&object.export()?)?;
                import.import_info()?;
                let filler = pair.a.create_flags(8 << 20, EITHER)?;
                import.import_info()?;
                filler.map()?.set(round);
                check_ok!(import.map()?.verify(x), "in round {round}");
            }
            Ok(())
        }
    };
    let mut children = Vec::new();
    for swap in [false, true, false, true] {
        children.push(Child::spawn(work(swap))?);
    }
    for child in &mut children {
        child.join("one that imports", 2 * LIMIT)?;
    }
    pair.a.await_vram_free(free[0])?;
    pair.b.await_vram_free(free[1])?;
    path()
}

/// Page tables of the importer are cleared when the exporter moves the buffer, and filled again.
fn page_tables() -> Outcome {
    let mut pair = Pair::open()?;
    for _ in 0..2 {
        let object = pair.a.create_flags(4 * PAGE64, EITHER)?;
        let import = pair.b.import(&object.export()?)?;
        let (exporter, importer) = (DebugFs::open(&pair.gpu_a)?, DebugFs::open(&pair.gpu_b)?);
        let (here, there) = (object.info()?.id, import.info()?.id);
        pair.b.vm_bind(&import, 0)?;
        for _ in 0..3 {
            vm::shown(&importer, there, true)?;
            let invalidated = import.import_info()?.invalidations;
            let place = match object.info()?.placement {
                uapi::PLACEMENT_VRAM => "system",
                _ => "vram",
            };
            exporter.write("move", &format!("{here} {place}"))?;
            // The entries are cleared at once, or as soon as the copy of the last move is done.
            let cleared = misc::poll(LIMIT, || vm::shown(&importer, there, false).ok());
            check!(cleared.is_some(), "entries lead to where the buffer was");
            expect_errno(
                "a read by the address for a device",
                pair.b.vm_read(0, 8, 0),
                libc::EOPNOTSUPP,
            )?;
            vm::shown(&importer, there, true)?;
            check!(
                import.import_info()?.invalidations > invalidated,
                "the importer was not notified"
            );
        }
        drop((import, object));
        pair.b.vm_unbind(0, 4 * PAGE64)?;
        pair = pair.swapped();
    }
    Ok(())
}

/// Each has an auxiliary device of its own, and a driver that is split in two.
fn both_split() -> Outcome {
    let module = Module::load()?;
    let gpus = PciDevice::vvrams();
    check_eq!(gpus.len(), 2, "GPUs");
    let (one, two) = (
        Split::new(&module, &gpus[0])?,
        Split::new(&module, &gpus[1])?,
    );
    for split in [&one, &two] {
        let card = Card::open(split.gpu())?;
        let buffer = card.export(card.create(PAGE64)?)?;
        check_eq!(buffer.size()?, PAGE64, "size of the buffer");
    }
    two.undo()?;
    one.undo()
}

igt_main! {
    "path", "bus address, host bridge or system memory, and the bytes", path;
    "vram-or-fail", "peer to peer or refused with the reason", vram_or_fail;
    "follows", "notified of each move, and mapped again", follows;
    "close-orders", "handle, dma-buf and import go in any order", close_orders;
    "unbind-exporter", "the importer unmaps and gets ENODEV", unbind_exporter;
    "unbind-importer", "it is detached when its driver goes", unbind_importer;
    "crosswise", "both import from each other under pressure", crosswise;
    "both-split", "avram on both of them", both_split;
    "page-tables", "page tables of the importer, while the exporter moves the buffer", page_tables;
}

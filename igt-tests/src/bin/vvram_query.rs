// SPDX-License-Identifier: GPL-2.0

//! PEER_QUERY: whether its answer is the result of an attach.
//!
//! Each answer is compared with the result of the attach, and with the expected result, which comes
//! from the rules (`policy`) or from sysfs (`route`).

use std::collections::BTreeSet;
use std::time::Duration;

use vvram_tests::debugfs::{difference, DebugFs};
use vvram_tests::drm::{path_name, reason_name, DmaBuf, Drm, Gem, EITHER};
use vvram_tests::fixture::{
    in_system_memory, patterns, peer_reads, placed, works, Expect, Fixture,
};
use vvram_tests::heap;
use vvram_tests::map::PAGE64;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::policy::{importer_name, Gets, Object, Order, Rules, IMPORTERS};
use vvram_tests::proc::Child;
use vvram_tests::rebind::{with_parameters, Unbound};
use vvram_tests::route::explained;
use vvram_tests::uapi::{self, PeerAddress, PeerFlush, PeerQuery};
use vvram_tests::user::{self, become_nobody};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome, Stop};

const PAGES: u64 = 2;
const LIMIT: Duration = Duration::from_secs(20);
/// The class of an importer that is dynamic, revocable and takes peer-to-peer memory.
const ABLE: u32 =
    uapi::ATTACHMENT_DYNAMIC | uapi::ATTACHMENT_REVOCABLE | uapi::ATTACHMENT_PEER2PEER;

/// Calls PEER_QUERY for the peer of a fixture, as an importer of a class.
#[track_caller]
fn ask(fixture: &Fixture, handle: u32, mode: Mode) -> Result<PeerQuery, Stop> {
    Ok(fixture
        .drm
        .query(handle, mode.attachment_flags(), &fixture.edu)?)
}

/// The rules of the machine.
fn rules(fixture: &Fixture) -> Rules {
    Rules {
        route: match fixture.expect {
            Expect::Refused => None,
            route => Some(route.path()),
        },
    }
}

/// Converts an answer to what the importer gets.
fn gets(answer: &PeerQuery) -> Gets {
    Gets {
        path: answer.path,
        reason: answer.reason,
    }
}

/// Calls PEER_QUERY, attaches, and compares. Returns the importer if it is attached.
#[track_caller]
fn ask_and_attach(
    fixture: &Fixture,
    object: &Gem<'_>,
    buffer: &DmaBuf,
    mode: Mode,
) -> Result<(Gets, Option<Peer>), Stop> {
    let before = object.attachments()?;
    let answer = ask(fixture, object.handle(), mode)?;
    check_eq!(
        object.attachments()?,
        before,
        "attachments and refusals after the question"
    );
    let peer = fixture.peer.reopen()?;
    let attached = peer.attach(buffer, mode);
    let list = object.attachments()?;
    // The newest attachment is the last one before the refusals, the newest refusal the last of
    // all.
    let entry = match &attached {
        Ok(_) => list.iter().rfind(|entry| !entry.refused()),
        Err(_) => list.last(),
    };
    let Some(entry) = entry else {
        fail!("nothing is listed after {attached:?}");
    };
    let name = importer_name(mode);
    check!(
        (answer.path, answer.reason) == (entry.path, entry.reason),
        "{name}: asked before it was {} for {}, the attach gives {} for {}",
        path_name(answer.path),
        reason_name(answer.reason),
        path_name(entry.path),
        reason_name(entry.reason)
    );
    check_eq!(answer.distance, entry.distance, "{name}: distance");
    check_eq!(answer.flags, entry.flags, "{name}: class");
    check_eq!(
        answer.path == uapi::PATH_REFUSED,
        attached.is_err(),
        "{name}: whether it is refused"
    );
    if attached.is_err() {
        expect_errno("a refused attach", attached, libc::EOPNOTSUPP)?;
        return Ok((gets(&answer), None));
    }
    Ok((gets(&answer), Some(peer)))
}

/// For each class with each kind of object the rules, the answer and the attach agree, and the
/// mapping has the addresses that follow from the answer.
fn attach() -> Outcome {
    let fixture = Fixture::open()?;
    let rules = rules(&fixture);
    let (a, _) = patterns();
    for kind in Object::ALL {
        for mode in IMPORTERS {
            let object = fixture.drm.create_flags(PAGES * PAGE64, kind.flags())?;
            let map = object.map()?;
            map.fill(a);
            // The answer does not depend on whether there is a dma-buf.
            let early = ask(&fixture, object.handle(), mode)?;
            let buffer = object.export()?;
            check_eq!(
                ask(&fixture, object.handle(), mode)?,
                early,
                "the same again"
            );
            let want = rules.alone(kind, mode);
            let (seen, peer) = ask_and_attach(&fixture, &object, &buffer, mode)?;
            check_eq!(
                seen,
                want.first,
                "what {} gets of {}",
                importer_name(mode),
                kind.name()
            );
            if let Some(peer) = peer {
                peer.pin_and_map(mode)?;
                placed(&object, want.placement)?;
                if want.placement == uapi::PLACEMENT_VRAM {
                    fixture.check_table(&peer, &map)?;
                } else {
                    in_system_memory(&fixture, &peer)?;
                }
                peer_reads(&peer, a, &[1])?;
            }
        }
    }
    Ok(())
}

/// An object that importers get in VRAM or not at all, but that may move.
fn vram_or_fail() -> Outcome {
    let fixture = Fixture::open()?;
    let flags = EITHER | uapi::CREATE_EXPORT_VRAM_OR_FAIL;
    for mode in IMPORTERS {
        let object = fixture.drm.create_flags(PAGES * PAGE64, flags)?;
        let buffer = object.export()?;
        let want = rules(&fixture).alone(Object::Vram, mode).first;
        let (seen, peer) = ask_and_attach(&fixture, &object, &buffer, mode)?;
        check_eq!(seen, want, "what {} gets", importer_name(mode));
        if let Some(peer) = peer {
            peer.pin_and_map(mode)?;
            placed(&object, uapi::PLACEMENT_VRAM)?;
            fixture.check_table_of(&peer, object.size())?;
        }
    }
    Ok(())
}

/// Another importer is attached to the object, and keeps it in its place if its class does so.
fn beside() -> Outcome {
    let fixture = Fixture::open()?;
    let rules = rules(&fixture);
    let mut reasons = BTreeSet::new();
    for first in IMPORTERS {
        for second in IMPORTERS {
            let object = fixture.drm.create_flags(PAGES * PAGE64, EITHER)?;
            let buffer = object.export()?;
            let one = fixture.peer.reopen()?;
            one.attach_and_map(&buffer, first)?;
            let (seen, _) = ask_and_attach(&fixture, &object, &buffer, second)?;
            // An attach does not move the object. If the object can still move, the answer is that
            // for a single importer.
            let want = match Rules::holds(first) {
                true => {
                    rules
                        .both(Object::Either, Order::Late, first, second)
                        .second
                }
                false => Some(rules.alone(Object::Either, second).first),
            };
            check_eq!(
                Some(seen),
                want,
                "what {} gets beside {}",
                importer_name(second),
                importer_name(first)
            );
            reasons.insert(seen.reason);
        }
    }
    check!(
        fixture.expect == Expect::Refused || reasons.contains(&uapi::REASON_PINNED_ELSEWHERE),
        "no importer met a pin: {reasons:?}"
    );
    Ok(())
}

/// Without an object the answer is that for an object that never leaves VRAM.
fn vram() -> Outcome {
    let fixture = Fixture::open()?;
    let object = fixture.drm.create(PAGE64)?;
    for mode in IMPORTERS {
        let of_vram = ask(&fixture, 0, mode)?;
        let of_object = ask(&fixture, object.handle(), mode)?;
        let want = PeerQuery {
            handle: 0,
            ..of_object
        };
        check_eq!(of_vram, want, "VRAM at all, for {}", importer_name(mode));
        check_eq!(
            gets(&of_vram),
            rules(&fixture).alone(Object::Vram, mode).first,
            "what {} gets of VRAM",
            importer_name(mode)
        );
    }
    Ok(())
}

/// The facts about the route of the peer agree with sysfs, and with the topology that the machine
/// was built for.
fn decided() -> Outcome {
    let fixture = Fixture::open()?;
    for mode in IMPORTERS {
        let answer = ask(&fixture, 0, mode)?;
        let mut want = explained(&fixture.gpu, &fixture.edu)?;
        // The facts about the route are there even if another reason decides.
        check_eq!(want.path, fixture.expect.path(), "the path by sysfs");
        (want.flags, want.importer) = (answer.flags, answer.importer);
        (want.path, want.reason) = (answer.path, answer.reason);
        check_eq!(answer, want, "for {}", importer_name(mode));
    }
    let answer = ask(&fixture, 0, Mode::Dynamic)?;
    let host = uapi::ROUTE_HOST | uapi::ROUTE_HOST_CPU;
    let same_slot = uapi::ROUTE_BRIDGE | uapi::ROUTE_ACS_REDIRECT;
    let none = PeerAddress::default();
    match fixture.expect {
        Expect::Bus => {
            check_eq!(answer.route, uapi::ROUTE_BRIDGE, "a switch");
            check!(answer.bridge != none, "which bridge is it? {answer:?}");
        }
        Expect::HostBridge if answer.distance == 2 => {
            check_eq!(answer.route, host | same_slot, "a port with ACS");
            check_eq!(answer.redirect, answer.bridge, "the port");
            // Request and completion redirect, which an IOMMU makes the kernel set.
            check_eq!(answer.acs & 0xc, 0xc, "its bits");
        }
        Expect::HostBridge => check_eq!(answer.route, host, "two root ports"),
        Expect::Refused => {
            check_eq!(answer.route, uapi::ROUTE_HOST, "two root ports");
            check_eq!(
                (answer.host_vendor, answer.host_device),
                (0x8086, 0x29c0),
                "the host bridge"
            );
            check_eq!(answer.reason, uapi::REASON_NO_ROUTE, "reason");
        }
    }
    Ok(())
}

/// All PCI devices of the machine, with a driver or without, the exporter among them.
fn everything() -> Outcome {
    let fixture = Fixture::open()?;
    let mut routes = BTreeSet::new();
    let all = PciDevice::everything();
    for device in &all {
        let answer = fixture.drm.query(0, ABLE, device)?;
        let want = PeerQuery {
            flags: ABLE,
            importer: device.address(),
            ..explained(&fixture.gpu, device)?
        };
        check_eq!(answer, want, "for {}", device.name());
        routes.insert(answer.route);
    }
    let itself = fixture.drm.query(0, ABLE, &fixture.gpu)?;
    check_eq!(itself.distance, 0, "distance to itself");
    check_eq!(itself.bridge, fixture.gpu.address(), "the device itself");
    check!(
        all.len() > 3 && routes.len() > 1,
        "{} devices with routes {routes:?} are too few",
        all.len()
    );
    Ok(())
}

/// An importer that is not a PCI device has no route, and the answer has no facts about one.
fn not_pci() -> Outcome {
    let fixture = Fixture::open()?;
    for mode in IMPORTERS {
        let flags = mode.attachment_flags() | uapi::QUERY_NOT_PCI;
        let reason = match flags & uapi::ATTACHMENT_PEER2PEER {
            0 => uapi::REASON_NO_OPT_IN,
            _ => uapi::REASON_NOT_PCI,
        };
        let check = |handle: u32, path: u32| {
            let question = PeerQuery {
                handle,
                flags,
                ..Default::default()
            };
            let mut answer = question;
            fixture.drm.query_raw(&mut answer)?;
            let want = PeerQuery {
                path,
                reason,
                distance: -1,
                ..question
            };
            check_eq!(answer, want, "as {}", importer_name(mode));
            Ok::<_, Stop>(())
        };
        check(0, uapi::PATH_REFUSED)?;
        for kind in Object::ALL {
            let object = fixture.drm.create_flags(PAGE64, kind.flags())?;
            let path = match kind {
                Object::Vram => uapi::PATH_REFUSED,
                _ => uapi::PATH_SYSTEM,
            };
            check(object.handle(), path)?;
        }
    }
    Ok(())
}

/// A query leaves nothing behind: no dma-buf, no refusal, no count, and the object does not move.
fn quiet() -> Outcome {
    let fixture = Fixture::open()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let object = fixture.drm.create_flags(PAGES * PAGE64, EITHER)?;
    let before = (debugfs.counters()?, object.info()?);
    for mode in IMPORTERS {
        for handle in [0, object.handle()] {
            ask(&fixture, handle, mode)?;
        }
    }
    check_eq!(
        difference(&before.0, &debugfs.counters()?),
        [],
        "what was counted"
    );
    let after = object.info()?;
    check_eq!(after.placement, before.1.placement, "placement");
    let (records, inode) = object.records()?;
    check_eq!((records.len(), inode), (0, 0), "attachments and inode");
    check!(!debugfs.buffer(after.id)?.exported, "it is exported");
    Ok(())
}

/// A device that gives no VRAM to importers that cannot be revoked.
fn unrevocable() -> Outcome {
    let fixture = Fixture::with_route()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    debugfs.write("unrevocable", "refuse")?;
    let outcome = (|| {
        for kind in Object::ALL {
            for mode in [Mode::Pinned, Mode::Revocable] {
                let object = fixture.drm.create_flags(PAGE64, kind.flags())?;
                let buffer = object.export()?;
                let (seen, _) = ask_and_attach(&fixture, &object, &buffer, mode)?;
                let not_revocable = uapi::REASON_NOT_REVOCABLE;
                let want = match (kind, mode) {
                    (Object::Vram, Mode::Pinned) => Gets::refused(not_revocable),
                    (Object::Either, Mode::Pinned) => Gets::system(not_revocable),
                    _ => rules(&fixture).alone(kind, mode).first,
                };
                check_eq!(seen, want, "{} of {}", importer_name(mode), kind.name());
            }
        }
        let of_vram = gets(&ask(&fixture, 0, Mode::Pinned)?);
        check_eq!(
            of_vram,
            Gets::refused(uapi::REASON_NOT_REVOCABLE),
            "VRAM at all"
        );
        Ok(())
    })();
    debugfs.write("unrevocable", "accept")?;
    outcome
}

/// A BAR that does not show the object.
fn outside_bar() -> Outcome {
    const VISIBLE: u64 = 1 << 20;
    Expect::get()?.need_route()?;
    with_parameters(&[&format!("visible_kib={}", VISIBLE >> 10)], || {
        let fixture = Fixture::open()?;
        for (size, outside) in [(VISIBLE, false), (VISIBLE + PAGE64, true)] {
            for kind in [Object::Vram, Object::Either] {
                let object = fixture.drm.create_flags(size, kind.flags())?;
                let buffer = object.export()?;
                let (seen, _) = ask_and_attach(&fixture, &object, &buffer, Mode::Dynamic)?;
                let want = match (kind, outside) {
                    (_, false) => rules(&fixture).alone(kind, Mode::Dynamic).first,
                    (Object::Vram, true) => Gets::refused(uapi::REASON_OUTSIDE_BAR),
                    (_, true) => Gets::system(uapi::REASON_OUTSIDE_BAR),
                };
                check_eq!(seen, want, "{size} bytes of {}", kind.name());
            }
        }
        // The answer without an object does not depend on a size.
        let of_vram = ask(&fixture, 0, Mode::Dynamic)?;
        check_eq!(of_vram.path, fixture.expect.path(), "VRAM at all");
        Ok(())
    })
}

/// Invalid arguments.
fn badinput() -> Outcome {
    let fixture = Fixture::open()?;
    let object = fixture.drm.create(PAGE64)?;
    let good = PeerQuery {
        handle: object.handle(),
        flags: ABLE,
        importer: fixture.edu.address(),
        ..Default::default()
    };
    let asked = |mut argument: PeerQuery| fixture.drm.query_raw(&mut argument);
    asked(good)?;
    let expect =
        |what: &str, broken: PeerQuery, errno: i32| expect_errno(what, asked(broken), errno);

    for flags in [uapi::ATTACHMENT_PEER2PEER, uapi::ATTACHMENT_REVOCABLE] {
        expect("no class", PeerQuery { flags, ..good }, libc::EINVAL)?;
    }
    let address = good.importer;
    for importer in [
        PeerAddress {
            domain: 0x7fff_ffff,
            ..address
        },
        PeerAddress {
            domain: u32::MAX,
            ..address
        },
        PeerAddress {
            bus: 0xff,
            devfn: 0xff,
            ..address
        },
    ] {
        expect("no device", PeerQuery { importer, ..good }, libc::ENXIO)?;
    }
    let flags = ABLE | uapi::QUERY_NOT_PCI;
    for importer in [
        address,
        PeerAddress {
            domain: 1,
            ..Default::default()
        },
        PeerAddress {
            bus: 1,
            ..Default::default()
        },
        PeerAddress {
            devfn: 1,
            ..Default::default()
        },
    ] {
        let broken = PeerQuery {
            flags,
            importer,
            ..good
        };
        expect("the address of no function", broken, libc::EINVAL)?;
    }
    let heap = heap::allocate(PAGE64)?;
    let import = fixture.drm.import(&heap)?;
    let handle = import.handle();
    expect("an import", PeerQuery { handle, ..good }, libc::EINVAL)
}

/// FLUSH, which the copies of vvram do not need, because they read through the BAR.
fn flush() -> Outcome {
    let fixture = Fixture::open()?;
    let flushed = |handle| fixture.drm.flush_raw(PeerFlush { handle, order: 0 });
    for flags in [uapi::CREATE_VRAM, uapi::CREATE_SYSTEM] {
        let object = fixture.drm.create_flags(PAGE64, flags)?;
        check_eq!(flushed(object.handle())?, uapi::ORDER_REPORT, "the order");
    }
    check_eq!(flushed(0)?, uapi::ORDER_REPORT, "the order of the device");
    expect_errno("no object", flushed(77), libc::ENOENT)?;
    let import = fixture.drm.import(&heap::allocate(PAGE64)?)?;
    expect_errno("an import", flushed(import.handle()), libc::EINVAL)
}

/// A client without privileges gets the complete answer, for objects of which it has a handle.
fn nobody() -> Outcome {
    let fixture = Fixture::open()?;
    let mine = fixture.drm.create(PAGE64)?;
    let want = fixture.drm.query(0, ABLE, &fixture.edu)?;
    let (path, edu) = (fixture.drm.path().to_path_buf(), fixture.edu.clone());
    let _open = user::Mode::set(&path, 0o666)?;
    let mut child = Child::spawn(|| {
        become_nobody()?;
        let drm = Drm::open_path(&path)?;
        check_eq!(
            drm.query(0, ABLE, &edu)?,
            want,
            "the answer to the user nobody"
        );
        let unknown = drm.query(mine.handle(), ABLE, &edu);
        expect_errno("the handle of another client", unknown, libc::ENOENT)?;
        let object = drm.create(PAGE64)?;
        let answer = drm.query(object.handle(), ABLE, &edu)?;
        check_eq!(
            gets(&answer),
            gets(&want),
            "the answer to the user nobody about its own object"
        );
        Ok(())
    })?;
    child.join("a client that is nobody", LIMIT)
}

/// The old file of a device that is gone does not answer, and a file of the next device does.
fn unbound() -> Outcome {
    let fixture = Fixture::open()?;
    let object = fixture.drm.create(PAGE64)?;
    let unbound = Unbound::new(&fixture.gpu)?;
    for handle in [0, object.handle()] {
        let answer = fixture.drm.query(handle, ABLE, &fixture.edu);
        expect_errno("a device without its driver", answer, libc::ENODEV)?;
    }
    unbound.rebind()?;
    drop(object);
    drop(fixture);
    let fixture = Fixture::open()?;
    check_eq!(
        gets(&ask(&fixture, 0, Mode::Dynamic)?),
        rules(&fixture).alone(Object::Vram, Mode::Dynamic).first,
        "the next device"
    );
    works()
}

igt_main! {
    "attach", "what the attach of each class to each kind of object then gives", attach;
    "vram-or-fail", "the same of objects that importers get in VRAM only", vram_or_fail;
    "beside", "the same beside each other importer", beside;
    "vram", "VRAM at all", vram;
    "decided", "the bridge, its ACS bits, the processor, the host bridge", decided;
    "everything", "each PCI device of the machine", everything;
    "not-pci", "an importer that is not a PCI device", not_pci;
    "quiet", "nothing is left of a question", quiet;
    "unrevocable", "a device that refuses importers that cannot be revoked", unrevocable;
    "outside-bar", "a BAR that does not show the object", outside_bar;
    "badinput", "what makes no sense", badinput;
    "flush", "the order of what peers write", flush;
    "nobody", "a client without privileges", nobody;
    "unbound", "a device without its driver", unbound;
}

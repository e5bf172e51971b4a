// SPDX-License-Identifier: GPL-2.0

//! The files in debugfs that show buffers and their importers, and those that change something.

use std::thread;
use std::time::Duration;

use vvram_tests::debugfs::{self, difference, Buffer, Counter, DebugFs, Importer};
use vvram_tests::drm::{path_name, reason_name, text, Drm, Gem, EITHER};
use vvram_tests::fixture::{
    cpu_reads, patterns, peer_reads, peer_writes, placed, works, Expect, Fixture,
};
use vvram_tests::map::PAGE64;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Mode;
use vvram_tests::rebind::{need_module, reload, Unbound};
use vvram_tests::storm::{Action, Storm};
use vvram_tests::uapi::{self, PeerAttachment};
use vvram_tests::{check, check_eq, expect_errno, igt_main};
use vvram_tests::{check_ok, Outcome, Stop};

const VRAM: u32 = uapi::PLACEMENT_VRAM;
const SYSTEM: u32 = uapi::PLACEMENT_SYSTEM;

/// The importer that the listing must have for an attachment that the ioctl lists.
fn importer(entry: &PeerAttachment) -> Importer {
    let names = [
        (uapi::ATTACHMENT_PINNED, "pinned"),
        (uapi::ATTACHMENT_MAPPED, "mapped"),
        (uapi::ATTACHMENT_DYNAMIC, "dynamic"),
        (uapi::ATTACHMENT_REVOCABLE, "revocable"),
        (uapi::ATTACHMENT_PEER2PEER, "peer2peer"),
    ];
    let set = names.iter().filter(|(flag, _)| entry.flags & flag != 0);
    Importer {
        device: text(&entry.device),
        driver: text(&entry.driver),
        path: path_name(entry.path),
        reason: reason_name(entry.reason),
        hops: entry.distance,
        flags: set.map(|(_, name)| (*name).to_string()).collect(),
        has_age: entry.age != 0,
    }
}

/// The name of this process.
fn comm() -> String {
    let text = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    text.trim_end().to_string()
}

/// Checks the line of an object.
#[track_caller]
fn listed(debugfs: &DebugFs, object: &Gem<'_>, domain: &str, placement: &str) -> Outcome {
    let info = object.info()?;
    let (records, inode) = object.records()?;
    let seen = debugfs.buffer(info.id)?;
    let want = Buffer {
        id: info.id,
        size: object.size(),
        domain: domain.to_string(),
        vram_or_fail: domain == "vram",
        placement: placement.to_string(),
        pinned: info.pinned != 0,
        exported: inode != 0,
        inode,
        visible: match placement {
            "vram" => object.size(),
            _ => 0,
        },
        orphan: false,
        client: match inode {
            0 => 0,
            _ => seen.client.max(1),
        },
        name: String::new(),
        pid: match inode {
            0 => 0,
            _ => std::process::id(),
        },
        comm: match inode {
            0 => String::new(),
            _ => comm(),
        },
        importers: records.iter().map(importer).collect(),
    };
    if seen == want {
        return Ok(());
    }
    Err(Stop::fail(format_args!("expected {want:?}, saw {seen:?}")))
}

/// Every object is listed by its number, as long as it exists.
fn listing() -> Outcome {
    let drm = Drm::open()?;
    let debugfs = DebugFs::open(&PciDevice::vvram()?)?;
    let before = debugfs.buffers()?;
    let objects = [
        (drm.create_flags(3 * PAGE64, EITHER)?, "either", "vram"),
        (
            drm.create_flags(2 * PAGE64, uapi::CREATE_SYSTEM)?,
            "system",
            "system",
        ),
        (drm.create(PAGE64)?, "vram", "vram"),
    ];
    let mut last = before.last().map_or(0, |buffer| buffer.id);
    for (object, domain, placement) in &objects {
        let id = object.info()?.id;
        check!(id > last, "number {id} comes after {last}");
        last = id;
        listed(&debugfs, object, domain, placement)?;
        check!(!debugfs.buffer(id)?.exported, "exported at first");
        let buffer = object.export()?;
        check!(debugfs.buffer(id)?.exported, "not exported after an export");
        drop(buffer);
    }
    check_eq!(
        debugfs.buffers()?.len(),
        before.len() + objects.len(),
        "buffers"
    );
    drop(objects);
    check_eq!(debugfs.buffers()?, before, "buffers at the end");
    // An object that only a mapping keeps has no dma-buf any more.
    let object = drm.create_flags(PAGE64, EITHER)?;
    let (id, map) = (object.info()?.id, object.map()?);
    drop(object.export()?);
    object.close()?;
    check!(
        !debugfs.buffer(id)?.exported,
        "exported after the last close"
    );
    drop(map);
    check_eq!(debugfs.buffers()?, before, "buffers without the mapping");
    // Each object is listed once, also one that has reused the memory of another object.
    let last = id;
    for _ in 0..3 {
        let some: Result<Vec<_>, _> = (0..50).map(|_| drm.create(PAGE64)).collect();
        check_eq!(
            debugfs.buffers()?.len(),
            before.len() + some?.len(),
            "buffers"
        );
    }
    // Numbers are not used again.
    let object = drm.create(PAGE64)?;
    let id = object.info()?.id;
    check!(id > last, "number {id} was used before");
    Ok(())
}

/// The listing has the importers, in every state, and the refusals.
fn importers() -> Outcome {
    let fixture = Fixture::open()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let buffer = object.export()?;
    let only = fixture.drm.create(PAGE64)?;
    let only_buffer = only.export()?;
    expect_errno(
        "attaching without peer-to-peer memory to VRAM only",
        fixture.peer.attach(&only_buffer, Mode::NoP2p),
        libc::EOPNOTSUPP,
    )?;
    listed(&debugfs, &only, "vram", "vram")?;
    let refused = &debugfs.buffer(only.info()?.id)?.importers;
    check_eq!(refused.len(), 1, "importers of an object in VRAM only");
    check_eq!(
        (refused[0].path.as_str(), refused[0].reason.as_str()),
        ("refused", "no-opt-in"),
        "path and reason of the refusal"
    );

    let other = fixture.peer.reopen()?;
    let placement = match fixture.expect {
        Expect::Refused => "system",
        _ => "vram",
    };
    let mut before = "vram";
    for (peer, mode) in [(&fixture.peer, Mode::Pinned), (&other, Mode::Dynamic)] {
        peer.attach(&buffer, mode)?;
        listed(&debugfs, &object, "either", before)?;
        peer.pin_and_map(mode)?;
        listed(&debugfs, &object, "either", placement)?;
        before = placement;
    }
    let seen = debugfs.buffer(object.info()?.id)?;
    check!(seen.pinned, "not pinned: {seen:?}");
    check_eq!(seen.inode, buffer.inode()?, "inode");
    check_eq!(seen.importers.len(), 2, "importers");
    check_eq!(
        seen.importers[0].flags,
        ["pinned", "mapped", "dynamic", "peer2peer"],
        "flags of the one that pins"
    );
    check_eq!(
        seen.importers[1].flags,
        ["mapped", "dynamic", "revocable", "peer2peer"],
        "flags of the dynamic one"
    );
    let want = match fixture.expect {
        Expect::Bus => ("bus", "none"),
        Expect::HostBridge => ("host-bridge", "none"),
        Expect::Refused => ("system", "no-route"),
    };
    for one in &seen.importers {
        check_eq!(
            (one.path.as_str(), one.reason.as_str()),
            want,
            "path and reason"
        );
        check_eq!(one.hops, fixture.distance(), "hops");
        check_eq!(one.device, fixture.peer.name(), "device");
        check_eq!(one.driver, "edu_peer", "driver");
    }

    // Without a handle the object is still listed, with its importers.
    let id = seen.id;
    drop(object);
    let seen = debugfs.buffer(id)?;
    check!(seen.exported, "not exported: {seen:?}");
    check_eq!(
        seen.importers.len(),
        2,
        "importers of an object without a handle"
    );
    other.detach()?;
    fixture.peer.detach()?;
    check_eq!(
        debugfs.buffer(id)?.importers.len(),
        0,
        "importers at the end"
    );
    drop(buffer);
    let left = debugfs.buffers()?;
    check!(
        left.iter().all(|buffer| buffer.id != id),
        "{id} is left in {left:?}"
    );
    Ok(())
}

/// A forced move invalidates the mapping of a dynamic peer, which reads the same bytes at the new
/// place.
fn forced_move() -> Outcome {
    let fixture = Fixture::with_route()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let (a, b) = patterns();
    let object = fixture.drm.create_flags(4 * PAGE64, EITHER)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    let peer = &fixture.peer;
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    fixture.check_table(peer, &map)?;
    let mut invalidated = peer.status()?.invalidations;
    let moves = fixture.drm.counter(Counter::Moves)?;

    debugfs.force(object.info()?.id, "system")?;
    placed(&object, SYSTEM)?;
    invalidated += 1;
    check_eq!(peer.status()?.invalidations, invalidated, "invalidations");
    check_ok!(map.verify(a), "in system memory");
    // A move to where the object is already.
    debugfs.force(object.info()?.id, "system")?;
    map.fill(b);

    debugfs.force(object.info()?.id, "vram")?;
    placed(&object, VRAM)?;
    check_eq!(
        fixture.drm.counter(Counter::Moves)?,
        moves + 2,
        "moves there and back"
    );
    peer_reads(peer, b, &[0, 1, 2, 3])?;
    placed(&object, VRAM)?;
    fixture.check_table(peer, &map)?;
    let at = fixture.bar.locate(&map)?;
    fixture.check_vram(&at, b, &[0, 3])?;

    // The transfer of the peer maps the object again, which moves it back.
    let invalidated = peer.status()?.invalidations;
    debugfs.force(object.info()?.id, "system")?;
    check_eq!(
        peer.status()?.invalidations,
        invalidated + 1,
        "invalidations"
    );
    placed(&object, SYSTEM)?;
    peer_writes(peer, a, &[2])?;
    cpu_reads(&map, a, &[2])?;
    cpu_reads(&map, b, &[0, 1, 3])?;

    // A pinned object cannot be moved, not even to where it is.
    peer.detach()?;
    peer.attach(&buffer, Mode::Pinned)?;
    peer.pin()?;
    placed(&object, VRAM)?;
    let id = object.info()?.id;
    for to in ["system", "vram"] {
        expect_errno(
            &format!("forcing what is pinned to {to}"),
            debugfs.write("move", &format!("{id} {to}")),
            libc::EBUSY,
        )?;
    }
    placed(&object, VRAM)
}

/// Moves that are not permitted and unknown commands fail, and move nothing.
fn strict() -> Outcome {
    let fixture = Fixture::open()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let either = fixture.drm.create_flags(PAGE64, EITHER)?;
    let system = fixture.drm.create_flags(PAGE64, uapi::CREATE_SYSTEM)?;
    let vram = fixture.drm.create(PAGE64)?;
    let id = either.info()?.id;
    let moves = fixture.drm.counter(Counter::Moves)?;
    for (object, to) in [(&system, "vram"), (&vram, "system")] {
        let text = format!("{} {to}", object.info()?.id);
        expect_errno(
            "a move to where it may not be",
            debugfs.write("move", &text),
            libc::EINVAL,
        )?;
    }
    for text in [
        "\n".to_string(),
        format!("{id}"),
        format!("{id} "),
        format!("{id} tt"),
        format!("{id} VRAM"),
        format!("{id} system x"),
        format!("{id}  system"),
        format!(" {id} system"),
        format!("{id} system \n"),
        format!("{id} system\n\n"),
        format!("+{id} system"),
        format!("-{id} system"),
        format!("{id:#x} system"),
        format!("18446744073709551616{id} system"),
        "evict ".to_string(),
        "evict all".to_string(),
        format!("{id} system{}", " ".repeat(60)),
        format!("{id} system\u{e9}"),
    ] {
        expect_errno(
            &format!("the command {text:?}"),
            debugfs.write("move", &text),
            libc::EINVAL,
        )?;
    }
    for unknown in [0, id + 1000, u64::MAX] {
        expect_errno(
            "a move of no object",
            debugfs.write("move", &format!("{unknown} system")),
            libc::ENOENT,
        )?;
    }
    let limit = debugfs.read("pin_limit")?;
    let size = fixture.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    for text in [
        "\n".to_string(),
        "x".to_string(),
        "-1".to_string(),
        "+1".to_string(),
        "0x1000".to_string(),
        "4096 ".to_string(),
        "1 2".to_string(),
        "4K".to_string(),
        format!("{}", size + 1),
        "18446744073709551616".to_string(),
    ] {
        expect_errno(
            &format!("the limit {text:?}"),
            debugfs.write("pin_limit", &text),
            libc::EINVAL,
        )?;
    }
    check_eq!(debugfs.read("pin_limit")?, limit, "the limit afterwards");
    check_eq!(
        fixture.drm.counter(Counter::Moves)?,
        moves,
        "moves by all of that"
    );
    placed(&either, VRAM)
}

/// A pinned object does not move; all other evictable objects do.
fn evict() -> Outcome {
    let fixture = Fixture::with_route()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let (a, _) = patterns();
    let free: Vec<Gem<'_>> = (0..4)
        .map(|_| fixture.drm.create_flags(2 * PAGE64, EITHER))
        .collect::<Result<_, _>>()?;
    let pinned = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let only = fixture.drm.create(PAGE64)?;
    for (index, object) in free.iter().chain([&pinned]).enumerate() {
        object.map()?.fill(a.derive(index as u64));
    }
    let buffer = pinned.export()?;
    fixture.peer.attach(&buffer, Mode::Pinned)?;
    fixture.peer.pin()?;
    fixture.peer.map()?;
    let text = format!("{} system", pinned.info()?.id);
    expect_errno(
        "a move of a pinned object",
        debugfs.write("move", &text),
        libc::EBUSY,
    )?;
    debugfs.write("move", "evict\n")?;
    placed(&pinned, VRAM)?;
    placed(&only, VRAM)?;
    check_eq!(
        fixture.peer.status()?.invalidations,
        0,
        "invalidations of the pinned peer"
    );
    peer_reads(&fixture.peer, a.derive(4), &[0, 1])?;
    for (index, object) in free.iter().enumerate() {
        placed(object, SYSTEM)?;
        let pattern = a.derive(index as u64);
        check_ok!(
            object.map()?.verify(pattern),
            "object {index} after its eviction"
        );
    }
    fixture.peer.unmap()?;
    fixture.peer.unpin()?;
    debugfs.write("move", "evict")?;
    placed(&pinned, SYSTEM)
}

/// Moves lose no content, and the engine of vvram, which is the CPU, needs no DMA mappings.
fn memory() -> Outcome {
    let fixture = Fixture::open()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let size = fixture.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let (a, _) = patterns();
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let id = object.info()?.id;
    object.map()?.fill(a);
    for (name, place, free) in [("system", SYSTEM, size), ("vram", VRAM, size - 2 * PAGE64)] {
        debugfs.write("move", &format!("{id} {name}"))?;
        placed(&object, place)?;
        check_ok!(object.map()?.verify(a), "moved to {name}");
        fixture.drm.await_vram_free(free)?;
        check_eq!(
            debugfs.read("memory")?,
            format!(
                "free {free}\npinned 0\nreferenced 0\nquarantined 0\ndma_mapped 0\nlost 0\n\
                 done_again 0\n"
            ),
            "the file"
        );
    }
    Ok(())
}

/// The limit of pinned VRAM changes at run time: pinned objects stay pinned, and the next pin is
/// refused and counted.
fn pin_limit() -> Outcome {
    let fixture = Fixture::with_route()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let limit = fixture.drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?;
    check_eq!(debugfs.read("pin_limit")?, format!("{limit}\n"), "the file");
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let buffer = object.export()?;
    fixture.peer.attach(&buffer, Mode::Pinned)?;
    let result = (|| {
        debugfs.write("pin_limit", &format!("{}\n", 2 * PAGE64 - 1))?;
        check_eq!(
            fixture.drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?,
            2 * PAGE64 - 1,
            "the limit"
        );
        let before = debugfs.counters()?;
        expect_errno("a pin over the new limit", fixture.peer.pin(), libc::EDQUOT)?;
        let counted = difference(&before, &debugfs.counters()?);
        check_eq!(
            counted,
            [("pin-refused".to_string(), "quota".to_string(), 1)],
            "what was counted"
        );
        debugfs.write("pin_limit", &format!("{}", 2 * PAGE64))?;
        fixture.peer.pin()?;
        // A limit below the pinned size leaves these pins.
        debugfs.write("pin_limit", "0")?;
        check_eq!(object.info()?.pinned, 1, "pinned under a limit of 0");
        check_eq!(
            fixture.drm.counter(Counter::VramPinned)?,
            2 * PAGE64,
            "pinned VRAM"
        );
        fixture.peer.unpin()?;
        expect_errno("a pin of nothing", fixture.peer.pin(), libc::EDQUOT)
    })();
    debugfs.write("pin_limit", &format!("{limit}"))?;
    result?;
    fixture.peer.pin()?;
    check_eq!(object.info()?.pinned, 1, "pinned with the limit of before");
    Ok(())
}

/// Each fallback and each refusal counts once, under its reason, and changes no other counter.
fn counters() -> Outcome {
    let fixture = Fixture::open()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let buffer = object.export()?;
    let only = fixture.drm.create(PAGE64)?;
    let only_buffer = only.export()?;
    let entry = |event: &str, reason: &str, count| (event.to_string(), reason.to_string(), count);
    let peer = &fixture.peer;

    let before = debugfs.counters()?;
    for event in [
        "attach-system",
        "attach-refused",
        "pin-refused",
        "map-system",
        "map-refused",
    ] {
        for code in (0..=11).chain(16..=17) {
            let key = (event.to_string(), reason_name(code));
            check!(before.contains_key(&key), "{key:?} is not in {before:?}");
        }
    }
    check_eq!(before.len(), 5 * 14 + 1, "counters");
    for _ in 0..3 {
        expect_errno(
            "attaching without peer-to-peer memory to VRAM only",
            peer.attach(&only_buffer, Mode::NoP2p),
            libc::EOPNOTSUPP,
        )?;
    }
    for _ in 0..2 {
        peer.attach_and_map(&buffer, Mode::Static)?;
        peer.unmap()?;
        peer.map()?;
        peer.detach()?;
    }
    // Moved to system memory by the first mapping.
    check_eq!(
        difference(&before, &debugfs.counters()?),
        [
            entry("attach-refused", "no-opt-in", 3),
            entry("attach-system", "no-opt-in", 2),
            entry("map-system", "no-opt-in", 4),
            entry("moves", "-", 1),
        ],
        "what was counted"
    );

    let before = debugfs.counters()?;
    let attached = peer.attach(&only_buffer, Mode::Dynamic);
    if fixture.expect == Expect::Refused {
        expect_errno("attaching without a route", attached, libc::EOPNOTSUPP)?;
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        check_eq!(
            difference(&before, &debugfs.counters()?),
            [
                entry("attach-refused", "no-route", 1),
                entry("attach-system", "no-route", 1),
                entry("map-system", "no-route", 1),
            ],
            "what was counted without a route"
        );
        return Ok(());
    }
    attached?;
    peer.map()?;
    check_eq!(
        difference(&before, &debugfs.counters()?),
        [],
        "what was counted for a peer"
    );
    peer.detach()?;

    // A peer shares the object with an importer that needs system memory, and then cannot pin it in
    // VRAM.
    let before = debugfs.counters()?;
    let other = peer.reopen()?;
    peer.attach(&buffer, Mode::Dynamic)?;
    other.attach_and_map(&buffer, Mode::NoP2p)?;
    peer.map()?;
    check_eq!(
        difference(&before, &debugfs.counters()?),
        [
            entry("attach-system", "no-opt-in", 1),
            entry("map-system", "no-opt-in", 1),
            entry("map-system", "other-importer", 1),
        ],
        "what was counted for a peer and another importer"
    );
    other.detach()?;
    peer.detach()?;

    // The object is pinned in VRAM, so the other importer is refused.
    let before = debugfs.counters()?;
    peer.attach(&buffer, Mode::Pinned)?;
    peer.pin()?;
    expect_errno(
        "attaching for system memory to what is pinned in VRAM",
        other.attach(&buffer, Mode::NoP2p),
        libc::EOPNOTSUPP,
    )?;
    peer.detach()?;
    // An object that may only be in system memory.
    let system = fixture.drm.create_flags(PAGE64, uapi::CREATE_SYSTEM)?;
    let system_buffer = system.export()?;
    peer.attach_and_map(&system_buffer, Mode::Dynamic)?;
    check_eq!(
        difference(&before, &debugfs.counters()?),
        [
            entry("attach-refused", "pinned-elsewhere", 1),
            entry("attach-system", "system-only", 1),
            entry("map-system", "system-only", 1),
            entry("moves", "-", 1),
        ],
        "what was counted for a pinned object and one of system memory"
    );
    Ok(())
}

/// What the processes of [`storm`] do: a move is refused while the peer has pinned the object, or
/// while others fill VRAM.
const ACTIONS: [Action; 5] = [
    Action::new("evict", &[], 5),
    Action::new("system", &[libc::EBUSY], 5),
    Action::new("vram", &[libc::EBUSY, libc::ENOSPC], 5),
    Action::new("objects", &[], 5),
    Action::new("invalidation", &[], 10),
];

/// Forced moves of all objects, while peers and the CPU access them and objects are created and
/// closed.
fn storm() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let object = fixture.drm.create_flags(4 * PAGE64, EITHER)?;
    let id = object.info()?.id;
    let map = object.map()?;
    let buffer = object.export()?;
    fixture.peer.attach(&buffer, Mode::Dynamic)?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let mut storm = Storm::new(Duration::from_secs(20), &ACTIONS)?;
    for _ in 0..2 {
        storm.meanwhile(|storm, random| {
            let action = random.pick(&["evict", "system", "vram"]);
            let text = match action {
                "evict" => action.to_string(),
                _ => format!("{id} {action}"),
            };
            storm.tried(action, debugfs.write("move", &text))?;
            debugfs.buffers()?;
            thread::sleep(Duration::from_millis(30));
            Ok(())
        })?;
    }
    storm.meanwhile(|storm, _| {
        let drm = Drm::open()?;
        let objects: Vec<Gem<'_>> = (1..8)
            .map(|pages| drm.create_flags(pages * PAGE64, EITHER))
            .collect::<Result<_, _>>()?;
        for object in &objects {
            object.map()?.write(0, object.size());
        }
        for object in &objects {
            check_eq!(object.map()?.read(0), object.size(), "the first word");
        }
        storm.done("objects", 1);
        Ok(())
    })?;
    let before = fixture.drm.counter(Counter::Moves)?;
    let mut invalidated = 0;
    for round in storm.rounds(10) {
        let pattern = a.derive(round);
        let page = (round % 4) as usize;
        if round % 2 == 0 {
            peer_writes(&fixture.peer, pattern, &[page])?;
            cpu_reads(&map, pattern, &[page])?;
        } else {
            map.fill(pattern);
        }
        peer_reads(&fixture.peer, pattern, &[page])?;
        let now = fixture.peer.status()?.invalidations;
        storm.done("invalidation", now - invalidated);
        invalidated = now;
    }
    let moves = fixture.drm.counter(Counter::Moves)? - before;
    println!("{moves} moves");
    storm.end()
}

/// Accesses to files that are still open fail after the driver is unbound, and after its module is
/// unloaded.
fn unbind() -> Outcome {
    let fixture = Fixture::open()?;
    need_module("vvram")?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let object = fixture.drm.create_flags(PAGE64, EITHER)?;
    let text = format!("{} system", object.info()?.id);
    let mut readers = Vec::new();
    for name in ["buffers", "counters", "pin_limit"] {
        let path = debugfs.path(name);
        let mut file = debugfs::open(&path, true)?;
        let all = debugfs::read(&mut file, &path)?;
        check!(!all.is_empty(), "{name} is empty");
        readers.push((debugfs::open(&path, true)?, path, name));
    }
    let mut writers = Vec::new();
    for (name, text) in [("move", text.as_str()), ("pin_limit", "4096")] {
        let path = debugfs.path(name);
        writers.push((debugfs::open(&path, false)?, path, text));
    }

    let limit = debugfs.read("pin_limit")?;
    let mut fail = |what: &str| -> Outcome {
        for (file, path, name) in &mut readers {
            let read = debugfs::read(file, path);
            expect_errno(&format!("{name} {what}"), read, libc::EIO)?;
        }
        for (file, path, text) in &mut writers {
            let written = debugfs::write(file, path, text);
            expect_errno(&format!("{text:?} {what}"), written, libc::EIO)?;
        }
        Ok(())
    };
    let gone = Unbound::new(&fixture.gpu)?;
    fail("after the unbind")?;
    check!(
        !debugfs.path("buffers").exists(),
        "the files are there after the unbind"
    );
    gone.rebind()?;
    fail("after a new bind")?;
    let gpu = fixture.gpu.clone();
    drop(object);
    drop(fixture);
    reload("vvram", &[])?;
    fail("after the module was loaded anew")?;
    drop((readers, writers));
    let debugfs = DebugFs::open(&gpu)?;
    check_eq!(
        debugfs.read("pin_limit")?,
        limit,
        "the limit of the new one"
    );
    works()
}

igt_main! {
    "listing", "objects are listed under the number that GEM_INFO says", listing;
    "importers", "their importers are, with path and reason", importers;
    "forced-move", "a peer is notified of a forced move and finds the bytes", forced_move;
    "strict", "what is no command is an error", strict;
    "evict", "all that may leave VRAM does, and nothing else", evict;
    "memory", "moves lose nothing, and the CPU needs no DMA addresses", memory;
    "pin-limit", "the quota changes at run time", pin_limit;
    "counters", "fallbacks and refusals are counted by their reason", counters;
    "storm", "forced moves under peers, the CPU and new objects", storm;
    "unbind", "open files outlive the device and the module", unbind;
}

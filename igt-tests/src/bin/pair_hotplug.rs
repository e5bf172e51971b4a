// SPDX-License-Identifier: GPL-2.0

//! Devices that appear and go while clients use, or wait for, another one. The port of the second
//! GPU is where they are plugged in.

use std::collections::BTreeMap;

use vvram_tests::drm::{Attachment, DmaBuf, Drm, Gem, EITHER};
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::{
    cpu_reads, leads_to, patterns, peer_reads, peer_writes, placed, works, Expect, Fixture,
};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::plug::{Crowd, Plug, LIMIT};
use vvram_tests::proc::{Child, Steps};
use vvram_tests::qmp::Monitor;
use vvram_tests::queue::copy_after;
use vvram_tests::uapi;
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, Outcome, Stop};

const SIZE: u64 = 4 * PAGE64;

/// A client of a GPU, which copies and verifies until it is told to stop. Counts its rounds in a
/// word of shared memory.
fn client(gpu: &PciDevice, counts: &Map, index: usize, stop: &Steps) -> Outcome {
    let drm = Drm::open_on(gpu)?;
    let (src, dst) = (drm.create(SIZE)?, drm.create_flags(SIZE, EITHER)?);
    let (from, to) = (src.map()?, dst.map()?);
    let (a, _) = patterns();
    while !stop.is_done()? {
        let pattern = a.derive(counts.read(index));
        from.fill(pattern);
        drm.copy((&src, 0), (&dst, 0), SIZE)?.finish()?;
        cpu_reads(&to, pattern, &[0, 1, 2, 3])?;
        counts.write(index, counts.read(index) + 1);
    }
    Ok(())
}

/// Runs `body` while clients use the first GPU, another client waits for a fence, and the peer has
/// a mapping. `body` gets a function that waits until each client has done more.
#[track_caller]
fn beside_clients(body: impl FnOnce(&dyn Fn() -> Outcome) -> Outcome) -> Outcome {
    const CLIENTS: usize = 2;
    let gpu = PciDevice::vvram()?;
    let counts = Map::anonymous(PAGE)?;
    let stop = Steps::new()?;
    let mut clients = Vec::new();
    for index in 0..CLIENTS {
        clients.push(Child::spawn(|| client(&gpu, &counts, index, &stop))?);
    }
    let drm = Drm::open_on(&gpu)?;
    let (a, b) = patterns();
    let (src, dst) = (drm.create(SIZE)?, drm.create(SIZE)?);
    let to = dst.map()?;
    src.map()?.fill(a);
    to.fill(b);
    let timeline = Timeline::new()?;
    let waits = copy_after(&drm, (&src, &dst), &[&timeline.fence(1)?])?;
    let more = || -> Outcome {
        let before: Vec<_> = (0..CLIENTS).map(|index| counts.read(index)).collect();
        let went = misc::poll(LIMIT, || {
            let mut all = before.iter().enumerate();
            all.all(|(index, old)| counts.read(index) > *old + 1)
                .then_some(())
        });
        check!(went.is_some(), "a client does not go on: {before:?}");
        Ok(())
    };
    more()?;
    body(&more)?;
    more()?;
    check_eq!(waits.status()?, 0, "status of the copy that waits");
    cpu_reads(&to, b, &[0, 3])?;
    timeline.step()?;
    waits.finish()?;
    check_eq!(waits.status()?, 1, "status of the copy that has waited");
    cpu_reads(&to, a, &[0, 1, 2, 3])?;
    stop.done()?;
    for child in &mut clients {
        child.join("a client", LIMIT)?;
    }
    println!("rounds of clients: {}, {}", counts.read(0), counts.read(1));
    Ok(())
}

/// An object of the first GPU, which other devices use.
struct Shared<'a> {
    object: Gem<'a>,
    map: Map,
    buffer: DmaBuf,
}

impl<'a> Shared<'a> {
    fn new(drm: &'a Drm, pattern: Pattern) -> Result<Self, Stop> {
        let object = drm.create_flags(SIZE, EITHER)?;
        let map = object.map()?;
        map.fill(pattern);
        let buffer = object.export()?;
        Ok(Self {
            object,
            map,
            buffer,
        })
    }
}

/// The path to an object that may be in system memory, and where the object is then.
fn expected() -> Result<((u32, u32), u32), Stop> {
    Ok(match Expect::get()? {
        Expect::Refused => (
            (uapi::PATH_SYSTEM, uapi::REASON_NO_ROUTE),
            uapi::PLACEMENT_SYSTEM,
        ),
        expect => ((expect.path(), uapi::REASON_NONE), uapi::PLACEMENT_VRAM),
    })
}

/// Has a GPU import an object of another one, and copy it to its own VRAM.
#[track_caller]
fn imported(object: &Shared<'_>, by: &PciDevice, pattern: Pattern) -> Outcome {
    let drm = Drm::open_on(by)?;
    let import = drm.import(&object.buffer)?;
    let info = import.import_info()?;
    let (path, place) = expected()?;
    check_eq!((info.path, info.reason), path, "path of the import");
    placed(&object.object, place)?;
    let own = drm.create(SIZE)?;
    let map = own.map()?;
    drm.copy((&import, 0), (&own, 0), SIZE)?.finish()?;
    cpu_reads(&map, pattern, &[0, 1, 2, 3])?;
    Bar::open(by)?.locate(&map)?;
    Ok(())
}

/// Waits until so many importers are attached.
#[track_caller]
fn attached(object: &Gem<'_>, count: usize) -> Result<Vec<Attachment>, Stop> {
    let mut list = Vec::new();
    let found = misc::poll(LIMIT, || {
        list = object.attachments().ok()?;
        (list.len() == count).then_some(())
    });
    check!(found.is_some(), "{count} expected, attached are {list:?}");
    Ok(list)
}

/// A GPU goes and a new one comes: it works at once, and the clients of the other one do not
/// notice.
fn gpu() -> Outcome {
    let plug = Plug::second_gpu()?;
    let mut monitor = Monitor::open()?;
    beside_clients(|more| {
        let (a, _) = patterns();
        let drm = Drm::open()?;
        let object = Shared::new(&drm, a)?;
        for round in 0..2 {
            let old = Drm::open_on(plug.device())?;
            let import = old.import(&object.buffer)?;
            let told = import.import_info()?;
            check_eq!((told.path, told.reason), expected()?.0, "path before");
            plug.out(&mut monitor)?;
            more()?;
            expect_errno("PEER_IMPORT_INFO", import.import_info(), libc::ENODEV)?;
            attached(&object.object, 0)?;
            cpu_reads(&object.map, a, &[0, 1, 2, 3])?;
            plug.back(&mut monitor)?;
            more()?;
            expect_errno("GETPARAM of the old one", old.getparam(0), libc::ENODEV)?;
            imported(&object, plug.device(), a)
                .map_err(|stop| Stop::fail(format_args!("in round {round}: {}", stop.text())))?;
        }
        Ok(())
    })
}

/// Checks the attachments of an object by the devices, in the order in which they attached.
#[track_caller]
fn lists(object: &Gem<'_>, gpu: &PciDevice, peers: &[&Peer]) -> Outcome {
    let expect = Expect::get()?;
    let (path, _) = expected()?;
    let want: Vec<_> = peers
        .iter()
        .map(|peer| Attachment {
            device: peer.name().to_string(),
            path: path.0,
            reason: path.1,
            flags: Mode::Dynamic.attachment_flags() | uapi::ATTACHMENT_MAPPED,
            distance: expect.distance(gpu, &PciDevice::named(peer.name())),
        })
        .collect();
    let mut seen = object.attachments()?;
    // The one that attached last may come first.
    seen.sort_by(|a, b| a.device.cmp(&b.device));
    check_eq!(seen, want, "attachments");
    Ok(())
}

/// A peer and a GPU come into one slot, while another peer uses a buffer, which they use as well.
/// They are unplugged while they have it mapped.
fn peers() -> Outcome {
    let mut monitor = Monitor::open()?;
    let fixture = Fixture::open()?;
    let (a, b) = patterns();
    let object = Shared::new(&fixture.drm, a)?;
    fixture.peer.attach_and_map(&object.buffer, Mode::Dynamic)?;
    lists(&object.object, &fixture.gpu, &[&fixture.peer])?;
    fixture.peer.submit_read(0, SIZE as usize)?;
    let plug = Plug::second_gpu()?;
    let second = plug.device().clone();
    let crowd = Crowd::new(vec![plug], 2, &mut monitor)?;
    // The transfer was not disturbed.
    let mut bytes = vec![0; SIZE as usize];
    check_eq!(fixture.peer.finish_read(&mut bytes)?, SIZE, "bytes read");
    check_ok!(a.verify(&bytes, 0), "the first peer");
    let mut peers = Vec::new();
    for device in &crowd.peers {
        let peer = Peer::open_name(device.name())?;
        peer.attach_and_map(&object.buffer, Mode::Dynamic)?;
        peers.push(peer);
    }
    check_eq!(peers.len(), 1, "peers that came");
    let all: Vec<_> = [&fixture.peer].into_iter().chain(&peers).collect();
    lists(&object.object, &fixture.gpu, &all)?;
    let (_, place) = expected()?;
    placed(&object.object, place)?;
    if place == uapi::PLACEMENT_VRAM {
        let pages = fixture.bar.find(&object.map).into_iter().flatten();
        let pages: Vec<_> = pages.collect();
        for peer in &all {
            leads_to(peer, &fixture.bar, &pages)?;
        }
    }
    // Transfers take long.
    peer_reads(&peers[0], a, &[1])?;
    peer_writes(&peers[0], b, &[2])?;
    cpu_reads(&object.map, b, &[2])?;
    object.map.fill_pages(a, 2, 1);
    let drm = Drm::open_on(&second)?;
    let import = drm.import(&object.buffer)?;
    check_eq!(
        import.import_info()?.path,
        expected()?.0 .0,
        "path of the GPU"
    );
    crowd.end(&mut monitor)?;
    expect_errno("IMPORT_INFO", import.import_info(), libc::ENODEV)?;
    attached(&object.object, 1)?;
    lists(&object.object, &fixture.gpu, &[&fixture.peer])?;
    for peer in &peers {
        expect_errno("status of a peer that is gone", peer.status(), libc::ENODEV)?;
    }
    cpu_reads(&object.map, a, &[0, 1, 2, 3])?;
    peer_reads(&fixture.peer, a, &[3])?;
    fixture.peer.detach()?;
    works()
}

/// Where the BARs of all GPUs and peers are.
fn places() -> Result<BTreeMap<String, u64>, Stop> {
    let mut all = PciDevice::vvrams();
    all.push(PciDevice::edu()?);
    let mut places = BTreeMap::new();
    for device in all {
        let bar = if device.driver().as_deref() == Some("vvram") {
            2
        } else {
            0
        };
        places.insert(device.name().to_string(), device.bar(bar)?.0);
    }
    Ok(places)
}

/// The bridge of a root bus that a device is below.
fn root_port(device: &PciDevice) -> Result<PciDevice, Stop> {
    match device.route().get(1) {
        Some(name) => Ok(PciDevice::named(name)),
        None => Err(Stop::fail(format_args!("{} has no route", device.name()))),
    }
}

/// The ports of all GPUs and of the peer are removed, with all that is below them: on some machines
/// that is one port. Then the bus is scanned.
fn ports() -> Outcome {
    let expect = Expect::get()?;
    let [first, second]: [PciDevice; 2] = PciDevice::vvrams()
        .try_into()
        .map_err(|gpus| Stop::fail(format_args!("expected two GPUs, saw {gpus:?}")))?;
    let devices = [first.clone(), PciDevice::edu()?, second.clone()];
    let mut ports = Vec::new();
    for device in &devices {
        let port = root_port(device)?;
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    let before = places()?;
    for round in 0..2 {
        let (a, b) = patterns();
        let drms = [Drm::open_on(&first)?, Drm::open_on(&second)?];
        let objects = [Shared::new(&drms[0], a)?, Shared::new(&drms[1], b)?];
        // Each GPU uses memory of the other one, and the peer that of both.
        let imports = [
            drms[1].import(&objects[0].buffer)?,
            drms[0].import(&objects[1].buffer)?,
        ];
        let peers = [Peer::open()?, Peer::open()?];
        for (index, mode) in [Mode::Dynamic, Mode::Revocable].into_iter().enumerate() {
            let told = imports[index].import_info()?;
            check_eq!(
                (told.path, told.reason),
                expected()?.0,
                "path of import {index}"
            );
            peers[index].attach_and_map(&objects[index].buffer, mode)?;
            placed(&objects[index].object, expected()?.1)?;
        }
        let timeline = Timeline::new()?;
        let fence = timeline.fence(1)?;
        let (src, dst) = (drms[0].create(SIZE)?, drms[0].create(SIZE)?);
        let waits = copy_after(&drms[0], (&src, &dst), &[&fence])?;
        for port in &ports {
            let mut child = Child::spawn(|| Ok(port.remove()?))?;
            child.join(&format!("the removal of {}", port.name()), LIMIT)?;
        }
        for device in devices.iter().chain(&ports) {
            check!(!device.exists(), "{} is still there", device.name());
        }
        waits.finish()?;
        check_eq!(waits.status()?, -libc::ECANCELED, "status of the copy");
        for (index, drm) in drms.iter().enumerate() {
            expect_errno("GETPARAM", drm.getparam(0), libc::ENODEV)?;
            expect_errno("IMPORT_INFO", imports[index].import_info(), libc::ENODEV)?;
            expect_errno("status", peers[index].status(), libc::ENODEV)?;
            let buffer = &objects[index].buffer;
            expect_errno("SYNC", buffer.sync(uapi::DMA_BUF_SYNC_READ), libc::ENODEV)?;
        }
        let mut child = Child::spawn(|| Ok(PciDevice::rescan()?))?;
        child.join("the scan", LIMIT)?;
        for device in &devices {
            let bound = misc::poll(LIMIT, || device.driver());
            check!(bound.is_some(), "no driver for {}", device.name());
        }
        timeline.step()?;
        drop((src, dst, imports, objects));
        let after = places()?;
        println!("BARs before {before:x?}, after {after:x?}");
        if ports.len() == 1 && round == 0 {
            // The kernel does not use the places that the firmware has chosen.
            check!(after != before, "no BAR is at another place");
        }
        works()?;
        let drm = Drm::open_on(&first)?;
        imported(&Shared::new(&drm, a)?, &second, a)?;
        let drm = Drm::open_on(&second)?;
        imported(&Shared::new(&drm, b)?, &first, b)?;
        check_eq!(Expect::get()?, expect, "the machine");
    }
    Ok(())
}

/// A GPU comes into the slot of another one, so that each has the BAR of the other. All addresses
/// that were remembered of the old ones would be wrong.
fn elsewhere() -> Outcome {
    let (first, second) = (Plug::gpu()?, Plug::second_gpu()?);
    let mut monitor = Monitor::open()?;
    let (a, _) = patterns();
    let fixture = Fixture::open()?;
    let object = Shared::new(&fixture.drm, a)?;
    fixture
        .peer
        .attach_and_map(&object.buffer, Mode::Revocable)?;
    let old = fixture.peer.table()?;
    first.out(&mut monitor)?;
    expect_errno("map", fixture.peer.map(), libc::ENODEV)?;
    second.out(&mut monitor)?;
    check!(PciDevice::vvrams().is_empty(), "a GPU is left");
    // The first GPU of the machine is now in the port of the second one.
    second.back(&mut monitor)?;
    let found = PciDevice::vvram()?;
    check_eq!(&found, second.device(), "the only GPU");
    works()?;
    {
        let fixture = Fixture::open()?;
        let object = Shared::new(&fixture.drm, a)?;
        fixture.peer.attach_and_map(&object.buffer, Mode::Dynamic)?;
        peer_reads(&fixture.peer, a, &[0, 3])?;
        let table = fixture.peer.table()?;
        if expected()?.1 == uapi::PLACEMENT_VRAM && !fixture.translated() {
            check!(table != old, "the table is that of the old BAR: {table:x?}");
        }
    }
    first.back(&mut monitor)?;
    fixture.peer.detach()?;
    drop(object);
    imported(
        &Shared::new(&Drm::open_on(first.device())?, a)?,
        second.device(),
        a,
    )?;
    works()
}

igt_main! {
    "gpu", "a GPU goes and comes while clients use and wait for another one", gpu;
    "peers", "a peer and a GPU come into one slot, and go while they map a buffer", peers;
    "ports", "ports are removed with all devices below them, and found again", ports;
    "elsewhere", "the only GPU is in the slot of the other one", elsewhere;
}

// SPDX-License-Identifier: GPL-2.0

//! VRAM of the modelled GPU as the CPU and a peer see it, through windows of the aperture.

use std::collections::HashSet;
use std::time::Duration;

use vvram_tests::compute::{ballast, Vm, LEFT};
use vvram_tests::debugfs::{difference, Counter};
use vvram_tests::drm::{path_name, reason_name, Drm, Gem, EITHER};
use vvram_tests::fixture::{cpu_reads, patterns, peer_reads, peer_writes, placed, Expect};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::mgpu::{holds, take_all, Impatient, Mgpu};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::Bar;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::Child;
use vvram_tests::slab::repeat;
use vvram_tests::{check, check_eq, expect_errno, igt_main, uapi, Outcome, Stop};

const MODES: [Mode; 3] = [Mode::Dynamic, Mode::Revocable, Mode::Pinned];
const LIMIT: Duration = Duration::from_secs(40);

/// A peer of each class of importer reads and writes VRAM.
fn peer() -> Outcome {
    let gpu = Mgpu::first()?;
    let (a, b) = patterns();
    let (start, len) = gpu.pci.bar(2)?;
    let expect = Expect::get()?;
    for mode in MODES {
        let object = gpu.drm.create_flags(4 * PAGE64, EITHER)?;
        let map = object.map()?;
        map.fill(a);
        let buffer = object.export()?;
        let peer = Peer::open()?;
        peer.attach_and_map(&buffer, mode)?;
        let list = object.attachments()?;
        check_eq!(list.len(), 1, "importers");
        check!(
            list[0].path == expect.path() && list[0].reason == uapi::REASON_NONE,
            "{mode:?}: path {}, reason {}",
            path_name(list[0].path),
            reason_name(list[0].reason)
        );
        placed(&object, uapi::PLACEMENT_VRAM)?;
        if expect == Expect::Bus {
            let table = peer.table()?;
            check!(
                table
                    .iter()
                    .all(|piece| (start..start + len).contains(&piece.dma_address)),
                "{table:x?} leads out of the aperture at {start:#x}"
            );
        }
        peer_reads(&peer, a, &[0, 1, 2, 3])?;
        peer_writes(&peer, b, &[1, 3])?;
        cpu_reads(&map, a, &[0, 2])?;
        cpu_reads(&map, b, &[1, 3])?;
        // The engine reads the same bytes.
        let copy = gpu.drm.create_flags(4 * PAGE64, uapi::CREATE_SYSTEM)?;
        gpu.drm
            .copy((&object, 0), (&copy, 0), 4 * PAGE64)?
            .finish()?;
        cpu_reads(&copy.map()?, a, &[0, 2])?;
        cpu_reads(&copy.map()?, b, &[1, 3])?;
        drop((peer, buffer, map, object));
        gpu.await_no_window()?;
    }
    gpu.clean()
}

/// An object that has left VRAM moves back for a peer, with its bytes.
fn back() -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, LEFT)?;
    let (a, b) = patterns();
    let pages = [0, 3];
    let object = gpu.drm.create_flags(4 * PAGE64, EITHER)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    let peer = Peer::open()?;
    peer.attach(&buffer, Mode::Dynamic)?;
    let mut old = a;
    for round in 0..2 {
        let taken = take_all(&gpu)?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        drop(taken);
        peer.map()?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
        let new = a.derive(round + 1);
        peer_reads(&peer, old, &pages)?;
        map.fill(b);
        peer_writes(&peer, new, &pages)?;
        cpu_reads(&map, new, &pages)?;
        cpu_reads(&map, b, &[1, 2])?;
        old = new;
        peer.unmap()?;
    }
    check!(
        peer.status()?.invalidations > 0,
        "no move invalidated the peer"
    );
    gpu.clean()
}

/// The CPU uses more VRAM than the aperture shows.
fn windows() -> Outcome {
    let gpu = Mgpu::first()?;
    let (a, _) = patterns();
    let (aperture, vram) = (gpu.aperture()?, gpu.drm.getparam(uapi::PARAM_VRAM_SIZE)?);
    check!(
        vram >= 2 * aperture,
        "{vram} bytes of VRAM, an aperture of {aperture}"
    );
    let size = aperture / 8;
    let objects: Vec<_> = (0..12)
        .map(|_| gpu.drm.create(size))
        .collect::<Result<_, _>>()?;
    let maps: Vec<_> = objects.iter().map(|o| o.map()).collect::<Result<_, _>>()?;
    // A page of each MiB, and the last one.
    let pages: Vec<usize> = (0..objects[0].pages())
        .step_by(256)
        .chain([objects[0].pages() - 1])
        .collect();
    for round in 0..2 {
        for (index, map) in (0..).zip(&maps) {
            for page in &pages {
                map.fill_pages(a.derive(100 * round + index), *page, 1);
            }
        }
        for (index, map) in (0..).zip(&maps).collect::<Vec<_>>().into_iter().rev() {
            cpu_reads(map, a.derive(100 * round + index), &pages)?;
        }
    }
    for object in &objects {
        placed(object, uapi::PLACEMENT_VRAM)?;
    }
    check!(
        gpu.drm.counter(Counter::ApertureFree)? < size,
        "the aperture was never full"
    );
    // What is in VRAM is seen in the BAR as long as there are windows.
    let words: HashSet<u64> = (0..objects.len() as u64)
        .flat_map(|index| pages.iter().map(move |page| (index, *page)))
        .map(|(index, page)| a.derive(100 + index).word((page * PAGE / 8) as u64))
        .collect();
    let bar = Bar::open(&gpu.pci)?;
    let seen = || {
        let pages = 0..bar.len() / PAGE64;
        pages
            .filter(|page| words.contains(&bar.word(page * PAGE64)))
            .count()
    };
    check!(seen() > 0, "no window is in the BAR");
    drop((maps, objects));
    gpu.await_no_window()?;
    check_eq!(seen(), 0, "pages of closed windows in the BAR");
    gpu.clean()
}

/// Several processes at the same time, so that faults and evictions of windows race.
fn races() -> Outcome {
    let gpu = Mgpu::first()?;
    let aperture = gpu.aperture()?;
    let size = aperture / 8;
    let mut children: Vec<_> = (0..4)
        .map(|child| {
            let pci = gpu.pci.clone();
            Child::spawn(move || {
                let gpu = Mgpu::open(&pci)?;
                let objects = [
                    gpu.drm.create(size)?,
                    gpu.drm.create(size)?,
                    gpu.drm.create(size)?,
                ];
                let maps = [objects[0].map()?, objects[1].map()?, objects[2].map()?];
                let (a, _) = patterns();
                let last = objects[0].pages() - 1;
                for round in 0..20 * misc::soak() {
                    for (index, map) in (0..).zip(&maps) {
                        let pattern = a.derive(1000 * child + 3 * round + index);
                        map.fill_pages(pattern, 0, 1);
                        map.fill_pages(pattern, last, 1);
                        let other = &maps[((index + round) % 3) as usize];
                        other.read(PAGE / 8 * (last / 2));
                        cpu_reads(map, pattern, &[0, last])?;
                    }
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    for child in &mut children {
        child.join("a process that uses windows", LIMIT)?;
    }
    gpu.await_no_window()?;
    gpu.clean()
}

/// An object that is larger than the aperture: the CPU accesses it in system memory, and no peer
/// gets it in VRAM.
fn large() -> Outcome {
    let gpu = Mgpu::first()?;
    let (a, _) = patterns();
    let (aperture, (_, bar)) = (gpu.aperture()?, gpu.pci.bar(2)?);
    check!(aperture < bar, "windows can have all of the BAR");
    // The window of this object stays.
    let small = gpu.drm.create(PAGE64)?;
    small.map()?.fill(a);
    let free = gpu.drm.counter(Counter::ApertureFree)?;
    check_eq!(free, aperture - PAGE64, "free aperture");
    let unchanged = |size: u64| -> Outcome {
        check_eq!(
            gpu.drm.counter(Counter::ApertureFree)?,
            free,
            "free aperture after an object of {size:#x} bytes"
        );
        Ok(())
    };
    for size in [aperture + PAGE64, bar, bar + PAGE64] {
        too_large(&gpu, size)?;
        unchanged(size)?;
    }
    too_large_for_kernel(&gpu, aperture + PAGE64)?;
    unchanged(aperture + PAGE64)?;
    holds(&small, a, "through its window")?;
    gpu.clean()
}

fn too_large(gpu: &Mgpu, size: u64) -> Outcome {
    let (a, _) = patterns();
    // The CPU has no window, so the object moves.
    let moves = gpu.drm.create_flags(size, EITHER)?;
    placed(&moves, uapi::PLACEMENT_VRAM)?;
    moves.map()?.set(1);
    placed(&moves, uapi::PLACEMENT_SYSTEM)?;
    drop(moves);

    let object = gpu.drm.create_flags(size, EITHER)?;
    placed(&object, uapi::PLACEMENT_VRAM)?;
    let buffer = object.export()?;
    let peer = Peer::open()?;
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    let list = object.attachments()?;
    check!(
        list.len() == 1
            && list[0].path == uapi::PATH_SYSTEM
            && list[0].reason == uapi::REASON_OUTSIDE_BAR,
        "{size:#x} bytes: {list:?}"
    );
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    let map = object.map()?;
    for first in samples(&object) {
        map.fill_pages(a, first, SAMPLE);
    }
    peer_reads(&peer, a, &[0, object.pages() - 1])?;
    drop((peer, buffer));

    // An object that must stay in VRAM.
    let stays = gpu.drm.create(size)?;
    let buffer = stays.export()?;
    let peer = Peer::open()?;
    let counters = gpu.debugfs()?.counters()?;
    expect_errno(
        "an attach to an object that gets no window",
        peer.attach(&buffer, Mode::Dynamic).map(drop),
        libc::EOPNOTSUPP,
    )?;
    let counted = difference(&counters, &gpu.debugfs()?.counters()?);
    check!(
        counted
            .iter()
            .any(|(_, reason, count)| reason == "outside-bar" && *count == 1),
        "what was counted: {counted:?}"
    );
    // The engine reaches all of it.
    gpu.drm.copy((&object, 0), (&stays, 0), size)?.finish()?;
    let part = gpu
        .drm
        .create_flags((SAMPLE * PAGE) as u64, uapi::CREATE_SYSTEM)?;
    for first in samples(&stays) {
        let at = (first * PAGE) as u64;
        gpu.drm
            .copy((&stays, at), (&part, 0), part.size())?
            .finish()?;
        sampled(&part.map()?, a, first)?;
    }
    Ok(())
}

/// How many adjacent pages of a large object are checked.
const SAMPLE: usize = 4;

/// The first pages of those that are checked: at the start, in the middle and at the end.
fn samples(object: &Gem<'_>) -> [usize; 3] {
    let pages = object.pages();
    [0, (pages - SAMPLE) / 2, pages - SAMPLE]
}

/// Checks every byte of a copy of [`SAMPLE`] pages.
fn sampled(copy: &Map, pattern: Pattern, first: usize) -> Outcome {
    let words = PAGE / 8;
    for word in 0..SAMPLE * words {
        check_eq!(
            copy.read(word),
            pattern.word((first * words + word) as u64),
            "word {word} from page {first} on"
        );
    }
    Ok(())
}

/// The kernel maps a buffer as a whole, so it never maps one in VRAM that is larger than the
/// aperture: it is moved, or the mapping fails.
fn too_large_for_kernel(gpu: &Mgpu, size: u64) -> Outcome {
    let (a, _) = patterns();
    let source = gpu.drm.create_flags(size, uapi::CREATE_SYSTEM)?;
    let last = source.pages() - SAMPLE;
    source.map()?.fill_pages(a, last, SAMPLE);
    let in_vram = || -> Result<Gem<'_>, Stop> {
        let object = gpu.drm.create_flags(size, EITHER)?;
        gpu.drm.copy((&source, 0), (&object, 0), size)?.finish()?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
        Ok(object)
    };
    // Once for a user that only maps it, and once for vvram, which attaches itself to the buffer,
    // and copies by the CPU.
    let object = in_vram()?;
    let buffer = object.export()?;
    let user = Peer::open()?;
    user.attach(&buffer, Mode::Cpu)?;
    let pages: Vec<_> = (last..object.pages()).collect();
    peer_reads(&user, a, &pages)?;
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    user.detach()?;
    drop((object, buffer));

    let object = in_vram()?;
    let buffer = object.export()?;
    let vvram = Drm::open()?;
    let import = vvram.import(&buffer)?;
    let part = vvram.create_flags((SAMPLE * PAGE) as u64, uapi::CREATE_SYSTEM)?;
    let at = (last * PAGE) as u64;
    vvram
        .copy((&import, at), (&part, 0), part.size())?
        .finish()?;
    sampled(&part.map()?, a, last)?;
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    let list = object.attachments()?;
    check!(
        list.len() == 1
            && list[0].path == uapi::PATH_SYSTEM
            && list[0].reason == uapi::REASON_OUTSIDE_BAR,
        "vvram as an importer: {list:?}"
    );
    drop((import, object, buffer));

    // An object that must stay in VRAM.
    let stays = gpu.drm.create(size)?;
    let buffer = stays.export()?;
    user.attach(&buffer, Mode::Cpu)?;
    // It is more than may be pinned.
    expect_errno("a mapping of the kernel", user.map(), libc::EDQUOT)?;
    expect_errno(
        "an import by vvram",
        vvram.import(&buffer).map(drop),
        libc::EOPNOTSUPP,
    )?;
    let list = stays.attachments()?;
    check!(
        list.len() == 1 && list[0].refused() && list[0].reason == uapi::REASON_OUTSIDE_BAR,
        "vvram as an importer that was refused: {list:?}"
    );
    placed(&stays, uapi::PLACEMENT_VRAM)
}

/// A peer that has mapped all of the aperture keeps nobody from it: neither processes nor another
/// peer. It maps its object again when it needs that.
fn shared() -> Outcome {
    let gpu = Mgpu::first()?;
    let (a, b) = patterns();
    let (all, _buffer, holder) = gpu.fill_aperture(Mode::Dynamic)?;
    let before = holder.status()?.invalidations;
    let invalidations = || Ok::<_, Stop>(holder.status()?.invalidations - before);

    let others = Mgpu::first()?;
    let own = others.drm.create(PAGE64)?;
    let map = own.map()?;
    map.fill(a);
    check_eq!(invalidations()?, 1, "invalidations by a page fault");
    placed(&all, uapi::PLACEMENT_VRAM)?;

    holder.map()?;
    peer_writes(&holder, b, &[0, 9])?;
    let foreign = others.drm.create(2 * PAGE64)?;
    let peer = Peer::open()?;
    peer.attach_and_map(&foreign.export()?, Mode::Dynamic)?;
    check_eq!(invalidations()?, 2, "invalidations by a peer");
    peer_writes(&peer, a, &[0, 1])?;
    cpu_reads(&map, a, &[0])?;
    check_eq!(invalidations()?, 2, "invalidations in all");
    placed(&foreign, uapi::PLACEMENT_VRAM)?;

    holder.map()?;
    peer_reads(&holder, b, &[0, 9])?;
    holds(&foreign, a, "by a new window")?;
    drop((peer, holder));
    gpu.clean()
}

/// Clients that map and unmap memory in their address spaces, and so have the device invalidate its
/// tables again and again, keep no peer from the aperture.
fn contended() -> Outcome {
    let gpu = Mgpu::first()?;
    let (a, _) = patterns();
    let object = gpu.drm.create(4 * PAGE64)?;
    let buffer = object.export()?;
    let peer = Peer::open()?;
    let mut children: Vec<_> = (0..4)
        .map(|_| {
            let pci = gpu.pci.clone();
            Child::spawn(move || {
                let gpu = Mgpu::open(&pci)?;
                let vm = Vm::new(&gpu)?;
                let page = vm.create(PAGE64, EITHER)?;
                loop {
                    vm.bind(&page, 0)?;
                    vm.unbind(0, PAGE64)?;
                }
            })
        })
        .collect::<Result<_, _>>()?;
    for round in 0..50 * misc::soak() {
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        peer_writes(&peer, a.derive(round), &[round as usize % 4])?;
        peer_reads(&peer, a.derive(round), &[round as usize % 4])?;
        peer.detach()?;
    }
    for child in &mut children {
        check!(child.ended().is_none(), "a child has ended");
        child.kill()?;
    }
    gpu.await_no_window()?;
    gpu.clean()
}

/// The pins of a client leave room in the aperture for others, and so do the pins of all.
fn reserve() -> Outcome {
    let gpu = Mgpu::first()?;
    let aperture = gpu.aperture()?;
    check_eq!(
        gpu.drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?,
        aperture / 2,
        "the limit of pins"
    );
    let large = gpu.drm.create(aperture / 4)?;
    let more = gpu.drm.create(PAGE64)?;
    let peer = Peer::open()?;
    let counters = gpu.debugfs()?.counters()?;
    peer.attach_and_map(&large.export()?, Mode::Revocable)?;
    let (buffer, refused) = (more.export()?, Peer::open()?);
    expect_errno(
        "a pin of a client that has pinned its share",
        refused.attach_and_map(&buffer, Mode::Revocable),
        libc::EDQUOT,
    )?;
    let counted = difference(&counters, &gpu.debugfs()?.counters()?);
    check!(
        counted
            .iter()
            .any(|(_, reason, count)| reason == "quota" && *count == 1),
        "what was counted: {counted:?}"
    );
    let others = Mgpu::first()?;
    let own = others.drm.create(PAGE64)?;
    let pins = Peer::open()?;
    pins.attach_and_map(&own.export()?, Mode::Revocable)?;
    drop((pins, refused, peer));
    gpu.clean()
}

/// While a peer has pinned all of the aperture, other importers get no window, until it unmaps.
fn full() -> Outcome {
    let _pinning = Impatient::pinning()?;
    let gpu = Mgpu::first()?;
    let (a, _) = patterns();
    let (_all, _buffer, holder) = gpu.fill_aperture(Mode::Revocable)?;

    // An object that may be in system memory is moved there; an object that may not is only mapped
    // when there is a window.
    let either = gpu.drm.create_flags(PAGE64, EITHER)?;
    either.map()?.fill(a);
    placed(&either, uapi::PLACEMENT_SYSTEM)?;
    let stays = gpu.drm.create(PAGE64)?;
    let shared = stays.export()?;
    let peer = Peer::open()?;
    peer.attach(&shared, Mode::Dynamic)?;
    let counters = gpu.debugfs()?.counters()?;
    expect_errno("a map without a window", peer.map(), libc::ENOSPC)?;
    let counted = difference(&counters, &gpu.debugfs()?.counters()?);
    check!(
        counted
            .iter()
            .any(|(_, reason, count)| reason == "no-window" && *count == 1),
        "what was counted: {counted:?}"
    );
    holder.unmap()?;
    peer.map()?;
    stays.map()?.fill(a);
    peer_reads(&peer, a, &[0])?;
    holds(&stays, a, "through the same window")?;
    gpu.clean()
}

/// An importer has not unmapped an object that has left VRAM. Its window is closed nevertheless, so
/// that the next owner of the memory has one.
fn late() -> Outcome {
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, LEFT)?;
    let (a, b) = patterns();
    let (pages, rest) = ([0, 7], [1, 2, 3, 4, 5, 6]);
    let object = gpu.drm.create_flags(8 * PAGE64, EITHER)?;
    object.map()?.fill(a);
    let buffer = object.export()?;
    let peer = Peer::open()?;
    peer.attach(&buffer, Mode::Late)?;
    for round in 0..2 {
        let (old, new) = (a.derive(round), a.derive(round + 1));
        peer.map()?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
        peer_writes(&peer, old, &pages)?;
        let invalidations = peer.status()?.invalidations;
        // One of these objects has the memory then. The accesses to some of the pages make windows
        // for all of it.
        let taken = take_all(&gpu)?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        check!(
            peer.status()?.invalidations > invalidations,
            "the peer was not notified"
        );
        for (index, other) in (0..).zip(&taken) {
            let map = other.map()?;
            let pattern = b.derive(100 * round + index);
            for page in (0..other.pages()).step_by(64) {
                let word = map.read(page * PAGE / 8);
                check_eq!(word, 0, "page {page} of new memory in round {round}");
                map.write(page * PAGE / 8, pattern.word(page as u64));
            }
        }
        for (index, other) in (0..).zip(&taken) {
            let map = other.map()?;
            let pattern = b.derive(100 * round + index);
            for page in (0..other.pages()).step_by(64) {
                let word = map.read(page * PAGE / 8);
                check_eq!(
                    word,
                    pattern.word(page as u64),
                    "page {page} in round {round}"
                );
            }
        }
        drop(taken);
        cpu_reads(&object.map()?, old, &pages)?;
        if round == 1 {
            // A detach instead of an unmap.
            peer.detach()?;
            peer.attach(&buffer, Mode::Late)?;
        }
        peer.map()?;
        peer_reads(&peer, old, &pages)?;
        peer_writes(&peer, new, &pages)?;
        cpu_reads(&object.map()?, new, &pages)?;
        cpu_reads(&object.map()?, a, &rest)?;
    }
    drop((peer, buffer, object));
    gpu.await_no_window()?;
    gpu.clean()
}

/// A peer maps an object, and unmaps it, so often that a leak in each round would show.
fn repeated() -> Outcome {
    let gpu = Mgpu::first()?;
    let (a, _) = patterns();
    let object = gpu.drm.create(3 * PAGE64)?;
    object.map()?.fill(a);
    let buffer = object.export()?;
    let peer = Peer::open()?;
    // The long form finds the leak of any object of the slab.
    let (rounds, leak) = match misc::soak() {
        1 => (300, PAGE64),
        times => (1_000 * times * times, 32),
    };
    let mut round = 0;
    repeat(rounds, leak, || {
        round += 1;
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        if round % 100 == 0 {
            peer_reads(&peer, a, &[0, 2])?;
        }
        peer.unmap()?;
        Ok(peer.detach()?)
    })?;
    drop((peer, buffer));
    holds(&object, a, "after all that")?;
    drop(object);
    gpu.await_no_window()?;
    gpu.clean()
}

igt_main! {
    "peer", "the path, the addresses and the bytes", peer;
    "back", "objects come back for a peer", back;
    "windows", "more than the aperture shows", windows;
    "races", "faults race with evictions of windows", races;
    "large", "an object that is larger than the aperture", large;
    "full", "peers have all of the aperture", full;
    "late", "an importer has not unmapped what has moved", late;
    "shared", "a peer that has all of the aperture makes room", shared;
    "contended", "others invalidate all the time", contended;
    "reserve", "pins leave room", reserve;
    "repeated", "a peer maps and unmaps again and again", repeated;
}

// SPDX-License-Identifier: GPL-2.0

//! Measures the cost of exports, mappings and moves, in instructions.
//!
//! For a guest under icount, whose clock counts instructions. Prints and writes one figure per
//! line, `name value`; the lab makes a table of the figures and checks them.

use std::process::ExitCode;

use vvram_tests::bar_export::{self, export, Exporter, MEMORY};
use vvram_tests::clock::{self, Costs};
use vvram_tests::drm::{DmaBuf, Gem, EITHER};
use vvram_tests::figures::{self, Figures};
use vvram_tests::fixture::{cpu_reads, patterns, placed, Fixture};
use vvram_tests::map::{PAGE, PAGE64};
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::rebind::Unbound;
use vvram_tests::vfio::Vfio;
use vvram_tests::{check, check_eq, check_ok, fragment, uapi, window, Outcome, SysError};

const MIB: u64 = 1 << 20;
/// Blocks of the large cases of a mapping.
const BLOCKS: u64 = 4096;
/// Numbers of attachments of a buffer, including the one that is measured.
const ATTACHES: [usize; 2] = [1, 1000];
/// Numbers of scattered blocks, to see how the costs grow.
const GROWTH: [u64; 5] = [1, 16, 256, BLOCKS, 65_536];
/// The large buffer of the large BAR.
const HUGE: u64 = 48 << 30;

/// Moves an object to system memory and back, and compares that with a copy between the same
/// memories.
///
/// A map by a static importer moves the object to system memory, and a map by a peer moves it back
/// to VRAM. The same calls on an object that need not move give the cost of everything but the
/// move.
fn moves(fixture: &Fixture, figures: &mut Figures) -> Outcome {
    const SIZE: u64 = 2 * MIB;
    const ROUNDS: u32 = 24;
    let object = fixture.drm.create_flags(SIZE, EITHER)?;
    let (pattern, _) = patterns();
    object.map()?.fill(pattern);
    let buffer = object.export()?;
    let mut costs = [(); 4].map(|()| Costs::default());
    clock::settle();
    for _ in 0..ROUNDS {
        let [out, stay_out, back, stay_back] = &mut costs;
        for (mode, from, to, moved, stayed) in [
            (
                Mode::Static,
                uapi::PLACEMENT_VRAM,
                uapi::PLACEMENT_SYSTEM,
                out,
                stay_out,
            ),
            (
                Mode::Dynamic,
                uapi::PLACEMENT_SYSTEM,
                uapi::PLACEMENT_VRAM,
                back,
                stay_back,
            ),
        ] {
            let peer = fixture.peer.reopen()?;
            peer.attach(&buffer, mode)?;
            placed(&object, from)?;
            moved.time(|| peer.map())?;
            placed(&object, to)?;
            peer.unmap()?;
            stayed.time(|| peer.map())?;
            placed(&object, to)?;
            peer.detach()?;
        }
    }
    let map = object.map()?;
    check_ok!(map.verify(pattern), "after the moves");
    let [out, stay_out, back, stay_back] = &costs;
    figures.add("move.bytes", SIZE);
    figures.costs("move.out", out);
    figures.costs("move.out.still", stay_out);
    figures.costs("move.back", back);
    figures.costs("move.back.still", stay_back);

    let other = fixture.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let system = other.map()?;
    placed(&object, uapi::PLACEMENT_VRAM)?;
    placed(&other, uapi::PLACEMENT_SYSTEM)?;
    let (mut out, mut back) = (Costs::default(), Costs::default());
    clock::settle();
    for _ in 0..ROUNDS {
        out.time(|| system.copy_from(&map));
        back.time(|| map.copy_from(&system));
    }
    check_ok!(system.verify(pattern), "after the copies");
    figures.costs("copy.out", &out);
    figures.costs("copy.back", &back);
    Ok(())
}

/// The cost of an export from its creation to its end, while `live` other exports exist.
fn cycles(fixture: &Fixture, live: usize, figures: &mut Figures) -> Outcome {
    const ROUNDS: usize = 512;
    let mut others = Vec::with_capacity(live);
    for _ in 0..live {
        let object = fixture.drm.create(PAGE64)?;
        let buffer = object.export()?;
        others.push((object, buffer));
    }
    let mut objects = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        objects.push(fixture.drm.create(PAGE64)?);
    }
    let peer = &fixture.peer;
    let life = |object: Gem<'_>| -> Result<(), SysError> {
        let buffer = object.export()?;
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        peer.unmap()?;
        peer.detach()?;
        drop(buffer);
        // The object keeps the dma-buf until its last handle is closed.
        object.close()
    };
    let mut costs = Costs::default();
    clock::settle();
    for object in objects {
        costs.time(|| life(object))?;
    }
    figures.costs(&format!("cycle.{live}"), &costs);
    Ok(())
}

/// The device reads a page of VRAM directly, or from system memory, to which the CPU copies it
/// first.
fn transfers(fixture: &Fixture, figures: &mut Figures) -> Outcome {
    const ROUNDS: u64 = 8;
    let in_vram = fixture.drm.create_flags(PAGE64, uapi::CREATE_VRAM)?;
    let in_system = fixture.drm.create_flags(PAGE64, uapi::CREATE_SYSTEM)?;
    let (vram, system) = (in_vram.map()?, in_system.map()?);
    let (direct, bounce) = (fixture.peer.reopen()?, fixture.peer.reopen()?);
    for (peer, object) in [(&direct, &in_vram), (&bounce, &in_system)] {
        peer.attach_and_map(&object.export()?, Mode::Dynamic)?;
    }
    fixture.check_only(&in_vram, Mode::Dynamic, false, true)?;
    placed(&in_system, uapi::PLACEMENT_SYSTEM)?;

    let (seed, _) = patterns();
    let mut page = vec![0u8; PAGE];
    let mut cpu = [(); 2].map(|()| Costs::default());
    let mut elapsed = [(); 2].map(|()| Costs::default());
    for round in 0..ROUNDS {
        let pattern = seed.derive(round);
        for (way, peer) in [&direct, &bounce].into_iter().enumerate() {
            vram.fill(pattern);
            clock::settle();
            let (busy, begin) = (clock::cpu(), clock::now());
            if way == 1 {
                system.copy_from(&vram);
            }
            peer.read(0, &mut page)?;
            elapsed[way].add(clock::now() - begin);
            cpu[way].add(clock::cpu() - busy);
            check_ok!(pattern.verify(&page, 0), "the peer read");
        }
    }
    cpu_reads(&vram, seed.derive(ROUNDS - 1), &[0])?;
    for (way, name) in ["direct", "bounce"].into_iter().enumerate() {
        figures.costs(&format!("transfer.{name}.cpu"), &cpu[way]);
        figures.costs(&format!("transfer.{name}.time"), &elapsed[way]);
    }
    let mut copy = Costs::default();
    for _ in 0..32 {
        copy.time(|| system.copy_from(&vram));
    }
    figures.costs("transfer.copy", &copy);
    Ok(())
}

/// Times map and unmap of one buffer.
fn mapping(peer: &Peer, buffer: &DmaBuf, name: &str, figures: &mut Figures) -> Outcome {
    let peer = peer.reopen()?;
    let size = peer.attach(buffer, Mode::Dynamic)?;
    peer.map()?;
    let entries = peer.table()?.len() as u64;
    peer.unmap()?;
    peer.detach()?;
    // The exporter has cached the ranges for earlier attachments, but this attachment is new. The
    // least of several rounds is the one in which no allocator, such as that of IOVAs, had to be
    // refilled.
    let rounds = if entries > BLOCKS { 4 } else { 16 };
    let mut first = u64::MAX;
    for _ in 0..rounds {
        peer.attach(buffer, Mode::Dynamic)?;
        clock::settle();
        let cost = window::of(|| peer.measure(1))?;
        first = first.min(cost.least - cost.clock);
        peer.detach()?;
    }
    figures.windows(&format!("first.{name}"), rounds);
    peer.attach(buffer, Mode::Dynamic)?;
    // Warm up, then measure the least of many rounds. Few rounds are enough for long mappings.
    peer.measure(4)?;
    clock::settle();
    let cost = peer.measure(if entries > BLOCKS { 8 } else { 50 })?;
    figures.add(&format!("map.{name}"), cost.least - cost.clock);
    figures.add(&format!("first.{name}"), first);
    figures.add(&format!("map.{name}.entries"), entries);
    figures.add(&format!("map.{name}.bytes"), size);
    Ok(())
}

/// Times all calls for one mapping after the export: attach, map, unmap, detach, close.
fn whole(
    peer: &Peer,
    export: impl FnOnce() -> Result<DmaBuf, SysError>,
    costs: &mut Costs,
) -> Outcome {
    let peer = peer.reopen()?;
    clock::settle();
    window::of(|| {
        costs.time(|| -> Result<(), SysError> {
            let buffer = export()?;
            peer.attach_and_map(&buffer, Mode::Dynamic)?;
            peer.unmap()?;
            peer.detach()
        })
    })?;
    Ok(())
}

/// Times an attach to a buffer, which then has `counts` attachments.
///
/// The kernel has cached the route of the importer at an earlier attachment.
fn attaches(
    peer: &Peer,
    buffer: &DmaBuf,
    counts: &[usize],
    name: &str,
    figures: &mut Figures,
) -> Outcome {
    const ROUNDS: usize = 16;
    let mut others = Vec::new();
    for &count in counts {
        while others.len() + 1 < count {
            let other = peer.reopen()?;
            other.attach(buffer, Mode::Dynamic)?;
            others.push(other);
        }
        let last = peer.reopen()?;
        let mut costs = Costs::default();
        clock::settle();
        for _ in 0..ROUNDS {
            window::of(|| costs.time(|| last.attach(buffer, Mode::Dynamic)))?;
            last.detach()?;
        }
        figures.windows(&format!("attach.{count}.{name}"), ROUNDS);
        figures.costs(&format!("attach.{count}.{name}"), &costs);
    }
    Ok(())
}

/// Map and unmap of a page of this project's exporter, and attaches to it.
fn our_page(fixture: &Fixture, counts: &[usize], figures: &mut Figures) -> Outcome {
    let object = fixture.drm.create_flags(PAGE64, uapi::CREATE_VRAM)?;
    let buffer = object.export()?;
    mapping(&fixture.peer, &buffer, "4k.ours", figures)?;
    attaches(&fixture.peer, &buffer, counts, "ours", figures)
}

/// Map and unmap of this project's exporter.
fn ours(fixture: &Fixture, figures: &mut Figures) -> Outcome {
    let (drm, peer) = (&fixture.drm, &fixture.peer);
    our_page(fixture, &ATTACHES, figures)?;
    for (name, size) in [("256m", 256 * MIB), ("adjacent", BLOCKS * PAGE64)] {
        let object = drm.create_flags(size, uapi::CREATE_VRAM)?;
        let buffer = object.export()?;
        mapping(peer, &buffer, &format!("{name}.ours"), figures)?;
    }
    let ragged = fragment::create(drm, &fixture.bar, BLOCKS * PAGE64, BLOCKS as usize)?;
    check_eq!(
        ragged.layout.ranges().len() as u64,
        BLOCKS,
        "ranges of the scattered object"
    );
    let buffer = ragged.object.export()?;
    mapping(peer, &buffer, "scattered.ours", figures)
}

/// Scattered blocks of a BAR, as offset and length.
fn scattered(count: u64) -> Vec<(u64, u64)> {
    (0..count).map(|i| (2 * i * PAGE64, PAGE64)).collect()
}

/// How the costs of an exporter of ranges grow with their number.
fn growth<R>(
    peer: &Peer,
    counts: &[u64],
    request: impl Fn(&[(u64, u64)]) -> R,
    export: impl Fn(&mut R) -> Result<DmaBuf, SysError>,
    name: &str,
    figures: &mut Figures,
) -> Outcome {
    for &count in counts {
        // With few blocks the state of the allocators has a large effect, so more rounds are
        // needed.
        let rounds = if count > BLOCKS { 4 } else { 16 };
        let mut request = request(&scattered(count));
        let mut costs = Costs::default();
        for _ in 0..rounds {
            whole(peer, || export(&mut request), &mut costs)?;
        }
        figures.windows(&format!("whole.{count}.{name}"), rounds);
        figures.add(&format!("whole.{count}.{name}"), costs.least());
        let buffer = export(&mut request)?;
        mapping(peer, &buffer, &format!("{count}.{name}"), figures)?;
    }
    Ok(())
}

/// The same as [`our_page`] for the exporter of vfio-pci, with the same importer.
fn their_page(peer: &Peer, vfio: &Vfio, counts: &[usize], figures: &mut Figures) -> Outcome {
    let buffer = vfio.export(2, &[(0, PAGE64)])?;
    mapping(peer, &buffer, "4k.vfio", figures)?;
    attaches(peer, &buffer, counts, "vfio", figures)
}

/// The same as [`ours`] for the exporter of vfio-pci.
fn theirs(peer: &Peer, vfio: &Vfio, figures: &mut Figures) -> Outcome {
    let adjacent: Vec<_> = (0..BLOCKS).map(|i| (i * PAGE64, PAGE64)).collect();
    their_page(peer, vfio, &ATTACHES, figures)?;
    for (name, ranges) in [
        ("256m", vec![(0, 256 * MIB)]),
        ("adjacent", adjacent),
        ("scattered", scattered(BLOCKS)),
    ] {
        let buffer = vfio.export(2, &ranges)?;
        mapping(peer, &buffer, &format!("{name}.vfio"), figures)?;
    }
    their_growth(peer, vfio, &GROWTH, figures)
}

/// How the costs of bar_export grow.
fn our_growth(peer: &Peer, counts: &[u64], figures: &mut Figures) -> Outcome {
    let exporter = Exporter::new()?;
    let bar_file = exporter.open()?;
    growth(
        peer,
        counts,
        bar_export::request,
        |request| bar_export::export_request(&bar_file, MEMORY, request),
        "ours",
        figures,
    )
}

/// How the costs of the exporter of vfio-pci grow.
fn their_growth(peer: &Peer, vfio: &Vfio, counts: &[u64], figures: &mut Figures) -> Outcome {
    growth(
        peer,
        counts,
        |ranges| Vfio::request(2, ranges),
        |request| vfio.export_request(request),
        "vfio",
        figures,
    )
}

/// One buffer that is most of a large BAR. It is not accessed, because only a part of the BAR is
/// backed by memory.
fn huge(figures: &mut Figures) -> Outcome {
    let peer = Peer::open()?;
    {
        let exporter = Exporter::new()?;
        let bar_file = exporter.open()?;
        let buffer = export(&bar_file, MEMORY, 0, HUGE)?;
        mapping(&peer, &buffer, "huge.ours", figures)?;
    }
    let gpu = PciDevice::vvram()?;
    let unbound = Unbound::new(&gpu)?;
    let vfio = Vfio::open(&gpu)?;
    let buffer = vfio.export(2, &[(0, HUGE)])?;
    mapping(&peer, &buffer, "huge.vfio", figures)?;
    // The guest ends here, so the device need not be bound to its driver again.
    std::mem::forget((unbound, vfio));
    Ok(())
}

fn allow_files(count: u64) -> Outcome {
    let limit = libc::rlimit {
        rlim_cur: count,
        rlim_max: count,
    };
    // SAFETY: the pointer is valid for a read of a rlimit.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    check!(
        result == 0,
        "{}",
        SysError::last(format!("setrlimit({count})"))
    );
    Ok(())
}

fn bench(figures: &mut Figures) -> Outcome {
    allow_files(20_000)?;
    let fixture = Fixture::open()?;
    let free = fixture.drm.vram_free()?;
    clock::stay_in_memory()?;
    ours(&fixture, figures)?;
    moves(&fixture, figures)?;
    cycles(&fixture, 10, figures)?;
    cycles(&fixture, 10_000, figures)?;
    transfers(&fixture, figures)?;
    fixture.drm.await_vram_free(free)?;
    let Fixture {
        drm,
        bar,
        peer,
        gpu,
        ..
    } = fixture;
    drop((drm, bar));
    our_growth(&peer, &GROWTH, figures)?;
    let unbound = Unbound::new(&gpu)?;
    let vfio = Vfio::open(&gpu)?;
    theirs(&peer, &vfio, figures)?;
    // The guest ends here, so the device need not be bound to its driver again.
    std::mem::forget((unbound, vfio));
    Ok(())
}

/// The work for a profile: the smallest mapping of both exporters, which is nearly all overhead.
fn profile(figures: &mut Figures) -> Outcome {
    let fixture = Fixture::open()?;
    clock::stay_in_memory()?;
    our_page(&fixture, &ATTACHES[..1], figures)?;
    let Fixture {
        drm,
        bar,
        peer,
        gpu,
        ..
    } = fixture;
    drop((drm, bar));
    our_growth(&peer, &GROWTH[..1], figures)?;
    let unbound = Unbound::new(&gpu)?;
    let vfio = Vfio::open(&gpu)?;
    their_page(&peer, &vfio, &ATTACHES[..1], figures)?;
    their_growth(&peer, &vfio, &GROWTH[..1], figures)?;
    // The guest ends here, so the device need not be bound to its driver again.
    std::mem::forget((unbound, vfio));
    Ok(())
}

fn main() -> ExitCode {
    figures::main(&[("", bench), ("--huge", huge), ("--profile", profile)])
}

// SPDX-License-Identifier: GPL-2.0

//! Mappings of an object and of its dma-buf show the same memory, wherever the object moves.

use vvram_tests::debugfs::DebugFs;
use vvram_tests::drm::EITHER;
use vvram_tests::fixture::{cpu_reads, patterns, peer_reads, peer_writes, placed, Fixture};
use vvram_tests::map::PAGE64;
use vvram_tests::peer::Mode;
use vvram_tests::{check_eq, check_ok, igt_main, uapi, Outcome};

/// The placement to which an importer of a class moves an object.
const MOVES: [(Mode, u32, &str); 4] = [
    (Mode::NoP2p, uapi::PLACEMENT_SYSTEM, "in system memory"),
    (Mode::Dynamic, uapi::PLACEMENT_VRAM, "back in VRAM"),
    (
        Mode::NoP2p,
        uapi::PLACEMENT_SYSTEM,
        "in system memory again",
    ),
    (Mode::Dynamic, uapi::PLACEMENT_VRAM, "in VRAM again"),
];

fn moved() -> Outcome {
    let fixture = Fixture::with_route()?;
    let object = fixture.drm.create_flags(8 * PAGE64, EITHER)?;
    let buffer = object.export()?;
    let views = [object.map()?, buffer.map()?];
    let (a, b) = patterns();

    placed(&object, uapi::PLACEMENT_VRAM)?;
    views[1].fill(a);
    for (round, (mode, place, told)) in MOVES.into_iter().enumerate() {
        fixture.peer.attach(&buffer, mode)?;
        fixture.peer.map()?;
        fixture.peer.detach()?;
        placed(&object, place)?;

        // Each mapping shows the old bytes, and then those that are written through the other one.
        let (old, new) = if round % 2 == 0 { (a, b) } else { (b, a) };
        for (name, view) in ["the object", "the dma-buf"].iter().zip(&views) {
            check_ok!(view.verify(old), "{told}, mapping of {name}");
        }
        views[round % 2].fill(new);
        for (name, view) in ["the object", "the dma-buf"].iter().zip(&views) {
            check_ok!(view.verify(new), "{told}, mapping of {name} after a write");
        }
    }
    Ok(())
}

/// Over the limit of pinned VRAM the kernel makes a vmap of an object in system memory.
fn over_quota() -> Outcome {
    let fixture = Fixture::open()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let size = fixture.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let limit = fixture.drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?;
    let (a, b) = patterns();
    let object = fixture.drm.create_flags(8 * PAGE64, EITHER)?;
    let (map, buffer) = (object.map()?, object.export()?);

    map.fill(a);
    placed(&object, uapi::PLACEMENT_VRAM)?;
    // The limit may be all of VRAM, and it may be 0.
    debugfs.write("pin_limit", &size.to_string())?;
    check_eq!(
        fixture.drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?,
        size,
        "the largest limit"
    );
    debugfs.write("pin_limit", "0")?;
    let result = (|| {
        fixture.peer.attach(&buffer, Mode::Cpu)?;
        fixture.peer.map()?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        peer_reads(&fixture.peer, a, &[0, 7])?;
        peer_writes(&fixture.peer, b, &[0])?;
        cpu_reads(&map, b, &[0])?;
        cpu_reads(&map, a, &[1, 7])?;
        Ok(fixture.peer.detach()?)
    })();
    debugfs.write("pin_limit", &limit.to_string())?;
    result
}

igt_main! {
    "moved", "mappings of the object and of the dma-buf follow a move", moved;
    "over-quota", "the kernel's own, when the limit of pinned VRAM is reached", over_quota;
}

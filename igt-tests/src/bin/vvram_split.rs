// SPDX-License-Identifier: GPL-2.0

//! An object that is partly in the part of VRAM that the BAR shows.

use vvram_tests::drm::{Gem, EITHER};
use vvram_tests::fixture::{placed, works, Fixture};
use vvram_tests::map::PAGE;
use vvram_tests::peer::Mode;
use vvram_tests::rebind::reload;
use vvram_tests::{check, check_eq, fail, igt_main, uapi, Outcome};

const VISIBLE: u64 = 1 << 20;
const PIECE: u64 = 64 << 10;
/// The tag in the first word of each piece, which also has the number of the piece.
const TAG: u64 = 0x7a67_5f6f_6600_0000;

/// For a peer all of the object moves to where the peer can reach it, and not only a part.
fn moved() -> Outcome {
    let fixture = Fixture::with_route()?;
    let drm = &fixture.drm;
    let mut pieces: Vec<Option<Gem<'_>>> = Vec::new();
    while drm.vram_free()? >= PIECE {
        pieces.push(Some(drm.create_flags(PIECE, EITHER)?));
    }

    // The engine writes the tags, because an access by the CPU would move the pieces to the visible
    // part.
    let source = drm.create_flags(PAGE as u64, uapi::CREATE_SYSTEM)?;
    let map = source.map()?;
    for (number, piece) in pieces.iter().enumerate() {
        let Some(piece) = piece else { continue };
        map.write(0, TAG + number as u64);
        drm.copy((&source, 0), (piece, 0), PAGE as u64)?.finish()?;
    }
    let at = |from: u64, to: u64| {
        (from..to).step_by(PIECE as usize).find_map(|offset| {
            let number = fixture.bar.word(offset).checked_sub(TAG)?;
            ((number as usize) < pieces.len()).then_some(number as usize)
        })
    };
    let half = fixture.bar.len() / 2;
    let (Some(inside), Some(outside)) = (at(2 * PIECE, VISIBLE), at(half, fixture.bar.len()))
    else {
        fail!("{} pieces, but none inside or none outside", pieces.len());
    };

    // Exactly the VRAM of these two pieces is free.
    for number in [inside, outside] {
        pieces[number] = None;
    }
    drm.await_vram_free(2 * PIECE)?;
    let split = drm.create_flags(2 * PIECE, EITHER)?;
    placed(&split, uapi::PLACEMENT_VRAM)?;
    check_eq!(drm.vram_free()?, 0, "free VRAM");

    fixture
        .peer
        .attach_and_map(&split.export()?, Mode::Dynamic)?;
    placed(&split, uapi::PLACEMENT_VRAM)?;
    if fixture.translated() {
        // The IOVAs do not show the location in VRAM.
        return Ok(());
    }
    let start = fixture.bar.start();
    for segment in fixture.peer.table()? {
        let (first, end) = (segment.dma_address, segment.dma_address + segment.length);
        check!(
            start <= first && end <= start + VISIBLE,
            "the peer has {first:#x} to {end:#x}, visible are {start:#x} to {:#x}",
            start + VISIBLE
        );
    }
    Ok(())
}

fn split() -> Outcome {
    reload("vvram", &[&format!("visible_kib={}", VISIBLE >> 10)])?;
    let outcome = moved();
    reload("vvram", &[])?;
    outcome?;
    works()
}

igt_main! {
    "moved", "a peer gets all of it where it can reach it", split;
}

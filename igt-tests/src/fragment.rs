// SPDX-License-Identifier: GPL-2.0

//! Fragments VRAM, so that the next object has several ranges.

use crate::drm::{Drm, Gem};
use crate::map::PAGE;
use crate::pci::{Bar, Layout};
use crate::{Stop, SysError};

/// An object over several non-adjacent ranges of VRAM.
#[derive(Debug)]
pub struct Fragmented<'a> {
    /// The object.
    pub object: Gem<'a>,
    /// The location of its pages.
    pub layout: Layout,
}

fn fill<'a>(drm: &'a Drm, piece: u64, kept: &mut Vec<Gem<'a>>) -> Result<(), SysError> {
    loop {
        match drm.create(piece) {
            Ok(object) => kept.push(object),
            Err(error) if error.errno == libc::ENOSPC => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Creates an object of `size` bytes over at least `ranges` non-adjacent
/// ranges.
///
/// VRAM is filled with pieces of one size, every other one is freed, and the object takes the
/// holes. The number of ranges is checked through the BAR.
///
/// # Errors
///
/// Fails the subtest if VRAM is too small or the object has fewer ranges.
#[track_caller]
pub fn create<'a>(
    drm: &'a Drm,
    bar: &Bar,
    size: u64,
    ranges: usize,
) -> Result<Fragmented<'a>, Stop> {
    let page = PAGE as u64;
    let size = size.div_ceil(page) * page;
    let piece = (size / ranges as u64).max(page);
    let piece = 1u64 << piece.ilog2();
    let holes = size.div_ceil(piece);

    // Most of VRAM goes to one object, so that few small ones are needed.
    let mut kept = Vec::new();
    let free = drm.vram_free()?;
    let ragged = 2 * holes * piece + 2 * piece;
    check!(
        free >= ragged,
        "{free} bytes of VRAM are free, {ragged} are needed to make it ragged"
    );
    let bulk = (free - ragged) / piece * piece;
    if bulk > 0 {
        kept.push(drm.create(bulk)?);
    }
    let first = kept.len();
    fill(drm, piece, &mut kept)?;
    let mut filler = Vec::new();
    fill(drm, page, &mut filler)?;

    let pieces = kept.split_off(first);
    let mut freed = 0;
    for (index, object) in pieces.into_iter().enumerate() {
        if index % 2 == 0 && freed < holes {
            freed += 1;
            object.close()?;
        } else {
            kept.push(object);
        }
    }
    let object = drm.create(size)?;
    let map = object.map()?;
    let layout = bar.locate(&map)?;
    let seen = layout.ranges().len();
    check!(
        seen >= ranges,
        "expected an object over {ranges} ranges or more, it has {seen}: {:x?} ({freed} holes of \
         {piece:#x} bytes were made)",
        layout.ranges()
    );
    Ok(Fragmented { object, layout })
}

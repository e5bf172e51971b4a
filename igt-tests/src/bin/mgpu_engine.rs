// SPDX-License-Identifier: GPL-2.0

//! The copy engine of the modelled GPU moves, clears and copies, and every byte is checked.

use vvram_tests::debugfs::Counter;
use vvram_tests::drm::EITHER;
use vvram_tests::fixture::{patterns, placed};
use vvram_tests::map::{PAGE, PAGE64};
use vvram_tests::mgpu::{fragment, holds, take_all, Mgpu};
use vvram_tests::misc;
use vvram_tests::rdma::Model;
use vvram_tests::uapi::{VvramGemCopy, VvramGemCreate};
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, uapi, Outcome, SysError};

const VRAM: u32 = uapi::CREATE_VRAM;
const SYSTEM: u32 = uapi::CREATE_SYSTEM;
const MIB: u64 = 1 << 20;

/// New objects read as zeroes, whatever their memory had before.
fn zero() -> Outcome {
    let gpu = Mgpu::first()?;
    let (a, _) = patterns();
    let free = gpu.drm.vram_free()?;
    // So few that all of them have a window.
    let (count, size) = (6, MIB);
    for round in 0..2 {
        let objects: Vec<_> = (0..count)
            .map(|_| gpu.drm.create(size))
            .collect::<Result<_, _>>()?;
        for (index, object) in objects.iter().enumerate() {
            let map = object.map()?;
            check_ok!(map.verify_value(0), "object {index} in round {round}");
            map.fill(a.derive(index as u64));
            placed(object, uapi::PLACEMENT_VRAM)?;
        }
        drop(objects);
        gpu.drm.await_vram_free(free)?;
    }
    gpu.clean()
}

/// Copies of words, between any two kinds of memory.
fn copies() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let size = 4 * PAGE64;
    // In words: the offset in the source, the offset in the destination, and the size.
    let parts = [
        (0, 0, size / 8),
        (1, 0, 511),
        (0, 3, 1),
        (511, 513, 1024),
        (700, 3, 1000),
    ];
    let mut round = 0;
    for from_place in [VRAM, SYSTEM, EITHER] {
        for to_place in [VRAM, SYSTEM] {
            let from = gpu.drm.create_flags(size, from_place)?;
            let to = gpu.drm.create_flags(size, to_place)?;
            let (src, dst) = (from.map()?, to.map()?);
            for (at, goes_to, words) in parts {
                round += 1;
                let (x, y) = (x.derive(round), y.derive(round));
                src.fill(x);
                dst.fill(y);
                gpu.drm
                    .copy((&from, 8 * at), (&to, 8 * goes_to), 8 * words)?
                    .finish()?;
                let moved = Model::new(y).with_copy(x, 8 * at, 8 * goes_to, 8 * words);
                check_ok!(
                    moved.verify(&dst),
                    "{from_place} to {to_place}, {words} words from {at} to {goes_to}"
                );
                check_ok!(src.verify(x), "the source");
            }
            for (object, place) in [(&from, from_place), (&to, to_place)] {
                let want = if place == SYSTEM {
                    uapi::PLACEMENT_SYSTEM
                } else {
                    uapi::PLACEMENT_VRAM
                };
                placed(object, want)?;
            }
        }
    }
    let object = gpu.drm.create(size)?;
    expect_errno(
        "parts that overlap",
        gpu.drm.copy((&object, 0), (&object, 8), 16),
        libc::EINVAL,
    )?;
    gpu.clean()
}

/// Copies of single bytes, at unaligned offsets.
fn bytes() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let (from, to) = (
        gpu.drm.create(2 * PAGE64)?,
        gpu.drm.create_flags(2 * PAGE64, SYSTEM)?,
    );
    let (src, dst) = (from.map()?, to.map()?);
    src.fill(x);
    for (at, goes_to, len) in [(1u64, 3u64, 5u64), (4093, 4095, 7), (8191, 0, 1)] {
        dst.fill(y);
        gpu.drm.copy((&from, at), (&to, goes_to), len)?.finish()?;
        for byte in 0..2 * PAGE64 {
            let want = if (goes_to..goes_to + len).contains(&byte) {
                src.byte((byte - goes_to + at) as usize)
            } else {
                (y.word(byte / 8) >> (8 * (byte % 8))) as u8
            };
            check_eq!(
                dst.byte(byte as usize),
                want,
                "byte {byte} of {len} to {goes_to}"
            );
        }
    }
    gpu.clean()
}

/// A job that is too long for one submission, because of its number of pieces, or of bytes.
fn long() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let pages = 700;
    let kept = fragment(&gpu, pages)?;
    let size = pages as u64 * PAGE64;
    let (from, to) = (gpu.drm.create(size)?, gpu.drm.create_flags(size, SYSTEM)?);
    from.map()?.fill(x);
    to.map()?.fill(y);
    gpu.drm.copy((&from, 0), (&to, 0), size)?.finish()?;
    holds(&to, x, "of VRAM in pieces")?;
    to.map()?.fill(y);
    gpu.drm
        .copy((&to, 8), (&from, PAGE64 + 16), size - 2 * PAGE64)?
        .finish()?;
    let map = from.map()?;
    let moved = Model::new(x).with_copy(y, 8, PAGE64 + 16, size - 2 * PAGE64);
    check_ok!(moved.verify(&map), "VRAM in pieces");
    drop((map, from, to, kept));

    // More than 32 MiB, between objects in system memory, which the CPU maps without a window.
    let size = 33 * MIB;
    let from = gpu.drm.create_flags(size, SYSTEM)?;
    let to = gpu.drm.create_flags(size, SYSTEM)?;
    from.map()?.fill(x);
    gpu.drm.copy((&from, 0), (&to, 0), size)?.finish()?;
    holds(&to, x, "of 33 MiB")?;
    gpu.clean()
}

/// Objects are evicted for others, and keep their bytes; closed objects leave no DMA mapping
/// behind.
fn evicted() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let (before, mapped) = (
        gpu.drm.counter(Counter::Moves)?,
        gpu.drm.counter(Counter::DmaMapped)?,
    );
    let sizes = [PAGE64, 3 * PAGE64, MIB, 2 * MIB + PAGE64];
    let objects: Vec<_> = sizes
        .iter()
        .map(|size| gpu.drm.create_flags(*size, EITHER))
        .collect::<Result<_, _>>()?;
    for (index, object) in (0..).zip(&objects) {
        object.map()?.fill(x.derive(index));
        placed(object, uapi::PLACEMENT_VRAM)?;
    }
    let taken = take_all(&gpu)?;
    for (index, object) in (0..).zip(&objects) {
        placed(object, uapi::PLACEMENT_SYSTEM)?;
        holds(object, x.derive(index), "after the eviction")?;
    }
    check!(
        gpu.drm.counter(Counter::Moves)? >= before + sizes.len() as u64,
        "nothing was counted as moved"
    );
    check!(
        gpu.drm.counter(Counter::DmaMapped)? >= mapped + sizes.iter().sum::<u64>(),
        "what is in system memory is not mapped for the engine"
    );
    drop(taken);
    // The engine reads the objects where they are.
    let copy = gpu.drm.create(2 * MIB + PAGE64)?;
    for (index, object) in (0..).zip(&objects) {
        let size = object.size();
        gpu.drm.copy((object, 0), (&copy, 0), size)?.finish()?;
        check_ok!(
            copy.map()?
                .verify_pages(x.derive(index), 0, size as usize / PAGE),
            "copied from system memory"
        );
    }
    drop(objects);
    let unmapped = misc::poll(std::time::Duration::from_secs(10), || {
        (gpu.drm.counter(Counter::DmaMapped).ok()? == mapped).then_some(())
    });
    check!(
        unmapped.is_some(),
        "system memory is left mapped for the engine"
    );
    check_eq!(gpu.drm.counter(Counter::CopyResets)?, 0, "resets");
    gpu.clean()
}

/// Unknown values are refused.
fn bad_input() -> Outcome {
    let gpu = Mgpu::first()?;
    let drm = &gpu.drm;
    let refused =
        |what: &str, result: Result<(), SysError>| expect_errno(what, result, libc::EINVAL);
    let system = VvramGemCreate {
        size: PAGE64,
        placements: uapi::CREATE_SYSTEM,
        flags: 1,
        ..Default::default()
    };
    refused(
        "VRAM or nothing, in system memory",
        drm.create_raw(&mut { system }),
    )?;
    let object = drm.create(PAGE64)?;
    for (size, dst_offset) in [(8, PAGE64 - 4), (8, 4)] {
        let argument = VvramGemCopy {
            src: object.handle(),
            dst: object.handle(),
            dst_offset,
            size,
            ..Default::default()
        };
        refused("GEM_COPY", drm.copy_raw(&argument))?;
    }
    gpu.clean()
}

igt_main! {
    "zero", "new objects are zero", zero;
    "copies", "words, between all kinds of memory", copies;
    "bytes", "bytes at any place", bytes;
    "long", "jobs of several submissions", long;
    "bad-input", "parts outside of an object or that overlap", bad_input;
    "evicted", "objects that leave VRAM", evicted;
}

// SPDX-License-Identifier: GPL-2.0

//! A modelled GPU with much more VRAM than memory or aperture.

use vvram_tests::drm::Gem;
use vvram_tests::fixture::{mapped_by_peer, patterns, placed};
use vvram_tests::map::PAGE;
use vvram_tests::mgpu::{holds, Mgpu, SCRATCH};
use vvram_tests::misc::meminfo;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, uapi, Outcome, SysError};

const GIB: u64 = 1 << 30;
/// The size of each copy.
const SIZE: u64 = 16 * PAGE as u64;

/// Allocates all of VRAM but `rest` bytes, in objects that are as large as possible.
fn take(gpu: &Mgpu, rest: u64) -> Result<Vec<Gem<'_>>, SysError> {
    let mut taken = Vec::new();
    let mut size = 8 * GIB;
    while size > rest {
        match gpu.drm.create(size) {
            Ok(object) => taken.push(object),
            Err(error) if error.errno == libc::ENOSPC => size /= 2,
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// All of VRAM can be used, also at offsets of more than 32 bits: patterns at both ends of each
/// object are found again after all objects were written to.
fn high() -> Outcome {
    let gpu = Mgpu::first()?;
    check_eq!(
        gpu.drm.getparam(uapi::PARAM_VRAM_SIZE)?,
        64 * GIB,
        "bytes of VRAM"
    );
    // A struct page has 64 bytes. Those of all VRAM would take more than all memory.
    let Some(memory) = meminfo("MemTotal") else {
        fail!("/proc/meminfo has no MemTotal");
    };
    check!(
        64 * GIB / PAGE as u64 * 64 >= memory << 10,
        "{memory} kB of memory"
    );
    check_eq!(gpu.aperture()? + SCRATCH, GIB / 4, "bytes of the aperture");
    let (a, b) = patterns();
    let system = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let map = system.map()?;
    let small = gpu.drm.create(SIZE)?;
    small.map()?.fill(b);

    let taken = take(&gpu, 32 << 20)?;
    let ends: Vec<_> = taken
        .iter()
        .flat_map(|object| [(object, 0), (object, object.size() - SIZE)])
        .zip(1..)
        .collect();
    for (place, seed) in &ends {
        map.fill(a.derive(*seed));
        gpu.drm.copy((&system, 0), *place, SIZE)?.finish()?;
    }
    for (place, seed) in &ends {
        map.set(0);
        gpu.drm.copy(*place, (&system, 0), SIZE)?.finish()?;
        holds(&system, a.derive(*seed), "what is far away")?;
    }
    holds(&small, b, "what was there before")?;

    // An object of the size that is left fits into the aperture. A larger one gets no window, and
    // may not be in system memory.
    let last = gpu.drm.create(SIZE)?;
    map.fill(a);
    gpu.drm.copy((&system, 0), (&last, 0), SIZE)?.finish()?;
    holds(&last, a, "through a window")?;
    let buffer = last.export()?;
    let _peer = mapped_by_peer(&buffer, a, &[0, 15])?;
    let buffer = taken[0].export()?;
    expect_errno(
        "an attach to 8 GiB",
        Peer::open()?.attach(&buffer, Mode::Dynamic),
        libc::EOPNOTSUPP,
    )?;
    let list = taken[0].records()?.0;
    check!(
        list.len() == 1
            && list[0].path == uapi::PATH_REFUSED
            && list[0].reason == uapi::REASON_OUTSIDE_BAR,
        "{list:?}"
    );
    placed(&taken[0], uapi::PLACEMENT_VRAM)?;
    gpu.clean()
}

igt_main! {
    "high", "copies and windows at high offsets", high;
}

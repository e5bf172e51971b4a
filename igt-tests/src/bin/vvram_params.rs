// SPDX-License-Identifier: GPL-2.0

//! DRM_IOCTL_VVRAM_GETPARAM, and what it does not tell.

use vvram_tests::drm::Drm;
use vvram_tests::map::PAGE;
use vvram_tests::pci::PciDevice;
use vvram_tests::{check, check_eq, expect_errno, igt_main, uapi, Outcome, SysError};

fn sizes() -> Outcome {
    let drm = Drm::open()?;
    let (_, bar) = PciDevice::vvram()?.bar(2)?;
    let all = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let visible = drm.getparam(uapi::PARAM_VRAM_CPU_VISIBLE_SIZE)?;
    let free = drm.vram_free()?;
    let page = drm.getparam(uapi::PARAM_PAGE_SIZE)?;
    check_eq!(page, PAGE as u64, "PAGE_SIZE");
    check!(all > 0, "there is no VRAM");
    check!(
        all.is_multiple_of(page) && visible.is_multiple_of(page) && free.is_multiple_of(page),
        "not whole pages: size {all:#x}, CPU visible {visible:#x}, free {free:#x}"
    );
    check!(
        visible <= all && visible <= bar,
        "CPU visible {visible:#x} is more than VRAM {all:#x} or BAR 2 {bar:#x}"
    );
    check!(free <= all, "free {free:#x} is more than VRAM {all:#x}");
    check!(free > 0, "no VRAM is free on an idle device");
    Ok(())
}

/// The limits are those that the tests know.
fn limits() -> Outcome {
    let drm = Drm::open()?;
    for (param, limit) in [
        (uapi::PARAM_SYNC_MAX, uapi::SYNC_MAX as u64),
        (uapi::PARAM_COPIES_MAX, uapi::COPIES_MAX.into()),
        (uapi::PARAM_VM_SIZE, uapi::VM_SIZE),
    ] {
        check_eq!(drm.getparam(param)?, limit, "parameter {param}");
    }
    Ok(())
}

fn free_follows() -> Outcome {
    let drm = Drm::open()?;
    let before = drm.vram_free()?;
    let object = drm.create(3 * PAGE as u64)?;
    drm.await_vram_free(before - 3 * PAGE as u64)?;
    object.close()?;
    drm.await_vram_free(before)?;
    Ok(())
}

fn both_nodes() -> Outcome {
    let (render, card) = (Drm::open()?, Drm::open_card()?);
    for param in 0..uapi::PARAMS {
        check_eq!(
            card.getparam(param)?,
            render.getparam(param)?,
            "parameter {param} of the card node against the render node"
        );
    }
    Ok(())
}

/// What all clients use together is in debugfs only, so no parameter follows what others do.
fn others() -> Outcome {
    let (mine, other) = (Drm::open()?, Drm::open()?);
    let all = || -> Result<Vec<u64>, SysError> {
        (0..uapi::PARAMS)
            .map(|param| mine.getparam(param))
            .collect()
    };
    let (before, free) = (all()?, mine.vram_free()?);
    let object = other.create(3 * PAGE as u64)?;
    mine.await_vram_free(free - object.size())?;
    check_eq!(all()?, before, "the parameters with another client");
    for param in uapi::PARAMS..64 {
        let unknown = mine.getparam(param);
        expect_errno(&format!("parameter {param}"), unknown, libc::EINVAL)?;
    }
    Ok(())
}

igt_main! {
    "sizes", "VRAM, CPU-visible VRAM, free VRAM and pages make sense against BAR 2", sizes;
    "limits", "what a call and a file may have", limits;
    "free-follows", "free VRAM falls and rises with an object, by its size", free_follows;
    "both-nodes", "the card node and the render node agree", both_nodes;
    "others", "no parameter tells what other clients use", others;
}

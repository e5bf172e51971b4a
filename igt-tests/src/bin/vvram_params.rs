// SPDX-License-Identifier: GPL-2.0

//! DRM_IOCTL_VVRAM_GETPARAM.

use vvram_tests::drm::{ioctl_raw, Drm};
use vvram_tests::map::PAGE;
use vvram_tests::pci::PciDevice;
use vvram_tests::uapi::{self, VvramGetparam};
use vvram_tests::{check, check_eq, expect_errno, igt_main, Outcome};

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
    for param in 0..11 {
        check_eq!(
            card.getparam(param)?,
            render.getparam(param)?,
            "parameter {param} of the card node against the render node"
        );
    }
    Ok(())
}

fn unknown_param() -> Outcome {
    let drm = Drm::open()?;
    for param in [11, 0x8000_0000, u32::MAX] {
        expect_errno(
            &format!("GETPARAM {param:#x}"),
            drm.getparam(param),
            libc::EINVAL,
        )?;
    }
    Ok(())
}

fn nonzero_pad() -> Outcome {
    let drm = Drm::open()?;
    for bit in 0..32 {
        let mut argument = VvramGetparam {
            param: uapi::PARAM_VRAM_SIZE,
            pad: 1 << bit,
            value: 0,
        };
        let result = drm.getparam_raw(&mut argument);
        expect_errno("GETPARAM with a nonzero pad", result, libc::EINVAL)?;
    }
    Ok(())
}

fn nonzero_value() -> Outcome {
    let drm = Drm::open()?;
    for value in [1, 1 << 63, u64::MAX] {
        let mut argument = VvramGetparam {
            param: uapi::PARAM_VRAM_SIZE,
            pad: 0,
            value,
        };
        let result = drm.getparam_raw(&mut argument);
        expect_errno("GETPARAM with a nonzero value", result, libc::EINVAL)?;
    }
    Ok(())
}

fn bad_pointer() -> Outcome {
    let drm = Drm::open()?;
    for address in [0, 8, 0xffff_8000_0000_0000, u64::MAX - 7] {
        // SAFETY: nothing is mapped at these addresses.
        let result = unsafe {
            ioctl_raw(drm.fd(), uapi::VVRAM_GETPARAM, address, || {
                format!("GETPARAM at {address:#x}")
            })
        };
        expect_errno("GETPARAM at a bad address", result, libc::EFAULT)?;
    }
    Ok(())
}

igt_main! {
    "sizes", "VRAM, CPU-visible VRAM, free VRAM and pages make sense against BAR 2", sizes;
    "free-follows", "VRAM_FREE falls and rises with an object, by its size", free_follows;
    "both-nodes", "the card node and the render node agree", both_nodes;
    "unknown-param", "EINVAL", unknown_param;
    "nonzero-pad", "EINVAL for every bit of pad", nonzero_pad;
    "nonzero-value", "EINVAL for a value that is not zero on input", nonzero_value;
    "bad-pointer", "EFAULT", bad_pointer;
}

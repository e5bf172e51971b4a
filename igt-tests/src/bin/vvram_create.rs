// SPDX-License-Identifier: GPL-2.0

//! DRM_IOCTL_VVRAM_GEM_CREATE, and the VRAM of its objects.

use vvram_tests::drm::{Drm, EITHER};
use vvram_tests::map::PAGE64;
use vvram_tests::uapi::{self};
use vvram_tests::{check, check_eq, check_ok, expect_errno, fail, igt_main, Outcome};

fn sizes() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    for size in [1u64, 4095, 4096, 4097, 12288, 65535, 0x10_0001, 0x12_3456] {
        let want = size.div_ceil(PAGE64) * PAGE64;
        let object = drm.create(size)?;
        check!(object.handle() != 0, "size {size}: the handle is 0");
        check_eq!(object.size(), want, "size {size}, rounded up");
        drm.await_vram_free(free - want)?;
        check_eq!(object.map()?.len() as u64, want, "bytes that can be mapped");
        object.close()?;
        drm.await_vram_free(free)?;
    }
    Ok(())
}

fn flags_known() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let flag = uapi::CREATE_EXPORT_VRAM_OR_FAIL;
    for flags in [
        EITHER,
        EITHER | flag,
        uapi::CREATE_VRAM,
        uapi::CREATE_VRAM | flag,
        EITHER | uapi::CREATE_DIRECT_IO,
        uapi::CREATE_VRAM | flag | uapi::CREATE_DIRECT_IO,
    ] {
        let object = drm.create_flags(PAGE64, flags)?;
        drm.await_vram_free(free - PAGE64)?;
        object.close()?;
    }
    Ok(())
}

/// An object with pages of its own cannot be pinned by the kernel on behalf of anybody but a disk.
fn populate() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create_flags(2 * PAGE64, uapi::CREATE_VRAM | uapi::CREATE_DIRECT_IO)?;
    let map = object.map()?;
    for advice in [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE] {
        let result = map.advise(0..2, advice);
        expect_errno("madvise(MADV_POPULATE)", result, libc::EINVAL)?;
    }
    map.write(0, 1);
    check_eq!(map.read(0), 1, "what was written");
    Ok(())
}

fn too_large() -> Outcome {
    let drm = Drm::open()?;
    let vram = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let free = drm.vram_free()?;
    let sizes = [
        vram + 1,
        vram + PAGE64,
        2 * vram,
        1 << 32,
        1 << 40,
        1 << 63,
        u64::MAX - PAGE64 + 1,
        u64::MAX - PAGE64 + 2,
        u64::MAX,
    ];
    for size in sizes {
        expect_errno(
            &format!("GEM_CREATE of {size:#x} bytes with {vram:#x} bytes of VRAM"),
            drm.create(size),
            libc::ENOSPC,
        )?;
        drm.await_vram_free(free)?;
    }
    Ok(())
}

fn whole_vram() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let object = drm.create(free)?;
    drm.await_vram_free(0)?;
    expect_errno("GEM_CREATE when VRAM is full", drm.create(1), libc::ENOSPC)?;
    object.close()?;
    drm.await_vram_free(free)?;
    drm.create(1)?.close()?;
    Ok(())
}

fn until_full() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let mut objects = Vec::new();
    let mut handles = std::collections::HashSet::new();
    loop {
        match drm.create(1) {
            Ok(object) => {
                check!(
                    handles.insert(object.handle()),
                    "handle {} was given out twice",
                    object.handle()
                );
                objects.push(object);
            }
            Err(error) if error.errno == libc::ENOSPC => break,
            Err(error) => fail!("with {} objects: {error}", objects.len()),
        }
        check!(
            objects.len() as u64 <= free / PAGE64,
            "{} pages in {free:#x} bytes of VRAM",
            objects.len()
        );
    }
    check_eq!(
        objects.len() as u64,
        free / PAGE64,
        "objects of a page that fit"
    );
    drm.await_vram_free(0)?;
    for object in objects {
        object.close()?;
    }
    drm.await_vram_free(free)?;
    Ok(())
}

fn zeroed() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let piece = 1 << 20;
    // The first round gets VRAM as it is, the later ones get that of the rounds before.
    for round in 0..3u64 {
        let mut kept = Vec::new();
        let mut left = free;
        while left > 0 {
            // The sizes differ in every round, so that old and new objects do not begin at the same
            // offsets.
            let size = left.min(piece - round * 5 * PAGE64);
            let object = drm.create(size)?;
            let map = object.map()?;
            check_ok!(
                map.verify_value(0),
                "round {round}, object {} of {size:#x} bytes: new VRAM is not zero",
                kept.len()
            );
            map.set(0x5ec2_e75e_c2e7_0000 | round);
            left -= object.size();
            kept.push(object);
        }
        drm.await_vram_free(0)?;
    }
    Ok(())
}

fn unknown_handle() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create(1)?;
    let closed = object.handle();
    object.close()?;
    let other = Drm::open()?;
    let foreign = other.create(1)?;
    check!(
        foreign.handle() == closed,
        "handles of a new file should start at the same number: {} and {closed}",
        foreign.handle()
    );
    for handle in [0, closed, closed + 1, u32::MAX] {
        let what = |call: &str| format!("{call} of unknown handle {handle}");
        expect_errno(
            &what("GEM_MMAP_OFFSET"),
            drm.mmap_offset(handle),
            libc::ENOENT,
        )?;
        expect_errno(
            &what("PEER_ATTACHMENTS"),
            drm.attachments(handle),
            libc::ENOENT,
        )?;
        expect_errno(
            &what("PRIME_HANDLE_TO_FD"),
            drm.export(handle, 0),
            libc::ENOENT,
        )?;
        expect_errno(&what("GEM_CLOSE"), drm.close(handle), libc::EINVAL)?;
    }
    Ok(())
}

fn close_twice() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let handle = drm.create(1)?.leak();
    drm.close(handle)?;
    expect_errno("the second GEM_CLOSE", drm.close(handle), libc::EINVAL)?;
    drm.await_vram_free(free)?;
    Ok(())
}

fn file_close_frees() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let other = drm.reopen()?;
    for _ in 0..64 {
        other.create(5 * PAGE64)?.leak();
    }
    drm.await_vram_free(free - 64 * 5 * PAGE64)?;
    drop(other);
    drm.await_vram_free(free)?;
    Ok(())
}

fn card_node() -> Outcome {
    let drm = Drm::open_card()?;
    let object = drm.create(PAGE64)?;
    object.map()?.write(0, 1);
    object.close()?;
    Ok(())
}

igt_main! {
    "sizes", "from 1 byte, rounded up to a page, charged exactly", sizes;
    "flags-known", "every placement gives VRAM", flags_known;
    "populate", "EINVAL for madvise() that populates a mapping for direct I/O", populate;
    "too-large", "ENOSPC above the size of VRAM, up to sizes that wrap", too_large;
    "whole-vram", "one object can have it all, the next gets ENOSPC", whole_vram;
    "until-full", "pages until ENOSPC, then all of them back", until_full;
    "zeroed", "new VRAM reads as zeroes, whatever it held before", zeroed;
    "unknown-handle", "ENOENT, for closed handles and those of other files too", unknown_handle;
    "close-twice", "EINVAL, and VRAM is freed once", close_twice;
    "file-close-frees", "closing the file frees its objects", file_close_frees;
    "card-node", "the card node creates and maps as well", card_node;
}

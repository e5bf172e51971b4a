// SPDX-License-Identifier: GPL-2.0

//! Checks of the layout of the structures of the uAPI.
//!
//! The assertions list all fields. There is no padding between them; fields of 64 bits are at
//! multiples of 8, and the sizes are multiples of 8. So 32-bit and 64-bit callers have the same
//! layout.
//!
//! C header: [`include/uapi/drm/vvram_drm.h`](srctree/include/uapi/drm/vvram_drm.h)

use core::mem::{
    offset_of,
    size_of, //
};
use kernel::uapi;

const _: () = {
    use uapi::drm_vvram_getparam as T;

    assert!(offset_of!(T, param) == 0);
    assert!(offset_of!(T, pad) == 4);
    assert!(offset_of!(T, value) == 8);
    assert!(size_of::<T>() == 16);
};

const _: () = {
    use uapi::drm_vvram_gem_create as T;

    assert!(offset_of!(T, size) == 0);
    assert!(offset_of!(T, placements) == 8);
    assert!(offset_of!(T, flags) == 12);
    assert!(offset_of!(T, handle) == 16);
    assert!(offset_of!(T, pad) == 20);
    assert!(size_of::<T>() == 24);
};

const _: () = {
    use uapi::drm_vvram_gem_mmap_offset as T;

    assert!(offset_of!(T, handle) == 0);
    assert!(offset_of!(T, pad) == 4);
    assert!(offset_of!(T, offset) == 8);
    assert!(size_of::<T>() == 16);
};

const _: () = {
    use uapi::drm_vvram_gem_info as T;

    assert!(offset_of!(T, handle) == 0);
    assert!(offset_of!(T, placement) == 4);
    assert!(offset_of!(T, size) == 8);
    assert!(offset_of!(T, placements) == 16);
    assert!(offset_of!(T, flags) == 20);
    assert!(offset_of!(T, pinned) == 24);
    assert!(offset_of!(T, pad) == 28);
    assert!(offset_of!(T, id) == 32);
    assert!(size_of::<T>() == 40);
};

const _: () = {
    use uapi::drm_vvram_gem_copy as T;

    assert!(offset_of!(T, src) == 0);
    assert!(offset_of!(T, dst) == 4);
    assert!(offset_of!(T, src_offset) == 8);
    assert!(offset_of!(T, dst_offset) == 16);
    assert!(offset_of!(T, size) == 24);
    assert!(offset_of!(T, in_syncs) == 32);
    assert!(offset_of!(T, out_syncs) == 40);
    assert!(offset_of!(T, in_count) == 48);
    assert!(offset_of!(T, out_count) == 52);
    assert!(offset_of!(T, sync_size) == 56);
    assert!(offset_of!(T, flags) == 60);
    assert!(size_of::<T>() == 64);
};

const _: () = {
    use uapi::drm_vvram_vm_bind as T;

    assert!(offset_of!(T, pad) == 0);
    assert!(offset_of!(T, op) == 4);
    assert!(offset_of!(T, handle) == 8);
    assert!(offset_of!(T, flags) == 12);
    assert!(offset_of!(T, address) == 16);
    assert!(offset_of!(T, offset) == 24);
    assert!(offset_of!(T, size) == 32);
    assert!(size_of::<T>() == 40);
};

const _: () = {
    use uapi::drm_vvram_vm_read as T;

    assert!(offset_of!(T, address) == 0);
    assert!(offset_of!(T, size) == 8);
    assert!(offset_of!(T, data) == 16);
    assert!(offset_of!(T, flags) == 24);
    assert!(offset_of!(T, pad) == 28);
    assert!(size_of::<T>() == 32);
};

const _: () = {
    use uapi::drm_vvram_svm_range as T;

    assert!(offset_of!(T, address) == 0);
    assert!(offset_of!(T, size) == 8);
    assert!(offset_of!(T, flags) == 16);
    assert!(offset_of!(T, pad) == 20);
    assert!(size_of::<T>() == 24);
};

// SPDX-License-Identifier: GPL-2.0

//! Checks of the layout of the structures of the uAPI.
//!
//! The assertions list all fields. There is no padding between them; fields of 64 bits are at
//! multiples of 8, and the sizes are multiples of 8. So 32-bit and 64-bit callers have the same
//! layout.
//!
//! C header: [`include/uapi/drm/avram_drm.h`](srctree/include/uapi/drm/avram_drm.h)

use core::mem::{
    offset_of,
    size_of, //
};
use kernel::uapi;

const _: () = {
    use uapi::drm_avram_gem_create as T;

    assert!(offset_of!(T, size) == 0);
    assert!(offset_of!(T, handle) == 8);
    assert!(offset_of!(T, pad) == 12);
    assert!(size_of::<T>() == 16);
};

// SPDX-License-Identifier: GPL-2.0

//! The layout of the structures of the uAPI.
//!
//! All fields are listed, with no room between them, and those of 64 bits are at multiples of 8, as
//! the sizes are: so callers of 32 and of 64 bits have the same structures.
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

// SPDX-License-Identifier: GPL-2.0

//! Checks of the layout of the structures of the uAPI.
//!
//! The assertions list all fields. There is no padding between them; fields of 64 bits are at
//! multiples of 8, and the sizes are multiples of 8. So 32-bit and 64-bit callers have the same
//! layout.
//!
//! C header: [`include/uapi/misc/bar_export.h`](srctree/include/uapi/misc/bar_export.h)

use core::mem::{
    offset_of,
    size_of, //
};
use kernel::uapi;

const _: () = {
    use uapi::bar_export_range as T;

    assert!(offset_of!(T, offset) == 0);
    assert!(offset_of!(T, size) == 8);
    assert!(size_of::<T>() == 16);
};

const _: () = {
    use uapi::bar_export as T;

    assert!(offset_of!(T, bar) == 0);
    assert!(offset_of!(T, flags) == 4);
    assert!(offset_of!(T, count) == 8);
    assert!(offset_of!(T, pad) == 12);
    assert!(offset_of!(T, ranges) == 16);
    assert!(size_of::<T>() == 24);
};

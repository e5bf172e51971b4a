// SPDX-License-Identifier: GPL-2.0

//! The layout of the structures of the uAPI.
//!
//! All fields are listed, with no room between them, and those of 64 bits are at multiples of 8, as
//! the sizes are: so callers of 32 and of 64 bits have the same structures.
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

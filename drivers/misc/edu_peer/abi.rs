// SPDX-License-Identifier: GPL-2.0

//! Checks of the layout of the structures of the uAPI.
//!
//! The assertions list all fields. There is no padding between them; fields of 64 bits are at
//! multiples of 8, and the sizes are multiples of 8. So 32-bit and 64-bit callers have the same
//! layout.
//!
//! C header: [`include/uapi/misc/edu_peer.h`](srctree/include/uapi/misc/edu_peer.h)

use core::mem::{
    offset_of,
    size_of, //
};
use kernel::uapi;

const _: () = {
    use uapi::edu_peer_attach as T;

    assert!(offset_of!(T, fd) == 0);
    assert!(offset_of!(T, mode) == 4);
    assert!(offset_of!(T, flags) == 8);
    assert!(offset_of!(T, pad) == 12);
    assert!(offset_of!(T, size) == 16);
    assert!(size_of::<T>() == 24);
};

const _: () = {
    use uapi::edu_peer_transfer as T;

    assert!(offset_of!(T, offset) == 0);
    assert!(offset_of!(T, length) == 8);
    assert!(offset_of!(T, data) == 16);
    assert!(offset_of!(T, direction) == 24);
    assert!(offset_of!(T, pad) == 28);
    assert!(size_of::<T>() == 32);
};

const _: () = {
    use uapi::edu_peer_submit as T;

    assert!(offset_of!(T, offset) == 0);
    assert!(offset_of!(T, length) == 8);
    assert!(offset_of!(T, data) == 16);
    assert!(offset_of!(T, direction) == 24);
    assert!(offset_of!(T, flags) == 28);
    assert!(size_of::<T>() == 32);
};

const _: () = {
    use uapi::edu_peer_finish as T;

    assert!(offset_of!(T, data) == 0);
    assert!(offset_of!(T, room) == 8);
    assert!(offset_of!(T, moved) == 16);
    assert!(offset_of!(T, direction) == 24);
    assert!(offset_of!(T, flags) == 28);
    assert!(size_of::<T>() == 32);
};

const _: () = {
    use uapi::edu_peer_segment as T;

    assert!(offset_of!(T, dma_address) == 0);
    assert!(offset_of!(T, length) == 8);
    assert!(size_of::<T>() == 16);
};

const _: () = {
    use uapi::edu_peer_table as T;

    assert!(offset_of!(T, segments) == 0);
    assert!(offset_of!(T, count) == 8);
    assert!(offset_of!(T, pad) == 12);
    assert!(size_of::<T>() == 16);
};

const _: () = {
    use uapi::edu_peer_status as T;

    assert!(offset_of!(T, flags) == 0);
    assert!(offset_of!(T, pad) == 4);
    assert!(offset_of!(T, invalidations) == 8);
    assert!(offset_of!(T, maps) == 16);
    assert!(size_of::<T>() == 24);
};

const _: () = {
    use uapi::edu_peer_measure as T;

    assert!(offset_of!(T, rounds) == 0);
    assert!(offset_of!(T, pad) == 4);
    assert!(offset_of!(T, least) == 8);
    assert!(offset_of!(T, most) == 16);
    assert!(offset_of!(T, clock) == 24);
    assert!(size_of::<T>() == 32);
};

const _: () = {
    use uapi::edu_peer_memory_register as T;

    assert!(offset_of!(T, address) == 0);
    assert!(offset_of!(T, size) == 8);
    assert!(offset_of!(T, flags) == 16);
    assert!(offset_of!(T, pad) == 20);
    assert!(size_of::<T>() == 24);
};

const _: () = {
    use uapi::edu_peer_memory_query as T;

    assert!(offset_of!(T, offset) == 0);
    assert!(offset_of!(T, flags) == 8);
    assert!(offset_of!(T, kind) == 12);
    assert!(offset_of!(T, dma_address) == 16);
    assert!(offset_of!(T, invalidations) == 24);
    assert!(size_of::<T>() == 32);
};

const _: () = {
    use uapi::edu_peer_memory_measure as T;

    assert!(offset_of!(T, offset) == 0);
    assert!(offset_of!(T, length) == 8);
    assert!(offset_of!(T, flags) == 16);
    assert!(offset_of!(T, pad) == 20);
    assert!(offset_of!(T, time) == 24);
    assert!(offset_of!(T, clock) == 32);
    assert!(size_of::<T>() == 40);
};

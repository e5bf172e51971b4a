// SPDX-License-Identifier: GPL-2.0

//! Checks of the layout of the structures of the uAPI.
//!
//! The assertions list all fields. There is no padding between them; fields of 64 bits are at
//! multiples of 8, and the sizes are multiples of 8. So 32-bit and 64-bit callers have the same
//! layout. The structures that vvram has, too, are compared with those.
//!
//! C header: [`include/uapi/drm/mgpu_drm.h`](srctree/include/uapi/drm/mgpu_drm.h)

use core::mem::{
    offset_of,
    size_of, //
};
use kernel::uapi;

const fn width<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Asserts that a structure has the layout of that of vvram, whose assertions have the numbers.
macro_rules! as_vvram {
    ($ours:ident, $theirs:ident, { $($field:ident $(for $their:ident)?),* $(,)? }) => {
        const _: () = {
            use uapi::{
                $ours as Ours,
                $theirs as Theirs, //
            };

            $(as_vvram!(@field $field, $($their,)? $field);)*
            assert!(size_of::<Ours>() == size_of::<Theirs>());
        };
    };
    (@field $field:ident, $their:ident $(, $same:ident)?) => {
        assert!(offset_of!(Ours, $field) == offset_of!(Theirs, $their));
        assert!(width(|it: &Ours| &it.$field) == width(|it: &Theirs| &it.$their));
    };
}

as_vvram!(drm_mgpu_getparam, drm_vvram_getparam, { param, pad, value });
as_vvram!(drm_mgpu_gem_create, drm_vvram_gem_create, {
    size, placements, flags, handle, vm for pad,
});
as_vvram!(drm_mgpu_gem_mmap_offset, drm_vvram_gem_mmap_offset, { handle, pad, offset });
as_vvram!(drm_mgpu_gem_info, drm_vvram_gem_info, {
    handle, placement, size, placements, flags, pinned, pad, id,
});
as_vvram!(drm_mgpu_gem_copy, drm_vvram_gem_copy, {
    src, dst, src_offset, dst_offset, size, in_syncs, out_syncs, in_count, out_count, sync_size,
    flags,
});
as_vvram!(drm_mgpu_vm_bind, drm_vvram_vm_bind, {
    vm for pad, op, handle, flags, address, offset, size,
});

const _: () = {
    use uapi::drm_mgpu_vm_create as T;

    assert!(offset_of!(T, flags) == 0);
    assert!(offset_of!(T, vm) == 4);
    assert!(size_of::<T>() == 8);
};

const _: () = {
    use uapi::drm_mgpu_vm_destroy as T;

    assert!(offset_of!(T, vm) == 0);
    assert!(offset_of!(T, pad) == 4);
    assert!(size_of::<T>() == 8);
};

const _: () = {
    use uapi::drm_mgpu_exec_op as T;

    assert!(offset_of!(T, code) == 0);
    assert!(offset_of!(T, pad) == 4);
    assert!(offset_of!(T, src) == 8);
    assert!(offset_of!(T, dst) == 16);
    assert!(offset_of!(T, size) == 24);
    assert!(offset_of!(T, value) == 32);
    assert!(size_of::<T>() == 40);
    // Later versions only append fields.
    assert!(size_of::<T>() >= uapi::DRM_MGPU_EXEC_OP_SIZE_VER0 as usize);
};

const _: () = {
    use uapi::drm_mgpu_exec as T;

    assert!(offset_of!(T, vm) == 0);
    assert!(offset_of!(T, flags) == 4);
    assert!(offset_of!(T, ops) == 8);
    assert!(offset_of!(T, in_syncs) == 16);
    assert!(offset_of!(T, out_syncs) == 24);
    assert!(offset_of!(T, op_count) == 32);
    assert!(offset_of!(T, op_size) == 36);
    assert!(offset_of!(T, in_count) == 40);
    assert!(offset_of!(T, out_count) == 44);
    assert!(offset_of!(T, sync_size) == 48);
    assert!(offset_of!(T, pad) == 52);
    assert!(size_of::<T>() == 56);
};

const _: () = {
    use uapi::drm_mgpu_vm_failures as T;

    assert!(offset_of!(T, vm) == 0);
    assert!(offset_of!(T, access) == 4);
    assert!(offset_of!(T, address) == 8);
    assert!(offset_of!(T, faults) == 16);
    assert!(offset_of!(T, hangs) == 24);
    assert!(size_of::<T>() == 32);
};

// SPDX-License-Identifier: GPL-2.0

//! `DRM_IOCTL_VVRAM_GEM_COPY`: the dependencies of a copy and the entries for its fence.
//!
//! The DRM core writes nothing back to the argument of the ioctl.

use kernel::{
    drm::{
        self,
        gem::ttm::CopyArgs,
        syncobj::SyncArray,
        Ioctl, //
    },
    prelude::*,
    uapi, //
};

use crate::{
    driver::VvramDevice,
    file::{
        check,
        File, //
    },
    gem::BoData, //
};

/// The maximum number of entries of an array of sync objects.
pub(crate) const SYNCS: u32 = 64;

/// The maximum number of queued copies of an open file at a time.
pub(crate) const COPIES: usize = 64;

/// Serves `DRM_IOCTL_VVRAM_GEM_COPY`.
pub(crate) fn gem_copy(
    dev: &VvramDevice<Ioctl>,
    args: &mut uapi::drm_vvram_gem_copy,
    file: &drm::File<File>,
) -> Result<u32> {
    check(args.flags == 0)?;

    let copies = file.inner().get_ref().copies();
    let args = CopyArgs {
        src: (args.src, args.src_offset),
        dst: (args.dst, args.dst_offset),
        size: args.size,
        ins: SyncArray::new(SYNCS, args.in_syncs, args.in_count, args.sync_size)?,
        outs: SyncArray::new(SYNCS, args.out_syncs, args.out_count, args.sync_size)?,
    };

    args.serve::<BoData>(dev, file, copies, |dev, bound| {
        let queue = bound.engine.queue(COPIES, dev.ttm.fence_group())?;

        dev.ttm.copy_queue(c"vvram-copy", 0, queue)
    })?;
    Ok(0)
}

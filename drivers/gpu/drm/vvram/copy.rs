// SPDX-License-Identifier: GPL-2.0

//! `DRM_IOCTL_VVRAM_GEM_COPY`: the fences that a copy depends on, and the entries that its own
//! fence is put into.
//!
//! The DRM core writes nothing back to the argument of the ioctl.

use kernel::{
    drm::{
        self,
        gem::{
            self,
            ttm::Part,
            BaseObject, //
        },
        syncobj::{
            Format,
            SyncArray, //
        },
        Registered, //
    },
    prelude::*,
    uapi, //
};

use crate::{
    driver::{
        BoundData,
        VvramDevice, //
    },
    file::{
        check,
        File, //
    },
    gem::Bo, //
};

/// The arrays of the uAPI, whose entries are `struct drm_vvram_sync`.
const SYNCS: Format = Format {
    count_max: uapi::DRM_VVRAM_SYNC_MAX,
    size_min: uapi::DRM_VVRAM_SYNC_SIZE_VER0,
    file_flag: uapi::DRM_VVRAM_SYNC_FILE,
};

/// Waits for other devices, if the copy has to, and for room in the queue of the client. This comes
/// before the ioctl enters the section that an unplug waits for.
pub(crate) fn before_copy(args: &uapi::drm_vvram_gem_copy, file: &drm::File<File>) -> Result {
    let objects = [args.src, args.dst].map(|handle| Bo::lookup_handle(file, handle));
    let fences = SyncArray::new(&SYNCS, args.in_syncs, args.in_count, args.sync_size)
        .and_then(|ins| ins.fences(file));

    let copies = file.inner().get_ref().queued_copies();

    // `gem_copy` reports what is wrong with the argument.
    if let ([Ok(src), Ok(dst)], Ok(fences)) = (objects, fences) {
        gem::ttm::await_copy(&*src, &*dst, &fences, copies)?;
    }
    // Last, so that the room is not kept if this fails.
    copies.await_room()
}

/// Serves `DRM_IOCTL_VVRAM_GEM_COPY`.
pub(crate) fn gem_copy(
    dev: &VvramDevice<Registered>,
    bound: &BoundData<'_>,
    args: &mut uapi::drm_vvram_gem_copy,
    file: &drm::File<File>,
) -> Result<u32> {
    // Before anything can fail, so that each call takes the permit that was waited for on its
    // behalf.
    let client = file.inner().get_ref().copies(dev, bound)?;

    check(args.flags == 0)?;
    let (src, dst) = (
        Bo::lookup_handle(file, args.src)?,
        Bo::lookup_handle(file, args.dst)?,
    );
    let from = Part {
        object: &*src,
        offset: args.src_offset,
    };
    let to = Part {
        object: &*dst,
        offset: args.dst_offset,
    };

    let ins = SyncArray::new(&SYNCS, args.in_syncs, args.in_count, args.sync_size)?;
    let outs = SyncArray::new(&SYNCS, args.out_syncs, args.out_count, args.sync_size)?;
    let fences = ins.fences(file)?;

    outs.places(file)?
        .fill(|| gem::ttm::copy_after(dev, &from, &to, args.size, client, &fences))?;
    Ok(0)
}

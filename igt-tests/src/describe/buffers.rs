// SPDX-License-Identifier: GPL-2.0

//! The ioctls of dma-bufs and sync files.

use super::{call, layout, Call, File, Kind, Layout};
use crate::uapi::{
    self, DmaBufSync, DmaBufSyncFile, SyncFenceInfo, SyncFileInfo, SyncMerge, SyncSetDeadline,
};
use libc::{EINVAL, ENOENT};
use Kind::{Array, Count, Fd, Free, Opens, Some, Zero};

/// `struct dma_buf_sync` without the end of an access, which alone is refused.
const ACCESS: u64 = uapi::DMA_BUF_SYNC_READ | uapi::DMA_BUF_SYNC_WRITE;

static FENCE: Layout = layout!(SyncFenceInfo, {
    obj_name: Free,
    driver_name: Free,
    status: Free,
    flags: Free,
    timestamp_ns: Free,
});

/// In the order of their numbers.
pub(super) static CALLS: &[Call] = &[
    call!(
        "DMA_BUF_IOCTL_SYNC",
        uapi::DMA_BUF_IOCTL_SYNC,
        [File::Buffer],
        [EAGAIN],
        layout!(DmaBufSync, { flags: Kind::Access(ACCESS, uapi::DMA_BUF_SYNC_END) })
    ),
    call!(
        "DMA_BUF_IOCTL_EXPORT_SYNC_FILE",
        uapi::DMA_BUF_IOCTL_EXPORT_SYNC_FILE,
        [File::Buffer],
        [],
        layout!(DmaBufSyncFile, { flags: Some(ACCESS), fd: Opens })
    ),
    call!(
        "DMA_BUF_IOCTL_IMPORT_SYNC_FILE",
        uapi::DMA_BUF_IOCTL_IMPORT_SYNC_FILE,
        [File::Buffer],
        [],
        layout!(DmaBufSyncFile, {
            flags: Some(ACCESS),
            fd: Fd(File::SyncFile, EINVAL, EINVAL),
        })
    ),
    call!(
        "SYNC_IOC_MERGE",
        uapi::SYNC_IOC_MERGE,
        [File::SyncFile],
        [ENOENT],
        layout!(SyncMerge, {
            name: Free,
            fd2: Fd(File::SyncFile, ENOENT, ENOENT),
            fence: Opens,
            flags: Zero,
            pad: Zero,
        })
    ),
    call!(
        "SYNC_IOC_FILE_INFO",
        uapi::SYNC_IOC_FILE_INFO,
        [File::SyncFile],
        [],
        layout!(SyncFileInfo, {
            name: Free,
            status: Free,
            flags: Zero,
            num_fences: Count(u32::MAX as u64, false),
            pad: Zero,
            sync_fence_info: Array { of: &FENCE, count: "num_fences", stride: "", read: false, null: false },
        })
    ),
    call!(
        "SYNC_IOC_SET_DEADLINE",
        uapi::SYNC_IOC_SET_DEADLINE,
        [File::SyncFile],
        [],
        layout!(SyncSetDeadline, { deadline: Kind::Time, pad: Zero })
    ),
];

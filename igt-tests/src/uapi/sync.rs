// SPDX-License-Identifier: GPL-2.0

//! Fences in the uAPI: sync objects, sync files, and the arguments of ioctls for them.

use std::mem::size_of;

use super::{iow, iowr, DRM};

/// How many fences there are at most in an array.
pub const SYNC_MAX: usize = 64;

/// DRM_VVRAM_PARAM_COPIES_MAX.
pub const COPIES_MAX: u32 = 64;

/// `struct drm_sync_entry`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncEntry {
    /// The sync object.
    pub handle: u32,
    /// Zero.
    pub flags: u32,
    /// The point of a timeline.
    pub point: u64,
}

/// `struct drm_get_cap`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmGetCap {
    /// The capability.
    pub capability: u64,
    /// Out.
    pub value: u64,
}

/// Whether the driver has sync objects.
pub const DRM_CAP_SYNCOBJ: u64 = 0x13;
/// Whether the driver has timelines.
pub const DRM_CAP_SYNCOBJ_TIMELINE: u64 = 0x14;
/// Asks for a capability.
pub const DRM_IOCTL_GET_CAP: u64 = iowr::<DrmGetCap>(DRM, 0x0c);

/// `struct drm_syncobj_create`, `struct drm_syncobj_destroy`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmSyncobj {
    /// Out, or the one to destroy.
    pub handle: u32,
    /// Flags or zero.
    pub flags: u32,
}

/// Makes a sync object.
pub const DRM_IOCTL_SYNCOBJ_CREATE: u64 = iowr::<DrmSyncobj>(DRM, 0xbf);
/// Destroys it.
pub const DRM_IOCTL_SYNCOBJ_DESTROY: u64 = iowr::<DrmSyncobj>(DRM, 0xc0);

/// `struct drm_syncobj_wait`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmSyncobjWait {
    /// User pointer to handles.
    pub handles: u64,
    /// Nanoseconds of the monotonic clock.
    pub timeout: i64,
    /// Number of handles.
    pub count: u32,
    /// Flags.
    pub flags: u32,
    /// Out.
    pub first: u32,
    /// Zero.
    pub pad: u32,
    /// A hint.
    pub deadline: u64,
}

/// Waits for sync objects.
pub const DRM_IOCTL_SYNCOBJ_WAIT: u64 = iowr::<DrmSyncobjWait>(DRM, 0xc3);

/// `struct drm_syncobj_handle`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmSyncobjHandle {
    /// The sync object.
    pub handle: u32,
    /// `SYNCOBJ_IMPORT_*`, or `SYNCOBJ_EXPORT_SYNC_FILE`.
    pub flags: u32,
    /// A sync file.
    pub fd: i32,
    /// Zero.
    pub pad: u32,
    /// The point of a timeline.
    pub point: u64,
}

/// Export a sync file.
pub const SYNCOBJ_EXPORT_SYNC_FILE: u32 = 1 << 0;
/// Import a sync file.
pub const SYNCOBJ_IMPORT_SYNC_FILE: u32 = 1 << 0;
/// Import into a point of a timeline.
pub const SYNCOBJ_IMPORT_TIMELINE: u32 = 1 << 1;
/// Puts a fence into a sync object.
pub const DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE: u64 = iowr::<DrmSyncobjHandle>(DRM, 0xc2);

/// Turns a sync object, or its fence, into a file.
pub const DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD: u64 = iowr::<DrmSyncobjHandle>(DRM, 0xc1);

/// `struct drm_syncobj_array`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmSyncobjArray {
    /// User pointer to handles.
    pub handles: u64,
    /// Number of handles.
    pub count: u32,
    /// Zero.
    pub pad: u32,
}

/// Takes the fences away.
pub const DRM_IOCTL_SYNCOBJ_RESET: u64 = iowr::<DrmSyncobjArray>(DRM, 0xc4);
/// Gives each of them a fence that has signalled.
pub const DRM_IOCTL_SYNCOBJ_SIGNAL: u64 = iowr::<DrmSyncobjArray>(DRM, 0xc5);

/// `struct drm_syncobj_transfer`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmSyncobjTransfer {
    /// The source.
    pub src: u32,
    /// The target.
    pub dst: u32,
    /// The point of the source.
    pub src_point: u64,
    /// The point of the target.
    pub dst_point: u64,
    /// `DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT` or zero.
    pub flags: u32,
    /// Zero.
    pub pad: u32,
}

/// Copies a fence.
pub const DRM_IOCTL_SYNCOBJ_TRANSFER: u64 = iowr::<DrmSyncobjTransfer>(DRM, 0xcc);

/// `struct drm_syncobj_eventfd`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmSyncobjEventfd {
    /// The sync object.
    pub handle: u32,
    /// `DRM_SYNCOBJ_WAIT_FLAGS_WAIT_AVAILABLE` or zero.
    pub flags: u32,
    /// The point.
    pub point: u64,
    /// An eventfd.
    pub fd: i32,
    /// Zero.
    pub pad: u32,
}

/// Has an eventfd signalled.
pub const DRM_IOCTL_SYNCOBJ_EVENTFD: u64 = iowr::<DrmSyncobjEventfd>(DRM, 0xcf);

/// `struct drm_syncobj_timeline_wait`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmSyncobjTimelineWait {
    /// User pointer to handles.
    pub handles: u64,
    /// User pointer to points.
    pub points: u64,
    /// Nanoseconds of the monotonic clock.
    pub timeout: i64,
    /// Number of handles.
    pub count: u32,
    /// Flags.
    pub flags: u32,
    /// Out.
    pub first: u32,
    /// Zero.
    pub pad: u32,
    /// A hint.
    pub deadline: u64,
}

/// Waits for points of timelines.
pub const DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT: u64 = iowr::<DrmSyncobjTimelineWait>(DRM, 0xca);

/// `struct drm_syncobj_timeline_array`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmSyncobjTimelineArray {
    /// User pointer to handles.
    pub handles: u64,
    /// User pointer to points.
    pub points: u64,
    /// Number of handles.
    pub count: u32,
    /// Flags.
    pub flags: u32,
}

/// Return the last point that was added, instead of the last one that has signalled.
pub const SYNCOBJ_QUERY_LAST_SUBMITTED: u32 = 1 << 0;
/// Adds points that have signalled.
pub const DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL: u64 = iowr::<DrmSyncobjTimelineArray>(DRM, 0xcd);
/// Returns the last points of timelines.
pub const DRM_IOCTL_SYNCOBJ_QUERY: u64 = iowr::<DrmSyncobjTimelineArray>(DRM, 0xcb);

/// `struct sync_fence_info`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncFenceInfo {
    /// Name of the timeline.
    pub obj_name: [u8; 32],
    /// Name of the driver.
    pub driver_name: [u8; 32],
    /// 0 while it is pending, 1, or an error.
    pub status: i32,
    /// Zero.
    pub flags: u32,
    /// When it signalled.
    pub timestamp_ns: u64,
}

/// `struct sync_file_info`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncFileInfo {
    /// Name.
    pub name: [u8; 32],
    /// 0 while one of the fences is pending, 1, or an error.
    pub status: i32,
    /// Zero.
    pub flags: u32,
    /// In and out.
    pub num_fences: u32,
    /// Zero.
    pub pad: u32,
    /// User pointer.
    pub sync_fence_info: u64,
}

/// Returns the status of a sync file.
pub const SYNC_IOC_FILE_INFO: u64 = iowr::<SyncFileInfo>(b'>' as u64, 4);

/// `struct sync_merge_data`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncMerge {
    /// Name.
    pub name: [u8; 32],
    /// The other sync file.
    pub fd2: i32,
    /// Out, the new one.
    pub fence: i32,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub pad: u32,
}

/// Makes a sync file of two.
pub const SYNC_IOC_MERGE: u64 = iowr::<SyncMerge>(b'>' as u64, 3);

/// `struct sync_set_deadline`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncSetDeadline {
    /// Nanoseconds of the monotonic clock.
    pub deadline: u64,
    /// Zero.
    pub pad: u64,
}

/// Says when a fence should signal.
pub const SYNC_IOC_SET_DEADLINE: u64 = iow::<SyncSetDeadline>(b'>' as u64, 5);

/// `struct sw_sync_create_fence_data`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SwSyncCreateFence {
    /// The value of the timeline at which the fence signals.
    pub value: u32,
    /// A name.
    pub name: [u8; 32],
    /// Out, a sync file.
    pub fence: i32,
}

/// Makes a fence that userspace signals.
pub const SW_SYNC_IOC_CREATE_FENCE: u64 = iowr::<SwSyncCreateFence>(b'W' as u64, 0);
/// Advances the timeline, which signals fences.
pub const SW_SYNC_IOC_INC: u64 = iow::<u32>(b'W' as u64, 1);

/// `struct dma_buf_import_sync_file`, `struct dma_buf_export_sync_file`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DmaBufSyncFile {
    /// `DMA_BUF_SYNC_*`.
    pub flags: u32,
    /// The sync file.
    pub fd: i32,
}

/// Gives the implicit fences of a dma-buf as a sync file.
pub const DMA_BUF_IOCTL_EXPORT_SYNC_FILE: u64 = iowr::<DmaBufSyncFile>(b'b' as u64, 2);
/// Adds a sync file to the implicit fences of a dma-buf.
pub const DMA_BUF_IOCTL_IMPORT_SYNC_FILE: u64 = iow::<DmaBufSyncFile>(b'b' as u64, 3);

const _: () = {
    assert!(size_of::<DmaBufSyncFile>() == 8);
    assert!(size_of::<SyncFenceInfo>() == 80);
    assert!(size_of::<SyncFileInfo>() == 56);
    assert!(size_of::<SyncEntry>() == 16);
    assert!(size_of::<DrmSyncobjWait>() == 40);
    assert!(size_of::<DrmSyncobjHandle>() == 24);
    assert!(size_of::<DrmSyncobjTimelineWait>() == 48);
    assert!(size_of::<DrmSyncobjTimelineArray>() == 24);
    assert!(size_of::<SwSyncCreateFence>() == 40);
    // Numbers as the C headers compute them.
    assert!(SYNC_IOC_MERGE == 0xc030_3e03);
    assert!(SYNC_IOC_SET_DEADLINE == 0x4010_3e05);
    assert!(DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD == 0xc018_64c1);
    assert!(DRM_IOCTL_SYNCOBJ_RESET == 0xc010_64c4);
    assert!(DRM_IOCTL_SYNCOBJ_TRANSFER == 0xc020_64cc);
    assert!(DRM_IOCTL_SYNCOBJ_EVENTFD == 0xc018_64cf);
    assert!(DMA_BUF_IOCTL_EXPORT_SYNC_FILE == 0xc008_6202);
    assert!(SYNC_IOC_FILE_INFO == 0xc038_3e04);
    assert!(DRM_IOCTL_GET_CAP == 0xc010_640c);
    assert!(DRM_IOCTL_SYNCOBJ_CREATE == 0xc008_64bf);
    assert!(DRM_IOCTL_SYNCOBJ_WAIT == 0xc028_64c3);
    assert!(DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE == 0xc018_64c2);
    assert!(DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT == 0xc030_64ca);
    assert!(DRM_IOCTL_SYNCOBJ_QUERY == 0xc018_64cb);
    assert!(SW_SYNC_IOC_CREATE_FENCE == 0xc028_5700);
    assert!(SW_SYNC_IOC_INC == 0x4004_5701);
    assert!(DMA_BUF_IOCTL_IMPORT_SYNC_FILE == 0x4008_6203);
};

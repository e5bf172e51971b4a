// SPDX-License-Identifier: GPL-2.0

//! The ioctls of the DRM core that call the drivers: GEM handles, PRIME, sync objects.

use super::{call, layout, Call, File, Kind, Layout, Thing};
use crate::uapi::{
    self, DrmGemClose, DrmPrimeHandle, DrmSyncobj, DrmSyncobjArray, DrmSyncobjEventfd,
    DrmSyncobjHandle, DrmSyncobjTimelineArray, DrmSyncobjTimelineWait, DrmSyncobjTransfer,
    DrmSyncobjWait,
};
use libc::{EBADF, EINVAL, ENOENT};
use File::{Avram, Mgpu, Vvram};
use Kind::{Array, Closes, Fd, Flags, Free, Handle, Is, Makes, Opens, Point, Time, Zero};
use Thing::{Gem, Syncobj};

/// The core allocates what it is asked for, and warns if that is too much, which is no finding: more
/// than [`super::MOST`] are not tried.
const COUNT: Kind = Kind::Count(u32::MAX as u64, true);
const SOME: Kind = Kind::Count(u32::MAX as u64, false);

/// An element of an array of handles.
#[repr(C)]
struct Number {
    handle: u32,
}

/// An element of an array of points.
#[repr(C)]
struct Value {
    point: u64,
}

static HANDLE: Layout = layout!(Number, { handle: Handle(Syncobj, ENOENT) });
static POINT: Layout = layout!(Value, { point: Point });
const HANDLES: Kind = Array {
    of: &HANDLE,
    count: "count",
    stride: "",
    read: true,
    null: false,
};
const POINTS: Kind = Array {
    of: &POINT,
    count: "count",
    stride: "",
    read: true,
    null: true,
};
const RESULTS: Kind = Array {
    of: &POINT,
    count: "count",
    stride: "",
    read: false,
    null: false,
};

const ARRAY: Layout = layout!(DrmSyncobjArray, { handles: HANDLES, count: COUNT, pad: Zero });

/// In the order of their numbers.
pub(super) static CALLS: &[Call] = &[
    call!(
        "DRM_IOCTL_GEM_CLOSE",
        uapi::DRM_IOCTL_GEM_CLOSE,
        [Vvram, Mgpu, Avram],
        [],
        layout!(DrmGemClose, { handle: Closes(Gem, EINVAL), pad: Free })
    ),
    call!(
        "DRM_IOCTL_PRIME_HANDLE_TO_FD",
        uapi::DRM_IOCTL_PRIME_HANDLE_TO_FD,
        [Vvram, Mgpu, Avram],
        [ENOENT EPERM],
        layout!(DrmPrimeHandle, {
            handle: Handle(Gem, ENOENT),
            flags: Flags((uapi::DRM_CLOEXEC | uapi::DRM_RDWR) as u64),
            fd: Opens,
        })
    ),
    call!(
        "DRM_IOCTL_PRIME_FD_TO_HANDLE",
        uapi::DRM_IOCTL_PRIME_FD_TO_HANDLE,
        [Vvram, Mgpu, Avram],
        [EOPNOTSUPP EBUSY],
        layout!(DrmPrimeHandle, {
            handle: Makes(Gem, false),
            flags: Free,
            fd: Fd(File::Buffer, EBADF, EINVAL),
        })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_CREATE",
        uapi::DRM_IOCTL_SYNCOBJ_CREATE,
        [Vvram, Mgpu],
        [],
        layout!(DrmSyncobj, { handle: Makes(Syncobj, false), flags: Flags(1) })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_DESTROY",
        uapi::DRM_IOCTL_SYNCOBJ_DESTROY,
        [Vvram, Mgpu],
        [],
        layout!(DrmSyncobj, { handle: Closes(Syncobj, EINVAL), flags: Zero })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD",
        uapi::DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD,
        [Vvram, Mgpu],
        [ENOENT],
        layout!(DrmSyncobjHandle, {
            handle: Handle(Syncobj, EINVAL),
            flags: Is(0, &[4, 1 << 31]),
            fd: Opens,
            pad: Zero,
            point: Zero,
        })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD of a fence",
        uapi::DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD,
        [Vvram, Mgpu],
        [ENOENT],
        layout!(DrmSyncobjHandle, {
            handle: Handle(Syncobj, ENOENT),
            flags: Is(1, &[4, 1 << 31]),
            fd: Opens,
            pad: Zero,
            point: Free,
        })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE",
        uapi::DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE,
        [Vvram, Mgpu],
        // With another flag it takes a handle, too.
        [ENOENT],
        layout!(DrmSyncobjHandle, {
            handle: Makes(Syncobj, false),
            flags: Is(0, &[4, 1 << 31]),
            fd: Fd(File::SyncObject, EINVAL, EINVAL),
            pad: Zero,
            point: Zero,
        })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE of a fence",
        uapi::DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE,
        [Vvram, Mgpu],
        [ENOENT],
        layout!(DrmSyncobjHandle, {
            handle: Handle(Syncobj, ENOENT),
            flags: Is(1, &[4, 1 << 31]),
            fd: Fd(File::SyncFile, EINVAL, EINVAL),
            pad: Zero,
            point: Free,
        })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_WAIT",
        uapi::DRM_IOCTL_SYNCOBJ_WAIT,
        [Vvram, Mgpu],
        [ENOENT ETIME],
        layout!(DrmSyncobjWait, {
            handles: HANDLES,
            timeout: Time,
            count: SOME,
            flags: Flags(0xb),
            first: Free,
            pad: Free,
            deadline: Free,
        })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_RESET",
        uapi::DRM_IOCTL_SYNCOBJ_RESET,
        [Vvram, Mgpu],
        [ENOENT],
        ARRAY
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_SIGNAL",
        uapi::DRM_IOCTL_SYNCOBJ_SIGNAL,
        [Vvram, Mgpu],
        [ENOENT],
        ARRAY
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT",
        uapi::DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT,
        [Vvram, Mgpu],
        [ENOENT ETIME],
        layout!(DrmSyncobjTimelineWait, {
            handles: HANDLES,
            points: POINTS,
            timeout: Time,
            count: SOME,
            flags: Flags(0xf),
            first: Free,
            pad: Free,
            deadline: Free,
        })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_QUERY",
        uapi::DRM_IOCTL_SYNCOBJ_QUERY,
        [Vvram, Mgpu],
        [ENOENT],
        layout!(DrmSyncobjTimelineArray, {
            handles: HANDLES,
            points: RESULTS,
            count: COUNT,
            flags: Flags(1),
        })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_TRANSFER",
        uapi::DRM_IOCTL_SYNCOBJ_TRANSFER,
        [Vvram, Mgpu],
        [ENOENT ETIME],
        layout!(DrmSyncobjTransfer, {
            src: Handle(Syncobj, ENOENT),
            dst: Handle(Syncobj, ENOENT),
            src_point: Point,
            dst_point: Point,
            flags: Is(0, &[1, 1 << 31]),
            pad: Zero,
        })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL",
        uapi::DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL,
        [Vvram, Mgpu],
        [ENOENT],
        layout!(DrmSyncobjTimelineArray, {
            handles: HANDLES,
            points: POINTS,
            count: COUNT,
            flags: Zero,
        })
    ),
    call!(
        "DRM_IOCTL_SYNCOBJ_EVENTFD",
        uapi::DRM_IOCTL_SYNCOBJ_EVENTFD,
        [Vvram, Mgpu],
        [ENOENT],
        layout!(DrmSyncobjEventfd, {
            handle: Handle(Syncobj, ENOENT),
            flags: Flags(4),
            point: Point,
            fd: Fd(File::Event, EBADF, EINVAL),
            pad: Zero,
        })
    ),
];

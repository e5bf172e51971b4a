// SPDX-License-Identifier: GPL-2.0

//! The ioctls of edu_peer and bar_export.

use super::{call, get, layout, set, Call, File, Kind, Layout, NOTHING};
use crate::uapi::{
    self, BarExport, BarExportRange, EduPeerAttach, EduPeerFinish, EduPeerMeasure,
    EduPeerMemoryMeasure, EduPeerMemoryQuery, EduPeerMemoryRegister, EduPeerSegment, EduPeerStatus,
    EduPeerSubmit, EduPeerTable, EduPeerTransfer,
};
use libc::{EBADF, EINVAL};
use std::mem::offset_of;
use File::{Bar, Peer};
use Kind::{Array, Below, Bytes, Count, Flags, Free, Length, Memory, Offset, Size, Zero};

const PAGE: u64 = 4096;

/// The bytes are read or written according to the direction, so they are there in any case.
const TRANSFER: Layout = layout!(EduPeerTransfer, {
    offset: Offset(1),
    length: Length(EINVAL),
    data: Bytes("length", true),
    direction: Below(2),
    pad: Zero,
});

const SUBMIT_WRITE: Layout = layout!(EduPeerSubmit, {
    offset: Offset(1),
    length: Size(1, EINVAL),
    data: Bytes("length", true),
    direction: Kind::Is(1, &[2, u32::MAX as u64]),
    flags: Zero,
});

/// The bytes are returned by FINISH.
const SUBMIT_READ: Layout = layout!(EduPeerSubmit, {
    offset: Offset(1),
    length: Size(1, EINVAL),
    data: Zero,
    direction: Kind::Is(0, &[2, u32::MAX as u64]),
    flags: Zero,
});

/// A write returns no bytes.
fn fix_finish(bytes: &mut [u8]) {
    if get(bytes, offset_of!(EduPeerFinish, direction), 4) == 1 {
        set(bytes, offset_of!(EduPeerFinish, room), 8, 0);
    }
}

const FINISH: Layout = layout!(EduPeerFinish, fix_finish, {
    data: Bytes("room", false),
    room: Kind::Is(64, &[]),
    moved: Zero,
    direction: Below(2),
    flags: Zero,
});

static SEGMENT: Layout = layout!(EduPeerSegment, { dma_address: Free, length: Free });

/// Without a page there is no offset.
fn fix_query(bytes: &mut [u8]) {
    if get(bytes, offset_of!(EduPeerMemoryQuery, flags), 4) == 0 {
        set(bytes, offset_of!(EduPeerMemoryQuery, offset), 8, 0);
    }
}

/// Ranges that overlap make edu_peer log an error for each map, which is finding F7: the second one
/// begins behind the first one.
fn fix_range(bytes: &mut [u8]) {
    let offset = offset_of!(BarExportRange, offset);
    set(bytes, offset, 8, get(bytes, offset, 8) % (1 << 24));
}

static RANGE: Layout = layout!(BarExportRange, fix_range, {
    offset: Offset(PAGE),
    size: Size(PAGE, EINVAL),
});

/// In their order in the headers.
pub(super) static CALLS: &[Call] = &[
    call!(
        "EDU_PEER_IOC_MEMORY_MEASURE",
        uapi::EDU_PEER_IOC_MEMORY_MEASURE,
        [Peer],
        [EPERM ESRCH EIO EBUSY ECANCELED],
        layout!(EduPeerMemoryMeasure, {
            offset: Offset(PAGE),
            length: Size(PAGE, EINVAL),
            flags: Flags(3),
            pad: Zero,
            time: Zero,
            clock: Zero,
        })
    ),
    call!(
        "EDU_PEER_IOC_ATTACH",
        uapi::EDU_PEER_IOC_ATTACH,
        [Peer],
        [EBUSY EOPNOTSUPP],
        layout!(EduPeerAttach, {
            fd: Kind::Fd(File::Buffer, EBADF, EINVAL),
            mode: Below(7),
            flags: Zero,
            pad: Zero,
            size: Zero,
        })
    ),
    call!(
        "EDU_PEER_IOC_DETACH",
        uapi::EDU_PEER_IOC_DETACH,
        [Peer],
        [],
        NOTHING
    ),
    call!(
        "EDU_PEER_IOC_PIN",
        uapi::EDU_PEER_IOC_PIN,
        [Peer],
        [EBUSY ENOSPC EOPNOTSUPP EDQUOT],
        NOTHING
    ),
    call!(
        "EDU_PEER_IOC_UNPIN",
        uapi::EDU_PEER_IOC_UNPIN,
        [Peer],
        [EBUSY],
        NOTHING
    ),
    call!(
        "EDU_PEER_IOC_MAP",
        uapi::EDU_PEER_IOC_MAP,
        [Peer],
        [EBUSY EBADMSG ENOSPC EOPNOTSUPP EDQUOT EAGAIN],
        NOTHING
    ),
    call!(
        "EDU_PEER_IOC_UNMAP",
        uapi::EDU_PEER_IOC_UNMAP,
        [Peer],
        [EBUSY],
        NOTHING
    ),
    call!(
        "EDU_PEER_IOC_TRANSFER",
        uapi::EDU_PEER_IOC_TRANSFER,
        [Peer],
        [EBUSY EBADMSG ETIMEDOUT ENOSPC EOPNOTSUPP EDQUOT EAGAIN],
        TRANSFER
    ),
    call!(
        "EDU_PEER_IOC_TABLE",
        uapi::EDU_PEER_IOC_TABLE,
        [Peer],
        [],
        layout!(EduPeerTable, {
            segments: Array { of: &SEGMENT, count: "count", stride: "", read: false, null: false },
            count: Count(u32::MAX as u64, false),
            pad: Zero,
        })
    ),
    call!(
        "EDU_PEER_IOC_STATUS",
        uapi::EDU_PEER_IOC_STATUS,
        [Peer],
        [],
        layout!(EduPeerStatus, { flags: Free, pad: Free, invalidations: Free, maps: Free })
    ),
    call!(
        "EDU_PEER_IOC_SUBMIT",
        uapi::EDU_PEER_IOC_SUBMIT,
        [Peer],
        [EBUSY EBADMSG ENOSPC EOPNOTSUPP EDQUOT EAGAIN],
        SUBMIT_WRITE
    ),
    call!(
        "EDU_PEER_IOC_SUBMIT of a read",
        uapi::EDU_PEER_IOC_SUBMIT,
        [Peer],
        [EBUSY EBADMSG ENOSPC EOPNOTSUPP EDQUOT EAGAIN],
        SUBMIT_READ
    ),
    call!(
        "EDU_PEER_IOC_FINISH",
        uapi::EDU_PEER_IOC_FINISH,
        [Peer],
        [ECANCELED ETIMEDOUT EBADMSG],
        FINISH
    ),
    call!(
        "EDU_PEER_IOC_MEASURE",
        uapi::EDU_PEER_IOC_MEASURE,
        [Peer],
        [EBUSY EBADMSG ENOSPC EOPNOTSUPP EDQUOT EAGAIN],
        layout!(EduPeerMeasure, {
            rounds: Kind::Rounds(uapi::EDU_PEER_MEASURE_MAX as u64),
            pad: Zero,
            least: Zero,
            most: Zero,
            clock: Zero,
        })
    ),
    call!(
        "EDU_PEER_IOC_MEMORY_REGISTER",
        uapi::EDU_PEER_IOC_MEMORY_REGISTER,
        [Peer],
        [EBUSY EOPNOTSUPP],
        layout!(EduPeerMemoryRegister, {
            address: Memory,
            size: Size(PAGE, EINVAL),
            flags: Zero,
            pad: Zero,
        })
    ),
    call!(
        "EDU_PEER_IOC_MEMORY_UNREGISTER",
        uapi::EDU_PEER_IOC_MEMORY_UNREGISTER,
        [Peer],
        [],
        NOTHING
    ),
    call!(
        "EDU_PEER_IOC_MEMORY_TRANSFER",
        uapi::EDU_PEER_IOC_MEMORY_TRANSFER,
        [Peer],
        [EBUSY ECANCELED EPERM ESRCH EIO ETIMEDOUT],
        TRANSFER
    ),
    call!(
        "EDU_PEER_IOC_MEMORY_QUERY",
        uapi::EDU_PEER_IOC_MEMORY_QUERY,
        [Peer],
        [EPERM ESRCH EIO EBUSY ECANCELED],
        layout!(EduPeerMemoryQuery, fix_query, {
            offset: Offset(1),
            flags: Flags(1),
            kind: Zero,
            dma_address: Zero,
            invalidations: Zero,
        })
    ),
    Call {
        opens: true,
        ..call!(
            "BAR_EXPORT_IOC_EXPORT",
            uapi::BAR_EXPORT_IOC_EXPORT,
            [Bar],
            [],
            layout!(BarExport, {
                bar: Kind::Is(2, &[0, 1, 6, 1 << 31, u32::MAX as u64]),
                flags: Zero,
                count: Count(1 << 20, true),
                pad: Zero,
                ranges: Array { of: &RANGE, count: "count", stride: "", read: true, null: false },
            })
        )
    },
];

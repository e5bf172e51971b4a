// SPDX-License-Identifier: GPL-2.0

//! The ioctls of vvram, mgpu and avram.

use super::{call, get, layout, set, Call, File, Kind, Layout, Thing};
use crate::compute::{self, Exec, Op, VmCreate, VmDestroy, VmFailures};
use crate::uapi::{
    self, AvramGemCreate, PeerAttachment, PeerAttachments, PeerFlush, PeerImportInfo, PeerQuery,
    SyncEntry, VmBind, VvramGemCopy, VvramGemCreate, VvramGemInfo, VvramGemMmapOffset,
    VvramGetparam, VvramSvmRange, VvramVmRead,
};
use libc::ENOENT;
use std::mem::offset_of;
use File::{Avram, Mgpu, Vvram};
use Kind::{Array, Below, Count, Flags, Free, Handle, Makes, Memory, Offset, Optional, Size, Some};
use Kind::{Point, Stride, Virtual, Zero};
use Thing::{Gem, Syncobj, Vm};

const PAGE: u64 = 4096;

static SYNC: Layout = layout!(SyncEntry, {
    handle: Handle(Syncobj, ENOENT),
    flags: Zero,
    point: Point,
});

static ATTACHMENT: Layout = layout!(PeerAttachment, {
    device: Free,
    bus: Free,
    driver: Free,
    path: Free,
    reason: Free,
    flags: Free,
    distance: Free,
    age: Free,
});

const ATTACHMENTS: Layout = layout!(PeerAttachments, {
    handle: Handle(Gem, ENOENT),
    entry_size: Stride(uapi::ATTACHMENT_SIZE_VER0 as u64),
    count: Count(u32::MAX as u64, false),
    pad: Zero,
    attachments: Array { of: &ATTACHMENT, count: "count", stride: "entry_size", read: false, null: false },
    inode: Zero,
});

/// A static importer takes no peer-to-peer memory and cannot be revoked. An importer that is not a
/// PCI device has no address.
fn fix_query(bytes: &mut [u8]) {
    let offset = offset_of!(PeerQuery, flags);
    let not_pci = get(bytes, offset, 4) & u64::from(uapi::QUERY_NOT_PCI);
    let dynamic = get(bytes, offset, 4) & u64::from(uapi::ATTACHMENT_DYNAMIC);
    if dynamic == 0 {
        set(bytes, offset, 4, not_pci);
    }
    // Devices are on the first buses.
    let bus = offset_of!(PeerQuery, importer.bus);
    bytes[bus] %= if not_pci == 0 { 8 } else { 1 };
    bytes[bus + 1] = 0;
}

const CLASS: u64 = (uapi::ATTACHMENT_DYNAMIC
    | uapi::ATTACHMENT_REVOCABLE
    | uapi::ATTACHMENT_PEER2PEER
    | uapi::QUERY_NOT_PCI) as u64;

const QUERY: Layout = layout!(PeerQuery, fix_query, {
    handle: Optional(Gem, ENOENT),
    flags: Flags(CLASS),
    importer.domain: Kind::Is(0, &[]),
    importer.bus: Free,
    importer.devfn: Free,
    importer.pad: Zero,
    path: Zero,
    reason: Zero,
    distance: Zero,
    route: Zero,
    bridge.domain: Zero,
    bridge.bus: Zero,
    bridge.devfn: Zero,
    bridge.pad: Zero,
    redirect.domain: Zero,
    redirect.bus: Zero,
    redirect.devfn: Zero,
    redirect.pad: Zero,
    acs: Zero,
    host_vendor: Zero,
    host_device: Zero,
    pad: Zero,
});

const FLUSH: Layout = layout!(PeerFlush, {
    handle: Optional(Gem, ENOENT),
    order: Zero,
});

const VVRAM_PARAMS: Layout = layout!(VvramGetparam, { param: Below(8), pad: Zero, value: Zero });
const MGPU_PARAMS: Layout = layout!(VvramGetparam, { param: Below(14), pad: Zero, value: Zero });

/// Importers get an object in VRAM only if it may be there, and only such an object is for direct
/// I/O.
fn fix_create(bytes: &mut [u8]) {
    if get(bytes, offset_of!(VvramGemCreate, placements), 4) == u64::from(uapi::CREATE_SYSTEM) {
        set(bytes, offset_of!(VvramGemCreate, flags), 4, 0);
    }
}

const MMAP_OFFSET: Layout = layout!(VvramGemMmapOffset, {
    handle: Handle(Gem, ENOENT),
    pad: Zero,
    offset: Zero,
});

const INFO: Layout = layout!(VvramGemInfo, {
    handle: Handle(Gem, ENOENT),
    placement: Zero,
    size: Zero,
    placements: Zero,
    flags: Zero,
    pinned: Zero,
    pad: Zero,
    id: Zero,
});

const IMPORT_INFO: Layout = layout!(PeerImportInfo, {
    handle: Handle(Gem, ENOENT),
    path: Zero,
    reason: Zero,
    segments: Zero,
    invalidations: Zero,
});

/// Parts of one object must not overlap.
fn fix_copy(bytes: &mut [u8]) {
    let word = |offset, width| get(bytes, offset, width);
    let source = word(offset_of!(VvramGemCopy, src), 4);
    if source == word(offset_of!(VvramGemCopy, dst), 4) {
        let start = word(offset_of!(VvramGemCopy, src_offset), 8);
        let size = word(offset_of!(VvramGemCopy, size), 8);
        set(
            bytes,
            offset_of!(VvramGemCopy, dst_offset),
            8,
            start.wrapping_add(size),
        );
    }
}

const COPY: Layout = layout!(VvramGemCopy, fix_copy, {
    src: Handle(Gem, ENOENT),
    dst: Handle(Gem, ENOENT),
    src_offset: Offset(1),
    dst_offset: Offset(1),
    size: Size(1, libc::EINVAL),
    in_syncs: Array { of: &SYNC, count: "in_count", stride: "sync_size", read: true, null: false },
    out_syncs: Array { of: &SYNC, count: "out_count", stride: "sync_size", read: true, null: false },
    in_count: Count(64, false),
    out_count: Count(64, false),
    sync_size: Stride(16),
    flags: Zero,
});

const RANGE: Layout = layout!(VvramSvmRange, {
    address: Memory,
    size: Size(PAGE, libc::EFAULT),
    flags: Zero,
    pad: Zero,
});

/// An unmap has no object.
fn fix_bind(bytes: &mut [u8]) {
    if get(bytes, offset_of!(VmBind, op), 4) == u64::from(uapi::BIND_UNMAP) {
        set(bytes, offset_of!(VmBind, handle), 4, 0);
        set(bytes, offset_of!(VmBind, offset), 8, 0);
    }
}

/// An operation has only the fields that it uses.
fn fix_op(bytes: &mut [u8]) {
    let (source, value) = match get(bytes, offset_of!(Op, code), 4) {
        0 => (false, true),
        1 | 2 => (true, false),
        _ => {
            set(bytes, offset_of!(Op, size), 8, 0);
            (false, true)
        }
    };
    if !source {
        set(bytes, offset_of!(Op, src), 8, 0);
    }
    if !value {
        set(bytes, offset_of!(Op, value), 8, 0);
    }
}

static OP: Layout = layout!(Op, fix_op, {
    code: Below(4),
    pad: Zero,
    src: Virtual(0),
    dst: Virtual(0),
    size: Size(1, libc::EINVAL),
    value: Free,
});

const EXEC: Layout = layout!(Exec, {
    vm: Handle(Vm, ENOENT),
    flags: Zero,
    ops: Array { of: &OP, count: "op_count", stride: "op_size", read: true, null: false },
    in_syncs: Array { of: &SYNC, count: "in_count", stride: "sync_size", read: true, null: false },
    out_syncs: Array { of: &SYNC, count: "out_count", stride: "sync_size", read: true, null: false },
    op_count: Count(32, false),
    op_size: Stride(40),
    in_count: Count(64, false),
    out_count: Count(64, false),
    sync_size: Stride(16),
    pad: Zero,
});

/// In their order in the headers.
pub(super) static CALLS: &[Call] = &[
    call!(
        "DRM_IOCTL_VVRAM_GETPARAM",
        uapi::VVRAM_GETPARAM,
        [Vvram],
        [],
        VVRAM_PARAMS
    ),
    call!(
        "DRM_IOCTL_VVRAM_GEM_CREATE",
        uapi::VVRAM_GEM_CREATE,
        [Vvram],
        [ENOSPC EOPNOTSUPP EDQUOT],
        layout!(VvramGemCreate, fix_create, {
            size: Kind::Object,
            placements: Some(3),
            flags: Flags(3),
            handle: Makes(Gem, true),
            pad: Zero,
        })
    ),
    call!(
        "DRM_IOCTL_VVRAM_GEM_MMAP_OFFSET",
        uapi::VVRAM_GEM_MMAP_OFFSET,
        [Vvram],
        [ENOENT],
        MMAP_OFFSET
    ),
    call!(
        "DRM_IOCTL_VVRAM_PEER_ATTACHMENTS",
        uapi::VVRAM_PEER_ATTACHMENTS,
        [Vvram],
        [ENOENT],
        ATTACHMENTS
    ),
    call!(
        "DRM_IOCTL_VVRAM_GEM_INFO",
        uapi::VVRAM_GEM_INFO,
        [Vvram],
        [ENOENT],
        INFO
    ),
    call!(
        "DRM_IOCTL_VVRAM_PEER_IMPORT_INFO",
        uapi::VVRAM_PEER_IMPORT_INFO,
        [Vvram],
        [ENOENT EAGAIN ENOSPC EOPNOTSUPP EBUSY],
        IMPORT_INFO
    ),
    call!(
        "DRM_IOCTL_VVRAM_GEM_COPY",
        uapi::VVRAM_GEM_COPY,
        [Vvram],
        [ENOENT E2BIG EAGAIN],
        COPY
    ),
    call!("DRM_IOCTL_VVRAM_PEER_QUERY", uapi::VVRAM_PEER_QUERY, [Vvram], [ENOENT ENXIO], QUERY),
    call!(
        "DRM_IOCTL_VVRAM_PEER_FLUSH",
        uapi::VVRAM_PEER_FLUSH,
        [Vvram],
        [ENOENT],
        FLUSH
    ),
    call!(
        "DRM_IOCTL_VVRAM_VM_BIND",
        uapi::VVRAM_VM_BIND,
        [Vvram],
        [ENOENT EEXIST EAGAIN],
        layout!(VmBind, fix_bind, {
            vm: Zero,
            op: Below(2),
            handle: Handle(Gem, ENOENT),
            flags: Zero,
            address: Virtual(PAGE),
            offset: Offset(PAGE),
            size: Size(PAGE, libc::EINVAL),
        })
    ),
    call!(
        "DRM_IOCTL_VVRAM_VM_READ",
        uapi::VVRAM_VM_READ,
        [Vvram],
        [EOPNOTSUPP EAGAIN],
        layout!(VvramVmRead, {
            address: Virtual(1),
            size: Size(1, libc::EINVAL),
            data: Kind::Bytes("size", false),
            flags: Flags(1),
            pad: Zero,
        })
    ),
    call!(
        "DRM_IOCTL_VVRAM_SVM_MIGRATE",
        uapi::VVRAM_SVM_MIGRATE,
        [Vvram],
        [EBUSY ENOSPC EOPNOTSUPP],
        RANGE
    ),
    call!(
        "DRM_IOCTL_VVRAM_SVM_EVICT",
        uapi::VVRAM_SVM_EVICT,
        [Vvram],
        [],
        RANGE
    ),
    call!(
        "DRM_IOCTL_MGPU_GETPARAM",
        uapi::VVRAM_GETPARAM,
        [Mgpu],
        [],
        MGPU_PARAMS
    ),
    call!(
        "DRM_IOCTL_MGPU_GEM_CREATE",
        uapi::VVRAM_GEM_CREATE,
        [Mgpu],
        [ENOENT ENOSPC EIO EDQUOT],
        layout!(VvramGemCreate, fix_create, {
            size: Kind::Object,
            placements: Some(3),
            flags: Flags(1),
            handle: Makes(Gem, true),
            pad: Optional(Vm, ENOENT),
        })
    ),
    call!(
        "DRM_IOCTL_MGPU_GEM_MMAP_OFFSET",
        uapi::VVRAM_GEM_MMAP_OFFSET,
        [Mgpu],
        [ENOENT],
        MMAP_OFFSET
    ),
    call!(
        "DRM_IOCTL_MGPU_PEER_ATTACHMENTS",
        uapi::VVRAM_PEER_ATTACHMENTS,
        [Mgpu],
        [ENOENT],
        ATTACHMENTS
    ),
    call!(
        "DRM_IOCTL_MGPU_GEM_INFO",
        uapi::VVRAM_GEM_INFO,
        [Mgpu],
        [ENOENT],
        INFO
    ),
    call!(
        "DRM_IOCTL_MGPU_PEER_IMPORT_INFO",
        uapi::VVRAM_PEER_IMPORT_INFO,
        [Mgpu],
        [ENOENT EAGAIN ENOSPC EOPNOTSUPP EBUSY],
        IMPORT_INFO
    ),
    call!(
        "DRM_IOCTL_MGPU_GEM_COPY",
        uapi::VVRAM_GEM_COPY,
        [Mgpu],
        [ENOENT E2BIG EIO EAGAIN],
        COPY
    ),
    call!("DRM_IOCTL_MGPU_PEER_QUERY", uapi::VVRAM_PEER_QUERY, [Mgpu], [ENOENT ENXIO], QUERY),
    call!(
        "DRM_IOCTL_MGPU_PEER_FLUSH",
        uapi::MGPU_PEER_FLUSH,
        [Mgpu],
        [ENOENT],
        FLUSH
    ),
    call!(
        "DRM_IOCTL_MGPU_VM_CREATE",
        compute::VM_CREATE,
        [Mgpu],
        [ENOSPC],
        layout!(VmCreate, { flags: Zero, vm: Makes(Vm, true) })
    ),
    call!(
        "DRM_IOCTL_MGPU_VM_DESTROY",
        compute::VM_DESTROY,
        [Mgpu],
        [ENOENT],
        layout!(VmDestroy, { vm: Kind::Closes(Vm, ENOENT), pad: Zero })
    ),
    call!(
        "DRM_IOCTL_MGPU_VM_BIND",
        compute::VM_BIND,
        [Mgpu],
        [ENOENT ENOSPC],
        layout!(VmBind, fix_bind, {
            vm: Handle(Vm, ENOENT),
            op: Below(2),
            handle: Handle(Gem, ENOENT),
            flags: Zero,
            address: Virtual(PAGE),
            offset: Offset(PAGE),
            size: Size(PAGE, libc::EINVAL),
        })
    ),
    call!(
        "DRM_IOCTL_MGPU_EXEC",
        compute::EXEC,
        [Mgpu],
        [ENOENT E2BIG ENOSPC EIO EAGAIN EOPNOTSUPP],
        EXEC
    ),
    call!(
        "DRM_IOCTL_MGPU_VM_FAILURES",
        compute::VM_FAILURES,
        [Mgpu],
        [ENOENT],
        layout!(VmFailures, {
            vm: Handle(Vm, ENOENT),
            access: Zero,
            address: Zero,
            faults: Zero,
            hangs: Zero,
        })
    ),
    call!(
        "DRM_IOCTL_AVRAM_GEM_CREATE",
        uapi::AVRAM_GEM_CREATE,
        [Avram],
        [ENOSPC],
        layout!(AvramGemCreate, {
            size: Kind::Object,
            handle: Makes(Gem, true),
            pad: Zero,
        })
    ),
    call!(
        "DRM_IOCTL_AVRAM_PEER_ATTACHMENTS",
        uapi::AVRAM_PEER_ATTACHMENTS,
        [Avram],
        [ENOENT],
        ATTACHMENTS
    ),
    call!("DRM_IOCTL_AVRAM_PEER_QUERY", uapi::AVRAM_PEER_QUERY, [Avram], [ENOENT ENXIO], QUERY),
    call!(
        "DRM_IOCTL_AVRAM_PEER_FLUSH",
        uapi::AVRAM_PEER_FLUSH,
        [Avram],
        [ENOENT],
        FLUSH
    ),
];

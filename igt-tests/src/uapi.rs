// SPDX-License-Identifier: GPL-2.0

//! The ioctls the tests use, mirrored from `include/uapi/drm/vvram_drm.h`,
//! `include/uapi/drm/drm_peer.h`, `include/uapi/misc/edu_peer.h`, `drm.h`, `dma-buf.h` and
//! `dma-heap.h`.
//!
//! They are written by hand on purpose: a program that was built against an older header must keep
//! working, so a change of the ABI has to fail here.

use std::mem::size_of;

mod memory;
mod sync;

pub use memory::*;
pub use sync::*;

const NONE: u64 = 0;
const WRITE: u64 = 1;
const READ: u64 = 2;

/// Number of an ioctl, as `_IOC()` computes it.
pub const fn ioc(dir: u64, kind: u64, nr: u64, size: usize) -> u64 {
    (dir << 30) | ((size as u64) << 16) | (kind << 8) | nr
}

const fn io(kind: u64, nr: u64) -> u64 {
    ioc(NONE, kind, nr, 0)
}

const fn ior<T>(kind: u64, nr: u64) -> u64 {
    ioc(READ, kind, nr, size_of::<T>())
}

const fn iow<T>(kind: u64, nr: u64) -> u64 {
    ioc(WRITE, kind, nr, size_of::<T>())
}

const fn iowr<T>(kind: u64, nr: u64) -> u64 {
    ioc(READ | WRITE, kind, nr, size_of::<T>())
}

const DRM: u64 = b'd' as u64;
/// First number of a driver's own ioctls.
pub const DRM_COMMAND_BASE: u64 = 0x40;

/// `struct drm_version`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DrmVersion {
    /// Major version.
    pub major: i32,
    /// Minor version.
    pub minor: i32,
    /// Patch level.
    pub patchlevel: i32,
    /// Length of the name.
    pub name_len: usize,
    /// Where the name goes.
    pub name: *mut u8,
    /// Length of the date.
    pub date_len: usize,
    /// Where the date goes.
    pub date: *mut u8,
    /// Length of the description.
    pub desc_len: usize,
    /// Where the description goes.
    pub desc: *mut u8,
}

/// `struct drm_gem_close`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmGemClose {
    /// The handle to close.
    pub handle: u32,
    /// Zero.
    pub pad: u32,
}

/// `struct drm_prime_handle`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmPrimeHandle {
    /// GEM handle.
    pub handle: u32,
    /// `DRM_CLOEXEC`, `DRM_RDWR`.
    pub flags: u32,
    /// dma-buf.
    pub fd: i32,
}

/// Asks for the name of a DRM driver.
pub const DRM_IOCTL_VERSION: u64 = iowr::<DrmVersion>(DRM, 0x00);
/// Closes a GEM handle.
pub const DRM_IOCTL_GEM_CLOSE: u64 = iow::<DrmGemClose>(DRM, 0x09);
/// struct drm_gem_flink
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmGemFlink {
    /// Handle of the object.
    pub handle: u32,
    /// Out: its name, for all clients.
    pub name: u32,
}

/// struct drm_gem_open
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmGemOpen {
    /// Name of the object.
    pub name: u32,
    /// Out: a handle.
    pub handle: u32,
    /// Out: its size.
    pub size: u64,
}

/// Gives an object a name.
pub const DRM_IOCTL_GEM_FLINK: u64 = iowr::<DrmGemFlink>(DRM, 0x0a);
/// Finds an object by its name.
pub const DRM_IOCTL_GEM_OPEN: u64 = iowr::<DrmGemOpen>(DRM, 0x0b);
/// Exports a GEM handle.
pub const DRM_IOCTL_PRIME_HANDLE_TO_FD: u64 = iowr::<DrmPrimeHandle>(DRM, 0x2d);
/// Imports a dma-buf.
pub const DRM_IOCTL_PRIME_FD_TO_HANDLE: u64 = iowr::<DrmPrimeHandle>(DRM, 0x2e);
/// Becomes the DRM master.
pub const DRM_IOCTL_SET_MASTER: u64 = io(DRM, 0x1e);
/// Stops to be the master.
pub const DRM_IOCTL_DROP_MASTER: u64 = io(DRM, 0x1f);
/// Lets the master authenticate another client.
pub const DRM_IOCTL_AUTH_MAGIC: u64 = iow::<u32>(DRM, 0x11);
/// Close the exported fd on exec.
pub const DRM_CLOEXEC: u32 = libc::O_CLOEXEC as u32;
/// Make the exported fd writable.
pub const DRM_RDWR: u32 = libc::O_RDWR as u32;

/// `struct drm_vvram_getparam`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VvramGetparam {
    /// The parameter.
    pub param: u32,
    /// Zero.
    pub pad: u32,
    /// Out.
    pub value: u64,
}

/// All VRAM.
pub const PARAM_VRAM_SIZE: u32 = 0;
/// VRAM behind the BAR.
pub const PARAM_VRAM_CPU_VISIBLE_SIZE: u32 = 1;
/// Unit of sizes.
pub const PARAM_PAGE_SIZE: u32 = 2;
/// How much VRAM may be pinned.
pub const PARAM_VRAM_PIN_LIMIT: u32 = 3;
/// VRAM that direct I/O reaches.
pub const PARAM_DIRECT_IO_SIZE: u32 = 4;
/// Fences of a call.
pub const PARAM_SYNC_MAX: u32 = 5;
/// Copies of a file.
pub const PARAM_COPIES_MAX: u32 = 6;
/// Bytes of an address space.
pub const PARAM_VM_SIZE: u32 = 7;
/// How many parameters there are.
pub const PARAMS: u32 = 8;

/// `struct drm_avram_gem_create`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AvramGemCreate {
    /// In and out, bytes.
    pub size: u64,
    /// Out.
    pub handle: u32,
    /// Zero.
    pub pad: u32,
}

/// `struct drm_vvram_gem_create`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VvramGemCreate {
    /// In and out, bytes.
    pub size: u64,
    /// Its placements.
    pub placements: u32,
    /// How it is exported.
    pub flags: u32,
    /// Out.
    pub handle: u32,
    /// Zero.
    pub pad: u32,
}

impl VvramGemCreate {
    /// An argument for an object with the flags `CREATE_*`.
    pub fn new(size: u64, what: u32) -> Self {
        Self {
            size,
            placements: what & 0xffff,
            flags: what >> 16,
            ..Default::default()
        }
    }
}

// The properties of an object in one number: the placements, and the flags in the upper half.

/// May be placed in VRAM. Without `CREATE_SYSTEM` it never leaves VRAM.
pub const CREATE_VRAM: u32 = 1 << 0;
/// May be placed in system memory. Without `CREATE_VRAM` it is never in VRAM.
pub const CREATE_SYSTEM: u32 = 1 << 1;
/// Importers get it in VRAM or not at all.
pub const CREATE_EXPORT_VRAM_OR_FAIL: u32 = 1 << 16;
/// Processes map it for direct I/O.
pub const CREATE_DIRECT_IO: u32 = 1 << 17;

/// In VRAM.
pub const PLACEMENT_VRAM: u32 = 1;
/// In system memory.
pub const PLACEMENT_SYSTEM: u32 = 2;

/// `struct drm_vvram_gem_info`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VvramGemInfo {
    /// The object.
    pub handle: u32,
    /// `PLACEMENT_*`.
    pub placement: u32,
    /// Bytes.
    pub size: u64,
    /// Its placements.
    pub placements: u32,
    /// How it is exported.
    pub flags: u32,
    /// 1 if it is pinned.
    pub pinned: u32,
    /// Zero.
    pub pad: u32,
    /// The number in debugfs and in tracepoints.
    pub id: u64,
}

impl VvramGemInfo {
    /// Its properties, as `CREATE_*`.
    pub fn what(&self) -> u32 {
        self.placements | self.flags << 16
    }
}

/// `struct drm_vvram_gem_mmap_offset`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VvramGemMmapOffset {
    /// The object.
    pub handle: u32,
    /// Zero.
    pub pad: u32,
    /// Out.
    pub offset: u64,
}

/// It is imported.
pub const PLACEMENT_IMPORTED: u32 = 3;

/// `struct drm_peer_import_info`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerImportInfo {
    /// The object.
    pub handle: u32,
    /// `PATH_*`.
    pub path: u32,
    /// `REASON_*`.
    pub reason: u32,
    /// Pieces of the mapping.
    pub segments: u32,
    /// How often the mapping was invalidated.
    pub invalidations: u64,
}

/// The path is not known.
pub const PATH_UNKNOWN: u32 = 0;
/// Peer to peer by bus address.
pub const PATH_PEER_BUS: u32 = 1;
/// Peer to peer through the host bridge.
pub const PATH_PEER_HOST_BRIDGE: u32 = 2;
/// System memory.
pub const PATH_SYSTEM: u32 = 3;
/// Refused.
pub const PATH_REFUSED: u32 = 4;
/// Peer to peer by a link that is not PCI.
pub const PATH_LINK: u32 = 5;

/// It is peer to peer.
pub const REASON_NONE: u32 = 0;
/// The importer does not take peer-to-peer memory.
pub const REASON_NO_OPT_IN: u32 = 1;
/// The importer is not a PCI device.
pub const REASON_NOT_PCI: u32 = 2;
/// No permitted route.
pub const REASON_NO_ROUTE: u32 = 3;
/// The BAR does not show all of it.
pub const REASON_OUTSIDE_BAR: u32 = 4;
/// The exporting device is suspended, or was when the importer mapped.
pub const REASON_SUSPENDED: u32 = 5;
/// Another importer needs system memory.
pub const REASON_OTHER_IMPORTER: u32 = 6;
/// No room in VRAM.
pub const REASON_NO_VRAM: u32 = 7;
/// The object may only be in system memory.
pub const REASON_SYSTEM_ONLY: u32 = 8;
/// The importer cannot be revoked, and gets no VRAM because of that.
pub const REASON_NOT_REVOCABLE: u32 = 9;
/// The aperture is full.
pub const REASON_NO_WINDOW: u32 = 10;
/// Pinned where the importer cannot reach it, or in system memory for a peer.
pub const REASON_PINNED_ELSEWHERE: u32 = 16;

/// Pinned.
pub const ATTACHMENT_PINNED: u32 = 1 << 0;
/// Mapped.
pub const ATTACHMENT_MAPPED: u32 = 1 << 1;
/// Attached dynamically.
pub const ATTACHMENT_DYNAMIC: u32 = 1 << 2;
/// Can be invalidated.
pub const ATTACHMENT_REVOCABLE: u32 = 1 << 3;
/// Opted in to peer-to-peer memory.
pub const ATTACHMENT_PEER2PEER: u32 = 1 << 4;
/// Not a PCI device, in a query.
pub const QUERY_NOT_PCI: u32 = 1 << 5;

/// Most refusals PEER_ATTACHMENTS lists.
pub const MAX_REFUSALS: usize = 8;

/// `struct drm_peer_attachment`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerAttachment {
    /// Name of the importer, NUL terminated.
    pub device: [u8; 32],
    /// Name of its bus, NUL terminated.
    pub bus: [u8; 32],
    /// Name of its driver, NUL terminated.
    pub driver: [u8; 32],
    /// `PATH_*`.
    pub path: u32,
    /// `REASON_*`.
    pub reason: u32,
    /// `ATTACHMENT_*`.
    pub flags: u32,
    /// PCI hops or -1.
    pub distance: i32,
    /// Of a refusal, how long ago it was, in nanoseconds.
    pub age: u64,
}

/// Size of the first version of `struct drm_peer_attachment`.
pub const ATTACHMENT_SIZE_VER0: u32 = 120;

/// `struct drm_peer_attachments`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerAttachments {
    /// The object.
    pub handle: u32,
    /// Bytes of an entry, in and out.
    pub entry_size: u32,
    /// In and out.
    pub count: u32,
    /// Zero.
    pub pad: u32,
    /// User pointer.
    pub attachments: u64,
    /// Out, inode of the dma-buf.
    pub inode: u64,
}

/// `struct drm_peer_address`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerAddress {
    /// PCI domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device times 8, plus function.
    pub devfn: u8,
    /// Zero.
    pub pad: u16,
}

/// Both devices are below one bridge.
pub const ROUTE_BRIDGE: u32 = 1 << 0;
/// A port on the way redirects.
pub const ROUTE_ACS_REDIRECT: u32 = 1 << 1;
/// The route goes through the host.
pub const ROUTE_HOST: u32 = 1 << 2;
/// The processor is known to forward.
pub const ROUTE_HOST_CPU: u32 = 1 << 3;
/// The host bridge is on the list of host bridges that forward.
pub const ROUTE_HOST_LISTED: u32 = 1 << 4;

/// `struct drm_peer_query`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerQuery {
    /// The object, or 0.
    pub handle: u32,
    /// `ATTACHMENT_DYNAMIC`, `ATTACHMENT_REVOCABLE`, `ATTACHMENT_PEER2PEER`, `QUERY_NOT_PCI`.
    pub flags: u32,
    /// The importing device.
    pub importer: PeerAddress,
    /// Out, `PATH_*`.
    pub path: u32,
    /// Out, `REASON_*`.
    pub reason: u32,
    /// Out, PCI hops or -1.
    pub distance: i32,
    /// Out, `ROUTE_*`.
    pub route: u32,
    /// Out, the common bridge.
    pub bridge: PeerAddress,
    /// Out, the port that redirects.
    pub redirect: PeerAddress,
    /// Out, the bits by which it redirects.
    pub acs: u16,
    /// Out, vendor of the host bridge.
    pub host_vendor: u16,
    /// Out, device ID of the host bridge.
    pub host_device: u16,
    /// Zero.
    pub pad: u16,
}

/// GEM_CREATE of avram.
pub const AVRAM_GEM_CREATE: u64 = iowr::<AvramGemCreate>(DRM, DRM_COMMAND_BASE);
/// Work reads what a peer has written after FLUSH.
pub const ORDER_FLUSH: u32 = 0;
/// Work reads what a peer has written once the peer has reported that.
pub const ORDER_REPORT: u32 = 1;

/// `struct drm_peer_flush`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerFlush {
    /// The object, or 0.
    pub handle: u32,
    /// Out, `ORDER_*`.
    pub order: u32,
}

/// FLUSH of avram.
pub const AVRAM_PEER_FLUSH: u64 = iowr::<PeerFlush>(DRM, DRM_COMMAND_BASE + 3);
/// FLUSH of vvram.
pub const VVRAM_PEER_FLUSH: u64 = iowr::<PeerFlush>(DRM, DRM_COMMAND_BASE + 12);
/// FLUSH of mgpu.
pub const MGPU_PEER_FLUSH: u64 = iowr::<PeerFlush>(DRM, DRM_COMMAND_BASE + 13);
/// ATTACHMENTS of avram.
pub const AVRAM_PEER_ATTACHMENTS: u64 = iowr::<PeerAttachments>(DRM, DRM_COMMAND_BASE + 1);
/// QUERY of avram.
pub const AVRAM_PEER_QUERY: u64 = iowr::<PeerQuery>(DRM, DRM_COMMAND_BASE + 2);
/// GETPARAM.
pub const VVRAM_GETPARAM: u64 = iowr::<VvramGetparam>(DRM, DRM_COMMAND_BASE);
/// GEM_CREATE.
pub const VVRAM_GEM_CREATE: u64 = iowr::<VvramGemCreate>(DRM, DRM_COMMAND_BASE + 1);
/// GEM_MMAP_OFFSET.
pub const VVRAM_GEM_MMAP_OFFSET: u64 = iowr::<VvramGemMmapOffset>(DRM, DRM_COMMAND_BASE + 2);
/// PEER_ATTACHMENTS.
pub const VVRAM_PEER_ATTACHMENTS: u64 = iowr::<PeerAttachments>(DRM, DRM_COMMAND_BASE + 3);
/// GEM_INFO.
pub const VVRAM_GEM_INFO: u64 = iowr::<VvramGemInfo>(DRM, DRM_COMMAND_BASE + 4);

/// `struct drm_vvram_gem_copy`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VvramGemCopy {
    /// Read.
    pub src: u32,
    /// Written.
    pub dst: u32,
    /// First byte read.
    pub src_offset: u64,
    /// First byte written.
    pub dst_offset: u64,
    /// Bytes.
    pub size: u64,
    /// User pointer to the fences to wait for.
    pub in_syncs: u64,
    /// User pointer to the entries to signal.
    pub out_syncs: u64,
    /// Entries of `in_syncs`.
    pub in_count: u32,
    /// Entries of `out_syncs`.
    pub out_count: u32,
    /// Bytes from one entry to the next.
    pub sync_size: u32,
    /// Zero.
    pub flags: u32,
}

/// GEM_COPY.
pub const VVRAM_GEM_COPY: u64 = iow::<VvramGemCopy>(DRM, DRM_COMMAND_BASE + 6);

/// PEER_QUERY.
pub const VVRAM_PEER_QUERY: u64 = iowr::<PeerQuery>(DRM, DRM_COMMAND_BASE + 7);

/// Size of an address space in bytes.
pub const VM_SIZE: u64 = 1 << 26;
/// Maps a part of an object.
pub const BIND_MAP: u32 = 0;
/// Unmaps addresses.
pub const BIND_UNMAP: u32 = 1;

/// `struct drm_vvram_vm_bind`, `struct drm_mgpu_vm_bind`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VmBind {
    /// The address space of mgpu; zero for vvram.
    pub vm: u32,
    /// `BIND_*`.
    pub op: u32,
    /// The object.
    pub handle: u32,
    /// Zero.
    pub flags: u32,
    /// First address.
    pub address: u64,
    /// Where in the object.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// VM_BIND.
pub const VVRAM_VM_BIND: u64 = iow::<VmBind>(DRM, DRM_COMMAND_BASE + 8);

/// Read through the page table as it is.
pub const VM_READ_AS_IS: u32 = 1 << 0;

/// `struct drm_vvram_vm_read`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VvramVmRead {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// User pointer to the bytes.
    pub data: u64,
    /// `VM_READ_*`.
    pub flags: u32,
    /// Zero.
    pub pad: u32,
}

/// VM_READ.
pub const VVRAM_VM_READ: u64 = iow::<VvramVmRead>(DRM, DRM_COMMAND_BASE + 9);

/// `struct drm_vvram_svm_range`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VvramSvmRange {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub pad: u32,
}

/// SVM_MIGRATE.
pub const VVRAM_SVM_MIGRATE: u64 = iow::<VvramSvmRange>(DRM, DRM_COMMAND_BASE + 10);
/// SVM_EVICT.
pub const VVRAM_SVM_EVICT: u64 = iow::<VvramSvmRange>(DRM, DRM_COMMAND_BASE + 11);

/// PEER_IMPORT_INFO.
pub const VVRAM_PEER_IMPORT_INFO: u64 = iowr::<PeerImportInfo>(DRM, DRM_COMMAND_BASE + 5);

/// No importer ops.
pub const EDU_PEER_MODE_STATIC: u32 = 0;
/// invalidate_mappings drops the mapping.
pub const EDU_PEER_MODE_DYNAMIC: u32 = 1;
/// No invalidate_mappings.
pub const EDU_PEER_MODE_PINNED: u32 = 2;
/// invalidate_mappings revokes the buffer.
pub const EDU_PEER_MODE_REVOCABLE: u32 = 3;
/// Dynamic without allow_peer2peer.
pub const EDU_PEER_MODE_NO_P2P: u32 = 4;
/// The CPU in place of the device.
pub const EDU_PEER_MODE_CPU: u32 = 5;
/// Unmaps an invalidated mapping late.
pub const EDU_PEER_MODE_LATE: u32 = 6;

/// `struct edu_peer_attach`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EduPeerAttach {
    /// dma-buf.
    pub fd: i32,
    /// `EDU_PEER_*`.
    pub mode: u32,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub pad: u32,
    /// Out, bytes.
    pub size: u64,
}

/// From the dma-buf to the caller.
pub const EDU_PEER_DIRECTION_READ: u32 = 0;
/// From the caller to the dma-buf.
pub const EDU_PEER_DIRECTION_WRITE: u32 = 1;

/// `struct edu_peer_transfer`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EduPeerTransfer {
    /// First byte.
    pub offset: u64,
    /// Bytes, in and out.
    pub length: u64,
    /// User pointer.
    pub data: u64,
    /// `EDU_PEER_DIRECTION_READ` or `EDU_PEER_DIRECTION_WRITE`.
    pub direction: u32,
    /// Zero.
    pub pad: u32,
}

/// `struct edu_peer_submit`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EduPeerSubmit {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// User pointer for a write, or zero.
    pub data: u64,
    /// `EDU_PEER_DIRECTION_READ` or `EDU_PEER_DIRECTION_WRITE`.
    pub direction: u32,
    /// Zero.
    pub flags: u32,
}

/// `struct edu_peer_finish`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EduPeerFinish {
    /// User pointer.
    pub data: u64,
    /// Bytes that it has room for.
    pub room: u64,
    /// Out, bytes.
    pub moved: u64,
    /// `EDU_PEER_DIRECTION_READ` or `EDU_PEER_DIRECTION_WRITE`.
    pub direction: u32,
    /// Zero.
    pub flags: u32,
}

/// `struct edu_peer_segment`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EduPeerSegment {
    /// DMA address.
    pub dma_address: u64,
    /// Bytes.
    pub length: u64,
}

/// `struct edu_peer_table`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EduPeerTable {
    /// User pointer.
    pub segments: u64,
    /// In and out.
    pub count: u32,
    /// Zero.
    pub pad: u32,
}

/// Attached.
pub const EDU_PEER_STATUS_ATTACHED: u32 = 1 << 0;
/// Mapped.
pub const EDU_PEER_STATUS_MAPPED: u32 = 1 << 1;
/// Pinned.
pub const EDU_PEER_STATUS_PINNED: u32 = 1 << 2;
/// Revoked.
pub const EDU_PEER_STATUS_REVOKED: u32 = 1 << 3;
/// The vmap is I/O memory.
pub const EDU_PEER_STATUS_IOMEM: u32 = 1 << 4;
/// A transfer is under way.
pub const EDU_PEER_STATUS_BUSY: u32 = 1 << 5;
/// Most bytes SUBMIT moves.
pub const EDU_PEER_SUBMIT_MAX: usize = 16 * 4096;

/// `struct edu_peer_status`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EduPeerStatus {
    /// `EDU_PEER_STATUS_ATTACHED` and following.
    pub flags: u32,
    /// Zero.
    pub pad: u32,
    /// Times the mapping was invalidated.
    pub invalidations: u64,
    /// Times the attachment was mapped.
    pub maps: u64,
}

/// Most rounds of one measurement.
pub const EDU_PEER_MEASURE_MAX: u32 = 10000;

/// `struct edu_peer_measure`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EduPeerMeasure {
    /// How often.
    pub rounds: u32,
    /// Zero.
    pub pad: u32,
    /// Out, least time of a map and an unmap and one read of the clock, in ns.
    pub least: u64,
    /// Out, the longest time.
    pub most: u64,
    /// Out, least time of a read of the clock.
    pub clock: u64,
}

const EDU: u64 = 0xed;
/// Attach.
pub const EDU_PEER_IOC_ATTACH: u64 = iowr::<EduPeerAttach>(EDU, 0x10);
/// Detach.
pub const EDU_PEER_IOC_DETACH: u64 = io(EDU, 0x11);
/// Pin.
pub const EDU_PEER_IOC_PIN: u64 = io(EDU, 0x12);
/// Unpin.
pub const EDU_PEER_IOC_UNPIN: u64 = io(EDU, 0x13);
/// Map.
pub const EDU_PEER_IOC_MAP: u64 = io(EDU, 0x14);
/// Unmap.
pub const EDU_PEER_IOC_UNMAP: u64 = io(EDU, 0x15);
/// Move bytes.
pub const EDU_PEER_IOC_TRANSFER: u64 = iowr::<EduPeerTransfer>(EDU, 0x16);
/// Scatter table.
pub const EDU_PEER_IOC_TABLE: u64 = iowr::<EduPeerTable>(EDU, 0x17);
/// State.
pub const EDU_PEER_IOC_STATUS: u64 = ior::<EduPeerStatus>(EDU, 0x18);
/// Start to move bytes.
pub const EDU_PEER_IOC_SUBMIT: u64 = iow::<EduPeerSubmit>(EDU, 0x19);
/// Wait until they are moved.
pub const EDU_PEER_IOC_FINISH: u64 = iowr::<EduPeerFinish>(EDU, 0x1a);
/// Times map and unmap.
pub const EDU_PEER_IOC_MEASURE: u64 = iowr::<EduPeerMeasure>(EDU, 0x1b);

/// `struct dma_buf_sync`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DmaBufSync {
    /// `DMA_BUF_SYNC_*`.
    pub flags: u64,
}

/// The CPU reads.
pub const DMA_BUF_SYNC_READ: u64 = 1;
/// The CPU writes.
pub const DMA_BUF_SYNC_WRITE: u64 = 2;
/// The access ends.
pub const DMA_BUF_SYNC_END: u64 = 4;
/// Brackets CPU access to a dma-buf.
pub const DMA_BUF_IOCTL_SYNC: u64 = iow::<DmaBufSync>(b'b' as u64, 0);

/// Names a buffer.
pub const DMA_BUF_SET_NAME: u64 = iow::<u64>(b'b' as u64, 1);

/// `struct drm_set_client_name`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmSetClientName {
    /// Bytes.
    pub name_len: u64,
    /// User pointer.
    pub name: u64,
}

/// Names a client.
pub const DRM_IOCTL_SET_CLIENT_NAME: u64 = iowr::<DrmSetClientName>(DRM, 0xd1);

/// `struct dma_heap_allocation_data`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DmaHeapAllocation {
    /// Bytes.
    pub len: u64,
    /// Out.
    pub fd: u32,
    /// Flags of the fd.
    pub fd_flags: u32,
    /// Zero.
    pub heap_flags: u64,
}

/// `struct bar_export_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BarExportRange {
    /// Where in the BAR it begins.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// `struct bar_export`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BarExport {
    /// Number of the BAR.
    pub bar: u32,
    /// Zero.
    pub flags: u32,
    /// How many ranges there are.
    pub count: u32,
    /// Zero.
    pub pad: u32,
    /// User pointer to the ranges.
    pub ranges: u64,
}

/// Exports ranges of a BAR.
pub const BAR_EXPORT_IOC_EXPORT: u64 = iow::<BarExport>(EDU, 0x20);

/// Allocates a dma-buf from a heap.
pub const DMA_HEAP_IOCTL_ALLOC: u64 = iowr::<DmaHeapAllocation>(b'H' as u64, 0);

/// `struct udmabuf_create`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UdmabufCreate {
    /// Sealed against shrinking.
    pub memfd: u32,
    /// Flags of the fd.
    pub flags: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// Makes a dma-buf of a memfd.
pub const UDMABUF_CREATE: u64 = iow::<UdmabufCreate>(b'u' as u64, 0x42);

/// `struct drm_mode_create_dumb`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrmModeCreateDumb {
    /// Lines.
    pub height: u32,
    /// Pixels of a line.
    pub width: u32,
    /// Bits of a pixel.
    pub bpp: u32,
    /// Zero.
    pub flags: u32,
    /// Out.
    pub handle: u32,
    /// Out, bytes of a line.
    pub pitch: u32,
    /// Out, bytes.
    pub size: u64,
}

/// Makes a dumb buffer.
pub const DRM_IOCTL_MODE_CREATE_DUMB: u64 = iowr::<DrmModeCreateDumb>(DRM, 0xb2);

const _: () = {
    assert!(size_of::<DrmVersion>() == 64);
    assert!(size_of::<DrmGemClose>() == 8);
    assert!(size_of::<DrmPrimeHandle>() == 12);
    assert!(size_of::<VvramGetparam>() == 16);
    assert!(size_of::<VvramGemCreate>() == 24);
    assert!(size_of::<VvramGemMmapOffset>() == 16);
    assert!(size_of::<VvramGemInfo>() == 40);
    assert!(size_of::<PeerAttachment>() == 120);
    assert!(size_of::<PeerAttachments>() == 32);
    assert!(size_of::<PeerAddress>() == 8);
    assert!(size_of::<PeerQuery>() == 56);
    assert!(size_of::<PeerFlush>() == 8);
    assert!(size_of::<EduPeerAttach>() == 24);
    assert!(size_of::<EduPeerTransfer>() == 32);
    assert!(size_of::<EduPeerSubmit>() == 32);
    assert!(size_of::<EduPeerFinish>() == 32);
    assert!(size_of::<EduPeerSegment>() == 16);
    assert!(size_of::<EduPeerTable>() == 16);
    assert!(size_of::<EduPeerStatus>() == 24);
    assert!(size_of::<BarExportRange>() == 16);
    assert!(size_of::<BarExport>() == 24);
    assert!(size_of::<EduPeerMeasure>() == 32);
    assert!(size_of::<DmaBufSync>() == 8);
    assert!(size_of::<DmaHeapAllocation>() == 24);
    assert!(size_of::<PeerImportInfo>() == 24);
    assert!(size_of::<VvramGemCopy>() == 64);
    assert!(size_of::<UdmabufCreate>() == 24);
    assert!(size_of::<DrmModeCreateDumb>() == 32);
    assert!(size_of::<DrmSetClientName>() == 16);
    // Numbers as the C headers compute them.
    assert!(DRM_IOCTL_VERSION == 0xc040_6400);
    assert!(DRM_IOCTL_GEM_CLOSE == 0x4008_6409);
    assert!(DRM_IOCTL_PRIME_HANDLE_TO_FD == 0xc00c_642d);
    assert!(DRM_IOCTL_PRIME_FD_TO_HANDLE == 0xc00c_642e);
    assert!(AVRAM_GEM_CREATE == 0xc010_6440);
    assert!(VVRAM_GETPARAM == 0xc010_6440);
    assert!(VVRAM_GEM_CREATE == 0xc018_6441);
    assert!(VVRAM_GEM_MMAP_OFFSET == 0xc010_6442);
    assert!(VVRAM_PEER_ATTACHMENTS == 0xc020_6443);
    assert!(VVRAM_GEM_INFO == 0xc028_6444);
    assert!(VVRAM_PEER_IMPORT_INFO == 0xc018_6445);
    assert!(VVRAM_GEM_COPY == 0x4040_6446);
    assert!(VVRAM_PEER_QUERY == 0xc038_6447);
    assert!(VVRAM_VM_BIND == 0x4028_6448);
    assert!(VVRAM_VM_READ == 0x4020_6449);
    assert!(VVRAM_SVM_MIGRATE == 0x4018_644a);
    assert!(VVRAM_SVM_EVICT == 0x4018_644b);
    assert!(VVRAM_PEER_FLUSH == 0xc008_644c);
    assert!(EDU_PEER_IOC_ATTACH == 0xc018_ed10);
    assert!(EDU_PEER_IOC_DETACH == 0x0000_ed11);
    assert!(EDU_PEER_IOC_TRANSFER == 0xc020_ed16);
    assert!(EDU_PEER_IOC_TABLE == 0xc010_ed17);
    assert!(EDU_PEER_IOC_STATUS == 0x8018_ed18);
    assert!(BAR_EXPORT_IOC_EXPORT == 0x4018_ed20);
    assert!(EDU_PEER_IOC_SUBMIT == 0x4020_ed19);
    assert!(EDU_PEER_IOC_FINISH == 0xc020_ed1a);
    assert!(EDU_PEER_IOC_MEASURE == 0xc020_ed1b);
    assert!(DMA_BUF_IOCTL_SYNC == 0x4008_6200);
    assert!(DMA_HEAP_IOCTL_ALLOC == 0xc018_4800);
    assert!(UDMABUF_CREATE == 0x4018_7542);
    assert!(DRM_IOCTL_MODE_CREATE_DUMB == 0xc020_64b2);
};

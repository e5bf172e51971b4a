// SPDX-License-Identifier: GPL-2.0

//! The calls: those of [`crate::describe`], and those of the core with files and memory.

use std::sync::OnceLock;

use crate::describe::{self, Call};
use crate::misc::Lcg;

/// Calls of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Core {
    /// Opens a device once more.
    Open,
    /// Duplicates a file descriptor.
    Dup,
    /// Closes one.
    Close,
    /// Sends one to another process.
    Send,
    /// Receives one.
    Receive,
    /// Maps an object by its DRM file.
    MapObject,
    /// Maps a dma-buf.
    MapBuffer,
    /// Maps new memory of the process.
    MapMemory,
    /// Unmaps addresses.
    Unmap,
    /// Moves a mapping.
    Remap,
    /// Changes a protection.
    Protect,
    /// Gives advice about memory.
    Advise,
    /// Accesses a page by an instruction.
    Touch,
    /// Lets the kernel access a page in a read() or a write().
    Carry,
    /// Reads from a disk to memory, without the page cache.
    DiskRead,
    /// Writes memory to a disk, without the page cache.
    DiskWrite,
    /// Forks a process that makes some calls as well.
    Fork,
    /// Asks a file for events.
    Poll,
    /// Asks a dma-buf for its size.
    Seek,
    /// Reads what the kernel says about an open file.
    Fdinfo,
    /// Makes an eventfd.
    Event,
    /// Makes an ioctl of another kind of file, or one that does not exist.
    Stray,
    /// Sleeps for a moment.
    Sleep,
}

/// The calls of the core, and how often each is made.
const CORE: [(Core, u64); 23] = [
    (Core::Open, 12),
    (Core::Dup, 2),
    (Core::Close, 16),
    (Core::Send, 6),
    (Core::Receive, 6),
    (Core::MapObject, 16),
    (Core::MapBuffer, 12),
    (Core::MapMemory, 12),
    (Core::Unmap, 6),
    (Core::Remap, 6),
    (Core::Protect, 6),
    (Core::Advise, 12),
    (Core::Touch, 24),
    (Core::Carry, 8),
    (Core::DiskRead, 6),
    (Core::DiskWrite, 4),
    (Core::Fork, 2),
    (Core::Poll, 4),
    (Core::Seek, 2),
    (Core::Fdinfo, 2),
    (Core::Event, 2),
    (Core::Stray, 4),
    (Core::Sleep, 2),
];

/// How often a call of the description is made.
fn weight(name: &str) -> u64 {
    match name {
        // Each page takes edu several transfers.
        "EDU_PEER_IOC_TRANSFER" | "EDU_PEER_IOC_MEMORY_TRANSFER" => 3,
        "EDU_PEER_IOC_ATTACH" => 24,
        name if name.ends_with("GEM_CREATE") => 24,
        "DRM_IOCTL_PRIME_HANDLE_TO_FD" | "DRM_IOCTL_PRIME_FD_TO_HANDLE" => 24,
        "DRM_IOCTL_VVRAM_SVM_MIGRATE" | "DRM_IOCTL_MGPU_EXEC" => 16,
        "DRM_IOCTL_MGPU_VM_CREATE" => 16,
        name if name.ends_with("GEM_COPY") || name.ends_with("VM_BIND") => 16,
        _ => 8,
    }
}

/// Errors that the uAPI does not list, and that calls have: finding F6.
pub const UNLISTED: [(&str, &[i32]); 4] = [
    (
        "DRM_IOCTL_VVRAM_GEM_COPY",
        &[libc::EOPNOTSUPP, libc::ENOSPC, libc::EBUSY],
    ),
    (
        "DRM_IOCTL_VVRAM_VM_BIND",
        &[libc::ENOSPC, libc::EOPNOTSUPP, libc::EBUSY],
    ),
    ("DRM_IOCTL_VVRAM_GEM_CREATE", &[libc::EBUSY]),
    (
        "DRM_IOCTL_MGPU_GEM_COPY",
        &[libc::ENOSPC, libc::EOPNOTSUPP, libc::EBUSY],
    ),
];

/// A kind of call.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Of the description.
    Ioctl(&'static Call),
    /// Of the core.
    Core(Core),
}

/// All kinds of calls with the ends of their shares, and a short name of each.
#[derive(Debug)]
pub struct Table {
    ops: Vec<(Op, u64, String)>,
}

/// The table.
pub fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut end = 0;
        let mut add = |op, weight, name: String| {
            end += weight;
            (op, end, name)
        };
        let mut ops: Vec<_> = describe::calls()
            .map(|call| {
                let name = call.name.trim_start_matches("DRM_IOCTL_").to_lowercase();
                let name = name.replace("_ioctl", "").replace("_ioc", "");
                add(Op::Ioctl(call), weight(call.name), name)
            })
            .collect();
        ops.extend(
            CORE.map(|(core, weight)| {
                add(Op::Core(core), weight, format!("{core:?}").to_lowercase())
            }),
        );
        Table { ops }
    })
}

impl Table {
    /// How many kinds there are.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The name of a kind.
    pub fn name(&self, op: usize) -> &str {
        &self.ops[op].2
    }

    /// A kind.
    pub fn op(&self, op: usize) -> Op {
        self.ops[op].0
    }

    /// The kind with a name.
    pub fn named(&self, name: &str) -> Option<usize> {
        self.ops.iter().position(|(_, _, known)| known == name)
    }

    /// A random kind.
    pub fn pick(&self, random: &mut Lcg) -> usize {
        let at = random.below(self.ops.last().map_or(1, |last| last.1));
        self.ops.partition_point(|(_, end, _)| *end <= at)
    }
}

/// Calls that leave files, handles and states for the others, in a useful order.
pub const FIRST: &[&str] = &[
    "open",
    "event",
    "vvram_gem_create",
    "mgpu_gem_create",
    "avram_gem_create",
    "mgpu_vm_create",
    "mgpu_vm_bind",
    "vvram_vm_bind",
    "syncobj_create",
    "syncobj_signal",
    "syncobj_handle_to_fd",
    "syncobj_handle_to_fd of a fence",
    "prime_handle_to_fd",
    "bar_export_export",
    "prime_fd_to_handle",
    "vvram_peer_import_info",
    "mgpu_peer_import_info",
    "vvram_gem_copy",
    "mgpu_gem_copy",
    "mgpu_exec",
    "dma_buf_export_sync_file",
    "edu_peer_detach",
    "edu_peer_attach",
    "edu_peer_pin",
    "edu_peer_measure",
    "edu_peer_map",
    "edu_peer_table",
    "edu_peer_transfer",
    "edu_peer_submit",
    "edu_peer_finish",
    "edu_peer_submit of a read",
    "edu_peer_finish",
    "edu_peer_unmap",
    "edu_peer_unpin",
    "edu_peer_memory_unregister",
    "edu_peer_memory_register",
    "edu_peer_memory_query",
    "edu_peer_memory_measure",
    "edu_peer_memory_transfer",
    "vvram_svm_migrate",
    "vvram_svm_evict",
    "vvram_vm_read",
    "mapobject",
    "mapbuffer",
    "send",
    "receive",
];

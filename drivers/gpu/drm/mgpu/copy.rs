// SPDX-License-Identifier: GPL-2.0

//! `DRM_IOCTL_MGPU_GEM_COPY`: what a copy waits for, and where its fence goes to.
//!
//! A call that fails has queued nothing, so all that can fail comes before the copy is queued: the
//! arrays are read and the fences looked up, the points of timelines, the sync files and their file
//! descriptors are allocated, and the numbers of the latter are written to the caller. After that
//! the fence is put into its places, which does not fail. The DRM core writes nothing back to the
//! argument of the ioctl.

use core::{
    mem::offset_of,
    num::NonZeroU64, //
};
use kernel::{
    dma_buf::{
        fence::{
            AnyFence,
            Fence, //
        },
        sync_file::SyncFile, //
    },
    drm::{
        self,
        gem::{
            self,
            ttm::Part,
            BaseObject, //
        },
        syncobj::{
            ChainNode,
            SyncObj, //
        },
        Registered, //
    },
    fs::file::{
        self,
        FileDescriptorReservation, //
    },
    prelude::*,
    sync::aref::ARef,
    uaccess::{
        UserPtr,
        UserSlice, //
    },
    uapi, //
};

use crate::{
    card::{
        Bound,
        Device, //
    },
    file::{
        check,
        File, //
    },
    gem::Bo, //
};

type Record = uapi::drm_mgpu_sync;

/// The longest record that a caller may know, in bytes.
const RECORD_MAX: u32 = 4096;

/// An array of the caller.
struct Syncs {
    addr: UserPtr,
    /// Bytes from one entry to the next.
    entry: usize,
    count: usize,
}

impl Syncs {
    fn new(addr: u64, count: u32, entry: u32) -> Result<Self> {
        if count == 0 {
            return Ok(Self {
                addr: UserPtr::from_addr(0),
                entry: 0,
                count: 0,
            });
        }

        check(count <= uapi::DRM_MGPU_SYNC_MAX)?;
        check((uapi::DRM_MGPU_SYNC_SIZE_VER0..=RECORD_MAX).contains(&entry) && entry % 8 == 0)?;
        Ok(Self {
            addr: UserPtr::from_addr(addr.try_into()?),
            // CAST: Both are small.
            entry: entry as usize,
            count: count as usize,
        })
    }

    /// Returns where the field at `offset` of an entry is.
    fn at(&self, index: usize, offset: usize) -> UserPtr {
        // OVERFLOW: Both factors are small.
        self.addr.wrapping_byte_add(index * self.entry + offset)
    }

    /// Reads all entries, and makes something of each.
    fn read<R>(&self, make: impl Fn(&Record) -> Result<R>) -> Result<KVec<R>> {
        let mut list = KVec::with_capacity(self.count, GFP_KERNEL)?;

        for index in 0..self.count {
            let mut reader = UserSlice::new(self.at(index, 0), self.entry).reader();
            let sync = Record {
                handle: reader.read()?,
                fd: reader.read()?,
                flags: reader.read()?,
                pad: reader.read()?,
                point: reader.read()?,
            };

            while !reader.is_empty() {
                if reader.read::<u64>()? != 0 {
                    return Err(E2BIG);
                }
            }
            check(sync.flags & !uapi::DRM_MGPU_SYNC_FILE == 0 && sync.pad == 0)?;
            list.push_within_capacity(make(&sync)?)?;
        }
        Ok(list)
    }

    /// Writes the file descriptor of an entry.
    fn write_fd(&self, index: usize, fd: i32) -> Result {
        UserSlice::new(self.at(index, offset_of!(Record, fd)), size_of_val(&fd))
            .writer()
            .write(&fd)
    }
}

/// Returns the fence that a copy is to wait for.
fn in_fence(sync: &Record, file: &drm::File<File>) -> Result<ARef<AnyFence>> {
    if sync.flags & uapi::DRM_MGPU_SYNC_FILE != 0 {
        check(sync.handle == 0 && sync.point == 0)?;
        SyncFile::fence_of(sync.fd)
    } else {
        check(sync.fd == 0)?;
        SyncObj::lookup(file, sync.handle)?.fence_at(sync.point)
    }
}

/// A place that the fence of a copy goes to, with all that it takes to put it there.
enum Place {
    SyncObj(ARef<SyncObj>),
    Point(ARef<SyncObj>, ChainNode, NonZeroU64),
    SyncFile(SyncFile, FileDescriptorReservation),
}

impl Place {
    fn new(sync: &Record, file: &drm::File<File>) -> Result<Self> {
        check(sync.fd == 0)?;
        if sync.flags & uapi::DRM_MGPU_SYNC_FILE != 0 {
            check(sync.handle == 0 && sync.point == 0)?;
            let fd = FileDescriptorReservation::get_unused_fd_flags(file::flags::O_CLOEXEC)?;

            return Ok(Self::SyncFile(SyncFile::new()?, fd));
        }

        let obj = SyncObj::lookup(file, sync.handle)?;
        match NonZeroU64::new(sync.point) {
            None => Ok(Self::SyncObj(obj)),
            Some(point) => Ok(Self::Point(obj, ChainNode::new()?, point)),
        }
    }

    /// Returns the file descriptor that the caller gets.
    fn fd(&self) -> Option<i32> {
        match self {
            // CAST: File descriptors fit an `int`.
            Self::SyncFile(_, fd) => Some(fd.reserved_fd() as i32),
            _ => None,
        }
    }

    fn put(self, fence: &Fence) {
        match self {
            Self::SyncObj(obj) => obj.replace_fence(fence),
            Self::Point(obj, node, point) => obj.add_point(node, point, fence),
            Self::SyncFile(file, fd) => {
                file.install(fd, fence);
            }
        }
    }
}

/// Serves `DRM_IOCTL_MGPU_GEM_COPY`.
pub(crate) fn gem_copy(
    dev: &Device<Registered>,
    _bound: &Bound<'_>,
    args: &mut uapi::drm_mgpu_gem_copy,
    file: &drm::File<File>,
) -> Result<u32> {
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

    let ins = Syncs::new(args.in_syncs, args.in_count, args.sync_size)?;
    let outs = Syncs::new(args.out_syncs, args.out_count, args.sync_size)?;
    let fences = ins.read(|sync| in_fence(sync, file))?;
    let places = outs.read(|sync| Place::new(sync, file))?;
    let fds = |fd: fn(i32) -> i32| {
        places
            .iter()
            .enumerate()
            .filter_map(|(index, place)| Some((index, place.fd()?)))
            .try_for_each(|(index, number)| outs.write_fd(index, fd(number)))
    };

    let queue = || {
        fds(|number| number)?;
        for fence in &fences {
            fence.wait(true)?;
        }
        gem::ttm::copy(dev, &from, &to, args.size)
    };
    let fence = queue().inspect_err(|_| {
        // The call may be restarted, and is made with zeroes then. An array that cannot be written
        // any more is the caller's loss.
        let _ = fds(|_| 0);
    })?;

    for place in places {
        place.put(&fence);
    }
    Ok(0)
}

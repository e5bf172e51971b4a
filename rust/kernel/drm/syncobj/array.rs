// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Arrays of fences in the argument of an ioctl: the dependencies of work, and the targets of its
//! fence.
//!
//! An ioctl that queues work gets two of them. A call that fails has queued nothing, so all steps
//! that can fail come before the work is queued: the arrays are read and the fences looked up, the
//! points of timelines, the sync files and their file descriptors are allocated, and the numbers of
//! the latter are written to the caller. After that the fence is put into its targets, which does
//! not fail.

use super::{
    ChainNode,
    SyncObj, //
};
use crate::{
    dma_buf::{
        fence::{
            AnyFence,
            Fence, //
        },
        sync_file::SyncFile, //
    },
    drm::{
        self,
        file::DriverFile, //
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
    }, //
};
use core::{
    mem::offset_of,
    num::NonZeroU64, //
};

/// The longest entry that a caller may pass, in bytes.
const ENTRY_MAX: u32 = 4096;

/// The format of the arrays in the uAPI of a driver.
///
/// An entry begins with the fields `handle` (`u32`), `fd` (`i32`), `flags` (`u32`), `pad` (`u32`)
/// and `point` (`u64`), in this order. A caller may pass longer entries, if the rest is zero.
pub struct Format {
    /// The maximal number of entries.
    pub count_max: u32,
    /// The minimal size of an entry, in bytes.
    pub size_min: u32,
    /// The flag of an entry that has a sync file instead of a sync object. There is no other flag.
    pub file_flag: u32,
}

/// The part of an entry that the kernel knows.
#[repr(C)]
struct Entry {
    handle: u32,
    fd: i32,
    flags: u32,
    pad: u32,
    point: u64,
}

fn check(ok: bool) -> Result {
    if ok {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

/// An array of the caller.
pub struct SyncArray<'a> {
    format: &'a Format,
    addr: UserPtr,
    /// The distance of two entries in bytes.
    size: usize,
    count: usize,
}

impl<'a> SyncArray<'a> {
    /// Describes the array of `count` entries of `size` bytes each at the address `addr` of the
    /// caller. Nothing is read yet.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are too many entries, or their size is invalid.
    pub fn new(format: &'a Format, addr: u64, count: u32, size: u32) -> Result<Self> {
        if count == 0 {
            return Ok(Self {
                format,
                addr: UserPtr::from_addr(0),
                size: 0,
                count: 0,
            });
        }

        check(count <= format.count_max)?;
        check((format.size_min..=ENTRY_MAX).contains(&size) && size % 8 == 0)?;
        Ok(Self {
            format,
            addr: UserPtr::from_addr(addr.try_into()?),
            // CAST: Both are small.
            size: size as usize,
            count: count as usize,
        })
    }

    /// Returns the address of the field at `offset` of an entry.
    fn at(&self, index: usize, offset: usize) -> UserPtr {
        // OVERFLOW: Both factors are small.
        self.addr.wrapping_byte_add(index * self.size + offset)
    }

    /// Reads all entries, and converts each by `make`.
    fn read<R>(&self, make: impl Fn(&Entry) -> Result<R>) -> Result<KVec<R>> {
        let mut list = KVec::with_capacity(self.count, GFP_KERNEL)?;

        for index in 0..self.count {
            let mut reader = UserSlice::new(self.at(index, 0), self.size).reader();
            let sync = Entry {
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
            check(sync.flags & !self.format.file_flag == 0 && sync.pad == 0)?;
            list.push_within_capacity(make(&sync)?)?;
        }
        Ok(list)
    }

    /// Returns whether an entry has a sync file.
    fn is_file(&self, sync: &Entry) -> bool {
        sync.flags & self.format.file_flag != 0
    }

    /// Returns the fences that the work depends on.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if the array cannot be read.
    /// - `E2BIG` if an entry is not zero beyond the part that the kernel knows.
    /// - `ENOENT` for a handle that is unknown.
    /// - `EINVAL` for any other invalid field, and if there is no fence.
    /// - `ENOMEM` if memory runs out.
    pub fn fences<F: DriverFile>(&self, file: &drm::File<F>) -> Result<KVec<ARef<AnyFence>>> {
        self.read(|sync| {
            if self.is_file(sync) {
                check(sync.handle == 0 && sync.point == 0)?;
                SyncFile::fence_of(sync.fd)
            } else {
                check(sync.fd == 0)?;
                SyncObj::lookup(file, sync.handle)?.fence_at(sync.point)
            }
        })
    }

    /// Makes the targets of the fence of the work.
    ///
    /// # Errors
    ///
    /// As for [`Self::fences`], and `EMFILE` if there is no file descriptor left.
    pub fn places<F: DriverFile>(self, file: &drm::File<F>) -> Result<Places<'a>> {
        let list = self.read(|sync| Place::new(sync, self.is_file(sync), file))?;

        Ok(Places { array: self, list })
    }

    /// Writes the file descriptor of an entry.
    fn write_fd(&self, index: usize, fd: i32) -> Result {
        UserSlice::new(self.at(index, offset_of!(Entry, fd)), size_of_val(&fd))
            .writer()
            .write(&fd)
    }
}

/// A target of the fence of work, with all resources to put the fence there.
enum Place {
    SyncObj(ARef<SyncObj>),
    Point(ARef<SyncObj>, ChainNode, NonZeroU64),
    SyncFile(SyncFile, FileDescriptorReservation),
}

impl Place {
    fn new<F: DriverFile>(sync: &Entry, is_file: bool, file: &drm::File<F>) -> Result<Self> {
        check(sync.fd == 0)?;
        if is_file {
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

/// The targets of the fence of work.
pub struct Places<'a> {
    array: SyncArray<'a>,
    list: KVec<Place>,
}

impl Places<'_> {
    /// Writes file descriptors to the caller, converted by `fd`.
    fn write_fds(&self, fd: fn(i32) -> i32) -> Result {
        self.list
            .iter()
            .enumerate()
            .filter_map(|(index, place)| Some((index, place.fd()?)))
            .try_for_each(|(index, number)| self.array.write_fd(index, fd(number)))
    }

    /// Writes the file descriptors to the caller, calls `queue` to queue the work, and puts its
    /// fence into the targets.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the array cannot be written; then nothing is queued. Otherwise those of `queue`.
    pub fn fill(self, queue: impl FnOnce() -> Result<ARef<Fence>>) -> Result {
        let fence = self
            .write_fds(|number| number)
            .and_then(|()| queue())
            .inspect_err(|_| {
                // The call may be restarted, and must find zeroes then. Only the caller is affected
                // if the array cannot be written any more.
                let _ = self.write_fds(|_| 0);
            })?;

        for place in self.list {
            place.put(&fence);
        }
        Ok(())
    }
}

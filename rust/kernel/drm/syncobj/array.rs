// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Arrays of sync objects in the argument of an ioctl: the dependencies of work and the targets of
//! its fence.
//!
//! An ioctl queueing work gets two of them. A failed call has queued nothing. So all fallible steps
//! come before the work is queued: the arrays are read, the fences looked up and the points of
//! timelines allocated. After that the fence is put into its targets, which does not fail.
//!
//! C header: [`include/uapi/drm/drm_sync_entry.h`](srctree/include/uapi/drm/drm_sync_entry.h)

use super::{
    ChainNode,
    SyncObj, //
};
use crate::{
    dma_buf::fence::{
        AnyFence,
        Fence, //
    },
    drm::{
        self,
        file::DriverFile, //
    },
    prelude::*,
    sync::aref::ARef,
    uaccess::{
        UserPtr,
        UserSlice, //
    },
    uapi, //
};
use core::{
    mem::offset_of,
    num::NonZeroU64, //
};

/// The maximum size in bytes of an entry passed by a caller.
const ENTRY_MAX: u32 = 4096;

const _: () = {
    use uapi::drm_sync_entry as T;

    // `SyncArray::read` reads the fields in this order.
    assert!(offset_of!(T, handle) == 0);
    assert!(offset_of!(T, flags) == 4);
    assert!(offset_of!(T, point) == 8);
    assert!(size_of::<T>() == 16);
    // Later versions only append fields.
    assert!(size_of::<T>() >= uapi::DRM_SYNC_ENTRY_SIZE_VER0 as usize);
};

fn check(ok: bool) -> Result {
    if ok {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

/// An array of `struct drm_sync_entry` in the memory of the caller.
pub struct SyncArray {
    addr: UserPtr,
    /// The distance of two entries in bytes.
    size: usize,
    count: usize,
}

impl SyncArray {
    /// Describes the array of `count` entries of `size` bytes each at the address `addr` of the
    /// caller. Nothing is read yet.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are more than `count_max` entries or their size is invalid.
    pub fn new(count_max: u32, addr: u64, count: u32, size: u32) -> Result<Self> {
        if count == 0 {
            return Ok(Self {
                addr: UserPtr::from_addr(0),
                size: 0,
                count: 0,
            });
        }

        check(count <= count_max)?;
        check((uapi::DRM_SYNC_ENTRY_SIZE_VER0..=ENTRY_MAX).contains(&size) && size % 8 == 0)?;
        Ok(Self {
            addr: UserPtr::from_addr(addr.try_into()?),
            // CAST: Both are small.
            size: size as usize,
            count: count as usize,
        })
    }

    /// Reads all entries and converts each object and its point by `make`.
    fn read<F: DriverFile, R>(
        &self,
        file: &drm::File<F>,
        make: impl Fn(ARef<SyncObj>, u64) -> Result<R>,
    ) -> Result<KVec<R>> {
        let mut list = KVec::with_capacity(self.count, GFP_KERNEL)?;

        for index in 0..self.count {
            // OVERFLOW: Both factors are small.
            let addr = self.addr.wrapping_byte_add(index * self.size);
            let mut reader = UserSlice::new(addr, self.size).reader();
            let (handle, flags) = (reader.read::<u32>()?, reader.read::<u32>()?);
            let point = reader.read::<u64>()?;

            while !reader.is_empty() {
                if reader.read::<u64>()? != 0 {
                    return Err(E2BIG);
                }
            }
            check(flags == 0)?;
            list.push_within_capacity(make(SyncObj::lookup(file, handle)?, point)?)?;
        }
        Ok(list)
    }

    /// Returns the dependencies of the work.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if the array cannot be read.
    /// - `E2BIG` if an entry is not zero beyond the part known to the kernel.
    /// - `ENOENT` for an unknown handle.
    /// - `EINVAL` for an unknown flag and if there is no fence.
    /// - `ENOMEM` if memory runs out.
    pub fn fences<F: DriverFile>(&self, file: &drm::File<F>) -> Result<KVec<ARef<AnyFence>>> {
        self.read(file, |obj, point| obj.fence_at(point))
    }

    /// Creates the targets of the fence of the work.
    ///
    /// # Errors
    ///
    /// As for [`Self::fences`]. The objects need no fence.
    pub fn places<F: DriverFile>(&self, file: &drm::File<F>) -> Result<Places> {
        self.read(file, Place::new).map(Places)
    }
}

/// A target of the fence of work and all resources for putting the fence there.
enum Place {
    SyncObj(ARef<SyncObj>),
    Point(ARef<SyncObj>, ChainNode, NonZeroU64),
}

impl Place {
    fn new(obj: ARef<SyncObj>, point: u64) -> Result<Self> {
        match NonZeroU64::new(point) {
            None => Ok(Self::SyncObj(obj)),
            Some(point) => Ok(Self::Point(obj, ChainNode::new()?, point)),
        }
    }
}

/// The targets of the fence of work.
pub struct Places(KVec<Place>);

impl Places {
    /// Puts the fence of the work into the targets in their order.
    pub fn put(self, fence: &Fence) {
        for place in self.0 {
            match place {
                Place::SyncObj(obj) => obj.replace_fence(fence),
                Place::Point(obj, node, point) => obj.add_point(node, point, fence),
            }
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM that objects share with another user: how either gets some from the other one.
//!
//! See [`Reclaim`](crate::drm::vram::Reclaim) for the policy.
//!
//! # Locking
//!
//! The other user calls with no reservation held, but maybe with the lock of the memory of a
//! process, which is outside of reservations. It is called with reservations held.

use super::{
    placement::{
        OpCtx,
        Place, //
    },
    Device,
    TtmObject, //
};
use crate::{
    bindings,
    drm::{
        devres::while_registered,
        vram::{
            Allocation,
            MemType, //
        }, //
    },
    prelude::*, //
};

impl<T: TtmObject> Device<T> {
    /// Allocates a block of VRAM for another user, as [`Allocator::alloc_block`] does, and waits for
    /// the jobs that still read what objects have left there.
    ///
    /// No reservation is held that such a job could need; the lock of the memory of a process may
    /// be held.
    ///
    /// # Errors
    ///
    /// - `EINVAL` before [`Self::setup`], or if `size` is not a power of two.
    /// - `ENOSPC` if there is no room, `ENOMEM` if memory runs out.
    /// - `ERESTARTSYS` if a signal arrived.
    ///
    /// [`Allocator::alloc_block`]: crate::drm::vram::Allocator::alloc_block
    pub fn alloc_block(&self, size: usize) -> Result<Allocation> {
        let (vram, _) = self.vram_manager()?;

        // SAFETY: The device was set up, with the manager.
        unsafe { vram.alloc_block(size) }
    }

    /// Moves objects out of VRAM until `bytes` of it are free, for another user: see
    /// [`Self::alloc_block`]. Returns false if not as many objects can be moved.
    ///
    /// Those that were used least recently go first. The device is awake, and no reservation is
    /// held; the lock of the memory of a process may be. `ctx` says whether a signal ends it.
    ///
    /// # Errors
    ///
    /// - `EINVAL` before [`Self::setup`].
    /// - `ERESTARTSYS` if a signal arrived.
    /// - The error of a move, and `ENOMEM`.
    pub fn make_room(&self, bytes: u64, ctx: &mut OpCtx) -> Result<bool> {
        let (vram, bdev) = self.vram_manager()?;

        // SAFETY: The device was set up, with the manager.
        unsafe { vram.make_room(bdev, bytes, ctx) }
    }

    /// Has another user of VRAM give some up for an object of `bytes` bytes in `places`, although it
    /// may not have more than its share: for when not enough objects can leave. Returns whether it
    /// has given up something.
    pub(crate) fn reclaim_more(
        &self,
        drm: *mut bindings::drm_device,
        places: &[Place],
        bytes: u64,
    ) -> bool {
        // SAFETY: The device of the data that `self` is a part of is valid, and of `T::Driver`.
        let freed: Result<u64> = unsafe {
            while_registered::<T::Driver, _>(drm, |reg| {
                let other = T::reclaim(reg).ok_or(ENOSPC)?;
                let all = self.size_of(MemType::Vram);
                let range = places
                    .iter()
                    .filter(|place| place.mem_type() == MemType::Vram)
                    .map(|place| place.range(all))
                    .map(|(start, end)| start..end)
                    .find(|range| other.held(range) > 0)
                    .ok_or(ENOSPC)?;

                // Asks all objects.
                if self.could_have_room(bytes) {
                    return Err(ENOSPC);
                }
                Ok(other.reclaim(&range, bytes))
            })
        };

        freed.is_ok_and(|freed| freed > 0)
    }
}

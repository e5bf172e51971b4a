// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM shared with another user: how objects and that user reclaim it from each other.
//!
//! See [`Reclaim`](crate::drm::vram::Reclaim) for the policy.
//!
//! # Locking
//!
//! The other user calls this file with no reservation held. It may hold the `mmap_lock` of a
//! process, which is outside of reservations. This file calls the other user with reservations
//! held.

use super::{
    Device,
    TtmObject, //
};
use crate::{
    bindings,
    drm::{
        devres::while_registered,
        ttm::placement::{
            OpCtx,
            Place, //
        },
        vram::{
            Allocation,
            MemType, //
        }, //
    },
    prelude::*, //
};

impl<T: TtmObject> Device<T> {
    /// Allocates a block of VRAM for another user, as [`Allocator::alloc_block`] does. Waits for
    /// the jobs that still read the old content of objects there.
    ///
    /// No reservation that such a job could need may be held. The `mmap_lock` of a process may be
    /// held.
    ///
    /// # Errors
    ///
    /// - `EINVAL` before the registration, or if `size` is not a power of two.
    /// - `ENOSPC` if there is no space.
    /// - `ENOMEM` if memory runs out.
    /// - `ERESTARTSYS` if a signal arrived.
    ///
    /// [`Allocator::alloc_block`]: crate::drm::vram::Allocator::alloc_block
    pub fn alloc_block(&self, size: usize) -> Result<Allocation> {
        let (vram, _) = self.vram_manager()?;

        // SAFETY: The device was set up with the manager.
        unsafe { vram.alloc_block(size) }
    }

    /// Moves objects out of VRAM until `bytes` of it are free, for another user: see
    /// [`Self::alloc_block`]. Returns false if not enough objects can be moved without a wait for
    /// another device.
    ///
    /// The least recently used objects are moved first. The device must be active. No reservation
    /// may be held, but the `mmap_lock` of a process may be. `ctx` says whether a signal ends the
    /// wait.
    ///
    /// # Errors
    ///
    /// - `EINVAL` before the registration.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - `ENOMEM` if memory runs out.
    /// - The error of a move.
    pub fn make_room(&self, bytes: u64, ctx: &mut OpCtx) -> Result<bool> {
        let (vram, bdev) = self.vram_manager()?;

        // SAFETY: The device was set up with the manager.
        unsafe { vram.make_room(bdev, bytes, ctx) }
    }

    /// Asks the other user of VRAM to release some of it for an object of `bytes` bytes in
    /// `places`, because evicting objects does not free enough space. The other user is asked even
    /// if it has no more than its share.
    pub(super) fn reclaim_more(
        &self,
        drm: *mut bindings::drm_device,
        places: &[Place],
        bytes: u64,
    ) {
        // On an error nothing was released.
        // SAFETY: The device whose data contains `self` is valid and of `T::Driver`.
        let _: Result<u64> = unsafe {
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

                // This visits all objects.
                if self.could_have_room(bytes) {
                    return Err(ENOSPC);
                }
                Ok(other.reclaim(&range, bytes))
            })
        };
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The common part of the managers of both kinds of memory: adding one to a device and removing it.
//!
//! C header: [`include/drm/ttm/ttm_resource.h`](srctree/include/drm/ttm/ttm_resource.h)

use super::placement::OpCtx;
use crate::{
    bindings,
    dma_buf::fence::AnyFence,
    drm::vram::MemType,
    prelude::*,
    types::Opaque, //
};
use core::ptr::NonNull;

/// TTM's part of a manager, `struct ttm_resource_manager`.
#[repr(transparent)]
pub(in crate::drm) struct Manager(Opaque<bindings::ttm_resource_manager>);

// SAFETY: TTM synchronizes access to it.
unsafe impl Send for Manager {}

// SAFETY: As for `Send`.
unsafe impl Sync for Manager {}

impl Manager {
    /// Creates a manager that belongs to no device.
    pub(in crate::drm) const fn new() -> Self {
        Self(Opaque::zeroed())
    }

    pub(in crate::drm) fn as_raw(&self) -> *mut bindings::ttm_resource_manager {
        self.0.get()
    }

    /// Makes it the manager of `mem_type` of a device, with `size` bytes.
    ///
    /// # Safety
    ///
    /// - `bdev` must be an initialized device. [`Self::fini`] must be called for it before it is
    ///   finished and before `self` is dropped or moved.
    /// - The callbacks of `func` must be those for the type containing `self`.
    pub(in crate::drm) unsafe fn init(
        &self,
        bdev: *mut bindings::ttm_device,
        mem_type: MemType,
        size: u64,
        func: &'static bindings::ttm_resource_manager_func,
    ) {
        let man = self.as_raw();

        // SAFETY: The manager is zeroed memory that no other code knows yet. The device is valid.
        unsafe {
            (*man).func = func;
            // Objects in system memory have pages.
            (*man).use_tt = mem_type != MemType::Vram;
            bindings::ttm_resource_manager_init(man, bdev, size);
            // CAST: The kinds of memory are small numbers.
            bindings::ttm_set_driver_manager(bdev, mem_type.as_raw() as i32, man);
            bindings::ttm_resource_manager_set_used(man, true);
        }
    }

    /// Removes the manager from the device.
    ///
    /// # Safety
    ///
    /// [`Self::init`] must have been called with the same arguments. All remaining objects must
    /// wait for their deletion.
    pub(in crate::drm) unsafe fn fini(&self, bdev: *mut bindings::ttm_device, mem_type: MemType) {
        let man = self.as_raw();

        // SAFETY: By the safety requirements. The remaining objects are deleted here, so the lists
        // are empty.
        unsafe {
            // Each call waits for an object for a limited time only.
            while bindings::ttm_resource_manager_evict_all(bdev, man) == EBUSY.to_errno() {}
            bindings::ttm_resource_manager_set_used(man, false);
            bindings::ttm_resource_manager_cleanup(man);
            bindings::ttm_set_driver_manager(bdev, mem_type.as_raw() as i32, core::ptr::null_mut());
        }
    }

    /// Moves objects away until they have left `bytes`. It begins with the least recently used ones
    /// and skips those reserved by other tasks. Returns how many bytes they have left. This is less
    /// than `bytes` if no object is left that could be moved without a wait for another device.
    /// Objects protected by the limit `min` of their cgroup stay. Those protected by `low` come
    /// last.
    ///
    /// # Errors
    ///
    /// - `ERESTARTSYS` if a signal arrived.
    /// - `ENOMEM` if memory runs out.
    /// - The error of a move.
    ///
    /// # Safety
    ///
    /// `bdev` must be the device with this manager. No reservation may be held.
    // Not inlined into modules, which cannot call the function.
    #[inline(never)]
    pub(in crate::drm) unsafe fn evict(
        &self,
        bdev: *mut bindings::ttm_device,
        bytes: u64,
        ctx: &mut OpCtx,
    ) -> Result<u64> {
        let target = i64::try_from(bytes)?;
        // No limit of a cgroup makes this necessary, so objects of any cgroup may be moved.
        let limit = core::ptr::null_mut();

        // SAFETY: As promised by the caller.
        let left = unsafe {
            bindings::ttm_bo_evict_cgroup(bdev, self.as_raw(), limit, target, &mut ctx.0)
        };
        // CAST: The errors of the kernel fit an `i32`.
        u64::try_from(left).map_err(|_| match Error::from_errno(left as i32) {
            EINTR => ERESTARTSYS,
            e => e,
        })
    }

    /// Waits for jobs still reading memory from which objects were moved. TTM gives this memory to
    /// other objects, which wait for these jobs.
    ///
    /// Memory that is free before the call is not read by any later job.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal arrived.
    ///
    /// # Safety
    ///
    /// [`Self::init`] must have been called, but not [`Self::fini`].
    // Not inlined into modules, which cannot call the functions.
    #[inline(never)]
    pub(in crate::drm) unsafe fn wait_for_moves(&self) -> Result {
        let man = self.as_raw();

        for index in 0..bindings::TTM_NUM_MOVE_FENCES as usize {
            // SAFETY: The manager was initialized. The list owns a reference to its fence and does
            // not put it while the lock is held.
            let fence = unsafe {
                let lock = &raw mut (*man).eviction_lock;

                bindings::spin_lock(lock);
                let fence = bindings::dma_fence_get((*man).eviction_fences[index]);
                bindings::spin_unlock(lock);
                // The reference to the fence was just taken.
                NonNull::new(fence).map(|fence| AnyFence::from_owned(fence))
            };

            if let Some(fence) = fence {
                fence.wait(true)?;
            }
        }
        Ok(())
    }
}

/// Passes a resource to TTM at the end of a callback that allocates one.
///
/// # Safety
///
/// `R` must begin with a `struct ttm_resource`. The arguments must be those of the callback. The
/// manager's callback for freeing a resource must drop the box.
pub(in crate::drm) unsafe fn hand_over<R>(
    resource: KBox<R>,
    bo: *mut bindings::ttm_buffer_object,
    place: *const bindings::ttm_place,
    res: *mut *mut bindings::ttm_resource,
) {
    let raw = KBox::into_raw(resource).cast();

    // SAFETY: As promised by the caller.
    unsafe {
        bindings::ttm_resource_init(bo, place, raw);
        *res = raw;
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects with a shared reservation: they are private to one user.
//!
//! See [`gem::SharedResv`](crate::drm::gem::SharedResv).
//!
//! C header: [`include/drm/ttm/ttm_bo.h`](srctree/include/drm/ttm/ttm_bo.h)

use super::{
    Object,
    TtmObject, //
};
use crate::{
    dma_resv::DmaResv,
    drm::{
        self,
        gem::SharedResv,
        ttm::{
            OpCtx,
            Place, //
        }, //
    },
    prelude::*,
    sync::aref::ARef, //
};

impl<T: TtmObject> Object<T> {
    /// As [`Self::new`] with the reservation `resv`. The object keeps it.
    ///
    /// The object is private to the owner of that reservation, such as a
    /// [`GpuVm`](drm::gpuvm::GpuVm), and is not exported. It is locked and gets fences together
    /// with all other objects with the reservation. If the driver has
    /// [`MAPPINGS`](TtmObject::MAPPINGS), a job that adds fences of `Bookkeep` uses only objects
    /// whose place was taken from [`LockedObject::placed`](drm::gem::LockedObject::placed). The
    /// others move without a wait for such jobs. If space is needed for the new object, objects
    /// with the same reservation may be evicted, too.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `resv` belongs to another device.
    /// - The errors of [`Self::new`].
    pub fn new_in(
        dev: &drm::Device<T::Driver>,
        resv: &SharedResv<T::Driver>,
        size: usize,
        places: &[Place],
        ctx: &mut OpCtx,
        args: T::Args,
    ) -> Result<ARef<Self>> {
        if resv.device().as_raw() != dev.as_raw() {
            return Err(EINVAL);
        }

        Self::new_with(dev, size, places, ctx, args, Some(resv.reference()))
    }

    /// Returns whether the object was created by [`Self::new_in`].
    #[inline]
    pub fn is_private(&self) -> bool {
        self.shared.is_some()
    }
}

impl OpCtx {
    /// Calls `f` with a context that allows evictions of objects with the reservation `resv`, held
    /// by this task.
    pub(super) fn with_siblings<R>(&mut self, resv: &DmaResv, f: impl FnOnce(&mut Self) -> R) -> R {
        self.0.resv = resv.as_raw();
        self.0.allow_res_evict = true;
        let ret = f(self);

        self.0.resv = core::ptr::null_mut();
        self.0.allow_res_evict = false;
        ret
    }
}

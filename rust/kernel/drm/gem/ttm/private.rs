// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects that share a reservation, because they are private to one user.
//!
//! See [`gem::SharedResv`](crate::drm::gem::SharedResv).
//!
//! C header: [`include/drm/ttm/ttm_bo.h`](srctree/include/drm/ttm/ttm_bo.h)

use super::Object;
use crate::{
    dma_resv::DmaResv,
    drm::{
        self,
        gem::SharedResv,
        ttm::{
            OpCtx,
            Place,
            TtmObject, //
        }, //
    },
    prelude::*,
    sync::aref::ARef, //
};

impl<T: TtmObject> Object<T> {
    /// As [`Self::new`], with the reservation `resv`, which the object keeps.
    ///
    /// The object is private to what has that reservation, such as a [`GpuVm`](drm::gpuvm::GpuVm):
    /// it is locked, and gets fences, with all others of it at once, and it is not exported. If
    /// there is no room, others with the same reservation leave for it, too.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `resv` is of another device, and those of [`Self::new`].
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

    /// Tells whether the object was made by [`Self::new_in`].
    #[inline]
    pub fn is_private(&self) -> bool {
        self.shared.is_some()
    }
}

impl OpCtx {
    /// Calls `f` with a context by which objects with the reservation `resv`, which this task
    /// holds, may be evicted.
    pub(super) fn with_siblings<R>(&mut self, resv: &DmaResv, f: impl FnOnce(&mut Self) -> R) -> R {
        self.0.resv = resv.as_raw();
        self.0.allow_res_evict = true;
        let ret = f(self);

        self.0.resv = core::ptr::null_mut();
        self.0.allow_res_evict = false;
        ret
    }
}

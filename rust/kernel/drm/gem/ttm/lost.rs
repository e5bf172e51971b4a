// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Loss of the content of VRAM of a broken device.

use super::{
    Device,
    Object,
    TtmObject, //
};
use crate::{
    bindings,
    drm::{
        gem::aperture::Holder,
        vram::MemType, //
    },
    prelude::*, //
};

impl<T: TtmObject> Device<T> {
    /// Marks the content of all objects in VRAM as lost, for a device given up by its driver. From
    /// now on all users of the objects get `EIO`. The log names the objects with `error`.
    ///
    /// Mappings of processes are removed: their next access ends in `SIGBUS`. Mappings of importers
    /// are invalidated: they cannot map an object again. The driver must have ended all jobs and
    /// return an error for new ones. Sleeps; no reservation may be held.
    pub fn lose_vram(&self, error: Error) {
        let mut next = 0;

        // Objects created from now on are not cleared and have no content to lose.
        while let Some(obj) = self.object_from(next) {
            next = obj.id() + 1;
            // The wait is not interruptible, so it does not fail.
            if let Ok(mut object) = obj.reserve(false) {
                object.view().mark_lost(error);
            }
        }
    }
}

impl<T: TtmObject> super::LockedObject<'_, Object<T>> {
    fn mark_lost(&self, error: Error) {
        if self.mem_type() != Some(MemType::Vram) {
            return;
        }

        self.obj.loss.mark_lost(error);
        self.hide();
    }

    /// Removes the mappings of processes and invalidates those of importers because VRAM does not
    /// have the content of the object.
    pub(super) fn hide(&self) {
        // SAFETY: The object is valid, and its reservation is held. By the type invariant of
        // `Object` the pointer is null or that of a dma-buf.
        unsafe {
            bindings::ttm_bo_unmap_virtual(self.bo());
            let buf = self.exported();
            if !buf.is_null() {
                bindings::dma_buf_invalidate_mappings(buf);
            }
        }
        self.obj.release_window(Holder::Faults);
    }
}

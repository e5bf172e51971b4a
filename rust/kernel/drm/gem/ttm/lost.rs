// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Loss of the content of VRAM, if a device does not work any more.

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
    /// Marks the content of all objects in VRAM as lost, for a device that its driver has given up.
    /// All users of the objects get `EIO` from now on, and the objects are named in the log with
    /// `error`.
    ///
    /// Mappings of processes are removed, so that their next access ends in `SIGBUS`, and mappings
    /// of importers are invalidated, so that they cannot map an object again. The driver must have
    /// ended all jobs, and return an error for new ones. Sleeps; no reservation may be held.
    pub fn lose_vram(&self, error: Error) {
        let mut next = 0;

        // Objects that are made from now on are not cleared and have no content to lose.
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

    /// Removes the mappings of processes, and invalidates those of importers, as VRAM does not have
    /// the content of the object.
    pub(super) fn hide(&self) {
        // SAFETY: The object is valid, and its reservation is held. By the type invariant of
        // `Object` the pointer is that of a dma-buf, or null.
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

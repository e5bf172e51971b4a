// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What was in the VRAM of a device that does not work any more.

use super::Object;
use crate::{
    bindings,
    drm::{
        ttm::{
            Device,
            TtmObject, //
        },
        vram::MemType, //
    },
    prelude::*, //
};

impl<T: TtmObject> Device<T> {
    /// Gives up the content of all objects in VRAM, of a device that its driver has given up. All
    /// users of the objects get `EIO` from now on, and they are named in the log with `error`.
    ///
    /// What processes have mapped is taken away, so that their next access ends in `SIGBUS`, and
    /// importers are told, so that they cannot map an object again. The driver has ended all jobs,
    /// and gives an error to those that come. Sleeps; no reservation is held.
    pub fn lose_vram(&self, error: Error) {
        let mut next = 0;

        // Those that are made from now on have nothing to lose: they are not cleared.
        while let Some(obj) = self.object_from(next) {
            next = obj.id() + 1;
            // Without signals it does not fail.
            if let Ok(mut object) = obj.reserve(false) {
                object.view().lose(error);
            }
        }
    }
}

impl<T: TtmObject> super::Held<'_, Object<T>> {
    fn lose(&self, error: Error) {
        if self.mem_type() != Some(MemType::Vram) {
            return;
        }

        self.obj.loss.lose(error);
        // SAFETY: The object is valid, and its reservation is held. By the type invariant of `Object`
        // what it is exported as is a dma-buf, or null.
        unsafe {
            bindings::ttm_bo_unmap_virtual(self.bo());
            let buf = self.exported();
            if !buf.is_null() {
                bindings::dma_buf_invalidate_mappings(buf);
            }
        }
        self.obj.drop_fault_window();
    }
}

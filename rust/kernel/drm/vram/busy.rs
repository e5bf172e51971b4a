// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM freed while work still uses it.

use super::Allocation;
use crate::{
    dma_buf::fence::AnyFence,
    dma_resv::{
        DmaResv,
        Usage, //
    },
    drm::workqueue,
    prelude::*,
    sync::aref::ARef, //
};

/// VRAM and the work that uses it. The drop waits for the work.
struct Busy {
    work: ARef<AnyFence>,
    // Freed after that.
    _vram: Allocation,
}

impl Drop for Busy {
    fn drop(&mut self) {
        // The wait is not interruptible, so it does not fail.
        let _ = self.work.wait(false);
    }
}

/// Frees `vram` when all work with a fence in `resv` is done. The fences may be of any device.
///
/// The caller does not wait for it unless memory runs out. May sleep.
#[inline(never)]
pub(crate) fn free_when_idle(vram: Allocation, resv: &DmaResv) {
    match resv.singleton(Usage::Bookkeep) {
        Ok(None) => drop(vram),
        Ok(Some(work)) => {
            let busy = Busy { work, _vram: vram };

            // If there is no memory for the work item, the drop waits here.
            let _ = workqueue::of_waits()
                .and_then(|queue| Ok(queue.try_spawn(GFP_KERNEL, move || drop(busy))?));
        }
        Err(_) => {
            let _ = resv.wait(Usage::Bookkeep, false);
            drop(vram);
        }
    }
}

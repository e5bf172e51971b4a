// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Windows of an aperture: through them the CPU and peers see objects of TTM.
//!
//! See [`gem::aperture::windows`](crate::drm::gem::aperture::windows).

use super::{
    LockedObject,
    Object,
    TtmObject, //
};
use crate::{
    bindings,
    dma_buf::exporter::mapping::RangeList,
    dma_resv::Usage,
    drm::{
        self,
        gem::{
            aperture::{
                windows::{
                    self,
                    NoWindow,
                    Windowed, //
                },
                ApertureHook,
                Holder,
                Wait,
                Windows, //
            },
            peer::trace,
            IntoGEMObject, //
        },
        ttm::{
            OpCtx,
            Place, //
        },
        vram::{
            Domain,
            MemType,
            Ranges, //
        }, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Relaxed,
        Arc, //
    },
    time::Jiffies, //
};

// SAFETY: By the type invariant of `Object` the pointer is null or the dma-buf of the object, of an
// exporter of its class. The objects on the list of a device are those of the device. An unpinned
// mapping needs the reservation.
unsafe impl<T: TtmObject> Windowed for Object<T> {
    type Data = T;

    const HOOK: ApertureHook<T> = T::APERTURE;

    fn windows(&self) -> &Windows {
        &self.ttm().windows
    }

    fn number(&self) -> u64 {
        self.id()
    }

    fn object_at(&self, number: u64) -> Option<ARef<Self>> {
        self.ttm().object(number)
    }

    fn place<'a>(object: &'a LockedObject<'_, Self>) -> Option<&'a Ranges> {
        object.vram()
    }

    fn buffer(object: &LockedObject<'_, Self>) -> *mut bindings::dma_buf {
        object.exported()
    }

    fn is_fixed(object: &LockedObject<'_, Self>) -> bool {
        object.is_pinned()
    }

    fn await_importers(object: &LockedObject<'_, Self>, limit: Jiffies, wait: Wait) -> Result {
        // SAFETY: The reservation is held.
        let mut held = unsafe { LockedObject::assume(object.obj) };
        let resv = held.resv();

        if object.ttm().is_used_by_others(&resv, Usage::Bookkeep) {
            resv.resv()
                .wait_timeout(Usage::Bookkeep, wait == Wait::Short, limit)?;
        }
        Ok(())
    }

    fn trace_invalidation(object: &LockedObject<'_, Self>) {
        trace::invalidate(
            object.obj.subject(),
            object.obj.last_placement.load(Relaxed),
        );
    }

    fn zap(object: &LockedObject<'_, Self>) {
        // SAFETY: The object is valid, and its reservation is held.
        unsafe { bindings::ttm_bo_unmap_virtual(object.bo()) };
    }
}

impl<T: TtmObject> LockedObject<'_, Object<T>> {
    /// Returns the ranges of the window that shows the object in VRAM to a holder.
    ///
    /// # Errors
    ///
    /// The errors of [`windows::window`].
    pub(super) fn window(&self, holder: Holder) -> Result<Arc<RangeList>> {
        windows::window(self, holder)
    }

    /// Returns the device of the object.
    pub(super) fn drm(&self) -> &drm::Device<T::Driver> {
        // SAFETY: The device of a valid object is valid and of `T::Driver`.
        unsafe { drm::Device::from_raw((*self.obj.as_raw()).dev) }
    }

    /// Makes the object visible to processes, for a page fault. If it is in VRAM, it gets a window
    /// and the device must be active.
    ///
    /// If there is no space for the window, the object moves to system memory.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if other tasks are in the way: the fault has to be tried again.
    /// - `ENOSPC` if the aperture is full and the object has to stay in VRAM.
    /// - `ENOMEM` if memory runs out.
    /// - `EIO` for all other errors of the driver.
    /// - The errors of [`Self::validate_patiently`].
    pub(super) fn show_to_processes(&mut self) -> Result {
        if self.mem_type() == Some(MemType::Vram) {
            if self.obj.ttm().windows.is_closed() {
                return Err(EBUSY);
            }

            match windows::try_window(self, Holder::Faults, Wait::Short) {
                Ok(_) => (),
                Err(NoWindow::Full) if self.may_do_without_window() => {
                    return self.validate_patiently(&[Place::TT], &mut OpCtx::interruptible());
                }
                Err(NoWindow::Full) => return Err(ENOSPC),
                Err(NoWindow::Busy) => return Err(EBUSY),
                // An error with another meaning for a fault must not come from the driver.
                Err(NoWindow::Failed(e)) => return Err(if e == ENOMEM { e } else { EIO }),
            }
        }
        self.touch();
        Ok(())
    }

    /// Returns whether the object can be moved to system memory.
    pub(super) fn may_do_without_window(&self) -> bool {
        self.data().domain() == Domain::Either && !self.is_pinned()
    }

    /// Removes the mappings of processes through a window and drops the window of page faults. The
    /// next access restores the mappings. Does nothing without an aperture. Sleeps.
    pub(super) fn unmap_from_processes(&self) {
        if T::APERTURE.is_some() && self.obj.ttm().windows.is_faulted(self.obj.id()) {
            Object::<T>::zap(self);
            self.obj.release_window(Holder::Faults);
        }
    }
}

impl<T: TtmObject> Object<T> {
    /// Removes a holder of the window, such as page faults after page tables were zapped. Does
    /// nothing without an aperture. Sleeps.
    pub(super) fn release_window(&self, holder: Holder) {
        if T::APERTURE.is_some() {
            windows::release(self, holder);
        }
    }

    /// Closes the window after its last access. Does nothing without an aperture. Sleeps.
    pub(super) fn close_window(&self) {
        if T::APERTURE.is_some() {
            windows::close(self);
        }
    }
}

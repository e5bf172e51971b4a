// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Windows of an aperture through which the CPU sees objects in VRAM.
//!
//! An object of a device with an [`Aperture`] has at most one window where it is. These hold it:
//!
//! - importers, by the tables that they have mapped,
//! - page faults: from the first one until the entries of page tables are zapped, which happens if
//!   the object moves, or is freed, if the device is suspended or unplugged, or if the window is
//!   evicted; to unmap the object from a process is not enough,
//! - mappings of the kernel, each until it is unmapped. The object is pinned as long.
//!
//! Whoever is the first makes it, the others share it, and it is dropped with the last one. If the
//! aperture is full, windows are evicted that only page faults hold, the least recently used first:
//! the entries of page tables that lead there are zapped, and come back with another window at the
//! next access. So a process that has touched an object once is not in the way of an importer. If
//! nothing can be evicted an importer and a mapping of the kernel get `ENOSPC`, unless the object
//! can be moved to system memory; a page fault moves it there, or ends in `SIGBUS`.
//!
//! A process that accesses two objects by one instruction makes no progress if the aperture has
//! room for one of them only: each fault evicts the other window. It can be killed.
//!
//! # Locking
//!
//! The reservation of the object is held when its window is made, shared and dropped. To evict the
//! window of another object takes the reservation of that, which is only tried. What the CPU's side
//! holds is on the list of `drm/ttm/windows.rs`, whose mutex comes after the reservation. Only an
//! object that is being freed drops its window without the reservation, which another task may
//! have, and so does an unplug what is left of page faults: both by that mutex alone.
//!
//! Mirrors `nouveau_ttm_io_mem_reserve()`, which evicts under a mutex that each fault takes.
//!
//! [`Aperture`]: crate::drm::vram::Aperture

use super::{
    held::PATIENCE,
    Held,
    Object, //
};
use crate::{
    bindings,
    dma_buf::mapping::RangeList,
    dma_resv::DmaResv,
    drm::{
        self,
        gem::IntoGEMObject,
        ttm::{
            Device,
            Holder,
            OpCtx,
            Place,
            TtmObject, //
        },
        vram::{
            Domain,
            MemType, //
        }, //
    },
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// What came of the attempt to evict a window.
enum Eviction {
    /// There is more room.
    Done,
    /// Other tasks have the objects whose windows could be evicted, or took the room.
    Busy,
    /// There is none that could be.
    Nothing,
}

impl<T: TtmObject> Held<'_, Object<T>> {
    /// Returns the ranges of the window that shows the object, which is in VRAM: the one that it
    /// has, or a new one. May sleep.
    ///
    /// `patient` says to wait for other tasks that are in the way of an eviction.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if the aperture is full, also if that may be due to other tasks and `patient` is
    ///   set; `EBUSY` if it is not.
    /// - `EINVAL` if the object is not in VRAM.
    /// - `ENODEV` if the driver is not bound any more, and those of the driver.
    pub(super) fn window(&self, patient: bool) -> Result<Arc<RangeList>> {
        let ttm = self.obj.ttm();
        let shared = ttm
            .windows
            .get(self.obj.id())
            .or_else(|| self.window_of_importers());
        if let Some(shared) = shared {
            return Ok(shared);
        }

        let vram = self.vram().ok_or(EINVAL)?;
        // SAFETY: The device of a valid object is valid, and of `T::Driver`.
        let dev: &drm::Device<T::Driver> =
            unsafe { drm::Device::from_raw((*self.obj.as_raw()).dev) };
        let mut attempt = 0;
        // Other tasks may fault as fast as their windows are evicted here.
        let mut newest = ttm.windows.last_use();

        loop {
            match T::APERTURE.map(dev, vram) {
                // No eviction helps.
                Err(e) if e == E2BIG => return Err(ENOSPC),
                Err(e) if e == ENOSPC => (),
                ret => return ret,
            }

            match ttm.evict_window(newest) {
                Eviction::Done => (),
                Eviction::Nothing => return Err(ENOSPC),
                Eviction::Busy if !patient => return Err(EBUSY),
                Eviction::Busy if attempt == PATIENCE => return Err(ENOSPC),
                Eviction::Busy => {
                    fsleep(Delta::from_millis(1 << attempt.min(3)));
                    attempt += 1;
                    newest = ttm.windows.last_use();
                }
            }
        }
    }

    fn window_of_importers(&self) -> Option<Arc<RangeList>> {
        // SAFETY: By the type invariant of `Object` it is null or the dma-buf of the object, whose
        // reservation is held.
        unsafe { T::APERTURE.of_importers(self.exported()) }
    }

    /// Lets processes see the object, for a page fault: by a window if it is in VRAM, for which
    /// the device is awake.
    ///
    /// If there is no room for the window, the object moves to system memory.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out, those of [`Self::window`], and those of
    /// [`Self::validate_patiently`].
    pub(super) fn show_to_processes(&mut self) -> Result {
        let obj = self.obj;
        let (windows, id) = (&obj.ttm().windows, obj.id());

        if self.mem_type() == Some(MemType::Vram) && !windows.hold_for_fault(id) {
            match self.window(false) {
                Ok(ranges) => windows.hold(id, ranges, Holder::Faults)?,
                Err(e) if e == ENOSPC && self.may_do_without_window() => {
                    return self.validate_patiently(&[Place::TT], &mut OpCtx::interruptible());
                }
                Err(e) => return Err(e),
            }
        }
        self.touch();
        Ok(())
    }

    /// Tells whether the object can be moved to system memory.
    pub(super) fn may_do_without_window(&self) -> bool {
        self.data().domain() == Domain::Either && !self.is_pinned()
    }

    /// Takes from processes what they have mapped of the object, which they get back at the next
    /// access, and the window from page faults. Does nothing without an aperture. Sleeps.
    pub(super) fn unmap_from_processes(&self) {
        if T::APERTURE.is_some() {
            // SAFETY: The object is valid, and its reservation is held.
            unsafe { bindings::ttm_bo_unmap_virtual(self.bo()) };
            self.obj.drop_fault_window();
        }
    }
}

impl<T: TtmObject> Object<T> {
    /// Takes the window from page faults, after page tables were zapped. A fault that comes after
    /// this makes a new one. Does nothing without an aperture. Sleeps.
    pub(super) fn drop_fault_window(&self) {
        if T::APERTURE.is_some() {
            self.ttm().windows.release(self.id(), Holder::Faults);
        }
    }
}

impl<T: TtmObject> Device<T> {
    /// Evicts the window that was used least recently of those that only page faults hold, unless
    /// that was after the use `newest`. Sleeps.
    fn evict_window(&self, newest: u64) -> Eviction {
        let (mut after, mut ret) = (0, Eviction::Nothing);

        while let Some((id, used)) = self.windows.least_recently_faulted(after) {
            if used > newest {
                return Eviction::Busy;
            }
            after = used;

            // One that is being freed drops its window soon.
            let Some(obj) = self.object(id) else {
                ret = Eviction::Busy;
                continue;
            };
            // SAFETY: The reservation of a valid object is valid.
            let resv = unsafe { DmaResv::from_raw((*obj.as_raw()).resv) };
            let Some(_guard) = resv.try_lock() else {
                ret = Eviction::Busy;
                continue;
            };
            // SAFETY: The reservation is held until the end of the round.
            let held = unsafe { Held::assume(&*obj) };

            if held.window_of_importers().is_none() {
                held.unmap_from_processes();
                return Eviction::Done;
            }
        }
        ret
    }
}

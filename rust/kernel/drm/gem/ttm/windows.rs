// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Windows of an aperture through which the CPU sees objects in VRAM.
//!
//! An object of a device with an [`Aperture`] has at most one window for its place in VRAM. Its
//! holders are:
//!
//! - importers, by the tables that they have mapped,
//! - page faults: from the first one until the entries of page tables are zapped, which happens if
//!   the object moves, or is freed, if the device is suspended or unplugged, or if the window is
//!   evicted; unmapping the object from a process is not enough,
//! - mappings of the kernel, each until it is unmapped. The object is pinned for the same time.
//!
//! The first holder makes the window, the others share it, and it is dropped with the last one. If
//! the aperture is full, windows are evicted that only page faults hold, the least recently used
//! first: the entries of page tables that lead there are zapped, and the next access makes another
//! window. So a process that has accessed an object once does not block an importer. If nothing can
//! be evicted, an importer and a mapping of the kernel get `ENOSPC`, unless the object can be moved
//! to system memory; a page fault moves it there, or ends in `SIGBUS`.
//!
//! A process that accesses two objects by one instruction makes no progress if the aperture has
//! room for one of them only: each fault evicts the other window. The process can be killed.
//!
//! The windows of importers and of mappings of the kernel stay while the device is suspended. If it
//! loses the entries of the aperture then, its driver writes them again when it resumes.
//!
//! # Locking
//!
//! The reservation of the object is held when its window is made, shared and dropped. To evict the
//! window of another object takes the reservation of that object, which is only tried, unless the
//! same task has it already. [`Room`] comes after the reservation: a mutex with which windows of
//! the CPU are made, evicted and dropped, so that no task is refused for room that another task is
//! about to free or has just taken from it. Only two cases drop a window without the reservation,
//! which another task may have: an object that is being freed, and an unplug, which drops the
//! remaining windows of page faults. Both hold the mutex alone.
//!
//! Mirrors `nouveau_ttm_io_mem_reserve()`, which evicts under a mutex that each fault takes.
//!
//! [`Room`]: crate::drm::ttm::Room
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
            Holder,
            NewEntry,
            OpCtx,
            Place,
            Room,
            TtmObject, //
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
        Arc, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// Why an object has no window.
pub(super) enum NoWindow {
    /// The aperture is full.
    Full,
    /// Other tasks have reserved the objects whose windows could be evicted, or are making windows,
    /// or the driver is busy.
    Busy,
    /// The driver cannot make it, or memory has run out.
    Failed(Error),
}

impl From<NoWindow> for Error {
    /// Converts the error for a caller that has waited for other tasks as long as it does.
    fn from(why: NoWindow) -> Error {
        match why {
            NoWindow::Full | NoWindow::Busy => ENOSPC,
            NoWindow::Failed(e) => e,
        }
    }
}

/// The result of the attempt to evict a window.
enum Eviction {
    /// A window was evicted, so there is more room.
    Done,
    /// Other tasks have reserved the objects whose windows could be evicted.
    Busy,
    /// There is no window that could be evicted.
    Nothing,
}

impl<T: TtmObject> Held<'_, Object<T>> {
    /// Returns the ranges of the window that shows the object, which is in VRAM: the window that it
    /// has, or a new one. `holder`, if there is one, becomes a holder of it. Sleeps.
    ///
    /// Waits for some time for other tasks that block an eviction.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if the aperture is full.
    /// - `EINVAL` if the object is not in VRAM.
    /// - `ENODEV` if the driver is not bound any more, `ENOMEM`, and those of the driver.
    pub(super) fn window(&self, holder: Option<Holder>) -> Result<Arc<RangeList>> {
        for attempt in 0..PATIENCE {
            match self.try_window(holder) {
                Err(NoWindow::Busy) => fsleep(Delta::from_millis(1 << attempt.min(3))),
                ret => return Ok(ret?),
            }
        }
        Ok(self.try_window(holder)?)
    }

    /// Does what [`Self::window`] does, but waits for no other task.
    fn try_window(&self, holder: Option<Holder>) -> Result<Arc<RangeList>, NoWindow> {
        let (windows, id) = (&self.obj.ttm().windows, self.obj.id());
        let vram = self.vram().ok_or(NoWindow::Failed(EINVAL))?;
        let new = match holder {
            Some(holder) => Some((holder, NewEntry::reserve().map_err(NoWindow::Failed)?)),
            None => None,
        };
        // References to objects are dropped after `room`, because freeing an object takes the
        // mutex.
        let mut passed = KVec::new();
        let mut room = match holder {
            // A page fault holds the `mmap_lock`, and can be tried again.
            Some(Holder::Faults) => windows.try_room().ok_or(NoWindow::Busy)?,
            _ => windows.room(),
        };

        let ranges = match windows.get(id).or_else(|| self.window_of_importers()) {
            Some(shared) => shared,
            None => self.new_window(vram, &mut room, &mut passed)?,
        };
        if let Some((holder, new)) = new {
            room.hold(id, ranges.clone(), holder, new);
        }
        Ok(ranges)
    }

    /// Returns the device of the object.
    pub(super) fn drm(&self) -> &drm::Device<T::Driver> {
        // SAFETY: The device of a valid object is valid, and of `T::Driver`.
        unsafe { drm::Device::from_raw((*self.obj.as_raw()).dev) }
    }

    /// Makes a window. If there is no room, other windows are evicted.
    fn new_window(
        &self,
        vram: &Ranges,
        room: &mut Room<'_>,
        passed: &mut KVec<ARef<Object<T>>>,
    ) -> Result<Arc<RangeList>, NoWindow> {
        if self.obj.ttm().windows.is_closed() {
            return Err(NoWindow::Busy);
        }
        loop {
            match T::APERTURE.map(self.drm(), vram) {
                Ok(ranges) => return Ok(ranges),
                // Evicting other windows does not help.
                Err(e) if e == E2BIG => return Err(NoWindow::Full),
                Err(e) if e == ENOSPC => (),
                Err(e) if e == EBUSY => return Err(NoWindow::Busy),
                Err(e) => return Err(NoWindow::Failed(e)),
            }

            match self.evict_window(room, passed).map_err(NoWindow::Failed)? {
                Eviction::Done => (),
                Eviction::Busy => return Err(NoWindow::Busy),
                Eviction::Nothing => return Err(NoWindow::Full),
            }
        }
    }

    /// Evicts the least recently used window of those that only page faults hold. The objects that
    /// it has looked at are added to `passed`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    fn evict_window(
        &self,
        room: &mut Room<'_>,
        passed: &mut KVec<ARef<Object<T>>>,
    ) -> Result<Eviction> {
        let (mut after, mut ret) = (0, Eviction::Nothing);
        // Other tasks may use windows again as fast as this loop visits them.
        let newest = room.last_use();

        while let Some((id, used)) = room.least_recently_faulted(after) {
            if used > newest {
                return Ok(Eviction::Busy);
            }
            after = used;

            passed.reserve(1, GFP_KERNEL)?;
            // An object that is being freed drops its window soon.
            let Some(obj) = self.obj.ttm().object(id) else {
                ret = Eviction::Busy;
                continue;
            };
            let is_evicted = self.evict_window_of(&obj, room);

            // There is room.
            let _ = passed.push(obj, GFP_KERNEL);
            match is_evicted {
                Some(true) => return Ok(Eviction::Done),
                Some(false) => (),
                None => ret = Eviction::Busy,
            }
        }
        Ok(ret)
    }

    /// Evicts the window of another object, if no importer has it. Returns whether it did, or
    /// `None` if another task has reserved the object.
    fn evict_window_of(&self, other: &Object<T>, room: &mut Room<'_>) -> Option<bool> {
        // SAFETY: The reservations of valid objects are valid.
        let (resv, own) = unsafe {
            (
                DmaResv::from_raw((*other.as_raw()).resv),
                DmaResv::from_raw((*self.obj.as_raw()).resv),
            )
        };
        // Private objects may share a reservation.
        let _guard = if core::ptr::eq(resv, own) || resv.is_locked_with(own) {
            None
        } else {
            Some(resv.try_lock()?)
        };
        // SAFETY: The reservation is held until the end of the function, by the guard, or by the
        // caller, which has reserved both objects.
        let held = unsafe { Held::assume(other) };

        if held.window_of_importers().is_some() {
            return Some(false);
        }
        // SAFETY: The object is valid, and its reservation is held.
        unsafe { bindings::ttm_bo_unmap_virtual(held.bo()) };
        room.release(other.id(), Holder::Faults);
        Some(true)
    }

    fn window_of_importers(&self) -> Option<Arc<RangeList>> {
        // SAFETY: By the type invariant of `Object` the pointer is null or the dma-buf of the
        // object, whose reservation is held.
        unsafe { T::APERTURE.of_importers(self.exported()) }
    }

    /// Makes the object visible to processes, for a page fault. If it is in VRAM it gets a window,
    /// and the device must be active.
    ///
    /// If there is no room for the window, the object moves to system memory.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if other tasks are in the way: the fault has to be tried again.
    /// - `ENOSPC` if the aperture is full, and the object has to stay in VRAM.
    /// - `ENOMEM` if memory runs out, `EIO` for all other errors of the driver, and the errors of
    ///   [`Self::validate_patiently`].
    pub(super) fn show_to_processes(&mut self) -> Result {
        let windows = &self.obj.ttm().windows;
        let is_in_vram = self.mem_type() == Some(MemType::Vram);

        if is_in_vram && windows.is_closed() {
            return Err(EBUSY);
        }
        let is_seen = !is_in_vram || windows.hold_for_fault(self.obj.id());

        if !is_seen {
            match self.try_window(Some(Holder::Faults)) {
                Ok(_) => (),
                Err(NoWindow::Full) if self.may_do_without_window() => {
                    return self.validate_patiently(&[Place::TT], &mut OpCtx::interruptible());
                }
                Err(NoWindow::Full) => return Err(ENOSPC),
                Err(NoWindow::Busy) => return Err(EBUSY),
                // An error that has another meaning for a fault must not come from the driver.
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

    /// Removes the mappings of processes that lead through a window, which are made again at the
    /// next access, and drops the window of page faults. Does nothing without an aperture. Sleeps.
    pub(super) fn unmap_from_processes(&self) {
        if T::APERTURE.is_some() && self.obj.ttm().windows.is_faulted(self.obj.id()) {
            // SAFETY: The object is valid, and its reservation is held.
            unsafe { bindings::ttm_bo_unmap_virtual(self.bo()) };
            self.obj.drop_fault_window();
        }
    }
}

impl<T: TtmObject> Object<T> {
    /// Drops the window of page faults, after page tables were zapped. A later fault makes a new
    /// one. Does nothing without an aperture. Sleeps.
    pub(super) fn drop_fault_window(&self) {
        if T::APERTURE.is_some() {
            self.ttm().windows.release(self.id(), Holder::Faults);
        }
    }
}

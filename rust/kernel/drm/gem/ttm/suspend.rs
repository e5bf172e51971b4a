// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM that is temporarily inaccessible or loses its content.
//!
//! A driver calls [`Device::begin_reset`] before VRAM is inaccessible for a moment, such as in a
//! reset of the device.
//!
//! It calls [`Device::suspend`] when its device is about to be suspended, and [`Device::resume`]
//! afterwards. Tasks that can resume the device, such as processes, wait until it is resumed.
//! Importers cannot wait because they map with the reservation held. So exported objects are moved
//! to system memory and importers are notified. If VRAM loses its content, the content of
//! non-movable objects is saved. It is restored to the same place: importers that have pinned them
//! have their addresses. If the device was not suspended after all, the driver calls
//! [`Device::undo_suspend`] instead.
//!
//! # Locking
//!
//! All of them take the reservations of objects, one at a time. A task that holds a reservation
//! does not wait for the device to be resumed.
//!
//! C headers: [`include/drm/ttm/ttm_tt.h`](srctree/include/drm/ttm/ttm_tt.h)

use super::{
    device::{
        tt_create_callback,
        tt_destroy_callback, //
    },
    vram_manager::VramResource,
    Device,
    LockedObject,
    Object,
    ObjectGuard,
    TtmObject, //
};
use crate::{
    bindings,
    dma_buf::fence::Fence,
    dma_resv::{
        DmaResv,
        Usage, //
    },
    drm::{
        devres::while_registered,
        gem::{
            BaseObject,
            IntoGEMObject, //
        },
        ttm::{
            OpCtx,
            Place,
            Request,
            Side,
            Transfer,
            Work, //
        },
        vram::{
            Domain,
            MemType, //
        }, //
    },
    error::to_result,
    pm::RuntimeGuard,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Relaxed, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta,
        Instant,
        Jiffies,
        Monotonic,
        Msecs, //
    }, //
};
use core::ptr::NonNull;

/// How long a suspend waits for the work on an object, in milliseconds. TTM waits as long for a
/// move.
pub const SAVE_TIME: Msecs = 15_000;

/// How often restoring the content of an object is tried again if there is no memory.
const RESTORE_ATTEMPTS: usize = 100;

/// The effect of a suspend on VRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// VRAM is inaccessible and keeps its content.
    Kept,
    /// VRAM loses its content.
    Lost,
}

/// Pages for the saved content of an object that stays in VRAM.
///
/// # Invariants
///
/// `tt` has all of its pages and was created for an object of the valid device `bdev`.
pub(super) struct Backup {
    bdev: *mut bindings::ttm_device,
    tt: NonNull<bindings::ttm_tt>,
}

// SAFETY: The pages belong to the value. Any task may use it.
unsafe impl Send for Backup {}

impl Backup {
    /// # Safety
    ///
    /// `bo` must be a reserved object of a [`Device`] that stays valid as long as the value.
    // Not inlined into modules, because they cannot call the functions.
    #[inline(never)]
    unsafe fn new(bo: *mut bindings::ttm_buffer_object, ctx: &mut OpCtx) -> Result<Self> {
        // SAFETY: As promised by the caller.
        unsafe {
            let bdev = (*bo).bdev;
            let tt = NonNull::new(tt_create_callback(bo, 0)).ok_or(ENOMEM)?;

            to_result(bindings::ttm_tt_populate(bdev, tt.as_ptr(), &mut ctx.0))
                .inspect_err(|_| tt_destroy_callback(bdev, tt.as_ptr()))?;
            // INVARIANT: The `ttm` was populated above.
            Ok(Self { bdev, tt })
        }
    }
}

impl Drop for Backup {
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: By the type invariant, and no other code has the pages.
        unsafe {
            bindings::ttm_tt_unpopulate(self.bdev, self.tt.as_ptr());
            tt_destroy_callback(self.bdev, self.tt.as_ptr());
        }
    }
}

impl<T: TtmObject> Device<T> {
    /// Prepares for a time in which VRAM is inaccessible and may lose its content.
    ///
    /// For the callback of a driver that suspends its device or lets the system sleep. Exported
    /// objects are moved to system memory, and importers are notified. With [`Content::Lost`] all
    /// movable objects are moved, and the content of the others is saved. Processes lose their
    /// mappings, and an access resumes the device. May be called again before [`Self::resume`]:
    /// changes since the first call are then saved, too. Does nothing before the registration.
    /// `ctx` says whether to wait for the work of others on the objects.
    ///
    /// # Errors
    ///
    /// On an error the device must not be suspended. Nothing was lost.
    ///
    /// - `EBUSY` if an object is in use and `ctx` says not to wait, or the wait takes too long.
    /// - `EAGAIN` if there is no space in system memory.
    /// - `ENODEV` if the DRM device is not registered.
    /// - `ENOMEM` if memory runs out.
    /// - The error of a move.
    pub fn suspend(&self, content: Content, ctx: &mut OpCtx) -> Result {
        self.zap_mappings();
        let ret =
            self.in_transition(|| self.for_each_object(|object| object.leave_vram(content, ctx)));

        if ret.is_err() {
            self.undo_suspend();
        }
        ret
    }

    /// Drops the content saved by [`Self::suspend`]. VRAM still has it.
    ///
    /// For the callback of a driver whose device was not suspended after all. Devices or processes
    /// may have written to VRAM meanwhile. If an earlier [`Self::resume`] could not restore
    /// content, VRAM does not have it and it stays saved. Objects that were moved stay where they
    /// are.
    pub fn undo_suspend(&self) {
        let _ = self.for_each_object(|object| {
            if !object.obj.loss.is_away() {
                object.take_backup();
            }
            Ok(())
        });
    }

    /// Restores the content saved by [`Self::suspend`].
    ///
    /// For the callback of a driver that has resumed its device. Objects moved to system memory
    /// stay there until they are needed in VRAM.
    ///
    /// If content cannot be restored, all users of the object get `EIO` until a later call or a
    /// [`Self::suspend`] restores it.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the DRM device is not registered.
    /// - `ENOMEM` if memory runs out.
    /// - The error of a move.
    pub fn resume(&self) -> Result {
        if !self.has_backups.load(Relaxed) {
            return Ok(());
        }

        // If one object fails, the others still get their content back.
        let mut first = Ok(());
        let ret = self.in_transition(|| {
            self.for_each_object(|object| {
                first = first.and(object.restore());
                Ok(())
            })
        });
        let ret = ret.and(first);

        if ret.is_ok() {
            self.has_backups.store(false, Relaxed);
        }
        ret
    }

    /// Prepares for a reset that preserves the content of VRAM while the aperture does not show
    /// VRAM.
    ///
    /// - The mappings of processes are removed. A process accessing an object in VRAM waits until
    ///   [`Self::end_reset`].
    /// - Exported objects are moved to system memory if they are movable. Importers are notified,
    ///   so no importer accesses VRAM. Pinned and VRAM-only objects stay.
    /// - No object gets a window until [`Self::end_reset`].
    ///
    /// Waits for the work of importers, for the moves and for tasks that hold the reservation of an
    /// object. It holds no lock while it waits, and waits for `limit` at most in all. Sleeps.
    ///
    /// # Errors
    ///
    /// [`Self::end_reset`] has to be called after an error as well.
    ///
    /// - `ENODEV` if the DRM device is not registered.
    /// - `EBUSY` if a move or the work on an object was not done in time.
    /// - The first other error of a move. The other objects have been moved then.
    pub fn begin_reset(&self, limit: Delta) -> Result {
        let time = TimeLimit {
            since: Instant::now(),
            limit,
        };

        self.windows.set_closed(true);
        let ret = self.for_each_in(&time, Object::hide);
        let ret = ret.and(self.for_each_in(&time, Object::evict_exported));
        // Copies not done by the engine by now would have to be done after the reset.
        ret.and(self.for_each_in(&time, Object::await_moves))
    }

    /// Ends [`Self::begin_reset`] after the reset.
    pub fn end_reset(&self) {
        self.windows.set_closed(false);
    }

    /// Calls `f` for each object and returns the first error.
    fn for_each_in(
        &self,
        time: &TimeLimit,
        f: impl Fn(&Object<T>, &TimeLimit) -> Result,
    ) -> Result {
        let (mut first, mut next) = (Ok(()), 0);

        while let Some(obj) = self.object_from(next) {
            next = obj.id() + 1;
            first = first.and(f(&obj, time));
        }
        first
    }

    fn for_each_object(
        &self,
        mut f: impl FnMut(&mut LockedObject<'_, Object<T>>) -> Result,
    ) -> Result {
        let mut next = 0;

        while let Some(obj) = self.object_from(next) {
            next = obj.id() + 1;
            f(&mut obj.reserve(false)?.view())?;
        }
        Ok(())
    }
}

/// The maximal time of a wait.
struct TimeLimit {
    since: Instant<Monotonic>,
    limit: Delta,
}

impl TimeLimit {
    /// Returns the remaining time, at least one jiffy.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the time is up.
    fn left(&self) -> Result<Jiffies> {
        let left = (self.limit - self.since.elapsed()).as_millis();

        if left <= 0 {
            return Err(EBUSY);
        }
        Ok(msecs_to_jiffies(left.try_into().unwrap_or(Msecs::MAX)).max(1))
    }

    /// Sleeps for a moment because another task has what is needed.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the time is up.
    fn pause(&self) -> Result {
        self.left()?;
        fsleep(Delta::from_millis(1));
        Ok(())
    }
}

impl<T: TtmObject> Object<T> {
    /// Waits for fences with no lock held.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the time is up.
    fn await_fences(&self, usage: Usage, time: &TimeLimit) -> Result {
        // SAFETY: The reservation of a valid object is valid.
        let resv = unsafe { DmaResv::from_raw((*self.as_raw()).resv) };

        if !resv.test_signaled(usage) {
            resv.wait_timeout(usage, false, time.left()?)
                .map_err(|_| EBUSY)?;
        }
        Ok(())
    }

    /// Reserves the object.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another task has it until the time is up.
    fn reserve_within(&self, time: &TimeLimit) -> Result<ObjectGuard<'_, T>> {
        loop {
            if let Some(reserved) = self.try_reserve() {
                return Ok(reserved);
            }
            time.pause()?;
        }
    }

    /// Reserves the object unless it cannot be exported.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::reserve_within`].
    fn reserve_exported(&self, time: &TimeLimit) -> Result<Option<ObjectGuard<'_, T>>> {
        if self.import.is_some() || self.is_private() {
            return Ok(None);
        }
        self.reserve_within(time).map(Some)
    }

    /// Removes the mappings of processes, because they lead through the aperture.
    fn hide(&self, time: &TimeLimit) -> Result {
        // An unmapped object is reserved as well: a page fault may be about to map it.
        if T::APERTURE.is_some() && self.import.is_none() {
            self.reserve_within(time)?.view().unmap_from_processes();
        }
        Ok(())
    }

    /// Moves an exported object to system memory without a wait for the move.
    fn evict_exported(&self, time: &TimeLimit) -> Result {
        loop {
            let ret = {
                let Some(mut reserved) = self.reserve_exported(time)? else {
                    return Ok(());
                };
                let mut object = reserved.view();
                let stays = object.is_pinned() || object.data().domain() == Domain::Vram;
                let is_exported = !object.exported().is_null();

                if !is_exported || stays || object.mem_type() != Some(MemType::Vram) {
                    return Ok(());
                }
                object.validate(&[Place::TT], &mut OpCtx::without_waiting())
            };

            // Importers were notified and begin no more work.
            if ret != Err(EBUSY) {
                return ret;
            }
            self.await_fences(Usage::Bookkeep, time)?;
            // Another task may have the object or the resources it needs.
            time.pause()?;
        }
    }

    /// Waits for the moves of the object if it is exported.
    fn await_moves(&self, time: &TimeLimit) -> Result {
        let Some(mut reserved) = self.reserve_exported(time)? else {
            return Ok(());
        };
        let is_exported = !reserved.view().exported().is_null();
        drop(reserved);

        if is_exported {
            self.await_fences(Usage::Kernel, time)?;
        }
        Ok(())
    }
}

impl<T: TtmObject> LockedObject<'_, Object<T>> {
    /// Moves the object to system memory or saves its content, if it is in VRAM and this is needed.
    fn leave_vram(&mut self, content: Content, ctx: &mut OpCtx) -> Result {
        if self.obj.import.is_some() {
            return Ok(());
        }
        // The aperture may be inaccessible as well.
        self.unmap_from_processes();

        let stays = self.is_pinned() || self.data().domain() == Domain::Vram;
        let is_exported = !self.exported().is_null();

        let is_concerned = match content {
            Content::Lost => true,
            Content::Kept => is_exported && !stays,
        };

        if is_concerned && self.mem_type() == Some(MemType::Vram) {
            // A later attempt invalidates the mappings of an object in use.
            let ttm = self.obj.ttm();
            if ctx.0.no_wait_gpu && ttm.is_used_by_others(&self.resv(), Usage::Bookkeep) {
                return Err(EBUSY);
            }

            if stays {
                self.save(ctx)?;
            } else if self.obj.loss.is_away() && self.restore().is_err() {
                // VRAM does not have the content of the object, so it cannot be moved.
                return Err(EBUSY);
            } else {
                let full = |e| if e == ENOSPC { EAGAIN } else { e };
                self.validate(&[Place::TT], ctx).map_err(full)?;
            }
        }
        // Another task may have moved the object just before. A move may depend on work that a
        // frozen process has to end.
        self.await_work(Usage::Kernel, false)
    }

    /// Waits for the work on the object as long as TTM does for a move.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if it takes too long.
    /// - `ERESTARTSYS` if a signal arrived.
    fn await_work(&mut self, usage: Usage, is_interruptible: bool) -> Result {
        self.resv()
            .resv()
            .wait_timeout(usage, is_interruptible, msecs_to_jiffies(SAVE_TIME))
            .map(|_| ())
            .map_err(|e| if e == ETIME { EBUSY } else { e })
    }

    /// Copies the content from VRAM to the backup. Creates the backup if there is none yet.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if the work on the object takes too long.
    /// - The errors of a move.
    fn save(&mut self, ctx: &mut OpCtx) -> Result {
        // Writes by devices and processes have to be saved as well. The device may no longer work,
        // and the process may be frozen.
        self.await_work(Usage::Bookkeep, ctx.is_interruptible())?;

        // If the restore fails, the content of VRAM is not that of the object.
        if self.obj.loss.is_away() && self.restore().is_err() {
            return Ok(());
        }

        let backup = match self.take_backup() {
            Some(backup) => backup,
            // SAFETY: The object is valid, its reservation held, and the value dropped before it.
            None => unsafe { Backup::new(self.bo(), ctx) }?,
        };

        self.transfer(&backup, true)?;
        self.obj.ttm().has_backups.store(true, Relaxed);
        // SAFETY: The reservation guards the cell and is held.
        unsafe { *self.obj.backup.get() = Some(backup) };
        Ok(())
    }

    /// Copies the backup back to VRAM.
    fn restore(&mut self) -> Result {
        let Some(backup) = self.take_backup() else {
            return Ok(());
        };
        // The object was moved since, together with the content in VRAM.
        if self.mem_type() != Some(MemType::Vram) {
            return Ok(());
        }
        // Until the copy is done, VRAM does not have the content. The callback of a system resume
        // is not called again, so a copy that lacks memory is tried again for a second.
        let mut ret = self.transfer(&backup, false);
        for _ in 0..RESTORE_ATTEMPTS {
            if ret != Err(ENOMEM) {
                break;
            }
            fsleep(Delta::from_millis(10));
            ret = self.transfer(&backup, false);
        }

        match ret {
            Ok(()) => self.obj.loss.set_back(),
            Err(error) => {
                // SAFETY: The reservation guards the cell and is held.
                unsafe { *self.obj.backup.get() = Some(backup) };
                self.obj.loss.set_away(error);
                self.hide();
            }
        }
        ret
    }

    fn take_backup(&mut self) -> Option<Backup> {
        // SAFETY: The reservation guards the cell and is held.
        unsafe { (*self.obj.backup.get()).take() }
    }

    /// Copies all of the object from VRAM to `backup` or back and waits for the copy.
    fn transfer(&mut self, backup: &Backup, saves: bool) -> Result {
        if self.mem_type() != Some(MemType::Vram) {
            return Err(EINVAL);
        }

        // SAFETY: The object is valid. The backup was created for it and has its pages.
        let table = unsafe {
            self.obj
                .ttm()
                .table_of_pages((*self.obj.as_raw()).dev, backup.tt)
        }?;
        let pages = Side::Pages(backup.tt, table);
        // SAFETY: The object is in VRAM.
        let ranges = unsafe { VramResource::from_raw((*self.bo()).resource) }.ranges();
        let vram = Side::Vram(ranges.clone());
        let (from, to) = if saves { (vram, pages) } else { (pages, vram) };
        // SAFETY: Both sides have the size of the object. The pages stay until the fence signals,
        // because this function waits for the fence.
        let transfer = unsafe { Transfer::new(Some(from), to, self.obj.size()) };
        // The copy does not wait for the work of others on a pinned object.
        let mut after = KVec::new();
        let external =
            self.obj
                .ttm()
                .add_own_dependencies(&self.resv(), Usage::Bookkeep, &mut after)?;
        // If the copy fails, nothing is lost: the other side still has the content.
        let request = Request {
            work: Work::Move(transfer),
            runtime_guard: self.obj.runtime_guard_if_active(),
            after,
            external,
            in_order: false,
            from: None,
            to: None,
        };

        // SAFETY: The device of an object is valid and of `T::Driver`.
        let fence: ARef<Fence> = unsafe {
            while_registered::<T::Driver, _>((*self.obj.as_raw()).dev, |reg| {
                self.ttm().submit(reg, request, None)
            })
        }?;

        fence.wait(false)?;
        fence.status().unwrap_or(Ok(()))
    }
}

impl<T: TtmObject> Object<T> {
    /// Takes a runtime PM guard of the device with the VRAM. Without it VRAM is inaccessible.
    ///
    /// # Errors
    ///
    /// The errors of [`RuntimeGuard::new`].
    pub(crate) fn runtime_guard(&self) -> Result<RuntimeGuard> {
        RuntimeGuard::new(self.ttm().owner())
    }

    /// As [`Self::runtime_guard`] for a task that holds a reservation; [`None`] if the device is
    /// suspended.
    pub(crate) fn runtime_guard_if_active(&self) -> Option<RuntimeGuard> {
        RuntimeGuard::if_active(self.ttm().owner())
    }

    /// Returns the forgotten guard of [`Self::runtime_guard`].
    ///
    /// # Safety
    ///
    /// The requirements of [`RuntimeGuard::from_forgotten`].
    pub(crate) unsafe fn runtime_guard_from_forgotten(&self) -> RuntimeGuard {
        // SAFETY: As promised by the caller.
        unsafe { RuntimeGuard::from_forgotten(self.ttm().owner()) }
    }
}

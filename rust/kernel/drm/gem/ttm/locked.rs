// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Operations on an object whose reservation is held.
//!
//! C header: [`include/drm/ttm/ttm_bo.h`](srctree/include/drm/ttm/ttm_bo.h)

use super::{
    vram_manager::VramResource,
    LockedObject,
    Object,
    PinAccount,
    Stay,
    TtmObject, //
};
use crate::{
    bindings,
    dma_resv::{
        DmaResv,
        Usage, //
    },
    drm::{
        self,
        devres::while_registered,
        gem::{
            self,
            peer::Client,
            BaseObject,
            IntoGEMObject, //
        },
        ttm::{
            Arrival,
            OpCtx,
            Pages,
            Place, //
        },
        vram::{
            Domain,
            MemType,
            Ranges, //
        }, //
    },
    error::to_result,
    pm::RuntimeGuard,
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
use core::{
    ops::Deref,
    ptr::NonNull, //
};

/// How often a validation retries while other tasks may hold objects that it could evict, which
/// takes some 100 ms.
const PATIENCE: u32 = 16;

impl<T: TtmObject> LockedObject<'_, Object<T>> {
    /// Returns the driver's part of the object.
    #[inline]
    pub fn data(&self) -> &T {
        &self.obj.data
    }

    pub(super) fn bo(&self) -> *mut bindings::ttm_buffer_object {
        self.obj.bo()
    }

    /// Returns the kind of memory that the object is in, or [`None`] if it has none yet.
    pub fn mem_type(&self) -> Option<MemType> {
        // SAFETY: The reservation, which guards the resource, is held.
        unsafe {
            let resource = (*self.bo()).resource;

            if resource.is_null() {
                None
            } else {
                MemType::from_raw((*resource).mem_type)
            }
        }
    }

    /// Returns the ranges of VRAM that the object is in, or [`None`] if it is not in VRAM.
    pub fn vram(&self) -> Option<&Ranges> {
        if self.mem_type() != Some(MemType::Vram) {
            return None;
        }

        // SAFETY: The resource is one of VRAM, which stays while the reservation is held and the
        // view is not used to move it.
        Some(unsafe { VramResource::from_raw((*self.bo()).resource) }.ranges())
    }

    /// Returns how much of VRAM the CPU and peers see, in bytes.
    #[inline]
    pub fn visible(&self) -> u64 {
        self.ttm().visible()
    }

    /// Returns whether the object is pinned.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        // SAFETY: The reservation, which guards the count and the cell, is held.
        unsafe { (*self.bo()).pin_count > u32::from((*self.obj.pins.get()).off_lru) }
    }

    /// Records that the object is used: it becomes the last one to be evicted.
    ///
    /// A task that has reserved the object calls this if it is going to access the content, or has
    /// a job of the device access it. A task that only reads where the object is does not.
    pub fn touch(&self) {
        // SAFETY: The object is valid, and its reservation is held, which guards the count and the
        // place. A pinned object is on no LRU list.
        unsafe {
            if (*self.bo()).pin_count == 0 {
                bindings::ttm_bo_move_to_lru_tail_unlocked(self.bo());
            }
        }
    }

    /// Takes an object that is in VRAM and never leaves it off the LRU list, where every eviction
    /// would have to skip it.
    ///
    /// TTM keeps pinned objects off the list, so this is a pin for TTM. It is not a pin for other
    /// code: [`Self::is_pinned`] ignores it, and [`Self::validate`] moves the object all the same.
    /// For its charge see [`Self::charge_stay`].
    pub(super) fn take_off_lru(&mut self) {
        if self.data().domain() == Domain::Vram && self.mem_type() == Some(MemType::Vram) {
            self.set_off_lru(true);
        }
    }

    fn set_off_lru(&mut self, off_lru: bool) {
        // SAFETY: The reservation, which guards the cell, is held.
        let pins = unsafe { &mut *self.obj.pins.get() };

        if pins.off_lru == off_lru {
            return;
        }
        // INVARIANT: The object is pinned below, by a caller that found it in VRAM, or is unpinned.
        pins.off_lru = off_lru;
        // SAFETY: The object is valid, and its reservation is held. Only a pin that was made here
        // is undone.
        unsafe {
            if off_lru {
                bindings::ttm_bo_pin(self.bo());
            } else {
                bindings::ttm_bo_unpin(self.bo());
            }
        }
    }

    /// Moves the object to one of `places`, unless it is in one already.
    ///
    /// Mappings are invalidated first. Waits for the work on the object, but not for the move: its
    /// fence is in the reservation. The object counts as used, even if it does not move. A move to
    /// or from VRAM needs a device that is active, see the [module](self). Mirrors
    /// `ttm_bo_validate()`.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the device is suspended.
    /// - `EINVAL` if the object is pinned elsewhere.
    /// - `EOPNOTSUPP` if the object is imported: its exporter decides where it is.
    /// - `ENOSPC` if no place has room for the object. In a round of [`Exec`](drm::exec::Exec) TTM
    ///   may have met a lock that it must not wait for. After that the round takes no other lock,
    ///   so objects only get places for which no object is evicted, or the round fails. The other
    ///   user of VRAM was asked to release some of it, so a second call may succeed.
    /// - `ENODEV` if the driver is not bound any more.
    /// - `EBUSY` if the work on the object takes too long.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - `ENOMEM` if memory runs out.
    pub fn validate(&mut self, places: &[Place], ctx: &mut OpCtx) -> Result {
        if self.obj.import.is_some() {
            return Err(EOPNOTSUPP);
        }

        let places = self.ttm().fitting(places, self.obj.size() as u64)?;

        // TTM does not move pinned objects. No other task can evict this one meanwhile, because it
        // is reserved.
        self.set_off_lru(false);
        let mut placement = Place::list(&places);
        // SAFETY: The object is valid, and its reservation is held.
        let ret =
            to_result(unsafe { bindings::ttm_bo_validate(self.bo(), &mut placement, &mut ctx.0) });
        if ret == Err(ENOSPC) {
            // The round may have met a contended lock, after which it must take no other one, so
            // this call does not try again: its caller does.
            self.make_room(&places);
        }
        self.take_off_lru();
        ret?;

        self.touch();
        Ok(())
    }

    /// Asks the other user of VRAM to release some of it for the object, if evicting objects does
    /// not give enough room.
    fn make_room(&self, places: &[Place]) {
        // SAFETY: The object is valid.
        let drm = unsafe { (*self.obj.as_raw()).dev };

        self.ttm().reclaim_more(drm, places, self.obj.size() as u64);
    }

    /// As [`Self::validate`], for a task that has no ticket, and holds the reservation of the
    /// object only.
    ///
    /// TTM then only tries the locks of the objects that it would evict, so it finds no room while
    /// other tasks hold them. If there could be room, it is tried again for some time.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::validate`].
    pub(crate) fn validate_patiently(&mut self, places: &[Place], ctx: &mut OpCtx) -> Result {
        let size = self.obj.size() as u64;

        for attempt in 0..PATIENCE {
            match self.validate(places, ctx) {
                // The answer visits all objects, so it is asked for once.
                Err(e) if e == ENOSPC && (attempt > 0 || self.ttm().could_have_room(size)) => (),
                ret => return ret,
            }
            fsleep(Delta::from_millis(1 << attempt.min(3)));
        }
        self.validate(places, ctx)
    }

    /// Makes the object stay where it is until [`Self::unpin_raw`]. Calls nest.
    ///
    /// Pages that could be swapped out without a notification are moved to where they cannot. Waits
    /// for moves of the object, so that its users need not.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the object is in VRAM, and no more VRAM may be pinned.
    /// - `EIO` if the object has lost its content, because a move of it failed.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - Those of [`Self::validate`].
    pub(crate) fn pin_raw(&mut self) -> Result {
        let bo = self.bo();

        if !self.is_pinned() {
            if !matches!(self.mem_type(), Some(MemType::Vram | MemType::Tt)) {
                self.validate(&[Place::TT], &mut OpCtx::uninterruptible())?;
            }
            self.resv().resv().wait(Usage::Kernel, true)?;
        }
        // Also an object that is pinned may lose its content, with the device.
        self.check_content()?;
        if !self.is_pinned() && self.mem_type() == Some(MemType::Vram) {
            self.charge()?;
        }
        // SAFETY: The object is valid, and its reservation is held.
        unsafe { bindings::ttm_bo_pin(bo) };
        Ok(())
    }

    /// Allows the object to move again. Does nothing if it is not pinned.
    ///
    /// Only for callers of [`Self::pin_raw`].
    pub(crate) fn unpin_raw(&mut self) {
        if !self.is_pinned() {
            return;
        }

        #[cfg(CONFIG_RUST_DEBUG_ASSERTIONS)]
        self.check_pinned_place();
        // SAFETY: The object is valid, pinned, and its reservation is held.
        unsafe { bindings::ttm_bo_unpin(self.bo()) };
        self.uncharge_unpinned();
    }

    /// Warns if the object is not where it was pinned: a pin is charged only in VRAM.
    #[cfg(CONFIG_RUST_DEBUG_ASSERTIONS)]
    fn check_pinned_place(&self) {
        // SAFETY: The reservation, which guards the cell, is held.
        let is_charged = unsafe { (*self.obj.pins.get()).group.is_some() };

        crate::warn_on!(is_charged && self.mem_type() != Some(MemType::Vram));
    }

    /// Charges for the object, which is in VRAM, not pinned and about to be. Does nothing if it is
    /// charged already. If it is not pinned after all, [`Self::uncharge_unpinned`] follows.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the object exceeds a limit: of the device, of the client that exported it, or
    ///   of the cgroup of the current task.
    /// - `ENODEV` if the device was unplugged, and `ENOMEM`.
    pub(crate) fn charge(&mut self) -> Result {
        // SAFETY: The reservation, which guards the cell, is held.
        let account = unsafe { (*self.obj.pins.get()).exporter.clone() };

        self.charge_to(account)
    }

    /// As [`Self::charge`], on `account`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::charge`].
    pub(super) fn charge_to(&mut self, account: Option<Arc<PinAccount>>) -> Result {
        let size = self.obj.size() as u64;
        // SAFETY: The reservation, which guards the cell, is held.
        let pins = unsafe { &mut *self.obj.pins.get() };

        if pins.group.is_some() {
            return Ok(());
        }

        let group = self.obj.ttm().charge_pin(size)?;
        if let Some(account) = &account {
            account
                .charge(size, self.obj.ttm().client_pin_limit())
                .inspect_err(|_| self.obj.ttm().uncharge_pin(size))?;
        }
        pins.charged = account;
        pins.group = Some(group);
        Ok(())
    }

    /// Undoes [`Self::charge`], if the object is charged, not pinned, and may leave VRAM.
    pub(crate) fn uncharge_unpinned(&mut self) {
        // SAFETY: The reservation, which guards the cell, is held.
        let pins = unsafe { &mut *self.obj.pins.get() };

        if !self.is_pinned() && pins.stay != Stay::Charged {
            pins.uncharge(self.obj);
        }
    }

    /// Charges for an object that never leaves VRAM, as long as it lives, to `account`: that of the
    /// client that gets its first handle. Does nothing for other objects and later handles.
    ///
    /// Nobody else gets that VRAM, as if it were pinned. A task that may lock memory, by
    /// `CAP_IPC_LOCK`, is not charged.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::charge`].
    pub(super) fn charge_stay(&mut self, account: Option<Arc<PinAccount>>) -> Result {
        // SAFETY: The reservation, which guards the cell, is held.
        let pins = unsafe { &mut *self.obj.pins.get() };

        if self.data().domain() != Domain::Vram || pins.stay != Stay::Undecided {
            return Ok(());
        }
        if may_lock_memory() {
            pins.stay = Stay::Free;
            return Ok(());
        }

        self.charge_to(account)?;
        pins.stay = Stay::Charged;
        Ok(())
    }

    /// Sets the client that exports the object, and the account that is charged for pins, unless
    /// the object is exported already, and a client is known.
    pub(super) fn set_exporter(&mut self, account: Option<&Arc<PinAccount>>, client: Client) {
        let is_exported = !self.exported().is_null();
        // SAFETY: The reservation, which guards the cell, is held.
        let pins = unsafe { &mut *self.obj.pins.get() };

        if !is_exported || pins.client.id == Client::NONE.id {
            if let Some(account) = account {
                pins.exporter = Some(account.clone());
            }
            pins.client = client;
        }
    }

    /// Returns the client that exported the object last.
    pub(super) fn client(&self) -> Client {
        // SAFETY: The reservation, which guards the cell, is held.
        unsafe { (*self.obj.pins.get()).client }
    }

    /// Returns how many bytes of the object are in VRAM where the CPU and peers see them.
    pub(super) fn visible_bytes(&self) -> u64 {
        self.vram()
            .map_or(0, |vram| vram.bytes_below(self.visible()))
    }

    /// Returns the pages of an object that is in system memory, and allocates them if there are
    /// none.
    ///
    /// Waits for moves that fill them. The pages stay while the object is pinned, or does not move.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the object is in VRAM, or in system memory that could be swapped out without a
    ///   notification.
    /// - `EIO` if the object has lost its content, because a move of it failed.
    /// - `ENOMEM` if memory runs out, `ERESTARTSYS` if a signal arrived.
    pub(crate) fn pages(&mut self, ctx: &mut OpCtx) -> Result<Pages<'_>> {
        if self.mem_type() != Some(MemType::Tt) {
            return Err(EINVAL);
        }

        // The caller may map the pages for a device that bounces, which copies them at once.
        self.resv()
            .resv()
            .wait(Usage::Kernel, ctx.is_interruptible())?;
        self.check_content()?;
        // SAFETY: The object is valid, and its reservation is held. An object in system memory has
        // a `ttm`, which has all of its pages when it is populated.
        unsafe {
            to_result(bindings::ttm_bo_populate(self.bo(), &mut ctx.0))?;
            Ok(Pages::from_raw(
                NonNull::new((*self.bo()).ttm).ok_or(EINVAL)?,
            ))
        }
    }

    /// Checks that the object has its content. Moves that are under way may still fail.
    ///
    /// # Errors
    ///
    /// `EIO` if the content was lost, because a move of the object failed.
    pub fn check_content(&self) -> Result {
        if self.obj.loss.is_lost() {
            return Err(EIO);
        }
        Ok(())
    }

    /// Returns the content that is on its way to the object, or [`None`] if there is none: see
    /// [`Self::check_content`] for what was lost before.
    pub fn arrival(&self) -> Option<Arrival> {
        let loss = &self.obj.loss;

        loss.may_come().then(|| Arrival(loss.clone()))
    }

    /// As [`Self::check_content`], after waiting for a job that may still fail.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal arrived, and those of [`Self::check_content`].
    pub(super) fn settle_content(&self) -> Result {
        if self.obj.loss.may_come() {
            // SAFETY: The reservation of a valid object is valid.
            let resv = unsafe { DmaResv::from_raw((*self.obj.as_raw()).resv) };

            resv.wait(Usage::Kernel, true)?;
        }
        self.check_content()
    }

    /// Makes writes of the CPU to an object in VRAM visible to devices.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the driver is not bound any more.
    pub(crate) fn flush(&self) -> Result {
        let Some(vram) = self.vram() else {
            return Ok(());
        };

        // SAFETY: The device is valid and of `T::Driver`.
        unsafe {
            while_registered::<T::Driver, _>((*self.bo()).base.dev, |reg| {
                // Writes before the device was suspended have arrived, and there were none since.
                if let Some(_runtime_guard) = self.obj.runtime_guard_if_active() {
                    T::flush(reg, vram);
                }
                Ok(())
            })
        }
    }

    pub(super) fn ttm(&self) -> &drm::gem::ttm::Device<T> {
        self.obj.ttm()
    }

    /// Sets the dma-buf of the object, whose mappings a move invalidates, or clears it.
    ///
    /// # Safety
    ///
    /// `buf` must be null, or a dma-buf that shares the reservation of the object and stays valid
    /// until this is called again.
    pub(crate) unsafe fn set_exported(&mut self, buf: *mut bindings::dma_buf) {
        // INVARIANT: By the safety requirements.
        // SAFETY: The reservation, which guards the cells, is held.
        unsafe {
            *self.obj.exported.get() = buf;
            if buf.is_null() {
                let pins = &mut *self.obj.pins.get();

                pins.client = Client::NONE;
                pins.exporter = None;
            }
        }
    }

    /// Returns the dma-buf of the object, null if there is none.
    pub(crate) fn exported(&self) -> *mut bindings::dma_buf {
        // SAFETY: The reservation, which guards the cell, is held.
        unsafe { *self.obj.exported.get() }
    }
}

/// The proof that an object is reserved. Dropping it ends the reservation.
pub type ObjectGuard<'a, T> = gem::locked::ObjectGuard<'a, Object<T>>;

impl<T: TtmObject> ObjectGuard<'_, T> {
    /// Moves the object to one of `places`, unless it is in one already.
    ///
    /// See [`LockedObject::validate`].
    ///
    /// # Errors
    ///
    /// The errors of [`LockedObject::validate`].
    pub fn validate(&mut self, places: &[Place], ctx: &mut OpCtx) -> Result {
        self.view().validate(places, ctx)
    }

    /// Makes the object stay where it is until the value that is returned is dropped. Calls nest.
    ///
    /// If the object is in VRAM the device stays active for that long.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the object is in VRAM, and the device is suspended, or its runtime PM
    ///   disabled.
    /// - `EDQUOT` if the object is in VRAM, and no more VRAM may be pinned.
    /// - `EIO` if the object has lost its content, because a move of it failed.
    /// - Those of [`LockedObject::validate`].
    pub fn pin(&mut self) -> Result<Pinned<T>> {
        let runtime_guard = (self.mem_type() == Some(MemType::Vram))
            .then(|| self.obj.runtime_guard_if_active().ok_or(EAGAIN))
            .transpose()?;

        self.view().pin_raw()?;
        Ok(Pinned {
            obj: self.object().into(),
            _runtime_guard: runtime_guard,
        })
    }
}

/// Returns whether the current task may lock any amount of memory.
fn may_lock_memory() -> bool {
    // A task that may not is nothing to be audited, as the charge is the rule.
    // SAFETY: The namespace is static.
    unsafe {
        bindings::ns_capable_noaudit(
            &raw mut bindings::init_user_ns,
            bindings::CAP_IPC_LOCK as i32,
        )
    }
}

/// An object that is pinned. Dropping the value unpins it.
///
/// It must be dropped without the reservation, which it takes.
#[must_use = "the object may move again when the value is dropped"]
pub struct Pinned<T: TtmObject> {
    obj: ARef<Object<T>>,
    // Dropped after the object was unpinned.
    _runtime_guard: Option<RuntimeGuard>,
}

impl<T: TtmObject> Deref for Pinned<T> {
    type Target = Object<T>;

    #[inline]
    fn deref(&self) -> &Object<T> {
        &self.obj
    }
}

impl<T: TtmObject> Drop for Pinned<T> {
    fn drop(&mut self) {
        // The wait is not interruptible, so it does not fail.
        if let Ok(mut object) = self.obj.reserve(false) {
            object.view().unpin_raw();
        }
    }
}

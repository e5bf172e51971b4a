// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Operations on a reserved object.
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

/// How often a validation retries while other tasks may hold evictable objects. All attempts take
/// some 100 ms.
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

    /// Returns the kind of memory of the object, or [`None`] if it has none yet.
    pub fn mem_type(&self) -> Option<MemType> {
        // SAFETY: The reservation guards the resource and is held.
        unsafe {
            let resource = (*self.bo()).resource;

            if resource.is_null() {
                None
            } else {
                MemType::from_raw((*resource).mem_type)
            }
        }
    }

    /// Returns the ranges of the object in VRAM, or [`None`] if it is elsewhere.
    pub fn vram(&self) -> Option<&Ranges> {
        if self.mem_type() != Some(MemType::Vram) {
            return None;
        }

        // SAFETY: The resource is one of VRAM. It stays while the reservation is held and the view
        // is not used to move it.
        Some(unsafe { VramResource::from_raw((*self.bo()).resource) }.ranges())
    }

    /// Returns how many bytes of VRAM are visible to the CPU and peers.
    #[inline]
    pub fn visible(&self) -> u64 {
        self.ttm().visible()
    }

    /// Returns whether the object is pinned.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        // SAFETY: The reservation guards the count and the cell and is held.
        unsafe { (*self.bo()).pin_count > u32::from((*self.obj.pins.get()).off_lru) }
    }

    /// Records a use of the object: it becomes the last one to be evicted.
    ///
    /// A task that has reserved the object calls this if it is going to access the content or has a
    /// job of the device access it. A task that only reads its placement does not.
    pub fn touch(&self) {
        // SAFETY: The object is valid. Its reservation guards the count and the place and is held.
        // A pinned object is on no LRU list.
        unsafe {
            if (*self.bo()).pin_count == 0 {
                bindings::ttm_bo_move_to_lru_tail_unlocked(self.bo());
            }
        }
    }

    /// Takes a VRAM-only object in VRAM off the LRU list, where every eviction would have to skip
    /// it.
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
        // SAFETY: The reservation guards the cell and is held.
        let pins = unsafe { &mut *self.obj.pins.get() };

        if pins.off_lru == off_lru {
            return;
        }
        // INVARIANT: Either the object is unpinned below, or the caller found it in VRAM and it is
        // pinned.
        pins.off_lru = off_lru;
        // SAFETY: The object is valid, and its reservation is held. Only a pin of this function is
        // undone.
        unsafe {
            if off_lru {
                bindings::ttm_bo_pin(self.bo());
            } else {
                bindings::ttm_bo_unpin(self.bo());
            }
        }
    }

    /// Moves the object to one of `places` unless it is in one already.
    ///
    /// Mappings are invalidated first. Waits for the work on the object, but not for the move: its
    /// fence is in the reservation. The object counts as used even if it does not move. A move to
    /// or from VRAM needs an active device, see the [module](super). Mirrors `ttm_bo_validate()`.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the device is suspended.
    /// - `EINVAL` if the object is pinned elsewhere.
    /// - `EOPNOTSUPP` if the object is imported: its exporter decides on its place.
    /// - `ENOSPC` if no place has space for the object. In a round of [`Exec`](drm::exec::Exec) TTM
    ///   may have met a lock that it must not wait for. After that the round takes no other lock:
    ///   objects only get places without an eviction, or the round fails. The other user of VRAM
    ///   was asked to release some of it, so a second call may succeed.
    /// - `ENODEV` if the driver is no longer bound.
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
            // The round may have met a contended lock and must take no other one after it. So this
            // call leaves the second attempt to its caller.
            self.make_room(&places);
        }
        self.take_off_lru();
        ret?;

        self.touch();
        Ok(())
    }

    /// Asks the other user of VRAM to release some of it for the object if evicting objects does
    /// not free enough space.
    fn make_room(&self, places: &[Place]) {
        // SAFETY: The object is valid.
        let drm = unsafe { (*self.obj.as_raw()).dev };

        self.ttm().reclaim_more(drm, places, self.obj.size() as u64);
    }

    /// As [`Self::validate`] for a task without a ticket that holds no other reservation.
    ///
    /// TTM then only tries the locks of the objects that it would evict. It finds no space while
    /// other tasks hold them. If there could be space, it is tried again for some time.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::validate`].
    pub(crate) fn validate_patiently(&mut self, places: &[Place], ctx: &mut OpCtx) -> Result {
        let size = self.obj.size() as u64;

        for attempt in 0..PATIENCE {
            match self.validate(places, ctx) {
                // The check visits all objects, so it is done once.
                Err(e) if e == ENOSPC && (attempt > 0 || self.ttm().could_have_room(size)) => (),
                ret => return ret,
            }
            fsleep(Delta::from_millis(1 << attempt.min(3)));
        }
        self.validate(places, ctx)
    }

    /// Pins the object in its place until [`Self::unpin_raw`]. Calls nest.
    ///
    /// Pages that could be swapped out without a notification are moved to where they cannot. Waits
    /// for moves of the object so that its users need not.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the object is in VRAM and no more VRAM may be pinned.
    /// - `EIO` if a failed move has lost the content of the object.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - The errors of [`Self::validate`].
    pub(crate) fn pin_raw(&mut self) -> Result {
        let bo = self.bo();

        if !self.is_pinned() {
            if !matches!(self.mem_type(), Some(MemType::Vram | MemType::Tt)) {
                self.validate(&[Place::TT], &mut OpCtx::uninterruptible())?;
            }
            self.resv().resv().wait(Usage::Kernel, true)?;
        }
        // Even a pinned object may lose its content together with the device.
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
        // SAFETY: The object is valid and pinned. Its reservation is held.
        unsafe { bindings::ttm_bo_unpin(self.bo()) };
        self.uncharge_unpinned();
    }

    /// Warns if the object is not where it was pinned: a pin is charged only in VRAM.
    #[cfg(CONFIG_RUST_DEBUG_ASSERTIONS)]
    fn check_pinned_place(&self) {
        // SAFETY: The reservation guards the cell and is held.
        let is_charged = unsafe { (*self.obj.pins.get()).group.is_some() };

        crate::warn_on!(is_charged && self.mem_type() != Some(MemType::Vram));
    }

    /// Charges for the object. It must be in VRAM, not pinned and about to be pinned. Does nothing
    /// if it is charged already. If it is not pinned after all, [`Self::uncharge_unpinned`]
    /// follows.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the object exceeds a limit of the device, of the exporting client or of the
    ///   cgroup of the current task.
    /// - `ENODEV` if the device was unplugged.
    /// - `ENOMEM` if memory runs out.
    pub(crate) fn charge(&mut self) -> Result {
        // SAFETY: The reservation guards the cell and is held.
        let account = unsafe { (*self.obj.pins.get()).exporter.clone() };

        self.charge_to(account)
    }

    /// As [`Self::charge`] on `account`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::charge`].
    pub(super) fn charge_to(&mut self, account: Option<Arc<PinAccount>>) -> Result {
        let size = self.obj.size() as u64;
        // SAFETY: The reservation guards the cell and is held.
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

    /// Undoes [`Self::charge`] if the object is charged, not pinned and may leave VRAM.
    pub(crate) fn uncharge_unpinned(&mut self) {
        // SAFETY: The reservation guards the cell and is held.
        let pins = unsafe { &mut *self.obj.pins.get() };

        if !self.is_pinned() && pins.stay != Stay::Charged {
            pins.uncharge(self.obj);
        }
    }

    /// Charges for a VRAM-only object, as long as it lives, to `account`: that of the client with
    /// its first handle. Does nothing for other objects and later handles.
    ///
    /// No other object gets that VRAM, as if it were pinned. A task that may lock memory by
    /// `CAP_IPC_LOCK` is not charged.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::charge`].
    pub(super) fn charge_stay(&mut self, account: Option<Arc<PinAccount>>) -> Result {
        // SAFETY: The reservation guards the cell and is held.
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

    /// Sets the exporting client of the object and the account charged for pins. Does nothing if
    /// the object is exported already and its client is known.
    pub(super) fn set_exporter(&mut self, account: Option<&Arc<PinAccount>>, client: Client) {
        let is_exported = !self.exported().is_null();
        // SAFETY: The reservation guards the cell and is held.
        let pins = unsafe { &mut *self.obj.pins.get() };

        if !is_exported || pins.client.id == Client::NONE.id {
            if let Some(account) = account {
                pins.exporter = Some(account.clone());
            }
            pins.client = client;
        }
    }

    /// Returns the last client that exported the object.
    pub(super) fn client(&self) -> Client {
        // SAFETY: The reservation guards the cell and is held.
        unsafe { (*self.obj.pins.get()).client }
    }

    /// Returns how many bytes of the object are in VRAM visible to the CPU and peers.
    pub(super) fn visible_bytes(&self) -> u64 {
        self.vram()
            .map_or(0, |vram| vram.bytes_below(self.visible()))
    }

    /// Returns the pages of an object in system memory. Allocates them if there are none.
    ///
    /// Waits for moves that fill them. The pages stay while the object is pinned or does not move.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the object is in VRAM or in system memory that could be swapped out without a
    ///   notification.
    /// - `EIO` if a failed move has lost the content of the object.
    /// - `ENOMEM` if memory runs out.
    /// - `ERESTARTSYS` if a signal arrived.
    pub(crate) fn pages(&mut self, ctx: &mut OpCtx) -> Result<Pages<'_>> {
        if self.mem_type() != Some(MemType::Tt) {
            return Err(EINVAL);
        }

        // The caller may map the pages for a device with bounce buffers, which copies them at once.
        self.resv()
            .resv()
            .wait(Usage::Kernel, ctx.is_interruptible())?;
        self.check_content()?;
        // SAFETY: The object is valid, and its reservation is held. An object in system memory has
        // a `ttm`. A populated `ttm` has all of its pages.
        unsafe {
            to_result(bindings::ttm_bo_populate(self.bo(), &mut ctx.0))?;
            Ok(Pages::from_raw(
                NonNull::new((*self.bo()).ttm).ok_or(EINVAL)?,
            ))
        }
    }

    /// Checks that the object has its content. Pending moves may still fail.
    ///
    /// # Errors
    ///
    /// `EIO` if a failed move has lost the content of the object.
    pub fn check_content(&self) -> Result {
        if self.obj.loss.is_lost() {
            return Err(EIO);
        }
        Ok(())
    }

    /// Returns the content on its way to the object, or [`None`] if there is none. For content lost
    /// before see [`Self::check_content`].
    pub fn arrival(&self) -> Option<Arrival> {
        let loss = &self.obj.loss;

        loss.may_come().then(|| Arrival(loss.clone()))
    }

    /// As [`Self::check_content`] after waiting for a job that may still fail.
    ///
    /// # Errors
    ///
    /// - `ERESTARTSYS` if a signal arrived.
    /// - The errors of [`Self::check_content`].
    pub(super) fn settle_content(&self) -> Result {
        if self.obj.loss.may_come() {
            // SAFETY: The reservation of a valid object is valid.
            let resv = unsafe { DmaResv::from_raw((*self.obj.as_raw()).resv) };

            resv.wait(Usage::Kernel, true)?;
        }
        self.check_content()
    }

    /// Makes CPU writes to an object in VRAM visible to devices.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the driver is no longer bound.
    pub(crate) fn flush(&self) -> Result {
        let Some(vram) = self.vram() else {
            return Ok(());
        };

        // SAFETY: The device is valid and of `T::Driver`.
        unsafe {
            while_registered::<T::Driver, _>((*self.bo()).base.dev, |reg| {
                // Writes before the suspend of the device have arrived, and there were none since.
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

    /// Sets or clears the dma-buf of the object. A move invalidates its mappings.
    ///
    /// # Safety
    ///
    /// `buf` must be null or a dma-buf that shares the reservation of the object and stays valid
    /// until this is called again.
    pub(crate) unsafe fn set_exported(&mut self, buf: *mut bindings::dma_buf) {
        // INVARIANT: By the safety requirements.
        // SAFETY: The reservation guards the cells and is held.
        unsafe {
            *self.obj.exported.get() = buf;
            if buf.is_null() {
                let pins = &mut *self.obj.pins.get();

                pins.client = Client::NONE;
                pins.exporter = None;
            }
        }
    }

    /// Returns the dma-buf of the object or null.
    pub(crate) fn exported(&self) -> *mut bindings::dma_buf {
        // SAFETY: The reservation guards the cell and is held.
        unsafe { *self.obj.exported.get() }
    }
}

/// The proof that an object is reserved. Dropping it ends the reservation.
pub type ObjectGuard<'a, T> = gem::locked::ObjectGuard<'a, Object<T>>;

impl<T: TtmObject> ObjectGuard<'_, T> {
    /// Moves the object to one of `places` unless it is in one already.
    ///
    /// See [`LockedObject::validate`].
    ///
    /// # Errors
    ///
    /// The errors of [`LockedObject::validate`].
    pub fn validate(&mut self, places: &[Place], ctx: &mut OpCtx) -> Result {
        self.view().validate(places, ctx)
    }

    /// Pins the object in its place until the returned value is dropped. Calls nest.
    ///
    /// If the object is in VRAM, the device stays active for that long.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the object is in VRAM and the device is suspended or its runtime PM disabled.
    /// - `EDQUOT` if the object is in VRAM and no more VRAM may be pinned.
    /// - `EIO` if a failed move has lost the content of the object.
    /// - The errors of [`LockedObject::validate`].
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
    // A task without the capability is not audited, because the charge is the rule.
    // SAFETY: The namespace is static.
    unsafe {
        bindings::ns_capable_noaudit(
            &raw mut bindings::init_user_ns,
            bindings::CAP_IPC_LOCK as i32,
        )
    }
}

/// A pinned object. Dropping the value unpins it.
///
/// Dropping it takes the reservation, which must not be held.
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

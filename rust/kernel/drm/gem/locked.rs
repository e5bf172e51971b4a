// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects whose reservation is held.

use super::IntoGEMObject;
use crate::{
    bindings,
    dma_resv::LockedResv,
    error::to_result,
    prelude::*,
    types::NotThreadSafe, //
};
use core::{
    ops::Deref,
    ptr, //
};

/// An object whose reservation is held by this task.
///
/// The methods are those of its class, such as [`gem::ttm`](super::ttm).
///
/// # Invariants
///
/// The reservation of `obj` is held.
pub struct LockedObject<'a, O: IntoGEMObject> {
    pub(super) obj: &'a O,
    _not_send: NotThreadSafe,
}

impl<'a, O: IntoGEMObject> LockedObject<'a, O> {
    /// Creates the view of an object whose reservation was taken elsewhere.
    ///
    /// # Safety
    ///
    /// The reservation must be held by this task while the view exists.
    #[inline]
    pub(crate) unsafe fn assume(obj: &'a O) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            obj,
            _not_send: NotThreadSafe,
        }
    }

    /// Returns the object.
    #[inline]
    pub fn object(&self) -> &'a O {
        self.obj
    }

    /// Returns the view of the reservation, used to read and add fences.
    #[inline]
    pub fn resv(&mut self) -> LockedResv<'_> {
        // SAFETY: The reservation of a valid object is valid and held. Other code adds fences to it
        // only while it has `self` by mutable reference, which the view excludes.
        unsafe { LockedResv::from_raw((*self.obj.as_raw()).resv) }
    }
}

/// The proof that an object is reserved. Dropping it ends the reservation.
///
/// # Invariants
///
/// The reservation of the object was taken by this task for this value.
#[must_use = "the reservation ends when the guard is dropped"]
pub struct ObjectGuard<'a, O: IntoGEMObject>(pub(super) LockedObject<'a, O>);

impl<'a, O: IntoGEMObject> ObjectGuard<'a, O> {
    /// Reserves an object. No other reservation may be held.
    ///
    /// # Errors
    ///
    /// `EINTR` if `interruptible` is set and a signal is pending.
    pub(super) fn new(obj: &'a O, interruptible: bool) -> Result<Self> {
        // SAFETY: The reservation of a valid object is valid.
        unsafe {
            let resv = (*obj.as_raw()).resv;

            if interruptible {
                to_result(bindings::dma_resv_lock_interruptible(resv, ptr::null_mut()))?;
            } else {
                bindings::dma_resv_lock(resv, ptr::null_mut());
            }
        }

        // INVARIANT: Taken above.
        // SAFETY: As above; it is held until the value is dropped.
        Ok(Self(unsafe { LockedObject::assume(obj) }))
    }

    /// Reserves an object unless another task has it.
    pub(super) fn try_new(obj: &'a O) -> Option<Self> {
        // SAFETY: The reservation of a valid object is valid.
        if !unsafe { bindings::dma_resv_trylock((*obj.as_raw()).resv) } {
            return None;
        }

        // INVARIANT: Taken above.
        // SAFETY: As above; it is held until the value is dropped.
        Some(Self(unsafe { LockedObject::assume(obj) }))
    }

    /// Returns the view of the object.
    ///
    /// Not by `DerefMut`: code could swap the views of two objects and unlock the wrong one.
    #[inline]
    pub(crate) fn view(&mut self) -> LockedObject<'_, O> {
        // SAFETY: The reservation is held as long as `self` is borrowed.
        unsafe { LockedObject::assume(self.0.obj) }
    }

    /// Returns the view of the reservation, used to read and add fences.
    #[inline]
    pub fn resv(&mut self) -> LockedResv<'_> {
        self.0.resv()
    }
}

impl<'a, O: IntoGEMObject> Deref for ObjectGuard<'a, O> {
    type Target = LockedObject<'a, O>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<O: IntoGEMObject> Drop for ObjectGuard<'_, O> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the reservation is held by this task.
        unsafe { bindings::dma_resv_unlock((*self.0.obj.as_raw()).resv) };
    }
}

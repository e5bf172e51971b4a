// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects whose reservation is held.

use super::IntoGEMObject;
use crate::{
    dma_resv::LockedResv,
    types::NotThreadSafe, //
};

/// An object whose reservation is held by this task.
///
/// What can be done with it is up to its class, such as [`gem::ttm`](super::ttm).
///
/// # Invariants
///
/// The reservation of `obj` is held.
pub struct Held<'a, O: IntoGEMObject> {
    pub(super) obj: &'a O,
    _not_send: NotThreadSafe,
}

impl<'a, O: IntoGEMObject> Held<'a, O> {
    /// Makes the view of an object whose reservation somebody else took.
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

    /// Returns the view of the reservation, by which fences are looked at and added.
    #[inline]
    pub fn resv(&mut self) -> LockedResv<'_> {
        // SAFETY: The reservation of a valid object is valid, and held. Others add fences to it
        // when they have `self` by mutable reference only, which the view keeps them from.
        unsafe { LockedResv::from_raw((*self.obj.as_raw()).resv) }
    }
}

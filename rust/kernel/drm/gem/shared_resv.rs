// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reservations shared by objects.
//!
//! A [`SharedResv`] is the reservation of objects private to one user, most often an address space
//! of the device. One lock locks all of them and their fences are in one place. Such objects are
//! not exported because an importer of one would lock all others.
//!
//! The reservation belongs to a GEM object without memory, so it is locked like that of any other
//! GEM object.
//!
//! C header: [`include/drm/drm_gem.h`](srctree/include/drm/drm_gem.h)

use super::IntoGEMObject;
use crate::{
    bindings,
    dma_resv::DmaResv,
    drm::{
        self,
        private::Sealed, //
    },
    prelude::*,
    sync::aref::ARef,
    types::Opaque, //
};
use core::{
    ops::Deref,
    ptr::NonNull, //
};

/// A GEM object with a reservation and no memory.
///
/// # Invariants
///
/// `inner` is initialized and was allocated by [`ResvRef::new`].
#[repr(transparent)]
pub struct ResvObject {
    inner: Opaque<bindings::drm_gem_object>,
}

impl ResvObject {
    const FUNCS: bindings::drm_gem_object_funcs = bindings::drm_gem_object_funcs {
        free: Some(Self::free_callback),
        ..pin_init::zeroed()
    };

    /// # Safety
    ///
    /// Called by the DRM core when the last reference to an object of this class is gone.
    unsafe extern "C" fn free_callback(gem: *mut bindings::drm_gem_object) {
        // SAFETY: By the type invariant the object is in a box. It is not used any more.
        unsafe {
            bindings::drm_gem_object_release(gem);
            drop(KBox::<Self>::from_raw(gem.cast()));
        }
    }

    /// Returns the reservation.
    #[inline]
    pub fn resv(&self) -> &DmaResv {
        // SAFETY: By the type invariant the object is valid, and so is its own reservation.
        unsafe { DmaResv::from_raw((*self.inner.get()).resv) }
    }
}

impl Sealed for ResvObject {}

impl IntoGEMObject for ResvObject {
    fn as_raw(&self) -> *mut bindings::drm_gem_object {
        self.inner.get()
    }

    unsafe fn from_raw<'a>(gem: *mut bindings::drm_gem_object) -> &'a Self {
        // SAFETY: The type is a transparent wrapper and the caller promises validity.
        unsafe { &*gem.cast() }
    }
}

/// A reference to a [`ResvObject`] that does not keep its device.
///
/// # Invariants
///
/// The pointer is that of a valid [`ResvObject`] and this value owns a reference to it.
pub(super) struct ResvRef(NonNull<ResvObject>);

// SAFETY: GEM objects may be used and released from any task.
unsafe impl Send for ResvRef {}

// SAFETY: As for `Send`: all uses of a reference are synchronized by the C side.
unsafe impl Sync for ResvRef {}

impl ResvRef {
    /// # Safety
    ///
    /// `dev` must be valid until the object is released.
    unsafe fn new(dev: *mut bindings::drm_device) -> Result<Self> {
        let object = KBox::<ResvObject>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
        let object: *mut ResvObject = KBox::into_raw(object).cast();

        // SAFETY: The object is zeroed memory and the device is valid.
        unsafe {
            let gem = (*object).inner.get();

            (*gem).funcs = const { &ResvObject::FUNCS };
            bindings::drm_gem_private_object_init(dev, gem, 0);
        }
        // INVARIANT: The object was initialized above with one reference.
        // SAFETY: A box is not null.
        Ok(Self(unsafe { NonNull::new_unchecked(object) }))
    }
}

impl Clone for ResvRef {
    fn clone(&self) -> Self {
        // INVARIANT: Another reference is taken.
        // SAFETY: By the type invariant the object is valid.
        unsafe { bindings::drm_gem_object_get(self.as_raw()) };
        Self(self.0)
    }
}

impl Drop for ResvRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariant there is a reference to put.
        unsafe { bindings::drm_gem_object_put(self.as_raw()) };
    }
}

impl Deref for ResvRef {
    type Target = ResvObject;

    #[inline]
    fn deref(&self) -> &ResvObject {
        // SAFETY: By the type invariant.
        unsafe { self.0.as_ref() }
    }
}

/// A reservation shared by objects of one device.
///
/// Its users keep it: [`gem::ttm::Object::new_in`](super::ttm::Object::new_in) and
/// [`GpuVm::new`](drm::gpuvm::GpuVm::new). It need not be kept otherwise.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::{
///         self,
///         gem::SharedResv, //
///     },
///     prelude::*, //
/// };
///
/// /// Returns whether a reservation is the same as that of its clone, which it is.
/// fn is_one<D: drm::Driver>(dev: &drm::Device<D>) -> Result<bool> {
///     let resv = SharedResv::new(dev)?;
///     let same = resv.clone();
///
///     let guard = resv.resv().lock();
///     Ok(guard.is_for(same.resv()))
/// }
/// ```
pub struct SharedResv<D: drm::Driver> {
    // Dropped before the device.
    object: ResvRef,
    dev: ARef<drm::Device<D>>,
}

impl<D: drm::Driver> SharedResv<D> {
    /// Creates a reservation for objects of a device.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn new(dev: &drm::Device<D>) -> Result<Self> {
        Ok(Self {
            // SAFETY: Every value with a reference keeps the device.
            object: unsafe { ResvRef::new(dev.as_raw()) }?,
            dev: dev.into(),
        })
    }

    /// Returns the device.
    #[inline]
    pub fn device(&self) -> &drm::Device<D> {
        &self.dev
    }

    /// Returns a reference that does not keep the device.
    pub(super) fn reference(&self) -> ResvRef {
        self.object.clone()
    }
}

impl<D: drm::Driver> Clone for SharedResv<D> {
    fn clone(&self) -> Self {
        Self {
            object: self.object.clone(),
            dev: self.dev.clone(),
        }
    }
}

impl<D: drm::Driver> Deref for SharedResv<D> {
    type Target = ResvObject;

    #[inline]
    fn deref(&self) -> &ResvObject {
        &self.object
    }
}

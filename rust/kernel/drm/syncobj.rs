// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sync objects.
//!
//! A sync object is a place for a fence, to which userspace has a handle. An ioctl puts the fence of
//! its work into one; another ioctl, or userspace itself, takes it out and waits for it.
//!
//! C header: [`include/drm/drm_syncobj.h`](srctree/include/drm/drm_syncobj.h)

use crate::{
    bindings,
    dma_buf::fence::AnyFence,
    drm::{
        self,
        file::DriverFile, //
    },
    prelude::*,
    sync::aref::{
        ARef,
        AlwaysRefCounted, //
    },
    types::Opaque, //
};
use core::ptr::NonNull;

/// A sync object, `struct drm_syncobj`.
///
/// # Invariants
///
/// `self.0` is a valid `struct drm_syncobj`. Every [`ARef`] to it owns a reference.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::fence::AnyFence,
///     drm::{
///         self,
///         file::DriverFile,
///         syncobj::SyncObj, //
///     },
///     prelude::*,
///     sync::aref::ARef, //
/// };
///
/// /// What an ioctl does with the handle of the object that is to get the fence of its work.
/// fn submit<F: DriverFile>(
///     file: &drm::File<F>,
///     handle: u32,
///     work: impl FnOnce() -> Result<ARef<AnyFence>>,
/// ) -> Result {
///     // What can fail comes before the work begins.
///     let out = SyncObj::lookup(file, handle)?;
///
///     out.replace_fence(&*work()?);
///     Ok(())
/// }
/// ```
#[repr(transparent)]
pub struct SyncObj(Opaque<bindings::drm_syncobj>);

// SAFETY: A sync object may be used and released from any task.
unsafe impl Send for SyncObj {}

// SAFETY: All methods that take `&self` are synchronized by the C side.
unsafe impl Sync for SyncObj {}

// SAFETY: A `struct drm_syncobj` is reference counted.
unsafe impl AlwaysRefCounted for SyncObj {
    fn inc_ref(&self) {
        // SAFETY: The existence of a shared reference means that the reference count is not zero.
        unsafe { bindings::drm_syncobj_get(self.0.get()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller owns the reference that is dropped here.
        unsafe { bindings::drm_syncobj_put(obj.cast().as_ptr()) };
    }
}

impl SyncObj {
    /// Returns the object with a handle of a file.
    ///
    /// Mirrors `drm_syncobj_find()`.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if there is no such handle.
    /// - `EOPNOTSUPP` if the driver does not have [`FEAT_SYNCOBJ`](drm::Driver::FEAT_SYNCOBJ).
    pub fn lookup<F: DriverFile>(file: &drm::File<F>, handle: u32) -> Result<ARef<Self>> {
        // Without the feature a file has no table of handles.
        if !<F::Driver as drm::Driver>::FEAT_SYNCOBJ {
            return Err(EOPNOTSUPP);
        }

        // SAFETY: The file is valid, and of a driver with sync objects.
        let obj = unsafe { bindings::drm_syncobj_find(file.as_raw(), handle) };
        let obj = NonNull::new(obj).ok_or(ENOENT)?;

        // SAFETY: The object is valid and comes with a reference, which the `ARef` takes over.
        Ok(unsafe { ARef::from_raw(obj.cast()) })
    }

    /// Puts a fence into the object, in place of the one that was there. Tells those who wait for
    /// the object to get one.
    ///
    /// Mirrors `drm_syncobj_replace_fence()`.
    pub fn replace_fence(&self, fence: &AnyFence) {
        // SAFETY: By the type invariant the object is valid, and so is the fence, to which it takes
        // a reference.
        unsafe { bindings::drm_syncobj_replace_fence(self.0.get(), fence.as_raw()) };
    }

    /// Returns the fence in the object, [`None`] if there is none.
    ///
    /// Mirrors `drm_syncobj_fence_get()`.
    pub fn fence(&self) -> Option<ARef<AnyFence>> {
        // SAFETY: By the type invariant the object is valid.
        let fence = NonNull::new(unsafe { bindings::drm_syncobj_fence_get(self.0.get()) })?;

        // SAFETY: The fence is valid and comes with a reference.
        Some(unsafe { AnyFence::from_owned(fence) })
    }
}

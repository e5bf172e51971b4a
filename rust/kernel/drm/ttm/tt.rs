// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The manager of device-accessible system memory.
//!
//! Such memory has no addresses: an object gets pages wherever they are and peers map them page by
//! page. So the manager only counts bytes. An object fits as long as enough bytes are left. The
//! pages come from TTM, which limits the pages of all devices together and swaps objects out to
//! keep the limit.
//!
//! # Locking
//!
//! The callbacks are called with the reservation of the object held. Only `free` may run on the
//! workqueue of TTM without it. The count is atomic.
//!
//! C header: [`include/drm/ttm/ttm_resource.h`](srctree/include/drm/ttm/ttm_resource.h)

use super::manager::{
    hand_over,
    Manager, //
};
use crate::{
    bindings,
    container_of,
    drm::vram::{
        charge,
        MemType, //
    },
    error::from_result,
    page::PAGE_SHIFT,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    types::Opaque, //
};

/// The manager of `TTM_PL_TT`.
pub(in crate::drm) struct TtManager {
    man: Manager,
    /// The number of bytes of all objects.
    used: Atomic<u64>,
    /// The maximum number of bytes of all objects if TTM allows as many.
    limit: Atomic<u64>,
}

static FUNCS: bindings::ttm_resource_manager_func = bindings::ttm_resource_manager_func {
    alloc: Some(alloc_callback),
    free: Some(free_callback),
    // Evicting any object makes room, and all objects are equally suitable.
    intersects: None,
    compatible: None,
    debug: None,
};

impl TtManager {
    /// Creates a manager whose only limit is that of TTM.
    pub(in crate::drm) fn new() -> Self {
        Self {
            man: Manager::new(),
            used: Atomic::new(0),
            limit: Atomic::new(u64::MAX),
        }
    }

    /// Returns how many bytes objects may have.
    pub(in crate::drm) fn limit(&self) -> u64 {
        // CAST: The number of pages of a machine is far below 2^52.
        // SAFETY: The function has no requirements.
        let all = (unsafe { bindings::ttm_tt_pages_limit() } as u64) << PAGE_SHIFT;

        self.limit.load(Relaxed).min(all)
    }

    /// Changes how many bytes objects may have.
    pub(in crate::drm) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// Adds the manager to a device.
    ///
    /// # Safety
    ///
    /// `bdev` must be an initialized device. [`Self::fini`] must be called for it before it is
    /// finished and before `self` is dropped or moved.
    pub(in crate::drm) unsafe fn init(&self, bdev: *mut bindings::ttm_device) {
        // SAFETY: By the safety requirements; the callbacks are those for this type.
        unsafe { self.man.init(bdev, MemType::Tt, self.limit(), &FUNCS) };
    }

    /// Removes the manager from the device.
    ///
    /// # Safety
    ///
    /// [`Self::init`] must have been called for `bdev`. All remaining objects must wait for their
    /// deletion.
    pub(in crate::drm) unsafe fn fini(&self, bdev: *mut bindings::ttm_device) {
        // SAFETY: By the safety requirements.
        unsafe { self.man.fini(bdev, MemType::Tt) };
    }

    /// Counts `size` bytes of an object.
    ///
    /// If there is enough for one of several concurrent charges, one of them succeeds.
    fn charge(&self, size: u64) -> Result {
        charge(&self.used, size, self.limit()).map_err(|_| ENOSPC)
    }

    /// Undoes [`Self::charge`].
    fn uncharge(&self, size: u64) {
        self.used.fetch_sub(size, Relaxed);
    }

    /// # Safety
    ///
    /// `man` must be part of a `Self` valid for `'a`.
    unsafe fn from_raw<'a>(man: *mut bindings::ttm_resource_manager) -> &'a Self {
        // SAFETY: By the safety requirements; `Manager` is a transparent wrapper.
        unsafe { &*container_of!(man.cast::<Manager>(), Self, man) }
    }
}

/// # Safety
///
/// All callbacks are called by TTM with the manager of a device added by [`TtManager::init`].
unsafe extern "C" fn alloc_callback(
    man: *mut bindings::ttm_resource_manager,
    bo: *mut bindings::ttm_buffer_object,
    place: *const bindings::ttm_place,
    res: *mut *mut bindings::ttm_resource,
) -> c_int {
    from_result(|| {
        // SAFETY: The manager is embedded in a `TtManager`, and TTM passes a valid object.
        let (this, size) = unsafe { (TtManager::from_raw(man), (*bo).base.size as u64) };

        let resource = KBox::<Opaque<bindings::ttm_resource>>::new(Opaque::zeroed(), GFP_KERNEL)?;
        this.charge(size)?;
        // SAFETY: TTM passes valid arguments and returns the resource to `free_callback`.
        unsafe { hand_over(resource, bo, place, res) };
        Ok(0)
    })
}

/// # Safety
///
/// See [`alloc_callback`].
unsafe extern "C" fn free_callback(
    man: *mut bindings::ttm_resource_manager,
    res: *mut bindings::ttm_resource,
) {
    // SAFETY: `alloc_callback` created the resource, which is not used any more.
    // `ttm_resource_init()` has stored the size of the object and the size does not change.
    unsafe {
        let size = (*res).size as u64;

        bindings::ttm_resource_fini(man, res);
        drop(KBox::from_raw(res.cast::<Opaque<bindings::ttm_resource>>()));
        TtManager::from_raw(man).uncharge(size);
    }
}

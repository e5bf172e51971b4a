// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The manager of VRAM, on an [`Allocator`].
//!
//! # Locking
//!
//! The callbacks are called with the reservation of the object held, except for `free`, which may
//! run on the workqueue of TTM. They take the lock of the allocator only, which sleeps.
//!
//! C header: [`include/drm/ttm/ttm_resource.h`](srctree/include/drm/ttm/ttm_resource.h)

use super::{
    manager::{
        hand_over,
        Manager, //
    },
    placement::Place, //
};
use crate::{
    bindings,
    container_of,
    drm::vram::{
        Allocation,
        Allocator,
        MemType,
        Ranges, //
    },
    error::from_result,
    gpu::buddy::{
        GpuBuddyAllocFlag,
        GpuBuddyAllocFlags,
        GpuBuddyAllocMode, //
    },
    page::PAGE_SHIFT,
    prelude::*,
    ptr::Alignment,
    sync::Arc,
    types::Opaque, //
};

/// VRAM that is given to an object, `struct ttm_resource`.
#[repr(C)]
pub(crate) struct VramResource {
    base: Opaque<bindings::ttm_resource>,
    vram: Allocation,
}

impl VramResource {
    /// Returns where it is.
    #[inline]
    pub(crate) fn ranges(&self) -> &Arc<Ranges> {
        self.vram.ranges()
    }

    /// # Safety
    ///
    /// `raw` must be a resource of [`VramManager`] that is valid for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ttm_resource) -> &'a Self {
        // SAFETY: `base` is the first field, and all resources of the manager are of this type.
        unsafe { &*raw.cast() }
    }
}

/// The manager of `TTM_PL_VRAM`.
///
/// # Invariants
///
/// Once [`Self::init`] was called the value does not move.
pub(super) struct VramManager {
    man: Manager,
    allocator: Arc<Allocator>,
}

static FUNCS: bindings::ttm_resource_manager_func = bindings::ttm_resource_manager_func {
    alloc: Some(alloc_callback),
    free: Some(free_callback),
    intersects: Some(intersects_callback),
    compatible: Some(compatible_callback),
    debug: None,
};

impl VramManager {
    /// Makes a manager of what `allocator` has.
    pub(super) fn new(allocator: Arc<Allocator>) -> Self {
        allocator.begin_pipelining();
        Self {
            man: Manager::new(),
            allocator,
        }
    }

    pub(super) fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ttm_resource_manager {
        self.man.as_raw()
    }

    /// Adds the manager to a device.
    ///
    /// # Safety
    ///
    /// `bdev` must be an initialized device of which [`Self::fini`] is called before it is
    /// finished, and before `self` is dropped or moved.
    pub(super) unsafe fn init(&self, bdev: *mut bindings::ttm_device) {
        // SAFETY: By the safety requirements; the callbacks are those for this type.
        unsafe {
            self.man
                .init(bdev, MemType::Vram, self.allocator.end(), &FUNCS)
        };
    }

    /// Takes the manager away from the device.
    ///
    /// # Safety
    ///
    /// [`Self::init`] must have been called for `bdev`, and there must be no object any more but
    /// those that wait for their deletion.
    pub(super) unsafe fn fini(&self, bdev: *mut bindings::ttm_device) {
        // SAFETY: By the safety requirements.
        unsafe { self.man.fini(bdev, MemType::Vram) };
    }

    fn alloc(&self, size: u64, align: u64, place: &Place) -> Result<KBox<VramResource>> {
        let total = self.allocator.end();
        let (start, end) = place.range(total);
        if size > end - start {
            return Err(ENOSPC);
        }

        let mode = if start != 0 || end != total {
            GpuBuddyAllocMode::Range(start..end)
        } else if place.is_top_down() {
            GpuBuddyAllocMode::TopDown
        } else {
            GpuBuddyAllocMode::Simple
        };
        let flags: GpuBuddyAllocFlags = if place.is_contiguous() {
            GpuBuddyAllocFlag::Contiguous.into()
        } else {
            GpuBuddyAllocFlags::default()
        };
        let align = Alignment::new_checked(usize::try_from(align)?).ok_or(EINVAL)?;

        Ok(KBox::new(
            VramResource {
                base: Opaque::zeroed(),
                vram: self.allocator.alloc_with(mode, size, align, flags)?,
            },
            GFP_KERNEL,
        )?)
    }
}

/// # Safety
///
/// All callbacks are called by TTM, with the manager of a device that [`VramManager::init`] added.
unsafe extern "C" fn alloc_callback(
    man: *mut bindings::ttm_resource_manager,
    bo: *mut bindings::ttm_buffer_object,
    place: *const bindings::ttm_place,
    res: *mut *mut bindings::ttm_resource,
) -> c_int {
    from_result(|| {
        // SAFETY: The manager is embedded in a `VramManager`; `Manager` is a transparent wrapper.
        let this = unsafe { &*container_of!(man.cast::<Manager>(), VramManager, man) };
        // SAFETY: TTM passes a valid object and a valid place.
        let (size, align) = unsafe { ((*bo).base.size as u64, (*bo).page_alignment) };
        let align = u64::from(align.max(1)) << PAGE_SHIFT;

        // SAFETY: TTM passes a valid place.
        let resource = this.alloc(size, align, unsafe { Place::from_raw(place) })?;
        // SAFETY: TTM passes valid arguments, and gives the resource back to `free_callback`. The
        // type begins with that of TTM.
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
    // SAFETY: `alloc_callback` made the resource, which nobody uses any more.
    unsafe {
        bindings::ttm_resource_fini(man, res);
        drop(KBox::from_raw(res.cast::<VramResource>()));
    }
}

/// # Safety
///
/// See [`alloc_callback`].
unsafe extern "C" fn intersects_callback(
    _man: *mut bindings::ttm_resource_manager,
    res: *mut bindings::ttm_resource,
    place: *const bindings::ttm_place,
    _size: usize,
) -> bool {
    // SAFETY: TTM passes a valid resource of this manager, and a place that is not null.
    let (res, place) = unsafe { (VramResource::from_raw(res), Place::from_raw(place)) };

    let ranges = res.ranges().ranges();

    ranges.iter().any(|r| place.intersects(r.offset, r.len))
}

/// # Safety
///
/// See [`alloc_callback`].
unsafe extern "C" fn compatible_callback(
    _man: *mut bindings::ttm_resource_manager,
    res: *mut bindings::ttm_resource,
    place: *const bindings::ttm_place,
    _size: usize,
) -> bool {
    // SAFETY: As in `intersects_callback`.
    let (res, place) = unsafe { (VramResource::from_raw(res), Place::from_raw(place)) };

    let ranges = res.ranges().ranges();

    (!place.is_contiguous() || ranges.len() == 1)
        && ranges.iter().all(|r| place.contains(r.offset, r.len))
}

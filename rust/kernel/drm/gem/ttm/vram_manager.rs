// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The manager of VRAM on top of an [`Allocator`].
//!
//! # Locking
//!
//! The callbacks are called with the reservation of the object held. Only `free` may run on the
//! workqueue of TTM instead. They take only the locks of a [`Reclaim`] and the lock of the
//! allocator, which sleeps.
//!
//! C header: [`include/drm/ttm/ttm_resource.h`](srctree/include/drm/ttm/ttm_resource.h)

use super::TtmObject;
use crate::{
    bindings,
    container_of,
    drm::{
        devres::while_registered,
        ttm::{
            manager::{
                hand_over,
                Manager, //
            },
            placement::{
                OpCtx,
                Place, //
            }, //
        },
        vram::{
            fair_share,
            Allocation,
            Allocator,
            MemType,
            Ranges,
            Reclaim, //
        }, //
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
use core::ops::Range;

/// The VRAM of an object, a `struct ttm_resource`.
#[repr(C)]
pub(super) struct VramResource {
    base: Opaque<bindings::ttm_resource>,
    vram: Allocation,
}

impl VramResource {
    /// Returns the ranges of the resource.
    #[inline]
    pub(super) fn ranges(&self) -> &Arc<Ranges> {
        self.vram.ranges()
    }

    /// # Safety
    ///
    /// `raw` must be a resource of [`VramManager`], valid for `'a`.
    pub(super) unsafe fn from_raw<'a>(raw: *mut bindings::ttm_resource) -> &'a Self {
        // SAFETY: `base` is the first field, and all resources of the manager are of this type.
        unsafe { &*raw.cast() }
    }
}

/// The manager of `TTM_PL_VRAM`.
///
/// # Invariants
///
/// Once [`Self::init`] was called, the value does not move.
pub(super) struct VramManager {
    man: Manager,
    allocator: Arc<Allocator>,
}

const fn funcs<T: TtmObject>() -> bindings::ttm_resource_manager_func {
    bindings::ttm_resource_manager_func {
        alloc: Some(alloc_callback::<T>),
        free: Some(free_callback),
        intersects: Some(intersects_callback),
        compatible: Some(compatible_callback),
        debug: None,
    }
}

impl VramManager {
    /// Creates a manager of the memory of `allocator`.
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
    /// `bdev` must be an initialized device of [`Device<T>`](super::Device). [`Self::fini`] must be
    /// called for it before it is finished and before `self` is dropped or moved.
    pub(super) unsafe fn init<T: TtmObject>(&self, bdev: *mut bindings::ttm_device) {
        // SAFETY: By the safety requirements; the callbacks are those for this type.
        unsafe {
            self.man.init(
                bdev,
                MemType::Vram,
                self.allocator.end(),
                const { &funcs::<T>() },
            )
        };
    }

    /// Moves the least recently used objects to system memory until `bytes` of VRAM are free.
    /// Returns false if not enough objects can be moved without a wait for another device.
    ///
    /// # Errors
    ///
    /// The errors of [`Manager::evict`].
    ///
    /// # Safety
    ///
    /// [`Self::init`] must have been called for `bdev`. No reservation may be held.
    pub(super) unsafe fn make_room(
        &self,
        bdev: *mut bindings::ttm_device,
        bytes: u64,
        ctx: &mut OpCtx,
    ) -> Result<bool> {
        // Other tasks may take the freed VRAM, so the evictions are limited to the size of VRAM.
        let mut left = self.allocator.size();

        loop {
            let avail = self.allocator.avail();
            if avail >= bytes {
                return Ok(true);
            }
            // SAFETY: As promised by the caller.
            let evicted = unsafe { self.man.evict(bdev, bytes - avail, ctx) }?;
            if evicted == 0 || left == 0 {
                return Ok(self.allocator.avail() >= bytes);
            }
            left = left.saturating_sub(evicted);
        }
    }

    /// Removes the manager from the device.
    ///
    /// # Safety
    ///
    /// [`Self::init`] must have been called for `bdev`. All remaining objects must be waiting for
    /// their deletion.
    pub(super) unsafe fn fini(&self, bdev: *mut bindings::ttm_device) {
        // SAFETY: By the safety requirements.
        unsafe { self.man.fini(bdev, MemType::Vram) };
    }

    /// Allocates a block, unused by any job, for another user.
    ///
    /// # Errors
    ///
    /// - The errors of [`Allocator::alloc_block`] except for `EBUSY`.
    /// - The errors of [`Manager::wait_for_moves`].
    ///
    /// # Safety
    ///
    /// [`Self::init`] must have been called.
    pub(super) unsafe fn alloc_block(&self, size: usize) -> Result<Allocation> {
        let block = self.allocator.alloc_any_block(size)?;

        // TTM adds the fence of a move to its list before it frees the old memory of the object.
        // SAFETY: As promised by the caller.
        unsafe { self.man.wait_for_moves() }?;
        Ok(block)
    }

    /// Returns the part of VRAM allowed by a place.
    fn range_of(&self, place: &Place) -> Range<u64> {
        let (start, end) = place.range(self.allocator.end());

        start.max(self.allocator.start()).min(end)..end
    }

    /// As [`Self::alloc`]. If there is no space, reclaims memory of `other` beyond its share.
    fn alloc_from(
        &self,
        other: &dyn Reclaim,
        size: u64,
        align: u64,
        place: &Place,
    ) -> Result<KBox<VramResource>> {
        let range = self.range_of(place);
        let mut excess = other.held(&range).saturating_sub(fair_share(&range));

        while excess > 0 {
            let freed = other.reclaim(&range, size.min(excess));
            if freed == 0 {
                break;
            }

            excess = excess.saturating_sub(freed);
            match self.alloc(size, align, place) {
                Err(ENOSPC) => (),
                ret => return ret,
            }
        }
        Err(ENOSPC)
    }

    // Not inlined into modules, because they cannot call its callees.
    #[inline(never)]
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
/// All callbacks are called by TTM with the manager of a device, added by [`VramManager::init`].
unsafe extern "C" fn alloc_callback<T: TtmObject>(
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
        let at = unsafe { Place::from_raw(place) };
        let resource = match this.alloc(size, align, at) {
            // SAFETY: The object is valid and one of a device of `T::Driver`.
            Err(ENOSPC) => unsafe {
                while_registered::<T::Driver, _>((*bo).base.dev, |reg| {
                    this.alloc_from(T::reclaim(reg).ok_or(ENOSPC)?, size, align, at)
                })
            }
            .map_err(|e| if e == ENODEV { ENOSPC } else { e }),
            ret => ret,
        }?;
        // SAFETY: TTM passes valid arguments and returns the resource to `free_callback`. The type
        // begins with that of TTM.
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
    // SAFETY: `alloc_callback` created the resource. It is not used any more.
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
    // SAFETY: TTM passes a valid resource of this manager and a place that is not null.
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

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The manager of VRAM, on [`GpuBuddy`].
//!
//! The ranges of a resource, that is its blocks with neighbours merged, are computed when it is
//! allocated and do not change. Faults, copies and mappings for peers all go by them; what a peer
//! maps is computed of them once.
//!
//! # Locking
//!
//! The callbacks are called with the reservation of the object held, except for `free`, which may
//! run on the workqueue of TTM. They take the lock of the buddy allocator only, which sleeps.
//!
//! C header: [`include/drm/ttm/ttm_resource.h`](srctree/include/drm/ttm/ttm_resource.h)

use super::{
    manager::{
        hand_over,
        Manager, //
    },
    placement::{
        MemType,
        Place, //
    }, //
};
use crate::{
    bindings,
    container_of,
    dma_buf::mapping::RangeList,
    error::from_result,
    gpu::buddy::{
        AllocatedBlocks,
        GpuBuddy,
        GpuBuddyAllocFlag,
        GpuBuddyAllocFlags,
        GpuBuddyAllocMode,
        GpuBuddyParams, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    pci::p2pdma::Provider,
    prelude::*,
    ptr::Alignment,
    sync::{
        Arc,
        SetOnce, //
    },
    types::Opaque, //
};

/// A piece of VRAM that belongs to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The offset in the object at which it begins, in bytes.
    pub at: u64,
    /// The offset in VRAM, in bytes.
    pub offset: u64,
    /// The length, in bytes.
    pub len: u64,
}

/// The VRAM of an object, in the order of the object.
///
/// # Invariants
///
/// - The ranges are not empty, made of whole pages, and follow each other without a gap from offset
///   0 of the object to its end.
/// - All of them are below `end`.
pub struct Ranges {
    ranges: KVVec<Range>,
    end: u64,
    in_bar: SetOnce<Arc<RangeList>>,
}

impl Ranges {
    /// Returns the ranges, in the order of the object.
    #[inline]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Tells whether all of it is below `end`, an offset in VRAM.
    #[inline]
    pub fn is_below(&self, end: u64) -> bool {
        self.end <= end
    }

    /// Returns where it is for peers, who see VRAM in the BAR of `provider`.
    ///
    /// Computed when it is asked for first. The reservation of the object is held.
    ///
    /// # Errors
    ///
    /// Those of [`RangeList::in_bar`].
    #[inline]
    pub(crate) fn in_bar(&self, provider: &Provider<'_>) -> Result<&Arc<RangeList>> {
        if let Some(list) = self.in_bar.as_ref() {
            return Ok(list);
        }

        let list = RangeList::in_bar(provider, self.ranges.iter().map(|r| (r.offset, r.len)))?;

        self.in_bar.populate(list);
        self.in_bar.as_ref().ok_or(EINVAL)
    }

    /// Returns the address of a byte of the last range, where VRAM is mapped at `vram`.
    pub(super) fn last(&self, vram: *mut c_void) -> Option<*mut c_void> {
        let last = self.ranges.last()?;

        // CAST: Inside of VRAM, which is mapped.
        Some(vram.wrapping_byte_add(last.offset as usize))
    }

    /// Returns the offset in VRAM of offset `at` of the object.
    pub fn offset(&self, at: u64) -> Option<u64> {
        self.piece(at).map(|(offset, _)| offset)
    }

    /// Returns the offset in VRAM of offset `at` of the object, and how many bytes follow each other
    /// from there on.
    pub(super) fn piece(&self, at: u64) -> Option<(u64, u64)> {
        // OVERFLOW: The ranges are inside of the object and of VRAM.
        let index = self.ranges.partition_point(|r| r.at + r.len <= at);
        let range = self.ranges.get(index)?;
        let skip = at - range.at;

        Some((range.offset + skip, range.len - skip))
    }
}

/// VRAM that is given to an object, `struct ttm_resource`.
#[repr(C)]
pub(crate) struct VramResource {
    base: Opaque<bindings::ttm_resource>,
    /// Shared with those who still copy from there after the object has left.
    ranges: Arc<Ranges>,
    // Returned to the allocator when it is dropped.
    _blocks: Pin<KBox<AllocatedBlocks>>,
}

impl VramResource {
    /// Returns where it is.
    #[inline]
    pub(crate) fn ranges(&self) -> &Arc<Ranges> {
        &self.ranges
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
    buddy: GpuBuddy,
}

static FUNCS: bindings::ttm_resource_manager_func = bindings::ttm_resource_manager_func {
    alloc: Some(alloc_callback),
    free: Some(free_callback),
    intersects: Some(intersects_callback),
    compatible: Some(compatible_callback),
    debug: None,
};

impl VramManager {
    /// Makes a manager of `size` bytes.
    pub(super) fn new(size: u64) -> Result<Self> {
        Ok(Self {
            man: Manager::new(),
            buddy: GpuBuddy::new(GpuBuddyParams {
                base_offset: 0,
                size,
                chunk_size: Alignment::new::<{ PAGE_SIZE }>(),
            })?,
        })
    }

    pub(super) fn buddy(&self) -> &GpuBuddy {
        &self.buddy
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
                .init(bdev, MemType::Vram, self.buddy.size(), &FUNCS)
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
        let total = self.buddy.size();
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

        let blocks = KBox::pin_init(
            self.buddy.alloc_blocks(mode, size, align, flags),
            GFP_KERNEL,
        )
        // The size was checked above; what the allocator takes for bad input is one that it would
        // have to round up to more than there is.
        .map_err(|e| if e == EINVAL { ENOSPC } else { e })?;

        let mut ranges = KVVec::<Range>::new();
        let (mut at, mut end) = (0, 0);
        for block in blocks.iter() {
            let (offset, len) = (block.offset(), block.size());

            // OVERFLOW: Blocks are inside of VRAM.
            end = end.max(offset + len);

            match ranges.last_mut() {
                // OVERFLOW: As above.
                Some(last) if last.offset + last.len == offset => last.len += len,
                _ => ranges.push(Range { at, offset, len }, GFP_KERNEL)?,
            }
            at += len;
        }
        if at != size {
            return Err(EIO);
        }

        // INVARIANT: Blocks are whole pages, and they add up to the size of the object.
        let ranges = Arc::new(
            Ranges {
                ranges,
                end,
                in_bar: SetOnce::new(),
            },
            GFP_KERNEL,
        )?;

        Ok(KBox::new(
            VramResource {
                base: Opaque::zeroed(),
                ranges,
                _blocks: blocks,
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

    let ranges = res.ranges.ranges();

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

    let ranges = res.ranges.ranges();

    (!place.is_contiguous() || ranges.len() == 1)
        && ranges.iter().all(|r| place.contains(r.offset, r.len))
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Mappings of objects by processes.
//!
//! Objects in VRAM are mapped write-combined. A mapping is removed when the object moves, when the
//! device is suspended or when its window is needed for another object (see `windows.rs`). The next
//! access restores it. If a failed move has lost the content of the object by then, the access ends
//! in `SIGBUS`.
//!
//! # Locking
//!
//! A fault is handled with the `mmap_lock` held and takes the reservation of the object. If the
//! object is in VRAM, the device is resumed before.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use super::{
    vram_manager::VramResource,
    Device,
    LockedObject,
    Object,
    TtmObject, //
};
use crate::{
    bindings,
    drm::{
        gem::IntoGEMObject,
        ttm::{
            OpCtx,
            Place, //
        },
        vram::{
            Domain,
            MemType, //
        }, //
    },
    error::from_result,
    page::PAGE_SHIFT,
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use core::ptr;

/// The maximal number of pages mapped by one fault.
const FAULT_AROUND: usize = 16;

/// # Safety
///
/// Called by the DRM core with an object of this class and the area of an ongoing `mmap()`.
pub(super) unsafe extern "C" fn mmap_callback<T: TtmObject>(
    gem: *mut bindings::drm_gem_object,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    let mut idx = 0;

    // SAFETY: The device of a valid object is valid.
    unsafe {
        if !bindings::drm_dev_enter((*gem).dev, &mut idx) {
            return ENODEV.to_errno();
        }
        bindings::drm_dev_exit(idx);

        let obj: &Object<T> = IntoGEMObject::from_raw(gem);
        let Some(import) = &obj.import else {
            // The file is one of the device. A process that maps a dma-buf is not a client and
            // cannot be charged.
            let is_client = (*(*vma).vm_file).f_op == (*(*(*gem).dev).driver).fops;

            if obj.direct_io() && is_client {
                return from_result(|| obj.map_direct(vma).map(|()| 0));
            }
            return bindings::drm_gem_ttm_mmap(gem, vma);
        };

        // The exporter sets the fields that it needs. None may still refer to this object.
        (*vma).vm_private_data = ptr::null_mut();
        (*vma).vm_ops = ptr::null();
        let ret = bindings::dma_buf_mmap(import.dma_buf().as_raw(), vma, 0);
        if ret == 0 {
            // The area keeps the buffer instead of the object.
            bindings::drm_gem_object_put(gem);
        }
        ret
    }
}

/// # Safety
///
/// Called by the memory management with a fault in an area of an object of this class.
pub(super) unsafe extern "C" fn fault_callback<T: TtmObject>(
    vmf: *mut bindings::vm_fault,
) -> bindings::vm_fault_t {
    // SAFETY: The fault and its area are valid. TTM keeps the object as the private data of the
    // area, and the area has a reference to it.
    let (bo, prot) = unsafe {
        let vma = (*vmf).__bindgen_anon_1.vma;

        (
            (*vma).vm_private_data.cast::<bindings::ttm_buffer_object>(),
            (*vma).vm_page_prot,
        )
    };

    // SAFETY: TTM does not map ghosts, and the area has a reference to the object.
    let Some(obj) = (unsafe { Object::<T>::from_bo(bo) }) else {
        return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    };
    // Held until the pages are mapped. The mapping is removed when the device is suspended.
    let mut runtime_guard = None;
    if obj.last_placement() == Some(MemType::Vram) {
        match obj.runtime_guard() {
            Ok(now) => runtime_guard = Some(now),
            Err(_) => return bindings::vm_fault_reason_VM_FAULT_SIGBUS,
        }
    }

    // SAFETY: As above.
    let ret = unsafe { bindings::ttm_bo_vm_reserve(bo, vmf) };
    if ret != 0 {
        return ret;
    }

    let (mut idx, mut is_busy) = (0, false);
    let mut ret = bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    // SAFETY: The object is reserved, and its device is valid. An unplug waits for the section and
    // then removes the inserted pages.
    unsafe {
        if bindings::drm_dev_enter((*bo).base.dev, &mut idx) {
            let locked = LockedObject::assume(obj);
            if runtime_guard.is_none() && locked.mem_type() == Some(MemType::Vram) {
                // The object has moved to VRAM meanwhile.
                runtime_guard = obj.runtime_guard_if_active();
            }

            ret = match locked.vram() {
                // The next fault resumes the device.
                Some(_) if runtime_guard.is_none() => bindings::vm_fault_reason_VM_FAULT_NOPAGE,
                _ => match show::<T>(bo) {
                    // A move that TTM waits for may fail; `io_mem_reserve_callback` checks this.
                    Ok(()) => bindings::ttm_bo_vm_fault_reserved(vmf, prot, FAULT_AROUND),
                    Err(e) => {
                        is_busy = e == EBUSY;
                        reason_of(e)
                    }
                },
            };
            bindings::drm_dev_exit(idx);
        }
    }

    // SAFETY: The fault is valid.
    let flags = unsafe { (*vmf).flags };
    if ret == bindings::vm_fault_reason_VM_FAULT_RETRY
        && flags & bindings::fault_flag_FAULT_FLAG_RETRY_NOWAIT == 0
    {
        // TTM has unlocked the reservation together with the `mmap_lock`.
        return ret;
    }

    // SAFETY: The object was reserved above.
    unsafe { bindings::dma_resv_unlock((*bo).base.resv) };
    if is_busy {
        // The blocking tasks may wait for this object.
        fsleep(Delta::from_millis(1));
    }
    ret
}

/// Returns the result of a failed fault.
fn reason_of(why: Error) -> bindings::vm_fault_t {
    match why {
        // The access is retried after the signal was handled, or because another task still uses
        // the object or the objects with evictable windows.
        EINTR | ERESTARTSYS | EBUSY => bindings::vm_fault_reason_VM_FAULT_NOPAGE,
        ENOMEM => bindings::vm_fault_reason_VM_FAULT_OOM,
        _ => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
    }
}

/// Makes an object visible to the faulting process and checks that it has its content.
///
/// # Safety
///
/// The requirements of [`make_visible`]. If the object is in VRAM, the device must be active.
unsafe fn show<T: TtmObject>(bo: *mut bindings::ttm_buffer_object) -> Result {
    // SAFETY: As promised by the caller.
    let mut locked = unsafe { LockedObject::assume(Object::<T>::from_bo(bo).ok_or(EINVAL)?) };

    if T::APERTURE.is_some() {
        locked.show_to_processes()?;
    } else {
        // SAFETY: As promised by the caller.
        unsafe { make_visible::<T>(bo) }?;
    }
    locked.check_content()
}

/// Moves an object to CPU-visible memory because the CPU is about to access it.
///
/// # Safety
///
/// `bo` must be a reserved object of a device of `T` and not a ghost.
pub(super) unsafe fn make_visible<T: TtmObject>(bo: *mut bindings::ttm_buffer_object) -> Result {
    // SAFETY: As promised by the caller.
    let mut locked = unsafe { LockedObject::assume(Object::<T>::from_bo(bo).ok_or(EINVAL)?) };
    let visible = locked.visible();

    match locked.vram() {
        Some(vram) if !vram.is_below(visible) => {
            let domain = match locked.data().domain() {
                Domain::Vram => Domain::Vram,
                _ => Domain::Either,
            };
            let places = domain.places_in(Place::VRAM.below(visible));

            locked.validate_patiently(&places, &mut OpCtx::interruptible())
        }
        _ => {
            locked.touch();
            Ok(())
        }
    }
}

/// # Safety
///
/// Called by TTM with an object in VRAM of a device of `T`, possibly a ghost. Its reservation is
/// held.
pub(crate) unsafe extern "C" fn io_mem_pfn_callback<T: TtmObject>(
    bo: *mut bindings::ttm_buffer_object,
    page: usize,
) -> usize {
    let at = (page as u64) << PAGE_SHIFT;
    // SAFETY: The object is one of a `Device<T>`.
    let ttm = unsafe { Device::<T>::from_raw((*bo).bdev) };

    if T::APERTURE.is_some() {
        // `show_to_processes()` has set up the window, and the reservation has been held since.
        // SAFETY: As promised by the caller.
        let addr = unsafe { Object::<T>::from_bo(bo) }
            .and_then(|obj| ttm.windows.get(obj.id()))
            .and_then(|window| window.address(at));
        // A page of the BAR is at least not system memory.
        let addr = addr.unwrap_or_else(|| {
            crate::warn_on!(true);
            ttm.vram_start()
        });

        // CAST: Physical addresses have less than 64 bits.
        return (addr >> PAGE_SHIFT) as usize;
    }

    // SAFETY: The object is in VRAM, and all resources of VRAM are of this type.
    let resource = unsafe { VramResource::from_raw((*bo).resource) };

    // TTM asks only for pages of the object, and all of them are in its ranges. For any other page
    // this returns a page of this object instead of a foreign one.
    let ranges = resource.ranges();
    let (offset, _) = ranges
        .bar_piece(at)
        .or_else(|| ranges.bar_piece(0))
        .unwrap_or_default();
    // CAST: Physical addresses have less than 64 bits.
    ((ttm.vram_start() + offset) >> PAGE_SHIFT) as usize
}

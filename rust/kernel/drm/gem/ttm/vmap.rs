// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects that the kernel maps, for those who import their dma-buf.
//!
//! An object does not move while it is mapped, and has a window if VRAM is seen through windows
//! (see `windows.rs`). One that has lost its content, because a move of it failed, is not mapped:
//! `EIO`.
//!
//! C header: [`include/linux/iosys-map.h`](srctree/include/linux/iosys-map.h)

use super::{
    mmap::make_visible,
    Held,
    Object, //
};
use crate::{
    bindings,
    drm::{
        devres::while_registered,
        gem::{
            BaseObject,
            IntoGEMObject, //
        },
        ttm::{
            Holder,
            OpCtx,
            Place,
            TtmObject, //
        },
        vram::{
            Domain,
            MemType, //
        }, //
    },
    error::{
        from_result,
        to_result, //
    },
    page::PAGE_SHIFT,
    pm::Awake,
    prelude::*, //
};
use core::ptr::NonNull;

/// # Safety
///
/// Called with an object of the class `Object<T>`, with its reservation held.
pub(super) unsafe extern "C" fn vmap_callback<T: TtmObject>(
    gem: *mut bindings::drm_gem_object,
    map: *mut bindings::iosys_map,
) -> c_int {
    from_result(|| {
        // SAFETY: The object is valid and of this class.
        let obj: &Object<T> = unsafe { IntoGEMObject::from_raw(gem) };
        if let Some(import) = &obj.import {
            // SAFETY: The buffer is valid, and its reservation, which is that of the object, is
            // held.
            to_result(unsafe { bindings::dma_buf_vmap(import.dma_buf().as_raw(), map) })?;
            return Ok(0);
        }
        // SAFETY: The reservation is held.
        let mut locked = unsafe { Held::assume(obj) };

        if locked.mem_type() == Some(MemType::Vram) && obj.awake_if_active().is_none() {
            // It is too late to wait for that.
            Awake::request(obj.ttm().owner());
            return Err(EAGAIN);
        }
        if !T::APERTURE.is_some() && !locked.is_pinned() {
            // SAFETY: The object is valid, and its reservation is held.
            unsafe { make_visible::<T>(obj.bo()) }?;
        }
        // SAFETY: As promised by the caller.
        match unsafe { pin_and_vmap(&mut locked, map) } {
            // What has no window is mapped elsewhere.
            Err(e) if e == ENOSPC && T::APERTURE.is_some() && locked.may_do_without_window() => {
                locked.validate(&[Place::TT], &mut OpCtx::uninterruptible())?;
                // SAFETY: As promised by the caller.
                unsafe { pin_and_vmap(&mut locked, map) }
            }
            ret => ret,
        }
        .map(|()| 0)
    })
}

/// # Safety
///
/// `map` must be valid for writing.
unsafe fn pin_and_vmap<T: TtmObject>(
    locked: &mut Held<'_, Object<T>>,
    map: *mut bindings::iosys_map,
) -> Result {
    match locked.pin_raw() {
        // What may not stay in VRAM for that long is mapped elsewhere.
        Err(e) if e == EDQUOT && locked.data().domain() == Domain::Either => {
            locked.validate(&[Place::TT], &mut OpCtx::uninterruptible())?;
            locked.pin_raw()
        }
        ret => ret,
    }?;
    // SAFETY: As promised by the caller.
    unsafe { vmap_pinned(locked, map) }.inspect_err(|_| locked.unpin_raw())
}

/// # Safety
///
/// `map` must be valid for writing.
unsafe fn vmap_pinned<T: TtmObject>(
    locked: &Held<'_, Object<T>>,
    map: *mut bindings::iosys_map,
) -> Result {
    let bo = locked.bo();

    // No move is under way, of which `ttm_bo_vmap()` knows nothing: to pin is to wait for them.
    let Some(vram) = locked.vram() else {
        // SAFETY: The object is valid, reserved and pinned.
        return to_result(unsafe { bindings::ttm_bo_vmap(bo, map) });
    };

    // SAFETY: The device is valid and of `T::Driver`.
    unsafe { while_registered::<T::Driver, _>((*bo).base.dev, |_| Ok(())) }?;
    if !T::APERTURE.is_some() && !vram.is_below(locked.visible()) {
        return Err(EINVAL);
    }
    let awake = locked.obj.awake_if_active().ok_or(EAGAIN)?;
    let start = locked.ttm().vram_start();

    let mut pfns = KVVec::with_capacity(locked.obj.size() >> PAGE_SHIFT, GFP_KERNEL)?;
    let mut push = |at: u64, len: u64| -> Result {
        let first = at >> PAGE_SHIFT;

        for pfn in first..first + (len >> PAGE_SHIFT) {
            // CAST: Physical addresses have less than 64 bits.
            pfns.push(pfn as usize, GFP_KERNEL)?;
        }
        Ok(())
    };
    let window = if T::APERTURE.is_some() {
        Some(locked.window(Some(Holder::Kernel))?)
    } else {
        None
    };
    let pushed = match &window {
        Some(window) => window.iter().try_for_each(|(at, len)| push(at, len)),
        None => vram
            .shown()
            .iter()
            .try_for_each(|range| push(start + range.offset, range.len)),
    };

    let addr = pushed.and_then(|()| vmap(&pfns)).inspect_err(|_| {
        if window.is_some() {
            locked
                .ttm()
                .windows
                .release(locked.obj.id(), Holder::Kernel);
        }
    })?;
    // Until `vunmap_callback()`.
    awake.forget();
    // SAFETY: The caller wants it to be filled.
    unsafe {
        map.write(bindings::iosys_map {
            __bindgen_anon_1: bindings::iosys_map__bindgen_ty_1 {
                vaddr_iomem: addr.as_ptr(),
            },
            is_iomem: true,
        })
    };
    Ok(())
}

/// Maps pages of I/O memory, which need not be contiguous, write-combined into the kernel.
#[inline(never)]
fn vmap(pfns: &[usize]) -> Result<NonNull<c_void>> {
    // `vmap_pfn()` is for addresses without a `struct page` and warns about others. A BAR has no
    // pages, unless somebody made it device memory.
    // SAFETY: The function has no requirements.
    let has_page = |&pfn| unsafe { bindings::pfn_valid(pfn) } != 0;
    if pfns.iter().any(has_page) {
        return Err(EOPNOTSUPP);
    }

    // SAFETY: The array is valid for its length and not written to.
    let addr = unsafe {
        bindings::vmap_pfn(
            pfns.as_ptr().cast_mut(),
            pfns.len().try_into()?,
            bindings::pgprot_decrypted(bindings::pgprot_writecombine(bindings::page_kernel())),
        )
    };
    NonNull::new(addr).ok_or(ENOMEM)
}

/// # Safety
///
/// Called with what [`vmap_callback`] filled in, which is not used any more, with the reservation
/// held.
pub(super) unsafe extern "C" fn vunmap_callback<T: TtmObject>(
    gem: *mut bindings::drm_gem_object,
    map: *mut bindings::iosys_map,
) {
    // SAFETY: The object is valid, of this class, and reserved. By the safety requirements what is
    // imported was mapped by `dma_buf_vmap()`, other I/O memory is what `vmap_pfn()` returned, with
    // a user of the device that was forgotten, and the rest is what `ttm_bo_vmap()` did.
    unsafe {
        let obj: &Object<T> = IntoGEMObject::from_raw(gem);

        if let Some(import) = &obj.import {
            bindings::dma_buf_vunmap(import.dma_buf().as_raw(), map);
            return;
        }
        if (*map).is_iomem {
            bindings::vunmap((*map).__bindgen_anon_1.vaddr_iomem);
            if T::APERTURE.is_some() {
                obj.ttm().windows.release(obj.id(), Holder::Kernel);
            }
            drop(obj.awake_from_forgotten());
        } else {
            bindings::ttm_bo_vunmap(obj.bo(), map);
        }
        Held::assume(obj).unpin_raw();
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Kernel mappings of objects for importers of their dma-buf.
//!
//! An object does not move while it is mapped. It has a window if VRAM is visible through windows
//! (see `windows.rs`). Mapping an object fails with `EIO` if a failed move has lost its content.
//!
//! C header: [`include/linux/iosys-map.h`](srctree/include/linux/iosys-map.h)

use super::{
    mmap::make_visible,
    LockedObject,
    Object,
    TtmObject, //
};
use crate::{
    bindings,
    drm::{
        devres::while_registered,
        gem::{
            aperture::Holder,
            peer::is_no_window,
            BaseObject,
            IntoGEMObject, //
        },
        ttm::{
            OpCtx,
            Place, //
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
    pm::RuntimeGuard,
    prelude::*, //
};
use core::ptr::NonNull;

/// # Safety
///
/// Called with a reserved object of the class `Object<T>`.
pub(super) unsafe extern "C" fn vmap_callback<T: TtmObject>(
    gem: *mut bindings::drm_gem_object,
    map: *mut bindings::iosys_map,
) -> c_int {
    from_result(|| {
        // SAFETY: The object is valid and of this class.
        let obj: &Object<T> = unsafe { IntoGEMObject::from_raw(gem) };
        if let Some(import) = &obj.import {
            // SAFETY: The buffer is valid. Its reservation is that of the object and is held.
            to_result(unsafe { bindings::dma_buf_vmap(import.dma_buf().as_raw(), map) })?;
            return Ok(0);
        }
        // SAFETY: The reservation is held.
        let mut locked = unsafe { LockedObject::assume(obj) };

        if locked.mem_type() == Some(MemType::Vram) && obj.runtime_guard_if_active().is_none() {
            // With the reservation held, the device cannot be resumed here: the resume is
            // requested.
            RuntimeGuard::request(obj.ttm().owner());
            return Err(EAGAIN);
        }
        if !T::APERTURE.is_some() && !locked.is_pinned() {
            // SAFETY: The object is valid, and its reservation is held.
            unsafe { make_visible::<T>(obj.bo()) }?;
        }
        // SAFETY: As promised by the caller.
        match unsafe { pin_and_vmap(&mut locked, map) } {
            // An object for which there is no window is mapped in system memory.
            Err(e)
                if is_no_window(e) && T::APERTURE.is_some() && locked.may_do_without_window() =>
            {
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
    locked: &mut LockedObject<'_, Object<T>>,
    map: *mut bindings::iosys_map,
) -> Result {
    match locked.pin_raw() {
        // An object whose pin would exceed a limit in VRAM is mapped in system memory.
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
    locked: &LockedObject<'_, Object<T>>,
    map: *mut bindings::iosys_map,
) -> Result {
    let bo = locked.bo();

    // No move is pending: the pin has waited for moves. `ttm_bo_vmap()` would not notice one.
    let Some(vram) = locked.vram() else {
        // SAFETY: The object is valid, reserved and pinned.
        return to_result(unsafe { bindings::ttm_bo_vmap(bo, map) });
    };

    // SAFETY: The device is valid and of `T::Driver`.
    unsafe { while_registered::<T::Driver, _>((*bo).base.dev, |_| Ok(())) }?;
    if !T::APERTURE.is_some() && !vram.is_below(locked.visible()) {
        return Err(EINVAL);
    }
    let runtime_guard = locked.obj.runtime_guard_if_active().ok_or(EAGAIN)?;
    let start = locked.ttm().vram_start();

    let window = if T::APERTURE.is_some() {
        Some(locked.window(Holder::Kernel)?)
    } else {
        None
    };
    let size = locked.obj.size();
    let mapped = match &window {
        Some(window) => vmap(size, &mut window.iter()),
        None => {
            let shown = vram.shown().iter();

            vmap(
                size,
                &mut shown.map(|range| (start + range.offset, range.len)),
            )
        }
    };

    let addr = mapped.inspect_err(|_| {
        if window.is_some() {
            locked.obj.release_window(Holder::Kernel);
        }
    })?;
    // `vunmap_callback()` drops the guard.
    runtime_guard.forget();
    // SAFETY: The caller passes a valid structure to be filled.
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

/// Maps consecutive pieces of I/O memory into the kernel, write-combined. Each piece is a physical
/// address and a length; all of them together have `size` bytes.
///
/// A part of a BAR may have struct pages. `vmap()` is for memory with struct pages, and
/// `vmap_pfn()` is for memory without.
// Not inlined, because the functions are not exported to modules.
#[inline(never)]
fn vmap(size: usize, pieces: &mut dyn Iterator<Item = (u64, u64)>) -> Result<NonNull<c_void>> {
    // SAFETY: The function has no requirements.
    // CAST: A flag.
    let area = unsafe { bindings::get_vm_area(size, bindings::VM_IOREMAP as usize).as_ref() };
    let addr = area
        .and_then(|area| NonNull::new(area.addr))
        .ok_or(ENOMEM)?;

    map_pieces(addr, size, pieces).inspect_err(|_| {
        // SAFETY: The address is that of the area. A part of it may be mapped.
        unsafe { bindings::vunmap(addr.as_ptr()) };
    })?;
    Ok(addr)
}

/// Maps the pieces into the area of `size` bytes at `addr`.
fn map_pieces(
    addr: NonNull<c_void>,
    size: usize,
    pieces: &mut dyn Iterator<Item = (u64, u64)>,
) -> Result {
    let mut at = addr.addr().get();
    // OVERFLOW: The area ends at this address.
    let end = at + size;

    for (phys, len) in pieces {
        // CAST: A length that exceeds the address space exceeds the area as well.
        let next = at.checked_add(len as usize).ok_or(EINVAL)?;

        if next > end {
            return Err(EINVAL);
        }
        // SAFETY: The addresses are inside of an area without another mapping. The memory belongs
        // to the object for as long as it is pinned.
        to_result(unsafe {
            bindings::vmap_page_range(
                at,
                next,
                phys,
                bindings::pgprot_decrypted(bindings::pgprot_writecombine(bindings::page_kernel())),
            )
        })?;
        at = next;
    }
    if at != end {
        return Err(EINVAL);
    }
    Ok(())
}

/// # Safety
///
/// Called with the reservation held and with a structure filled in by [`vmap_callback`] and not
/// used any more.
pub(super) unsafe extern "C" fn vunmap_callback<T: TtmObject>(
    gem: *mut bindings::drm_gem_object,
    map: *mut bindings::iosys_map,
) {
    // SAFETY: The object is valid, of this class and reserved. By the safety requirements, an
    // import was mapped by `dma_buf_vmap()`. Other I/O memory was returned by `vmap()` with a
    // forgotten runtime PM guard. All other memory was mapped by `ttm_bo_vmap()`.
    unsafe {
        let obj: &Object<T> = IntoGEMObject::from_raw(gem);

        if let Some(import) = &obj.import {
            bindings::dma_buf_vunmap(import.dma_buf().as_raw(), map);
            return;
        }
        if (*map).is_iomem {
            bindings::vunmap((*map).__bindgen_anon_1.vaddr_iomem);
            obj.release_window(Holder::Kernel);
            drop(obj.runtime_guard_from_forgotten());
        } else {
            bindings::ttm_bo_vunmap(obj.bo(), map);
        }
        LockedObject::assume(obj).unpin_raw();
    }
}

// SPDX-License-Identifier: GPL-2.0

//! CPU access: the callbacks of the dma-buf core and of the memory management.
//!
//! A process maps a buffer and announces its accesses; the kernel maps it with a vmap. The mappings
//! are created here for an exporter with [`pages`](Exporter::pages), else by the exporter.

use super::{
    buffer::Buffer,
    ops::Ops,
    pages::PagesMapping,
    user::insert_page,
    Exporter,
    KernelMapping,
    LockedBuffer,
    VmapRequest, //
};
use crate::{
    bindings,
    dma::DataDirection,
    dma_buf::{
        direction,
        DmaBuf, //
    },
    dma_resv::Usage,
    error::from_result,
    mm::virt::VmaNew,
    prelude::*, //
};
use core::marker::PhantomData;

/// The number of waits of a CPU access for fences without the reservation. The next wait holds the
/// reservation, so that no fence is added.
const WAITS: u32 = 3;

impl<E: Exporter> Ops<E> {
    /// The operations of a VMA that maps pages.
    const VM_OPS: bindings::vm_operations_struct = bindings::vm_operations_struct {
        fault: Some(fault_callback::<E>),
        ..pin_init::zeroed()
    };
}

/// # Safety
///
/// See [`attach_callback`](super::ops).
pub(super) unsafe extern "C" fn begin_cpu_access_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    dir: bindings::dma_data_direction,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };
        let dir = direction(dir);

        // The core waits too, but after this callback: the device must have finished its writes
        // before they can be synchronized for the CPU.
        let usage = if dir == DataDirection::FromDevice {
            Usage::Write
        } else {
            Usage::Read
        };
        buf.resv().wait(usage, true)?;

        let mut guard = buf.resv().lock_interruptible()?;
        let mut waits = 0;
        // Fences added before the lock was taken are waited for without the lock because other
        // tasks need it.
        while !buf.resv().test_signaled(usage) {
            if waits == WAITS {
                buf.resv().wait(usage, true)?;
                break;
            }
            drop(guard);
            buf.resv().wait(usage, true)?;
            guard = buf.resv().lock_interruptible()?;
            waits += 1;
        }
        // SAFETY: The reservation is held until after the view is gone.
        let ret =
            unsafe { buffer.locked(buf) }.and_then(|cx| buffer.exporter.begin_cpu_access(&cx, dir));

        drop(guard);
        ret.map(|()| 0)
    })
}

/// # Safety
///
/// See [`attach_callback`](super::ops).
pub(super) unsafe extern "C" fn end_cpu_access_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    dir: bindings::dma_data_direction,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };

        let guard = buf.resv().lock();
        // SAFETY: The reservation is held until after the view is gone.
        let ret = unsafe { buffer.locked(buf) }
            .and_then(|cx| buffer.exporter.end_cpu_access(&cx, direction(dir)));

        drop(guard);
        ret.map(|()| 0)
    })
}

/// # Safety
///
/// See [`attach_callback`](super::ops).
pub(super) unsafe extern "C" fn mmap_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };

        // SAFETY: The core passes the VMA of an ongoing `mmap()`.
        let vma = unsafe { VmaNew::from_raw(vma) };

        buffer.exporter.mmap(buf, vma)?;
        Ok(0)
    })
}

/// # Safety
///
/// See [`attach_callback`](super::ops).
pub(super) unsafe extern "C" fn mmap_pages_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };

        let guard = buf.resv().lock_interruptible()?;
        // SAFETY: The reservation is held until after the view is gone.
        let ret = unsafe { buffer.locked(buf) }.map(|_| ());

        drop(guard);
        ret?;
        // No page is inserted yet: a revocation would not find it because the VMA is only added to
        // the list of the file after this returns.
        // SAFETY: The core passes the VMA of an ongoing `mmap()`. Its file is that of the dma-buf,
        // so it keeps the dma-buf and the module of the operations.
        unsafe {
            let area = VmaNew::from_raw(vma);

            area.set_mixedmap();
            area.set_dontexpand();
            (*vma).vm_private_data = raw_buf.cast();
            (*vma).vm_ops = const { &Ops::<E>::VM_OPS };
        }
        Ok(0)
    })
}

/// # Safety
///
/// Called by the memory management with a fault in a VMA set up by [`mmap_pages_callback`].
unsafe extern "C" fn fault_callback<E: Exporter>(
    vmf: *mut bindings::vm_fault,
) -> bindings::vm_fault_t {
    // SAFETY: The fault and its VMA are valid. The private data of the VMA is the dma-buf, to which
    // the VMA holds a reference.
    let (buf, index) = unsafe {
        let fault = &(*vmf).__bindgen_anon_1;

        (
            DmaBuf::from_raw((*fault.vma).vm_private_data.cast()),
            fault.pgoff,
        )
    };
    // SAFETY: The VMA is one of a dma-buf with the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(buf) };

    // The process retries the access after it has handled the signal.
    let Ok(guard) = buf.resv().lock_interruptible() else {
        return bindings::vm_fault_reason_VM_FAULT_NOPAGE;
    };
    // SAFETY: The reservation is held until after the view is gone.
    let ret = unsafe { buffer.locked(buf) }
        .and_then(|cx| buffer.exporter.pages(&cx))
        // SAFETY: The fault is valid and in a VMA with `VM_MIXEDMAP`.
        .and_then(|pages| unsafe { insert_page(vmf, &pages, index) });

    drop(guard);
    match ret {
        Ok(()) => bindings::vm_fault_reason_VM_FAULT_NOPAGE,
        Err(e) if e == ENOMEM => bindings::vm_fault_reason_VM_FAULT_OOM,
        Err(_) => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
    }
}

/// # Safety
///
/// See [`attach_callback`](super::ops).
pub(super) unsafe extern "C" fn vmap_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    map: *mut bindings::iosys_map,
) -> c_int {
    // SAFETY: As promised by the caller.
    from_result(|| unsafe {
        keep::<E>(raw_buf, map, |exporter, cx| {
            exporter.vmap(cx, &VmapRequest(PhantomData))
        })
    })
}

/// # Safety
///
/// See [`attach_callback`](super::ops).
pub(super) unsafe extern "C" fn vmap_pages_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    map: *mut bindings::iosys_map,
) -> c_int {
    from_result(|| {
        // SAFETY: As promised by the caller.
        unsafe {
            keep::<E>(raw_buf, map, |exporter, cx| {
                let mapping = PagesMapping::new(exporter.pages(cx)?)?;

                Ok(KBox::new(mapping, GFP_KERNEL)?)
            })
        }
    })
}

/// Lets the exporter map a buffer and keeps the mapping until [`vunmap_callback`].
///
/// # Safety
///
/// The requirements of [`vmap_callback`].
unsafe fn keep<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    map: *mut bindings::iosys_map,
    new: impl FnOnce(&E, &LockedBuffer<'_, E>) -> Result<KBox<dyn KernelMapping>>,
) -> Result<c_int> {
    // SAFETY: The core passes a valid dma-buf with the reservation held.
    let buf = unsafe { DmaBuf::from_raw(raw_buf) };
    // SAFETY: The callbacks are only in the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(buf) };
    // SAFETY: The reservation is held for the whole callback.
    let cx = unsafe { buffer.locked(buf) }?;

    let mapping = new(&buffer.exporter, &cx)?;
    // Users of the mapping rely on the size of the buffer.
    if mapping.size() != buf.size() {
        return Err(EINVAL);
    }
    let place = mapping.map();
    if place.is_iomem() {
        // SAFETY: The reservation is held.
        unsafe { buffer.get_mapping() };
    }

    // SAFETY: The core passes a pointer to a structure to be filled. By the requirements of the
    // trait the memory stays mapped until the mapping is dropped.
    unsafe { map.write(place.into_raw()) };
    buffer.kernel.set(Some(mapping));
    Ok(0)
}

/// # Safety
///
/// See [`attach_callback`](super::ops).
pub(super) unsafe extern "C" fn vunmap_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    _map: *mut bindings::iosys_map,
) {
    // SAFETY: The core passes a valid dma-buf with the reservation held.
    let buf = unsafe { DmaBuf::from_raw(raw_buf) };
    // SAFETY: This callback is only in the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(buf) };

    if let Some(mapping) = buffer.kernel.take() {
        let is_iomem = mapping.map().is_iomem();

        drop(mapping);
        if is_iomem {
            // SAFETY: The reservation is held.
            unsafe { buffer.put_mapping() };
        }
    }
}

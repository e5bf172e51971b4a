// SPDX-License-Identifier: GPL-2.0

//! The table of C operations of an exporter and the callbacks of the dma-buf core for attachments,
//! pins and mappings.
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

use super::{
    attachment::{
        AttachRequest,
        Attached,
        AttachmentData,
        Holdings,
        MapRequest, //
    },
    buffer::Buffer,
    cpu::{
        begin_cpu_access_callback,
        end_cpu_access_callback,
        mmap_callback,
        mmap_pages_callback,
        vmap_callback,
        vmap_pages_callback,
        vunmap_callback, //
    },
    table::Tables,
    Exporter, //
};
use crate::{
    bindings,
    dma_buf::{
        direction,
        DmaBuf, //
    },
    error::from_result,
    prelude::*, //
};
use core::{
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// The `struct dma_buf_ops` of an exporter.
#[repr(transparent)]
pub struct Ops<E: Exporter>(bindings::dma_buf_ops, PhantomData<fn(E)>);

// SAFETY: The table is constant.
unsafe impl<E: Exporter> Send for Ops<E> {}

// SAFETY: The table is constant.
unsafe impl<E: Exporter> Sync for Ops<E> {}

impl<E: Exporter> Default for Ops<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Exporter> Ops<E> {
    /// Creates the table.
    pub const fn new() -> Self {
        const {
            assert!(
                E::HAS_PIN == E::HAS_UNPIN,
                "an exporter has both pin and unpin or neither"
            );
            assert!(
                !E::HAS_PAGES || !(E::HAS_MMAP || E::HAS_VMAP),
                "an exporter with pages has neither mmap nor vmap"
            );
        }

        // The tests use `if` because a `const fn` allows it.
        Self(
            bindings::dma_buf_ops {
                attach: Some(attach_callback::<E>),
                detach: Some(detach_callback::<E>),
                pin: if E::HAS_PIN {
                    Some(pin_callback::<E>)
                } else {
                    None
                },
                unpin: if E::HAS_UNPIN {
                    Some(unpin_callback::<E>)
                } else {
                    None
                },
                map_dma_buf: Some(map_callback::<E>),
                unmap_dma_buf: Some(unmap_callback::<E>),
                release: Some(release_callback::<E>),
                begin_cpu_access: if E::HAS_BEGIN_CPU_ACCESS {
                    Some(begin_cpu_access_callback::<E>)
                } else {
                    None
                },
                end_cpu_access: if E::HAS_END_CPU_ACCESS {
                    Some(end_cpu_access_callback::<E>)
                } else {
                    None
                },
                mmap: if E::HAS_MMAP {
                    Some(mmap_callback::<E>)
                } else if E::HAS_PAGES {
                    Some(mmap_pages_callback::<E>)
                } else {
                    None
                },
                vmap: if E::HAS_VMAP {
                    Some(vmap_callback::<E>)
                } else if E::HAS_PAGES {
                    Some(vmap_pages_callback::<E>)
                } else {
                    None
                },
                vunmap: if E::HAS_VMAP || E::HAS_PAGES {
                    Some(vunmap_callback::<E>)
                } else {
                    None
                },
            },
            PhantomData,
        )
    }

    /// Returns the pointer to the C structure.
    pub(super) fn as_raw(&'static self) -> *const bindings::dma_buf_ops {
        &self.0
    }
}

/// Converts a result to a pointer or an error pointer.
fn into_err_ptr(ret: Result<NonNull<bindings::sg_table>>) -> *mut bindings::sg_table {
    match ret {
        Ok(ptr) => ptr.as_ptr(),
        Err(e) => e.to_ptr(),
    }
}

/// # Safety
///
/// The dma-buf core calls all callbacks below with buffers exported with the table of `E` and with
/// attachments of these buffers. The reservation is held or not as the module documentation says.
unsafe extern "C" fn attach_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    raw_attach: *mut bindings::dma_buf_attachment,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };

        // Allocated first so that nothing fails once the exporter has accepted the importer.
        let data = KBox::<AttachmentData<E>>::new_uninit(GFP_KERNEL)?;
        let prepared = buffer.exporter.prepare_attach();

        let guard = buf.resv().lock();
        // SAFETY: The reservation was just taken and is held until after the view is gone.
        let ret = unsafe { buffer.locked(buf) }.and_then(|cx| {
            // SAFETY: The attachment is valid and there is no other pointer to it yet.
            let mut request = AttachRequest::new(unsafe { &mut *raw_attach });

            buffer.exporter.attach(&cx, &mut request, prepared)
        });
        // The reservation is held until the attachment is on the list so that the next decision
        // about all importers takes it into account.
        let ret = ret.map(|accepted| {
            let data = KBox::write(
                data,
                AttachmentData {
                    holdings: Holdings::new(),
                    data: accepted,
                },
            );

            // SAFETY: The attachment is valid and there is no other pointer to it yet. The core
            // does not fail after this; `detach_callback` removes it.
            unsafe {
                (*raw_attach).priv_ = KBox::into_raw(data).cast();
                buffer.common.attached.push(raw_attach);
            }
        });

        drop(guard);
        ret.map(|()| 0)
    })
}

/// Releases the mappings and pins left by a detaching importer. The reservation is held.
fn release_leftovers<E: Exporter>(buffer: &Buffer<E>, buf: &DmaBuf, at: &Attached<'_, E>) {
    let (pins, maps, peer_maps) = (at.pins(), at.maps(), at.peer_maps());

    dev_warn!(
        at.device(),
        "detached from a dma-buf of {} with {} pins and {} mappings left\n",
        E::NAME,
        pins,
        maps
    );
    at.unmap_unless(|_| false);
    for _ in 0..maps {
        buffer.exporter.unmap(at);
    }
    for _ in 0..peer_maps {
        // SAFETY: The reservation is held while an `Attached` exists.
        unsafe { buffer.put_mapping() };
    }
    if E::HAS_UNPIN {
        for left in (0..pins).rev() {
            at.holdings().pins.set(left);
            buffer.exporter.unpin(buf, at);
        }
    }
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn detach_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    raw_attach: *mut bindings::dma_buf_attachment,
) {
    // SAFETY: The core passes a valid dma-buf.
    let buf = unsafe { DmaBuf::from_raw(raw_buf) };
    // SAFETY: This callback is only in the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(buf) };

    let guard = buf.resv().lock();
    // SAFETY: The attachment is valid until this callback returns. `attach_callback` put it on the
    // list. The reservation is held.
    let at = unsafe {
        buffer.common.attached.remove(raw_attach);
        Attached::<E>::from_raw(raw_attach)
    };
    // The core does not check for leftovers, and an unbind would wait for them.
    if at.pins() != 0 || at.maps() != 0 {
        release_leftovers(buffer, buf, &at);
    }
    drop(guard);

    // SAFETY: `attach_callback` put a box there and the attachment is not used any more.
    let data = unsafe { KBox::from_raw((*raw_attach).priv_.cast::<AttachmentData<E>>()) };

    buffer.exporter.detach(buf, KBox::into_inner(data).data);
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn pin_callback<E: Exporter>(
    raw_attach: *mut bindings::dma_buf_attachment,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid attachment with the reservation held.
        let at = unsafe { Attached::<E>::from_raw(raw_attach) };
        let buf = at.dma_buf();
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };
        // SAFETY: The reservation is held for the whole callback.
        let cx = unsafe { buffer.locked(buf) }?;

        buffer.exporter.pin(&cx, &at)?;
        at.holdings().pins.set(at.pins() + 1);
        Ok(0)
    })
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn unpin_callback<E: Exporter>(raw_attach: *mut bindings::dma_buf_attachment) {
    // SAFETY: The core passes a valid attachment with the reservation held.
    let at = unsafe { Attached::<E>::from_raw(raw_attach) };
    let buf = at.dma_buf();
    // SAFETY: This callback is only in the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(buf) };

    if at.pins() == 0 {
        dev_warn!(
            at.device(),
            "unpins a dma-buf of {} that it did not pin\n",
            E::NAME
        );
        return;
    }

    at.holdings().pins.set(at.pins() - 1);
    buffer.exporter.unpin(buf, &at);
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn map_callback<E: Exporter>(
    raw_attach: *mut bindings::dma_buf_attachment,
    dir: bindings::dma_data_direction,
) -> *mut bindings::sg_table {
    let map = || -> Result<NonNull<bindings::sg_table>> {
        // SAFETY: The core passes a valid attachment with the reservation held.
        let at = MapRequest(unsafe { Attached::<E>::from_raw(raw_attach) });
        let buf = at.dma_buf();
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };
        // SAFETY: The reservation is held for the whole callback.
        let cx = unsafe { buffer.locked(buf) }?;

        // Reserved first so that nothing fails once the exporter has mapped the buffer.
        at.with_tables(Tables::reserve)?;
        let sgt = buffer
            .exporter
            .map(&cx, &at, direction(dir))
            .map(|mapping| mapping.sgt());

        let mut is_peer = false;
        // A mapping created but not returned has no user.
        at.unmap_unless(|table| {
            if Ok(table.sgt()) == sgt {
                table.has_user = true;
                is_peer = !table.has_pages();
            }
            table.has_user
        });
        let sgt = sgt?;

        if is_peer {
            // SAFETY: The reservation is held.
            unsafe { buffer.get_mapping() };
        }
        Ok(sgt)
    };

    into_err_ptr(map())
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn unmap_callback<E: Exporter>(
    raw_attach: *mut bindings::dma_buf_attachment,
    raw_sgt: *mut bindings::sg_table,
    _dir: bindings::dma_data_direction,
) {
    // SAFETY: The core passes a valid attachment with the reservation held.
    let at = unsafe { Attached::<E>::from_raw(raw_attach) };
    // SAFETY: This callback is only in the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(at.dma_buf()) };
    let table =
        at.with_tables(|tables| tables.take(|table| ptr::eq(table.sgt().as_ptr(), raw_sgt)));
    let Some(table) = table else {
        dev_warn!(
            at.device(),
            "unmaps a dma-buf of {} that it did not map\n",
            E::NAME
        );
        return;
    };

    let has_pages = table.has_pages();

    // SAFETY: The table was one of this attachment and the reservation is held.
    unsafe { table.unmap(raw_attach) };
    buffer.exporter.unmap(&at);
    if !has_pages {
        // SAFETY: The reservation is held.
        unsafe { buffer.put_mapping() };
    }
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn release_callback<E: Exporter>(raw_buf: *mut bindings::dma_buf) {
    // SAFETY: `Exports::export` put a box there and `raw_buf` on the list. From here on a
    // revocation does not find the buffer.
    unsafe {
        let buffer = &*(*raw_buf).priv_.cast::<Buffer<E>>();

        buffer.registry.remove(raw_buf);
    }

    // SAFETY: The box was put there and the dma-buf is not used any more.
    let buffer = unsafe { KBox::from_raw((*raw_buf).priv_.cast::<Buffer<E>>()) };

    buffer.exporter.release();
}

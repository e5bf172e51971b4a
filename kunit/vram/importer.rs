// SPDX-License-Identifier: GPL-2.0

//! The importers of the tests: what each does when its mapping is invalidated.

use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    dma::DataDirection,
    dma_buf::{
        importer::Invalidated,
        Attachment,
        DmaBuf,
        Importer, //
    },
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// The direction of most mappings.
pub(crate) const DIR: DataDirection = DataDirection::Bidirectional;

/// Maps, or finds the mapping.
pub(crate) fn map<I: Importer>(at: &Attachment<I>) -> Result {
    at.with(|at| at.map(DIR).map(|_| ()))
}

pub(crate) fn unmap<I: Importer>(at: &Attachment<I>) -> Result {
    at.with(|at| {
        at.unmap();
        Ok(())
    })
}

/// Able to move: unmaps at once, and counts the invalidations.
pub(crate) struct Prompt(pub(crate) Atomic<u32>);

#[vtable]
impl Importer for Prompt {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.0.fetch_add(1, Relaxed);
        at.unmap();
    }
}

pub(crate) fn prompt() -> Prompt {
    Prompt(Atomic::new(0))
}

/// Able to move: keeps the mapping until the test unmaps it or maps again, and counts the
/// invalidations.
pub(crate) struct Late(pub(crate) Atomic<u32>);

#[vtable]
impl Importer for Late {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.0.fetch_add(1, Relaxed);
        let _ = at.dma_buf();
    }
}

pub(crate) fn late() -> Late {
    Late(Atomic::new(0))
}

/// Can be revoked while it pins: unmaps and unpins at once, and counts the invalidations.
pub(crate) struct Revocable(pub(crate) Atomic<u32>);

#[vtable]
impl Importer for Revocable {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.0.fetch_add(1, Relaxed);
        at.unmap();
        at.unpin();
    }
}

pub(crate) fn revocable() -> Revocable {
    Revocable(Atomic::new(0))
}

/// Cannot be revoked, so it pins.
pub(crate) struct Pinner;

#[vtable]
impl Importer for Pinner {
    const PEER2PEER: bool = true;
}

/// Maps a buffer as an importer in C that cannot be revoked, and detaches without an unmap and an
/// unpin.
pub(crate) fn map_and_leave(buf: &DmaBuf, dev: &Device<Bound>) -> Result {
    static OPS: bindings::dma_buf_attach_ops = bindings::dma_buf_attach_ops {
        allow_peer2peer: true,
        invalidate_mappings: None,
    };
    let raw: *mut bindings::dma_buf = core::ptr::from_ref(buf).cast_mut().cast();

    // SAFETY: The buffer and the device are valid, and the table is static. Nothing uses the
    // mapping, which ends with the attachment.
    unsafe {
        let at = from_err_ptr(bindings::dma_buf_dynamic_attach(
            raw,
            core::ptr::from_ref(dev).cast_mut().cast(),
            &raw const OPS,
            core::ptr::null_mut(),
        ))?;
        let ret = {
            let _guard = buf.resv().lock();

            to_result(bindings::dma_buf_pin(at)).and_then(|()| {
                let map = (*(*raw).ops).map_dma_buf.ok_or(EINVAL)?;

                from_err_ptr(map(at, bindings::dma_data_direction::DMA_TO_DEVICE)).map(|_| ())
            })
        };

        bindings::dma_buf_detach(raw, at);
        ret
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Access to a buffer by the kernel itself.
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

use super::DmaBuf;
use crate::{
    bindings,
    dma_resv::LockedResv,
    error::to_result,
    iosys_map::IosysMap,
    prelude::*,
    sync::aref::ARef, //
};

/// A buffer mapped into the kernel until the value is dropped.
///
/// The exporter does not move the buffer while it is mapped. The unbind of the exporter waits until
/// mappings of I/O memory are dropped.
///
/// Other users access the memory at the same time: an access is not atomic. Its meaning is up to
/// the protocol between the users, such as [`begin_cpu_access`](DmaBuf::begin_cpu_access).
///
/// # Invariants
///
/// `map` is the mapping of the whole of `buf` by `dma_buf_vmap()`.
pub struct VMap {
    buf: ARef<DmaBuf>,
    map: IosysMap,
}

impl VMap {
    /// Maps `buf`. Sleeps; its reservation must not be held.
    ///
    /// Mirrors `dma_buf_vmap_unlocked()`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the exporter has no mappings for the kernel or one of another size.
    /// - `ENODEV` if the exporter is gone, and its other errors.
    ///
    /// # Examples
    ///
    /// See [`exporter`](super::exporter) for an exporter serving it.
    pub fn new(buf: ARef<DmaBuf>) -> Result<Self> {
        let mut map = bindings::iosys_map::default();

        // SAFETY: The dma-buf is valid and `map` is written to only.
        to_result(unsafe { bindings::dma_buf_vmap_unlocked(buf.as_raw(), &mut map) })?;

        // INVARIANT: Mapped above.
        Ok(Self {
            buf,
            // SAFETY: The buffer stays mapped until the value is dropped.
            map: unsafe { IosysMap::from_raw(map) },
        })
    }

    /// Maps `buf` for a task holding its reservation. Sleeps.
    ///
    /// Slots for fences reserved before are lost: the exporter may use them when it moves the
    /// buffer. The value must not be dropped with the reservation held. Mirrors `dma_buf_vmap()`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `resv` is not the reservation of `buf`.
    /// - The errors of [`Self::new`].
    pub(crate) fn new_locked(buf: ARef<DmaBuf>, resv: &mut LockedResv<'_>) -> Result<Self> {
        if !resv.is_for(buf.resv()) {
            return Err(EINVAL);
        }
        let _ = resv.slots();

        let mut map = bindings::iosys_map::default();
        // SAFETY: The dma-buf is valid and its reservation is held. `map` is written to only.
        to_result(unsafe { bindings::dma_buf_vmap(buf.as_raw(), &mut map) })?;

        // INVARIANT: Mapped above.
        Ok(Self {
            buf,
            // SAFETY: As in `new()`.
            map: unsafe { IosysMap::from_raw(map) },
        })
    }

    /// Returns where the buffer is mapped.
    #[inline]
    pub(crate) fn as_map(&self) -> IosysMap {
        self.map
    }

    /// Returns the buffer.
    #[inline]
    pub fn dma_buf(&self) -> &DmaBuf {
        &self.buf
    }

    /// Returns whether the buffer is in I/O memory (such as a BAR) at this time.
    #[inline]
    pub fn is_iomem(&self) -> bool {
        self.map.is_iomem()
    }

    /// Copies from byte `offset` of the buffer to `to`.
    ///
    /// Mirrors `iosys_map_memcpy_from()`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is not inside the buffer.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        let from = self.at(offset, to.len())?;

        // SAFETY: By the type invariant and the check above the range is mapped; `to` is not part
        // of it because no code has a reference to the memory of a dma-buf.
        unsafe {
            if self.map.is_iomem() {
                bindings::memcpy_fromio(to.as_mut_ptr().cast(), from, to.len());
            } else {
                // Not `copy_nonoverlapping()`: other users may write to the memory meanwhile.
                bindings::memcpy(to.as_mut_ptr().cast(), from, to.len());
            }
        }
        Ok(())
    }

    /// Copies `from` to byte `offset` of the buffer.
    ///
    /// The bytes of I/O memory have arrived when the method returns. Mirrors
    /// `iosys_map_memcpy_to()`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is not inside the buffer.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result {
        let to = self.at(offset, from.len())?;

        // SAFETY: As in `read()`.
        unsafe {
            if self.map.is_iomem() {
                bindings::memcpy_toio(to, from.as_ptr().cast(), from.len());

                // Write-combined and posted writes may still be on their way; a read waits for
                // them.
                if !from.is_empty() {
                    bindings::wmb();
                    bindings::readb(to);
                }
            } else {
                bindings::memcpy(to, from.as_ptr().cast(), from.len());
            }
        }
        Ok(())
    }

    /// Returns the address of `len` bytes at `offset`.
    fn at(&self, offset: usize, len: usize) -> Result<*mut c_void> {
        if offset.checked_add(len).ok_or(EINVAL)? > self.buf.size() {
            return Err(EINVAL);
        }
        Ok(self.map.addr().wrapping_byte_add(offset))
    }
}

impl Drop for VMap {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this is the mapping of the buffer.
        unsafe {
            bindings::dma_buf_vunmap_unlocked(self.buf.as_raw(), &mut self.map.into_raw());
        }
    }
}

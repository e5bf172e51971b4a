// SPDX-License-Identifier: GPL-2.0

//! The iteration over the fences of a container.
//!
//! C header: [`include/linux/dma-fence-unwrap.h`](srctree/include/linux/dma-fence-unwrap.h)

use super::{
    AnyFence,
    Fence, //
};
use crate::{
    bindings,
    sync::aref::ARef, //
};
use core::ptr::{
    self,
    NonNull, //
};

/// An iterator over the fences of an [`AnyFence`].
pub struct Parts<'a> {
    any: &'a AnyFence,
    /// Owns a reference to `chain` from the start of the iteration to its end.
    cursor: bindings::dma_fence_unwrap,
    started: bool,
}

impl<'a> Parts<'a> {
    pub(super) fn of(any: &'a AnyFence) -> Self {
        Self {
            any,
            cursor: bindings::dma_fence_unwrap::default(),
            started: false,
        }
    }
}

impl Iterator for Parts<'_> {
    type Item = ARef<Fence>;

    fn next(&mut self) -> Option<ARef<Fence>> {
        // SAFETY: The fence is valid, and so is the cursor once it was started. A cursor at its end
        // has no chain and stays there.
        let part = unsafe {
            if !self.started {
                self.started = true;
                bindings::dma_fence_unwrap_first(self.any.as_raw(), &mut self.cursor)
            } else if self.cursor.chain.is_null() {
                ptr::null_mut()
            } else {
                bindings::dma_fence_unwrap_next(&mut self.cursor)
            }
        };
        let part = NonNull::new(part)?;

        // SAFETY: The cursor keeps the fence until it is moved on. The fence is no container
        // because containers are taken apart.
        Some(unsafe { Fence::from_raw(part.as_ptr()) }.into())
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        // SAFETY: The cursor has a reference to the chain if there is one.
        unsafe { bindings::dma_fence_put(self.cursor.chain) };
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The workqueue on which memory is released.

use super::chunk::Chunk;
use crate::{
    bindings,
    prelude::*,
    sync::Arc,
    workqueue, //
};
use core::ptr::NonNull;

/// A workqueue. Dropping it waits for its work.
///
/// # Invariants
///
/// The workqueue is valid, and owned by the value.
pub(super) struct Queue(NonNull<bindings::workqueue_struct>);

// SAFETY: Workqueues may be used and destroyed from any task.
unsafe impl Send for Queue {}

// SAFETY: As for `Send`.
unsafe impl Sync for Queue {}

impl Queue {
    pub(super) fn new() -> Result<Self> {
        // SAFETY: The format has no arguments.
        let queue = unsafe {
            bindings::alloc_workqueue_noprof(
                c"drm_pagemap".as_char_ptr(),
                // What it frees is waited for where memory is allocated.
                bindings::wq_flags_WQ_UNBOUND | bindings::wq_flags_WQ_MEM_RECLAIM,
                0,
            )
        };

        // INVARIANT: It was just made.
        Ok(Self(NonNull::new(queue).ok_or(ENOMEM)?))
    }

    /// Lets a worker release a chunk, once. May be called in any context.
    pub(super) fn release(&self, chunk: Arc<Chunk>) {
        // SAFETY: By the type invariant the workqueue is valid.
        let queue = unsafe { workqueue::Queue::from_raw(self.0.as_ptr()) };

        // A chunk that is on the queue already is released by that.
        let _ = queue.enqueue(chunk);
    }

    /// Waits for the work that is on the queue. Sleeps.
    pub(super) fn flush(&self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::__flush_workqueue(self.0.as_ptr()) };
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. No work can be added any more, as this owns the workqueue.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The annotation, for lockdep, of code on which the waiters of a fence depend.

use crate::{
    bindings,
    types::NotThreadSafe, //
};

/// A section of code on which the waiters of a fence depend.
///
/// It begins when a fence is published, such as by adding it to a reservation, or where the code
/// starts that is going to signal it, such as a worker; it ends after the signal. In between,
/// lockdep reports operations that may depend on a fence: taking a reservation, allocating memory
/// in a way that can wait, waiting for a fence. Sections may be nested.
///
/// May be used in any context, and by one task. Mirrors `dma_fence_begin_signalling()` and
/// `dma_fence_end_signalling()`.
///
/// # Invariants
///
/// `cookie` belongs to a section which the current task has begun and not ended.
///
/// # Examples
///
/// ```
/// use kernel::dma_buf::fence::{
///     DriverFence,
///     FenceContextOps,
///     SignallingSection, //
/// };
///
/// /// The end of a job, as a worker or a threaded interrupt handler has it.
/// fn finish<T: FenceContextOps>(fence: DriverFence<T>, device_works: bool) {
///     let _section = SignallingSection::begin();
///
///     if device_works {
///         fence.signal(Ok(()));
///     }
/// }
/// ```
#[must_use = "the section ends when this is dropped"]
pub struct SignallingSection {
    cookie: bool,
    _not_send: NotThreadSafe,
}

impl SignallingSection {
    /// Begins a section.
    #[inline]
    pub fn begin() -> Self {
        // INVARIANT: The section was just begun.
        Self {
            // SAFETY: The function has no requirements.
            cookie: unsafe { bindings::dma_fence_begin_signalling() },
            _not_send: NotThreadSafe,
        }
    }
}

impl Drop for SignallingSection {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariant the section was begun by this task.
        unsafe { bindings::dma_fence_end_signalling(self.cookie) };
    }
}

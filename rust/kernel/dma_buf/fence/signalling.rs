// SPDX-License-Identifier: GPL-2.0

//! The lockdep annotation of fence signalling critical sections.

use crate::{
    bindings,
    types::NotThreadSafe, //
};

/// A fence signalling critical section: the waiters of a fence depend on its code.
///
/// It begins when a fence is published (such as by adding it to a reservation) or at the start of
/// the code signalling it (such as a worker). It ends after the signal. In between, lockdep reports
/// operations that may depend on a fence: taking a reservation, allocating memory in a way that can
/// wait and waiting for a fence. Sections may be nested.
///
/// May be used in any context and by one task. Mirrors `dma_fence_begin_signalling()` and
/// `dma_fence_end_signalling()`.
///
/// # Invariants
///
/// `cookie` belongs to a section begun and not yet ended by the current task.
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

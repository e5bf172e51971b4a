// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Workqueues owned by a value. The owner waits for their work.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::{
    bindings,
    prelude::*,
    str::CStr,
    sync::SetOnce,
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue, //
};
use core::{
    ops::Deref,
    ptr::NonNull, //
};

/// A workqueue not bound to a processor. Dropping it waits for its work. The work must not drop it.
///
/// # Invariants
///
/// The workqueue is valid and owned by the value.
pub struct OwnedQueue(NonNull<bindings::workqueue_struct>);

// SAFETY: Workqueues may be used and destroyed from any task.
unsafe impl Send for OwnedQueue {}

// SAFETY: As for `Send`.
unsafe impl Sync for OwnedQueue {}

impl OwnedQueue {
    /// Creates a queue. Its work items may run at the same time. With `is_for_reclaim` it has a
    /// rescuer thread for work awaited by memory allocations.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn new(name: &'static CStr, is_for_reclaim: bool) -> Result<Self> {
        let flags = bindings::wq_flags_WQ_UNBOUND
            | if is_for_reclaim {
                bindings::wq_flags_WQ_MEM_RECLAIM
            } else {
                0
            };

        // SAFETY: The format takes one string and one is passed.
        let queue = unsafe {
            bindings::alloc_workqueue_noprof(c"%s".as_char_ptr(), flags, 0, name.as_char_ptr())
        };

        // INVARIANT: The workqueue was just created.
        Ok(Self(NonNull::new(queue).ok_or(ENOMEM)?))
    }

    /// Waits for the work on the queue. Sleeps.
    pub fn flush(&self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::__flush_workqueue(self.0.as_ptr()) };
    }
}

impl Deref for OwnedQueue {
    type Target = workqueue::Queue;

    fn deref(&self) -> &workqueue::Queue {
        // SAFETY: By the type invariant the workqueue is valid as long as the value.
        unsafe { workqueue::Queue::from_raw(self.0.as_ptr()) }
    }
}

impl Drop for OwnedQueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. No more work can be added, because this value owns the
        // workqueue.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

/// Returns the queue of work waiting for fences of any device. No task may wait for that work.
///
/// Clients decide how much of it there is and how long it takes. So it must not use up the workers
/// of a queue with other work.
///
/// May sleep if it was not called before.
///
/// # Errors
///
/// `ENOMEM` if memory runs out. After one success it does not fail.
pub(crate) fn of_waits() -> Result<&'static workqueue::Queue> {
    // Never dropped.
    static WAITS: SetOnce<OwnedQueue> = SetOnce::new();

    loop {
        if let Some(queue) = WAITS.as_ref() {
            return Ok(queue);
        }
        if !WAITS.populate(OwnedQueue::new(c"drm_waits", false)?) {
            // Another task is about to do so.
            fsleep(Delta::from_millis(1));
        }
    }
}

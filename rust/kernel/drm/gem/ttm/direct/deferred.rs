// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects no longer mapped for direct I/O whose pages still have references.
//!
//! There is no notification when the last reference to a page is put, so a worker polls the objects
//! as long as there are any.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::{
    bindings,
    drm::workqueue::OwnedQueue,
    impl_has_work,
    new_work,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SetOnce, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use core::ptr::NonNull;

/// The initial and the maximal delay of the worker in milliseconds. A disk may take some time, and
/// each check visits all objects.
const PAUSE_MS: i64 = 5;
const PAUSE_MAX_MS: i64 = 320;

/// Checks the objects of a device and returns whether to check them again.
///
/// # Safety
///
/// The device must be one of the driver for which the function was made.
pub(in crate::drm::gem::ttm) type Look = unsafe fn(*mut bindings::drm_device) -> bool;

/// The amount of VRAM that cannot be reused because its pages have references, and the worker that
/// checks it.
pub(in crate::drm::gem::ttm) struct Deferred {
    bytes: Atomic<u64>,
    worker: SetOnce<Worker>,
}

impl Deferred {
    pub(in crate::drm::gem) const fn new() -> Self {
        Self {
            bytes: Atomic::new(0),
            worker: SetOnce::new(),
        }
    }

    /// Returns how many bytes cannot be reused.
    pub(in crate::drm::gem::ttm) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(in crate::drm::gem::ttm) fn add(&self, bytes: u64) {
        self.bytes.add(bytes, Relaxed);
    }

    pub(in crate::drm::gem::ttm) fn sub(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Creates the worker unless it exists.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    ///
    /// # Safety
    ///
    /// `dev` must be the DRM device that contains `self` and meet the requirement of `look`.
    /// [`Self::drain`] must be called after the device was unplugged. Nothing may be added after
    /// that.
    pub(in crate::drm::gem::ttm) unsafe fn prepare(
        &self,
        dev: NonNull<bindings::drm_device>,
        look: Look,
    ) -> Result {
        if self.worker.as_ref().is_none() {
            // If another task has created a worker meanwhile, this one is dropped.
            self.worker.populate(Worker::new(dev, look)?);
        }
        Ok(())
    }

    /// Wakes the worker to check the objects, after [`Self::prepare`].
    pub(in crate::drm::gem::ttm) fn wake(&self) {
        if let Some(worker) = self.worker.as_ref() {
            worker.poll.pause.store(PAUSE_MS, Relaxed);
            // An already queued work item has not checked yet.
            let _ = worker.queue.enqueue(worker.poll.clone());
        }
    }

    /// Waits until the worker has no object to check.
    pub(in crate::drm::gem::ttm) fn drain(&self) {
        if let Some(worker) = self.worker.as_ref() {
            worker.queue.flush();
        }
    }
}

/// The workqueue and its work item. Dropping the value waits for the work.
struct Worker {
    // Dropped first.
    queue: OwnedQueue,
    poll: Arc<Poll>,
}

impl Worker {
    // Not inlined, so the lock class and its name stay in the kernel crate.
    #[inline(never)]
    fn new(dev: NonNull<bindings::drm_device>, look: Look) -> Result<Self> {
        Ok(Self {
            queue: OwnedQueue::new(c"drm_direct_io", false)?,
            poll: Arc::pin_init(
                pin_init!(Poll {
                    work <- new_work!("drm::gem::ttm::Poll"),
                    dev,
                    look,
                    pause: Atomic::new(PAUSE_MS),
                }),
                GFP_KERNEL,
            )?,
        })
    }
}

/// # Invariants
///
/// While the work is queued or runs, `dev` is valid and a device for `look`.
#[pin_data]
struct Poll {
    #[pin]
    work: Work<Poll>,
    dev: NonNull<bindings::drm_device>,
    look: Look,
    /// The delay in milliseconds.
    pause: Atomic<i64>,
}

// SAFETY: DRM devices may be used from any task.
unsafe impl Send for Poll {}

// SAFETY: As for `Send`.
unsafe impl Sync for Poll {}

impl_has_work! {
    impl HasWork<Self> for Poll { self.work }
}

impl WorkItem for Poll {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        loop {
            let pause = this.pause.load(Relaxed);

            this.pause.store((pause * 2).min(PAUSE_MAX_MS), Relaxed);
            fsleep(Delta::from_millis(pause));

            // SAFETY: By the type invariant.
            if !unsafe { (this.look)(this.dev.as_ptr()) } {
                break;
            }
        }
    }
}

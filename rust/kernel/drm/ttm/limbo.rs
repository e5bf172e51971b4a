// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects that nobody maps for direct I/O any more, while their pages are still referenced.
//!
//! Nothing tells when the last reference to a page is put, so a worker looks at the objects again and
//! again, as long as there are some.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::{
    bindings,
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
        self,
        Work,
        WorkItem, //
    }, //
};
use core::ptr::NonNull;

/// After how many milliseconds the worker looks: first, and at most. A disk may take its time, and
/// to look is to ask all objects.
const PAUSE_MS: i64 = 5;
const PAUSE_MAX_MS: i64 = 320;

/// Looks at the objects of a device, and tells whether to look again.
///
/// # Safety
///
/// The device must be one of the driver that the function was made for.
pub(crate) type Look = unsafe fn(*mut bindings::drm_device) -> bool;

/// What of VRAM is kept from use, because its pages are referenced, and the worker that looks at it.
pub(crate) struct Limbo {
    bytes: Atomic<u64>,
    worker: SetOnce<Worker>,
}

impl Limbo {
    pub(super) const fn new() -> Self {
        Self {
            bytes: Atomic::new(0),
            worker: SetOnce::new(),
        }
    }

    /// Returns how many bytes are kept from use.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.add(bytes, Relaxed);
    }

    pub(crate) fn sub(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Makes the worker, unless that was done.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    ///
    /// # Safety
    ///
    /// `dev` must be the DRM device that `self` is a part of, and the requirement of `look` be met.
    /// [`Self::drain`] must be called when the device was unplugged, after which nothing may be added.
    pub(crate) unsafe fn prepare(&self, dev: NonNull<bindings::drm_device>, look: Look) -> Result {
        if self.worker.as_ref().is_none() {
            // If somebody else was faster, this one is dropped.
            self.worker.populate(Worker::new(dev, look)?);
        }
        Ok(())
    }

    /// Has the worker look, after [`Self::prepare`].
    pub(crate) fn wake(&self) {
        if let Some(worker) = self.worker.as_ref() {
            worker.poll.pause.store(PAUSE_MS, Relaxed);
            worker.poll.enqueue();
        }
    }

    /// Waits until the worker has nothing to look at.
    pub(crate) fn drain(&self) {
        if let Some(worker) = self.worker.as_ref() {
            // SAFETY: By the type invariant.
            unsafe { bindings::drain_workqueue(worker.poll.queue.as_ptr()) };
        }
    }
}

/// The workqueue, and what it does. Dropping it waits for that.
///
/// # Invariants
///
/// The queue of `poll` is owned by the value.
struct Worker {
    poll: Arc<Poll>,
}

impl Worker {
    // Not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    fn new(dev: NonNull<bindings::drm_device>, look: Look) -> Result<Self> {
        // SAFETY: The format has no arguments.
        let queue = unsafe {
            bindings::alloc_workqueue_noprof(
                c"drm_direct_io".as_char_ptr(),
                bindings::wq_flags_WQ_UNBOUND,
                0,
            )
        };
        let queue = NonNull::new(queue).ok_or(ENOMEM)?;
        let poll = Arc::pin_init(
            pin_init!(Poll {
                work <- new_work!("drm::ttm::Poll"),
                queue,
                dev,
                look,
                pause: Atomic::new(PAUSE_MS),
            }),
            GFP_KERNEL,
        )
        // SAFETY: Just made, and nobody else has it.
        .inspect_err(|_| unsafe { bindings::destroy_workqueue(queue.as_ptr()) })?;

        // INVARIANT: Just made.
        Ok(Self { poll })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. Nobody wakes the worker any more.
        unsafe { bindings::destroy_workqueue(self.poll.queue.as_ptr()) };
    }
}

/// # Invariants
///
/// As long as there is the [`Worker`], and while the work is queued or runs, `queue` and `dev` are
/// valid, and `dev` is a device for `look`.
#[pin_data]
struct Poll {
    #[pin]
    work: Work<Poll>,
    queue: NonNull<bindings::workqueue_struct>,
    dev: NonNull<bindings::drm_device>,
    look: Look,
    /// In milliseconds.
    pause: Atomic<i64>,
}

// SAFETY: Workqueues may be used from any task, and so may DRM devices.
unsafe impl Send for Poll {}

// SAFETY: As for `Send`.
unsafe impl Sync for Poll {}

impl_has_work! {
    impl HasWork<Self> for Poll { self.work }
}

impl Poll {
    fn enqueue(self: &Arc<Self>) {
        // SAFETY: By the type invariant.
        let queue = unsafe { workqueue::Queue::from_raw(self.queue.as_ptr()) };

        // If it is queued already, it has not looked yet.
        let _ = queue.enqueue(self.clone());
    }
}

impl WorkItem for Poll {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let pause = this.pause.load(Relaxed);

        this.pause.store((pause * 2).min(PAUSE_MAX_MS), Relaxed);
        fsleep(Delta::from_millis(pause));

        // SAFETY: By the type invariant.
        if unsafe { (this.look)(this.dev.as_ptr()) } {
            this.enqueue();
        }
    }
}

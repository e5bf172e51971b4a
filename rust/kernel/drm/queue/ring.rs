// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A ring, and the operations that a driver implements for it.

use super::{
    client::{
        Lane,
        Owner,
        Permits,
        Queue, //
    },
    done::Done,
    job::Payload,
    scheduler::{
        Calls,
        Scheduler, //
    }, //
};
use crate::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    devres::Devres,
    dma_buf::fence::FenceGroup,
    prelude::*,
    sync::Arc,
    time::Msecs,
    types::ForLt, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

/// The operations of a driver for a ring.
///
/// The worker of the ring calls all of them, one at a time, in a
/// [`SignallingSection`](crate::dma_buf::fence::SignallingSection). They may sleep for the device,
/// for example in a reset. They must neither take a reservation nor allocate memory in a way that
/// waits.
pub trait RingOps: Sized + 'static {
    /// The driver's hardware. It exists until the ring is dropped.
    type Hw: ForLt;

    /// The work of a job. A system worker drops it, so the drop may take reservations.
    type Job: Send + 'static;

    /// Begins a job. When it has ended, `done` is signalled in any context.
    ///
    /// After a reset this is called again for all unfinished jobs except the hung one.
    fn run(hw: &HwOf<'_, Self>, job: &mut Self::Job, done: Done);

    /// Decides about `job`, the oldest in the hardware. Called if no job has ended for `limit`
    /// milliseconds or if the driver has requested it ([`Done::expire`]).
    ///
    /// The limit is [`Config::timeout`], or less if the ring is closed. If the job makes progress
    /// but has not ended, the driver measures it by this limit.
    fn timed_out(_hw: &HwOf<'_, Self>, _job: &Self::Job, _limit: Msecs) -> Verdict {
        Verdict::Reset(ETIME)
    }

    /// Returns whether the hardware is no longer present, so that no job will end.
    ///
    /// Called when the ring is dropped. If it returns true, the ring is reset without a wait for
    /// [`Config::timeout`]. The reset then fails.
    fn is_gone(_hw: &HwOf<'_, Self>) -> bool {
        false
    }

    /// Resets the ring.
    ///
    /// When this returns, the ring is empty and does nothing more of its former work. Jobs that had
    /// ended after all are signalled here. A [`Done`] dropped here does not count.
    ///
    /// # Errors
    ///
    /// After an error, the ring cannot be used any more: all jobs end with the error.
    fn reset(_hw: &HwOf<'_, Self>) -> Result {
        Err(EIO)
    }

    /// Called once for a job when it has ended, hung or was cancelled (`ECANCELED`).
    ///
    /// The calls are in the order in which the jobs began. For jobs ended by a reset they come
    /// before any other job begins or begins again. So the driver can do here what the hardware has
    /// failed to do, while the ring is empty.
    ///
    /// A fence of [`Queue::job`] may have signalled by then. Jobs with their own fence signal it
    /// here.
    fn ended(_job: &mut Self::Job, _result: Result) {}
}

/// [`RingOps::Hw`] for the lifetime of the driver's binding.
pub type HwOf<'a, T> = <<T as RingOps>::Hw as ForLt>::Of<'a>;

/// Creates [`RingOps::Hw`].
///
/// A trait and not a closure because the created type depends on the lifetime.
pub trait HwInit<T: RingOps> {
    /// Returns the initializer.
    ///
    /// The method is generic over the lifetime of the binding: the hardware can borrow from the
    /// device and from static data only. The device-managed resources that it uses must be acquired
    /// before [`Ring::new`], so that they are released after the ring.
    fn init<'a>(self, dev: &'a Device<Bound>) -> impl PinInit<HwOf<'a, T>, Error>;
}

/// The decision about an overdue job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The job is making progress. It is checked again after the same time.
    Busy,
    /// The ring has stopped or does not work. It is reset and the job ends with this error.
    Reset(Error),
    /// As [`Self::Reset`], and the job is to blame. A client with [`HANGS_MAX`] hung jobs gets no
    /// more of the ring.
    ///
    /// [`HANGS_MAX`]: super::HANGS_MAX
    Hung(Error),
}

/// The parameters of a ring.
pub struct Config<'a> {
    /// The name of the ring and of the contexts of its fences: at most 31 bytes.
    pub name: &'a CStr,
    /// How many jobs may be in the hardware at a time.
    pub credits: usize,
    /// The maximum time until a job ends, in milliseconds. It is shorter once the ring is closed
    /// (see the [module](super)). [`None`] if the hardware always ends its jobs.
    pub timeout: Option<Msecs>,
}

/// [`RingOps::Job`] as the ring sees it.
pub(super) struct Typed<T: RingOps>(pub(super) T::Job);

impl<T: RingOps> Payload for Typed<T> {
    unsafe fn run(&mut self, hw: *const c_void, done: Done) {
        // SAFETY: By the safety requirements.
        T::run(unsafe { &*hw.cast::<HwOf<'_, T>>() }, &mut self.0, done);
    }

    unsafe fn timed_out(&self, hw: *const c_void, limit: Msecs) -> Verdict {
        // SAFETY: By the safety requirements.
        T::timed_out(unsafe { &*hw.cast::<HwOf<'_, T>>() }, &self.0, limit)
    }

    fn ended(&mut self, result: Result) {
        T::ended(&mut self.0, result);
    }
}

/// Resets the hardware.
///
/// # Safety
///
/// `hw` must be the hardware of a ring of `T` and valid until this returns.
unsafe fn reset<T: RingOps>(hw: *const c_void) -> Result {
    // SAFETY: By the safety requirements.
    T::reset(unsafe { &*hw.cast::<HwOf<'_, T>>() })
}

/// Returns whether the hardware is no longer present.
///
/// # Safety
///
/// The requirements of [`reset`].
unsafe fn is_gone<T: RingOps>(hw: *const c_void) -> bool {
    // SAFETY: By the safety requirements.
    T::is_gone(unsafe { &*hw.cast::<HwOf<'_, T>>() })
}

/// The workqueue of a ring. It runs one work item after the other.
///
/// # Invariants
///
/// The workqueue is valid and owned by the value.
struct Workqueue(NonNull<bindings::workqueue_struct>);

// SAFETY: Workqueues may be used and destroyed from any task.
unsafe impl Send for Workqueue {}

// SAFETY: As for `Send`.
unsafe impl Sync for Workqueue {}

impl Workqueue {
    #[inline(never)]
    fn new() -> Result<Self> {
        // Other tasks wait for the jobs while they reclaim memory.
        let flags = bindings::wq_flags_WQ_UNBOUND
            | bindings::wq_flags___WQ_ORDERED
            | bindings::wq_flags_WQ_MEM_RECLAIM;

        // SAFETY: The format has no arguments.
        let queue =
            unsafe { bindings::alloc_workqueue_noprof(c"drm_queue".as_char_ptr(), flags, 1) };

        // INVARIANT: The workqueue was just created.
        Ok(Self(NonNull::new(queue).ok_or(ENOMEM)?))
    }
}

impl Drop for Workqueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. No other code can add work: either `Running` has removed
        // the pointer from the ring or nothing was ever queued.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

/// Ends a ring when it is dropped.
struct Running {
    scheduler: Arc<Scheduler>,
    _workqueue: Workqueue,
}

impl Drop for Running {
    #[inline(never)]
    fn drop(&mut self) {
        self.scheduler.end_all();
        self.scheduler.detach();
        self.scheduler.stop_timer(true);
        // Then the workqueue is dropped, which waits for the worker to return.
    }
}

/// The devres-owned part of a ring.
struct Owned<T: RingOps> {
    // Dropped before the hardware.
    _running: Running,
    _hw: Pin<KBox<HwOf<'static, T>>>,
}

// SAFETY: The hardware is `Send` and `Sync`, as `Ring::new()` requires.
unsafe impl<T: RingOps> Send for Owned<T> {}

// SAFETY: As for `Send`.
unsafe impl<T: RingOps> Sync for Owned<T> {}

/// A ring of the hardware. It does the jobs of its queues.
///
/// Dropping it ends it (see the [module](super)). It ends at the latest when the driver is unbound.
/// `'a` is the lifetime of the device's binding to its driver.
#[must_use = "the ring ends when this is dropped"]
pub struct Ring<'a, T: RingOps> {
    scheduler: Arc<Scheduler>,
    kernel: Queue<T>,
    // Owned by `_devres`.
    hw: NonNull<HwOf<'static, T>>,
    _devres: Devres<Owned<T>>,
    _p: PhantomData<&'a HwOf<'a, T>>,
}

// SAFETY: The hardware is `Send` and `Sync`, as `Ring::new()` requires. The rest may be used from
// any task.
unsafe impl<T: RingOps> Send for Ring<'_, T> {}

// SAFETY: As for `Send`.
unsafe impl<T: RingOps> Sync for Ring<'_, T> {}

impl<'a, T: RingOps> Ring<'a, T> {
    /// Creates a ring of hardware of `dev`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there are no credits.
    /// - `ENAMETOOLONG` if the name has more than 31 bytes.
    /// - `ENOMEM` if memory runs out.
    /// - The errors of `hw`.
    pub fn new(dev: &'a Device<Bound>, config: &Config<'_>, hw: impl HwInit<T>) -> Result<Self>
    where
        for<'b> HwOf<'b, T>: Send + Sync,
    {
        let hw = hw.init(dev);

        // SAFETY: `HwInit::init()` is generic over the lifetime, so the hardware borrows from the
        // device alone, for any lifetime that it was instantiated with here.
        unsafe { Self::with_hw(dev, config, hw) }
    }

    /// As [`Self::new`] for hardware initialized elsewhere.
    ///
    /// # Safety
    ///
    /// The hardware created by `hw` may only borrow from the bound device and from static data.
    pub(crate) unsafe fn with_hw(
        dev: &'a Device<Bound>,
        config: &Config<'_>,
        hw: impl PinInit<HwOf<'a, T>, Error>,
    ) -> Result<Self>
    where
        for<'b> HwOf<'b, T>: Send + Sync,
    {
        // SAFETY: Lifetimes do not change the layout. Devres ensures that the value is only used
        // while the device is bound. Functions of `T` do not see the longer lifetime.
        let hw = unsafe { pin_init::cast_pin_init::<HwOf<'a, T>, HwOf<'static, T>, Error>(hw) };
        let hw = KBox::pin_init(hw, GFP_KERNEL)?;
        let at = NonNull::from(&*hw);
        let workqueue = Workqueue::new()?;
        let scheduler = Scheduler::new(
            config.name,
            config.credits,
            config.timeout,
            Calls {
                reset: reset::<T>,
                is_gone: is_gone::<T>,
            },
            at.as_ptr().cast_const().cast(),
            workqueue.0,
        )?;
        let owned = Owned::<T> {
            _running: Running {
                scheduler: scheduler.clone(),
                _workqueue: workqueue,
            },
            _hw: hw,
        };

        let kernel = scheduler.kernel().cloned().ok_or(ENOMEM)?;
        Ok(Self {
            kernel: Queue::new(&scheduler, kernel),
            scheduler,
            hw: at,
            _devres: Devres::new(dev, Ok::<_, Error>(owned))?,
            _p: PhantomData,
        })
    }

    /// Returns the driver's hardware.
    #[inline]
    pub fn hw(&self) -> &HwOf<'a, T> {
        // SAFETY: Devres owns it until `self` is dropped or the driver is unbound. The unbind is
        // after the lifetime of `self`. Lifetimes do not change the layout and the hardware was
        // created with this lifetime.
        unsafe { self.hw.cast::<HwOf<'a, T>>().as_ref() }
    }

    /// Returns the queue of the kernel. Its jobs go first and have no bound.
    ///
    /// They should depend on each other alone because they hold up all later ones. A job depending
    /// on clients goes into a [`Queue::late`]. No job may depend on other devices: it would hold up
    /// the end of the ring.
    #[inline]
    pub fn kernel(&self) -> &Queue<T> {
        &self.kernel
    }

    /// Creates the queue of a client for up to `limit` jobs at a time. Its fences belong to
    /// `group`.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the ring is closed.
    /// - `EINVAL` if `limit` is 0.
    /// - `ENOMEM` if memory runs out.
    pub fn queue(&self, limit: usize, group: FenceGroup) -> Result<Queue<T>> {
        if limit == 0 {
            return Err(EINVAL);
        }

        let owner = Owner::Client(Permits::new(limit)?);
        let lane = Lane::new(&self.scheduler, owner, Some(group))?;
        self.scheduler.add(&lane)?;
        Ok(Queue::new(&self.scheduler, lane))
    }

    /// Returns the number of jobs, including those not pushed yet.
    pub fn jobs(&self) -> usize {
        self.scheduler.jobs()
    }

    /// Accepts no more jobs from clients and cancels those in their queues. Does not wait.
    ///
    /// Running jobs and the queues of the kernel go on.
    pub fn close(&self) {
        self.scheduler.close();
    }

    /// Ends all jobs and accepts no more from clients and the kernel: the first two steps of the
    /// end of a ring (see the [module](super)). Sleeps until no job is left.
    ///
    /// For memory freed before the ring is dropped: no job of the ring accesses it any more. The
    /// other rings of the device must still work because jobs of the kernel may depend on them. No
    /// reservation may be held.
    ///
    /// The fence of a [`Queue::job`] may signal shortly after this returns: the task in
    /// [`Done::signal`] signals it when the job already counts as ended. Code that needs the fence
    /// to have signalled waits for it. Until then, the task uses only what the [`Done`] and the
    /// fence have references to, and nothing of the hardware or of the job.
    pub fn end(&self) {
        self.scheduler.end_all();
    }
}

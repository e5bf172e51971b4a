// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The queue of a client and its limit of jobs.

use super::{
    fifo::Fifo,
    job::{
        Entry,
        Id,
        Job, //
    },
    ring::RingOps,
    scheduler::{
        Fences,
        Scheduler,
        State, //
    }, //
};
use crate::{
    dma_buf::fence::{
        Fence,
        FenceContext,
        FenceGroup, //
    },
    list::{
        impl_list_arc_safe,
        impl_list_item,
        AtomicTracker,
        ListArc,
        ListLinks,
        TryNewListArc, //
    },
    new_condvar,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        CondVar,
        LockedBy,
        Mutex, //
    }, //
};
use core::marker::PhantomData;

/// The unused permits of a client.
#[pin_data]
pub(super) struct Permits {
    #[pin]
    free: Mutex<usize>,
    #[pin]
    freed: CondVar,
}

impl Permits {
    // Not inlined into modules, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    pub(super) fn new(limit: usize) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                free <- new_mutex!(limit, "drm::queue::Permits::free"),
                freed <- new_condvar!("drm::queue::Permits::freed"),
            }),
            GFP_KERNEL,
        )
    }
}

/// Permits one more job in a queue until it is dropped.
#[must_use = "the permit is given back when this is dropped"]
pub struct Permit(Arc<Permits>);

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

/// The queue of a client is closed after this many hung jobs. Each of them holds up all other
/// clients for [`Config::timeout`](super::Config::timeout).
pub const HANGS_MAX: u32 = 3;

/// The owner of the jobs in a queue.
pub(super) enum Owner {
    Client(Arc<Permits>),
    Kernel,
    /// The kernel, for late jobs.
    Late,
}

/// The waiting jobs of a queue, under the lock of the ring.
pub(super) struct Waiting {
    pub(super) jobs: Fifo,
    /// No job begins any more.
    pub(super) closed: bool,
    /// How many jobs have hung.
    pub(super) hangs: u32,
}

/// A queue as the ring sees it.
#[pin_data]
pub(super) struct Lane {
    pub(super) context: FenceContext<Fences>,
    pub(super) group: Option<FenceGroup>,
    /// Held from when a fence gets its number until its job is in the queue.
    #[pin]
    pub(super) order: Mutex<()>,
    pub(super) waiting: LockedBy<Waiting, State>,
    pub(super) owner: Owner,
    /// How long the hardware has worked on its jobs, in nanoseconds.
    pub(super) busy: Atomic<u64>,
    /// The links in the list of queues whose first job can begin.
    #[pin]
    ready: ListLinks<0>,
    #[pin]
    ready_tracker: AtomicTracker<0>,
    /// The links in the list of all queues of clients.
    #[pin]
    all: ListLinks<1>,
    #[pin]
    all_tracker: AtomicTracker<1>,
}

// The lint does not find the safety comment inside the macro.
#[allow(clippy::undocumented_unsafe_blocks)]
mod tracked {
    use super::{
        impl_list_arc_safe,
        AtomicTracker,
        Lane,
        TryNewListArc, //
    };

    impl_list_arc_safe! {
        impl ListArcSafe<0> for Lane { tracked_by ready_tracker: AtomicTracker<0>; }
        impl ListArcSafe<1> for Lane { tracked_by all_tracker: AtomicTracker<1>; }
    }
}

impl_list_item! {
    impl ListItem<0> for Lane { using ListLinks { self.ready }; }
    impl ListItem<1> for Lane { using ListLinks { self.all }; }
}

impl Lane {
    /// Creates a queue.
    // Not inlined into modules, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    pub(super) fn new(
        scheduler: &Scheduler,
        owner: Owner,
        group: Option<FenceGroup>,
    ) -> Result<Arc<Self>> {
        let context = match group {
            Some(group) => FenceContext::new_in(scheduler.name.as_cstr(), group),
            None => FenceContext::new(scheduler.name.as_cstr()),
        }?;
        let waiting = Waiting {
            jobs: Fifo::new(),
            closed: false,
            hangs: 0,
        };

        Arc::pin_init(
            pin_init!(Self {
                context,
                group,
                order <- new_mutex!((), "drm::queue::Lane::order"),
                waiting: LockedBy::new(&scheduler.state, waiting),
                owner,
                busy: Atomic::new(0),
                ready <- ListLinks::new(),
                ready_tracker <- AtomicTracker::new(),
                all <- ListLinks::new(),
                all_tracker <- AtomicTracker::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether it is a queue of the kernel.
    pub(super) fn is_kernel(&self) -> bool {
        self.permits().is_none()
    }

    /// Returns the permits of a client.
    fn permits(&self) -> Option<&Arc<Permits>> {
        match &self.owner {
            Owner::Client(permits) => Some(permits),
            _ => None,
        }
    }
}

/// A queue of one client of a ring or of the kernel.
///
/// Dropping a client's queue cancels its waiting jobs and does not wait. A queue may outlive its
/// ring, which closes it at its end.
pub struct Queue<T: RingOps> {
    scheduler: Arc<Scheduler>,
    lane: Arc<Lane>,
    _ops: PhantomData<fn(T)>,
}

impl<T: RingOps> Queue<T> {
    pub(super) fn new(scheduler: &Arc<Scheduler>, lane: Arc<Lane>) -> Self {
        Self {
            scheduler: scheduler.clone(),
            lane,
            _ops: PhantomData,
        }
    }

    /// Creates another queue of the kernel for a late job. Such a job waits for clients, so the
    /// other jobs of the kernel must not wait for it.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if this is the queue of a client.
    /// - `ENOMEM` if memory runs out.
    pub fn late(&self) -> Result<Self> {
        if !self.lane.is_kernel() {
            return Err(EINVAL);
        }
        Ok(Self::new(
            &self.scheduler,
            Lane::new(&self.scheduler, Owner::Late, self.lane.group)?,
        ))
    }

    /// Waits interruptibly until the client may have one more job. Not for a queue of the kernel,
    /// which has no bound.
    ///
    /// No lock may be held because the wait may depend on other devices. An ioctl calls this
    /// outside of the section that an unplug waits for (see
    /// [`declare_drm_ioctls`](crate::declare_drm_ioctls)).
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the ring is closed.
    /// - `ECANCELED` if [`HANGS_MAX`] jobs of the queue have hung.
    /// - `EINVAL` for a queue of the kernel.
    /// - `ERESTARTSYS` if a signal arrived.
    #[inline(never)]
    pub fn permit(&self) -> Result<Permit> {
        let permits = self.lane.permits().ok_or(EINVAL)?;
        let mut free = permits.free.lock();
        let mut interrupted = false;

        loop {
            let ret = if let Err(e) = self.scheduler.accepts(&self.lane) {
                Err(e)
            } else if interrupted {
                Err(ERESTARTSYS)
            } else if *free > 0 {
                *free -= 1;
                return Ok(Permit(permits.clone()));
            } else {
                interrupted = permits.freed.wait_interruptible(&mut free);
                continue;
            };

            // The wake-up was meant for one waiter, so it is passed on.
            permits.freed.notify_one();
            return ret;
        }
    }

    /// As [`Self::permit`] without a wait.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if there is no room.
    /// - The errors of [`Self::permit`] except for the one of a signal.
    #[inline(never)]
    pub fn try_permit(&self) -> Result<Permit> {
        let permits = self.lane.permits().ok_or(EINVAL)?;
        let mut free = permits.free.lock();

        self.scheduler.accepts(&self.lane)?;
        *free = free.checked_sub(1).ok_or(EAGAIN)?;
        Ok(Permit(permits.clone()))
    }

    /// Creates a job that is not in the queue yet and allocates all its memory.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the ring is closed.
    /// - `EINVAL` if the permit is not one of this queue.
    /// - `ENOMEM` if memory runs out.
    pub fn job(&self, permit: Option<Permit>, job: T::Job) -> Result<Job<T>> {
        Job::new(self.entry(permit)?, job)
    }

    /// As [`Self::job`] for a job with its own fence.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::job`].
    pub fn entry(&self, permit: Option<Permit>) -> Result<Entry<T>> {
        let is_mine = match (&permit, self.lane.permits()) {
            // Tests and drivers with their own count of jobs use no permits.
            (None, _) => true,
            (Some(permit), Some(permits)) => Arc::ptr_eq(&permit.0, permits),
            (Some(_), None) => false,
        };

        if !is_mine {
            return Err(EINVAL);
        }
        Entry::new(&self.scheduler, &self.lane, permit)
    }

    /// Returns the number of hung jobs as reported by the driver (see
    /// [`Verdict::Hung`](super::Verdict::Hung)). With the [last one](HANGS_MAX) the queue is
    /// closed.
    pub fn hangs(&self) -> u32 {
        self.scheduler.hangs(&self.lane)
    }

    /// Returns how long the hardware has worked on the finished jobs of the queue, in nanoseconds.
    /// For statistics: neither jobs of other queues nor waiting counts.
    #[inline]
    pub fn busy_ns(&self) -> u64 {
        self.lane.busy.load(Relaxed)
    }

    /// Cancels a waiting job and returns whether it was cancelled.
    ///
    /// Its fence signals `ECANCELED` soon after.
    pub fn cancel(&self, fence: &Fence) -> bool {
        self.scheduler.cancel(&self.lane, Id::of(fence))
    }
}

impl<T: RingOps> Drop for Queue<T> {
    fn drop(&mut self) {
        // Queues of the kernel end with the ring.
        if !self.lane.is_kernel() {
            self.scheduler.remove(&self.lane);
        }
    }
}

/// Creates the reference for one of the lists unless the queue is already in it.
pub(super) fn item<const ID: u64>(lane: &Arc<Lane>) -> Option<ListArc<Lane, ID>>
where
    Lane: TryNewListArc<ID>,
{
    ListArc::try_from_arc(lane.clone()).ok()
}

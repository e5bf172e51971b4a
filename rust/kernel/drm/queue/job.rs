// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Waiting jobs and their dependencies.

use super::{
    client::{
        Lane,
        Permit, //
    },
    done::Done,
    ring::{
        RingOps,
        Typed,
        Verdict, //
    },
    scheduler::{
        Fences,
        Scheduler, //
    },
    trace, //
};
use crate::{
    dma_buf::fence::{
        AnyFence,
        DriverFence,
        Fence,
        FenceAllocation,
        FenceCallback,
        FenceCallbackRegistration,
        FenceGroup,
        SignallingSection, //
    },
    dma_resv::{
        LockedResv,
        Usage, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
    time::Msecs, //
};
use core::{
    marker::PhantomData,
    mem::MaybeUninit,
    ptr, //
};

/// A job as the ring sees it, for any [`RingOps::Job`].
pub(super) trait Payload: Send {
    /// Starts the job: [`RingOps::run`].
    ///
    /// # Safety
    ///
    /// `hw` must be the hardware of the ring and valid until this returns.
    unsafe fn run(&mut self, hw: *const c_void, done: Done);

    /// Asks the driver: [`RingOps::timed_out`].
    ///
    /// # Safety
    ///
    /// The requirements of [`Self::run`].
    unsafe fn timed_out(&self, hw: *const c_void, limit: Msecs) -> Verdict;

    /// Notifies the driver of the end of the job: [`RingOps::ended`].
    fn ended(&mut self, result: Result);
}

/// The identity of a job: the context and the number of its fence.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) context: u64,
    pub(super) seqno: u64,
}

impl Id {
    pub(super) fn of(fence: &Fence) -> Self {
        Self {
            context: fence.context(),
            seqno: fence.seqno(),
        }
    }
}

/// A job in a queue or in the hardware.
pub(super) struct Node {
    /// The link in the [`Fifo`](super::fifo::Fifo) of the job.
    pub(super) next: *mut Node,
    pub(super) id: Id,
    pub(super) lane: Arc<Lane>,
    pub(super) payload: KBox<dyn Payload>,
    /// The fence, until the job runs. [`None`] if the job has its own fence.
    pub(super) fence: Option<DriverFence<Fences>>,
    // Dropped in this order: the callbacks are gone before the count of the job. The client gets
    // its permit back when the memory is freed.
    pub(super) deps: Deps,
    _permit: Option<Permit>,
    _counted: Counted,
}

// SAFETY: `next` is only used by the list that the job is in; the rest is `Send`.
unsafe impl Send for Node {}

/// Counts an existing job. The drop of the ring waits for it.
pub(super) struct Counted(Arc<Scheduler>);

impl Counted {
    /// Counts a job about to be queued.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the ring accepts no more jobs.
    pub(super) fn new(scheduler: &Arc<Scheduler>, is_kernel: bool) -> Result<Self> {
        scheduler.admit(is_kernel)?;
        Ok(Self(scheduler.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The unsignalled dependencies of a job.
pub(super) struct Pending {
    /// The number of dependencies, plus one until the job is in its queue.
    count: Atomic<u32>,
    scheduler: Arc<Scheduler>,
    lane: Arc<Lane>,
}

impl Pending {
    /// Removes one dependency. May be called in any context.
    fn take_one(&self) {
        if self.count.fetch_sub(1, Full) == 1 {
            // The job is in its queue because it was counted until then.
            self.scheduler.wake(&self.lane);
        }
    }
}

/// Counts a dependency down when it signals.
struct Wake(Arc<Pending>);

#[vtable]
impl FenceCallback for Wake {
    fn called(&self, _fence: &AnyFence) {
        self.0.take_one();
    }
}

/// The dependencies of a job.
pub(super) struct Deps {
    /// The callbacks. Some of them may have been called.
    list: KVec<Pin<KBox<FenceCallbackRegistration<Wake>>>>,
    pending: Option<Arc<Pending>>,
    /// Whether one of the fences is not internal to the group.
    external: bool,
}

impl Deps {
    const fn new() -> Self {
        Self {
            list: KVec::new(),
            pending: None,
            external: false,
        }
    }

    // Not inlined into modules: the callback stays in the kernel crate and its module is never
    // unloaded.
    #[inline(never)]
    fn add(
        &mut self,
        scheduler: &Arc<Scheduler>,
        lane: &Arc<Lane>,
        fence: ARef<AnyFence>,
        is_internal: bool,
    ) -> Result {
        // The queue orders fences of its own context.
        if fence.context() == lane.context.id() || fence.is_signaled() {
            return Ok(());
        }

        let pending = match &self.pending {
            Some(pending) => pending.clone(),
            None => {
                let pending = Arc::new(
                    Pending {
                        count: Atomic::new(1),
                        scheduler: scheduler.clone(),
                        lane: lane.clone(),
                    },
                    GFP_KERNEL,
                )?;

                self.pending.insert(pending).clone()
            }
        };
        self.list.reserve(1, GFP_KERNEL)?;
        let memory = KBox::new_uninit(GFP_KERNEL)?;

        // The callback may be called before the next line.
        pending.count.fetch_add(1, Relaxed);
        match memory.write_pin_init(FenceCallbackRegistration::new(fence, Wake(pending.clone()))) {
            Ok(callback) => {
                // There is room for the callback.
                let _ = self.list.push_within_capacity(callback);
                self.external |= !is_internal;
                Ok(())
            }
            // The fence has just signalled or the module is being unloaded.
            Err(e) => {
                pending.count.fetch_sub(1, Relaxed);
                if e == ENOENT {
                    Ok(())
                } else {
                    Err(e)
                }
            }
        }
    }

    /// Returns whether all dependencies of a job in its queue have signalled.
    pub(super) fn are_over(&self) -> bool {
        self.pending
            .as_ref()
            .is_none_or(|pending| pending.count.load(Acquire) == 0)
    }

    /// Records the arrival of the job in its queue. The lock of the ring is held.
    pub(super) fn queued(&self) {
        if let Some(pending) = &self.pending {
            // Readers hold the lock. The callback of the last dependency waits for it.
            pending.count.fetch_sub(1, Full);
        }
    }

    /// Returns the number of unsignalled dependencies of a job not yet in its queue.
    fn left(&self) -> u32 {
        self.pending
            .as_ref()
            .map_or(0, |pending| pending.count.load(Relaxed).saturating_sub(1))
    }
}

/// The memory and the dependencies of a job before the job exists.
///
/// For jobs with their own fences; other jobs are a [`Job`]. The caller must make the fences signal
/// in the order of the pushes and end them in [`RingOps::ended`].
///
/// The ring waits for the entry when it is dropped. So the entry must be held for a short time
/// only, while the driver is bound.
#[must_use = "nothing is queued if the entry is dropped"]
pub struct Entry<T: RingOps> {
    scheduler: Arc<Scheduler>,
    lane: Arc<Lane>,
    group: Option<FenceGroup>,
    node: KBox<MaybeUninit<Node>>,
    payload: KBox<MaybeUninit<Typed<T>>>,
    deps: Deps,
    permit: Option<Permit>,
    counted: Counted,
    _ops: PhantomData<fn(T)>,
}

impl<T: RingOps> Entry<T> {
    pub(super) fn new(
        scheduler: &Arc<Scheduler>,
        lane: &Arc<Lane>,
        permit: Option<Permit>,
    ) -> Result<Self> {
        Ok(Self {
            scheduler: scheduler.clone(),
            lane: lane.clone(),
            group: lane.group,
            node: KBox::new_uninit(GFP_KERNEL)?,
            payload: KBox::new_uninit(GFP_KERNEL)?,
            deps: Deps::new(),
            permit,
            counted: Counted::new(scheduler, lane.is_kernel())?,
            _ops: PhantomData,
        })
    }

    /// Makes the job wait until a fence of any kind has signalled, with or without an error.
    ///
    /// May sleep. A fence of the same queue is ignored.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn depend(&mut self, fence: impl Into<ARef<AnyFence>>) -> Result {
        self.add(fence.into(), false)
    }

    /// As [`Self::depend`] for a fence known not to be a container.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::depend`].
    pub fn depend_on_fence(&mut self, fence: &Fence) -> Result {
        let is_internal = self.group.is_some_and(|group| group.has_internal(fence));

        self.add(fence.into(), is_internal)
    }

    /// Makes the job wait for all fences of an object up to `usage`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::depend`].
    pub fn depend_on(&mut self, resv: &LockedResv<'_>, usage: Usage) -> Result {
        resv.fences(usage)
            .try_for_each(|fence| self.depend_on_fence(fence))
    }

    /// As [`Self::depend`] if the caller knows whether the fence is internal to the group.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::depend`].
    pub(crate) fn add(&mut self, fence: ARef<AnyFence>, is_internal: bool) -> Result {
        self.deps
            .add(&self.scheduler, &self.lane, fence, is_internal)
    }

    /// Puts a job with the fence `fence` into the queue. If the queue was closed meanwhile, the job
    /// is cancelled.
    ///
    /// Neither sleeps nor allocates.
    pub fn push(self, job: T::Job, fence: &Fence) {
        self.push_with(job, Id::of(fence), None);
    }

    fn push_with(self, job: T::Job, id: Id, fence: Option<DriverFence<Fences>>) {
        let payload: KBox<dyn Payload> = KBox::write(self.payload, Typed(job));
        let (dependencies, external) = (self.deps.left(), self.deps.external);
        let node = KBox::write(
            self.node,
            Node {
                next: ptr::null_mut(),
                id,
                lane: self.lane.clone(),
                payload,
                fence,
                deps: self.deps,
                _permit: self.permit,
                _counted: self.counted,
            },
        );

        trace::submit(&self.scheduler.name, id, dependencies, external);
        self.scheduler.push(&self.lane, node);
    }
}

/// A job not yet in its queue. Dropping it has no effect.
///
/// It has no number and cannot be waited for. [`Self::submit`] gives it both and cannot fail.
#[must_use = "nothing is queued if the job is dropped"]
pub struct Job<T: RingOps> {
    entry: Entry<T>,
    fence: FenceAllocation<Fences>,
    job: T::Job,
}

impl<T: RingOps> Job<T> {
    pub(super) fn new(entry: Entry<T>, job: T::Job) -> Result<Self> {
        Ok(Self {
            fence: entry.lane.context.new_fence_allocation(())?,
            entry,
            job,
        })
    }

    /// See [`Entry::depend`].
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn depend(&mut self, fence: impl Into<ARef<AnyFence>>) -> Result {
        self.entry.depend(fence)
    }

    /// See [`Entry::depend_on_fence`].
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn depend_on_fence(&mut self, fence: &Fence) -> Result {
        self.entry.depend_on_fence(fence)
    }

    /// See [`Entry::depend_on`].
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn depend_on(&mut self, resv: &LockedResv<'_>, usage: Usage) -> Result {
        self.entry.depend_on(resv, usage)
    }

    /// Puts the job into its queue and returns its fence. If the queue was closed meanwhile, the
    /// job is cancelled.
    ///
    /// `publish` is called with the fence before the job can begin. It adds the fence to
    /// reservations, which must have room for it. It must neither allocate memory in a way that
    /// waits nor take a reservation.
    pub fn submit(mut self, publish: impl FnOnce(&Fence)) -> ARef<Fence> {
        if self.entry.deps.external {
            self.fence.set_external();
        }

        let lane = self.entry.lane.clone();
        let _order = lane.order.lock();
        let _section = SignallingSection::begin();
        let fence = self.fence.new_fence();
        let shared: ARef<Fence> = fence.fence().into();

        publish(&shared);
        self.entry.push_with(self.job, Id::of(&shared), Some(fence));
        shared
    }
}

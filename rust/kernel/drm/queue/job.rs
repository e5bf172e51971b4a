// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Jobs that have not begun, and what they depend on.

use super::{
    arbiter::{
        Core,
        Fences, //
    },
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

/// A job as the ring sees it, whatever [`RingOps::Job`] is.
pub(super) trait Payload: Send {
    /// Starts it: [`RingOps::run`].
    ///
    /// # Safety
    ///
    /// `hw` must be that of the ring, and be valid until this returns.
    unsafe fn run(&mut self, hw: *const c_void, done: Done);

    /// Asks the driver: [`RingOps::timed_out`].
    ///
    /// # Safety
    ///
    /// Those of [`Self::run`].
    unsafe fn timed_out(&self, hw: *const c_void, limit: Msecs) -> Verdict;

    /// Tells the driver of the end: [`RingOps::ended`].
    fn ended(&mut self, result: Result);
}

/// By which a job is known: the context and the number of its fence.
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

/// A job in a queue, or in the hardware.
pub(super) struct Node {
    /// Of the [`Fifo`](super::fifo::Fifo) that it is in.
    pub(super) next: *mut Node,
    pub(super) id: Id,
    pub(super) payload: KBox<dyn Payload>,
    /// Until it runs. [`None`] if the job has a fence of its own.
    pub(super) fence: Option<DriverFence<Fences>>,
    // Dropped in this order: the callbacks are gone before the job is not counted any more, and the
    // next one of the client comes when the memory is free.
    pub(super) deps: Deps,
    _permit: Option<Permit>,
    _counted: Counted,
}

// SAFETY: `next` is only used by the list that the job is in; the rest is `Send`.
unsafe impl Send for Node {}

/// A job that the ring waits for before it goes: it exists.
pub(super) struct Counted(Arc<Core>);

impl Counted {
    /// Counts a job that a queue is about to get.
    ///
    /// # Errors
    ///
    /// `ENODEV` if it gets none any more.
    pub(super) fn new(core: &Arc<Core>, is_kernel: bool) -> Result<Self> {
        core.admit(is_kernel)?;
        Ok(Self(core.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The dependencies of a job that have not signalled.
pub(super) struct Pending {
    /// How many, and one more until the job is in its queue.
    count: Atomic<u32>,
    core: Arc<Core>,
    lane: Arc<Lane>,
}

impl Pending {
    /// Takes one off. May be called in any context.
    fn take_one(&self) {
        if self.count.fetch_sub(1, Full) == 1 {
            // The job is in its queue, as it was counted until then.
            self.core.wake(&self.lane);
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

/// What a job depends on.
pub(super) struct Deps {
    /// Callbacks, of which some may have been called.
    list: KVec<Pin<KBox<FenceCallbackRegistration<Wake>>>>,
    pending: Option<Arc<Pending>>,
    /// Whether one of them is not an internal one of the group.
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

    // Not inlined into modules: the callback stays in the kernel crate, whose module is never
    // unloaded.
    #[inline(never)]
    fn add(
        &mut self,
        core: &Arc<Core>,
        lane: &Arc<Lane>,
        fence: ARef<AnyFence>,
        is_internal: bool,
    ) -> Result {
        // Its order is that of the queue.
        if fence.context() == lane.context.id() || fence.is_signaled() {
            return Ok(());
        }

        let pending = match &self.pending {
            Some(pending) => pending.clone(),
            None => {
                let pending = Arc::new(
                    Pending {
                        count: Atomic::new(1),
                        core: core.clone(),
                        lane: lane.clone(),
                    },
                    GFP_KERNEL,
                )?;

                self.pending.insert(pending).clone()
            }
        };
        self.list.reserve(1, GFP_KERNEL)?;
        let memory = KBox::new_uninit(GFP_KERNEL)?;

        // The callback may come before the next line.
        pending.count.fetch_add(1, Relaxed);
        match memory.write_pin_init(FenceCallbackRegistration::new(fence, Wake(pending.clone()))) {
            Ok(callback) => {
                // There is room for it.
                let _ = self.list.push_within_capacity(callback);
                self.external |= !is_internal;
                Ok(())
            }
            // It has just signalled, or the module is going away.
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

    /// Tells whether all of them have signalled, once the job is in its queue.
    pub(super) fn are_over(&self) -> bool {
        self.pending
            .as_ref()
            .is_none_or(|pending| pending.count.load(Acquire) == 0)
    }

    /// Takes note that the job is in its queue, whose lock is held.
    pub(super) fn queued(&self) {
        if let Some(pending) = &self.pending {
            // Who reads it holds the lock. The callback that takes off the last one waits for that.
            pending.count.fetch_sub(1, Full);
        }
    }

    /// Returns how many have not signalled, before the job is in its queue.
    fn left(&self) -> u32 {
        self.pending
            .as_ref()
            .map_or(0, |pending| pending.count.load(Relaxed).saturating_sub(1))
    }
}

/// What a job of a queue needs, before there is a job: the memory, and what it depends on.
///
/// For jobs with fences of their own; others are a [`Job`]. Whoever makes their fences sees to it
/// that they signal in the order in which the jobs are pushed, and ends them in [`RingOps::ended`].
///
/// The ring waits for it when it goes. So it is held for a short time, where the driver is bound.
#[must_use = "nothing is queued if the entry is dropped"]
pub struct Entry<T: RingOps> {
    core: Arc<Core>,
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
    pub(super) fn new(core: &Arc<Core>, lane: &Arc<Lane>, permit: Option<Permit>) -> Result<Self> {
        Ok(Self {
            core: core.clone(),
            lane: lane.clone(),
            group: lane.group,
            node: KBox::new_uninit(GFP_KERNEL)?,
            payload: KBox::new_uninit(GFP_KERNEL)?,
            deps: Deps::new(),
            permit,
            counted: Counted::new(core, lane.is_kernel())?,
            _ops: PhantomData,
        })
    }

    /// Makes the job wait for a fence of any kind, which is over then, with or without an error.
    ///
    /// May sleep. A fence of the same queue is left out.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn depend(&mut self, fence: impl Into<ARef<AnyFence>>) -> Result {
        self.add(fence.into(), false)
    }

    /// As [`Self::depend`], for a fence that is known not to be a container.
    ///
    /// # Errors
    ///
    /// Those of [`Self::depend`].
    pub fn depend_on_fence(&mut self, fence: &Fence) -> Result {
        let is_internal = self.group.is_some_and(|group| group.has_internal(fence));

        self.add(fence.into(), is_internal)
    }

    /// Makes the job wait for all fences of an object up to `usage`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::depend`].
    pub fn depend_on(&mut self, resv: &LockedResv<'_>, usage: Usage) -> Result {
        resv.fences(usage)
            .try_for_each(|fence| self.depend_on_fence(fence))
    }

    /// Tells whether the job depends on a fence that is not an internal one of the group.
    #[inline]
    pub fn is_external(&self) -> bool {
        self.deps.external
    }

    fn add(&mut self, fence: ARef<AnyFence>, is_internal: bool) -> Result {
        self.deps.add(&self.core, &self.lane, fence, is_internal)
    }

    /// Puts a job, whose fence is `fence`, into the queue. What was closed meanwhile cancels it.
    ///
    /// Does not sleep, does not allocate.
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
                payload,
                fence,
                deps: self.deps,
                _permit: self.permit,
                _counted: self.counted,
            },
        );

        trace::submit(&self.core.name, id, dependencies, external);
        self.core.push(&self.lane, node);
    }
}

/// A job that is not in its queue yet. Dropping it is as if it had never been.
///
/// It has no number, and cannot be waited for: that comes with [`Self::submit`], which cannot fail.
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

    /// Puts the job into its queue, and returns its fence. If the queue was closed meanwhile the job
    /// is cancelled.
    ///
    /// `publish` is called with the fence before the job can begin: it adds the fence to
    /// reservations, in which there is room. It must not allocate memory in a way that waits, nor
    /// take a reservation.
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

// SPDX-License-Identifier: GPL-2.0

//! Other tasks that a test makes wait, or waits for.
//!
//! What a test waits for must not be over before the wait begins: a delay of the other task is
//! either too short for a busy host or lost time.

use crate::worker::{
    self,
    soon, //
};
use kernel::{
    bindings,
    dma_buf::fence::{
        DriverFence,
        FenceContext,
        FenceContextOps,
        FenceGroup, //
    },
    dma_resv::{
        LockedResv,
        Usage, //
    },
    drm::gem::ttm::{
        Object,
        TtmObject, //
    },
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        Completion,
        Mutex, //
    },
    task::Task, //
};

/// What signals fences when a test says so.
pub(crate) struct Ring;

impl FenceContextOps for Ring {
    const DRIVER_NAME: &'static CStr = c"vram_kunit";
    type Data = ();
}

/// Returns a fence of work that is not done yet.
pub(crate) fn job() -> Result<DriverFence<Ring>> {
    Ok(FenceContext::<Ring>::new(c"ring")?
        .new_fence_allocation(())?
        .new_fence())
}

/// Adds such a fence to a reservation.
pub(crate) fn work(resv: &mut LockedResv<'_>, usage: Usage) -> Result<DriverFence<Ring>> {
    add(job()?, resv, usage)
}

/// As [`work`], for work of a client of the device whose fences are `group`.
pub(crate) fn work_of_client(
    group: FenceGroup,
    resv: &mut LockedResv<'_>,
    usage: Usage,
) -> Result<DriverFence<Ring>> {
    let job = FenceContext::<Ring>::new_in(c"client", group)?
        .new_fence_allocation(())?
        .new_fence();

    add(job, resv, usage)
}

fn add(
    job: DriverFence<Ring>,
    resv: &mut LockedResv<'_>,
    usage: Usage,
) -> Result<DriverFence<Ring>> {
    resv.reserve_fences(1)?
        .next()
        .ok_or(ENOSPC)?
        .add_fence(job.fence(), usage);
    Ok(job)
}

#[pin_data]
struct Answer<R> {
    #[pin]
    ret: Mutex<Option<R>>,
    #[pin]
    done: Completion,
}

/// What another task does.
pub(crate) struct Meanwhile<R>(Arc<Answer<R>>);

impl<R: Send + Unpin + 'static> Meanwhile<R> {
    /// Lets a worker call `body`, which is dropped before the end.
    pub(crate) fn new(body: impl FnOnce() -> R + Send + 'static) -> Result<Self> {
        let answer = Arc::pin_init(
            pin_init!(Answer {
                ret <- new_mutex!(None),
                done <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        let told: Arc<Answer<R>> = answer.clone();

        worker::spawn(move || {
            let ret = body();

            *told.ret.lock() = Some(ret);
            told.done.complete_all();
        })?;
        Ok(Self(answer))
    }

    /// Returns whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.0.ret.lock().is_some()
    }

    /// Waits for the end, and returns the result.
    pub(crate) fn end(self) -> Result<R> {
        self.0.done.wait_for_completion();
        let ret = self.0.ret.lock().take();

        ret.ok_or(ENODATA)
    }
}

/// Returns whether the work ends that the layers have queued beside work of other drivers: clients
/// must not make it wait for devices.
pub(crate) fn shared_queue_is_idle() -> Result<bool> {
    let flushed = Meanwhile::new(|| {
        // SAFETY: The queue is valid.
        unsafe { bindings::__flush_workqueue(bindings::system_long_wq) };
    })?;

    Ok(soon(|| flushed.is_over()))
}

/// Lets another task go on when it is dropped.
pub(crate) struct Blocked(Arc<Completion>);

impl Blocked {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Arc::pin_init(Completion::new(), GFP_KERNEL)?))
    }

    /// Returns what the other task waits for.
    pub(crate) fn end(&self) -> Arc<Completion> {
        self.0.clone()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.0.complete_all();
    }
}

/// Makes another task reserve an object until the result is dropped.
pub(crate) fn reserve<T: TtmObject + 'static>(object: &ARef<Object<T>>) -> Result<Blocked> {
    let (object, blocked) = (object.clone(), Blocked::new()?);
    let (held, end) = (Blocked::new()?, blocked.end());
    let is_held = held.end();

    worker::spawn(move || {
        let reserved = object.reserve(false);

        drop(held);
        end.wait_for_completion();
        drop(reserved);
    })?;
    is_held.wait_for_completion();
    Ok(blocked)
}

fn sleeps(task: &Task) -> bool {
    // SAFETY: The task is valid. The scheduler may write the state at any time.
    let state = unsafe { (&raw const (*task.as_ptr()).__state).read_volatile() };

    state & (bindings::TASK_INTERRUPTIBLE | bindings::TASK_UNINTERRUPTIBLE) != 0
}

/// Calls `body`. Once it sleeps, a worker calls `then`, for which `body` waits.
///
/// # Errors
///
/// `ETIME` if `body` has not slept: then nothing was tested. `ENOMEM` if memory runs out.
pub(crate) fn until<R>(
    then: impl FnOnce() + Send + 'static,
    body: impl FnOnce() -> R,
) -> Result<R> {
    let me: ARef<Task> = ARef::from(&**kernel::current!());
    let (over, has_slept) = (
        Arc::new(Atomic::new(false), GFP_KERNEL)?,
        Arc::new(Atomic::new(false), GFP_KERNEL)?,
    );
    let done = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
    let (is_over, slept, is_done) = (over.clone(), has_slept.clone(), done.clone());

    worker::spawn(move || {
        let mut asleep = false;

        soon(|| {
            asleep = sleeps(&me);
            asleep || is_over.load(Acquire)
        });
        // The sleep may be the one below.
        slept.store(asleep && !is_over.load(Acquire), Relaxed);
        then();
        is_done.complete_all();
    })?;
    let ret = body();
    over.store(true, Release);
    done.wait_for_completion();
    if !has_slept.load(Relaxed) {
        pr_err!("the test did not wait\n");
        return Err(ETIME);
    }
    Ok(ret)
}

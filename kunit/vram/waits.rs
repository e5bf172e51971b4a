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
    drm::{
        gem::ttm::Object,
        ttm::TtmObject, //
    },
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
        Completion, //
    },
    task::Task, //
};

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

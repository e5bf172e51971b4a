// SPDX-License-Identifier: GPL-2.0

//! A worker that does something while a test waits for it, and how long a test waits.

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue::{
        self,
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};

/// A closure on a workqueue.
///
/// [`kernel::workqueue::Queue::try_spawn`] would do, but its lock class is shared between the
/// kernel and each module that calls it, each with its own copy of the name of the class: lockdep
/// warns about that, and turns itself off.
#[pin_data]
struct Worker<T> {
    #[pin]
    work: Work<Worker<T>>,
    body: Option<T>,
}

impl_has_work! {
    impl{T} HasWork<Self> for Worker<T> { self.work }
}

impl<T: FnOnce()> WorkItem for Worker<T> {
    type Pointer = Pin<KBox<Self>>;

    fn run(mut this: Pin<KBox<Self>>) {
        if let Some(body) = this.as_mut().project().body.take() {
            body()
        }
    }
}

/// Lets a worker run a closure.
pub(crate) fn spawn<T: 'static + Send + FnOnce()>(body: T) -> Result {
    let worker = KBox::pin_init(
        pin_init!(Worker {
            work <- new_work!("vram_kunit::Worker"),
            body: Some(body),
        }),
        GFP_KERNEL,
    )?;

    workqueue::system_unbound().enqueue(worker);
    Ok(())
}

/// Returns how long a test waits for an event that has to happen, in milliseconds.
pub(crate) fn limit() -> u32 {
    20_000 * crate::module_parameters::slower.value().max(1)
}

/// Waits until `is` holds. Returns whether it does.
pub(crate) fn soon(mut is: impl FnMut() -> bool) -> bool {
    for _ in 0..limit() {
        if is() {
            return true;
        }
        fsleep(Delta::from_millis(1));
    }
    is()
}

/// Gives another task time to do what it must not do.
pub(crate) fn pause() {
    fsleep(Delta::from_millis(20));
}

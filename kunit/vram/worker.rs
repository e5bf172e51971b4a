// SPDX-License-Identifier: GPL-2.0

//! A worker that does something while a test waits for it.

use kernel::{
    prelude::*,
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

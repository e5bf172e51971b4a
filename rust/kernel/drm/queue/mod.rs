// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queues of jobs for the rings of a device.
//!
//! - A [`Ring`] is one ring of the hardware, or another unit that does jobs one after the other. It
//!   belongs to the data of the driver's binding and runs jobs by [`RingOps`].
//! - A [`Queue`] belongs to one client of a ring and may outlive the ring. The kernel's own queue
//!   of a ring is [`Ring::kernel`]; its jobs go first. *Late* jobs of the kernel wait for clients
//!   and have queues of their own ([`Queue::late`]).
//! - A [`Job`] collects its dependencies and is submitted by value. Its [`Fence`] signals when the
//!   job is done.
//!
//! The module knows nothing about memory. A job is connected to objects by the fences that it
//! depends on and the reservations that its fence is added to.
//!
//! # Fences, and the order of jobs
//!
//! Each queue has a fence context and runs its jobs in the order of their submission. A job with
//! unsignalled dependencies holds up the jobs behind it. Between queues only fences define an
//! order, even on the same ring: a job depends on the fences of the work it needs
//! ([`Job::depend`]). So fences alone protect memory on its way from one owner to the next.
//!
//! Any fence can be a dependency, including containers and the fences of other devices. No task
//! waits for dependencies: a callback counts them down and the ring chooses among the queues whose
//! first job has none left. A dependency signalled with an error counts like any other.
//!
//! The fences of a device form a [`FenceGroup`]. A job has an external fence if one of its
//! dependencies is not an internal fence of the group. The owner of the memory must not let its own
//! jobs wait for other devices, so it waits for an external fence before it creates a job.
//!
//! # Fairness, and bounds
//!
//! A ring runs [`Config::credits`] jobs at a time. A job of the kernel goes first. Then each queue
//! has its turn with one job. So each other client runs one job between the submission of a job
//! without dependencies and its end, apart from jobs already in the hardware. The kernel works for
//! clients too: it clears their new objects, for example. After eight kernel jobs in a row a client
//! has its turn, so no client can keep the others from the ring. Each late job has a queue of its
//! own. Together they take every other turn of the kernel.
//!
//! A client may have as many jobs as the limit of [`Ring::queue`]. Each job needs a [`Permit`].
//! [`Queue::permit`] waits for it interruptibly and is called before any lock is taken. The permit
//! is returned when the job is freed. The queue of the kernel has no bound. [`LazyQueue`] creates
//! the queue of an open file for its first job.
//!
//! # Lifetimes
//!
//! The hardware passed to [`RingOps`], [`RingOps::Hw`], is dropped with the ring, and so is each
//! job. Devres drops the ring at the latest when the driver is unbound. A fence outlives all of
//! them and may signal a moment later (see [`Ring::end`]): no part of it is in the module of the
//! driver. A [`Done`] signalled too late does nothing.
//!
//! A ring ends in these steps:
//!
//! 1. [`Ring::close`]: clients cannot add jobs any more and the jobs in their queues are cancelled.
//!    Each fence signals `ECANCELED` in the order of its context. Running jobs go on. A driver
//!    closes all of its rings in `drm::Driver::unplug()`, before it waits for its clients: they may
//!    be waiting for a job.
//! 2. When the ring is dropped, or earlier by [`Ring::end`], the jobs of the kernel are done. They
//!    depend on the device alone: objects leaving VRAM arrive. Jobs in the hardware end or time
//!    out. If the hardware is gone ([`RingOps::is_gone`]), they end at once.
//! 3. All jobs are freed. Then the worker stops. [`RingOps::Hw`] is dropped last.
//!
//! Dropping a [`Queue`] cancels its waiting jobs and does not wait.
//!
//! # Timeouts
//!
//! The driver is asked about the oldest job ([`RingOps::timed_out`]) if no job ends for
//! [`Config::timeout`] or if the driver detects a stopped ring ([`Done::expire`]). It may then have
//! the ring reset ([`RingOps::reset`]). The fence of the oldest job signals the error and the
//! driver is notified ([`RingOps::ended`]). Then the jobs behind it in the hardware are run again.
//! If the reset fails, the ring is broken: all jobs end with the error of the reset. Kernel jobs do
//! so only after their dependencies have signalled.
//!
//! The driver says whether the job was to blame ([`Verdict::Hung`]). A client's queue with
//! [`HANGS_MAX`] hung jobs is closed: its other jobs are cancelled and it gets no more.
//!
//! After [`Ring::close`] the timeout is two seconds if [`Config::timeout`] is longer. So the unbind
//! of a driver does not wait as long as a client may.
//!
//! # Memory, and sleeping
//!
//! All memory of a job is allocated when the job is created: submitting it cannot fail. The worker
//! of the ring has a workqueue of its own that works under memory pressure. From the submission of
//! a job until its fence signals, the worker neither allocates memory nor takes a reservation.
//! Lockdep checks this ([`SignallingSection`]). Freeing a job may take the reservation of an
//! import, so a system worker does it.
//!
//! # Locking
//!
//! From the outside to the inside; reservations are outside of all of them:
//!
//! 1. the mutex of a queue, from when a fence gets its number until the job is in the queue;
//! 2. the mutex of the worker while a job starts or the ring is reset;
//! 3. the lock of a fence (its callbacks count dependencies down);
//! 4. the spinlock of a ring, with interrupts disabled. No fence signals while it is held.
//!
//! The first two are never held together. The mutex of the permits of a queue is taken with none of
//! the others held. Only the spinlock is taken inside it.
//!
//! [`Fence`]: crate::dma_buf::fence::Fence
//! [`FenceGroup`]: crate::dma_buf::fence::FenceGroup
//! [`SignallingSection`]: crate::dma_buf::fence::SignallingSection
//!
//! # Examples
//!
//! A ring whose hardware adds numbers.
//!
//! ```
//! use kernel::{
//!     device,
//!     dma_buf::fence::FenceGroup,
//!     drm::queue::{
//!         Config,
//!         Done,
//!         HwInit,
//!         HwOf,
//!         Ring,
//!         RingOps, //
//!     },
//!     faux,
//!     prelude::*,
//!     sync::atomic::{
//!         Atomic,
//!         Relaxed, //
//!     },
//!     types::ForLt, //
//! };
//!
//! struct Sum;
//!
//! /// Data that exists while the driver is bound.
//! struct Adder<'a> {
//!     sum: Atomic<u32>,
//!     _dev: &'a device::Device<device::Bound>,
//! }
//!
//! impl RingOps for Sum {
//!     type Hw = ForLt!(Adder<'_>);
//!     type Job = u32;
//!
//!     fn run(hw: &HwOf<'_, Self>, job: &mut u32, done: Done) {
//!         hw.sum.fetch_add(*job, Relaxed);
//!         // Hardware does this in the handler of its interrupt.
//!         done.signal(Ok(()));
//!     }
//! }
//!
//! struct Init;
//!
//! impl HwInit<Sum> for Init {
//!     fn init<'a>(
//!         self,
//!         dev: &'a device::Device<device::Bound>,
//!     ) -> impl PinInit<Adder<'a>, Error> {
//!         Ok(Adder {
//!             sum: Atomic::new(0),
//!             _dev: dev,
//!         })
//!     }
//! }
//!
//! let faux = faux::Registration::new(c"drm_queue_example", None)?;
//! let parent: &faux::Device<device::Bound> = faux.as_ref();
//! let dev: &device::Device<device::Bound> = parent.as_ref();
//! let config = Config {
//!     name: c"sum",
//!     credits: 1,
//!     timeout: None,
//! };
//! let ring = Ring::<Sum>::new(dev, &config, Init)?;
//!
//! // The part of a client, which may have four jobs at a time.
//! let queue = ring.queue(4, FenceGroup::new())?;
//! let permit = queue.permit()?;
//! let first = queue.job(Some(permit), 3)?.submit(|_fence| ());
//!
//! let mut second = queue.job(Some(queue.permit()?), 4)?;
//! second.depend(first.clone())?;
//! let second = second.submit(|_fence| ());
//! second.wait(true)?;
//! assert_eq!(first.status(), Some(Ok(())));
//! assert_eq!(ring.hw().sum.load(Relaxed), 7);
//!
//! // A client whose ring is gone cannot add jobs any more.
//! drop(ring);
//! assert_eq!(queue.job(None, 1).err(), Some(ENODEV));
//! # Ok::<(), Error>(())
//! ```

mod client;
mod done;
mod fifo;
mod job;
mod lazy;
mod recovery;
mod ring;
mod scheduler;
mod trace;

pub use self::{
    client::{
        Permit,
        Queue,
        HANGS_MAX, //
    },
    done::{
        Done,
        WaitingJobs, //
    },
    job::{
        Entry,
        Job, //
    },
    lazy::LazyQueue,
    ring::{
        Config,
        HwInit,
        HwOf,
        Ring,
        RingOps,
        Verdict, //
    }, //
};

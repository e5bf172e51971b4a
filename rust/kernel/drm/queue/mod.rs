// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queues of jobs for the rings of a device.
//!
//! - A [`Ring`] stands for one ring of the hardware, or for another unit that does jobs one after
//!   the other. It belongs to the data that exists while the driver is bound, and runs jobs by
//!   [`RingOps`].
//! - A [`Queue`] belongs to one client of a ring. It may outlive the ring. The kernel has a queue
//!   of its own for each ring, [`Ring::kernel`], whose jobs go first, and others for its *late*
//!   jobs, which wait for clients ([`Queue::late`]).
//! - A [`Job`] collects its dependencies, and is submitted by value. Its [`Fence`] signals when it
//!   is done.
//!
//! The module knows nothing about memory: the fences that a job depends on, and the reservations
//! that its fence is added to, connect it to objects.
//!
//! # Fences, and the order of jobs
//!
//! Each queue has a fence context. Its jobs run in the order in which they were submitted, and a
//! job that has to wait for its dependencies holds up those behind it. Between queues only fences
//! define an order: a job that needs the work of another queue, even of the same ring, depends on
//! its fence ([`Job::depend`]). So memory that passes from one owner to the next is protected by
//! fences alone.
//!
//! Dependencies are any fences, including those of other devices and containers. No task waits for
//! them: a callback counts them down, and the ring chooses among the queues whose first job has
//! none left. A dependency that signals an error counts like any other.
//!
//! The fences of a device are a [`FenceGroup`], and the fence of a job that depends on a fence
//! which is not an internal one of the group is external. The owner of the memory, which must not
//! let its own jobs wait for other devices, waits for such a fence before it makes a job.
//!
//! # Fairness, and bounds
//!
//! A ring runs [`Config::credits`] jobs at a time. A job of the kernel goes first; then each queue
//! has its turn with one job. So between the submission of a job without dependencies and its end
//! each other client runs one job, apart from jobs that are in the hardware already. The kernel
//! works for clients, too, such as to clear the objects that they make: after eight of its jobs in
//! a row a client has its turn, so that none can keep the others from the ring. Late jobs, of which
//! each has a queue, take every other turn of the kernel.
//!
//! A client may have as many jobs as the limit of [`Ring::queue`]. For each it needs a [`Permit`],
//! for which it waits interruptibly before it takes any lock: [`Queue::permit`]. The permit is
//! returned when the job is freed. The queue of the kernel has no bound. [`LazyQueue`] makes the
//! queue of an open file for its first job.
//!
//! # Lifetimes
//!
//! The hardware that [`RingOps`] gets, [`RingOps::Hw`], is dropped with the ring, and so is each
//! job. Devres drops the ring at the latest when the driver is unbound. A fence outlives all of
//! that, and may signal a moment later, see [`Ring::end`]: no part of it is in the module of the
//! driver. A [`Done`] that is signalled too late does nothing.
//!
//! A ring ends in these steps:
//!
//! 1. [`Ring::close`]: no more jobs are accepted from clients, and those in their queues are
//!    cancelled: each fence signals `ECANCELED`, in the order of its context. Jobs that have begun
//!    go on. A driver closes all of its rings before it waits for its clients, which may wait for a
//!    job: in `drm::Driver::unplug()`.
//! 2. When the ring is dropped, or before by [`Ring::end`], the jobs of the kernel are done, which
//!    depend on the device alone: objects that leave VRAM arrive. Jobs in the hardware end, or time
//!    out; if the hardware is gone ([`RingOps::is_gone`]) they end at once.
//! 3. All jobs are freed, then the worker stops, then [`RingOps::Hw`] is dropped.
//!
//! Closing a [`Queue`] cancels jobs that have not begun, and does not wait.
//!
//! # Timeouts
//!
//! If no job ends for [`Config::timeout`], or the driver detects that the ring has stopped
//! ([`Done::expire`]), the driver is asked about the oldest one ([`RingOps::timed_out`]) and may
//! have the ring reset ([`RingOps::reset`]). The fence of that job signals the error, the driver is
//! notified ([`RingOps::ended`]), and then the jobs behind it in the hardware are run again. If the
//! reset fails the ring is broken: all jobs end with the error of the reset, those of the kernel
//! behind what they depend on.
//!
//! The driver says whether the job was to blame ([`Verdict::Hung`]). A queue of a client of which
//! [`HANGS_MAX`] jobs have hung is closed: its other jobs are cancelled, and it gets no more.
//!
//! From [`Ring::close`] on, the timeout is two seconds if [`Config::timeout`] is longer, so that
//! the unbind of a driver does not wait as long as a client may.
//!
//! # Memory, and sleeping
//!
//! All memory of a job is allocated when it is made: submitting it cannot fail. From then on to the
//! signal of its fence the worker of the ring, which has a workqueue of its own that works under
//! memory pressure, neither allocates memory nor takes a reservation, and lockdep checks that
//! ([`SignallingSection`]). Freeing a job may take the reservation of an import, so a worker of the
//! system does it.
//!
//! # Locking
//!
//! From the outside to the inside; reservations are outside of all of them:
//!
//! 1. the mutex of a queue, from when a fence gets its number until the job is in the queue;
//! 2. the mutex of the worker, while a job starts, or the ring is reset;
//! 3. the lock of a fence, whose callbacks count dependencies down;
//! 4. the spinlock of a ring, with interrupts disabled. No fence signals while it is held.
//!
//! The first two are never held together. The mutex of the permits of a queue is taken with none of
//! the others held; only the spinlock is taken inside of it.
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

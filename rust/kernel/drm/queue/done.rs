// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The end of a job, which the hardware reports.

use super::{
    scheduler::Scheduler,
    trace, //
};
use crate::{
    prelude::*,
    sync::Arc, //
};

/// The jobs that wait in a queue of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingJobs {
    /// The context of their fences.
    pub context: u64,
    /// The sequence number of the fence of the first job.
    pub first: u64,
    /// How many jobs there are.
    pub count: usize,
    /// The first job depends on fences that have not signalled.
    pub is_blocked: bool,
}

/// The driver's handle of a job that runs, by which it reports the end of the job.
///
/// A driver keeps it with the entry of the hardware's ring. Dropping it ends the job with
/// `ECANCELED`, except in [`RingOps::reset`](super::RingOps::reset). It may outlive the ring. It
/// does nothing once the run is over: when the job was ended by a timeout, or is run again.
#[must_use = "the job ends with an error when this is dropped"]
pub struct Done {
    scheduler: Arc<Scheduler>,
    slot: usize,
    ticket: u64,
    /// [`None`] if the driver has reported no result.
    result: Option<Result>,
}

impl Done {
    pub(super) fn new(scheduler: &Arc<Scheduler>, slot: usize, ticket: u64) -> Self {
        Self {
            scheduler: scheduler.clone(),
            slot,
            ticket,
            result: None,
        }
    }

    /// Ends the job, with the error if there is one: its writes must be visible to all by now.
    ///
    /// Its fence signals, once those before it in its context have signalled. May be called in any
    /// context, but not from a callback of a fence.
    #[inline]
    pub fn signal(mut self, result: Result) {
        self.result = Some(result);
        // The rest is done by `drop()`.
    }

    /// Reports that the ring has stopped, or that its jobs seem not to end: then
    /// [`RingOps::timed_out`](super::RingOps::timed_out) is called for the oldest one soon, however
    /// long it has been running. May be called in any context, and repeatedly.
    #[inline]
    pub fn expire(&self) {
        self.scheduler.expire(self.slot, self.ticket);
    }

    /// Writes to `queues` which jobs wait in the queues of the ring, beginning with the queue of
    /// the kernel, as far as there is room. This is for the dump of a ring that makes no progress.
    /// Late jobs are not among them: the jobs of clients that they wait for are.
    ///
    /// Does not wait. May be called in any context.
    pub fn waiting_jobs(&self, queues: &mut [Option<WaitingJobs>]) {
        self.scheduler.waiting_jobs(queues);
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        let Some((fence, id)) = self.scheduler.end(self.slot, self.ticket, self.result) else {
            return;
        };
        let result = self.result.unwrap_or(Err(ECANCELED));

        trace::done(&self.scheduler.name, id, result);
        // Its callbacks run now, without the lock.
        if let Some(fence) = fence {
            fence.signal(result);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The end of a job as reported by the hardware.

use super::{
    scheduler::Scheduler,
    trace, //
};
use crate::{
    prelude::*,
    sync::Arc, //
};

/// The waiting jobs of one queue of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingJobs {
    /// The context of their fences.
    pub context: u64,
    /// The sequence number of the fence of the first job.
    pub first: u64,
    /// How many jobs there are.
    pub count: usize,
    /// The first job has unsignalled dependencies.
    pub is_blocked: bool,
}

/// The driver's handle of a running job. It reports the end of the job.
///
/// A driver keeps it with the entry of the hardware's ring. Dropping it ends the job with
/// `ECANCELED`, except in [`RingOps::reset`](super::RingOps::reset). It may outlive the ring. It
/// has no effect once the run is over: when a timeout has ended the job or the job is run again.
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

    /// Ends the job with its result. The writes of the job must be visible to all by now.
    ///
    /// Its fence signals once the earlier fences of its context have signalled. May be called in
    /// any context but not from a callback of a fence.
    #[inline]
    pub fn signal(mut self, result: Result) {
        self.result = Some(result);
        // The rest is done by `drop()`.
    }

    /// Reports that the ring has stopped or that its jobs seem not to end.
    /// [`RingOps::timed_out`](super::RingOps::timed_out) is then soon called for the oldest job,
    /// however long it has been running. May be called in any context and repeatedly.
    #[inline]
    pub fn expire(&self) {
        self.scheduler.expire(self.slot, self.ticket);
    }

    /// Writes the waiting jobs of each queue of the ring to `queues` as far as there is room,
    /// beginning with the queue of the kernel. This is for the dump of a stuck ring. Late jobs are
    /// not among them, but the client jobs that they wait for are.
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

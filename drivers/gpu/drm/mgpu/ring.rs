// SPDX-License-Identifier: GPL-2.0

//! A ring of the device: its jobs, their order and their completion.
//!
//! Jobs come from [`drm::queue`](kernel::drm::queue), [`CREDITS`] of them at a time. The queues
//! decide which jobs run and when a job counts as hung. A job is written to the ring in parts
//! because the size of an entry is limited. A part is a *submission*: some entries for the work,
//! and a fence with a number of its own and an interrupt. Up to [`SLOTS`] submissions are in the
//! ring at a time. They belong to several jobs if these are short. All memory for them is allocated
//! once.
//!
//! [`Ring::advance`] ends the jobs done by the device. It is called for an interrupt and repeatedly
//! as long as the ring is busy, so a lost or early interrupt only delays a job. The queue resets
//! the ring if there is no progress for a while, the ring has stopped with an error or the device
//! is gone, see [`recover`](crate::recover). The job causing this fails and the jobs behind it are
//! run again from their beginning. Doing the beginning of a copy twice is harmless because source
//! and destination never overlap and jobs are done in their order. A job of the compute engine
//! fails instead if it may be partly done, see [`Entries::REPEATS`]. If the whole device is reset
//! by this driver or by the PCI core, the jobs in the ring fail and the jobs behind them are run.
//!
//! # Locking
//!
//! One mutex. Jobs are also ended with it held, so they end in their order. It is taken in the path
//! to the signal of a fence: while it is held, no allocation waits and no reservation is taken.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::queue::{
        Done,
        Verdict, //
    },
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    },
    time::{
        Delta,
        Instant,
        Monotonic,
        Msecs, //
    }, //
};

use crate::{
    memory::{
        Fault,
        RingStatus,
        Status,
        Words, //
    },
    module_parameters,
    recover::{
        Recovery,
        Reset, //
    },
    regs::Regs,
    report::{
        Event,
        JobState, //
    }, //
};

/// The number of entries of the ring.
const ENTRIES: u32 = 64;

/// The number of 64-bit words in an entry.
pub(crate) const ENTRY: usize = 8;

/// The maximum number of submissions in the ring.
const SLOTS: usize = 8;

/// The number of queued jobs in the ring at a time.
pub(crate) const CREDITS: usize = SLOTS;

/// The maximum number of entries of a submission.
const SUBMISSION: u32 = ENTRIES / SLOTS as u32;

/// The maximum number of job entries in a submission. Its last entry is the fence.
pub(crate) const OPERATIONS: u32 = SUBMISSION - 1;

const _: () = assert!(ENTRIES.is_power_of_two());

/// The shortest time before a job counts as hung, in milliseconds.
const TIMEOUT_MIN: u32 = 100;

/// The time without progress after which each poll also checks whether the device is gone, in
/// milliseconds.
const STILL: i64 = 100;

/// Returns the time before a job counts as hung in milliseconds.
pub(crate) fn timeout_ms() -> u32 {
    module_parameters::timeout_ms.value().max(TIMEOUT_MIN)
}

/// The operation at the end of a submission.
const FENCE: u64 = 1;

/// The flag of a fence to raise an interrupt.
const INTERRUPT: u64 = 1;

/// The entries written to the ring by a job.
pub(crate) trait Entries: Send + Sync + 'static {
    /// Whether a partly done job may be run again.
    const REPEATS: bool;

    /// The number of words of memory needed by a part beside its entries.
    const WORDS: usize;

    /// The written part of the job. It begins with the default, also after a reset.
    type At: Default + Send;

    /// Writes the next part and returns whether this is the last one.
    ///
    /// Called in a [`SignallingSection`](kernel::dma_buf::fence::SignallingSection) with a lock
    /// held. Must neither allocate memory in a way that waits nor take a reservation.
    ///
    /// # Errors
    ///
    /// The job ends with the error once the parts written before are done.
    fn write(&self, at: &mut Self::At, part: &mut Part<'_>) -> Result<bool>;

    /// Returns the number of bytes of the job for a dump.
    fn bytes(&self) -> u64;

    /// Notes before the end of the job that it has failed by itself because of a fault or a hang.
    /// Called in the same context as [`Self::write`].
    fn failed(&self, _fault: Option<Fault>) {}
}

/// The space for a part of a job: entries of the ring and words of memory that these entries point
/// to.
pub(crate) struct Part<'a> {
    entries: &'a Words,
    /// The number of entries written since the last reset.
    written: u32,
    /// The number of entries of this part.
    count: u32,
    words: &'a Words,
    /// The index of the first word for this part.
    first: usize,
    /// The number of words for this part.
    len: usize,
}

impl Part<'_> {
    /// Appends an entry. There is room for [`OPERATIONS`].
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if there is no room.
    /// - `ENODEV` if the driver of the PCI device is not bound any more.
    pub(crate) fn push(&mut self, entry: [u64; ENTRY]) -> Result {
        if self.count == OPERATIONS {
            return Err(ENOSPC);
        }
        self.push_any(entry)
    }

    fn push_any(&mut self, entry: [u64; ENTRY]) -> Result {
        let at = (self.written % ENTRIES) as usize * ENTRY;

        self.entries.write(at, entry)?;
        self.written = self.written.wrapping_add(1);
        self.count += 1;
        Ok(())
    }

    /// Appends the fence of the submission `number` and returns the number of entries of the
    /// submission.
    fn end(mut self, number: u64) -> Result<u32> {
        self.push_any([FENCE, number, INTERRUPT, 0, 0, 0, 0, 0])?;
        Ok(self.count)
    }

    /// Writes words from `at` on and returns the bus address of the first one.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if this part has too few words.
    /// - `ENODEV` if the driver of the PCI device is not bound any more.
    pub(crate) fn write(&self, at: usize, values: impl Iterator<Item = u64>) -> Result<u64> {
        let mut values = values.fuse();
        let left = self.len.checked_sub(at).ok_or(ENOSPC)?;

        self.words
            .write(self.first + at, values.by_ref().take(left))?;
        if values.next().is_some() {
            return Err(ENOSPC);
        }
        Ok(self.words.address(self.first + at))
    }
}

/// A job taken from the queue.
struct Begun<E: Entries> {
    entries: Arc<E>,
    at: E::At,
    /// A part of it was written.
    is_begun: bool,
    /// The number of the last submission of the job once this is known.
    last: Option<u64>,
    /// The result of the job when it ends.
    result: Result,
    done: Done,
}

/// The state of the ring.
struct State<E: Entries> {
    /// The jobs in their order. There are at most [`CREDITS`].
    jobs: KVec<Begun<E>>,
    /// The number of entries written since the last reset.
    written: u32,
    /// The number of the last submission.
    submitted: u64,
    /// The number of the last submission done or lost in a reset.
    reached: u64,
    /// The number of completed entries at the last check. A job may have many large entries.
    done: u32,
    /// The time of the last progress.
    since: Instant<Monotonic>,
    /// The time of the last progress of submissions.
    fenced: Instant<Monotonic>,
    /// The epoch of this state.
    epoch: u64,
    /// The ring was reset and no submission was written since.
    is_unproven: bool,
    /// The number of the first submission since the last reset. This is a fence of the driver. The
    /// ring works if it has reached this fence.
    proof: u64,
}

impl<E: Entries> Begun<E> {
    /// Ends the job.
    fn end(self) {
        // The queue holds another reference until the signal, so the entries are not freed here.
        drop(self.entries);
        self.done.signal(self.result);
    }

    /// Ends the job with an error.
    fn fail(mut self, error: Error) {
        self.result = Err(error);
        self.end();
    }
}

impl<E: Entries> State<E> {
    fn is_busy(&self) -> bool {
        self.submitted != self.reached
    }

    /// Returns whether the ring does not even reach the fence of the driver behind its reset. Then
    /// no job is to blame.
    fn is_dead(&self) -> bool {
        self.reached < self.proof
    }

    /// Notes that the first job has failed by itself.
    fn note_failure(&self, fault: Option<Fault>) {
        if let Some(job) = self.jobs.first().filter(|job| job.is_begun) {
            job.entries.failed(fault);
        }
    }

    /// Ends the jobs up to a completed submission. Returns whether there was progress.
    fn reach(&mut self, fence: u64) -> bool {
        let fence = fence.min(self.submitted);
        let is_progress = self.reached < fence;

        if is_progress {
            self.reached = fence;
            self.since = Instant::now();
            self.fenced = self.since;
        }
        while self
            .jobs
            .first()
            .is_some_and(|job| job.last.is_some_and(|last| last <= self.reached))
        {
            if let Ok(job) = self.jobs.remove(0) {
                job.end();
            }
        }
        is_progress
    }

    /// Notes that the ring was reset and is empty.
    fn restart(&mut self) {
        self.reached = self.submitted;
        self.written = 0;
        self.is_unproven = true;
    }

    /// Ends jobs with an error in their order: either all jobs or only the begun ones. The ring was
    /// reset and is empty.
    fn mark_lost(&mut self, error: Error, all: bool) {
        let mut index = 0;

        self.restart();
        while let Some(job) = self.jobs.get(index) {
            if !all && !job.is_begun {
                index += 1;
            } else if let Ok(job) = self.jobs.remove(index) {
                job.fail(error);
            }
        }
    }
}

/// A ring for jobs with entries `E`.
#[pin_data]
pub(crate) struct Ring<E: Entries> {
    index: usize,
    regs: Arc<Regs>,
    status: Arc<Status>,
    entries: Words,
    /// The words written by [`Part::write`] for each slot.
    words: Words,
    dev: ARef<Device>,
    recovery: Arc<Recovery>,
    #[pin]
    state: Mutex<State<E>>,
}

impl<E: Entries> Ring<E> {
    /// Creates ring `index` of a device after a reset.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(
        dev: &Device<Bound>,
        regs: Arc<Regs>,
        status: Arc<Status>,
        recovery: Arc<Recovery>,
        index: usize,
    ) -> Result<Arc<Self>> {
        let entries = Words::new(dev, ENTRIES as usize * ENTRY)?;
        let words = Words::new(dev, (SLOTS * E::WORDS).max(1))?;
        let jobs = KVec::with_capacity(CREDITS, GFP_KERNEL)?;
        let reached = status.ring(index)?.fence;

        recovery.set_ring(index, entries.address(0), ENTRIES)?;
        let epoch = recovery.epoch();
        Arc::pin_init(
            pin_init!(Self {
                index,
                regs,
                status,
                entries,
                words,
                dev: dev.into(),
                recovery,
                state <- new_mutex!(State {
                    jobs,
                    written: 0,
                    submitted: reached,
                    reached,
                    done: 0,
                    since: Instant::now(),
                    fenced: Instant::now(),
                    epoch,
                    is_unproven: false,
                    proof: reached,
                }, "mgpu::Ring"),
            }),
            GFP_KERNEL,
        )
    }

    /// Begins a job. It runs after the jobs before it. `done` is signalled when it has ended.
    ///
    /// [`Self::advance`] must be called afterwards until it returns false.
    pub(crate) fn push(&self, entries: Arc<E>, done: Done) {
        let mut state = self.state.lock();
        let job = Begun {
            entries,
            at: E::At::default(),
            is_begun: false,
            last: None,
            result: Ok(()),
            done,
        };

        if let Some(error) = self.recovery.closed() {
            job.fail(error);
            return;
        }
        // There is room because the queue has no more credits. Without room the job would be
        // dropped and end with `ECANCELED`.
        let _ = state.jobs.push_within_capacity(job);
        self.submit(&mut state);
    }

    /// Ends the jobs done by the device and writes more entries. Returns whether the ring is busy.
    /// Sleeps.
    pub(crate) fn advance(&self) -> bool {
        let mut state = self.state.lock();

        if !self.begin_epoch(&mut state) {
            return true;
        }
        // Fails only if the driver is unbound. The ring is then empty.
        if let Ok(status) = self.reach(&mut state) {
            if status.error != 0 || self.is_abandoned(&state) {
                if let Some(job) = state.jobs.first() {
                    job.done.expire();
                }
            } else {
                self.submit(&mut state);
            }
        }
        state.is_busy()
    }

    /// Returns whether jobs in the ring will not end because the device is gone. Reading a register
    /// takes long, so this is only done if there was no progress for a while.
    fn is_abandoned(&self, state: &State<E>) -> bool {
        state.is_busy()
            && state.since.elapsed() >= Delta::from_millis(STILL)
            && self.recovery.is_gone()
    }

    /// Ends the jobs that are done according to the status page and returns the status.
    fn reach(&self, state: &mut State<E>) -> Result<RingStatus> {
        let status = self.status.ring(self.index)?;

        if state.done != status.done {
            state.done = status.done;
            state.since = Instant::now();
        }
        if state.reach(status.fence) {
            self.recovery.progress(self.index);
        }
        Ok(status)
    }

    /// Follows a reset of the device: the entries of the ring are lost. If they belong to a job,
    /// this returns false and notifies the queue. The queue then has the ring [reset](Self::reset),
    /// so no job begins before the queue has ended the lost jobs.
    fn begin_epoch(&self, state: &mut State<E>) -> bool {
        if self.recovery.epoch() == state.epoch {
            return true;
        }
        // Fails only if the driver is unbound. The ring was then empty.
        let _ = self.reach(state);
        if let Some(job) = state.jobs.first().filter(|job| job.is_begun) {
            job.done.expire();
            return false;
        }
        self.mark_lost(state);
        true
    }

    /// Ends the jobs lost in a reset of the device, or all jobs if the device is not used any more.
    fn mark_lost(&self, state: &mut State<E>) {
        // The next entry is the first one counted by the device.
        state.epoch = self.recovery.epoch();
        match self.recovery.closed() {
            Some(error) => state.mark_lost(error, true),
            None => state.mark_lost(EIO, false),
        }
    }

    /// Decides about a ring that has stopped or in which no job has ended for `limit`.
    pub(crate) fn timed_out(&self, limit: Msecs) -> Verdict {
        let mut state = self.state.lock();

        if !self.begin_epoch(&mut state) {
            return Verdict::Reset(EIO);
        }
        let error = match self.reach(&mut state) {
            Ok(status) => status.error,
            Err(e) => return Verdict::Reset(e),
        };

        // An unbind of the driver does not wait for each entry.
        let since = if limit < timeout_ms() {
            state.fenced
        } else {
            state.since
        };

        if self.recovery.is_paused() {
            Verdict::Busy
        } else if self.recovery.is_gone() {
            Verdict::Reset(ENODEV)
        } else if error != 0 {
            Verdict::Reset(EIO)
        } else if !state.is_busy() || since.elapsed() < Delta::from_millis(limit.into()) {
            Verdict::Busy
        } else if state.is_dead() {
            // No job is to blame.
            Verdict::Reset(ETIMEDOUT)
        } else {
            Verdict::Hung(ETIMEDOUT)
        }
    }

    /// Takes a snapshot of a failed ring for a dump.
    fn note(&self, state: &State<E>, error: Error) {
        self.recovery
            .reporter
            .snapshot(self.index, error, &self.regs, &self.status, |snapshot| {
                let words = ENTRIES as usize * ENTRY;
                let entries = (0..words).map(|index| self.entries.read(index).unwrap_or(0));

                snapshot.set_ring(entries, state.written, state.submitted, state.reached);
                snapshot.set_jobs(state.jobs.iter().map(|job| JobState {
                    bytes: job.entries.bytes(),
                    is_begun: job.is_begun,
                }));
                if let Some(job) = state.jobs.first() {
                    job.done.waiting_jobs(snapshot.queues());
                }
            });
    }

    /// Resets the ring and ends the jobs done until then. The other jobs are not in the ring any
    /// more. If the whole device had to be reset, the begun jobs among them have ended with `EIO`.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is gone and `EIO` if it is wedged. The device then accesses no
    /// memory.
    pub(crate) fn reset(&self) -> Result {
        let mut state = self.state.lock();
        let status = self.reach(&mut state);

        if self.recovery.is_gone() {
            dev_info!(self.dev, "the device does not answer any more\n");
            self.recovery.gone();
            state.mark_lost(ENODEV, true);
            return Err(ENODEV);
        }
        if self.recovery.epoch() != state.epoch {
            return self.reset_with_device(&mut state);
        }

        let is_stopped = status.is_ok_and(|status| status.error != 0);
        let is_dead = state.is_dead();
        let error = if is_stopped { EIO } else { ETIMEDOUT };
        let fault = is_stopped.then(|| {
            let record = self.status.fault(self.index);

            record.ok().flatten().unwrap_or_default()
        });
        let is_reported = self.recovery.limit.allows();
        if is_reported {
            if let Some(fault) = &fault {
                dev_info!(self.dev, "the last fault was at {:#x}\n", fault.address);
            }
            dev_info!(
                self.dev,
                "ring {} is reset: {:?} after submission {}\n",
                self.index,
                error,
                state.reached
            );
            self.note(&state, error);
        }
        let result = self
            .recovery
            .reset_ring(self.index, state.epoch, !is_stopped);
        // A job that the ring has completed until its reset must not run again, because its memory
        // may belong to the job behind it.
        let _ = self.reach(&mut state);
        if result.is_ok() && (is_stopped || !is_dead) {
            state.note_failure(fault);
        }

        let result = match result {
            Ok(Reset::Ring) => {
                if is_reported {
                    self.recovery.reporter.tell(Event::RingReset);
                }
                // The device runs jobs in their order, so only the first one can be partly done.
                if !E::REPEATS && state.jobs.first().is_some_and(|job| job.is_begun) {
                    if let Ok(job) = state.jobs.remove(0) {
                        job.fail(error);
                    }
                }
                Ok(())
            }
            Ok(Reset::Device) => return self.reset_with_device(&mut state),
            Err(e) => {
                state.mark_lost(e, true);
                Err(e)
            }
        };
        // The queue knows the jobs that are left, and begins them again.
        state.jobs.clear();
        state.restart();
        result
    }

    /// Does [`Self::reset`] after a reset of the whole device.
    fn reset_with_device(&self, state: &mut State<E>) -> Result {
        self.mark_lost(state);
        // The queue knows those that are left, and begins them again.
        state.jobs.clear();
        self.recovery.closed().map_or(Ok(()), Err)
    }

    /// Returns whether the ring has nothing to do and no job has begun. The ring stays so while the
    /// queues are held.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();

        !state.is_busy() && state.jobs.iter().all(|job| !job.is_begun)
    }

    /// Checks whether the ring works for a DRM driver about to be bound.
    ///
    /// # Errors
    ///
    /// `EIO` or `ENODEV` if it does not work any more.
    pub(crate) fn check(&self) -> Result {
        self.recovery.closed().map_or(Ok(()), Err)
    }

    /// Writes entries of waiting jobs as long as there is room.
    fn submit(&self, state: &mut State<E>) {
        let before = state.written;

        // Nothing is written during a reset of the device. `advance` continues after it.
        let Some(doorbells) = self.recovery.doorbells(state.epoch) else {
            return;
        };
        if !state.is_busy() {
            state.since = Instant::now();
            state.fenced = state.since;
        }
        let is_held = self.recovery.is_held();
        if state.is_unproven && !is_held && !state.jobs.is_empty() && !state.is_busy() {
            // A fence in front of all jobs. If the ring does not reach it, the ring itself is stuck
            // and not a job.
            let number = state.submitted + 1;

            if let Ok(count) = self.part(number, state.written).end(number) {
                state.submitted = number;
                state.written = state.written.wrapping_add(count);
                state.is_unproven = false;
                state.proof = number;
            }
        }
        while state.submitted - state.reached < SLOTS as u64 {
            let Some(index) = state.jobs.iter().position(|job| job.last.is_none()) else {
                break;
            };
            if is_held && !state.jobs.get(index).is_some_and(|job| job.is_begun) {
                break;
            }
            let (number, written) = (state.submitted + 1, state.written);
            let Some(job) = state.jobs.get_mut(index) else {
                break;
            };

            match self.write(job, number, written) {
                Ok(count) => {
                    state.submitted = number;
                    state.written = written.wrapping_add(count);
                }
                Err(e) => {
                    job.last = Some(number - 1);
                    job.result = Err(e);
                }
            }
        }
        // Ends failed jobs without a submission in the ring.
        state.reach(state.reached);

        if state.written != before {
            // Fails only if the driver is unbound. The ring is then empty.
            let _ = doorbells.ring(self.index, state.written);
        }
    }

    /// Writes the next part of a job as the submission `number` to the entries from `written` on.
    /// Returns the number of these entries.
    fn write(&self, job: &mut Begun<E>, number: u64, written: u32) -> Result<u32> {
        let mut part = self.part(number, written);

        job.is_begun = true;
        if job.entries.write(&mut job.at, &mut part)? {
            job.last = Some(number);
        }
        part.end(number)
    }

    /// Returns the space of the submission `number` from the entry `written` on.
    fn part(&self, number: u64, written: u32) -> Part<'_> {
        // CAST: Below the number of slots.
        let slot = (number % SLOTS as u64) as usize;

        Part {
            entries: &self.entries,
            written,
            count: 0,
            words: &self.words,
            first: slot * E::WORDS,
            len: E::WORDS,
        }
    }
}

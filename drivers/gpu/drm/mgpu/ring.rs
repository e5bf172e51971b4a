// SPDX-License-Identifier: GPL-2.0

//! The ring of the copy engine: its jobs, their order, and what becomes of those that hang.
//!
//! A job is copied in parts, as its lists have room for some pieces only. A part is a *submission*:
//! one entry that copies, and a fence with a number of its own and an interrupt. Up to [`SLOTS`] of
//! them are in the ring at a time, of several jobs if these are short; all memory for them is
//! allocated once. The jobs that wait are a list without a limit, whose memory was allocated when
//! they were prepared.
//!
//! All that looks at the device is [`Ring::advance`]: called for an interrupt, and some time later
//! as long as something is in the ring, so that an interrupt that is lost or comes too early delays
//! a job and no more. If there is no progress for a while, or the ring has stopped with an error,
//! it is reset: the job that was in the way fails, and those behind it are done from their
//! beginning. To do the beginning of a copy twice does no harm, as both sides of a job never
//! overlap and jobs are done in their order.
//!
//! # Locking
//!
//! One mutex, with which jobs are finished, too, so that they are in their order, and that who has
//! it knows that all jobs which are not on the lists were finished. It is taken in the path that
//! leads to the signal of a fence: nothing is allocated in a way that waits, and no reservation is
//! taken, while it is held.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::ttm::Job,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

use crate::{
    list::{
        Lists,
        Place, //
    },
    memory::{
        Status,
        Words, //
    },
    module_parameters,
    regs::Regs, //
};

/// How many entries the ring has.
const ENTRIES: u32 = 64;

/// How many words of 64 bits an entry has.
const ENTRY: usize = 8;

/// How many submissions are in the ring at most.
const SLOTS: usize = 8;

/// How many entries a submission has.
const SUBMISSION: u32 = 2;

/// How many pieces a list has at most.
const PIECES: usize = 256;

/// How many bytes are copied by a submission at most, so that a long job is seen to make progress.
const MOST: u64 = 1 << 25;

const _: () = assert!(ENTRIES.is_power_of_two() && SLOTS as u32 * SUBMISSION <= ENTRIES);

/// The operations.
const FENCE: u64 = 1;
const COPY_LIST: u64 = 16;
const FILL_LIST: u64 = 17;

/// The flag of a fence that raises an interrupt.
const INTERRUPT: u64 = 1;

/// A job that is prepared, or in the ring.
pub(crate) struct Queued {
    job: Option<Job>,
    lists: Lists,
    from_at: Place,
    to_at: Place,
    /// How many bytes were submitted.
    done: u64,
    next: Option<KBox<Queued>>,
}

impl Queued {
    /// Allocates what a job needs.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(lists: Lists) -> Result<KBox<Self>> {
        Ok(KBox::new(
            Self {
                job: None,
                lists,
                from_at: Place::default(),
                to_at: Place::default(),
                done: 0,
                next: None,
            },
            GFP_KERNEL,
        )?)
    }

    fn finish(mut self: KBox<Self>, result: Result) {
        if let Some(job) = self.job.take() {
            job.finish(result);
        }
    }

    /// Begins anew.
    fn rewind(&mut self) {
        self.from_at = Place::default();
        self.to_at = Place::default();
        self.done = 0;
    }

    fn is_void(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.is_void())
    }
}

/// Jobs in their order.
#[derive(Default)]
struct Fifo {
    /// The first ones.
    first: Option<KBox<Queued>>,
    /// Those behind them, the last one first.
    last: Option<KBox<Queued>>,
}

impl Fifo {
    fn push(&mut self, mut job: KBox<Queued>) {
        job.next = self.last.take();
        self.last = Some(job);
    }

    fn push_first(&mut self, mut job: KBox<Queued>) {
        job.next = self.first.take();
        self.first = Some(job);
    }

    fn pop(&mut self) -> Option<KBox<Queued>> {
        if self.first.is_none() {
            while let Some(mut job) = self.last.take() {
                self.last = job.next.take();
                self.push_first(job);
            }
        }

        let mut job = self.first.take()?;
        self.first = job.next.take();
        Some(job)
    }
}

impl Drop for Fifo {
    // One after the other, and not each by the one before it.
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// What is in the ring, and what waits.
struct State {
    waiting: Fifo,
    /// The job of which a part is submitted, but not its end.
    begun: Option<KBox<Queued>>,
    /// The job whose end is the submission of a slot.
    ends: [Option<KBox<Queued>>; SLOTS],
    /// How many entries were written since the last reset.
    written: u32,
    /// The number of the last submission.
    submitted: u64,
    /// The number of the last one that is done, or was given up.
    reached: u64,
    /// When there was progress last.
    since: Instant<Monotonic>,
    /// Why no job is done any more.
    closed: Option<Error>,
    /// The device is gone, or the ring cannot be reset.
    is_dead: bool,
    /// How often the ring was reset.
    resets: u64,
}

/// Returns the slot of a submission.
fn slot(number: u64) -> usize {
    // CAST: Below the number of slots.
    (number % SLOTS as u64) as usize
}

impl State {
    fn is_busy(&self) -> bool {
        self.submitted != self.reached
    }

    /// Takes all jobs out of the ring, in their order, to begin anew: to the front of those that
    /// wait.
    fn take_back(&mut self) {
        if let Some(mut job) = self.begun.take() {
            job.rewind();
            self.waiting.push_first(job);
        }
        for number in (self.reached + 1..=self.submitted).rev() {
            if let Some(mut job) = self.ends[slot(number)].take() {
                job.rewind();
                self.waiting.push_first(job);
            }
        }
        self.reached = self.submitted;
    }

    /// Finishes the jobs up to a submission that is done.
    fn reach(&mut self, fence: u64) {
        while self.reached < fence.min(self.submitted) {
            self.reached += 1;
            self.since = Instant::now();
            if let Some(job) = self.ends[slot(self.reached)].take() {
                job.finish(Ok(()));
            }
        }
    }

    /// Ends all jobs, and those that come.
    fn close(&mut self, error: Error) {
        self.take_back();
        let error = *self.closed.get_or_insert(error);
        while let Some(job) = self.waiting.pop() {
            job.finish(Err(error));
        }
    }
}

/// The ring of the copy engine.
#[pin_data]
pub(crate) struct Ring {
    index: usize,
    regs: Arc<Regs>,
    status: Arc<Status>,
    entries: Words,
    /// For each slot the list of the source, and that of the destination.
    lists: Words,
    dev: kernel::sync::aref::ARef<Device>,
    #[pin]
    state: Mutex<State>,
}

/// How many words the list of one side has.
const LIST: usize = 2 * PIECES;

impl Ring {
    /// Makes the ring with the number `index`, of a device that was just reset.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(
        dev: &Device<Bound>,
        regs: Arc<Regs>,
        status: Arc<Status>,
        index: usize,
    ) -> Result<Arc<Self>> {
        let entries = Words::new(dev, ENTRIES as usize * ENTRY)?;
        let lists = Words::new(dev, SLOTS * 2 * LIST)?;
        let reached = status.ring(index)?.fence;

        regs.set_ring(index, entries.address(0), ENTRIES)?;
        Arc::pin_init(
            pin_init!(Self {
                index,
                regs,
                status,
                entries,
                lists,
                dev: dev.into(),
                state <- new_mutex!(State {
                    waiting: Fifo::default(),
                    begun: None,
                    ends: Default::default(),
                    written: 0,
                    submitted: reached,
                    reached,
                    since: Instant::now(),
                    closed: None,
                    is_dead: false,
                    resets: 0,
                }, "mgpu::Ring"),
            }),
            GFP_KERNEL,
        )
    }

    /// Takes a job, which is done after those before it.
    ///
    /// [`Self::advance`] has to be called after that, until it returns false.
    pub(crate) fn push(&self, mut queued: KBox<Queued>, job: Job) {
        let mut state = self.state.lock();

        queued.job = Some(job);
        if let Some(error) = state.closed {
            queued.finish(Err(error));
            return;
        }
        state.waiting.push(queued);
        self.submit(&mut state);
    }

    /// Looks at what the device has done, and goes on. Returns whether something is in the ring.
    /// Sleeps.
    pub(crate) fn advance(&self) -> bool {
        let mut state = self.state.lock();

        if let Err(error) = self.look(&mut state) {
            self.give_up(&mut state, error);
        }
        self.submit(&mut state);
        state.is_busy()
    }

    /// Ends all jobs with `ENODEV`, and those that come, until [`Self::open`]. The ring does no DMA
    /// when this returns. Sleeps.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();

        if state.is_busy() {
            if let Err(e) = self.regs.reset_ring(self.index) {
                state.is_dead = true;
                dev_info!(self.dev, "ring {} is left as it is: {:?}\n", self.index, e);
            }
            state.written = 0;
        }
        state.close(ENODEV);
    }

    /// Takes jobs again, after [`Self::close`].
    ///
    /// # Errors
    ///
    /// `EIO` or `ENODEV` if the ring does not work any more.
    pub(crate) fn open(&self) -> Result {
        let mut state = self.state.lock();

        if state.is_dead {
            return Err(state.closed.unwrap_or(EIO));
        }
        state.closed = None;
        Ok(())
    }

    /// Returns how often it was reset.
    pub(crate) fn resets(&self) -> u64 {
        self.state.lock().resets
    }

    /// Returns the error with which all jobs end, if they do.
    pub(crate) fn closed(&self) -> Option<Error> {
        self.state.lock().closed
    }

    /// Finishes what is done. Fails if that is not all, and nothing will come.
    fn look(&self, state: &mut State) -> Result {
        let status = self.status.ring(self.index)?;

        state.reach(status.fence);
        if !state.is_busy() {
            return Ok(());
        }
        if status.error != 0 {
            return Err(EIO);
        }
        let timeout = Delta::from_millis(module_parameters::timeout_ms.value().into());
        if state.since.elapsed() > timeout {
            return Err(ETIMEDOUT);
        }
        Ok(())
    }

    /// Lets the oldest job in the ring fail with `error`, and the others begin anew.
    fn give_up(&self, state: &mut State, error: Error) {
        if error == ENODEV || self.regs.is_gone() {
            if state.closed.is_none() {
                dev_info!(self.dev, "the device does not answer any more\n");
            }
            state.is_dead = true;
            state.close(ENODEV);
            return;
        }

        let fault = self.status.fault().ok().flatten().unwrap_or_default();
        dev_info!(
            self.dev,
            "ring {} is reset: {:?} after submission {}, last fault at {:#x}\n",
            self.index,
            error,
            state.reached,
            fault.0
        );
        if let Err(e) = self.regs.reset_ring(self.index) {
            dev_err!(self.dev, "ring {} cannot be reset: {:?}\n", self.index, e);
            state.is_dead = true;
            state.close(EIO);
            return;
        }

        state.resets += 1;
        state.written = 0;
        // What the ring did until it was reset is not done again: memory that a job has left may be
        // that of the job behind it.
        let before = state.reached;
        if let Ok(status) = self.status.ring(self.index) {
            state.reach(status.fence);
        }
        let is_late = error == ETIMEDOUT && state.reached != before;
        state.take_back();
        // A ring that was only late has no job that hangs.
        if !is_late {
            if let Some(job) = state.waiting.pop() {
                job.finish(Err(error));
            }
        }
    }

    /// Submits what waits, as far as there is room.
    fn submit(&self, state: &mut State) {
        let before = state.written;

        if !state.is_busy() {
            state.since = Instant::now();
        }
        while state.submitted - state.reached < SLOTS as u64 {
            let Some(mut job) = state.begun.take().or_else(|| state.waiting.pop()) else {
                break;
            };
            if job.done == 0 && job.is_void() {
                if state.is_busy() {
                    // In its order, when those before it are done.
                    state.waiting.push_first(job);
                    break;
                }
                job.finish(Err(EIO));
                continue;
            }

            let number = state.submitted + 1;
            if self.write(&mut job, number, state.written).is_err() {
                // Only if the driver is unbound.
                job.finish(Err(ENODEV));
                continue;
            }
            state.submitted = number;
            state.written = state.written.wrapping_add(SUBMISSION);
            if job.done == job.lists.size {
                state.ends[slot(number)] = Some(job);
            } else {
                state.begun = Some(job);
            }
        }

        if state.written != before {
            // If the driver is unbound, nothing is in the ring.
            let _ = self.regs.ring_doorbell(self.index, state.written);
        }
    }

    /// Writes the next part of a job as the submission `number`, to the entries from `written` on.
    fn write(&self, job: &mut Queued, number: u64, written: u32) -> Result {
        let first = slot(number) * 2 * LIST;
        let left = (job.lists.size - job.done).min(MOST);
        let words = |piece: crate::list::Piece| [piece.address, piece.len];

        let (mut from_pieces, mut from_bytes) = (0u64, left);
        if let Some(from) = &job.lists.from {
            from_bytes = 0;
            let pieces = job.from_at.pieces(from, PIECES, left).inspect(|piece| {
                from_pieces += 1;
                from_bytes += piece.len;
            });
            self.lists.write(first, pieces.flat_map(words))?;
        }
        let (mut to_pieces, mut bytes) = (0u64, 0);
        let pieces = job
            .to_at
            .pieces(&job.lists.to, PIECES, from_bytes)
            .inspect(|piece| {
                to_pieces += 1;
                bytes += piece.len;
            });
        self.lists.write(first + LIST, pieces.flat_map(words))?;

        let is_copy = job.lists.from.is_some();
        let from_address = if is_copy {
            self.lists.address(first)
        } else {
            0
        };
        let operation = [
            if is_copy { COPY_LIST } else { FILL_LIST },
            from_address,
            self.lists.address(first + LIST),
            from_pieces | to_pieces << 32,
            bytes,
            0,
            0,
            0,
        ];
        let fence = [FENCE, number, INTERRUPT, 0, 0, 0, 0, 0];
        for (entry, words) in (written..).zip([operation, fence]) {
            let at = (entry % ENTRIES) as usize * ENTRY;

            self.entries.write(at, words)?;
        }

        if let Some(from) = &job.lists.from {
            job.from_at.advance(from, bytes);
        }
        job.to_at.advance(&job.lists.to, bytes);
        job.done += bytes;
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The choice of the next job of a ring and the worker running it.
//!
//! Not generic: this code and its lock classes belong to the kernel crate.

use super::{
    client::{
        item,
        Lane,
        Owner,
        HANGS_MAX, //
    },
    done::{
        Done,
        WaitingJobs, //
    },
    fifo::Fifo,
    job::{
        Id,
        Node, //
    },
    trace, //
};
use crate::{
    bindings,
    dma_buf::fence::{
        DriverFence,
        FenceContextOps,
        SignallingSection, //
    },
    impl_has_delayed_work,
    impl_has_work,
    list::{
        List,
        ListArc, //
    },
    new_delayed_work,
    new_mutex,
    new_spinlock_irq,
    new_work,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc,
        Completion,
        Mutex,
        SetOnce,
        SpinLockIrq, //
    },
    time::{
        Instant,
        Monotonic,
        Msecs, //
    },
    workqueue::{
        self,
        DelayedWork,
        Work,
        WorkItem, //
    }, //
};
use core::{
    mem,
    ptr::NonNull, //
};

/// The fences of jobs.
pub(super) struct Fences;

impl FenceContextOps for Fences {
    const DRIVER_NAME: &'static CStr = c"drm_queue";
    type Data = ();
}

/// How many kernel jobs begin in a row while a client's job is ready.
const KERNEL_MAX: usize = 8;

/// How many jobs the worker runs before other work may use the processor.
const BATCH: usize = 16;

/// The number before the one of the first run. In kernels with tests the numbers soon exceed 32
/// bits, so code losing the upper half fails.
const FIRST_TICKET: u64 = if cfg!(CONFIG_KUNIT) {
    // CAST: A smaller type, in a constant.
    u32::MAX as u64 - 4
} else {
    0
};

/// The numbers of the work item that runs jobs, the timer and the work item that frees jobs.
const RUN: u64 = 0;
pub(super) const TIMER: u64 = 1;
const REAP: u64 = 2;

/// The name of a ring, with the NUL.
pub(super) struct Name([u8; 32]);

impl Name {
    /// # Errors
    ///
    /// `ENAMETOOLONG` if the name has more than 31 bytes.
    pub(super) fn new(name: &CStr) -> Result<Self> {
        let bytes = name.to_bytes_with_nul();
        let mut copy = [0; 32];

        copy.get_mut(..bytes.len())
            .ok_or(ENAMETOOLONG)?
            .copy_from_slice(bytes);
        Ok(Self(copy))
    }

    pub(super) fn as_cstr(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }

    pub(super) fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// The end of a job.
pub(super) struct Ended {
    pub(super) result: Result,
    at: Instant<Monotonic>,
    /// The number of its run.
    ticket: u64,
}

/// A place in the hardware.
pub(super) struct Slot {
    /// The number of the run in this slot or 0 if it is free. A run after a reset has a new number.
    pub(super) ticket: u64,
    pub(super) id: Id,
    /// The fence of the job, until the job ends. [`None`] too if the job has its own fence.
    pub(super) fence: Option<DriverFence<Fences>>,
    /// How the job ended. The worker then removes the job.
    pub(super) ended: Option<Ended>,
}

impl Slot {
    const NO_ID: Id = Id {
        context: 0,
        seqno: 0,
    };

    const fn free() -> Self {
        Self {
            ticket: 0,
            id: Self::NO_ID,
            fence: None,
            ended: None,
        }
    }

    /// Returns whether a job is in the hardware here.
    pub(super) fn is_running(&self) -> bool {
        self.ticket != 0 && self.ended.is_none()
    }
}

/// The state guarded by the spinlock of a ring.
pub(super) struct State {
    /// Clients cannot add jobs any more.
    pub(super) closed: bool,
    /// The kernel cannot add jobs either: the ring is being dropped.
    dying: bool,
    /// Why the ring is broken.
    broken: Option<Error>,
    /// The number of jobs, including those not in a queue yet.
    jobs: usize,
    /// The workqueue, until the ring is gone.
    pub(super) queue: Option<NonNull<bindings::workqueue_struct>>,
    /// The driver is resetting the hardware.
    pub(super) resetting: bool,
    /// The driver wants the oldest job to be checked.
    expired: bool,
    /// Queues of clients whose first job can begin, in the order of their turns.
    ready: List<Lane, 0>,
    /// The same for the queues of late jobs. They are in no other list.
    late: List<Lane, 0>,
    /// All queues of clients.
    all: List<Lane, 1>,
    /// How many kernel jobs were begun since the last one of a client.
    in_a_row: usize,
    pub(super) slots: KVec<Slot>,
    /// Cancelled jobs for the worker to end.
    cancelled: Fifo,
    /// Ended jobs to be freed.
    dead: Fifo,
}

// SAFETY: The workqueue may be used from any task; the rest is `Send`.
unsafe impl Send for State {}

impl State {
    /// Starts the worker, unless the ring is gone.
    fn kick(&self, scheduler: &Arc<Scheduler>) {
        if let Some(queue) = self.queue {
            // SAFETY: The workqueue is destroyed after the pointer was removed from here, under the
            // lock.
            let queue = unsafe { workqueue::Queue::from_raw(queue.as_ptr()) };

            // An already queued work item sees the new state.
            let _ = queue.enqueue::<Arc<Scheduler>, RUN>(scheduler.clone());
        }
    }

    /// Cancels all waiting jobs of a queue.
    fn cancel_all(&mut self, lane: &Lane) {
        let mut jobs = mem::replace(&mut lane.waiting.access_mut(self).jobs, Fifo::new());

        self.cancelled.append(&mut jobs);
    }

    /// Cancels all waiting jobs of clients.
    fn cancel_clients(&mut self) {
        // The list is restored unchanged: cancelling the jobs of the lanes does not use it.
        let all = mem::take(&mut self.all);

        for lane in &all {
            self.cancel_all(&lane);
        }
        self.all = all;
    }

    /// Returns whether the run with the number `ticket` is still going on.
    pub(super) fn is_running(&self, slot: usize, ticket: u64) -> bool {
        let slot = self.slots.get(slot).filter(|slot| slot.is_running());

        slot.is_some_and(|slot| slot.ticket == ticket)
    }

    /// Frees the slot of the ended job with the earliest run and returns how the job ended.
    pub(super) fn take_ended(&mut self) -> Option<(usize, Ended)> {
        let slots = self.slots.iter_mut().enumerate();
        let (index, slot) = slots
            .filter(|(_, slot)| slot.ended.is_some())
            .min_by_key(|(_, slot)| slot.ticket)?;

        mem::replace(slot, Slot::free())
            .ended
            .map(|ended| (index, ended))
    }

    /// Returns whether the first job of a queue can begin.
    fn is_ready(&mut self, lane: &Lane) -> bool {
        let first = lane.waiting.access_mut(self).jobs.first();

        first.is_some_and(|node| node.deps.are_over())
    }

    /// Gives a queue its turn if its first job can begin.
    fn make_ready(&mut self, lane: &Arc<Lane>) {
        if !self.is_ready(lane) {
            return;
        }
        let list = match lane.owner {
            Owner::Kernel => return,
            Owner::Late => &mut self.late,
            Owner::Client(_) => &mut self.ready,
        };

        if let Some(item) = item::<0>(lane) {
            list.push_back(item);
        }
    }
}

/// Calls of the driver except for those of jobs.
///
/// The functions may only be called with [`Flight::hw`], while it is valid.
pub(super) struct Calls {
    /// Resets the ring.
    pub(super) reset: unsafe fn(*const c_void) -> Result,
    /// Returns whether the hardware is no longer present.
    pub(super) is_gone: unsafe fn(*const c_void) -> bool,
}

/// The state accessed only by the worker.
pub(super) struct Flight {
    /// The driver's hardware, until the ring is gone.
    pub(super) hw: *const c_void,
    /// The jobs in the slots.
    pub(super) nodes: KVec<Option<KBox<Node>>>,
    /// The number of the last run.
    pub(super) ticket: u64,
    /// Since when the oldest job in the hardware has been the oldest.
    pub(super) since: Instant<Monotonic>,
    /// Until when the time of the hardware is accounted to queues.
    accounted: Instant<Monotonic>,
    /// Whether the timer is pending.
    pub(super) timer: bool,
    /// The timer was stopped once because the ring is closed: it starts again with the limit of a
    /// closed ring.
    hurried: bool,
    /// The ring is being dropped and the driver was asked whether the hardware is gone.
    asked: bool,
}

// SAFETY: The hardware is `Sync` and may be used from any task.
unsafe impl Send for Flight {}

/// The next step of the worker.
enum Next {
    /// The job of a slot has ended.
    Ended(usize, Ended),
    /// A job was cancelled.
    Cancelled(KBox<Node>, Error),
    /// A job begins in a slot.
    Run(KBox<Node>, usize, Arc<Lane>),
    /// A queue had its turn and has no job.
    Skip(Arc<Lane>),
    /// All jobs and the ring are gone.
    Gone,
    Nothing,
}

/// A ring without its types.
#[pin_data]
pub(super) struct Scheduler {
    pub(super) name: Name,
    /// How long a job may run.
    pub(super) timeout: Option<Msecs>,
    pub(super) calls: Calls,
    #[pin]
    pub(super) state: SpinLockIrq<State>,
    #[pin]
    pub(super) flight: Mutex<Flight>,
    /// The queue of the kernel.
    kernel: SetOnce<Arc<Lane>>,
    /// All jobs are gone.
    #[pin]
    gone: Completion,
    #[pin]
    work: Work<Scheduler, RUN>,
    #[pin]
    pub(super) timer: DelayedWork<Scheduler, TIMER>,
    #[pin]
    reaper: Work<Scheduler, REAP>,
}

impl_has_work! {
    impl HasWork<Self, 0> for Scheduler { self.work }
    impl HasWork<Self, 2> for Scheduler { self.reaper }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, 1> for Scheduler { self.timer }
}

impl WorkItem<RUN> for Scheduler {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.work();
    }
}

impl WorkItem<TIMER> for Scheduler {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.expired();
    }
}

impl WorkItem<REAP> for Scheduler {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // The jobs are removed one by one and freed without the lock. Jobs ending meanwhile are
        // freed as well.
        loop {
            let node = this.state.lock().dead.pop();

            if node.is_none() {
                break;
            }
        }
    }
}

impl Scheduler {
    // Not inlined into modules, so that the lock classes and their names stay in the kernel crate.
    #[inline(never)]
    pub(super) fn new(
        name: &CStr,
        credits: usize,
        timeout: Option<Msecs>,
        calls: Calls,
        hw: *const c_void,
        queue: NonNull<bindings::workqueue_struct>,
    ) -> Result<Arc<Self>> {
        if credits == 0 {
            return Err(EINVAL);
        }

        let name = Name::new(name)?;
        let mut slots = KVec::with_capacity(credits, GFP_KERNEL)?;
        let mut nodes = KVec::with_capacity(credits, GFP_KERNEL)?;
        for _ in 0..credits {
            slots.push(Slot::free(), GFP_KERNEL)?;
            nodes.push(None, GFP_KERNEL)?;
        }

        let state = State {
            closed: false,
            dying: false,
            broken: None,
            jobs: 0,
            queue: Some(queue),
            resetting: false,
            expired: false,
            ready: List::new(),
            late: List::new(),
            all: List::new(),
            in_a_row: 0,
            slots,
            cancelled: Fifo::new(),
            dead: Fifo::new(),
        };
        let flight = Flight {
            hw,
            nodes,
            ticket: FIRST_TICKET,
            since: Instant::now(),
            accounted: Instant::now(),
            timer: false,
            hurried: false,
            asked: false,
        };

        let scheduler = Arc::pin_init(
            pin_init!(Self {
                name,
                timeout,
                calls,
                state <- new_spinlock_irq!(state, "drm::queue::Scheduler::state"),
                flight <- new_mutex!(flight, "drm::queue::Scheduler::flight"),
                kernel: SetOnce::new(),
                gone <- Completion::new(),
                work <- new_work!("drm::queue::Scheduler::work"),
                timer <- new_delayed_work!("drm::queue::Scheduler::timer"),
                reaper <- new_work!("drm::queue::Scheduler::reaper"),
            }),
            GFP_KERNEL,
        )?;
        scheduler
            .kernel
            .populate(Lane::new(&scheduler, Owner::Kernel, None)?);
        Ok(scheduler)
    }

    /// Returns the queue of the kernel.
    pub(super) fn kernel(&self) -> Option<&Arc<Lane>> {
        self.kernel.as_ref()
    }

    /// Adds the queue of a client.
    ///
    /// # Errors
    ///
    /// `ENODEV` if clients can no longer add jobs.
    pub(super) fn add(&self, lane: &Arc<Lane>) -> Result {
        let item = item::<1>(lane).ok_or(EBUSY)?;
        let mut state = self.state.lock();

        if state.closed {
            return Err(ENODEV);
        }
        state.all.push_back(item);
        Ok(())
    }

    /// Removes the queue of a client and cancels its waiting jobs.
    pub(super) fn remove(self: &Arc<Self>, lane: &Arc<Lane>) {
        let mut state = self.state.lock();

        lane.waiting.access_mut(&mut state).closed = true;
        state.cancel_all(lane);
        // SAFETY: The queue is in this list or in none.
        let item = unsafe { state.all.remove(lane) };
        state.kick(self);
        drop(state);
        drop(item);
    }

    /// Checks whether the queue of a client gets more jobs.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the ring is closed.
    /// - `ECANCELED` if the queue is closed.
    pub(super) fn accepts(&self, lane: &Lane) -> Result {
        let mut state = self.state.lock();

        if state.closed {
            Err(ENODEV)
        } else if lane.waiting.access_mut(&mut state).closed {
            Err(ECANCELED)
        } else {
            Ok(())
        }
    }

    /// Returns how many jobs of a queue have hung.
    pub(super) fn hangs(&self, lane: &Lane) -> u32 {
        lane.waiting.access_mut(&mut self.state.lock()).hangs
    }

    /// Counts a hung job. A client with too many of them gets no more jobs.
    pub(super) fn blame(self: &Arc<Self>, lane: &Lane) {
        let mut state = self.state.lock();
        let waiting = lane.waiting.access_mut(&mut state);

        waiting.hangs = waiting.hangs.saturating_add(1);
        if waiting.hangs >= HANGS_MAX && !lane.is_kernel() {
            waiting.closed = true;
            state.cancel_all(lane);
            state.kick(self);
        }
    }

    /// Counts a job of a queue if the queue may have one more.
    pub(super) fn admit(&self, is_kernel: bool) -> Result {
        let mut state = self.state.lock();

        if state.dying || state.broken.is_some() || (state.closed && !is_kernel) {
            return Err(ENODEV);
        }
        state.jobs += 1;
        Ok(())
    }

    /// Returns the number of jobs, including those not in a queue yet.
    pub(super) fn jobs(&self) -> usize {
        self.state.lock().jobs
    }

    /// Undoes [`Self::admit`]: there is one job less.
    pub(super) fn leave(self: &Arc<Self>) {
        let mut state = self.state.lock();

        state.jobs -= 1;
        if state.dying {
            state.kick(self);
        }
    }

    /// Puts an admitted job into its queue.
    pub(super) fn push(self: &Arc<Self>, lane: &Arc<Lane>, node: KBox<Node>) {
        let mut state = self.state.lock();
        let is_closed =
            !lane.is_kernel() && (state.closed || lane.waiting.access_mut(&mut state).closed);

        node.deps.queued();
        if is_closed {
            state.cancelled.push(node);
        } else {
            lane.waiting.access_mut(&mut state).jobs.push(node);
            state.make_ready(lane);
        }
        state.kick(self);
    }

    /// Called when the dependencies of the first job of a queue may have signalled. May be called
    /// in any context.
    pub(super) fn wake(self: &Arc<Self>, lane: &Arc<Lane>) {
        let mut state = self.state.lock();

        state.make_ready(lane);
        state.kick(self);
    }

    /// Cancels a waiting job and returns whether it was cancelled.
    pub(super) fn cancel(self: &Arc<Self>, lane: &Arc<Lane>, id: Id) -> bool {
        let mut state = self.state.lock();
        let jobs = &mut lane.waiting.access_mut(&mut state).jobs;
        let Some(node) = jobs.remove(|node| node.id == id) else {
            return false;
        };

        state.cancelled.push(node);
        state.make_ready(lane);
        state.kick(self);
        true
    }

    /// Ends the run of a job with the number `ticket`. Returns its fence unless the run is over.
    /// Without a result, the driver has dropped its `Done`.
    pub(super) fn end(
        self: &Arc<Self>,
        slot: usize,
        ticket: u64,
        result: Option<Result>,
    ) -> Option<(Option<DriverFence<Fences>>, Id)> {
        let mut state = self.state.lock();
        let result = match result {
            Some(result) => result,
            None if state.resetting => return None,
            None => Err(ECANCELED),
        };
        let slot = state
            .slots
            .get_mut(slot)
            .filter(|slot| slot.ticket == ticket && slot.is_running())?;

        slot.ended = Some(Ended {
            result,
            at: Instant::now(),
            ticket,
        });
        let ended = (slot.fence.take(), slot.id);
        state.kick(self);
        Some(ended)
    }

    /// Cancels the waiting jobs of clients and accepts no more from them.
    pub(super) fn close(self: &Arc<Self>) {
        let mut state = self.state.lock();

        state.closed = true;
        state.cancel_clients();
        state.kick(self);
    }

    /// Accepts no more jobs from clients and the kernel and waits for the end of all jobs.
    pub(super) fn end_all(self: &Arc<Self>) {
        self.close();
        {
            let mut state = self.state.lock();

            state.dying = true;
            state.kick(self);
        }
        // The worker completes this when no job is left.
        self.gone.wait_for_completion();
    }

    /// Makes the worker ask the driver about the oldest job unless the run with the number `ticket`
    /// is over.
    pub(super) fn expire(self: &Arc<Self>, slot: usize, ticket: u64) {
        let mut state = self.state.lock();

        if state.is_running(slot, ticket) {
            state.expired = true;
            state.kick(self);
        }
    }

    /// See [`Done::waiting_jobs`].
    pub(super) fn waiting_jobs(&self, queues: &mut [Option<WaitingJobs>]) {
        let mut state = self.state.lock();
        let mut room = queues.iter_mut();
        let mut tell = |state: &mut State, lane: &Lane| {
            let jobs = &lane.waiting.access_mut(state).jobs;

            if let Some(first) = jobs.first() {
                let Some(to) = room.next() else {
                    return false;
                };

                *to = Some(WaitingJobs {
                    context: first.id.context,
                    first: first.id.seqno,
                    count: jobs.len(),
                    is_blocked: !first.deps.are_over(),
                });
            }
            true
        };

        if let Some(kernel) = self.kernel() {
            tell(&mut state, kernel);
        }
        // As in `State::cancel_clients()`.
        let all = mem::take(&mut state.all);
        for lane in &all {
            if !tell(&mut state, &lane) {
                break;
            }
        }
        state.all = all;
    }

    /// Cancels all waiting jobs because the ring is broken. A kernel job is cancelled in its turn
    /// when its dependencies have signalled: users of the memory it was to fill wait for its fence
    /// alone.
    pub(super) fn give_up(self: &Arc<Self>, state: &mut State, error: Error) {
        state.closed = true;
        state.broken = Some(error);
        state.cancel_clients();
    }

    /// Removes the workqueue and the hardware, so that nothing uses them any more.
    pub(super) fn detach(&self) {
        self.state.lock().queue = None;
        self.flight.lock().hw = core::ptr::null();
    }

    /// Chooses the next step of the worker.
    fn next(&self) -> Next {
        let mut state = self.state.lock();

        if let Some((slot, ended)) = state.take_ended() {
            return Next::Ended(slot, ended);
        }
        if let Some(node) = state.cancelled.pop() {
            return Next::Cancelled(node, state.broken.unwrap_or(ECANCELED));
        }
        if state.dying && state.jobs == 0 {
            return Next::Gone;
        }

        let Some(free) = state.slots.iter().position(|slot| slot.ticket == 0) else {
            return Next::Nothing;
        };
        // Clients cause as many kernel jobs as they like: each new object is cleared.
        let clients_turn = state.in_a_row >= KERNEL_MAX && !state.ready.is_empty();
        let kernel = self
            .kernel()
            .filter(|lane| !clients_turn && state.is_ready(lane));
        let lane = match kernel {
            // The late jobs of one client take half of the turns at most.
            Some(kernel) if state.late.is_empty() || state.in_a_row % 2 == 0 => {
                Some(kernel.clone())
            }
            _ => {
                let late = (!clients_turn).then(|| state.late.pop_front()).flatten();

                late.or_else(|| state.ready.pop_front())
                    .map(ListArc::into_arc)
            }
        };

        let Some(lane) = lane else {
            return Next::Nothing;
        };
        // A queue whose jobs were cancelled meanwhile loses its turn.
        if !state.is_ready(&lane) {
            return Next::Skip(lane);
        }
        let node = lane.waiting.access_mut(&mut state).jobs.pop();
        // Its next turn is after those of all other queues.
        state.make_ready(&lane);
        match (node, state.broken) {
            (Some(node), Some(error)) => Next::Cancelled(node, error),
            (Some(node), _) => {
                state.in_a_row = if lane.is_kernel() {
                    state.in_a_row + 1
                } else {
                    0
                };
                Next::Run(node, free, lane)
            }
            (None, _) => Next::Skip(lane),
        }
    }

    /// Runs jobs, ends cancelled ones and frees ended ones.
    fn work(self: &Arc<Self>) {
        // Other tasks wait for the fences.
        let _section = SignallingSection::begin();
        let mut flight = self.flight.lock();

        self.look(&mut flight);
        for _ in 0..BATCH {
            match self.next() {
                Next::Ended(slot, ended) => self.finish(&mut flight, slot, ended),
                Next::Cancelled(mut node, error) => {
                    trace::done(&self.name, node.id, Err(error));
                    node.payload.ended(Err(error));
                    if let Some(fence) = node.fence.take() {
                        fence.signal(Err(error));
                    }
                    self.bury(node);
                }
                // The queue may be freed here, without the lock.
                Next::Run(node, slot, _lane) => self.start(&mut flight, node, slot),
                Next::Skip(_lane) => (),
                Next::Gone => {
                    self.gone.complete_all();
                    return;
                }
                Next::Nothing => {
                    self.set_timer(&mut flight);
                    return;
                }
            }
        }
        self.set_timer(&mut flight);
        self.state.lock().kick(self);
    }

    /// Asks the driver about the oldest job, or whether the hardware is gone, if this was
    /// requested.
    fn look(self: &Arc<Self>, flight: &mut Flight) {
        let (expired, closed, dying) = {
            let mut state = self.state.lock();

            (mem::take(&mut state.expired), state.closed, state.dying)
        };

        if closed && !mem::replace(&mut flight.hurried, true) {
            // The worker restarts it.
            self.stop_timer(false);
            flight.timer = false;
        }
        if expired {
            self.check(flight, true);
        }
        if dying && !mem::replace(&mut flight.asked, true) {
            // SAFETY: The hardware is valid until `detach()`, which follows the end of all jobs.
            if !flight.hw.is_null() && unsafe { (self.calls.is_gone)(flight.hw) } {
                self.recover(flight, None);
            }
        }
    }

    /// Notifies the driver of the end of the job in a slot and has the job freed. The slot is free
    /// by now.
    pub(super) fn finish(self: &Arc<Self>, flight: &mut Flight, slot: usize, ended: Ended) {
        // The hardware does jobs in their order. So it has worked on this one since the end of the
        // one before, unless an earlier one is still running: then this one has not begun there.
        let busy = match self.oldest(0, ended.ticket) {
            None => (ended.at - flight.accounted).as_nanos().max(0),
            Some(_) => 0,
        };

        flight.since = Instant::now();
        if busy > 0 {
            flight.accounted = ended.at;
        }
        if let Some(mut node) = flight.nodes.get_mut(slot).and_then(Option::take) {
            // CAST: Not negative.
            node.lane.busy.fetch_add(busy as u64, Relaxed);
            node.payload.ended(ended.result);
            self.bury(node);
        }
    }

    /// Starts a job in a free slot.
    fn start(self: &Arc<Self>, flight: &mut Flight, mut node: KBox<Node>, slot: usize) {
        if flight.nodes.iter().all(Option::is_none) {
            flight.since = Instant::now();
            flight.accounted = flight.since;
        }
        // OVERFLOW: There are never 2^64 runs.
        flight.ticket += 1;
        if let Some(free) = self.state.lock().slots.get_mut(slot) {
            free.ticket = flight.ticket;
            free.id = node.id;
            free.fence = node.fence.take();
        }
        self.run(flight, &mut node, slot, flight.ticket);
        if let Some(place) = flight.nodes.get_mut(slot) {
            *place = Some(node);
        }
    }

    /// Passes a job to the driver.
    pub(super) fn run(
        self: &Arc<Self>,
        flight: &Flight,
        node: &mut Node,
        slot: usize,
        ticket: u64,
    ) {
        trace::run(&self.name, node.id);
        // SAFETY: The hardware is valid until `detach()`, which the ring calls when no job is left.
        unsafe { node.payload.run(flight.hw, Done::new(self, slot, ticket)) };
        trace::started(&self.name, node.id);
    }

    /// Schedules a job to be freed.
    fn bury(self: &Arc<Self>, node: KBox<Node>) {
        self.state.lock().dead.push(node);
        // An already queued work item frees this job as well.
        let _ = workqueue::system_long().enqueue::<Arc<Self>, REAP>(self.clone());
    }
}

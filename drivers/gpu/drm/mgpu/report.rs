// SPDX-License-Identifier: GPL-2.0

//! Reports of a device failure to userspace: an event and a dump.
//!
//! Both allocate memory. This is not allowed in the path that ends jobs, so the code detecting a
//! failure takes a [`Snapshot`] into memory allocated before and a worker does the rest:
//!
//! - a dump of the first failure by [`kernel::devcoredump`]. There is one dump at a time;
//! - an event by [`kernel::drm::Device::wedged_event`], also for each reset of a ring, as amdgpu
//!   does;
//! - after a reset of the device, VRAM that could not be cleared may be allocated again. So may the
//!   numbers and the page tables of address spaces that the device may have used until then;
//! - if the device is wedged or gone, the objects in VRAM lose their content.
//!
//! A ring is reset for each job with a fault and without a timeout in between. So a client can
//! cause resets as often as it likes: the log, the dump and the event report at most ten of them in
//! five seconds. Resets of the whole device are always reported.
//!
//! # Locking
//!
//! One mutex, taken after all others and held for a moment only.

use kernel::{
    devcoredump,
    device,
    drm::{
        gem::ttm::Content,
        queue::WaitingJobs,
        ttm::OpCtx,
        workqueue::OwnedQueue,
        WedgeRecovery, //
    },
    fmt,
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    },
    time::Delta,
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use crate::{
    card,
    contexts::Contexts,
    memory::{
        Status,
        WORDS, //
    },
    regs::{
        Regs,
        SHOWN, //
    }, //
};

/// The numbers of ring words, of jobs and of queues with waiting jobs in a snapshot.
const ENTRIES: usize = 512;
const JOBS: usize = 16;
const QUEUES: usize = 32;

/// How long a reset by the PCI core waits for importers and moves.
const EVICTION: Delta = Delta::from_secs(2);

/// The number of words in an entry.
const ENTRY: usize = 8;

/// An event, from the least to the most severe one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A ring was reset.
    RingReset,
    /// The device was reset.
    Reset,
    /// VRAM has lost its content. Another event follows.
    Lost,
    /// The device is wedged or its slot was reset.
    Wedged,
    /// The device does not answer any more.
    Gone,
}

/// The state of a job given to the ring.
#[derive(Clone, Copy)]
pub(crate) struct JobState {
    pub(crate) bytes: u64,
    /// A part of it was written to the ring.
    pub(crate) is_begun: bool,
}

/// The state of a device when one of its rings failed.
pub(crate) struct Snapshot {
    ring: usize,
    error: Error,
    registers: [(&'static str, u64); SHOWN],
    status: [u64; WORDS],
    entries: [u64; ENTRIES],
    entry_words: usize,
    written: u32,
    submitted: u64,
    reached: u64,
    jobs: [Option<JobState>; JOBS],
    queues: [Option<WaitingJobs>; QUEUES],
}

impl Snapshot {
    fn new() -> Result<KBox<Self>> {
        KBox::init(
            init!(Self {
                ring: 0,
                error: EIO,
                registers: [("", 0); SHOWN],
                status: [0; WORDS],
                entries: [0; ENTRIES],
                entry_words: 0,
                written: 0,
                submitted: 0,
                reached: 0,
                jobs: [None; JOBS],
                queues: [None; QUEUES],
            }),
            GFP_KERNEL,
        )
    }

    /// Copies the state of the device.
    fn take(&mut self, ring: usize, error: Error, regs: &Regs, status: &Status) {
        self.ring = ring;
        self.error = error;
        // If the driver is unbound meanwhile, registers and words are zero.
        self.registers = regs.shown().unwrap_or([("", 0); SHOWN]);
        for (index, word) in self.status.iter_mut().enumerate() {
            *word = status.word(index).unwrap_or(0);
        }
        self.entry_words = 0;
        self.jobs = [None; JOBS];
        self.queues = [None; QUEUES];
    }

    /// Copies the entries of a ring and the number of entries written since its reset. Also copies
    /// the numbers of the last submission and of the last completed one.
    pub(crate) fn set_ring(
        &mut self,
        entries: impl Iterator<Item = u64>,
        written: u32,
        submitted: u64,
        reached: u64,
    ) {
        for (to, word) in self.entries.iter_mut().zip(entries) {
            *to = word;
            self.entry_words += 1;
        }
        self.written = written;
        self.submitted = submitted;
        self.reached = reached;
    }

    /// Copies the states of the jobs given to the ring in their order.
    pub(crate) fn set_jobs(&mut self, jobs: impl Iterator<Item = JobState>) {
        for (to, job) in self.jobs.iter_mut().zip(jobs) {
            *to = Some(job);
        }
    }

    /// Returns the place for the waiting jobs in the queues of the ring.
    pub(crate) fn queues(&mut self) -> &mut [Option<WaitingJobs>] {
        &mut self.queues
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "driver: mgpu")?;
        writeln!(f, "ring: {}", self.ring)?;
        writeln!(f, "error: {}", self.error.to_errno())?;
        writeln!(f, "entries written: {}", self.written)?;
        writeln!(f, "last submission: {}", self.submitted)?;
        writeln!(f, "last submission that is done: {}", self.reached)?;

        writeln!(f, "\nregisters:")?;
        for (name, value) in &self.registers {
            writeln!(f, "{}: {:#x}", name, value)?;
        }

        writeln!(f, "\nstatus page:")?;
        for (index, words) in self.status.chunks(4).enumerate() {
            if words.iter().any(|word| *word != 0) {
                write!(f, "{:03x}:", index * 32)?;
                for word in words {
                    write!(f, " {:016x}", word)?;
                }
                writeln!(f)?;
            }
        }

        writeln!(f, "\nentries:")?;
        let all = self.entries.get(..self.entry_words).unwrap_or(&[]);
        for (index, entry) in all.chunks(ENTRY).enumerate() {
            if entry.iter().any(|word| *word != 0) {
                write!(f, "{}:", index)?;
                for word in entry {
                    write!(f, " {:x}", word)?;
                }
                writeln!(f)?;
            }
        }

        writeln!(f, "\njobs:")?;
        for job in self.jobs.iter().flatten() {
            let state = if job.is_begun { "begun" } else { "waits" };

            writeln!(f, "{} bytes, {}", job.bytes, state)?;
        }

        writeln!(f, "\nqueues:")?;
        for queue in self.queues.iter().flatten() {
            let state = if queue.is_blocked {
                "waits for fences"
            } else {
                "waits for its turn"
            };

            writeln!(
                f,
                "context {}: {} jobs from number {} on, {}",
                queue.context, queue.count, queue.first, state
            )?;
        }
        Ok(())
    }
}

/// The state handled by the worker.
struct Todo {
    snapshot: Option<KBox<Snapshot>>,
    /// Memory for the next snapshot.
    spare: Option<KBox<Snapshot>>,
    /// The most severe event since the last run of the worker.
    event: Option<Event>,
    /// The DRM device from before its registration until it is unplugged.
    card: Option<ARef<card::Device>>,
}

#[pin_data]
struct Report {
    dev: ARef<device::Device>,
    contexts: Arc<Contexts>,
    #[pin]
    todo: Mutex<Todo>,
    #[pin]
    work: Work<Report>,
}

impl_has_work! {
    impl HasWork<Self> for Report { self.work }
}

impl WorkItem for Report {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let (snapshot, event, card) = {
            let mut todo = this.todo.lock();

            (todo.snapshot.take(), todo.event.take(), todo.card.clone())
        };

        if let Some(snapshot) = snapshot {
            if let Err(e) = devcoredump::print(&this.dev, &*snapshot) {
                dev_info!(this.dev, "there is no dump: {:?}\n", e);
            }
            this.todo.lock().spare = Some(snapshot);
        }
        if event > Some(Event::RingReset) {
            this.contexts.end_quarantine();
        }
        if let (Some(event), Some(card)) = (event, card) {
            handle(&card, event);
        }
    }
}

/// Handles an event: releases or loses VRAM and sends the event to userspace.
fn handle(card: &card::Device, event: Event) {
    let recovery = match event {
        Event::RingReset => WedgeRecovery::Nothing,
        Event::Reset => {
            card.ttm.allocator().end_quarantine();
            WedgeRecovery::Nothing
        }
        Event::Lost => return card.ttm.lose_vram(EIO),
        Event::Wedged => {
            card.ttm.lose_vram(EIO);
            WedgeRecovery::Rebind
        }
        Event::Gone => {
            card.ttm.lose_vram(ENODEV);
            // A probe would not find it.
            WedgeRecovery::BusReset
        }
    };

    // It fails if the device was unplugged meanwhile or memory runs out.
    let _ = card.wedged_event(&[recovery]);
}

/// The reporter of a device. Its drop waits for the worker.
pub(crate) struct Reporter {
    // Dropped first.
    queue: OwnedQueue,
    report: Arc<Report>,
}

impl Reporter {
    /// Creates the reporter of a device.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(dev: &device::Device, contexts: Arc<Contexts>) -> Result<Self> {
        let spare = Some(Snapshot::new()?);

        Ok(Self {
            queue: OwnedQueue::new(c"mgpu_report", false)?,
            report: Arc::pin_init(
                pin_init!(Report {
                    dev: dev.into(),
                    contexts,
                    todo <- new_mutex!(
                        Todo {
                            snapshot: None,
                            spare,
                            event: None,
                            card: None,
                        },
                        "mgpu::Report"
                    ),
                    work <- new_work!("mgpu::Report"),
                }),
                GFP_KERNEL,
            )?,
        })
    }

    /// Sets or clears the DRM device. It is set before its registration.
    pub(crate) fn set_card(&self, card: Option<ARef<card::Device>>) {
        let old = core::mem::replace(&mut self.report.todo.lock().card, card);

        drop(old);
    }

    fn card(&self) -> Option<ARef<card::Device>> {
        self.report.todo.lock().card.clone()
    }

    /// Hides VRAM from processes and importers, as far as possible within two seconds. Does nothing
    /// while no DRM device is registered. Sleeps.
    pub(crate) fn begin_reset(&self) {
        let Some(card) = self.card() else {
            return;
        };

        match card.ttm.begin_reset(EVICTION) {
            // The DRM device was unplugged meanwhile and all importers are gone with it.
            Err(e) if e == ENODEV => (),
            Ok(()) => (),
            Err(e) => dev_info!(
                self.report.dev,
                "VRAM is in use during the reset: {:?}\n",
                e
            ),
        }
    }

    /// Ends [`Self::begin_reset`].
    pub(crate) fn end_reset(&self) {
        if let Some(card) = self.card() {
            card.ttm.end_reset();
        }
    }

    /// Moves the content of VRAM to system memory or saves it before VRAM loses it. Does nothing
    /// while no DRM device is registered. Sleeps.
    ///
    /// # Errors
    ///
    /// The errors of [`kernel::drm::gem::ttm::Device::suspend`]. VRAM must then keep its content.
    pub(crate) fn save_vram(&self) -> Result {
        let Some(card) = self.card() else {
            return Ok(());
        };
        let mut ctx = OpCtx::uninterruptible();

        match card.ttm.suspend(Content::Lost, &mut ctx) {
            // The DRM device was unplugged meanwhile and all objects have left with it.
            Err(e) if e == ENODEV => Ok(()),
            ret => ret,
        }
    }

    /// Restores the content of VRAM saved by [`Self::save_vram`].
    ///
    /// # Errors
    ///
    /// The errors of [`kernel::drm::gem::ttm::Device::resume`].
    pub(crate) fn restore_vram(&self) -> Result {
        self.card().map_or(Ok(()), |card| card.ttm.resume())
    }

    /// Drops the content saved by [`Self::save_vram`] because VRAM has kept it.
    pub(crate) fn keep_vram(&self) {
        if let Some(card) = self.card() {
            card.ttm.undo_suspend();
        }
    }

    /// Takes a snapshot of the device. `f` adds the snapshot of a ring. Does nothing if the worker
    /// has not handled the last snapshot yet.
    pub(crate) fn snapshot(
        &self,
        ring: usize,
        error: Error,
        regs: &Regs,
        status: &Status,
        f: impl FnOnce(&mut Snapshot),
    ) {
        let Some(mut snapshot) = self.report.todo.lock().spare.take() else {
            return;
        };

        snapshot.take(ring, error, regs, status);
        f(&mut snapshot);
        self.report.todo.lock().snapshot = Some(snapshot);
    }

    /// Makes the worker report an event and the snapshot.
    pub(crate) fn tell(&self, event: Event) {
        {
            let mut todo = self.report.todo.lock();

            todo.event = todo.event.max(Some(event));
        }
        // A worker already queued has not taken the event yet.
        let _ = self.queue.enqueue(self.report.clone());
    }

    /// Waits until the worker has handled all events so far. Sleeps.
    pub(crate) fn flush(&self) {
        self.queue.flush();
    }
}

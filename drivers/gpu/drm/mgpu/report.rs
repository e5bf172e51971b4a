// SPDX-License-Identifier: GPL-2.0

//! What userspace is told of a device that has failed: an event, and a dump.
//!
//! Both allocate memory, which is not allowed where jobs are finished. So who finds that something
//! is wrong takes a [`Snapshot`], whose memory was allocated before, and a worker does the rest:
//!
//! - a dump by [`kernel::devcoredump`], of what came first. There is one at a time;
//! - an event by [`kernel::drm::Device::wedged_event`], as amdgpu has one of each ring that was
//!   reset;
//! - after a reset of the device, memory that was not cleared is given out again, and so are numbers
//!   and page tables of address spaces that the device may have known until then;
//! - if the device is given up, the objects in VRAM are lost.
//!
//! A ring is reset for each job that faults, without a timeout in between, so a client can have that
//! as often as it likes: the log, the dump and the event tell of ten in five seconds. What concerns
//! all of the device is told each time.
//!
//! # Locking
//!
//! One mutex, which comes after all others and is held for a moment only.

use kernel::{
    devcoredump,
    device,
    drm::{
        queue::WaitingJobs,
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

/// How many words of a ring are kept, how many jobs, and how many queues in which more of them wait.
const ENTRIES: usize = 512;
const JOBS: usize = 16;
const QUEUES: usize = 32;

/// How many words an entry has.
const ENTRY: usize = 8;

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A ring was reset.
    RingReset,
    /// The device was.
    Reset,
    /// It was given up.
    Wedged,
}

/// A job that the ring had been given.
#[derive(Clone, Copy)]
pub(crate) struct JobState {
    pub(crate) bytes: u64,
    /// A part of it was written to the ring.
    pub(crate) is_begun: bool,
}

/// What was known of a device when something was wrong with one of its rings.
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

    /// Takes note of the device.
    fn take(&mut self, ring: usize, error: Error, regs: &Regs, status: &Status) {
        self.ring = ring;
        self.error = error;
        // They read as zeroes if the driver is unbound meanwhile.
        self.registers = regs.shown().unwrap_or([("", 0); SHOWN]);
        for (index, word) in self.status.iter_mut().enumerate() {
            *word = status.word(index).unwrap_or(0);
        }
        self.entry_words = 0;
        self.jobs = [None; JOBS];
        self.queues = [None; QUEUES];
    }

    /// Takes note of a ring: how many entries were written since its reset, and the numbers of the
    /// last submission and of the last one that is done.
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

    /// Takes note of the jobs that the ring was given, in their order.
    pub(crate) fn set_jobs(&mut self, jobs: impl Iterator<Item = JobState>) {
        for (to, job) in self.jobs.iter_mut().zip(jobs) {
            *to = Some(job);
        }
    }

    /// Returns where it is noted what waits for the ring.
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

/// What the worker is to do.
struct Todo {
    snapshot: Option<KBox<Snapshot>>,
    /// Memory for the next one.
    spare: Option<KBox<Snapshot>>,
    /// The worst one.
    event: Option<Event>,
    /// The DRM device, while it is registered.
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
            told(&card, event);
        }
    }
}

/// Tells userspace of an event, and does what follows from it.
fn told(card: &card::Device, event: Event) {
    let recovery = match event {
        Event::RingReset => WedgeRecovery::Nothing,
        Event::Reset => {
            card.ttm.allocator().end_quarantine();
            WedgeRecovery::Nothing
        }
        Event::Wedged => {
            card.ttm.lose_vram(EIO);
            WedgeRecovery::Rebind
        }
    };

    // It was unplugged meanwhile, or memory has run out.
    let _ = card.wedged_event(&[recovery]);
}

/// Tells userspace. Dropping it waits for the worker.
pub(crate) struct Reporter {
    // Dropped first.
    queue: OwnedQueue,
    report: Arc<Report>,
}

impl Reporter {
    /// Makes what tells of a device.
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

    /// Says which DRM device it is, while it is registered.
    pub(crate) fn set_card(&self, card: Option<ARef<card::Device>>) {
        let old = core::mem::replace(&mut self.report.todo.lock().card, card);

        drop(old);
    }

    /// Takes a snapshot of the device and of a ring, which `f` adds, unless there is one that was not
    /// told yet.
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

    /// Has the worker tell of an event, and of a snapshot.
    pub(crate) fn tell(&self, event: Event) {
        {
            let mut todo = self.report.todo.lock();

            todo.event = todo.event.max(Some(event));
        }
        // If it is queued already, it has not looked yet.
        let _ = self.queue.enqueue(self.report.clone());
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Fake hardware that does what a test wants, and records what happens.

use kernel::{
    bindings,
    device,
    dma_buf::fence::{
        DriverFence,
        Fence,
        FenceContext,
        FenceContextOps, //
    },
    drm::queue::{
        Config,
        Done,
        HwInit,
        HwOf,
        Queue,
        Ring,
        RingOps,
        Verdict, //
    },
    faux,
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Completion,
        Mutex, //
    },
    time::Msecs,
    types::ForLt, //
};

use crate::worker::soon;

/// A timeout of a ring, in milliseconds: one that expires.
pub(crate) const SOON: Msecs = 40;

/// How many events a test sees at most.
pub(crate) const EVENTS: usize = 2048;

/// The reaction of the hardware to a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Does the job at once.
    Work,
    /// Fails the job at once.
    Fail,
    /// Keeps the job until the test ends it.
    Keep,
    /// Drops the job.
    Drop,
    /// Does the job, once [`Control::wake`] was called.
    Sleep,
}

/// An event in the life of a job, or of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Run(u32),
    Ended(u32, Result),
    Freed(u32),
    Reset,
}

pub(crate) struct Record {
    pub(crate) mode: Mode,
    pub(crate) events: KVec<Event>,
    pub(crate) kept: KVec<(u32, Done)>,
    pub(crate) verdicts: KVec<Verdict>,
    /// The result of the next reset, and the job that had ended just before, if any.
    pub(crate) reset: (Result, Option<u32>),
    /// The jobs that are lost in the next reset.
    pub(crate) lost: KVec<u32>,
    /// Whether the hardware is gone.
    pub(crate) gone: bool,
    /// The number of calls of the driver outside a signalling section.
    pub(crate) unguarded: u32,
}

/// Shared between a test and the hardware: the test controls it and sees its record. May outlive
/// the ring.
#[pin_data]
pub(crate) struct Control {
    #[pin]
    pub(crate) record: Mutex<Record>,
    /// The lock that freeing a job takes.
    #[pin]
    pub(crate) gate: Mutex<()>,
    /// Completed by [`Control::wake`].
    #[pin]
    woken: Completion,
}

impl Control {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let record = Record {
            mode: Mode::Work,
            events: KVec::with_capacity(EVENTS, GFP_KERNEL)?,
            kept: KVec::with_capacity(64, GFP_KERNEL)?,
            verdicts: KVec::with_capacity(64, GFP_KERNEL)?,
            reset: (Ok(()), None),
            lost: KVec::new(),
            gone: false,
            unguarded: 0,
        };

        Arc::pin_init(
            pin_init!(Self {
                record <- new_mutex!(record, "queue_kunit::Control::record"),
                gate <- new_mutex!((), "queue_kunit::Control::gate"),
                woken <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Wakes the jobs of [`Mode::Sleep`].
    pub(crate) fn wake(&self) {
        self.woken.complete_all();
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.record.lock().mode = mode;
    }

    /// Makes the hardware keep the next jobs, until a reset that comes with this verdict.
    pub(crate) fn blame(&self, verdict: Verdict) -> Result {
        let kept = KVec::with_capacity(8, GFP_KERNEL)?;
        let mut record = self.record.lock();

        // A reset takes the list, with its memory.
        record.kept = kept;
        record.mode = Mode::Keep;
        let _ = record.verdicts.push_within_capacity(verdict);
        Ok(())
    }

    /// Counts a call of the driver that is not in a signalling section.
    fn called(&self) {
        // SAFETY: Begins a section, and ends it. In another one the answer is that nothing was
        // begun.
        let is_guarded = unsafe {
            let cookie = bindings::dma_fence_begin_signalling();

            bindings::dma_fence_end_signalling(cookie);
            cookie
        };

        if !is_guarded {
            self.record.lock().unguarded += 1;
        }
    }

    fn saw(&self, event: Event) {
        let _ = self.record.lock().events.push_within_capacity(event);
    }

    /// Returns the jobs that have begun, in their order.
    pub(crate) fn runs(&self) -> Result<KVec<u32>> {
        let mut runs = KVec::with_capacity(EVENTS, GFP_KERNEL)?;

        for event in &self.record.lock().events {
            if let Event::Run(id) = event {
                let _ = runs.push_within_capacity(*id);
            }
        }
        Ok(runs)
    }

    pub(crate) fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.record
            .lock()
            .events
            .iter()
            .filter(|event| is(event))
            .count()
    }

    pub(crate) fn has(&self, event: Event) -> bool {
        self.count(|other| *other == event) > 0
    }

    /// Takes the oldest job that the hardware keeps, with the means to end it.
    pub(crate) fn take(&self) -> Result<(u32, Done)> {
        soon(|| !self.record.lock().kept.is_empty());
        self.record.lock().kept.remove(0).map_err(|_| ENOENT)
    }

    /// Ends the oldest job that the hardware keeps, which is `id`.
    pub(crate) fn end(&self, id: u32, result: Result) -> Result {
        let (oldest, done) = self.take()?;

        done.signal(result);
        if oldest == id {
            Ok(())
        } else {
            Err(EPROTO)
        }
    }
}

pub(crate) struct Item {
    id: u32,
    control: Arc<Control>,
}

impl Drop for Item {
    fn drop(&mut self) {
        drop(self.control.gate.lock());
        self.control.saw(Event::Freed(self.id));
    }
}

pub(crate) struct Machine<'a> {
    control: Arc<Control>,
    _dev: &'a device::Device<device::Bound>,
}

pub(crate) struct Ops;

impl RingOps for Ops {
    type Hw = ForLt!(Machine<'_>);
    type Job = Item;

    fn run(hw: &HwOf<'_, Self>, job: &mut Item, done: Done) {
        hw.control.called();
        let mut record = hw.control.record.lock();
        let _ = record.events.push_within_capacity(Event::Run(job.id));
        let mode = record.mode;
        // With the lock held: the hardware keeps what a test has seen begin.
        if mode == Mode::Keep {
            let _ = record.kept.push_within_capacity((job.id, done));
            return;
        }
        drop(record);

        match mode {
            Mode::Work => done.signal(Ok(())),
            Mode::Fail => done.signal(Err(EPERM)),
            Mode::Drop => drop(done),
            Mode::Sleep => {
                hw.control.woken.wait_for_completion();
                done.signal(Ok(()));
            }
            Mode::Keep => (),
        }
    }

    fn timed_out(hw: &HwOf<'_, Self>, _job: &Item, _limit: Msecs) -> Verdict {
        hw.control.called();
        hw.control
            .record
            .lock()
            .verdicts
            .pop()
            .unwrap_or(Verdict::Reset(ETIME))
    }

    fn is_gone(hw: &HwOf<'_, Self>) -> bool {
        hw.control.record.lock().gone
    }

    fn reset(hw: &HwOf<'_, Self>) -> Result {
        hw.control.called();
        hw.control.saw(Event::Reset);
        let (kept, lost, (result, ended)) = {
            let mut record = hw.control.record.lock();

            record.mode = Mode::Work;
            (
                core::mem::take(&mut record.kept),
                core::mem::take(&mut record.lost),
                record.reset,
            )
        };

        for (id, done) in kept {
            if Some(id) == ended {
                done.signal(Ok(()));
            } else if lost.contains(&id) {
                done.signal(Err(EIO));
            }
            // The other jobs are dropped: the ring is empty after the reset.
        }
        result
    }

    fn ended(job: &mut Item, result: Result) {
        job.control.called();
        job.control.saw(Event::Ended(job.id, result));
    }
}

pub(crate) struct Init(pub(crate) Arc<Control>);

impl HwInit<Ops> for Init {
    fn init<'a>(self, dev: &'a device::Device<device::Bound>) -> impl PinInit<Machine<'a>, Error> {
        Ok(Machine {
            control: self.0,
            _dev: dev,
        })
    }
}

pub(crate) struct Others;

impl FenceContextOps for Others {
    const DRIVER_NAME: &'static CStr = c"others";
    type Data = ();
}

/// A fence of another device.
pub(crate) fn foreign() -> Result<DriverFence<Others>> {
    Ok(FenceContext::<Others>::new(c"others")?
        .new_fence_allocation(())?
        .new_fence())
}

/// Calls `f` with a ring that has `credits` credits.
pub(crate) fn with_ring(
    credits: usize,
    timeout: Option<Msecs>,
    f: impl FnOnce(Ring<'_, Ops>, &Arc<Control>, &device::Device<device::Bound>) -> Result,
) -> Result {
    let faux = faux::Registration::new(c"queue_kunit", None)?;
    let parent: &faux::Device<device::Bound> = faux.as_ref();
    let dev: &device::Device<device::Bound> = parent.as_ref();
    let control = Control::new()?;

    f(ring(dev, credits, timeout, &control)?, &control, dev)
}

pub(crate) fn ring<'a>(
    dev: &'a device::Device<device::Bound>,
    credits: usize,
    timeout: Option<Msecs>,
    control: &Arc<Control>,
) -> Result<Ring<'a, Ops>> {
    let config = Config {
        name: c"fake",
        credits,
        timeout,
    };

    Ring::new(dev, &config, Init(control.clone()))
}

pub(crate) fn item(control: &Arc<Control>, id: u32) -> Item {
    Item {
        id,
        control: control.clone(),
    }
}

pub(crate) fn submit(queue: &Queue<Ops>, control: &Arc<Control>, id: u32) -> Result<ARef<Fence>> {
    Ok(queue.job(None, item(control, id))?.submit(|_| ()))
}

pub(crate) fn submit_after(
    queue: &Queue<Ops>,
    control: &Arc<Control>,
    id: u32,
    fence: &Fence,
) -> Result<ARef<Fence>> {
    let mut job = queue.job(None, item(control, id))?;

    job.depend_on_fence(fence)?;
    Ok(job.submit(|_| ()))
}

/// Waits for the end of a job, and returns how it ended, [`None`] if it does not.
pub(crate) fn status(fence: &ARef<Fence>) -> Option<Result> {
    soon(|| fence.is_signaled());
    fence.status()
}

// SPDX-License-Identifier: GPL-2.0

//! KUnit suite for the queues of a ring, `kernel::drm::queue`, on hardware that does what a test
//! wants.

use kernel::prelude::*;

#[path = "vram/worker.rs"]
mod worker;

module! {
    type: QueueKunit,
    name: "queue_kunit",
    authors: ["The vvram developers"],
    description: "KUnit suite for the queues of a ring",
    license: "GPL",
}

struct QueueKunit;

impl kernel::Module for QueueKunit {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}

#[kunit_tests(drm_queue)]
mod tests {
    use kernel::{
        bindings,
        device,
        dma_buf::fence::{
            DriverFence,
            Fence,
            FenceContext,
            FenceContextOps,
            FenceGroup, //
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
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc,
            Completion,
            Mutex, //
        },
        time::{
            delay::fsleep,
            Delta,
            Msecs, //
        },
        types::ForLt, //
    };

    use crate::worker;

    /// How long a test waits for what has to happen, in milliseconds.
    const LIMIT: u32 = 20_000;
    /// A timeout of a ring, in milliseconds: one that expires.
    const SOON: Msecs = 40;

    /// How many events a test sees at most.
    const EVENTS: usize = 2048;

    /// What the hardware does with a job.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Mode {
        /// Does it at once.
        Work,
        /// Fails at once.
        Fail,
        /// Keeps it.
        Keep,
        /// Gives it up.
        Drop,
    }

    /// What happened to a job.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Event {
        Run(u32),
        Ended(u32, Result),
        Freed(u32),
        Reset,
    }

    struct Record {
        mode: Mode,
        events: KVec<Event>,
        kept: KVec<(u32, Done)>,
        verdicts: KVec<Verdict>,
        /// How the next reset ends, and which job had ended just before.
        reset: (Result, Option<u32>),
    }

    /// By which a test sees and tells what the hardware does. It may outlive the ring.
    #[pin_data]
    struct Control {
        #[pin]
        record: Mutex<Record>,
    }

    impl Control {
        fn new() -> Result<Arc<Self>> {
            let record = Record {
                mode: Mode::Work,
                events: KVec::with_capacity(EVENTS, GFP_KERNEL)?,
                kept: KVec::with_capacity(64, GFP_KERNEL)?,
                verdicts: KVec::with_capacity(64, GFP_KERNEL)?,
                reset: (Ok(()), None),
            };

            Arc::pin_init(
                pin_init!(Self {
                    record <- new_mutex!(record, "queue_kunit::Control::record"),
                }),
                GFP_KERNEL,
            )
        }

        fn set(&self, mode: Mode) {
            self.record.lock().mode = mode;
        }

        fn saw(&self, event: Event) {
            let _ = self.record.lock().events.push_within_capacity(event);
        }

        /// Returns the jobs that have begun, in their order.
        fn runs(&self) -> Result<KVec<u32>> {
            let mut runs = KVec::with_capacity(EVENTS, GFP_KERNEL)?;

            for event in &self.record.lock().events {
                if let Event::Run(id) = event {
                    let _ = runs.push_within_capacity(*id);
                }
            }
            Ok(runs)
        }

        fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
            self.record
                .lock()
                .events
                .iter()
                .filter(|event| is(event))
                .count()
        }

        fn has(&self, event: Event) -> bool {
            self.count(|other| *other == event) > 0
        }

        /// Takes what the hardware has of the oldest job that it keeps.
        fn take(&self) -> Result<(u32, Done)> {
            soon(|| !self.record.lock().kept.is_empty());
            self.record.lock().kept.remove(0).map_err(|_| ENOENT)
        }

        /// Ends the oldest job that the hardware keeps, which is `id`.
        fn end(&self, id: u32, result: Result) -> Result {
            let (oldest, done) = self.take()?;

            done.signal(result);
            if oldest == id {
                Ok(())
            } else {
                Err(EPROTO)
            }
        }
    }

    /// Waits until `is` holds. Returns whether it does.
    fn soon(is: impl Fn() -> bool) -> bool {
        for _ in 0..LIMIT {
            if is() {
                return true;
            }
            fsleep(Delta::from_millis(1));
        }
        is()
    }

    /// Gives the worker time to do what it must not do.
    fn pause() {
        fsleep(Delta::from_millis(20));
    }

    struct Item {
        id: u32,
        control: Arc<Control>,
    }

    impl Drop for Item {
        fn drop(&mut self) {
            self.control.saw(Event::Freed(self.id));
        }
    }

    struct Machine<'a> {
        control: Arc<Control>,
        _dev: &'a device::Device<device::Bound>,
    }

    struct Ops;

    impl RingOps for Ops {
        type Hw = ForLt!(Machine<'_>);
        type Job = Item;

        fn run(hw: &HwOf<'_, Self>, job: &mut Item, done: Done) {
            hw.control.saw(Event::Run(job.id));
            let mode = hw.control.record.lock().mode;

            match mode {
                Mode::Work => done.signal(Ok(())),
                Mode::Fail => done.signal(Err(EPERM)),
                Mode::Drop => drop(done),
                Mode::Keep => {
                    let _ = hw
                        .control
                        .record
                        .lock()
                        .kept
                        .push_within_capacity((job.id, done));
                }
            }
        }

        fn timed_out(hw: &HwOf<'_, Self>, _job: &Item) -> Verdict {
            hw.control
                .record
                .lock()
                .verdicts
                .pop()
                .unwrap_or(Verdict::Reset(ETIME))
        }

        fn reset(hw: &HwOf<'_, Self>) -> Result {
            hw.control.saw(Event::Reset);
            let (kept, (result, ended)) = {
                let mut record = hw.control.record.lock();
                let mut kept = KVec::new();

                core::mem::swap(&mut kept, &mut record.kept);
                record.mode = Mode::Work;
                (kept, record.reset)
            };

            for (id, done) in kept {
                if Some(id) == ended {
                    done.signal(Ok(()));
                }
                // The others are dropped: the ring is empty.
            }
            result
        }

        fn ended(job: &mut Item, result: Result) {
            job.control.saw(Event::Ended(job.id, result));
        }
    }

    struct Init(Arc<Control>);

    impl HwInit<Ops> for Init {
        fn init<'a>(
            self,
            dev: &'a device::Device<device::Bound>,
        ) -> impl PinInit<Machine<'a>, Error> {
            Ok(Machine {
                control: self.0,
                _dev: dev,
            })
        }
    }

    struct Others;

    impl FenceContextOps for Others {
        const DRIVER_NAME: &'static CStr = c"others";
        type Data = ();
    }

    /// A fence of another device.
    fn foreign() -> Result<DriverFence<Others>> {
        Ok(FenceContext::<Others>::new(c"others")?
            .new_fence_allocation(())?
            .new_fence())
    }

    /// Calls `f` with a ring that has so many credits.
    fn with_ring(
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

    fn ring<'a>(
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

    fn item(control: &Arc<Control>, id: u32) -> Item {
        Item {
            id,
            control: control.clone(),
        }
    }

    fn submit(queue: &Queue<Ops>, control: &Arc<Control>, id: u32) -> Result<ARef<Fence>> {
        Ok(queue.job(None, item(control, id))?.submit(|_| ()))
    }

    fn submit_after(
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
    fn status(fence: &ARef<Fence>) -> Option<Result> {
        soon(|| fence.is_signaled());
        fence.status()
    }

    #[test]
    fn jobs_of_a_queue_run_and_signal_in_their_order() -> Result {
        with_ring(2, None, |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            control.set(Mode::Keep);

            let fences = [
                submit(&queue, control, 1)?,
                submit(&queue, control, 2)?,
                submit(&queue, control, 3)?,
            ];
            assert!(
                fences
                    .windows(2)
                    .all(|two| two[0].context() == two[1].context()
                        && two[0].seqno() < two[1].seqno())
            );

            // As many as there are credits.
            let (first, one) = control.take()?;
            let (second, two) = control.take()?;
            pause();
            assert_eq!(&*control.runs()?, &[1, 2]);
            assert_eq!([first, second], [1, 2]);

            // What ends early signals in its turn.
            two.signal(Err(EPERM));
            control.end(3, Ok(()))?;
            pause();
            assert!(fences.iter().all(|fence| !fence.is_signaled()));
            one.signal(Ok(()));
            assert_eq!(status(&fences[0]), Some(Ok(())));
            assert_eq!(status(&fences[1]), Some(Err(EPERM)));
            assert_eq!(status(&fences[2]), Some(Ok(())));
            assert!(soon(|| control.has(Event::Freed(3))));
            assert!(control.has(Event::Ended(2, Err(EPERM))));
            Ok(())
        })
    }

    #[test]
    fn jobs_of_the_kernel_go_first() -> Result {
        with_ring(1, None, |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            control.set(Mode::Keep);

            let mut last = submit(&queue, control, 1)?;
            assert!(soon(|| control.has(Event::Run(1))));
            for id in 2..5 {
                last = submit(&queue, control, id)?;
            }
            submit(ring.kernel(), control, 10)?;
            submit(ring.kernel(), control, 11)?;
            control.set(Mode::Work);
            control.end(1, Ok(()))?;
            assert_eq!(status(&last), Some(Ok(())));
            assert_eq!(&*control.runs()?, &[1, 10, 11, 2, 3, 4]);
            Ok(())
        })
    }

    #[test]
    fn clients_have_their_turns() -> Result {
        const FLOOD: u32 = 40;

        with_ring(2, None, |ring, control, _| {
            let group = FenceGroup::new();
            let (flooder, second) = (ring.queue(64, group)?, ring.queue(64, group)?);
            let third = ring.queue(64, group)?;
            control.set(Mode::Keep);

            for id in 0..FLOOD {
                submit(&flooder, control, id)?;
            }
            assert!(soon(|| control.runs().is_ok_and(|runs| runs.len() == 2)));
            let fences = [
                submit(&second, control, 100)?,
                submit(&third, control, 200)?,
            ];
            let last = submit(&flooder, control, FLOOD)?;
            control.set(Mode::Work);
            control.end(0, Ok(()))?;
            control.end(1, Ok(()))?;
            assert_eq!(status(&last), Some(Ok(())));
            assert!(fences.iter().all(|fence| fence.status() == Some(Ok(()))));

            // Behind what the hardware had, and one job of each other client.
            let runs = control.runs()?;
            assert_eq!(runs.len(), FLOOD as usize + 3);
            let place = |id| runs.iter().position(|run| *run == id);
            assert!(place(100).is_some_and(|place| place <= 2 + 2));
            assert!(place(200).is_some_and(|place| place <= 2 + 3));
            Ok(())
        })
    }

    /// A signal that is pending for this task, a kernel thread, until it is dropped.
    struct Signal(());

    impl Signal {
        const NUMBER: c_int = 10;

        fn new() -> Self {
            // SAFETY: `SIG_KTHREAD`, which lets a kernel thread have a signal, is a number and not
            // the address of a function; nothing calls it. The task is the current one.
            unsafe {
                bindings::kernel_sigaction(Self::NUMBER, handler(2));
                bindings::send_sig(Self::NUMBER, kernel::current!().as_ptr(), 1);
            }
            Self(())
        }
    }

    impl Drop for Signal {
        fn drop(&mut self) {
            // SAFETY: As in `new()`, with `SIG_IGN`.
            unsafe {
                bindings::flush_signals(kernel::current!().as_ptr());
                bindings::kernel_sigaction(Self::NUMBER, handler(1));
            }
        }
    }

    /// Returns one of the handlers that are numbers.
    fn handler(number: usize) -> bindings::__sighandler_t {
        // SAFETY: Both are pointers, null excepted, which the number is not.
        unsafe { core::mem::transmute(number) }
    }

    #[test]
    fn client_waits_for_room_until_a_signal() -> Result {
        with_ring(1, None, |ring, control, _| {
            let queue = Arc::new(ring.queue(2, FenceGroup::new())?, GFP_KERNEL)?;
            control.set(Mode::Keep);

            for id in 1..3 {
                let permit = queue.permit()?;
                queue.job(Some(permit), item(control, id))?.submit(|_| ());
            }

            let signal = Signal::new();
            assert_eq!(queue.permit().err(), Some(ERESTARTSYS));
            drop(signal);

            let has = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
            let got = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
            let (waiter, told, count) = (queue.clone(), has.clone(), got.clone());
            worker::spawn(move || {
                if waiter.permit().is_ok() {
                    count.fetch_add(1, Relaxed);
                }
                drop(waiter);
                told.complete_all();
            })?;
            pause();
            assert_eq!(got.load(Relaxed), 0);
            // Until the job is freed.
            control.end(1, Ok(()))?;
            has.wait_for_completion();
            assert_eq!(got.load(Relaxed), 1);
            assert!(control.has(Event::Freed(1)));
            control.end(2, Ok(()))?;

            // A permit of another client is none, and the kernel needs none.
            let other = ring.queue(1, FenceGroup::new())?;
            assert_eq!(
                queue.job(Some(other.permit()?), item(control, 9)).err(),
                Some(EINVAL)
            );
            assert_eq!(ring.kernel().permit().err(), Some(EINVAL));
            Ok(())
        })
    }

    #[test]
    fn closed_ring_ends_the_wait_for_room() -> Result {
        with_ring(1, None, |ring, control, _| {
            let queue = Arc::new(ring.queue(1, FenceGroup::new())?, GFP_KERNEL)?;
            let busy = foreign()?;
            let mut job = queue.job(Some(queue.permit()?), item(control, 1))?;
            job.depend(busy.fence())?;
            let fence = job.submit(|_| ());

            let has = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
            let gone = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
            for _ in 0..2 {
                let (waiter, told, count) = (queue.clone(), has.clone(), gone.clone());
                worker::spawn(move || {
                    if waiter.permit().err() == Some(ENODEV) && count.fetch_add(1, Relaxed) == 1 {
                        told.complete_all();
                    }
                })?;
            }
            pause();
            ring.close();
            has.wait_for_completion();
            assert_eq!(status(&fence), Some(Err(ECANCELED)));
            assert_eq!(queue.job(None, item(control, 2)).err(), Some(ENODEV));
            // The kernel goes on.
            assert_eq!(status(&submit(ring.kernel(), control, 3)?), Some(Ok(())));
            Ok(())
        })
    }

    #[test]
    fn job_begins_when_its_dependencies_are_over() -> Result {
        with_ring(1, None, |ring, control, dev| {
            let group = FenceGroup::new();
            let (queue, other) = (ring.queue(8, group)?, ring.queue(8, group)?);
            let far_control = Control::new()?;
            let far_ring = self::ring(dev, 1, None, &far_control)?;
            let far = far_ring.queue(8, group)?;
            let stranger = foreign()?;

            // Of another device, of another ring, and one that is over.
            far_control.set(Mode::Keep);
            let elsewhere = submit(&far, &far_control, 50)?;
            let over = submit(&other, control, 1)?;
            assert_eq!(status(&over), Some(Ok(())));
            let mut job = queue.job(None, item(control, 2))?;
            job.depend(stranger.fence())?;
            job.depend_on_fence(&elsewhere)?;
            job.depend_on_fence(&over)?;
            let fence = job.submit(|fence| assert!(!fence.is_signaled()));
            assert!(group.has(&fence) && !group.has_internal(&fence));
            // It holds up what is behind it, and no other queue.
            let behind = submit(&queue, control, 3)?;
            let mine = submit_after(&other, control, 4, &behind)?;
            assert_eq!(status(&submit(ring.kernel(), control, 5)?), Some(Ok(())));
            pause();
            assert_eq!(&*control.runs()?, &[1, 5]);
            assert!(!group.has_internal(&behind) && !group.has_internal(&mine));

            stranger.signal(Ok(()));
            pause();
            assert_eq!(&*control.runs()?, &[1, 5]);
            // One that fails is over as well.
            far_control.end(50, Err(EPERM))?;
            assert_eq!(status(&mine), Some(Ok(())));
            assert_eq!(&*control.runs()?, &[1, 5, 2, 3, 4]);
            assert_eq!(fence.status(), Some(Ok(())));

            // Without others it is internal.
            control.set(Mode::Keep);
            let first = submit(&queue, control, 6)?;
            let second = submit_after(&other, control, 7, &first)?;
            assert!(group.has_internal(&first) && group.has_internal(&second));
            control.end(6, Ok(()))?;
            control.end(7, Ok(()))?;
            assert_eq!(status(&second), Some(Ok(())));
            Ok(())
        })
    }

    #[test]
    fn job_that_is_dropped_has_never_been() -> Result {
        with_ring(1, None, |ring, control, _| {
            let queue = ring.queue(1, FenceGroup::new())?;
            let stranger = foreign()?;
            let first = submit(&queue, control, 1)?;

            for _ in 0..3 {
                let mut job = queue.job(Some(queue.permit()?), item(control, 2))?;
                job.depend(stranger.fence())?;
                drop(job);
                assert!(control.has(Event::Freed(2)));
            }
            assert_eq!(submit(&queue, control, 3)?.seqno(), first.seqno() + 1);
            // Its callback was removed.
            stranger.signal(Ok(()));
            assert!(soon(|| control.has(Event::Freed(3))));
            assert_eq!(&*control.runs()?, &[1, 3]);
            Ok(())
        })
    }

    #[test]
    fn closed_queue_cancels_what_has_not_begun() -> Result {
        with_ring(1, None, |ring, control, _| {
            let group = FenceGroup::new();
            let (queue, other) = (ring.queue(8, group)?, ring.queue(8, group)?);
            let stranger = foreign()?;
            control.set(Mode::Keep);

            let running = submit(&queue, control, 1)?;
            assert!(soon(|| control.has(Event::Run(1))));
            let blocked = submit_after(&queue, control, 2, stranger.fence())?;
            let behind = submit(&queue, control, 3)?;
            // At once, with a job that waits for somebody.
            drop(queue);
            assert!(soon(|| control.has(Event::Freed(3))));
            assert!(control.has(Event::Ended(2, Err(ECANCELED))));
            // Not before the one that has begun.
            assert!(![&running, &blocked, &behind]
                .iter()
                .any(|fence| fence.is_signaled()));
            control.set(Mode::Work);
            control.end(1, Ok(()))?;
            assert_eq!(status(&running), Some(Ok(())));
            assert_eq!(status(&blocked), Some(Err(ECANCELED)));
            assert_eq!(status(&behind), Some(Err(ECANCELED)));

            stranger.signal(Ok(()));
            assert_eq!(status(&submit(&other, control, 4)?), Some(Ok(())));
            assert_eq!(&*control.runs()?, &[1, 4]);
            Ok(())
        })
    }

    #[test]
    fn one_job_is_cancelled_unless_it_has_begun() -> Result {
        with_ring(1, None, |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            control.set(Mode::Keep);

            let first = submit(&queue, control, 1)?;
            let second = submit(&queue, control, 2)?;
            let third = submit(&queue, control, 3)?;
            assert!(soon(|| control.has(Event::Run(1))));
            assert!(!queue.cancel(&first));
            assert!(queue.cancel(&second));
            assert!(!queue.cancel(&second));
            control.end(1, Ok(()))?;
            control.end(3, Ok(()))?;
            assert_eq!(status(&third), Some(Ok(())));
            assert_eq!(second.status(), Some(Err(ECANCELED)));
            assert_eq!(&*control.runs()?, &[1, 3]);

            // One that held up the rest.
            let stranger = foreign()?;
            control.set(Mode::Work);
            let blocked = submit_after(&queue, control, 4, stranger.fence())?;
            let behind = submit(&queue, control, 5)?;
            assert!(queue.cancel(&blocked));
            assert_eq!(status(&behind), Some(Ok(())));
            Ok(())
        })
    }

    #[test]
    fn ring_that_goes_ends_every_job_once_in_order() -> Result {
        with_ring(2, None, |ring, control, _| {
            let group = FenceGroup::new();
            let (queue, other) = (ring.queue(8, group)?, ring.queue(8, group)?);
            let stranger = foreign()?;
            control.set(Mode::Keep);

            let mut fences = KVec::new();
            fences.push(submit(&queue, control, 0)?, GFP_KERNEL)?;
            fences.push(submit(&queue, control, 1)?, GFP_KERNEL)?;
            assert!(soon(|| control.has(Event::Run(1))));
            fences.push(
                submit_after(&queue, control, 2, stranger.fence())?,
                GFP_KERNEL,
            )?;
            fences.push(submit(&queue, control, 3)?, GFP_KERNEL)?;
            fences.push(
                submit_after(&other, control, 4, stranger.fence())?,
                GFP_KERNEL,
            )?;
            // The kernel's depends on a client's.
            let kernel = submit_after(ring.kernel(), control, 5, &fences[3])?;
            let (_, one) = control.take()?;
            let (_, two) = control.take()?;

            let ender = control.clone();
            worker::spawn(move || {
                pause();
                ender.set(Mode::Work);
                two.signal(Ok(()));
                one.signal(Ok(()));
            })?;
            drop(ring);
            // All of it is over, whatever others do.
            assert_eq!(fences[0].status(), Some(Ok(())));
            assert_eq!(fences[1].status(), Some(Ok(())));
            for fence in &fences[2..] {
                assert_eq!(fence.status(), Some(Err(ECANCELED)));
            }
            assert_eq!(kernel.status(), Some(Ok(())));
            assert_eq!(&*control.runs()?, &[0, 1, 5]);
            for id in 0..6 {
                assert_eq!(
                    control.count(|event| matches!(event, Event::Ended(job, _) if *job == id)),
                    1
                );
                assert_eq!(control.count(|event| *event == Event::Freed(id)), 1);
            }

            assert_eq!(queue.job(None, item(control, 9)).err(), Some(ENODEV));
            assert_eq!(queue.permit().err(), Some(ENODEV));
            stranger.signal(Ok(()));
            drop((queue, other));
            assert_eq!(fences[4].status(), Some(Err(ECANCELED)));
            Ok(())
        })
    }

    #[test]
    fn end_that_comes_after_the_ring_does_nothing() -> Result {
        with_ring(1, Some(SOON), |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            control.set(Mode::Keep);
            let fence = submit(&queue, control, 1)?;
            let (_, late) = control.take()?;

            // The job times out, and ends by that.
            drop(ring);
            assert_eq!(fence.status(), Some(Err(ETIME)));
            late.signal(Ok(()));
            assert_eq!(fence.status(), Some(Err(ETIME)));
            assert_eq!(control.count(|event| matches!(event, Event::Ended(..))), 1);
            Ok(())
        })
    }

    #[test]
    fn job_that_is_given_up_fails() -> Result {
        with_ring(1, None, |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;

            control.set(Mode::Drop);
            assert_eq!(status(&submit(&queue, control, 1)?), Some(Err(ECANCELED)));
            control.set(Mode::Fail);
            assert_eq!(status(&submit(&queue, control, 2)?), Some(Err(EPERM)));
            control.set(Mode::Work);
            assert_eq!(status(&submit(&queue, control, 3)?), Some(Ok(())));
            Ok(())
        })
    }

    #[test]
    fn job_that_hangs_ends_and_others_run_again() -> Result {
        with_ring(3, Some(SOON), |ring, control, _| {
            let group = FenceGroup::new();
            let (queue, other) = (ring.queue(8, group)?, ring.queue(8, group)?);
            {
                let mut record = control.record.lock();

                record.mode = Mode::Keep;
                // At first it seems to work.
                for _ in 0..3 {
                    let _ = record.verdicts.push_within_capacity(Verdict::Busy);
                }
            }

            let hung = submit(&queue, control, 1)?;
            assert!(soon(|| control.has(Event::Run(1))));
            let fences = [
                submit(&other, control, 2)?,
                submit(&queue, control, 3)?,
                submit(&queue, control, 4)?,
            ];
            assert_eq!(status(&hung), Some(Err(ETIME)));
            assert!(fences.iter().all(|fence| status(fence) == Some(Ok(()))));
            assert!(control.record.lock().verdicts.is_empty());
            assert_eq!(control.count(|event| *event == Event::Reset), 1);
            assert_eq!(&*control.runs()?, &[1, 2, 3, 2, 3, 4]);
            assert!(soon(|| control.has(Event::Ended(1, Err(ETIME)))));
            assert_eq!(status(&submit(&queue, control, 5)?), Some(Ok(())));
            Ok(())
        })
    }

    #[test]
    fn job_that_ends_at_its_timeout_keeps_that_end() -> Result {
        with_ring(2, Some(SOON), |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            {
                let mut record = control.record.lock();

                record.mode = Mode::Keep;
                record.reset = (Ok(()), Some(1));
            }

            let first = submit(&queue, control, 1)?;
            let second = submit(&queue, control, 2)?;
            assert_eq!(status(&first), Some(Ok(())));
            assert_eq!(status(&second), Some(Ok(())));
            assert_eq!(&*control.runs()?, &[1, 2, 2]);
            Ok(())
        })
    }

    #[test]
    fn ring_that_cannot_be_reset_ends_everything() -> Result {
        with_ring(2, Some(SOON), |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            {
                let mut record = control.record.lock();

                record.mode = Mode::Keep;
                record.reset = (Err(ENXIO), None);
            }

            let fences = [
                submit(&queue, control, 1)?,
                submit(&queue, control, 2)?,
                submit(&queue, control, 3)?,
            ];
            assert_eq!(status(&fences[0]), Some(Err(ETIME)));
            assert_eq!(status(&fences[1]), Some(Err(ENXIO)));
            assert_eq!(status(&fences[2]), Some(Err(ENXIO)));
            assert_eq!(queue.job(None, item(control, 4)).err(), Some(ENODEV));
            assert_eq!(
                ring.kernel().job(None, item(control, 5)).err(),
                Some(ENODEV)
            );
            assert_eq!(&*control.runs()?, &[1, 2]);
            Ok(())
        })
    }

    #[test]
    fn bad_rings_are_refused() -> Result {
        with_ring(1, None, |ring, control, dev| {
            let config = |name, credits| Config {
                name,
                credits,
                timeout: None,
            };
            let new = |config| Ring::<Ops>::new(dev, &config, Init(control.clone())).err();

            assert_eq!(new(config(c"none", 0)), Some(EINVAL));
            assert_eq!(
                new(config(c"a name that is too long for a ring", 1)),
                Some(ENAMETOOLONG)
            );
            assert_eq!(ring.queue(0, FenceGroup::new()).err(), Some(EINVAL));
            Ok(())
        })
    }

    /// Ends of the hardware, timeouts, resets, closed queues and dependencies, at the same time.
    #[test]
    fn nothing_is_lost_in_a_storm() -> Result {
        const JOBS: u32 = 60;

        with_ring(4, Some(1), |ring, control, _| {
            let group = FenceGroup::new();
            let ended = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
            let stop = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
            let (ender, count, told) = (control.clone(), ended.clone(), stop.clone());

            // Ends what the ring keeps, the latest first, about when it times out.
            worker::spawn(move || {
                while count.load(Relaxed) == 0 {
                    let done = ender.record.lock().kept.pop();
                    if let Some((_, done)) = done {
                        done.signal(Ok(()));
                    }
                    fsleep(Delta::from_micros(700));
                    ender.set(Mode::Keep);
                }
                ender.set(Mode::Work);
                loop {
                    let done = ender.record.lock().kept.pop();
                    match done {
                        Some((_, done)) => done.signal(Ok(())),
                        None => break,
                    }
                }
                told.complete_all();
            })?;

            let mut fences = KVec::new();
            for round in 0..3 {
                let (queue, other) = (ring.queue(64, group)?, ring.queue(64, group)?);
                let mut last = submit(ring.kernel(), control, 1000 * round)?;
                for id in 1..JOBS {
                    let on = if id % 2 == 0 { &queue } else { &other };
                    last = submit_after(on, control, 1000 * round + id, &last)?;
                    fences.push(last.clone(), GFP_KERNEL)?;
                }
                // Some have begun by now.
            }
            for fence in &fences {
                assert!(status(fence).is_some());
            }
            ended.store(1, Relaxed);
            stop.wait_for_completion();
            drop(ring);
            let freed = control.count(|event| matches!(event, Event::Freed(_)));
            let begun = control.count(|event| matches!(event, Event::Ended(..)));
            assert_eq!((freed, begun), (3 * JOBS as usize, 3 * JOBS as usize));
            Ok(())
        })
    }
}

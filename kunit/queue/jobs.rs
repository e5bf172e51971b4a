// SPDX-License-Identifier: GPL-2.0

//! Queues of clients and of the kernel: which job begins when.

use kernel::prelude::*;

#[kunit_tests(drm_queue)]
mod tests {
    use kernel::{
        dma_buf::fence::{
            Fence,
            FenceGroup, //
        },
        drm::queue::WaitingJobs,
        prelude::*,
        sync::{
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc,
            Completion, //
        }, //
    };

    use crate::{
        fake::{
            foreign,
            item,
            ring,
            status,
            submit,
            submit_after,
            with_ring,
            Control,
            Event,
            Mode, //
        },
        signal::Signal,
        worker::{
            self,
            pause,
            soon, //
        }, //
    };

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

            // As many jobs begin as there are credits.
            let (first, one) = control.take()?;
            let (second, two) = control.take()?;
            pause();
            assert_eq!(&*control.runs()?, &[1, 2]);
            assert_eq!([first, second], [1, 2]);

            // The fence of a job that ends early signals in its turn.
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

    /// A late job of the kernel holds up no other of them, and goes before those of clients.
    #[test]
    fn late_jobs_hold_up_no_other() -> Result {
        with_ring(2, None, |ring, control, _| {
            let (queue, kernel) = (ring.queue(8, FenceGroup::new())?, ring.kernel());
            let stranger = foreign()?;
            control.set(Mode::Keep);

            submit(&queue, control, 1)?;
            assert!(soon(|| control.has(Event::Run(1))));
            let late = submit_after(&kernel.late()?, control, 10, stranger.fence())?;
            control.set(Mode::Work);
            assert_eq!(status(&submit(kernel, control, 11)?), Some(Ok(())));
            assert_eq!(late.status(), None);

            control.set(Mode::Keep);
            submit(&queue, control, 2)?;
            assert!(soon(|| control.has(Event::Run(2))));
            let last = submit(&queue, control, 3)?;
            stranger.signal(Ok(()));
            control.set(Mode::Work);
            control.end(1, Ok(()))?;
            control.end(2, Ok(()))?;
            assert_eq!(status(&late), Some(Ok(())));
            assert_eq!(status(&last), Some(Ok(())));
            assert_eq!(&*control.runs()?, &[1, 11, 2, 10, 3]);
            assert_eq!(queue.late().err(), Some(EINVAL));
            Ok(())
        })
    }

    /// The late jobs of one client do not keep the other jobs of the kernel waiting.
    #[test]
    fn late_jobs_take_every_other_turn() -> Result {
        with_ring(1, None, |ring, control, _| {
            let (queue, kernel) = (ring.queue(8, FenceGroup::new())?, ring.kernel());
            let stranger = foreign()?;
            control.set(Mode::Keep);

            submit(&queue, control, 1)?;
            assert!(soon(|| control.has(Event::Run(1))));
            let mut last = submit(kernel, control, 10)?;
            for id in 20..24 {
                last = submit_after(&kernel.late()?, control, id, stranger.fence())?;
            }
            submit(kernel, control, 11)?;
            stranger.signal(Ok(()));
            control.set(Mode::Work);
            control.end(1, Ok(()))?;
            assert_eq!(status(&last), Some(Ok(())));
            assert_eq!(&*control.runs()?, &[1, 10, 20, 11, 21, 22, 23]);
            Ok(())
        })
    }

    #[test]
    fn jobs_of_the_kernel_leave_turns_to_clients() -> Result {
        const KERNEL: u32 = 30;

        with_ring(1, None, |ring, control, _| {
            let (first, second) = (
                ring.queue(8, FenceGroup::new())?,
                ring.queue(8, FenceGroup::new())?,
            );
            control.set(Mode::Keep);

            submit(&first, control, 100)?;
            assert!(soon(|| control.has(Event::Run(100))));
            let mut last = submit(ring.kernel(), control, 0)?;
            for id in 1..KERNEL {
                last = submit(ring.kernel(), control, id)?;
            }
            submit(&first, control, 101)?;
            submit(&second, control, 200)?;
            control.set(Mode::Work);
            control.end(100, Ok(()))?;
            assert_eq!(status(&last), Some(Ok(())));

            // Eight jobs of the kernel come before each.
            let runs = control.runs()?;
            let place = |id| runs.iter().position(|run| *run == id);
            assert_eq!(runs.len(), KERNEL as usize + 3);
            assert_eq!([place(101), place(200)], [Some(9), Some(18)]);
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

            // Each of the two jobs waits for those that the hardware had, and for one job of each
            // other client at most.
            let runs = control.runs()?;
            assert_eq!(runs.len(), FLOOD as usize + 3);
            let place = |id| runs.iter().position(|run| *run == id);
            assert!(place(100).is_some_and(|place| place <= 2 + 2));
            assert!(place(200).is_some_and(|place| place <= 2 + 3));
            Ok(())
        })
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
            // The wait for room lasts until the job is freed.
            control.end(1, Ok(()))?;
            has.wait_for_completion();
            assert_eq!(got.load(Relaxed), 1);
            assert!(control.has(Event::Freed(1)));
            control.end(2, Ok(()))?;

            // A permit of another queue is refused, and the kernel's queue has none.
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
            // The queue of the kernel still works.
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

            // The dependencies are of another device, of another ring, and one that has ended.
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
            // The job holds up the jobs behind it, and no other queue.
            let behind = submit(&queue, control, 3)?;
            let mine = submit_after(&other, control, 4, &behind)?;
            assert_eq!(status(&submit(ring.kernel(), control, 5)?), Some(Ok(())));
            pause();
            assert_eq!(&*control.runs()?, &[1, 5]);
            assert!(!group.has_internal(&behind) && !group.has_internal(&mine));

            stranger.signal(Ok(()));
            pause();
            assert_eq!(&*control.runs()?, &[1, 5]);
            // A dependency that fails has ended as well.
            far_control.end(50, Err(EPERM))?;
            assert_eq!(status(&mine), Some(Ok(())));
            assert_eq!(&*control.runs()?, &[1, 5, 2, 3, 4]);
            assert_eq!(fence.status(), Some(Ok(())));

            // A job without foreign dependencies is internal.
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
            // The callback of the dropped job was removed.
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
            // The queue is closed while a job of it waits for a fence.
            drop(queue);
            assert!(soon(|| control.has(Event::Freed(3))));
            assert!(control.has(Event::Ended(2, Err(ECANCELED))));
            // The fences do not signal before the job that has begun ends.
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
    fn jobs_that_wait_are_notified() -> Result {
        with_ring(1, None, |ring, control, _| {
            let group = FenceGroup::new();
            let (queue, other) = (ring.queue(8, group)?, ring.queue(8, group)?);
            let _idle = ring.queue(8, group)?;
            let stranger = foreign()?;
            control.set(Mode::Keep);

            let running = submit(&queue, control, 1)?;
            assert!(soon(|| control.record.lock().kept.len() == 1));
            let ready = [submit(&queue, control, 2)?, submit(&queue, control, 3)?];
            let blocked = submit_after(&other, control, 4, stranger.fence())?;
            let kernel = submit(ring.kernel(), control, 5)?;
            let told = |fence: &Fence, count, is_blocked| {
                Some(WaitingJobs {
                    context: fence.context(),
                    first: fence.seqno(),
                    count,
                    is_blocked,
                })
            };
            let mut waiting = [None; 4];

            control.record.lock().kept[0].1.waiting_jobs(&mut waiting);
            assert_eq!(waiting[0], told(&kernel, 1, false));
            assert_eq!(waiting[1], told(&ready[0], 2, false));
            assert_eq!(waiting[2], told(&blocked, 1, true));
            assert_eq!(waiting[3], None);
            // There is room for two queues only.
            waiting = [None; 4];
            control.record.lock().kept[0]
                .1
                .waiting_jobs(&mut waiting[..2]);
            assert_eq!(waiting[1], told(&ready[0], 2, false));
            assert_eq!(waiting[2], None);

            control.set(Mode::Work);
            control.end(1, Ok(()))?;
            stranger.signal(Ok(()));
            for fence in [&running, &ready[1], &blocked, &kernel] {
                assert_eq!(status(fence), Some(Ok(())));
            }
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

            // A cancelled job that waited for a fence does not hold up the next one.
            let stranger = foreign()?;
            control.set(Mode::Work);
            let blocked = submit_after(&queue, control, 4, stranger.fence())?;
            let behind = submit(&queue, control, 5)?;
            assert!(queue.cancel(&blocked));
            assert_eq!(status(&behind), Some(Ok(())));
            Ok(())
        })
    }
}

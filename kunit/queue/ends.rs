// SPDX-License-Identifier: GPL-2.0

//! How hung jobs end, and the jobs of a ring that is stopped or dropped.

use kernel::prelude::*;

#[kunit_tests(drm_queue_ends)]
mod tests {
    use kernel::{
        dma_buf::fence::{
            Fence,
            FenceGroup, //
        },
        drm::queue::{
            Config,
            Ring,
            Verdict,
            HANGS_MAX, //
        },
        new_mutex,
        prelude::*,
        sync::{
            aref::ARef,
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc,
            Completion, //
        },
        time::{
            delay::fsleep,
            Delta, //
        }, //
    };

    use crate::{
        fake::{
            foreign,
            item,
            status,
            submit,
            submit_after,
            with_ring,
            Event,
            Init,
            Mode,
            Ops,
            SOON, //
        },
        worker::{
            self,
            limit,
            pause,
            soon, //
        }, //
    };

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
            // The job of the kernel depends on a job of a client.
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
            // All jobs have ended, although the fence of the other device has not signalled.
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

            // The job times out, and ends with that error.
            drop(ring);
            assert_eq!(fence.status(), Some(Err(ETIME)));
            late.signal(Ok(()));
            assert_eq!(fence.status(), Some(Err(ETIME)));
            assert_eq!(control.count(|event| matches!(event, Event::Ended(..))), 1);
            Ok(())
        })
    }

    #[test]
    fn end_of_a_lost_job_does_not_end_the_next_one() -> Result {
        with_ring(1, Some(SOON), |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            control.set(Mode::Keep);
            let lost = submit(&queue, control, 1)?;
            let (_, late) = control.take()?;
            assert_eq!(status(&lost), Some(Err(ETIME)));

            // The next job takes the place of the lost one, and does not time out.
            let kept = KVec::with_capacity(1, GFP_KERNEL)?;
            {
                let record = &mut *control.record.lock();

                while record.verdicts.push_within_capacity(Verdict::Busy).is_ok() {}
                // The reset has taken the list.
                record.kept = kept;
                record.mode = Mode::Keep;
            }
            let next = submit(&queue, control, 2)?;
            let (_, done) = control.take()?;
            late.signal(Ok(()));
            assert_eq!(next.status(), None);
            done.signal(Err(EPERM));
            assert_eq!(status(&next), Some(Err(EPERM)));
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

    /// The third hang closes the queue of the client: what has begun goes on, the rest is cancelled.
    #[test]
    fn client_whose_jobs_hang_gets_no_more() -> Result {
        with_ring(2, Some(SOON), |ring, control, _| {
            let group = FenceGroup::new();
            let (queue, other) = (ring.queue(8, group)?, ring.queue(8, group)?);

            for hangs in 1..HANGS_MAX {
                control.blame(Verdict::Hung(ETIME))?;
                assert_eq!(status(&submit(&queue, control, hangs)?), Some(Err(ETIME)));
                assert_eq!(queue.hangs(), hangs);
            }
            // A reset for which it is not to blame.
            control.blame(Verdict::Reset(EIO))?;
            assert_eq!(status(&submit(&queue, control, 10)?), Some(Err(EIO)));
            assert_eq!(queue.hangs(), HANGS_MAX - 1);

            control.blame(Verdict::Hung(ETIME))?;
            let hung = submit(&queue, control, 11)?;
            let begun = submit(&other, control, 12)?;
            let waiting = [submit(&queue, control, 13)?, submit(&queue, control, 14)?];
            let late = submit(&other, control, 15)?;
            assert_eq!(status(&hung), Some(Err(ETIME)));
            for fence in &waiting {
                assert_eq!(status(fence), Some(Err(ECANCELED)));
            }
            for fence in [&begun, &late] {
                assert_eq!(status(fence), Some(Ok(())));
            }
            assert_eq!(queue.hangs(), HANGS_MAX);
            assert_eq!(queue.permit().err(), Some(ECANCELED));
            assert_eq!(queue.try_permit().err(), Some(ECANCELED));
            assert_eq!(status(&submit(&queue, control, 16)?), Some(Err(ECANCELED)));
            assert_eq!(other.hangs(), 0);
            assert_eq!(status(&submit(&other, control, 17)?), Some(Ok(())));

            // Clients depend on the jobs of the kernel.
            let kernel = ring.kernel();
            for id in 20..=20 + HANGS_MAX {
                control.blame(Verdict::Hung(ETIME))?;
                assert_eq!(status(&submit(kernel, control, id)?), Some(Err(ETIME)));
            }
            assert_eq!(status(&submit(kernel, control, 30)?), Some(Ok(())));
            Ok(())
        })
    }

    /// So a driver can do by other means what the hardware has failed to do, before a later job
    /// begins.
    #[test]
    fn jobs_that_a_reset_takes_end_in_their_order_before_others_run() -> Result {
        with_ring(4, Some(2 * limit()), |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;

            control.set(Mode::Keep);
            let over = submit(&queue, control, 0)?;
            let hung = submit(&queue, control, 1)?;
            assert!(soon(|| control.record.lock().kept.len() == 2));
            control.end(0, Ok(()))?;
            assert_eq!(status(&over), Some(Ok(())));
            assert!(soon(|| control.has(Event::Freed(0))));
            // The first of these takes the slot of the job that is over.
            let fences = [
                submit(&queue, control, 2)?,
                submit(&queue, control, 3)?,
                submit(&queue, control, 4)?,
                submit(&queue, control, 5)?,
            ];
            assert!(soon(|| control.record.lock().kept.len() == 4));
            // Allocated before the lock is taken, because the hardware takes it in signalling
            // sections.
            let mut lost = KVec::with_capacity(2, GFP_KERNEL)?;
            lost.push(3, GFP_KERNEL)?;
            lost.push(2, GFP_KERNEL)?;
            {
                let mut record = control.record.lock();

                record.lost = lost;
                record.kept[0].1.expire();
            }
            assert_eq!(status(&hung), Some(Err(ETIME)));
            let ends = [Err(EIO), Err(EIO), Ok(()), Ok(())];
            for (fence, end) in fences.iter().zip(ends) {
                assert_eq!(status(fence), Some(end));
            }
            assert!(soon(|| control.has(Event::Freed(5))));

            let record = control.record.lock();
            let mut after = record
                .events
                .iter()
                .skip_while(|event| **event != Event::Reset)
                .filter(|event| !matches!(event, Event::Freed(_)))
                .skip(1);
            for want in [
                Event::Ended(1, Err(ETIME)),
                Event::Ended(2, Err(EIO)),
                Event::Ended(3, Err(EIO)),
                Event::Run(4),
            ] {
                assert_eq!(after.next(), Some(&want));
            }
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

            let (first, second) = (foreign()?, foreign()?);
            let ready = submit_after(&ring.kernel().late()?, control, 6, first.fence())?;
            let waiting = submit_after(&ring.kernel().late()?, control, 7, second.fence())?;
            let last = submit_after(ring.kernel(), control, 8, &waiting)?;
            let fences = [
                submit(&queue, control, 1)?,
                submit(&queue, control, 2)?,
                submit(&queue, control, 3)?,
            ];
            // It waits for its turn when the ring breaks.
            assert!(soon(|| control.has(Event::Run(2))));
            first.signal(Ok(()));
            assert_eq!(status(&fences[0]), Some(Err(ETIME)));
            assert_eq!(status(&fences[1]), Some(Err(ENXIO)));
            assert_eq!(status(&fences[2]), Some(Err(ENXIO)));
            assert_eq!(queue.job(None, item(control, 4)).err(), Some(ENODEV));
            assert_eq!(
                ring.kernel().job(None, item(control, 5)).err(),
                Some(ENODEV)
            );
            assert_eq!(status(&ready), Some(Err(ENXIO)));
            // Jobs of the kernel end behind what they depend on.
            pause();
            assert_eq!((waiting.status(), last.status()), (None, None));
            second.signal(Ok(()));
            assert_eq!(status(&last), Some(Err(ENXIO)));
            assert_eq!(waiting.status(), Some(Err(ENXIO)));
            assert_eq!(&*control.runs()?, &[1, 2]);
            Ok(())
        })
    }

    /// Lockdep complains about a waiting allocation or about taking a reservation in a signalling
    /// section, on which the fences of jobs depend.
    #[test]
    fn driver_is_called_in_signalling_sections() -> Result {
        with_ring(1, Some(SOON), |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            let stranger = foreign()?;

            control.set(Mode::Keep);
            let hung = submit(&queue, control, 1)?;
            let again = submit(&queue, control, 2)?;
            assert_eq!(status(&hung), Some(Err(ETIME)));
            assert_eq!(status(&again), Some(Ok(())));
            let cancelled = submit_after(&queue, control, 3, stranger.fence())?;
            drop(queue);
            assert_eq!(status(&cancelled), Some(Err(ECANCELED)));
            assert_eq!(control.count(|event| matches!(event, Event::Ended(..))), 3);
            assert!(control.has(Event::Reset));
            assert_eq!(control.record.lock().unguarded, 0);
            Ok(())
        })
    }

    /// Dropping a job may take a lock that is held by a task which waits for another job.
    #[test]
    fn job_that_cannot_be_freed_holds_up_no_other() -> Result {
        with_ring(1, None, |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            let gate = control.gate.lock();

            for id in 1..40 {
                assert_eq!(status(&submit(&queue, control, id)?), Some(Ok(())));
            }
            assert_eq!(control.count(|event| matches!(event, Event::Freed(_))), 0);
            drop(gate);
            drop(ring);
            assert_eq!(control.count(|event| matches!(event, Event::Freed(_))), 39);
            Ok(())
        })
    }

    #[test]
    fn ring_that_has_stopped_is_reset_at_once() -> Result {
        // The reset comes long before the timeout.
        with_ring(3, Some(2 * limit()), |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            {
                let mut record = control.record.lock();

                record.mode = Mode::Keep;
                let _ = record.verdicts.push_within_capacity(Verdict::Reset(ENXIO));
                let _ = record.verdicts.push_within_capacity(Verdict::Busy);
            }

            let fences = [
                submit(&queue, control, 1)?,
                submit(&queue, control, 2)?,
                submit(&queue, control, 3)?,
            ];
            assert!(soon(|| control.record.lock().kept.len() == 3));
            let expire = || control.record.lock().kept[1].1.expire();

            expire();
            assert!(soon(|| control.record.lock().verdicts.len() == 1));
            pause();
            assert!(!fences[0].is_signaled());
            expire();
            assert_eq!(status(&fences[0]), Some(Err(ENXIO)));
            assert_eq!(status(&fences[1]), Some(Ok(())));
            assert_eq!(status(&fences[2]), Some(Ok(())));
            assert_eq!(&*control.runs()?, &[1, 2, 3, 2, 3]);
            Ok(())
        })
    }

    #[test]
    fn ring_that_closes_waits_less_for_a_job_that_hangs() -> Result {
        // Long before the timeout.
        with_ring(2, Some(10 * limit()), |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;

            control.set(Mode::Keep);
            let fences = [
                submit(&queue, control, 1)?,
                submit(&queue, control, 2)?,
                submit(&queue, control, 3)?,
            ];
            assert!(soon(|| control.record.lock().kept.len() == 2));
            ring.close();
            assert_eq!(status(&fences[0]), Some(Err(ETIME)));
            assert_eq!(status(&fences[1]), Some(Ok(())));
            assert_eq!(status(&fences[2]), Some(Err(ECANCELED)));
            assert_eq!(&*control.runs()?, &[1, 2, 2]);
            assert_eq!(control.count(|event| *event == Event::Reset), 1);
            Ok(())
        })
    }

    #[test]
    fn job_that_is_submitted_after_the_close_is_cancelled() -> Result {
        with_ring(2, None, |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            let job = queue.job(None, item(control, 1))?;

            ring.close();
            assert_eq!(status(&job.submit(|_| ())), Some(Err(ECANCELED)));
            // The jobs of the kernel still run.
            assert_eq!(status(&submit(ring.kernel(), control, 2)?), Some(Ok(())));
            assert_eq!(&*control.runs()?, &[2]);
            Ok(())
        })
    }

    #[test]
    fn ring_without_hardware_goes_at_once() -> Result {
        with_ring(1, Some(limit()), |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            {
                let mut record = control.record.lock();

                record.mode = Mode::Keep;
                record.reset = (Err(ENXIO), None);
            }

            let running = submit(&queue, control, 1)?;
            assert!(soon(|| control.has(Event::Run(1))));
            let waiting = submit(&queue, control, 2)?;
            let kernel = submit(ring.kernel(), control, 3)?;
            control.record.lock().gone = true;
            ring.end();
            assert_eq!(running.status(), Some(Err(ENXIO)));
            // The job is cancelled by the end of the ring, or fails by that of the hardware.
            assert!(matches!(waiting.status(), Some(Err(ECANCELED | ENXIO))));
            assert_eq!(kernel.status(), Some(Err(ENXIO)));
            assert_eq!(control.count(|event| matches!(event, Event::Freed(_))), 3);
            assert_eq!(
                ring.kernel().job(None, item(control, 4)).err(),
                Some(ENODEV)
            );
            Ok(())
        })
    }

    /// A client or the driver may close while a job begins, and does not wait for that.
    #[test]
    fn queue_closes_while_a_job_begins() -> Result {
        with_ring(1, None, |ring, control, _| {
            let group = FenceGroup::new();
            let (queue, other) = (ring.queue(8, group)?, ring.queue(8, group)?);

            control.set(Mode::Sleep);
            let running = submit(&queue, control, 1)?;
            assert!(soon(|| control.has(Event::Run(1))));
            let behind = submit(&queue, control, 2)?;
            let others = submit(&other, control, 3)?;
            let closed = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
            let told = closed.clone();
            worker::spawn(move || {
                drop(queue);
                told.store(1, Relaxed);
            })?;
            assert!(soon(|| closed.load(Relaxed) == 1));
            ring.close();
            assert!(!running.is_signaled() && !behind.is_signaled());
            assert_eq!(other.permit().err(), Some(ENODEV));

            // The end of the ring waits for the job.
            let (waker, runtime_guard) = (control.clone(), closed.clone());
            worker::spawn(move || {
                pause();
                runtime_guard.store(2, Relaxed);
                waker.wake();
            })?;
            drop(ring);
            assert_eq!(closed.load(Relaxed), 2);
            assert_eq!(running.status(), Some(Ok(())));
            assert_eq!(behind.status(), Some(Err(ECANCELED)));
            assert_eq!(others.status(), Some(Err(ECANCELED)));
            Ok(())
        })
    }

    /// A client submits while the driver closes the ring, and while it goes: the job is refused, or
    /// its fence signals.
    ///
    /// The close comes when some jobs are done, or in every other round when some are submitted,
    /// and some time after that. Their number and the time differ between the rounds, so that the
    /// close meets the client at any of its jobs, and each outcome is certain, however fast both
    /// are.
    #[test]
    fn submission_races_with_the_end() -> Result {
        const ROUNDS: u32 = 50;
        const JOBS: u32 = 64;
        /// The time between two looks, in microseconds.
        const LOOK: i64 = 20;

        let (mut outcomes, mut raced) = ([0; 3], 0);
        for round in 0..ROUNDS {
            with_ring(2, None, |ring, control, _| {
                let queue = ring.queue(JOBS as usize, FenceGroup::new())?;
                // In every other round the first job waits, so that all jobs are cancelled.
                let runs = round % 2 == 0;
                let wanted = (round / 2 * 2 * JOBS / ROUNDS) as usize;
                let first = foreign()?;
                let before: ARef<Fence> = first.fence().into();
                if runs {
                    first.signal(Ok(()));
                }
                let list = KVec::with_capacity(JOBS as usize, GFP_KERNEL)?;
                let made = Arc::pin_init(new_mutex!((list, None)), GFP_KERNEL)?;
                let closed = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
                let gone = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
                let (client, result) = (control.clone(), made.clone());
                let (waits, told) = (closed.clone(), gone.clone());

                worker::spawn(move || {
                    for id in 0..=JOBS {
                        // A client that was faster than the close submits once more after it.
                        if id == JOBS {
                            waits.wait_for_completion();
                        }
                        let fence = match id {
                            0 => submit_after(&queue, &client, id, &before),
                            _ => submit(&queue, &client, id),
                        };

                        match fence {
                            Ok(fence) => {
                                let _ = result.lock().0.push_within_capacity(fence);
                            }
                            Err(e) => {
                                result.lock().1 = Some(e);
                                break;
                            }
                        }
                    }
                    drop(queue);
                    told.complete_all();
                })?;
                let is_reached = || {
                    let count = if runs {
                        control.count(|event| matches!(event, Event::Ended(_, Ok(()))))
                    } else {
                        made.lock().0.len()
                    };

                    count >= wanted
                };
                let mut looks = 0;
                while !is_reached() && looks < 50 * limit() {
                    fsleep(Delta::from_micros(LOOK));
                    looks += 1;
                }
                let was_reached = is_reached();
                fsleep(Delta::from_micros(i64::from(20 * (round % 7))));
                ring.close();
                closed.complete_all();
                drop(ring);
                gone.wait_for_completion();
                assert!(was_reached);

                let made = made.lock();
                let (fences, refused) = &*made;
                let mut done = 0;
                let mut is_over = false;
                for fence in fences {
                    match fence.status() {
                        Some(Ok(())) => {
                            assert!(!is_over);
                            done += 1;
                        }
                        Some(Err(ECANCELED)) => is_over = true,
                        other => assert_eq!(other, Some(Ok(()))),
                    }
                }
                if runs {
                    assert!(done >= wanted);
                } else {
                    assert!(done == 0 && fences.len() >= wanted);
                }
                assert_eq!(*refused, Some(ENODEV));
                let freed = control.count(|event| matches!(event, Event::Freed(_)));
                assert_eq!(freed, fences.len() + 1);
                outcomes[0] += u32::from(done > 0);
                outcomes[1] += u32::from(is_over);
                outcomes[2] += u32::from(refused.is_some());
                raced += u32::from(fences.len() < JOBS as usize);
                Ok(())
            })?;
        }
        pr_info!(
            "rounds with jobs that are done: {}, cancelled: {}, refused: {}, in a race: {}\n",
            outcomes[0],
            outcomes[1],
            outcomes[2],
            raced
        );
        // In the first round of each kind the close waits for no job.
        assert!(outcomes[0] >= ROUNDS / 2 - 1);
        assert!(outcomes[1] >= ROUNDS / 2 - 1);
        assert_eq!(outcomes[2], ROUNDS);
        Ok(())
    }

    #[test]
    fn ring_that_has_ended_has_no_job() -> Result {
        with_ring(2, None, |ring, control, _| {
            let queue = ring.queue(8, FenceGroup::new())?;
            let stranger = foreign()?;

            control.set(Mode::Keep);
            let running = submit(&queue, control, 1)?;
            let kernel = submit(ring.kernel(), control, 2)?;
            let waiting = submit_after(&queue, control, 3, stranger.fence())?;
            assert!(soon(|| control.record.lock().kept.len() == 2));
            let ender = control.clone();
            worker::spawn(move || {
                pause();
                for _ in 0..2 {
                    let kept = ender.record.lock().kept.remove(0);

                    if let Ok((_, done)) = kept {
                        done.signal(Ok(()));
                    }
                }
            })?;
            ring.end();
            // The task that has ended a job signals its fence after that, so these wait.
            assert_eq!(status(&running), Some(Ok(())));
            assert_eq!(status(&kernel), Some(Ok(())));
            assert_eq!(status(&waiting), Some(Err(ECANCELED)));
            assert_eq!(control.count(|event| matches!(event, Event::Freed(_))), 3);
            // A second call does nothing, nor does the drop.
            ring.end();
            assert_eq!(queue.permit().err(), Some(ENODEV));
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

    /// Jobs end and time out, the ring is reset, queues close and dependencies signal, all at the
    /// same time.
    #[test]
    fn nothing_is_lost_in_a_storm() -> Result {
        const JOBS: u32 = 60;

        with_ring(4, Some(1), |ring, control, _| {
            let group = FenceGroup::new();
            let ended = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
            let stop = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
            let (ender, count, told) = (control.clone(), ended.clone(), stop.clone());

            // This worker ends the jobs that the ring keeps, the latest first, about when they time
            // out.
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
                // Some jobs have begun by now.
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

// SPDX-License-Identifier: GPL-2.0

//! The queues of jobs of a device: of copies, of vvram or mgpu, and of the compute engine of mgpu.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::compute::{Op, Vm, HUGE, JOBS_MAX};
use crate::drm::{repeats, Drm, Gem};
use crate::fence::{queue_after, Timeline};
use crate::fixture::{cpu_reads, patterns};
use crate::map::{Map, PAGE64};
use crate::mgpu::Mgpu;
use crate::proc::{Child, Steps};
use crate::syncfile::SyncFile;
use crate::trace::Jobs;
use crate::uapi::{VvramGemCopy, COPIES_MAX, CREATE_VRAM};
use crate::{Outcome, Stop, SysError};

const LIMIT: Duration = Duration::from_secs(20);

/// Copies all of an object after some fences, and returns the fence of the copy.
///
/// # Errors
///
/// Any error of the ioctl.
pub fn copy_after(
    drm: &Drm,
    (src, dst): (&Gem<'_>, &Gem<'_>),
    fences: &[&SyncFile],
) -> Result<SyncFile, Stop> {
    copy_handles(drm, (src.handle(), dst.handle()), src.size(), fences)
}

/// As [`copy_after`], for the first bytes of two handles.
///
/// # Errors
///
/// Any error of the ioctl.
pub fn copy_handles(
    drm: &Drm,
    (src, dst): (u32, u32),
    size: u64,
    fences: &[&SyncFile],
) -> Result<SyncFile, Stop> {
    let argument = VvramGemCopy {
        src,
        dst,
        size,
        ..Default::default()
    };
    Ok(queue_after(drm.fd(), fences, |ins, outs| {
        drm.copy_syncs(&argument, ins, outs)
    })?)
}

/// Queues a job behind fences, and returns its own fence.
type Submit = Box<dyn Fn(&[&SyncFile]) -> Result<SyncFile, Stop>>;

/// A client of a ring, with an open file of its own: each of its jobs copies one page to another.
pub struct Client {
    from: Map,
    to: Map,
    /// How many jobs it may have at a time.
    most: i64,
    submit: Submit,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// A client of a copy engine, whose jobs are copies.
    ///
    /// # Errors
    ///
    /// Any error of the ioctls.
    pub fn of_copies(drm: Drm) -> Result<Self, Stop> {
        let (src, dst) = (drm.create(PAGE64)?, drm.create(PAGE64)?);
        let (from, to) = (src.map()?, dst.map()?);
        // The handles are closed with the file.
        let pair = (src.leak(), dst.leak());
        Ok(Self {
            from,
            to,
            most: COPIES_MAX.into(),
            submit: Box::new(move |fences| copy_handles(&drm, pair, PAGE64, fences)),
        })
    }

    /// A client of the compute engine, with an address space.
    ///
    /// # Errors
    ///
    /// Any error of the ioctls, and fails the subtest if a job fails.
    pub fn of_compute(gpu: Mgpu) -> Result<Self, Stop> {
        let ops = [Op::copy(HUGE, 2 * HUGE, PAGE64)];
        let vm = Vm::new(&gpu)?;
        let (src, dst) = (
            vm.create(PAGE64, CREATE_VRAM)?,
            vm.create(PAGE64, CREATE_VRAM)?,
        );
        vm.bind(&src, HUGE)?;
        vm.bind(&dst, 2 * HUGE)?;
        // Later jobs find the entries of the page tables written.
        vm.done(&ops)?;
        let (from, to) = (src.map()?, dst.map()?);
        // They live as long as the file.
        src.leak();
        dst.leak();
        let vm = vm.leak();
        Ok(Self {
            from,
            to,
            most: JOBS_MAX as i64,
            submit: Box::new(move |fences| Ok(Vm::of(&gpu, vm).exec_after(&ops, fences)?)),
        })
    }
}

/// One client, which `open` makes, has as many jobs as it can, all of which can begin when a job of
/// another client can. Checks that until the end of that job at most `most` of them run: one in its
/// turn, and one for each place in the hardware that becomes free meanwhile. Also checks that the
/// client never has more jobs than its queue has room for.
///
/// The jobs of both wait for the same fence, so that it does not matter how fast the device and the
/// client are. This is repeated `rounds` times.
///
/// # Errors
///
/// Fails the subtest if that is not so.
#[track_caller]
pub fn flood(open: impl Fn() -> Result<Client, Stop>, rounds: u32, most: usize) -> Outcome {
    let client = open()?;
    let (a, b) = patterns();
    let jobs = Jobs::new()?;
    let full = Steps::new()?;
    let timeline = Timeline::new()?;
    let fences = (1..=rounds)
        .map(|value| timeline.fence(value))
        .collect::<Result<Vec<_>, _>>()?;
    let mut flooder = Child::spawn(|| {
        let client = open()?;
        for fence in &fences {
            // The first job holds up those behind it. When the queue has room for all of them, no
            // job of an earlier round is left.
            (client.submit)(&[fence])?;
            for _ in 1..client.most {
                (client.submit)(&[])?;
            }
            full.done()?;
            // There is no room for these before the fence has signalled.
            for _ in 0..client.most / 4 {
                (client.submit)(&[])?;
            }
        }
        Ok(())
    })?;
    for (round, fence) in (0..).zip(&fences) {
        let pattern = a.derive(round);
        client.from.fill(pattern);
        client.to.fill(b);
        full.wait("the flood", LIMIT)?;
        let job = (client.submit)(&[fence])?;
        timeline.step()?;
        job.finish()?;
        check_eq!(job.status()?, 1, "status of the job in round {round}");
        cpu_reads(&client.to, pattern, &[0])?;
    }
    flooder.join("the flooder", LIMIT)?;

    let events = jobs.events()?;
    let context = |pid: u32| {
        // The first jobs clear the objects of the client.
        let last = events.iter().rfind(|event| event.is("submit", pid));
        last.map(|event| event.context)
    };
    let (Some(me), Some(other)) = (context(std::process::id()), context(flooder.pid() as u32))
    else {
        return Err(Stop::fail("a client has submitted no job"));
    };
    let (mut outstanding, mut runs) = (0i64, None);
    let (mut busy, mut seen, mut late) = (0, 0, 0);
    for event in &events {
        if event.context == other {
            match event.name.as_str() {
                "submit" => outstanding += 1,
                "done" => outstanding -= 1,
                _ => runs = runs.map(|runs: usize| runs + 1),
            }
            // One more than that, because the event of a submission may come before that of the end
            // of another job.
            check!(
                outstanding <= client.most + 1,
                "the flooder has {outstanding} jobs"
            );
        } else if event.context == me {
            match event.name.as_str() {
                "submit" => {
                    runs = Some(0);
                    busy += u32::from(outstanding >= client.most);
                }
                "done" => {
                    let between = runs.take().unwrap_or(0);
                    seen += 1;
                    late += u32::from(between > most);
                }
                _ => {}
            }
        }
    }
    check_eq!(seen, rounds, "jobs that ended");
    // The fence notifies the flooder first, and a host may stop it there.
    check!(
        late <= rounds / 5,
        "more than {most} jobs of the flooder ran before {late} of {rounds} jobs"
    );
    check_eq!(busy, rounds, "jobs at which the queue was full");
    Ok(())
}

/// Runs `user` in one process, while another one has `depth` jobs under way all the time, which
/// `submit` queues. Fails if `user` does not end before the jobs do, or repeats a call.
///
/// # Errors
///
/// Fails the subtest if that is so, and all errors of both.
#[track_caller]
pub fn beside_jobs(
    depth: usize,
    mut submit: impl FnMut() -> Result<SyncFile, SysError>,
    user: impl FnOnce() -> Outcome,
) -> Outcome {
    let (ready, stop) = (Steps::new()?, Steps::new()?);
    let mut worker = Child::spawn(|| {
        let mut jobs = VecDeque::new();
        for count in 1.. {
            jobs.push_back(submit()?);
            if count == depth {
                ready.done()?;
            }
            if count > depth {
                jobs.pop_front().expect("a job").finish()?;
                if stop.is_done()? {
                    break;
                }
            }
        }
        jobs.iter().try_for_each(SyncFile::finish)?;
        Ok(())
    })?;
    ready.wait("the jobs", LIMIT)?;
    let mut user = Child::spawn(|| {
        user()?;
        check_eq!(repeats(), 0, "calls that have failed with EAGAIN");
        Ok(())
    })?;
    let ended = user.wait(LIMIT);
    let place = user.whereabouts();
    let jobs_ended = worker.ended().is_some();
    stop.done()?;
    worker.join("the jobs", LIMIT)?;
    check!(!jobs_ended, "the jobs ended before the calls");
    check!(
        ended.is_some(),
        "calls wait for jobs without an end; {place}"
    );
    user.join("the calls beside jobs", LIMIT)
}

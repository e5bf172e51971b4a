// SPDX-License-Identifier: GPL-2.0

//! The queues of copies of a device, of vvram or mgpu.

use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use crate::drm::{Drm, Gem};
use crate::fence::Timeline;
use crate::fixture::{cpu_reads, patterns};
use crate::map::PAGE;
use crate::proc::{Child, Steps};
use crate::syncfile::SyncFile;
use crate::trace::Jobs;
use crate::uapi::{VvramGemCopy, VvramSync, COPIES_MAX};
use crate::{Outcome, Stop};

const PAGE64: u64 = PAGE as u64;
const LIMIT: Duration = Duration::from_secs(20);

/// Copies all of an object after some fences, and returns the sync file of the copy.
///
/// # Errors
///
/// Any error of the ioctl.
pub fn copy_after(
    drm: &Drm,
    (src, dst): (&Gem<'_>, &Gem<'_>),
    ins: &[VvramSync],
) -> Result<SyncFile, Stop> {
    let argument = VvramGemCopy {
        src: src.handle(),
        dst: dst.handle(),
        size: src.size(),
        ..Default::default()
    };
    let mut out = [VvramSync::FILE];
    drm.copy_syncs(&argument, ins, &mut out)?;
    // SAFETY: the kernel made a new fd that nothing else owns.
    Ok(SyncFile::new(unsafe { OwnedFd::from_raw_fd(out[0].fd) }))
}

/// One client, whose file `open` opens, has as many copies as it can, all of which can begin when a
/// copy of another client can. Checks that until the end of that copy at most `most` of them run:
/// one in its turn, and one for each place in the hardware that becomes free meanwhile. Also checks
/// that the client never has more copies than its queue has room for.
///
/// The copies of both wait for the same fence, so that it does not matter how fast the device and
/// the client are.
///
/// # Errors
///
/// Fails the subtest if that is not so.
#[track_caller]
pub fn flood(open: impl Fn() -> Result<Drm, Stop>, most: usize) -> Outcome {
    const ROUNDS: u32 = 20;
    let drm = open()?;
    let (a, b) = patterns();
    let (src, dst) = (drm.create(PAGE64)?, drm.create(PAGE64)?);
    let (from, to) = (src.map()?, dst.map()?);
    let jobs = Jobs::new()?;
    let full = Steps::new()?;
    let timeline = Timeline::new()?;
    let fences = (1..=ROUNDS)
        .map(|value| timeline.fence(value))
        .collect::<Result<Vec<_>, _>>()?;
    let mut flooder = Child::spawn(|| {
        let drm = open()?;
        let (one, two) = (drm.create(PAGE64)?, drm.create(PAGE64)?);
        for fence in &fences {
            // The first copy holds up those behind it. When the queue has room for all of them, no
            // copy of an earlier round is left.
            copy_after(&drm, (&one, &two), &[fence.sync()])?;
            for _ in 1..COPIES_MAX {
                copy_after(&drm, (&one, &two), &[])?;
            }
            full.done()?;
            // There is no room for these before the fence has signalled.
            for _ in 0..COPIES_MAX / 4 {
                copy_after(&drm, (&one, &two), &[])?;
            }
        }
        Ok(())
    })?;
    for (round, fence) in (0..).zip(&fences) {
        let pattern = a.derive(round);
        from.fill(pattern);
        to.fill(b);
        full.wait("the flood", LIMIT)?;
        let copy = copy_after(&drm, (&src, &dst), &[fence.sync()])?;
        timeline.step()?;
        copy.finish()?;
        cpu_reads(&to, pattern, &[0])?;
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
    let (mut busy, mut seen) = (0, 0);
    for event in &events {
        if event.context == other {
            match event.name.as_str() {
                "submit" => outstanding += 1,
                "done" => outstanding -= 1,
                _ => runs = runs.map(|runs: usize| runs + 1),
            }
            // One more than that, because the event of a submission may come before that of the end
            // of another copy.
            check!(
                outstanding <= i64::from(COPIES_MAX) + 1,
                "the flooder has {outstanding} copies"
            );
        } else if event.context == me {
            match event.name.as_str() {
                "submit" => {
                    runs = Some(0);
                    busy += u32::from(outstanding >= i64::from(COPIES_MAX));
                }
                "done" => {
                    let between = runs.take().unwrap_or(0);
                    seen += 1;
                    check!(
                        between <= most,
                        "{between} copies of the flooder ran before copy {seen}"
                    );
                }
                _ => {}
            }
        }
    }
    check_eq!(seen, ROUNDS, "copies that ended");
    check_eq!(busy, ROUNDS, "copies at which the queue was full");
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0

//! The queues of the copy engine of the modelled GPU: the effect of one client on others, and the
//! outcome of copies that wait.

use std::time::Duration;

use vvram_tests::cgroup::MemoryGroup;
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::patterns;
use vvram_tests::foreign::{self, Kind};
use vvram_tests::map::PAGE;
use vvram_tests::mgpu::{holds, set_bound, Error, Impatient, Mgpu};
use vvram_tests::misc;
use vvram_tests::proc::Child;
use vvram_tests::queue::{copy_after, flood};
use vvram_tests::rebind::Unbinding;
use vvram_tests::uapi::COPIES_MAX;
use vvram_tests::{check, check_eq, igt_main, Outcome};

const PAGE64: u64 = PAGE as u64;
const LIMIT: Duration = Duration::from_secs(20);
/// How many jobs are in the ring at a time.
const CREDITS: usize = 8;

fn one_floods() -> Outcome {
    // One copy of the flood in its turn, and one for each place in the ring that becomes free
    // meanwhile.
    flood(|| Ok(Mgpu::first()?.drm), 1 + CREDITS)?;
    Mgpu::first()?.clean()
}

/// A copy waits for a fence of another driver, and copies of other clients do not wait for it.
fn waits() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let (from, to, third) = (
        gpu.drm.create(PAGE64)?,
        gpu.drm.create(PAGE64)?,
        gpu.drm.create(PAGE64)?,
    );
    from.map()?.fill(x);
    to.map()?.fill(y);
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let copy = copy_after(&gpu.drm, (&from, &to), &[fence.sync()])?;
    // A copy of another client is done.
    let other = Mgpu::first()?;
    let (src, dst) = (other.drm.create(PAGE64)?, other.drm.create(PAGE64)?);
    src.map()?.fill(x);
    copy_after(&other.drm, (&src, &dst), &[])?.finish()?;
    holds(&dst, x, "of another client")?;
    check!(!copy.poll(0)?, "the copy did not wait");
    // A copy of the same client waits, because of the order of its queue.
    let behind = copy_after(&gpu.drm, (&from, &third), &[])?;
    check!(!behind.poll(0)?, "the copy behind it did not wait");
    timeline.step()?;
    behind.finish()?;
    check_eq!(
        (copy.status()?, behind.status()?),
        (1, 1),
        "status of the copies"
    );
    holds(&to, x, "after the fence")?;
    holds(&third, x, "behind it")?;
    other.clean()?;
    gpu.clean()
}

/// The driver is unbound while copies wait for a fence of another driver: the unbind does not wait
/// for that fence.
fn unbind() -> Outcome {
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let copies = {
        let gpu = Mgpu::first()?;
        let (from, to) = (gpu.drm.create(PAGE64)?, gpu.drm.create(PAGE64)?);
        let copies = (0..COPIES_MAX)
            .map(|_| copy_after(&gpu.drm, (&from, &to), &[fence.sync()]))
            .collect::<Result<Vec<_>, _>>()?;
        let gone = Unbinding::start(&gpu.pci)?.finish(LIMIT)?;
        check!(!fence.poll(0)?, "the fence of the test has signalled");
        gone.rebind()?;
        copies
    };
    for copy in &copies {
        copy.finish()?;
        check_eq!(copy.status()?, -libc::ECANCELED, "status of a copy");
    }
    timeline.step()?;
    Mgpu::first()?.clean()
}

/// The driver is unbound while a copy hangs: that copy ends by its timeout, and the other copies
/// end before.
fn unbind_hung() -> Outcome {
    let _impatient = Impatient::new()?;
    let copies = {
        let gpu = Mgpu::first()?;
        let (from, to) = (gpu.drm.create(PAGE64)?, gpu.drm.create(PAGE64)?);
        // This copy, and the jobs that clear the objects, are done before the next copy hangs.
        copy_after(&gpu.drm, (&from, &to), &[])?.finish()?;
        gpu.inject(Error::Hang, 0)?;
        let copies = (0..COPIES_MAX)
            .map(|_| copy_after(&gpu.drm, (&from, &to), &[]))
            .collect::<Result<Vec<_>, _>>()?;
        set_bound(gpu.device(), false)?;
        let device = gpu.device().to_string();
        set_bound(&device, true)?;
        copies
    };
    let states: Vec<_> = copies
        .iter()
        .map(|copy| copy.finish().and_then(|()| Ok(copy.status()?)))
        .collect::<Result<_, _>>()?;
    check_eq!(states[0], -libc::ETIMEDOUT, "status of the copy that hangs");
    let done = states[1..].iter().take_while(|state| **state == 1).count();
    check!(
        done < CREDITS
            && states[1 + done..]
                .iter()
                .all(|state| *state == -libc::ECANCELED),
        "states of the others: {:?}",
        &states[1..]
    );
    // A temporary of the last expression would be dropped after `_impatient`, which waits for the
    // file to be closed.
    let gpu = Mgpu::first()?;
    gpu.clean()
}

/// The addresses of scattered memory, which waiting copies keep, are charged to their client, are
/// bounded, as is the number of copies, and are freed with the copies.
fn charged() -> Outcome {
    const PAGES: u64 = 4096;
    // Each piece has an address and a length. Some pages may be adjacent, and each processor keeps
    // memory that it has charged in advance.
    const LISTS: u64 = COPIES_MAX as u64 * PAGES * 16 / 2;
    let group = MemoryGroup::new("copies")?;
    let mut child = Child::spawn(|| {
        group.enter()?;
        let gpu = Mgpu::first()?;
        let scattered = foreign::make(Kind::Udmabuf, PAGES as usize)?;
        let from = gpu.drm.import(&scattered.buffer)?;
        let to = gpu.drm.create(from.size())?;
        let timeline = Timeline::new()?;
        // Maps the import.
        copy_after(&gpu.drm, (&from, &to), &[])?.finish()?;
        let fence = timeline.fence(1)?;
        let before = group.current()?;
        let copies = (0..COPIES_MAX)
            .map(|_| copy_after(&gpu.drm, (&from, &to), &[fence.sync()]))
            .collect::<Result<Vec<_>, _>>()?;
        let with = group.current()?;
        check!(
            (before + LISTS..=before + 4 * LISTS).contains(&with),
            "{before} bytes before {COPIES_MAX} copies, and {with} with them"
        );
        timeline.step()?;
        for copy in &copies {
            copy.finish()?;
        }
        // The memory of the jobs is freed after their fences have signalled.
        let freed = misc::poll(LIMIT, || {
            (group.current().ok()? + LISTS / 2 <= with).then_some(())
        });
        check!(
            freed.is_some(),
            "{with} bytes with the copies, and {} after them",
            group.current()?
        );
        gpu.clean()
    })?;
    child.join("the client", LIMIT * 2)
}

igt_main! {
    "flood", "a client that floods its queue, and another one", one_floods;
    "waits", "a copy that waits for an external fence", waits;
    "charged", "the memory of copies that wait", charged;
    "unbind", "of the driver, while copies wait for external fences", unbind;
    "unbind-hung", "of the DRM driver, while a copy hangs", unbind_hung;
}

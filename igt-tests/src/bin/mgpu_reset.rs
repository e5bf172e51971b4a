// SPDX-License-Identifier: GPL-2.0

//! The modelled GPU does not recover by a reset of a ring: all of it is reset, by the driver or by
//! others, or given up.

use std::time::Duration;

use vvram_tests::compute::ballast;
use vvram_tests::drm::Gem;
use vvram_tests::failure::{no_dump, says, take_dump, Events};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::mgpu::{
    holds, take_all, Error, Impatient, Mgpu, EITHER, PARAM_LOSSES, PARAM_QUARANTINED, PARAM_RESETS,
};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::power::system_sleep;
use vvram_tests::proc::{Child, Exit, KernelLog};
use vvram_tests::rebind::Unbinding;
use vvram_tests::scene::{patterns, peer_reads, placed};
use vvram_tests::syncfile::SyncFile;
use vvram_tests::{check, check_eq, expect_errno, igt_main, uapi, Outcome, Stop};

const PAGE64: u64 = PAGE as u64;
const SIZE: u64 = 16 * PAGE64;
const LIMIT: Duration = Duration::from_secs(40);
/// In the command register.
const MASTER: u8 = 1 << 2;

/// Two objects in VRAM, one with a pattern.
fn pair<'a>(gpu: &'a Mgpu, pattern: Pattern) -> Result<(Gem<'a>, Gem<'a>), Stop> {
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    from.map()?.fill(pattern);
    // The clearing of the other one is over as well.
    to.map()?.set(0);
    Ok((from, to))
}

/// Waits for copies, and returns how each has ended.
fn ends(copies: &[SyncFile]) -> Result<Vec<i32>, Stop> {
    copies
        .iter()
        .map(|copy| {
            check!(copy.wait(LIMIT)?, "a fence does not signal");
            Ok(copy.status()?)
        })
        .collect()
}

/// The device copies what it is told to.
fn copies(gpu: &Mgpu) -> Outcome {
    let (x, _) = patterns();
    let (from, to) = pair(gpu, x)?;
    let copy = gpu.drm.copy((&from, 0), (&to, 0), SIZE)?;
    copy.finish()?;
    check_eq!(copy.status()?, 1, "status of a copy");
    holds(&to, x, "what was copied")
}

/// A hung job leaves a dump and an event that says that nothing is to be done. There is one dump at
/// a time.
fn told() -> Outcome {
    let _impatient = Impatient::new()?;
    let gpu = Mgpu::first()?;
    no_dump(&gpu.pci)?;
    let (x, _) = patterns();
    let (from, to) = pair(&gpu, x)?;
    let events = Events::listen()?;
    for (error, errno) in [(Error::Hang, libc::ETIMEDOUT), (Error::Fault, libc::EIO)] {
        gpu.inject(error, 0)?;
        let queued = [
            gpu.drm.copy((&from, 0), (&to, 0), SIZE)?,
            gpu.drm.copy((&from, 0), (&to, 0), SIZE)?,
        ];
        check_eq!(ends(&queued)?, [-errno, 1], "what came of the copies");
        check_eq!(events.wedged(&gpu.pci)?, "none", "what helps");
        let dump = take_dump(&gpu.pci)?;
        says(&dump, "driver: mgpu")?;
        says(&dump, "ring: 0")?;
        says(&dump, &format!("error: -{errno}"))?;
        says(&dump, "ID: 0x5550474d")?;
        says(&dump, "RING_ENTRIES[0]: 0x40")?;
        says(&dump, &format!("{SIZE} bytes, begun"))?;
        // A list is copied.
        let is_copy = |line: &str| {
            line.split(": ")
                .nth(1)
                .is_some_and(|is| is.starts_with("10 "))
        };
        check!(
            dump.lines().any(is_copy),
            "there is no entry that copies:\n{dump}"
        );
        let faults = dump
            .lines()
            .filter(|line| line.starts_with("900: "))
            .count();
        check_eq!(faults, usize::from(errno == libc::EIO), "records of faults");
    }
    gpu.clean()
}

/// The device answers, and does nothing: it is reset as a whole, and not once for each job.
fn stuck() -> Outcome {
    let _impatient = Impatient::new()?;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let (from, to) = pair(&gpu, x)?;
    let map = from.map()?;
    let resets = gpu.drm.getparam(PARAM_RESETS)?;
    gpu.inject(Error::Slow, 60_000)?;
    let queued: Vec<_> = (0..100)
        .map(|_| gpu.drm.copy((&from, 0), (&to, 0), SIZE))
        .collect::<Result<_, _>>()?;
    let ends = ends(&queued)?;
    check_eq!(gpu.drm.getparam(PARAM_RESETS)?, resets + 3, "resets");
    check_eq!(ends[..2], [-libc::ETIMEDOUT; 2], "the first jobs");
    let lost = ends.iter().filter(|end| **end == -libc::EIO).count();
    check!(
        (1..=8).contains(&lost),
        "{lost} jobs were lost with a reset"
    );
    check_eq!(
        ends.iter().filter(|end| **end == 1).count(),
        100 - 2 - lost,
        "jobs that were done"
    );
    check_eq!(gpu.drm.getparam(PARAM_LOSSES)?, 0, "objects that are lost");
    // Through the windows of before.
    if let Err(mismatch) = map.verify(x) {
        return Err(Stop::fail(format_args!("in the window: {mismatch}")));
    }
    holds(&to, x, "what was copied")?;
    copies(&gpu)?;
    gpu.clean()
}

/// A ring cannot be reset, but the device can. What was not cleared is given out again after that.
fn whole() -> Outcome {
    let _impatient = Impatient::new()?;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let kept = gpu.drm.create(SIZE)?;
    let map = kept.map()?;
    map.fill(x);
    let resets = gpu.drm.getparam(PARAM_RESETS)?;
    let events = Events::listen()?;
    // This one leaves memory that is not clear.
    // The clearing fails, and the CPU sees no VRAM to do it.
    let mut log = KernelLog::open()?;
    gpu.inject(Error::NoInvalidate, 2)?;
    gpu.inject(Error::Hang, 0)?;
    let lost = gpu.drm.create(SIZE)?;
    check_eq!(events.wedged(&gpu.pci)?, "none", "what helps");
    let system = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let copy = gpu.drm.copy((&lost, 0), (&system, 0), SIZE);
    check!(
        match copy {
            Ok(copy) => ends(&[copy])? == [-libc::EIO],
            Err(error) => error.errno == libc::EIO,
        },
        "what is lost was copied"
    );
    // What it was copied to is lost as well, if the copy was queued.
    let losses = gpu.drm.getparam(PARAM_LOSSES)?;
    check!((1..=2).contains(&losses), "{losses} objects are lost");
    let told = format!("object {} has lost its content", lost.info()?.id);
    check!(
        log.lines().iter().any(|line| line.contains(&told)),
        "the log does not say so"
    );
    let free = gpu.drm.vram_free()?;
    drop(lost);
    let kept_away = misc::poll(LIMIT, || {
        (gpu.drm.getparam(PARAM_QUARANTINED).ok()? == SIZE).then_some(())
    });
    check!(
        kept_away.is_some(),
        "what was not cleared is not in quarantine"
    );
    check_eq!(gpu.drm.vram_free()?, free, "VRAM that is free");
    gpu.inject(Error::NoRingReset, 0)?;
    gpu.inject(Error::Fault, 0)?;
    let to = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let copy = gpu.drm.copy((&kept, 0), (&to, 0), SIZE)?;
    check_eq!(ends(&[copy])?, [-libc::EIO], "a copy that faulted");
    check_eq!(events.wedged(&gpu.pci)?, "none", "what helps");
    check_eq!(gpu.drm.getparam(PARAM_RESETS)?, resets + 2, "resets");
    check_eq!(gpu.drm.getparam(PARAM_QUARANTINED)?, 0, "in quarantine");
    if let Err(mismatch) = map.verify(x) {
        return Err(Stop::fail(format_args!("in the window: {mismatch}")));
    }
    // All that is given out is clear.
    drop(take_all(&gpu)?);
    copies(&gpu)?;
    holds(&kept, x, "beside all that")?;
    gpu.clean()
}

/// Others reset the device, with jobs and with a peer.
fn function() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, y) = patterns();
    let (from, to) = pair(&gpu, x)?;
    let shared = gpu.drm.create(SIZE)?;
    let map = shared.map()?;
    map.fill(y);
    let buffer = shared.export()?;
    let peer = Peer::open()?;
    peer.attach(&buffer, Mode::Dynamic)?;
    peer.map()?;
    peer_reads(&peer, y, &[0, 15])?;
    let resets = gpu.drm.getparam(PARAM_RESETS)?;
    gpu.inject(Error::Slow, 50)?;
    let queued: Vec<_> = (0..30)
        .map(|_| gpu.drm.copy((&from, 0), (&to, 0), SIZE))
        .collect::<Result<_, _>>()?;
    gpu.pci.reset()?;
    let ends = ends(&queued)?;
    let lost = ends.iter().filter(|end| **end == -libc::EIO).count();
    check!(
        (1..=8).contains(&lost),
        "{lost} jobs were lost with the reset"
    );
    check_eq!(
        ends.iter().filter(|end| **end == 1).count(),
        30 - lost,
        "jobs that were done"
    );
    check_eq!(gpu.drm.getparam(PARAM_RESETS)?, resets + 1, "resets");
    check_eq!(gpu.drm.getparam(PARAM_LOSSES)?, 0, "objects that are lost");
    // The windows are where they were.
    if let Err(mismatch) = map.verify(y) {
        return Err(Stop::fail(format_args!("in the window: {mismatch}")));
    }
    check_eq!(peer.status()?.invalidations, 0, "invalidations of the peer");
    peer_reads(&peer, y, &[0, 15])?;
    holds(&to, x, "what was copied")?;
    copies(&gpu)?;
    gpu.clean()
}

/// Others reset the device while objects leave VRAM for others: the CPU does what was begun.
fn moves() -> Outcome {
    const COUNT: u64 = 24;
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let _ballast = ballast(&gpu, COUNT * SIZE)?;
    let old: Vec<_> = (0..COUNT)
        .map(|_| gpu.drm.create_flags(SIZE, EITHER))
        .collect::<Result<_, _>>()?;
    for (index, object) in (0..).zip(&old) {
        object.map()?.fill(x.derive(index));
        placed(object, uapi::PLACEMENT_VRAM)?;
    }
    let (again, losses) = (gpu.done_again()?, gpu.drm.getparam(PARAM_LOSSES)?);
    gpu.inject(Error::Slow, 20)?;
    let new: Vec<_> = (0..COUNT)
        .map(|_| gpu.drm.create(SIZE))
        .collect::<Result<_, _>>()?;
    gpu.pci.reset()?;
    for object in &new {
        if let Err(mismatch) = object.map()?.verify_value(0) {
            return Err(Stop::fail(format_args!("a new object: {mismatch}")));
        }
    }
    for (index, object) in (0..).zip(&old) {
        placed(object, uapi::PLACEMENT_SYSTEM)?;
        holds(object, x.derive(index), "what has left")?;
    }
    check!(
        gpu.done_again()? >= again + 2,
        "no two moves were in the ring"
    );
    check_eq!(
        gpu.drm.getparam(PARAM_LOSSES)?,
        losses,
        "objects that are lost"
    );
    gpu.clean()
}

/// Accesses end in `SIGBUS`.
fn is_taken_away(map: &Map) -> Outcome {
    let exit = Child::spawn(|| {
        map.read(0);
        Ok(())
    })?
    .wait(LIMIT);
    check!(
        exit == Some(Exit::Signal(libc::SIGBUS)),
        "touching what is lost: expected SIGBUS, saw {exit:?}"
    );
    Ok(())
}

/// No reset helps: the device is no bus master any more, jobs end, what is in VRAM is lost, and
/// userspace is told to bind the driver anew.
fn wedged() -> Outcome {
    let _impatient = Impatient::new()?;
    {
        let gpu = Mgpu::first()?;
        no_dump(&gpu.pci)?;
        let (x, y) = patterns();
        let (from, to) = pair(&gpu, x)?;
        let system = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
        let kept = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
        kept.map()?.fill(y);
        let either = gpu.drm.create_flags(SIZE, EITHER)?;
        system.map()?.fill(y);
        either.map()?.fill(y);
        placed(&either, uapi::PLACEMENT_VRAM)?;
        let map = from.map()?;
        if let Err(mismatch) = map.verify(x) {
            return Err(Stop::fail(format_args!("in the window: {mismatch}")));
        }
        let peer = Peer::open()?;
        let buffer = either.export()?;
        peer.attach(&buffer, Mode::Dynamic)?;
        peer.map()?;
        let losses = gpu.drm.getparam(PARAM_LOSSES)?;
        let events = Events::listen()?;

        gpu.inject(Error::NoRingReset, 0)?;
        gpu.inject(Error::NoReset, 1)?;
        gpu.inject(Error::Hang, 0)?;
        let queued: Vec<_> = (0..20)
            .map(|_| gpu.drm.copy((&from, 0), (&system, 0), SIZE))
            .collect::<Result<_, _>>()?;
        for end in ends(&queued)? {
            check_eq!(end, -libc::EIO, "a copy of a device that is given up");
        }
        check_eq!(
            gpu.pci.config()?[4] & MASTER,
            0,
            "whether it is a bus master"
        );
        check_eq!(events.wedged(&gpu.pci)?, "rebind", "what helps");
        // What was to be copied from there may be lost as well.
        let lost = gpu.drm.getparam(PARAM_LOSSES)? - losses;
        check!((3..=4).contains(&lost), "{lost} objects are lost");
        let dump = take_dump(&gpu.pci)?;
        says(&dump, &format!("error: -{}", libc::ETIMEDOUT))?;
        is_taken_away(&map)?;
        check!(peer.status()?.invalidations > 0, "the peer was not told");
        expect_errno("a map of a peer", peer.map(), libc::EIO)?;
        let copy = gpu.drm.copy((&to, 0), (&system, 0), SIZE);
        check!(
            copy.is_err_and(|error| [libc::EIO, libc::ENODEV].contains(&error.errno)),
            "a copy of what is lost was queued"
        );
        holds(&kept, y, "in system memory")?;
        peer.unmap().or_else(|e| match e.errno {
            libc::EINVAL | libc::ENXIO => Ok(()),
            _ => Err(e),
        })?;
    }
    anew(&PciDevice::mgpus()[0])
}

/// Binds the driver anew, after which the device works.
fn anew(pci: &PciDevice) -> Outcome {
    Unbinding::start(pci)?.finish(LIMIT)?.rebind()?;
    let gpu = Mgpu::open(pci)?;
    check!(gpu.pci.config()?[4] & MASTER != 0, "it is no bus master");
    copies(&gpu)?;
    gpu.clean()
}

/// The system does not sleep, which VRAM would not outlive.
fn sleep() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let object = gpu.drm.create(SIZE)?;
    object.map()?.fill(x);
    match system_sleep() {
        Err(stop) if stop.text().contains("EBUSY") => (),
        other => return Err(Stop::fail(format_args!("the system to sleep: {other:?}"))),
    }
    holds(&object, x, "after that")?;
    copies(&gpu)?;
    gpu.clean()
}

/// A device without a driver is no bus master.
fn unbound() -> Outcome {
    let pci = Mgpu::first()?.pci;
    check!(pci.config()?[4] & MASTER != 0, "it is no bus master");
    let gone = Unbinding::start(&pci)?.finish(LIMIT)?;
    check_eq!(pci.config()?[4] & MASTER, 0, "whether it is a bus master");
    gone.rebind()?;
    copies(&Mgpu::open(&pci)?)
}

igt_main! {
    "told", "a dump and an event", told;
    "stuck", "a device that does nothing, with many jobs", stuck;
    "whole", "a ring that cannot be reset", whole;
    "function", "a reset by others, with a peer", function;
    "moves", "a reset by others, with moves", moves;
    "wedged", "a device that cannot be reset", wedged;
    "sleep", "the system cannot sleep", sleep;
    "unbound", "a device without a driver is no bus master", unbound;
}

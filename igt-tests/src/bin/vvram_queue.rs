// SPDX-License-Identifier: GPL-2.0

//! The queues of copies: the effect of one client on others, and the outcome of copies that wait.

use std::time::Duration;

use vvram_tests::debugfs::DebugFs;
use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::{cpu_reads, patterns, placed, works};
use vvram_tests::map::{Map, PAGE64};
use vvram_tests::pci::PciDevice;
use vvram_tests::proc::{Child, Steps};
use vvram_tests::queue::{copy_after, copy_handles, flood, Client};
use vvram_tests::rebind::Unbinding;
use vvram_tests::signals::await_sleep;
use vvram_tests::trace::Jobs;
use vvram_tests::uapi::{self, COPIES_MAX};
use vvram_tests::{check, check_eq, check_ok, fail, igt_main, Outcome};

const LIMIT: Duration = Duration::from_secs(20);
/// The function in which the kernel waits for a fence.
const FENCE: &str = "dma_fence_default_wait";
/// The status of the fence of a copy that was cancelled.
const CANCELLED: i32 = -libc::ECANCELED;

/// When a client closes its file, its copies that wait for other fences are cancelled, in their
/// order, and the close does not wait for those fences.
fn closed() -> Outcome {
    let (a, b) = patterns();
    let other = Drm::open()?;
    let free = other.vram_free()?;
    let dst = other.create(PAGE64)?;
    let map = dst.map()?;
    map.fill(b);
    let buffer = dst.export()?;
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let mut copies = Vec::new();
    {
        let drm = Drm::open()?;
        let (src, dst) = (drm.create(PAGE64)?, drm.import(&buffer)?);
        src.map()?.fill(a);
        for _ in 0..COPIES_MAX {
            copies.push(copy_after(&drm, (&src, &dst), &[&fence])?);
        }
        check!(!copies[0].poll(0)?, "a copy did not wait");
    }
    for copy in &copies {
        copy.finish()?;
        check_eq!(copy.status()?, CANCELLED, "status of a copy");
    }
    check!(!fence.poll(0)?, "the fence of the test has signalled");
    // The destination of the cancelled copies is idle.
    check!(
        buffer.sync_file(uapi::DMA_BUF_SYNC_READ)?.poll(20_000)?,
        "the object is in use"
    );
    timeline.step()?;
    cpu_reads(&map, b, &[0])?;
    drop((map, dst, buffer));
    other.await_vram_free(free)
}

/// The same for a client that is killed.
fn killed() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let told = Steps::new()?;
    let mut child = Child::spawn(|| {
        let drm = Drm::open()?;
        let (src, dst) = (drm.create(PAGE64)?, drm.create(PAGE64)?);
        for _ in 0..COPIES_MAX {
            copy_after(&drm, (&src, &dst), &[&fence])?;
        }
        told.done()?;
        std::thread::sleep(2 * LIMIT);
        Ok(())
    })?;
    told.wait("the copies", LIMIT)?;
    check!(drm.vram_free()? < free, "the child has no objects");
    child.kill()?;
    drm.await_vram_free(free)?;
    check!(!fence.poll(0)?, "the fence of the test has signalled");
    works()
}

/// Checks that a child which moves an object waits, and that this does not block other moves and
/// accesses.
fn others_move(debugfs: &DebugFs, child: &mut Child, other: &Gem<'_>, map: &Map) -> Outcome {
    await_sleep(child, FENCE, "SD")?;
    let (a, _) = patterns();
    map.fill(a);
    let id = other.info()?.id;
    for (place, placement) in [
        ("system", uapi::PLACEMENT_SYSTEM),
        ("vram", uapi::PLACEMENT_VRAM),
    ] {
        debugfs.write("move", &format!("{id} {place}"))?;
        placed(other, placement)?;
        cpu_reads(map, a, &[0, 1])?;
    }
    Ok(())
}

/// A copy that waits for another device blocks a move of its object, and no other move.
fn moves() -> Outcome {
    let debugfs = DebugFs::open(&PciDevice::vvram()?)?;
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let free = drm.vram_free()?;
    let size = 2 * PAGE64;
    let (src, dst) = (
        drm.create_flags(size, EITHER)?,
        drm.create_flags(size, EITHER)?,
    );
    let other = drm.create_flags(size, EITHER)?;
    let (from, to, map) = (src.map()?, dst.map()?, other.map()?);
    from.fill(a);
    to.fill(b);
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let copy = copy_after(&drm, (&src, &dst), &[&fence])?;
    // A later copy of another client blocks the move, too.
    let second = {
        let client = Drm::open()?;
        let buffer = dst.export()?;
        let (there, third) = (client.import(&buffer)?, client.create_flags(size, EITHER)?);
        let after = copy_after(&client, (&there, &third), &[])?;
        let seen = third.map()?;
        (client.fd(), after.poll(0)?, seen.read(0))
    };
    check!(!second.1 && second.2 == 0, "a copy did not wait");
    for object in [&dst, &src] {
        let id = object.info()?.id;
        let mut child = Child::spawn(|| Ok(debugfs.write("move", &format!("{id} system"))?))?;
        others_move(&debugfs, &mut child, &other, &map)?;
        child.kill()?;
        placed(object, uapi::PLACEMENT_VRAM)?;
    }
    let id = dst.info()?.id;
    let mut child = Child::spawn(|| Ok(debugfs.write("move", &format!("{id} system"))?))?;
    await_sleep(&mut child, FENCE, "SD")?;
    timeline.step()?;
    child.join("the move", LIMIT)?;
    copy.finish()?;
    check_eq!(copy.status()?, 1, "status of the copy");
    placed(&dst, uapi::PLACEMENT_SYSTEM)?;
    cpu_reads(&to, a, &[0, 1])?;
    drop((from, to, map));
    drop((src, dst, other));
    drm.await_vram_free(free)
}

/// An unbind with full queues: all copies end, those that wait for other fences with an error, and
/// the unbind does not wait for those fences.
fn unbind() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let mut waiting = Vec::new();
    let mut free = Vec::new();
    {
        let clients = [Drm::open()?, Drm::open()?, Drm::open()?];
        for (index, drm) in clients.iter().enumerate() {
            let (src, dst) = (drm.create(1 << 20)?, drm.create(1 << 20)?);
            let (ins, list): (&[_], _) = if index == 0 {
                (&[], &mut free)
            } else {
                (&[&fence], &mut waiting)
            };
            for _ in 0..COPIES_MAX {
                list.push(copy_after(drm, (&src, &dst), ins)?);
            }
        }
        let gone = Unbinding::start(&gpu)?.finish(LIMIT)?;
        check!(!fence.poll(0)?, "the fence of the test has signalled");
        gone.rebind()?;
    }
    let mut cancelled = false;
    for copy in &free {
        copy.finish()?;
        let status = copy.status()?;
        check!(
            status == CANCELLED || (status == 1 && !cancelled),
            "status {status} of a copy"
        );
        cancelled |= status == CANCELLED;
    }
    for copy in &waiting {
        copy.finish()?;
        check_eq!(copy.status()?, CANCELLED, "status of a copy that waited");
    }
    timeline.step()?;
    works()
}

/// The events of a copy that is done, and of one that is cancelled.
fn traced() -> Outcome {
    let other = Drm::open()?;
    let (buffer, second) = (
        other.create(PAGE64)?.export()?,
        other.create(PAGE64)?.export()?,
    );
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let jobs = Jobs::new()?;
    let waits = {
        let drm = Drm::open()?;
        let (src, dst) = (drm.import(&buffer)?, drm.import(&second)?);
        copy_after(&drm, (&src, &dst), &[])?.finish()?;
        copy_after(&drm, (&src, &dst), &[&fence])?
    };
    waits.finish()?;
    let events = jobs.events()?;
    let me = std::process::id();
    let Some(context) = events
        .iter()
        .rfind(|event| event.is("submit", me))
        .map(|event| event.context)
    else {
        fail!("no job was submitted");
    };
    let seen: Vec<String> = events
        .iter()
        .filter(|event| event.context == context)
        .map(|event| {
            let rest = event
                .fields
                .split_whitespace()
                .filter(|word| !word.starts_with("context=") && !word.starts_with("dependencies="));
            format!("{} {}", event.name, rest.collect::<Vec<_>>().join(" "))
        })
        .collect();
    check_eq!(
        seen,
        [
            "submit ring=cpu seqno=1 external=0",
            "run ring=cpu seqno=1",
            "done ring=cpu seqno=1 ret=0",
            "submit ring=cpu seqno=2 external=1",
            &format!("done ring=cpu seqno=2 ret={CANCELLED}"),
        ],
        "events of the client"
    );
    timeline.step()?;
    Ok(())
}

/// A copy that waits for other copies of its device does not wait for another device.
fn traced_internal() -> Outcome {
    const TRIES: usize = 10;
    const BEHIND: usize = 16;
    let (other, drm) = (Drm::open()?, Drm::open()?);
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)? / 4;
    let (from, to) = (other.create(size)?, other.create(size)?);
    let (source, target) = (drm.import(&to.export()?)?, drm.create(PAGE64)?);
    let jobs = Jobs::new()?;
    let me = std::process::id();
    // A process that is not run for some time finds them done.
    for _ in 0..TRIES {
        let before = (0..BEHIND)
            .map(|_| copy_after(&other, (&from, &to), &[]))
            .collect::<Result<Vec<_>, _>>()?;
        copy_handles(&drm, (source.handle(), target.handle()), PAGE64, &[])?.finish()?;
        for copy in before {
            copy.finish()?;
        }
        let events = jobs.events()?;
        let Some(copy) = events.iter().rfind(|event| event.is("submit", me)) else {
            fail!("no job was submitted");
        };
        check!(copy.fields.contains("external=0"), "{}", copy.fields);
        if !copy.fields.contains("dependencies=0") {
            return Ok(());
        }
    }
    fail!("none of {TRIES} copies had to wait")
}

fn one_floods() -> Outcome {
    // The engine does one copy at a time.
    flood(|| Client::of_copies(Drm::open()?), 20, 2)
}

/// In each round an object is evicted while copies are queued, and another object gets its VRAM,
/// without a wait in between: no object shows the content of another one.
fn reuse() -> Outcome {
    const ROUNDS: u64 = 400;
    const BEHIND: usize = 4;
    let debugfs = DebugFs::open(&PciDevice::vvram()?)?;
    let (drm, other) = (Drm::open()?, Drm::open()?);
    let (a, b) = patterns();
    let size = 4 * PAGE64;
    let (from, seen) = (
        drm.create_flags(size, EITHER)?,
        other.create_flags((BEHIND as u64) * size, uapi::CREATE_SYSTEM)?,
    );
    let (source, sink) = (from.map()?, seen.map()?);
    for round in 0..ROUNDS {
        let x = a.derive(round);
        source.fill(x);
        sink.fill(b);
        let moved = drm.create_flags(size, EITHER)?;
        let copy = copy_after(&drm, (&from, &moved), &[])?;
        // The eviction depends on the copy, and the clearing for the next owner depends on the
        // eviction.
        debugfs.write("move", &format!("{} system", moved.info()?.id))?;
        let mut last = None;
        let mut fresh = Vec::new();
        for index in 0..BEHIND {
            let object = other.create(size)?;
            last = Some(other.copy((&object, 0), (&seen, index as u64 * size), size)?);
            fresh.push(object);
        }
        copy.finish()?;
        if let Some(last) = last {
            last.finish()?;
        }
        check_ok!(sink.verify_value(0), "new objects in round {round}");
        placed(&moved, uapi::PLACEMENT_SYSTEM)?;
        check_ok!(moved.map()?.verify(x), "what has left in round {round}");
    }
    Ok(())
}

igt_main! {
    "flood", "a client that floods its queue, and another one", one_floods;
    "traced", "what the tracepoints tell", traced;
    "traced-internal", "they tell whether a copy waits for others", traced_internal;
    "closed", "a client that goes with copies that wait", closed;
    "killed", "a client that dies with copies that wait", killed;
    "moves", "moves of objects with copies that wait, and of others", moves;
    "reuse", "memory that one object leaves and another one gets, with copies queued", reuse;
    "unbind", "an unbind with full queues", unbind;
}

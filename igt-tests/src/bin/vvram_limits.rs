// SPDX-License-Identifier: GPL-2.0

//! The limits of the cgroup controller dmem: a maximum below the current use, protected VRAM, and a
//! maximum of pinned VRAM.

use std::time::Duration;

use vvram_tests::cgroup::Group;
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::fixture::{patterns, peer_reads, Fixture};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::pattern::Pattern;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::Child;
use vvram_tests::{check_eq, check_ok, expect_errno, igt_main, uapi, Outcome, Stop};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);

/// Objects of 1 MiB that may be evicted, with their patterns.
struct Objects<'a>(Vec<(Gem<'a>, Map, Pattern)>);

impl<'a> Objects<'a> {
    fn new(drm: &'a Drm, count: u64) -> Result<Self, Stop> {
        let (seed, _) = patterns();
        let mut objects = Vec::new();
        for index in 0..count {
            let object = drm.create_flags(MIB, EITHER)?;
            let map = object.map()?;
            map.fill(seed.derive(index));
            objects.push((object, map, seed.derive(index)));
        }
        Ok(Self(objects))
    }

    /// How many of them are in VRAM.
    fn in_vram(&self) -> Result<usize, Stop> {
        let mut count = 0;
        for (object, _, _) in &self.0 {
            count += usize::from(object.info()?.placement == uapi::PLACEMENT_VRAM);
        }
        Ok(count)
    }

    /// Checks the patterns of all objects, wherever the objects are.
    #[track_caller]
    fn verify(&self) -> Outcome {
        for (index, (object, map, pattern)) in self.0.iter().enumerate() {
            check_ok!(map.verify(*pattern), "object {index}, {:?}", object.info()?);
        }
        Ok(())
    }
}

/// Takes VRAM in pieces of 1 MiB until there is none.
fn take_all(drm: &Drm) -> Result<Vec<Gem<'_>>, Stop> {
    let mut taken = Vec::new();
    loop {
        match drm.create(MIB) {
            Ok(object) => taken.push(object),
            Err(error) if error.errno == libc::ENOSPC => return Ok(taken),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Runs a function in a process of its own, which may enter any group.
fn apart(what: &str, body: impl FnOnce() -> Outcome) -> Outcome {
    Child::spawn(body)?.join(what, LIMIT)
}

/// When the maximum is set below the use of a group, the excess is evicted.
fn max_lowered() -> Outcome {
    let group = Group::new("max-lowered")?;
    apart("the group", || {
        group.enter()?;
        let drm = Drm::open()?;
        let objects = Objects::new(&drm, 8)?;
        check_eq!(group.current(), Some(8 * MIB), "VRAM of the group");
        for left in [5, 1, 0] {
            group.set("max", left * MIB)?;
            group.await_current(left * MIB)?;
            check_eq!(objects.in_vram()? as u64, left, "objects in VRAM");
            objects.verify()?;
        }
        expect_errno("VRAM of a group without any", drm.create(1), libc::ENOSPC)?;
        group.set("max", 2 * MIB)?;
        let kept = drm.create(2 * MIB)?;
        check_eq!(group.current(), Some(2 * MIB), "VRAM of the group");
        drop(kept);
        objects.verify()
    })?;
    group.await_current(0)
}

/// Objects that cannot leave VRAM stay, whatever the maximum is, and the group gets no more VRAM.
fn max_unevictable() -> Outcome {
    let fixture = Fixture::with_route()?;
    let group = Group::new("max-unevictable")?;
    let peer = &fixture.peer;
    apart("the group", || {
        group.enter()?;
        let drm = Drm::open()?;
        let only = drm.create(2 * MIB)?;
        let objects = Objects::new(&drm, 3)?;
        let pinned = &objects.0[0];
        let buffer = pinned.0.export()?;
        peer.attach_and_map(&buffer, Mode::Pinned)?;
        group.set("max", MIB)?;
        group.await_current(3 * MIB)?;
        check_eq!(objects.in_vram()?, 1, "objects in VRAM that may be evicted");
        check_eq!(pinned.0.info()?.pinned, 1, "pinned");
        check_eq!(
            only.info()?.placement,
            uapi::PLACEMENT_VRAM,
            "placement of an object of VRAM only"
        );
        peer_reads(peer, pinned.2, &[0, MIB as usize / PAGE - 1])?;
        check_eq!(peer.status()?.invalidations, 0, "invalidations");
        expect_errno("more VRAM", drm.create(PAGE as u64), libc::ENOSPC)?;
        // Other objects of the group are evicted, as far as possible.
        let other = drm.create_flags(MIB, EITHER)?;
        check_eq!(
            other.info()?.placement,
            uapi::PLACEMENT_SYSTEM,
            "placement of a new object over the maximum"
        );
        objects.verify()?;
        peer.detach()?;
        // Evictable objects are evicted at the next write of the maximum.
        group.set("max", 2 * MIB)?;
        group.await_current(2 * MIB)?;
        check_eq!(objects.in_vram()?, 0, "objects in VRAM that may be evicted");
        objects.verify()
    })?;
    group.await_current(0)
}

/// A group keeps VRAM that `min` protects while others need all of VRAM, as long as the protection
/// lasts.
fn min() -> Outcome {
    let parent = Group::new("min")?;
    let (mine, others) = (parent.child("mine")?, parent.child("others")?);
    apart("both groups", || {
        let drm = Drm::open()?;
        let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
        check_eq!(drm.vram_free()?, size, "free VRAM");
        mine.set("min", 4 * MIB)?;
        mine.enter()?;
        let objects = Objects::new(&drm, 4)?;
        others.enter()?;
        let mut taken = take_all(&drm)?;
        check_eq!(taken.len() as u64, size / MIB - 4, "objects of others");
        check_eq!(objects.in_vram()?, 4, "protected objects in VRAM");
        check_eq!(mine.current(), Some(4 * MIB), "VRAM of the group");
        objects.verify()?;
        // Without the protection they are evicted.
        mine.set("min", 0)?;
        taken.extend(take_all(&drm)?);
        check_eq!(taken.len() as u64, size / MIB, "objects of others");
        check_eq!(objects.in_vram()?, 0, "objects in VRAM");
        mine.await_current(0)?;
        objects.verify()
    })
}

/// VRAM that `low` protects is evicted last, after all that is not protected.
fn low() -> Outcome {
    let parent = Group::new("low")?;
    let (mine, others) = (parent.child("mine")?, parent.child("others")?);
    apart("both groups", || {
        let drm = Drm::open()?;
        let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
        check_eq!(drm.vram_free()?, size, "free VRAM");
        mine.set("low", 4 * MIB)?;
        mine.enter()?;
        // These objects are the least recently used ones, which would be evicted first.
        let objects = Objects::new(&drm, 4)?;
        others.enter()?;
        let weak = Objects::new(&drm, 4)?;
        let mut taken = Vec::new();
        for _ in 0..size / MIB - 4 {
            taken.push(drm.create(MIB)?);
        }
        check_eq!(weak.in_vram()?, 0, "objects in VRAM without protection");
        check_eq!(objects.in_vram()?, 4, "protected objects in VRAM");
        taken.push(drm.create(MIB)?);
        // Low is no guarantee, but no more leave VRAM than have to.
        check_eq!(objects.in_vram()?, 3, "protected objects in VRAM");
        objects.verify()?;
        weak.verify()
    })
}

/// A pin is charged to the group of the process that pins, and fails above its maximum without any
/// eviction.
fn pinned() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (exporting, importing) = (Group::new("exporting")?, Group::new("importing")?);
    apart("both groups", || {
        exporting.enter()?;
        let drm = Drm::open()?;
        let objects = Objects::new(&drm, 2)?;
        let buffers = [objects.0[0].0.export()?, objects.0[1].0.export()?];
        importing.set_max_pinned(MIB)?;
        importing.enter()?;
        let peers = [Peer::open()?, Peer::open()?, Peer::open()?];
        for (peer, buffer) in peers.iter().zip([0, 0, 1]) {
            peer.attach(&buffers[buffer], Mode::Pinned)?;
        }
        peers[0].pin_and_map(Mode::Pinned)?;
        // An object counts once, also if another importer pins it.
        peers[1].pin_and_map(Mode::Pinned)?;
        check_eq!(importing.pinned(), Some(MIB), "pinned by the group");
        check_eq!(exporting.pinned(), Some(0), "pinned by the other group");
        check_eq!(importing.current(), Some(0), "VRAM of the group");
        check_eq!(
            exporting.current(),
            Some(2 * MIB),
            "VRAM of the other group"
        );
        let moves = drm.counter(Counter::Moves)?;
        expect_errno("a pin over the maximum", peers[2].pin(), libc::EDQUOT)?;
        check_eq!(drm.counter(Counter::Moves)?, moves, "moves");
        check_eq!(objects.in_vram()?, 2, "objects in VRAM");
        check_eq!(importing.pinned(), Some(MIB), "pinned by the group");
        // The charge ends with the last pin.
        peers[0].detach()?;
        check_eq!(importing.pinned(), Some(MIB), "pinned by the group");
        expect_errno("a pin over the maximum", peers[2].pin(), libc::EDQUOT)?;
        peers[1].detach()?;
        check_eq!(importing.pinned(), Some(0), "pinned by the group");
        peers[2].pin_and_map(Mode::Pinned)?;
        check_eq!(importing.pinned(), Some(MIB), "pinned by the group");
        peer_reads(&peers[2], objects.0[1].2, &[0, MIB as usize / PAGE - 1])?;
        // A group without a maximum.
        exporting.enter()?;
        peers[0].attach_and_map(&buffers[0], Mode::Pinned)?;
        check_eq!(exporting.pinned(), Some(MIB), "pinned by the other group");
        objects.verify()
    })?;
    drop(fixture);
    for group in [&exporting, &importing] {
        group.await_current(0)?;
        check_eq!(group.pinned(), Some(0), "pinned at the end");
    }
    Ok(())
}

igt_main! {
    "max-lowered", "what is over a new maximum leaves VRAM", max_lowered;
    "max-unevictable", "what cannot leave stays over the maximum", max_unevictable;
    "min", "others do not get what min protects", min;
    "low", "what low protects leaves last", low;
    "pinned", "a pin over the maximum of the group of the client that pins fails", pinned;
}

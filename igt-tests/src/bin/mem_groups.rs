// SPDX-License-Identifier: GPL-2.0

//! Limits of control groups: a process that has too much memory is killed with all that it has on
//! devices, a part of VRAM is delegated, and limits change while the device sleeps.

use std::fs;
use std::time::Duration;

use vvram_tests::cgroup::{Group, MemoryGroup};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::fixture::{patterns, placed, works, Fixture};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::memory::{ended, reads, writes, PAGES};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::power::{self, lossy, Auto};
use vvram_tests::proc::{Child, Exit, Steps};
use vvram_tests::svm::{check_places, filled, HUGE};
use vvram_tests::uapi::{self, CREATE_DIRECT_IO};
use vvram_tests::user::{self, become_nobody};
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, fail, igt_main, Outcome, Stop, SysError,
};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);

/// What a process gets that is killed: memory in VRAM, objects that it has mapped, that a peer has
/// pinned, and that are being copied, and memory that a peer has registered.
fn get_everything(peers: &[Peer; 2], there: &Steps, go: &Steps, hog: usize) -> Outcome {
    let (a, b) = patterns();
    let drm = Drm::open()?;
    let objects = [
        drm.create(MIB)?,
        drm.create_flags(MIB, EITHER)?,
        drm.create_flags(MIB, EITHER | CREATE_DIRECT_IO)?,
    ];
    let maps = [objects[0].map()?, objects[1].map()?, objects[2].map()?];
    for map in &maps {
        map.fill(a);
    }
    peers[0].attach_and_map(&objects[1].export()?, Mode::Pinned)?;
    let in_vram = filled(HUGE, a)?;
    drm.svm_migrate(&in_vram, 0..HUGE)?;
    check_places(&in_vram, |_| true)?;
    let memory = Map::private(PAGES * PAGE)?;
    memory.fill(a);
    peers[1].register(&memory)?;
    writes(&peers[1], b, &[1])?;
    there.done()?;
    go.wait("the other process", LIMIT)?;
    let mut copies = Vec::new();
    for _ in 0..32 {
        copies.push(drm.copy((&objects[0], 0), (&objects[1], 0), MIB)?);
    }
    Map::private(hog)?.set(1);
    fail!("the process has more memory than it may have");
}

/// Lets the OOM killer choose this process, which the runner of the tests protects.
fn may_be_killed() -> Result<(), SysError> {
    let path = "/proc/self/oom_score_adj";
    fs::write(path, "0").map_err(|error| SysError::io(path, &error))
}

/// A process is killed because its group has no more memory. All that it has comes back, and the
/// files that others have go on.
fn killed() -> Outcome {
    const MAX: u64 = 24 << 20;
    let _fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let drm = Drm::open()?;
    let (free, group) = (drm.vram_free()?, MemoryGroup::new("killed")?);
    let peers = [Peer::open()?, Peer::open()?];
    for round in 1..=2 {
        let (there, go) = (Steps::new()?, Steps::new()?);
        let mut victim = Child::spawn(|| {
            group.enter()?;
            group.set_max(MAX)?;
            may_be_killed()?;
            get_everything(&peers, &there, &go, 2 * MAX as usize)
        })?;
        there.wait("the victim", LIMIT)?;
        check_eq!(drm.vram_free()?, free - 5 * MIB, "free VRAM");
        check_eq!(drm.counter(Counter::VramPinned)?, 2 * MIB, "pinned VRAM");
        go.done()?;
        let exit = victim.wait(LIMIT);
        check_eq!(exit, Some(Exit::Signal(libc::SIGKILL)), "how it ended");
        check_eq!(group.killed()?, round, "processes that were killed");
        check_eq!(drm.svm_vram()?, 0, "VRAM of processes");

        // The object that the peer has pinned outlives the process.
        drm.await_vram_free(free - MIB)?;
        check_eq!(drm.counter(Counter::VramPinned)?, MIB, "pinned VRAM");
        peers[0].detach()?;
        drm.await_vram_free(free)?;
        check_eq!(drm.counter(Counter::VramPinned)?, 0, "pinned VRAM");
        let mut word = [0; 8];
        ended(
            "a read of memory that is gone",
            peers[1].memory_try_read(0, &mut word),
            0,
            libc::ESRCH,
        )?;
        peers[1].unregister()?;
    }
    let own = Map::private(PAGES * PAGE)?;
    own.fill(a);
    peers[1].register(&own)?;
    writes(&peers[1], b, &[0])?;
    reads(&peers[1], b, &[0])?;
    reads(&peers[1], a, &[1])?;
    works()
}

/// An object that may be evicted, in VRAM and with a pattern.
fn evictable(drm: &Drm, pattern: Pattern) -> Result<(Gem<'_>, Map), Stop> {
    let object = drm.create_flags(MIB, EITHER)?;
    let map = object.map()?;
    map.fill(pattern);
    placed(&object, uapi::PLACEMENT_VRAM)?;
    Ok((object, map))
}

/// Checks where an object is, and its bytes.
#[track_caller]
fn is_at((object, map): &(Gem<'_>, Map), placement: u32, pattern: Pattern) -> Outcome {
    placed(object, placement)?;
    map.verify(pattern)
        .map_err(|mismatch| Stop::fail(format_args!("{placement}: {mismatch}")))
}

/// A user to whom a part of the VRAM of a group is delegated divides it, and gets no more than the
/// group has.
fn delegated() -> Outcome {
    const HAS: u64 = 4 * MIB;
    let outer = Group::new("delegated")?;
    outer.set("max", HAS)?;
    let inner = outer.child("inner")?;
    inner.delegate(user::NOBODY)?;
    let root = Drm::open()?;
    let node = root.path().to_path_buf();
    let _open = user::Mode::set(&node, 0o666)?;
    let (a, b) = patterns();
    let mut child = Child::spawn(|| {
        inner.enter()?;
        become_nobody()?;
        // The limits of the delegated group itself belong to its parent.
        for group in [&outer, &inner] {
            let changed = group.try_set("max", 8 * MIB);
            expect_errno("a limit of others", changed, libc::EACCES)?;
        }
        let own = inner.divide("own")?;
        own.set("max", 8 * MIB)?;
        let drm = Drm::open_path(&node)?;
        let kept = drm.create(HAS)?;
        check_eq!(own.current(), Some(HAS), "VRAM of the group");
        check_eq!(inner.current(), Some(HAS), "VRAM of the group above");
        check_eq!(outer.current(), Some(HAS), "VRAM of the group of root");
        expect_errno("more than root gives", drm.create(1), libc::ENOSPC)?;
        drop(kept);
        own.await_current(0)?;

        // Within its own limit, the user's objects make room for each other.
        own.set("max", MIB)?;
        let first = evictable(&drm, a)?;
        let second = evictable(&drm, b)?;
        is_at(&first, uapi::PLACEMENT_SYSTEM, a)?;
        let only = drm.create(MIB)?;
        is_at(&second, uapi::PLACEMENT_SYSTEM, b)?;
        placed(&only, uapi::PLACEMENT_VRAM)?;
        expect_errno("more than it may have", drm.create(1), libc::ENOSPC)?;
        check_eq!(own.current(), Some(MIB), "VRAM of the group");
        Ok(())
    })?;
    let outcome = child.join("the user", LIMIT);
    inner.remove_child("own");
    outcome?;
    inner.await_current(0)?;
    outer.await_current(0)
}

/// The maximum is set below the use of a group while the device is suspended: it resumes to move what
/// is over the maximum, and nothing else.
fn asleep(is_lossy: bool) -> Outcome {
    let gpu = PciDevice::vvram()?;
    let group = Group::new("asleep")?;
    let (a, b) = patterns();
    let mut child = Child::spawn(|| {
        group.enter()?;
        let drm = Drm::open()?;
        let only = drm.create(MIB)?;
        only.map()?.fill(b);
        let first = evictable(&drm, a)?;
        let second = evictable(&drm, b)?;
        // Objects that may leave VRAM do so when VRAM loses its content.
        let left = if is_lossy { MIB } else { 3 * MIB };
        let auto = Auto::new(&gpu)?;
        auto.sleeps("with objects of a group")?;
        group.await_current(left)?;
        auto.sleeps_through("a maximum that is not exceeded", || {
            group.set("max", 3 * MIB)?;
            group.set("min", MIB)?;
            group.set("min", 0)
        })?;
        check_eq!(group.current(), Some(left), "VRAM of the group");
        if is_lossy {
            auto.sleeps_through("a maximum that is not exceeded", || group.set("max", MIB))?;
        } else {
            auto.woken_by("a maximum below the use", || group.set("max", 2 * MIB))?;
            group.await_current(2 * MIB)?;
            auto.sleeps("after that")?;
            auto.woken_by("a maximum further below", || group.set("max", MIB))?;
        }
        group.await_current(MIB)?;
        for (object, pattern) in [(&first, a), (&second, b)] {
            is_at(object, uapi::PLACEMENT_SYSTEM, pattern)?;
        }
        check_ok!(only.map()?.verify(b), "the object that stays");
        placed(&only, uapi::PLACEMENT_VRAM)?;
        expect_errno("more VRAM", drm.create(1), libc::ENOSPC)?;
        auto.sleeps("at the end")?;
        // With nothing in VRAM, no maximum wakes the device.
        group.set("max", 8 * MIB)?;
        let more = drm.create(MIB)?;
        placed(&more, uapi::PLACEMENT_VRAM)
    })?;
    child.join("the group", LIMIT)?;
    group.await_current(0)
}

fn asleep_kept() -> Outcome {
    asleep(false)?;
    works()
}

fn asleep_lost() -> Outcome {
    lossy(|| asleep(true))
}

/// The system sleeps while a group has all that it may have: it has no more afterwards, and limits
/// still work.
fn system_sleeps() -> Outcome {
    let group = Group::new("system")?;
    let (a, b) = patterns();
    let mut child = Child::spawn(|| {
        group.enter()?;
        group.set("max", 3 * MIB)?;
        let drm = Drm::open()?;
        let only = drm.create(MIB)?;
        only.map()?.fill(b);
        let objects = [evictable(&drm, a)?, evictable(&drm, b)?];
        check_eq!(group.current(), Some(3 * MIB), "VRAM of the group");
        power::system_sleep()?;
        let current = group.current().unwrap_or(u64::MAX);
        check!(
            (MIB..=3 * MIB).contains(&current),
            "the group has {current} bytes"
        );
        group.set("max", MIB)?;
        group.await_current(MIB)?;
        for (object, pattern) in objects.iter().zip([a, b]) {
            is_at(object, uapi::PLACEMENT_SYSTEM, pattern)?;
        }
        power::system_sleep()?;
        check_eq!(group.current(), Some(MIB), "VRAM of the group");
        check_ok!(only.map()?.verify(b), "the object that stays");
        placed(&only, uapi::PLACEMENT_VRAM)?;
        expect_errno("more VRAM", drm.create(1), libc::ENOSPC)
    })?;
    child.join("the group", LIMIT)?;
    group.await_current(0)?;
    works()
}

igt_main! {
    "killed", "the OOM killer ends a process with all that it has on devices", killed;
    "delegated", "a user divides the VRAM that root delegates, and gets no more", delegated;
    "asleep-kept", "a limit below the use resumes the device, and no other does", asleep_kept;
    "asleep-lost", "the same with VRAM that loses its content", asleep_lost;
    "system-sleeps", "limits hold over a sleep of the system", system_sleeps;
}

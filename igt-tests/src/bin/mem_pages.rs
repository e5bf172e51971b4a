// SPDX-License-Identifier: GPL-2.0

//! Devices access pages of files and pages that the kernel swaps out, by the addresses of a process.
//!
//! No page is pinned, so each may leave memory at any time. What a device has written must be in the
//! file, or in the swap area, then: no bit of a page table says that the device has written.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use vvram_tests::cgroup::MemoryGroup;
use vvram_tests::disk::{Direct, Disk, Ext4, Part, Way};
use vvram_tests::drm::Drm;
use vvram_tests::fixture::{cpu_reads, patterns, works, Expect};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::memory::{bytes, complete, ended, kind_of, reached, reads, writes, Setup, PAGES};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::peer::Peer;
use vvram_tests::proc::{Child, Exit, KernelLog, Steps};
use vvram_tests::svm::{check_places, filled, holds, places, Place};
use vvram_tests::swap::{with_swap, Swap};
use vvram_tests::uapi::EDU_PEER_MEMORY_KIND_SYSTEM as SYSTEM;
use vvram_tests::{check, check_eq, check_ok, expect_errno, fail, igt_main, Outcome, SysError};

const LEN: usize = PAGES * PAGE;
const LIMIT: Duration = Duration::from_secs(20);

/// A file, open for reading and writing.
fn open(path: &Path) -> Result<File, SysError> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| SysError::io(format!("open({})", path.display()), &error))
}

/// Compares pages of a file, as read(2) reads them, with a pattern.
#[track_caller]
fn file_has(file: &File, pattern: Pattern, pages: &[usize]) -> Outcome {
    for page in pages {
        let (mut data, at) = (vec![0; PAGE], (page * PAGE) as u64);
        file.read_exact_at(&mut data, at)
            .map_err(|error| SysError::io("pread(file)", &error))?;
        check_ok!(pattern.verify(&data, at), "page {page} of the file");
    }
    Ok(())
}

/// Makes the device read a page of zeroes.
#[track_caller]
fn reads_zeroes(peer: &Peer, page: usize) -> Outcome {
    let mut data = vec![0xa5; PAGE];
    complete(peer.memory_try_read((page * PAGE) as u64, &mut data), 1)?;
    check!(
        data.iter().all(|byte| *byte == 0),
        "page {page} does not read as zeroes"
    );
    Ok(())
}

/// A file in memory: the device allocates its holes, sees what others write to it, and loses access
/// to what is cut off.
fn tmpfs() -> Outcome {
    let (a, b) = patterns();
    let path = Path::new("/dev/shm/mem_pages");
    let file = open(path)?;
    let _ = fs::remove_file(path);
    let set_len = |len: usize| {
        file.set_len(len as u64)
            .map_err(|error| SysError::io("ftruncate()", &error))
    };
    set_len(LEN)?;
    let map = Map::new(file.as_raw_fd(), 0, LEN)?;
    let peer = Peer::open()?;
    peer.register(&map)?;
    reads_zeroes(&peer, 0)?;
    writes(&peer, a, &[0, 1])?;
    reached(&peer, 1, SYSTEM)?;
    file_has(&file, a, &[0, 1])?;
    cpu_reads(&map, a, &[0, 1])?;
    file.write_all_at(&bytes(b, 2, 1), 2 * PAGE64)
        .map_err(|error| SysError::io("pwrite(file)", &error))?;
    reads(&peer, b, &[2])?;

    // A hole is punched under a page that the device has mapped.
    let before = peer.memory_counters()?.invalidations;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain system call on an fd that is open.
    if unsafe { libc::fallocate(file.as_raw_fd(), mode, PAGE as i64, PAGE as i64) } < 0 {
        return Err(SysError::last("fallocate(PUNCH_HOLE)").into());
    }
    let punched = peer.memory_counters()?.invalidations;
    check!(punched > before, "the hole invalidated nothing");
    reads_zeroes(&peer, 1)?;
    reads(&peer, a, &[0])?;

    // The file gets shorter, and longer again.
    set_len(2 * PAGE)?;
    let mut data = vec![0; PAGE];
    ended(
        "a read behind the end of the file",
        peer.memory_try_read(2 * PAGE64, &mut data),
        0,
        libc::EFAULT,
    )?;
    ended(
        "a write behind the end of the file",
        peer.memory_try_write(2 * PAGE64, &data),
        0,
        libc::EFAULT,
    )?;
    set_len(LEN)?;
    reads_zeroes(&peer, 2)?;
    writes(&peer, b, &[2])?;
    file_has(&file, b, &[2])?;
    file_has(&file, a, &[0])
}

/// Compares pages of a file on the disk, without its pages in the page cache.
#[track_caller]
fn disk_has(path: &Path, pattern: Pattern, pages: &[usize]) -> Outcome {
    let direct = Direct::open(path, false)?;
    let copy = Map::private(LEN)?;
    direct.transfer(Way::Read, Part::all(&copy), 0)?;
    for page in pages {
        check_ok!(copy.verify_pages(pattern, *page, 1), "on the disk");
    }
    Ok(())
}

/// Makes the pages of a file leave the page cache.
#[track_caller]
fn evict(map: &Map) -> Outcome {
    let gone = misc::poll(LIMIT, || {
        // Dirty pages only leave after a writeback.
        map.sync().ok()?;
        // Pages that were just read are not on the lists of the kernel yet; this puts them there.
        fs::write("/proc/sys/vm/drop_caches", "1").ok()?;
        map.advise(0..map.pages(), libc::MADV_PAGEOUT).ok()?;
        (map.cached().ok()? == 0).then_some(())
    });
    check!(
        gone.is_some(),
        "{:?} pages stay in the page cache",
        map.cached()
    );
    Ok(())
}

/// A file on a disk: each write of the device makes its page dirty, also if the page was written back
/// meanwhile, and pages that are not in memory are read from the disk.
fn ext4() -> Outcome {
    let (a, b) = patterns();
    let mounted = Ext4::mounted()?;
    let path = mounted.file("shared");
    fs::write(&path, bytes(a, 0, PAGES)).map_err(|error| SysError::io("write(file)", &error))?;
    let file = open(&path)?;
    let map = Map::new(file.as_raw_fd(), 0, LEN)?;
    let peer = Peer::open()?;
    peer.register(&map)?;
    let mut last = a;
    for round in 0..3 {
        last = b.derive(round);
        writes(&peer, last, &[1, 2])?;
        reached(&peer, 1, SYSTEM)?;
        let before = peer.memory_counters()?.invalidations;
        map.sync()?;
        let after = peer.memory_counters()?.invalidations;
        check!(after > before, "round {round}: nothing was write-protected");
        disk_has(&path, last, &[1, 2])?;
        disk_has(&path, a, &[0, 3])?;
    }

    evict(&map)?;
    reads(&peer, last, &[1, 2])?;
    evict(&map)?;
    writes(&peer, a, &[2])?;
    reads(&peer, last, &[1])?;
    evict(&map)?;
    disk_has(&path, a, &[0, 2, 3])?;
    cpu_reads(&map, last, &[1])?;
    cpu_reads(&map, a, &[0, 2, 3])?;

    // What the device writes to a private mapping does not get to the file.
    let private = Map::private_file(file.as_raw_fd(), LEN)?;
    let other = peer.reopen()?;
    other.register(&private)?;
    reads(&other, last, &[1])?;
    writes(&other, b, &[0, 1])?;
    cpu_reads(&private, b, &[0, 1])?;
    cpu_reads(&private, a, &[2, 3])?;
    cpu_reads(&map, a, &[0])?;
    reads(&peer, last, &[1])?;
    map.sync()?;
    disk_has(&path, last, &[1])
}

/// Checks where each page is.
#[track_caller]
fn are(map: &Map, want: [Place; PAGES]) -> Outcome {
    check_eq!(places(map)?, want, "where the pages are");
    Ok(())
}

/// The device brings pages back that are swapped out, and no others.
fn swapped() -> Outcome {
    const GONE: Place = Place::Swap;
    with_swap("swapped", |swap| {
        let Setup { peer, map, a, b } = Setup::new()?;
        reads(&peer, a, &[0])?;
        let before = peer.memory_counters()?.invalidations;
        swap.out(&map)?;
        check!(
            peer.memory_counters()?.invalidations > before,
            "the page left memory under the device"
        );
        are(&map, [GONE; PAGES])?;
        reads(&peer, a, &[0])?;
        reached(&peer, 0, SYSTEM)?;
        writes(&peer, b, &[1])?;
        are(&map, [Place::Ram, Place::Ram, GONE, GONE])?;
        cpu_reads(&map, b, &[1])?;
        cpu_reads(&map, a, &[0, 2, 3])
    })
}

/// What the device writes to a page is in the swap area after the page has left memory, however the
/// page had got to memory.
fn dirty() -> Outcome {
    with_swap("dirty", |swap| {
        let Setup { peer, map, a, b } = Setup::new()?;
        swap.out(&map)?;
        // The copies in memory and in the swap area are the same now, and the page table permits
        // writes.
        cpu_reads(&map, a, &[1])?;
        reads(&peer, a, &[2])?;
        writes(&peer, b, &[0, 1, 2])?;
        swap.out(&map)?;
        cpu_reads(&map, b, &[0, 1, 2])?;
        cpu_reads(&map, a, &[3])?;
        // The same by a mapping for writing that the device has from the start.
        writes(&peer, a, &[0])?;
        swap.out(&map)?;
        reads(&peer, a, &[0, 3])?;
        reads(&peer, b, &[1, 2])
    })
}

/// The same with memory that processes share.
fn shared() -> Outcome {
    with_swap("shared", |swap| {
        let Setup { peer, map, a, b } = Setup::of(Map::anonymous(LEN)?)?;
        swap.out(&map)?;
        are(&map, [Place::Nowhere; PAGES])?;
        reads(&peer, a, &[1])?;
        writes(&peer, b, &[0, 1])?;
        swap.out(&map)?;
        cpu_reads(&map, b, &[0, 1])?;
        reads(&peer, a, &[2, 3])
    })
}

/// The limit of a group is set below what it uses: pages are swapped out under the device, and the
/// device goes on.
fn limited() -> Outcome {
    const MANY: usize = 512;
    const STEP: usize = 128;
    with_swap("limited", |swap| {
        let Setup { peer, map, a, b } = Setup::of(Map::private(MANY * PAGE)?)?;
        reads(&peer, a, &[0, MANY - 1])?;
        let half = (MANY / 2 * PAGE) as u64;
        let limit = swap.group().current()? - half;
        swap.group().set_max(limit)?;
        let gone = places(&map)?;
        let gone = gone.iter().filter(|place| **place == Place::Swap).count();
        check!(gone > 0, "no page of the device was swapped out");
        for first in (0..MANY).step_by(STEP) {
            writes(&peer, b, &[first])?;
        }
        // All pages together do not fit.
        for first in (0..MANY).step_by(STEP) {
            holds("the CPU", &map, a, first + 1..first + STEP)?;
        }
        for first in (0..MANY).step_by(STEP) {
            reads(&peer, b, &[first])?;
        }
        check!(
            swap.group().current()? <= limit,
            "the group has more than its limit"
        );
        check_eq!(swap.group().killed()?, 0, "processes that were killed");
        Ok(())
    })
}

/// Pages that are swapped out do not migrate to VRAM, pages in VRAM are not swapped out, and what a
/// peer has written to them there is kept when they are.
fn vram() -> Outcome {
    let expect = Expect::get()?;
    expect.need_route()?;
    with_swap("vram", |swap| in_vram(swap, expect))
}

fn in_vram(swap: &Swap, expect: Expect) -> Outcome {
    const ALL: usize = 8;
    let (a, b) = patterns();
    let drm = Drm::open()?;
    let map = filled(ALL, a)?;
    let peer = Peer::open()?;
    peer.register(&map)?;
    swap.out(&map)?;
    expect_errno(
        "what is swapped out",
        drm.svm_migrate(&map, 0..ALL),
        libc::EBUSY,
    )?;
    check_eq!(places(&map)?, [Place::Swap; ALL], "where the pages are");
    // VRAM of a process that has ended is freed soon after it.
    let unused = misc::poll(LIMIT, || (drm.svm_vram().ok()? == 0).then_some(()));
    check!(unused.is_some(), "processes have VRAM");

    // Pages that are in memory, and the same in the swap area, are not written by the CPU from here
    // on.
    cpu_reads(&map, a, &[0, 1, 2, 3])?;
    expect_errno(
        "what is swapped out in part",
        drm.svm_migrate(&map, 0..ALL),
        libc::EBUSY,
    )?;
    let place = |page| if page < 4 { Place::Device } else { Place::Swap };
    let want: Vec<_> = (0..ALL).map(place).collect();
    check_eq!(places(&map)?, want, "where the pages are");
    map.advise(0..ALL, libc::MADV_PAGEOUT)?;
    swap.group().reclaim();
    check_eq!(places(&map)?, want, "where the pages are after the reclaim");

    writes(&peer, b, &[1])?;
    reached(&peer, 1, kind_of(expect))?;
    check_eq!(places(&map)?, want, "where the pages are after the write");
    drm.svm_evict(&map, 0..4)?;
    check_places(&map, |_| false)?;
    swap.out(&map)?;
    cpu_reads(&map, b, &[1])?;
    cpu_reads(&map, a, &[0, 2, 3, 4, 5, 6, 7])?;
    drm.svm_migrate(&map, 0..ALL)?;
    check_places(&map, |_| true)?;
    reads(&peer, b, &[1])?;
    reads(&peer, a, &[0, 7])
}

/// Lets the OOM killer choose this process, which the runner of the tests protects.
fn may_be_killed() -> Result<(), SysError> {
    let path = "/proc/self/oom_score_adj";
    fs::write(path, "0").map_err(|error| SysError::io(path, &error))
}

/// A process that the OOM killer has chosen does not end, because the disk does not answer: its
/// memory is taken from it while it still exists, that in VRAM as well. Memory that a device has
/// registered is kept until the end, because the OOM killer does not wait for devices, but the device
/// cannot access it any more.
fn reaped(registered: bool) -> Outcome {
    const MAX: u64 = 16 << 20;
    let (a, b) = patterns();
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let group = MemoryGroup::new("reaped")?;
    let peer = Peer::open()?;
    let disk = Disk::open()?;
    let buffer = Map::private(PAGE)?;
    let (there, go) = (Steps::new()?, Steps::new()?);
    let mut victim = Child::spawn(|| {
        group.enter()?;
        group.set_max(MAX)?;
        may_be_killed()?;
        let map = filled(64, a)?;
        Drm::open()?.svm_migrate(&map, 0..64)?;
        check_places(&map, |_| true)?;
        let memory = Map::private(LEN)?;
        memory.fill(a);
        if registered {
            peer.register(&memory)?;
            writes(&peer, b, &[1])?;
        }
        there.done()?;
        go.wait("the disk to be held up", LIMIT)?;
        // This thread does not end before the disk has answered.
        let _read = disk.direct.start(Way::Read, Part::all(&buffer), 0)?;
        let hog = Map::private(2 * MAX as usize)?;
        hog.set(1);
        fail!("the process has more memory than it may have");
    })?;
    there.wait("the victim", LIMIT)?;
    check_eq!(drm.vram_free()?, free - 64 * PAGE64, "free VRAM");
    let stalled = disk.stall()?;
    let mut log = KernelLog::open()?;
    go.done()?;
    let line = if registered {
        "oom_reaper: unable to reap pid"
    } else {
        "oom_reaper: reaped process"
    };
    log.await_line(line, LIMIT)?;
    check_eq!(group.killed()?, 1, "processes that were killed");
    drm.await_vram_free(free)?;
    check_eq!(drm.svm_vram()?, 0, "VRAM of processes");
    let left = group.current()?;
    check!(left < MAX / 4, "the group still has {left} bytes");
    check_eq!(victim.ended(), None, "how the victim ended");
    let mut word = [0; 8];
    if registered {
        let read = peer.memory_try_read(0, &mut word);
        ended("a read of what may be gone", read, 0, libc::EFAULT)?;
    }
    drop(stalled);
    let exit = victim.wait(LIMIT);
    check_eq!(exit, Some(Exit::Signal(libc::SIGKILL)), "how it ended");
    if registered {
        let read = peer.memory_try_read(0, &mut word);
        ended("a read of what is gone", read, 0, libc::ESRCH)?;
        peer.unregister()?;
    }
    works()
}

igt_main! {
    "tmpfs", "a file in memory is read, written, punched and cut off under the device", tmpfs;
    "ext4", "what the device writes to a file gets to the disk", ext4;
    "swapped", "the device brings pages back that are swapped out", swapped;
    "dirty", "what the device writes is kept when a page is swapped out", dirty;
    "shared", "the same with memory that processes share", shared;
    "limited", "the device goes on while a group has more than its limit", limited;
    "vram", "pages go from swap to VRAM and back, with what a peer writes there", vram;
    "reaped", "VRAM of a process is reaped while a disk keeps the process", || reaped(false);
    "reaped-registered", "the same with memory that a device has registered", || reaped(true);
}

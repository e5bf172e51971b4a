// SPDX-License-Identifier: GPL-2.0

//! Memory under devices while the process forks all the time, while a debugger accesses it, and
//! while the kernel makes huge pages of it or merges equal pages.

use std::fs;
use std::time::Duration;

use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Drm, EITHER};
use vvram_tests::fixture::{cpu_reads, patterns};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::memory::{bytes, complete, during, reached, reads, writes, Setup, PAGES};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::peer::Peer;
use vvram_tests::proc::{Child, Steps};
use vvram_tests::svm::{check_places, filled, holds, places, Place, HUGE};
use vvram_tests::uapi::{CREATE_DIRECT_IO, EDU_PEER_MEMORY_KIND_SYSTEM as SYSTEM};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome, Stop, SysError};

const WORDS: usize = PAGE / 8;
const LIMIT: Duration = Duration::from_secs(40);

/// The number of processes that fork, one for each processor of a guest.
const FORKERS: u64 = 4;
/// How often each of them forks.
const FORKS: u64 = 10;
/// The pages that each of them has.
const OWN: usize = 32;

/// Forks with memory in VRAM and a mapping for direct I/O; the parent and the child write to both.
/// Returns how often all of the memory had moved to VRAM.
fn forks(drm: &Drm, index: u64, seed: Pattern) -> Result<u64, Stop> {
    let mut pattern = seed.derive(index);
    let map = filled(OWN, pattern)?;
    let object = drm.create_flags(PAGE64, EITHER | CREATE_DIRECT_IO)?;
    let direct = object.map()?;
    let mut moved = 0;
    for round in 0..FORKS * misc::soak() {
        match drm.svm_migrate(&map, 0..OWN) {
            // Others make room for their memory.
            Err(error) if error.errno == libc::EBUSY => {}
            result => {
                result?;
                moved += 1;
            }
        }
        let mut child = Child::spawn(|| {
            direct.write(round as usize % WORDS, pattern.word(round));
            // The parent writes meanwhile.
            holds("a child", &map, pattern, 0..OWN)?;
            map.fill(seed.derive(!round));
            holds("a child", &map, seed.derive(!round), 0..OWN)
        })?;
        let next = seed.derive(index + FORKERS * (round + 1));
        map.fill_pages(next, 0, OWN / 2);
        child.join("a child", LIMIT)?;
        holds("the parent", &map, next, 0..OWN / 2)?;
        holds("the parent", &map, pattern, OWN / 2..OWN)?;
        check_eq!(
            direct.read(round as usize % WORDS),
            pattern.word(round),
            "what a child has written to VRAM"
        );
        map.fill_pages(next, OWN / 2, OWN / 2);
        pattern = next;
    }
    Ok(moved)
}

/// Several processes fork all the time.
fn fork_storm() -> Outcome {
    let (seed, _) = patterns();
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    println!("seed of the storm {seed:?}");
    let counts = Map::anonymous(PAGE)?;
    let mut forkers = Vec::new();
    for index in 0..FORKERS {
        let counts = &counts;
        forkers.push(Child::spawn(move || {
            let moved = forks(&Drm::open()?, index, seed)?;
            counts.write(index as usize, moved);
            Ok(())
        })?);
    }
    for forker in &mut forkers {
        forker.join("a process that forks", LIMIT)?;
    }
    for index in 0..FORKERS as usize {
        let (moved, rounds) = (counts.read(index), FORKS * misc::soak());
        println!("process {index}: {moved} of {rounds} moves");
        check!(
            2 * moved >= rounds,
            "process {index} has moved its memory {moved} times of {rounds}"
        );
    }
    drop(forkers);
    drm.await_vram_free(free)?;
    check_eq!(drm.counter(Counter::VramPinned)?, 0, "pinned VRAM");
    Ok(())
}

/// A process that is traced by this one, until this is dropped.
struct Traced(i32);

impl Traced {
    #[track_caller]
    fn new(child: &Child) -> Result<Self, Stop> {
        let pid = child.pid();
        ptrace(libc::PTRACE_ATTACH, pid, 0, 0)?;
        let mut status = 0;
        // SAFETY: the pointer is valid for a write of an int.
        let stopped = unsafe { libc::waitpid(pid, &mut status, 0) };
        let traced = Self(pid);
        check!(
            stopped == pid && libc::WIFSTOPPED(status),
            "the process does not stop: {status:#x}"
        );
        Ok(traced)
    }

    fn peek(&self, address: u64) -> Result<u64, SysError> {
        let mut word = 0u64;
        // The system call writes the word to the address in `data`, unlike the function of the C
        // library.
        // SAFETY: the kernel checks the address in the process, and writes one word.
        let status = unsafe {
            libc::syscall(
                libc::SYS_ptrace,
                libc::PTRACE_PEEKDATA,
                self.0,
                address,
                &raw mut word,
            )
        };
        if status < 0 {
            return Err(SysError::last(format!("PTRACE_PEEKDATA({address:#x})")));
        }
        Ok(word)
    }

    fn poke(&self, address: u64, word: u64) -> Result<(), SysError> {
        ptrace(libc::PTRACE_POKEDATA, self.0, address, word)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = ptrace(libc::PTRACE_DETACH, self.0, 0, 0);
    }
}

fn ptrace(request: libc::c_uint, pid: i32, address: u64, data: u64) -> Result<(), SysError> {
    // SAFETY: none of the requests of the callers writes to this process.
    let status = unsafe { libc::syscall(libc::SYS_ptrace, request, pid, address, data) };
    if status < 0 {
        return Err(SysError::last(format!("ptrace({request}, {address:#x})")));
    }
    Ok(())
}

/// Moves bytes between a buffer and the memory of another process; returns how many.
fn process_vm(pid: i32, address: u64, data: &mut [u8], write: bool) -> Result<usize, SysError> {
    let local = libc::iovec {
        iov_base: data.as_mut_ptr().cast(),
        iov_len: data.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: data.len(),
    };
    // SAFETY: the buffer is that of the first structure; the kernel checks the addresses of the
    // other process.
    let count = unsafe {
        if write {
            libc::process_vm_writev(pid, &local, 1, &remote, 1, 0)
        } else {
            libc::process_vm_readv(pid, &local, 1, &remote, 1, 0)
        }
    };
    if count < 0 {
        let what = if write { "writev" } else { "readv" };
        return Err(SysError::last(format!("process_vm_{what}({address:#x})")));
    }
    Ok(count as usize)
}

/// Memory of a process that another one accesses: in VRAM, and registered.
struct Debugged<'a> {
    drm: &'a Drm,
    peer: &'a Peer,
    pid: i32,
    /// Pages in VRAM, in blocks of [`BLOCK`] pages.
    map: &'a Map,
    /// An object in VRAM, and one that is mapped for direct I/O.
    objects: [&'a Map; 2],
    /// Memory that the peer has registered, and that both processes share until one writes.
    memory: &'a Map,
    a: Pattern,
    b: Pattern,
}

const BLOCK: usize = 8;

/// Runs a test with a process that has all kinds of memory, and checks the bytes that the process
/// sees afterwards: a page of `memory` in VRAM, and one that is registered, have the other pattern.
fn debugged(body: impl FnOnce(&Debugged<'_>, &Child) -> Outcome) -> Outcome {
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let object = drm.create(PAGE64)?;
    let direct = drm.create_flags(PAGE64, EITHER | CREATE_DIRECT_IO)?;
    let (object, direct) = (object.map()?, direct.map()?);
    object.fill(a);
    direct.fill(a);
    let map = Map::private_aligned(2 * BLOCK * PAGE, BLOCK * PAGE)?;
    let memory = Map::private(PAGES * PAGE)?;
    memory.fill(a);
    let (there, go) = (Steps::new()?, Steps::new()?);
    let mut child = Child::spawn(|| {
        map.advise(0..2 * BLOCK, libc::MADV_NOHUGEPAGE)?;
        map.fill(a);
        for first in [0, BLOCK] {
            drm.svm_migrate(&map, first..first + BLOCK)?;
        }
        check_places(&map, |_| true)?;
        peer.register(&memory)?;
        there.done()?;
        go.wait("the debugger", LIMIT)?;
        check_places(&map, |page| page >= BLOCK)?;
        cpu_reads(&map, b, &[1])?;
        cpu_reads(&map, a, &[0, 2, BLOCK])?;
        cpu_reads(&memory, b, &[1])?;
        cpu_reads(&memory, a, &[0, 2, 3])?;
        cpu_reads(&object, a, &[0])?;
        cpu_reads(&direct, a, &[0])
    })?;
    there.wait("the process", LIMIT)?;
    reads(&peer, a, &[1])?;
    let it = Debugged {
        drm: &drm,
        peer: &peer,
        pid: child.pid(),
        map: &map,
        objects: [&object, &direct],
        memory: &memory,
        a,
        b,
    };
    let back = drm.svm_moved_back()?;
    body(&it, &child)?;
    check_eq!(
        drm.svm_moved_back()?,
        back + BLOCK as u64,
        "pages that came back"
    );
    check_eq!(drm.svm_vram()?, BLOCK as u64 * PAGE64, "VRAM of processes");
    // The device follows the page that the process got of its own, and the memory of this process
    // is as it was.
    reads(&peer, b, &[1])?;
    reads(&peer, a, &[0, 2])?;
    cpu_reads(&memory, a, &[0, 1, 2, 3])?;
    go.done()?;
    child.join("the process", LIMIT)
}

/// A debugger reads and writes words of memory in VRAM, which comes back, and of memory that a device
/// has registered. It gets no access to objects.
fn traced() -> Outcome {
    debugged(|it, child| {
        let traced = Traced::new(child)?;
        let word = |page: usize, index: usize| (page * WORDS + index) as u64;
        check_eq!(
            traced.peek(it.map.page_address(1))?,
            it.a.word(word(1, 0)),
            "a word in VRAM"
        );
        for index in 0..WORDS {
            let at = 8 * index as u64;
            traced.poke(it.map.page_address(1) + at, it.b.word(word(1, index)))?;
            traced.poke(it.memory.page_address(1) + at, it.b.word(word(1, index)))?;
        }
        check_eq!(
            traced.peek(it.memory.page_address(1))?,
            it.b.word(word(1, 0)),
            "a word that was written"
        );
        for map in it.objects {
            expect_errno("a look", traced.peek(map.page_address(0)), libc::EIO)?;
            let write = traced.poke(map.page_address(0), 1);
            expect_errno("a write", write, libc::EIO)?;
        }
        Ok(())
    })
}

/// The same by process_vm_readv() and process_vm_writev(), which end where there is no access.
fn process_vms() -> Outcome {
    debugged(|it, _| {
        let mut data = vec![0; 2 * PAGE];
        let at = it.map.page_address(1);
        check_eq!(process_vm(it.pid, at, &mut data, false)?, 2 * PAGE, "bytes");
        if let Err(mismatch) = it.a.verify(&data, PAGE64) {
            fail!("read from VRAM: {mismatch}");
        }
        let mut page = bytes(it.b, 1, 1);
        for map in [it.map, it.memory] {
            let count = process_vm(it.pid, map.page_address(1), &mut page, true)?;
            check_eq!(count, PAGE, "bytes that were written");
        }
        for map in it.objects {
            for write in [false, true] {
                let result = process_vm(it.pid, map.page_address(0), &mut page, write);
                expect_errno("access to an object", result, libc::EFAULT)?;
            }
        }
        check_eq!(it.drm.svm_vram()?, BLOCK as u64 * PAGE64, "VRAM");
        reads(it.peer, it.b, &[1])
    })
}

/// Whether the memory at the start of a mapping is one huge page.
fn is_huge(map: &Map) -> Result<bool, SysError> {
    let path = "/proc/self/smaps";
    let text = fs::read_to_string(path).map_err(|error| SysError::io(path, &error))?;
    let start = format!("{:x}-", map.page_address(0));
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
    let size = lines.find_map(|line| line.strip_prefix("AnonHugePages:"));
    Ok(size.is_some_and(|size| size.trim() == "2048 kB"))
}

/// The kernel makes huge pages only if it is told to, until this is dropped.
struct SmallPages(String);

impl SmallPages {
    const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

    fn new() -> Result<Self, Stop> {
        let fail = |error: std::io::Error| SysError::io(Self::ENABLED, &error);
        let text = fs::read_to_string(Self::ENABLED).map_err(fail)?;
        let now = text.split(['[', ']']).nth(1);
        let now = now.ok_or_else(|| Stop::fail(format_args!("{text:?} has no value")))?;
        fs::write(Self::ENABLED, "never").map_err(fail)?;
        Ok(Self(now.to_owned()))
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        let _ = fs::write(Self::ENABLED, &self.0);
    }
}

/// Pages of this process that can become one huge page.
fn collapsible(pattern: Pattern) -> Result<Map, SysError> {
    let map = Map::private_aligned(HUGE * PAGE, HUGE * PAGE)?;
    map.fill(pattern);
    Ok(map)
}

/// The kernel makes a huge page of pages that a device has mapped, also while the device moves bytes,
/// and splits it again.
fn collapsed() -> Outcome {
    let _small = SmallPages::new()?;
    let (drm, free) = (Drm::open()?, Drm::open()?.vram_free()?);
    let Setup { peer, map, a, b } = Setup::of(collapsible(patterns().0)?)?;
    writes(&peer, b, &[1, HUGE - 1])?;
    check!(!is_huge(&map)?, "the memory is a huge page at first");
    let before = peer.memory_counters()?.invalidations;
    map.collapse(0..HUGE)?;
    check!(is_huge(&map)?, "the memory is no huge page");
    let after = peer.memory_counters()?.invalidations;
    check!(after > before, "the huge page invalidated nothing");
    reads(&peer, b, &[1, HUGE - 1])?;
    writes(&peer, b, &[2])?;
    reached(&peer, 2, SYSTEM)?;
    cpu_reads(&map, b, &[1, 2, HUGE - 1])?;
    cpu_reads(&map, a, &[0, 3, HUGE - 2])?;

    // A part of it gets small pages again, which become a huge page while the device writes.
    map.discard(5)?;
    map.fill_pages(a, 5, 1);
    check!(!is_huge(&map)?, "the memory is still a huge page");
    reads(&peer, a, &[5, 6])?;
    let data = bytes(b, 4, 2);
    let moved = during(
        || peer.memory_try_write(4 * PAGE64, &data),
        |_| Ok(map.collapse(0..HUGE)?),
    )?;
    complete(moved, 2)?;
    check!(is_huge(&map)?, "the memory is no huge page");
    cpu_reads(&map, b, &[1, 2, 4, 5, HUGE - 1])?;
    cpu_reads(&map, a, &[0, 3, 6])?;
    reads(&peer, b, &[4, 5])?;

    // Pages in VRAM move back for it.
    let part = collapsible(a)?;
    drm.svm_migrate(&part, 8..16)?;
    check_places(&part, |page| (8..16).contains(&page))?;
    let back = drm.svm_moved_back()?;
    part.collapse(0..HUGE)?;
    check!(
        is_huge(&part)?,
        "the memory with pages of VRAM is no huge page"
    );
    check_places(&part, |_| false)?;
    check_eq!(drm.svm_moved_back()?, back + 8, "pages that came back");
    holds("the CPU", &part, a, 0..HUGE)?;
    drm.await_vram_free(free)
}

/// ksmd, which merges equal pages until this is dropped: its settings as they were before.
struct Merging(Vec<(String, String)>);

impl Merging {
    const RUN: &str = "/sys/kernel/mm/ksm/run";

    fn start() -> Result<Self, SysError> {
        let mut merging = Self(Vec::new());
        for (name, value) in [
            ("pages_to_scan", "1000"),
            ("sleep_millisecs", "1"),
            ("run", "1"),
        ] {
            let path = format!("/sys/kernel/mm/ksm/{name}");
            let failed = |error| SysError::io(&path, &error);
            let before = fs::read_to_string(&path).map_err(failed)?;
            fs::write(&path, value).map_err(failed)?;
            merging.0.push((path, before));
        }
        Ok(merging)
    }
}

impl Drop for Merging {
    fn drop(&mut self) {
        // This takes merged pages apart.
        let _ = fs::write(Self::RUN, "2");
        for (path, before) in self.0.iter().rev() {
            let _ = fs::write(path, before);
        }
    }
}

/// Equal pages that a device has mapped for writing are merged, and the device then reads one page in
/// the place of both. If it writes, each place has its own page again. Pages in VRAM are not merged.
fn merged() -> Outcome {
    const MERGEABLE: i32 = libc::MADV_MERGEABLE;
    let Setup { peer, map, a, b } = Setup::new()?;
    let data = bytes(a, 0, 1);
    complete(peer.memory_try_write(PAGE64, &data), 1)?;
    let drm = Drm::open()?;
    let there = filled(2, a)?;
    there.fill_pages(a, 0, 1);
    for index in 0..WORDS {
        there.write(WORDS + index, there.read(index));
    }
    drm.svm_migrate(&there, 0..2)?;

    let equal =
        || Ok::<_, Stop>(peer.memory_page(0)?.dma_address == peer.memory_page(1)?.dma_address);
    check!(!equal()?, "both places have one page at first");
    let merging = Merging::start()?;
    map.advise(0..PAGES, MERGEABLE)?;
    there.advise(0..2, MERGEABLE)?;
    let mut last = Ok(false);
    let found = misc::poll(LIMIT, || {
        last = equal();
        (!matches!(last, Ok(false))).then_some(())
    });
    check!(last?, "the pages are not merged: {found:?}");
    check_eq!(places(&there)?, [Place::Device; 2], "pages in VRAM");
    let mut page = vec![0; PAGE];
    complete(peer.memory_try_read(PAGE64, &mut page), 1)?;
    check!(
        page == data,
        "the device reads other bytes of the merged page"
    );
    writes(&peer, b, &[1])?;
    check!(!equal()?, "both places have one page after a write");
    cpu_reads(&map, a, &[0, 2, 3])?;
    cpu_reads(&map, b, &[1])?;
    reads(&peer, a, &[0])?;
    drop(merging);
    reads(&peer, b, &[1])?;
    cpu_reads(&map, a, &[0, 2, 3])?;
    cpu_reads(&there, a, &[0])
}

igt_main! {
    "fork-storm", "processes that fork with memory in VRAM and mappings for direct I/O", fork_storm;
    "traced", "a debugger accesses memory in VRAM, and memory under a device", traced;
    "process-vm", "the same by process_vm_readv() and process_vm_writev()", process_vms;
    "collapsed", "pages under a device become a huge page, and small ones again", collapsed;
    "merged", "equal pages under a device are merged, until it writes", merged;
}

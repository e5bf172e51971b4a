// SPDX-License-Identifier: GPL-2.0

//! The memory that all processes of the fuzzer share.

use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::corpus::{Corpus, Slot, Step};
use super::coverage::Places;
use crate::describe::{File, Thing};
use crate::map::Map;
use crate::SysError;

const ORDER: Ordering = Ordering::Relaxed;

/// Open files of all processes together, at most.
pub const FILES: usize = 512;
/// Kinds of calls, at most.
pub const OPS: usize = 128;
/// Threads that have a log: those of workers, then those of their children.
pub const LOGS: usize = 24;
/// The first log of a child that a thread forks.
pub const FIRST_CHILD: usize = 16;
/// How many calls of a thread are kept.
pub const KEPT: usize = 4096;
/// Numbers of errors.
const ERRNOS: usize = 136;
/// Different unlisted errors that are kept.
const ODD: usize = 32;

/// An open file, which several processes may have.
#[derive(Debug)]
pub struct Open {
    kind: AtomicU32,
    users: AtomicU32,
    /// Changes whenever this is another file.
    epoch: AtomicU32,
    things: [AtomicU64; 3],
}

impl Open {
    /// Handles of the file, as bits.
    pub fn handles(&self, thing: Thing) -> u64 {
        self.things[thing as usize].load(ORDER)
    }

    /// Notes a new handle; whether there is room for it.
    pub fn add(&self, thing: Thing, handle: u64) -> bool {
        let known = (1..64).contains(&handle);
        if known {
            self.things[thing as usize].fetch_or(1 << handle, ORDER);
        }
        known
    }

    /// Notes that a handle is closed.
    pub fn remove(&self, thing: Thing, handle: u64) {
        if handle < 64 {
            self.things[thing as usize].fetch_and(!(1 << handle), ORDER);
        }
    }

    /// The kind of the file, as a number.
    pub fn kind(&self) -> u32 {
        self.kind.load(ORDER)
    }

    /// Notes that a process does not have it any more.
    fn leave(&self) {
        if self.users.fetch_sub(1, ORDER) == 1 {
            self.kind.store(0, ORDER);
        }
    }

    /// Another number for each file that was here.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(ORDER)
    }
}

/// How often a kind of call was made, and how it ended.
#[derive(Debug)]
pub struct Count {
    calls: AtomicU64,
    slowest: AtomicU64,
    errnos: [AtomicU32; ERRNOS],
}

impl Count {
    /// Notes a call: its error, or 0, and its time in microseconds.
    pub fn note(&self, errno: i32, time: u64) {
        self.calls.fetch_add(1, ORDER);
        self.slowest.fetch_max(time, ORDER);
        let index = usize::try_from(errno).unwrap_or(0).min(ERRNOS - 1);
        self.errnos[index].fetch_add(1, ORDER);
    }

    /// All calls.
    pub fn calls(&self) -> u64 {
        self.calls.load(ORDER)
    }

    /// How many succeeded.
    pub fn ok(&self) -> u32 {
        self.errnos[0].load(ORDER)
    }

    /// The time of the slowest one in microseconds.
    pub fn slowest(&self) -> u64 {
        self.slowest.load(ORDER)
    }

    /// The errors and how often each was seen.
    pub fn errors(&self) -> Vec<(i32, u32)> {
        let all = self.errnos.iter().enumerate().skip(1);
        let all = all.map(|(errno, count)| (errno as i32, count.load(ORDER)));
        all.filter(|(_, count)| *count > 0).collect()
    }
}

/// The last calls of a thread.
#[derive(Debug)]
pub struct Log {
    next: AtomicU64,
    entries: [Entry; KEPT],
}

/// A call, and its error, 0, or [`UNDER_WAY`].
#[derive(Debug)]
struct Entry {
    step: Slot,
    result: AtomicU32,
}

/// What became of a call that has not returned.
pub const UNDER_WAY: u32 = u32::MAX;

impl Log {
    /// Notes a call that is about to be made.
    pub fn begin(&self, step: &Step) {
        let next = self.next.load(ORDER);
        let entry = &self.entries[next as usize % KEPT];
        entry.step.store(step);
        entry.result.store(UNDER_WAY, ORDER);
        self.next.store(next + 1, ORDER);
    }

    /// Notes its error, or 0.
    pub fn end(&self, errno: i32) {
        let entry = &self.entries[(self.next.load(ORDER) as usize).wrapping_sub(1) % KEPT];
        entry.result.store(errno as u32, ORDER);
    }

    /// How many calls were noted.
    pub fn len(&self) -> u64 {
        self.next.load(ORDER)
    }

    /// Whether none was noted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The calls with these numbers that are kept, in order, and their errors.
    pub fn of(&self, numbers: Range<u64>) -> Vec<(Step, u32)> {
        let first = numbers.start.max(self.len().saturating_sub(KEPT as u64));
        let entries = (first..numbers.end).map(|index| &self.entries[index as usize % KEPT]);
        entries
            .map(|entry| (entry.step.load(), entry.result.load(ORDER)))
            .collect()
    }

    /// So many of the last calls, or all that are kept, and their errors.
    pub fn last(&self, count: u64) -> Vec<(Step, u32)> {
        let end = self.len();
        self.of(end.saturating_sub(count)..end)
    }
}

/// An error that is not listed, or 0, and the first call with it.
#[derive(Debug)]
struct Odd {
    what: AtomicU64,
    step: Slot,
}

/// Everything that is shared.
#[derive(Debug)]
pub struct World {
    /// Set to end all threads.
    pub stop: AtomicU32,
    /// Calls so far.
    pub calls: AtomicU64,
    /// Processes that threads have forked, and that have not ended.
    pub children: AtomicU32,
    /// Allocations and copies that failed on purpose.
    pub injected: AtomicU64,
    /// Places of our code that calls have reached.
    pub places: Places,
    /// The calls that have reached new ones.
    pub corpus: Corpus,
    opens: [Open; FILES],
    counts: [Count; OPS],
    logs: [Log; LOGS],
    odd: [Odd; ODD],
}

impl World {
    /// Makes one, which lasts until the program ends.
    ///
    /// # Errors
    ///
    /// Any error of mmap(2).
    pub fn new() -> Result<&'static Self, SysError> {
        let map = Map::anonymous(size_of::<Self>())?;
        // SAFETY: the mapping is as large as the structure and is never unmapped. All fields are
        // atomic numbers, for which zero is a valid value.
        let world = unsafe { &*map.address().as_ptr().cast::<Self>() };
        std::mem::forget(map);
        Ok(world)
    }

    /// Forgets all files and calls, but not the counters, nor the places and the calls that are kept.
    pub fn begin(&self) {
        self.stop.store(0, ORDER);
        self.calls.store(0, ORDER);
        self.children.store(0, ORDER);
        for open in &self.opens {
            open.kind.store(0, ORDER);
            open.users.store(0, ORDER);
        }
        for log in &self.logs {
            log.next.store(0, ORDER);
        }
        for odd in &self.odd {
            odd.what.store(0, ORDER);
        }
    }

    /// Whether threads have to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(ORDER) != 0
    }

    /// The counters of a kind of call.
    pub fn count(&self, op: usize) -> &Count {
        &self.counts[op]
    }

    /// The log of a thread.
    pub fn log(&self, thread: usize) -> &Log {
        &self.logs[thread]
    }

    /// An open file.
    pub fn open(&self, number: usize) -> &Open {
        &self.opens[number]
    }

    /// How many open files of a kind there are.
    pub fn opened(&self, kind: File) -> usize {
        let is = |open: &&Open| open.kind() == kind as u32;
        self.opens.iter().filter(is).count()
    }

    /// Notes an error that is not listed.
    pub fn note_odd(&self, errno: i32, step: &Step) {
        let what = (step.op as u64) << 32 | errno as u64;
        for odd in &self.odd {
            match odd.what.compare_exchange(0, what, ORDER, ORDER) {
                Ok(_) => return odd.step.store(step),
                Err(seen) if seen == what => return,
                Err(_) => {}
            }
        }
    }

    /// The errors that are not listed, with a call for each.
    pub fn odd(&self) -> Vec<(i32, Step)> {
        let noted = self.odd.iter().map(|odd| (odd.what.load(ORDER), &odd.step));
        noted
            .filter(|(what, _)| *what != 0)
            .map(|(what, step)| (what as i32, step.load()))
            .collect()
    }
}

/// The files that this process has: the file descriptor plus one, or zero, by their numbers in
/// [`World`].
#[derive(Debug)]
pub struct Files([AtomicI32; FILES]);

/// Those of this process, which a fork copies.
pub static MINE: Files = Files([const { AtomicI32::new(0) }; FILES]);

impl Files {
    /// The file descriptor, if this process has the file.
    pub fn fd(&self, number: usize) -> Option<i32> {
        match self.0[number].load(ORDER) {
            0 => None,
            fd => Some(fd - 1),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.iter().filter(|fd| fd.load(ORDER) != 0).count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first file from a number on, in a circle, for which a function is true.
    pub fn find(&self, from: usize, is: impl Fn(usize) -> bool) -> Option<usize> {
        let all = (0..FILES).map(|step| (from + step) % FILES);
        let mut there = all.filter(|number| self.0[*number].load(ORDER) != 0);
        there.find(|number| is(*number))
    }

    /// Adds a new file; the number, if there is room.
    pub fn add(&self, world: &World, fd: i32, kind: File) -> Option<usize> {
        let free = |open: &Open| {
            let kind = kind as u32;
            open.kind.compare_exchange(0, kind, ORDER, ORDER).is_ok()
        };
        let number = world.opens.iter().position(free)?;
        let open = &world.opens[number];
        open.epoch.fetch_add(1, ORDER);
        open.users.store(1, ORDER);
        for handles in &open.things {
            handles.store(0, ORDER);
        }
        self.0[number].store(fd + 1, Ordering::SeqCst);
        // Arguments are in memory that other threads overwrite, so two of them may find the same
        // descriptor. It counts once: it would stay here after it was closed.
        let is_same = |other: &usize| self.0[*other].load(Ordering::SeqCst) == fd + 1;
        let mut all = (0..FILES).filter(is_same);
        let first = all.next().unwrap_or(number);
        for other in all {
            let exchanged = self.0[other].compare_exchange(fd + 1, 0, ORDER, ORDER);
            if exchanged.is_ok() {
                world.opens[other].leave();
            }
        }
        Some(first)
    }

    /// Takes a file out; its descriptor, which the caller closes.
    pub fn take(&self, world: &World, number: usize) -> Option<i32> {
        let fd = match self.0[number].swap(0, ORDER) {
            0 => return None,
            fd => fd - 1,
        };
        world.opens[number].leave();
        Some(fd)
    }

    /// Notes that a process has inherited all files.
    pub fn inherited(&self, world: &World) {
        for (number, fd) in self.0.iter().enumerate() {
            if fd.load(ORDER) != 0 {
                world.opens[number].users.fetch_add(1, ORDER);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_free_when_its_last_user_has_closed_it() {
        let world = World::new().unwrap();
        let (one, other) = (
            Files([const { AtomicI32::new(0) }; FILES]),
            Files([const { AtomicI32::new(0) }; FILES]),
        );
        let number = one.add(world, 7, File::Buffer).unwrap();
        other.0[number].store(8, ORDER);
        other.inherited(world);
        assert_eq!(one.take(world, number), Some(7));
        assert_eq!(one.take(world, number), None);
        assert_eq!(world.open(number).kind(), File::Buffer as u32);
        assert_eq!(other.take(world, number), Some(7));
        assert_eq!(world.open(number).kind(), 0);
        let epoch = world.open(number).epoch();
        assert_eq!(other.add(world, 3, File::Peer), Some(number));
        assert_ne!(world.open(number).epoch(), epoch);
    }

    #[test]
    fn a_descriptor_counts_once() {
        let world = World::new().unwrap();
        let files = Files([const { AtomicI32::new(0) }; FILES]);
        let number = files.add(world, 7, File::Buffer).unwrap();
        assert_eq!(files.add(world, 7, File::Buffer), Some(number));
        assert_eq!((files.len(), world.opened(File::Buffer)), (1, 1));
        assert_eq!(files.take(world, number), Some(7));
        assert_eq!((files.len(), world.opened(File::Buffer)), (0, 0));
    }

    #[test]
    fn a_log_keeps_the_last_calls() {
        let world = World::new().unwrap();
        let log = world.log(0);
        let step = |seed| Step::new(seed, Some(3));
        for call in 0..KEPT as u64 + 2 {
            log.begin(&step(call));
            log.end(libc::EINVAL);
        }
        log.begin(&step(9));
        let all = log.of(0..log.len());
        assert_eq!(all.len(), KEPT);
        assert_eq!(all[0], (step(3), libc::EINVAL as u32));
        assert_eq!(log.last(1), [(step(9), UNDER_WAY)]);
        let before = log.len() - 2..log.len() - 1;
        assert_eq!(
            log.of(before),
            [(step(KEPT as u64 + 1), libc::EINVAL as u32)]
        );
    }

    #[test]
    fn an_unlisted_error_keeps_its_first_call() {
        let world = World::new().unwrap();
        assert_eq!(world.odd(), []);
        let step = |seed, kind| Step::new(seed, Some(kind));
        world.note_odd(libc::EIO, &step(1, 0));
        world.note_odd(libc::EIO, &step(2, 0));
        world.note_odd(libc::EIO, &step(3, 4));
        assert_eq!(
            world.odd(),
            [(libc::EIO, step(1, 0)), (libc::EIO, step(3, 4))]
        );
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The places of our code that calls reach, as kcov reports them.
//!
//! Only the drivers and the Rust abstractions are instrumented. A thread sees what it runs itself: not
//! what a worker or an interrupt does for it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::debugfs::mounted;
use crate::drm::ioctl_raw;
use crate::map::Map;
use crate::uapi::ioc;
use crate::{Stop, SysError};

const ORDER: Ordering = Ordering::Relaxed;

/// `KCOV_INIT_TRACE`, `KCOV_ENABLE` and `KCOV_TRACE_PC`.
const INIT_TRACE: u64 = ioc(2, b'c' as u64, 1, size_of::<usize>());
const ENABLE: u64 = ioc(0, b'c' as u64, 100, 0);
const TRACE_PC: u64 = 0;

/// Words of the buffer of a thread: the number of addresses, then the first ones of a call. A call
/// that loops passes more.
const WORDS: usize = 1 << 16;

/// The trace of a thread.
#[derive(Debug)]
pub struct Trace {
    file: File,
    buffer: Map,
}

impl Trace {
    /// Whether the kernel has kcov.
    ///
    /// # Errors
    ///
    /// Fails the subtest if debugfs cannot be mounted.
    pub fn possible() -> Result<bool, Stop> {
        Ok(Self::path()?.exists())
    }

    fn path() -> Result<PathBuf, Stop> {
        Ok(mounted("debugfs", "/sys/kernel/debug")?.join("kcov"))
    }

    /// Makes one, which only root can. Any thread may [`enable`](Self::enable) it.
    ///
    /// # Errors
    ///
    /// Any error of the system calls.
    pub fn new() -> Result<Self, Stop> {
        let path = Self::path()?;
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|error| SysError::io("open(kcov)", &error))?;
        let fd = file.as_raw_fd();
        // SAFETY: the argument is a number of words.
        unsafe { ioctl_raw(fd, INIT_TRACE, WORDS as u64, || "KCOV_INIT_TRACE".into()) }?;
        let buffer = Map::new(fd, 0, WORDS * size_of::<u64>())?;
        Ok(Self { file, buffer })
    }

    /// Traces the calling thread until it ends.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl.
    pub fn enable(&self) -> Result<(), SysError> {
        let fd = self.file.as_raw_fd();
        // SAFETY: the argument is a mode.
        unsafe { ioctl_raw(fd, ENABLE, TRACE_PC, || "KCOV_ENABLE".into()) }.map(drop)
    }

    /// Forgets what the thread has reached so far.
    pub fn clear(&self) {
        self.buffer.write(0, 0);
    }

    /// The addresses that it has reached since then.
    pub fn reached(&self) -> impl Iterator<Item = u64> + '_ {
        let count = (self.buffer.read(0) as usize).min(WORDS - 1);
        (1..=count).map(|index| self.buffer.read(index))
    }
}

/// Bits for places, by their addresses. The code is smaller, and in few parts, so hardly two places
/// have the same bit.
const BITS: usize = 1 << 22;

/// The places that all threads have reached.
#[derive(Debug)]
pub struct Places([AtomicU64; BITS / 64]);

impl Places {
    /// Notes addresses; how many of them are new.
    pub fn note(&self, addresses: impl Iterator<Item = u64>) -> usize {
        let is_new = |address: &u64| {
            let place = *address as usize % BITS;
            let (word, bit) = (&self.0[place / 64], 1 << (place % 64));
            word.load(ORDER) & bit == 0 && word.fetch_or(bit, ORDER) & bit == 0
        };
        addresses.filter(is_new).count()
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.0
            .iter()
            .map(|word| word.load(ORDER).count_ones())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use crate::fuzz::world::World;

    #[test]
    fn a_place_is_new_once() {
        let places = &World::new().unwrap().places;
        // Calls reach the same place many times, and neighbours of it.
        let first = 0xffff_ffff_c000_0000..0xffff_ffff_c000_0400_u64;
        assert_eq!(places.note(first.clone().chain(first.clone())), 1024);
        assert_eq!(places.note(first), 0);
        assert_eq!(places.note([0xffff_ffff_c000_0400].into_iter()), 1);
        assert_eq!(places.count(), 1025);
    }
}

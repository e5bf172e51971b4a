// SPDX-License-Identifier: GPL-2.0

//! Small helpers.

use std::fs::{self, File};
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::fixture::setting;
use crate::{Outcome, SysError};

/// By which factor operations may take longer than on a kernel without KASAN: `VVRAM_SLOWER`.
pub fn slower() -> u32 {
    static TIMES: OnceLock<u32> = OnceLock::new();
    *TIMES.get_or_init(|| {
        let times = setting("VVRAM_SLOWER").and_then(|times| times.parse().ok());
        times.unwrap_or(1)
    })
}

/// Opens a file to read and to write it.
pub fn open(path: &Path) -> Result<File, SysError> {
    let file = File::options().read(true).write(true).open(path);
    file.map_err(|error| SysError::io(format!("open({})", path.display()), &error))
}

/// Calls `ask` until it returns a value, or until the time, times [`slower`], is up.
pub fn poll<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let limit = limit * slower();
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if start.elapsed() >= limit {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns which poll(2) events of a file descriptor are set, or become set within the time, times
/// [`slower`].
pub fn poll_fd(fd: RawFd, events: i16, limit: Duration) -> Result<i16, SysError> {
    let limit = limit * slower();
    let mut poll = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: the pointer is valid for one pollfd.
    if unsafe { libc::poll(&mut poll, 1, limit.as_millis() as i32) } < 0 {
        return Err(SysError::last(format!("poll({events:#x})")));
    }
    Ok(poll.revents)
}

/// Runs a function while the process can get no more file descriptors. No other thread may need one
/// meanwhile.
pub fn without_fds<R>(run: impl FnOnce() -> R) -> R {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes the limit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    // The file descriptors of the standard streams are in use.
    let low = libc::rlimit {
        rlim_cur: 3,
        ..limit
    };
    // SAFETY: the kernel reads the limit.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const low) };
    let result = run();
    // SAFETY: as above.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    result
}

/// A linear congruential generator: the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Lcg(u64);

impl Lcg {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, all 64 bits of it usable.
    pub fn word(&mut self) -> u64 {
        let mut word = 0;
        for _ in 0..2 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            word = (word << 32) | (self.0 >> 32);
        }
        word
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit
    }

    /// One of several values.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// The seed of all random numbers: `VVRAM_SEED`, or a random number from the kernel.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given = setting("VVRAM_SEED").and_then(|seed| seed.parse().ok());
        given.unwrap_or_else(|| {
            let mut bytes = [0u8; 4];
            // SAFETY: the pointer is valid for writes of the length given.
            unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            u64::from(u32::from_ne_bytes(bytes))
        })
    })
}

/// Whether the kernel has a function of this name.
fn has_function(name: &str) -> bool {
    let line = format!(" {name}\n");

    fs::read_to_string("/proc/kallsyms").is_ok_and(|text| text.contains(&line))
}

/// Whether the kernel has KASAN.
pub fn has_kasan() -> bool {
    has_function("kasan_report")
}

/// Skips the subtest on a kernel with KASAN, which keeps freed memory in quarantine, or with
/// kmemleak, which allocates an object for each allocation, and finds leaks itself.
#[track_caller]
pub fn need_prompt_frees() -> Outcome {
    if has_kasan() {
        skip!("KASAN keeps freed memory in its quarantine");
    }
    if has_function("kmemleak_alloc") {
        skip!("kmemleak frees its own objects later");
    }
    Ok(())
}

/// The factor for the number of repetitions in long runs: `VVRAM_SOAK`.
pub fn soak() -> u64 {
    static TIMES: OnceLock<u64> = OnceLock::new();
    *TIMES.get_or_init(|| {
        let times = setting("VVRAM_SOAK").and_then(|times| times.parse().ok());
        times.unwrap_or(1)
    })
}

/// The position of this process in the random numbers: an origin of its own, and how many numbers
/// it has taken.
static ORIGIN: OnceLock<AtomicU64> = OnceLock::new();
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Mixes two numbers, so that each bit of both affects all bits of the result.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut word = a;
    for more in [0, 0, b, 0, 0] {
        word ^= more;
        word = (word ^ word >> 32)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(1);
    }
    word ^ word >> 32
}

/// Hashes a name.
fn named(name: &str) -> u64 {
    name.bytes().fold(1, |sum, byte| mix(sum, u64::from(byte)))
}

/// Programs that are no tests may run many times with one seed, so each process has an origin of
/// its own.
fn origin() -> &'static AtomicU64 {
    ORIGIN.get_or_init(|| AtomicU64::new(mix(seed(), u64::from(std::process::id()))))
}

/// Derives all further numbers from the seed and the name of a subtest, which gets the same numbers
/// in each run with this seed.
pub fn begin(program: &str, subtest: &str) {
    restart(mix(seed(), mix(named(program), named(subtest))));
}

/// Derives all further numbers from one number, such as a child process from a number of its
/// parent.
pub fn restart(from: u64) {
    origin().store(from, Ordering::Relaxed);
    TAKEN.store(0, Ordering::Relaxed);
}

/// A random number that differs from those of all other calls, in this subtest, its children and
/// other subtests. Patterns that are made from it cannot be mistaken for each other.
pub fn nonce() -> u64 {
    let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
    mix(origin().load(Ordering::Relaxed), taken)
}

/// Makes the kernel add up the counters of all processors, which it does only now and then.
pub fn add_up_counters() {
    let _ = std::fs::write("/proc/sys/vm/stat_refresh", "1");
}

/// A value of /proc/meminfo, in kB, after [`add_up_counters`].
pub fn meminfo(key: &str) -> Option<u64> {
    add_up_counters();
    rough_meminfo(key)
}

/// A value of /proc/meminfo, in kB, without what processors have counted and not added yet.
pub fn rough_meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| {
        line.strip_prefix(key)
            .is_some_and(|rest| rest.starts_with(':'))
    })?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Joins adjacent ranges of a list of starts and lengths.
pub fn coalesce(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, len) in ranges {
        match joined.last_mut() {
            Some((last, sum)) if *last + *sum == start => *sum += len,
            _ => joined.push((start, len)),
        }
    }
    joined
}

/// A text as a JSON string.
pub fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_escapes() {
        assert_eq!(json_string("a\"b\\\n\u{1}"), "\"a\\\"b\\\\\\n\\u0001\"");
    }

    #[test]
    fn numbers_come_from_seed_and_name() {
        // One test, because all threads share one origin.
        let numbers = |subtest: &str| {
            begin("program", subtest);
            [nonce(), nonce(), nonce()]
        };
        let first = numbers("a");
        assert_eq!(first, numbers("a"));
        assert_ne!(first[0], first[1]);
        assert!(numbers("b").iter().all(|number| !first.contains(number)));
        restart(first[0]);
        assert!(!first.contains(&nonce()));
    }

    #[test]
    fn mixing_spreads_every_bit() {
        let mut seen: Vec<_> = (0..64).map(|bit| mix(1 << bit, 0)).collect();
        seen.extend((0..64).map(|bit| mix(0, 1 << bit)));
        seen.push(mix(0, 0));
        for (index, number) in seen.iter().enumerate() {
            for other in &seen[..index] {
                let differ = (number ^ other).count_ones();
                assert!((10..=54).contains(&differ), "{differ} bits differ");
            }
        }
    }

    #[test]
    fn the_generator_repeats_itself() {
        let (mut a, mut b) = (Lcg::new(7), Lcg::new(7));
        assert!((0..100).all(|_| a.word() == b.word()));
        assert_ne!(Lcg::new(7).word(), Lcg::new(8).word());
    }
}

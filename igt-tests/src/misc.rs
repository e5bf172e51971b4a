// SPDX-License-Identifier: GPL-2.0

//! Small helpers.

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::scene::setting;
use crate::SysError;

/// How many times longer things may take here than on a kernel without KASAN: `VVRAM_SLOWER`.
pub fn slower() -> u32 {
    static TIMES: OnceLock<u32> = OnceLock::new();
    *TIMES.get_or_init(|| {
        let times = setting("VVRAM_SLOWER").and_then(|times| times.parse().ok());
        times.unwrap_or(1)
    })
}

/// Asks until there is an answer or the time, times [`slower`], is up.
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

/// Which of some poll(2) events of an fd hold, or come to hold within the time, times [`slower`].
///
/// # Errors
///
/// Any error of poll(2).
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

/// A number that no earlier run used, to tell this run's bytes from theirs.
pub fn nonce() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid for a write of a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    let nanos = (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64);
    nanos ^ u64::from(std::process::id()).rotate_left(48)
}

/// A value of /proc/meminfo, in kB.
pub fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| {
        line.strip_prefix(key)
            .is_some_and(|rest| rest.starts_with(':'))
    })?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Joins neighbours of a list of starts and lengths.
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
    fn the_generator_repeats_itself() {
        let (mut a, mut b) = (Lcg::new(7), Lcg::new(7));
        assert!((0..100).all(|_| a.word() == b.word()));
        assert_ne!(Lcg::new(7).word(), Lcg::new(8).word());
    }
}

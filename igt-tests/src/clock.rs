// SPDX-License-Identifier: GPL-2.0

//! Time as QEMU counts it under `-icount shift=0`: a nanosecond, and so a tick
//! of the time stamp counter, for each instruction.

use std::arch::x86_64::_rdtsc;
use std::collections::BTreeMap;
use std::fs;

use crate::SysError;

/// Instructions since the machine started, and time that passed while it had none to run.
pub fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux allows it.
    unsafe { _rdtsc() }
}

/// Brings all of the program that is on a disk into memory.
///
/// What a disk takes depends on the host.
///
/// # Errors
///
/// Any error of mlockall(2).
pub fn stay_in_memory() -> Result<(), SysError> {
    // SAFETY: the call takes no memory of ours.
    if unsafe { libc::mlockall(libc::MCL_CURRENT) } != 0 {
        return Err(SysError::last("mlockall(MCL_CURRENT)"));
    }
    Ok(())
}

/// Sleeps until a whole fifth of a second of the monotonic clock, and as long at least.
///
/// What comes then has the timer's interrupts at the same places in each run, and
/// no work that was put off before.
pub fn settle() {
    const STEP: libc::c_long = 200_000_000;
    let mut time = clock(libc::CLOCK_MONOTONIC);
    let steps = time.tv_nsec / STEP + 2;
    time.tv_sec += steps / 5;
    time.tv_nsec = steps % 5 * STEP;
    // SAFETY: the pointer is valid for a read of a timespec; no remainder is asked for.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &time,
            std::ptr::null_mut(),
        )
    };
}

fn clock(id: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid for a write of a timespec.
    unsafe { libc::clock_gettime(id, &mut time) };
    time
}

/// Nanoseconds that this thread ran on the processor, in the kernel or not.
pub fn cpu() -> u64 {
    nanoseconds(clock(libc::CLOCK_THREAD_CPUTIME_ID))
}

fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What the other processes had of the processor, the workers of the kernel among them.
#[derive(Clone, Debug)]
pub struct Others(BTreeMap<libc::pid_t, u64>);

impl Others {
    /// Looks at them now.
    pub fn now() -> Self {
        let own = std::process::id() as libc::pid_t;
        let pids = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != own);
        Self(pids.filter_map(|pid| Some((pid, process(pid)?))).collect())
    }

    /// Nanoseconds that they ran since `before`. One that has ended since then does not count.
    pub fn since(&self, before: &Self) -> u64 {
        let ran = |(pid, time): (&libc::pid_t, &u64)| time - before.0.get(pid).unwrap_or(&0);
        self.0.iter().map(ran).sum()
    }
}

/// Nanoseconds that a process ran on the processor, none if it is not there.
fn process(pid: libc::pid_t) -> Option<u64> {
    let mut id = 0;
    // SAFETY: the pointer is valid for a write of a clock id.
    (unsafe { libc::clock_getcpuclockid(pid, &mut id) } == 0).then(|| nanoseconds(clock(id)))
}

/// What repetitions of the same thing cost.
#[derive(Clone, Debug, Default)]
pub struct Costs(Vec<u64>);

impl Costs {
    /// Measures one more, and passes its result on.
    pub fn time<T>(&mut self, body: impl FnOnce() -> T) -> T {
        let begin = now();
        let result = body();
        self.0.push(now() - begin);
        result
    }

    /// Adds one that was measured in another way.
    pub fn add(&mut self, cost: u64) {
        self.0.push(cost);
    }

    /// The least: what it costs when nothing else happens.
    pub fn least(&self) -> u64 {
        self.0.iter().copied().min().unwrap_or(0)
    }

    /// The one in the middle.
    pub fn median(&self) -> u64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }

    /// The most.
    pub fn most(&self) -> u64 {
        self.0.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_others_is_that_since_then() {
        let others = |times: &[_]| Others(times.iter().copied().collect());
        let (before, after) = (others(&[(1, 5), (2, 7)]), others(&[(1, 6), (3, 40)]));
        assert_eq!(after.since(&before), 41);
        assert_eq!(before.since(&before), 0);
        assert!(!Others::now().0.is_empty());
    }

    #[test]
    fn of_many_the_least() {
        let mut costs = Costs::default();
        for cost in [3, 9, 1, 4, 2] {
            costs.add(cost);
        }
        assert_eq!((costs.least(), costs.median(), costs.most()), (1, 3, 9));
        assert_eq!(costs.time(|| 7), 7);
    }
}

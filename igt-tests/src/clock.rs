// SPDX-License-Identifier: GPL-2.0

//! The time of QEMU under `-icount shift=0`: one nanosecond, and so one tick of the time stamp
//! counter, per instruction.

use std::arch::x86_64::_rdtsc;
use std::collections::BTreeMap;
use std::fs;

use crate::SysError;

/// Instructions since the machine started, plus the time that it was idle.
pub fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux allows it.
    unsafe { _rdtsc() }
}

/// Loads all pages of the program from the disk into memory.
///
/// The time of a disk access depends on the host, so there must be none in a measurement.
///
/// # Errors
///
/// Any error of mlockall(2).
pub fn stay_in_memory() -> Result<(), SysError> {
    // SAFETY: the call accesses no memory of the program.
    if unsafe { libc::mlockall(libc::MCL_CURRENT) } != 0 {
        return Err(SysError::last("mlockall(MCL_CURRENT)"));
    }
    Ok(())
}

/// Lets this thread go before workers of the kernel, so that it depends on nothing when one that it
/// has woken begins.
///
/// # Errors
///
/// Any error of sched_setscheduler(2).
pub fn go_first() -> Result<(), SysError> {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: The pointer is valid for a read of the parameters.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &first) } != 0 {
        return Err(SysError::last("sched_setscheduler(SCHED_FIFO)"));
    }
    Ok(())
}

/// Sleeps at least a fifth of a second, until the monotonic clock is at a multiple of that.
///
/// After that the timer interrupts come at the same places in each run, and deferred work is done.
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

/// The processor time of all other processes, including the workers of the kernel.
#[derive(Clone, Debug)]
pub struct Others(BTreeMap<libc::pid_t, u64>);

impl Others {
    /// Takes the current times.
    pub fn now() -> Self {
        let own = std::process::id() as libc::pid_t;
        let pids = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != own);
        Self(pids.filter_map(|pid| Some((pid, process(pid)?))).collect())
    }

    /// Nanoseconds that they ran since `before`. Processes that have ended since then do not count.
    pub fn since(&self, before: &Self) -> u64 {
        let ran = |(pid, time): (&libc::pid_t, &u64)| time - before.0.get(pid).unwrap_or(&0);
        self.0.iter().map(ran).sum()
    }
}

/// Nanoseconds that a process ran on the processor, [`None`] if it does not exist.
fn process(pid: libc::pid_t) -> Option<u64> {
    let mut id = 0;
    // SAFETY: the pointer is valid for a write of a clock id.
    (unsafe { libc::clock_getcpuclockid(pid, &mut id) } == 0).then(|| nanoseconds(clock(id)))
}

/// The costs of repetitions of the same operation.
#[derive(Clone, Debug, Default)]
pub struct Costs(Vec<u64>);

impl Costs {
    /// Measures one repetition, and returns its result.
    pub fn time<T>(&mut self, body: impl FnOnce() -> T) -> T {
        let begin = now();
        let result = body();
        self.0.push(now() - begin);
        result
    }

    /// Adds a cost that was measured in another way.
    pub fn add(&mut self, cost: u64) {
        self.0.push(cost);
    }

    /// How many repetitions there were.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The least cost, which is that without interference.
    pub fn least(&self) -> u64 {
        self.0.iter().copied().min().unwrap_or(0)
    }

    /// The median.
    pub fn median(&self) -> u64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }

    /// The largest cost.
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

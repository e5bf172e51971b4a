// SPDX-License-Identifier: GPL-2.0

//! The processes and threads that make random calls.

use std::os::unix::thread::JoinHandleExt;
use std::thread;
use std::time::Duration;

use super::arena;
use super::calls::{table, FIRST};
use super::corpus::Step;
use super::coverage::Trace;
use super::thread::{Rules, Thread, USEFUL};
use super::world::{World, FIRST_CHILD, MINE};
use crate::misc::{mix, Lcg};
use crate::user::become_nobody;
use crate::{Outcome, SysError};

/// Processes at a time.
pub const PROCESSES: usize = 3;
/// Threads of a process.
pub const THREADS: usize = 3;
const _: () = assert!(PROCESSES * THREADS <= FIRST_CHILD);

/// How many random calls are between those that are useful for others.
const BETWEEN: usize = 200;
/// No call has this number: that of the choices among kept calls.
const GUIDE: u64 = u64::MAX;

/// The calls that are made, with the number of the thread of each.
pub type Program = Vec<(usize, Step)>;

/// What the processes do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Everything is derived from it.
    pub seed: u64,
    /// Whether they are of the user nobody.
    pub nobody: bool,
    /// What they may do.
    pub rules: Rules,
    /// Whether kcov traces them.
    pub traced: bool,
    /// Whether they often vary calls that have reached new places, instead of making new ones.
    pub guided: bool,
    /// The program that is repeated, if one is.
    pub program: Option<Program>,
}

extern "C" fn on_signal(_signal: libc::c_int) {}

/// Runs a process until all calls of the program were made, or until the world stops.
///
/// # Errors
///
/// Any error of the preparations.
pub fn run(world: &'static World, plan: &Plan, process: usize) -> Outcome {
    MINE.inherited(world);
    arena::begin()?;
    // SAFETY: all-zero is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    // SAFETY: the actions are valid, and the handler does nothing. Children need no wait.
    unsafe {
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
    }
    let mut traces = Vec::new();
    for _ in 0..THREADS {
        traces.push(plan.traced.then(Trace::new).transpose()?);
    }
    if plan.nobody {
        become_nobody()?;
    }
    let mut threads = Vec::new();
    for (index, trace) in traces.into_iter().enumerate() {
        let number = process * THREADS + index;
        let plan = plan.clone();
        threads.push(thread::spawn(move || calls(world, &plan, number, trace)));
    }
    // Signals end waits at random places. An injected failure of a copy may be that of the frame of a
    // signal, which kills the process, so there are none then.
    let mut random = Lcg::new(mix(plan.seed, 1000 + process as u64));
    while threads.iter().any(|thread| !thread.is_finished()) {
        thread::sleep(Duration::from_millis(5 + random.below(20)));
        let chosen = &threads[random.below(THREADS as u64) as usize];
        if !chosen.is_finished() && !plan.rules.faults {
            // SAFETY: the thread is not joined yet.
            unsafe { libc::pthread_kill(chosen.as_pthread_t(), libc::SIGUSR1) };
        }
    }
    for thread in threads {
        match thread.join() {
            Ok(outcome) => outcome?,
            Err(_) => fail!("a thread has panicked"),
        }
    }
    let elsewhere = arena::faults_elsewhere();
    check!(
        elsewhere == 0 || plan.rules.faults,
        "{elsewhere} accesses to memory of the program have faulted"
    );
    Ok(())
}

/// The calls of a thread.
fn calls(
    world: &'static World,
    plan: &Plan,
    number: usize,
    trace: Option<Trace>,
) -> Result<(), SysError> {
    let mut thread = Thread::new(world, plan.rules, number, trace)?;
    if let Some(program) = &plan.program {
        for (of, step) in program {
            if *of == number && !world.stopped() {
                thread.step(*step);
            }
        }
        return Ok(());
    }
    let seed = mix(plan.seed, number as u64);
    let mut guide = Lcg::new(mix(seed, GUIDE));
    let mut next = 0;
    let mut step = |kind: Option<usize>| {
        let number = mix(seed, next);
        next += 1;
        let mut steps = Vec::new();
        if plan.guided && kind.is_none() && guide.below(2) == 0 {
            steps = world.corpus.vary(&mut guide);
        }
        if steps.is_empty() {
            steps.push(match kind {
                Some(_) => Step::new(number | USEFUL, kind),
                None => Step::new(number & !USEFUL, None),
            });
        }
        for step in steps {
            if !world.stopped() {
                thread.step(step);
            }
        }
    };
    while !world.stopped() {
        // The first thread of a process makes the useful ones again and again.
        let useful = if number.is_multiple_of(THREADS) {
            FIRST
        } else {
            &[]
        };
        for name in useful {
            step(table().named(name));
        }
        for _ in 0..BETWEEN {
            step(None);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_calls_exist() {
        for name in FIRST {
            assert!(table().named(name).is_some(), "{name}");
        }
    }
}

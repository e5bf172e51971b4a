// SPDX-License-Identifier: GPL-2.0

//! Signals that arrive while a process waits in the kernel.

use std::fs;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use crate::misc;
use crate::proc::{Child, Steps};
use crate::{expect_errno, Outcome, Stop, SysError};

/// Longer than any wait of a test takes to begin.
const LIMIT: Duration = Duration::from_secs(20);

static TOLD: AtomicI32 = AtomicI32::new(-1);
static CAUGHT: AtomicU32 = AtomicU32::new(0);

extern "C" fn handler(_signal: libc::c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the byte is valid for a read, and write(2) may be called in a handler.
    unsafe { libc::write(TOLD.load(Ordering::Relaxed), b"x".as_ptr().cast(), 1) };
}

/// Catches SIGUSR1 in this process. The handler makes a step of `told`.
pub fn catch(told: &Steps, restart: bool) -> Result<(), SysError> {
    TOLD.store(told.write_fd(), Ordering::Relaxed);
    CAUGHT.store(0, Ordering::Relaxed);
    // SAFETY: all-zero is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
    // SAFETY: the action is valid, and its handler only makes calls that are safe in a signal
    // handler.
    if unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) } < 0 {
        return Err(SysError::last("sigaction(SIGUSR1)"));
    }
    Ok(())
}

/// How many signals were caught since [`catch`].
pub fn caught() -> u32 {
    CAUGHT.load(Ordering::Relaxed)
}

/// Whether a child sleeps in a function of the kernel, in one of some states of /proc/PID/stat.
pub fn sleeps_in(child: &Child, function: &str, states: &str) -> bool {
    let stack = fs::read_to_string(format!("/proc/{}/stack", child.pid())).unwrap_or_default();
    // The state is read last, because a child that is about to leave the function is running.
    stack.contains(function) && child.state().is_some_and(|state| states.contains(state))
}

/// Waits until a child sleeps in a function of the kernel. False if it has ended before.
///
/// # Errors
///
/// Fails the subtest if it neither sleeps there nor ends.
#[track_caller]
pub fn asleep(child: &mut Child, function: &str, states: &str) -> Result<bool, Stop> {
    let found = misc::poll(LIMIT, || {
        if child.ended().is_some() {
            return Some(false);
        }
        sleeps_in(child, function, states).then_some(true)
    });
    match found {
        Some(found) => Ok(found),
        None => Err(Stop::fail(format_args!(
            "the child should sleep in {function}, in state {states}; {}",
            child.whereabouts()
        ))),
    }
}

/// As [`asleep`], for a child that cannot have ended.
///
/// # Errors
///
/// Fails the subtest if it does not sleep there.
#[track_caller]
pub fn await_sleep(child: &mut Child, function: &str, states: &str) -> Outcome {
    if asleep(child, function, states)? {
        return Ok(());
    }
    Err(Stop::fail(format_args!(
        "the child should sleep in {function}, but it has ended: {:?}",
        child.ended()
    )))
}

/// A signal with a handler ends a call, which waits in the function `place` of the kernel, with
/// EINTR.
///
/// # Errors
///
/// Fails the subtest if it does not, and any error of `after`.
#[track_caller]
pub fn interrupt(
    place: &str,
    call: impl FnOnce() -> Result<(), SysError>,
    after: impl FnOnce() -> Outcome,
) -> Outcome {
    let told = Steps::new()?;
    let mut child = Child::spawn(|| {
        catch(&told, false)?;
        let files = open_files();
        expect_errno("the call at a signal", call(), libc::EINTR)?;
        check_eq!(caught(), 1, "signals");
        check_eq!(open_files(), files, "open files after the call");
        after()
    })?;
    await_sleep(&mut child, place, "S")?;
    child.signal(libc::SIGUSR1);
    child.join("the call that a signal ends", LIMIT)
}

/// After a signal whose handler has SA_RESTART a call goes on, until `release` lets it end.
///
/// # Errors
///
/// Fails the subtest if the call fails, and any error of `release`.
#[track_caller]
pub fn restart(
    place: &str,
    call: impl FnOnce() -> Result<(), SysError>,
    release: impl FnOnce() -> Outcome,
) -> Outcome {
    let told = Steps::new()?;
    let mut child = Child::spawn(|| {
        catch(&told, true)?;
        call()?;
        check_eq!(caught(), 1, "signals");
        Ok(())
    })?;
    await_sleep(&mut child, place, "S")?;
    child.signal(libc::SIGUSR1);
    told.wait("the handler", LIMIT)?;
    await_sleep(&mut child, place, "S")?;
    release()?;
    child.join("the call that is restarted", LIMIT)
}

/// A fatal signal ends a call with its process.
///
/// # Errors
///
/// Fails the subtest if it does not.
#[track_caller]
pub fn kill(place: &str, call: impl FnOnce() -> Result<(), SysError>) -> Outcome {
    let mut child = Child::spawn(|| Ok(call()?))?;
    await_sleep(&mut child, place, "S")?;
    child.kill()
}

/// The file descriptors that this process has open.
pub fn open_files() -> Vec<RawFd> {
    let Ok(dir) = fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let mut fds: Vec<RawFd> = dir
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    fds.sort_unstable();
    // The file descriptor of the directory itself is closed by now.
    fds.retain(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).is_ok());
    fds
}

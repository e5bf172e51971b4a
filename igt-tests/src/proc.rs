// SPDX-License-Identifier: GPL-2.0

//! Child processes, how they end, and pipes to synchronize with them.

use std::fs;
use std::io;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::time::Duration;

use crate::igt;
use crate::misc;
use crate::{Outcome, Stop, SysError};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By exit, with a status.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// A child process: killed and reaped when dropped.
#[derive(Debug)]
pub struct Child {
    pid: libc::pid_t,
    exit: Option<Exit>,
}

/// Text of a panic.
fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_string()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "panic".to_string()
    }
}

impl Child {
    /// Runs a function in a child process, which dies with this process.
    ///
    /// The child exits with the status of the outcome for igt_runner.
    pub fn spawn(body: impl FnOnce() -> Outcome) -> Result<Self, SysError> {
        let _ = io::stdout().flush();
        let parent = std::process::id();
        let random = misc::nonce();
        // SAFETY: the program has one thread, so the child may do anything.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(SysError::last("fork()"));
        }
        if pid > 0 {
            return Ok(Self { pid, exit: None });
        }
        // SAFETY: plain system calls.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != parent {
                libc::_exit(igt::EXIT_FAIL);
            }
        }
        misc::restart(random);
        let result = panic::catch_unwind(AssertUnwindSafe(body));
        let code = match result {
            Ok(Ok(())) => igt::EXIT_SUCCESS,
            Ok(Err(Stop::Skip(text))) => {
                igt::say(&format!("Skipped: {text}"));
                igt::EXIT_SKIP
            }
            Ok(Err(Stop::Fail(text))) => {
                igt::say(&format!("Failed: {text}"));
                igt::EXIT_FAIL
            }
            Err(payload) => {
                igt::say(&format!("Failed: {}", panic_text(&*payload)));
                igt::EXIT_FAIL
            }
        };
        let _ = io::stdout().flush();
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(code) }
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<Exit> {
        if self.exit.is_none() {
            let mut status = 0;
            // SAFETY: the pointer is valid for a write of an int.
            let pid = unsafe { libc::waitpid(self.pid, &mut status, libc::WNOHANG) };
            if pid == self.pid {
                self.exit = Some(if libc::WIFSIGNALED(status) {
                    Exit::Signal(libc::WTERMSIG(status))
                } else {
                    Exit::Code(libc::WEXITSTATUS(status))
                });
            }
        }
        self.exit
    }

    /// Waits until it ends or the time is up.
    pub fn wait(&mut self, limit: Duration) -> Option<Exit> {
        misc::poll(limit, || self.ended())
    }

    /// Waits until it ends, and checks that it has succeeded.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the child failed, was killed or is not done.
    #[track_caller]
    pub fn join(&mut self, what: &str, limit: Duration) -> Outcome {
        match self.wait(limit) {
            Some(Exit::Code(igt::EXIT_SUCCESS)) => Ok(()),
            Some(Exit::Code(igt::EXIT_SKIP)) => Err(Stop::skip(format_args!("{what}: see above"))),
            Some(exit) => Err(Stop::fail(format_args!(
                "{what}: expected success, saw {exit:?}"
            ))),
            None => Err(Stop::fail(format_args!(
                "{what}: not done within {} s; {}",
                limit.as_secs() * u64::from(misc::slower()),
                self.whereabouts()
            ))),
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        if self.exit.is_none() {
            // SAFETY: the child is not reaped, so the pid is still its own.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Kills it and waits until it is gone.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it does not go within 20 seconds.
    #[track_caller]
    pub fn kill(&mut self) -> Outcome {
        self.signal(libc::SIGKILL);
        match self.wait(Duration::from_secs(20)) {
            Some(Exit::Signal(libc::SIGKILL)) => Ok(()),
            Some(exit) => Err(Stop::fail(format_args!(
                "the child should have died by SIGKILL, it ended with {exit:?}"
            ))),
            None => Err(Stop::fail(format_args!(
                "the child survives SIGKILL; {}",
                self.whereabouts()
            ))),
        }
    }

    /// State letter of /proc/PID/stat.
    pub fn state(&self) -> Option<char> {
        state_of(self.pid)
    }

    /// Whether one of its threads is in a function of the kernel.
    pub fn threads_in(&self, function: &str) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid));

        tasks.into_iter().flatten().flatten().any(|task| {
            fs::read_to_string(task.path().join("stack"))
                .is_ok_and(|stack| stack.contains(function))
        })
    }

    /// Its kernel stack, for messages.
    pub fn whereabouts(&self) -> String {
        let read = |file: &str| {
            fs::read_to_string(format!("/proc/{}/{file}", self.pid)).unwrap_or_default()
        };
        format!(
            "process {} is in state {:?}, wchan {:?}, stack:\n{}",
            self.pid,
            self.state(),
            read("wchan"),
            read("stack")
        )
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        self.wait(Duration::from_secs(5));
    }
}

/// Makes this process the parent of descendants whose parent has ended.
pub fn adopt_orphans() {
    // SAFETY: a plain system call.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Waits until this process has no children, while those that are being killed end.
///
/// # Errors
///
/// Names the children that do not end, and kills them.
pub fn no_children(limit: Duration) -> Result<(), String> {
    let none = misc::poll(limit, || loop {
        // SAFETY: a plain system call, which writes no status.
        match unsafe { libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG) } {
            0 => return None,
            pid if pid < 0 => return Some(()),
            _ => (),
        }
    });
    if none.is_some() {
        return Ok(());
    }
    let mut left = Vec::new();
    for pid in children_of(std::process::id()) {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        left.push(format!("{pid} ({})", name.trim()));
        // SAFETY: a child that is not reaped, so the pid is still its own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    Err(format!(
        "the subtest has left processes: {}",
        left.join(", ")
    ))
}

/// The children of a process.
fn children_of(parent: u32) -> Vec<libc::pid_t> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| parent_of(*pid) == Some(parent))
        .collect()
}

/// The parent in /proc/PID/stat.
fn parent_of(pid: libc::pid_t) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have any characters.
    text.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// A pipe that carries steps from one process to another.
#[derive(Debug)]
pub struct Steps {
    read: OwnedFd,
    write: OwnedFd,
}

impl Steps {
    /// Makes a pipe. Both processes of a later fork have both ends.
    pub fn new() -> Result<Self, SysError> {
        let mut fds = [0 as RawFd; 2];
        // SAFETY: the pointer is valid for a write of two ints.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
            return Err(SysError::last("pipe2()"));
        }
        // SAFETY: the kernel made two new fds that nothing else owns.
        let (read, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        Ok(Self { read, write })
    }

    /// The file descriptor to which steps are written, for code that cannot call [`Steps::done`].
    pub fn write_fd(&self) -> RawFd {
        self.write.as_raw_fd()
    }

    /// Signals that a step is done.
    pub fn done(&self) -> Result<(), SysError> {
        // SAFETY: the byte is valid for a read.
        let count = unsafe { libc::write(self.write.as_raw_fd(), b"x".as_ptr().cast(), 1) };
        if count != 1 {
            return Err(SysError::last("write(pipe)"));
        }
        Ok(())
    }

    /// Whether a step of the other side is done that was not waited for yet.
    pub fn is_done(&self) -> Result<bool, SysError> {
        Ok(misc::poll_fd(self.read.as_raw_fd(), libc::POLLIN, Duration::ZERO)? != 0)
    }

    /// Waits until the other side's step is done.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the time is up.
    #[track_caller]
    pub fn wait(&self, what: &str, limit: Duration) -> Outcome {
        let ready = misc::poll_fd(self.read.as_raw_fd(), libc::POLLIN, limit)?;
        let mut byte = 0u8;
        // SAFETY: the pointer is valid for a write of one byte.
        if ready != 0
            && unsafe { libc::read(self.read.as_raw_fd(), (&raw mut byte).cast(), 1) } == 1
        {
            return Ok(());
        }
        Err(Stop::fail(format_args!(
            "{what}: the other process did not get there within {} s",
            limit.as_secs() * u64::from(misc::slower())
        )))
    }
}

/// State letter of /proc/PID/stat of any process.
pub(crate) fn state_of(pid: libc::pid_t) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit(')').next()?.trim().chars().next()
}

/// Sleeps until killed.
pub fn sleep_forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// The kernel log from now on.
#[derive(Debug)]
pub struct KernelLog {
    fd: OwnedFd,
}

impl KernelLog {
    /// Begins to read the log.
    pub fn open() -> Result<Self, SysError> {
        // SAFETY: a NUL terminated path.
        let fd = unsafe { libc::open(c"/dev/kmsg".as_ptr(), libc::O_RDONLY | libc::O_NONBLOCK) };
        if fd < 0 {
            return Err(SysError::last("open(/dev/kmsg)"));
        }
        // SAFETY: the kernel made a new fd that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a plain system call on an fd that is open.
        if unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END) } < 0 {
            return Err(SysError::last("lseek(/dev/kmsg)"));
        }
        Ok(Self { fd })
    }

    /// Waits for a line that contains `text`.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none in that time.
    #[track_caller]
    pub fn await_line(&mut self, text: &str, limit: Duration) -> Outcome {
        let said = misc::poll(limit, || {
            let lines = self.lines();
            lines.iter().any(|line| line.contains(text)).then_some(())
        });
        check!(said.is_some(), "the kernel does not say: {text}");
        Ok(())
    }

    /// Lines since the last call.
    pub fn lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut record = [0u8; 8192];
        loop {
            // SAFETY: the pointer is valid for writes of the length given.
            let count = unsafe {
                libc::read(
                    self.fd.as_raw_fd(),
                    record.as_mut_ptr().cast(),
                    record.len(),
                )
            };
            if count <= 0 {
                // EPIPE: records were overwritten, the next read goes on.
                if count < 0 && SysError::last("").errno == libc::EPIPE {
                    continue;
                }
                return lines;
            }
            let text = String::from_utf8_lossy(&record[..count as usize]);
            if let Some((_, message)) = text.split_once(';') {
                lines.extend(message.lines().next().map(str::to_string));
            }
        }
    }
}

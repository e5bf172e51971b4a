// SPDX-License-Identifier: GPL-2.0

//! `p2p watch`: attaches, maps, moves and fallbacks as they happen.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::ask::Signals;
use crate::files::{Blind, Root};
use crate::trace::Event;

/// The mount points of tracefs, now and in the past.
const PLACES: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];
/// The events, below a mount point.
pub const EVENTS: &str = "events/drm_peer";
/// The time between two polls.
const PAUSE: Duration = Duration::from_millis(50);

/// The end of the command, besides a signal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Until {
    /// After this number of events.
    pub count: Option<u64>,
    /// After this time.
    pub time: Option<Duration>,
}

/// The reason why events cannot be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoEvents {
    /// There is no tracefs.
    NotMounted,
    /// No driver that has the events is loaded.
    NoDriver,
    /// The caller may not read them.
    Denied,
    /// The files are a copy.
    Copied,
    /// Any other error.
    Failed(String),
}

impl From<io::Error> for NoEvents {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// A trace of its own, which is gone when it is dropped.
#[derive(Debug)]
struct Instance(PathBuf);

impl Instance {
    fn new(root: &Root) -> Result<Self, NoEvents> {
        let found = PLACES
            .iter()
            .find(|it| root.exists(&format!("{it}/{EVENTS}")));
        let Some(place) = found else {
            // A folder that cannot be searched looks the same as one without these events.
            return Err(match root.names(PLACES[0]) {
                Err(Blind::Denied) => NoEvents::Denied,
                Ok(names) if !names.is_empty() => NoEvents::NoDriver,
                _ => NoEvents::NotMounted,
            });
        };
        let at = root.path(&format!("{place}/instances/p2p-{}", std::process::id()));
        fs::create_dir(&at)?;
        Ok(Self(at))
    }

    fn start(&self) -> io::Result<File> {
        let pipe = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(self.0.join("trace_pipe"))?;
        fs::write(self.0.join(EVENTS).join("enable"), "1")?;
        Ok(pipe)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Prints events until a signal or a limit ends it.
///
/// # Errors
///
/// The reason why events cannot be seen.
pub fn run(root: &Root, json: bool, until: Until, out: &mut dyn Write) -> Result<(), NoEvents> {
    if !root.is_live() {
        return Err(NoEvents::Copied);
    }
    let signals = Signals::block();
    let instance = Instance::new(root)?;
    let mut pipe = instance.start()?;
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    thread::spawn(move || {
        signals.wait();
        flag.store(true, Ordering::Relaxed);
    });
    let outcome = follow(&mut pipe, json, until, &ended, out);
    // The kernel keeps an instance that is open.
    drop(pipe);
    drop(instance);
    match outcome {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Prints the events of a pipe.
fn follow(
    pipe: &mut dyn Read,
    json: bool,
    until: Until,
    ended: &AtomicBool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let begin = Instant::now();
    let mut rest = Vec::new();
    let mut bytes = [0; 4096];
    let mut seen = 0;
    loop {
        match pipe.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => rest.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if ended.load(Ordering::Relaxed)
                    || until.time.is_some_and(|it| begin.elapsed() > it)
                {
                    return Ok(());
                }
                thread::sleep(PAUSE);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let Some(event) = Event::parse(String::from_utf8_lossy(&line).trim_end()) else {
                continue;
            };
            match json {
                true => writeln!(out, "{}", event.json())?,
                false => writeln!(out, "{}", event.text())?,
            }
            out.flush()?;
            seen += 1;
            if until.count.is_some_and(|it| seen >= it) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "x-1 [000] ..... 1.0: drm_peer_invalidate: exporter=a id=1 size=1 \
                        placement=vram\n";

    #[test]
    fn parts_of_lines() {
        let text = format!("# a comment\n{LINE}x-1 [000] 1.0: other: a=b\n{LINE}");
        // A pipe may end a read in the middle of a line.
        let (a, b) = text.as_bytes().split_at(30);
        let mut out = Vec::new();
        let never = AtomicBool::new(false);
        follow(&mut a.chain(b), false, Until::default(), &never, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out)
                .unwrap()
                .matches("invalidate")
                .count(),
            2
        );
    }

    #[test]
    fn ends_after_a_count() {
        let text = LINE.repeat(5);
        let mut out = Vec::new();
        let until = Until {
            count: Some(3),
            time: None,
        };
        let never = AtomicBool::new(false);
        follow(&mut text.as_bytes(), true, until, &never, &mut out).unwrap();
        let lines = String::from_utf8(out).unwrap();
        assert_eq!(lines.lines().count(), 3);
        assert!(lines.lines().all(|line| line.starts_with('{')));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The tracepoints of objects that peers access.

use std::fs;
use std::path::PathBuf;

use crate::debugfs::{mounted, words};
use crate::{Outcome, Stop, SysError};

/// A trace of its own.
#[derive(Debug)]
pub struct Trace {
    dir: PathBuf,
}

impl Trace {
    /// Makes one with all events of `drm_peer` on.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there are no such events.
    #[track_caller]
    pub fn new() -> Result<Self, Stop> {
        let root = mounted("tracefs", "/sys/kernel/tracing")?;
        let dir = root
            .join("instances")
            .join(format!("vvram-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| SysError::io(dir.display().to_string(), &error))?;
        let this = Self { dir };
        this.enable(true)?;
        Ok(this)
    }

    /// Turns the events on or off.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there are no such events.
    #[track_caller]
    pub fn enable(&self, on: bool) -> Outcome {
        let path = self.dir.join("events/drm_peer/enable");
        fs::write(&path, if on { "1" } else { "0" })
            .map_err(|error| SysError::io(path.display().to_string(), &error))?;
        Ok(())
    }

    /// The format of an event.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is no such event.
    #[track_caller]
    pub fn format(&self, event: &str) -> Result<String, Stop> {
        let path = self
            .dir
            .join(format!("events/drm_peer/drm_peer_{event}/format"));
        let text = fs::read_to_string(&path);
        Ok(text.map_err(|error| SysError::io(path.display().to_string(), &error))?)
    }

    /// The events of one object since the last call, as `name key=value...`, without the fields
    /// `exporter` and `id`, which were looked at, and `size`, which has to be that of the object.
    ///
    /// # Errors
    ///
    /// Fails the subtest if an event has another exporter or size.
    #[track_caller]
    pub fn events(&self, exporter: &str, id: u64, size: u64) -> Result<Vec<String>, Stop> {
        let path = self.dir.join("trace");
        let fail = |error: std::io::Error| SysError::io(path.display().to_string(), &error);
        let text = fs::read_to_string(&path).map_err(fail)?;
        fs::write(&path, "").map_err(fail)?;
        let mut found = Vec::new();
        for line in text.lines() {
            let Some((_, event)) = line.split_once(": drm_peer_") else {
                continue;
            };
            let Some((name, fields)) = event.split_once(": ") else {
                return Err(Stop::fail(format_args!("not an event: {line:?}")));
            };
            let all = words(fields);
            if all.get("id") != Some(&id.to_string().as_str()) {
                continue;
            }
            check!(
                all.get("exporter") == Some(&exporter)
                    && all.get("size") == Some(&size.to_string().as_str()),
                "expected exporter {exporter} and {size} bytes: {line:?}"
            );
            let rest = fields
                .split_whitespace()
                .filter(|word| !matches!(word.split('=').next(), Some("exporter" | "id" | "size")));
            let rest: Vec<&str> = rest.collect();
            found.push(format!("{name} {}", rest.join(" ")));
        }
        Ok(found)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}

/// An event of a job.
#[derive(Clone, Debug)]
pub struct JobEvent {
    /// `submit`, `run` or `done`.
    pub name: String,
    /// The process that was running.
    pub pid: u32,
    /// The context and the number of the fence.
    pub context: u64,
    pub seqno: u64,
    /// The rest of the fields.
    pub fields: String,
}

impl JobEvent {
    /// Whether it is such an event, with such a process running.
    pub fn is(&self, name: &str, pid: u32) -> bool {
        self.name == name && self.pid == pid
    }
}

/// Any event, and when it was.
#[derive(Clone, Debug)]
pub struct Moment {
    /// In ticks of the clock of the trace.
    pub time: u64,
    /// The event.
    pub name: String,
    /// Its fields.
    pub fields: String,
}

/// A trace of the jobs of all rings.
#[derive(Debug)]
pub struct Jobs {
    dir: PathBuf,
}

impl Jobs {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there are no such events.
    #[track_caller]
    pub fn new() -> Result<Self, Stop> {
        let root = mounted("tracefs", "/sys/kernel/tracing")?;
        let dir = root
            .join("instances")
            .join(format!("vvram-jobs-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| SysError::io(dir.display().to_string(), &error))?;
        let this = Self { dir };
        // One order for all processors.
        this.write("trace_clock", "global")?;
        for event in ["submit", "run", "done"] {
            this.write(&format!("events/drm_queue/drm_queue_{event}/enable"), "1")?;
        }
        Ok(this)
    }

    /// Makes one with doorbells, interrupts and fences, whose time is the time stamp counter.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there are no such events.
    #[track_caller]
    pub fn with_interrupts() -> Result<Self, Stop> {
        let this = Self::new()?;
        this.write("trace_clock", "x86-tsc")?;
        this.write("events/drm_queue/drm_queue_started/enable", "1")?;
        this.write("events/irq/irq_handler_entry/enable", "1")?;
        this.write("events/dma_fence/dma_fence_signaled/enable", "1")?;
        Ok(this)
    }

    /// All events with their times, in their order. Ends the trace.
    ///
    /// # Errors
    ///
    /// Fails the subtest if some of them were lost.
    #[track_caller]
    pub fn moments(&self) -> Result<Vec<Moment>, Stop> {
        self.write("events/enable", "0")?;
        let path = self.dir.join("trace");
        let text = fs::read_to_string(&path)
            .map_err(|error| SysError::io(path.display().to_string(), &error))?;
        check!(!text.contains("LOST"), "events were lost");
        let mut found = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            // "comm-pid [cpu] flags time: name: fields"
            let moment = line.split_once("] ").and_then(|(_, rest)| {
                let mut parts = rest.splitn(3, ": ");
                let time = parts.next()?.split_whitespace().last()?.parse().ok()?;
                Some(Moment {
                    time,
                    name: parts.next()?.to_string(),
                    fields: parts.next()?.to_string(),
                })
            });
            found.push(moment.ok_or_else(|| Stop::fail(format_args!("not an event: {line:?}")))?);
        }
        Ok(found)
    }

    #[track_caller]
    fn write(&self, file: &str, text: &str) -> Outcome {
        let path = self.dir.join(file);
        fs::write(&path, text).map_err(|error| SysError::io(path.display().to_string(), &error))?;
        Ok(())
    }

    /// The events, in their order. Ends the trace.
    ///
    /// # Errors
    ///
    /// Fails the subtest if some of them were lost.
    #[track_caller]
    pub fn events(&self) -> Result<Vec<JobEvent>, Stop> {
        self.write("events/drm_queue/enable", "0")?;
        let path = self.dir.join("trace");
        let text = fs::read_to_string(&path)
            .map_err(|error| SysError::io(path.display().to_string(), &error))?;
        check!(!text.contains("LOST"), "events were lost");
        let mut found = Vec::new();
        for line in text.lines() {
            let Some((task, event)) = line.split_once(": drm_queue_") else {
                continue;
            };
            let bad = || Stop::fail(format_args!("not an event: {line:?}"));
            let (name, fields) = event.split_once(": ").ok_or_else(bad)?;
            let all = words(fields);
            let number = |key: &str| all.get(key).and_then(|text| text.parse().ok());
            // "comm-pid [cpu] flags time"; there may be a dash in the name.
            let pid = task
                .split(" [")
                .next()
                .and_then(|task| task.trim_end().rsplit('-').next()?.parse().ok());
            found.push(JobEvent {
                name: name.to_string(),
                pid: pid.ok_or_else(bad)?,
                context: number("context").ok_or_else(bad)?,
                seqno: number("seqno").ok_or_else(bad)?,
                fields: fields.to_string(),
            });
        }
        Ok(found)
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}

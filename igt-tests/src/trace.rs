// SPDX-License-Identifier: GPL-2.0

//! The tracepoints of objects that peers access.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::debugfs::{mounted, words};
use crate::{Outcome, Stop, SysError};

/// An instance of the tracer, with a buffer and events of its own.
#[derive(Debug)]
struct Instance {
    dir: PathBuf,
}

impl Instance {
    #[track_caller]
    fn new(name: &str) -> Result<Self, Stop> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let root = mounted("tracefs", "/sys/kernel/tracing")?;
        let dir = root
            .join("instances")
            .join(format!("{name}-{}-{number}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| SysError::io(dir.display().to_string(), &error))?;
        Ok(Self { dir })
    }

    #[track_caller]
    fn write(&self, file: &str, text: &str) -> Outcome {
        let path = self.dir.join(file);
        fs::write(&path, text).map_err(|error| SysError::io(path.display().to_string(), &error))?;
        Ok(())
    }

    #[track_caller]
    fn read(&self, file: &str) -> Result<String, Stop> {
        let path = self.dir.join(file);
        let text = fs::read_to_string(&path);
        Ok(text.map_err(|error| SysError::io(path.display().to_string(), &error))?)
    }

    /// All events with their times, in their order. Ends the trace.
    #[track_caller]
    fn moments(&self) -> Result<Vec<Moment>, Stop> {
        self.write("tracing_on", "0")?;
        let text = self.read("trace")?;
        // `# entries-in-buffer/entries-written: 12/12   #P:1`
        let counts = text
            .lines()
            .find_map(|line| line.split_once("entries-written: "));
        let counts = counts.and_then(|(_, rest)| rest.split_whitespace().next()?.split_once('/'));
        check!(
            counts.is_some_and(|(left, written)| left == written),
            "events were lost: {counts:?}"
        );
        let bad = |line| Stop::fail(format_args!("not an event: {line:?}"));
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| Moment::parse(line).ok_or_else(|| bad(line)))
            .collect()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}

/// A trace of the objects that peers access.
#[derive(Debug)]
pub struct Trace(Instance);

impl Trace {
    /// Makes a trace with all events of `drm_peer` enabled.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there are no such events.
    #[track_caller]
    pub fn new() -> Result<Self, Stop> {
        let this = Self(Instance::new("vvram")?);
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
        self.0
            .write("events/drm_peer/enable", if on { "1" } else { "0" })
    }

    /// The format of an event.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is no such event.
    #[track_caller]
    pub fn format(&self, event: &str) -> Result<String, Stop> {
        self.0
            .read(&format!("events/drm_peer/drm_peer_{event}/format"))
    }

    /// The events of one object since the last call, as `name key=value...`, without the fields
    /// `exporter` and `id`, which select the events, and `size`, which is checked.
    ///
    /// # Errors
    ///
    /// Fails the subtest if an event has another exporter or size.
    #[track_caller]
    pub fn events(&self, exporter: &str, id: u64, size: u64) -> Result<Vec<String>, Stop> {
        let text = self.0.read("trace")?;
        self.0.write("trace", "")?;
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
    /// Whether it is an event of this name, while this process was running.
    pub fn is(&self, name: &str, pid: u32) -> bool {
        self.name == name && self.pid == pid
    }
}

/// Any event, with its time.
#[derive(Clone, Debug)]
pub struct Moment {
    /// In ticks of the clock of the trace: microseconds, or those of the time stamp counter.
    pub time: u64,
    /// The process that was running.
    pub pid: u32,
    /// The event.
    pub name: String,
    /// Its fields.
    pub fields: String,
}

impl Moment {
    /// Whether its fields have this word, such as `key=value`.
    pub fn has(&self, word: &str) -> bool {
        self.fields.split_whitespace().any(|field| field == word)
    }

    /// The event of a line, `comm-pid [cpu] flags time: name: fields`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (task, rest) = line.split_once(" [")?;
        let mut parts = rest.splitn(3, ": ");
        // A time in microseconds has a decimal point.
        let time = parts.next()?.split_whitespace().last()?.replace('.', "");
        Some(Self {
            time: time.parse().ok()?,
            // The name of a process may have a dash.
            pid: task.trim_end().rsplit('-').next()?.parse().ok()?,
            name: parts.next()?.to_string(),
            fields: parts.next()?.to_string(),
        })
    }
}

/// A trace of the jobs of all rings.
#[derive(Debug)]
pub struct Jobs(Instance);

impl Jobs {
    /// Makes a trace.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there are no such events.
    #[track_caller]
    pub fn new() -> Result<Self, Stop> {
        let trace = Instance::new("vvram-jobs")?;
        // So that the events of all processors are in one order.
        trace.write("trace_clock", "global")?;
        for event in ["submit", "run", "done"] {
            trace.write(&format!("events/drm_queue/drm_queue_{event}/enable"), "1")?;
        }
        Ok(Self(trace))
    }

    /// The events of jobs, in their order. Ends the trace.
    ///
    /// # Errors
    ///
    /// Fails the subtest if some of them were lost.
    #[track_caller]
    pub fn events(&self) -> Result<Vec<JobEvent>, Stop> {
        let mut found = Vec::new();
        for moment in self.0.moments()? {
            let Some(name) = moment.name.strip_prefix("drm_queue_") else {
                continue;
            };
            let all = words(&moment.fields);
            let number = |key: &str| {
                let number = all.get(key).and_then(|text| text.parse().ok());
                number.ok_or_else(|| Stop::fail(format_args!("no {key} in {moment:?}")))
            };
            found.push(JobEvent {
                name: name.to_string(),
                pid: moment.pid,
                context: number("context")?,
                seqno: number("seqno")?,
                fields: moment.fields.clone(),
            });
        }
        Ok(found)
    }
}

/// A trace of what runs: tasks, interrupts and work items, and the begin and the end of jobs. Its
/// clock is the time stamp counter.
#[derive(Debug)]
pub struct Running(Instance);

impl Running {
    /// Makes a trace.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there are no such events.
    #[track_caller]
    pub fn new() -> Result<Self, Stop> {
        let trace = Instance::new("vvram-running")?;
        trace.write("tracing_on", "0")?;
        trace.write("trace_clock", "x86-tsc")?;
        // A guest that waits for a device has many of them.
        trace.write("buffer_size_kb", "8192")?;
        for event in [
            "irq_vectors/local_timer_entry",
            "irq_vectors/local_timer_exit",
            "irq/softirq_entry",
            "irq/softirq_exit",
            "timer/hrtimer_start",
        ] {
            trace.write(&format!("events/{event}/filter"), "common_pid != 0")?;
            trace.write(&format!("events/{event}/enable"), "1")?;
        }
        for event in [
            "sched/sched_switch",
            "irq/irq_handler_entry",
            "irq/irq_handler_exit",
            "workqueue/workqueue_queue_work",
            "workqueue/workqueue_execute_start",
            "workqueue/workqueue_execute_end",
            "drm_queue/drm_queue_started",
            "dma_fence/dma_fence_signaled",
        ] {
            trace.write(&format!("events/{event}/enable"), "1")?;
        }
        Ok(Self(trace))
    }

    /// Runs `body`, and returns its result and all events meanwhile with their times, in their
    /// order.
    ///
    /// # Errors
    ///
    /// Fails the subtest if some of them were lost.
    #[track_caller]
    pub fn during<T>(
        &self,
        body: impl FnOnce() -> Result<T, Stop>,
    ) -> Result<(T, Vec<Moment>), Stop> {
        self.0.write("trace", "")?;
        self.0.write("tracing_on", "1")?;
        let result = body()?;
        Ok((result, self.0.moments()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_both_clocks() {
        for (time, want) in [("12.345678", 12_345_678), ("987654321", 987_654_321)] {
            let line =
                format!("     a-task-7   [002] ..... {time}: drm_queue_run: ring=x context=1");
            let moment = Moment::parse(&line).expect("an event");
            assert_eq!((moment.time, moment.pid), (want, 7));
            assert_eq!(
                (moment.name.as_str(), moment.fields.as_str()),
                ("drm_queue_run", "ring=x context=1")
            );
        }
        assert!(Moment::parse("no event").is_none());
    }

    #[test]
    fn words_are_compared_as_a_whole() {
        let moment = Moment::parse("a-7 [0] . 1: dma_fence_signaled: context=42 seqno=4");
        let moment = moment.expect("an event");
        assert!(moment.has("context=42") && moment.has("seqno=4"));
        assert!(!moment.has("context=4") && !moment.has("seqno"));
    }
}

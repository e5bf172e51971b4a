// SPDX-License-Identifier: GPL-2.0

//! What work of a device costs the processor, counted where it is spent.
//!
//! A guest under icount goes on while a device works beside it, at the speed of the host: its clock
//! runs ahead, timers expire, and workers of the kernel run that have nothing to do with the device.
//! So no difference of two readings of a clock is the cost. A trace tells which task or interrupt
//! runs at which time. Counted is what these run:
//!
//! - the task that asks for the work, while it does so,
//! - the handler of the device's interrupt, and the thread behind it,
//! - work items that one of these has queued, or such a work item.
//!
//! Interrupts of others are not counted, whomever they interrupt. Nor is a task that only looks
//! whether the device is done, sleeps for a fixed time and looks again: how often it does depends
//! on the speed of the device.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::debugfs::words;
use crate::trace::Moment;

/// What a task runs at most between two sleeps of a fixed time if it only looks for something, in
/// instructions.
const LOOK: u64 = 2_000;
/// The timer of a task that sleeps for a fixed time.
const WAKES: &str = "function=hrtimer_wakeup";

/// The work of a device that a task asks for.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The task, and the time in which it asks for the work and waits for it.
    pub task: u32,
    pub time: Range<u64>,
    /// The name of the device's interrupt.
    pub interrupt: &'a str,
}

impl Asked<'_> {
    /// Whether a task is the thread of the interrupt.
    fn is_thread(&self, comm: &str) -> bool {
        let name = comm
            .strip_prefix("irq/")
            .and_then(|rest| rest.split_once('-'));
        name.is_some_and(|(_, name)| name == self.interrupt)
    }

    /// Whether a moment is an interrupt of the device.
    fn is_interrupt(&self, moment: &Moment) -> bool {
        moment.name == "irq_handler_entry"
            && words(&moment.fields).get("name") == Some(&self.interrupt)
    }

    /// The number of interrupts of the device, [`None`] if the processor was at work when one of
    /// them came. Then the order of things differs from that of other rounds.
    pub fn interrupts(&self, moments: &[Moment]) -> Option<usize> {
        let mut count = 0;
        for moment in moments.iter().filter(|moment| self.is_interrupt(moment)) {
            if moment.pid != 0 {
                return None;
            }
            count += 1;
        }
        Some(count)
    }

    /// The instructions for the work that were run in a time. What runs before the task asks is
    /// the rest of other work.
    pub fn spent(&self, moments: &[Moment], time: Range<u64>) -> u64 {
        let time = time.start.max(self.time.start)..time.end;
        let mut at = State::default();
        let mut last = time.start;
        for moment in moments {
            at.task = moment.pid;
            if at.counts(self) {
                let mut part = last.max(time.start)..moment.time.min(time.end);
                if at.interrupts.is_empty() && at.task == self.task {
                    part.end = part.end.min(self.time.end);
                }
                *at.spent.entry(at.task).or_default() += part.end.saturating_sub(part.start);
            }
            at.step(self, moment);
            last = moment.time;
        }
        at.spent.values().sum()
    }
}

/// Who runs.
#[derive(Debug, Default)]
struct State {
    task: u32,
    /// Interrupts that are being handled, and whether they are those of the device.
    interrupts: Vec<bool>,
    /// The threads of the interrupt.
    threads: BTreeSet<u32>,
    /// Work items that are queued and count.
    queued: BTreeSet<String>,
    /// Tasks that run one of them.
    workers: BTreeSet<u32>,
    /// Tasks that sleep for a fixed time, and those that were woken, with what they had run then.
    asleep: BTreeSet<u32>,
    woken: BTreeMap<u32, u64>,
    /// What each task has run, with the interrupts of the device that it was interrupted by.
    spent: BTreeMap<u32, u64>,
}

impl State {
    /// Whether that which runs counts.
    fn counts(&self, asked: &Asked<'_>) -> bool {
        let is_counted = |task| {
            task == asked.task || self.threads.contains(&task) || self.workers.contains(&task)
        };
        match self.interrupts.last() {
            Some(is_ours) => *is_ours,
            None => is_counted(self.task) && !self.asleep.contains(&self.task),
        }
    }

    fn step(&mut self, asked: &Asked<'_>, moment: &Moment) {
        let task = self.task;
        // `work struct 12ab: function name`, and `work struct=12ab function=name`.
        let item = || {
            let word = moment.fields.split_whitespace().nth(1).unwrap_or_default();
            let word = word.strip_prefix("struct=").map(str::to_string);
            let third = moment.fields.split_whitespace().nth(2).unwrap_or_default();
            word.unwrap_or_else(|| third.trim_end_matches(':').to_string())
        };
        match moment.name.as_str() {
            "irq_handler_entry" => self.interrupts.push(asked.is_interrupt(moment)),
            "local_timer_entry" | "softirq_entry" => self.interrupts.push(false),
            "irq_handler_exit" | "local_timer_exit" | "softirq_exit" => {
                self.interrupts.pop();
            }
            "workqueue_queue_work" => {
                let is_asked = moment.time >= asked.time.start
                    && (task != asked.task || moment.time < asked.time.end);
                if is_asked && self.counts(asked) {
                    self.queued.insert(item());
                }
            }
            "workqueue_execute_start" if self.queued.remove(&item()) => {
                self.workers.insert(task);
            }
            "workqueue_execute_end" => {
                self.workers.remove(&task);
            }
            "hrtimer_start"
                if moment.has(WAKES) && self.counts(asked) && self.interrupts.is_empty() =>
            {
                let spent = self.spent.entry(task).or_default();
                if let Some(before) = self.woken.remove(&task) {
                    if *spent - before < LOOK {
                        *spent = before;
                    }
                }
                self.asleep.insert(task);
            }
            "sched_switch" => {
                let fields = words(&moment.fields);
                let next = fields.get("next_pid").and_then(|pid| pid.parse().ok());
                self.task = next.unwrap_or_default();
                if fields
                    .get("next_comm")
                    .is_some_and(|comm| asked.is_thread(comm))
                {
                    self.threads.insert(self.task);
                }
                if self.asleep.remove(&self.task) {
                    let spent = self.spent.get(&self.task).copied().unwrap_or_default();
                    self.woken.insert(self.task, spent);
                }
            }
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moments of lines `pid time name: fields`.
    fn moments(lines: &[&str]) -> Vec<Moment> {
        let parse = |line: &&str| {
            let (pid, rest) = line.split_once(' ').expect("a task");
            let line = format!("x-{pid} [000] ..... {}", rest.replacen(' ', ": ", 1));
            Moment::parse(&line).expect("an event")
        };
        lines.iter().map(parse).collect()
    }

    fn spent(lines: &[&str]) -> u64 {
        let asked = Asked {
            task: 7,
            time: 100..10_000,
            interrupt: "dev",
        };
        asked.spent(&moments(lines), 0..u64::MAX)
    }

    #[test]
    fn a_task_counts_while_it_asks() {
        assert_eq!(spent(&["7 50 a: ", "7 150 b: ", "7 20000 c: "]), 9_900);
        assert_eq!(spent(&["8 150 b: ", "8 400 c: "]), 0);
    }

    #[test]
    fn interrupts_of_others_do_not_count() {
        let lines = [
            "7 100 a: ",
            "7 110 local_timer_entry: vector=236",
            "7 200 local_timer_exit: vector=236",
            "7 205 softirq_entry: vec=1",
            "7 300 softirq_exit: vec=1",
            "7 310 irq_handler_entry: irq=3 name=disk",
            "7 400 irq_handler_exit: irq=3 ret=handled",
            "7 410 irq_handler_entry: irq=4 name=dev",
            "7 430 irq_handler_exit: irq=4 ret=handled",
            "7 431 b: ",
        ];
        assert_eq!(spent(&lines), 10 + 5 + 10 + 10 + 20 + 1);
        let asked = Asked {
            task: 7,
            time: 0..1,
            interrupt: "dev",
        };
        assert_eq!(asked.interrupts(&moments(&lines)), None);
        let idle = moments(&["0 1 irq_handler_entry: irq=4 name=dev"]);
        assert_eq!(asked.interrupts(&idle), Some(1));
    }

    #[test]
    fn threads_and_work_items_count_wherever_they_run() {
        let lines = [
            "7 100 a: ",
            "7 110 workqueue_queue_work: work struct=ab function=f workqueue=q req_cpu=0 cpu=0",
            "7 120 sched_switch: prev_pid=7 ==> next_comm=kworker/0:1 next_pid=9 next_prio=1",
            "9 150 workqueue_execute_start: work struct cd: function other",
            "9 200 workqueue_execute_end: work struct cd: function other",
            "9 210 workqueue_execute_start: work struct ab: function f",
            "9 220 workqueue_queue_work: work struct=ef function=g workqueue=q req_cpu=0 cpu=0",
            "9 230 workqueue_execute_end: work struct ab: function f",
            "9 240 sched_switch: prev_pid=9 ==> next_comm=irq/4-dev next_pid=5 next_prio=1",
            "5 250 sched_switch: prev_pid=5 ==> next_comm=irq/3-disk next_pid=6 next_prio=1",
            "6 260 sched_switch: prev_pid=6 ==> next_comm=kworker/0:1 next_pid=9 next_prio=1",
            "9 270 workqueue_execute_start: work struct ef: function g",
            "9 300 workqueue_execute_end: work struct ef: function g",
            "9 310 workqueue_execute_start: work struct ab: function f",
            "9 400 workqueue_execute_end: work struct ab: function f",
        ];
        assert_eq!(spent(&lines), 20 + 20 + 10 + 30);
    }

    #[test]
    fn what_is_left_of_other_work_does_not_count() {
        let lines = [
            "0 50 irq_handler_entry: irq=4 name=dev",
            "0 60 workqueue_queue_work: work struct=ab function=f workqueue=q req_cpu=0 cpu=0",
            "0 70 irq_handler_exit: irq=4 ret=handled",
            "0 80 sched_switch: prev_pid=0 ==> next_comm=kworker/0:1 next_pid=9 next_prio=1",
            "9 150 workqueue_execute_start: work struct ab: function f",
            "9 300 workqueue_execute_end: work struct ab: function f",
        ];
        assert_eq!(spent(&lines), 0);
        let late = lines.map(|line| line.replace(" 50 ", " 110 ").replace(" 60 ", " 120 "));
        let late = late.map(|line| line.replace(" 70 ", " 130 ").replace(" 80 ", " 140 "));
        let late: Vec<_> = late.iter().map(String::as_str).collect();
        assert_eq!(spent(&late), 20 + 150);
    }

    #[test]
    fn looks_do_not_count() {
        let sleep = |from: u64, to: u64| {
            [
                format!("7 {from} hrtimer_start: hrtimer=1 function=hrtimer_wakeup expires=2"),
                format!(
                    "7 {} sched_switch: prev_pid=7 ==> next_comm=i next_pid=0",
                    from + 30
                ),
                format!("0 {to} sched_switch: prev_pid=0 ==> next_comm=x next_pid=7"),
            ]
        };
        let run = |sleeps: &[(u64, u64)], end: &str| {
            let mut lines = vec!["7 100 a: ".to_string()];
            lines.extend(sleeps.iter().flat_map(|&(from, to)| sleep(from, to)));
            lines.push(end.to_string());
            spent(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let once = run(&[(200, 500)], "7 600 b: ");
        assert_eq!(once, 100 + 100);
        assert_eq!(run(&[(200, 500), (560, 900)], "7 1000 b: "), once);
        // Work between two sleeps does count.
        assert_eq!(
            run(&[(200, 500), (3_000, 3_900)], "7 4000 b: "),
            once + 2_500
        );
    }
}

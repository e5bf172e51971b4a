// SPDX-License-Identifier: GPL-2.0

//! Storms: processes that do things at the same time, some of which fail for a moment.
//!
//! A storm in which each of these things always fails would pass, so their successes are counted,
//! and the storm goes on until there are enough of each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::map::{Map, PAGE};
use crate::misc::{self, Lcg};
use crate::proc::Child;
use crate::{Outcome, Stop, SysError};

/// What the processes of a storm do.
#[derive(Clone, Copy, Debug)]
pub struct Action {
    name: &'static str,
    permitted: &'static [i32],
    least: u64,
}

impl Action {
    /// An action with a name, by which [`Storm::tried`] finds it, the errors that it may return
    /// because of the other processes, and how many times it has to succeed, times [`misc::soak`].
    pub const fn new(name: &'static str, permitted: &'static [i32], least: u64) -> Self {
        Self {
            name,
            permitted,
            least,
        }
    }
}

/// The processes of a storm, and what they have done.
#[derive(Debug)]
pub struct Storm {
    actions: Vec<Action>,
    /// Shared by all processes: whether the storm is over, and for each action how many times it
    /// was tried and has succeeded.
    counts: Map,
    seed: u64,
    limit: Duration,
    clients: Vec<Child>,
    others: Vec<Child>,
}

impl Storm {
    /// Begins a storm, and prints its seed. It goes on for `limit` at most, times [`misc::slower`]
    /// and [`misc::soak`].
    pub fn new(limit: Duration, actions: &[Action]) -> Result<Self, SysError> {
        let seed = misc::nonce();
        println!("seed of the storm {seed:#x}");
        Ok(Self {
            actions: actions.to_vec(),
            counts: Map::anonymous(PAGE)?,
            seed,
            limit: limit * misc::soak() as u32,
            clients: Vec::new(),
            others: Vec::new(),
        })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < PAGE / 8);
        // SAFETY: the mapping lives as long as `self`, and all of its users use atomic operations.
        unsafe { AtomicU64::from_ptr(self.counts.address().as_ptr().add(index)) }
    }

    /// How many times an action was tried and has succeeded.
    fn counts(&self, index: usize) -> [&AtomicU64; 2] {
        [self.word(1 + 2 * index), self.word(2 + 2 * index)]
    }

    /// The seed of all random numbers of the storm.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    fn index(&self, name: &str) -> usize {
        let index = self.actions.iter().position(|action| action.name == name);
        index.unwrap_or_else(|| panic!("{name} is no action of this storm"))
    }

    /// Counts the successes of an action.
    ///
    /// # Panics
    ///
    /// Panics if the storm has no action of this name.
    pub fn done(&self, name: &str, count: u64) {
        for counter in self.counts(self.index(name)) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Counts the result of an action. Returns `None` for an error that is permitted.
    ///
    /// # Errors
    ///
    /// Any other error.
    ///
    /// # Panics
    ///
    /// Panics if the storm has no action of this name.
    pub fn tried<T>(&self, name: &str, result: Result<T, SysError>) -> Result<Option<T>, SysError> {
        match result {
            Ok(value) => {
                self.done(name, 1);
                Ok(Some(value))
            }
            Err(error) => {
                let index = self.index(name);
                if !self.actions[index].permitted.contains(&error.errno) {
                    return Err(error);
                }
                self.counts(index)[0].fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    /// Whether each action has succeeded as many times as it has to.
    fn enough(&self) -> bool {
        let mut actions = self.actions.iter().zip(self.successes());
        actions.all(|(action, done)| done >= action.least * misc::soak())
    }

    /// The rounds of a process: `least` of them, times [`misc::soak`], and more until each action
    /// has succeeded often enough, or the time is up.
    pub fn rounds(&self, least: u64) -> impl Iterator<Item = u64> + '_ {
        let (least, begin) = (least * misc::soak(), Instant::now());
        let limit = self.limit * misc::slower();
        let goes_on = move || !self.enough() && begin.elapsed() < limit;
        (0..).take_while(move |round| *round < least || goes_on())
    }

    fn spawn(&self, body: impl FnOnce(&mut Lcg) -> Outcome) -> Result<Child, SysError> {
        let number = (self.clients.len() + self.others.len()) as u64;
        Child::spawn(|| body(&mut Lcg::new(self.seed + number)))
    }

    /// Starts a process for which the storm waits.
    pub fn client(&mut self, body: impl FnOnce(&Self, &mut Lcg) -> Outcome) -> Outcome {
        let child = self.spawn(|random| body(self, random))?;
        self.clients.push(child);
        Ok(())
    }

    /// Starts a process that does something again and again until the storm is over.
    pub fn meanwhile(&mut self, mut body: impl FnMut(&Self, &mut Lcg) -> Outcome) -> Outcome {
        let child = self.spawn(|random| {
            while self.word(0).load(Ordering::Relaxed) == 0 {
                body(self, random)?;
            }
            Ok(())
        })?;
        self.others.push(child);
        Ok(())
    }

    /// How many times each action has succeeded.
    fn successes(&self) -> Vec<u64> {
        let actions = 0..self.actions.len();
        actions
            .map(|index| self.counts(index)[1].load(Ordering::Relaxed))
            .collect()
    }

    /// Waits until each action has succeeded `more` times more.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that takes too long, or if a process has ended.
    #[track_caller]
    pub fn go_on(&mut self, more: u64) -> Outcome {
        let (before, mut ended) = (self.successes(), None);
        let enough = misc::poll(self.limit, || {
            let mut children = self.clients.iter_mut().chain(&mut self.others);
            ended = children.find_map(Child::ended);
            let done = self.successes().into_iter().zip(&before);
            (ended.is_some() || done.into_iter().all(|(now, was)| now >= was + more)).then_some(())
        });
        if ended.is_none() && enough.is_some() {
            return Ok(());
        }
        Err(Stop::fail(format_args!(
            "this is no storm: {}, a process has ended: {ended:?}",
            self.text()
        )))
    }

    /// The counts of all actions.
    fn text(&self) -> String {
        let actions = self.actions.iter().enumerate().map(|(index, action)| {
            let [tried, done] = self.counts(index).map(|it| it.load(Ordering::Relaxed));
            let least = action.least * misc::soak();
            format!("{} {done} of {tried} (at least {least})", action.name)
        });
        actions.collect::<Vec<_>>().join(", ")
    }

    /// Waits for all clients, ends the other processes, and checks and prints the counts.
    ///
    /// # Errors
    ///
    /// Fails the subtest if a process has failed, or if an action has not succeeded often enough.
    #[track_caller]
    pub fn end(mut self) -> Outcome {
        // A client may go on for some time, and ends its last round then.
        let limit = 2 * self.limit;
        let mut outcomes: Vec<Outcome> = Vec::new();
        for client in &mut self.clients {
            outcomes.push(client.join("a client", limit));
        }
        self.word(0).store(1, Ordering::Relaxed);
        for other in &mut self.others {
            outcomes.push(other.join("one of the others", limit));
        }
        println!("{}", self.text());
        outcomes.into_iter().collect::<Outcome>()?;
        check!(self.enough(), "too few successes: {}", self.text());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storm(least: u64) -> Storm {
        let action = Action::new("move", &[libc::EBUSY], least);
        Storm::new(Duration::from_millis(10), &[action]).unwrap()
    }

    fn moved(storm: &Storm, errno: i32) -> Result<Option<()>, SysError> {
        let result = match errno {
            0 => Ok(()),
            errno => Err(SysError::new("a move", errno)),
        };
        storm.tried("move", result)
    }

    #[test]
    fn only_successes_count() {
        let busy = storm(1);
        assert_eq!(moved(&busy, libc::EBUSY), Ok(None));
        assert!(moved(&busy, libc::ENOSPC).is_err());
        assert!(busy.end().is_err());
        let works = storm(1);
        assert_eq!(moved(&works, 0), Ok(Some(())));
        assert_eq!(works.end(), Ok(()));
    }

    #[test]
    fn rounds_go_on_until_there_are_enough() {
        let action = Action::new("move", &[libc::EBUSY], 3);
        let slow = Storm::new(Duration::from_secs(100), &[action]).unwrap();
        for round in slow.rounds(2) {
            moved(&slow, if round < 5 { libc::EBUSY } else { 0 }).unwrap();
        }
        assert_eq!(slow.text(), "move 3 of 8 (at least 3)");
        let never = storm(1);
        assert!(never.rounds(2).count() >= 2);
    }
}

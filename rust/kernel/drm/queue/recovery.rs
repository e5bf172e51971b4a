// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The recovery from hung jobs.
//!
//! All of it runs on the workqueue of the ring, so no job begins meanwhile.

use super::{
    done::Done,
    ring::Verdict,
    scheduler::{
        Ended,
        Flight,
        Scheduler,
        State,
        TIMER, //
    }, //
};
use crate::{
    bindings,
    dma_buf::fence::SignallingSection,
    prelude::*,
    sync::Arc,
    time::{
        msecs_to_jiffies,
        Instant,
        Msecs, //
    },
    workqueue::{
        self,
        DelayedWork, //
    }, //
};

/// The maximum time until a job of a closed ring ends, in milliseconds.
const CLOSING: Msecs = 2000;

impl Scheduler {
    /// Returns the maximum time until a job ends.
    fn limit(&self, state: &State) -> Option<Msecs> {
        let limit = if state.closed { CLOSING } else { Msecs::MAX };

        self.timeout.map(|timeout| timeout.min(limit))
    }

    /// Stops the timer if it is pending. With `wait`, the timer does not run when this returns.
    /// Without `wait`, the caller must be on the workqueue of the ring, so the timer does not run
    /// either.
    pub(super) fn stop_timer(self: &Arc<Self>, wait: bool) {
        // SAFETY: The timer belongs to the ring. If it was pending, this call has removed it and
        // takes over its reference to the ring.
        unsafe {
            let timer = DelayedWork::<Scheduler, TIMER>::raw_as_work(&raw const self.timer);
            let was_pending = if wait {
                bindings::cancel_delayed_work_sync(timer.cast())
            } else {
                bindings::cancel_delayed_work(timer.cast())
            };

            if was_pending {
                drop(Arc::from_raw(Arc::as_ptr(self)));
            }
        }
    }

    /// Starts the timer if there is a job in the hardware and the timer is not pending.
    pub(super) fn set_timer(self: &Arc<Self>, flight: &mut Flight) {
        let state = self.state.lock();
        let Some(timeout) = self.limit(&state) else {
            return;
        };

        if flight.timer || !state.slots.iter().any(|slot| slot.is_running()) {
            return;
        }
        let Some(queue) = state.queue else {
            return;
        };

        let left = i64::from(timeout) - flight.since.elapsed().as_millis();
        // One more because both times are rounded down.
        let left = Msecs::try_from(left + 1).unwrap_or(0);
        // SAFETY: The workqueue is destroyed after the pointer was removed from the state, whose
        // lock is held.
        let queue = unsafe { workqueue::Queue::from_raw(queue.as_ptr()) };
        flight.timer = queue
            .enqueue_delayed::<Arc<Self>, TIMER>(self.clone(), msecs_to_jiffies(left.max(1)))
            .is_ok();
    }

    /// Checks whether the oldest job in the hardware has been there for too long.
    pub(super) fn expired(self: &Arc<Self>) {
        let _section = SignallingSection::begin();
        let mut flight = self.flight.lock();

        flight.timer = false;
        self.check(&mut flight, false);
        self.set_timer(&mut flight);
    }

    /// Asks the driver about the oldest job in the hardware if it has been there for too long or if
    /// the driver has requested it (`asked`).
    pub(super) fn check(self: &Arc<Self>, flight: &mut Flight, asked: bool) {
        if !asked {
            let state = self.state.lock();

            // The worker has not processed the progress yet.
            if state.slots.iter().any(|slot| slot.ended.is_some()) {
                flight.since = Instant::now();
                return;
            }
        }
        let Some((slot, ticket)) = self.oldest(0, u64::MAX) else {
            return;
        };

        let limit = self.limit(&self.state.lock()).unwrap_or(Msecs::MAX);
        if !asked && flight.since.elapsed().as_millis() < i64::from(limit) {
            return;
        }
        let Some(Some(node)) = flight.nodes.get(slot) else {
            return;
        };
        // SAFETY: The hardware is valid as long as there are jobs.
        let verdict = unsafe { node.payload.timed_out(flight.hw, limit) };
        match verdict {
            Verdict::Busy if asked => (),
            Verdict::Busy => flight.since = Instant::now(),
            Verdict::Reset(error) | Verdict::Hung(error)
                if self.state.lock().is_running(slot, ticket) =>
            {
                // Before its fence signals, which may be in the reset.
                if matches!(verdict, Verdict::Hung(_)) {
                    self.blame(&node.lane);
                }
                self.recover(flight, Some((ticket, error)));
            }
            // The job has ended meanwhile, so it did not hang.
            Verdict::Reset(_) | Verdict::Hung(_) => flight.since = Instant::now(),
        }
    }

    /// Resets the ring, ends the hung run (if any) with its error and runs the other jobs again.
    pub(super) fn recover(self: &Arc<Self>, flight: &mut Flight, hung: Option<(u64, Error)>) {
        // A `Done` dropped now by the driver to empty the ring does not end its job.
        self.state.lock().resetting = true;
        // SAFETY: The hardware is valid as long as there are jobs.
        let result = unsafe { (self.calls.reset)(flight.hw) };
        {
            let mut state = self.state.lock();

            state.resetting = false;
            if let Err(error) = result {
                self.give_up(&mut state, error);
            }
        }

        // A job that has ended after all keeps its result.
        let mut done = 0;
        while let Some((slot, ticket)) = self.oldest(done, u64::MAX) {
            done = ticket;
            let error = hung.filter(|hung| hung.0 == ticket).map(|hung| hung.1);

            if let Some(error) = error.or(result.err()) {
                Done::new(self, slot, ticket).signal(Err(error));
            }
        }

        // The driver may do a failed job by other means. The jobs behind it rely on their order, so
        // they begin afterwards.
        while let Some((slot, ended)) = self.take_ended() {
            self.finish(flight, slot, ended);
        }

        // Run the jobs again from the oldest on because the hardware does jobs in their order.
        let last = flight.ticket;
        let mut done = 0;
        while let Some((slot, ticket)) = self.oldest(done, last) {
            done = ticket;
            self.run_again(flight, slot);
        }
        flight.since = Instant::now();
    }

    /// See [`State::take_ended`](super::scheduler::State::take_ended).
    fn take_ended(&self) -> Option<(usize, Ended)> {
        self.state.lock().take_ended()
    }

    /// Returns the oldest job in the hardware whose run is after `done` and not after `last`.
    pub(super) fn oldest(&self, done: u64, last: u64) -> Option<(usize, u64)> {
        let state = self.state.lock();
        let slots = state.slots.iter().enumerate();

        slots
            .filter(|(_, slot)| slot.is_running() && slot.ticket > done && slot.ticket <= last)
            .map(|(index, slot)| (index, slot.ticket))
            .min_by_key(|(_, ticket)| *ticket)
    }

    /// Runs the job of a slot again, as a new run.
    fn run_again(self: &Arc<Self>, flight: &mut Flight, slot: usize) {
        let Some(mut node) = flight.nodes.get_mut(slot).and_then(Option::take) else {
            return;
        };

        // OVERFLOW: There are never 2^64 runs.
        flight.ticket += 1;
        if let Some(slot) = self.state.lock().slots.get_mut(slot) {
            slot.ticket = flight.ticket;
        }
        self.run(flight, &mut node, slot, flight.ticket);
        if let Some(place) = flight.nodes.get_mut(slot) {
            *place = Some(node);
        }
    }
}

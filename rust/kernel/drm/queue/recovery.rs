// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What becomes of jobs that do not end.
//!
//! All of it runs on the workqueue of the ring, so no job begins meanwhile.

use super::{
    arbiter::{
        Core,
        Flight,
        TIMER, //
    },
    done::Done,
    ring::Verdict, //
};
use crate::{
    dma_buf::fence::SignallingSection,
    prelude::*,
    sync::Arc,
    time::{
        msecs_to_jiffies,
        Instant,
        Msecs, //
    },
    workqueue, //
};

impl Core {
    /// Starts the timer, if there is a job in the hardware and it is not on its way.
    pub(super) fn set_timer(self: &Arc<Self>, flight: &mut Flight) {
        let Some(timeout) = self.timeout else {
            return;
        };
        let state = self.state.lock();

        if flight.timer || !state.slots.iter().any(|slot| slot.is_running()) {
            return;
        }
        let Some(queue) = state.queue else {
            return;
        };

        let left = i64::from(timeout) - flight.since.elapsed().as_millis();
        // One more, as both are rounded down.
        let left = Msecs::try_from(left + 1).unwrap_or(0);
        // SAFETY: It is destroyed after it was taken out of the state, whose lock is held.
        let queue = unsafe { workqueue::Queue::from_raw(queue.as_ptr()) };
        flight.timer = queue
            .enqueue_delayed::<Arc<Self>, TIMER>(self.clone(), msecs_to_jiffies(left.max(1)))
            .is_ok();
    }

    /// Looks at the oldest job in the hardware, which may have been there for too long.
    pub(super) fn expired(self: &Arc<Self>) {
        let _section = SignallingSection::begin();
        let mut flight = self.flight.lock();

        flight.timer = false;
        self.check(&mut flight, false);
        self.set_timer(&mut flight);
    }

    /// Asks the driver about the oldest job in the hardware, if that is there for too long, or if
    /// the driver wants to be `asked` at once.
    pub(super) fn check(self: &Arc<Self>, flight: &mut Flight, asked: bool) {
        if !asked {
            let state = self.state.lock();

            // The worker has yet to see that there was progress.
            if state.slots.iter().any(|slot| slot.ended.is_some()) {
                flight.since = Instant::now();
                return;
            }
        }
        let Some((slot, ticket)) = self.oldest(0, u64::MAX) else {
            return;
        };

        let timeout = i64::from(self.timeout.unwrap_or(Msecs::MAX));
        if !asked && flight.since.elapsed().as_millis() < timeout {
            return;
        }
        let Some(Some(node)) = flight.nodes.get(slot) else {
            return;
        };
        // SAFETY: The hardware is valid as long as there are jobs.
        match unsafe { node.payload.timed_out(flight.hw) } {
            Verdict::Busy if asked => (),
            Verdict::Busy => flight.since = Instant::now(),
            Verdict::Reset(error) if self.state.lock().is_running(slot, ticket) => {
                self.recover(flight, Some((ticket, error)));
            }
            // The driver has seen its end: another one is to blame, or none.
            Verdict::Reset(_) => flight.since = Instant::now(),
        }
    }

    /// Resets the ring, ends the run that hangs with the error, if there is one, and runs the other
    /// jobs again.
    pub(super) fn recover(self: &Arc<Self>, flight: &mut Flight, hung: Option<(u64, Error)>) {
        // What the driver drops now, because it empties the ring, are no ends.
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

        // A job that has ended after all keeps that end.
        let mut done = 0;
        while let Some((slot, ticket)) = self.oldest(done, u64::MAX) {
            done = ticket;
            let error = hung.filter(|hung| hung.0 == ticket).map(|hung| hung.1);

            if let Some(error) = error.or(result.err()) {
                Done::new(self, slot, ticket).signal(Err(error));
            }
        }

        // The driver may make up for a job that failed: jobs behind it, which rely on their order,
        // begin after that.
        while let Some((slot, result)) = self.take_ended() {
            self.finish(flight, slot, result);
        }

        // From the oldest on, as the hardware does jobs in their order.
        let last = flight.ticket;
        let mut done = 0;
        while let Some((slot, ticket)) = self.oldest(done, last) {
            done = ticket;
            self.run_again(flight, slot);
        }
        flight.since = Instant::now();
    }

    /// See [`State::take_ended`](super::arbiter::State::take_ended).
    fn take_ended(&self) -> Option<(usize, Result)> {
        self.state.lock().take_ended()
    }

    /// Returns the oldest job in the hardware whose run is after `done`, and not after `last`.
    fn oldest(&self, done: u64, last: u64) -> Option<(usize, u64)> {
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

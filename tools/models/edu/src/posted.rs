// SPDX-License-Identifier: GPL-2.0

//! Writes to the bus that are on their way when the transfer is over already.
//!
//! On PCI a device does not see when a posted write arrives. It only knows that the write arrives
//! before the answer to a later read of the device, so a driver has to read a register.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Instant;

use vfio_user::port::Epoch;

/// A write that is on its way.
pub struct Write {
    pub channel: usize,
    pub address: u64,
    pub bytes: Vec<u8>,
    pub epoch: Epoch,
    /// When it arrives, unless it is pushed earlier.
    pub due: Instant,
}

/// The writes that are on their way, in order.
#[derive(Default)]
pub struct Posted(Mutex<VecDeque<Write>>);

impl Posted {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Write>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, write: Write) {
        self.lock().push_back(write);
    }

    /// Lets writes arrive, in order: all of them, or those that are due. Another call waits
    /// meanwhile, so none is still on its way when this returns. Returns how many have arrived.
    pub fn arrive(&self, now: Option<Instant>, mut write: impl FnMut(&Write)) -> u64 {
        let mut writes = self.lock();
        let mut count = 0;
        while writes
            .front()
            .is_some_and(|first| now.is_none_or(|now| first.due <= now))
        {
            if let Some(first) = writes.pop_front() {
                write(&first);
                count += 1;
            }
        }
        count
    }

    /// Drops all of them.
    pub fn clear(&self) {
        self.lock().clear();
    }
}

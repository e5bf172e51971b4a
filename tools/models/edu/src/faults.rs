// SPDX-License-Identifier: GPL-2.0

//! Errors that a test has asked for.

use std::time::Duration;

use crate::registers::inject;

/// An error of some of the next events.
#[derive(Default)]
struct Armed {
    /// How many events are left as they are before that.
    skip: u64,
    count: u64,
}

impl Armed {
    /// Whether the event that happens now is one of these.
    fn hits(&mut self) -> bool {
        if self.count == 0 {
            return false;
        }
        let hit = self.skip == 0;
        match hit {
            true => self.count -= 1,
            false => self.skip -= 1,
        }
        hit
    }
}

/// How long a transfer hangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hang {
    #[default]
    No,
    /// Until the driver stops it.
    Stoppable,
    /// Until a reset, or until the test takes all errors back.
    Stuck,
}

/// The content of the internal buffer after a read of the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    Bytes,
    /// That of before.
    Dropped,
    Ones,
}

/// All of them.
#[derive(Default)]
pub struct Faults {
    /// How long a transfer takes at least.
    pub delay: Duration,
    /// How long writes may stay in the device, if they do.
    pub post: Option<Duration>,
    hang: Armed,
    stuck: Armed,
    interrupt: Armed,
    write: Armed,
    read: Armed,
    ones: Armed,
    /// How many have happened.
    pub happened: u64,
}

impl Faults {
    /// Arms an error, as INJECT has it.
    pub fn arm(&mut self, what: u64, skip: u64, argument: u64) {
        let armed = match what {
            inject::HANG => &mut self.hang,
            inject::STUCK => &mut self.stuck,
            inject::LOSE_INTERRUPT => &mut self.interrupt,
            inject::DROP_WRITE => &mut self.write,
            inject::DROP_READ => &mut self.read,
            inject::ONES => &mut self.ones,
            inject::POST => {
                self.post = Some(Duration::from_millis(argument)).filter(|time| !time.is_zero());
                return;
            }
            _ => return,
        };
        *armed = Armed {
            skip,
            count: argument.max(1),
        };
    }

    /// Takes back all errors that have not happened yet. The delay stays.
    pub fn disarm(&mut self) {
        *self = Self {
            delay: self.delay,
            happened: self.happened,
            ..Self::default()
        };
    }

    fn counted(&mut self, hit: bool) -> bool {
        self.happened += u64::from(hit);
        hit
    }

    /// Whether the transfer that begins now hangs.
    pub fn hangs(&mut self) -> Hang {
        let hang = match (self.hang.hits(), self.stuck.hits()) {
            (_, true) => Hang::Stuck,
            (true, false) => Hang::Stoppable,
            (false, false) => Hang::No,
        };
        self.counted(hang != Hang::No);
        hang
    }

    /// Whether the interrupt of this transfer is lost.
    pub fn loses_interrupt(&mut self) -> bool {
        let hit = self.interrupt.hits();
        self.counted(hit)
    }

    /// Whether this write to the bus is dropped.
    pub fn drops_write(&mut self) -> bool {
        let hit = self.write.hits();
        self.counted(hit)
    }

    /// What this read of the bus gets.
    pub fn read(&mut self) -> Read {
        let read = match (self.read.hits(), self.ones.hits()) {
            (true, _) => Read::Dropped,
            (false, true) => Read::Ones,
            (false, false) => Read::Bytes,
        };
        self.counted(read != Read::Bytes);
        read
    }
}

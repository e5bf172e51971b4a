// SPDX-License-Identifier: GPL-2.0

//! Counts the rules that a driver has broken, and writes a line for each.

use std::fmt;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use crate::port::Port;
use crate::port::Refused;

/// The maximum number of lines in the log; further reports are only counted.
const LINES: u32 = 50;

/// An access to the bus that the device should not have had to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forbidden {
    pub refused: Refused,
    pub write: bool,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.write { "write to" } else { "read of" };
        match self.refused {
            Refused::Unmapped { address } => {
                write!(f, "{verb} {address:#x}, which is not mapped for DMA")
            }
            Refused::NoMaster { address } => {
                write!(f, "{verb} {address:#x} with bus mastering off")
            }
            Refused::Reset => write!(f, "{verb} the bus after a reset"),
        }
    }
}

#[derive(Default)]
struct Counts {
    reports: u32,
    /// How many of the next reports are expected.
    expected: u32,
    lines: u32,
}

/// The reports of a device.
#[derive(Default)]
pub struct Reports(Mutex<Counts>);

impl Reports {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there were since the device was plugged in.
    pub fn count(&self) -> u32 {
        self.lock().reports
    }

    /// Begins again.
    pub fn clear(&self) {
        *self.lock() = Counts::default();
    }

    /// The next reports are expected, so many of them.
    pub fn expect(&self, count: u32) {
        self.lock().expected = count;
    }

    /// Reports a broken rule.
    pub fn report(&self, port: &Port, by: &dyn fmt::Display, broken: &dyn fmt::Display) {
        let mut counts = self.lock();
        counts.reports = counts.reports.saturating_add(1);
        if counts.expected > 0 {
            counts.expected -= 1;
            return;
        }
        counts.lines += 1;
        match counts.lines {
            ..=LINES => port.log(&format!("{by}: {broken}")),
            line if line == LINES + 1 => port.log("more reports are counted, and not printed"),
            _ => (),
        }
    }
}

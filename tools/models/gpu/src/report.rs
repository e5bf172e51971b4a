// SPDX-License-Identifier: GPL-2.0

//! Counts the rules that were broken, and writes a line for each.

use std::fmt;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use vfio_user::port::Port;
use vfio_user::port::Refused;

/// The maximum number of lines in the log; further reports are only counted.
const LINES: u32 = 50;

/// A rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The device accessed a bus address that is not mapped for DMA, or without bus mastering.
    Dma { refused: Refused, write: bool },
    /// A translation was used after its entry changed.
    Stale { context: u32, address: u64 },
    /// A page of the aperture that is not mapped was written to.
    Damaged { page: u64 },
    /// The tables of the aperture have an entry that is not allowed.
    Aperture { address: u64, entry: u64 },
    /// A page of VRAM is at two places in the aperture.
    Twice { vram: u64, page: u64, other: u64 },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dma { refused, write } => {
                let verb = if *write { "write to" } else { "read of" };
                match refused {
                    Refused::Unmapped { address } => {
                        write!(f, "{verb} {address:#x}, which is not mapped for DMA")
                    }
                    Refused::NoMaster { address } => {
                        write!(f, "{verb} {address:#x} with bus mastering off")
                    }
                    Refused::Reset => write!(f, "{verb} the bus after a reset"),
                }
            }
            Self::Stale { context, address } => write!(
                f,
                "{address:#x} of context {context} changed without INVALIDATE"
            ),
            Self::Damaged { page } => write!(
                f,
                "the aperture was written to at {page:#x}, where nothing is mapped"
            ),
            Self::Aperture { address, entry } => write!(
                f,
                "the aperture's entry of {address:#x} may not be {entry:#x}"
            ),
            Self::Twice { vram, page, other } => write!(
                f,
                "VRAM at {vram:#x} is in the aperture at {other:#x}, and at {page:#x} as well"
            ),
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
    pub fn report(&self, port: &Port, by: &dyn fmt::Display, broken: Broken) {
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

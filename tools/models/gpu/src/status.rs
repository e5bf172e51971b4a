// SPDX-License-Identifier: GPL-2.0

//! The status page, which the device writes.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::sync::Mutex;
use std::sync::PoisonError;

use crate::bus::Bus;
use crate::bus::Fault;
use crate::bus::Stop;
use crate::pages::Place;
use crate::registers::status;

/// The counters that the device writes to the status page.
#[derive(Default)]
pub struct Status {
    /// The number of fault records that were written. A reset of the count must not wait for DMA.
    faults: AtomicU32,
    /// Held while a record is written, since both rings may fault at once.
    writing: Mutex<()>,
}

/// The part of a fault record about the entry.
#[derive(Clone, Copy)]
pub struct Culprit {
    pub ring: usize,
    pub entry: u32,
    pub context: u32,
}

/// The offset of a ring's part of the page.
fn of_ring(ring: usize, field: u64) -> u64 {
    status::RING_STRIDE * ring as u64 + field
}

/// Writes to the page as the ring writes, which may be late.
fn write(bus: Bus<'_>, offset: u64, data: &[u8]) -> Result<(), Stop> {
    write_by(bus, offset, |place| bus.write(place, data))
}

/// Writes to the page at once.
fn put(bus: Bus<'_>, offset: u64, data: &[u8]) -> Result<(), Stop> {
    write_by(bus, offset, |place| bus.put(place, data))
}

/// Writes to the page, if there is one. If the page is not mapped for DMA, the access is reported
/// and the write is dropped.
fn write_by(
    bus: Bus<'_>,
    offset: u64,
    write: impl FnOnce(Place) -> Result<(), Stop>,
) -> Result<(), Stop> {
    match bus.gpu.status_page() {
        0 => Ok(()),
        page => match write(Place::Bus(page.wrapping_add(offset))) {
            Err(Stop::Reset) => Err(Stop::Reset),
            _ => Ok(()),
        },
    }
}

/// Writes the value of a fence, at once.
pub fn fence(bus: Bus<'_>, ring: usize, value: u64) -> Result<(), Stop> {
    put(bus, of_ring(ring, status::FENCE), &value.to_le_bytes())
}

/// Writes the number of entries that are done.
pub fn done(bus: Bus<'_>, ring: usize, entries: u32) -> Result<(), Stop> {
    write(bus, of_ring(ring, status::DONE), &entries.to_le_bytes())
}

/// Writes the state after a reset of a ring: no entries, no error, and the number of resets.
pub fn reset(bus: Bus<'_>, ring: usize, resets: u32) -> Result<(), Stop> {
    put(bus, of_ring(ring, status::DONE), &[0; 8])?;
    put(bus, of_ring(ring, status::RESETS), &resets.to_le_bytes())
}

/// Writes the number of an INVALIDATE that is done.
pub fn invalidated(bus: Bus<'_>, number: u32) -> Result<(), Stop> {
    put(bus, status::INVALIDATED, &number.to_le_bytes())
}

impl Status {
    /// Writes a fault record, the number of those, and then the error of the ring: at once, since a
    /// late number could come behind that of the other ring.
    pub fn fault(&self, bus: Bus<'_>, culprit: Culprit, fault: Fault) -> Result<(), Stop> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.faults.fetch_add(1, Ordering::SeqCst);
        let mut record = Vec::with_capacity(status::RECORD_BYTES as usize);
        record.extend(culprit.context.to_le_bytes());
        record.extend((culprit.ring as u32).to_le_bytes());
        record.extend(fault.address.to_le_bytes());
        for field in [fault.write.into(), fault.error, culprit.entry, 0] {
            record.extend(field.to_le_bytes());
        }
        let slot = u64::from(number % status::RECORD_COUNT);
        put(bus, status::RECORDS + slot * status::RECORD_BYTES, &record)?;
        put(bus, status::FAULTS, &number.wrapping_add(1).to_le_bytes())?;
        let error = fault.error.to_le_bytes();
        put(bus, of_ring(culprit.ring, status::ERROR), &error)
    }

    /// Begins to count again.
    pub fn clear(&self) {
        self.faults.store(0, Ordering::SeqCst);
    }
}

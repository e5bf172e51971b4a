// SPDX-License-Identifier: GPL-2.0

//! The modelled edu: how long its transfers take, and what goes wrong with them.
//!
//! `tools/models/edu/registers.rst` describes the registers, which QEMU's edu does not have.

use std::time::Duration;

use crate::map::{Map, PAGE64};
use crate::pci::PciDevice;
use crate::Stop;

/// The end of these registers, and the registers as words of the BAR.
const END: u64 = 0x3000;
const EXTENSION: usize = 0x1000 / 8;
const TEST: usize = 0x2000 / 8;
const DELAY: usize = TEST;
const INJECT: usize = TEST + 1;
const FINISHED: usize = TEST + 2;
const FAULTS: usize = TEST + 3;
const FLUSHED: usize = TEST + 4;
const LATE: usize = TEST + 5;
const MOST: usize = TEST + 6;
const REPORTS: usize = TEST + 7;
/// "EDUX", in the lower half of the first word.
const MAGIC: u32 = 0x5855_4445;

/// How long a transfer of at most a page takes QEMU's edu.
pub const NOMINAL: Duration = Duration::from_millis(100);

/// An error of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Transfers do not finish before they are stopped.
    Hang = 1,
    /// Nor then, but when the errors are taken back.
    Stuck = 2,
    /// The bytes of writes to the bus are lost.
    NoWrite = 4,
    /// Reads of the bus leave the internal buffer as it was.
    NoRead = 5,
    /// Reads of the bus return ones.
    Ones = 6,
    /// From now on, writes to the bus arrive so many ms after the transfer, or when a register of
    /// the device is read.
    Post = 7,
    /// So many accesses to addresses that are not mapped are no failure of the boot.
    Reports = 9,
}

/// The modelled edu. When it is dropped, its transfers take no time again, and errors are taken
/// back.
#[derive(Debug)]
pub struct Edu(Option<Map>);

impl Edu {
    /// The peer, if it is the modelled one.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is no peer, or any error of sysfs.
    #[track_caller]
    pub fn find() -> Result<Option<Self>, Stop> {
        let map = PciDevice::edu()?.map_bar(0, 0, END.next_multiple_of(PAGE64))?;
        if map.read(EXTENSION) as u32 == MAGIC {
            return Ok(Some(Self(Some(map))));
        }
        Ok(None)
    }

    /// The peer, which has to be the modelled one.
    #[track_caller]
    pub fn open() -> Result<Self, Stop> {
        match Self::find()? {
            Some(edu) => Ok(edu),
            None => Err(Stop::fail("the peer is not the modelled edu")),
        }
    }

    fn read(&self, register: usize) -> u64 {
        self.0.as_ref().map_or(0, |map| map.read(register))
    }

    fn write(&self, register: usize, value: u64) {
        if let Some(map) = &self.0 {
            map.write(register, value);
        }
    }

    /// How many transfers it does at the same time.
    pub fn channels(&self) -> u64 {
        self.read(EXTENSION) >> 32 & 0xff
    }

    /// Lets each transfer take so long.
    pub fn delay(&self, time: Duration) {
        self.write(DELAY, time.as_micros() as u64);
    }

    /// Requests an error of the next `count` events that it may happen to, after `skip` others.
    pub fn inject(&self, error: Error, skip: u16, count: u32) {
        let word = u64::from(count) << 32 | u64::from(skip) << 16 | error as u64;
        self.write(INJECT, word);
    }

    /// Takes errors back. Transfers that hang end.
    pub fn forgive(&self) {
        self.write(INJECT, 0);
    }

    /// How many transfers were finished.
    pub fn finished(&self) -> u64 {
        self.read(FINISHED)
    }

    /// How many of the requested errors have happened.
    pub fn faults(&self) -> u64 {
        self.read(FAULTS)
    }

    /// How many posted writes have arrived because a register was read, and how many by
    /// themselves.
    pub fn posted(&self) -> (u64, u64) {
        (self.read(FLUSHED), self.read(LATE))
    }

    /// The maximum number of transfers at the same time since the last call.
    pub fn most(&self) -> u64 {
        let most = self.read(MOST);
        self.write(MOST, 0);
        most
    }

    /// How many accesses to addresses that are not mapped there were.
    pub fn reports(&self) -> u64 {
        self.read(REPORTS)
    }

    /// Leaves all as it is. A device that is unplugged forgets it, and cannot be told any more.
    pub fn leave(mut self) {
        self.0 = None;
    }
}

impl Drop for Edu {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.delay(Duration::ZERO);
            self.forgive();
        }
    }
}

/// Whether the peer is the modelled edu.
///
/// # Errors
///
/// As for [`Edu::find`].
#[track_caller]
pub fn is_modelled() -> Result<bool, Stop> {
    let edu = Edu::find()?;
    Ok(edu.map(Edu::leave).is_some())
}

/// Lets transfers take as long as those of QEMU's edu, so that a test meets one, until the result
/// is dropped. QEMU's edu itself stays as it is.
///
/// # Errors
///
/// As for [`Edu::find`].
#[track_caller]
pub fn slow() -> Result<Option<Edu>, Stop> {
    slow_by(NOMINAL)
}

/// As [`slow`], with another time.
///
/// # Errors
///
/// As for [`Edu::find`].
#[track_caller]
pub fn slow_by(time: Duration) -> Result<Option<Edu>, Stop> {
    let edu = Edu::find()?;
    if let Some(edu) = &edu {
        edu.delay(time);
    }
    Ok(edu)
}

// SPDX-License-Identifier: GPL-2.0

//! Accesses of the engines to the bus and to VRAM, with a report and a fault for forbidden ones.

use std::fmt;

use vfio_user::port::Dma;
use vfio_user::port::Refused;
use vfio_user::report::Forbidden;

use crate::device::Gpu;
use crate::pages::Place;
use crate::registers::error;
use crate::report::Broken;

/// The reason why an entry was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The ring or the device is to be reset.
    Reset,
    Fault(Fault),
}

/// The part of a fault record about the fault, without the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub error: u32,
    pub address: u64,
    pub write: bool,
}

impl Fault {
    /// An operation that the ring does not have, or a field that is not allowed.
    pub const OPERATION: Stop = Stop::Fault(Self {
        error: error::OPERATION,
        address: 0,
        write: false,
    });

    /// The fault of an access to an address.
    pub fn at(error: u32, address: u64, write: bool) -> Stop {
        Stop::Fault(Self {
            error,
            address,
            write,
        })
    }
}

/// The part of the device that accesses the bus, for the log.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    Ring { ring: usize, entry: u32 },
    Aperture,
    Status,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring { ring, entry } => write!(f, "ring {ring}, entry {entry}"),
            Self::Aperture => f.write_str("aperture"),
            Self::Status => f.write_str("status page"),
        }
    }
}

/// Access to the bus and to VRAM by a part of the device.
#[derive(Clone, Copy)]
pub struct Bus<'a> {
    pub gpu: &'a Gpu,
    pub dma: Dma<'a>,
    pub who: Who,
}

impl Bus<'_> {
    /// The result of an access to the bus; a forbidden access is reported.
    fn checked<R>(&self, result: Result<R, Refused>, write: bool) -> Result<R, Stop> {
        result.map_err(|refused| match refused {
            Refused::Reset => Stop::Reset,
            Refused::Unmapped { address } | Refused::NoMaster { address } => {
                self.report(Broken::Dma(Forbidden { refused, write }));
                Fault::at(error::DMA, address, write)
            }
        })
    }

    /// Whether the device is being reset, or was since the access to the bus began.
    pub fn is_reset(&self) -> bool {
        let resetting = self.gpu.rings.iter().any(|ring| ring.is_resetting().1);
        resetting || self.dma.is_over()
    }

    /// Reports that a rule was broken.
    pub fn report(&self, broken: Broken) {
        self.gpu.reports.report(&self.gpu.port, &self.who, &broken);
    }

    fn in_vram(&self, offset: u64, bytes: usize, write: bool) -> Result<(), Stop> {
        match self.gpu.vram.holds(offset, bytes as u64) {
            true => Ok(()),
            false => Err(Fault::at(error::OUTSIDE, offset, write)),
        }
    }

    /// Reads from a place, behind earlier writes of the ring to the same target.
    pub fn read(&self, from: Place, to: &mut [u8]) -> Result<(), Stop> {
        self.push(from, to.len());
        match from {
            Place::Bus(address) => self.checked(self.dma.read(address, to), false),
            Place::Vram(offset) => {
                self.in_vram(offset, to.len(), false)?;
                self.gpu.vram.read(offset, to);
                Ok(())
            }
        }
    }

    /// Writes to a place, at some time before a [`Bus::flush`].
    pub fn write(&self, to: Place, from: &[u8]) -> Result<(), Stop> {
        match self.post(to, from) {
            true => Ok(()),
            false => self.put(to, from),
        }
    }

    /// Writes to a place at once.
    pub fn put(&self, to: Place, from: &[u8]) -> Result<(), Stop> {
        match to {
            Place::Bus(address) => self.checked(self.dma.write(address, from), true),
            Place::Vram(offset) => {
                self.in_vram(offset, from.len(), true)?;
                self.gpu.vram.write(offset, from);
                Ok(())
            }
        }
    }

    /// Clears a range of VRAM.
    pub fn clear(&self, offset: u64, bytes: usize) -> Result<(), Stop> {
        self.push(Place::Vram(offset), bytes);
        self.in_vram(offset, bytes, true)?;
        self.gpu.vram.clear(offset, bytes as u64);
        Ok(())
    }

    /// Reads an aligned word in one piece, behind earlier writes as [`Bus::read`].
    pub fn load(&self, from: Place) -> Result<u64, Stop> {
        self.push(from, 8);
        match from {
            Place::Bus(address) => self.checked(self.dma.load(address), false),
            Place::Vram(offset) => {
                self.in_vram(offset, 8, false)?;
                Ok(self.gpu.vram.load(offset))
            }
        }
    }

    /// Writes an aligned word in one piece, behind all earlier writes of the ring.
    pub fn store(&self, to: Place, value: u64) -> Result<(), Stop> {
        self.flush();
        match to {
            Place::Bus(address) => self.checked(self.dma.store(address, value), true),
            Place::Vram(offset) => {
                self.in_vram(offset, 8, true)?;
                self.gpu.vram.store(offset, value);
                Ok(())
            }
        }
    }

    /// Adds to an aligned word, behind earlier writes as [`Bus::read`].
    pub fn add(&self, to: Place, addend: u64) -> Result<(), Stop> {
        self.push(to, 8);
        match to {
            Place::Bus(address) => self.checked(self.dma.add(address, addend), true),
            Place::Vram(offset) => {
                self.in_vram(offset, 8, true)?;
                self.gpu.vram.add(offset, addend);
                Ok(())
            }
        }
    }
}

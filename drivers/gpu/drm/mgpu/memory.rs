// SPDX-License-Identifier: GPL-2.0

//! The memory that the driver and the device share.
//!
//! It is coherent memory of 64-bit words. Devres frees it when the PCI driver is unbound, so the
//! device must be reset before that.

use kernel::{
    alloc::Flags,
    device::{
        Bound,
        Device, //
    },
    devres::Devres,
    dma::Coherent,
    io::{
        io_read,
        io_write, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::barrier, //
};

use crate::regs::RINGS;

/// How many words of 64 bits a page has.
pub(crate) const WORDS: usize = PAGE_SIZE / 8;

/// An array of words.
pub(crate) struct Words {
    memory: Devres<Coherent<[u64]>>,
    address: u64,
}

impl Words {
    /// Makes `len` words of zero.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(dev: &Device<Bound>, len: usize) -> Result<Self> {
        Self::with_flags(dev, len, GFP_KERNEL)
    }

    /// As [`Self::new`], with flags of the allocation.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn with_flags(dev: &Device<Bound>, len: usize, flags: Flags) -> Result<Self> {
        let memory = Coherent::zeroed_slice(dev, len, flags)?;

        Ok(Self {
            address: memory.dma_address(),
            memory: Devres::new(dev, Ok::<_, Error>(memory))?,
        })
    }

    /// Returns the bus address of word `index`.
    pub(crate) fn address(&self, index: usize) -> u64 {
        // OVERFLOW: Inside of the memory.
        self.address + 8 * index as u64
    }

    /// Reads a word.
    ///
    /// # Errors
    ///
    /// `ENODEV` after the driver was unbound, `ERANGE` if there is no such word.
    pub(crate) fn read(&self, index: usize) -> Result<u64> {
        let memory = self.memory.try_access().ok_or(ENODEV)?;
        let words: &Coherent<[u64]> = &memory;

        Ok(u64::from_le(io_read!(words, [try: index])))
    }

    /// Writes words that follow each other.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::read`]; some words may have been written then.
    pub(crate) fn write(&self, first: usize, values: impl IntoIterator<Item = u64>) -> Result {
        let memory = self.memory.try_access().ok_or(ENODEV)?;
        let words: &Coherent<[u64]> = &memory;

        for (index, value) in (first..).zip(values) {
            io_write!(words, [try: index], value.to_le());
        }
        Ok(())
    }
}

/// How many records of faults the status page has.
const RECORDS: u64 = 16;

/// The page that the device writes to.
pub(crate) struct Status(Words);

/// An access of an engine that has failed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fault {
    pub(crate) address: u64,
    pub(crate) is_write: bool,
    /// The address is one of the address space of the job. Else it is one of the bus, or of VRAM.
    pub(crate) is_virtual: bool,
}

/// Nothing is mapped at a virtual address, or a page that is read-only.
const FAULTS_OF_ADDRESSES: core::ops::RangeInclusive<u32> = 2..=3;

/// The part of the status page that is about one ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingStatus {
    /// The value of the last fence that was reached.
    pub(crate) fence: u64,
    /// How many entries are done since the last reset, modulo 2^32.
    pub(crate) done: u32,
    /// Why the ring has stopped, or 0.
    pub(crate) error: u32,
}

impl Status {
    pub(crate) fn new(dev: &Device<Bound>) -> Result<Self> {
        Ok(Self(Words::new(dev, WORDS)?))
    }

    /// Returns its bus address.
    pub(crate) fn address(&self) -> u64 {
        self.0.address(0)
    }

    /// Reads the status of a ring.
    ///
    /// # Errors
    ///
    /// `ENODEV` after the driver was unbound.
    pub(crate) fn ring(&self, ring: usize) -> Result<RingStatus> {
        let first = ring * 8;

        // The error is read first, so that the fence covers all submissions that were done before
        // the ring stopped.
        let state = self.0.read(first + 1)?;
        barrier::dma_mb(barrier::Read);
        let fence = self.0.read(first)?;
        // Data that the device wrote before the fence is read after it.
        barrier::dma_mb(barrier::Read);
        Ok(RingStatus {
            fence,
            // CAST: The lower half of a word.
            done: state as u32,
            // CAST: The upper half of a word.
            error: (state >> 32) as u32,
        })
    }

    /// Clears the errors and the counters. After a reset the device counts from zero again, but it
    /// does not write that to the status page. The values of fences are kept.
    ///
    /// # Errors
    ///
    /// `ENODEV` after the driver was unbound.
    pub(crate) fn restart(&self) -> Result {
        for ring in 0..RINGS {
            self.0.write(ring * 8 + 1, [0, 0])?;
        }
        self.0.write(0x800 / 8, [0])
    }

    /// Returns a word, for a dump.
    ///
    /// # Errors
    ///
    /// The errors of [`Words::read`].
    pub(crate) fn word(&self, index: usize) -> Result<u64> {
        self.0.read(index)
    }

    /// Returns the number of the last invalidation that is done.
    ///
    /// # Errors
    ///
    /// `ENODEV` after the driver was unbound.
    pub(crate) fn invalidated(&self) -> Result<u32> {
        let number = self.0.read(0x800 / 8)?;

        barrier::dma_mb(barrier::Read);
        // CAST: The lower half of a word.
        Ok(number as u32)
    }

    /// Returns the last fault of a ring, if there is a record of it.
    pub(crate) fn fault(&self, ring: usize) -> Result<Option<Fault>> {
        let count = self.0.read(0x800 / 8)? >> 32;

        // The device writes a record before it counts it.
        barrier::dma_mb(barrier::Read);
        for number in (count.saturating_sub(RECORDS)..count).rev() {
            let first = 0x900 / 8 + (number % RECORDS) as usize * 4;

            if self.0.read(first)? >> 32 == ring as u64 {
                let word = self.0.read(first + 2)?;
                // CAST: The halves of a word.
                let (access, error) = (word as u32, (word >> 32) as u32);

                return Ok(Some(Fault {
                    address: self.0.read(first + 1)?,
                    is_write: access != 0,
                    is_virtual: FAULTS_OF_ADDRESSES.contains(&error),
                }));
            }
        }
        Ok(None)
    }
}

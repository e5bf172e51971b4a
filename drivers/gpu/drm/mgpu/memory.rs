// SPDX-License-Identifier: GPL-2.0

//! The memory shared by the driver and the device.
//!
//! It is coherent memory of 64-bit words. Devres frees it when the PCI driver is unbound, so the
//! device must be reset before.

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

/// The number of 64-bit words in a page.
pub(crate) const WORDS: usize = PAGE_SIZE / 8;

/// An array of words.
pub(crate) struct Words {
    memory: Devres<Coherent<[u64]>>,
    address: u64,
}

impl Words {
    /// Creates `len` words of zero.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(dev: &Device<Bound>, len: usize) -> Result<Self> {
        Self::with_flags(dev, len, GFP_KERNEL)
    }

    /// Like [`Self::new`] but with flags of the allocation.
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
    /// `ENODEV` after the driver was unbound. `ERANGE` if there is no such word.
    pub(crate) fn read(&self, index: usize) -> Result<u64> {
        let memory = self.memory.try_access().ok_or(ENODEV)?;
        let words: &Coherent<[u64]> = &memory;

        Ok(u64::from_le(io_read!(words, [try: index])))
    }

    /// Writes consecutive words.
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

/// The number of fault records in the status page.
const RECORDS: u64 = 16;

/// The page written by the device.
pub(crate) struct Status(Words);

/// A failed access of an engine.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fault {
    pub(crate) address: u64,
    pub(crate) is_write: bool,
    /// The address is one of the address space of the job. Otherwise it is one of the bus or of
    /// VRAM.
    pub(crate) is_virtual: bool,
}

/// The errors of virtual addresses: nothing is mapped or the page is read-only.
const FAULTS_OF_ADDRESSES: core::ops::RangeInclusive<u32> = 2..=3;

/// The part of the status page for one ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingStatus {
    /// The value of the last fence reached.
    pub(crate) fence: u64,
    /// The number of entries done since the last reset, modulo 2^32.
    pub(crate) done: u32,
    /// The reason for a stop of the ring, or 0.
    pub(crate) error: u32,
}

impl Status {
    pub(crate) fn new(dev: &Device<Bound>) -> Result<Self> {
        Ok(Self(Words::new(dev, WORDS)?))
    }

    /// Returns the bus address of the page.
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

        // The error is read first, so the fence covers all submissions done before the ring
        // stopped.
        let state = self.0.read(first + 1)?;
        barrier::dma_mb(barrier::Read);
        let fence = self.0.read(first)?;
        // Data written by the device before the fence is read after the fence.
        barrier::dma_mb(barrier::Read);
        Ok(RingStatus {
            fence,
            // CAST: The lower half of a word.
            done: state as u32,
            // CAST: The upper half of a word.
            error: (state >> 32) as u32,
        })
    }

    /// Clears the errors and the counters. After a reset the device counts from zero again but does
    /// not write this to the status page. The values of fences are kept.
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

    /// Returns a word for a dump.
    ///
    /// # Errors
    ///
    /// The errors of [`Words::read`].
    pub(crate) fn word(&self, index: usize) -> Result<u64> {
        self.0.read(index)
    }

    /// Returns the number of the last completed invalidation.
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

    /// Returns the last fault of a ring if there is a record of it.
    pub(crate) fn fault(&self, ring: usize) -> Result<Option<Fault>> {
        let count = self.0.read(0x800 / 8)? >> 32;

        // The device writes a record before it counts the record.
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

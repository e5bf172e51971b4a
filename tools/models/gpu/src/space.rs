// SPDX-License-Identifier: GPL-2.0

//! Virtual addresses of a context.

use crate::bus::Bus;
use crate::bus::Fault;
use crate::bus::Stop;
use crate::pages;
use crate::pages::Leaf;
use crate::pages::Place;
use crate::registers::error;
use crate::report::Broken;

/// The addresses of a context, as a ring accesses them.
#[derive(Clone, Copy)]
pub struct Space<'a> {
    pub bus: Bus<'a>,
    pub context: u32,
}

impl Space<'_> {
    /// The translation of an address, from the kept ones or from the tables.
    fn translate(&self, address: u64, write: bool) -> Result<Leaf, Stop> {
        let gpu = self.bus.gpu;
        let leaf = match gpu.tlb.find(self.context, address) {
            Some(leaf) => {
                self.compare(address, leaf);
                leaf
            }
            None => {
                let leaf = match self.root()? {
                    Some(root) => pages::walk(root, address, |at| self.bus.load(Place::Bus(at)))?,
                    None => None,
                };
                let leaf = leaf.ok_or(Fault::at(error::NOT_MAPPED, address, write))?;
                gpu.tlb.keep(self.context, leaf);
                leaf
            }
        };
        match write && leaf.read_only {
            true => Err(Fault::at(error::READ_ONLY, address, write)),
            false => Ok(leaf),
        }
    }

    /// The root of the context's tables.
    fn root(&self) -> Result<Option<u64>, Stop> {
        match self.bus.gpu.context_table() {
            0 => Ok(None),
            table => {
                let at = table.wrapping_add(8 * u64::from(self.context));
                Ok(Some(self.bus.load(Place::Bus(at))?).filter(|&root| root != 0))
            }
        }
    }

    /// Reports a translation that is used although its entry is another one by now.
    fn compare(&self, address: u64, leaf: Leaf) {
        let gpu = self.bus.gpu;
        let peek = |at| self.bus.dma.peek(at).ok_or(());
        let now = match gpu.context_table() {
            0 => Ok(None),
            table => match peek(table.wrapping_add(8 * u64::from(self.context))) {
                Ok(0) => Ok(None),
                Ok(root) => pages::walk(root, address, peek),
                Err(()) => Err(()),
            },
        };
        // A pending invalidation counts as done. While the device is reset or loses its client,
        // there are no tables to compare with: no translation outlives that. The reset of a ring
        // alone keeps translations, so the driver has to invalidate them nevertheless.
        if now != Ok(Some(leaf))
            && !gpu.control.will_invalidate(self.context, address)
            && !self.bus.is_reset()
            && gpu.tlb.tell(self.context, leaf)
        {
            self.bus.report(Broken::Stale {
                context: self.context,
                address,
            });
        }
    }

    /// Splits a range at pages, and calls a function with the place of each piece, and with its
    /// start and end in the range.
    fn each(
        &self,
        address: u64,
        bytes: usize,
        write: bool,
        mut f: impl FnMut(Place, usize, usize) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let mut done = 0;
        while done < bytes {
            let at = address.checked_add(done as u64).ok_or(Fault::at(
                error::NOT_MAPPED,
                address,
                write,
            ))?;
            let _used = self.bus.gpu.tlb.begin();
            let leaf = self.translate(at, write)?;
            let inside = at - leaf.start;
            let rest = usize::try_from(leaf.bytes - inside).unwrap_or(usize::MAX);
            let end = done + rest.min(bytes - done);
            // The record has the virtual address, which the driver knows.
            f(leaf.place.plus(inside), done, end).map_err(|stop| match stop {
                Stop::Fault(fault) => Fault::at(fault.error, at, write),
                Stop::Reset => stop,
            })?;
            done = end;
        }
        Ok(())
    }

    /// Reads from virtual addresses.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Stop> {
        self.each(address, to.len(), false, |place, begin, end| {
            self.bus.read(place, &mut to[begin..end])
        })
    }

    /// Writes to virtual addresses.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), Stop> {
        self.each(address, from.len(), true, |place, begin, end| {
            self.bus.write(place, &from[begin..end])
        })
    }

    /// Reads an aligned word in one piece.
    pub fn load(&self, address: u64) -> Result<u64, Stop> {
        let mut value = 0;
        self.each(address, 8, false, |place, _, _| {
            value = self.bus.load(place)?;
            Ok(())
        })?;
        Ok(value)
    }

    /// Writes an aligned word in one piece.
    pub fn store(&self, address: u64, value: u64) -> Result<(), Stop> {
        self.each(address, 8, true, |place, _, _| self.bus.store(place, value))
    }

    /// Adds to an aligned word.
    pub fn add(&self, address: u64, addend: u64) -> Result<(), Stop> {
        self.each(address, 8, true, |place, _, _| self.bus.add(place, addend))
    }
}

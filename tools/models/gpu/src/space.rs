// SPDX-License-Identifier: GPL-2.0

//! Virtual addresses of a context.

use crate::bus::Bus;
use crate::bus::Fault;
use crate::bus::Stop;
use crate::pages;
use crate::pages::Place;
use crate::pages::Says;
use crate::pages::Step;
use crate::registers::error;
use crate::registers::lie;
use crate::registers::APERTURE_CONTEXT;
use crate::report::Broken;

/// The addresses of a context, as a ring accesses them.
#[derive(Clone, Copy)]
pub struct Space<'a> {
    pub bus: Bus<'a>,
    pub context: u32,
}

impl Space<'_> {
    /// The translation of an address, from the kept ones or from the tables: the place, and the
    /// number of bytes from there.
    fn translate(&self, address: u64, write: bool) -> Result<(Place, u64), Stop> {
        let from = match self.kept(address) {
            Some(step) => {
                self.compare(address, step);
                step
            }
            None => {
                let root = self.root()?;
                self.keep_root(root);
                root
            }
        };
        let load = |at| {
            let entry = self.bus.load(Place::Bus(at))?;
            if pages::has_reserved(entry) {
                self.bus.report(Broken::Reserved { at, entry });
            }
            Ok(entry)
        };
        let step = pages::walk(from, address, load, |step, at| self.keep(step, at))?;
        match step.says {
            Says::Page {
                read_only: true, ..
            } if write => Err(Fault::at(error::READ_ONLY, address, write)),
            Says::Page { place, .. } => {
                let inside = address - step.start;
                Ok((place.plus(inside), step.bytes - inside))
            }
            _ => Err(Fault::at(error::NOT_MAPPED, address, write)),
        }
    }

    /// What is kept for an address.
    fn kept(&self, address: u64) -> Option<Step> {
        let gpu = self.bus.gpu;
        let step = gpu.tlb.find(self.context, address)?;
        if self.bus.lies(lie::DROPPED, 16) {
            gpu.tlb.drop(self.context, step);
            return None;
        }
        match (&gpu.chaos, step.says) {
            (None, _) | (_, Says::Page { .. }) => (),
            (Some(chaos), Says::Table(_)) => chaos.tell(lie::TABLE),
            (Some(chaos), _) => chaos.tell(lie::NOT_MAPPED),
        }
        Some(step)
    }

    /// Keeps the root of the context with chaos, which may also keep those beside it.
    fn keep_root(&self, root: Step) {
        let gpu = self.bus.gpu;
        if gpu.chaos.is_none() {
            return;
        }
        gpu.tlb.keep(self.context, root);
        let table = gpu.context_table();
        if table == 0 || !self.bus.draws(2) {
            return;
        }
        // Nothing is kept of the tables of the aperture.
        let beside = (self.context & !7..).take(8);
        for context in beside.filter(|&context| context != APERTURE_CONTEXT) {
            let root = self.bus.dma.peek(table + 8 * u64::from(context));
            if let Some(root) = root.map(Step::root).filter(|root| root.says != Says::Wrong) {
                gpu.tlb.keep(context, root);
            }
        }
    }

    /// Keeps a step: a page, or any with chaos. With chaos this may also keep what is beside its
    /// entry.
    fn keep(&self, step: Step, at: u64) {
        let gpu = self.bus.gpu;
        if gpu.chaos.is_some() || matches!(step.says, Says::Page { .. }) {
            gpu.tlb.keep(self.context, step);
        }
        if !self.bus.draws(2) {
            return;
        }
        let first = step.start & !(8 * step.bytes - 1);
        for i in 0..8 {
            let entry = self.bus.dma.peek((at & !63) + 8 * i);
            let beside = entry.map(|entry| Step::new(first + i * step.bytes, step.bytes, entry));
            if let Some(step) = beside.filter(|step| step.says != Says::Wrong) {
                gpu.tlb.keep(self.context, step);
            }
        }
    }

    /// The root of the context's tables.
    pub fn root(&self) -> Result<Step, Stop> {
        match self.bus.gpu.context_table() {
            0 => Ok(Step::root(0)),
            table => {
                let at = table.wrapping_add(8 * u64::from(self.context));
                let entry = self.bus.load(Place::Bus(at))?;
                let root = Step::root(entry);
                if root.says == Says::Wrong {
                    self.bus.report(Broken::Reserved { at, entry });
                }
                Ok(root)
            }
        }
    }

    /// Reports a valid step that is kept and used although its entry is another one by now. One
    /// that maps nothing only faults.
    fn compare(&self, address: u64, kept: Step) {
        if kept.is_nothing() {
            return;
        }
        let gpu = self.bus.gpu;
        let peek = |at| self.bus.dma.peek(at).ok_or(());
        let root = match gpu.context_table() {
            0 => Ok(0),
            table => peek(table.wrapping_add(8 * u64::from(self.context))),
        };
        let is_same = root.and_then(|root| {
            let root = Step::root(root);
            let mut is_there = root == kept;
            pages::walk(root, address, peek, |step, _| is_there |= step == kept)?;
            Ok(is_there)
        });
        // A pending invalidation counts as done. While the device is reset or loses its client,
        // there are no tables to compare with: no translation outlives that. The reset of a ring
        // alone keeps translations, so the driver has to invalidate them nevertheless.
        if is_same != Ok(true)
            && !gpu.control.will_invalidate(self.context, address)
            && !self.bus.is_reset()
            && gpu.tlb.tell(self.context, kept)
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
            let (place, rest) = self.translate(at, write)?;
            let rest = usize::try_from(rest).unwrap_or(usize::MAX);
            let end = done + rest.min(bytes - done);
            // The record has the virtual address, which the driver knows.
            f(place, done, end).map_err(|stop| match stop {
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

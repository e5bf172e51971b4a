// SPDX-License-Identifier: GPL-2.0

//! The contexts of the device: the numbers of address spaces, and the addresses of the roots of
//! their page tables.
//!
//! Context 0 is the aperture. The number of an address space that has ended is used again once the
//! device has completed the invalidation of the old one.
//!
//! # Locking
//!
//! The mutex of the numbers is outside of the mutexes of the page tables.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

use crate::{
    invalidate::Invalidator,
    memory::{
        Words,
        WORDS, //
    },
    pagetable::PageTable, //
};

/// The context of the aperture.
pub(crate) const APERTURE: u32 = 0;

/// The state of a number.
enum Slot {
    /// No address space has it.
    Free,
    /// An address space has it.
    Used(Arc<PageTable>),
    /// It must not be used: it is that of the aperture, or the device may still have translations
    /// of an address space that has ended.
    Kept,
}

/// The contexts of a device.
#[pin_data]
pub(crate) struct Contexts {
    /// For each context the bus address of its root, or 0.
    roots: Words,
    invalidator: Arc<Invalidator>,
    /// How many page tables are allocated.
    tables: Atomic<usize>,
    #[pin]
    slots: Mutex<KVVec<Slot>>,
}

impl Contexts {
    /// Makes the table of contexts, in which no context has a page table.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(dev: &Device<Bound>, invalidator: Arc<Invalidator>) -> Result<Arc<Self>> {
        let roots = Words::new(dev, WORDS)?;
        let mut slots = KVVec::with_capacity(WORDS, GFP_KERNEL)?;

        slots.push(Slot::Kept, GFP_KERNEL)?;
        for _ in 1..WORDS {
            slots.push(Slot::Free, GFP_KERNEL)?;
        }
        Arc::pin_init(
            pin_init!(Self {
                roots,
                invalidator,
                tables: Atomic::new(0),
                slots <- new_mutex!(slots, "mgpu::Contexts"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the bus address of the table.
    pub(crate) fn address(&self) -> u64 {
        self.roots.address(0)
    }

    /// Returns the invalidator of the device.
    pub(crate) fn invalidator(&self) -> &Arc<Invalidator> {
        &self.invalidator
    }

    /// Returns how many numbers are free.
    pub(crate) fn free(&self) -> u64 {
        let slots = self.slots.lock();

        slots
            .iter()
            .filter(|slot| matches!(slot, Slot::Free))
            .count() as u64
    }

    /// Returns how many bytes all page tables use.
    pub(crate) fn memory(&self) -> u64 {
        (self.tables.load(Relaxed) * PAGE_SIZE) as u64
    }

    /// Sets the bus address of the root table of a context, 0 for none.
    ///
    /// # Errors
    ///
    /// `ENODEV` after the driver was unbound.
    pub(crate) fn set_root(&self, context: u32, root: u64) -> Result {
        self.roots.write(context as usize, [root])
    }

    /// Makes the page tables of a new address space, in which nothing is mapped, with a free
    /// context.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if all contexts are in use.
    /// - `ENOMEM` if memory runs out, `ENODEV` after the driver was unbound.
    pub(crate) fn create(self: &Arc<Self>, dev: &Device<Bound>) -> Result<Arc<PageTable>> {
        let mut slots = self.slots.lock();
        let number = slots
            .iter()
            .position(|slot| matches!(slot, Slot::Free))
            .ok_or(ENOSPC)?;
        // CAST: A number of a context.
        let table = PageTable::new(dev, self, number as u32)?;

        slots[number] = Slot::Used(table.clone());
        Ok(table)
    }

    /// Frees the number of an address space. If it `is_known`, the device may still have
    /// translations of it, and the number is not used again.
    pub(crate) fn take_back(&self, number: u32, is_known: bool) {
        let slot = if is_known { Slot::Kept } else { Slot::Free };
        let before = match self.slots.lock().get_mut(number as usize) {
            Some(of) => core::mem::replace(of, slot),
            None => return,
        };

        // It may be the last reference.
        drop(before);
    }

    /// Ends all address spaces, also those with references left, and frees the memory of their
    /// tables.
    ///
    /// No new one is made meanwhile.
    pub(crate) fn end_all(&self) {
        for number in 0..WORDS {
            let table = match self.slots.lock().get(number) {
                Some(Slot::Used(table)) => table.clone(),
                _ => continue,
            };

            table.end();
        }
    }
}

/// A page for a page table.
pub(crate) struct Page {
    pub(crate) words: Words,
    contexts: Arc<Contexts>,
}

impl Page {
    /// Makes a page whose entries are all zero, so that they map nothing.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(dev: &Device<Bound>, contexts: &Arc<Contexts>) -> Result<Self> {
        let words = Words::new(dev, WORDS)?;

        contexts.tables.fetch_add(1, Relaxed);
        Ok(Self {
            words,
            contexts: contexts.clone(),
        })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.contexts.tables.fetch_sub(1, Relaxed);
    }
}

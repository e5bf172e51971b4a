// SPDX-License-Identifier: GPL-2.0

//! The contexts of the device: the numbers of address spaces, and the addresses of the roots of
//! their page tables.
//!
//! Context 0 is the aperture. The number of an address space that has ended is used again once the
//! device has completed the invalidation of the old one. If the device does not complete it, the
//! number and the page tables are kept until the whole device was reset: it has no translations of
//! any context then.
//!
//! # Locking
//!
//! The mutex of the numbers is outside of the mutexes of the page tables.

use core::mem;

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
    pagetable::{
        Freed,
        PageTable,
        Tree, //
    }, //
};

/// The context of the aperture.
pub(crate) const APERTURE: u32 = 0;

/// Page tables that the device may still use.
struct Kept<T> {
    _tables: T,
    /// How often the device had been reset before.
    resets: u64,
}

/// The state of a number.
enum Slot {
    /// No address space has it.
    Free,
    /// It is the number of the aperture.
    Aperture,
    /// An address space has it.
    Used(Arc<PageTable>),
    /// The address space has ended, and the device may still have translations of it.
    Kept(Kept<Tree>),
}

struct State {
    slots: KVVec<Slot>,
    /// Tables that were unmapped from address spaces, and that the device may still use.
    freed: KVec<Kept<Freed>>,
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
    state: Mutex<State>,
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

        slots.push(Slot::Aperture, GFP_KERNEL)?;
        for _ in 1..WORDS {
            slots.push(Slot::Free, GFP_KERNEL)?;
        }
        let state = State {
            slots,
            freed: KVec::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                roots,
                invalidator,
                tables: Atomic::new(0),
                state <- new_mutex!(state, "mgpu::Contexts"),
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
        let state = self.state.lock();

        state
            .slots
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
        let mut state = self.state.lock();
        let number = state
            .slots
            .iter()
            .position(|slot| matches!(slot, Slot::Free))
            .ok_or(ENOSPC)?;
        // CAST: A number of a context.
        let table = PageTable::new(dev, self, number as u32)?;

        state.slots[number] = Slot::Used(table.clone());
        Ok(table)
    }

    /// Frees the number and the tables of an address space, unless `invalidated`, the result of the
    /// invalidation of all of its addresses, says that the device may still use them. In that case
    /// they are kept until [`Self::end_quarantine`].
    pub(crate) fn take_back(&self, number: u32, tables: Tree, invalidated: Result) {
        let slot = match self.invalidator.may_be_known(invalidated) {
            Some(resets) => Slot::Kept(Kept {
                _tables: tables,
                resets,
            }),
            None => {
                drop(tables);
                Slot::Free
            }
        };
        let before = match self.state.lock().slots.get_mut(number as usize) {
            Some(of) => mem::replace(of, slot),
            None => return,
        };

        // It may be the last reference.
        drop(before);
    }

    /// Frees tables to which no entry of an address space points any more, unless `invalidated`,
    /// the result of the invalidation of their addresses, says that the device may still use them.
    /// In that case they are kept until [`Self::end_quarantine`].
    pub(crate) fn take_back_tables(&self, tables: Freed, invalidated: Result) {
        let Some(resets) = self.invalidator.may_be_known(invalidated) else {
            return;
        };
        let mut state = self.state.lock();

        if state.freed.reserve(1, GFP_KERNEL).is_err() {
            // Devres frees the memory when the driver is unbound.
            mem::forget(tables);
            return;
        }
        // Cannot fail, because the capacity is reserved.
        let _ = state.freed.push_within_capacity(Kept {
            _tables: tables,
            resets,
        });
    }

    /// Frees the numbers and tables that were kept and that the device does not use any more,
    /// because it was reset or accesses no memory.
    pub(crate) fn end_quarantine(&self) {
        let is_unknown = |resets: u64| self.invalidator.has_forgotten(resets);

        for number in 0..WORDS {
            let kept = match self.state.lock().slots.get_mut(number) {
                Some(slot) if matches!(&*slot, Slot::Kept(kept) if is_unknown(kept.resets)) => {
                    mem::replace(slot, Slot::Free)
                }
                _ => continue,
            };

            drop(kept);
        }
        loop {
            let kept = {
                let freed = &mut self.state.lock().freed;
                let index = freed.iter().position(|kept| is_unknown(kept.resets));

                index.and_then(|index| freed.remove(index).ok())
            };

            if kept.is_none() {
                return;
            }
        }
    }

    /// Ends all address spaces, also those with references left, and frees the memory of their
    /// tables.
    ///
    /// No new one is made meanwhile.
    pub(crate) fn end_all(&self) {
        for number in 0..WORDS {
            let table = match self.state.lock().slots.get(number) {
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
    /// Makes a page whose entries are all zero, so that they map nothing. Its memory is charged to
    /// the memory cgroup of the caller.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(dev: &Device<Bound>, contexts: &Arc<Contexts>) -> Result<Self> {
        let words = Words::with_flags(dev, WORDS, GFP_KERNEL_ACCOUNT)?;

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

// SPDX-License-Identifier: GPL-2.0

//! The contexts of the device: its numbers for address spaces and the root addresses of their page
//! tables.
//!
//! Context 0 is the aperture. Clients may have more address spaces than the device has numbers. So
//! an address space gets a number when one of its jobs begins and keeps it until another address
//! space needs it. The least recently used number is then taken. It must have no job in the ring,
//! and the ring takes few jobs. The number is used again once the device has completed the
//! invalidation of its old translations.
//!
//! If the device does not complete the invalidation of an ending address space, the number and the
//! page tables are kept until a reset of the whole device. The device has no translations of any
//! context after this reset.
//!
//! # Locking
//!
//! The mutex of the numbers is inside of the mutexes of the page tables and outside of that of
//! [`Invalidator`]. It is taken in the path to the signal of a fence: nothing is allocated while it
//! is held. The mutex of the lists is taken with none of them held.

use core::mem;

use kernel::{
    device::{
        Bound,
        Device, //
    },
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        barrier::{
            dma_mb,
            Write, //
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
    module_parameters,
    pagetable::{
        Freed,
        PageTable,
        Tree,
        SPACE, //
    },
    ring::CREDITS, //
};

/// The context of the aperture.
pub(crate) const APERTURE: u32 = 0;

/// The value for an address space without a number.
const NONE: u32 = APERTURE;

/// Page tables that the device may still use.
struct Kept<T> {
    _tables: T,
    /// The number of resets of the device before.
    resets: u64,
}

/// The state of a number.
enum Slot {
    /// No address space has the number.
    Free,
    /// The number is unused or the one of the aperture.
    Taken,
    /// An address space has the number.
    Used {
        table: Arc<PageTable>,
        /// The bus address of the root.
        root: u64,
        /// The number of its jobs in the ring.
        jobs: usize,
        /// When the last of these jobs began.
        since: u64,
    },
    /// The address space has ended and the device may still have translations of it.
    Kept(Kept<Tree>),
}

/// The state of all numbers.
struct Numbers {
    slots: KVVec<Slot>,
    /// The number of jobs begun so far.
    begun: u64,
}

impl Numbers {
    /// Returns the least recently used number without a job in the ring and the root of its address
    /// space.
    fn idle(&self) -> Option<(usize, u64)> {
        let slots = self.slots.iter().enumerate();
        let idle = slots.filter_map(|(number, slot)| match slot {
            Slot::Used {
                root,
                jobs: 0,
                since,
                ..
            } => Some((*since, number, *root)),
            _ => None,
        });

        idle.min().map(|(_, number, root)| (number, root))
    }
}

struct State {
    /// All address spaces before their end.
    spaces: RBTree<u64, Arc<PageTable>>,
    /// The number of address spaces created so far.
    count: u64,
    /// Unmapped tables of address spaces that the device may still use.
    freed: KVec<Kept<Freed>>,
}

/// The contexts of a device.
#[pin_data]
pub(crate) struct Contexts {
    /// The bus address of the root of each context, or 0.
    roots: Words,
    invalidator: Arc<Invalidator>,
    /// The number of allocated page tables.
    tables: Atomic<usize>,
    #[pin]
    numbers: Mutex<Numbers>,
    #[pin]
    state: Mutex<State>,
}

impl Contexts {
    /// Creates the table of contexts. No context has a page table yet.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(dev: &Device<Bound>, invalidator: Arc<Invalidator>) -> Result<Arc<Self>> {
        let roots = Words::new(dev, WORDS)?;
        // CAST: A small number.
        let used = (module_parameters::contexts.value() as usize).max(CREDITS + 1);
        let mut slots = KVVec::with_capacity(WORDS, GFP_KERNEL)?;

        for number in 0..WORDS {
            let slot = if (1..=used).contains(&number) {
                Slot::Free
            } else {
                Slot::Taken
            };

            slots.push(slot, GFP_KERNEL)?;
        }
        let state = State {
            spaces: RBTree::new(),
            count: 0,
            freed: KVec::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                roots,
                invalidator,
                tables: Atomic::new(0),
                numbers <- new_mutex!(Numbers { slots, begun: 0 }, "mgpu::Contexts::numbers"),
                state <- new_mutex!(state, "mgpu::Contexts::state"),
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

    /// Returns the number of address spaces, including ended ones whose page tables the device may
    /// still use.
    pub(crate) fn count(&self) -> u64 {
        let numbers = self.numbers.lock();
        let kept = numbers
            .slots
            .iter()
            .filter(|slot| matches!(slot, Slot::Kept(_)));
        let kept = kept.count() as u64;

        drop(numbers);
        kept + self.state.lock().spaces.iter().count() as u64
    }

    /// Returns the size of all page tables in bytes.
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

    /// Creates the page tables of a new address space without mappings.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out, `ENODEV` after the driver was unbound.
    pub(crate) fn create(self: &Arc<Self>, dev: &Device<Bound>) -> Result<Arc<PageTable>> {
        let mut state = self.state.lock();
        let id = state.count;
        let table = PageTable::new(dev, self, id)?;

        state
            .spaces
            .insert(RBTreeNode::new(id, table.clone(), GFP_KERNEL)?);
        state.count += 1;
        Ok(table)
    }

    /// Gives an address space a number for a job about to begin, unless it has one. `root` is the
    /// bus address of its root. The address space has the number at least until [`Self::leave`].
    ///
    /// # Errors
    ///
    /// - `EIO` or `ENODEV` if the device does not complete an invalidation.
    /// - `EBUSY` if the device may still use all numbers, see [`Self::end_quarantine`].
    pub(crate) fn enter(&self, table: &Arc<PageTable>, root: u64) -> Result {
        let mut numbers = self.numbers.lock();

        numbers.begun += 1;
        let begun = numbers.begun;
        if table.number() == NONE {
            let index = self.take_number(&mut numbers, root)?;

            numbers.slots[index] = Slot::Used {
                table: table.clone(),
                root,
                jobs: 0,
                since: begun,
            };
            // CAST: A number of a context.
            table.set_number(index as u32);
        }
        if let Some(Slot::Used { jobs, since, .. }) = numbers.slots.get_mut(table.number() as usize)
        {
            *jobs += 1;
            *since = begun;
        }
        Ok(())
    }

    /// Takes a free number or the number of another address space for the root at a bus address.
    fn take_number(&self, numbers: &mut Numbers, root: u64) -> Result<usize> {
        let free = numbers
            .slots
            .iter()
            .position(|slot| matches!(slot, Slot::Free));
        let (index, before) = free
            .map(|index| (index, 0))
            .or_else(|| numbers.idle())
            .ok_or(EBUSY)?;
        // CAST: A number of a context.
        let number = index as u32;

        // The tables are complete before the device may read the root. The device may have cached
        // the previous root, also if there was none.
        dma_mb(Write);
        self.set_root(number, root)?;
        if let Err(e) = self.invalidator.invalidate(number, 0, SPACE) {
            // No job begins before a reset. The previous address space goes on with the number
            // after it.
            let _ = self.set_root(number, before);
            return Err(e);
        }
        // This is not the last reference.
        if let Slot::Used { table, .. } = mem::replace(&mut numbers.slots[index], Slot::Free) {
            table.set_number(NONE);
        }
        Ok(index)
    }

    /// Notes that a job of an address space has left the ring.
    pub(crate) fn leave(&self, table: &PageTable) {
        let mut numbers = self.numbers.lock();

        if let Some(Slot::Used { jobs, .. }) = numbers.slots.get_mut(table.number() as usize) {
            *jobs -= 1;
        }
    }

    /// Invalidates translations of an address space with a number. Does nothing if it has none.
    /// Sleeps.
    ///
    /// # Errors
    ///
    /// See [`Invalidator::invalidate`].
    pub(crate) fn invalidate(&self, table: &PageTable, start: u64, len: u64) -> Result {
        let number = {
            // If the address space gets a number later, the number is used after the change of its
            // entries.
            let _numbers = self.numbers.lock();

            table.number()
        };

        if number == NONE {
            return Ok(());
        }
        self.invalidator.invalidate(number, start, len)
    }

    /// Releases the number of an ending address space without jobs. Returns a value that frees the
    /// memory when it is dropped with no lock held. If the device does not complete the
    /// invalidation, number and memory are kept until [`Self::end_quarantine`].
    pub(crate) fn end(&self, table: &PageTable, tables: Tree) -> impl Sized {
        let mut numbers = self.numbers.lock();
        let number = table.number();

        if number == NONE {
            return (Slot::Free, Some(tables));
        }
        // If the driver is unbound, the device has no table of contexts.
        let _ = self.set_root(number, 0);
        let invalidated = self.invalidator.invalidate(number, 0, SPACE);
        let (slot, dead) = match self.invalidator.may_be_known(invalidated) {
            Some(resets) => {
                let _tables = tables;

                (Slot::Kept(Kept { _tables, resets }), None)
            }
            None => (Slot::Free, Some(tables)),
        };

        table.set_number(NONE);
        (
            mem::replace(&mut numbers.slots[number as usize], slot),
            dead,
        )
    }

    /// Removes an ended address space from the list.
    pub(crate) fn forget(&self, id: u64) {
        let space = self.state.lock().spaces.remove(&id);

        drop(space);
    }

    /// Frees tables that no entry of an address space points to any more. `invalidated` is the
    /// result of the invalidation of their addresses. If the device may still use the tables after
    /// it, they are kept until [`Self::end_quarantine`].
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
        // Cannot fail because the capacity is reserved.
        let _ = state.freed.push_within_capacity(Kept {
            _tables: tables,
            resets,
        });
    }

    /// Frees the kept numbers and tables that the device does not use any more: it was reset since
    /// or accesses no memory.
    pub(crate) fn end_quarantine(&self) {
        let is_unknown = |resets: u64| self.invalidator.has_forgotten(resets);

        for number in 0..WORDS {
            let kept = match self.numbers.lock().slots.get_mut(number) {
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

    /// Ends all address spaces and frees the memory of their tables, even if there are references
    /// left.
    ///
    /// No address space is created meanwhile.
    pub(crate) fn end_all(&self) {
        let mut next = 0;

        loop {
            let table = {
                let state = self.state.lock();
                let Some(cursor) = state.spaces.cursor_lower_bound(&next) else {
                    return;
                };
                let (id, table) = cursor.current();

                next = id + 1;
                table.clone()
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
    /// Creates a page of zero entries, which map nothing. The memory cgroup of the caller is
    /// charged for the page.
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

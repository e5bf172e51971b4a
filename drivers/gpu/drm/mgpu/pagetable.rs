// SPDX-License-Identifier: GPL-2.0

//! The page tables of an address space: three levels, with pages of 4 KiB and of 2 MiB.
//!
//! The address space is cut into *slots* of 2 MiB, each of which is an entry of the second level. A
//! slot in which something is mapped has a table of the last level from the time of the map on,
//! also while its entry is a page of 2 MiB or not valid. So entries can be written without an
//! allocation, wherever an object has moved to. The table is freed when nothing is mapped in its
//! slot any more, after an invalidation.
//!
//! The content of a table has no meaning while no entry points to it: all of the table is written
//! before an entry points to it again.
//!
//! # Locking
//!
//! One mutex for each address space. It is taken with reservations and with the `gpuva.lock` of an
//! object held, in the path that leads to the signal of a fence. Nothing is allocated while it is
//! held. The mutex of the numbers of [`Contexts`] is inside of it.

use core::ops::Range;

use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::{
        gem::{
            mappings::Address,
            ttm::Placed, //
        },
        gpuvm::{
            MappedRange,
            Tables, //
        }, //
    },
    new_mutex,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sizes::SZ_2M,
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
    contexts::{
        Contexts,
        Page,
        APERTURE, //
    },
    memory::WORDS, //
};

/// The bits of an entry.
pub(crate) const VALID: u64 = 1 << 0;
pub(crate) const VRAM: u64 = 1 << 2;
pub(crate) const LEAF: u64 = 1 << 3;

/// How many bits the address in an entry has.
pub(crate) const ADDRESS_BITS: u32 = 52;

/// How many bits a virtual address has.
const BITS: u32 = 39;

/// How many bytes an address space has.
pub(crate) const SPACE: u64 = 1 << BITS;

/// How many bytes a slot has.
const SLOT: u64 = SZ_2M as u64;

/// How many tables of the last level an address space has at most. They are enough for 2 GiB
/// without gaps. The memory cgroup of the client is charged for them.
const MOST: usize = 1 << 10;

/// Returns the slots that a range of addresses touches.
fn slots(va: &Range<u64>) -> Range<u64> {
    va.start / SLOT..va.end.div_ceil(SLOT)
}

/// Returns the part of `va` that is in a slot, as indices of entries of its table.
fn part(va: &Range<u64>, slot: u64) -> Range<usize> {
    let page = |address: u64| {
        let inside = address.clamp(slot * SLOT, (slot + 1) * SLOT) - slot * SLOT;

        // CAST: Up to the number of entries.
        (inside >> PAGE_SHIFT) as usize
    };

    page(va.start)..page(va.end)
}

/// Returns the entry for the address of a page, 0 if the device does not reach it.
fn leaf(address: Address) -> u64 {
    let (at, kind) = match address {
        Address::Vram(at) => (at, VRAM),
        Address::Dma(at) => (at, 0),
        Address::System(_) => return 0,
    };

    if at >> ADDRESS_BITS != 0 {
        return 0;
    }
    at | kind | LEAF | VALID
}

/// A table of the last level.
struct Leaves {
    page: Page,
    /// How many mappings have a part of the slot.
    users: usize,
}

/// A table of the second level.
struct Middle {
    page: Page,
    tables: KVVec<Option<Leaves>>,
}

impl Middle {
    fn new(dev: &Device<Bound>, contexts: &Arc<Contexts>) -> Result<KBox<Self>> {
        Ok(KBox::new(
            Self {
                page: Page::new(dev, contexts)?,
                tables: empty()?,
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// Writes entries of the table of a slot, and makes the slot point to the table.
    fn write(
        &mut self,
        index: usize,
        part: Range<usize>,
        mut entry: impl FnMut(usize) -> u64,
    ) -> Result {
        let now = self.page.words.read(index)?;
        let table = self.tables[index].as_ref().ok_or(EINVAL)?;

        if now & (VALID | LEAF) == VALID {
            return table.page.words.write(part.start, part.map(entry));
        }

        // The other pages of the slot keep their addresses.
        let other = |page: usize| match now & VALID {
            0 => 0,
            _ => now + ((page as u64) << PAGE_SHIFT),
        };
        let all = (0..WORDS).map(|page| {
            if part.contains(&page) {
                entry(page)
            } else {
                other(page)
            }
        });
        table.page.words.write(0, all)?;
        // The device may read the slot at any time, for the other pages, so the table is complete
        // before the slot points to it.
        dma_mb(Write);
        self.page
            .words
            .write(index, [table.page.words.address(0) | VALID])
    }
}

fn empty<T>() -> Result<KVVec<Option<T>>> {
    let mut list = KVVec::with_capacity(WORDS, GFP_KERNEL_ACCOUNT)?;

    for _ in 0..WORDS {
        list.push(None, GFP_KERNEL)?;
    }
    Ok(list)
}

/// All tables of an address space.
pub(crate) struct Tree {
    root: Page,
    middles: KVVec<Option<KBox<Middle>>>,
    /// How many tables of the last level there are.
    count: usize,
}

/// The table that a slot lacks.
enum Lack {
    Middle,
    Leaves,
}

/// Returns the entry of the first level for a slot, and that of the second level.
fn indices(slot: u64) -> (usize, usize) {
    // CAST: Both are below the number of entries.
    (
        slot as usize / WORDS % WORDS,
        slot as usize % WORDS, //
    )
}

impl Tree {
    fn middle(&mut self, slot: u64) -> Option<(&mut Middle, usize)> {
        let (first, second) = indices(slot);

        Some((self.middles[first].as_mut()?, second))
    }

    /// Counts one more mapping in a slot, if the slot has all tables.
    fn hold(&mut self, slot: u64) -> Result<(), Lack> {
        let (middle, index) = self.middle(slot).ok_or(Lack::Middle)?;
        let table = middle.tables[index].as_mut().ok_or(Lack::Leaves)?;

        table.users += 1;
        Ok(())
    }

    fn add_middle(&mut self, slot: u64, middle: KBox<Middle>) -> Result {
        let (first, _) = indices(slot);

        // The device may be reading the root, so the table is zero before the root points to it.
        dma_mb(Write);
        self.root
            .words
            .write(first, [middle.page.words.address(0) | VALID])?;
        self.middles[first] = Some(middle);
        Ok(())
    }

    fn add_leaves(&mut self, slot: u64, page: Page) -> Result {
        if self.count >= MOST {
            return Err(ENOSPC);
        }
        let (middle, index) = self.middle(slot).ok_or(EINVAL)?;

        middle.tables[index] = Some(Leaves { page, users: 0 });
        self.count += 1;
        Ok(())
    }

    /// Counts one mapping less in a slot. If it was the last one, the table of the slot is moved to
    /// `freed`.
    fn release(&mut self, slot: u64, freed: &mut Freed) {
        let Some((middle, index)) = self.middle(slot) else {
            return;
        };
        let Some(table) = middle.tables[index].as_mut() else {
            return;
        };

        let Some(left) = table.users.checked_sub(1) else {
            return;
        };

        table.users = left;
        if left == 0 && freed.0.len() < freed.0.capacity() {
            // Nothing is mapped. The write fails only if the driver is unbound; the device reads no
            // table then.
            let _ = middle.page.words.write(index, [0]);
            if let Some(table) = middle.tables[index].take() {
                // There is room for it.
                let _ = freed.0.push_within_capacity(table);
                self.count -= 1;
            }
        }
    }

    /// Writes the entries of a mapping, with the addresses of the object.
    fn write(&mut self, range: &MappedRange, placed: &Placed<'_>) -> Result {
        for slot in slots(&range.va) {
            let part = part(&range.va, slot);
            let at = |page: usize| {
                slot * SLOT + ((page as u64) << PAGE_SHIFT) - range.va.start + range.gem_offset
            };
            let (middle, index) = self.middle(slot).ok_or(EINVAL)?;

            if part.len() == WORDS {
                let (address, len) = placed.page(at(0))?;
                let entry = leaf(address);

                if len >= SLOT && (entry & !(PAGE_SIZE as u64 - 1)) % SLOT == 0 {
                    middle.page.words.write(index, [entry])?;
                    continue;
                }
            }
            let mut ret = Ok(());
            middle.write(index, part, |page| match placed.page(at(page)) {
                Ok((address, _)) => leaf(address),
                Err(e) => {
                    ret = Err(e);
                    0
                }
            })?;
            ret?;
        }
        Ok(())
    }

    /// Clears the entries of addresses.
    fn clear(&mut self, va: &Range<u64>) -> Result {
        for slot in slots(va) {
            let part = part(va, slot);
            let Some((middle, index)) = self.middle(slot) else {
                continue;
            };

            if part.len() == WORDS {
                middle.page.words.write(index, [0])?;
            } else if middle.page.words.read(index)? & VALID != 0 {
                middle.write(index, part, |_| 0)?;
            }
        }
        Ok(())
    }
}

/// Tables that no entry points to any more.
pub(crate) struct Freed(KVVec<Leaves>);

impl Freed {
    /// Returns an empty list without capacity, for an address space that has ended.
    pub(crate) const fn none() -> Self {
        Self(KVVec::new())
    }
}

/// The page tables of an address space.
#[pin_data]
pub(crate) struct PageTable {
    id: u64,
    /// The number of its context, under the lock of the numbers of [`Contexts`].
    number: Atomic<u32>,
    contexts: Arc<Contexts>,
    /// [`None`] once the address space has ended.
    #[pin]
    tree: Mutex<Option<Tree>>,
}

impl PageTable {
    /// Makes the tables of an address space, in which nothing is mapped, and which has no context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out, `ENODEV` after the driver was unbound.
    pub(crate) fn new(dev: &Device<Bound>, contexts: &Arc<Contexts>, id: u64) -> Result<Arc<Self>> {
        let tree = Tree {
            root: Page::new(dev, contexts)?,
            middles: empty()?,
            count: 0,
        };

        Arc::pin_init(
            pin_init!(Self {
                id,
                number: Atomic::new(APERTURE),
                contexts: contexts.clone(),
                tree <- new_mutex!(Some(tree), "mgpu::PageTable"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the number of the context, while the caller has [`Entered`] it.
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Relaxed)
    }

    /// Sets the number of the context.
    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number, Relaxed);
    }

    /// Gets a context, for a job that begins. May evict that of another address space, and wait for
    /// the device.
    ///
    /// # Errors
    ///
    /// Those of [`Contexts::enter`], and `ENODEV` if the address space has ended.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Entered> {
        let tree = self.tree.lock();
        let root = tree.as_ref().ok_or(ENODEV)?.root.words.address(0);

        self.contexts.enter(self, root)?;
        Ok(Entered(self.clone()))
    }

    fn with<R>(&self, f: impl FnOnce(&mut Tree) -> Result<R>) -> Result<R> {
        match &mut *self.tree.lock() {
            Some(tree) => f(tree),
            None => Err(ENODEV),
        }
    }

    /// Makes the tables for a mapping, which holds them until [`Self::release`].
    ///
    /// Must be called by one task at a time, and with no reservation held.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if it would need too many tables, `ENOMEM` if memory runs out.
    /// - `ENODEV` after the driver was unbound.
    pub(crate) fn prepare(&self, dev: &Device<Bound>, va: &Range<u64>) -> Result {
        let mut freed = self.freed(va)?;

        for slot in slots(va) {
            if let Err(e) = self.hold(dev, slot) {
                self.with(|tree| {
                    (slots(va).start..slot).for_each(|slot| tree.release(slot, &mut freed));
                    Ok(())
                })?;
                self.free(freed, self.invalidate(va));
                return Err(e);
            }
        }
        Ok(())
    }

    fn hold(&self, dev: &Device<Bound>, slot: u64) -> Result {
        loop {
            match self.with(|tree| Ok(tree.hold(slot)))? {
                Ok(()) => return Ok(()),
                Err(Lack::Middle) => {
                    let middle = Middle::new(dev, &self.contexts)?;

                    self.with(|tree| tree.add_middle(slot, middle))?;
                }
                Err(Lack::Leaves) => {
                    let page = Page::new(dev, &self.contexts)?;

                    self.with(|tree| tree.add_leaves(slot, page))?;
                }
            }
        }
    }

    /// Makes a part of a mapping hold its tables by itself, when the mapping is split.
    pub(crate) fn share(&self, va: &Range<u64>) {
        // Fails only if the address space has ended; it has no tables then.
        let _ = self.with(|tree| {
            slots(va).for_each(|slot| {
                let _ = tree.hold(slot);
            });
            Ok(())
        });
    }

    /// Returns a list with room for all tables that may be freed when mappings in `va` end.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn freed(&self, va: &Range<u64>) -> Result<Freed> {
        let most = slots(va).count().min(MOST);

        Ok(Freed(KVVec::with_capacity(most, GFP_KERNEL)?))
    }

    /// Releases the tables of a mapping whose entries are cleared. The caller must call
    /// [`Self::invalidate`] before [`Self::free`].
    pub(crate) fn release(&self, va: &Range<u64>, freed: &mut Freed) {
        // As in `share()`.
        let _ = self.with(|tree| {
            slots(va).for_each(|slot| tree.release(slot, freed));
            Ok(())
        });
    }

    /// Frees the memory of tables, unless `invalidated`, the result of the invalidation, says that
    /// the device may still read it. In that case it is freed after a reset of the device.
    pub(crate) fn free(&self, freed: Freed, invalidated: Result) {
        if !freed.0.is_empty() {
            self.contexts.take_back_tables(freed, invalidated);
        }
    }

    /// Clears the entries of addresses. The device may use the old ones until [`Self::invalidate`].
    pub(crate) fn clear(&self, va: &Range<u64>) {
        // As in `share()`.
        let _ = self.with(|tree| tree.clear(va));
    }

    /// Ends the address space: the device reaches no memory through it when this returns. Sleeps.
    pub(crate) fn end(&self) {
        let mut tree = self.tree.lock();
        let Some(tables) = tree.take() else {
            return;
        };
        let dead = self.contexts.end(self, tables);

        drop(tree);
        self.contexts.forget(self.id);
        drop(dead);
    }
}

/// The right of a job to use the context of its address space, until it is dropped.
pub(crate) struct Entered(Arc<PageTable>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.contexts.leave(&self.0);
    }
}

impl Tables for PageTable {
    fn write(&self, range: &MappedRange, placed: &Placed<'_>) -> Result {
        self.with(|tree| tree.write(range, placed))
    }

    /// # Errors
    ///
    /// See [`Invalidator::invalidate`](crate::invalidate::Invalidator::invalidate).
    fn invalidate(&self, va: &Range<u64>) -> Result {
        self.contexts.invalidate(self, va.start, va.end - va.start)
    }

    // The old translations may be of this or of another context.
    fn holds_jobs(&self) -> bool {
        self.contexts.invalidator().holds_jobs()
    }
}

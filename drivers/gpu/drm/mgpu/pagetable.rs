// SPDX-License-Identifier: GPL-2.0

//! The page tables of an address space: three levels with pages of 4 KiB and of 2 MiB.
//!
//! The address space consists of *slots* of 2 MiB. Each slot is an entry of the second level. A
//! slot with a mapping has a last-level table from the time of the map on, even while its entry is
//! a page of 2 MiB or not valid. So entries can be written without an allocation wherever an object
//! has moved to. When nothing is mapped in its slot any more, the table is freed after an
//! invalidation.
//!
//! The content of a table has no meaning while no entry points to it. All of the table is written
//! before an entry points to it again.
//!
//! # Locking
//!
//! One mutex for each address space. It is taken in the path to the signal of a fence, with
//! reservations and with the `gpuva.lock` of an object held. Nothing is allocated while it is held.
//! The mutex of the numbers of [`Contexts`] is inside of it.

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

/// The number of address bits in an entry.
pub(crate) const ADDRESS_BITS: u32 = 52;

/// The number of bits in a virtual address.
const BITS: u32 = 39;

/// The size of an address space in bytes.
pub(crate) const SPACE: u64 = 1 << BITS;

/// The size of a slot in bytes.
const SLOT: u64 = SZ_2M as u64;

/// The maximum number of last-level tables of an address space. They are enough for 2 GiB without
/// gaps. The memory cgroup of the client is charged for them.
const MOST: usize = 1 << 10;

/// Returns the slots touched by a range of addresses.
fn slots(va: &Range<u64>) -> Range<u64> {
    va.start / SLOT..va.end.div_ceil(SLOT)
}

/// Returns the part of `va` in a slot as indices of entries of its table.
fn part(va: &Range<u64>, slot: u64) -> Range<usize> {
    let page = |address: u64| {
        let inside = address.clamp(slot * SLOT, (slot + 1) * SLOT) - slot * SLOT;

        // CAST: At most the number of entries.
        (inside >> PAGE_SHIFT) as usize
    };

    page(va.start)..page(va.end)
}

/// Returns the entry for the address of a page, or 0 if the device does not reach the page.
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

/// A last-level table.
struct Leaves {
    page: Page,
    /// The number of mappings touching the slot.
    users: usize,
}

/// A second-level table.
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

    /// Writes entries of the table of a slot and makes the slot point to the table.
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
        // The device may read the slot at any time for the other pages, so the table is complete
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
    /// The number of last-level tables.
    count: usize,
}

/// The table missing for a slot.
enum Lack {
    Middle,
    Leaves,
}

/// Returns the indices of the first-level and second-level entries of a slot.
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

    /// Counts one more mapping in a slot if the slot has all tables.
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

    /// Counts one mapping less in a slot. After the last mapping, the table of the slot is moved to
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
            // Nothing is mapped. The write fails only if the driver is unbound. The device then
            // reads no table.
            let _ = middle.page.words.write(index, [0]);
            if let Some(table) = middle.tables[index].take() {
                // There is room for it.
                let _ = freed.0.push_within_capacity(table);
                self.count -= 1;
            }
        }
    }

    /// Writes the entries of a mapping with the addresses of the object.
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

/// Tables no longer referenced by an entry.
pub(crate) struct Freed(KVVec<Leaves>);

impl Freed {
    /// Returns an empty list without capacity for an ended address space.
    pub(crate) const fn none() -> Self {
        Self(KVVec::new())
    }
}

/// The page tables of an address space.
#[pin_data]
pub(crate) struct PageTable {
    id: u64,
    /// The number of its context, protected by the lock of the numbers of [`Contexts`].
    number: Atomic<u32>,
    contexts: Arc<Contexts>,
    /// [`None`] once the address space has ended.
    #[pin]
    tree: Mutex<Option<Tree>>,
}

impl PageTable {
    /// Creates the tables of an address space without mappings and without a context.
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

    /// Returns the number of the context while the caller has [`Entered`] it.
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Relaxed)
    }

    /// Sets the number of the context.
    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number, Relaxed);
    }

    /// Gets a context for a job about to begin. May evict the context of another address space and
    /// wait for the device.
    ///
    /// # Errors
    ///
    /// The errors of [`Contexts::enter`]. `ENODEV` if the address space has ended.
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

    /// Creates the tables for a mapping. The mapping holds them until [`Self::release`].
    ///
    /// Must be called by one task at a time and with no reservation held.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if the mapping would need too many tables. `ENOMEM` if memory runs out.
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

    /// Makes a part of a split mapping hold its tables by itself.
    pub(crate) fn share(&self, va: &Range<u64>) {
        // Fails only if the address space has ended. It then has no tables.
        let _ = self.with(|tree| {
            slots(va).for_each(|slot| {
                let _ = tree.hold(slot);
            });
            Ok(())
        });
    }

    /// Returns a list with room for all tables possibly freed at the end of mappings in `va`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn freed(&self, va: &Range<u64>) -> Result<Freed> {
        let most = slots(va).count().min(MOST);

        Ok(Freed(KVVec::with_capacity(most, GFP_KERNEL)?))
    }

    /// Releases the tables of a mapping with cleared entries. The caller must call
    /// [`Self::invalidate`] before [`Self::free`].
    pub(crate) fn release(&self, va: &Range<u64>, freed: &mut Freed) {
        // As in `share()`.
        let _ = self.with(|tree| {
            slots(va).for_each(|slot| tree.release(slot, freed));
            Ok(())
        });
    }

    /// Frees the memory of tables. `invalidated` is the result of the invalidation. If the device
    /// may still read the tables after it, the memory is freed after a reset of the device.
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

    /// Ends the address space. The device reaches no memory through it when this returns. Sleeps.
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

/// The right of a job to use the context of its address space until this is dropped.
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

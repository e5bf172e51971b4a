// SPDX-License-Identifier: GPL-2.0

//! The scatter tables of importers.
//!
//! A table belongs to an attachment from its creation by the exporter until the importer unmaps it.
//! It leads to ranges of a BAR (`mapping`) or to pages of system memory ([`pages`](super::pages)),
//! never to both.

use super::{
    attachment::Brand,
    pages::Pages,
    Attached,
    Exporter,
    MapRequest, //
};
use crate::{
    alloc::kvec::PushError,
    bindings,
    dma::DataDirection,
    dma_buf::direction,
    prelude::*,
    scatterlist::SGTable,
    sync::Arc,
    types::NotThreadSafe, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

/// The memory behind a table.
pub(super) enum Memory {
    /// Ranges of a BAR.
    #[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
    Ranges,
    /// Pages of system memory; the table keeps them if there is a value.
    Pages(Option<Arc<Pages>>),
}

/// A scatter table of an importer.
///
/// # Invariants
///
/// `sgt` is mapped in direction `dir`: by `dma_buf_phys_vec_to_sgt()` if it leads to ranges and as
/// a box by `dma_map_sgtable()` if it leads to pages.
pub(super) struct Table {
    sgt: NonNull<bindings::sg_table>,
    dir: bindings::dma_data_direction,
    memory: Memory,
    /// The buffer has moved or is not in the BAR any more: the memory behind the table may have a
    /// new owner.
    pub(super) retired: bool,
    /// The importer has the table; no other code has it until the importer unmaps it.
    pub(super) has_user: bool,
}

impl Table {
    /// Takes over a table.
    ///
    /// # Safety
    ///
    /// `sgt` must be mapped in direction `dir`: by `dma_buf_phys_vec_to_sgt()` if `memory` is
    /// ranges and as a box by `dma_map_sgtable()` if it is pages.
    #[inline]
    pub(super) unsafe fn new(
        sgt: NonNull<bindings::sg_table>,
        dir: bindings::dma_data_direction,
        memory: Memory,
    ) -> Self {
        // INVARIANT: As promised by the caller.
        Self {
            sgt,
            dir,
            memory,
            retired: false,
            has_user: false,
        }
    }

    /// Returns the pointer to the C structure.
    #[inline]
    pub(super) fn sgt(&self) -> NonNull<bindings::sg_table> {
        self.sgt
    }

    /// Returns whether the table leads to memory of the device where the buffer still is.
    pub(super) fn is_peer(&self) -> bool {
        !self.retired && !self.has_pages()
    }

    /// Returns whether the table leads to pages.
    #[inline]
    pub(super) fn has_pages(&self) -> bool {
        matches!(self.memory, Memory::Pages(_))
    }

    /// Unmaps and frees the table.
    ///
    /// # Safety
    ///
    /// `attach` must be the attachment that the table was created for. The reservation of its
    /// buffer must be held. The table must not be among those of the attachment any more.
    pub(super) unsafe fn unmap(self, attach: *mut bindings::dma_buf_attachment) {
        let (sgt, dir) = (self.sgt.as_ptr(), self.dir);

        // SAFETY: By the type invariants this is a table of the attachment mapped in one of the two
        // ways. The reservation is held.
        unsafe {
            match self.memory {
                // Pages kept by the table are released after their unmap.
                Memory::Pages(_pages) => {
                    // The pages of a retired table may belong to something else by now.
                    let attrs = if self.retired {
                        // CAST: A small number.
                        bindings::DMA_ATTR_SKIP_CPU_SYNC as usize
                    } else {
                        0
                    };

                    bindings::dma_unmap_sgtable((*attach).dev, sgt, dir, attrs);
                    bindings::sg_free_table(sgt);
                    drop(KBox::from_raw(sgt));
                }
                #[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
                Memory::Ranges => bindings::dma_buf_free_sgt(attach, sgt, dir),
            }
        }
    }

    /// Makes writes of the device visible to the CPU.
    ///
    /// # Safety
    ///
    /// The table must be mapped for `dev`.
    pub(super) unsafe fn sync_for_cpu(&self, dev: *mut bindings::device) {
        if self.has_pages() {
            // SAFETY: As promised by the caller; the direction is that of the mapping.
            unsafe { bindings::dma_sync_sgtable_for_cpu(dev, self.sgt.as_ptr(), self.dir) };
        }
    }

    /// Gives the memory back to the device. Makes writes of the CPU visible to it if `written`.
    ///
    /// # Safety
    ///
    /// The table must be mapped for `dev`.
    unsafe fn sync_for_device(&self, dev: *mut bindings::device, written: bool) {
        let dir = match direction(self.dir) {
            // Otherwise a bounce buffer would be filled with the data seen by the CPU, and the
            // device's later writes would be lost.
            DataDirection::Bidirectional if !written => DataDirection::FromDevice,
            dir => dir,
        };

        if self.has_pages() {
            // SAFETY: As promised by the caller; the direction is that of the mapping or a part of
            // it.
            unsafe { bindings::dma_sync_sgtable_for_device(dev, self.sgt.as_ptr(), dir.into()) };
        }
    }
}

/// The tables of an attachment. Most importers have one at a time, which needs no allocation.
pub(super) struct Tables {
    first: Option<Table>,
    /// [`None`] rather than an empty vector: dropping an empty vector calls the allocator.
    others: Option<KVec<Table>>,
}

impl Tables {
    #[inline]
    pub(super) const fn new() -> Self {
        Self {
            first: None,
            others: None,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.as_ref().map_or(0, KVec::len)
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Table> {
        Iterator::chain(self.first.iter(), self.others.iter().flatten())
    }

    #[inline]
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Table> {
        Iterator::chain(self.first.iter_mut(), self.others.iter_mut().flatten())
    }

    /// Makes room for one more table. Sleeps.
    #[inline]
    pub(super) fn reserve(&mut self) -> Result {
        if self.first.is_some() {
            self.others
                .get_or_insert_with(KVec::new)
                .reserve(1, GFP_KERNEL)?;
        }
        Ok(())
    }

    /// Adds a table or returns it if there is no room.
    #[inline]
    fn push(&mut self, table: Table) -> core::result::Result<(), Table> {
        if self.first.is_none() {
            self.first = Some(table);
            return Ok(());
        }
        match &mut self.others {
            Some(others) => others
                .push_within_capacity(table)
                .map_err(|PushError(table)| table),
            None => Err(table),
        }
    }

    /// Removes and returns a table accepted by `f`. Returns [`None`] if there is none.
    #[inline]
    pub(super) fn take(&mut self, mut f: impl FnMut(&mut Table) -> bool) -> Option<Table> {
        if self.first.as_mut().is_some_and(&mut f) {
            return self.first.take();
        }

        let others = self.others.as_mut()?;
        let index = others.iter_mut().position(f)?;

        others.remove(index).ok()
    }
}

/// The proof of a mapping created in [`Exporter::map`].
///
/// `'r` ties it to one call of [`Exporter::map`], so an exporter can only return a mapping of the
/// requested attachment. The table belongs to the attachment: it is unmapped when the importer does
/// not need it any more or when the call fails.
///
/// # Invariants
///
/// `sgt` is among the tables of the attachment, at least until the call is over.
pub struct Mapping<'r> {
    sgt: NonNull<bindings::sg_table>,
    _brand: Brand<'r>,
    _not_send: NotThreadSafe,
}

impl Mapping<'_> {
    /// Returns the pointer to the C structure.
    #[inline]
    pub(super) fn sgt(&self) -> NonNull<bindings::sg_table> {
        self.sgt
    }

    /// Returns the scatter table. An importer uses DMA addresses and lengths only.
    #[inline]
    pub fn table(&self) -> &SGTable {
        // SAFETY: By the type invariant the table is valid. Nothing changes it during the call.
        unsafe { SGTable::from_raw(self.sgt.as_ptr()) }
    }
}

impl<'r, E: Exporter> MapRequest<'r, E> {
    /// Adds a table to the attachment.
    pub(super) fn keep(&self, table: Table) -> Result<Mapping<'r>> {
        let sgt = table.sgt;

        // There is room for at least one; an exporter creating several may get an error.
        self.with_tables(|tables| match tables.push(table) {
            // INVARIANT: The table is on the list.
            Ok(()) => Ok(Mapping {
                sgt,
                _brand: PhantomData,
                _not_send: NotThreadSafe,
            }),
            Err(table) => {
                // SAFETY: The table was just created for this attachment and the reservation is
                // held.
                unsafe { table.unmap(self.as_raw()) };
                Err(EBUSY)
            }
        })
    }
}

impl<E: Exporter> Attached<'_, E> {
    /// Makes writes of the importer's device to system memory visible to the CPU.
    ///
    /// Nothing is done where the device sees the same memory as the CPU. A bounce buffer is copied
    /// as a whole: if two importers have one, the CPU sees the data of the importer synchronized
    /// last. Mirrors `dma_sync_sgtable_for_cpu()`.
    pub fn sync_for_cpu(&self) {
        self.for_each_valid(|dev, table| {
            // SAFETY: The table is one of this attachment.
            unsafe { table.sync_for_cpu(dev) }
        });
    }

    /// Gives system memory back to the importer's device after a CPU access. Makes the writes of
    /// the CPU visible to the device if `dir` (the direction of the access) includes writes.
    ///
    /// Mirrors `dma_sync_sgtable_for_device()`.
    pub fn sync_for_device(&self, dir: DataDirection) {
        let written = dir != DataDirection::FromDevice;

        self.for_each_valid(|dev, table| {
            // SAFETY: The table is one of this attachment.
            unsafe { table.sync_for_device(dev, written) }
        });
    }

    fn for_each_valid(&self, f: impl Fn(*mut bindings::device, &Table)) {
        // SAFETY: The attachment is valid and so is its device.
        let dev = unsafe { (*self.as_raw()).dev };

        self.with_tables(|tables| {
            for table in tables.iter().filter(|table| !table.retired) {
                f(dev, table);
            }
        });
    }
}

/// Returns the DMA core's value of a direction. The core has a `BUG_ON()` for
/// [`DataDirection::None`].
#[inline]
pub(super) fn valid(dir: DataDirection) -> Result<bindings::dma_data_direction> {
    match dir {
        DataDirection::None => Err(EINVAL),
        dir => Ok(dir.into()),
    }
}

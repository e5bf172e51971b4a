// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The DMA addresses of system memory for engines that reach it by DMA.
//!
//! The pages of an object are mapped when it moves to [`Place::TT`](super::Place::TT), as one
//! scatter table with merged neighbours. They are unmapped when it moves to
//! [`Place::SYSTEM`](super::Place::SYSTEM), before TTM frees them and when the DRM device is
//! unplugged. The content stays in the pages. Buffers of other devices are mapped by their
//! exporters and not here.
//!
//! The mappings are created without synchronization for the CPU, as in xe: the device must be
//! coherent and reach all system memory. [`check_device`] checks the latter.
//!
//! # Locking
//!
//! The mutex guards the list. It is held while a table is unmapped, so an unplug waits for the
//! unmap. It is taken with the reservation of an object held or by a worker that frees memory.
//! Nothing is allocated while it is held.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

use crate::{
    bindings,
    device,
    dma::DmaAddress,
    dma_buf::exporter::pages::segment_limit,
    error::to_result,
    new_mutex,
    page::PAGE_SHIFT,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex,
        UniqueArc, //
    },
    types::Opaque, //
};
use core::{
    iter,
    marker::PhantomData,
    ptr::NonNull, //
};

const BOTH_WAYS: bindings::dma_data_direction = bindings::dma_data_direction::DMA_BIDIRECTIONAL;
// Importers may have mapped the same pages.
const ATTRS: usize =
    (bindings::DMA_ATTR_SKIP_CPU_SYNC | bindings::DMA_ATTR_DEBUGGING_IGNORE_CACHELINES) as usize;

/// Checks that a device reaches system memory without bounce buffers.
///
/// # Errors
///
/// `EOPNOTSUPP` if it needs bounce buffers.
pub(in crate::drm) fn check_device(dev: &device::Device<device::Bound>) -> Result {
    // SAFETY: The device is valid and bound.
    if unsafe { bindings::dma_max_mapping_size(dev.as_raw()) } == usize::MAX {
        Ok(())
    } else {
        Err(EOPNOTSUPP)
    }
}

/// The scatter table of the pages of a `struct ttm_tt`.
///
/// # Invariants
///
/// `sgt` is an initialized table. It was mapped and does not change any more.
pub(crate) struct Table {
    sgt: Opaque<bindings::sg_table>,
    len: u64,
}

// SAFETY: The table does not change and may be freed by any task.
unsafe impl Send for Table {}

// SAFETY: As for `Send`.
unsafe impl Sync for Table {}

impl Table {
    /// Maps all pages.
    ///
    /// # Safety
    ///
    /// - `dev` must be bound and `tt` must have all of its pages.
    /// - [`Self::unmap`] must be called once while both conditions hold.
    // Not inlined into modules, which cannot call the functions.
    #[inline(never)]
    unsafe fn new(dev: &device::Device, tt: NonNull<bindings::ttm_tt>) -> Result<Arc<Self>> {
        // SAFETY: As promised by the caller.
        let (pages, count) = unsafe { ((*tt.as_ptr()).pages, (*tt.as_ptr()).num_pages) };
        // CAST: Objects are below 16 TiB.
        let len = u64::from(count) << PAGE_SHIFT;
        let memory = UniqueArc::<Self>::new_uninit(GFP_KERNEL)?;
        let sgt = Opaque::<bindings::sg_table>::zeroed();

        let max_segment = segment_limit(dev)?;

        // SAFETY: The table is zeroed, the array has this many pages and is not written to, and the
        // device is valid. On failure nothing is left.
        to_result(unsafe {
            bindings::sg_alloc_table_from_pages_segment(
                sgt.get(),
                pages,
                count,
                0,
                len as usize,
                max_segment,
                bindings::GFP_KERNEL,
            )
        })?;
        // SAFETY: The table was just created and the device is bound.
        to_result(unsafe { bindings::dma_map_sgtable(dev.as_raw(), sgt.get(), BOTH_WAYS, ATTRS) })
            .inspect_err(|_| {
                // SAFETY: The table is not mapped.
                unsafe { bindings::sg_free_table(sgt.get()) }
            })?;

        // INVARIANT: The table was mapped above. It may be moved because nothing points to it.
        Ok(memory.write(Self { sgt, len }).into())
    }

    /// Ends the mapping.
    ///
    /// # Safety
    ///
    /// Must be called once with the device of the table while the device is bound.
    #[inline(never)]
    unsafe fn unmap(&self, dev: &device::Device) {
        // SAFETY: As promised by the caller; by the type invariant the table was mapped.
        unsafe {
            bindings::dma_unmap_sgtable(dev.as_raw(), self.sgt.get(), BOTH_WAYS, ATTRS);
        }
    }

    fn segments(&self) -> Segments<'_> {
        // SAFETY: By the type invariant the table is initialized and does not change.
        let (sg, left) = unsafe { ((*self.sgt.get()).sgl, (*self.sgt.get()).nents) };

        Segments {
            sg,
            left,
            _p: PhantomData,
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the table is initialized; it is not mapped any more.
        unsafe { bindings::sg_free_table(self.sgt.get()) };
    }
}

/// An iterator over the DMA addresses of system memory in the order of the object. It returns the
/// address and the length in bytes of each piece.
///
/// # Invariants
///
/// `sg` is an entry of a mapped table valid for `'a` with `left - 1` more entries after it, unless
/// `left` is 0.
pub struct Segments<'a> {
    sg: *mut bindings::scatterlist,
    left: u32,
    _p: PhantomData<&'a Table>,
}

impl<'a> Segments<'a> {
    pub(crate) fn of(table: &'a Table) -> Self {
        table.segments()
    }
}

impl Iterator for Segments<'_> {
    type Item = (DmaAddress, u64);

    #[inline(never)]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        // INVARIANT: There is a next entry unless `left` is 0 now.
        // SAFETY: By the type invariant.
        unsafe {
            let segment = (
                bindings::sg_dma_address(self.sg),
                u64::from(bindings::sg_dma_len(self.sg)),
            );

            self.sg = bindings::sg_next(self.sg);
            Some(segment)
        }
    }
}

type List = RBTree<usize, Arc<Table>>;

/// The tables of a device, by the address of the `struct ttm_tt`.
pub(in crate::drm) struct Tables {
    list: Pin<KBox<Mutex<List>>>,
    mapped: Atomic<u64>,
}

impl Tables {
    // Not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    pub(in crate::drm) fn new() -> Result<Self> {
        Ok(Self {
            list: KBox::pin_init(new_mutex!(RBTree::new(), "drm::ttm::Tables"), GFP_KERNEL)?,
            mapped: Atomic::new(0),
        })
    }

    /// Returns how many bytes are mapped.
    pub(in crate::drm) fn mapped(&self) -> u64 {
        self.mapped.load(Relaxed)
    }

    /// Returns the table of `tt`, or [`None`] if its pages are not mapped.
    pub(in crate::drm) fn get(&self, tt: NonNull<bindings::ttm_tt>) -> Option<Arc<Table>> {
        self.list.lock().get(&tt.addr().get()).cloned()
    }

    /// Maps the pages of `tt` unless they are mapped.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if memory runs out.
    /// - The errors of `dma_map_sgtable()`.
    ///
    /// # Safety
    ///
    /// - `dev` must be bound. [`Self::unmap_all`] must be called before it is unbound but after
    ///   this function has returned.
    /// - `tt` must have all of its pages until [`Self::unmap`] is called.
    /// - The reservation of the object that owns `tt` must be held.
    pub(in crate::drm) unsafe fn map(
        &self,
        dev: &device::Device,
        tt: NonNull<bindings::ttm_tt>,
    ) -> Result {
        if self.get(tt).is_some() {
            return Ok(());
        }

        let room = RBTreeNodeReservation::new(GFP_KERNEL)?;
        // SAFETY: As promised by the caller. A table is unmapped when it is removed from the list.
        let table = unsafe { Table::new(dev, tt) }?;
        self.mapped.fetch_add(table.len, Relaxed);
        // No other task maps the pages because the reservation is held.
        self.list
            .lock()
            .insert(room.into_node(tt.addr().get(), table));
        Ok(())
    }

    /// Ends the mapping of `tt` if it is mapped.
    ///
    /// # Safety
    ///
    /// No job may still use the mapping. `dev` must be the device of the mapping.
    pub(in crate::drm) unsafe fn unmap(&self, dev: &device::Device, tt: NonNull<bindings::ttm_tt>) {
        let mut list = self.list.lock();

        if let Some(table) = list.remove(&tt.addr().get()) {
            self.mapped.fetch_sub(table.len, Relaxed);
            // SAFETY: As promised by the caller. The table was on the list, so the device is bound:
            // `unmap_all` waits for the lock.
            unsafe { table.unmap(dev) };
        }
    }

    /// Ends all mappings. A table with another reference is logged for debugging: it belongs to a
    /// job not finished by the driver or to a task whose move is about to fail.
    ///
    /// # Safety
    ///
    /// `dev` must be the device of the mappings.
    pub(in crate::drm) unsafe fn unmap_all(&self, dev: &device::Device) {
        let mut list = self.list.lock();

        let all = iter::from_fn(|| Some(list.cursor_front_mut()?.remove_current().1));
        for (_, table) in all.map(|node| node.to_key_value()) {
            self.mapped.fetch_sub(table.len, Relaxed);
            // SAFETY: As promised by the caller; the table was on the list.
            unsafe { table.unmap(dev) };
            if Arc::into_unique_or_drop(table).is_none() {
                dev_dbg!(dev, "pages are still in use after the unplug\n");
            }
        }
    }
}

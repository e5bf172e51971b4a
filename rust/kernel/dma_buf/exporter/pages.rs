// SPDX-License-Identifier: GPL-2.0

//! Pages of system memory for exporters.
//!
//! [`Pages`] owns the memory of a buffer. Every user holds a reference to it: the tables of
//! importers ([`MapRequest::map_pages`]), the kernel mapping and, page by page, the mappings of
//! processes. So an exporter may drop or replace its [`Pages`] at any time.
//!
//! An exporter of system memory needs neither PCI nor `unsafe`; [`Exporter`] has an example. It
//! differs from an exporter of a BAR:
//!
//! - [`Exporter::map`] calls [`MapRequest::map_pages`].
//! - [`Exporter::begin_cpu_access`] and [`Exporter::end_cpu_access`] call `sync_for_cpu()` and
//!   `sync_for_device()` for each attachment. In between the CPU sees the writes of devices.
//! - [`Exporter::pages`] returns the memory in place of [`Exporter::mmap`] and [`Exporter::vmap`].
//!   A process gets each page when it accesses it.
//!
//! An unbind does not wait for mappings of system memory. It removes those of processes: a later
//! access raises `SIGBUS`. An exporter with an [`Exporter::mmap`] of its own removes them itself;
//! for GEM objects the unplug of the DRM device does.
//!
//! C header: [`include/linux/scatterlist.h`](srctree/include/linux/scatterlist.h)

use super::{
    table::{
        valid,
        Mapping,
        Memory,
        Table, //
    },
    Exporter,
    KernelMapping,
    MapRequest, //
};
use crate::{
    alloc::{
        flags::__GFP_ZERO,
        Flags, //
    },
    bindings,
    device::Device,
    dma::DataDirection,
    error::to_result,
    iosys_map::IosysMap,
    page::{
        Page,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc, //
};
use core::{
    mem,
    ptr::NonNull, //
};

/// The attributes of mappings. Several importers map the same pages at a time; without the flag the
/// checks of `CONFIG_DMA_API_DEBUG` take this for a leak.
// CAST: A flag of 32 bits.
const ATTRS: usize = bindings::DMA_ATTR_DEBUGGING_IGNORE_CACHELINES as usize;

/// Returns the maximal length in bytes of an entry of a scatter table of `dev`: a page or more.
///
/// # Errors
///
/// `EINVAL` if it is shorter than a page: the C code warns about that.
pub(crate) fn segment_limit(dev: &Device) -> Result<c_uint> {
    // SAFETY: The device is valid.
    let limit = unsafe { bindings::dma_get_max_seg_size(dev.as_raw()) };

    if (limit as usize) < PAGE_SIZE {
        return Err(EINVAL);
    }
    Ok(limit)
}

/// Pages of system memory in the order of a buffer.
///
/// # Invariants
///
/// Each pointer is that of a page of order 0 and owns a reference to it.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::exporter::pages::Pages,
///     page::{
///         Page,
///         PAGE_SIZE, //
///     },
///     prelude::*, //
/// };
///
/// let pages = Pages::new(2 * PAGE_SIZE, GFP_KERNEL_ACCOUNT)?;
/// assert_eq!(pages.size(), 2 * PAGE_SIZE);
/// assert_eq!(Pages::new(PAGE_SIZE + 1, GFP_KERNEL).err(), Some(EINVAL));
/// assert_eq!(Pages::new(0, GFP_KERNEL).err(), Some(EINVAL));
///
/// // The driver may allocate the pages by itself.
/// let page = Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?;
/// assert_eq!(Pages::from_pages([page])?.size(), PAGE_SIZE);
/// # Ok::<(), Error>(())
/// ```
pub struct Pages {
    list: KVVec<*mut bindings::page>,
}

// SAFETY: Pages may be freed from any task.
unsafe impl Send for Pages {}

// SAFETY: The list does not change and no method accesses the content of the pages.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates `size` bytes of zeroed memory.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `size` is 0 or not a multiple of the page size.
    /// - `ENOMEM` if memory runs out.
    pub fn new(size: usize, flags: Flags) -> Result<Arc<Self>> {
        if size == 0 || size % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }

        let mut pages = Self::with_capacity(size / PAGE_SIZE)?;
        for _ in 0..size / PAGE_SIZE {
            pages.push(Page::alloc_page(flags | __GFP_ZERO)?)?;
        }
        Ok(Arc::new(pages, GFP_KERNEL)?)
    }

    /// Takes over pages.
    ///
    /// Importers and processes mapping the buffer see the content of the pages.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn from_pages(pages: impl IntoIterator<Item = Page>) -> Result<Arc<Self>> {
        let source = pages.into_iter();
        let mut pages = Self::with_capacity(source.size_hint().0)?;

        for page in source {
            pages.push(page)?;
        }
        Ok(Arc::new(pages, GFP_KERNEL)?)
    }

    fn with_capacity(count: usize) -> Result<Self> {
        // INVARIANT: There is no page.
        Ok(Self {
            list: KVVec::with_capacity(count, GFP_KERNEL)?,
        })
    }

    /// Appends a page.
    fn push(&mut self, page: Page) -> Result {
        self.list.push(page.as_ptr(), GFP_KERNEL)?;
        // INVARIANT: The reference passes to the list.
        mem::forget(page);
        Ok(())
    }

    /// Returns the size in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        // OVERFLOW: All of these bytes are in memory.
        self.list.len() * PAGE_SIZE
    }

    /// Returns the page at an index, [`None`] if there is none.
    #[inline]
    pub(super) fn page(&self, index: usize) -> Option<NonNull<bindings::page>> {
        self.list.get(index).copied().and_then(NonNull::new)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        for &page in self.list.iter() {
            // SAFETY: By the type invariant the page is one of order 0 with a reference, which is
            // dropped here.
            unsafe { bindings::__free_pages(page, 0) };
        }
    }
}

/// Pages mapped into the kernel until the value is dropped.
///
/// # Invariants
///
/// `addr` is where this value has mapped all of `pages`.
pub struct PagesMapping {
    addr: NonNull<c_void>,
    pages: Arc<Pages>,
}

// SAFETY: The mapping may be used and removed by any task.
unsafe impl Send for PagesMapping {}

impl PagesMapping {
    /// Maps pages. Sleeps.
    ///
    /// Mirrors `vmap()`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory or the address space runs out.
    #[inline(never)]
    pub fn new(pages: Arc<Pages>) -> Result<Self> {
        let count = pages.list.len().try_into()?;

        // SAFETY: The array is valid for its length and not written to. The new value keeps its
        // pages.
        let addr = unsafe {
            bindings::vmap(
                pages.list.as_ptr().cast_mut(),
                count,
                // CAST: The flag fits.
                bindings::VM_MAP as c_ulong,
                bindings::page_kernel(),
            )
        };

        // INVARIANT: Mapped above.
        Ok(Self {
            addr: NonNull::new(addr).ok_or(ENOMEM)?,
            pages,
        })
    }
}

// SAFETY: By the type invariant all pages are mapped until the value is dropped.
unsafe impl KernelMapping for PagesMapping {
    #[inline]
    fn map(&self) -> IosysMap {
        // SAFETY: By the type invariant.
        unsafe { IosysMap::from_sysmem(self.addr.as_ptr()) }
    }

    #[inline]
    fn size(&self) -> usize {
        self.pages.size()
    }
}

impl Drop for PagesMapping {
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: By the type invariant the address was returned by `vmap()`.
        unsafe { bindings::vunmap(self.addr.as_ptr()) };
    }
}

impl<'r, E: Exporter> MapRequest<'r, E> {
    /// Maps pages of system memory for the importer. Sleeps.
    ///
    /// The table keeps the pages until the importer has unmapped it. Mirrors `dma_map_sgtable()`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the pages do not add up to the size of the buffer, `dir` is none or entries of
    ///   the importer have to be shorter than a page.
    /// - `EBUSY` if there is a mapping for this request already.
    /// - `ENOMEM`, `EIO` or `EREMOTEIO` if the mapping fails.
    ///
    /// See [`Exporter`] for an example.
    pub fn map_pages(&self, pages: &Arc<Pages>, dir: DataDirection) -> Result<Mapping<'r>> {
        // SAFETY: The table keeps the pages.
        unsafe { self.map_list(&pages.list, Some(pages.clone()), dir) }
    }

    /// Maps pages for the importer; the caller keeps the pages. Sleeps.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::map_pages`].
    ///
    /// # Safety
    ///
    /// The pages must stay until the importer has unmapped them, or its mapping was invalidated and
    /// the fences of its work have signalled.
    pub(crate) unsafe fn map_raw_pages(
        &self,
        pages: &[*mut bindings::page],
        dir: DataDirection,
    ) -> Result<Mapping<'r>> {
        // SAFETY: As promised by the caller.
        unsafe { self.map_list(pages, None, dir) }
    }

    /// # Safety
    ///
    /// The pages must stay as long as `owner`; without an owner the requirements of
    /// [`Self::map_raw_pages`] apply.
    unsafe fn map_list(
        &self,
        pages: &[*mut bindings::page],
        owner: Option<Arc<Pages>>,
        dir: DataDirection,
    ) -> Result<Mapping<'r>> {
        let size = self.dma_buf().size();
        if pages.len().checked_mul(PAGE_SIZE) != Some(size) {
            return Err(EINVAL);
        }

        let dir = valid(dir)?;
        let count = pages.len().try_into()?;
        // SAFETY: The attachment is valid and so is its device.
        let dev = unsafe { (*self.as_raw()).dev };
        // SAFETY: The device is valid.
        let max_segment = segment_limit(unsafe { Device::from_raw(dev) })?;
        let sgt = KBox::new(bindings::sg_table::default(), GFP_KERNEL)?;
        let sgt = KBox::into_raw(sgt);

        // SAFETY: The table is not initialized yet. The array is valid for its length and not
        // written to. The device is valid. On failure nothing is left.
        let ret = to_result(unsafe {
            bindings::sg_alloc_table_from_pages_segment(
                sgt,
                pages.as_ptr().cast_mut(),
                count,
                0,
                size,
                max_segment,
                bindings::GFP_KERNEL,
            )
        })
        .and_then(|()| {
            // SAFETY: The table was just created. The caller promises that its pages stay.
            to_result(unsafe { bindings::dma_map_sgtable(dev, sgt, dir, ATTRS) }).inspect_err(
                |_| {
                    // SAFETY: The table is not mapped.
                    unsafe { bindings::sg_free_table(sgt) }
                },
            )
        });
        if let Err(e) = ret {
            // SAFETY: Created above and not used any more.
            drop(unsafe { KBox::from_raw(sgt) });
            return Err(e);
        }

        // SAFETY: A box is not null. The table was mapped above.
        let table = unsafe { Table::new(NonNull::new_unchecked(sgt), dir, Memory::Pages(owner)) };

        self.keep(table)
    }
}

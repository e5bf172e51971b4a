// SPDX-License-Identifier: GPL-2.0

//! The struct pages of a BAR.
//!
//! Some users of peer-to-peer memory need struct pages. An example is a device-private page, which
//! names the BAR page of the same bytes. `pci_p2pdma_add_resource()` creates such pages and a pool.
//! From the pool other drivers and userspace can allocate them, the latter by `p2pmem/allocate` in
//! sysfs. A driver with VRAM behind the BAR has an allocator of its own: it takes the whole pool as
//! [`BarPages`]. Pages with possible references of other code are in [`live`](super::live).
//!
//! The pages cost 64 bytes for each 4 KiB of the BAR.
//!
//! C header: [`include/linux/pci-p2pdma.h`](srctree/include/linux/pci-p2pdma.h)

use super::{
    Device,
    Provider, //
};
use crate::{
    bindings,
    device,
    error::to_result,
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};
use core::ptr::NonNull;

/// The whole pool of a BAR until the value is dropped.
///
/// # Invariants
///
/// `addr` was returned by `pci_alloc_p2pmem()` for `len` bytes of `pdev` and is not freed yet.
/// These are the first `len` bytes of the BAR. An unbind waits in `memunmap_pages()` until they are
/// freed, so the pages and the pool are valid as long as the value.
pub(super) struct Pool {
    pdev: ARef<Device>,
    addr: NonNull<c_void>,
    len: u64,
}

// SAFETY: The pool has locks of its own and the memory is not accessed.
unsafe impl Send for Pool {}

// SAFETY: As for `Send`.
unsafe impl Sync for Pool {}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, the device is bound and the memory was not freed.
        // CAST: The memory was allocated with this size.
        unsafe {
            bindings::pci_free_p2pmem(self.pdev.as_raw(), self.addr.as_ptr(), self.len as usize)
        };
    }
}

/// The struct pages of a BAR.
///
/// Page 0 is the first one of the BAR. The value and its clones own the whole pool until the last
/// of them is dropped: no other driver and no process gets any of it meanwhile.
///
/// # Invariants
///
/// `pool` belongs to the device of `provider`. Page frame `first` is the first one of the BAR. For
/// `'a` the frames from it up to `pool.len` bytes have struct pages of the type
/// `MEMORY_DEVICE_PCI_P2PDMA`.
#[derive(Clone)]
pub struct BarPages<'a> {
    provider: Provider<'a>,
    pub(super) pool: Arc<Pool>,
    first: usize,
}

impl<'a> BarPages<'a> {
    /// Returns the same pages for as long as their device `pdev` is bound.
    ///
    /// A driver takes the pages in its probe. By this it passes them to code borrowing from the
    /// device for another time, such as the data of a DRM registration.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they belong to another device.
    pub fn of<'b>(&self, pdev: &'b Device<device::Bound>) -> Result<BarPages<'b>> {
        if pdev.as_raw() != self.device().as_raw() {
            return Err(EINVAL);
        }
        // INVARIANT: `self` exists, so this is the binding in which the pages were created. It
        // lasts for `'b`.
        Ok(BarPages {
            provider: pdev.p2pdma_provider(self.provider.bar())?,
            pool: self.pool.clone(),
            first: self.first,
        })
    }

    /// Returns how many bytes of the BAR have pages.
    #[inline]
    pub fn len(&self) -> u64 {
        self.pool.len
    }

    /// Returns the physical address of the BAR.
    #[inline]
    pub(crate) fn start(&self) -> u64 {
        (self.first as u64) << PAGE_SHIFT
    }

    /// Returns how many bytes of system memory the pages cost.
    #[inline]
    pub fn cost(&self) -> u64 {
        (self.pool.len >> PAGE_SHIFT) * size_of::<bindings::page>() as u64
    }

    /// Returns whether no part of the BAR has pages. This is never the case.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pool.len == 0
    }

    /// Returns the device of the BAR.
    #[inline]
    pub fn device(&self) -> &'a Device<device::Bound> {
        self.provider.device()
    }

    /// Returns the page at `offset` bytes of the BAR, or [`None`] if there is none.
    ///
    /// May be called in any context.
    #[inline]
    pub(crate) fn page(&self, offset: u64) -> Option<*mut bindings::page> {
        if offset >= self.pool.len {
            return None;
        }

        // CAST: The BAR is in the address space and `usize` covers it on 64-bit machines.
        let index = (offset >> PAGE_SHIFT) as usize;
        // SAFETY: By the type invariant the page frame has a struct page.
        Some(unsafe { bindings::pfn_to_page(self.first.wrapping_add(index)) })
    }
}

/// Returns whether the page frames of the first and the last byte of the physical addresses from
/// `start` to `end` have pages of the same set of peer-to-peer pages.
fn has_pages(start: u64, end: u64) -> bool {
    /// A reference to a `struct dev_pagemap`, or null.
    struct PageMap(*mut bindings::dev_pagemap);

    impl PageMap {
        fn at(addr: u64) -> Self {
            // SAFETY: The function takes any page frame number.
            // CAST: A page frame number is a `usize`.
            Self(unsafe { bindings::get_dev_pagemap((addr >> PAGE_SHIFT) as usize) })
        }
    }

    impl Drop for PageMap {
        fn drop(&mut self) {
            // SAFETY: The pointer is null or a reference returned by `get_dev_pagemap()`.
            unsafe { bindings::put_dev_pagemap(self.0) };
        }
    }

    let (first, last) = (PageMap::at(start), PageMap::at(end.saturating_sub(1)));

    if first.0.is_null() || first.0 != last.0 {
        return false;
    }

    // SAFETY: The reference keeps the structure. Its type does not change.
    unsafe { (*first.0).type_ == bindings::memory_type_MEMORY_DEVICE_PCI_P2PDMA }
}

impl Provider<'_> {
    /// Returns how many bytes of the BAR can have pages: memory is added in sections.
    fn pages_len(&self) -> u64 {
        // SAFETY: The function has no requirements.
        let align = unsafe { bindings::memremap_compat_align() } as u64;

        if self.start % align != 0 {
            return 0;
        }
        self.len - self.len % align
    }
}

impl Device<device::Core<'_>> {
    /// Creates struct pages for BAR `bar` after [`enable_p2pdma`](Device::enable_p2pdma). This is
    /// undone when the driver is unbound.
    ///
    /// Memory is added in sections of 2 MiB on x86: the part of the BAR behind the last section has
    /// no pages. The BAR is reserved for write-combining mappings, because otherwise its pages
    /// would make every later mapping of it uncached. Further calls do nothing.
    ///
    /// Mirrors `pci_p2pdma_add_resource()`. It asks for the [`Core`](device::Core) context because
    /// the C function must not run twice at a time for one device.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such BAR, it is not a memory BAR or it has no whole section.
    /// - `ENXIO` if peer-to-peer was not enabled.
    /// - `ENOMEM` if memory runs out, and the errors of `memremap_pages()`.
    #[inline(never)]
    pub fn add_p2pdma_pages(&self, bar: u32) -> Result {
        let provider = self.p2pdma_provider(bar)?;
        let len = provider.pages_len();

        if len == 0 {
            return Err(EINVAL);
        }
        if has_pages(provider.start, provider.start + len) {
            return Ok(());
        }

        let dev: &device::Device<device::Bound> = provider.pdev.as_ref();
        // SAFETY: The device is bound, as a device-managed resource needs.
        to_result(unsafe {
            bindings::devm_arch_io_reserve_memtype_wc(dev.as_raw(), provider.start, len)
        })?;

        // SAFETY: The device is bound and its device lock held. The range is inside the BAR.
        // CAST: The number of a BAR is small and the size is in the address space.
        to_result(unsafe {
            bindings::pci_p2pdma_add_resource(self.as_raw(), bar as i32, len as usize, 0)
        })
    }
}

impl<'a> Provider<'a> {
    /// Takes all pages of the BAR after [`add_p2pdma_pages`](Device::add_p2pdma_pages).
    ///
    /// # Errors
    ///
    /// - `ENXIO` if the BAR has no pages.
    /// - `EBUSY` if one of them is in use: root may map some as soon as they exist. A driver can do
    ///   without them.
    #[inline(never)]
    pub fn take_pages(&self) -> Result<BarPages<'a>> {
        let len = self.pages_len();

        if len == 0 || !has_pages(self.start, self.start + len) {
            return Err(ENXIO);
        }

        // SAFETY: The device is bound and has a pool because it has pages.
        // CAST: A size in the address space.
        let addr = unsafe { bindings::pci_alloc_p2pmem(self.pdev.as_raw(), len as usize) };
        // INVARIANT: The memory was just allocated. It is freed here or by a `BarPages`.
        let pool = Pool {
            pdev: self.pdev.into(),
            addr: NonNull::new(addr).ok_or(EBUSY)?,
            len,
        };

        // The pool has the pages of all BARs of the device.
        // SAFETY: The address is one of the linear map.
        if unsafe { bindings::virt_to_phys(addr) } != self.start {
            return Err(EBUSY);
        }
        // INVARIANT: The check above has found pages. Devres releases them, so they are valid while
        // the device is bound.
        Ok(BarPages {
            provider: *self,
            pool: Arc::new(pool, GFP_KERNEL)?,
            first: (self.start >> PAGE_SHIFT) as usize,
        })
    }
}

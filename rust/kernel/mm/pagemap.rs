// SPDX-License-Identifier: GPL-2.0

//! Struct pages of CPU-inaccessible memory.
//!
//! Memory of a device may be used in place of anonymous memory of a process. Then the page table
//! entries of the process are not present and name a device-private page. The page has a struct
//! page and a frame number in an otherwise unused range of physical addresses. An access by the CPU
//! faults and the fault moves the page back.
//!
//! C header: [`include/linux/memremap.h`](srctree/include/linux/memremap.h)

use crate::{
    bindings,
    error::from_err_ptr,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    types::Opaque, //
};

/// A range of physical addresses with neither memory nor a device.
///
/// # Invariants
///
/// The range was requested and is released by the value.
struct FreeRegion {
    start: u64,
    len: u64,
}

impl FreeRegion {
    /// Requests a range of at least `size` bytes. It begins at a multiple of the size of a memory
    /// section. `name` is shown in `/proc/iomem`.
    fn new(size: usize, name: &'static CStr) -> Result<Self> {
        // SAFETY: The function locks the tree of resources. The name is static.
        let region = from_err_ptr(unsafe {
            bindings::request_free_mem_region(
                &raw mut bindings::iomem_resource,
                size,
                name.as_char_ptr(),
            )
        })?;

        // SAFETY: The range was just requested. It is not released before the value is dropped.
        let (start, end) = unsafe { ((*region).start, (*region).end) };
        // INVARIANT: As above. The end is the last byte.
        Ok(Self {
            start,
            len: end - start + 1,
        })
    }
}

impl Drop for FreeRegion {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe {
            bindings::__release_region(&raw mut bindings::iomem_resource, self.start, self.len)
        };
    }
}

/// The device-private pages of a device.
///
/// Page 0 begins at a multiple of at least 2 MiB. So memory has the same alignment in the memory of
/// the device and in page frames.
///
/// # Invariants
///
/// - `raw` has the parameters of [`Self::new`] and its pages exist.
/// - `count` page frames from frame `first` on have struct pages.
#[pin_data(PinnedDrop)]
pub(crate) struct PrivatePages {
    ops: bindings::dev_pagemap_ops,
    #[pin]
    raw: Opaque<bindings::dev_pagemap>,
    first: usize,
    count: usize,
    // Dropped after the pages.
    _region: FreeRegion,
}

// SAFETY: The pages may be used and removed from any task.
unsafe impl Send for PrivatePages {}

// SAFETY: The structure belongs to the C code. The C code locks it where needed. The rest is
// constant.
unsafe impl Sync for PrivatePages {}

impl PrivatePages {
    /// Creates the pages of `size` bytes of memory on the node `nid`. The value itself is their
    /// owner: pages of another value are never mistaken for pages of this one.
    ///
    /// `name` is shown in `/proc/iomem`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `size` is 0 or not a multiple of the page size.
    /// - `ERANGE` if there are not enough free physical addresses.
    /// - `ENOMEM` if memory runs out, and the errors of `memremap_pages()`.
    ///
    /// # Safety
    ///
    /// The functions of `ops` must be those of device-private pages. They must be safe to call for
    /// the pages of the value until it is dropped.
    pub(crate) unsafe fn new(
        ops: bindings::dev_pagemap_ops,
        size: usize,
        nid: c_int,
        name: &'static CStr,
    ) -> Result<impl PinInit<Self, Error>> {
        // SAFETY: The function has no requirements.
        let align = unsafe { bindings::memremap_compat_align() };
        if size == 0 || size % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        let len = size.checked_next_multiple_of(align).ok_or(EINVAL)?;
        let region = FreeRegion::new(len, name)?;
        let start = region.start;

        Ok(try_pin_init!(&this in Self {
            ops,
            raw <- Opaque::try_ffi_init(move |raw: *mut bindings::dev_pagemap| {
                // SAFETY: `raw` is memory for the structure, and all zeroes are a valid value of
                // it. `this` points to the value, which does not move and has its operations. The
                // range is free for at least as long as `region` exists.
                unsafe {
                    raw.write_bytes(0, 1);
                    (*raw).type_ = bindings::memory_type_MEMORY_DEVICE_PRIVATE;
                    (*raw).ops = &raw const (*this.as_ptr()).ops;
                    (*raw).owner = raw.cast();
                    (*raw).nr_range = 1;
                    bindings::dev_pagemap_set_range(raw, start, len as u64);
                    from_err_ptr(bindings::memremap_pages(raw, nid)).map(|_| ())
                }
            }),
            // CAST: Page frame numbers are of this type.
            first: (start >> PAGE_SHIFT) as usize,
            // Memory is added in sections. Pages beyond the memory of the device are not used.
            count: size >> PAGE_SHIFT,
            _region: region,
        }? Error))
    }

    /// Returns how many pages there are.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the frame number of page `index`.
    #[inline]
    pub(crate) fn pfn(&self, index: usize) -> usize {
        self.first.wrapping_add(index)
    }

    /// Returns the number of a page, or [`None`] if it is not one of these pages.
    ///
    /// May be called in any context.
    #[inline]
    pub(crate) fn index(&self, page: *mut bindings::page) -> Option<usize> {
        // SAFETY: The function computes with the address.
        let index = unsafe { bindings::page_to_pfn(page) }.wrapping_sub(self.first);

        (index < self.count).then_some(index)
    }

    /// Returns the C structure.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::dev_pagemap {
        self.raw.get()
    }

    /// Returns the value owning a C structure.
    ///
    /// # Safety
    ///
    /// `raw` must belong to such a value.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: *mut bindings::dev_pagemap) -> *mut Self {
        let raw = Opaque::cast_from(raw).cast_mut();

        // SAFETY: As the caller promises.
        unsafe { crate::container_of!(raw, Self, raw) }
    }
}

#[pinned_drop]
impl PinnedDrop for PrivatePages {
    fn drop(self: Pin<&mut Self>) {
        // This waits until no page is in use.
        // SAFETY: By the type invariant the pages exist.
        unsafe { bindings::memunmap_pages(self.raw.get()) };
    }
}

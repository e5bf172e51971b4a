// SPDX-License-Identifier: GPL-2.0

//! Addresses that are either system memory or I/O memory.
//!
//! C header: [`include/linux/iosys-map.h`](srctree/include/linux/iosys-map.h)

use crate::{
    bindings,
    prelude::*, //
};

/// A kernel address together with the kind of memory it points to, `struct iosys_map`.
///
/// It describes where a mapping is. It neither owns nor borrows the mapping. The owner of the
/// mapping provides the accesses.
///
/// # Examples
///
/// ```
/// use kernel::iosys_map::IosysMap;
///
/// let mut word = 0u32;
/// // SAFETY: `word` outlives `map`.
/// let map = unsafe { IosysMap::from_sysmem((&raw mut word).cast()) };
///
/// assert!(!map.is_iomem());
/// assert_eq!(map.addr(), (&raw mut word).cast());
/// ```
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct IosysMap(bindings::iosys_map);

// SAFETY: An address may be sent to any task. No method of this type accesses it.
unsafe impl Send for IosysMap {}

// SAFETY: As for `Send`.
unsafe impl Sync for IosysMap {}

impl IosysMap {
    /// Names the I/O memory at `addr` as `iosys_map_set_vaddr_iomem()` does.
    ///
    /// # Safety
    ///
    /// `addr` must be I/O memory of the kernel. It must stay mapped for as long as the value may be
    /// used to access it. For the value of a
    /// [`KernelMapping`](crate::dma_buf::exporter::KernelMapping) this is until the mapping is
    /// dropped.
    #[inline]
    pub unsafe fn from_iomem(addr: *mut c_void) -> Self {
        Self(bindings::iosys_map {
            __bindgen_anon_1: bindings::iosys_map__bindgen_ty_1 { vaddr_iomem: addr },
            is_iomem: true,
        })
    }

    /// Names the system memory at `addr` as `iosys_map_set_vaddr()` does.
    ///
    /// # Safety
    ///
    /// As for [`Self::from_iomem`] with system memory.
    #[inline]
    pub unsafe fn from_sysmem(addr: *mut c_void) -> Self {
        Self(bindings::iosys_map {
            __bindgen_anon_1: bindings::iosys_map__bindgen_ty_1 { vaddr: addr },
            is_iomem: false,
        })
    }

    /// Returns whether the address has to be used with accessors for I/O memory.
    #[inline]
    pub fn is_iomem(&self) -> bool {
        self.0.is_iomem
    }

    /// Returns the address. [`Self::is_iomem`] says how to access it.
    #[inline]
    pub fn addr(&self) -> *mut c_void {
        // SAFETY: Both members of the union are pointers and one of them is always set.
        unsafe { self.0.__bindgen_anon_1.vaddr }
    }

    /// Returns the C structure.
    #[inline]
    pub(crate) fn into_raw(self) -> bindings::iosys_map {
        self.0
    }

    /// Takes the C structure.
    ///
    /// # Safety
    ///
    /// As for [`Self::from_iomem`] with the memory named by `raw`.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: bindings::iosys_map) -> Self {
        Self(raw)
    }
}

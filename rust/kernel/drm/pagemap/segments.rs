// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The pieces copied in a migration.

use super::base::Base;
use crate::{
    bindings,
    device::Device,
    drm::vram::dma_device,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    }, //
};

/// The direction of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the memory of the device.
    ToDevice,
    /// To system memory.
    ToRam,
}

/// The other end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// There is no source. The memory of the device has to be cleared, because it may have content
    /// of a former owner.
    Zero,
    /// System memory at this DMA address of the device.
    Dma(u64),
}

/// A piece contiguous at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The offset in the memory of the device, in bytes.
    pub offset: u64,
    /// The length in bytes: a multiple of the page size.
    pub len: usize,
    /// The other end.
    pub peer: Peer,
}

/// The pieces of a copy in the order of the addresses of the process.
///
/// Valid during the copy only: the DMA addresses are unmapped after that.
#[derive(Clone)]
pub struct Segments<'a> {
    base: &'a Base,
    pages: &'a [*mut bindings::page],
    addrs: &'a [bindings::drm_pagemap_addr],
    next: usize,
    direction: Direction,
}

impl<'a> Segments<'a> {
    /// Creates the pieces of a copy requested by the C code.
    ///
    /// # Safety
    ///
    /// The slices must be the arguments of the operation of `struct drm_pagemap_devmem_ops` for
    /// `direction` and for pages of `base`.
    pub(super) unsafe fn new(
        base: &'a Base,
        pages: &'a [*mut bindings::page],
        addrs: &'a [bindings::drm_pagemap_addr],
        direction: Direction,
    ) -> Self {
        Self {
            base,
            pages,
            addrs,
            next: 0,
            direction,
        }
    }

    /// Returns the direction of the copy.
    #[inline]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns how many pages all pieces have together.
    pub(super) fn count_pages(&self) -> u64 {
        self.clone()
            .map(|segment| (segment.len / PAGE_SIZE) as u64)
            .sum()
    }

    /// Returns the device to which the DMA addresses belong.
    pub(super) fn dma_device(&self) -> &'a Device {
        // SAFETY: The DRM device is valid. It keeps its DMA device while its driver is bound.
        unsafe { dma_device((*self.base.as_raw()).drm) }
    }
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        while let (Some(&page), Some(addr)) = (self.pages.get(self.next), self.addrs.get(self.next))
        {
            let at = self.next;
            let is_mapped = addr.addr != 0;

            // There may be pages that are not copied. The pages of a folio after its first one have
            // no entries.
            if page.is_null() || (self.direction == Direction::ToRam && !is_mapped) {
                self.next = at + 1;
                continue;
            }

            let count = match self.direction {
                // The folio was allocated for the copy and this is its first page. The order of the
                // address is the same, but a folio to be cleared has no address.
                // SAFETY: The page is valid and its folio locked.
                Direction::ToDevice => unsafe { bindings::compound_nr(page) },
                // A folio of the device may be copied to several folios of system memory, each with
                // an address.
                Direction::ToRam => 1 << addr.order().min(u64::from(usize::BITS - 1)),
            };
            let count = count.min(self.pages.len() - at);

            self.next = at + count;
            // All pages belong to one device.
            let index = self.base.pages().index(page)?;

            return Some(Segment {
                offset: (index as u64) << PAGE_SHIFT,
                // OVERFLOW: There are at most as many pages as in a chunk.
                len: count * PAGE_SIZE,
                peer: if is_mapped {
                    Peer::Dma(addr.addr)
                } else {
                    Peer::Zero
                },
            });
        }
        None
    }
}

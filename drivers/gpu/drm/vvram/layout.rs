// SPDX-License-Identifier: GPL-2.0

//! VRAM whose pages the BAR shows in another order, and VRAM with holes.
//!
//! The memory of this device is not like that; both are for tests. Code that takes an offset in
//! VRAM for the offset in the BAR then accesses another page, and code that takes VRAM for
//! contiguous meets a hole.

use kernel::{
    drm::vram::{
        Allocation,
        Allocator,
        Layout, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sizes::SZ_1M,
    sync::Arc, //
};

use crate::module_parameters;

/// Makes the allocator of `size` bytes of VRAM, of which the BAR shows the first `bar_len` bytes.
///
/// Objects and device-private memory share it.
pub(crate) fn allocator(size: u64, bar_len: u64) -> Result<Arc<Allocator>> {
    if module_parameters::scramble.value() == 0 {
        return Allocator::new(0..size);
    }

    // Coprime to the number of pages, so that no two pages get the same place.
    const FACTOR: u64 = 0x9e37_79b1;
    const START: u64 = 7;

    let pages = bar_len >> PAGE_SHIFT;
    let mut order = KVVec::with_capacity(pages.try_into()?, GFP_KERNEL)?;
    for page in 0..pages {
        order.push((page * FACTOR + START) % pages, GFP_KERNEL)?;
    }
    Allocator::with_layout(0..size, Layout::new(PAGE_SIZE as u64, order)?)
}

/// Reserves pages of VRAM: one in each MiB, each at another offset.
pub(crate) fn holes(vram: &Allocator) -> Result<KVVec<Allocation>> {
    let mut holes = KVVec::new();
    if module_parameters::holes.value() == 0 {
        return Ok(holes);
    }

    let (mib, page) = (SZ_1M as u64, PAGE_SIZE as u64);
    for number in 0..vram.size() / mib {
        let start = number * mib + number * 37 * page % mib;

        holes.push(vram.reserve(start..start + page)?, GFP_KERNEL)?;
    }
    Ok(holes)
}

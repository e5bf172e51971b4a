// SPDX-License-Identifier: GPL-2.0

//! VRAM whose pages are in another order in the BAR, and VRAM with holes.
//!
//! The memory of this device is not like this: both are for tests. If code takes an offset in VRAM
//! for the offset in the BAR, it accesses another page. If code takes VRAM for contiguous, it meets
//! a hole.

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

/// Creates the allocator of `size` bytes of VRAM. The BAR shows the first `bar_len` bytes.
///
/// Objects and device-private memory share it.
pub(crate) fn allocator(size: u64, bar_len: u64) -> Result<Arc<Allocator>> {
    if module_parameters::scramble.value() == 0 {
        return Allocator::new(0..size);
    }

    // Coprime to the number of pages, so no two pages get the same place.
    const FACTOR: u64 = 0x9e37_79b1;
    const START: u64 = 7;

    let pages = bar_len >> PAGE_SHIFT;
    let mut order = KVVec::with_capacity(pages.try_into()?, GFP_KERNEL)?;
    for page in 0..pages {
        order.push((page * FACTOR + START) % pages, GFP_KERNEL)?;
    }
    Allocator::with_layout(0..size, Layout::new(PAGE_SIZE as u64, order)?)
}

/// Reserves one page of VRAM in each MiB, each at another offset.
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

// SPDX-License-Identifier: GPL-2.0

//! VRAM that the BAR shows in another order, and that others have parts of.
//!
//! Nothing of this device is like that. It is for tests: code that takes the offset in VRAM for that in
//! the BAR accesses another page, and code that takes VRAM for one piece finds holes.

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

/// A permutation of the pages of a BAR, whose number is a power of two.
struct Scrambled {
    pages: u64,
}

impl Scrambled {
    // Odd, so that no two pages have the same place.
    const FACTOR: u64 = 0x9e37_79b1;
    const START: u64 = 7;
}

impl Layout for Scrambled {
    fn bar_offset(&self, offset: u64) -> u64 {
        let page = (offset >> PAGE_SHIFT)
            .wrapping_mul(Self::FACTOR)
            .wrapping_add(Self::START);

        (page & (self.pages - 1)) << PAGE_SHIFT
    }
}

/// Makes the allocator of `size` bytes of VRAM, of which the BAR shows the first `bar_len` bytes.
pub(crate) fn allocator(size: u64, bar_len: u64) -> Result<Arc<Allocator>> {
    if module_parameters::scramble.value() == 0 {
        return Allocator::new(0..size);
    }

    // A BAR has a power of two.
    let pages = bar_len >> PAGE_SHIFT;
    if !pages.is_power_of_two() {
        return Err(EINVAL);
    }
    let layout = KBox::new(Scrambled { pages }, GFP_KERNEL)?;
    Allocator::with_layout(0..size, bar_len, layout)
}

/// Takes pages out of VRAM: one of each MiB, and not at the same place.
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

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory of a GPU: its allocator and the places of objects.
//!
//! The common part of [TTM](crate::drm::gem::ttm) with its movable objects and of
//! [`gem::vram`](crate::drm::gem::vram) with its VRAM-only objects.

mod allocator;
mod bar_mapping;
mod busy;
mod layout;
mod objects;
mod place;
mod quarantine;
mod ranges;
mod reclaim;

pub use self::{
    allocator::{
        Allocation,
        Allocator, //
    },
    bar_mapping::BarMapping,
    layout::Layout,
    place::{
        Domain,
        MemType, //
    },
    ranges::{
        Range,
        Ranges, //
    },
    reclaim::Reclaim, //
};
pub(crate) use self::{
    bar_mapping::flush,
    busy::free_when_idle,
    objects::{
        ObjectNode,
        Objects, //
    },
    reclaim::fair_share, //
};

use crate::{
    bindings,
    device,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// Adds `bytes` to a sum that is at most `limit`.
///
/// # Errors
///
/// `EDQUOT` if the sum would exceed `limit`.
pub(crate) fn charge(sum: &Atomic<u64>, bytes: u64, limit: u64) -> Result {
    let mut before = sum.load(Relaxed);

    loop {
        let after = before
            .checked_add(bytes)
            .filter(|after| *after <= limit)
            .ok_or(EDQUOT)?;

        match sum.cmpxchg(before, after, Relaxed) {
            Ok(_) => return Ok(()),
            Err(now) => before = now,
        }
    }
}

/// Returns the DMA device of a DRM device. Mirrors `drm_dev_dma_dev()`.
///
/// # Safety
///
/// `drm` must be valid for `'a` and its DMA device must not change during that time.
pub(crate) unsafe fn dma_device<'a>(drm: *mut bindings::drm_device) -> &'a device::Device {
    // SAFETY: As promised by the caller; a DRM device keeps its DMA device and its parent.
    unsafe {
        let dev = if (*drm).dma_dev.is_null() {
            (*drm).dev
        } else {
            (*drm).dma_dev
        };

        device::Device::from_raw(dev)
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The objects: blocks of VRAM.

use kernel::{
    drm::gem::{
        self,
        iomem::{
            self,
            IoMemObject,
            Window, //
        },
        peer::{
            self,
            PeerObject, //
        },
        DriverObject, //
    },
    gpu::buddy::{
        AllocatedBlocks,
        GpuBuddyAllocFlags,
        GpuBuddyAllocMode, //
    },
    page,
    prelude::*,
    ptr::Alignment,
    sync::aref::ARef, //
};

use crate::driver::{
    BoundData,
    VvramDevice,
    VvramDriver, //
};

/// An object, which userspace refers to by a handle.
pub(crate) type Bo = gem::Object<BoData>;

/// The driver's part of an object.
///
/// It may outlive the bound driver in a dma-buf. Its blocks go back to the allocator, which they
/// keep alive; the content of VRAM is not touched after the allocation.
#[pin_data]
pub(crate) struct BoData {
    #[pin]
    blocks: AllocatedBlocks,
    vram_or_fail: bool,
}

impl BoData {
    /// Makes an object of at least `size` bytes that reads as zeroes.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `size` is 0.
    /// - `ENOSPC` if VRAM cannot hold it.
    /// - `ENOMEM` if memory for the administration runs out.
    pub(crate) fn create(
        dev: &VvramDevice,
        bound: &BoundData<'_>,
        size: u64,
        vram_or_fail: bool,
    ) -> Result<ARef<Bo>> {
        if size == 0 {
            return Err(EINVAL);
        }
        // The allocator takes a size above its own for bad input.
        if size > dev.vram.size() {
            return Err(ENOSPC);
        }

        let size = page::page_align(size.try_into()?).ok_or(ENOSPC)?;
        let bo = Bo::new(dev, size, vram_or_fail)?;

        // No handle exists yet, so that nobody sees what was there before.
        PeerObject::for_each_block(&**bo, &mut |offset, len| bound.clear(offset, len))?;
        Ok(bo)
    }
}

static PEER_OPS: peer::Ops<BoData> = peer::Ops::new();

impl DriverObject for BoData {
    type Driver = VvramDriver;
    type Args = bool;

    const PRIME: gem::PrimeHooks<Self> = peer::hooks();
    const CPU: gem::CpuHooks<Self> = iomem::hooks();

    fn new(dev: &VvramDevice, size: usize, vram_or_fail: bool) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            blocks <- dev.vram.alloc_blocks(
                GpuBuddyAllocMode::Simple,
                size as u64,
                Alignment::new::<{ page::PAGE_SIZE }>(),
                GpuBuddyAllocFlags::default(),
            ),
            vram_or_fail,
        })
    }
}

impl PeerObject for BoData {
    fn ops() -> &'static peer::Ops<Self> {
        &PEER_OPS
    }

    fn exports<'a>(bound: &'a BoundData<'a>) -> &'a peer::Exports<'a, Self> {
        &bound.exports
    }

    fn for_each_block(&self, f: &mut dyn FnMut(u64, u64) -> Result) -> Result {
        self.blocks.iter().try_for_each(|b| f(b.offset(), b.size()))
    }

    fn vram_or_fail(&self) -> bool {
        self.vram_or_fail
    }
}

impl IoMemObject for BoData {
    fn window<'a>(bound: &'a BoundData<'a>) -> &'a Window<'a> {
        &bound.window
    }

    fn for_each_block(&self, f: &mut dyn FnMut(u64, u64) -> Result) -> Result {
        PeerObject::for_each_block(self, f)
    }
}

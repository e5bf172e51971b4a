// SPDX-License-Identifier: GPL-2.0

//! The differences between the devices that the driver supports.
//!
//! A device with a copy engine gets a [`Variant`] of its own, whose [`Engine`] uses it.

use kernel::{
    device::Bound,
    dma_buf::fence::FenceGroup,
    drm::{
        pagemap::Segments,
        queue::{
            Entry,
            Queue, //
        },
        ttm::{
            self,
            CpuEngine,
            CpuRing,
            Job,
            Plan,
            Work, //
        },
        vram::{
            Allocator,
            BarMapping, //
            Ranges,
        }, //
    },
    pci,
    prelude::*,
    sync::Arc, //
};

/// A kind of device.
pub(crate) trait Variant: Sync {
    /// The name of the kind, for the log.
    fn name(&self) -> &'static str;

    /// The BAR that shows VRAM.
    fn vram_bar(&self) -> u32;

    /// The size of the part of VRAM that the BAR shows, in bytes.
    fn cpu_visible_size(&self, pdev: &pci::Device<Bound>) -> Result<u64> {
        pdev.resource_len(self.vram_bar())
    }

    /// The size of VRAM in bytes.
    fn vram_size(&self, pdev: &pci::Device<Bound>) -> Result<u64> {
        self.cpu_visible_size(pdev)
    }

    /// Makes the engine, which works on VRAM through `window`.
    fn engine<'a>(&self, window: BarMapping<'a>) -> Result<Arc<dyn Engine + 'a>>;
}

/// How a device works on its VRAM, while the driver is bound.
pub(crate) trait Engine: Send + Sync {
    /// Prepares a job. It may be dropped without being run.
    fn prepare(&self, work: &Work, plan: Plan<'_, CpuRing>) -> Result<Entry<CpuRing>>;

    /// Queues a job. Must neither allocate memory nor take a reservation.
    ///
    /// Moves finish in their order, and all of them before the engine is dropped.
    fn run(&self, job: Job, ready: Entry<CpuRing>);

    /// Makes the queue of a client that has at most `limit` copies at a time.
    fn queue(&self, limit: usize, group: FenceGroup) -> Result<Queue<CpuRing>>;

    /// Rejects new copies, and cancels those that have not begun.
    fn close(&self);

    /// Makes what the CPU wrote to VRAM visible to the device and to peers.
    fn flush(&self, vram: &Ranges);

    /// Reads bytes of VRAM that the BAR shows at `at`.
    fn read(&self, at: u64, to: &mut [u8]) -> Result;

    /// Copies pages of processes to VRAM or back; `vram` tells where the BAR shows a page of VRAM.
    /// The copy is done when this returns. Takes no lock that may be held during a page fault.
    fn migrate(&self, segments: Segments<'_>, vram: &Allocator) -> Result;

    /// Overwrites the content of VRAM, as if it had lost power. No job is queued at this time.
    fn lose_content(&self);
}

/// QEMU's `ivshmem-plain`: BAR 2 is memory, and there is nothing else.
pub(crate) struct Ivshmem;

impl Variant for Ivshmem {
    fn name(&self) -> &'static str {
        "ivshmem"
    }

    fn vram_bar(&self) -> u32 {
        2
    }

    fn engine<'a>(&self, window: BarMapping<'a>) -> Result<Arc<dyn Engine + 'a>> {
        Ok(Arc::new(CpuEngine::new(window)?, GFP_KERNEL)?)
    }
}

impl ttm::Engine for dyn Engine + '_ {
    type Ring = CpuRing;
    type Ready = Entry<CpuRing>;

    fn prepare(&self, work: &Work, plan: Plan<'_, CpuRing>) -> Result<Entry<CpuRing>> {
        Engine::prepare(self, work, plan)
    }

    fn run(&self, job: Job, ready: Entry<CpuRing>) {
        Engine::run(self, job, ready);
    }
}

impl Engine for CpuEngine<'_> {
    fn prepare(&self, work: &Work, plan: Plan<'_, CpuRing>) -> Result<Entry<CpuRing>> {
        ttm::Engine::prepare(self, work, plan)
    }

    fn run(&self, job: Job, ready: Entry<CpuRing>) {
        ttm::Engine::run(self, job, ready);
    }

    fn queue(&self, limit: usize, group: FenceGroup) -> Result<Queue<CpuRing>> {
        self.queue(limit, group)
    }

    fn close(&self) {
        self.close();
    }

    fn flush(&self, vram: &Ranges) {
        self.flush(vram);
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result {
        self.read(at, to)
    }

    fn migrate(&self, segments: Segments<'_>, vram: &Allocator) -> Result {
        segments.copy_by_cpu(self.window(), |offset| vram.bar_offset(offset))
    }

    fn lose_content(&self) {
        self.window().fill(0xa5);
    }
}

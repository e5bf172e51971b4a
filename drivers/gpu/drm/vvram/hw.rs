// SPDX-License-Identifier: GPL-2.0

//! The differences between the supported devices.
//!
//! A device with a copy engine gets its own [`Variant`] with an [`Engine`] for it.

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
            BarMapping,
            Ranges, //
        }, //
    },
    pci,
    prelude::*,
    sync::Arc, //
};

/// A kind of device.
pub(crate) trait Variant: Sync {
    /// The name of the kind for the log.
    fn name(&self) -> &'static str;

    /// The BAR of VRAM.
    fn vram_bar(&self) -> u32;

    /// The size of the BAR-visible VRAM in bytes.
    fn cpu_visible_size(&self, pdev: &pci::Device<Bound>) -> Result<u64> {
        pdev.resource_len(self.vram_bar())
    }

    /// The size of VRAM in bytes.
    fn vram_size(&self, pdev: &pci::Device<Bound>) -> Result<u64> {
        self.cpu_visible_size(pdev)
    }

    /// Creates the engine. It accesses VRAM through `window`.
    fn engine<'a>(&self, window: BarMapping<'a>) -> Result<Arc<dyn Engine + 'a>>;
}

/// Operations of a device on its VRAM while the driver is bound.
pub(crate) trait Engine: Send + Sync {
    /// Prepares a job. It may be dropped without being run.
    fn prepare(&self, work: &Work, plan: Plan<'_, CpuRing>) -> Result<Entry<CpuRing>>;

    /// Queues a job. Must neither allocate memory nor take a reservation.
    ///
    /// Moves finish in their order. All of them finish before the engine is dropped.
    fn run(&self, job: Job, ready: Entry<CpuRing>);

    /// Creates the queue of a client with at most `limit` copies at a time.
    fn queue(&self, limit: usize, group: FenceGroup) -> Result<Queue<CpuRing>>;

    /// Rejects new copies and cancels copies not begun.
    fn close(&self);

    /// Makes the writes of the CPU to VRAM visible to the device and to peers.
    fn flush(&self, vram: &Ranges);

    /// Reads bytes of VRAM at offset `at` of the BAR.
    fn read(&self, at: u64, to: &mut [u8]) -> Result;

    /// Copies pages of processes to VRAM or back. `vram` maps pages of VRAM to their places in the
    /// BAR. The copy is done when this returns. Takes no lock that may be held during a page fault.
    fn migrate(&self, segments: Segments<'_>, vram: &Allocator) -> Result;

    /// Overwrites the content of VRAM as if it had lost power. No job is queued at this time.
    fn lose_content(&self);
}

/// QEMU's `ivshmem-plain`. BAR 2 is memory and there is nothing else.
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
        segments.copy_by_cpu(self.bar(), |offset| vram.bar_offset(offset))
    }

    fn lose_content(&self) {
        self.bar().fill(0xa5);
    }
}

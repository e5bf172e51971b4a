// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The CPU as an engine for devices without a copy engine.

use super::{
    engine::{
        Engine,
        Job,
        Plan,
        Work, //
    },
    view::{
        by_cpu,
        CpuView, //
    }, //
};
use crate::{
    dma_buf::fence::{
        Fence,
        FenceGroup, //
    },
    drm::{
        queue::{
            Config,
            Done,
            Entry,
            HwOf,
            Queue,
            Ring,
            RingOps, //
        },
        vram::{
            BarMapping,
            Ranges, //
        }, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        }, //
    },
    types::ForLt, //
};
use core::{
    marker::PhantomData,
    mem, //
};

/// The ring of a [`CpuEngine`]: its hardware is the CPU.
pub struct CpuRing;

impl RingOps for CpuRing {
    type Hw = ForLt!(CpuView<'_>);

    /// [`None`] once the job has ended.
    type Job = Option<Job>;

    fn run(hw: &HwOf<'_, Self>, job: &mut Option<Job>, done: Done) {
        let bar = hw.bar();
        let result = match job {
            // The source may have content of other objects. A copy of it cannot be undone.
            Some(job) if job.is_void() => Err(EIO),
            Some(job) if job.work().is_in_bar(bar.len()) => {
                // SAFETY: The mapping of the BAR contains all ranges and stays as long as there is
                // hardware.
                if unsafe { by_cpu(job.work(), bar.as_ptr(), bar.as_pci()) } {
                    Ok(())
                } else {
                    Err(ENODEV)
                }
            }
            _ => Err(EINVAL),
        };

        done.signal(result);
    }

    fn ended(job: &mut Option<Job>, result: Result) {
        if let Some(job) = job.take() {
            job.finish(result);
        }
    }
}

/// The CPU as the copy engine of a device. It does jobs one after the other.
///
/// It owns the CPU's view of VRAM. Dropping it waits for the moves in the queue and cancels waiting
/// copies of clients (see [`Ring`]).
///
/// # Invariants
///
/// `ring` was created for `'a`. The longer lifetime lets the type be covariant, as a [`BarMapping`]
/// is.
pub struct CpuEngine<'a> {
    ring: Ring<'static, CpuRing>,
    /// The log has reported that VRAM is larger than the mapping.
    has_warned: Atomic<bool>,
    _p: PhantomData<BarMapping<'a>>,
}

impl<'a> CpuEngine<'a> {
    /// Creates an engine for the VRAM shown by `window`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn new(window: BarMapping<'a>) -> Result<Self> {
        let config = Config {
            name: c"cpu",
            credits: 1,
            timeout: None,
        };
        let dev = window.device();
        let view = CpuView::new(window)?;

        // SAFETY: A `BarMapping` borrows from the bound device only and the rest of the view from
        // nothing.
        let ring = unsafe { Ring::<CpuRing>::with_hw(dev, &config, Ok(view)) }?;

        // INVARIANT: The ring was created for `'a`.
        Ok(Self {
            // SAFETY: Lifetimes do not change the layout. The value is not used beyond `'a`.
            // Methods return references to it with the lifetime `'a` at most, which is shorter.
            ring: unsafe { mem::transmute::<Ring<'a, CpuRing>, Ring<'static, CpuRing>>(ring) },
            has_warned: Atomic::new(false),
            _p: PhantomData,
        })
    }

    /// Returns the CPU's view of VRAM for the [`Engine::cpu`] of another engine.
    #[inline]
    pub fn view(&self) -> &CpuView<'a> {
        self.ring.hw()
    }

    /// Returns the mapping of the BAR.
    #[inline]
    pub fn bar(&self) -> &BarMapping<'a> {
        self.view().bar()
    }

    /// Creates the queue of a client for up to `limit` copies at a time (see
    /// [`Device::copy_queue`](crate::drm::gem::ttm::Device::copy_queue)).
    ///
    /// # Errors
    ///
    /// The errors of [`Ring::queue`].
    #[inline]
    pub fn queue(&self, limit: usize, group: FenceGroup) -> Result<Queue<CpuRing>> {
        self.ring.queue(limit, group)
    }

    /// Cancels waiting copies of clients and accepts no more (see [`Ring::close`]).
    #[inline]
    pub fn close(&self) {
        self.ring.close();
    }

    /// Reads the BAR at `at`, as the device does by an address in a page table.
    ///
    /// # Errors
    ///
    /// The errors of [`BarMapping::read`].
    #[inline]
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result {
        self.bar().read(at, to)
    }

    /// Makes writes of the CPU to an object in VRAM visible to devices.
    #[inline]
    pub fn flush(&self, vram: &Ranges) {
        self.bar().flush(vram);
    }
}

impl Engine for CpuEngine<'_> {
    type Ring = CpuRing;
    type Ready = Entry<CpuRing>;

    /// # Errors
    ///
    /// - `EINVAL` if a part of the work is not inside the BAR.
    /// - The errors of [`Plan::entry`].
    #[inline(never)]
    fn prepare(&self, work: &Work, plan: Plan<'_, CpuRing>) -> Result<Entry<CpuRing>> {
        if !work.is_in_bar(self.bar().len()) {
            if !self.has_warned.xchg(true, Relaxed) {
                dev_err!(
                    self.bar().device(),
                    "a job needs VRAM that is not visible to the CPU\n"
                );
            }
            return Err(EINVAL);
        }
        plan.entry(self.ring.kernel())
    }

    /// Queues a job. It fails with `EINVAL` if a part of it is not inside the BAR.
    #[inline(never)]
    fn run(&self, job: Job, ready: Entry<CpuRing>) {
        let fence: ARef<Fence> = job.fence().into();

        ready.push(Some(job), &fence);
    }
}

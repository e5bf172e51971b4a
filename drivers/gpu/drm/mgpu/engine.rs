// SPDX-License-Identifier: GPL-2.0

//! The rings of the device, as the hardware behind queues of jobs and as the copy engine of TTM.

use core::marker::PhantomData;
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::{
        queue::{
            Config,
            Done,
            Entry,
            HwInit,
            HwOf,
            Ring,
            RingOps,
            Verdict, //
        },
        ttm::{
            CpuView,
            Engine,
            Job,
            Plan,
            Work, //
        }, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    },
    time::Msecs,
    types::ForLt, //
};

use crate::{
    gpu::Gpu,
    list::Lists,
    recover::Recovery,
    ring::{
        self,
        Entries, //
    }, //
};

/// A job of one of the rings.
pub(crate) trait RingJob: Send + 'static {
    /// The name of the ring.
    const NAME: &'static CStr;

    /// The type of the ring entries of jobs.
    type Entries: Entries;

    /// Returns the ring.
    fn ring(gpu: &Gpu) -> &ring::Ring<Self::Entries>;

    /// Returns the entries of the job. Called when the job begins and again after a reset.
    ///
    /// # Errors
    ///
    /// The job ends with the error and no entry is written.
    fn begin(&mut self, gpu: &Gpu) -> Result<Arc<Self::Entries>>;

    /// See [`RingOps::ended`].
    fn ended(&mut self, _result: Result) {}
}

/// The operations of a ring for jobs `J`.
pub(crate) struct Jobs<J>(PhantomData<J>);

impl<J: RingJob> RingOps for Jobs<J> {
    type Hw = ForLt!(Arc<Gpu>);
    type Job = J;

    fn run(gpu: &HwOf<'_, Self>, job: &mut J, done: Done) {
        match job.begin(gpu) {
            Ok(entries) => {
                J::ring(gpu).push(entries, done);
                gpu.poll();
            }
            Err(e) => done.signal(Err(e)),
        }
    }

    fn timed_out(gpu: &HwOf<'_, Self>, _job: &J, limit: Msecs) -> Verdict {
        J::ring(gpu).timed_out(limit)
    }

    fn is_gone(gpu: &HwOf<'_, Self>) -> bool {
        gpu.recovery.is_gone()
    }

    fn reset(gpu: &HwOf<'_, Self>) -> Result {
        J::ring(gpu).reset()
    }

    fn ended(job: &mut J, result: Result) {
        job.ended(result);
    }
}

/// The initializer of a ring.
struct Init(Arc<Gpu>);

impl<J: RingJob> HwInit<Jobs<J>> for Init {
    fn init<'a>(self, _dev: &'a Device<Bound>) -> impl PinInit<Arc<Gpu>, Error> {
        Ok(self.0)
    }
}

/// Creates the [`Ring`] with queues for a ring of the device. `dev` is the device whose driver
/// submits jobs.
///
/// # Errors
///
/// `ENOMEM` if memory runs out.
pub(crate) fn new_ring<'a, J: RingJob>(
    dev: &'a Device<Bound>,
    gpu: &Arc<Gpu>,
) -> Result<Ring<'a, Jobs<J>>> {
    let config = Config {
        name: J::NAME,
        credits: ring::CREDITS,
        timeout: Some(ring::timeout_ms()),
    };

    Ring::new(dev, &config, Init(gpu.clone()))
}

/// A move or a copy of a client.
pub(crate) struct CopyJob {
    /// [`None`] once the job has ended.
    job: Option<Job>,
    lists: Arc<Lists>,
}

impl RingJob for CopyJob {
    const NAME: &'static CStr = c"mgpu-copy";

    type Entries = Lists;

    fn ring(gpu: &Gpu) -> &ring::Ring<Lists> {
        &gpu.copy
    }

    fn begin(&mut self, _gpu: &Gpu) -> Result<Arc<Lists>> {
        match &self.job {
            Some(job) if !job.is_void() => Ok(self.lists.clone()),
            _ => Err(EIO),
        }
    }

    fn ended(&mut self, result: Result) {
        if let Some(job) = self.job.take() {
            job.finish(result);
        }
    }
}

/// The operations of the ring of the copy engine.
pub(crate) type CopyRing = Jobs<CopyJob>;

/// The copy engine. Its jobs end when this is dropped.
pub(crate) struct CopyEngine<'a> {
    pub(crate) ring: Ring<'a, CopyRing>,
    /// The CPU's view of VRAM, for moves that fail. Dropped after the ring.
    pub(crate) view: CpuView<'a>,
    pub(crate) recovery: Arc<Recovery>,
}

impl Engine for CopyEngine<'_> {
    const DMA: bool = true;

    type Ring = CopyRing;
    type Ready = (Entry<CopyRing>, Arc<Lists>);

    fn prepare(&self, work: &Work, plan: Plan<'_, CopyRing>) -> Result<Self::Ready> {
        let lists = Arc::new(Lists::of(work, &self.recovery)?, GFP_KERNEL)?;

        Ok((plan.entry(self.ring.kernel())?, lists))
    }

    fn run(&self, job: Job, (entry, lists): Self::Ready) {
        let fence: ARef<_> = job.fence().into();
        let job = CopyJob {
            job: Some(job),
            lists,
        };

        entry.push(job, &fence);
    }

    /// Jobs fail by a reset of the ring, also if another task has reset the device. In this case
    /// the device does nothing and the queue begins no job. Jobs also fail when the device is
    /// wedged or gone. In this case the aperture does not work and the CPU does no move.
    fn cpu(&self) -> Option<&CpuView<'_>> {
        Some(&self.view)
    }
}

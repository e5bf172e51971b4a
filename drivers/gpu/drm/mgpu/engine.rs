// SPDX-License-Identifier: GPL-2.0

//! The copy engine, as TTM sees it.

use kernel::{
    drm::ttm::{
        Engine,
        Job,
        Work, //
    },
    prelude::*,
    sync::Arc, //
};

use crate::{
    gpu::Gpu,
    ring::Queued, //
};

/// The copy engine. Its jobs end when this is dropped.
pub(crate) struct CopyEngine(pub(crate) Arc<Gpu>);

impl Engine for CopyEngine {
    const DMA: bool = true;

    type Ready = KBox<Queued>;

    fn prepare(&self, work: &Work) -> Result<KBox<Queued>> {
        self.0.prepare(work)
    }

    fn run(&self, job: Job, ready: KBox<Queued>) {
        self.0.copy(ready, job);
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        self.0.end_jobs();
    }
}

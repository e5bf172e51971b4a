// SPDX-License-Identifier: GPL-2.0

//! KUnit suites for the queues of a ring, `kernel::drm::queue`, on hardware that does what a test
//! wants.

use kernel::prelude::*;

#[path = "queue/ends.rs"]
mod ends;
#[path = "queue/fake.rs"]
mod fake;
#[path = "queue/jobs.rs"]
mod jobs;
#[path = "vram/signal.rs"]
mod signal;
#[path = "vram/worker.rs"]
mod worker;

module! {
    type: QueueKunit,
    name: "queue_kunit",
    authors: ["The vvram developers"],
    description: "KUnit suites for the queues of a ring",
    license: "GPL",
    params: {
        slower: u32 {
            default: 1,
            description: "Factor by which the host is slower than usual (default: 1)",
        },
    },
}

struct QueueKunit;

impl kernel::Module for QueueKunit {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}

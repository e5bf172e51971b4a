// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM that may have content of a former owner.
//!
//! Memory is *tainted* when a job that was to fill it has failed. The device is reset before it is
//! allocated again. The reset may come before or after the memory is freed, so the resets of the
//! device are counted, and tainted memory remembers the count. The memory of a job that a reset has
//! ended is tainted after that, so it is kept until the next reset.
//!
//! # Locking
//!
//! One mutex, in which memory may be allocated. No other lock is taken while it is held.

use crate::{
    gpu::buddy::AllocatedBlocks,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

/// Memory of the buddy allocator, which its drop frees.
pub(super) type Blocks = Pin<KBox<AllocatedBlocks>>;

/// The count of resets when memory was tainted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resets(pub(super) u64);

/// Memory that was freed while it was tainted.
struct Kept {
    blocks: Blocks,
    since: Resets,
}

/// The tainted memory of an allocator that was freed.
#[pin_data]
pub(super) struct Quarantine {
    resets: Atomic<u64>,
    #[pin]
    kept: Mutex<KVec<Kept>>,
}

impl Quarantine {
    // Not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                resets: Atomic::new(0),
                kept <- new_mutex!(KVec::new(), "drm::vram::Quarantine"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns how often the device was reset.
    ///
    /// May be called in any context. A job that fails after a reset finds that reset counted,
    /// because the driver counts it before it begins jobs again.
    pub(super) fn resets(&self) -> Resets {
        Resets(self.resets.load(Relaxed))
    }

    /// Counts a reset of the device. May be called in any context.
    pub(super) fn count_reset(&self) {
        self.resets.fetch_add(1, Relaxed);
    }

    /// Takes memory that was tainted when the count of resets was `since`. It is freed at once if
    /// the device was reset meanwhile.
    pub(super) fn add(&self, blocks: Blocks, since: Resets) {
        let mut kept = self.kept.lock();

        if self.resets() > since {
            drop(kept);
            drop(blocks);
        } else if kept.reserve(1, GFP_KERNEL).is_err() {
            // The memory is leaked, which is better than to expose its content.
            core::mem::forget(blocks);
        } else {
            // Cannot fail, because the capacity is reserved.
            let _ = kept.push_within_capacity(Kept { blocks, since });
        }
    }

    /// Frees the memory that was tainted before the last reset that was counted. May sleep.
    pub(super) fn end(&self) {
        loop {
            // The lock is released before memory is freed, which takes the lock of the allocator.
            let memory = {
                let mut kept = self.kept.lock();
                let index = kept.iter().position(|kept| self.resets() > kept.since);

                index.and_then(|index| kept.remove(index).ok())
            };

            match memory {
                Some(kept) => drop(kept.blocks),
                None => return,
            }
        }
    }

    /// Returns how much memory there is, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.kept
            .lock()
            .iter()
            .flat_map(|kept| kept.blocks.iter().map(|block| block.size()))
            .sum()
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM that may have content of a former owner.
//!
//! Memory is *tainted* when the job to fill it has failed. The device is reset before the memory is
//! allocated again. The reset may come before or after the memory is freed. So the resets of the
//! device are counted and tainted memory remembers the count. The memory of a job ended by a reset
//! is tainted after that reset, so it is kept until the next one.
//!
//! # Locking
//!
//! One mutex. Memory may be allocated while it is held, but no other lock is taken.

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

/// Memory of the buddy allocator, freed by its drop.
pub(super) type Blocks = Pin<KBox<AllocatedBlocks>>;

/// The count of resets when memory was tainted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resets(pub(super) u64);

/// Memory freed while it was tainted.
struct Kept {
    blocks: Blocks,
    since: Resets,
}

/// The freed tainted memory of an allocator.
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
    /// May be called in any context. A job that fails after a reset finds the reset counted because
    /// the driver counts it before it begins jobs again.
    pub(super) fn resets(&self) -> Resets {
        Resets(self.resets.load(Relaxed))
    }

    /// Counts a reset of the device. May be called in any context.
    pub(super) fn count_reset(&self) {
        self.resets.fetch_add(1, Relaxed);
    }

    /// Takes memory tainted when the count of resets was `since`. It is freed at once if the device
    /// was reset meanwhile.
    pub(super) fn add(&self, blocks: Blocks, since: Resets) {
        let mut kept = self.kept.lock();

        if self.resets() > since {
            drop(kept);
            drop(blocks);
        } else if kept.reserve(1, GFP_KERNEL).is_err() {
            // Leaking the memory is better than exposing its content.
            core::mem::forget(blocks);
        } else {
            // Cannot fail because the capacity is reserved.
            let _ = kept.push_within_capacity(Kept { blocks, since });
        }
    }

    /// Frees the memory tainted before the last counted reset. May sleep.
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

    /// Returns how many bytes of memory there are.
    pub(super) fn size(&self) -> u64 {
        self.kept
            .lock()
            .iter()
            .flat_map(|kept| kept.blocks.iter().map(|block| block.size()))
            .sum()
    }
}

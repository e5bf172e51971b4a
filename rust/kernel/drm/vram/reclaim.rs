// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM shared by objects and another user of their allocator.
//!
//! Each of the two is entitled to half of the memory and may use memory that the other does not
//! use. If a user finds no room, memory is taken from the one with more than its half: the user's
//! own oldest memory or the other's. So neither falls below a quarter while both need more than
//! there is, as long as no allocation is larger than a quarter and all of the memory can be moved
//! away. Unmovable memory such as pinned objects is skipped, whichever user has it.
//!
//! # Locking
//!
//! TTM asks with reservations held. The other user asks with the `mmap_lock` of a process held,
//! inside of which reservations are taken.

use core::ops::Range;

/// A user of VRAM beside the objects. It releases memory to them.
pub trait Reclaim {
    /// Returns how many bytes of `range` of VRAM the user has.
    fn held(&self, range: &Range<u64>) -> u64;

    /// Releases memory in `range` of VRAM, the oldest first, until `bytes` are released or nothing
    /// else can be released. The memory is free when this returns unless another task is just
    /// releasing it as well.
    ///
    /// Returns how many bytes it has released. Called with reservations held; may sleep.
    fn reclaim(&self, range: &Range<u64>, bytes: u64) -> u64;
}

/// Returns how many bytes of `range` a user of VRAM is entitled to.
pub(crate) fn fair_share(range: &Range<u64>) -> u64 {
    (range.end - range.start) / 2
}

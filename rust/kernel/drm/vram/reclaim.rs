// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM that objects share with another user of their allocator.
//!
//! Each of the two is entitled to half of the memory, and may use memory that the other does not
//! use. A user that finds no room takes it from the one that has more than its half: its own oldest
//! memory, or that of the other. So neither falls below a quarter while both need more than there
//! is, as long as no allocation is larger than a quarter and all of the memory can be moved away.
//! Memory that cannot be moved, such as pinned objects, is skipped, whichever user has it.
//!
//! # Locking
//!
//! TTM asks with reservations held. The other user asks with the `mmap_lock` of a process held,
//! inside of which reservations are taken.

use core::ops::Range;

/// A user of VRAM beside the objects, which releases memory to them.
pub trait Reclaim {
    /// Returns how much of `range` of VRAM the user has, in bytes.
    fn held(&self, range: &Range<u64>) -> u64;

    /// Releases memory in `range` of VRAM, the oldest first, until `bytes` are released or nothing
    /// is left that can be. The memory is free when this returns, unless another task is just
    /// releasing it as well.
    ///
    /// Returns how many bytes it has released. Called with reservations held; may sleep.
    fn reclaim(&self, range: &Range<u64>, bytes: u64) -> u64;
}

/// Returns how much of `range` a user of VRAM is entitled to, in bytes.
pub(crate) fn fair_share(range: &Range<u64>) -> u64 {
    (range.end - range.start) / 2
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM that objects share with another user of their allocator.
//!
//! Each of the two is entitled to half of it, and may have what the other one does not use. One
//! that finds no room takes it from the one that has more than its half: its own oldest memory, or
//! that of the other one. So neither falls below a quarter while both need more than there is, as
//! long as no allocation is larger than a quarter and all of the memory can be moved away. What
//! cannot be, such as what is pinned, is passed over, whoever has it.
//!
//! # Locking
//!
//! TTM asks with reservations held. The other user asks with the lock of the memory of a process
//! held, inside of which reservations are taken.

use core::ops::Range;

/// What has VRAM beside the objects, and gives it up to them.
pub trait Reclaim {
    /// Returns how much of `range` of VRAM it has, in bytes.
    fn held(&self, range: &Range<u64>) -> u64;

    /// Gives up memory in `range` of VRAM, the oldest first, until that were `bytes` or there is
    /// nothing that can go. The memory is free when this returns, unless another task is just giving
    /// it up as well.
    ///
    /// Returns how many bytes it has given up. Called with reservations held; may sleep.
    fn reclaim(&self, range: &Range<u64>, bytes: u64) -> u64;
}

/// Returns how much of `range` a user of VRAM is entitled to, in bytes.
pub(crate) fn fair_share(range: &Range<u64>) -> u64 {
    (range.end - range.start) / 2
}

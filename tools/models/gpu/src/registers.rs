// SPDX-License-Identifier: GPL-2.0

//! Offsets and numbers of the interface, as registers.rst has them.

pub const ID: u64 = 0x000;
pub const VERSION: u64 = 0x004;
pub const VRAM_SIZE: u64 = 0x008;
pub const APERTURE_SIZE: u64 = 0x010;
pub const RINGS: u64 = 0x018;
pub const CONTEXTS: u64 = 0x01c;
pub const STATUS_PAGE: u64 = 0x020;
pub const CONTEXT_TABLE: u64 = 0x028;
pub const INVALIDATE_START: u64 = 0x030;
pub const INVALIDATE_SIZE: u64 = 0x038;
pub const INVALIDATE_CONTEXT: u64 = 0x040;
pub const INVALIDATE: u64 = 0x044;
pub const RESET: u64 = 0x048;
pub const INJECT: u64 = 0x04c;
pub const REPORTS: u64 = 0x050;
pub const CHECK: u64 = 0x054;
pub const SEED: u64 = 0x058;
pub const POWER_LOSSES: u64 = 0x060;
/// The first of the numbers of lies, in the order of [`lie`].
pub const LIES: u64 = 0x080;
pub const RING: u64 = 0x100;
pub const RING_STRIDE: u64 = 0x20;
/// Of a ring's registers.
pub const RING_BASE: u64 = 0x00;
pub const RING_ENTRIES: u64 = 0x08;
pub const RING_DOORBELL: u64 = 0x0c;
/// Bytes of the BAR.
pub const BYTES: u64 = 4096;

/// What ID and VERSION read as.
pub const MAGIC: u32 = 0x5550_474d;
pub const REVISION: u32 = 1;

/// The bit of RESET for all of the device.
pub const RESET_ALL: u32 = 1 << 31;

/// How many rings there are, and which is which.
pub const RING_COUNT: usize = 2;
pub const COPY_ENGINE: usize = 0;
pub const COMPUTE_ENGINE: usize = 1;
/// How many contexts there are; the first one is the aperture.
pub const CONTEXT_COUNT: u32 = 512;
pub const APERTURE_CONTEXT: u32 = 0;

/// Offsets in the status page.
pub mod status {
    pub const RING_STRIDE: u64 = 0x40;
    pub const FENCE: u64 = 0x000;
    pub const DONE: u64 = 0x008;
    pub const ERROR: u64 = 0x00c;
    pub const RESETS: u64 = 0x010;
    pub const INVALIDATED: u64 = 0x800;
    pub const FAULTS: u64 = 0x804;
    pub const RECORDS: u64 = 0x900;
    pub const RECORD_BYTES: u64 = 32;
    pub const RECORD_COUNT: u32 = 16;
}

/// The kinds of lies that chaos tells.
pub mod lie {
    /// "Not mapped" was kept, and used.
    pub const NOT_MAPPED: usize = 0;
    /// A pointer to a table, or a root, was kept and used.
    pub const TABLE: usize = 1;
    /// Something that is kept was dropped.
    pub const DROPPED: usize = 2;
    /// A write arrived before an earlier one to another target.
    pub const OVERTAKEN: usize = 3;
    /// A write was lost in a reset of its ring or of the device.
    pub const LOST: usize = 4;
    /// An interrupt was raised later than what it is about.
    pub const LATE: usize = 5;
    /// An interrupt was raised twice.
    pub const TWICE: usize = 6;
    /// An interrupt was raised for nothing.
    pub const SPURIOUS: usize = 7;
    /// An entry was read, with the lists that it has, before the one in front of it was done.
    pub const AHEAD: usize = 8;
    /// How many kinds there are.
    pub const COUNT: usize = 9;
}

/// Why a ring stopped.
pub mod error {
    pub const OPERATION: u32 = 1;
    pub const NOT_MAPPED: u32 = 2;
    pub const READ_ONLY: u32 = 3;
    pub const OUTSIDE: u32 = 4;
    pub const DMA: u32 = 5;
    pub const INJECTED: u32 = 6;
}

/// What INJECT does.
pub mod inject {
    pub const HANG: u32 = 1;
    pub const FAULT: u32 = 2;
    pub const LOSE_INTERRUPT: u32 = 3;
    pub const EARLY_INTERRUPT: u32 = 4;
    pub const SKIP_INVALIDATE: u32 = 5;
    pub const SLOW: u32 = 6;
    pub const REMOVE: u32 = 7;
    pub const DELAY: u32 = 8;
    pub const EXPECT_REPORTS: u32 = 9;
    pub const SKIP_RING_RESETS: u32 = 10;
    pub const SKIP_DEVICE_RESETS: u32 = 11;
    pub const LIFELESS: u32 = 12;
    pub const SEED: u32 = 13;
}

// SPDX-License-Identifier: GPL-2.0

//! Offsets and numbers of the interface, as registers.rst has them.

pub const IDENTIFICATION: u64 = 0x00;
pub const LIVENESS: u64 = 0x04;
pub const FACTORIAL: u64 = 0x08;
pub const STATUS: u64 = 0x20;
pub const INTERRUPT_STATUS: u64 = 0x24;
pub const INTERRUPT_RAISE: u64 = 0x60;
pub const INTERRUPT_ACK: u64 = 0x64;
/// The registers of channel 0, which the others follow.
pub const CHANNEL: u64 = 0x80;
pub const CHANNEL_STRIDE: u64 = 0x20;
/// Of a channel's registers.
pub const SOURCE: u64 = 0x00;
pub const DESTINATION: u64 = 0x08;
pub const COUNT: u64 = 0x10;
pub const COMMAND: u64 = 0x18;
/// The registers that QEMU's edu does not have.
pub const EXTENSION: u64 = 0x1000;
pub const DELAY: u64 = 0x2000;
pub const INJECT: u64 = 0x2008;
pub const FINISHED: u64 = 0x2010;
pub const FAULTS: u64 = 0x2018;
pub const FLUSHED: u64 = 0x2020;
pub const LATE: u64 = 0x2028;
pub const MOST: u64 = 0x2030;
pub const REPORTS: u64 = 0x2038;
/// Bytes of the BAR.
pub const BYTES: u64 = 1 << 20;

/// What IDENTIFICATION reads as, and the lower half of EXTENSION.
pub const ID: u32 = 0x0100_00ed;
pub const MAGIC: u32 = 0x5855_4445;
/// Bits of STATUS.
pub const FACTORIAL_INTERRUPTS: u32 = 0x80;
/// Bits of the status of interrupts: of the factorial, and of channel 0, which the others follow.
pub const INTERRUPT_FACTORIAL: u32 = 0x001;
pub const INTERRUPT_DMA: u32 = 0x100;
/// Bits of COMMAND.
pub const RUN: u64 = 1;
pub const TO_MEMORY: u64 = 2;
pub const INTERRUPT: u64 = 4;
pub const STOP: u64 = 8;

/// How many channels there are.
pub const CHANNELS: usize = 4;
/// The place of the buffer of channel 0, which the others follow, and the bytes of one.
pub const BUFFER: u64 = 0x4_0000;
pub const BUFFER_BYTES: u64 = 4096;

/// What INJECT does.
pub mod inject {
    pub const NONE: u64 = 0;
    pub const HANG: u64 = 1;
    pub const STUCK: u64 = 2;
    pub const LOSE_INTERRUPT: u64 = 3;
    pub const DROP_WRITE: u64 = 4;
    pub const DROP_READ: u64 = 5;
    pub const ONES: u64 = 6;
    pub const POST: u64 = 7;
    pub const EXPECT_REPORTS: u64 = 9;
}

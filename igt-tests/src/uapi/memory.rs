// SPDX-License-Identifier: GPL-2.0

//! Memory of processes in the uAPI of edu_peer.

use std::mem::size_of;

use super::{io, iow, iowr, EduPeerTransfer, EDU};

/// Most bytes of a registration.
pub const EDU_PEER_MEMORY_MAX: u64 = 1 << 30;

/// `struct edu_peer_memory_register`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EduPeerMemoryRegister {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub pad: u32,
}

/// The call was made without `EDU_PEER_MEMORY_QUERY_MAP`.
pub const EDU_PEER_MEMORY_KIND_NONE: u32 = 0;
/// System memory.
pub const EDU_PEER_MEMORY_KIND_SYSTEM: u32 = 1;
/// The BAR of a peer, by its bus address.
pub const EDU_PEER_MEMORY_KIND_BUS: u32 = 2;
/// The BAR of a peer, through the host bridge.
pub const EDU_PEER_MEMORY_KIND_HOST_BRIDGE: u32 = 3;

/// Ask how a page is reached.
pub const EDU_PEER_MEMORY_QUERY_MAP: u32 = 1 << 0;

/// `struct edu_peer_memory_query`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EduPeerMemoryQuery {
    /// A byte of the page.
    pub offset: u64,
    /// `EDU_PEER_MEMORY_QUERY_MAP` or zero.
    pub flags: u32,
    /// Out, `EDU_PEER_MEMORY_KIND_NONE` and following.
    pub kind: u32,
    /// Out, address of the page.
    pub dma_address: u64,
    /// Out, how often a part of the range was invalidated.
    pub invalidations: u64,
}

/// Fault pages in for writing.
pub const EDU_PEER_MEMORY_MEASURE_WRITE: u32 = 1 << 0;
/// Leave memory of a GPU that the device reaches where it is.
pub const EDU_PEER_MEMORY_MEASURE_P2P: u32 = 1 << 1;

/// `struct edu_peer_memory_measure`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EduPeerMemoryMeasure {
    /// Where it begins.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// `EDU_PEER_MEMORY_MEASURE_*`.
    pub flags: u32,
    /// Zero.
    pub pad: u32,
    /// Out, the time with one read of the clock, in ns.
    pub time: u64,
    /// Out, the time of a read of the clock.
    pub clock: u64,
}

/// Times page faults.
pub const EDU_PEER_IOC_MEMORY_MEASURE: u64 = iowr::<EduPeerMemoryMeasure>(EDU, 0x0f);
/// Register memory.
pub const EDU_PEER_IOC_MEMORY_REGISTER: u64 = iow::<EduPeerMemoryRegister>(EDU, 0x1c);
/// End the registration.
pub const EDU_PEER_IOC_MEMORY_UNREGISTER: u64 = io(EDU, 0x1d);
/// Move bytes.
pub const EDU_PEER_IOC_MEMORY_TRANSFER: u64 = iowr::<EduPeerTransfer>(EDU, 0x1e);
/// How a page is reached, and counters.
pub const EDU_PEER_IOC_MEMORY_QUERY: u64 = iowr::<EduPeerMemoryQuery>(EDU, 0x1f);

const _: () = {
    assert!(size_of::<EduPeerMemoryRegister>() == 24);
    assert!(size_of::<EduPeerMemoryQuery>() == 32);
    assert!(size_of::<EduPeerMemoryMeasure>() == 40);
    // Numbers as the C header computes them.
    assert!(EDU_PEER_IOC_MEMORY_MEASURE == 0xc028_ed0f);
    assert!(EDU_PEER_IOC_MEMORY_REGISTER == 0x4018_ed1c);
    assert!(EDU_PEER_IOC_MEMORY_UNREGISTER == 0x0000_ed1d);
    assert!(EDU_PEER_IOC_MEMORY_TRANSFER == 0xc020_ed1e);
    assert!(EDU_PEER_IOC_MEMORY_QUERY == 0xc020_ed1f);
};

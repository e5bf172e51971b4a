// SPDX-License-Identifier: GPL-2.0

//! Entries of a ring.

use crate::registers::APERTURE_CONTEXT;
use crate::registers::COMPUTE_ENGINE;
use crate::registers::CONTEXT_COUNT;
use crate::registers::COPY_ENGINE;

/// Bytes of an entry.
pub const BYTES: usize = 64;

const FENCE_INTERRUPT: u32 = 1;

/// A list of pieces in system memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    pub address: u64,
    pub pieces: u32,
}

/// The operation of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Nop,
    Fence {
        value: u64,
        interrupt: bool,
    },
    Acquire {
        address: u64,
        value: u64,
    },
    Release {
        address: u64,
        value: u64,
    },
    CopyList {
        source: List,
        destination: List,
        bytes: u64,
    },
    FillList {
        destination: List,
        bytes: u64,
        pattern: u32,
    },
    Copy {
        source: u64,
        destination: u64,
        bytes: u64,
    },
    Fill {
        destination: u64,
        bytes: u64,
        pattern: u32,
    },
    Checksum {
        source: u64,
        destination: u64,
        bytes: u64,
    },
    AtomicAdd {
        destination: u64,
        addend: u64,
    },
}

/// An entry: the context that its virtual addresses are in, and the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub context: u32,
    /// None for an operation that this ring does not have, or with a field that is not allowed.
    pub operation: Option<Operation>,
}

impl Entry {
    /// Reads an entry of a ring.
    pub fn parse(ring: usize, bytes: &[u8; BYTES]) -> Self {
        let context = u32_at(bytes, 4);
        Self {
            context,
            operation: operation(ring, context, bytes),
        }
    }
}

fn operation(ring: usize, context: u32, bytes: &[u8; BYTES]) -> Option<Operation> {
    let (code, flags) = (u32_at(bytes, 0), u32_at(bytes, 16));
    let (first, second, size) = (u64_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, 32));
    let (sources, destinations) = (u32_at(bytes, 24), u32_at(bytes, 28));
    let pattern = u32_at(bytes, 40);
    let (source, destination) = (
        List {
            address: first,
            pieces: sources,
        },
        List {
            address: second,
            pieces: destinations,
        },
    );
    let words = size.is_multiple_of(4);
    let operation = match code {
        0 => Operation::Nop,
        1 if flags & !FENCE_INTERRUPT == 0 => Operation::Fence {
            value: first,
            interrupt: flags & FENCE_INTERRUPT != 0,
        },
        2 if first.is_multiple_of(8) => Operation::Acquire {
            address: first,
            value: second,
        },
        3 if first.is_multiple_of(8) => Operation::Release {
            address: first,
            value: second,
        },
        16 => Operation::CopyList {
            source,
            destination,
            bytes: size,
        },
        17 => Operation::FillList {
            destination,
            bytes: size,
            pattern,
        },
        32 => Operation::Copy {
            source: first,
            destination: second,
            bytes: size,
        },
        33 if words => Operation::Fill {
            destination: second,
            bytes: size,
            pattern,
        },
        34 if words => Operation::Checksum {
            source: first,
            destination: second,
            bytes: size,
        },
        35 if second.is_multiple_of(8) => Operation::AtomicAdd {
            destination: second,
            addend: u64_at(bytes, 40),
        },
        _ => return None,
    };
    let allowed = match code {
        0..=3 => context < CONTEXT_COUNT,
        16..=17 => ring == COPY_ENGINE && context == APERTURE_CONTEXT,
        _ => ring == COMPUTE_ENGINE && (APERTURE_CONTEXT + 1..CONTEXT_COUNT).contains(&context),
    };
    allowed.then_some(operation)
}

fn u32_at(bytes: &[u8; BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

// SPDX-License-Identifier: GPL-2.0

//! The rules that a driver may break.

use std::fmt;

use vfio_user::report::Forbidden;

/// A rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The device accessed a bus address that is not mapped for DMA, or without bus mastering.
    Dma(Forbidden),
    /// A translation was used after its entry changed.
    Stale { context: u32, address: u64 },
    /// A valid entry of a table, or a root, has bits that have to be zero.
    Reserved { at: u64, entry: u64 },
    /// An entry of a ring, or a list, is another one than when it was read ahead.
    Changed { at: u64 },
    /// A page of the aperture that is not mapped was written to.
    Damaged { page: u64 },
    /// The tables of the aperture have an entry that is not allowed.
    Aperture { address: u64, entry: u64 },
    /// A page of VRAM is at two places in the aperture.
    Twice { vram: u64, page: u64, other: u64 },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dma(forbidden) => forbidden.fmt(f),
            Self::Stale { context, address } => write!(
                f,
                "{address:#x} of context {context} changed without INVALIDATE"
            ),
            Self::Reserved { at, entry } => write!(
                f,
                "the entry or root {entry:#x} at {at:#x} has reserved bits"
            ),
            Self::Changed { at } => write!(
                f,
                "the entry or list at {at:#x} changed behind its doorbell"
            ),
            Self::Damaged { page } => write!(
                f,
                "the aperture was written to at {page:#x}, where nothing is mapped"
            ),
            Self::Aperture { address, entry } => write!(
                f,
                "the aperture's entry of {address:#x} may not be {entry:#x}"
            ),
            Self::Twice { vram, page, other } => write!(
                f,
                "VRAM at {vram:#x} is in the aperture at {other:#x}, and at {page:#x} as well"
            ),
        }
    }
}

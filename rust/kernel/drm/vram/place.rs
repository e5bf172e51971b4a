// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The kind of memory of an object and its possible places.

use crate::bindings;

/// The kind of memory of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemType {
    /// System memory unknown to devices. The pages may be swapped out at any time without a
    /// notification.
    System,
    /// System memory accessible to devices.
    Tt,
    /// The memory of the device.
    Vram,
}

impl MemType {
    pub(crate) const fn as_raw(self) -> u32 {
        match self {
            Self::System => bindings::TTM_PL_SYSTEM,
            Self::Tt => bindings::TTM_PL_TT,
            Self::Vram => bindings::TTM_PL_VRAM,
        }
    }

    pub(crate) const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            bindings::TTM_PL_SYSTEM => Some(Self::System),
            bindings::TTM_PL_TT => Some(Self::Tt),
            bindings::TTM_PL_VRAM => Some(Self::Vram),
            _ => None,
        }
    }
}

/// Where an object may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// In VRAM only.
    Vram,
    /// In system memory.
    System,
    /// In VRAM, or in system memory if VRAM is full.
    Either,
}

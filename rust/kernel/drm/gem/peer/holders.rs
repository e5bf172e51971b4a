// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Non-revocable importers.
//!
//! Most RDMA devices are non-revocable. They keep their pins until the process using them is done.
//! Until then the driver cannot be unbound and the device cannot be reset or unplugged.
//! [`Unrevocable`] limits how much VRAM of a device such importers may pin.

use crate::{
    drm::vram::charge,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// How much VRAM non-revocable importers may pin.
///
/// An importer that may not pin VRAM gets system memory. If the object cannot live there, the
/// importer is refused with the reason [`NotRevocable`](super::Reason::NotRevocable).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrevocable {
    /// They may pin all VRAM.
    Accept,
    /// At most this many bytes of objects may be pinned at the same time. A pin over the limit
    /// fails with `EDQUOT`; the attach succeeds as for other importers.
    Limit(u64),
    /// They may pin no VRAM.
    Refuse,
}

/// The VRAM pinned by non-revocable importers and the policy for it.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::gem::peer::{
///         Holders,
///         Unrevocable, //
///     },
///     page::PAGE_SIZE, //
/// };
///
/// let holders = Holders::new();
/// assert_eq!(holders.policy(), Unrevocable::Accept);
///
/// holders.set_policy(Unrevocable::Limit(PAGE_SIZE as u64));
/// assert_eq!(holders.policy(), Unrevocable::Limit(PAGE_SIZE as u64));
/// assert_eq!(holders.held(), 0);
/// ```
pub struct Holders {
    /// [`Self::ACCEPT`], [`Self::REFUSE`] or a number of bytes.
    policy: Atomic<u64>,
    held: Atomic<u64>,
}

impl Default for Holders {
    fn default() -> Self {
        Self::new()
    }
}

impl Holders {
    // No VRAM has this size.
    const ACCEPT: u64 = u64::MAX;
    const REFUSE: u64 = u64::MAX - 1;

    /// Creates the value for a device: nothing is pinned and there is no limit.
    pub const fn new() -> Self {
        Self {
            policy: Atomic::new(Self::ACCEPT),
            held: Atomic::new(0),
        }
    }

    /// Returns the policy.
    pub fn policy(&self) -> Unrevocable {
        match self.policy.load(Relaxed) {
            Self::ACCEPT => Unrevocable::Accept,
            Self::REFUSE => Unrevocable::Refuse,
            bytes => Unrevocable::Limit(bytes),
        }
    }

    /// Changes the policy. Attached importers stay and keep their pins.
    pub fn set_policy(&self, policy: Unrevocable) {
        let value = match policy {
            Unrevocable::Accept => Self::ACCEPT,
            Unrevocable::Refuse => Self::REFUSE,
            Unrevocable::Limit(bytes) => bytes.min(Self::REFUSE - 1),
        };

        self.policy.store(value, Relaxed);
    }

    /// Returns how many bytes of VRAM non-revocable importers have pinned.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Charges for an object about to be pinned.
    ///
    /// # Errors
    ///
    /// `EDQUOT` if the object exceeds the limit.
    pub(super) fn charge(&self, bytes: u64) -> Result {
        let limit = match self.policy() {
            Unrevocable::Limit(limit) => limit,
            // Importers attached before a change of the policy are not limited.
            Unrevocable::Accept | Unrevocable::Refuse => u64::MAX,
        };
        charge(&self.held, bytes, limit)
    }

    /// Undoes [`Self::charge`].
    pub(super) fn uncharge(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Relaxed);
    }
}

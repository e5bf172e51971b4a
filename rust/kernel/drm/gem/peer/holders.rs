// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Importers that cannot be revoked.
//!
//! Most RDMA devices are such importers. They keep their pins until the process that uses them is
//! done: until then the driver cannot be unbound, nor the device be reset or unplugged. A device
//! sets by [`Unrevocable`] how much of its VRAM such importers may pin.

use crate::{
    drm::vram::charge,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// How much VRAM importers that cannot be revoked may pin.
///
/// An importer that may not pin VRAM gets system memory, or is refused if the object cannot live
/// there, with the reason [`NotRevocable`](super::Reason::NotRevocable).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrevocable {
    /// They may pin all VRAM.
    Accept,
    /// At most this many bytes of objects may be pinned at the same time. A pin that is over the
    /// limit fails with `EDQUOT`; the attach succeeds as for other importers.
    Limit(u64),
    /// They may pin no VRAM.
    Refuse,
}

/// The objects in VRAM that importers which cannot be revoked have pinned, and the policy for them.
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
    /// [`Self::ACCEPT`], [`Self::REFUSE`], or a number of bytes.
    policy: Atomic<u64>,
    held: Atomic<u64>,
}

impl Default for Holders {
    fn default() -> Self {
        Self::new()
    }
}

impl Holders {
    // No VRAM has that size.
    const ACCEPT: u64 = u64::MAX;
    const REFUSE: u64 = u64::MAX - 1;

    /// Makes the value for a device: nothing is pinned, and there is no limit.
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

    /// Changes the policy. Importers that are attached stay, with what they have pinned.
    pub fn set_policy(&self, policy: Unrevocable) {
        let value = match policy {
            Unrevocable::Accept => Self::ACCEPT,
            Unrevocable::Refuse => Self::REFUSE,
            Unrevocable::Limit(bytes) => bytes.min(Self::REFUSE - 1),
        };

        self.policy.store(value, Relaxed);
    }

    /// Returns how many bytes of VRAM are pinned for importers that cannot be revoked.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Charges for an object that is about to be pinned.
    ///
    /// # Errors
    ///
    /// `EDQUOT` if the object exceeds the limit.
    pub(super) fn charge(&self, bytes: u64) -> Result {
        let limit = match self.policy() {
            Unrevocable::Limit(limit) => limit,
            // An importer that was attached before the policy changed is not limited.
            Unrevocable::Accept | Unrevocable::Refuse => u64::MAX,
        };
        charge(&self.held, bytes, limit)
    }

    /// Undoes [`Self::charge`].
    pub(super) fn uncharge(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Relaxed);
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How often importers did not get peer-to-peer memory and why.

use super::Reason;
use crate::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// A counted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An importer attached and gets system memory.
    AttachSystem,
    /// An importer was not attached.
    AttachRefused,
    /// An importer was refused a pin.
    PinRefused,
    /// An importer got a mapping of system memory.
    MapSystem,
    /// An importer was refused a mapping of an object exported in VRAM only.
    MapRefused,
}

impl Event {
    /// All events.
    pub const ALL: [Self; 5] = [
        Self::AttachSystem,
        Self::AttachRefused,
        Self::PinRefused,
        Self::MapSystem,
        Self::MapRefused,
    ];

    /// Returns the name, as in debugfs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AttachSystem => "attach-system",
            Self::AttachRefused => "attach-refused",
            Self::PinRefused => "pin-refused",
            Self::MapSystem => "map-system",
            Self::MapRefused => "map-refused",
        }
    }
}

/// The counters of one device: how often each [`Event`] happened by its [`Reason`].
///
/// # Examples
///
/// ```
/// use kernel::drm::gem::peer::{
///     Counters,
///     Event,
///     Reason, //
/// };
///
/// let counters = Counters::new();
///
/// counters.count(Event::PinRefused, Reason::Quota);
/// counters.count(Event::PinRefused, Reason::Quota);
/// assert_eq!(counters.get(Event::PinRefused, Reason::Quota), 2);
/// assert_eq!(counters.get(Event::AttachRefused, Reason::Quota), 0);
///
/// // The counters are independent of each other.
/// for event in Event::ALL {
///     for reason in Reason::ALL {
///         counters.count(event, reason);
///     }
/// }
/// assert_eq!(counters.get(Event::PinRefused, Reason::Quota), 3);
/// assert_eq!(counters.get(Event::AttachRefused, Reason::Quota), 1);
/// ```
pub struct Counters([[Atomic<u64>; Reason::ALL.len()]; Event::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

impl Counters {
    /// Creates the counters, all 0.
    pub const fn new() -> Self {
        Self([const { [const { Atomic::new(0) }; Reason::ALL.len()] }; Event::ALL.len()])
    }

    /// Counts an event.
    pub fn count(&self, event: Event, reason: Reason) {
        self.at(event, reason).fetch_add(1, Relaxed);
    }

    /// Returns how often an event happened.
    pub fn get(&self, event: Event, reason: Reason) -> u64 {
        self.at(event, reason).load(Relaxed)
    }

    fn at(&self, event: Event, reason: Reason) -> &Atomic<u64> {
        // The values of the reasons have gaps, so they are no index.
        let column = match reason {
            Reason::None => 0,
            Reason::NoOptIn => 1,
            Reason::NotPci => 2,
            Reason::NoRoute => 3,
            Reason::OutsideBar => 4,
            Reason::Suspended => 5,
            Reason::OtherImporter => 6,
            Reason::NoVram => 7,
            Reason::SystemOnly => 8,
            Reason::NotRevocable => 9,
            Reason::PinnedElsewhere => 10,
            Reason::Quota => 11,
            Reason::NoWindow => 12,
            Reason::Encoded => 13,
        };

        &self.0[event as usize][column]
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The export policy, as rules for one or two importers.
//!
//! The rules come from the documentation (Documentation/gpu/peer-to-peer-guarantees.rst) and not
//! from the code, with which they share only the names of the uAPI. They do not depend on the
//! sequence of calls: a rule gives the result of a combination.

use crate::peer::Mode;
use crate::uapi;

/// Where an object may be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// In VRAM only.
    Vram,
    /// In system memory only.
    System,
    /// In either of them.
    Either,
}

impl Object {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Vram, Self::System, Self::Either];

    /// The name in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vram => "vram",
            Self::System => "system",
            Self::Either => "either",
        }
    }

    /// The flags of GEM_CREATE.
    pub fn flags(self) -> u32 {
        match self {
            Self::Vram => uapi::CREATE_VRAM,
            Self::System => uapi::CREATE_SYSTEM,
            Self::Either => uapi::CREATE_VRAM | uapi::CREATE_SYSTEM,
        }
    }

    /// The placement of a new object, while there is room in VRAM.
    pub fn home(self) -> u32 {
        match self {
            Self::System => uapi::PLACEMENT_SYSTEM,
            _ => uapi::PLACEMENT_VRAM,
        }
    }
}

/// The classes of importers that are devices.
pub const IMPORTERS: [Mode; 5] = [
    Mode::Static,
    Mode::NoP2p,
    Mode::Dynamic,
    Mode::Pinned,
    Mode::Revocable,
];

/// The name of a class in the output.
pub fn importer_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Static => "static",
        Mode::NoP2p => "no-p2p",
        Mode::Dynamic => "dynamic",
        Mode::Pinned => "pinned",
        Mode::Revocable => "revocable",
        Mode::Cpu => "cpu",
        Mode::Late => "late",
    }
}

/// When the second importer attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It attaches before the first one maps.
    Early,
    /// It attaches when the first one has mapped, and pinned if it does.
    Late,
}

impl Order {
    /// The name in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Early => "early",
            Self::Late => "late",
        }
    }
}

/// The path and the reason of one importer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gets {
    /// `PATH_*`
    pub path: u32,
    /// `REASON_*`
    pub reason: u32,
}

impl Gets {
    /// System memory.
    pub const fn system(reason: u32) -> Self {
        let path = uapi::PATH_SYSTEM;
        Self { path, reason }
    }

    /// Nothing.
    pub const fn refused(reason: u32) -> Self {
        let path = uapi::PATH_REFUSED;
        Self { path, reason }
    }
}

/// The result of a combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Where the object is, `PLACEMENT_*`.
    pub placement: u32,
    /// The result of the first importer.
    pub first: Gets,
    /// The result of the second importer, if there is one.
    pub second: Option<Gets>,
}

/// The rules, for one machine.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// `PATH_*` between exporter and importer, [`None`] without a route.
    pub route: Option<u32>,
}

impl Rules {
    /// The reason why an importer cannot access VRAM of any object: it does not take peer-to-peer
    /// memory, or there is no route. The former comes first.
    fn obstacle(self, mode: Mode) -> Option<u32> {
        match (mode, self.route) {
            (Mode::Static | Mode::NoP2p | Mode::Cpu, _) => Some(uapi::REASON_NO_OPT_IN),
            (_, None) => Some(uapi::REASON_NO_ROUTE),
            (_, Some(_)) => None,
        }
    }

    /// Peer-to-peer memory; only called if there is a route.
    fn peer(self) -> Gets {
        Gets {
            path: self.route.unwrap_or_default(),
            reason: uapi::REASON_NONE,
        }
    }

    /// Whether a mapping of this class keeps the object where it is. For static
    /// importers the core pins.
    pub fn holds(mode: Mode) -> bool {
        matches!(mode, Mode::Static | Mode::Pinned | Mode::Revocable)
    }

    /// The result of an importer that is the only one of an object.
    pub fn alone(self, object: Object, mode: Mode) -> Expected {
        let (placement, first) = match (object, self.obstacle(mode)) {
            (Object::System, obstacle) => {
                let reason = obstacle.unwrap_or(uapi::REASON_SYSTEM_ONLY);
                (uapi::PLACEMENT_SYSTEM, Gets::system(reason))
            }
            (_, None) => (uapi::PLACEMENT_VRAM, self.peer()),
            (Object::Vram, Some(reason)) => (uapi::PLACEMENT_VRAM, Gets::refused(reason)),
            (Object::Either, Some(reason)) => (uapi::PLACEMENT_SYSTEM, Gets::system(reason)),
        };
        let second = None;
        Expected {
            placement,
            first,
            second,
        }
    }

    /// The result of two importers, when both have mapped or were refused.
    pub fn both(self, object: Object, order: Order, first: Mode, second: Mode) -> Expected {
        let (one, other) = (self.alone(object, first), self.alone(object, second));
        let each_alone = Expected {
            second: Some(other.first),
            ..one
        };
        // The other importer does not matter if the object has only one possible placement, or if
        // both need the same placement.
        if one.placement == other.placement {
            return each_alone;
        }
        // One importer needs VRAM, the other one system memory. An object that the first importer
        // keeps in its place does not move: a peer gets system memory, and an importer that needs
        // system memory is refused.
        if order == Order::Late && Self::holds(first) {
            let elsewhere = uapi::REASON_PINNED_ELSEWHERE;
            let late = match one.placement {
                uapi::PLACEMENT_VRAM => Gets::refused(elsewhere),
                _ => Gets::system(elsewhere),
            };
            return Expected {
                second: Some(late),
                ..one
            };
        }
        // Otherwise the object is in system memory for both.
        let shared = |alone: Expected| match alone.placement {
            uapi::PLACEMENT_VRAM => Gets::system(uapi::REASON_OTHER_IMPORTER),
            _ => alone.first,
        };
        Expected {
            placement: uapi::PLACEMENT_SYSTEM,
            first: shared(one),
            second: Some(shared(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Rules = Rules {
        route: Some(uapi::PATH_PEER_BUS),
    };
    const NO_ROUTE: Rules = Rules { route: None };

    #[test]
    fn only_what_both_can_have() {
        let peer = Gets {
            path: uapi::PATH_PEER_BUS,
            reason: uapi::REASON_NONE,
        };
        for order in [Order::Early, Order::Late] {
            let both = ROUTE.both(Object::Either, order, Mode::Dynamic, Mode::Pinned);
            assert_eq!(both.placement, uapi::PLACEMENT_VRAM);
            assert_eq!((both.first, both.second), (peer, Some(peer)));
            let mixed = ROUTE.both(Object::Either, order, Mode::Dynamic, Mode::NoP2p);
            assert_eq!(mixed.placement, uapi::PLACEMENT_SYSTEM);
            assert_eq!(mixed.first, Gets::system(uapi::REASON_OTHER_IMPORTER));
            assert_eq!(mixed.second, Some(Gets::system(uapi::REASON_NO_OPT_IN)));
        }
    }

    #[test]
    fn a_pin_holds() {
        let late = ROUTE.both(Object::Either, Order::Late, Mode::Pinned, Mode::Static);
        assert_eq!(late.placement, uapi::PLACEMENT_VRAM);
        assert_eq!(
            late.second,
            Some(Gets::refused(uapi::REASON_PINNED_ELSEWHERE))
        );
        let early = ROUTE.both(Object::Either, Order::Early, Mode::Pinned, Mode::Static);
        assert_eq!(early.placement, uapi::PLACEMENT_SYSTEM);
        let peer_late = ROUTE.both(Object::Either, Order::Late, Mode::Static, Mode::Dynamic);
        assert_eq!(
            peer_late.second,
            Some(Gets::system(uapi::REASON_PINNED_ELSEWHERE))
        );
    }

    #[test]
    fn without_a_route_nobody_is_a_peer() {
        for order in [Order::Early, Order::Late] {
            for first in IMPORTERS {
                for second in IMPORTERS {
                    for object in Object::ALL {
                        let all = NO_ROUTE.both(object, order, first, second);
                        let want = match object {
                            Object::Vram => uapi::PATH_REFUSED,
                            _ => uapi::PATH_SYSTEM,
                        };
                        assert_eq!(all.first.path, want);
                        assert_eq!(all.second.map(|gets| gets.path), Some(want));
                    }
                }
            }
        }
    }
}

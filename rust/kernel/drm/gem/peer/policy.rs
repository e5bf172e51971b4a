// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The decisions about an importer: peer-to-peer memory, system memory or a refusal at the attach,
//! and the place of the object for a pin or a map.
//!
//! Pure functions of the [`Facts`] about the importer and the object and of the [`Situation`] at a
//! use of the object.

use super::{
    Path,
    Reason, //
};
use crate::{
    dma_buf::peer::Route,
    drm::vram::{
        Domain,
        MemType, //
    },
    prelude::*, //
};

/// The result of [`decide`] for an importer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How the importer reaches the object.
    pub path: Path,
    /// Why the path is not peer to peer.
    pub reason: Reason,
}

impl Outcome {
    /// The importer gets peer-to-peer memory along `path`.
    #[inline]
    pub const fn peer(path: Path) -> Self {
        Self {
            path,
            reason: Reason::None,
        }
    }

    /// The importer gets system memory because of `reason`.
    #[inline]
    pub const fn system(reason: Reason) -> Self {
        Self {
            path: Path::System,
            reason,
        }
    }

    /// The importer gets nothing because of `reason`.
    #[inline]
    pub const fn refused(reason: Reason) -> Self {
        Self {
            path: Path::Refused,
            reason,
        }
    }

    /// Returns the result of the importer's attach.
    ///
    /// # Errors
    ///
    /// `EDQUOT` if the limit of pinned VRAM is reached and `EOPNOTSUPP` for all other refusals.
    pub const fn result(self) -> Result {
        match (self.path, self.reason) {
            (Path::Refused, Reason::Quota) => Err(EDQUOT),
            (Path::Refused, _) => Err(EOPNOTSUPP),
            _ => Ok(()),
        }
    }
}

/// The facts about an importer and the object that it attaches to.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The exporting device is suspended.
    pub suspended: bool,
    /// The route between the importer and the memory.
    pub route: Route,
    /// The BAR shows all of the object, or would after a move of the object.
    pub inside_bar: bool,
    /// Where the object may live.
    pub domain: Domain,
    /// The object is exported in VRAM only: see
    /// [`PeerObject::vram_or_fail`](super::PeerObject::vram_or_fail).
    pub vram_or_fail: bool,
    /// Peers cannot read the object in VRAM as it is: see
    /// [`PeerObject::is_encoded`](super::PeerObject::is_encoded).
    pub encoded: bool,
    /// Where the object is pinned. [`None`] if it is not.
    pub pinned: Option<MemType>,
    /// The importer is not revocable and the device gives no VRAM to such importers: see
    /// [`Unrevocable::Refuse`](super::Unrevocable::Refuse).
    pub unrevocable: bool,
}

/// Returns whether importers get an object in VRAM or not at all.
#[inline]
pub(super) fn needs_vram(domain: Domain, vram_or_fail: bool) -> bool {
    vram_or_fail || domain == Domain::Vram
}

/// Decides the outcome for an importer.
///
/// A pure function, so all combinations can be tested. If several reasons apply, the reason of the
/// route comes first: see [`Route::path`]. Userspace must not rely on this order.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::peer::Route,
///     drm::{
///         gem::peer::{
///             decide,
///             Facts,
///             Outcome,
///             Path,
///             Reason, //
///         },
///         vram::Domain, //
///     },
///     pci::p2pdma::MapType, //
/// };
///
/// let route = Route {
///     opted_in: true,
///     pci: true,
///     map_type: MapType::BUS_ADDR,
/// };
/// let below_one_switch = Facts {
///     suspended: false,
///     route,
///     inside_bar: true,
///     domain: Domain::Vram,
///     vram_or_fail: false,
///     encoded: false,
///     pinned: None,
///     unrevocable: false,
/// };
/// assert_eq!(decide(&below_one_switch), Outcome::peer(Path::PeerBus));
///
/// // Without a route the outcome depends on where the object may live.
/// let mut no_route = Facts {
///     route: Route {
///         map_type: MapType::NOT_SUPPORTED,
///         ..route
///     },
///     ..below_one_switch
/// };
/// assert_eq!(decide(&no_route), Outcome::refused(Reason::NoRoute));
///
/// no_route.domain = Domain::Either;
/// assert_eq!(decide(&no_route), Outcome::system(Reason::NoRoute));
///
/// // It also depends on how the object may be exported.
/// no_route.vram_or_fail = true;
/// assert_eq!(decide(&no_route), Outcome::refused(Reason::NoRoute));
/// ```
#[inline]
pub fn decide(facts: &Facts) -> Outcome {
    let path = match facts.route.path() {
        Ok(_) if !facts.inside_bar => Err(Reason::OutsideBar),
        Ok(_) if facts.suspended => Err(Reason::Suspended),
        Ok(_) if facts.unrevocable && facts.domain != Domain::System => Err(Reason::NotRevocable),
        // A move to system memory decodes the object.
        Ok(_) if facts.encoded && facts.domain != Domain::System => Err(Reason::Encoded),
        path => path.map(Path::from).map_err(Reason::from),
    };
    let pinned_in_vram = facts.pinned == Some(MemType::Vram);
    let vram_or_fail = needs_vram(facts.domain, facts.vram_or_fail);

    let reason = match path {
        Ok(_) if facts.domain == Domain::System => Reason::SystemOnly,
        Ok(_) if facts.pinned.is_some() && !pinned_in_vram => Reason::PinnedElsewhere,
        Ok(path) => return Outcome::peer(path),
        Err(_) if pinned_in_vram && !vram_or_fail => {
            return Outcome::refused(Reason::PinnedElsewhere)
        }
        Err(reason) => reason,
    };

    if vram_or_fail {
        Outcome::refused(reason)
    } else {
        Outcome::system(reason)
    }
}

/// The use of an object by an importer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A pin: the object stays in its place from then on, so other objects are evicted for it.
    Pin,
    /// A map: the object may move later. It therefore gets VRAM only if this evicts no object that
    /// the device needs more.
    Map,
}

/// The situation of an object in use by an importer.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// The outcome of the importer's attach.
    pub attached: Outcome,
    /// All importers of the object reach it in VRAM.
    pub all_peers: bool,
    /// An importer has mapped the object. Only matters with [`Self::no_window`].
    pub mapped: bool,
    /// Where the object may live.
    pub domain: Domain,
    /// As [`Facts::vram_or_fail`].
    pub vram_or_fail: bool,
    /// Where the object is.
    pub state: State,
    /// The device is active and stays active for the time being.
    pub active: bool,
    /// The last importer to map the object in VRAM found the aperture full.
    pub no_window: bool,
    /// A peer got system memory because the device was suspended.
    pub was_suspended: bool,
}

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The kind of memory. [`None`] if it has none yet.
    pub mem_type: Option<MemType>,
    /// It cannot move: it is pinned or its class never moves.
    pub pinned: bool,
    /// It is in peer-visible VRAM or can become visible through a window.
    pub visible: bool,
}

impl State {
    /// Returns whether the object is in VRAM.
    #[inline]
    pub fn is_in_vram(&self) -> bool {
        self.mem_type == Some(MemType::Vram)
    }
}

/// The result of [`placement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The object is used where it is.
    Stay,
    /// The object is moved.
    Move {
        /// Where to. [`Domain::Either`] is VRAM if some is free or has less useful objects, and
        /// otherwise system memory.
        to: Domain,
        /// Where to if there is no room.
        or: Option<Domain>,
    },
    /// The importer gets an error because of a reason.
    Refuse(Reason),
}

impl Placement {
    const fn to(to: Domain) -> Self {
        Self::Move { to, or: None }
    }
}

impl Situation {
    /// Returns whether the object is exported in VRAM only.
    #[inline]
    pub fn needs_vram(&self) -> bool {
        needs_vram(self.domain, self.vram_or_fail)
    }

    /// Returns whether an unpinned object is where [`placement`] would move it if the device is
    /// active.
    #[inline]
    pub fn is_in_place(&self) -> bool {
        self.state.visible && self.domain != Domain::System && (self.needs_vram() || self.all_peers)
    }

    /// Returns the importer's outcome in the present place of the object. It may be worse than the
    /// outcome of the attach.
    pub fn outcome(&self) -> Outcome {
        let in_vram = self.state.is_in_vram();

        if !self.attached.path.is_peer() || (in_vram && !self.no_window) {
            return self.attached;
        }
        let reason = if !self.all_peers {
            Reason::OtherImporter
        } else if in_vram {
            Reason::NoWindow
        } else if self.was_suspended {
            Reason::Suspended
        } else if self.state.pinned {
            Reason::PinnedElsewhere
        } else if self.no_window {
            Reason::NoWindow
        } else {
            Reason::NoVram
        };

        if in_vram || self.needs_vram() {
            Outcome::refused(reason)
        } else {
            Outcome::system(reason)
        }
    }
}

/// Decides the place of an object about to be used by an importer, so that all of its importers can
/// use it.
///
/// A pure function like [`decide`].
///
/// # Examples
///
/// ```
/// use kernel::drm::{
///     gem::peer::{
///         placement,
///         Outcome,
///         Path,
///         Placement,
///         Reason,
///         Situation,
///         State,
///         Use, //
///     },
///     vram::{
///         Domain,
///         MemType, //
///     }, //
/// };
///
/// let evicted = Situation {
///     attached: Outcome::peer(Path::PeerBus),
///     all_peers: true,
///     mapped: false,
///     domain: Domain::Either,
///     vram_or_fail: false,
///     state: State {
///         mem_type: Some(MemType::Tt),
///         pinned: false,
///         visible: false,
///     },
///     active: true,
///     no_window: false,
///     was_suspended: false,
/// };
/// assert_eq!(
///     placement(&evicted, Use::Map),
///     Placement::Move {
///         to: Domain::Either,
///         or: None,
///     }
/// );
///
/// // For a pin other objects are evicted.
/// assert_eq!(
///     placement(&evicted, Use::Pin),
///     Placement::Move {
///         to: Domain::Vram,
///         or: Some(Domain::System),
///     }
/// );
///
/// // VRAM is out of reach while the device is suspended.
/// let mut asleep = Situation {
///     active: false,
///     ..evicted
/// };
/// assert_eq!(
///     placement(&asleep, Use::Map),
///     Placement::Move {
///         to: Domain::System,
///         or: None,
///     }
/// );
/// asleep.vram_or_fail = true;
/// assert_eq!(
///     placement(&asleep, Use::Map),
///     Placement::Refuse(Reason::Suspended)
/// );
/// ```
pub fn placement(s: &Situation, by: Use) -> Placement {
    if s.state.pinned {
        // By an earlier importer or by the driver itself.
        let reached = if s.state.is_in_vram() {
            s.attached.path.is_peer()
        } else {
            !s.needs_vram()
        };

        return if reached {
            Placement::Stay
        } else {
            Placement::Refuse(Reason::PinnedElsewhere)
        };
    }
    if s.needs_vram() {
        // Its peers keep the device active and there are no other importers to serve.
        return if s.active {
            Placement::to(Domain::Vram)
        } else {
            Placement::Refuse(Reason::Suspended)
        };
    }

    // Others may have mapped the object in system memory for want of a window. If the next importer
    // moved it to VRAM again, two of them could move it to and fro for ever.
    let lacks_window = s.no_window && s.mapped;
    if s.domain == Domain::System || !s.all_peers || !s.active || lacks_window {
        return Placement::to(Domain::System);
    }
    match by {
        // Once it is pinned, it cannot move to VRAM any more.
        Use::Pin => Placement::Move {
            to: Domain::Vram,
            or: Some(Domain::System),
        },
        // An object already in VRAM is not evicted to make room in system memory.
        Use::Map => Placement::to(Domain::Either),
    }
}

/// Decides the place of an object in VRAM for an importer that has found no window to map it.
pub fn placement_without_window(s: &Situation) -> Placement {
    let without = Situation {
        no_window: true,
        mapped: true,
        ..*s
    };

    placement(&without, Use::Map)
}

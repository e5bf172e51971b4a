// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The decision about an importer: peer-to-peer memory, system memory or a refusal.
//!
//! Pure functions of the [`Facts`] about the importer and the object.

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

    /// Returns what the attach of the importer returns.
    ///
    /// # Errors
    ///
    /// `EDQUOT` if the limit of pinned VRAM is reached, and `EOPNOTSUPP` for all other refusals.
    pub const fn result(self) -> Result {
        match (self.path, self.reason) {
            (Path::Refused, Reason::Quota) => Err(EDQUOT),
            (Path::Refused, _) => Err(EOPNOTSUPP),
            _ => Ok(()),
        }
    }
}

/// The facts about an importer, and about the object that it wants to attach to.
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
    /// Importers get the object in VRAM or not at all, see
    /// [`PeerObject::vram_or_fail`](super::PeerObject::vram_or_fail).
    pub vram_or_fail: bool,
    /// Peers cannot read the object in VRAM as it is, see
    /// [`PeerObject::is_encoded`](super::PeerObject::is_encoded).
    pub encoded: bool,
    /// Where the object is pinned, if it is.
    pub pinned: Option<MemType>,
    /// The importer cannot be revoked, and the device does not give VRAM to such importers, see
    /// [`Unrevocable::Refuse`](super::Unrevocable::Refuse).
    pub unrevocable: bool,
}

/// Decides what an importer gets.
///
/// A pure function, so that all combinations can be tested. If several reasons apply, the reason of
/// the route comes first, see [`Route::path`]. Userspace must not rely on that order.
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
    let vram_or_fail = facts.vram_or_fail || facts.domain == Domain::Vram;

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

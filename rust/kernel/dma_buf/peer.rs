// SPDX-License-Identifier: GPL-2.0

//! How an importer reaches memory behind a BAR, and why not.
//!
//! Every exporter of such memory asks the same questions when an importer attaches: does it take
//! peer memory, is it a PCI device, is there a permitted route. [`Route`] has the answers, and
//! [`Route::path`] what follows from them. Nothing falls back or is refused without a [`Reason`].
//!
//! What else an exporter takes into account is its own business; for objects in VRAM that can move
//! it is [`drm::gem::peer`](crate::drm::gem).

use super::exporter::AttachRequest;
use crate::{
    device,
    pci::{
        self,
        p2pdma::{
            Decision,
            MapType,
            Provider, //
        }, //
    },
    prelude::*,
    uapi, //
};

/// How an importer reaches a buffer, `enum drm_peer_path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Path {
    /// Peer to peer, by PCI bus address: both devices are below one switch or bridge.
    PeerBus = uapi::drm_peer_path_DRM_PEER_PATH_BUS,
    /// Peer to peer through the host bridge, by IOVA where the importer is behind an IOMMU.
    PeerHostBridge = uapi::drm_peer_path_DRM_PEER_PATH_HOST_BRIDGE,
    /// The importer is served from system memory.
    System = uapi::drm_peer_path_DRM_PEER_PATH_SYSTEM,
    /// The importer was not attached.
    Refused = uapi::drm_peer_path_DRM_PEER_PATH_REFUSED,
}

impl Path {
    /// Tells whether the importer accesses the exporter's own memory.
    #[inline]
    pub const fn is_peer(self) -> bool {
        matches!(self, Self::PeerBus | Self::PeerHostBridge)
    }

    /// Returns the name of the path, as debugfs and the tracepoints have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PeerBus => "bus",
            Self::PeerHostBridge => "host-bridge",
            Self::System => "system",
            Self::Refused => "refused",
        }
    }

    /// Returns the value that stands for the path in the uAPI.
    #[inline]
    pub const fn code(self) -> u32 {
        // CAST: The values are small.
        self as u32
    }
}

/// Why an importer does not get peer memory, `enum drm_peer_reason`.
///
/// The reasons from 1 to 5, and 9, lead to system memory where the object may live there, and to a
/// refusal where it may not. Those from 6 to 8 are about where the object is, and lead to system
/// memory.
/// The others refuse; an importer that could have peer memory gets system memory, if the object is
/// pinned there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// It gets peer memory.
    None = uapi::drm_peer_reason_DRM_PEER_REASON_NONE,
    /// The importer did not say that it takes peer memory; static importers never do.
    NoOptIn = uapi::drm_peer_reason_DRM_PEER_REASON_NO_OPT_IN,
    /// The importer is not a PCI device.
    NotPci = uapi::drm_peer_reason_DRM_PEER_REASON_NOT_PCI,
    /// PCI has no permitted route between both devices.
    NoRoute = uapi::drm_peer_reason_DRM_PEER_REASON_NO_ROUTE,
    /// The object is not inside the part of VRAM that the BAR shows.
    OutsideBar = uapi::drm_peer_reason_DRM_PEER_REASON_OUTSIDE_BAR,
    /// The exporting device is suspended.
    Suspended = uapi::drm_peer_reason_DRM_PEER_REASON_SUSPENDED,
    /// Another importer needs the object in system memory.
    OtherImporter = uapi::drm_peer_reason_DRM_PEER_REASON_OTHER_IMPORTER,
    /// There is no room in VRAM.
    NoVram = uapi::drm_peer_reason_DRM_PEER_REASON_NO_VRAM,
    /// The object was made to live in system memory.
    SystemOnly = uapi::drm_peer_reason_DRM_PEER_REASON_SYSTEM_ONLY,
    /// The importer cannot be told to let go, and the exporting device does not give its memory to
    /// such importers, or no more of it.
    NotRevocable = uapi::drm_peer_reason_DRM_PEER_REASON_NOT_REVOCABLE,
    /// The object is pinned where the importer cannot reach it.
    PinnedElsewhere = uapi::drm_peer_reason_DRM_PEER_REASON_PINNED_ELSEWHERE,
    /// The limit of pinned VRAM is reached.
    Quota = uapi::drm_peer_reason_DRM_PEER_REASON_QUOTA,
}

impl Reason {
    /// All reasons, in the order of their values.
    pub const ALL: [Self; 12] = [
        Self::None,
        Self::NoOptIn,
        Self::NotPci,
        Self::NoRoute,
        Self::OutsideBar,
        Self::Suspended,
        Self::OtherImporter,
        Self::NoVram,
        Self::SystemOnly,
        Self::NotRevocable,
        Self::PinnedElsewhere,
        Self::Quota,
    ];

    /// Returns the name of the reason, as debugfs and the tracepoints have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::NoOptIn => "no-opt-in",
            Self::NotPci => "not-pci",
            Self::NoRoute => "no-route",
            Self::OutsideBar => "outside-bar",
            Self::Suspended => "suspended",
            Self::OtherImporter => "other-importer",
            Self::NoVram => "no-vram",
            Self::SystemOnly => "system-only",
            Self::NotRevocable => "not-revocable",
            Self::PinnedElsewhere => "pinned-elsewhere",
            Self::Quota => "quota",
        }
    }

    /// Returns the value that stands for the reason in the uAPI.
    #[inline]
    pub const fn code(self) -> u32 {
        // CAST: The values are small.
        self as u32
    }
}

/// Returns the PCI hops between an importer and the memory behind a BAR; [`None`] if there is no
/// permitted route, or the importer is not a PCI device.
///
/// Walks the route, which takes longer than all else of an attach: for those who look at an
/// attachment, not for each that is made.
pub fn distance(provider: &Provider<'_>, importer: &device::Device) -> Option<u32> {
    if is_pci(importer) {
        provider.distance(importer)
    } else {
        None
    }
}

fn is_pci(dev: &device::Device) -> bool {
    <&pci::Device>::try_from(dev).is_ok()
}

/// What is between an importer and the memory behind a BAR.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The importer takes peer memory.
    pub opted_in: bool,
    /// The importer is a PCI device.
    pub pci: bool,
    /// The kind of mapping that PCI allows.
    pub map_type: MapType,
}

impl Route {
    /// Finds out about the route of an importer that attaches.
    ///
    /// It is walked when an importer comes for the first time. The kind is remembered, and is also
    /// that of each mapping.
    pub fn new(provider: &Provider<'_>, req: &AttachRequest<'_>) -> Self {
        let pci = is_pci(req.device());
        let map_type = if pci {
            req.map_type(provider)
        } else {
            MapType::NOT_SUPPORTED
        };

        Self {
            opted_in: req.peer2peer(),
            pci,
            map_type,
        }
    }

    /// Measures the route of a device that may attach, opted in to peer memory or not.
    ///
    /// For a PCI device it also returns what the route follows from.
    pub fn measure(
        provider: &Provider<'_>,
        client: &device::Device,
        opted_in: bool,
    ) -> (Self, Option<Decision>) {
        let decision = <&pci::Device>::try_from(client)
            .ok()
            .map(|client| provider.decide(client));
        let route = Self {
            opted_in,
            pci: decision.is_some(),
            map_type: decision.map_or(MapType::NOT_SUPPORTED, |decision| decision.map_type),
        };

        (route, decision)
    }

    /// Returns the path along the route, or the reason why there is none.
    ///
    /// Where several reasons apply, it is the one that the importer can do most about: whether it
    /// opts in is its own choice, where it sits is that of whoever built the machine.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::{
    ///     dma_buf::peer::{
    ///         Path,
    ///         Reason,
    ///         Route, //
    ///     },
    ///     pci::p2pdma::MapType, //
    /// };
    ///
    /// let below_one_switch = Route {
    ///     opted_in: true,
    ///     pci: true,
    ///     map_type: MapType::BUS_ADDR,
    /// };
    /// assert_eq!(below_one_switch.path(), Ok(Path::PeerBus));
    ///
    /// let without_opt_in = Route {
    ///     opted_in: false,
    ///     ..below_one_switch
    /// };
    /// assert_eq!(without_opt_in.path(), Err(Reason::NoOptIn));
    /// ```
    pub fn path(&self) -> core::result::Result<Path, Reason> {
        if !self.opted_in {
            Err(Reason::NoOptIn)
        } else if !self.pci {
            Err(Reason::NotPci)
        } else if self.map_type == MapType::BUS_ADDR {
            Ok(Path::PeerBus)
        } else if self.map_type == MapType::THRU_HOST_BRIDGE {
            Ok(Path::PeerHostBridge)
        } else {
            Err(Reason::NoRoute)
        }
    }
}

/// Returns the path of an importer that attaches, for an exporter that has only peer memory to
/// offer.
///
/// # Errors
///
/// `EOPNOTSUPP` if there is none; the debug log of the importer's device has the reason.
pub fn require_path(provider: &Provider<'_>, req: &AttachRequest<'_>) -> Result<Path> {
    Route::new(provider, req).path().map_err(|reason| {
        dev_dbg!(
            req.device(),
            "no peer memory of {}: {}\n",
            provider.device().as_ref().name(),
            reason.name()
        );
        EOPNOTSUPP
    })
}

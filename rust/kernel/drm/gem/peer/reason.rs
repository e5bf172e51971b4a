// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How an importer reaches an object, why not peer to peer, and the order of its writes: the names
//! and numbers of `drm_peer.h`.
//!
//! C header: [`include/uapi/drm/drm_peer.h`](srctree/include/uapi/drm/drm_peer.h)

use crate::{
    dma_buf::peer::{
        PeerPath,
        RouteError, //
    },
    uapi, //
};

/// How an importer reaches a buffer: `enum drm_peer_path` without links, which no driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Path {
    /// Peer to peer by PCI bus address: both devices are below one switch or bridge.
    PeerBus = uapi::drm_peer_path_DRM_PEER_PATH_BUS,
    /// Peer to peer through the host bridge; by IOVA if the importer is behind an IOMMU.
    PeerHostBridge = uapi::drm_peer_path_DRM_PEER_PATH_HOST_BRIDGE,
    /// The importer is served from system memory.
    System = uapi::drm_peer_path_DRM_PEER_PATH_SYSTEM,
    /// The importer was not attached.
    Refused = uapi::drm_peer_path_DRM_PEER_PATH_REFUSED,
}

impl Path {
    /// Returns whether the importer accesses the exporter's own memory.
    #[inline]
    pub const fn is_peer(self) -> bool {
        matches!(self, Self::PeerBus | Self::PeerHostBridge)
    }

    /// Returns the name of the path, as in debugfs and the tracepoints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PeerBus => "bus",
            Self::PeerHostBridge => "host-bridge",
            Self::System => "system",
            Self::Refused => "refused",
        }
    }

    /// Returns the uAPI value of the path.
    #[inline]
    pub const fn code(self) -> u32 {
        // CAST: The values are small.
        self as u32
    }
}

impl From<PeerPath> for Path {
    #[inline]
    fn from(path: PeerPath) -> Self {
        match path {
            PeerPath::Bus => Self::PeerBus,
            PeerPath::HostBridge => Self::PeerHostBridge,
        }
    }
}

/// Why an importer does not get peer-to-peer memory: `enum drm_peer_reason`.
///
/// Reasons 1 to 5, 9 and 11 lead to system memory if the object may live there and otherwise to a
/// refusal. So does 10, but only at a map. Reasons 6 to 8 are about the place of the object and
/// lead to system memory. The others are refusals; an importer eligible for peer-to-peer memory
/// gets system memory if the object is pinned there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// The importer gets peer-to-peer memory.
    None = uapi::drm_peer_reason_DRM_PEER_REASON_NONE,
    /// The importer did not opt in to peer-to-peer memory; static importers never do.
    NoOptIn = uapi::drm_peer_reason_DRM_PEER_REASON_NO_OPT_IN,
    /// The importer is not a PCI device.
    NotPci = uapi::drm_peer_reason_DRM_PEER_REASON_NOT_PCI,
    /// PCI has no permitted route between both devices.
    NoRoute = uapi::drm_peer_reason_DRM_PEER_REASON_NO_ROUTE,
    /// The object is not inside the part of VRAM visible through the BAR.
    OutsideBar = uapi::drm_peer_reason_DRM_PEER_REASON_OUTSIDE_BAR,
    /// The exporting device is suspended.
    Suspended = uapi::drm_peer_reason_DRM_PEER_REASON_SUSPENDED,
    /// Another importer needs the object in system memory.
    OtherImporter = uapi::drm_peer_reason_DRM_PEER_REASON_OTHER_IMPORTER,
    /// There is no room in VRAM.
    NoVram = uapi::drm_peer_reason_DRM_PEER_REASON_NO_VRAM,
    /// The object was created to live in system memory.
    SystemOnly = uapi::drm_peer_reason_DRM_PEER_REASON_SYSTEM_ONLY,
    /// The importer is not revocable and the exporting device gives no VRAM, or no more VRAM, to
    /// such importers.
    NotRevocable = uapi::drm_peer_reason_DRM_PEER_REASON_NOT_REVOCABLE,
    /// The aperture for peer access to VRAM is full of windows.
    NoWindow = uapi::drm_peer_reason_DRM_PEER_REASON_NO_WINDOW,
    /// Peers cannot read the object in VRAM because it is compressed or encrypted there.
    Encoded = uapi::drm_peer_reason_DRM_PEER_REASON_ENCODED,
    /// The object is pinned where the importer cannot reach it.
    PinnedElsewhere = uapi::drm_peer_reason_DRM_PEER_REASON_PINNED_ELSEWHERE,
    /// The limit of pinned VRAM is reached.
    Quota = uapi::drm_peer_reason_DRM_PEER_REASON_QUOTA,
}

impl From<RouteError> for Reason {
    #[inline]
    fn from(error: RouteError) -> Self {
        match error {
            RouteError::NoOptIn => Self::NoOptIn,
            RouteError::NotPci => Self::NotPci,
            RouteError::NoRoute => Self::NoRoute,
        }
    }
}

impl Reason {
    /// All reasons, in the order of their values.
    pub const ALL: [Self; 14] = [
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
        Self::NoWindow,
        Self::Encoded,
        Self::PinnedElsewhere,
        Self::Quota,
    ];

    /// Returns the name of the reason, as in debugfs and the tracepoints.
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
            Self::NoWindow => "no-window",
            Self::Encoded => "encoded",
            Self::PinnedElsewhere => "pinned-elsewhere",
            Self::Quota => "quota",
        }
    }

    /// Returns the uAPI value of the reason.
    #[inline]
    pub const fn code(self) -> u32 {
        // CAST: The values are small.
        self as u32
    }
}

/// When work of a device sees the writes of a peer to VRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Order {
    /// When it is queued after [`flush_writes`](super::flush_writes), because engines do not read
    /// VRAM through the BAR.
    Flush = uapi::drm_peer_order_DRM_PEER_ORDER_FLUSH,
    /// When it is queued after the peer has reported completion: all work reads VRAM through the
    /// BAR behind the writes of peers.
    Report = uapi::drm_peer_order_DRM_PEER_ORDER_REPORT,
}

impl Order {
    /// Returns the uAPI value of the order.
    #[inline]
    pub const fn code(self) -> u32 {
        // CAST: The values are small.
        self as u32
    }
}

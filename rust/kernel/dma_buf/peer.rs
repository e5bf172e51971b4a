// SPDX-License-Identifier: GPL-2.0

//! How an importer reaches memory behind a BAR, or the reason why it does not.
//!
//! Every exporter of such memory asks the same questions when an importer attaches: does it take
//! peer-to-peer memory, is it a PCI device, is there a permitted route. [`Route`] has the answers.
//! [`Route::path`] returns the [`PeerPath`] that follows from them, or the [`RouteError`].
//!
//! Reasons that are not about the route are up to the exporter: `drm::gem::peer` adds those of
//! objects in VRAM, such as their placement and the limits of what may be pinned.

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
    prelude::*, //
};

/// A path by which an importer reaches memory behind a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerPath {
    /// By PCI bus address: both devices are below one switch or bridge.
    Bus,
    /// Through the host bridge, by IOVA where the importer is behind an IOMMU.
    HostBridge,
}

/// Why an importer has no path to memory behind a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// The importer did not opt in to peer-to-peer memory; static importers never do.
    NoOptIn,
    /// The importer is not a PCI device.
    NotPci,
    /// PCI has no permitted route between both devices, or the DMA mask of the importer does not
    /// cover the BAR.
    NoRoute,
}

impl RouteError {
    /// Returns the name of the error, as logs have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoOptIn => "no-opt-in",
            Self::NotPci => "not-pci",
            Self::NoRoute => "no-route",
        }
    }
}

/// Returns the PCI hops between an importer and the memory behind a BAR; [`None`] if there is no
/// permitted route, or the importer is not a PCI device.
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

/// Returns the kind of mapping that PCI allows, if `client` can use its addresses.
fn usable(provider: &Provider<'_>, client: &device::Device, map_type: MapType) -> MapType {
    if provider.is_in_mask_of(client, map_type) {
        map_type
    } else {
        MapType::NOT_SUPPORTED
    }
}

/// The route between an importer and the memory behind a BAR.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The importer takes peer-to-peer memory.
    pub opted_in: bool,
    /// The importer is a PCI device.
    pub pci: bool,
    /// The kind of mapping that PCI allows.
    pub map_type: MapType,
}

impl Route {
    /// Determines the route of an importer that attaches.
    ///
    /// The PCI core keeps the kind of a route when it is walked for the first time. It is also that
    /// of each mapping.
    pub fn new(provider: &Provider<'_>, req: &AttachRequest<'_>) -> Self {
        let client = req.device();
        let pci = is_pci(client);
        // Without the walk, `map_type()` of an unknown route would warn if there is none.
        let map_type = if pci && provider.distance(client).is_some() {
            usable(provider, client, provider.map_type(client))
        } else {
            MapType::NOT_SUPPORTED
        };

        Self {
            opted_in: req.peer2peer(),
            pci,
            map_type,
        }
    }

    /// Measures the route of a device that may attach, opted in to peer-to-peer memory or not.
    ///
    /// The DMA mask of the device, which the driver may still have to set, does not count. For a PCI
    /// device it also returns the facts that decide the route.
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
    /// Where several errors apply, the first one is the one that the importer can avoid: it chooses
    /// whether to opt in, and cannot choose its place in the machine.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::{
    ///     dma_buf::peer::{
    ///         PeerPath,
    ///         Route,
    ///         RouteError, //
    ///     },
    ///     pci::p2pdma::MapType, //
    /// };
    ///
    /// let below_one_switch = Route {
    ///     opted_in: true,
    ///     pci: true,
    ///     map_type: MapType::BUS_ADDR,
    /// };
    /// assert_eq!(below_one_switch.path(), Ok(PeerPath::Bus));
    ///
    /// let without_opt_in = Route {
    ///     opted_in: false,
    ///     ..below_one_switch
    /// };
    /// assert_eq!(without_opt_in.path(), Err(RouteError::NoOptIn));
    /// ```
    pub fn path(&self) -> core::result::Result<PeerPath, RouteError> {
        if !self.opted_in {
            Err(RouteError::NoOptIn)
        } else if !self.pci {
            Err(RouteError::NotPci)
        } else if self.map_type == MapType::BUS_ADDR {
            Ok(PeerPath::Bus)
        } else if self.map_type == MapType::THRU_HOST_BRIDGE {
            Ok(PeerPath::HostBridge)
        } else {
            Err(RouteError::NoRoute)
        }
    }
}

/// Returns the path of an importer that attaches, for an exporter that has only peer-to-peer memory
/// to offer.
///
/// # Errors
///
/// `EOPNOTSUPP` if there is none; the debug log of the importer's device names the [`RouteError`].
pub fn require_path(provider: &Provider<'_>, req: &AttachRequest<'_>) -> Result<PeerPath> {
    Route::new(provider, req).path().map_err(|error| {
        dev_dbg!(
            req.device(),
            "no peer-to-peer memory of {}: {}\n",
            provider.device().as_ref().name(),
            error.name()
        );
        EOPNOTSUPP
    })
}

// SPDX-License-Identifier: GPL-2.0

//! The path of an importer to memory behind a BAR, or the reason for having none.
//!
//! Every exporter of such memory checks the same facts when an importer attaches: whether it takes
//! peer-to-peer memory, whether it is a PCI device and whether there is a permitted route.
//! [`Route`] has these facts. [`Route::path`] returns the resulting [`PeerPath`] or [`RouteError`].
//!
//! Reasons other than the route are up to the exporter: `drm::gem::peer` adds those of objects in
//! VRAM, such as their placement and the limits of pinned memory.

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

/// A path of an importer to memory behind a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerPath {
    /// By PCI bus address: both devices are below one switch or bridge.
    Bus,
    /// Through the host bridge, by IOVA if the importer is behind an IOMMU.
    HostBridge,
}

/// The reason why an importer has no path to memory behind a BAR.
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
    /// Returns the name of the error for logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoOptIn => "no-opt-in",
            Self::NotPci => "not-pci",
            Self::NoRoute => "no-route",
        }
    }
}

/// Returns the number of PCI hops between an importer and the memory behind a BAR; [`None`] if
/// there is no permitted route, or if the importer is not a PCI device.
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

/// Returns `map_type` if `client` can use its addresses, else `NOT_SUPPORTED`.
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
    /// The kind of mapping allowed by PCI.
    pub map_type: MapType,
}

impl Route {
    /// Determines the route of an attaching importer.
    ///
    /// The PCI core keeps the kind of a route from its first walk. Each mapping uses the same kind.
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

    /// Measures the route of a device that may attach, with or without the opt-in to peer-to-peer
    /// memory.
    ///
    /// The DMA mask of the device does not count because the driver may still have to set it. For a
    /// PCI device the facts that decide the route are returned too.
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

    /// Returns the path along the route or the reason why there is none.
    ///
    /// If several errors apply, the avoidable one comes first: an importer can choose whether to
    /// opt in but not its place in the machine.
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

/// Returns the path of an attaching importer for an exporter of peer-to-peer memory only.
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

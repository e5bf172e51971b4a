// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The common ioctls of drivers: lists of importers, queries about possible importers and flushes
//! of their writes.
//!
//! A driver gives them numbers in its own header and adds one line each to its table:
//!
//! ```ignore
//! kernel::declare_drm_ioctls! {
//!     (
//!         FOO_ATTACHMENTS,
//!         drm_peer_attachments,
//!         ioctl::RENDER_ALLOW,
//!         peer::ioctl::attachments::<Bo>,
//!         Ioctl
//!     ),
//!     (FOO_QUERY, drm_peer_query, ioctl::RENDER_ALLOW, peer::ioctl::query::<Bo>, Ioctl),
//!     (FOO_FLUSH, drm_peer_flush, ioctl::RENDER_ALLOW, peer::ioctl::flush::<Bo>, Ioctl),
//! }
//! ```
//!
//! C header: [`include/uapi/drm/drm_peer.h`](srctree/include/uapi/drm/drm_peer.h)

use super::{
    flush_writes,
    listing,
    query::{
        self,
        Answer,
        Class,
        Importer, //
    },
    AttachmentInfo,
    Backing,
    Object,
    PeerObject, //
};
use crate::{
    drm::{
        self,
        gem::{
            BaseObject,
            DriverObject, //
        },
        Ioctl, //
    },
    pci::{
        self,
        p2pdma::{
            Decision,
            Host, //
        },
        Address, //
    },
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    },
    transmute::AsBytes,
    uaccess::{
        UserPtr,
        UserSlice, //
    },
    uapi, //
};

type DriverOf<T> = <T as DriverObject>::Driver;
type FileOf<T> = <DriverOf<T> as drm::Driver>::File;

/// The size of a record in bytes.
const RECORD: usize = size_of::<uapi::drm_peer_attachment>();
/// The longest record accepted from a caller.
const RECORD_MAX: usize = 4096;

// Later versions only append to the record.
const _: () = assert!(RECORD >= uapi::DRM_PEER_ATTACHMENT_SIZE_VER0 as usize);

// SAFETY: The structure has no padding: it consists of names, 32-bit numbers and one 64-bit number
// at a multiple of 8.
unsafe impl AsBytes for uapi::drm_peer_attachment {}

/// Returns `EINVAL` unless `ok`.
fn check(ok: bool) -> Result {
    if ok {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

/// Checks the record size of a caller, which may know an earlier or a later version of the record.
///
/// # Examples
///
/// ```
/// use kernel::drm::gem::peer::ioctl::entry_size;
///
/// assert_eq!(entry_size(120), Ok(120));
/// assert_eq!(entry_size(4096), Ok(4096));
/// for size in [0, 8, 112, 119, 121, 124, 4104, u32::MAX] {
///     assert_eq!(entry_size(size), Err(EINVAL));
/// }
/// ```
///
/// # Errors
///
/// `EINVAL` if no version of the record has this size.
pub fn entry_size(size: u32) -> Result<usize> {
    // CAST: A `usize` has at least 32 bits on all machines.
    let size = size as usize;

    check(size >= uapi::DRM_PEER_ATTACHMENT_SIZE_VER0 as usize)?;
    check(size <= RECORD_MAX && size % align_of::<u64>() == 0)?;
    Ok(size)
}

/// Describes an importer for userspace.
fn record(info: &AttachmentInfo, now: Instant<Monotonic>) -> uapi::drm_peer_attachment {
    uapi::drm_peer_attachment {
        device: info.name,
        bus: info.bus,
        driver: info.driver,
        path: info.outcome.path.code(),
        reason: info.outcome.reason.code(),
        flags: info.flags,
        distance: info.hops(),
        age: info.age(now).map_or(0, |age| {
            // The clock is monotonic. 0 stands for an importer that was not refused.
            u64::try_from(age.as_nanos()).unwrap_or(0).max(1)
        }),
    }
}

/// Writes as many records as fit, one every `entry` bytes.
///
/// Neither generic nor inlined, so drivers have no copy of the function.
#[inline(never)]
fn write_records(
    list: &[AttachmentInfo],
    entry: usize,
    args: &mut uapi::drm_peer_attachments,
) -> Result {
    static REST: [u8; RECORD_MAX] = [0; RECORD_MAX];

    let count = list.len().min(args.count as usize);
    let addr = UserPtr::from_addr(args.attachments.try_into()?);
    let mut out = UserSlice::new(addr, count * entry).writer();
    let now = Instant::now();

    for info in list.iter().take(count) {
        let record = record(info, now);
        let known = entry.min(RECORD);

        out.write_slice(&record.as_bytes()[..known])?;
        out.write_slice(&REST[..entry - known])?;
    }

    args.count = list.len().try_into()?;
    args.entry_size = RECORD.try_into()?;
    Ok(())
}

/// Serves an ioctl with `struct drm_peer_attachments`: lists the attached and the refused importers
/// of an object.
///
/// # Errors
///
/// See the header.
pub fn attachments<T: PeerObject>(
    dev: &drm::Device<DriverOf<T>, Ioctl>,
    args: &mut uapi::drm_peer_attachments,
    file: &drm::File<FileOf<T>>,
) -> Result<u32>
where
    FileOf<T>: drm::file::DriverFile<Driver = DriverOf<T>>,
{
    check(args.pad == 0 && args.inode == 0)?;
    let entry = match args.count {
        0 => 0,
        _ => entry_size(args.entry_size)?,
    };

    let (list, inode) = {
        let _guard = dev.registration_guard().ok_or(ENODEV)?;
        let obj = Object::<T>::lookup_handle(file, args.handle)?;

        // Only the exporter of an imported buffer knows its other importers.
        check(obj.imported().is_none())?;
        listing::<T>(&*obj)?
    };

    // An unplug of any device waits for the section and a page fault may wait for userspace.
    write_records(&list, entry, args)?;
    args.inode = inode;
    Ok(0)
}

impl From<Address> for uapi::drm_peer_address {
    fn from(address: Address) -> Self {
        Self {
            domain: address.domain,
            bus: address.bus,
            devfn: address.devfn,
            pad: 0,
        }
    }
}

/// Returns whether there is no address.
fn is_zero(address: &uapi::drm_peer_address) -> bool {
    address.domain == 0 && address.bus == 0 && address.devfn == 0 && address.pad == 0
}

/// Fills in the facts that decide a route.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::gem::peer::ioctl::explain,
///     pci::{
///         p2pdma::{
///             Decision,
///             Host,
///             MapType,
///             Redirect, //
///         },
///         Address, //
///     },
///     uapi, //
/// };
///
/// let port = |devfn| Address {
///     domain: 1,
///     bus: 2,
///     devfn,
/// };
/// let mut args = uapi::drm_peer_query::default();
///
/// // Both devices are below one bridge, without a redirection.
/// let straight = Decision {
///     map_type: MapType::BUS_ADDR,
///     distance: Some(4),
///     bridge: Some(port(8)),
///     redirect: None,
///     host: None,
/// };
/// explain(&straight, &mut args);
/// assert_eq!(args.route, uapi::DRM_PEER_ROUTE_BRIDGE);
/// assert_eq!((args.bridge.domain, args.bridge.bus, args.bridge.devfn), (1, 2, 8));
/// assert_eq!((args.redirect.devfn, args.acs, args.host_vendor), (0, 0, 0));
///
/// // A port redirects to a host bridge that is not on the kernel's list.
/// let redirected = Decision {
///     map_type: MapType::NOT_SUPPORTED,
///     distance: None,
///     redirect: Some(Redirect {
///         port: port(16),
///         acs: 0xc,
///     }),
///     host: Some(Host::Bridge {
///         vendor: 0x8086,
///         device: 0x29c0,
///         listed: false,
///     }),
///     ..straight
/// };
/// explain(&redirected, &mut args);
/// assert_eq!(
///     args.route,
///     uapi::DRM_PEER_ROUTE_BRIDGE
///         | uapi::DRM_PEER_ROUTE_ACS_REDIRECT
///         | uapi::DRM_PEER_ROUTE_HOST
/// );
/// assert_eq!((args.redirect.devfn, args.acs), (16, 0xc));
/// assert_eq!((args.host_vendor, args.host_device), (0x8086, 0x29c0));
/// ```
pub fn explain(decision: &Decision, args: &mut uapi::drm_peer_query) {
    args.route = 0;
    if let Some(bridge) = decision.bridge {
        args.route |= uapi::DRM_PEER_ROUTE_BRIDGE;
        args.bridge = bridge.into();
    }
    if let Some(redirect) = decision.redirect {
        args.route |= uapi::DRM_PEER_ROUTE_ACS_REDIRECT;
        args.redirect = redirect.port.into();
        args.acs = redirect.acs;
    }
    match decision.host {
        None => (),
        Some(Host::Cpu) => {
            args.route |= uapi::DRM_PEER_ROUTE_HOST | uapi::DRM_PEER_ROUTE_HOST_CPU;
        }
        Some(Host::Bridge {
            vendor,
            device,
            listed,
        }) => {
            args.route |= uapi::DRM_PEER_ROUTE_HOST;
            if listed {
                args.route |= uapi::DRM_PEER_ROUTE_HOST_LISTED;
            }
            args.host_vendor = vendor;
            args.host_device = device;
        }
    }
}

/// Serves an ioctl with `struct drm_peer_query`: returns the expected outcome for an importer.
///
/// # Errors
///
/// See the header.
pub fn query<T: PeerObject>(
    dev: &drm::Device<DriverOf<T>, Ioctl>,
    args: &mut uapi::drm_peer_query,
    file: &drm::File<FileOf<T>>,
) -> Result<u32>
where
    FileOf<T>: drm::file::DriverFile<Driver = DriverOf<T>>,
{
    let is_pci = args.flags & uapi::DRM_PEER_IMPORTER_NOT_PCI == 0;

    check(args.importer.pad == 0 && args.pad == 0)?;
    check(is_pci || is_zero(&args.importer))?;
    check(args.path == 0 && args.reason == 0 && args.distance == 0 && args.route == 0)?;
    check(is_zero(&args.bridge) && is_zero(&args.redirect))?;
    check(args.acs == 0 && args.host_vendor == 0 && args.host_device == 0)?;
    let class = Class::new(args.flags & !uapi::DRM_PEER_IMPORTER_NOT_PCI)?;

    let guard = dev.registration_guard().ok_or(ENODEV)?;
    let obj = match args.handle {
        0 => None,
        handle => Some(Object::<T>::lookup_handle(file, handle)?),
    };
    check(obj.as_ref().is_none_or(|obj| obj.imported().is_none()))?;
    let client = if is_pci {
        let address = Address {
            domain: args.importer.domain,
            bus: args.importer.bus,
            devfn: args.importer.devfn,
        };

        Some(pci::Device::at(address).ok_or(ENXIO)?)
    } else {
        None
    };
    let importer = match &client {
        Some(client) => Importer::new((**client).as_ref(), class),
        None => Importer::not_pci(class),
    };

    let Answer {
        outcome,
        distance,
        decision,
    } = match &obj {
        Some(obj) => query::of_object::<T>(obj, &guard, &importer)?,
        None => query::of_vram::<T>(&guard, &importer)?,
    };

    args.path = outcome.path.code();
    args.reason = outcome.reason.code();
    args.distance = distance
        .and_then(|hops| i32::try_from(hops).ok())
        .unwrap_or(-1);
    if let Some(decision) = &decision {
        explain(decision, args);
    }
    Ok(0)
}

/// Serves an ioctl with `struct drm_peer_flush`: makes peer writes to an object visible to work of
/// the device and returns whether this is necessary.
///
/// # Errors
///
/// See the header.
pub fn flush<T: PeerObject>(
    dev: &drm::Device<DriverOf<T>, Ioctl>,
    args: &mut uapi::drm_peer_flush,
    file: &drm::File<FileOf<T>>,
) -> Result<u32>
where
    FileOf<T>: drm::file::DriverFile<Driver = DriverOf<T>>,
{
    check(args.order == 0)?;
    let _guard = dev.registration_guard().ok_or(ENODEV)?;

    if args.handle != 0 {
        let obj = Object::<T>::lookup_handle(file, args.handle)?;

        check(obj.imported().is_none())?;
        flush_writes::<T>(&*obj)?;
    }
    args.order = T::ORDER.code();
    Ok(0)
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queries: the outcome an importer would get from an attach.
//!
//! [`decide`](super::decide) answers from the same facts that an attach collects. The attach has
//! the same outcome unless something changes in between.
//!
//! # Locking
//!
//! The device is resumed before the reservation of the object is taken, as for an attach.

use super::{
    backing::{
        runtime_guard,
        with_reserved, //
    },
    decide,
    flags,
    Backing,
    Facts,
    GemExport,
    Holders,
    Object,
    Outcome,
    PeerObject,
    Unrevocable, //
};
use crate::{
    device,
    dma_buf::{
        exporter::AttachRequest,
        peer::Route, //
    },
    drm::{
        self,
        gem::DriverObject,
        vram::Domain,
        Registered, //
    },
    pci::p2pdma::{
        Decision,
        MapType,
        Provider, //
    },
    pm::RuntimeGuard,
    prelude::*, //
};

type Device<T> = drm::Device<<T as DriverObject>::Driver, Registered>;

/// The class of an importer: all facts about it except its place in the machine.
///
/// # Invariants
///
/// A static importer (without [`flags::DYNAMIC`]) has no other flag.
///
/// # Examples
///
/// ```
/// use kernel::drm::gem::peer::{
///     flags::{
///         DYNAMIC,
///         MAPPED,
///         PEER2PEER,
///         REVOCABLE, //
///     },
///     query::Class, //
/// };
///
/// // A static importer, one that pins as most RDMA devices do, and one that follows moves.
/// for class in [
///     0,
///     DYNAMIC | PEER2PEER,
///     DYNAMIC | REVOCABLE,
///     DYNAMIC | PEER2PEER | REVOCABLE,
/// ] {
///     assert_eq!(Class::new(class)?.flags(), class);
/// }
///
/// // A static importer has no callbacks, so its mapping cannot be invalidated.
/// assert_eq!(Class::new(PEER2PEER), Err(EINVAL));
/// assert_eq!(Class::new(REVOCABLE), Err(EINVAL));
/// // The pins and mappings of an attachment are not part of the class.
/// assert_eq!(Class::new(DYNAMIC | MAPPED), Err(EINVAL));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class(u32);

impl Class {
    /// Creates a class from [`flags`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such importer.
    pub const fn new(flags: u32) -> Result<Self> {
        const CLASS: u32 = flags::DYNAMIC | flags::REVOCABLE | flags::PEER2PEER;

        if flags & !CLASS != 0 || (flags != 0 && flags & flags::DYNAMIC == 0) {
            return Err(EINVAL);
        }
        // INVARIANT: Checked above.
        Ok(Self(flags))
    }

    /// Returns the [`flags`].
    #[inline]
    pub const fn flags(self) -> u32 {
        self.0
    }
}

/// An attaching or possible importer.
#[derive(Clone, Copy)]
pub struct Importer<'a> {
    /// [`None`] for any non-PCI device.
    device: Option<&'a device::Device>,
    class: Class,
}

impl<'a> Importer<'a> {
    /// Describes a device as a possible importer of a class.
    #[inline]
    pub const fn new(device: &'a device::Device, class: Class) -> Self {
        Self {
            device: Some(device),
            class,
        }
    }

    /// Describes any non-PCI device as a possible importer of a class.
    #[inline]
    pub const fn not_pci(class: Class) -> Self {
        Self {
            device: None,
            class,
        }
    }

    /// Describes the attaching importer.
    pub(super) fn of(req: &'a AttachRequest<'_>) -> Self {
        let mut class = 0;

        for (set, flag) in [
            (req.is_dynamic(), flags::DYNAMIC),
            (req.is_revocable(), flags::REVOCABLE),
            (req.peer2peer(), flags::PEER2PEER),
        ] {
            if set {
                class |= flag;
            }
        }
        // INVARIANT: The dma-buf core derives the last two flags from the callbacks of the
        // importer. Only a dynamic importer has callbacks.
        Self::new(req.device(), Class(class))
    }

    /// Returns the [`flags`] of the importer's class.
    #[inline]
    pub(super) const fn flags(&self) -> u32 {
        self.class.flags()
    }

    /// Returns whether the importer gets no VRAM because it is not revocable.
    pub(super) fn is_unrevocable(&self, holders: &Holders) -> bool {
        self.flags() & flags::REVOCABLE == 0 && holders.policy() == Unrevocable::Refuse
    }

    fn route(&self, provider: &Provider<'_>) -> (Route, Option<Decision>) {
        let opted_in = self.flags() & flags::PEER2PEER != 0;

        match self.device {
            Some(device) => Route::measure(provider, device, opted_in),
            None => (
                Route {
                    opted_in,
                    pci: false,
                    map_type: MapType::NOT_SUPPORTED,
                },
                None,
            ),
        }
    }
}

/// The answer to a query.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The expected outcome of an attach.
    pub outcome: Outcome,
    /// PCI hops to the importer. [`None`] if there is no route or the importer is not PCI.
    pub distance: Option<u32>,
    /// The facts that decide the route. [`None`] if the importer is not PCI.
    pub decision: Option<Decision>,
}

/// Returns the outcome of an attach of `importer` to `obj`, an object of `dev`.
///
/// Resumes the device if the object may be in VRAM. Takes the reservation of the object.
///
/// # Errors
///
/// `EINTR` if a signal arrives.
pub fn of_object<T: PeerObject>(
    obj: &Object<T>,
    dev: &Device<T>,
    importer: &Importer<'_>,
) -> Result<Answer> {
    // As `prepare_attach()` does.
    let runtime_guard = (obj.domain() != Domain::System).then(|| runtime_guard(obj));
    let suspended = matches!(&runtime_guard, Some(Err(_)));
    // SAFETY: The device is registered.
    let (route, decision) =
        importer.route(unsafe { Object::<T>::vram_of(dev).provider(dev.as_raw()) }?);
    let outcome = with_reserved(obj, true, |object| {
        Ok(decide(&GemExport::<T>::facts(
            object, importer, route, suspended,
        )))
    })?;

    Ok(Answer {
        outcome,
        distance: decision.and_then(|decision| decision.distance),
        decision,
    })
}

/// Returns the outcome for `importer` and an object in the VRAM of `dev`. The object is exported in
/// VRAM only, visible through the BAR, not pinned and not encoded.
///
/// Resumes the device.
pub fn of_vram<T: PeerObject>(dev: &Device<T>, importer: &Importer<'_>) -> Result<Answer> {
    let vram = Object::<T>::vram_of(dev);
    let runtime_guard = RuntimeGuard::new(vram.owner());
    // SAFETY: The device is registered.
    let (route, decision) = importer.route(unsafe { vram.provider(dev.as_raw()) }?);
    let facts = Facts {
        suspended: runtime_guard.is_err(),
        route,
        inside_bar: true,
        domain: Domain::Vram,
        vram_or_fail: true,
        encoded: false,
        pinned: None,
        unrevocable: importer.is_unrevocable(vram.holders()),
    };

    Ok(Answer {
        outcome: decide(&facts),
        distance: decision.and_then(|decision| decision.distance),
        decision,
    })
}

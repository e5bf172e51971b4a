// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an importer would get if it attached.
//!
//! The answer is that of [`decide`](super::decide) about the facts that an attach finds out, so that
//! the attach then has the same outcome, unless something changes in between.
//!
//! # Locking
//!
//! The device is resumed before the reservation of the object is taken, as for an attach.

use super::{
    backing::{
        awake,
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
    Unrevocable,
    Vram, //
};
use crate::{
    device,
    dma_buf::{
        exporter::AttachRequest,
        peer::Route, //
    },
    drm::vram::Domain,
    pci::p2pdma::{
        Decision,
        Provider, //
    },
    pm::Awake,
    prelude::*, //
};

/// The class of an importer: what decides about it besides where it is.
///
/// # Invariants
///
/// A static importer, one without [`flags::DYNAMIC`], has no other flag.
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
/// // Statically, pinned as most RDMA devices, without peer-to-peer memory, and able to move.
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
/// // What an attachment does with the buffer is not a class.
/// assert_eq!(Class::new(DYNAMIC | MAPPED), Err(EINVAL));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class(u32);

impl Class {
    /// Makes a class of [`flags`].
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

/// An importer that attaches, or that may.
#[derive(Clone, Copy)]
pub struct Importer<'a> {
    device: &'a device::Device,
    class: Class,
}

impl<'a> Importer<'a> {
    /// A device that may attach as an importer of a class.
    #[inline]
    pub const fn new(device: &'a device::Device, class: Class) -> Self {
        Self { device, class }
    }

    /// The importer that attaches.
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
        // INVARIANT: The dma-buf core takes the last two from the callbacks of the importer, which
        // only a dynamic one has.
        Self::new(req.device(), Class(class))
    }

    /// Returns the [`flags`] of its class.
    #[inline]
    pub(super) const fn flags(&self) -> u32 {
        self.class.flags()
    }

    /// Tells whether it cannot be revoked, and gets no VRAM because of that.
    pub(super) fn is_unrevocable(&self, holders: &Holders) -> bool {
        self.flags() & flags::REVOCABLE == 0 && holders.policy() == Unrevocable::Refuse
    }

    fn route(&self, provider: &Provider<'_>) -> (Route, Option<Decision>) {
        Route::measure(provider, self.device, self.flags() & flags::PEER2PEER != 0)
    }
}

/// What an importer would get.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// What its attach would come to.
    pub outcome: Outcome,
    /// PCI hops to the importer; [`None`] where there is no route or the importer is not PCI.
    pub distance: Option<u32>,
    /// What the route follows from; [`None`] if the importer is not PCI.
    pub decision: Option<Decision>,
}

/// Tells what `importer` would get of `obj`, by the route from `provider`, its VRAM.
///
/// Resumes the device, if the object may be in VRAM, and takes the reservation of the object.
///
/// # Errors
///
/// `EINTR` if a signal arrives.
pub fn of_object<T: PeerObject>(
    obj: &Object<T>,
    provider: &Provider<'_>,
    importer: &Importer<'_>,
) -> Result<Answer> {
    // As `prepare_attach()` does.
    let awake = (obj.domain() != Domain::System).then(|| awake(obj));
    let suspended = matches!(&awake, Some(Err(_)));
    let (route, decision) = importer.route(provider);
    let outcome = with_reserved(obj, true, |object| {
        Ok(decide(&GemExport::<T>::facts(
            object, provider, importer, route, suspended,
        )))
    })?;

    Ok(Answer {
        outcome,
        distance: decision.and_then(|decision| decision.distance),
        decision,
    })
}

/// Tells whether `importer` would get `vram` of the device `owner` at all: of an object that importers
/// get there or not at all, that the BAR shows, and that nobody has pinned.
///
/// Resumes the device.
pub fn of_vram<T: PeerObject>(
    vram: &<Object<T> as Backing>::Vram,
    owner: &device::Device,
    provider: &Provider<'_>,
    importer: &Importer<'_>,
) -> Answer {
    let awake = Awake::new(owner);
    let (route, decision) = importer.route(provider);
    let facts = Facts {
        suspended: awake.is_err(),
        route,
        inside_bar: true,
        domain: Domain::Vram,
        vram_or_fail: true,
        pinned: None,
        unrevocable: importer.is_unrevocable(vram.holders()),
    };

    Answer {
        outcome: decide(&facts),
        distance: decision.and_then(|decision| decision.distance),
        decision,
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The importers of an object: the attached ones and the most recent refusals.
//!
//! # Locking
//!
//! A listing takes the reservation of the object and then the mutex of the refusals. The mutex is
//! not held while memory is allocated.

use super::{
    backing::with_reserved,
    export::GemExport,
    Backing,
    Object,
    Outcome,
    PeerObject, //
};
use crate::{
    dma_buf::{
        exporter::{
            with_locked_exporter,
            LockedBuffer, //
        },
        peer::distance,
        DmaBuf, //
    },
    drm::gem::LockedObject,
    new_mutex,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Mutex, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    },
    uapi, //
};
use core::ptr::NonNull;

/// The flags of an [`AttachmentInfo`], `DRM_PEER_IMPORTER_*`.
pub mod flags {
    use crate::uapi;

    /// The attachment is pinned.
    pub const PINNED: u32 = uapi::DRM_PEER_IMPORTER_PINNED;
    /// The attachment holds at least one mapping.
    pub const MAPPED: u32 = uapi::DRM_PEER_IMPORTER_MAPPED;
    /// The importer attached dynamically: it manages pinning itself.
    pub const DYNAMIC: u32 = uapi::DRM_PEER_IMPORTER_DYNAMIC;
    /// The mapping of the importer can be revoked.
    pub const REVOCABLE: u32 = uapi::DRM_PEER_IMPORTER_REVOCABLE;
    /// The importer opted in to peer-to-peer memory.
    pub const PEER2PEER: u32 = uapi::DRM_PEER_IMPORTER_PEER2PEER;
}

/// The size of a name in an [`AttachmentInfo`] in bytes, including the NUL at its end.
// CAST: It is small.
pub const NAME_LEN: usize = uapi::DRM_PEER_NAME_LEN as usize;

/// A name, truncated to fit and padded with NUL bytes.
pub type Name = [u8; NAME_LEN];

/// Truncates a name to fit.
pub(super) fn cut(name: &CStr) -> Name {
    let mut buf = [0; NAME_LEN];
    let bytes = name.to_bytes();
    let len = bytes.len().min(NAME_LEN - 1);

    buf[..len].copy_from_slice(&bytes[..len]);
    buf
}

/// One importer of an object, attached or refused.
#[derive(Clone, Copy)]
pub struct AttachmentInfo {
    /// The name of the importing device.
    pub name: Name,
    /// The name of the bus of the device. Empty if it is on none or until it is set.
    pub bus: Name,
    /// The name of the driver of the device when it attached. Empty until it is set.
    pub driver: Name,
    /// When the importer was refused, or [`None`] if it is attached.
    pub refused_at: Option<Instant<Monotonic>>,
    /// The outcome for the importer.
    pub outcome: Outcome,
    /// PCI hops to the importer. [`None`] if there is no route or the importer is not PCI.
    pub distance: Option<u32>,
    /// A combination of [`flags`].
    pub flags: u32,
}

impl AttachmentInfo {
    /// Describes the importer `name`.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::drm::gem::peer::{
    ///     AttachmentInfo,
    ///     Outcome,
    ///     Reason,
    ///     NAME_LEN, //
    /// };
    ///
    /// let long = c"a-device-with-a-name-of-more-than-31-bytes";
    /// let info = AttachmentInfo::new(long, Outcome::refused(Reason::NotPci), None, 0);
    ///
    /// assert_eq!(&info.name[..8], b"a-device");
    /// assert_eq!(info.name[NAME_LEN - 1], 0);
    /// assert_eq!(info.hops(), -1);
    /// ```
    pub fn new(name: &CStr, outcome: Outcome, distance: Option<u32>, flags: u32) -> Self {
        Self {
            name: cut(name),
            bus: [0; NAME_LEN],
            driver: [0; NAME_LEN],
            refused_at: None,
            outcome,
            distance,
            flags,
        }
    }

    /// Returns the distance in PCI hops, or -1 if there is no route, as in the uAPI.
    pub fn hops(&self) -> i32 {
        self.distance
            .and_then(|hops| i32::try_from(hops).ok())
            .unwrap_or(-1)
    }

    /// Returns the time from the refusal of the importer to `now`, or [`None`] if it is attached.
    ///
    /// All entries of a list use the same `now` to make their differences exact.
    pub fn age(&self, now: Instant<Monotonic>) -> Option<Delta> {
        self.refused_at.map(|at| now - at)
    }
}

/// The number of refusals kept for each object.
pub const MAX_REFUSALS: usize = 8;

/// The most recent refusals.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::gem::peer::{
///         AttachmentInfo,
///         Outcome,
///         Reason,
///         Refusals,
///         MAX_REFUSALS, //
///     }, //
/// };
///
/// let mut refusals = Refusals::new();
///
/// for hops in 0..10 {
///     let outcome = Outcome::refused(Reason::NoRoute);
///     refusals.push(AttachmentInfo::new(c"dev", outcome, Some(hops), 0));
/// }
///
/// // Ten importers were refused; the last eight are kept, oldest first.
/// assert_eq!(refusals.total(), 10);
/// assert!(refusals.iter().map(|r| r.hops()).eq(2..10));
/// assert_eq!(refusals.iter().count(), MAX_REFUSALS);
/// ```
pub struct Refusals {
    ring: [Option<AttachmentInfo>; MAX_REFUSALS],
    total: usize,
}

impl Default for Refusals {
    fn default() -> Self {
        Self::new()
    }
}

impl Refusals {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Self {
            ring: [None; MAX_REFUSALS],
            total: 0,
        }
    }

    /// Adds a refusal in place of the oldest one.
    pub fn push(&mut self, refusal: AttachmentInfo) {
        self.ring[self.total % MAX_REFUSALS] = Some(refusal);
        self.total = self.total.wrapping_add(1);
    }

    /// Returns the number of refused importers, including discarded refusals.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Iterates over the kept refusals, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &AttachmentInfo> {
        let (newer, older) = self.ring.split_at(self.total % MAX_REFUSALS);

        Iterator::chain(older.iter(), newer).flatten()
    }
}

/// Creates the list of the refusals of an object.
///
/// Neither generic nor inlined, to keep the lock class and its name in the kernel crate.
#[inline(never)]
pub(super) fn new_refusals() -> Result<Pin<KBox<Mutex<Refusals>>>> {
    KBox::pin_init(
        new_mutex!(Refusals::new(), "drm::gem::peer::Refusals"),
        GFP_KERNEL,
    )
}

/// Lists the importers of `obj`: its attachments, oldest first, then the most recent refusals.
///
/// Takes the reservation of the object.
///
/// # Errors
///
/// - `ENODEV` if the exporting device is gone.
/// - `ENOMEM` if memory runs out.
pub fn attachments<T: PeerObject>(obj: &Object<T>) -> Result<KVec<AttachmentInfo>> {
    listing::<T>(obj).map(|(list, _)| list)
}

/// As [`attachments`], with the inode number of the dma-buf; 0 if there is none.
pub(super) fn listing<T: PeerObject>(obj: &Object<T>) -> Result<(KVec<AttachmentInfo>, u64)> {
    with_reserved(obj, false, |object| listing_of::<T>(object))
}

pub(super) fn listing_of<T: PeerObject>(
    object: &LockedObject<'_, Object<T>>,
) -> Result<(KVec<AttachmentInfo>, u64)> {
    let mut list = KVec::new();
    let mut inode = 0;

    let Some(buf) = NonNull::new(Object::<T>::exported(object)) else {
        return Ok((list, inode));
    };
    // SAFETY: The object knows its dma-buf until the release of the dma-buf, which needs the
    // reservation. No reference is taken because there may be none left.
    let buf = unsafe { DmaBuf::from_raw(buf.as_ptr()) };

    let add = |export: &GemExport<T>, cx: &LockedBuffer<'_, GemExport<T>>| {
        inode = export.inode.load(Relaxed);
        for at in cx.attachments() {
            let data = at.data();
            let mut flags = 0;

            for (set, flag) in [
                (at.pins() > 0, flags::PINNED),
                (at.maps() > 0, flags::MAPPED),
                (at.is_dynamic(), flags::DYNAMIC),
                (at.is_revocable(), flags::REVOCABLE),
                (data.opted_in, flags::PEER2PEER),
            ] {
                if set {
                    flags |= flag;
                }
            }

            // The outcome of the importer's mappings, or the expected outcome of a first mapping.
            let outcome = if at.maps() > 0 {
                export.outcome_now(cx, &at)
            } else {
                data.outcome
            };
            let hops = distance(cx.bound(), at.device());
            let info = AttachmentInfo {
                bus: data.bus,
                driver: data.driver,
                ..AttachmentInfo::new(at.device().name(), outcome, hops, flags)
            };
            list.push(info, GFP_KERNEL)?;
        }

        // The mutex is not held while memory is allocated.
        list.reserve(MAX_REFUSALS, GFP_KERNEL)?;
        for refusal in export.refusals.lock().iter() {
            list.push_within_capacity(*refusal)?;
        }
        Ok(())
    };
    // SAFETY: The dma-buf shares the reservation of the object, which is held.
    unsafe { with_locked_exporter(buf, add) }?;
    Ok((list, inode))
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The export policy for GEM objects in VRAM: how an importer reaches an object, or why it does
//! not.
//!
//! A driver implements [`PeerObject`] for its objects. Their class, a [`Backing`], says where they
//! are and whether they move: TTM moves the objects of [`gem::ttm`](super::ttm), and the objects of
//! [`gem::vram`](super::vram) stay in VRAM. The class keeps the [`Vram`] of the device with the
//! list of exported buffers. Objects are exported as dma-bufs:
//!
//! - When an importer attaches, the path to it is measured and [`decide`] says what it gets: peer
//!   to peer by bus address or through the host bridge, system memory, or a refusal with
//!   `EOPNOTSUPP`. Every outcome other than peer to peer has a recorded [`Reason`].
//! - An importer pins an object in VRAM if all importers are peers and otherwise in system memory.
//!   For a map without a pin the object is moved in the same way; the mapping is invalidated when
//!   the object moves again.
//! - Between the begin and the end of an access (`DMA_BUF_IOCTL_SYNC`) the CPU sees the writes of
//!   devices. After the end devices see the writes of the CPU.
//! - [`attachments`] lists the importers and the most recent refusals of an object. [`debugfs`]
//!   shows them for all objects. [`Counters`] counts how often importers did not get peer-to-peer
//!   memory.
//! - [`query`] predicts the outcome for an importer by the same facts and the same [`decide`].
//! - [`ioctl`] has both the lists and the queries as ioctls.
//! - Each operation of an importer has a tracepoint.
//! - An import into the object's own device returns the object itself. Other buffers are imported
//!   as objects standing for them if the driver supports it ([`PeerObject::import_args`]).
//! - The device is kept active while a non-revocable peer is attached, or any peer of an object
//!   exported in VRAM only. Other importers get system memory while the device is suspended.
//! - [`Unrevocable`] limits the VRAM pinned by non-revocable importers.
//! - An unbind of the driver revokes all buffers and waits for their mappings.
//!
//! # Locking
//!
//! From the outside to the inside, never in the other direction:
//!
//! 1. `drm_device.object_name_lock`: held by the DRM core for exports and imports.
//! 2. The wait for the driver's suspend and resume callbacks before an attach or an export.
//! 3. The reservation shared by the object and its dma-buf: held when this layer attaches, pins,
//!    maps, moves and lists.
//! 4. The mutex of the refusals: no other lock is taken and no memory is allocated under it.
//!
//! C headers: [`include/drm/drm_prime.h`](srctree/include/drm/drm_prime.h),
//! [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

mod backing;
mod counters;
pub mod debugfs;
mod export;
mod holders;
mod importers;
pub mod ioctl;
mod origin;
mod policy;
mod prime;
pub mod query;
mod reason;
pub(crate) mod trace;
mod vram;

pub use self::{
    backing::Backing,
    counters::{
        Counters,
        Event, //
    },
    export::{
        Attachment,
        GemExport, //
    },
    holders::{
        Holders,
        Unrevocable, //
    },
    importers::{
        attachments,
        flags,
        AttachmentInfo,
        Name,
        Refusals,
        MAX_REFUSALS,
        NAME_LEN, //
    },
    origin::Client,
    policy::{
        decide,
        placement,
        placement_without_window,
        Facts,
        Outcome,
        Placement,
        Situation,
        State,
        Use, //
    },
    reason::{
        Order,
        Path,
        Reason, //
    },
    vram::{
        Parent,
        ParentOf,
        Vram, //
    }, //
};

pub(super) use self::{
    backing::{
        is_no_window,
        subject,
        with_reserved, //
    },
    origin::{
        handle_to_fd,
        Process, //
    },
    prime::{
        export_callback,
        import_callback, //
    }, //
};
use self::{
    export::vram_or_fail,
    importers::listing, //
};
use super::DriverObject;
use crate::{
    dma_buf,
    drm,
    prelude::*, //
};

/// A GEM object accessible to peers in VRAM.
///
/// See [`gem::ttm`](super::ttm) for an example.
pub trait PeerObject: DriverObject<Driver: drm::Driver<Object = Self::Class>> {
    /// The class of the objects, such as [`gem::ttm::Object<Self>`](super::ttm::Object).
    type Class: Backing<Data = Self> + drm::driver::AllocImpl<Driver = Self::Driver>;

    /// The table of dma-buf operations of this class.
    ///
    /// [`peer_ops!`](crate::peer_ops) creates it as a `static` of the driver. Buffers are
    /// recognized by its address: see [`Exporter::OPS`](dma_buf::Exporter::OPS).
    const OPS: &'static Ops<Self>;

    /// When work of the device sees the writes of a peer. The default is right for any device.
    const ORDER: Order = Order::Flush;

    /// Returns whether the object is exported in VRAM only: importers get it there or not at all.
    ///
    /// If such an object may also live in system memory, it is still moved there when VRAM is full.
    /// It is moved back when an importer maps or pins it; if this is not possible, the importer
    /// gets an error. The result does not matter for an object that never leaves VRAM: it is always
    /// exported in this way. If an object that is never in VRAM returns true, importers get
    /// nothing. The result must not change.
    fn vram_or_fail(&self) -> bool {
        false
    }

    /// Returns whether the object is compressed or encrypted in VRAM and therefore unreadable to
    /// peers there.
    ///
    /// Importers get it in system memory or not at all. The driver's moves to system memory have to
    /// decode it. CPU mappings, also by `dma_buf_vmap()`, show VRAM as it is. The result must not
    /// change.
    fn is_encoded(&self) -> bool {
        false
    }

    /// Returns the arguments for an object standing for a buffer of another device, or [`None`] if
    /// the driver does not import buffers.
    fn import_args() -> Option<Self::Args> {
        None
    }
}

type Object<T> = <T as PeerObject>::Class;

/// The table of dma-buf operations of a class of objects.
pub type Ops<T> = dma_buf::Ops<GemExport<T>>;

/// Creates the table of dma-buf operations of a class of objects, for [`PeerObject::OPS`].
///
/// Its argument is the driver's part of the objects.
#[macro_export]
macro_rules! peer_ops {
    ($object:ty) => {{
        static OPS: $crate::drm::gem::peer::Ops<$object> = $crate::drm::gem::peer::Ops::new();
        &OPS
    }};
}

/// Makes peer writes to an object in VRAM visible to work of its device queued from now on. The
/// caller knows that the peers are done.
///
/// Reads through the BAR, so all earlier writes reach VRAM first. Writes from before a suspend of
/// the device have arrived.
///
/// Takes the reservation of the object. Sleeps.
///
/// # Errors
///
/// - `ENODEV` if the driver is not bound any more.
/// - `EINTR` if a signal is pending.
pub fn flush_writes<T: PeerObject>(obj: &T::Class) -> Result {
    with_reserved(obj, true, |object| T::Class::flush(object))
}

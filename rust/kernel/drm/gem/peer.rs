// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The export policy for GEM objects in VRAM: which importer reaches them, how, or the reason why
//! it does not.
//!
//! A driver implements [`PeerObject`] for its objects. Their class, a [`Backing`], says where they
//! are and whether they move: [`gem::ttm`](super::ttm) has objects that TTM moves,
//! [`gem::vram`](super::vram) objects that stay in VRAM. It keeps the [`Vram`] of the device, with
//! the list of exported buffers. Objects are exported as dma-bufs:
//!
//! - When an importer attaches, the path to it is measured and [`decide`] says what it gets: peer
//!   to peer by bus address, peer to peer through the host bridge, system memory, or a refusal with
//!   `EOPNOTSUPP`. Everything but peer to peer has a [`Reason`], which is kept.
//! - An importer that pins an object pins it in VRAM if all importers are peers, else in system
//!   memory. For an importer that maps without a pin the object is moved in the same way; the
//!   mapping is invalidated when the object moves again.
//! - Between the begin and the end of an access (`DMA_BUF_IOCTL_SYNC`) the CPU sees the writes of
//!   devices, and after the end devices see the writes of the CPU.
//! - [`attachments`] lists the importers of an object and the most recent refusals; [`debugfs`]
//!   shows them for all objects, and [`Counters`] how often importers did not get peer-to-peer
//!   memory.
//! - [`query`] returns what an importer would get, by the same facts and the same [`decide`].
//! - [`ioctl`] has both as ioctls.
//! - Each operation of an importer has a tracepoint.
//! - An import into the device that an object comes from returns the object itself. Other buffers
//!   are imported as objects that stand for them, if the driver supports it
//!   ([`PeerObject::import_args`]).
//! - The device is kept active while a peer is attached that cannot be revoked, or any peer of an
//!   object which importers get in VRAM or not at all. Other importers get system memory while the
//!   device is suspended.
//! - [`Unrevocable`] limits the VRAM that importers which cannot be revoked may pin.
//! - When the driver is unbound, all buffers are revoked, and their mappings are waited for.
//!
//! # Locking
//!
//! From the outside to the inside; nothing is taken in the other direction:
//!
//! 1. `drm_device.object_name_lock`, held by the DRM core when it exports or imports,
//! 2. the wait for the driver's callbacks that suspend and resume the device, before an attach and
//!    an export,
//! 3. the reservation of the object, which its dma-buf shares, held when this layer attaches, pins,
//!    maps, moves and lists,
//! 4. the mutex of the refusals, under which no other lock is taken and no memory is allocated.
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

/// A GEM object that peers may access in VRAM.
///
/// See [`gem::ttm`](super::ttm) for an example.
pub trait PeerObject: DriverObject<Driver: drm::Driver<Object = Self::Class>> {
    /// The class of the objects, such as [`gem::ttm::Object<Self>`](super::ttm::Object).
    type Class: Backing<Data = Self> + drm::driver::AllocImpl<Driver = Self::Driver>;

    /// The table of dma-buf operations of this class.
    ///
    /// [`peer_ops!`](crate::peer_ops) makes it, a `static` of the driver: buffers are recognized by
    /// its address, see [`Exporter::OPS`](dma_buf::Exporter::OPS).
    const OPS: &'static Ops<Self>;

    /// When work of the device reads what a peer has written. The default is right for any device.
    const ORDER: Order = Order::Flush;

    /// Returns whether importers get the object in VRAM or not at all.
    ///
    /// An object that may live in system memory as well is still moved there if VRAM is full. It is
    /// moved back when an importer maps or pins it, and if that is not possible the importer gets
    /// an error. For an object that never leaves VRAM the result does not matter: it is always
    /// exported in this way. If an object that is never in VRAM returns true, importers get
    /// nothing. The result must not change.
    fn vram_or_fail(&self) -> bool {
        false
    }

    /// Returns whether the object is compressed or encrypted while it is in VRAM, so that peers
    /// cannot read it there as it is.
    ///
    /// Importers that map it get it in system memory, where the driver's moves have to decode it,
    /// or not at all. Mappings of the CPU, also by `dma_buf_vmap()`, show VRAM as it is. The result
    /// must not change.
    fn is_encoded(&self) -> bool {
        false
    }

    /// Returns the arguments for an object that stands for a buffer of another device, or [`None`]
    /// if the driver does not import any.
    fn import_args() -> Option<Self::Args> {
        None
    }
}

type Object<T> = <T as PeerObject>::Class;

/// The table of dma-buf operations of a class of objects.
pub type Ops<T> = dma_buf::Ops<GemExport<T>>;

/// Makes the table of dma-buf operations of a class of objects, for [`PeerObject::OPS`].
///
/// Its argument is the driver's part of the objects.
#[macro_export]
macro_rules! peer_ops {
    ($object:ty) => {{
        static OPS: $crate::drm::gem::peer::Ops<$object> = $crate::drm::gem::peer::Ops::new();
        &OPS
    }};
}

/// Makes what peers have written to an object in VRAM visible to work of its device that is queued
/// from now on. The caller knows that the peers are done.
///
/// Reads through the BAR, behind which no earlier write stays on its way. Writes before the device
/// was suspended have arrived.
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

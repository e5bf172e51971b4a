// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an object has that stands for the buffer of another device.
//!
//! The device is attached dynamically and takes peer memory. The buffer is mapped when it is used,
//! with the reservation held. When the exporter moves it, the mapping is dropped, and the next use
//! maps it again.

use crate::{
    device,
    dma::DataDirection,
    dma_buf::{
        importer::{
            Invalidated,
            MappingSlot, //
        },
        Attachment,
        DmaBuf,
        Importer, //
    },
    dma_resv::LockedResv,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        }, //
    }, //
};

/// Drops its mapping when the buffer moves.
struct Follower {
    /// How often the exporter took a mapping away.
    invalidations: Atomic<u64>,
}

#[vtable]
impl Importer for Follower {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.invalidations.add(1, Relaxed);
        // The mapping is only used with the reservation held.
        at.unmap();
    }
}

/// What an imported object has in place of memory: the attachment to the buffer of somebody else.
pub struct Import(Attachment<Follower>);

impl Import {
    /// Attaches `dev`, which accesses the memory of the buffer: the DMA device of a DRM device.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if memory runs out.
    /// - What the exporter says.
    pub fn new(buf: ARef<DmaBuf>, dev: &device::Device<device::Bound>) -> Result<Self> {
        let follower = Follower {
            invalidations: Atomic::new(0),
        };

        Attachment::new(buf, dev, follower).map(Self)
    }

    /// Returns the buffer.
    #[inline]
    pub fn dma_buf(&self) -> &DmaBuf {
        self.0.dma_buf()
    }

    /// Returns how often the exporter invalidated the mapping.
    #[inline]
    pub fn invalidations(&self) -> u64 {
        self.0.importer().invalidations.load(Relaxed)
    }

    /// Maps the buffer for the device, unless it is mapped, and calls `f` with the mapping.
    ///
    /// Takes the reservation.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the driver of the device or of the exporter is not bound any more.
    /// - `ERESTARTSYS` if a signal arrived while it waited for a move.
    /// - What the exporter says, and what `f` returns.
    pub fn with_mapping<R>(&self, f: impl FnOnce(&MappingSlot<'_>) -> Result<R>) -> Result<R> {
        self.0.with(|at| {
            at.map(DataDirection::Bidirectional)?;
            f(at)
        })
    }

    /// Maps the buffer for the device, unless it is mapped, with the reservation held.
    ///
    /// When this returns, moves of the buffer are complete. It stays where it is until `resv` is
    /// given up, and longer if fences are added.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `resv` is not the reservation of the buffer.
    /// - Those of [`Self::with_mapping`].
    pub fn map(&self, resv: &mut LockedResv<'_>) -> Result {
        self.0
            .locked(resv)?
            .map(DataDirection::Bidirectional)
            .map(|_| ())
    }
}

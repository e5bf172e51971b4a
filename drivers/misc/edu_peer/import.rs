// SPDX-License-Identifier: GPL-2.0

//! The attachment of a dma-buf, of one of five classes of importers.
//!
//! The classes differ in their importer ops and in their reaction to an invalidation by the
//! exporter. All of them check every scatter table. They use the mapping only while the reservation
//! is held or a fence of the transfer is in it.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma::DataDirection,
    dma_buf::{
        fence::{
            Fence,
            SignallingSection, //
        },
        importer::{
            self,
            Invalidated,
            MappingSlot, //
        },
        Attachment,
        DmaBuf,
        Importer,
        StaticAttachment, //
    },
    dma_resv::Usage,
    prelude::*,
    scatterlist::SGTable,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        }, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    uapi, //
};

use core::ops::{
    Deref,
    DerefMut, //
};

use crate::{
    device::{
        Edu,
        PIECE, //
    },
    table::{
        self,
        Segment, //
    }, //
};

/// The class of importer requested by userspace.
#[derive(Clone, Copy)]
pub(crate) enum Mode {
    Static,
    Dynamic,
    Pinned,
    Revocable,
    NoP2p,
    /// The CPU in place of the device.
    Cpu,
    /// Like [`Self::Dynamic`] but with a late unmap of an invalidated mapping.
    Late,
}

impl TryFrom<u32> for Mode {
    type Error = Error;

    fn try_from(mode: u32) -> Result<Self> {
        match mode {
            uapi::edu_peer_mode_EDU_PEER_MODE_STATIC => Ok(Self::Static),
            uapi::edu_peer_mode_EDU_PEER_MODE_DYNAMIC => Ok(Self::Dynamic),
            uapi::edu_peer_mode_EDU_PEER_MODE_PINNED => Ok(Self::Pinned),
            uapi::edu_peer_mode_EDU_PEER_MODE_REVOCABLE => Ok(Self::Revocable),
            uapi::edu_peer_mode_EDU_PEER_MODE_NO_P2P => Ok(Self::NoP2p),
            uapi::edu_peer_mode_EDU_PEER_MODE_CPU => Ok(Self::Cpu),
            uapi::edu_peer_mode_EDU_PEER_MODE_LATE => Ok(Self::Late),
            _ => Err(EINVAL),
        }
    }
}

/// The counters of an attachment.
///
/// They change with the reservation held but are read without it.
pub(crate) struct Counters {
    invalidations: Atomic<u64>,
    maps: Atomic<u64>,
    revoked: Atomic<bool>,
    busy: Atomic<bool>,
    /// An invalidated mapping is unmapped only before the next map or at the detach.
    late: bool,
}

impl Counters {
    pub(crate) fn new(late: bool) -> Self {
        Self {
            invalidations: Atomic::new(0),
            maps: Atomic::new(0),
            revoked: Atomic::new(false),
            busy: Atomic::new(false),
            late,
        }
    }

    /// Counts a map of the buffer.
    pub(crate) fn mapped(&self) {
        self.maps.add(1, Relaxed);
    }

    /// Counts an invalidation by the exporter and drops the mapping unless the device still uses
    /// it. If it does, a fence of the device is in the reservation and [`Attached::idle`] drops the
    /// mapping after its signal. A late importer keeps the mapping but does not use it.
    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.invalidations.add(1, Relaxed);
        if self.late {
            return;
        }
        if !self.busy.load(Relaxed) {
            at.unmap();
        }
    }

    /// How often the exporter invalidated the mapping.
    pub(crate) fn invalidations(&self) -> u64 {
        self.invalidations.load(Relaxed)
    }

    /// How often the buffer was mapped.
    pub(crate) fn maps(&self) -> u64 {
        self.maps.load(Relaxed)
    }

    /// Whether the exporter has revoked the buffer.
    pub(crate) fn revoked(&self) -> bool {
        self.revoked.load(Relaxed)
    }
}

/// A dynamic importer. It drops its mapping when it is invalidated and maps again for the next
/// transfer.
pub(crate) struct Dynamic(Counters);

#[vtable]
impl Importer for Dynamic {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.0.invalidate(at);
    }
}

/// Like [`Dynamic`] but without peer-to-peer memory.
pub(crate) struct NoP2p(Counters);

#[vtable]
impl Importer for NoP2p {
    const PEER2PEER: bool = false;

    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.0.invalidate(at);
    }
}

/// A non-revocable importer. The core recognizes it by the missing `invalidate`. It pins the buffer
/// before it maps.
pub(crate) struct Pinned(Counters);

#[vtable]
impl Importer for Pinned {
    const PEER2PEER: bool = true;
}

/// A revocable importer that pins.
pub(crate) struct Revocable(Counters);

#[vtable]
impl Importer for Revocable {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.0.invalidate(at);
        // Without a pin the invalidation may be a move and does not revoke the buffer.
        if at.is_pinned() {
            self.0.revoked.store(true, Relaxed);
            if !self.0.busy.load(Relaxed) {
                at.unpin();
            }
        }
    }
}

/// An attachment of any class, with the reservation held.
enum LockedAttachment<'a, 'b> {
    Static(&'a mut MappingSlot<'b>),
    Managed(&'a mut importer::LockedAttachment<'b>),
}

impl<'b> Deref for LockedAttachment<'_, 'b> {
    type Target = MappingSlot<'b>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Static(at) => at,
            Self::Managed(at) => at,
        }
    }
}

impl DerefMut for LockedAttachment<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Static(at) => at,
            Self::Managed(at) => at,
        }
    }
}

impl<'b> LockedAttachment<'_, 'b> {
    /// The attachment if its class pins.
    fn managed(&mut self) -> Option<&mut importer::LockedAttachment<'b>> {
        match self {
            Self::Static(_) => None,
            Self::Managed(at) => Some(at),
        }
    }

    fn is_pinned(&self) -> bool {
        match self {
            Self::Static(_) => false,
            Self::Managed(at) => at.is_pinned(),
        }
    }
}

/// The current state of an attachment.
pub(crate) struct State {
    pub(crate) mapped: bool,
    pub(crate) pinned: bool,
    /// The vmap is I/O memory.
    pub(crate) iomem: bool,
}

/// The cost of a map and an unmap, in nanoseconds.
pub(crate) struct Cost {
    /// The least of all rounds, including one read of the clock.
    pub(crate) least: u64,
    /// The most of all rounds, including one read of the clock.
    pub(crate) most: u64,
    /// The least cost of a read of the clock.
    pub(crate) clock: u64,
}

/// A dma-buf that the device is attached to.
///
/// The drop unmaps, unpins and detaches.
pub(crate) enum Attached {
    /// The core pins the buffer, so the mapping is never invalidated.
    Static(StaticAttachment, Counters),
    Dynamic(Attachment<Dynamic>),
    Pinned(Attachment<Pinned>),
    Revocable(Attachment<Revocable>),
    NoP2p(Attachment<NoP2p>),
}

impl Attached {
    /// Attaches `dev` to `buf`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` for [`Mode::Cpu`] because it has no attachment.
    /// - The errors of the exporter, such as `EOPNOTSUPP` if there is no route.
    pub(crate) fn new(mode: Mode, buf: ARef<DmaBuf>, dev: &Device<Bound>) -> Result<Self> {
        let counters = Counters::new(matches!(mode, Mode::Late));

        Ok(match mode {
            Mode::Static => Self::Static(StaticAttachment::new(buf, dev)?, counters),
            Mode::Dynamic | Mode::Late => {
                Self::Dynamic(Attachment::new(buf, dev, Dynamic(counters))?)
            }
            Mode::Pinned => Self::Pinned(Attachment::new(buf, dev, Pinned(counters))?),
            Mode::Revocable => Self::Revocable(Attachment::new(buf, dev, Revocable(counters))?),
            Mode::NoP2p => Self::NoP2p(Attachment::new(buf, dev, NoP2p(counters))?),
            Mode::Cpu => return Err(EINVAL),
        })
    }

    /// The buffer.
    pub(crate) fn dma_buf(&self) -> &DmaBuf {
        match self {
            Self::Static(attachment, _) => attachment.dma_buf(),
            Self::Dynamic(attachment) => attachment.dma_buf(),
            Self::Pinned(attachment) => attachment.dma_buf(),
            Self::Revocable(attachment) => attachment.dma_buf(),
            Self::NoP2p(attachment) => attachment.dma_buf(),
        }
    }

    /// The counters of the attachment.
    pub(crate) fn counters(&self) -> &Counters {
        match self {
            Self::Static(_, counters) => counters,
            Self::Dynamic(attachment) => &attachment.importer().0,
            Self::Pinned(attachment) => &attachment.importer().0,
            Self::Revocable(attachment) => &attachment.importer().0,
            Self::NoP2p(attachment) => &attachment.importer().0,
        }
    }

    /// Like [`Self::with`] but without sleeping to take a lock.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if another task holds the lock. The errors of [`Self::with`].
    fn try_with<R>(&self, f: impl FnOnce(&mut LockedAttachment<'_, '_>) -> Result<R>) -> Result<R> {
        match self {
            Self::Static(attachment, _) => {
                attachment.try_with(|at| f(&mut LockedAttachment::Static(at)))
            }
            Self::Dynamic(attachment) => {
                attachment.try_with(|at| f(&mut LockedAttachment::Managed(at)))
            }
            Self::Pinned(attachment) => {
                attachment.try_with(|at| f(&mut LockedAttachment::Managed(at)))
            }
            Self::Revocable(attachment) => {
                attachment.try_with(|at| f(&mut LockedAttachment::Managed(at)))
            }
            Self::NoP2p(attachment) => {
                attachment.try_with(|at| f(&mut LockedAttachment::Managed(at)))
            }
        }
    }

    /// Whether the mapping is only valid while the buffer is pinned.
    fn needs_pin(&self) -> bool {
        matches!(self, Self::Pinned(_) | Self::Revocable(_))
    }

    /// Calls `f` with the reservation held.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the driver is not bound any more. The errors of `f`.
    fn with<R>(&self, f: impl FnOnce(&mut LockedAttachment<'_, '_>) -> Result<R>) -> Result<R> {
        match self {
            Self::Static(attachment, _) => {
                attachment.with(|at| f(&mut LockedAttachment::Static(at)))
            }
            Self::Dynamic(attachment) => {
                attachment.with(|at| f(&mut LockedAttachment::Managed(at)))
            }
            Self::Pinned(attachment) => attachment.with(|at| f(&mut LockedAttachment::Managed(at))),
            Self::Revocable(attachment) => {
                attachment.with(|at| f(&mut LockedAttachment::Managed(at)))
            }
            Self::NoP2p(attachment) => attachment.with(|at| f(&mut LockedAttachment::Managed(at))),
        }
    }

    /// Maps the buffer if it is not mapped and checks the scatter table.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the buffer was revoked or the driver is not bound any more.
    /// - `EINVAL` if it must be pinned first.
    /// - `EBADMSG` if the scatter table is wrong.
    /// - The errors of the exporter.
    fn map_locked(&self, edu: &Edu, at: &mut LockedAttachment<'_, '_>) -> Result {
        if self.counters().revoked() {
            return Err(ENODEV);
        }
        // The core refuses a map without a pin for non-revocable importers.
        if matches!(self, Self::Revocable(_)) && !at.is_pinned() {
            return Err(EINVAL);
        }

        let mapped = at.mapping().is_some();
        // Called even if the buffer is mapped because it waits for a move under way.
        let table = at.map(DataDirection::Bidirectional)?;
        if mapped {
            return Ok(());
        }

        let verdict = self.check(edu, table);
        if verdict.is_err() {
            at.unmap();
        } else {
            self.counters().mapped();
        }
        verdict
    }

    fn check(&self, edu: &Edu, sgt: &SGTable) -> Result {
        let mut segments = collect(sgt)?;
        // CAST: `usize` fits 64 bits.
        let size = self.dma_buf().size() as u64;

        table::check(&mut segments, size, edu.own_memory()).map_err(|fault| {
            dev_err!(edu.pdev(), "bad scatter table: {}\n", fault);
            EBADMSG
        })
    }

    /// Maps the buffer. Does nothing if it is mapped.
    pub(crate) fn map(&self, edu: &Edu) -> Result {
        self.with(|at| self.map_locked(edu, at))
    }

    /// Unmaps the buffer.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not mapped.
    pub(crate) fn unmap(&self) -> Result {
        self.with(|at| {
            at.mapping().ok_or(EINVAL)?;
            at.unmap();
            Ok(())
        })
    }

    /// Pins the buffer. Does nothing if it is pinned.
    ///
    /// # Errors
    ///
    /// - `EINVAL` for the static class because the core pins.
    /// - `ENODEV` if the buffer was revoked.
    /// - The errors of the exporter.
    pub(crate) fn pin(&self) -> Result {
        self.with(|at| {
            if self.counters().revoked() {
                return Err(ENODEV);
            }
            at.managed().ok_or(EINVAL)?.pin()
        })
    }

    /// Unpins the buffer. Unmaps it before this if the mapping needs the pin.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not pinned.
    pub(crate) fn unpin(&self) -> Result {
        self.with(|at| {
            let at = at.managed().filter(|at| at.is_pinned()).ok_or(EINVAL)?;

            if self.needs_pin() {
                at.unmap();
            }
            at.unpin();
            Ok(())
        })
    }

    /// The current state of the attachment.
    pub(crate) fn state(&self) -> Result<State> {
        self.with(|at| {
            Ok(State {
                mapped: at.mapping().is_some(),
                pinned: at.is_pinned(),
                iomem: false,
            })
        })
    }

    /// The scatter table of the mapping.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the buffer is not mapped.
    pub(crate) fn table(&self) -> Result<KVVec<Segment>> {
        self.with(|at| collect(at.mapping().ok_or(EINVAL)?))
    }

    /// Maps and unmaps the buffer `rounds` times without a check of the scatter table.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if it is mapped.
    /// - `ENODEV` if the buffer was revoked.
    /// - The errors of the exporter.
    pub(crate) fn measure(&self, rounds: u32) -> Result<Cost> {
        self.with(|at| {
            if self.counters().revoked() {
                return Err(ENODEV);
            }
            if at.mapping().is_some() {
                return Err(EBUSY);
            }

            let mut cost = Cost {
                least: u64::MAX,
                most: 0,
                clock: u64::MAX,
            };
            for _ in 0..rounds {
                let before = Instant::<Monotonic>::now();
                let begin = Instant::<Monotonic>::now();
                at.map(DataDirection::Bidirectional)?;
                at.unmap();
                let end = Instant::<Monotonic>::now();

                // The clock does not go backwards.
                let both = (end - begin).as_nanos().try_into()?;
                cost.least = cost.least.min(both);
                cost.most = cost.most.max(both);
                cost.clock = cost.clock.min((begin - before).as_nanos().try_into()?);
            }
            Ok(cost)
        })
    }

    /// Maps the buffer if it is not mapped. Calls `f` with the longest piece of memory that starts
    /// at `offset` and has at most `limit` bytes. Returns the size of this piece.
    ///
    /// The mapping stays until `f` returns.
    pub(crate) fn with_piece(
        &self,
        edu: &Edu,
        offset: u64,
        limit: u64,
        f: impl FnOnce(Segment) -> Result,
    ) -> Result<u64> {
        self.with(|at| {
            self.map_locked(edu, at)?;

            let piece = locate(at, offset, limit)?;

            f(piece)?;
            Ok(piece.length)
        })
    }

    /// Like [`Self::with_piece`] but only if the buffer is mapped and without sleeping to take a
    /// lock.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if another task holds the reservation, if the buffer is not mapped any more or if
    ///   a move of it is under way.
    /// - Those of [`Self::with_piece`].
    pub(crate) fn try_piece(
        &self,
        offset: u64,
        limit: u64,
        f: impl FnOnce(Segment) -> Result,
    ) -> Result<u64> {
        self.try_with(|at| {
            if at.mapping().is_none() || !at.dma_buf().resv().test_signaled(Usage::Kernel) {
                return Err(EAGAIN);
            }
            let piece = locate(at, offset, limit)?;

            f(piece)?;
            Ok(piece.length)
        })
    }

    /// Prepares asynchronous work of the device on `length` bytes at `offset` and publishes its
    /// fence.
    ///
    /// Maps the buffer if it is not mapped and waits for the fences in conflict with the work. `f`
    /// gets the pieces of memory. Each has at most [`PIECE`] bytes. `f` returns the fence and a
    /// function to begin the work. From then on the fence must signal within bounded time.
    /// [`Self::idle`] must be called after the signal.
    ///
    /// # Errors
    ///
    /// - The errors of [`Self::map`] and of `f`.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - `ENOMEM` if memory runs out.
    pub(crate) fn publish<B: FnOnce()>(
        &self,
        edu: &Edu,
        offset: u64,
        length: u64,
        write: bool,
        f: impl FnOnce(KVVec<Segment>) -> Result<(ARef<Fence>, B)>,
    ) -> Result {
        let (usage, conflicts) = if write {
            (Usage::Write, Usage::Read)
        } else {
            (Usage::Read, Usage::Write)
        };

        self.with(|at| {
            self.map_locked(edu, at)?;
            at.dma_buf().resv().wait(conflicts, true)?;

            let mut pieces = KVVec::new();
            let mut done = 0;
            while done < length {
                // CAST: `PIECE` fits 64 bits.
                let limit = (length - done).min(PIECE as u64);
                // OVERFLOW: The range was checked to be inside of the buffer.
                let piece = locate(at, offset + done, limit)?;

                done += piece.length;
                pieces.push(piece, GFP_KERNEL)?;
            }

            let mut resv = at.resv();
            let slot = resv.reserve_fences(1)?.next().ok_or(ENOMEM)?;
            let (fence, begin) = f(pieces)?;

            // Nothing fails from here on.
            let _section = SignallingSection::begin();
            self.counters().busy.store(true, Relaxed);
            slot.add_fence(&fence, usage);
            begin();
            Ok(())
        })
    }

    /// Ends the work of [`Self::publish`] after the signal of its fence. Drops the mapping if it
    /// was invalidated since. Drops the pin if the buffer was revoked.
    pub(crate) fn idle(&self) {
        // Fails only after the detach, which has dropped both.
        let _ = self.with(|at| {
            self.counters().busy.store(false, Relaxed);
            if at.mapping().is_none() && !self.counters().late {
                at.unmap();
            }
            if self.counters().revoked() {
                if let Some(at) = at.managed() {
                    at.unpin();
                }
            }
            Ok(())
        });
    }
}

/// The longest piece of a mapped buffer that starts at `offset` and has at most `limit` bytes.
fn locate(at: &LockedAttachment<'_, '_>, offset: u64, limit: u64) -> Result<Segment> {
    let sgt = at.mapping().ok_or(ENODEV)?;

    // The table was checked to have the size of the buffer and the offset to be inside.
    table::locate(segments(sgt), offset, limit).ok_or(EBADMSG)
}

fn segments(sgt: &SGTable) -> impl Iterator<Item = Segment> + '_ {
    sgt.iter().map(|entry| Segment {
        address: entry.dma_address(),
        length: entry.dma_len(),
    })
}

fn collect(sgt: &SGTable) -> Result<KVVec<Segment>> {
    let mut all = KVVec::new();

    for segment in segments(sgt) {
        all.push(segment, GFP_KERNEL)?;
    }
    Ok(all)
}

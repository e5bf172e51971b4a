// SPDX-License-Identifier: GPL-2.0

//! The attachment of a dma-buf, of one of five classes of importers, or a mapping of the kernel.
//!
//! The classes differ in what they tell the core about themselves and in what they do when the
//! exporter takes the buffer away. What they have in common is here too: the check of every scatter
//! table, and a mapping that is only used while the reservation is held.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma::DataDirection,
    dma_buf::{
        importer::{
            LockedAttachment,
            MappingSlot, //
        },
        vmap::VMap,
        Attachment,
        DmaBuf,
        Importer,
        StaticAttachment, //
    },
    prelude::*,
    scatterlist::SGTable,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        }, //
    },
    uapi, //
};

use core::ops::{
    Deref,
    DerefMut, //
};

use crate::{
    device::Edu,
    table::{
        self,
        Segment, //
    }, //
};

/// The class of importer that userspace asked for.
#[derive(Clone, Copy)]
pub(crate) enum Mode {
    Static,
    Dynamic,
    Pinned,
    Revocable,
    NoP2p,
    Cpu,
}

impl TryFrom<u32> for Mode {
    type Error = Error;

    fn try_from(mode: u32) -> Result<Self> {
        match mode {
            uapi::edu_peer_mode_EDU_PEER_STATIC => Ok(Self::Static),
            uapi::edu_peer_mode_EDU_PEER_DYNAMIC => Ok(Self::Dynamic),
            uapi::edu_peer_mode_EDU_PEER_PINNED => Ok(Self::Pinned),
            uapi::edu_peer_mode_EDU_PEER_REVOCABLE => Ok(Self::Revocable),
            uapi::edu_peer_mode_EDU_PEER_NO_P2P => Ok(Self::NoP2p),
            uapi::edu_peer_mode_EDU_PEER_CPU => Ok(Self::Cpu),
            _ => Err(EINVAL),
        }
    }
}

/// What happened to an attachment.
///
/// Changed with the reservation held, but read without.
pub(crate) struct Counters {
    invalidations: Atomic<u64>,
    maps: Atomic<u64>,
    revoked: Atomic<bool>,
}

impl Counters {
    fn new() -> Self {
        Self {
            invalidations: Atomic::new(0),
            maps: Atomic::new(0),
            revoked: Atomic::new(false),
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

    /// Whether the exporter took the buffer away for good.
    pub(crate) fn revoked(&self) -> bool {
        self.revoked.load(Relaxed)
    }
}

/// Drops its mapping on demand, and maps again when it needs to.
pub(crate) struct Dynamic(Counters);

#[vtable]
impl Importer for Dynamic {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut LockedAttachment<'_>) {
        self.0.invalidations.add(1, Relaxed);
        at.unmap();
    }
}

/// As [`Dynamic`], for a device that cannot use peer memory.
pub(crate) struct NoP2p(Counters);

#[vtable]
impl Importer for NoP2p {
    const PEER2PEER: bool = false;

    fn invalidate(&self, at: &mut LockedAttachment<'_>) {
        self.0.invalidations.add(1, Relaxed);
        at.unmap();
    }
}

/// Cannot let go of a mapping, hence pins first. It has no `invalidate`, which is what tells the
/// core.
pub(crate) struct Pinned(Counters);

#[vtable]
impl Importer for Pinned {
    const PEER2PEER: bool = true;
}

/// Pins, but can let go once: for good.
pub(crate) struct Revocable(Counters);

#[vtable]
impl Importer for Revocable {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut LockedAttachment<'_>) {
        self.0.invalidations.add(1, Relaxed);
        // A buffer that is not pinned may move.
        if at.is_pinned() {
            self.0.revoked.store(true, Relaxed);
            at.unmap();
            at.unpin();
        }
    }
}

/// An attachment of any class, with the reservation held.
enum Locked<'a, 'b> {
    Static(&'a mut MappingSlot<'b>),
    Managed(&'a mut LockedAttachment<'b>),
}

impl<'b> Deref for Locked<'_, 'b> {
    type Target = MappingSlot<'b>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Static(at) => at,
            Self::Managed(at) => at,
        }
    }
}

impl DerefMut for Locked<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Static(at) => at,
            Self::Managed(at) => at,
        }
    }
}

impl<'b> Locked<'_, 'b> {
    /// The attachment, if it is of a class that pins.
    fn managed(&mut self) -> Option<&mut LockedAttachment<'b>> {
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

/// The CPU in place of the device.
pub(crate) struct Cpu {
    buf: ARef<DmaBuf>,
    map: Option<VMap>,
    counters: Counters,
}

impl Cpu {
    fn map(&mut self) -> Result<&VMap> {
        let map = match self.map.take() {
            Some(map) => map,
            None => {
                let map = VMap::new(self.buf.clone())?;

                self.counters.maps.add(1, Relaxed);
                map
            }
        };

        Ok(self.map.insert(map))
    }

    /// Calls `f` with the mapping, which is made if there is none, while the CPU may access it.
    fn access(&mut self, dir: DataDirection, f: impl FnOnce(&VMap) -> Result) -> Result {
        let buf = self.buf.clone();
        let map = self.map()?;

        buf.begin_cpu_access(dir)?;
        let ret = f(map);
        buf.end_cpu_access(dir)?;
        ret
    }

    /// Copies `bytes` to `offset` of the buffer.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result {
        let offset = offset.try_into()?;

        self.access(DataDirection::ToDevice, |map| map.write(offset, bytes))
    }

    /// Copies from `offset` of the buffer to `bytes`.
    pub(crate) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result {
        let offset = offset.try_into()?;

        self.access(DataDirection::FromDevice, |map| map.read(offset, bytes))
    }
}

/// What an attachment is like at the moment.
pub(crate) struct State {
    pub(crate) mapped: bool,
    pub(crate) pinned: bool,
    /// It is a mapping of the kernel, of I/O memory.
    pub(crate) iomem: bool,
}

/// A dma-buf that the device is attached to, or the CPU in its place.
///
/// Dropping it unmaps, unpins and detaches.
pub(crate) enum Attached {
    /// The core pins, and there is nothing to invalidate.
    Static(StaticAttachment, Counters),
    Dynamic(Attachment<Dynamic>),
    Pinned(Attachment<Pinned>),
    Revocable(Attachment<Revocable>),
    NoP2p(Attachment<NoP2p>),
    /// There is no attachment.
    Cpu(Cpu),
}

impl Attached {
    /// Attaches `dev` to `buf`.
    ///
    /// # Errors
    ///
    /// What the exporter says, such as `EOPNOTSUPP` if there is no route.
    pub(crate) fn new(mode: Mode, buf: ARef<DmaBuf>, dev: &Device<Bound>) -> Result<Self> {
        let counters = Counters::new();

        Ok(match mode {
            Mode::Static => Self::Static(StaticAttachment::new(buf, dev)?, counters),
            Mode::Dynamic => Self::Dynamic(Attachment::new(buf, dev, Dynamic(counters))?),
            Mode::Pinned => Self::Pinned(Attachment::new(buf, dev, Pinned(counters))?),
            Mode::Revocable => Self::Revocable(Attachment::new(buf, dev, Revocable(counters))?),
            Mode::NoP2p => Self::NoP2p(Attachment::new(buf, dev, NoP2p(counters))?),
            Mode::Cpu => Self::Cpu(Cpu {
                buf,
                map: None,
                counters,
            }),
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
            Self::Cpu(cpu) => &cpu.buf,
        }
    }

    /// What happened to the attachment.
    pub(crate) fn counters(&self) -> &Counters {
        match self {
            Self::Static(_, counters) => counters,
            Self::Dynamic(attachment) => &attachment.importer().0,
            Self::Pinned(attachment) => &attachment.importer().0,
            Self::Revocable(attachment) => &attachment.importer().0,
            Self::NoP2p(attachment) => &attachment.importer().0,
            Self::Cpu(cpu) => &cpu.counters,
        }
    }

    /// Whether the mapping is only good while the buffer is pinned.
    fn needs_pin(&self) -> bool {
        matches!(self, Self::Pinned(_) | Self::Revocable(_))
    }

    /// The CPU, if it takes the place of the device.
    pub(crate) fn cpu(&mut self) -> Option<&mut Cpu> {
        match self {
            Self::Cpu(cpu) => Some(cpu),
            _ => None,
        }
    }

    /// Calls `f` with the reservation held.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no attachment, and what `f` returns.
    fn with<R>(&self, f: impl FnOnce(&mut Locked<'_, '_>) -> Result<R>) -> Result<R> {
        match self {
            Self::Static(attachment, _) => attachment.with(|at| f(&mut Locked::Static(at))),
            Self::Dynamic(attachment) => attachment.with(|at| f(&mut Locked::Managed(at))),
            Self::Pinned(attachment) => attachment.with(|at| f(&mut Locked::Managed(at))),
            Self::Revocable(attachment) => attachment.with(|at| f(&mut Locked::Managed(at))),
            Self::NoP2p(attachment) => attachment.with(|at| f(&mut Locked::Managed(at))),
            Self::Cpu(_) => Err(EINVAL),
        }
    }

    /// Maps the buffer, if it is not, and checks what it got.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the buffer was revoked, or the driver is not bound any more.
    /// - `EINVAL` if it has to be pinned first.
    /// - `EBADMSG` if the scatter table is wrong.
    /// - What the exporter says.
    fn map_locked(&self, edu: &Edu, at: &mut Locked<'_, '_>) -> Result {
        if self.counters().revoked() {
            return Err(ENODEV);
        }
        if self.needs_pin() && !at.is_pinned() {
            return Err(EINVAL);
        }

        let mapped = at.mapping().is_some();
        // Also if it is mapped: a buffer that is about to move is waited for.
        let table = at.map(DataDirection::Bidirectional)?;
        if mapped {
            return Ok(());
        }

        let verdict = self.check(edu, table);
        if verdict.is_err() {
            at.unmap();
        } else {
            self.counters().maps.add(1, Relaxed);
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
    pub(crate) fn map(&mut self, edu: &Edu) -> Result {
        if let Some(cpu) = self.cpu() {
            return cpu.map().map(|_| ());
        }
        self.with(|at| self.map_locked(edu, at))
    }

    /// Unmaps the buffer.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not mapped.
    pub(crate) fn unmap(&mut self) -> Result {
        if let Some(cpu) = self.cpu() {
            return cpu.map.take().map(drop).ok_or(EINVAL);
        }
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
    /// - `EINVAL` for the static class, for which the core pins, and for the CPU.
    /// - `ENODEV` if the buffer was revoked.
    /// - What the exporter says.
    pub(crate) fn pin(&self) -> Result {
        self.with(|at| {
            if self.counters().revoked() {
                return Err(ENODEV);
            }
            at.managed().ok_or(EINVAL)?.pin()
        })
    }

    /// Unpins the buffer, after it unmapped it if that needs the pin.
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

    /// What the attachment is like at the moment.
    pub(crate) fn state(&self) -> Result<State> {
        if let Self::Cpu(cpu) = self {
            return Ok(State {
                mapped: cpu.map.is_some(),
                pinned: false,
                iomem: cpu.map.as_ref().is_some_and(|map| map.is_iomem()),
            });
        }
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

    /// Maps the buffer, if it is not, and calls `f` with the longest piece of memory that starts at
    /// `offset` and has at most `limit` bytes. Returns the size of that piece.
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

            let sgt = at.mapping().ok_or(ENODEV)?;
            // The table was checked to have the size of the buffer, and the offset to be inside.
            let piece = table::locate(segments(sgt), offset, limit).ok_or(EBADMSG)?;

            f(piece)?;
            Ok(piece.length)
        })
    }
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

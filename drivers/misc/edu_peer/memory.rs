// SPDX-License-Identifier: GPL-2.0

//! Memory of a process for the device, by the addresses of the process.
//!
//! Nothing is pinned. For each piece the page is faulted in and mapped. The piece is then moved
//! with the mirror locked. A change of the address space by the process waits for the piece under
//! way. The next piece uses the changed address space.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    mm::{
        hmm::{
            DmaPage,
            Import,
            Request, //
        },
        interval_notifier::Mirror, //
    },
    page::PAGE_SIZE,
    pci::p2pdma::MapType,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    uapi, //
};

use core::ops::Range;

use crate::{
    device::{
        Edu,
        Engine, //
    },
    table::Segment, //
};

/// The mirror. It only counts invalidations.
struct Invalidations(Arc<Atomic<u64>>);

impl Mirror for Invalidations {
    fn invalidate(&mut self, _range: Range<usize>) {
        // The device is idle: [`Memory::access`] moves a piece with the mirror locked.
        self.0.add(1, Relaxed);
    }
}

/// Registered memory of a process.
pub(crate) struct Memory {
    import: Import<Invalidations>,
    invalidations: Arc<Atomic<u64>>,
    /// The caller has ended the registration.
    ended: Atomic<bool>,
}

impl Memory {
    /// Lets `dev` access the addresses `range` of the calling process.
    ///
    /// # Errors
    ///
    /// The errors of [`Import::new`].
    pub(crate) fn of_caller(dev: &Device<Bound>, range: Range<usize>) -> Result<Self> {
        let invalidations = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let mirror = Invalidations(invalidations.clone());
        let task = current!();

        Ok(Self {
            import: Import::new(dev, task.mm().ok_or(ESRCH)?, range, mirror)?,
            invalidations,
            ended: Atomic::new(false),
        })
    }

    /// Ends all transfers. Waits for the piece under way.
    pub(crate) fn end(&self) {
        self.ended.store(true, Relaxed);
        self.import.revoke();
    }

    /// Checks that `length` bytes from `offset` on are inside the range.
    pub(crate) fn check_range(&self, offset: u64, length: u64) -> Result {
        let Range { start, end } = self.import.range();

        // CAST: `usize` fits 64 bits.
        match offset.checked_add(length) {
            Some(last) if last <= (end - start) as u64 => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Maps the page with the byte at `offset`. Calls `f` with the page and the offset of the byte
    /// in it. The page stays mapped until `f` returns.
    ///
    /// # Errors
    ///
    /// - `ECANCELED` if the registration was ended.
    /// - The errors of [`Import::access`] and of `f`.
    fn access<R>(
        &self,
        offset: u64,
        write: bool,
        f: impl FnOnce(DmaPage, usize) -> Result<R>,
    ) -> Result<R> {
        let address = usize::try_from(offset)?
            .checked_add(self.import.range().start)
            .ok_or(EINVAL)?;
        let within = address % PAGE_SIZE;
        let page = address - within;

        self.import
            .access(page..page + PAGE_SIZE, write, |_, pages| match pages {
                [page] => f(*page, within),
                _ => Err(EINVAL),
            })
            .map_err(|e| {
                if self.ended.load(Relaxed) {
                    ECANCELED
                } else {
                    e
                }
            })?
    }

    /// Calls `f` with the engine, a piece and its length. The piece has at most `len` bytes from
    /// `offset` on and does not cross a page. Returns the length.
    fn piece(
        &self,
        edu: &Edu,
        offset: u64,
        len: usize,
        write: bool,
        f: impl FnOnce(&mut Engine<'_>, Segment, usize) -> Result,
    ) -> Result<u64> {
        self.access(offset, write, |page, within| {
            let len = len.min(PAGE_SIZE - within);
            // CAST: `usize` fits 64 bits.
            let piece = Segment {
                address: page.addr.checked_add(within as u64).ok_or(EINVAL)?,
                length: len as u64,
            };

            f(&mut edu.engine()?, piece, len)?;
            Ok(piece.length)
        })
    }

    /// Moves the start of `bytes` to `offset` of the range and returns the number of bytes moved.
    ///
    /// # Errors
    ///
    /// The errors of [`Import::access`] and of [`Engine::put`]. `ECANCELED` if the registration was
    /// ended.
    pub(crate) fn write(&self, edu: &Edu, offset: u64, bytes: &[u8]) -> Result<u64> {
        self.piece(edu, offset, bytes.len(), true, |engine, piece, len| {
            engine.put(piece, bytes.get(..len).ok_or(EINVAL)?)
        })
    }

    /// Moves bytes at `offset` of the range to the start of `bytes` and returns the number of bytes
    /// moved.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::write`].
    pub(crate) fn read(&self, edu: &Edu, offset: u64, bytes: &mut [u8]) -> Result<u64> {
        self.piece(edu, offset, bytes.len(), false, |engine, piece, len| {
            engine.get(piece, bytes.get_mut(..len).ok_or(EINVAL)?)
        })
    }

    /// How the device reaches the page with the byte at `offset`, as a value of the uAPI, and the
    /// DMA address of the byte's page.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::access`].
    pub(crate) fn page(&self, offset: u64) -> Result<(uapi::edu_peer_memory_kind, u64)> {
        self.access(offset, false, |page, _| {
            let kind = match page.peer {
                None => uapi::edu_peer_memory_kind_EDU_PEER_MEMORY_KIND_SYSTEM,
                Some(MapType::BUS_ADDR) => uapi::edu_peer_memory_kind_EDU_PEER_MEMORY_KIND_BUS,
                Some(_) => uapi::edu_peer_memory_kind_EDU_PEER_MEMORY_KIND_HOST_BRIDGE,
            };

            Ok((kind, page.addr))
        })
    }

    /// Faults in the pages of `length` bytes from `offset` on. These must be inside the range.
    /// Returns two times in nanoseconds: the time of this and one read of the clock, and the time
    /// of one read of the clock alone.
    ///
    /// # Errors
    ///
    /// The errors of [`Import::fault`].
    pub(crate) fn measure(
        &self,
        offset: u64,
        length: u64,
        request: Request<'_>,
    ) -> Result<(u64, u64)> {
        let start = usize::try_from(offset)?
            .checked_add(self.import.range().start)
            .ok_or(EINVAL)?;
        let end = start.checked_add(length.try_into()?).ok_or(EINVAL)?;

        let before = Instant::<Monotonic>::now();
        let begin = Instant::<Monotonic>::now();
        self.import.fault(start..end, request)?;
        let time = begin.elapsed();

        // The clock does not go backwards.
        Ok((
            time.as_nanos().try_into()?,
            (begin - before).as_nanos().try_into()?,
        ))
    }

    /// How often a part of the range was invalidated.
    pub(crate) fn invalidations(&self) -> u64 {
        self.invalidations.load(Relaxed)
    }

    /// The device. It may be unbound.
    pub(crate) fn device(&self) -> &Device {
        self.import.device()
    }
}

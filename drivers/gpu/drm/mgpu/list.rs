// SPDX-License-Identifier: GPL-2.0

//! The lists of a job of the copy engine: its source and destination addresses in the format of the
//! engine.
//!
//! They are computed during the preparation of a job because memory may be allocated then.

use kernel::{
    drm::ttm::{
        Memory,
        Work, //
    },
    prelude::*,
    sync::Arc, //
};

use crate::{
    recover::Recovery,
    ring::{
        Entries,
        Part, //
    }, //
};

/// The maximum number of pieces on one side of a part of a job.
const PIECES: usize = 256;

/// The number of words in the list of one side.
const LIST: usize = 2 * PIECES;

/// The maximum number of bytes copied by a part. It is small enough for a long job to make visible
/// progress.
const MOST: u64 = 1 << 25;

/// The operations.
const COPY_LIST: u64 = 16;
const FILL_LIST: u64 = 17;

/// Marks an address as an offset in VRAM.
const VRAM: u64 = 1 << 63;

/// A piece of one side.
#[derive(Clone, Copy)]
struct Piece {
    address: u64,
    len: u64,
}

/// The pieces of one side, in the order of the bytes.
struct List(KVVec<Piece>);

impl List {
    /// Returns the list of `size` bytes of a side from offset `at` on.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the side has fewer bytes or the engine does not reach it.
    /// - `ENOMEM` if memory runs out.
    fn new(memory: Memory<'_>, at: u64, size: u64) -> Result<Self> {
        let mut list = Cut {
            pieces: KVVec::new(),
            skip: at,
            left: size,
        };

        match memory {
            Memory::Vram(ranges) => {
                list.add(ranges.ranges().iter().map(|r| (r.offset | VRAM, r.len)))?;
            }
            Memory::Pages(pages) => list.add(pages.dma().ok_or(EINVAL)?)?,
            Memory::Peer(pieces) => list.add(pieces.iter().map(|r| (r.offset, r.len)))?,
            Memory::Mapped(_) => return Err(EINVAL),
        }
        if list.left != 0 {
            return Err(EINVAL);
        }
        Ok(Self(list.pieces))
    }

    /// Returns whether the side is in VRAM.
    fn is_in_vram(&self) -> bool {
        self.0
            .first()
            .is_some_and(|piece| piece.address & VRAM != 0)
    }
}

/// A list without its first `skip` bytes.
struct Cut {
    pieces: KVVec<Piece>,
    skip: u64,
    left: u64,
}

impl Cut {
    fn add(&mut self, pieces: impl Iterator<Item = (u64, u64)>) -> Result {
        for (address, len) in pieces {
            let skip = self.skip.min(len);
            let len = (len - skip).min(self.left);

            self.skip -= skip;
            self.left -= len;
            if len > 0 {
                let address = address + skip;

                match self.pieces.last_mut() {
                    Some(last) if last.address + last.len == address => last.len += len,
                    // A client can queue long lists with a piece for each page of its memory.
                    _ => self
                        .pieces
                        .push(Piece { address, len }, GFP_KERNEL_ACCOUNT)?,
                }
            }
        }
        Ok(())
    }
}

/// Both sides of a job.
pub(crate) struct Lists {
    /// [`None`] if the bytes are to be zero.
    from: Option<List>,
    to: List,
    /// The number of bytes.
    size: u64,
    recovery: Arc<Recovery>,
    /// For a copy of a client, the value of [`Recovery::sleeps`] during its preparation. Moves are
    /// done before the device is stopped.
    sleeps: Option<u64>,
}

impl Lists {
    /// Computes the lists of a job for the device of `recovery`.
    ///
    /// # Errors
    ///
    /// The errors of [`List::new`].
    pub(crate) fn of(work: &Work, recovery: &Arc<Recovery>) -> Result<Self> {
        let recovery = recovery.clone();

        match work {
            Work::Move(transfer) => {
                let size = transfer.size() as u64;

                Ok(Self {
                    from: transfer
                        .from()
                        .map(|from| List::new(from, 0, size))
                        .transpose()?,
                    to: List::new(transfer.to(), 0, size)?,
                    size,
                    recovery,
                    sleeps: None,
                })
            }
            Work::Copy(blit) => {
                let size = blit.size() as u64;
                let ((from, from_at), (to, to_at)) = (blit.from(), blit.to());

                Ok(Self {
                    from: Some(List::new(from, from_at as u64, size)?),
                    to: List::new(to, to_at as u64, size)?,
                    size,
                    sleeps: Some(recovery.sleeps()),
                    recovery,
                })
            }
        }
    }
}

/// A place in a list.
#[derive(Clone, Copy, Default)]
struct Place {
    index: usize,
    /// The number of used bytes of the piece.
    used: u64,
}

impl Place {
    /// Returns the next pieces of `list`: at most `most` pieces of up to `bytes` bytes in all.
    fn pieces<'a>(
        &self,
        list: &'a List,
        most: usize,
        bytes: u64,
    ) -> impl Iterator<Item = Piece> + 'a {
        let mut used = self.used;
        let mut left = bytes;

        list.0[self.index.min(list.0.len())..]
            .iter()
            .take(most)
            .map_while(move |piece| {
                let skip = core::mem::take(&mut used);
                let len = (piece.len - skip).min(left);

                left -= len;
                (len > 0).then_some(Piece {
                    address: piece.address + skip,
                    len,
                })
            })
    }

    /// Advances the place by `bytes` bytes.
    fn advance(&mut self, list: &List, mut bytes: u64) {
        while let Some(piece) = list.0.get(self.index) {
            let left = piece.len - self.used;
            if bytes < left {
                self.used += bytes;
                return;
            }
            bytes -= left;
            self.index += 1;
            self.used = 0;
        }
    }
}

/// The written part of a job.
#[derive(Default)]
pub(crate) struct Progress {
    from: Place,
    to: Place,
    bytes: u64,
}

impl Entries for Lists {
    // Source and destination of a copy never overlap.
    const REPEATS: bool = true;

    /// The lists of both sides.
    const WORDS: usize = 2 * LIST;

    type At = Progress;

    fn bytes(&self) -> u64 {
        self.size
    }

    fn write(&self, at: &mut Progress, part: &mut Part<'_>) -> Result<bool> {
        // VRAM read by such a copy has no owner any more, so its content was not saved.
        let has_slept = self
            .sleeps
            .is_some_and(|sleeps| self.recovery.sleeps() != sleeps);
        if has_slept && self.from.as_ref().is_some_and(List::is_in_vram) {
            return Err(EIO);
        }

        let left = (self.size - at.bytes).min(MOST);
        let words = |piece: Piece| [piece.address, piece.len];

        let (mut from_pieces, mut from_bytes, mut from_address) = (0u64, left, 0);
        if let Some(from) = &self.from {
            from_bytes = 0;
            let pieces = at.from.pieces(from, PIECES, left).inspect(|piece| {
                from_pieces += 1;
                from_bytes += piece.len;
            });
            from_address = part.write(0, pieces.flat_map(words))?;
        }
        let (mut to_pieces, mut bytes) = (0u64, 0);
        let pieces = at.to.pieces(&self.to, PIECES, from_bytes).inspect(|piece| {
            to_pieces += 1;
            bytes += piece.len;
        });
        let to_address = part.write(LIST, pieces.flat_map(words))?;

        let operation = if self.from.is_some() {
            COPY_LIST
        } else {
            FILL_LIST
        };
        part.push([
            operation,
            from_address,
            to_address,
            from_pieces | to_pieces << 32,
            bytes,
            0,
            0,
            0,
        ])?;

        if let Some(from) = &self.from {
            at.from.advance(from, bytes);
        }
        at.to.advance(&self.to, bytes);
        at.bytes += bytes;
        Ok(at.bytes == self.size)
    }
}

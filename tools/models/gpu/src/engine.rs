// SPDX-License-Identifier: GPL-2.0

//! Executes the operations of entries.

use crate::bus::Bus;
use crate::bus::Fault;
use crate::bus::Stop;
use crate::entry::Entry;
use crate::entry::List;
use crate::entry::Operation;
use crate::pages::Place;
use crate::registers::APERTURE_CONTEXT;
use crate::space::Space;

/// Bytes that are moved at once: a reset comes between two of these.
const CHUNK: usize = 64 << 10;
/// The bit of a piece's address that says VRAM.
const IN_VRAM: u64 = 1 << 63;
/// Bytes of a piece in a list, and how many are read at once.
pub const PIECE: usize = 16;
pub const PIECES: u32 = 256;

/// Does an entry that neither waits nor signals. A function says whether the ring is to stop.
pub fn execute(
    bus: Bus<'_>,
    entry: Entry,
    go_on: impl Fn() -> Result<(), Stop>,
) -> Result<(), Stop> {
    let space = Space {
        bus,
        context: entry.context,
    };
    match entry.operation.ok_or(Fault::OPERATION)? {
        Operation::Nop | Operation::Fence { .. } | Operation::Acquire { .. } => Ok(()),
        Operation::Release { address, value } => match entry.context {
            APERTURE_CONTEXT => bus.store(Place::Bus(address), value),
            _ => space.store(address, value),
        },
        Operation::CopyList {
            source,
            destination,
            bytes,
        } => {
            let (mut from, mut to) = (Pieces::new(bus, source), Pieces::new(bus, destination));
            pieces(bytes, &go_on, |left| {
                let bytes = left.min(from.ready()?).min(to.ready()?);
                let mut buffer = vec![0; bytes];
                bus.read(from.take(bytes), &mut buffer)?;
                bus.write(to.take(bytes), &buffer)?;
                Ok(bytes)
            })
        }
        Operation::FillList {
            destination,
            bytes,
            pattern,
        } => {
            let mut to = Pieces::new(bus, destination);
            let mut phase = 0;
            pieces(bytes, &go_on, |left| {
                let ready = to.ready()?;
                if let (0, Place::Vram(offset)) = (pattern, to.place) {
                    // The engine is quick at this, so that VRAM may be large.
                    let bytes = to.whole(left);
                    to.take(bytes);
                    bus.clear(offset, bytes)?;
                    phase = (phase + bytes) % 4;
                    return Ok(bytes);
                }
                let bytes = left.min(CHUNK).min(ready);
                bus.write(to.take(bytes), &filled(pattern, phase, bytes))?;
                phase = (phase + bytes) % 4;
                Ok(bytes)
            })
        }
        Operation::Copy {
            source,
            destination,
            bytes,
        } => chunks(bytes, &go_on, |done, bytes| {
            let mut buffer = vec![0; bytes];
            space.read(source.wrapping_add(done), &mut buffer)?;
            space.write(destination.wrapping_add(done), &buffer)
        }),
        Operation::Fill {
            destination,
            bytes,
            pattern,
        } => chunks(bytes, &go_on, |done, bytes| {
            space.write(destination.wrapping_add(done), &filled(pattern, 0, bytes))
        }),
        Operation::Checksum {
            source,
            destination,
            bytes,
        } => {
            let mut sum: u64 = 0;
            chunks(bytes, &go_on, |done, bytes| {
                let mut buffer = vec![0; bytes];
                space.read(source.wrapping_add(done), &mut buffer)?;
                for word in buffer.chunks_exact(4) {
                    let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    sum = sum.wrapping_add(word.into());
                }
                Ok(())
            })?;
            space.write(destination, &sum.to_le_bytes())
        }
        Operation::AtomicAdd {
            destination,
            addend,
        } => space.add(destination, addend),
    }
}

/// Bytes of a pattern, from a byte of it on.
fn filled(pattern: u32, phase: usize, bytes: usize) -> Vec<u8> {
    let mut pattern = pattern.to_le_bytes();
    pattern.rotate_left(phase % 4);
    let mut filled = pattern.repeat(bytes.div_ceil(4));
    filled.truncate(bytes);
    filled
}

/// Calls a function for each chunk, with its offset and its bytes.
fn chunks(
    bytes: u64,
    go_on: impl Fn() -> Result<(), Stop>,
    mut f: impl FnMut(u64, usize) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mut done = 0;
    while done < bytes {
        go_on()?;
        let chunk = (bytes - done).min(CHUNK as u64);
        f(done, chunk as usize)?;
        done += chunk;
    }
    Ok(())
}

/// Calls a function with the number of bytes left until it is 0; it returns how many it did.
fn pieces(
    bytes: u64,
    go_on: impl Fn() -> Result<(), Stop>,
    mut f: impl FnMut(usize) -> Result<usize, Stop>,
) -> Result<(), Stop> {
    let mut left = bytes;
    while left > 0 {
        go_on()?;
        left -= f(usize::try_from(left).unwrap_or(usize::MAX))? as u64;
    }
    Ok(())
}

/// Goes through the pieces of a list.
struct Pieces<'a> {
    bus: Bus<'a>,
    /// The pieces that are not read yet.
    rest: List,
    /// The pieces that are read, the last one first.
    read: Vec<(u64, u64)>,
    /// The rest of the current piece: its place, and its bytes.
    place: Place,
    left: u64,
}

impl<'a> Pieces<'a> {
    fn new(bus: Bus<'a>, list: List) -> Self {
        Self {
            bus,
            rest: list,
            read: Vec::new(),
            place: Place::Bus(0),
            left: 0,
        }
    }

    /// Goes to a piece with something left; returns how many bytes of it are done at once at most.
    fn ready(&mut self) -> Result<usize, Stop> {
        while self.left == 0 {
            let (address, bytes) = match self.read.pop() {
                Some(piece) => piece,
                None => {
                    self.fetch()?;
                    continue;
                }
            };
            self.left = bytes;
            self.place = match address & IN_VRAM {
                0 => Place::Bus(address),
                _ => Place::Vram(address & !IN_VRAM),
            };
        }
        Ok(self.whole(CHUNK))
    }

    /// So many bytes, or those that are left of the piece.
    fn whole(&self, bytes: usize) -> usize {
        bytes.min(usize::try_from(self.left).unwrap_or(usize::MAX))
    }

    /// Takes bytes of the piece; returns their place.
    fn take(&mut self, bytes: usize) -> Place {
        let place = self.place;
        self.place = place.plus(bytes as u64);
        self.left -= bytes as u64;
        place
    }

    /// Reads the next pieces of the list.
    fn fetch(&mut self) -> Result<(), Stop> {
        let pieces = self.rest.pieces.min(PIECES);
        if pieces == 0 {
            // The list is shorter than the operation.
            return Err(Fault::OPERATION);
        }
        let mut buffer = vec![0; pieces as usize * PIECE];
        self.bus.fetch(self.rest.address, &mut buffer)?;
        self.rest.pieces -= pieces;
        self.rest.address = self.rest.address.wrapping_add(buffer.len() as u64);
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        self.read = buffer
            .chunks_exact(PIECE)
            .rev()
            .map(|piece| (word(&piece[..8]), word(&piece[8..])))
            .collect();
        Ok(())
    }
}

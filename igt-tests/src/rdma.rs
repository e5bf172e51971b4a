// SPDX-License-Identifier: GPL-2.0

//! An RDMA device moves bytes between two registered buffers, and the CPU checks every byte.
//!
//! Before each operation both buffers are filled with new patterns. After it the target must have
//! the bytes that were moved and be unchanged elsewhere, and the source must be unchanged.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::fs;
use std::ptr;
use std::time::Instant;

mod setup;

pub use setup::Setup;

use crate::drm::DmaBuf;
use crate::map::{Map, PAGE};
use crate::misc::Lcg;
use crate::pattern::{Compare, Mismatch, Pattern};
use crate::uapi::{
    DMA_BUF_SYNC_END as END, DMA_BUF_SYNC_READ as READ, DMA_BUF_SYNC_WRITE as WRITE,
};
use crate::verbs::{Failure, Nic, Pair, Region};
use crate::{Stop, SysError};

/// Bytes of the longest message.
const MESSAGE: u64 = 1 << 20;
/// Bytes of one request in measurements.
const CHUNK: u64 = 64 << 10;
/// Words that atomic operations change.
const WORDS: u64 = 16;
/// Access flag of a region whose pages are not pinned, but faulted in when the device accesses
/// them.
pub const ON_DEMAND: u32 = 1 << 6;
/// The largest distance of some transfers from the ends of both parts.
const MARGIN: u64 = 256;

/// Sets whether new on-demand regions request peer-to-peer memory. The drop of this turns that off.
#[derive(Debug)]
pub struct OdpP2p(());

impl OdpP2p {
    const PARAMETER: &str = "/sys/module/rdma_rxe/parameters/odp_p2p";

    /// Sets the parameter of soft RoCE.
    pub fn new(ask: bool) -> Result<Self, SysError> {
        fs::write(Self::PARAMETER, if ask { "Y" } else { "N" })
            .map_err(|error| SysError::io(Self::PARAMETER, &error))?;
        Ok(Self(()))
    }
}

impl Drop for OdpP2p {
    fn drop(&mut self) {
        let _ = fs::write(Self::PARAMETER, "N");
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// RDMA write.
    Write,
    /// RDMA read.
    Read,
    /// Send and receive.
    Send,
    /// Fetch and add.
    FetchAdd,
    /// Compare and swap.
    CompareSwap,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Write,
        Self::Read,
        Self::Send,
        Self::FetchAdd,
        Self::CompareSwap,
    ];

    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::FetchAdd => "fetch-add",
            Self::CompareSwap => "cmp-swap",
        }
    }

    /// Whether it is atomic, which not every device supports.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }
}

/// Bytes that were moved from one place to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Copied {
    /// The pattern of the source.
    source: Pattern,
    /// Their offset in the source.
    from: u64,
    /// Their offset in the target.
    to: u64,
    /// How many bytes.
    len: u64,
}

/// The expected content of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    base: Pattern,
    copied: Option<Copied>,
    words: BTreeMap<u64, u64>,
}

impl Model {
    /// A pattern.
    pub fn new(base: Pattern) -> Self {
        Self {
            base,
            copied: None,
            words: BTreeMap::new(),
        }
    }

    /// Adds a copy of `len` bytes from offset `from` of another pattern to offset `to`.
    #[must_use]
    pub fn with_copy(mut self, source: Pattern, from: u64, to: u64, len: u64) -> Self {
        self.copied = Some(Copied {
            source,
            from,
            to,
            len,
        });
        self
    }

    /// Sets the word at an index.
    pub fn set(&mut self, index: u64, value: u64) {
        self.words.insert(index, value);
    }

    fn byte(&self, at: u64) -> u8 {
        match self.copied {
            Some(Copied {
                source,
                from,
                to,
                len,
            }) if at >= to && at - to < len => source.byte(from + (at - to)),
            _ => self.base.byte(at),
        }
    }

    /// The word at an index.
    pub fn word(&self, index: u64) -> u64 {
        if let Some(value) = self.words.get(&index) {
            return *value;
        }
        let Some(copied) = self.copied else {
            return self.base.word(index);
        };
        let (start, end) = (8 * index, 8 * index + 8);
        let (first, last) = (copied.to, copied.to + copied.len);
        if end <= first || start >= last {
            return self.base.word(index);
        }
        if start < first || end > last {
            return u64::from_le_bytes(std::array::from_fn(|i| self.byte(start + i as u64)));
        }
        let from = copied.from + (start - first);
        let (index, shift) = (from / 8, 8 * (from % 8) as u32);
        match shift {
            0 => copied.source.word(index),
            _ => {
                (copied.source.word(index) >> shift)
                    | (copied.source.word(index + 1) << (64 - shift))
            }
        }
    }

    /// Compares it with a mapping.
    ///
    /// # Errors
    ///
    /// The first difference, if there is one.
    pub fn verify(&self, map: &Map) -> Result<(), Mismatch> {
        let mut compare = Compare::default();
        for index in 0..map.len() / 8 {
            let at = index as u64;
            compare.word(8 * at, self.word(at), map.read(index));
        }
        compare.finish()
    }
}

/// A buffer that is registered, and mapped for the CPU.
#[derive(Debug)]
pub struct Buffer<'nic> {
    name: String,
    region: Region<'nic>,
    map: Map,
    shared: Option<DmaBuf>,
}

impl<'nic> Buffer<'nic> {
    /// Registers and maps all of a dma-buf, for every access.
    pub fn shared(nic: &'nic Nic, name: &str, shared: DmaBuf) -> Result<Self, SysError> {
        let map = shared.map()?;
        Self::mapped(nic, name, shared, map)
    }

    /// Registers all of a dma-buf, for every access, that the CPU accesses by a mapping of
    /// something else, such as the BAR in which it is.
    pub fn mapped(nic: &'nic Nic, name: &str, shared: DmaBuf, map: Map) -> Result<Self, SysError> {
        let (len, access) = (map.len() as u64, nic.all_access());
        Ok(Self {
            name: name.to_string(),
            region: nic.register(shared.fd(), 0, len, None, access)?,
            map,
            shared: Some(shared),
        })
    }

    /// Registers memory of the process, for every access.
    pub fn host(nic: &'nic Nic, name: &str, size: u64) -> Result<Self, SysError> {
        let map = Map::anonymous((size as usize).next_multiple_of(PAGE))?;
        Ok(Self {
            name: name.to_string(),
            region: nic.register_memory(&map, nic.all_access())?,
            map,
            shared: None,
        })
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The memory region.
    pub fn region(&self) -> &Region<'nic> {
        &self.region
    }

    /// Its mapping for the CPU. For a dma-buf it must be used in [`Buffer::access`].
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The dma-buf, if it is one.
    pub fn dma_buf(&self) -> Option<&DmaBuf> {
        self.shared.as_ref()
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Whether it is empty, which no mapping is.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Calls `body` between the begin and the end of a CPU access, with `DMA_BUF_SYNC_READ` or
    /// `DMA_BUF_SYNC_WRITE`, or both.
    pub fn access<T>(&self, flags: u64, body: impl FnOnce(&Map) -> T) -> Result<T, SysError> {
        let Some(shared) = &self.shared else {
            return Ok(body(&self.map));
        };
        shared.sync(flags)?;
        let result = body(&self.map);
        shared.sync(flags | END)?;
        Ok(result)
    }

    /// Writes a pattern over all of it, by the CPU.
    pub fn fill(&self, pattern: Pattern) -> Result<(), SysError> {
        self.access(READ | WRITE, |map| {
            map.fill(pattern);
            // What was written to a BAR is there once something is read from it.
            map.read(map.len() / 8 - 1);
        })
    }

    /// Compares all of it with its expected content, by the CPU.
    ///
    /// # Errors
    ///
    /// As for [`Buffer::access`]; inside, the first difference, if there is one.
    pub fn verify(&self, model: &Model) -> Result<Result<(), Mismatch>, SysError> {
        self.access(READ, |map| model.verify(map))
    }

    /// Deregisters it and reports errors, which dropping does not.
    pub fn close(self) -> Result<(), SysError> {
        self.region.close()
    }
}

impl<'nic> AsRef<Region<'nic>> for Buffer<'nic> {
    fn as_ref(&self) -> &Region<'nic> {
        &self.region
    }
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    buffer: &'a Buffer<'a>,
    offset: u64,
    len: u64,
}

impl<'a> Part<'a> {
    /// A part of a buffer, which must be inside of it.
    pub fn new(buffer: &'a Buffer<'a>, offset: u64, len: u64) -> Self {
        let end = offset.checked_add(len);
        assert!(
            len > 0 && end.is_some_and(|end| end <= buffer.len()),
            "{len:#x} bytes at {offset:#x} of {} are outside",
            buffer.name
        );
        Self {
            buffer,
            offset,
            len,
        }
    }

    /// All of it.
    pub fn whole(buffer: &'a Buffer<'a>) -> Self {
        Self::new(buffer, 0, buffer.len())
    }

    /// Both halves of it.
    pub fn halves(buffer: &'a Buffer<'a>) -> (Self, Self) {
        let half = buffer.len() / 2;
        (
            Self::new(buffer, 0, half),
            Self::new(buffer, half, buffer.len() - half),
        )
    }

    /// The buffer.
    pub fn buffer(&self) -> &'a Buffer<'a> {
        self.buffer
    }

    /// Offset of its first byte in the buffer.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is empty, which it never is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The words that are inside: the first one, and how many.
    fn words(&self) -> (u64, u64) {
        words(self.offset, self.len)
    }

    fn same_buffer(&self, other: &Self) -> bool {
        ptr::eq(self.buffer, other.buffer)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.same_buffer(other)
            && self.offset < other.offset + other.len
            && other.offset < self.offset + self.len
    }
}

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.buffer.name, self.offset)
    }
}

/// An error of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The operation has failed.
    Failed {
        /// The operation, with its source and target.
        what: String,
        /// How it failed.
        failure: Failure,
    },
    /// A buffer does not have the expected content.
    Wrong {
        /// The operation, with its source and target.
        what: String,
        /// Name of the buffer.
        buffer: String,
        /// The first difference.
        mismatch: Box<Mismatch>,
    },
    /// The CPU cannot access a buffer.
    Access(SysError),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { what, failure } => write!(f, "{what}: {failure}"),
            Self::Wrong {
                what,
                buffer,
                mismatch,
            } => write!(f, "{what}: in {buffer} {mismatch}"),
            Self::Access(error) => error.fmt(f),
        }
    }
}

impl From<SysError> for Trouble {
    fn from(error: SysError) -> Self {
        Self::Access(error)
    }
}

impl From<Trouble> for Stop {
    #[track_caller]
    fn from(trouble: Trouble) -> Self {
        Self::fail(trouble)
    }
}

/// The words that are whole in a range of bytes: the first one, and how many.
fn words(offset: u64, len: u64) -> (u64, u64) {
    let (first, end) = (offset.div_ceil(8), (offset + len) / 8);
    (first, end.saturating_sub(first))
}

/// The transfers between parts of two lengths: offsets in both, and the length.
///
/// First the largest possible one, then most of that at odd offsets, then a few bytes.
fn transfers(random: &mut Lcg, from: u64, to: u64) -> Vec<(u64, u64, u64)> {
    let most = from.min(to);
    let margin = MARGIN.min(most / 4);
    let mut odd = || random.below(margin + 1);
    let middle = (odd(), odd(), most - margin - odd());
    let few = 1 + random.below(most.min(64));
    vec![
        (0, 0, most),
        middle,
        (
            random.below(from - few + 1),
            random.below(to - few + 1),
            few,
        ),
    ]
}

/// Different words of a part, the first and the last among them.
fn pick_words(random: &mut Lcg, (first, count): (u64, u64)) -> Vec<u64> {
    if count == 0 {
        return Vec::new();
    }
    let wanted = WORDS.min(count) as usize;
    let mut picked = BTreeSet::from([first, first + count - 1]);
    while picked.len() < wanted {
        picked.insert(first + random.below(count));
    }
    picked.into_iter().collect()
}

/// Pieces of a range: offset and length of each.
fn pieces(len: u64, piece: u64) -> impl Iterator<Item = (u64, u32)> + Clone {
    (0..len.div_ceil(piece)).map(move |index| {
        let at = index * piece;
        (at, piece.min(len - at) as u32)
    })
}

/// A connection, and two parts of buffers.
struct Bench<'a> {
    pair: &'a Pair<'a>,
    op: Op,
    from: Part<'a>,
    to: Part<'a>,
}

impl Bench<'_> {
    fn what(&self, text: impl fmt::Display) -> String {
        format!("{} from {} to {}{text}", self.op.name(), self.from, self.to)
    }

    fn failed(&self, failure: Failure) -> Trouble {
        Trouble::Failed {
            what: self.what(""),
            failure,
        }
    }

    /// Fills both buffers, all of them.
    fn fill(&self, random: &mut Lcg) -> Result<(Pattern, Pattern), SysError> {
        let source = Pattern::new(random.word());
        self.from.buffer.fill(source)?;
        if self.from.same_buffer(&self.to) {
            return Ok((source, source));
        }
        let target = Pattern::new(random.word());
        self.to.buffer.fill(target)?;
        Ok((source, target))
    }

    fn verify(
        &self,
        part: &Part<'_>,
        model: &Model,
        text: impl fmt::Display,
    ) -> Result<(), Trouble> {
        part.buffer
            .verify(model)?
            .map_err(|mismatch| Trouble::Wrong {
                what: self.what(text),
                buffer: part.buffer.name.clone(),
                mismatch: Box::new(mismatch),
            })
    }

    /// Moves bytes and checks all of both buffers.
    fn transfer(&self, random: &mut Lcg, plan: (u64, u64, u64)) -> Result<(), Trouble> {
        let (from, to, len) = plan;
        let (from, to) = (self.from.offset + from, self.to.offset + to);
        let (source, target) = self.fill(random)?;
        let regions = (&self.from.buffer.region, &self.to.buffer.region);
        for (at, len) in pieces(len, MESSAGE) {
            let (from, to) = ((regions.0, from + at), (regions.1, to + at));
            match self.op {
                Op::Write => self.pair.write(from, to, len),
                Op::Read => self.pair.read(from, to, len),
                _ => self.pair.send(from, to, len),
            }
            .map_err(|failure| self.failed(failure))?;
        }
        let text = format!(", {len:#x} bytes from {from:#x} to {to:#x}");
        let model = Model::new(target).with_copy(source, from, to, len);
        self.verify(&self.to, &model, &text)?;
        if self.from.same_buffer(&self.to) {
            return Ok(());
        }
        self.verify(&self.from, &Model::new(source), &text)
    }

    /// Does atomic operations and checks all of both buffers, where the old values are in one.
    fn atomics(&self, random: &mut Lcg) -> Result<u64, Trouble> {
        let (source, target) = self.fill(random)?;
        let results = pick_words(random, self.from.words());
        let targets = pick_words(random, self.to.words());
        // If both parts are of the same buffer, it has both changes.
        let mut models = vec![Model::new(target)];
        if !self.from.same_buffer(&self.to) {
            models.push(Model::new(source));
        }
        let mut done = 0;
        for (result, on) in results.iter().zip(&targets) {
            let old = models[0].word(*on);
            let local = (&self.from.buffer.region, 8 * result);
            let remote = (&self.to.buffer.region, 8 * on);
            let operand = random.word();
            let (failure, new) = match self.op {
                Op::FetchAdd => (
                    self.pair.fetch_add(local, remote, operand),
                    old.wrapping_add(operand),
                ),
                // Every other one compares with a wrong value, so that it changes nothing.
                _ if done % 2 == 1 => (self.pair.compare_swap(local, remote, !old, operand), old),
                _ => (self.pair.compare_swap(local, remote, old, operand), operand),
            };
            failure.map_err(|failure| self.failed(failure))?;
            models[0].set(*on, new);
            if let Some(model) = models.last_mut() {
                model.set(*result, old);
            }
            done += 1;
        }
        let text = format!(", {done} words");
        for (part, model) in [&self.to, &self.from].into_iter().zip(&models) {
            self.verify(part, model, &text)?;
        }
        Ok(8 * done)
    }
}

/// Does one operation between two parts, and checks every byte of both buffers.
///
/// Write, read and send first move as much as both parts have, then most of that at odd offsets,
/// then a few bytes. The atomic operations change words of `to`, and the old values go to `from`.
/// The same seed gives the same bytes and offsets.
///
/// Returns the number of bytes that were moved or changed.
///
/// # Errors
///
/// Describes the failure, or the byte that is wrong. After a failure the pair cannot be used any
/// more.
pub fn exercise_op(
    pair: &Pair<'_>,
    op: Op,
    from: Part<'_>,
    to: Part<'_>,
    seed: u64,
) -> Result<u64, Trouble> {
    assert!(!from.overlaps(&to), "{from} and {to} overlap");
    let bench = Bench { pair, op, from, to };
    let mut random = Lcg::new(seed);
    if op.is_atomic() {
        return bench.atomics(&mut random);
    }
    let mut moved = 0;
    for plan in transfers(&mut random, from.len, to.len) {
        bench.transfer(&mut random, plan)?;
        moved += plan.2;
    }
    Ok(moved)
}

/// Does every operation that the device has, see [`exercise_op`].
pub fn exercise(pair: &Pair<'_>, from: Part<'_>, to: Part<'_>, seed: u64) -> Result<u64, Trouble> {
    let mut moved = 0;
    for (index, op) in (0..).zip(Op::ALL) {
        if pair.nic().atomics() || !op.is_atomic() {
            moved += exercise_op(pair, op, from, to, seed.wrapping_add(index))?;
        }
    }
    Ok(moved)
}

/// Measures writes or reads, many at once, in bytes per second.
///
/// Moves them as [`many_at_once`] does.
pub fn bandwidth(
    pair: &Pair<'_>,
    op: Op,
    from: Part<'_>,
    to: Part<'_>,
    least: u64,
    seed: u64,
) -> Result<f64, Trouble> {
    let (moved, start, end) = many_at_once(pair, op, from, to, least, seed, Instant::now)?;
    Ok(moved as f64 / (end - start).as_secs_f64().max(1e-9))
}

/// Posts writes or reads, many at once.
///
/// Moves at least `least` bytes, and at least as much as both parts have. Returns how many bytes
/// were moved, and the values of `now` before the first request was posted and after the last one
/// was done. Both buffers are checked afterwards.
pub fn many_at_once<T>(
    pair: &Pair<'_>,
    op: Op,
    from: Part<'_>,
    to: Part<'_>,
    least: u64,
    seed: u64,
    now: impl Fn() -> T,
) -> Result<(u64, T, T), Trouble> {
    assert!(!from.overlaps(&to), "{from} and {to} overlap");
    let bench = Bench { pair, op, from, to };
    let (source, target) = bench.fill(&mut Lcg::new(seed))?;
    let len = from.len.min(to.len);
    let least = least.max(len);
    let regions = (&from.buffer.region, &to.buffer.region);
    let depth = pair.depth() as usize;
    let mut posted = VecDeque::with_capacity(depth);
    let mut moved = 0;
    let mut run = || -> Result<(), Failure> {
        for (at, len) in pieces(len, CHUNK).cycle() {
            if moved >= least {
                break;
            }
            if posted.len() == depth {
                posted.pop_front().map_or(Ok(()), |t| pair.wait(t))?;
            }
            let (from, to) = ((regions.0, from.offset + at), (regions.1, to.offset + at));
            posted.push_back(match op {
                Op::Read => pair.post_read(from, to, len)?,
                _ => pair.post_write(from, to, len)?,
            });
            moved += u64::from(len);
        }
        posted.drain(..).try_for_each(|ticket| pair.wait(ticket))
    };
    let start = now();
    run().map_err(|failure| bench.failed(failure))?;
    let end = now();
    let model = Model::new(target).with_copy(source, from.offset, to.offset, len);
    bench.verify(&to, &model, ", many at once")?;
    if !from.same_buffer(&to) {
        bench.verify(&from, &Model::new(source), ", many at once")?;
    }
    Ok((moved, start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_what_was_copied_and_nothing_else() {
        let (base, source) = (Pattern::new(1), Pattern::new(2));
        for (from, to, len) in [(0, 0, 64), (3, 9, 41), (8, 16, 24), (5, 17, 2), (7, 8, 8)] {
            let model = Model::new(base).with_copy(source, from, to, len);
            for index in 0..12 {
                let bytes: [u8; 8] = std::array::from_fn(|i| {
                    let at = 8 * index + i as u64;
                    if (to..to + len).contains(&at) {
                        source.byte(at - to + from)
                    } else {
                        base.byte(at)
                    }
                });
                assert_eq!(model.word(index), u64::from_le_bytes(bytes), "{index}");
            }
        }
    }

    #[test]
    fn one_wrong_byte_is_found() {
        let map = Map::anonymous(PAGE).unwrap();
        let (base, source) = (Pattern::new(3), Pattern::new(4));
        let mut model = Model::new(base).with_copy(source, 1, 100, 1000);
        model.set(511, 7);
        assert_eq!(model.verify(&map).unwrap_err().bad, 512);
        for index in 0..512 {
            map.write(index, model.word(index as u64));
        }
        assert_eq!(model.verify(&map), Ok(()));
        for index in [0, 12, 60, 137, 511] {
            let good = map.read(index);
            map.write(index, good ^ (1 << 56));
            let found = model.verify(&map).unwrap_err();
            assert_eq!((found.offset, found.want), (8 * index as u64, good));
            assert_eq!(found.bad, 1);
            map.write(index, good);
        }
    }

    #[test]
    fn transfers_stay_inside() {
        let mut random = Lcg::new(5);
        for (from, to) in [(1, 1), (8, 3), (4096, 4096), (5000, 100_000)] {
            for _ in 0..100 {
                for (a, b, len) in transfers(&mut random, from, to) {
                    assert!(len > 0 && a + len <= from && b + len <= to);
                }
            }
        }
    }

    #[test]
    fn words_are_whole_and_different() {
        assert_eq!(words(0, 4096), (0, 512));
        assert_eq!(words(1, 15), (1, 1));
        assert_eq!(words(1, 14).1, 0);
        assert_eq!(words(3, 4).1, 0);
        let mut random = Lcg::new(6);
        assert!(pick_words(&mut random, (4, 0)).is_empty());
        assert_eq!(pick_words(&mut random, (4, 1)), [4]);
        assert_eq!(pick_words(&mut random, (4, 3)), [4, 5, 6]);
        let many = pick_words(&mut random, (100, 400));
        assert_eq!((many.len() as u64, many[0]), (WORDS, 100));
        assert_eq!(many.last(), Some(&499));
    }

    #[test]
    fn pieces_cover_all() {
        let all: Vec<_> = pieces(10, 4).collect();
        assert_eq!(all, [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(pieces(8, 4).count(), 2);
    }
}

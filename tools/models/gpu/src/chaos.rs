// SPDX-License-Identifier: GPL-2.0

//! What registers.rst permits a device to do and this one does not do by itself, at random.
//!
//! Each ring draws its own numbers, so that what it does follows from the seed and its entries.

use std::mem;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use vfio_user::dma;
use vfio_user::port::Epoch;

use crate::bus::Bus;
use crate::bus::Stop;
use crate::bus::Who;
use crate::device::Gpu;
use crate::engine::PIECE;
use crate::engine::PIECES;
use crate::entry;
use crate::entry::Entry;
use crate::entry::Operation;
use crate::pages::Place;
use crate::registers::lie;
use crate::registers::RING_COUNT;
use crate::report::Broken;

/// How many writes of a ring are on their way at most.
const MOST: usize = 32;
/// The bits of a seed above those that rings and devices differ by.
const NUMBER: u32 = 40;
/// The target of writes to VRAM; others are memory on the bus.
const VRAM: usize = 0;

/// The chaos of a device.
pub struct Chaos {
    /// The seed that it was started with, and that of the numbers that it draws.
    first: u64,
    seed: AtomicU64,
    /// How often there was each lie.
    counts: [AtomicU32; lie::COUNT],
    rings: [Mutex<RingChaos>; RING_COUNT],
}

/// A write of a ring that is on its way.
struct Write {
    /// It stays behind earlier writes to the same one.
    target: usize,
    who: Who,
    epoch: Epoch,
    /// How many mappings there were when it was made.
    made: u64,
    place: Place,
    data: Vec<u8>,
}

impl Write {
    /// Does the write. It has no answer: one that is forbidden by now is only reported.
    fn arrive(self, gpu: &Gpu) {
        let bus = Bus {
            gpu,
            dma: gpu.port.dma_since(self.epoch).as_of(self.made),
            who: self.who,
        };
        let _ = bus.put(self.place, &self.data);
    }
}

/// An entry, or a part of a list, that was read ahead.
struct Ahead {
    /// The number of the entry that needs it.
    entry: u32,
    at: u64,
    bytes: Vec<u8>,
}

/// The chaos of a ring.
#[derive(Default)]
struct RingChaos {
    random: u64,
    /// In their order.
    posted: Vec<Write>,
    /// How many interrupts are still to be raised.
    late: u32,
    ahead: Vec<Ahead>,
}

impl RingChaos {
    /// The next number, by splitmix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Whether to do what is done once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        self.draw().is_multiple_of(times)
    }
}

impl Chaos {
    /// The chaos that follows from a seed; 0 is none.
    pub fn new(seed: u64) -> Option<Self> {
        let chaos = (seed != 0).then(|| Self {
            first: seed,
            seed: AtomicU64::new(seed),
            counts: Default::default(),
            rings: Default::default(),
        });
        chaos.inspect(|chaos| chaos.begin(0))
    }

    /// The seed of the numbers that it draws.
    pub fn seed(&self) -> u64 {
        self.seed.load(Ordering::SeqCst)
    }

    /// Draws the numbers of another seed from now on, which follows from the first one. What is on
    /// its way stays so.
    pub fn begin(&self, number: u32) {
        let seed = self.first.wrapping_add(u64::from(number) << NUMBER);
        self.seed.store(seed, Ordering::SeqCst);
        for (number, ring) in (0..).zip(&self.rings) {
            let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
            ring.random = seed.wrapping_add(number << 32);
        }
    }

    /// How often there was a lie, or 0 for one that there is not.
    pub fn count(&self, lie: usize) -> u32 {
        let count = self.counts.get(lie);
        count.map_or(0, |count| count.load(Ordering::SeqCst))
    }

    /// Counts a lie.
    pub fn tell(&self, lie: usize) {
        self.counts[lie].fetch_add(1, Ordering::SeqCst);
    }

    fn ring(&self, number: usize) -> MutexGuard<'_, RingChaos> {
        let ring = self.rings[number].lock();
        ring.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Bus<'a> {
    /// The chaos of the device and that of the ring, if a ring has this access to the bus.
    fn chaos(&self) -> Option<(&'a Chaos, MutexGuard<'a, RingChaos>)> {
        match (self.gpu.chaos.as_ref(), self.who) {
            (Some(chaos), Who::Ring { ring, .. }) => Some((chaos, chaos.ring(ring))),
            _ => None,
        }
    }

    /// The target of an access: VRAM, or the memory on the bus that has all of a range. None if the
    /// write must be done at once.
    fn target(&self, place: Place, bytes: usize, access: u32) -> Option<usize> {
        let bytes = bytes as u64;
        match place {
            Place::Vram(offset) => self.gpu.vram.holds(offset, bytes).then_some(VRAM),
            Place::Bus(address) => self.dma.target(address, bytes, access).ok().flatten(),
        }
    }

    /// Puts a write on its way, and lets some arrive. Returns false for one that has to be done at
    /// once; no other one is on its way then.
    pub fn post(&self, to: Place, from: &[u8]) -> bool {
        let Some((chaos, mut own)) = self.chaos() else {
            return false;
        };
        // Before the address is looked up: it may be mapped anew at any time.
        let made = self.dma.made();
        let Some(target) = self.target(to, from.len(), dma::WRITE) else {
            drop(own);
            self.flush();
            return false;
        };
        own.posted.push(Write {
            target,
            who: self.who,
            epoch: self.dma.epoch(),
            made,
            place: to,
            data: from.to_vec(),
        });
        while own.posted.len() > MOST || !own.posted.is_empty() && own.once_in(4) {
            let some = own.draw() as usize % own.posted.len();
            let target = own.posted[some].target;
            let mut writes = own.posted.iter();
            let first = writes.position(|write| write.target == target);
            let first = first.unwrap_or(some);
            if first > 0 {
                chaos.tell(lie::OVERTAKEN);
            }
            own.posted.remove(first).arrive(self.gpu);
        }
        true
    }

    /// Lets those writes of the ring arrive that a read pushes.
    pub fn push(&self, from: Place, bytes: usize) {
        if self.gpu.chaos.is_some() {
            let target = self.target(from, bytes, dma::READ);
            self.arrive(|write| target.is_none_or(|target| target == write.target));
        }
    }

    /// Lets all writes of the ring arrive.
    pub fn flush(&self) {
        self.arrive(|_| true);
    }

    fn arrive(&self, which: impl Fn(&Write) -> bool) {
        if let Some((_, mut own)) = self.chaos() {
            let posted = mem::take(&mut own.posted).into_iter();
            let (arriving, left): (Vec<_>, Vec<_>) = posted.partition(which);
            own.posted = left;
            for write in arriving {
                write.arrive(self.gpu);
            }
        }
    }

    /// How often to raise an interrupt now.
    pub fn interrupts(&self) -> u32 {
        match self.chaos() {
            None => 1,
            Some((chaos, mut own)) => match own.draw() % 8 {
                0 => {
                    chaos.tell(lie::LATE);
                    own.late += 1;
                    0
                }
                1 => {
                    chaos.tell(lie::TWICE);
                    2
                }
                _ => 1,
            },
        }
    }

    /// How many interrupts that are late to raise at last, after how many milliseconds.
    pub fn late(&self) -> (u32, u64) {
        self.chaos().map_or((0, 0), |(_, mut own)| {
            (mem::take(&mut own.late), own.draw() % 4)
        })
    }

    /// Reads an entry or a part of a list, or takes what was read ahead. It may not have changed
    /// since.
    pub fn fetch(&self, at: u64, to: &mut [u8]) -> Result<(), Stop> {
        self.read(Place::Bus(at), to)?;
        let (Some((_, mut own)), Who::Ring { entry, .. }) = (self.chaos(), self.who) else {
            return Ok(());
        };
        own.ahead
            .retain(|ahead| ahead.entry.wrapping_sub(entry) <= 1);
        let is_this =
            |ahead: &Ahead| (ahead.entry, ahead.at, ahead.bytes.len()) == (entry, at, to.len());
        let found = own.ahead.iter().position(is_this);
        let ahead = found.map(|found| own.ahead.swap_remove(found));
        drop(own);
        if let Some(ahead) = ahead.filter(|ahead| ahead.bytes != to) {
            self.report(Broken::Changed { at });
            to.copy_from_slice(&ahead.bytes);
        }
        Ok(())
    }

    /// May read the next entry of the ring, and the lists that it has.
    pub fn read_ahead(&self, at: u64) {
        let Who::Ring { ring, entry } = self.who else {
            return;
        };
        let (number, mut bytes) = (entry.wrapping_add(1), [0; entry::BYTES]);
        if !self.draws(2) || !self.keep_ahead(number, at, &mut bytes) {
            return;
        }
        let lists = match Entry::parse(ring, &bytes).operation {
            Some(Operation::CopyList {
                source,
                destination,
                ..
            }) => vec![source, destination],
            Some(Operation::FillList { destination, .. }) => vec![destination],
            _ => vec![],
        };
        for list in lists {
            let mut pieces = vec![0; list.pieces.min(PIECES) as usize * PIECE];
            self.keep_ahead(number, list.address, &mut pieces);
        }
        if let Some(chaos) = &self.gpu.chaos {
            chaos.tell(lie::AHEAD);
        }
    }

    /// Reads something ahead, unless the device may not.
    fn keep_ahead(&self, entry: u32, at: u64, to: &mut [u8]) -> bool {
        let is_there = self.target(Place::Bus(at), to.len(), dma::READ).is_some()
            && self.read(Place::Bus(at), to).is_ok();
        if let Some((_, mut own)) = self.chaos().filter(|_| is_there) {
            let bytes = to.to_vec();
            own.ahead.push(Ahead { entry, at, bytes });
        }
        is_there
    }

    /// Ends what the ring has on its way: of each target some earlier writes arrive, and no
    /// interrupt does.
    pub fn forget(&self) {
        let Some((chaos, mut own)) = self.chaos() else {
            return;
        };
        own.ahead.clear();
        own.late = 0;
        let mut lost = Vec::new();
        for write in mem::take(&mut own.posted) {
            if lost.contains(&write.target) || own.once_in(2) {
                chaos.tell(lie::LOST);
                lost.push(write.target);
            } else {
                write.arrive(self.gpu);
            }
        }
    }

    /// Whether to do what chaos does once in so many times.
    pub fn draws(&self, times: u64) -> bool {
        self.chaos().is_some_and(|(_, mut own)| own.once_in(times))
    }

    /// Whether to tell a lie that is told once in so many times. Counts it.
    pub fn lies(&self, lie: usize, times: u64) -> bool {
        let lies = self.draws(times);
        if let Some(chaos) = self.gpu.chaos.as_ref().filter(|_| lies) {
            chaos.tell(lie);
        }
        lies
    }
}

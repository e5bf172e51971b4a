// SPDX-License-Identifier: GPL-2.0

//! What registers.rst permits a device to do and this one does not do by itself, at random.
//!
//! Each ring draws its own numbers, so that what it does follows from the seed and its entries.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use crate::bus::Bus;
use crate::bus::Who;
use crate::registers::lie;
use crate::registers::RING_COUNT;

/// The chaos of a device.
pub struct Chaos {
    pub seed: u64,
    /// How often there was each lie.
    counts: [AtomicU32; lie::COUNT],
    rings: [Mutex<Own>; RING_COUNT],
}

/// The chaos of a ring.
#[derive(Default)]
pub struct Own {
    random: u64,
}

impl Own {
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
        let ring = |number| Own {
            random: seed.wrapping_add((number as u64) << 32),
            ..Own::default()
        };
        (seed != 0).then(|| Self {
            seed,
            counts: Default::default(),
            rings: std::array::from_fn(|number| Mutex::new(ring(number))),
        })
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

    fn ring(&self, number: usize) -> MutexGuard<'_, Own> {
        let ring = self.rings[number].lock();
        ring.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Bus<'a> {
    /// The chaos of the device and that of the ring, if a ring has this access to the bus.
    fn chaos(&self) -> Option<(&'a Chaos, MutexGuard<'a, Own>)> {
        match (self.gpu.chaos.as_ref(), self.who) {
            (Some(chaos), Who::Ring { ring, .. }) => Some((chaos, chaos.ring(ring))),
            _ => None,
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

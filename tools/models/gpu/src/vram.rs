// SPDX-License-Identifier: GPL-2.0

//! VRAM, and the aperture through which the bus sees pages of it.
//!
//! The client maps all of the aperture at once and for good. So a page of VRAM that is mapped in
//! the aperture is copied there, and lives there until it is unmapped: engines and the bus see the
//! same bytes. Pages that are not mapped are poison, so a change of the poison was a wrong write.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::RwLockReadGuard;
use std::sync::RwLockWriteGuard;

use vfio_user::memory::Memory;
use vfio_user::memory::PAGE;

use crate::report::Broken;

/// The content of the aperture where nothing is mapped.
pub const POISON: u8 = 0xa5;
/// An aperture that is larger begins as zeroes, and VRAM that is larger and loses its content becomes
/// zeroes: so much poison would fill the memory of the host.
pub const POISONED: u64 = 1 << 30;

/// Which pages are mapped, by their numbers in the aperture and in VRAM.
#[derive(Default)]
struct Homes {
    by_aperture: BTreeMap<u64, u64>,
    by_vram: HashMap<u64, u64>,
}

/// The memory of the device.
pub struct Vram {
    memory: Memory,
    aperture: Arc<Memory>,
    homes: RwLock<Homes>,
}

impl Vram {
    /// VRAM and an aperture of given sizes in bytes.
    pub fn new(vram: u64, aperture: u64) -> io::Result<Self> {
        let aperture = Memory::shared(c"aperture", aperture)?;
        if aperture.bytes() <= POISONED {
            aperture.fill(0, aperture.bytes(), POISON);
        }
        Ok(Self {
            memory: Memory::private(vram)?,
            aperture: Arc::new(aperture),
            homes: RwLock::default(),
        })
    }

    /// Bytes of VRAM.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// The memory of the aperture.
    pub fn aperture(&self) -> &Arc<Memory> {
        &self.aperture
    }

    fn homes(&self) -> RwLockReadGuard<'_, Homes> {
        self.homes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn homes_mut(&self) -> RwLockWriteGuard<'_, Homes> {
        self.homes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a range is inside of VRAM.
    pub fn holds(&self, offset: u64, bytes: u64) -> bool {
        offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes())
    }

    /// Calls a function for each contiguous part of a range: with its memory, the offset in that,
    /// and its start and end in the range.
    ///
    /// The range has to be inside of VRAM.
    fn each(&self, offset: u64, bytes: usize, mut f: impl FnMut(&Memory, u64, usize, usize)) {
        let homes = self.homes();
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            let inside = at % PAGE;
            let end = bytes.min(done + (PAGE - inside) as usize);
            match homes.by_vram.get(&(at / PAGE)) {
                Some(page) => f(&self.aperture, page * PAGE + inside, done, end),
                None => f(&self.memory, at, done, end),
            }
            done = end;
        }
    }

    /// Reads from VRAM, wherever its pages are. The range has to be inside.
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        self.each(offset, to.len(), |memory, at, begin, end| {
            memory.read(at, &mut to[begin..end]);
        });
    }

    /// Writes to VRAM, wherever its pages are. The range has to be inside.
    pub fn write(&self, offset: u64, from: &[u8]) {
        self.each(offset, from.len(), |memory, at, begin, end| {
            memory.write(at, &from[begin..end]);
        });
    }

    /// Clears a range, without taking memory of the host for it. The range has to be inside.
    pub fn clear(&self, offset: u64, bytes: u64) {
        let homes = self.homes();
        let mut at = offset;
        let end = offset + bytes;
        while at < end {
            let page = at / PAGE;
            // Up to the next page that is mapped, or that is not.
            let here = homes.by_vram.get(&page);
            let mut next = page + 1;
            while here.is_none() && next * PAGE < end && !homes.by_vram.contains_key(&next) {
                next += 1;
            }
            let stop = end.min(next * PAGE);
            match here {
                Some(home) => self.aperture.fill(home * PAGE + at % PAGE, stop - at, 0),
                None => {
                    let (first, last) = (at.next_multiple_of(PAGE).min(stop), stop / PAGE * PAGE);
                    let whole = last.saturating_sub(first);
                    if whole == 0 || self.memory.discard(first, whole).is_err() {
                        self.memory.fill(at, stop - at, 0);
                    } else {
                        self.memory.fill(at, first - at, 0);
                        self.memory.fill(last, stop - last, 0);
                    }
                }
            }
            at = stop;
        }
    }

    /// Loses the content, while no page is mapped.
    pub fn lose(&self) {
        let bytes = self.bytes();
        if bytes > POISONED && self.memory.discard(0, bytes).is_ok() {
            return;
        }
        self.memory.fill(0, bytes, POISON);
    }

    /// Calls a function with the memory that has an aligned word, and the offset in that.
    fn word<R>(&self, offset: u64, f: impl FnOnce(&Memory, u64) -> R) -> R {
        let homes = self.homes();
        match homes.by_vram.get(&(offset / PAGE)) {
            Some(page) => f(&self.aperture, page * PAGE + offset % PAGE),
            None => f(&self.memory, offset),
        }
    }

    /// Reads an aligned word in one piece. It has to be inside.
    pub fn load(&self, offset: u64) -> u64 {
        self.word(offset, Memory::load)
    }

    /// Writes an aligned word in one piece. It has to be inside.
    pub fn store(&self, offset: u64, value: u64) {
        self.word(offset, |memory, at| memory.store(at, value));
    }

    /// Adds to an aligned word in one step. It has to be inside.
    pub fn add(&self, offset: u64, addend: u64) {
        self.word(offset, |memory, at| memory.add(at, addend));
    }

    /// Maps pages `first` to `last` of the aperture as wanted, and unmaps the others of them.
    ///
    /// The wanted pages have to be inside of both. Returns the rules that were broken: such a page
    /// is mapped nevertheless, unless it is already mapped elsewhere.
    pub fn remap(&self, first: u64, last: u64, wanted: &BTreeMap<u64, u64>) -> Vec<Broken> {
        let mut homes = self.homes_mut();
        let gone: Vec<(u64, u64)> = homes
            .by_aperture
            .range(first..=last)
            .map(|(&page, &vram)| (page, vram))
            .filter(|(page, vram)| wanted.get(page) != Some(vram))
            .collect();
        let mut buffer = [0; PAGE as usize];
        for (page, vram) in gone {
            self.aperture.read(page * PAGE, &mut buffer);
            self.aperture.fill(page * PAGE, PAGE, POISON);
            self.memory.write(vram * PAGE, &buffer);
            homes.by_aperture.remove(&page);
            homes.by_vram.remove(&vram);
        }
        let mut broken = Vec::new();
        for (&page, &vram) in wanted {
            if homes.by_aperture.contains_key(&page) {
                continue;
            }
            if let Some(other) = homes.by_vram.get(&vram) {
                broken.push(Broken::Twice {
                    vram: vram * PAGE,
                    page: page * PAGE,
                    other: other * PAGE,
                });
                continue;
            }
            if !self.is_unmapped(page) {
                broken.push(Broken::Damaged { page: page * PAGE });
            }
            self.memory.read(vram * PAGE, &mut buffer);
            self.aperture.write(page * PAGE, &buffer);
            homes.by_aperture.insert(page, vram);
            homes.by_vram.insert(vram, page);
            // The content is in the aperture. Memory that cannot be freed stays, unused.
            let _ = self.memory.discard(vram * PAGE, PAGE);
        }
        broken
    }

    /// Whether a page of the aperture is poison, like one that is not mapped.
    fn is_unmapped(&self, page: u64) -> bool {
        self.aperture.is_filled(page * PAGE, PAGE, POISON)
            || self.aperture.bytes() > POISONED && self.aperture.is_filled(page * PAGE, PAGE, 0)
    }

    /// Looks for pages that are not mapped and were written to, and poisons them again.
    pub fn check(&self) -> Vec<Broken> {
        let homes = self.homes_mut();
        let mut broken = Vec::new();
        let mut from = 0;
        // Pages that were never touched take no memory, and must not be touched here.
        while let Some((begin, end)) = self.aperture.data(from) {
            for page in begin / PAGE..end / PAGE {
                if !homes.by_aperture.contains_key(&page) && !self.is_unmapped(page) {
                    self.aperture.fill(page * PAGE, PAGE, POISON);
                    broken.push(Broken::Damaged { page: page * PAGE });
                }
            }
            from = end;
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vram() -> Vram {
        Vram::new(16 * PAGE, 4 * PAGE).unwrap()
    }

    fn map(pages: &[(u64, u64)]) -> BTreeMap<u64, u64> {
        pages.iter().copied().collect()
    }

    #[test]
    fn a_mapped_page_lives_in_the_aperture() {
        let vram = vram();
        vram.write(5 * PAGE - 3, b"abcdef");
        assert_eq!(vram.remap(0, 3, &map(&[(2, 5), (3, 4)])), []);
        let mut seen = [0; 3];
        vram.aperture().read(2 * PAGE, &mut seen);
        assert_eq!(&seen, b"def");
        vram.aperture().read(4 * PAGE - 3, &mut seen);
        assert_eq!(&seen, b"abc");
        // The bus writes, an engine reads, and the other way round.
        vram.aperture().write(2 * PAGE, b"DEF");
        let mut all = [0; 6];
        vram.read(5 * PAGE - 3, &mut all);
        assert_eq!(&all, b"abcDEF");
        vram.add(5 * PAGE + 8, 7);
        assert_eq!(vram.aperture().load(2 * PAGE + 8), 7);
        assert_eq!(vram.load(5 * PAGE + 8), 7);
        // It goes back, and poison stays.
        assert_eq!(vram.remap(0, 3, &map(&[(3, 4)])), []);
        assert!(vram.aperture().is_filled(2 * PAGE, PAGE, POISON));
        vram.read(5 * PAGE - 3, &mut all);
        assert_eq!(&all, b"abcDEF");
        assert_eq!(vram.load(5 * PAGE + 8), 7);
    }

    #[test]
    fn only_the_range_is_looked_at() {
        let vram = vram();
        vram.remap(0, 3, &map(&[(0, 0), (1, 1)]));
        vram.remap(1, 3, &map(&[(2, 2)]));
        let homes = vram.homes();
        assert_eq!(homes.by_aperture, map(&[(0, 0), (2, 2)]));
    }

    #[test]
    fn a_page_can_change_places_in_one_step() {
        let vram = vram();
        vram.store(7 * PAGE, 99);
        vram.remap(0, 3, &map(&[(0, 7)]));
        assert_eq!(vram.remap(0, 3, &map(&[(1, 7)])), []);
        assert_eq!(vram.aperture().load(PAGE), 99);
        assert!(vram.aperture().is_filled(0, PAGE, POISON));
    }

    #[test]
    fn a_page_is_mapped_once() {
        let vram = vram();
        vram.remap(0, 0, &map(&[(0, 7)]));
        let twice = Broken::Twice {
            vram: 7 * PAGE,
            page: PAGE,
            other: 0,
        };
        assert_eq!(vram.remap(1, 1, &map(&[(1, 7)])), [twice]);
        assert!(vram.aperture().is_filled(PAGE, PAGE, POISON));
    }

    #[test]
    fn a_write_to_nothing_is_found_once() {
        let vram = vram();
        vram.remap(0, 3, &map(&[(0, 0)]));
        vram.aperture().write(10, &[1]);
        assert_eq!(vram.check(), []);
        vram.aperture().write(3 * PAGE + 10, &[1]);
        assert_eq!(vram.check(), [Broken::Damaged { page: 3 * PAGE }]);
        assert_eq!(vram.check(), []);
        vram.aperture().write(3 * PAGE + 10, &[1]);
        let damaged = Broken::Damaged { page: 3 * PAGE };
        assert_eq!(vram.remap(3, 3, &map(&[(3, 3)])), [damaged]);
    }

    #[test]
    fn cleared_ranges_are_zero_and_nothing_else_is() {
        for (offset, bytes) in [
            (0, 16 * PAGE),
            (PAGE, PAGE),
            (100, 200),
            (3 * PAGE - 1, 2),
            (2 * PAGE + 7, 9 * PAGE + 2),
        ] {
            let vram = vram();
            vram.remap(0, 3, &map(&[(0, 4), (3, 5), (2, 9)]));
            vram.write(0, &[0xff; 16 * PAGE as usize]);
            vram.clear(offset, bytes);
            let mut all = vec![1; 16 * PAGE as usize];
            vram.read(0, &mut all);
            for (at, &byte) in (0..).zip(&all) {
                let inside = (offset..offset + bytes).contains(&at);
                assert_eq!(byte, if inside { 0 } else { 0xff }, "{at:#x}");
            }
        }
    }
}

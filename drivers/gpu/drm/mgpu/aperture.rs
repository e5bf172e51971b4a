// SPDX-License-Identifier: GPL-2.0

//! The aperture: windows for accesses to VRAM by the CPU and by other devices.
//!
//! The aperture is context 0 of the device. Its page tables are in driver memory and map pages of
//! the BAR to pages of VRAM. After an invalidation the device reads them again and reports when
//! this is done.
//!
//! Each window owns a part of the BAR, in several pieces if needed. The part is free for other
//! windows once the invalidation after the close is done. If the device does not complete this
//! invalidation, the content of the BAR is unknown. No window is then created before a reset of the
//! device.
//!
//! A page of VRAM is in one window at a time.
//!
//! A reset by the PCI core closes all windows. A reset by the driver leaves them open. After either
//! reset the device reads all of the tables again, so all windows are where they were. No window is
//! created before and during a reset by the PCI core. A window dropped during the reset is closed
//! when the device reads the tables.
//!
//! No window uses the last pages of the BAR. After a failed move the CPU sees an object through
//! them, some pages at a time and wherever it is in VRAM. See [`ScratchWindow`].
//!
//! # Locking
//!
//! One mutex protects the writes of page tables. The mutex of
//! [`Invalidator`](crate::invalidate::Invalidator) is inside of it. Both are taken with the
//! reservation of an object held. Both are also taken after a failed move, while other tasks wait
//! for the fence of the move. So nothing is allocated while they are held. A page fault calls
//! [`Aperture::map`] with the `mmap_lock` held. This call only tries to take the mutexes for a
//! limited time.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma_buf::exporter::mapping::RangeList,
    drm::{
        gem::aperture::Wait,
        ttm::{
            ScratchWindow,
            SCRATCH_PAGES, //
        },
        vram::{
            Allocation,
            Allocator,
            Range,
            Ranges, //
        }, //
    },
    new_mutex,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sizes::SZ_1G,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

use crate::{
    contexts::{
        Contexts,
        APERTURE, //
    },
    invalidate::{
        Invalidator,
        Telling, //
    },
    memory::{
        Words,
        WORDS, //
    },
    pagetable::{
        LEAF,
        VALID,
        VRAM, //
    }, //
};

/// The maximum number of bytes used of the BAR: as many as one second-level table maps.
const MOST: u64 = SZ_1G as u64;

/// The number of bytes without windows at the end of the BAR.
const SCRATCH: u64 = (SCRATCH_PAGES * PAGE_SIZE) as u64;

/// How long a failed move waits for a reset of the device by another task, in milliseconds.
const RESET_TIME: i64 = 10_000;

/// How often a page fault tries to take a lock.
const ATTEMPTS: usize = 10;

/// The maximum number of pieces to invalidate one by one. For more pieces, one invalidation covers
/// all addresses from the first to the last piece.
const PIECES: usize = 4;

/// The address in an entry.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The page tables.
struct Tables {
    root: Words,
    /// The only second-level table.
    middle: Words,
    /// The last-level tables.
    leaves: KVVec<Words>,
}

impl Tables {
    fn new(dev: &Device<Bound>, len: u64) -> Result<Self> {
        let this = Self {
            root: Words::new(dev, WORDS)?,
            middle: Words::new(dev, WORDS)?,
            leaves: {
                let mut leaves = KVVec::new();

                for _ in 0..(len >> PAGE_SHIFT).div_ceil(WORDS as u64) {
                    leaves.push(Words::new(dev, WORDS)?, GFP_KERNEL)?;
                }
                leaves
            },
        };

        this.root.write(0, [this.middle.address(0) | VALID])?;
        let tables = this.leaves.iter().map(|table| table.address(0) | VALID);
        this.middle.write(0, tables)?;
        Ok(this)
    }

    /// Writes the entries of the pages of a piece of the BAR.
    fn write(&self, bar: &Range, vram: &mut impl Iterator<Item = u64>) -> Result {
        let (mut page, end) = (
            usize::try_from(bar.offset >> PAGE_SHIFT)?,
            usize::try_from((bar.offset + bar.len) >> PAGE_SHIFT)?,
        );

        while page < end {
            let (table, first) = (page / WORDS, page % WORDS);
            let count = (WORDS - first).min(end - page);

            self.leaves
                .get(table)
                .ok_or(ERANGE)?
                .write(first, vram.by_ref().take(count))?;
            page += count;
        }
        Ok(())
    }

    /// Finds where the BAR shows pages of VRAM and returns the number of pages found.
    fn find(&self, vram: &[u64], places: &mut [u64]) -> Result<usize> {
        let mut found = 0;

        for (index, table) in self.leaves.iter().enumerate() {
            for page in 0..WORDS {
                let entry = table.read(page)?;
                if entry & VALID == 0 {
                    continue;
                }

                let offset = entry & ADDRESS;
                let mut all = places.iter_mut().zip(vram);
                if let Some((place, _)) = all.find(|(_, wanted)| **wanted == offset) {
                    *place = ((index * WORDS + page) << PAGE_SHIFT) as u64;
                    found += 1;
                }
            }
        }
        Ok(found)
    }

    /// Calls `f` with the entry of each page of a piece of the BAR.
    fn read(&self, bar: &Range, mut f: impl FnMut(u64)) -> Result {
        for offset in (bar.offset..bar.offset + bar.len).step_by(PAGE_SIZE) {
            let page = usize::try_from(offset >> PAGE_SHIFT)?;

            f(self
                .leaves
                .get(page / WORDS)
                .ok_or(ERANGE)?
                .read(page % WORDS)?);
        }
        Ok(())
    }
}

/// The state of all windows.
struct State {
    tables: Tables,
    /// A bitmap of the VRAM pages. A bit is set if a window shows the page.
    shown: KVVec<u64>,
}

impl State {
    /// Calls `f` with the word and the bits of each run of pages until `f` returns false. Returns
    /// whether `f` never did.
    fn all(&mut self, vram: &[Range], mut f: impl FnMut(&mut u64, u64) -> bool) -> bool {
        vram.iter().all(|range| {
            let (mut page, end) = (
                range.offset >> PAGE_SHIFT,
                (range.offset + range.len) >> PAGE_SHIFT,
            );

            while page < end {
                let count = (64 - page % 64).min(end - page);
                let bits = (u64::MAX >> (64 - count)) << (page % 64);

                // CAST: Indices of the vector fit `usize`.
                let word = self.shown.get_mut((page / 64) as usize);
                if !word.is_some_and(|word| f(word, bits)) {
                    return false;
                }
                page += count;
            }
            true
        })
    }

    /// Marks pages as shown by a window. Returns false and marks none if another window shows some
    /// of them.
    fn take(&mut self, vram: &[Range]) -> bool {
        let is_free = self.all(vram, |word, bits| *word & bits == 0);

        if is_free {
            self.all(vram, |word, bits| {
                *word |= bits;
                true
            });
        }
        is_free
    }
}

/// Returns whether a window shows the page at an offset.
fn is_shown(shown: &[u64], offset: u64) -> bool {
    let page = offset >> PAGE_SHIFT;

    // CAST: This is a page of VRAM, so its word exists.
    shown
        .get((page / 64) as usize)
        .is_some_and(|word| word & 1 << (page % 64) != 0)
}

/// Marks the page at an offset as not shown.
fn give_back(shown: &mut [u64], offset: u64) {
    let page = offset >> PAGE_SHIFT;

    // CAST: The page was marked before, so its word exists.
    if let Some(word) = shown.get_mut((page / 64) as usize) {
        *word &= !(1 << (page % 64));
    }
}

/// Takes a lock or gives up if another task holds it for long.
fn patient<T>(mut take: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..ATTEMPTS {
        if let Some(guard) = take() {
            return Some(guard);
        }
        fsleep(Delta::from_micros(500));
    }
    None
}

/// The aperture of a device.
#[pin_data]
pub(crate) struct Aperture {
    invalidator: Arc<Invalidator>,
    /// The allocator of the BAR.
    bar: Arc<Allocator>,
    /// The end of the BAR behind the part of the allocator. No window uses it.
    scratch: Range,
    /// The PCI core is about to reset the device.
    is_closed: Atomic<bool>,
    #[pin]
    state: Mutex<State>,
}

impl Aperture {
    /// Creates the aperture of a device after a reset. `len` is the size of its BAR and `vram` the
    /// size of VRAM, both in bytes.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(
        dev: &Device<Bound>,
        contexts: &Contexts,
        len: u64,
        vram: u64,
    ) -> Result<Arc<Self>> {
        let len = len.min(MOST);
        let tables = Tables::new(dev, len)?;
        let scratch = Range {
            at: 0,
            offset: len.checked_sub(SCRATCH).ok_or(EINVAL)?,
            len: SCRATCH,
        };
        let bar = Allocator::new(0..scratch.offset)?;
        let words = usize::try_from((vram >> PAGE_SHIFT).div_ceil(64))?;
        let shown = KVVec::from_elem(0, words, GFP_KERNEL)?;

        contexts.set_root(APERTURE, tables.root.address(0))?;
        Arc::pin_init(
            pin_init!(Self {
                invalidator: contexts.invalidator().clone(),
                bar,
                scratch,
                is_closed: Atomic::new(false),
                state <- new_mutex!(State { tables, shown }, "mgpu::Aperture"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the size of the part for windows, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.bar.size()
    }

    /// Returns the number of bytes not used by windows.
    pub(crate) fn free(&self) -> u64 {
        self.bar.avail()
    }

    /// Sets whether the creation of windows is refused.
    pub(crate) fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Relaxed);
    }

    /// Creates a window for an object and appends its pieces to `pieces`, see
    /// [`kernel::drm::gem::aperture::Aperture::map`].
    ///
    /// # Errors
    ///
    /// - `EBUSY` if the device is slow or is being reset.
    /// - `ENOSPC` if there is no room.
    /// - `EIO` if the aperture does not work any more, `ENODEV` if the device is gone.
    pub(crate) fn map(&self, vram: &Ranges, pieces: &mut RangeList, wait: Wait) -> Result<Window> {
        let part = self.bar.alloc(vram.bytes_below(u64::MAX))?;
        for piece in part.ranges().ranges() {
            pieces.push_piece(piece.offset, piece.len)?;
        }

        // The holder of a lock may be waiting for a slow device or resetting it.
        let (mut state, mut telling) = match wait {
            Wait::Long => (self.state.lock(), self.invalidator.lock()),
            Wait::Short => (
                patient(|| self.state.try_lock()).ok_or(EBUSY)?,
                patient(|| self.invalidator.try_lock()).ok_or(EBUSY)?,
            ),
        };
        if self.invalidator.is_broken() {
            return Err(EIO);
        }
        if telling.check().is_err() || self.is_closed.load(Relaxed) {
            return Err(EBUSY);
        }
        // A page of VRAM belongs to one object and an object has one window.
        if kernel::warn_on!(!state.take(vram.ranges())) {
            return Err(EIO);
        }
        let pages = vram
            .ranges()
            .iter()
            .flat_map(|range| (range.offset..range.offset + range.len).step_by(PAGE_SIZE))
            .map(|offset| offset | VALID | VRAM | LEAF);
        let ret = self.change(&state.tables, &mut telling, part.ranges().ranges(), pages);
        drop((telling, state));

        let window = Window(part);
        match ret {
            Ok(()) => Ok(window),
            Err(e) => {
                // The first error is returned.
                let _ = self.unmap(window);
                Err(e)
            }
        }
    }

    /// Closes a window.
    ///
    /// # Errors
    ///
    /// The errors of the invalidation. If the device is gone, the BAR shows nothing. After another
    /// error no window is created until a reset. The device reads the tables again after this
    /// reset.
    pub(crate) fn unmap(&self, Window(part): Window) -> Result {
        let mut state = self.state.lock();
        let State { tables, shown } = &mut *state;
        let mut telling = self.invalidator.lock();

        for piece in part.ranges().ranges() {
            tables.read(piece, |entry| {
                if entry & VALID != 0 {
                    give_back(shown, entry & ADDRESS);
                }
            })?;
        }
        // The part is free for other windows after that.
        self.change(
            tables,
            &mut telling,
            part.ranges().ranges(),
            core::iter::repeat(0),
        )
    }

    /// Does [`ScratchWindow::show`].
    ///
    /// # Errors
    ///
    /// Those of [`Telling::check`].
    fn try_show(&self, vram: &[u64], f: &mut dyn FnMut(&[u64])) -> Result {
        let mut state = self.state.lock();
        let mut telling = self.invalidator.lock();
        let State { tables, shown } = &mut *state;
        let mut places = [0; SCRATCH_PAGES];
        let places = places.get_mut(..vram.len()).ok_or(EINVAL)?;

        telling.check()?;
        for (index, place) in places.iter_mut().enumerate() {
            *place = self.scratch.offset + (index * PAGE_SIZE) as u64;
        }
        let elsewhere = vram
            .iter()
            .filter(|offset| is_shown(shown, **offset))
            .count();
        if elsewhere != 0 && tables.find(vram, places)? != elsewhere {
            return Err(EIO);
        }

        let scratch = core::slice::from_ref(&self.scratch);
        let entries = places.iter().zip(vram).map(|(place, offset)| {
            if *place >= self.scratch.offset {
                offset | VALID | VRAM | LEAF
            } else {
                0
            }
        });
        let ret = self.change(tables, &mut telling, scratch, entries);
        if ret.is_ok() {
            f(places);
        }
        // Also after an error, because the device may have read some of the entries. If the device
        // acknowledges this invalidation, it was present all the time.
        let zeroes = core::iter::repeat_n(0, SCRATCH_PAGES);
        ret.and(self.change(tables, &mut telling, scratch, zeroes))
    }

    /// Writes entries and invalidates them on the device.
    fn change(
        &self,
        tables: &Tables,
        telling: &mut Telling<'_>,
        part: &[Range],
        mut entries: impl Iterator<Item = u64>,
    ) -> Result {
        for piece in part {
            tables.write(piece, &mut entries)?;
        }

        if part.len() <= PIECES {
            return part
                .iter()
                .try_for_each(|piece| telling.invalidate(APERTURE, piece.offset, piece.len));
        }
        let start = part.iter().map(|piece| piece.offset).min().unwrap_or(0);
        let end = part
            .iter()
            .map(|piece| piece.offset + piece.len)
            .max()
            .unwrap_or(0);
        telling.invalidate(APERTURE, start, end - start)
    }
}

impl ScratchWindow for Aperture {
    fn show(&self, pages: &[u64], f: &mut dyn FnMut(&[u64])) -> Result {
        let since = Instant::<Monotonic>::now();

        loop {
            match self.try_show(pages, &mut *f) {
                Err(e) if e == EBUSY && since.elapsed().as_millis() < RESET_TIME => {
                    fsleep(Delta::from_millis(10));
                }
                ret => return ret,
            }
        }
    }
}

/// A window: its part of the BAR.
pub(crate) struct Window(Allocation);

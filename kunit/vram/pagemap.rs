// SPDX-License-Identifier: GPL-2.0

//! Memory of a process in the BAR of a device. The driver copies by the CPU, and a test decides
//! where it allocates.

use crate::{
    anonymous::{
        content,
        Anonymous, //
    },
    bench::{
        BAR,
        PAGE, //
    }, //
};
use core::ops::Range;
use kernel::{
    bindings,
    device::{
        Bound,
        Core, //
    },
    drm::{
        self,
        devres::RegistrationInit,
        gem,
        pagemap::{
            self,
            Linear,
            PageMap,
            Peer,
            Registration,
            Segments, //
        },
        vram::{
            Allocation,
            Allocator,
            BarMapping, //
        }, //
    },
    page::PAGE_SHIFT,
    pci,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// The BAR of the device that has less than a page.
const REGISTERS: u32 = 0;

/// No offset.
const NONE: u64 = u64::MAX;

/// Shared between a test and the driver: the test controls the driver, which counts its calls.
pub(crate) struct Notified {
    /// The offset at which the driver allocates memory; [`NONE`] for any.
    place: Atomic<u64>,
    /// The offset that the driver reports for an allocation; [`NONE`] for the true one.
    lie: Atomic<u64>,
    /// Whether copies to the device fail.
    fails: Atomic<bool>,
    /// Whether copies to the device use a BAR that is smaller than a page.
    small: Atomic<bool>,
    /// The number of allocations.
    allocs: Atomic<u64>,
    /// The number of bytes that were copied to the device, copied back, and zeroed.
    to_dev: Atomic<u64>,
    pub(crate) to_ram: Atomic<u64>,
    zeroed: Atomic<u64>,
    /// The length of the longest piece that was copied to the device, and the offset of the last
    /// one.
    longest: Atomic<u64>,
    last: Atomic<u64>,
}

struct Memory<'a> {
    vram: Arc<Allocator>,
    window: Arc<BarMapping<'a>>,
    registers: BarMapping<'a>,
    notified: Arc<Notified>,
}

/// An allocation, and the offset that the driver reports for it, if it is a false one.
struct Piece(Allocation, Option<u64>);

struct Svm;

impl pagemap::Driver for Svm {
    type Drm = Driver;
    type Data<'a> = Memory<'a>;
    type Alloc = Piece;
    type View = Linear;

    fn alloc(_drm: &drm::Device<Driver>, memory: &Memory<'_>, size: usize) -> Result<Piece> {
        memory.notified.allocs.add(1, Relaxed);
        let alloc = match memory.notified.place.load(Relaxed) {
            NONE => memory.vram.alloc_block(size)?,
            at => memory.vram.reserve(at..at + size as u64)?,
        };
        let lie = memory.notified.lie.load(Relaxed);

        Ok(Piece(alloc, (lie != NONE).then_some(lie)))
    }

    fn offset(piece: &Piece) -> Option<u64> {
        piece.1.or_else(|| piece.0.ranges().offset(0))
    }

    fn copy_to_dev(memory: &Memory<'_>, segments: Segments<'_>) -> Result {
        let notified = &memory.notified;

        if notified.fails.load(Relaxed) {
            return Err(EIO);
        }
        for segment in segments.clone() {
            let len = segment.len as u64;

            match segment.peer {
                Peer::Zero => notified.zeroed.add(len, Relaxed),
                Peer::Dma(_) => notified.to_dev.add(len, Relaxed),
            }
            notified
                .longest
                .store(notified.longest.load(Relaxed).max(len), Relaxed);
            notified.last.store(segment.offset, Relaxed);
        }
        if notified.small.load(Relaxed) {
            return segments.copy_by_cpu(&memory.registers, |_| Some(0));
        }
        segments.copy_by_cpu(&memory.window, Some)
    }

    fn copy_to_ram(memory: &Memory<'_>, segments: Segments<'_>) -> Result {
        for segment in segments.clone() {
            memory.notified.to_ram.add(segment.len as u64, Relaxed);
        }
        segments.copy_by_cpu(&memory.window, Some)
    }
}

struct Loaded<'a> {
    pages: Registration<'a, Svm>,
    window: Arc<BarMapping<'a>>,
}

struct Init {
    vram: Arc<Allocator>,
    notified: Arc<Notified>,
    has_aliases: bool,
}

impl RegistrationInit<Driver> for Init {
    fn init<'a>(
        self,
        pdev: &'a pci::Device<Bound>,
        drm: drm::devres::Unregistered<'_, 'a, Driver>,
    ) -> impl PinInit<Loaded<'a>, Error> {
        let window = Arc::new(BarMapping::new(pdev, BAR, c"vram_kunit")?, GFP_KERNEL)?;
        let bar = if self.has_aliases {
            Some((pdev.p2pdma_provider(BAR)?.take_pages()?, Linear))
        } else {
            None
        };
        let size = self.vram.size() as usize;
        let memory = Memory {
            vram: self.vram,
            window: window.clone(),
            registers: BarMapping::new(pdev, REGISTERS, c"vram_kunit")?,
            notified: self.notified,
        };

        Ok(Loaded {
            pages: Registration::new(&drm, size, bar, Ok(memory))?,
            window,
        })
    }
}

struct Bo;

impl gem::DriverObject for Bo {
    type Driver = Driver;
    type Args = ();

    fn new(_dev: &drm::Device<Driver>, _size: usize, _args: ()) -> impl PinInit<Self, Error> {
        Ok::<_, Error>(Self)
    }
}

driver! { pci, (), Loaded, gem::Object<Bo>, c"vram_kunit", c"VRAM that processes have" }

/// A device with the BAR as VRAM, until it is dropped.
pub(crate) struct Card {
    vram: Arc<Allocator>,
    pub(crate) notified: Arc<Notified>,
    registration: drm::devres::Registration<Driver>,
}

impl Card {
    /// Makes a device with `hidden` bytes of VRAM behind what the BAR shows.
    pub(crate) fn new(
        pdev: &pci::Device<Core<'_>>,
        hidden: u64,
        has_aliases: bool,
    ) -> Result<Self> {
        if has_aliases {
            pdev.add_p2pdma_pages(BAR)?;
        }

        let pdev: &pci::Device<Bound> = pdev;
        let vram = Allocator::new(0..pdev.resource_len(BAR)? + hidden)?;
        let notified = Arc::new(
            Notified {
                place: Atomic::new(NONE),
                lie: Atomic::new(NONE),
                fails: Atomic::new(false),
                small: Atomic::new(false),
                allocs: Atomic::new(0),
                to_dev: Atomic::new(0),
                to_ram: Atomic::new(0),
                zeroed: Atomic::new(0),
                longest: Atomic::new(0),
                last: Atomic::new(NONE),
            },
            GFP_KERNEL,
        )?;
        let drm = drm::UnregisteredDevice::<Driver>::new(pdev, Ok(()))?;
        let init = Init {
            vram: vram.clone(),
            notified: notified.clone(),
            has_aliases,
        };

        Ok(Self {
            registration: drm::devres::Registration::new(pdev, drm, init, 0)?,
            vram,
            notified,
        })
    }

    fn with<R>(&self, f: impl FnOnce(&Loaded<'_>) -> R) -> Result<R> {
        self.registration.with_data(f).ok_or(ENODEV)
    }

    /// Moves pages of a process to the device.
    pub(crate) fn migrate(&self, memory: &Anonymous, first: usize, count: usize) -> Result {
        let start = memory.addr + first * PAGE as usize;

        self.migrate_range(memory, start..start + count * PAGE as usize)
    }

    fn migrate_range(&self, memory: &Anonymous, range: Range<usize>) -> Result {
        pagemap::migrate::<Svm>(
            self.registration.device(),
            |loaded| Some(&loaded.pages),
            memory.mm(),
            range,
        )
    }

    /// As [`Self::migrate`], to `place` of VRAM.
    pub(crate) fn migrate_to(
        &self,
        place: u64,
        memory: &Anonymous,
        first: usize,
        count: usize,
    ) -> Result {
        self.notified.place.store(place, Relaxed);
        let result = self.migrate(memory, first, count);
        self.notified.place.store(NONE, Relaxed);

        result
    }

    /// Returns how many bytes of VRAM are in use, after all pending releases.
    pub(crate) fn used(&self) -> Result<u64> {
        self.with(|loaded| loaded.pages.flush())?;
        Ok(self.vram.size() - self.vram.avail())
    }

    /// Returns whether VRAM has the bytes of a page at `offset`: those of [`Anonymous::fill`], or
    /// zeroes.
    pub(crate) fn shows(&self, offset: u64, seed: Option<u64>, page: usize) -> Result<bool> {
        let mut bytes = KVec::from_elem(0u8, PAGE as usize, GFP_KERNEL)?;

        self.with(|loaded| loaded.window.read(offset, &mut bytes))??;
        Ok(bytes[..] == content(seed, page)?[..])
    }

    /// Returns the physical address at which peers access the page `index` of VRAM.
    fn alias(&self, index: usize) -> Result<Option<u64>> {
        Ok(self.aliases(index)?.map(|(first, _)| first))
    }

    /// Returns that address, and how many pages from `index` on have consecutive addresses.
    fn aliases(&self, index: usize) -> Result<Option<(u64, usize)>> {
        self.with(|loaded| aliases(&loaded.pages, index))
    }
}

/// Returns the device-private page `index`.
fn page_of(pages: &PageMap<Svm>, index: usize) -> *mut bindings::page {
    // SAFETY: The structure is valid, and so are its pages.
    unsafe {
        let pgmap = (*pages.as_raw()).pagemap;
        let first = (*pgmap).__bindgen_anon_1.range.as_ref().start as usize >> PAGE_SHIFT;

        bindings::pfn_to_page(first + index)
    }
}

/// Asks for the alias of a page as `hmm_range_fault()` does.
fn aliases(pages: &PageMap<Svm>, index: usize) -> Option<(u64, usize)> {
    let mut count = 1;

    // SAFETY: The structure is valid, and so are its pages. Those of the BAR have page maps as
    // well.
    unsafe {
        let pgmap = (*pages.as_raw()).pagemap;
        let p2p_page = (*(*pgmap).ops).p2p_page?;
        let alias = p2p_page(pgmap, index, &mut count);

        if alias.is_null()
            || (*bindings::page_pgmap(alias)).type_
                != bindings::memory_type_MEMORY_DEVICE_PCI_P2PDMA
        {
            return None;
        }
        Some((bindings::page_to_phys(alias), count))
    }
}

/// A reference to a page of VRAM that a process has. It stands for the one that a task is about to
/// put which has migrated the page back, or unmapped it.
struct LastRef(*mut bindings::folio);

impl LastRef {
    fn new(pages: &PageMap<Svm>, index: usize) -> Self {
        // The page is in use, on its own.
        let this = Self(page_of(pages, index).cast());

        this.count().add(1, Relaxed);
        this
    }

    fn count(&self) -> &Atomic<i32> {
        // SAFETY: The page is valid while it has this reference.
        unsafe {
            let page = self.0.cast::<bindings::page>();

            Atomic::from_ptr(&raw mut (*page)._refcount.counter)
        }
    }
}

impl Drop for LastRef {
    fn drop(&mut self) {
        if self.count().fetch_sub(1, Full) == 1 {
            // SAFETY: This was the last reference.
            unsafe { bindings::__folio_put(self.0) };
        }
    }
}

#[kunit_tests(vram_pagemap)]
mod tests {
    use super::*;
    use crate::{
        anonymous::LARGEST,
        bench::with_device, //
    };

    /// A read by the CPU moves the whole chunk of the page back, and no other chunk.
    #[test]
    fn a_fault_brings_back_one_chunk() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let start = pdev.resource_start(BAR)?;
            let memory = Anonymous::filled(32, 1)?;

            card.migrate_to(64 * PAGE, &memory, 0, 16)?;
            card.migrate_to(256 * PAGE, &memory, 16, 16)?;
            check_eq!(card.used()?, 32 * PAGE);
            check_eq!(card.notified.to_dev.load(Relaxed), 32 * PAGE);
            for page in 0..16 {
                let (first, second) = (64 + page, 256 + page);

                check!(card.shows(first as u64 * PAGE, Some(1), page)?);
                check!(card.shows(second as u64 * PAGE, Some(1), 16 + page)?);
                check_eq!(card.alias(first)?, Some(start + first as u64 * PAGE));
                check_eq!(card.alias(second)?, Some(start + second as u64 * PAGE));
            }

            check!(memory.holds(Some(1), 3)?);
            check_eq!(card.notified.to_ram.load(Relaxed), 16 * PAGE);
            check_eq!(card.used()?, 16 * PAGE);

            // The CPU may change the memory that has moved back.
            check!(memory.all_hold(Some(1))?);
            check_eq!(card.notified.to_ram.load(Relaxed), 32 * PAGE);
            check_eq!(card.used()?, 0);
            memory.fill(2)?;
            card.migrate_to(0, &memory, 0, 32)?;
            check!(card.shows(31 * PAGE, Some(2), 31)?);
            check!(memory.all_hold(Some(2))?);
            check_eq!(card.used()?, 0);
            Ok(())
        })
    }

    /// A range that is not aligned moves in several chunks, and the memory around it stays.
    #[test]
    fn a_part_moves_in_aligned_chunks() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let memory = Anonymous::filled(8, 1)?;

            card.migrate(&memory, 1, 5)?;
            check_eq!(card.used()?, 5 * PAGE);
            check!(memory.holds(Some(1), 0)?);
            check!(memory.holds(Some(1), 6)?);
            check_eq!(card.notified.to_ram.load(Relaxed), 0);

            check!(memory.holds(Some(1), 4)?);
            check_eq!(card.notified.to_ram.load(Relaxed), 2 * PAGE);
            check_eq!(card.used()?, 3 * PAGE);
            // Chunks in VRAM stay there, and the rest moves.
            card.migrate(&memory, 0, 8)?;
            check_eq!(card.used()?, 8 * PAGE);
            check!(memory.all_hold(Some(1))?);
            check_eq!(card.used()?, 0);
            Ok(())
        })
    }

    /// Memory that was never touched reads as zero, whatever VRAM had before.
    #[test]
    fn untouched_memory_is_zero() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let all = (card.vram.size() / PAGE) as usize;
            let others = Anonymous::filled(all, 1)?;

            card.migrate(&others, 0, all)?;
            check_eq!(card.used()?, card.vram.size());
            drop(others);
            check_eq!(card.used()?, 0);

            let memory = Anonymous::new(LARGEST)?;
            let allocs = card.notified.allocs.load(Relaxed);
            card.migrate(&memory, 0, LARGEST)?;
            check_eq!(card.notified.allocs.load(Relaxed), allocs + 1);
            check_eq!(card.notified.zeroed.load(Relaxed), LARGEST as u64 * PAGE);
            check_eq!(card.used()?, LARGEST as u64 * PAGE);
            let at = card.notified.last.load(Relaxed) & !(LARGEST as u64 * PAGE - 1);
            for page in 0..LARGEST {
                check!(card.shows(at + page as u64 * PAGE, None, page)?);
            }
            check_eq!(card.notified.to_ram.load(Relaxed), 0);
            check!(memory.all_hold(None)?);
            check_eq!(card.notified.to_ram.load(Relaxed), LARGEST as u64 * PAGE);

            let memory = Anonymous::new(4)?;
            card.migrate_to(PAGE, &memory, 1, 1)?;
            check!(card.shows(PAGE, None, 1)?);
            check!(memory.all_hold(None)?);
            check_eq!(card.used()?, 0);
            Ok(())
        })
    }

    /// A page that no process has any more is not evicted: it is about to be freed, and its charge
    /// may be that of another page already.
    #[test]
    fn a_page_without_users_is_left_alone() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let memory = Anonymous::filled(1, 1)?;
            let evict = || card.with(|loaded| loaded.pages.evict(0));

            card.migrate_to(0, &memory, 0, 1)?;
            let last = card.with(|loaded| LastRef::new(&loaded.pages, 0))?;
            // The reference is one that the process does not have.
            check_eq!(evict()?, Err(EBUSY));
            drop(memory);
            check_eq!(card.used()?, PAGE);
            let copied = card.notified.to_ram.load(Relaxed);
            check_eq!(evict()?, Err(EBUSY));
            check_eq!(card.notified.to_ram.load(Relaxed), copied);
            drop(last);
            check_eq!(card.used()?, 0);
            Ok(())
        })
    }

    /// A page inside of a large folio that was freed can be used on its own.
    // A large folio, an entry of a PMD, is larger than VRAM for pages of 64 KiB.
    #[cfg(all(CONFIG_TRANSPARENT_HUGEPAGE, not(CONFIG_ARM64_64K_PAGES)))]
    #[test]
    fn a_free_large_folio_leaves_nothing() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let start = pdev.resource_start(BAR)?;
            let memory = Anonymous::filled(LARGEST, 1)?;

            card.migrate_to(0, &memory, 0, LARGEST)?;
            // The folio moved in one piece.
            check_eq!(card.notified.longest.load(Relaxed), LARGEST as u64 * PAGE);
            for page in 0..LARGEST {
                check!(card.shows(page as u64 * PAGE, Some(1), page)?);
            }
            drop(memory);
            check_eq!(card.used()?, 0);
            check_eq!(card.notified.to_ram.load(Relaxed), 0);

            let memory = Anonymous::filled(2, 2)?;
            card.migrate_to(3 * PAGE, &memory, 0, 1)?;
            check_eq!(card.used()?, PAGE);
            check!(card.shows(3 * PAGE, Some(2), 0)?);
            check!(card.shows(2 * PAGE, Some(1), 2)?);
            check_eq!(card.alias(3)?, Some(start + 3 * PAGE));
            card.with(|loaded| loaded.pages.evict(3 * PAGE))??;
            check_eq!(card.notified.to_ram.load(Relaxed), PAGE);
            check_eq!(card.used()?, 0);
            check!(memory.all_hold(Some(2))?);
            Ok(())
        })
    }

    /// A large folio moves back in one piece, even if a part of it was freed before.
    // As above.
    #[cfg(all(CONFIG_TRANSPARENT_HUGEPAGE, not(CONFIG_ARM64_64K_PAGES)))]
    #[test]
    fn a_large_folio_moves_back() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let memory = Anonymous::filled(LARGEST, 1)?;

            card.migrate(&memory, 0, LARGEST)?;
            check_eq!(card.notified.longest.load(Relaxed), LARGEST as u64 * PAGE);
            check!(memory.all_hold(Some(1))?);
            check_eq!(card.used()?, 0);

            memory.fill(2)?;
            card.migrate(&memory, 0, LARGEST)?;
            // SAFETY: The process has the memory; the test does not access these pages any more.
            unsafe { bindings::vm_munmap(memory.addr, 16 * PAGE as usize) };
            for page in 16..LARGEST {
                check!(memory.holds(Some(2), page)?);
            }
            check_eq!(card.used()?, 0);
            Ok(())
        })
    }

    /// Memory that the process frees is not copied back, and its VRAM is freed.
    #[test]
    fn freed_memory_releases_its_chunks() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let memory = Anonymous::filled(16, 1)?;

            card.migrate(&memory, 0, 16)?;
            check_eq!(card.used()?, 16 * PAGE);
            drop(memory);
            check_eq!(card.used()?, 0);
            check_eq!(card.notified.to_ram.load(Relaxed), 0);
            Ok(())
        })
    }

    /// All memory moves back when the device is unbound.
    #[test]
    fn memory_survives_the_device() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let large = Anonymous::filled(LARGEST, 1)?;
            let small = Anonymous::filled(8, 2)?;
            let (vram, notified) = (card.vram.clone(), card.notified.clone());

            card.migrate(&large, 0, LARGEST)?;
            card.migrate(&small, 1, 5)?;
            check_eq!(card.used()?, (LARGEST as u64 + 5) * PAGE);
            drop(card);
            check_eq!(vram.avail(), vram.size());
            check_eq!(notified.to_ram.load(Relaxed), (LARGEST as u64 + 5) * PAGE);
            check!(large.all_hold(Some(1))?);
            check!(small.all_hold(Some(2))?);

            // The memory can move to the next device.
            let card = Card::new(pdev, 0, true)?;
            card.migrate(&small, 0, 8)?;
            check_eq!(card.used()?, 8 * PAGE);
            check!(small.all_hold(Some(2))?);
            Ok(())
        })
    }

    /// A driver that needs VRAM evicts a chunk.
    #[test]
    fn a_chunk_is_evicted() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let memory = Anonymous::filled(32, 1)?;

            card.migrate_to(64 * PAGE, &memory, 0, 16)?;
            card.migrate_to(80 * PAGE, &memory, 16, 16)?;
            // There is no chunk at these offsets.
            card.with(|loaded| loaded.pages.evict(63 * PAGE))??;
            card.with(|loaded| loaded.pages.evict(96 * PAGE))??;
            check_eq!(card.used()?, 32 * PAGE);
            card.with(|loaded| loaded.pages.evict(79 * PAGE))??;
            check_eq!(card.notified.to_ram.load(Relaxed), 16 * PAGE);
            check_eq!(card.used()?, 16 * PAGE);
            check!(memory.all_hold(Some(1))?);
            Ok(())
        })
    }

    /// A copy that fails leaves the memory where it is.
    #[test]
    fn a_failed_copy_changes_nothing() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let memory = Anonymous::filled(16, 1)?;

            card.notified.fails.store(true, Relaxed);
            check_eq!(card.migrate(&memory, 0, 16), Err(EIO));
            check_eq!(card.used()?, 0);
            check!(memory.all_hold(Some(1))?);
            check_eq!(card.notified.to_ram.load(Relaxed), 0);

            card.notified.fails.store(false, Relaxed);
            card.migrate(&memory, 0, 16)?;
            check_eq!(card.used()?, 16 * PAGE);
            check!(memory.all_hold(Some(1))?);
            Ok(())
        })
    }

    /// The CPU makes no copy through a window that is smaller than a page.
    #[test]
    fn a_small_window_is_not_exceeded() -> Result {
        with_device(|pdev| {
            check!(pdev.resource_len(REGISTERS)? < PAGE);

            let card = Card::new(pdev, 0, true)?;
            let memory = Anonymous::filled(1, 1)?;

            card.notified.small.store(true, Relaxed);
            check_eq!(card.migrate(&memory, 0, 1), Err(EIO));
            check_eq!(card.used()?, 0);
            check!(memory.all_hold(Some(1))?);
            Ok(())
        })
    }

    /// Allocations of a faulty driver that overlap, or that are outside of VRAM, are refused.
    #[test]
    fn a_false_allocation_is_refused() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let memory = Anonymous::filled(32, 1)?;
            let size = card.vram.size();

            card.migrate_to(16 * PAGE, &memory, 0, 16)?;
            for (lie, error) in [
                (16 * PAGE, EEXIST),
                (17 * PAGE, EINVAL),
                (size, EINVAL),
                (NONE - 1, EINVAL),
            ] {
                card.notified.lie.store(lie, Relaxed);
                check_eq!(card.migrate(&memory, 16, 16), Err(error));
            }
            // A larger chunk overlaps the first one.
            card.notified.lie.store(0, Relaxed);
            check_eq!(card.migrate(&Anonymous::filled(32, 2)?, 0, 32), Err(EEXIST));
            card.notified.lie.store(NONE, Relaxed);

            check_eq!(card.used()?, 16 * PAGE);
            check!(card.shows(16 * PAGE, Some(1), 0)?);
            check!(memory.all_hold(Some(1))?);
            check_eq!(card.used()?, 0);
            Ok(())
        })
    }

    /// If VRAM has no room for a chunk, smaller chunks move.
    #[test]
    fn fragmented_vram_gets_smaller_chunks() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let memory = Anonymous::filled(4, 1)?;
            let mut others = KVec::new();

            for page in [1, 3] {
                others.push(
                    card.vram.reserve(page * PAGE..(page + 1) * PAGE)?,
                    GFP_KERNEL,
                )?;
            }
            others.push(card.vram.reserve(5 * PAGE..card.vram.size())?, GFP_KERNEL)?;

            // Pages 0, 2 and 4 are free.
            check_eq!(card.migrate(&memory, 0, 4), Err(ENOSPC));
            check_eq!(card.notified.longest.load(Relaxed), PAGE);
            check_eq!(card.notified.to_dev.load(Relaxed), 3 * PAGE);
            check_eq!(card.used()?, card.vram.size());
            check!(memory.all_hold(Some(1))?);
            drop(others);
            check_eq!(card.used()?, 0);
            Ok(())
        })
    }

    #[test]
    fn what_is_no_memory_does_not_move() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let memory = Anonymous::filled(4, 1)?;
            let at = memory.addr;

            let migrate = |range| card.migrate_range(&memory, range);

            check_eq!(migrate(at..at), Err(EINVAL));
            check_eq!(migrate(at + 1..at + PAGE as usize), Err(EINVAL));
            check_eq!(migrate(at..at + 1), Err(EINVAL));
            check_eq!(migrate(0..PAGE as usize), Err(EFAULT));
            check_eq!(card.used()?, 0);
            check!(memory.all_hold(Some(1))?);
            Ok(())
        })
    }

    /// VRAM has aliases only where the BAR shows it, and only if the BAR has pages.
    #[test]
    fn hidden_vram_has_no_alias() -> Result {
        with_device(|pdev| {
            let start = pdev.resource_start(BAR)?;
            let pages = (pdev.resource_len(BAR)? / PAGE) as usize;

            let card = Card::new(pdev, LARGEST as u64 * PAGE, false)?;
            check_eq!(card.alias(0)?, None);
            drop(card);

            let card = Card::new(pdev, LARGEST as u64 * PAGE, true)?;
            let last = pages - 1;
            check_eq!(card.aliases(0)?, Some((start, pages)));
            check_eq!(card.aliases(last)?, Some((start + last as u64 * PAGE, 1)));
            check_eq!(card.alias(pages)?, None);
            check_eq!(card.alias(pages + LARGEST - 1)?, None);
            Ok(())
        })
    }

    /// The pages of a BAR have one owner at a time.
    #[test]
    fn pages_of_a_bar_are_taken_once() -> Result {
        with_device(|pdev| {
            check_eq!(pdev.p2pdma_provider(BAR)?.take_pages().err(), Some(ENXIO));
            check_eq!(pdev.add_p2pdma_pages(6), Err(EINVAL));
            pdev.add_p2pdma_pages(BAR)?;
            pdev.add_p2pdma_pages(BAR)?;

            let pdev: &pci::Device<Bound> = pdev;
            let pages = pdev.p2pdma_provider(BAR)?.take_pages()?;
            check_eq!(pages.len(), pdev.resource_len(BAR)?);
            check_eq!(pdev.p2pdma_provider(BAR)?.take_pages().err(), Some(EBUSY));
            drop(pages);
            check!(pdev.p2pdma_provider(BAR)?.take_pages().is_ok());
            Ok(())
        })
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A device that shows VRAM through windows.
//!
//! The first half of the BAR is VRAM, which the engine accesses directly. A page of the other half
//! shows a page of VRAM while it belongs to a window: the test copies between both when the window
//! is made, when it looks at the content, and when the window is closed, which also overwrites the
//! page.

use crate::{
    bench::{
        word,
        BAR,
        PAGE, //
    },
    importer::DIR,
    waits::Blocked, //
};
use kernel::{
    bindings,
    container_of,
    device::{
        Bound,
        Device, //
    },
    dma_buf::{
        exporter::mapping::RangeList,
        Attachment,
        Importer, //
    },
    dma_resv::Usage,
    drm::{
        self,
        devres::RegistrationInit,
        gem::{
            self,
            aperture::{
                aperture_hook,
                Aperture,
                ApertureHook,
                Wait, //
            },
            ttm::TtmObject, //
        },
        ttm::{
            CpuEngine,
            CpuRing,
            OpCtx,
            Place, //
        },
        vram::{
            Allocator,
            BarMapping,
            Domain,
            Ranges, //
        }, //
    },
    new_mutex,
    page::PAGE_SIZE,
    pci,
    prelude::*,
    scatterlist::SGTable,
    sync::{
        aref::ARef,
        Arc,
        Completion,
        Mutex, //
    }, //
};

pub(crate) type Object = gem::ttm::Object<Bo>;

/// How many pages windows may have.
const SLOTS: usize = 32;

/// How many words a page has.
const WORDS: usize = PAGE_SIZE / 8;

/// What a page is overwritten with.
const POISON: u8 = 0xdb;

/// The response of the driver to a request for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Makes the window.
    Work,
    /// Makes a window that shows all but the last page.
    Short,
    /// Makes a window that is behind the BAR.
    Outside,
}

struct State {
    mode: Mode,
    /// The limit of pages in windows.
    limit: usize,
    /// The page of VRAM that each page of the aperture shows.
    taken: [Option<u64>; SLOTS],
    /// The words that each page had when it last had the same content as VRAM.
    same: KVVec<u64>,
    /// The number of windows that were made, and of those that exist.
    made: usize,
    live: usize,
    /// What the next close of a window completes, and what it then waits for.
    held: Option<(Blocked, Arc<Completion>)>,
}

/// The aperture: the second half of the BAR.
#[pin_data(PinnedDrop)]
pub(crate) struct Slots {
    pdev: *mut bindings::pci_dev,
    bar: *mut c_void,
    half: u64,
    #[pin]
    state: Mutex<State>,
}

// SAFETY: The mapping of the BAR may be used by any task.
unsafe impl Send for Slots {}

// SAFETY: As for `Send`.
unsafe impl Sync for Slots {}

impl Slots {
    fn new(pdev: &pci::Device<Bound>) -> Result<Arc<Self>> {
        let half = pdev.resource_len(BAR)? / 2;
        let same = KVVec::from_elem(0, SLOTS * WORDS, GFP_KERNEL)?;
        let dev: &Device<Bound> = pdev.as_ref();
        // `Device` is a transparent wrapper.
        let raw = core::ptr::from_ref(dev)
            .cast::<bindings::device>()
            .cast_mut();
        // SAFETY: The device is one of PCI.
        let raw = unsafe { container_of!(raw, bindings::pci_dev, dev) };
        // SAFETY: The device is valid, and has the BAR.
        let bar = unsafe { bindings::pci_iomap_wc(raw, BAR as i32, 0) };
        if bar.is_null() {
            return Err(ENOMEM);
        }

        Arc::pin_init(
            try_pin_init!(Self {
                pdev: raw,
                bar,
                half,
                state <- new_mutex!(State {
                    mode: Mode::Work,
                    limit: SLOTS,
                    taken: [None; SLOTS],
                    same,
                    made: 0,
                    live: 0,
                    held: None,
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the address of the page at an offset in the BAR.
    fn page(&self, offset: u64) -> *mut c_void {
        self.bar.wrapping_byte_add(offset as usize)
    }

    /// Returns the offset in the BAR of a page of the aperture; they are used from the end.
    pub(crate) fn offset(&self, slot: usize) -> u64 {
        self.half + (SLOTS - 1 - slot) as u64 * PAGE
    }

    /// Returns a word of the BAR.
    fn read(&self, offset: u64) -> u64 {
        // SAFETY: The BAR is mapped; tests look at whole words of it.
        unsafe { self.page(offset).cast::<u64>().read_volatile() }
    }

    fn write(&self, offset: u64, word: u64) {
        // SAFETY: As in `read()`.
        unsafe { self.page(offset).cast::<u64>().write_volatile(word) };
    }

    /// Makes a page of the aperture and its page of VRAM the same. Words that were written through
    /// the window since the last time are copied to VRAM, and all others are copied from there.
    fn sync(&self, state: &mut State, slot: usize) {
        let Some(vram) = state.taken[slot] else {
            return;
        };

        for (index, same) in state.same[slot * WORDS..][..WORDS].iter_mut().enumerate() {
            let (page, vram) = (
                self.offset(slot) + 8 * index as u64,
                vram + 8 * index as u64,
            );
            let now = self.read(page);

            if now != *same {
                self.write(vram, now);
            }
            *same = self.read(vram);
            self.write(page, *same);
        }
    }

    /// Fills an object, which is in VRAM, as [`fill`](crate::bench::fill) does, but without a
    /// window.
    fn fill(&self, object: &Object, seed: u64) -> Result {
        let mut reserved = object.reserve(false)?;

        // The object is still being cleared.
        reserved.resv().resv().wait(Usage::Kernel, false)?;
        for range in reserved.vram().ok_or(EINVAL)?.ranges() {
            for at in (0..range.len).step_by(8) {
                self.write(range.offset + at, word(seed, (range.at + at) / 8));
            }
        }
        Ok(())
    }

    /// Returns the first word of the first page of the aperture in use, and the word that VRAM has,
    /// without making the pages the same.
    pub(crate) fn first_words(&self) -> Option<(u64, u64)> {
        let vram = self.state.lock().taken[0]?;

        Some((self.read(self.offset(0)), self.read(vram)))
    }

    fn map(&self, vram: &Ranges, pieces: &mut RangeList) -> Result<Shown> {
        let count = vram.ranges().iter().map(|r| r.len / PAGE).sum::<u64>() as usize;
        let mut slots = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut state = self.state.lock();

        if count > state.limit - state.taken.iter().flatten().count() {
            return Err(ENOSPC);
        }
        for range in vram.ranges() {
            for offset in (range.offset..range.offset + range.len).step_by(PAGE_SIZE) {
                let slot = state.taken.iter().position(Option::is_none).ok_or(EIO)?;

                state.taken[slot] = Some(offset);
                slots.push(slot, GFP_KERNEL)?;
                for word in 0..WORDS {
                    let content = self.read(offset + 8 * word as u64);

                    state.same[slot * WORDS + word] = content;
                    self.write(self.offset(slot) + 8 * word as u64, content);
                }
            }
        }

        let shown = match state.mode {
            Mode::Short => &slots[1..],
            _ => &slots[..],
        };
        for slot in shown {
            let offset = match state.mode {
                Mode::Outside => 2 * self.half,
                _ => self.offset(*slot),
            };

            pieces.push_piece(offset, PAGE)?;
        }
        state.made += 1;
        state.live += 1;
        Ok(Shown(slots))
    }

    fn unmap(&self, Shown(slots): Shown) -> Result {
        let held = self.state.lock().held.take();

        if let Some((begun, end)) = held {
            drop(begun);
            end.wait_for_completion();
        }

        let mut state = self.state.lock();
        for slot in slots {
            self.sync(&mut state, slot);
            let page = self.page(self.offset(slot));

            // SAFETY: The page is mapped.
            unsafe { bindings::memset_io(page, POISON.into(), PAGE_SIZE) };
            state.taken[slot] = None;
        }
        state.live -= 1;
        Ok(())
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.state.lock().mode = mode;
    }

    pub(crate) fn set_limit(&self, pages: usize) {
        self.state.lock().limit = pages;
    }

    /// Makes the next close of a window complete the first of these, and then wait for the second.
    pub(crate) fn hold_close(&self) -> Result<(Arc<Completion>, Blocked)> {
        let (begun, blocked) = (Blocked::new()?, Blocked::new()?);
        let is_begun = begun.end();

        self.state.lock().held = Some((begun, blocked.end()));
        Ok((is_begun, blocked))
    }

    /// Returns how many windows there are, and how many were made.
    pub(crate) fn windows(&self) -> (usize, usize) {
        let state = self.state.lock();

        (state.live, state.made)
    }

    /// Returns the offsets in the BAR to which a table of an importer leads.
    pub(crate) fn offsets(&self, table: &SGTable) -> Result<KVec<u64>> {
        // SAFETY: The device is valid.
        let start = unsafe { (*self.pdev).resource[BAR as usize].start };
        let mut offsets = KVec::new();

        for entry in table.iter() {
            let first = entry.dma_address().wrapping_sub(start);

            for at in (0..entry.dma_len()).step_by(PAGE_SIZE) {
                offsets.push(first.wrapping_add(at), GFP_KERNEL)?;
            }
        }
        Ok(offsets)
    }

    /// Returns whether a page of the aperture has the words of [`fill`](crate::bench::fill), those
    /// of page `page`, or zeroes if there is no seed.
    pub(crate) fn holds(&self, offset: u64, seed: Option<u64>, page: u64) -> Result<bool> {
        if !(self.half..self.half + SLOTS as u64 * PAGE).contains(&offset) {
            return Ok(false);
        }

        let slot = SLOTS - 1 - ((offset - self.half) / PAGE) as usize;

        self.sync(&mut self.state.lock(), slot);
        Ok((0..PAGE / 8).all(|index| {
            let expected = seed.map_or(0, |seed| word(seed, page * PAGE / 8 + index));

            self.read(offset + 8 * index) == expected
        }))
    }

    /// Returns whether an importer sees an object of so many pages, which was filled from `seed`,
    /// by its table, through windows.
    pub(crate) fn is_seen(&self, table: &SGTable, pages: u64, seed: Option<u64>) -> Result<bool> {
        let offsets = self.offsets(table)?;
        let mut same = offsets.len() as u64 == pages;

        for (page, offset) in offsets.iter().enumerate() {
            same &= self.holds(*offset, seed, page as u64)?;
        }
        Ok(same)
    }
}

#[pinned_drop]
impl PinnedDrop for Slots {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The BAR was mapped by `new()`; the device is valid until the test is over.
        unsafe { bindings::pci_iounmap(self.pdev, self.bar) };
    }
}

/// A window: its pages of the aperture.
pub(crate) struct Shown(KVec<usize>);

pub(crate) struct Vram<'a> {
    engine: CpuEngine<'a>,
    aperture: Arc<Slots>,
}

struct Init(Arc<Slots>);

impl RegistrationInit<Driver> for Init {
    fn init<'a>(
        self,
        pdev: &'a pci::Device<Bound>,
        _drm: drm::devres::Unregistered<'_, 'a, Driver>,
    ) -> impl PinInit<Vram<'a>, Error> {
        Ok(Vram {
            engine: CpuEngine::new(BarMapping::new(pdev, BAR, c"vram_kunit")?)?,
            aperture: self.0,
        })
    }
}

peer_object! {
    pub(crate) struct Bo(Domain);
}

impl TtmObject for Bo {
    const APERTURE: ApertureHook<Self> = aperture_hook();

    fn ttm(data: &Data) -> &drm::gem::ttm::Device<Self> {
        &data.ttm
    }

    fn domain(&self) -> Domain {
        self.0
    }

    type Engine<'a, 'bound: 'a> = &'a CpuEngine<'bound>;
    type Ring = CpuRing;

    fn engine<'a, 'bound: 'a>(vram: &'a Vram<'bound>, _index: usize) -> &'a CpuEngine<'bound> {
        &vram.engine
    }

    fn flush(vram: &Vram<'_>, ranges: &Ranges) {
        vram.engine.flush(ranges);
    }
}

impl Aperture for Bo {
    type Window = Shown;

    fn map(vram: &Vram<'_>, ranges: &Ranges, pieces: &mut RangeList, _wait: Wait) -> Result<Shown> {
        vram.aperture.map(ranges, pieces)
    }

    fn unmap(vram: &Vram<'_>, window: Shown) -> Result {
        vram.aperture.unmap(window)
    }
}

#[pin_data]
pub(crate) struct Data {
    #[pin]
    pub(crate) ttm: drm::gem::ttm::Device<Bo>,
}

driver! { pub(crate) pci, Data, Vram, Object, c"vram_kunit", c"VRAM behind windows" }

pub(crate) type Card = drm::devres::Registration<Driver>;

/// Makes a device with an aperture, with `visible` bytes of VRAM that the CPU sees.
pub(crate) fn card_showing(pdev: &pci::Device<Bound>, visible: u64) -> Result<(Card, Arc<Slots>)> {
    let aperture = Slots::new(pdev)?;
    let size = aperture.half;
    let drm = drm::UnregisteredDevice::<Driver>::new(
        pdev,
        try_pin_init!(Data {
            ttm <- drm::gem::ttm::Device::new(pdev, BAR, visible, Allocator::new(0..size)?),
        }),
    )?;

    // The tests look at bytes by mappings, which pin.
    drm.ttm.set_pin_limit(size);
    Ok((Card::new(pdev, drm, Init(aperture.clone()), 0)?, aperture))
}

/// Makes a device with an aperture, and with VRAM that the CPU sees.
pub(crate) fn card(pdev: &pci::Device<Bound>) -> Result<(Card, Arc<Slots>)> {
    card_showing(pdev, pdev.resource_len(BAR)? / 2)
}

/// Maps, and returns whether the importer sees the object through windows.
pub(crate) fn sees<I: Importer>(
    at: &Attachment<I>,
    aperture: &Slots,
    pages: u64,
    seed: u64,
) -> Result<bool> {
    at.with(|at| aperture.is_seen(at.map(DIR)?, pages, Some(seed)))
}

/// Makes an object in VRAM that is filled from `seed`.
pub(crate) fn object(card: &Card, pages: u64, domain: Domain, seed: u64) -> Result<ARef<Object>> {
    let object = Object::new(
        card.device(),
        (pages * PAGE) as usize,
        &[Place::VRAM],
        &mut OpCtx::uninterruptible(),
        domain,
    )?;

    card.with_data(|vram| vram.aperture.fill(&object, seed))
        .ok_or(ENODEV)??;
    Ok(object)
}

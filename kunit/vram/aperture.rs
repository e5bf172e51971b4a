// SPDX-License-Identifier: GPL-2.0

//! A device that shows VRAM to peers through windows.
//!
//! The first half of the BAR is VRAM, which the CPU sees at all times. A page of the other half
//! shows a page of VRAM as long as a window does: it gets its content when a test looks at it, and
//! is overwritten when the window is dropped.

use crate::bench::{
    with_device,
    word,
    BAR,
    PAGE, //
};
use kernel::{
    bindings,
    container_of,
    device::{
        Bound,
        Device,
        DeviceContext, //
    },
    dma_buf::mapping::RangeList,
    drm::{
        self,
        devres::RegistrationInit,
        gem::{
            self,
            peer::{
                self,
                PeerObject, //
            }, //
        },
        ttm::{
            CpuEngine,
            OpCtx,
            Place,
            TtmObject, //
        },
        vram::{
            aperture_hook,
            Allocator,
            Aperture,
            ApertureHook,
            Domain,
            Ranges,
            Window, //
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
        Mutex, //
    }, //
};

type Object = gem::ttm::Object<Bo>;

/// How many pages windows may have.
const SLOTS: usize = 32;

/// What a page is overwritten with.
const POISON: u8 = 0xdb;

/// What the driver does when it is asked for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Makes it.
    Work,
    /// Shows all but the last page.
    Short,
    /// Shows what is behind the BAR.
    Outside,
}

struct State {
    mode: Mode,
    /// The pages that windows may have.
    limit: usize,
    /// The page of VRAM that each of them shows.
    taken: [Option<u64>; SLOTS],
    /// How many windows were made, and how many there are.
    made: usize,
    live: usize,
}

/// The aperture: the second half of the BAR.
#[pin_data(PinnedDrop)]
struct Slots {
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
                    made: 0,
                    live: 0,
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the address of the page at an offset in the BAR.
    fn page(&self, offset: u64) -> *mut c_void {
        self.bar.wrapping_byte_add(offset as usize)
    }

    /// Returns the offset in the BAR of a page that windows may have: the last one first.
    fn offset(&self, slot: usize) -> u64 {
        self.half + (SLOTS - 1 - slot) as u64 * PAGE
    }

    fn map(self: &Arc<Self>, vram: &Ranges, pieces: &mut RangeList) -> Result<Shown> {
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
        Ok(Shown {
            aperture: self.clone(),
            slots,
        })
    }

    fn set(&self, mode: Mode) {
        self.state.lock().mode = mode;
    }

    fn set_limit(&self, pages: usize) {
        self.state.lock().limit = pages;
    }

    /// Returns how many windows there are, and how many were made.
    fn windows(&self) -> (usize, usize) {
        let state = self.state.lock();

        (state.live, state.made)
    }

    /// Returns the offsets in the BAR to which a table of an importer leads.
    fn offsets(&self, table: &SGTable) -> Result<KVec<u64>> {
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

    /// Tells whether a page of the aperture has the words of [`fill`](crate::bench::fill), those of
    /// page `page`, or zeroes if there is no seed.
    fn holds(&self, offset: u64, seed: Option<u64>, page: u64) -> Result<bool> {
        if !(self.half..self.half + SLOTS as u64 * PAGE).contains(&offset) {
            return Ok(false);
        }

        let slot = SLOTS - 1 - ((offset - self.half) / PAGE) as usize;
        let shown = self.state.lock().taken[slot];
        let mut words = KVec::from_elem(0u64, PAGE_SIZE / 8, GFP_KERNEL)?;
        // SAFETY: The pages are mapped, and `words` is as large as one.
        unsafe {
            let (page, words) = (self.page(offset), words.as_mut_ptr().cast());

            if let Some(vram) = shown {
                bindings::memcpy_fromio(words, self.page(vram), PAGE_SIZE);
                bindings::memcpy_toio(page, words, PAGE_SIZE);
            }
            bindings::memcpy_fromio(words, page, PAGE_SIZE);
        }
        Ok(words.iter().enumerate().all(|(index, at)| {
            *at == seed.map_or(0, |seed| word(seed, page * PAGE / 8 + index as u64))
        }))
    }

    /// Tells whether an importer sees an object of so many pages, which was filled from `seed`, by
    /// its table, through windows.
    fn is_seen(&self, table: &SGTable, pages: u64, seed: Option<u64>) -> Result<bool> {
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

/// A window.
struct Shown {
    aperture: Arc<Slots>,
    slots: KVec<usize>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        let mut state = self.aperture.state.lock();

        for slot in &self.slots {
            let page = self.aperture.page(self.aperture.offset(*slot));

            // SAFETY: The page is mapped.
            unsafe { bindings::memset_io(page, POISON.into(), PAGE_SIZE) };
            state.taken[*slot] = None;
        }
        state.live -= 1;
    }
}

struct Vram<'a> {
    exports: peer::Exports<'a, Bo>,
    engine: CpuEngine<'a>,
    aperture: Arc<Slots>,
}

struct Init(Arc<Slots>);

impl RegistrationInit<Driver> for Init {
    fn init<'a>(
        self,
        pdev: &'a pci::Device<Bound>,
        _drm: &drm::UnregisteredDevice<Driver>,
    ) -> impl PinInit<Vram<'a>, Error> {
        Ok(Vram {
            exports: peer::exports(pdev, BAR)?,
            engine: CpuEngine::new(Window::new(pdev, BAR, c"vram_kunit")?)?,
            aperture: self.0,
        })
    }
}

struct Bo(Domain);

static OPS: peer::Ops<Bo> = peer::Ops::new();

impl gem::DriverObject for Bo {
    type Driver = Driver;
    type Args = Domain;

    const PRIME: gem::PrimeHooks<Self> = peer::hooks();

    fn new(_dev: &drm::Device<Driver>, _size: usize, domain: Domain) -> impl PinInit<Self, Error> {
        Ok::<_, Error>(Self(domain))
    }
}

impl TtmObject for Bo {
    fn ttm(data: &Data) -> &drm::ttm::Device<Self> {
        &data.ttm
    }

    fn domain(&self) -> Domain {
        self.0
    }

    type Engine<'a> = &'a CpuEngine<'a>;

    fn engine<'a>(vram: &'a Vram<'a>, _index: usize) -> &'a CpuEngine<'a> {
        &vram.engine
    }

    fn flush<'a>(vram: &'a Vram<'a>, ranges: &Ranges) {
        vram.engine.flush(ranges);
    }
}

impl Aperture for Bo {
    type Window = Shown;

    fn map<'a>(vram: &'a Vram<'a>, ranges: &Ranges, pieces: &mut RangeList) -> Result<Shown> {
        vram.aperture.map(ranges, pieces)
    }
}

impl PeerObject for Bo {
    type Class = Object;

    const OPS: &'static peer::Ops<Self> = &OPS;
    const APERTURE: ApertureHook<Self> = aperture_hook();

    fn exports<'a>(vram: &'a Vram<'a>) -> &'a peer::Exports<'a, Self> {
        &vram.exports
    }
}

#[pin_data]
struct Data {
    #[pin]
    ttm: drm::ttm::Device<Bo>,
}

struct File;

impl drm::file::DriverFile for File {
    type Driver = Driver;

    fn open(_dev: &drm::Device<Driver>) -> Result<Pin<KBox<Self>>> {
        Ok(KBox::new(Self, GFP_KERNEL)?.into())
    }
}

struct Driver;

#[vtable]
impl drm::Driver for Driver {
    type Data = Data;
    type RegistrationData<'a> = Vram<'a>;
    type File = File;
    type Object = Object;
    type ParentDevice<Ctx: DeviceContext> = pci::Device<Ctx>;

    const INFO: drm::DriverInfo = drm::DriverInfo {
        major: 1,
        minor: 0,
        patchlevel: 0,
        name: c"vram_kunit",
        desc: c"VRAM behind windows",
    };
    const IOCTLS: &'static [drm::ioctl::DrmIoctlDescriptor] = &[];
}

type Card = drm::devres::Registration<Driver>;

/// Makes a device with an aperture, with `visible` bytes of VRAM that the CPU sees.
fn card_showing(pdev: &pci::Device<Bound>, visible: u64) -> Result<(Card, Arc<Slots>)> {
    let aperture = Slots::new(pdev)?;
    let size = aperture.half;
    let drm = drm::UnregisteredDevice::<Driver>::new(
        pdev,
        try_pin_init!(Data {
            ttm <- drm::ttm::Device::new(Allocator::new(0..size)?),
        }),
    )?;

    drm::ttm::Device::<Bo>::setup(&drm, pdev, BAR, visible)?;
    // The tests look at bytes by mappings, which pin.
    drm.ttm.set_pin_limit(size);
    Ok((Card::new(pdev, drm, Init(aperture.clone()), 0)?, aperture))
}

/// Makes a device with an aperture, and with VRAM that the CPU sees.
fn card(pdev: &pci::Device<Bound>) -> Result<(Card, Arc<Slots>)> {
    card_showing(pdev, pdev.resource_len(BAR)? / 2)
}

/// Makes an object in VRAM that is filled from `seed`.
fn object(card: &Card, pages: u64, domain: Domain, seed: u64) -> Result<ARef<Object>> {
    let object = Object::new(
        card.device(),
        (pages * PAGE) as usize,
        &[Place::VRAM],
        &mut OpCtx::uninterruptible(),
        domain,
    )?;

    crate::bench::fill(&object, seed)?;
    Ok(object)
}

#[kunit_tests(vram_aperture)]
mod tests {
    use super::*;
    use crate::{
        bench::{
            export,
            holds,
            validate, //
        },
        importer::{
            late,
            map_and_leave,
            prompt,
            revocable, //
        }, //
    };
    use kernel::{
        dma::DataDirection,
        dma_buf::{
            Attachment,
            Importer, //
        },
        drm::{
            gem::peer::{
                attachments,
                Event,
                Outcome,
                Path,
                Reason, //
            },
            vram::MemType, //
        },
        sync::atomic::Relaxed, //
    };

    const DIR: DataDirection = DataDirection::Bidirectional;

    /// Maps, and tells whether the importer sees the object through windows.
    fn sees<I: Importer>(
        at: &Attachment<I>,
        aperture: &Slots,
        pages: u64,
        seed: u64,
    ) -> Result<bool> {
        at.with(|at| aperture.is_seen(at.map(DIR)?, pages, Some(seed)))
    }

    fn unmap<I: Importer>(at: &Attachment<I>) -> Result {
        at.with(|at| {
            at.unmap();
            Ok(())
        })
    }

    fn place(object: &Object) -> Result<Option<MemType>> {
        Ok(object.reserve(false)?.mem_type())
    }

    fn count(card: &Card, event: Event, reason: Reason) -> u64 {
        card.device().ttm.peers().get(event, reason)
    }

    /// The bytes are right while the table is mapped, and the window goes with it.
    #[test]
    fn window_is_there_while_mapped() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 3, Domain::Vram, 1)?;
            let at = Attachment::new(export(&object)?, pdev.as_ref(), prompt())?;
            check_eq!(aperture.windows(), (0, 0));

            // Neither the place of VRAM in the BAR, nor its order.
            let offsets = at.with(|at| aperture.offsets(at.map(DIR)?))?;
            let expected = [0, 1, 2].map(|slot| aperture.offset(slot));
            check_eq!(&offsets[..], &expected[..]);
            check!(sees(&at, &aperture, 3, 1)?);
            check_eq!(aperture.windows(), (1, 1));
            check_eq!(
                attachments::<Bo>(&object)?[0].outcome,
                Outcome::peer(Path::PeerBus)
            );

            unmap(&at)?;
            check_eq!(aperture.windows(), (0, 1));
            check!(!aperture.holds(offsets[0], Some(1), 0)?);

            // The next table is not the last one, whose window is gone.
            for made in 2..50 {
                check!(sees(&at, &aperture, 3, 1)?);
                check_eq!(aperture.windows(), (1, made));
                unmap(&at)?;
                check_eq!(aperture.windows(), (0, made));
            }

            // The importer detaches.
            check!(sees(&at, &aperture, 3, 1)?);
            drop(at);
            check_eq!(aperture.windows(), (0, 50));
            Ok(())
        })
    }

    /// Of VRAM that the BAR does not show at all times the CPU sees nothing, and peers do.
    #[test]
    fn hidden_vram_is_for_peers() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card_showing(pdev, 0)?;

            for (domain, start) in [(Domain::Vram, Place::VRAM), (Domain::Either, Place::TT)] {
                let object = Object::new(
                    card.device(),
                    2 * PAGE_SIZE,
                    &[start],
                    &mut OpCtx::uninterruptible(),
                    domain,
                )?;
                let at = Attachment::new(export(&object)?, pdev.as_ref(), prompt())?;

                check!(at.with(|at| aperture.is_seen(at.map(DIR)?, 2, None))?);
                check_eq!(place(&object)?, Some(MemType::Vram));

                // For the CPU it moves, if it may.
                match domain {
                    Domain::Vram => check!(holds(&object, None).is_err()),
                    _ => check!(holds(&object, None)?),
                }
                let moved = domain == Domain::Either;
                check_eq!(place(&object)? == Some(MemType::Tt), moved);
                check_eq!(aperture.windows().0, usize::from(!moved));
            }
            check_eq!(aperture.windows(), (0, 2));
            Ok(())
        })
    }

    #[test]
    fn importers_share_a_window() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 2, Domain::Either, 1)?;
            let buf = export(&object)?;
            let first = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let second = Attachment::new(buf, pdev.as_ref(), prompt())?;

            // There is no room for two.
            aperture.set_limit(2);
            check!(sees(&first, &aperture, 2, 1)?);
            check!(sees(&second, &aperture, 2, 1)?);
            check_eq!(aperture.windows(), (1, 1));
            unmap(&first)?;
            check_eq!(aperture.windows(), (1, 1));
            check!(sees(&second, &aperture, 2, 1)?);
            check!(sees(&first, &aperture, 2, 1)?);
            unmap(&second)?;
            unmap(&first)?;
            check_eq!(aperture.windows(), (0, 1));
            Ok(())
        })
    }

    #[test]
    fn move_makes_another_window() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 2, Domain::Either, 1)?;
            let buf = export(&object)?;
            let first = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let last = Attachment::new(buf, pdev.as_ref(), late())?;

            check!(sees(&first, &aperture, 2, 1)?);
            validate(&object, &[Place::TT])?;
            check_eq!(first.importer().0.load(Relaxed), 1);
            check_eq!(aperture.windows(), (0, 1));
            check!(holds(&object, Some(1))?);

            // Back in VRAM.
            check!(sees(&first, &aperture, 2, 1)?);
            check_eq!(place(&object)?, Some(MemType::Vram));
            check_eq!(aperture.windows(), (1, 2));
            check!(sees(&last, &aperture, 2, 1)?);
            check_eq!(aperture.windows(), (1, 2));

            // The one that has not unmapped keeps what it has, and nobody shares that.
            validate(&object, &[Place::TT])?;
            check_eq!(aperture.windows(), (1, 2));
            crate::bench::fill(&object, 2)?;
            check!(sees(&first, &aperture, 2, 2)?);
            check_eq!(aperture.windows(), (2, 3));
            check!(sees(&last, &aperture, 2, 2)?);
            check_eq!(aperture.windows(), (1, 3));
            unmap(&last)?;
            unmap(&first)?;
            check_eq!(aperture.windows(), (0, 3));
            Ok(())
        })
    }

    #[test]
    fn unbind_leaves_no_window() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let moving = object(&card, 2, Domain::Either, 1)?;
            let pinned = object(&card, 1, Domain::Either, 2)?;
            let first = Attachment::new(export(&moving)?, pdev.as_ref(), prompt())?;
            let second = Attachment::new(export(&pinned)?, pdev.as_ref(), revocable())?;

            second.with(|at| at.pin())?;
            check!(sees(&first, &aperture, 2, 1)?);
            check!(sees(&second, &aperture, 1, 2)?);
            check_eq!(aperture.windows(), (2, 2));

            drop(card);
            check_eq!(aperture.windows(), (0, 2));
            first.with(|at| {
                check_eq!(at.map(DIR).err(), Some(ENODEV));
                Ok(())
            })
        })
    }

    #[test]
    fn failed_mapping_leaves_no_window() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 2, Domain::Either, 1)?;
            let at = Attachment::new(export(&object)?, pdev.as_ref(), prompt())?;

            for (made, mode) in [(1, Mode::Short), (2, Mode::Outside)] {
                aperture.set(mode);
                at.with(|at| {
                    check_eq!(at.map(DIR).err(), Some(EINVAL));
                    Ok(())
                })?;
                check_eq!(aperture.windows(), (0, made));
            }
            check_eq!(
                attachments::<Bo>(&object)?[0].outcome,
                Outcome::peer(Path::PeerBus)
            );

            aperture.set(Mode::Work);
            check!(sees(&at, &aperture, 2, 1)?);
            check_eq!(aperture.windows(), (1, 3));
            Ok(())
        })
    }

    #[test]
    fn forgotten_mapping_leaves_no_window() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 2, Domain::Either, 1)?;

            map_and_leave(&*export(&object)?, pdev.as_ref())?;
            check_eq!(aperture.windows(), (0, 1));
            drop(card);
            Ok(())
        })
    }

    #[test]
    fn full_aperture_is_an_error() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let first = object(&card, 2, Domain::Vram, 1)?;
            let second = object(&card, 2, Domain::Vram, 2)?;
            let pinned = object(&card, 2, Domain::Either, 3)?;
            let holder = Attachment::new(export(&first)?, pdev.as_ref(), prompt())?;
            let refused = Attachment::new(export(&second)?, pdev.as_ref(), prompt())?;
            let pins = Attachment::new(export(&pinned)?, pdev.as_ref(), revocable())?;

            aperture.set_limit(3);
            pins.with(|at| at.pin())?;
            check!(sees(&holder, &aperture, 2, 1)?);
            check_eq!(sees(&refused, &aperture, 2, 2).err(), Some(ENOSPC));
            check_eq!(sees(&pins, &aperture, 2, 3).err(), Some(ENOSPC));
            check_eq!(aperture.windows(), (1, 1));
            check_eq!(place(&second)?, Some(MemType::Vram));
            check_eq!(place(&pinned)?, Some(MemType::Vram));
            check_eq!(count(&card, Event::MapRefused, Reason::NoWindow), 2);

            unmap(&holder)?;
            check!(sees(&refused, &aperture, 2, 2)?);
            check_eq!(
                attachments::<Bo>(&second)?[0].outcome,
                Outcome::peer(Path::PeerBus)
            );
            check_eq!(aperture.windows(), (1, 2));
            unmap(&refused)?;
            check!(sees(&pins, &aperture, 2, 3)?);
            check_eq!(count(&card, Event::MapRefused, Reason::NoWindow), 2);
            Ok(())
        })
    }

    #[test]
    fn full_aperture_leads_to_system_memory() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let other = object(&card, 2, Domain::Vram, 1)?;
            let object = object(&card, 2, Domain::Either, 2)?;
            let holder = Attachment::new(export(&other)?, pdev.as_ref(), prompt())?;
            let buf = export(&object)?;
            let first = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let second = Attachment::new(buf, pdev.as_ref(), prompt())?;

            aperture.set_limit(2);
            check!(sees(&holder, &aperture, 2, 1)?);
            for at in [&first, &second] {
                check!(!sees(at, &aperture, 2, 2)?);
                check_eq!(place(&object)?, Some(MemType::Tt));
            }
            // The object has moved once: the second one did not try again, which would have
            // invalidated what the first one has.
            check_eq!(first.importer().0.load(Relaxed), 1);
            check_eq!(aperture.windows(), (1, 1));
            check!(holds(&object, Some(2))?);
            for info in &attachments::<Bo>(&object)? {
                check_eq!(info.outcome, Outcome::system(Reason::NoWindow));
            }
            check_eq!(count(&card, Event::MapSystem, Reason::NoWindow), 2);

            // Once nobody has it mapped there, the next one does.
            unmap(&first)?;
            unmap(&second)?;
            unmap(&holder)?;
            check!(sees(&second, &aperture, 2, 2)?);
            check_eq!(place(&object)?, Some(MemType::Vram));
            check!(sees(&first, &aperture, 2, 2)?);
            check_eq!(aperture.windows(), (1, 2));
            check_eq!(
                attachments::<Bo>(&object)?[0].outcome,
                Outcome::peer(Path::PeerBus)
            );
            Ok(())
        })
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A device with page tables whose objects never move: it is notified of an unplug only. Its BAR
//! shows VRAM to peers through windows, which map the pages of an object from the end of the BAR
//! downwards.

use crate::bench::{
    with_device,
    without_p2pdma,
    BAR,
    PAGE, //
};
use kernel::{
    device::Bound,
    dma_buf::exporter::mapping::RangeList,
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
            mappings::mapping_hooks,
            peer,
            vram::VramObject,
            LockedObject,
            Mappings, //
        },
        vram::{
            Allocator,
            BarMapping,
            Ranges, //
        }, //
    },
    pci,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

type Object = gem::vram::Object<Bo>;

/// Counts the notifications of the driver, and the bytes in them.
struct Notified {
    evicted: Atomic<u64>,
    zapped: Atomic<u64>,
    bytes: Atomic<u64>,
    windows: Atomic<u64>,
    flushes: Atomic<u64>,
}

struct Vram<'a> {
    window: BarMapping<'a>,
    notified: Arc<Notified>,
}

struct Init(Arc<Notified>);

impl RegistrationInit<Driver> for Init {
    fn init<'a>(
        self,
        pdev: &'a pci::Device<Bound>,
        _drm: drm::devres::Unregistered<'_, 'a, Driver>,
    ) -> impl PinInit<Vram<'a>, Error> {
        Ok(Vram {
            window: BarMapping::new(pdev, BAR, c"vram_kunit")?,
            notified: self.0,
        })
    }
}

peer_object! {
    struct Bo(());
}

impl Mappings for Bo {
    fn evicted(vram: &Vram<'_>, _object: &LockedObject<'_, Object>) {
        vram.notified.evicted.add(1, Relaxed);
    }

    fn zap(vram: &Vram<'_>, object: &LockedObject<'_, Object>) {
        let bytes: u64 = object
            .object()
            .ranges()
            .ranges()
            .iter()
            .map(|r| r.len)
            .sum();

        vram.notified.zapped.add(1, Relaxed);
        vram.notified.bytes.add(bytes, Relaxed);
    }
}

impl VramObject for Bo {
    const MAPPINGS: gem::MappingHooks<Self> = mapping_hooks();
    const APERTURE: ApertureHook<Self> = aperture_hook();

    fn vram(data: &Data) -> &gem::vram::Device<Self> {
        &data.vram
    }

    fn clear(vram: &Vram<'_>, ranges: &Ranges) -> Result {
        // The CPU reaches VRAM through the BAR only, and no test reads VRAM behind the BAR.
        if !ranges.is_below(vram.window.len()) {
            return Ok(());
        }
        vram.window.clear(ranges)
    }

    fn flush(vram: &Vram<'_>, ranges: &Ranges) {
        vram.notified.flushes.add(1, Relaxed);
        vram.window.flush(ranges);
    }
}

impl Aperture for Bo {
    type Window = ();

    fn map(vram: &Vram<'_>, ranges: &Ranges, pieces: &mut RangeList, _wait: Wait) -> Result {
        for range in ranges.ranges() {
            for at in (range.at..range.at + range.len).step_by(PAGE as usize) {
                let end = vram.window.len().checked_sub(at).ok_or(EINVAL)?;

                pieces.push_piece(end - PAGE, PAGE)?;
            }
        }
        vram.notified.windows.fetch_add(1, Relaxed);
        Ok(())
    }

    fn unmap(vram: &Vram<'_>, _window: ()) -> Result {
        vram.notified.windows.fetch_sub(1, Relaxed);
        Ok(())
    }
}

struct Data {
    vram: gem::vram::Device<Bo>,
}

driver! { pci, Data, Vram, Object, c"vram_kunit", c"VRAM that nothing leaves" }

#[kunit_tests(vram_fixed)]
mod tests {
    use super::*;
    use crate::{
        bench::export_any,
        importer::{
            prompt,
            unmap, //
        },
        waits::{
            shared_queue_is_idle,
            work,
            Meanwhile, //
        },
        worker::soon, //
    };
    use kernel::{
        dma::DataDirection,
        dma_buf::Attachment,
        dma_resv::{
            DmaResv,
            Usage, //
        },
        drm::gem::{
            peer::{
                Event,
                Reason, //
            },
            IntoGEMObject, //
        }, //
    };

    /// Makes a device with `size` bytes of VRAM, of which the CPU sees `visible`.
    fn card(
        pdev: &pci::Device<Bound>,
        size: u64,
        visible: u64,
    ) -> Result<(drm::devres::Registration<Driver>, Arc<Notified>)> {
        let notified = Arc::new(
            Notified {
                evicted: Atomic::new(0),
                zapped: Atomic::new(0),
                bytes: Atomic::new(0),
                windows: Atomic::new(0),
                flushes: Atomic::new(0),
            },
            GFP_KERNEL,
        )?;
        let vram = gem::vram::Device::new(pdev, BAR, visible, Allocator::new(0..size)?)?;
        let drm = drm::UnregisteredDevice::<Driver>::new(pdev, Ok(Data { vram }))?;

        let card = drm::devres::Registration::new(pdev, drm, Init(notified.clone()), 0)?;
        Ok((card, notified))
    }

    /// What peers have written is flushed by the driver, while it is bound.
    #[test]
    fn writes_of_peers_are_flushed() -> Result {
        with_device(|pdev| {
            let pdev: &pci::Device<Bound> = pdev;
            let size = pdev.resource_len(BAR)?;
            let (card, notified) = card(pdev, size, size)?;
            let object = Object::new(card.device(), PAGE as usize, ())?;

            check_eq!(notified.flushes.load(Relaxed), 0);
            peer::flush_writes::<Bo>(&object)?;
            check_eq!(notified.flushes.load(Relaxed), 1);
            drop(card);
            check_eq!(peer::flush_writes::<Bo>(&object).err(), Some(ENODEV));
            check_eq!(notified.flushes.load(Relaxed), 1);
            Ok(())
        })
    }

    /// Mistakes of a driver are refused with an error that the driver core does not hide; the log
    /// says what is wrong.
    #[test]
    fn mistakes_are_refused() -> Result {
        fn device(pdev: &pci::Device<Bound>, bar: u32, visible: u64) -> Option<Error> {
            Allocator::new(0..2 * PAGE)
                .and_then(|vram| gem::vram::Device::<Bo>::new(pdev, bar, visible, vram))
                .err()
        }

        without_p2pdma(|pdev| {
            check_eq!(device(pdev, BAR, PAGE), Some(EINVAL));
            Ok(())
        })?;
        with_device(|pdev| {
            let pdev: &pci::Device<Bound> = pdev;

            check_eq!(device(pdev, BAR, PAGE), None);
            // There is no such BAR, it is the upper half of another one, or it shows less.
            for (bar, visible) in [(6, PAGE), (3, 0), (0, 2 * PAGE), (BAR, 3 * PAGE)] {
                check_eq!(device(pdev, bar, visible), Some(EINVAL));
            }

            // There are no objects before the registration.
            let vram = gem::vram::Device::new(pdev, BAR, PAGE, Allocator::new(0..2 * PAGE)?)?;
            let drm = drm::UnregisteredDevice::<Driver>::new(pdev, Ok(Data { vram }))?;
            check_eq!(Object::new(&drm, PAGE as usize, ()).err(), Some(EINVAL));
            Ok(())
        })
    }

    /// Peers access VRAM through a window if the CPU does not see it, unless the object is larger
    /// than the BAR.
    #[test]
    fn windows_show_what_fits() -> Result {
        with_device(|pdev| {
            let pdev: &pci::Device<Bound> = pdev;
            let size = pdev.resource_len(BAR)?;
            let (card, notified) = card(pdev, 4 * size, 0)?;
            let object = Object::new(card.device(), 2 * PAGE as usize, ())?;
            let large = Object::new(card.device(), (size + PAGE) as usize, ())?;
            let refused = Attachment::new(export_any(&*large)?, pdev.as_ref(), prompt());
            let at = Attachment::new(export_any(&*object)?, pdev.as_ref(), prompt())?;
            let counters = card.device().vram.counters();

            check_eq!(refused.err(), Some(EOPNOTSUPP));
            check_eq!(counters.get(Event::AttachRefused, Reason::OutsideBar), 1);
            check_eq!(notified.windows.load(Relaxed), 0);
            at.with(|at| {
                let end = pdev.resource_start(BAR)? + size;
                let table = at.map(DataDirection::ToDevice)?;
                let pages = table
                    .iter()
                    .map(|entry| (entry.dma_address(), entry.dma_len()));

                check!(pages.eq([(end - PAGE, PAGE), (end - 2 * PAGE, PAGE)]));
                check_eq!(notified.windows.load(Relaxed), 1);
                at.unmap();
                check_eq!(notified.windows.load(Relaxed), 0);
                at.map(DataDirection::ToDevice).map(|_| ())
            })?;
            check_eq!(notified.windows.load(Relaxed), 1);
            drop(card);
            check_eq!(notified.windows.load(Relaxed), 0);
            Ok(())
        })
    }

    /// All importers share the window of an object that never moves.
    #[test]
    fn importers_share_a_window() -> Result {
        with_device(|pdev| {
            let pdev: &pci::Device<Bound> = pdev;
            let size = pdev.resource_len(BAR)?;
            let (card, notified) = card(pdev, size, 0)?;
            let object = Object::new(card.device(), PAGE as usize, ())?;
            let buf = export_any(&*object)?;
            let first = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let second = Attachment::new(buf, pdev.as_ref(), prompt())?;

            for at in [&first, &second] {
                at.with(|at| at.map(DataDirection::ToDevice).map(|_| ()))?;
                check_eq!(notified.windows.load(Relaxed), 1);
            }
            for (at, left) in [(&first, 1), (&second, 0)] {
                unmap(at)?;
                check_eq!(notified.windows.load(Relaxed), left);
            }
            Ok(())
        })
    }

    /// Nobody waits for work of another device to free an object; its VRAM is not given to others
    /// until the work is done.
    #[test]
    fn busy_vram_is_freed_later() -> Result {
        with_device(|pdev| {
            let pdev: &pci::Device<Bound> = pdev;
            let size = pdev.resource_len(BAR)?;
            let (card, _) = card(pdev, size, size)?;
            let object = Object::new(card.device(), size as usize, ())?;
            // SAFETY: The object is valid, and so is its reservation.
            let resv = unsafe { DmaResv::from_raw((*object.as_raw()).resv) };
            let job = work(&mut resv.lock().locked(), Usage::Bookkeep)?;
            let new = || Object::new(card.device(), PAGE as usize, ());

            let freed = Meanwhile::new(move || drop(object))?;
            let is_over = soon(|| freed.is_over());
            let error = new().err();
            let is_idle = shared_queue_is_idle();
            // A test that fails ends, too.
            job.signal(Ok(()));
            check!(is_over);
            check_eq!(error, Some(ENOSPC));
            check!(is_idle?);
            check!(soon(|| new().is_ok()));
            freed.end()
        })
    }

    #[test]
    fn unplug_is_notified_once_for_each_object() -> Result {
        with_device(|pdev| {
            let pdev: &pci::Device<Bound> = pdev;
            let size = pdev.resource_len(BAR)?;
            let (card, notified) = card(pdev, size, size)?;
            let first = Object::new(card.device(), PAGE as usize, ())?;
            let gone = Object::new(card.device(), PAGE as usize, ())?;
            let second = Object::new(card.device(), 3 * PAGE as usize, ())?;

            drop(gone);
            check_eq!(notified.evicted.load(Relaxed), 0);
            drop(card);
            check_eq!(notified.evicted.load(Relaxed), 2);
            check_eq!(notified.zapped.load(Relaxed), 2);
            check_eq!(notified.bytes.load(Relaxed), 4 * PAGE);
            drop((first, second));
            check_eq!(notified.zapped.load(Relaxed), 2);
            Ok(())
        })
    }
}

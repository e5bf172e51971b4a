// SPDX-License-Identifier: GPL-2.0

//! Page tables of a device, and the notifications before an object in them moves.

use kernel::prelude::*;

#[kunit_tests(vram_mappings)]
mod tests {
    use crate::{
        bench::{
            export,
            fill,
            holds,
            import,
            invalidate,
            mem_type,
            registered,
            validate,
            with_device,
            with_size,
            Asleep,
            Card,
            Control,
            Mode,
            Object,
            Step,
            PAGE,
            REFUSED, //
        },
        importer::map,
        store::{
            exports,
            Shared,
            Store, //
        },
        waits::{
            shared_queue_is_idle,
            work,
            Ring, //
        },
        worker::{
            self,
            pause,
            soon, //
        }, //
    };
    use kernel::{
        dma_buf::{
            exporter::pages::Pages,
            fence::DriverFence,
            importer::Invalidated,
            Attachment,
            DmaBuf,
            Importer, //
        },
        dma_resv::Usage,
        drm::{
            gem::mappings::Address,
            ttm::{
                OpCtx,
                Place, //
            },
            vram::{
                Domain,
                MemType, //
            }, //
        },
        faux,
        fs::file::flags,
        page::PAGE_SIZE,
        prelude::*,
        sync::{
            aref::ARef,
            Arc, //
        },
        time::{
            delay::fsleep,
            Delta, //
        }, //
    };

    /// The steps of the move of an object that the page table shows, and of any other object.
    const TOLD: [Step; 3] = [Step::Evicted, Step::Zapped, Step::Queued];
    const UNTOLD: [Step; 1] = [Step::Queued];

    /// Makes a worker finish the work a moment later.
    fn done_later(control: &Arc<Control>, job: DriverFence<Ring>) -> Result {
        let control = control.clone();

        worker::spawn(move || {
            fsleep(Delta::from_millis(30));
            control.saw(Step::Done);
            job.signal(Ok(()));
        })
    }

    /// An importer that records its invalidations.
    struct Peer(Arc<Control>);

    #[vtable]
    impl Importer for Peer {
        const PEER2PEER: bool = true;

        fn invalidate(&self, at: &mut Invalidated<'_>) {
            self.0.saw(Step::Invalidated);
            at.unmap();
        }
    }

    /// Returns whether all entries of the page table lead to an object, and how many there are.
    fn lead_to(control: &Control, object: &Object) -> Result<(bool, usize)> {
        let (mut right, mut count) = (true, 0);
        let entries = control.entries()?;
        let mut reserved = object.reserve(false)?;

        for entry in entries.iter().filter(|entry| entry.object == object.id()) {
            right &= reserved.is_at(entry.at, entry.address);
            count += 1;
        }
        Ok((right, count))
    }

    #[test]
    fn device_is_notified_in_order() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let control = &card.control;
            let object = card.object(3, &[Place::VRAM], Domain::Either)?;
            fill(&object, 1)?;
            let buf = export(&object)?;
            let peer = Attachment::new(buf, pdev.as_ref(), Peer(control.clone()))?;
            map(&peer)?;
            control.show(&object)?;
            check_eq!(lead_to(control, &object)?, (true, 2));
            let job = work(&mut object.reserve(false)?.resv(), Usage::Bookkeep)?;
            control.steps()?;

            done_later(control, job)?;
            validate(&object, &[Place::TT])?;
            check_eq!(
                control.steps()?[..],
                [
                    Step::Invalidated,
                    Step::Evicted,
                    Step::Done,
                    Step::Zapped,
                    Step::Queued
                ]
            );
            check_eq!(lead_to(control, &object)?.1, 0);
            check!(holds(&object, Some(1))?);
            Ok(())
        })
    }

    #[test]
    fn every_kind_of_move_is_notified() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let control = &card.control;
            let object = card.object(3, &[Place::VRAM], Domain::Either)?;
            fill(&object, 1)?;
            control.steps()?;

            // The page table does not show the object.
            validate(&object, &[Place::TT])?;
            check_eq!(control.steps()?[..], UNTOLD);

            for place in [Place::VRAM, Place::TT, Place::VRAM] {
                control.show(&object)?;
                check_eq!(lead_to(control, &object)?, (true, 2));
                validate(&object, &[place])?;
                check_eq!(control.steps()?[..], TOLD);
                check_eq!(lead_to(control, &object)?.1, 0);
                // Without new entries, later moves are not notified.
                let back = if place.mem_type() == MemType::Vram {
                    Place::TT
                } else {
                    Place::VRAM
                };
                validate(&object, &[back])?;
                validate(&object, &[place])?;
                check_eq!(control.steps()?[..], [Step::Queued; 2]);
            }

            // An object that becomes swappable is notified as well, although nothing is copied.
            validate(&object, &[Place::TT])?;
            control.show(&object)?;
            control.steps()?;
            validate(&object, &[Place::SYSTEM])?;
            check_eq!(control.steps()?[..], TOLD[..2]);
            check_eq!(control.show(&object), Err(EINVAL));
            validate(&object, &[Place::TT])?;
            check!(holds(&object, Some(1))?);

            // Another object evicts this one.
            validate(&object, &[Place::VRAM])?;
            control.show(&object)?;
            control.steps()?;
            let all = card.object(
                card.ttm().vram_size() / PAGE,
                &[Place::VRAM],
                Domain::Either,
            )?;
            check_eq!(control.steps()?[..2], TOLD[..2]);
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            check_eq!(lead_to(control, &object)?.1, 0);
            drop(all);
            Ok(())
        })
    }

    #[test]
    fn failed_move_leaves_what_is_right() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let control = &card.control;
            let object = card.object(3, &[Place::VRAM], Domain::Either)?;
            fill(&object, 1)?;
            control.show(&object)?;
            control.steps()?;

            // The move fails before the entries are zapped.
            let job = work(&mut object.reserve(false)?.resv(), Usage::Bookkeep)?;
            let ret = object
                .reserve(false)?
                .validate(&[Place::TT], &mut OpCtx::without_waiting());
            check!(ret.is_err());
            check_eq!(control.steps()?[..], [Step::Evicted]);
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            check_eq!(lead_to(control, &object)?, (true, 2));
            job.signal(Ok(()));

            // The move fails after the entries are zapped.
            control.set(Mode::Refuse);
            check_eq!(validate(&object, &[Place::TT]), Err(REFUSED));
            control.set(Mode::Work);
            check_eq!(control.steps()?[..], [Step::Evicted, Step::Zapped]);
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            check_eq!(lead_to(control, &object)?.1, 0);

            control.show(&object)?;
            check_eq!(lead_to(control, &object)?, (true, 2));
            validate(&object, &[Place::TT])?;
            check_eq!(control.steps()?[..], TOLD);
            check!(holds(&object, Some(1))?);
            Ok(())
        })
    }

    #[test]
    fn suspended_device_is_not_asked() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let control = &card.control;
            let object = card.object(3, &[Place::VRAM], Domain::Either)?;
            fill(&object, 1)?;
            control.show(&object)?;
            control.steps()?;

            let asleep = Asleep::new(pdev.as_ref());
            check_eq!(validate(&object, &[Place::TT]), Err(EAGAIN));
            // There are no notifications of a move that fails; the entries and the object stay.
            check_eq!(control.steps()?.len(), 0);
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            check_eq!(lead_to(control, &object)?, (true, 2));
            drop(asleep);

            validate(&object, &[Place::TT])?;
            check_eq!(control.steps()?[..], TOLD);
            check_eq!(lead_to(control, &object)?.1, 0);
            check!(holds(&object, Some(1))?);
            Ok(())
        })
    }

    #[test]
    fn unplug_clears_all() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let control = card.control.clone();
            let vram = card.object(3, &[Place::VRAM], Domain::Vram)?;
            let local = card.object(3, &[Place::TT], Domain::Either)?;
            let unseen = card.object(3, &[Place::VRAM], Domain::Either)?;
            control.show(&vram)?;
            control.show(&local)?;
            control.steps()?;

            drop(card);
            check_eq!(
                control.steps()?[..],
                [Step::Evicted, Step::Zapped, Step::Evicted, Step::Zapped]
            );
            check_eq!(control.entries()?.len(), 0);
            // The device gets no address any more, and is not notified of moves.
            check_eq!(control.show(&unseen), Err(ENODEV));
            validate(&local, &[Place::SYSTEM])?;
            check_eq!(control.steps()?.len(), 0);
            Ok(())
        })
    }

    #[test]
    fn storm_leaves_no_wrong_entry() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let control = &card.control;
            let pages = card.ttm().vram_size() / PAGE / 3;
            let mut objects = KVec::new();

            for seed in 0..5 {
                let object = card.object(pages, &[Place::VRAM, Place::TT], Domain::Either)?;

                fill(&object, seed)?;
                objects.push(object, GFP_KERNEL)?;
            }
            let mut told = 0;
            for round in 0..40 {
                let object = &objects[round * 7 % 5];
                let place = if round % 3 == 0 {
                    Place::TT
                } else {
                    Place::VRAM
                };

                validate(object, &[place])?;
                let steps = control.steps()?;
                told += steps.iter().filter(|step| **step == Step::Zapped).count();
                if lead_to(control, object)?.1 == 0 {
                    control.show(object)?;
                }
                for object in &objects {
                    check!(lead_to(control, object)?.0);
                }
            }
            check!(told > 20);
            for (seed, object) in objects.iter().enumerate() {
                check!(holds(object, Some(seed as u64))?);
            }
            Ok(())
        })
    }

    /// Calls `f` with a device, and with an imported object that its page table shows.
    fn with_import(
        pdev: &kernel::pci::Device<kernel::device::Core<'_>>,
        f: impl FnOnce(Card, &DmaBuf, ARef<Object>) -> Result,
    ) -> Result {
        let faux = faux::Registration::new(c"vram_kunit", None)?;
        let exports = exports(&faux)?;
        let pages = Pages::new(3 * PAGE_SIZE, GFP_KERNEL)?;
        let buf = exports.export(Store(Shared::new(pages)?), 3 * PAGE_SIZE, flags::O_RDWR)?;
        let card = Card::new(pdev, 0)?;
        let neighbour = card.object(1, &[Place::TT], Domain::Either)?;
        let object = import(&neighbour, &buf)?;

        card.control.show(&object)?;
        check_eq!(lead_to(&card.control, &object)?, (true, 2));
        for entry in &card.control.entries()? {
            check!(matches!(entry.address, Address::Dma(_)));
        }
        card.control.steps()?;
        f(card, &buf, object)
    }

    /// Waits until the page table has no entry of an object, and returns the steps.
    fn cleared(control: &Control, object: &Object) -> Result<KVec<Step>> {
        if soon(|| lead_to(control, object).is_ok_and(|it| it.1 == 0)) {
            return control.steps();
        }
        Err(ETIMEDOUT)
    }

    /// A dma-buf may have any size, and a GEM object only that of whole pages.
    #[test]
    fn import_of_a_part_of_a_page_is_refused() -> Result {
        with_device(|pdev| {
            with_import(pdev, |card, buf, object| {
                for size in [0, 1, PAGE_SIZE - 1, PAGE_SIZE + 1] {
                    let odd = with_size(buf, size, || import(&object, buf));
                    check_eq!(odd.err(), Some(EINVAL));
                }
                check_eq!(buf.size(), 3 * PAGE_SIZE);
                check_eq!(lead_to(&card.control, &object)?, (true, 2));
                Ok(())
            })
        })
    }

    #[test]
    fn import_that_is_idle_goes_at_once() -> Result {
        with_device(|pdev| {
            with_import(pdev, |card, buf, object| {
                let control = &card.control;
                let before = control.entries()?;

                invalidate(buf);
                check_eq!(control.steps()?[..], TOLD[..2]);
                check_eq!(control.entries()?.len(), 0);
                check!(!object
                    .reserve(false)?
                    .is_at(before[0].at, before[0].address));

                // The next use maps the buffer again.
                control.show(&object)?;
                check_eq!(lead_to(control, &object)?, (true, 2));
                check_eq!(control.steps()?.len(), 0);
                // There are no notifications of an object that the page table does not show.
                invalidate(buf);
                control.steps()?;
                invalidate(buf);
                check_eq!(control.steps()?.len(), 0);
                Ok(())
            })
        })
    }

    #[test]
    fn import_in_use_is_kept_until_it_is_not() -> Result {
        with_device(|pdev| {
            with_import(pdev, |card, buf, object| {
                let control = &card.control;

                // The imported object is not used again.
                let job = work(&mut buf.resv().lock().locked(), Usage::Bookkeep)?;
                invalidate(buf);
                check_eq!(control.steps()?[..], [Step::Evicted]);
                pause();
                check!(shared_queue_is_idle()?);
                check_eq!(lead_to(control, &object)?, (true, 2));
                done_later(control, job)?;
                check_eq!(cleared(control, &object)?[..], [Step::Done, Step::Zapped]);

                // The imported object is used again.
                control.show(&object)?;
                let job = work(&mut buf.resv().lock().locked(), Usage::Bookkeep)?;
                invalidate(buf);
                let place = || {
                    registered(&object, |dev| {
                        let mut reserved = object.reserve(false)?;

                        reserved
                            .placed(dev, &mut OpCtx::uninterruptible())
                            .map(drop)
                    })
                };
                // The job may be one of another device, so the reservation is not held for it.
                check_eq!(place(), Err(EAGAIN));
                check_eq!(control.steps()?[..], [Step::Evicted]);
                done_later(control, job)?;
                object.as_import().ok_or(EINVAL)?.await_unused()?;
                place()?;
                check_eq!(control.steps()?[..], [Step::Done, Step::Zapped]);
                check_eq!(lead_to(control, &object)?.1, 0);
                Ok(())
            })
        })
    }

    #[test]
    fn import_that_is_invalidated_again_is_not_kept_for_later_work() -> Result {
        with_device(|pdev| {
            with_import(pdev, |card, buf, object| {
                let control = &card.control;
                let first = work(&mut buf.resv().lock().locked(), Usage::Bookkeep)?;

                invalidate(buf);
                check_eq!(control.steps()?[..], [Step::Evicted]);
                pause();
                // The exporter moves the buffer again, and other work uses it, before this device
                // does.
                let second = work(&mut buf.resv().lock().locked(), Usage::Bookkeep)?;
                invalidate(buf);
                check_eq!(control.steps()?[..], [Step::Evicted]);
                done_later(control, first)?;
                check_eq!(cleared(control, &object)?[..], [Step::Done, Step::Zapped]);
                drop(second);
                Ok(())
            })
        })
    }

    #[test]
    fn import_goes_with_the_device() -> Result {
        with_device(|pdev| {
            // An unbind does not wait for work of the device that is under way.
            for is_busy in [false, true] {
                with_import(pdev, |card, buf, object| {
                    let control = card.control.clone();
                    let before = control.entries()?;
                    let job = if is_busy {
                        Some(work(&mut buf.resv().lock().locked(), Usage::Bookkeep)?)
                    } else {
                        None
                    };

                    drop(card);
                    check_eq!(control.steps()?[..], TOLD[..2]);
                    check_eq!(control.entries()?.len(), 0);
                    check!(!object
                        .reserve(false)?
                        .is_at(before[0].at, before[0].address));
                    drop(job);
                    invalidate(buf);
                    check_eq!(control.steps()?.len(), 0);
                    Ok(())
                })?;
            }
            Ok(())
        })
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Exported objects: importers that are no peers, moves, pins, suspended devices, signals.

use kernel::prelude::*;

#[kunit_tests(vram_exported)]
mod tests {
    use crate::{
        bench::{
            export,
            fill,
            holds,
            mem_type,
            validate,
            vmap_has,
            with_device,
            Asleep,
            Bo,
            Card,
            Mode,
            Object,
            BAR,
            PAGE,
            REFUSED, //
        },
        importer::{
            late,
            map,
            prompt,
            Pinner,
            DIR, //
        },
        signal::Signal,
        waits::{
            self,
            work,
            Meanwhile, //
        },
        worker::{
            self,
            limit, //
        }, //
    };
    use kernel::{
        device::{
            Bound,
            Device, //
        },
        dma_buf::{
            importer::LockedAttachment,
            vmap::VMap,
            Attachment,
            Importer,
            StaticAttachment, //
        },
        dma_resv::Usage,
        drm::{
            exec::Flag,
            gem::{
                peer::{
                    attachments,
                    flags,
                    AttachmentInfo,
                    Event,
                    Outcome,
                    Path,
                    Reason, //
                },
                BaseObject, //
            },
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
        module::this_module,
        new_mutex,
        pci,
        prelude::*,
        sync::{
            aref::ARef,
            atomic::Relaxed,
            Arc, //
        },
        time::{
            delay::fsleep,
            Delta, //
        }, //
    };

    /// Pins, and does not opt in to peer-to-peer memory.
    struct Local;

    #[vtable]
    impl Importer for Local {
        const PEER2PEER: bool = false;
    }

    fn only(object: &Object) -> Result<AttachmentInfo> {
        let list = attachments::<Bo>(object)?;

        check_eq!(list.len(), 1);
        Ok(list[0])
    }

    fn count(card: &Card, event: Event, reason: Reason) -> u64 {
        card.ttm().counters().get(event, reason)
    }

    /// Returns whether a mapping leads to the place of an object in VRAM.
    fn leads_to_vram(
        pdev: &pci::Device<Bound>,
        at: &LockedAttachment<'_>,
        offset: u64,
    ) -> Result<bool> {
        let first = at
            .mapping()
            .and_then(|table| table.iter().next())
            .ok_or(ENOENT)?;

        Ok(first.dma_address() == pdev.resource_start(BAR)? + offset)
    }

    fn offset(object: &Object) -> Result<u64> {
        let object = object.reserve(false)?;

        object.vram().and_then(|vram| vram.offset(0)).ok_or(ENXIO)
    }

    #[test]
    fn importer_is_not_pci() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let faux = faux::Registration::new(c"vram_kunit", None)?;
            let client: &Device<Bound> = faux.as_ref().as_ref();

            // An object that never leaves VRAM is refused.
            let object = card.object(1, &[Place::VRAM], Domain::Vram)?;
            let buf = export(&object)?;
            check_eq!(
                Attachment::new(buf.clone(), client, prompt()).err(),
                Some(EOPNOTSUPP)
            );
            let refused = only(&object)?;
            check_eq!(refused.outcome, Outcome::refused(Reason::NotPci));
            check_eq!(refused.hops(), -1);
            check_eq!(
                refused.flags,
                flags::PEER2PEER | flags::DYNAMIC | flags::REVOCABLE
            );
            check_eq!(count(&card, Event::AttachRefused, Reason::NotPci), 1);
            drop(buf);

            // An object that may be in system memory, or always is.
            for (n, domain) in [Domain::Either, Domain::System].into_iter().enumerate() {
                let object = card.object(1, &domain.places(), domain)?;
                let buf = export(&object)?;
                let at = Attachment::new(buf.clone(), client, prompt())?;
                check_eq!(only(&object)?.outcome, Outcome::system(Reason::NotPci));
                check_eq!(
                    count(&card, Event::AttachSystem, Reason::NotPci),
                    n as u64 + 1
                );
                drop(at);
                check_eq!(attachments::<Bo>(&object)?.len(), 0);
            }

            // If there are two reasons, the exporter reports the one that the importer can change.
            let object = card.object(1, &[Place::VRAM], Domain::Either)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), client, Local)?;
            check_eq!(only(&object)?.outcome, Outcome::system(Reason::NoOptIn));
            drop(at);

            // The object is pinned in VRAM by a peer.
            let pinned = object.reserve(false)?.pin()?;
            check_eq!(
                Attachment::new(buf.clone(), client, prompt()).err(),
                Some(EOPNOTSUPP)
            );
            check_eq!(
                only(&object)?.outcome,
                Outcome::refused(Reason::PinnedElsewhere)
            );
            check_eq!(
                count(&card, Event::AttachRefused, Reason::PinnedElsewhere),
                1
            );
            drop(pinned);
            Ok(())
        })
    }

    #[test]
    fn importer_that_is_not_pci_moves_the_object() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let faux = faux::Registration::new(c"vram_kunit", None)?;
            let object = card.object(3, &[Place::VRAM], Domain::Either)?;
            fill(&object, 1)?;
            let buf = export(&object)?;

            let peer = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            map(&peer)?;
            check_eq!(only(&object)?.outcome, Outcome::peer(Path::PeerBus));
            check_eq!(mem_type(&object)?, Some(MemType::Vram));

            // Only a mapping or a pin moves the object, not the attachment; the peer is notified
            // then.
            let other = Attachment::new(buf.clone(), faux.as_ref().as_ref(), Local)?;
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            check_eq!(peer.importer().0.load(Relaxed), 0);
            other.with(|at| at.pin())?;
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            check_eq!(peer.importer().0.load(Relaxed), 1);
            check!(holds(&object, Some(1))?);
            peer.with(|at| {
                check!(at.mapping().is_none());
                at.map(DIR).map(|_| ())
            })?;
            let list = attachments::<Bo>(&object)?;
            check_eq!(list[0].outcome, Outcome::system(Reason::OtherImporter));
            check_eq!(count(&card, Event::MapSystem, Reason::OtherImporter), 1);
            check_eq!(card.ttm().pinned(), 0);

            // After the other importer has detached, the next mapping of the peer moves the object
            // to VRAM.
            drop(other);
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            peer.with(|at| {
                at.unmap();
                at.map(DIR).map(|_| ())
            })?;
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            let here = offset(&object)?;
            check!(peer.with(|at| leads_to_vram(pdev, at, here))?);
            drop(peer);
            check!(holds(&object, Some(1))?);
            Ok(())
        })
    }

    #[test]
    fn importer_moves_an_encoded_object() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.encoded(Domain::Either)?;
            fill(&object, 6)?;
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            let here = offset(&object)?;
            let buf = export(&object)?;

            for maps in 1..3 {
                let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
                map(&at)?;
                check_eq!(mem_type(&object)?, Some(MemType::Tt));
                check!(!at.with(|at| leads_to_vram(pdev, at, here))?);
                check!(holds(&object, Some(6))?);
                check_eq!(only(&object)?.outcome, Outcome::system(Reason::Encoded));
                check_eq!(count(&card, Event::AttachSystem, Reason::Encoded), maps);
                check_eq!(count(&card, Event::MapSystem, Reason::Encoded), maps);
                drop(at);

                // Without an importer it may be in VRAM again.
                validate(&object, &[Place::VRAM])?;
                check!(holds(&object, Some(6))?);
            }
            Ok(())
        })
    }

    #[test]
    fn suspended_device_has_no_peers() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let dev: &Device<Bound> = pdev.as_ref();
            let either = card.object(1, &[Place::VRAM], Domain::Either)?;
            let local = card.object(1, &[Place::TT], Domain::Either)?;
            fill(&either, 2)?;
            fill(&local, 3)?;
            let free = card.ttm().vram_free();
            let buf = export(&either)?;
            let vram = card.object(1, &[Place::VRAM], Domain::Vram)?;
            let of_vram = export(&vram)?;

            let asleep = Asleep::new(dev);
            let at = Attachment::new(buf.clone(), dev, prompt())?;
            check_eq!(only(&either)?.outcome, Outcome::system(Reason::Suspended));
            check_eq!(count(&card, Event::AttachSystem, Reason::Suspended), 1);
            check_eq!(
                Attachment::new(of_vram.clone(), dev, prompt()).err(),
                Some(EOPNOTSUPP)
            );
            check_eq!(only(&vram)?.outcome, Outcome::refused(Reason::Suspended));
            check_eq!(count(&card, Event::AttachRefused, Reason::Suspended), 1);

            // No object moves to VRAM or out of it: each stays at its place.
            check_eq!(map(&at), Err(EAGAIN));
            check_eq!(validate(&local, &[Place::VRAM]), Err(EAGAIN));
            check_eq!(
                card.object(1, &[Place::VRAM], Domain::Either).err(),
                Some(EACCES)
            );
            check_eq!(either.reserve(false)?.pin().err(), Some(EAGAIN));
            // A pin is dropped under the reservation, while the device is suspended.
            let pin = local.reserve(false)?.pin()?;
            drop(pin);
            check_eq!(holds(&either, None), Err(EAGAIN));
            check_eq!(mem_type(&either)?, Some(MemType::Vram));
            check_eq!(mem_type(&local)?, Some(MemType::Tt));
            check!(holds(&local, Some(3))?);
            drop(at);
            drop(asleep);

            check!(holds(&either, Some(2))?);
            check_eq!(card.free(free - PAGE), free - PAGE);
            let at = Attachment::new(buf, dev, prompt())?;
            check_eq!(
                attachments::<Bo>(&either)?[0].outcome,
                Outcome::peer(Path::PeerBus)
            );
            map(&at)?;
            check_eq!(mem_type(&either)?, Some(MemType::Vram));
            Ok(())
        })
    }

    #[test]
    fn move_invalidates() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(2, &[Place::VRAM], Domain::Either)?;
            fill(&object, 4)?;
            let buf = export(&object)?;
            let prompt = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let late = Attachment::new(buf.clone(), pdev.as_ref(), late())?;
            let mut others = KVec::<ARef<Object>>::new();

            for _ in 0..3 {
                let here = offset(&object)?;
                for again in [false, true] {
                    prompt.with(|at| {
                        at.map(DIR)?;
                        check!(leads_to_vram(pdev, at, here)?);
                        // The second mapping uses the table that was kept.
                        if !again {
                            at.unmap();
                        }
                        Ok(())
                    })?;
                }
                late.with(|at| {
                    at.map(DIR)?;
                    check!(leads_to_vram(pdev, at, here)?);
                    Ok(())
                })?;

                let before =
                    [&prompt.importer().0, &late.importer().0].map(|count| count.load(Relaxed));
                validate(&object, &[Place::TT])?;
                let now =
                    [&prompt.importer().0, &late.importer().0].map(|count| count.load(Relaxed));
                check_eq!(now, before.map(|count| count + 1));
                prompt.with(|at| {
                    check!(at.mapping().is_none());
                    Ok(())
                })?;
                late.with(|at| {
                    check!(at.mapping().is_none());
                    Ok(())
                })?;
                // The late importer still has its mapping, which it must not use any more.
                let maps = attachments::<Bo>(&object)?;
                check_eq!(maps[0].flags & flags::MAPPED, 0);
                check_eq!(maps[1].flags & flags::MAPPED, flags::MAPPED);

                // Other objects take the old place.
                while others.last().map_or(Ok(!here), |other| offset(other))? != here {
                    others.push(card.object(2, &[Place::VRAM], Domain::Vram)?, GFP_KERNEL)?;
                }
                map(&late)?;
                let there = offset(&object)?;
                check!(late.with(|at| leads_to_vram(pdev, at, there))?);
                check!(there != here);
                prompt.with(|at| {
                    at.map(DIR)?;
                    check!(leads_to_vram(pdev, at, there)?);
                    at.unmap();
                    Ok(())
                })?;
                check!(holds(&object, Some(4))?);
            }
            Ok(())
        })
    }

    #[test]
    fn refused_move_of_a_mapped_object() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(2, &[Place::VRAM], Domain::Either)?;
            fill(&object, 5)?;
            let here = offset(&object)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            map(&at)?;

            card.control.set(Mode::Refuse);
            check_eq!(validate(&object, &[Place::TT]), Err(REFUSED));
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            // The importer was notified, and its next mapping leads to the same place.
            check_eq!(at.importer().0.load(Relaxed), 1);
            at.with(|at| {
                check!(at.mapping().is_none());
                at.map(DIR)?;
                check!(leads_to_vram(pdev, at, here)?);
                at.unmap();
                Ok(())
            })?;

            // If the move to VRAM is refused, the object stays in system memory, and the importer
            // gets no mapping.
            card.control.set(Mode::Work);
            validate(&object, &[Place::TT])?;
            card.control.set(Mode::Refuse);
            check_eq!(map(&at), Err(REFUSED));
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            drop(at);

            // A pin that fails leaves nothing pinned.
            let at = Attachment::new(buf.clone(), pdev.as_ref(), Pinner)?;
            at.with(|at| {
                check_eq!(at.pin(), Err(REFUSED));
                check!(!at.is_pinned());
                Ok(())
            })?;
            check_eq!(count(&card, Event::PinRefused, Reason::None), 1);
            check_eq!(card.ttm().pinned(), 0);
            check!(!object.reserve(false)?.is_pinned());

            card.control.set(Mode::Work);
            at.with(|at| {
                at.pin()?;
                at.map(DIR).map(|_| ())
            })?;
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            drop(at);
            check!(holds(&object, Some(5))?);
            Ok(())
        })
    }

    #[test]
    fn pinned_object_stays() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();
            let object = card.object(2, &[Place::TT], Domain::Either)?;
            fill(&object, 6)?;
            let buf = export(&object)?;
            let first = Attachment::new(buf.clone(), pdev.as_ref(), Pinner)?;
            let second = Attachment::new(buf.clone(), pdev.as_ref(), Pinner)?;

            // The limit is checked for the first pin of an object.
            card.ttm().set_pin_limit(2 * PAGE - 1);
            check_eq!(first.with(|at| at.pin()), Err(EDQUOT));
            check_eq!(count(&card, Event::PinRefused, Reason::Quota), 1);
            check_eq!(card.ttm().pinned(), 0);
            card.ttm().set_pin_limit(2 * PAGE);
            first.with(|at| {
                at.pin()?;
                at.map(DIR).map(|_| ())
            })?;
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            check_eq!(card.ttm().pinned(), 2 * PAGE);
            second.with(|at| at.pin())?;
            check_eq!(card.ttm().pinned(), 2 * PAGE);

            // A pinned object is neither moved nor evicted.
            check_eq!(validate(&object, &[Place::TT]), Err(EINVAL));
            check!(card
                .object(size / PAGE, &[Place::VRAM], Domain::Vram)
                .is_err());
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            drop(first);
            check_eq!(validate(&object, &[Place::TT]), Err(EINVAL));
            check_eq!(card.ttm().pinned(), 2 * PAGE);
            second.with(|at| {
                at.unpin();
                at.unpin();
                Ok(())
            })?;
            check_eq!(card.ttm().pinned(), 0);
            validate(&object, &[Place::TT])?;

            // Without room in VRAM the object is pinned in system memory, which the importer learns
            // from its outcome.
            let full = card.object(size / PAGE, &[Place::VRAM], Domain::Vram)?;
            second.with(|at| {
                at.pin()?;
                at.map(DIR).map(|_| ())
            })?;
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            check_eq!(card.ttm().pinned(), 0);
            check_eq!(
                only(&object)?.outcome,
                Outcome::system(Reason::PinnedElsewhere)
            );
            drop(full);
            drop(second);
            check!(!object.reserve(false)?.is_pinned());
            card.ttm().set_pin_limit(size);
            check!(holds(&object, Some(6))?);
            Ok(())
        })
    }

    #[test]
    fn move_waits_for_importers() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(1, &[Place::VRAM], Domain::Either)?;
            fill(&object, 7)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;

            for usage in [Usage::Kernel, Usage::Write, Usage::Read, Usage::Bookkeep] {
                validate(&object, &[Place::VRAM])?;
                let job = at.with(|at| {
                    at.map(DIR)?;
                    work(&mut at.resv(), usage)
                })?;

                // A signal ends the wait before the move, although the importers were notified.
                let signal = Signal::new();
                check_eq!(
                    object
                        .reserve(false)?
                        .validate(&[Place::TT], &mut OpCtx::interruptible()),
                    Err(ERESTARTSYS)
                );
                drop(signal);
                check_eq!(mem_type(&object)?, Some(MemType::Vram));

                let copy = object.clone();
                let moved = Meanwhile::new(move || validate(&copy, &[Place::TT]))?;
                fsleep(Delta::from_millis(20));
                check!(!moved.is_over());
                job.signal(Ok(()));
                check_eq!(moved.end()?, Ok(()));
                check_eq!(mem_type(&object)?, Some(MemType::Tt));
                check!(holds(&object, Some(7))?);
            }
            Ok(())
        })
    }

    #[test]
    fn begin_of_a_reset_has_a_limit() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let (short, long) = (Delta::from_millis(30), Delta::from_millis(limit().into()));
            let object = card.object(1, &[Place::VRAM], Domain::Either)?;
            let other = card.object(1, &[Place::VRAM], Domain::Either)?;
            fill(&object, 7)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let evict = |limit| card.ttm().begin_reset(limit);

            // The reservation is held, as by a task that waits for another device.
            let held = object.reserve(false)?;
            check_eq!(evict(short), Err(EBUSY));
            drop(held);
            check_eq!(mem_type(&object)?, Some(MemType::Vram));

            // An importer does not end its work.
            let job = at.with(|at| {
                at.map(DIR)?;
                work(&mut at.resv(), Usage::Write)
            })?;
            check_eq!(evict(short), Err(EBUSY));
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            job.signal(Ok(()));

            // Other objects are not concerned.
            check_eq!(evict(long), Ok(()));
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            check_eq!(mem_type(&other)?, Some(MemType::Vram));
            check!(holds(&object, Some(7))?);
            card.ttm().end_reset();
            Ok(())
        })
    }

    #[test]
    fn signals_end_waits() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(1, &[Place::VRAM], Domain::Either)?;
            fill(&object, 8)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), Pinner)?;

            // A pin and a mapping wait for moves.
            let job = work(&mut object.reserve(false)?.resv(), Usage::Kernel)?;
            let signal = Signal::new();
            check_eq!(at.with(|at| at.pin()), Err(ERESTARTSYS));
            check_eq!(card.ttm().pinned(), 0);
            check!(!object.reserve(false)?.is_pinned());
            check_eq!(object.reserve(false)?.pin().err(), Some(ERESTARTSYS));
            check_eq!(buf.begin_cpu_access(DIR), Err(ERESTARTSYS));
            let dynamic = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            dynamic.with(|at| {
                check_eq!(at.map(DIR).err(), Some(ERESTARTSYS));
                check!(at.mapping().is_none());
                Ok(())
            })?;
            check_eq!(attachments::<Bo>(&object)?[1].flags & flags::MAPPED, 0);
            check_eq!(count(&card, Event::PinRefused, Reason::None), 1);
            drop(signal);
            job.signal(Ok(()));
            at.with(|at| at.pin())?;
            map(&dynamic)?;

            // A signal ends the wait for a reservation that another task holds, too.
            let held = waits::reserve(&object)?;
            let signal = Signal::new();
            let reserved = object.reserve(true).err();
            let executed = card
                .ttm()
                .exec(Flag::Interruptible, |exec| object.lock(exec).map(|_| ()));
            drop(signal);
            drop(held);
            check_eq!(reserved, Some(EINTR));
            check_eq!(executed, Err(ERESTARTSYS));
            drop((at, dynamic));
            check!(holds(&object, Some(8))?);
            Ok(())
        })
    }

    #[test]
    fn unplug_takes_everything_back() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(2, &[Place::VRAM], Domain::Either)?;
            let local = card.object(2, &[Place::TT], Domain::Either)?;
            fill(&local, 9)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            map(&at)?;

            drop(card);
            check_eq!(at.importer().0.load(Relaxed), 1);
            at.with(|at| {
                check!(at.mapping().is_none());
                check_eq!(at.map(DIR).err(), Some(ENODEV));
                check_eq!(at.pin(), Err(ENODEV));
                Ok(())
            })?;
            check_eq!(attachments::<Bo>(&object).err(), Some(ENODEV));
            check_eq!(
                Attachment::new(buf.clone(), pdev.as_ref(), prompt()).err(),
                Some(ENODEV)
            );
            // After the unbind no object moves.
            check_eq!(validate(&object, &[Place::TT]), Err(ENODEV));
            check_eq!(validate(&local, &[Place::VRAM]), Err(ENODEV));
            check!(holds(&object, None).is_err());
            check!(holds(&local, Some(9))?);

            // The old device outlives its registration; a new one is made meanwhile.
            let next = Card::new(pdev, 0)?;
            let new = next.object(2, &[Place::VRAM], Domain::Vram)?;
            check!(holds(&new, None)?);
            drop((object, local, at, buf));
            check!(holds(&new, None)?);
            Ok(())
        })
    }

    #[test]
    fn kernel_maps_vram_that_has_pages() -> Result {
        with_device(|pdev| {
            pdev.add_p2pdma_pages(BAR)?;
            let card = Card::new(pdev, 0)?;
            // Three pages behind a single one are in two pieces.
            let _first = card.object(1, &[Place::VRAM], Domain::Vram)?;
            let object = card.object(3, &[Place::VRAM], Domain::Vram)?;
            fill(&object, 11)?;

            let map = VMap::new(export(&object)?)?;
            check!(map.is_iomem());
            check!(vmap_has(&map, 11)?);

            // The kernel writes to VRAM as well, so the mapping shows this object and no other.
            fill(&object, 12)?;
            check!(vmap_has(&map, 12)?);
            Ok(())
        })
    }

    #[test]
    fn unplug_waits_for_the_kernel() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(2, &[Place::VRAM], Domain::Either)?;
            fill(&object, 10)?;
            let buf = export(&object)?;
            let map = VMap::new(buf.clone())?;
            let mut first = [0; 8];
            map.read(0, &mut first)?;
            check!(map.is_iomem() && first != [0; 8]);
            check_eq!(map.read(object.size() - 7, &mut [0; 8]), Err(EINVAL));
            check_eq!(map.write(object.size(), &[0]), Err(EINVAL));
            // A mapping of the kernel pins the object.
            check_eq!(card.ttm().pinned(), 2 * PAGE);
            check_eq!(validate(&object, &[Place::TT]), Err(EINVAL));

            let seen = Arc::pin_init(new_mutex!(None), GFP_KERNEL)?;
            let (has_seen, copy, of) = (seen.clone(), object.clone(), buf.clone());
            worker::spawn(move || {
                let mut now = [0; 8];

                while attachments::<Bo>(&copy).err() != Some(ENODEV) {
                    fsleep(Delta::from_millis(1));
                }
                fsleep(Delta::from_millis(20));
                let ret = map.read(0, &mut now);
                let another = VMap::new(of.clone()).map(|_| ());
                drop((copy, of));
                *has_seen.lock() = Some((ret, now, another));
                // The unbind goes on when the mapping is dropped.
                drop(map);
            })?;
            drop(card);
            let seen = *seen.lock();
            let (ret, now, another) = seen.ok_or(ETIME)?;
            check_eq!(ret, Ok(()));
            check_eq!(now, first);
            // The DMA-buf core shares its mapping without a call of the exporter; the unbind waits
            // for its last user.
            check_eq!(another, Ok(()));
            check_eq!(VMap::new(buf.clone()).err(), Some(ENODEV));
            Ok(())
        })
    }

    #[test]
    fn attaching_is_one_step() -> Result {
        const ROUNDS: usize = 100;

        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(1, &[Place::TT], Domain::Either)?;
            let buf = export(&object)?;
            let peer = Arc::new(
                Attachment::new(buf.clone(), pdev.as_ref(), Pinner)?,
                GFP_KERNEL,
            )?;
            let dev: ARef<Device> = {
                let dev: &Device = pdev.as_ref();
                dev.into()
            };
            let mut attached = 0;

            for _ in 0..ROUNDS {
                // Both tasks wait for the reservation: one attaches an importer that takes system
                // memory only, the other one pins, in VRAM if there is no other importer.
                let guard = buf.resv().lock();
                let (of, dev) = (buf.clone(), dev.clone());
                let local = Meanwhile::new(move || {
                    // SAFETY: The device is being probed until this is complete.
                    let dev = unsafe { dev.as_bound() };
                    StaticAttachment::new(of, dev).map(|at| at.with(|at| at.map(DIR).map(|_| ())))
                })?;
                fsleep(Delta::from_millis(3));
                let at = peer.clone();
                let pinned = Meanwhile::new(move || at.with(|at| at.pin()))?;
                fsleep(Delta::from_millis(3));
                drop(guard);
                let (mapped, _) = (local.end()?, pinned.end()?);

                // An importer that could attach gets its mapping.
                match mapped {
                    Ok(mapped) => {
                        check_eq!(mapped, Ok(()));
                        attached += 1;
                    }
                    Err(e) => check_eq!(e, EOPNOTSUPP),
                }
                peer.with(|at| {
                    at.unpin();
                    Ok(())
                })?;
            }
            pr_info!("attached {} times in {} rounds\n", attached, ROUNDS);
            check!(attached > 0);
            Ok(())
        })
    }

    // The task waits for a lock that it holds: on PREEMPT_RT this is reported, and it never returns.
    #[cfg(not(CONFIG_PREEMPT_RT))]
    #[test]
    fn signals_end_the_wait_for_the_device() -> Result {
        with_device(|pdev| {
            // The probe that runs the test holds the device lock.
            let _signal = Signal::new();
            let dev: &Device<Bound> = pdev.as_ref();

            let own = this_module::<crate::LocalModule>();
            check_eq!(dev.with_bound(own, |_| Ok(())), Err(ERESTARTSYS));
            Ok(())
        })
    }

    /// A module gets no bound device of the driver of another one, which may stay bound when the
    /// module is gone.
    #[test]
    fn devices_of_others_are_not_lent() -> Result {
        let faux = faux::Registration::new(c"vram_kunit_other", None)?;
        let other: &faux::Device<Bound> = faux.as_ref();
        let dev: &Device = other.as_ref();
        let own = this_module::<crate::LocalModule>();

        check_eq!(dev.with_bound(own, |_| Ok(())), Err(ENODEV));
        Ok(())
    }

    #[test]
    fn pin_over_the_limit_evicts_nobody() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();
            let object = card.object(1, &[Place::TT], Domain::Either)?;
            let victim = card.object(size / PAGE, &[Place::VRAM], Domain::Either)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), Pinner)?;

            card.ttm().set_pin_limit(0);
            check_eq!(at.with(|at| at.pin()), Err(EDQUOT));
            check_eq!(mem_type(&victim)?, Some(MemType::Vram));
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            check_eq!(card.ttm().pinned(), 0);
            Ok(())
        })
    }

    #[test]
    fn pin_waits_for_a_victim() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();
            let object = card.object(1, &[Place::TT], Domain::Either)?;
            let victim = card.object(size / PAGE, &[Place::VRAM], Domain::Either)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), Pinner)?;

            // Another task reserves the victim for a moment, as a fault or another move does.
            let reserved = waits::reserve(&victim)?;
            waits::until(move || drop(reserved), || at.with(|at| at.pin()))??;
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            drop(at);
            // Waits until the other task has released it.
            drop(victim.reserve(false)?);
            Ok(())
        })
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Importers of a device that shows VRAM through windows: see [`windows`](crate::windows).

use crate::{
    bench::{
        export,
        holds,
        mem_type,
        validate,
        with_device, //
    },
    importer::{
        late,
        map_and_leave,
        prompt,
        revocable,
        unmap,
        DIR, //
    },
    waits,
    windows::{
        card,
        card_showing,
        object,
        sees,
        Bo,
        Card,
        Mode,
        Object, //
    }, //
};
use kernel::{
    dma_buf::Attachment,
    dma_resv::Usage,
    drm::{
        gem::peer::{
            attachments,
            Event,
            Outcome,
            Path,
            Reason, //
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
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

#[kunit_tests(vram_aperture)]
mod tests {
    use super::*;

    fn count(card: &Card, event: Event, reason: Reason) -> u64 {
        card.device().ttm.counters().get(event, reason)
    }

    /// The window shows the object while the table is mapped, and is closed with it.
    #[test]
    fn window_is_there_while_mapped() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 3, Domain::Vram, 1)?;
            let at = Attachment::new(export(&object)?, pdev.as_ref(), prompt())?;
            check_eq!(aperture.windows(), (0, 0));

            // The offsets are neither the place of the object in VRAM, nor in the same order.
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

            // The table is made anew each time, for another window.
            for made in 2..50 {
                check!(sees(&at, &aperture, 3, 1)?);
                check_eq!(aperture.windows(), (1, made));
                unmap(&at)?;
                check_eq!(aperture.windows(), (0, made));
            }

            // The detach of the importer closes the window.
            check!(sees(&at, &aperture, 3, 1)?);
            drop(at);
            check_eq!(aperture.windows(), (0, 50));
            Ok(())
        })
    }

    /// Peers and the CPU see hidden VRAM, which the BAR shows through windows only.
    #[test]
    fn hidden_vram_is_seen() -> Result {
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
                check_eq!(mem_type(&object)?, Some(MemType::Vram));

                // The mapping of the kernel uses the same window.
                check!(holds(&object, None)?);
                check_eq!(mem_type(&object)?, Some(MemType::Vram));
                check_eq!(aperture.windows().0, 1);
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

            // The aperture has room for one window of the object, not for two.
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

            // The object moves back to VRAM.
            check!(sees(&first, &aperture, 2, 1)?);
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            check_eq!(aperture.windows(), (1, 2));
            check!(sees(&last, &aperture, 2, 1)?);
            check_eq!(aperture.windows(), (1, 2));

            // The importer that has not unmapped has no window any more, and its unmap does not
            // close the new one.
            validate(&object, &[Place::TT])?;
            check_eq!(aperture.windows(), (0, 2));
            crate::bench::fill(&object, 2)?;
            check!(sees(&first, &aperture, 2, 2)?);
            check_eq!(aperture.windows(), (1, 3));
            unmap(&last)?;
            check_eq!(aperture.windows(), (1, 3));
            check!(sees(&last, &aperture, 2, 2)?);
            unmap(&first)?;
            check_eq!(aperture.windows(), (1, 3));
            unmap(&last)?;
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

    /// An importer that has not pinned its object makes room for another one. It is invalidated,
    /// and maps the object again when it needs it.
    #[test]
    fn importers_take_turns() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let objects = [
                object(&card, 2, Domain::Vram, 0)?,
                object(&card, 2, Domain::Vram, 1)?,
                object(&card, 2, Domain::Vram, 2)?,
            ];
            let attach =
                |index: usize| Attachment::new(export(&objects[index])?, pdev.as_ref(), prompt());
            let all = [attach(0)?, attach(1)?, attach(2)?];
            let invalidated =
                || [0, 1, 2].map(|index: usize| all[index].importer().0.load(Relaxed));

            aperture.set_limit(4);
            check!(sees(&all[0], &aperture, 2, 0)?);
            check!(sees(&all[1], &aperture, 2, 1)?);
            check_eq!(invalidated(), [0, 0, 0]);
            check!(sees(&all[2], &aperture, 2, 2)?);
            check_eq!(invalidated(), [1, 0, 0]);
            check_eq!(aperture.windows(), (2, 3));
            // The second one, which has mapped least recently.
            check!(sees(&all[0], &aperture, 2, 0)?);
            check_eq!(invalidated(), [1, 1, 0]);
            check_eq!(aperture.windows(), (2, 4));
            for object in &objects {
                check_eq!(mem_type(object)?, Some(MemType::Vram));
            }
            check_eq!(count(&card, Event::MapSystem, Reason::NoWindow), 0);
            Ok(())
        })
    }

    /// The window of an importer that does not unmap is closed, too. Its later unmap does not close
    /// the next one.
    #[test]
    fn late_importer_makes_room() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let first = object(&card, 2, Domain::Vram, 1)?;
            let second = object(&card, 2, Domain::Vram, 2)?;
            let (first, second) = (export(&first)?, export(&second)?);
            let last = Attachment::new(first.clone(), pdev.as_ref(), late())?;
            let same = Attachment::new(first, pdev.as_ref(), prompt())?;
            let other = Attachment::new(second, pdev.as_ref(), prompt())?;

            aperture.set_limit(3);
            check!(sees(&last, &aperture, 2, 1)?);
            check!(sees(&other, &aperture, 2, 2)?);
            check_eq!(last.importer().0.load(Relaxed), 1);
            check_eq!(aperture.windows(), (1, 2));
            check!(sees(&same, &aperture, 2, 1)?);
            check_eq!(aperture.windows(), (1, 3));
            unmap(&same)?;
            check_eq!(aperture.windows(), (0, 3));
            check!(sees(&same, &aperture, 2, 1)?);
            unmap(&last)?;
            check_eq!(aperture.windows(), (1, 4));
            unmap(&same)?;
            check_eq!(aperture.windows(), (0, 4));
            Ok(())
        })
    }

    /// The work of an importer ends before its window is closed.
    #[test]
    fn work_of_an_importer_is_waited_for() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let used = object(&card, 2, Domain::Vram, 1)?;
            let other = object(&card, 2, Domain::Vram, 2)?;
            let user = Attachment::new(export(&used)?, pdev.as_ref(), prompt())?;
            let at = Attachment::new(export(&other)?, pdev.as_ref(), late())?;

            aperture.set_limit(3);
            check!(sees(&user, &aperture, 2, 1)?);
            let work = waits::work(&mut used.reserve(false)?.resv(), Usage::Bookkeep)?;
            let done = Arc::new(Atomic::new(false), GFP_KERNEL)?;
            let is_done = done.clone();
            let end = move || {
                is_done.store(true, Relaxed);
                work.signal(Ok(()));
            };
            check!(waits::until(end, || {
                let ret = sees(&at, &aperture, 2, 2);

                ret.map(|is_seen| is_seen && done.load(Relaxed))
            })??);
            check_eq!(user.importer().0.load(Relaxed), 1);
            check_eq!(aperture.windows(), (1, 2));
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
            let holder = Attachment::new(export(&first)?, pdev.as_ref(), revocable())?;
            let refused = Attachment::new(export(&second)?, pdev.as_ref(), prompt())?;
            let pins = Attachment::new(export(&pinned)?, pdev.as_ref(), revocable())?;

            aperture.set_limit(3);
            holder.with(|at| at.pin())?;
            pins.with(|at| at.pin())?;
            check!(sees(&holder, &aperture, 2, 1)?);
            check_eq!(sees(&refused, &aperture, 2, 2).err(), Some(ENOSPC));
            check_eq!(sees(&pins, &aperture, 2, 3).err(), Some(ENOSPC));
            check_eq!(aperture.windows(), (1, 1));
            check_eq!(mem_type(&second)?, Some(MemType::Vram));
            check_eq!(mem_type(&pinned)?, Some(MemType::Vram));
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
            let holder = Attachment::new(export(&other)?, pdev.as_ref(), revocable())?;
            let buf = export(&object)?;
            let first = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let second = Attachment::new(buf, pdev.as_ref(), prompt())?;

            aperture.set_limit(2);
            holder.with(|at| at.pin())?;
            check!(sees(&holder, &aperture, 2, 1)?);
            for at in [&first, &second] {
                check!(!sees(at, &aperture, 2, 2)?);
                check_eq!(mem_type(&object)?, Some(MemType::Tt));
            }
            // The object has moved once: the second importer did not try again, which would have
            // invalidated the mapping of the first one.
            check_eq!(first.importer().0.load(Relaxed), 1);
            check_eq!(aperture.windows(), (1, 1));
            check!(holds(&object, Some(2))?);
            for info in &attachments::<Bo>(&object)? {
                check_eq!(info.outcome, Outcome::system(Reason::NoWindow));
            }
            check_eq!(count(&card, Event::MapSystem, Reason::NoWindow), 2);

            // The next mapping moves the object to VRAM once no importer has it mapped in system
            // memory.
            unmap(&first)?;
            unmap(&second)?;
            unmap(&holder)?;
            check!(sees(&second, &aperture, 2, 2)?);
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
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

// SPDX-License-Identifier: GPL-2.0

//! A copy engine that refuses jobs, keeps them, or finishes them in another order.

use kernel::prelude::*;

#[kunit_tests(vram_engine)]
mod tests {
    use crate::{
        bench::{
            export,
            fill,
            holds,
            mem_type,
            move_of,
            validate,
            with_device,
            Bo,
            Card,
            Gone,
            Mode,
            Object,
            BAR,
            FAILED,
            PAGE,
            REFUSED, //
        },
        waits::Meanwhile,
        worker::pause, //
    };
    use kernel::{
        dma_buf::vmap::VMap,
        dma_resv::Usage,
        drm::{
            gem::{
                peer,
                ttm::Content,
                BaseObject, //
            },
            ttm::{
                OpCtx,
                Place,
                Work, //
            },
            vram::{
                Domain,
                MemType, //
            }, //
        },
        prelude::*, //
    };

    const PAGES: u64 = 5;

    fn place_of(object: &Object) -> Result<Option<MemType>> {
        let place = mem_type(object)?;

        check_eq!(object.last_placement(), place);
        Ok(place)
    }

    #[test]
    fn refused_move_leaves_the_object() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();

            for (here, there) in [(Place::TT, Place::VRAM), (Place::VRAM, Place::TT)] {
                let object = card.object(PAGES, &[here], Domain::Either)?;
                let used = if here.mem_type() == MemType::Vram {
                    PAGES * PAGE
                } else {
                    0
                };
                fill(&object, 1)?;
                let moves = card.ttm().moves();

                card.control.set(Mode::Refuse);
                for _ in 0..3 {
                    check_eq!(validate(&object, &[there]), Err(REFUSED));
                    check_eq!(place_of(&object)?, Some(here.mem_type()));
                    check_eq!(card.free(size - used), size - used);
                    check_eq!(card.ttm().moves(), moves);
                    check!(object
                        .reserve(false)?
                        .resv()
                        .resv()
                        .test_signaled(Usage::Bookkeep));
                }
                card.control.set(Mode::Work);
                check!(holds(&object, Some(1))?);

                // The engine works as before.
                validate(&object, &[there])?;
                check_eq!(place_of(&object)?, Some(there.mem_type()));
                check_eq!(card.ttm().moves(), moves + 1);
                check!(holds(&object, Some(1))?);
                check_eq!(move_of(&object)?.status(), Some(Ok(())));
                drop(object);
                check_eq!(card.free(size), size);
            }
            Ok(())
        })
    }

    #[test]
    fn gone_device_is_not_read() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(PAGES, &[Place::VRAM], Domain::Either)?;
            fill(&object, 1)?;

            // The CPU does not copy from the BAR of a removed device: the content is lost.
            let gone = Gone::new(pdev);
            validate(&object, &[Place::TT])?;
            check_eq!(move_of(&object)?.wait(false), Ok(()));
            check_eq!(move_of(&object)?.status(), Some(Err(ENODEV)));
            drop(gone);
            check_eq!(place_of(&object)?, Some(MemType::Tt));
            check_eq!(holds(&object, Some(1)), Err(EIO));
            Ok(())
        })
    }

    #[test]
    fn suspend_that_fails_leaves_everything() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let only = card.object(PAGES, &[Place::VRAM], Domain::Vram)?;
            let either = card.object(PAGES, &[Place::VRAM], Domain::Either)?;
            let pinned = card.object(PAGES, &[Place::VRAM], Domain::Either)?;
            for (seed, object) in [(1, &only), (2, &either), (3, &pinned)] {
                fill(object, seed)?;
            }
            let pin = pinned.reserve(false)?.pin()?;
            let ctx = &mut OpCtx::uninterruptible();

            for (mode, error) in [
                (Mode::Refuse, REFUSED),
                (Mode::WorkOnce, REFUSED),
                (Mode::Fail, FAILED),
            ] {
                card.control.set(mode);
                check_eq!(card.ttm().suspend(Content::Lost, ctx), Err(error));
                card.control.set(Mode::Work);
                // A suspend that has failed leaves no content for the resume to restore.
                fill(&only, 4)?;
                card.ttm().resume()?;
                check!(holds(&only, Some(4))?);
                fill(&only, 1)?;
            }

            card.ttm().suspend(Content::Lost, ctx)?;
            check_eq!(place_of(&only)?, Some(MemType::Vram));
            check_eq!(place_of(&either)?, Some(MemType::Tt));
            check_eq!(place_of(&pinned)?, Some(MemType::Vram));
            // The resume restores the content of the last suspend.
            fill(&pinned, 5)?;
            card.ttm().suspend(Content::Lost, ctx)?;
            fill(&only, 6)?;
            fill(&pinned, 6)?;
            card.control.set(Mode::Refuse);
            check_eq!(card.ttm().resume(), Err(REFUSED));
            // VRAM does not have the content of the objects, so nobody gets what it has.
            for object in [&only, &pinned] {
                check_eq!(object.reserve(false)?.check_content(), Err(EIO));
                check_eq!(holds(object, Some(6)), Err(EIO));
            }
            check_eq!(validate(&only, &[Place::TT]), Err(EIO));
            check_eq!(place_of(&only)?, Some(MemType::Vram));
            check_eq!(VMap::new(export(&pinned)?).err(), Some(EIO));
            check_eq!(holds(&either, Some(2)), Ok(true));
            // A second suspend keeps the content that the resume could not restore, and ignores
            // what VRAM has now.
            check_eq!(card.ttm().suspend(Content::Lost, ctx), Ok(()));
            check_eq!(card.ttm().resume(), Err(REFUSED));
            card.control.set(Mode::Work);
            card.ttm().suspend(Content::Lost, ctx)?;
            fill(&only, 7)?;
            fill(&pinned, 7)?;
            card.ttm().resume()?;
            check!(holds(&only, Some(1))?);
            check!(holds(&pinned, Some(5))?);
            check!(holds(&either, Some(2))?);

            // An object that can move again moves with the saved content, or not at all.
            card.ttm().suspend(Content::Lost, ctx)?;
            fill(&pinned, 8)?;
            card.control.set(Mode::Refuse);
            check_eq!(card.ttm().resume(), Err(REFUSED));
            drop(pin);
            check_eq!(card.ttm().suspend(Content::Lost, ctx), Err(EBUSY));
            card.control.set(Mode::Work);
            card.ttm().suspend(Content::Lost, ctx)?;
            check_eq!(place_of(&pinned)?, Some(MemType::Tt));
            check!(holds(&pinned, Some(5))?);
            card.ttm().resume()?;
            check!(holds(&pinned, Some(5))?);
            check!(holds(&only, Some(1))?);

            // If VRAM keeps its content, only exported objects are moved.
            validate(&either, &[Place::VRAM])?;
            card.ttm().suspend(Content::Kept, ctx)?;
            check_eq!(place_of(&either)?, Some(MemType::Vram));
            let buf = export(&either)?;
            card.ttm().suspend(Content::Kept, ctx)?;
            check_eq!(place_of(&either)?, Some(MemType::Tt));
            check!(holds(&either, Some(2))?);
            drop(buf);
            Ok(())
        })
    }

    #[test]
    fn refused_object_is_not_made() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();

            card.control.set(Mode::Refuse);
            for domain in [Domain::Vram, Domain::Either] {
                check_eq!(
                    card.object(PAGES, &[Place::VRAM], domain).err(),
                    Some(REFUSED)
                );
            }
            check_eq!(card.free(size), size);
            check!(card.ttm().object_from(0).is_none());

            // System memory is cleared without the engine.
            let object = card.object(PAGES, &[Place::TT], Domain::System)?;
            check!(holds(&object, None)?);
            Ok(())
        })
    }

    #[test]
    fn refused_eviction_leaves_the_victim() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();
            let victim = card.object(size / PAGE, &[Place::VRAM], Domain::Either)?;
            fill(&victim, 3)?;

            card.control.set(Mode::Refuse);
            check!(card.object(1, &[Place::VRAM], Domain::Vram).is_err());
            check_eq!(place_of(&victim)?, Some(MemType::Vram));
            check_eq!(card.ttm().vram_free(), 0);
            card.control.set(Mode::Work);
            check!(holds(&victim, Some(3))?);

            let object = card.object(1, &[Place::VRAM], Domain::Vram)?;
            check_eq!(place_of(&object)?, Some(MemType::Vram));
            check_eq!(place_of(&victim)?, Some(MemType::Tt));
            check!(holds(&victim, Some(3))?);
            check!(holds(&object, None)?);
            Ok(())
        })
    }

    #[test]
    fn work_waits_for_the_engine() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(PAGES, &[Place::VRAM], Domain::Either)?;
            fill(&object, 7)?;
            let buf = export(&object)?;

            // `validate()` has returned, but the job is not done: an access to the content waits
            // for it.
            card.control.set(Mode::Keep);
            validate(&object, &[Place::TT])?;
            let fence = move_of(&object)?;
            check_eq!(fence.status(), None);
            check!(!buf.resv().test_signaled(Usage::Kernel));
            check_eq!(place_of(&object)?, Some(MemType::Tt));

            let job = card.control.take()?;
            let size = match job.work() {
                Work::Move(transfer) => transfer.size() as u64,
                Work::Copy(_) => 0,
            };
            check_eq!(size, PAGES * PAGE);
            let copy = object.clone();
            let seen = Meanwhile::new(move || holds(&copy, None))?;
            pause();
            check!(!seen.is_over());

            card.control.set(Mode::Work);
            job.finish(Err(FAILED));
            // The object has lost its content, and the access fails when its wait is over.
            check_eq!(seen.end()?, Err(EIO));
            check_eq!(fence.status(), Some(Err(FAILED)));
            Ok(())
        })
    }

    #[test]
    fn fences_signal_in_order() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;

            card.control.set(Mode::Keep);
            let [first, second, third] =
                [1, 2, 3].map(|pages| card.object(pages, &[Place::VRAM], Domain::Either));
            let (first, second, third) = (first?, second?, third?);
            let fences = [move_of(&first)?, move_of(&second)?, move_of(&third)?];
            check!(fences.windows(2).all(|pair| {
                pair[0].context() == pair[1].context() && pair[0].seqno() + 1 == pair[1].seqno()
            }));
            let (one, two, three) = (
                card.control.take()?,
                card.control.take()?,
                card.control.take()?,
            );
            card.control.set(Mode::Work);

            // The third job is finished first, then the second one fails.
            three.finish(Ok(()));
            two.finish(Err(FAILED));
            check!(fences.iter().all(|fence| fence.status().is_none()));

            one.finish(Ok(()));
            check_eq!(fences[0].status(), Some(Ok(())));
            check_eq!(fences[1].status(), Some(Err(FAILED)));
            check_eq!(fences[2].status(), Some(Ok(())));
            Ok(())
        })
    }

    #[test]
    fn full_vram_leaves_the_object() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();
            let object = card.object(PAGES, &[Place::TT], Domain::Either)?;
            fill(&object, 8)?;
            let full = card.object(size / PAGE, &[Place::VRAM], Domain::Vram)?;
            let moves = card.ttm().moves();

            check_eq!(validate(&object, &[Place::VRAM]), Err(ENOSPC));
            check_eq!(place_of(&object)?, Some(MemType::Tt));
            check_eq!(place_of(&full)?, Some(MemType::Vram));
            check_eq!(card.ttm().moves(), moves);
            check!(holds(&object, Some(8))?);

            // If system memory is a place as well, the object stays there.
            validate(&object, &[Place::VRAM, Place::TT])?;
            check_eq!(place_of(&object)?, Some(MemType::Tt));
            check!(holds(&object, Some(8))?);
            check_eq!(card.ttm().moves(), moves);

            drop(full);
            validate(&object, &[Place::VRAM])?;
            check_eq!(place_of(&object)?, Some(MemType::Vram));
            check!(holds(&object, Some(8))?);
            Ok(())
        })
    }

    #[test]
    fn engine_refuses_what_it_does_not_see() -> Result {
        with_device(|pdev| {
            let visible = pdev.resource_len(BAR)?;
            let card = Card::new(pdev, visible)?;
            check_eq!(card.ttm().vram_size(), 2 * visible);
            check_eq!(card.ttm().visible(), visible);

            // The CPU sees the first half of VRAM only, so it can neither clear nor fill the rest.
            let top = Place::VRAM.top_down();
            check_eq!(card.object(1, &[top], Domain::Either).err(), Some(EINVAL));
            let object = card.object(1, &[Place::TT], Domain::Either)?;
            fill(&object, 9)?;
            check_eq!(validate(&object, &[top]), Err(EINVAL));
            check_eq!(place_of(&object)?, Some(MemType::Tt));
            check!(holds(&object, Some(9))?);
            check_eq!(card.free(2 * visible), 2 * visible);

            validate(&object, &[Place::VRAM.below(visible)])?;
            check!(holds(&object, Some(9))?);
            check_eq!(peer::attachments::<Bo>(&object)?.len(), 0);
            check_eq!(object.size() as u64, PAGE);
            Ok(())
        })
    }
}

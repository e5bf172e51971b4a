// SPDX-License-Identifier: GPL-2.0

//! Objects that lose their content as their move fails, and the VRAM of such objects.

use kernel::prelude::*;

#[kunit_tests(vram_loss)]
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
            Mode,
            Object,
            BAR,
            FAILED,
            PAGE, //
        },
        importer::{
            map,
            prompt, //
        },
        memory::{
            Access,
            Mapped,
            Sharing, //
        },
        waits,
        worker::soon, //
    };
    use kernel::{
        dma_buf::{
            fence::Fence,
            vmap::VMap,
            Attachment, //
        },
        drm::{
            gem::{
                peer::{
                    attachments,
                    Outcome,
                    Path, //
                },
                ttm::{
                    copy,
                    Part, //
                },
                BaseObject, //
            },
            ttm::Place,
            vram::{
                Domain,
                MemType, //
            }, //
        },
        page::PAGE_SIZE,
        prelude::*,
        sync::aref::ARef, //
    };

    const PAGES: u64 = 5;

    /// The ways in which a job fails.
    const FAILURES: [(Mode, Error); 2] = [(Mode::Fail, FAILED), (Mode::Drop, ECANCELED)];

    /// Returns how much VRAM is in quarantine. Waits for the expected value, as memory is freed in
    /// the background.
    fn quarantined(card: &Card, expected: u64) -> u64 {
        let vram = card.ttm().allocator();

        soon(|| vram.quarantined() == expected);
        vram.quarantined()
    }

    /// Starts to copy the first page of an object to another object.
    fn start_copy(card: &Card, from: &Object, to: &Object) -> Result<ARef<Fence>> {
        let [from, to] = [from, to].map(|object| Part { object, offset: 0 });

        card.registered(|dev| copy(dev, &from, &to, PAGE))
    }

    /// Copies the first page of an object to another object, and waits for it.
    fn copy_page(card: &Card, from: &Object, to: &Object) -> Result {
        let fence = start_copy(card, from, to)?;

        fence.wait(false)?;
        fence.status().unwrap_or(Ok(()))
    }

    /// Checks that an object that has lost its content cannot be used.
    fn is_lost(card: &Card, object: &Object) -> Result {
        check_eq!(holds(object, None), Err(EIO));
        check_eq!(object.reserve(false)?.pin().err(), Some(EIO));
        check_eq!(card.ttm().pinned(), 0);

        let other = card.object(1, &[Place::TT], Domain::Either)?;
        fill(&other, 9)?;
        check_eq!(copy_page(card, object, &other), Err(EIO));
        check_eq!(copy_page(card, &other, object), Err(EIO));
        check!(holds(&other, Some(9))?);
        Ok(())
    }

    #[test]
    fn failed_move_to_system_memory_loses_the_object() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();

            for (count, (mode, error)) in FAILURES.into_iter().enumerate() {
                let object = card.object(PAGES, &[Place::VRAM], Domain::Either)?;
                fill(&object, 4)?;

                card.control.set(mode);
                validate(&object, &[Place::TT])?;
                card.control.set(Mode::Work);
                check_eq!(move_of(&object)?.status(), Some(Err(error)));
                check_eq!(mem_type(&object)?, Some(MemType::Tt));
                is_lost(&card, &object)?;
                check_eq!(card.ttm().losses(), count as u64 + 1);

                // The object is not moved to VRAM any more, and the loss is counted once.
                check_eq!(validate(&object, &[Place::VRAM]), Err(EIO));
                check_eq!(mem_type(&object)?, Some(MemType::Tt));
                is_lost(&card, &object)?;
                check_eq!(card.ttm().losses(), count as u64 + 1);
                drop(object);
                check_eq!(card.free(size), size);
            }
            Ok(())
        })
    }

    #[test]
    fn process_that_accesses_what_is_lost_gets_a_signal() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(PAGES, &[Place::VRAM], Domain::Either)?;
            fill(&object, 3)?;
            let buf = export(&object)?;
            let map = Mapped::new(&buf, 0, PAGES as usize, Sharing::Shared)?;
            check_eq!(map.fault(0)?, Access::Works);

            card.control.set(Mode::Fail);
            validate(&object, &[Place::TT])?;
            card.control.set(Mode::Work);
            check_eq!(move_of(&object)?.status(), Some(Err(FAILED)));
            // The signal is sent for the page that was mapped before as well as for the others.
            check_eq!(map.fault(0)?, Access::Sigbus);
            check_eq!(map.read(PAGE_SIZE), Err(EFAULT));
            check_eq!(map.write(0, [0; 8]), Err(EFAULT));
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            Ok(())
        })
    }

    #[test]
    fn next_owner_of_vram_that_was_not_filled_reads_zeroes() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();

            // The content of an earlier object remains in VRAM.
            let old = card.object(size / PAGE, &[Place::VRAM], Domain::Vram)?;
            fill(&old, 5)?;
            drop(old);
            check_eq!(card.free(size), size);

            for (mode, error) in FAILURES {
                let object = card.object(PAGES, &[Place::TT], Domain::Either)?;
                fill(&object, 6)?;

                card.control.set(mode);
                validate(&object, &[Place::VRAM])?;
                check_eq!(move_of(&object)?.status(), Some(Err(error)));
                check_eq!(mem_type(&object)?, Some(MemType::Vram));
                // The clearing of a new object fails as well.
                let new = card.object(PAGES, &[Place::VRAM], Domain::Vram)?;
                check_eq!(move_of(&new)?.status(), Some(Err(error)));
                card.control.set(Mode::Work);
                is_lost(&card, &object)?;
                is_lost(&card, &new)?;

                // The object is exported, but neither the kernel nor a peer can map it.
                let buf = export(&new)?;
                check_eq!(VMap::new(buf.clone()).err(), Some(EIO));
                let at = Attachment::new(buf, pdev.as_ref(), prompt())?;
                check_eq!(
                    attachments::<Bo>(&new)?[0].outcome,
                    Outcome::peer(Path::PeerBus)
                );
                check_eq!(map(&at), Err(EIO));
                drop(at);

                // The VRAM is in quarantine until the device is reset.
                drop((object, new));
                let left = size - 2 * PAGES * PAGE;
                check_eq!(quarantined(&card, size - left), size - left);
                check_eq!(card.free(left), left);
                let rest = card.object(left / PAGE, &[Place::VRAM], Domain::Vram)?;
                check!(holds(&rest, None)?);
                check_eq!(
                    card.object(1, &[Place::VRAM], Domain::Vram).err(),
                    Some(ENOSPC)
                );
                fill(&rest, 5)?;
                drop(rest);
                let vram = card.ttm().allocator();
                vram.end_quarantine();
                check_eq!(vram.quarantined(), size - left);
                vram.count_reset();
                vram.end_quarantine();
                check_eq!(vram.quarantined(), 0);
                check_eq!(card.free(size), size);
            }

            let all = card.object(size / PAGE, &[Place::VRAM], Domain::Vram)?;
            check!(holds(&all, None)?);
            Ok(())
        })
    }

    #[test]
    fn reset_counts_for_vram_that_was_not_filled_before_it() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let vram = card.ttm().allocator();
            let size = card.ttm().vram_size();
            let not_cleared = || -> Result<ARef<Object>> {
                card.control.set(Mode::Fail);
                let object = card.object(PAGES, &[Place::VRAM], Domain::Vram)?;
                check_eq!(move_of(&object)?.status(), Some(Err(FAILED)));
                card.control.set(Mode::Work);
                Ok(object)
            };

            // Memory that is freed after the reset is not kept until the next one.
            let before = not_cleared()?;
            vram.count_reset();
            vram.end_quarantine();
            drop(before);
            check_eq!(card.free(size), size);
            check_eq!(vram.quarantined(), 0);

            // Memory that was not filled after the reset is kept, even if the driver ends the
            // quarantine after that.
            vram.count_reset();
            drop(not_cleared()?);
            check_eq!(quarantined(&card, PAGES * PAGE), PAGES * PAGE);
            vram.end_quarantine();
            check_eq!(vram.quarantined(), PAGES * PAGE);
            vram.count_reset();
            vram.end_quarantine();
            check_eq!(card.free(size), size);
            Ok(())
        })
    }

    #[test]
    fn peer_waits_for_a_move_that_may_fail() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;

            for result in [Ok(()), Err(FAILED)] {
                card.control.set(Mode::Keep);
                let object = card.object(PAGES, &[Place::VRAM], Domain::Vram)?;
                card.control.set(Mode::Work);
                let buf = export(&object)?;
                let at = Attachment::new(buf, pdev.as_ref(), prompt())?;

                // Without a wait for the move, the peer would map VRAM that is not cleared yet.
                let control = card.control.clone();
                let finish = move || {
                    if let Ok(job) = control.take() {
                        job.finish(result);
                    }
                };
                let mapped = waits::until(finish, || map(&at))?;
                check_eq!(mapped, result.map_err(|_| EIO));
            }
            Ok(())
        })
    }

    #[test]
    fn copy_of_what_is_lost_meanwhile_is_lost() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(PAGES, &[Place::TT], Domain::Either)?;
            let other = card.object(PAGES, &[Place::TT], Domain::Either)?;
            fill(&object, 1)?;
            fill(&other, 2)?;

            // The copy starts while the move is under way.
            card.control.set(Mode::Keep);
            validate(&object, &[Place::VRAM])?;
            let fence = start_copy(&card, &object, &other)?;
            let (first, second) = (card.control.take()?, card.control.take()?);
            card.control.set(Mode::Work);
            check!(!second.is_void());
            first.finish(Err(FAILED));

            // The copy of an engine that ignores that the job is void has copied the wrong content.
            check!(second.is_void());
            second.finish(Ok(()));
            check_eq!(fence.status(), Some(Err(EIO)));
            check_eq!(card.ttm().losses(), 2);
            is_lost(&card, &object)?;
            is_lost(&card, &other)?;
            Ok(())
        })
    }

    #[test]
    fn object_is_lost_once() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(PAGES, &[Place::VRAM], Domain::Either)?;
            fill(&object, 1)?;

            // The object moves again before the first move fails.
            card.control.set(Mode::Keep);
            validate(&object, &[Place::TT])?;
            validate(&object, &[Place::VRAM])?;
            card.control.set(Mode::Work);
            let (first, second) = (card.control.take()?, card.control.take()?);
            first.finish(Err(FAILED));
            check_eq!(card.ttm().losses(), 1);
            check!(second.is_void());
            second.finish(Err(FAILED));
            check_eq!(card.ttm().losses(), 1);
            is_lost(&card, &object)?;
            Ok(())
        })
    }

    #[test]
    fn cpu_does_again_what_an_engine_fails_to_do() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();
            card.control.set_again(true);

            for (count, (mode, _)) in FAILURES.into_iter().enumerate() {
                let object = card.object(PAGES, &[Place::TT], Domain::Either)?;
                fill(&object, 7)?;

                card.control.set(mode);
                for place in [Place::VRAM, Place::TT, Place::VRAM] {
                    validate(&object, &[place])?;
                    check_eq!(move_of(&object)?.status(), Some(Ok(())));
                    check!(holds(&object, Some(7))?);
                }
                let new = card.object(PAGES, &[Place::VRAM], Domain::Vram)?;
                check!(holds(&new, None)?);
                fill(&new, 8)?;
                card.control.set(Mode::Work);

                check_eq!(card.ttm().done_again(), 4 * (count as u64 + 1));
                check_eq!(card.ttm().losses(), 0);
                drop((object, new));
                check_eq!(card.free(size), size);
            }
            Ok(())
        })
    }

    #[test]
    fn cpu_does_not_do_what_it_does_not_see() -> Result {
        with_device(|pdev| {
            let visible = pdev.resource_len(BAR)?;
            let card = Card::new(pdev, visible)?;
            card.control.set_again(true);

            card.control.set(Mode::Fail);
            let object = card.object(PAGES, &[Place::VRAM.top_down()], Domain::Either)?;
            card.control.set(Mode::Work);
            check_eq!(move_of(&object)?.status(), Some(Err(FAILED)));
            check_eq!(card.ttm().losses(), 1);
            check_eq!(card.ttm().done_again(), 0);
            drop(object);
            check_eq!(
                card.free(2 * visible - PAGES * PAGE),
                2 * visible - PAGES * PAGE
            );

            // The CPU cannot do the work either once the driver is unbound.
            let object = card.object(PAGES, &[Place::VRAM.below(visible)], Domain::Either)?;
            fill(&object, 1)?;
            card.control.set(Mode::Keep);
            validate(&object, &[Place::TT])?;
            let fence = move_of(&object)?;
            let job = card.control.take()?;
            drop(card);
            job.finish(Err(FAILED));
            check_eq!(fence.status(), Some(Err(FAILED)));
            check_eq!(object.size() as u64, PAGES * PAGE);
            Ok(())
        })
    }
}

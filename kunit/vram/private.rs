// SPDX-License-Identifier: GPL-2.0

//! Objects that share a reservation, while it has the fence of a job that uses others of them.

use kernel::prelude::*;

#[kunit_tests(vram_private)]
mod tests {
    use crate::{
        bench::{
            fill,
            holds,
            mem_type,
            validate,
            with_device,
            Card,
            Driver,
            Mode,
            Object,
            BAR,
            PAGE, //
        },
        waits::{
            work,
            work_of_client,
            Ring, //
        },
    };
    use kernel::{
        device::Bound,
        dma_buf::fence::DriverFence,
        dma_resv::Usage,
        drm::{
            gem::SharedResv,
            ttm::{
                OpCtx,
                Place, //
            },
            vram::{
                Allocator,
                Domain,
                MemType, //
            }, //
        },
        pci,
        prelude::*,
        sync::aref::ARef, //
    };

    /// The content of the object that a job does not use.
    const SEED: u64 = 7;

    /// A device, a reservation, and a job of another device that is not done.
    struct Busy {
        job: DriverFence<Ring>,
        resv: SharedResv<Driver>,
        card: Card,
    }

    impl Busy {
        fn new(card: Card, usage: Usage) -> Result<Self> {
            let resv = SharedResv::new(&card.drm())?;
            let job = work(&mut resv.resv().lock().locked(), usage)?;

            Ok(Self { job, resv, card })
        }

        fn object(&self, pages: u64, place: Place, domain: Domain) -> Result<ARef<Object>> {
            Object::new_in(
                &self.card.drm(),
                &self.resv,
                (pages * PAGE) as usize,
                &[place],
                &mut OpCtx::uninterruptible(),
                domain.into(),
            )
        }

        /// Ends the job. Fails if it was not waited for in vain.
        fn end(self) -> Result {
            check!(!self.resv.resv().test_signaled(Usage::Bookkeep));
            self.job.signal(Ok(()));
            Ok(())
        }
    }

    fn card_of_a_core_driver(pdev: &pci::Device<Bound>) -> Result<Card> {
        let allocator = Allocator::shared(0..pdev.resource_len(BAR)?, None)?;

        Card::with_allocator(pdev, allocator, &[c"engine"])
    }

    /// A move that TTM asks for gets its new place although TTM would wait for the job, and give up.
    #[test]
    fn eviction_waits_for_its_copy_only() -> Result {
        with_device(|pdev| {
            for is_shared in [false, true] {
                let card = if is_shared {
                    card_of_a_core_driver(pdev)
                } else {
                    Card::new(pdev, 0)
                };
                let busy = Busy::new(card?, Usage::Bookkeep)?;
                let size = busy.card.ttm().vram_size();
                let victim = busy.object(size / PAGE, Place::VRAM, Domain::Either)?;
                fill(&victim, SEED)?;

                let other = busy
                    .card
                    .object(size / PAGE, &[Place::VRAM], Domain::Either)?;
                check_eq!(mem_type(&other)?, Some(MemType::Vram));
                check!(holds(&other, None)?);
                check_eq!(mem_type(&victim)?, Some(MemType::Tt));
                check!(holds(&victim, Some(SEED))?);

                drop(other);
                check_eq!(busy.card.free(size), size);
                validate(&victim, &[Place::VRAM])?;
                check_eq!(mem_type(&victim)?, Some(MemType::Vram));
                check!(holds(&victim, Some(SEED))?);
                busy.end()?;
            }
            Ok(())
        })
    }

    /// No job uses an object without content, whatever the objects are that it uses.
    #[test]
    fn new_objects_wait_for_nobody() -> Result {
        with_device(|pdev| {
            let busy = Busy::new(Card::new(pdev, 0)?, Usage::Write)?;

            for (place, want) in [
                (Place::SYSTEM, MemType::System),
                (Place::TT, MemType::Tt),
                (Place::VRAM, MemType::Vram),
            ] {
                let object = busy.object(3, place, Domain::Either)?;
                check_eq!(mem_type(&object)?, Some(want));
            }
            let object = busy.object(3, Place::SYSTEM, Domain::Either)?;
            validate(&object, &[Place::VRAM])?;
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            check!(holds(&object, None)?);
            busy.end()
        })
    }

    /// Late moves of objects with one reservation depend on the latest one of them.
    #[test]
    fn late_moves_do_not_add_up() -> Result {
        const OBJECTS: usize = 8;

        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let resv = SharedResv::new(&card.drm())?;
            let new = |place| {
                Object::new_in(
                    &card.drm(),
                    &resv,
                    PAGE as usize,
                    &[place],
                    &mut OpCtx::uninterruptible(),
                    Domain::Either.into(),
                )
            };
            let moved = new(Place::TT)?;
            fill(&moved, SEED)?;
            let client = work_of_client(
                card.ttm().fence_group(),
                &mut resv.resv().lock().locked(),
                Usage::Write,
            )?;
            card.control.set(Mode::Keep);

            validate(&moved, &[Place::VRAM])?;
            let mut objects = KVec::new();
            for _ in 0..OBJECTS {
                objects.push(new(Place::VRAM)?, GFP_KERNEL)?;
            }
            // It has another reservation.
            let other = card.object(1, &[Place::VRAM], Domain::Either)?;
            check_eq!(card.control.kept(), OBJECTS + 2);

            client.signal(Ok(()));
            for index in 0..OBJECTS + 2 {
                let job = card.control.take()?;

                check_eq!(job.after().len(), usize::from(index <= OBJECTS));
                job.finish(Ok(()));
            }
            card.control.set(Mode::Work);
            check!(resv.resv().test_signaled(Usage::Bookkeep));
            drop((moved, objects, other));
            Ok(())
        })
    }

    /// A job with a fence of `Bookkeep` uses the objects that page tables show.
    #[test]
    fn unshown_objects_wait_for_no_job() -> Result {
        with_device(|pdev| {
            let busy = Busy::new(Card::new(pdev, 0)?, Usage::Bookkeep)?;
            let object = busy.object(3, Place::SYSTEM, Domain::Either)?;
            validate(&object, &[Place::TT])?;
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            fill(&object, SEED)?;
            validate(&object, &[Place::SYSTEM])?;
            check_eq!(mem_type(&object)?, Some(MemType::System));
            check!(holds(&object, Some(SEED))?);
            busy.end()
        })
    }
}

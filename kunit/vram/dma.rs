// SPDX-License-Identifier: GPL-2.0

//! Engines that reach system memory by DMA, and several of them.

use kernel::prelude::*;

#[kunit_tests(vram_dma)]
mod tests {
    use crate::bench::{
        behind,
        fill,
        frames,
        holds,
        move_of,
        validate,
        with_device,
        Bo,
        Card,
        Mode,
        Reached,
        BAR,
        FAILED,
        PAGE, //
    };
    use crate::worker::{
        self,
        pause,
        soon, //
    };
    use kernel::{
        drm::{
            self,
            gem::mappings::Address,
            ttm::{
                OpCtx,
                Place,
                MAX_ENGINES, //
            },
            vram::{
                Allocator,
                Domain,
                MemType, //
            }, //
        },
        prelude::*,
        sync::{
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc, //
        }, //
    };

    const PAGES: u64 = 37;
    /// The segment limit of a device that has none of its own.
    const LIMIT: u64 = 64 << 10;

    /// Checks that a job reaches these pages, in this order, in pieces as large as possible.
    fn are(reached: &Reached, frames: &[u64]) -> Result<bool> {
        let segments = &reached.segments;

        check_eq!(
            segments.iter().map(|(_, len)| len).sum::<u64>(),
            PAGES * PAGE
        );
        check!(segments
            .iter()
            .all(|(addr, len)| *len > 0 && (addr | len) % PAGE == 0));
        // Adjacent pieces are merged up to the segment limit, which may be a page of 64 KiB.
        check!(!segments.windows(2).any(|pair| {
            let ((addr, len), (next, next_len)) = (pair[0], pair[1]);

            addr + len == next && len + next_len == 2 * PAGE && 2 * PAGE <= LIMIT
        }));
        Ok(*reached.frames == *frames)
    }

    /// Waits until `bytes` bytes are mapped: a worker frees pages.
    fn mapped(card: &Card, bytes: u64) -> u64 {
        soon(|| card.ttm().dma_mapped() == bytes);
        card.ttm().dma_mapped()
    }

    #[test]
    fn engine_gets_the_addresses_of_the_pages() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(PAGES, &[Place::TT], Domain::Either)?;
            check_eq!(mapped(&card, PAGES * PAGE), PAGES * PAGE);
            fill(&object, 1)?;

            for _ in 0..2 {
                let pages = frames(&object)?;
                validate(&object, &[Place::VRAM])?;
                check!(are(&card.control.reached(), &pages)?);
                check!(holds(&object, Some(1))?);
                // An object in VRAM has no pages.
                check_eq!(mapped(&card, 0), 0);

                validate(&object, &[Place::TT])?;
                let reached = card.control.reached();
                check!(holds(&object, Some(1))?);
                check!(are(&reached, &frames(&object)?)?);
                check_eq!(mapped(&card, PAGES * PAGE), PAGES * PAGE);
            }

            // The pages of an object are not mapped while they may be swapped out.
            validate(&object, &[Place::SYSTEM])?;
            check_eq!(object.reserve(false)?.mem_type(), Some(MemType::System));
            check_eq!(card.ttm().dma_mapped(), 0);
            validate(&object, &[Place::VRAM])?;
            check!(holds(&object, Some(1))?);
            check_eq!(mapped(&card, 0), 0);
            validate(&object, &[Place::TT])?;
            validate(&object, &[Place::SYSTEM])?;
            validate(&object, &[Place::TT])?;
            check_eq!(card.ttm().dma_mapped(), PAGES * PAGE);
            check!(holds(&object, Some(1))?);

            // The pages of an object are unmapped when it is freed.
            drop(object);
            check_eq!(mapped(&card, 0), 0);
            Ok(())
        })
    }

    #[test]
    fn nothing_is_mapped_after_an_unplug() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let drm = card.drm();
            let object = card.object(PAGES, &[Place::TT], Domain::Either)?;
            let moved = card.object(PAGES, &[Place::VRAM], Domain::Either)?;
            fill(&object, 2)?;
            fill(&moved, 3)?;

            // The job that moves one of the objects is under way.
            card.control.set(Mode::Keep);
            validate(&moved, &[Place::TT])?;
            check_eq!(drm.ttm.dma_mapped(), 2 * PAGES * PAGE);
            drop(card);
            check_eq!(drm.ttm.dma_mapped(), 0);

            // The content does not depend on the DMA mapping.
            check_eq!(object.reserve(false)?.mem_type(), Some(MemType::Tt));
            check!(holds(&object, Some(2))?);
            validate(&object, &[Place::SYSTEM])?;
            validate(&object, &[Place::TT])?;
            check_eq!(drm.ttm.dma_mapped(), 0);
            check!(holds(&object, Some(2))?);
            Ok(())
        })
    }

    #[test]
    fn vram_that_a_stalled_engine_evicts_is_waited_for() -> Result {
        with_device(|pdev| {
            let card = Card::with_engines(pdev, 0, &[c"evictions", c"others"])?;
            let size = card.ttm().vram_size();
            let victim = card.object(size / PAGE, &[Place::VRAM], Domain::Either)?;
            fill(&victim, 4)?;

            // The second engine has to clear VRAM that the first engine, which stalls, still reads.
            card.control.set(Mode::Keep);
            let new = card.object(PAGES, &[Place::VRAM], Domain::Vram)?;
            check_eq!(card.control.kept(), 1);
            let (eviction, clearing) = (move_of(&victim)?, move_of(&new)?);
            check!(eviction.context() != clearing.context());
            pause();
            check_eq!(eviction.status(), None);
            check_eq!(clearing.status(), None);
            check_eq!(victim.reserve(false)?.mem_type(), Some(MemType::Tt));
            check_eq!(new.reserve(false)?.mem_type(), Some(MemType::Vram));

            // If the job of the eviction is dropped, the object loses its content, and the clearing
            // begins.
            card.control.set_again(true);
            let job = card.control.take()?;
            check_eq!(job.after().len(), 0);
            card.control.set(Mode::Work);
            drop(job);
            check_eq!(eviction.status(), Some(Err(ECANCELED)));
            clearing.wait(false)?;
            check_eq!(holds(&victim, Some(4)), Err(EIO));
            check!(holds(&new, None)?);

            // The job of another eviction fails, and the CPU does the eviction.
            drop((victim, new));
            check_eq!(card.free(size), size);
            let victim = card.object(size / PAGE, &[Place::VRAM], Domain::Either)?;
            fill(&victim, 5)?;
            card.control.set(Mode::Keep);
            let new = card.object(PAGES, &[Place::VRAM], Domain::Vram)?;
            let job = card.control.take()?;
            card.control.set(Mode::Work);
            pause();
            check_eq!(move_of(&new)?.status(), None);
            job.finish(Err(FAILED));
            check_eq!(card.ttm().done_again(), 1);
            check!(holds(&victim, Some(5))?);
            check!(holds(&new, None)?);

            // The move back: the second engine reads the system memory that the eviction wrote.
            drop(new);
            validate(&victim, &[Place::VRAM])?;
            check!(holds(&victim, Some(5))?);
            Ok(())
        })
    }

    #[test]
    fn core_driver_gets_vram_that_no_job_uses() -> Result {
        with_device(|pdev| {
            let size = pdev.resource_len(BAR)?;

            // While TTM uses it, an allocator that is not shared serves only TTM, which waits for
            // the jobs that still use free VRAM.
            let allocator = Allocator::new(0..size)?;
            let before = allocator.alloc(PAGE)?;
            let card = Card::with_allocator(pdev, allocator.clone(), &[c"engine"])?;
            check_eq!(allocator.alloc(PAGE).err(), Some(EBUSY));
            check_eq!(allocator.alloc_below(PAGE, size).err(), Some(EBUSY));
            check_eq!(allocator.alloc_block(PAGE as usize).err(), Some(EBUSY));
            check_eq!(allocator.reserve(0..PAGE).err(), Some(EBUSY));
            drop((before, card));

            let allocator = Allocator::shared(0..size, None)?;
            let card = Card::with_allocator(pdev, allocator.clone(), &[c"engine"])?;
            let object = card.object(size / PAGE, &[Place::VRAM], Domain::Either)?;
            fill(&object, 6)?;
            check_eq!(allocator.alloc(PAGE).err(), Some(ENOSPC));

            // The engine still has to read all of VRAM.
            card.control.set_again(true);
            card.control.set(Mode::Keep);
            validate(&object, &[Place::TT])?;
            check_eq!(card.control.kept(), 1);
            check_eq!(allocator.alloc(PAGE).err(), Some(ENOSPC));

            card.control.set(Mode::Work);
            drop(card.control.take()?);
            check_eq!(card.free(size), size);
            let part = allocator.alloc(PAGE)?;
            check!(holds(&object, Some(6))?);
            drop(part);
            Ok(())
        })
    }

    #[test]
    fn evicted_vram_is_free_when_the_job_is_done() -> Result {
        with_device(|pdev| {
            let size = pdev.resource_len(BAR)?;
            let allocator = Allocator::shared(0..size, None)?;
            let card = Card::with_allocator(pdev, allocator, &[c"engine"])?;
            let victim = card.object(size / PAGE, &[Place::VRAM], Domain::Either)?;
            fill(&victim, 7)?;

            // The eviction waits for a job that another task finishes.
            card.control.set(Mode::Keep);
            card.control.set_again(true);
            let control = card.control.clone();
            let was_waited_for = Arc::new(Atomic::new(false), GFP_KERNEL)?;
            let told = was_waited_for.clone();
            worker::spawn(move || {
                told.store(soon(|| control.kept() != 0), Relaxed);
                control.set(Mode::Work);
                drop(control.take());
            })?;
            let new = card.object(PAGES, &[Place::VRAM], Domain::Vram)?;
            check!(was_waited_for.load(Relaxed));
            check!(holds(&victim, Some(7))?);
            check!(holds(&new, None)?);
            Ok(())
        })
    }

    #[test]
    fn page_tables_get_the_addresses_of_engines() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let object = card.object(PAGES, &[Place::TT], Domain::Either)?;
            let pages = frames(&object)?;

            card.registered(|dev| {
                let mut reserved = object.reserve(false)?;

                for (number, frame) in (0u64..).zip(&pages) {
                    let at = number * PAGE + 8;
                    let ctx = &mut OpCtx::uninterruptible();
                    let (address, len) = reserved.placed(dev, ctx)?.address(at).ok_or(ENXIO)?;
                    let Address::Dma(dma) = address else {
                        return Err(EPROTO);
                    };

                    check_eq!(behind(pdev, dma), frame + 8);
                    check!(len >= PAGE - 8);
                    // The end of the range is at the address that the address of its start implies.
                    let last = (at + len - 1) / PAGE;
                    check_eq!(behind(pdev, dma + len - 1), pages[last as usize] + PAGE - 1);
                    check!(reserved.is_at(at, address));
                    check!(!reserved.is_at(at + 1, address));
                    check!(!reserved.is_at(at, Address::System(frame + 8)));
                }
                let ctx = &mut OpCtx::uninterruptible();
                check!(reserved.placed(dev, ctx)?.address(PAGES * PAGE).is_none());
                Ok(())
            })
        })
    }

    #[test]
    fn ninth_engine_is_refused() -> Result {
        with_device(|pdev| {
            let names = [c"engine"; MAX_ENGINES + 1];
            let make = |names: &[&CStr]| -> Result {
                let vram = Allocator::new(0..PAGE)?;
                let device = drm::gem::ttm::Device::<Bo>::with_engines(pdev, BAR, 0, vram, names);

                KBox::pin_init(device, GFP_KERNEL)?;
                Ok(())
            };

            check_eq!(MAX_ENGINES, 8);
            check_eq!(make(&[]), Err(EINVAL));
            check_eq!(make(&names), Err(E2BIG));
            check_eq!(make(&names[1..]), Ok(()));
            check_eq!(Card::with_engines(pdev, 0, &names).err(), Some(E2BIG));
            Ok(())
        })
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The limit of system memory for objects: a number of bytes, which cannot be fragmented.

use kernel::prelude::*;

#[kunit_tests(vram_tt)]
mod tests {
    use crate::bench::{
        fill,
        holds,
        mem_type,
        validate,
        with_device,
        Card,
        Object,
        PAGE, //
    };
    use crate::worker::soon;
    use kernel::{
        drm::ttm::{
            OpCtx,
            Place,
            Victims, //
        },
        drm::vram::{
            Domain,
            MemType, //
        },
        prelude::*,
        sync::aref::ARef, //
    };

    /// How many pages objects may have in system memory.
    const PAGES: u64 = 16;

    fn local(card: &Card, pages: u64) -> Result<ARef<Object>> {
        card.object(pages, &[Place::TT], Domain::System)
    }

    /// Each object of a page that stays has a free page at either side.
    #[test]
    fn memory_has_no_holes() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            card.ttm().set_tt_limit(PAGES * PAGE);
            let mut pinned = KVec::new();
            let mut others = KVec::new();

            for page in 0..PAGES {
                let object = local(&card, 1)?;

                fill(&object, page)?;
                if page % 2 == 0 {
                    pinned.push((object.reserve(false)?.pin()?, page), GFP_KERNEL)?;
                } else {
                    others.push(object, GFP_KERNEL)?;
                }
            }
            drop(others);

            // Half of the memory is free.
            let object = local(&card, PAGES / 2)?;
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            check!(holds(&object, None)?);
            fill(&object, PAGES)?;
            check!(holds(&object, Some(PAGES))?);
            for (object, page) in &pinned {
                check_eq!(mem_type(object)?, Some(MemType::Tt));
                check!(holds(object, Some(*page))?);
            }
            Ok(())
        })
    }

    #[test]
    fn limit_holds() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let vram = card.object(2, &[Place::VRAM], Domain::Either)?;
            fill(&vram, 1)?;
            card.ttm().set_tt_limit(PAGES * PAGE);

            // An object larger than the limit is refused before anything is evicted.
            check_eq!(local(&card, PAGES + 1).err(), Some(ENOSPC));
            let all = local(&card, PAGES)?;
            fill(&all, 2)?;
            check_eq!(local(&card, PAGES + 1).err(), Some(ENOSPC));
            check_eq!(mem_type(&all)?, Some(MemType::Tt));

            // The last page can be used, but no more.
            let pinned = all.reserve(false)?.pin()?;
            check_eq!(local(&card, 1).err(), Some(ENOSPC));
            check_eq!(validate(&vram, &[Place::TT]), Err(ENOSPC));
            check_eq!(mem_type(&vram)?, Some(MemType::Vram));
            drop(pinned);

            // An unpinned object moves to swappable memory, which does not count, and returns when
            // there is room.
            validate(&vram, &[Place::TT])?;
            check_eq!(mem_type(&vram)?, Some(MemType::Tt));
            check_eq!(mem_type(&all)?, Some(MemType::System));
            check_eq!(
                validate(&all, &[Place::TT.evicting(Victims::None)]),
                Err(ENOSPC)
            );
            check!(holds(&vram, Some(1))?);
            validate(&vram, &[Place::VRAM])?;
            // A worker frees the pages of the object that moved to VRAM.
            let mut ret = Err(ENOSPC);
            soon(|| {
                ret = validate(&all, &[Place::TT.evicting(Victims::None)]);
                ret.is_ok()
            });
            check_eq!(ret, Ok(()));
            check!(holds(&all, Some(2))? && holds(&vram, Some(1))?);

            // A lower limit evicts nothing, and applies to new objects.
            card.ttm().set_tt_limit(PAGE);
            check_eq!(mem_type(&all)?, Some(MemType::Tt));
            check!(holds(&all, Some(2))?);
            let pinned = all.reserve(false)?.pin()?;
            check_eq!(local(&card, 1).err(), Some(ENOSPC));
            drop((pinned, all));
            let one = local(&card, 1)?;
            check_eq!(mem_type(&one)?, Some(MemType::Tt));
            check!(holds(&one, None)?);

            // An object that is larger than the limit can leave VRAM, too, and come back.
            let all = card.object(
                card.ttm().vram_size() / PAGE,
                &[Place::VRAM],
                Domain::Either,
            )?;
            check_eq!(mem_type(&all)?, Some(MemType::Vram));
            check_eq!(mem_type(&vram)?, Some(MemType::System));
            // Only `one` is where devices access it.
            check!(soon(|| card.ttm().dma_mapped() == PAGE));
            drop(all);
            validate(&vram, &[Place::VRAM])?;
            check_eq!(mem_type(&vram)?, Some(MemType::Vram));
            check!(holds(&vram, Some(1))?);

            // One that fits takes the place of older ones.
            card.ttm().set_tt_limit(2 * PAGE);
            check_eq!(mem_type(&one)?, Some(MemType::Tt));
            card.ttm()
                .make_room(card.ttm().vram_size(), &mut OpCtx::uninterruptible())?;
            check_eq!(mem_type(&vram)?, Some(MemType::Tt));
            check_eq!(mem_type(&one)?, Some(MemType::System));
            check!(holds(&vram, Some(1))?);
            Ok(())
        })
    }
}

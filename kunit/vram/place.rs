// SPDX-License-Identifier: GPL-2.0

//! Where in VRAM objects are put, by the options of a place.

use kernel::prelude::*;

#[kunit_tests(vram_place)]
mod tests {
    use crate::bench::{
        fill,
        holds,
        mem_type,
        move_of,
        validate,
        with_device,
        Card,
        Object,
        BAR,
        PAGE, //
    };
    use kernel::{
        drm::{
            exec::Flag,
            gem::BaseObject,
            ttm::{
                OpCtx,
                Place,
                Victims, //
            },
            vram::{
                BarMapping,
                Domain,
                MemType,
                Range, //
            }, //
        },
        new_mutex,
        prelude::*,
        sync::{
            aref::ARef,
            Arc,
            Completion, //
        },
        time::{
            delay::fsleep,
            Delta, //
        }, //
    };

    use crate::{
        waits,
        worker, //
    };

    const MIB: u64 = 1 << 20;

    fn ranges(object: &Object) -> Result<KVec<Range>> {
        let object = object.reserve(false)?;
        let vram = object.vram().ok_or(ENXIO)?;
        let mut ranges = KVec::new();

        ranges.extend_from_slice(vram.ranges(), GFP_KERNEL)?;
        Ok(ranges)
    }

    fn first(object: &Object) -> Result<u64> {
        Ok(ranges(object)?.first().ok_or(ENXIO)?.offset)
    }

    /// Fills VRAM with objects of a MiB, in the order of their offsets.
    fn fill_vram(card: &Card, domain: Domain) -> Result<KVec<ARef<Object>>> {
        let mut objects = KVec::new();

        for _ in 0..card.ttm().vram_size() / MIB {
            objects.push(card.object(MIB / PAGE, &[Place::VRAM], domain)?, GFP_KERNEL)?;
        }
        check_eq!(card.ttm().vram_free(), 0);
        // There are few objects, so they are sorted here; the order of the allocator may be any.
        for end in (1..objects.len()).rev() {
            for i in 0..end {
                if first(&objects[i])? > first(&objects[i + 1])? {
                    objects.swap(i, i + 1);
                }
            }
        }
        for (i, object) in objects.iter().enumerate() {
            check_eq!(first(object)?, i as u64 * MIB);
        }
        Ok(objects)
    }

    /// Frees every other MiB of VRAM, beginning with number `from`.
    fn free_every_other(card: &Card, objects: &mut KVec<ARef<Object>>, from: u64) -> Result {
        let count = objects.len() as u64;
        let all = core::mem::take(objects);

        for (i, object) in all.into_iter().enumerate() {
            if i as u64 % 2 != from {
                objects.push(object, GFP_KERNEL)?;
            }
        }
        check_eq!(card.free(count / 2 * MIB), count / 2 * MIB);
        Ok(())
    }

    #[test]
    fn top_down_is_the_end() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();
            let top = Place::VRAM.top_down();

            for pages in [1, 4] {
                let object = card.object(pages, &[top], Domain::Vram)?;
                let end: u64 = ranges(&object)?
                    .iter()
                    .map(|r| r.offset + r.len)
                    .max()
                    .ok_or(ENXIO)?;

                check_eq!(end, size);
                // The next object is below the first one.
                let next = card.object(pages, &[top], Domain::Vram)?;
                check_eq!(first(&next)?, size - 2 * pages * PAGE);
                // Objects without the option are placed elsewhere.
                let other = card.object(pages, &[Place::VRAM], Domain::Vram)?;
                check!(first(&other)? + pages * PAGE <= size - 2 * pages * PAGE);
                drop((object, next, other));
                check_eq!(card.free(size), size);
            }

            // An object that is already in VRAM does not move to the other end.
            let object = card.object(1, &[Place::VRAM.below(MIB)], Domain::Either)?;
            fill(&object, 1)?;
            let at = first(&object)?;
            validate(&object, &[top])?;
            check_eq!(first(&object)?, at);
            validate(&object, &[Place::TT])?;
            validate(&object, &[top])?;
            check_eq!(first(&object)?, size - PAGE);
            check!(holds(&object, Some(1))?);
            Ok(())
        })
    }

    #[test]
    fn contiguous_is_one_piece() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();
            let mut objects = fill_vram(&card, Domain::Vram)?;
            free_every_other(&card, &mut objects, 0)?;

            // Half of VRAM is free, in pieces of a MiB.
            let (whole, pages) = (Place::VRAM.contiguous(), 2 * MIB / PAGE);
            check_eq!(
                card.object(pages, &[whole], Domain::Vram).err(),
                Some(ENOSPC)
            );
            check_eq!(
                card.object(pages, &[whole.top_down()], Domain::Vram).err(),
                Some(ENOSPC)
            );
            let one = card.object(MIB / PAGE, &[whole], Domain::Vram)?;
            check_eq!(ranges(&one)?.len(), 1);
            let object = card.object(pages, &[Place::VRAM], Domain::Either)?;
            check_eq!(ranges(&object)?.len(), 2);
            fill(&object, 2)?;

            // Without a free piece of that size the object stays as it is.
            check_eq!(validate(&object, &[whole]), Err(ENOSPC));
            check_eq!(ranges(&object)?.len(), 2);
            check!(holds(&object, Some(2))?);

            drop((one, objects));
            check_eq!(card.free(size - 2 * MIB), size - 2 * MIB);
            let moves = card.ttm().moves();
            validate(&object, &[Place::VRAM])?;
            check_eq!(card.ttm().moves(), moves);
            validate(&object, &[whole])?;
            check_eq!(card.ttm().moves(), moves + 1);
            check_eq!(ranges(&object)?.len(), 1);
            check!(holds(&object, Some(2))?);
            // An object in one piece does not move again.
            validate(&object, &[whole])?;
            check_eq!(card.ttm().moves(), moves + 1);
            Ok(())
        })
    }

    #[test]
    fn contiguous_evicts_neighbours() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let mut objects = fill_vram(&card, Domain::Either)?;
            free_every_other(&card, &mut objects, 1)?;

            let object = card.object(2 * MIB / PAGE, &[Place::VRAM.contiguous()], Domain::Vram)?;
            check_eq!(ranges(&object)?.len(), 1);
            let mut evicted = 0;
            for object in &objects {
                if mem_type(object)? == Some(MemType::Tt) {
                    evicted += 1;
                }
            }
            check!(evicted > 0);
            Ok(())
        })
    }

    #[test]
    fn below_evicts_only_there() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let objects = fill_vram(&card, Domain::Either)?;
            let low = Place::VRAM.below(2 * MIB);

            // The other objects were used earlier, but their eviction would not help.
            for object in objects.iter().take(2) {
                fill(object, 3)?;
            }
            let object = card.object(2 * MIB / PAGE, &[low], Domain::Vram)?;
            check!(ranges(&object)?
                .iter()
                .all(|r| low.contains(r.offset, r.len)));
            for (i, object) in objects.iter().enumerate() {
                let expected = if i < 2 { MemType::Tt } else { MemType::Vram };

                check_eq!(mem_type(object)?, Some(expected));
            }
            check!(holds(&objects[0], Some(3))? && holds(&objects[1], Some(3))?);

            // An object larger than the limit is refused before anything is evicted.
            check_eq!(
                card.object(2 * MIB / PAGE + 1, &[low], Domain::Vram).err(),
                Some(ENOSPC)
            );
            check_eq!(mem_type(&objects[2])?, Some(MemType::Vram));

            // An object above the limit moves below it.
            drop(object);
            let last = objects.last().ok_or(ENXIO)?;
            fill(last, 4)?;
            validate(last, &[low])?;
            check!(first(last)? < 2 * MIB);
            check!(holds(last, Some(4))?);
            Ok(())
        })
    }

    #[test]
    fn no_victims_means_no_eviction() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let objects = fill_vram(&card, Domain::Either)?;

            let object = card.object(
                1,
                &[Place::VRAM.evicting(Victims::None), Place::TT],
                Domain::Either,
            )?;
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            for object in &objects {
                check_eq!(mem_type(object)?, Some(MemType::Vram));
            }
            Ok(())
        })
    }

    #[test]
    fn fallback_comes_last() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();

            // A new object goes to the place that is not a fallback.
            let object = card.object(1, &[Place::VRAM.fallback(), Place::TT], Domain::Either)?;
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            drop(object);
            let places = Domain::Either.places();
            let object = card.object(1, &places, Domain::Either)?;
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            drop(object);
            check_eq!(card.free(size), size);

            // Objects are evicted from the first place before the fallback is used.
            let full = card.object(size / PAGE, &[Place::VRAM], Domain::Either)?;
            let object = card.object(1, &places, Domain::Either)?;
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            check_eq!(mem_type(&full)?, Some(MemType::Tt));
            drop((object, full));
            check_eq!(card.free(size), size);
            let full = card.object(size / PAGE, &[Place::VRAM], Domain::Vram)?;
            let object = card.object(1, &places, Domain::Either)?;
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            check_eq!(mem_type(&full)?, Some(MemType::Vram));
            Ok(())
        })
    }

    #[test]
    fn places_are_checked() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();
            let object = card.object(1, &[Place::TT], Domain::Either)?;
            fill(&object, 5)?;

            // The list is empty, for which TTM would drop the content, or too long.
            for places in [&[][..], &[Place::TT; 5]] {
                check_eq!(card.object(1, places, Domain::Either).err(), Some(EINVAL));
                check_eq!(validate(&object, places), Err(EINVAL));
            }
            validate(&object, &[Place::TT; 4])?;
            check_eq!(
                card.object(0, &[Place::TT], Domain::Either).err(),
                Some(EINVAL)
            );

            // A place that is too small is skipped, and the next one is used.
            let none = Place::VRAM.below(PAGE - 1);
            check_eq!(validate(&object, &[none]), Err(ENOSPC));
            check_eq!(card.object(1, &[none], Domain::Either).err(), Some(ENOSPC));
            check_eq!(
                card.object(size / PAGE + 1, &[Place::VRAM], Domain::Either)
                    .err(),
                Some(ENOSPC)
            );
            let large = card.object(size / PAGE + 1, &[Place::VRAM, Place::TT], Domain::Either)?;
            check_eq!(mem_type(&large)?, Some(MemType::Tt));
            check!(holds(&object, Some(5))?);
            check_eq!(card.ttm().vram_free(), size);

            // A validation counts the bytes that it moves.
            let mut ctx = OpCtx::uninterruptible();
            object.reserve(false)?.validate(&[Place::VRAM], &mut ctx)?;
            check_eq!(ctx.bytes_moved(), PAGE);
            object.reserve(false)?.validate(&[Place::VRAM], &mut ctx)?;
            check_eq!(ctx.bytes_moved(), PAGE);
            Ok(())
        })
    }

    #[test]
    fn ranges_have_every_page() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let mut objects = fill_vram(&card, Domain::Vram)?;
            free_every_other(&card, &mut objects, 1)?;
            let object = card.object(4 * MIB / PAGE, &[Place::VRAM], Domain::Vram)?;
            let list = ranges(&object)?;
            check_eq!(list.len(), 4);

            let object = object.reserve(false)?;
            let vram = object.vram().ok_or(ENXIO)?;
            let mut at = 0;
            for range in &list {
                check_eq!(range.at, at);
                for offset in [0, 1, PAGE, range.len - 1] {
                    check_eq!(vram.offset(at + offset), Some(range.offset + offset));
                }
                at += range.len;
            }
            check_eq!(at, 4 * MIB);
            check_eq!(vram.offset(at), None);
            check_eq!(vram.offset(u64::MAX), None);

            let end: u64 = list.iter().map(|r| r.offset + r.len).max().ok_or(ENXIO)?;
            check!(vram.is_below(end) && !vram.is_below(end - 1));
            check!(vram.is_below(u64::MAX) && !vram.is_below(0));
            Ok(())
        })
    }

    /// A task that finds no room tries again alone, after all other tasks have left.
    #[test]
    fn task_without_room_tries_again_alone() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let (inside, refused) = (
                Arc::pin_init(Completion::new(), GFP_KERNEL)?,
                Arc::pin_init(Completion::new(), GFP_KERNEL)?,
            );
            let left = Arc::pin_init(new_mutex!(false), GFP_KERNEL)?;
            let (is_inside, is_refused, has_left) = (inside.clone(), refused.clone(), left.clone());
            let drm = card.drm();

            worker::spawn(move || {
                let _ = drm.ttm.exec(Flag::Interruptible, |_| {
                    is_inside.complete_all();
                    is_refused.wait_for_completion();
                    fsleep(Delta::from_millis(50));
                    *has_left.lock() = true;
                    Ok(())
                });
            })?;
            inside.wait_for_completion();

            let (mut tries, mut alone) = (0, 0);
            let ret = card.ttm().exec(Flag::Interruptible, |_| {
                tries += 1;
                alone += u32::from(*left.lock());
                refused.complete_all();
                Err::<(), _>(ENOSPC)
            });
            check_eq!(ret, Err(ENOSPC));
            check_eq!((tries, alone), (5, 4));

            // Other errors are not tried again.
            let mut tries = 0;
            let ret = card.ttm().exec(Flag::Interruptible, |_| {
                tries += 1;
                Err::<(), _>(EINVAL)
            });
            check_eq!((ret, tries), (Err(EINVAL), 1));
            Ok(())
        })
    }

    /// An object that another task has reserved for a moment cannot be evicted until then.
    #[test]
    fn objects_in_use_are_waited_for() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let pages = card.ttm().vram_size() / PAGE;
            let object = card.object(pages, &[Place::VRAM], Domain::Either)?;

            // The clearing of the object is done, so that only the reservation prevents the
            // eviction.
            move_of(&object)?.wait(false)?;
            let reserved = waits::reserve(&object)?;
            let next = waits::until(
                move || drop(reserved),
                || card.object(pages, &[Place::VRAM], Domain::Vram),
            )??;
            check_eq!(mem_type(&next)?, Some(MemType::Vram));
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            Ok(())
        })
    }

    /// The boundaries of [`Place::contains`], which need no device.
    #[test]
    fn boundaries_of_a_place() {
        let low = Place::VRAM.below(4 * PAGE);

        assert!(low.contains(0, 4 * PAGE));
        assert!(low.contains(3 * PAGE, PAGE));
        assert!(low.contains(3 * PAGE, 1));
        assert!(!low.contains(3 * PAGE, PAGE + 1));
        assert!(!low.contains(0, 5 * PAGE));
        assert!(!low.contains(4 * PAGE, PAGE));
        assert!(!low.contains(PAGE, u64::MAX));
        // A limit is rounded down to whole pages.
        assert!(Place::VRAM.below(5 * PAGE - 1).contains(3 * PAGE, PAGE));
        assert!(!Place::VRAM.below(5 * PAGE - 1).contains(4 * PAGE, PAGE));
        assert!(Place::VRAM.below(PAGE).contains(0, PAGE));
        for none in [0, 1, PAGE - 1] {
            assert!(!Place::VRAM.below(none).contains(0, PAGE));
            assert!(!Place::VRAM.below(none).contains(PAGE, PAGE));
        }
        assert!(Place::VRAM.contains(0, u64::MAX));
        assert!(!Place::VRAM.contains(1, u64::MAX));

        // Options do not change the range of a place.
        for place in [
            low.contiguous(),
            low.top_down(),
            low.evicting(Victims::None),
            low.fallback(),
            low.contiguous()
                .top_down()
                .evicting(Victims::Own)
                .fallback(),
        ] {
            assert_eq!(place.mem_type(), MemType::Vram);
            assert!(place.contains(0, 4 * PAGE) && !place.contains(4 * PAGE, PAGE));
        }
        assert_eq!(Place::TT.mem_type(), MemType::Tt);
        assert_eq!(Place::SYSTEM.mem_type(), MemType::System);
        assert_eq!(
            Domain::Vram.places().map(|place| place.mem_type()),
            [MemType::Vram; 3]
        );
        assert_eq!(
            Domain::System.places().map(|place| place.mem_type()),
            [MemType::Tt; 3]
        );
    }

    #[test]
    fn window_is_one_bar() -> Result {
        with_device(|pdev| {
            // BAR 1 is empty; there is no BAR 6.
            for bar in [1, 6, u32::MAX] {
                check_eq!(BarMapping::new(pdev, bar, c"window").err(), Some(EINVAL));
            }
            let window = BarMapping::new(pdev, BAR, c"window")?;
            check_eq!(window.len(), pdev.resource_len(BAR)?);
            check!(!window.is_empty());
            // The request for one BAR does not include the others.
            drop(BarMapping::new(pdev, 0, c"window")?);
            check_eq!(BarMapping::new(pdev, BAR, c"window").err(), Some(EBUSY));
            drop(window);
            drop(BarMapping::new(pdev, BAR, c"window")?);

            // The registration of a device requests the BAR, and releases it at the end.
            let window = BarMapping::new(pdev, BAR, c"window")?;
            check_eq!(Card::new(pdev, 0).err(), Some(EBUSY));
            drop(window);
            let card = Card::new(pdev, 0)?;
            check_eq!(BarMapping::new(pdev, BAR, c"window").err(), Some(EBUSY));
            let object = card.object(1, &[Place::VRAM], Domain::Vram)?;
            check_eq!(object.size() as u64, PAGE);
            drop((object, card));
            drop(BarMapping::new(pdev, BAR, c"window")?);
            Ok(())
        })
    }
}

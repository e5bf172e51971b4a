// SPDX-License-Identifier: GPL-2.0

//! The choice of the object that is evicted from VRAM: the order of use, and objects that are not
//! on the list.

use kernel::prelude::*;

#[kunit_tests(vram_lru)]
mod tests {
    use crate::{
        bench::{
            domains_asked,
            export,
            fill,
            holds,
            mem_type,
            validate,
            with_device,
            Bo,
            Card,
            Mode,
            Object,
            Vmapped,
            PAGE, //
        },
        importer::{
            map,
            prompt,
            Pinner, //
        },
        waits::{
            self,
            work,
            work_of_client,
            Meanwhile, //
        },
        worker, //
    };
    use kernel::{
        device::Bound,
        dma_buf::{
            vmap::VMap,
            Attachment, //
        },
        dma_resv::Usage,
        drm::{
            exec::Flag,
            gem::{
                peer,
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
        pci,
        prelude::*,
        sync::{
            aref::ARef,
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc, //
        },
        time::{
            delay::fsleep,
            Delta,
            Instant,
            Monotonic, //
        }, //
    };

    /// How many small objects never leave VRAM.
    const UNEVICTABLE: u64 = 1000;

    /// More than it takes until a call that finds no room gives up.
    const TRIES: Delta = Delta::from_millis(300);

    /// How often a test repeats a race.
    const ROUNDS: usize = 5;

    /// Two objects, each of half of VRAM, on a device of their own. One was used before the other.
    struct Older {
        older: ARef<Object>,
        newer: ARef<Object>,
        card: Card,
    }

    impl Older {
        fn new(pdev: &pci::Device<Bound>) -> Result<Self> {
            let card = Card::new(pdev, 0)?;
            let half = card.ttm().vram_size() / PAGE / 2;
            let older = card.object(half, &[Place::VRAM], Domain::Either)?;
            fill(&older, 1)?;
            let newer = card.object(half, &[Place::VRAM], Domain::Either)?;
            fill(&newer, 2)?;

            check_eq!(card.ttm().vram_free(), 0);
            Ok(Self { older, newer, card })
        }

        /// Returns whether the older object stays in VRAM when a third one needs as much room.
        fn stays(self) -> Result<bool> {
            let half = self.older.size() as u64 / PAGE;
            let third = self.card.object(half, &[Place::VRAM], Domain::Either)?;

            check_eq!(mem_type(&third)?, Some(MemType::Vram));
            let places = [mem_type(&self.older)?, mem_type(&self.newer)?];
            check!(holds(&self.older, Some(1))? && holds(&self.newer, Some(2))?);
            match places {
                [Some(MemType::Vram), Some(MemType::Tt)] => Ok(true),
                [Some(MemType::Tt), Some(MemType::Vram)] => Ok(false),
                _ => Err(EPROTO),
            }
        }
    }

    #[test]
    fn oldest_leaves_first() -> Result {
        with_device(|pdev| {
            check!(!Older::new(pdev)?.stays()?);
            Ok(())
        })
    }

    #[test]
    fn validation_is_use() -> Result {
        with_device(|pdev| {
            // A validation counts as use even without a move, and in an `exec()` of several objects
            // as well.
            let bench = Older::new(pdev)?;
            validate(&bench.older, &[Place::VRAM])?;
            check!(bench.stays()?);

            let bench = Older::new(pdev)?;
            bench.card.ttm().exec(Flag::Interruptible, |exec| {
                let mut object = bench.older.lock(exec)?.ok_or(EALREADY)?;

                object.validate(&[Place::VRAM], &mut OpCtx::interruptible())
            })?;
            check!(bench.stays()?);

            // A validation that fails does not count as use.
            let bench = Older::new(pdev)?;
            let nowhere = Place::VRAM.below(PAGE);
            check_eq!(validate(&bench.older, &[nowhere]), Err(ENOSPC));
            check!(!bench.stays()?);
            Ok(())
        })
    }

    #[test]
    fn importers_use() -> Result {
        with_device(|pdev| {
            let bench = Older::new(pdev)?;
            let at = Attachment::new(export(&bench.older)?, pdev.as_ref(), prompt())?;
            check!(!bench.stays()?);
            drop(at);

            let bench = Older::new(pdev)?;
            let at = Attachment::new(export(&bench.older)?, pdev.as_ref(), prompt())?;
            map(&at)?;
            check!(bench.stays()?);
            drop(at);

            let bench = Older::new(pdev)?;
            let at = Attachment::new(export(&bench.older)?, pdev.as_ref(), Pinner)?;
            at.with(|at| at.pin())?;
            drop(at);
            check!(bench.stays()?);

            // A mapping of the kernel pins the object, and counts as use.
            let bench = Older::new(pdev)?;
            drop(VMap::new(export(&bench.older)?)?);
            check!(bench.stays()?);
            Ok(())
        })
    }

    #[test]
    fn questions_are_no_use() -> Result {
        with_device(|pdev| {
            let bench = Older::new(pdev)?;
            let buf = export(&bench.older)?;

            for _ in 0..2 {
                let object = bench.older.reserve(false)?;
                check_eq!(object.mem_type(), Some(MemType::Vram));
                check!(object.vram().is_some() && !object.is_pinned());
            }
            check_eq!(peer::attachments::<Bo>(&bench.older)?.len(), 0);
            let found = bench.card.ttm().object(bench.older.id()).ok_or(ENOENT)?;
            check_eq!(found.last_placement(), Some(MemType::Vram));
            drop((found, buf));
            check!(!bench.stays()?);
            Ok(())
        })
    }

    /// An eviction does not look at objects that cannot be evicted: their number makes no
    /// difference.
    #[test]
    fn unevictable_objects_are_not_asked() -> Result {
        with_device(|pdev| {
            check_eq!(asked(pdev, UNEVICTABLE)?, asked(pdev, 0)?);
            Ok(())
        })
    }

    /// Returns how many times objects are asked by an eviction, and by one that finds nothing to
    /// evict, on a device with so many objects that cannot be evicted.
    fn asked(pdev: &pci::Device<Bound>, unevictable: u64) -> Result<(usize, usize)> {
        let card = Card::new(pdev, 0)?;
        let pages = card.ttm().vram_size() / PAGE;
        let mut kept = KVec::new();

        for _ in 0..unevictable {
            kept.push(card.object(1, &[Place::VRAM], Domain::Vram)?, GFP_KERNEL)?;
        }
        let rest = pages - unevictable;
        let old = card.object(rest, &[Place::VRAM], Domain::Either)?;
        fill(&old, 3)?;

        let start = Instant::<Monotonic>::now();
        let (asked, new) = domains_asked(|| card.object(rest, &[Place::VRAM], Domain::Either));
        let new = new?;
        let took = start.elapsed();
        check_eq!(mem_type(&new)?, Some(MemType::Vram));
        check_eq!(mem_type(&old)?, Some(MemType::Tt));
        check!(holds(&old, Some(3))?);
        pr_info!(
            "room by eviction: asked {} times, {} us\n",
            asked,
            took.as_micros_ceil()
        );

        // No object is left that could be evicted.
        let all = new.reserve(false)?.pin()?;
        let start = Instant::<Monotonic>::now();
        let (failed, ret) = domains_asked(|| card.object(1, &[Place::VRAM], Domain::Either));
        let took = start.elapsed();
        check_eq!(ret.err(), Some(ENOSPC));
        pr_info!(
            "no room: asked {} times, {} us\n",
            failed,
            took.as_micros_ceil()
        );
        drop(all);
        for object in &kept {
            check_eq!(mem_type(object)?, Some(MemType::Vram));
        }
        Ok((asked, failed))
    }

    /// Objects that cannot be evicted otherwise look and behave like any others.
    #[test]
    fn unevictable_objects_move_and_pin() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let size = card.ttm().vram_size();
            let object = card.object(3, &[Place::VRAM.top_down()], Domain::Vram)?;
            let low = Place::VRAM.below(size / 2);
            fill(&object, 4)?;

            check!(!object.reserve(false)?.is_pinned());
            check_eq!(card.ttm().pinned(), 0);
            // The object can be pinned and unpinned.
            let pinned = object.reserve(false)?.pin()?;
            check!(object.reserve(false)?.is_pinned());
            check_eq!(card.ttm().pinned(), 3 * PAGE);
            check_eq!(validate(&object, &[low]), Err(EINVAL));
            check_eq!(validate(&object, &[Place::VRAM]), Ok(()));
            drop(pinned);
            check!(!object.reserve(false)?.is_pinned());
            check_eq!(card.ttm().pinned(), 0);
            validate(&object, &[low])?;
            check!(object
                .reserve(false)?
                .vram()
                .is_some_and(|vram| vram.is_below(size / 2)));
            check!(holds(&object, Some(4))?);

            // The object was on the list of evictable objects while it moved, and is not any more.
            let rest = (size / PAGE) - 3;
            let other = card.object(rest, &[Place::VRAM], Domain::Either)?;
            check_eq!(
                card.object(rest + 1, &[Place::VRAM], Domain::Either).err(),
                Some(ENOSPC)
            );
            check_eq!(mem_type(&object)?, Some(MemType::Vram));
            drop(other);
            check_eq!(card.free(size - 3 * PAGE), size - 3 * PAGE);

            // An explicit validation can move the object out of VRAM.
            validate(&object, &[Place::TT])?;
            check_eq!(mem_type(&object)?, Some(MemType::Tt));
            check!(holds(&object, Some(4))?);
            validate(&object, &[Place::VRAM])?;
            check!(holds(&object, Some(4))?);
            drop(object);
            check_eq!(card.free(size), size);
            Ok(())
        })
    }

    /// An object that is pinned, or mapped by the kernel, while an eviction waits for its
    /// reservation stays in VRAM.
    #[test]
    fn pinned_meanwhile() -> Result {
        with_device(|pdev| {
            for round in 0..2 * ROUNDS {
                let bench = Older::new(pdev)?;
                let buf = export(&bench.newer)?;
                let mut newer = bench.newer.reserve(false)?;

                let (drm, all) = (bench.card.drm(), bench.card.ttm().vram_size());
                let has_room =
                    Meanwhile::new(move || drm.ttm.make_room(all, &mut OpCtx::uninterruptible()))?;
                // The worker waits for the newer object as soon as it has moved the older one.
                check!(worker::soon(
                    || bench.older.last_placement() == Some(MemType::Tt)
                ));
                worker::pause();
                let (mut pinned, mut mapped) = (None, None);
                match round % 2 {
                    0 => pinned = Some(newer.pin()?),
                    _ => mapped = Some(Vmapped::new(&buf, &newer)?),
                }
                drop(newer);
                let has_room = has_room.end()?;

                check_eq!(mem_type(&bench.newer)?, Some(MemType::Vram));
                check!(bench.newer.reserve(false)?.is_pinned());
                // Half of VRAM is free.
                check_eq!(has_room, Ok(false));
                check!(holds(&bench.older, Some(1))? && holds(&bench.newer, Some(2))?);
                drop((pinned, mapped));
                // The object can be evicted again.
                check!(bench
                    .card
                    .ttm()
                    .make_room(all, &mut OpCtx::uninterruptible())?);
                check!(holds(&bench.newer, Some(2))?);
            }
            Ok(())
        })
    }

    /// An object that never leaves VRAM is on the list for evictions until it is made.
    #[test]
    fn made_meanwhile() -> Result {
        with_device(|pdev| {
            for _ in 0..ROUNDS {
                let card = Card::new(pdev, 0)?;
                let (drm, all) = (card.drm(), card.ttm().vram_size());
                let before = card.ttm().vram_free();

                card.control.set(Mode::Wait);
                let maker = drm.clone();
                let made = Meanwhile::new(move || {
                    Object::new(
                        &maker,
                        PAGE as usize,
                        &[Place::VRAM],
                        &mut OpCtx::uninterruptible(),
                        Domain::Vram.into(),
                    )
                })?;
                let has_vram =
                    worker::soon(|| card.control.waits()) && card.ttm().vram_free() < before;
                // The other worker finds the object, and waits for its reservation.
                let has_room =
                    Meanwhile::new(move || drm.ttm.make_room(all, &mut OpCtx::uninterruptible()))?;
                worker::pause();
                let waits = !has_room.is_over();
                card.control.set(Mode::Work);
                let (object, has_room) = (made.end()??, has_room.end()?);

                check!(has_vram && waits);
                check_eq!(has_room, Ok(false));
                check_eq!(mem_type(&object)?, Some(MemType::Vram));
                fill(&object, 1)?;
                check!(holds(&object, Some(1))?);
            }
            Ok(())
        })
    }

    /// An object that a client uses is evicted only if there is no other. The eviction does not wait
    /// for the client.
    #[test]
    fn used_objects_leave_last() -> Result {
        with_device(|pdev| {
            let bench = Older::new(pdev)?;
            let half = bench.older.size() as u64 / PAGE;
            let new = |domain: Domain| bench.card.object(half, &domain.places(), domain);
            let client = work_of_client(
                bench.card.ttm().fence_group(),
                &mut bench.older.reserve(false)?.resv(),
                Usage::Write,
            )?;

            let first = new(Domain::Vram)?;
            check_eq!(mem_type(&bench.older)?, Some(MemType::Vram));
            check_eq!(mem_type(&bench.newer)?, Some(MemType::Tt));
            let second = new(Domain::Either)?;
            check_eq!(mem_type(&second)?, Some(MemType::Vram));
            check_eq!(mem_type(&bench.older)?, Some(MemType::Tt));

            client.signal(Ok(()));
            check!(holds(&bench.older, Some(1))? && holds(&bench.newer, Some(2))?);
            check!(holds(&first, None)? && holds(&second, None)?);
            Ok(())
        })
    }

    /// Room for another user of VRAM is made by objects that need not wait for another device: that
    /// user may hold the lock of the address space of a process.
    #[test]
    fn others_are_not_waited_for() -> Result {
        with_device(|pdev| {
            let bench = Older::new(pdev)?;
            let all = bench.card.ttm().vram_size();
            let make_room = |bytes| {
                let mut ctx = OpCtx::uninterruptible();
                bench.card.ttm().make_room(bytes, &mut ctx)
            };
            let job = work(&mut bench.older.reserve(false)?.resv(), Usage::Write)?;

            let start = Instant::<Monotonic>::now();
            check!(make_room(all / 2)?);
            check_eq!(mem_type(&bench.older)?, Some(MemType::Vram));
            check_eq!(mem_type(&bench.newer)?, Some(MemType::Tt));
            check_eq!(make_room(all), Ok(false));
            check_eq!(mem_type(&bench.older)?, Some(MemType::Vram));
            // A move waits for 15 seconds.
            check!(start.elapsed() < Delta::from_secs(10));
            job.signal(Ok(()));
            check!(make_room(all)?);
            check_eq!(mem_type(&bench.older)?, Some(MemType::Tt));
            check!(holds(&bench.older, Some(1))? && holds(&bench.newer, Some(2))?);
            Ok(())
        })
    }

    /// A client that finds no room does not keep others out while it waits to try again.
    #[test]
    fn no_room_holds_up_nobody() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let mut seen = 0u32;

            // A processor that is taken away may miss all pauses of a round.
            for _ in 0..2 * ROUNDS {
                let tries = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
                let (drm, counter) = (card.drm(), tries.clone());
                let greedy = Meanwhile::new(move || {
                    drm.ttm.exec(Flag::Interruptible, |_| {
                        counter.fetch_add(1, Relaxed);
                        Err::<(), _>(ENOSPC)
                    })
                })?;

                while !greedy.is_over() {
                    card.ttm().exec(Flag::Interruptible, |_| {
                        seen |= 1 << tries.load(Relaxed);
                        Ok(())
                    })?;
                }
                check_eq!(greedy.end()?, Err(ENOSPC));
                check_eq!(tries.load(Relaxed), 5);
            }
            // The last pause is the longest one.
            check!(seen & 1 << 4 != 0);
            Ok(())
        })
    }

    /// A new object waits for the memory of an object that is freed while the engine works on it.
    #[test]
    fn freed_objects_are_waited_for() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let pages = card.ttm().vram_size() / PAGE;

            card.control.set(Mode::Keep);
            let object = card.object(pages, &[Place::VRAM], Domain::Vram)?;
            drop(object);
            check_eq!(card.control.kept(), 1);
            check_eq!(card.ttm().vram_free(), 0);
            card.control.set(Mode::Work);

            // A call that does not find the object tries again, but not for so long.
            let control = card.control.clone();
            let finish = move || {
                fsleep(TRIES);
                if let Ok(job) = control.take() {
                    job.finish(Ok(()));
                }
            };
            let next = waits::until(finish, || card.object(pages, &[Place::VRAM], Domain::Vram))??;
            check_eq!(mem_type(&next)?, Some(MemType::Vram));
            check!(holds(&next, None)?);
            Ok(())
        })
    }
}

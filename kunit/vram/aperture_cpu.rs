// SPDX-License-Identifier: GPL-2.0

//! Page faults and mappings of the kernel on a device that shows VRAM through windows: see
//! [`windows`](crate::windows).

use crate::{
    bench::{
        bytes,
        export,
        holds,
        mem_type,
        validate,
        vmap_has,
        with_device,
        PAGE, //
    },
    importer::{
        self,
        late,
        prompt,
        revocable,
        unmap, //
    },
    memory::{
        Access,
        Mapped,
        Sharing, //
    },
    waits::{
        self,
        Blocked, //
    },
    windows::{
        card_showing,
        object,
        sees,
        Bo,
        Card,
        Mode,
        Object,
        Slots, //
    },
    worker::{
        self,
        soon, //
    }, //
};
use kernel::{
    bindings,
    device::Bound,
    dma_buf::{
        vmap::VMap,
        Attachment,
        DmaBuf, //
    },
    dma_resv::Usage,
    drm::{
        exec::Flag,
        gem::{
            peer::{
                attachments,
                Event,
                Outcome,
                Path,
                Reason, //
            },
            ttm::Content,
            IntoGEMObject, //
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
    error::to_result,
    page::PAGE_SIZE,
    pci,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    }, //
};

/// Makes a device whose VRAM the CPU sees through windows only.
fn card(pdev: &pci::Device<Bound>) -> Result<(Card, Arc<Slots>)> {
    card_showing(pdev, 0)
}

/// Maps all of a buffer into the process of the test.
fn mapped(buf: &DmaBuf) -> Result<Mapped> {
    Mapped::new(buf, 0, buf.size() / PAGE_SIZE, Sharing::Shared)
}

/// Returns whether a process reads the first bytes of all pages of an object that was filled from
/// `seed`.
fn reads(map: &Mapped, seed: u64) -> Result<bool> {
    let pages = map.dma_buf().size() as u64 / PAGE;
    let mut same = true;

    for page in 0..pages {
        same &= map.read((page * PAGE) as usize)? == bytes(seed, page);
    }
    Ok(same)
}

/// Moves an object, and waits for the move: a window of the test shows the content that VRAM had
/// when the window was made.
fn move_to(object: &Object, places: &[Place]) -> Result {
    validate(object, places)?;
    object
        .reserve(false)?
        .resv()
        .resv()
        .wait(Usage::Kernel, false)
}

/// Returns how many windows there are. Waits for the expected number: files are put in the
/// background.
fn live(aperture: &Slots, expected: usize) -> usize {
    soon(|| aperture.windows().0 == expected);
    aperture.windows().0
}

#[kunit_tests(vram_aperture_cpu)]
mod tests {
    use super::*;

    /// The writes of a process go to the window, and to VRAM when the window is dropped.
    #[test]
    fn fault_makes_a_window() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 3, Domain::Either, 1)?;
            let map = mapped(&*export(&object)?)?;

            check_eq!(aperture.windows(), (0, 0));
            check!(reads(&map, 1)?);
            check_eq!(aperture.windows(), (1, 1));
            check_eq!(mem_type(&object)?, Some(MemType::Vram));

            map.write(0, [0xaa; 8])?;
            let first = u64::from_ne_bytes(bytes(1, 0));
            check_eq!(
                aperture.first_words(),
                Some((u64::from_ne_bytes([0xaa; 8]), first))
            );

            // A move drops the window, and the process gets another one after the move back.
            move_to(&object, &[Place::TT])?;
            check_eq!(aperture.windows(), (0, 1));
            check_eq!(map.read(0)?, [0xaa; 8]);
            check_eq!(map.read(2 * PAGE_SIZE)?, bytes(1, 2));
            check_eq!(aperture.windows(), (0, 1));
            map.write(0, bytes(1, 0))?;
            move_to(&object, &[Place::VRAM])?;
            check!(reads(&map, 1)?);
            check_eq!(aperture.windows(), (1, 2));
            check!(aperture.first_words().is_some());

            // The window is kept when the process has unmapped the object, until the object is
            // freed.
            drop(map);
            check_eq!(aperture.windows(), (1, 2));
            drop(object);
            check_eq!(live(&aperture, 0), 0);
            drop(card);
            Ok(())
        })
    }

    #[test]
    fn kernel_has_a_window_while_it_maps() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 3, Domain::Vram, 1)?;
            let buf = export(&object)?;

            {
                let map = VMap::new(buf.clone())?;
                check!(map.is_iomem());
                check!(vmap_has(&map, 1)?);
                check_eq!(aperture.windows(), (1, 1));
                // A second mapping shares the window.
                check!(holds(&object, Some(1))?);
                check_eq!(aperture.windows(), (1, 1));
                map.write(0, &[0xaa; 8])?;
                check_eq!(
                    aperture.first_words().map(|words| words.0),
                    Some(u64::from_ne_bytes([0xaa; 8]))
                );
            }
            check_eq!(aperture.windows(), (0, 1));

            let map = VMap::new(buf.clone())?;
            let mut now = [0; 8];
            map.read(0, &mut now)?;
            check_eq!(now, [0xaa; 8]);
            check_eq!(aperture.windows(), (1, 2));
            drop(map);
            check_eq!(aperture.windows(), (0, 2));

            // An importer keeps the window.
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            importer::map(&at)?;
            drop(VMap::new(buf)?);
            check_eq!(aperture.windows(), (1, 3));
            unmap(&at)?;
            check_eq!(aperture.windows(), (0, 3));
            check_eq!(card.device().ttm.pinned(), 0);
            Ok(())
        })
    }

    #[test]
    fn all_share_a_window() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 2, Domain::Either, 1)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let map = mapped(&buf)?;

            // The aperture has room for one window of the object, not for two.
            aperture.set_limit(2);
            check!(sees(&at, &aperture, 2, 1)?);
            check!(reads(&map, 1)?);
            let vmap = VMap::new(buf.clone())?;
            check!(vmap_has(&vmap, 1)?);
            check_eq!(aperture.windows(), (1, 1));

            // The window stays until its last user is gone: an importer, a process or the kernel.
            drop(vmap);
            unmap(&at)?;
            check_eq!(aperture.windows(), (1, 1));
            check!(sees(&at, &aperture, 2, 1)?);
            check_eq!(aperture.windows(), (1, 1));
            let vmap = VMap::new(buf)?;
            unmap(&at)?;
            check!(vmap_has(&vmap, 1)?);
            check!(reads(&map, 1)?);
            drop(vmap);
            check_eq!(aperture.windows(), (1, 1));

            move_to(&object, &[Place::TT])?;
            check_eq!(aperture.windows(), (0, 1));
            check!(reads(&map, 1)?);
            Ok(())
        })
    }

    /// An importer that has not unmapped does not keep a window after a move.
    #[test]
    fn old_window_is_closed() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 2, Domain::Either, 1)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), late())?;
            let map = mapped(&buf)?;

            check!(sees(&at, &aperture, 2, 1)?);
            check!(reads(&map, 1)?);
            move_to(&object, &[Place::TT])?;
            check_eq!(at.importer().0.load(Relaxed), 1);
            check_eq!(aperture.windows(), (0, 1));
            move_to(&object, &[Place::VRAM])?;
            check!(reads(&map, 1)?);
            check_eq!(aperture.windows(), (1, 2));
            unmap(&at)?;
            check_eq!(aperture.windows(), (1, 2));
            check!(reads(&map, 1)?);
            Ok(())
        })
    }

    #[test]
    fn importer_evicts_the_window_of_a_fault() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let touched = object(&card, 2, Domain::Vram, 1)?;
            let other = object(&card, 2, Domain::Vram, 2)?;
            let map = mapped(&*export(&touched)?)?;
            let buf = export(&other)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), revocable())?;

            aperture.set_limit(3);
            at.with(|at| at.pin())?;
            check!(reads(&map, 1)?);
            check_eq!(aperture.windows(), (1, 1));
            check!(sees(&at, &aperture, 2, 2)?);
            check_eq!(aperture.windows(), (1, 2));
            check_eq!(
                attachments::<Bo>(&other)?[0].outcome,
                Outcome::peer(Path::PeerBus)
            );

            // A window that an importer has pinned is not evicted.
            check_eq!(map.fault(0)?, Access::Sigbus);
            check_eq!(map.read(0).err(), Some(EFAULT));
            check_eq!(holds(&touched, Some(1)).err(), Some(ENOSPC));
            check_eq!(aperture.windows(), (1, 2));
            unmap(&at)?;
            check!(reads(&map, 1)?);
            check_eq!(aperture.windows(), (1, 3));

            // A mapping of the kernel evicts the window of a process as well, and so does another
            // fault.
            let vmap = VMap::new(buf.clone())?;
            check!(vmap_has(&vmap, 2)?);
            check_eq!(aperture.windows(), (1, 4));
            check_eq!(map.read(0).err(), Some(EFAULT));
            drop(vmap);
            check!(reads(&map, 1)?);
            check!(reads(&mapped(&buf)?, 2)?);
            check_eq!(aperture.windows(), (1, 6));
            check!(reads(&map, 1)?);
            Ok(())
        })
    }

    #[test]
    fn least_recently_used_window_is_evicted() -> Result {
        with_device(|pdev| {
            // The object has more pages than a single fault maps.
            const LARGE: u64 = 18;
            let (card, aperture) = card(pdev)?;
            let large = object(&card, LARGE, Domain::Vram, 1)?;
            let small = object(&card, 2, Domain::Vram, 2)?;
            let other = object(&card, 2, Domain::Vram, 3)?;
            let first = mapped(&*export(&large)?)?;
            let second = mapped(&*export(&small)?)?;
            let at = Attachment::new(export(&other)?, pdev.as_ref(), prompt())?;

            aperture.set_limit(LARGE as usize + 2);
            check_eq!(first.read(0)?, bytes(1, 0));
            check!(reads(&second, 2)?);
            // A fault on the large object makes it the most recently used one.
            check_eq!(first.read(17 * PAGE_SIZE)?, bytes(1, 17));
            check_eq!(aperture.windows(), (2, 2));

            check!(sees(&at, &aperture, 2, 3)?);
            check_eq!(aperture.windows(), (2, 3));
            check!(reads(&first, 1)?);
            check_eq!(aperture.windows(), (2, 3));
            check!(reads(&second, 2)?);
            check_eq!(aperture.windows(), (2, 4));
            Ok(())
        })
    }

    /// A fault evicts the window of an importer that has not pinned its object.
    #[test]
    fn fault_evicts_the_window_of_an_importer() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let touched = object(&card, 2, Domain::Vram, 1)?;
            let other = object(&card, 2, Domain::Vram, 2)?;
            let map = mapped(&*export(&touched)?)?;
            let buf = export(&other)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), late())?;
            let same = Attachment::new(buf, pdev.as_ref(), prompt())?;

            aperture.set_limit(3);
            check!(sees(&at, &aperture, 2, 2)?);
            check!(reads(&map, 1)?);
            check_eq!(at.importer().0.load(Relaxed), 1);
            check_eq!(aperture.windows(), (1, 2));

            // A fault does not wait for its work for long, but is tried again.
            check!(sees(&at, &aperture, 2, 2)?);
            let work = waits::work(&mut other.reserve(false)?.resv(), Usage::Bookkeep)?;
            check_eq!(map.fault(0)?, Access::Works);
            check_eq!(at.importer().0.load(Relaxed), 2);
            check_eq!(aperture.windows(), (1, 3));
            check_eq!(mem_type(&touched)?, Some(MemType::Vram));

            // Meanwhile importers do not get the window again, which would be for ever.
            let end = move || work.signal(Ok(()));
            check!(waits::until(end, || sees(&same, &aperture, 2, 2))??);
            check_eq!(aperture.windows(), (1, 4));
            check!(reads(&map, 1)?);
            check_eq!(aperture.windows(), (1, 5));
            Ok(())
        })
    }

    /// Windows that importers share are evicted last.
    #[test]
    fn window_of_importers_is_evicted_last() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let shared = object(&card, 1, Domain::Vram, 1)?;
            let touched = object(&card, 1, Domain::Vram, 2)?;
            let other = object(&card, 1, Domain::Vram, 3)?;
            let buf = export(&shared)?;
            let holder = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let at = Attachment::new(export(&other)?, pdev.as_ref(), prompt())?;
            let first = mapped(&buf)?;
            let second = mapped(&*export(&touched)?)?;

            aperture.set_limit(2);
            check!(reads(&first, 1)?);
            check!(reads(&second, 2)?);
            check!(sees(&holder, &aperture, 1, 1)?);
            check!(sees(&at, &aperture, 1, 3)?);
            check_eq!(aperture.windows(), (2, 3));
            // The process, which has faulted first, still uses the window.
            unmap(&holder)?;
            check_eq!(aperture.windows(), (2, 3));
            check!(reads(&first, 1)?);
            check_eq!(aperture.windows(), (2, 3));
            Ok(())
        })
    }

    #[test]
    fn full_aperture_leads_to_system_memory() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let other = object(&card, 2, Domain::Vram, 1)?;
            let touched = object(&card, 2, Domain::Either, 2)?;
            let looked = object(&card, 2, Domain::Either, 3)?;
            let pinned = object(&card, 2, Domain::Either, 4)?;
            let holder = Attachment::new(export(&other)?, pdev.as_ref(), revocable())?;
            let map = mapped(&*export(&touched)?)?;
            let buf = export(&pinned)?;
            let pins = Attachment::new(buf.clone(), pdev.as_ref(), revocable())?;
            let second = mapped(&buf)?;

            aperture.set_limit(2);
            holder.with(|at| at.pin())?;
            pins.with(|at| at.pin())?;
            check!(sees(&holder, &aperture, 2, 1)?);
            check!(reads(&map, 2)?);
            check_eq!(mem_type(&touched)?, Some(MemType::Tt));
            {
                let vmap = VMap::new(export(&looked)?)?;

                check!(!vmap.is_iomem());
                check!(vmap_has(&vmap, 3)?);
                check_eq!(mem_type(&looked)?, Some(MemType::Tt));
            }

            // A pinned object is not moved.
            check_eq!(second.fault(0)?, Access::Sigbus);
            check_eq!(VMap::new(buf.clone()).err(), Some(ENOSPC));
            check_eq!(mem_type(&pinned)?, Some(MemType::Vram));
            check_eq!(card.device().ttm.pinned(), 4 * PAGE);
            check_eq!(aperture.windows(), (1, 1));
            unmap(&holder)?;
            check!(reads(&second, 4)?);
            check_eq!(aperture.windows(), (1, 2));
            Ok(())
        })
    }

    #[test]
    fn full_aperture_is_an_error() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object_of = |seed| object(&card, 2, Domain::Vram, seed);
            let (first, second) = (object_of(1)?, object_of(2)?);
            let buf = export(&second)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let map = mapped(&buf)?;
            let count = || {
                let counters = card.device().ttm.counters();

                counters.get(Event::MapRefused, Reason::NoWindow)
            };

            aperture.set_limit(3);
            let vmap = VMap::new(export(&first)?)?;
            check!(vmap_has(&vmap, 1)?);
            check_eq!(sees(&at, &aperture, 2, 2).err(), Some(ENOSPC));
            check_eq!(count(), 1);
            check_eq!(VMap::new(buf).err(), Some(ENOSPC));
            check_eq!(map.fault(0)?, Access::Sigbus);
            check_eq!(mem_type(&second)?, Some(MemType::Vram));
            check_eq!(aperture.windows(), (1, 1));

            drop(vmap);
            check!(sees(&at, &aperture, 2, 2)?);
            check!(reads(&map, 2)?);
            check_eq!(count(), 1);
            check_eq!(aperture.windows(), (1, 2));
            Ok(())
        })
    }

    /// An eviction waits for an object that another task has reserved for a moment.
    #[test]
    fn busy_object_is_evicted_later() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let touched = object(&card, 2, Domain::Vram, 1)?;
            let other = object(&card, 2, Domain::Vram, 2)?;
            let (first, second) = (export(&touched)?, export(&other)?);
            let at = Attachment::new(second.clone(), pdev.as_ref(), prompt())?;
            let (map, other_map) = (mapped(&first)?, mapped(&second)?);

            aperture.set_limit(2);
            check!(reads(&map, 1)?);
            let reserved = waits::reserve(&touched)?;
            let end = move || drop(reserved);
            check!(waits::until(end, || sees(&at, &aperture, 2, 2))??);
            unmap(&at)?;

            // A fault is tried again.
            check!(reads(&map, 1)?);
            let reserved = waits::reserve(&touched)?;
            let before = aperture.windows();
            check_eq!(other_map.fault(0)?, Access::Works);
            check_eq!(aperture.windows(), before);
            drop(reserved);
            check!(reads(&other_map, 2)?);
            check_eq!(live(&aperture, 1), 1);
            Ok(())
        })
    }

    /// A mapping waits for the room of a window that another task is dropping.
    #[test]
    fn window_that_is_being_dropped_is_waited_for() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let leaving = object(&card, 2, Domain::Either, 1)?;
            let other = object(&card, 2, Domain::Vram, 2)?;
            let (map, buf) = (mapped(&*export(&leaving)?)?, export(&other)?);
            let other_map = mapped(&buf)?;
            // Begins a move, which drops a window and ends when the result of this is dropped.
            let leave = || -> Result<Blocked> {
                let object = leaving.clone();

                check!(reads(&map, 1)?);
                let (begun, end) = aperture.hold_close()?;
                worker::spawn(move || {
                    let _ = move_to(&object, &[Place::TT]);
                })?;
                begun.wait_for_completion();
                Ok(end)
            };

            aperture.set_limit(2);
            let dropping = leave()?;
            // A fault is tried again.
            check_eq!(other_map.fault(0)?, Access::Works);
            check_eq!(aperture.windows(), (1, 1));
            drop(dropping);
            check!(reads(&other_map, 2)?);
            check_eq!(aperture.windows(), (1, 2));

            // A mapping of the kernel waits.
            move_to(&leaving, &[Place::VRAM])?;
            let dropping = leave()?;
            let vmap = waits::until(move || drop(dropping), || VMap::new(buf))??;
            check!(vmap_has(&vmap, 2)?);
            check_eq!(aperture.windows().0, 1);
            drop(vmap);
            Ok(())
        })
    }

    /// A task that has reserved several objects evicts the window of one for another.
    #[test]
    fn window_of_an_object_that_is_reserved_as_well_is_evicted() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let touched = object(&card, 2, Domain::Vram, 1)?;
            let other = object(&card, 2, Domain::Vram, 2)?;
            let (map, exported) = (mapped(&*export(&touched)?)?, export(&other)?);
            // `DmaBuf` is a transparent wrapper.
            let buf = core::ptr::from_ref(&*exported)
                .cast::<bindings::dma_buf>()
                .cast_mut();
            let mut vmap = bindings::iosys_map::default();

            aperture.set_limit(2);
            check!(reads(&map, 1)?);
            card.device().ttm.exec(Flag::Interruptible, |exec| {
                let _first = touched.lock(exec)?.ok_or(EALREADY)?;
                let _second = other.lock(exec)?.ok_or(EALREADY)?;

                // SAFETY: The buffer is valid, and its object reserved.
                to_result(unsafe { bindings::dma_buf_vmap(buf, &mut vmap) })
            })?;
            check_eq!(aperture.windows(), (1, 2));
            // SAFETY: Mapped above.
            unsafe { bindings::dma_buf_vunmap_unlocked(buf, &mut vmap) };
            check!(reads(&map, 1)?);
            check_eq!(aperture.windows(), (1, 3));
            Ok(())
        })
    }

    #[test]
    fn failed_window_leaves_nothing() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 2, Domain::Either, 1)?;
            let buf = export(&object)?;
            let map = mapped(&buf)?;

            for (made, mode) in [(1, Mode::Short), (3, Mode::Outside)] {
                aperture.set(mode);
                check_eq!(map.fault(0)?, Access::Sigbus);
                check_eq!(aperture.windows(), (0, made));
                check_eq!(VMap::new(buf.clone()).err(), Some(EINVAL));
                check_eq!(aperture.windows(), (0, made + 1));
            }
            aperture.set(Mode::Work);
            check_eq!(card.device().ttm.pinned(), 0);
            check!(reads(&map, 1)?);
            check_eq!(aperture.windows(), (1, 5));
            Ok(())
        })
    }

    #[test]
    fn suspended_device_has_no_window_of_a_fault() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 2, Domain::Vram, 1)?;
            let map = mapped(&*export(&object)?)?;
            let ttm = &card.device().ttm;

            check!(reads(&map, 1)?);
            ttm.suspend(Content::Kept, &mut OpCtx::uninterruptible())?;
            check_eq!(aperture.windows(), (0, 1));
            ttm.resume()?;
            check!(reads(&map, 1)?);
            check_eq!(aperture.windows(), (1, 2));
            Ok(())
        })
    }

    #[test]
    fn unbind_leaves_no_window() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let touched = object(&card, 2, Domain::Vram, 1)?;
            let shared = object(&card, 2, Domain::Either, 2)?;
            let buf = export(&shared)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let maps = (mapped(&*export(&touched)?)?, mapped(&buf)?);

            check!(reads(&maps.0, 1)?);
            check!(reads(&maps.1, 2)?);
            check!(sees(&at, &aperture, 2, 2)?);
            check_eq!(aperture.windows(), (2, 2));
            drop(card);
            check_eq!(aperture.windows(), (0, 2));
            check_eq!(maps.0.fault(0)?, Access::Sigbus);
            check_eq!(maps.1.read(0).err(), Some(EFAULT));
            check_eq!(VMap::new(buf).err(), Some(ENODEV));
            check_eq!(aperture.windows(), (0, 2));
            Ok(())
        })
    }

    /// A mapping of the kernel that is not one of a buffer does not keep its window over an unbind,
    /// which does not wait for it.
    #[test]
    fn unbind_does_not_wait_for_the_kernel() -> Result {
        with_device(|pdev| {
            let (card, aperture) = card(pdev)?;
            let object = object(&card, 2, Domain::Vram, 1)?;
            let gem = object.as_raw();
            let mut vmap = bindings::iosys_map::default();

            // SAFETY: The object is valid, and its reservation is not held.
            to_result(unsafe { bindings::drm_gem_vmap(gem, &mut vmap) })?;
            check_eq!(aperture.windows(), (1, 1));
            drop(card);
            check_eq!(aperture.windows(), (0, 1));
            // SAFETY: Mapped above.
            unsafe { bindings::drm_gem_vunmap(gem, &mut vmap) };
            check_eq!(aperture.windows(), (0, 1));
            Ok(())
        })
    }
}

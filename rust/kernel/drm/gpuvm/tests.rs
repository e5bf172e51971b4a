// SPDX-License-Identifier: GPL-2.0 OR MIT

//! KUnit suite for the eviction of objects of VMs.

use crate::prelude::*;

#[kunit_tests(rust_drm_gpuvm)]
mod cases {
    use super::super::{
        evict::Entries,
        *, //
    };
    use crate::{
        dma_buf::fence::{
            DriverFence,
            FenceContext, //
        },
        dma_resv::{
            DmaResv,
            LockedResv,
            Usage, //
        },
        drm::{
            exec::{
                fake::{
                    self,
                    Driver,
                    Object, //
                },
                Exec,
                Flags, //
            },
            gem::{
                LockedObject,
                SharedResv, //
            },
            UnregisteredDevice, //
        },
        faux,
        page::PAGE_SIZE, //
    };

    /// With `CONFIG_DEBUG_WW_MUTEX_SLOWPATH` one in sixteen contexts meets a contention.
    const RUNS: u32 = 64;

    /// Whether the kernel simulates contentions. On PREEMPT_RT it does not in spite of the option.
    const CONTENDS: bool = cfg!(all(CONFIG_DEBUG_WW_MUTEX_SLOWPATH, not(CONFIG_PREEMPT_RT)));

    const PAGE: u64 = PAGE_SIZE as u64;
    /// The size of VMs and objects.
    const PAGES: usize = 64;

    /// A kind of VM.
    struct Vm<const KIND: u32>;

    impl<const KIND: u32> DriverGpuVm for Vm<KIND> {
        type Driver = Driver;
        type Object = Object;
        type VaData = ();
        /// The number of the VM.
        type VmBoData = usize;
        type SmContext<'ctx> = KVec<GpuVaAlloc<Self>>;

        const EVICTABLE: Evictable<Self> = evictable();

        fn sm_step_map<'op>(
            &mut self,
            op: OpMap<'op, Self>,
            vas: &mut KVec<GpuVaAlloc<Self>>,
        ) -> Result<OpMapped<'op, Self>> {
            Ok(op.insert(vas.pop().ok_or(ENOMEM)?, ()))
        }

        fn sm_step_unmap<'op>(
            &mut self,
            op: OpUnmap<'op, Self>,
            _vas: &mut KVec<GpuVaAlloc<Self>>,
        ) -> Result<OpUnmapped<'op, Self>> {
            Ok(op.remove().0)
        }

        fn sm_step_remap<'op>(
            &mut self,
            op: OpRemap<'op, Self>,
            vas: &mut KVec<GpuVaAlloc<Self>>,
        ) -> Result<OpRemapped<'op, Self>> {
            let pair = [vas.pop().ok_or(ENOMEM)?, vas.pop().ok_or(ENOMEM)?];
            let (done, rest) = op.remap(pair, (), ());

            if let Some(unused) = rest.unused_va {
                let _ = vas.push_within_capacity(unused);
            }
            Ok(done)
        }
    }

    /// A VM. It is empty when it is dropped.
    struct Space<const KIND: u32> {
        unique: UniqueRefGpuVm<Vm<KIND>>,
        resv: SharedResv<Driver>,
        index: usize,
    }

    impl<const KIND: u32> Space<KIND> {
        fn new(drm: &drm::Device<Driver>, index: usize) -> Result<Self> {
            let resv = SharedResv::new(drm)?;

            Ok(Self {
                unique: GpuVm::new::<Error, _>(
                    c"gpuvm-kunit",
                    drm,
                    &*resv,
                    0..PAGES as u64 * PAGE,
                    0..0,
                    Vm,
                )?,
                resv,
                index,
            })
        }

        fn vas() -> Result<KVec<GpuVaAlloc<Vm<KIND>>>> {
            let mut vas = KVec::new();

            // A mapping in the middle of two others needs this many, because both are split.
            for _ in 0..5 {
                vas.push(GpuVaAlloc::new(GFP_KERNEL)?, GFP_KERNEL)?;
            }
            Ok(vas)
        }

        /// Maps `pages` pages of an object.
        fn map(&mut self, obj: &Object, page: usize, pages: usize, from: usize) -> Result {
            let vm_bo = self.unique.obtain(obj, self.index)?;

            self.unique.sm_map(OpMapRequest {
                addr: page as u64 * PAGE,
                range: pages as u64 * PAGE,
                gem_offset: from as u64 * PAGE,
                vm_bo: &vm_bo,
                context: &mut Self::vas()?,
            })
        }

        fn unmap(&mut self, page: usize, pages: usize) -> Result {
            let (at, size) = (page as u64 * PAGE, pages as u64 * PAGE);

            self.unique.sm_unmap(at, size, &mut Self::vas()?)
        }

        /// Returns how many objects are on the list of evicted objects.
        fn listed(&self) -> usize {
            let _guard = self.resv.resv().lock();

            self.listed_while_locked()
        }

        fn listed_while_locked(&self) -> usize {
            // SAFETY: The reservation guarding the list is held.
            unsafe { Entries::new(&raw mut (*self.unique.as_raw()).evict.list) }.count()
        }
    }

    impl<const KIND: u32> Drop for Space<KIND> {
        fn drop(&mut self) {
            assert!(self.unmap(0, PAGES).is_ok());
            self.unique.deferred_cleanup();
        }
    }

    /// A device. It is dropped after its parts.
    struct Bench {
        drm: UnregisteredDevice<Driver>,
        _faux: faux::Registration,
    }

    impl Bench {
        fn new() -> Result<Self> {
            let (drm, faux) = fake::device(c"gpuvm-kunit")?;

            Ok(Self { drm, _faux: faux })
        }

        fn space<const KIND: u32>(&self, index: usize) -> Result<Space<KIND>> {
            Space::new(&self.drm, index)
        }

        fn object(&self) -> Result<ARef<Object>> {
            Object::new(&self.drm, PAGES * PAGE_SIZE, ())
        }

        /// Creates an object sharing a reservation kept by the caller.
        fn object_in(&self, resv: &SharedResv<Driver>) -> Result<ARef<Object>> {
            let object = self.object()?;

            // SAFETY: No other code knows the object, so no task holds its reservation.
            unsafe { (*IntoGEMObject::as_raw(&*object)).resv = resv.resv().as_raw() };
            Ok(object)
        }
    }

    fn resv(obj: &Object) -> &DmaResv {
        // SAFETY: The object is valid and its reservation lives as long.
        unsafe { DmaResv::from_raw((*IntoGEMObject::as_raw(obj)).resv) }
    }

    /// Marks the mappings of an object as a move does.
    ///
    /// # Safety
    ///
    /// The reservation of the object must be held.
    unsafe fn evict_locked(obj: &Object) {
        // SAFETY: As promised.
        unsafe { LockedObject::assume(obj) }.mark_mappings_evicted();
    }

    fn evict(obj: &Object) {
        let _guard = resv(obj).lock();

        // SAFETY: The reservation was just taken.
        unsafe { evict_locked(obj) };
    }

    fn fence() -> Result<DriverFence<Driver>> {
        Ok(FenceContext::<Driver>::new(c"ring")?
            .new_fence_allocation(())?
            .new_fence())
    }

    /// Locks and validates a VM. Returns for how many objects `bring` was called in the last round.
    fn validate<const KIND: u32>(
        space: &Space<KIND>,
        mut bring: impl FnMut(&Object) -> Result,
    ) -> Result<usize> {
        Exec::run(Flags::default(), |ctx| {
            let mut calls = 0;

            ctx.lock_vm(&space.unique)?.validate(|vm_bo, held| {
                assert_eq!(vm_bo.is_evicted(held), Some(true));
                assert!(ptr::eq(vm_bo.obj(), held.object()));
                assert_eq!(*vm_bo.data(), space.index);
                assert!(resv(held.object()).try_lock().is_none());
                calls += 1;
                bring(held.object())
            })?;
            assert_eq!(space.listed_while_locked(), 0);
            Ok(calls)
        })
    }

    #[test]
    fn evicted_in_all_vms() -> Result {
        let bench = Bench::new()?;
        let (mut a, mut b, mut c) = (
            bench.space::<0>(0)?,
            bench.space::<0>(1)?,
            bench.space::<1>(2)?,
        );
        let (object, other) = (bench.object_in(&a.resv)?, bench.object()?);

        for page in [0, 8] {
            a.map(&object, page, 2, 0)?;
            b.map(&object, page, 2, 0)?;
            c.map(&object, page, 2, 0)?;
        }
        a.map(&other, 4, 1, 0)?;
        assert!(!a.unique.is_extobj(&object) && b.unique.is_extobj(&object));
        assert_eq!(validate(&a, |_| Err(EIO)), Ok(0));

        evict(&object);
        assert_eq!([a.listed(), b.listed(), c.listed()], [1, 0, 0]);
        // A second eviction makes no difference.
        evict(&object);
        assert_eq!([a.listed(), b.listed(), c.listed()], [1, 0, 0]);

        // External objects are listed when the VM is locked.
        Exec::run(Flags::default(), |ctx| {
            let _locked = ctx.lock_vm(&b.unique)?;
            assert_eq!(b.listed_while_locked(), 1);
            Ok(())
        })?;

        // After a failure the object is still evicted.
        assert_eq!(validate(&b, |_| Err(EIO)), Err(EIO));
        assert_eq!(validate(&a, |_| Err(EIO)), Err(EIO));
        let only = |found: &Object| {
            assert!(ptr::eq(found, &*object));
            Ok(())
        };

        // Each VM has to restore it for itself.
        assert_eq!(validate(&b, only), Ok(1));
        assert_eq!(validate(&b, |_| Err(EIO)), Ok(0));
        assert_eq!(validate(&a, only), Ok(1));
        assert_eq!(validate(&a, |_| Err(EIO)), Ok(0));
        assert_eq!(validate(&c, only), Ok(1));
        assert_eq!([a.listed(), b.listed(), c.listed()], [0, 0, 0]);
        Ok(())
    }

    #[test]
    fn bringing_back_may_evict() -> Result {
        let bench = Bench::new()?;
        let mut a = bench.space::<0>(0)?;
        let objects = [
            bench.object_in(&a.resv)?,
            bench.object_in(&a.resv)?,
            bench.object()?,
        ];
        for (index, object) in objects.iter().enumerate() {
            a.map(object, 4 * index, 4, 0)?;
        }

        evict(&objects[0]);
        let mut once = true;
        let calls = validate(&a, |found| {
            if ptr::eq(found, &*objects[0]) && core::mem::take(&mut once) {
                for other in &objects[1..] {
                    // SAFETY: All objects of the VM are locked.
                    unsafe { evict_locked(other) };
                }
            }
            Ok(())
        });
        assert_eq!(calls, Ok(3));
        assert_eq!(validate(&a, |_| Err(EIO)), Ok(0));

        // The validation ends, and an object is still evicted.
        for pair in [[0, 1], [0, 2]] {
            evict(&objects[0]);
            let endless = validate(&a, |found| {
                let [first, second] = pair.map(|index| &objects[index]);
                let other = if ptr::eq(found, &**first) {
                    second
                } else {
                    first
                };

                // SAFETY: All objects of the VM are locked.
                unsafe { evict_locked(other) };
                Ok(())
            });
            assert_eq!(endless, Err(ENOSPC));
            assert_eq!(validate(&a, |_| Ok(())), Ok(1));
        }
        Ok(())
    }

    #[test]
    fn fence_is_in_all_reservations() -> Result {
        let bench = Bench::new()?;
        let (mut a, b) = (bench.space::<0>(0)?, bench.space::<0>(1)?);
        let private = bench.object_in(&a.resv)?;
        let external = bench.object()?;
        // Two external objects share a reservation.
        let twins = [bench.object_in(&b.resv)?, bench.object_in(&b.resv)?];
        let unrelated = bench.object()?;

        a.map(&private, 0, 1, 0)?;
        a.map(&external, 1, 1, 0)?;
        for (index, twin) in twins.iter().enumerate() {
            a.map(twin, 2 + index, 1, 0)?;
        }

        for _ in 0..RUNS {
            let content = fence()?;
            let mut guard = resv(&external).lock();
            guard
                .locked()
                .reserve_fences(1)?
                .next()
                .ok_or(ENOSPC)?
                .add_fence(content.fence(), Usage::Kernel);
            drop(guard);
            let job = fence()?;

            Exec::run(Flags::default(), |ctx| {
                let mut locked = ctx.lock_vm(&a.unique)?;
                let mut valid = locked.validate(|_, _| Ok(()))?;
                let mut seen = KVec::new();

                valid.for_each_fence(Usage::Kernel, |fence| {
                    if !fence.is_signaled() {
                        seen.push(fence.context(), GFP_KERNEL)?;
                    }
                    Ok(())
                })?;
                assert_eq!(&seen[..], &[content.fence().context()]);

                let mut slots = valid.reserve(1)?;
                assert_eq!(slots.len(), 1);
                slots
                    .next()
                    .ok_or(ENOSPC)?
                    .add_fence(job.fence(), Usage::Bookkeep, Usage::Write);
                assert!(slots.next().is_none());
                Ok(())
            })?;
            content.signal(Ok(()));

            assert!(a.resv.resv().test_signaled(Usage::Read));
            assert!(!a.resv.resv().test_signaled(Usage::Bookkeep));
            for obj in [&external, &twins[0], &twins[1]] {
                assert!(resv(obj).test_signaled(Usage::Kernel));
                assert!(!resv(obj).test_signaled(Usage::Write));
            }
            assert!(resv(&unrelated).test_signaled(Usage::Bookkeep));
            job.signal(Ok(()));
            assert!(a.resv.resv().test_signaled(Usage::Bookkeep));
            assert!(resv(&external).test_signaled(Usage::Bookkeep));
            assert!(b.resv.resv().test_signaled(Usage::Bookkeep));
        }
        Ok(())
    }

    /// The contended object is locked first in the next round. It may no longer belong to the VM.
    /// Another object may share its reservation.
    #[test]
    fn contended_object_may_be_unmapped() -> Result {
        let bench = Bench::new()?;
        let (mut a, b) = (bench.space::<0>(0)?, bench.space::<0>(1)?);
        let twins = [bench.object_in(&b.resv)?, bench.object_in(&b.resv)?];
        let mut again = 0;

        for _ in 0..RUNS {
            let job = fence()?;

            for (page, twin) in twins.iter().enumerate() {
                a.map(twin, page, 1, 0)?;
            }
            Exec::run(Flags::default(), |ctx| {
                match ctx.lock_vm(&a.unique) {
                    Ok(mut locked) => locked
                        .validate(|_, _| Ok(()))?
                        .reserve(1)?
                        .next()
                        .ok_or(ENOSPC)?
                        .add_fence(job.fence(), Usage::Bookkeep, Usage::Bookkeep),
                    Err(e) => {
                        again += 1;
                        a.unmap(0, 1)?;
                        return Err(e);
                    }
                }
                Ok(())
            })?;
            assert!(!b.resv.resv().test_signaled(Usage::Bookkeep));
            job.signal(Ok(()));
            a.unmap(0, 2)?;
            a.unique.deferred_cleanup();
        }
        assert!(!CONTENDS || again > 0);
        Ok(())
    }

    #[test]
    fn room_is_for_all_fences() -> Result {
        let bench = Bench::new()?;
        let mut a = bench.space::<0>(0)?;
        let external = bench.object()?;
        let mut jobs = KVec::new();

        a.map(&external, 0, 1, 0)?;
        for _ in 0..40 {
            jobs.push(fence()?, GFP_KERNEL)?;
        }
        Exec::run(Flags::default(), |ctx| {
            let mut locked = ctx.lock_vm(&a.unique)?;
            let mut valid = locked.validate(|_, _| Ok(()))?;

            assert_eq!(valid.reserve(4097).err(), Some(EINVAL));
            for (slot, job) in valid.reserve(40)?.zip(&jobs) {
                slot.add_fence(job.fence(), Usage::Bookkeep, Usage::Bookkeep);
            }
            for wanted in [a.resv.resv(), resv(&external)] {
                // SAFETY: The reservation is held and there is no other view.
                let view = unsafe { LockedResv::from_raw(wanted.as_raw()) };
                assert_eq!(view.fences(Usage::Bookkeep).count(), 40);
            }
            Ok(())
        })?;
        for job in jobs {
            job.signal(Ok(()));
        }
        Ok(())
    }

    #[test]
    fn one_view_of_each_reservation() -> Result {
        let bench = Bench::new()?;
        let (mut a, mut b) = (bench.space::<0>(0)?, bench.space::<0>(1)?);
        let (private, external) = (bench.object_in(&a.resv)?, bench.object()?);
        let unrelated = bench.object()?;

        a.map(&private, 0, 1, 0)?;
        a.map(&external, 1, 1, 0)?;
        b.map(&external, 1, 1, 0)?;
        let vm_bo = a.unique.obtain(&external, 0)?;

        for _ in 0..RUNS {
            Exec::run(Flags::default(), |ctx| {
                let _view = ctx.prepare_obj(&*external, 0)?;

                match ctx.lock_vm(&a.unique).err() {
                    Some(EDEADLK) => return Err(EDEADLK),
                    error => assert_eq!(error, Some(EINVAL)),
                }
                Ok(())
            })?;

            Exec::run(Flags::default(), |ctx| {
                let mut locked = ctx.lock_vm(&a.unique)?;

                let other = locked.object(&private).ok_or(ENOENT)?;
                assert_eq!(vm_bo.is_evicted(&other), None);
                let same = locked.object(&external).ok_or(ENOENT)?;
                assert_eq!(vm_bo.is_evicted(&same), Some(false));
                assert!(locked.object(&external).is_some());
                assert!(locked.object(&unrelated).is_none());
                let again = locked.context().prepare_obj(&*external, 0);
                assert_eq!(again.err(), Some(EALREADY));
                locked.context().prepare_obj(&*unrelated, 1)?;
                // The object is locked and does not belong to the VM.
                assert!(locked.object(&unrelated).is_none());
                let fence = fence()?;
                locked
                    .validate(|_, _| Ok(()))?
                    .reserve(1)?
                    .next()
                    .ok_or(ENOSPC)?
                    .add_fence(fence.fence(), Usage::Bookkeep, Usage::Bookkeep);
                assert!(resv(&unrelated).test_signaled(Usage::Bookkeep));
                fence.signal(Ok(()));
                assert_eq!(ctx.lock_vm(&b.unique).err(), Some(EINVAL));
                Ok(())
            })?;

            // An object never moved to its place is moved there.
            let mut calls = 0;
            Exec::run(Flags::default(), |ctx| {
                let mut locked = ctx.lock_vm(&a.unique)?;

                locked.mark_evicted(&vm_bo)?;
                calls = 0;
                locked.validate(|_, _| {
                    calls += 1;
                    Ok(())
                })?;
                Ok(())
            })?;
            assert_eq!(calls, 1);
            Exec::run(Flags::default(), |ctx| {
                assert_eq!(ctx.lock_vm(&b.unique)?.mark_evicted(&vm_bo), Err(EINVAL));
                Ok(())
            })?;
        }
        Ok(())
    }

    #[test]
    fn unmapped_is_not_brought_back() -> Result {
        let bench = Bench::new()?;
        let mut a = bench.space::<0>(0)?;
        let (private, external) = (bench.object_in(&a.resv)?, bench.object()?);

        a.map(&private, 0, 1, 0)?;
        a.map(&external, 1, 1, 0)?;
        evict(&private);
        evict(&external);
        // This puts the second object on the list.
        Exec::run(Flags::default(), |ctx| ctx.lock_vm(&a.unique).map(|_| ()))?;
        assert_eq!(a.listed(), 2);

        a.unmap(0, 2)?;
        assert_eq!(a.listed(), 2);
        let run = Exec::run(Flags::default(), |ctx| {
            ctx.lock_vm(&a.unique)?
                .validate(|_, _| Err(EIO))
                .map(|_| ())
        });
        assert_eq!(run, Ok(()));
        // The cleanup does not wait for it either.
        evict(&private);
        a.unique.deferred_cleanup();
        assert_eq!(a.listed(), 0);

        // The new mapping does not inherit the eviction of the old one.
        a.map(&private, 0, 1, 0)?;
        assert_eq!(validate(&a, |_| Err(EIO)), Ok(0));
        Ok(())
    }

    /// The content of a page of a VM: the number of the object and the page of the object.
    type Shown = Option<(usize, usize)>;

    /// Compares the result of the walk for an object with the mappings of the VMs of a kind.
    fn compare<const KIND: u32>(
        spaces: &[&Space<KIND>],
        objects: &[&Object; 3],
        models: &[KVec<Shown>],
    ) -> Result {
        for (number, object) in objects.iter().enumerate() {
            let mut found = KVec::new();
            let mut overlaps = 0;
            for _ in models {
                found.push([None; PAGES], GFP_KERNEL)?;
            }

            {
                let _guard = resv(object).lock();
                // SAFETY: The reservation was just taken.
                let held = unsafe { LockedObject::assume(*object) };

                held.for_each_vm::<Vm<KIND>>(|mapped| {
                    let index = *mapped.data();

                    assert!(spaces
                        .iter()
                        .any(|space| space.index == index && *mapped.vm() == *space.unique));
                    for range in mapped.ranges() {
                        for at in (range.va.start..range.va.end).step_by(PAGE_SIZE) {
                            let page = (range.gem_offset + at - range.va.start) / PAGE;
                            let to = &mut found[index][(at / PAGE) as usize];

                            overlaps += usize::from(to.is_some());
                            *to = Some((number, page as usize));
                        }
                    }
                });
            }

            assert_eq!(overlaps, 0);
            for space in spaces {
                for (page, shown) in models[space.index].iter().enumerate() {
                    let wanted = shown.filter(|(of, _)| *of == number);

                    assert_eq!(found[space.index][page], wanted);
                }
            }
            // The walk finds no VMs of other kinds.
            for (index, found) in found.iter().enumerate() {
                if spaces.iter().all(|space| space.index != index) {
                    assert!(found.iter().all(Option::is_none));
                }
            }
        }
        Ok(())
    }

    #[test]
    fn walk_finds_what_is_mapped() -> Result {
        let bench = Bench::new()?;
        let (mut a, mut b, mut c) = (
            bench.space::<0>(0)?,
            bench.space::<0>(1)?,
            bench.space::<1>(2)?,
        );
        let objects = [
            bench.object_in(&a.resv)?,
            bench.object_in(&b.resv)?,
            bench.object()?,
        ];
        let objects = [&*objects[0], &*objects[1], &*objects[2]];
        let mut models = KVec::new();
        for _ in 0..3 {
            models.push(
                KVec::<Shown>::from_elem(None, PAGES, GFP_KERNEL)?,
                GFP_KERNEL,
            )?;
        }

        // SAFETY: The function has no requirements.
        let seed = unsafe { bindings::get_random_u32() };
        pr_info!("seed of rust_drm_gpuvm: {seed}\n");
        let mut state = seed | 1;
        let mut below = move |limit: usize| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as usize % limit
        };

        for step in 0..400 {
            let (space, number) = (below(3), below(3));
            let page = below(PAGES);
            let pages = 1 + below((PAGES - page).min(16));
            let from = below(PAGES - pages + 1);
            let is_map = below(3) > 0;

            if is_map {
                match space {
                    0 => a.map(objects[number], page, pages, from)?,
                    1 => b.map(objects[number], page, pages, from)?,
                    _ => c.map(objects[number], page, pages, from)?,
                }
            } else {
                match space {
                    0 => a.unmap(page, pages)?,
                    1 => b.unmap(page, pages)?,
                    _ => c.unmap(page, pages)?,
                }
            }
            for index in 0..pages {
                models[space][page + index] = is_map.then_some((number, from + index));
            }

            if step % 8 == 7 {
                compare(&[&a, &b], &objects, &models)?;
                compare(&[&c], &objects, &models)?;
            }
        }
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! KUnit suite for fences and reservations, `kernel::dma_buf::fence` and `kernel::dma_resv`.
//!
//! This suite tests what must not happen; the examples of both modules show what has to happen.

use kernel::prelude::*;

module! {
    type: FencesKunit,
    name: "fences_kunit",
    authors: ["The vvram developers"],
    description: "KUnit suite for fences and reservations",
    license: "GPL",
}

struct FencesKunit;

impl kernel::Module for FencesKunit {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}

#[kunit_tests(fences)]
mod tests {
    use kernel::{
        dma_buf::fence::{
            AnyFence,
            Fence,
            FenceCallback,
            FenceCallbackRegistration,
            FenceContext,
            FenceContextOps, //
        },
        dma_resv::{
            DmaResv,
            Usage, //
        },
        module::this_module,
        prelude::*,
        sync::{
            aref::ARef,
            atomic::{
                Atomic,
                Relaxed, //
            }, //
        },
    };

    use core::ptr::NonNull;

    struct Ring;

    impl FenceContextOps for Ring {
        const DRIVER_NAME: &'static CStr = c"driver";
        type Data = ();
    }

    /// Counts its calls in a static counter, which outlives the callback.
    struct Count(&'static Atomic<u32>);

    #[vtable]
    impl FenceCallback for Count {
        fn called(&self, _fence: &AnyFence) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn numbers_rise() -> Result {
        let context = FenceContext::<Ring>::new(c"ring")?;
        let [first, second] = [(); 2].map(|()| context.new_fence_allocation(()));
        let (first, second) = (first?.new_fence(), second?.new_fence());

        assert_eq!(first.fence().context(), context.id());
        assert_eq!(second.fence().context(), context.id());
        assert!(second.fence().seqno() > first.fence().seqno());
        Ok(())
    }

    #[test]
    fn only_who_is_left_is_called() -> Result {
        static CALLS: [Atomic<u32>; 3] = [const { Atomic::new(0) }; 3];

        let job = FenceContext::<Ring>::new(c"ring")?
            .new_fence_allocation(())?
            .new_fence();
        let fence: ARef<Fence> = job.fence().into();
        let register = |count: &'static Atomic<u32>| {
            KBox::pin_init(
                FenceCallbackRegistration::new(fence.clone(), Count(count)),
                GFP_KERNEL,
            )
        };
        let (first, gone, last) = (
            register(&CALLS[0])?,
            register(&CALLS[1])?,
            register(&CALLS[2])?,
        );

        drop(gone);
        job.signal(Ok(()));
        assert_eq!([0, 1, 2].map(|index| CALLS[index].load(Relaxed)), [1, 0, 1]);

        // No callback runs twice.
        drop((first, last));
        assert_eq!([0, 1, 2].map(|index| CALLS[index].load(Relaxed)), [1, 0, 1]);
        Ok(())
    }

    #[test]
    fn fences_signal_in_their_order() -> Result {
        let context = FenceContext::<Ring>::new(c"ring")?;
        let [a, b, c, d] = [(); 4].map(|()| context.new_fence_allocation(()));
        let (a, b, c, d) = (
            a?.new_fence(),
            b?.new_fence(),
            c?.new_fence(),
            d?.new_fence(),
        );
        let [fence_a, fence_b, fence_c, fence_d] =
            [&a, &b, &c, &d].map(|job| ARef::<Fence>::from(job.fence()));

        // A fence does not signal before the fences ahead of it, even if its work is done.
        c.signal(Err(EIO));
        b.signal(Ok(()));
        for fence in [&fence_a, &fence_b, &fence_c, &fence_d] {
            assert!(!fence.is_signaled());
            assert_eq!(fence.status(), None);
        }
        assert_eq!(fence_b.wait_timeout(false, 1), Err(ETIME));

        // A fence whose work is done signals in its turn; a dropped one ends as cancelled.
        drop(a);
        assert_eq!(fence_a.status(), Some(Err(ECANCELED)));
        assert_eq!(fence_b.status(), Some(Ok(())));
        assert_eq!(fence_c.status(), Some(Err(EIO)));
        assert!(!fence_d.is_signaled());
        d.signal(Ok(()));
        assert_eq!(fence_d.status(), Some(Ok(())));

        // Later fences of the context are not affected.
        let next = context.new_fence_allocation(())?.new_fence();
        let fence: ARef<Fence> = next.fence().into();
        next.signal(Ok(()));
        assert!(fence.is_signaled());
        Ok(())
    }

    #[test]
    fn container_has_parts() -> Result {
        let [a, b] = [c"a", c"b"].map(FenceContext::<Ring>::new);
        let (a, b) = (
            a?.new_fence_allocation(())?.new_fence(),
            b?.new_fence_allocation(())?.new_fence(),
        );
        let mut fences = [a.fence().as_raw(), b.fence().as_raw()];
        let mut cursors = [kernel::bindings::dma_fence_unwrap::default(); 2];
        // SAFETY: There are two valid fences, and as many cursors.
        let merged = unsafe {
            kernel::bindings::__dma_fence_unwrap_merge(2, fences.as_mut_ptr(), cursors.as_mut_ptr())
        };
        // SAFETY: The fence is valid as long as `both` is.
        let references = || unsafe { (*merged).refcount.refcount.refs.counter };
        // SAFETY: The fence was just made, and comes with a reference.
        let both = unsafe { AnyFence::from_owned(NonNull::new(merged).ok_or(ENOMEM)?) };

        let contexts = [a.fence().context(), b.fence().context()];
        let mut parts = KVec::new();
        for part in both.parts() {
            parts.push(part.context(), GFP_KERNEL)?;
        }
        parts.sort_unstable();
        // The numbers of contexts increase in the order in which they were made.
        assert_eq!(&parts[..], &contexts[..]);
        // An iterator that is dropped before its end releases its references.
        assert!(both.parts().next().is_some());
        assert_eq!(references(), 1);

        // A callback can be registered for the merged fence, and is called once.
        static CALLS: Atomic<u32> = Atomic::new(0);
        let seen = KBox::pin_init(
            FenceCallbackRegistration::new(both.clone(), Count(&CALLS)),
            GFP_KERNEL,
        )?;

        assert_eq!(both.status(), None);
        a.signal(Ok(()));
        assert!(!both.is_signaled());
        assert_eq!(CALLS.load(Relaxed), 0);
        assert_eq!(both.wait_timeout(false, 1), Err(ETIME));
        b.signal(Ok(()));
        both.wait(false)?;
        assert!(both.is_signaled());
        assert_eq!(CALLS.load(Relaxed), 1);
        drop(seen);
        assert_eq!(both.status(), Some(Ok(())));
        Ok(())
    }

    /// How many references there are to this module.
    fn references() -> i32 {
        let module = this_module::<crate::LocalModule>();

        // SAFETY: The module is valid while its code runs.
        unsafe { kernel::bindings::module_refcount(module.as_ptr()) }
    }

    #[test]
    fn callback_keeps_its_module() -> Result {
        static CALLS: Atomic<u32> = Atomic::new(0);

        let job = FenceContext::<Ring>::new(c"ring")?
            .new_fence_allocation(())?
            .new_fence();
        let fence: ARef<Fence> = job.fence().into();
        let before = references();
        let registration = KBox::pin_init(
            FenceCallbackRegistration::new(fence.clone(), Count(&CALLS)),
            GFP_KERNEL,
        )?;

        assert_eq!(references(), before + 1);
        drop(registration);
        assert_eq!(references(), before);

        // A callback that is registered too late does not hold the module either.
        job.signal(Ok(()));
        let late = KBox::pin_init(
            FenceCallbackRegistration::new(fence, Count(&CALLS)),
            GFP_KERNEL,
        );
        assert_eq!(late.err(), Some(ENOENT));
        assert_eq!(references(), before);
        Ok(())
    }

    #[test]
    fn views_know_their_reservation() -> Result {
        let ours = KBox::pin_init(DmaResv::new(), GFP_KERNEL)?;
        let other = KBox::pin_init(DmaResv::new(), GFP_KERNEL)?;
        let mut guard = ours.lock();

        assert!(guard.is_for(&ours) && !guard.is_for(&other));
        let locked = guard.locked();
        assert!(locked.is_for(&ours) && !locked.is_for(&other));
        Ok(())
    }

    #[test]
    fn the_limit_of_slots_is_allowed() -> Result {
        let resv = KBox::pin_init(DmaResv::new(), GFP_KERNEL)?;
        let mut guard = resv.lock();
        let mut locked = guard.locked();

        assert_eq!(locked.reserve_fences(4096)?.len(), 4096);
        assert_eq!(locked.reserve_fences(4097).err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn each_usage_is_waited_for() -> Result {
        let resv = KBox::pin_init(DmaResv::new(), GFP_KERNEL)?;

        for usage in [Usage::Kernel, Usage::Write, Usage::Read, Usage::Bookkeep] {
            let job = FenceContext::<Ring>::new(c"ring")?
                .new_fence_allocation(())?
                .new_fence();
            {
                let mut guard = resv.lock();
                let mut locked = guard.locked();
                let slot = locked.reserve_fences(1)?.next().ok_or(ENOSPC)?;
                slot.add_fence(job.fence(), usage);
            }

            for asked in [Usage::Kernel, Usage::Write, Usage::Read, Usage::Bookkeep] {
                let done = asked < usage;
                assert_eq!(resv.test_signaled(asked), done);
                assert_eq!(
                    resv.wait_timeout(asked, false, 1).err(),
                    (!done).then_some(ETIME)
                );
            }
            job.signal(Ok(()));
            assert!(resv.test_signaled(Usage::Bookkeep));
        }
        Ok(())
    }
}

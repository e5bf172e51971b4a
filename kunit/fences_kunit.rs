// SPDX-License-Identifier: GPL-2.0

//! KUnit suite for fences and reservations, `kernel::dma_buf::fence` and `kernel::dma_resv`.
//!
//! What the examples of both do not show: what must not happen.

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
        prelude::*,
        sync::{
            aref::ARef,
            atomic::{
                Atomic,
                Relaxed, //
            }, //
        },
    };

    struct Ring;

    impl FenceContextOps for Ring {
        const DRIVER_NAME: &'static CStr = c"driver";
        type Data = ();
    }

    /// Counts its calls where they can be counted after it is gone.
    struct Count(&'static Atomic<u32>);

    impl FenceCallback for Count {
        fn called(&self, _fence: &Fence) {
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

        // Nothing is called twice.
        drop((first, last));
        assert_eq!([0, 1, 2].map(|index| CALLS[index].load(Relaxed)), [1, 0, 1]);
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

// SPDX-License-Identifier: GPL-2.0

//! Fences whose work fails, reservations with such fences, and waits that a signal ends.

use kernel::prelude::*;

#[kunit_tests(dma_fence_waits)]
mod tests {
    use crate::{
        signal::Signal,
        waits::{
            self,
            Ring, //
        },
        worker, //
    };
    use kernel::{
        dma_buf::fence::{
            AnyFence,
            DriverFence,
            Fence,
            FenceCallback,
            FenceCallbackRegistration,
            FenceContext, //
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
            },
            Arc,
            Completion, //
        }, //
    };

    type Context = FenceContext<Ring>;

    fn job(context: &Context) -> Result<DriverFence<Ring>> {
        Ok(context.new_fence_allocation(())?.new_fence())
    }

    fn resv() -> Result<Pin<KBox<DmaResv>>> {
        KBox::pin_init(DmaResv::new(), GFP_KERNEL)
    }

    fn add(resv: &DmaResv, fence: &Fence, usage: Usage) -> Result {
        let mut guard = resv.lock();
        let mut locked = guard.locked();
        let mut slots = locked.reserve_fences(1)?;

        slots.next().ok_or(ENOSPC)?.add_fence(fence, usage);
        Ok(())
    }

    /// Returns the numbers of the fences of a reservation.
    fn seqnos(resv: &DmaResv, usage: Usage) -> Result<KVec<u64>> {
        let mut guard = resv.lock();
        let mut seqnos = KVec::new();

        for fence in guard.locked().fences(usage) {
            seqnos.push(fence.seqno(), GFP_KERNEL)?;
        }
        Ok(seqnos)
    }

    struct Count(Arc<Atomic<u32>>);

    #[vtable]
    impl FenceCallback for Count {
        fn called(&self, fence: &AnyFence) {
            if fence.is_signaled() {
                self.0.fetch_add(1, Relaxed);
            }
        }
    }

    #[test]
    fn failed_work_signals_once() -> Result {
        let context = Context::new(c"ring")?;

        for (result, status) in [
            (Some(Ok(())), Ok(())),
            (Some(Err(EIO)), Err(EIO)),
            (None, Err(ECANCELED)),
        ] {
            let count = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let job = job(&context)?;
            let fence: ARef<Fence> = job.fence().into();
            let register = || {
                KBox::pin_init(
                    FenceCallbackRegistration::new(fence.clone(), Count(count.clone())),
                    GFP_KERNEL,
                )
            };
            let (first, removed, last) = (register()?, register()?, register()?);
            drop(removed);

            check_eq!(fence.status(), None);
            check_eq!(job.result(), Err(ECANCELED));
            match result {
                Some(result) => job.signal(result),
                None => drop(job),
            }
            check_eq!(count.load(Relaxed), 2);
            check_eq!(fence.status(), Some(status));
            // A wait does not return the error of the fence.
            check_eq!(fence.wait(true), Ok(()));
            check_eq!(fence.wait_timeout(false, 0)?, 1);

            // A callback that is registered too late is refused, and is not called.
            check_eq!(register().err(), Some(ENOENT));
            drop((first, last));
            check_eq!(count.load(Relaxed), 2);
        }
        Ok(())
    }

    #[test]
    fn last_result_counts() -> Result {
        let context = Context::new(c"ring")?;
        let mut job = job(&context)?;
        let fence: ARef<Fence> = job.fence().into();

        job.set_result(Err(EIO));
        check_eq!(job.result(), Err(EIO));
        check!(!fence.is_signaled());
        job.set_result(Ok(()));
        drop(job);
        check_eq!(fence.status(), Some(Ok(())));
        Ok(())
    }

    #[test]
    fn dropped_allocation_has_no_number() -> Result {
        let context = Context::new(c"ring")?;

        drop(context.new_fence_allocation(())?);
        check_eq!(job(&context)?.fence().seqno(), 1);
        drop(context.new_fence_allocation(())?);
        check_eq!(job(&context)?.fence().seqno(), 2);
        Ok(())
    }

    #[test]
    fn signal_ends_a_wait() -> Result {
        let context = Context::new(c"ring")?;
        let job = job(&context)?;
        let resv = resv()?;
        add(&resv, job.fence(), Usage::Write)?;

        let signal = Signal::new();
        check_eq!(job.fence().wait(true), Err(ERESTARTSYS));
        check_eq!(job.fence().wait_timeout(true, 1000), Err(ERESTARTSYS));
        check_eq!(job.fence().wait_timeout(false, 1), Err(ETIME));
        check_eq!(resv.wait(Usage::Write, true), Err(ERESTARTSYS));
        check_eq!(resv.wait_timeout(Usage::Read, true, 1000), Err(ERESTARTSYS));
        check_eq!(resv.wait_timeout(Usage::Write, false, 1), Err(ETIME));
        // No fence has the usage that is waited for.
        check_eq!(resv.wait(Usage::Kernel, true), Ok(()));
        drop(signal);
        check_eq!(job.fence().wait_timeout(true, 1), Err(ETIME));
        check_eq!(job.fence().wait_timeout(true, 0), Err(ETIME));

        job.signal(Err(EIO));
        let _signal = Signal::new();
        check_eq!(resv.wait(Usage::Bookkeep, true), Ok(()));
        Ok(())
    }

    #[test]
    fn signal_ends_the_wait_for_a_lock() -> Result {
        let resv = Arc::pin_init(DmaResv::new(), GFP_KERNEL)?;
        let (held, release) = (
            Arc::pin_init(Completion::new(), GFP_KERNEL)?,
            Arc::pin_init(Completion::new(), GFP_KERNEL)?,
        );
        let (other, is_held, to_release) = (resv.clone(), held.clone(), release.clone());
        worker::spawn(move || {
            let guard = other.lock();

            is_held.complete_all();
            to_release.wait_for_completion();
            drop(guard);
        })?;
        held.wait_for_completion();

        let signal = Signal::new();
        let interrupted = resv.lock_interruptible().err();
        let tried = resv.try_lock().is_some();
        drop(signal);
        release.complete_all();
        check_eq!(interrupted, Some(EINTR));
        check!(!tried);

        // The lock can be taken after the other task has released it.
        check!(resv.lock_interruptible().is_ok());
        drop(resv.lock());
        Ok(())
    }

    #[test]
    fn wait_ends_when_work_does() -> Result {
        let context = Context::new(c"ring")?;
        let resv = resv()?;

        for usage in [Usage::Kernel, Usage::Write, Usage::Read, Usage::Bookkeep] {
            let job = job(&context)?;
            add(&resv, job.fence(), usage)?;

            // A usage includes the usages before it, and no others.
            for asked in [Usage::Kernel, Usage::Write, Usage::Read, Usage::Bookkeep] {
                let waits = usage <= asked;

                check_eq!(resv.test_signaled(asked), !waits);
                check_eq!(
                    resv.wait_timeout(asked, false, 1).err(),
                    waits.then_some(ETIME)
                );
            }
            waits::until(move || job.signal(Ok(())), || resv.wait(usage, true))??;
            check!(resv.test_signaled(Usage::Bookkeep));
        }
        Ok(())
    }

    #[test]
    fn reservation_keeps_what_is_needed() -> Result {
        let (one, other) = (Context::new(c"one")?, Context::new(c"other")?);
        let resv = resv()?;
        let (first, second, third) = (job(&one)?, job(&one)?, job(&one)?);
        let foreign = job(&other)?;

        add(&resv, first.fence(), Usage::Read)?;
        add(&resv, foreign.fence(), Usage::Read)?;
        check_eq!(&seqnos(&resv, Usage::Read)?[..], [1, 1]);
        check_eq!(seqnos(&resv, Usage::Write)?.len(), 0);

        // A later fence of the same context replaces the earlier ones, if its usage is as strong.
        add(&resv, second.fence(), Usage::Write)?;
        check_eq!(&seqnos(&resv, Usage::Write)?[..], [2]);
        let all = seqnos(&resv, Usage::Bookkeep)?;
        check_eq!(all.len(), 2);
        check!(all.contains(&2) && all.contains(&1));

        // A later fence of a weaker usage replaces nothing.
        add(&resv, third.fence(), Usage::Bookkeep)?;
        check_eq!(&seqnos(&resv, Usage::Write)?[..], [2]);
        check_eq!(seqnos(&resv, Usage::Bookkeep)?.len(), 3);

        // Fences that have signalled are not waited for.
        first.signal(Ok(()));
        second.signal(Err(EIO));
        check!(resv.test_signaled(Usage::Write) && !resv.test_signaled(Usage::Read));
        foreign.signal(Ok(()));
        check!(resv.test_signaled(Usage::Read) && !resv.test_signaled(Usage::Bookkeep));
        drop(third);
        check!(resv.test_signaled(Usage::Bookkeep));
        Ok(())
    }

    #[test]
    fn slots_are_counted() -> Result {
        let context = Context::new(c"ring")?;
        let resv = resv()?;
        let job = job(&context)?;
        let mut guard = resv.lock();
        let mut locked = guard.locked();

        for count in [4097, u32::MAX] {
            check_eq!(locked.reserve_fences(count).err(), Some(EINVAL));
        }
        for count in [0, 1, 4096] {
            let mut slots = locked.reserve_fences(count)?;

            check_eq!(slots.len(), count as usize);
            check_eq!(slots.next().is_some(), count > 0);
            check_eq!(slots.len(), count.saturating_sub(1) as usize);
        }
        // An unused slot adds no fence.
        let _ = locked.reserve_fences(2)?.next();
        check_eq!(locked.fences(Usage::Bookkeep).count(), 0);
        locked
            .reserve_fences(1)?
            .next()
            .ok_or(ENOSPC)?
            .add_fence(job.fence(), Usage::Bookkeep);
        check_eq!(locked.fences(Usage::Bookkeep).count(), 1);
        check_eq!(locked.fences(Usage::Read).count(), 0);
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Execution contexts: several GEM objects locked at once.
//!
//! Work on several objects needs the reservations of all of them. Other tasks may lock the same
//! ones in another order. [`Exec::run`] locks them in any order: if two tasks would wait for each
//! other, one of them unlocks all its objects and restarts with the contended one.
//!
//! # Locking
//!
//! The reservations are locked with an acquire context of their own. A task must not hold another
//! reservation when it calls [`Exec::run`]. Inside, it must neither lock one by other means nor
//! call [`Exec::run`] again.
//!
//! C header: [`include/drm/drm_exec.h`](srctree/include/drm/drm_exec.h)

use crate::{
    bindings,
    dma_resv::LockedResv,
    drm::gem::IntoGEMObject,
    error::to_result,
    prelude::*,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};
use core::{
    marker::PhantomData,
    ptr, //
};
use pin_init::stack_pin_init;

#[cfg(CONFIG_KUNIT = "y")]
pub(crate) mod fake;

crate::impl_flags!(
    /// How an execution context locks. By default no [`Flag`] is set.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags(u32);

    /// A variation in how an execution context locks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Flag {
        /// A signal to the task ends the wait for a lock with `EINTR`.
        Interruptible = bindings::DRM_EXEC_INTERRUPTIBLE_WAIT,

        /// Locking the same object twice is not an error.
        IgnoreDuplicates = bindings::DRM_EXEC_IGNORE_DUPLICATES,
    }
);

/// An execution context, `struct drm_exec`.
///
/// # Invariants
///
/// - `inner` is initialized and pinned.
/// - It is used by one task only.
#[pin_data(PinnedDrop)]
pub struct Exec {
    #[pin]
    inner: Opaque<bindings::drm_exec>,
    _not_send: NotThreadSafe,
}

impl Exec {
    /// Calls `f` to lock and use objects until there is no contention.
    ///
    /// When `f` meets a contended object, [`ExecCtx::prepare_obj`] and every later call fail with
    /// `EDEADLK`. Then `f` has to return. All objects are unlocked, the contended one is locked
    /// first and `f` is called again. The result of `f` is dropped, so `f` may ignore the error.
    ///
    /// So `f` first locks all objects and then makes the changes that cannot be made twice. When
    /// `run` returns, all objects are unlocked whatever the result.
    ///
    /// May sleep. Mirrors `drm_exec_init()`, `drm_exec_until_all_locked()`,
    /// `drm_exec_retry_on_contention()` and `drm_exec_fini()`.
    ///
    /// # Errors
    ///
    /// - The errors of `f` if there was no contention.
    /// - `EINTR` if a signal to the task ended the wait for a contended object.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::{
    ///     dma_buf::fence::{
    ///         DriverFence,
    ///         FenceAllocation,
    ///         FenceContextOps, //
    ///     },
    ///     dma_resv::Usage,
    ///     drm::{
    ///         exec::{
    ///             Exec,
    ///             Flag, //
    ///         },
    ///         gem::IntoGEMObject, //
    ///     },
    ///     prelude::*, //
    /// };
    ///
    /// /// Makes the fence of a job that reads one object and writes another.
    /// fn publish<O: IntoGEMObject, T: FenceContextOps>(
    ///     from: &O,
    ///     to: &O,
    ///     job: FenceAllocation<T>,
    /// ) -> Result<DriverFence<T>> {
    ///     let mut job = Some(job);
    ///
    ///     Exec::run(Flag::Interruptible, |ctx| {
    ///         // Without `Flag::IgnoreDuplicates` there is a view, or an error.
    ///         let mut from = ctx.prepare_obj(from, 1)?.ok_or(EALREADY)?;
    ///         let mut to = ctx.prepare_obj(to, 1)?.ok_or(EALREADY)?;
    ///
    ///         // All objects are locked: this is reached only once.
    ///         let fence = job.take().ok_or(EINVAL)?.new_fence();
    ///         if let Some(slot) = from.slots().next() {
    ///             slot.add_fence(fence.fence(), Usage::Read);
    ///         }
    ///         if let Some(slot) = to.slots().next() {
    ///             slot.add_fence(fence.fence(), Usage::Write);
    ///         }
    ///         Ok(fence)
    ///     })
    /// }
    ///
    /// // No object has to be locked.
    /// assert_eq!(Exec::run(Flag::Interruptible, |_| Ok(42)), Ok(42));
    /// ```
    pub fn run<R>(
        flags: impl Into<Flags>,
        mut f: impl FnMut(&mut ExecCtx<'_>) -> Result<R>,
    ) -> Result<R> {
        stack_pin_init!(let exec = Self::new(flags.into()));
        let exec = exec.into_ref().get_ref();

        loop {
            exec.begin()?;

            let result = f(&mut ExecCtx {
                exec,
                _invariant: PhantomData,
            });

            if !exec.is_contended() {
                return result;
            }
        }
    }

    fn new(flags: Flags) -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: Initialized here and pinned.
            // SAFETY: `slot` is memory for a `struct drm_exec`. The array of objects grows when
            // needed. So its initial size may be left to the function.
            inner <- Opaque::ffi_init(|slot| unsafe {
                bindings::drm_exec_init(slot, flags.into(), 0)
            }),
            _not_send: NotThreadSafe,
        })
    }

    /// Begins a round. Only the contended object of the last round is locked.
    fn begin(&self) -> Result {
        // The result says whether another round is needed. It always is here: this is only called
        // at first and after a contention.
        // SAFETY: By the type invariant the context is initialized. There is no view of a locked
        // object, because views do not outlive a call of the closure.
        unsafe { bindings::drm_exec_cleanup(self.inner.get()) };

        // The contended object has to be locked before any other, even if it is no longer wanted.
        // SAFETY: By the type invariant the context is initialized. No object is passed.
        to_result(unsafe {
            bindings::drm_exec_prepare_array(self.inner.get(), ptr::null_mut(), 0, 0)
        })
    }

    /// Returns the C structure.
    #[cfg_attr(
        not(all(CONFIG_RUST_DRM_GPUVM, CONFIG_RUST_DRM_TTM)),
        expect(dead_code)
    )]
    pub(crate) fn as_raw(&self) -> *mut bindings::drm_exec {
        self.inner.get()
    }

    /// Returns whether an object was contended in this round.
    pub(crate) fn is_contended(&self) -> bool {
        // SAFETY: By the type invariant the context is initialized and used by this task only.
        // After `begin()` the pointer is null until an object is contended.
        unsafe { !(*self.inner.get()).contended.is_null() }
    }

    /// Returns how many objects are locked.
    pub(crate) fn locked(&self) -> u32 {
        // SAFETY: By the type invariant the context is initialized and used by this task only.
        unsafe { (*self.inner.get()).num_objects }
    }

    /// Locks an object and reserves slots for fences.
    ///
    /// # Safety
    ///
    /// `obj` must be valid during the call with a reference count above zero. The result must not
    /// be used after the round.
    unsafe fn prepare<'a>(
        &self,
        obj: *mut bindings::drm_gem_object,
        num_fences: u32,
    ) -> Result<Option<LockedResv<'a>>> {
        // The objects of this round are still locked. So this task must not wait for another one.
        if self.is_contended() {
            return Err(EDEADLK);
        }

        let before = self.locked();
        // SAFETY: The context is initialized. `obj` is valid by the safety requirements.
        to_result(unsafe { bindings::drm_exec_lock_obj(self.inner.get(), obj) })?;

        if self.locked() == before {
            // The object is a duplicate. There must be only one view of each reservation.
            return Ok(None);
        }

        // SAFETY: The object was just locked and stays locked until the end of the round. Until
        // then the context has a reference to it. It was not locked before, so there is no other
        // view of its reservation.
        let mut view = unsafe { LockedResv::from_raw((*obj).resv) };

        if let Err(error) = view.prepare(num_fences) {
            // SAFETY: The object was locked by this call and no code gets the view.
            unsafe { bindings::drm_exec_unlock_obj(self.inner.get(), obj) };
            return Err(error);
        }

        Ok(Some(view))
    }
}

#[pinned_drop]
impl PinnedDrop for Exec {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant the context is initialized. There is no view of a locked
        // object, because views do not outlive a call of the closure.
        unsafe { bindings::drm_exec_fini(self.inner.get()) };
    }
}

/// One locking round of an execution context.
///
/// # Invariants
///
/// - The round has begun and lasts for `'a`.
/// - `'a` is known to the closure of [`Exec::run`] only. So no value with it leaves the round.
pub struct ExecCtx<'a> {
    pub(crate) exec: &'a Exec,
    _invariant: PhantomData<fn(&'a ()) -> &'a ()>,
}

impl<'a> ExecCtx<'a> {
    /// Locks an object and reserves slots for `num_fences` fences. `num_fences` may be 0.
    ///
    /// The view is valid until the end of the round. So are the views of objects locked before.
    /// With [`Flag::IgnoreDuplicates`] there is no view of an object if its reservation is locked
    /// already, because the reservation has a view.
    ///
    /// May sleep. Mirrors `drm_exec_prepare_obj()`.
    ///
    /// # Errors
    ///
    /// - `EDEADLK` if this or an earlier object of the round is contended. The closure has to
    ///   return.
    /// - `EALREADY` if the reservation is locked already, without [`Flag::IgnoreDuplicates`].
    /// - `EINTR` if a signal to the task ended the wait, with [`Flag::Interruptible`].
    /// - `EINVAL` if `num_fences` is above 4096.
    /// - `ENOMEM` if there is no memory.
    #[inline]
    pub fn prepare_obj<T: IntoGEMObject>(
        &mut self,
        obj: &T,
        num_fences: u32,
    ) -> Result<Option<LockedResv<'a>>> {
        // SAFETY: `obj` is valid. A reference to it proves a count above zero. By the type
        // invariant the view does not leave the round.
        unsafe { self.exec.prepare(obj.as_raw(), num_fences) }
    }
}

#[kunit_tests(rust_drm_exec)]
mod tests {
    use super::{
        fake::{
            Driver,
            Object, //
        },
        *, //
    };
    use crate::{
        dma_buf::fence::FenceContext,
        dma_resv::{
            DmaResv,
            Usage, //
        },
        drm::UnregisteredDevice,
        faux,
        impl_has_work,
        new_mutex,
        new_work,
        page::PAGE_SIZE,
        sync::{
            aref::ARef,
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc,
            Completion,
            Mutex, //
        },
        workqueue::{
            self,
            Work,
            WorkItem, //
        }, //
    };

    /// With `CONFIG_DEBUG_WW_MUTEX_SLOWPATH` one in sixteen contexts meets a contention when it
    /// locks its second object.
    const RUNS: u32 = 64;

    /// Whether the kernel simulates contentions. On PREEMPT_RT it does not in spite of the option.
    const CONTENDS: bool = cfg!(all(CONFIG_DEBUG_WW_MUTEX_SLOWPATH, not(CONFIG_PREEMPT_RT)));

    /// A device with objects. The objects are dropped before it.
    struct Bench {
        a: ARef<Object>,
        b: ARef<Object>,
        c: ARef<Object>,
        _drm: UnregisteredDevice<Driver>,
        _faux: faux::Registration,
    }

    impl Bench {
        fn new() -> Result<Self> {
            let (drm, faux) = fake::device(c"exec-kunit")?;

            Ok(Self {
                a: Object::new(&drm, PAGE_SIZE, ())?,
                b: Object::new(&drm, PAGE_SIZE, ())?,
                c: Object::new(&drm, PAGE_SIZE, ())?,
                _drm: drm,
                _faux: faux,
            })
        }

        fn is_locked(&self) -> [bool; 2] {
            [&self.a, &self.b].map(|obj| resv(obj).try_lock().is_none())
        }
    }

    fn resv(obj: &Object) -> &DmaResv {
        // SAFETY: The object is valid. Its reservation lives as long.
        unsafe { DmaResv::from_raw((*IntoGEMObject::as_raw(obj)).resv) }
    }

    #[test]
    fn locked_inside_and_unlocked_outside() -> Result {
        let bench = Bench::new()?;
        let mut rounds = 0;

        for _ in 0..RUNS {
            let mut contended = false;
            Exec::run(Flags::default(), |ctx| {
                rounds += 1;
                // The first object locked after a contention is the contended one.
                assert_eq!(bench.is_locked(), [false, contended]);
                contended = true;

                let a = ctx.prepare_obj(&*bench.a, 0)?.ok_or(EALREADY)?;
                let b = ctx.prepare_obj(&*bench.b, 0)?.ok_or(EALREADY)?;

                assert!(a.is_for(resv(&bench.a)) && b.is_for(resv(&bench.b)));
                assert_eq!(bench.is_locked(), [true, true]);
                Ok(())
            })?;
            assert_eq!(bench.is_locked(), [false, false]);
        }

        assert!(!CONTENDS || rounds > RUNS);

        let failed: Result = Exec::run(Flag::Interruptible, |ctx| {
            ctx.prepare_obj(&*bench.a, 0)?;
            Err(EIO)
        });
        assert_eq!(failed, Err(EIO));
        assert_eq!(bench.is_locked(), [false, false]);

        Ok(())
    }

    #[test]
    fn contention_cannot_be_ignored() -> Result {
        let bench = Bench::new()?;
        let mut contended = 0;

        for _ in 0..RUNS {
            let all = Exec::run(Flags::default(), |ctx| {
                let a = ctx.prepare_obj(&*bench.a, 0);
                let b = ctx.prepare_obj(&*bench.b, 0);
                let c = ctx.prepare_obj(&*bench.c, 0);

                assert!(a.is_ok());
                if let Err(error) = b {
                    assert_eq!(error, EDEADLK);
                    assert_eq!(c.as_ref().err(), Some(&EDEADLK));
                }
                let all = b.is_ok() && c.is_ok();
                contended += u32::from(!all);
                Ok(all)
            })?;
            assert!(all);
        }

        assert!(!CONTENDS || contended > 0);
        Ok(())
    }

    #[test]
    fn contended_object_may_be_left_out() -> Result {
        let bench = Bench::new()?;
        let mut again = 0;

        for _ in 0..RUNS {
            let mut first = true;
            Exec::run(Flags::default(), |ctx| {
                if !core::mem::take(&mut first) {
                    again += 1;
                    return Ok(());
                }
                ctx.prepare_obj(&*bench.a, 0)?;
                ctx.prepare_obj(&*bench.b, 0)?;
                Ok(())
            })?;
            assert_eq!(bench.is_locked(), [false, false]);
        }

        assert!(!CONTENDS || again > 0);
        Ok(())
    }

    #[test]
    fn one_view_of_each_reservation() -> Result {
        let bench = Bench::new()?;

        Exec::run(Flags::default(), |ctx| {
            let mut view = ctx.prepare_obj(&*bench.a, 1)?.ok_or(EALREADY)?;
            assert_eq!(ctx.prepare_obj(&*bench.a, 2).err(), Some(EALREADY));
            assert_eq!(view.slots().len(), 1);
            Ok(())
        })?;

        Exec::run(Flag::IgnoreDuplicates, |ctx| {
            let mut view = ctx.prepare_obj(&*bench.a, 1)?.ok_or(EALREADY)?;
            assert!(ctx.prepare_obj(&*bench.a, 2)?.is_none());
            assert_eq!(view.slots().len(), 1);

            // A failure to reserve does not leave the object locked without a view.
            match ctx.prepare_obj(&*bench.b, u32::MAX).err() {
                Some(EDEADLK) => return Err(EDEADLK),
                error => assert_eq!(error, Some(EINVAL)),
            }
            assert_eq!(bench.is_locked(), [true, false]);
            Ok(())
        })
    }

    #[test]
    fn fences_are_added_while_locked() -> Result {
        let bench = Bench::new()?;
        let context = FenceContext::<Driver>::new(c"ring")?;
        let mut job = Some(context.new_fence_allocation(())?);

        let fence = Exec::run(Flags::default(), |ctx| {
            let mut a = ctx.prepare_obj(&*bench.a, 3)?.ok_or(EALREADY)?;
            let mut b = ctx.prepare_obj(&*bench.b, 1)?.ok_or(EALREADY)?;

            let fence = job.take().ok_or(EINVAL)?.new_fence();
            assert_eq!(a.slots().len(), 3);
            // The slots were taken, so the view has none left.
            assert_eq!(a.slots().len(), 0);
            for (view, usage) in [(&mut a, Usage::Kernel), (&mut b, Usage::Bookkeep)] {
                let mut slots = view.reserve_fences(1)?;
                slots.next().ok_or(ENOSPC)?.add_fence(fence.fence(), usage);
                assert!(slots.next().is_none());
            }
            Ok(fence)
        })?;

        assert!(!resv(&bench.a).test_signaled(Usage::Kernel));
        assert!(resv(&bench.b).test_signaled(Usage::Read));
        assert!(!resv(&bench.b).test_signaled(Usage::Bookkeep));
        fence.signal(Ok(()));
        assert!(resv(&bench.a).test_signaled(Usage::Bookkeep));
        assert!(resv(&bench.b).test_signaled(Usage::Bookkeep));

        Ok(())
    }

    /// A task locking two objects in one order while another task locks them in the other order.
    #[pin_data]
    struct Rival {
        /// Dropped before `finished`, because the device does not live longer.
        #[pin]
        objects: Mutex<Option<[ARef<Object>; 2]>>,
        both: Arc<Atomic<u32>>,
        done: Atomic<u32>,
        #[pin]
        finished: Completion,
        #[pin]
        work: Work<Rival>,
    }

    impl_has_work! {
        impl HasWork<Self> for Rival { self.work }
    }

    impl WorkItem for Rival {
        type Pointer = Arc<Rival>;

        fn run(this: Arc<Rival>) {
            this.compete();
            this.finished.complete_all();
        }
    }

    impl Rival {
        const TIMES: u32 = 500;

        fn new(objects: [&Object; 2], both: Arc<Atomic<u32>>) -> Result<Arc<Self>> {
            Arc::pin_init(
                pin_init!(Self {
                    objects <- new_mutex!(
                        Some(objects.map(ARef::from)),
                        "drm::exec::tests::Rival"
                    ),
                    both,
                    done: Atomic::new(0),
                    finished <- Completion::new(),
                    work <- new_work!("drm::exec::tests::Rival"),
                }),
                GFP_KERNEL,
            )
        }

        fn compete(&self) {
            let Some([first, second]) = self.objects.lock().take() else {
                return;
            };

            for _ in 0..Self::TIMES {
                let run = Exec::run(Flags::default(), |ctx| {
                    ctx.prepare_obj(&*first, 0)?;
                    ctx.prepare_obj(&*second, 0)?;

                    // This loses an increment if the other task is here too.
                    let count = self.both.load(Relaxed);
                    core::hint::spin_loop();
                    self.both.store(count + 1, Relaxed);
                    Ok(())
                });
                if run.is_ok() {
                    self.done.fetch_add(1, Relaxed);
                }
            }
        }
    }

    #[test]
    fn opposite_orders_do_not_deadlock() -> Result {
        let bench = Bench::new()?;
        let both = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let here = Rival::new([&bench.a, &bench.b], both.clone())?;
        let there = Rival::new([&bench.b, &bench.a], both.clone())?;

        assert!(workqueue::system_long().enqueue(there.clone()).is_ok());
        here.compete();
        there.finished.wait_for_completion();

        assert_eq!(here.done.load(Relaxed), Rival::TIMES);
        assert_eq!(there.done.load(Relaxed), Rival::TIMES);
        assert_eq!(both.load(Relaxed), 2 * Rival::TIMES);
        Ok(())
    }
}

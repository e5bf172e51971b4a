// SPDX-License-Identifier: GPL-2.0

//! The order in which the fences of a context signal.
//!
//! This file creates and signals the fences of all drivers: their memory, names and operations
//! belong to the kernel because a fence may outlive its driver.
//!
//! # Locking
//!
//! The lock of a [`Line`] is taken with interrupts disabled. It is not held while a fence is
//! signalled because the callbacks of the fence run then. A signalling task is not interrupted
//! either because all others leave their fences to it. On PREEMPT_RT the locks of line and fence
//! sleep, so there it may be preempted like any holder of a lock.

use super::Fence;
use crate::{
    bindings,
    impl_has_work,
    new_spinlock_irq,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        barrier::{
            smp_mb,
            Read, //
        },
        Arc,
        SpinLockIrq, //
    },
    types::Opaque,
    workqueue::{
        self,
        Work,
        WorkItem, //
    }, //
};
use core::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// The number of fences that a task signals at once: their callbacks may run with interrupts
/// disabled, and one late fence may have thousands behind it.
const SIGNALS_AT_ONCE: usize = 16;

/// The maximal size of a name of a fence in bytes with the terminating NUL.
const NAME_SIZE: usize = 32;

type Name = [c_char; NAME_SIZE];

/// Copies a string to an array to be kept in the fence.
fn name(text: &CStr) -> Result<Name> {
    let bytes = text.to_bytes();
    let mut name = [0; NAME_SIZE];

    // The last byte stays NUL.
    name[..NAME_SIZE - 1]
        .get_mut(..bytes.len())
        .ok_or(ENAMETOOLONG)?
        .copy_from_slice(bytes);
    Ok(name)
}

/// The memory of a fence created here.
///
/// It contains all data accessed by the operations of the fence, so this data lives as long as the
/// fence.
#[repr(C)]
pub(super) struct Memory {
    /// Must be first: the core frees the memory by the address of the fence.
    fence: Opaque<bindings::dma_fence>,
    driver: Name,
    timeline: Name,
    /// The next fence of the timeline while this one has not signalled. Guarded by the lock of the
    /// timeline like `is_done`.
    next: UnsafeCell<*const Memory>,
    /// Whether the work is done. The fence signals once those before it have signalled too.
    is_done: UnsafeCell<bool>,
    /// The number of the [`FenceGroup`](super::FenceGroup), 0 if there is none.
    pub(super) group: u64,
    /// Whether the signal may depend on fences outside of the group.
    pub(super) external: bool,
}

impl Memory {
    /// Returns the number of the group of a fence created here and whether its signal may depend on
    /// fences outside of the group. Returns [`None`] if the fence was created elsewhere or has
    /// signalled. To distinguish both, a caller checks for the signal afterwards.
    pub(super) fn group_of(fence: &Fence) -> Option<(u64, bool)> {
        let raw = fence.as_raw();

        // SAFETY: The fence is valid. The core clears the pointer to the table when the fence
        // signals, maybe at this time; the pointer is compared only. A fence with this table is at
        // the start of a `Memory`, which is freed with it. The fields read here never change.
        unsafe {
            if !ptr::eq((&raw const (*raw).ops).read_volatile(), &OPS) {
                // Pairs with `test_and_set_bit()` in `dma_fence_signal_timestamp_locked()`. The
                // pointer is cleared after it, so the caller sees the bit.
                smp_mb(Read);
                return None;
            }
            let memory: *const Memory = raw.cast();

            Some(((*memory).group, (*memory).external))
        }
    }
}

/// The operations of all fences created here for all drivers.
///
/// The table and its functions are in the kernel crate and so never unloaded. Without `wait` and
/// `release` the core drops the table when the fence signals and frees the fence with
/// `dma_fence_free()`.
static OPS: bindings::dma_fence_ops = bindings::dma_fence_ops {
    get_driver_name: Some(driver_name),
    get_timeline_name: Some(timeline_name),
    enable_signaling: None,
    signaled: None,
    wait: None,
    release: None,
    set_deadline: None,
};

extern "C" fn driver_name(fence: *mut bindings::dma_fence) -> *const c_char {
    let memory: *const Memory = fence.cast();

    // SAFETY: `OPS` is only used for fences at the start of a `Memory`, which lives as long.
    unsafe { &raw const (*memory).driver }.cast()
}

extern "C" fn timeline_name(fence: *mut bindings::dma_fence) -> *const c_char {
    let memory: *const Memory = fence.cast();

    // SAFETY: As in `driver_name()`.
    unsafe { &raw const (*memory).timeline }.cast()
}

/// The common part of the fences of a context.
///
/// Not generic, so that the code, the lock class and its name stay in the kernel crate.
#[pin_data]
pub(super) struct Timeline {
    pub(super) context: u64,
    group: u64,
    driver: Name,
    timeline: Name,
    #[pin]
    line: SpinLockIrq<Line>,
    /// Signals the fences left by a task.
    #[pin]
    rest: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for Timeline { self.rest }
}

impl WorkItem for Timeline {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if !this.signal_done(SIGNALS_AT_ONCE) {
            this.signal_later();
        }
    }
}

/// The unsignalled fences of a timeline.
///
/// # Invariants
///
/// `first` is null or the oldest of the fences; `last` is null or the latest. Each points to the
/// next. A reference to each is owned by its [`DriverFence`](super::DriverFence) or, once the work
/// is done, by the line.
struct Line {
    /// The number of the latest fence. The lock is held until the fence is initialized, so the
    /// fences are numbered in the order of their initialization.
    seqno: u64,
    first: *const Memory,
    last: *const Memory,
    /// Whether a task is signalling the fences whose turn has come.
    busy: bool,
}

// SAFETY: The lock around a `Line` guards all memory behind its pointers.
unsafe impl Send for Line {}

impl Line {
    const fn new() -> Self {
        // INVARIANT: There is no fence.
        Self {
            seqno: 0,
            first: ptr::null(),
            last: ptr::null(),
            busy: false,
        }
    }

    /// Appends a fence.
    ///
    /// # Safety
    ///
    /// `memory` must stay valid until it is removed by [`Self::take_done`].
    unsafe fn push(&mut self, memory: *const Memory) {
        // INVARIANT: The fence is the latest and the one before it points to it.
        if self.last.is_null() {
            self.first = memory;
        } else {
            // SAFETY: By the type invariant the fence is valid; the line guards the cell.
            unsafe { *(*self.last).next.get() = memory };
        }
        self.last = memory;
    }

    /// Returns whether the signal of the latest fence may depend on fences outside of the group.
    fn ends_external(&self) -> bool {
        // SAFETY: By the type invariant the fence is valid if there is one; the field never
        // changes.
        !self.last.is_null() && unsafe { (*self.last).external }
    }

    /// Removes the oldest fence if its work is done.
    fn take_done(&mut self) -> Option<NonNull<Memory>> {
        let first = NonNull::new(self.first.cast_mut())?;

        // INVARIANT: The next fence is the oldest now.
        // SAFETY: By the type invariant the fence is valid; the line guards the cells.
        unsafe {
            if !*first.as_ref().is_done.get() {
                return None;
            }
            self.first = *first.as_ref().next.get();
        }
        if self.first.is_null() {
            self.last = ptr::null();
        }
        Some(first)
    }
}

impl Timeline {
    #[inline(never)]
    pub(super) fn new(driver: &CStr, timeline: &CStr, group: u64) -> Result<Arc<Self>> {
        Self::with_names(name(driver)?, name(timeline)?, group)
    }

    /// Creates a timeline with the names and the group of this one.
    #[inline(never)]
    pub(super) fn alike(&self) -> Result<Arc<Self>> {
        Self::with_names(self.driver, self.timeline, self.group)
    }

    fn with_names(driver: Name, timeline: Name, group: u64) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                // SAFETY: The function has no requirements.
                context: unsafe { bindings::dma_fence_context_alloc(1) },
                group,
                driver,
                timeline,
                line <- new_spinlock_irq!(Line::new(), "dma_buf::fence::Timeline"),
                rest <- new_work!("dma_buf::fence::Timeline::rest"),
            }),
            GFP_KERNEL,
        )
    }

    /// Creates the next fence. With `external` its signal may depend on fences outside of the
    /// group. This then applies to all fences of the timeline created before it has signalled.
    #[inline(never)]
    pub(super) fn new_fence(
        &self,
        memory: KBox<MaybeUninit<Memory>>,
        external: bool,
    ) -> ARef<Fence> {
        let mut line = self.line.lock();
        let external = external || line.ends_external();

        // The names are written first: the initialization has a tracepoint reading them.
        let memory = KBox::into_raw(KBox::write(
            memory,
            Memory {
                fence: Opaque::uninit(),
                driver: self.driver,
                timeline: self.timeline,
                next: UnsafeCell::new(ptr::null()),
                is_done: UnsafeCell::new(false),
                group: self.group,
                external,
            },
        ));
        let fence: *mut bindings::dma_fence = memory.cast();

        // OVERFLOW: There are never 2^64 fences.
        line.seqno += 1;

        // SAFETY:
        // - `fence` is at the start of memory allocated with `kmalloc()`, as `dma_fence_free()`
        //   needs it. This function alone owns the memory.
        // - `OPS` is static, and its functions get the `Memory` that they need.
        // - Without an external lock the fence uses the one inside of it.
        unsafe {
            bindings::dma_fence_init64(fence, &OPS, ptr::null_mut(), self.context, line.seqno);
            // The reference below is kept until the fence has signalled.
            line.push(memory);
        }
        drop(line);

        // INVARIANT: The fence was just initialized.
        // SAFETY: `fence` is not null and the `ARef` takes over its first reference.
        unsafe { ARef::from_raw(NonNull::new_unchecked(fence.cast())) }
    }

    /// Records the end of the work of a fence and signals the fences whose turn has come. If there
    /// are many, a work item signals the rest.
    ///
    /// # Safety
    ///
    /// The fence must have been created by [`Self::new_fence`] of this timeline. This must not have
    /// been called for it before. The reference passes to the line.
    #[inline(never)]
    pub(super) unsafe fn finish(self: &Arc<Self>, fence: ARef<Fence>) {
        let memory: NonNull<Memory> = ARef::into_raw(fence).cast();
        #[cfg(not(CONFIG_PREEMPT_RT))]
        let _irqs = crate::interrupt::local_interrupt_disable();
        let mut line = self.line.lock();

        // SAFETY: The fence is at the start of a `Memory`, and the line is locked.
        unsafe { *memory.as_ref().is_done.get() = true };
        // The signalling task sees this fence and signals it in its turn.
        if line.busy {
            return;
        }
        line.busy = true;
        drop(line);
        if !self.signal_done(SIGNALS_AT_ONCE) {
            self.clone().signal_later();
        }
    }

    /// Leaves the line to the work item. The item is not on the queue yet because the line is busy.
    /// Queueing needs no memory: other tasks may wait for these fences to get memory.
    fn signal_later(self: Arc<Self>) {
        let _ = workqueue::system_bh_highpri().enqueue(self);
    }

    /// Signals at most `most` fences whose turn has come, for the task that has made the line busy.
    /// Returns false if that limit was reached: then the line is still busy.
    fn signal_done(&self, most: usize) -> bool {
        for _ in 0..most {
            let mut line = self.line.lock();
            let Some(done) = line.take_done() else {
                line.busy = false;
                return true;
            };

            drop(line);
            // SAFETY: The fence has not signalled. Its reference belonged to the line and now
            // belongs to this function.
            unsafe {
                bindings::dma_fence_signal(done.as_ptr().cast());
                bindings::dma_fence_put(done.as_ptr().cast());
            }
        }
        false
    }
}

#[kunit_tests(rust_dma_fence)]
mod tests {
    use super::*;
    use crate::{
        dma_buf::fence::{
            FenceContext,
            FenceContextOps, //
        },
        str::CString,
        sync::rcu, //
    };

    struct Ops;

    impl FenceContextOps for Ops {
        const DRIVER_NAME: &'static CStr = c"a driver";
        type Data = ();
    }

    #[test]
    fn names_are_copied() -> Result {
        let timeline = CString::try_from_fmt(fmt!("ring {}", 7))?;
        let context = FenceContext::<Ops>::new(&timeline)?;
        drop(timeline);
        let fence = context.new_fence_allocation(())?.new_fence();
        drop(context);

        let _rcu = rcu::read_lock();
        let raw = fence.fence().as_raw();
        // SAFETY: The fence is valid and its names are only read in this section.
        let (driver, timeline) = unsafe {
            (
                CStr::from_char_ptr(bindings::dma_fence_driver_name(raw)),
                CStr::from_char_ptr(bindings::dma_fence_timeline_name(raw)),
            )
        };
        assert_eq!(driver, c"a driver");
        assert_eq!(timeline, c"ring 7");

        Ok(())
    }

    #[test]
    fn core_lets_go_at_the_signal() -> Result {
        let context = FenceContext::<Ops>::new(c"ring")?;
        let driver_fence = context.new_fence_allocation(())?.new_fence();
        let fence: ARef<Fence> = driver_fence.fence().into();

        // SAFETY: The fence is valid.
        assert!(ptr::eq(unsafe { (*fence.as_raw()).ops }, &OPS));
        driver_fence.signal(Ok(()));
        // SAFETY: The fence is valid.
        assert!(unsafe { (*fence.as_raw()).ops }.is_null());

        Ok(())
    }

    /// Returns whether the core keeps only `fence` of two fences of one timeline.
    fn replaces(fence: &ARef<Fence>, before: &ARef<Fence>) -> bool {
        let mut pair = [before, fence].map(|fence| ARef::into_raw(fence.clone()).as_ptr().cast());

        // SAFETY: The function drops the references of the removed fences.
        let left = unsafe { bindings::dma_fence_dedup_array(pair.as_mut_ptr(), 2) };
        // SAFETY: The first fence is left in any case with its reference.
        let kept = unsafe { ARef::from_raw(NonNull::new_unchecked(pair[0].cast::<Fence>())) };

        left == 1 && ptr::eq(&*kept, &**fence)
    }

    #[test]
    fn numbers_pass_32_bits() -> Result {
        let timeline = Timeline::new(c"a driver", c"ring", 0)?;
        let last = u64::from(u32::MAX) + 3;
        timeline.line.lock().seqno = last - 5;

        let mut fences = KVec::<ARef<Fence>>::new();
        for number in last - 4..=last {
            let fence = timeline.new_fence(KBox::new_uninit(GFP_KERNEL)?, false);

            assert_eq!(fence.seqno(), number);
            if let Some(before) = fences.last() {
                assert!(replaces(&fence, before));
            }
            fences.push(fence, GFP_KERNEL)?;
        }

        // The work is done in another order; the signals follow the numbers.
        for (done, signalled) in [(4, 0), (2, 0), (0, 1), (1, 3), (3, 5)] {
            // SAFETY: The timeline created the fence and its work is done once.
            unsafe { timeline.finish(fences[done].clone()) };
            assert!(fences
                .iter()
                .enumerate()
                .all(|(index, fence)| fence.is_signaled() == (index < signalled)));
        }
        Ok(())
    }

    /// A late fence does not signal all fences behind it with interrupts disabled.
    #[test]
    fn signals_are_limited() -> Result {
        const FENCES: usize = 100;

        let context = FenceContext::<Ops>::new(c"ring")?;
        let mut work = KVec::new();
        let mut fences = KVec::<ARef<Fence>>::new();
        for _ in 0..FENCES {
            let fence = context.new_fence_allocation(())?.new_fence();

            fences.push(fence.fence().into(), GFP_KERNEL)?;
            work.push(fence, GFP_KERNEL)?;
        }
        let mut work = work.into_iter();
        let late = work.next().ok_or(ENOENT)?;
        for fence in work {
            fence.signal(Ok(()));
        }
        let signalled = || fences.iter().filter(|fence| fence.is_signaled()).count();
        assert_eq!(signalled(), 0);

        let at_once = {
            // The work item is one of this processor and does not run meanwhile. On PREEMPT_RT the
            // lock sleeps, and the work item may run.
            #[cfg(not(CONFIG_PREEMPT_RT))]
            let _irqs = crate::interrupt::local_interrupt_disable();

            late.signal(Ok(()));
            signalled()
        };
        if cfg!(CONFIG_PREEMPT_RT) {
            assert!(at_once >= SIGNALS_AT_ONCE);
        } else {
            assert_eq!(at_once, SIGNALS_AT_ONCE);
        }
        for fence in &fences {
            fence.wait(false)?;
        }
        assert_eq!(signalled(), FENCES);
        // The line is free again.
        let next = context.new_fence_allocation(())?.new_fence();
        let fence: ARef<Fence> = next.fence().into();
        next.signal(Ok(()));
        fence.wait(false)?;
        Ok(())
    }

    #[test]
    fn longest_name() {
        assert!(name(c"0123456789012345678901234567890").is_ok());
        assert_eq!(
            name(c"01234567890123456789012345678901").err(),
            Some(ENAMETOOLONG)
        );
    }
}

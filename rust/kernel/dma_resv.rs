// SPDX-License-Identifier: GPL-2.0

//! Reservation objects.
//!
//! A [`DmaResv`] is the lock of a buffer shared by several devices. It keeps the fences of the work
//! on this buffer. An importer must hold the lock to map the buffer, and an exporter must hold it
//! to move the buffer. A [`Guard`] is the proof that it is held. The views of
//! [`dma_buf`](crate::dma_buf), such as a locked attachment, exist only as long as a guard does.
//!
//! There is no guard if other code took the lock, such as the dma-buf core before it calls an
//! exporter. The operations under the lock are therefore in [`LockedResv`]. It can be created from
//! a guard.
//!
//! The lock is a wound/wait mutex. This module takes one reservation at a time without an acquire
//! context. Lockdep reports a task taking a second one while it holds a [`Guard`].
//!
//! # Fences
//!
//! Adding a fence cannot fail because the work of the fence has often begun by then. Steps that can
//! fail come before: [`LockedResv::reserve_fences`] makes room. Each [`FenceSlot`] is room for one
//! fence, to be used before the reservation is unlocked.
//!
//! # Examples
//!
//! ```
//! use kernel::{
//!     dma_buf::fence::{
//!         FenceContext,
//!         FenceContextOps, //
//!     },
//!     dma_resv::{
//!         DmaResv,
//!         Usage, //
//!     },
//!     prelude::*, //
//! };
//!
//! struct Ring;
//!
//! impl FenceContextOps for Ring {
//!     const DRIVER_NAME: &'static CStr = c"driver";
//!     type Data = ();
//! }
//!
//! let resv = KBox::pin_init(DmaResv::new(), GFP_KERNEL)?;
//! let [write, move_] = [c"render", c"copy"].map(FenceContext::<Ring>::new);
//! let write = write?.new_fence_allocation(())?;
//! let move_ = move_?.new_fence_allocation(())?;
//!
//! let mut guard = resv.lock();
//! let mut locked = guard.locked();
//! assert!(locked.is_for(&resv));
//! assert_eq!(locked.slots().len(), 0);
//! assert_eq!(locked.reserve_fences(4097).err(), Some(EINVAL));
//! let mut slots = locked.reserve_fences(2)?;
//! assert_eq!(slots.len(), 2);
//!
//! // Nothing fails from here on.
//! let write = write.new_fence();
//! if let Some(slot) = slots.next() {
//!     slot.add_fence(write.fence(), Usage::Write);
//! }
//! let move_ = move_.new_fence();
//! if let Some(slot) = slots.next() {
//!     slot.add_fence(move_.fence(), Usage::Kernel);
//! }
//! assert!(slots.next().is_none());
//! drop(guard);
//!
//! // Each usage includes those before it.
//! assert!(!resv.test_signaled(Usage::Kernel));
//! move_.signal(Ok(()));
//! assert!(resv.test_signaled(Usage::Kernel));
//! assert!(!resv.test_signaled(Usage::Write));
//! assert_eq!(resv.wait_timeout(Usage::Write, false, 1), Err(ETIME));
//!
//! write.signal(Ok(()));
//! resv.wait(Usage::Bookkeep, true)?;
//! assert!(resv.wait_timeout(Usage::Bookkeep, false, 0)? > 0);
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/dma-resv.h`](srctree/include/linux/dma-resv.h)

use crate::{
    bindings,
    dma_buf::fence::{
        wait_result,
        AnyFence,
        Fence, //
    },
    error::to_result,
    prelude::*,
    sync::aref::ARef,
    time::Jiffies,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};
use core::{
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// The maximal number of slots that can be reserved at once.
///
/// Far more than the contexts working on one buffer and few enough to keep the numbers of the C
/// side from overflowing.
const MAX_SLOTS: u32 = 4096;

/// A class of fences of a reservation.
///
/// The order is that of `enum dma_resv_usage`: a usage includes the fences of all usages before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Usage {
    /// Memory management by the kernel, such as a move of the buffer.
    Kernel,
    /// Writes under implicit synchronization.
    Write,
    /// Reads under implicit synchronization.
    Read,
    /// No implicit synchronization; all other work that still touches the memory.
    Bookkeep,
}

impl Usage {
    pub(crate) const fn as_raw(self) -> bindings::dma_resv_usage {
        match self {
            Usage::Kernel => bindings::dma_resv_usage_DMA_RESV_USAGE_KERNEL,
            Usage::Write => bindings::dma_resv_usage_DMA_RESV_USAGE_WRITE,
            Usage::Read => bindings::dma_resv_usage_DMA_RESV_USAGE_READ,
            Usage::Bookkeep => bindings::dma_resv_usage_DMA_RESV_USAGE_BOOKKEEP,
        }
    }
}

/// A reservation object, `struct dma_resv`.
///
/// # Invariants
///
/// `inner` is initialized and stays valid as long as a reference to `self` exists.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_resv::{
///         DmaResv,
///         Usage, //
///     },
///     prelude::*, //
/// };
///
/// /// Whether all work on a buffer is done, or nothing if another task holds the lock.
/// fn is_idle(resv: &DmaResv) -> Option<bool> {
///     let guard = resv.try_lock()?;
///
///     // The guard belongs to this reservation and to no other.
///     Some(guard.is_for(resv) && resv.test_signaled(Usage::Bookkeep))
/// }
///
/// let resv = KBox::pin_init(DmaResv::new(), GFP_KERNEL)?;
/// assert_eq!(is_idle(&resv), Some(true));
/// # Ok::<(), Error>(())
/// ```
#[repr(transparent)]
#[pin_data(PinnedDrop)]
pub struct DmaResv {
    #[pin]
    inner: Opaque<bindings::dma_resv>,
}

// SAFETY: A `struct dma_resv` is a lock with its protected data; it may be used from any task.
unsafe impl Send for DmaResv {}

// SAFETY: The C side synchronizes all methods taking `&self`.
unsafe impl Sync for DmaResv {}

impl DmaResv {
    /// Creates a reservation for buffers that share it and do not have their own.
    ///
    /// Mirrors `dma_resv_init()`.
    #[inline]
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: Initialized here, and valid until `drop()`.
            // SAFETY: `slot` is memory for a `struct dma_resv` and does not move.
            inner <- Opaque::ffi_init(|slot| unsafe { bindings::dma_resv_init(slot) }),
        })
    }

    /// Turns a pointer to a `struct dma_resv` into a reference.
    ///
    /// # Safety
    ///
    /// `ptr` must point to an initialized `struct dma_resv` valid for `'a`.
    #[inline]
    pub unsafe fn from_raw<'a>(ptr: *mut bindings::dma_resv) -> &'a Self {
        // SAFETY: `DmaResv` is a transparent wrapper and the caller promises validity.
        unsafe { &*ptr.cast() }
    }

    /// Returns the pointer to the C structure.
    #[inline]
    pub fn as_raw(&self) -> *mut bindings::dma_resv {
        self.inner.get()
    }

    /// Locks the reservation. Sleeps until it is free.
    ///
    /// Mirrors `dma_resv_lock()` without an acquire context.
    #[inline]
    pub fn lock(&self) -> Guard<'_> {
        // Without an acquire context the function cannot fail.
        // SAFETY: By the type invariant the reservation is valid.
        unsafe { bindings::dma_resv_lock(self.as_raw(), ptr::null_mut()) };

        // INVARIANT: The lock was just taken.
        Guard {
            resv: self,
            _not_send: NotThreadSafe,
        }
    }

    /// Locks the reservation or gives up when a signal arrives.
    ///
    /// Mirrors `dma_resv_lock_interruptible()`.
    ///
    /// # Errors
    ///
    /// `EINTR` if a signal is pending.
    #[inline]
    pub fn lock_interruptible(&self) -> Result<Guard<'_>> {
        // SAFETY: By the type invariant the reservation is valid.
        to_result(unsafe {
            bindings::dma_resv_lock_interruptible(self.as_raw(), ptr::null_mut())
        })?;

        // INVARIANT: The lock was just taken.
        Ok(Guard {
            resv: self,
            _not_send: NotThreadSafe,
        })
    }

    /// Locks the reservation if it is free. Never sleeps.
    ///
    /// Mirrors `dma_resv_trylock()`.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        // SAFETY: By the type invariant the reservation is valid.
        if unsafe { bindings::dma_resv_trylock(self.as_raw()) } {
            // INVARIANT: The lock was just taken.
            Some(Guard {
                resv: self,
                _not_send: NotThreadSafe,
            })
        } else {
            None
        }
    }

    /// Returns whether the lock and that of `own` are held by the same task with one acquire
    /// context.
    ///
    /// The lock of `own` must be held by the current task: then the answer does not change until it
    /// unlocks one of them. Mirrors `dma_resv_locking_ctx()`.
    pub(crate) fn is_locked_with(&self, own: &Self) -> bool {
        // SAFETY: By the type invariant the reservations are valid. The contexts are compared only.
        let (context, own) = unsafe {
            (
                bindings::dma_resv_locking_ctx(self.as_raw()),
                bindings::dma_resv_locking_ctx(own.as_raw()),
            )
        };

        !own.is_null() && context == own
    }

    /// Waits for the fences of `usage` with or without the lock held.
    ///
    /// Sleeps. Mirrors `dma_resv_wait_timeout()` without a limit. With `interruptible` a signal
    /// ends the wait.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal arrived.
    pub fn wait(&self, usage: Usage, interruptible: bool) -> Result {
        self.wait_timeout(usage, interruptible, Jiffies::MAX)
            .map(|_| ())
    }

    /// Waits for the fences of `usage` with or without the lock held, for `timeout` at most.
    /// Returns the rest of the timeout, at least 1.
    ///
    /// A timeout of 0 does not wait. A timeout of `MAX_SCHEDULE_TIMEOUT` or more has no end.
    ///
    /// Sleeps. Mirrors `dma_resv_wait_timeout()`.
    ///
    /// # Errors
    ///
    /// - `ETIME` if not all have signalled in time.
    /// - `ERESTARTSYS` if a signal arrived.
    pub fn wait_timeout(
        &self,
        usage: Usage,
        interruptible: bool,
        timeout: Jiffies,
    ) -> Result<Jiffies> {
        // CAST: `MAX_SCHEDULE_TIMEOUT` is `LONG_MAX` and fits the type.
        let timeout = timeout.min(c_long::MAX as Jiffies);

        // SAFETY: By the type invariant the reservation is valid.
        wait_result(unsafe {
            bindings::dma_resv_wait_timeout(self.as_raw(), usage.as_raw(), interruptible, timeout)
        })
    }

    /// Returns a fence that signals once all unsignalled fences of `usage` have signalled, or
    /// [`None`] if there are none. Needs no lock. The fence must not be added to a reservation.
    ///
    /// May sleep. Mirrors `dma_resv_get_singleton()`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn singleton(&self, usage: Usage) -> Result<Option<ARef<AnyFence>>> {
        let mut fence = ptr::null_mut();

        // SAFETY: By the type invariant the reservation is valid.
        to_result(unsafe {
            bindings::dma_resv_get_singleton(self.as_raw(), usage.as_raw(), &mut fence)
        })?;
        // SAFETY: A fence returned here is valid and comes with a reference.
        Ok(NonNull::new(fence).map(|fence| unsafe { ARef::from_raw(fence.cast()) }))
    }

    /// Returns whether all fences of `usage` have signalled. Never sleeps.
    ///
    /// Mirrors `dma_resv_test_signaled()`.
    pub fn test_signaled(&self, usage: Usage) -> bool {
        // SAFETY: By the type invariant the reservation is valid.
        unsafe { bindings::dma_resv_test_signaled(self.as_raw(), usage.as_raw()) }
    }
}

#[pinned_drop]
impl PinnedDrop for DmaResv {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The reservation was initialized in `new()`. No code can use it any more because
        // every user borrows it.
        unsafe { bindings::dma_resv_fini(self.as_raw()) };
    }
}

/// The proof that a reservation is held. Dropping it unlocks.
///
/// # Invariants
///
/// The current task holds the lock of `resv`.
#[must_use = "the reservation is unlocked when the guard is dropped"]
pub struct Guard<'a> {
    resv: &'a DmaResv,
    _not_send: NotThreadSafe,
}

impl<'a> Guard<'a> {
    /// Returns the reservation held by this guard.
    #[inline]
    pub fn resv(&self) -> &'a DmaResv {
        self.resv
    }

    /// Returns whether this guard is the proof for `resv`.
    ///
    /// Several objects may share one reservation, so the pointers are compared.
    #[inline]
    pub fn is_for(&self, resv: &DmaResv) -> bool {
        ptr::eq(self.resv, resv)
    }

    /// Returns the view for adding fences.
    #[inline]
    pub fn locked(&mut self) -> LockedResv<'_> {
        // SAFETY: By the type invariant the lock is held as long as `self` is borrowed. This borrow
        // also excludes every other view of this reservation.
        unsafe { LockedResv::from_raw(self.resv.as_raw()) }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariant the lock is held by this task.
        unsafe { bindings::dma_resv_unlock(self.resv.as_raw()) };
    }
}

/// The view of a reservation held by the current task.
///
/// # Invariants
///
/// - The current task holds the lock of `resv` for `'a`.
/// - `slots` slots are reserved and used neither by another view nor by a [`FenceSlot`].
pub struct LockedResv<'a> {
    resv: &'a DmaResv,
    slots: u32,
    _not_send: NotThreadSafe,
}

impl<'a> LockedResv<'a> {
    /// Creates a view of a lock taken by other means than [`DmaResv::lock`].
    ///
    /// This is for callbacks called by C code with the lock held.
    ///
    /// # Safety
    ///
    /// - `ptr` must point to a valid `struct dma_resv` whose lock the current task holds for `'a`.
    /// - During `'a` fences must be added to this reservation by this view only. Other code may add
    ///   fences while it has the view by mutable reference if it drops the slots returned by
    ///   [`Self::slots`], because it may have used them up.
    #[inline]
    pub unsafe fn from_raw(ptr: *mut bindings::dma_resv) -> Self {
        // INVARIANT: The lock is held as promised by the caller. No slot is claimed.
        Self {
            // SAFETY: The reservation is valid as promised by the caller.
            resv: unsafe { DmaResv::from_raw(ptr) },
            slots: 0,
            _not_send: NotThreadSafe,
        }
    }

    /// Returns the held reservation.
    #[inline]
    pub fn resv(&self) -> &'a DmaResv {
        self.resv
    }

    /// Returns whether this is a view of `resv`.
    #[inline]
    pub fn is_for(&self, resv: &DmaResv) -> bool {
        ptr::eq(self.resv, resv)
    }

    /// Returns the fences of `usage` including signalled ones.
    ///
    /// Mirrors `dma_resv_for_each_fence()`.
    #[inline]
    pub fn fences(&self, usage: Usage) -> Fences<'_> {
        Fences {
            cursor: bindings::dma_resv_iter {
                obj: self.resv.as_raw(),
                usage: usage.as_raw(),
                ..pin_init::zeroed()
            },
            started: false,
            _view: PhantomData,
        }
    }

    /// Replaces each fence of the context `context` by `fence` with the usage `usage`.
    ///
    /// Mirrors `dma_resv_replace_fences()`.
    ///
    /// # Safety
    ///
    /// `fence` must not signal before the replaced fences.
    pub(crate) unsafe fn replace_fences(&mut self, context: u64, fence: &Fence, usage: Usage) {
        // SAFETY: By the type invariant the reservation is valid and its lock held. It takes
        // references of its own. By the safety requirements no wait ends too early.
        unsafe {
            bindings::dma_resv_replace_fences(
                self.resv.as_raw(),
                context,
                fence.as_raw(),
                usage.as_raw(),
            )
        };
    }

    /// Makes room for `count` fences and keeps it for [`Self::slots`].
    pub(crate) fn prepare(&mut self, count: u32) -> Result {
        if count > MAX_SLOTS {
            return Err(EINVAL);
        }

        if count > self.slots {
            // SAFETY: By the type invariant the reservation is valid and its lock is held.
            to_result(unsafe { bindings::dma_resv_reserve_fences(self.resv.as_raw(), count) })?;
            // INVARIANT: There is room for `count` fences, and all of it is claimed here.
            self.slots = count;
        }

        Ok(())
    }

    /// Makes room for `count` fences. Unused slots can be reserved again.
    ///
    /// May sleep. Mirrors `dma_resv_reserve_fences()`. If [`Self::slots`] would return as many, the
    /// C function is not called, so this cannot fail.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `count` is above 4096.
    /// - `ENOMEM` if there is no memory.
    pub fn reserve_fences(&mut self, count: u32) -> Result<FenceSlots<'_>> {
        self.prepare(count)?;
        // INVARIANT: `count` slots pass from this view to the new one.
        self.slots -= count;

        Ok(FenceSlots {
            resv: self.resv,
            left: count,
            _view: PhantomData,
            _not_send: NotThreadSafe,
        })
    }

    /// Returns the slots reserved when the view was created (as an execution context does) and not
    /// taken since.
    #[inline]
    pub fn slots(&mut self) -> FenceSlots<'_> {
        // INVARIANT: All slots pass from this view to the new one.
        FenceSlots {
            resv: self.resv,
            left: core::mem::take(&mut self.slots),
            _view: PhantomData,
            _not_send: NotThreadSafe,
        }
    }
}

/// An iterator over the fences of a held reservation.
pub struct Fences<'a> {
    cursor: bindings::dma_resv_iter,
    started: bool,
    _view: PhantomData<&'a LockedResv<'a>>,
}

impl<'a> Iterator for Fences<'a> {
    type Item = &'a Fence;

    fn next(&mut self) -> Option<&'a Fence> {
        // SAFETY: The reservation is valid and its lock is held for `'a`. The functions take no
        // reference to a fence.
        let fence = unsafe {
            if self.started {
                bindings::dma_resv_iter_next(&mut self.cursor)
            } else {
                self.started = true;
                bindings::dma_resv_iter_first(&mut self.cursor)
            }
        };

        if fence.is_null() {
            return None;
        }
        // SAFETY: Fences are only removed from a reservation with its lock held, by a task adding a
        // fence. This needs the view, and the view is borrowed for `'a`.
        Some(unsafe { Fence::from_raw(fence) })
    }
}

/// Room for fences: an iterator over slots.
///
/// It borrows the view that it comes from, so that no slots are reserved twice:
/// `dma_resv_reserve_fences()` does not add to the slots reserved before.
///
/// # Invariants
///
/// The current task holds the lock of `resv` for `'a`. `left` slots are reserved and not used by
/// anything else.
pub struct FenceSlots<'a> {
    resv: &'a DmaResv,
    left: u32,
    _view: PhantomData<&'a mut ()>,
    _not_send: NotThreadSafe,
}

impl<'a> Iterator for FenceSlots<'a> {
    type Item = FenceSlot<'a>;

    #[inline]
    fn next(&mut self) -> Option<FenceSlot<'a>> {
        // INVARIANT: A slot passes from `self` to the new value.
        self.left = self.left.checked_sub(1)?;

        Some(FenceSlot {
            resv: self.resv,
            _not_send: NotThreadSafe,
        })
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        // CAST: There are 4096 slots at most.
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for FenceSlots<'_> {}

/// Room for one fence.
///
/// # Invariants
///
/// The current task holds the lock of `resv` for `'a`. A slot is reserved and not used by anything
/// else.
#[must_use = "no fence is added unless one is given"]
pub struct FenceSlot<'a> {
    resv: &'a DmaResv,
    _not_send: NotThreadSafe,
}

impl FenceSlot<'_> {
    /// Adds a fence and uses up the slot.
    ///
    /// The fence replaces an earlier one of the same context if that has the same or a weaker
    /// usage. The code signalling it is in a
    /// [`SignallingSection`](crate::dma_buf::fence::SignallingSection) from here on. Each part of
    /// an [`AnyFence`](crate::dma_buf::fence::AnyFence) is added to a slot of its own.
    ///
    /// Does not sleep. Mirrors `dma_resv_add_fence()`.
    #[inline]
    pub fn add_fence(self, fence: &Fence, usage: Usage) {
        // SAFETY: By the type invariant the reservation is valid, its lock is held and there is
        // room. The reservation takes a reference of its own.
        unsafe { bindings::dma_resv_add_fence(self.resv.as_raw(), fence.as_raw(), usage.as_raw()) };
    }
}

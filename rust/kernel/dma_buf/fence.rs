// SPDX-License-Identifier: GPL-2.0

//! Fences.
//!
//! A fence stands for unfinished work of a device. It is signalled exactly once, with or without an
//! error. A fence has two sides:
//!
//! - [`Fence`] is shared. Its holders can wait for it, read its state or have a function called
//!   when it signals ([`FenceCallbackRegistration`]). An [`AnyFence`] may also be a container of
//!   fences, such as one passed by userspace.
//! - [`DriverFence`] belongs to the driver doing the work. There is one per fence and it signals
//!   the fence. Dropping it signals too, so no waiter is left when work is given up.
//!
//! Fences are created on a [`FenceContext`], a line of work whose fences signal in the order of
//! their creation. This takes two steps: [`FenceContext::new_fence_allocation`] allocates the
//! memory and may fail; [`FenceAllocation::new_fence`] cannot fail.
//!
//! # Signalling
//!
//! Other tasks wait for fences while they hold reservations and while they reclaim memory. So the
//! code between the publication of a fence and its signal must neither take a reservation nor
//! allocate memory in a way that can wait. [`SignallingSection`] marks this code for lockdep.
//!
//! # Lifetime
//!
//! A fence may be in use long after its driver is gone. Therefore no part of a fence belongs to the
//! driver: the memory, the names and the table of operations belong to the kernel. The core frees
//! the memory. The driver's data of a fence is kept in the [`DriverFence`] and dropped with it.
//!
//! # Locking
//!
//! Each fence has a spinlock of its own, which is held while callbacks run. The spinlock of a
//! context is held while a fence is created and when work ends, but not while a fence is signalled.
//! Both are taken with interrupts disabled.
//!
//! # Examples
//!
//! A worker signals the end of a job.
//!
//! ```
//! use kernel::{
//!     dma_buf::fence::{
//!         AnyFence,
//!         DriverFence,
//!         Fence,
//!         FenceCallback,
//!         FenceCallbackRegistration,
//!         FenceContext,
//!         FenceContextOps,
//!         SignallingSection, //
//!     },
//!     impl_has_work,
//!     new_mutex,
//!     new_work,
//!     prelude::*,
//!     sync::{
//!         aref::ARef,
//!         atomic::{
//!             Atomic,
//!             Relaxed, //
//!         },
//!         Arc,
//!         Mutex, //
//!     },
//!     workqueue::{
//!         self,
//!         Work,
//!         WorkItem, //
//!     }, //
//! };
//!
//! struct Copies;
//!
//! impl FenceContextOps for Copies {
//!     const DRIVER_NAME: &'static CStr = c"copier";
//!
//!     /// How many bytes are copied.
//!     type Data = usize;
//! }
//!
//! #[pin_data]
//! struct Job {
//!     #[pin]
//!     fence: Mutex<Option<DriverFence<Copies>>>,
//!     #[pin]
//!     work: Work<Job>,
//! }
//!
//! impl_has_work! {
//!     impl HasWork<Self> for Job { self.work }
//! }
//!
//! impl WorkItem for Job {
//!     type Pointer = Arc<Job>;
//!
//!     fn run(job: Arc<Job>) {
//!         let _section = SignallingSection::begin();
//!
//!         let fence = job.fence.lock().take();
//!         if let Some(fence) = fence {
//!             assert_eq!(*fence.data(), 4096);
//!             fence.signal(Ok(()));
//!         }
//!     }
//! }
//!
//! /// Counts how often it is called.
//! struct Count(Atomic<u32>);
//!
//! #[vtable]
//! impl FenceCallback for Count {
//!     fn called(&self, fence: &AnyFence) {
//!         assert!(fence.is_signaled());
//!         self.0.fetch_add(1, Relaxed);
//!     }
//! }
//!
//! let context = FenceContext::<Copies>::new(c"copies")?;
//! let driver_fence = context.new_fence_allocation(4096)?.new_fence();
//! let fence: ARef<Fence> = driver_fence.fence().into();
//! let seen = KBox::pin_init(
//!     FenceCallbackRegistration::new(fence.clone(), Count(Atomic::new(0))),
//!     GFP_KERNEL,
//! )?;
//!
//! // Nothing happens before the job is queued.
//! assert!(!fence.is_signaled());
//! assert_eq!(fence.status(), None);
//! assert_eq!(fence.wait_timeout(false, 1), Err(ETIME));
//! assert_eq!(seen.callback().0.load(Relaxed), 0);
//!
//! let job = Arc::pin_init(
//!     pin_init!(Job {
//!         fence <- new_mutex!(Some(driver_fence)),
//!         work <- new_work!("Job::work"),
//!     }),
//!     GFP_KERNEL,
//! )?;
//! assert!(workqueue::system_highpri().enqueue(job).is_ok());
//!
//! fence.wait(true)?;
//! assert!(fence.is_signaled());
//! assert_eq!(fence.status(), Some(Ok(())));
//! assert_eq!(seen.callback().0.load(Relaxed), 1);
//!
//! // It is too late for another callback.
//! let late = KBox::pin_init(
//!     FenceCallbackRegistration::new(fence.clone(), Count(Atomic::new(0))),
//!     GFP_KERNEL,
//! );
//! assert_eq!(late.err(), Some(ENOENT));
//!
//! // Work that is given up signals as well.
//! let driver_fence = context.new_fence_allocation(0)?.new_fence();
//! let fence: ARef<Fence> = driver_fence.fence().into();
//! drop(driver_fence);
//! assert_eq!(fence.status(), Some(Err(ECANCELED)));
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/dma-fence.h`](srctree/include/linux/dma-fence.h)

mod callback;
mod context;
mod parts;
mod signalling;
mod timeline;

pub use self::{
    callback::{
        FenceCallback,
        FenceCallbackRegistration, //
    },
    context::{
        DriverFence,
        FenceAllocation,
        FenceContext,
        FenceContextOps,
        FenceGroup, //
    },
    parts::Parts,
    signalling::SignallingSection, //
};

use crate::{
    bindings,
    error::to_result,
    prelude::*,
    sync::aref::{
        ARef,
        AlwaysRefCounted, //
    },
    time::Jiffies,
    types::Opaque, //
};
use core::{
    ops::Deref,
    ptr::NonNull, //
};

/// A fence or a container of several: a chain (`struct dma_fence_chain`) or an array (`struct
/// dma_fence_array`).
///
/// Userspace passes such fences. The kernel can wait for the whole container, pass it on, or take
/// it apart for a reservation, which takes fences one by one
/// ([`FenceSlot::add_fence`](crate::dma_resv::FenceSlot::add_fence)). A [`Fence`] can be used in
/// place of an `AnyFence`.
///
/// # Invariants
///
/// `self.0` is an initialized `struct dma_fence`. Every [`ARef`] to it owns a reference.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::fence::{
///         AnyFence,
///         FenceContext,
///         FenceContextOps, //
///     },
///     prelude::*,
///     sync::aref::ARef, //
/// };
///
/// struct Ring;
///
/// impl FenceContextOps for Ring {
///     const DRIVER_NAME: &'static CStr = c"driver";
///     type Data = ();
/// }
///
/// let job = FenceContext::<Ring>::new(c"ring")?.new_fence_allocation(())?.new_fence();
/// let any: ARef<AnyFence> = job.fence().into();
///
/// // One that is no container is its only part.
/// assert!(any.parts().map(|part| part.seqno()).eq([job.fence().seqno()]));
/// assert!(!any.is_signaled());
/// job.signal(Ok(()));
/// assert!(any.is_signaled());
/// any.wait(true)?;
/// # Ok::<(), Error>(())
/// ```
#[repr(transparent)]
pub struct AnyFence(Opaque<bindings::dma_fence>);

// SAFETY: A fence may be used and released from any task.
unsafe impl Send for AnyFence {}

// SAFETY: The C side synchronizes all methods taking `&self`.
unsafe impl Sync for AnyFence {}

// SAFETY: A `struct dma_fence` is reference counted.
unsafe impl AlwaysRefCounted for AnyFence {
    fn inc_ref(&self) {
        // SAFETY: A shared reference implies a nonzero reference count.
        unsafe { bindings::dma_fence_get(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller owns the reference dropped here.
        unsafe { bindings::dma_fence_put(obj.cast().as_ptr()) };
    }
}

impl AnyFence {
    /// Turns a pointer to a `struct dma_fence` into a reference.
    ///
    /// # Safety
    ///
    /// `ptr` must point to an initialized `struct dma_fence` whose reference count does not drop to
    /// zero during `'a`.
    #[inline]
    pub unsafe fn from_raw<'a>(ptr: *mut bindings::dma_fence) -> &'a Self {
        // SAFETY: `AnyFence` is a transparent wrapper and the caller promises validity.
        unsafe { &*ptr.cast() }
    }

    /// Takes over a reference to a fence returned by C code.
    ///
    /// # Safety
    ///
    /// `ptr` must be an initialized `struct dma_fence` and come with a reference.
    #[inline]
    pub unsafe fn from_owned(ptr: NonNull<bindings::dma_fence>) -> ARef<Self> {
        // SAFETY: As promised by the caller.
        unsafe { ARef::from_raw(ptr.cast()) }
    }

    /// Returns the pointer to the C structure.
    #[inline]
    pub fn as_raw(&self) -> *mut bindings::dma_fence {
        self.0.get()
    }

    /// Returns the number of the context of the fence.
    ///
    /// May be called from any context.
    #[inline]
    pub fn context(&self) -> u64 {
        // SAFETY: By the type invariant the fence is initialized; its context never changes.
        unsafe { (*self.as_raw()).context }
    }

    /// Returns the number of the fence in its context.
    ///
    /// May be called from any context.
    #[inline]
    pub fn seqno(&self) -> u64 {
        // SAFETY: By the type invariant the fence is initialized; its number never changes.
        unsafe { (*self.as_raw()).seqno }
    }

    /// Returns whether the fence has signalled. A container has signalled once all of its fences
    /// have.
    ///
    /// May be called from any context. Mirrors `dma_fence_is_signaled()`.
    #[inline]
    pub fn is_signaled(&self) -> bool {
        // SAFETY: By the type invariant the fence is initialized.
        unsafe { bindings::dma_fence_is_signaled(self.as_raw()) }
    }

    /// Returns the result of the work, or nothing if the fence has not signalled yet. A chain does
    /// not report the errors of its parts.
    ///
    /// May be called from any context but a callback of this fence, because it takes the lock of
    /// the fence. Mirrors `dma_fence_get_status()`.
    pub fn status(&self) -> Option<Result> {
        // SAFETY: By the type invariant the fence is initialized.
        match unsafe { bindings::dma_fence_get_status(self.as_raw()) } {
            0 => None,
            status => Some(to_result(status)),
        }
    }

    /// Waits until the fence signals. With `interruptible` a signal to the task ends the wait.
    ///
    /// The result of the wait is not that of the work; see [`Self::status`].
    ///
    /// Sleeps, so it must not be called in a [`SignallingSection`]. Mirrors `dma_fence_wait()`.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal to the task arrived.
    #[inline]
    pub fn wait(&self, interruptible: bool) -> Result {
        self.wait_timeout(interruptible, Jiffies::MAX).map(|_| ())
    }

    /// Waits until the fence signals or the timeout is over. Returns the rest of the timeout, at
    /// least 1.
    ///
    /// A timeout of 0 does not wait. A timeout of `MAX_SCHEDULE_TIMEOUT` or more has no end.
    ///
    /// Sleeps, so it must not be called in a [`SignallingSection`]. Mirrors
    /// `dma_fence_wait_timeout()`.
    ///
    /// # Errors
    ///
    /// - `ETIME` if the fence has not signalled in time.
    /// - `ERESTARTSYS` if a signal to the task arrived.
    pub fn wait_timeout(&self, interruptible: bool, timeout: Jiffies) -> Result<Jiffies> {
        // CAST: `MAX_SCHEDULE_TIMEOUT` is `LONG_MAX` and fits both types.
        let timeout = timeout.min(c_long::MAX as Jiffies) as c_long;

        // SAFETY: By the type invariant the fence is initialized.
        wait_result(unsafe {
            bindings::dma_fence_wait_timeout(self.as_raw(), interruptible, timeout)
        })
    }

    /// Returns the fences in this fence. Signalled links of a chain behind the first one are left
    /// out.
    ///
    /// Mirrors `dma_fence_unwrap_for_each()`.
    pub fn parts(&self) -> Parts<'_> {
        Parts::of(self)
    }
}

/// A fence other than a container, `struct dma_fence`.
///
/// Fences of all drivers, in Rust and in C, are of this type. It dereferences to [`AnyFence`],
/// which has the methods.
///
/// # Invariants
///
/// `self.0` is no container.
#[repr(transparent)]
pub struct Fence(AnyFence);

// SAFETY: The references are those of the `AnyFence` and the type is a transparent wrapper of it.
unsafe impl AlwaysRefCounted for Fence {
    fn inc_ref(&self) {
        self.0.inc_ref();
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: As promised by the caller.
        unsafe { AnyFence::dec_ref(obj.cast()) };
    }
}

impl Fence {
    /// Turns a pointer to a `struct dma_fence` into a reference.
    ///
    /// # Safety
    ///
    /// `ptr` must point to an initialized `struct dma_fence` other than a container. Its reference
    /// count must not drop to zero during `'a`.
    #[inline]
    pub unsafe fn from_raw<'a>(ptr: *mut bindings::dma_fence) -> &'a Self {
        // SAFETY: `Fence` is a transparent wrapper and the caller promises validity.
        unsafe { &*ptr.cast() }
    }
}

impl Deref for Fence {
    type Target = AnyFence;

    #[inline]
    fn deref(&self) -> &AnyFence {
        &self.0
    }
}

impl From<ARef<Fence>> for ARef<AnyFence> {
    #[inline]
    fn from(fence: ARef<Fence>) -> Self {
        // SAFETY: A `Fence` is a transparent wrapper of an `AnyFence`. Its reference passes on.
        unsafe { ARef::from_raw(ARef::into_raw(fence).cast()) }
    }
}

impl From<&Fence> for ARef<AnyFence> {
    #[inline]
    fn from(fence: &Fence) -> Self {
        ARef::from(&fence.0)
    }
}

/// Converts the return value of the C functions waiting for fences.
pub(crate) fn wait_result(ret: c_long) -> Result<Jiffies> {
    match ret {
        // CAST: A negative result is an errno and fits an `int`.
        ..0 => Err(Error::from_errno(ret as i32)),
        0 => Err(ETIME),
        // CAST: The number is positive.
        _ => Ok(ret as Jiffies),
    }
}

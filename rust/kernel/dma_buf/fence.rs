// SPDX-License-Identifier: GPL-2.0

//! Fences.
//!
//! A fence stands for work that a device has yet to finish. It is signalled once, with or without an
//! error, and never again. A fence has two sides:
//!
//! - [`Fence`] is shared. Anybody who has one can wait for it, look at it, or have a function called
//!   when it signals ([`FenceCallbackRegistration`]). Where it may be a container of fences, as in
//!   what userspace passes, it is an [`AnyFence`].
//! - [`DriverFence`] belongs to the driver that does the work. There is one per fence, and it is
//!   what signals. Dropping it signals too, so that nobody waits for work that was given up.
//!
//! Fences are made on a [`FenceContext`], a line of work whose fences signal in the order in which
//! they were made. Making one takes two steps: [`FenceContext::new_fence_allocation`] has the
//! memory and may fail, [`FenceAllocation::new_fence`] cannot fail.
//!
//! # Signalling
//!
//! Others wait for fences while they hold reservations and while they reclaim memory. So the code
//! that runs between the publication of a fence and its signal must not take a reservation, nor
//! allocate memory in a way that can wait. [`SignallingSection`] tells lockdep which code that is.
//!
//! # Lifetime
//!
//! A fence may be in use long after the driver that made it is gone. Therefore nothing of a fence
//! belongs to the driver: the memory, the names and the table of operations are of the kernel, and
//! the core frees the memory by itself. What the driver attaches to a fence is kept in the
//! [`DriverFence`] and dropped with that.
//!
//! # Locking
//!
//! Each fence has a spinlock of its own, which is held while callbacks run. The spinlock of a
//! context is only held while a fence is made or work has ended, not while a fence is signalled.
//! Both are taken with interrupts disabled.
//!
//! # Examples
//!
//! A job whose end is signalled by a worker.
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
//!     },
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

use crate::{
    bindings,
    error::to_result,
    interrupt::local_interrupt_disable,
    module::this_module,
    new_spinlock_irq,
    prelude::*,
    sync::{
        aref::{
            ARef,
            AlwaysRefCounted, //
        },
        Arc,
        SpinLockIrq, //
    },
    time::Jiffies,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};
use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    mem::{
        ManuallyDrop,
        MaybeUninit, //
    },
    ops::Deref,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// How many bytes a name of a fence has at most, with the terminating NUL.
const NAME_SIZE: usize = 32;

type Name = [c_char; NAME_SIZE];

/// Copies a string to where it can stay for as long as the fence.
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

/// A fence, or a container of several: a chain or an array, `struct dma_fence_chain` or
/// `struct dma_fence_array`.
///
/// It is what userspace passes. One can wait for all of it, pass it on, or take it apart: a
/// reservation takes fences one by one
/// ([`FenceSlot::add_fence`](crate::dma_resv::FenceSlot::add_fence)). A [`Fence`] can be used
/// wherever one of these is asked for.
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

// SAFETY: All methods that take `&self` are synchronized by the C side.
unsafe impl Sync for AnyFence {}

// SAFETY: A `struct dma_fence` is reference counted.
unsafe impl AlwaysRefCounted for AnyFence {
    fn inc_ref(&self) {
        // SAFETY: The existence of a shared reference means that the reference count is not zero.
        unsafe { bindings::dma_fence_get(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller owns the reference that is dropped here.
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
        // SAFETY: `AnyFence` is a transparent wrapper, and the caller promises validity.
        unsafe { &*ptr.cast() }
    }

    /// Takes over a reference to a fence that C code has returned.
    ///
    /// # Safety
    ///
    /// `ptr` must be an initialized `struct dma_fence`, and come with a reference.
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

    /// Returns the number of the context that the fence was made on.
    ///
    /// May be called from any context.
    #[inline]
    pub fn context(&self) -> u64 {
        // SAFETY: By the type invariant the fence is initialized; its context never changes.
        unsafe { (*self.as_raw()).context }
    }

    /// Returns the place of the fence among those of its context.
    ///
    /// May be called from any context.
    #[inline]
    pub fn seqno(&self) -> u64 {
        // SAFETY: By the type invariant the fence is initialized; its number never changes.
        unsafe { (*self.as_raw()).seqno }
    }

    /// Tells whether the fence has signalled: of a container, all of it.
    ///
    /// May be called from any context. Mirrors `dma_fence_is_signaled()`.
    #[inline]
    pub fn is_signaled(&self) -> bool {
        // SAFETY: By the type invariant the fence is initialized.
        unsafe { bindings::dma_fence_is_signaled(self.as_raw()) }
    }

    /// Returns how the work ended, or nothing if the fence has not signalled yet. A chain does not
    /// tell of the errors of its parts.
    ///
    /// May be called from any context, but not from a callback of this fence, because it takes the
    /// lock of the fence. Mirrors `dma_fence_get_status()`.
    pub fn status(&self) -> Option<Result> {
        // SAFETY: By the type invariant the fence is initialized.
        match unsafe { bindings::dma_fence_get_status(self.as_raw()) } {
            0 => None,
            status => Some(to_result(status)),
        }
    }

    /// Waits until the fence signals. With `interruptible` a signal to the task ends the wait.
    ///
    /// How the work ended is not a result of the wait; see [`Self::status`].
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

    /// Waits until the fence signals, for `timeout` at most. Returns how much of it was left, and
    /// at least 1.
    ///
    /// A timeout of 0 does not wait. As large a one as `MAX_SCHEDULE_TIMEOUT` has no end.
    ///
    /// Sleeps, so it must not be called in a [`SignallingSection`]. Mirrors
    /// `dma_fence_wait_timeout()`.
    ///
    /// # Errors
    ///
    /// - `ETIME` if the fence has not signalled in time.
    /// - `ERESTARTSYS` if a signal to the task arrived.
    pub fn wait_timeout(&self, interruptible: bool, timeout: Jiffies) -> Result<Jiffies> {
        // CAST: `MAX_SCHEDULE_TIMEOUT` is `LONG_MAX`, which both types hold.
        let timeout = timeout.min(c_long::MAX as Jiffies) as c_long;

        // SAFETY: By the type invariant the fence is initialized.
        wait_result(unsafe {
            bindings::dma_fence_wait_timeout(self.as_raw(), interruptible, timeout)
        })
    }

    /// Returns the fences that it consists of. Of a chain, links behind the first one that have
    /// signalled are left out.
    ///
    /// Mirrors `dma_fence_unwrap_for_each()`.
    pub fn parts(&self) -> Parts<'_> {
        Parts {
            any: self,
            cursor: bindings::dma_fence_unwrap::default(),
            started: false,
        }
    }
}

/// A fence that is no container, `struct dma_fence`.
///
/// Fences of all drivers are of this type, whether they are written in Rust or in C. It
/// dereferences to [`AnyFence`], which has what can be done with it.
///
/// # Invariants
///
/// `self.0` is no container.
#[repr(transparent)]
pub struct Fence(AnyFence);

// SAFETY: The references are those of the `AnyFence`, and the type is a transparent wrapper of it.
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
    /// `ptr` must point to an initialized `struct dma_fence` whose reference count does not drop to
    /// zero during `'a`, and which is not a container.
    #[inline]
    pub unsafe fn from_raw<'a>(ptr: *mut bindings::dma_fence) -> &'a Self {
        // SAFETY: `Fence` is a transparent wrapper, and the caller promises validity.
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
        // SAFETY: A `Fence` is a transparent wrapper of an `AnyFence`, whose reference passes on.
        unsafe { ARef::from_raw(ARef::into_raw(fence).cast()) }
    }
}

impl From<&Fence> for ARef<AnyFence> {
    #[inline]
    fn from(fence: &Fence) -> Self {
        ARef::from(&fence.0)
    }
}

/// An iterator over the fences of an [`AnyFence`].
pub struct Parts<'a> {
    any: &'a AnyFence,
    /// Owns a reference to `chain`, once it was started and until it has come to the end.
    cursor: bindings::dma_fence_unwrap,
    started: bool,
}

impl Iterator for Parts<'_> {
    type Item = ARef<Fence>;

    fn next(&mut self) -> Option<ARef<Fence>> {
        // SAFETY: The fence is valid, and so is the cursor, once it was started. One that has come to
        // its end has no chain, and stays there.
        let part = unsafe {
            if !self.started {
                self.started = true;
                bindings::dma_fence_unwrap_first(self.any.as_raw(), &mut self.cursor)
            } else if self.cursor.chain.is_null() {
                ptr::null_mut()
            } else {
                bindings::dma_fence_unwrap_next(&mut self.cursor)
            }
        };
        let part = NonNull::new(part)?;

        // SAFETY: The cursor keeps the fence until it is moved on; it is no container, as those are
        // what is taken apart.
        Some(unsafe { Fence::from_raw(part.as_ptr()) }.into())
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        // SAFETY: The cursor has a reference to the chain, if there is one.
        unsafe { bindings::dma_fence_put(self.cursor.chain) };
    }
}

/// Turns what the functions of C that wait for fences return into a result.
pub(crate) fn wait_result(ret: c_long) -> Result<Jiffies> {
    match ret {
        // CAST: A negative result is an errno, which fits an `int`.
        ..0 => Err(Error::from_errno(ret as i32)),
        0 => Err(ETIME),
        // CAST: The number is positive.
        _ => Ok(ret as Jiffies),
    }
}

/// The memory of a fence that was made here.
///
/// All that the operations of the fence touch is in it, so it is complete as long as the fence is.
#[repr(C)]
struct Memory {
    /// Must be first: the core frees the memory by the address of the fence.
    fence: Opaque<bindings::dma_fence>,
    driver: Name,
    timeline: Name,
    /// The next fence of the timeline, while this one has not signalled. Guarded by the lock of the
    /// timeline, like `is_done`.
    next: UnsafeCell<*const Memory>,
    /// Whether the work is done. The fence signals when that before it is done as well.
    is_done: UnsafeCell<bool>,
}

/// The operations of all fences that are made here, for whichever driver.
///
/// The table and its functions are in the kernel crate, which is never unloaded. Without `wait` and
/// `release` the core drops the table when the fence signals, and frees the fence with
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

/// What the fences of a context have in common.
///
/// Not generic, so that the code, the lock class and its name stay in the kernel crate.
#[pin_data]
struct Timeline {
    context: u64,
    driver: Name,
    timeline: Name,
    #[pin]
    line: SpinLockIrq<Line>,
}

/// The fences of a timeline that have not signalled.
///
/// # Invariants
///
/// `first` is null or the oldest of them, `last` the latest, and each leads to the one after it.
/// Somebody owns a reference to each: its [`DriverFence`], or, once the work is done, the line.
struct Line {
    /// The number of the latest fence. The lock is held until the fence is initialized, so the
    /// order of the numbers is that in which the fences come to be.
    seqno: u64,
    first: *const Memory,
    last: *const Memory,
    /// Whether somebody signals the fences whose turn it is.
    busy: bool,
}

// SAFETY: What the pointers lead to is guarded by the lock that a `Line` is in.
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
        // INVARIANT: The fence is the latest, and the one before it leads to it.
        if self.last.is_null() {
            self.first = memory;
        } else {
            // SAFETY: By the type invariant the fence is valid; the line is what guards the cell.
            unsafe { *(*self.last).next.get() = memory };
        }
        self.last = memory;
    }

    /// Removes the oldest fence, if its work is done.
    fn take_done(&mut self) -> Option<NonNull<Memory>> {
        let first = NonNull::new(self.first.cast_mut())?;

        // INVARIANT: The one after it is the oldest now.
        // SAFETY: By the type invariant the fence is valid; the line is what guards the cells.
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
    fn new(driver: &CStr, timeline: &CStr) -> Result<Arc<Self>> {
        let driver = name(driver)?;
        let timeline = name(timeline)?;

        Arc::pin_init(
            pin_init!(Self {
                // SAFETY: The function has no requirements.
                context: unsafe { bindings::dma_fence_context_alloc(1) },
                driver,
                timeline,
                line <- new_spinlock_irq!(Line::new(), "dma_buf::fence::Timeline"),
            }),
            GFP_KERNEL,
        )
    }

    /// Makes the next fence.
    #[inline(never)]
    fn new_fence(&self, memory: KBox<MaybeUninit<Memory>>) -> ARef<Fence> {
        // The names come first: initialization has a tracepoint that reads them.
        let memory = KBox::into_raw(KBox::write(
            memory,
            Memory {
                fence: Opaque::uninit(),
                driver: self.driver,
                timeline: self.timeline,
                next: UnsafeCell::new(ptr::null()),
                is_done: UnsafeCell::new(false),
            },
        ));
        let fence: *mut bindings::dma_fence = memory.cast();

        let mut line = self.line.lock();
        // OVERFLOW: Nobody makes 2^64 fences.
        line.seqno += 1;

        // SAFETY:
        // - `fence` is at the start of memory that was allocated with `kmalloc()` and is owned by
        //   nobody else, which is what `dma_fence_free()` needs.
        // - `OPS` is static, and its functions get what they need, a `Memory`.
        // - Without an external lock the fence uses the one inside of it.
        unsafe {
            bindings::dma_fence_init64(fence, &OPS, ptr::null_mut(), self.context, line.seqno);
            // The reference below is kept until the fence has signalled.
            line.push(memory);
        }
        drop(line);

        // INVARIANT: The fence was just initialized.
        // SAFETY: `fence` is not null, and the `ARef` takes over its first reference.
        unsafe { ARef::from_raw(NonNull::new_unchecked(fence.cast())) }
    }

    /// Takes note that the work of a fence is done, and signals it when that before it is done.
    ///
    /// # Safety
    ///
    /// The fence must have been made by [`Self::new_fence`] of this timeline, and this must not have
    /// been called for it before. The reference passes to the line.
    #[inline(never)]
    unsafe fn finish(&self, fence: ARef<Fence>) {
        let memory: NonNull<Memory> = ARef::into_raw(fence).cast();
        // Others leave their fences to who is busy, which then must not be kept from its processor.
        let _irqs = local_interrupt_disable();
        let mut line = self.line.lock();

        // SAFETY: The fence is at the start of a `Memory`, and the line is locked.
        unsafe { *memory.as_ref().is_done.get() = true };
        // Who is busy with it sees the fence, and signals it in its turn.
        if line.busy {
            return;
        }
        line.busy = true;
        while let Some(done) = line.take_done() {
            drop(line);
            // SAFETY: The fence has not signalled. Its reference belonged to the line, and does to
            // this function since.
            unsafe {
                bindings::dma_fence_signal(done.as_ptr().cast());
                bindings::dma_fence_put(done.as_ptr().cast());
            }
            line = self.line.lock();
        }
        line.busy = false;
    }
}

/// What a driver says about its fences.
pub trait FenceContextOps: 'static {
    /// The name of the driver, of 31 bytes at most.
    const DRIVER_NAME: &'static CStr;

    /// What the driver attaches to a fence until its work is done.
    type Data;
}

/// A line of work, whose fences are signalled in the order in which they are made.
///
/// A reservation keeps only the latest fence of a context: who sees it signalled takes the work
/// before it for done. So a fence whose work is done before that of an earlier one signals when the
/// earlier one does; fences of work that may end in any order belong to several contexts. A
/// [`DriverFence`] that is leaked keeps all later fences of its context from signalling.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::fence::{
///         FenceContext,
///         FenceContextOps, //
///     },
///     prelude::*, //
/// };
///
/// struct Ring;
///
/// impl FenceContextOps for Ring {
///     const DRIVER_NAME: &'static CStr = c"driver";
///     type Data = ();
/// }
///
/// let ring = FenceContext::<Ring>::new(c"ring 0")?;
/// let other = FenceContext::<Ring>::new(c"ring 1")?;
/// assert_ne!(ring.id(), other.id());
///
/// // Fences are numbered when they are made, not when their memory is allocated.
/// let first = ring.new_fence_allocation(())?;
/// let second = ring.new_fence_allocation(())?;
/// let second = second.new_fence();
/// let first = first.new_fence();
/// assert_eq!(second.fence().seqno(), 1);
/// assert_eq!(first.fence().seqno(), 2);
/// assert_eq!(first.fence().context(), ring.id());
///
/// let long = c"a name that is too long for a fence";
/// assert_eq!(FenceContext::<Ring>::new(long).err(), Some(ENAMETOOLONG));
/// # Ok::<(), Error>(())
/// ```
pub struct FenceContext<T: FenceContextOps> {
    timeline: Arc<Timeline>,
    _ops: PhantomData<fn() -> T>,
}

impl<T: FenceContextOps> FenceContext<T> {
    /// Makes a context, with the name of what it stands for, such as a ring.
    ///
    /// Both names are copied. May sleep. Mirrors `dma_fence_context_alloc()`.
    ///
    /// # Errors
    ///
    /// - `ENAMETOOLONG` if a name has more than 31 bytes.
    /// - `ENOMEM` if there is no memory.
    pub fn new(timeline: &CStr) -> Result<Self> {
        Ok(Self {
            timeline: Timeline::new(T::DRIVER_NAME, timeline)?,
            _ops: PhantomData,
        })
    }

    /// Returns the number of the context, which no other context has.
    #[inline]
    pub fn id(&self) -> u64 {
        self.timeline.context
    }

    /// Allocates what a fence needs, and attaches `data` to it.
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory.
    pub fn new_fence_allocation(&self, data: T::Data) -> Result<FenceAllocation<T>> {
        Ok(FenceAllocation {
            data,
            memory: KBox::new_uninit(GFP_KERNEL)?,
            timeline: self.timeline.clone(),
        })
    }
}

/// A fence that needs nothing more to be made.
///
/// It has no number yet, and nobody can wait for it.
#[must_use = "no fence is made if the allocation is dropped"]
pub struct FenceAllocation<T: FenceContextOps> {
    data: T::Data,
    memory: KBox<MaybeUninit<Memory>>,
    timeline: Arc<Timeline>,
}

impl<T: FenceContextOps> FenceAllocation<T> {
    /// Makes the fence, which gets the next number of its context.
    ///
    /// May be called from any context, and cannot fail. A driver that has to hand work to the
    /// device in the order of the fences calls this under the lock of its queue.
    ///
    /// Mirrors `dma_fence_init64()`.
    pub fn new_fence(self) -> DriverFence<T> {
        DriverFence {
            data: self.data,
            fence: ManuallyDrop::new(self.timeline.new_fence(self.memory)),
            timeline: self.timeline,
            result: Err(ECANCELED),
        }
    }
}

/// The side of a fence that signals.
///
/// A fence that is dropped without [`Self::signal`] is signalled with `ECANCELED`.
///
/// # Invariants
///
/// `fence` has not signalled; nothing but this signals it.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::fence::{
///         Fence,
///         FenceContext,
///         FenceContextOps, //
///     },
///     prelude::*,
///     sync::{
///         aref::ARef,
///         atomic::{
///             Atomic,
///             Relaxed, //
///         },
///         Arc, //
///     },
/// };
///
/// /// What the device works on. Tells when it is given back.
/// struct Memory(Arc<Atomic<bool>>);
///
/// impl Drop for Memory {
///     fn drop(&mut self) {
///         self.0.store(true, Relaxed);
///     }
/// }
///
/// struct Ring;
///
/// impl FenceContextOps for Ring {
///     const DRIVER_NAME: &'static CStr = c"driver";
///     type Data = Memory;
/// }
///
/// let given_back = Arc::new(Atomic::new(false), GFP_KERNEL)?;
/// let ring = FenceContext::<Ring>::new(c"ring")?;
/// let job = ring
///     .new_fence_allocation(Memory(given_back.clone()))?
///     .new_fence();
/// let fence: ARef<Fence> = job.fence().into();
/// assert!(!given_back.load(Relaxed));
///
/// // It is given back at the signal, not when the fence is freed.
/// job.signal(Err(EIO));
/// assert!(given_back.load(Relaxed));
/// assert_eq!(fence.status(), Some(Err(EIO)));
/// # Ok::<(), Error>(())
/// ```
#[must_use = "the fence is cancelled when this is dropped"]
pub struct DriverFence<T: FenceContextOps> {
    // Dropped after `drop()` has signalled.
    data: T::Data,
    // Handed over by `drop()`.
    fence: ManuallyDrop<ARef<Fence>>,
    timeline: Arc<Timeline>,
    result: Result,
}

impl<T: FenceContextOps> DriverFence<T> {
    /// Returns the fence, for others to wait for.
    #[inline]
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Returns what the driver attached.
    #[inline]
    pub fn data(&self) -> &T::Data {
        &self.data
    }

    /// Returns what the fence is going to be signalled with when it is dropped.
    #[inline]
    pub fn result(&self) -> Result {
        self.result
    }

    /// Sets what the fence is going to be signalled with when it is dropped.
    ///
    /// For drivers that cannot move the fence out of where it is; others have [`Self::signal`].
    #[inline]
    pub fn set_result(&mut self, result: Result) {
        self.result = result;
    }

    /// Signals the fence, with the error if there is one, and then drops what is attached to it.
    ///
    /// While an earlier fence of the context has not signalled, this one waits for its turn. Even if
    /// its turn has come another processor may be about to signal it when this returns.
    ///
    /// May be called from any context in which the data can be dropped, but not from a callback of
    /// a fence. Mirrors `dma_fence_set_error()` and `dma_fence_signal()`.
    #[inline]
    pub fn signal(mut self, result: Result) {
        self.set_result(result);
        // The rest is done by `drop()`.
    }
}

impl<T: FenceContextOps> Drop for DriverFence<T> {
    fn drop(&mut self) {
        let fence = self.fence.as_raw();

        if let Err(error) = self.result {
            // SAFETY: The fence is valid, and by the type invariant not signalled. An `Error` is
            // in the range of an errno.
            unsafe { bindings::dma_fence_set_error(fence, error.to_errno()) };
        }

        // SAFETY: The value is not used any more.
        let fence = unsafe { ManuallyDrop::take(&mut self.fence) };
        // From here on nothing refers to the data.
        // SAFETY: The fence was made with this timeline, and the value is dropped once.
        unsafe { self.timeline.finish(fence) };
    }
}

/// What is called when a fence signals.
#[vtable]
pub trait FenceCallback: Sync + 'static {
    /// Called once, when `fence` signals.
    ///
    /// Runs in atomic context, with interrupts disabled and the lock of the fence held. It must not
    /// sleep, nor signal another fence, nor call what takes the lock of this one:
    /// [`Fence::status`], a wait, and registering or dropping callbacks of it.
    fn called(&self, fence: &AnyFence);
}

/// A callback that waits for a fence. Dropping it removes the callback.
///
/// After the drop the callback does not run, and will not. Until then the module that it is in cannot
/// be unloaded, so that one which is leaked can still be called.
///
/// # Invariants
///
/// `cb` was passed to `dma_fence_add_callback()` for `fence`, and is removed before `self` is gone.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::fence::{
///         AnyFence,
///         FenceCallback,
///         FenceCallbackRegistration,
///         FenceContext,
///         FenceContextOps, //
///     },
///     prelude::*,
///     sync::{
///         atomic::{
///             Atomic,
///             Relaxed, //
///         },
///         Arc, //
///     },
/// };
///
/// struct Ring;
///
/// impl FenceContextOps for Ring {
///     const DRIVER_NAME: &'static CStr = c"driver";
///     type Data = ();
/// }
///
/// /// Keeps the number of the last fence that signalled.
/// struct Last(Arc<Atomic<u64>>);
///
/// #[vtable]
/// impl FenceCallback for Last {
///     fn called(&self, fence: &AnyFence) {
///         self.0.store(fence.seqno(), Relaxed);
///     }
/// }
///
/// let last = Arc::new(Atomic::new(0), GFP_KERNEL)?;
/// let ring = FenceContext::<Ring>::new(c"ring")?;
/// let first = ring.new_fence_allocation(())?.new_fence();
/// let second = ring.new_fence_allocation(())?.new_fence();
///
/// let [on_first, on_second] = [&first, &second].map(|fence| {
///     KBox::pin_init(
///         FenceCallbackRegistration::new(fence.fence(), Last(last.clone())),
///         GFP_KERNEL,
///     )
/// });
/// let (_on_first, on_second) = (on_first?, on_second?);
///
/// first.signal(Ok(()));
/// assert_eq!(last.load(Relaxed), 1);
///
/// // A callback that was removed is not called.
/// drop(on_second);
/// second.signal(Ok(()));
/// assert_eq!(last.load(Relaxed), 1);
/// # Ok::<(), Error>(())
/// ```
#[pin_data(PinnedDrop)]
pub struct FenceCallbackRegistration<C: FenceCallback> {
    callback: C,
    fence: ARef<AnyFence>,
    #[pin]
    cb: Opaque<bindings::dma_fence_cb>,
    // Dropped last, after the callback was removed.
    _owner: Owner,
}

/// A reference to the module that a callback is in.
struct Owner(&'static ThisModule);

impl Owner {
    fn new(module: &'static ThisModule) -> Result<Self> {
        // SAFETY: The module is valid, as its code calls this, or null for the kernel itself.
        if unsafe { bindings::try_module_get(module.as_ptr()) } {
            Ok(Self(module))
        } else {
            Err(ENODEV)
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: The reference was taken when the value was made.
        unsafe { bindings::module_put(self.0.as_ptr()) };
    }
}

// SAFETY: A callback may be removed by any task; `cb` is guarded by the lock of the fence.
unsafe impl<C: FenceCallback + Send> Send for FenceCallbackRegistration<C> {}

// SAFETY: Nothing that takes `&self` touches `cb`.
unsafe impl<C: FenceCallback> Sync for FenceCallbackRegistration<C> {}

impl<C: FenceCallback> FenceCallbackRegistration<C> {
    /// Registers a callback of a fence, or of a container, for when all of it has signalled.
    ///
    /// May be called from any context, but not from a callback of the same fence. Mirrors
    /// `dma_fence_add_callback()`.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the fence has signalled already.
    /// - `ENODEV` if the module is being unloaded.
    ///
    /// The callback is dropped without being called.
    pub fn new(fence: impl Into<ARef<AnyFence>>, callback: C) -> impl PinInit<Self, Error> {
        let fence = fence.into();

        try_pin_init!(&this in Self {
            _owner: Owner::new(this_module::<C::OwnerModule>())?,
            callback,
            fence,
            // INVARIANT: Registered here, removed in `drop()`.
            cb <- Opaque::try_ffi_init(|cb| {
                // SAFETY: The fields above are initialized.
                let fence = unsafe { (*this.as_ptr()).fence.as_raw() };

                // SAFETY: The fence is valid, and `cb` is where it stays until it is removed. The
                // callback may be called from now on; all that it uses is initialized.
                to_result(unsafe {
                    bindings::dma_fence_add_callback(fence, cb, Some(Self::trampoline))
                })
            }),
        }? Error)
    }

    /// Returns the callback.
    #[inline]
    pub fn callback(&self) -> &C {
        &self.callback
    }

    extern "C" fn trampoline(fence: *mut bindings::dma_fence, cb: *mut bindings::dma_fence_cb) {
        // SAFETY: The function is only registered for the field of a `Self`.
        let this: *const Self = unsafe { crate::container_of!(Opaque::cast_from(cb), Self, cb) };

        // SAFETY: The registration is valid until it is removed, which takes the lock of the fence
        // that is held during this call. As the callback is `Sync`, it may be used here.
        let callback = unsafe { &(*this).callback };

        // SAFETY: The fence is valid, and the registration owns a reference to it.
        callback.called(unsafe { AnyFence::from_raw(fence) });
    }
}

#[pinned_drop]
impl<C: FenceCallback> PinnedDrop for FenceCallbackRegistration<C> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant `cb` was added to the fence. It may have been called, then
        // this only waits until the call is over.
        unsafe { bindings::dma_fence_remove_callback(self.fence.as_raw(), self.cb.get()) };
    }
}

/// A section of code that others may be waiting for by means of a fence.
///
/// It begins when a fence is published, such as by adding it to a reservation, or where the code
/// that is going to signal it starts, such as a worker; it ends after the signal. In between,
/// lockdep reports what a wait for a fence may depend on: taking a reservation, allocating memory
/// in a way that can wait, waiting for a fence. Sections may be nested.
///
/// May be used in any context, and by one task. Mirrors `dma_fence_begin_signalling()` and
/// `dma_fence_end_signalling()`.
///
/// # Invariants
///
/// `cookie` is that of a section which the current task has begun and not ended.
///
/// # Examples
///
/// ```
/// use kernel::dma_buf::fence::{
///     DriverFence,
///     FenceContextOps,
///     SignallingSection, //
/// };
///
/// /// The end of a job, as a worker or a threaded interrupt handler has it.
/// fn finish<T: FenceContextOps>(fence: DriverFence<T>, device_works: bool) {
///     let _section = SignallingSection::begin();
///
///     if device_works {
///         fence.signal(Ok(()));
///     }
/// }
/// ```
#[must_use = "the section ends when this is dropped"]
pub struct SignallingSection {
    cookie: bool,
    _not_send: NotThreadSafe,
}

impl SignallingSection {
    /// Begins a section.
    #[inline]
    pub fn begin() -> Self {
        // INVARIANT: The section was just begun.
        Self {
            // SAFETY: The function has no requirements.
            cookie: unsafe { bindings::dma_fence_begin_signalling() },
            _not_send: NotThreadSafe,
        }
    }
}

impl Drop for SignallingSection {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariant the section was begun by this task.
        unsafe { bindings::dma_fence_end_signalling(self.cookie) };
    }
}

#[kunit_tests(rust_dma_fence)]
mod tests {
    use super::*;
    use crate::{
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
        // SAFETY: The fence is valid, and names are only looked at in this section.
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

    #[test]
    fn longest_name() {
        assert!(name(c"0123456789012345678901234567890").is_ok());
        assert_eq!(
            name(c"01234567890123456789012345678901").err(),
            Some(ENAMETOOLONG)
        );
    }
}

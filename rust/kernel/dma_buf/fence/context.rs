// SPDX-License-Identifier: GPL-2.0

//! The driver's side of a fence: contexts and the fences created on them.

use super::{
    timeline::{
        Memory,
        Timeline, //
    },
    Fence, //
};
use crate::{
    bindings,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};
use core::{
    marker::PhantomData,
    mem::{
        ManuallyDrop,
        MaybeUninit, //
    }, //
};

/// The name and the data of a driver's fences.
pub trait FenceContextOps: 'static {
    /// The name of the driver: 31 bytes at most.
    const DRIVER_NAME: &'static CStr;

    /// The data attached to a fence by the driver until its work is done.
    type Data;
}

/// A line of work whose fences are signalled in the order of their creation.
///
/// A reservation keeps only the latest fence of a context: once that has signalled, a waiter takes
/// the earlier work for done. So a fence whose work is done before that of an earlier one signals
/// when the earlier one does. Work ending in any order needs several contexts. A leaked
/// [`DriverFence`] keeps all later fences of its context from signalling.
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
    /// Creates a context. `timeline` names its engine or queue, such as a ring.
    ///
    /// Both names are copied. May sleep. Mirrors `dma_fence_context_alloc()`.
    ///
    /// # Errors
    ///
    /// - `ENAMETOOLONG` if a name has more than 31 bytes.
    /// - `ENOMEM` if there is no memory.
    pub fn new(timeline: &CStr) -> Result<Self> {
        Ok(Self {
            timeline: Timeline::new(T::DRIVER_NAME, timeline, 0)?,
            _ops: PhantomData,
        })
    }

    /// As [`Self::new`] for a context whose fences belong to `group`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::new`].
    pub fn new_in(timeline: &CStr, group: FenceGroup) -> Result<Self> {
        Ok(Self {
            timeline: Timeline::new(T::DRIVER_NAME, timeline, group.0)?,
            _ops: PhantomData,
        })
    }

    /// Creates a context with the same names and the same group.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory.
    pub(crate) fn alike(&self) -> Result<Self> {
        Ok(Self {
            timeline: self.timeline.alike()?,
            _ops: PhantomData,
        })
    }

    /// Returns the unique number of the context.
    #[inline]
    pub fn id(&self) -> u64 {
        self.timeline.context
    }

    /// Allocates the memory of a fence and attaches `data` to it.
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
            external: false,
        })
    }
}

/// The fences of one device, created on several contexts.
///
/// The owner of the device uses it to distinguish its own work from that of other devices. A fence
/// of the group only waits for work of the group unless it is external. An external fence may
/// depend on fences of other devices, and these signal at any time. A fence is external if it was
/// marked so ([`FenceAllocation::set_external`]) or was created after an unsignalled external fence
/// of its context.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::fence::{
///         FenceContext,
///         FenceContextOps,
///         FenceGroup, //
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
/// let (device, other) = (FenceGroup::new(), FenceGroup::new());
/// let ring = FenceContext::<Ring>::new_in(c"ring", device)?;
/// let first = ring.new_fence_allocation(())?.new_fence();
/// assert!(device.has(first.fence()) && device.has_internal(first.fence()));
/// assert!(!other.has(first.fence()));
///
/// // The second fence depends on another device, and so do those after it.
/// let mut second = ring.new_fence_allocation(())?;
/// second.set_external();
/// let second = second.new_fence();
/// let third = ring.new_fence_allocation(())?.new_fence();
/// assert!(device.has(third.fence()));
/// assert!(!device.has_internal(second.fence()) && !device.has_internal(third.fence()));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FenceGroup(u64);

impl FenceGroup {
    /// Creates a group without fences.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        // The number of a context without fences: no other context and no other group has it. It is
        // not 0.
        // SAFETY: The function has no requirements.
        Self(unsafe { bindings::dma_fence_context_alloc(1) })
    }

    /// Returns whether `fence` belongs to the group and has not signalled. May be called from any
    /// context.
    pub fn has(&self, fence: &Fence) -> bool {
        Memory::group_of(fence).is_some_and(|(group, _)| group == self.0)
    }

    /// As [`Self::has`], but false for an external fence.
    pub fn has_internal(&self, fence: &Fence) -> bool {
        Memory::group_of(fence) == Some((self.0, false))
    }
}

/// The allocated memory of a fence to be created.
///
/// It has no number yet and cannot be waited for.
#[must_use = "no fence is made if the allocation is dropped"]
pub struct FenceAllocation<T: FenceContextOps> {
    data: T::Data,
    memory: KBox<MaybeUninit<Memory>>,
    timeline: Arc<Timeline>,
    external: bool,
}

impl<T: FenceContextOps> FenceAllocation<T> {
    /// Marks the fence as external: its signal may depend on fences outside of the [`FenceGroup`].
    #[inline]
    pub fn set_external(&mut self) {
        self.external = true;
    }

    /// Creates the fence with the next number of its context.
    ///
    /// May be called from any context and cannot fail. A driver that has to hand work to the device
    /// in the order of the fences calls this under the lock of its queue.
    ///
    /// Mirrors `dma_fence_init64()`.
    pub fn new_fence(self) -> DriverFence<T> {
        DriverFence {
            data: self.data,
            fence: ManuallyDrop::new(self.timeline.new_fence(self.memory, self.external)),
            timeline: self.timeline,
            result: Err(ECANCELED),
        }
    }
}

/// The signalling side of a fence.
///
/// A fence dropped without [`Self::signal`] or `set_result()` is signalled with `ECANCELED`.
///
/// # Invariants
///
/// `fence` has not signalled; only this value signals it.
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
///     }, //
/// };
///
/// /// The memory that the device works on. Records when it is dropped.
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
/// // The memory is dropped at the signal, not when the fence is freed.
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

    /// Returns the data attached by the driver.
    #[inline]
    pub fn data(&self) -> &T::Data {
        &self.data
    }

    /// Returns the result to be signalled when the fence is dropped.
    #[inline]
    pub fn result(&self) -> Result {
        self.result
    }

    /// Sets the result to be signalled when the fence is dropped.
    ///
    /// For drivers that cannot move the fence out of its place; others use [`Self::signal`].
    #[inline]
    pub fn set_result(&mut self, result: Result) {
        self.result = result;
    }

    /// Signals the fence with `result` and then drops the data.
    ///
    /// While an earlier fence of the context has not signalled, this one waits for its turn. Even
    /// when its turn has come, another processor or a work item may still be about to signal it
    /// when this returns.
    ///
    /// May be called wherever the data can be dropped, but not from a callback of a fence. Mirrors
    /// `dma_fence_set_error()` and `dma_fence_signal()`.
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
            // SAFETY: The fence is valid and by the type invariant not signalled. An `Error` is in
            // the range of an errno.
            unsafe { bindings::dma_fence_set_error(fence, error.to_errno()) };
        }

        // SAFETY: The value is not used any more.
        let fence = unsafe { ManuallyDrop::take(&mut self.fence) };
        // From here on nothing refers to the data.
        // SAFETY: The fence was created on this timeline and the value is dropped once.
        unsafe { self.timeline.finish(fence) };
    }
}

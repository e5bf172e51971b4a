// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sync objects.
//!
//! A sync object is a place for a fence. Userspace has a handle to the object. An ioctl puts the
//! fence of its work into one. Another ioctl or userspace itself takes it out and waits for it.
//!
//! A sync object is binary, with one fence, or a timeline: a chain of fences, each of which signals
//! a point, a number. Replacing the fence of the object ends a timeline. Adding a point begins one.
//!
//! C header: [`include/drm/drm_syncobj.h`](srctree/include/drm/drm_syncobj.h)

mod array;

pub use self::array::{
    Places,
    SyncArray, //
};

use crate::{
    bindings,
    dma_buf::fence::{
        AnyFence,
        Fence, //
    },
    drm::{
        self,
        file::DriverFile, //
    },
    error::to_result,
    prelude::*,
    sync::aref::{
        ARef,
        AlwaysRefCounted, //
    },
    types::Opaque, //
};
use core::{
    mem::ManuallyDrop,
    num::NonZeroU64,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// A sync object, `struct drm_syncobj`.
///
/// # Invariants
///
/// `self.0` is a valid `struct drm_syncobj`. Every [`ARef`] to it owns a reference.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::fence::{
///         FenceContext,
///         FenceContextOps, //
///     },
///     drm::syncobj::{
///         ChainNode,
///         SyncObj, //
///     },
///     prelude::*, //
/// };
/// # use core::num::NonZeroU64;
///
/// struct Ring;
///
/// impl FenceContextOps for Ring {
///     const DRIVER_NAME: &'static CStr = c"driver";
///     type Data = ();
/// }
///
/// let ring = FenceContext::<Ring>::new(c"ring")?;
/// let new_job = || Ok::<_, Error>(ring.new_fence_allocation(())?.new_fence());
/// let obj = SyncObj::new()?;
///
/// assert_eq!(obj.fence_at(0).err(), Some(EINVAL));
///
/// // A binary sync object has the last fence that was put there, and no points.
/// let (first, second) = (new_job()?, new_job()?);
/// obj.replace_fence(first.fence());
/// obj.replace_fence(second.fence());
/// assert_eq!(obj.fence_at(0)?.as_raw(), second.fence().as_raw());
/// assert_eq!(obj.fence_at(1).err(), Some(EINVAL));
///
/// // The memory of a point is allocated before there is a fence.
/// let timeline = SyncObj::new()?;
/// let (three, seven) = (ChainNode::new()?, ChainNode::new()?);
/// let point = |point| NonZeroU64::new(point).ok_or(EINVAL);
/// timeline.add_point(three, point(3)?, first.fence());
/// timeline.add_point(seven, point(7)?, second.fence());
///
/// // A point has the first fence that is not before it.
/// let (at_two, at_four) = (timeline.fence_at(2)?, timeline.fence_at(4)?);
/// let at_seven = timeline.fence_at(7)?;
/// assert_eq!(timeline.fence_at(8).err(), Some(EINVAL));
/// first.signal(Ok(()));
/// assert!(at_two.is_signaled());
/// assert!(!at_four.is_signaled() && !at_seven.is_signaled());
/// second.signal(Ok(()));
/// assert!(at_four.is_signaled() && at_seven.is_signaled());
/// // A point that has signalled is found as well.
/// assert!(timeline.fence_at(3)?.is_signaled());
///
/// // Memory that is not used is freed.
/// drop(ChainNode::new()?);
/// # Ok::<(), Error>(())
/// ```
#[repr(transparent)]
pub struct SyncObj(Opaque<bindings::drm_syncobj>);

// SAFETY: A sync object may be used and released from any task.
unsafe impl Send for SyncObj {}

// SAFETY: All methods taking `&self` are synchronized by the C side.
unsafe impl Sync for SyncObj {}

// SAFETY: A `struct drm_syncobj` is reference counted.
unsafe impl AlwaysRefCounted for SyncObj {
    fn inc_ref(&self) {
        // SAFETY: The existence of a shared reference means that the reference count is not zero.
        unsafe { bindings::drm_syncobj_get(self.0.get()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller owns the reference dropped here.
        unsafe { bindings::drm_syncobj_put(obj.cast().as_ptr()) };
    }
}

impl SyncObj {
    /// Returns the object with a handle of a file.
    ///
    /// Mirrors `drm_syncobj_find()`.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if there is no such handle.
    /// - `EOPNOTSUPP` if the driver does not have [`FEAT_SYNCOBJ`](drm::Driver::FEAT_SYNCOBJ).
    pub fn lookup<F: DriverFile>(file: &drm::File<F>, handle: u32) -> Result<ARef<Self>> {
        // Without the feature a file has no table of handles.
        if !<F::Driver as drm::Driver>::FEAT_SYNCOBJ {
            return Err(EOPNOTSUPP);
        }

        // SAFETY: The file is valid and of a driver with sync objects.
        let obj = unsafe { bindings::drm_syncobj_find(file.as_raw(), handle) };
        let obj = NonNull::new(obj).ok_or(ENOENT)?;

        // SAFETY: The object is valid and comes with a reference. The `ARef` takes it over.
        Ok(unsafe { ARef::from_raw(obj.cast()) })
    }

    /// Creates a binary sync object without a fence and without a handle in any file.
    ///
    /// Mirrors `drm_syncobj_create()`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory.
    pub fn new() -> Result<ARef<Self>> {
        let mut obj = ptr::null_mut();

        // SAFETY: `obj` is written to and there is no fence.
        to_result(unsafe { bindings::drm_syncobj_create(&mut obj, 0, ptr::null_mut()) })?;
        let obj = NonNull::new(obj).ok_or(ENOMEM)?;

        // SAFETY: The object is valid and comes with a reference. The `ARef` takes it over.
        Ok(unsafe { ARef::from_raw(obj.cast()) })
    }

    /// Replaces the fence or timeline of the object by a fence. Wakes the tasks waiting for the
    /// object to get a fence.
    ///
    /// Mirrors `drm_syncobj_replace_fence()`.
    pub fn replace_fence(&self, fence: &AnyFence) {
        // SAFETY: By the type invariant the object is valid, and so is the fence. The object takes
        // a reference to it.
        unsafe { bindings::drm_syncobj_replace_fence(self.0.get(), fence.as_raw()) };
    }

    /// Adds a point to the timeline of the object. It signals with `fence` and after the existing
    /// points. Wakes the tasks waiting for the point to be added.
    ///
    /// If a point is not beyond the existing ones, it takes the number of the last one. `fence` is
    /// not a container, because a chain cannot contain a chain. Mirrors `drm_syncobj_add_point()`.
    pub fn add_point(&self, node: ChainNode, point: NonZeroU64, fence: &Fence) {
        let node = ManuallyDrop::new(node).0.as_ptr();

        // SAFETY: By the type invariant the object is valid. The node is not initialized yet and is
        // owned by the object from here on. The fence is valid and not a chain; the object takes a
        // reference to it.
        unsafe {
            bindings::drm_syncobj_add_point(self.0.get(), node, fence.as_raw(), point.get());
        }
    }

    /// Returns the fence signalling `point`, or with 0 the fence of the object.
    ///
    /// Does not wait for a fence to be put there. Mirrors `drm_syncobj_find_fence()`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no fence, or none for this point yet.
    pub fn fence_at(&self, point: u64) -> Result<ARef<AnyFence>> {
        // SAFETY: By the type invariant the object is valid.
        let mut fence = unsafe { bindings::drm_syncobj_fence_get(self.0.get()) };

        if fence.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: The fence is valid and comes with a reference. The function replaces it by one to
        // the fence found.
        let ret = to_result(unsafe { bindings::dma_fence_chain_find_seqno(&mut fence, point) });
        if let Err(e) = ret {
            // SAFETY: The reference was not given up.
            unsafe { bindings::dma_fence_put(fence) };
            return Err(e);
        }

        // A signalled point may have been removed from the chain.
        let fence = NonNull::new(fence)
            // SAFETY: The function has no requirements and returns a reference.
            .or_else(|| NonNull::new(unsafe { bindings::dma_fence_get_stub() }))
            .ok_or(EINVAL)?;
        // SAFETY: The fence is valid and comes with a reference.
        Ok(unsafe { AnyFence::from_owned(fence) })
    }
}

/// The memory of one point of a timeline, `struct dma_fence_chain`, for [`SyncObj::add_point`].
///
/// It is allocated before the work begins, because nothing may fail after that. The fence of the
/// work signals the point.
///
/// # Invariants
///
/// The memory was allocated by `dma_fence_chain_alloc()`. It is owned by the value and not
/// initialized.
pub struct ChainNode(NonNull<bindings::dma_fence_chain>);

// SAFETY: Memory may be used and freed by any task.
unsafe impl Send for ChainNode {}

// SAFETY: A shared reference gives access to nothing.
unsafe impl Sync for ChainNode {}

impl ChainNode {
    /// Allocates the memory. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is none.
    pub fn new() -> Result<Self> {
        // SAFETY: The function has no requirements.
        let node = unsafe { bindings::dma_fence_chain_alloc() };

        // INVARIANT: The memory was just allocated.
        Ok(Self(NonNull::new(node).ok_or(ENOMEM)?))
    }
}

impl Drop for ChainNode {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; the memory was not used.
        unsafe { bindings::dma_fence_chain_free(self.0.as_ptr()) };
    }
}

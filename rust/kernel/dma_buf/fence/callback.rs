// SPDX-License-Identifier: GPL-2.0

//! Functions called when a fence signals.

use super::AnyFence;
use crate::{
    bindings,
    error::to_result,
    module::this_module,
    prelude::*,
    sync::aref::ARef,
    types::Opaque, //
};

/// A function called when a fence signals.
#[vtable]
pub trait FenceCallback: Sync + 'static {
    /// Called once when `fence` signals.
    ///
    /// Runs in atomic context with interrupts disabled and the lock of the fence held. It must not
    /// sleep, signal another fence or call a function that takes the lock of this fence:
    /// [`Fence::status`](super::Fence::status), a wait and the registration or drop of a callback
    /// of it.
    fn called(&self, fence: &AnyFence);
}

/// A registered callback of a fence. Dropping it removes the callback.
///
/// After the drop the callback is not running and is not called any more. Its module cannot be
/// unloaded before the drop, so a callback with a leaked registration can still be called.
///
/// # Invariants
///
/// `cb` was passed to `dma_fence_add_callback()` for `fence` and is removed before `self` is gone.
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
///     }, //
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

/// A reference to the module of a callback.
struct Owner(&'static ThisModule);

impl Owner {
    fn new(module: &'static ThisModule) -> Result<Self> {
        // SAFETY: The module is valid because its code calls this, or null for the kernel itself.
        if unsafe { bindings::try_module_get(module.as_ptr()) } {
            Ok(Self(module))
        } else {
            Err(ENODEV)
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: The reference was taken when the value was created.
        unsafe { bindings::module_put(self.0.as_ptr()) };
    }
}

// SAFETY: A callback may be removed by any task; `cb` is guarded by the lock of the fence.
unsafe impl<C: FenceCallback + Send> Send for FenceCallbackRegistration<C> {}

// SAFETY: No method taking `&self` touches `cb`.
unsafe impl<C: FenceCallback> Sync for FenceCallbackRegistration<C> {}

impl<C: FenceCallback> FenceCallbackRegistration<C> {
    /// Registers a callback of a fence or container, called once all of it has signalled.
    ///
    /// May be called from any context but a callback of the same fence. Mirrors
    /// `dma_fence_add_callback()`.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the fence has signalled already.
    /// - `ENODEV` if the module is being unloaded.
    ///
    /// On error the callback is dropped without being called.
    pub fn new(fence: impl Into<ARef<AnyFence>>, callback: C) -> impl PinInit<Self, Error> {
        let fence = fence.into();

        try_pin_init!(&this in Self {
            _owner: Owner::new(this_module::<C::OwnerModule>())?,
            callback,
            fence,
            // INVARIANT: Registered here and removed in `drop()`.
            cb <- Opaque::try_ffi_init(|cb| {
                // SAFETY: The fields above are initialized.
                let fence = unsafe { (*this.as_ptr()).fence.as_raw() };

                // SAFETY: The fence is valid and `cb` stays in place until it is removed. The
                // callback may be called from now on; all of its data is initialized.
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

        // SAFETY: The registration is valid until it is removed. The removal takes the lock of the
        // fence, which is held during this call. The callback may be used here because it is
        // `Sync`.
        let callback = unsafe { &(*this).callback };

        // SAFETY: The fence is valid and the registration owns a reference to it.
        callback.called(unsafe { AnyFence::from_raw(fence) });
    }
}

#[pinned_drop]
impl<C: FenceCallback> PinnedDrop for FenceCallbackRegistration<C> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant `cb` was added to the fence. If it was called already, this
        // only waits until the call is over.
        unsafe { bindings::dma_fence_remove_callback(self.fence.as_raw(), self.cb.get()) };
    }
}

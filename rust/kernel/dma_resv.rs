// SPDX-License-Identifier: GPL-2.0

//! Reservation objects.
//!
//! A [`DmaResv`] is the lock of a buffer that several devices share, and the place where the fences
//! of the work on that buffer are kept. Holding it is what allows an importer to map a buffer and
//! an exporter to move it. [`Guard`] is the proof that it is held; the views of
//! [`dma_buf`](crate::dma_buf), such as a locked attachment, exist only for as long as one does.
//!
//! The lock is a wound/wait mutex. This module takes one reservation at a time, without an acquire
//! context; lockdep reports a task that takes a second one while it holds a [`Guard`].
//!
//! C header: [`include/linux/dma-resv.h`](srctree/include/linux/dma-resv.h)

use crate::{
    bindings,
    error::to_result,
    prelude::*,
    types::{
        NotThreadSafe,
        Opaque, //
    },
};
use core::ptr;

/// Which fences of a reservation are meant.
///
/// The order is that of `enum dma_resv_usage`: asking for one usage means the fences of that usage
/// and of all that come before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Usage {
    /// Memory management by the kernel, such as a move of the buffer.
    Kernel,
    /// Writes under implicit synchronization.
    Write,
    /// Reads under implicit synchronization.
    Read,
    /// No implicit synchronization; everything that still touches the memory.
    Bookkeep,
}

impl Usage {
    const fn as_raw(self) -> bindings::dma_resv_usage {
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
/// `self.0` is initialized, and stays valid for as long as a reference to `self` exists.
///
/// # Examples
///
/// The reservation of a buffer that somebody passed as a file descriptor:
///
/// ```
/// use kernel::{
///     dma_buf::DmaBuf,
///     dma_resv::Usage,
///     prelude::*, //
/// };
///
/// /// Whether all work on a buffer is done, or nothing if somebody else has it.
/// fn is_idle(fd: i32) -> Result<Option<bool>> {
///     let buf = DmaBuf::from_fd(fd)?;
///     let resv = buf.resv();
///     let Some(guard) = resv.try_lock() else {
///         return Ok(None);
///     };
///
///     // The guard belongs to this reservation and to no other.
///     Ok(Some(guard.is_for(resv) && resv.test_signaled(Usage::Bookkeep)))
/// }
///
/// assert_eq!(is_idle(-1), Err(EBADF));
/// ```
#[repr(transparent)]
pub struct DmaResv(Opaque<bindings::dma_resv>);

// SAFETY: A `struct dma_resv` is a lock and what it protects; it may be used from any task.
unsafe impl Send for DmaResv {}

// SAFETY: All methods that take `&self` are synchronized by the C side.
unsafe impl Sync for DmaResv {}

impl DmaResv {
    /// Turns a pointer to a `struct dma_resv` into a reference.
    ///
    /// # Safety
    ///
    /// `ptr` must point to an initialized `struct dma_resv` that stays valid for `'a`.
    #[inline]
    pub unsafe fn from_raw<'a>(ptr: *mut bindings::dma_resv) -> &'a Self {
        // SAFETY: `DmaResv` is a transparent wrapper, and the caller promises validity.
        unsafe { &*ptr.cast() }
    }

    /// Returns the pointer to the C structure.
    #[inline]
    pub fn as_raw(&self) -> *mut bindings::dma_resv {
        self.0.get()
    }

    /// Locks the reservation, sleeping until it is free.
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

    /// Locks the reservation, or gives up when a signal arrives.
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

    /// Waits for the fences of `usage`, with or without the lock.
    ///
    /// Mirrors `dma_resv_wait_timeout()` without a limit. With `interruptible` a signal ends the
    /// wait.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal arrived.
    pub fn wait(&self, usage: Usage, interruptible: bool) -> Result {
        // SAFETY: By the type invariant the reservation is valid.
        let ret = unsafe {
            bindings::dma_resv_wait_timeout(
                self.as_raw(),
                usage.as_raw(),
                interruptible,
                // CAST: `MAX_SCHEDULE_TIMEOUT` is `LONG_MAX`, which the parameter holds.
                c_long::MAX as usize,
            )
        };

        if ret < 0 {
            // CAST: A negative result is an errno, which fits an `int`.
            Err(Error::from_errno(ret as i32))
        } else {
            Ok(())
        }
    }

    /// Tells whether all fences of `usage` have signalled. Never sleeps.
    ///
    /// Mirrors `dma_resv_test_signaled()`.
    pub fn test_signaled(&self, usage: Usage) -> bool {
        // SAFETY: By the type invariant the reservation is valid.
        unsafe { bindings::dma_resv_test_signaled(self.as_raw(), usage.as_raw()) }
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
    /// Returns the reservation that this guard holds.
    #[inline]
    pub fn resv(&self) -> &'a DmaResv {
        self.resv
    }

    /// Tells whether this guard is the proof for `resv`.
    ///
    /// Several objects may share one reservation, so the pointers are compared.
    #[inline]
    pub fn is_for(&self, resv: &DmaResv) -> bool {
        ptr::eq(self.resv, resv)
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariant the lock is held by this task.
        unsafe { bindings::dma_resv_unlock(self.resv.as_raw()) };
    }
}

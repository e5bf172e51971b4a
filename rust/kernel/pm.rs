// SPDX-License-Identifier: GPL-2.0

//! Runtime power management.
//!
//! An unused device may be suspended: its registers and memory are out of reach until a user
//! resumes it. [`RuntimeGuard`] is the guard of a user.
//!
//! # Locking
//!
//! Resuming a device waits for callbacks of its driver, even for a callback just suspending it. So
//! no lock taken by these callbacks may be held. Lockdep sees the wait as a lock, `pm::callbacks`,
//! held by the callbacks. A task holding such a lock can still check whether the device is active
//! by [`RuntimeGuard::if_active`].
//!
//! C header: [`include/linux/pm_runtime.h`](srctree/include/linux/pm_runtime.h)

use crate::{
    bindings,
    device::Device,
    error::to_result,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        }, //
    }, //
};
use core::ptr::NonNull;

/// The callbacks suspending and resuming devices as a lock known to lockdep.
#[cfg(CONFIG_LOCKDEP)]
mod callbacks {
    use crate::{
        bindings,
        str::as_char_ptr_in_const_context,
        types::Opaque, //
    };
    use core::ptr;

    struct Map(Opaque<bindings::lockdep_map>);

    // SAFETY: Only lockdep accesses it.
    unsafe impl Sync for Map {}

    // Without a key the class is identified by the address.
    static MAP: Map = Map(Opaque::new(bindings::lockdep_map {
        name: as_char_ptr_in_const_context(c"pm::callbacks"),
        ..pin_init::zeroed()
    }));

    /// Holds the lock until the value is dropped.
    pub(super) struct Held;

    impl Held {
        // The stack trace shows the place.
        const IP: usize = 0;

        pub(super) fn new() -> Self {
            // SAFETY: The map is static.
            unsafe { bindings::lock_acquire(MAP.0.get(), 0, 0, 0, 1, ptr::null_mut(), Self::IP) };
            Self
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // SAFETY: This task has acquired it in `new()`.
            unsafe { bindings::lock_release(MAP.0.get(), Self::IP) };
        }
    }
}

/// Calls `f` to suspend or resume a device.
pub(crate) fn in_callback<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(CONFIG_LOCKDEP)]
    let _held = callbacks::Held::new();

    f()
}

/// Returns whether the driver of a device is being asked to suspend it.
///
/// For a caller holding something needed by the driver to suspend the device: then the device works
/// until the caller releases it.
pub(crate) fn is_suspending(dev: &Device) -> bool {
    // The PM core does not leave this state before the driver has answered.
    status(dev) == bindings::rpm_status_RPM_SUSPENDING
}

/// Returns whether a device is suspended.
///
/// For callers holding something needed by the driver before it lets the device be suspended. A
/// device about to be suspended counts as not suspended.
pub(crate) fn is_suspended(dev: &Device) -> bool {
    // The PM core does not enter this state before the driver has answered.
    status(dev) == bindings::rpm_status_RPM_SUSPENDED
}

/// Returns the state of a device. The PM core changes it at any time.
fn status(dev: &Device) -> bindings::rpm_status {
    #[cfg(CONFIG_PM)]
    // SAFETY: The device is valid.
    let ret = unsafe { (&raw const (*dev.as_raw()).power.runtime_status).read_volatile() };
    #[cfg(not(CONFIG_PM))]
    let ret = {
        let _ = dev;
        bindings::rpm_status_RPM_ACTIVE
    };

    ret
}

/// When the use of a device was recorded last: see [`Self::note`].
pub(crate) struct LastUse {
    /// In ticks of the timer.
    at: Atomic<usize>,
}

impl LastUse {
    /// Creates the value without a recorded use.
    pub(crate) const fn new() -> Self {
        // In tick 0 the first use is not recorded, as if it were the second one in the tick.
        Self { at: Atomic::new(0) }
    }

    /// Records a use of a device, so that it is not suspended before the delay set by its driver.
    /// Returns false if the device is suspended.
    ///
    /// The state of the device is checked in each call. The time is only recorded once in each tick
    /// of the timer, because reading the clock is a large part of the cost of mapping a buffer
    /// again. So the delay may begin a tick too early. It is a number of milliseconds and a tick
    /// has 1 to 10 of them. All calls for one `self` are for the same device.
    ///
    /// For the same callers as [`is_suspended`]. Mirrors `pm_runtime_mark_last_busy()`.
    pub(crate) fn note(&self, dev: &Device) -> bool {
        if is_suspended(dev) {
            return false;
        }

        // SAFETY: The timer's interrupt changes the number. It is read at once.
        let now = unsafe { (&raw const bindings::jiffies).read_volatile() };

        // Two callers recording the same tick do no harm.
        if self.at.load(Relaxed) != now {
            self.at.store(now, Relaxed);
            // SAFETY: The device is valid.
            unsafe { bindings::pm_runtime_mark_last_busy(dev.as_raw()) };
        }
        true
    }
}

/// A runtime PM guard: keeps a device active until it is dropped.
///
/// Afterwards the device stays active for the delay set by its driver. So a device used often is
/// not suspended in between. An active device need not have a driver.
///
/// # Invariants
///
/// The value owns one count of the users of `dev`.
///
/// # Examples
///
/// ```
/// use kernel::{
///     faux,
///     pm::RuntimeGuard,
///     prelude::*, //
/// };
///
/// // Runtime PM of this device is not enabled, so it cannot be resumed.
/// let faux = faux::Registration::new(c"pm_example", None)?;
/// assert_eq!(RuntimeGuard::new(faux.as_ref().as_ref()).err(), Some(EACCES));
/// # Ok::<(), Error>(())
/// ```
#[must_use = "the device may be suspended when this is dropped"]
pub struct RuntimeGuard {
    dev: ARef<Device>,
}

impl RuntimeGuard {
    /// Resumes a device if it is suspended and keeps it active.
    ///
    /// Sleeps and waits for callbacks of the driver suspending or resuming the device. These must
    /// not need anything held by the caller. Mirrors `pm_runtime_resume_and_get()`.
    ///
    /// # Errors
    ///
    /// - `EACCES` if runtime power management is disabled for the device while it is suspended.
    /// - The error of the driver if it cannot resume the device.
    pub fn new(dev: &Device) -> Result<Self> {
        in_callback(|| ());
        // As a rule the device is active and then this takes half as long.
        if let Some(runtime_guard) = Self::if_active(dev) {
            return Ok(runtime_guard);
        }
        // SAFETY: The device is valid.
        to_result(unsafe { bindings::pm_runtime_resume_and_get(dev.as_raw()) })?;

        // INVARIANT: A user was counted.
        Ok(Self { dev: dev.into() })
    }

    /// Keeps a device active if it is active. Returns [`None`] if it is suspended or about to be.
    ///
    /// For callers holding something needed by the callbacks of the driver. Mirrors
    /// `pm_runtime_get_if_active()`.
    pub fn if_active(dev: &Device) -> Option<Self> {
        #[cfg(CONFIG_PM)]
        // SAFETY: The device is valid.
        if unsafe { bindings::pm_runtime_get_if_active(dev.as_raw()) } <= 0 {
            return None;
        }

        // INVARIANT: A user was counted. Without `CONFIG_PM` no user is counted and no device
        // suspended.
        Some(Self { dev: dev.into() })
    }

    /// Requests the resume of a device without waiting. Mirrors `pm_request_resume()`.
    pub fn request(dev: &Device) {
        // SAFETY: The device is valid.
        unsafe { bindings::__pm_runtime_resume(dev.as_raw(), bindings::RPM_ASYNC as c_int) };
    }

    /// Keeps the device active until [`Self::from_forgotten`].
    pub(crate) fn forget(self) {
        core::mem::forget(self);
    }

    /// Returns a forgotten guard.
    ///
    /// # Safety
    ///
    /// [`Self::forget`] must have been called for `dev` and not have been undone.
    pub(crate) unsafe fn from_forgotten(dev: &Device) -> Self {
        // INVARIANT: The user was counted and forgotten, and so was a reference.
        Self {
            // SAFETY: As above.
            dev: unsafe { ARef::from_raw(NonNull::from(dev)) },
        }
    }
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        // A failure to suspend the device now is no error of the caller.
        // SAFETY: The device is valid. By the type invariant the value owns the count put here.
        unsafe { bindings::pm_runtime_put_autosuspend(self.dev.as_raw()) };
    }
}

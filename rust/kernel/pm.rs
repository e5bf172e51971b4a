// SPDX-License-Identifier: GPL-2.0

//! Runtime power management.
//!
//! A device that nobody uses may be suspended: its registers and memory are out of reach, until
//! somebody needs it. [`Awake`] is how to need it.
//!
//! # Locking
//!
//! To resume a device is to wait for callbacks of its driver, also for one that suspends it at this
//! time. So it is done with no lock held that these callbacks take: lockdep sees the wait as a lock,
//! `pm::callbacks`, which they hold. With such a lock held a task can still see whether the device is
//! awake, [`Awake::if_active`].
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

/// The callbacks that suspend and resume devices, as a lock that lockdep knows.
#[cfg(CONFIG_LOCKDEP)]
mod callbacks {
    use crate::{
        bindings,
        str::as_char_ptr_in_const_context,
        types::Opaque, //
    };
    use core::ptr;

    struct Map(Opaque<bindings::lockdep_map>);

    // SAFETY: It is accessed by lockdep only.
    unsafe impl Sync for Map {}

    // Without a key the class is that of the address.
    static MAP: Map = Map(Opaque::new(bindings::lockdep_map {
        name: as_char_ptr_in_const_context(c"pm::callbacks"),
        ..pin_init::zeroed()
    }));

    /// Takes it until the value is dropped.
    pub(super) struct Held;

    impl Held {
        // Where that was is in the stack trace.
        const IP: usize = 0;

        pub(super) fn new() -> Self {
            // SAFETY: The map is static.
            unsafe { bindings::lock_acquire(MAP.0.get(), 0, 0, 0, 1, ptr::null_mut(), Self::IP) };
            Self
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // SAFETY: It was acquired by `new()`, by this task.
            unsafe { bindings::lock_release(MAP.0.get(), Self::IP) };
        }
    }
}

/// Calls `f`, which suspends or resumes a device.
pub(crate) fn in_callback<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(CONFIG_LOCKDEP)]
    let _held = callbacks::Held::new();

    f()
}

/// Tells whether the driver of a device is asked at this time to suspend it.
///
/// Whoever has something that the driver needs for that knows that the device works until that is
/// given up.
#[cfg_attr(not(CONFIG_RUST_DRM_TTM), expect(dead_code))]
pub(crate) fn is_suspending(dev: &Device) -> bool {
    // The PM core does not leave this state before the driver has answered.
    status(dev) == bindings::rpm_status_RPM_SUSPENDING
}

/// Tells whether a device is suspended.
///
/// For callers that hold what the driver needs before it lets the device be suspended. One that is
/// about to be is taken for a device that is not suspended.
#[cfg_attr(not(CONFIG_RUST_DRM_PEER), allow(dead_code))]
pub(crate) fn is_suspended(dev: &Device) -> bool {
    // The PM core does not get to this state before the driver has answered.
    status(dev) == bindings::rpm_status_RPM_SUSPENDED
}

/// Returns the state of a device, which the PM core changes at any time.
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

/// When the use of a device was noted last, see [`Self::note`].
#[cfg_attr(not(CONFIG_RUST_DRM_PEER), allow(dead_code))]
pub(crate) struct LastUse {
    /// In ticks of the timer.
    at: Atomic<usize>,
}

#[cfg_attr(not(CONFIG_RUST_DRM_PEER), allow(dead_code))]
impl LastUse {
    /// No use was noted yet.
    pub(crate) const fn new() -> Self {
        // In the tick that has this number the first use is not noted, as if it were the second.
        Self { at: Atomic::new(0) }
    }

    /// Takes note that a device is used, so that it is not suspended before the delay that its
    /// driver has set. Returns false if the device is suspended.
    ///
    /// The state of the device is looked at in each call, but the time is noted once in each tick
    /// of the timer: to read the clock is a good part of what it takes to map a buffer again. So
    /// the delay may begin a tick too early; it is a number of milliseconds, of which a tick has 1
    /// to 10. All calls for one `self` are for the same device.
    ///
    /// For the same callers as [`is_suspended`]. Mirrors `pm_runtime_mark_last_busy()`.
    pub(crate) fn note(&self, dev: &Device) -> bool {
        if is_suspended(dev) {
            return false;
        }

        // SAFETY: The timer's interrupt changes the number, which is read at once.
        let now = unsafe { (&raw const bindings::jiffies).read_volatile() };

        // Two callers that note the same tick do no harm.
        if self.at.load(Relaxed) != now {
            self.at.store(now, Relaxed);
            // SAFETY: The device is valid.
            unsafe { bindings::pm_runtime_mark_last_busy(dev.as_raw()) };
        }
        true
    }
}

/// Keeps a device awake until it is dropped.
///
/// Afterwards the device stays awake for the time that its driver has set, so that one which is
/// used often is not suspended in between. That the device is awake does not mean that it has a
/// driver.
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
///     pm::Awake,
///     prelude::*, //
/// };
///
/// // Nobody has enabled the management of this device, so it cannot be resumed.
/// let faux = faux::Registration::new(c"pm_example", None)?;
/// assert_eq!(Awake::new(faux.as_ref().as_ref()).err(), Some(EACCES));
/// # Ok::<(), Error>(())
/// ```
#[must_use = "the device may be suspended when this is dropped"]
pub struct Awake {
    dev: ARef<Device>,
}

impl Awake {
    /// Resumes a device, if it is suspended, and keeps it awake.
    ///
    /// Sleeps, and waits for callbacks of the driver that suspend or resume the device: these must
    /// not need what the caller holds. Mirrors `pm_runtime_resume_and_get()`.
    ///
    /// # Errors
    ///
    /// - `EACCES` if runtime power management is disabled for the device while it is suspended.
    /// - What the driver returns if it cannot resume the device.
    pub fn new(dev: &Device) -> Result<Self> {
        in_callback(|| ());
        // As a rule it is awake, and then this takes half as long.
        if let Some(awake) = Self::if_active(dev) {
            return Ok(awake);
        }
        // SAFETY: The device is valid.
        to_result(unsafe { bindings::pm_runtime_resume_and_get(dev.as_raw()) })?;

        // INVARIANT: A user was counted.
        Ok(Self { dev: dev.into() })
    }

    /// Keeps a device awake if it is, [`None`] if it is suspended, or about to be.
    ///
    /// For callers that hold what the callbacks of the driver need. Mirrors
    /// `pm_runtime_get_if_active()`.
    pub fn if_active(dev: &Device) -> Option<Self> {
        #[cfg(CONFIG_PM)]
        // SAFETY: The device is valid.
        if unsafe { bindings::pm_runtime_get_if_active(dev.as_raw()) } <= 0 {
            return None;
        }

        // INVARIANT: A user was counted. Without `CONFIG_PM` nothing is, or suspended.
        Some(Self { dev: dev.into() })
    }

    /// Asks for a device to be resumed, and does not wait for that. Mirrors `pm_request_resume()`.
    pub fn request(dev: &Device) {
        // SAFETY: The device is valid.
        unsafe { bindings::__pm_runtime_resume(dev.as_raw(), bindings::RPM_ASYNC as c_int) };
    }

    /// Keeps the device awake until [`Self::from_forgotten`].
    #[cfg_attr(not(CONFIG_RUST_DRM_PEER), expect(dead_code))]
    pub(crate) fn forget(self) {
        core::mem::forget(self);
    }

    /// Takes back what was forgotten.
    ///
    /// # Safety
    ///
    /// [`Self::forget`] must have been called for `dev`, and not been undone.
    #[cfg_attr(not(CONFIG_RUST_DRM_PEER), expect(dead_code))]
    pub(crate) unsafe fn from_forgotten(dev: &Device) -> Self {
        // INVARIANT: The user was counted and forgotten, and so was a reference.
        Self {
            // SAFETY: As above.
            dev: unsafe { ARef::from_raw(NonNull::from(dev)) },
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        // That it could not be suspended now is nobody's error.
        // SAFETY: The device is valid, and by the type invariant one of its users is given up.
        unsafe { bindings::pm_runtime_put_autosuspend(self.dev.as_raw()) };
    }
}

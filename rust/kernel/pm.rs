// SPDX-License-Identifier: GPL-2.0

//! Runtime power management.
//!
//! A device that nobody uses may be suspended: its registers and memory are out of reach, until
//! somebody needs it. [`Awake`] is how to need it.
//!
//! C header: [`include/linux/pm_runtime.h`](srctree/include/linux/pm_runtime.h)

use crate::{
    bindings,
    device::Device,
    error::to_result,
    prelude::*,
    sync::aref::ARef, //
};
use core::ptr::NonNull;

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
    /// Sleeps. The callback that resumes the device must not need what the caller holds. Mirrors
    /// `pm_runtime_resume_and_get()`.
    ///
    /// # Errors
    ///
    /// - `EACCES` if runtime power management is disabled for the device while it is suspended.
    /// - What the driver returns if it cannot resume the device.
    pub fn new(dev: &Device) -> Result<Self> {
        // SAFETY: The device is valid.
        to_result(unsafe { bindings::pm_runtime_resume_and_get(dev.as_raw()) })?;

        // INVARIANT: A user was counted.
        Ok(Self { dev: dev.into() })
    }

    /// Keeps the device awake until [`Self::from_forgotten`].
    #[cfg_attr(not(CONFIG_RUST_DRM_TTM), expect(dead_code))]
    pub(crate) fn forget(self) {
        core::mem::forget(self);
    }

    /// Takes back what was forgotten.
    ///
    /// # Safety
    ///
    /// [`Self::forget`] must have been called for `dev`, and not been undone.
    #[cfg_attr(not(CONFIG_RUST_DRM_TTM), expect(dead_code))]
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

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How userspace is told that a device has failed.
//!
//! The event is one of the device's card, with `WEDGED=` and what helps. See "Device Wedging" in
//! Documentation/gpu/drm-uapi.rst.
//!
//! C header: [`include/drm/drm_drv.h`](srctree/include/drm/drm_drv.h)

use super::{
    Device,
    DeviceContext,
    Driver, //
};
use crate::{
    bindings,
    error::to_result,
    prelude::*, //
};

/// What lets a device work again that has failed.
///
/// Each stands for itself and what comes before it fails: a consumer tries the first one that it
/// knows of those that an event names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WedgeRecovery {
    /// Nothing is needed: the driver has reset what has failed. Some work is lost.
    Nothing = bindings::DRM_WEDGE_RECOVERY_NONE,
    /// To unbind the driver and to bind it again.
    Rebind = bindings::DRM_WEDGE_RECOVERY_REBIND,
    /// As [`Self::Rebind`], with a reset of the bus in between.
    BusReset = bindings::DRM_WEDGE_RECOVERY_BUS_RESET,
    /// Something else, which the driver's documentation tells.
    Vendor = bindings::DRM_WEDGE_RECOVERY_VENDOR,
}

impl<T: Driver, C: DeviceContext> Device<T, C> {
    /// Tells userspace that the device has failed, and which of `recoveries` help; [`None`] of them if
    /// the driver does not know. The kernel logs it as well. Sleeps, and allocates memory.
    ///
    /// After any event but one with [`WedgeRecovery::Nothing`] the driver gives an error to all who
    /// use the device, and lets nothing wait for it.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device was unplugged, or has no primary node, `EINVAL` if it was not registered
    /// yet, and `ENOMEM` if memory runs out.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::{
    ///     drm::{
    ///         self,
    ///         WedgeRecovery, //
    ///     },
    ///     prelude::*, //
    /// };
    ///
    /// fn failed<T: drm::Driver>(dev: &drm::Device<T>) -> Result {
    ///     dev.wedged_event(&[WedgeRecovery::Rebind, WedgeRecovery::BusReset])
    /// }
    /// ```
    pub fn wedged_event(&self, recoveries: &[WedgeRecovery]) -> Result {
        // CAST: The numbers are bits.
        let method = recoveries
            .iter()
            .fold(0, |method, recovery| method | *recovery as usize);

        // SAFETY: The device is valid, and has its nodes until it is released. They are not removed
        // while the section is entered; those that were not added yet have no events.
        to_result(unsafe {
            let mut idx = 0;

            if (*self.as_raw()).primary.is_null()
                || !bindings::drm_dev_enter(self.as_raw(), &mut idx)
            {
                return Err(ENODEV);
            }
            let ret = bindings::drm_dev_wedged_event(self.as_raw(), method, core::ptr::null_mut());
            bindings::drm_dev_exit(idx);
            ret
        })
    }
}

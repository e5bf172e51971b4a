// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Notification of userspace about a failed device.
//!
//! The event belongs to the card of the device. It lists the useful recoveries in `WEDGED=`. See
//! "Device Wedging" in Documentation/gpu/drm-uapi.rst.
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

/// A way to recover a failed device.
///
/// An event may name several recoveries. A consumer tries the first one it knows. If it cannot use
/// that one, the next one may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WedgeRecovery {
    /// Nothing is needed: the driver has reset the failed part. Some work is lost.
    Nothing = bindings::DRM_WEDGE_RECOVERY_NONE,
    /// The driver is unbound and bound again.
    Rebind = bindings::DRM_WEDGE_RECOVERY_REBIND,
    /// As [`Self::Rebind`] with a reset of the bus in between.
    BusReset = bindings::DRM_WEDGE_RECOVERY_BUS_RESET,
    /// Another way described by the driver's documentation.
    Vendor = bindings::DRM_WEDGE_RECOVERY_VENDOR,
}

impl<T: Driver, C: DeviceContext> Device<T, C> {
    /// Notifies userspace of the failure of the device and of the useful `recoveries`. These are
    /// empty if the driver does not know any. The kernel logs the event as well. Sleeps and
    /// allocates memory.
    ///
    /// After any event other than [`WedgeRecovery::Nothing`] the driver returns an error to all
    /// users of the device and lets no task wait for it.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device was unplugged or has no primary node. `EINVAL` if it was not
    /// registered yet. `ENOMEM` if memory runs out.
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

        // SAFETY: The device is valid and has its nodes until it is released. They are not removed
        // while the section is entered. Before nodes are added, they have no events.
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

// SPDX-License-Identifier: GPL-2.0

//! Bus mastering as a resource that a driver gives back.
//!
//! A device that is a bus master may access memory on its own, also memory that its driver has given
//! back. Nothing of the PCI core ends that when a driver is unbound.
//!
//! C header: [`include/linux/pci.h`](srctree/include/linux/pci.h)

use super::Device;
use crate::{
    bindings,
    device::{
        self,
        Bound, //
    },
    devres::Devres,
    prelude::*,
    sync::aref::ARef, //
};

/// # Invariants
///
/// The driver of the device is bound.
struct Enabled(ARef<Device>);

impl Enabled {
    fn clear(&self) {
        // SAFETY: The device is valid, and by the type invariant it has no other driver that could
        // want it to be a bus master.
        unsafe { bindings::pci_clear_master(self.0.as_raw()) };
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A device that is a bus master, until [`Self::end`] or until its driver is unbound.
///
/// A driver makes this when the device was reset, and when all memory that the device knows of is
/// allocated: what devres has of that it gives back after the device has stopped to be a bus master.
/// Before a driver gives back memory earlier to which the device may still write, because it does not
/// do what it is told, it calls [`Self::end`].
///
/// # Examples
///
/// ```
/// use kernel::{
///     device,
///     pci::{
///         self,
///         BusMaster, //
///     },
///     prelude::*, //
/// };
///
/// fn start(pdev: &pci::Device<device::Core<'_>>) -> Result<BusMaster> {
///     // What the device has done for a driver before this one is over by now.
///     let master = BusMaster::new(pdev)?;
///
///     assert!(!master.is_over());
///     Ok(master)
/// }
/// ```
pub struct BusMaster(Devres<Enabled>);

impl BusMaster {
    /// Makes the device a bus master.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out. The device is no bus master then.
    pub fn new(pdev: &Device<device::Core<'_>>) -> Result<Self> {
        let bound: &Device<Bound> = pdev;
        let unbound: &Device = bound;

        pdev.set_master();
        // INVARIANT: Devres drops it at the latest when the driver is unbound.
        let enabled = Enabled(unbound.into());
        Ok(Self(Devres::new(bound.as_ref(), Ok::<_, Error>(enabled))?))
    }

    /// Ends it. The device has no access to memory any more, and raises no MSI, when this returns: a
    /// write to the configuration space is answered. Does nothing after the driver was unbound.
    ///
    /// Nothing but another [`BusMaster`] makes the device one again.
    pub fn end(&self) {
        self.0.try_access_with(Enabled::clear);
    }

    /// Tells whether the driver was unbound, so that the device is no bus master.
    pub fn is_over(&self) -> bool {
        self.0.try_access().is_none()
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Bus mastering as a resource of the bound device.
//!
//! A bus master may access memory on its own, even memory freed by its driver. The PCI core does
//! not end that when a driver is unbound.
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
        // SAFETY: The device is valid. By the type invariant no other driver is bound and could
        // want it to be a bus master.
        unsafe { bindings::pci_clear_master(self.0.as_raw()) };
    }

    fn set(&self) {
        // SAFETY: As in `clear()`.
        unsafe { bindings::pci_set_master(self.0.as_raw()) };
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A bus-mastering device, until [`Self::end`] or until its driver is unbound. After a sleep
/// [`Self::resume`] makes the device a bus master again.
///
/// A driver creates this after the device was reset and after all memory known to the device was
/// allocated. Devres frees its part of that memory after bus mastering has ended. If a driver frees
/// memory earlier and a misbehaving device may still write to it, the driver calls [`Self::end`]
/// before.
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
///     // Accesses that the device has made for its former driver are over by now.
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

    /// Ends bus mastering. When this returns, the device cannot access memory any more and raises
    /// no MSI: the write to the configuration space has been answered. Does nothing after the
    /// driver was unbound.
    ///
    /// Only [`Self::resume`] and another [`BusMaster`] make the device a bus master again.
    pub fn end(&self) {
        self.0.try_access_with(Enabled::clear);
    }

    /// Makes the device a bus master again after [`Self::end`]. It must have stopped before or have
    /// been reset since. Does nothing after the driver was unbound.
    pub fn resume(&self) {
        self.0.try_access_with(Enabled::set);
    }

    /// Returns whether the driver was unbound and the device is no bus master.
    pub fn is_over(&self) -> bool {
        self.0.try_access().is_none()
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Addresses of PCI functions and the functions at these addresses.

use super::Device;
use crate::{
    bindings,
    device::DeviceContext,
    sync::aref::ARef, //
};
use core::ptr::NonNull;

/// The address of a PCI function: its domain, bus, device and function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The number of the domain.
    pub domain: u32,
    /// The number of the bus.
    pub bus: u8,
    /// The number of the device times 8 plus the number of the function.
    pub devfn: u8,
}

impl Device {
    /// Returns the function at an address, or [`None`] if the kernel knows of none there.
    ///
    /// It need not have a driver. Mirrors `pci_get_domain_bus_and_slot()`.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::pci::{
    ///     Address,
    ///     Device, //
    /// };
    ///
    /// // No machine has this many domains.
    /// let nowhere = Address {
    ///     domain: 0x7fff_ffff,
    ///     bus: 0xff,
    ///     devfn: 0xff,
    /// };
    /// assert!(Device::at(nowhere).is_none());
    /// assert!(Device::at(Address { domain: u32::MAX, ..nowhere }).is_none());
    /// ```
    #[inline(never)]
    pub fn at(address: Address) -> Option<ARef<Self>> {
        let domain = i32::try_from(address.domain).ok()?;

        // SAFETY: The function may be called with any numbers from a context that may sleep. Every
        // function is called in such a context unless its documentation excludes it.
        let raw = unsafe {
            bindings::pci_get_domain_bus_and_slot(domain, address.bus.into(), address.devfn.into())
        };
        let raw = NonNull::new(raw)?;

        // SAFETY: The device is valid and comes with a reference. The `ARef` takes it over.
        // `Device` is a transparent wrapper of `struct pci_dev`.
        Some(unsafe { ARef::from_raw(raw.cast()) })
    }
}

impl<Ctx: DeviceContext> Device<Ctx> {
    /// Returns the address of the function.
    #[inline(never)]
    pub fn address(&self) -> Address {
        // SAFETY: The device is valid and so is the bus of a valid device.
        let (domain, dev_id) = unsafe {
            (
                bindings::pci_domain_nr((*self.as_raw()).bus),
                bindings::pci_dev_id(self.as_raw()),
            )
        };
        let [bus, devfn] = dev_id.to_be_bytes();

        Address {
            // CAST: Domains have no negative numbers.
            domain: domain as u32,
            bus,
            devfn,
        }
    }
}

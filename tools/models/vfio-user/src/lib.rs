// SPDX-License-Identifier: GPL-2.0

//! PCI devices outside of QEMU, which its `vfio-user-pci` puts into a machine.
//!
//! A [`port::Port`] is the device's side of the bus, and [`server::serve`] speaks the protocol with
//! QEMU for anything that is a [`server::Device`]. The devices of one process may share a
//! [`switch::Switch`].

pub mod client;
pub mod config;
pub mod dma;
pub mod interrupts;
pub mod memory;
pub mod message;
pub mod port;
pub mod report;
pub mod server;
pub mod socket;
pub mod switch;

// SPDX-License-Identifier: GPL-2.0

//! A device with the programming interface of QEMU's `edu`, and with more. registers.rst describes
//! what a driver sees.

mod channel;
pub mod device;
mod faults;
mod posted;
pub mod registers;

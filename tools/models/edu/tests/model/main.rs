// SPDX-License-Identifier: GPL-2.0

//! Tests of the model from the view of a driver, by the messages that QEMU sends.

mod faults;
mod machine;
mod posted;
mod registers;
mod transfers;

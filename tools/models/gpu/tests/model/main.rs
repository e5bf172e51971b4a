// SPDX-License-Identifier: GPL-2.0

//! Tests of the model from the view of a driver, by the messages that QEMU sends.

mod aperture;
mod bus;
mod chaos;
mod compute;
mod copy;
mod injected;
mod life;
mod machine;
mod registers;
mod rings;

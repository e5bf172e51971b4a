// SPDX-License-Identifier: GPL-2.0

//! Tests of the model as a driver sees it, by the messages that QEMU sends.

mod aperture;
mod bus;
mod compute;
mod copy;
mod injected;
mod life;
mod machine;
mod registers;
mod rings;

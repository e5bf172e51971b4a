// SPDX-License-Identifier: GPL-2.0

//! A modelled GPU. registers.rst describes what a driver sees of it.

mod bus;
mod control;
pub mod device;
mod engine;
mod entry;
pub mod options;
mod pages;
pub mod registers;
mod report;
mod ring;
mod space;
mod status;
mod tlb;
mod vram;

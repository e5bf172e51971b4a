// SPDX-License-Identifier: GPL-2.0

//! A modelled GPU. registers.rst describes its interface for drivers.

mod bus;
mod chaos;
mod control;
pub mod device;
mod engine;
mod entry;
mod pages;
pub mod registers;
mod report;
mod ring;
mod space;
mod status;
mod tlb;
mod vram;

// SPDX-License-Identifier: GPL-2.0

//! A GPU modelled outside of QEMU, with engines, page tables and an aperture.
//!
//! The driver is split in two, like nova. `core` is the driver of the PCI device and creates an
//! auxiliary device. `card` is the DRM driver of the auxiliary device. Both use `gpu`, the data of
//! a device while the PCI driver is bound. The modules from the lowest layer up:
//!
//! - `regs` (the registers) and `memory` (the memory shared by the device and the driver),
//! - `ring` (jobs with their order and the handling of hung jobs) and `list` (the addresses of a
//!   job of the copy engine),
//! - `invalidate` (invalidations of translations), `contexts` and `pagetable` (address spaces as
//!   the device sees them) and `aperture` (windows for CPU and peer access to VRAM),
//! - `report` (reports of failures to userspace) and `recover` (resets),
//! - `gpu` and `core`,
//! - `engine` (TTM's view of the copy engine), `gem` (the objects), `vm` (address spaces and their
//!   objects) and `compute` (jobs of the compute engine),
//! - `copy`, `bind`, `exec` and `file` (the ioctls), `debugfs` and `card`.
//!
//! Documentation/gpu/mgpu.rst describes the interface of the device.

mod aperture;
mod bind;
mod card;
mod compute;
mod contexts;
mod copy;
mod core;
mod debugfs;
mod engine;
mod exec;
mod file;
mod gem;
mod gpu;
mod invalidate;
mod list;
mod memory;
mod pagetable;
mod recover;
mod regs;
mod report;
mod ring;
mod vm;

use kernel::{
    auxiliary,
    driver,
    pci,
    prelude::*,
    InPlaceModule, //
};

/// The name of the module. The auxiliary device finds its driver by this name.
const MODULE: &CStr = c"mgpu";

#[pin_data]
struct Mgpu {
    #[pin]
    _core: driver::Registration<pci::Adapter<crate::core::Core>>,
    #[pin]
    _card: driver::Registration<auxiliary::Adapter<card::Driver>>,
}

impl InPlaceModule for Mgpu {
    fn init(module: &'static kernel::ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _core <- driver::Registration::new(MODULE, module),
            _card <- driver::Registration::new(MODULE, module),
        })
    }
}

module! {
    type: Mgpu,
    name: "mgpu",
    authors: ["The vvram authors"],
    description: "A GPU that is modelled outside of QEMU",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
    params: {
        timeout_ms: u32 {
            default: 10000,
            description: "How long a job may take without progress before its ring is reset, in ms",
        },
        poll_ms: u32 {
            default: 100,
            description: "Interval of the poll for lost interrupts, in ms",
        },
        invalidate_ms: u32 {
            default: 3000,
            description: "How long the device may take for an invalidation, in ms",
        },
        pin_percent: u64 {
            default: 50,
            description: "How much may be pinned of the VRAM that the CPU and peers see, in percent",
        },
        client_pin_percent: u64 {
            default: 25,
            description: "How much of it may be pinned on the account of one client, in percent",
        },
        unrevocable_percent: u64 {
            default: 100,
            description: "How much of it importers may pin that cannot be revoked, in percent (0: they get none)",
        },
        contexts: u32 {
            default: 511,
            description: "How many contexts of the device address spaces use, at least 9",
        },
        invalidate_reset: u32 {
            default: 1,
            description: "Whether to reset the device if an invalidation is not done (1), or not (0)",
        },
    },
}

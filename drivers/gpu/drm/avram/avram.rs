// SPDX-License-Identifier: GPL-2.0

//! VRAM behind a PCI BAR, exported peer to peer by a split driver.
//!
//! The reference for split drivers. `core` is the driver of the PCI device. It allocates device
//! memory and creates an auxiliary device. `card` is the DRM driver of the auxiliary device and its
//! objects (`gem`) stay in VRAM. [`kernel::drm::gem::peer`] is the policy of the export.

mod card;
mod core;
mod gem;

use kernel::{
    auxiliary,
    driver,
    pci,
    prelude::*,
    InPlaceModule, //
};

/// The name of the module. The auxiliary device finds its driver by this name.
const MODULE: &CStr = c"avram";

#[pin_data]
struct Avram {
    #[pin]
    _core: driver::Registration<pci::Adapter<crate::core::Core>>,
    #[pin]
    _card: driver::Registration<auxiliary::Adapter<card::Driver>>,
}

impl InPlaceModule for Avram {
    fn init(module: &'static kernel::ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _core <- driver::Registration::new(MODULE, module),
            _card <- driver::Registration::new(MODULE, module),
        })
    }
}

module! {
    type: Avram,
    name: "avram",
    authors: ["The vvram authors"],
    description: "VRAM behind a PCI BAR, exported by a driver that is split in two",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
}

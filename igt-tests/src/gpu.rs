// SPDX-License-Identifier: GPL-2.0

//! The GPUs whose objects move: that of vvram, and the modelled one.
//!
//! What their drivers have in common is tested on both, by functions for any [`Gpu`].

use crate::fixture::{Expect, Fixture};
use crate::mgpu::{self, Mgpu};
use crate::pci::PciDevice;
use crate::Stop;

/// A kind of GPU.
pub trait Gpu {
    /// The module that drives it.
    const MODULE: &'static str;

    /// Opens the first device, and its peer.
    ///
    /// # Errors
    ///
    /// Fails the subtest if something is missing.
    fn fixture() -> Result<Fixture, Stop>;

    /// As [`Gpu::fixture`], for tests that need a route.
    ///
    /// # Errors
    ///
    /// Skips the subtest where there is none.
    #[track_caller]
    fn with_route() -> Result<Fixture, Stop> {
        Expect::get()?.need_route()?;
        Self::fixture()
    }
}

/// That of vvram.
#[derive(Debug)]
pub enum Vvram {}

impl Gpu for Vvram {
    const MODULE: &'static str = "vvram";

    fn fixture() -> Result<Fixture, Stop> {
        Fixture::open()
    }
}

/// The modelled one.
#[derive(Debug)]
pub enum Modelled {}

impl Gpu for Modelled {
    const MODULE: &'static str = mgpu::DRIVER;

    fn fixture() -> Result<Fixture, Stop> {
        let gpu = Mgpu::first()?;
        let parent = PciDevice::named(gpu.device());
        Fixture::of(gpu.drm, gpu.pci, parent)
    }
}

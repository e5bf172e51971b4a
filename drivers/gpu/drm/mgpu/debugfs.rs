// SPDX-License-Identifier: GPL-2.0

//! Files in debugfs, for tests: errors that the device makes on request, its count of broken
//! rules, and the jobs of its rings.

use kernel::{
    drm::{
        self,
        Registered, //
    },
    prelude::*,
    seq_file::SeqFile,
    seq_print, //
};

use crate::card::{
    Device,
    Driver, //
};

/// Makes the device fail on request. The text is three decimal numbers: the kind of error, the
/// number of the ring, and an argument.
pub(crate) struct Inject;

#[vtable]
impl drm::debugfs::File for Inject {
    type Driver = Driver;

    const NAME: &'static CStr = c"inject";

    fn write(dev: &Device<Registered>, text: &str) -> Result {
        let mut words = text.split_ascii_whitespace();
        let mut next = || words.next().unwrap_or("0");
        let (what, ring, argument) = (next(), next(), next());

        if words.next().is_some() {
            return Err(EINVAL);
        }
        let what = what.parse().map_err(|_| EINVAL)?;
        let ring = ring.parse().map_err(|_| EINVAL)?;
        let argument = argument.parse().map_err(|_| EINVAL)?;
        dev.registration_data_with(|bound| bound.gpu.regs.inject(what, ring, argument))
    }
}

/// Shows how many rules of the interface of the device the driver has broken so far.
pub(crate) struct Reports;

#[vtable]
impl drm::debugfs::File for Reports {
    type Driver = Driver;

    const NAME: &'static CStr = c"reports";

    fn show(dev: &Device<Registered>, m: &SeqFile) -> Result {
        let reports = dev.registration_data_with(|bound| bound.gpu.regs.reports())?;

        seq_print!(m, "{}\n", reports);
        Ok(())
    }
}

/// Shows how many jobs the rings have, also those that were made and not pushed yet.
pub(crate) struct Rings;

#[vtable]
impl drm::debugfs::File for Rings {
    type Driver = Driver;

    const NAME: &'static CStr = c"rings";

    fn show(dev: &Device<Registered>, m: &SeqFile) -> Result {
        dev.registration_data_with(|bound| {
            seq_print!(m, "copy={}", bound.engine.ring.jobs());
            seq_print!(m, " compute={}\n", bound.compute.0.jobs());
        });
        Ok(())
    }
}

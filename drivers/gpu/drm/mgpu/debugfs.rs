// SPDX-License-Identifier: GPL-2.0

//! Files in debugfs: error injection and the count of broken rules for tests, and the resources
//! used by all clients.

use kernel::{
    drm::{
        self,
        Registered, //
    },
    prelude::*,
    seq_file::SeqFile,
    seq_print, //
};

use crate::{
    card::{
        Device,
        Driver, //
    },
    gpu::{
        COMPUTE,
        COPY, //
    }, //
};

/// Makes the device fail on request. The text has three decimal numbers: the kind of error, the
/// number of the ring and an argument.
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

/// Shows how many rules of the device interface the driver has broken so far.
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

/// Shows the resources used by all clients. A client must not see them. Each line is a name and a
/// number.
pub(crate) struct State;

#[vtable]
impl drm::debugfs::File for State {
    type Driver = Driver;

    const NAME: &'static CStr = c"state";

    fn show(dev: &Device<Registered>, m: &SeqFile) -> Result {
        dev.registration_data_with(|bound| {
            let gpu = &bound.gpu;

            // Includes jobs not pushed yet.
            seq_print!(m, "copy_jobs {}\n", bound.engine.ring.jobs());
            seq_print!(m, "compute_jobs {}\n", bound.compute.0.jobs());
            // Resets of the ring alone or with the whole device.
            seq_print!(m, "copy_resets {}\n", gpu.resets(COPY));
            seq_print!(m, "compute_resets {}\n", gpu.resets(COMPUTE));
            // In bytes.
            seq_print!(m, "aperture_free {}\n", gpu.aperture.free());
        });
        Ok(())
    }
}

/// Shows the number of VMs and the size of all their page tables in bytes. Destroyed VMs are
/// included while the device may still use their memory. This is a file of its own because it waits
/// for invalidations under way.
pub(crate) struct Vms;

#[vtable]
impl drm::debugfs::File for Vms {
    type Driver = Driver;

    const NAME: &'static CStr = c"vms";

    fn show(dev: &Device<Registered>, m: &SeqFile) -> Result {
        dev.registration_data_with(|bound| {
            let contexts = &bound.gpu.contexts;

            seq_print!(m, "count {}\n", contexts.count());
            seq_print!(m, "page_tables {}\n", contexts.memory());
        });
        Ok(())
    }
}

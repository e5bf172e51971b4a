// SPDX-License-Identifier: GPL-2.0

//! The fence of a job cannot be added to a VM whose objects were not validated.

use kernel::{
    drm::gpuvm::{
        DriverGpuVm,
        LockedVm, //
    },
    prelude::*, //
};

#[expect(dead_code)]
fn submit<T: DriverGpuVm>(locked: &mut LockedVm<'_, '_, T>) -> Result {
    // refused: E0599
    #[cfg(refused)]
    locked.reserve(1)?;

    #[cfg(not(refused))]
    locked.validate(|_, _| Ok(()))?.reserve(1)?;
    Ok(())
}

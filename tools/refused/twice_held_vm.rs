// SPDX-License-Identifier: GPL-2.0

//! The private objects of a VM share a reservation, so only one view of them can exist at a time.

use kernel::{
    drm::{
        gem::LockedObject,
        gpuvm::{
            DriverGpuVm,
            LockedVm, //
        }, //
    },
    prelude::*, //
};

fn touch<O: kernel::drm::gem::IntoGEMObject>(object: &mut LockedObject<'_, O>) {
    let _ = object.resv();
}

#[expect(dead_code)]
fn both<T: DriverGpuVm>(locked: &mut LockedVm<'_, '_, T>, objects: [&T::Object; 2]) -> Result {
    let mut first = locked.object(objects[0]).ok_or(ENOENT)?;
    #[cfg(not(refused))]
    touch(&mut first);

    // refused: E0499
    let mut second = locked.object(objects[1]).ok_or(ENOENT)?;
    touch(&mut second);
    #[cfg(refused)]
    touch(&mut first);
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0

//! No object of a VM can be moved as long as the proof exists that the VM is valid.

use kernel::{
    dma_buf::fence::Fence,
    dma_resv::Usage,
    drm::gpuvm::{
        DriverGpuVm,
        LockedVm, //
    },
    prelude::*, //
};

#[expect(dead_code)]
fn submit<T: DriverGpuVm>(
    locked: &mut LockedVm<'_, '_, T>,
    object: &T::Object,
    fence: &Fence,
) -> Result {
    #[cfg(not(refused))]
    locked.object(object).ok_or(ENOENT)?;
    let mut valid = locked.validate(|_, _| Ok(()))?;

    // refused: E0499
    #[cfg(refused)]
    locked.object(object).ok_or(ENOENT)?;
    let slot = valid.reserve(1)?.next().ok_or(ENOSPC)?;
    slot.add_fence(fence, Usage::Bookkeep, Usage::Bookkeep);
    Ok(())
}

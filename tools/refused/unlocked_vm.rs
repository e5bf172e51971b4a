// SPDX-License-Identifier: GPL-2.0

//! While a VM is locked, its reservations can only be reached through the VM, not through the
//! round.

use kernel::{
    drm::{
        exec::ExecCtx,
        gpuvm::{
            DriverGpuVm,
            GpuVm, //
        }, //
    },
    prelude::*, //
};

#[expect(dead_code)]
fn look<T: DriverGpuVm>(ctx: &mut ExecCtx<'_>, vm: &GpuVm<T>, object: &T::Object) -> Result {
    let mut locked = ctx.lock_vm(vm)?;

    // refused: E0499
    #[cfg(refused)]
    ctx.prepare_obj(object, 0)?;

    #[cfg(not(refused))]
    locked.context().prepare_obj(object, 0)?;
    locked.object(object).ok_or(ENOENT)?;
    Ok(())
}

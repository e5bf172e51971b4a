// SPDX-License-Identifier: GPL-2.0

//! The views of two locked objects cannot be swapped: each guard unlocks its own object.

use kernel::{
    drm::{
        exec::ExecCtx,
        gem::ttm::{
            Object,
            TtmObject, //
        }, //
    },
    prelude::*, //
};

#[expect(dead_code)]
fn swap<T: TtmObject>(exec: &mut ExecCtx<'_>, one: &Object<T>, other: &Object<T>) -> Result {
    let mut locked = one.lock(exec)?.ok_or(EALREADY)?;
    let mut reserved = other.reserve(false)?;

    // refused: E0596
    #[cfg(refused)]
    core::mem::swap(&mut locked, &mut *reserved);

    let _ = locked.resv();
    let _ = reserved.resv();
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0

//! A container of fences cannot be added to a reservation; only its parts can.

use kernel::{
    dma_buf::fence::AnyFence,
    dma_resv::{
        LockedResv,
        Usage, //
    },
    prelude::*, //
};

#[expect(dead_code)]
fn add(resv: &mut LockedResv<'_>, any: &AnyFence) -> Result {
    // refused: E0308
    #[cfg(refused)]
    resv.reserve_fences(1)?
        .next()
        .ok_or(ENOSPC)?
        .add_fence(any, Usage::Read);

    for part in any.parts() {
        resv.reserve_fences(1)?
            .next()
            .ok_or(ENOSPC)?
            .add_fence(&part, Usage::Read);
    }
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0

//! The invalidate hook of an importer cannot map the old place again.

use kernel::{
    dma::DataDirection,
    dma_buf::importer::Invalidated, //
};

#[expect(dead_code)]
fn invalidate(at: &mut Invalidated<'_>) {
    at.unmap();

    // refused: E0599
    #[cfg(refused)]
    let _ = at.map(DataDirection::Bidirectional);

    let _ = DataDirection::Bidirectional;
}

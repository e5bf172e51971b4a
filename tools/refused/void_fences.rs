// SPDX-License-Identifier: GPL-2.0

//! The invalidate hook of an importer cannot use up the slots that the exporter has reserved for
//! fences.

use kernel::dma_buf::importer::Invalidated;

#[expect(dead_code)]
fn invalidate(at: &mut Invalidated<'_>) {
    // refused: E0599
    #[cfg(refused)]
    let _ = at.resv();

    at.unpin();
}

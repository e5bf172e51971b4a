// SPDX-License-Identifier: GPL-2.0

//! Who is told that a mapping is void cannot use up the room that the exporter has for fences.

use kernel::dma_buf::importer::Invalidated;

#[expect(dead_code)]
fn invalidate(at: &mut Invalidated<'_>) {
    // refused: E0599
    #[cfg(refused)]
    let _ = at.resv();

    at.unpin();
}

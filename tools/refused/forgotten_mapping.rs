// SPDX-License-Identifier: GPL-2.0

//! An exporter does not get the mapping that is to be undone, which it could forget.

use kernel::dma_buf::{
    exporter::{
        Attached,
        Exporter, //
    },
    mapping::Mapping, //
};

#[expect(dead_code)]
fn unmap<E: Exporter>(exporter: &E, at: &Attached<'_, E>, mapping: Mapping<'_>) {
    let _ = mapping.table();

    // refused: E0061
    #[cfg(refused)]
    exporter.unmap(at, mapping);

    #[cfg(not(refused))]
    exporter.unmap(at);
}

// SPDX-License-Identifier: GPL-2.0

//! The unmap hook of an exporter does not get the mapping, so that it cannot leak the mapping.

use kernel::dma_buf::exporter::{
    mapping::Mapping,
    Attached,
    Exporter, //
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

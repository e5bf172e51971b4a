// SPDX-License-Identifier: GPL-2.0

//! An exporter can only map pages that it shares with the table, so that they are not freed while
//! they are mapped.

use kernel::{
    dma::DataDirection,
    dma_buf::exporter::{
        pages::Pages,
        table::Mapping,
        Exporter,
        MapRequest, //
    },
    prelude::*,
    sync::Arc, //
};

#[expect(dead_code)]
fn map<'r, E>(asked: &MapRequest<'r, E>, pages: Arc<Pages>) -> Result<Mapping<'r>>
where
    E: Exporter,
{
    let dir = DataDirection::Bidirectional;

    // refused: E0308
    #[cfg(refused)]
    let _ = asked.map_pages(&*pages, dir);

    asked.map_pages(&pages, dir)
}

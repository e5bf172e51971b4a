// SPDX-License-Identifier: GPL-2.0

//! Pages that an importer gets are shared with its table, so that nobody frees them while they are
//! mapped.

use kernel::{
    dma::DataDirection,
    dma_buf::{
        exporter::{
            Exporter,
            MapRequest, //
        },
        pages::Pages,
        table::Mapping, //
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

// SPDX-License-Identifier: GPL-2.0

//! A buffer can only be mapped for an importer that has requested the mapping.

use kernel::{
    dma::DataDirection,
    dma_buf::exporter::{
        mapping::{
            Mapping,
            RangeList, //
        },
        Attached,
        Exporter,
        MapRequest, //
    },
    pci::p2pdma::Provider,
    prelude::*,
    sync::Arc,
    types::CovariantForLt, //
};

#[expect(dead_code)]
fn map<'r, E>(
    asked: &MapRequest<'r, E>,
    other: &Attached<'_, E>,
    ranges: &Arc<RangeList>,
) -> Result<Mapping<'r>>
where
    E: Exporter<Bound = CovariantForLt!(Provider<'_>)>,
{
    let dir = DataDirection::Bidirectional;

    // refused: E0599
    #[cfg(refused)]
    let _ = other.map_mmio(|bound| Ok(*bound), ranges, dir);

    let _ = other.maps();
    asked.map_mmio(|bound| Ok(*bound), ranges, dir)
}

// SPDX-License-Identifier: GPL-2.0

//! A buffer cannot be mapped by the BAR of another device than the one that revokes it.

use kernel::{
    dma::DataDirection,
    dma_buf::exporter::{
        mapping::{
            Mapping,
            RangeList, //
        },
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
    at: &MapRequest<'r, E>,
    other: Provider<'_>,
    ranges: &Arc<RangeList>,
) -> Result<Mapping<'r>>
where
    E: Exporter<Bound = CovariantForLt!(Provider<'_>)>,
{
    let dir = DataDirection::Bidirectional;

    // refused: lifetime may not live long enough
    #[cfg(refused)]
    return at.map_mmio(|_| Ok(other), ranges, dir);

    #[cfg(not(refused))]
    at.map_mmio(|bound| Ok(*bound), ranges, dir).inspect(|_| {
        let _ = other;
    })
}

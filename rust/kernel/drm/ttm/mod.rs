// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The mechanism of TTM, the manager of objects moving between VRAM and system memory.
//!
//! It has the engines and their jobs, the CPU copies done instead, the places and the managers of
//! memory. Nothing here knows an object. Objects are in [`gem::ttm`](crate::drm::gem::ttm). So is
//! the [`Device`](crate::drm::gem::ttm::Device) with the rules for moves, lifetimes and locks.
//!
//! C headers: [`include/drm/ttm/ttm_device.h`](srctree/include/drm/ttm/ttm_device.h),
//! [`include/drm/ttm/ttm_bo.h`](srctree/include/drm/ttm/ttm_bo.h)

mod blit;
mod cpu;
pub(super) mod dma;
pub(super) mod engine;
pub(super) mod loss;
pub(super) mod manager;
pub(super) mod placement;
pub(super) mod region;
mod transfer;
pub(super) mod tt;
pub(super) mod validation;
mod view;

pub use self::{
    blit::Blit,
    cpu::{
        CpuEngine,
        CpuRing, //
    },
    dma::Segments,
    engine::{
        CopyQueue,
        Engine,
        Job,
        Plan,
        Work,
        MAX_ENGINES, //
    },
    loss::Arrival,
    placement::{
        OpCtx,
        Place,
        Victims, //
    },
    transfer::{
        Memory,
        Pages,
        Transfer, //
    },
    view::{
        CpuView,
        ScratchWindow,
        SCRATCH_PAGES, //
    }, //
};
pub(crate) use self::{
    blit::{
        CpuAccess,
        VmappedImport, //
    },
    engine::Request,
    loss::Loss,
    region::Charge,
    transfer::Side, //
};

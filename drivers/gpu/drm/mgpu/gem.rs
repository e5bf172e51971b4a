// SPDX-License-Identifier: GPL-2.0

//! The objects.

use kernel::{
    dma_buf::exporter::mapping::RangeList,
    drm::{
        gem::{
            self,
            aperture::{
                aperture_hook,
                Aperture,
                ApertureHook,
                Wait, //
            },
            mappings::mapping_hooks,
            peer::{
                self,
                PeerObject, //
            },
            ttm::{
                ClientOf,
                PinAccount,
                TtmObject, //
            },
            DriverObject,
            LockedObject,
            Mappings,
            SharedResv, //
        },
        ttm::OpCtx,
        vram::{
            Domain,
            Ranges, //
        }, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use crate::{
    aperture::Window,
    card::{
        Bound,
        Data,
        Device,
        Driver, //
    },
    engine::{
        CopyEngine,
        CopyRing, //
    },
    vm, //
};

/// An object. Userspace refers to it by a handle.
pub(crate) type Bo = gem::ttm::Object<BoData>;

/// The driver's part of an object.
#[derive(Clone, Copy)]
pub(crate) struct BoData {
    /// Where the object may be placed.
    pub(crate) domain: Domain,
    /// Importers get the object in VRAM or not at all.
    pub(crate) vram_or_fail: bool,
}

impl BoData {
    /// Creates an object of at least `size` bytes. It reads as zeroes. Its reservation is its own
    /// or the one of an address space.
    ///
    /// # Errors
    ///
    /// The errors of [`Bo::new`].
    pub(crate) fn create(
        self,
        dev: &Device,
        size: u64,
        resv: Option<&SharedResv<Driver>>,
    ) -> Result<ARef<Bo>> {
        let size = size.try_into().map_err(|_| ENOSPC)?;
        let (places, mut ctx) = (self.domain.places(), OpCtx::interruptible());

        match resv {
            None => Bo::new(dev, size, &places, &mut ctx, self),
            Some(resv) => Bo::new_in(dev, resv, size, &places, &mut ctx, self),
        }
    }
}

impl DriverObject for BoData {
    type Driver = Driver;
    type Args = Self;

    fn new(_dev: &Device, _size: usize, args: Self) -> impl PinInit<Self, Error> {
        Ok::<_, Error>(args)
    }
}

impl Mappings for BoData {
    fn evicted(_bound: &Bound<'_>, object: &LockedObject<'_, Bo>) {
        vm::evicted(object);
    }

    fn zap(_bound: &Bound<'_>, object: &LockedObject<'_, Bo>) {
        vm::zap(object);
    }
}

impl Aperture for BoData {
    type Window = Window;

    fn size(bound: &Bound<'_>) -> u64 {
        bound.gpu.aperture.len()
    }

    fn map(
        bound: &Bound<'_>,
        vram: &Ranges,
        pieces: &mut RangeList,
        wait: Wait,
    ) -> Result<Self::Window> {
        let recovery = &bound.gpu.recovery;
        let resets = recovery.device_resets();
        let ret = bound.gpu.aperture.map(vram, pieces, wait);

        bound.gpu.request_reset();
        match ret {
            // The caller tries again.
            Err(e) if e == EIO && recovery.was_stale(resets) => Err(EBUSY),
            ret => ret,
        }
    }

    fn unmap(bound: &Bound<'_>, window: Self::Window) -> Result {
        let ret = bound.gpu.aperture.unmap(window);

        bound.gpu.request_reset();
        ret
    }
}

impl TtmObject for BoData {
    const MAPPINGS: gem::MappingHooks<Self> = mapping_hooks();
    const APERTURE: ApertureHook<Self> = aperture_hook();

    fn ttm(data: &Data) -> &gem::ttm::Device<Self> {
        &data.ttm
    }

    fn domain(&self) -> Domain {
        self.domain
    }

    fn pins(file: &ClientOf<Self>) -> Option<&Arc<PinAccount>> {
        Some(file.inner().get_ref().pins())
    }

    type Engine<'a, 'bound: 'a> = &'a CopyEngine<'bound>;
    type Ring = CopyRing;

    fn engine<'a, 'bound: 'a>(bound: &'a Bound<'bound>, _index: usize) -> &'a CopyEngine<'bound> {
        &bound.engine
    }

    fn end_jobs(bound: &Bound<'_>) {
        bound.compute.0.end();
        bound.engine.ring.end();
    }

    fn flush(bound: &Bound<'_>, _vram: &Ranges) {
        bound.engine.view.bar().flush_all();
    }
}

impl PeerObject for BoData {
    type Class = Bo;

    const OPS: &'static peer::Ops<Self> = kernel::peer_ops!(BoData);

    fn vram_or_fail(&self) -> bool {
        self.vram_or_fail
    }

    /// The exporter places an imported buffer, so these placements do not matter.
    fn import_args() -> Option<Self> {
        Some(Self {
            domain: Domain::System,
            vram_or_fail: false,
        })
    }
}

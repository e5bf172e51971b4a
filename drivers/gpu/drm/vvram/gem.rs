// SPDX-License-Identifier: GPL-2.0

//! The objects.

use kernel::{
    drm::{
        gem::{
            self,
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
            Mappings, //
        },
        ttm::{
            CpuRing,
            OpCtx, //
        },
        vram::{
            Domain,
            Ranges,
            Reclaim, //
        }, //
    },
    pci::p2pdma::BarPages,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use crate::{
    driver::{
        BoundData,
        VvramData,
        VvramDevice,
        VvramDriver, //
    },
    hw::Engine, //
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
    /// Processes may map the object for direct I/O.
    pub(crate) direct_io: bool,
}

impl BoData {
    /// Creates an object of at least `size` bytes. It reads as zeroes.
    ///
    /// # Errors
    ///
    /// The errors of [`Bo::new`].
    pub(crate) fn create(self, dev: &VvramDevice, size: u64) -> Result<ARef<Bo>> {
        let size = size.try_into().map_err(|_| ENOSPC)?;

        Bo::new(
            dev,
            size,
            &self.domain.places(),
            &mut OpCtx::interruptible(),
            self,
        )
    }
}

impl DriverObject for BoData {
    type Driver = VvramDriver;
    type Args = Self;

    fn new(_dev: &VvramDevice, _size: usize, args: Self) -> impl PinInit<Self, Error> {
        Ok::<_, Error>(args)
    }
}

impl Mappings for BoData {
    fn evicted(bound: &BoundData<'_>, object: &LockedObject<'_, Bo>) {
        bound.mapped.evicted(object.object().id());
    }

    fn zap(bound: &BoundData<'_>, object: &LockedObject<'_, Bo>) {
        bound.mapped.zap(object.object().id());
    }
}

impl TtmObject for BoData {
    const MAPPINGS: gem::MappingHooks<Self> = mapping_hooks();

    fn ttm(data: &VvramData) -> &gem::ttm::Device<Self> {
        &data.ttm
    }

    fn domain(&self) -> Domain {
        self.domain
    }

    fn direct_io(&self) -> bool {
        self.direct_io
    }

    fn pages<'a>(bound: &'a BoundData<'_>) -> Option<&'a BarPages<'a>> {
        bound.pages.as_ref()
    }

    fn pins(file: &ClientOf<Self>) -> Option<&Arc<PinAccount>> {
        Some(file.inner().get_ref().pins())
    }

    type Engine<'a, 'bound: 'a> = &'a (dyn Engine + 'bound);
    type Ring = CpuRing;

    fn engine<'a, 'bound: 'a>(
        bound: &'a BoundData<'bound>,
        _index: usize,
    ) -> Self::Engine<'a, 'bound> {
        &*bound.engine
    }

    fn reclaim<'a>(bound: &'a BoundData<'_>) -> Option<&'a dyn Reclaim> {
        bound.svm.as_ref().map(|svm| &**svm as &dyn Reclaim)
    }

    fn flush(bound: &BoundData<'_>, vram: &Ranges) {
        bound.engine.flush(vram);
    }
}

impl PeerObject for BoData {
    type Class = Bo;

    const OPS: &'static peer::Ops<Self> = kernel::peer_ops!(BoData);

    // The CPU does the copies through the BAR.
    const ORDER: peer::Order = peer::Order::Report;

    fn vram_or_fail(&self) -> bool {
        self.vram_or_fail
    }

    /// The exporter places an imported buffer, so these placements do not matter.
    fn import_args() -> Option<Self> {
        Some(Self {
            domain: Domain::System,
            vram_or_fail: false,
            direct_io: false,
        })
    }
}

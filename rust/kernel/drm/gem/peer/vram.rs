// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The VRAM of a DRM device: its BAR, its objects and its exports.

use super::{
    export::GemExport,
    Backing,
    Counters,
    Holders,
    PeerObject, //
};
#[cfg(CONFIG_AUXILIARY_BUS)]
use crate::auxiliary;
use crate::{
    bindings,
    device::{
        self,
        Bound, //
    },
    dma_buf::exporter::exports::{
        Exports,
        ExportsHandle, //
    },
    drm::{
        self,
        gem::{
            DriverObject,
            IntoGEMObject, //
        },
        private::Sealed,
        vram::{
            Allocator,
            BarMapping,
            ObjectNode,
            Objects, //
        }, //
    },
    pci::{
        self,
        p2pdma::Provider, //
    },
    prelude::*,
    sizes::SZ_64K,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex, //
    }, //
};
use core::ptr::{
    self,
    NonNull, //
};

type DriverOf<T> = <T as DriverObject>::Driver;
/// The parent of the DRM device of a driver.
pub type ParentOf<T> = <DriverOf<T> as drm::Driver>::ParentDevice<Bound>;

/// A possible parent of a DRM device with VRAM: the PCI device or an auxiliary device of the PCI
/// device's driver.
///
/// The PCI device is bound as long as the parent is.
pub trait Parent: Sealed {
    /// Returns the PCI device.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not a PCI device.
    fn pci(&self) -> Result<&pci::Device<Bound>>;
}

impl Sealed for pci::Device<Bound> {}

impl Parent for pci::Device<Bound> {
    fn pci(&self) -> Result<&Self> {
        Ok(self)
    }
}

#[cfg(CONFIG_AUXILIARY_BUS)]
impl Sealed for auxiliary::Device<Bound> {}

#[cfg(CONFIG_AUXILIARY_BUS)]
impl Parent for auxiliary::Device<Bound> {
    fn pci(&self) -> Result<&pci::Device<Bound>> {
        self.parent().try_into().inspect_err(|_| {
            let dev: &device::Device<Bound> = self.as_ref();

            dev_err!(dev, "the parent is not a PCI device\n");
        })
    }
}

/// Logs defaults of the PCI driver that are wrong for VRAM.
fn warn_of_defaults<T: PeerObject>(pdev: &pci::Device<Bound>) {
    let dev: &device::Device<Bound> = pdev.as_ref();
    // SAFETY: The device is bound and so has a driver. The driver's table of callbacks does not
    // change.
    let pm = unsafe { (*(*dev.as_raw()).driver).pm.as_ref() };
    // SAFETY: The device is valid.
    let segment = unsafe { bindings::dma_get_max_seg_size(dev.as_raw()) };

    if pm.is_none_or(|pm| pm.suspend.is_none()) {
        dev_warn!(
            pdev,
            "system sleep loses VRAM: the driver has no pci::Driver::SLEEP\n"
        );
    }
    if T::import_args().is_some() && segment <= SZ_64K as u32 {
        dev_warn!(
            pdev,
            "imports are cut at {segment} bytes, see pci::Driver::DMA_MAX_SEG_SIZE\n"
        );
    }
}

/// The VRAM of a DRM device behind a BAR, with its objects and the list of exported buffers.
///
/// A class of objects has one for each device.
pub struct Vram<T: PeerObject> {
    allocator: Arc<Allocator>,
    owner: ARef<device::Device>,
    /// The address of the parent of the DRM device.
    parent: usize,
    bar: u32,
    start: u64,
    visible: u64,
    /// The address of the DRM device. 0 until [`Self::start`].
    drm: Atomic<usize>,
    exports: ExportsHandle<GemExport<T>>,
    counters: Counters,
    holders: Holders,
    objects: Pin<KBox<Mutex<Objects>>>,
    moves: Atomic<u64>,
}

impl<T: PeerObject> Vram<T> {
    /// Creates the VRAM of the PCI device of `parent`. `allocator` allocates it, and the BAR `bar`
    /// shows the first `visible` bytes of it.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no PCI device, if its BAR does not show that much, or if
    ///   [`enable_p2pdma`](pci::Device::enable_p2pdma) was not called. The log says which.
    /// - `ENOMEM` if memory runs out.
    pub(in crate::drm::gem) fn new(
        parent: &ParentOf<T>,
        bar: u32,
        visible: u64,
        allocator: Arc<Allocator>,
    ) -> Result<Self>
    where
        ParentOf<T>: Parent,
    {
        let pdev = parent.pci()?;
        let start = pdev.resource_start(bar).unwrap_or(0);
        let len = pdev.resource_len(bar).unwrap_or(0);

        warn_of_defaults::<T>(pdev);
        if len == 0 || !allocator.can_be_shown(visible, len) || start.checked_add(visible).is_none()
        {
            dev_err!(pdev, "BAR {bar} does not show {visible} bytes of VRAM\n");
            return Err(EINVAL);
        }
        // The driver core is silent about some errors of a probe.
        let exports = Exports::new(pdev, |pdev: &pci::Device<Bound>| pdev.p2pdma_provider(bar))
            .map_err(|e| match e {
                e if e == ENOMEM => e,
                _ => {
                    dev_err!(
                        pdev,
                        "BAR {bar} is no memory, or enable_p2pdma() was not called\n"
                    );
                    EINVAL
                }
            })?;

        let owner: &device::Device<Bound> = pdev.as_ref();
        let owner: &device::Device = owner;
        let parent: &device::Device<Bound> = parent.as_ref();
        Ok(Self {
            allocator,
            owner: owner.into(),
            parent: parent.as_raw().addr(),
            bar,
            start,
            visible,
            drm: Atomic::new(0),
            exports: exports.into_handle(),
            counters: Counters::new(),
            holders: Holders::new(),
            objects: Objects::new()?,
            moves: Atomic::new(0),
        })
    }

    /// Makes this the VRAM of `drm`, which is about to be registered, and the PCI device its DMA
    /// device. `class` is the part of the class of objects in the data of the DRM device.
    ///
    /// [`Self::start`] follows.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `class` is not in the data of `drm`, if `drm` has another parent, or if the
    /// parent was unbound since [`Self::new`].
    pub(in crate::drm::gem) fn prepare<C>(
        &self,
        drm: &drm::UnregisteredDevice<T::Driver>,
        class: &C,
    ) -> Result {
        let data: &<T::Driver as drm::Driver>::Data = drm;
        let dev = drm.as_raw();
        // Only the data of the DRM device lives as long as the DRM device.
        let start = ptr::from_ref(data).addr();
        let inside = start..start + size_of_val(data);
        // SAFETY: The parent of a DRM device never changes.
        let is_parent = unsafe { (*dev).dev }.addr() == self.parent;

        if !inside.contains(&ptr::from_ref(class).addr()) || !is_parent || self.exports.is_closed()
        {
            dev_err!(self.owner, "VRAM is not that of the DRM device\n");
            return Err(EINVAL);
        }

        // SAFETY: Both devices are valid and the DRM device is not in use yet. It keeps the other
        // one until after its data is dropped.
        unsafe { bindings::drm_dev_set_dma_dev(dev, self.owner.as_raw()) };
        Ok(())
    }

    /// Allows objects of `drm`.
    pub(in crate::drm::gem) fn start(&self, drm: &drm::UnregisteredDevice<T::Driver>) {
        self.drm.store(drm.as_raw().addr(), Release);
    }

    /// Returns whether a DRM device may have objects.
    #[inline]
    pub(in crate::drm::gem) fn is_started(&self) -> bool {
        self.drm.load(Acquire) != 0
    }

    /// Returns whether this is the VRAM of `drm`, which may have objects.
    pub(in crate::drm::gem) fn is_of(&self, drm: *mut bindings::drm_device) -> bool {
        self.drm.load(Acquire) == drm.addr()
    }

    /// Checks that `drm` may have objects.
    ///
    /// # Errors
    ///
    /// `EINVAL` if this is not the VRAM of `drm` or `drm` was never about to be registered.
    pub(in crate::drm::gem) fn check(&self, drm: *mut bindings::drm_device) -> Result {
        if !self.is_of(drm) {
            dev_err!(
                self.owner,
                "an object needs VRAM of its DRM device, whose registration has begun\n"
            );
            return Err(EINVAL);
        }
        Ok(())
    }

    /// Maps the BAR, the CPU's view of VRAM, into the kernel. `parent` is the parent of the DRM
    /// device. `name` is shown in `/proc/iomem`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `parent` is that of another device, and the errors of [`BarMapping::new`].
    pub fn map_bar<'a>(
        &self,
        parent: &'a ParentOf<T>,
        name: &'static CStr,
    ) -> Result<BarMapping<'a>>
    where
        ParentOf<T>: Parent,
    {
        let pdev = parent.pci()?;
        let owner: &device::Device<Bound> = pdev.as_ref();

        if owner.as_raw() != self.owner.as_raw() {
            return Err(EINVAL);
        }
        BarMapping::new(pdev, self.bar, name)
    }

    /// Returns the list of buffers exported by `drm`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if this is not the VRAM of `drm`.
    ///
    /// # Safety
    ///
    /// Until the reference ends, `drm` must be registered, or unplugged with its registration data
    /// still there.
    pub(in crate::drm::gem) unsafe fn exports(
        &self,
        drm: *mut bindings::drm_device,
    ) -> Result<&Exports<'static, GemExport<T>>> {
        if !self.is_of(drm) {
            return Err(EINVAL);
        }
        // SAFETY: `drm` is registered only while its parent and therefore the PCI device are bound:
        // see `Parent`. The list belongs to this binding: `prepare()` found it open. It is closed at
        // the end of an unplug.
        Ok(unsafe { self.exports.assume_bound() })
    }

    /// Revokes the buffers exported by `drm`. Does nothing if this is not its VRAM.
    ///
    /// # Safety
    ///
    /// `drm` must be unplugged with its registration data still there.
    pub(in crate::drm::gem) unsafe fn close(&self, drm: *mut bindings::drm_device) {
        // SAFETY: As promised by the caller.
        if let Ok(exports) = unsafe { self.exports(drm) } {
            exports.close();
        }
    }

    /// Returns the BAR as a provider of peer-to-peer memory.
    ///
    /// # Errors
    ///
    /// As for [`Self::exports`].
    ///
    /// # Safety
    ///
    /// As for [`Self::exports`].
    pub(in crate::drm::gem) unsafe fn provider(
        &self,
        drm: *mut bindings::drm_device,
    ) -> Result<&Provider<'_>> {
        // SAFETY: As promised by the caller.
        Ok(unsafe { self.exports(drm) }?.bound())
    }

    /// Returns the allocator of VRAM.
    #[inline]
    pub fn allocator(&self) -> &Arc<Allocator> {
        &self.allocator
    }

    /// Returns the PCI device of the VRAM.
    #[inline]
    pub(in crate::drm::gem) fn owner(&self) -> &device::Device {
        &self.owner
    }

    /// Returns the physical address of VRAM.
    #[inline]
    pub(in crate::drm::gem) fn vram_start(&self) -> u64 {
        self.start
    }

    /// Returns the size of the VRAM visible to the CPU and peers in bytes.
    #[inline]
    pub fn visible(&self) -> u64 {
        self.visible
    }

    /// Returns the counters of outcomes for importers.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the policy for non-revocable importers and the amount they have pinned.
    #[inline]
    pub fn holders(&self) -> &Holders {
        &self.holders
    }

    /// Returns how often the content of an object was moved to or from VRAM.
    #[inline]
    pub fn moves(&self) -> u64 {
        self.moves.load(Relaxed)
    }

    /// Counts a move.
    pub(in crate::drm::gem) fn count_move(&self) {
        self.moves.fetch_add(1, Relaxed);
    }

    /// Returns a unique number for an object.
    pub(in crate::drm::gem) fn number(&self) -> u64 {
        self.objects.lock().number()
    }

    /// Adds an object to the list of all.
    ///
    /// # Safety
    ///
    /// [`Self::remove`] must be called with the same `id` before the memory of the object is freed.
    pub(in crate::drm::gem) unsafe fn insert(&self, obj: &T::Class, id: u64, room: ObjectNode) {
        // SAFETY: The object has a reference and so is valid. It stays in memory until `remove`.
        unsafe {
            self.objects
                .lock()
                .insert(id, NonNull::new_unchecked(obj.as_raw()), room)
        }
    }

    /// Removes an object from the list of all.
    pub(in crate::drm::gem) fn remove(&self, id: u64) {
        self.objects.lock().remove(id);
    }

    /// Returns the object with the number `id`.
    pub fn object(&self, id: u64) -> Option<ARef<T::Class>> {
        self.object_from(id).filter(|obj| obj.id() == id)
    }

    /// Returns the first object whose number is at least `id`.
    ///
    /// To visit all objects, the caller continues with the number after the returned one. Objects
    /// created or freed meanwhile may be missed.
    pub fn object_from(&self, id: u64) -> Option<ARef<T::Class>> {
        let gem = self.objects.lock().get(id)?;

        // SAFETY: The reference just taken belongs to the caller now. All objects on the list are
        // of this class.
        Some(unsafe {
            let obj: &T::Class = IntoGEMObject::from_raw(gem.as_ptr());
            ARef::from_raw(obj.into())
        })
    }
}

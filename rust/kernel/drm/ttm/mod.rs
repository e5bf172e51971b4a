// SPDX-License-Identifier: GPL-2.0 OR MIT

//! TTM, the memory manager for objects that move between VRAM and system memory.
//!
//! - [`Device`] is the memory of one DRM device: VRAM, managed by [`GpuBuddy`], and system memory
//!   from TTM's pool. It belongs into the data of the DRM driver.
//! - [`gem::ttm::Object`] is a GEM object that lives in one of them. TTM decides which, by a list
//!   of [`Place`]s, and evicts the objects that were used least recently.
//! - [`TtmObject`] is what a driver implements. Its methods say where to find things; moves are done
//!   by the CPU unless the device can do them.
//! - [`Window`] is the CPU's view of VRAM.
//!
//! # Lifetimes
//!
//! The [`Device`] lives as long as the DRM device, because objects do; every object keeps the DRM
//! device alive. When the driver is unbound, what was in VRAM is lost: nobody can ask for it any
//! more, as the DRM file gives `ENODEV`, mappings end in `SIGBUS`, and importers were told. No
//! object is moved after that. The addresses are not given to anybody else either: they are those
//! of a device without a driver, whose next driver makes a [`Device`] of its own.
//!
//! # Locking
//!
//! From the outside to the inside:
//!
//! 1. `mmap_lock`, held by a fault,
//! 2. the reservation of an object. Eviction holds a second one; it only tries that lock, unless
//!    it has the ticket of [`Exec`],
//! 3. the SRCU section of [`drm_dev_enter()`](drm::RegistrationGuard), in which VRAM is accessed;
//!    unbinding waits for it,
//! 4. the lock of the allocator of VRAM, and inside of TTM the `lru_lock`.
//!
//! Callbacks of TTM run with 2 held and must not take another reservation.
//!
//! [`GpuBuddy`]: crate::gpu::buddy::GpuBuddy
//! [`Exec`]: srctree/include/drm/drm_exec.h
//! [`gem::ttm::Object`]: drm::gem::ttm::Object
//!
//! C headers: [`include/drm/ttm/ttm_device.h`](srctree/include/drm/ttm/ttm_device.h),
//! [`include/drm/ttm/ttm_bo.h`](srctree/include/drm/ttm/ttm_bo.h)

mod device;
mod placement;
mod transfer;
mod vram;
mod window;

pub use self::{
    device::Device,
    placement::{
        Domain,
        MemType,
        OpCtx,
        Place, //
    },
    transfer::{
        Memory,
        Pages,
        Transfer, //
    },
    vram::{
        Range,
        VramResource, //
    },
    window::Window, //
};

use crate::{
    drm::{
        self,
        gem::{
            self,
            DriverObject, //
        }, //
    },
    prelude::*, //
};

/// The driver's part of an object that lives where TTM puts it.
///
/// It must not own a reference to the DRM device, nor to an object: it may be dropped by a worker
/// that the release of the device waits for. The object itself keeps the device alive.
///
/// See [`peer`](gem::peer) for an example.
pub trait TtmObject: DriverObject<Driver: drm::Driver<Object = gem::ttm::Object<Self>>> {
    /// Returns the memory of the device, which is a part of `data`.
    fn ttm(data: &<Self::Driver as drm::Driver>::Data) -> &Device<Self>;

    /// Returns the CPU's view of VRAM, which the driver keeps in its registration data.
    fn window<'a>(reg: &'a <Self::Driver as drm::Driver>::RegistrationData<'a>) -> &'a Window<'a>;

    /// Returns where the object may live. The answer must not change.
    fn domain(&self) -> Domain;

    /// Moves or clears the content of an object, and returns when that is done.
    ///
    /// Called with the reservation of the object held, while the driver is bound. Sleeps. A driver
    /// whose device can do it gives it the addresses that `transfer` has. One that returns [`Ok`]
    /// without having done it shows what others left in the memory.
    ///
    /// # Errors
    ///
    /// The object stays where it is.
    fn transfer<'a>(
        reg: &'a <Self::Driver as drm::Driver>::RegistrationData<'a>,
        transfer: &Transfer<'_>,
    ) -> Result {
        Self::window(reg).run(transfer)
    }
}

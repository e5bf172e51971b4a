// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The data of a client: an open file of the device.
//!
//! C header: [`include/drm/drm_file.h`](srctree/include/drm/drm_file.h)

use super::TtmObject;
use crate::{
    bindings,
    drm::{
        self,
        gem::{
            ttm::Object,
            BaseObject,
            IntoGEMObject, //
        },
        vram::{
            charge,
            Domain,
            MemType, //
        }, //
    },
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// The share of VRAM that may be pinned, in percent of the VRAM visible to the CPU and peers, for
/// [`Device::set_pin_shares`](super::Device::set_pin_shares). Values of 100 and more are no limit.
///
/// Pinned VRAM is visible at all times. So on a device with an
/// [`Aperture`](crate::drm::gem::aperture::Aperture) these are the shares of its windows that stay.
/// The rest is for page faults and for importers that can be invalidated.
pub struct PinShares {
    /// For all importers and clients together.
    pub all: u64,
    /// For one client.
    pub client: u64,
    /// For non-revocable importers.
    pub unrevocable: u64,
}

/// The VRAM pinned for one client.
///
/// A driver keeps one in each open file and returns it from [`TtmObject::pins`]. While an object is
/// pinned in VRAM, its size is charged once: to the exporting client, or to the client that mapped
/// it for direct I/O if that came first. The pin itself comes from another device, which has no
/// file. A VRAM-only object is charged from its first handle to its end, to the client that got
/// this handle, unless the client may lock memory (`CAP_IPC_LOCK`). The account stays with the
/// object when the client is gone, and the limit of the device still applies.
pub struct PinAccount(Atomic<u64>);

impl Default for PinAccount {
    fn default() -> Self {
        Self::new()
    }
}

impl PinAccount {
    /// Creates an account without charges.
    pub const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Returns how many bytes of VRAM are pinned.
    #[inline]
    pub fn pinned(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Charges `bytes` that are about to be pinned.
    ///
    /// # Errors
    ///
    /// `EDQUOT` if the sum would exceed `limit`.
    pub(crate) fn charge(&self, bytes: u64, limit: u64) -> Result {
        charge(&self.0, bytes, limit)
    }

    pub(crate) fn sub(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Relaxed);
    }
}

/// An open file of the driver of `T`.
pub type ClientOf<T> = drm::File<<<T as drm::gem::DriverObject>::Driver as drm::Driver>::File>;

/// Prints for fdinfo the memory of the objects to which `file` has handles. Returns how many bytes
/// of them are in VRAM visible to the CPU and peers, for a key of the driver.
///
/// The regions are `vram0` and `system`. An object counts for the total of one of them: `vram0` if
/// it may live there and `system` otherwise. It is resident in the region of its placement. System
/// memory that may be swapped out is not resident. Mirrors `drm_show_memory_stats()`, which knows
/// one region.
pub fn show_memory_stats<T: TtmObject>(file: &ClientOf<T>, p: &mut drm::Printer) -> u64 {
    let mut vram = bindings::drm_memory_stats::default();
    let mut system = bindings::drm_memory_stats::default();
    let mut seen = 0;
    let file = file.as_raw();
    let mut id = 0;

    // SAFETY: The file is open, and the lock guards its table of objects.
    unsafe { bindings::spin_lock(&raw mut (*file).table_lock) };
    loop {
        // SAFETY: The lock is held.
        let gem = unsafe { bindings::idr_get_next(&raw mut (*file).object_idr, &mut id) };
        if gem.is_null() {
            break;
        }
        id += 1;

        let gem = gem.cast::<bindings::drm_gem_object>();
        // SAFETY: The table has objects of the driver, so they are of this class. It keeps them
        // while the lock is held.
        let obj: &Object<T> = unsafe { IntoGEMObject::from_raw(gem) };
        let size = obj.size() as u64;

        let total = match obj.domain() {
            Domain::System => &mut system,
            _ => &mut vram,
        };
        // SAFETY: The object is valid.
        if unsafe { bindings::drm_gem_object_is_shared_for_memory_stats(gem) } {
            total.shared += size;
        } else {
            total.private += size;
        }

        let resident = match obj.last_placement() {
            Some(MemType::Vram) => &mut vram,
            Some(MemType::Tt) => &mut system,
            _ => continue,
        };
        resident.resident += size;
        seen += obj.visible_bytes();
        // SAFETY: The object and its reservation are valid. The reservation need not be held.
        if !unsafe { bindings::dma_resv_test_signaled((*gem).resv, READERS) } {
            resident.active += size;
        }
    }
    // SAFETY: The lock is held.
    unsafe { bindings::spin_unlock(&raw mut (*file).table_lock) };

    for (stats, region) in [(&vram, c"vram0"), (&system, c"system")] {
        // SAFETY: The printer and the statistics are valid. The string is NUL terminated.
        unsafe {
            bindings::drm_print_memory_stats(
                p.as_raw(),
                stats,
                bindings::drm_gem_object_status_DRM_GEM_OBJECT_RESIDENT
                    | bindings::drm_gem_object_status_DRM_GEM_OBJECT_ACTIVE,
                region.as_char_ptr(),
            )
        };
    }
    seen
}

/// An object counts as active if it has fences that block a reader.
const READERS: bindings::dma_resv_usage = bindings::dma_resv_usage_DMA_RESV_USAGE_READ;

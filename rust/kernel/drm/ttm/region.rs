// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM and pinned VRAM as regions of the cgroup controller `dmem`.
//!
//! The controller knows a region by its name, which is derived from the name of the device. So the
//! regions are unregistered when the device is unplugged, although its objects may live on. Their
//! charges stay valid and the names are free when a driver is bound to the device again.
//!
//! C header: [`include/linux/cgroup_dmem.h`](srctree/include/linux/cgroup_dmem.h)

use crate::{
    bindings,
    prelude::*, //
};
#[cfg(CONFIG_CGROUP_DMEM)]
use crate::{
    device::Device,
    error::{
        from_err_ptr,
        from_result,
        to_result, //
    },
    pm::RuntimeGuard,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use core::ptr;

/// The two regions of a device.
pub(in crate::drm) struct Regions {
    vram: Region,
    pinned: Region,
}

impl Regions {
    /// Registers `size` bytes of `dev`, the memory of `man`.
    ///
    /// # Safety
    ///
    /// `dev` must be valid. `man` must be an initialized manager that stays until
    /// [`Self::unregister`] has returned or the value is dropped.
    pub(in crate::drm) unsafe fn new(
        dev: *mut bindings::device,
        man: *mut bindings::ttm_resource_manager,
        size: u64,
    ) -> Result<Self> {
        // SAFETY: As promised by the caller.
        unsafe {
            Ok(Self {
                vram: Region::of_vram(dev, man, size)?,
                pinned: Region::of_pins(dev, size)?,
            })
        }
    }

    /// Returns the region of VRAM. It is valid as long as the value but may be unregistered.
    pub(in crate::drm) fn vram(&self) -> *mut bindings::dmem_cgroup_region {
        self.vram.as_raw()
    }

    /// Charges `bytes` to the cgroup of the current task before they are pinned. Sleeps.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the charge exceeds the limit of the cgroup.
    /// - `ENODEV` if the region is unregistered.
    /// - `ENOMEM` if memory runs out.
    pub(in crate::drm) fn charge_pin(&self, bytes: u64) -> Result<Charge> {
        self.pinned.charge(bytes)
    }

    /// Removes the regions from the controller: charges fail with `ENODEV` from now on.
    ///
    /// Existing charges stay and are uncharged as usual. No reservation may be held because this
    /// waits for reclaim, which takes reservations. Sleeps.
    pub(in crate::drm) fn unregister(&self) {
        self.vram.unregister();
        self.pinned.unregister();
    }
}

/// A region. It takes charges until [`Self::unregister`].
///
/// # Invariants
///
/// `region` was registered. It is unregistered once, by the task that changes `registered` to
/// false.
#[cfg(CONFIG_CGROUP_DMEM)]
struct Region {
    region: *mut bindings::dmem_cgroup_region,
    /// A charge of no bytes. It keeps the memory of `region`: TTM reads a region without a lock at
    /// any time when it allocates.
    _memory: Charge,
    registered: Atomic<bool>,
}

// SAFETY: The controller synchronizes access to the region, and the pointers do not change.
#[cfg(CONFIG_CGROUP_DMEM)]
unsafe impl Send for Region {}

// SAFETY: As for `Send`.
#[cfg(CONFIG_CGROUP_DMEM)]
unsafe impl Sync for Region {}

/// A charge of a cgroup for a region until the value is dropped.
///
/// # Invariants
///
/// `pool` was charged `bytes`.
#[cfg(CONFIG_CGROUP_DMEM)]
pub(crate) struct Charge {
    pool: *mut bindings::dmem_cgroup_pool_state,
    bytes: u64,
}

// SAFETY: The controller synchronizes access to the pool, and any task may uncharge it.
#[cfg(CONFIG_CGROUP_DMEM)]
unsafe impl Send for Charge {}

// SAFETY: A reference gives access to nothing.
#[cfg(CONFIG_CGROUP_DMEM)]
unsafe impl Sync for Charge {}

#[cfg(CONFIG_CGROUP_DMEM)]
impl Charge {
    /// Charges the cgroup of the current task.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the charge exceeds the limit of the cgroup.
    /// - `ENODEV` if the region is unregistered.
    /// - `ENOMEM` if memory runs out.
    ///
    /// # Safety
    ///
    /// The memory of `region` must be valid.
    unsafe fn new(region: *mut bindings::dmem_cgroup_region, bytes: u64) -> Result<Self> {
        let mut pool = ptr::null_mut();

        // SAFETY: As promised by the caller; `pool` is written to only.
        to_result(unsafe {
            bindings::dmem_cgroup_try_charge(region, bytes, &mut pool, ptr::null_mut())
        })?;
        // INVARIANT: The pool was charged above.
        Ok(Self { pool, bytes })
    }
}

#[cfg(CONFIG_CGROUP_DMEM)]
impl Drop for Charge {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::dmem_cgroup_uncharge(self.pool, self.bytes) };
    }
}

#[cfg(CONFIG_CGROUP_DMEM)]
static OPS: bindings::dmem_cgroup_ops = bindings::dmem_cgroup_ops {
    reclaim: Some(reclaim_callback),
};

/// # Safety
///
/// Called by the controller with the manager of the region when a limit was lowered.
#[cfg(CONFIG_CGROUP_DMEM)]
unsafe extern "C" fn reclaim_callback(
    pool: *mut bindings::dmem_cgroup_pool_state,
    bytes: u64,
    man: *mut c_void,
) -> c_int {
    from_result(|| {
        // SAFETY: The manager is valid, and so is the device of its pool.
        let dev = unsafe {
            let bdev = (*man.cast::<bindings::ttm_resource_manager>()).bdev;

            Device::from_raw((*bdev).pool.dev)
        };
        // The reclaim moves objects out of VRAM.
        let _runtime_guard = RuntimeGuard::new(dev)?;

        // SAFETY: As promised by the caller.
        Ok(unsafe { bindings::ttm_resource_manager_dmem_reclaim(pool, bytes, man) })
    })
}

#[cfg(CONFIG_CGROUP_DMEM)]
impl Region {
    /// Registers the memory of `man`, `size` bytes of `dev`.
    ///
    /// # Safety
    ///
    /// The requirements of [`Regions::new`].
    unsafe fn of_vram(
        dev: *mut bindings::device,
        man: *mut bindings::ttm_resource_manager,
        size: u64,
    ) -> Result<Self> {
        let init = bindings::dmem_cgroup_init {
            size,
            ops: &OPS,
            reclaim_priv: man.cast(),
        };

        // SAFETY: As promised by the caller; the format has one string.
        unsafe { Self::register(dev, c"drm/%s/vram0", &init) }
    }

    /// Registers the pins of `size` bytes of `dev`. Pinned VRAM cannot be reclaimed.
    ///
    /// # Safety
    ///
    /// `dev` must be valid.
    unsafe fn of_pins(dev: *mut bindings::device, size: u64) -> Result<Self> {
        let init = bindings::dmem_cgroup_init {
            size,
            ..pin_init::zeroed()
        };

        // SAFETY: As promised by the caller; the format has one string.
        unsafe { Self::register(dev, c"drm/%s/pinned", &init) }
    }

    /// # Safety
    ///
    /// `dev` must be valid. All data referenced by `init` must stay until the region is
    /// unregistered. `format` must have one string for the name of the device.
    unsafe fn register(
        dev: *mut bindings::device,
        format: &CStr,
        init: &bindings::dmem_cgroup_init,
    ) -> Result<Self> {
        // SAFETY: As promised by the caller.
        let region = from_err_ptr(unsafe {
            bindings::dmem_cgroup_register_region(
                init,
                format.as_char_ptr(),
                bindings::dev_name(dev),
            )
        })?;
        // SAFETY: The region was registered above.
        let memory = unsafe { Charge::new(region, 0) }
            // SAFETY: As above, and no other code has the region.
            .inspect_err(|_| unsafe { bindings::dmem_cgroup_unregister_region(region) })?;

        // INVARIANT: The region was registered above.
        Ok(Self {
            region,
            _memory: memory,
            registered: Atomic::new(true),
        })
    }

    fn charge(&self, bytes: u64) -> Result<Charge> {
        // SAFETY: `_memory` keeps the memory of the region.
        unsafe { Charge::new(self.region, bytes) }.map_err(|e| if e == EAGAIN { EDQUOT } else { e })
    }

    fn as_raw(&self) -> *mut bindings::dmem_cgroup_region {
        self.region
    }

    fn unregister(&self) {
        if self.registered.xchg(false, Relaxed) {
            // SAFETY: By the type invariant the region was registered, and this is the first task
            // to get here.
            unsafe { bindings::dmem_cgroup_unregister_region(self.region) };
        }
    }
}

#[cfg(CONFIG_CGROUP_DMEM)]
impl Drop for Region {
    fn drop(&mut self) {
        self.unregister();
    }
}

/// There is no such controller in this configuration.
#[cfg(not(CONFIG_CGROUP_DMEM))]
struct Region;

/// There is no such controller in this configuration.
#[cfg(not(CONFIG_CGROUP_DMEM))]
pub(crate) struct Charge;

#[cfg(not(CONFIG_CGROUP_DMEM))]
impl Region {
    /// # Safety
    ///
    /// None; the same as with the controller.
    unsafe fn of_vram(
        _dev: *mut bindings::device,
        _man: *mut bindings::ttm_resource_manager,
        _size: u64,
    ) -> Result<Self> {
        Ok(Self)
    }

    /// # Safety
    ///
    /// None; the same as with the controller.
    unsafe fn of_pins(_dev: *mut bindings::device, _size: u64) -> Result<Self> {
        Ok(Self)
    }

    fn charge(&self, _bytes: u64) -> Result<Charge> {
        Ok(Charge)
    }

    fn as_raw(&self) -> *mut bindings::dmem_cgroup_region {
        ptr::null_mut()
    }

    fn unregister(&self) {}
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM as a region of the cgroup controller `dmem`.
//!
//! The controller knows a region by its name, which is that of the device. So the region has to go
//! when the device is unplugged, although its objects may live on: their charges stay valid, and
//! who binds a driver to the device next gets a region that is alone in having the name.
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
    pm::Awake,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use core::ptr;

/// A region, which takes charges until [`Self::unregister`].
///
/// # Invariants
///
/// - `region` was registered, and is unregistered once, by whoever changes `registered` to false.
/// - `charge` is a charge of no bytes, which keeps the memory of `region`: TTM looks at a region
///   without a lock, at any time when it allocates.
#[cfg(CONFIG_CGROUP_DMEM)]
pub(super) struct Region {
    region: *mut bindings::dmem_cgroup_region,
    charge: *mut bindings::dmem_cgroup_pool_state,
    registered: Atomic<bool>,
}

// SAFETY: The controller synchronizes access to the region, and the pointers do not change.
#[cfg(CONFIG_CGROUP_DMEM)]
unsafe impl Send for Region {}

// SAFETY: As for `Send`.
#[cfg(CONFIG_CGROUP_DMEM)]
unsafe impl Sync for Region {}

#[cfg(CONFIG_CGROUP_DMEM)]
static OPS: bindings::dmem_cgroup_ops = bindings::dmem_cgroup_ops {
    reclaim: Some(reclaim_callback),
};

/// # Safety
///
/// Called by the controller, when a limit was lowered, with the manager that the region is for.
#[cfg(CONFIG_CGROUP_DMEM)]
unsafe extern "C" fn reclaim_callback(
    pool: *mut bindings::dmem_cgroup_pool_state,
    bytes: u64,
    man: *mut c_void,
) -> c_int {
    from_result(|| {
        // SAFETY: The manager is valid, and so is the parent of its device.
        let dev = unsafe {
            let bdev = (*man.cast::<bindings::ttm_resource_manager>()).bdev;

            Device::from_raw((*bdev).pool.dev)
        };
        // Objects are moved from VRAM.
        let _awake = Awake::new(dev)?;

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
    /// `dev` must be valid, and `man` an initialized manager that stays until [`Self::unregister`]
    /// has returned or the value is dropped.
    pub(super) unsafe fn new(
        dev: *mut bindings::device,
        man: *mut bindings::ttm_resource_manager,
        size: u64,
    ) -> Result<Self> {
        let init = bindings::dmem_cgroup_init {
            size,
            ops: &OPS,
            reclaim_priv: man.cast(),
        };
        let mut charge = ptr::null_mut();

        // SAFETY: The format has one string, the name of the device. The region is valid until it
        // is unregistered, and `charge` is written to only.
        unsafe {
            let region = from_err_ptr(bindings::dmem_cgroup_register_region(
                &init,
                c"drm/%s/vram0".as_char_ptr(),
                bindings::dev_name(dev),
            ))?;
            let charged = to_result(bindings::dmem_cgroup_try_charge(
                region,
                0,
                &mut charge,
                ptr::null_mut(),
            ));

            if let Err(e) = charged {
                bindings::dmem_cgroup_unregister_region(region);
                return Err(e);
            }
            // INVARIANT: Registered and charged above.
            Ok(Self {
                region,
                charge,
                registered: Atomic::new(true),
            })
        }
    }

    /// Returns the region, which is valid as long as the value. It may be unregistered.
    pub(super) fn as_raw(&self) -> *mut bindings::dmem_cgroup_region {
        self.region
    }

    /// Takes the region away from the controller: charges fail with `ENODEV` from now on.
    ///
    /// What is charged stays charged, and is uncharged as usual. Waits for reclaim. Sleeps.
    pub(super) fn unregister(&self) {
        if self.registered.xchg(false, Relaxed) {
            // SAFETY: By the type invariant it was registered, and this is the first one to get
            // here.
            unsafe { bindings::dmem_cgroup_unregister_region(self.region) };
        }
    }
}

#[cfg(CONFIG_CGROUP_DMEM)]
impl Drop for Region {
    fn drop(&mut self) {
        self.unregister();
        // SAFETY: By the type invariant it is a charge of no bytes. Nobody looks at the region any
        // more.
        unsafe { bindings::dmem_cgroup_uncharge(self.charge, 0) };
    }
}

/// Nothing, as there is no such controller.
#[cfg(not(CONFIG_CGROUP_DMEM))]
pub(super) struct Region;

#[cfg(not(CONFIG_CGROUP_DMEM))]
impl Region {
    /// # Safety
    ///
    /// None; the same as with the controller.
    pub(super) unsafe fn new(
        _dev: *mut bindings::device,
        _man: *mut bindings::ttm_resource_manager,
        _size: u64,
    ) -> Result<Self> {
        Ok(Self)
    }

    pub(super) fn as_raw(&self) -> *mut bindings::dmem_cgroup_region {
        ptr::null_mut()
    }

    pub(super) fn unregister(&self) {}
}

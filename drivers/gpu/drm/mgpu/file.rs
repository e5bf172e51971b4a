// SPDX-License-Identifier: GPL-2.0

//! The ioctls.

use kernel::{
    drm::{
        self,
        gem::{
            ttm::PinAccount,
            BaseObject, //
        },
        queue::{
            LazyQueue,
            Queue,
            HANGS_MAX, //
        },
        ttm::CopyQueue,
        vram::{
            Domain,
            MemType, //
        },
        Registered, //
    },
    page,
    prelude::*,
    sync::Arc,
    uapi, //
};

use crate::{
    bind::{
        self,
        Vms, //
    },
    card::{
        Bound,
        Device,
        Driver, //
    },
    copy,
    engine::CopyRing,
    exec::{
        self,
        Jobs, //
    },
    gem::{
        Bo,
        BoData, //
    },
    pagetable, //
};

/// An open file of the device.
#[pin_data]
pub(crate) struct File {
    /// The account of the VRAM pinned on behalf of this file.
    pins: Arc<PinAccount>,
    #[pin]
    copies: LazyQueue<CopyQueue<CopyRing>>,
    /// The jobs of the compute engine. When the file is closed, jobs not begun are cancelled before
    /// the address spaces are dropped.
    #[pin]
    jobs: Jobs,
    /// The address spaces.
    #[pin]
    vms: Vms,
}

impl drm::file::DriverFile for File {
    type Driver = Driver;

    fn open(_dev: &Device) -> Result<Pin<KBox<Self>>> {
        let pins = Arc::new(PinAccount::new(), GFP_KERNEL)?;

        KBox::try_pin_init(
            try_pin_init!(Self {
                pins,
                copies <- LazyQueue::new(),
                jobs <- Jobs::new(),
                vms <- Vms::new(),
            }),
            GFP_KERNEL,
        )
    }
}

const PLACE_VRAM: u32 = uapi::DRM_MGPU_GEM_PLACE_VRAM;
const PLACE_SYSTEM: u32 = uapi::DRM_MGPU_GEM_PLACE_SYSTEM;
const PLACE_EITHER: u32 = PLACE_VRAM | PLACE_SYSTEM;
const EXPORT_VRAM_OR_FAIL: u32 = uapi::DRM_MGPU_GEM_EXPORT_VRAM_OR_FAIL;

/// Returns `EINVAL` unless `ok`.
pub(crate) fn check(ok: bool) -> Result {
    if ok {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

impl File {
    /// Returns the account of the VRAM pinned on behalf of this file.
    pub(crate) fn pins(&self) -> &Arc<PinAccount> {
        &self.pins
    }

    /// Returns the queue of the copies of this file.
    pub(crate) fn copies(&self) -> &LazyQueue<CopyQueue<CopyRing>> {
        &self.copies
    }

    /// Returns the jobs of the compute engine.
    pub(crate) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Returns the address spaces.
    pub(crate) fn vms(&self) -> &Vms {
        &self.vms
    }

    /// `DRM_IOCTL_MGPU_GETPARAM`
    pub(crate) fn getparam(
        dev: &Device<Registered>,
        bound: &Bound<'_>,
        args: &mut uapi::drm_mgpu_getparam,
        file: &drm::File<File>,
    ) -> Result<u32> {
        check(args.pad == 0 && args.value == 0)?;

        let file = file.inner().get_ref();
        args.value = match args.param {
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_VRAM_SIZE => dev.ttm.vram_size(),
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_APERTURE_SIZE => bound.gpu.aperture.len(),
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_PAGE_SIZE => page::PAGE_SIZE as u64,
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_VRAM_PIN_LIMIT => dev.ttm.pin_limit(),
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_JOB_HANGS => {
                file.jobs().get().map_or(0, Queue::hangs).into()
            }
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_COPY_HANGS => {
                file.copies().get().map_or(0, CopyQueue::hangs).into()
            }
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_SYNC_MAX => copy::SYNCS.into(),
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_COPIES_MAX => copy::COPIES as u64,
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_VM_MAX => bind::SPACES_MAX as u64,
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_VM_SIZE => pagetable::SPACE,
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_EXEC_OPS_MAX => exec::OPS_MAX.into(),
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_EXEC_SIZE_MAX => exec::SIZE_MAX,
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_EXEC_JOBS_MAX => exec::JOBS as u64,
            uapi::drm_mgpu_param_DRM_MGPU_PARAM_HANGS_MAX => HANGS_MAX.into(),
            _ => return Err(EINVAL),
        };
        Ok(0)
    }

    /// `DRM_IOCTL_MGPU_GEM_CREATE`
    pub(crate) fn gem_create(
        dev: &Device<Registered>,
        _bound: &Bound<'_>,
        args: &mut uapi::drm_mgpu_gem_create,
        file: &drm::File<File>,
    ) -> Result<u32> {
        check(args.handle == 0)?;

        let data = bo_data(args.placements, args.flags)?;
        let bo = match args.vm {
            0 => data.create(dev, args.size, None)?,
            number => {
                let space = file.inner().get_ref().vms().find(number)?;

                data.create(dev, args.size, Some(space.resv()))?
            }
        };

        args.handle = bo.create_handle(file)?;
        args.size = bo.size() as u64;
        Ok(0)
    }

    /// `DRM_IOCTL_MGPU_GEM_MMAP_OFFSET`
    pub(crate) fn gem_mmap_offset(
        _dev: &Device<Registered>,
        _bound: &Bound<'_>,
        args: &mut uapi::drm_mgpu_gem_mmap_offset,
        file: &drm::File<File>,
    ) -> Result<u32> {
        check(args.pad == 0 && args.offset == 0)?;

        args.offset = Bo::lookup_handle(file, args.handle)?.create_mmap_offset()?;
        Ok(0)
    }

    /// `DRM_IOCTL_MGPU_GEM_INFO`
    pub(crate) fn gem_info(
        _dev: &Device<Registered>,
        _bound: &Bound<'_>,
        args: &mut uapi::drm_mgpu_gem_info,
        file: &drm::File<File>,
    ) -> Result<u32> {
        check(args.placement == 0 && args.size == 0 && args.placements == 0 && args.flags == 0)?;
        check(args.pinned == 0 && args.pad == 0 && args.id == 0)?;

        let bo = Bo::lookup_handle(file, args.handle)?;
        let object = bo.reserve(true)?;

        args.placement = match object.mem_type() {
            _ if bo.as_import().is_some() => uapi::drm_mgpu_placement_DRM_MGPU_PLACEMENT_IMPORTED,
            None => uapi::drm_mgpu_placement_DRM_MGPU_PLACEMENT_NONE,
            Some(MemType::Vram) => uapi::drm_mgpu_placement_DRM_MGPU_PLACEMENT_VRAM,
            Some(MemType::Tt | MemType::System) => {
                uapi::drm_mgpu_placement_DRM_MGPU_PLACEMENT_SYSTEM
            }
        };
        args.pinned = object.is_pinned().into();
        args.size = bo.size() as u64;
        (args.placements, args.flags) = match bo.as_import() {
            Some(_) => (0, 0),
            None => placements_and_flags(object.data()),
        };
        args.id = bo.id();
        Ok(0)
    }
}

/// Returns the data of an object with these placements and flags.
///
/// # Errors
///
/// `EINVAL` if there is no placement, if a placement or a flag is unknown or if they contradict
/// each other.
fn bo_data(placements: u32, flags: u32) -> Result<BoData> {
    let domain = match placements {
        PLACE_VRAM => Domain::Vram,
        PLACE_SYSTEM => Domain::System,
        PLACE_EITHER => Domain::Either,
        _ => return Err(EINVAL),
    };
    check(flags & !EXPORT_VRAM_OR_FAIL == 0)?;
    let vram_or_fail = flags & EXPORT_VRAM_OR_FAIL != 0;

    // The flag needs an object that may be placed in VRAM.
    check(!(vram_or_fail && domain == Domain::System))?;
    Ok(BoData {
        domain,
        vram_or_fail,
    })
}

/// Returns the placements and flags that an object was created with.
fn placements_and_flags(bo: &BoData) -> (u32, u32) {
    let placements = match bo.domain {
        Domain::Vram => PLACE_VRAM,
        Domain::System => PLACE_SYSTEM,
        Domain::Either => PLACE_EITHER,
    };
    let flags = if bo.vram_or_fail {
        EXPORT_VRAM_OR_FAIL
    } else {
        0
    };

    (placements, flags)
}

// SPDX-License-Identifier: GPL-2.0

//! The ioctls.

use kernel::{
    drm::{
        self,
        gem::{
            ttm::PinAccount,
            BaseObject, //
        },
        queue::LazyQueue,
        ttm::{
            CopyQueue,
            CpuRing, //
        },
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
    copy,
    driver::{
        BoundData,
        VvramDevice,
        VvramDriver, //
    },
    gem::{
        Bo,
        BoData, //
    },
    vm::{
        self,
        Vm, //
    }, //
};

/// An open file of the device.
#[pin_data]
pub(crate) struct File {
    /// The account of the VRAM pinned on behalf of this file.
    pins: Arc<PinAccount>,
    #[pin]
    copies: LazyQueue<CopyQueue<CpuRing>>,
    #[pin]
    vm: Vm,
}

impl drm::file::DriverFile for File {
    type Driver = VvramDriver;

    fn open(_dev: &VvramDevice) -> Result<Pin<KBox<Self>>> {
        let pins = Arc::new(PinAccount::new(), GFP_KERNEL)?;

        KBox::try_pin_init(
            try_pin_init!(Self {
                pins,
                copies <- LazyQueue::new(),
                vm <- Vm::new(),
            }),
            GFP_KERNEL,
        )
    }
}

const PLACE_VRAM: u32 = uapi::DRM_VVRAM_GEM_PLACE_VRAM;
const PLACE_SYSTEM: u32 = uapi::DRM_VVRAM_GEM_PLACE_SYSTEM;
const PLACE_EITHER: u32 = PLACE_VRAM | PLACE_SYSTEM;
const EXPORT_VRAM_OR_FAIL: u32 = uapi::DRM_VVRAM_GEM_EXPORT_VRAM_OR_FAIL;
const DIRECT_IO: u32 = uapi::DRM_VVRAM_GEM_DIRECT_IO;

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
    pub(crate) fn copies(&self) -> &LazyQueue<CopyQueue<CpuRing>> {
        &self.copies
    }

    /// Returns the address space of this file.
    pub(crate) fn vm(&self) -> &Vm {
        &self.vm
    }

    /// `DRM_IOCTL_VVRAM_GETPARAM`
    pub(crate) fn getparam(
        dev: &VvramDevice<Registered>,
        bound: &BoundData<'_>,
        args: &mut uapi::drm_vvram_getparam,
        _file: &drm::File<File>,
    ) -> Result<u32> {
        check(args.pad == 0 && args.value == 0)?;

        args.value = match args.param {
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_VRAM_SIZE => dev.ttm.vram_size(),
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_VRAM_CPU_VISIBLE_SIZE => dev.ttm.visible(),
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_PAGE_SIZE => page::PAGE_SIZE as u64,
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_VRAM_PIN_LIMIT => dev.ttm.pin_limit(),
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_DIRECT_IO_SIZE => bound
                .pages
                .as_ref()
                .map_or(0, |pages| pages.len().min(dev.ttm.visible())),
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_SYNC_MAX => copy::SYNCS.into(),
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_COPIES_MAX => copy::COPIES as u64,
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_VM_SIZE => vm::SIZE,
            _ => return Err(EINVAL),
        };
        Ok(0)
    }

    /// `DRM_IOCTL_VVRAM_GEM_CREATE`
    pub(crate) fn gem_create(
        dev: &VvramDevice<Registered>,
        bound: &BoundData<'_>,
        args: &mut uapi::drm_vvram_gem_create,
        file: &drm::File<File>,
    ) -> Result<u32> {
        check(args.handle == 0 && args.pad == 0)?;

        let data = bo_data(args.placements, args.flags)?;
        if data.direct_io && bound.pages.is_none() {
            return Err(EOPNOTSUPP);
        }
        let bo = data.create(dev, args.size)?;

        args.handle = bo.create_handle(file)?;
        args.size = bo.size() as u64;
        Ok(0)
    }

    /// `DRM_IOCTL_VVRAM_GEM_MMAP_OFFSET`
    pub(crate) fn gem_mmap_offset(
        _dev: &VvramDevice<Registered>,
        _bound: &BoundData<'_>,
        args: &mut uapi::drm_vvram_gem_mmap_offset,
        file: &drm::File<File>,
    ) -> Result<u32> {
        check(args.pad == 0 && args.offset == 0)?;

        args.offset = Bo::lookup_handle(file, args.handle)?.create_mmap_offset()?;
        Ok(0)
    }

    /// `DRM_IOCTL_VVRAM_GEM_INFO`
    pub(crate) fn gem_info(
        _dev: &VvramDevice<Registered>,
        _bound: &BoundData<'_>,
        args: &mut uapi::drm_vvram_gem_info,
        file: &drm::File<File>,
    ) -> Result<u32> {
        check(args.placement == 0 && args.size == 0 && args.placements == 0 && args.flags == 0)?;
        check(args.pinned == 0 && args.pad == 0 && args.id == 0)?;

        let bo = Bo::lookup_handle(file, args.handle)?;
        let object = bo.reserve(true)?;

        args.placement = match object.mem_type() {
            _ if bo.as_import().is_some() => uapi::drm_vvram_placement_DRM_VVRAM_PLACEMENT_IMPORTED,
            None => uapi::drm_vvram_placement_DRM_VVRAM_PLACEMENT_NONE,
            Some(MemType::Vram) => uapi::drm_vvram_placement_DRM_VVRAM_PLACEMENT_VRAM,
            Some(MemType::Tt | MemType::System) => {
                uapi::drm_vvram_placement_DRM_VVRAM_PLACEMENT_SYSTEM
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
    check(flags & !(EXPORT_VRAM_OR_FAIL | DIRECT_IO) == 0)?;
    let vram_or_fail = flags & EXPORT_VRAM_OR_FAIL != 0;
    let direct_io = flags & DIRECT_IO != 0;

    // Both flags need an object that may be placed in VRAM.
    check(!((vram_or_fail || direct_io) && domain == Domain::System))?;
    Ok(BoData {
        domain,
        vram_or_fail,
        direct_io,
    })
}

/// Returns the placements and flags that an object was created with.
fn placements_and_flags(bo: &BoData) -> (u32, u32) {
    let placements = match bo.domain {
        Domain::Vram => PLACE_VRAM,
        Domain::System => PLACE_SYSTEM,
        Domain::Either => PLACE_EITHER,
    };

    let mut flags = 0;
    if bo.vram_or_fail {
        flags |= EXPORT_VRAM_OR_FAIL;
    }
    if bo.direct_io {
        flags |= DIRECT_IO;
    }
    (placements, flags)
}

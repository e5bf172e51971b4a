// SPDX-License-Identifier: GPL-2.0

//! The ioctls.

use kernel::{
    dma_buf::sync_file::SyncFile,
    drm::{
        self,
        gem::{
            self,
            peer,
            ttm::Part,
            BaseObject, //
        },
        syncobj::SyncObj,
        ttm::PinAccount,
        vram::{
            Domain,
            MemType, //
        },
        Registered, //
    },
    fs::file::{
        self,
        FileDescriptorReservation, //
    },
    page,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    },
    uapi, //
};

use crate::{
    driver::{
        BoundData,
        VvramDevice,
        VvramDriver, //
    },
    gem::{
        Bo,
        BoData, //
    },
    vm::Vm, //
};

/// An open file of the device.
#[pin_data]
pub(crate) struct File {
    /// What is pinned on its behalf.
    pins: Arc<PinAccount>,
    #[pin]
    vm: Vm,
}

impl drm::file::DriverFile for File {
    type Driver = VvramDriver;

    fn open(_dev: &VvramDevice) -> Result<Pin<KBox<Self>>> {
        let pins = Arc::new(PinAccount::new(), GFP_KERNEL)?;

        KBox::try_pin_init(try_pin_init!(Self { pins, vm <- Vm::new() }), GFP_KERNEL)
    }
}

/// Returns `EINVAL` unless `ok`.
fn check(ok: bool) -> Result {
    if ok {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

impl File {
    /// Returns the account for what is pinned on its behalf.
    pub(crate) fn pins(&self) -> &Arc<PinAccount> {
        &self.pins
    }

    /// Returns its address space.
    pub(crate) fn vm(&self) -> &Vm {
        &self.vm
    }

    /// `DRM_IOCTL_VVRAM_GETPARAM`
    pub(crate) fn getparam(
        dev: &VvramDevice<Registered>,
        _bound: &BoundData<'_>,
        args: &mut uapi::drm_vvram_getparam,
        _file: &drm::File<File>,
    ) -> Result<u32> {
        check(args.pad == 0 && args.value == 0)?;

        args.value = match args.param {
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_VRAM_SIZE => dev.ttm.vram_size(),
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_VRAM_CPU_VISIBLE_SIZE => dev.ttm.visible(),
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_PAGE_SIZE => page::PAGE_SIZE as u64,
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_VRAM_FREE => dev.ttm.vram_free(),
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_VRAM_PINNED => dev.ttm.pinned(),
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_VRAM_PIN_LIMIT => dev.ttm.pin_limit(),
            uapi::drm_vvram_param_DRM_VVRAM_PARAM_MOVES => dev.ttm.moves(),
            _ => return Err(EINVAL),
        };
        Ok(0)
    }

    /// `DRM_IOCTL_VVRAM_GEM_CREATE`
    pub(crate) fn gem_create(
        dev: &VvramDevice<Registered>,
        _bound: &BoundData<'_>,
        args: &mut uapi::drm_vvram_gem_create,
        file: &drm::File<File>,
    ) -> Result<u32> {
        check(args.handle == 0)?;

        let bo = bo_data(args.flags)?.create(dev, args.size)?;

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
        check(args.placement == 0 && args.size == 0 && args.flags == 0)?;
        check(args.pinned == 0 && args.id == 0)?;

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
        args.flags = match bo.as_import() {
            Some(_) => 0,
            None => flags(object.data()),
        };
        args.id = bo.id();
        Ok(0)
    }

    /// `DRM_IOCTL_VVRAM_GEM_IMPORT`
    pub(crate) fn gem_import(
        _dev: &VvramDevice<Registered>,
        _bound: &BoundData<'_>,
        args: &mut uapi::drm_vvram_gem_import,
        file: &drm::File<File>,
    ) -> Result<u32> {
        check(args.path == 0 && args.reason == 0 && args.segments == 0 && args.invalidations == 0)?;

        let bo = Bo::lookup_handle(file, args.handle)?;
        let info = peer::import_info::<BoData>(bo.as_import().ok_or(EINVAL)?)?;

        if let Some(outcome) = info.outcome {
            args.path = outcome.path.code();
            args.reason = outcome.reason.code();
        }
        args.segments = info.segments;
        args.invalidations = info.invalidations;
        Ok(0)
    }

    /// `DRM_IOCTL_VVRAM_GEM_COPY`
    pub(crate) fn gem_copy(
        dev: &VvramDevice<Registered>,
        _bound: &BoundData<'_>,
        args: &mut uapi::drm_vvram_gem_copy,
        file: &drm::File<File>,
    ) -> Result<u32> {
        const IN: u32 = uapi::DRM_VVRAM_GEM_COPY_IN_SYNCOBJ | uapi::DRM_VVRAM_GEM_COPY_IN_SYNC_FILE;
        const OUT: u32 =
            uapi::DRM_VVRAM_GEM_COPY_OUT_SYNCOBJ | uapi::DRM_VVRAM_GEM_COPY_OUT_SYNC_FILE;

        check(args.pad == 0 && args.flags & !(IN | OUT) == 0)?;
        check(args.flags & IN != IN && args.flags & OUT != OUT)?;

        let (src, dst) = (
            Bo::lookup_handle(file, args.src)?,
            Bo::lookup_handle(file, args.dst)?,
        );
        let out = OutFence::new(args, file)?;
        wait_in_fence(args, file)?;

        let from = Part {
            object: &*src,
            offset: args.src_offset,
        };
        let to = Part {
            object: &*dst,
            offset: args.dst_offset,
        };
        let fence = gem::ttm::copy(dev, &from, &to, args.size)?;

        match out {
            OutFence::None => (),
            OutFence::SyncObj(obj) => obj.replace_fence(&fence),
            // CAST: File descriptors are not negative.
            OutFence::SyncFile(fd) => args.out_fence = SyncFile::new(&fence)?.install(fd) as u32,
        }
        Ok(0)
    }
}

/// Waits for the fence that a copy is to wait for, if there is one.
fn wait_in_fence(args: &uapi::drm_vvram_gem_copy, file: &drm::File<File>) -> Result {
    let fence = if args.flags & uapi::DRM_VVRAM_GEM_COPY_IN_SYNCOBJ != 0 {
        SyncObj::lookup(file, args.in_fence)?
            .fence()
            .ok_or(EINVAL)?
    } else if args.flags & uapi::DRM_VVRAM_GEM_COPY_IN_SYNC_FILE != 0 {
        SyncFile::fence_of(args.in_fence.try_into()?)?
    } else {
        return check(args.in_fence == 0);
    };

    fence.wait(true)
}

/// Where the fence of a copy goes to. What can fail was done when it is made.
enum OutFence {
    None,
    SyncObj(ARef<SyncObj>),
    SyncFile(FileDescriptorReservation),
}

impl OutFence {
    fn new(args: &uapi::drm_vvram_gem_copy, file: &drm::File<File>) -> Result<Self> {
        if args.flags & uapi::DRM_VVRAM_GEM_COPY_OUT_SYNCOBJ != 0 {
            return SyncObj::lookup(file, args.out_fence).map(Self::SyncObj);
        }

        check(args.out_fence == 0)?;
        if args.flags & uapi::DRM_VVRAM_GEM_COPY_OUT_SYNC_FILE != 0 {
            FileDescriptorReservation::get_unused_fd_flags(file::flags::O_CLOEXEC)
                .map(Self::SyncFile)
        } else {
            Ok(Self::None)
        }
    }
}

/// Returns what an object with these flags is.
///
/// # Errors
///
/// `EINVAL` if the flags are unknown or contradict each other.
fn bo_data(flags: u32) -> Result<BoData> {
    const VRAM: u32 = uapi::DRM_VVRAM_GEM_CREATE_VRAM;
    const VRAM_OR_FAIL: u32 = uapi::DRM_VVRAM_GEM_CREATE_VRAM_OR_FAIL;
    const SYSTEM: u32 = uapi::DRM_VVRAM_GEM_CREATE_SYSTEM;
    const EXPORT_VRAM_OR_FAIL: u32 = uapi::DRM_VVRAM_GEM_CREATE_EXPORT_VRAM_OR_FAIL;
    const EITHER: u32 = VRAM | SYSTEM;
    const ONLY_VRAM: u32 = VRAM | VRAM_OR_FAIL;

    let domain = match flags & !EXPORT_VRAM_OR_FAIL {
        0 | VRAM | EITHER => Domain::Either,
        VRAM_OR_FAIL | ONLY_VRAM => Domain::Vram,
        SYSTEM => Domain::System,
        _ => return Err(EINVAL),
    };
    let vram_or_fail = flags & EXPORT_VRAM_OR_FAIL != 0;

    // It is never where it would have to be.
    check(!(vram_or_fail && domain == Domain::System))?;
    Ok(BoData {
        domain,
        vram_or_fail,
    })
}

/// Returns the flags of an object.
fn flags(bo: &BoData) -> u32 {
    let placements = match bo.domain {
        Domain::Vram => uapi::DRM_VVRAM_GEM_CREATE_VRAM | uapi::DRM_VVRAM_GEM_CREATE_VRAM_OR_FAIL,
        Domain::System => uapi::DRM_VVRAM_GEM_CREATE_SYSTEM,
        Domain::Either => uapi::DRM_VVRAM_GEM_CREATE_VRAM | uapi::DRM_VVRAM_GEM_CREATE_SYSTEM,
    };

    if bo.vram_or_fail {
        placements | uapi::DRM_VVRAM_GEM_CREATE_EXPORT_VRAM_OR_FAIL
    } else {
        placements
    }
}

// SPDX-License-Identifier: GPL-2.0

//! `DRM_IOCTL_MGPU_VM_CREATE`, `_DESTROY` and `_BIND`: the address spaces of a file.

use kernel::{
    drm::{
        self,
        gem::{
            ttm::ioctl::whole_pages,
            BaseObject, //
        },
        Ioctl,
        Registered, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    uapi, //
};

use crate::{
    card::{
        Bound,
        Device, //
    },
    file::{
        check,
        File, //
    },
    gem::Bo,
    pagetable::SPACE,
    vm::AddressSpace, //
};

struct List {
    spaces: KVec<(u32, Arc<AddressSpace>)>,
    /// The number of the newest address space.
    last: u32,
}

/// The maximum number of address spaces of a file.
pub(crate) const SPACES_MAX: usize = 16;

/// The address spaces of a file.
#[pin_data]
pub(crate) struct Vms {
    #[pin]
    list: Mutex<List>,
}

impl Vms {
    pub(crate) fn new() -> impl PinInit<Self> {
        let list = List {
            spaces: KVec::new(),
            last: 0,
        };

        pin_init!(Self {
            list <- new_mutex!(list, "mgpu::Vms"),
        })
    }

    /// Returns an address space by its number.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is none.
    pub(crate) fn find(&self, number: u32) -> Result<Arc<AddressSpace>> {
        let list = self.list.lock();
        let mut spaces = list.spaces.iter();
        let (_, space) = spaces.find(|(n, _)| *n == number).ok_or(ENOENT)?;

        Ok(space.clone())
    }

    /// Adds the address space returned by `make` and returns its number.
    fn create(&self, make: impl FnOnce() -> Result<Arc<AddressSpace>>) -> Result<u32> {
        let mut list = self.list.lock();

        if list.spaces.len() >= SPACES_MAX {
            return Err(ENOSPC);
        }
        let number = list.last.checked_add(1).ok_or(ENOSPC)?;

        list.spaces.push((number, make()?), GFP_KERNEL)?;
        list.last = number;
        Ok(number)
    }

    fn destroy(&self, number: u32) -> Result {
        let mut list = self.list.lock();
        let index = list
            .spaces
            .iter()
            .position(|(n, _)| *n == number)
            .ok_or(ENOENT)?;
        let space = list.spaces.remove(index);

        // This may be the last reference and its drop waits for the device.
        drop(list);
        drop(space);
        Ok(())
    }
}

/// Serves `DRM_IOCTL_MGPU_VM_CREATE`.
pub(crate) fn vm_create(
    dev: &Device<Registered>,
    bound: &Bound<'_>,
    args: &mut uapi::drm_mgpu_vm_create,
    file: &drm::File<File>,
) -> Result<u32> {
    check(args.flags == 0 && args.vm == 0)?;

    args.vm = file
        .inner()
        .get_ref()
        .vms()
        .create(|| AddressSpace::new(dev, bound.pdev.as_ref(), &bound.gpu.contexts))?;
    Ok(0)
}

/// Serves `DRM_IOCTL_MGPU_VM_DESTROY`.
pub(crate) fn vm_destroy(
    _dev: &Device<Registered>,
    _bound: &Bound<'_>,
    args: &mut uapi::drm_mgpu_vm_destroy,
    file: &drm::File<File>,
) -> Result<u32> {
    check(args.pad == 0)?;

    file.inner().get_ref().vms().destroy(args.vm)?;
    Ok(0)
}

/// Serves `DRM_IOCTL_MGPU_VM_FAILURES`.
pub(crate) fn vm_failures(
    _dev: &Device<Registered>,
    _bound: &Bound<'_>,
    args: &mut uapi::drm_mgpu_vm_failures,
    file: &drm::File<File>,
) -> Result<u32> {
    check(args.access == 0 && args.address == 0 && args.faults == 0 && args.hangs == 0)?;

    let failures = file.inner().get_ref().vms().find(args.vm)?.failures();
    args.access = if failures.last.is_write {
        uapi::drm_mgpu_access_DRM_MGPU_ACCESS_WRITE
    } else {
        uapi::drm_mgpu_access_DRM_MGPU_ACCESS_READ
    };
    args.address = failures.last.address;
    args.faults = failures.faults;
    args.hangs = failures.hangs;
    Ok(0)
}

/// Serves `DRM_IOCTL_MGPU_VM_BIND`.
///
/// Waits for jobs that may use the mappings to be replaced. The wait is outside of the section that
/// an unplug waits for, because the jobs may wait for other devices.
pub(crate) fn vm_bind(
    dev: &Device<Ioctl>,
    args: &mut uapi::drm_mgpu_vm_bind,
    file: &drm::File<File>,
) -> Result<u32> {
    check(args.flags == 0)?;
    let va = whole_pages(args.address, args.size, SPACE)?;
    let space = file.inner().get_ref().vms().find(args.vm)?;
    let target = match args.op {
        uapi::drm_mgpu_bind_op_DRM_MGPU_BIND_MAP => {
            let object = Bo::lookup_handle(file, args.handle)?;
            let part = whole_pages(args.offset, args.size, object.size() as u64)?;

            Some((object, part.start))
        }
        uapi::drm_mgpu_bind_op_DRM_MGPU_BIND_UNMAP => {
            check(args.handle == 0 && args.offset == 0)?;
            None
        }
        _ => return Err(EINVAL),
    };

    space.rounds().change(
        || space.is_unmapped(&va),
        || {
            let guard = dev.registration_guard().ok_or(ENODEV)?;
            let ret = match &target {
                Some((object, offset)) => guard.registration_data_with(|bound| {
                    space.map(&guard, bound.pdev.as_ref(), object, *offset, &va)
                }),
                None => space.unmap(&guard, &va),
            };

            guard.registration_data_with(|bound| bound.gpu.request_reset());
            ret
        },
    )?;
    Ok(0)
}

// SPDX-License-Identifier: GPL-2.0

//! Process memory in VRAM, with `DRM_IOCTL_VVRAM_SVM_MIGRATE` and `SVM_EVICT`.
//!
//! The process keeps its addresses. The device itself does not access the memory because it has no
//! page tables of processes. If peers have registered the memory, they access it in VRAM through
//! the BAR.

use kernel::{
    drm::{
        self,
        pagemap::{
            self,
            Registration,
            Segments,
            Visible, //
        },
        ttm::OpCtx,
        vram::{
            Allocation,
            Allocator, //
        },
        Ioctl,
        Registered, //
    },
    page::PAGE_SIZE,
    pci::p2pdma::BarPages,
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    sync::Arc,
    uaccess::{
        UserPtr,
        UserSlice, //
    },
    uapi, //
};

use crate::{
    driver::{
        VvramDevice,
        VvramDriver, //
    },
    file::{
        check,
        File, //
    },
    hw::Engine,
    module_parameters, //
};

/// The data of [`Svm`]: the allocator and the engine for moves of process memory to VRAM and back.
pub(crate) struct Memory<'a> {
    /// The allocator, shared with objects.
    pub(crate) vram: Arc<Allocator>,
    pub(crate) engine: Arc<dyn Engine + 'a>,
}

/// The driver of device-private memory.
pub(crate) struct Svm;

impl pagemap::Driver for Svm {
    type Drm = VvramDriver;
    type Data<'a> = Memory<'a>;
    type Alloc = Allocation;
    type View = Visible;

    fn alloc(drm: &VvramDevice, _memory: &Memory<'_>, size: usize) -> Result<Allocation> {
        drm.ttm.alloc_block(size)
    }

    fn make_room(drm: &VvramDevice, bytes: u64) -> Result<bool> {
        drm.ttm.make_room(bytes, &mut OpCtx::interruptible())
    }

    fn offset(alloc: &Allocation) -> Option<u64> {
        alloc.ranges().offset(0)
    }

    fn copy_to_dev(memory: &Memory<'_>, segments: Segments<'_>) -> Result {
        memory.engine.migrate(segments, &memory.vram)
    }

    fn copy_to_ram(memory: &Memory<'_>, segments: Segments<'_>) -> Result {
        memory.engine.migrate(segments, &memory.vram)
    }
}

/// Creates device-private pages for all of VRAM unless the parameter `svm` is 0. If the BAR has
/// struct pages, peers reach the first `visible` bytes.
pub(crate) fn register<'a>(
    drm: &drm::devres::Unregistered<'_, 'a, VvramDriver>,
    pages: Option<BarPages<'a>>,
    visible: u64,
    memory: Memory<'a>,
) -> Result<Option<Registration<'a, Svm>>> {
    if module_parameters::svm.value() == 0 {
        return Ok(None);
    }

    let size = usize::try_from(memory.vram.size())?;
    let bar = pages.map(|pages| (pages, Visible::new(memory.vram.clone(), visible)));

    Registration::new(drm, size, bar, Ok(memory)).map(Some)
}

/// The file `svm` in debugfs. It shows the number of bytes of VRAM held by memory of processes,
/// including bytes not free again yet after this memory has left them. It also shows the number of
/// pages moved from VRAM to system memory.
pub(crate) struct Usage;

#[vtable]
impl drm::debugfs::File for Usage {
    type Driver = VvramDriver;

    const NAME: &'static CStr = c"svm";

    fn show(dev: &VvramDevice<Registered>, m: &SeqFile) -> Result {
        let (held, moved_back) = dev.registration_data_with(|bound| {
            let svm = bound.svm.as_ref();

            svm.map_or((0, 0), |svm| (svm.held(), svm.moved_back()))
        });

        seq_print!(m, "held {held}\n");
        seq_print!(m, "moved_back {moved_back}\n");
        Ok(())
    }
}

/// Returns the addresses of a range.
///
/// # Errors
///
/// `EINVAL` if the range is empty, not made of whole pages or not in the address space. `EINVAL`
/// also for an unknown flag.
fn range_of(args: &uapi::drm_vvram_svm_range) -> Result<core::ops::Range<usize>> {
    let (start, size) = (usize::try_from(args.address)?, usize::try_from(args.size)?);
    let end = start.checked_add(size).ok_or(EINVAL)?;

    check(args.flags == 0 && args.pad == 0 && size != 0)?;
    check((start | end) % PAGE_SIZE == 0)?;
    Ok(start..end)
}

/// `DRM_IOCTL_VVRAM_SVM_MIGRATE`
pub(crate) fn migrate(
    dev: &VvramDevice<Ioctl>,
    args: &mut uapi::drm_vvram_svm_range,
    _file: &drm::File<File>,
) -> Result<u32> {
    let range = range_of(args)?;

    pagemap::migrate::<Svm>(
        dev,
        |bound| bound.svm.as_deref(),
        current!().mm().ok_or(EFAULT)?,
        range,
    )?;
    Ok(0)
}

/// `DRM_IOCTL_VVRAM_SVM_EVICT`
pub(crate) fn evict(
    dev: &VvramDevice<Ioctl>,
    args: &mut uapi::drm_vvram_svm_range,
    _file: &drm::File<File>,
) -> Result<u32> {
    let range = range_of(args)?;

    drop(dev.registration_guard().ok_or(ENODEV)?);
    // A read by the CPU moves a page to system memory because the CPU cannot access it in VRAM.
    for at in range.step_by(PAGE_SIZE) {
        UserSlice::new(UserPtr::from_addr(at), 1)
            .reader()
            .read::<u8>()?;
        if current!().signal_pending() {
            return Err(ERESTARTSYS);
        }
    }
    Ok(0)
}

// SPDX-License-Identifier: GPL-2.0

//! Plain ranges of a BAR as dma-bufs, from the driver bar_export.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use crate::drm::{ioctl, DmaBuf};
use crate::misc;
use crate::pci::PciDevice;
use crate::rebind::{Overridden, Unbound};
use crate::uapi::{self, BarExport, BarExportRange};
use crate::{Stop, SysError};

const DRIVER: &str = "bar_export";
/// The BAR of ivshmem that shows the memory.
pub const MEMORY: u32 = 2;

/// The device, bound to bar_export in place of its own driver. The drop of this binds its driver
/// again.
#[derive(Debug)]
pub struct Exporter {
    gpu: Overridden,
    // Dropped last; the drop binds the old driver again.
    _own: Unbound,
}

impl Exporter {
    /// Binds the device to bar_export.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the module is missing, or cannot be bound to the device.
    #[track_caller]
    pub fn new() -> Result<Self, Stop> {
        Self::of(&PciDevice::vvram()?)
    }

    /// Binds any PCI device to bar_export.
    ///
    /// # Errors
    ///
    /// As for [`Exporter::new`].
    #[track_caller]
    pub fn of(gpu: &PciDevice) -> Result<Self, Stop> {
        let loaded = Command::new("modprobe").arg(DRIVER).status();
        check!(
            loaded.as_ref().is_ok_and(|status| status.success()),
            "modprobe {DRIVER}: {loaded:?}"
        );
        let own = Unbound::new(gpu)?;
        let gpu = Overridden::new(gpu, DRIVER)?;
        Ok(Self { gpu, _own: own })
    }

    /// The device.
    pub fn gpu(&self) -> &PciDevice {
        self.gpu.device()
    }

    /// Opens the character device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it does not appear.
    #[track_caller]
    pub fn open(&self) -> Result<File, Stop> {
        let file = misc::poll(Duration::from_secs(5), || self.try_open().ok());
        file.ok_or_else(|| Stop::fail(format_args!("there is no {}", path(self.gpu()))))
    }

    /// Opens the character device, which must exist.
    pub fn try_open(&self) -> Result<File, SysError> {
        open(self.gpu())
    }
}

fn path(device: &PciDevice) -> String {
    format!("/dev/bar-export-{}", device.name())
}

/// Opens the character device of a PCI device that bar_export has.
pub fn open(device: &PciDevice) -> Result<File, SysError> {
    let path = path(device);
    misc::open(path.as_ref())
}

/// Exports the ranges of an argument, which may be invalid.
pub fn export_raw(bar_file: &File, argument: &mut BarExport) -> Result<DmaBuf, SysError> {
    // The text is only made if there is an error, because its cost would be measured, too.
    let before = *argument;
    let fd = ioctl(
        bar_file.as_raw_fd(),
        uapi::BAR_EXPORT_IOC_EXPORT,
        argument,
        || format!("BAR_EXPORT_IOC_EXPORT({before:x?})"),
    )?;
    // SAFETY: the ioctl returned a new file descriptor, which nothing else owns.
    Ok(DmaBuf::new(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The array of the ioctl for ranges (offset and length).
pub fn request(ranges: &[(u64, u64)]) -> Vec<BarExportRange> {
    let range = |&(offset, size)| BarExportRange { offset, size };
    ranges.iter().map(range).collect()
}

/// Exports the ranges of a BAR in an array of [`request`] as one buffer.
pub fn export_request(
    bar_file: &File,
    bar: u32,
    request: &[BarExportRange],
) -> Result<DmaBuf, SysError> {
    let mut argument = BarExport {
        bar,
        count: request.len() as u32,
        ranges: request.as_ptr() as u64,
        ..Default::default()
    };
    export_raw(bar_file, &mut argument)
}

/// Exports ranges (offset and length) of a BAR as one buffer.
pub fn export_ranges(bar_file: &File, bar: u32, ranges: &[(u64, u64)]) -> Result<DmaBuf, SysError> {
    export_request(bar_file, bar, &request(ranges))
}

/// Exports `size` bytes at `offset` of a BAR.
pub fn export(bar_file: &File, bar: u32, offset: u64, size: u64) -> Result<DmaBuf, SysError> {
    export_ranges(bar_file, bar, &[(offset, size)])
}

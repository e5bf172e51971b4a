// SPDX-License-Identifier: GPL-2.0

//! vfio-pci, which exports ranges of a BAR as a dma-buf: the exporter in C that others are compared
//! with.

use std::fs;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::drm::{ioctl_raw, DmaBuf};
use crate::misc;
use crate::pci::PciDevice;
use crate::rebind::Overridden;
use crate::{Outcome, Stop, SysError};

// From include/uapi/linux/vfio.h.
const KIND: u64 = b';' as u64;
const SET_IOMMU: u64 = (KIND << 8) | 102;
const GROUP_SET_CONTAINER: u64 = (KIND << 8) | 104;
const GROUP_GET_DEVICE_FD: u64 = (KIND << 8) | 106;
const DEVICE_FEATURE: u64 = (KIND << 8) | 117;
const FEATURE_GET: u32 = 1 << 16;
const FEATURE_DMA_BUF: u32 = 11;
const TYPE1V2_IOMMU: u64 = 3;
const NOIOMMU_IOMMU: u64 = 8;
const CONFIG_REGION: u64 = 7 << 40;
const PCI_COMMAND: u64 = 4;
const PCI_COMMAND_MEMORY: u8 = 2;

const DRIVER: &str = "vfio-pci";

/// A device that is bound to vfio-pci, with its memory enabled. The drop of this unbinds it.
#[derive(Debug)]
pub struct Vfio {
    device: File,
    // The device can only be used while these are open.
    _group: File,
    _container: File,
    // Dropped last, because the unbind waits until the device is closed.
    _overridden: Overridden,
}

fn modprobe(module: &str) -> Outcome {
    let status = Command::new("modprobe").arg(module).status();
    check!(
        status.as_ref().is_ok_and(|status| status.success()),
        "modprobe {module}: {status:?}"
    );
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), SysError> {
    fs::write(path, text)
        .map_err(|error| SysError::io(format!("write({}, {text})", path.display()), &error))
}

fn call(fd: RawFd, request: u64, argument: u64, what: &str) -> Result<i32, SysError> {
    // SAFETY: callers pass a number, or the address of an argument of the size that the kernel
    // expects for this request.
    unsafe { ioctl_raw(fd, request, argument, || what.to_string()) }
}

impl Vfio {
    /// Binds a device that has no driver to vfio-pci, and opens it.
    ///
    /// # Errors
    ///
    /// Fails if a module is missing, or vfio-pci cannot be bound.
    #[track_caller]
    pub fn open(device: &PciDevice) -> Result<Self, Stop> {
        for module in ["vfio", "vfio_iommu_type1", "vfio-pci"] {
            modprobe(module)?;
        }
        // There is no IOMMU, or one without interrupt remapping. The parameters are set in sysfs
        // and not by modprobe, because one module loads another.
        for parameter in [
            "vfio/parameters/enable_unsafe_noiommu_mode",
            "vfio_iommu_type1/parameters/allow_unsafe_interrupts",
        ] {
            write(&Path::new("/sys/module").join(parameter), "1")?;
        }
        let overridden = Overridden::new(device, DRIVER)?;

        let group = misc::poll(Duration::from_secs(5), || {
            let names = fs::read_dir("/dev/vfio").ok()?.flatten();
            let mut paths = names.map(|entry| entry.path()).filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("noiommu-") || name.bytes().all(|b| b.is_ascii_digit())
            });
            paths.next()
        });
        let Some(group_path) = group else {
            fail!("vfio-pci made no group in /dev/vfio");
        };
        let unsafe_group = group_path.to_string_lossy().contains("noiommu");
        let container = misc::open(Path::new("/dev/vfio/vfio"))?;
        let group = misc::open(&group_path)?;
        let container_fd = container.as_raw_fd();
        call(
            group.as_raw_fd(),
            GROUP_SET_CONTAINER,
            std::ptr::from_ref(&container_fd) as u64,
            "VFIO_GROUP_SET_CONTAINER",
        )?;
        let iommu = if unsafe_group {
            NOIOMMU_IOMMU
        } else {
            TYPE1V2_IOMMU
        };
        call(container_fd, SET_IOMMU, iommu, "VFIO_SET_IOMMU")?;
        let Ok(name) = std::ffi::CString::new(device.name()) else {
            fail!("a PCI name with a NUL");
        };
        let fd = call(
            group.as_raw_fd(),
            GROUP_GET_DEVICE_FD,
            name.as_ptr() as u64,
            "VFIO_GROUP_GET_DEVICE_FD",
        )?;
        // SAFETY: the kernel made a new fd that nothing else owns.
        let device = File::from(unsafe { OwnedFd::from_raw_fd(fd) });

        let vfio = Self {
            device,
            _group: group,
            _container: container,
            _overridden: overridden,
        };
        vfio.set_memory(true)?;
        Ok(vfio)
    }

    /// Enables the memory of the device, or disables it, which revokes its dma-bufs.
    pub fn set_memory(&self, enabled: bool) -> Result<(), SysError> {
        let at = CONFIG_REGION + PCI_COMMAND;
        let mut command = [0u8; 1];
        self.device
            .read_exact_at(&mut command, at)
            .map_err(|error| SysError::io("reading PCI_COMMAND", &error))?;
        command[0] &= !PCI_COMMAND_MEMORY;
        if enabled {
            command[0] |= PCI_COMMAND_MEMORY;
        }
        self.device
            .write_all_at(&command, at)
            .map_err(|error| SysError::io("writing PCI_COMMAND", &error))
    }

    /// The argument of the ioctl for ranges (offset and length) of a BAR.
    pub fn request(bar: u32, ranges: &[(u64, u64)]) -> Vec<u32> {
        // struct vfio_device_feature, then struct vfio_device_feature_dma_buf.
        let mut words = vec![
            (24 + 16 * ranges.len()) as u32,
            FEATURE_GET | FEATURE_DMA_BUF,
            bar,
            (libc::O_CLOEXEC | libc::O_RDWR) as u32,
            0,
            ranges.len() as u32,
        ];
        for (offset, length) in ranges {
            for value in [offset, length] {
                words.extend([*value as u32, (*value >> 32) as u32]);
            }
        }
        words
    }

    /// Exports ranges (offset and length) of a BAR as one buffer.
    pub fn export(&self, bar: u32, ranges: &[(u64, u64)]) -> Result<DmaBuf, SysError> {
        self.export_request(&mut Self::request(bar, ranges))
    }

    /// Exports the ranges in an argument of [`Vfio::request`] as one buffer.
    pub fn export_request(&self, words: &mut [u32]) -> Result<DmaBuf, SysError> {
        let argument = words.as_mut_ptr() as u64;
        // The text is only made if there is an error, because its cost would be measured, too.
        // SAFETY: the argument has the size that is in it.
        let fd = unsafe {
            ioctl_raw(self.device.as_raw_fd(), DEVICE_FEATURE, argument, || {
                format!("VFIO_DEVICE_FEATURE_DMA_BUF({} bytes)", words[0])
            })
        }?;
        // SAFETY: the kernel made a new fd that nothing else owns.
        Ok(DmaBuf::new(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

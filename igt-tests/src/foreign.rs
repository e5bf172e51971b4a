// SPDX-License-Identifier: GPL-2.0

//! dma-bufs of system memory, from other exporters.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::drm::{ioctl, open_other, prime_export, DmaBuf};
use crate::heap;
use crate::map::PAGE;
use crate::misc;
use crate::rebind;
use crate::uapi::{self, DrmModeCreateDumb, UdmabufCreate};
use crate::{Stop, SysError};

/// The exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The system heap.
    Heap,
    /// A memfd of the process.
    Udmabuf,
    /// Another DRM driver.
    Vgem,
}

/// All of them.
pub const KINDS: [Kind; 3] = [Kind::Heap, Kind::Udmabuf, Kind::Vgem];

/// A dma-buf, and the module that it needs.
#[derive(Debug)]
pub struct Foreign {
    /// The dma-buf.
    pub buffer: DmaBuf,
    // Dropped after the buffer, which uses the module.
    _vgem: Option<Vgem>,
}

/// Makes a dma-buf of some pages.
///
/// # Errors
///
/// Fails the subtest if the exporter is missing, or fails.
#[track_caller]
pub fn make(kind: Kind, pages: usize) -> Result<Foreign, Stop> {
    let (buffer, vgem) = match kind {
        Kind::Heap => (heap::allocate((pages * PAGE) as u64)?, None),
        Kind::Udmabuf => (udmabuf(pages)?, None),
        Kind::Vgem => {
            let vgem = Vgem::open()?;
            (vgem.dumb(pages)?, Some(vgem))
        }
    };
    Ok(Foreign {
        buffer,
        _vgem: vgem,
    })
}

fn udmabuf(pages: usize) -> Result<DmaBuf, Stop> {
    const NAME: &CStr = c"vvram";
    const NODE: &str = "/dev/udmabuf";
    let len = (pages * PAGE) as libc::off_t;
    // SAFETY: the name is NUL terminated.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(SysError::last("memfd_create").into());
    }
    // SAFETY: the kernel made a new fd that nothing else owns.
    let memfd = unsafe { File::from_raw_fd(fd) };
    // SAFETY: plain system calls on an fd that is open.
    let sealed = unsafe {
        libc::ftruncate(fd, len) == 0
            && libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0
    };
    if !sealed {
        return Err(SysError::last("ftruncate or F_ADD_SEALS of a memfd").into());
    }
    // The kernel allocates pages that are adjacent in memory one after the other, so these are not
    // adjacent in the buffer.
    for page in (0..pages).step_by(2).chain((1..pages).step_by(2)) {
        memfd
            .write_all_at(&[0], (page * PAGE) as u64)
            .map_err(|error| SysError::io("write to a memfd".to_string(), &error))?;
    }
    let node = misc::open(NODE.as_ref())?;
    let mut argument = UdmabufCreate {
        memfd: memfd.as_raw_fd() as u32,
        flags: 1,
        offset: 0,
        size: len as u64,
    };
    let fd = ioctl(
        node.as_raw_fd(),
        uapi::UDMABUF_CREATE,
        &mut argument,
        || "UDMABUF_CREATE".to_string(),
    )?;
    // SAFETY: as above.
    Ok(DmaBuf::new(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The vgem device. Its module is unloaded again if this loaded it.
#[derive(Debug)]
pub struct Vgem {
    file: Option<File>,
    loaded: bool,
}

impl Vgem {
    /// Opens the device, for which the module may have to be loaded.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none.
    #[track_caller]
    pub fn open() -> Result<Self, Stop> {
        let mut vgem = Self {
            file: open_other("vgem"),
            loaded: false,
        };
        if vgem.file.is_none() {
            let status = Command::new("modprobe").arg("vgem").status();
            vgem.loaded = status.is_ok_and(|status| status.success());
            vgem.file = open_other("vgem");
        }
        check!(
            vgem.file.is_some(),
            "no vgem device, and modprobe vgem gives none"
        );
        Ok(vgem)
    }

    /// The file descriptor, -1 if it is closed.
    pub fn fd(&self) -> RawFd {
        self.file.as_ref().map_or(-1, |file| file.as_raw_fd())
    }

    fn dumb(&self, pages: usize) -> Result<DmaBuf, SysError> {
        let mut argument = DrmModeCreateDumb {
            height: pages as u32,
            width: (PAGE / 4) as u32,
            bpp: 32,
            ..Default::default()
        };
        ioctl(
            self.fd(),
            uapi::DRM_IOCTL_MODE_CREATE_DUMB,
            &mut argument,
            || "MODE_CREATE_DUMB of vgem".to_string(),
        )?;
        // The handle is closed with the file.
        prime_export(
            self.fd(),
            argument.handle,
            uapi::DRM_CLOEXEC | uapi::DRM_RDWR,
        )
    }
}

impl Drop for Vgem {
    fn drop(&mut self) {
        self.file = None;
        if self.loaded {
            let _ = rebind::delete_module("vgem");
        }
    }
}

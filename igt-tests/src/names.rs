// SPDX-License-Identifier: GPL-2.0

//! Names that a program gives to clients and buffers.

use std::os::fd::BorrowedFd;

use crate::drm::{ioctl, ioctl_raw, DmaBuf, Drm};
use crate::uapi::{self, DrmSetClientName};
use crate::SysError;

impl Drm {
    /// Names the client.
    pub fn set_name(&self, name: &str) -> Result<(), SysError> {
        let mut argument = DrmSetClientName {
            name_len: name.len() as u64,
            name: name.as_ptr() as u64,
        };
        let request = uapi::DRM_IOCTL_SET_CLIENT_NAME;
        ioctl(self.fd(), request, &mut argument, || {
            format!("SET_CLIENT_NAME({name:?})")
        })?;
        Ok(())
    }
}

impl DmaBuf {
    /// Names the buffer.
    pub fn set_name(&self, name: &str) -> Result<(), SysError> {
        let text = format!("{name}\0");
        // SAFETY: the kernel reads a string that is NUL terminated, and writes nothing.
        unsafe {
            ioctl_raw(
                self.fd(),
                uapi::DMA_BUF_SET_NAME,
                text.as_ptr() as u64,
                || format!("DMA_BUF_SET_NAME({name:?})"),
            )
        }?;
        Ok(())
    }

    /// Another file descriptor of the same buffer.
    pub fn dup(&self) -> Result<Self, SysError> {
        // SAFETY: the fd is open as long as the value exists.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd()) };
        let copy = fd.try_clone_to_owned();
        Ok(Self::new(
            copy.map_err(|error| SysError::io("dup", &error))?,
        ))
    }
}

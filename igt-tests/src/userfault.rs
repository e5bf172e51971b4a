// SPDX-License-Identifier: GPL-2.0

//! userfaultfd: an access to a missing page waits until this process supplies the page.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

use crate::drm::ioctl;
use crate::map::{Map, PAGE};
use crate::misc;
use crate::uapi::ioc;
use crate::{Outcome, SysError};

const UFFD_API: u64 = 0xaa;

/// `struct uffdio_api`
#[repr(C)]
#[derive(Debug, Default)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`
#[repr(C)]
#[derive(Debug, Default)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_zeropage`
#[repr(C)]
#[derive(Debug, Default)]
struct ZeroPage {
    start: u64,
    len: u64,
    mode: u64,
    zeropage: i64,
}

/// `struct uffdio_copy`
#[repr(C)]
#[derive(Debug, Default)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copy: i64,
}

const IOC_API: u64 = ioc(3, UFFD_API, 0x3f, size_of::<Api>());
const IOC_REGISTER: u64 = ioc(3, UFFD_API, 0x00, size_of::<Register>());
const IOC_ZEROPAGE: u64 = ioc(3, UFFD_API, 0x04, size_of::<ZeroPage>());
const IOC_COPY: u64 = ioc(3, UFFD_API, 0x03, size_of::<Copy>());
/// Handle accesses to missing pages.
const MODE_MISSING: u64 = 1;

const _: () = {
    assert!(IOC_API == 0xc018_aa3f);
    assert!(IOC_REGISTER == 0xc020_aa00);
    assert!(IOC_COPY == 0xc028_aa03);
    assert!(IOC_ZEROPAGE == 0xc020_aa04);
};

/// A missing page of a mapping: an access to it waits.
#[derive(Debug)]
pub struct Missing<'a> {
    file: File,
    map: &'a Map,
    page: usize,
}

impl<'a> Missing<'a> {
    /// Makes a page of a mapping missing.
    pub fn new(map: &'a Map, page: usize) -> Result<Self, SysError> {
        // SAFETY: a plain system call.
        let fd =
            unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if fd < 0 {
            return Err(SysError::last("userfaultfd()"));
        }
        // SAFETY: the kernel made a new fd that nothing else owns.
        let file = unsafe { File::from_raw_fd(fd as i32) };
        let mut api = Api {
            api: UFFD_API,
            ..Default::default()
        };
        ioctl(file.as_raw_fd(), IOC_API, &mut api, || {
            "UFFDIO_API".to_string()
        })?;
        let missing = Self { file, map, page };
        let mut register = Register {
            start: missing.address(),
            len: PAGE as u64,
            mode: MODE_MISSING,
            ..Default::default()
        };
        ioctl(
            missing.file.as_raw_fd(),
            IOC_REGISTER,
            &mut register,
            || "UFFDIO_REGISTER".to_string(),
        )?;
        map.discard(page)?;
        Ok(missing)
    }

    fn address(&self) -> u64 {
        (self.map.address().as_ptr() as usize + self.page * PAGE) as u64
    }

    /// Waits until an access waits for the page.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none within 20 seconds.
    #[track_caller]
    pub fn await_access(&self) -> Outcome {
        let events = misc::poll_fd(self.file.as_raw_fd(), libc::POLLIN, Duration::from_secs(20))?;
        check!(
            events & libc::POLLIN != 0,
            "no task accesses page {}, which is missing",
            self.page
        );
        Ok(())
    }

    /// Supplies the page, with these bytes.
    pub fn supply_bytes(self, bytes: &[u8; PAGE]) -> Result<(), SysError> {
        let mut copy = Copy {
            dst: self.address(),
            src: bytes.as_ptr() as u64,
            len: PAGE as u64,
            ..Default::default()
        };
        ioctl(self.file.as_raw_fd(), IOC_COPY, &mut copy, || {
            "UFFDIO_COPY".to_string()
        })?;
        Ok(())
    }

    /// Supplies the page, with zeroes.
    pub fn supply(self) -> Result<(), SysError> {
        let mut zero = ZeroPage {
            start: self.address(),
            len: PAGE as u64,
            ..Default::default()
        };
        ioctl(self.file.as_raw_fd(), IOC_ZEROPAGE, &mut zero, || {
            "UFFDIO_ZEROPAGE".to_string()
        })?;
        Ok(())
    }
}

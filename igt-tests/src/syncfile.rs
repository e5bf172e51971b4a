// SPDX-License-Identifier: GPL-2.0

//! Sync files.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::drm::{ioctl, text};
use crate::misc;
use crate::uapi::{self, SyncFenceInfo, SyncFileInfo};
use crate::{Outcome, Stop, SysError};

/// Longer than any work of a test takes.
const LIMIT: Duration = Duration::from_secs(20);

/// A sync file.
#[derive(Debug)]
pub struct SyncFile {
    fd: OwnedFd,
}

impl SyncFile {
    /// Takes over an fd.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// The file descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether it has signalled, or does within `limit` milliseconds.
    pub fn poll(&self, limit: u64) -> Result<bool, SysError> {
        self.wait(Duration::from_millis(limit))
    }

    /// Waits until it has signalled.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that takes too long.
    #[track_caller]
    pub fn finish(&self) -> Outcome {
        if self.wait(LIMIT)? {
            return Ok(());
        }
        Err(Stop::fail("a fence does not signal"))
    }

    fn info(&self, fences: &mut [SyncFenceInfo]) -> Result<SyncFileInfo, SysError> {
        let mut argument = SyncFileInfo {
            num_fences: fences.len() as u32,
            sync_fence_info: fences.as_mut_ptr() as u64,
            ..Default::default()
        };
        let request = uapi::SYNC_IOC_FILE_INFO;
        ioctl(self.fd.as_raw_fd(), request, &mut argument, || {
            "SYNC_IOC_FILE_INFO".to_string()
        })?;
        Ok(argument)
    }

    /// 0 while it is pending, 1 when it has signalled, or a negative error.
    pub fn status(&self) -> Result<i32, SysError> {
        Ok(self.info(&mut [])?.status)
    }

    /// When its fence has signalled, in nanoseconds of the monotonic clock, or 0.
    pub fn signalled(&self) -> Result<u64, SysError> {
        let mut fences = [SyncFenceInfo::default()];
        self.info(&mut fences)?;
        Ok(fences[0].timestamp_ns)
    }

    /// The drivers of its fences.
    pub fn drivers(&self) -> Result<Vec<String>, SysError> {
        let names = self.names()?;
        Ok(names.into_iter().map(|(driver, _)| driver).collect())
    }

    /// The names of the drivers and of the timelines of its fences.
    pub fn names(&self) -> Result<Vec<(String, String)>, SysError> {
        let mut fences = vec![SyncFenceInfo::default(); 16];
        let count = self.info(&mut fences)?.num_fences as usize;
        let names = |fence: &SyncFenceInfo| (text(&fence.driver_name), text(&fence.obj_name));
        Ok(fences[..count.min(16)].iter().map(names).collect())
    }

    /// Waits until it has signalled; false if the time is up.
    pub fn wait(&self, limit: Duration) -> Result<bool, SysError> {
        let events = misc::poll_fd(self.fd.as_raw_fd(), libc::POLLIN, limit)?;
        Ok(events & libc::POLLIN != 0)
    }
}

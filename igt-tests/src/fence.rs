// SPDX-License-Identifier: GPL-2.0

//! Fences: sync objects, and a timeline that the test drives.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::drm::{ioctl, DmaBuf};
use crate::misc;
use crate::syncfile::SyncFile;
use crate::uapi::{
    self, DmaBufSyncFile, DrmSyncobj, DrmSyncobjHandle, DrmSyncobjTimelineArray,
    DrmSyncobjTimelineWait, DrmSyncobjWait, SwSyncCreateFence, VvramSync,
};
use crate::{Stop, SysError};

/// A sync object of a DRM file, destroyed when dropped.
#[derive(Debug)]
pub struct SyncObj {
    drm: RawFd,
    handle: u32,
}

impl SyncObj {
    /// Makes one without a fence.
    pub fn new(drm: RawFd) -> Result<Self, SysError> {
        let mut argument = DrmSyncobj::default();
        ioctl(drm, uapi::DRM_IOCTL_SYNCOBJ_CREATE, &mut argument, || {
            "SYNCOBJ_CREATE".to_string()
        })?;
        Ok(Self {
            drm,
            handle: argument.handle,
        })
    }

    /// The handle.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Destroys it while this still has the handle.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl: `EINVAL` for an unknown handle.
    pub fn destroy(&self) -> Result<(), SysError> {
        let mut argument = DrmSyncobj {
            handle: self.handle,
            ..Default::default()
        };
        let request = uapi::DRM_IOCTL_SYNCOBJ_DESTROY;
        ioctl(self.drm, request, &mut argument, || {
            "SYNCOBJ_DESTROY".to_string()
        })?;
        Ok(())
    }

    /// Waits for its fence until the monotonic clock has `timeout` nanoseconds.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl: `EINVAL` without a fence, `ETIME`.
    pub fn wait(&self, timeout: i64) -> Result<(), SysError> {
        let handles = [self.handle];
        let mut argument = DrmSyncobjWait {
            handles: handles.as_ptr() as u64,
            timeout,
            count: 1,
            ..Default::default()
        };
        ioctl(
            self.drm,
            uapi::DRM_IOCTL_SYNCOBJ_WAIT,
            &mut argument,
            || format!("SYNCOBJ_WAIT(timeout={timeout})"),
        )?;
        Ok(())
    }

    /// A point of it, or its fence if the point is 0, as an argument of GEM_COPY.
    pub fn sync(&self, point: u64) -> VvramSync {
        VvramSync {
            handle: self.handle,
            point,
            ..Default::default()
        }
    }

    /// Adds a point that signals with a sync file.
    pub fn add_point(&self, point: u64, fence: &SyncFile) -> Result<(), SysError> {
        let mut argument = DrmSyncobjHandle {
            handle: self.handle,
            flags: uapi::SYNCOBJ_IMPORT_SYNC_FILE | uapi::SYNCOBJ_IMPORT_TIMELINE,
            fd: fence.fd(),
            point,
            ..Default::default()
        };
        ioctl(
            self.drm,
            uapi::DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE,
            &mut argument,
            || format!("SYNCOBJ_FD_TO_HANDLE(point={point})"),
        )?;
        Ok(())
    }

    /// Waits for a point until the monotonic clock has `timeout` nanoseconds.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl: `EINVAL` if there is no such point, `ETIME`.
    pub fn wait_point(&self, point: u64, timeout: i64) -> Result<(), SysError> {
        let (handles, points) = ([self.handle], [point]);
        let mut argument = DrmSyncobjTimelineWait {
            handles: handles.as_ptr() as u64,
            points: points.as_ptr() as u64,
            timeout,
            count: 1,
            ..Default::default()
        };
        ioctl(
            self.drm,
            uapi::DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT,
            &mut argument,
            || format!("SYNCOBJ_TIMELINE_WAIT(point={point}, timeout={timeout})"),
        )?;
        Ok(())
    }

    /// The last point that was added, 0 if it is no timeline.
    pub fn last_point(&self) -> Result<u64, SysError> {
        let (handles, mut points) = ([self.handle], [u64::MAX]);
        let mut argument = DrmSyncobjTimelineArray {
            handles: handles.as_ptr() as u64,
            points: points.as_mut_ptr() as u64,
            count: 1,
            flags: uapi::SYNCOBJ_QUERY_LAST_SUBMITTED,
        };
        ioctl(
            self.drm,
            uapi::DRM_IOCTL_SYNCOBJ_QUERY,
            &mut argument,
            || "SYNCOBJ_QUERY".to_string(),
        )?;
        Ok(points[0])
    }
}

impl Drop for SyncObj {
    fn drop(&mut self) {
        // The device may be gone, and the object with it.
        let _ = self.destroy();
    }
}

/// A timeline of fences that the test signals.
#[derive(Debug)]
pub struct Timeline {
    file: File,
}

impl Timeline {
    /// Makes a timeline.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the kernel has none.
    #[track_caller]
    pub fn new() -> Result<Self, Stop> {
        const NODE: &str = "/sys/kernel/debug/sync/sw_sync";
        let file = misc::open(NODE.as_ref())?;
        Ok(Self { file })
    }

    /// A fence that signals with the `value`th step.
    pub fn fence(&self, value: u32) -> Result<SyncFile, SysError> {
        let mut argument = SwSyncCreateFence {
            value,
            fence: -1,
            ..Default::default()
        };
        ioctl(
            self.file.as_raw_fd(),
            uapi::SW_SYNC_IOC_CREATE_FENCE,
            &mut argument,
            || "SW_SYNC_IOC_CREATE_FENCE".to_string(),
        )?;
        // SAFETY: the kernel made a new fd that nothing else owns.
        Ok(SyncFile::new(unsafe {
            OwnedFd::from_raw_fd(argument.fence)
        }))
    }

    /// Makes a step.
    pub fn step(&self) -> Result<(), SysError> {
        let mut one = 1u32;
        ioctl(
            self.file.as_raw_fd(),
            uapi::SW_SYNC_IOC_INC,
            &mut one,
            || "SW_SYNC_IOC_INC".to_string(),
        )?;
        Ok(())
    }
}

/// Fences of all kinds that work waits for, and entries of all kinds for the fence of the work.
#[derive(Debug)]
pub struct Fences {
    /// Two fences that have signalled.
    before: (SyncObj, SyncFile),
    /// Another one. Unless it signals before, it does when the work is queued.
    late: SyncFile,
    time: Timeline,
    binary: SyncObj,
    line: SyncObj,
    points: u64,
}

impl Fences {
    /// Makes them for work of an open file. With `all_over` all fences that the work waits for have
    /// signalled.
    ///
    /// # Errors
    ///
    /// Fails the subtest if one of them cannot be made.
    #[track_caller]
    pub fn new(drm: RawFd, all_over: bool) -> Result<Self, Stop> {
        let time = Timeline::new()?;
        let before = (SyncObj::new(drm)?, time.fence(1)?);
        let late = time.fence(2)?;
        time.step()?;
        if all_over {
            time.step()?;
        }
        before.0.add_point(3, &before.1)?;
        Ok(Self {
            before,
            late,
            time,
            binary: SyncObj::new(drm)?,
            line: SyncObj::new(drm)?,
            points: 0,
        })
    }

    /// How often work was queued.
    pub fn queued(&self) -> u64 {
        self.points
    }

    /// Has `queue` queue work with these fences and entries, and waits for its end. If that fails,
    /// checks that no fence was published.
    ///
    /// # Errors
    ///
    /// The errors of `queue`, and `EILSEQ` if a fence is wrong.
    pub fn run(
        &mut self,
        queue: impl FnOnce(&[VvramSync], &mut [VvramSync]) -> Result<(), SysError>,
    ) -> Result<(), SysError> {
        let ins = [
            self.before.0.sync(2),
            self.late.sync(),
            self.before.1.sync(),
        ];
        let point = self.points + 1;
        let mut outs = [
            VvramSync::FILE,
            self.binary.sync(0),
            self.line.sync(point),
            VvramSync::FILE,
        ];
        if let Err(error) = queue(&ins, &mut outs) {
            self.unpublished(&outs)?;
            return Err(error);
        }
        self.points = point;
        // SAFETY: the kernel made new fds that nothing else owns.
        let files = [0, 3].map(|at| SyncFile::new(unsafe { OwnedFd::from_raw_fd(outs[at].fd) }));
        if !self.late.poll(0)? {
            if files[0].poll(0)? {
                return Err(wrong("the work did not wait"));
            }
            self.time.step()?;
        }
        for file in &files {
            if !file.poll(20_000)? {
                return Err(wrong("a sync file does not signal"));
            }
            let status = file.status()?;
            if status != 1 {
                return Err(wrong(format!("status {status} of the work")));
            }
        }
        self.binary.wait(0)?;
        self.line.wait_point(point, 0)
    }

    fn unpublished(&self, outs: &[VvramSync]) -> Result<(), SysError> {
        if outs.iter().any(|out| out.fd != 0) {
            return Err(wrong(format!("a file descriptor in {outs:?}")));
        }
        let waited = self.binary.wait(0);
        let has_fence = !waited.is_err_and(|error| error.errno == libc::EINVAL);
        let last = self.line.last_point()?;
        if has_fence != (self.points > 0) || last != self.points {
            return Err(wrong(format!(
                "after an error the last point is {last}, and the sync object has a fence: \
                 {has_fence}"
            )));
        }
        Ok(())
    }
}

/// The error for a result that is wrong.
pub fn wrong(what: impl Into<String>) -> SysError {
    SysError::new(what.into(), libc::EILSEQ)
}

impl DmaBuf {
    /// Adds an implicit fence: one of a read or a write, by `DMA_BUF_SYNC_*`.
    pub fn add_fence(&self, flags: u64, fence: &SyncFile) -> Result<(), SysError> {
        let mut argument = DmaBufSyncFile {
            flags: flags as u32,
            fd: fence.fd(),
        };
        ioctl(
            self.fd(),
            uapi::DMA_BUF_IOCTL_IMPORT_SYNC_FILE,
            &mut argument,
            || "DMA_BUF_IOCTL_IMPORT_SYNC_FILE".to_string(),
        )?;
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Fences: sync objects, and a timeline that the test drives.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::drm::{ioctl, DmaBuf};
use crate::misc;
use crate::syncfile::SyncFile;
use crate::uapi::{
    self, DmaBufSyncFile, DrmSyncobj, DrmSyncobjHandle, DrmSyncobjTimelineArray,
    DrmSyncobjTimelineWait, DrmSyncobjWait, SwSyncCreateFence, SyncEntry,
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

    /// Makes one with the fence of a sync file.
    pub fn of(drm: RawFd, fence: &SyncFile) -> Result<Self, SysError> {
        let object = Self::new(drm)?;
        object.add_point(0, fence)?;
        Ok(object)
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
    pub fn sync(&self, point: u64) -> SyncEntry {
        SyncEntry {
            handle: self.handle,
            point,
            ..Default::default()
        }
    }

    /// Its fence as a sync file.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl: `EINVAL` without a fence.
    pub fn file(&self) -> Result<SyncFile, SysError> {
        let mut argument = DrmSyncobjHandle {
            handle: self.handle,
            flags: uapi::SYNCOBJ_EXPORT_SYNC_FILE,
            fd: -1,
            ..Default::default()
        };
        ioctl(
            self.drm,
            uapi::DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD,
            &mut argument,
            || "SYNCOBJ_HANDLE_TO_FD".to_string(),
        )?;
        // SAFETY: the kernel made a new fd that nothing else owns.
        Ok(SyncFile::new(unsafe { OwnedFd::from_raw_fd(argument.fd) }))
    }

    /// Adds a point that signals with a sync file. With 0 the object gets the fence itself.
    pub fn add_point(&self, point: u64, fence: &SyncFile) -> Result<(), SysError> {
        let timeline = match point {
            0 => 0,
            _ => uapi::SYNCOBJ_IMPORT_TIMELINE,
        };
        let mut argument = DrmSyncobjHandle {
            handle: self.handle,
            flags: uapi::SYNCOBJ_IMPORT_SYNC_FILE | timeline,
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

/// Has `queue` queue work of an open file behind fences, and returns the fence of the work.
///
/// # Errors
///
/// The errors of `queue`, and of the ioctls for sync objects.
pub fn queue_after(
    drm: RawFd,
    fences: &[&SyncFile],
    queue: impl FnOnce(&[SyncEntry], &[SyncEntry]) -> Result<(), SysError>,
) -> Result<SyncFile, SysError> {
    let objects = fences
        .iter()
        .map(|fence| SyncObj::of(drm, fence))
        .collect::<Result<Vec<_>, _>>()?;
    let ins: Vec<_> = objects.iter().map(|object| object.sync(0)).collect();
    let out = SyncObj::new(drm)?;
    queue(&ins, &[out.sync(0)])?;
    out.file()
}

/// Fences of all kinds that work waits for, and entries of all kinds for the fence of the work.
#[derive(Debug)]
pub struct Fences {
    /// A point and a fence that have signalled.
    before: (SyncObj, SyncObj),
    /// Another fence. Unless it signals before, it does when the work is queued.
    late: (SyncFile, SyncObj),
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
        let (past, next) = (time.fence(1)?, time.fence(2)?);
        let before = (SyncObj::new(drm)?, SyncObj::of(drm, &past)?);
        let late = SyncObj::of(drm, &next)?;
        time.step()?;
        if all_over {
            time.step()?;
        }
        before.0.add_point(3, &past)?;
        Ok(Self {
            before,
            late: (next, late),
            time,
            binary: SyncObj::new(drm)?,
            line: SyncObj::new(drm)?,
            points: 0,
        })
    }

    /// Lets work run that waits for these fences.
    ///
    /// # Errors
    ///
    /// Any error of the calls.
    pub fn release(&self) -> Result<(), SysError> {
        if !self.late.0.poll(0)? {
            self.time.step()?;
        }
        Ok(())
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
        queue: impl FnOnce(&[SyncEntry], &[SyncEntry]) -> Result<(), SysError>,
    ) -> Result<(), SysError> {
        let ins = [
            self.before.0.sync(2),
            self.late.1.sync(0),
            self.before.1.sync(0),
        ];
        let point = self.points + 1;
        let outs = [self.binary.sync(0), self.line.sync(point)];
        if let Err(error) = queue(&ins, &outs) {
            self.unpublished()?;
            return Err(error);
        }
        self.points = point;
        // The work does not wait any more when this fails.
        let before = self.binary.wait(0);
        let is_late = !self.late.0.poll(0)?;
        self.release()?;
        match before {
            Ok(()) if is_late => return Err(wrong("the work did not wait")),
            Err(error) if error.errno != libc::ETIME => return Err(error),
            _ => (),
        }
        // There is a fence, so that EINVAL means that there was no memory for the file.
        let file = self.binary.file().map_err(|error| match error.errno {
            libc::EINVAL => SysError::new("SYNCOBJ_HANDLE_TO_FD".to_string(), libc::ENOMEM),
            _ => error,
        })?;
        if !file.poll(20_000)? {
            return Err(wrong("the fence of the work does not signal"));
        }
        let status = file.status()?;
        if status != 1 {
            return Err(wrong(format!("status {status} of the work")));
        }
        self.binary.wait(0)?;
        self.line.wait_point(point, 0)
    }

    fn unpublished(&self) -> Result<(), SysError> {
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

// SPDX-License-Identifier: GPL-2.0

//! Copies between objects, with the fences that they wait for and signal.

use std::mem::size_of;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::drm::{ioctl, Drm, Gem};
use crate::fence::{SyncObj, Timeline};
use crate::foreign::{self, Foreign, Kind};
use crate::map::{Map, PAGE};
use crate::pattern::Pattern;
use crate::scene::patterns;
use crate::syncfile::SyncFile;
use crate::uapi::{self, VvramGemCopy, VvramSync};
use crate::{Stop, SysError};

impl Drm {
    /// GEM_COPY with a given argument.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl.
    pub fn copy_raw(&self, argument: &VvramGemCopy) -> Result<(), SysError> {
        let mut given = *argument;
        ioctl(self.fd(), uapi::VVRAM_GEM_COPY, &mut given, || {
            format!("GEM_COPY({argument:?})")
        })?;
        Ok(())
    }

    /// The same, with fences to wait for and entries for the fence of the copy.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl.
    pub fn copy_syncs(
        &self,
        argument: &VvramGemCopy,
        ins: &[VvramSync],
        outs: &mut [VvramSync],
    ) -> Result<(), SysError> {
        self.copy_raw(&VvramGemCopy {
            in_syncs: ins.as_ptr() as u64,
            out_syncs: outs.as_mut_ptr() as u64,
            in_count: ins.len() as u32,
            out_count: outs.len() as u32,
            sync_size: size_of::<VvramSync>() as u32,
            ..*argument
        })
    }

    /// Copies bytes and returns the sync file of the copy.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl.
    pub fn copy(
        &self,
        src: (&Gem<'_>, u64),
        dst: (&Gem<'_>, u64),
        size: u64,
    ) -> Result<SyncFile, SysError> {
        let argument = VvramGemCopy {
            src: src.0.handle(),
            dst: dst.0.handle(),
            src_offset: src.1,
            dst_offset: dst.1,
            size,
            ..Default::default()
        };
        let mut out = [VvramSync::FILE];
        self.copy_syncs(&argument, &[], &mut out)?;
        // SAFETY: the kernel made a new fd that nothing else owns.
        Ok(SyncFile::new(unsafe { OwnedFd::from_raw_fd(out[0].fd) }))
    }
}

/// A file of the GPU that has imported a buffer of system memory, and an object beside it.
#[derive(Debug)]
pub struct Imported {
    /// The import.
    pub handle: u32,
    /// The object.
    pub own: u32,
    /// The file.
    pub drm: Drm,
    foreign: Foreign,
}

impl Imported {
    /// Makes both, of four pages.
    ///
    /// # Errors
    ///
    /// Fails the subtest if one cannot be made.
    #[track_caller]
    pub fn new(kind: Kind) -> Result<Self, Stop> {
        let drm = Drm::open()?;
        let foreign = foreign::make(kind, 4)?;
        let handle = drm.import_handle(foreign.buffer.fd())?;
        let either = uapi::CREATE_VRAM | uapi::CREATE_SYSTEM;
        let own = drm.create_flags(SIZE, either)?.leak();
        Ok(Self {
            handle,
            own,
            drm,
            foreign,
        })
    }
}

const SIZE: u64 = 4 * PAGE as u64;

/// A copy with fences of all kinds, which checks whether it was done.
#[derive(Debug)]
pub struct Fenced {
    it: Imported,
    argument: VvramGemCopy,
    to: Map,
    patterns: (Pattern, Pattern),
    /// Two fences that the copy waits for, and that have signalled.
    before: (SyncObj, SyncFile),
    /// Another fence that the copy waits for. It signals when the copy is queued, or before a copy
    /// into the buffer: the call returns when such a copy is done.
    late: SyncFile,
    time: Timeline,
    binary: SyncObj,
    line: SyncObj,
    points: u64,
}

impl Fenced {
    /// Makes the objects and fences for a copy into a buffer of another exporter, or out of it.
    ///
    /// # Errors
    ///
    /// Fails the subtest if one of them cannot be made.
    #[track_caller]
    pub fn new(kind: Kind, into: bool) -> Result<Self, Stop> {
        let it = Imported::new(kind)?;
        let drm = &it.drm;
        let own = Map::new(drm.fd(), drm.mmap_offset(it.own)?, SIZE as usize)?;
        let foreign = it.foreign.buffer.map()?;
        let (src, dst, from, to) = if into {
            (it.own, it.handle, own, foreign)
        } else {
            (it.handle, it.own, foreign, own)
        };
        let patterns = patterns();
        from.fill(patterns.0);
        to.fill(patterns.1);
        let time = Timeline::new()?;
        let before = (SyncObj::new(drm.fd())?, time.fence(1)?);
        let late = time.fence(2)?;
        time.step()?;
        if into {
            time.step()?;
        }
        before.0.add_point(3, &before.1)?;
        Ok(Self {
            argument: VvramGemCopy {
                src,
                dst,
                size: SIZE,
                ..Default::default()
            },
            to,
            patterns,
            before,
            late,
            time,
            binary: SyncObj::new(drm.fd())?,
            line: SyncObj::new(drm.fd())?,
            points: 0,
            it,
        })
    }

    /// Copies, waits for the end, and checks the bytes. If the call fails, checks that nothing was
    /// copied.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl, or `EILSEQ` if the bytes are wrong.
    pub fn run(&mut self) -> Result<(), SysError> {
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
        if let Err(error) = self.it.drm.copy_syncs(&self.argument, &ins, &mut outs) {
            self.nothing_happened(&outs)?;
            return Err(error);
        }
        self.points = point;
        // SAFETY: the kernel made new fds that nothing else owns.
        let files = [0, 3].map(|at| SyncFile::new(unsafe { OwnedFd::from_raw_fd(outs[at].fd) }));
        if !self.late.poll(0)? {
            if files[0].poll(0)? {
                return Err(wrong("the copy did not wait".to_string()));
            }
            self.time.step()?;
        }
        for file in &files {
            if !file.poll(20_000)? {
                return Err(wrong("a sync file does not signal".to_string()));
            }
        }
        self.binary.wait(0)?;
        self.line.wait_point(point, 0)?;
        let copied = self.to.verify(self.patterns.0);
        copied.map_err(|mismatch| wrong(format!("after the copy: {mismatch}")))
    }

    fn nothing_happened(&self, outs: &[VvramSync]) -> Result<(), SysError> {
        if outs.iter().any(|out| out.fd != 0) {
            return Err(wrong(format!("a file descriptor in {outs:?}")));
        }
        // A copy that is queued now is done after it, if it was queued.
        let drm = &self.it.drm;
        let (src, dst) = (drm.create(SIZE)?, drm.create(SIZE)?);
        drm.copy((&src, 0), (&dst, 0), SIZE)?.poll(20_000)?;
        let unchanged = self.to.verify(self.patterns.1);
        unchanged.map_err(|mismatch| wrong(format!("after an error: {mismatch}")))?;
        match (self.binary.wait(0), self.line.last_point()?) {
            (Err(error), 0) if error.errno == libc::EINVAL => Ok(()),
            other => Err(wrong(format!("fences after an error: {other:?}"))),
        }
    }
}

fn wrong(what: String) -> SysError {
    SysError::new(what, libc::EILSEQ)
}

// SPDX-License-Identifier: GPL-2.0

//! Copies between objects, with the fences that they wait for and signal.

use std::mem::size_of;

use crate::drm::{again, ioctl, Drm, Gem};
use crate::fence::{queue_after, wrong, Fences};
use crate::fixture::patterns;
use crate::foreign::{self, Foreign, Kind};
use crate::map::{Map, PAGE};
use crate::pattern::Pattern;
use crate::syncfile::SyncFile;
use crate::uapi::{self, SyncEntry, VvramGemCopy};
use crate::{Stop, SysError};

impl Drm {
    /// GEM_COPY with a given argument, repeated as drmIoctl() does.
    pub fn copy_raw(&self, argument: &VvramGemCopy) -> Result<(), SysError> {
        again(|| {
            let mut given = *argument;
            ioctl(self.fd(), uapi::VVRAM_GEM_COPY, &mut given, || {
                format!("GEM_COPY({argument:?})")
            })?;
            Ok(())
        })
    }

    /// The same, with fences to wait for and entries for the fence of the copy.
    pub fn copy_syncs(
        &self,
        argument: &VvramGemCopy,
        ins: &[SyncEntry],
        outs: &[SyncEntry],
    ) -> Result<(), SysError> {
        self.copy_raw(&VvramGemCopy {
            in_syncs: ins.as_ptr() as u64,
            out_syncs: outs.as_ptr() as u64,
            in_count: ins.len() as u32,
            out_count: outs.len() as u32,
            sync_size: size_of::<SyncEntry>() as u32,
            ..*argument
        })
    }

    /// Copies bytes and returns the fence of the copy.
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
        queue_after(self.fd(), &[], |ins, outs| {
            self.copy_syncs(&argument, ins, outs)
        })
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
    /// Makes both in a file, of four pages.
    ///
    /// # Errors
    ///
    /// Fails the subtest if one cannot be made.
    #[track_caller]
    pub fn new(drm: Drm, kind: Kind) -> Result<Self, Stop> {
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
    argument: VvramGemCopy,
    to: Map,
    patterns: (Pattern, Pattern),
    fences: Fences,
    // The file is closed last.
    it: Imported,
}

impl Fenced {
    /// Makes the objects and fences for a copy in a file: into a buffer of another exporter, or out
    /// of it. All fences of a copy into the buffer have signalled: the call to vvram returns when
    /// such a copy is done.
    ///
    /// # Errors
    ///
    /// Fails the subtest if one of them cannot be made.
    #[track_caller]
    pub fn new(drm: Drm, kind: Kind, into: bool) -> Result<Self, Stop> {
        let it = Imported::new(drm, kind)?;
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
        Ok(Self {
            argument: VvramGemCopy {
                src,
                dst,
                size: SIZE,
                ..Default::default()
            },
            to,
            patterns,
            fences: Fences::new(drm.fd(), into)?,
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
        let (drm, argument) = (&self.it.drm, &self.argument);
        let queued = self.fences.queued();
        let result = self
            .fences
            .run(|ins, outs| drm.copy_syncs(argument, ins, outs));
        if result.is_err() && self.fences.queued() == queued {
            // If it was queued, it is done now, before a copy that is queued behind it.
            self.fences.release()?;
            let (src, dst) = (drm.create(SIZE)?, drm.create(SIZE)?);
            drm.copy((&src, 0), (&dst, 0), SIZE)?.poll(20_000)?;
        }
        let done = self.fences.queued() > 0;
        let pattern = if done {
            self.patterns.0
        } else {
            self.patterns.1
        };
        let found = match result {
            Err(_) if done => Ok(()),
            _ => self.to.verify(pattern),
        };
        found.map_err(|mismatch| {
            let when = if done { "the copy" } else { "an error" };
            wrong(format!("after {when}: {mismatch}"))
        })?;
        result
    }
}

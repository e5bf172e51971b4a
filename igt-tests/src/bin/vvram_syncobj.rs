// SPDX-License-Identifier: GPL-2.0

//! The arrays of fences of a copy: sync objects, and points of timelines. A call that fails has
//! queued no copy and has put no fence anywhere.

use std::mem::size_of;

use vvram_tests::drm::{ioctl, ioctl_raw, Drm, Gem};
use vvram_tests::fence::{SyncObj, Timeline};
use vvram_tests::fixture::{cpu_reads, patterns, placed};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::pattern::Pattern;
use vvram_tests::syncfile::SyncFile;
use vvram_tests::uapi::{self, DrmGetCap, SyncEntry, VvramGemCopy, SYNC_MAX};
use vvram_tests::{check, check_eq, expect_errno, igt_main, Outcome, Stop, SysError};

/// Two objects of a page, and a copy from one to the other.
struct Copy<'a> {
    drm: &'a Drm,
    from: Gem<'a>,
    to: Gem<'a>,
    seen: Map,
    patterns: (Pattern, Pattern),
}

impl<'a> Copy<'a> {
    fn new(drm: &'a Drm) -> Result<Self, Stop> {
        let patterns = patterns();
        let from = drm.create_flags(PAGE as u64, uapi::CREATE_SYSTEM)?;
        let to = drm.create_flags(PAGE as u64, uapi::CREATE_VRAM)?;
        let seen = to.map()?;
        from.map()?.fill(patterns.0);
        seen.fill(patterns.1);
        placed(&from, uapi::PLACEMENT_SYSTEM)?;
        placed(&to, uapi::PLACEMENT_VRAM)?;
        Ok(Self {
            drm,
            from,
            to,
            seen,
            patterns,
        })
    }

    fn argument(&self) -> VvramGemCopy {
        VvramGemCopy {
            src: self.from.handle(),
            dst: self.to.handle(),
            size: PAGE as u64,
            ..Default::default()
        }
    }

    fn run(&self, ins: &[SyncEntry], outs: &[SyncEntry]) -> Result<(), SysError> {
        self.drm.copy_syncs(&self.argument(), ins, outs)
    }

    /// Checks that the copy was done, and undoes it.
    #[track_caller]
    fn took_place(&self) -> Outcome {
        self.flush()?;
        cpu_reads(&self.seen, self.patterns.0, &[0])?;
        self.seen.fill(self.patterns.1);
        Ok(())
    }

    /// Checks that no copy was queued.
    #[track_caller]
    fn untouched(&self) -> Outcome {
        self.flush()?;
        cpu_reads(&self.seen, self.patterns.1, &[0])
    }

    /// Waits for all queued copies.
    fn flush(&self) -> Outcome {
        let (one, two) = (self.drm.create(1)?, self.drm.create(1)?);
        self.drm.copy((&one, 0), (&two, 0), 1)?.finish()
    }

    /// The call returns at once, and the copy begins when `signal` has been called.
    #[track_caller]
    fn held_back(&self, ins: &[SyncEntry], signal: impl FnOnce() -> Outcome) -> Outcome {
        let out = SyncObj::new(self.drm.fd())?;
        self.run(ins, &[out.sync(0)])?;
        let file = out.file()?;
        self.not_begun(&file)?;
        signal()?;
        file.finish()?;
        check_eq!(file.status()?, 1, "status of the copy");
        self.took_place()
    }

    /// Checks that a copy has not begun when a later copy of another client is done.
    #[track_caller]
    fn not_begun(&self, file: &SyncFile) -> Outcome {
        let other = Drm::open()?;
        let (one, two) = (other.create(1)?, other.create(1)?);
        other.copy((&one, 0), (&two, 0), 1)?.finish()?;
        check!(!file.poll(0)?, "the copy did not wait");
        cpu_reads(&self.seen, self.patterns.1, &[0])
    }
}

/// A timeline with points 1, 2 and 5, which signal with the steps of the returned timeline.
fn timeline(drm: &Drm) -> Result<(SyncObj, Timeline), Stop> {
    let (line, time) = (SyncObj::new(drm.fd())?, Timeline::new()?);
    for (step, point) in [(1, 1), (2, 2), (3, 5)] {
        line.add_point(point, &time.fence(step)?)?;
    }
    check_eq!(line.last_point()?, 5, "last point");
    Ok((line, time))
}

/// A copy waits for exactly the given point: it does not wait for later points, and not only for
/// earlier ones.
fn point_in() -> Outcome {
    let drm = Drm::open()?;
    let mut cap = DrmGetCap {
        capability: uapi::DRM_CAP_SYNCOBJ_TIMELINE,
        value: 0,
    };
    ioctl(drm.fd(), uapi::DRM_IOCTL_GET_CAP, &mut cap, || {
        "GET_CAP(SYNCOBJ_TIMELINE)".to_string()
    })?;
    check_eq!(cap.value, 1, "DRM_CAP_SYNCOBJ_TIMELINE");
    let copy = Copy::new(&drm)?;
    let (line, time) = timeline(&drm)?;
    copy.held_back(&[line.sync(1)], || Ok(time.step()?))?;
    // This point has signalled, later ones have not.
    copy.run(&[line.sync(1)], &[])?;
    copy.took_place()?;
    copy.held_back(&[line.sync(1), line.sync(2)], || Ok(time.step()?))?;
    // Point 4 signals together with point 5; point 0 stands for the last one.
    expect_errno("point 5", line.wait_point(5, 0), libc::ETIME)?;
    copy.held_back(&[line.sync(4), line.sync(0)], || Ok(time.step()?))?;
    // All of them have signalled, and the kernel may have freed them.
    for point in [0, 1, 2, 3, 4, 5] {
        copy.run(&[line.sync(point)], &[])?;
        copy.took_place()?;
    }
    expect_errno(
        "a copy after a point that is not there",
        copy.run(&[line.sync(6)], &[]),
        libc::EINVAL,
    )?;
    copy.untouched()
}

/// A copy signals the given points, which come after the existing ones.
fn point_out() -> Outcome {
    let drm = Drm::open()?;
    let copy = Copy::new(&drm)?;
    let line = SyncObj::new(drm.fd())?;
    expect_errno("a point", line.wait_point(3, 0), libc::EINVAL)?;
    copy.run(&[], &[line.sync(3)])?;
    check_eq!(line.last_point()?, 3, "last point");
    line.wait_point(3, i64::MAX)?;
    copy.took_place()?;
    expect_errno("the next point", line.wait_point(4, 0), libc::EINVAL)?;
    copy.run(&[line.sync(3)], &[line.sync(7), line.sync(9)])?;
    check_eq!(line.last_point()?, 9, "last point");
    for point in [9, 8, 7, 1] {
        line.wait_point(point, i64::MAX)?;
    }
    copy.took_place()?;

    let (line, time) = timeline(&drm)?;
    copy.run(&[], &[line.sync(6)])?;
    copy.took_place()?;
    expect_errno("point 6", line.wait_point(6, 0), libc::ETIME)?;
    for _ in 0..3 {
        time.step()?;
    }
    line.wait_point(6, 0)?;
    // A single fence replaces the whole timeline.
    copy.run(&[], &[line.sync(0)])?;
    line.wait(i64::MAX)?;
    check_eq!(line.last_point()?, 0, "last point of a binary one");
    copy.took_place()
}

/// The largest number of fences, of all kinds, and entries that are longer than those of the
/// kernel.
fn arrays() -> Outcome {
    let drm = Drm::open()?;
    let copy = Copy::new(&drm)?;
    let objects: Vec<SyncObj> = (0..SYNC_MAX)
        .map(|_| SyncObj::new(drm.fd()))
        .collect::<Result<_, _>>()?;
    let place = |index: usize| match index % 2 {
        0 => objects[index].sync(0),
        _ => objects[index].sync(index as u64),
    };
    let mut all: Vec<SyncEntry> = (0..SYNC_MAX).map(place).collect();
    copy.run(&[], &all)?;
    for (index, object) in objects.iter().enumerate() {
        match index % 2 {
            0 => object.wait(i64::MAX)?,
            _ => object.wait_point(index as u64, i64::MAX)?,
        }
    }
    copy.took_place()?;
    copy.run(&all, &[])?;
    copy.took_place()?;
    // The last of so many fences delays the copy.
    let time = Timeline::new()?;
    let last = SyncObj::of(drm.fd(), &time.fence(1)?)?;
    all[SYNC_MAX - 1] = last.sync(0);
    copy.held_back(&all, || Ok(time.step()?))?;

    for size in [16, 24, 32, 4096] {
        let mut words = vec![0u64; 2 * size / 8];
        for index in 0..2 {
            words[index * size / 8] = u64::from(objects[0].handle());
        }
        let long = |words: &[u64]| VvramGemCopy {
            in_syncs: words.as_ptr() as u64,
            in_count: 2,
            sync_size: size as u32,
            ..copy.argument()
        };
        drm.copy_raw(&long(&words))?;
        copy.took_place()?;
        if size > 16 {
            *words.last_mut().ok_or_else(|| Stop::fail("no words"))? = 1 << 63;
            let unknown = drm.copy_raw(&long(&words));
            expect_errno("what the kernel does not know", unknown, libc::E2BIG)?;
            copy.untouched()?;
        }
    }
    Ok(())
}

/// A call that fails has queued no copy, and signals no fence.
fn errors() -> Outcome {
    let drm = Drm::open()?;
    let copy = Copy::new(&drm)?;
    let (line, empty) = (SyncObj::new(drm.fd())?, SyncObj::new(drm.fd())?);
    let time = Timeline::new()?;
    line.add_point(1, &time.fence(1)?)?;
    time.step()?;
    let good = line.sync(1);
    let outs = [empty.sync(0), line.sync(2)];
    #[track_caller]
    fn refused(
        what: &str,
        result: Result<(), SysError>,
        errno: i32,
        (copy, line, empty): (&Copy<'_>, &SyncObj, &SyncObj),
    ) -> Outcome {
        expect_errno(what, result, errno)?;
        copy.untouched()?;
        check_eq!(line.last_point()?, 1, "last point");
        expect_errno("an object without a fence", empty.wait(0), libc::EINVAL)
    }
    let state = (&copy, &line, &empty);
    let with = |flags, handle, point| SyncEntry {
        handle,
        flags,
        point,
    };
    let everywhere = [
        (with(1, line.handle(), 1), libc::EINVAL),
        (with(1 << 31, line.handle(), 1), libc::EINVAL),
        (with(0, 0xdead, 1), libc::ENOENT),
        (with(0, 0, 1), libc::ENOENT),
    ];
    let without_fence = [
        line.sync(2),
        line.sync(u64::MAX),
        empty.sync(0),
        empty.sync(1),
    ];
    let bad_in = without_fence.map(|bad| (bad, libc::EINVAL));
    for (bad, errno) in everywhere.into_iter().chain(bad_in) {
        let result = copy.run(&[good, good, bad], &outs);
        refused(&format!("{bad:?} to wait for"), result, errno, state)?;
    }
    for (bad, errno) in everywhere {
        let result = copy.run(&[good], &[outs[0], outs[1], bad]);
        refused(&format!("{bad:?} to signal"), result, errno, state)?;
    }

    // An error of the copy itself.
    let plain = VvramGemCopy {
        in_syncs: (&raw const good) as u64,
        out_syncs: outs.as_ptr() as u64,
        in_count: 1,
        out_count: 2,
        sync_size: size_of::<SyncEntry>() as u32,
        ..copy.argument()
    };
    let bad = VvramGemCopy {
        dst_offset: 1,
        ..plain
    };
    let what = "a part that is not inside of its object";
    refused(what, drm.copy_raw(&bad), libc::EINVAL, state)?;

    // The second entry of an array cannot be read.
    let pages = Map::anonymous(2 * PAGE)?;
    pages.protect(1..2, libc::PROT_NONE)?;
    let last = PAGE / 8 - 2;
    pages.write(last, u64::from(line.handle()));
    pages.write(last + 1, 1);
    let edge = pages.address().as_ptr() as u64 + 8 * last as u64;
    let cut_in = VvramGemCopy {
        in_syncs: edge,
        in_count: 2,
        ..plain
    };
    let cut_out = VvramGemCopy {
        out_syncs: edge,
        ..plain
    };
    for (what, cut) in [("to wait for", cut_in), ("to signal", cut_out)] {
        let what = format!("an entry {what} that cannot be read");
        refused(&what, drm.copy_raw(&cut), libc::EFAULT, state)?;
    }

    // After all these errors a copy works, also with entries that cannot be written to.
    let places = Map::read_only(line.sync(2))?;
    drm.copy_raw(&VvramGemCopy {
        out_syncs: places.address().as_ptr() as u64,
        out_count: 1,
        ..plain
    })?;
    line.wait_point(2, i64::MAX)?;
    copy.took_place()
}

/// The argument is not written to: a copy from read-only memory is queued and succeeds.
fn read_only() -> Outcome {
    let drm = Drm::open()?;
    let copy = Copy::new(&drm)?;
    let page = Map::read_only(copy.argument())?;
    let at = page.address().as_ptr() as u64;
    let what = || "GEM_COPY from memory that is read only".to_string();
    // SAFETY: the kernel does not write there.
    unsafe { ioctl_raw(drm.fd(), uapi::VVRAM_GEM_COPY, at, what) }?;
    copy.took_place()
}

igt_main! {
    "point-in", "a copy waits for a point of a timeline", point_in;
    "point-out", "a copy signals points of a timeline", point_out;
    "arrays", "as many fences as there may be, of all kinds", arrays;
    "errors", "a call that fails queues and signals nothing", errors;
    "read-only", "the argument of a copy is not written to", read_only;
}

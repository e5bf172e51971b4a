// SPDX-License-Identifier: GPL-2.0

//! The arrays of fences of a copy: sync objects, points of timelines, and sync files. A call that
//! fails has queued no copy and has put no fence anywhere.

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};

use vvram_tests::drm::{ioctl, ioctl_raw, Drm, Gem};
use vvram_tests::fence::{SyncObj, Timeline};
use vvram_tests::fixture::{cpu_reads, patterns, placed};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::syncfile::SyncFile;
use vvram_tests::uapi::{self, DrmGetCap, VvramGemCopy, VvramSync, SYNC_FILE, SYNC_MAX};
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

    fn run(&self, ins: &[VvramSync], outs: &mut [VvramSync]) -> Result<(), SysError> {
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
    fn held_back(&self, ins: &[VvramSync], signal: impl FnOnce() -> Outcome) -> Outcome {
        let mut out = [VvramSync::FILE];
        self.run(ins, &mut out)?;
        // SAFETY: the kernel made a new fd that nothing else owns.
        let file = SyncFile::new(unsafe { OwnedFd::from_raw_fd(out[0].fd) });
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
    copy.run(&[line.sync(1)], &mut [])?;
    copy.took_place()?;
    copy.held_back(&[line.sync(1), line.sync(2)], || Ok(time.step()?))?;
    // Point 4 signals together with point 5; point 0 stands for the last one.
    expect_errno("point 5", line.wait_point(5, 0), libc::ETIME)?;
    copy.held_back(&[line.sync(4), line.sync(0)], || Ok(time.step()?))?;
    // All of them have signalled, and the kernel may have freed them.
    for point in [0, 1, 2, 3, 4, 5] {
        copy.run(&[line.sync(point)], &mut [])?;
        copy.took_place()?;
    }
    expect_errno(
        "a copy after a point that is not there",
        copy.run(&[line.sync(6)], &mut []),
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
    copy.run(&[], &mut [line.sync(3)])?;
    check_eq!(line.last_point()?, 3, "last point");
    line.wait_point(3, i64::MAX)?;
    copy.took_place()?;
    expect_errno("the next point", line.wait_point(4, 0), libc::EINVAL)?;
    copy.run(&[line.sync(3)], &mut [line.sync(7), line.sync(9)])?;
    check_eq!(line.last_point()?, 9, "last point");
    for point in [9, 8, 7, 1] {
        line.wait_point(point, i64::MAX)?;
    }
    copy.took_place()?;

    let (line, time) = timeline(&drm)?;
    copy.run(&[], &mut [line.sync(6)])?;
    copy.took_place()?;
    expect_errno("point 6", line.wait_point(6, 0), libc::ETIME)?;
    for _ in 0..3 {
        time.step()?;
    }
    line.wait_point(6, 0)?;
    // A single fence replaces the whole timeline.
    copy.run(&[], &mut [line.sync(0)])?;
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
    let place = |index: usize| match index % 3 {
        0 => VvramSync::FILE,
        1 => objects[index].sync(0),
        _ => objects[index].sync(index as u64),
    };
    let mut outs: Vec<VvramSync> = (0..SYNC_MAX).map(place).collect();
    copy.run(&[], &mut outs)?;
    let mut ins = Vec::new();
    let mut files = Vec::new();
    for (index, out) in outs.iter().enumerate() {
        ins.push(*out);
        match index % 3 {
            0 => {
                // SAFETY: the kernel made a new fd that nothing else owns.
                let file = SyncFile::new(unsafe { OwnedFd::from_raw_fd(out.fd) });
                file.finish()?;
                files.push(file);
            }
            1 => objects[index].wait(i64::MAX)?,
            _ => objects[index].wait_point(index as u64, i64::MAX)?,
        }
    }
    copy.took_place()?;
    copy.run(&ins, &mut [])?;
    copy.took_place()?;
    // The last of so many fences delays the copy.
    let time = Timeline::new()?;
    let last = time.fence(1)?;
    ins[SYNC_MAX - 1] = last.sync();
    copy.held_back(&ins, || Ok(time.step()?))?;

    for size in [24, 32, 40, 4096] {
        let mut words = vec![0u64; 2 * size / 8];
        for index in 0..2 {
            words[index * size / 8] = u64::from(objects[1].handle());
        }
        let long = |words: &[u64]| VvramGemCopy {
            in_syncs: words.as_ptr() as u64,
            in_count: 2,
            sync_size: size as u32,
            ..copy.argument()
        };
        drm.copy_raw(&long(&words))?;
        copy.took_place()?;
        if size > 24 {
            *words.last_mut().ok_or_else(|| Stop::fail("no words"))? = 1 << 63;
            let unknown = drm.copy_raw(&long(&words));
            expect_errno("what the kernel does not know", unknown, libc::E2BIG)?;
            copy.untouched()?;
        }
    }
    Ok(())
}

/// How many files the process has open.
fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, |dir| dir.count())
}

/// A call that fails has queued no copy, and signals no fence.
fn errors() -> Outcome {
    let drm = Drm::open()?;
    let copy = Copy::new(&drm)?;
    let (line, empty) = (SyncObj::new(drm.fd())?, SyncObj::new(drm.fd())?);
    let time = Timeline::new()?;
    let past = time.fence(1)?;
    time.step()?;
    line.add_point(1, &past)?;
    let good = line.sync(1);
    let outs = [VvramSync::FILE, empty.sync(0), line.sync(2)];
    let none: [VvramSync; 0] = [];
    let count = open_files();
    #[track_caller]
    fn refused(
        what: &str,
        result: Result<(), SysError>,
        errno: i32,
        state: (&Copy<'_>, &SyncObj, &SyncObj, usize),
    ) -> Outcome {
        expect_errno(what, result, errno)?;
        let (copy, line, empty, count) = state;
        copy.untouched()?;
        check_eq!(line.last_point()?, 1, "last point");
        expect_errno("an object without a fence", empty.wait(0), libc::EINVAL)?;
        check_eq!(open_files(), count, "open files");
        Ok(())
    }
    let state = (&copy, &line, &empty, count);
    let with = |sync: VvramSync| (sync, libc::EINVAL);
    let object = |fd, flags, pad, point| VvramSync {
        fd,
        flags,
        pad,
        point,
        ..good
    };
    let file = |sync: VvramSync| VvramSync {
        flags: SYNC_FILE,
        ..sync
    };
    let bad_in = [
        with(object(1, 0, 0, 1)),
        with(object(0, 2, 0, 1)),
        with(object(0, 1 << 31, 0, 1)),
        with(object(0, 0, 1, 1)),
        with(object(0, 0, 0, 2)),
        with(object(0, 0, 0, u64::MAX)),
        with(empty.sync(0)),
        with(empty.sync(1)),
        (
            VvramSync {
                handle: 0xdead,
                ..good
            },
            libc::ENOENT,
        ),
        (VvramSync { handle: 0, ..good }, libc::ENOENT),
        with(file(VvramSync {
            fd: -1,
            ..VvramSync::FILE
        })),
        with(file(VvramSync {
            fd: drm.fd(),
            ..VvramSync::FILE
        })),
        with(VvramSync {
            handle: 1,
            ..past.sync()
        }),
        with(VvramSync {
            point: 1,
            ..past.sync()
        }),
        with(VvramSync {
            pad: 1,
            ..past.sync()
        }),
    ];
    for (bad, errno) in bad_in {
        let mut places = outs;
        let result = copy.run(&[good, past.sync(), bad], &mut places);
        refused(&format!("{bad:?} to wait for"), result, errno, state)?;
        check_eq!(places, outs, "what is to be signalled");
    }
    let bad_out = [
        with(object(1, 0, 0, 2)),
        with(object(-1, 0, 0, 2)),
        with(object(0, 2, 0, 2)),
        with(object(0, 0, 1, 2)),
        (
            VvramSync {
                handle: 0xdead,
                ..good
            },
            libc::ENOENT,
        ),
        with(VvramSync {
            fd: past.fd(),
            ..VvramSync::FILE
        }),
        with(VvramSync {
            handle: 1,
            ..VvramSync::FILE
        }),
        with(VvramSync {
            point: 1,
            ..VvramSync::FILE
        }),
        with(VvramSync {
            pad: 1,
            ..VvramSync::FILE
        }),
    ];
    for (bad, errno) in bad_out {
        let mut places = [outs[0], outs[1], outs[2], bad];
        let result = copy.run(&[good], &mut places);
        refused(&format!("{bad:?} to signal"), result, errno, state)?;
        check_eq!(places, [outs[0], outs[1], outs[2], bad], "the places");
    }

    // An error of the copy itself.
    let mut places = outs;
    let plain = VvramGemCopy {
        in_syncs: (&raw const good) as u64,
        out_syncs: places.as_mut_ptr() as u64,
        in_count: 1,
        out_count: 3,
        sync_size: 24,
        ..copy.argument()
    };
    let bad = VvramGemCopy {
        dst_offset: 1,
        ..plain
    };
    let what = "a part that is not inside of its object";
    refused(what, drm.copy_raw(&bad), libc::EINVAL, state)?;
    check_eq!(places, outs, "what is to be signalled");

    // The array cannot be written to, so the caller could not get the file descriptor.
    let page = Map::anonymous(PAGE)?;
    page.write(0, 0);
    page.write(1, u64::from(SYNC_FILE));
    page.write(2, 0);
    let base = page.address().as_ptr();
    // SAFETY: the mapping stays readable, and is not written to from here on.
    let status = unsafe { libc::mprotect(base.cast(), PAGE, libc::PROT_READ) };
    check_eq!(status, 0, "mprotect()");
    let locked = VvramGemCopy {
        out_syncs: base as u64,
        out_count: 1,
        ..plain
    };
    let result = drm.copy_raw(&locked);
    refused("a place that is read only", result, libc::EFAULT, state)?;

    // No file descriptor is left.
    let mut places = outs;
    let result = misc::without_fds(|| copy.run(&[good], &mut places));
    refused("without a file descriptor", result, libc::EMFILE, state)?;
    check_eq!(places, outs, "what is to be signalled");

    // After all these errors a copy works, also with an argument that cannot be written to.
    copy.run(&none, &mut [line.sync(2)])?;
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

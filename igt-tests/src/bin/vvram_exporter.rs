// SPDX-License-Identifier: GPL-2.0

//! The files in debugfs that name the exporting process of a buffer, and buffers that only
//! importers keep.

use std::fs;
use std::thread;
use std::time::Duration;

use vvram_tests::debugfs::{words, Buffer, DebugFs};
use vvram_tests::drm::{DmaBuf, Drm, EITHER};
use vvram_tests::fdinfo::FdInfo;
use vvram_tests::fixture::{patterns, peer_reads, placed, Fixture};
use vvram_tests::map::PAGE64;
use vvram_tests::misc::without_fds;
use vvram_tests::peer::Mode;
use vvram_tests::proc::Child;
use vvram_tests::socket::{receive_fd, send_fd, sockets};
use vvram_tests::uapi;
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome, Stop};

const LIMIT: Duration = Duration::from_secs(20);
/// How often an export is tried whose handle is closed meanwhile, and how many successes are
/// enough.
const ATTEMPTS: usize = 20;
const SWAPPED: usize = 3;
/// The least time for which the reservation is held, and for which an export waits for it.
const WHILE: Duration = Duration::from_millis(10);

/// The number of a client.
fn client(drm: &Drm) -> Result<u64, Stop> {
    let info = FdInfo::of(drm)?;
    let id = info.text("drm-client-id")?;
    id.parse()
        .map_err(|_| Stop::fail(format_args!("drm-client-id is {id:?}")))
}

/// Checks the exporting client and process of a buffer, as they are listed.
#[track_caller]
fn exported_by(buffer: &Buffer, want: (u64, u32, &str), name: &str) -> Outcome {
    check_eq!(
        (buffer.client, buffer.pid, buffer.comm.as_str()),
        want,
        "client, process and its name"
    );
    check_eq!(buffer.name, name, "name");
    Ok(())
}

/// The numbers of the file `usage`.
fn usage(debugfs: &DebugFs) -> Result<[u64; 5], Stop> {
    let text = debugfs.read("usage")?;
    let words = words(&text);
    let mut numbers = [0; 5];
    let names = ["visible", "used", "exported", "attached", "orphaned"];
    for (number, name) in numbers.iter_mut().zip(names) {
        match words.get(name).and_then(|word| word.parse().ok()) {
            Some(value) => *number = value,
            None => fail!("{name} in {text:?}"),
        }
    }
    Ok(numbers)
}

/// The exporting process is still named after its exit, while other processes have the buffer.
fn origin() -> Outcome {
    let fixture = Fixture::open()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let (drm, other) = (&fixture.drm, fixture.drm.reopen()?);
    let object = drm.create_flags(PAGE64, EITHER)?;
    let id = object.info()?.id;
    exported_by(&debugfs.buffer(id)?, (0, 0, ""), "")?;
    check_eq!(debugfs.buffer(id)?.orphan, false, "orphan");

    // An export that fails for want of a file descriptor does not count.
    let before = usage(&debugfs)?;
    let result = without_fds(|| object.export());
    expect_errno("export without a file descriptor", result, libc::EMFILE)?;
    check_eq!(usage(&debugfs)?, before, "the file usage");
    exported_by(&debugfs.buffer(id)?, (0, 0, ""), "")?;

    let (here, there) = sockets()?;
    let mut child = Child::spawn(|| {
        // SAFETY: the string is NUL terminated.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"a b\\c\x01".as_ptr()) };
        let buffer = object.export()?;
        Ok(send_fd(&there, buffer.fd())?)
    })?;
    let pid = child.pid() as u32;
    child.join("the exporter", LIMIT)?;
    // SAFETY: the fd was just received, and nothing else owns it.
    let buffer = DmaBuf::new(receive_fd(&here)?);
    let by_child = (client(drm)?, pid, "a\\x20b\\x5cc\\x01");
    exported_by(&debugfs.buffer(id)?, by_child, "")?;
    check_eq!(debugfs.buffer(id)?.inode, buffer.inode()?, "inode");

    // Another client, and another process, have the buffer now and export it again, which gives the
    // same buffer.
    let imported = other.import(&buffer)?;
    let again = imported.export()?;
    check_eq!(
        again.inode()?,
        buffer.inode()?,
        "inode of the second export"
    );
    exported_by(&debugfs.buffer(id)?, by_child, "")?;

    // A name that is set later replaces the one that is listed for the buffer.
    buffer.set_name("frame 1=\n")?;
    exported_by(&debugfs.buffer(id)?, by_child, "frame\\x201=\\x0a")?;

    // A new export belongs to the process and the client that make it.
    drop((buffer, again, imported));
    object.close()?;
    other.set_name("renderer-7")?;
    let object = other.create_flags(PAGE64, EITHER)?;
    let id = object.info()?.id;
    let buffer = object.export()?;
    let comm = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let this = (client(&other)?, std::process::id(), comm.trim_end());
    exported_by(&debugfs.buffer(id)?, this, "renderer-7")?;
    other.set_name("renamed")?;
    exported_by(&debugfs.buffer(id)?, this, "renderer-7")?;
    buffer.set_name("its-own")?;
    exported_by(&debugfs.buffer(id)?, this, "its-own")
}

/// Attachments that outlive all handles and file descriptors are listed, and counted.
fn orphans() -> Outcome {
    let fixture = Fixture::with_route()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let (a, _) = patterns();
    let before = usage(&debugfs)?;
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let id = object.info()?.id;
    object.map()?.fill(a);
    placed(&object, uapi::PLACEMENT_VRAM)?;
    let more = |by: [u64; 5]| -> Outcome {
        let want: Vec<u64> = before.iter().zip(by).map(|(was, by)| was + by).collect();
        check_eq!(usage(&debugfs)?.to_vec(), want, "the file usage");
        Ok(())
    };
    let is_orphan = |want: bool, what: &str| -> Outcome {
        check_eq!(debugfs.buffer(id)?.orphan, want, "orphan {what}");
        Ok(())
    };
    let used = 2 * PAGE64;
    more([0, used, 0, 0, 0])?;
    let buffer = object.export()?;
    more([0, used, 1, 0, 0])?;
    let peers = [fixture.peer.reopen()?, fixture.peer.reopen()?];
    for peer in &peers {
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
    }
    more([0, used, 1, 2, 0])?;
    is_orphan(false, "with a handle and a file descriptor")?;
    let second = buffer.dup()?;
    drop(buffer);
    drop(object);
    is_orphan(false, "with a file descriptor")?;
    // A mapping of the CPU keeps the buffer, too.
    let map = second.map()?;
    drop(second);
    is_orphan(false, "with a mapping")?;
    more([0, used, 1, 2, 0])?;
    drop(map);
    is_orphan(true, "with two importers")?;
    more([0, used, 1, 2, 2])?;
    peer_reads(&peers[0], a, &[0, 1])?;
    let seen = debugfs.buffer(id)?;
    check_eq!(seen.importers.len(), 2, "importers");
    check_eq!(
        (seen.importers[0].driver.as_str(), seen.placement.as_str()),
        ("edu_peer", "vram"),
        "driver of an importer, and placement"
    );
    check_eq!(seen.pid, std::process::id(), "process that exported");
    peers[0].detach()?;
    is_orphan(true, "with one importer")?;
    more([0, used, 1, 1, 1])?;
    peers[1].detach()?;
    more([0; 5])
}

/// A handle is closed and reused for another object while it is exported: one of the objects is
/// exported, or none if the export begins between both, and no buffer is listed without an
/// exporting process.
fn reused() -> Outcome {
    let fixture = Fixture::open()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let (drm, peer) = (&fixture.drm, &fixture.peer);
    let this = client(drm)?;
    let mut swapped = 0;
    for _ in 0..ATTEMPTS {
        // The DRM core uses the lowest free number for a new handle.
        let handle = drm.create_flags(PAGE64, EITHER)?.leak();
        let buffer = drm.export(handle, 0)?;
        peer.attach(&buffer, Mode::Dynamic)?;
        let (measured, exported, next) = thread::scope(|scope| {
            // The measurement holds the reservation, for which an export waits after it has looked
            // the object up.
            let measuring = scope.spawn(|| peer.measure(uapi::EDU_PEER_MEASURE_MAX));
            thread::sleep(WHILE);
            let exporting = scope.spawn(|| drm.export(handle, 0));
            thread::sleep(WHILE);
            let next = drm
                .close(handle)
                .and_then(|()| Ok(drm.create_flags(PAGE64, EITHER)?.leak()));
            (measuring.join(), exporting.join(), next)
        });
        let (Ok(measured), Ok(exported)) = (measured, exported) else {
            fail!("a thread panicked");
        };
        measured?;
        check_eq!(next?, handle, "handle of the next object");
        let exported = match exported {
            Err(error) if error.errno == libc::ENOENT => None,
            exported => Some(exported?),
        };
        // Before the next export records its process.
        for buffer in debugfs.buffers()?.iter().filter(|buffer| buffer.exported) {
            check_eq!(buffer.client, this, "client that exported a buffer");
        }
        if let Some(exported) = exported {
            let inode = exported.inode()?;
            if inode != buffer.inode()? {
                check_eq!(
                    inode,
                    drm.export(handle, 0)?.inode()?,
                    "inode of the next object"
                );
                swapped += 1;
            }
        }
        peer.detach()?;
        drm.close(handle)?;
        if swapped == SWAPPED {
            return Ok(());
        }
    }
    check!(swapped > 0, "no handle was closed in time");
    Ok(())
}

igt_main! {
    "origin", "client, process and names, as they were at the export", origin;
    "reused", "a handle that becomes that of another object during the export", reused;
    "orphans", "attachments that outlive all handles and file descriptors", orphans;
}

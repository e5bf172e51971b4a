// SPDX-License-Identifier: GPL-2.0

//! File descriptors that drivers make: whether a program that is executed gets them, what one for
//! reading permits, and what a process in a sandbox can do with those that it is given.

use std::fs::{self, OpenOptions};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vvram_tests::auxiliary::{Card, Module, Split};
use vvram_tests::bar_export::{self, Exporter};
use vvram_tests::debugfs::{open_for, DebugFs};
use vvram_tests::disk::run;
use vvram_tests::drm::{ioctl, prime_export, DmaBuf, Drm};
use vvram_tests::fixture::{cpu_reads, patterns, peer_reads, placed, Fixture};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::memory;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::{Child, Steps};
use vvram_tests::socket::{receive_fd, send_fd, sockets};
use vvram_tests::uapi;
use vvram_tests::user::{self, become_nobody};
use vvram_tests::{check_eq, expect_errno, igt_main, Outcome, Stop, SysError};

const LIMIT: Duration = Duration::from_secs(20);

/// The flags of a file descriptor.
fn flags(fd: RawFd) -> i32 {
    // SAFETY: a plain system call.
    unsafe { libc::fcntl(fd, libc::F_GETFD) }
}

/// How many dma-bufs, sync files and nodes of DRM and of the peer a program gets that this one
/// executes.
#[track_caller]
fn inherited() -> Result<usize, Stop> {
    let list = run(Command::new("ls").args(["-l", "/proc/self/fd"]))?;
    let ours = [
        "dmabuf",
        "sync_file",
        "/dev/dri/",
        "/dev/edu-peer",
        "/dev/bar-export",
    ];
    let is_ours = |line: &&str| ours.iter().any(|name| line.contains(name));
    Ok(list.lines().filter(is_ours).count())
}

/// A program does not get the files that drivers make, unless the caller says so.
fn executed() -> Outcome {
    let (drm, _peer) = (Drm::open()?, Peer::open()?);
    let object = drm.create(PAGE64)?;
    let buffer = object.export()?;
    let fences = buffer.sync_file(uapi::DMA_BUF_SYNC_READ)?;
    for (what, fd) in [
        ("a dma-buf", buffer.fd()),
        ("the sync file of a dma-buf", fences.fd()),
    ] {
        check_eq!(flags(fd), libc::FD_CLOEXEC, "flags of {what}");
    }
    check_eq!(inherited()?, 0, "files that a program gets");
    let plain = drm.export(object.handle(), uapi::DRM_RDWR)?;
    check_eq!(flags(plain.fd()), 0, "flags without DRM_CLOEXEC");
    check_eq!(
        inherited()?,
        1,
        "files that a program gets without DRM_CLOEXEC"
    );
    Ok(())
}

/// The same for the exporters that take the place of vvram.
fn executed_others() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let exporter = Exporter::new()?;
    let file = exporter.open()?;
    let buffer = bar_export::export_ranges(&file, bar_export::MEMORY, &[(0, PAGE64)])?;
    check_eq!(flags(buffer.fd()), libc::FD_CLOEXEC, "flags of a BAR");
    check_eq!(inherited()?, 0, "files that a program gets");
    drop((buffer, file, exporter));

    let module = Module::load()?;
    let split = Split::new(&module, &gpu)?;
    let card = Card::open(split.gpu())?;
    let handle = card.create(PAGE64)?;
    let buffer = card.export(handle)?;
    check_eq!(
        flags(buffer.fd()),
        libc::FD_CLOEXEC,
        "flags with DRM_CLOEXEC"
    );
    let before = inherited()?;
    let plain = prime_export(card.fd(), handle, uapi::DRM_RDWR)?;
    check_eq!(flags(plain.fd()), 0, "flags without DRM_CLOEXEC");
    check_eq!(inherited()?, before + 1, "files that a program gets then");
    Ok(())
}

/// Exports an object for reading only.
fn read_only_export(drm: &Drm, handle: u32) -> Result<DmaBuf, SysError> {
    drm.export(handle, uapi::DRM_CLOEXEC)
}

/// A dma-buf that was exported for reading cannot be mapped for writing, in no way.
fn read_only() -> Outcome {
    let (a, _) = patterns();
    let drm = Drm::open()?;
    let object = drm.create(2 * PAGE64)?;
    object.map()?.fill(a);
    let buffer = read_only_export(&drm, object.handle())?;
    expect_errno("a mapping for writing", buffer.map(), libc::EACCES)?;
    let map = Map::with_prot(buffer.fd(), 0, 2 * PAGE, libc::PROT_READ)?;
    let write = libc::PROT_READ | libc::PROT_WRITE;
    expect_errno("mprotect()", map.protect(0..2, write), libc::EACCES)?;
    let private = Map::private_file(buffer.fd(), 2 * PAGE);
    expect_errno("a private mapping", private, libc::EINVAL)?;
    let path = format!("/proc/self/fd/{}", buffer.fd());
    let again = OpenOptions::new().read(true).write(true).open(&path);
    let again = again.map_err(|error| SysError::io(format!("open({path})"), &error));
    expect_errno("opening it again for writing", again, libc::ENXIO)?;
    // SAFETY: plain system calls on an fd that is open.
    let mode = unsafe {
        libc::fcntl(buffer.fd(), libc::F_SETFL, libc::O_RDWR);
        libc::fcntl(buffer.fd(), libc::F_GETFL) & libc::O_ACCMODE
    };
    check_eq!(mode, libc::O_RDONLY, "mode after F_SETFL");
    cpu_reads(&map, a, &[0, 1])?;
    placed(&object, uapi::PLACEMENT_VRAM)
}

/// A device reads a dma-buf that was exported for reading, and does not write to it.
fn read_only_peer() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let object = fixture.drm.create(2 * PAGE64)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = read_only_export(&fixture.drm, object.handle())?;
    fixture.peer.attach(&buffer, Mode::Dynamic)?;
    fixture.peer.map()?;
    fixture.check_only(&object, Mode::Dynamic, false, true)?;
    peer_reads(&fixture.peer, a, &[0, 1])?;
    let write = fixture.peer.write(0, &memory::bytes(b, 0, 1));
    cpu_reads(&map, a, &[0, 1])?;
    expect_errno("a write by the peer", write, libc::EACCES)
}

/// Makes this process root of a user namespace of its own, and of nothing else.
fn become_root_of_nothing() -> Outcome {
    become_nobody()?;
    // SAFETY: a plain system call; the process has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } < 0 {
        return Err(SysError::last("unshare(CLONE_NEWUSER)").into());
    }
    for (file, text) in [
        ("setgroups", "deny"),
        ("uid_map", "0 65534 1"),
        ("gid_map", "0 65534 1"),
    ] {
        let path = format!("/proc/self/{file}");
        fs::write(&path, text).map_err(|error| SysError::io(path, &error))?;
    }
    // SAFETY: a plain system call.
    check_eq!(unsafe { libc::geteuid() }, 0, "user in the namespace");
    Ok(())
}

/// Checks what a process in a sandbox cannot open.
#[track_caller]
fn closed(nodes: &[PathBuf]) -> Outcome {
    for path in nodes {
        for (read, write) in [(true, false), (false, true)] {
            let what = format!("opening {}", path.display());
            expect_errno(&what, open_for(path, read, write), libc::EACCES)?;
        }
    }
    let (kind, at) = (c"debugfs".as_ptr(), c"/mnt".as_ptr());
    // SAFETY: the kernel reads the texts.
    let result = unsafe { libc::mount(kind, at, kind, 0, std::ptr::null()) };
    let result = if result < 0 {
        Err(SysError::last("mount() of debugfs"))
    } else {
        Ok(())
    };
    expect_errno("mounting debugfs", result, libc::EPERM)
}

/// A process that is root of its own user namespace makes the calls of a client with files that it
/// was given, and gains no privilege.
fn sandbox() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let (card, other) = (Drm::open_card()?, Drm::open()?);
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let nodes = [
        fixture.drm.path().to_path_buf(),
        card.path().to_path_buf(),
        Path::new("/dev").join(format!("edu-peer-{}", fixture.peer.name())),
        debugfs.path("move"),
    ];
    let _root = user::Mode::set(Path::new("/sys/kernel/debug"), 0o755)?;
    let limit = fixture.drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?;
    let object = fixture.drm.create(2 * PAGE64)?;
    let map = object.map()?;
    map.fill(a);
    let (ours, theirs) = sockets()?;
    let (sent, written) = (Steps::new()?, Steps::new()?);
    let mut child = Child::spawn(|| {
        become_root_of_nothing()?;
        closed(&nodes)?;
        for (request, what) in [
            (uapi::DRM_IOCTL_SET_MASTER, "SET_MASTER"),
            (uapi::DRM_IOCTL_DROP_MASTER, "DROP_MASTER"),
        ] {
            let result = ioctl(card.fd(), request, &mut (), || what.to_string());
            expect_errno(what, result, libc::EACCES)?;
        }

        // A buffer that arrives by a socket, and an object of its own.
        sent.wait("the buffer", LIMIT)?;
        let given = DmaBuf::new(receive_fd(&theirs)?);
        let theirs = given.map()?;
        cpu_reads(&theirs, a, &[0, 1])?;
        theirs.fill_pages(b, 1, 1);
        let own = other.create(2 * PAGE64)?;
        placed(&own, uapi::PLACEMENT_VRAM)?;
        let imported = other.import(&given)?;
        let copy = other.copy((&imported, 0), (&own, 0), 2 * PAGE64)?;
        copy.finish()?;
        let own_map = own.map()?;
        cpu_reads(&own_map, a, &[0])?;
        cpu_reads(&own_map, b, &[1])?;

        // The device, which accesses the buffer, and memory of this process.
        let peer = &fixture.peer;
        peer.attach(&given, Mode::Pinned)?;
        peer.pin_and_map(Mode::Pinned)?;
        peer_reads(peer, b, &[1])?;
        peer.detach()?;
        let memory = Map::private(2 * PAGE)?;
        memory.fill(a);
        peer.register(&memory)?;
        memory::reads(peer, a, &[0])?;
        memory::writes(peer, b, &[1])?;
        cpu_reads(&memory, b, &[1])?;
        peer.unregister()?;
        check_eq!(
            fixture.drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?,
            limit,
            "the limit of pinned VRAM"
        );
        written.done()?;
        Ok(())
    })?;
    let buffer = object.export()?;
    send_fd(&ours, buffer.fd())?;
    sent.done()?;
    child.join("the sandbox", LIMIT)?;
    written.wait("the sandbox", LIMIT)?;
    cpu_reads(&map, a, &[0])?;
    cpu_reads(&map, b, &[1])?;
    fixture.check_none(&object)
}

igt_main! {
    "executed", "a program gets no file that a driver has made, unless it is to", executed;
    "executed-others", "the same with bar_export and avram", executed_others;
    "read-only", "a dma-buf for reading is not mapped for writing", read_only;
    "read-only-peer", "a device does not write to a dma-buf for reading", read_only_peer;
    "sandbox", "the root of a user namespace is a client as any other", sandbox;
}

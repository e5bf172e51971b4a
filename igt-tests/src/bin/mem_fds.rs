// SPDX-License-Identifier: GPL-2.0

//! File descriptors that drivers make: whether a program that is executed gets them, and what
//! one for reading permits.

use std::fs::OpenOptions;
use std::os::fd::RawFd;
use std::process::Command;

use vvram_tests::bar_export::{self, Exporter};
use vvram_tests::disk::run;
use vvram_tests::drm::{prime_export, DmaBuf, Drm};
use vvram_tests::fixture::{cpu_reads, patterns, peer_reads, placed, Fixture};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::memory;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::split::{Card, Module, Split};
use vvram_tests::uapi;
use vvram_tests::{check_eq, expect_errno, igt_main, Outcome, Stop, SysError};

const PAGE64: u64 = PAGE as u64;

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
    let objects = [drm.create(PAGE64)?, drm.create(PAGE64)?];
    let buffer = objects[0].export()?;
    let copied = drm.copy((&objects[0], 0), (&objects[1], 0), PAGE64)?;
    let fences = buffer.sync_file(uapi::DMA_BUF_SYNC_READ)?;
    for (what, fd) in [
        ("a dma-buf", buffer.fd()),
        ("the sync file of a copy", copied.fd()),
        ("the sync file of a dma-buf", fences.fd()),
    ] {
        check_eq!(flags(fd), libc::FD_CLOEXEC, "flags of {what}");
    }
    check_eq!(inherited()?, 0, "files that a program gets");
    let plain = drm.export(objects[0].handle(), uapi::DRM_RDWR)?;
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

igt_main! {
    "executed", "a program gets no file that a driver has made, unless it is to", executed;
    "executed-others", "the same with bar_export and avram", executed_others;
    "read-only", "a dma-buf for reading is not mapped for writing", read_only;
    "read-only-peer", "a device does not write to a dma-buf for reading", read_only_peer;
}

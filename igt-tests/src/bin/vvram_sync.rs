// SPDX-License-Identifier: GPL-2.0

//! Alternating access by the CPU and by devices: caches and bounce buffers, fences, poll.
//!
//! If devices access bounce buffers (swiotlb=force), the tests first check that without
//! DMA_BUF_IOCTL_SYNC one side does not read the bytes that the other side has written.

use std::fs;
use std::time::Duration;

use vvram_tests::drm::{DmaBuf, Drm};
use vvram_tests::edu;
use vvram_tests::fixture::{cpu_reads, patterns, peer_reads, peer_writes, share, works, Fixture};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::pattern::Pattern;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::{Child, Steps};
use vvram_tests::rebind::Unbound;
use vvram_tests::uapi::{
    self, DMA_BUF_SYNC_END as END, DMA_BUF_SYNC_READ as READ, DMA_BUF_SYNC_WRITE as WRITE,
};
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, Outcome, Stop};

const LIMIT: Duration = Duration::from_secs(20);
/// As much as one asynchronous transfer moves, for which a slow edu takes more than 3 s.
const LONG: usize = uapi::EDU_PEER_SUBMIT_MAX / PAGE;
const BYTES: u64 = uapi::EDU_PEER_SUBMIT_MAX as u64;

/// Whether DMA to system memory goes through bounce buffers.
fn bounces() -> bool {
    fs::read_to_string("/proc/cmdline")
        .is_ok_and(|line| line.split_whitespace().any(|word| word == "swiotlb=force"))
}

/// A buffer in system memory that a static importer has mapped, filled with a pattern by the CPU.
fn system<'a>(
    drm: &Drm,
    peer: &'a Peer,
    pattern: Pattern,
) -> Result<(DmaBuf, Map, &'a Peer), Stop> {
    let object = drm.create_flags(BYTES, uapi::CREATE_SYSTEM)?;
    let buffer = object.export()?;
    let map = buffer.map()?;
    buffer.sync(READ | WRITE)?;
    map.fill(pattern);
    buffer.sync(READ | WRITE | END)?;
    peer.attach_and_map(&buffer, Mode::Static)?;
    check_eq!(
        object.info()?.placement,
        uapi::PLACEMENT_SYSTEM,
        "placement of an object that a static importer has mapped"
    );
    Ok((buffer, map, peer))
}

fn flags() -> Outcome {
    let gpu = vvram_tests::pci::PciDevice::vvram()?;
    let drm = Drm::open()?;
    let vram = drm.create(PAGE as u64)?.export()?;
    let buffers = [
        vram,
        drm.create_flags(PAGE as u64, uapi::CREATE_SYSTEM)?
            .export()?,
    ];
    for buffer in &buffers {
        for access in [READ, WRITE, READ | WRITE] {
            buffer.sync(access)?;
            buffer.sync(access | END)?;
        }
        for flags in [0, END, 8, READ | 8, 1 << 63 | READ] {
            expect_errno("SYNC", buffer.sync(flags), libc::EINVAL)?;
        }
    }
    buffers[0].sync(READ | WRITE)?;
    let gone = Unbound::new(&gpu)?;
    for buffer in &buffers {
        for access in [READ, WRITE, READ | WRITE] {
            let dead = libc::ENODEV;
            expect_errno("SYNC of an unbound device", buffer.sync(access), dead)?;
            expect_errno("its end", buffer.sync(access | END), dead)?;
        }
    }
    gone.rebind()?;
    expect_errno("SYNC after a rebind", buffers[0].sync(READ), libc::ENODEV)?;
    drop(buffers);
    works()
}

/// The device writes, the CPU reads.
fn device_writes() -> Outcome {
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let (buffer, map, peer) = system(&drm, &peer, a)?;
    peer_writes(peer, b, &[0])?;
    if bounces() {
        // Otherwise this test proves nothing.
        cpu_reads(&map, a, &[0])?;
    }
    buffer.sync(READ)?;
    cpu_reads(&map, b, &[0])?;
    cpu_reads(&map, a, &[1])?;
    // The device writes again, and the end of an access that only reads does not overwrite these
    // bytes.
    peer_writes(peer, b, &[1])?;
    buffer.sync(READ | END)?;
    peer_reads(peer, b, &[0, 1])?;
    buffer.sync(READ)?;
    cpu_reads(&map, b, &[0, 1])
}

/// The CPU writes, the device reads.
fn device_reads() -> Outcome {
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let (buffer, map, peer) = system(&drm, &peer, a)?;
    peer_reads(peer, a, &[0, 1])?;
    buffer.sync(WRITE)?;
    map.fill(b);
    if bounces() {
        peer_reads(peer, a, &[0, 1])?;
    }
    buffer.sync(WRITE | END)?;
    peer_reads(peer, b, &[0, 1])
}

/// An access by the CPU that writes only a part does not overwrite the other bytes, which the
/// device has written.
fn partial() -> Outcome {
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let (buffer, map, peer) = system(&drm, &peer, a)?;
    peer_writes(peer, b, &[0])?;
    buffer.sync(WRITE)?;
    map.fill_pages(b, 1, 1);
    buffer.sync(WRITE | END)?;
    peer_reads(peer, b, &[0, 1])?;
    peer_reads(peer, a, &[2])
}

/// An access through a vmap has its own begin and end of CPU access.
fn kernel() -> Outcome {
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let cpu = peer.reopen()?;
    let (buffer, _, peer) = system(&drm, &peer, a)?;
    cpu.attach(&buffer, Mode::Cpu)?;
    peer_reads(&cpu, a, &[0])?;
    peer_writes(peer, b, &[0])?;
    peer_reads(&cpu, b, &[0])?;
    peer_writes(&cpu, a, &[0])?;
    peer_reads(peer, a, &[0])
}

/// In VRAM both sides read the same bytes, once the writes of the CPU were flushed.
fn vram() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let shared = share(&fixture.drm, 2)?;
    let map = shared.buffer.map()?;
    let layout = fixture.bar.locate(&map)?;
    fixture.peer.attach(&shared.buffer, Mode::Dynamic)?;
    shared.buffer.sync(READ | WRITE)?;
    map.fill(a);
    shared.buffer.sync(READ | WRITE | END)?;
    fixture.check_vram(&layout, a, &[0, 1])?;
    peer_reads(&fixture.peer, a, &[0, 1])?;
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)?;
    peer_writes(&fixture.peer, b, &[0])?;
    shared.buffer.sync(READ)?;
    cpu_reads(&map, b, &[0])?;
    cpu_reads(&map, a, &[1])?;
    shared.buffer.sync(READ | END)?;
    Ok(())
}

/// The pages of a long transfer.
fn pages() -> Vec<usize> {
    (0..LONG).collect()
}

/// Starts a transfer that writes a pattern to all of a buffer.
fn start(peer: &Peer, pattern: Pattern) -> Outcome {
    let mut data = vec![0u8; LONG * PAGE];
    pattern.fill(&mut data, 0);
    peer.submit_write(0, &data)?;
    check!(
        peer.status()?.flags & uapi::EDU_PEER_STATUS_BUSY != 0,
        "the transfer is over before it was looked at"
    );
    Ok(())
}

/// The begin of a read waits for writes of devices, and the begin of a write waits for reads and
/// writes.
fn waits() -> Outcome {
    let _slow = edu::slow()?;
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let (buffer, map, peer) = system(&drm, &peer, a)?;
    start(peer, b)?;
    let fence = buffer.sync_file(READ)?;
    check_eq!(fence.status()?, 0, "status of the fence of a write");
    buffer.sync(READ)?;
    check_eq!(fence.status()?, 1, "status of the fence after the wait");
    cpu_reads(&map, b, &pages())?;
    buffer.sync(READ | END)?;
    check_eq!(peer.finish_write()?, BYTES, "bytes written");

    peer.submit_read(0, LONG * PAGE)?;
    let fence = buffer.sync_file(WRITE)?;
    buffer.sync(READ)?;
    check_eq!(fence.status()?, 0, "status of a read that reads beside it");
    buffer.sync(READ | END)?;
    buffer.sync(WRITE)?;
    check_eq!(fence.status()?, 1, "status of a read that was waited for");
    map.fill(a);
    buffer.sync(WRITE | END)?;
    let mut data = vec![0u8; LONG * PAGE];
    check_eq!(peer.finish_read(&mut data)?, BYTES, "bytes read");
    check_ok!(
        b.verify(&data, 0),
        "the device did not read what was there before the CPU wrote"
    );
    peer_reads(peer, a, &[0, LONG - 1])
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// A signal ends the wait.
fn interrupted() -> Outcome {
    let _slow = edu::slow()?;
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let (buffer, _, peer) = system(&drm, &peer, a)?;
    let ready = Steps::new()?;
    start(peer, b)?;
    let fence = buffer.sync_file(READ)?;
    let mut child = Child::spawn(|| {
        // SAFETY: all-zero is a valid sigaction; the handler does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
        }
        ready.done()?;
        expect_errno("SYNC", buffer.sync(READ), libc::EINTR)?;
        check_eq!(fence.status()?, 0, "status of the fence at the signal");
        Ok(())
    })?;
    ready.wait("the child", LIMIT)?;
    let mut tries = 0;
    while child.ended().is_none() && tries < 200 {
        child.signal(libc::SIGUSR1);
        std::thread::sleep(Duration::from_millis(10));
        tries += 1;
    }
    child.join("the access that a signal interrupts", LIMIT)?;
    check_eq!(peer.finish_write()?, BYTES, "bytes written");
    peer_reads(peer, b, &[0, LONG - 1])
}

fn poll() -> Outcome {
    let _slow = edu::slow()?;
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let (buffer, map, peer) = system(&drm, &peer, a)?;
    let (now, input, output) = (Duration::ZERO, libc::POLLIN, libc::POLLOUT);
    let both = input | output;
    check_eq!(buffer.poll(input, now)?, input, "POLLIN of an idle buffer");
    check_eq!(buffer.poll(output, now)?, output, "POLLOUT of an idle one");

    start(peer, b)?;
    let fence = buffer.sync_file(READ)?;
    check_eq!(buffer.poll(both, now)?, 0, "events while a device writes");
    check_eq!(buffer.poll(input, LIMIT)?, input, "events when it is done");
    check_eq!(fence.status()?, 1, "status of its fence");
    check_eq!(
        buffer.poll(output, LIMIT)?,
        output,
        "POLLOUT when it is done"
    );
    check_eq!(peer.finish_write()?, BYTES, "bytes written");
    buffer.sync(READ)?;
    cpu_reads(&map, b, &pages())?;
    buffer.sync(READ | END)?;

    peer.submit_read(0, LONG * PAGE)?;
    let fence = buffer.sync_file(WRITE)?;
    check_eq!(buffer.poll(input, now)?, input, "POLLIN while one reads");
    check_eq!(buffer.poll(output, now)?, 0, "POLLOUT while one reads");
    check_eq!(fence.status()?, 0, "status of its fence");
    check_eq!(buffer.poll(output, LIMIT)?, output, "events at the end");
    check_eq!(fence.status()?, 1, "status of its fence at the end");
    Ok(())
}

fn sync_file() -> Outcome {
    let _slow = edu::slow()?;
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let (buffer, _, peer) = system(&drm, &peer, a)?;
    check_eq!(buffer.sync_file(WRITE)?.status()?, 1, "status without work");
    expect_errno("without flags", buffer.sync_file(0), libc::EINVAL)?;

    start(peer, b)?;
    for access in [READ, WRITE, READ | WRITE] {
        let fence = buffer.sync_file(access)?;
        check_eq!(fence.status()?, 0, "status while a device writes");
        check_eq!(fence.drivers()?, ["edu_peer"], "who made the fence");
    }
    let fence = buffer.sync_file(READ)?;
    check!(fence.wait(LIMIT)?, "the fence does not signal");
    check_eq!(fence.status()?, 1, "status at the end");
    check_eq!(peer.finish_write()?, BYTES, "bytes written");

    peer.submit_read(0, PAGE)?;
    check_eq!(
        buffer.sync_file(READ)?.status()?,
        1,
        "what a reader waits for"
    );
    let fence = buffer.sync_file(WRITE)?;
    check_eq!(fence.status()?, 0, "what a writer waits for");
    check!(fence.wait(LIMIT)?, "the fence does not signal");
    Ok(())
}

/// There is one transfer at a time, and calls that would unmap or move its mapping are refused.
fn busy() -> Outcome {
    let _slow = edu::slow()?;
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let other = peer.reopen()?;
    let mut data = vec![0u8; PAGE];
    expect_errno("FINISH", peer.finish_write(), libc::EINVAL)?;
    let (buffer, _, peer) = system(&drm, &peer, a)?;
    expect_errno("FINISH of nothing", peer.finish_write(), libc::EINVAL)?;
    for length in [0, LONG * PAGE + 1] {
        expect_errno("SUBMIT", peer.submit_read(0, length), libc::EINVAL)?;
    }
    expect_errno("SUBMIT", peer.submit_read(1, LONG * PAGE), libc::EINVAL)?;
    other.attach(&buffer, Mode::Cpu)?;
    expect_errno(
        "SUBMIT by the CPU",
        other.submit_read(0, PAGE),
        libc::EINVAL,
    )?;

    start(peer, b)?;
    for (what, result) in [
        ("SUBMIT", peer.submit_read(0, PAGE)),
        ("MAP", peer.map()),
        ("UNMAP", peer.unmap()),
        ("PIN", peer.pin()),
        ("UNPIN", peer.unpin()),
        ("TRANSFER", peer.read(0, &mut data)),
    ] {
        expect_errno(what, result, libc::EBUSY)?;
    }
    check_eq!(peer.finish_write()?, BYTES, "bytes written");
    check_eq!(peer.finish_write()?, BYTES, "bytes of the same transfer");
    peer_reads(peer, b, &[0])?;
    peer.unmap()?;
    Ok(())
}

/// A detach does not wait for the whole transfer.
fn cancelled() -> Outcome {
    let _slow = edu::slow()?;
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let (buffer, map, peer) = system(&drm, &peer, a)?;
    start(peer, b)?;
    let fence = buffer.sync_file(READ)?;
    peer.detach()?;
    check_eq!(fence.status()?, -libc::ECANCELED, "status of the fence");
    buffer.sync(READ)?;
    cpu_reads(&map, a, &[LONG - 1])?;
    buffer.sync(READ | END)?;
    Ok(())
}

/// A move waits for the transfer of the importer, and keeps the bytes that it writes.
fn moves() -> Outcome {
    let _slow = edu::slow()?;
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let object = fixture
        .drm
        .create_flags(BYTES, uapi::CREATE_VRAM | uapi::CREATE_SYSTEM)?;
    let (map, buffer) = (object.map()?, object.export()?);
    let peer = &fixture.peer;
    map.fill(a);
    peer.attach_and_map(&buffer, Mode::Dynamic)?;
    fixture.check_only(&object, Mode::Dynamic, false, true)?;
    fixture.check_table(peer, &map)?;
    start(peer, b)?;
    let fence = buffer.sync_file(READ)?;
    check_eq!(fence.status()?, 0, "status of the fence before the move");
    // Takes all of VRAM, so that evictable objects are evicted.
    let size = fixture.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let all = fixture.drm.create_flags(size, uapi::CREATE_VRAM)?;
    check_eq!(
        object.info()?.placement,
        uapi::PLACEMENT_SYSTEM,
        "placement after the eviction"
    );
    cpu_reads(&map, b, &pages())?;
    check_eq!(fence.status()?, 1, "status of the fence after the move");
    check_eq!(peer.finish_write()?, BYTES, "bytes written");
    let status = peer.status()?;
    check_eq!(status.invalidations, 1, "invalidations");
    check_eq!(
        status.flags,
        uapi::EDU_PEER_STATUS_ATTACHED,
        "flags after the move"
    );
    drop(all);
    peer_reads(peer, b, &[0, LONG - 1])
}

/// An unbind of the exporter waits for the transfers of importers that it revokes.
fn unbind() -> Outcome {
    let _slow = edu::slow()?;
    for mode in [Mode::Dynamic, Mode::Revocable] {
        let fixture = Fixture::with_route()?;
        let (_, b) = patterns();
        let shared = share(&fixture.drm, LONG)?;
        let peer = &fixture.peer;
        peer.attach_and_map(&shared.buffer, mode)?;
        fixture.check_only(&shared.object, mode, mode.needs_pin(), true)?;
        start(peer, b)?;
        let fence = shared.buffer.sync_file(READ)?;
        let gone = Unbound::new(&fixture.gpu)?;
        check_eq!(fence.status()?, 1, "status of the fence after the unbind");
        check_eq!(peer.finish_write()?, BYTES, "bytes written");
        check_eq!(
            peer.status()?.flags,
            mode.revoked_flags(),
            "flags after the unbind"
        );
        expect_errno("SUBMIT", peer.submit_read(0, PAGE), libc::ENODEV)?;
        gone.rebind()?;
        peer.detach()?;
        works()?;
    }
    Ok(())
}

/// An unbind of the peer ends its transfer.
fn peer_unbind() -> Outcome {
    let _slow = edu::slow()?;
    let (a, b) = patterns();
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    let edu = vvram_tests::pci::PciDevice::named(peer.name());
    let (buffer, map, peer) = system(&drm, &peer, a)?;
    start(peer, b)?;
    let fence = buffer.sync_file(READ)?;
    let gone = Unbound::new(&edu)?;
    expect_errno("FINISH", peer.finish_write(), libc::ENODEV)?;
    check!(fence.wait(LIMIT)?, "the fence does not signal");
    check_eq!(fence.status()?, -libc::ENODEV, "status of the fence");
    buffer.sync(READ)?;
    cpu_reads(&map, a, &[LONG - 1])?;
    buffer.sync(READ | END)?;
    gone.rebind()?;
    works()
}

igt_main! {
    "flags", "all flags of DMA_BUF_IOCTL_SYNC, and after an unbind", flags;
    "device-writes", "the CPU sees what the device wrote to system memory", device_writes;
    "device-reads", "the device sees what the CPU wrote to system memory", device_reads;
    "partial", "a CPU that writes a part keeps the rest", partial;
    "kernel", "access by the kernel through a mapping of its own", kernel;
    "vram", "both see the same bytes in VRAM", vram;
    "waits", "the begin of an access waits for devices", waits;
    "interrupted", "a signal ends that wait", interrupted;
    "poll", "poll of the dma-buf while a device reads or writes", poll;
    "sync-file", "the fences of a dma-buf as a sync file", sync_file;
    "busy", "one transfer of a file at a time", busy;
    "cancelled", "a detach ends a transfer", cancelled;
    "move", "a move waits for a transfer and takes its bytes along", moves;
    "unbind", "an unbind of the exporter waits for a transfer", unbind;
    "peer-unbind", "an unbind of the peer ends a transfer", peer_unbind;
}

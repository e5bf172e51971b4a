// SPDX-License-Identifier: GPL-2.0

//! Drivers that are unbound, and modules that are unloaded, while files are open.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::{Duration, Instant};

use vvram_tests::debugfs::DebugFs;
use vvram_tests::drm::Drm;
use vvram_tests::edu;
use vvram_tests::fixture::{check_revoked, patterns, peer_reads, share, works, Fixture};
use vvram_tests::foreign::{make, Kind};
use vvram_tests::map::PAGE;
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::policy::IMPORTERS;
use vvram_tests::proc::{sleep_forever, Child, KernelLog, Steps};
use vvram_tests::rebind::{
    delete_module,
    module_users as users,
    need_module,
    reload,
    Unbinding,
    Unbound, //
};
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, fail, igt_main, uapi, Outcome, Stop, SysError,
};

const LIMIT: Duration = Duration::from_secs(20);
/// An unbind that is not woken checks again 10 seconds after it has logged the holder that it waits
/// for.
const UNTIL_NEXT: Duration = Duration::from_secs(7);

fn drm_fd() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let drm = Drm::open()?;
    let card = Drm::open_card()?;
    let object = drm.create(4 * PAGE as u64)?;
    let map = object.map()?;
    map.write(0, 1);
    let gone = Unbound::new(&gpu)?;
    let handle = object.handle();
    let dead = libc::ENODEV;
    expect_errno("GETPARAM", drm.getparam(0), dead)?;
    expect_errno("GETPARAM of the card node", card.getparam(0), dead)?;
    expect_errno("GEM_CREATE", drm.create(1), dead)?;
    expect_errno("GEM_MMAP_OFFSET", drm.mmap_offset(handle), dead)?;
    expect_errno("PEER_ATTACHMENTS", object.attachments(), dead)?;
    expect_errno("PRIME_HANDLE_TO_FD", object.export(), dead)?;
    expect_errno("GEM_CLOSE", drm.close(handle), dead)?;
    check!(
        Drm::try_open().is_none(),
        "there still is a render node of the unbound device"
    );
    gone.rebind()?;
    expect_errno("GETPARAM on the old fd", drm.getparam(0), dead)?;
    works()
}

fn dmabuf_fd() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let drm = Drm::open()?;
    let shared = share(&drm, 4)?;
    let inode = shared.buffer.inode()?;
    let gone = Unbound::new(&gpu)?;
    check_eq!(
        shared.buffer.size()?,
        4 * PAGE as u64,
        "size of the dma-buf after the unbind"
    );
    check_eq!(shared.buffer.inode()?, inode, "inode of the dma-buf");
    let peer = Peer::open()?;
    for mode in IMPORTERS {
        expect_errno(
            &format!("attaching the dma-buf of an unbound device in mode {mode:?}"),
            peer.attach(&shared.buffer, mode),
            libc::ENODEV,
        )?;
    }
    gone.rebind()?;
    for mode in IMPORTERS {
        expect_errno(
            &format!("attaching a dma-buf from before the rebind in mode {mode:?}"),
            peer.attach(&shared.buffer, mode),
            libc::ENODEV,
        )?;
    }
    // The DRM device is a new one, which does not know the buffer.
    let fresh = Drm::open()?;
    expect_errno(
        "importing a dma-buf from before the rebind",
        fresh.import_handle(shared.buffer.fd()),
        libc::ENODEV,
    )?;
    drop(shared);
    works()
}

/// An `O_PATH` file descriptor keeps the inode of a dma-buf whose file is gone: no reference to the
/// dma-buf can be taken any more.
fn path_fd() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let object = drm.create(4 * PAGE as u64)?;
    let buffer = object.export()?;
    let path = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(format!("/proc/self/fd/{}", buffer.fd()));
    let Ok(path) = path else {
        fail!("the dma-buf cannot be opened with O_PATH: {path:?}");
    };
    drop(buffer);
    object.close()?;
    drm.await_vram_free(free - 4 * PAGE as u64)?;
    // The listings find the buffer, and do not access its file.
    let debugfs = DebugFs::open(&gpu)?;
    check_eq!(debugfs.buffers()?.len(), 1, "objects in the listing");
    let usage = debugfs.read("usage")?;
    check!(
        usage.contains("exported=1 attached=0 orphaned=0"),
        "usage: {usage}"
    );
    let gone = Unbound::new(&gpu)?;
    gone.rebind()?;
    drop(path);
    works()
}

fn attached() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 2)?;
    let modes = [Mode::Dynamic, Mode::Pinned, Mode::Revocable];
    let mut peers = Vec::new();
    for mode in modes {
        let peer = fixture.peer.reopen()?;
        peer.attach(&shared.buffer, mode)?;
        peers.push(peer);
    }
    let gone = Unbound::new(&fixture.gpu)?;
    for (peer, mode) in peers.iter().zip(modes) {
        if mode.needs_pin() {
            expect_errno(&format!("pin in mode {mode:?}"), peer.pin(), libc::ENODEV)?;
        } else {
            expect_errno(&format!("map in mode {mode:?}"), peer.map(), libc::ENODEV)?;
        }
        check!(
            peer.status()?.flags & uapi::EDU_PEER_STATUS_ATTACHED != 0,
            "the attachment in mode {mode:?} is gone: only its buffer is"
        );
        peer.detach()?;
    }
    gone.rebind()?;
    works()
}

/// Importers that can be revoked: the unbind does not wait for them.
fn mapped(mode: Mode) -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 2)?;
    let peer = &fixture.peer;
    peer.attach_and_map(&shared.buffer, mode)?;
    fixture.check_only(&shared.object, mode, mode.needs_pin(), true)?;
    check_eq!(peer.status()?.invalidations, 0, "invalidations so far");
    let gone = Unbound::new(&fixture.gpu)?;
    check_revoked(peer, mode)?;
    let mut data = [0u8; 16];
    expect_errno("map", peer.map(), libc::ENODEV)?;
    expect_errno("a transfer", peer.read(0, &mut data), libc::ENODEV)?;
    expect_errno("pin", peer.pin(), libc::ENODEV)?;
    expect_errno("the table", peer.table(), libc::EINVAL)?;
    check!(
        data == [0; 16],
        "a refused transfer wrote to the caller's memory"
    );
    // A new device does not make the old buffer usable.
    gone.rebind()?;
    expect_errno("map after the rebind", peer.map(), libc::ENODEV)?;
    peer.detach()?;
    works()
}

fn dynamic_mapped() -> Outcome {
    mapped(Mode::Dynamic)
}

fn revocable_mapped() -> Outcome {
    mapped(Mode::Revocable)
}

/// With a pin but without a mapping no importer has an address, so the unbind does not wait.
fn pinned_only() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 2)?;
    let peer = &fixture.peer;
    peer.attach(&shared.buffer, Mode::Pinned)?;
    peer.pin()?;
    fixture.check_only(&shared.object, Mode::Pinned, true, false)?;
    let gone = Unbound::new(&fixture.gpu)?;
    expect_errno("map", peer.map(), libc::ENODEV)?;
    peer.unpin()?;
    peer.detach()?;
    gone.rebind()?;
    works()
}

/// How long the test checks that an unbind goes on waiting. The wait has no limit; a long run
/// checks for a minute.
fn hold() -> Duration {
    match misc::soak() {
        0 | 1 => Duration::from_millis(300),
        _ => Duration::from_secs(75),
    }
}

/// Starts an unbind that has to wait for the peer, and checks that it does.
fn blocked(fixture: &Fixture) -> Result<Unbinding, Stop> {
    blocked_by(fixture, fixture.peer.name())
}

/// Starts an unbind that has to wait, and checks that the kernel logs the holder.
fn blocked_by(fixture: &Fixture, holder: &str) -> Result<Unbinding, Stop> {
    let mut log = KernelLog::open()?;
    let mut unbinding = Unbinding::start(&fixture.gpu)?;
    let mut lines = Vec::new();
    let named = misc::poll(Duration::from_secs(15), || {
        if unbinding.child.ended().is_some() {
            return Some(false);
        }
        lines.extend(log.lines());
        let named = lines.iter().any(|line| line.contains(holder));
        named.then_some(true)
    });
    let log = lines.join("\n");
    match named {
        Some(true) => {}
        Some(false) => {
            fail!(
                "the unbind did not wait for {holder}, which has a mapping: {:?}; kernel log:\n{log}",
                unbinding.child.ended()
            )
        }
        None => {
            fail!("the unbind waits, but the kernel log does not name {holder}:\n{log}")
        }
    }
    // Sleeping in another state would be reported as a hung task. The task is running only for
    // moments, to log the holder.
    let asleep = misc::poll(Duration::from_secs(5), || {
        (unbinding.child.state() == Some('S')).then_some(())
    });
    check!(
        asleep.is_some(),
        "an unbind that waits should sleep such that a signal wakes it; {}",
        unbinding.child.whereabouts()
    );
    thread::sleep(hold());
    if let Some(exit) = unbinding.child.ended() {
        fail!("the unbind named its holder, but did not wait for it: {exit:?}");
    }
    Ok(unbinding)
}

fn pinned_mapped() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 2)?;
    shared.map.fill(a);
    let peer = &fixture.peer;
    peer.attach_and_map(&shared.buffer, Mode::Pinned)?;
    fixture.check_only(&shared.object, Mode::Pinned, true, true)?;
    let (_, layout) = fixture.check_table(peer, &shared.map)?;
    let unbinding = blocked(&fixture)?;
    // The mapping that the importer has still works; it does not get a new one.
    peer_reads(peer, a, &[1])?;
    fixture.check_vram(&layout, a, &[0, 1])?;
    expect_errno(
        "attaching while the unbind waits",
        peer.reopen()?.attach(&shared.buffer, Mode::Dynamic),
        libc::ENODEV,
    )?;
    peer.unmap()?;
    let begin = Instant::now();
    let gone = unbinding.finish(LIMIT)?;
    check!(
        begin.elapsed() < UNTIL_NEXT,
        "the last unmap did not wake the unbind: it took {:?}",
        begin.elapsed()
    );
    expect_errno("map after the unbind", peer.map(), libc::ENODEV)?;
    peer.detach()?;
    gone.rebind()?;
    works()
}

fn pinned_mapped_closed() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 2)?;
    let (there, close) = (Steps::new()?, Steps::new()?);
    let mut child = Child::spawn(|| {
        let peer = Peer::open()?;
        peer.attach_and_map(&shared.buffer, Mode::Pinned)?;
        there.done()?;
        close.wait("the end", LIMIT + hold())
    })?;
    there.wait("the importer", LIMIT)?;
    fixture.check_only(&shared.object, Mode::Pinned, true, true)?;
    let unbinding = blocked(&fixture)?;
    child.kill()?;
    unbinding.finish(LIMIT)?.rebind()?;
    works()
}

/// The process that the unbind waits for has threads whose imports wait for the unbind. It can
/// still be killed.
fn pinned_mapped_importing() -> Outcome {
    const THREADS: usize = 8;

    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 2)?;
    let there = Steps::new()?;
    let mut child = Child::spawn(|| {
        let peer = Peer::open()?;
        peer.attach_and_map(&shared.buffer, Mode::Pinned)?;
        let mut importers = Vec::new();
        for _ in 0..THREADS {
            importers.push((Drm::open()?, make(Kind::Udmabuf, 1)?));
        }
        thread::scope(|scope| {
            for (drm, foreign) in &importers {
                scope.spawn(|| {
                    drm.import(&foreign.buffer)?;
                    there.done()?;
                    // The imports succeed until the device is gone.
                    while drm.import(&foreign.buffer).is_ok() {}
                    Ok::<_, SysError>(())
                });
            }
            sleep_forever()
        })
    })?;
    for _ in 0..THREADS {
        there.wait("a thread that imports", LIMIT)?;
    }
    let unbinding = blocked(&fixture)?;
    check!(
        child.threads_in("fd_to_handle"),
        "no thread waits for the device; {}",
        child.whereabouts()
    );
    child.kill()?;
    unbinding.finish(LIMIT)?.rebind()?;
    works()
}

/// A vmap cannot be revoked either, so the unbind waits for it.
fn vmapped() -> Outcome {
    let fixture = Fixture::open()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 2)?;
    shared.map.fill(a);
    let peer = &fixture.peer;
    peer.attach(&shared.buffer, Mode::Cpu)?;
    peer.map()?;
    peer_reads(peer, a, &[0, 1])?;
    let unbinding = blocked_by(&fixture, "(vmap)")?;
    // The vmap still exists, but a new CPU access fails.
    expect_errno(
        "a read while the unbind waits",
        peer.read(0, &mut [0; 16]),
        libc::ENODEV,
    )?;
    check!(
        peer.status()?.flags & uapi::EDU_PEER_STATUS_MAPPED != 0,
        "the mapping is gone"
    );
    fixture.peer.unmap()?;
    let gone = unbinding.finish(LIMIT)?;
    expect_errno("vmap after the unbind", fixture.peer.map(), libc::ENODEV)?;
    gone.rebind()?;
    expect_errno("vmap after the rebind", fixture.peer.map(), libc::ENODEV)?;
    works()
}

/// An unbind in the middle of a transfer of a dynamic importer.
fn mid_transfer() -> Outcome {
    let _slow = edu::slow()?;
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 32)?;
    let there = Steps::new()?;
    let mut child = Child::spawn(|| {
        let peer = Peer::open()?;
        peer.attach_and_map(&shared.buffer, Mode::Dynamic)?;
        there.done()?;
        let mut data = vec![0u8; 32 * PAGE];
        expect_errno(
            "a transfer during which the exporter is unbound",
            peer.read(0, &mut data),
            libc::ENODEV,
        )?;
        peer.detach()?;
        Ok(())
    })?;
    there.wait("the importer", LIMIT)?;
    thread::sleep(Duration::from_millis(250));
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)?;
    let gone = Unbound::new(&fixture.gpu)?;
    child.join("the importer", LIMIT)?;
    gone.rebind()?;
    works()
}

fn cycles() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let mut buffers = Vec::new();
    for _ in 0..4 {
        let drm = Drm::open()?;
        let shared = share(&drm, 8)?;
        shared.map.write(0, 1);
        // The dma-bufs of all rounds exist until the end.
        buffers.push(shared.buffer);
        drop((shared.map, shared.object));
        Unbound::new(&gpu)?.rebind()?;
        let drm = Drm::open()?;
        drm.await_vram_free(drm.getparam(uapi::PARAM_VRAM_SIZE)?)?;
    }
    works()?;
    drop(buffers);
    works()
}

fn peer_unbind() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 2)?;
    shared.map.fill(a);
    let modes = [Mode::Dynamic, Mode::Pinned, Mode::Revocable];
    let mut peers = vec![fixture.peer.reopen()?];
    peers[0].attach(&shared.buffer, Mode::Pinned)?;
    for mode in modes {
        let peer = fixture.peer.reopen()?;
        peer.attach_and_map(&shared.buffer, mode)?;
        peers.push(peer);
    }
    check_eq!(
        shared.object.attachments()?.len(),
        peers.len(),
        "attachments before the unbind"
    );
    let gone = Unbound::new(&fixture.edu)?;
    fixture.check_none(&shared.object)?;
    let mut data = [0u8; 16];
    for peer in &peers {
        let dead = libc::ENODEV;
        expect_errno("status of an unbound peer", peer.status(), dead)?;
        expect_errno("map on an unbound peer", peer.map(), dead)?;
        expect_errno("pin on an unbound peer", peer.pin(), dead)?;
        expect_errno("table of an unbound peer", peer.table(), dead)?;
        expect_errno(
            "a transfer of an unbound peer",
            peer.read(0, &mut data),
            dead,
        )?;
        expect_errno(
            "attach to an unbound peer",
            peer.attach(&shared.buffer, Mode::Dynamic),
            dead,
        )?;
        expect_errno("detach of an unbound peer", peer.detach(), dead)?;
    }
    check_ok!(shared.map.verify(a), "the buffer changed");
    gone.rebind()?;
    expect_errno(
        "status of a file from before the rebind",
        peers[0].status(),
        libc::ENODEV,
    )?;
    let fresh = Peer::open()?;
    fresh.attach_and_map(&shared.buffer, Mode::Dynamic)?;
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)?;
    peer_reads(&fresh, a, &[0])?;
    // Closing the old files must not affect the new device.
    drop(peers);
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)?;
    drop(fresh);
    works()
}

fn peer_mid_transfer() -> Outcome {
    let _slow = edu::slow()?;
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 32)?;
    let there = Steps::new()?;
    let mut child = Child::spawn(|| {
        let peer = Peer::open()?;
        peer.attach_and_map(&shared.buffer, Mode::Pinned)?;
        there.done()?;
        let mut data = vec![0u8; 32 * PAGE];
        expect_errno(
            "a transfer during which the peer is unbound",
            peer.read(0, &mut data),
            libc::ENODEV,
        )
    })?;
    there.wait("the importer", LIMIT)?;
    thread::sleep(Duration::from_millis(250));
    fixture.check_only(&shared.object, Mode::Pinned, true, true)?;
    let gone = Unbound::new(&fixture.edu)?;
    child.join("the importer", LIMIT)?;
    fixture.check_none(&shared.object)?;
    gone.rebind()?;
    works()
}

fn module_busy() -> Outcome {
    need_module("vvram")?;
    let before = users("vvram");
    let buffer = {
        let drm = Drm::open()?;
        let object = drm.create(1)?;
        object.export()?
    };
    check!(
        users("vvram") > before,
        "a dma-buf does not hold the module: {before:?} users before, {:?} with it",
        users("vvram")
    );
    expect_errno(
        "unloading vvram while a dma-buf lives",
        delete_module("vvram"),
        libc::EWOULDBLOCK,
    )?;
    // The module cannot be unloaded even after an unbind, because it has the code of the dma-buf.
    let gone = Unbound::new(&PciDevice::vvram()?)?;
    expect_errno(
        "unloading the unbound vvram while a dma-buf lives",
        delete_module("vvram"),
        libc::EWOULDBLOCK,
    )?;
    gone.rebind()?;
    drop(buffer);
    misc::poll(Duration::from_secs(5), || {
        (users("vvram") == before).then_some(())
    });
    check_eq!(users("vvram"), before, "users of the module at the end");
    works()
}

fn peer_module_busy() -> Outcome {
    need_module("edu_peer")?;
    let peer = Peer::open()?;
    expect_errno(
        "unloading edu_peer while a file is open",
        delete_module("edu_peer"),
        libc::EWOULDBLOCK,
    )?;
    peer.status()?;
    Ok(())
}

fn module_reload() -> Outcome {
    for module in ["vvram", "edu_peer"] {
        need_module(module)?;
    }
    for _ in 0..2 {
        reload("vvram", &[])?;
        works()?;
        reload("edu_peer", &[])?;
        works()?;
    }
    Ok(())
}

igt_main! {
    "drm-fd", "every ioctl on a live DRM fd gets ENODEV", drm_fd;
    "dmabuf-fd", "a live dma-buf cannot be attached any more, before and after a rebind", dmabuf_fd;
    "path-fd", "a dma-buf that only an O_PATH descriptor keeps does not disturb the unbind", path_fd;
    "attached", "attachments without a mapping get ENODEV", attached;
    "dynamic-mapped", "a dynamic importer is notified, and unmaps", dynamic_mapped;
    "revocable-mapped", "the mapping of a revocable importer is invalidated", revocable_mapped;
    "pinned-only", "a pin without a mapping does not hold the unbind up", pinned_only;
    "pinned-mapped", "the unbind waits for a pinned importer, names it, ends with its unmap", pinned_mapped;
    "pinned-mapped-closed", "the same, ended by the importer's death", pinned_mapped_closed;
    "pinned-mapped-importing", "the same, while threads of the importer wait for the unbind", pinned_mapped_importing;
    "vmapped", "the unbind waits for a mapping of the kernel, says so, ends with its unmap", vmapped;
    "mid-transfer", "a transfer during the unbind ends with ENODEV", mid_transfer;
    "cycles", "four generations of dma-bufs live side by side", cycles;
    "peer-unbind", "unbinding the importer detaches it", peer_unbind;
    "peer-mid-transfer", "a transfer during the unbind of the importer ends with ENODEV", peer_mid_transfer;
    "module-busy", "a dma-buf keeps the module loaded", module_busy;
    "peer-module-busy", "an open file keeps the peer's module loaded", peer_module_busy;
    "module-reload", "both modules unload and load again", module_reload;
}

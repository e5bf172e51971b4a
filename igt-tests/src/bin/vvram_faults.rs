// SPDX-License-Identifier: GPL-2.0

//! Every operation, with each of its allocations and copies failing in turn.

use std::cell::RefCell;
use std::time::Duration;

use vvram_tests::bar_export::{export_request, request, Exporter, MEMORY};
use vvram_tests::copy::Imported;
use vvram_tests::debugfs::DebugFs;
use vvram_tests::drm::{DmaBuf, Drm, EITHER};
use vvram_tests::faults::{Code, Errors, Faults, Snapshot, Workers};
use vvram_tests::fixture::{
    cpu_reads, patterns, peer_reads, peer_writes, placed, share, works, Fixture,
};
use vvram_tests::foreign::Kind;
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::power::{lossy, Auto, Manual};
use vvram_tests::rebind::{reload, Probe};
use vvram_tests::svm;
use vvram_tests::sweeps::{self, nothing, populate, zero, Object, Once};
use vvram_tests::sweeps::{COPY, MAP, MOVES, NONE, PROBE, USUAL};
use vvram_tests::uapi::{self, VvramGemCopy};
use vvram_tests::{check, check_eq, expect_errno, igt_main, Outcome, Stop};

fn open() -> Outcome {
    sweeps::open("open", Drm::open()?.path())?;
    let peer = Peer::open()?;
    Faults::new()?.sweep(
        "open, edu_peer",
        &USUAL,
        || Ok(None),
        |file: &mut Option<Peer>| {
            *file = Some(peer.reopen()?);
            Ok(())
        },
        nothing,
    )
}

fn create() -> Outcome {
    sweeps::create(Drm::open)
}

fn ioctls() -> Outcome {
    sweeps::ioctls(Drm::open)
}

/// Memory of this process migrates to VRAM, and back.
fn svm() -> Outcome {
    const PAGES: usize = 20;
    let mut faults = Faults::new()?;
    let prepare = || Ok((Drm::open()?, svm::filled(PAGES, patterns().0)?));
    faults.sweep(
        "SVM_MIGRATE",
        // A page that cannot be allocated is reported like a page that is in use.
        &Errors {
            memory: &[libc::ENOMEM, libc::EBUSY],
            ..USUAL
        },
        prepare,
        |(drm, map)| drm.svm_migrate(map, 0..PAGES),
        nothing,
    )?;
    faults.sweep(
        "SVM_EVICT",
        // A page fault of the kernel fails.
        &Errors {
            memory: &[libc::EFAULT],
            ..USUAL
        },
        || {
            let (drm, map) = prepare()?;
            drm.svm_migrate(&map, 0..PAGES)?;
            Ok((drm, map))
        },
        |(drm, map)| drm.svm_evict(map, 0..PAGES),
        nothing,
    )
}

fn copies() -> Outcome {
    sweeps::copies(Drm::open)
}

fn prime() -> Outcome {
    sweeps::prime(Drm::open)
}

fn mmap() -> Outcome {
    sweeps::mmap(Drm::open)?;
    let zero = zero()?;
    Faults::new()?.sweep(
        "mmap for direct I/O",
        &MAP,
        || {
            let drm = Drm::open()?;
            let what = uapi::CREATE_VRAM | uapi::CREATE_DIRECT_IO;
            let handle = drm.create_flags(2 * PAGE64, what)?.leak();
            Ok((drm.mmap_offset(handle)?, drm))
        },
        |(offset, drm)| populate(&zero, &Map::new(drm.fd(), *offset, 2 * PAGE)?),
        nothing,
    )
}

fn importers() -> Outcome {
    let modes = [
        Mode::Static,
        Mode::Dynamic,
        Mode::Pinned,
        Mode::Revocable,
        Mode::NoP2p,
        Mode::Cpu,
    ];
    sweeps::importers(Drm::open, &modes)
}

/// Transfers, of VRAM and of system memory.
fn transfers() -> Outcome {
    let fixture = Fixture::with_route()?;
    let mut faults = Faults::new()?;
    for mode in [Mode::Dynamic, Mode::NoP2p] {
        let mapped = || -> Result<_, Stop> {
            let it = (
                Object::exported(Drm::open()?, EITHER)?,
                fixture.peer.reopen()?,
            );
            it.1.attach(&it.0 .1, mode)?;
            it.1.map()?;
            Ok(it)
        };
        faults.sweep(
            &format!("read, {mode:?}"),
            &USUAL,
            mapped,
            |(_, peer)| peer.read(0, &mut [0; 64]),
            nothing,
        )?;
        faults.sweep(
            &format!("submit, {mode:?}"),
            &USUAL,
            mapped,
            |(_, peer)| {
                peer.submit_write(0, &[0; 64])?;
                peer.finish_write().map(|_| ())
            },
            |(_, peer)| peer.finish_write().map(|_| ()),
        )?;
    }
    Ok(())
}

/// Memory of this process that the peer accesses.
fn user_memory() -> Outcome {
    let peer = Peer::open()?;
    let mut faults = Faults::new()?;
    let map = Map::private(2 * PAGE)?;
    faults.sweep(
        "MEMORY_REGISTER",
        &USUAL,
        || Ok(peer.reopen()?),
        |peer| peer.register(&map),
        |peer| peer.unregister(),
    )?;
    let registered = || -> Result<_, Stop> {
        let it = peer.reopen()?;
        it.register(&map)?;
        Ok(it)
    };
    faults.sweep(
        "MEMORY_TRANSFER, read",
        &USUAL,
        registered,
        |peer| peer.memory_try_read(0, &mut [0; 64]).1,
        nothing,
    )?;
    faults.sweep(
        "MEMORY_TRANSFER, write",
        &USUAL,
        registered,
        |peer| peer.memory_try_write(0, &[0; 64]).1,
        nothing,
    )?;
    faults.sweep(
        "MEMORY_QUERY",
        &USUAL,
        registered,
        |peer| peer.memory_page(1).map(|_| ()),
        nothing,
    )?;
    faults.sweep(
        "MEMORY_MEASURE",
        &USUAL,
        registered,
        |peer| peer.memory_measure(2, 0).map(|_| ()),
        nothing,
    )?;
    faults.sweep(
        "MEMORY_UNREGISTER",
        &NONE,
        || Ok((registered()?, Once::default())),
        |(peer, once)| once.run(|| peer.unregister()),
        nothing,
    )
}

/// The queries of a mapping of the peer, and the end of a pin.
fn questions() -> Outcome {
    let fixture = Fixture::with_route()?;
    let mut faults = Faults::new()?;
    let pinned = || -> Result<_, Stop> {
        let it = (
            Object::exported(Drm::open()?, EITHER)?,
            fixture.peer.reopen()?,
        );
        it.1.attach_and_map(&it.0 .1, Mode::Pinned)?;
        Ok(it)
    };
    faults.sweep(
        "TABLE",
        &USUAL,
        pinned,
        |(_, peer)| peer.table().map(|_| ()),
        nothing,
    )?;
    faults.sweep(
        "STATUS",
        &COPY,
        pinned,
        |(_, peer)| peer.status().map(|_| ()),
        nothing,
    )?;
    faults.sweep(
        "MEASURE",
        &USUAL,
        || {
            let it = pinned()?;
            it.1.unmap()?;
            Ok(it)
        },
        |(_, peer)| peer.measure(2).map(|_| ()),
        nothing,
    )?;
    faults.sweep(
        "unpin",
        &NONE,
        || {
            let it = pinned()?;
            it.1.unmap()?;
            Ok((it, Once::default()))
        },
        |((_, peer), once)| once.run(|| peer.unpin()),
        nothing,
    )
}

/// An unbind while an importer has a buffer mapped.
fn unbind() -> Outcome {
    let fixture = Fixture::with_route()?;
    let gpu = fixture.gpu.clone();
    let mut faults = Faults::new()?;
    for mode in [Mode::Dynamic, Mode::Revocable] {
        faults.sweep(
            &format!("unbind, {mode:?}"),
            // The errors of the write to the file `unbind`.
            &USUAL,
            || {
                let it = Object::exported(Drm::open()?, EITHER)?;
                let peer = fixture.peer.reopen()?;
                peer.attach_and_map(&it.1, mode)?;
                Ok((Probe::new(&gpu, "vvram"), it, peer))
            },
            |(gpu, ..)| gpu.unbind(),
            |(gpu, ..)| {
                gpu.done = !gpu.is_bound();
                Ok(())
            },
        )?;
    }
    works()
}

/// A pin that has to move the object first.
fn pins() -> Outcome {
    let fixture = Fixture::with_route()?;
    let mut faults = Faults::new()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    for mode in [Mode::Pinned, Mode::Revocable] {
        faults.sweep(
            &format!("pin after an eviction, {mode:?}"),
            &USUAL,
            || {
                let it = Object::exported(Drm::open()?, EITHER)?;
                let peer = fixture.peer.reopen()?;
                peer.attach(&it.1, mode)?;
                debugfs.write("move", "evict")?;
                Ok((it, peer))
            },
            |(_, peer)| peer.pin(),
            nothing,
        )?;
    }
    Ok(())
}

/// A move of an object that an importer has mapped, to system memory and back.
fn moves() -> Outcome {
    let fixture = Fixture::with_route()?;
    let mut faults = Faults::new()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    faults.sweep(
        "evict by debugfs",
        &MOVES,
        || {
            let it = Object::exported(Drm::open()?, EITHER)?;
            let peer = fixture.peer.reopen()?;
            peer.attach_and_map(&it.1, Mode::Dynamic)?;
            Ok((it, peer))
        },
        |_| debugfs.write("move", "evict"),
        nothing,
    )?;
    faults.sweep(
        "map after an eviction",
        &USUAL,
        || {
            let it = Object::exported(Drm::open()?, EITHER)?;
            let peer = fixture.peer.reopen()?;
            peer.attach_and_map(&it.1, Mode::Dynamic)?;
            peer.unmap()?;
            debugfs.write("move", "evict")?;
            Ok((it, peer))
        },
        |(_, peer)| peer.map(),
        nothing,
    )?;
    Ok(())
}

/// Access by the CPU to a dma-buf of the GPU.
fn cpu_access() -> Outcome {
    let mut faults = Faults::new()?;
    for flags in [EITHER, uapi::CREATE_SYSTEM] {
        faults.sweep(
            &format!("begin access, {flags}"),
            &COPY,
            || Object::exported(Drm::open()?, flags),
            |(_, buffer)| buffer.sync(uapi::DMA_BUF_SYNC_READ | uapi::DMA_BUF_SYNC_WRITE),
            nothing,
        )?;
        faults.sweep(
            &format!("end access, {flags}"),
            &COPY,
            || {
                let it = Object::exported(Drm::open()?, flags)?;
                it.1.sync(uapi::DMA_BUF_SYNC_READ | uapi::DMA_BUF_SYNC_WRITE)?;
                Ok(it)
            },
            |(_, buffer)| {
                buffer.sync(
                    uapi::DMA_BUF_SYNC_READ | uapi::DMA_BUF_SYNC_WRITE | uapi::DMA_BUF_SYNC_END,
                )
            },
            nothing,
        )?;
    }
    Ok(())
}

/// Ranges of a BAR as dma-bufs.
fn bar_export() -> Outcome {
    Fixture::with_route()?;
    let exporter = Exporter::new()?;
    let peer = Peer::open()?;
    let mut faults = Faults::new()?;
    faults.sweep(
        "open, bar_export",
        &USUAL,
        || Ok(None),
        |file| {
            *file = Some(exporter.try_open()?);
            Ok(())
        },
        nothing,
    )?;
    let device = exporter.gpu().clone();
    sweeps::probe(&mut faults, &device, "bar_export", &USUAL)?;
    let bar_file = exporter.open()?;
    let ranges = request(&[(0, PAGE64), (4 * PAGE64, 2 * PAGE64)]);
    let export = || export_request(&bar_file, MEMORY, &ranges);
    faults.sweep(
        "BAR_EXPORT_IOC_EXPORT",
        &USUAL,
        || Ok(()),
        |()| export().map(drop),
        nothing,
    )?;
    let opened = || Ok((export()?, peer.reopen()?));
    faults.sweep(
        "attach, bar_export",
        &USUAL,
        opened,
        |(buffer, peer)| peer.attach(buffer, Mode::Dynamic).map(|_| ()),
        |(_, peer)| peer.detach(),
    )?;
    faults.sweep(
        "map, bar_export",
        &USUAL,
        || {
            let (buffer, peer) = opened()?;
            peer.attach(&buffer, Mode::Dynamic)?;
            Ok((buffer, peer))
        },
        |(_, peer)| peer.map(),
        nothing,
    )
}

/// The probe of each driver.
fn probe() -> Outcome {
    let fixture = Fixture::open()?;
    let devices = [
        (fixture.gpu.clone(), "vvram"),
        (fixture.edu.clone(), "edu_peer"),
    ];
    drop(fixture);
    let mut faults = Faults::new()?;
    for (device, driver) in devices {
        sweeps::probe(&mut faults, &device, driver, &PROBE)?;
        works()?;
    }
    Ok(())
}

/// The operations that resume the device.
fn resume() -> Outcome {
    let fixture = Fixture::with_route()?;
    let auto = Auto::new(&fixture.gpu)?;
    let mut faults = Faults::new()?;
    let object = fixture.drm.create_flags(PAGE64, EITHER)?;
    let buffer = object.export()?;
    faults.sweep(
        "attach, suspended",
        &USUAL,
        || {
            auto.sleeps("before the attach")?;
            Ok(fixture.peer.reopen()?)
        },
        |peer| peer.attach(&buffer, Mode::Dynamic).map(|_| ()),
        |peer| peer.detach(),
    )?;
    faults.sweep(
        "begin access, suspended",
        &USUAL,
        || auto.sleeps("before the access"),
        |()| {
            buffer.sync(uapi::DMA_BUF_SYNC_READ)?;
            buffer.sync(uapi::DMA_BUF_SYNC_READ | uapi::DMA_BUF_SYNC_END)
        },
        nothing,
    )
}

/// Objects with patterns, in the VRAM of a device that is active and that loses the content of VRAM
/// in a suspend.
struct InVram<'a> {
    power: &'a Manual<'a>,
    lost: &'a RefCell<Option<String>>,
    held: Vec<(Map, Pattern)>,
    _buffers: Vec<DmaBuf>,
    _drm: Drm,
}

impl<'a> InVram<'a> {
    fn new(power: &'a Manual<'a>, lost: &'a RefCell<Option<String>>) -> Result<Self, Stop> {
        power.on()?;
        let drm = Drm::open()?;
        let (mut held, mut buffers, mut last) = (Vec::new(), Vec::new(), (0, 0));
        for (flags, index) in [(uapi::CREATE_VRAM, 0), (uapi::CREATE_VRAM, 1), (EITHER, 2)] {
            let object = drm.create_flags(4 * PAGE64, flags)?;
            let (map, pattern) = (object.map()?, patterns().0.derive(index));
            map.fill(pattern);
            placed(&object, uapi::PLACEMENT_VRAM)?;
            buffers.push(object.export()?);
            held.push((map, pattern));
            last = (object.info()?.id, object.leak());
        }
        // Wait until the last users of the device are done.
        power.off_at_last()?;
        power.on()?;
        // The suspend has moved the object that may be in system memory.
        DebugFs::open(power.device())?.write("move", &format!("{} vram", last.0))?;
        check_eq!(
            drm.info(last.1)?.placement,
            uapi::PLACEMENT_VRAM,
            "placement of what may be moved"
        );
        power.unused()?;
        Ok(Self {
            power,
            lost,
            held,
            _buffers: buffers,
            _drm: drm,
        })
    }
}

impl Drop for InVram<'_> {
    fn drop(&mut self) {
        let asleep = self.power.on().err().map(|error| error.to_string());
        let mismatch =
            |(map, pattern): &(Map, Pattern)| Some(map.verify(*pattern).err()?.to_string());
        if let Some(lost) = asleep.or_else(|| self.held.iter().find_map(mismatch)) {
            self.lost.borrow_mut().get_or_insert(lost);
        }
    }
}

/// The suspend of a device whose VRAM loses its content, and the resume.
fn suspend() -> Outcome {
    lossy(|| {
        let gpu = PciDevice::vvram()?;
        let lost = RefCell::new(None);
        let power = Manual::new(&gpu)?;
        let mut faults = Faults::new()?;
        faults.sweep(
            "suspend, VRAM is lost",
            // Without memory the suspend is tried again later.
            &Errors {
                memory: &[libc::ENOMEM, libc::EAGAIN],
                ..USUAL
            },
            || InVram::new(&power, &lost),
            |it| it.power.off(),
            nothing,
        )?;
        faults.sweep(
            "resume, VRAM was lost",
            &USUAL,
            || {
                let it = InVram::new(&power, &lost)?;
                power.off_at_last()?;
                Ok(it)
            },
            |it| it.power.resume(),
            |it| it.power.undo_resume(),
        )?;
        let lost = lost.borrow_mut().take();
        check!(lost.is_none(), "{lost:?}");
        Ok(())
    })
}

/// The work of workers while allocations in workers fail: they allocate nothing, so everything that
/// was queued is done.
fn workers() -> Outcome {
    let fixture = Fixture::with_route()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let (a, b) = patterns();
    for code in [
        Code::Module("vvram"),
        Code::Module("edu_peer"),
        Code::Layers,
    ] {
        let before = Snapshot::take()?;
        let workers = Workers::new(code, 1)?;
        // The injection works: an ioctl fails if this thread is included.
        let (result, own) = workers.with_me(|| match code {
            Code::Module("edu_peer") => fixture.peer.reopen().map(drop),
            _ => fixture.drm.create(PAGE64).map(drop),
        })?;
        expect_errno("an operation without memory", result, libc::ENOMEM)?;
        // A move by the engine, to system memory and back, with an importer.
        let shared = share(&fixture.drm, 4)?;
        shared.map.fill(a);
        fixture.peer.attach_and_map(&shared.buffer, Mode::Dynamic)?;
        debugfs.write("move", "evict")?;
        cpu_reads(&shared.map, a, &[0, 3])?;
        fixture.peer.map()?;
        peer_reads(&fixture.peer, a, &[0, 3])?;
        peer_writes(&fixture.peer, b, &[1])?;
        // A transfer in the background, and an object that is closed while it is used.
        let other = fixture.peer.reopen()?;
        other.attach(&shared.buffer, Mode::Dynamic)?;
        other.submit_write(0, &[0x5a; 64])?;
        let bytes = other.finish_write()?;
        check_eq!(bytes, 64, "bytes of a transfer in the background");
        check_eq!(shared.map.byte(63), 0x5a, "the last of them");
        // A copy of an import, which a worker releases.
        let import = Imported::new(Drm::open()?, Kind::Heap)?;
        for _ in 0..2 {
            import.drm.copy_raw(&VvramGemCopy {
                src: import.handle,
                dst: import.own,
                size: 4 * PAGE64,
                ..Default::default()
            })?;
        }
        drop(import);
        other.submit_read(0, PAGE)?;
        drop(other);
        fixture.peer.detach()?;
        drop(shared);
        // A suspend.
        let auto = Auto::new(&fixture.gpu)?;
        auto.sleeps("while it is not in use")?;
        drop(auto);
        workers.only(own, code)?;
        drop(workers);
        before.compare(&format!("workers of {code:?}"))?;
    }
    works()
}

/// A probe by a worker, in which allocations are sure to fail.
fn probing_worker() -> Outcome {
    let gpu = PciDevice::vvram()?;
    for interval in 1..=if misc::soak() > 1 { 50 } else { 3 } {
        let before = Snapshot::take()?;
        let workers = Workers::new(Code::Layers, interval)?;
        let probe = Probe::new(&gpu, "vvram");
        let mut probes = 0;
        // A probe makes one allocation at least.
        while workers.injected() == 0 && probes < interval {
            reload("vvram", &["async_probe"])?;
            probes += 1;
            let begun = misc::poll(Duration::from_secs(10), || {
                (workers.injected() > 0 || gpu.driver().is_some()).then_some(())
            });
            check!(begun.is_some(), "the probe by a worker does nothing");
            // This waits for the worker.
            reload("vvram", &[])?;
        }
        let failed = workers.injected();
        drop(workers);
        println!("each of {interval}: {failed} allocations failed, in {probes} probes");
        check!(failed > 0, "no allocation of a probe by a worker failed");
        drop(probe);
        works()?;
        before.compare(&format!("a probe by a worker, each of {interval}"))?;
    }
    Ok(())
}

/// The close of the last file of each kind.
fn release() -> Outcome {
    let fixture = Fixture::with_route()?;
    let mut faults = Faults::new()?;
    faults.sweep(
        "close of a file",
        &NONE,
        || {
            let it = Object::exported(Drm::open()?, EITHER)?;
            it.0.drm.create_flags(PAGE64, uapi::CREATE_SYSTEM)?.leak();
            Ok(Some(it))
        },
        |it| {
            *it = None;
            Ok(())
        },
        nothing,
    )?;
    faults.sweep(
        "close of a peer",
        &NONE,
        || {
            let it = Object::exported(Drm::open()?, EITHER)?;
            let peer = fixture.peer.reopen()?;
            peer.attach_and_map(&it.1, Mode::Dynamic)?;
            Ok((it, Some(peer)))
        },
        |(_, peer)| {
            *peer = None;
            Ok(())
        },
        nothing,
    )
}

igt_main! {
    "open", "open of the render node", open;
    "create", "GEM_CREATE", create;
    "ioctls", "the other ioctls", ioctls;
    "prime", "export and import", prime;
    "mmap", "page faults", mmap;
    "importers", "what importers of each class do", importers;
    "copies", "copies between objects and imports", copies;
    "svm", "moves of memory of a process", svm;
    "release", "the last close", release;
    "transfers", "reads and writes of a peer", transfers;
    "user-memory", "memory of a process that a peer accesses", user_memory;
    "questions", "what a peer tells of its mapping", questions;
    "unbind", "the end, with importers", unbind;
    "pins", "pins of what is not in VRAM", pins;
    "moves", "moves of an object that is in use", moves;
    "cpu-access", "begin and end of an access by the CPU", cpu_access;
    "resume", "what wakes the device", resume;
    "suspend", "a suspend in which VRAM loses its content, and the resume after it", suspend;
    "bar-export", "the operations of bar_export", bar_export;
    "vm", "address spaces", vvram_tests::vm::faults;
    "probe", "the probe of each driver", probe;
    "probing-worker", "a probe by a worker", probing_worker;
    "workers", "what is done in the background", workers;
}

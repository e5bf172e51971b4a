// SPDX-License-Identifier: GPL-2.0

//! Every operation, with each of its allocations and copies failing in turn.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;

use vvram_tests::copy::{Fenced, Imported};
use vvram_tests::debugfs::DebugFs;
use vvram_tests::drm::{DmaBuf, Drm};
use vvram_tests::faults::{Code, Faults, Snapshot, Workers};
use vvram_tests::foreign::{self, Kind};
use vvram_tests::lender::{export_request, request, Lent, MEMORY};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::power::{lossy, Auto, Manual};
use vvram_tests::rebind::{reload, Probe, Unbound};
use vvram_tests::scene::{
    cpu_reads, patterns, peer_reads, peer_writes, placed, share, works, Scene,
};
use vvram_tests::svm;
use vvram_tests::uapi::{
    self, PeerAttachments, VvramGemCopy, VvramGemCreate, VvramGemImportInfo, VvramGemMmapOffset,
};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome, Stop, SysError};

const PAGE64: u64 = PAGE as u64;
const EITHER: u32 = uapi::CREATE_VRAM | uapi::CREATE_SYSTEM;
/// The size that one page table maps.
const TABLE: u64 = 2 << 20;
/// The errors that an allocation of memory and a copy of arguments may return.
const USUAL: [i32; 2] = [libc::ENOMEM, libc::EFAULT];
/// No error: the operation must not fail, so it must not need memory.
const NONE: [i32; 0] = [];

fn nothing<S>(_: &mut S) -> Result<(), SysError> {
    Ok(())
}

/// A file of the GPU, and the handle of an object of some pages in it.
struct Object {
    handle: u32,
    drm: Drm,
}

impl Object {
    fn new(flags: u32) -> Result<Self, Stop> {
        let drm = Drm::open()?;
        let handle = drm.create_flags(4 * PAGE64, flags)?.leak();
        Ok(Self { handle, drm })
    }

    fn exported(flags: u32) -> Result<(Self, DmaBuf), Stop> {
        let object = Self::new(flags)?;
        let buffer = object.drm.export(object.handle, libc::O_RDWR as u32)?;
        Ok((object, buffer))
    }
}

fn open() -> Outcome {
    let mut faults = Faults::new()?;
    let path = Drm::open()?.path().to_path_buf();
    faults.sweep(
        "open",
        &USUAL,
        || Ok(None),
        |file: &mut Option<File>| {
            let opened = File::options().read(true).write(true).open(&path);
            *file = Some(opened.map_err(|error| {
                SysError::new("open", error.raw_os_error().unwrap_or(libc::EIO))
            })?);
            Ok(())
        },
        nothing,
    )?;
    let peer = Peer::open()?;
    faults.sweep(
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
    let mut faults = Faults::new()?;
    for (name, flags) in [
        ("GEM_CREATE, VRAM", uapi::CREATE_VRAM),
        ("GEM_CREATE, system", uapi::CREATE_SYSTEM),
        ("GEM_CREATE, either", EITHER),
    ] {
        faults.sweep(
            name,
            &USUAL,
            Drm::open,
            |drm| drm.create_raw(&mut VvramGemCreate::new(4 * PAGE64, flags)),
            nothing,
        )?;
    }
    Ok(())
}

fn ioctls() -> Outcome {
    let mut faults = Faults::new()?;
    let object = || Object::new(EITHER);
    faults.sweep(
        "GETPARAM",
        &USUAL,
        Drm::open,
        |drm| drm.getparam(uapi::PARAM_VRAM_SIZE).map(|_| ()),
        nothing,
    )?;
    faults.sweep(
        "GEM_MMAP_OFFSET",
        &USUAL,
        object,
        |it| {
            it.drm.mmap_offset_raw(&mut VvramGemMmapOffset {
                handle: it.handle,
                ..Default::default()
            })
        },
        nothing,
    )?;
    faults.sweep(
        "GEM_INFO",
        &USUAL,
        object,
        |it| it.drm.info(it.handle).map(|_| ()),
        nothing,
    )?;
    faults.sweep(
        "GEM_ATTACHMENTS",
        &USUAL,
        || {
            let it = Object::exported(EITHER)?;
            let peer = Peer::open()?;
            peer.attach(&it.1, Mode::NoP2p)?;
            Ok((it, peer))
        },
        |((it, _), _)| {
            it.drm.attachments_raw(&mut PeerAttachments {
                handle: it.handle,
                ..Default::default()
            })
        },
        nothing,
    )?;
    let edu = PciDevice::edu()?;
    faults.sweep(
        "PEER_QUERY",
        &USUAL,
        object,
        |it| {
            let flags = Mode::Dynamic.attachment_flags();
            it.drm.query(it.handle, flags, &edu).map(|_| ())
        },
        nothing,
    )?;
    faults.sweep(
        "GEM_IMPORT_INFO",
        &USUAL,
        || Imported::new(Kind::Heap),
        |it| {
            it.drm.import_info_raw(&mut VvramGemImportInfo {
                handle: it.handle,
                ..Default::default()
            })
        },
        nothing,
    )?;
    faults.sweep(
        "GEM_CLOSE",
        &USUAL,
        || Ok((Object::new(EITHER)?, Cell::new(false))),
        |(it, done)| {
            if !done.get() {
                it.drm.close(it.handle)?;
                done.set(true);
            }
            Ok(())
        },
        nothing,
    )?;
    Ok(())
}

/// Memory of this process migrates to VRAM, and back.
fn svm() -> Outcome {
    const PAGES: usize = 20;
    let mut faults = Faults::new()?;
    let prepare = || Ok((Drm::open()?, svm::filled(PAGES, patterns().0)?));
    faults.sweep(
        "SVM_MIGRATE",
        // A page that cannot be allocated is reported like a page that is in use.
        &[libc::ENOMEM, libc::EFAULT, libc::EBUSY],
        prepare,
        |(drm, map)| drm.svm_migrate(map, 0..PAGES),
        nothing,
    )?;
    faults.sweep(
        "SVM_EVICT",
        &USUAL,
        || {
            let (drm, map) = prepare()?;
            drm.svm_migrate(&map, 0..PAGES)?;
            Ok((drm, map))
        },
        |(drm, map)| drm.svm_evict(map, 0..PAGES),
        nothing,
    )
}

/// Copies with fences of all kinds; for imported buffers the kernel makes a vmap.
fn copies() -> Outcome {
    let mut faults = Faults::new()?;
    for (name, kind) in [("heap", Kind::Heap), ("udmabuf", Kind::Udmabuf)] {
        for into in [false, true] {
            faults.sweep(
                &format!("GEM_COPY, {} {name}", if into { "into" } else { "of" }),
                &USUAL,
                || Fenced::new(kind, into),
                Fenced::run,
                nothing,
            )?;
        }
    }
    Ok(())
}

fn prime() -> Outcome {
    let mut faults = Faults::new()?;
    faults.sweep(
        "PRIME_HANDLE_TO_FD",
        &USUAL,
        || Object::new(EITHER),
        |it| it.drm.export(it.handle, libc::O_RDWR as u32).map(drop),
        nothing,
    )?;
    faults.sweep(
        "PRIME_FD_TO_HANDLE, heap",
        &USUAL,
        || Ok((Drm::open()?, foreign::make(Kind::Heap, 4)?)),
        |(drm, heap)| drm.import_handle(heap.buffer.fd()).map(|_| ()),
        nothing,
    )?;
    faults.sweep(
        "PRIME_FD_TO_HANDLE, own",
        &USUAL,
        || Ok((Object::exported(EITHER)?, Drm::open()?)),
        |((_, buffer), drm)| drm.import_handle(buffer.fd()).map(|_| ()),
        nothing,
    )?;
    Ok(())
}

/// Makes the kernel write to each page, so that a fault fails with an error and not with a signal.
fn populate(zero: &File, map: &Map) -> Result<(), SysError> {
    let base = map.address().as_ptr().cast::<libc::c_void>();
    for page in 0..map.pages() {
        // SAFETY: the byte is in the mapping, of which nothing else is read or written.
        let read = unsafe { libc::read(zero.as_raw_fd(), base.byte_add(page * PAGE), 1) };
        if read != 1 {
            return Err(SysError::last("read(/dev/zero)"));
        }
    }
    Ok(())
}

fn mmap() -> Outcome {
    let mut faults = Faults::new()?;
    let Ok(zero) = File::open("/dev/zero") else {
        fail!("/dev/zero cannot be opened");
    };
    let map = |flags, size: u64| {
        move || {
            let drm = Drm::open()?;
            let handle = drm.create_flags(size, flags)?.leak();
            let offset = drm.mmap_offset(handle)?;
            let map = Map::new(drm.fd(), offset, size as usize)?;
            Ok((map, drm))
        }
    };
    // A mapping of the size of two page tables needs at least one table that its neighbours do not
    // have.
    for (name, flags, size) in [
        ("page fault, VRAM", EITHER, 2 * TABLE),
        ("page fault, system", uapi::CREATE_SYSTEM, 2 * TABLE),
    ] {
        faults.sweep(
            name,
            &USUAL,
            map(flags, size),
            |(map, _)| populate(&zero, map),
            nothing,
        )?;
    }
    faults.sweep(
        "mmap of a dma-buf",
        &USUAL,
        || Object::exported(EITHER),
        |(_, buffer)| populate(&zero, &buffer.map()?),
        nothing,
    )?;
    faults.sweep(
        "mmap for direct I/O",
        &USUAL,
        || {
            let drm = Drm::open()?;
            let what = uapi::CREATE_VRAM | uapi::CREATE_DIRECT_IO;
            let handle = drm.create_flags(2 * PAGE as u64, what)?.leak();
            Ok((drm.mmap_offset(handle)?, drm))
        },
        |(offset, drm)| populate(&zero, &Map::new(drm.fd(), *offset, 2 * PAGE)?),
        nothing,
    )?;
    Ok(())
}

/// Attach, pin, map, unmap and detach of each class of importer.
fn importers() -> Outcome {
    let scene = Scene::with_route()?;
    let mut faults = Faults::new()?;
    for mode in [
        Mode::Static,
        Mode::Dynamic,
        Mode::Pinned,
        Mode::Revocable,
        Mode::NoP2p,
        Mode::Cpu,
    ] {
        let open = || Ok((Object::exported(EITHER)?, scene.peer.reopen()?));
        faults.sweep(
            &format!("attach, {mode:?}"),
            &USUAL,
            open,
            |((_, buffer), peer)| peer.attach(buffer, mode).map(|_| ()),
            |(_, peer)| peer.detach(),
        )?;
        let attached = || {
            let it = open()?;
            it.1.attach(&it.0 .1, mode)?;
            Ok(it)
        };
        if mode.needs_pin() {
            faults.sweep(
                &format!("pin, {mode:?}"),
                &USUAL,
                attached,
                |(_, peer)| peer.pin(),
                nothing,
            )?;
        }
        let pinned = || {
            let it = attached()?;
            if mode.needs_pin() {
                it.1.pin()?;
            }
            Ok(it)
        };
        faults.sweep(
            &format!("map, {mode:?}"),
            &USUAL,
            pinned,
            |(_, peer)| peer.map(),
            nothing,
        )?;
        let mapped = || -> Result<_, Stop> {
            let it = pinned()?;
            it.1.map()?;
            Ok(it)
        };
        faults.sweep(
            &format!("unmap, {mode:?}"),
            &NONE,
            || Ok((mapped()?, Cell::new(false))),
            |((_, peer), done)| {
                if !done.get() {
                    peer.unmap()?;
                    done.set(true);
                }
                Ok(())
            },
            nothing,
        )?;
        faults.sweep(
            &format!("detach, {mode:?}"),
            &NONE,
            || Ok((mapped()?, Cell::new(false))),
            |((_, peer), done)| {
                if !done.get() {
                    peer.detach()?;
                    done.set(true);
                }
                Ok(())
            },
            nothing,
        )?;
    }
    Ok(())
}

/// Transfers, of VRAM and of system memory.
fn transfers() -> Outcome {
    let scene = Scene::with_route()?;
    let mut faults = Faults::new()?;
    for mode in [Mode::Dynamic, Mode::NoP2p] {
        let mapped = || -> Result<_, Stop> {
            let it = (Object::exported(EITHER)?, scene.peer.reopen()?);
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
        || Ok((registered()?, Cell::new(false))),
        |(peer, done)| {
            if !done.get() {
                peer.unregister()?;
                done.set(true);
            }
            Ok(())
        },
        nothing,
    )
}

/// The queries of a mapping of the peer, and the end of a pin.
fn questions() -> Outcome {
    let scene = Scene::with_route()?;
    let mut faults = Faults::new()?;
    let pinned = || -> Result<_, Stop> {
        let it = (Object::exported(EITHER)?, scene.peer.reopen()?);
        it.1.attach(&it.0 .1, Mode::Pinned)?;
        it.1.pin_and_map(Mode::Pinned)?;
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
        &USUAL,
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
            Ok((it, Cell::new(false)))
        },
        |((_, peer), done)| {
            if !done.get() {
                peer.unpin()?;
                done.set(true);
            }
            Ok(())
        },
        nothing,
    )
}

/// An unbind while an importer has a buffer mapped.
fn unbind() -> Outcome {
    let scene = Scene::with_route()?;
    let gpu = scene.gpu.clone();
    let mut faults = Faults::new()?;
    for mode in [Mode::Dynamic, Mode::Revocable] {
        faults.sweep(
            &format!("unbind, {mode:?}"),
            // The errors of the write to the file `unbind`.
            &USUAL,
            || {
                let it = Object::exported(EITHER)?;
                let peer = scene.peer.reopen()?;
                peer.attach(&it.1, mode)?;
                peer.pin_and_map(mode)?;
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
    let scene = Scene::with_route()?;
    let mut faults = Faults::new()?;
    let debugfs = DebugFs::open(&scene.gpu)?;
    for mode in [Mode::Pinned, Mode::Revocable] {
        faults.sweep(
            &format!("pin after an eviction, {mode:?}"),
            &USUAL,
            || {
                let it = Object::exported(EITHER)?;
                let peer = scene.peer.reopen()?;
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
    let scene = Scene::with_route()?;
    let mut faults = Faults::new()?;
    let debugfs = DebugFs::open(&scene.gpu)?;
    faults.sweep(
        "evict by debugfs",
        &[libc::ENOMEM, libc::EFAULT, libc::ENOSPC, libc::EBUSY],
        || {
            let it = Object::exported(EITHER)?;
            let peer = scene.peer.reopen()?;
            peer.attach(&it.1, Mode::Dynamic)?;
            peer.map()?;
            Ok((it, peer))
        },
        |_| debugfs.write("move", "evict"),
        nothing,
    )?;
    faults.sweep(
        "map after an eviction",
        &USUAL,
        || {
            let it = Object::exported(EITHER)?;
            let peer = scene.peer.reopen()?;
            peer.attach(&it.1, Mode::Dynamic)?;
            peer.map()?;
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
            &USUAL,
            || Object::exported(flags),
            |(_, buffer)| buffer.sync(uapi::DMA_BUF_SYNC_READ | uapi::DMA_BUF_SYNC_WRITE),
            nothing,
        )?;
        faults.sweep(
            &format!("end access, {flags}"),
            &USUAL,
            || {
                let it = Object::exported(flags)?;
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
    Scene::with_route()?;
    let lent = Lent::new()?;
    let peer = Peer::open()?;
    let mut faults = Faults::new()?;
    faults.sweep(
        "open, bar_export",
        &USUAL,
        || Ok(None),
        |file| {
            *file = Some(lent.try_open()?);
            Ok(())
        },
        nothing,
    )?;
    let device = lent.gpu().clone();
    faults.sweep(
        "probe of bar_export",
        &[libc::ENOMEM, libc::EFAULT],
        || {
            Unbound::new(&device)?.keep();
            Ok(Probe::new(&device, "bar_export"))
        },
        Probe::bind,
        |it| {
            it.done = it.is_bound();
            Ok(())
        },
    )?;
    let lender = lent.open()?;
    let ranges = request(&[(0, PAGE64), (4 * PAGE64, 2 * PAGE64)]);
    let export = || export_request(&lender, MEMORY, &ranges);
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
    let scene = Scene::open()?;
    let devices = [
        (scene.gpu.clone(), "vvram"),
        (scene.edu.clone(), "edu_peer"),
    ];
    drop(scene);
    let mut faults = Faults::new()?;
    for (device, driver) in devices {
        faults.sweep(
            &format!("probe of {driver}"),
            // A failed request of a BAR returns EBUSY, also for want of memory.
            &[libc::ENOMEM, libc::EFAULT, libc::EBUSY],
            || {
                Unbound::new(&device)?.keep();
                Ok(Probe::new(&device, driver))
            },
            Probe::bind,
            |it| {
                it.done = it.is_bound();
                Ok(())
            },
        )?;
        works()?;
    }
    Ok(())
}

/// The operations that resume the device.
fn resume() -> Outcome {
    let scene = Scene::with_route()?;
    let auto = Auto::new(&scene.gpu)?;
    let mut faults = Faults::new()?;
    let object = scene.drm.create_flags(PAGE64, EITHER)?;
    let buffer = object.export()?;
    faults.sweep(
        "attach, suspended",
        &USUAL,
        || {
            auto.sleeps("before the attach")?;
            Ok(scene.peer.reopen()?)
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

/// Objects with patterns, in the VRAM of a device that is awake and that loses the content of VRAM
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
            &[libc::ENOMEM, libc::EFAULT, libc::EAGAIN],
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
    let scene = Scene::with_route()?;
    let debugfs = DebugFs::open(&scene.gpu)?;
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
            Code::Module("edu_peer") => scene.peer.reopen().map(drop),
            _ => scene.drm.create(PAGE64).map(drop),
        })?;
        expect_errno("an operation without memory", result, libc::ENOMEM)?;
        // A move by the engine, to system memory and back, with an importer.
        let shared = share(&scene.drm, 4)?;
        shared.map.fill(a);
        scene.peer.attach(&shared.buffer, Mode::Dynamic)?;
        scene.peer.map()?;
        debugfs.write("move", "evict")?;
        cpu_reads(&shared.map, a, &[0, 3])?;
        scene.peer.map()?;
        peer_reads(&scene.peer, a, &[0, 3])?;
        peer_writes(&scene.peer, b, &[1])?;
        // A transfer in the background, and an object that is closed while it is used.
        let other = scene.peer.reopen()?;
        other.attach(&shared.buffer, Mode::Dynamic)?;
        other.submit_write(0, &[0x5a; 64])?;
        let bytes = other.finish_write()?;
        check_eq!(bytes, 64, "bytes of a transfer in the background");
        check_eq!(shared.map.byte(63), 0x5a, "the last of them");
        // A copy of an import, which a worker releases.
        let import = Imported::new(Kind::Heap)?;
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
        scene.peer.detach()?;
        drop(shared);
        // A suspend.
        let auto = Auto::new(&scene.gpu)?;
        auto.sleeps("with nobody using it")?;
        drop(auto);
        let failed = workers.injected() - own;
        println!("{code:?}: {failed} allocations of workers failed");
        // The code that ends jobs must not wait for memory. KASAN itself allocates when memory is
        // freed.
        check!(
            failed == 0 || misc::has_kasan(),
            "a worker with {code:?} in its stack has allocated"
        );
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
        reload("vvram", &["async_probe"])?;
        let failed = misc::poll(Duration::from_secs(10), || {
            let over = workers.injected() >= 1 || gpu.driver().is_some();
            over.then(|| workers.injected())
        });
        drop(workers);
        println!("each of {interval}: {failed:?} allocations failed");
        check!(
            failed.is_some_and(|failed| failed > 0 || interval > 3),
            "the probe by a worker did nothing, or no allocation of it failed"
        );
        // This waits for the worker.
        reload("vvram", &[])?;
        drop(probe);
        works()?;
        before.compare(&format!("a probe by a worker, each of {interval}"))?;
    }
    Ok(())
}

/// The close of the last file of each kind.
fn release() -> Outcome {
    let scene = Scene::with_route()?;
    let mut faults = Faults::new()?;
    faults.sweep(
        "close of a file",
        &NONE,
        || {
            let it = Object::exported(EITHER)?;
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
            let it = Object::exported(EITHER)?;
            let peer = scene.peer.reopen()?;
            peer.attach(&it.1, Mode::Dynamic)?;
            peer.map()?;
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
    "moves", "moves while somebody has the object", moves;
    "cpu-access", "begin and end of an access by the CPU", cpu_access;
    "resume", "what wakes the device", resume;
    "suspend", "a suspend in which VRAM loses its content, and the resume after it", suspend;
    "bar-export", "the operations of bar_export", bar_export;
    "vm", "address spaces", vvram_tests::vm::faults;
    "probe", "the probe of each driver", probe;
    "probing-worker", "a probe by a worker", probing_worker;
    "workers", "what is done in the background", workers;
}

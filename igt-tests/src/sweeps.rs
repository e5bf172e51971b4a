// SPDX-License-Identifier: GPL-2.0

//! The operations that vvram and the driver of the modelled GPU have in common, with each of their
//! allocations and copies failing in turn.
//!
//! Each function takes a function that opens a file of the driver.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::copy::{Fenced, Imported};
use crate::drm::{DmaBuf, Drm, EITHER};
use crate::faults::{Errors, Faults};
use crate::fixture::Fixture;
use crate::foreign::{self, Kind};
use crate::map::{Map, PAGE, PAGE64};
use crate::pci::PciDevice;
use crate::peer::{Mode, Peer};
use crate::rebind::{Probe, Unbound};
use crate::uapi::{self, PeerAttachments, PeerImportInfo, VvramGemCreate, VvramGemMmapOffset};
use crate::{Outcome, Stop, SysError};

/// The size that one page table of the CPU maps.
const TABLE: u64 = 2 << 20;
/// The errors of an operation that allocates memory and copies arguments.
pub const USUAL: Errors = Errors {
    memory: &[libc::ENOMEM],
    copy: &[libc::EFAULT],
};
/// Those of an operation that copies arguments, and needs no memory.
pub const COPY: Errors = Errors {
    memory: &[],
    ..USUAL
};
/// No error: the operation must not fail, so it must not need memory.
pub const NONE: Errors = Errors {
    memory: &[],
    copy: &[],
};
/// Those of [`populate`], which is an access of the kernel to the memory of the process.
pub const ACCESS: Errors = Errors {
    memory: &[libc::EFAULT],
    copy: &[],
};
/// Those of [`populate`] of a new mapping.
pub const MAP: Errors = Errors {
    memory: &[libc::ENOMEM, libc::EFAULT],
    copy: &[libc::EFAULT],
};
/// The errors of the probe of a driver that requests a BAR: a request that fails returns `EBUSY`,
/// also for want of memory.
pub const PROBE: Errors = Errors {
    memory: &[libc::ENOMEM, libc::EBUSY],
    ..USUAL
};
/// The errors of a move that debugfs asks for.
pub const MOVES: Errors = Errors {
    memory: &[libc::ENOMEM, libc::ENOSPC, libc::EBUSY],
    ..USUAL
};

/// For operations that need not be undone.
///
/// # Errors
///
/// None.
pub fn nothing<S>(_: &mut S) -> Result<(), SysError> {
    Ok(())
}

/// An operation that is done once, also if it is repeated.
#[derive(Debug, Default)]
pub struct Once(Cell<bool>);

impl Once {
    /// Does it, unless that has succeeded before.
    pub fn run(&self, op: impl FnOnce() -> Result<(), SysError>) -> Result<(), SysError> {
        if !self.0.get() {
            op()?;
            self.0.set(true);
        }
        Ok(())
    }
}

/// A file of the GPU, and the handle of an object of some pages in it.
#[derive(Debug)]
pub struct Object {
    /// The handle.
    pub handle: u32,
    /// The file.
    pub drm: Drm,
}

impl Object {
    /// Makes an object of four pages in a file.
    pub fn new(drm: Drm, flags: u32) -> Result<Self, Stop> {
        let handle = drm.create_flags(4 * PAGE64, flags)?.leak();
        Ok(Self { handle, drm })
    }

    /// The same, and its dma-buf.
    pub fn exported(drm: Drm, flags: u32) -> Result<(Self, DmaBuf), Stop> {
        let object = Self::new(drm, flags)?;
        let buffer = object.drm.export(object.handle, libc::O_RDWR as u32)?;
        Ok((object, buffer))
    }
}

/// Opening a node.
pub fn open(name: &str, path: &Path) -> Outcome {
    Faults::new()?.sweep(
        name,
        &USUAL,
        || Ok(None),
        |file: &mut Option<File>| {
            let opened = File::options().read(true).write(true).open(path);
            *file = Some(opened.map_err(|error| SysError::io("open", &error))?);
            Ok(())
        },
        nothing,
    )
}

/// GEM_CREATE.
pub fn create(open: impl Fn() -> Result<Drm, Stop>) -> Outcome {
    let mut faults = Faults::new()?;
    for (name, flags) in [
        ("GEM_CREATE, VRAM", uapi::CREATE_VRAM),
        ("GEM_CREATE, system", uapi::CREATE_SYSTEM),
        ("GEM_CREATE, either", EITHER),
    ] {
        faults.sweep(
            name,
            &USUAL,
            &open,
            |drm| drm.create_raw(&mut VvramGemCreate::new(4 * PAGE64, flags)),
            nothing,
        )?;
    }
    Ok(())
}

/// The ioctls that ask for something, and GEM_CLOSE.
pub fn ioctls(open: impl Fn() -> Result<Drm, Stop>) -> Outcome {
    let mut faults = Faults::new()?;
    let object = || Object::new(open()?, EITHER);
    faults.sweep(
        "GETPARAM",
        &COPY,
        &open,
        |drm| drm.getparam(uapi::PARAM_VRAM_SIZE).map(|_| ()),
        nothing,
    )?;
    faults.sweep(
        "GEM_MMAP_OFFSET",
        &COPY,
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
        &COPY,
        object,
        |it| it.drm.info(it.handle).map(|_| ()),
        nothing,
    )?;
    faults.sweep(
        "PEER_ATTACHMENTS",
        &USUAL,
        || {
            let it = Object::exported(open()?, EITHER)?;
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
        &COPY,
        object,
        |it| {
            let flags = Mode::Dynamic.attachment_flags();
            it.drm.query(it.handle, flags, &edu).map(|_| ())
        },
        nothing,
    )?;
    faults.sweep(
        "PEER_IMPORT_INFO",
        &USUAL,
        || Imported::new(open()?, Kind::Heap),
        |it| {
            it.drm.import_info_raw(&mut PeerImportInfo {
                handle: it.handle,
                ..Default::default()
            })
        },
        nothing,
    )?;
    faults.sweep(
        "GEM_CLOSE",
        &COPY,
        || Ok((object()?, Once::default())),
        |(it, once)| once.run(|| it.drm.close(it.handle)),
        nothing,
    )
}

/// A probe of a device by a driver, with the errors that are allowed.
pub fn probe(
    faults: &mut Faults,
    device: &PciDevice,
    driver: &'static str,
    allowed: &Errors,
) -> Outcome {
    faults.sweep(
        &format!("probe of {driver}"),
        allowed,
        || {
            Unbound::new(device)?.keep();
            Ok(Probe::new(device, driver))
        },
        Probe::bind,
        |it| {
            it.done = it.is_bound();
            Ok(())
        },
    )
}

/// Export and import.
pub fn prime(open: impl Fn() -> Result<Drm, Stop>) -> Outcome {
    let mut faults = Faults::new()?;
    faults.sweep(
        "PRIME_HANDLE_TO_FD",
        &USUAL,
        || Object::new(open()?, EITHER),
        |it| it.drm.export(it.handle, libc::O_RDWR as u32).map(drop),
        nothing,
    )?;
    faults.sweep(
        "PRIME_FD_TO_HANDLE, heap",
        &USUAL,
        || Ok((open()?, foreign::make(Kind::Heap, 4)?)),
        |(drm, heap)| drm.import_handle(heap.buffer.fd()).map(|_| ()),
        nothing,
    )?;
    faults.sweep(
        "PRIME_FD_TO_HANDLE, own",
        &USUAL,
        || Ok((Object::exported(open()?, EITHER)?, open()?)),
        |((_, buffer), drm)| drm.import_handle(buffer.fd()).map(|_| ()),
        nothing,
    )
}

/// Copies with fences of all kinds; for imported buffers vvram has the kernel make a vmap.
pub fn copies(open: impl Fn() -> Result<Drm, Stop>) -> Outcome {
    let mut faults = Faults::new()?;
    for (name, kind) in [("heap", Kind::Heap), ("udmabuf", Kind::Udmabuf)] {
        for into in [false, true] {
            faults.sweep(
                &format!("GEM_COPY, {} {name}", if into { "into" } else { "of" }),
                &USUAL,
                || Fenced::new(open()?, kind, into),
                Fenced::run,
                nothing,
            )?;
        }
    }
    Ok(())
}

/// Makes the kernel write to each page, so that a fault fails with an error and not with a signal.
///
/// # Errors
///
/// `EFAULT` if a page fault fails.
pub fn populate(zero: &File, map: &Map) -> Result<(), SysError> {
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

/// The file that [`populate`] reads.
pub fn zero() -> Result<File, SysError> {
    File::open("/dev/zero").map_err(|error| SysError::io("open(/dev/zero)", &error))
}

/// Page faults, in VRAM and in system memory.
pub fn mmap(open: impl Fn() -> Result<Drm, Stop>) -> Outcome {
    let mut faults = Faults::new()?;
    let (zero, open) = (zero()?, &open);
    let map = |flags, size: u64| {
        move || {
            let drm = open()?;
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
            &ACCESS,
            map(flags, size),
            |(map, _)| populate(&zero, map),
            nothing,
        )?;
    }
    faults.sweep(
        "mmap of a dma-buf",
        &MAP,
        || Object::exported(open()?, EITHER),
        |(_, buffer)| populate(&zero, &buffer.map()?),
        nothing,
    )
}

/// Attach, pin, map, unmap and detach of importers of these classes.
pub fn importers(open: impl Fn() -> Result<Drm, Stop>, modes: &[Mode]) -> Outcome {
    let fixture = Fixture::with_route()?;
    let mut faults = Faults::new()?;
    for mode in modes.iter().copied() {
        let opened = || Ok((Object::exported(open()?, EITHER)?, fixture.peer.reopen()?));
        faults.sweep(
            &format!("attach, {mode:?}"),
            &USUAL,
            opened,
            |((_, buffer), peer)| peer.attach(buffer, mode).map(|_| ()),
            |(_, peer)| peer.detach(),
        )?;
        let attached = || {
            let it = opened()?;
            it.1.attach(&it.0 .1, mode)?;
            Ok(it)
        };
        if mode.needs_pin() {
            faults.sweep(
                &format!("pin, {mode:?}"),
                &NONE,
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
            Ok((it, Once::default()))
        };
        faults.sweep(
            &format!("unmap, {mode:?}"),
            &NONE,
            mapped,
            |((_, peer), once)| once.run(|| peer.unmap()),
            nothing,
        )?;
        faults.sweep(
            &format!("detach, {mode:?}"),
            &NONE,
            mapped,
            |((_, peer), once)| once.run(|| peer.detach()),
            nothing,
        )?;
    }
    Ok(())
}

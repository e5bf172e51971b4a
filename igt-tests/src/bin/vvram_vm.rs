// SPDX-License-Identifier: GPL-2.0

//! Page tables follow objects: an entry has the address of the object, or is not present.

use std::fs;
use std::thread;
use std::time::Duration;

use vvram_tests::cgroup::MemoryGroup;
use vvram_tests::debugfs::DebugFs;
use vvram_tests::drm::{ioctl_raw, Drm, Gem, EITHER};
use vvram_tests::fixture::{patterns, placed, squeeze_idle, works};
use vvram_tests::foreign::{self, Kind};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::proc::Child;
use vvram_tests::rebind::Unbound;
use vvram_tests::storm::{Action, Storm};
use vvram_tests::uapi::{VmBind, VvramVmRead};
use vvram_tests::vm::{mapping_of, mappings, shown};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, uapi, Outcome, Stop};

const VRAM: u32 = uapi::PLACEMENT_VRAM;
const SYSTEM: u32 = uapi::PLACEMENT_SYSTEM;
const AS_IS: u32 = uapi::VM_READ_AS_IS;
const LIMIT: Duration = Duration::from_secs(20);
/// The address at which objects are bound.
const AT: u64 = 5 * PAGE64;

/// A device and its debugfs.
struct Gpu {
    drm: Drm,
    debugfs: DebugFs,
    device: PciDevice,
}

impl Gpu {
    #[track_caller]
    fn open() -> Result<Self, Stop> {
        let device = PciDevice::vvram()?;
        let gpu = Self {
            drm: Drm::open_on(&device)?,
            debugfs: DebugFs::open(&device)?,
            device,
        };
        check_eq!(mappings(&gpu.debugfs)?, [], "mappings at first");
        Ok(gpu)
    }

    /// Moves an object to `vram` or `system`.
    #[track_caller]
    fn force(&self, object: &Gem<'_>, to: &str) -> Outcome {
        let id = object.info()?.id;
        Ok(self.debugfs.write("move", &format!("{id} {to}"))?)
    }

    /// Reads all bytes that are bound at an address, and compares them.
    #[track_caller]
    fn reads(&self, addr: u64, size: u64, pattern: Pattern, flags: u32) -> Outcome {
        let bytes = self.drm.vm_read(addr, size as usize, flags)?;
        match pattern.verify(&bytes, 0) {
            Ok(()) => Ok(()),
            Err(mismatch) => fail!("read at {addr:#x}: {mismatch}"),
        }
    }

    /// Checks that an object has moved so that its entries are cleared, and that they are filled
    /// again at the next use.
    #[track_caller]
    fn follows(&self, object: &Gem<'_>, pattern: Pattern, place: u32) -> Outcome {
        let id = object.info()?.id;
        placed(object, place)?;
        shown(&self.debugfs, id, false)?;
        expect_errno(
            "a read by entries that were cleared",
            self.drm.vm_read(AT, 8, AS_IS),
            libc::EFAULT,
        )?;
        self.reads(AT, object.size(), pattern, 0)?;
        // The use does not move the object.
        placed(object, place)?;
        shown(&self.debugfs, id, true)?;
        self.reads(AT, object.size(), pattern, AS_IS)
    }
}

/// Objects in both kinds of memory, parts of them, and reads across their ends.
fn bind() -> Outcome {
    let gpu = Gpu::open()?;
    let (a, b) = patterns();
    let vram = gpu.drm.create_flags(7 * PAGE64, EITHER)?;
    let local = gpu.drm.create_flags(3 * PAGE64, uapi::CREATE_SYSTEM)?;
    vram.map()?.fill(a);
    local.map()?.fill(b);
    placed(&vram, VRAM)?;
    placed(&local, SYSTEM)?;
    gpu.drm.vm_bind(&vram, AT)?;
    gpu.drm.vm_bind(&local, AT + 7 * PAGE64)?;
    for (object, pages) in [(&vram, 7), (&local, 3)] {
        let mapping = mapping_of(&gpu.debugfs, object.info()?.id)?;
        check_eq!(mapping.pages, pages, "pages");
        check_eq!(
            (mapping.present, mapping.evicted),
            (pages, false),
            "entries"
        );
    }
    for flags in [0, AS_IS] {
        gpu.reads(AT, 7 * PAGE64, a, flags)?;
        gpu.reads(AT + 7 * PAGE64, 3 * PAGE64, b, flags)?;
        // Across the end of an object, and across pages.
        let at = AT + 7 * PAGE64;
        let bytes = gpu.drm.vm_read(at - PAGE64 - 11, 2 * PAGE + 22, flags)?;
        let (of_a, of_b) = bytes.split_at(PAGE + 11);
        check_eq!(
            (a.verify(of_a, 6 * PAGE64 - 11), b.verify(of_b, 0)),
            (Ok(()), Ok(())),
            "bytes at the end and at the beginning"
        );
    }

    // A part of an object is bound a second time.
    gpu.drm.vm_bind_raw(VmBind {
        address: 0,
        size: 2 * PAGE64,
        offset: 3 * PAGE64,
        handle: vram.handle(),
        ..Default::default()
    })?;
    let bytes = gpu.drm.vm_read(0, 2 * PAGE, AS_IS)?;
    check_eq!(a.verify(&bytes, 3 * PAGE64), Ok(()), "bytes of the part");
    check_eq!(mappings(&gpu.debugfs)?.len(), 3, "mappings");

    gpu.drm.vm_unbind(AT, 7 * PAGE64)?;
    expect_errno(
        "an address without an object",
        gpu.drm.vm_read(AT, 1, 0),
        libc::EFAULT,
    )?;
    expect_errno(
        "a second unbind",
        gpu.drm.vm_unbind(AT, 7 * PAGE64),
        libc::ENOENT,
    )?;
    gpu.reads(AT + 7 * PAGE64, 3 * PAGE64, b, 0)?;
    // The other part is still bound, and follows the object.
    gpu.force(&vram, "system")?;
    shown(&gpu.debugfs, vram.info()?.id, false)?;
    let bytes = gpu.drm.vm_read(0, 2 * PAGE, 0)?;
    check_eq!(a.verify(&bytes, 3 * PAGE64), Ok(()), "bytes of the part");
    shown(&gpu.debugfs, vram.info()?.id, true)
}

/// Calls that cannot bind or read fail, and have bound nothing.
fn bad_input() -> Outcome {
    let gpu = Gpu::open()?;
    let object = gpu.drm.create_flags(4 * PAGE64, EITHER)?;
    let good = VmBind {
        address: AT,
        size: 2 * PAGE64,
        offset: PAGE64,
        handle: object.handle(),
        ..Default::default()
    };
    let end = uapi::VM_SIZE;
    expect_errno("nothing is bound", gpu.drm.vm_read(AT, 1, 0), libc::EFAULT)?;
    expect_errno(
        "an unbind before a bind",
        gpu.drm.vm_unbind(AT, PAGE64),
        libc::ENOENT,
    )?;
    for bad in [
        VmBind {
            offset: 3 * PAGE64,
            ..good
        },
        VmBind {
            address: end,
            ..good
        },
        VmBind {
            address: end - PAGE64,
            ..good
        },
        VmBind {
            op: uapi::BIND_UNMAP,
            ..good
        },
        VmBind {
            op: uapi::BIND_UNMAP,
            handle: 0,
            ..good
        },
    ] {
        expect_errno(&format!("{bad:?}"), gpu.drm.vm_bind_raw(bad), libc::EINVAL)?;
    }
    check_eq!(mappings(&gpu.debugfs)?, [], "mappings after errors");

    gpu.drm.vm_bind_raw(good)?;
    for address in [AT, AT - PAGE64, AT + PAGE64] {
        expect_errno(
            "addresses that are taken",
            gpu.drm.vm_bind_raw(VmBind { address, ..good }),
            libc::EEXIST,
        )?;
    }
    for (addr, size) in [
        (AT, PAGE64),
        (AT + PAGE64, PAGE64),
        (AT - PAGE64, 3 * PAGE64),
    ] {
        expect_errno(
            "an unbind of something else",
            gpu.drm.vm_unbind(addr, size),
            libc::ENOENT,
        )?;
    }
    let mut byte = 0u8;
    let read = VvramVmRead {
        address: AT,
        size: 1,
        data: &raw mut byte as u64,
        flags: 0,
        pad: 0,
    };
    for (bad, errno) in [
        (
            VvramVmRead {
                address: end,
                ..read
            },
            libc::EINVAL,
        ),
        (
            VvramVmRead {
                address: AT - 1,
                ..read
            },
            libc::EFAULT,
        ),
        (
            VvramVmRead {
                address: AT + 2 * PAGE64,
                ..read
            },
            libc::EFAULT,
        ),
    ] {
        // SAFETY: there is a byte, or the address is null.
        expect_errno(
            &format!("{bad:?}"),
            unsafe { gpu.drm.vm_read_raw(bad) },
            errno,
        )?;
    }
    // The last page can be bound, too.
    gpu.drm.vm_bind_raw(VmBind {
        address: end - 2 * PAGE64,
        ..good
    })?;
    check_eq!(gpu.drm.vm_read(end - 1, 1, 0)?, [0], "the last byte");
    Ok(())
}

/// An object is moved, evicted, and moved back.
fn follows() -> Outcome {
    let gpu = Gpu::open()?;
    let (a, b) = patterns();
    let object = gpu.drm.create_flags(6 * PAGE64, EITHER)?;
    let map = object.map()?;
    let mut pattern = a;
    map.fill(pattern);
    gpu.drm.vm_bind(&object, AT)?;
    gpu.reads(AT, object.size(), pattern, AS_IS)?;
    for round in 0..3 {
        let taken = squeeze_idle(&gpu.drm)?;
        gpu.follows(&object, pattern, SYSTEM)?;
        drop(taken);
        gpu.force(&object, "vram")?;
        gpu.follows(&object, pattern, VRAM)?;
        pattern = b.derive(round);
        map.fill(pattern);
        gpu.reads(AT, object.size(), pattern, AS_IS)?;
    }
    Ok(())
}

/// A use of an object that is being moved waits until all of its bytes are copied.
fn arrives() -> Outcome {
    let gpu = Gpu::open()?;
    let (a, _) = patterns();
    let size = gpu.drm.getparam(uapi::PARAM_VRAM_SIZE)? / 2;
    let object = gpu.drm.create_flags(size, EITHER)?;
    let map = object.map()?;
    gpu.drm.vm_bind(&object, AT)?;
    for round in 0..4 {
        let pattern = a.derive(round);
        gpu.force(&object, "system")?;
        map.fill(pattern);
        gpu.force(&object, "vram")?;
        let last = gpu.drm.vm_read(AT + size - PAGE64, PAGE, 0)?;
        check_eq!(
            pattern.verify(&last, size - PAGE64),
            Ok(()),
            "the last page"
        );
        placed(&object, VRAM)?;
    }
    Ok(())
}

/// An object that is swapped out has no entries, and is swapped in when it is used.
fn swap() -> Outcome {
    let gpu = Gpu::open()?;
    let (a, _) = patterns();
    let object = gpu.drm.create_flags(4 * PAGE64, uapi::CREATE_SYSTEM)?;
    object.map()?.fill(a);
    gpu.drm.vm_bind(&object, AT)?;
    let id = object.info()?.id;
    shown(&gpu.debugfs, id, true)?;
    let swapped = misc::poll(Duration::from_secs(10), || {
        fs::read_to_string("/sys/kernel/debug/ttm/tt_shrink").ok()?;
        let buffer = gpu.debugfs.buffer(id).ok()?;
        (buffer.placement == "swappable").then_some(())
    });
    check!(swapped.is_some(), "the object was not swapped out");
    shown(&gpu.debugfs, id, false)?;
    gpu.follows(&object, a, SYSTEM)
}

/// Two clients read and bind while other clients allocate VRAM all the time.
fn storm() -> Outcome {
    let gpu = Gpu::open()?;
    let (a, _) = patterns();
    let object = gpu.drm.create_flags(6 * PAGE64, EITHER)?;
    object.map()?.fill(a);
    gpu.drm.vm_bind(&object, AT)?;
    let id = object.info()?.id;
    // At times the other clients have all of VRAM.
    let to_vram = Action::new("move to VRAM", &[libc::ENOSPC, libc::EBUSY], 12);
    let entries = Action::new("read by entries as they are", &[libc::EFAULT], 3);
    let mut storm = Storm::new(LIMIT, &[to_vram, entries])?;
    storm.meanwhile(|_, _| {
        if object.info()?.placement == VRAM {
            drop(squeeze_idle(&Drm::open()?)?);
        }
        thread::sleep(Duration::from_millis(1));
        Ok(())
    })?;
    let mut wrong = None;
    for _ in storm.rounds(12) {
        let came = misc::poll(LIMIT, || {
            let moved = gpu.debugfs.write("move", &format!("{id} vram"));
            storm.tried("move to VRAM", moved).transpose()
        });
        check!(
            came.transpose()?.is_some(),
            "the object does not get to VRAM"
        );
        gpu.reads(AT, object.size(), a, 0)?;
        // Until the object is evicted, before or after the read, the entries are valid.
        let evicted = misc::poll(LIMIT, || {
            let look = || -> Result<bool, Stop> {
                let evicted = mapping_of(&gpu.debugfs, id)?.evicted;
                let read = gpu.drm.vm_read(AT, 6 * PAGE, AS_IS);
                if let Some(bytes) = storm.tried("read by entries as they are", read)? {
                    check_eq!(a.verify(&bytes, 0), Ok(()), "bytes as they are");
                }
                Ok(evicted || object.info()?.placement == SYSTEM)
            };
            match look() {
                Ok(evicted) => evicted.then_some(()),
                Err(stop) => {
                    wrong = Some(stop);
                    Some(())
                }
            }
        });
        if let Some(stop) = wrong.take() {
            return Err(stop);
        }
        check!(evicted.is_some(), "the object stays: this is no storm");
        gpu.reads(AT, object.size(), a, 0)?;
    }
    storm.end()
}

/// The address space holds a reference to the object, and ends with the file, also while the object
/// moves.
fn close() -> Outcome {
    let gpu = Gpu::open()?;
    let (a, _) = patterns();
    let free = gpu.drm.vram_free()?;
    let other = gpu.drm.reopen()?;
    let object = other.create_flags(6 * PAGE64, EITHER)?;
    object.map()?.fill(a);
    let id = object.info()?.id;
    other.vm_bind(&object, AT)?;
    object.close()?;
    gpu.drm.await_vram_free(free - 6 * PAGE64)?;
    shown(&gpu.debugfs, id, true)?;
    let bytes = other.vm_read(AT, 6 * PAGE, AS_IS)?;
    check_eq!(a.verify(&bytes, 0), Ok(()), "bytes without a handle");
    // A move is under way when the file is closed.
    gpu.debugfs.write("move", &format!("{id} system"))?;
    gpu.debugfs.write("move", &format!("{id} vram"))?;
    drop(other);
    check_eq!(mappings(&gpu.debugfs)?, [], "mappings after the close");
    gpu.drm.await_vram_free(free)
}

/// The buffer of another device has DMA addresses, through which the CPU cannot read.
fn import() -> Outcome {
    let gpu = Gpu::open()?;
    for kind in [Kind::Heap, Kind::Udmabuf] {
        let buffer = foreign::make(kind, 4)?;
        let object = gpu.drm.import(&buffer.buffer)?;
        gpu.drm.vm_bind(&object, AT)?;
        shown(&gpu.debugfs, object.info()?.id, true)?;
        expect_errno(
            "a read by the address for a device",
            gpu.drm.vm_read(AT, 8, 0),
            libc::EOPNOTSUPP,
        )?;
        gpu.drm.vm_unbind(AT, 4 * PAGE64)?;
    }
    Ok(())
}

/// A device goes away while it has address spaces, and comes back without.
fn unbind() -> Outcome {
    let gpu = Gpu::open()?;
    let (a, _) = patterns();
    let vram = gpu.drm.create_flags(3 * PAGE64, EITHER)?;
    let local = gpu.drm.create_flags(3 * PAGE64, uapi::CREATE_SYSTEM)?;
    let heap = foreign::make(Kind::Heap, 4)?;
    let import = gpu.drm.import(&heap.buffer)?;
    vram.map()?.fill(a);
    gpu.drm.vm_bind(&vram, AT)?;
    gpu.drm.vm_bind(&local, AT + 3 * PAGE64)?;
    gpu.drm.vm_bind(&import, AT + 6 * PAGE64)?;
    let gone = Unbound::new(&gpu.device)?;
    expect_errno("VM_READ", gpu.drm.vm_read(AT, 8, 0), libc::ENODEV)?;
    expect_errno("VM_BIND", gpu.drm.vm_bind(&vram, 0), libc::ENODEV)?;
    gone.rebind()?;
    let again = Drm::open_on(&gpu.device)?;
    check_eq!(
        mappings(&DebugFs::open(&gpu.device)?)?,
        [],
        "mappings of the new device"
    );
    expect_errno("VM_READ", again.vm_read(AT, 8, 0), libc::EFAULT)?;
    drop((vram, local, import));
    works()
}

/// The arguments are not written to, so calls with arguments in read-only memory succeed.
fn read_only() -> Outcome {
    let gpu = Gpu::open()?;
    let (a, _) = patterns();
    let object = gpu.drm.create_flags(PAGE64, EITHER)?;
    object.map()?.fill(a);
    let call = |request: u64, page: Map| {
        let what = || format!("{request:#x} from memory that is read only");
        // SAFETY: the kernel does not write there.
        unsafe { ioctl_raw(gpu.drm.fd(), request, page.address().as_ptr() as u64, what) }
    };
    let bind = VmBind {
        address: AT,
        size: PAGE64,
        offset: 0,
        handle: object.handle(),
        ..Default::default()
    };
    call(uapi::VVRAM_VM_BIND, Map::read_only(bind)?)?;
    let mut bytes = vec![0u8; PAGE];
    let read = VvramVmRead {
        address: AT,
        size: PAGE64,
        data: bytes.as_mut_ptr() as u64,
        flags: 0,
        pad: 0,
    };
    call(uapi::VVRAM_VM_READ, Map::read_only(read)?)?;
    check_eq!(a.verify(&bytes, 0), Ok(()), "bytes that were read");
    Ok(())
}

/// The page tables of a file, and its mappings, are charged to the client.
fn charged() -> Outcome {
    const FILES: usize = 32;
    /// An entry for each of the pages of an address space takes 16 bytes.
    const TABLE: u64 = 256 << 10;
    let group = MemoryGroup::new("tables")?;
    let mut child = Child::spawn(|| {
        group.enter()?;
        let files = (0..FILES)
            .map(|_| Drm::open())
            .collect::<Result<Vec<_>, _>>()?;
        let objects = files
            .iter()
            .map(|drm| drm.create_flags(PAGE64, uapi::CREATE_SYSTEM))
            .collect::<Result<Vec<_>, _>>()?;
        let before = group.current()?;
        for (drm, object) in files.iter().zip(&objects) {
            drm.vm_bind(object, AT)?;
        }
        let with = group.current()?;
        let least = FILES as u64 * TABLE;
        check!(
            (before + least..before + 2 * least).contains(&with),
            "{before} bytes before {FILES} page tables, and {with} with them"
        );
        Ok(())
    })?;
    child.join("the client", LIMIT)
}

igt_main! {
    "bind", "parts of objects in both kinds of memory, by their bytes", bind;
    "bad-input", "what cannot be bound or read", bad_input;
    "read-only", "arguments that are not written to", read_only;
    "follows", "an object that moves, there and back", follows;
    "arrives", "an object whose bytes are on their way", arrives;
    "swap", "an object that is swapped out", swap;
    "storm", "entries and bytes while VRAM is taken all the time", storm;
    "charged", "the memory of page tables", charged;
    "close", "objects that only an address space keeps", close;
    "import", "buffers of other devices", import;
    "unbind", "an unbind with objects in address spaces", unbind;
}

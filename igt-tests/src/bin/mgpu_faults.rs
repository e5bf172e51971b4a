// SPDX-License-Identifier: GPL-2.0

//! Every operation of the driver of the modelled GPU, with each of its allocations and copies
//! failing in turn: a call that fails has changed and published nothing.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::thread::sleep;
use std::time::Duration;

use vvram_tests::compute::{ballast, sum, Bench, Op, Vm, VmCreate, VmDestroy};
use vvram_tests::compute::{HUGE, RESULTS};
use vvram_tests::drm::{DmaBuf, Drm, Gem, EITHER};
use vvram_tests::failure::{has_dump, no_dump, take_dump};
use vvram_tests::faults::{Code, Errors, Faults, Snapshot, Workers};
use vvram_tests::fence::{wrong, Fences, Timeline};
use vvram_tests::fixture::{patterns, peer_reads, placed};
use vvram_tests::foreign::{self, Kind};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::mgpu::{holds, Error, Mgpu, COMPUTE, DRIVER};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::rebind::Probe;
use vvram_tests::sweeps::{self, nothing, populate, zero, Once};
use vvram_tests::sweeps::{ACCESS, COPY, MOVES, NONE, PROBE, USUAL};
use vvram_tests::uapi::{VmBind, BIND_MAP, BIND_UNMAP};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, uapi};
use vvram_tests::{Outcome, Stop, SysError};

const SIZE: u64 = 16 * PAGE64;
const WORDS: u64 = SIZE / 8;
const LIMIT: Duration = Duration::from_secs(40);

fn drm() -> Result<Drm, Stop> {
    Ok(Mgpu::first()?.drm)
}

/// Checks that both devices work, and that the driver breaks no rule then. The sweeps check that it
/// has broken none before.
fn works() -> Outcome {
    for gpu in Mgpu::pair()? {
        let bench = Bench::new(&gpu)?;
        bench.results.set(0);
        bench.vm.done(&[Op::add(RESULTS, 1)])?;
        check_eq!(bench.results.read(0), 1, "the result of a job");
        drop(bench);
        gpu.clean()?;
    }
    Ok(())
}

/// Passes the failure of a check on, as the error of an operation.
fn failed(stop: &Stop) -> SysError {
    wrong(stop.text())
}

/// The memory of an object.
#[derive(Clone, Copy, Debug)]
enum Memory {
    /// Private to an address space.
    Private(u32),
    /// Of no address space in particular.
    Shared(u32),
    /// A buffer of a heap.
    Heap,
    /// An object of the other GPU.
    Peer,
}

/// A file with an address space, which has a page for results.
struct Space {
    results: Map,
    vm: u32,
    gpu: Mgpu,
}

impl Space {
    fn new() -> Result<Self, Stop> {
        let gpu = Mgpu::first()?;
        let vm = Vm::new(&gpu)?;
        let page = vm.create(PAGE64, uapi::CREATE_SYSTEM)?;
        vm.bind(&page, RESULTS)?;
        let results = page.map()?;
        results.set(0);
        page.leak();
        let vm = vm.leak();
        Ok(Self { results, vm, gpu })
    }

    fn vm(&self) -> ManuallyDrop<Vm<'_>> {
        Vm::of(&self.gpu, self.vm)
    }

    /// Makes an object with a pattern, and returns its handle.
    fn object(&self, memory: Memory, pattern: Pattern) -> Result<u32, Stop> {
        let drm = &self.gpu.drm;
        let own = |object: Gem<'_>| {
            object.map()?.fill(pattern);
            Ok(object.leak())
        };
        match memory {
            Memory::Private(flags) => own(self.vm().create(SIZE, flags)?),
            Memory::Shared(flags) => own(drm.create_flags(SIZE, flags)?),
            Memory::Heap => {
                let heap = foreign::make(Kind::Heap, SIZE as usize / PAGE)?;
                heap.buffer.map()?.fill(pattern);
                Ok(drm.import_handle(heap.buffer.fd())?)
            }
            Memory::Peer => {
                let [_, other] = Mgpu::pair()?;
                let object = other.drm.create_flags(SIZE, EITHER)?;
                object.map()?.fill(pattern);
                Ok(drm.import_handle(object.export()?.fd())?)
            }
        }
    }

    /// Makes a file with an object that is mapped at `HUGE`, and returns its handle as well.
    fn mapped(memory: Memory, pattern: Pattern) -> Result<(u32, Self), Stop> {
        let space = Self::new()?;
        let handle = space.object(memory, pattern)?;
        space.bind(handle, 0, HUGE, SIZE)?;
        space.has(HUGE, pattern, 0, WORDS)?;
        Ok((handle, space))
    }

    fn bind(&self, handle: u32, offset: u64, address: u64, size: u64) -> Result<(), SysError> {
        self.gpu.drm.gpu_bind_raw(VmBind {
            vm: self.vm,
            op: BIND_MAP,
            handle,
            address,
            offset,
            size,
            ..Default::default()
        })
    }

    fn unbind(&self, address: u64, size: u64) -> Result<(), SysError> {
        self.gpu.drm.gpu_bind_raw(VmBind {
            vm: self.vm,
            op: BIND_UNMAP,
            address,
            size,
            ..Default::default()
        })
    }

    /// Checks the sum of a part of a pattern, from the word `first` on.
    fn has(&self, address: u64, pattern: Pattern, first: u64, words: u64) -> Outcome {
        self.results.write(1, u64::MAX);
        self.vm()
            .done(&[Op::checksum(address, 8 * words, RESULTS + 8)])?;
        check_eq!(
            self.results.read(1),
            sum(pattern, first, words),
            "sum at {address:#x}"
        );
        Ok(())
    }

    /// Checks that nothing is mapped at an address.
    fn has_nothing(&self, address: u64) -> Outcome {
        let status = self.vm().run(&[Op::checksum(address, 8, RESULTS + 8)])?;
        check_eq!(status, -libc::EIO, "a read at {address:#x}");
        Ok(())
    }
}

fn open() -> Outcome {
    sweeps::open("open", drm()?.path())
}

fn create() -> Outcome {
    sweeps::create(drm)?;
    let mut faults = Faults::new()?;
    for (name, flags) in [("VRAM", uapi::CREATE_VRAM), ("either", EITHER)] {
        faults.sweep(
            &format!("GEM_CREATE, private, {name}"),
            &USUAL,
            Space::new,
            |space| {
                space.vm().create(SIZE, flags)?.leak();
                Ok(())
            },
            nothing,
        )?;
    }
    works()
}

fn ioctls() -> Outcome {
    sweeps::ioctls(drm)
}

/// Exports and imports, also those of the other GPU.
fn prime() -> Outcome {
    sweeps::prime(drm)?;
    let mut faults = Faults::new()?;
    faults.sweep(
        "PRIME_FD_TO_HANDLE, other GPU",
        &USUAL,
        || {
            let [gpu, other] = Mgpu::pair()?;
            let buffer = other.drm.create_flags(SIZE, EITHER)?.export()?;
            Ok((buffer, gpu))
        },
        |(buffer, gpu)| gpu.drm.import_handle(buffer.fd()).map(drop),
        nothing,
    )
}

/// Page faults, for which windows are made.
fn mmap() -> Outcome {
    sweeps::mmap(drm)?;
    let (x, _) = patterns();
    let zero = zero()?;
    Faults::new()?.sweep_and_check(
        "page fault, with content",
        &ACCESS,
        || {
            let gpu = Mgpu::first()?;
            let source = gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
            source.map()?.fill(x);
            let object = gpu.drm.create(SIZE)?;
            gpu.drm.copy((&source, 0), (&object, 0), SIZE)?.finish()?;
            let map = object.map()?;
            object.leak();
            drop(source);
            Ok((map, gpu))
        },
        |(map, _)| populate(&zero, map),
        nothing,
        |(map, _)| {
            for page in 0..map.pages() {
                let word = page * PAGE / 8 + 1;
                check_eq!(map.read(word), x.word(word as u64), "word {word}");
            }
            Ok(())
        },
    )
}

/// What importers of each class do, also while all of the aperture shows an object that a process
/// has touched.
fn importers() -> Outcome {
    let modes = [
        Mode::Dynamic,
        Mode::Pinned,
        Mode::Revocable,
        Mode::NoP2p,
        Mode::Static,
    ];
    let modes = if misc::soak() > 1 {
        &modes[..]
    } else {
        &modes[..2]
    };
    sweeps::importers(drm, modes)?;
    let (x, _) = patterns();
    let first = Peer::open()?;
    Faults::new()?.sweep_and_check(
        "map, with a full aperture",
        &USUAL,
        || {
            let gpu = Mgpu::first()?;
            let object = gpu.drm.create(SIZE)?;
            object.map()?.fill(x);
            let buffer = object.export()?;
            let all = gpu.drm.create(gpu.aperture()?)?;
            all.map()?.write(0, 1);
            all.leak();
            object.leak();
            let peer = first.reopen()?;
            peer.attach(&buffer, Mode::Dynamic)?;
            Ok((peer, buffer, gpu))
        },
        |(peer, ..)| peer.map(),
        nothing,
        |(peer, ..)| peer_reads(peer, x, &[3]),
    )
}

fn vm() -> Outcome {
    let mut faults = Faults::new()?;
    faults.sweep(
        "VM_CREATE",
        &USUAL,
        Mgpu::first,
        |gpu| gpu.drm.vm_create_raw(&mut VmCreate::default()),
        nothing,
    )?;
    faults.sweep(
        "VM_DESTROY",
        &COPY,
        || Ok((Space::new()?, Once::default())),
        |(space, once)| {
            let given = VmDestroy {
                vm: space.vm,
                pad: 0,
            };
            once.run(|| space.gpu.drm.vm_destroy_raw(given))
        },
        nothing,
    )
}

/// Maps and unmaps of objects in all kinds of memory. The mappings of a call that fails are as
/// before.
fn bind() -> Outcome {
    let (x, y) = patterns();
    let mut faults = Faults::new()?;
    for memory in [
        Memory::Private(EITHER),
        Memory::Private(uapi::CREATE_SYSTEM),
        Memory::Shared(EITHER),
        Memory::Heap,
        Memory::Peer,
    ] {
        faults.sweep_and_check(
            &format!("VM_BIND, {memory:?}"),
            &USUAL,
            || {
                let space = Space::new()?;
                Ok((space.object(memory, x)?, space))
            },
            |(handle, space)| {
                let result = space.bind(*handle, 0, HUGE, SIZE);
                if result.is_err() {
                    space.has_nothing(HUGE).map_err(|stop| failed(&stop))?;
                }
                result
            },
            nothing,
            |(_, space)| space.has(HUGE, x, 0, WORDS),
        )?;
    }

    // A mapping from whose middle some pages are taken.
    let mapped = || {
        let (_, space) = Space::mapped(Memory::Private(EITHER), x)?;
        Ok((space.object(Memory::Shared(EITHER), y)?, space))
    };
    let (start, words) = (4 * PAGE64, PAGE64 / 8);
    let sides = |space: &Space| {
        space.has(HUGE, x, 0, start / 8)?;
        space.has(HUGE + start + PAGE64, x, start / 8 + words, words)
    };
    let unchanged = |space: &Space, result: Result<(), SysError>| {
        if result.is_err() {
            let all = space.has(HUGE, x, 0, WORDS);
            all.map_err(|stop| failed(&stop))?;
        }
        result
    };
    faults.sweep_and_check(
        "VM_BIND over a mapping",
        &USUAL,
        mapped,
        |(new, space)| unchanged(space, space.bind(*new, 0, HUGE + start, PAGE64)),
        nothing,
        |(_, space)| {
            sides(space)?;
            space.has(HUGE + start, y, 0, words)
        },
    )?;
    faults.sweep_and_check(
        "VM_BIND, unmap",
        &USUAL,
        mapped,
        |(_, space)| unchanged(space, space.unbind(HUGE + start, PAGE64)),
        nothing,
        |(_, space)| {
            sides(space)?;
            space.has_nothing(HUGE + start)
        },
    )?;
    works()
}

/// Jobs with fences of all kinds, the first one of a file and a later one.
struct Job {
    fences: Fences,
    objects: usize,
    pattern: Pattern,
    // The file is closed last.
    space: Space,
}

impl Job {
    /// Maps an object of each memory.
    fn new(memories: &[Memory], pattern: Pattern) -> Result<Self, Stop> {
        let space = Space::new()?;
        for (index, memory) in memories.iter().enumerate() {
            let index = index as u64;
            let handle = space.object(*memory, pattern.derive(index))?;
            space.bind(handle, 0, HUGE * (1 + index), SIZE)?;
        }
        Ok(Self {
            fences: Fences::new(space.gpu.drm.fd(), false)?,
            objects: memories.len(),
            pattern,
            space,
        })
    }

    /// Queues a job that counts its runs and adds up all objects, and waits for its end. If the
    /// call fails, checks that no job was queued.
    fn run(&mut self) -> Result<(), SysError> {
        let vm = self.space.vm();
        let mut ops = vec![Op::add(RESULTS, 1)];
        for index in 0..self.objects as u64 {
            let address = HUGE * (1 + index);
            ops.push(Op::checksum(address, SIZE, RESULTS + 16 + 8 * index));
        }
        let queued = self.fences.queued();
        let result = self.fences.run(|ins, outs| vm.exec_syncs(&ops, ins, outs));
        if result.is_err() && self.fences.queued() == queued {
            // A job that is queued now comes after it, if it was queued.
            vm.done(&[Op::fill(RESULTS + 8, 8, 0)])
                .map_err(|stop| failed(&stop))?;
            self.counts(queued).map_err(|stop| failed(&stop))?;
        }
        result
    }

    fn counts(&self, want: u64) -> Outcome {
        check_eq!(self.space.results.read(0), want, "runs of the job");
        Ok(())
    }

    /// Checks what the job has computed.
    fn check(&self) -> Outcome {
        self.counts(self.fences.queued())?;
        for index in 0..self.objects {
            check_eq!(
                self.space.results.read(2 + index),
                sum(self.pattern.derive(index as u64), 0, WORDS),
                "sum of object {index}"
            );
        }
        Ok(())
    }
}

fn exec() -> Outcome {
    let (x, _) = patterns();
    let mut faults = Faults::new()?;
    let all = [
        Memory::Private(uapi::CREATE_VRAM),
        Memory::Private(uapi::CREATE_SYSTEM),
        Memory::Shared(EITHER),
        Memory::Heap,
        Memory::Peer,
    ];
    for (name, first) in [("first EXEC of a file", true), ("EXEC", false)] {
        faults.sweep_and_check(
            name,
            &USUAL,
            || {
                let job = Job::new(&all, x)?;
                if !first {
                    job.space.vm().done(&[Op::fill(RESULTS + 8, 8, 0)])?;
                }
                Ok(job)
            },
            Job::run,
            nothing,
            |job| job.check(),
        )?;
    }
    works()
}

/// Copies with fences of all kinds, of buffers of other exporters and of the other GPU.
fn copies() -> Outcome {
    sweeps::copies(drm)?;
    let (x, y) = patterns();
    Faults::new()?.sweep_and_check(
        "GEM_COPY, of the other GPU",
        &USUAL,
        || {
            let space = Space::new()?;
            let from = space.object(Memory::Peer, x)?;
            let to = space.object(Memory::Shared(uapi::CREATE_VRAM), y)?;
            let offset = space.gpu.drm.mmap_offset(to)?;
            let map = Map::new(space.gpu.drm.fd(), offset, SIZE as usize)?;
            map.read(0);
            let fences = Fences::new(space.gpu.drm.fd(), false)?;
            Ok((fences, map, [from, to], space))
        },
        |(fences, _, [src, dst], space)| {
            let argument = uapi::VvramGemCopy {
                src: *src,
                dst: *dst,
                size: SIZE,
                ..Default::default()
            };
            fences.run(|ins, outs| space.gpu.drm.copy_syncs(&argument, ins, outs))
        },
        nothing,
        |(_, map, ..)| match map.verify(x) {
            Ok(()) => Ok(()),
            Err(mismatch) => fail!("after the copy: {mismatch}"),
        },
    )?;
    works()
}

/// Another client, whose object has all of the VRAM that is left.
struct Victim {
    handle: u32,
    gpu: Mgpu,
}

impl Victim {
    fn new(pattern: Pattern) -> Result<Self, Stop> {
        let gpu = Mgpu::first()?;
        let object = gpu.drm.create_flags(SIZE, EITHER)?;
        object.map()?.fill(pattern);
        placed(&object, uapi::PLACEMENT_VRAM)?;
        let handle = object.leak();
        Ok(Self { handle, gpu })
    }

    fn holds(&self, pattern: Pattern) -> Outcome {
        let drm = &self.gpu.drm;
        let map = Map::new(drm.fd(), drm.mmap_offset(self.handle)?, SIZE as usize)?;
        match map.verify(pattern) {
            Ok(()) => Ok(()),
            Err(mismatch) => fail!("what was evicted: {mismatch}"),
        }
    }
}

/// A job, and a new object, for which objects of other clients leave VRAM.
fn evict() -> Outcome {
    let (x, y) = patterns();
    let gpu = Mgpu::first()?;
    let _ballast = ballast(&gpu, SIZE)?;
    check_eq!(gpu.drm.vram_free()?, SIZE, "VRAM that is left");
    let mut faults = Faults::new()?;
    faults.sweep_and_check(
        "EXEC with an eviction",
        &USUAL,
        || {
            let job = Job::new(&[Memory::Private(EITHER)], x)?;
            Ok((Victim::new(y)?, job))
        },
        |(_, job)| job.run(),
        nothing,
        |(victim, job)| {
            job.check()?;
            victim.holds(y)
        },
    )?;
    faults.sweep_and_check(
        "GEM_CREATE with an eviction",
        &USUAL,
        || Ok((Victim::new(y)?, vec![Mgpu::first()?, Mgpu::first()?])),
        |(_, files)| {
            files[files.len() - 1].drm.create(SIZE)?.leak();
            Ok(())
        },
        // It may have been done although the handle could not be copied: the file has the object.
        |(_, files)| {
            files.pop();
            Ok(())
        },
        |(victim, _)| victim.holds(y),
    )?;
    works()
}

/// Moves of an object that an importer has mapped, and that an address space maps.
fn moves() -> Outcome {
    let (x, _) = patterns();
    let first = Peer::open()?;
    let mut faults = Faults::new()?;
    for (place, other) in [("system", "vram"), ("vram", "system")] {
        faults.sweep_and_check(
            &format!("move to {place}"),
            &MOVES,
            || {
                let space = Space::new()?;
                let handle = space.object(Memory::Shared(EITHER), x)?;
                let id = space.gpu.drm.info(handle)?.id;
                let debugfs = space.gpu.debugfs()?;
                debugfs.force(id, other)?;
                let buffer: DmaBuf = space.gpu.drm.export(handle, libc::O_RDWR as u32)?;
                space.bind(handle, 0, HUGE, SIZE)?;
                space.has(HUGE, x, 0, WORDS)?;
                let peer = first.reopen()?;
                peer.attach_and_map(&buffer, Mode::Dynamic)?;
                debugfs.force(id, other)?;
                Ok((format!("{id} {place}"), debugfs, peer, buffer, space))
            },
            |(text, debugfs, ..)| debugfs.write("move", text),
            nothing,
            |(_, _, peer, _, space)| {
                space.has(HUGE, x, 0, WORDS)?;
                peer.map()?;
                peer_reads(peer, x, &[3])
            },
        )?;
    }
    works()
}

/// The last close of a file with an address space, objects, and jobs that wait.
fn release() -> Outcome {
    let (x, _) = patterns();
    Faults::new()?.sweep(
        "close of a file",
        &NONE,
        || {
            let timeline = Timeline::new()?;
            let fence = timeline.fence(1)?;
            let Space { results, vm, gpu } = {
                let (_, space) = Space::mapped(Memory::Private(EITHER), x)?;
                for _ in 0..2 {
                    space.vm().exec_after(&[Op::add(RESULTS, 1)], &[&fence])?;
                }
                space
            };
            let _ = vm;
            drop(results);
            Ok((Some(gpu), timeline))
        },
        |(gpu, _)| {
            *gpu = None;
            Ok(())
        },
        nothing,
    )?;
    works()
}

/// The probe of both drivers.
fn probe() -> Outcome {
    let pci = PciDevice::mgpus()
        .pop()
        .ok_or_else(|| Stop::fail("there is no modelled GPU"))?;
    // The domain of its interrupts cannot be made, or has no room.
    let allowed = Errors {
        memory: &[libc::ENOMEM, libc::EBUSY, libc::ENODEV, libc::ENOSPC],
        ..PROBE
    };
    sweeps::probe(&mut Faults::new()?, &pci, DRIVER, &allowed)?;
    works()
}

/// An unbind while an importer has a buffer mapped, and address spaces exist.
fn unbind() -> Outcome {
    let first = Peer::open()?;
    Faults::new()?.sweep(
        "unbind of mgpu",
        // The errors of the write to the file `unbind`.
        &USUAL,
        || {
            let space = Space::new()?;
            let (x, _) = patterns();
            let handle = space.object(Memory::Shared(EITHER), x)?;
            let buffer = space.gpu.drm.export(handle, libc::O_RDWR as u32)?;
            let peer = first.reopen()?;
            peer.attach_and_map(&buffer, Mode::Dynamic)?;
            let probe = Probe::new(&space.gpu.pci, DRIVER);
            Ok((space, peer, buffer, probe))
        },
        |(.., probe)| probe.unbind(),
        |(.., probe)| {
            probe.done = !probe.is_bound();
            Ok(())
        },
    )?;
    works()
}

/// A reset by the PCI core.
fn reset() -> Outcome {
    let (x, _) = patterns();
    Faults::new()?.sweep_and_check(
        "reset of the function",
        &USUAL,
        || Space::mapped(Memory::Private(EITHER), x),
        |(_, space)| space.gpu.pci.reset(),
        nothing,
        |(_, space)| space.has(HUGE, x, 0, WORDS),
    )?;
    works()
}

/// The work of workers while allocations in workers fail: they allocate nothing, so everything that
/// was queued is done.
fn workers() -> Outcome {
    let (x, y) = patterns();
    let gpu = Mgpu::first()?;
    for code in [Code::Module(DRIVER), Code::Layers] {
        let before = Snapshot::take()?;
        let workers = Workers::new(code, 1)?;
        // The injection works: an ioctl fails if this thread is included.
        let (result, own) = workers.with_me(|| Vm::new(&gpu).map(drop))?;
        expect_errno("an operation without memory", result, libc::ENOMEM)?;
        let mut job = Job::new(&[Memory::Private(EITHER), Memory::Shared(EITHER)], x)?;
        for _ in 0..3 {
            job.run()?;
            job.check()?;
        }
        let [from, to] = [x, y].map(|pattern| {
            let object = gpu.drm.create_flags(SIZE, EITHER)?;
            object.map()?.fill(pattern);
            Ok::<_, Stop>(object)
        });
        let (from, to) = (from?, to?);
        gpu.force(&from, "system")?;
        gpu.force(&to, "system")?;
        gpu.drm.copy((&from, 0), (&to, 0), SIZE)?.finish()?;
        gpu.force(&to, "vram")?;
        holds(&to, x, "what was copied and moved")?;
        drop((from, to, job));
        workers.only(own, code)?;
        drop(workers);
        before.compare(&format!("workers of {code:?}"))?;
    }
    gpu.clean()
}

/// A ring fails, and there is no memory for a dump and for an event: the other jobs are done.
fn report() -> Outcome {
    let gpu = Mgpu::first()?;
    no_dump(&gpu.pci)?;
    let bench = Bench::new(&gpu)?;
    let reports = Cell::new(0);
    let fault = || {
        // There are ten reports in five seconds at most.
        if reports.replace(reports.get() + 1) % 10 == 9 {
            sleep(Duration::from_secs(6));
        }
        gpu.inject_into(COMPUTE, Error::Fault, 0)?;
        let jobs = [
            bench.vm.exec(&[Op::add(RESULTS, 1)])?,
            bench.vm.exec(&[Op::add(RESULTS, 1)])?,
        ];
        for (job, want) in jobs.iter().zip([-libc::EIO, 1]) {
            job.finish()?;
            check_eq!(job.status()?, want, "status of a job");
        }
        Ok::<_, Stop>(())
    };
    for interval in 1..=if misc::soak() > 1 { 20 } else { 2 } {
        let workers = Workers::new(Code::Module(DRIVER), interval)?;
        let mut faults = 0;
        // A report makes one allocation at least.
        while workers.injected() == 0 && faults < interval {
            fault()?;
            faults += 1;
            // The dump is complete if none has failed.
            let over = misc::poll(LIMIT, || {
                (workers.injected() > 0 || has_dump(&gpu.pci)).then_some(())
            });
            check!(over.is_some(), "no report, and no allocation has failed");
            if workers.injected() == 0 {
                take_dump(&gpu.pci)?;
            }
        }
        let failed = workers.injected();
        println!("each of {interval}: {failed} failed, with {faults} faults of the ring");
        check!(failed > 0, "no allocation of the reports has failed");
        drop(workers);
        no_dump(&gpu.pci)?;
    }
    fault()?;
    take_dump(&gpu.pci)?;
    gpu.clean()
}

igt_main! {
    "open", "open of the render node", open;
    "create", "GEM_CREATE", create;
    "ioctls", "the ioctls that ask, and GEM_CLOSE", ioctls;
    "prime", "export and import", prime;
    "mmap", "page faults", mmap;
    "importers", "what importers of each class do", importers;
    "vm", "address spaces", vm;
    "bind", "mappings in address spaces", bind;
    "exec", "jobs of the compute engine", exec;
    "copies", "copies between objects and imports", copies;
    "evict", "a job and an object that need the VRAM of others", evict;
    "moves", "moves of an object that an importer and an address space have mapped", moves;
    "release", "the last close", release;
    "reset", "a reset by the PCI core", reset;
    "report", "the report of a failure", report;
    "unbind", "the end, with importers", unbind;
    "workers", "what is done in the background", workers;
    "probe", "the probe of both drivers", probe;
}

// SPDX-License-Identifier: GPL-2.0

//! Address spaces of the modelled GPU: their mappings, checked by its compute engine and by the
//! CPU.

use std::time::Duration;

use vvram_tests::cgroup::MemoryGroup;
use vvram_tests::compute::{
    sum, Op, Vm, VmDestroy, HUGE, JOBS_MAX, OPS_MAX, PARAM_LIMITS, VM_MAX, VM_SIZE,
};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Gem, EITHER};
use vvram_tests::fixture::{patterns, placed};
use vvram_tests::map::PAGE64;
use vvram_tests::mgpu::{take_all, Error, Impatient, Mgpu};
use vvram_tests::misc::{self, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::proc::{Child, KernelLog};
use vvram_tests::uapi::{VmBind, BIND_MAP, BIND_UNMAP};
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, igt_main, uapi, Outcome, Stop, SysError,
};

const VRAM: u32 = uapi::CREATE_VRAM;
const SYSTEM: u32 = uapi::CREATE_SYSTEM;
/// Where results are mapped.
const RESULTS: u64 = 64 << 30;

/// Makes the engine compute the sums of parts of a pattern, and compares them. A part is an
/// address, the first word of the pattern, and a number of 64-bit words.
fn sums(
    vm: &Vm<'_>,
    results: &Gem<'_>,
    pattern: Pattern,
    parts: &[(u64, u64, u64)],
    what: &str,
) -> Outcome {
    let map = results.map()?;
    map.set(u64::MAX);
    let ops: Vec<_> = (0..)
        .zip(parts)
        .map(|(index, (address, _, words))| Op::checksum(*address, 8 * words, RESULTS + 8 * index))
        .collect();
    vm.done(&ops)?;
    for (index, (address, first, words)) in parts.iter().enumerate() {
        check_eq!(
            map.read(index),
            sum(pattern, *first, *words),
            "{what}: sum of {words} words at {address:#x}"
        );
    }
    Ok(())
}

/// Checks that nothing is mapped at an address: a job that reads there fails, and the next one is
/// done.
fn hole(gpu: &Mgpu, vm: &Vm<'_>, address: u64, what: &str) -> Outcome {
    let resets = gpu.drm.counter(Counter::ComputeResets)?;
    let status = vm.run(&[Op::checksum(address, 4, RESULTS)])?;
    check_eq!(
        status,
        -libc::EIO,
        "{what}: status of a read at {address:#x}"
    );
    check_eq!(
        gpu.drm.counter(Counter::ComputeResets)?,
        resets + 1,
        "{what}: resets"
    );
    vm.done(&[Op::fill(RESULTS, 8, 1)])
}

/// Checks that all address spaces and page tables are freed.
fn nothing_left(gpu: &Mgpu, vms: u64, tables: u64) -> Outcome {
    let done = misc::poll(Duration::from_secs(10), || {
        let now = (
            gpu.drm.counter(Counter::Vms).ok()?,
            gpu.drm.counter(Counter::PageTables).ok()?,
        );
        (now == (vms, tables)).then_some(())
    });
    check!(
        done.is_some(),
        "{} address spaces and {vms} before, page tables take {} bytes and {tables} before",
        gpu.drm.counter(Counter::Vms)?,
        gpu.drm.counter(Counter::PageTables)?
    );
    Ok(())
}

/// Objects in all kinds of memory, with pages of both sizes; parts are unmapped and mapped again.
fn bind() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let (vms, tables) = (
        gpu.drm.counter(Counter::Vms)?,
        gpu.drm.counter(Counter::PageTables)?,
    );
    let vm = Vm::new(&gpu)?;
    let results = vm.create(PAGE64, SYSTEM)?;
    vm.bind(&results, RESULTS)?;
    let size = 3 * HUGE;
    let words = |bytes: u64| bytes / 8;
    for (round, (private, place)) in [
        (true, VRAM),
        (true, SYSTEM),
        (false, EITHER),
        (false, SYSTEM),
    ]
    .into_iter()
    .enumerate()
    {
        let x = x.derive(round as u64);
        let object = if private {
            vm.create(size, place)?
        } else {
            gpu.drm.create_flags(size, place)?
        };
        object.map()?.fill(x);
        placed(
            &object,
            if place == SYSTEM {
                uapi::PLACEMENT_SYSTEM
            } else {
                uapi::PLACEMENT_VRAM
            },
        )?;
        // At a multiple of huge pages, at a multiple of pages, and at the end of the address space.
        for start in [8 * HUGE, 16 * HUGE + 5 * PAGE64, VM_SIZE - size] {
            let what = format!("object {round} at {start:#x}");
            vm.bind(&object, start)?;
            sums(
                &vm,
                &results,
                x,
                &[
                    (start, 0, words(size)),
                    (start + 8, 1, 1),
                    (start + HUGE - 16, words(HUGE - 16), 4),
                    (start + size - 8, words(size) - 1, 1),
                ],
                &what,
            )?;
            // A hole of one page in the middle; the pages beside it stay mapped.
            let at = HUGE + 7 * PAGE64;
            vm.unbind(start + at, PAGE64)?;
            hole(&gpu, &vm, start + at, &what)?;
            hole(&gpu, &vm, start + at + PAGE64 - 4, &what)?;
            sums(
                &vm,
                &results,
                x,
                &[
                    (start, 0, words(at)),
                    (
                        start + at + PAGE64,
                        words(at + PAGE64),
                        words(size - at - PAGE64),
                    ),
                ],
                &what,
            )?;
            // Another part of the object is mapped into the hole, and over the pages beside it.
            vm.bind_part(&object, 2 * PAGE64, start + at - PAGE64, 3 * PAGE64)?;
            sums(
                &vm,
                &results,
                x,
                &[
                    (start, 0, words(at - PAGE64)),
                    (start + at - PAGE64, words(2 * PAGE64), words(3 * PAGE64)),
                    (
                        start + at + 2 * PAGE64,
                        words(at + 2 * PAGE64),
                        words(size - at - 2 * PAGE64),
                    ),
                ],
                &what,
            )?;
            vm.unbind(start, size)?;
            hole(&gpu, &vm, start, &what)?;
            hole(&gpu, &vm, start + size - 4, &what)?;
        }
        check_ok!(object.map()?.verify(x), "object {round}");
    }
    drop((results, vm));
    nothing_left(&gpu, vms, tables)?;
    gpu.clean()
}

/// The CPU reads the bytes that the engine writes, and no other bytes change.
fn writes() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let vm = Vm::new(&gpu)?;
    let size = 16 * PAGE64;
    for place in [VRAM, SYSTEM] {
        let object = vm.create(size, place)?;
        let map = object.map()?;
        map.fill(x);
        // The same pages are mapped at two addresses.
        vm.bind(&object, HUGE)?;
        vm.bind_part(&object, 4 * PAGE64, 3 * HUGE, 2 * PAGE64)?;
        vm.done(&[
            Op::fill(3 * HUGE + 8, 16, 0x1234_5678),
            Op::copy(HUGE, HUGE + 8 * PAGE64 + 3, 5),
            Op::add(HUGE + 15 * PAGE64, u64::MAX),
        ])?;
        let at = 4 * PAGE64 / 8;
        let want = |index: u64| match index {
            _ if index == at + 1 || index == at + 2 => 0x1234_5678_1234_5678,
            _ if index == 8 * PAGE64 / 8 => {
                let copied = x.word(0) & 0xff_ffff_ffff;
                x.word(index) & 0xff_ffff | copied << 24
            }
            _ if index == 15 * PAGE64 / 8 => x.word(index).wrapping_sub(1),
            _ => x.word(index),
        };
        for index in 0..size / 8 {
            check_eq!(
                map.read(index as usize),
                want(index),
                "word {index} in memory {place}"
            );
        }
    }
    drop(vm);
    gpu.clean()
}

/// An object that is private to an address space, and mapped by another one as well.
fn private() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let (a, b) = (Vm::new(&gpu)?, Vm::new(&gpu)?);
    let object = a.create(4 * PAGE64, EITHER)?;
    object.map()?.fill(x);
    expect_errno("export of a private object", object.export(), libc::EPERM)?;
    for (number, vm) in [&a, &b].into_iter().enumerate() {
        let results = vm.create(PAGE64, SYSTEM)?;
        vm.bind(&results, RESULTS)?;
        let start = (1 + number as u64) * HUGE;
        vm.bind(&object, start)?;
        sums(
            vm,
            &results,
            x,
            &[(start, 0, 4 * PAGE64 / 8)],
            "in both address spaces",
        )?;
        // Nothing is mapped at the address that the other address space uses.
        hole(&gpu, vm, (2 - number as u64) * HUGE, "of the other one")?;
        vm.unbind(RESULTS, PAGE64)?;
    }
    // The object is evicted from both address spaces, and moves back for a job of each of them.
    let taken = take_all(&gpu)?;
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    drop(taken);
    for (number, vm) in [&b, &a].into_iter().enumerate() {
        let results = vm.create(PAGE64, SYSTEM)?;
        vm.bind(&results, RESULTS)?;
        let start = (2 - number as u64) * HUGE;
        sums(vm, &results, x, &[(start, 0, 512)], "after an eviction")?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
    }
    // The object outlives its address space.
    a.destroy()?;
    check!(
        object.map()?.verify(x).is_ok(),
        "an object has lost its bytes with its address space"
    );
    let results = b.create(PAGE64, SYSTEM)?;
    b.bind(&results, RESULTS)?;
    sums(&b, &results, x, &[(2 * HUGE, 0, 512)], "without the first")?;
    drop(b);
    gpu.clean()
}

/// Page tables and address spaces are freed, and their number is limited.
fn limits() -> Outcome {
    let gpu = Mgpu::first()?;
    let limits = [
        uapi::SYNC_MAX as u64,
        uapi::COPIES_MAX.into(),
        VM_MAX as u64,
        VM_SIZE,
        OPS_MAX as u64,
        64 << 20,
        JOBS_MAX as u64,
        3,
    ];
    for (param, limit) in (PARAM_LIMITS..).zip(limits) {
        check_eq!(gpu.drm.getparam(param)?, limit, "parameter {param}");
    }
    // What all clients use together is in debugfs only.
    for param in PARAM_LIMITS + limits.len() as u32..64 {
        let unknown = gpu.drm.getparam(param);
        expect_errno(&format!("parameter {param}"), unknown, libc::EINVAL)?;
    }
    let (vms, tables) = (
        gpu.drm.counter(Counter::Vms)?,
        gpu.drm.counter(Counter::PageTables)?,
    );
    let spaces: Vec<_> = (0..VM_MAX)
        .map(|_| Vm::new(&gpu))
        .collect::<Result<_, _>>()?;
    check_eq!(
        gpu.drm.counter(Counter::Vms)?,
        vms + VM_MAX as u64,
        "address spaces"
    );
    expect_errno("one more", Vm::new(&gpu).map(drop), libc::ENOSPC)?;
    let object = gpu.drm.create_flags(PAGE64, SYSTEM)?;
    let before = gpu.drm.counter(Counter::PageTables)?;
    // Mappings that are far from each other, so that each needs its own table.
    for index in 0..64 {
        spaces[0].bind(&object, index * HUGE * 3)?;
    }
    check!(
        gpu.drm.counter(Counter::PageTables)? >= before + 64 * PAGE64,
        "64 mappings have no tables"
    );
    // The table of the second level is kept.
    spaces[0].unbind(0, VM_SIZE)?;
    check_eq!(
        gpu.drm.counter(Counter::PageTables)?,
        before + PAGE64,
        "page tables of nothing"
    );
    drop(spaces);
    nothing_left(&gpu, vms, tables)?;

    // Address spaces of a process that exits.
    let mut child = Child::spawn(|| {
        let other = Mgpu::first()?;
        let vm = Vm::new(&other)?;
        let object = vm.create(2 * HUGE, EITHER)?;
        vm.bind(&object, HUGE)?;
        vm.done(&[Op::fill(HUGE, 2 * HUGE, 7)])?;
        std::process::exit(0)
    })?;
    child.join("the one that leaves things", Duration::from_secs(20))?;
    nothing_left(&gpu, vms, tables)?;
    gpu.clean()
}

/// More address spaces than the device has contexts, of two clients: their jobs take turns, and each
/// works with its own page tables.
fn contexts() -> Outcome {
    const SPACES: u64 = 2 * VM_MAX as u64;
    let _few = Impatient::with(&["contexts=9"])?;
    let gpus = [Mgpu::first()?, Mgpu::first()?];
    let spaces: Vec<_> = (0..SPACES)
        .map(|index| {
            let vm = Vm::new(&gpus[index as usize % 2])?;
            let page = vm.create(PAGE64, EITHER)?;
            vm.bind(&page, HUGE)?;
            let map = page.map()?;
            map.set(0);
            Ok::<_, Stop>((vm, page, map))
        })
        .collect::<Result<_, _>>()?;
    let mut random = Lcg::new(misc::nonce());
    let mut sums = [0; SPACES as usize];
    for _ in 0..8 {
        // As many jobs as two clients may have.
        let jobs: Vec<_> = (0..64)
            .map(|_| {
                let index = random.below(SPACES) as usize;
                let value = random.below(1 << 20);
                sums[index] += value;
                spaces[index].0.exec(&[Op::add(HUGE, value)])
            })
            .collect::<Result<_, _>>()?;
        for job in jobs {
            job.finish()?;
            check_eq!(job.status()?, 1, "status of a job");
        }
        // What is unmapped is not reached by a context that is used again.
        let index = random.below(SPACES) as usize;
        let (vm, page, map) = &spaces[index];
        vm.unbind(HUGE, PAGE64)?;
        check_eq!(
            vm.run(&[Op::add(HUGE, 1)])?,
            -libc::EIO,
            "status of a job without its page"
        );
        vm.bind(page, HUGE)?;
        check_eq!(map.read(0), sums[index], "sum of space {index}");
    }
    for (index, (_, _, map)) in spaces.iter().enumerate() {
        check_eq!(map.read(0), sums[index], "sum of space {index}");
    }
    drop(spaces);
    for gpu in gpus {
        gpu.clean()?;
    }
    Ok(())
}

/// Page tables are charged to the memory cgroup of the client that needs them.
fn charged() -> Outcome {
    const TABLES: u64 = 512;
    let group = MemoryGroup::new("page-tables")?;
    let mut child = Child::spawn(|| {
        group.enter()?;
        let gpu = Mgpu::first()?;
        let vm = Vm::new(&gpu)?;
        let object = vm.create(PAGE64, SYSTEM)?;
        // Allocates what the first mapping needs besides page tables.
        vm.bind(&object, 0)?;
        let before = group.current()?;
        for index in 1..=TABLES {
            vm.bind(&object, index * HUGE)?;
        }
        let with = group.current()?;
        // Each processor charges up to 64 pages in advance.
        check!(
            with >= before + TABLES / 2 * PAGE64,
            "{before} bytes before {TABLES} page tables, and {with} with them"
        );
        vm.unbind(0, VM_SIZE)?;
        // Some tables are freed later, and other memory stays charged.
        let after = group.current()?;
        check!(
            after + TABLES / 2 * PAGE64 <= with,
            "{with} bytes with page tables, and {after} without"
        );
        gpu.clean()
    })?;
    child.join("the client", Duration::from_secs(40))
}

/// Unknown values are refused.
fn bad_input() -> Outcome {
    let gpu = Mgpu::first()?;
    let drm = &gpu.drm;
    let vm = Vm::new(&gpu)?;
    let object = drm.create(4 * PAGE64)?;
    let refused =
        |what: &str, result: Result<(), SysError>| expect_errno(what, result, libc::EINVAL);
    let number = vm.number();
    let good = VmBind {
        vm: number,
        op: BIND_MAP,
        handle: object.handle(),
        address: HUGE,
        size: PAGE64,
        ..Default::default()
    };
    let free = VmBind {
        op: BIND_UNMAP,
        handle: 0,
        ..good
    };
    for bad in [
        VmBind {
            size: 5 * PAGE64,
            ..good
        },
        VmBind {
            offset: 4 * PAGE64,
            ..good
        },
        VmBind {
            address: VM_SIZE,
            ..good
        },
        VmBind {
            handle: object.handle(),
            ..free
        },
        VmBind {
            offset: PAGE64,
            ..free
        },
        VmBind {
            size: VM_SIZE + PAGE64,
            address: 0,
            ..free
        },
    ] {
        refused(&format!("{bad:?}"), drm.gpu_bind_raw(bad))?;
    }
    // An address space of another file.
    let other = Mgpu::open(&gpu.pci)?;
    expect_errno(
        "an address space of another file",
        other.drm.gpu_bind_raw(free),
        libc::ENOENT,
    )?;
    // None of the refused calls has mapped anything.
    drm.gpu_bind_raw(good)?;
    drm.gpu_bind_raw(free)?;
    drm.gpu_bind_raw(free)?;
    vm.destroy()?;
    expect_errno(
        "one that is gone",
        drm.vm_destroy_raw(VmDestroy { vm: number, pad: 0 }),
        libc::ENOENT,
    )?;
    gpu.clean()
}

/// The numbers of invalidations have 32 bits, and begin shortly before they wrap: `FIRST` of
/// `drivers/gpu/drm/mgpu/invalidate.rs`. The engine uses no old translation before, at, and after
/// the wrap.
fn wrap() -> Outcome {
    const ROUNDS: u32 = 40;
    let _driver = Impatient::with_invalidations()?;
    let gpu = Mgpu::first()?;
    let vm = Vm::new(&gpu)?;
    let objects = [vm.create(PAGE64, VRAM)?, vm.create(PAGE64, SYSTEM)?];
    let maps = [objects[0].map()?, objects[1].map()?];
    let mut log = KernelLog::open()?;
    for round in 1..=ROUNDS {
        let here = round as usize % 2;
        maps[0].set(0);
        maps[1].set(0);
        if round == ROUNDS {
            // It is sent once more, and the log has the number of the first one.
            gpu.inject(Error::NoInvalidate, 1)?;
        }
        vm.bind(&objects[here], HUGE)?;
        vm.done(&[Op::fill(HUGE, 8, round)])?;
        let word = u64::from(round) << 32 | u64::from(round);
        check_eq!(maps[here].read(0), word, "word in round {round}");
        check_eq!(maps[1 - here].read(0), 0, "the other one in round {round}");
    }
    let found = misc::poll(Duration::from_secs(10), || {
        log.lines().iter().find_map(|line| {
            let (_, rest) = line.split_once(": invalidation ")?;
            rest.split(' ').next()?.parse::<u32>().ok()
        })
    });
    check!(
        found.is_some_and(|number| (1..1000).contains(&number)),
        "the invalidation after the wrap has the number {found:?}"
    );
    drop((objects, vm));
    gpu.clean()
}

igt_main! {
    "bind", "pages of both sizes, holes, and other objects in them", bind;
    "writes", "what the engine writes, and where", writes;
    "private", "an object of one address space in another one", private;
    "limits", "page tables are given back", limits;
    "contexts", "more address spaces than the device has contexts", contexts;
    "charged", "page tables are charged to the client", charged;
    "bad-input", "parts and address spaces that are not there", bad_input;
    "wrap", "numbers of invalidations that wrap", wrap;
}

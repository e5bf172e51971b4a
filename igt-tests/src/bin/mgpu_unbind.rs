// SPDX-License-Identifier: GPL-2.0

//! The driver of the modelled GPU is unbound while the device works.

use std::time::Duration;

use vvram_tests::compute::{Bench, Op, Vm, HUGE, RESULTS};
use vvram_tests::drm::EITHER;
use vvram_tests::fixture::{mapped_by_peer, patterns};
use vvram_tests::map::PAGE;
use vvram_tests::mgpu::{holds, replug, set_bound, Error, Impatient, Mgpu, COMPUTE};
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::proc::Child;
use vvram_tests::rebind::Unbinding;
use vvram_tests::syncfile::SyncFile;
use vvram_tests::{check, check_eq, expect_errno, igt_main, uapi, Outcome, Stop};

const PAGE64: u64 = PAGE as u64;
const SIZE: u64 = 16 * PAGE64;
const LIMIT: Duration = Duration::from_secs(30);

/// Queues copies that take some time each.
fn queue(gpu: &Mgpu, count: usize) -> Result<Vec<SyncFile>, Stop> {
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create_flags(SIZE, EITHER)?);
    // This copy is done before the next ones are slow.
    gpu.drm.copy((&from, 0), (&to, 0), SIZE)?.finish()?;
    gpu.inject(Error::Slow, 50)?;
    let copies = (0..count)
        .map(|_| gpu.drm.copy((&from, 0), (&to, 0), SIZE))
        .collect::<Result<Vec<_>, _>>()?;
    // Handles are closed while the copies are queued.
    Ok(copies)
}

/// Checks that all fences signal: those of jobs that were not done signal with an error.
fn ended(copies: &[SyncFile]) -> Outcome {
    let mut failed = 0;
    for copy in copies {
        copy.finish()?;
        match copy.status()? {
            1 => check_eq!(failed, 0, "copies that failed before one that did not"),
            status => {
                check_eq!(status, -libc::ECANCELED, "status of a copy");
                failed += 1;
            }
        }
    }
    check!(
        failed > 0,
        "all copies were done before the driver had gone"
    );
    Ok(())
}

/// Checks that the device works.
fn works() -> Outcome {
    let gpu = Mgpu::first()?;
    let (x, _) = patterns();
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    from.map()?.fill(x);
    gpu.drm.copy((&from, 0), (&to, 0), SIZE)?.finish()?;
    holds(&to, x, "after all")?;
    gpu.clean()
}

/// The PCI driver is unbound with jobs in the ring and in the queue.
fn core() -> Outcome {
    {
        let gpu = Mgpu::first()?;
        let copies = queue(&gpu, 40)?;
        let gone = Unbinding::start(&gpu.pci)?.finish(LIMIT)?;
        ended(&copies)?;
        expect_errno("an object after that", gpu.drm.create(PAGE64), libc::ENODEV)?;
        gone.rebind()?;
    }
    works()
}

/// The DRM driver is unbound from the auxiliary device, and bound again.
fn auxiliary() -> Outcome {
    {
        let gpu = Mgpu::first()?;
        let copies = queue(&gpu, 40)?;
        set_bound(gpu.device(), false)?;
        ended(&copies)?;
        expect_errno("an object after that", gpu.drm.create(PAGE64), libc::ENODEV)?;
        set_bound(gpu.device(), true)?;
        let again = Mgpu::open(&gpu.pci)?;
        again.inject(Error::Slow, 0)?;
    }
    works()
}

/// The driver is unbound while a peer has mapped a window, which is revoked.
fn exported() -> Outcome {
    {
        let gpu = Mgpu::first()?;
        let (x, _) = patterns();
        let object = gpu.drm.create_flags(SIZE, EITHER)?;
        object.map()?.fill(x);
        let buffer = object.export()?;
        let peer = mapped_by_peer(&buffer, x, &[0, 15])?;
        let copies = queue(&gpu, 40)?;
        let gone = Unbinding::start(&gpu.pci)?.finish(LIMIT)?;
        ended(&copies)?;
        check!(
            peer.status()?.invalidations > 0,
            "the peer was not notified"
        );
        expect_errno("a map after that", peer.map(), libc::ENODEV)?;
        gone.rebind()?;
    }
    works()
}

/// The importer is unbound while its engine works on the buffer of another GPU.
fn importer() -> Outcome {
    {
        let [a, b] = Mgpu::pair()?;
        let object = a.drm.create_flags(SIZE, EITHER)?;
        let import = b.drm.import(&object.export()?)?;
        let ours = b.drm.create(SIZE)?;
        b.drm.copy((&import, 0), (&ours, 0), SIZE)?.finish()?;
        b.inject(Error::Slow, 50)?;
        // Poison that is written through a window that is closed would be found, also without an
        // IOMMU.
        let copies = (0..20)
            .flat_map(|_| [(&ours, &import), (&import, &ours)])
            .map(|(from, to)| b.drm.copy((from, 0), (to, 0), SIZE))
            .collect::<Result<Vec<_>, _>>()?;
        let gone = Unbinding::start(&b.pci)?.finish(LIMIT)?;
        ended(&copies)?;
        a.await_no_window()?;
        a.clean()?;
        gone.rebind()?;
    }
    for gpu in Mgpu::pair()? {
        gpu.inject(Error::Slow, 0)?;
        gpu.clean()?;
    }
    works()
}

/// The exporter is unbound while the engine of another GPU works on its buffer.
fn exporter() -> Outcome {
    {
        let [a, b] = Mgpu::pair()?;
        let object = a.drm.create_flags(SIZE, EITHER)?;
        let import = b.drm.import(&object.export()?)?;
        let ours = b.drm.create(SIZE)?;
        b.drm.copy((&import, 0), (&ours, 0), SIZE)?.finish()?;
        b.inject(Error::Slow, 20)?;
        let copies = (0..20)
            .map(|_| b.drm.copy((&import, 0), (&ours, 0), SIZE))
            .collect::<Result<Vec<_>, _>>()?;
        let gone = Unbinding::start(&a.pci)?.finish(LIMIT)?;
        // The unbind has waited for the copies.
        for copy in &copies {
            check_eq!(
                copy.status()?,
                1,
                "status of a copy from the device that has gone"
            );
        }
        b.inject(Error::Slow, 0)?;
        expect_errno(
            "a copy after that",
            b.drm.copy((&import, 0), (&ours, 0), SIZE),
            libc::ENODEV,
        )?;
        b.clean()?;
        gone.rebind()?;
    }
    misc::poll(LIMIT, || Mgpu::pair().ok());
    works()
}

/// Queues jobs in both rings, which take some time each. Returns those of the copy engine, and
/// those of the compute engine.
fn both(gpu: &Mgpu, count: usize) -> Result<[Vec<SyncFile>; 2], Stop> {
    let vm = Vm::new(gpu)?;
    // Objects that are private to the address space, and others, in all kinds of memory.
    let objects = [
        vm.create(SIZE, EITHER)?,
        gpu.drm.create(SIZE)?,
        gpu.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?,
    ];
    for (index, object) in (0..).zip(&objects) {
        vm.bind(object, index * HUGE)?;
    }
    vm.done(&[Op::fill(0, SIZE, 1)])?;
    gpu.inject_into(COMPUTE, Error::Slow, 50)?;
    let copies = queue(gpu, count)?;
    let jobs = (0..count)
        .map(|_| vm.exec(&[Op::copy(0, HUGE, SIZE), Op::copy(HUGE, 2 * HUGE, SIZE)]))
        .collect::<Result<Vec<_>, _>>()?;
    // The address space is destroyed, and the handles of its objects are closed, while jobs are
    // queued.
    Ok([copies, jobs])
}

/// The PCI driver is unbound with jobs in both rings, and address spaces of files that stay open.
fn compute() -> Outcome {
    {
        let gpu = Mgpu::first()?;
        let vm = Vm::new(&gpu)?;
        let object = vm.create(SIZE, EITHER)?;
        vm.bind(&object, HUGE)?;
        vm.done(&[Op::fill(HUGE, SIZE, 1)])?;
        let [copies, jobs] = both(&gpu, 40)?;
        let gone = Unbinding::start(&gpu.pci)?.finish(LIMIT)?;
        ended(&copies)?;
        ended(&jobs)?;
        expect_errno(
            "a job after that",
            vm.exec(&[Op::fill(HUGE, 8, 1)]),
            libc::ENODEV,
        )?;
        expect_errno("an unmap after that", vm.unbind(HUGE, SIZE), libc::ENODEV)?;
        gone.rebind()?;
        // The address spaces of the old file do not affect a new one.
        let again = Mgpu::first()?;
        let other = Vm::new(&again)?;
        let object = other.create(SIZE, EITHER)?;
        other.bind(&object, HUGE)?;
        other.done(&[Op::fill(HUGE, SIZE, 3)])?;
        check!(
            object.map()?.verify_value(3 << 32 | 3).is_ok(),
            "bytes of a new address space"
        );
        again.clean()?;
    }
    works()
}

/// Both rings hang: the unbind of either driver does not wait for the timeout, which is long.
fn hung() -> Outcome {
    // The timeout is 1000 seconds.
    let _patient = Impatient::never()?;
    for core in [false, true] {
        let gpu = Mgpu::first()?;
        let object = gpu.drm.create_flags(SIZE, EITHER)?;
        object.map()?.set(1);
        let bench = Bench::new(&gpu)?;
        let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
        gpu.drm.copy((&from, 0), (&to, 0), SIZE)?.finish()?;
        gpu.inject(Error::Hang, 0)?;
        gpu.inject_into(COMPUTE, Error::Hang, 0)?;
        let jobs = [
            gpu.drm.copy((&from, 0), (&to, 0), SIZE)?,
            gpu.drm.copy((&from, 0), (&to, 0), SIZE)?,
            bench.vm.exec(&[Op::add(RESULTS, 1)])?,
            bench.vm.exec(&[Op::add(RESULTS, 1)])?,
        ];
        let gone = if core {
            Some(Unbinding::start(&gpu.pci)?.finish(LIMIT)?)
        } else {
            let device = gpu.device().to_owned();
            Child::spawn(|| Ok(set_bound(&device, false)?))?.join("the unbind", LIMIT)?;
            None
        };
        let ends = jobs
            .iter()
            .map(SyncFile::status)
            .collect::<Result<Vec<_>, _>>()?;
        for pair in ends.chunks(2) {
            check_eq!(pair[0], -libc::ETIMEDOUT, "the job that hangs of {pair:?}");
            check!(
                [1, -libc::ECANCELED].contains(&pair[1]),
                "the job behind it: {pair:?}"
            );
        }
        match gone {
            Some(gone) => gone.rebind()?,
            None => set_bound(gpu.device(), true)?,
        }
    }
    works()
}

/// A device is removed by surprise with jobs in both rings.
fn removed() -> Outcome {
    let _impatient = Impatient::new()?;
    let Some(pci) = PciDevice::mgpus().pop() else {
        return Err(Stop::fail("there is no modelled GPU"));
    };
    let driver = pci.driver();
    {
        let gpu = Mgpu::open(&pci)?;
        let [copies, jobs] = both(&gpu, 20)?;
        gpu.inject(Error::Removed, 0)?;
        for fences in [&copies, &jobs] {
            let mut failed = 0;
            for fence in fences {
                fence.finish()?;
                failed += u32::from(fence.status()? < 0);
            }
            check!(failed > 0, "all jobs were done by a device that is gone");
        }
    }
    replug(&pci, driver.as_deref(), LIMIT)?;
    let gpu = Mgpu::open(&pci)?;
    let vm = Vm::new(&gpu)?;
    let object = vm.create(SIZE, EITHER)?;
    vm.bind(&object, HUGE)?;
    vm.done(&[Op::fill(HUGE, SIZE, 3)])?;
    check!(
        object.map()?.verify_value(3 << 32 | 3).is_ok(),
        "bytes after it was plugged in again"
    );
    drop((object, vm));
    gpu.clean()
}

igt_main! {
    "core", "of the PCI driver, with jobs", core;
    "auxiliary", "of the DRM driver, with jobs", auxiliary;
    "exported", "with a peer", exported;
    "importer", "of the GPU that copies from another one", importer;
    "exporter", "of the GPU that another one copies from", exporter;
    "compute", "of the PCI driver, with jobs of both engines", compute;
    "hung", "of both drivers, with a timeout that is long, and jobs that hang", hung;
    "removed", "of a device that is removed by surprise, with jobs of both engines", removed;
}

// SPDX-License-Identifier: GPL-2.0

//! Memory of this process in VRAM while the device is suspended, is reset, or goes away.

use std::time::Duration;

use vvram_tests::drm::Drm;
use vvram_tests::fixture::{patterns, works};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::power::{self, lossy, Auto};
use vvram_tests::proc::{Child, Steps};
use vvram_tests::rebind::{with_parameters, Unbinding, Unbound};
use vvram_tests::storm::{Action, Storm};
use vvram_tests::svm::{check_places, filled, holds, HUGE};
use vvram_tests::{check_eq, expect_errno, igt_main, Outcome, Stop};

const PAGES: usize = HUGE + 40;
const LIMIT: Duration = Duration::from_secs(20);

/// Makes a mapping with a pattern, all of which is in VRAM.
fn in_vram(drm: &Drm, pattern: Pattern) -> Result<Map, Stop> {
    let map = filled(PAGES, pattern)?;
    drm.svm_migrate(&map, 0..PAGES)?;
    check_places(&map, |_| true)?;
    Ok(map)
}

/// Checks that all of the memory is in system memory, and can migrate to VRAM again.
fn is_back(map: &Map, pattern: Pattern) -> Outcome {
    check_places(map, |_| false)?;
    holds("the CPU", map, pattern, 0..PAGES)?;
    let drm = Drm::open()?;
    drm.svm_migrate(map, 0..PAGES)?;
    check_places(map, |_| true)?;
    holds("the CPU", map, pattern, 0..PAGES)
}

/// An unbind moves back all memory of processes, also for a child that shares pages with another
/// process.
fn unbind() -> Outcome {
    let (a, _) = patterns();
    let drm = Drm::open()?;
    let map = in_vram(&drm, a)?;
    let (there, go) = (Steps::new()?, Steps::new()?);
    let mut child = Child::spawn(|| {
        there.done()?;
        go.wait("the unbind", LIMIT)?;
        check_places(&map, |_| false)?;
        holds("the child", &map, a, 0..PAGES)
    })?;
    there.wait("the child", LIMIT)?;
    let unbound = Unbinding::start(&PciDevice::vvram()?)?.finish(LIMIT)?;
    expect_errno("SVM_MIGRATE", drm.svm_migrate(&map, 0..PAGES), libc::ENODEV)?;
    expect_errno("SVM_EVICT", drm.svm_evict(&map, 0..PAGES), libc::ENODEV)?;
    check_places(&map, |_| false)?;
    go.done()?;
    child.join("the child", LIMIT)?;
    unbound.rebind()?;
    drop(drm);
    is_back(&map, a)?;
    works()
}

/// Processes that migrate memory while the driver is unbound get an error, and keep their bytes.
fn unbind_while_moving() -> Outcome {
    let (a, _) = patterns();
    let mut storm = Storm::new(LIMIT, &[Action::new("SVM_MIGRATE", &[libc::EBUSY], 30)])?;
    for index in 0..3 {
        let pattern = a.derive(index);
        storm.client(|storm, _| {
            let drm = Drm::open()?;
            let map = filled(64, pattern)?;
            loop {
                let result = drm.svm_migrate(&map, 0..64);
                if matches!(&result, Err(error) if error.errno == libc::ENODEV) {
                    break;
                }
                storm.tried("SVM_MIGRATE", result)?;
                map.write(0, pattern.word(0));
            }
            check_places(&map, |_| false)?;
            holds("a client", &map, pattern, 0..64)
        })?;
    }
    storm.go_on(30)?;
    let unbound = Unbound::new(&PciDevice::vvram()?)?;
    storm.end()?;
    unbound.rebind()?;
    works()
}

/// A reset keeps the memory of processes.
fn reset() -> Outcome {
    let (a, _) = patterns();
    let gpu = PciDevice::vvram()?;
    let map = in_vram(&Drm::open()?, a)?;
    gpu.need_reset()?;
    is_back(&map, a)?;
    works()
}

/// The device is not suspended at runtime while memory of processes is in VRAM, and is when all of
/// it has moved back.
fn runtime() -> Outcome {
    let (a, b) = patterns();
    let gpu = PciDevice::vvram()?;
    let drm = Drm::open()?;
    let map = in_vram(&drm, a)?;
    let auto = Auto::new(&gpu)?;
    auto.stays_awake("while a process has memory in VRAM")?;
    check_places(&map, |_| true)?;
    holds("the CPU", &map, a, 0..PAGES)?;
    auto.sleeps("when all of it is back")?;
    auto.woken_by("SVM_MIGRATE", || {
        drm.svm_migrate(&map, 0..PAGES)?;
        map.fill(b);
        Ok(())
    })?;
    auto.sleeps_through("accesses to memory that is back, and SVM_EVICT", || {
        drm.svm_evict(&map, 0..PAGES)?;
        holds("the CPU", &map, b, 0..PAGES)
    })?;
    drm.svm_migrate(&map, 0..PAGES)?;
    auto.stays_awake("while a process has memory in VRAM")?;
    drop(map);
    auto.sleeps("when it was unmapped")
}

fn runtime_kept() -> Outcome {
    runtime()?;
    works()
}

fn runtime_lost() -> Outcome {
    lossy(runtime)
}

/// All memory of processes moves back before the system is suspended.
fn system() -> Outcome {
    let (a, _) = patterns();
    let drm = Drm::open()?;
    let map = in_vram(&drm, a)?;
    power::system_sleep()?;
    check_eq!(drm.svm_vram()?, 0, "VRAM of processes");
    is_back(&map, a)
}

fn system_kept() -> Outcome {
    system()?;
    works()
}

fn system_lost() -> Outcome {
    lossy(system)
}

/// A driver without struct pages of the BAR, or with a BAR that shows a part of VRAM, migrates
/// memory, too.
fn parameters() -> Outcome {
    let (a, _) = patterns();
    for parameter in ["struct_pages=0", "visible_kib=1024", "scramble=1"] {
        with_parameters(&[parameter], || {
            let drm = Drm::open()?;
            let map = in_vram(&drm, a)?;
            holds(parameter, &map, a, 0..PAGES)?;
            let free = drm.vram_free()?;
            let pages = free as usize / PAGE;
            let all = filled(pages, a)?;
            drm.svm_migrate(&all, 0..pages)?;
            check_places(&all, |_| true)?;
            holds(parameter, &all, a, 0..pages)
        })?;
    }
    Ok(())
}

/// With the parameter svm=0 the driver refuses to migrate memory, and works otherwise.
fn without() -> Outcome {
    let (a, _) = patterns();
    with_parameters(&["svm=0"], || {
        let drm = Drm::open()?;
        let map = filled(PAGES, a)?;
        expect_errno(
            "SVM_MIGRATE",
            drm.svm_migrate(&map, 0..PAGES),
            libc::EOPNOTSUPP,
        )?;
        check_places(&map, |_| false)?;
        check_eq!(drm.svm_vram()?, 0, "VRAM of processes");
        check_eq!(drm.svm_moved_back()?, 0, "pages that came back");
        works()
    })
}

igt_main! {
    "unbind", "an unbind moves back what processes have", unbind;
    "unbind-while-moving", "an unbind while processes move memory", unbind_while_moving;
    "reset", "a reset keeps what belongs to processes", reset;
    "runtime-kept", "memory of a process keeps the device active", runtime_kept;
    "runtime-lost", "the same with VRAM that loses its content", runtime_lost;
    "system-kept", "everything is back before the system sleeps", system_kept;
    "system-lost", "the same with VRAM that loses its content", system_lost;
    "parameters", "without pages of the BAR, with a small BAR, and in another order", parameters;
    "without", "EOPNOTSUPP from a driver that is to do without", without;
}

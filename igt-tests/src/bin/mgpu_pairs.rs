// SPDX-License-Identifier: GPL-2.0

//! Pairs of calls on one handle or VM of a modelled GPU at the same time.

use vvram_tests::compute::{Op, Vm, VmDestroy, HUGE, RESULTS};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::fence::SyncObj;
use vvram_tests::map::{Map, PAGE64};
use vvram_tests::mgpu::Mgpu;
use vvram_tests::misc;
use vvram_tests::pairs::{self, balanced, race, Errors, CALLERS};
use vvram_tests::signals::open_files;
use vvram_tests::syncfile::SyncFile;
use vvram_tests::uapi::{self, VmBind, BIND_MAP, BIND_UNMAP, CREATE_SYSTEM, CREATE_VRAM};
use vvram_tests::{check_eq, igt_main, Outcome, Stop, SysError};

/// An unknown VM.
const UNKNOWN: Errors = Errors {
    call: libc::ENOENT,
    racing: &[],
    end: libc::ENOENT,
    again: false,
};

/// What has to be the same at the end: free and pinned VRAM, system memory that the engines reach,
/// free VMs, page tables, and open files.
fn account(drm: &Drm) -> Result<([u64; 5], usize), Stop> {
    let mut numbers = [0; 5];
    for (number, counter) in numbers.iter_mut().zip([
        Counter::VramFree,
        Counter::VramPinned,
        Counter::DmaMapped,
        Counter::Vms,
        Counter::PageTables,
    ]) {
        *number = drm.counter(counter)?;
    }
    Ok((numbers, open_files().len()))
}

fn objects() -> Outcome {
    let gpu = Mgpu::first()?;
    balanced(|| account(&gpu.drm), || pairs::of_objects(&gpu.drm))?;
    gpu.clean()
}

/// A VM that can be destroyed several times, with a page that each caller has a word of.
struct Space<'a> {
    gpu: &'a Mgpu,
    number: u32,
    page: Gem<'a>,
    words: Map,
    value: u32,
}

impl<'a> Space<'a> {
    fn new(gpu: &'a Mgpu) -> Result<Self, Stop> {
        let page = gpu.drm.create_flags(PAGE64, CREATE_SYSTEM)?;
        let vm = Vm::new(gpu)?;
        vm.bind(&page, RESULTS)?;
        let words = page.map()?;
        words.set(0);
        Ok(Self {
            gpu,
            number: vm.leak(),
            page,
            words,
            value: misc::nonce() as u32 | 1,
        })
    }

    /// The operation of a caller: it fills its word.
    fn op(&self, index: usize) -> Op {
        Op::fill(RESULTS + 8 * index as u64, 8, self.value)
    }

    fn exec(&self, index: usize) -> Result<SyncFile, SysError> {
        Vm::of(self.gpu, self.number).exec(&[self.op(index)])
    }

    fn destroy(&self) -> Result<(), SysError> {
        self.gpu.drm.vm_destroy_raw(VmDestroy {
            vm: self.number,
            pad: 0,
        })
    }

    /// Checks that the jobs of the callers were done, and no others.
    #[track_caller]
    fn did(&self, jobs: &[bool]) -> Outcome {
        let word = u64::from(self.value);
        for (index, done) in jobs.iter().enumerate() {
            let want = if *done { word << 32 | word } else { 0 };
            check_eq!(self.words.read(index), want, "word of caller {index}");
        }
        Ok(())
    }
}

/// VM_DESTROY against EXEC: a job that was queued is done before.
fn destroy_and_exec() -> Outcome {
    let gpu = Mgpu::first()?;
    balanced(
        || account(&gpu.drm),
        || {
            race(
                "VM_DESTROY and EXEC",
                UNKNOWN,
                |_| Space::new(&gpu),
                Space::exec,
                Space::destroy,
                |it, fences| {
                    for fence in fences.iter().flatten() {
                        fence.finish()?;
                        check_eq!(fence.status()?, 1, "status of a job");
                    }
                    it.did(&fences.iter().map(Option::is_some).collect::<Vec<_>>())
                },
            )
        },
    )?;
    gpu.clean()
}

/// VM_DESTROY against VM_BIND of mappings and of nothing, and against a new private object.
fn destroy_and_bind() -> Outcome {
    let gpu = Mgpu::first()?;
    balanced(
        || account(&gpu.drm),
        || {
            for op in [BIND_MAP, BIND_UNMAP] {
                race(
                    &format!("VM_DESTROY and VM_BIND, operation {op}"),
                    UNKNOWN,
                    |_| Space::new(&gpu),
                    |it, index| {
                        // The second caller needs more page tables.
                        let address = [RESULTS, HUGE][index % 2];
                        gpu.drm.gpu_bind_raw(VmBind {
                            vm: it.number,
                            op,
                            handle: if op == BIND_MAP { it.page.handle() } else { 0 },
                            address,
                            size: PAGE64,
                            ..Default::default()
                        })
                    },
                    Space::destroy,
                    |it, _| it.did(&[false; CALLERS]),
                )?;
            }
            race(
                "VM_DESTROY and GEM_CREATE",
                UNKNOWN,
                |_| Space::new(&gpu),
                |it, _| {
                    let object = Vm::of(&gpu, it.number).create(PAGE64, CREATE_VRAM)?;
                    Ok((object.map()?, object))
                },
                Space::destroy,
                |_, objects| {
                    for (map, object) in objects.iter().flatten() {
                        check_eq!(map.read(0), 0, "the first word of a new object");
                        let place = object.info()?.placement;
                        check_eq!(place, uapi::PLACEMENT_VRAM, "its place");
                    }
                    Ok(())
                },
            )
        },
    )?;
    gpu.clean()
}

/// GEM_CLOSE against VM_BIND, whose mapping keeps the object, and a job that uses it.
fn close_and_bind() -> Outcome {
    let gpu = Mgpu::first()?;
    balanced(
        || account(&gpu.drm),
        || {
            race(
                "GEM_CLOSE and VM_BIND",
                Errors {
                    end: libc::EINVAL,
                    ..UNKNOWN
                },
                |_| {
                    let it = Space::new(&gpu)?;
                    let object = gpu.drm.create_flags(PAGE64, EITHER)?;
                    let map = object.map()?;
                    Ok((it, object, map))
                },
                |(it, object, _), index| {
                    Vm::of(&gpu, it.number).bind(object, HUGE * (1 + index as u64))
                },
                |(_, object, _)| gpu.drm.close(object.handle()),
                |(it, _, map), bound| {
                    let vm = Vm::of(&gpu, it.number);
                    for (index, _) in bound.iter().enumerate().filter(|(_, b)| b.is_some()) {
                        let address = HUGE * (1 + index as u64);
                        vm.done(&[Op::fill(address + 8 * index as u64, 8, it.value)])?;
                        let word = u64::from(it.value);
                        check_eq!(map.read(index), word << 32 | word, "a word by the engine");
                    }
                    it.destroy()?;
                    it.did(&[false; CALLERS])
                },
            )
        },
    )?;
    gpu.clean()
}

/// SYNCOBJ_DESTROY against a job that signals the object, and one that waits for it.
fn destroy_and_sync() -> Outcome {
    let gpu = Mgpu::first()?;
    balanced(
        || account(&gpu.drm),
        || {
            for out in [true, false] {
                race(
                    &format!(
                        "SYNCOBJ_DESTROY and EXEC, {}",
                        if out { "out" } else { "in" }
                    ),
                    Errors {
                        end: libc::EINVAL,
                        ..UNKNOWN
                    },
                    |_| {
                        let it = Space::new(&gpu)?;
                        let syncobj = SyncObj::new(gpu.drm.fd())?;
                        let before =
                            Vm::of(&gpu, it.number).exec(&[Op::fill(RESULTS + 64, 8, 1)])?;
                        syncobj.add_point(1, &before)?;
                        Ok((it, syncobj))
                    },
                    |(it, syncobj), index| {
                        let vm = Vm::of(&gpu, it.number);
                        let op = [it.op(index)];
                        if !out {
                            return vm.exec_syncs(&op, &[syncobj.sync(1)], &[]);
                        }
                        vm.exec_syncs(&op, &[], &[syncobj.sync(2 + index as u64)])
                    },
                    |(_, syncobj)| syncobj.destroy(),
                    |(it, _), results| {
                        // This job is done after those that were queued before.
                        Vm::of(&gpu, it.number).done(&[Op::fill(RESULTS + 64, 8, 2)])?;
                        it.destroy()?;
                        it.did(&results.iter().map(Option::is_some).collect::<Vec<_>>())
                    },
                )?;
            }
            Ok(())
        },
    )?;
    gpu.clean()
}

igt_main! {
    "objects", "GEM_CLOSE and SYNCOBJ_DESTROY against what uses the handle", objects;
    "destroy-exec", "VM_DESTROY against EXEC", destroy_and_exec;
    "destroy-bind", "VM_DESTROY against VM_BIND and GEM_CREATE", destroy_and_bind;
    "close-bind", "GEM_CLOSE against VM_BIND", close_and_bind;
    "syncobj-exec", "SYNCOBJ_DESTROY against EXEC", destroy_and_sync;
}

// SPDX-License-Identifier: GPL-2.0

//! The compute engine of the modelled GPU: its address spaces, and jobs on their addresses.
//!
//! The structures are mirrored from `include/uapi/drm/mgpu_drm.h`.

use std::mem::{size_of, ManuallyDrop};

use crate::drm::{again, call, ioctl, Drm, Gem};
use crate::fence::queue_after;
use crate::map::{Map, PAGE};
use crate::mgpu::Mgpu;
use crate::pattern::Pattern;
use crate::syncfile::SyncFile;
use crate::uapi::{
    ioc, SyncEntry, VmBind, VvramGemCreate, BIND_MAP, BIND_UNMAP, CREATE_SYSTEM, DRM_COMMAND_BASE,
};
use crate::{Stop, SysError};

/// Jobs of the file that have hung.
pub const PARAM_JOB_HANGS: u32 = 4;
/// Copies of the file that have hung.
pub const PARAM_COPY_HANGS: u32 = 5;
/// The first limit: fences of a call, copies of a file, address spaces of a file, bytes of an
/// address space, operations of a job, bytes of an operation, jobs of a file, jobs that hang.
pub const PARAM_LIMITS: u32 = 6;

/// How many address spaces a file may have.
pub const VM_MAX: usize = 16;
/// Bytes of an address space.
pub const VM_SIZE: u64 = 1 << 39;
/// Bytes of the largest pages.
pub const HUGE: u64 = 2 << 20;
/// Where the results of a [`Bench`] are.
pub const RESULTS: u64 = 64 << 30;
/// Jobs of a file at most.
pub const JOBS_MAX: usize = 64;
/// Operations of a job at most.
pub const OPS_MAX: usize = 32;

const FILL: u32 = 0;
const COPY: u32 = 1;
const CHECKSUM: u32 = 2;
const ATOMIC_ADD: u32 = 3;

/// `struct drm_mgpu_vm_create`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VmCreate {
    /// Zero.
    pub flags: u32,
    /// Out, the number.
    pub vm: u32,
}

/// `struct drm_mgpu_vm_destroy`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VmDestroy {
    /// The number.
    pub vm: u32,
    /// Zero.
    pub pad: u32,
}

/// `struct drm_mgpu_exec_op`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Op {
    /// The operation.
    pub code: u32,
    /// Zero.
    pub pad: u32,
    /// Address of the bytes that are read.
    pub src: u64,
    /// Address of the bytes that are written.
    pub dst: u64,
    /// Bytes.
    pub size: u64,
    /// A pattern, or the number that is added.
    pub value: u64,
}

/// `struct drm_mgpu_exec`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Exec {
    /// The address space.
    pub vm: u32,
    /// Zero.
    pub flags: u32,
    /// Operations.
    pub ops: u64,
    /// Fences to wait for.
    pub in_syncs: u64,
    /// Entries for the fence of the job.
    pub out_syncs: u64,
    /// How many operations.
    pub op_count: u32,
    /// Bytes of an entry of the operations.
    pub op_size: u32,
    /// How many fences.
    pub in_count: u32,
    /// How many entries for the fence.
    pub out_count: u32,
    /// Bytes of an entry of both arrays of fences.
    pub sync_size: u32,
    /// Zero.
    pub pad: u32,
}

/// `struct drm_mgpu_vm_failures`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmFailures {
    /// The address space.
    pub vm: u32,
    /// Out, of the last fault: 0 for a read, 1 for a write.
    pub access: u32,
    /// Out, its address.
    pub address: u64,
    /// Out, how many jobs have faulted.
    pub faults: u64,
    /// Out, how many jobs have hung.
    pub hangs: u64,
}

const READ_WRITE: u64 = 3;
const WRITE: u64 = 1;
const DRM: u64 = b'd' as u64;

const fn number(direction: u64, command: u64, size: usize) -> u64 {
    ioc(direction, DRM, DRM_COMMAND_BASE + command, size)
}

/// VM_CREATE.
pub const VM_CREATE: u64 = number(READ_WRITE, 8, size_of::<VmCreate>());
/// VM_DESTROY.
pub const VM_DESTROY: u64 = number(WRITE, 9, size_of::<VmDestroy>());
/// VM_BIND.
pub const VM_BIND: u64 = number(WRITE, 10, size_of::<VmBind>());
/// EXEC.
pub const EXEC: u64 = number(WRITE, 11, size_of::<Exec>());
/// VM_FAILURES.
pub const VM_FAILURES: u64 = number(READ_WRITE, 12, size_of::<VmFailures>());

const _: () = {
    // Numbers as the C header computes them.
    assert!(VM_CREATE == 0xc008_6448);
    assert!(VM_DESTROY == 0x4008_6449);
    assert!(VM_BIND == 0x4028_644a);
    assert!(EXEC == 0x4038_644b);
    assert!(VM_FAILURES == 0xc020_644c);
    assert!(size_of::<Op>() == 40);
};

impl Op {
    /// Fills bytes with a word.
    pub fn fill(dst: u64, size: u64, pattern: u32) -> Self {
        Self {
            code: FILL,
            dst,
            size,
            value: pattern.into(),
            ..Self::default()
        }
    }

    /// Copies bytes.
    pub fn copy(src: u64, dst: u64, size: u64) -> Self {
        Self {
            code: COPY,
            src,
            dst,
            size,
            ..Self::default()
        }
    }

    /// Adds up words.
    pub fn checksum(src: u64, size: u64, dst: u64) -> Self {
        Self {
            code: CHECKSUM,
            src,
            dst,
            size,
            ..Self::default()
        }
    }

    /// Adds to a word of 64 bits.
    pub fn add(dst: u64, value: u64) -> Self {
        Self {
            code: ATOMIC_ADD,
            dst,
            value,
            ..Self::default()
        }
    }
}

/// The sum that the engine computes for 64-bit words of a pattern, from the word `first` on.
pub fn sum(pattern: Pattern, first: u64, words: u64) -> u64 {
    (first..first + words)
        .map(|index| pattern.word(index))
        .map(|word| (word & 0xffff_ffff) + (word >> 32))
        .fold(0, u64::wrapping_add)
}

impl Drm {
    /// VM_CREATE with a given argument.
    pub fn vm_create_raw(&self, argument: &mut VmCreate) -> Result<(), SysError> {
        call(self.fd(), VM_CREATE, argument, "VM_CREATE")
    }

    /// VM_DESTROY with a given argument.
    pub fn vm_destroy_raw(&self, given: VmDestroy) -> Result<(), SysError> {
        let mut argument = given;
        ioctl(self.fd(), VM_DESTROY, &mut argument, || {
            format!("VM_DESTROY({given:?})")
        })?;
        Ok(())
    }

    /// VM_BIND with a given argument.
    pub fn gpu_bind_raw(&self, given: VmBind) -> Result<(), SysError> {
        let mut argument = given;
        ioctl(self.fd(), VM_BIND, &mut argument, || {
            format!("VM_BIND({given:?})")
        })?;
        Ok(())
    }

    /// EXEC with a given argument, repeated as drmIoctl() does.
    pub fn exec_raw(&self, given: Exec) -> Result<(), SysError> {
        again(|| {
            let mut argument = given;
            ioctl(self.fd(), EXEC, &mut argument, || {
                format!("EXEC({given:?})")
            })?;
            Ok(())
        })
    }
}

/// An address space, which is destroyed when this is dropped.
#[derive(Debug)]
pub struct Vm<'a> {
    drm: &'a Drm,
    number: u32,
}

impl<'a> Vm<'a> {
    /// Makes an address space.
    pub fn new(gpu: &'a Mgpu) -> Result<Self, SysError> {
        let drm = &gpu.drm;
        let mut argument = VmCreate::default();
        drm.vm_create_raw(&mut argument)?;
        Ok(Self {
            drm,
            number: argument.vm,
        })
    }

    /// An address space by its number. It is not destroyed when this is dropped.
    pub fn of(gpu: &'a Mgpu, number: u32) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Self {
            drm: &gpu.drm,
            number,
        })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The jobs that have failed by themselves.
    pub fn failures(&self) -> Result<VmFailures, SysError> {
        let mut argument = VmFailures {
            vm: self.number,
            ..Default::default()
        };
        call(self.drm.fd(), VM_FAILURES, &mut argument, "VM_FAILURES")?;
        Ok(argument)
    }

    /// The number of the address space, which is not destroyed before its file is closed.
    pub fn leak(self) -> u32 {
        ManuallyDrop::new(self).number
    }

    /// Makes an object that is private to it.
    pub fn create(&self, size: u64, places: u32) -> Result<Gem<'a>, SysError> {
        self.drm.create_from(VvramGemCreate {
            pad: self.number,
            ..VvramGemCreate::new(size, places)
        })
    }

    /// Maps all of an object.
    pub fn bind(&self, object: &Gem<'_>, address: u64) -> Result<(), SysError> {
        self.bind_part(object, 0, address, object.size())
    }

    /// Maps a part of an object.
    pub fn bind_part(
        &self,
        object: &Gem<'_>,
        offset: u64,
        address: u64,
        size: u64,
    ) -> Result<(), SysError> {
        self.drm.gpu_bind_raw(VmBind {
            vm: self.number,
            op: BIND_MAP,
            handle: object.handle(),
            address,
            offset,
            size,
            ..Default::default()
        })
    }

    /// Unmaps addresses.
    pub fn unbind(&self, address: u64, size: u64) -> Result<(), SysError> {
        self.drm.gpu_bind_raw(VmBind {
            vm: self.number,
            op: BIND_UNMAP,
            address,
            size,
            ..Default::default()
        })
    }

    /// The argument of a job.
    pub fn argument(&self, ops: &[Op]) -> Exec {
        Exec {
            vm: self.number,
            ops: ops.as_ptr() as u64,
            op_count: ops.len() as u32,
            op_size: size_of::<Op>() as u32,
            ..Default::default()
        }
    }

    /// Queues a job with fences to wait for and entries for the fence of the job.
    pub fn exec_syncs(
        &self,
        ops: &[Op],
        ins: &[SyncEntry],
        outs: &[SyncEntry],
    ) -> Result<(), SysError> {
        self.drm.exec_raw(Exec {
            in_syncs: ins.as_ptr() as u64,
            in_count: ins.len() as u32,
            out_syncs: outs.as_ptr() as u64,
            out_count: outs.len() as u32,
            sync_size: size_of::<SyncEntry>() as u32,
            ..self.argument(ops)
        })
    }

    /// Queues a job behind fences, and returns its own fence.
    pub fn exec_after(&self, ops: &[Op], fences: &[&SyncFile]) -> Result<SyncFile, SysError> {
        queue_after(self.drm.fd(), fences, |ins, outs| {
            self.exec_syncs(ops, ins, outs)
        })
    }

    /// Queues a job, and returns its fence.
    pub fn exec(&self, ops: &[Op]) -> Result<SyncFile, SysError> {
        self.exec_after(ops, &[])
    }

    /// Runs a job, and returns its status: 1, or a negative error.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl, and fails the subtest if the job does not end.
    #[track_caller]
    pub fn run(&self, ops: &[Op]) -> Result<i32, Stop> {
        let fence = self.exec(ops)?;
        fence.finish()?;
        Ok(fence.status()?)
    }

    /// Runs a job that must succeed.
    ///
    /// # Errors
    ///
    /// As for [`Vm::run`], and fails the subtest if the job fails.
    #[track_caller]
    pub fn done(&self, ops: &[Op]) -> Result<(), Stop> {
        check_eq!(self.run(ops)?, 1, "status of a job");
        Ok(())
    }

    /// Destroys the address space.
    pub fn destroy(self) -> Result<(), SysError> {
        let given = VmDestroy {
            vm: self.number,
            pad: 0,
        };
        ManuallyDrop::new(self).drm.vm_destroy_raw(given)
    }
}

impl Drop for Vm<'_> {
    fn drop(&mut self) {
        // Fails if the device is gone, and its address spaces with it.
        let _ = self.drm.vm_destroy_raw(VmDestroy {
            vm: self.number,
            pad: 0,
        });
    }
}

/// An address space with a page for results.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The address space.
    pub vm: Vm<'a>,
    /// The page, whose first address is [`RESULTS`].
    pub results: Map,
    _page: Gem<'a>,
}

impl<'a> Bench<'a> {
    /// Makes both.
    pub fn new(gpu: &'a Mgpu) -> Result<Self, Stop> {
        let vm = Vm::new(gpu)?;
        let page = vm.create(PAGE as u64, CREATE_SYSTEM)?;
        vm.bind(&page, RESULTS)?;
        Ok(Self {
            results: page.map()?,
            vm,
            _page: page,
        })
    }

    /// The sum of bytes, by the engine.
    #[track_caller]
    pub fn sum(&self, address: u64, size: u64) -> Result<u64, Stop> {
        self.results.write(0, u64::MAX);
        self.vm.done(&[Op::checksum(address, size, RESULTS)])?;
        Ok(self.results.read(0))
    }
}

/// The VRAM that is left beside a [`ballast`] by tests which take all of it: taking it is quick.
pub const LEFT: u64 = 4 << 20;

/// Allocates objects that never leave VRAM, until `left` bytes of VRAM are left.
pub fn ballast(gpu: &Mgpu, left: u64) -> Result<Vec<Gem<'_>>, Stop> {
    let mut taken = Vec::new();
    let mut size = 64 << 20;
    while size >= 4096 {
        let free = gpu.drm.vram_free()?;
        if free < left + size {
            size /= 2;
            continue;
        }
        taken.push(gpu.drm.create(size)?);
    }
    Ok(taken)
}

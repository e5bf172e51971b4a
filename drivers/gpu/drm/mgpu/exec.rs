// SPDX-License-Identifier: GPL-2.0

//! `DRM_IOCTL_MGPU_EXEC`: the operations of a compute job, its dependencies and the entries for its
//! fence.
//!
//! The DRM core writes nothing back to the argument of the ioctl.

use kernel::{
    dma_buf::fence::{
        AnyFence,
        Fence, //
    },
    dma_resv::Usage,
    drm::{
        self,
        exec::Flag,
        queue::{
            LazyQueue,
            Permit,
            Queue, //
        },
        syncobj::SyncArray,
        Ioctl,
        Registered, //
    },
    prelude::*,
    sizes::SZ_64M,
    sync::{
        aref::ARef,
        Arc, //
    },
    uaccess::{
        UserPtr,
        UserSlice, //
    },
    uapi, //
};

use crate::{
    card::Device,
    compute::{
        ComputeJob,
        ComputeRing,
        Operation,
        Program, //
    },
    copy::SYNCS,
    file::{
        check,
        File, //
    },
    vm::AddressSpace, //
};

/// The maximum number of queued jobs of an open file at a time.
pub(crate) const JOBS: usize = 64;

/// The maximum number of operations of a job.
pub(crate) const OPS_MAX: u32 = 32;

/// The largest size of an operation in bytes.
pub(crate) const SIZE_MAX: u64 = SZ_64M as u64;

/// The largest size of an entry of the array of operations in bytes.
const ENTRY_MAX: u32 = 4096;

/// The jobs of an open file.
pub(crate) type Jobs = LazyQueue<Queue<ComputeRing>>;

/// Reads the operations of a job.
///
/// # Errors
///
/// See `DRM_IOCTL_MGPU_EXEC`.
fn operations(args: &uapi::drm_mgpu_exec) -> Result<KVec<Operation>> {
    check(args.op_count <= OPS_MAX)?;
    if args.op_count == 0 {
        return Ok(KVec::new());
    }
    check(
        (uapi::DRM_MGPU_EXEC_OP_SIZE_VER0..=ENTRY_MAX).contains(&args.op_size)
            && args.op_size % 8 == 0,
    )?;

    // CAST: Both are small.
    let (count, size) = (args.op_count as usize, args.op_size as usize);
    let start = UserPtr::from_addr(args.ops.try_into()?);
    let mut list = KVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
    for index in 0..count {
        // OVERFLOW: Both factors are small.
        let mut reader = UserSlice::new(start.wrapping_byte_add(index * size), size).reader();
        let (code, pad) = (reader.read::<u32>()?, reader.read::<u32>()?);
        let [src, dst, bytes, value] = [
            reader.read::<u64>()?,
            reader.read::<u64>()?,
            reader.read::<u64>()?,
            reader.read::<u64>()?,
        ];

        while !reader.is_empty() {
            if reader.read::<u64>()? != 0 {
                return Err(E2BIG);
            }
        }
        check(pad == 0)?;
        list.push_within_capacity(operation(code, src, dst, bytes, value)?)?;
    }
    Ok(list)
}

/// Returns an operation unless one of its fields has an invalid value.
fn operation(code: u32, src: u64, dst: u64, size: u64, value: u64) -> Result<Operation> {
    let sized = (1..=SIZE_MAX).contains(&size);
    let words = size % 4 == 0;

    match code {
        uapi::drm_mgpu_exec_code_DRM_MGPU_EXEC_FILL => {
            let pattern = value.try_into().map_err(|_| EINVAL)?;

            check(sized && words && src == 0)?;
            Ok(Operation::Fill { dst, size, pattern })
        }
        uapi::drm_mgpu_exec_code_DRM_MGPU_EXEC_COPY => {
            check(sized && value == 0)?;
            Ok(Operation::Copy { src, dst, size })
        }
        uapi::drm_mgpu_exec_code_DRM_MGPU_EXEC_CHECKSUM => {
            check(sized && words && dst % 8 == 0 && value == 0)?;
            Ok(Operation::Checksum { src, dst, size })
        }
        uapi::drm_mgpu_exec_code_DRM_MGPU_EXEC_ATOMIC_ADD => {
            check(src == 0 && size == 0 && dst % 8 == 0)?;
            Ok(Operation::AtomicAdd { dst, value })
        }
        _ => Err(EINVAL),
    }
}

/// Serves `DRM_IOCTL_MGPU_EXEC`.
pub(crate) fn exec(
    dev: &Device<Ioctl>,
    args: &mut uapi::drm_mgpu_exec,
    file: &drm::File<File>,
) -> Result<u32> {
    check(args.flags == 0 && args.pad == 0)?;

    let inner = file.inner().get_ref();
    // The reference is held until the return, so its drop comes without a reservation held.
    let space = inner.vms().find(args.vm)?;
    let program = Program::new(operations(args)?, space.clone())?;

    let ins = SyncArray::new(SYNCS, args.in_syncs, args.in_count, args.sync_size)?;
    let outs = SyncArray::new(SYNCS, args.out_syncs, args.out_count, args.sync_size)?;
    let fences = ins.fences(file)?;
    let queue = inner.jobs().get_or_make(dev, |dev, bound| {
        bound.compute.0.queue(JOBS, dev.ttm.fence_group())
    })?;

    let places = outs.places(file)?;
    let fence = match args.op_count {
        0 => submit_empty(dev, queue, program, &fences)?,
        _ => submit(dev, &space, queue, program, &fences)?,
    };

    places.put(&fence);
    Ok(0)
}

/// Queues a job without operations. It uses no object, so other work need not depend on it.
fn submit_empty(
    dev: &Device<Ioctl>,
    queue: &Queue<ComputeRing>,
    program: Arc<Program>,
    fences: &[ARef<AnyFence>],
) -> Result<ARef<Fence>> {
    let permit = queue.permit()?;
    let _guard = dev.registration_guard().ok_or(ENODEV)?;
    let mut job = queue.job(Some(permit), ComputeJob::new(program, KVVec::new()))?;

    for fence in fences {
        job.depend(fence.clone())?;
    }
    Ok(job.submit(|_fence| ()))
}

/// Validates all objects mapped in the address space of a job and queues the job.
///
/// Waits for room in the queue, for other devices and for moves. The waits are outside of the
/// section that an unplug waits for.
fn submit(
    dev: &Device<Ioctl>,
    space: &AddressSpace,
    queue: &Queue<ComputeRing>,
    program: Arc<Program>,
    fences: &[ARef<AnyFence>],
) -> Result<ARef<Fence>> {
    space.rounds().submit(
        || queue.permit(),
        |permit, moves| {
            let is_patient = moves.is_some();
            let guard = dev.registration_guard().ok_or(ENODEV)?;
            let resets = guard.registration_data_with(|bound| {
                bound.gpu.recovery.reset_stale();
                bound.gpu.recovery.device_resets()
            });
            let ret = try_submit(&guard, space, queue, permit, &program, fences, moves);
            let was_stale =
                guard.registration_data_with(|bound| bound.gpu.recovery.was_stale(resets));
            space.clean_up();

            match ret {
                // An invalidation failed meanwhile. The job is queued after a reset.
                Err(e) if e == EIO && was_stale && is_patient => Ok(None),
                ret => ret.map(Some),
            }
        },
    )
}

/// Does [`submit`] unless moves must be done before. These are added to `moves` if it is given.
fn try_submit(
    dev: &Device<Registered>,
    space: &AddressSpace,
    queue: &Queue<ComputeRing>,
    permit: Permit,
    program: &Arc<Program>,
    fences: &[ARef<AnyFence>],
    mut moves: Option<&mut KVVec<ARef<Fence>>>,
) -> Result<ARef<Fence>> {
    let mut permit = Some(permit);

    dev.ttm.exec(Flag::Interruptible, |ctx| {
        // The closure may be called several times.
        if let Some(moves) = &mut moves {
            moves.clear();
        }
        let mut locked = ctx.lock_vm(space.gpuvm())?;
        let moves = moves.as_deref_mut();

        let (rounds, resv, tables) = (space.rounds(), space.resv(), &**space.table());
        rounds.with_valid(
            dev,
            resv,
            &mut locked,
            tables,
            moves,
            |mut valid, contents| {
                // The round is not repeated from here on.
                let mut job = queue.job(
                    Some(permit.take().ok_or(EINVAL)?),
                    ComputeJob::new(program.clone(), contents),
                )?;
                for fence in fences {
                    job.depend(fence.clone())?;
                }
                // These are the fences of moves of the objects and of jobs still using the memory
                // at their new places. Clients order accesses by fences of their own.
                valid.for_each_fence(Usage::Kernel, |fence| job.depend_on_fence(fence))?;
                let slot = valid.reserve(1)?.next().ok_or(EINVAL)?;

                Ok(job.submit(|fence| {
                    slot.add_fence(fence, Usage::Bookkeep, Usage::Bookkeep);
                    rounds.set_last(fence);
                }))
            },
        )
    })
}

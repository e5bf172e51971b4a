// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Address spaces locked with all of their objects for use by the device.
//!
//! A job may access all mappings of its VM. So the objects must stay at the places described by the
//! page tables until the job is done:
//!
//! 1. [`ExecCtx::lock_vm`] locks the reservation of the VM and those of its external objects. The
//!    private objects share the reservation of the VM. The result is the proof of these locks.
//! 2. [`LockedVm::validate`] has the driver restore evicted objects and write page tables until no
//!    object of the VM is evicted. While the result exists, this task cannot move an object of the
//!    VM. Other tasks cannot either, because all objects are locked.
//! 3. [`ValidVm::for_each_fence`] visits the fences the job depends on. [`ValidVm::reserve`]
//!    reserves slots for the fence of the job. After that nothing fails: [`VmSlot::add_fence`] adds
//!    it.
//!
//! Evictions of objects are in [`evict`](super::evict).
//!
//! Objects with the [`SharedResv`](drm::gem::SharedResv) of the VM are private to it. With TTM
//! `gem::ttm::Object::new_in()` creates them. All others are external. A driver with TTM runs the
//! round by `gem::ttm::Device::exec()`.
//!
//! # Mapping an object
//!
//! 1. Before the round the driver calls [`GpuVm::obtain`] and allocates page tables. No memory is
//!    allocated with the `gpuva.lock` or a lock of a page table held.
//! 2. In the round [`LockedVm::object`] returns the object. The driver moves it to its place and
//!    writes the entries under its mutex around the VM. Or [`LockedVm::mark_evicted`] leaves both
//!    to the next job.
//! 3. [`GpuVm::deferred_cleanup`] comes after the round.
//!
//! # Locking
//!
//! From the outside to the inside: `mmap_lock`; the reservations of a VM and of its external
//! objects, taken with the ticket of one [`Exec`]; the driver's mutex around [`UniqueRefGpuVm`];
//! the `gpuva.lock` of an object; the locks of page tables.
//!
//! [`GpuVm::obtain`] and [`GpuVm::deferred_cleanup`] take the reservation of the VM without a
//! ticket. So they must be called before or after a round of [`Exec`] and not inside. Lockdep
//! reports the first such call even if it would not have blocked.
//!
//! [`Exec`]: drm::exec::Exec
//!
//! C header: [`include/drm/drm_gpuvm.h`](srctree/include/drm/drm_gpuvm.h)

use super::{
    evict::Entries,
    *, //
};
use crate::{
    container_of,
    dma_buf::fence::Fence,
    dma_resv::{
        DmaResv,
        LockedResv,
        Usage, //
    },
    drm::{
        exec::{
            Exec,
            ExecCtx, //
        },
        gem::LockedObject, //
    },
    error::from_result,
    types::NotThreadSafe, //
};

/// How many passes [`LockedVm::validate`] makes over the evicted objects.
///
/// The objects of a VM only evict each other repeatedly if they do not fit. A driver with evictable
/// page tables needs a few passes.
const PASSES: u32 = 16;

/// The function restoring objects in [`LockedVm::validate`].
type Validator<'f, T> = &'f mut dyn FnMut(&GpuVmBo<T>) -> Result;

/// A VM with its reservation and those of its external objects locked.
///
/// There is one in a round, so that there is one view of each reservation. It borrows the
/// [`ExecCtx`]: [`Self::context`] returns it, to lock objects that the VM does not map.
///
/// # Invariants
///
/// - The first `count` objects of the round are those locked for the VM. Their reservations are
///   that of the VM and those of its external objects. Each reservation occurs once.
/// - There is no other view of these reservations.
pub struct LockedVm<'r, 'a, T: DriverGpuVm> {
    ctx: &'r mut ExecCtx<'a>,
    vm: &'r GpuVm<T>,
    count: u32,
}

impl<'a> ExecCtx<'a> {
    /// Locks a VM: the reservation shared by its private objects and those of its external objects.
    ///
    /// It must be the first in a round and come before any other object. Several external objects
    /// may have one reservation, with and without
    /// [`Flag::IgnoreDuplicates`](drm::exec::Flag::IgnoreDuplicates).
    ///
    /// May sleep. Mirrors `drm_gpuvm_prepare_vm()` and `drm_gpuvm_prepare_objects()`.
    ///
    /// # Errors
    ///
    /// - `EDEADLK` if an object of the round is contended. The closure has to return.
    /// - `EINVAL` if an object or another VM was locked in this round before.
    /// - `EINTR` if a signal to the task ended the wait with
    ///   [`Flag::Interruptible`](drm::exec::Flag::Interruptible).
    /// - `ENOMEM` if there is no memory.
    ///
    /// # Examples
    ///
    /// An ioctl submitting a job: `bring` moves an object to a place accessible by the device and
    /// writes page tables; `wait_for` makes the job depend on a fence.
    ///
    /// ```
    /// use kernel::{
    ///     dma_buf::fence::{
    ///         DriverFence,
    ///         Fence,
    ///         FenceAllocation,
    ///         FenceContextOps, //
    ///     },
    ///     dma_resv::Usage,
    ///     drm::{
    ///         exec::{
    ///             Exec,
    ///             Flag, //
    ///         },
    ///         gem::LockedObject,
    ///         gpuvm::{
    ///             DriverGpuVm,
    ///             GpuVm,
    ///             GpuVmBo, //
    ///         }, //
    ///     },
    ///     prelude::*, //
    /// };
    ///
    /// fn submit<T: DriverGpuVm, F: FenceContextOps>(
    ///     vm: &GpuVm<T>,
    ///     job: FenceAllocation<F>,
    ///     mut bring: impl FnMut(&GpuVmBo<T>, &mut LockedObject<'_, T::Object>) -> Result,
    ///     mut wait_for: impl FnMut(&Fence) -> Result,
    /// ) -> Result<DriverFence<F>> {
    ///     let mut job = Some(job);
    ///
    ///     Exec::run(Flag::Interruptible, |ctx| {
    ///         let mut locked = ctx.lock_vm(vm)?;
    ///         let mut valid = locked.validate(&mut bring)?;
    ///
    ///         valid.for_each_fence(Usage::Kernel, &mut wait_for)?;
    ///         let slot = valid.reserve(1)?.next().ok_or(ENOSPC)?;
    ///
    ///         // This is reached only once, and nothing fails any more.
    ///         let fence = job.take().ok_or(EINVAL)?.new_fence();
    ///         slot.add_fence(fence.fence(), Usage::Bookkeep, Usage::Bookkeep);
    ///         Ok(fence)
    ///     })
    /// }
    /// ```
    pub fn lock_vm<'r, T: DriverGpuVm>(
        &'r mut self,
        vm: &'r GpuVm<T>,
    ) -> Result<LockedVm<'r, 'a, T>> {
        if self.exec.is_contended() {
            return Err(EDEADLK);
        }
        // There may be a view of an object locked before.
        if self.exec.locked() != 0 {
            return Err(EINVAL);
        }

        // SAFETY: Nothing is locked, so no view of a reservation is in use.
        unsafe { vm.prepare(self.exec) }?;
        // INVARIANT: All reservations were locked above for the VM. No other code locks them in
        // this round and a second VM is refused. So there is no other view.
        Ok(LockedVm {
            count: self.exec.locked(),
            ctx: self,
            vm,
        })
    }
}

impl<T: DriverGpuVm> GpuVm<T> {
    /// Locks the VM and its external objects. They may be locked already. Adds evicted external
    /// objects to the list of evicted objects.
    ///
    /// # Safety
    ///
    /// All objects locked in the round must be locked for this VM.
    unsafe fn prepare(&self, exec: &Exec) -> Result {
        let raw = exec.as_raw();

        // SAFETY: The context is valid and used by this task only. Duplicates are allowed for this
        // time, because external objects may share a reservation.
        unsafe {
            let flags = (*raw).flags;

            (*raw).flags |= bindings::DRM_EXEC_IGNORE_DUPLICATES;
            let ret = self.prepare_with_duplicates(raw);
            (*raw).flags = flags;
            ret
        }
    }

    /// # Safety
    ///
    /// `exec` must be valid and in a round.
    unsafe fn prepare_with_duplicates(&self, exec: *mut bindings::drm_exec) -> Result {
        // SAFETY: The VM and the context are valid. The second call is made with the reservation of
        // the VM held.
        unsafe {
            to_result(bindings::drm_gpuvm_prepare_vm(self.as_raw(), exec, 0))?;
            to_result(bindings::drm_gpuvm_prepare_objects(self.as_raw(), exec, 0))?;
        }

        // An object contended in the last round is locked since the start of this one. It is only
        // among the objects of the round once it is asked for. Another object may have its
        // reservation.
        // SAFETY: The object is valid as long as the context has it. It is already locked, so this
        // only adds it to the objects. A reference to it is held meanwhile.
        unsafe {
            let first = (*exec).prelocked;

            if !first.is_null() && self.uses((*first).resv) {
                bindings::drm_gem_object_get(first);
                let ret = to_result(bindings::drm_exec_lock_obj(exec, first));
                bindings::drm_gem_object_put(first);
                ret?;
            }
        }
        Ok(())
    }

    /// Returns whether a reservation is that of the VM or of one of its external objects.
    ///
    /// # Safety
    ///
    /// The reservation of the VM must be held.
    unsafe fn uses(&self, resv: *mut bindings::dma_resv) -> bool {
        // SAFETY: The reservation of the VM guards the list and is held. Every entry of the list
        // has an object, whose reservation does not change.
        unsafe {
            let extobjs = &raw mut (*self.as_raw()).extobj.list;

            resv == self.raw_resv()
                || Entries::new(extobjs).any(|entry| {
                    let vm_bo = container_of!(entry, bindings::drm_gpuvm_bo, list.entry.extobj);

                    (*(*vm_bo).obj).resv == resv
                })
        }
    }

    /// # Safety
    ///
    /// Called by [`LockedVm::validate`] through `drm_gpuvm_validate()` with the reservations of the
    /// VM and of the object held.
    pub(super) unsafe extern "C" fn vm_bo_validate(
        vm_bo: *mut bindings::drm_gpuvm_bo,
        _exec: *mut bindings::drm_exec,
    ) -> c_int {
        // An entry without references stays on the list until it is cleaned up.
        // SAFETY: An entry of the list is valid as long as the reservation of the VM is held.
        if unsafe { bindings::kref_get_unless_zero(&raw mut (*vm_bo).kref) } == 0 {
            return 0;
        }

        // SAFETY: The entry belongs to this kind of VM. It is on the list of its object because it
        // has references. The reference taken above passes to the `ARef`.
        let this: ARef<GpuVmBo<T>> =
            unsafe { ARef::from_raw(NonNull::new_unchecked(vm_bo.cast())) };
        // SAFETY: The reservation of the VM guards the pointer and is held. The function setting
        // the pointer is waiting for this one.
        let validator = unsafe { &mut *(*this.gpuvm().validator.get()).cast::<Validator<'_, T>>() };

        let ret = validator(&this);
        if ret.is_ok() {
            // The caller removes the entry from the list.
            // SAFETY: The reservation of the object guards the flag and is held.
            unsafe { (*vm_bo).evicted = false };
        }
        from_result(|| ret.map(|()| 0))
    }
}

impl<T: DriverGpuVm> UniqueRefGpuVm<T> {
    /// Returns whether a range of addresses of the VM is unmapped.
    #[inline]
    pub fn is_unmapped(&self, va: &Range<u64>) -> bool {
        // SAFETY: The VM is valid. Mappings change with an exclusive reference only.
        unsafe { bindings::drm_gpuvm_interval_empty(self.as_raw(), va.start, va.end - va.start) }
    }
}

impl<'a, T: DriverGpuVm> LockedVm<'_, 'a, T> {
    /// Returns the VM.
    #[inline]
    pub fn vm(&self) -> &GpuVm<T> {
        self.vm
    }

    /// Returns the round for locking objects not mapped by the VM.
    ///
    /// The objects of the VM are locked already: see
    /// [`Flag::IgnoreDuplicates`](drm::exec::Flag::IgnoreDuplicates).
    #[inline]
    pub fn context(&mut self) -> &mut ExecCtx<'a> {
        self.ctx
    }

    /// Returns the view of an object private or external to the VM, or [`None`] for other objects.
    ///
    /// An object passed to [`GpuVm::obtain`] before the VM was locked is external.
    pub fn object<'s>(&'s mut self, obj: &'s T::Object) -> Option<LockedObject<'s, T::Object>> {
        // SAFETY: The object is valid.
        let resv = unsafe { (*obj.as_raw()).resv };

        // SAFETY: The reservation is held until the end of the round. By the type invariant there
        // is no other view of it. `self` is borrowed and cannot return another one.
        self.resvs()
            .any(|locked| locked.as_raw() == resv)
            .then(|| unsafe { LockedObject::assume(obj) })
    }

    /// Makes [`Self::validate`] move an object to its place, for the first time or again.
    ///
    /// For objects mapped without entries in page tables.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `vm_bo` is of another VM or its object is not locked.
    pub fn mark_evicted(&mut self, vm_bo: &GpuVmBo<T>) -> Result {
        if vm_bo.gpuvm() != self.vm || self.object(vm_bo.obj()).is_none() {
            return Err(EINVAL);
        }

        // SAFETY: The reservations of the VM and of the object are held.
        unsafe { bindings::drm_gpuvm_bo_evict(vm_bo.as_raw(), true) };
        Ok(())
    }

    /// Calls `bring` for each evicted object until none is evicted. `bring` restores the object and
    /// writes its page table entries.
    ///
    /// If `bring` evicts other objects of the VM, it is called for them too. If it fails, the
    /// object stays evicted and the remaining objects are not visited. It may be called for an
    /// object after its last mapping is gone.
    ///
    /// `bring` takes no reservations except by moving the object. It takes only the locks of [the
    /// module](self). Mirrors `drm_gpuvm_validate()`.
    ///
    /// # Errors
    ///
    /// `EDEADLK` if a reservation was contended in this round. `ENOSPC` if objects evict each other
    /// repeatedly. Also returns the errors of `bring`.
    pub fn validate<'s>(
        &'s mut self,
        mut bring: impl FnMut(&GpuVmBo<T>, &mut LockedObject<'_, T::Object>) -> Result,
    ) -> Result<ValidVm<'s, T>> {
        let exec = self.ctx.exec;

        // Checked even if the caller has ignored the error: a contended object is only locked in
        // the next round, before any other object.
        if exec.is_contended() {
            return Err(EDEADLK);
        }
        for _ in 0..PASSES {
            let mut is_done = true;
            let mut each = |vm_bo: &GpuVmBo<T>| {
                is_done = false;
                // SAFETY: The reservation of an object on the list is held. There is no other view,
                // because `self` is borrowed.
                bring(vm_bo, &mut unsafe { LockedObject::assume(vm_bo.obj()) })
            };
            let mut validator: Validator<'_, T> = &mut each;

            // External objects that were evicted in this round are not on the list.
            // SAFETY: By the type invariant all locked objects of the VM are locked for it. No view
            // of a reservation is in use.
            unsafe { self.vm.prepare(exec) }?;

            // SAFETY: The reservations of the VM and of all of its objects are held. That of the VM
            // guards the pointer.
            unsafe {
                let pointer = self.vm.validator.get();

                *pointer = ptr::from_mut(&mut validator).cast();
                let ret = bindings::drm_gpuvm_validate(self.vm.as_raw(), exec.as_raw());
                *pointer = ptr::null_mut();
                to_result(ret)?;
            }

            if is_done {
                // INVARIANT: The whole list was visited and `bring` was not called.
                return Ok(ValidVm {
                    exec,
                    vm: self.vm,
                    count: self.count,
                    _locked: PhantomData,
                });
            }
        }
        Err(ENOSPC)
    }

    fn resvs(&self) -> impl Iterator<Item = &DmaResv> {
        // SAFETY: By the type invariant.
        unsafe { resvs_of(self.ctx.exec, self.count) }
    }
}

/// Returns the reservations of the first `count` objects of a round.
///
/// # Safety
///
/// The round must have this many objects for `'a`.
unsafe fn resvs_of<'a>(exec: &'a Exec, count: u32) -> impl Iterator<Item = &'a DmaResv> {
    // SAFETY: The objects are valid, because the round has references to them as promised for `'a`.
    // So are their reservations.
    (0..count as usize).map(move |index| unsafe {
        let obj = *(*exec.as_raw()).objects.add(index);

        DmaResv::from_raw((*obj).resv)
    })
}

/// A locked VM without evicted objects.
///
/// # Invariants
///
/// - Those of [`LockedVm`], for `'s`.
/// - No object of the VM is evicted.
pub struct ValidVm<'s, T: DriverGpuVm> {
    exec: &'s Exec,
    vm: &'s GpuVm<T>,
    count: u32,
    _locked: PhantomData<&'s mut ()>,
}

impl<T: DriverGpuVm> ValidVm<'_, T> {
    /// Returns the VM.
    #[inline]
    pub fn vm(&self) -> &GpuVm<T> {
        self.vm
    }

    /// Calls `f` with each fence of `usage` of the objects of the VM. This includes signalled
    /// fences.
    ///
    /// A job depends on the fences of [`Usage::Kernel`]: an object may still be moving.
    ///
    /// # Errors
    ///
    /// The errors of `f`.
    pub fn for_each_fence(&self, usage: Usage, mut f: impl FnMut(&Fence) -> Result) -> Result {
        // SAFETY: By the type invariant.
        for resv in unsafe { resvs_of(self.exec, self.count) } {
            // SAFETY: By the type invariant the reservation is held. Fences are only added to it by
            // a mutable borrow of `self`.
            let view = unsafe { LockedResv::from_raw(resv.as_raw()) };

            for fence in view.fences(usage) {
                f(fence)?;
            }
        }
        Ok(())
    }

    /// Reserves slots for `count` fences in the reservations of all objects of the VM.
    ///
    /// May sleep. Mirrors `dma_resv_reserve_fences()`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `count` is above 4096.
    /// - `ENOMEM` if there is no memory.
    pub fn reserve(&mut self, count: u32) -> Result<VmSlots<'_, T>> {
        // SAFETY: By the type invariant.
        for resv in unsafe { resvs_of(self.exec, self.count) } {
            // SAFETY: By the type invariant the reservation is held and there is no other view.
            unsafe { LockedResv::from_raw(resv.as_raw()) }.prepare(count)?;
        }

        // INVARIANT: The slots were reserved above in all reservations. `self` is borrowed.
        Ok(VmSlots {
            exec: self.exec,
            vm: self.vm,
            objects: self.count,
            left: count,
            _not_send: NotThreadSafe,
        })
    }
}

/// Slots for fences of a VM: an iterator over them.
///
/// # Invariants
///
/// The first `objects` objects of the round are those of a borrowed [`ValidVm`]. In each of their
/// reservations `left` slots are reserved for this value alone.
pub struct VmSlots<'s, T: DriverGpuVm> {
    exec: &'s Exec,
    vm: &'s GpuVm<T>,
    objects: u32,
    left: u32,
    _not_send: NotThreadSafe,
}

impl<'s, T: DriverGpuVm> Iterator for VmSlots<'s, T> {
    type Item = VmSlot<'s, T>;

    fn next(&mut self) -> Option<VmSlot<'s, T>> {
        // INVARIANT: A slot passes from `self` to the new value.
        self.left = self.left.checked_sub(1)?;

        Some(VmSlot {
            exec: self.exec,
            vm: self.vm,
            objects: self.objects,
            _not_send: NotThreadSafe,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // CAST: There are 4096 slots at most.
        (self.left as usize, Some(self.left as usize))
    }
}

impl<T: DriverGpuVm> ExactSizeIterator for VmSlots<'_, T> {}

/// A slot for one fence in the reservations of all objects of a VM.
///
/// # Invariants
///
/// Those of [`VmSlots`], with one slot.
#[must_use = "no fence is added unless one is given"]
pub struct VmSlot<'s, T: DriverGpuVm> {
    exec: &'s Exec,
    vm: &'s GpuVm<T>,
    objects: u32,
    _not_send: NotThreadSafe,
}

impl<T: DriverGpuVm> VmSlot<'_, T> {
    /// Adds a fence to all reservations and uses up the slot. The usage is `private` for the
    /// reservation of the VM and `external` for those of other objects.
    ///
    /// Does not sleep. Mirrors `drm_gpuvm_resv_add_fence()`.
    pub fn add_fence(self, fence: &Fence, private: Usage, external: Usage) {
        // SAFETY: By the type invariant.
        for resv in unsafe { resvs_of(self.exec, self.objects) } {
            let usage = if resv.as_raw() == self.vm.raw_resv() {
                private
            } else {
                external
            };

            // SAFETY: By the type invariant the reservation is held and has a slot for this call
            // alone. The reservation takes a reference of its own.
            unsafe {
                bindings::dma_resv_add_fence(resv.as_raw(), fence.as_raw(), usage.as_raw());
            }
        }
    }
}

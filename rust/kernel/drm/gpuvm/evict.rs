// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Eviction of mapped objects.
//!
//! An object may be mapped by several VMs and at several addresses in each. A driver with movable
//! objects implements [`Mappings`](drm::gem::Mappings):
//!
//! - [`evicted`](drm::gem::Mappings::evicted) calls [`LockedObject::mark_mappings_evicted`]. Then
//!   [`LockedVm::validate`] restores the object before a VM is used again.
//! - [`zap`](drm::gem::Mappings::zap) calls [`LockedObject::for_each_vm`] to clear the entries of the
//!   object.
//!
//! The walk returns ranges and not the data of mappings or of the VM. [`DriverGpuVm::VaData`] and
//! the data of the VM belong to the task owning [`UniqueRefGpuVm`] and are guarded by a lock of the
//! driver. So the data needed to clear entries, such as the driver's page table, is in
//! [`DriverGpuVm::VmBoData`].
//!
//! Unmapped addresses are not in the walk. So the entries must be cleared before
//! [`OpUnmap::remove`] and [`OpRemap::remap`] are called, or with the reservation of the object
//! held: then the object does not move.
//!
//! # Locking
//!
//! The task moving the object holds its reservation. The walk takes its `gpuva.lock`. No memory is
//! allocated under this lock.
//!
//! C header: [`include/drm/drm_gpuvm.h`](srctree/include/drm/drm_gpuvm.h)

use super::*;
use crate::{
    container_of,
    drm::gem::LockedObject, //
};
use core::any::TypeId;

/// The kind of a VM. A walk finds the VMs of one kind only.
///
/// See [`DriverGpuVm::EVICTABLE`].
pub struct Evictable<T: DriverGpuVm> {
    kind: Option<fn() -> TypeId>,
    // Invariant, because a kind belongs to one lifetime.
    _p: PhantomData<fn(T) -> T>,
}

impl<T: DriverGpuVm> Evictable<T> {
    /// For VMs with immovable objects.
    pub const NONE: Self = Self {
        kind: None,
        _p: PhantomData,
    };

    pub(super) const fn kind(&self) -> Option<fn() -> TypeId> {
        self.kind
    }
}

/// Returns the kind of VMs with movable objects.
pub const fn evictable<T: DriverGpuVm + 'static>() -> Evictable<T> {
    Evictable {
        kind: Some(TypeId::of::<T>),
        _p: PhantomData,
    }
}

/// A part of an object mapped by a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// The addresses of the VM.
    pub va: Range<u64>,
    /// The offset of the first address in the object.
    pub gem_offset: u64,
}

/// The mappings of an object in a VM.
///
/// # Invariants
///
/// `vm_bo` is one of a [`GpuVm<T>`] and on the list of its object. The `gpuva.lock` of the object
/// is held for `'a`.
pub struct MappedIn<'a, T: DriverGpuVm> {
    vm_bo: *mut bindings::drm_gpuvm_bo,
    _p: PhantomData<&'a GpuVmBo<T>>,
}

impl<'a, T: DriverGpuVm> MappedIn<'a, T> {
    /// Returns the VM.
    #[inline]
    pub fn vm(&self) -> &'a GpuVm<T> {
        // SAFETY: By the type invariant; it has a reference to the VM.
        unsafe { GpuVm::from_raw((*self.vm_bo).vm) }
    }

    /// Returns the driver's data for the object and the VM.
    #[inline]
    pub fn data(&self) -> &'a T::VmBoData {
        // SAFETY: By the type invariant.
        unsafe { GpuVmBo::<T>::from_raw(self.vm_bo) }.data()
    }

    /// Returns the ranges in no particular order. Two of them may overlap while the mappings
    /// change.
    #[inline]
    pub fn ranges(&self) -> impl Iterator<Item = MappedRange> + 'a {
        // SAFETY: By the type invariant the lock guarding the list is held.
        unsafe { ranges_of(self.vm_bo) }
    }
}

/// Returns the ranges of an object mapped by a VM.
///
/// # Safety
///
/// For `'a`, `vm_bo` must be valid and the `gpuva.lock` of its object held.
unsafe fn ranges_of<'a>(
    vm_bo: *mut bindings::drm_gpuvm_bo,
) -> impl Iterator<Item = MappedRange> + 'a {
    // SAFETY: The lock guards the list. Its entries are parts of mappings. Mappings do not change
    // while they are on the list.
    unsafe { Entries::new(&raw mut (*vm_bo).list.gpuva) }.map(|entry| unsafe {
        let va = container_of!(entry, bindings::drm_gpuva, gem.entry);
        let start = (*va).va.addr;

        MappedRange {
            // OVERFLOW: A mapping is inside of its VM.
            va: start..start + (*va).va.range,
            gem_offset: (*va).gem.offset,
        }
    })
}

/// The entries of a list.
///
/// # Invariants
///
/// `head` is a valid list. `next` is an entry of it or `head` itself. The list does not change as
/// long as the iterator is used.
pub(super) struct Entries {
    head: *mut bindings::list_head,
    next: *mut bindings::list_head,
}

impl Entries {
    /// # Safety
    ///
    /// `head` must be a valid list and not change as long as the iterator is used.
    pub(super) unsafe fn new(head: *mut bindings::list_head) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            head,
            // SAFETY: The list is valid.
            next: unsafe { (*head).next },
        }
    }
}

impl Iterator for Entries {
    type Item = *mut bindings::list_head;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.next;

        if entry == self.head {
            return None;
        }
        // SAFETY: By the type invariant `entry` is an entry of a valid list.
        self.next = unsafe { (*entry).next };
        Some(entry)
    }
}

/// Returns the lock of the list of mappings of an object.
fn gpuva_lock<O: IntoGEMObject>(obj: &O) -> &crate::sync::Mutex<()> {
    // SAFETY: The object is valid and the mutex initialized.
    unsafe { crate::sync::Mutex::from_raw(&raw mut (*obj.as_raw()).gpuva.lock) }
}

impl<T: DriverGpuVm> GpuVmBo<T> {
    /// Calls `f` with each range of the VM mapping the object, in no particular order.
    ///
    /// Takes the `gpuva.lock` of the object. No memory is allocated under it.
    pub fn for_each_range(&self, f: impl FnMut(MappedRange)) {
        let _lock = gpuva_lock(self.obj()).lock();

        // SAFETY: The lock is held.
        unsafe { ranges_of(self.as_raw()) }.for_each(f);
    }

    /// Returns whether the object was evicted since [`LockedVm::validate`] last restored it.
    ///
    /// [`None`] if `object` is not the object of the value.
    pub fn is_evicted(&self, object: &LockedObject<'_, T::Object>) -> Option<bool> {
        // SAFETY: The reservation of the object guards the flag and is held.
        ptr::eq(object.object(), self.obj()).then(|| unsafe { (*self.as_raw()).evicted })
    }
}

impl<O: IntoGEMObject> LockedObject<'_, O> {
    /// Calls `f` with each VM mapping the object, with the `gpuva.lock` of the object held.
    fn for_each_vm_bo(&self, mut f: impl FnMut(*mut bindings::drm_gpuvm_bo)) {
        let _lock = gpuva_lock(self.object()).lock();

        // SAFETY: The object is valid and the lock guards its list. The entries of the list are
        // parts of the structures passed to `f`.
        unsafe {
            Entries::new(&raw mut (*self.object().as_raw()).gpuva.list)
                .for_each(|entry| f(container_of!(entry, bindings::drm_gpuvm_bo, list.entry.gem)));
        }
    }

    /// Marks the object as about to move. No VM mapping it is used before its driver has restored
    /// it by [`LockedVm::validate`].
    ///
    /// For [`Mappings::evicted`](drm::gem::Mappings::evicted). Mirrors `drm_gpuvm_bo_evict()`.
    pub fn mark_mappings_evicted(&self) {
        // SAFETY: The reservation of the object is held. If it is also that of the VM, it guards
        // the list of the VM. Otherwise the list is only changed once the VM is locked with the
        // object.
        self.for_each_vm_bo(|vm_bo| unsafe { bindings::drm_gpuvm_bo_evict(vm_bo, true) });
    }
}

impl<O: drm::driver::AllocImpl> LockedObject<'_, O> {
    /// Calls `f` with each VM of the kind `T` mapping the object.
    ///
    /// For [`Mappings::zap`](drm::gem::Mappings::zap): `f` clears the entries of page tables and
    /// has the device invalidate its cache of them once for each VM. It is called with the
    /// `gpuva.lock` of the object held and takes only locks of page tables.
    ///
    /// # Examples
    ///
    /// ```
    /// use core::ops::Range;
    /// use kernel::{
    ///     drm::{
    ///         gem::LockedObject,
    ///         gpuvm::DriverGpuVm, //
    ///     }, //
    /// };
    ///
    /// /// A page table, which is in the data of each object that a VM maps.
    /// trait Table {
    ///     fn clear(&self, va: Range<u64>);
    ///     fn invalidate(&self);
    /// }
    ///
    /// fn zap<T: DriverGpuVm<VmBoData: Table>>(object: &LockedObject<'_, T::Object>) {
    ///     object.for_each_vm::<T>(|mapped| {
    ///         for range in mapped.ranges() {
    ///             mapped.data().clear(range.va);
    ///         }
    ///         mapped.data().invalidate();
    ///     });
    /// }
    /// ```
    pub fn for_each_vm<T: DriverGpuVm<Object = O>>(&self, mut f: impl FnMut(&MappedIn<'_, T>)) {
        let kind = const {
            T::EVICTABLE
                .kind()
                .expect("`EVICTABLE` of the VM is `NONE`")
        }();

        self.for_each_vm_bo(|vm_bo| {
            // SAFETY: Objects of the class are only mapped by VMs of `GpuVm::new()`. Their
            // operations are in a `Vtable`.
            let vtable = unsafe { &*(*(*vm_bo).vm).ops.cast::<Vtable>() };

            if vtable.kind.is_some_and(|of| of() == kind) {
                // INVARIANT: The structure is on the list of the object, whose lock is held, and
                // belongs to a VM of this kind.
                f(&MappedIn {
                    vm_bo,
                    _p: PhantomData,
                });
            }
        });
    }
}

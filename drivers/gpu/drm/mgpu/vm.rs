// SPDX-License-Identifier: GPL-2.0

//! Address spaces: the mappings of objects at virtual addresses, and the page tables for the
//! device.
//!
//! A map only records the mapping, and allocates page tables. [`AddressSpace::with_valid`] writes
//! the entries before the next job of the address space, which has to validate all objects anyway:
//! a new mapping is handled like one whose object was evicted. It invalidates them, because the
//! device may have kept that nothing was mapped there.
//!
//! An unmap clears entries and invalidates them before the object can move. The device may use a
//! translation until then, so the jobs of the address space have to be done before: the ioctl waits
//! for them in [`AddressSpace::await_jobs`], with no lock held. If another task has queued a job
//! meanwhile, the ioctl gets a [`Turn`], so that no more jobs are queued, and tries again.
//!
//! # Lifetimes
//!
//! A file and each unfinished job hold references to an address space. Both may outlive the binding
//! of the driver. Therefore an address space has no other data of the bound driver than its
//! [`PageTable`], which ends when the driver is unbound.
//!
//! # Locking
//!
//! From the outside to the inside: the mutex of the mappings, which serializes all changes of them;
//! the reservations of the address space and of its external objects; the `gpuva.lock` of an
//! object; the mutex of the page tables. The mutexes of the last job and of fences of other devices
//! are taken with reservations held, and nothing is taken inside of them; that of the objects whose
//! content is on its way, too, and only a `gpuva.lock` is taken inside of it.

mod change;
mod round;

use self::{
    change::Change,
    round::Arriving, //
};

use core::{
    mem,
    ops::Range, //
};

use kernel::{
    device::{
        self,
        Device as Dev, //
    },
    dma_buf::fence::Fence,
    drm::{
        exec::Flag,
        gem::{
            Held,
            SharedResv, //
        },
        gpuvm::{
            GpuVm,
            LockedVm,
            OpMapRequest,
            UniqueRefGpuVm, //
        },
        Registered, //
    },
    new_condvar,
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        CondVar,
        Mutex, //
    }, //
};

use crate::{
    card::{
        Device,
        Driver, //
    },
    contexts::Contexts,
    gem::Bo,
    memory::Fault,
    pagetable::{
        extend,
        Freed,
        PageTable,
        SPACE, //
    }, //
};

/// The type of the address spaces for GPUVM.
pub(crate) struct Kind;

/// An address space.
#[pin_data(PinnedDrop)]
pub(crate) struct AddressSpace {
    table: Arc<PageTable>,
    resv: SharedResv<Driver>,
    gpuvm: ARef<GpuVm<Kind>>,
    #[pin]
    mappings: Mutex<UniqueRefGpuVm<Kind>>,
    /// The last job, behind all others.
    #[pin]
    last: Mutex<Option<ARef<Fence>>>,
    /// Objects whose entries were written while their content was on its way.
    #[pin]
    arriving: Mutex<KVVec<Arriving>>,
    /// What the next job has to wait for before it is queued: fences that may be of any device.
    #[pin]
    foreign: Mutex<KVVec<ARef<Fence>>>,
    /// How many tasks have a turn.
    #[pin]
    turns: Mutex<usize>,
    #[pin]
    turn_ended: CondVar,
    /// Taken in the path that leads to the signal of a fence; nothing is taken inside of it.
    #[pin]
    failures: Mutex<Failures>,
}

/// The jobs of an address space that have failed by themselves.
#[derive(Clone, Copy, Default)]
pub(crate) struct Failures {
    pub(crate) faults: u64,
    /// The last of them.
    pub(crate) last: Fault,
    pub(crate) hangs: u64,
}

/// The turn of a task that changes mappings, see [`AddressSpace::turn`].
pub(crate) struct Turn<'a>(&'a AddressSpace);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.turns.lock() -= 1;
        self.0.turn_ended.notify_all();
    }
}

impl AddressSpace {
    /// Makes an address space in which nothing is mapped.
    ///
    /// # Errors
    ///
    /// The errors of [`Contexts::create`].
    pub(crate) fn new(
        dev: &Device<Registered>,
        parent: &Dev<device::Bound>,
        contexts: &Arc<Contexts>,
    ) -> Result<Arc<Self>> {
        let table = contexts.create(parent)?;

        Self::with_table(dev, table.clone()).inspect_err(|_| table.end())
    }

    fn with_table(dev: &Device<Registered>, table: Arc<PageTable>) -> Result<Arc<Self>> {
        let resv = SharedResv::new(dev)?;
        let unique = GpuVm::new::<Error, _>(c"mgpu", dev, &*resv, 0..SPACE, 0..0, Kind)?;

        Arc::pin_init(
            pin_init!(Self {
                table,
                resv,
                gpuvm: ARef::from(&*unique),
                mappings <- new_mutex!(unique, "mgpu::AddressSpace::mappings"),
                last <- new_mutex!(None, "mgpu::AddressSpace::last"),
                arriving <- new_mutex!(KVVec::new(), "mgpu::AddressSpace::arriving"),
                foreign <- new_mutex!(KVVec::new(), "mgpu::AddressSpace::foreign"),
                turns <- new_mutex!(0, "mgpu::AddressSpace::turns"),
                turn_ended <- new_condvar!("mgpu::AddressSpace::turn_ended"),
                failures <- new_mutex!(Failures::default(), "mgpu::AddressSpace::failures"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the reservation that the private objects share.
    pub(crate) fn resv(&self) -> &SharedResv<Driver> {
        &self.resv
    }

    /// Returns the manager of its mappings.
    pub(crate) fn gpuvm(&self) -> &GpuVm<Kind> {
        &self.gpuvm
    }

    /// Returns the page tables.
    pub(crate) fn table(&self) -> &Arc<PageTable> {
        &self.table
    }

    /// Takes note of a job that has faulted, or hangs.
    pub(crate) fn note_failure(&self, fault: Option<Fault>) {
        let mut failures = self.failures.lock();

        match fault {
            Some(fault) => {
                failures.faults += 1;
                // A client learns nothing about other addresses.
                failures.last = if fault.is_virtual {
                    fault
                } else {
                    Fault::default()
                };
            }
            None => failures.hangs += 1,
        }
    }

    /// Returns which jobs have failed by themselves.
    pub(crate) fn failures(&self) -> Failures {
        *self.failures.lock()
    }

    /// Sets the fence of the last job. Called with the reservations held.
    pub(crate) fn set_last(&self, fence: &Fence) {
        let before = self.last.lock().replace(fence.into());

        drop(before);
    }

    /// Returns whether all jobs have ended.
    fn is_idle(&self) -> bool {
        self.last
            .lock()
            .as_ref()
            .is_none_or(|fence| fence.is_signaled())
    }

    /// Waits for all jobs that were queued before, if something is mapped in `va`. The caller must
    /// hold no lock, because the wait may depend on other devices.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal arrived.
    pub(crate) fn await_jobs(&self, va: &Range<u64>) -> Result {
        if self.mappings.lock().is_unmapped(va) {
            return Ok(());
        }
        let last = self.last.lock().clone();

        last.map_or(Ok(()), |fence| fence.wait(true))
    }

    /// Gets a turn for a change of mappings for which all jobs have to be done. No job is queued
    /// before the turn ends, but for those that are about to be.
    pub(crate) fn turn(&self) -> Turn<'_> {
        *self.turns.lock() += 1;
        Turn(self)
    }

    /// Returns whether a task has a turn.
    pub(crate) fn has_turns(&self) -> bool {
        *self.turns.lock() != 0
    }

    /// Waits until no task has a turn, before a job is queued. The caller must hold no lock.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal arrived.
    pub(crate) fn await_turns(&self) -> Result {
        let mut turns = self.turns.lock();

        while *turns != 0 {
            if self.turn_ended.wait_interruptible(&mut turns) {
                return Err(ERESTARTSYS);
            }
        }
        Ok(())
    }

    /// Waits for the fences because of which [`Self::with_valid`] has returned `EAGAIN`. The caller
    /// must hold no lock, because they may be of other devices.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal arrived.
    pub(crate) fn await_others(&self) -> Result {
        let fences = mem::take(&mut *self.foreign.lock());

        fences.iter().try_for_each(|fence| fence.wait(true))
    }

    /// Returns whether [`Self::await_others`] has something to wait for.
    pub(crate) fn has_others(&self) -> bool {
        !self.foreign.lock().is_empty()
    }

    /// Maps a part of an object, which is inside of it. Returns false, and changes nothing, if jobs
    /// may use a mapping that it replaces, see [`Self::await_jobs`].
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if it would need too many page tables.
    /// - `ENODEV` if the driver is not bound any more.
    /// - `ERESTARTSYS` if a signal arrived, `ENOMEM` if memory runs out.
    pub(crate) fn map(
        &self,
        dev: &Device<Registered>,
        parent: &Dev<device::Bound>,
        object: &Bo,
        offset: u64,
        va: &Range<u64>,
    ) -> Result<bool> {
        let mut mappings = self.mappings.lock();
        let mut undo = self.table.freed(va)?;

        self.table.prepare(parent, va)?;
        let ret = self
            .gpuvm
            .obtain(object, self.table.clone())
            .map_err(Error::from)
            .and_then(|vm_bo| {
                self.change(dev, va, |locked, change| {
                    if locked.object(object).is_none() {
                        return Err(EINVAL);
                    }
                    mappings.sm_map(OpMapRequest {
                        addr: va.start,
                        range: va.end - va.start,
                        gem_offset: offset,
                        vm_bo: &vm_bo,
                        context: change,
                    })?;
                    // Cannot fail, because the object is locked.
                    let _ = locked.mark_evicted(&vm_bo);
                    Ok(())
                })
            });
        if ret != Ok(true) {
            self.table.release(va, &mut undo);
            self.table.free(undo, self.table.invalidate(va));
        }
        self.clean_up();
        ret
    }

    /// Unmaps addresses, whether something is mapped there or not. Returns false as [`Self::map`].
    ///
    /// # Errors
    ///
    /// The errors of [`Self::map`].
    pub(crate) fn unmap(&self, dev: &Device<Registered>, va: &Range<u64>) -> Result<bool> {
        let mut mappings = self.mappings.lock();

        let ret = self.change(dev, va, |_locked, change| {
            mappings.sm_unmap(va.start, va.end - va.start, change)
        });
        self.clean_up();
        ret
    }

    /// Drops references to objects that are not mapped any more. Called without reservations.
    pub(crate) fn clean_up(&self) {
        self.arriving.lock().retain(|object| object.matters());
        self.gpuvm.deferred_cleanup();
    }

    /// Changes mappings by `f`, which is called with the reservations held. If it fails, nothing
    /// has changed. Returns false if jobs are in the way.
    fn change(
        &self,
        dev: &Device<Registered>,
        va: &Range<u64>,
        mut f: impl FnMut(&mut LockedVm<'_, '_, Kind>, &mut Change) -> Result,
    ) -> Result<bool> {
        let mut change = Change::new(&self.table, va)?;
        let mut invalidated = Ok(());

        let ret = dev.ttm.exec(Flag::Interruptible, |ctx| {
            let mut locked = ctx.lock_vm(&self.gpuvm)?;

            // The reservations are held, so no job is queued meanwhile.
            change.is_idle = self.is_idle();
            change.is_refused = false;
            f(&mut locked, &mut change)?;
            // Before the unmapped objects can move. If the device does not complete this, it gets
            // no jobs any more.
            if change.has_cleared {
                invalidated = self.table.invalidate(va);
            }
            Ok(())
        });

        self.table.free(change.freed, invalidated);
        match ret {
            Err(_) if change.is_refused => Ok(false),
            ret => ret.map(|()| true),
        }
    }
}

#[pinned_drop]
impl PinnedDrop for AddressSpace {
    fn drop(self: Pin<&mut Self>) {
        // After this the device reaches no memory through the address space, so that the mappings
        // can be removed without the reservations of their objects.
        self.table.end();

        let mut change = Change {
            vas: KVec::new(),
            freed: Freed::none(),
            is_idle: true,
            has_cleared: false,
            is_refused: false,
        };
        if let Err(e) = self.mappings.lock().sm_unmap(0, SPACE, &mut change) {
            pr_err!("an address space is not empty: {:?}\n", e);
        }
        self.arriving.lock().clear();
        self.gpuvm.deferred_cleanup();
    }
}

/// Marks the mappings of an object, which leaves its place, as evicted in all address spaces.
pub(crate) fn evicted(object: &Held<'_, Bo>) {
    object.mark_mappings_evicted();
}

/// Clears and invalidates all page table entries of an object, in all address spaces.
pub(crate) fn zap(object: &Held<'_, Bo>) {
    object.for_each_vm::<Kind>(|mapped| {
        let table = mapped.data();
        let mut cleared = None;

        for range in mapped.ranges() {
            table.clear(&range.va);
            extend(&mut cleared, &range.va);
        }
        if let Some(cleared) = &cleared {
            // If the device does not complete this, it gets no jobs any more.
            let _ = table.invalidate(cleared);
        }
    });
}

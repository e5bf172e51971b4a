// SPDX-License-Identifier: GPL-2.0

//! Address spaces: the mappings of objects at virtual addresses and the page tables for the device.
//!
//! A map only records the mapping and allocates page tables. The [`Rounds`] of the address space
//! write the entries before the next job. They also invalidate them, because the device may have
//! cached the absence of a mapping. An unmap waits for the jobs of the address space. It clears
//! entries and invalidates them before the object can move.
//!
//! # Lifetimes
//!
//! A file and each unfinished job hold references to an address space. Both may outlive the binding
//! of the driver, so an address space has no data of the bound driver except its [`PageTable`].
//! This ends when the driver is unbound.
//!
//! # Locking
//!
//! From the outside to the inside: the mutex of the mappings, which serializes all changes of them;
//! the reservations of the address space and of its external objects; the `gpuva.lock` of an
//! object; the mutex of the page tables. The mutexes of [`Rounds`] are taken with reservations
//! held.

mod change;

use self::change::Change;

use core::ops::Range;

use kernel::{
    device::{
        self,
        Device as Dev, //
    },
    drm::{
        exec::Flag,
        gem::{
            LockedObject,
            SharedResv, //
        },
        gpuvm::{
            extend_range,
            GpuVm,
            LockedVm,
            OpMapRequest,
            Rounds,
            Tables,
            UniqueRefGpuVm, //
        },
        Registered, //
    },
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
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
    /// The waits of jobs and of changes of mappings.
    #[pin]
    rounds: Rounds<Kind>,
    /// Taken in the path to the signal of a fence. Nothing is taken inside of it.
    #[pin]
    failures: Mutex<Failures>,
}

/// The faults and hangs of the jobs of an address space.
#[derive(Clone, Copy, Default)]
pub(crate) struct Failures {
    pub(crate) faults: u64,
    /// The last fault.
    pub(crate) last: Fault,
    pub(crate) hangs: u64,
}

impl AddressSpace {
    /// Creates an address space without mappings.
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
            try_pin_init!(Self {
                table,
                resv,
                gpuvm: ARef::from(&*unique),
                mappings <- new_mutex!(unique, "mgpu::AddressSpace::mappings"),
                rounds <- Rounds::new(),
                failures <- new_mutex!(Failures::default(), "mgpu::AddressSpace::failures"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the reservation shared by the private objects.
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

    /// Notes a fault or a hang of a job.
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

    /// Returns the faults and hangs of its jobs so far.
    pub(crate) fn failures(&self) -> Failures {
        *self.failures.lock()
    }

    /// Returns the waits of jobs and of changes of mappings.
    pub(crate) fn rounds(&self) -> &Rounds<Kind> {
        &self.rounds
    }

    /// Returns whether nothing is mapped at the addresses `va`.
    pub(crate) fn is_unmapped(&self, va: &Range<u64>) -> bool {
        self.mappings.lock().is_unmapped(va)
    }

    /// Maps a part of an object. The part must be inside of it. If jobs may use a replaced mapping,
    /// this returns false and changes nothing, see [`Rounds::change`].
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if the mapping would need too many page tables.
    /// - `ENODEV` if the driver is not bound any more.
    /// - `ERESTARTSYS` if a signal arrived and `ENOMEM` if memory runs out.
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
                    // Cannot fail because the object is locked.
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

    /// Unmaps addresses with or without a mapping. Returns false like [`Self::map`].
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

    /// Drops references to objects not mapped any more. Called without reservations.
    pub(crate) fn clean_up(&self) {
        self.rounds.clean_up();
        self.gpuvm.deferred_cleanup();
    }

    /// Changes mappings by `f` with the reservations held. If it fails, nothing has changed.
    /// Returns false if jobs are in the way.
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
            change.is_idle = self.rounds.is_idle();
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
        // After this the device reaches no memory through the address space, so the mappings can be
        // removed without the reservations of their objects.
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
        self.rounds.clear();
        self.gpuvm.deferred_cleanup();
    }
}

/// Marks the mappings of a moving object as evicted in all address spaces.
pub(crate) fn evicted(object: &LockedObject<'_, Bo>) {
    object.mark_mappings_evicted();
}

/// Clears and invalidates all page table entries of an object in all address spaces.
pub(crate) fn zap(object: &LockedObject<'_, Bo>) {
    object.for_each_vm::<Kind>(|mapped| {
        let table = mapped.data();
        let mut cleared = None;

        for range in mapped.ranges() {
            table.clear(&range.va);
            extend_range(&mut cleared, &range.va);
        }
        if let Some(cleared) = &cleared {
            // If the device does not complete this, it gets no jobs any more.
            let _ = table.invalidate(cleared);
        }
    });
}

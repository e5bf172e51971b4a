// SPDX-License-Identifier: GPL-2.0

//! Address spaces: the mappings of objects at virtual addresses, and the page tables for the
//! device.
//!
//! A map only records the mapping, and allocates page tables. [`AddressSpace::bring`] writes the
//! entries before the next job of the address space, which has to validate all objects anyway: a
//! new mapping is handled like one whose object was evicted.
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
    dma_resv::{
        LockedResv,
        Usage, //
    },
    drm::{
        exec::Flag,
        gem::{
            Held,
            SharedResv, //
        },
        gpuvm::{
            evictable,
            DriverGpuVm,
            Evictable,
            GpuVa,
            GpuVaAlloc,
            GpuVm,
            GpuVmBo,
            LockedVm,
            OpMap,
            OpMapRequest,
            OpMapped,
            OpRemap,
            OpRemapped,
            OpUnmap,
            OpUnmapped,
            UniqueRefGpuVm,
            ValidVm, //
        },
        ttm::{
            Arrival,
            OpCtx,
            Place, //
        },
        vram::{
            Domain,
            MemType, //
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
    pagetable::{
        Freed,
        PageTable,
        SPACE, //
    }, //
};

/// How many mappings a change makes at most: the new one, and two for each of the mappings that it
/// cuts at its ends.
const MAPPINGS: usize = 5;

/// The type of the address spaces for GPUVM.
pub(crate) struct Kind;

/// A change of mappings.
pub(crate) struct Change {
    /// Memory for new mappings.
    vas: KVec<GpuVaAlloc<Kind>>,
    /// Tables that are not needed any more.
    freed: Freed,
    /// No job of the address space is under way.
    is_idle: bool,
    /// Something was unmapped.
    has_cleared: bool,
}

impl Change {
    fn new(table: &PageTable, va: &Range<u64>) -> Result<Self> {
        let mut vas = KVec::with_capacity(MAPPINGS, GFP_KERNEL)?;

        for _ in 0..MAPPINGS {
            // Charged to the memory cgroup of the caller, who can map an object many times.
            vas.push(GpuVaAlloc::new(GFP_KERNEL_ACCOUNT)?, GFP_KERNEL)?;
        }
        Ok(Self {
            vas,
            freed: table.freed(va)?,
            is_idle: false,
            has_cleared: false,
        })
    }

    /// Clears the entries of a part of a mapping.
    ///
    /// Returns `EAGAIN` if jobs may use it. If so, the first call of a change returns it, so that
    /// nothing has changed.
    fn clear(&mut self, mapping: &GpuVa<Kind>, va: &Range<u64>) -> Result {
        if !self.is_idle {
            return Err(EAGAIN);
        }

        mapping.vm_bo().data().clear(va);
        self.has_cleared = true;
        Ok(())
    }
}

impl DriverGpuVm for Kind {
    type Driver = Driver;
    type Object = Bo;
    type VaData = ();
    type VmBoData = Arc<PageTable>;
    type SmContext<'ctx> = Change;

    const EVICTABLE: Evictable<Self> = evictable();

    fn sm_step_map<'op>(
        &mut self,
        op: OpMap<'op, Self>,
        change: &mut Change,
    ) -> Result<OpMapped<'op, Self>> {
        Ok(op.insert(change.vas.pop().ok_or(ENOMEM)?, ()))
    }

    fn sm_step_unmap<'op>(
        &mut self,
        op: OpUnmap<'op, Self>,
        change: &mut Change,
    ) -> Result<OpUnmapped<'op, Self>> {
        let mapping = op.va();
        let va = mapping.range();

        change.clear(mapping, &va)?;
        mapping.vm_bo().data().release(&va, &mut change.freed);
        Ok(op.remove().0)
    }

    fn sm_step_remap<'op>(
        &mut self,
        op: OpRemap<'op, Self>,
        change: &mut Change,
    ) -> Result<OpRemapped<'op, Self>> {
        let mapping = op.va_to_unmap();
        let va = mapping.range();
        let start = op
            .prev()
            .map_or(va.start, |left| left.addr() + left.length());
        let end = op.next().map_or(va.end, |left| left.addr());

        change.clear(mapping, &(start..end))?;
        let (Some(first), Some(second)) = (change.vas.pop(), change.vas.pop()) else {
            return Err(ENOMEM);
        };

        let table = mapping.vm_bo().data();
        if start > va.start {
            table.share(&(va.start..start));
        }
        if end < va.end {
            table.share(&(end..va.end));
        }
        table.release(&va, &mut change.freed);

        let (remapped, rest) = op.remap([first, second], (), ());
        if let Some(unused) = rest.unused_va {
            // There is room, because it was taken from there.
            let _ = change.vas.push_within_capacity(unused);
        }
        Ok(remapped)
    }
}

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
}

/// The turn of a task that changes mappings, see [`AddressSpace::turn`].
pub(crate) struct Turn<'a>(&'a AddressSpace);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.turns.lock() -= 1;
        self.0.turn_ended.notify_all();
    }
}

/// An object whose content is on its way.
struct Arriving {
    vm_bo: ARef<GpuVmBo<Kind>>,
    content: Arrival,
}

impl Arriving {
    /// Returns whether the content matters: it may be lost, or is, and the object is mapped.
    fn matters(&self) -> bool {
        let mut is_mapped = false;

        self.vm_bo.for_each_range(|_| is_mapped = true);
        is_mapped && (self.content.is_pending() || self.content.is_lost())
    }
}

/// A round over the evicted objects of an address space, before a job of it is queued.
pub(crate) struct Round<'a> {
    /// No job of the address space is under way.
    is_idle: bool,
    /// There was no room in VRAM for an object; then no further object is moved there, because TTM
    /// may have met a lock that it must not wait for, after which it takes no other lock.
    full: bool,
    /// The moves that bring the content of `left`, but for imports; [`None`] if the round waits for
    /// them itself.
    moves: Option<&'a mut KVVec<ARef<Fence>>>,
    /// `moves` has those of the private objects, which share a reservation.
    has_private: bool,
    /// What `left` waits for that may be of any device.
    foreign: KVVec<ARef<Fence>>,
    /// Objects whose entries were not written.
    left: KVVec<ARef<GpuVmBo<Kind>>>,
}

impl Round<'_> {
    /// Takes note of all work on an object, to be waited for before the next round.
    fn note_others(&mut self, resv: &mut LockedResv<'_>) -> Result {
        for fence in resv.fences(Usage::Bookkeep) {
            self.foreign.push(fence.into(), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(())
    }

    /// Decides whether to leave an object, for whose moves or other work the round has to be
    /// repeated, and takes note of what has to be waited for.
    ///
    /// # Errors
    ///
    /// The errors of [`Held::placed`].
    fn leaves(
        &mut self,
        private: &SharedResv<Driver>,
        dev: &Device<Registered>,
        object: &mut Held<'_, Bo>,
        ctx: &mut OpCtx,
    ) -> Result<bool> {
        let import = object.object().as_import();

        if import.is_some_and(|import| import.is_in_use(&mut object.resv())) {
            self.note_others(&mut object.resv())?;
            return Ok(true);
        }
        if import.is_some() {
            // The exporter may move the buffer for that.
            object.placed(dev, ctx)?;
        }

        let resv = object.resv();
        if self.is_idle || resv.resv().test_signaled(Usage::Kernel) {
            return Ok(false);
        }
        let is_private = resv.is_for(private.resv());
        let fences = match &mut self.moves {
            _ if import.is_some() => &mut self.foreign,
            Some(moves) => &mut **moves,
            None => {
                // Moves wait for other devices before they begin, so this one depends on the
                // engine alone.
                resv.resv().wait(Usage::Kernel, true)?;
                return Ok(false);
            }
        };
        if !(is_private && self.has_private) {
            for fence in resv.fences(Usage::Kernel) {
                fences.push(fence.into(), GFP_KERNEL_ACCOUNT)?;
            }
        }
        self.has_private |= is_private;
        Ok(true)
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
    pub(crate) fn table(&self) -> &PageTable {
        &self.table
    }

    /// Sets the fence of the last job. Called with the reservations held.
    pub(crate) fn set_last(&self, fence: &Fence) {
        let before = self.last.lock().replace(fence.into());

        drop(before);
    }

    /// Returns whether all jobs have ended.
    pub(crate) fn is_idle(&self) -> bool {
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

    /// Maps a part of an object, which is inside of it.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if it would need too many page tables.
    /// - `EAGAIN` if jobs may use a mapping that it replaces, see [`Self::await_jobs`].
    /// - `ENODEV` if the driver is not bound any more.
    /// - `ERESTARTSYS` if a signal arrived, `ENOMEM` if memory runs out.
    pub(crate) fn map(
        &self,
        dev: &Device<Registered>,
        parent: &Dev<device::Bound>,
        object: &Bo,
        offset: u64,
        va: &Range<u64>,
    ) -> Result {
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
        if ret.is_err() {
            self.table.release(va, &mut undo);
            self.table.free(undo, self.table.invalidate(va));
        }
        self.clean_up();
        ret
    }

    /// Unmaps addresses, whether something is mapped there or not.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::map`].
    pub(crate) fn unmap(&self, dev: &Device<Registered>, va: &Range<u64>) -> Result {
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
    /// has changed.
    fn change(
        &self,
        dev: &Device<Registered>,
        va: &Range<u64>,
        mut f: impl FnMut(&mut LockedVm<'_, '_, Kind>, &mut Change) -> Result,
    ) -> Result {
        let mut change = Change::new(&self.table, va)?;
        let mut invalidated = Ok(());

        let ret = dev.ttm.exec(Flag::Interruptible, |ctx| {
            let mut locked = ctx.lock_vm(&self.gpuvm)?;

            // The reservations are held, so no job is queued meanwhile.
            change.is_idle = self.is_idle();
            f(&mut locked, &mut change)?;
            // Before the unmapped objects can move. If the device does not complete this, it gets
            // no jobs any more.
            if change.has_cleared {
                invalidated = self.table.invalidate(va);
            }
            Ok(())
        });

        self.table.free(change.freed, invalidated);
        ret
    }

    /// Validates all objects, and writes the page table entries of those that were evicted. Then
    /// calls `f`, which can queue a job, with the content that is on its way, without which the job
    /// must not begin.
    ///
    /// New entries are used at once by jobs that are under way, which do not depend on the moves of
    /// the objects. So the moves have to be done before the entries are written. If there are such
    /// moves, they are added to `moves`, if that is given, and the caller has to wait for them
    /// without locks, and to try again. Moves of imports, work that may use an old mapping of an
    /// import, and work of others on an object that can be swapped out, are waited for by
    /// [`Self::await_others`].
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if there is something to wait for. If `moves` is empty then, the ioctl has to be
    ///   repeated.
    /// - `EIO` if an object has lost its content, or the device may reach memory of other objects.
    /// - The errors of [`Held::validate`] and [`Held::placed`], and `ENODEV`.
    /// - What `f` returns.
    pub(crate) fn with_valid<R>(
        &self,
        dev: &Device<Registered>,
        locked: &mut LockedVm<'_, '_, Kind>,
        moves: Option<&mut KVVec<ARef<Fence>>>,
        f: impl FnOnce(ValidVm<'_, Kind>, KVVec<Arrival>) -> Result<R>,
    ) -> Result<R> {
        // The reservations are held, so no job is queued meanwhile.
        let mut round = Round {
            is_idle: self.is_idle(),
            full: false,
            moves,
            has_private: false,
            foreign: KVVec::new(),
            left: KVVec::new(),
        };

        self.arriving.lock().retain(|object| {
            let (matters, is_lost) = (object.matters(), object.content.is_lost());

            if matters && is_lost {
                // So that it is validated below, which fails. Cannot fail, because the object is
                // locked.
                let _ = locked.mark_evicted(&object.vm_bo);
            }
            matters && !is_lost
        });
        match locked.validate(|vm_bo, object| self.bring(dev, vm_bo, object, &mut round)) {
            Ok(valid) if round.left.is_empty() => {
                if self.table.is_broken() {
                    return Err(EIO);
                }
                f(valid, self.contents()?)
            }
            ret => {
                let error = ret.err();

                for vm_bo in &round.left {
                    // Cannot fail, because the object is locked.
                    let _ = locked.mark_evicted(vm_bo);
                }
                // Only if that is all, the round is worth being repeated at once.
                if error.is_some() || !round.foreign.is_empty() {
                    if let Some(moves) = round.moves {
                        moves.clear();
                    }
                }
                if !round.foreign.is_empty() {
                    // The fences that another call has left are those of the same objects.
                    let before = mem::replace(&mut *self.foreign.lock(), round.foreign);

                    drop(before);
                }
                Err(error.unwrap_or(EAGAIN))
            }
        }
    }

    /// Returns the content that is on its way.
    fn contents(&self) -> Result<KVVec<Arrival>> {
        let arriving = self.arriving.lock();
        let mut contents = KVVec::with_capacity(arriving.len(), GFP_KERNEL_ACCOUNT)?;

        for object in arriving.iter() {
            contents.push_within_capacity(object.content.clone())?;
        }
        Ok(contents)
    }

    /// Validates an object, so that the device reaches it, and writes the page table entries of its
    /// mappings, unless the round leaves it.
    ///
    /// An object that may be placed in VRAM is moved there, and other objects are evicted for that.
    /// If there is no room, it is used in system memory.
    ///
    /// # Errors
    ///
    /// The errors of [`Held::validate`] and [`Held::placed`], and `ENODEV`.
    fn bring(
        &self,
        dev: &Device<Registered>,
        vm_bo: &GpuVmBo<Kind>,
        object: &mut Held<'_, Bo>,
        round: &mut Round<'_>,
    ) -> Result {
        let mut ctx = OpCtx::interruptible();

        let is_import = object.object().as_import().is_some();

        // To bring it back from where it can be swapped out would have to wait for others. (An import
        // has no memory here.)
        if !is_import && object.mem_type() == Some(MemType::System) && object.would_wait() {
            round.note_others(&mut object.resv())?;
            return Ok(round.left.push(vm_bo.into(), GFP_KERNEL)?);
        }
        // The device reaches a pinned object where it is.
        if !is_import && !object.is_pinned() {
            let domain = object.data().domain;

            let is_in_vram = |object: &Held<'_, Bo>| object.mem_type() == Some(MemType::Vram);

            // In system memory it is reached as well, which is better than to wait for others.
            let stays = object.mem_type() == Some(MemType::Tt) && object.would_wait();

            if domain == Domain::Either && !is_in_vram(object) && !round.full && !stays {
                match object.validate(&[Place::VRAM.without_waits()], &mut ctx) {
                    Err(e) if e == ENOSPC => round.full = true,
                    ret => ret?,
                }
            }
            match domain {
                Domain::Either if is_in_vram(object) => object.touch(),
                Domain::Either => object.validate(&[Place::TT], &mut ctx)?,
                // An object that stays in VRAM evicts no other one.
                Domain::Vram | Domain::System => object.validate(&domain.places(), &mut ctx)?,
            }
        }
        if round.leaves(&self.resv, dev, object, &mut ctx)? {
            return Ok(round.left.push(vm_bo.into(), GFP_KERNEL)?);
        }
        self.show(dev, vm_bo, object, &mut ctx)
    }

    /// Writes the page table entries of the mappings of an object.
    fn show(
        &self,
        dev: &Device<Registered>,
        vm_bo: &GpuVmBo<Kind>,
        object: &mut Held<'_, Bo>,
        ctx: &mut OpCtx,
    ) -> Result {
        if let Some(content) = object.arrival() {
            let mut arriving = self.arriving.lock();

            if !arriving.iter().any(|known| *known.vm_bo == *vm_bo) {
                let vm_bo = vm_bo.into();

                arriving.push(Arriving { vm_bo, content }, GFP_KERNEL_ACCOUNT)?;
            }
        }
        let placed = object.placed(dev, ctx)?;
        let mut ret = Ok(());
        vm_bo.for_each_range(|range| {
            if ret.is_ok() {
                ret = self.table.write(&range, &placed);
            }
        });
        ret
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
        let (mut start, mut end) = (u64::MAX, 0);

        for range in mapped.ranges() {
            table.clear(&range.va);
            start = start.min(range.va.start);
            end = end.max(range.va.end);
        }
        if start < end {
            // If the device does not complete this, it gets no jobs any more.
            let _ = table.invalidate(&(start..end));
        }
    });
}

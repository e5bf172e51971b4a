// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The use of an address space by jobs for objects of [`gem::ttm`](crate::drm::gem::ttm).
//!
//! A job may access all mappings of its VM. [`Rounds::with_valid`] moves evicted objects to where
//! the device reaches them. It has the driver write their page table entries by [`Tables`]. A new
//! mapping is handled like one of an evicted object. So a map only records the mapping.
//!
//! A round holds all reservations. It does not wait for work depending on other devices. It leaves
//! the object instead. The ioctl then waits without locks, outside of the section awaited by an
//! unplug, and begins a new round. [`Rounds::submit`] is that loop. [`Rounds::change`] is the loop
//! of a change of mappings: entries are cleared before the object can move, so the jobs of the
//! address space have to be done before. If other tasks queue jobs all the time, the change gets a
//! [`Turn`] and no more jobs are queued meanwhile.
//!
//! # Locking
//!
//! All mutexes here are taken with reservations held or without any lock. Inside them only a
//! `gpuva.lock` is taken.

use super::{
    DriverGpuVm,
    GpuVmBo,
    LockedVm,
    MappedRange,
    ValidVm, //
};
use crate::{
    dma_buf::fence::Fence,
    dma_resv::{
        LockedResv,
        Usage, //
    },
    drm::{
        self,
        gem::{
            ttm::{
                Object,
                Placed,
                TtmObject, //
            },
            LockedObject,
            SharedResv, //
        },
        ttm::{
            Arrival,
            OpCtx,
            Place,
            Victims, //
        },
        vram::{
            Domain,
            MemType, //
        },
        Registered, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        CondVar,
        Mutex, //
    }, //
};
use core::{
    mem,
    ops::Range, //
};

/// How often queueing a job with pending moves is tried before it waits with locks held. Other
/// tasks may move objects again and again.
const PATIENCE: u32 = 4;

/// The page tables of an address space.
pub trait Tables {
    /// Writes the entries of a mapping with the addresses of its object.
    ///
    /// Called with the reservations of the VM held. Allocates no memory.
    ///
    /// # Errors
    ///
    /// `ENODEV` after the driver was unbound. Also returns the errors of [`Placed::page`].
    fn write(&self, range: &MappedRange, placed: &Placed<'_>) -> Result;

    /// Invalidates the device's cached entries of addresses. Sleeps.
    ///
    /// # Errors
    ///
    /// If the device does not answer. Then [`Self::holds_jobs`] returns true.
    fn invalidate(&self, va: &Range<u64>) -> Result;

    /// Returns whether no job may begin because the device may use old entries.
    fn holds_jobs(&self) -> bool;
}

/// Extends `all` to the addresses `va` and those between them.
pub fn extend_range(all: &mut Option<Range<u64>>, va: &Range<u64>) {
    let all = all.get_or_insert_with(|| va.clone());

    all.start = all.start.min(va.start);
    all.end = all.end.max(va.end);
}

/// An object with content still arriving.
struct Arriving<V: DriverGpuVm> {
    vm_bo: ARef<GpuVmBo<V>>,
    content: Arrival,
}

impl<V: DriverGpuVm> Arriving<V> {
    /// Returns whether the content matters: the object is mapped and the content may be lost or is.
    fn matters(&self) -> bool {
        let mut is_mapped = false;

        self.vm_bo.for_each_range(|_| is_mapped = true);
        is_mapped && (self.content.is_pending() || self.content.is_lost())
    }
}

/// The fences and turns awaited by jobs and changes of mappings.
#[pin_data]
struct Waits {
    /// The fence of the last job. It is behind all others.
    #[pin]
    last: Mutex<Option<ARef<Fence>>>,
    /// Fences of any device to wait for before the next job is queued.
    #[pin]
    foreign: Mutex<KVVec<ARef<Fence>>>,
    /// How many tasks have a turn.
    #[pin]
    turns: Mutex<usize>,
    #[pin]
    turn_ended: CondVar,
}

impl Waits {
    // Neither generic nor inlined, so that the lock classes and their names stay in the kernel
    // crate.
    #[inline(never)]
    fn new() -> Result<Pin<KBox<Self>>> {
        KBox::pin_init(
            pin_init!(Self {
                last <- crate::new_mutex!(None, "gpuvm::Rounds::last"),
                foreign <- crate::new_mutex!(KVVec::new(), "gpuvm::Rounds::foreign"),
                turns <- crate::new_mutex!(0, "gpuvm::Rounds::turns"),
                turn_ended <- crate::new_condvar!("gpuvm::Rounds::turn_ended"),
            }),
            GFP_KERNEL,
        )
    }
}

/// The dependencies of the next job of an address space and of the next change of its mappings.
#[pin_data]
pub struct Rounds<V: DriverGpuVm> {
    waits: Pin<KBox<Waits>>,
    /// Objects with entries written before their content has arrived.
    #[pin]
    arriving: Mutex<KVVec<Arriving<V>>>,
}

/// Returns the name of the lock class of [`Rounds::arriving`]. Not inlined, so that the name stays
/// in the kernel crate.
#[inline(never)]
fn arriving_name() -> &'static CStr {
    c"gpuvm::Rounds::arriving"
}

/// The turn of a task changing mappings. Until it ends, no job is queued except for those about to
/// be queued.
struct Turn<'a, V: DriverGpuVm>(&'a Rounds<V>);

impl<V: DriverGpuVm> Drop for Turn<'_, V> {
    fn drop(&mut self) {
        *self.0.waits.turns.lock() -= 1;
        self.0.waits.turn_ended.notify_all();
    }
}

impl<V: DriverGpuVm> Rounds<V> {
    /// Creates the state of an address space without jobs.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            waits: Waits::new()?,
            arriving <- Mutex::new(KVVec::new(), arriving_name(), crate::sync::static_lock_class!()),
        })
    }

    /// Sets the fence of the last job. Called with the reservations held.
    pub fn set_last(&self, fence: &Fence) {
        let before = self.waits.last.lock().replace(fence.into());

        drop(before);
    }

    /// Returns whether all jobs have ended. If the reservations are held, none is queued meanwhile.
    pub fn is_idle(&self) -> bool {
        self.waits
            .last
            .lock()
            .as_ref()
            .is_none_or(|fence| fence.is_signaled())
    }

    /// Waits for all jobs queued before.
    fn await_jobs(&self) -> Result {
        let last = self.waits.last.lock().clone();

        last.map_or(Ok(()), |fence| fence.wait(true))
    }

    fn turn(&self) -> Turn<'_, V> {
        *self.waits.turns.lock() += 1;
        Turn(self)
    }

    fn has_turns(&self) -> bool {
        *self.waits.turns.lock() != 0
    }

    /// Waits until no task has a turn.
    fn await_turns(&self) -> Result {
        let mut turns = self.waits.turns.lock();

        while *turns != 0 {
            if self.waits.turn_ended.wait_interruptible(&mut turns) {
                return Err(ERESTARTSYS);
            }
        }
        Ok(())
    }

    /// Waits for the fences of others after [`Self::with_valid`] has returned `EAGAIN` because of
    /// them.
    fn await_others(&self) -> Result {
        let fences = mem::take(&mut *self.waits.foreign.lock());

        fences.iter().try_for_each(|fence| fence.wait(true))
    }

    fn has_others(&self) -> bool {
        !self.waits.foreign.lock().is_empty()
    }

    /// Drops references to unmapped objects and to objects whose content has arrived. Called
    /// without reservations after a round and before
    /// [`deferred_cleanup`](super::GpuVm::deferred_cleanup).
    pub fn clean_up(&self) {
        self.arriving.lock().retain(|object| object.matters());
    }

    /// Drops all references to objects. For the end of an address space, when nothing is mapped.
    pub fn clear(&self) {
        let all = mem::take(&mut *self.arriving.lock());

        drop(all);
    }

    /// Changes mappings by `try_change`. It returns false and changes nothing if jobs may use a
    /// mapping to be replaced. It replaces mappings only if [`Self::is_idle`] with the reservations
    /// held. `is_unmapped` returns whether the range is unmapped.
    ///
    /// For an ioctl outside of the section awaited by an unplug: it waits for jobs and these may
    /// depend on other devices. No lock may be held. `try_change` enters the section.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal arrived. Also returns the errors of `try_change`.
    pub fn change(
        &self,
        is_unmapped: impl Fn() -> bool,
        mut try_change: impl FnMut() -> Result<bool>,
    ) -> Result {
        let mut turn = None;

        loop {
            if turn.is_some() || !is_unmapped() {
                self.await_jobs()?;
            }
            if try_change()? {
                return Ok(());
            }
            if current!().signal_pending() {
                return Err(ERESTARTSYS);
            }
            // A client queueing jobs all the time must not hold this up for ever.
            turn.get_or_insert_with(|| self.turn());
        }
    }

    /// Queues a job by `try_submit`. It runs a round of [`Self::with_valid`].
    ///
    /// `permit` waits for a free slot in the queue. Its result is passed to `try_submit`. So is the
    /// list for the moves of the round as long as `try_submit` may return [`None`] to be retried at
    /// once.
    ///
    /// For an ioctl outside of the section awaited by an unplug: this waits for a slot, for moves
    /// and for other devices. No lock may be held. `try_submit` enters the section.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal arrived. Also returns the errors of `permit` and `try_submit`.
    pub fn submit<P, R>(
        &self,
        permit: impl Fn() -> Result<P>,
        mut try_submit: impl FnMut(P, Option<&mut KVVec<ARef<Fence>>>) -> Result<Option<R>>,
    ) -> Result<R> {
        let mut attempts = 0;

        loop {
            if current!().signal_pending() {
                return Err(ERESTARTSYS);
            }
            self.await_turns()?;
            self.await_others()?;
            // The permit is not kept during other waits. After waiting for it, a task gives way to
            // the owner of a new turn.
            let permit = permit()?;
            if self.has_turns() {
                continue;
            }

            let mut moves = KVVec::new();
            let is_patient = attempts < PATIENCE;
            match try_submit(permit, is_patient.then_some(&mut moves)) {
                Ok(Some(submitted)) => return Ok(submitted),
                Ok(None) if is_patient => (),
                Ok(None) => return Err(EAGAIN),
                Err(e) if e == EAGAIN && (!moves.is_empty() || self.has_others()) => (),
                Err(e) => return Err(e),
            }
            for fence in &moves {
                fence.wait(true)?;
            }
            attempts += 1;
        }
    }
}

impl<V, T> Rounds<V>
where
    V: DriverGpuVm<Driver = T::Driver, Object = Object<T>>,
    T: TtmObject,
{
    /// Validates all objects and has `tables` write the entries of the evicted ones. Then calls
    /// `f`, which can queue a job, with the content still arriving. The job must not begin before
    /// this content has arrived. `private` is the reservation of the VM.
    ///
    /// Jobs under way use new entries at once and do not depend on the moves of the objects. So the
    /// moves have to be done before the entries are written. If `moves` is given, such moves are
    /// added to it. The caller has to wait for them without locks and try again. [`Self::submit`]
    /// waits for moves of imports, for work on an old mapping of an import and for work of others
    /// on a swappable object.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if there is something to wait for. If `moves` is empty then, the ioctl has to be
    ///   repeated.
    /// - `EIO` if an object has lost its content or the device may reach memory of other objects.
    /// - `ENODEV` and the errors of [`LockedObject::validate`] and [`LockedObject::placed`].
    /// - The errors of `f`.
    pub fn with_valid<R>(
        &self,
        dev: &drm::Device<T::Driver, Registered>,
        private: &SharedResv<T::Driver>,
        locked: &mut LockedVm<'_, '_, V>,
        tables: &impl Tables,
        moves: Option<&mut KVVec<ARef<Fence>>>,
        f: impl FnOnce(ValidVm<'_, V>, KVVec<Arrival>) -> Result<R>,
    ) -> Result<R> {
        let mut round = Round {
            rounds: self,
            dev,
            private,
            tables,
            // The reservations are held, so no job is queued meanwhile.
            is_idle: self.is_idle(),
            full: false,
            moves,
            has_private: false,
            foreign: KVVec::new(),
            left: KVVec::new(),
            written: None,
        };

        self.arriving.lock().retain(|object| {
            let (matters, is_lost) = (object.matters(), object.content.is_lost());

            if matters && is_lost {
                // So that validation fails below. Cannot fail, because the object is locked.
                let _ = locked.mark_evicted(&object.vm_bo);
            }
            matters && !is_lost
        });
        let ret = locked.validate(|vm_bo, object| round.bring(vm_bo, object));
        // The device may have cached the absence of an entry.
        if let Some(written) = &round.written {
            let _ = tables.invalidate(written);
        }
        match ret {
            Ok(valid) if round.left.is_empty() => {
                if tables.holds_jobs() {
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
                // The round is only worth repeating at once if there is no error and no other work
                // to wait for.
                if error.is_some() || !round.foreign.is_empty() {
                    if let Some(moves) = round.moves {
                        moves.clear();
                    }
                }
                if !round.foreign.is_empty() {
                    // The fences left by another call are those of the same objects.
                    let before = mem::replace(&mut *self.waits.foreign.lock(), round.foreign);

                    drop(before);
                }
                Err(error.unwrap_or(EAGAIN))
            }
        }
    }

    /// Returns the content still arriving.
    fn contents(&self) -> Result<KVVec<Arrival>> {
        let arriving = self.arriving.lock();
        let mut contents = KVVec::with_capacity(arriving.len(), GFP_KERNEL_ACCOUNT)?;

        for object in arriving.iter() {
            contents.push_within_capacity(object.content.clone())?;
        }
        Ok(contents)
    }
}

/// A round over the evicted objects of an address space before one of its jobs is queued.
struct Round<'a, V: DriverGpuVm, P: Tables> {
    rounds: &'a Rounds<V>,
    dev: &'a drm::Device<V::Driver, Registered>,
    private: &'a SharedResv<V::Driver>,
    tables: &'a P,
    /// No job of the address space is under way.
    is_idle: bool,
    /// An object did not fit in VRAM. No further object is moved there: TTM may have met a lock it
    /// must not wait for. After that it takes no other lock.
    full: bool,
    /// The moves of the content of `left` except for imports. With [`None`] the round waits for
    /// them itself.
    moves: Option<&'a mut KVVec<ARef<Fence>>>,
    /// `moves` has those of the private objects. These share a reservation.
    has_private: bool,
    /// Fences of any device to wait for because of `left`.
    foreign: KVVec<ARef<Fence>>,
    /// Objects without written entries.
    left: KVVec<ARef<GpuVmBo<V>>>,
    /// The addresses of written entries and those between them.
    written: Option<Range<u64>>,
}

impl<V, T, P> Round<'_, V, P>
where
    V: DriverGpuVm<Driver = T::Driver, Object = Object<T>>,
    T: TtmObject,
    P: Tables,
{
    /// Records all work on an object to wait for before the next round.
    fn note_others(&mut self, resv: &mut LockedResv<'_>) -> Result {
        for fence in resv.fences(Usage::Bookkeep) {
            self.foreign.push(fence.into(), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(())
    }

    /// Decides whether the round has to be repeated for the moves of an object or other work on it.
    /// Then the object is left and the work to wait for is recorded.
    ///
    /// # Errors
    ///
    /// The errors of [`LockedObject::placed`].
    fn leaves(
        &mut self,
        object: &mut LockedObject<'_, Object<T>>,
        ctx: &mut OpCtx,
    ) -> Result<bool> {
        let import = object.object().as_import();

        if import.is_some_and(|import| import.is_in_use(&mut object.resv())) {
            self.note_others(&mut object.resv())?;
            return Ok(true);
        }
        if import.is_some() {
            // The exporter may move the buffer for that.
            object.placed(self.dev, ctx)?;
        }

        let resv = object.resv();
        if self.is_idle || resv.resv().test_signaled(Usage::Kernel) {
            return Ok(false);
        }
        let is_private = resv.is_for(self.private.resv());
        let fences = match &mut self.moves {
            _ if import.is_some() => &mut self.foreign,
            Some(moves) => &mut **moves,
            None => {
                // Moves wait for other devices before they begin, so this one depends on the device
                // alone.
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

    /// Validates an object for the device and writes the page table entries of its mappings. The
    /// round may leave the object instead.
    ///
    /// If an object may be placed in VRAM, it is moved there and other objects are evicted for
    /// that. If it does not fit, it is used in system memory.
    ///
    /// # Errors
    ///
    /// `ENODEV` and the errors of [`LockedObject::validate`] and [`LockedObject::placed`].
    fn bring(&mut self, vm_bo: &GpuVmBo<V>, object: &mut LockedObject<'_, Object<T>>) -> Result {
        let mut ctx = OpCtx::interruptible();

        let is_import = object.object().as_import().is_some();

        // Restoring it from swappable system memory would have to wait for others. (An import has
        // no memory here.)
        if !is_import && object.mem_type() == Some(MemType::System) && object.would_wait() {
            self.note_others(&mut object.resv())?;
            return Ok(self.left.push(vm_bo.into(), GFP_KERNEL)?);
        }
        // The device reaches a pinned object where it is.
        if !is_import && !object.is_pinned() {
            let domain = object.object().domain();

            let is_in_vram =
                |object: &LockedObject<'_, Object<T>>| object.mem_type() == Some(MemType::Vram);

            // The device also reaches it in system memory. This is better than to wait for others.
            let stays = object.mem_type() == Some(MemType::Tt) && object.would_wait();

            if domain == Domain::Either && !is_in_vram(object) && !self.full && !stays {
                match object.validate(&[Place::VRAM.evicting(Victims::Own)], &mut ctx) {
                    Err(e) if e == ENOSPC => self.full = true,
                    ret => ret?,
                }
            }
            match domain {
                Domain::Either if is_in_vram(object) => object.touch(),
                Domain::Either => object.validate(&[Place::TT], &mut ctx)?,
                // An object staying in VRAM evicts no other one.
                Domain::Vram | Domain::System => object.validate(&domain.places(), &mut ctx)?,
            }
        }
        if self.leaves(object, &mut ctx)? {
            return Ok(self.left.push(vm_bo.into(), GFP_KERNEL)?);
        }
        self.show(vm_bo, object, &mut ctx)
    }

    /// Writes the page table entries of the mappings of an object.
    fn show(
        &mut self,
        vm_bo: &GpuVmBo<V>,
        object: &mut LockedObject<'_, Object<T>>,
        ctx: &mut OpCtx,
    ) -> Result {
        if let Some(content) = object.arrival() {
            let mut arriving = self.rounds.arriving.lock();

            if !arriving.iter().any(|known| *known.vm_bo == *vm_bo) {
                let vm_bo = vm_bo.into();

                arriving.push(Arriving { vm_bo, content }, GFP_KERNEL_ACCOUNT)?;
            }
        }
        let placed = object.placed(self.dev, ctx)?;
        let mut ret = Ok(());
        vm_bo.for_each_range(|range| {
            if ret.is_ok() {
                extend_range(&mut self.written, &range.va);
                ret = self.tables.write(&range, &placed);
            }
        });
        ret
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The validation of an address space before a job: its objects are brought to where the device
//! reaches them, and their page table entries are written.
//!
//! A round does that for the objects that were evicted, with all reservations held. If some of them
//! have to be waited for, it leaves them, and the ioctl waits without locks and begins a new round.

use core::{
    mem,
    ops::Range, //
};

use kernel::{
    dma_buf::fence::Fence,
    dma_resv::{
        LockedResv,
        Usage, //
    },
    drm::{
        gem::{
            Held,
            SharedResv, //
        },
        gpuvm::{
            GpuVmBo,
            LockedVm,
            ValidVm, //
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
    sync::aref::ARef, //
};

use super::{
    AddressSpace,
    Kind, //
};
use crate::{
    card::{
        Device,
        Driver, //
    },
    gem::Bo,
    pagetable::extend, //
};

/// An object whose content is on its way.
pub(super) struct Arriving {
    vm_bo: ARef<GpuVmBo<Kind>>,
    content: Arrival,
}

impl Arriving {
    /// Returns whether the content matters: it may be lost, or is, and the object is mapped.
    pub(super) fn matters(&self) -> bool {
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
    /// The addresses whose entries were written, and those between them.
    written: Option<Range<u64>>,
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
                // device alone.
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
            written: None,
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
        let ret = locked.validate(|vm_bo, object| self.bring(dev, vm_bo, object, &mut round));
        // The device may have kept that there was nothing.
        if let Some(written) = &round.written {
            let _ = self.table.invalidate(written);
        }
        match ret {
            Ok(valid) if round.left.is_empty() => {
                if self.table.holds_jobs() {
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
                match object.validate(&[Place::VRAM.evicting(Victims::Own)], &mut ctx) {
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
        self.show(dev, vm_bo, object, &mut ctx, &mut round.written)
    }

    /// Writes the page table entries of the mappings of an object, and adds their addresses to
    /// `written`.
    fn show(
        &self,
        dev: &Device<Registered>,
        vm_bo: &GpuVmBo<Kind>,
        object: &mut Held<'_, Bo>,
        ctx: &mut OpCtx,
        written: &mut Option<Range<u64>>,
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
                extend(written, &range.va);
                ret = self.table.write(&range, &placed);
            }
        });
        ret
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Moves of the content of objects, at the request of TTM.
//!
//! Importers are notified before an object moves, and the move waits for the work that they have
//! started; it does not wait for the copy. See [`TtmObject`](super::TtmObject).
//!
//! # Locking
//!
//! TTM holds the reservation of the object, or of its ghost.
//!
//! C header: [`include/drm/ttm/ttm_device.h`](srctree/include/drm/ttm/ttm_device.h)

use super::{
    vram_manager::VramResource,
    Device,
    LockedObject,
    Object,
    TtmObject, //
};
use crate::{
    bindings,
    dma_buf::{
        exporter,
        fence::Fence, //
    },
    dma_resv::{
        DmaResv,
        Usage, //
    },
    drm::{
        devres::while_registered,
        gem::peer::trace,
        ttm::{
            Request,
            Side,
            Transfer,
            Victims,
            Work, //
        }, //
    },
    error::{
        from_result,
        to_result, //
    },
    pm::RuntimeGuard,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Relaxed, //
    },
    time::{
        msecs_to_jiffies,
        Msecs, //
    }, //
};
use core::ptr::NonNull;

/// How long a move waits for work that the engine cannot wait for, in milliseconds, as TTM does.
const PATIENCE: Msecs = 15_000;

/// Converts a resource of TTM to one side of a transfer.
///
/// # Safety
///
/// `bo` must be a reserved object of `ttm`, and `resource` be valid. If the resource is system
/// memory, the object must have its pages until no job needs them any more.
pub(super) unsafe fn side_of<T: TtmObject>(
    ttm: &Device<T>,
    bo: *mut bindings::ttm_buffer_object,
    resource: *mut bindings::ttm_resource,
) -> Result<Side> {
    // SAFETY: By the safety requirements.
    unsafe {
        if (*resource).mem_type == bindings::TTM_PL_VRAM {
            Ok(Side::Vram(
                VramResource::from_raw(resource).ranges().clone(),
            ))
        } else {
            let tt = NonNull::new((*bo).ttm).ok_or(EINVAL)?;

            Ok(Side::Pages(tt, ttm.table_of_pages((*bo).base.dev, tt)?))
        }
    }
}

/// # Safety
///
/// Called by TTM with an object of a device of `T`, possibly a ghost, and its destination resource.
/// The reservation of the object is held and has room for a fence.
pub(crate) unsafe extern "C" fn move_callback<T: TtmObject>(
    bo: *mut bindings::ttm_buffer_object,
    evict: bool,
    ctx: *mut bindings::ttm_operation_ctx,
    to: *mut bindings::ttm_resource,
    _hop: *mut bindings::ttm_place,
) -> c_int {
    // SAFETY: The object and the resource are valid.
    let (obj, to_type) = unsafe { (Object::<T>::from_bo(bo), (*to).mem_type) };
    // SAFETY: As promised by the caller.
    let ret = unsafe {
        // An imported buffer has no memory here; it gets a resource at its creation.
        if (*bo).type_ == bindings::ttm_bo_type_ttm_bo_type_sg {
            bindings::ttm_bo_move_null(bo, to);
            return 0;
        }
        move_object::<T>(bo, evict, ctx, to)
    };

    if let Some(obj) = obj {
        // Only moves change the value, and the reservation is held.
        let from_type = obj.last_placement.load(Relaxed);
        if ret.is_ok() {
            obj.last_placement.store(to_type, Relaxed);
            // SAFETY: The reservation is held.
            let seen = unsafe { LockedObject::assume(obj) }.visible_bytes();
            obj.seen.store(seen, Relaxed);
        }
        trace::moved(obj.subject(), from_type, to_type, evict, ret);
    }
    from_result(|| ret.map(|()| 0))
}

/// A move requested by TTM; nothing else knows of it yet.
///
/// The next steps are types: each consumes the one before.
///
/// # Invariants
///
/// `bo` is `obj`. Its reservation is held, with room for a fence, until the move has ended, and the
/// object is not pinned. `ctx` and `to` are valid for that long, and so is `old` unless it is null.
/// `old` is the resource of the object until `to` replaces it.
struct Move<'a, T: TtmObject> {
    obj: &'a Object<T>,
    locked: LockedObject<'a, Object<T>>,
    bo: *mut bindings::ttm_buffer_object,
    ctx: *mut bindings::ttm_operation_ctx,
    /// Null if the object has no content: this is its first place.
    old: *mut bindings::ttm_resource,
    to: *mut bindings::ttm_resource,
    evict: bool,
    from_vram: bool,
    to_vram: bool,
    runtime_guard: Option<RuntimeGuard>,
}

/// Importers and page tables of the device do not use the object any more, except for work already
/// started.
struct Notified<'a, T: TtmObject>(Move<'a, T>);

/// The work blocking the move is done.
struct Idle<'a, T: TtmObject> {
    request: Move<'a, T>,
    /// The dependencies of the copy.
    usage: Usage,
}

/// No page table shows the object.
struct Unmapped<'a, T: TtmObject>(Idle<'a, T>);

/// The engine has the job for the content of the new place.
struct Queued<'a, T: TtmObject> {
    request: Move<'a, T>,
    fence: ARef<Fence>,
    /// Whether it clears the new place because the object had no content.
    clear: bool,
}

impl<'a, T: TtmObject> Move<'a, T> {
    /// Checks all that can be checked before importers are notified.
    ///
    /// # Safety
    ///
    /// The requirements of [`move_callback`], for all of `'a`.
    unsafe fn new(
        bo: *mut bindings::ttm_buffer_object,
        evict: bool,
        ctx: *mut bindings::ttm_operation_ctx,
        to: *mut bindings::ttm_resource,
    ) -> Result<Self> {
        let vram = bindings::TTM_PL_VRAM;
        // A ghost is about to be freed; TTM skips it on this error.
        // SAFETY: As the caller promises.
        let (obj, old, to_type, pins) = unsafe {
            (
                Object::<T>::from_bo(bo).ok_or(EBUSY)?,
                (*bo).resource,
                (*to).mem_type,
                (*bo).pin_count,
            )
        };
        // Users of a pin keep their addresses. TTM checks the count in all paths, but not always
        // with the reservation held.
        if pins != 0 {
            return Err(EBUSY);
        }
        // SAFETY: `old` is valid unless it is null.
        let from_vram = !old.is_null() && unsafe { (*old).mem_type } == vram;
        // INVARIANT: As the caller promises, and checked above.
        let mut request = Self {
            obj,
            // SAFETY: The reservation is held.
            locked: unsafe { LockedObject::assume(obj) },
            bo,
            ctx,
            old,
            to,
            evict,
            from_vram,
            to_vram: to_type == vram,
            runtime_guard: None,
        };

        if request.is_by_engine() {
            request.runtime_guard = obj.runtime_guard_if_active();
            obj.ttm().check_resumed(request.runtime_guard.as_ref())?;
        }
        // A job that copies lost content fails, and leaves the VRAM in quarantine until a reset.
        // Content whose restore failed is restored to the same place.
        if request.to_vram && !from_vram || from_vram && obj.loss.is_away() {
            request.locked.check_content()?;
        }
        Ok(request)
    }

    /// Returns whether the object was ever written to. If not, no work uses it.
    fn has_content(&self) -> bool {
        // SAFETY: By the type invariant the object is valid, and so is its `ttm` if there is one.
        let has_pages = unsafe {
            let tt = (*self.bo).ttm;

            !tt.is_null() && (bindings::ttm_tt_is_populated(tt) || bindings::ttm_tt_is_swapped(tt))
        };

        !self.old.is_null() && (self.from_vram || has_pages)
    }

    /// Returns whether an engine moves the content: the object keeps its pages otherwise.
    fn is_by_engine(&self) -> bool {
        self.from_vram || self.to_vram
    }

    /// Converts the result of a call of the driver.
    ///
    /// An object may be swapped out for another device; that device skips it on `EBUSY`.
    fn called(&self, ret: Result) -> Result {
        ret.map_err(|e| if self.is_by_engine() { e } else { EBUSY })
    }

    /// Returns the dma-buf of the object if importers may have mapped its old place.
    fn shared(&self) -> Option<NonNull<bindings::dma_buf>> {
        NonNull::new(self.locked.exported()).filter(|_| !self.old.is_null())
    }

    /// Notifies importers and the driver.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is just being unplugged.
    fn notify(self) -> Result<Notified<'a, T>> {
        if let Some(buf) = self.shared() {
            trace::invalidate(self.obj.subject(), self.obj.last_placement.load(Relaxed));
            // SAFETY: By the type invariant of `Object` it is the dma-buf of the object. They share
            // the reservation, and it is held.
            unsafe { bindings::dma_buf_invalidate_mappings(buf.as_ptr()) };
        }
        self.called(self.locked.notify_evicted())?;
        Ok(Notified(self))
    }

    /// Returns the side of the transfer for `resource`.
    ///
    /// # Safety
    ///
    /// `resource` must be one of the two of the move. If it is in system memory, the pages must
    /// exist and stay until the transfer is done.
    unsafe fn side(&self, resource: *mut bindings::ttm_resource) -> Result<Side> {
        // SAFETY: By the type invariant, and as the caller promises.
        unsafe { side_of(self.obj.ttm(), self.bo, resource) }
    }
}

impl<'a, T: TtmObject> Notified<'a, T> {
    /// Waits for work that must be done before the object leaves its place. The engine waits for
    /// the rest where it can.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if it takes too long or TTM does not want to wait.
    /// - `ERESTARTSYS` if a signal arrived.
    fn wait(self) -> Result<Idle<'a, T>> {
        let Self(mut request) = self;
        let has_content = request.has_content();
        // Nothing uses an object without content. The previous object in its new place may not have
        // moved away yet: TTM has added the fence of that move.
        let usage = if has_content {
            request.locked.usage()
        } else {
            Usage::Kernel
        };
        let ttm = request.obj.ttm();
        // Pages in use by the engine must not be swapped out. Work with entries of page tables must
        // be done before the entries are cleared.
        let is_in_use = has_content && (!request.is_by_engine() || request.locked.is_shown());

        if is_in_use || ttm.is_used_by_others(&request.locked.resv(), usage) {
            // SAFETY: By the type invariant.
            let (no_wait, is_interruptible) =
                unsafe { ((*request.ctx).no_wait_gpu, (*request.ctx).interruptible) };
            let limit = if no_wait {
                0
            } else {
                msecs_to_jiffies(PATIENCE)
            };

            request
                .locked
                .resv()
                .resv()
                .wait_timeout(usage, is_interruptible, limit)
                .map_err(|e| if e == ETIME { EBUSY } else { e })?;
        }
        Ok(Idle { request, usage })
    }
}

impl<'a, T: TtmObject> Idle<'a, T> {
    /// Removes the object from the remaining page tables.
    ///
    /// # Errors
    ///
    /// Those of [`Move::notify`].
    fn unmap(self) -> Result<Unmapped<'a, T>> {
        let request = &self.request;

        if let Some(buf) = request.shared() {
            // SAFETY: As in `Move::notify()`; the memory still exists, and all work of importers is
            // done.
            unsafe { exporter::retire(buf.as_ptr()) };
        }
        // TTM has zapped the page tables of processes. A pin would have kept the object.
        request.obj.close_window();
        // Work of the device that uses its page tables is done as well.
        request.called(request.locked.zap())?;
        Ok(Unmapped(self))
    }
}

impl<'a, T: TtmObject> Unmapped<'a, T> {
    /// Moves an object that keeps its pages: engines reach them in only one of the two places.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the pages cannot be mapped.
    fn keep_pages(self) -> Result {
        let Move { obj, bo, to, .. } = self.0.request;

        // SAFETY: By the type invariant. TTM has created the pages of an object moving to
        // `TTM_PL_TT`, and all work on the object is done.
        unsafe {
            if let Some(tt) = NonNull::new((*bo).ttm) {
                if (*to).mem_type == bindings::TTM_PL_TT {
                    obj.ttm().map_pages((*bo).base.dev, tt)?;
                } else {
                    obj.ttm().unmap_pages(tt);
                }
            }
            bindings::ttm_bo_move_null(bo, to);
        }
        Ok(())
    }

    /// Queues the job of the engine.
    ///
    /// # Errors
    ///
    /// The errors of the engine, or `ENOMEM` if memory runs out.
    fn queue(self) -> Result<Queued<'a, T>> {
        let Idle { mut request, usage } = self.0;
        let (obj, bo) = (request.obj, request.bo);
        // Never-written memory is zero, and so are pages allocated below.
        let clear = !request.has_content();
        if !clear {
            // TTM has done it for some kinds of memory. This also brings back swapped-out pages.
            // SAFETY: The object and the context are valid; without a `ttm` nothing is done.
            to_result(unsafe { bindings::ttm_bo_populate(bo, request.ctx) })?;
        }

        // SAFETY: If one of the resources is system memory and accessed, the object was populated
        // above. The pages stay until the fence of the transfer signals: all code that could free
        // them waits for the fence, because it is in the reservation of their owner, the object or
        // a ghost.
        let transfer = unsafe {
            let from = if clear {
                None
            } else {
                Some(request.side(request.old)?)
            };

            Transfer::new(from, request.side(request.to)?, (*bo).base.size)
        };
        // The work of other devices has been waited for.
        let mut after = KVec::new();
        let external = obj
            .ttm()
            .add_dependencies(&request.locked.resv(), usage, &mut after)?;
        let job = Request {
            work: Work::Move(transfer),
            runtime_guard: request.runtime_guard.take(),
            after,
            external,
            in_order: request.evict,
            from: Some(obj.loss.clone()),
            to: Some(obj.loss.clone()),
        };
        // SAFETY: The device of an object is valid and of `T::Driver`.
        let fence = unsafe {
            while_registered::<T::Driver, _>((*bo).base.dev, |reg| obj.ttm().submit(reg, job, None))
        }?;

        // SAFETY: The job depends on all work up to `usage`, including moves.
        unsafe { obj.ttm().replace_late(&mut request.locked.resv(), &fence) };
        if !clear {
            obj.ttm().count_move();
        }
        Ok(Queued {
            request,
            fence,
            clear,
        })
    }
}

impl<T: TtmObject> Queued<'_, T> {
    /// Makes `to` the resource of the object. The copy has started, so this does not fail.
    fn commit(self) {
        let Move {
            obj,
            bo,
            to,
            evict,
            from_vram,
            to_vram,
            ..
        } = self.request;
        // SAFETY: By the type invariant.
        let to_system = unsafe { (*to).mem_type } == bindings::TTM_PL_SYSTEM;

        if self.clear {
            // Any previous content of the object is unused.
            // SAFETY: By the type invariant. TTM has made room for the fence, and nothing was added
            // since.
            unsafe {
                bindings::dma_resv_add_fence(
                    (*bo).base.resv,
                    self.fence.as_raw(),
                    bindings::dma_resv_usage_DMA_RESV_USAGE_KERNEL,
                );
                bindings::ttm_bo_move_null(bo, to);
                // The object has no pages; VRAM needs no array for them.
                destroy_tt(bo);
            }
            return;
        }

        // If the object is not evicted, TTM keeps the old memory until the copy is done. Otherwise
        // it gives VRAM to other objects at once. The engine works in order, and other engines wait
        // for the fence, which TTM keeps for this purpose. A core driver reusing the VRAM would not
        // wait. For such a driver TTM would wait here, for all work of all objects with the same
        // reservation, and might give up. In this case the code below waits for the copy and gives
        // TTM a finished move. It does the same for a move to memory that no device accesses,
        // because the job must no longer use its pages.
        let without_wait =
            !to_system && (!evict || from_vram && obj.ttm().allocator().is_pipelined());
        // SAFETY: By the type invariant. The fence was created for this move, and TTM has made room
        // for it.
        let is_over = without_wait
            && unsafe {
                bindings::ttm_bo_move_accel_cleanup(bo, self.fence.as_raw(), evict, true, to)
            } == 0;

        if !is_over {
            // The wait is not interruptible, so it does not fail.
            let _ = self.fence.wait(false);
            // SAFETY: As above. The copy was the last user of the old memory: it came after all
            // work on the object.
            unsafe {
                if to_vram {
                    destroy_tt(bo);
                } else if let Some(tt) = NonNull::new((*bo).ttm).filter(|_| to_system) {
                    obj.ttm().unmap_pages(tt);
                }
                bindings::ttm_bo_move_null(bo, to);
            }
        }
    }
}

/// # Safety
///
/// The requirements of [`move_callback`].
unsafe fn move_object<T: TtmObject>(
    bo: *mut bindings::ttm_buffer_object,
    evict: bool,
    ctx: *mut bindings::ttm_operation_ctx,
    to: *mut bindings::ttm_resource,
) -> Result {
    // SAFETY: As promised by the caller.
    let request = unsafe { Move::<T>::new(bo, evict, ctx, to) }?;
    let by_engine = request.is_by_engine();
    let unmapped = request.notify()?.wait()?.unmap()?;

    if !by_engine {
        return unmapped.keep_pages();
    }
    unmapped.queue()?.commit();
    Ok(())
}

impl<T: TtmObject> LockedObject<'_, Object<T>> {
    /// Returns the usage of the fences of all work on the object.
    fn usage(&self) -> Usage {
        // Private objects share the reservation. Jobs with access to some of them through page
        // tables add fences of `Bookkeep` to it. Such jobs do not use an object that no page table
        // shows; the layer knows the shown objects if the driver has `MAPPINGS`.
        if self.obj.is_private() && Object::<T>::CALLER.is_some() && !self.is_shown() {
            Usage::Read
        } else {
            Usage::Bookkeep
        }
    }

    /// Returns whether work of clients or other devices on the object is pending.
    fn is_used(&mut self) -> bool {
        let (ttm, usage) = (self.obj.ttm(), self.usage());

        ttm.is_used(&self.resv(), usage)
    }

    /// Returns whether a move would have to wait for work depending on another device. It would
    /// wait with the reservation held, for 15 seconds at most.
    pub fn would_wait(&mut self) -> bool {
        let (ttm, usage) = (self.obj.ttm(), self.usage());

        ttm.is_used_by_others(&self.resv(), usage)
    }
}

/// Returns whether an object of TTM can be evicted: it has its content and is one of `victims`.
///
/// # Safety
///
/// `bo` must be an object of a device of `T`, possibly a ghost. Its reservation must be held.
pub(crate) unsafe fn can_leave<T: TtmObject>(
    bo: *mut bindings::ttm_buffer_object,
    victims: Victims,
) -> bool {
    // SAFETY: As promised by the caller.
    let Some(obj) = (unsafe { Object::<T>::from_bo(bo) }) else {
        // A ghost is waited for instead of moved.
        // SAFETY: The reservation of a valid object is valid.
        let resv = unsafe { DmaResv::from_raw((*bo).base.resv) };

        return victims != Victims::Unused || resv.test_signaled(Usage::Bookkeep);
    };
    // SAFETY: The reservation is held.
    let mut object = unsafe { LockedObject::assume(obj) };

    let is_victim = match victims {
        Victims::None => false,
        Victims::Unused => !object.is_used(),
        Victims::Own => !object.would_wait(),
        Victims::All => true,
    };

    is_victim && !obj.loss.is_away()
}

/// Undoes [`LockedObject::take_off_lru`] of an object that is about to be freed.
///
/// If the engine still works on the object, it is freed later; evictions find it on the LRU list
/// and wait for the engine.
///
/// # Safety
///
/// `bo` must be valid, in VRAM and pinned by [`LockedObject::take_off_lru`] alone, and have no GEM
/// reference.
// Not inlined into modules, which cannot call the function.
#[inline(never)]
pub(super) unsafe fn put_on_lru(bo: *mut bindings::ttm_buffer_object) {
    // This task may hold other reservations and must not wait for this one. An evicting task may
    // hold it, if it has met the object on the list while the object was being validated. So this
    // is done with only the lock of the list, as in `ttm_bo_release()`.
    // SAFETY: By the safety requirements. An object without a reference is not pinned by other
    // code. Its resource does not change either: an eviction that sees it unpinned allocates
    // another resource first, and takes the lock for it. TTM wants the reservation held only for a
    // `ttm`, and an object in VRAM has none.
    unsafe {
        let lock = &raw mut (*(*bo).bdev).lru_lock;

        bindings::spin_lock(lock);
        (*bo).pin_count -= 1;
        bindings::ttm_resource_move_to_lru_tail((*bo).resource);
        bindings::spin_unlock(lock);
    }
}

/// Destroys the `ttm` of an object, if any, with its pages.
///
/// # Safety
///
/// `bo` must be reserved, and be in VRAM or about to be. No work may use its pages any more.
// Not inlined into modules, which cannot call the function.
#[inline(never)]
pub(super) unsafe fn destroy_tt(bo: *mut bindings::ttm_buffer_object) {
    // SAFETY: By the safety requirements.
    unsafe { bindings::ttm_bo_tt_destroy(bo) };
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Moves of the content of objects, at the request of TTM.
//!
//! Importers are notified before an object moves, and the move waits for the work that they have
//! started; it does not wait for the copy. See [`drm::ttm`](crate::drm::ttm).
//!
//! # Locking
//!
//! TTM holds the reservation of the object, or of its ghost.
//!
//! C header: [`include/drm/ttm/ttm_device.h`](srctree/include/drm/ttm/ttm_device.h)

use super::{
    Held,
    Object, //
};
use crate::{
    bindings,
    dma_buf::exporter,
    dma_resv::Usage,
    drm::{
        devres::while_registered,
        gem::peer::trace,
        ttm::{
            Device,
            Request,
            Side,
            Transfer,
            TtmObject,
            VramResource,
            Work, //
        }, //
    },
    error::{
        from_result,
        to_result, //
    },
    prelude::*,
    sync::atomic::Relaxed, //
};
use core::ptr::NonNull;

/// Converts a resource of TTM to one side of a transfer.
///
/// # Safety
///
/// `bo` must be an object of `ttm` whose reservation is held, and `resource` be valid. If the
/// resource is system memory, the object must have its pages until no job needs them any more.
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
/// Called by TTM with an object of a device of `T`, which may be a ghost, with its reservation held
/// and room for a fence in it, and the resource that it is to move to.
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
        // An imported buffer has no memory here; it gets a resource when it is made.
        if (*bo).type_ == bindings::ttm_bo_type_ttm_bo_type_sg {
            bindings::ttm_bo_move_null(bo, to);
            return 0;
        }
        move_object::<T>(bo, evict, ctx, to)
    };

    if let Some(obj) = obj {
        // Only moves change the value, and the reservation is held.
        let from_type = obj.residence.load(Relaxed);
        if ret.is_ok() {
            obj.residence.store(to_type, Relaxed);
            // SAFETY: The reservation is held.
            let seen = unsafe { Held::assume(obj) }.bytes_seen();
            obj.seen.store(seen, Relaxed);
        }
        trace::moved(obj.subject(), from_type, to_type, evict, ret);
    }
    from_result(|| ret.map(|()| 0))
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
    let vram = bindings::TTM_PL_VRAM;
    // A ghost is about to be freed, and TTM skips it if it gets this error.
    // SAFETY: As the caller promises.
    let (obj, old, to_type) = unsafe {
        (
            Object::<T>::from_bo(bo).ok_or(EBUSY)?,
            (*bo).resource,
            (*to).mem_type,
        )
    };
    // SAFETY: The reservation is held.
    let mut locked = unsafe { Held::assume(obj) };
    // Users of a pin keep their addresses. TTM checks the count in each of its paths but not in
    // all of them with the reservation held.
    // SAFETY: The reservation, which guards the count, is held.
    if unsafe { (*bo).pin_count } != 0 {
        return Err(EBUSY);
    }
    // SAFETY: `old` is valid unless it is null.
    let from_vram = !old.is_null() && unsafe { (*old).mem_type } == vram;
    let by_engine = from_vram || to_type == vram;

    // Checked before importers are notified.
    let runtime_guard = if by_engine {
        let runtime_guard = obj.runtime_guard_if_active();

        obj.ttm().check_resumed(runtime_guard.as_ref())?;
        runtime_guard
    } else {
        None
    };
    // A job that copies lost content fails, and leaves the VRAM in quarantine until a reset.
    if to_type == vram && !from_vram {
        locked.check_content()?;
    }

    // Importers have mapped the old place; the fences have the work that they started.
    let buf = locked.exported();
    if !old.is_null() && !buf.is_null() {
        trace::invalidate(obj.subject(), obj.residence.load(Relaxed));
        // SAFETY: By the type invariant it is the dma-buf of the object, whose reservation, which
        // they share, is held.
        unsafe { bindings::dma_buf_invalidate_mappings(buf) };
    }
    // An object may be swapped out for another device, which skips it if it gets this error.
    let unregistered = |e| if by_engine { e } else { EBUSY };
    locked.tell_evicted().map_err(unregistered)?;

    let (shown, usage) = (locked.is_shown(), locked.usage());
    let must_wait = obj.ttm().is_used_by_others(&locked.resv(), usage);
    // Pages that the engine still uses must not be swapped out, and work that uses the entries of
    // page tables must be done before the entries are cleared.
    if must_wait || !by_engine || shown {
        // SAFETY: The object and the context are valid.
        to_result(unsafe { bindings::ttm_bo_wait_ctx(bo, ctx) })?;
    }
    if !old.is_null() && !buf.is_null() {
        // SAFETY: As above; the memory is still there, and what importers started is done.
        unsafe { exporter::retire(buf) };
    }
    // TTM has zapped the page tables of processes.
    obj.drop_fault_window();
    // Work of the device that uses its page tables is done as well.
    locked.zap().map_err(unregistered)?;
    if !by_engine {
        // The object keeps its pages, but engines reach them in one of the two places only.
        // SAFETY: The object is valid, and `to` becomes its resource. TTM has made the pages of an
        // object that moves to `TTM_PL_TT`, and all work on the object is done.
        unsafe {
            if let Some(tt) = NonNull::new((*bo).ttm) {
                if to_type == bindings::TTM_PL_TT {
                    obj.ttm().map_pages((*bo).base.dev, tt)?;
                } else {
                    obj.ttm().unmap_pages(tt);
                }
            }
            bindings::ttm_bo_move_null(bo, to);
        }
        return Ok(());
    }

    // SAFETY: The object is valid, and so is its `ttm` if there is one.
    let has_pages = unsafe {
        let tt = (*bo).ttm;

        !tt.is_null() && (bindings::ttm_tt_is_populated(tt) || bindings::ttm_tt_is_swapped(tt))
    };
    // Memory that was never written is zero, and so are pages that are made below.
    let clear = !from_vram && !has_pages;
    if !clear {
        // TTM has done it for some kinds of memory. This also brings back pages that were swapped
        // out.
        // SAFETY: The object and the context are valid; without a `ttm` nothing is done.
        to_result(unsafe { bindings::ttm_bo_populate(bo, ctx) })?;
    }

    // SAFETY: Both resources are valid. If one of them is system memory, and is accessed, the
    // object was populated above. The pages stay until the fence of the transfer signals: all code
    // that could free them waits for the fence, because it is in the reservation of their owner,
    // the object or a ghost.
    let transfer = unsafe {
        let from = if clear {
            None
        } else {
            Some(side_of(obj.ttm(), bo, old)?)
        };

        Transfer::new(from, side_of(obj.ttm(), bo, to)?, (*bo).base.size)
    };
    // The work of other devices has been waited for.
    let mut after = KVec::new();
    let external = obj
        .ttm()
        .add_dependencies(&locked.resv(), usage, &mut after)?;
    let request = Request {
        work: Work::Move(transfer),
        runtime_guard,
        after,
        external,
        from: Some(obj.loss.clone()),
        to: Some(obj.loss.clone()),
    };
    // SAFETY: The device of an object is valid and of `T::Driver`.
    let fence = unsafe {
        while_registered::<T::Driver, _>((*bo).base.dev, |reg| obj.ttm().submit(reg, request, None))
    }?;
    if !clear {
        obj.ttm().count_move();
    }

    if clear {
        // The previous content of the object is not used, if it had any.
        // SAFETY: The object is valid, and `to` becomes its resource. TTM has made room for the
        // fence, and nothing was added since.
        unsafe {
            bindings::dma_resv_add_fence(
                (*bo).base.resv,
                fence.as_raw(),
                bindings::dma_resv_usage_DMA_RESV_USAGE_KERNEL,
            );
            bindings::ttm_bo_move_null(bo, to);
            // The object has no pages; VRAM needs no array for them.
            destroy_tt(bo);
        }
        return Ok(());
    }

    // TTM gives VRAM to other objects at once: the engine works in order, and other engines wait
    // for the fence, which TTM keeps for that. A core driver that reuses the VRAM would not wait.
    let pipeline = obj.ttm().allocator().is_pipelined();
    // SAFETY: The object is valid, has a resource, and `to` becomes its new one. The fence was made
    // for this move, and TTM has made room for it.
    let ret = to_result(unsafe {
        bindings::ttm_bo_move_accel_cleanup(bo, fence.as_raw(), evict, pipeline, to)
    });
    if ret.is_err() {
        // The copy has started, so the object has to move. The wait is not interruptible, so it
        // does not fail.
        let _ = fence.wait(false);
        // SAFETY: As above; nothing is under way any more.
        unsafe { bindings::ttm_bo_move_sync_cleanup(bo, to) };
    }
    Ok(())
}

impl<T: TtmObject> Held<'_, Object<T>> {
    /// Returns the usage of the fences of all work on the object.
    fn usage(&self) -> Usage {
        // Private objects share the reservation, to which jobs that reach some of them by page
        // tables add fences of `Bookkeep`. Those jobs do not use an object that no page table
        // shows; the layer knows which ones are shown if the driver has `MAPPINGS`.
        if self.obj.is_private() && Object::<T>::CALLER.is_some() && !self.is_shown() {
            Usage::Read
        } else {
            Usage::Bookkeep
        }
    }

    /// Returns whether a move would have to wait for work that depends on another device. It would
    /// wait with the reservation held, and for 15 seconds at most.
    pub fn would_wait(&mut self) -> bool {
        let (ttm, usage) = (self.obj.ttm(), self.usage());

        ttm.is_used_by_others(&self.resv(), usage)
    }
}

/// Returns [`Held::would_wait`] of an object of TTM.
///
/// # Safety
///
/// `bo` must be an object of a device of `T`, which may be a ghost, with its reservation held.
pub(crate) unsafe fn would_wait<T: TtmObject>(bo: *mut bindings::ttm_buffer_object) -> bool {
    // SAFETY: As promised by the caller.
    let Some(obj) = (unsafe { Object::<T>::from_bo(bo) }) else {
        return false;
    };
    // SAFETY: The reservation is held.
    unsafe { Held::assume(obj) }.would_wait()
}

/// Undoes [`Held::take_off_lru`] of an object that is about to be freed.
///
/// If the engine still works on the object, it is freed later, and evictions find it on the LRU
/// list and wait for that.
///
/// # Safety
///
/// `bo` must be valid, in VRAM and pinned by [`Held::take_off_lru`] alone, and have no GEM
/// reference.
// Not inlined into modules, which cannot call the function.
#[inline(never)]
pub(super) unsafe fn put_on_lru(bo: *mut bindings::ttm_buffer_object) {
    // The reservation must not be waited for, because this task may hold others. A task that evicts
    // may hold it: one that has met the object on the list while it was being validated. So this is
    // done with the lock of the list alone, as in `ttm_bo_release()`.
    // SAFETY: By the safety requirements. An object without a reference is not pinned by other
    // code. Its resource does not change either: an eviction that sees it unpinned allocates
    // another one first, which takes the lock. An object in VRAM has no `ttm`, for which TTM wants
    // the reservation to be held.
    unsafe {
        let lock = &raw mut (*(*bo).bdev).lru_lock;

        bindings::spin_lock(lock);
        (*bo).pin_count -= 1;
        bindings::ttm_resource_move_to_lru_tail((*bo).resource);
        bindings::spin_unlock(lock);
    }
}

/// Destroys the `ttm` of an object, if it has one.
///
/// # Safety
///
/// `bo` must be reserved, not be in system memory, and have no pages.
// Not inlined into modules, which cannot call the function.
#[inline(never)]
pub(super) unsafe fn destroy_tt(bo: *mut bindings::ttm_buffer_object) {
    // SAFETY: By the safety requirements.
    unsafe { bindings::ttm_bo_tt_destroy(bo) };
}

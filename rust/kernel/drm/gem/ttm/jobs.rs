// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The creation of jobs for the engines of a device.
//!
//! See [`engine`](crate::drm::ttm::engine), [`dma`](crate::drm::ttm::dma) and
//! [`loss`](crate::drm::ttm::loss).

use super::{
    device::Device,
    TtmObject, //
};
use crate::{
    bindings,
    device,
    dma_buf::fence::{
        AnyFence,
        Fence,
        FenceGroup, //
    },
    dma_resv::{
        LockedResv,
        Usage, //
    },
    drm::{
        self,
        devres::while_registered,
        queue::Queue,
        ttm::{
            dma::{
                self,
                Table,
                Tables, //
            },
            engine::{
                Client,
                CopyQueue,
                Engine,
                Moves,
                Request, //
            },
            loss::{
                Loss,
                Losses, //
            }, //
        }, //
    },
    pm::{
        self,
        RuntimeGuard, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Relaxed,
        Arc, //
    }, //
};
use core::ptr::NonNull;

/// The data of a device for its jobs.
pub(super) struct Jobs {
    moves: Moves,
    losses: Arc<Losses>,
    tables: Tables,
}

impl Jobs {
    fn new(dev: &device::Device, names: &[&CStr]) -> Result<Self> {
        Ok(Self {
            moves: Moves::new(names)?,
            losses: Losses::new(dev)?,
            tables: Tables::new()?,
        })
    }
}

/// Returns a number unique to the current task and never 0.
fn this_task() -> usize {
    // SAFETY: There always is a current task. Its address is only compared.
    unsafe { bindings::get_current() as usize }
}

impl<T: TtmObject> Device<T> {
    const DMA: bool = <T::Engine<'static, 'static> as Engine>::DMA;

    /// Creates the data for the jobs of `dev`, the device that has the VRAM.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the engines cannot work for it.
    /// - The errors of [`Moves::new`].
    pub(super) fn jobs(dev: &device::Device<device::Bound>, names: &[&CStr]) -> Result<Jobs> {
        if Self::DMA {
            dma::check_device(dev)?;
        }
        Jobs::new(dev, names)
    }

    /// Returns the group of the fences of this device. Work of the device outside of its engines,
    /// such as jobs of clients on other rings, has fences of the group too: moves depend on it
    /// instead of waiting for it. Moves wait for work on objects shown by page tables, see
    /// [`Mappings::zap`](crate::drm::gem::Mappings::zap).
    ///
    /// A driver must not add a fence of the group with the usage [`Usage::Kernel`]. This usage is
    /// reserved for moves: a later move replaces the fence.
    #[inline]
    pub fn fence_group(&self) -> FenceGroup {
        self.jobs.moves.group()
    }

    /// Creates the queue of a client for copies by the engine with the number `engine`. `queue` is
    /// a queue of the ring of that engine and has fences of [`Self::fence_group`]. `name` is the
    /// name of the context of the fences.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such engine.
    /// - `ENAMETOOLONG` if the name has more than 31 bytes.
    /// - `ENOMEM` if memory runs out.
    pub fn copy_queue(
        &self,
        name: &CStr,
        engine: usize,
        queue: Queue<T::Ring>,
    ) -> Result<CopyQueue<T::Ring>> {
        if engine >= self.jobs.moves.engines() {
            return Err(EINVAL);
        }
        CopyQueue::new(name, self.fence_group(), engine, queue)
    }

    /// Creates a job for a client or for the kernel and passes it to an engine of the driver.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the device is not kept active, unless it is about to be suspended or being
    ///   resumed.
    /// - `EINVAL` if the driver chooses a nonexistent engine.
    /// - The errors of the engine.
    /// - `ENOMEM` if memory runs out.
    pub(super) fn submit(
        &self,
        reg: &<T::Driver as drm::Driver>::RegistrationData<'_>,
        request: Request,
        client: Client<'_, T::Ring>,
    ) -> Result<ARef<Fence>> {
        self.check_resumed(request.runtime_guard.as_ref())?;

        self.jobs.moves.submit(
            |work| T::choose(reg, work),
            |index| T::engine(reg, index),
            request,
            client,
        )
    }

    /// Calls `f`, which moves objects because the driver suspends or resumes the device. Only this
    /// task may do so without keeping the device active.
    pub(super) fn in_transition<R>(&self, f: impl FnOnce() -> R) -> R {
        self.transition.store(this_task(), Relaxed);
        let ret = f();
        self.transition.store(0, Relaxed);
        ret
    }

    /// Checks that engines can work. `runtime_guard` keeps the device active for them.
    ///
    /// # Errors
    ///
    /// `EAGAIN` as for [`Self::submit`].
    pub(super) fn check_resumed(&self, runtime_guard: Option<&RuntimeGuard>) -> Result {
        // Without a guard the job moves an exported object out of VRAM: before the driver can
        // suspend the device, it has to take the reservation and see that the object has left.
        if runtime_guard.is_none()
            && self.transition.load(Relaxed) != this_task()
            && !pm::is_suspending(self.owner())
        {
            return Err(EAGAIN);
        }
        Ok(())
    }

    /// Returns whether work of `usage` on an object is pending, apart from moves in the order of
    /// their engine.
    pub(super) fn is_used(&self, resv: &LockedResv<'_>, usage: Usage) -> bool {
        resv.fences(usage)
            .any(|fence| !self.jobs.moves.has_in_order(fence) && !fence.is_signaled())
    }

    /// Replaces the late moves in a reservation by `fence`. Each of them has its own context, so
    /// objects with the same reservation would accumulate them.
    ///
    /// # Safety
    ///
    /// `fence` must belong to a job that depends on all moves in the reservation.
    pub(super) unsafe fn replace_late(&self, resv: &mut LockedResv<'_>, fence: &Fence) {
        loop {
            let late = resv
                .fences(Usage::Kernel)
                .find(|other| other.context() != fence.context() && self.jobs.moves.is_late(other))
                .map(|late| late.context());
            let Some(context) = late else { break };

            // SAFETY: As the caller promises.
            unsafe { resv.replace_fences(context, fence, Usage::Kernel) };
        }
    }

    /// Returns whether work of `usage` on an object is pending that belongs to another device or
    /// depends on one.
    pub(super) fn is_used_by_others(&self, resv: &LockedResv<'_>, usage: Usage) -> bool {
        resv.fences(usage)
            .any(|fence| self.depends_on_others(fence))
    }

    /// Returns whether `fence` has not signalled and belongs to another device or depends on one.
    pub(super) fn depends_on_others(&self, fence: &Fence) -> bool {
        !self.jobs.moves.has(fence) && !fence.is_signaled()
    }

    /// Waits for the work found by [`Self::is_used_by_others`].
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal arrived.
    pub(super) fn wait_for_others(&self, resv: &LockedResv<'_>, usage: Usage) -> Result {
        if self.is_used_by_others(resv, usage) {
            resv.resv().wait(usage, true)?;
        }
        Ok(())
    }

    /// Adds the pending work of `usage` on an object to `after`. Returns whether
    /// [`Self::is_used_by_others`] is true for some of it.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(super) fn add_dependencies(
        &self,
        resv: &LockedResv<'_>,
        usage: Usage,
        after: &mut KVec<ARef<AnyFence>>,
    ) -> Result<bool> {
        self.jobs.moves.add_dependencies(resv, usage, true, after)
    }

    /// As [`Self::add_dependencies`] without the work of other devices.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(super) fn add_own_dependencies(
        &self,
        resv: &LockedResv<'_>,
        usage: Usage,
        after: &mut KVec<ARef<AnyFence>>,
    ) -> Result<bool> {
        self.jobs.moves.add_dependencies(resv, usage, false, after)
    }

    /// Creates the record of losses of a new object. The object also gets its number here.
    pub(super) fn new_loss(&self) -> Result<Arc<Loss>> {
        Loss::new(self.number(), self.jobs.losses.clone())
    }

    /// Returns how many objects have lost their content because a move failed.
    pub fn losses(&self) -> u64 {
        self.jobs.losses.objects()
    }

    /// Returns how many jobs the CPU did because an engine had failed.
    pub fn done_again(&self) -> u64 {
        self.jobs.losses.again()
    }

    /// Returns how many bytes of system memory are mapped for the engines.
    pub fn dma_mapped(&self) -> u64 {
        self.jobs.tables.mapped()
    }

    /// Maps the pages of `tt` for the engines, if they do DMA and the DRM device is registered.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if memory runs out.
    /// - The errors of `dma_map_sgtable()`.
    ///
    /// # Safety
    ///
    /// `tt` must belong to an object of this device whose reservation is held, or to a backup of
    /// such an object. It must have all of its pages until `unpopulate_callback` is called.
    pub(super) unsafe fn map_pages(
        &self,
        drm: *mut bindings::drm_device,
        tt: NonNull<bindings::ttm_tt>,
    ) -> Result {
        if !Self::DMA {
            return Ok(());
        }

        // SAFETY: The device is that of an object and hence valid and of `T::Driver`. It is bound
        // until an unplug. The unplug waits for this and then calls `unmap_all()`. The rest is as
        // promised by the caller.
        let ret = unsafe {
            while_registered::<T::Driver, _>(drm, |_| self.jobs.tables.map(self.owner(), tt))
        };
        match ret {
            // The device was unplugged, so there is no engine.
            Err(e) if e == ENODEV => Ok(()),
            ret => ret,
        }
    }

    /// Ends the mapping of [`Self::map_pages`].
    ///
    /// # Safety
    ///
    /// No job may use the pages any more.
    pub(super) unsafe fn unmap_pages(&self, tt: NonNull<bindings::ttm_tt>) {
        if Self::DMA {
            // SAFETY: As promised by the caller; all was mapped for this device.
            unsafe { self.jobs.tables.unmap(self.owner(), tt) };
        }
    }

    /// Ends all mappings for the engines.
    ///
    /// Drivers must have finished all jobs before, see [`Engine::run`]. A remaining job has only
    /// the numbers of the DMA addresses: the device must not use them any more, as after any
    /// unbind.
    pub(super) fn unmap_all(&self) {
        if Self::DMA {
            // SAFETY: All was mapped for this device.
            unsafe { self.jobs.tables.unmap_all(self.owner()) };
        }
    }

    /// Maps pages and returns their DMA addresses if the engines do DMA.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the DRM device is not registered.
    /// - The errors of [`Self::map_pages`].
    ///
    /// # Safety
    ///
    /// The requirements of [`Self::map_pages`].
    pub(super) unsafe fn table_of_pages(
        &self,
        drm: *mut bindings::drm_device,
        tt: NonNull<bindings::ttm_tt>,
    ) -> Result<Option<Arc<Table>>> {
        if !Self::DMA {
            return Ok(None);
        }

        // SAFETY: As promised by the caller.
        unsafe { self.map_pages(drm, tt) }?;
        Ok(Some(self.mapped_table(tt).ok_or(ENODEV)?))
    }

    /// Returns the DMA addresses of pages if they are mapped.
    pub(super) fn mapped_table(&self, tt: NonNull<bindings::ttm_tt>) -> Option<Arc<Table>> {
        self.jobs.tables.get(tt)
    }
}

/// Ends the mapping of pages that TTM is about to free and frees them.
///
/// # Safety
///
/// Called by TTM with the device of a [`Device<T>`] and a `tt` not used any more.
pub(super) unsafe extern "C" fn unpopulate_callback<T: TtmObject>(
    bdev: *mut bindings::ttm_device,
    tt: *mut bindings::ttm_tt,
) {
    // SAFETY: As promised by TTM: it frees pages after the fences of all jobs have signalled.
    unsafe {
        if let Some(tt) = NonNull::new(tt) {
            Device::<T>::from_raw(bdev).unmap_pages(tt);
        }
        free_pages(bdev, tt);
    }
}

/// Frees pages as TTM does by default.
///
/// # Safety
///
/// The requirements of [`unpopulate_callback`].
// Not inlined into modules, which cannot call the function.
#[inline(never)]
unsafe fn free_pages(bdev: *mut bindings::ttm_device, tt: *mut bindings::ttm_tt) {
    // SAFETY: As promised by the caller.
    unsafe { bindings::ttm_pool_free(&raw mut (*bdev).pool, tt) };
}

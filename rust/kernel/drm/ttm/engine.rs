// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engines of a device. They move, clear and copy the content of objects.
//!
//! A move is a [`Job`]: the source, the target and a fence that signals when the move is done. The
//! layer creates the job in two steps because other tasks wait for the fence while they reclaim
//! memory:
//!
//! - [`Engine::prepare`] allocates what the job needs. It may fail and then has no effect.
//! - [`Engine::run`] starts the job. It cannot fail and is in the signalling path. The layer
//!   annotates it by a [`SignallingSection`], so lockdep reports allocations that wait and
//!   reservations taken there. It gets the job and the result of the preparation: no object, no
//!   reservation and no registration data.
//!
//! # Order
//!
//! Each engine has a [`FenceContext`] for moves and does them in the order of their creation. Each
//! copying client has a context of its own ([`CopyQueue`]). VRAM left by an evicted object is given
//! to the next one at once. Between moves of one engine the order protects the memory. In all other
//! cases fences do: TTM keeps the fence of the last eviction of each engine and adds all of them to
//! the reservation of the new owner. The layer makes a job depend on the work on its objects
//! ([`Job::after`]). TTM has room for the fences of [`MAX_ENGINES`] engines.
//!
//! A client's copy may depend on other work of clients and on fences of other devices. A move
//! depending on the work of clients is *late*, unless it is an eviction: it has a context and a
//! queue of its own ([`Plan::entry`]) because it would hold up all later moves, including those of
//! other clients. The VRAM it leaves has no new owner before it is done. Evictions stay in the
//! order because each new object waits for them. They look for unused objects first ([`Victims`]).
//! No move depends on other devices: the task that causes the move waits for them and for copies
//! depending on them. All fences of a device are in a [`FenceGroup`] to tell them from those of
//! other devices.
//!
//! The jobs of a ring go through the queues of [`drm::queue`](crate::drm::queue).
//!
//! [`Victims`]: super::Victims
//!
//! # DMA
//!
//! For engines with [`Engine::DMA`] the pages of each object in [`Place::TT`](super::Place::TT) are
//! mapped as one scatter table with merged neighbours. The mapping begins on the way to
//! [`Place::TT`](super::Place::TT). It ends on the way to [`Place::SYSTEM`](super::Place::SYSTEM)
//! or before the pages are freed. An unplug ends it as well and keeps the content. The device must
//! be coherent and reach all system memory without bounce buffers. The driver implements
//! `TtmObject::end_jobs()`: buffers of other devices are unmapped after it. System memory is
//! unmapped after the drop of the registration data.
//!
//! The buffer of another device is mapped by its exporter. A copy from or to it has
//! [`Memory::Peer`](super::Memory::Peer) with addresses valid until the fence of the copy has
//! signalled. This needs `TtmObject::MAPPINGS`. Without them the engine gets the buffer mapped for
//! the CPU.
//!
//! # Failures
//!
//! If an engine could not do a job, the driver finishes the job with an error or drops it. A
//! client's copy then fails and its fence has the error. A move is then done by the CPU if
//! [`Engine::cpu`] allows it and the CPU reaches all VRAM of both sides: the fence signals
//! afterwards and the log names the object. Otherwise the object to be moved has lost its content
//! (see [`Loss`](super::loss::Loss)). Pins, copies and mappings of the kernel and of importers
//! return `EIO`. An access by a process raises `SIGBUS`. The log names the object unless many are
//! lost. The file `memory` in debugfs counts it. The object can still be moved and freed. A job
//! that reads lost content makes its target lose its content as well.
//!
//! VRAM left unfilled by a failed job may have content of other objects. It is put in quarantine
//! when the object leaves it. The driver calls [`Allocator::count_reset`] after a reset of the
//! device and before it begins jobs again. It calls [`Allocator::end_quarantine`] later where it
//! may sleep. An importer may have mapped VRAM before a job fills it. Only the fence notifies it:
//! it must not read the VRAM if the fence has an error.
//!
//! [`Allocator::count_reset`]: crate::drm::vram::Allocator::count_reset
//! [`Allocator::end_quarantine`]: crate::drm::vram::Allocator::end_quarantine
//!
//! A driver that violates the order holds up its own device and may lose the content of its own
//! VRAM. No memory of the kernel is at risk: the fence of a move does not signal before its
//! predecessor or before the fences the move depends on.
//!
//! [`CpuEngine`](super::CpuEngine) is for devices without a copy engine.
//!
//! # Locking
//!
//! The mutex of a line of [`Moves`] or of a [`CopyQueue`] is taken with the reservation of an
//! object held. It is held while the driver gets a job. Nothing that a job waits for may take it.
//! [`CpuView`] documents the mutexes taken by the task finishing a failed job.
//!
//! C header: [`include/linux/dma-fence.h`](srctree/include/linux/dma-fence.h)

use super::{
    blit::Blit,
    loss::Loss,
    transfer::Transfer,
    view::{
        CpuView,
        View, //
    }, //
};
use crate::{
    bindings,
    dma_buf::fence::{
        AnyFence,
        DriverFence,
        Fence,
        FenceContext,
        FenceContextOps,
        FenceGroup,
        SignallingSection, //
    },
    dma_resv::{
        LockedResv,
        Usage, //
    },
    drm::queue::{
        Entry,
        Permit,
        Queue,
        RingOps, //
    },
    new_mutex,
    pm::RuntimeGuard,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    }, //
};

/// The work of a job.
pub enum Work {
    /// The content of an object moves.
    Move(Transfer),
    /// Bytes are copied.
    Copy(Blit),
}

impl Work {
    /// Returns whether a BAR of `len` bytes shows all VRAM of both sides.
    pub(super) fn is_in_bar(&self, len: u64) -> bool {
        match self {
            Self::Move(transfer) => transfer.is_in_bar(len),
            Self::Copy(blit) => blit.is_in_bar(len),
        }
    }

    /// Does the work by the CPU. Does not allocate memory.
    ///
    /// # Safety
    ///
    /// `vram` must be the address of VRAM with all ranges of both sides mapped.
    pub(super) unsafe fn by_cpu(&self, vram: *mut c_void) {
        // SAFETY: By the safety requirements.
        unsafe {
            match self {
                Self::Move(transfer) => transfer.by_cpu(vram),
                Self::Copy(blit) => blit.by_cpu(vram),
            }
        }
    }

    /// Returns whether the work reads content.
    fn has_source(&self) -> bool {
        match self {
            Self::Move(transfer) => transfer.from().is_some(),
            Self::Copy(_) => true,
        }
    }

    /// Records whether VRAM may have content of its former owner because the move to fill it has
    /// failed.
    fn set_tainted(&self, is_tainted: bool) {
        if let Self::Move(transfer) = self {
            if let super::Memory::Vram(to) = transfer.to() {
                to.set_tainted(is_tainted);
            }
        }
    }

    /// Returns the address of a written byte of I/O memory, or [`None`] if none was written.
    pub(super) fn written(&self, vram: *mut c_void) -> Option<*mut c_void> {
        match self {
            Self::Move(transfer) => match transfer.to() {
                super::Memory::Vram(to) => to.last(vram),
                _ => None,
            },
            Self::Copy(blit) => blit.written(vram),
        }
    }
}

/// The maximum number of engines of a device: TTM keeps this many fences of evictions.
pub const MAX_ENGINES: usize = bindings::TTM_NUM_MOVE_FENCES as usize;

/// An engine working on the content of objects.
pub trait Engine {
    /// Whether the engine reaches system memory by DMA.
    ///
    /// If so, the layer keeps the pages of objects in [`Place::TT`](super::Place::TT) mapped for
    /// the device with the VRAM, and [`Pages::dma`](super::Pages::dma) returns their DMA addresses.
    /// If not, nothing is mapped.
    const DMA: bool = false;

    /// The ring doing the copies of clients.
    type Ring: RingOps;

    /// The memory needed by a job. If a ring does the job, this is the ring's [`Entry`].
    type Ready: Send;

    /// Prepares a job: allocates memory and all else it needs.
    ///
    /// Called with the reservation of the object held, while the driver is bound. May sleep for a
    /// short time only. If the job is not created after all, the returned value is dropped.
    ///
    /// # Errors
    ///
    /// On an error the objects stay where they are and no content has changed.
    fn prepare(&self, work: &Work, plan: Plan<'_, Self::Ring>) -> Result<Self::Ready>;

    /// Starts or queues a job.
    ///
    /// Called in the order in which the jobs have to be done. The engine keeps this order, but late
    /// jobs may be overtaken ([`Plan::entry`]). Called in a [`SignallingSection`]: it must not
    /// allocate memory in a way that waits. It must take neither a reservation nor a lock under
    /// which other code does either. If the engine cannot start the job, it finishes the job with
    /// an error when the fences of [`Job::after`] have signalled.
    ///
    /// The job must not begin before the fences of [`Job::after`] have signalled. It must be
    /// finished before the registration data is dropped. A driver that finishes a job without doing
    /// it exposes old content of the memory.
    fn run(&self, job: Job, ready: Self::Ready);

    /// Returns the view by which the CPU does the failed moves of this engine.
    ///
    /// The CPU does the move in [`Job::finish`] or when the job is dropped. Both sleep then. It
    /// does not do the move if earlier ones are not done. The answer must not change.
    ///
    /// Only for an engine that ensures the following when a failed job is finished:
    ///
    /// - It does not access the memory of the job any more.
    /// - No later job of [`Ring::kernel`](crate::drm::queue::Ring::kernel) has begun. Such jobs
    ///   have no fence to wait for and may use the same memory.
    ///
    /// A ring of [`drm::queue`](crate::drm::queue) is such an engine if it does its jobs in order
    /// and jobs fail only by a [`RingOps::reset`]. Other work on the memory of a job depends on its
    /// fence, which signals after the CPU is done.
    fn cpu(&self) -> Option<&CpuView<'_>> {
        None
    }
}

impl<E: Engine + ?Sized> Engine for &E {
    const DMA: bool = E::DMA;

    type Ring = E::Ring;
    type Ready = E::Ready;

    #[inline]
    fn prepare(&self, work: &Work, plan: Plan<'_, E::Ring>) -> Result<E::Ready> {
        E::prepare(self, work, plan)
    }

    #[inline]
    fn run(&self, job: Job, ready: E::Ready) {
        E::run(self, job, ready);
    }

    #[inline]
    fn cpu(&self) -> Option<&CpuView<'_>> {
        E::cpu(self)
    }
}

/// The dependencies and the client of a job in preparation.
pub struct Plan<'a, R: RingOps> {
    after: &'a [ARef<AnyFence>],
    /// Whether some of them depend on other devices.
    external: bool,
    /// Whether the job is a late one of the kernel.
    is_late: bool,
    client: Option<(&'a Queue<R>, Permit)>,
}

impl<R: RingOps> Plan<'_, R> {
    /// Returns the fences that must signal before the job begins.
    #[inline]
    pub fn after(&self) -> &[ARef<AnyFence>] {
        self.after
    }

    /// Creates the entry of the job in a ring. A client's job is in the queue of the client, a job
    /// of the kernel is in `kernel` and a late one has a queue of its own. The job begins when the
    /// fences of [`Self::after`] have signalled.
    ///
    /// # Errors
    ///
    /// The errors of [`Queue::late`], [`Queue::entry`] and [`Entry::depend`].
    pub fn entry(self, kernel: &Queue<R>) -> Result<Entry<R>> {
        let mut entry = match self.client {
            Some((queue, permit)) => queue.entry(Some(permit)),
            None if self.is_late => kernel.late()?.entry(None),
            None => kernel.entry(None),
        }?;

        for fence in self.after {
            entry.add(fence.clone(), !self.external)?;
        }
        Ok(entry)
    }
}

/// The fences of moves and copies.
struct Ops;

impl FenceContextOps for Ops {
    const DRIVER_NAME: &'static CStr = c"ttm";

    /// The source and the target. Dropped when the work is done: the memory may have new owners as
    /// soon as the fence signals.
    type Data = Work;
}

/// The [`Work`] on the content of an object and the fence that others wait for.
///
/// It belongs to the code doing the work and stands for the permission to access the memory.
/// Dropping it fails the job with `ECANCELED`.
#[must_use = "the move is given up when the job is dropped"]
pub struct Job(KBox<Task>);

impl Job {
    /// Returns the work of the job.
    #[inline]
    pub fn work(&self) -> &Work {
        self.0.fence.data()
    }

    /// Returns the fence that others wait for.
    #[inline]
    pub fn fence(&self) -> &Fence {
        self.0.fence.fence()
    }

    /// Returns the fences that must signal before the job begins: those of other work of the device
    /// and, for a copy of a client, of other devices. A ring waits for them (see [`Plan::entry`]).
    #[inline]
    pub fn after(&self) -> &[ARef<AnyFence>] {
        &self.0.after
    }

    /// Returns whether the content to read was lost. Such a job must not be done and is finished
    /// with `EIO`. Must be called when the job begins.
    #[inline]
    pub fn is_void(&self) -> bool {
        self.0.is_void()
    }

    /// Signals that the work is done or has failed.
    ///
    /// All writes must be visible to all devices by now. For a failed job see the [module](self).
    /// May be called in a [`SignallingSection`]. Sleeps if the job failed and the engine has an
    /// [`Engine::cpu`].
    pub fn finish(mut self, result: Result) {
        self.0.fence.set_result(result);
        // The rest is done by `drop()`.
    }
}

/// A job that has no fence yet.
pub(crate) struct Request {
    pub(crate) work: Work,
    /// Keeps the device active until the job is done.
    pub(crate) runtime_guard: Option<RuntimeGuard>,
    /// The fences that the job depends on.
    pub(crate) after: KVec<ARef<AnyFence>>,
    /// Whether one of these fences is not internal to the device.
    pub(crate) external: bool,
    /// Whether the job keeps the order of its engine although it may depend on clients: the memory
    /// it reads is given to others at once.
    pub(crate) in_order: bool,
    /// The object whose content is read, if it can be lost.
    pub(crate) from: Option<Arc<Loss>>,
    /// The object whose content is written, if it can be lost.
    pub(crate) to: Option<Arc<Loss>>,
}

/// A job in its queue.
struct Task {
    // Dropped first, which signals. The device may be suspended afterwards.
    fence: DriverFence<Ops>,
    _runtime_guard: Option<RuntimeGuard>,
    after: KVec<ARef<AnyFence>>,
    /// A job of the kernel: users of its memory wait for it alone and not for its dependencies.
    is_of_kernel: bool,
    from: Option<Arc<Loss>>,
    to: Option<Arc<Loss>>,
    again: Option<Again>,
}

impl Task {
    /// See [`Job::is_void`].
    fn is_void(&self) -> bool {
        self.fence.data().has_source() && self.from.as_ref().is_some_and(|from| from.is_lost())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.is_of_kernel {
            // Drivers have waited for them.
            for fence in self.after.iter().filter(|fence| !fence.is_signaled()) {
                // The wait is not interruptible, so it does not fail.
                let _ = fence.wait(false);
            }
        }

        let is_void = self.is_void();
        let work = self.fence.data();
        let mut result = self.fence.result();

        if is_void {
            // The source did not have the content of the object but maybe that of another one.
            result = Err(EIO);
        } else if let (Err(error), Some(again)) = (result, self.again.take()) {
            if again.by_cpu(work) {
                result = Ok(());
                if let Some(to) = &self.to {
                    to.note_again(error);
                }
            }
        }

        work.set_tainted(result.is_err());
        if let Err(error) = result {
            // A failed copy does not lose the content of its target unless it has read lost
            // content.
            let is_lost = is_void || matches!(work, Work::Move(_));
            if let Some(to) = self.to.as_ref().filter(|_| is_lost) {
                to.mark_lost(error);
            }
        }
        self.fence.set_result(result);
        if let Some(to) = self.to.as_ref() {
            to.end();
        }
        // The objects may be freed when the fence has signalled.
        self.from = None;
        self.to = None;
        // The fence signals when it is dropped, or in its turn if earlier jobs are not done.
    }
}

/// The order of the jobs of one engine or of a client.
struct Line {
    context: FenceContext<Ops>,
    /// Held from when a fence gets its number until its job is in the queue. Contains the last
    /// fence if the engine has an [`Engine::cpu`].
    order: Pin<KBox<Mutex<Option<ARef<Fence>>>>>,
}

impl Line {
    fn new(name: &CStr, group: FenceGroup) -> Result<Self> {
        Self::with_context(FenceContext::new_in(name, group)?)
    }

    /// Creates a line for one late job. Its fence has the same names as those of this line.
    fn late(&self) -> Result<Self> {
        Self::with_context(self.context.alike()?)
    }

    // Not generic and not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    fn with_context(context: FenceContext<Ops>) -> Result<Self> {
        Ok(Self {
            context,
            order: KBox::pin_init(new_mutex!(None, "drm::ttm::Moves::order"), GFP_KERNEL)?,
        })
    }
}

/// The copies of a client in the order of their submission.
///
/// See [`drm::queue`](crate::drm::queue): the limit of the queue is the number of copies the client
/// may have at a time. The client gets a permit before each copy. Dropping the queue cancels the
/// waiting copies.
pub struct CopyQueue<R: RingOps> {
    line: Line,
    queue: Queue<R>,
    engine: usize,
}

impl<R: RingOps> CopyQueue<R> {
    pub(in crate::drm) fn new(
        name: &CStr,
        group: FenceGroup,
        engine: usize,
        queue: Queue<R>,
    ) -> Result<Self> {
        Ok(Self {
            line: Line::new(name, group)?,
            queue,
            engine,
        })
    }

    /// Waits interruptibly until the client may have one more copy. No lock may be held. The task
    /// must not be in the section that an unplug waits for.
    ///
    /// # Errors
    ///
    /// The errors of [`Queue::permit`].
    #[inline]
    pub fn permit(&self) -> Result<Permit> {
        self.queue.permit()
    }

    /// Returns how many copies have hung (see [`Queue::hangs`]).
    #[inline]
    pub fn hangs(&self) -> u32 {
        self.queue.hangs()
    }

    /// Returns how long the engine has worked on copies (see [`Queue::busy_ns`]).
    #[inline]
    pub fn busy_ns(&self) -> u64 {
        self.queue.busy_ns()
    }

    /// As [`Self::permit`] without a wait.
    ///
    /// # Errors
    ///
    /// The errors of [`Queue::try_permit`].
    #[inline]
    pub fn try_permit(&self) -> Result<Permit> {
        self.queue.try_permit()
    }

    /// Cancels a waiting copy and returns whether it was cancelled.
    #[inline]
    pub(crate) fn cancel(&self, fence: &Fence) -> bool {
        self.queue.cancel(fence)
    }
}

/// The client of a job with the permit for one more job.
pub(crate) type Client<'a, R> = Option<(&'a CopyQueue<R>, Permit)>;

/// The orders of the moves of a device, one for each engine.
pub(in crate::drm) struct Moves {
    lines: KVec<Line>,
    group: FenceGroup,
}

impl Moves {
    /// Creates an order for each engine in `names`.
    pub(in crate::drm) fn new(names: &[&CStr]) -> Result<Self> {
        if names.is_empty() {
            return Err(EINVAL);
        }
        if names.len() > MAX_ENGINES {
            return Err(E2BIG);
        }

        let group = FenceGroup::new();
        let mut lines = KVec::with_capacity(names.len(), GFP_KERNEL)?;
        for name in names {
            lines.push(Line::new(name, group)?, GFP_KERNEL)?;
        }
        Ok(Self { lines, group })
    }

    /// Returns the number of engines.
    #[inline]
    pub(in crate::drm) fn engines(&self) -> usize {
        self.lines.len()
    }

    /// Returns the group of all fences of the device.
    #[inline]
    pub(in crate::drm) fn group(&self) -> FenceGroup {
        self.group
    }

    /// Returns whether work of this device may wait for `fence`: it has not signalled and depends
    /// on this device only.
    #[inline]
    pub(in crate::drm) fn has(&self, fence: &Fence) -> bool {
        self.group.has_internal(fence)
    }

    /// Returns whether `fence` is that of a kernel job in the order of its engine.
    pub(in crate::drm) fn has_in_order(&self, fence: &AnyFence) -> bool {
        let context = fence.context();

        self.lines.iter().any(|line| line.context.id() == context)
    }

    /// Returns whether `fence` is that of an unfinished late move. It must have the usage of moves.
    pub(in crate::drm) fn is_late(&self, fence: &Fence) -> bool {
        self.group.has(fence) && !self.has_in_order(fence)
    }

    /// Adds the unfinished work on an object, up to `usage`, to `after`. The work of other devices
    /// is added only if `with_others`. Returns whether some of the work depends on other devices.
    pub(in crate::drm) fn add_dependencies(
        &self,
        resv: &LockedResv<'_>,
        usage: Usage,
        with_others: bool,
        after: &mut KVec<ARef<AnyFence>>,
    ) -> Result<bool> {
        let mut external = false;

        for fence in resv.fences(usage) {
            // Looked up first because a fence that signals meanwhile leaves the group.
            let (is_own, is_internal) = (self.group.has(fence), self.has(fence));

            if !fence.is_signaled() && (with_others || is_own) {
                external |= !is_internal;
                after.push(fence.into(), GFP_KERNEL)?;
            }
        }
        Ok(external)
    }

    /// Creates a job for the engine of the client, or for the engine with the number returned by
    /// `choose` if there is no client. `engine` returns the engine with a number.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no engine with that number.
    /// - `ENOMEM` if memory runs out.
    /// - The errors of [`Engine::prepare`].
    pub(in crate::drm) fn submit<E: Engine>(
        &self,
        choose: impl FnOnce(&Work) -> usize,
        engine: impl FnOnce(usize) -> E,
        mut request: Request,
        client: Client<'_, E::Ring>,
    ) -> Result<ARef<Fence>> {
        let index = match &client {
            Some((copies, _)) => copies.engine,
            None => choose(&request.work),
        };
        let line = self.lines.get(index).ok_or(EINVAL)?;
        let mut after = request.after.iter();
        let is_late =
            client.is_none() && !request.in_order && after.any(|fence| !self.has_in_order(fence));
        let own;
        let line = match &client {
            Some((copies, _)) => &copies.line,
            None if is_late => {
                own = line.late()?;
                &own
            }
            None => line,
        };
        let engine = engine(index);

        // The order of jobs of the same line needs no fences.
        let context = line.context.id();
        request.after.retain(|fence| fence.context() != context);
        let plan = Plan {
            after: &request.after,
            external: request.external,
            is_late,
            client: client.map(|(copies, permit)| (&copies.queue, permit)),
        };
        let is_of_kernel = plan.client.is_none();
        let ready = engine.prepare(&request.work, plan)?;
        let cpu = engine.cpu();
        let view = cpu.and_then(|cpu| cpu.of(&request.work));
        let mut ready = Some(ready);

        line.submit(request, is_of_kernel, cpu.is_some(), view, &mut |job| {
            if let Some(ready) = ready.take() {
                engine.run(job, ready);
            }
        })
    }
}

impl Line {
    #[inline(never)]
    fn submit(
        &self,
        request: Request,
        is_of_kernel: bool,
        has_cpu: bool,
        view: Option<Arc<View>>,
        run: &mut dyn FnMut(Job),
    ) -> Result<ARef<Fence>> {
        let mut fence = self.context.new_fence_allocation(request.work)?;
        if request.external {
            fence.set_external();
        }
        let task = KBox::<Task>::new_uninit(GFP_KERNEL)?;

        let mut last = self.order.lock();
        let _section = SignallingSection::begin();
        let fence = fence.new_fence();
        let shared: ARef<Fence> = fence.fence().into();
        let before = if has_cpu {
            last.replace(shared.clone())
        } else {
            None
        };
        let again = view.map(|view| Again { view, before });
        if let Some(to) = request.to.as_ref() {
            to.begin();
        }
        let task = KBox::write(
            task,
            Task {
                fence,
                _runtime_guard: request.runtime_guard,
                after: request.after,
                is_of_kernel,
                from: request.from,
                to: request.to,
                again,
            },
        );

        run(Job(task));
        Ok(shared)
    }
}

/// The data by which the CPU does a failed job of an engine.
struct Again {
    view: Arc<View>,
    /// The fence of the previous job.
    before: Option<ARef<Fence>>,
}

impl Again {
    /// Does a job by the CPU if the jobs before it are done. Returns whether it is done. Sleeps.
    fn by_cpu(&self, work: &Work) -> bool {
        self.before.as_ref().is_none_or(|fence| fence.is_signaled()) && self.view.by_cpu(work)
    }
}

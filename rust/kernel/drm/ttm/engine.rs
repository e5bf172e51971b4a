// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engines of a device, which move, clear and copy the content of objects.
//!
//! A move is a [`Job`]: the source and the target, and the fence that signals when the move is
//! done. The layer makes the job in two steps, because other tasks wait for the fence while they
//! reclaim memory:
//!
//! - [`Engine::prepare`] allocates what the job needs. It may fail, and has no effect then.
//! - [`Engine::run`] starts the job. It cannot fail, and is in the path that leads to the signal:
//!   the layer annotates it by a [`SignallingSection`], so that lockdep reports an allocation that
//!   waits and a reservation that is taken there. It gets the job and what was prepared: no object,
//!   no reservation and no registration data.
//!
//! # Order
//!
//! Each engine has a [`FenceContext`] for moves, which it does in the order in which they were
//! made, and each client that copies has one of its own ([`CopyQueue`]). VRAM that an object leaves
//! by an eviction is given to the next one at once. Between moves of one engine the order protects
//! the memory. In all other cases fences do: TTM keeps the fence of the last eviction of each engine
//! and adds all of them to the reservation of the new owner, and the layer makes the work on the
//! objects of a job its dependencies ([`Job::after`]). TTM has room for the fences of
//! [`MAX_ENGINES`] engines.
//!
//! A copy of a client may depend on other work of clients, and on fences of other devices. A move
//! that depends on the former, but for an eviction, is *late*: it has a context and a queue of its
//! own ([`Plan::entry`]), because it would hold up all later moves, those of other clients as well.
//! VRAM that it leaves has no new owner before it is done. Evictions stay in the order, since each
//! new object waits for them: they look first for objects that are not used ([`Victims`]). No move
//! depends on other devices: the task that causes it waits for them, and for copies that do. All
//! fences of a device are in a [`FenceGroup`], which tells them from those of other devices.
//!
//! The jobs of a ring go through the queues of [`drm::queue`](crate::drm::queue).
//!
//! [`Victims`]: super::Victims
//!
//! # DMA
//!
//! For engines with [`Engine::DMA`] the pages of each object in [`Place::TT`](super::Place::TT) are
//! mapped as one scatter table whose neighbours are merged. The mapping begins on the way to
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
//! A driver finishes a job with an error if the engine could not do it, or drops it. The CPU then
//! does a move, if [`Engine::cpu`] allows it and the CPU reaches all VRAM of both sides: the fence
//! signals after that, and the log names the object. The copy of a client fails, and its fence has
//! the error. Otherwise the object that was to move has lost its content, see
//! [`Loss`](super::loss::Loss). Pins, mappings of the kernel and of importers and copies return
//! `EIO`. An access by a process raises `SIGBUS`. The log names the object unless many are lost.
//! The file `memory` in debugfs counts it. The object can still be moved and freed. A job that
//! reads lost content makes its target lose its content as well.
//!
//! VRAM that the failed job should have filled may have content of other objects. It is put in
//! quarantine when the object leaves it. The driver calls [`Allocator::count_reset`] after a reset
//! of the device and before it begins jobs again. It calls [`Allocator::end_quarantine`] later
//! where it may sleep. An importer may have mapped VRAM before a job fills it. Only the fence
//! notifies it: it must not read the VRAM if the fence has an error.
//!
//! [`Allocator::count_reset`]: crate::drm::vram::Allocator::count_reset
//! [`Allocator::end_quarantine`]: crate::drm::vram::Allocator::end_quarantine
//!
//! A driver that violates the order holds up its own device, and may lose the content of its own
//! VRAM. No memory of the kernel is at risk, because the fence of a move does not signal before the
//! one before it, nor before those that the move depends on.
//!
//! [`CpuEngine`](super::CpuEngine) is for devices that cannot copy themselves.
//!
//! # Locking
//!
//! The mutex of a line of [`Moves`], or of a [`CopyQueue`], is taken with the reservation of an
//! object held, and is held while the driver gets a job. Nothing that a job waits for may take it.
//! [`CpuView`] documents the mutexes that are taken by the task that finishes a job that failed.
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
    /// `vram` must be the address of VRAM, in which all ranges of both sides are mapped.
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

    /// Records whether VRAM may have content of its former owner, because a move that was to fill
    /// it has failed.
    fn set_tainted(&self, is_tainted: bool) {
        if let Self::Move(transfer) = self {
            if let super::Memory::Vram(to) = transfer.to() {
                to.set_tainted(is_tainted);
            }
        }
    }

    /// Returns the address of a byte of I/O memory that was written to, or [`None`] if none was.
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

/// The maximal number of engines of a device: TTM keeps this many fences of evictions.
pub const MAX_ENGINES: usize = bindings::TTM_NUM_MOVE_FENCES as usize;

/// An engine that works on the content of objects.
pub trait Engine {
    /// Whether the engine reaches system memory by DMA.
    ///
    /// If so, the layer keeps the pages of objects in [`Place::TT`](super::Place::TT) mapped for
    /// the device whose memory VRAM is, and [`Pages::dma`](super::Pages::dma) returns their DMA
    /// addresses. If not, nothing is mapped.
    const DMA: bool = false;

    /// The ring that does the copies of clients.
    type Ring: RingOps;

    /// The memory that a job needs. If a ring does the job it is the ring's [`Entry`].
    type Ready: Send;

    /// Prepares a job: allocates memory and all else that it needs.
    ///
    /// Called with the reservation of the object held, while the driver is bound. May sleep, for a
    /// short time only. If the job is not made after all, the returned value is dropped.
    ///
    /// # Errors
    ///
    /// On an error the objects stay where they are, and no content has changed.
    fn prepare(&self, work: &Work, plan: Plan<'_, Self::Ring>) -> Result<Self::Ready>;

    /// Starts a job, or queues it.
    ///
    /// Called in the order in which the jobs have to be done, which the engine keeps, but late ones
    /// may be overtaken ([`Plan::entry`]). In a [`SignallingSection`]: it must not allocate memory in
    /// a way that waits, nor take a reservation, nor a lock under which other code does either. An
    /// engine that cannot start the job finishes it with an error, when the fences of [`Job::after`]
    /// have signalled.
    ///
    /// The job must not begin before the fences of [`Job::after`] have signalled, and must be
    /// finished before the registration data is dropped. A driver that finishes a job without
    /// having done it exposes old content of the memory.
    fn run(&self, job: Job, ready: Self::Ready);

    /// Returns the view by which the CPU does moves that this engine has failed to do.
    ///
    /// The CPU does the move in [`Job::finish`], or when the job is dropped; both sleep then. It
    /// does not do the move if earlier ones are not done. The answer must not change.
    ///
    /// Only for an engine that ensures that, when a job that has failed is finished,
    ///
    /// - it does not access the memory of the job any more, and
    /// - no job of [`Ring::kernel`](crate::drm::queue::Ring::kernel) that was made later has begun:
    ///   those have no fence to wait for, and their memory may be the same.
    ///
    /// A ring of [`drm::queue`](crate::drm::queue) is such an engine, if it does its jobs in order,
    /// and jobs fail only by a [`RingOps::reset`]. Other work that uses the memory of a job depends
    /// on its fence, which signals after the CPU is done.
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

/// The dependencies of a job that is being prepared, and the client that it is for.
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

    /// Makes the entry of the job in a ring: in the queue of the client, in `kernel` if the job is
    /// for the kernel, or in a queue of its own if that job is late. The job begins when the fences
    /// of [`Self::after`] have signalled.
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

/// The [`Work`] on the content of an object, and the fence that others wait for.
///
/// It belongs to the code that does the work, and stands for the permission to access the memory.
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

    /// Returns the fences that must signal before the job begins: those of other work of the
    /// device, and, for a copy of a client, of other devices. A ring waits for them, see
    /// [`Plan::entry`].
    #[inline]
    pub fn after(&self) -> &[ARef<AnyFence>] {
        &self.0.after
    }

    /// Returns whether the content that is read was lost: then the job must not be done, and is
    /// finished with `EIO`. Must be called when the job begins.
    #[inline]
    pub fn is_void(&self) -> bool {
        self.0.is_void()
    }

    /// Signals that the work is done, or that it failed.
    ///
    /// All writes must be visible to all devices by now. For a job that failed see the
    /// [module](self). May be called in a [`SignallingSection`]; sleeps if the job failed and the
    /// engine has an [`Engine::cpu`].
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
    /// Whether one of these fences is not an internal one of the device.
    pub(crate) external: bool,
    /// Whether the job keeps the order of its engine although it may depend on clients: the memory
    /// that it reads is given to others at once.
    pub(crate) in_order: bool,
    /// The object whose content is read, if it can be lost.
    pub(crate) from: Option<Arc<Loss>>,
    /// The object whose content is written, if it can be lost.
    pub(crate) to: Option<Arc<Loss>>,
}

/// A job in its queue.
struct Task {
    // Dropped first, which signals; then the device may be suspended.
    fence: DriverFence<Ops>,
    _runtime_guard: Option<RuntimeGuard>,
    after: KVec<ARef<AnyFence>>,
    /// A job of the kernel: users of its memory wait for it alone, not for what it depends on.
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
            // The source did not have the content of the object, and maybe that of another one.
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
            // A failed copy does not change the content of the object, or that of the client's
            // copy, unless the content was lost.
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
        // The fence signals when it is dropped, or in its turn, if jobs before it are not done.
    }
}

/// The order of jobs: of those of one engine, or of a client.
struct Line {
    context: FenceContext<Ops>,
    /// Held from when a fence gets its number until its job is in the queue. Contains the last
    /// fence, if the engine has an [`Engine::cpu`].
    order: Pin<KBox<Mutex<Option<ARef<Fence>>>>>,
}

impl Line {
    fn new(name: &CStr, group: FenceGroup) -> Result<Self> {
        Self::with_context(FenceContext::new_in(name, group)?)
    }

    /// Makes a line for one late job, whose fence has the names of those of this line.
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

/// The copies of a client, in the order in which the client has submitted them.
///
/// See [`drm::queue`](crate::drm::queue): the number of copies that the client has at a time is
/// that for which the queue was made, and the client gets a permit before each. Dropping the queue
/// cancels copies that have not begun.
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

    /// Waits until the client may have one more copy, interruptibly. No lock may be held, nor may
    /// the task be in the section that an unplug waits for.
    ///
    /// # Errors
    ///
    /// The errors of [`Queue::permit`].
    #[inline]
    pub fn permit(&self) -> Result<Permit> {
        self.queue.permit()
    }

    /// Returns how many copies have hung, see [`Queue::hangs`].
    #[inline]
    pub fn hangs(&self) -> u32 {
        self.queue.hangs()
    }

    /// Returns how long the engine has worked on copies, see [`Queue::busy_ns`].
    #[inline]
    pub fn busy_ns(&self) -> u64 {
        self.queue.busy_ns()
    }

    /// As [`Self::permit`], without a wait.
    ///
    /// # Errors
    ///
    /// The errors of [`Queue::try_permit`].
    #[inline]
    pub fn try_permit(&self) -> Result<Permit> {
        self.queue.try_permit()
    }

    /// Cancels a copy that has not begun, and returns whether it was cancelled.
    #[inline]
    pub(crate) fn cancel(&self, fence: &Fence) -> bool {
        self.queue.cancel(fence)
    }
}

/// The client that a job is for, with the permit for one more job.
pub(crate) type Client<'a, R> = Option<(&'a CopyQueue<R>, Permit)>;

/// The orders of the moves of a device, one for each engine.
pub(in crate::drm) struct Moves {
    lines: KVec<Line>,
    group: FenceGroup,
}

impl Moves {
    /// Makes an order for each engine in `names`.
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

    /// Returns whether `fence` is one that work of this device may wait for: it has not signalled,
    /// and depends on this device only.
    #[inline]
    pub(in crate::drm) fn has(&self, fence: &Fence) -> bool {
        self.group.has_internal(fence)
    }

    /// Returns whether `fence` is that of a job of the kernel in the order of its engine.
    pub(in crate::drm) fn has_in_order(&self, fence: &AnyFence) -> bool {
        let context = fence.context();

        self.lines.iter().any(|line| line.context.id() == context)
    }

    /// Returns whether `fence`, which has the usage of moves, is that of a late one that is not done.
    pub(in crate::drm) fn is_late(&self, fence: &Fence) -> bool {
        self.group.has(fence) && !self.has_in_order(fence)
    }

    /// Adds to `after` the work on an object, up to `usage`, that is not done; the work of other
    /// devices only if `with_others`. Returns whether some of the work depends on other devices.
    pub(in crate::drm) fn add_dependencies(
        &self,
        resv: &LockedResv<'_>,
        usage: Usage,
        with_others: bool,
        after: &mut KVec<ARef<AnyFence>>,
    ) -> Result<bool> {
        let mut external = false;

        for fence in resv.fences(usage) {
            // Looked up first: a fence that signals meanwhile leaves the group.
            let (is_own, is_internal) = (self.group.has(fence), self.has(fence));

            if !fence.is_signaled() && (with_others || is_own) {
                external |= !is_internal;
                after.push(fence.into(), GFP_KERNEL)?;
            }
        }
        Ok(external)
    }

    /// Makes a job for an engine: for the engine of the client, or the one with the number that
    /// `choose` returns. `engine` returns the engine with a number.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no engine with that number.
    /// - The errors of [`Engine::prepare`], and `ENOMEM` if memory runs out.
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

/// The data by which the CPU does a job that an engine has failed to do.
struct Again {
    view: Arc<View>,
    /// The fence of the previous job.
    before: Option<ARef<Fence>>,
}

impl Again {
    /// Does a job by the CPU, if the jobs before it are done. Returns whether it is done. Sleeps.
    fn by_cpu(&self, work: &Work) -> bool {
        self.before.as_ref().is_none_or(|fence| fence.is_signaled()) && self.view.by_cpu(work)
    }
}

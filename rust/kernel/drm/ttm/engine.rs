// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engines of a device, which move, clear and copy the content of objects.
//!
//! A move is a [`Job`]: what goes where, and the fence that signals when it is there. The layer
//! makes the job in two steps, because others wait for the fence while they reclaim memory:
//!
//! - [`Engine::prepare`] allocates what the job needs. It may fail, and nothing has happened then.
//! - [`Engine::run`] starts the job. It cannot fail, and is in the path that leads to the signal:
//!   the layer annotates it by a [`SignallingSection`], so that lockdep reports an allocation that
//!   waits and a reservation that is taken there. It is given the job and what was prepared: no
//!   object, no reservation and no registration data.
//!
//! # Order
//!
//! Each engine has a [`FenceContext`], and does its jobs in the order in which they were made. VRAM
//! that an object leaves is given to the next one at once. If the same engine works for the new
//! owner, its order is what protects the memory. Between engines nothing but fences does: TTM keeps
//! the fence of the last eviction of each engine and adds all of them to the reservation of the new
//! owner, and the layer makes those of other engines dependencies of the job ([`Job::after`]). TTM
//! has room for the fences of [`MAX_ENGINES`] engines.
//!
//! Fences of other devices are waited for before a job is made.
//!
//! # Failures
//!
//! A driver finishes a job with an error if the engine could not do it, or drops it. The CPU then
//! does the job, if [`Engine::cpu`] says that it may and the BAR shows all VRAM that takes part.
//! Otherwise the object that was to move has lost its content, see [`Loss`](super::loss::Loss): its
//! users get `EIO`, and VRAM that was to be filled is in quarantine once the object leaves it. What
//! a job makes of content that was lost is lost as well.
//!
//! A driver that does not keep to the order holds up its own device, and may lose the content of
//! its own VRAM; no memory of the kernel is at risk: a fence does not signal before the one before
//! it.
//!
//! [`CpuEngine`] is for devices that cannot copy themselves.
//!
//! # Locking
//!
//! The mutex of a line of [`Moves`] is taken with the reservation of an object held, and is held
//! while the driver runs a job. Nothing that a job waits for may take it. The mutex of [`View`] is
//! taken by the task that finishes a job that failed; nothing is allocated or waited for while it
//! is held.
//!
//! C header: [`include/linux/dma-fence.h`](srctree/include/linux/dma-fence.h)

use super::{
    blit::Blit,
    loss::Loss,
    transfer::Transfer, //
};
use crate::{
    bindings,
    dma_buf::fence::{
        DriverFence,
        Fence,
        FenceContext,
        FenceContextOps,
        SignallingSection, //
    },
    dma_resv::{
        LockedResv,
        Usage, //
    },
    drm::vram::{
        flush,
        Ranges,
        Window, //
    },
    impl_has_work,
    new_mutex,
    new_work,
    pm::Awake,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    },
    workqueue::{
        self,
        Queue,
        WorkItem, //
    }, //
};
use core::ptr::{
    self,
    NonNull, //
};

/// What an engine is asked to do.
pub enum Work {
    /// The content of an object moves.
    Move(Transfer),
    /// Bytes are copied.
    Copy(Blit),
}

impl Work {
    /// Tells whether a BAR of `len` bytes shows all VRAM that takes part.
    fn is_in_bar(&self, len: u64) -> bool {
        match self {
            Self::Move(transfer) => transfer.is_in_bar(len),
            Self::Copy(blit) => blit.is_in_bar(len),
        }
    }

    /// Lets the CPU do it. Does not allocate memory.
    ///
    /// # Safety
    ///
    /// `vram` must be the address of VRAM, in which all ranges that take part are mapped.
    unsafe fn by_cpu(&self, vram: *mut c_void) {
        // SAFETY: By the safety requirements.
        unsafe {
            match self {
                Self::Move(transfer) => transfer.by_cpu(vram),
                Self::Copy(blit) => blit.by_cpu(vram),
            }
        }
    }

    /// Tells whether there is content that is read.
    fn has_source(&self) -> bool {
        match self {
            Self::Move(transfer) => transfer.from().is_some(),
            Self::Copy(_) => true,
        }
    }

    /// Takes note that VRAM may have what others left there, as a move was to fill it and has not,
    /// or that it has not.
    fn set_tainted(&self, is_tainted: bool) {
        if let Self::Move(transfer) = self {
            if let super::Memory::Vram(to) = transfer.to() {
                to.set_tainted(is_tainted);
            }
        }
    }

    /// Returns the address of a byte of I/O memory that was written to, [`None`] if none was.
    fn written(&self, vram: *mut c_void) -> Option<*mut c_void> {
        match self {
            Self::Move(transfer) => match transfer.to() {
                super::Memory::Vram(to) => to.last(vram),
                _ => None,
            },
            Self::Copy(blit) => blit.written(vram),
        }
    }
}

/// How many engines a device can have: TTM keeps the fences of the evictions of so many.
pub const MAX_ENGINES: usize = bindings::TTM_NUM_MOVE_FENCES as usize;

/// An engine that works on the content of objects.
pub trait Engine {
    /// Whether the engine reaches system memory by DMA.
    ///
    /// If so, the layer keeps the pages of objects in [`Place::TT`](super::Place::TT) mapped for
    /// the device whose memory VRAM is, and [`Pages::dma`](super::Pages::dma) returns their DMA
    /// addresses. If not, nothing is mapped.
    const DMA: bool = false;

    /// What a job needs.
    type Ready: Send;

    /// Prepares a job: allocates memory and whatever else it needs.
    ///
    /// Called with the reservation of the object held, while the driver is bound. May sleep, for a
    /// short time only. The job may not be made after all; what is returned is dropped then.
    ///
    /// # Errors
    ///
    /// The objects stay where they are, and the content of no memory has changed.
    fn prepare(&self, work: &Work) -> Result<Self::Ready>;

    /// Starts a job, or queues it.
    ///
    /// Called in the order in which the jobs have to be done, which the engine keeps, in a
    /// [`SignallingSection`]: it must not allocate memory in a way that waits, nor take a
    /// reservation, nor a lock that is held elsewhere while that is done. An engine that cannot
    /// start the job finishes it with an error.
    ///
    /// The job must not begin before the fences of [`Job::after`] have signalled, and must be
    /// finished before the registration data is gone. A driver that finishes a job without having
    /// done it shows what others left in the memory.
    fn run(&self, job: Job, ready: Self::Ready);

    /// Returns the engine by which the CPU does a job again that this one has failed to do.
    ///
    /// Only for an engine that does not begin a job before the one before it was finished: the
    /// memory of both may be the same. The CPU does it in [`Job::finish`], or where the job is
    /// dropped, which sleeps then; it does not if the jobs before it are not done. The answer must
    /// not change.
    fn cpu(&self) -> Option<&CpuEngine<'_>> {
        None
    }
}

impl<E: Engine + ?Sized> Engine for &E {
    const DMA: bool = E::DMA;

    type Ready = E::Ready;

    #[inline]
    fn prepare(&self, work: &Work) -> Result<E::Ready> {
        E::prepare(self, work)
    }

    #[inline]
    fn run(&self, job: Job, ready: E::Ready) {
        E::run(self, job, ready);
    }

    #[inline]
    fn cpu(&self) -> Option<&CpuEngine<'_>> {
        E::cpu(self)
    }
}

/// The fences of moves and copies.
struct Ops;

impl FenceContextOps for Ops {
    const DRIVER_NAME: &'static CStr = c"ttm";

    /// What goes where. Dropped when it is there: the memory may belong to others as soon as the
    /// fence signals.
    type Data = Work;
}

/// The content of an object on its way: the [`Work`] and the fence that others wait for.
///
/// It belongs to whoever does the work, and stands for the permission to access the memory. Dropping
/// it is to fail with `ECANCELED`.
#[must_use = "the move is given up when the job is dropped"]
pub struct Job(Pin<KBox<Task>>);

impl Job {
    /// Returns what is to be done.
    #[inline]
    pub fn work(&self) -> &Work {
        self.0.fence.data()
    }

    /// Returns the fences of other engines of the device that must signal before the job begins.
    #[inline]
    pub fn after(&self) -> &[ARef<Fence>] {
        &self.0.after
    }

    /// Tells whether the content that is read was lost: there is nothing to be done, and the job is
    /// finished with `EIO`. To be asked when the job begins.
    #[inline]
    pub fn is_void(&self) -> bool {
        self.0.is_void()
    }

    /// Tells everybody that the work is done, or that it failed.
    ///
    /// What was written must be visible to all by now. For what becomes of a job that failed see
    /// the [module](self). May be called in a [`SignallingSection`]; sleeps if it failed and the
    /// engine has an [`Engine::cpu`].
    pub fn finish(mut self, result: Result) {
        self.0.as_mut().project().fence.set_result(result);
        // The rest is done by `drop()`.
    }
}

/// A job that has no fence yet.
pub(crate) struct Request {
    pub(crate) work: Work,
    /// Keeps the device awake until it is done.
    pub(crate) awake: Option<Awake>,
    /// The fences of engines of the device that it depends on.
    pub(crate) after: KVec<ARef<Fence>>,
    /// The object whose content is read, if it can be lost.
    pub(crate) from: Option<Arc<Loss>>,
    /// The object whose content is written, if it can be lost.
    pub(crate) to: Option<Arc<Loss>>,
}

/// A job in its queue.
///
/// # Invariants
///
/// Between `CpuEngine::run` and the end of the work, `vram` is the address of VRAM, in which all
/// ranges that take part are mapped, and `pdev` the device that has it.
#[pin_data(PinnedDrop)]
struct Task {
    // Signalled, then the device may be suspended.
    fence: DriverFence<Ops>,
    awake: Option<Awake>,
    after: KVec<ARef<Fence>>,
    from: Option<Arc<Loss>>,
    to: Option<Arc<Loss>>,
    again: Option<Again>,
    vram: *mut c_void,
    pdev: *mut bindings::pci_dev,
    #[pin]
    work: workqueue::Work<Task>,
}

// SAFETY: `vram` and `pdev` may be used by any task; the rest is `Send`.
unsafe impl Send for Task {}

impl_has_work! {
    impl HasWork<Self> for Task { self.work }
}

impl Task {
    /// See [`Job::is_void`].
    fn is_void(&self) -> bool {
        self.fence.data().has_source() && self.from.as_ref().is_some_and(|from| from.is_lost())
    }
}

#[pinned_drop]
impl PinnedDrop for Task {
    fn drop(self: Pin<&mut Self>) {
        let is_void = self.is_void();
        let this = self.project();
        let work = this.fence.data();
        let mut result = this.fence.result();

        if is_void {
            // Whatever was copied is not what the object had, maybe that of others.
            result = Err(EIO);
        } else if let (Err(_), Some(again)) = (result, this.again.take()) {
            // What it depends on is not waited for here.
            if this.after.iter().all(|fence| fence.is_signaled()) && again.by_cpu(work) {
                result = Ok(());
                if let Some(to) = &this.to {
                    to.note_again();
                }
            }
        }

        work.set_tainted(result.is_err());
        if let Err(error) = result {
            // A copy that fails leaves what the object had, or what the client copies, unless that
            // was lost.
            let is_lost = is_void || matches!(work, Work::Move(_));
            if let Some(to) = this.to.as_ref().filter(|_| is_lost) {
                to.lose(error);
            }
        }
        this.fence.set_result(result);
        if let Some(to) = this.to.as_ref() {
            to.end();
        }
        // The objects may be gone when the fence has signalled.
        *this.from = None;
        *this.to = None;
        // The fence signals when it is dropped, or in its turn, if jobs before it are not done.
    }
}

impl WorkItem for Task {
    type Pointer = Pin<KBox<Self>>;

    fn run(mut this: Pin<KBox<Self>>) {
        for fence in &this.after {
            // It cannot fail without signals. Made before this job, so it does not wait for it.
            let _ = fence.wait(false);
        }
        let _section = SignallingSection::begin();

        // What is copied could be that of others, and go to where nobody can take it back.
        // SAFETY: By the type invariant.
        let result = if this.is_void() {
            Err(EIO)
        } else if unsafe { by_cpu(this.fence.data(), this.vram, this.pdev) } {
            Ok(())
        } else {
            Err(ENODEV)
        };
        this.as_mut().project().fence.set_result(result);
        // In the section, and not after it.
        drop(this);
    }
}

/// Lets the CPU do a job, and returns whether the device was there all the time.
///
/// # Safety
///
/// `vram` must be the address of VRAM, in which all ranges that take part are mapped, and `pdev`
/// the device that has it.
unsafe fn by_cpu(work: &Work, vram: *mut c_void, pdev: *mut bindings::pci_dev) -> bool {
    // A device that is gone answers with ones, and each answer may take its time.
    // SAFETY: By the safety requirements.
    let is_gone = || unsafe { bindings::pci_dev_is_disconnected(pdev) };

    if is_gone() {
        return false;
    }
    // SAFETY: By the safety requirements.
    unsafe {
        work.by_cpu(vram);
        if let Some(at) = work.written(vram) {
            flush(at);
        }
    }
    !is_gone()
}

/// The order of the jobs of one engine.
struct Line {
    context: FenceContext<Ops>,
    /// Held from when a fence gets its number until its job is in the queue. Has the last fence, if
    /// the engine has an [`Engine::cpu`].
    order: Pin<KBox<Mutex<Option<ARef<Fence>>>>>,
}

impl Line {
    // Not generic and not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    fn new(name: &CStr) -> Result<Self> {
        Ok(Self {
            context: FenceContext::new(name)?,
            order: KBox::pin_init(new_mutex!(None, "drm::ttm::Moves::order"), GFP_KERNEL)?,
        })
    }
}

/// The orders of the jobs of a device, one for each engine.
pub(super) struct Moves(KVec<Line>);

impl Moves {
    /// Makes one for each engine that `names` has.
    pub(super) fn new(names: &[&CStr]) -> Result<Self> {
        if names.is_empty() {
            return Err(EINVAL);
        }
        if names.len() > MAX_ENGINES {
            return Err(E2BIG);
        }

        let mut lines = KVec::with_capacity(names.len(), GFP_KERNEL)?;
        for name in names {
            lines.push(Line::new(name)?, GFP_KERNEL)?;
        }
        Ok(Self(lines))
    }

    /// Returns how many engines there are.
    #[inline]
    pub(super) fn engines(&self) -> usize {
        self.0.len()
    }

    /// Tells whether `fence` is that of a move of this device.
    #[inline]
    pub(super) fn has(&self, fence: &Fence) -> bool {
        self.0
            .iter()
            .any(|line| fence.context() == line.context.id())
    }

    /// Adds to `after` what work on an object, that conflicts with all work up to `usage`, depends
    /// on.
    ///
    /// With one engine that is nothing, as its order is that of the jobs.
    pub(super) fn add_dependencies(
        &self,
        resv: &LockedResv<'_>,
        usage: Usage,
        after: &mut KVec<ARef<Fence>>,
    ) -> Result {
        if self.0.len() > 1 {
            for fence in resv.fences(usage) {
                if self.has(fence) && !fence.is_signaled() {
                    after.push(fence.into(), GFP_KERNEL)?;
                }
            }
        }
        Ok(())
    }

    /// Makes a job for `engine`, the one with the number `index`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no engine with that number.
    /// - What [`Engine::prepare`] returns, `ENOMEM` if memory runs out.
    pub(super) fn submit<E: Engine>(
        &self,
        index: usize,
        engine: &E,
        request: Request,
    ) -> Result<ARef<Fence>> {
        let line = self.0.get(index).ok_or(EINVAL)?;
        let ready = engine.prepare(&request.work)?;
        let cpu = engine.cpu();
        let view = cpu
            .filter(|cpu| request.work.is_in_bar(cpu.window.len()))
            .map(|cpu| cpu.view.0.clone());
        let mut ready = Some(ready);

        line.submit(request, cpu.is_some(), view, &mut |job| {
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
        mut request: Request,
        has_cpu: bool,
        view: Option<Arc<View>>,
        run: &mut dyn FnMut(Job),
    ) -> Result<ARef<Fence>> {
        request
            .after
            .retain(|fence| fence.context() != self.context.id());
        let fence = self.context.new_fence_allocation(request.work)?;
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
        // INVARIANT: Not in a queue.
        let task = task.write_pin_init(pin_init!(Task {
            fence,
            awake: request.awake,
            after: request.after,
            from: request.from,
            to: request.to,
            again,
            vram: ptr::null_mut(),
            pdev: ptr::null_mut(),
            work <- new_work!("drm::ttm::Task::work"),
        }))?;

        run(Job(task));
        Ok(shared)
    }
}

/// By which the CPU does a job again.
struct Again {
    view: Arc<View>,
    /// The fence of the job before it.
    before: Option<ARef<Fence>>,
}

impl Again {
    /// Lets the CPU do a job, if those before it are done. Returns whether it is done. Sleeps.
    fn by_cpu(&self, work: &Work) -> bool {
        self.before.as_ref().is_none_or(|fence| fence.is_signaled()) && self.view.by_cpu(work)
    }
}

/// Where the CPU sees VRAM, as long as it does, for the task that finishes a job that failed.
///
/// # Invariants
///
/// What `at` has is the address at which all of a [`Window`] is mapped, and its device, which stay
/// while the mutex is held.
#[pin_data]
struct View {
    #[pin]
    at: Mutex<Option<(*mut c_void, *mut bindings::pci_dev)>>,
}

// SAFETY: The pointers may be used by any task.
unsafe impl Send for View {}

// SAFETY: As for `Send`; the mutex guards them.
unsafe impl Sync for View {}

impl View {
    // Not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    fn new(window: &Window<'_>) -> Result<Arc<Self>> {
        let at = Some((window.as_ptr(), window.as_pci()));

        // INVARIANT: `Shown`, which is dropped before the window, takes it away.
        Arc::pin_init(
            pin_init!(Self {
                at <- new_mutex!(at, "drm::ttm::View::at"),
            }),
            GFP_KERNEL,
        )
    }

    /// Lets the CPU do a job that the window shows. Returns whether it is done. Sleeps.
    fn by_cpu(&self, work: &Work) -> bool {
        let at = self.at.lock();

        // SAFETY: By the type invariant; `Moves::submit` has checked that the window has the
        // ranges.
        at.is_some_and(|(vram, pdev)| unsafe { by_cpu(work, vram, pdev) })
    }
}

/// Takes the view away when it is dropped.
struct Shown(Arc<View>);

impl Drop for Shown {
    fn drop(&mut self) {
        *self.0.at.lock() = None;
    }
}

/// The CPU as the copy engine of a device, which does jobs one after the other.
///
/// It owns the CPU's view of VRAM. Dropping it waits for the jobs that are in the queue.
pub struct CpuEngine<'a> {
    // Dropped first.
    queue: OrderedQueue,
    // Dropped before the window.
    view: Shown,
    window: Window<'a>,
}

impl<'a> CpuEngine<'a> {
    /// Makes an engine for the VRAM that `window` shows.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn new(window: Window<'a>) -> Result<Self> {
        Ok(Self {
            queue: OrderedQueue::new()?,
            view: Shown(View::new(&window)?),
            window,
        })
    }

    /// Returns the CPU's view of VRAM.
    #[inline]
    pub fn window(&self) -> &Window<'a> {
        &self.window
    }

    /// Overwrites all of VRAM, as the loss of power does.
    ///
    /// For drivers of devices that keep their memory, to show what happens where it is lost. Nothing
    /// may be queued.
    pub fn scribble(&self, byte: u8) {
        self.window.fill(byte);
    }

    /// Reads what the BAR shows at `at`, as the device does by an address in a page table.
    ///
    /// # Errors
    ///
    /// Those of [`Window::read`].
    #[inline]
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result {
        self.window.read(at, to)
    }

    /// Makes what the CPU wrote to an object in VRAM visible to devices.
    #[inline]
    pub fn flush(&self, vram: &Ranges) {
        self.window.flush(vram);
    }
}

impl Engine for CpuEngine<'_> {
    type Ready = ();

    /// # Errors
    ///
    /// `EINVAL` if a part of it is not inside the window.
    fn prepare(&self, work: &Work) -> Result {
        if work.is_in_bar(self.window.len()) {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }

    /// Queues a job. One of which a part is not inside the window fails with `EINVAL`.
    #[inline(never)]
    fn run(&self, job: Job, _ready: ()) {
        if let Err(e) = self.prepare(job.work()) {
            job.finish(Err(e));
            return;
        }

        let Job(mut task) = job;
        // INVARIANT: The window has all of the ranges, and `queue` is drained before it goes.
        *task.as_mut().project().vram = self.window.as_ptr();
        *task.as_mut().project().pdev = self.window.as_pci();
        self.queue.enqueue(task);
    }
}

/// A workqueue that runs one item after the other. Dropping it waits for all of them.
///
/// # Invariants
///
/// The workqueue is valid, and owned by the value.
struct OrderedQueue(NonNull<bindings::workqueue_struct>);

// SAFETY: Workqueues may be used and destroyed from any task.
unsafe impl Send for OrderedQueue {}

// SAFETY: As for `Send`.
unsafe impl Sync for OrderedQueue {}

impl OrderedQueue {
    fn new() -> Result<Self> {
        // Others wait for the jobs while they reclaim memory.
        let flags = bindings::wq_flags_WQ_UNBOUND
            | bindings::wq_flags___WQ_ORDERED
            | bindings::wq_flags_WQ_MEM_RECLAIM;

        // SAFETY: The format has no arguments.
        let queue =
            unsafe { bindings::alloc_workqueue_noprof(c"ttm_copy".as_char_ptr(), flags, 1) };

        // INVARIANT: It was just made.
        Ok(Self(NonNull::new(queue).ok_or(ENOMEM)?))
    }

    fn enqueue(&self, task: Pin<KBox<Task>>) {
        // SAFETY: By the type invariant the workqueue is valid.
        unsafe { Queue::from_raw(self.0.as_ptr()) }.enqueue(task);
    }
}

impl Drop for OrderedQueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, and nobody else can add work.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

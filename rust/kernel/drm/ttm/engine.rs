// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who moves and copies the content of objects, and in which order.
//!
//! A move is a [`Job`]: what goes where, and the fence that signals when it is there. The layer
//! makes the job, adds its fence to the reservation of the object, and goes on; VRAM that the object
//! left is given to the next one at once. That is right because all jobs of a device are done in the
//! order in which they were made: whoever gets the memory is served after the job that still reads
//! it.
//!
//! A driver that does not keep to that order, or keeps a job that it has refused, holds up its own
//! device, and may lose the content of its own VRAM; no memory of the kernel is at risk: a fence does
//! not signal before the one before it, and a job that was refused is waited for.
//!
//! [`CpuEngine`] is for devices that cannot copy themselves.
//!
//! # Locking
//!
//! The mutex of [`Moves`] is taken with the reservation of an object held, and is held while the
//! driver queues a job. Nothing that a job waits for may take it.
//!
//! C header: [`include/linux/dma-fence.h`](srctree/include/linux/dma-fence.h)

use super::{
    blit::Blit,
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
/// it gives that up: the fence signals with `ECANCELED`, and system memory that was to be filled is
/// cleared. VRAM is not, as only the driver can: it has to clear VRAM that a job was to fill before
/// it gives up a job that it has accepted, or others see what was there.
#[must_use = "the move is given up when the job is dropped"]
pub struct Job(Pin<KBox<Task>>);

impl Job {
    /// Returns what is to be done.
    #[inline]
    pub fn work(&self) -> &Work {
        self.0.fence.data()
    }

    /// Tells everybody that the work is done, or that it failed.
    ///
    /// What was written must be visible to all by now. If the work failed the content is lost, and
    /// VRAM that was to be filled must have been cleared. May be called in a [`SignallingSection`].
    pub fn finish(mut self, result: Result) {
        self.0.as_mut().project().fence.set_result(result);
        // The rest is done by `drop()`.
    }
}

/// A job in its queue.
///
/// # Invariants
///
/// Between `CpuEngine::submit` and the end of the work, `vram` is the address of VRAM, in which all
/// ranges that take part are mapped, and `pdev` the device that has it.
#[pin_data(PinnedDrop)]
struct Task {
    // Signalled, then the device may be suspended.
    fence: DriverFence<Ops>,
    awake: Option<Awake>,
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

#[pinned_drop]
impl PinnedDrop for Task {
    fn drop(self: Pin<&mut Self>) {
        if let (Err(_), Work::Move(transfer)) = (self.fence.result(), self.fence.data()) {
            transfer.clear_pages();
        }
        // The fence signals when it is dropped, or in its turn, if jobs before it are not done.
    }
}

impl WorkItem for Task {
    type Pointer = Pin<KBox<Self>>;

    fn run(mut this: Pin<KBox<Self>>) {
        let _section = SignallingSection::begin();

        // A device that is gone answers with ones, and each answer may take its time.
        // SAFETY: By the type invariant.
        let is_gone = || unsafe { bindings::pci_dev_is_disconnected(this.pdev) };

        if !is_gone() {
            // SAFETY: By the type invariant.
            unsafe {
                this.fence.data().by_cpu(this.vram);
                if let Some(at) = this.fence.data().written(this.vram) {
                    flush(at);
                }
            }
        }
        let result = if is_gone() { Err(ENODEV) } else { Ok(()) };
        this.as_mut().project().fence.set_result(result);
        // In the section, and not after it.
        drop(this);
    }
}

/// The order of the moves of a device.
pub(super) struct Moves {
    context: FenceContext<Ops>,
    /// Held from when a fence gets its number until its job is in the queue.
    order: Pin<KBox<Mutex<()>>>,
}

impl Moves {
    /// `name` is the name of the driver.
    // Not generic and not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    pub(super) fn new(name: &CStr) -> Result<Self> {
        Ok(Self {
            context: FenceContext::new(name)?,
            order: KBox::pin_init(new_mutex!((), "drm::ttm::Moves::order"), GFP_KERNEL)?,
        })
    }

    /// Tells whether `fence` is that of a move of this device. Later moves need not wait for it.
    #[inline]
    pub(super) fn has(&self, fence: &Fence) -> bool {
        fence.context() == self.context.id()
    }

    /// Makes a job of what is to be done, which `queue` hands to the device. `awake` keeps the
    /// device awake until it is done.
    ///
    /// # Errors
    ///
    /// What `queue` returns, which must have dropped the job then. `ENOMEM` if memory runs out.
    #[inline(never)]
    pub(super) fn submit(
        &self,
        work: Work,
        awake: Option<Awake>,
        queue: &mut dyn FnMut(Job) -> Result,
    ) -> Result<ARef<Fence>> {
        let fence = self.context.new_fence_allocation(work)?;
        let task = KBox::<Task>::new_uninit(GFP_KERNEL)?;

        let order = self.order.lock();
        let fence = fence.new_fence();
        let shared: ARef<Fence> = fence.fence().into();
        // INVARIANT: Not in a queue.
        let task = task.write_pin_init(pin_init!(Task {
            fence,
            awake,
            vram: ptr::null_mut(),
            pdev: ptr::null_mut(),
            work <- new_work!("drm::ttm::Task::work"),
        }))?;

        let ret = queue(Job(task));

        drop(order);
        if let Err(e) = ret {
            // The memory is given to others now, so a job that was not dropped must not be left.
            shared.wait(false)?;
            return Err(e);
        }
        Ok(shared)
    }
}

/// The CPU as the copy engine of a device, which does jobs one after the other.
///
/// It owns the CPU's view of VRAM. Dropping it waits for the jobs that are in the queue.
pub struct CpuEngine<'a> {
    // Dropped first.
    queue: OrderedQueue,
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
            window,
        })
    }

    /// Queues a job.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a part of it is not inside the window. The job is dropped.
    #[inline(never)]
    pub fn submit(&self, job: Job) -> Result {
        if !job.work().is_in_bar(self.window.len()) {
            return Err(EINVAL);
        }

        let Job(mut task) = job;
        // INVARIANT: The window has all of the ranges, and `queue` is drained before it goes.
        *task.as_mut().project().vram = self.window.as_ptr();
        *task.as_mut().project().pdev = self.window.as_pci();
        self.queue.enqueue(task);
        Ok(())
    }

    /// Overwrites all of VRAM, as the loss of power does.
    ///
    /// For drivers of devices that keep their memory, to show what happens where it is lost. Nothing
    /// may be queued.
    pub fn scribble(&self, byte: u8) {
        self.window.fill(byte);
    }

    /// Makes what the CPU wrote to an object in VRAM visible to devices.
    #[inline]
    pub fn flush(&self, vram: &Ranges) {
        self.window.flush(vram);
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

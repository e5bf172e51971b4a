// SPDX-License-Identifier: GPL-2.0

//! A transfer that goes on after the call that started it.
//!
//! Its fence is in the reservation of the buffer. It is waited for before the buffer moves, is
//! revoked or is accessed by the CPU. All memory for the transfer is allocated before the fence is
//! published. From then until the signal nothing is allocated and no reservation is taken because
//! waiters of the fence depend on this path.

use kernel::{
    device,
    dma_buf::fence::{
        DriverFence,
        Fence,
        FenceContext,
        FenceContextOps,
        SignallingSection, //
    },
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Completion,
        Mutex,
        SetOnce, //
    },
    uapi,
    workqueue::{
        self,
        Work,
        WorkItem, //
    }, //
};

use crate::{
    device::Edu,
    import::Attached,
    table::Segment, //
};

/// The fences of one attachment. It has one transfer at a time.
struct Fences;

impl FenceContextOps for Fences {
    const DRIVER_NAME: &'static CStr = c"edu_peer";
    type Data = ();
}

/// The bytes of a transfer and their place in the buffer.
pub(crate) struct Order {
    /// The first byte of the buffer.
    pub(crate) offset: u64,
    /// The transfer writes to the buffer. Otherwise it reads from the buffer.
    pub(crate) write: bool,
    /// The bytes or room for them.
    pub(crate) bytes: KVVec<u8>,
}

/// The outcome of a transfer.
pub(crate) struct End {
    pub(crate) result: Result,
    /// The transfer has written to the buffer. Otherwise it has read from the buffer.
    pub(crate) write: bool,
    bytes: KVVec<u8>,
    moved: usize,
}

impl End {
    /// The bytes moved, also after an error.
    pub(crate) fn moved(&self) -> &[u8] {
        self.bytes.get(..self.moved).unwrap_or_default()
    }
}

/// The data for the begin of the worker.
struct Start {
    attached: Arc<Attached>,
    fence: DriverFence<Fences>,
    order: Order,
    pieces: KVVec<Segment>,
}

/// A transfer under way or over.
#[pin_data]
struct Job {
    edu: Arc<Edu>,
    fence: ARef<Fence>,
    cancelled: Atomic<bool>,
    #[pin]
    start: Mutex<Option<Start>>,
    end: SetOnce<End>,
    /// The worker has released the attachment.
    #[pin]
    done: Completion,
    #[pin]
    work: Work<Job>,
}

impl_has_work! {
    impl HasWork<Self> for Job { self.work }
}

impl WorkItem for Job {
    type Pointer = Arc<Job>;

    fn run(job: Arc<Job>) {
        let start = job.start.lock().take();

        if let Some(start) = start {
            job.transfer(start);
        }
        job.done.complete_all();
    }
}

impl Job {
    fn transfer(&self, start: Start) {
        let Start {
            attached,
            fence,
            mut order,
            pieces,
        } = start;
        let mut moved = 0;

        let section = SignallingSection::begin();
        let mut left = &mut order.bytes[..];
        let mut result = Ok(());
        for piece in &pieces {
            // CAST: A piece is inside of the bytes.
            let (part, rest) = left.split_at_mut((piece.length as usize).min(left.len()));

            result = self.one(*piece, order.write, part);
            if result.is_err() {
                break;
            }
            moved += part.len();
            left = rest;
        }
        fence.signal(result);
        drop(section);

        attached.idle();
        // Only the worker sets this, once.
        let _ = self.end.populate(End {
            result,
            write: order.write,
            bytes: order.bytes,
            moved,
        });
    }

    /// Moves one piece.
    fn one(&self, piece: Segment, write: bool, part: &mut [u8]) -> Result {
        let mut engine = self.edu.engine()?;
        if self.cancelled.load(Relaxed) {
            return Err(ECANCELED);
        }

        if write {
            engine.put(piece, part)
        } else {
            engine.get(piece, part)
        }
    }
}

/// The transfers of an attachment. One of them is under way at a time. The drop cancels it and
/// waits for its end.
pub(crate) struct Jobs {
    fences: FenceContext<Fences>,
    last: Option<Arc<Job>>,
}

impl Jobs {
    /// Creates an empty list of transfers.
    pub(crate) fn new(dev: &device::Device) -> Result<Self> {
        Ok(Self {
            fences: FenceContext::new(dev.name())?,
            last: None,
        })
    }

    /// Whether a transfer is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.last
            .as_ref()
            .is_some_and(|job| job.end.as_ref().is_none())
    }

    /// Starts a transfer. Its range must be inside the buffer.
    ///
    /// Waits for the fences in the reservation in conflict with the transfer.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if a transfer is under way.
    /// - Those of [`Attached::publish`].
    pub(crate) fn submit(
        &mut self,
        edu: &Arc<Edu>,
        attached: &Arc<Attached>,
        order: Order,
    ) -> Result {
        if self.is_busy() {
            return Err(EBUSY);
        }

        let fence = self.fences.new_fence_allocation(())?;
        let (offset, length, write) = (order.offset, order.bytes.len(), order.write);
        // CAST: `usize` fits 64 bits.
        attached.publish(edu, offset, length as u64, write, |pieces| {
            let fence = fence.new_fence();
            let (shared, own): (ARef<Fence>, _) = (fence.fence().into(), fence.fence().into());
            let start = Start {
                attached: attached.clone(),
                fence,
                order,
                pieces,
            };
            let job = Arc::pin_init(
                pin_init!(Job {
                    edu: edu.clone(),
                    fence: own,
                    cancelled: Atomic::new(false),
                    start <- new_mutex!(Some(start), "edu_peer::Job::start"),
                    end: SetOnce::new(),
                    done <- Completion::new(),
                    work <- new_work!("edu_peer::Job::work"),
                }),
                GFP_KERNEL,
            )?;

            self.last = Some(job.clone());
            Ok((shared, move || {
                // Cannot fail because the work was not queued before.
                let _ = workqueue::system_long().enqueue(job);
            }))
        })
    }

    /// The last transfer to wait for.
    pub(crate) fn last(&self) -> Option<Ticket> {
        self.last.clone().map(Ticket)
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        if let Some(job) = &self.last {
            job.cancelled.store(true, Relaxed);
            // The wait takes as long as the move of one piece.
            job.done.wait_for_completion();
        }
    }
}

/// A reference to a transfer for waiting for its end.
pub(crate) struct Ticket(Arc<Job>);

impl Ticket {
    /// Waits until the transfer is over and returns its outcome.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` if a signal arrived.
    pub(crate) fn wait(&self) -> Result<&End> {
        self.0.fence.wait(true)?;
        // After the signal the worker only releases the attachment.
        self.0.done.wait_for_completion();

        // The worker sets it before it completes `done`.
        self.0.end.as_ref().ok_or(EINVAL)
    }
}

/// The maximum number of bytes of one transfer.
// CAST: `usize` has at least as many bits.
pub(crate) const MAX: usize = uapi::EDU_PEER_SUBMIT_MAX as usize;

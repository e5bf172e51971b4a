// SPDX-License-Identifier: GPL-2.0

//! An exporter of buffers in system memory, which belong to another device.

use kernel::{
    device::Bound,
    dma::DataDirection,
    dma_buf::{
        exporter::{
            pages::Pages,
            table::Mapping,
            AttachRequest,
            LockedBuffer,
            MapRequest, //
        },
        Exporter,
        Exports,
        Ops, //
    },
    faux,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Completion,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    types::CovariantForLt, //
};

/// The state that a test shares with its buffer.
#[pin_data]
pub(crate) struct Shared {
    #[pin]
    pub(crate) pages: Mutex<Option<Arc<Pages>>>,
    /// The number of calls of `pages()`, by page faults and mappings of the kernel.
    pub(crate) asked: Atomic<u32>,
    /// The number of accesses by the CPU that have begun and not ended.
    pub(crate) begun: Atomic<i32>,
    /// Completed by the next call of `pages()`, which returns a moment later.
    #[pin]
    pub(crate) slow: Mutex<Option<Arc<Completion>>>,
}

impl Shared {
    pub(crate) fn new(pages: Arc<Pages>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                pages <- new_mutex!(Some(pages)),
                asked: Atomic::new(0),
                begun: Atomic::new(0),
                slow <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn pages(&self) -> Result<Arc<Pages>> {
        self.pages.lock().clone().ok_or(ENXIO)
    }
}

/// The buffer.
pub(crate) struct Store(pub(crate) Arc<Shared>);

static OPS: Ops<Store> = Ops::new();

#[vtable]
impl Exporter for Store {
    type Bound = CovariantForLt!(());
    type Prepared = ();
    type Attachment = ();

    const NAME: &'static CStr = c"store";
    const OPS: &'static Ops<Self> = &OPS;

    fn prepare_attach(&self) {}

    fn attach(
        &self,
        _cx: &LockedBuffer<'_, Self>,
        req: &mut AttachRequest<'_>,
        _prepared: (),
    ) -> Result {
        req.clear_peer2peer();
        Ok(())
    }

    fn map<'r>(
        &self,
        _cx: &LockedBuffer<'_, Self>,
        at: &MapRequest<'r, Self>,
        dir: DataDirection,
    ) -> Result<Mapping<'r>> {
        at.map_pages(&self.0.pages()?, dir)
    }

    fn begin_cpu_access(&self, cx: &LockedBuffer<'_, Self>, _dir: DataDirection) -> Result {
        cx.attachments().for_each(|at| at.sync_for_cpu());
        self.0.begun.fetch_add(1, Relaxed);
        Ok(())
    }

    fn end_cpu_access(&self, cx: &LockedBuffer<'_, Self>, dir: DataDirection) -> Result {
        self.0.begun.fetch_sub(1, Relaxed);
        cx.attachments().for_each(|at| at.sync_for_device(dir));
        Ok(())
    }

    fn pages(&self, _cx: &LockedBuffer<'_, Self>) -> Result<Arc<Pages>> {
        self.0.asked.fetch_add(1, Relaxed);
        let slow = self.0.slow.lock().take();
        if let Some(asked) = slow {
            asked.complete_all();
            fsleep(Delta::from_millis(50));
        }
        self.0.pages()
    }
}

pub(crate) fn exports(dev: &faux::Registration) -> Result<Exports<'_, Store>> {
    Exports::new(dev.as_ref(), |_dev: &faux::Device<Bound>| Ok(()))
}

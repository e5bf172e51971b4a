// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The CPU's view of VRAM, by which it does the failed moves of an engine.
//!
//! A [`CpuView`] belongs to the engine of a driver and is dropped with it. Jobs share its state.
//! The state may outlive the view, but then the CPU does no more jobs.
//!
//! A BAR shows all VRAM in the order of the [`Layout`](crate::drm::vram::Layout) or parts of it
//! through the windows of an aperture. With an aperture, the driver provides a [`ScratchWindow`]
//! and a move is done in parts of a few pages.
//!
//! # Locking
//!
//! The task finishing a job takes the mutex of the state before the fence of the job signals: no
//! memory is allocated while it is held. The locks of a [`ScratchWindow`] are inside it.

use super::{
    engine::Work,
    transfer::Transfer, //
};
use crate::{
    bindings,
    drm::vram::{
        flush,
        BarMapping, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// How many pages of VRAM a [`ScratchWindow`] shows at a time.
pub const SCRATCH_PAGES: usize = 32;

/// A part of an aperture that shows a few pages of VRAM to the CPU for a short time.
///
/// No object has a window in this part, so it is always available.
pub trait ScratchWindow: Send + Sync + 'static {
    /// Shows the pages of VRAM at the given offsets, [`SCRATCH_PAGES`] at most, while it calls `f`
    /// once. The argument of `f` has the offset of each page in the BAR.
    ///
    /// If another window shows a page, this may be its offset in that window, provided that the
    /// window stays until `f` returns.
    ///
    /// Called where a job is finished, in a
    /// [`SignallingSection`](crate::dma_buf::fence::SignallingSection). It may sleep but must
    /// neither take a reservation nor allocate memory in a way that waits. The device may have been
    /// reset or be gone.
    ///
    /// # Errors
    ///
    /// The pages could not be shown or the device was not present all the time. The move has failed
    /// then.
    fn show(&self, pages: &[u64], f: &mut dyn FnMut(&[u64])) -> Result;
}

/// The CPU's view of VRAM.
pub struct CpuView<'a> {
    // Dropped before the mapping.
    shown: Shown,
    window: BarMapping<'a>,
}

impl<'a> CpuView<'a> {
    /// Creates the view of VRAM by a BAR that shows all of it.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn new(window: BarMapping<'a>) -> Result<Self> {
        Self::make(window, None)
    }

    /// Creates the view of VRAM behind an aperture, the BAR of `window`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn with_scratch(window: BarMapping<'a>, scratch: Arc<dyn ScratchWindow>) -> Result<Self> {
        Self::make(window, Some(scratch))
    }

    fn make(window: BarMapping<'a>, scratch: Option<Arc<dyn ScratchWindow>>) -> Result<Self> {
        Ok(Self {
            shown: Shown(View::new(&window, scratch)?),
            window,
        })
    }

    /// Returns the mapping of the BAR.
    #[inline]
    pub fn bar(&self) -> &BarMapping<'a> {
        &self.window
    }

    /// Returns the state by which the CPU does a job if an engine fails to do it, or [`None`] if
    /// the CPU cannot do it.
    pub(super) fn of(&self, work: &Work) -> Option<Arc<View>> {
        let Work::Move(transfer) = work else {
            return None;
        };
        let view = &self.shown.0;

        (view.scratch.is_some() || transfer.is_in_bar(self.window.len())).then(|| view.clone())
    }
}

/// Clears the view when it is dropped.
struct Shown(Arc<View>);

impl Drop for Shown {
    fn drop(&mut self) {
        *self.0.at.lock() = None;
    }
}

/// The mapping of a BAR.
struct Bar {
    address: *mut c_void,
    len: u64,
    pdev: *mut bindings::pci_dev,
}

// SAFETY: The pointers may be used by any task.
unsafe impl Send for Bar {}

/// The CPU mapping of VRAM, while there is one, for the task finishing a failed job.
///
/// # Invariants
///
/// `at` has the address at which a [`BarMapping`] maps its whole BAR, and the device. Both stay
/// while the mutex is held.
#[pin_data]
pub(super) struct View {
    scratch: Option<Arc<dyn ScratchWindow>>,
    #[pin]
    at: Mutex<Option<Bar>>,
}

impl View {
    // Not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    fn new(window: &BarMapping<'_>, scratch: Option<Arc<dyn ScratchWindow>>) -> Result<Arc<Self>> {
        let bar = Bar {
            address: window.as_ptr(),
            len: window.len(),
            pdev: window.as_pci(),
        };

        // INVARIANT: `Shown` clears it and is dropped before the mapping.
        Arc::pin_init(
            pin_init!(Self {
                scratch,
                at <- new_mutex!(Some(bar), "drm::ttm::View::at"),
            }),
            GFP_KERNEL,
        )
    }

    /// Does a job by the CPU and returns whether it is done. [`CpuView::of`] must have returned
    /// this view for the job. Sleeps.
    pub(super) fn by_cpu(&self, work: &Work) -> bool {
        let at = self.at.lock();
        let Some(bar) = at.as_ref() else {
            return false;
        };

        match (&self.scratch, work) {
            // SAFETY: By the type invariant; `CpuView::of` has checked that the BAR shows the
            // ranges.
            (None, _) => unsafe { by_cpu(work, bar.address, bar.pdev) },
            (Some(scratch), Work::Move(transfer)) => bar.move_by(transfer, &**scratch).is_ok(),
            (Some(_), Work::Copy(_)) => false,
        }
    }
}

impl Bar {
    /// Does a move in parts.
    fn move_by(&self, transfer: &Transfer, scratch: &dyn ScratchWindow) -> Result {
        transfer.parts(|part, vram| {
            let mut ret = Err(EIO);

            scratch.show(vram, &mut |pages| {
                // SAFETY: The BAR is mapped, because the caller holds the mutex of the view.
                ret = unsafe { part.by_cpu(pages, self.address, self.len) };
            })?;
            ret
        })
    }
}

/// Does a job by the CPU and returns whether the device was present all the time.
///
/// # Safety
///
/// `vram` must be the address of VRAM with all ranges of both sides mapped. `pdev` must be the
/// device with this VRAM.
pub(super) unsafe fn by_cpu(work: &Work, vram: *mut c_void, pdev: *mut bindings::pci_dev) -> bool {
    // A device that is gone answers reads with ones, and each answer may take a long time.
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

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How the CPU sees VRAM, to do the moves that an engine has failed to do.
//!
//! A [`CpuView`] belongs to the engine of a driver, and goes with it. Jobs share its state, which
//! may outlive it: they are not done again after that.
//!
//! A BAR shows VRAM at all times, in the order of the [`Layout`](crate::drm::vram::Layout), or
//! through the windows of an [aperture](crate::drm::vram::Aperture). With an aperture a driver
//! provides a [`ScratchWindow`], and a move is done in parts of a few pages.
//!
//! # Locking
//!
//! The mutex of the state is taken by the task that finishes a job, in the path that leads to the
//! signal of its fence: nothing is allocated while it is held. The locks of a [`ScratchWindow`] are
//! inside of it.

use super::{
    engine::Work,
    transfer::Transfer, //
};
use crate::{
    bindings,
    drm::vram::{
        flush,
        Window, //
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

/// A part of an aperture that shows the CPU a few pages of VRAM for a short time.
///
/// It is kept for this, so that no window of an object is in the way.
pub trait ScratchWindow: Send + Sync + 'static {
    /// Shows pages of VRAM, [`SCRATCH_PAGES`] at most, which are given by their offsets. Calls `f`
    /// once with where in the BAR each of them is, and shows them no more after that.
    ///
    /// A page that another window shows may be given by where that is, as long as it stays there
    /// until `f` returns.
    ///
    /// Called where a job is finished, in a
    /// [`SignallingSection`](crate::dma_buf::fence::SignallingSection): it may sleep, but neither
    /// take a reservation nor allocate memory in a way that waits. The device may have been reset,
    /// or be gone.
    ///
    /// # Errors
    ///
    /// The pages are not shown, or the device was not there all the time: the move has failed.
    fn show(&self, pages: &[u64], f: &mut dyn FnMut(&[u64])) -> Result;
}

/// The CPU's view of VRAM.
pub struct CpuView<'a> {
    // Dropped before the window.
    shown: Shown,
    window: Window<'a>,
}

impl<'a> CpuView<'a> {
    /// Makes the view of VRAM that a BAR shows at all times.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn new(window: Window<'a>) -> Result<Self> {
        Self::make(window, None)
    }

    /// Makes the view of VRAM behind an aperture, the BAR of `window`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub fn with_scratch(window: Window<'a>, scratch: Arc<dyn ScratchWindow>) -> Result<Self> {
        Self::make(window, Some(scratch))
    }

    fn make(window: Window<'a>, scratch: Option<Arc<dyn ScratchWindow>>) -> Result<Self> {
        Ok(Self {
            shown: Shown(View::new(&window, scratch)?),
            window,
        })
    }

    /// Returns the BAR.
    #[inline]
    pub fn window(&self) -> &Window<'a> {
        &self.window
    }

    /// Returns what does a job again if an engine fails to, or [`None`] if the CPU does not see all
    /// of it.
    pub(super) fn of(&self, work: &Work) -> Option<Arc<View>> {
        let Work::Move(transfer) = work else {
            return None;
        };
        let view = &self.shown.0;

        (view.scratch.is_some() || transfer.is_in_bar(self.window.len())).then(|| view.clone())
    }
}

/// Takes the view away when it is dropped.
struct Shown(Arc<View>);

impl Drop for Shown {
    fn drop(&mut self) {
        *self.0.at.lock() = None;
    }
}

/// Where a BAR is mapped.
struct Bar {
    address: *mut c_void,
    len: u64,
    pdev: *mut bindings::pci_dev,
}

// SAFETY: The pointers may be used by any task.
unsafe impl Send for Bar {}

/// Where the CPU sees VRAM, as long as it does, for the task that finishes a job that failed.
///
/// # Invariants
///
/// What `at` has is where all of a [`Window`] is mapped, and its device, which stay while the mutex
/// is held.
#[pin_data]
pub(super) struct View {
    scratch: Option<Arc<dyn ScratchWindow>>,
    #[pin]
    at: Mutex<Option<Bar>>,
}

impl View {
    // Not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    fn new(window: &Window<'_>, scratch: Option<Arc<dyn ScratchWindow>>) -> Result<Arc<Self>> {
        let bar = Bar {
            address: window.as_ptr(),
            len: window.len(),
            pdev: window.as_pci(),
        };

        // INVARIANT: `Shown`, which is dropped before the window, takes it away.
        Arc::pin_init(
            pin_init!(Self {
                scratch,
                at <- new_mutex!(Some(bar), "drm::ttm::View::at"),
            }),
            GFP_KERNEL,
        )
    }

    /// Lets the CPU do a job for which it was asked for by [`CpuView::of`]. Returns whether it is
    /// done. Sleeps.
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
    /// Moves by parts.
    fn move_by(&self, transfer: &Transfer, scratch: &dyn ScratchWindow) -> Result {
        transfer.parts(|part, vram| {
            let mut ret = Err(EIO);

            scratch.show(vram, &mut |pages| {
                // SAFETY: The BAR is mapped while the mutex of the view is held, which it is.
                ret = unsafe { part.by_cpu(pages, self.address, self.len) };
            })?;
            ret
        })
    }
}

/// Lets the CPU do a job, and returns whether the device was there all the time.
///
/// # Safety
///
/// `vram` must be the address of VRAM, in which all ranges that take part are mapped, and `pdev`
/// the device that has it.
pub(super) unsafe fn by_cpu(work: &Work, vram: *mut c_void, pdev: *mut bindings::pci_dev) -> bool {
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

// SPDX-License-Identifier: GPL-2.0

//! What there is of a device while its driver is bound.
//!
//! Both drivers have it, and windows have their aperture. Its memory and its registers are out of
//! reach once the driver of the PCI device is unbound, whoever has it.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma_buf::fence::SignallingSection,
    drm::vram::Allocator,
    pci::{
        self,
        Interrupt,
        InterruptHandler,
        IrqType,
        IrqTypes, //
    },
    prelude::*,
    sync::Arc,
    time::Msecs, //
};

use crate::{
    aperture::Aperture,
    list::Lists,
    memory::Status,
    regs::Regs,
    ring::{
        Queued,
        Ring, //
    },
    MODULE, //
};

/// The number of the ring of the copy engine.
const COPY: usize = 0;

/// After which time it is looked for an interrupt that was lost, in milliseconds.
const POLL: Msecs = 100;

/// What handles interrupts.
struct Events(Arc<Ring>);

impl InterruptHandler for Events {
    fn handle(&self) -> Option<Msecs> {
        let _section = SignallingSection::begin();

        self.0.advance().then_some(POLL)
    }
}

/// A device.
pub(crate) struct Gpu {
    pub(crate) regs: Arc<Regs>,
    /// Who gives out VRAM.
    pub(crate) vram: Arc<Allocator>,
    pub(crate) aperture: Arc<Aperture>,
    copy: Arc<Ring>,
    interrupt: Interrupt<Events>,
    _status: Arc<Status>,
}

impl Gpu {
    /// Resets the device and makes it work.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if it is not one that the driver knows.
    /// - `ENOMEM` if memory runs out, and what else is missing.
    pub(crate) fn new(pdev: &pci::Device<Bound>) -> Result<Arc<Self>> {
        let dev: &Device<Bound> = pdev.as_ref();
        let regs = Arc::new(Regs::new(pdev)?, GFP_KERNEL)?;
        regs.reset_all()?;

        let (vram, aperture) = regs.sizes()?;
        let status = Arc::new(Status::new(dev)?, GFP_KERNEL)?;
        let aperture = Aperture::new(dev, regs.clone(), status.clone(), aperture)?;
        regs.set_memory(status.address(), aperture.contexts())?;
        let copy = Ring::new(dev, regs.clone(), status.clone(), COPY)?;
        let interrupt = Interrupt::new(
            pdev,
            IrqTypes::default().with(IrqType::Msi),
            MODULE,
            Ok::<_, Error>(Events(copy.clone())),
        )?;

        Ok(Arc::new(
            Self {
                vram: Allocator::new(0..vram)?,
                regs,
                aperture,
                copy,
                interrupt,
                _status: status,
            },
            GFP_KERNEL,
        )?)
    }

    /// Queues a copy.
    pub(crate) fn copy(&self, queued: KBox<Queued>, job: kernel::drm::ttm::Job) {
        self.copy.push(queued, job);
        self.interrupt.poll_in(POLL);
    }

    /// Prepares a copy.
    ///
    /// # Errors
    ///
    /// - The error with which all copies end, if they do.
    /// - `EINVAL` if the engine does not reach a side, `ENOMEM`.
    pub(crate) fn prepare(&self, work: &kernel::drm::ttm::Work) -> Result<KBox<Queued>> {
        if let Some(error) = self.copy.closed() {
            return Err(error);
        }
        Queued::new(Lists::of(work)?)
    }

    /// Returns the ring of the copy engine.
    pub(crate) fn copy_ring(&self) -> &Ring {
        &self.copy
    }

    /// Lets the engines take jobs, for a DRM driver that is about to be bound.
    ///
    /// # Errors
    ///
    /// `EIO` if an engine does not work any more, `ENODEV` if the device is gone.
    pub(crate) fn begin_jobs(&self) -> Result {
        self.vram.end_quarantine();
        self.copy.open()
    }

    /// Ends all jobs, until [`Self::begin_jobs`]. The engines access no memory when this returns.
    pub(crate) fn end_jobs(&self) {
        self.copy.close();
    }
}

/// Resets the device when it is dropped: its memory is given back after that.
pub(crate) struct Quiet(pub(crate) Arc<Gpu>);

impl Drop for Quiet {
    fn drop(&mut self) {
        self.0.end_jobs();
        // One that is gone does no DMA.
        if self.0.regs.reset_all() == Err(ETIMEDOUT) {
            pr_err!("a device cannot be reset\n");
        }
    }
}

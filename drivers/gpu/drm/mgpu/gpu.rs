// SPDX-License-Identifier: GPL-2.0

//! What there is of a device while its driver is bound.
//!
//! Both drivers have it, and windows have their aperture. Its memory and its registers are out of
//! reach once the driver of the PCI device is unbound, whoever has it.

use kernel::{
    device::{
        Bound,
        Core,
        Device, //
    },
    dma_buf::fence::SignallingSection,
    drm::vram::Allocator,
    pci::{
        self,
        BusMaster,
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
    compute::Program,
    contexts::Contexts,
    invalidate::Invalidator,
    list::Lists,
    memory::Status,
    module_parameters,
    recover::Recovery,
    regs::Regs,
    report::Reporter,
    ring::Ring,
    MODULE, //
};

/// The number of the ring of the copy engine.
pub(crate) const COPY: usize = 0;

/// That of the compute engine.
pub(crate) const COMPUTE: usize = 1;

/// Returns after which time it is looked for an interrupt that was lost.
fn poll_time() -> Msecs {
    module_parameters::poll_ms.value()
}

/// What handles interrupts.
struct Events {
    copy: Arc<Ring<Lists>>,
    compute: Arc<Ring<Program>>,
}

impl InterruptHandler for Events {
    fn handle(&self) -> Option<Msecs> {
        let _section = SignallingSection::begin();

        // Both are looked at.
        (self.copy.advance() | self.compute.advance()).then_some(poll_time())
    }
}

/// A device.
pub(crate) struct Gpu {
    pub(crate) regs: Arc<Regs>,
    /// Who gives out VRAM.
    pub(crate) vram: Arc<Allocator>,
    pub(crate) aperture: Arc<Aperture>,
    /// Who has which address space.
    pub(crate) contexts: Arc<Contexts>,
    /// The ring of the copy engine.
    pub(crate) copy: Arc<Ring<Lists>>,
    /// That of the compute engine.
    pub(crate) compute: Arc<Ring<Program>>,
    pub(crate) recovery: Arc<Recovery>,
    interrupt: Interrupt<Events>,
}

impl Gpu {
    /// Resets the device and makes it work.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if it is not one that the driver knows.
    /// - `ENOMEM` if memory runs out, and what else is missing.
    pub(crate) fn new(pdev: &pci::Device<Core<'_>>) -> Result<Arc<Self>> {
        let bound: &pci::Device<Bound> = pdev;
        let dev: &Device<Bound> = bound.as_ref();
        let regs = Arc::new(Regs::new(bound)?, GFP_KERNEL)?;
        regs.reset_all()?;

        let (vram, aperture) = regs.sizes()?;
        let status = Arc::new(Status::new(dev)?, GFP_KERNEL)?;
        let invalidator = Invalidator::new(dev, regs.clone(), status.clone())?;
        let contexts = Contexts::new(dev, invalidator)?;
        let aperture = Aperture::new(dev, &contexts, aperture, vram)?;
        let recovery = Recovery::new(
            dev,
            regs.clone(),
            status.clone(),
            contexts.clone(),
            aperture.clone(),
            Reporter::new(dev, contexts.clone())?,
        )?;
        let copy = Ring::new(dev, regs.clone(), status.clone(), recovery.clone(), COPY)?;
        let compute = Ring::new(dev, regs.clone(), status, recovery.clone(), COMPUTE)?;
        let interrupt = Interrupt::new(
            bound,
            IrqTypes::default().with(IrqType::Msi),
            MODULE,
            Ok::<_, Error>(Events {
                copy: copy.clone(),
                compute: compute.clone(),
            }),
        )?;

        let vram = Allocator::new(0..vram)?;

        // Last: what the device knows of is allocated, and what else could fail has not failed.
        recovery.start(BusMaster::new(pdev)?);
        Ok(Arc::new(
            Self {
                vram,
                regs,
                aperture,
                contexts,
                copy,
                compute,
                recovery,
                interrupt,
            },
            GFP_KERNEL,
        )?)
    }

    /// Has it looked at what the rings have done, also if no interrupt tells of it: to be called when
    /// a ring was given something.
    pub(crate) fn poll(&self) {
        self.interrupt.poll_in(poll_time());
    }

    /// Returns how often a ring was reset, alone or with the device.
    pub(crate) fn resets(&self, ring: usize) -> u64 {
        self.recovery.resets(ring)
    }

    /// Lets others reset the device, until [`Self::resume`]. What is in the rings ends with an error.
    pub(crate) fn pause(&self) {
        self.recovery.pause();
        self.interrupt.poll_in(0);
    }

    /// Goes on after that, with what has waited.
    pub(crate) fn resume(&self) {
        // If that fails jobs are told.
        let _ = self.recovery.resume();
        self.interrupt.poll_in(0);
    }

    /// Lets a DRM driver, which is about to be bound, have jobs.
    ///
    /// # Errors
    ///
    /// `EIO` if an engine does not work any more, `ENODEV` if the device is gone.
    pub(crate) fn begin_jobs(&self) -> Result {
        self.vram.end_quarantine();
        self.copy.check()?;
        self.compute.check()
    }
}

/// Resets the device when it is dropped: its memory is given back after that.
pub(crate) struct Quiet(pub(crate) Arc<Gpu>);

impl Drop for Quiet {
    fn drop(&mut self) {
        // Jobs have ended, as the DRM driver is unbound.
        self.0.recovery.quiet();
        self.0.contexts.end_quarantine();
    }
}

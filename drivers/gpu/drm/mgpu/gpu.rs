// SPDX-License-Identifier: GPL-2.0

//! The data of a device while the PCI driver is bound.
//!
//! Both drivers hold references to it. An unbind of the PCI driver revokes its memory and its
//! registers, even with references left.

use kernel::{
    device::{
        Bound,
        Core,
        Device, //
    },
    dma_buf::fence::SignallingSection,
    drm::{
        gem::ttm::SAVE_TIME,
        vram::Allocator, //
    },
    io::poll::read_poll_timeout,
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
    time::{
        Delta,
        Msecs, //
    }, //
};

use crate::{
    aperture::Aperture,
    compute::Program,
    contexts::{
        Contexts,
        APERTURE, //
    },
    invalidate::Invalidator,
    list::Lists,
    memory::Status,
    module_parameters,
    recover::Recovery,
    regs::Regs,
    report::Reporter,
    ring::{
        self,
        Ring, //
    },
    MODULE, //
};

/// The number of the ring of the copy engine.
pub(crate) const COPY: usize = 0;

/// The number of the ring of the compute engine.
pub(crate) const COMPUTE: usize = 1;

/// Returns the poll interval of the rings in milliseconds. Polls make up for lost interrupts.
fn poll_time() -> Msecs {
    module_parameters::poll_ms.value()
}

/// How long begun jobs may take before the system sleeps, in milliseconds. The time to detect a
/// hung job is added to this.
const MORE: Msecs = 1000;

/// The handler of interrupts.
struct Events {
    recovery: Arc<Recovery>,
    copy: Arc<Ring<Lists>>,
    compute: Arc<Ring<Program>>,
}

impl InterruptHandler for Events {
    fn handle(&self) -> Option<Msecs> {
        let _section = SignallingSection::begin();

        self.recovery.reset_stale();
        // Not `||`: both rings advance.
        (self.copy.advance() | self.compute.advance()).then_some(poll_time())
    }
}

/// A device.
pub(crate) struct Gpu {
    pub(crate) regs: Arc<Regs>,
    /// The allocator of VRAM.
    pub(crate) vram: Arc<Allocator>,
    pub(crate) aperture: Arc<Aperture>,
    /// The contexts: the address spaces as the device sees them.
    pub(crate) contexts: Arc<Contexts>,
    /// The ring of the copy engine.
    pub(crate) copy: Arc<Ring<Lists>>,
    /// The ring of the compute engine.
    pub(crate) compute: Arc<Ring<Program>>,
    pub(crate) recovery: Arc<Recovery>,
    interrupt: Interrupt<Events>,
}

impl Gpu {
    /// Resets the device and sets it up.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the driver does not know the device.
    /// - `ENOMEM` if memory runs out, and the errors of the registers and of the interrupt.
    pub(crate) fn new(pdev: &pci::Device<Core<'_>>) -> Result<Arc<Self>> {
        let bound: &pci::Device<Bound> = pdev;
        let dev: &Device<Bound> = bound.as_ref();
        let regs = Arc::new(Regs::new(bound)?, GFP_KERNEL)?;
        regs.reset_all()?;

        let (size, aperture) = regs.sizes()?;
        let vram = Allocator::new(0..size)?;
        let status = Arc::new(Status::new(dev)?, GFP_KERNEL)?;
        let invalidator = Invalidator::new(dev, regs.clone(), status.clone())?;
        let contexts = Contexts::new(dev, invalidator)?;
        let aperture = Aperture::new(dev, &contexts, aperture, size)?;
        let recovery = Recovery::new(
            dev,
            regs.clone(),
            status.clone(),
            contexts.clone(),
            aperture.clone(),
            vram.clone(),
            Reporter::new(dev, contexts.clone())?,
        )?;
        let copy = Ring::new(dev, regs.clone(), status.clone(), recovery.clone(), COPY)?;
        let compute = Ring::new(dev, regs.clone(), status, recovery.clone(), COMPUTE)?;
        let interrupt = Interrupt::new(
            bound,
            IrqTypes::default().with(IrqType::Msi),
            MODULE,
            Ok::<_, Error>(Events {
                recovery: recovery.clone(),
                copy: copy.clone(),
                compute: compute.clone(),
            }),
        )?;

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

    /// Lets the device access memory. All of this memory is allocated by now.
    ///
    /// # Errors
    ///
    /// The errors of [`Invalidator::invalidate`]. Even after an error the device accesses memory
    /// until the drop of [`Quiet`].
    pub(crate) fn start(&self, pdev: &pci::Device<Core<'_>>) -> Result {
        self.recovery.start(BusMaster::new(pdev)?);
        // The reset keeps the pages of the aperture shown by an earlier driver.
        self.contexts
            .invalidator()
            .invalidate(APERTURE, 0, self.aperture.len())
    }

    /// Schedules a poll of the rings in case an interrupt is lost. Called after a job was given to
    /// a ring.
    pub(crate) fn poll(&self) {
        self.interrupt.poll_in(poll_time());
    }

    /// Requests a reset of the device if it has not completed an invalidation. Does not wait for
    /// the reset.
    pub(crate) fn request_reset(&self) {
        if self.recovery.is_stale() {
            self.interrupt.poll_in(0);
        }
    }

    /// Returns how often a ring was reset alone or with the device.
    pub(crate) fn resets(&self, ring: usize) -> u64 {
        self.recovery.resets(ring)
    }

    /// Stops the device for a reset by the PCI core until [`Self::resume`]. Jobs in the rings end
    /// with an error.
    ///
    /// Before the stop, mappings of processes are removed and exported objects leave VRAM if they
    /// can. Both would otherwise access the content of an aperture without page tables. If an
    /// importer maps an object again meanwhile, it gets system memory or waits for the move back to
    /// VRAM. This move is done after the reset.
    pub(crate) fn pause(&self) {
        // This includes a DRM device registered meanwhile.
        self.aperture.set_closed(true);
        if self.recovery.closed().is_none() {
            self.recovery.reporter.begin_reset();
        }
        self.recovery.pause();
        self.interrupt.poll_in(0);
    }

    /// Sets the device up after a reset by the PCI core and begins the waiting jobs.
    pub(crate) fn resume(&self) {
        // If this fails, the jobs end with the error.
        let _ = self.recovery.resume();
        self.recovery.reporter.end_reset();
        self.aperture.set_closed(false);
        self.interrupt.poll_in(0);
    }

    /// Moves or saves the content of VRAM before the system sleeps. Changes since an earlier call
    /// are saved as well. Does nothing if the device was given up: its objects are lost anyway.
    ///
    /// # Errors
    ///
    /// Those of [`Reporter::save_vram`].
    pub(crate) fn save_vram(&self) -> Result {
        match self.recovery.closed() {
            Some(_) => Ok(()),
            None => self.recovery.reporter.save_vram(),
        }
    }

    /// Stops the device before the system sleeps until [`Self::wake`]. Begun jobs end before this
    /// and the others wait.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the jobs take too long. They go on.
    pub(crate) fn sleep(&self) -> Result {
        // A job may make progress shortly before a check. The next check is after the same time.
        let limit = 2 * ring::timeout_ms().min(SAVE_TIME) + MORE;

        self.recovery.set_held(true);
        let is_idle = read_poll_timeout(
            || Ok(self.copy.is_idle() && self.compute.is_idle()),
            |is_idle| *is_idle,
            Delta::from_millis(1),
            Delta::from_millis(limit.into()),
        );
        if is_idle.is_err() {
            self.recovery.set_held(false);
            self.interrupt.poll_in(0);
            return Err(EBUSY);
        }
        self.recovery.sleep();
        Ok(())
    }

    /// Sets the device up after the system slept and begins the waiting jobs. Then restores the
    /// saved content of VRAM. None of these jobs uses this content. Does nothing for a device given
    /// up before.
    ///
    /// # Errors
    ///
    /// `EIO` if the device is wedged and `ENODEV` if it is gone. The errors of
    /// [`Reporter::restore_vram`].
    pub(crate) fn wake(&self) -> Result {
        let ret = self.recovery.wake();

        // The device has no old translations of address spaces and VRAM any more.
        self.contexts.end_quarantine();
        self.vram.end_quarantine();
        self.interrupt.poll_in(0);
        ret?;
        match self.recovery.closed() {
            Some(_) => Ok(()),
            None => self.recovery.reporter.restore_vram(),
        }
    }

    /// Gives the device up because its link has failed. Processes and importers do not see VRAM any
    /// more when this returns.
    pub(crate) fn link_failed(&self) {
        self.recovery.link_failed();
        self.interrupt.poll_in(0);
        self.recovery.reporter.flush();
    }

    /// Prepares for the jobs of a DRM driver about to be bound.
    ///
    /// # Errors
    ///
    /// `EIO` if an engine does not work any more. `ENODEV` if the device is gone.
    pub(crate) fn begin_jobs(&self) -> Result {
        self.copy.check()?;
        self.compute.check()?;
        // The jobs of the last DRM driver have ended. So have all accesses to its memory.
        self.vram.count_reset();
        self.vram.end_quarantine();
        Ok(())
    }
}

/// Resets the device when it is dropped. Memory accessed by the device is freed after the reset.
pub(crate) struct Quiet(pub(crate) Arc<Gpu>);

impl Drop for Quiet {
    fn drop(&mut self) {
        // Jobs have ended because the DRM driver is unbound.
        self.0.recovery.shutdown();
        self.0.contexts.end_quarantine();
    }
}

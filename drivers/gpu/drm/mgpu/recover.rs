// SPDX-License-Identifier: GPL-2.0

//! The recovery of a hung or failed device.
//!
//! 1. A ring is reset if it is stuck or has stopped with an error.
//! 2. The whole device is reset if the reset of a ring is not completed. It is also reset if the
//!    ring was stuck [`LIMIT`] times in a row and reached no fence in between. (The first entry
//!    after a reset of a ring is a fence of the driver. So if the ring completes nothing, no job is
//!    to blame.) Then the rings, the status page and the table of contexts are set up again. VRAM
//!    and the aperture keep their content. The jobs in a ring end with an error. After a failed
//!    invalidation the whole device is also reset, before the next job of the compute engine or the
//!    next window.
//! 3. If this does not help either, the device is *wedged*. Bus mastering is turned off, so the
//!    device writes to no memory. Then all jobs end with `EIO`, also jobs queued later. The objects
//!    in VRAM are lost. Binding the driver again may help.
//!
//! If the device does not answer any more, it is *gone*. The same is done with `ENODEV`.
//!
//! A reset by the PCI core, through `reset` in sysfs for example, is a reset of the device. A fatal
//! error of its link is not: the device cannot be stopped for the reset after the error and VRAM
//! does not survive this reset. So the device is given up as well and the driver must be bound
//! again.
//!
//! When the system sleeps, the device loses its state and the content of VRAM. The queues are
//! *held* before: begun jobs go on and others wait. When the rings are empty, the device is stopped
//! as for a reset by the PCI core and ceases to be a bus master. Later it is set up as after a
//! reset and the waiting jobs begin. The content of VRAM is moved or saved before the sleep, see
//! [`Reporter::save_vram`]. This step waits for all jobs using the content, so none of the waiting
//! jobs needs content restored after they begin. Only a copy from the VRAM of a freed object can be
//! left: it fails with `EIO`.
//!
//! Each reset of the device begins a new *epoch* when it is done. A ring remembers the epoch of its
//! entries and compares it with [`Recovery::epoch`]. If they differ, the device has forgotten the
//! entries. A doorbell is also for one epoch because a ring counts from 0 after a reset.
//!
//! # Locking
//!
//! One mutex for resets and doorbells. It is inside of the mutex of a ring and outside of the mutex
//! of [`Invalidator`](crate::invalidate::Invalidator). It is taken in the path to the signal of a
//! fence: while it is held, nothing is allocated and no fence is waited for. Readers of the state
//! take no lock.
//!
//! Resets by userspace do not begin while processes are frozen. A fatal error may still be detected
//! while the system goes to sleep: the mutex serializes the two. It also guards `is_paused`, so
//! this driver does not reset a stopped device.

use kernel::{
    device::Device,
    drm::vram::Allocator,
    new_mutex,
    pci::BusMaster,
    prelude::*,
    ratelimit::RateLimit,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex,
        MutexGuard,
        SetOnce, //
    }, //
};

use crate::{
    aperture::Aperture,
    contexts::Contexts,
    memory::Status,
    module_parameters,
    regs::{
        Regs,
        RINGS, //
    },
    report::{
        Event,
        Reporter, //
    },
    MODULE, //
};

/// How often in a row a ring is found stuck before the whole device is reset.
const LIMIT: u32 = 3;

/// The maximum number of device resets caused by a ring without a completed entry in between.
const DEVICE_LIMIT: u32 = 2;

/// What was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    /// The ring. The fence in the status page shows the submissions done.
    Ring,
    /// The whole device, by this driver or by the PCI core. The entries of the ring are lost.
    Device,
}

/// The location of a ring.
#[derive(Clone, Copy)]
struct Place {
    address: u64,
    entries: u32,
}

struct State {
    /// The locations of the rings.
    rings: [Option<Place>; RINGS],
}

/// The recovery of a device.
#[pin_data]
pub(crate) struct Recovery {
    regs: Arc<Regs>,
    status: Arc<Status>,
    contexts: Arc<Contexts>,
    aperture: Arc<Aperture>,
    vram: Arc<Allocator>,
    dev: ARef<Device>,
    pub(crate) reporter: Reporter,
    /// Limits the reports of ring resets because a client can cause these as often as it likes.
    #[pin]
    pub(crate) limit: RateLimit,
    /// Populated when all memory accessed by the device is allocated.
    master: SetOnce<BusMaster>,
    epoch: Atomic<u64>,
    /// The error number that all jobs end with, or 0.
    closed: Atomic<i32>,
    /// The device is stopped for a reset by the PCI core or sleeps. Changes with the lock held.
    is_paused: Atomic<bool>,
    /// No job begins because the system is about to sleep.
    is_held: Atomic<bool>,
    /// How often the device was stopped for a sleep. VRAM may lose its content in a sleep.
    sleeps: Atomic<u64>,
    /// How often each ring was reset alone or with the device.
    resets: [Atomic<u64>; RINGS],
    /// How often each ring was found stuck since it last completed an entry.
    stuck: [Atomic<u32>; RINGS],
    /// How often each ring caused a reset of the device since it last completed an entry.
    device_stuck: [Atomic<u32>; RINGS],
    #[pin]
    state: Mutex<State>,
}

/// The right to write entries and to ring doorbells. The device is not reset meanwhile.
pub(crate) struct Doorbells<'a> {
    recovery: &'a Recovery,
    _state: MutexGuard<'a, State>,
}

impl Doorbells<'_> {
    /// Rings the doorbell of a ring. `written` is its number of written entries.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the driver is unbound.
    pub(crate) fn ring(&self, ring: usize, written: u32) -> Result {
        self.recovery.regs.ring_doorbell(ring, written)
    }
}

impl Recovery {
    /// Takes over a device after a reset and writes the addresses of its memory to it.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(
        dev: &Device,
        regs: Arc<Regs>,
        status: Arc<Status>,
        contexts: Arc<Contexts>,
        aperture: Arc<Aperture>,
        vram: Arc<Allocator>,
        reporter: Reporter,
    ) -> Result<Arc<Self>> {
        regs.set_memory(status.address(), contexts.address())?;
        Arc::pin_init(
            pin_init!(Self {
                regs,
                status,
                contexts,
                aperture,
                vram,
                dev: dev.into(),
                reporter,
                limit <- RateLimit::new(MODULE),
                master: SetOnce::new(),
                epoch: Atomic::new(1),
                closed: Atomic::new(0),
                is_paused: Atomic::new(false),
                is_held: Atomic::new(false),
                sleeps: Atomic::new(0),
                resets: [const { Atomic::new(0) }; RINGS],
                stuck: [const { Atomic::new(0) }; RINGS],
                device_stuck: [const { Atomic::new(0) }; RINGS],
                state <- new_mutex!(
                    State {
                        rings: [None; RINGS],
                    },
                    "mgpu::Recovery"
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// Takes the bus mastering of the device. The memory of the device is all allocated by now.
    pub(crate) fn start(&self, master: BusMaster) {
        self.master.populate(master);
    }

    /// Sets the location of a ring, now and after each reset of the device. The ring begins with
    /// its first entry.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such ring. `ENODEV` if the driver is unbound.
    pub(crate) fn set_ring(&self, ring: usize, address: u64, entries: u32) -> Result {
        let mut state = self.state.lock();

        *state.rings.get_mut(ring).ok_or(EINVAL)? = Some(Place { address, entries });
        self.regs.set_ring(ring, address, entries)
    }

    /// Returns the number of the epoch.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// Returns how often a ring was reset alone or with the device.
    pub(crate) fn resets(&self, ring: usize) -> u64 {
        self.resets
            .get(ring)
            .map_or(0, |resets| resets.load(Relaxed))
    }

    /// Returns the error that all jobs end with if the device is wedged or gone.
    pub(crate) fn closed(&self) -> Option<Error> {
        match self.closed.load(Acquire) {
            0 => None,
            error => Some(Error::from_errno(error)),
        }
    }

    /// Notes that a ring has completed an entry and so is not stuck.
    pub(crate) fn progress(&self, ring: usize) {
        for counts in [&self.stuck, &self.device_stuck] {
            if let Some(count) = counts.get(ring) {
                count.store(0, Relaxed);
            }
        }
    }

    /// Returns the right to write entries to rings and to ring their doorbells, or [`None`] if
    /// `epoch` has ended. Waits for a reset by another task.
    pub(crate) fn doorbells(&self, epoch: u64) -> Option<Doorbells<'_>> {
        let is_over = || self.is_paused() || self.epoch() != epoch;

        if is_over() {
            return None;
        }
        let state = self.state.lock();
        (!is_over()).then_some(Doorbells {
            recovery: self,
            _state: state,
        })
    }

    /// Sets whether jobs are held. The first entries of a held job are not written.
    pub(crate) fn set_held(&self, is_held: bool) {
        self.is_held.store(is_held, Relaxed);
    }

    /// Returns whether no job may begin. A ring asks with its mutex held.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Relaxed)
    }

    /// Returns how often the device was stopped for a sleep. VRAM may lose its content in a sleep.
    pub(crate) fn sleeps(&self) -> u64 {
        self.sleeps.load(Relaxed)
    }

    /// Returns whether the device is stopped for a reset by the PCI core or sleeps. No entry must
    /// then be written to a ring.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Acquire)
    }

    /// Resets a ring last written to in `epoch`. The ring does no DMA when this returns, even after
    /// an error. Sleeps.
    ///
    /// `is_stuck` is set if the ring makes no progress and has not stopped with an error.
    ///
    /// # Errors
    ///
    /// `EIO` if the device is wedged by now. `ENODEV` if it is gone.
    pub(crate) fn reset_ring(&self, ring: usize, epoch: u64, is_stuck: bool) -> Result<Reset> {
        let mut state = self.state.lock();

        if let Some(error) = self.closed() {
            return Err(error);
        }
        if self.is_paused() || self.epoch() != epoch {
            return Ok(Reset::Device);
        }

        let stuck = self.stuck.get(ring).ok_or(EINVAL)?;
        let times = if is_stuck {
            stuck.fetch_add(1, Relaxed) + 1
        } else {
            0
        };
        if times < LIMIT {
            match self.regs.reset_ring(ring) {
                Ok(()) => {
                    if let Some(resets) = self.resets.get(ring) {
                        resets.fetch_add(1, Relaxed);
                    }
                    return Ok(Reset::Ring);
                }
                Err(e) if e == ENODEV => return Err(self.gone()),
                Err(e) => dev_info!(
                    self.dev,
                    "the reset of ring {} is not done: {:?}\n",
                    ring,
                    e
                ),
            }
        } else {
            dev_info!(
                self.dev,
                "ring {} was stuck {} times in a row\n",
                ring,
                times
            );
        }
        self.reset_device(&mut state, Some(ring))
            .map(|()| Reset::Device)
    }

    /// Returns whether the device must be reset because it has not completed an invalidation.
    pub(crate) fn is_stale(&self) -> bool {
        self.contexts.invalidator().is_broken()
            && self.closed().is_none()
            && !self.is_paused()
            && module_parameters::invalidate_reset.value() != 0
    }

    /// Returns how often the whole device was reset. See [`Self::was_stale`].
    pub(crate) fn device_resets(&self) -> u64 {
        self.contexts.invalidator().resets()
    }

    /// Returns whether an error may come from a failed invalidation. This is so if the device must
    /// be reset or was reset since the count was `resets`. Such a reset repairs the cause of the
    /// error.
    pub(crate) fn was_stale(&self, resets: u64) -> bool {
        self.is_stale() || self.device_resets() != resets
    }

    /// Resets the device if [`Self::is_stale`]. Sleeps.
    pub(crate) fn reset_stale(&self) {
        if !self.is_stale() {
            return;
        }
        let mut state = self.state.lock();

        // Another task may have done the reset.
        if self.is_stale() {
            // If the reset fails, the device is wedged or gone.
            let _ = self.reset_device(&mut state, None);
        }
    }

    /// Resets the whole device and sets it up again. `cause` is the ring to blame, if there is one.
    /// If the reset fails, the device is wedged. It is also wedged if the last resets have not
    /// helped this ring.
    fn reset_device(&self, state: &mut State, cause: Option<usize>) -> Result {
        let may_help = cause
            .and_then(|ring| self.device_stuck.get(ring))
            .is_none_or(|times| times.fetch_add(1, Relaxed) < DEVICE_LIMIT);

        for stuck in &self.stuck {
            stuck.store(0, Relaxed);
        }
        let ret = if may_help {
            self.set_up(state)
        } else {
            dev_info!(self.dev, "resets of the device do not help a ring\n");
            // The other rings may be working.
            self.regs.reset_all().and(Err(ETIMEDOUT))
        };
        ret.map_err(|e| self.give_up(e))?;
        for resets in &self.resets {
            resets.fetch_add(1, Relaxed);
        }
        self.reporter.tell(Event::Reset);
        dev_info!(self.dev, "the device was reset\n");
        Ok(())
    }

    /// Resets the device and writes the addresses of all memory to it. Jobs begin in the next
    /// epoch.
    fn set_up(&self, state: &State) -> Result {
        self.contexts.invalidator().reset(self.aperture.len(), || {
            self.regs.reset_all()?;
            self.status.restart()?;
            self.regs
                .set_memory(self.status.address(), self.contexts.address())?;
            for (ring, place) in state.rings.iter().enumerate() {
                if let Some(place) = place {
                    self.regs.set_ring(ring, place.address, place.entries)?;
                }
            }
            Ok(())
        })?;
        self.vram.count_reset();
        self.end_epoch();
        Ok(())
    }

    /// Gives the device up because of the error of a reset. Returns the error that all jobs end
    /// with.
    fn give_up(&self, error: Error) -> Error {
        if error == ENODEV || self.regs.is_gone() {
            self.gone()
        } else {
            self.wedge(error)
        }
    }

    /// Makes all jobs in the rings end with an error. The device does no DMA for them any more.
    fn end_epoch(&self) {
        self.epoch.fetch_add(1, Release);
    }

    /// Ends the device's access to memory.
    fn end_dma(&self) {
        if let Some(master) = self.master.as_ref() {
            master.end();
        }
    }

    /// Ends the device's access to memory and then ends all jobs with `error`. Returns whether this
    /// was the first time.
    fn close(&self, error: Error) -> bool {
        self.end_dma();
        self.contexts.invalidator().end();
        // The first error is kept.
        let ret = self.closed.cmpxchg(0, error.to_errno(), Release);
        self.end_epoch();
        ret.is_ok()
    }

    /// Declares the device wedged because a reset of it was not completed.
    fn wedge(&self, why: Error) -> Error {
        self.close(EIO);
        dev_err!(
            self.dev,
            "the device is wedged, a reset failed: {:?}\n",
            why
        );
        self.reporter.tell(Event::Wedged);
        EIO
    }

    /// Returns whether the device does not answer any more. Returns false during a reset by the PCI
    /// core because the device may be silent then.
    pub(crate) fn is_gone(&self) -> bool {
        !self.is_paused() && self.regs.is_gone()
    }

    /// Gives the device up because it does not answer any more. Returns `ENODEV`.
    pub(crate) fn gone(&self) -> Error {
        if self.close(ENODEV) {
            self.reporter.tell(Event::Gone);
        }
        ENODEV
    }

    /// Gives the device up because its link has failed. If it answers again, a reset has come in
    /// between and VRAM has lost its content. The driver does not access the device when this
    /// returns. Sleeps.
    pub(crate) fn link_failed(&self) {
        let _state = self.state.lock();

        // The driver does not check whether the device is gone either.
        self.is_paused.store(true, Release);
        if self.close(EIO) {
            dev_err!(self.dev, "the link to the device has failed\n");
            self.reporter.tell(Event::Lost);
        }
    }

    /// Stops the device for a reset by the PCI core until [`Self::resume`]. When this returns, the
    /// device does no DMA and the driver only accesses it to check whether it is gone. Sleeps.
    pub(crate) fn pause(&self) {
        self.stop(&mut self.state.lock());
    }

    /// Stops the device. Does nothing to a device given up before because the driver does not
    /// access it.
    fn stop(&self, _state: &mut State) {
        if self.closed().is_some() {
            return;
        }
        self.is_paused.store(true, Release);
        match self.contexts.invalidator().pause(|| self.regs.reset_all()) {
            Ok(()) => self.end_epoch(),
            _ if self.closed().is_some() => (),
            Err(e) if e == ENODEV => {
                self.gone();
            }
            Err(e) => {
                self.wedge(e);
            }
        }
    }

    /// Sets up the device after a reset by the PCI core. Sleeps.
    ///
    /// # Errors
    ///
    /// `EIO` if it is wedged. `ENODEV` if it is gone.
    pub(crate) fn resume(&self) -> Result {
        let mut state = self.state.lock();

        if let Some(error) = self.closed() {
            return Err(error);
        }
        for times in &self.device_stuck {
            times.store(0, Relaxed);
        }
        let ret = self.reset_device(&mut state, None);
        // The flag is cleared last because entries written before belong to the old epoch.
        self.is_paused.store(false, Release);
        ret
    }

    /// Like [`Self::pause`] for a device about to lose its state and the content of VRAM, until
    /// [`Self::wake`]. The device is no bus master when this returns.
    pub(crate) fn sleep(&self) {
        let mut state = self.state.lock();

        self.stop(&mut state);
        self.end_dma();
    }

    /// Sets up the device after a sleep unless it was given up before. Jobs may begin when this
    /// returns. Sleeps.
    ///
    /// # Errors
    ///
    /// `EIO` if it is wedged by now. `ENODEV` if it is gone.
    pub(crate) fn wake(&self) -> Result {
        let state = self.state.lock();

        self.sleeps.fetch_add(1, Relaxed);
        if self.closed().is_some() {
            self.set_held(false);
            return Ok(());
        }
        for counts in [&self.stuck, &self.device_stuck] {
            for count in counts {
                count.store(0, Relaxed);
            }
        }
        if let Some(master) = self.master.as_ref() {
            master.resume();
        }
        let ret = self.set_up(&state).map_err(|e| self.give_up(e));
        // The flags are cleared last as in `resume()`.
        self.set_held(false);
        self.is_paused.store(false, Release);
        ret
    }

    /// Resets the device for the last time. It accesses no memory when this returns. Sleeps.
    pub(crate) fn shutdown(&self) {
        let _state = self.state.lock();

        if self.closed().is_none() && self.regs.reset_all() == Err(ETIMEDOUT) {
            dev_err!(self.dev, "the device cannot be reset\n");
        }
        self.close(ENODEV);
    }
}

// SPDX-License-Identifier: GPL-2.0

//! What is done about a device that does not do what it should.
//!
//! 1. A ring that is stuck, or has stopped with an error, is reset.
//! 2. If its reset is not done, or the ring was stuck [`LIMIT`] times in a row without an entry that
//!    was done in between (it has one to do first, which no client has made), all of the device is reset, and set up again: rings, status page, tables of
//!    contexts, and windows. VRAM keeps its content. What was in a ring then ends with an error.
//! 3. If that does not help either, the device is *wedged*: it is a bus master no more, so that it
//!    writes to no memory, and then all jobs end with `EIO`, and those that come. The objects in VRAM
//!    are lost. To bind the driver anew may help.
//!
//! A reset that others do, such as by `reset` in sysfs, is one of the device.
//!
//! Each reset of the device begins an *epoch* when it is done. Who has something in a ring remembers
//! in which one it was put there, and asks [`Recovery::epoch`]: what is of another one is not there
//! any more. A doorbell has the epoch for which it is meant, as a ring counts from 0 again.
//!
//! # Locking
//!
//! One mutex for resets and doorbells, inside of that of a ring; that of
//! [`Invalidator`](crate::invalidate::Invalidator) comes after it. It is taken in the path that leads to the signal of a fence: nothing is allocated while it is held,
//! and no fence waited for. Who only wants to know takes no lock.

use kernel::{
    device::Device,
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
        SetOnce, //
    }, //
};

use crate::{
    aperture::Aperture,
    contexts::Contexts,
    memory::Status,
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

/// After how many resets of a stuck ring all of the device is reset.
const LIMIT: u32 = 3;

/// How many resets of the device follow one another without an entry that is done.
const DEVICE_LIMIT: u32 = 2;

/// What was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    /// The ring: its fence tells what was done.
    Ring,
    /// All of the device, by whomever: what was in the ring is not there any more.
    Device,
}

/// Where a ring is.
#[derive(Clone, Copy)]
struct Place {
    address: u64,
    entries: u32,
}

struct State {
    /// Where the rings are.
    rings: [Option<Place>; RINGS],
}

/// The state of a device.
#[pin_data]
pub(crate) struct Recovery {
    regs: Arc<Regs>,
    status: Arc<Status>,
    contexts: Arc<Contexts>,
    aperture: Arc<Aperture>,
    dev: ARef<Device>,
    pub(crate) reporter: Reporter,
    /// How often it is told that a ring was reset, which a client can have as often as it likes.
    #[pin]
    pub(crate) limit: RateLimit,
    /// Populated when the device has all of its memory.
    master: SetOnce<BusMaster>,
    epoch: Atomic<u64>,
    /// An error by its number, or 0.
    closed: Atomic<i32>,
    /// Others reset the device. Changes with the lock held.
    is_paused: Atomic<bool>,
    /// How often each ring was reset, alone or with the device.
    resets: [Atomic<u64>; RINGS],
    /// How often each ring was reset since one of its entries was done last.
    stuck: [Atomic<u32>; RINGS],
    /// How often the device was reset since an entry of any ring was done last.
    device_stuck: Atomic<u32>,
    #[pin]
    state: Mutex<State>,
}

impl Recovery {
    /// Takes over a device that was just reset, and says where its memory is.
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
        reporter: Reporter,
    ) -> Result<Arc<Self>> {
        regs.set_memory(status.address(), contexts.address())?;
        Arc::pin_init(
            pin_init!(Self {
                regs,
                status,
                contexts,
                aperture,
                dev: dev.into(),
                reporter,
                limit <- RateLimit::new(MODULE),
                master: SetOnce::new(),
                epoch: Atomic::new(1),
                closed: Atomic::new(0),
                is_paused: Atomic::new(false),
                resets: [const { Atomic::new(0) }; RINGS],
                stuck: [const { Atomic::new(0) }; RINGS],
                device_stuck: Atomic::new(0),
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

    /// Lets the device begin, which has all of its memory by now.
    pub(crate) fn start(&self, master: BusMaster) {
        self.master.populate(master);
    }

    /// Says where the memory of a ring is, which begins with its first entry, now and after a reset
    /// of the device.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such ring, `ENODEV` if the driver is unbound.
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

    /// Returns how often a ring was reset, alone or with the device.
    pub(crate) fn resets(&self, ring: usize) -> u64 {
        self.resets
            .get(ring)
            .map_or(0, |resets| resets.load(Relaxed))
    }

    /// Returns the error with which all jobs end, if they do because of the device.
    pub(crate) fn closed(&self) -> Option<Error> {
        match self.closed.load(Acquire) {
            0 => None,
            error => Some(Error::from_errno(error)),
        }
    }

    /// Takes note that a ring has done an entry: it is not stuck.
    pub(crate) fn progress(&self, ring: usize) {
        if let Some(stuck) = self.stuck.get(ring) {
            stuck.store(0, Relaxed);
        }
        self.device_stuck.store(0, Relaxed);
    }

    /// Lets a ring go on, of which `written` entries were written since it was reset, in an epoch.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if it is another epoch by now: nothing was done. `ENODEV` if the driver is unbound.
    pub(crate) fn ring_doorbell(&self, ring: usize, epoch: u64, written: u32) -> Result {
        let _state = self.state.lock();

        if self.is_paused() || self.epoch() != epoch {
            return Err(EAGAIN);
        }
        self.regs.ring_doorbell(ring, written)
    }

    /// Tells whether others reset the device, so that nothing is to be put into rings.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Acquire)
    }

    /// Resets a ring that was last written to in `epoch`. It does no DMA when this returns, whatever
    /// it returns. Sleeps.
    ///
    /// `is_stuck` says that it does nothing, and does not say why.
    ///
    /// # Errors
    ///
    /// `EIO` if the device is wedged by now, `ENODEV` if it is gone.
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
                Err(e) if e == ENODEV => return Err(self.close(ENODEV)),
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
        self.reset_device(&mut state).map(|()| Reset::Device)
    }

    /// Resets all of the device, and sets it up again, or gives it up.
    fn reset_device(&self, state: &mut State) -> Result {
        let rings = state.rings;

        for stuck in &self.stuck {
            stuck.store(0, Relaxed);
        }
        let ret = if self.device_stuck.fetch_add(1, Relaxed) < DEVICE_LIMIT {
            self.contexts.invalidator().reset(self.aperture.len(), || {
                self.regs.reset_all()?;
                self.status.begin_anew()?;
                self.regs
                    .set_memory(self.status.address(), self.contexts.address())?;
                for (ring, place) in rings.iter().enumerate() {
                    if let Some(place) = place {
                        self.regs.set_ring(ring, place.address, place.entries)?;
                    }
                }
                Ok(())
            })
        } else {
            Err(ETIMEDOUT)
        };
        match ret {
            Ok(()) => {
                self.end_epoch();
                for resets in &self.resets {
                    resets.fetch_add(1, Relaxed);
                }
                self.reporter.tell(Event::Reset);
                dev_info!(self.dev, "the device was reset\n");
                Ok(())
            }
            Err(e) if e == ENODEV || self.regs.is_gone() => Err(self.close(ENODEV)),
            Err(e) => Err(self.wedge(e)),
        }
    }

    /// Lets what is in the rings end with an error: the device does no DMA for it any more.
    fn end_epoch(&self) {
        self.epoch.fetch_add(1, Release);
    }

    /// Ends the access of the device to memory, and then all that it is to do with an error. Returns
    /// that.
    fn close(&self, error: Error) -> Error {
        if let Some(master) = self.master.as_ref() {
            master.end();
        }
        self.contexts.invalidator().end();
        // The first one counts.
        let _ = self.closed.cmpxchg(0, error.to_errno(), Release);
        self.end_epoch();
        error
    }

    /// Gives the device up, of which a reset was not done.
    fn wedge(&self, why: Error) -> Error {
        let error = self.close(EIO);

        dev_err!(
            self.dev,
            "the device is given up, a reset is not done: {:?}\n",
            why
        );
        self.reporter.tell(Event::Wedged);
        error
    }

    /// Tells whether the device does not answer any more. While others reset it nobody knows.
    pub(crate) fn is_gone(&self) -> bool {
        !self.is_paused() && self.regs.is_gone()
    }

    /// Takes note that the device does not answer any more.
    pub(crate) fn gone(&self) {
        self.close(ENODEV);
    }

    /// Lets others reset the device, until [`Self::resume`]. It does no DMA when this returns, and
    /// nothing of the driver accesses it but to see whether it is there. Sleeps.
    pub(crate) fn pause(&self) {
        let _state = self.state.lock();

        self.is_paused.store(true, Release);
        match self.contexts.invalidator().pause(|| self.regs.reset_all()) {
            Ok(()) => self.end_epoch(),
            _ if self.closed().is_some() => (),
            Err(e) if e == ENODEV => {
                self.close(ENODEV);
            }
            Err(e) => {
                self.wedge(e);
            }
        }
    }

    /// Sets the device up that others have reset. Sleeps.
    ///
    /// # Errors
    ///
    /// `EIO` if it is wedged, `ENODEV` if it is gone.
    pub(crate) fn resume(&self) -> Result {
        let mut state = self.state.lock();

        self.device_stuck.store(0, Relaxed);
        let ret = match self.closed() {
            Some(error) => Err(error),
            None => self.reset_device(&mut state),
        };
        // What is put into rings before belongs to an epoch that is over.
        self.is_paused.store(false, Release);
        ret
    }

    /// Resets the device for the last time: it accesses no memory when this returns. Sleeps.
    pub(crate) fn quiet(&self) {
        let _state = self.state.lock();

        if self.closed().is_none() && self.regs.reset_all() == Err(ETIMEDOUT) {
            dev_err!(self.dev, "the device cannot be reset\n");
        }
        self.close(ENODEV);
    }
}

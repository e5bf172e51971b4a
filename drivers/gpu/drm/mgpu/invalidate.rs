// SPDX-License-Identifier: GPL-2.0

//! Invalidations of translations after changes of page tables.
//!
//! The device caches entries of page tables until they are invalidated, even entries without a
//! mapping. It reports when an invalidation is done. From then on it does not use old entries. If
//! it does not report this even at the second try, it is unknown what the device still reaches. The
//! invalidator is then *broken*: the device gets no job and no window before a reset. A reset of
//! the device is done with the lock held and ends all translations. The translations of the
//! aperture are read again.
//!
//! # Locking
//!
//! One mutex, inside of the mutexes of page tables and of the aperture. It is taken in the path to
//! the signal of a fence: while it is held, nothing is allocated and no fence is waited for.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    io::poll::read_poll_timeout,
    new_mutex,
    prelude::*,
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
        MutexGuard, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

use crate::{
    contexts::APERTURE,
    memory::Status,
    module_parameters,
    regs::Regs, //
};

/// The number before that of the first invalidation. Like jiffies, the numbers begin shortly before
/// they wrap. So tests and users see the wrap early.
const FIRST: u32 = u32::MAX - 16;

/// How often an invalidation is tried.
const TRIES: usize = 2;

/// Returns how long the device may take for an invalidation.
fn limit() -> Delta {
    Delta::from_millis(module_parameters::invalidate_ms.value().into())
}

/// The state of the invalidations.
struct State {
    /// The number of the last invalidation.
    number: u32,
}

/// The invalidator of a device.
#[pin_data]
pub(crate) struct Invalidator {
    regs: Arc<Regs>,
    status: Arc<Status>,
    dev: ARef<Device>,
    /// An invalidation failed. Changes with the lock held.
    is_broken: Atomic<bool>,
    /// The device is stopped for a reset by the PCI core. Changes with the lock held.
    is_paused: Atomic<bool>,
    /// The device accesses no memory any more.
    is_over: Atomic<bool>,
    /// How often the device was reset. Changes with the lock held.
    resets: Atomic<u64>,
    #[pin]
    state: Mutex<State>,
}

impl Invalidator {
    /// Creates the invalidator of a device after a reset.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(
        dev: &Device<Bound>,
        regs: Arc<Regs>,
        status: Arc<Status>,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                regs,
                status,
                dev: dev.into(),
                is_broken: Atomic::new(false),
                is_paused: Atomic::new(false),
                is_over: Atomic::new(false),
                resets: Atomic::new(0),
                state <- new_mutex!(
                    State {
                        number: FIRST,
                    },
                    "mgpu::Invalidator"
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether an invalidation failed. It is then unknown what the device still reaches.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Relaxed)
    }

    /// Returns whether no job may begin because it is unknown what the device still reaches. A job
    /// may begin during a reset by the PCI core: no entry is written to a ring before the end of
    /// this reset.
    pub(crate) fn holds_jobs(&self) -> bool {
        self.is_broken() && !self.is_paused.load(Relaxed)
    }

    /// Returns the argument for [`Self::has_forgotten`] if the device may still use entries changed
    /// before an invalidation. `invalidated` is the result of this invalidation.
    pub(crate) fn may_be_known(&self, invalidated: Result) -> Option<u64> {
        // Read before `is_broken` because a reset clears `is_broken`. A reset from here on ends the
        // quarantine.
        let resets = self.resets.load(Acquire);

        (invalidated.is_err() && self.is_broken() && !self.has_forgotten(resets)).then_some(resets)
    }

    /// Returns whether the device has no old translations any more. Either it was reset since the
    /// count of resets was `resets` or it accesses no memory.
    pub(crate) fn has_forgotten(&self, resets: u64) -> bool {
        self.resets.load(Acquire) > resets || self.is_over.load(Acquire)
    }

    /// Returns how often the device was reset.
    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Acquire)
    }

    /// Notes that the device accesses no memory any more. No invalidation is needed from then on.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Release);
    }

    /// Takes the lock. This may wait for a reset of the device.
    pub(crate) fn lock(&self) -> Telling<'_> {
        Telling {
            of: self,
            state: self.state.lock(),
        }
    }

    /// Takes the lock unless another task holds it.
    pub(crate) fn try_lock(&self) -> Option<Telling<'_>> {
        Some(Telling {
            of: self,
            state: self.state.try_lock()?,
        })
    }

    /// Invalidates translations of a context, see [`Telling::invalidate`]. Takes the lock.
    ///
    /// # Errors
    ///
    /// See there.
    pub(crate) fn invalidate(&self, context: u32, start: u64, len: u64) -> Result {
        self.lock().invalidate(context, start, len)
    }

    /// Resets the whole device by `f`. Only the translations of the aperture survive this. The
    /// device then reads the page tables of the aperture, whose size is `len` bytes.
    ///
    /// # Errors
    ///
    /// The errors of `f` and those of an invalidation. The invalidator is then broken.
    pub(crate) fn reset(&self, len: u64, f: impl FnOnce() -> Result) -> Result {
        let mut telling = self.lock();

        self.is_paused.store(false, Relaxed);
        // Jobs begun meanwhile wait for the reset, so the invalidator is not broken before the
        // reset fails.
        f().inspect_err(|_| self.is_broken.store(true, Relaxed))?;
        telling.send(APERTURE, 0, len)?;
        self.resets.fetch_add(1, Release);
        self.is_broken.store(false, Relaxed);
        Ok(())
    }

    /// Does no invalidation until [`Self::reset`] because the PCI core resets the device. Calls `f`
    /// with the lock held to stop the device.
    pub(crate) fn pause(&self, f: impl FnOnce() -> Result) -> Result {
        let _telling = self.lock();

        self.is_paused.store(true, Relaxed);
        // The device may have translations if it was not stopped.
        f().inspect_err(|_| self.is_broken.store(true, Relaxed))
    }
}

/// The lock of an [`Invalidator`].
pub(crate) struct Telling<'a> {
    of: &'a Invalidator,
    state: MutexGuard<'a, State>,
}

impl Telling<'_> {
    /// Checks that the device is not stopped.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is stopped for a reset by the PCI core or a sleep. `ENODEV` if it stays
    /// stopped because it was given up.
    pub(crate) fn check(&self) -> Result {
        match self.of.is_paused.load(Relaxed) {
            true if self.of.is_over.load(Acquire) => Err(ENODEV),
            true => Err(EBUSY),
            false => Ok(()),
        }
    }

    /// Invalidates the translations of a context for `len` bytes from the virtual address `start`
    /// on. Does nothing during a reset by the PCI core because the device then has no translations.
    /// Sleeps.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device is gone or its driver unbound. The device then reaches no memory.
    /// - `EIO` if the device does not complete this invalidation or has not completed an earlier
    ///   one.
    pub(crate) fn invalidate(&mut self, context: u32, start: u64, len: u64) -> Result {
        let of = self.of;

        if of.is_over.load(Acquire) {
            return Err(ENODEV);
        }
        if of.is_paused.load(Relaxed) {
            return Ok(());
        }
        if of.is_broken() {
            return Err(EIO);
        }
        self.send(context, start, len)
    }

    /// Sends an invalidation to the device and waits for it.
    fn send(&mut self, context: u32, start: u64, len: u64) -> Result {
        let of = self.of;

        for _ in 0..TRIES {
            self.state.number = self.state.number.wrapping_add(1);
            let number = self.state.number;

            of.regs.invalidate(context, start, len, number)?;
            let since = Instant::<Monotonic>::now();
            let mut looks = 0;
            let look = || {
                // Stop waiting if the device is gone. This check is rare because reading a register
                // takes long.
                if since.elapsed().as_millis() > 100 * (looks + 1) {
                    looks += 1;
                    if of.regs.is_gone() {
                        return Err(ENODEV);
                    }
                }
                of.status.invalidated()
            };
            let ret = read_poll_timeout(
                look,
                |done| *done == number,
                Delta::from_micros(20),
                limit(),
            );
            match ret {
                Ok(_) => return Ok(()),
                Err(e) if e == ENODEV => {
                    // A read of all ones may also be an error of the link.
                    of.is_broken.store(true, Relaxed);
                    return Err(e);
                }
                // The task may have been preempted for all of the time, so read once more.
                Err(_) if of.status.invalidated()? == number => return Ok(()),
                Err(_) => dev_info!(of.dev, "invalidation {} is not done\n", number),
            }
        }

        dev_err!(
            of.dev,
            "an invalidation failed: the device may have stale translations\n"
        );
        of.is_broken.store(true, Relaxed);
        Err(EIO)
    }
}

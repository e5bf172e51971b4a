// SPDX-License-Identifier: GPL-2.0

//! Invalidations: by one the device learns that page tables have changed.
//!
//! The device keeps translations until it is told, and says when it has done so: then nothing it
//! does uses what was there before. If it does not say so, even when told once more, it has lost
//! what it was told, and nobody knows what it still reaches: nothing is given to it any more, until
//! it was reset. A reset of the device is done with the lock held, and ends what it knows.
//!
//! # Locking
//!
//! One mutex, the innermost of page tables and of the aperture. It is taken in the path that leads to
//! the signal of a fence: nothing is allocated, and no fence waited for, while it is held.

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
    regs::Regs, //
};

/// How long the device may take.
const TIME: Delta = Delta::from_secs(3);

/// How often it is told.
const TRIES: usize = 2;

/// What the device was told.
struct State {
    /// The number of the last invalidation.
    number: u32,
    /// Others reset the device.
    is_paused: bool,
}

/// What tells the device.
#[pin_data]
pub(crate) struct Invalidator {
    regs: Arc<Regs>,
    status: Arc<Status>,
    dev: ARef<Device>,
    /// The device did not do what it was told. Changes with the lock held.
    is_broken: Atomic<bool>,
    /// The device accesses no memory any more.
    is_over: Atomic<bool>,
    /// How often the device was reset. Changes with the lock held.
    resets: Atomic<u64>,
    #[pin]
    state: Mutex<State>,
}

impl Invalidator {
    /// Makes that of a device which was just reset.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out, `ENODEV` after the driver was unbound.
    pub(crate) fn new(
        dev: &Device<Bound>,
        regs: Arc<Regs>,
        status: Arc<Status>,
    ) -> Result<Arc<Self>> {
        let number = status.invalidated()?;

        Arc::pin_init(
            pin_init!(Self {
                regs,
                status,
                dev: dev.into(),
                is_broken: Atomic::new(false),
                is_over: Atomic::new(false),
                resets: Atomic::new(0),
                state <- new_mutex!(
                    State {
                        number,
                        is_paused: false,
                    },
                    "mgpu::Invalidator"
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// Tells whether nobody knows what the device still reaches.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Relaxed)
    }

    /// Tells whether the device may still know what was changed before an invalidation that has ended
    /// with `told`. If so, returns the argument for [`Self::has_forgotten`].
    pub(crate) fn may_be_known(&self, told: Result) -> Option<u64> {
        // Before the look at what a reset changes: one that comes now ends what it knows.
        let resets = self.resets.load(Acquire);

        (told == Err(EIO) && self.is_broken()).then_some(resets)
    }

    /// Tells whether the device has forgotten what it may have known after it was reset so often.
    pub(crate) fn has_forgotten(&self, resets: u64) -> bool {
        self.resets.load(Acquire) > resets || self.is_over.load(Acquire)
    }

    /// Takes note that the device accesses no memory any more, also if it does not say so.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Release);
    }

    /// Takes the lock, for which it may wait until the device was reset.
    pub(crate) fn lock(&self) -> Telling<'_> {
        Telling {
            of: self,
            state: self.state.lock(),
        }
    }

    /// Takes the lock, unless somebody has it.
    pub(crate) fn try_lock(&self) -> Option<Telling<'_>> {
        Some(Telling {
            of: self,
            state: self.state.try_lock()?,
        })
    }

    /// Has the device look anew at the page tables of a context, see [`Telling::invalidate`]. Takes
    /// the lock.
    ///
    /// # Errors
    ///
    /// See there.
    pub(crate) fn invalidate(&self, context: u32, start: u64, len: u64) -> Result {
        self.lock().invalidate(context, start, len)
    }

    /// Does a reset of all of the device, by `f`, after which it looks at the page tables of the
    /// aperture, which has `len` bytes. Of all contexts it knows nothing.
    ///
    /// # Errors
    ///
    /// Those of `f`, and those of an invalidation. Then nobody knows what the device reaches.
    pub(crate) fn reset(&self, len: u64, f: impl FnOnce() -> Result) -> Result {
        let mut telling = self.lock();

        // If it fails.
        self.is_broken.store(true, Relaxed);
        telling.state.is_paused = false;
        f()?;
        self.resets.fetch_add(1, Release);
        self.is_broken.store(false, Relaxed);
        telling.invalidate(APERTURE, 0, len)
    }

    /// Lets others reset the device, until [`Self::reset`]. `f` is called with the lock held, after
    /// which the device does nothing.
    pub(crate) fn pause(&self, f: impl FnOnce() -> Result) -> Result {
        let mut telling = self.lock();

        telling.state.is_paused = true;
        f()
    }
}

/// The lock of an [`Invalidator`].
pub(crate) struct Telling<'a> {
    of: &'a Invalidator,
    state: MutexGuard<'a, State>,
}

impl Telling<'_> {
    /// Tells whether others reset the device.
    pub(crate) fn is_paused(&self) -> bool {
        self.state.is_paused
    }

    /// Has the device look anew at the page tables of a context, from the virtual address `start` on
    /// for `len` bytes. While others reset the device it knows of none. Sleeps.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device is gone, or its driver unbound: it reaches nothing.
    /// - `EIO` if it does not do so, or did not before.
    pub(crate) fn invalidate(&mut self, context: u32, start: u64, len: u64) -> Result {
        let of = self.of;

        if of.is_over.load(Acquire) {
            return Err(ENODEV);
        }
        if of.is_broken() {
            return Err(EIO);
        }
        if self.state.is_paused {
            return Ok(());
        }
        for _ in 0..TRIES {
            self.state.number = self.state.number.wrapping_add(1);
            let number = self.state.number;

            of.regs.invalidate(context, start, len, number)?;
            let since = Instant::<Monotonic>::now();
            let mut looks = 0;
            let look = || {
                // Nobody waits for one that is gone. To ask takes long.
                if since.elapsed().as_millis() > 100 * (looks + 1) {
                    looks += 1;
                    if of.regs.is_gone() {
                        return Err(ENODEV);
                    }
                }
                of.status.invalidated()
            };
            let ret = read_poll_timeout(look, |done| *done == number, Delta::from_micros(20), TIME);
            match ret {
                Ok(_) => return Ok(()),
                Err(e) if e == ENODEV => {
                    of.end();
                    return Err(e);
                }
                // This task may not have run for that long.
                Err(_) if of.status.invalidated()? == number => return Ok(()),
                Err(_) => dev_info!(of.dev, "invalidation {} is not done\n", number),
            }
        }

        dev_err!(of.dev, "nobody knows what the device still reaches\n");
        of.is_broken.store(true, Relaxed);
        Err(EIO)
    }
}

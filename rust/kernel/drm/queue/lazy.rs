// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The queue of an open file, created for its first job.

use crate::{
    drm,
    new_mutex,
    prelude::*,
    sync::{
        Mutex,
        SetOnce, //
    }, //
};

/// Serializes the creation of the queue.
#[pin_data]
struct Turn {
    #[pin]
    lock: Mutex<()>,
}

impl Turn {
    fn new() -> impl PinInit<Self> {
        let init = |slot| {
            // SAFETY: As promised by the caller.
            unsafe { Self::init(slot) };
            Ok(())
        };

        // SAFETY: All of it is initialized.
        unsafe { pin_init::pin_init_from_closure(init) }
    }

    /// # Safety
    ///
    /// `slot` must be valid for writes and pinned afterwards.
    // Not generic and not inlined, so that the lock class and its name stay in the kernel crate. A
    // returned initializer is compiled where it is used.
    #[inline(never)]
    unsafe fn init(slot: *mut Self) {
        let turn = pin_init!(Self {
            lock <- new_mutex!((), "drm::queue::LazyQueue"),
        });

        // SAFETY: By the safety requirements.
        unsafe { pin_init::raw_init(slot, turn) };
    }
}

/// The queue of an open file, created for its first job: a [`Queue`](super::Queue) or a type with
/// one.
///
/// So a file without jobs costs no worker and no fence context. A queue exists only after the
/// registration of the device.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::{
///         self,
///         queue::{
///             LazyQueue,
///             Permit,
///             Queue,
///             RingOps, //
///         }, //
///     },
///     prelude::*, //
/// };
///
/// /// Waits for room for one more job, outside of the section that an unplug waits for.
/// fn room<T: RingOps, D: drm::Driver>(
///     dev: &drm::Device<D, drm::Ioctl>,
///     jobs: &LazyQueue<Queue<T>>,
///     make: impl FnOnce() -> Result<Queue<T>>,
/// ) -> Result<Permit> {
///     jobs.get_or_make(dev, |_dev, _reg| make())?.permit()
/// }
/// ```
#[pin_data]
pub struct LazyQueue<Q> {
    queue: SetOnce<Q>,
    #[pin]
    turn: Turn,
}

impl<Q> LazyQueue<Q> {
    /// Creates the value for a file without a queue.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            queue: SetOnce::new(),
            turn <- Turn::new(),
        })
    }

    /// Returns the queue, if there is one by now.
    pub fn get(&self) -> Option<&Q> {
        self.queue.as_ref()
    }

    /// Returns the queue. If there is none yet, `make` creates it in the section that an unplug
    /// waits for.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if there is no queue and the device is unplugged.
    /// - The errors of `make`.
    pub fn get_or_make<D: drm::Driver>(
        &self,
        dev: &drm::Device<D, drm::Ioctl>,
        make: impl FnOnce(&drm::Device<D, drm::Registered>, &D::RegistrationData<'_>) -> Result<Q>,
    ) -> Result<&Q> {
        if let Some(queue) = self.queue.as_ref() {
            return Ok(queue);
        }

        let guard = dev.registration_guard().ok_or(ENODEV)?;
        let _turn = self.turn.lock.lock();
        if self.queue.as_ref().is_none() {
            let queue = guard.registration_data_with(|reg| make(&guard, reg))?;

            // The mutex is held, so no other task populates it.
            self.queue.populate(queue);
        }
        self.queue.as_ref().ok_or(EINVAL)
    }
}

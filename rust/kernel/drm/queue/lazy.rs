// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The queue of an open file, which is made for its first job.

use crate::{
    drm,
    new_mutex,
    prelude::*,
    sync::{
        Mutex,
        SetOnce, //
    }, //
};

/// A lock, so that one task makes the queue.
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
    /// `slot` must be valid for writes, and be pinned after that.
    // Not generic and not inlined, so that the lock class and its name stay in the kernel crate: an
    // initializer that is returned is compiled where it is used.
    #[inline(never)]
    unsafe fn init(slot: *mut Self) {
        let turn = pin_init!(Self {
            lock <- new_mutex!((), "drm::queue::LazyQueue"),
        });

        // SAFETY: By the safety requirements.
        unsafe { pin_init::raw_init(slot, turn) };
    }
}

/// The queue of an open file, a [`Queue`](super::Queue) or a type that has one, which is made for
/// the first job.
///
/// So a file that queues nothing costs no worker and no fence context, and there is a queue only
/// after the device was registered.
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
    /// Makes the value for a file that has no queue yet.
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

    /// Returns the queue. If there is none yet, `make` makes it, in the section that an unplug
    /// waits for.
    ///
    /// # Errors
    ///
    /// `ENODEV` if there is no queue and the device is unplugged, and what `make` returns.
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

            // The mutex is held, so that no other task populates it.
            self.queue.populate(queue);
        }
        self.queue.as_ref().ok_or(EINVAL)
    }
}

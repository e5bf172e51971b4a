// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The copies of an open file.

use super::engine::CopyQueue;
use crate::{
    drm::queue::{
        Permit,
        RingOps, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Mutex,
        SetOnce, //
    }, //
};

/// The permits for copies that ioctls are about to submit.
#[pin_data]
struct Room {
    #[pin]
    permits: Mutex<KVec<Permit>>,
}

impl Room {
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
        let room = pin_init!(Self {
            permits <- new_mutex!(KVec::new(), "drm::ttm::Copies::room"),
        });

        // SAFETY: By the safety requirements.
        unsafe { pin_init::raw_init(slot, room) };
    }
}

/// The copies of an open file. The queue is made for the first copy.
///
/// An ioctl that copies waits for room ([`Self::await_room`]) before it enters the section that an
/// unplug waits for, because the wait may depend on other devices. It takes the room inside of the
/// section ([`Self::take`]).
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::{
///         queue::{
///             Queue,
///             RingOps, //
///         },
///         ttm::{
///             Copies,
///             Device,
///             TtmObject, //
///         }, //
///     },
///     prelude::*, //
/// };
///
/// /// The two steps of an ioctl: outside of the section, and inside.
/// fn copy<T: TtmObject>(
///     ttm: &Device<T>,
///     copies: &Copies<T::Ring>,
///     queue: impl FnOnce() -> Result<Queue<T::Ring>>,
/// ) -> Result {
///     copies.await_room()?;
///
///     let (queue, permit) = copies.take(|| ttm.copy_queue(c"copies", 0, queue()?))?;
///     // Submits a copy by `gem::ttm::copy_after()`.
///     drop((queue, permit));
///     Ok(())
/// }
/// ```
#[pin_data]
pub struct Copies<R: RingOps> {
    queue: SetOnce<CopyQueue<R>>,
    #[pin]
    room: Room,
}

impl<R: RingOps> Copies<R> {
    /// Makes the value for a file that has no queue yet.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            queue: SetOnce::new(),
            room <- Room::new(),
        })
    }

    /// Waits until all copies have ended, interruptibly. No lock may be held.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the ring is closed.
    /// - `ERESTARTSYS` if a signal arrived.
    pub(crate) fn await_idle(&self) -> Result {
        self.queue
            .as_ref()
            .map_or(Ok(()), |queue| queue.await_idle())
    }

    /// Waits for room for one more copy, interruptibly. No lock may be held.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the ring is closed.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - `ENOMEM` if memory runs out.
    pub fn await_room(&self) -> Result {
        // The first copy always has room.
        if let Some(queue) = self.queue.as_ref() {
            let permit = queue.permit()?;

            self.room.permits.lock().push(permit, GFP_KERNEL)?;
        }
        Ok(())
    }

    /// Returns the queue, and room for one more copy in it, for which [`Self::await_room`] has
    /// waited.
    ///
    /// `make` makes the queue, if there is none yet.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if another task has taken the room, which can only happen without a wait before.
    /// - What `make` returns.
    pub fn take(
        &self,
        make: impl FnOnce() -> Result<CopyQueue<R>>,
    ) -> Result<(&CopyQueue<R>, Permit)> {
        let mut permits = self.room.permits.lock();

        if self.queue.as_ref().is_none() {
            // No other task makes the queue meanwhile.
            self.queue.populate(make()?);
        }
        let queue = self.queue.as_ref().ok_or(EINVAL)?;
        let permit = match permits.pop() {
            Some(permit) => permit,
            None => queue.try_permit()?,
        };

        Ok((queue, permit))
    }
}

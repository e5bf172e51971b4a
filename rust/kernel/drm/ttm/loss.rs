// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects whose content was lost by a failed move.
//!
//! The task that causes a move does not wait for it, so its error is reported to the next user of
//! the object. Each use waits for the fences of the moves and then checks [`Loss`], which is set
//! before the fence signals. The fence alone would not do because a reservation keeps only the
//! latest fence of an engine.
//!
//! The content of an object stays lost until the object is freed. The object can be moved, but this
//! does not restore the content. If a resume could not put content back from its copy in system
//! memory, the content is *away*. Users see this as a loss until a later attempt puts it back.
//!
//! # Locking
//!
//! There is no lock: all of it is atomic. [`Loss::mark_lost`] may be called in any context.

use crate::{
    device,
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
        Arc, //
    }, //
};

/// The losses of a device.
#[pin_data]
pub(crate) struct Losses {
    /// The device named in the log.
    dev: ARef<device::Device>,
    /// Limits the lines about losses in the log: a failing device loses all objects in VRAM.
    #[pin]
    loss_lines: RateLimit,
    /// Limits the lines about moves done by the CPU.
    #[pin]
    again_lines: RateLimit,
    objects: Atomic<u64>,
    again: Atomic<u64>,
}

impl Losses {
    /// Creates the count of the losses of `dev`.
    pub(in crate::drm) fn new(dev: &device::Device) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                dev: dev.into(),
                loss_lines <- RateLimit::new(c"drm_ttm"),
                again_lines <- RateLimit::new(c"drm_ttm"),
                objects: Atomic::new(0),
                again: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the device for a line in the log, if `limit` allows one more.
    fn device(&self, limit: &RateLimit) -> Option<&device::Device> {
        limit.allows().then_some(&*self.dev)
    }

    /// Returns how many objects have lost their content.
    pub(in crate::drm) fn objects(&self) -> u64 {
        self.objects.load(Relaxed)
    }

    /// Returns how many jobs the CPU did after an engine had failed to do them.
    pub(in crate::drm) fn again(&self) -> u64 {
        self.again.load(Relaxed)
    }
}

/// Whether an object has lost its content. Jobs share it with the object.
pub(crate) struct Loss {
    id: u64,
    /// How many unfinished jobs write to the object.
    pending: Atomic<u32>,
    is_lost: Atomic<bool>,
    /// The content is in system memory and could not be put back.
    is_away: Atomic<bool>,
    all: Arc<Losses>,
}

/// Content on its way to an object: a job that may still fail writes to it.
///
/// For a job depending on the content: it finds out when it begins whether the content has arrived.
/// The error of the fence it waited for would not do because a reservation keeps only the latest
/// fence of an engine.
///
/// Returned by [`LockedObject::arrival`](crate::drm::gem::LockedObject::arrival).
#[derive(Clone)]
pub struct Arrival(pub(crate) Arc<Loss>);

impl Arrival {
    /// Returns whether the content was lost by a failed job. May be called in any context.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Returns whether the content may still be lost. The reservation of the object is held, so no
    /// job is added.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.0.may_come()
    }
}

impl Loss {
    /// Creates the record of the object with the number `id`. The object has its content.
    pub(in crate::drm) fn new(id: u64, all: Arc<Losses>) -> Result<Arc<Self>> {
        Ok(Arc::new(
            Self {
                id,
                pending: Atomic::new(0),
                is_lost: Atomic::new(false),
                is_away: Atomic::new(false),
                all,
            },
            GFP_KERNEL,
        )?)
    }

    /// Returns the number of the object.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns whether the content is lost or away. Unfinished moves may still fail.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Acquire) || self.is_away()
    }

    /// Returns whether the content could not be put back.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        self.is_away.load(Acquire)
    }

    /// Records that the content could not be put back. The reservation of the object is held.
    pub(crate) fn set_away(&self, error: Error) {
        if self.is_away.xchg(true, Release) {
            return;
        }
        if let Some(dev) = self.all.device(&self.all.loss_lines) {
            dev_err!(
                dev,
                "object {} did not get its content back: {:?}\n",
                self.id,
                error
            );
        }
    }

    /// Records that the content was put back. The reservation of the object is held.
    pub(crate) fn set_back(&self) {
        self.is_away.store(false, Release);
    }

    /// Returns whether a job writing to the object may still fail. The reservation of the object is
    /// held, so no job is added.
    #[inline]
    pub(crate) fn may_come(&self) -> bool {
        self.pending.load(Acquire) != 0
    }

    /// Counts a job writing to the object. The reservation of the object is held.
    pub(super) fn begin(&self) {
        self.pending.fetch_add(1, Relaxed);
    }

    /// Ends [`Self::begin`]. If the job failed, [`Self::mark_lost`] was called.
    pub(super) fn end(&self) {
        self.pending.fetch_sub(1, Release);
    }

    /// Records a failed move or lost memory. The first loss of an object is counted. It is logged
    /// unless there are many.
    pub(crate) fn mark_lost(&self, error: Error) {
        if self.is_lost.xchg(true, Release) {
            return;
        }

        self.all.objects.fetch_add(1, Relaxed);
        let Some(dev) = self.all.device(&self.all.loss_lines) else {
            return;
        };
        if error == ENODEV {
            // The loss of the device was reported before.
            dev_info!(dev, "object {} is lost with the device\n", self.id);
        } else {
            dev_err!(
                dev,
                "object {} has lost its content: {:?}\n",
                self.id,
                error
            );
        }
    }

    /// Records a move done by the CPU after an engine has failed to do it.
    pub(super) fn note_again(&self, error: Error) {
        self.all.again.fetch_add(1, Relaxed);
        if let Some(dev) = self.all.device(&self.all.again_lines) {
            dev_info!(
                dev,
                "object {} was moved by the CPU, as the engine failed: {:?}\n",
                self.id,
                error
            );
        }
    }
}

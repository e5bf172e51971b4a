// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Retries of validations that find no room.
//!
//! A task that validates an object evicts other objects, whose reservations it has to take. If two
//! tasks do this at the same time, one of them may find all objects reserved, and get `ENOSPC`
//! although objects could be evicted. It then tries again while no other task validates.
//!
//! # Locking
//!
//! The semaphore is taken before the reservation of any object. Faults and importers, which hold a
//! reservation already, do not take it.
//!
//! C header: [`include/linux/rwsem.h`](srctree/include/linux/rwsem.h)

use crate::{
    bindings,
    error::to_result,
    prelude::*,
    sync::LockClassKey,
    time::{
        delay::fsleep,
        Delta, //
    },
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};

/// How long to wait before each attempt alone, in milliseconds.
///
/// A task that holds a reservation but not the semaphore holds it for a short time, unless its
/// processor is taken away, as the processor of a virtual machine may be.
const PAUSES: [i64; 4] = [0, 1, 5, 25];

/// The semaphore of validations: each takes it for reading, and one that has to run alone for
/// writing.
///
/// # Invariants
///
/// `sem` is initialized.
#[pin_data]
pub(super) struct Validation {
    #[pin]
    sem: Opaque<bindings::rw_semaphore>,
}

// SAFETY: A semaphore may be used from any task.
unsafe impl Send for Validation {}

// SAFETY: As for `Send`.
unsafe impl Sync for Validation {}

impl Validation {
    // Not generic and not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    pub(super) fn new() -> Result<Pin<KBox<Self>>> {
        let key: Pin<&'static LockClassKey> = crate::static_lock_class!();
        let name = c"drm::ttm::Validation".as_char_ptr();

        // INVARIANT: Initialized here.
        KBox::pin_init(
            pin_init!(Self {
                // SAFETY: `slot` is memory for a semaphore that does not move; the name and the
                // class are static.
                sem <- Opaque::ffi_init(|slot| unsafe {
                    bindings::__init_rwsem(slot, name, key.as_ptr())
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Calls `f`, which may evict objects. If it returns `ENOSPC` it is called again, a few times,
    /// while no other validation runs.
    ///
    /// It is called more than once, because tasks without the semaphore hold reservations for a
    /// short time: faults, importers, workers that release the memory of a deleted object, and
    /// other devices that share a reservation.
    ///
    /// # Errors
    ///
    /// `EINTR` if the task is killed, and the errors of `f`.
    pub(super) fn run<R>(&self, mut f: impl FnMut() -> Result<R>) -> Result<R> {
        let ret = {
            let _others = self.enter(false)?;
            f()
        };

        match ret {
            Err(e) if e == ENOSPC => {
                let _alone = self.enter(true)?;

                PAUSES
                    .iter()
                    .map(|pause| {
                        if *pause > 0 {
                            fsleep(Delta::from_millis(*pause));
                        }
                        f()
                    })
                    .find(|ret| !matches!(ret, Err(e) if *e == ENOSPC))
                    .unwrap_or(Err(ENOSPC))
            }
            ret => ret,
        }
    }

    fn enter(&self, alone: bool) -> Result<Entered<'_>> {
        // SAFETY: By the type invariant.
        to_result(unsafe {
            if alone {
                bindings::down_write_killable(self.sem.get())
            } else {
                bindings::down_read_killable(self.sem.get())
            }
        })?;

        // INVARIANT: The semaphore was just taken.
        Ok(Entered {
            validation: self,
            alone,
            _not_send: NotThreadSafe,
        })
    }
}

/// # Invariants
///
/// The semaphore is held by this task, for writing if `alone`.
struct Entered<'a> {
    validation: &'a Validation,
    alone: bool,
    _not_send: NotThreadSafe,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe {
            if self.alone {
                bindings::up_write(self.validation.sem.get());
            } else {
                bindings::up_read(self.validation.sem.get());
            }
        }
    }
}

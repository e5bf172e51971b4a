// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Retries of validations that find no room.
//!
//! A task that validates an object evicts other objects and has to take their reservations. If two
//! tasks do this at the same time, one of them may find all objects reserved. It gets `ENOSPC`
//! although objects could be evicted. It then tries again while no other task validates.
//!
//! Any client can ask for more room than there is, as often as it likes and from many tasks. So
//! tasks try again one after the other and none sleeps while it keeps the others out. Tasks that
//! find room wait for the attempt of one task at most.
//!
//! # Locking
//!
//! A task that tries again takes its turn and then the semaphore of all validations. Both are taken
//! before the reservation of any object. Faults and importers do not take them because they already
//! hold a reservation.
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
/// A task holding a reservation without the semaphore holds it for a short time only, unless its
/// processor is taken away. This may happen to the processor of a virtual machine.
const PAUSES: [i64; 4] = [0, 1, 5, 25];

/// Each validation takes `all` for reading. One that has to run alone takes it for writing while it
/// has `turn`.
///
/// # Invariants
///
/// Both are initialized.
#[pin_data]
pub(in crate::drm) struct Validation {
    #[pin]
    all: Opaque<bindings::rw_semaphore>,
    #[pin]
    turn: Opaque<bindings::rw_semaphore>,
}

// SAFETY: A semaphore may be used from any task.
unsafe impl Send for Validation {}

// SAFETY: As for `Send`.
unsafe impl Sync for Validation {}

impl Validation {
    // Not generic and not inlined, so that the lock classes and their names stay in the kernel
    // crate.
    #[inline(never)]
    pub(in crate::drm) fn new() -> Result<Pin<KBox<Self>>> {
        let init = |name: &'static CStr, key: Pin<&'static LockClassKey>| {
            // SAFETY: `slot` is memory for a semaphore that does not move; the name and the class
            // are static.
            Opaque::ffi_init(move |slot| unsafe {
                bindings::__init_rwsem(slot, name.as_char_ptr(), key.as_ptr())
            })
        };

        // INVARIANT: Initialized here.
        KBox::pin_init(
            pin_init!(Self {
                all <- init(c"drm::ttm::Validation", crate::static_lock_class!()),
                turn <- init(c"drm::ttm::Validation::turn", crate::static_lock_class!()),
            }),
            GFP_KERNEL,
        )
    }

    /// Calls `f`, which may evict objects. If it returns `ENOSPC`, it is called again a few times
    /// while no other validation runs.
    ///
    /// It is called more than once because tasks without the semaphore hold reservations for a
    /// short time: faults, importers, workers releasing the memory of a deleted object and other
    /// devices sharing a reservation.
    ///
    /// # Errors
    ///
    /// - `EINTR` if the task is killed.
    /// - The errors of `f`.
    pub(in crate::drm) fn run<R>(&self, mut f: impl FnMut() -> Result<R>) -> Result<R> {
        let ret = {
            let _others = Entered::new(&self.all, false)?;
            f()
        };

        if !matches!(ret, Err(e) if e == ENOSPC) {
            return ret;
        }
        let _turn = Entered::new(&self.turn, true)?;

        for pause in PAUSES {
            if pause > 0 {
                fsleep(Delta::from_millis(pause));
            }
            let _alone = Entered::new(&self.all, true)?;
            match f() {
                Err(e) if e == ENOSPC => (),
                ret => return ret,
            }
        }
        Err(ENOSPC)
    }
}

/// # Invariants
///
/// The semaphore is initialized and held by this task, for writing if `alone`.
struct Entered<'a> {
    sem: &'a Opaque<bindings::rw_semaphore>,
    alone: bool,
    _not_send: NotThreadSafe,
}

impl<'a> Entered<'a> {
    /// Takes a semaphore of a [`Validation`].
    fn new(sem: &'a Opaque<bindings::rw_semaphore>, alone: bool) -> Result<Self> {
        // SAFETY: By the type invariant of `Validation` the semaphore is initialized.
        to_result(unsafe {
            if alone {
                bindings::down_write_killable(sem.get())
            } else {
                bindings::down_read_killable(sem.get())
            }
        })?;

        // INVARIANT: The semaphore was just taken.
        Ok(Self {
            sem,
            alone,
            _not_send: NotThreadSafe,
        })
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe {
            if self.alone {
                bindings::up_write(self.sem.get());
            } else {
                bindings::up_read(self.sem.get());
            }
        }
    }
}

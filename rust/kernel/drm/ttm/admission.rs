// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who makes room for objects at the same time.
//!
//! An object that needs room evicts others, whose reservations it has to take. Tasks that do this at
//! the same time get into each other's way: one of them gives up, and is told that there is no room
//! although there is. It then tries again, alone.
//!
//! # Locking
//!
//! The semaphore is taken before the reservation of any object. Faults and importers, which have a
//! reservation already, do without.
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

/// How long to wait before each time that it is tried alone, in milliseconds.
///
/// Who holds the reservation of an object without admission does so for a short time, unless its
/// processor is taken from it, as that of a virtual machine may be.
const PAUSES: [i64; 4] = [0, 1, 5, 25];

/// A semaphore for those that may be many, and for one that has to be alone.
///
/// # Invariants
///
/// `sem` is initialized.
#[pin_data]
pub(super) struct Admission {
    #[pin]
    sem: Opaque<bindings::rw_semaphore>,
}

// SAFETY: A semaphore may be used from any task.
unsafe impl Send for Admission {}

// SAFETY: As for `Send`.
unsafe impl Sync for Admission {}

impl Admission {
    // Not generic and not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    pub(super) fn new() -> Result<Pin<KBox<Self>>> {
        let key: Pin<&'static LockClassKey> = crate::static_lock_class!();

        // INVARIANT: Initialized here.
        KBox::pin_init(
            pin_init!(Self {
                // SAFETY: `slot` is memory for a semaphore that does not move; the name and the
                // class are static.
                sem <- Opaque::ffi_init(|slot| unsafe {
                    bindings::__init_rwsem(slot, c"drm::ttm::Admission".as_char_ptr(), key.as_ptr())
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Calls `f`, which may evict objects; some more times, without any other call, if there was no
    /// room.
    ///
    /// More than once, as others may have objects reserved for a short time: faults, importers,
    /// workers that give the memory of a deleted object back, and other devices with whom a
    /// reservation is shared.
    ///
    /// # Errors
    ///
    /// `EINTR` if the task is killed, and what `f` returns.
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

        // INVARIANT: Just taken.
        Ok(Entered {
            admission: self,
            alone,
            _not_send: NotThreadSafe,
        })
    }
}

/// # Invariants
///
/// The semaphore is held by this task, for writing if `alone`.
struct Entered<'a> {
    admission: &'a Admission,
    alone: bool,
    _not_send: NotThreadSafe,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe {
            if self.alone {
                bindings::up_write(self.admission.sem.get());
            } else {
                bindings::up_read(self.admission.sem.get());
            }
        }
    }
}

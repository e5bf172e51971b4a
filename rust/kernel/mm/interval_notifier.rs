// SPDX-License-Identifier: GPL-2.0

//! Notifiers for a range of addresses of a process.
//!
//! A device that uses the memory of a process by its addresses mirrors a part of the page table of
//! the process. Before an entry of that page table changes, the kernel calls the notifier, and the
//! device stops using what it has for the address. The page is free to go afterwards.
//!
//! # Locking
//!
//! The mirror has a mutex, which belongs to the [`IntervalNotifier`]. The kernel may call the
//! notifier with the lock of the memory of the process held, and while it reclaims memory: with the
//! mutex held, code neither allocates memory other than by `GFP_NOWAIT`, nor accesses user memory,
//! nor takes a lock that is held where either is done, such as a reservation. Lockdep is taught the
//! former.
//!
//! C header: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use super::MmWithUser;
use crate::{
    bindings,
    error::to_result,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        lock::{
            mutex::MutexBackend,
            Guard, //
        },
        Mutex, //
    },
    types::Opaque, //
};
use core::ops::Range;

/// What a device has of a part of the page table of a process.
pub trait Mirror: Send + Unpin + 'static {
    /// The process changes what it has at the addresses `range`, which are in the range of the
    /// notifier.
    ///
    /// The device has stopped using what it had for these addresses when this returns. May sleep,
    /// but see the [locking](self#locking).
    ///
    /// Called for the whole range when the process exits, and when the notifier is dropped.
    fn invalidate(&mut self, range: Range<usize>);
}

/// Runs `f` as if it reclaimed memory, so that lockdep knows that the locks that it takes are
/// taken there.
// Not inlined, so that modules do not call what is not exported to them.
#[inline(never)]
fn as_in_reclaim(f: &mut dyn FnMut()) {
    #[cfg(CONFIG_LOCKDEP)]
    // SAFETY: The function tells lockdep about the task.
    unsafe {
        bindings::fs_reclaim_acquire(GFP_KERNEL.as_raw())
    };
    f();
    #[cfg(CONFIG_LOCKDEP)]
    // SAFETY: As above.
    unsafe {
        bindings::fs_reclaim_release(GFP_KERNEL.as_raw())
    };
}

/// A notifier for a range of addresses of a process, and the mirror that it is for.
///
/// What is read from the page table is valid only if the notifier was not called since: see
/// [`IntervalNotifier::fault`](IntervalNotifier#method.fault).
///
/// # Invariants
///
/// `raw` is inserted, for `range`, which is made of whole pages and not empty, and with the
/// operations of this type.
#[pin_data(PinnedDrop)]
pub struct IntervalNotifier<T: Mirror> {
    #[pin]
    mirror: Mutex<T>,
    range: Range<usize>,
    // The last one to be initialized: the kernel may call the notifier from then on.
    #[pin]
    raw: Opaque<bindings::mmu_interval_notifier>,
}

// SAFETY: A notifier may be used, and removed, from any task.
unsafe impl<T: Mirror> Send for IntervalNotifier<T> {}

// SAFETY: The C structure has locks, and what of it has not is accessed with the mutex held.
unsafe impl<T: Mirror> Sync for IntervalNotifier<T> {}

impl<T: Mirror> IntervalNotifier<T> {
    const OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
        invalidate: Some(Self::invalidate_callback),
        invalidate_start: None,
        invalidate_finish: None,
    };

    /// Makes a notifier for the addresses `range` of a process.
    ///
    /// The caller holds no lock that `mirror` takes when it is invalidated, nor the lock of the
    /// memory of the process.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `range` is empty, or not made of whole pages.
    /// - `ENOMEM` if memory runs out, `EINTR` if the task is killed.
    pub fn new<'a>(
        mm: &'a MmWithUser,
        range: Range<usize>,
        mirror: impl PinInit<Mutex<T>> + 'a,
    ) -> impl PinInit<Self, Error> + 'a {
        let Range { start, end } = range;

        // INVARIANT: The initializer of `raw` inserts it, if the range is as it has to be.
        try_pin_init!(&this in Self {
            mirror <- mirror,
            range: start..end,
            raw <- Opaque::try_ffi_init(move |raw| {
                if start >= end || (start | end) % PAGE_SIZE != 0 {
                    return Err(EINVAL);
                }
                // SAFETY: The mutex was just initialized.
                let mirror = unsafe { &(*this.as_ptr()).mirror };
                as_in_reclaim(&mut || drop(mirror.lock()));

                // SAFETY: `raw` is a part of a value that is otherwise initialized, and that stays
                // where it is. There are users of the memory of the process.
                to_result(unsafe {
                    bindings::mmu_interval_notifier_insert(
                        raw,
                        mm.as_raw(),
                        start,
                        end - start,
                        &Self::OPS,
                    )
                })
            }),
        }? Error)
    }

    /// Returns the addresses that the notifier is for.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Locks the mirror. See the [locking](self#locking) for what may be done meanwhile.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T, MutexBackend> {
        self.mirror.lock()
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::mmu_interval_notifier {
        self.raw.get()
    }

    /// # Safety
    ///
    /// Called by the kernel with the structure of a value, when what a process has in `range`
    /// changes.
    unsafe extern "C" fn invalidate_callback(
        raw: *mut bindings::mmu_interval_notifier,
        range: *const bindings::mmu_notifier_range,
        cur_seq: c_ulong,
    ) -> bool {
        // SAFETY: The structure is that of a value, which removes it before it goes.
        let this = unsafe {
            let field = Opaque::cast_from(raw).cast_mut();

            &*crate::container_of!(field, Self, raw)
        };
        // SAFETY: The range is valid, and does not change.
        let range = unsafe { &*range };

        if range.flags & bindings::MMU_NOTIFIER_RANGE_BLOCKABLE == 0 {
            return false;
        }

        let mut mirror = this.mirror.lock();
        // SAFETY: The structure is valid, and the lock held that the number is read with.
        unsafe { bindings::mmu_interval_set_seq(raw, cur_seq) };
        mirror.invalidate(this.range.start.max(range.start)..this.range.end.min(range.end));
        true
    }
}

#[pinned_drop]
impl<T: Mirror> PinnedDrop for IntervalNotifier<T> {
    fn drop(self: Pin<&mut Self>) {
        // As long as the notifier is there, the pages are as well that the mirror has.
        self.mirror.lock().invalidate(self.range.clone());
        // SAFETY: By the type invariant it is inserted.
        unsafe { bindings::mmu_interval_notifier_remove(self.raw.get()) };
    }
}

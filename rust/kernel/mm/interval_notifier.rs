// SPDX-License-Identifier: GPL-2.0

//! Notifiers for a range of addresses of a process.
//!
//! A device using the memory of a process by its addresses mirrors a part of the page table of the
//! process. Before an entry of that page table changes, the kernel calls the notifier and the
//! device stops using its copy of the entry. The page may be freed afterwards.
//!
//! # Locking
//!
//! The mirror has a mutex, which belongs to the [`IntervalNotifier`]. The kernel may call the
//! notifier with the `mmap_lock` of the process held and during memory reclaim. So with the mutex
//! held, code allocates memory only by `GFP_NOWAIT` and does not access user memory. Nor does it
//! take a lock that is held around either of them, such as a reservation. Lockdep is taught the
//! rule about allocations.
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

/// The state of a device for a part of the page table of a process.
pub trait Mirror: Send + Unpin + 'static {
    /// The process is changing its memory at the addresses `range`. They are in the range of the
    /// notifier.
    ///
    /// When this returns, the device must have stopped using its state for these addresses. May
    /// sleep, but see the [locking](self#locking).
    ///
    /// Called for the whole range when the process exits and when the notifier is dropped.
    fn invalidate(&mut self, range: Range<usize>);
}

/// Runs `f` as if it reclaimed memory. So lockdep knows that its locks are taken in reclaim.
// Not inlined into modules, because they cannot call the functions.
#[inline(never)]
fn as_in_reclaim(f: &mut dyn FnMut()) {
    #[cfg(CONFIG_LOCKDEP)]
    // SAFETY: The function informs lockdep about the task.
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

/// A notifier for a range of addresses of a process and its mirror.
///
/// Entries read from the page table are only valid if the notifier was not called since: see
/// [`IntervalNotifier::fault`](IntervalNotifier#method.fault).
///
/// # Invariants
///
/// `raw` is inserted for `range` with the operations of this type. `range` consists of whole pages
/// and is not empty.
#[pin_data(PinnedDrop)]
pub struct IntervalNotifier<T: Mirror> {
    #[pin]
    mirror: Mutex<T>,
    range: Range<usize>,
    // Initialized last, because the kernel may call the notifier from then on.
    #[pin]
    raw: Opaque<bindings::mmu_interval_notifier>,
}

// SAFETY: A notifier may be used and removed from any task.
unsafe impl<T: Mirror> Send for IntervalNotifier<T> {}

// SAFETY: The C structure has locks and its other fields are accessed with the mutex held.
unsafe impl<T: Mirror> Sync for IntervalNotifier<T> {}

impl<T: Mirror> IntervalNotifier<T> {
    const OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
        invalidate: Some(Self::invalidate_callback),
        invalidate_start: None,
        invalidate_finish: None,
    };

    /// Creates a notifier for the addresses `range` of a process.
    ///
    /// The caller must not hold the `mmap_lock` of the process, nor a lock taken by `mirror` when
    /// it is invalidated.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `range` is empty or does not consist of whole pages.
    /// - `ENOMEM` if memory runs out, `EINTR` if the task is killed.
    pub fn new<'a>(
        mm: &'a MmWithUser,
        range: Range<usize>,
        mirror: impl PinInit<Mutex<T>> + 'a,
    ) -> impl PinInit<Self, Error> + 'a {
        let Range { start, end } = range;

        // INVARIANT: The initializer of `raw` inserts it if the range is valid.
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

                // SAFETY: `raw` is a part of a value that is otherwise initialized and does not
                // move. The memory of the process has users.
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

    /// Returns the addresses of the notifier.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Locks the mirror. See the [locking](self#locking) for the rules with the lock held.
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
    /// Called by the kernel with the structure of a value when the process changes its memory in
    /// `range`.
    unsafe extern "C" fn invalidate_callback(
        raw: *mut bindings::mmu_interval_notifier,
        range: *const bindings::mmu_notifier_range,
        cur_seq: c_ulong,
    ) -> bool {
        // SAFETY: The structure belongs to a value. The value removes it before it is dropped.
        let this = unsafe {
            let field = Opaque::cast_from(raw).cast_mut();

            &*crate::container_of!(field, Self, raw)
        };
        // SAFETY: The range is valid and does not change.
        let range = unsafe { &*range };

        if range.flags & bindings::MMU_NOTIFIER_RANGE_BLOCKABLE == 0 {
            return false;
        }

        let mut mirror = this.mirror.lock();
        // SAFETY: The structure is valid. The lock for reading the number is held.
        unsafe { bindings::mmu_interval_set_seq(raw, cur_seq) };
        mirror.invalidate(this.range.start.max(range.start)..this.range.end.min(range.end));
        true
    }
}

#[pinned_drop]
impl<T: Mirror> PinnedDrop for IntervalNotifier<T> {
    fn drop(self: Pin<&mut Self>) {
        // As long as the notifier is inserted, the pages of the mirror stay.
        self.mirror.lock().invalidate(self.range.clone());
        // SAFETY: By the type invariant the notifier is inserted.
        unsafe { bindings::mmu_interval_notifier_remove(self.raw.get()) };
    }
}

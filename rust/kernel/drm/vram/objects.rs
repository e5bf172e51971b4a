// SPDX-License-Identifier: GPL-2.0 OR MIT

//! All objects of a device by their numbers.
//!
//! # Locking
//!
//! The mutex is the innermost lock: nothing is locked and no reference is put while it is held.

use crate::{
    bindings,
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::Mutex, //
};
use core::ptr::NonNull;

/// An object on the list.
///
/// # Invariants
///
/// The memory of the object is valid; it may have no reference any more.
pub(crate) struct Entry(NonNull<bindings::drm_gem_object>);

// SAFETY: GEM objects may be used from any task.
unsafe impl Send for Entry {}

/// Memory for one more object on the list.
pub(crate) type ObjectNode = RBTreeNodeReservation<u64, Entry>;

/// The objects and the number of the next one.
pub(crate) struct Objects {
    list: RBTree<u64, Entry>,
    next: u64,
}

impl Drop for Objects {
    fn drop(&mut self) {
        // Every object keeps the device, which owns the list.
        crate::warn_on!(!self.list.is_empty());
    }
}

impl Objects {
    /// Creates an empty list. Not inlined, so that the lock class and its name stay in the kernel
    /// crate.
    #[inline(never)]
    pub(crate) fn new() -> Result<Pin<KBox<Mutex<Self>>>> {
        KBox::pin_init(
            new_mutex!(
                Self {
                    list: RBTree::new(),
                    next: 1,
                },
                "drm::vram::Objects"
            ),
            GFP_KERNEL,
        )
    }

    /// Returns a unique number for an object.
    pub(crate) fn number(&mut self) -> u64 {
        let id = self.next;

        self.next += 1;
        id
    }

    /// Adds an object.
    ///
    /// # Safety
    ///
    /// The object must be valid until [`Self::remove`] was called.
    pub(crate) unsafe fn insert(
        &mut self,
        id: u64,
        obj: NonNull<bindings::drm_gem_object>,
        room: ObjectNode,
    ) {
        // INVARIANT: By the safety requirements.
        self.list.insert(room.into_node(id, Entry(obj)));
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, id: u64) {
        self.list.remove(&id);
    }

    /// Returns a new reference to the first object with a number of at least `id`.
    pub(crate) fn get(&self, mut id: u64) -> Option<NonNull<bindings::drm_gem_object>> {
        loop {
            let cursor = self.list.cursor_lower_bound(&id)?;
            let (at, entry) = cursor.current();

            // SAFETY: By the type invariant the memory is valid.
            if unsafe { bindings::kref_get_unless_zero(&raw mut (*entry.0.as_ptr()).refcount) } != 0
            {
                return Some(entry.0);
            }
            id = at + 1;
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The windows of an aperture through which the CPU sees the objects of a device.
//!
//! The list has the windows that page faults hold, from the first one until the entries of page
//! tables are zapped, and those that mappings of the kernel hold. `gem/ttm/windows.rs` describes
//! when a window is made, shared and dropped. Importers hold a window by their tables, which are
//! not here.
//!
//! # Locking
//!
//! There are two mutexes. The mutex of the room is taken after the reservation of an object, or
//! without one: see [`Room`]. The mutex of the list is taken after it. Nothing is locked, allocated
//! or dropped while the mutex of the list is held.

use crate::{
    dma_buf::mapping::RangeList,
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex,
        MutexGuard, //
    }, //
};

/// A holder of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Page faults: page tables of processes may have entries that lead to the window.
    Faults,
    /// A mapping of the kernel.
    Kernel,
}

/// The window of an object.
struct Entry {
    ranges: Arc<RangeList>,
    /// The number of the last fault, if page faults hold the window: its place in
    /// [`List::faulted`].
    used: Option<u64>,
    /// How many mappings of the kernel hold the window.
    mappings: usize,
    /// The memory for an entry in [`List::faulted`], if the window has none.
    unused: Option<RBTreeNodeReservation<u64, u64>>,
}

/// The windows by the numbers of their objects.
struct List {
    entries: RBTree<u64, Entry>,
    /// The numbers of the objects whose windows page faults hold, by [`Entry::used`].
    faulted: RBTree<u64, u64>,
    /// How many numbers were given out for [`Entry::used`].
    uses: u64,
}

impl List {
    /// Records that page faults hold the window of an object, and makes it the most recently used
    /// one. Returns false if there is no window.
    fn fault(&mut self, id: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else {
            return false;
        };
        let node = match entry.used {
            Some(used) => self
                .faulted
                .remove_node(&used)
                .map(RBTreeNode::into_reservation),
            None => entry.unused.take(),
        };

        self.uses += 1;
        entry.used = Some(self.uses);
        if let Some(node) = node {
            self.faulted.insert(node.into_node(self.uses, id));
        }
        true
    }

    /// Records that page faults do not hold the window of an object any more.
    fn end_faults(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            if let Some(used) = entry.used.take() {
                entry.unused = self
                    .faulted
                    .remove_node(&used)
                    .map(RBTreeNode::into_reservation);
            }
        }
    }
}

/// The memory for a new entry of the list.
pub(crate) struct NewEntry {
    entry: RBTreeNodeReservation<u64, Entry>,
    faulted: RBTreeNodeReservation<u64, u64>,
}

impl NewEntry {
    /// Allocates the memory.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn reserve() -> Result<Self> {
        Ok(Self {
            entry: RBTreeNodeReservation::new(GFP_KERNEL)?,
            faulted: RBTreeNodeReservation::new(GFP_KERNEL)?,
        })
    }
}

/// The windows through which the CPU sees the objects of a device.
pub(crate) struct Windows {
    list: Pin<KBox<Mutex<List>>>,
    room: Pin<KBox<Mutex<()>>>,
    /// The device is about to be reset.
    is_closed: Atomic<bool>,
}

/// The right to make and to drop windows of the CPU, which one task has at a time.
///
/// So every window that takes room in the aperture is on the list, and room that a task has made
/// stays available for that task. Only importers drop windows without it.
///
/// It is a mutex. While it is held the driver makes and drops windows, page tables are zapped, and
/// reservations are only tried. No reference to an object is dropped.
#[must_use = "others may take the room when the value is dropped"]
pub(crate) struct Room<'a> {
    windows: &'a Windows,
    _guard: MutexGuard<'a, ()>,
}

impl Windows {
    /// Not inlined, so that the lock classes and their names stay in the kernel crate.
    #[inline(never)]
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            list: KBox::pin_init(
                new_mutex!(
                    List {
                        entries: RBTree::new(),
                        faulted: RBTree::new(),
                        uses: 0,
                    },
                    "drm::ttm::Windows::list"
                ),
                GFP_KERNEL,
            )?,
            room: KBox::pin_init(new_mutex!((), "drm::ttm::Windows::room"), GFP_KERNEL)?,
            is_closed: Atomic::new(false),
        })
    }

    /// Determines whether objects get windows, and page faults use those that exist.
    ///
    /// A task that holds the reservation of an object after a task that has held it later than this
    /// call finds that out.
    pub(crate) fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Relaxed);
    }

    /// Returns whether no object gets a window, and no page fault uses one.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Returns the right to make and to drop windows. Sleeps.
    pub(crate) fn room(&self) -> Room<'_> {
        Room {
            windows: self,
            _guard: self.room.lock(),
        }
    }

    /// As [`Self::room`], but does not wait if another task has the right.
    pub(crate) fn try_room(&self) -> Option<Room<'_>> {
        Some(Room {
            windows: self,
            _guard: self.room.try_lock()?,
        })
    }

    /// Returns the window of the object with the number `id`.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<RangeList>> {
        self.list
            .lock()
            .entries
            .get(&id)
            .map(|entry| entry.ranges.clone())
    }

    /// Returns whether page faults hold the window of an object.
    pub(crate) fn is_faulted(&self, id: u64) -> bool {
        self.list
            .lock()
            .entries
            .get(&id)
            .is_some_and(|entry| entry.used.is_some())
    }

    /// Makes page faults a holder of the window of an object, and makes it the most recently used
    /// one. Returns false if there is no window.
    pub(crate) fn hold_for_fault(&self, id: u64) -> bool {
        self.list.lock().fault(id)
    }

    /// Removes a holder of the window of an object, if there is one. Page faults are one holder.
    /// The window is dropped with the last holder, unless importers have it. Sleeps.
    pub(crate) fn release(&self, id: u64, holder: Holder) {
        self.room().release(id, holder);
    }

    /// Removes page faults from the holders of all windows, for a device that was unplugged: no
    /// page table has an entry any more, and no fault inserts one. Sleeps.
    pub(crate) fn release_faults(&self) {
        let faulted = || {
            self.list
                .lock()
                .faulted
                .cursor_front()
                .map(|cursor| *cursor.current().1)
        };

        while let Some(id) = faulted() {
            self.release(id, Holder::Faults);
        }
    }
}

impl Room<'_> {
    /// Adds a holder of the window `ranges`, which shows an object where it is.
    pub(crate) fn hold(&mut self, id: u64, ranges: Arc<RangeList>, holder: Holder, new: NewEntry) {
        let mut list = self.windows.list.lock();
        let mut unused = None;

        if list.entries.get(&id).is_none() {
            list.entries.insert(new.entry.into_node(
                id,
                Entry {
                    ranges,
                    used: None,
                    mappings: 0,
                    unused: Some(new.faulted),
                },
            ));
        } else {
            // Dropped after the mutex is unlocked.
            unused = Some((ranges, new));
        }
        match holder {
            Holder::Faults => {
                list.fault(id);
            }
            Holder::Kernel => {
                if let Some(entry) = list.entries.get_mut(&id) {
                    entry.mappings += 1;
                }
            }
        }

        drop(list);
        drop(unused);
    }

    /// Removes a holder of the window of an object, as [`Windows::release`].
    pub(crate) fn release(&mut self, id: u64, holder: Holder) {
        let mut list = self.windows.list.lock();

        match holder {
            Holder::Faults => list.end_faults(id),
            Holder::Kernel => {
                if let Some(entry) = list.entries.get_mut(&id) {
                    entry.mappings = entry.mappings.saturating_sub(1);
                }
            }
        }
        let is_held = |entry: &Entry| entry.used.is_some() || entry.mappings != 0;
        if !list.entries.get(&id).is_none_or(is_held) {
            let node = list.entries.remove_node(&id);

            drop(list);
            drop(node);
        }
    }

    /// Returns the number of the last use of a window, for [`Self::least_recently_faulted`].
    pub(crate) fn last_use(&self) -> u64 {
        self.windows.list.lock().uses
    }

    /// Searches the windows that page faults hold, that no mapping of the kernel holds, and that
    /// were last used after the use `after`. Returns the object of the one that was used least
    /// recently, and the number of this use.
    pub(crate) fn least_recently_faulted(&self, mut after: u64) -> Option<(u64, u64)> {
        let list = self.windows.list.lock();

        loop {
            let cursor = list.faulted.cursor_lower_bound(&(after + 1))?;
            let (used, id) = cursor.current();

            if list.entries.get(id)?.mappings == 0 {
                return Some((*id, *used));
            }
            after = *used;
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The windows of an aperture through which the CPU sees the objects of a device.
//!
//! The list has the windows that page faults hold, from the first one until the entries of page
//! tables are zapped, and those that mappings of the kernel hold. `gem/ttm/windows.rs` says when a
//! window is made, shared and dropped. Importers hold a window by their tables, which are not here.
//!
//! # Locking
//!
//! The mutex is taken with the reservation of an object held, or without. Nothing is locked,
//! allocated or dropped while it is held.

use crate::{
    dma_buf::mapping::RangeList,
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// A holder of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Page faults: page tables of processes may have entries that lead to it.
    Faults,
    /// A mapping of the kernel.
    Kernel,
}

/// The window of an object.
struct Entry {
    ranges: Arc<RangeList>,
    is_faulted: bool,
    /// How many mappings of the kernel hold it.
    mappings: usize,
    /// The number of the last fault, or of the first mapping if there was none.
    used: u64,
}

/// The windows by the numbers of their objects.
struct List {
    entries: RBTree<u64, Entry>,
    /// How many numbers were given out for [`Entry::used`].
    uses: u64,
}

impl List {
    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }
}

/// The windows that the CPU has of the objects of a device.
pub(crate) struct Windows(Pin<KBox<Mutex<List>>>);

impl Windows {
    /// Not inlined, so that the lock class and its name stay in the kernel crate.
    #[inline(never)]
    pub(super) fn new() -> Result<Self> {
        Ok(Self(KBox::pin_init(
            new_mutex!(
                List {
                    entries: RBTree::new(),
                    uses: 0,
                },
                "drm::ttm::Windows"
            ),
            GFP_KERNEL,
        )?))
    }

    /// Returns the number of the last use of a window, for [`Self::least_recently_faulted`].
    pub(crate) fn last_use(&self) -> u64 {
        self.0.lock().uses
    }

    /// Returns the window of the object with the number `id`.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<RangeList>> {
        self.0
            .lock()
            .entries
            .get(&id)
            .map(|entry| entry.ranges.clone())
    }

    /// Lets page faults hold the window of an object, which was used last from now on. Returns
    /// false if there is none.
    pub(crate) fn hold_for_fault(&self, id: u64) -> bool {
        let mut list = self.0.lock();
        let used = list.next_use();

        list.entries.get_mut(&id).is_some_and(|entry| {
            entry.is_faulted = true;
            entry.used = used;
            true
        })
    }

    /// Adds a holder of the window `ranges` of an object, which is where it is.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn hold(&self, id: u64, ranges: Arc<RangeList>, holder: Holder) -> Result {
        let room = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let mut unused = None;
        let mut list = self.0.lock();
        let used = list.next_use();

        if list.entries.get(&id).is_none() {
            list.entries.insert(room.into_node(
                id,
                Entry {
                    ranges,
                    is_faulted: false,
                    mappings: 0,
                    used,
                },
            ));
        } else {
            // Dropped without the mutex.
            unused = Some((room, ranges));
        }
        if let Some(entry) = list.entries.get_mut(&id) {
            match holder {
                Holder::Faults => entry.is_faulted = true,
                Holder::Kernel => entry.mappings += 1,
            }
        }

        drop(list);
        drop(unused);
        Ok(())
    }

    /// Removes a holder of the window of an object, if there is one: page faults as a whole. The
    /// window is dropped with the last one, unless importers have it. Sleeps.
    pub(crate) fn release(&self, id: u64, holder: Holder) {
        let mut list = self.0.lock();
        let Some(entry) = list.entries.get_mut(&id) else {
            return;
        };

        match holder {
            Holder::Faults => entry.is_faulted = false,
            Holder::Kernel => entry.mappings = entry.mappings.saturating_sub(1),
        }
        if !entry.is_faulted && entry.mappings == 0 {
            let node = list.entries.remove_node(&id);

            drop(list);
            drop(node);
        }
    }

    /// Looks at the windows that page faults hold, and no mapping of the kernel, and that were last
    /// used after the use `after`. Returns the object of the one that was used least recently, and
    /// the number of this use.
    pub(crate) fn least_recently_faulted(&self, after: u64) -> Option<(u64, u64)> {
        self.0
            .lock()
            .entries
            .iter()
            .filter(|(_, entry)| entry.is_faulted && entry.mappings == 0 && entry.used > after)
            .map(|(id, entry)| (*id, entry.used))
            .min_by_key(|(_, used)| *used)
    }

    /// Removes page faults from the holders of all windows, of a device that was unplugged: no page
    /// table has an entry any more, and no fault inserts one. Sleeps.
    pub(crate) fn release_faults(&self) {
        let faulted = || {
            self.0
                .lock()
                .entries
                .iter()
                .find_map(|(id, entry)| entry.is_faulted.then_some(*id))
        };

        while let Some(id) = faulted() {
            self.release(id, Holder::Faults);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The windows of an aperture.
//!
//! An object has at most one window, for its present place. The list has the windows of a device
//! with their holders. [`windows`](super::windows) describes when a window is created, shared and
//! closed.
//!
//! # Locking
//!
//! There are two mutexes. The mutex of the maker is taken after the reservation of an object: see
//! [`Maker`]. The mutex of the list is taken after it. Nothing is locked, allocated or dropped
//! while the mutex of the list is held.

use crate::{
    dma_buf::exporter::mapping::RangeList,
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
use core::any::Any;

/// A holder of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Importers with mappings of the object. They are one holder.
    Importers,
    /// Page faults: page tables of processes may have entries for the window. They are one holder.
    Faults,
    /// A kernel mapping.
    Kernel,
}

/// A window of a driver. The driver has to close it.
pub(crate) struct OpenWindow {
    /// Where it is.
    pub(crate) ranges: Arc<RangeList>,
    /// The driver's part of it.
    pub(crate) window: KBox<dyn Any + Send>,
}

/// The holders of the window of an object.
#[derive(Clone, Copy, Default)]
struct Holders {
    importers: bool,
    faults: bool,
    /// The number of kernel mappings.
    mappings: usize,
}

impl Holders {
    fn add(&mut self, holder: Holder) {
        match holder {
            Holder::Importers => self.importers = true,
            Holder::Faults => self.faults = true,
            Holder::Kernel => self.mappings += 1,
        }
    }

    fn remove(&mut self, holder: Holder) {
        match holder {
            Holder::Importers => self.importers = false,
            Holder::Faults => self.faults = false,
            Holder::Kernel => self.mappings = self.mappings.saturating_sub(1),
        }
    }

    fn is_empty(&self) -> bool {
        !self.importers && !self.faults && self.mappings == 0
    }
}

/// The answer to a task asking to share the window of an object.
pub(crate) enum Shared {
    /// The task holds the window now.
    Window(Arc<RangeList>),
    /// There is no window.
    Nothing,
    /// The window is about to be closed: see [`Maker::condemn`].
    Condemned,
}

/// The window of an object.
struct Entry {
    open: OpenWindow,
    holders: Holders,
    /// The window is not shared any more.
    is_condemned: bool,
    /// The number of its last use: its place in [`List::by_use`].
    used: u64,
}

/// The windows by the numbers of their objects.
struct List {
    entries: RBTree<u64, Entry>,
    /// The numbers of the objects, by [`Entry::used`].
    by_use: RBTree<u64, u64>,
    /// How many numbers were assigned to [`Entry::used`].
    uses: u64,
    /// How many windows removed from the list the driver is still closing.
    closing: usize,
}

impl List {
    /// Adds a holder to the window of an object and makes it the most recently used one.
    fn hold(&mut self, id: u64, holder: Holder) -> Shared {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Shared::Nothing;
        };
        if entry.is_condemned {
            return Shared::Condemned;
        }
        let node = self.by_use.remove_node(&entry.used);

        self.uses += 1;
        entry.used = self.uses;
        entry.holders.add(holder);
        if let Some(node) = node.map(RBTreeNode::into_reservation) {
            self.by_use.insert(node.into_node(self.uses, id));
        }
        Shared::Window(entry.open.ranges.clone())
    }
}

/// The memory for a new entry of the list.
pub(crate) struct NewEntry {
    entry: RBTreeNodeReservation<u64, Entry>,
    by_use: RBTreeNodeReservation<u64, u64>,
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
            by_use: RBTreeNodeReservation::new(GFP_KERNEL)?,
        })
    }
}

/// A window that is not on the list any more, until its driver has closed it.
#[must_use = "the driver has to close the window"]
pub(crate) struct Closing<'a> {
    windows: &'a Windows,
    /// The node with the window.
    node: Option<RBTreeNode<u64, Entry>>,
    _by_use: Option<RBTreeNode<u64, u64>>,
}

impl Closing<'_> {
    /// Makes the driver close the window.
    pub(crate) fn close(mut self, f: impl FnOnce(KBox<dyn Any + Send>)) {
        if let Some(node) = self.node.take() {
            f(node.to_key_value().1.open.window);
        }
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.windows.list.lock().closing -= 1;
        crate::warn_on!(self.node.is_some());
    }
}

/// The windows of a device.
pub(crate) struct Windows {
    list: Pin<KBox<Mutex<List>>>,
    making: Pin<KBox<Mutex<()>>>,
    /// The device is about to be reset.
    is_closed: Atomic<bool>,
}

/// The right to create windows and to close those of other objects for this. One task has it at a
/// time.
///
/// The room made by a task therefore stays available to this task.
///
/// It is a mutex. While it is held, the driver creates and closes windows, page tables are zapped,
/// importers are invalidated and waited for, and reservations are only tried.
#[must_use = "others may take the room when the value is dropped"]
pub(crate) struct Maker<'a> {
    windows: &'a Windows,
    _guard: MutexGuard<'a, ()>,
}

impl Windows {
    /// Not inlined, to keep the lock classes and their names in the kernel crate.
    #[inline(never)]
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            list: KBox::pin_init(
                new_mutex!(
                    List {
                        entries: RBTree::new(),
                        by_use: RBTree::new(),
                        uses: 0,
                        closing: 0,
                    },
                    "drm::gem::aperture::Windows::list"
                ),
                GFP_KERNEL,
            )?,
            making: KBox::pin_init(
                new_mutex!((), "drm::gem::aperture::Windows::making"),
                GFP_KERNEL,
            )?,
            is_closed: Atomic::new(false),
        })
    }

    /// Determines whether objects get windows and page faults use existing ones.
    ///
    /// The new value is visible to a task if it reserves an object after another task that reserved
    /// the object later than this call.
    pub(crate) fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Relaxed);
    }

    /// Returns whether objects get no windows and page faults use none.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Returns the right to create windows. Sleeps.
    pub(crate) fn maker(&self) -> Maker<'_> {
        Maker {
            windows: self,
            _guard: self.making.lock(),
        }
    }

    /// As [`Self::maker`], but does not wait if another task has the right.
    pub(crate) fn try_maker(&self) -> Option<Maker<'_>> {
        Some(Maker {
            windows: self,
            _guard: self.making.try_lock()?,
        })
    }

    /// Returns the window of the object with number `id`.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<RangeList>> {
        self.list
            .lock()
            .entries
            .get(&id)
            .map(|entry| entry.open.ranges.clone())
    }

    /// Returns whether page faults hold the window of an object.
    pub(crate) fn is_faulted(&self, id: u64) -> bool {
        self.list
            .lock()
            .entries
            .get(&id)
            .is_some_and(|entry| entry.holders.faults)
    }

    /// Adds a holder to the window of an object, if there is one, and makes it the most recently
    /// used one.
    pub(crate) fn hold(&self, id: u64, holder: Holder) -> Shared {
        self.list.lock().hold(id, holder)
    }

    /// Removes a holder of the window of an object, if there is one. Returns the window if this was
    /// the last holder.
    pub(crate) fn release(&self, id: u64, holder: Holder) -> Option<Closing<'_>> {
        let mut list = self.list.lock();
        let holders = &mut list.entries.get_mut(&id)?.holders;

        holders.remove(holder);
        if !holders.is_empty() {
            return None;
        }
        self.remove(list, id)
    }

    /// Takes the window of an object off the list, if there is one. It is not accessed any more.
    pub(crate) fn take(&self, id: u64) -> Option<Closing<'_>> {
        self.remove(self.list.lock(), id)
    }

    /// Takes any window of an unplugged device off the list: no page table has an entry any more,
    /// no fault inserts one, and importers were revoked.
    pub(crate) fn take_any(&self) -> Option<Closing<'_>> {
        let list = self.list.lock();
        let id = *list.by_use.cursor_front()?.current().1;

        self.remove(list, id)
    }

    fn remove(&self, mut list: MutexGuard<'_, List>, id: u64) -> Option<Closing<'_>> {
        let used = list.entries.get(&id)?.used;
        let (node, by_use) = (
            list.entries.remove_node(&id),
            list.by_use.remove_node(&used),
        );

        list.closing += 1;
        Some(Closing {
            windows: self,
            node,
            _by_use: by_use,
        })
    }
}

impl Maker<'_> {
    /// Adds a new window for the present place of an object with its first holder.
    pub(crate) fn add(&mut self, id: u64, open: OpenWindow, holder: Holder, new: NewEntry) {
        let mut list = self.windows.list.lock();
        let mut holders = Holders::default();

        holders.add(holder);
        list.uses += 1;
        let used = list.uses;
        list.by_use.insert(new.by_use.into_node(used, id));
        // An object has no window when it gets one.
        let before = list.entries.insert(new.entry.into_node(
            id,
            Entry {
                open,
                holders,
                is_condemned: false,
                used,
            },
        ));

        drop(list);
        crate::warn_on!(before.is_some());
    }

    /// Returns the number of the last use of a window, for [`Self::least_recently_used`].
    pub(crate) fn last_use(&self) -> u64 {
        self.windows.list.lock().uses
    }

    /// Returns whether importers and whether the kernel hold the window of an object. The
    /// reservation of the object is held.
    pub(crate) fn holders(&self, id: u64) -> Option<(bool, bool)> {
        let list = self.windows.list.lock();
        let holders = list.entries.get(&id)?.holders;

        Some((holders.importers, holders.mappings != 0))
    }

    /// Ends the sharing of the window of an object whose reservation is held: its invalidated
    /// importers are not done with it. The first task to find them done closes it.
    pub(crate) fn condemn(&mut self, id: u64) {
        if let Some(entry) = self.windows.list.lock().entries.get_mut(&id) {
            entry.is_condemned = true;
        }
    }

    /// Returns whether windows are being closed, after which there is more room.
    pub(crate) fn is_about_to_grow(&self) -> bool {
        self.windows.list.lock().closing != 0
    }

    /// Searches the windows without kernel mappings that were last used after the use `after`:
    /// those of importers or the others. Returns the object of the least recently used one and the
    /// number of this use.
    pub(crate) fn least_recently_used(
        &self,
        importers: bool,
        mut after: u64,
    ) -> Option<(u64, u64)> {
        let list = self.windows.list.lock();

        loop {
            let cursor = list.by_use.cursor_lower_bound(&(after + 1))?;
            let (used, id) = cursor.current();
            let holders = list.entries.get(id)?.holders;

            if holders.mappings == 0 && holders.importers == importers {
                return Some((*id, *used));
            }
            after = *used;
        }
    }
}

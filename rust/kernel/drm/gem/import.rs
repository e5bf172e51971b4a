// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The part of an imported object that stands for the buffer of another device.
//!
//! A driver imports buffers if its `PeerObject::import_args()` returns arguments. The object has no
//! memory of its own and shares the reservation of the buffer. TTM neither moves nor pins it. An
//! export of the object returns the original buffer. An `mmap()` is passed on to the exporter. An
//! import into the exporting device returns the object itself.
//!
//! The device is attached dynamically and takes peer-to-peer memory. The buffer is mapped on use
//! with the reservation held. A move by the exporter drops the mapping and the next use maps the
//! buffer again. An unbind of the importing device's driver detaches the buffer, even if the object
//! has other references.
//!
//! If page tables of the device show the buffer (see [`Mappings`](super::Mappings)), the mapping
//! survives a move by the exporter until the fences of the reservation at that time have signalled.
//! Then [`Late`] or the next use clears the entries and unmaps the buffer.
//!
//! # Locking
//!
//! The reservation of the buffer guards the mapping and the state of the page tables. [`Late`] and
//! [`Import::await_unused`] wait for fences without it.

use super::mappings::{
    address_at,
    Call,
    Caller,
    When, //
};
use crate::{
    bindings,
    device,
    devres::Devres,
    dma::DataDirection,
    dma_buf::{
        fence::Fence,
        importer::{
            AttachmentHandle,
            Invalidated,
            LockedAttachment,
            MappingSlot, //
        },
        Attachment,
        DmaBuf,
        Importer, //
    },
    dma_resv::{
        LockedResv,
        Usage, //
    },
    drm::workqueue::of_waits,
    impl_has_work,
    new_work,
    page::PAGE_SIZE,
    prelude::*,
    scatterlist::SGTable,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    workqueue::{
        Queue,
        Work,
        WorkItem, //
    }, //
};
use core::{
    cell::{
        Cell,
        UnsafeCell, //
    },
    ptr, //
};

/// The page tables that show the buffer.
///
/// # Invariants
///
/// While `shown` is true, `gem` is the imported object. Its memory is valid and it is of the class
/// of `caller`.
struct Tables {
    gem: Cell<*mut bindings::drm_gem_object>,
    caller: Caller,
    /// The page tables may show the buffer.
    shown: Cell<bool>,
    late: Arc<Late>,
    /// The queue of `late`.
    waits: &'static Queue,
}

/// The importer of the buffer. It drops its mapping when the buffer moves.
///
/// # Invariants
///
/// The reservation of the buffer guards `tables`.
struct Follower {
    /// How often the exporter has invalidated a mapping.
    invalidations: Atomic<u64>,
    /// How often the buffer was mapped. Changes with the reservation held.
    maps: Atomic<u64>,
    tables: UnsafeCell<Option<Tables>>,
}

// SAFETY: By the type invariant `tables` is guarded. GEM objects may be used from any task.
unsafe impl Send for Follower {}

// SAFETY: As for `Send`.
unsafe impl Sync for Follower {}

impl Follower {
    /// Returns the page tables that may show the buffer.
    ///
    /// # Safety
    ///
    /// The reservation of the buffer must be held for `'a`.
    unsafe fn shown(&self) -> Option<&Tables> {
        // SAFETY: The reservation is held. Any task that clears the cell holds it too.
        unsafe { (*self.tables.get()).as_ref() }.filter(|tables| tables.shown.get())
    }

    /// Makes the driver clear page tables and then unmaps the buffer. The caller has waited for the
    /// fences unless the device is being unbound or unplugged.
    ///
    /// If the device is just being unplugged, the unplug does it.
    fn release_mapping(&self, at: &mut LockedAttachment<'_>, when: When) {
        // SAFETY: The attachment is that of the buffer and its reservation is held.
        if let Some(tables) = unsafe { self.shown() } {
            if tables.call(Call::Zap, when).is_err() {
                return;
            }
        }
        at.unmap();
    }

    /// Returns whether page tables show an invalidated mapping of the buffer.
    fn is_outdated(&self, at: &LockedAttachment<'_>) -> bool {
        // SAFETY: As in `release_mapping()`.
        at.is_invalidated() && unsafe { self.shown() }.is_some()
    }

    /// Returns whether [`Self::map`] fails because work that may use an outdated mapping is not
    /// done. An exporter that moves the buffer by its own engine need not have waited for it.
    fn is_in_use(&self, at: &LockedAttachment<'_>) -> bool {
        self.is_outdated(at) && !at.dma_buf().resv().test_signaled(Usage::Bookkeep)
    }

    /// Maps the buffer unless it has a valid mapping. Moves may be under way.
    ///
    /// Waits for no fence because those of the buffer may be of any device.
    fn map(&self, at: &mut LockedAttachment<'_>) -> Result {
        if self.is_in_use(at) {
            return Err(EAGAIN);
        }
        if self.is_outdated(at) {
            self.release_mapping(at, When::Registered);
            if at.is_invalidated() {
                return Err(ENODEV);
            }
        }
        if at.map_without_wait(DataDirection::Bidirectional)? {
            self.maps.add(1, Relaxed);
        }
        Ok(())
    }
}

impl Tables {
    /// Calls the driver. The reservation is held and `when` is true.
    fn call(&self, call: Call, when: When) -> Result {
        // SAFETY: By the type invariant, because the value was found while `shown` is true.
        unsafe { (self.caller)(self.gem.get(), call, when) }?;
        if call == Call::Zap {
            self.shown.set(false);
        }
        Ok(())
    }
}

#[vtable]
impl Importer for Follower {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.invalidations.add(1, Relaxed);

        // SAFETY: The reservation is held.
        let Some(tables) = (unsafe { self.shown() }) else {
            // The mapping is only used with the reservation held.
            at.unmap();
            return;
        };

        // In all other cases an unplug is under way and does the rest.
        if tables.call(Call::Evicted, When::Registered).is_ok() {
            if !at.dma_buf().resv().test_signaled(Usage::Bookkeep) {
                // A work item already in the queue has not looked at the fences yet.
                let _ = tables.waits.enqueue(tables.late.clone());
            } else if tables.call(Call::Zap, When::Registered).is_ok() {
                at.unmap();
            }
        }
    }
}

/// The work item to unmap an invalidated buffer once its fences have signalled, unless the buffer
/// is used before.
#[pin_data]
struct Late {
    attachment: AttachmentHandle<Follower>,
    #[pin]
    work: Work<Late>,
}

impl_has_work! {
    impl HasWork<Self> for Late { self.work }
}

impl WorkItem for Late {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let at = &this.attachment;
        let maps = || at.importer().maps.load(Relaxed);

        // Fences added later belong to work that uses the new place of the buffer.
        let mut fences = KVec::new();
        let mut count = None;
        let ret = at.with(|slot| {
            if slot.is_invalidated() {
                count = Some(maps());
                for fence in slot.resv().fences(Usage::Bookkeep) {
                    fences.push(ARef::<Fence>::from(fence), GFP_KERNEL)?;
                }
            }
            Ok(())
        });
        if count.is_none() {
            // It was unmapped by the next use, or is detached.
            return;
        }
        match ret {
            // The waits are not interruptible and so do not fail.
            Ok(()) => fences.iter().for_each(|fence| {
                let _ = fence.wait(false);
            }),
            // This also waits for fences added in between.
            Err(e) if e == ENOMEM => {
                let _ = at.dma_buf().resv().wait(Usage::Bookkeep, false);
            }
            // The attachment is detached.
            Err(_) => return,
        }

        let _ = at.with(|slot| {
            // If the buffer was mapped and invalidated again, this work item is queued again.
            if slot.is_invalidated() && count == Some(maps()) {
                at.importer().release_mapping(slot, When::Registered);
            }
            Ok(())
        });
    }
}

/// Ends the use of an attachment by page tables before it is detached.
struct Ends(AttachmentHandle<Follower>);

impl Drop for Ends {
    fn drop(&mut self) {
        // If the attachment is detached, nothing is left to do.
        let _ = self.0.with(|at| {
            let follower = self.0.importer();

            // SAFETY: The reservation is held.
            if let Some(tables) = unsafe { follower.shown() } {
                let _ = tables.call(Call::Evicted, When::Registered);
            }
            follower.release_mapping(at, When::Registered);
            // `Late` refers to the attachment and keeps it.
            // SAFETY: The reservation is held and there is no reference to the value in the cell.
            unsafe { *follower.tables.get() = None };
            Ok(())
        });
    }
}

/// The attachment of an imported object to the buffer of another device, in place of memory.
pub struct Import {
    // Dropped first. [`None`] if there are no page tables.
    _ends: Option<Devres<Ends>>,
    attachment: Attachment<Follower>,
}

impl Import {
    /// Attaches `dev`, the DMA device of a DRM device, for access to the memory of the buffer.
    /// `caller` is for the page tables of the device, if it has any.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the size of the buffer is not a multiple of [`PAGE_SIZE`], as required for GEM
    ///   objects. A dma-buf may have any size.
    /// - `ENOMEM` if memory runs out.
    /// - The errors of the exporter.
    pub(super) fn new(
        buf: ARef<DmaBuf>,
        dev: &device::Device<device::Bound>,
        caller: Option<Caller>,
    ) -> Result<Self> {
        if buf.size() == 0 || buf.size() % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }

        let follower = Follower {
            invalidations: Atomic::new(0),
            maps: Atomic::new(0),
            tables: UnsafeCell::new(None),
        };
        let attachment = Attachment::new(buf, dev, follower)?;

        let Some(caller) = caller else {
            return Ok(Self {
                _ends: None,
                attachment,
            });
        };

        let handle = attachment.handle();
        let waits = of_waits()?;
        let late = Arc::pin_init(
            pin_init!(Late {
                attachment: handle,
                work <- new_work!("drm::gem::import::Late::work"),
            }),
            GFP_KERNEL,
        )?;
        // Devres drops the youngest resource first: the device stays attached until `Ends` was
        // dropped.
        let ends = Devres::new(dev, Ok::<_, Error>(Ends(attachment.handle())))?;
        attachment.with(|at| {
            // SAFETY: The reservation is held.
            unsafe {
                // INVARIANT: No page table shows the buffer.
                *attachment.importer().tables.get() = Some(Tables {
                    gem: Cell::new(ptr::null_mut()),
                    caller,
                    shown: Cell::new(false),
                    late,
                    waits,
                });
            }
            at.unmap();
            Ok(())
        })?;
        Ok(Self {
            _ends: Some(ends),
            attachment,
        })
    }

    /// Sets the object standing for the buffer.
    ///
    /// # Safety
    ///
    /// `gem` must be valid as long as the import and of the class that the import was created for.
    /// The reservation must be held.
    pub(super) unsafe fn follow(&self, gem: *mut bindings::drm_gem_object) {
        // SAFETY: The reservation is held.
        if let Some(tables) = unsafe { (*self.attachment.importer().tables.get()).as_ref() } {
            tables.gem.set(gem);
        }
    }

    /// As [`Self::map`], for page tables of the device. `f` converts the scatter table for them.
    /// Moves of the buffer may be under way: the work of the device depends on their fences.
    pub(super) fn map_shown<R>(
        &self,
        resv: &mut LockedResv<'_>,
        f: impl FnOnce(&SGTable) -> Result<R>,
    ) -> Result<R> {
        let mut at = self.attachment.locked(resv)?;

        // If an import was created with page tables and has none any more, its device is being
        // unbound.
        // SAFETY: The reservation is held.
        let tables = unsafe { (*self.attachment.importer().tables.get()).as_ref() };
        if self._ends.is_some() && tables.is_none() {
            return Err(ENODEV);
        }

        self.attachment.importer().map(&mut at)?;
        let ret = f(at.mapping().ok_or(EINVAL)?)?;
        if let Some(tables) = tables {
            // INVARIANT: The object exists and has this import until its memory is freed.
            tables.shown.set(true);
        }
        Ok(ret)
    }

    /// Returns the DMA address of offset `offset` of the buffer, also in an invalidated mapping
    /// that still exists.
    pub(super) fn dma_address(&self, resv: &mut LockedResv<'_>, offset: u64) -> Option<u64> {
        let at = self.attachment.locked(resv).ok()?;
        let entries = at.kept()?.iter();

        address_at(
            entries.map(|entry| (entry.dma_address(), entry.dma_len())),
            offset,
        )
    }

    /// Makes the driver clear page tables and unmaps the buffer.
    ///
    /// # Safety
    ///
    /// The DRM device of the object must be unplugged and its registration data must still exist.
    pub(super) unsafe fn unplugged(&self, resv: &mut LockedResv<'_>) {
        let Ok(mut at) = self.attachment.locked(resv) else {
            return;
        };
        let follower = self.attachment.importer();

        // SAFETY: The reservation is held.
        if let Some(tables) = unsafe { follower.shown() } {
            let _ = tables.call(Call::Evicted, When::Unplugged);
            follower.release_mapping(&mut at, When::Unplugged);
        }
    }

    /// Returns the buffer.
    #[inline]
    pub fn dma_buf(&self) -> &DmaBuf {
        self.attachment.dma_buf()
    }

    /// Returns how often the exporter invalidated the mapping.
    #[inline]
    pub fn invalidations(&self) -> u64 {
        self.attachment.importer().invalidations.load(Relaxed)
    }

    /// Returns whether [`Self::map`] would return `EAGAIN`. False for a reservation of another
    /// buffer.
    pub fn is_in_use(&self, resv: &mut LockedResv<'_>) -> bool {
        self.attachment
            .locked(resv)
            .is_ok_and(|at| self.attachment.importer().is_in_use(&at))
    }

    /// Waits for work that may use an invalidated mapping, if page tables show it. Afterwards no
    /// method returns `EAGAIN` unless other work is added in between.
    ///
    /// The work may be of any device. Therefore the caller must hold no locks and be outside of the
    /// section that an unplug waits for. The reservation is taken only to look. The exporter's own
    /// waits when it maps the buffer are not included.
    ///
    /// # Errors
    ///
    /// `ERESTARTSYS` or `EINTR` if a signal arrived.
    pub fn await_unused(&self) -> Result {
        let is_outdated = {
            let mut guard = self.dma_buf().resv().lock_interruptible()?;

            // It fails if the driver of the device is not bound any more. The next use then fails
            // as well.
            self.attachment
                .locked(&mut guard.locked())
                .is_ok_and(|at| self.attachment.importer().is_outdated(&at))
        };

        if is_outdated {
            self.dma_buf().resv().wait(Usage::Bookkeep, true)?;
        }
        Ok(())
    }

    /// Maps the buffer for the device unless it is mapped. Calls `f` with the mapping. Moves of the
    /// buffer may be under way.
    ///
    /// Takes the reservation.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if page tables show an invalidated mapping and work that may use it is not done:
    ///   see [`Self::await_unused`].
    /// - `ENODEV` if the driver of the device or of the exporter is not bound any more.
    /// - The errors of the exporter and those of `f`.
    pub fn with_mapping<R>(&self, f: impl FnOnce(&MappingSlot<'_>) -> Result<R>) -> Result<R> {
        self.attachment.with(|at| {
            self.attachment.importer().map(at)?;
            f(at)
        })
    }

    /// Maps the buffer for the device unless it is mapped. The reservation is held.
    ///
    /// Moves of the buffer may be under way. It stays in its place until `resv` is unlocked, and
    /// longer if fences are added.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `resv` is not the reservation of the buffer.
    /// - Those of [`Self::with_mapping`].
    pub fn map(&self, resv: &mut LockedResv<'_>) -> Result {
        let mut at = self.attachment.locked(resv)?;

        self.attachment.importer().map(&mut at)
    }
}

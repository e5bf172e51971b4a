// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an object has that stands for the buffer of another device.
//!
//! The device is attached dynamically and takes peer-to-peer memory. The buffer is mapped when it is
//! used, with the reservation held. When the exporter moves it, the mapping is dropped, and the next
//! use maps it again.
//!
//! If page tables of the device show the buffer, see [`Mappings`](super::Mappings), the mapping is
//! kept until the fences are signalled which the reservation had when the exporter moved it. Then
//! the entries are cleared and the buffer is unmapped, by [`Late`] or by the next use.
//!
//! # Locking
//!
//! The reservation of the buffer guards the mapping and what is known of page tables. [`Late`]
//! waits for fences without it.

#![cfg_attr(not(CONFIG_RUST_DRM_TTM), expect(dead_code))]

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
    impl_has_work,
    new_work,
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
        self,
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
/// While `shown` is true, `gem` is the imported object, whose memory is valid, of the class of
/// `caller`.
struct Tables {
    gem: Cell<*mut bindings::drm_gem_object>,
    caller: Caller,
    /// They may show the buffer.
    shown: Cell<bool>,
    late: Arc<Late>,
}

/// Drops its mapping when the buffer moves.
///
/// # Invariants
///
/// The reservation of the buffer guards `tables`.
struct Follower {
    /// How often the exporter took a mapping away.
    invalidations: Atomic<u64>,
    tables: UnsafeCell<Option<Tables>>,
}

// SAFETY: By the type invariant `tables` is guarded; GEM objects may be used from any task.
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
        // SAFETY: The reservation is held, and whoever clears the cell has it.
        unsafe { (*self.tables.get()).as_ref() }.filter(|tables| tables.shown.get())
    }

    /// Has the buffer unmapped, and page tables cleared before. Whoever calls it has waited.
    ///
    /// If the device is just being unplugged, that does it.
    fn let_go(&self, at: &mut LockedAttachment<'_>, when: When) {
        // SAFETY: The attachment is that of the buffer, and its reservation is held.
        if let Some(tables) = unsafe { self.shown() } {
            if tables.call(Call::Zap, when).is_err() {
                return;
            }
        }
        at.unmap();
    }

    /// Maps the buffer, unless it is mapped and was not invalidated.
    fn map(&self, at: &mut LockedAttachment<'_>) -> Result {
        // SAFETY: As in `let_go()`.
        if at.is_invalidated() && unsafe { self.shown() }.is_some() {
            // An exporter that moves by its own engine need not have waited.
            at.dma_buf().resv().wait(Usage::Bookkeep, true)?;
            self.let_go(at, When::Registered);
            if at.is_invalidated() {
                return Err(ENODEV);
            }
        }
        at.map(DataDirection::Bidirectional).map(|_| ())
    }
}

impl Tables {
    /// Calls the driver. The reservation is held, and `when` true.
    fn call(&self, call: Call, when: When) -> Result {
        // SAFETY: By the type invariant, as `shown` is true for whoever has found the value.
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

        // In all other cases the unplug which is under way does the rest.
        if tables.call(Call::Evicted, When::Registered).is_ok() {
            if !at.dma_buf().resv().test_signaled(Usage::Bookkeep) {
                // If it is queued already, it has not looked yet.
                let _ = workqueue::system_long().enqueue(tables.late.clone());
            } else if tables.call(Call::Zap, When::Registered).is_ok() {
                at.unmap();
            }
        }
    }
}

/// Has a buffer that was invalidated unmapped when its fences are signalled, if nobody uses it
/// before.
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
        let invalidations = || at.importer().invalidations.load(Relaxed);

        // Fences that come later are for where the buffer is by then.
        let mut fences = KVec::new();
        let count = at.with(|slot| {
            if slot.is_invalidated() {
                for fence in slot.resv().fences(Usage::Bookkeep) {
                    fences.push(ARef::<Fence>::from(fence), GFP_KERNEL)?;
                }
            }
            Ok(invalidations())
        });
        match &count {
            // Without signals the waits do not fail.
            Ok(_) => fences.iter().for_each(|fence| {
                let _ = fence.wait(false);
            }),
            // All that come meanwhile are waited for, too.
            Err(e) if *e == ENOMEM => {
                let _ = at.dma_buf().resv().wait(Usage::Bookkeep, false);
            }
            // It is detached.
            Err(_) => return,
        }

        let _ = at.with(|slot| {
            // If it was mapped and invalidated again, this is queued again.
            if slot.is_invalidated() && count.unwrap_or(invalidations()) == invalidations() {
                at.importer().let_go(slot, When::Registered);
            }
            Ok(())
        });
    }
}

/// Ends the use of an attachment by page tables, before it is detached.
struct Ends(AttachmentHandle<Follower>);

impl Drop for Ends {
    fn drop(&mut self) {
        // Nothing is left to be done if it is detached.
        let _ = self.0.with(|at| {
            let follower = self.0.importer();

            // SAFETY: The reservation is held.
            if let Some(tables) = unsafe { follower.shown() } {
                let _ = tables.call(Call::Evicted, When::Registered);
            }
            follower.let_go(at, When::Registered);
            // Whoever has `Late` has the attachment.
            // SAFETY: The reservation is held, and nobody has a reference to what is in the cell.
            unsafe { *follower.tables.get() = None };
            Ok(())
        });
    }
}

/// What an imported object has in place of memory: the attachment to the buffer of somebody else.
pub struct Import {
    // Dropped first. Only if there are page tables.
    _ends: Option<Devres<Ends>>,
    attachment: Attachment<Follower>,
}

impl Import {
    /// Attaches `dev`, which accesses the memory of the buffer: the DMA device of a DRM device.
    /// `caller` is for the page tables of the device, if it has any.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if memory runs out.
    /// - What the exporter says.
    #[cfg_attr(not(CONFIG_RUST_DRM_TTM), expect(dead_code))]
    pub(super) fn new(
        buf: ARef<DmaBuf>,
        dev: &device::Device<device::Bound>,
        caller: Option<Caller>,
    ) -> Result<Self> {
        let follower = Follower {
            invalidations: Atomic::new(0),
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
        let late = Arc::pin_init(
            pin_init!(Late {
                attachment: handle,
                work <- new_work!("drm::gem::import::Late::work"),
            }),
            GFP_KERNEL,
        )?;
        // What devres has later goes first: the device is attached until then.
        let ends = Devres::new(dev, Ok::<_, Error>(Ends(attachment.handle())))?;
        attachment.with(|at| {
            // SAFETY: The reservation is held.
            unsafe {
                // INVARIANT: Nothing is shown.
                *attachment.importer().tables.get() = Some(Tables {
                    gem: Cell::new(ptr::null_mut()),
                    caller,
                    shown: Cell::new(false),
                    late,
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

    /// Says which object stands for the buffer.
    ///
    /// # Safety
    ///
    /// `gem` must be valid as long as the import, of the class for which that was made, and the
    /// reservation held.
    pub(super) unsafe fn follow(&self, gem: *mut bindings::drm_gem_object) {
        // SAFETY: The reservation is held.
        if let Some(tables) = unsafe { (*self.attachment.importer().tables.get()).as_ref() } {
            tables.gem.set(gem);
        }
    }

    /// As [`Self::map`], for page tables of the device. `f` makes of the table what they need.
    pub(super) fn map_shown<R>(
        &self,
        resv: &mut LockedResv<'_>,
        f: impl FnOnce(&SGTable) -> Result<R>,
    ) -> Result<R> {
        let mut at = self.attachment.locked(resv)?;

        // The device of an import with page tables that has none any more is being unbound.
        // SAFETY: The reservation is held.
        let tables = unsafe { (*self.attachment.importer().tables.get()).as_ref() };
        if self._ends.is_some() && tables.is_none() {
            return Err(ENODEV);
        }

        self.attachment.importer().map(&mut at)?;
        let ret = f(at.mapping().ok_or(EINVAL)?)?;
        if let Some(tables) = tables {
            // INVARIANT: The object exists, and has this import until its memory is freed.
            tables.shown.set(true);
        }
        Ok(ret)
    }

    /// Returns where the device reaches offset `offset` of the buffer, also if it was invalidated
    /// and is still mapped.
    pub(super) fn dma_address(&self, resv: &mut LockedResv<'_>, offset: u64) -> Option<u64> {
        let at = self.attachment.locked(resv).ok()?;
        let entries = at.kept()?.iter();

        address_at(
            entries.map(|entry| (entry.dma_address(), entry.dma_len())),
            offset,
        )
    }

    /// Has page tables cleared and the buffer unmapped.
    ///
    /// # Safety
    ///
    /// The DRM device of the object must be unplugged, and its registration data still be there.
    pub(super) unsafe fn unplugged(&self, resv: &mut LockedResv<'_>) {
        let Ok(mut at) = self.attachment.locked(resv) else {
            return;
        };
        let follower = self.attachment.importer();

        // SAFETY: The reservation is held.
        if let Some(tables) = unsafe { follower.shown() } {
            let _ = tables.call(Call::Evicted, When::Unplugged);
            follower.let_go(&mut at, When::Unplugged);
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

    /// Maps the buffer for the device, unless it is mapped, and calls `f` with the mapping.
    ///
    /// Takes the reservation.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the driver of the device or of the exporter is not bound any more.
    /// - `ERESTARTSYS` if a signal arrived while it waited for a move.
    /// - What the exporter says, and what `f` returns.
    pub fn with_mapping<R>(&self, f: impl FnOnce(&MappingSlot<'_>) -> Result<R>) -> Result<R> {
        self.attachment.with(|at| {
            self.attachment.importer().map(at)?;
            f(at)
        })
    }

    /// Maps the buffer for the device, unless it is mapped, with the reservation held.
    ///
    /// When this returns, moves of the buffer are complete. It stays where it is until `resv` is
    /// given up, and longer if fences are added.
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

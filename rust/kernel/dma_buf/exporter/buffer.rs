// SPDX-License-Identifier: GPL-2.0

//! The private data of a dma-buf and the accessors of its exporter.
//!
//! # Locking
//!
//! The reservation of the buffer guards the bound device, the attachments and the kernel mapping. A
//! [`LockedBuffer`] is the proof that it is held.

use super::{
    attachment::{
        Attached,
        Attachments,
        Holdings, //
    },
    exports::{
        Links,
        Registry, //
    },
    table::Table,
    user::UserMappings,
    BoundOf,
    Exporter,
    KernelMapping, //
};
use crate::{
    bindings,
    dma_buf::{
        importer::MappingSlot,
        DmaBuf, //
    },
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        SetOnce, //
    },
    types::{
        CovariantForLt,
        NotThreadSafe, //
    }, //
};
use core::{
    any::TypeId,
    cell::{
        Cell,
        UnsafeCell, //
    },
    ptr::{
        self,
        NonNull, //
    }, //
};

/// The part of the private data common to all types of [`Exporter`].
pub(super) struct Common {
    exporter_type: TypeId,

    /// The place on the list of the exporting driver.
    links: Links,

    /// The attachments accepted by the exporter and not yet detached. Guarded by the reservation.
    pub(super) attached: Attachments,
}

/// The private data of a dma-buf, in `dma_buf.priv`.
#[repr(C)]
#[pin_data]
pub(super) struct Buffer<E: Exporter> {
    /// Must be first in every `Buffer`: it is accessed before the type is known.
    pub(super) common: Common,

    pub(super) exporter: E,

    /// The list containing the buffer.
    pub(super) registry: Arc<Registry>,

    /// The data of the bound device for the callbacks; `None` once revoked. Guarded by the
    /// reservation.
    bound: UnsafeCell<Option<NonNull<BoundOf<'static, E>>>>,

    /// The number of mappings of the device's own memory: those of importers and one for the kernel
    /// (vmap). Changes with the reservation held. Mappings of system memory are not counted: this
    /// memory stays as long as the buffer, so an unbind does not wait for them.
    mappings: Atomic<usize>,

    /// The mapping for the kernel. Guarded by the reservation.
    pub(super) kernel: Cell<Option<KBox<dyn KernelMapping>>>,

    /// The mappings of processes if the exporter has [`pages`](Exporter::pages).
    pub(super) user: SetOnce<UserMappings>,
}

// SAFETY: The reservation guards `bound`, `kernel` and the attachments with their holdings. The
// mutex of the list guards the links. `bound` points to a value that is `Send` and `Sync`.
unsafe impl<E: Exporter> Send for Buffer<E> {}

// SAFETY: As for `Send`.
unsafe impl<E: Exporter> Sync for Buffer<E> {}

impl<E: Exporter> Buffer<E> {
    /// Creates the private data of a buffer to be exported.
    ///
    /// # Safety
    ///
    /// `bound` must stay valid until [`Self::revoke`] was called or the buffer is gone.
    pub(super) unsafe fn new(
        exporter: E,
        registry: Arc<Registry>,
        bound: NonNull<BoundOf<'static, E>>,
    ) -> Result<Pin<KBox<Self>>> {
        KBox::pin_init(
            pin_init!(Self {
                common: Common {
                    exporter_type: TypeId::of::<E>(),
                    links: Links::new(),
                    attached: Attachments::new(),
                },
                exporter,
                registry,
                bound: UnsafeCell::new(Some(bound)),
                mappings: Atomic::new(0),
                kernel: Cell::new(None),
                user: SetOnce::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the private data of a dma-buf.
    ///
    /// # Safety
    ///
    /// `buf` must have been exported with the table of `E`.
    #[inline]
    pub(super) unsafe fn of(buf: &DmaBuf) -> &Self {
        // SAFETY: By the safety requirements `priv` points to a `Self` living until the release of
        // the dma-buf.
        unsafe { &*(*buf.as_raw()).priv_.cast::<Self>() }
    }

    /// Creates the view passed to callbacks.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the buffer was revoked.
    ///
    /// # Safety
    ///
    /// The reservation of `buf` must be held for `'a`, and `buf` must be the dma-buf of `self`.
    #[inline]
    pub(super) unsafe fn locked<'a>(&'a self, buf: &'a DmaBuf) -> Result<LockedBuffer<'a, E>> {
        // SAFETY: The reservation guards `bound` and the caller holds it.
        let bound = unsafe { *self.bound.get() }.ok_or(ENODEV)?;

        // INVARIANT: The reservation is held. The device is bound until `revoke`, which needs the
        // reservation.
        Ok(LockedBuffer {
            buf,
            // SAFETY: `bound` is valid until `revoke`.
            bound: E::Bound::cast_ref(unsafe { bound.as_ref() }),
            _not_send: NotThreadSafe,
        })
    }

    /// Iterates over the attachments, oldest first.
    ///
    /// # Safety
    ///
    /// The reservation of `buf` must be held for `'a`, and `buf` must be the dma-buf of `self`.
    pub(super) unsafe fn attachments<'a>(
        &'a self,
        buf: &'a DmaBuf,
    ) -> impl Iterator<Item = Attached<'a, E>> + use<'a, E> {
        // The reservation is held as long as it is borrowed.
        let _: &'a DmaBuf = buf;

        // SAFETY: As promised by the caller. Attachments on the list were accepted by the exporter
        // of this buffer and stay valid while the reservation is held.
        unsafe {
            self.common
                .attached
                .iter()
                .map(|raw| Attached::from_raw(raw))
        }
    }

    /// Revokes the buffer: clears its bound device and invalidates the mappings of importers. Does
    /// nothing if it is revoked already.
    pub(super) fn revoke(&self, buf: &DmaBuf) {
        let _guard = buf.resv().lock();

        // SAFETY: The reservation guards `bound`. No `LockedBuffer` exists because each is only
        // handed out for a call with the reservation held.
        if unsafe { &mut *self.bound.get() }.take().is_none() {
            return;
        }
        self.exporter.revoke();
        // A later page fault waits for the reservation and then finds the buffer revoked.
        if let Some(user) = self.user.as_ref() {
            user.unmap();
        }
        // SAFETY: The reservation is held.
        unsafe { bindings::dma_buf_invalidate_mappings(buf.as_raw()) };
    }

    /// Adds a mapping to the count.
    ///
    /// # Safety
    ///
    /// The reservation must be held.
    #[inline]
    pub(super) unsafe fn get_mapping(&self) {
        self.mappings.store(self.mappings() + 1, Relaxed);
    }

    /// Removes a mapping from the count. The last one of a revoked buffer wakes the waiter.
    ///
    /// # Safety
    ///
    /// The reservation must be held.
    #[inline]
    pub(super) unsafe fn put_mapping(&self) {
        let left = self.mappings().saturating_sub(1);

        // Orders the work of the importer and the unmap before everything that follows the wait for
        // them.
        self.mappings.store(left, Release);
        // SAFETY: The reservation guards `bound` and the caller holds it.
        if left == 0 && unsafe { (*self.bound.get()).is_none() } {
            self.registry.wake_waiter();
        }
    }

    /// Returns the number of mappings of the device's own memory.
    #[inline]
    pub(super) fn mappings(&self) -> usize {
        self.mappings.load(Acquire)
    }
}

/// Returns the place of a buffer on the list of its driver.
///
/// # Safety
///
/// `buf` must be a buffer of an [`Exporter`] and must not be freed during `'a`.
pub(super) unsafe fn links_of<'a>(buf: *mut bindings::dma_buf) -> &'a Links {
    // SAFETY: As promised by the caller; the private data of a buffer begins with `Common`.
    &unsafe { &*(*buf).priv_.cast::<Common>() }.links
}

/// Synchronizes invalidated mappings that are not unmapped yet: the CPU sees the writes of devices.
///
/// The exporter calls it after `dma_buf_invalidate_mappings()` and a wait for the fences of the
/// importers. Afterwards it can move the content of the buffer or close its window. A later unmap
/// of such a mapping does not write to the old memory because this memory may have a new owner by
/// then.
///
/// # Safety
///
/// `buf` must be a valid buffer of an [`Exporter`] with its reservation held. The mapped memory
/// must still be there.
pub(crate) unsafe fn retire(buf: *mut bindings::dma_buf) {
    // SAFETY: As promised by the caller; the private data of a buffer begins with `Common`.
    let common = unsafe { &*(*buf).priv_.cast::<Common>() };

    // SAFETY: The reservation is held.
    for raw in unsafe { common.attached.iter() } {
        // SAFETY: Attachments on the list are valid and the reservation is held.
        let (dev, holdings) = unsafe { ((*raw).dev, Holdings::of(raw)) };
        // SAFETY: The reservation guards the tables; there is no other reference to them.
        let tables = unsafe { &mut *holdings.tables.get() };

        for table in tables.iter_mut().filter(|table| !table.retired) {
            // SAFETY: The table belongs to the attachment and its memory is still there.
            unsafe { table.sync_for_cpu(dev) };
            table.retired = true;
        }
    }
}

/// Returns whether importers have mapped memory of the device since the buffer was last
/// [retired](retire).
///
/// # Safety
///
/// `buf` must be a valid buffer of an [`Exporter`] with its reservation held.
pub(crate) unsafe fn is_mapped(buf: *mut bindings::dma_buf) -> bool {
    // SAFETY: As promised by the caller; the private data of a buffer begins with `Common`. The
    // reservation guards the attachments and their tables. There is no other reference to them.
    unsafe {
        (*(*buf).priv_.cast::<Common>())
            .attached
            .iter()
            .any(|raw| (*Holdings::of(raw).tables.get()).iter().any(Table::is_peer))
    }
}

/// Returns whether importers have pinned a buffer.
///
/// # Safety
///
/// `buf` must be null or a valid buffer of an [`Exporter`] with its reservation held.
pub(crate) unsafe fn is_pinned(buf: *mut bindings::dma_buf) -> bool {
    // SAFETY: As in `is_mapped()`.
    !buf.is_null()
        && unsafe {
            (*(*buf).priv_.cast::<Common>())
                .attached
                .iter()
                .any(|raw| Holdings::of(raw).pins.get() != 0)
        }
}

/// A buffer whose reservation is held and whose device is bound.
///
/// # Invariants
///
/// For `'a` the reservation of `buf` is held and the exporting device is bound.
pub struct LockedBuffer<'a, E: Exporter> {
    buf: &'a DmaBuf,
    pub(super) bound: &'a BoundOf<'a, E>,
    _not_send: NotThreadSafe,
}

impl<'a, E: Exporter> LockedBuffer<'a, E> {
    /// Returns what the exporter keeps for the bound device.
    #[inline]
    pub fn bound(&self) -> &BoundOf<'a, E> {
        self.bound
    }

    /// Returns the buffer.
    #[inline]
    pub fn dma_buf(&self) -> &DmaBuf {
        self.buf
    }

    /// Iterates over the attachments, oldest first.
    ///
    /// An attachment is among them once the exporter has accepted it.
    pub fn attachments(&self) -> impl Iterator<Item = Attached<'_, E>> {
        // SAFETY: By the type invariant the reservation is held. A view is only created of a buffer
        // exported with the table of `E`.
        unsafe { Buffer::<E>::of(self.buf).attachments(self.buf) }
    }
}

/// Calls `f` with the exporter of `buf` and its locked view.
///
/// Takes the reservation of `buf`.
///
/// # Errors
///
/// - `EINVAL` if `buf` is not a buffer of `E`.
/// - `ENODEV` if it was revoked.
/// - The errors of `f`.
pub fn with_exporter<E, R>(
    buf: &DmaBuf,
    f: impl FnOnce(&E, &LockedBuffer<'_, E>) -> Result<R>,
) -> Result<R>
where
    E: Exporter,
{
    let guard = buf.resv().lock();
    // SAFETY: The reservation is held.
    let ret = unsafe { with_locked_exporter(buf, f) };

    drop(guard);
    ret
}

/// Calls `f` with the exporter of `buf` and its locked view.
///
/// # Errors
///
/// The errors of [`with_exporter`].
///
/// # Safety
///
/// The reservation of `buf` must be held.
pub(crate) unsafe fn with_locked_exporter<E, R>(
    buf: &DmaBuf,
    f: impl FnOnce(&E, &LockedBuffer<'_, E>) -> Result<R>,
) -> Result<R>
where
    E: Exporter,
{
    let buffer = buffer_of::<E>(buf).ok_or(EINVAL)?;

    // SAFETY: The reservation is held until after the view is gone.
    unsafe { buffer.locked(buf) }.and_then(|cx| f(&buffer.exporter, &cx))
}

/// Calls `f` with the exporter of a buffer and its view of an attachment, for an importer holding
/// the reservation.
///
/// # Errors
///
/// - `EINVAL` if it is not a buffer of `E`.
/// - `ENODEV` if it was revoked.
/// - The errors of `f`.
pub(crate) fn with_exporter_of<E, R>(
    at: &MappingSlot<'_>,
    f: impl FnOnce(&E, &LockedBuffer<'_, E>, &Attached<'_, E>) -> Result<R>,
) -> Result<R>
where
    E: Exporter,
{
    let buf = at.dma_buf();
    let buffer = buffer_of::<E>(buf).ok_or(EINVAL)?;

    // SAFETY: The slot exists while the reservation is held. It belongs to an attachment of `buf`
    // accepted by the table of `E`.
    let (cx, at) = unsafe { (buffer.locked(buf)?, Attached::from_raw(at.as_raw())) };

    f(&buffer.exporter, &cx, &at)
}

/// Returns the exporter of `buf` if it is an `E`.
pub fn exporter_of<E: Exporter>(buf: &DmaBuf) -> Option<&E> {
    buffer_of::<E>(buf).map(|buffer| &buffer.exporter)
}

/// Returns the exporter of `buf`.
///
/// # Safety
///
/// `buf` must have been exported by an [`Exports`](super::Exports) of `E`.
pub(crate) unsafe fn assume_exporter_of<E: Exporter>(buf: &DmaBuf) -> &E {
    // SAFETY: As promised by the caller.
    &unsafe { Buffer::<E>::of(buf) }.exporter
}

fn buffer_of<E: Exporter>(buf: &DmaBuf) -> Option<&Buffer<E>> {
    // SAFETY: The dma-buf is valid and its table never changes.
    let ops = unsafe { (*buf.as_raw()).ops };

    if !ptr::eq(ops, E::OPS.as_raw()) {
        return None;
    }

    // Without a `static` for its table a driver could share the address with another driver.
    // SAFETY: The table belongs to an exporter in Rust, and only `Exports::export` uses such
    // tables. Hence `priv` is a `Buffer` of some type and begins with `Common`.
    let exporter_type = unsafe { (*(*buf.as_raw()).priv_.cast::<Common>()).exporter_type };

    if exporter_type == TypeId::of::<E>() {
        // SAFETY: The dma-buf is one of `E`.
        Some(unsafe { Buffer::of(buf) })
    } else {
        None
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The exporter's view of attachments: requests to attach, the pins and mappings of an importer,
//! and requests for a mapping.
//!
//! # Locking
//!
//! The reservation of the buffer guards all of it.

use super::table::{
    Table,
    Tables, //
};
use super::Exporter;
#[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
use super::{
    buffer::Buffer,
    BoundOf, //
};
use crate::{
    bindings,
    device,
    dma_buf::DmaBuf,
    prelude::*, //
};
use core::{
    cell::{
        Cell,
        UnsafeCell, //
    },
    marker::PhantomData,
    ops::Deref,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// A list of attachments, oldest first.
///
/// The core has one as well but adds an attachment some time after the exporter has accepted it. A
/// decision made about all importers in between would miss the new one.
///
/// # Invariants
///
/// Each attachment is valid. Its private data begins with [`Holdings`], which link it to its
/// neighbours in both directions.
pub(super) struct Attachments {
    first: Cell<*mut bindings::dma_buf_attachment>,
    last: Cell<*mut bindings::dma_buf_attachment>,
}

impl Attachments {
    pub(super) const fn new() -> Self {
        // INVARIANT: The list is empty.
        Self {
            first: Cell::new(ptr::null_mut()),
            last: Cell::new(ptr::null_mut()),
        }
    }

    /// Appends an attachment.
    ///
    /// # Safety
    ///
    /// The private data of `raw` must begin with [`Holdings`]. `raw` must stay valid until it is
    /// removed. The reservation must be held.
    #[inline]
    pub(super) unsafe fn push(&self, raw: *mut bindings::dma_buf_attachment) {
        let last = self.last.replace(raw);

        // INVARIANT: The attachment is linked to the one before it and is the last.
        // SAFETY: As promised by the caller and by the type invariant.
        unsafe {
            Holdings::of(raw).previous.set(last);
            if last.is_null() {
                self.first.set(raw);
            } else {
                Holdings::of(last).next.set(raw);
            }
        }
    }

    /// Removes an attachment.
    ///
    /// # Safety
    ///
    /// `raw` must be on the list and the reservation must be held.
    pub(super) unsafe fn remove(&self, raw: *mut bindings::dma_buf_attachment) {
        // INVARIANT: The neighbours of the attachment are linked to each other.
        // SAFETY: As promised by the caller and by the type invariant.
        unsafe {
            let (previous, next) = (
                Holdings::of(raw).previous.get(),
                Holdings::of(raw).next.get(),
            );

            if previous.is_null() {
                self.first.set(next);
            } else {
                Holdings::of(previous).next.set(next);
            }
            if next.is_null() {
                self.last.set(previous);
            } else {
                Holdings::of(next).previous.set(previous);
            }
        }
    }

    /// Iterates over the attachments.
    ///
    /// # Safety
    ///
    /// The reservation must be held for as long as the iterator is used.
    pub(super) unsafe fn iter(&self) -> impl Iterator<Item = *mut bindings::dma_buf_attachment> {
        let mut next = self.first.get();

        core::iter::from_fn(move || {
            let raw = next;
            if raw.is_null() {
                return None;
            }

            // SAFETY: By the type invariant and as promised by the caller.
            next = unsafe { Holdings::of(raw) }.next.get();
            Some(raw)
        })
    }
}

/// The pins and mappings of an importer. Guarded by the reservation.
pub(super) struct Holdings {
    /// Links of [`Attachments`].
    previous: Cell<*mut bindings::dma_buf_attachment>,
    next: Cell<*mut bindings::dma_buf_attachment>,
    pub(super) pins: Cell<usize>,
    pub(super) tables: UnsafeCell<Tables>,
}

impl Holdings {
    /// Creates holdings without pins and mappings.
    #[inline]
    pub(super) const fn new() -> Self {
        Self {
            previous: Cell::new(ptr::null_mut()),
            next: Cell::new(ptr::null_mut()),
            pins: Cell::new(0),
            tables: UnsafeCell::new(Tables::new()),
        }
    }

    /// # Safety
    ///
    /// `attach` must be a valid attachment of a buffer of an [`Exporter`]. The reservation of the
    /// buffer must be held for `'a`.
    #[inline]
    pub(super) unsafe fn of<'a>(attach: *mut bindings::dma_buf_attachment) -> &'a Self {
        // SAFETY: The private data of an attachment begins with its holdings for every type of
        // exporter. The reservation guards them.
        unsafe { &*(*attach).priv_.cast::<Self>() }
    }
}

/// The private data of an attachment, in `dma_buf_attachment.priv`.
#[repr(C)]
pub(super) struct AttachmentData<E: Exporter> {
    /// Must be first: it is accessed before the type is known.
    pub(super) holdings: Holdings,
    pub(super) data: E::Attachment,
}

/// A request to attach an importer.
pub struct AttachRequest<'a> {
    attach: &'a mut bindings::dma_buf_attachment,
}

impl<'a> AttachRequest<'a> {
    /// Creates the request for a new attachment.
    #[inline]
    pub(super) fn new(attach: &'a mut bindings::dma_buf_attachment) -> Self {
        Self { attach }
    }

    /// Returns the device of the importer.
    #[inline]
    pub fn device(&self) -> &device::Device {
        // SAFETY: The core passes a valid device outliving its attachment.
        unsafe { device::Device::from_raw(self.attach.dev) }
    }

    /// Returns the name of the driver of the importer's device, or of its bus if it has no driver.
    ///
    /// Mirrors `dev_driver_string()`.
    #[inline]
    pub fn driver_name(&self) -> &CStr {
        // SAFETY: The device is valid and the function returns a valid string. The name of a bus is
        // static. That of a driver is valid as long as the driver's module is loaded: the importer
        // works for its device and does not outlive this module.
        unsafe { CStr::from_char_ptr(bindings::dev_driver_string(self.attach.dev)) }
    }

    /// Returns the name of the bus of the importer's device. It is empty if the device is on no
    /// bus.
    #[inline]
    pub fn bus_name(&self) -> &CStr {
        // SAFETY: The device is valid and its bus does not change. The bus is not unregistered
        // while the importer works for the device.
        match unsafe { (*self.attach.dev).bus.as_ref() } {
            // SAFETY: The name of a bus is a valid constant string.
            Some(bus) => unsafe { CStr::from_char_ptr(bus.name) },
            None => c"",
        }
    }

    /// Returns whether the importer takes peer-to-peer memory.
    ///
    /// A static importer never does.
    #[inline]
    pub fn peer2peer(&self) -> bool {
        self.attach.peer2peer
    }

    /// Withdraws the offer of peer-to-peer memory: the importer gets system memory.
    #[inline]
    pub fn clear_peer2peer(&mut self) {
        self.attach.peer2peer = false;
    }

    /// Returns whether the importer manages pinning itself.
    ///
    /// For other importers the core pins the buffer while it is mapped.
    #[inline]
    pub fn is_dynamic(&self) -> bool {
        !self.attach.importer_ops.is_null()
    }

    /// Returns whether the mappings of the importer can be revoked.
    ///
    /// Mirrors `dma_buf_attach_revocable()`.
    #[inline]
    pub fn is_revocable(&self) -> bool {
        // SAFETY: `attach` is valid.
        unsafe { bindings::dma_buf_attach_revocable(ptr::from_ref(self.attach).cast_mut()) }
    }
}

/// Ties a value to one call of a callback. Invariant, so that `'r` matches no other lifetime.
pub(super) type Brand<'r> = PhantomData<fn(&'r ()) -> &'r ()>;

/// A request for a mapping: an attachment with the permission to map the buffer for it.
///
/// Passed to [`Exporter::map`] only. After its return the mapping is counted, so an unbind waits
/// for it. A mapping created but not returned is unmapped.
pub struct MapRequest<'r, E: Exporter>(pub(super) Attached<'r, E>);

impl<'r, E: Exporter> Deref for MapRequest<'r, E> {
    type Target = Attached<'r, E>;

    #[inline]
    fn deref(&self) -> &Attached<'r, E> {
        &self.0
    }
}

/// An attachment of a buffer with the reservation held.
///
/// # Invariants
///
/// `raw` is a valid attachment of a buffer of `E`. The reservation of the buffer is held for `'r`.
/// The private data of `raw` is an `AttachmentData` of `E`.
pub struct Attached<'r, E: Exporter> {
    raw: NonNull<bindings::dma_buf_attachment>,
    _brand: Brand<'r>,
    _exporter: PhantomData<*mut E>,
}

impl<'r, E: Exporter> Attached<'r, E> {
    /// # Safety
    ///
    /// `raw` must be a valid attachment accepted by the table of `E`. The reservation of its buffer
    /// must be held for `'r`.
    #[inline]
    pub(super) unsafe fn from_raw(raw: *mut bindings::dma_buf_attachment) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            // SAFETY: A valid pointer is not null.
            raw: unsafe { NonNull::new_unchecked(raw) },
            _brand: PhantomData,
            _exporter: PhantomData,
        }
    }

    /// Returns the pointer to the C structure.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::dma_buf_attachment {
        self.raw.as_ptr()
    }

    #[inline]
    fn private(&self) -> &AttachmentData<E> {
        // SAFETY: By the type invariant.
        unsafe { &*(*self.as_raw()).priv_.cast::<AttachmentData<E>>() }
    }

    /// Returns the exporter's data of the bound device.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the buffer was revoked.
    #[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
    #[inline]
    pub(super) fn bound(&self) -> Result<&BoundOf<'_, E>> {
        let buf = self.dma_buf();

        // SAFETY: By the type invariant this is a buffer of `E` with its reservation held.
        unsafe { Buffer::<E>::of(buf).locked(buf) }.map(|cx| cx.bound)
    }

    /// Returns the buffer.
    #[inline]
    pub fn dma_buf(&self) -> &DmaBuf {
        // SAFETY: An attachment holds a reference to its buffer.
        unsafe { DmaBuf::from_raw((*self.as_raw()).dmabuf) }
    }

    /// Returns the device of the importer.
    #[inline]
    pub fn device(&self) -> &device::Device {
        // SAFETY: The device of an attachment outlives it.
        unsafe { device::Device::from_raw((*self.as_raw()).dev) }
    }

    /// Returns the data returned by [`Exporter::attach`].
    #[inline]
    pub fn data(&self) -> &E::Attachment {
        &self.private().data
    }

    /// Returns whether the importer is given peer-to-peer memory.
    #[inline]
    pub fn peer2peer(&self) -> bool {
        // SAFETY: By the type invariant the attachment is valid.
        unsafe { (*self.as_raw()).peer2peer }
    }

    /// Returns whether the importer manages pinning itself.
    #[inline]
    pub fn is_dynamic(&self) -> bool {
        // SAFETY: By the type invariant the attachment is valid.
        !unsafe { (*self.as_raw()).importer_ops }.is_null()
    }

    /// Returns whether the mappings of the importer can be revoked.
    #[inline]
    pub fn is_revocable(&self) -> bool {
        // SAFETY: By the type invariant the attachment is valid.
        unsafe { bindings::dma_buf_attach_revocable(self.as_raw()) }
    }

    /// Returns the number of pins of the attachment.
    #[inline]
    pub fn pins(&self) -> usize {
        self.holdings().pins.get()
    }

    /// Returns the number of mappings of the attachment.
    #[inline]
    pub fn maps(&self) -> usize {
        self.with_tables(|tables| tables.len())
    }

    /// Returns the number of mappings of the attachment that lead to the exporting device's own
    /// memory.
    pub(super) fn peer_maps(&self) -> usize {
        self.with_tables(|tables| tables.iter().filter(|table| !table.has_pages()).count())
    }

    #[inline]
    pub(super) fn holdings(&self) -> &Holdings {
        &self.private().holdings
    }

    /// Unmaps the tables for which `keep` returns false.
    pub(super) fn unmap_unless(&self, mut keep: impl FnMut(&mut Table) -> bool) {
        while let Some(table) = self.with_tables(|tables| tables.take(|table| !keep(table))) {
            // SAFETY: It was a table of this attachment and the reservation is held.
            unsafe { table.unmap(self.as_raw()) };
        }
    }

    /// Calls `f` with the importer's tables. `f` must not call this again.
    #[inline]
    pub(super) fn with_tables<R>(&self, f: impl FnOnce(&mut Tables) -> R) -> R {
        // SAFETY: The reservation guards the tables and is held by the type invariant. `f` has no
        // other way to them.
        f(unsafe { &mut *self.holdings().tables.get() })
    }
}

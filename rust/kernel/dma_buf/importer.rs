// SPDX-License-Identifier: GPL-2.0

//! The importer of a buffer.
//!
//! There are four classes of importers, distinguished by their type:
//!
//! | class | type | peer-to-peer memory | moves |
//! |---|---|---|---|
//! | static | [`StaticAttachment`] | never | the core pins while it is mapped |
//! | pinned | [`Attachment`] of an [`Importer`] without [`invalidate`](Importer::invalidate) | if it opts in | no, it pins |
//! | revocable | the same with `invalidate`, pinned | if it opts in | no, but it can be revoked |
//! | dynamic | the same with `invalidate`, not pinned | if it opts in | yes, it maps again |
//!
//! An attachment has one slot for a mapping, guarded by the reservation of the buffer. A mapping
//! can only be accessed while the reservation is held ([`Attachment::with`]) and is unmapped before
//! the buffer is detached. So no reference to a table outlives the lock and no table outlives the
//! attachment. The unbind of the importing device detaches the buffer even if the attachment has
//! other references.
//!
//! If a device can stop using a buffer at any time, its importer implements
//! [`invalidate`](Importer::invalidate): the buffer may move and an unbind of the exporter does not
//! wait for the importer. Exporters of VRAM may refuse other importers. `drivers/misc/edu_peer` has
//! importers of all classes.
//!
//! Before a device uses the table without the reservation, its driver adds a fence to the
//! reservation ([`MappingSlot::resv`]). `invalidate` stops new uses and does not wait for old ones:
//! the table stays mapped until their fences have signalled. A driver holding several reservations
//! uses [`Attachment::locked`].
//!
//! # Devices without PCI
//!
//! Codecs and displays import buffers on all architectures:
//!
//! - [`PEER2PEER`](Importer::PEER2PEER) is false because no route leads from a BAR to the device.
//!   An exporter of VRAM gives it system memory or refuses it with the reason `no-opt-in`.
//! - The probe sets the DMA mask and the segment size before the attach because they limit the
//!   entries of tables: `dma_set_mask_and_coherent()` and `dma_set_max_seg_size()`. These calls are
//!   `unsafe`. Drivers of PCI devices have constants for them.
//!
//! # Locking
//!
//! [`Attachment::with`] takes the mutex of the attachment, then the reservation of the buffer. A
//! task already holding the reservation uses [`Attachment::locked`] without taking a lock.
//! [`Importer::invalidate`] is called with the reservation held and must not take it again.
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

use super::DmaBuf;
use crate::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    devres::Devres,
    dma::DataDirection,
    dma_resv::{
        LockedResv,
        Usage, //
    },
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    scatterlist::SGTable,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    },
    types::NotThreadSafe, //
};
use core::{
    cell::Cell,
    ops::{
        Deref,
        DerefMut, //
    },
    ptr::{
        self,
        NonNull, //
    }, //
};

/// An importer that manages pinning itself.
///
/// # Examples
///
/// A device that follows a buffer when it moves:
///
/// ```no_run
/// use kernel::{
///     device::{
///         Bound,
///         Device, //
///     },
///     dma::DataDirection,
///     dma_buf::{
///         importer::{
///             Attachment,
///             Importer,
///             Invalidated, //
///         },
///         DmaBuf, //
///     },
///     prelude::*, //
/// };
///
/// struct Follower;
///
/// #[vtable]
/// impl Importer for Follower {
///     const PEER2PEER: bool = true;
///
///     fn invalidate(&self, at: &mut Invalidated<'_>) {
///         // Nothing uses the mapping without the reservation, so it can go at once.
///         at.unmap();
///     }
/// }
///
/// fn first_address(dev: &Device<Bound>, fd: i32) -> Result<u64> {
///     let attachment = Attachment::new(DmaBuf::from_fd(fd)?, dev, Follower)?;
///
///     attachment.with(|at| {
///         let table = at.map(DataDirection::Bidirectional)?;
///
///         Ok(table.iter().next().ok_or(EINVAL)?.dma_address())
///     })
/// }
/// ```
#[vtable]
pub trait Importer: Sized + Send + Sync + 'static {
    /// Whether the importer takes addresses of peer-to-peer memory.
    const PEER2PEER: bool;

    /// Invalidates the mapping: the buffer moves or is revoked.
    ///
    /// Called with the reservation held, maybe before [`Attachment::new`] has returned. Once this
    /// callback has returned and the fences that the importer has added to the reservation have
    /// signalled, the device must not use the mapping any more. The importer must unmap it within
    /// bounded time, here or later. A new mapping cannot be created here because it would lead to
    /// the old place. A fence cannot be added here because the exporter needs its reserved slots
    /// for its own fences.
    ///
    /// An importer without it must pin the buffer before mapping it.
    fn invalidate(&self, at: &mut Invalidated<'_>) {
        let _ = at;
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }
}

/// The state of an attachment independent of the class of the importer.
///
/// # Invariants
///
/// - `raw` is null or a valid attachment of `buf`. It is an attachment while `attached` is true and
///   is not detached while another task holds the reservation of `buf`.
/// - The cells are only accessed with the reservation of `buf` held or while there is no other
///   reference to the state.
/// - `sgt` is null or the mapping of the attachment in the direction `dir`.
#[pin_data]
struct State {
    buf: ARef<DmaBuf>,
    raw: Cell<*mut bindings::dma_buf_attachment>,
    sgt: Cell<*mut bindings::sg_table>,
    dir: Cell<DataDirection>,
    /// Whether the mapping was invalidated and is still there.
    invalidated: Cell<bool>,
    pinned: Cell<bool>,
    /// Whether the importer must pin before it maps.
    must_pin: bool,
    /// Whether the importer has operations; for an importer without them the core pins the buffer.
    dynamic: bool,
    #[pin]
    attached: Mutex<bool>,
}

// SAFETY: By the type invariant the cells are guarded by the reservation.
unsafe impl Send for State {}

// SAFETY: As for `Send`.
unsafe impl Sync for State {}

/// Returns the name of the lock class.
///
/// The initializer of a [`State`] is instantiated in the modules using it, but there is only one
/// class. Lockdep needs its name at one address, and the class outlives the modules.
#[inline(never)]
fn lock_name() -> &'static CStr {
    c"dma_buf::Attachment"
}

impl State {
    fn new(buf: ARef<DmaBuf>, must_pin: bool, dynamic: bool) -> impl PinInit<Self> {
        // INVARIANT: The state is not attached yet.
        pin_init!(Self {
            buf,
            raw: Cell::new(ptr::null_mut()),
            sgt: Cell::new(ptr::null_mut()),
            dir: Cell::new(DataDirection::None),
            invalidated: Cell::new(false),
            pinned: Cell::new(false),
            must_pin,
            dynamic,
            attached <- Mutex::new(false, lock_name(), crate::sync::static_lock_class!()),
        })
    }

    /// Calls `f` with the reservation held if still attached.
    fn with<R>(&self, f: impl FnOnce(MappingSlot<'_>) -> Result<R>) -> Result<R> {
        let attached = self.attached.lock();
        if !*attached {
            return Err(ENODEV);
        }

        let guard = self.buf.resv().lock();
        // INVARIANT: The attachment is valid and the reservation was just taken.
        let ret = f(MappingSlot {
            state: self,
            raw: self.raw.get(),
            _not_send: NotThreadSafe,
        });

        drop(guard);
        ret
    }

    /// Calls `f` with the reservation held if still attached and no other task has a lock.
    fn try_with<R>(&self, f: impl FnOnce(MappingSlot<'_>) -> Result<R>) -> Result<R> {
        let attached = self.attached.try_lock().ok_or(EAGAIN)?;
        if !*attached {
            return Err(ENODEV);
        }

        let guard = self.buf.resv().try_lock().ok_or(EAGAIN)?;
        // INVARIANT: The attachment is valid and the reservation was just taken.
        let ret = f(MappingSlot {
            state: self,
            raw: self.raw.get(),
            _not_send: NotThreadSafe,
        });

        drop(guard);
        ret
    }

    /// Unmaps, unpins and detaches if still attached.
    #[inline(never)]
    fn detach(&self) {
        let mut attached = self.attached.lock();
        if !*attached {
            return;
        }

        let guard = self.buf.resv().lock();
        // INVARIANT: The attachment is valid and the reservation was just taken.
        let mut locked = LockedAttachment(MappingSlot {
            state: self,
            raw: self.raw.get(),
            _not_send: NotThreadSafe,
        });
        locked.unmap();
        // Only an importer with operations can have pinned.
        locked.unpin();
        // INVARIANT: A task taking the reservation from here on finds no attachment.
        let raw = self.raw.replace(ptr::null_mut());
        drop(guard);

        // SAFETY: By the type invariant the attachment is valid; it is not mapped any more.
        unsafe { bindings::dma_buf_detach(self.buf.as_raw(), raw) };

        // INVARIANT: The attachment is gone.
        *attached = false;
    }
}

/// The slot for the mapping of an attachment with the reservation of the buffer held.
///
/// # Invariants
///
/// `raw` is the attachment of `state` and the reservation of its buffer is held.
pub struct MappingSlot<'a> {
    state: &'a State,
    raw: *mut bindings::dma_buf_attachment,
    _not_send: NotThreadSafe,
}

impl MappingSlot<'_> {
    /// Returns the buffer.
    #[inline]
    pub fn dma_buf(&self) -> &DmaBuf {
        &self.state.buf
    }

    /// Maps the buffer for `dir` unless it is mapped so already. Returns its table.
    ///
    /// When this returns, ongoing moves of the buffer are complete. An invalidated mapping not
    /// unmapped since is replaced, so the device must not use it any more. Mirrors
    /// `dma_buf_map_attachment()`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `dir` is none or if the importer has no [`invalidate`](Importer::invalidate)
    ///   and has not pinned the buffer.
    /// - `EBUSY` if the buffer is mapped for another direction.
    /// - `ENODEV` if the exporter is gone, and its other errors.
    /// - `ERESTARTSYS` if a signal arrived during the wait for a move.
    pub fn map(&mut self, dir: DataDirection) -> Result<&SGTable> {
        // For an importer without operations the core has waited.
        if self.map_without_wait(dir)? && self.state.dynamic {
            if let Err(e) = self.dma_buf().resv().wait(Usage::Kernel, true) {
                self.unmap();
                return Err(e);
            }
        }

        self.mapping().ok_or(EINVAL)
    }

    /// As [`Self::map`], but moves of the buffer may be ongoing when this returns: work using the
    /// mapping depends on the fences of [`Usage::Kernel`]. Returns whether the buffer was not
    /// mapped before.
    ///
    /// # Errors
    ///
    /// See [`Self::map`].
    // Each first mapping goes through this, and its cost is compared with C.
    #[inline(always)]
    pub(crate) fn map_without_wait(&mut self, dir: DataDirection) -> Result<bool> {
        let state = self.state;

        // The DMA core has a `BUG_ON()` for this direction.
        if dir == DataDirection::None {
            return Err(EINVAL);
        }
        if state.invalidated.get() {
            self.unmap();
        }
        if !state.sgt.get().is_null() {
            return if state.dir.get() == dir {
                Ok(false)
            } else {
                Err(EBUSY)
            };
        }
        if state.must_pin && !state.pinned.get() {
            return Err(EINVAL);
        }

        // SAFETY: The attachment is valid and its reservation is held.
        let sgt = from_err_ptr(unsafe { bindings::dma_buf_map_attachment(self.raw, dir.into()) })?;

        // INVARIANT: The mapping was just created.
        state.sgt.set(sgt);
        state.dir.set(dir);
        Ok(true)
    }

    /// Returns the pointer to the C structure.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::dma_buf_attachment {
        self.raw
    }

    /// Returns the table of the mapping unless it was invalidated.
    #[inline]
    pub fn mapping(&self) -> Option<&SGTable> {
        if self.state.invalidated.get() {
            return None;
        }
        let sgt = NonNull::new(self.state.sgt.get())?;

        // SAFETY: The table is valid until it is unmapped. An unmap needs `&mut self` or the
        // reservation, and the reservation is held. The table belongs to the importer, so other
        // code does not change it.
        Some(unsafe { SGTable::from_raw(sgt.as_ptr()) })
    }

    /// Returns the table of the mapping, even if it was invalidated and is still there.
    #[inline]
    pub(crate) fn kept(&self) -> Option<&SGTable> {
        let sgt = NonNull::new(self.state.sgt.get())?;

        // SAFETY: As in `mapping()`.
        Some(unsafe { SGTable::from_raw(sgt.as_ptr()) })
    }

    /// Returns whether there is an invalidated mapping.
    #[inline]
    pub(crate) fn is_invalidated(&self) -> bool {
        self.state.invalidated.get()
    }

    /// Returns the view of the reservation for adding fences.
    ///
    /// A device using the mapping after the reservation is unlocked needs a fence there. A task
    /// moving the buffer waits for it.
    #[inline]
    pub fn resv(&mut self) -> LockedResv<'_> {
        // SAFETY: By the type invariant the reservation is held. For as long as `self` is borrowed
        // there is no other view of it.
        unsafe { LockedResv::from_raw(self.state.buf.resv().as_raw()) }
    }

    /// Unmaps the buffer. Does nothing if it is not mapped.
    ///
    /// The device must not use the mapping any more. Mirrors `dma_buf_unmap_attachment()`.
    pub fn unmap(&mut self) {
        // INVARIANT: The slot is empty before the mapping is gone.
        let sgt = self.state.sgt.replace(ptr::null_mut());
        self.state.invalidated.set(false);

        if !sgt.is_null() {
            // SAFETY: This is the mapping of the attachment in this direction and the reservation
            // is held.
            unsafe {
                bindings::dma_buf_unmap_attachment(self.raw, sgt, self.state.dir.get().into());
            }
        }
    }
}

/// An attachment of an importer that manages pinning itself, with the reservation held.
///
/// It dereferences to the [`MappingSlot`].
pub struct LockedAttachment<'a>(MappingSlot<'a>);

impl<'a> Deref for LockedAttachment<'a> {
    type Target = MappingSlot<'a>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for LockedAttachment<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl LockedAttachment<'_> {
    /// Pins the buffer so that it stays where it is. Does nothing if it is pinned by this
    /// attachment.
    ///
    /// Mirrors `dma_buf_pin()`.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the exporter is gone, and its other errors.
    pub fn pin(&mut self) -> Result {
        if !self.state.pinned.get() {
            // SAFETY: The attachment has operations and its reservation is held.
            to_result(unsafe { bindings::dma_buf_pin(self.raw) })?;
            self.state.pinned.set(true);
        }

        Ok(())
    }

    /// Allows the buffer to move again. Does nothing if it is not pinned by this attachment.
    ///
    /// A mapping that needs the pin is unmapped first. Mirrors `dma_buf_unpin()`.
    pub fn unpin(&mut self) {
        if self.state.pinned.get() {
            if self.state.must_pin {
                self.unmap();
            }
            self.state.pinned.set(false);

            // SAFETY: The attachment is pinned and its reservation is held.
            unsafe { bindings::dma_buf_unpin(self.raw) };
        }
    }

    /// Returns whether the buffer is pinned by this attachment.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        self.state.pinned.get()
    }
}

/// An attachment with an invalidated mapping and the reservation held: see
/// [`Importer::invalidate`].
///
/// The importer can only unmap and unpin.
pub struct Invalidated<'a>(LockedAttachment<'a>);

impl Invalidated<'_> {
    /// Returns the buffer.
    #[inline]
    pub fn dma_buf(&self) -> &DmaBuf {
        self.0.dma_buf()
    }

    /// Unmaps the buffer. Does nothing if it is not mapped.
    ///
    /// See [`MappingSlot::unmap`].
    pub fn unmap(&mut self) {
        self.0.unmap();
    }

    /// Returns whether the buffer is pinned by this attachment.
    ///
    /// If so, the buffer is not about to move but is revoked.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        self.0.is_pinned()
    }

    /// Unpins the buffer. Does nothing if it is not pinned by this attachment.
    ///
    /// See [`LockedAttachment::unpin`].
    pub fn unpin(&mut self) {
        self.0.unpin();
    }
}

/// The private data of an importer; the core is given a pointer to it.
#[pin_data]
struct Inner<I> {
    importer: I,
    #[pin]
    state: State,
}

/// The value owned by devres: dropping it detaches.
struct Detach<I>(Arc<Inner<I>>);

impl<I> Drop for Detach<I> {
    fn drop(&mut self) {
        self.0.state.detach();
    }
}

/// A device attached to a buffer by an importer that manages pinning itself.
///
/// It is detached when the value is dropped or when the driver of the device is unbound, whichever
/// comes first. Detaching unmaps and unpins.
pub struct Attachment<I: Importer> {
    inner: Arc<Inner<I>>,
    _devres: Devres<Detach<I>>,
}

impl<I: Importer> Attachment<I> {
    const OPS: &'static bindings::dma_buf_attach_ops = &bindings::dma_buf_attach_ops {
        allow_peer2peer: I::PEER2PEER,
        invalidate_mappings: if I::HAS_INVALIDATE {
            Some(Self::invalidate_callback)
        } else {
            None
        },
    };

    /// Attaches `dev` to `buf`.
    ///
    /// No reservation may be held. Mirrors `dma_buf_dynamic_attach()`.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the exporter has no way to serve the device.
    /// - `ENODEV` if the exporter is gone, and its other errors.
    /// - `ENOMEM` if memory runs out.
    pub fn new(buf: ARef<DmaBuf>, dev: &Device<Bound>, importer: I) -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(Inner {
                importer,
                state <- State::new(buf, !I::HAS_INVALIDATE, true),
            }),
            GFP_KERNEL,
        )?;

        attach(&inner, dev, Self::OPS).map(|devres| Self {
            inner,
            _devres: devres,
        })
    }

    /// Returns a handle of the attachment for work that may run after the detach.
    #[inline]
    pub(crate) fn handle(&self) -> AttachmentHandle<I> {
        AttachmentHandle(self.inner.clone())
    }

    /// Returns the importer.
    #[inline]
    pub fn importer(&self) -> &I {
        &self.inner.importer
    }

    /// Returns the buffer.
    #[inline]
    pub fn dma_buf(&self) -> &DmaBuf {
        &self.inner.state.buf
    }

    /// Calls `f` with the reservation of the buffer held.
    ///
    /// The device stays bound and attached for the duration of the call. `f` must not take the
    /// reservation of this or another buffer.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device was unbound.
    /// - The errors of `f`.
    pub fn with<R>(&self, f: impl FnOnce(&mut LockedAttachment<'_>) -> Result<R>) -> Result<R> {
        self.inner.state.with(|slot| f(&mut LockedAttachment(slot)))
    }

    /// As [`Self::with`], but never sleeps to take a lock.
    ///
    /// For code holding a lock that others need to signal a fence.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if another task has the reservation or the mutex of the attachment, and the errors
    /// of [`Self::with`].
    pub fn try_with<R>(&self, f: impl FnOnce(&mut LockedAttachment<'_>) -> Result<R>) -> Result<R> {
        self.inner
            .state
            .try_with(|slot| f(&mut LockedAttachment(slot)))
    }

    /// Returns the view of the attachment for a task already holding the reservation.
    ///
    /// The device stays bound and attached as long as the view exists. Slots for fences reserved
    /// before are lost: the exporter may use them when it moves the buffer.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `resv` is not the reservation of the buffer.
    /// - `ENODEV` if the device was unbound.
    pub fn locked<'a>(&'a self, resv: &'a mut LockedResv<'_>) -> Result<LockedAttachment<'a>> {
        let state = &self.inner.state;

        if !resv.is_for(state.buf.resv()) {
            return Err(EINVAL);
        }
        let _ = resv.slots();

        let raw = state.raw.get();
        if raw.is_null() {
            return Err(ENODEV);
        }

        // INVARIANT: The attachment is valid and stays so while the reservation is held. `resv`
        // proves this as long as it is borrowed.
        Ok(LockedAttachment(MappingSlot {
            state,
            raw,
            _not_send: NotThreadSafe,
        }))
    }

    /// # Safety
    ///
    /// Called by the core with an attachment created with [`Self::OPS`] and with the reservation
    /// held.
    unsafe extern "C" fn invalidate_callback(raw: *mut bindings::dma_buf_attachment) {
        // SAFETY: `attach` passed the pointer. It is valid until the attachment is detached. While
        // `dma_buf_dynamic_attach()` has not returned, only `State::raw` is missing, which the view
        // below does not use.
        let inner = unsafe { &*(*raw).importer_priv.cast::<Inner<I>>() };

        let state = &inner.state;
        state.invalidated.set(!state.sgt.get().is_null());

        // INVARIANT: The core passes the attachment with the reservation held.
        inner
            .importer
            .invalidate(&mut Invalidated(LockedAttachment(MappingSlot {
                state,
                raw,
                _not_send: NotThreadSafe,
            })));
    }
}

/// An [`Attachment`] that may be detached by now. It keeps references to the buffer and the
/// importer but not to the device.
pub(crate) struct AttachmentHandle<I>(Arc<Inner<I>>);

impl<I: Importer> AttachmentHandle<I> {
    /// Returns the importer.
    #[inline]
    pub(crate) fn importer(&self) -> &I {
        &self.0.importer
    }

    /// Returns the buffer.
    #[inline]
    pub(crate) fn dma_buf(&self) -> &DmaBuf {
        &self.0.state.buf
    }

    /// As [`Attachment::with`].
    ///
    /// # Errors
    ///
    /// `ENODEV` if it was detached, and the errors of `f`.
    pub(crate) fn with<R>(
        &self,
        f: impl FnOnce(&mut LockedAttachment<'_>) -> Result<R>,
    ) -> Result<R> {
        self.0.state.with(|slot| f(&mut LockedAttachment(slot)))
    }
}

/// A device attached to a buffer by a static importer: the core pins the buffer while it is mapped.
///
/// It is never given peer-to-peer memory. Otherwise it is like [`Attachment`].
pub struct StaticAttachment {
    inner: Arc<Inner<()>>,
    _devres: Devres<Detach<()>>,
}

impl StaticAttachment {
    /// Attaches `dev` to `buf`.
    ///
    /// No reservation may be held. Mirrors `dma_buf_attach()`.
    ///
    /// # Errors
    ///
    /// The errors of [`Attachment::new`].
    pub fn new(buf: ARef<DmaBuf>, dev: &Device<Bound>) -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(Inner {
                importer: (),
                state <- State::new(buf, false, false),
            }),
            GFP_KERNEL,
        )?;

        attach(&inner, dev, ptr::null()).map(|devres| Self {
            inner,
            _devres: devres,
        })
    }

    /// Returns the buffer.
    #[inline]
    pub fn dma_buf(&self) -> &DmaBuf {
        &self.inner.state.buf
    }

    /// Calls `f` with the reservation of the buffer held.
    ///
    /// # Errors
    ///
    /// The errors of [`Attachment::with`].
    pub fn with<R>(&self, f: impl FnOnce(&mut MappingSlot<'_>) -> Result<R>) -> Result<R> {
        self.inner.state.with(|mut slot| f(&mut slot))
    }

    /// As [`Self::with`], but never sleeps to take a lock.
    ///
    /// # Errors
    ///
    /// The errors of [`Attachment::try_with`].
    pub fn try_with<R>(&self, f: impl FnOnce(&mut MappingSlot<'_>) -> Result<R>) -> Result<R> {
        self.inner.state.try_with(|mut slot| f(&mut slot))
    }
}

/// Attaches `dev` and lets devres own the value that detaches it.
fn attach<I: Send + Sync + 'static>(
    inner: &Arc<Inner<I>>,
    dev: &Device<Bound>,
    ops: *const bindings::dma_buf_attach_ops,
) -> Result<Devres<Detach<I>>> {
    let state = &inner.state;

    // SAFETY: The buffer and the device are valid. `ops` is null or the static table of `I`. Its
    // callback gets the pointer to `inner`, and `inner` lives until the attachment is detached.
    let raw = from_err_ptr(unsafe {
        bindings::dma_buf_dynamic_attach(
            state.buf.as_raw(),
            dev.as_raw(),
            ops,
            Arc::as_ptr(inner).cast_mut().cast(),
        )
    })?;

    // INVARIANT: The device is attached. Only `invalidate` may use the state already, and it does
    // not use `raw`.
    state.raw.set(raw);
    *state.attached.lock() = true;

    // If this fails, `Detach` is dropped and detaches.
    Devres::new(dev, Ok::<_, Error>(Detach(inner.clone())))
}

// SPDX-License-Identifier: GPL-2.0

//! Buffers shared between devices.
//!
//! A [`DmaBuf`] is a buffer that one driver, the exporter, shares with others, the importers; in
//! userspace it is a file descriptor. This module has both sides:
//!
//! - [`exporter`]: the [`Exporter`] trait and its table of C operations,
//! - [`exports`]: the buffers that one bound driver has exported, and their revocation,
//! - [`fence`]: fences, which signal when work on a buffer is done,
//! - [`importer`]: attachments, each with one slot for a mapping,
//! - `mapping`: from ranges of a PCI BAR to the scatter table of an importer,
//! - [`pages`]: from pages of system memory to the scatter table of an importer,
//! - `peer`: how an importer reaches memory behind a BAR, or the reason why it does not,
//! - [`table`]: the scatter tables that importers have,
//! - [`vmap`]: access by the kernel itself.
//!
//! Mappings of BARs need PCI and 64 bits; the rest does not.
//!
//! # Locking
//!
//! The reservation of a buffer ([`DmaBuf::resv`]) is held whenever the buffer is pinned, mapped,
//! unmapped or invalidated. Views that need it ([`exporter::LockedBuffer`],
//! [`importer::LockedAttachment`]) are only handed out while it is held. The order is:
//!
//! 1. the attachment mutex of an importer (sleeps, taken in [`importer::Attachment::with`]), or the
//!    `mmap_lock` of a process that accesses a buffer,
//! 2. the reservation of the buffer,
//! 3. the list of a driver's exports, which is not held while another lock is taken; the locks of
//!    the areas of a file, which a revocation takes.
//!
//! # Examples
//!
//! Two devices without hardware: one exports a buffer that only the kernel can map, the other
//! attaches to it, pins it, and loses it when the exporter is unbound.
//!
//! ```
//! use kernel::{
//!     device::{
//!         Bound,
//!         Device, //
//!     },
//!     dma::DataDirection,
//!     dma_buf::{
//!         exporter::{
//!             exporter_of,
//!             with_exporter,
//!             AttachRequest,
//!             Attached,
//!             KernelMapping,
//!             LockedBuffer,
//!             MapRequest,
//!             VmapRequest, //
//!         },
//!         importer::Invalidated,
//!         pages::{
//!             Pages,
//!             PagesMapping, //
//!         },
//!         table::Mapping,
//!         vmap::VMap,
//!         Attachment,
//!         DmaBuf,
//!         Exporter,
//!         Exports,
//!         Importer,
//!         Ops,
//!         StaticAttachment, //
//!     },
//!     dma_resv::Usage,
//!     faux,
//!     fs::file::flags,
//!     new_mutex,
//!     page::PAGE_SIZE,
//!     prelude::*,
//!     sync::{
//!         Arc,
//!         Mutex, //
//!     },
//!     types::CovariantForLt, //
//! };
//!
//! /// Exports memory to importers that take peer-to-peer memory, and to no others.
//! struct Buffer {
//!     memory: Arc<Pages>,
//!     /// How many accesses by the CPU have begun and not ended.
//!     cpu_users: Arc<Mutex<i32>>,
//! }
//!
//! static OPS: Ops<Buffer> = Ops::new();
//!
//! #[vtable]
//! impl Exporter for Buffer {
//!     type Bound = CovariantForLt!(u32);
//!     type Prepared = ();
//!     /// The number of the attachment.
//!     type Attachment = usize;
//!
//!     const NAME: &'static CStr = c"buffer";
//!     const OPS: &'static Ops<Self> = &OPS;
//!
//!     fn prepare_attach(&self) {}
//!
//!     fn attach(
//!         &self,
//!         cx: &LockedBuffer<'_, Self>,
//!         req: &mut AttachRequest<'_>,
//!         _prepared: (),
//!     ) -> Result<usize> {
//!         if !req.peer2peer() {
//!             return Err(EOPNOTSUPP);
//!         }
//!         Ok(cx.attachments().count())
//!     }
//!
//!     fn pin(&self, _cx: &LockedBuffer<'_, Self>, _at: &Attached<'_, Self>) -> Result {
//!         Ok(())
//!     }
//!
//!     fn unpin(&self, _buf: &DmaBuf, _at: &Attached<'_, Self>) {}
//!
//!     fn map<'r>(
//!         &self,
//!         _cx: &LockedBuffer<'_, Self>,
//!         _at: &MapRequest<'r, Self>,
//!         _dir: DataDirection,
//!     ) -> Result<Mapping<'r>> {
//!         Err(ENXIO)
//!     }
//!
//!     fn begin_cpu_access(&self, _cx: &LockedBuffer<'_, Self>, _dir: DataDirection) -> Result {
//!         *self.cpu_users.lock() += 1;
//!         Ok(())
//!     }
//!
//!     fn end_cpu_access(&self, _cx: &LockedBuffer<'_, Self>, _dir: DataDirection) -> Result {
//!         *self.cpu_users.lock() -= 1;
//!         Ok(())
//!     }
//!
//!     fn vmap(
//!         &self,
//!         _cx: &LockedBuffer<'_, Self>,
//!         _req: &VmapRequest<Self>,
//!     ) -> Result<KBox<dyn KernelMapping>> {
//!         Ok(KBox::new(PagesMapping::new(self.memory.clone())?, GFP_KERNEL)?)
//!     }
//! }
//!
//! struct Client;
//!
//! #[vtable]
//! impl Importer for Client {
//!     const PEER2PEER: bool = true;
//!
//!     fn invalidate(&self, at: &mut Invalidated<'_>) {
//!         at.unmap();
//!         at.unpin();
//!     }
//! }
//!
//! let exporter_dev = faux::Registration::new(c"dma_buf_exporter", None)?;
//! let importer_dev = faux::Registration::new(c"dma_buf_importer", None)?;
//! let dev: &Device<Bound> = importer_dev.as_ref().as_ref();
//!
//! let exports = Exports::<Buffer>::new(exporter_dev.as_ref(), |_dev| Ok(42))?;
//! assert_eq!(*exports.bound(), 42);
//!
//! let cpu_users = Arc::pin_init(new_mutex!(0), GFP_KERNEL)?;
//! let new = || -> Result<Buffer> {
//!     Ok(Buffer {
//!         memory: Pages::new(PAGE_SIZE, GFP_KERNEL)?,
//!         cpu_users: cpu_users.clone(),
//!     })
//! };
//! assert_eq!(exports.export(new()?, 1, 0).err(), Some(EINVAL));
//!
//! let buf = exports.export(new()?, PAGE_SIZE, 0)?;
//! assert_eq!(buf.size(), PAGE_SIZE);
//! assert!(exporter_of::<Buffer>(&buf).is_some());
//!
//! // To userspace and back it is the same buffer.
//! let fd = DmaBuf::into_fd(buf.clone(), flags::O_CLOEXEC)?;
//! assert!(core::ptr::eq(&*DmaBuf::from_fd(fd)?, &*buf));
//! # // SAFETY: The file descriptor is not used otherwise.
//! # assert_eq!(unsafe { kernel::bindings::close_fd(fd as u32) }, 0);
//!
//! // A static importer does not take peer-to-peer memory.
//! assert_eq!(StaticAttachment::new(buf.clone(), dev).err(), Some(EOPNOTSUPP));
//!
//! let first = Attachment::new(buf.clone(), dev, Client)?;
//! let second = Attachment::new(buf.clone(), dev, Client)?;
//!
//! first.with(|at| {
//!     at.pin()?;
//!     assert!(at.is_pinned());
//!     assert_eq!(at.map(DataDirection::Bidirectional).err(), Some(ENXIO));
//!     assert!(at.mapping().is_none());
//!     Ok(())
//! })?;
//!
//! // A task that has the reservation already gets the same view, of its own buffer.
//! {
//!     let mut guard = buf.resv().lock();
//!     let mut resv = guard.locked();
//!     assert!(first.locked(&mut resv)?.is_pinned());
//!     assert!(!second.locked(&mut resv)?.is_pinned());
//! }
//! let other = exports.export(new()?, PAGE_SIZE, 0)?;
//! let mut guard = other.resv().lock();
//! assert_eq!(first.locked(&mut guard.locked()).err(), Some(EINVAL));
//! drop(guard);
//!
//! // The exporter sees the attachments, oldest first, with the reservation held.
//! with_exporter(&buf, |_: &Buffer, cx| {
//!     assert_eq!(*cx.bound(), 42);
//!     assert!(cx.attachments().map(|at| *at.data()).eq([0, 1]));
//!     assert!(cx.attachments().map(|at| at.pins()).eq([1, 0]));
//!     assert!(cx.attachments().all(|at| at.is_revocable() && at.peer2peer()));
//!     Ok(())
//! })?;
//!
//! {
//!     let guard = buf.resv().lock_interruptible()?;
//!     assert!(guard.is_for(buf.resv()));
//!     assert!(buf.resv().test_signaled(Usage::Bookkeep));
//!     assert!(buf.resv().try_lock().is_none());
//! }
//! assert!(buf.resv().try_lock().is_some());
//!
//! // The kernel writes and reads, inside of the buffer only.
//! buf.begin_cpu_access(DataDirection::Bidirectional)?;
//! assert_eq!(*cpu_users.lock(), 1);
//! {
//!     let map = VMap::new(buf.clone())?;
//!     let mut bytes = [0; 4];
//!
//!     assert!(!map.is_iomem());
//!     map.write(PAGE_SIZE - 4, b"last")?;
//!     map.read(PAGE_SIZE - 4, &mut bytes)?;
//!     assert_eq!(&bytes, b"last");
//!     assert_eq!(map.write(PAGE_SIZE - 3, b"last"), Err(EINVAL));
//!     assert_eq!(map.read(usize::MAX, &mut bytes), Err(EINVAL));
//! }
//! buf.end_cpu_access(DataDirection::Bidirectional)?;
//! assert_eq!(*cpu_users.lock(), 0);
//! // A mapping that is shorter than the buffer is refused.
//! let long = exports.export(new()?, 2 * PAGE_SIZE, 0)?;
//! assert_eq!(VMap::new(long).err(), Some(EINVAL));
//!
//! // The exporter is unbound: mappings are invalidated, and no new ones can be made.
//! drop(exports);
//! first.with(|at| {
//!     assert!(!at.is_pinned());
//!     assert_eq!(at.pin(), Err(ENODEV));
//!     Ok(())
//! })?;
//! assert_eq!(Attachment::new(buf.clone(), dev, Client).err(), Some(ENODEV));
//!
//! // The device of the importer is unbound as well.
//! drop(importer_dev);
//! assert_eq!(second.with(|_| Ok(())), Err(ENODEV));
//! let mut guard = buf.resv().lock();
//! assert_eq!(second.locked(&mut guard.locked()).err(), Some(ENODEV));
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

pub mod exporter;
pub mod exports;
pub mod fence;
pub mod importer;
#[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
pub mod mapping;
pub mod pages;
#[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
pub mod peer;
pub mod table;
mod user;
pub mod vmap;

pub use self::{
    exporter::{
        Exporter,
        Ops, //
    },
    exports::Exports,
    importer::{
        Attachment,
        Importer,
        StaticAttachment, //
    }, //
};

use crate::{
    bindings,
    dma::DataDirection,
    dma_resv::DmaResv,
    error::{
        from_err_ptr,
        to_result, //
    },
    fs::file::FileDescriptorReservation,
    prelude::*,
    sync::aref::{
        ARef,
        AlwaysRefCounted, //
    },
    types::Opaque, //
};
use core::ptr::NonNull;

/// The size of the name of a buffer in bytes, with the NUL at its end: `DMA_BUF_NAME_LEN`.
pub const NAME_LEN: usize = 32;

/// A buffer shared between devices, `struct dma_buf`.
///
/// # Invariants
///
/// `self.0` is a valid `struct dma_buf`. Every [`ARef`] to it owns a reference to its file.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::DmaBuf,
///     prelude::*, //
/// };
///
/// /// The size of the buffer behind a file descriptor that userspace passed in.
/// fn size_of(fd: i32) -> Result<usize> {
///     Ok(DmaBuf::from_fd(fd)?.size())
/// }
///
/// assert_eq!(size_of(-1), Err(EBADF));
/// ```
#[repr(transparent)]
pub struct DmaBuf(Opaque<bindings::dma_buf>);

// SAFETY: A dma-buf may be used and released from any task.
unsafe impl Send for DmaBuf {}

// SAFETY: All methods that take `&self` are synchronized by the C side.
unsafe impl Sync for DmaBuf {}

// SAFETY: A dma-buf is reference counted through its file.
unsafe impl AlwaysRefCounted for DmaBuf {
    fn inc_ref(&self) {
        // SAFETY: The existence of a shared reference means that the reference count is not zero.
        unsafe { bindings::get_dma_buf(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller owns the reference that is dropped here.
        unsafe { bindings::dma_buf_put(obj.cast().as_ptr()) };
    }
}

impl DmaBuf {
    /// Turns a pointer to a `struct dma_buf` into a reference.
    ///
    /// # Safety
    ///
    /// `ptr` must point to a `struct dma_buf` that stays valid for `'a`. The reference must not be
    /// turned into an [`ARef`] if the file of the dma-buf is being released.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(ptr: *mut bindings::dma_buf) -> &'a Self {
        // SAFETY: `DmaBuf` is a transparent wrapper, and the caller promises validity.
        unsafe { &*ptr.cast() }
    }

    /// Returns the pointer to the C structure.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::dma_buf {
        self.0.get()
    }

    /// Returns the buffer behind a file descriptor of the current task.
    ///
    /// Mirrors `dma_buf_get()`.
    ///
    /// # Errors
    ///
    /// - `EBADF` if `fd` is not open.
    /// - `EINVAL` if it is not a dma-buf.
    pub fn from_fd(fd: i32) -> Result<ARef<Self>> {
        // SAFETY: The function has no requirements; it returns a valid pointer or an error.
        let ptr = from_err_ptr(unsafe { bindings::dma_buf_get(fd) })?;

        // SAFETY: `ptr` is valid and comes with a reference, which the `ARef` takes over.
        Ok(unsafe { ARef::from_raw(NonNull::new_unchecked(ptr.cast())) })
    }

    /// Installs a file descriptor for the buffer in the current task, which then owns `this`.
    ///
    /// `flags` are `O_CLOEXEC` or 0. Mirrors `dma_buf_fd()`.
    ///
    /// # Errors
    ///
    /// `EMFILE` if the task has too many open files.
    ///
    /// See the [module](self) for an example.
    pub fn into_fd(this: ARef<Self>, flags: u32) -> Result<i32> {
        let fd = FileDescriptorReservation::get_unused_fd_flags(flags)?;

        Ok(Self::install(this, fd))
    }

    /// Installs a file descriptor that was reserved in the current task, which then owns `this`.
    ///
    /// For an export whose other steps cannot be undone. Mirrors `dma_buf_fd_install()`.
    pub fn install(this: ARef<Self>, fd: FileDescriptorReservation) -> i32 {
        // CAST: File descriptors fit an `int`.
        let number = fd.reserved_fd() as i32;

        // SAFETY: The file descriptor is reserved in the current task, as its type is not `Send`,
        // and takes the reference to the valid dma-buf. Neither is used any more.
        unsafe { bindings::dma_buf_fd_install(this.as_raw(), number) };
        let _ = ARef::into_raw(this);
        core::mem::forget(fd);
        number
    }

    /// Returns the size of the buffer in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        // SAFETY: By the type invariant the dma-buf is valid; its size never changes.
        unsafe { (*self.as_raw()).size }
    }

    /// Returns the name that userspace has given the buffer by `DMA_BUF_SET_NAME`, padded with NUL
    /// bytes, of which there is at least one.
    ///
    /// Takes the spinlock of the name.
    pub fn name(&self) -> [u8; NAME_LEN] {
        let mut buf = [0; NAME_LEN];
        let raw = self.as_raw();

        // SAFETY: By the type invariant the dma-buf is valid. The lock guards its name, which is
        // null or a string.
        unsafe {
            bindings::spin_lock(&raw mut (*raw).name_lock);
            if !(*raw).name.is_null() {
                let name = CStr::from_char_ptr((*raw).name).to_bytes();
                let len = name.len().min(NAME_LEN - 1);

                buf[..len].copy_from_slice(&name[..len]);
            }
            bindings::spin_unlock(&raw mut (*raw).name_lock);
        }
        buf
    }

    /// Returns how many references there are: file descriptors, mappings of userspace, importers,
    /// and code that works with the buffer. They may change meanwhile.
    ///
    /// # Safety
    ///
    /// There must be a reference to the file of the buffer, such as that of an importer that is
    /// attached: the file may be gone while an `O_PATH` descriptor keeps the dentry, and so the
    /// buffer.
    #[cfg_attr(not(CONFIG_RUST_DRM_PEER), expect(dead_code))]
    pub(crate) unsafe fn references(&self) -> usize {
        // SAFETY: By the type invariant the dma-buf is valid, and by the safety requirements its
        // file.
        unsafe { bindings::file_count((*self.as_raw()).file) as usize }
    }

    /// Returns the reservation of the buffer.
    ///
    /// A GEM object and its dma-buf share one.
    #[inline]
    pub fn resv(&self) -> &DmaResv {
        // SAFETY: By the type invariant the dma-buf is valid; its reservation never changes and
        // lives at least as long.
        unsafe { DmaResv::from_raw((*self.as_raw()).resv) }
    }

    /// Prepares the buffer for access by the CPU and waits for the work that `dir` conflicts with.
    ///
    /// The reservation must not be held. Mirrors `dma_buf_begin_cpu_access()`.
    ///
    /// # Errors
    ///
    /// What the exporter returns, or `ERESTARTSYS` if a signal ends the wait.
    pub fn begin_cpu_access(&self, dir: DataDirection) -> Result {
        // SAFETY: By the type invariant the dma-buf is valid.
        to_result(unsafe { bindings::dma_buf_begin_cpu_access(self.as_raw(), dir.into()) })
    }

    /// Ends what [`Self::begin_cpu_access`] began.
    ///
    /// The reservation must not be held. Mirrors `dma_buf_end_cpu_access()`.
    ///
    /// # Errors
    ///
    /// What the exporter returns.
    pub fn end_cpu_access(&self, dir: DataDirection) -> Result {
        // SAFETY: By the type invariant the dma-buf is valid.
        to_result(unsafe { bindings::dma_buf_end_cpu_access(self.as_raw(), dir.into()) })
    }
}

/// Turns the direction that a C caller passed into the Rust type.
pub(crate) fn direction(raw: bindings::dma_data_direction) -> DataDirection {
    match raw {
        bindings::dma_data_direction::DMA_TO_DEVICE => DataDirection::ToDevice,
        bindings::dma_data_direction::DMA_FROM_DEVICE => DataDirection::FromDevice,
        bindings::dma_data_direction::DMA_BIDIRECTIONAL => DataDirection::Bidirectional,
        _ => DataDirection::None,
    }
}

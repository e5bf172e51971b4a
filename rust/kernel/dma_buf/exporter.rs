// SPDX-License-Identifier: GPL-2.0

//! The exporter's side of a buffer, implemented by a driver.
//!
//! A driver implements [`Exporter`] and puts the table of its C operations into a `static`
//! ([`Ops::new`]). The callbacks of `struct dma_buf_ops` are in `ops` and `cpu` only. The rest is
//! in
//!
//! - [`exports`]: the buffers exported by one bound driver and their revocation,
//! - `mapping`: from ranges of a PCI BAR to the scatter table of an importer,
//! - [`pages`]: from pages of system memory to the scatter table of an importer,
//! - [`table`]: the scatter tables of importers.
//!
//! # Contract with `drivers/dma-buf/dma-buf.c`
//!
//! | callback | reservation | device |
//! |---|---|---|
//! | [`attach`](Exporter::attach), [`begin_cpu_access`](Exporter::begin_cpu_access), [`end_cpu_access`](Exporter::end_cpu_access) | taken here | bound |
//! | [`pages`](Exporter::pages) | held, taken here for a process | bound |
//! | [`prepare_attach`](Exporter::prepare_attach) | not held | maybe gone |
//! | [`detach`](Exporter::detach) | not held, taken to undo what is left | maybe gone |
//! | [`pin`](Exporter::pin), [`map`](Exporter::map), [`vmap`](Exporter::vmap) | held | bound |
//! | [`unpin`](Exporter::unpin), [`unmap`](Exporter::unmap), the drop of a [`KernelMapping`] | held | maybe gone |
//! | [`mmap`](Exporter::mmap), [`release`](Exporter::release) | not held | maybe gone |
//!
//! Where the device is bound, the callback gets a [`LockedBuffer`] with access to
//! [`Exporter::Bound`]. Once the buffer is revoked, these callbacks are no longer called: the
//! importer gets `ENODEV`.
//!
//! # Locking
//!
//! The reservation of a buffer ([`DmaBuf::resv`]) is held whenever the buffer is pinned, mapped,
//! unmapped or invalidated. Views needing it ([`LockedBuffer`], [`LockedAttachment`]) are only
//! handed out while it is held. The order is:
//!
//! 1. the attachment mutex of an importer (sleeps; taken in [`Attachment::with`]) or the
//!    `mmap_lock` of a process accessing a buffer,
//! 2. the reservation of the buffer,
//! 3. the mutex of a driver's exports (no other lock is taken under it), and the locks of a file's
//!    mappings, which a revocation takes.
//!
//! # Examples
//!
//! Two devices without hardware. One exports a buffer mappable by the kernel only. The other
//! attaches to it and pins it, and loses it when the exporter is unbound.
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
//!             pages::{
//!                 Pages,
//!                 PagesMapping, //
//!             },
//!             table::Mapping,
//!             with_exporter,
//!             AttachRequest,
//!             Attached,
//!             KernelMapping,
//!             LockedBuffer,
//!             MapRequest,
//!             VmapRequest, //
//!         },
//!         importer::Invalidated,
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
//! [`Attachment::with`]: super::Attachment::with
//! [`LockedAttachment`]: super::importer::LockedAttachment
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

mod attachment;
mod buffer;
mod cpu;
pub mod exports;
#[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
pub mod mapping;
mod ops;
pub mod pages;
pub mod table;
mod user;

pub(crate) use self::buffer::{
    assume_exporter_of,
    is_mapped,
    is_pinned,
    retire,
    with_exporter_of,
    with_locked_exporter, //
};
pub use self::{
    attachment::{
        AttachRequest,
        Attached,
        MapRequest, //
    },
    buffer::{
        exporter_of,
        with_exporter,
        LockedBuffer, //
    },
    exports::Exports,
    ops::Ops, //
};

use self::{
    pages::Pages,
    table::Mapping, //
};
use super::DmaBuf;
use crate::{
    dma::DataDirection,
    iosys_map::IosysMap,
    mm::virt::VmaNew,
    prelude::*,
    sync::Arc,
    types::{
        CovariantForLt,
        ForLt, //
    }, //
};
use core::marker::PhantomData;

/// The proof of a vmap request by the dma-buf core: the core drops the mapping with the reservation
/// held.
pub struct VmapRequest<E>(PhantomData<fn(E)>);

/// A whole buffer mapped into the kernel until the value is dropped, as returned by
/// [`Exporter::vmap`].
///
/// [`PagesMapping`](pages::PagesMapping) maps system memory.
///
/// # Safety
///
/// Until the value is dropped, [`Self::size`] bytes of kernel address space from the non-null
/// [`Self::map`] on are memory of the kind that `map` says. They may be read and written at any
/// time. There is no reference to them. Both methods always return the same.
pub unsafe trait KernelMapping: Send {
    /// Returns where the memory is mapped.
    fn map(&self) -> IosysMap;

    /// Returns how much memory is mapped, in bytes.
    fn size(&self) -> usize;
}

/// The data of an exporter for the bound device, borrowed from the device for `'a`.
pub type BoundOf<'a, E> = <<E as Exporter>::Bound as ForLt>::Of<'a>;

/// A driver that exports buffers.
///
/// There is one value for each buffer. It is dropped when the last reference to the buffer is put,
/// maybe long after the unbind of the driver. Data existing only while the driver is bound belongs
/// into [`Self::Bound`].
///
/// # Examples
///
/// Pages of system memory for importers and the CPU:
///
/// ```
/// use kernel::{
///     dma::DataDirection,
///     dma_buf::{
///         exporter::{
///             pages::Pages,
///             table::Mapping,
///             AttachRequest,
///             Exporter,
///             LockedBuffer,
///             MapRequest,
///             Ops, //
///         },
///         vmap::VMap,
///         Exports, //
///     },
///     faux,
///     page::PAGE_SIZE,
///     prelude::*,
///     sync::Arc,
///     types::CovariantForLt, //
/// };
///
/// /// The content of the buffer.
/// struct Store(Arc<Pages>);
///
/// static OPS: Ops<Store> = Ops::new();
///
/// #[vtable]
/// impl Exporter for Store {
///     type Bound = CovariantForLt!(());
///     type Prepared = ();
///     type Attachment = ();
///
///     const NAME: &'static CStr = c"store";
///     const OPS: &'static Ops<Self> = &OPS;
///
///     fn prepare_attach(&self) {}
///
///     fn attach(
///         &self,
///         _cx: &LockedBuffer<'_, Self>,
///         _req: &mut AttachRequest<'_>,
///         _prepared: (),
///     ) -> Result {
///         Ok(())
///     }
///
///     fn map<'r>(
///         &self,
///         _cx: &LockedBuffer<'_, Self>,
///         at: &MapRequest<'r, Self>,
///         dir: DataDirection,
///     ) -> Result<Mapping<'r>> {
///         at.map_pages(&self.0, dir)
///     }
///
///     fn begin_cpu_access(&self, cx: &LockedBuffer<'_, Self>, _dir: DataDirection) -> Result {
///         cx.attachments().for_each(|at| at.sync_for_cpu());
///         Ok(())
///     }
///
///     fn end_cpu_access(&self, cx: &LockedBuffer<'_, Self>, dir: DataDirection) -> Result {
///         cx.attachments().for_each(|at| at.sync_for_device(dir));
///         Ok(())
///     }
///
///     fn pages(&self, _cx: &LockedBuffer<'_, Self>) -> Result<Arc<Pages>> {
///         Ok(self.0.clone())
///     }
/// }
///
/// let dev = faux::Registration::new(c"store", None)?;
/// let exports = Exports::<Store>::new(dev.as_ref(), |_dev| Ok(()))?;
/// let pages = Pages::new(2 * PAGE_SIZE, GFP_KERNEL)?;
/// let buf = exports.export(Store(pages), 2 * PAGE_SIZE, 0)?;
///
/// let map = VMap::new(buf.clone())?;
/// let mut bytes = [1; 4];
/// assert!(!map.is_iomem());
/// map.read(PAGE_SIZE - 2, &mut bytes)?;
/// assert_eq!(bytes, [0; 4]);
/// map.write(PAGE_SIZE - 2, b"both")?;
/// map.read(PAGE_SIZE - 2, &mut bytes)?;
/// assert_eq!(&bytes, b"both");
/// drop(map);
///
/// drop(exports);
/// assert_eq!(VMap::new(buf).err(), Some(ENODEV));
/// # Ok::<(), Error>(())
/// ```
///
/// `MapRequest::map_mmio` has an example of memory in a BAR.
#[vtable]
pub trait Exporter: Sized + Send + Sync + 'static {
    /// The data of the bound device for the callbacks, such as the provider of a BAR, a BAR or a
    /// lock.
    ///
    /// The driver creates it when it binds. No callback can reach it once the buffer is revoked.
    /// The type is covariant so that a callback cannot leave one of its own references in it.
    type Bound: CovariantForLt + 'static;

    /// The resources for [`attach`](Self::attach) that cannot be acquired under the reservation,
    /// such as a runtime PM guard.
    type Prepared;

    /// The exporter's data of each attachment.
    type Attachment: Send + Sync + 'static;

    /// The name of the exporter as shown by `/sys/kernel/debug/dma_buf/bufinfo`.
    const NAME: &'static CStr;

    /// The table of operations of this exporter.
    ///
    /// It refers to a `static` because the address of the table identifies the exporter of a
    /// dma-buf. A table created by the compiler for a constant may have several addresses. For a
    /// buffer with another table [`exporter_of`] returns nothing and [`with_exporter`] fails.
    const OPS: &'static Ops<Self>;

    /// Prepares the attach of an importer. The reservation is not held, and the device may be gone.
    fn prepare_attach(&self) -> Self::Prepared;

    /// Accepts or refuses an importer. `prepared` was returned by
    /// [`prepare_attach`](Self::prepare_attach).
    ///
    /// Called with the reservation held, before other code can see the attachment. The exporter
    /// decides here whether and how the importer can reach the buffer.
    /// [`LockedBuffer::attachments`] includes an accepted importer from then on.
    ///
    /// # Errors
    ///
    /// An error refuses the importer; `EOPNOTSUPP` means it has no way to reach the buffer.
    fn attach(
        &self,
        cx: &LockedBuffer<'_, Self>,
        req: &mut AttachRequest<'_>,
        prepared: Self::Prepared,
    ) -> Result<Self::Attachment>;

    /// Releases the data of an attachment after the importer has detached. The reservation is not
    /// held.
    fn detach(&self, buf: &DmaBuf, attachment: Self::Attachment) {
        let _ = (buf, attachment);
    }

    /// Keeps the buffer where it is until [`unpin`](Self::unpin).
    ///
    /// Calls nest for one attachment and for several. An exporter has both callbacks or neither.
    ///
    /// # Errors
    ///
    /// An interrupted pin is an error. `EBUSY` must not be returned: the core warns about it.
    fn pin(&self, cx: &LockedBuffer<'_, Self>, at: &Attached<'_, Self>) -> Result {
        let _ = (cx, at);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Allows the buffer to move again.
    fn unpin(&self, buf: &DmaBuf, at: &Attached<'_, Self>) {
        let _ = (buf, at);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Creates a scatter table of the buffer for the importer. May sleep.
    ///
    /// Each call creates one table. A mapping created but not returned is unmapped.
    ///
    /// # Errors
    ///
    /// Returned to the importer.
    fn map<'r>(
        &self,
        cx: &LockedBuffer<'_, Self>,
        at: &MapRequest<'r, Self>,
        dir: DataDirection,
    ) -> Result<Mapping<'r>>;

    /// Called after an importer's mapping is gone.
    fn unmap(&self, at: &Attached<'_, Self>) {
        let _ = at;
    }

    /// Prepares the buffer for CPU access.
    ///
    /// Called with the reservation held. The fences of conflicting device work have signalled:
    /// writes, and reads too if the CPU writes.
    ///
    /// # Errors
    ///
    /// Returned to the caller.
    fn begin_cpu_access(&self, cx: &LockedBuffer<'_, Self>, dir: DataDirection) -> Result {
        let _ = (cx, dir);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Ends a CPU access to the buffer. Called with the reservation held.
    ///
    /// # Errors
    ///
    /// Returned to the caller.
    fn end_cpu_access(&self, cx: &LockedBuffer<'_, Self>, dir: DataDirection) -> Result {
        let _ = (cx, dir);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns the pages of a buffer in system memory for CPU access.
    ///
    /// An exporter with this callback implements neither [`mmap`](Self::mmap) nor
    /// [`vmap`](Self::vmap). The buffer is mapped into the kernel as a whole and into processes
    /// page by page on access. These mappings keep the pages. The mappings of processes are removed
    /// when the buffer is revoked: a later access raises `SIGBUS`.
    ///
    /// Called with the reservation held. The pages add up to the size of the buffer and are the
    /// same each time.
    ///
    /// # Errors
    ///
    /// Returned to the caller; a process accessing the buffer gets `SIGBUS`.
    fn pages(&self, cx: &LockedBuffer<'_, Self>) -> Result<Arc<Pages>> {
        let _ = cx;
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Maps the buffer into a process. The reservation is not held; the range is inside the buffer.
    ///
    /// The mapping of a process outlives a revocation unless the exporter unmaps it. DRM does so
    /// with GEM objects when their device is unplugged. Mappings of [`pages`](Self::pages) are
    /// unmapped.
    ///
    /// # Errors
    ///
    /// Returned to the caller.
    fn mmap(&self, buf: &DmaBuf, vma: &VmaNew) -> Result {
        let _ = (buf, vma);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Maps the whole buffer into the kernel. Called for the first user only; the mapping is
    /// dropped after the last one, with the reservation held.
    ///
    /// An unbind waits until I/O memory is no longer mapped. Other memory stays valid until it is
    /// unmapped, even after an unbind. Later users share the first mapping, even after a
    /// revocation, because the core does not call the exporter for them.
    ///
    /// # Errors
    ///
    /// Returned to the caller. It gets `EINVAL` if the mapping differs in size from the buffer.
    fn vmap(
        &self,
        cx: &LockedBuffer<'_, Self>,
        req: &VmapRequest<Self>,
    ) -> Result<KBox<dyn KernelMapping>> {
        let _ = (cx, req);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Called when the buffer is revoked, before the mappings of importers are invalidated.
    ///
    /// The reservation is held. Callbacks with a [`LockedBuffer`] are not called afterwards. No
    /// [`DmaBuf`] is passed: the file of the buffer may be gone already, so no reference to it
    /// could be taken.
    fn revoke(&self) {}

    /// Called after the last reference to the buffer was put. The value is dropped right after.
    fn release(&self) {}
}

// SPDX-License-Identifier: GPL-2.0

//! The exporter of a buffer.
//!
//! A driver implements [`Exporter`] and puts the table of its C operations into a `static`
//! ([`Ops::new`]). This file is the only place where `struct dma_buf_ops` calls come in.
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
//! | [`unpin`](Exporter::unpin), [`unmap`](Exporter::unmap), [`vunmap`](Exporter::vunmap) | held | maybe gone |
//! | [`mmap`](Exporter::mmap), [`release`](Exporter::release) | not held | maybe gone |
//!
//! Where the device is bound, the callback gets a [`Locked`] view, which leads to
//! [`Exporter::Bound`]. After the buffer was revoked these callbacks are not made any more, and the
//! importer gets `ENODEV`.

#[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
use super::mapping::RangeTable;
use super::{
    direction,
    exports::{
        Links,
        Registry, //
    },
    importer::MappingSlot,
    pages::{
        KernelMapping,
        Pages, //
    },
    table::{
        Mapping,
        Table,
        Tables, //
    },
    user::{
        insert_page,
        UserMappings, //
    },
    DmaBuf, //
};
#[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
use crate::pci::p2pdma::{
    MapType,
    Provider, //
};
use crate::{
    bindings,
    device,
    dma::DataDirection,
    dma_resv::Usage,
    error::from_result,
    iosys_map::IosysMap,
    mm::virt::VmaNew,
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
        ForLt,
        NotThreadSafe, //
    }, //
};
use core::{
    any::TypeId,
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

/// What an exporter keeps for the bound device, borrowed from that for `'a`.
pub type BoundOf<'a, E> = <<E as Exporter>::Bound as ForLt>::Of<'a>;

/// A driver's side of a buffer that it lends to others.
///
/// The value is made for each buffer and dropped when the last user is gone, which may be long
/// after the driver was unbound. What only exists while the driver is bound belongs into
/// [`Self::Bound`].
///
/// # Examples
///
/// Pages of system memory, which importers and the CPU may access:
///
/// ```
/// use kernel::{
///     dma::DataDirection,
///     dma_buf::{
///         exporter::{
///             AttachRequest,
///             Exporter,
///             Locked,
///             MapRequest,
///             Ops, //
///         },
///         pages::Pages,
///         table::Mapping,
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
/// /// What is in the buffer.
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
///         _cx: &Locked<'_, Self>,
///         _req: &mut AttachRequest<'_>,
///         _prepared: (),
///     ) -> Result {
///         Ok(())
///     }
///
///     fn map<'r>(
///         &self,
///         _cx: &Locked<'_, Self>,
///         at: &MapRequest<'r, Self>,
///         dir: DataDirection,
///     ) -> Result<Mapping<'r>> {
///         at.map_pages(&self.0, dir)
///     }
///
///     fn begin_cpu_access(&self, cx: &Locked<'_, Self>, _dir: DataDirection) -> Result {
///         cx.attachments().for_each(|at| at.sync_for_cpu());
///         Ok(())
///     }
///
///     fn end_cpu_access(&self, cx: &Locked<'_, Self>, dir: DataDirection) -> Result {
///         cx.attachments().for_each(|at| at.sync_for_device(dir));
///         Ok(())
///     }
///
///     fn pages(&self, _cx: &Locked<'_, Self>) -> Result<Arc<Pages>> {
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
    /// What the callbacks need of the bound device: the provider of a BAR, a BAR, a lock.
    ///
    /// It is made when the driver binds and out of reach once the buffer is revoked. It is covariant:
    /// a type that one could put a reference into would keep it beyond the callback.
    type Bound: CovariantForLt + 'static;

    /// What [`attach`](Self::attach) needs that is not to be had with the reservation held, such as a
    /// device that is awake.
    type Prepared;

    /// What the exporter keeps for each attachment.
    type Attachment: Send + Sync + 'static;

    /// The name of the exporter, as `/sys/kernel/debug/dma_buf/bufinfo` shows it.
    const NAME: &'static CStr;

    /// The table of operations of this exporter.
    ///
    /// It refers to a `static`: the address of the table tells whose buffer a dma-buf is, and a
    /// value that the compiler makes for a constant may have several. For a buffer with another
    /// address [`exporter_of`] returns nothing, and [`with_exporter`] fails.
    const OPS: &'static Ops<Self>;

    /// An importer is about to attach. The reservation is not held, and the device may be gone.
    fn prepare_attach(&self) -> Self::Prepared;

    /// An importer wants to use the buffer. `prepared` is what
    /// [`prepare_attach`](Self::prepare_attach) returned.
    ///
    /// Called with the reservation held, before the attachment can be seen by others. Here the
    /// exporter decides whether and how the importer can reach the buffer. If it accepts the
    /// importer, [`Locked::attachments`] has it from then on.
    ///
    /// # Errors
    ///
    /// An error refuses the importer; `EOPNOTSUPP` says that it cannot reach the buffer.
    fn attach(
        &self,
        cx: &Locked<'_, Self>,
        req: &mut AttachRequest<'_>,
        prepared: Self::Prepared,
    ) -> Result<Self::Attachment>;

    /// An importer is done with the buffer. The reservation is not held.
    fn detach(&self, buf: &DmaBuf, attachment: Self::Attachment) {
        let _ = (buf, attachment);
    }

    /// The buffer must stay where it is until [`unpin`](Self::unpin).
    ///
    /// Calls nest, for one attachment and for several. An exporter has both callbacks or neither.
    ///
    /// # Errors
    ///
    /// An interrupted pin is an error. `EBUSY` must not be returned: the core warns about it.
    fn pin(&self, cx: &Locked<'_, Self>, at: &Attached<'_, Self>) -> Result {
        let _ = (cx, at);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// The buffer may move again.
    fn unpin(&self, buf: &DmaBuf, at: &Attached<'_, Self>) {
        let _ = (buf, at);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Gives the importer a scatter table of the buffer. May sleep.
    ///
    /// One table is made for each call. What the exporter has made and does not return is unmapped.
    ///
    /// # Errors
    ///
    /// Returned to the importer.
    fn map<'r>(
        &self,
        cx: &Locked<'_, Self>,
        at: &MapRequest<'r, Self>,
        dir: DataDirection,
    ) -> Result<Mapping<'r>>;

    /// A mapping of the importer is gone.
    fn unmap(&self, at: &Attached<'_, Self>) {
        let _ = at;
    }

    /// The CPU is about to access the buffer.
    ///
    /// Called with the reservation held, after the work of devices that the access is in conflict
    /// with has ended: that which writes, and for an access that writes that which reads, too.
    ///
    /// # Errors
    ///
    /// Returned to the caller.
    fn begin_cpu_access(&self, cx: &Locked<'_, Self>, dir: DataDirection) -> Result {
        let _ = (cx, dir);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// The CPU is done with the buffer. Called with the reservation held.
    ///
    /// # Errors
    ///
    /// Returned to the caller.
    fn end_cpu_access(&self, cx: &Locked<'_, Self>, dir: DataDirection) -> Result {
        let _ = (cx, dir);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns the pages of a buffer that is in system memory, for the CPU.
    ///
    /// An exporter that has it does not implement [`mmap`](Self::mmap) nor [`vmap`](Self::vmap):
    /// the buffer is mapped into the kernel as a whole, and into processes page by page, when they
    /// access it. These mappings keep the pages. What processes have mapped is unmapped when the
    /// buffer is revoked, and an access raises `SIGBUS` from then on.
    ///
    /// Called with the reservation held. The pages add up to the size of the buffer, and are the
    /// same each time.
    ///
    /// # Errors
    ///
    /// Returned to the caller, `SIGBUS` to a process that accesses the buffer.
    fn pages(&self, cx: &Locked<'_, Self>) -> Result<Arc<Pages>> {
        let _ = cx;
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Maps the buffer into a process. The reservation is not held; the range is inside the buffer.
    ///
    /// What a process has mapped is not unmapped when the buffer is revoked, unless the exporter
    /// does it, as GEM objects are when their device is unplugged. That of [`pages`](Self::pages)
    /// is.
    ///
    /// # Errors
    ///
    /// Returned to the caller.
    fn mmap(&self, buf: &DmaBuf, vma: &VmaNew) -> Result {
        let _ = (buf, vma);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Maps the buffer into the kernel; called for the first user only.
    ///
    /// An unbind waits until I/O memory is not mapped any more. Other memory stays valid until it is
    /// unmapped, also after an unbind. Who comes while the buffer is mapped shares the mapping, also
    /// after the buffer was revoked: the core does not ask.
    ///
    /// # Errors
    ///
    /// Returned to the caller.
    fn vmap(&self, cx: &Locked<'_, Self>) -> Result<IosysMap> {
        let _ = cx;
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// Undoes [`vmap`](Self::vmap); called for the last user only.
    fn vunmap(&self, buf: &DmaBuf, map: IosysMap) {
        let _ = (buf, map);
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }

    /// The buffer is taken back: importers are about to be told that their mappings are void.
    ///
    /// Called with the reservation held. After it no callback is called that takes a [`Locked`]. The
    /// file of the buffer may be gone already, so there is no [`DmaBuf`] of which a reference could
    /// be taken.
    fn revoke(&self) {}

    /// The last user is gone. The value is dropped right after.
    fn release(&self) {}
}

/// The `struct dma_buf_ops` of an exporter.
#[repr(transparent)]
pub struct Ops<E: Exporter>(bindings::dma_buf_ops, PhantomData<fn(E)>);

// SAFETY: The table is constant.
unsafe impl<E: Exporter> Send for Ops<E> {}

// SAFETY: The table is constant.
unsafe impl<E: Exporter> Sync for Ops<E> {}

impl<E: Exporter> Default for Ops<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Exporter> Ops<E> {
    /// Makes the table.
    pub const fn new() -> Self {
        const {
            assert!(
                E::HAS_PIN == E::HAS_UNPIN,
                "an exporter has both pin and unpin or neither"
            );
            assert!(
                E::HAS_VMAP == E::HAS_VUNMAP,
                "an exporter has both vmap and vunmap or neither"
            );
            assert!(
                !E::HAS_PAGES || !(E::HAS_MMAP || E::HAS_VMAP),
                "an exporter with pages has neither mmap nor vmap"
            );
        }

        // Tests of constants: `if` is what a `const fn` can do.
        Self(
            bindings::dma_buf_ops {
                attach: Some(attach_callback::<E>),
                detach: Some(detach_callback::<E>),
                pin: if E::HAS_PIN {
                    Some(pin_callback::<E>)
                } else {
                    None
                },
                unpin: if E::HAS_UNPIN {
                    Some(unpin_callback::<E>)
                } else {
                    None
                },
                map_dma_buf: Some(map_callback::<E>),
                unmap_dma_buf: Some(unmap_callback::<E>),
                release: Some(release_callback::<E>),
                begin_cpu_access: if E::HAS_BEGIN_CPU_ACCESS {
                    Some(begin_cpu_access_callback::<E>)
                } else {
                    None
                },
                end_cpu_access: if E::HAS_END_CPU_ACCESS {
                    Some(end_cpu_access_callback::<E>)
                } else {
                    None
                },
                mmap: if E::HAS_MMAP {
                    Some(mmap_callback::<E>)
                } else if E::HAS_PAGES {
                    Some(mmap_pages_callback::<E>)
                } else {
                    None
                },
                vmap: if E::HAS_VMAP {
                    Some(vmap_callback::<E>)
                } else if E::HAS_PAGES {
                    Some(vmap_pages_callback::<E>)
                } else {
                    None
                },
                vunmap: if E::HAS_VUNMAP {
                    Some(vunmap_callback::<E>)
                } else if E::HAS_PAGES {
                    Some(vunmap_pages_callback::<E>)
                } else {
                    None
                },
            },
            PhantomData,
        )
    }

    /// The operations of an area of a process that maps pages.
    const VM_OPS: bindings::vm_operations_struct = bindings::vm_operations_struct {
        fault: Some(fault_callback::<E>),
        ..pin_init::zeroed()
    };

    /// Returns the pointer to the C structure.
    pub(super) fn as_raw(&'static self) -> *const bindings::dma_buf_ops {
        &self.0
    }
}

/// What the private data of every dma-buf of an [`Exporter`] has.
struct Common {
    exporter_type: TypeId,

    /// The place on the list of the exporting driver.
    links: Links,

    /// The attachments, from when the exporter accepts them until they are detached. Guarded by the
    /// reservation.
    attached: Attachments,
}

/// The private data of a dma-buf, in `dma_buf.priv`.
#[repr(C)]
#[pin_data]
pub(super) struct Buffer<E: Exporter> {
    /// First in every `Buffer`, so that it can be found before the type is known.
    common: Common,

    exporter: E,

    /// The list that the buffer is on.
    registry: Arc<Registry>,

    /// What the callbacks need of the bound device; `None` once revoked. Guarded by the
    /// reservation.
    bound: UnsafeCell<Option<NonNull<BoundOf<'static, E>>>>,

    /// How many mappings of the device's own memory importers hold, and one for the kernel's own
    /// (vmap). Changes with the reservation held. System memory stays as long as the buffer, so that
    /// nobody waits for mappings of that.
    mappings: Atomic<usize>,

    /// The mapping of pages for the kernel. Guarded by the reservation.
    kernel: Cell<Option<KernelMapping>>,

    /// What processes have mapped, of an exporter with pages.
    pub(super) user: SetOnce<UserMappings>,
}

// SAFETY: `bound`, `kernel`, and the attachments with their holdings, are guarded by the
// reservation, and the links by the mutex of the list; `bound` points to a value that is `Send` and
// `Sync`.
unsafe impl<E: Exporter> Send for Buffer<E> {}

// SAFETY: As for `Send`.
unsafe impl<E: Exporter> Sync for Buffer<E> {}

impl<E: Exporter> Buffer<E> {
    /// Makes the private data of a buffer that is about to be exported.
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
        // SAFETY: By the safety requirements `priv` points to a `Self`, which lives until the
        // release of the dma-buf.
        unsafe { &*(*buf.as_raw()).priv_.cast::<Self>() }
    }

    /// Makes the view that callbacks get.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the buffer was revoked.
    ///
    /// # Safety
    ///
    /// The reservation of `buf` must be held for `'a`, and `buf` must be the dma-buf of `self`.
    #[inline]
    unsafe fn locked<'a>(&'a self, buf: &'a DmaBuf) -> Result<Locked<'a, E>> {
        // SAFETY: The reservation guards `bound`, and the caller holds it.
        let bound = unsafe { *self.bound.get() }.ok_or(ENODEV)?;

        // INVARIANT: The reservation is held, and the device is bound until `revoke`, which needs
        // the reservation.
        Ok(Locked {
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

        // SAFETY: As promised by the caller. Attachments on the list were accepted by the exporter of
        // this buffer, and stay valid while the reservation is held.
        unsafe {
            self.common
                .attached
                .iter()
                .map(|raw| Attached::from_raw(raw))
        }
    }

    /// Takes the bound device away from the buffer and tells importers that their mappings are
    /// void.
    pub(super) fn revoke(&self, buf: &DmaBuf) {
        let _guard = buf.resv().lock();

        // SAFETY: The reservation guards `bound`. No `Locked` view exists, as each is only handed
        // out for a call that holds the reservation.
        unsafe { *self.bound.get() = None };
        self.exporter.revoke();
        // An access from now on finds that the buffer is revoked; it waits for the reservation.
        if let Some(user) = self.user.as_ref() {
            user.unmap();
        }
        // SAFETY: The reservation is held until after the loop.
        for at in unsafe { self.attachments(buf) } {
            // The buffer is revoked, so no table is needed for a later mapping.
            at.holdings().drop_cached();
            at.with_tables(|tables| tables.iter_mut().for_each(Table::forgo));
        }

        // SAFETY: The reservation is held.
        unsafe { bindings::dma_buf_invalidate_mappings(buf.as_raw()) };
    }

    /// Counts a mapping.
    ///
    /// # Safety
    ///
    /// The reservation must be held.
    #[inline]
    unsafe fn get_mapping(&self) {
        self.mappings.store(self.mappings() + 1, Relaxed);
    }

    /// Counts a mapping no more.
    ///
    /// # Safety
    ///
    /// The reservation must be held.
    #[inline]
    unsafe fn put_mapping(&self) {
        let left = self.mappings().saturating_sub(1);

        // What the importer did, and the unmap, come before whatever follows the wait for it.
        self.mappings.store(left, Release);
        // SAFETY: The reservation guards `bound`, and the caller holds it.
        if left == 0 && unsafe { (*self.bound.get()).is_none() } {
            self.registry.wake_waiter();
        }
    }

    /// Returns the number of mappings of the device's own memory that somebody holds.
    #[inline]
    pub(super) fn mappings(&self) -> usize {
        self.mappings.load(Acquire)
    }
}

/// A list of attachments, oldest first.
///
/// The core has one as well, but puts an attachment on it some time after the exporter has accepted
/// it: what is decided in between for all importers would not be known to the one that comes.
///
/// # Invariants
///
/// Each is valid, and its private data begins with [`Holdings`], which are linked in both
/// directions.
struct Attachments {
    first: Cell<*mut bindings::dma_buf_attachment>,
    last: Cell<*mut bindings::dma_buf_attachment>,
}

impl Attachments {
    const fn new() -> Self {
        // INVARIANT: There is none.
        Self {
            first: Cell::new(ptr::null_mut()),
            last: Cell::new(ptr::null_mut()),
        }
    }

    /// Appends an attachment.
    ///
    /// # Safety
    ///
    /// Its private data must begin with [`Holdings`], it must stay valid until it is removed, and
    /// the reservation must be held.
    #[inline]
    unsafe fn push(&self, raw: *mut bindings::dma_buf_attachment) {
        let last = self.last.replace(raw);

        // INVARIANT: Linked to the one before it, and there is none after it.
        // SAFETY: As promised by the caller, and by the type invariant.
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
    /// It must be on the list, and the reservation must be held.
    unsafe fn remove(&self, raw: *mut bindings::dma_buf_attachment) {
        // INVARIANT: Those before and after it are linked to each other.
        // SAFETY: As promised by the caller, and by the type invariant.
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
    unsafe fn iter(&self) -> impl Iterator<Item = *mut bindings::dma_buf_attachment> {
        let mut next = self.first.get();

        core::iter::from_fn(move || {
            let raw = next;
            if raw.is_null() {
                return None;
            }

            // SAFETY: By the type invariant, and as promised by the caller.
            next = unsafe { Holdings::of(raw) }.next.get();
            Some(raw)
        })
    }
}

/// What importers have of an attachment. Guarded by the reservation.
pub(super) struct Holdings {
    /// Links of [`Attachments`].
    previous: Cell<*mut bindings::dma_buf_attachment>,
    next: Cell<*mut bindings::dma_buf_attachment>,
    pins: Cell<usize>,
    tables: UnsafeCell<Tables>,
    /// For the next mapping.
    #[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
    cached: Cell<Option<RangeTable>>,
    /// What the exporter has found out when the importer came. Does not change.
    #[cfg_attr(not(all(CONFIG_PCI, CONFIG_64BIT)), expect(dead_code))]
    route: Option<KnownRoute>,
}

/// The provider that a route leads to, only to be compared, and the kind of the route.
#[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
type KnownRoute = (*mut bindings::p2pdma_provider, MapType);

/// Without PCI there is no memory that routes lead to.
#[cfg(not(all(CONFIG_PCI, CONFIG_64BIT)))]
type KnownRoute = ();

impl Holdings {
    /// # Safety
    ///
    /// `attach` must be a valid attachment of a buffer of an [`Exporter`], whose reservation is held
    /// for `'a`.
    #[inline]
    pub(super) unsafe fn of<'a>(attach: *mut bindings::dma_buf_attachment) -> &'a Self {
        // SAFETY: The private data of an attachment begins with its holdings, whatever the type of
        // the exporter. The reservation guards them.
        unsafe { &*(*attach).priv_.cast::<Self>() }
    }

    /// Drops the table that is kept for the next mapping.
    #[inline]
    pub(super) fn drop_cached(&self) {
        #[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
        drop(self.take_cached());
    }

    /// Returns the kind of the route to memory of `provider`; [`None`] if the exporter has not
    /// asked.
    #[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
    #[inline]
    pub(super) fn map_type(&self, provider: &Provider<'_>) -> Option<MapType> {
        self.route
            .filter(|(raw, _)| ptr::eq(*raw, provider.as_raw()))
            .map(|(_, map_type)| map_type)
    }

    /// Returns the table that is kept for the next mapping.
    #[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
    #[inline]
    pub(super) fn take_cached(&self) -> Option<RangeTable> {
        self.cached.take()
    }

    /// Keeps a table for the next mapping.
    #[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
    #[inline]
    pub(super) fn set_cached(&self, table: RangeTable) {
        self.cached.set(Some(table));
    }
}

/// The private data of an attachment, in `dma_buf_attachment.priv`.
#[repr(C)]
struct AttachmentData<E: Exporter> {
    /// First, where it is found by what does not know the type.
    holdings: Holdings,
    data: E::Attachment,
}

/// Returns the place of a buffer on the list of its driver.
///
/// # Safety
///
/// `buf` must be a buffer of an [`Exporter`] that is not freed for `'a`.
pub(super) unsafe fn links_of<'a>(buf: *mut bindings::dma_buf) -> &'a Links {
    // SAFETY: As promised by the caller; the private data of a buffer begins with what all have.
    &unsafe { &*(*buf).priv_.cast::<Common>() }.links
}

/// Takes over what devices wrote through mappings that were invalidated and not unmapped since.
///
/// For an exporter that has told its importers, by `dma_buf_invalidate_mappings()`, and has waited
/// for the fences of what they started. Afterwards it can move the content of the buffer. When such
/// a mapping is unmapped later the old memory is not written to any more, as it may be somebody
/// else's by then.
///
/// # Safety
///
/// `buf` must be a valid buffer of an [`Exporter`], whose reservation is held, and the memory that
/// was mapped must still be there.
#[cfg_attr(not(CONFIG_RUST_DRM_TTM), expect(dead_code))]
pub(crate) unsafe fn retire(buf: *mut bindings::dma_buf) {
    // SAFETY: As promised by the caller; the private data of a buffer begins with what all have.
    let common = unsafe { &*(*buf).priv_.cast::<Common>() };

    // SAFETY: The reservation is held.
    for raw in unsafe { common.attached.iter() } {
        // SAFETY: Attachments on the list are valid, and the reservation is held.
        let (dev, holdings) = unsafe { ((*raw).dev, Holdings::of(raw)) };
        // SAFETY: The reservation guards the tables; nobody else looks at them.
        let tables = unsafe { &mut *holdings.tables.get() };

        holdings.drop_cached();
        for table in tables.iter_mut().filter(|table| !table.void) {
            // SAFETY: The table is one of the attachment, whose memory is still there.
            unsafe { table.sync_for_cpu(dev) };
            table.void = true;
        }
    }
}

/// A buffer whose reservation is held and whose device is bound.
///
/// # Invariants
///
/// The reservation of `buf` is held, and the device that exported it is bound, for `'a`.
pub struct Locked<'a, E: Exporter> {
    buf: &'a DmaBuf,
    bound: &'a BoundOf<'a, E>,
    _not_send: NotThreadSafe,
}

impl<'a, E: Exporter> Locked<'a, E> {
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
    /// An attachment that is being made is not among them yet.
    pub fn attachments(&self) -> impl Iterator<Item = Attached<'_, E>> {
        // SAFETY: By the type invariant the reservation is held, and a view is only made of a
        // buffer that was exported with the table of `E`.
        unsafe { Buffer::<E>::of(self.buf).attachments(self.buf) }
    }
}

/// An importer that asks to be attached.
pub struct AttachRequest<'a> {
    attach: &'a mut bindings::dma_buf_attachment,
    #[cfg_attr(not(all(CONFIG_PCI, CONFIG_64BIT)), expect(dead_code))]
    registry: &'a Registry,
    /// What the exporter has found out about the importer's way to its memory.
    route: Cell<Option<KnownRoute>>,
}

impl AttachRequest<'_> {
    /// Returns the device of the importer.
    #[inline]
    pub fn device(&self) -> &device::Device {
        // SAFETY: The core passes a valid device, which outlives its attachment.
        unsafe { device::Device::from_raw(self.attach.dev) }
    }

    /// Returns the name of the driver of the importer's device, or that of its bus if it has none.
    ///
    /// Mirrors `dev_driver_string()`.
    #[inline]
    pub fn driver_name(&self) -> &CStr {
        // SAFETY: The device is valid, and the function returns a valid string. The name of a bus is
        // static, that of a driver as long as its module is loaded: the importer is at work for its
        // device, and does not outlive the module of the driver.
        unsafe { CStr::from_char_ptr(bindings::dev_driver_string(self.attach.dev)) }
    }

    /// Returns the kind of mapping that the importer gets for memory of `provider`, and keeps it
    /// for the mappings.
    #[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
    pub(super) fn map_type(&self, provider: &Provider<'_>) -> MapType {
        let map_type = self.registry.map_type(provider, self.device());

        self.route.set(Some((provider.as_raw(), map_type)));
        map_type
    }

    /// Tells whether the importer takes peer memory.
    ///
    /// A static importer never does.
    #[inline]
    pub fn peer2peer(&self) -> bool {
        self.attach.peer2peer
    }

    /// Takes back the offer of peer memory: the importer will be served from system memory.
    #[inline]
    pub fn clear_peer2peer(&mut self) {
        self.attach.peer2peer = false;
    }

    /// Tells whether the importer manages pinning itself.
    ///
    /// For other importers the core pins the buffer while it is mapped.
    #[inline]
    pub fn is_dynamic(&self) -> bool {
        !self.attach.importer_ops.is_null()
    }

    /// Tells whether the importer can be told to let go of its mappings.
    ///
    /// Mirrors `dma_buf_attach_revocable()`.
    #[inline]
    pub fn is_revocable(&self) -> bool {
        // SAFETY: `attach` is valid.
        unsafe { bindings::dma_buf_attach_revocable(ptr::from_ref(self.attach).cast_mut()) }
    }
}

/// Ties a value to one call of a callback: invariant, so that `'r` matches no other lifetime.
pub(super) type Brand<'r> = PhantomData<fn(&'r ()) -> &'r ()>;

/// An importer that asks for a mapping: the attachment, and the permission to map the buffer for it.
///
/// Only [`Exporter::map`] gets it, after which it is seen to that each mapping is one that the
/// importer has, and that an unbind waits for.
pub struct MapRequest<'r, E: Exporter>(Attached<'r, E>);

impl<'r, E: Exporter> Deref for MapRequest<'r, E> {
    type Target = Attached<'r, E>;

    #[inline]
    fn deref(&self) -> &Attached<'r, E> {
        &self.0
    }
}

/// An attachment of a buffer, seen with the reservation held.
///
/// # Invariants
///
/// `raw` is a valid attachment of a buffer of `E`, whose reservation is held for `'r`; its private
/// data is an `AttachmentData` of `E`.
pub struct Attached<'r, E: Exporter> {
    raw: NonNull<bindings::dma_buf_attachment>,
    _brand: Brand<'r>,
    _exporter: PhantomData<*mut E>,
}

impl<'r, E: Exporter> Attached<'r, E> {
    /// # Safety
    ///
    /// `raw` must be a valid attachment that was accepted by the table of `E`, and the reservation
    /// of its buffer must be held for `'r`.
    #[inline]
    unsafe fn from_raw(raw: *mut bindings::dma_buf_attachment) -> Self {
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

    /// Returns what the exporter keeps for the bound device.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the buffer was revoked.
    #[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
    #[inline]
    pub(super) fn bound(&self) -> Result<&BoundOf<'_, E>> {
        let buf = self.dma_buf();

        // SAFETY: By the type invariant this is a buffer of `E`, whose reservation is held.
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

    /// Returns what [`Exporter::attach`] returned.
    #[inline]
    pub fn data(&self) -> &E::Attachment {
        &self.private().data
    }

    /// Tells whether the importer is given peer memory.
    #[inline]
    pub fn peer2peer(&self) -> bool {
        // SAFETY: By the type invariant the attachment is valid.
        unsafe { (*self.as_raw()).peer2peer }
    }

    /// Tells whether the importer manages pinning itself.
    #[inline]
    pub fn is_dynamic(&self) -> bool {
        // SAFETY: By the type invariant the attachment is valid.
        !unsafe { (*self.as_raw()).importer_ops }.is_null()
    }

    /// Tells whether the importer can be told to let go of its mappings.
    #[inline]
    pub fn is_revocable(&self) -> bool {
        // SAFETY: By the type invariant the attachment is valid.
        unsafe { bindings::dma_buf_attach_revocable(self.as_raw()) }
    }

    /// Returns how many times the attachment is pinned.
    #[inline]
    pub fn pins(&self) -> usize {
        self.holdings().pins.get()
    }

    /// Returns how many mappings the attachment holds.
    #[inline]
    pub fn maps(&self) -> usize {
        self.with_tables(|tables| tables.len())
    }

    /// Returns how many of them are mappings of the device's own memory.
    pub(super) fn peer_maps(&self) -> usize {
        self.with_tables(|tables| tables.iter().filter(|table| !table.has_pages()).count())
    }

    #[inline]
    pub(super) fn holdings(&self) -> &Holdings {
        &self.private().holdings
    }

    /// Unmaps the tables for which `keep` returns false.
    fn unmap_unless(&self, mut keep: impl FnMut(&mut Table) -> bool) {
        while let Some(table) = self.with_tables(|tables| tables.take(|table| !keep(table))) {
            // SAFETY: It was a table of this attachment, whose reservation is held.
            unsafe { table.unmap(self.as_raw()) };
        }
    }

    /// Calls `f`, which must not call back, with the tables that the importer has.
    #[inline]
    pub(super) fn with_tables<R>(&self, f: impl FnOnce(&mut Tables) -> R) -> R {
        // SAFETY: The reservation, which guards the tables, is held by the type invariant. `f` has
        // no other way to them.
        f(unsafe { &mut *self.holdings().tables.get() })
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
/// - What `f` returns.
pub fn with_exporter<E, R>(
    buf: &DmaBuf,
    f: impl FnOnce(&E, &Locked<'_, E>) -> Result<R>,
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
/// Those of [`with_exporter`].
///
/// # Safety
///
/// The reservation of `buf` must be held.
pub(crate) unsafe fn with_locked_exporter<E, R>(
    buf: &DmaBuf,
    f: impl FnOnce(&E, &Locked<'_, E>) -> Result<R>,
) -> Result<R>
where
    E: Exporter,
{
    let buffer = buffer_of::<E>(buf).ok_or(EINVAL)?;

    // SAFETY: The reservation is held until after the view is gone.
    unsafe { buffer.locked(buf) }.and_then(|cx| f(&buffer.exporter, &cx))
}

/// Calls `f` with the exporter of a buffer and an attachment as it sees it, for an importer that has
/// the reservation.
///
/// # Errors
///
/// - `EINVAL` if it is not a buffer of `E`.
/// - `ENODEV` if it was revoked.
/// - What `f` returns.
#[cfg_attr(not(CONFIG_RUST_DRM_PEER), expect(dead_code))]
pub(crate) fn with_exporter_of<E, R>(
    at: &MappingSlot<'_>,
    f: impl FnOnce(&E, &Locked<'_, E>, &Attached<'_, E>) -> Result<R>,
) -> Result<R>
where
    E: Exporter,
{
    let buf = at.dma_buf();
    let buffer = buffer_of::<E>(buf).ok_or(EINVAL)?;

    // SAFETY: The slot exists while the reservation is held. It is that of an attachment of `buf`,
    // which the table of `E` accepted.
    let (cx, at) = unsafe { (buffer.locked(buf)?, Attached::from_raw(at.as_raw())) };

    f(&buffer.exporter, &cx, &at)
}

/// Returns the exporter of `buf` if that is an `E`.
pub fn exporter_of<E: Exporter>(buf: &DmaBuf) -> Option<&E> {
    buffer_of::<E>(buf).map(|buffer| &buffer.exporter)
}

/// Returns the exporter of `buf`.
///
/// # Safety
///
/// `buf` must have been exported by an [`Exports`](super::Exports) of `E`.
#[cfg_attr(not(CONFIG_RUST_DRM_PEER), expect(dead_code))]
pub(crate) unsafe fn assume_exporter_of<E: Exporter>(buf: &DmaBuf) -> &E {
    // SAFETY: As promised by the caller.
    &unsafe { Buffer::<E>::of(buf) }.exporter
}

fn buffer_of<E: Exporter>(buf: &DmaBuf) -> Option<&Buffer<E>> {
    // SAFETY: The dma-buf is valid, and its table never changes.
    let ops = unsafe { (*buf.as_raw()).ops };

    if !ptr::eq(ops, E::OPS.as_raw()) {
        return None;
    }

    // A driver that does not keep its table in a `static` could share the address with another.
    // SAFETY: The table is that of some exporter in Rust, and only `Exports::export` uses these.
    // Hence `priv` is a `Buffer`, whatever of, and that begins with what all have.
    let exporter_type = unsafe { (*(*buf.as_raw()).priv_.cast::<Common>()).exporter_type };

    if exporter_type == TypeId::of::<E>() {
        // SAFETY: The dma-buf is one of `E`.
        Some(unsafe { Buffer::of(buf) })
    } else {
        None
    }
}

/// How often an access by the CPU waits for work without the reservation, before it keeps that so
/// that nobody adds more.
const WAITS: u32 = 3;

/// Makes an error pointer or passes the pointer on.
fn into_err_ptr(ret: Result<NonNull<bindings::sg_table>>) -> *mut bindings::sg_table {
    match ret {
        Ok(ptr) => ptr.as_ptr(),
        Err(e) => e.to_ptr(),
    }
}

/// # Safety
///
/// All callbacks below are called by the dma-buf core with buffers that were exported with the
/// table of `E`, with attachments of these buffers, and with the reservation held or not as the
/// module documentation says.
unsafe extern "C" fn attach_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    raw_attach: *mut bindings::dma_buf_attachment,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };

        // Made first, so that nothing fails once the exporter has accepted.
        let data = KBox::<AttachmentData<E>>::new_uninit(GFP_KERNEL)?;
        let prepared = buffer.exporter.prepare_attach();

        let guard = buf.resv().lock();
        // SAFETY: The reservation was just taken and is held until after the view is gone.
        let ret = unsafe { buffer.locked(buf) }.and_then(|cx| {
            let mut request = AttachRequest {
                // SAFETY: The attachment is valid, and nobody else has a pointer to it yet.
                attach: unsafe { &mut *raw_attach },
                registry: &buffer.registry,
                route: Cell::new(None),
            };

            let accepted = buffer.exporter.attach(&cx, &mut request, prepared)?;
            Ok((accepted, request.route.get()))
        });
        // The reservation is kept until the attachment is on the list, so that whatever is decided
        // next takes it into account.
        let ret = ret.map(|(accepted, route)| {
            let data = KBox::write(
                data,
                AttachmentData {
                    holdings: Holdings {
                        previous: Cell::new(ptr::null_mut()),
                        next: Cell::new(ptr::null_mut()),
                        pins: Cell::new(0),
                        tables: UnsafeCell::new(Tables::new()),
                        #[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
                        cached: Cell::new(None),
                        route,
                    },
                    data: accepted,
                },
            );

            // SAFETY: The attachment is valid, and nobody else has a pointer to it yet. The core
            // does not fail after this; `detach_callback` removes it.
            unsafe {
                (*raw_attach).priv_ = KBox::into_raw(data).cast();
                buffer.common.attached.push(raw_attach);
            }
        });

        drop(guard);
        ret.map(|()| 0)
    })
}

/// Undoes what an importer has left of an attachment. The reservation is held.
fn let_go<E: Exporter>(buffer: &Buffer<E>, buf: &DmaBuf, at: &Attached<'_, E>) {
    let (pins, maps, peer_maps) = (at.pins(), at.maps(), at.peer_maps());

    dev_warn!(
        at.device(),
        "detached from a dma-buf of {} with {} pins and {} mappings left\n",
        E::NAME,
        pins,
        maps
    );
    at.unmap_unless(|_| false);
    for _ in 0..maps {
        buffer.exporter.unmap(at);
    }
    for _ in 0..peer_maps {
        // SAFETY: The reservation is held while an `Attached` exists.
        unsafe { buffer.put_mapping() };
    }
    if E::HAS_UNPIN {
        for left in (0..pins).rev() {
            at.holdings().pins.set(left);
            buffer.exporter.unpin(buf, at);
        }
    }
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn detach_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    raw_attach: *mut bindings::dma_buf_attachment,
) {
    // SAFETY: The core passes a valid dma-buf.
    let buf = unsafe { DmaBuf::from_raw(raw_buf) };
    // SAFETY: This callback is only in the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(buf) };

    let guard = buf.resv().lock();
    // SAFETY: The attachment is valid until this callback returns, `attach_callback` put it on the
    // list, and the reservation is held.
    let at = unsafe {
        buffer.common.attached.remove(raw_attach);
        Attached::<E>::from_raw(raw_attach)
    };
    // The core does not look for an importer that forgets these, and an unbind would wait for it.
    if at.pins() != 0 || at.maps() != 0 {
        let_go(buffer, buf, &at);
    }
    drop(guard);

    // SAFETY: `attach_callback` put a box there, and the attachment is not used any more.
    let data = unsafe { KBox::from_raw((*raw_attach).priv_.cast::<AttachmentData<E>>()) };

    buffer.exporter.detach(buf, KBox::into_inner(data).data);
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn pin_callback<E: Exporter>(
    raw_attach: *mut bindings::dma_buf_attachment,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid attachment, with the reservation held.
        let at = unsafe { Attached::<E>::from_raw(raw_attach) };
        let buf = at.dma_buf();
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };
        // SAFETY: The reservation is held for the whole callback.
        let cx = unsafe { buffer.locked(buf) }?;

        buffer.exporter.pin(&cx, &at)?;
        at.holdings().pins.set(at.pins() + 1);
        Ok(0)
    })
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn unpin_callback<E: Exporter>(raw_attach: *mut bindings::dma_buf_attachment) {
    // SAFETY: The core passes a valid attachment, with the reservation held.
    let at = unsafe { Attached::<E>::from_raw(raw_attach) };
    let buf = at.dma_buf();
    // SAFETY: This callback is only in the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(buf) };

    if at.pins() == 0 {
        dev_warn!(
            at.device(),
            "unpins a dma-buf of {} that it did not pin\n",
            E::NAME
        );
        return;
    }

    at.holdings().pins.set(at.pins() - 1);
    buffer.exporter.unpin(buf, &at);
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn map_callback<E: Exporter>(
    raw_attach: *mut bindings::dma_buf_attachment,
    dir: bindings::dma_data_direction,
) -> *mut bindings::sg_table {
    let map = || -> Result<NonNull<bindings::sg_table>> {
        // SAFETY: The core passes a valid attachment, with the reservation held.
        let at = MapRequest(unsafe { Attached::<E>::from_raw(raw_attach) });
        let buf = at.dma_buf();
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };
        // SAFETY: The reservation is held for the whole callback.
        let cx = unsafe { buffer.locked(buf) }?;

        // First, so that nothing fails once the exporter has mapped.
        at.with_tables(Tables::reserve)?;
        let sgt = buffer
            .exporter
            .map(&cx, &at, direction(dir))
            .map(|mapping| mapping.sgt());

        let mut is_peer = false;
        // What it has made and not returned has no user.
        at.unmap_unless(|table| {
            if Ok(table.sgt()) == sgt {
                table.has_user = true;
                is_peer = !table.has_pages();
            }
            table.has_user
        });
        let sgt = sgt?;

        if is_peer {
            // SAFETY: The reservation is held.
            unsafe { buffer.get_mapping() };
        }
        Ok(sgt)
    };

    into_err_ptr(map())
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn unmap_callback<E: Exporter>(
    raw_attach: *mut bindings::dma_buf_attachment,
    raw_sgt: *mut bindings::sg_table,
    _dir: bindings::dma_data_direction,
) {
    // SAFETY: The core passes a valid attachment, with the reservation held.
    let at = unsafe { Attached::<E>::from_raw(raw_attach) };
    // SAFETY: This callback is only in the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(at.dma_buf()) };
    let table =
        at.with_tables(|tables| tables.take(|table| ptr::eq(table.sgt().as_ptr(), raw_sgt)));
    let Some(table) = table else {
        dev_warn!(
            at.device(),
            "unmaps a dma-buf of {} that it did not map\n",
            E::NAME
        );
        return;
    };

    let has_pages = table.has_pages();

    // SAFETY: The table was one of this attachment, and the reservation is held.
    unsafe { table.unmap(raw_attach) };
    buffer.exporter.unmap(&at);
    if !has_pages {
        // SAFETY: The reservation is held.
        unsafe { buffer.put_mapping() };
    }
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn release_callback<E: Exporter>(raw_buf: *mut bindings::dma_buf) {
    // SAFETY: `Exports::export` put a box there, and `raw_buf` on the list. From here on a
    // revocation does not find the buffer.
    unsafe {
        let buffer = &*(*raw_buf).priv_.cast::<Buffer<E>>();

        buffer.registry.remove(raw_buf);
    }

    // SAFETY: The box was put there, and nobody uses the dma-buf any more.
    let buffer = unsafe { KBox::from_raw((*raw_buf).priv_.cast::<Buffer<E>>()) };

    buffer.exporter.release();
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn begin_cpu_access_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    dir: bindings::dma_data_direction,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };
        let dir = direction(dir);

        // The core waits too, but afterwards: what a device wrote has to be there before it can be
        // made visible.
        let usage = if dir == DataDirection::FromDevice {
            Usage::Write
        } else {
            Usage::Read
        };
        buf.resv().wait(usage, true)?;

        let mut guard = buf.resv().lock_interruptible()?;
        let mut waits = 0;
        // Work that was added until the lock was taken is waited for without it, as others need it.
        while !buf.resv().test_signaled(usage) {
            if waits == WAITS {
                buf.resv().wait(usage, true)?;
                break;
            }
            drop(guard);
            buf.resv().wait(usage, true)?;
            guard = buf.resv().lock_interruptible()?;
            waits += 1;
        }
        // SAFETY: The reservation is held until after the view is gone.
        let ret =
            unsafe { buffer.locked(buf) }.and_then(|cx| buffer.exporter.begin_cpu_access(&cx, dir));

        drop(guard);
        ret.map(|()| 0)
    })
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn end_cpu_access_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    dir: bindings::dma_data_direction,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };

        let guard = buf.resv().lock();
        // SAFETY: The reservation is held until after the view is gone.
        let ret = unsafe { buffer.locked(buf) }
            .and_then(|cx| buffer.exporter.end_cpu_access(&cx, direction(dir)));

        drop(guard);
        ret.map(|()| 0)
    })
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn mmap_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };

        // SAFETY: The core passes the area of an `mmap()` that is under way.
        let vma = unsafe { VmaNew::from_raw(vma) };

        buffer.exporter.mmap(buf, vma)?;
        Ok(0)
    })
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn mmap_pages_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };

        let guard = buf.resv().lock_interruptible()?;
        // SAFETY: The reservation is held until after the view is gone.
        let ret = unsafe { buffer.locked(buf) }.map(|_| ());

        drop(guard);
        ret?;
        // No page is inserted yet: a revocation would not find it, as the area is not on the list
        // of the file before this returns.
        // SAFETY: The core passes the area of an `mmap()` that is under way. Its file is that of
        // the dma-buf, so it keeps that, and the module of the operations.
        unsafe {
            let area = VmaNew::from_raw(vma);

            area.set_mixedmap();
            area.set_dontexpand();
            (*vma).vm_private_data = raw_buf.cast();
            (*vma).vm_ops = const { &Ops::<E>::VM_OPS };
        }
        Ok(0)
    })
}

/// # Safety
///
/// Called by the memory management with a fault in an area that [`mmap_pages_callback`] has set up.
unsafe extern "C" fn fault_callback<E: Exporter>(
    vmf: *mut bindings::vm_fault,
) -> bindings::vm_fault_t {
    // SAFETY: The fault and its area are valid, and the area has a reference to the dma-buf, which
    // is its private data.
    let (buf, index) = unsafe {
        let fault = &(*vmf).__bindgen_anon_1;

        (
            DmaBuf::from_raw((*fault.vma).vm_private_data.cast()),
            fault.pgoff,
        )
    };
    // SAFETY: The area is one of a dma-buf with the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(buf) };

    // The access is tried again after the signal was handled.
    let Ok(guard) = buf.resv().lock_interruptible() else {
        return bindings::vm_fault_reason_VM_FAULT_NOPAGE;
    };
    // SAFETY: The reservation is held until after the view is gone.
    let ret = unsafe { buffer.locked(buf) }
        .and_then(|cx| buffer.exporter.pages(&cx))
        // SAFETY: The fault is valid, and one of an area with `VM_MIXEDMAP`.
        .and_then(|pages| unsafe { insert_page(vmf, &pages, index) });

    drop(guard);
    match ret {
        Ok(()) => bindings::vm_fault_reason_VM_FAULT_NOPAGE,
        Err(e) if e == ENOMEM => bindings::vm_fault_reason_VM_FAULT_OOM,
        Err(_) => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
    }
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn vmap_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    map: *mut bindings::iosys_map,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf, with the reservation held.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };
        // SAFETY: The reservation is held for the whole callback.
        let cx = unsafe { buffer.locked(buf) }?;

        let addr = buffer.exporter.vmap(&cx)?;
        if addr.is_iomem() {
            // SAFETY: The reservation is held.
            unsafe { buffer.get_mapping() };
        }

        // SAFETY: The core passes a pointer to a structure that it wants to have filled.
        unsafe { map.write(addr.into_raw()) };
        Ok(0)
    })
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn vunmap_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    map: *mut bindings::iosys_map,
) {
    // SAFETY: The core passes a valid dma-buf, with the reservation held.
    let buf = unsafe { DmaBuf::from_raw(raw_buf) };
    // SAFETY: This callback is only in the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(buf) };

    // SAFETY: The core passes what `vmap_callback` filled in.
    let map = IosysMap::from_raw(unsafe { *map });

    buffer.exporter.vunmap(buf, map);
    if map.is_iomem() {
        // SAFETY: The reservation is held.
        unsafe { buffer.put_mapping() };
    }
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn vmap_pages_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    map: *mut bindings::iosys_map,
) -> c_int {
    from_result(|| {
        // SAFETY: The core passes a valid dma-buf, with the reservation held.
        let buf = unsafe { DmaBuf::from_raw(raw_buf) };
        // SAFETY: This callback is only in the table of `E`.
        let buffer = unsafe { Buffer::<E>::of(buf) };
        // SAFETY: The reservation is held for the whole callback.
        let cx = unsafe { buffer.locked(buf) }?;

        let pages = buffer.exporter.pages(&cx)?;
        // Users of the mapping go by the size of the buffer.
        if pages.size() != buf.size() {
            return Err(EINVAL);
        }
        let mapping = KernelMapping::new(pages)?;

        // SAFETY: The core passes a pointer to a structure that it wants to have filled. The
        // address is that of system memory, which stays mapped until `vunmap_pages_callback`.
        unsafe { map.write(IosysMap::from_sysmem(mapping.addr()).into_raw()) };
        buffer.kernel.set(Some(mapping));
        Ok(0)
    })
}

/// # Safety
///
/// See [`attach_callback`].
unsafe extern "C" fn vunmap_pages_callback<E: Exporter>(
    raw_buf: *mut bindings::dma_buf,
    _map: *mut bindings::iosys_map,
) {
    // SAFETY: The core passes a valid dma-buf, with the reservation held.
    let buf = unsafe { DmaBuf::from_raw(raw_buf) };
    // SAFETY: This callback is only in the table of `E`.
    let buffer = unsafe { Buffer::<E>::of(buf) };

    drop(buffer.kernel.take());
}

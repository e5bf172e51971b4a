// SPDX-License-Identifier: GPL-2.0 OR MIT

//! GEM objects placed and moved by TTM.
//!
//! - [`Device`] is the memory of one DRM device: VRAM, managed by an
//!   [`Allocator`](drm::vram::Allocator), and system memory from TTM's pool. It belongs in the data
//!   of the DRM driver.
//! - [`Object`] is a GEM object in one of them. TTM chooses the memory by a list of [`Place`]s and
//!   evicts the least recently used objects. An operation on the content is a use: a
//!   [validation](ObjectGuard::validate), a copy, a fault, a pin or a mapping of a peer. Reserving
//!   an object to read its placement does not count. VRAM-only objects are not on the LRU list, so
//!   evictions need not skip them.
//! - [`TtmObject`] is implemented by a driver: it returns the parts of the driver's data, and
//!   chooses the [`Engine`](drm::ttm::Engine) for a [`Job`](drm::ttm::Job), the move of the content
//!   of an object.
//! - [`CpuEngine`](drm::ttm::CpuEngine) does jobs if the device cannot. It uses a
//!   [`BarMapping`](drm::vram::BarMapping), the CPU's view of VRAM.
//!
//! An [`Object`] is created with a list of [`Place`]s and moves when TTM needs space. Code reserves
//! it before it reads its placement, moves it or pins it: [`ObjectGuard`] is the proof of the held
//! reservation. [`LockedObject`] is the view of a reserved object; callbacks that run with the
//! reservation held pass it to layers of the kernel crate.
//!
//! Processes map an object through its fake offset, write-combined if it is in VRAM; the kernel
//! maps it for importers of its dma-buf. When the object moves, mappings of processes are removed
//! and restored at the next access. An object does not move while the kernel maps it, nor while a
//! process maps it for direct I/O ([`TtmObject::direct_io`]).
//!
//! An object pinned in VRAM is charged to the exporting client, and a VRAM-only object to the
//! client that created it: see [`PinAccount`].
//!
//! An object may also stand for the buffer of another device, see [`Import`]. It has no memory here
//! and cannot be moved or pinned; the exporter provides the mappings of processes.
//!
//! VRAM is inaccessible while the device is suspended. Before a task reserves an object to move it
//! to or from VRAM, it takes a [`pm::RuntimeGuard`](crate::pm::RuntimeGuard): the device is not
//! resumed with a reservation held, because its driver may need the reservation to suspend it.
//! [`Object::new`], [`Device::exec`](drm::gem::ttm::Device::exec) and [`copy`] do it themselves.
//!
//! For moves, lifetimes and locks see [`TtmObject`].
//!
//! # Examples
//!
//! A whole driver whose VRAM is BAR 2 of QEMU's `ivshmem-plain`.
//!
//! ```
//! use kernel::{
//!     device::{
//!         self,
//!         Core, //
//!     },
//!     dma_buf::exporter::mapping::RangeList,
//!     driver,
//!     drm::{
//!         self,
//!         devres::RegistrationInit,
//!         gem::{
//!             self,
//!             peer::{
//!                 self,
//!                 PeerObject, //
//!             },
//!             ttm::TtmObject,
//!             BaseObject, //
//!         },
//!         ttm::{
//!             CpuEngine,
//!             CpuRing,
//!             OpCtx,
//!             Place, //
//!         },
//!         vram::{
//!             Allocator,
//!             Domain,
//!             MemType,
//!             Ranges,
//!             BarMapping, //
//!         }, //
//!     },
//!     module::this_module,
//!     page::PAGE_SIZE,
//!     pci,
//!     prelude::*,
//!     sync::{
//!         Arc,
//!         Completion, //
//!     },
//!     time::{
//!         delay::fsleep,
//!         Delta, //
//!     },
//!     workqueue, //
//! };
//!
//! struct Example;
//!
//! /// Data that exists while the driver is bound.
//! struct Vram<'a> {
//!     engine: CpuEngine<'a>,
//! }
//!
//! struct Init;
//!
//! impl RegistrationInit<Example> for Init {
//!     fn init<'a>(
//!         self,
//!         pdev: &'a pci::Device<device::Bound>,
//!         drm: drm::devres::Unregistered<'_, 'a, Example>,
//!     ) -> impl PinInit<Vram<'a>, Error> {
//!         Ok(Vram {
//!             engine: CpuEngine::new(drm.ttm.map_bar(pdev, c"drm_peer_example")?)?,
//!         })
//!     }
//! }
//!
//! /// The objects.
//! struct Bo(Domain);
//!
//! impl gem::DriverObject for Bo {
//!     type Driver = Example;
//!     type Args = Domain;
//!
//!     fn new(
//!         _dev: &drm::Device<Example>,
//!         _size: usize,
//!         domain: Domain,
//!     ) -> impl PinInit<Self, Error> {
//!         Ok::<_, Error>(Self(domain))
//!     }
//! }
//!
//! impl TtmObject for Bo {
//!     fn ttm(data: &Data) -> &drm::gem::ttm::Device<Self> {
//!         &data.ttm
//!     }
//!
//!     fn domain(&self) -> Domain {
//!         self.0
//!     }
//!
//!     type Engine<'a, 'bound: 'a> = &'a CpuEngine<'bound>;
//!     type Ring = CpuRing;
//!
//!     fn engine<'a, 'bound: 'a>(vram: &'a Vram<'bound>, _index: usize) -> &'a CpuEngine<'bound> {
//!         &vram.engine
//!     }
//!
//!     fn flush(vram: &Vram<'_>, ranges: &Ranges) {
//!         vram.engine.flush(ranges);
//!     }
//! }
//!
//! impl PeerObject for Bo {
//!     type Class = gem::ttm::Object<Self>;
//!
//!     const OPS: &'static peer::Ops<Self> = kernel::peer_ops!(Bo);
//! }
//!
//! /// Data of the DRM device; outlives the binding.
//! #[pin_data]
//! struct Data {
//!     #[pin]
//!     ttm: drm::gem::ttm::Device<Bo>,
//! }
//!
//! # struct File;
//! #
//! # impl drm::file::DriverFile for File {
//! #     type Driver = Example;
//! #
//! #     fn open(_dev: &drm::Device<Example>) -> Result<Pin<KBox<Self>>> {
//! #         Ok(KBox::new(Self, GFP_KERNEL)?.into())
//! #     }
//! # }
//! #
//! #[vtable]
//! impl drm::Driver for Example {
//!     type Data = Data;
//!     type RegistrationData<'a> = Vram<'a>;
//!     type File = File;
//!     type Object = gem::ttm::Object<Bo>;
//!     type ParentDevice<Ctx: device::DeviceContext> = pci::Device<Ctx>;
//!
//!     const INFO: drm::DriverInfo = drm::DriverInfo {
//!         major: 1,
//!         minor: 0,
//!         patchlevel: 0,
//!         name: c"drm_peer_example",
//!         desc: c"VRAM in BAR 2",
//!     };
//!     const IOCTLS: &'static [drm::ioctl::DrmIoctlDescriptor] = &[];
//! }
//!
//! kernel::pci_device_table!(
//!     PCI_TABLE,
//!     <Example as pci::Driver>::IdInfo,
//!     [(pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, 0x1110), ())]
//! );
//!
//! impl pci::Driver for Example {
//!     type IdInfo = ();
//!     type Data<'bound> = Self;
//!
//!     const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;
//!     // Nothing saves the content of VRAM.
//!     const SLEEP: pci::Sleep = pci::Sleep::Refused;
//!
//!     fn probe<'bound>(
//!         pdev: &'bound pci::Device<Core<'_>>,
//!         _info: Option<&'bound ()>,
//!     ) -> impl PinInit<Self, Error> + 'bound {
//!         pdev.enable_device_mem()?;
//!         pdev.enable_p2pdma()?;
//!
//!         let size = pdev.resource_len(2)?;
//!         let drm = drm::UnregisteredDevice::<Self>::new(
//!             pdev,
//!             try_pin_init!(Data {
//!                 ttm <- drm::gem::ttm::Device::<Bo>::new(
//!                     pdev,
//!                     2,
//!                     size,
//!                     Allocator::new(0..size)?,
//!                 ),
//!             }),
//!         )?;
//!         let registration = drm::devres::Registration::<Self>::new(pdev, drm, Init, 0)?;
//!         let drm = registration.device();
//!         assert_eq!(drm.ttm.vram_free(), size);
//!
//!         // One object fills VRAM, and cannot be evicted.
//!         let ctx = &mut OpCtx::uninterruptible();
//!         let new = |size, places: &[Place], ctx: &mut OpCtx, domain| {
//!             gem::ttm::Object::<Bo>::new(drm, size, places, ctx, domain)
//!         };
//!         let all = new(size as usize, &[Place::VRAM], ctx, Domain::Vram)?;
//!         assert_eq!(all.size() as u64, size);
//!         assert_eq!(drm.ttm.vram_free(), 0);
//!         assert_eq!(
//!             new(1, &[Place::VRAM], ctx, Domain::Vram).err(),
//!             Some(ENOSPC)
//!         );
//!
//!         // Another one lives in system memory until the first one is gone.
//!         let bo = new(1, &[Place::VRAM, Place::TT], ctx, Domain::Either)?;
//!         assert_eq!(bo.size(), PAGE_SIZE);
//!         assert_eq!(bo.reserve(false)?.mem_type(), Some(MemType::Tt));
//!         drop(all);
//!         {
//!             let mut bo = bo.reserve(false)?;
//!
//!             bo.validate(&[Place::VRAM], ctx)?;
//!             assert_eq!(bo.mem_type(), Some(MemType::Vram));
//!             assert_eq!(bo.vram().map(|vram| vram.ranges().len()), Some(1));
//!             assert_eq!(drm.ttm.vram_free(), size - PAGE_SIZE as u64);
//!         }
//!
//!         // A pinned object does not move, and pins are limited.
//!         let pinned = bo.reserve(false)?.pin()?;
//!         assert_eq!(drm.ttm.pinned(), PAGE_SIZE as u64);
//!         assert_eq!(
//!             pinned.reserve(false)?.validate(&[Place::TT], ctx),
//!             Err(EINVAL)
//!         );
//!         drop(pinned);
//!         assert_eq!(drm.ttm.pinned(), 0);
//!         drm.ttm.set_pin_limit(0);
//!         assert_eq!(bo.reserve(false)?.pin().err(), Some(EDQUOT));
//!
//!         // Objects have numbers, by which they can be found.
//!         let found = drm.ttm.object(bo.id()).ok_or(ENOENT)?;
//!         assert!(core::ptr::eq(&*found, &*bo));
//!         assert_eq!(found.last_placement(), Some(MemType::Vram));
//!         drop(found);
//!         assert!(drm.ttm.object(0).is_none());
//!
//!         // A new object in VRAM evicts one that may live in system memory.
//!         let all = new(size as usize, &[Place::VRAM], ctx, Domain::Vram)?;
//!         assert_eq!(bo.reserve(false)?.mem_type(), Some(MemType::Tt));
//!         assert_eq!(bo.last_placement(), Some(MemType::Tt));
//!         let gone = all.id();
//!         drop(all);
//!         assert!(drm.ttm.object(gone).is_none());
//!
//!         // The eviction waits for a task that has it reserved.
//!         bo.reserve(false)?.validate(&[Place::VRAM], ctx)?;
//!         let (other, held) = (bo.clone(), Arc::pin_init(Completion::new(), GFP_KERNEL)?);
//!         let is_held = held.clone();
//!         workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
//!             let reserved = other.reserve(false);
//!             is_held.complete_all();
//!             fsleep(Delta::from_millis(3));
//!             drop(reserved);
//!         })?;
//!         held.wait_for_completion();
//!         let all = new(size as usize, &[Place::VRAM], ctx, Domain::Vram)?;
//!         assert_eq!(bo.reserve(false)?.mem_type(), Some(MemType::Tt));
//!         drop(all);
//!
//!         // The pieces of the BAR that peers map, with neighbours merged.
//!         let provider = pdev.p2pdma_provider(2)?;
//!         let page = PAGE_SIZE as u64;
//!         let ranges = RangeList::in_bar(&provider, [(0, page), (page, page)])?;
//!         let start = pdev.resource_start(2)?;
//!         assert!(ranges.iter().eq([(start, 2 * page)]));
//!         assert_eq!(
//!             RangeList::in_bar(&provider, [(size, page)]).err(),
//!             Some(EINVAL)
//!         );
//!
//!         // An object that is not exported has no importers.
//!         assert_eq!(peer::attachments::<Bo>(&bo)?.len(), 0);
//!
//!         dev_info!(pdev, "VRAM is open to peers\n");
//!         Ok(Self)
//!     }
//! }
//!
//! // The driver binds to each such device that has no driver, until the value is dropped.
//! let driver = KBox::pin_init(
//!     driver::Registration::<pci::Adapter<Example>>::new(
//!         c"drm_peer_example",
//!         this_module::<crate::LocalModule>(),
//!     ),
//!     GFP_KERNEL,
//! )?;
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/drm/ttm/ttm_bo.h`](srctree/include/drm/ttm/ttm_bo.h)

mod backing;
mod client;
mod copy;
pub mod debugfs;
mod device;
mod direct;
mod import;
pub mod ioctl;
mod jobs;
mod locked;
mod lost;
mod mmap;
mod moves;
mod object;
mod ops;
mod placed;
mod private;
mod sharing;
mod suspend;
mod vmap;
mod vram_manager;
mod windows;

pub use self::{
    client::{
        show_memory_stats,
        ClientOf,
        PinAccount,
        PinShares, //
    },
    copy::{
        copy,
        CopyArgs,
        Part, //
    },
    device::Device,
    locked::{
        ObjectGuard,
        Pinned, //
    },
    object::TtmObject,
    placed::Placed,
    suspend::{
        Content,
        SAVE_TIME, //
    }, //
};
pub use super::import::Import;

use self::{
    direct::Direct,
    mmap::{
        fault_callback,
        mmap_callback, //
    },
    ops::{
        destroy_callback,
        free_callback,
        open_callback,
        status_callback, //
    },
    vmap::{
        vmap_callback,
        vunmap_callback, //
    }, //
};
use super::{
    close_callback,
    peer::{
        export_callback,
        trace,
        Client, //
    },
    shared_resv::ResvRef,
    BaseObject,
    IntoGEMObject,
    LockedObject, //
};
use crate::{
    bindings,
    container_of,
    dma_resv::DmaResv,
    drm::{
        self,
        exec::{
            ExecCtx,
            Flag,
            Flags, //
        },
        ttm::{
            Charge,
            OpCtx,
            Place, //
        },
        vram::{
            Domain,
            MemType, //
        }, //
    },
    error::to_result,
    page::{
        page_align,
        PAGE_SHIFT, //
    },
    prelude::*,
    rbtree::RBTreeNodeReservation,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    types::Opaque, //
};
use core::{
    cell::UnsafeCell,
    ops::Deref,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// A GEM object of TTM.
///
/// # Invariants
///
/// - `bo` is an initialized object of a [`Device`](drm::gem::ttm::Device).
/// - The object owns a reference to its DRM device until its own last reference is gone.
/// - `exported` is null or the dma-buf of the object. The reservation guards `exported`, `pins`,
///   `backup` and `shown`.
/// - While `pins.off_lru` is set, the object is in VRAM and one of the pins of `bo` is due to it.
/// - An object with `import` is of the type `ttm_bo_type_sg` and shares the reservation of the
///   buffer behind it. An object with `shared` has the reservation of `shared`. Others have their
///   own.
#[repr(C)]
#[pin_data]
pub struct Object<T: TtmObject> {
    // First; the GEM object is the first field of `bo`.
    bo: Opaque<bindings::ttm_buffer_object>,
    exported: UnsafeCell<*mut bindings::dma_buf>,
    pins: UnsafeCell<Pins>,
    /// The saved VRAM content of a suspended device. The reservation guards it.
    backup: UnsafeCell<Option<suspend::Backup>>,
    /// A page table of the device may show the object. Unused for an import, which has its own.
    shown: UnsafeCell<bool>,
    direct: Direct,
    /// A copy of the kind of `bo.resource`, for code without the reservation: a `TTM_PL_*`, or
    /// `NO_PLACEMENT`.
    last_placement: Atomic<u32>,
    loss: Arc<drm::ttm::Loss>,
    /// How many bytes of the object were visible in VRAM after the last move.
    seen: Atomic<u64>,
    // Both keep the reservation, because TTM uses it until it calls `destroy_callback`.
    import: Option<Import>,
    shared: Option<ResvRef>,
    #[pin]
    data: T,
}

/// Why an object is pinned, and the charged account.
struct Pins {
    /// One of TTM's pins only keeps the object off the LRU list.
    off_lru: bool,
    /// The account of the exporting client.
    exporter: Option<Arc<PinAccount>>,
    /// The exporting client.
    client: Client,
    /// The charged account.
    charged: Option<Arc<PinAccount>>,
    /// The charge of the cgroup of the pinning process, while it is charged.
    group: Option<Charge>,
    stay: Stay,
}

/// The charge for a VRAM-only object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stay {
    /// No client has had a handle yet.
    Undecided,
    /// The first client with a handle may lock memory.
    Free,
    /// The object is charged as long as it lives.
    Charged,
}

impl Pins {
    /// Ends the charge for `obj`, if any.
    fn uncharge<T: TtmObject>(&mut self, obj: &Object<T>) {
        if self.group.take().is_none() {
            return;
        }

        let size = obj.size() as u64;
        obj.ttm().uncharge_pin(size);
        if let Some(account) = self.charged.take() {
            account.sub(size);
        }
    }
}

// SAFETY: GEM objects may be used and released from any task, and `T` is `Send`.
unsafe impl<T: TtmObject> Send for Object<T> {}

// SAFETY: TTM synchronizes access to the object. The reservation guards all cells; the rest does
// not change or is atomic. `T` is `Sync`.
unsafe impl<T: TtmObject> Sync for Object<T> {}

impl<T: TtmObject> Object<T> {
    const FUNCS: bindings::drm_gem_object_funcs = bindings::drm_gem_object_funcs {
        free: Some(free_callback::<T>),
        open: Some(open_callback::<T>),
        close: Some(close_callback::<T>),
        print_info: Some(bindings::drm_gem_ttm_print_info),
        export: Some(export_callback::<T>),
        vmap: Some(vmap_callback::<T>),
        vunmap: Some(vunmap_callback::<T>),
        mmap: Some(mmap_callback::<T>),
        status: Some(status_callback::<T>),
        vm_ops: const { &Self::VM_OPS },
        ..pin_init::zeroed()
    };

    const VM_OPS: bindings::vm_operations_struct = bindings::vm_operations_struct {
        open: Some(bindings::ttm_bo_vm_open),
        close: Some(bindings::ttm_bo_vm_close),
        fault: Some(fault_callback::<T>),
        ..pin_init::zeroed()
    };

    /// Creates an object of at least `size` bytes, rounded up to pages, in one of `places`.
    ///
    /// Its content is zero. No reservation may be held.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `size` is 0 or `dev` was never about to be registered.
    /// - `ENOSPC` if no place has space for the object, or if it has 16 TiB or more.
    /// - `EBUSY` if moves of objects with the same reservation take too long.
    /// - `ENODEV` if the object is to be in VRAM and the driver is no longer bound.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - `ENOMEM` if memory runs out.
    /// - The errors of [`RuntimeGuard::new`](crate::pm::RuntimeGuard::new) if the object may be in
    ///   VRAM.
    pub fn new(
        dev: &drm::Device<T::Driver>,
        size: usize,
        places: &[Place],
        ctx: &mut OpCtx,
        args: T::Args,
    ) -> Result<ARef<Self>> {
        Self::new_with(dev, size, places, ctx, args, None)
    }

    fn new_with(
        dev: &drm::Device<T::Driver>,
        size: usize,
        places: &[Place],
        ctx: &mut OpCtx,
        args: T::Args,
        shared: Option<ResvRef>,
    ) -> Result<ARef<Self>> {
        if size == 0 {
            return Err(EINVAL);
        }
        let size = page_align(size).ok_or(ENOSPC)?;
        // TTM counts the pages of a transfer with 32 bits.
        u32::try_from(size >> PAGE_SHIFT).map_err(|_| ENOSPC)?;
        let ttm = T::ttm(dev);
        let places = ttm.fitting(places, size as u64)?;
        let _runtime_guard = places
            .iter()
            .any(|place| place.mem_type() == MemType::Vram)
            .then(|| ttm.runtime_guard())
            .transpose()?;
        let first = places.without_eviction();
        let obj = Self::make(dev, size, &first, ctx, args, None, shared)?;

        // An eviction may have to wait for the reservations of other objects. This needs a ticket.
        let flags = if ctx.is_interruptible() {
            Flag::Interruptible.into()
        } else {
            Flags::default()
        };
        let is_placed = |mem_type| {
            places
                .iter()
                .any(|place| mem_type == Some(place.mem_type()))
        };
        if !is_placed(obj.reserve(false)?.mem_type()) {
            ttm.exec_as_is(flags, |exec| {
                let mut object = obj.lock(exec)?.ok_or(EALREADY)?;

                match &obj.shared {
                    None => object.validate(&places, ctx),
                    Some(shared) => {
                        ctx.with_siblings(shared.resv(), |ctx| object.validate(&places, ctx))
                    }
                }
            })?;
        }
        Ok(obj)
    }

    /// Creates an object of `size` bytes, a multiple of the page size, in one of `places`.
    ///
    /// An object with `import` has neither pages nor VRAM.
    fn make(
        dev: &drm::Device<T::Driver>,
        size: usize,
        places: &[Place],
        ctx: &mut OpCtx,
        args: T::Args,
        import: Option<Import>,
        shared: Option<ResvRef>,
    ) -> Result<ARef<Self>> {
        let drm = dev.as_raw();
        let ttm = T::ttm(dev);
        let bdev = ttm.bdev(drm)?;
        let room = RBTreeNodeReservation::new(GFP_KERNEL)?;
        // The caller holds a shared reservation during the creation; the object keeps its owner.
        let buf = import.as_ref().map(|import| ARef::from(import.dma_buf()));
        let kept = shared.clone();

        let obj = KBox::pin_init(
            try_pin_init!(Self {
                bo: Opaque::zeroed(),
                exported: UnsafeCell::new(ptr::null_mut()),
                pins: UnsafeCell::new(Pins {
                    off_lru: false,
                    exporter: None,
                    client: Client::NONE,
                    charged: None,
                    group: None,
                    stay: Stay::Undecided,
                }),
                backup: UnsafeCell::new(None),
                shown: UnsafeCell::new(false),
                direct: Direct::new(),
                last_placement: Atomic::new(trace::NO_PLACEMENT),
                loss: ttm.new_loss()?,
                seen: Atomic::new(0),
                import,
                shared,
                data <- T::new(dev, size, args),
            }),
            GFP_KERNEL,
        )?;

        // SAFETY: The value is not moved. It belongs to its references from here on.
        let this = KBox::into_raw(unsafe { Pin::into_inner_unchecked(obj) });
        // SAFETY: The value was just allocated.
        let bo = unsafe { (*this).bo.get() };

        let (bo_type, resv) = match &buf {
            Some(buf) => (bindings::ttm_bo_type_ttm_bo_type_sg, Some(buf.resv())),
            None => (
                bindings::ttm_bo_type_ttm_bo_type_device,
                kept.as_ref().map(|kept| kept.resv()),
            ),
        };
        // SAFETY: The value is zeroed where TTM initializes it. A shared reservation is valid as
        // long as the object, because the object keeps its owner.
        unsafe { Self::init_reserved(bdev, bo, bo_type, drm, size, places, ctx, resv) }?;

        // INVARIANT: The object was initialized above, with a reference to the device.
        // SAFETY: The value is valid, and the reference is its first.
        let obj: ARef<Self> = unsafe { ARef::from_raw(NonNull::new_unchecked(this)) };
        // SAFETY: The object was created with its reservation held.
        unsafe {
            LockedObject::assume(&*obj).take_off_lru();
            if let Some(import) = &obj.import {
                import.follow(obj.as_raw());
            }
            bindings::dma_resv_unlock((*obj.as_raw()).resv);
        }
        // SAFETY: `free_callback` removes it.
        unsafe { ttm.insert(&obj, obj.id(), room) };
        obj.prepare_direct()?;
        Ok(obj)
    }

    /// Initializes the object of TTM and takes its reservation: `resv` or its own.
    ///
    /// # Safety
    ///
    /// `bo` must be that of a zeroed value of `Self`. The references of this value own it from here
    /// on, even if this fails. `bdev` and `drm` must be those of its device. `resv` must outlive
    /// it.
    #[allow(clippy::too_many_arguments)]
    unsafe fn init_reserved(
        bdev: *mut bindings::ttm_device,
        bo: *mut bindings::ttm_buffer_object,
        bo_type: bindings::ttm_bo_type,
        drm: *mut bindings::drm_device,
        size: usize,
        places: &[Place],
        ctx: &mut OpCtx,
        resv: Option<&DmaResv>,
    ) -> Result {
        let resv = resv.map_or(ptr::null_mut(), |resv| {
            // The code that unlocks the object unlocks it.
            core::mem::forget(resv.lock());
            resv.as_raw()
        });

        // SAFETY: As promised by the caller. `free_callback` puts the reference to the device. On
        // failure TTM calls `destroy_callback`. For an import it does so later, in a worker, and
        // takes the reservation there.
        unsafe {
            let gem = &raw mut (*bo).base;

            (*gem).funcs = const { &Self::FUNCS };
            bindings::drm_gem_private_object_init(drm, gem, size);
            bindings::drm_dev_get(drm);

            let mut placement = Place::list(places);
            to_result(bindings::ttm_bo_init_reserved(
                bdev,
                bo,
                bo_type,
                &mut placement,
                0,
                &mut ctx.0,
                ptr::null_mut(),
                resv,
                Some(destroy_callback::<T>),
            ))
            .inspect_err(|_| {
                if !resv.is_null() {
                    bindings::dma_resv_unlock(resv);
                }
                bindings::drm_dev_put(drm);
            })
        }
    }

    /// Locks the object together with others in a round of [`Exec`](drm::exec::Exec).
    ///
    /// With [`Flag::IgnoreDuplicates`], returns [`None`] if an object with the same reservation is
    /// already locked.
    ///
    /// # Errors
    ///
    /// The errors of [`ExecCtx::prepare_obj`].
    pub fn lock<'a>(&self, exec: &mut ExecCtx<'a>) -> Result<Option<LockedObject<'a, Object<T>>>> {
        let Some(_) = exec.prepare_obj(self, 0)? else {
            return Ok(None);
        };

        // SAFETY: The round has a reference to the object, holds the reservation and lasts for
        // `'a`.
        Ok(Some(unsafe { LockedObject::assume(&*ptr::from_ref(self)) }))
    }

    /// Returns the number of the object, unique among all past and present objects of the device.
    #[inline]
    pub fn id(&self) -> u64 {
        self.loss.id()
    }

    /// Returns whether the content is lost. Pending moves may still fail.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.loss.is_lost()
    }

    /// Returns where the object was after its last move, or [`None`] if it had no memory.
    ///
    /// For statistics: this does not need the reservation. Without it the object may move at any
    /// time.
    #[inline]
    pub fn last_placement(&self) -> Option<MemType> {
        MemType::from_raw(self.last_placement.load(Relaxed))
    }

    /// Returns how many bytes of the object were in VRAM visible to the CPU and peers, as
    /// [`Self::last_placement`] does.
    #[inline]
    pub fn visible_bytes(&self) -> u64 {
        self.seen.load(Relaxed)
    }

    /// Returns whether the object was in VRAM and evictable after its last move.
    pub(crate) fn may_leave_vram(&self) -> bool {
        // SAFETY: The object is valid. The count is only read and may change.
        let pins = unsafe { (&raw const (*self.bo()).pin_count).read_volatile() };

        self.last_placement() == Some(MemType::Vram)
            && self.domain() == Domain::Either
            && pins == 0
            && !self.loss.is_away()
    }

    /// Returns the object as the subject of a tracepoint.
    pub(crate) fn subject(&self) -> trace::Subject<'_> {
        trace::Subject {
            exporter: self.ttm().owner(),
            id: self.id(),
            size: self.size() as u64,
        }
    }

    /// Reserves the object.
    ///
    /// No other reservation may be held.
    ///
    /// # Errors
    ///
    /// `EINTR` if `interruptible` and a signal is pending.
    pub fn reserve(&self, interruptible: bool) -> Result<ObjectGuard<'_, T>> {
        ObjectGuard::new(self, interruptible)
    }

    /// Reserves the object unless another task has it. Never sleeps.
    pub(crate) fn try_reserve(&self) -> Option<ObjectGuard<'_, T>> {
        ObjectGuard::try_new(self)
    }

    /// Returns the object of a C structure or [`None`] if it is a ghost.
    ///
    /// # Safety
    ///
    /// `bo` must be an object of a device of `T`, valid for `'a`.
    pub(crate) unsafe fn from_bo<'a>(bo: *mut bindings::ttm_buffer_object) -> Option<&'a Self> {
        // A ghost is a bare copy of the C structure with a destructor and no GEM device. The device
        // of an object is set as long as the object exists.
        // SAFETY: `bo` is valid.
        if unsafe { (*bo).base.dev }.is_null() {
            return None;
        }

        // SAFETY: The object is not a ghost, hence it is an `Object<T>`.
        Some(unsafe { &*container_of!(Opaque::cast_from(bo), Self, bo) })
    }

    fn bo(&self) -> *mut bindings::ttm_buffer_object {
        self.bo.get()
    }

    /// Returns the memory in which the object was created, even if [`TtmObject::ttm`] has changed.
    pub(crate) fn ttm(&self) -> &drm::gem::ttm::Device<T> {
        // SAFETY: By the type invariant the object is one of such a device. The device is part of
        // the data of the DRM device and so valid as long as the object.
        unsafe { drm::gem::ttm::Device::from_raw((*self.bo()).bdev) }
    }
}

impl<T: TtmObject> Deref for Object<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

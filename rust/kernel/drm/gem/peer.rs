// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The export policy for GEM objects in VRAM: which importer reaches them, how, and why not.
//!
//! A driver implements [`PeerObject`] for its objects, keeps an [`Exports`] in its registration data,
//! and sets [`DriverObject::PRIME`](super::DriverObject::PRIME) to [`hooks`]. Where the objects are,
//! and whether they move, is up to their class, a [`Backing`]: [`gem::ttm`](super::ttm) has those that
//! TTM moves, [`gem::vram`](super::vram) is for those that stay in VRAM. They are then exported as
//! dma-bufs:
//!
//! - When an importer attaches, the path to it is measured and [`decide`] says what it gets: peer
//!   to peer by bus address, peer to peer through the host bridge, system memory, or a refusal with
//!   `EOPNOTSUPP`. Everything but peer to peer has a [`Reason`], which is kept.
//! - An importer that pins does so in VRAM if all importers are peers, else in system memory. For
//!   one that maps without a pin the object is moved in the same way; it is told when the object
//!   moves again.
//! - The CPU sees what devices wrote, and the other way, between the begin and the end of an access
//!   (`DMA_BUF_IOCTL_SYNC`).
//! - [`attachments`] lists the importers of an object and the most recent refusals; [`debugfs`]
//!   shows them for all objects, and [`Counters`] how often importers did not get peer memory.
//! - [`query`] tells what an importer would get, by the same facts and the same [`decide`].
//! - [`ioctl`] has both as ioctls.
//! - What importers do has tracepoints.
//! - Importing an object into the device it comes from gives the object itself. Other buffers are
//!   imported as objects that stand for them, if the driver wants to ([`PeerObject::import_args`]);
//!   [`import_info`] tells how the device reaches one.
//! - The device is kept awake while a peer is attached that cannot be told to let go, or that of an
//!   object which importers get in VRAM or not at all. Others get system memory while the device is
//!   suspended.
//! - Importers that cannot be told to let go have as much of VRAM as [`Unrevocable`] gives to them.
//! - When the driver is unbound, all importers are told, and their mappings are waited for.
//!
//! # Locking
//!
//! From the outside to the inside; nothing is taken in the other direction:
//!
//! 1. `drm_device.object_name_lock`, held by the DRM core when it exports or imports,
//! 2. the callbacks of the driver that suspend and resume the device, which are waited for before
//!    an attach and an export,
//! 3. the reservation of the object, which its dma-buf shares, held when this layer attaches, pins,
//!    maps, moves and lists,
//! 4. the mutex of the refusals, taken last and never while something else is done.
//!
//! C headers: [`include/drm/drm_prime.h`](srctree/include/drm/drm_prime.h),
//! [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

mod backing;
mod counters;
pub mod debugfs;
mod holders;
pub mod ioctl;
pub mod query;
pub(crate) mod trace;

pub use self::{
    backing::{
        Backing,
        Vram,
        Want, //
    },
    counters::{
        Counters,
        Event, //
    },
    holders::{
        Holders,
        Unrevocable, //
    }, //
};
pub use crate::dma_buf::peer::{
    Path,
    Reason, //
};

use self::{
    backing::{
        awake,
        awake_if_active,
        subject,
        with_reserved, //
    },
    query::Importer,
    trace::Act, //
};
use super::{
    import::Import,
    BaseObject,
    DriverObject,
    Held,
    IntoGEMObject,
    PrimeHooks, //
};
use crate::{
    bindings,
    device::{
        self,
        Bound, //
    },
    dma::DataDirection,
    dma_buf::{
        self,
        exporter::{
            assume_exporter_of,
            exporter_of,
            with_exporter_of,
            with_locked_exporter,
            AttachRequest,
            Attached,
            Exporter,
            Locked,
            MapRequest, //
        },
        mapping::Mapping,
        peer::{
            distance,
            Route, //
        },
        DmaBuf, //
    },
    drm::{
        self,
        vram::{
            Domain,
            MemType, //
        }, //
    },
    error::to_result,
    iosys_map::IosysMap,
    mm::virt::VmaNew,
    new_mutex,
    pci::{
        self,
        p2pdma::Provider, //
    },
    pm::{
        self,
        Awake,
        LastUse, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    types::CovariantForLt,
    uapi, //
};
use core::{
    marker::PhantomData,
    mem,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// What [`decide`] says about an importer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How the importer reaches the object.
    pub path: Path,
    /// Why it is not peer to peer.
    pub reason: Reason,
}

impl Outcome {
    /// The importer gets peer memory along `path`.
    #[inline]
    pub const fn peer(path: Path) -> Self {
        Self {
            path,
            reason: Reason::None,
        }
    }

    /// The importer gets system memory because of `reason`.
    #[inline]
    pub const fn system(reason: Reason) -> Self {
        Self {
            path: Path::System,
            reason,
        }
    }

    /// The importer gets nothing because of `reason`.
    #[inline]
    pub const fn refused(reason: Reason) -> Self {
        Self {
            path: Path::Refused,
            reason,
        }
    }

    /// Returns what the attach of the importer returns.
    ///
    /// # Errors
    ///
    /// `EDQUOT` if the limit of pinned VRAM is reached, and `EOPNOTSUPP` for all other refusals.
    pub const fn result(self) -> Result {
        match (self.path, self.reason) {
            (Path::Refused, Reason::Quota) => Err(EDQUOT),
            (Path::Refused, _) => Err(EOPNOTSUPP),
            _ => Ok(()),
        }
    }
}

/// All that is known about an importer and the object that it wants to attach to.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The exporting device is suspended.
    pub suspended: bool,
    /// What is between the importer and the memory.
    pub route: Route,
    /// The object is, or can be moved to, where the BAR shows all of it.
    pub inside_bar: bool,
    /// Where the object may live.
    pub domain: Domain,
    /// Importers get the object in VRAM or not at all, see [`PeerObject::vram_or_fail`].
    pub vram_or_fail: bool,
    /// Where the object is pinned, if it is.
    pub pinned: Option<MemType>,
    /// The importer cannot be told to let go, and the device does not give VRAM to such importers, see
    /// [`Unrevocable::Refuse`].
    pub unrevocable: bool,
}

/// Decides what an importer gets.
///
/// A pure function, so that all combinations can be tested. Where several reasons apply, that of the
/// route comes first, see [`Route::path`].
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::peer::Route,
///     drm::{
///         gem::peer::{
///             decide,
///             Facts,
///             Outcome,
///             Path,
///             Reason, //
///         },
///         vram::Domain, //
///     },
///     pci::p2pdma::MapType, //
/// };
///
/// let route = Route {
///     opted_in: true,
///     pci: true,
///     map_type: MapType::BUS_ADDR,
/// };
/// let below_one_switch = Facts {
///     suspended: false,
///     route,
///     inside_bar: true,
///     domain: Domain::Vram,
///     vram_or_fail: false,
///     pinned: None,
///     unrevocable: false,
/// };
/// assert_eq!(decide(&below_one_switch), Outcome::peer(Path::PeerBus));
///
/// // Without a route it depends on where the object may live.
/// let mut no_route = Facts {
///     route: Route {
///         map_type: MapType::NOT_SUPPORTED,
///         ..route
///     },
///     ..below_one_switch
/// };
/// assert_eq!(decide(&no_route), Outcome::refused(Reason::NoRoute));
///
/// no_route.domain = Domain::Either;
/// assert_eq!(decide(&no_route), Outcome::system(Reason::NoRoute));
///
/// // And on how it may be exported.
/// no_route.vram_or_fail = true;
/// assert_eq!(decide(&no_route), Outcome::refused(Reason::NoRoute));
/// ```
#[inline]
pub fn decide(facts: &Facts) -> Outcome {
    let path = match facts.route.path() {
        Ok(_) if !facts.inside_bar => Err(Reason::OutsideBar),
        Ok(_) if facts.suspended => Err(Reason::Suspended),
        Ok(_) if facts.unrevocable && facts.domain != Domain::System => Err(Reason::NotRevocable),
        path => path,
    };
    let pinned_in_vram = facts.pinned == Some(MemType::Vram);
    let vram_or_fail = facts.vram_or_fail || facts.domain == Domain::Vram;

    let reason = match path {
        Ok(_) if facts.domain == Domain::System => Reason::SystemOnly,
        Ok(_) if facts.pinned.is_some() && !pinned_in_vram => Reason::PinnedElsewhere,
        Ok(path) => return Outcome::peer(path),
        Err(_) if pinned_in_vram && !vram_or_fail => {
            return Outcome::refused(Reason::PinnedElsewhere)
        }
        Err(reason) => reason,
    };

    if vram_or_fail {
        Outcome::refused(reason)
    } else {
        Outcome::system(reason)
    }
}

/// The flags of an [`AttachmentInfo`], `DRM_PEER_IMPORTER_*`.
pub mod flags {
    use crate::uapi;

    /// The attachment is pinned.
    pub const PINNED: u32 = uapi::DRM_PEER_IMPORTER_PINNED;
    /// The attachment holds at least one mapping.
    pub const MAPPED: u32 = uapi::DRM_PEER_IMPORTER_MAPPED;
    /// The importer attached dynamically: it manages pinning itself.
    pub const DYNAMIC: u32 = uapi::DRM_PEER_IMPORTER_DYNAMIC;
    /// The importer can be told to drop its mapping.
    pub const REVOCABLE: u32 = uapi::DRM_PEER_IMPORTER_REVOCABLE;
    /// The importer opted in to peer memory.
    pub const PEER2PEER: u32 = uapi::DRM_PEER_IMPORTER_PEER2PEER;
}

/// The size of a name in an [`AttachmentInfo`] in bytes, with the NUL at its end.
// CAST: It is small.
pub const NAME_LEN: usize = uapi::DRM_PEER_NAME_LEN as usize;

/// A name, cut to fit and filled up with NUL bytes.
pub type Name = [u8; NAME_LEN];

/// Cuts a name to fit.
fn cut(name: &CStr) -> Name {
    let mut buf = [0; NAME_LEN];
    let bytes = name.to_bytes();
    let len = bytes.len().min(NAME_LEN - 1);

    buf[..len].copy_from_slice(&bytes[..len]);
    buf
}

/// One importer of an object, attached or refused.
#[derive(Clone, Copy)]
pub struct AttachmentInfo {
    /// The name of the importing device.
    pub name: Name,
    /// The name of the driver that the device had when it attached, see
    /// [`AttachRequest::driver_name`]. Empty until it is set.
    pub driver: Name,
    /// When it was refused.
    pub refused_at: Option<Instant<Monotonic>>,
    /// What the importer got.
    pub outcome: Outcome,
    /// PCI hops to the importer; [`None`] where there is no route or the importer is not PCI.
    pub distance: Option<u32>,
    /// A combination of [`flags`].
    pub flags: u32,
}

impl AttachmentInfo {
    /// Describes the importer `name`.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::drm::gem::peer::{
    ///     AttachmentInfo,
    ///     Outcome,
    ///     Reason,
    ///     NAME_LEN, //
    /// };
    ///
    /// let long = c"a-device-with-a-name-of-more-than-31-bytes";
    /// let info = AttachmentInfo::new(long, Outcome::refused(Reason::NotPci), None, 0);
    ///
    /// assert_eq!(&info.name[..8], b"a-device");
    /// assert_eq!(info.name[NAME_LEN - 1], 0);
    /// assert_eq!(info.hops(), -1);
    /// ```
    pub fn new(name: &CStr, outcome: Outcome, distance: Option<u32>, flags: u32) -> Self {
        Self {
            name: cut(name),
            driver: [0; NAME_LEN],
            refused_at: None,
            outcome,
            distance,
            flags,
        }
    }

    /// Returns the distance in PCI hops, or -1 where there is no route, as the uAPI has it.
    pub fn hops(&self) -> i32 {
        self.distance
            .and_then(|hops| i32::try_from(hops).ok())
            .unwrap_or(-1)
    }
}

/// How many refusals are kept for each object.
pub const MAX_REFUSALS: usize = 8;

/// The most recent refusals.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::gem::peer::{
///         AttachmentInfo,
///         Outcome,
///         Reason,
///         Refusals,
///         MAX_REFUSALS, //
///     }, //
/// };
///
/// let mut refusals = Refusals::new();
///
/// for hops in 0..10 {
///     let outcome = Outcome::refused(Reason::NoRoute);
///     refusals.push(AttachmentInfo::new(c"dev", outcome, Some(hops), 0));
/// }
///
/// // Ten were refused; the last eight are kept, oldest first.
/// assert_eq!(refusals.total(), 10);
/// assert!(refusals.iter().map(|r| r.hops()).eq(2..10));
/// assert_eq!(refusals.iter().count(), MAX_REFUSALS);
/// ```
pub struct Refusals {
    ring: [Option<AttachmentInfo>; MAX_REFUSALS],
    total: usize,
}

impl Default for Refusals {
    fn default() -> Self {
        Self::new()
    }
}

impl Refusals {
    /// Nobody was refused yet.
    pub const fn new() -> Self {
        Self {
            ring: [None; MAX_REFUSALS],
            total: 0,
        }
    }

    /// Adds a refusal; the oldest one makes room for it.
    pub fn push(&mut self, refusal: AttachmentInfo) {
        self.ring[self.total % MAX_REFUSALS] = Some(refusal);
        self.total = self.total.wrapping_add(1);
    }

    /// Returns how many importers were refused, including those that are not kept any more.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Iterates over the refusals that are kept, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &AttachmentInfo> {
        let (newer, older) = self.ring.split_at(self.total % MAX_REFUSALS);

        Iterator::chain(older.iter(), newer).flatten()
    }
}

/// A GEM object that peers may access in VRAM.
///
/// See [`gem::ttm`](super::ttm) for an example.
pub trait PeerObject: DriverObject<Driver: drm::Driver<Object = Self::Class>> {
    /// The class of the objects, such as [`gem::ttm::Object<Self>`](super::ttm::Object).
    type Class: Backing<Data = Self> + drm::driver::AllocImpl<Driver = Self::Driver>;

    /// The table of dma-buf operations of this class.
    ///
    /// It refers to a `static` of the driver, see [`Exporter::OPS`]: by its address the driver
    /// tells its own buffers.
    const OPS: &'static Ops<Self>;

    /// Returns the list of exported buffers, which the driver keeps in its registration data.
    fn exports<'a>(
        reg: &'a <Self::Driver as drm::Driver>::RegistrationData<'a>,
    ) -> &'a Exports<'a, Self>;

    /// Tells whether importers get the object in VRAM or not at all.
    ///
    /// An object that may live in system memory as well still moves there for want of room. It is
    /// moved back when an importer maps or pins it, and if that is not possible the importer gets an
    /// error. One that never leaves VRAM is exported in this way whatever this says; of one that is
    /// never in VRAM nobody gets anything if this is true. The answer does not change.
    fn vram_or_fail(&self) -> bool {
        false
    }

    /// Returns what the driver makes an object of that stands for a buffer of another device,
    /// [`None`] if it does not import any.
    fn import_args() -> Option<Self::Args> {
        None
    }
}

type Object<T> = <T as PeerObject>::Class;

/// The table of dma-buf operations of a class of objects.
pub type Ops<T> = dma_buf::Ops<GemExport<T>>;

/// The list of the exported buffers of a bound driver. Dropping it takes them all back.
pub type Exports<'a, T> = dma_buf::Exports<'a, GemExport<T>>;

/// Makes an empty list of exported buffers for the driver of `pdev`, whose BAR `bar` is VRAM.
///
/// [`enable_p2pdma`](pci::Device::enable_p2pdma) comes before. The list belongs into the
/// registration data of the DRM device, before whatever is needed to access VRAM, so that it is
/// dropped first.
///
/// # Errors
///
/// - `EINVAL` if there is no such BAR or it is not a memory BAR.
/// - `ENXIO` if peer-to-peer was not enabled.
/// - `ENOMEM` if memory runs out.
pub fn exports<T: PeerObject>(pdev: &pci::Device<Bound>, bar: u32) -> Result<Exports<'_, T>> {
    Exports::new(pdev, |pdev: &pci::Device<Bound>| pdev.p2pdma_provider(bar))
}

/// What is kept for each attachment.
pub struct Attachment {
    driver: Name,
    outcome: Outcome,
    opted_in: bool,
    /// For a peer that does not let go of VRAM, or does not take anything else: it can map at any
    /// time, with the reservation held, when it is too late to resume the device.
    awake: Option<Awake>,
}

/// A GEM object that is exported as a dma-buf.
pub struct GemExport<T: PeerObject> {
    // Dropped before its device, which it needs until it is freed.
    obj: ARef<Object<T>>,
    dev: ARef<drm::Device<T::Driver>>,
    /// The address of the dma-buf, 0 until the object knows it.
    buf: Atomic<usize>,
    /// The number of its inode. The reservation guards it.
    inode: Atomic<u64>,
    /// How many pins of VRAM there are by importers that cannot be told to let go. The reservation
    /// guards it.
    held: Atomic<usize>,
    /// A peer was given system memory because the device was suspended. The reservation guards it.
    suspended: Atomic<bool>,
    /// When an importer has mapped the object in VRAM.
    last_use: LastUse,
    refusals: Pin<KBox<Mutex<Refusals>>>,
}

impl<T: PeerObject> GemExport<T> {
    /// Returns the object, whose reservation is that of the dma-buf.
    fn object(&self, _cx: &Locked<'_, Self>) -> Held<'_, Object<T>> {
        // SAFETY: A `Locked` dma-buf exists only while its reservation is held, and there is one
        // `GemExport` for each.
        unsafe { Held::assume(&*self.obj) }
    }

    /// Returns how the importers of the object fared.
    fn counters(&self) -> &Counters {
        self.obj.vram().counters()
    }

    /// Tells the tracepoint what an importer did, and what came of it.
    fn trace(&self, act: Act, importer: &device::Device, outcome: Outcome, ret: Result) {
        if trace::is_on(act) {
            let (path, reason) = (outcome.path.code(), outcome.reason.code());

            trace::importer(act, subject(&*self.obj), importer, path, reason, ret);
        }
    }

    /// Returns what an importer has, which is not what it could have, where the object is now.
    fn outcome_now(&self, cx: &Locked<'_, Self>, at: &Attached<'_, Self>) -> Outcome {
        let object = self.object(cx);
        let outcome = at.data().outcome;

        if !outcome.path.is_peer() || Object::<T>::mem_type(&object) == Some(MemType::Vram) {
            return outcome;
        }
        let reason = if !all_peers(cx) {
            Reason::OtherImporter
        } else if self.suspended.load(Relaxed) {
            Reason::Suspended
        } else if Object::<T>::is_pinned(&object) {
            Reason::PinnedElsewhere
        } else {
            Reason::NoVram
        };

        if vram_or_fail::<T>(&self.obj) {
            Outcome::refused(reason)
        } else {
            Outcome::system(reason)
        }
    }

    /// Finds out what [`decide`] needs to know about an object and an importer, to which `route`
    /// leads.
    fn facts(
        object: &Held<'_, Object<T>>,
        importer: &Importer<'_>,
        route: Route,
        suspended: bool,
    ) -> Facts {
        let obj = object.object();
        let pinned = Object::<T>::mem_type(object).filter(|_| Object::<T>::is_pinned(object));

        Facts {
            suspended,
            route,
            inside_bar: Object::<T>::can_be_seen(object),
            domain: obj.domain(),
            vram_or_fail: obj.data().vram_or_fail(),
            pinned,
            unrevocable: importer.is_unrevocable(obj.vram().holders()),
        }
    }

    /// Takes note that an importer uses the device; returns whether that is awake.
    fn note_use(&self, at: &Attached<'_, Self>) -> bool {
        let dev = self.obj.owner();

        // A device that the attachment keeps awake has its delay from when that is gone.
        if at.data().awake.is_some() {
            !pm::is_suspended(dev)
        } else {
            self.last_use.note(dev)
        }
    }

    /// Tells whether an attachment is one of those that [`Holders`] is about.
    fn is_holder(at: &Attached<'_, Self>) -> bool {
        at.data().outcome.path.is_peer() && !at.is_revocable()
    }

    /// Returns where the object is to be while all of its importers use it. `awake` says whether the
    /// device is.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if it has to be in VRAM, and that is out of reach.
    fn wanted(&self, cx: &Locked<'_, Self>, awake: bool) -> Result<Want> {
        match self.obj.domain() {
            // Its peers keep the device awake; who else maps it gets nothing.
            _ if vram_or_fail::<T>(&self.obj) && !awake => Err(EAGAIN),
            _ if vram_or_fail::<T>(&self.obj) => Ok(Want::Vram),
            // Not evicted from there for the sake of system memory.
            Domain::Either if all_peers(cx) && awake => Ok(Want::VramFirst),
            _ => Ok(Want::System),
        }
    }

    /// Tells whether the object is in VRAM and [`Self::wanted`] would have it there, which takes
    /// less than to validate it.
    fn is_in_first_place(&self, cx: &Locked<'_, Self>) -> bool {
        Object::<T>::is_seen(&self.object(cx))
            && self.obj.domain() != Domain::System
            && (vram_or_fail::<T>(&self.obj) || all_peers(cx))
    }

    /// Pins the object for an importer, in VRAM if all importers can access it there.
    fn try_pin(&self, cx: &Locked<'_, Self>, at: &Attached<'_, Self>) -> Result {
        let mut object = self.object(cx);
        let ret = self.place_and_pin(cx, &mut object, at);

        // It may have failed after that.
        Object::<T>::uncharge(&mut object);
        ret
    }

    fn place_and_pin(
        &self,
        cx: &Locked<'_, Self>,
        object: &mut Held<'_, Object<T>>,
        at: &Attached<'_, Self>,
    ) -> Result {
        let awake = awake_if_active(&*self.obj);

        if !Object::<T>::is_pinned(object) {
            let want = self.wanted(cx, awake.is_some())?;

            // Before anybody is evicted for it.
            if want != Want::System {
                Object::<T>::charge(object)?;
            }

            // With both at once an object would stay in system memory rather than evict others.
            let first = if want == Want::VramFirst {
                Want::Vram
            } else {
                want
            };
            match Object::<T>::bring(object, first, true, true) {
                Err(e) if e == ENOSPC && want == Want::VramFirst => {
                    Object::<T>::bring(object, Want::System, true, false)
                }
                // What holds it up takes too long. The core warns about the other error.
                Err(e) if e == EBUSY => Err(ETIMEDOUT),
                ret => ret,
            }?;
            if Object::<T>::mem_type(object) != Some(MemType::Vram) {
                Object::<T>::uncharge(object);
            }
        }

        // Pinned by an importer that was attached before, or by one that is no device.
        let can = match Object::<T>::mem_type(object) {
            Some(MemType::Vram) => at.data().outcome.path.is_peer(),
            _ => !vram_or_fail::<T>(&self.obj),
        };
        if !can {
            return Err(EOPNOTSUPP);
        }
        self.note_place(object, at, awake.is_some());
        if Object::<T>::mem_type(object) != Some(MemType::Vram) {
            return Object::<T>::pin(object);
        }

        // It stays in VRAM for as long as it is pinned.
        let awake = awake.ok_or(EAGAIN)?;
        Object::<T>::pin(object)?;
        awake.forget();
        Ok(())
    }

    /// Takes note of why a peer gets system memory, if it does.
    fn note_place(&self, object: &Held<'_, Object<T>>, at: &Attached<'_, Self>, awake: bool) {
        if at.data().outcome.path.is_peer() {
            let in_vram = Object::<T>::mem_type(object) == Some(MemType::Vram);

            self.suspended.store(!in_vram && !awake, Relaxed);
        }
    }

    /// Pins the object, as [`Self::try_pin`], on the account of those who do not let go of it.
    ///
    /// The reason is why it failed, if it did.
    fn charge_and_pin(
        &self,
        cx: &Locked<'_, Self>,
        at: &Attached<'_, Self>,
    ) -> core::result::Result<(), (Error, Reason)> {
        let holders = self.obj.vram().holders();
        let size = self.obj.size() as u64;
        // Before anybody is evicted for it.
        let charged = Self::is_holder(at) && self.held.load(Relaxed) == 0;
        if charged {
            holders
                .charge(size)
                .map_err(|e| (e, Reason::NotRevocable))?;
        }

        let ret = self.try_pin(cx, at);
        let holds = Self::is_holder(at)
            && ret.is_ok()
            && Object::<T>::mem_type(&self.object(cx)) == Some(MemType::Vram);
        if holds {
            self.held.add(1, Relaxed);
        } else if charged {
            holders.uncharge(size);
        }

        ret.map_err(|e| match e {
            e if e == EDQUOT => (e, Reason::Quota),
            e if e == EOPNOTSUPP => (e, Reason::PinnedElsewhere),
            e if e == ENOSPC => (e, Reason::NoVram),
            e if e == EAGAIN => (e, Reason::Suspended),
            // A signal, or no memory for other things.
            e => (e, Reason::None),
        })
    }

    /// Maps the object for an importer, where it is or where it is to be for all of them.
    fn try_map<'r>(
        &self,
        cx: &Locked<'_, Self>,
        at: &MapRequest<'r, Self>,
        dir: DataDirection,
    ) -> Result<Mapping<'r>> {
        let mut object = self.object(cx);
        // The driver moves what is exported before the device is suspended, with the reservation held,
        // and importers are told. Importers of what does not move keep the device awake.
        let stays =
            Object::<T>::is_pinned(&object) || (self.is_in_first_place(cx) && self.note_use(at));
        // Keeps the device awake until the object has moved.
        let awake = (!stays).then(|| awake_if_active(&*self.obj)).flatten();

        if !stays {
            let want = self.wanted(cx, awake.is_some())?;

            Object::<T>::bring(&mut object, want, false, vram_or_fail::<T>(&self.obj))?;
            self.note_place(&object, at, awake.is_some());
        }
        Object::<T>::touch(&object);

        if Object::<T>::mem_type(&object) == Some(MemType::Vram) {
            if !at.data().outcome.path.is_peer() {
                return Err(EOPNOTSUPP);
            }
            return at.map_mmio(
                |bound| Ok(*bound),
                Object::<T>::in_bar(&object, cx.bound())?,
                dir,
            );
        }
        // Pinned by one that is no device.
        if vram_or_fail::<T>(&self.obj) {
            return Err(EOPNOTSUPP);
        }

        let pages = Object::<T>::pages(&mut object)?;
        // SAFETY: The pages stay until the object moves, before which importers are told and fences
        // are waited for, or is gone, which is after the last mapping.
        unsafe { at.map_raw_pages(pages, dir) }
    }
}

/// Tells whether importers get an object in VRAM or not at all.
fn vram_or_fail<T: PeerObject>(obj: &Object<T>) -> bool {
    obj.data().vram_or_fail() || obj.domain() == Domain::Vram
}

/// Tells whether all importers of a buffer can have peer memory.
fn all_peers<T: PeerObject>(cx: &Locked<'_, GemExport<T>>) -> bool {
    cx.attachments().all(|at| at.data().outcome.path.is_peer())
}

#[vtable]
impl<T: PeerObject> Exporter for GemExport<T> {
    type OwnerModule = <T::Driver as drm::Driver>::OwnerModule;
    type Bound = CovariantForLt!(Provider<'_>);
    type Prepared = Option<Result<Awake>>;
    type Attachment = Attachment;

    const NAME: &'static CStr = <T::Driver as drm::Driver>::INFO.name;
    const OPS: &'static Ops<T> = T::OPS;

    fn prepare_attach(&self) -> Option<Result<Awake>> {
        // A peer will want VRAM soon.
        (self.obj.domain() != Domain::System).then(|| awake(&*self.obj))
    }

    fn attach(
        &self,
        cx: &Locked<'_, Self>,
        req: &mut AttachRequest<'_>,
        awake: Option<Result<Awake>>,
    ) -> Result<Attachment> {
        let suspended = matches!(&awake, Some(Err(_)));
        let importer = Importer::of(req);
        let route = Route::new(cx.bound(), req);
        let facts = Self::facts(&self.object(cx), &importer, route, suspended);
        let outcome = decide(&facts);
        let driver = cut(req.driver_name());

        match outcome.path {
            Path::System => self.counters().count(Event::AttachSystem, outcome.reason),
            Path::Refused => self.counters().count(Event::AttachRefused, outcome.reason),
            _ => (),
        }
        self.trace(Act::Attach, req.device(), outcome, outcome.result());

        if outcome.path == Path::Refused {
            let (name, hops) = (req.device().name(), distance(cx.bound(), req.device()));
            let refusal = AttachmentInfo {
                driver,
                refused_at: Some(Instant::now()),
                ..AttachmentInfo::new(name, outcome, hops, importer.flags())
            };
            self.refusals.lock().push(refusal);
        } else if outcome.path == Path::System {
            req.clear_peer2peer();
        }

        outcome.result()?;
        let keeps_awake =
            outcome.path.is_peer() && (vram_or_fail::<T>(&self.obj) || !req.is_revocable());
        Ok(Attachment {
            driver,
            outcome,
            opted_in: route.opted_in,
            awake: awake.and_then(Result::ok).filter(|_| keeps_awake),
        })
    }

    fn pin(&self, cx: &Locked<'_, Self>, at: &Attached<'_, Self>) -> Result {
        let ret = self.charge_and_pin(cx, at);
        let outcome = match ret {
            Ok(()) => self.outcome_now(cx, at),
            Err((_, reason)) => Outcome::refused(reason),
        };
        let ret = ret.map_err(|(e, _)| e);

        if outcome.path == Path::Refused {
            self.counters().count(Event::PinRefused, outcome.reason);
        }
        self.trace(Act::Pin, at.device(), outcome, ret);
        ret
    }

    fn unpin(&self, _buf: &DmaBuf, at: &Attached<'_, Self>) {
        // SAFETY: Called with the reservation held.
        let mut object = unsafe { Held::assume(&*self.obj) };
        let in_vram = Object::<T>::mem_type(&object) == Some(MemType::Vram);

        Object::<T>::unpin(&mut object);
        if in_vram {
            // SAFETY: An object does not move while it is pinned, so it was in VRAM when this pin was
            // made, which forgot one.
            drop(unsafe { Awake::from_forgotten(self.obj.owner()) });
            if Self::is_holder(at) && self.held.fetch_sub(1, Relaxed) == 1 {
                self.obj.vram().holders().uncharge(self.obj.size() as u64);
            }
        }
        // What it had, for all that is known here, is what it could have.
        self.trace(Act::Unpin, at.device(), at.data().outcome, Ok(()));
    }

    fn map<'r>(
        &self,
        cx: &Locked<'_, Self>,
        at: &MapRequest<'r, Self>,
        dir: DataDirection,
    ) -> Result<Mapping<'r>> {
        let ret = self.try_map(cx, at, dir);
        let outcome = self.outcome_now(cx, at);
        let result = ret.as_ref().map(|_| ()).map_err(|e| *e);

        match ret {
            Ok(_) if outcome.path == Path::System => {
                self.counters().count(Event::MapSystem, outcome.reason);
            }
            Err(_) if outcome.path == Path::Refused => {
                self.counters().count(Event::MapRefused, outcome.reason);
            }
            _ => (),
        }
        self.trace(Act::Map, at.device(), outcome, result);
        ret
    }

    fn unmap(&self, at: &Attached<'_, Self>) {
        self.trace(Act::Unmap, at.device(), at.data().outcome, Ok(()));
    }

    fn begin_cpu_access(&self, cx: &Locked<'_, Self>, _dir: DataDirection) -> Result {
        // The CPU does not cache VRAM. System memory is taken from the devices also if the CPU is
        // going to write: it may write a part only, and gives back the whole.
        for at in cx.attachments() {
            at.sync_for_cpu();
        }
        Ok(())
    }

    fn end_cpu_access(&self, cx: &Locked<'_, Self>, dir: DataDirection) -> Result {
        for at in cx.attachments() {
            at.sync_for_device(dir);
        }
        if dir == DataDirection::FromDevice {
            return Ok(());
        }
        Object::<T>::flush(&self.object(cx))
    }

    fn mmap(&self, _buf: &DmaBuf, vma: &VmaNew) -> Result {
        // SAFETY: The object is valid, and the area is that of an `mmap()` that is under way.
        to_result(unsafe { bindings::drm_gem_prime_mmap(self.obj.as_raw(), vma.as_ptr()) })
    }

    fn vmap(&self, _cx: &Locked<'_, Self>) -> Result<IosysMap> {
        let obj = self.obj.as_raw();
        // SAFETY: The object is valid, and its functions never change.
        let vmap = unsafe { (*(*obj).funcs).vmap }.ok_or(EOPNOTSUPP)?;
        let mut map = bindings::iosys_map::default();

        // SAFETY: The object is valid, and its reservation, which is that of the dma-buf, is held.
        to_result(unsafe { vmap(obj, &mut map) })?;
        Ok(IosysMap::from_raw(map))
    }

    fn revoke(&self) {
        let placement = self
            .obj
            .residence()
            .map_or(trace::NO_PLACEMENT, MemType::as_raw);

        trace::invalidate(subject(&*self.obj), placement);
    }

    fn release(&self) {
        // Without signals it does not fail.
        let _ = with_reserved(&*self.obj, false, |object| {
            // A dma-buf that the object does not know is one whose export failed; there may be
            // another one by now.
            if Object::<T>::exported(object).addr() == self.buf.load(Relaxed) {
                // SAFETY: There is no dma-buf any more.
                unsafe { Object::<T>::set_exported(object, ptr::null_mut()) };
            }
            Ok(())
        });
    }

    fn vunmap(&self, _buf: &DmaBuf, map: IosysMap) {
        let obj = self.obj.as_raw();

        // SAFETY: The object is valid, and its functions never change.
        if let Some(vunmap) = unsafe { (*(*obj).funcs).vunmap } {
            // SAFETY: The object is valid, its reservation is held, and `map` is what its `vmap`
            // returned.
            unsafe { vunmap(obj, &mut map.into_raw()) };
        }
    }
}

/// Makes the list of the refusals of an object.
///
/// Not generic and not inlined, so that the lock class and its name stay in the kernel crate.
#[inline(never)]
fn new_refusals() -> Result<Pin<KBox<Mutex<Refusals>>>> {
    KBox::pin_init(
        new_mutex!(Refusals::new(), "drm::gem::peer::Refusals"),
        GFP_KERNEL,
    )
}

/// Returns the callbacks for [`DriverObject::PRIME`](super::DriverObject::PRIME).
pub const fn hooks<T: PeerObject>() -> PrimeHooks<T> {
    // INVARIANT: The callbacks expect objects of the class `Object<T>`.
    PrimeHooks {
        export: Some(export_callback::<T>),
        import: Some(import_callback::<T>),
        _p: PhantomData,
    }
}

/// # Safety
///
/// Called by the DRM core with an object of the class `Object<T>` that has a handle.
unsafe extern "C" fn export_callback<T: PeerObject>(
    obj: *mut bindings::drm_gem_object,
    flags: c_int,
) -> *mut bindings::dma_buf {
    // SAFETY: The object is valid and of this class.
    let obj: &Object<T> = unsafe { IntoGEMObject::from_raw(obj) };

    match export::<T>(obj, flags) {
        Ok(buf) => ARef::into_raw(buf).as_ptr().cast(),
        Err(e) => e.to_ptr(),
    }
}

fn export<T: PeerObject>(obj: &Object<T>, flags: c_int) -> Result<ARef<DmaBuf>> {
    if let Some(buf) = obj.imported() {
        return Ok(buf.into());
    }

    let raw = obj.as_raw();

    // An object that is exported leaves VRAM when the device is suspended the next time, so that those
    // who cannot resume the device reach it. It does not leave while the device is suspended.
    let _awake = (obj.domain() != Domain::System)
        .then(|| awake(obj))
        .transpose();

    // The DRM core keeps the dma-buf of an object that has handles; one that is still used by
    // others after the last handle was closed is imported again, not exported.
    with_reserved(obj, true, |object| {
        if Object::<T>::exported(object).is_null() {
            Ok(())
        } else {
            Err(EBUSY)
        }
    })?;

    // SAFETY: The device of a valid object is valid. Only objects of registered devices have
    // handles, and so are exported.
    let dev: &drm::Device<T::Driver, drm::Ioctl> = unsafe { drm::Device::from_raw((*raw).dev) };
    let guard = dev.registration_guard().ok_or(ENODEV)?;
    let normal: &drm::Device<T::Driver> = dev;

    let export = GemExport::<T> {
        obj: obj.into(),
        dev: normal.into(),
        buf: Atomic::new(0),
        inode: Atomic::new(0),
        held: Atomic::new(0),
        suspended: Atomic::new(false),
        last_use: LastUse::new(),
        refusals: new_refusals()?,
    };

    let buf = guard.registration_data_with(|reg| {
        // CAST: Flags of `open()` are not negative.
        // SAFETY: The reservation is that of the object, which `export` keeps alive.
        unsafe { T::exports(reg).export_with_resv(export, obj.size(), flags as u32, (*raw).resv) }
    })?;

    // An object that does not know of its dma-buf would not tell importers when it moves, so this
    // must not depend on whether the table of `T` has one address.
    // SAFETY: It was made above, of a `GemExport<T>`.
    let export = unsafe { assume_exporter_of::<GemExport<T>>(&buf) };
    // SAFETY: There is a reference to the dma-buf, so its file is valid, and so is the inode of that.
    let inode = unsafe { (*(*(*buf.as_raw()).file).f_inode).i_ino };
    with_reserved(obj, false, |object| {
        export.buf.store(buf.as_raw().addr(), Relaxed);
        export.inode.store(inode, Relaxed);
        // SAFETY: The dma-buf shares the reservation of the object; when it is released the pointer
        // is taken back.
        unsafe { Object::<T>::set_exported(object, buf.as_raw()) };
        Ok(())
    })?;

    // As `drm_gem_dmabuf_export()` does: mappings of the dma-buf are mappings of the device.
    // SAFETY: The dma-buf and the device are valid, and nobody else uses the file yet.
    unsafe { (*(*buf.as_raw()).file).f_mapping = (*(*(*raw).dev).anon_inode).i_mapping };
    Ok(buf)
}

/// # Safety
///
/// Called by the DRM core with a device of `T::Driver` and a valid dma-buf.
unsafe extern "C" fn import_callback<T: PeerObject>(
    dev: *mut bindings::drm_device,
    buf: *mut bindings::dma_buf,
) -> *mut bindings::drm_gem_object {
    // SAFETY: The dma-buf is valid for the time of the call.
    let dma_buf = unsafe { DmaBuf::from_raw(buf) };

    if let Some(export) = exporter_of::<GemExport<T>>(dma_buf) {
        if ptr::eq(export.dev.as_raw(), dev) {
            // The new handle refers to the object itself and not to the dma-buf. The caller gets
            // the reference.
            mem::forget(export.obj.clone());
            return export.obj.as_raw();
        }
    }

    // SAFETY: The device is valid. Only a registered device has files, and so imports.
    let dev: &drm::Device<T::Driver, drm::Ioctl> = unsafe { drm::Device::from_raw(dev) };
    // SAFETY: The class of objects lets the core import with the device lock held, and a driver bound,
    // if it imports at all.
    match unsafe { Object::<T>::import(dev, dma_buf.into()) } {
        // The caller gets the reference.
        Ok(obj) => {
            let raw = obj.as_raw();

            mem::forget(obj);
            raw
        }
        Err(e) => e.to_ptr(),
    }
}

/// How the device reaches a buffer that it imported, see [`import_info`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportInfo {
    /// What the exporter has decided, [`None`] if it is one that does not say.
    pub outcome: Option<Outcome>,
    /// How many pieces the mapping has.
    pub segments: u32,
    /// How often the exporter told the device to let go of the buffer.
    pub invalidations: u64,
}

/// Maps a buffer that was imported, unless it is mapped, and tells how the device reaches it.
///
/// Takes the reservation of the buffer.
///
/// # Errors
///
/// Those of [`Import::with_mapping`].
pub fn import_info<T: PeerObject>(import: &Import) -> Result<ImportInfo> {
    import.with_mapping(|at| {
        let segments = at.mapping().map_or(0, |table| table.iter().count());
        let outcome = with_exporter_of(at, |export: &GemExport<T>, cx, at| {
            Ok(export.outcome_now(cx, at))
        });

        Ok(ImportInfo {
            outcome: match outcome {
                Ok(outcome) => Some(outcome),
                // The buffer of another class.
                Err(e) if e == EINVAL => None,
                Err(e) => return Err(e),
            },
            segments: segments.try_into()?,
            invalidations: import.invalidations(),
        })
    })
}

/// Lists who uses `obj`: its attachments, oldest first, then the most recent refusals.
///
/// Takes the reservation of the object.
///
/// # Errors
///
/// - `ENODEV` if the exporting device is gone.
/// - `ENOMEM` if memory runs out.
pub fn attachments<T: PeerObject>(obj: &Object<T>) -> Result<KVec<AttachmentInfo>> {
    listing::<T>(obj).map(|(list, _)| list)
}

/// As [`attachments`], with the number of the inode of the dma-buf, which is 0 if there is none.
fn listing<T: PeerObject>(obj: &Object<T>) -> Result<(KVec<AttachmentInfo>, u64)> {
    with_reserved(obj, false, |object| listing_of::<T>(object))
}

fn listing_of<T: PeerObject>(object: &Held<'_, Object<T>>) -> Result<(KVec<AttachmentInfo>, u64)> {
    let mut list = KVec::new();
    let mut inode = 0;

    let Some(buf) = NonNull::new(Object::<T>::exported(object)) else {
        return Ok((list, inode));
    };
    // SAFETY: The object knows its dma-buf until that is released, which needs the reservation. No
    // reference is taken, as there may be none left.
    let buf = unsafe { DmaBuf::from_raw(buf.as_ptr()) };

    let add = |export: &GemExport<T>, cx: &Locked<'_, GemExport<T>>| {
        inode = export.inode.load(Relaxed);
        for at in cx.attachments() {
            let data = at.data();
            let mut flags = 0;

            for (set, flag) in [
                (at.pins() > 0, flags::PINNED),
                (at.maps() > 0, flags::MAPPED),
                (at.is_dynamic(), flags::DYNAMIC),
                (at.is_revocable(), flags::REVOCABLE),
                (data.opted_in, flags::PEER2PEER),
            ] {
                if set {
                    flags |= flag;
                }
            }

            // What it has mapped, or else what it could have.
            let outcome = if at.maps() > 0 {
                export.outcome_now(cx, &at)
            } else {
                data.outcome
            };
            let hops = distance(cx.bound(), at.device());
            let info = AttachmentInfo {
                driver: data.driver,
                ..AttachmentInfo::new(at.device().name(), outcome, hops, flags)
            };
            list.push(info, GFP_KERNEL)?;
        }

        // The mutex is not held while memory is allocated.
        list.reserve(MAX_REFUSALS, GFP_KERNEL)?;
        for refusal in export.refusals.lock().iter() {
            list.push_within_capacity(*refusal)?;
        }
        Ok(())
    };
    // SAFETY: The dma-buf shares the reservation of the object, which is held.
    unsafe { with_locked_exporter(buf, add) }?;
    Ok((list, inode))
}

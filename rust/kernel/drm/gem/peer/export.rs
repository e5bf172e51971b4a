// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An exported object: the operations of its importers.
//!
//! # Locking
//!
//! The reservation shared by the object and its dma-buf guards the fields of [`GemExport`].

use super::{
    backing::{
        runtime_guard,
        runtime_guard_if_active,
        subject,
        with_reserved, //
    },
    decide,
    importers::{
        cut,
        new_refusals, //
    },
    is_no_window,
    origin::Process,
    placement,
    placement_without_window,
    policy::needs_vram,
    query::Importer,
    trace::{
        self,
        Act, //
    },
    AttachmentInfo,
    Backing,
    Counters,
    Event,
    Facts,
    Name,
    Object,
    Ops,
    Outcome,
    Path,
    PeerObject,
    Placement,
    Reason,
    Refusals,
    Situation,
    Use, //
};
use crate::{
    bindings,
    device,
    dma::DataDirection,
    dma_buf::{
        exporter::{
            self,
            mapping::{
                Mapping,
                RangeList, //
            },
            AttachRequest,
            Attached,
            Exporter,
            KernelMapping,
            LockedBuffer,
            MapRequest,
            VmapRequest, //
        },
        peer::{
            distance,
            Route, //
        },
        DmaBuf, //
    },
    drm::{
        self,
        gem::{
            BaseObject,
            IntoGEMObject,
            LockedObject, //
        },
        vram::{
            Domain,
            MemType, //
        }, //
    },
    error::to_result,
    iosys_map::IosysMap,
    mm::virt::VmaNew,
    pci::p2pdma::Provider,
    pm::{
        self,
        LastUse,
        RuntimeGuard, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::Instant,
    types::CovariantForLt, //
};
use core::ptr;

/// The data of an attachment.
pub struct Attachment {
    pub(super) bus: Name,
    pub(super) driver: Name,
    pub(super) outcome: Outcome,
    pub(super) opted_in: bool,
    /// A runtime PM guard for a peer that is non-revocable or gets nothing but VRAM. Such a peer
    /// can map at any time with the reservation held, when it is too late to resume the device.
    runtime_guard: Option<RuntimeGuard>,
}

/// A GEM object mapped into the kernel until the value is dropped.
///
/// # Invariants
///
/// `map` is the result of the object's `vmap`. The reservation is held when the value is dropped.
struct GemMapping<T: PeerObject> {
    obj: ARef<Object<T>>,
    map: IosysMap,
}

impl<T: PeerObject> GemMapping<T> {
    /// Maps an object.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the class has no such mappings, and the errors of the class.
    ///
    /// # Safety
    ///
    /// The reservation of the object must be held now and when the value is dropped.
    unsafe fn new(obj: &Object<T>) -> Result<Self> {
        let raw = obj.as_raw();
        // SAFETY: The object is valid and its functions never change.
        let vmap = unsafe { (*(*raw).funcs).vmap }.ok_or(EOPNOTSUPP)?;
        let mut map = bindings::iosys_map::default();

        // SAFETY: The object is valid and its reservation is held.
        to_result(unsafe { vmap(raw, &mut map) })?;
        // INVARIANT: Mapped above.
        Ok(Self {
            obj: obj.into(),
            // SAFETY: The object stays mapped until the value is dropped.
            map: unsafe { IosysMap::from_raw(map) },
        })
    }
}

// SAFETY: A class maps all of an object. The size of an object never changes.
unsafe impl<T: PeerObject> KernelMapping for GemMapping<T> {
    fn map(&self) -> IosysMap {
        self.map
    }

    fn size(&self) -> usize {
        self.obj.size()
    }
}

impl<T: PeerObject> Drop for GemMapping<T> {
    fn drop(&mut self) {
        let obj = self.obj.as_raw();

        // SAFETY: The object is valid and its functions never change.
        if let Some(vunmap) = unsafe { (*(*obj).funcs).vunmap } {
            // SAFETY: The object is valid. By the type invariant its reservation is held and `map`
            // was returned by its `vmap`.
            unsafe { vunmap(obj, &mut self.map.into_raw()) };
        }
    }
}

/// A GEM object exported as a dma-buf.
pub struct GemExport<T: PeerObject> {
    // Dropped before its device: the object needs the device until it is freed.
    pub(super) obj: ARef<Object<T>>,
    pub(super) dev: ARef<drm::Device<T::Driver>>,
    /// The address of the dma-buf. 0 until the object knows it.
    pub(super) buf: Atomic<usize>,
    /// The inode number of the dma-buf. The reservation guards it.
    pub(super) inode: Atomic<u64>,
    /// The exporting process.
    pub(super) process: Process,
    /// The number of VRAM pins of non-revocable importers. The reservation guards it.
    held: Atomic<usize>,
    /// A peer was given system memory because the device was suspended. The reservation guards it.
    suspended: Atomic<bool>,
    /// The last map in VRAM found the aperture full. The reservation guards it.
    no_window: Atomic<bool>,
    /// When an importer last mapped the object in VRAM.
    last_use: LastUse,
    pub(super) refusals: Pin<KBox<Mutex<Refusals>>>,
}

impl<T: PeerObject> GemExport<T> {
    /// Describes an object before its export.
    pub(super) fn new(obj: &Object<T>, dev: &drm::Device<T::Driver>) -> Result<Self> {
        Ok(Self {
            obj: obj.into(),
            dev: dev.into(),
            buf: Atomic::new(0),
            inode: Atomic::new(0),
            process: Process::current(),
            held: Atomic::new(0),
            suspended: Atomic::new(false),
            no_window: Atomic::new(false),
            last_use: LastUse::new(),
            refusals: new_refusals()?,
        })
    }

    /// Returns the object, whose reservation is that of the dma-buf.
    fn object(&self, _cx: &LockedBuffer<'_, Self>) -> LockedObject<'_, Object<T>> {
        // SAFETY: A `LockedBuffer` dma-buf exists only while its reservation is held. Each dma-buf
        // has one `GemExport`.
        unsafe { LockedObject::assume(&*self.obj) }
    }

    /// Returns the counters of outcomes for importers of the device.
    fn counters(&self) -> &Counters {
        self.obj.vram().counters()
    }

    /// Traces an operation of an importer and its result.
    fn trace(&self, act: Act, importer: &device::Device, outcome: Outcome, ret: Result) {
        if trace::is_on(act) {
            let (path, reason) = (outcome.path.code(), outcome.reason.code());

            trace::importer(act, subject(&*self.obj), importer, path, reason, ret);
        }
    }

    /// Collects the facts for [`placement`] about an attached importer.
    fn situation(&self, cx: &LockedBuffer<'_, Self>, at: &Attached<'_, Self>) -> Situation {
        let no_window = Object::<T>::HAS_WINDOWS && self.no_window.load(Relaxed);

        Situation {
            attached: at.data().outcome,
            all_peers: cx.attachments().all(|at| at.data().outcome.path.is_peer()),
            mapped: no_window && cx.attachments().any(|at| at.maps() != 0),
            domain: self.obj.domain(),
            vram_or_fail: self.obj.data().vram_or_fail(),
            state: Object::<T>::state(&self.object(cx)),
            active: false,
            no_window,
            was_suspended: self.suspended.load(Relaxed),
        }
    }

    /// Returns how an importer reaches the object in its present place. This may be worse than the
    /// outcome of its attach.
    pub(in crate::drm::gem) fn outcome_now(
        &self,
        cx: &LockedBuffer<'_, Self>,
        at: &Attached<'_, Self>,
    ) -> Outcome {
        match at.data().outcome {
            outcome if !outcome.path.is_peer() => outcome,
            _ => self.situation(cx, at).outcome(),
        }
    }

    /// Collects the facts for [`decide`] about an object and an importer that `route` leads to.
    pub(super) fn facts(
        object: &LockedObject<'_, Object<T>>,
        importer: &Importer<'_>,
        route: Route,
        suspended: bool,
    ) -> Facts {
        let obj = object.object();
        let state = Object::<T>::state(object);

        Facts {
            suspended,
            route,
            inside_bar: Object::<T>::can_be_visible(object),
            domain: obj.domain(),
            vram_or_fail: obj.data().vram_or_fail(),
            encoded: obj.data().is_encoded(),
            pinned: state.mem_type.filter(|_| state.pinned),
            unrevocable: importer.is_unrevocable(obj.vram().holders()),
        }
    }

    /// Marks the device as used by an importer for its autosuspend. Returns whether it is active.
    fn mark_used(&self, at: &Attached<'_, Self>) -> bool {
        let dev = self.obj.owner();

        // The attachment keeps the device active. The autosuspend delay begins at the detach.
        if at.data().runtime_guard.is_some() {
            !pm::is_suspended(dev)
        } else {
            self.last_use.note(dev)
        }
    }

    /// Returns whether pins of an attachment count for [`Holders`](super::Holders).
    fn is_holder(at: &Attached<'_, Self>) -> bool {
        at.data().outcome.path.is_peer() && !at.is_revocable()
    }

    /// Returns the ranges of the window through which importers see the object in VRAM.
    ///
    /// # Errors
    ///
    /// Those of [`Backing::window`].
    fn window(&self, object: &LockedObject<'_, Object<T>>) -> Result<Arc<RangeList>> {
        let ret = Object::<T>::window(object);

        self.no_window
            .store(ret.as_ref().is_err_and(|e| is_no_window(*e)), Relaxed);
        ret
    }

    /// Ends the hold of importers on the window if none of them has a valid mapping of the object.
    fn release_window(&self, at: &Attached<'_, Self>) {
        // SAFETY: An attachment is only seen with the reservation of its dma-buf held. This is also
        // the reservation of the object.
        unsafe {
            if Object::<T>::HAS_WINDOWS && !exporter::is_mapped(at.dma_buf().as_raw()) {
                Object::<T>::release_window(&LockedObject::assume(&*self.obj));
            }
        }
    }

    /// Moves the object to a place usable by its importers unless it is there already. The caller
    /// keeps the device active if it is.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if it has to be in VRAM and the device is suspended.
    /// - `EOPNOTSUPP` if it is pinned where the importer does not reach it.
    /// - Those of [`Backing::charge`] and [`Backing::migrate`].
    fn place(
        &self,
        object: &mut LockedObject<'_, Object<T>>,
        s: &mut Situation,
        by: Use,
    ) -> Result {
        let (to, or) = match placement(s, by) {
            Placement::Stay => return Ok(()),
            Placement::Refuse(Reason::Suspended) => return Err(EAGAIN),
            Placement::Refuse(_) => return Err(EOPNOTSUPP),
            Placement::Move { to, or } => (to, or),
        };
        let is_pin = by == Use::Pin;

        // Charged before other objects are evicted for it.
        if is_pin && to != Domain::System {
            Object::<T>::charge(object)?;
        }
        let patient = is_pin || s.needs_vram();
        let ret = match (Object::<T>::migrate(object, to, is_pin, patient), or) {
            (Err(e), Some(or)) if e == ENOSPC => Object::<T>::migrate(object, or, is_pin, false),
            (ret, _) => ret,
        };
        s.state = Object::<T>::state(object);
        // The work to wait for takes too long. The core warns about `EBUSY`.
        ret.map_err(|e| if is_pin && e == EBUSY { ETIMEDOUT } else { e })?;

        let in_vram = s.state.is_in_vram();
        if s.attached.path.is_peer() {
            s.was_suspended = !in_vram && !s.active;
            self.suspended.store(s.was_suspended, Relaxed);
        }
        if to != Domain::System && !in_vram && Object::<T>::HAS_WINDOWS {
            // VRAM is full, not the aperture.
            s.no_window = false;
            self.no_window.store(false, Relaxed);
        }
        Ok(())
    }

    /// Pins the object for an importer: in VRAM if all importers can access it there.
    fn try_pin(&self, object: &mut LockedObject<'_, Object<T>>, s: &mut Situation) -> Result {
        let runtime_guard = runtime_guard_if_active(&*self.obj);

        s.active = runtime_guard.is_some();
        self.place(object, s, Use::Pin)?;
        if !s.state.is_in_vram() {
            Object::<T>::uncharge(object);
            return Object::<T>::pin(object);
        }

        // While it is pinned, the object stays in VRAM and the device stays active.
        let runtime_guard = runtime_guard.ok_or(EAGAIN)?;
        Object::<T>::pin(object)?;
        runtime_guard.forget();
        Ok(())
    }

    /// Pins the object as [`Self::try_pin`]. The pin of a non-revocable importer is charged to
    /// [`Holders`](super::Holders).
    ///
    /// An error is returned with its reason.
    fn charge_and_pin(
        &self,
        object: &mut LockedObject<'_, Object<T>>,
        at: &Attached<'_, Self>,
        s: &mut Situation,
    ) -> core::result::Result<(), (Error, Reason)> {
        let holders = self.obj.vram().holders();
        let size = self.obj.size() as u64;
        // Charged before other objects are evicted for it.
        let charged = Self::is_holder(at) && self.held.load(Relaxed) == 0;
        if charged {
            holders
                .charge(size)
                .map_err(|e| (e, Reason::NotRevocable))?;
        }

        let ret = self.try_pin(object, s);
        // The pin may have failed after the object was charged.
        Object::<T>::uncharge(object);
        if ret.is_ok() && Self::is_holder(at) && s.state.is_in_vram() {
            self.held.add(1, Relaxed);
        } else if charged {
            holders.uncharge(size);
        }

        ret.map_err(|e| match e {
            e if e == EDQUOT => (e, Reason::Quota),
            e if e == EOPNOTSUPP => (e, Reason::PinnedElsewhere),
            e if e == ENOSPC => (e, Reason::NoVram),
            e if e == EAGAIN => (e, Reason::Suspended),
            // A signal or no memory for other allocations.
            e => (e, Reason::None),
        })
    }

    /// Maps the object for an importer: in its present place or in the right place for all of its
    /// importers.
    fn try_map<'r>(
        &self,
        cx: &LockedBuffer<'_, Self>,
        at: &MapRequest<'r, Self>,
        s: &mut Situation,
        dir: DataDirection,
    ) -> Result<Mapping<'r>> {
        let mut object = self.object(cx);
        // Before a suspend of the device the driver moves exported objects with the reservation
        // held. This invalidates the mappings. Importers of immovable objects keep the device
        // active.
        let stays = s.state.pinned || (s.is_in_place() && self.mark_used(at));
        // Keeps the device active until the object has moved.
        let runtime_guard = (!stays)
            .then(|| runtime_guard_if_active(&*self.obj))
            .flatten();

        s.active = runtime_guard.is_some();
        if s.state.pinned || !stays {
            self.place(&mut object, s, Use::Map)?;
        }
        Object::<T>::touch(&object);

        if s.state.is_in_vram() {
            if !s.attached.path.is_peer() {
                return Err(EOPNOTSUPP);
            }
            let vram = Object::<T>::vram_ranges(&object)?;
            if !Object::<T>::HAS_WINDOWS {
                return at.map_mmio(|bound| Ok(*bound), vram.in_bar(cx.bound())?, dir);
            }

            let ranges = self.window(&object);
            s.no_window = self.no_window.load(Relaxed);
            match placement_without_window(s) {
                Placement::Move { to, .. } if s.no_window && to == Domain::System => {
                    let _runtime_guard = runtime_guard_if_active(&*self.obj);

                    Object::<T>::migrate(&mut object, to, false, false)?;
                    s.state = Object::<T>::state(&object);
                }
                _ => return at.map_mmio(|bound| Ok(*bound), &*ranges?, dir),
            }
        }

        let pages = Object::<T>::pages(&mut object)?;
        // SAFETY: The pages stay until the object moves or is freed. Before a move mappings are
        // invalidated and fences are waited for. The object is freed after the last mapping.
        unsafe { at.map_raw_pages(pages, dir) }
    }
}

/// Returns whether an object is exported in VRAM only.
pub(super) fn vram_or_fail<T: PeerObject>(obj: &Object<T>) -> bool {
    needs_vram(obj.domain(), obj.data().vram_or_fail())
}

#[vtable]
impl<T: PeerObject> Exporter for GemExport<T> {
    type OwnerModule = <T::Driver as drm::Driver>::OwnerModule;
    type Bound = CovariantForLt!(Provider<'_>);
    type Prepared = Option<Result<RuntimeGuard>>;
    type Attachment = Attachment;

    const NAME: &'static CStr = <T::Driver as drm::Driver>::INFO.name;
    const OPS: &'static Ops<T> = T::OPS;

    fn prepare_attach(&self) -> Option<Result<RuntimeGuard>> {
        // A peer is going to map VRAM and needs an active device.
        (self.obj.domain() != Domain::System).then(|| runtime_guard(&*self.obj))
    }

    fn attach(
        &self,
        cx: &LockedBuffer<'_, Self>,
        req: &mut AttachRequest<'_>,
        runtime_guard: Option<Result<RuntimeGuard>>,
    ) -> Result<Attachment> {
        let suspended = matches!(&runtime_guard, Some(Err(_)));
        let importer = Importer::of(req);
        let route = Route::new(cx.bound(), req);
        let facts = Self::facts(&self.object(cx), &importer, route, suspended);
        let outcome = decide(&facts);
        let bus = cut(req.bus_name());
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
                bus,
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
            bus,
            driver,
            outcome,
            opted_in: route.opted_in,
            runtime_guard: runtime_guard.and_then(Result::ok).filter(|_| keeps_awake),
        })
    }

    fn pin(&self, cx: &LockedBuffer<'_, Self>, at: &Attached<'_, Self>) -> Result {
        let mut s = self.situation(cx, at);
        let ret = self.charge_and_pin(&mut self.object(cx), at, &mut s);
        let outcome = match ret {
            Ok(()) => s.outcome(),
            Err((_, reason)) => Outcome::refused(reason),
        };
        let ret = ret.map_err(|(e, _)| e);

        if ret.is_err() && outcome.path == Path::Refused {
            self.counters().count(Event::PinRefused, outcome.reason);
        }
        self.trace(Act::Pin, at.device(), outcome, ret);
        ret
    }

    fn unpin(&self, _buf: &DmaBuf, at: &Attached<'_, Self>) {
        // SAFETY: Called with the reservation held.
        let mut object = unsafe { LockedObject::assume(&*self.obj) };
        let in_vram = Object::<T>::state(&object).is_in_vram();

        Object::<T>::unpin(&mut object);
        if in_vram {
            // SAFETY: A pinned object does not move, so it was in VRAM when this pin was made. The
            // pin forgot a runtime PM guard.
            drop(unsafe { RuntimeGuard::from_forgotten(self.obj.owner()) });
            if Self::is_holder(at) && self.held.fetch_sub(1, Relaxed) == 1 {
                self.obj.vram().holders().uncharge(self.obj.size() as u64);
            }
        }
        // The device may be gone, so the outcome is that of the attach.
        self.trace(Act::Unpin, at.device(), at.data().outcome, Ok(()));
    }

    fn map<'r>(
        &self,
        cx: &LockedBuffer<'_, Self>,
        at: &MapRequest<'r, Self>,
        dir: DataDirection,
    ) -> Result<Mapping<'r>> {
        let mut s = self.situation(cx, at);
        let ret = self.try_map(cx, at, &mut s, dir);
        if ret.is_err() {
            self.release_window(at);
        }
        let outcome = s.outcome();
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
        self.release_window(at);
        self.trace(Act::Unmap, at.device(), at.data().outcome, Ok(()));
    }

    fn begin_cpu_access(&self, cx: &LockedBuffer<'_, Self>, _dir: DataDirection) -> Result {
        // The CPU does not cache VRAM. System memory is synchronized for the CPU even before a
        // write: the CPU may write only a part, and the end of the access synchronizes the whole
        // for the devices.
        for at in cx.attachments() {
            at.sync_for_cpu();
        }
        Ok(())
    }

    fn end_cpu_access(&self, cx: &LockedBuffer<'_, Self>, dir: DataDirection) -> Result {
        for at in cx.attachments() {
            at.sync_for_device(dir);
        }
        if dir == DataDirection::FromDevice {
            return Ok(());
        }
        Object::<T>::flush(&self.object(cx))
    }

    fn mmap(&self, _buf: &DmaBuf, vma: &VmaNew) -> Result {
        // SAFETY: The object is valid and the area is that of an `mmap()` under way.
        to_result(unsafe { bindings::drm_gem_prime_mmap(self.obj.as_raw(), vma.as_ptr()) })
    }

    fn vmap(
        &self,
        _cx: &LockedBuffer<'_, Self>,
        _req: &VmapRequest<Self>,
    ) -> Result<KBox<dyn KernelMapping>> {
        // SAFETY: The reservation shared by the object and the dma-buf is held. The core has asked
        // for the mapping and drops it with the reservation held.
        let mapping = unsafe { GemMapping::<T>::new(&self.obj) }?;

        Ok(KBox::new(mapping, GFP_KERNEL)?)
    }

    fn revoke(&self) {
        let placement = self
            .obj
            .last_placement()
            .map_or(trace::NO_PLACEMENT, MemType::as_raw);

        trace::invalidate(subject(&*self.obj), placement);
    }

    fn release(&self) {
        // The wait is not interruptible and so does not fail.
        let _ = with_reserved(&*self.obj, false, |object| {
            // If the object knows no dma-buf or another one, the export with this one has failed.
            if Object::<T>::exported(object).addr() == self.buf.load(Relaxed) {
                // SAFETY: The dma-buf does not exist any more.
                unsafe { Object::<T>::set_exported(object, ptr::null_mut()) };
            }
            Ok(())
        });
    }
}

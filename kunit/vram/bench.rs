// SPDX-License-Identifier: GPL-2.0

//! The driver of the suites: its VRAM is BAR 2 of QEMU's `ivshmem-plain`, and its engine does what
//! a test wants.

use crate::worker::soon;
use kernel::{
    bindings,
    device::{
        self,
        Core, //
    },
    dma::DmaMask,
    dma_buf::{
        fence::Fence,
        vmap::VMap,
        DmaBuf, //
    },
    dma_resv::Usage,
    driver,
    drm::{
        self,
        devres::RegistrationInit,
        gem::{
            self,
            mappings::{
                mapping_hooks,
                Address, //
            },
            ttm::TtmObject,
            BaseObject,
            IntoGEMObject,
            LockedObject,
            Mappings, //
        },
        queue,
        ttm::{
            CpuEngine,
            CpuRing,
            CpuView,
            Engine,
            Job,
            Memory,
            OpCtx,
            Place,
            Plan,
            Work, //
        },
        vram::{
            Allocator,
            BarMapping,
            Domain,
            MemType,
            Ranges, //
        }, //
    },
    error::to_result,
    module::this_module,
    new_mutex,
    page::PAGE_SIZE,
    pci,
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
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

pub(crate) const PAGE: u64 = PAGE_SIZE as u64;

/// The BAR that is VRAM.
pub(crate) const BAR: u32 = 2;

pub(crate) type Object = gem::ttm::Object<Bo>;

/// A test that needs the device, which is being probed.
pub(crate) type Body = fn(&pci::Device<Core<'_>>) -> Result;

/// The next test, and the result of the last one.
struct Turn {
    body: Option<Body>,
    /// Peer-to-peer is enabled before.
    p2pdma: bool,
    result: Result,
}

kernel::sync::global_lock! {
    // SAFETY: Initialized by `init()`, which the module calls before a suite runs.
    unsafe(uninit) static TURN: Mutex<Turn> = Turn {
        body: None,
        p2pdma: true,
        result: Ok(()),
    };
}

/// Prepares the bench. Called once, by the module.
pub(crate) fn init() {
    // SAFETY: Called exactly once.
    unsafe { TURN.init() };
}

/// Runs a test with the device, which is without a driver before and after it.
///
/// # Errors
///
/// `ENXIO` if there is no device without a driver, and what the test returns.
pub(crate) fn with_device(body: Body) -> Result {
    with_device_as(body, true)
}

/// As [`with_device`], for a driver that has not enabled peer-to-peer.
pub(crate) fn without_p2pdma(body: Body) -> Result {
    with_device_as(body, false)
}

fn with_device_as(body: Body, p2pdma: bool) -> Result {
    {
        let mut turn = TURN.lock();

        turn.body = Some(body);
        turn.p2pdma = p2pdma;
        turn.result = Err(ENXIO);
    }

    let driver = KBox::pin_init(
        driver::Registration::<pci::Adapter<Probe>>::new(
            c"vram_kunit",
            this_module::<crate::LocalModule>(),
        ),
        GFP_KERNEL,
    )?;

    drop(driver);
    let mut turn = TURN.lock();
    turn.body = None;
    turn.result
}

/// The driver of the device: a test runs in its probe.
struct Probe;

kernel::pci_device_table!(
    PCI_TABLE,
    <Probe as pci::Driver>::IdInfo,
    [(
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, 0x1110),
        ()
    )]
);

impl pci::Driver for Probe {
    type IdInfo = ();
    type Data<'bound> = Self;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;
    const DMA_MASK: Option<DmaMask> = Some(DmaMask::new::<64>());
    const DMA_MAX_SEG_SIZE: Option<u32> = Some(u32::MAX);
    const SLEEP: pci::Sleep = pci::Sleep::Refused;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound ()>,
    ) -> impl PinInit<Self, Error> + 'bound {
        // If there is a second device, the first one has run the test.
        let (body, p2pdma) = {
            let mut turn = TURN.lock();
            (turn.body.take().ok_or(ENODEV)?, turn.p2pdma)
        };
        let enabled =
            pdev.enable_device_mem().and_then(
                |()| {
                    if p2pdma {
                        pdev.enable_p2pdma()
                    } else {
                        Ok(())
                    }
                },
            );
        let result = enabled.and_then(|()| body(pdev));

        TURN.lock().result = result;
        Ok(Self)
    }
}

/// What the engine does with the jobs that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Does the job.
    Work,
    /// Does one job, and refuses the next one.
    WorkOnce,
    /// Refuses the job.
    Refuse,
    /// Accepts the job, and fails.
    Fail,
    /// Accepts the job, and drops it.
    Drop,
    /// Accepts the job, and keeps it until the test takes it.
    Keep,
    /// Prepares the job when the test has set another mode, which does it.
    Wait,
}

/// The errors of a refusal and of a failure, which nothing else returns.
pub(crate) const REFUSED: Error = EPERM;
pub(crate) const FAILED: Error = EIO;

/// The system memory that a job reaches by DMA.
#[derive(Default)]
pub(crate) struct Reached {
    /// The DMA address and the length of each piece.
    pub(crate) segments: KVec<(u64, u64)>,
    /// The physical address of each page.
    pub(crate) frames: KVec<u64>,
}

/// A step of the move of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An importer was notified.
    Invalidated,
    /// [`Mappings::evicted`] was called.
    Evicted,
    /// The work that used the object is done.
    Done,
    /// [`Mappings::zap`] was called.
    Zapped,
    /// The engine got the job.
    Queued,
}

/// An entry of the page table of the device.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) object: u64,
    pub(crate) at: u64,
    pub(crate) address: Address,
}

/// The page table of the device, and the steps of moves, in their order.
struct Record {
    steps: KVec<Step>,
    entries: KVec<Entry>,
}

impl Record {
    /// The capacity for steps and for entries: the callbacks of [`Mappings`] must not allocate.
    const CAPACITY: usize = 64;

    fn new() -> Result<Self> {
        Ok(Self {
            steps: KVec::with_capacity(Self::CAPACITY, GFP_KERNEL)?,
            entries: KVec::with_capacity(Self::CAPACITY, GFP_KERNEL)?,
        })
    }
}

/// Shared between a test and the engine: the test sets what the engine does.
#[pin_data]
pub(crate) struct Control {
    #[pin]
    mode: Mutex<Mode>,
    #[pin]
    kept: Mutex<KVec<Job>>,
    /// The engine has a request, and does nothing in [`Mode::Wait`].
    waits: Atomic<bool>,
    /// The system memory that the last job reached by DMA.
    #[pin]
    reached: Mutex<Reached>,
    /// Whether the CPU does the work again that an engine failed to do.
    again: Atomic<bool>,
    #[pin]
    record: Mutex<Record>,
}

impl Control {
    /// Records a step.
    pub(crate) fn saw(&self, step: Step) {
        let _ = self.record.lock().steps.push_within_capacity(step);
    }

    /// Returns the steps since the last call.
    pub(crate) fn steps(&self) -> Result<KVec<Step>> {
        let new = Record::new()?.steps;

        Ok(core::mem::replace(&mut self.record.lock().steps, new))
    }

    /// Returns the page table.
    pub(crate) fn entries(&self) -> Result<KVec<Entry>> {
        let mut entries = Record::new()?.entries;

        for entry in &self.record.lock().entries {
            entries.push_within_capacity(*entry).map_err(|_| ENOMEM)?;
        }
        Ok(entries)
    }

    /// Adds entries for the first page of an object and for its last one to the page table.
    pub(crate) fn show(&self, object: &Object) -> Result {
        registered(object, |dev| {
            let mut reserved = object.reserve(false)?;
            let placed = reserved.placed(dev, &mut OpCtx::uninterruptible())?;

            for at in [0, object.size() as u64 - PAGE] {
                let (address, _) = placed.address(at).ok_or(ENXIO)?;
                let entry = Entry {
                    object: object.id(),
                    at,
                    address,
                };

                self.record
                    .lock()
                    .entries
                    .push_within_capacity(entry)
                    .map_err(|_| ENOMEM)?;
            }
            Ok(())
        })
    }

    fn zap(&self, object: u64) {
        let mut record = self.record.lock();
        let mut index = 0;

        while let Some(entry) = record.entries.get(index) {
            if entry.object == object {
                let _ = record.entries.remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Sets the mode of the engine; of the first one, if there are two.
    pub(crate) fn set(&self, mode: Mode) {
        *self.mode.lock() = mode;
    }

    /// Returns whether the engine had a request in [`Mode::Wait`].
    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// Sets whether the CPU does the work again that an engine failed to do.
    pub(crate) fn set_again(&self, again: bool) {
        self.again.store(again, Relaxed);
    }

    /// Returns the system memory that the last job reached by DMA, and clears the record of it.
    pub(crate) fn reached(&self) -> Reached {
        core::mem::take(&mut *self.reached.lock())
    }

    /// Records the DMA addresses of a job while they are mapped.
    fn note(&self, work: &Work, pdev: &pci::Device<device::Bound>) -> Result {
        let Work::Move(transfer) = work else {
            return Ok(());
        };
        let mut reached = Reached::default();

        for memory in transfer.from().into_iter().chain([transfer.to()]) {
            if let Memory::Pages(pages) = memory {
                for (addr, len) in pages.dma().ok_or(EPROTO)? {
                    reached.segments.push((addr, len), GFP_KERNEL)?;
                    for at in (0..len).step_by(PAGE_SIZE) {
                        reached.frames.push(behind(pdev, addr + at), GFP_KERNEL)?;
                    }
                }
            }
        }
        *self.reached.lock() = reached;
        Ok(())
    }

    /// Takes the oldest job that the engine has kept.
    pub(crate) fn take(&self) -> Result<Job> {
        let mut kept = self.kept.lock();

        kept.remove(0).map_err(|_| ENOENT)
    }

    /// Returns how many jobs the engine has kept.
    pub(crate) fn kept(&self) -> usize {
        self.kept.lock().len()
    }
}

/// The data of the DRM device while it is registered.
pub(crate) struct Vram<'a> {
    engine: CpuEngine<'a>,
    control: Arc<Control>,
    /// How many engines there are.
    engines: usize,
    pdev: &'a pci::Device<device::Bound>,
}

struct Init(Arc<Control>, usize);

impl RegistrationInit<Driver> for Init {
    fn init<'a>(
        self,
        pdev: &'a pci::Device<device::Bound>,
        _drm: drm::devres::Unregistered<'_, 'a, Driver>,
    ) -> impl PinInit<Vram<'a>, Error> {
        Ok(Vram {
            engine: CpuEngine::new(BarMapping::new(pdev, BAR, c"vram_kunit")?)?,
            control: self.0,
            engines: self.1,
            pdev,
        })
    }
}

/// The driver's part of an object.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    domain: Domain,
    encoded: bool,
}

impl From<Domain> for Kind {
    fn from(domain: Domain) -> Self {
        Self {
            domain,
            encoded: false,
        }
    }
}

peer_object! {
    pub(crate) struct Bo(Kind);

    fn is_encoded(&self) -> bool {
        self.0.encoded
    }

    fn import_args() -> Option<Kind> {
        Some(Domain::System.into())
    }
}

/// The number of calls that asked the class where an object may live.
static DOMAINS: Atomic<usize> = Atomic::new(0);

/// Runs `f`, and returns how many calls asked the class where objects may live meanwhile.
pub(crate) fn domains_asked<R>(f: impl FnOnce() -> R) -> (usize, R) {
    let before = DOMAINS.load(Relaxed);
    let ret = f();

    (DOMAINS.load(Relaxed) - before, ret)
}

impl Mappings for Bo {
    fn evicted(vram: &Vram<'_>, object: &LockedObject<'_, Object>) {
        vram.control.saw(Step::Evicted);
        #[cfg(CONFIG_RUST_DRM_GPUVM)]
        object.mark_mappings_evicted();
        #[cfg(not(CONFIG_RUST_DRM_GPUVM))]
        let _ = object;
    }

    fn zap(vram: &Vram<'_>, object: &LockedObject<'_, Object>) {
        vram.control.saw(Step::Zapped);
        vram.control.zap(object.object().id());
        #[cfg(CONFIG_RUST_DRM_GPUVM)]
        crate::gpuvm::zap(object);
    }
}

impl TtmObject for Bo {
    const MAPPINGS: gem::MappingHooks<Self> = mapping_hooks();

    fn ttm(data: &Data) -> &drm::gem::ttm::Device<Self> {
        &data.ttm
    }

    fn domain(&self) -> Domain {
        DOMAINS.fetch_add(1, Relaxed);
        self.0.domain
    }

    type Engine<'a, 'bound: 'a> = Ring<'a, 'bound>;
    type Ring = CpuRing;

    fn engine<'a, 'bound: 'a>(vram: &'a Vram<'bound>, index: usize) -> Ring<'a, 'bound> {
        Ring { vram, index }
    }

    /// With two engines the first one does the moves to system memory, and the second one the rest.
    fn choose(vram: &Vram<'_>, work: &Work) -> usize {
        match work {
            Work::Move(transfer) if matches!(transfer.to(), Memory::Pages(_)) => 0,
            _ => vram.engines - 1,
        }
    }

    fn flush(vram: &Vram<'_>, ranges: &Ranges) {
        vram.engine.flush(ranges);
    }
}

/// An engine. The CPU does its work in the modes that do work.
pub(crate) struct Ring<'a, 'bound> {
    vram: &'a Vram<'bound>,
    index: usize,
}

impl Engine for Ring<'_, '_> {
    // The engine asks for DMA addresses to test them; the device has no DMA.
    const DMA: bool = true;

    type Ring = CpuRing;

    /// There is an entry on the ring of the CPU only in the modes that do work.
    type Ready = (Mode, Option<queue::Entry<CpuRing>>);

    fn prepare(&self, work: &Work, plan: Plan<'_, CpuRing>) -> Result<Self::Ready> {
        let control = &self.vram.control;
        let mode = || match self.index {
            0 => *control.mode.lock(),
            _ => Mode::Work,
        };
        while mode() == Mode::Wait {
            control.waits.store(true, Relaxed);
            fsleep(Delta::from_millis(1));
        }
        let mode = mode();

        let entry = match mode {
            Mode::Refuse => return Err(REFUSED),
            Mode::Work | Mode::WorkOnce => Some(self.vram.engine.prepare(work, plan)?),
            _ => None,
        };
        if mode == Mode::WorkOnce {
            control.set(Mode::Refuse);
        }
        control.note(work, self.vram.pdev)?;
        if matches!(work, Work::Move(_)) {
            control.saw(Step::Queued);
        }
        Ok((mode, entry))
    }

    fn run(&self, job: Job, (mode, entry): Self::Ready) {
        match (mode, entry) {
            (_, Some(entry)) => self.vram.engine.run(job, entry),
            (Mode::Drop, _) => drop(job),
            (Mode::Keep, _) => {
                // A job for which there is no room is dropped.
                let _ = self.vram.control.kept.lock().push_within_capacity(job);
            }
            _ => job.finish(Err(FAILED)),
        }
    }

    fn cpu(&self) -> Option<&CpuView<'_>> {
        let again = self.vram.control.again.load(Relaxed);

        again.then(|| self.vram.engine.view())
    }
}

#[pin_data]
pub(crate) struct Data {
    #[pin]
    pub(crate) ttm: drm::gem::ttm::Device<Bo>,
}

driver! { pub(crate) pci, Data, Vram, Object, c"vram_kunit", c"VRAM in BAR 2" }

/// A DRM device with the BAR as VRAM, until it is dropped.
pub(crate) struct Card {
    pub(crate) control: Arc<Control>,
    registration: drm::devres::Registration<Driver>,
}

impl Card {
    /// Makes a device with `hidden` bytes of VRAM behind what the BAR shows.
    pub(crate) fn new(pdev: &pci::Device<device::Bound>, hidden: u64) -> Result<Self> {
        Self::with_engines(pdev, hidden, &[c"vram_kunit"])
    }

    /// As [`Self::new`], with an engine for each of `names`.
    pub(crate) fn with_engines(
        pdev: &pci::Device<device::Bound>,
        hidden: u64,
        names: &[&CStr],
    ) -> Result<Self> {
        let size = pdev.resource_len(BAR)? + hidden;

        Self::with_allocator(pdev, Allocator::new(0..size)?, names)
    }

    /// As [`Self::with_engines`], with the VRAM of an allocator.
    pub(crate) fn with_allocator(
        pdev: &pci::Device<device::Bound>,
        allocator: Arc<Allocator>,
        names: &[&CStr],
    ) -> Result<Self> {
        let (visible, size) = (pdev.resource_len(BAR)?, allocator.size());
        let kept = KVec::with_capacity(16, GFP_KERNEL)?;
        let record = Record::new()?;
        let control = Arc::pin_init(
            pin_init!(Control {
                mode <- new_mutex!(Mode::Work),
                kept <- new_mutex!(kept),
                waits: Atomic::new(false),
                reached <- new_mutex!(Reached::default()),
                again: Atomic::new(false),
                record <- new_mutex!(record),
            }),
            GFP_KERNEL,
        )?;
        let drm = drm::UnregisteredDevice::<Driver>::new(
            pdev,
            try_pin_init!(Data {
                ttm <- drm::gem::ttm::Device::with_engines(pdev, BAR, visible, allocator, names),
            }),
        )?;

        // The tests look at the content through mappings of the kernel, which pin.
        drm.ttm.set_pin_limit(size);
        Ok(Self {
            registration: drm::devres::Registration::new(
                pdev,
                drm,
                Init(control.clone(), names.len()),
                0,
            )?,
            control,
        })
    }

    /// Returns the DRM device, which a worker may keep.
    pub(crate) fn drm(&self) -> ARef<drm::Device<Driver>> {
        let drm: &drm::Device<Driver> = self.registration.device();

        drm.into()
    }

    pub(crate) fn ttm(&self) -> &drm::gem::ttm::Device<Bo> {
        &self.registration.device().ttm
    }

    /// Calls `f` with the device, which is registered.
    pub(crate) fn registered<R>(
        &self,
        f: impl FnOnce(&drm::Device<Driver, drm::Registered>) -> Result<R>,
    ) -> Result<R> {
        let drm: &drm::Device<Driver> = self.registration.device();
        // SAFETY: The device is valid, and was registered. The contexts do not change the layout.
        let drm: &drm::Device<Driver, drm::Ioctl> = unsafe { &*core::ptr::from_ref(drm).cast() };

        f(&*drm.registration_guard().ok_or(ENODEV)?)
    }

    /// Makes an object of `pages` pages.
    pub(crate) fn object(
        &self,
        pages: u64,
        places: &[Place],
        domain: Domain,
    ) -> Result<ARef<Object>> {
        self.object_of(pages, places, domain.into())
    }

    /// Makes an object of a page that peers cannot read in VRAM.
    pub(crate) fn encoded(&self, domain: Domain) -> Result<ARef<Object>> {
        let kind = Kind {
            domain,
            encoded: true,
        };

        self.object_of(1, &domain.places(), kind)
    }

    fn object_of(&self, pages: u64, places: &[Place], kind: Kind) -> Result<ARef<Object>> {
        Object::new(
            self.registration.device(),
            (pages * PAGE) as usize,
            places,
            &mut OpCtx::uninterruptible(),
            kind,
        )
    }

    /// Returns how much of VRAM is free. Waits for the expected value, as memory is freed in the
    /// background.
    pub(crate) fn free(&self, expected: u64) -> u64 {
        soon(|| self.ttm().vram_free() == expected);
        self.ttm().vram_free()
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // A test that has failed may have left jobs, for which the drop of the engine would wait.
        while let Ok(job) = self.control.take() {
            drop(job);
        }
    }
}

/// Calls `f` with the device of an object, while it is registered.
pub(crate) fn registered<R>(
    object: &Object,
    f: impl FnOnce(&drm::Device<Driver, drm::Registered>) -> Result<R>,
) -> Result<R> {
    // SAFETY: The device of an object is valid, and was registered.
    let dev: &drm::Device<Driver, drm::Ioctl> =
        unsafe { drm::Device::from_raw((*object.as_raw()).dev) };

    let guard = dev.registration_guard().ok_or(ENODEV)?;

    f(&guard)
}

/// Imports a buffer as the DRM core does, for the device of `neighbour`, which is being probed.
pub(crate) fn import(neighbour: &Object, buf: &DmaBuf) -> Result<ARef<Object>> {
    // SAFETY: The device is valid and registered, and its device lock held. The call returns a
    // reference to an object of the class.
    unsafe {
        let dev = (*neighbour.as_raw()).dev;
        let import = (*(*dev).driver).gem_prime_import.ok_or(EINVAL)?;
        let gem = kernel::error::from_err_ptr(import(dev, raw_buf(buf)))?;
        let object: &Object = IntoGEMObject::from_raw(gem);

        Ok(ARef::from_raw(object.into()))
    }
}

/// Notifies the importers of a buffer that it is about to move, as its exporter does.
pub(crate) fn invalidate(buf: &DmaBuf) {
    let _guard = buf.resv().lock();

    // SAFETY: The buffer is valid, and its reservation is held.
    unsafe { bindings::dma_buf_invalidate_mappings(raw_buf(buf)) };
}

/// A mapping of a buffer by the kernel, which is made with the reservation held.
pub(crate) struct Vmapped<'a> {
    buf: &'a DmaBuf,
    map: bindings::iosys_map,
}

impl<'a> Vmapped<'a> {
    /// Maps the buffer of `object`.
    pub(crate) fn new(buf: &'a DmaBuf, object: &LockedObject<'_, Object>) -> Result<Self> {
        let mut map = bindings::iosys_map::default();

        // SAFETY: Both are valid.
        if unsafe { (*object.object().as_raw()).resv != (*raw_buf(buf)).resv } {
            return Err(EINVAL);
        }
        // SAFETY: The buffer is valid, and its reservation is that of the object, which is held.
        kernel::error::to_result(unsafe { bindings::dma_buf_vmap(raw_buf(buf), &mut map) })?;
        Ok(Self { buf, map })
    }
}

impl Drop for Vmapped<'_> {
    fn drop(&mut self) {
        // SAFETY: The buffer was mapped.
        unsafe { bindings::dma_buf_vunmap_unlocked(raw_buf(self.buf), &mut self.map) };
    }
}

/// Calls `f` while a buffer has another size, which its exporter would have refused.
pub(crate) fn with_size<R>(buf: &DmaBuf, size: usize, f: impl FnOnce() -> R) -> R {
    // SAFETY: The buffer is valid. Only the test uses it.
    let before = unsafe { core::mem::replace(&mut (*raw_buf(buf)).size, size) };
    let ret = f();

    // SAFETY: As above.
    unsafe { (*raw_buf(buf)).size = before };
    ret
}

fn raw_buf(buf: &DmaBuf) -> *mut bindings::dma_buf {
    // `DmaBuf` is a transparent wrapper.
    core::ptr::from_ref(buf)
        .cast::<bindings::dma_buf>()
        .cast_mut()
}

/// Returns where an object is.
pub(crate) fn mem_type<T: TtmObject>(object: &gem::ttm::Object<T>) -> Result<Option<MemType>> {
    Ok(object.reserve(false)?.mem_type())
}

/// Moves an object.
pub(crate) fn validate<T: TtmObject>(object: &gem::ttm::Object<T>, places: &[Place]) -> Result {
    object
        .reserve(false)?
        .validate(places, &mut OpCtx::uninterruptible())
}

/// Returns the last fence of the moves of an object.
pub(crate) fn move_of(object: &Object) -> Result<ARef<Fence>> {
    let mut object = object.reserve(false)?;
    let fence = object
        .resv()
        .fences(Usage::Kernel)
        .max_by_key(|fence| fence.seqno())
        .map(ARef::from);

    fence.ok_or(ENOENT)
}

/// Exports an object as the DRM core does.
pub(crate) fn export<T: TtmObject>(object: &gem::ttm::Object<T>) -> Result<ARef<DmaBuf>> {
    export_any(object)
}

/// As [`export`], of any class that exports.
pub(crate) fn export_any(object: &impl IntoGEMObject) -> Result<ARef<DmaBuf>> {
    let gem = object.as_raw();

    // SAFETY: The object is valid, its class exports, and the device is registered.
    let buf = unsafe {
        let export = (*(*gem).funcs).export.ok_or(EINVAL)?;

        kernel::error::from_err_ptr(export(gem, kernel::fs::file::flags::O_RDWR as c_int))?
    };

    // SAFETY: The buffer is valid and comes with a reference; `DmaBuf` is its transparent wrapper.
    Ok(unsafe { ARef::from_raw(core::ptr::NonNull::new_unchecked(buf.cast())) })
}

/// Returns the word at `index` of an object that was filled from `seed`.
pub(crate) fn word(seed: u64, index: u64) -> u64 {
    (seed << 32 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the first bytes of a page of an object that was filled from `seed`.
pub(crate) fn bytes(seed: u64, page: u64) -> [u8; 8] {
    word(seed, page * PAGE / 8).to_ne_bytes()
}

/// Returns whether the kernel sees the first bytes of all pages of an object that was filled from
/// `seed`.
pub(crate) fn vmap_has(map: &VMap, seed: u64) -> Result<bool> {
    let mut same = true;

    for page in 0..map.dma_buf().size() as u64 / PAGE {
        let mut now = [0; 8];

        map.read((page * PAGE) as usize, &mut now)?;
        same &= now == bytes(seed, page);
    }
    Ok(same)
}

/// Calls `f` with each page of an object: its number, the address where it is mapped, and whether
/// that is I/O memory.
fn each_page<T: TtmObject>(
    object: &gem::ttm::Object<T>,
    mut f: impl FnMut(u64, *mut c_void, bool) -> Result,
) -> Result {
    let gem = object.as_raw();
    let mut map = bindings::iosys_map::default();

    // SAFETY: The object is valid, and its reservation is not held.
    to_result(unsafe { bindings::drm_gem_vmap(gem, &mut map) })?;

    let mut ret = Ok(());
    for page in 0..object.size() as u64 / PAGE {
        // SAFETY: Both members of the union are addresses.
        let addr = unsafe { map.__bindgen_anon_1.vaddr };

        ret = f(
            page,
            addr.wrapping_byte_add((page * PAGE) as usize),
            map.is_iomem,
        );
        if ret.is_err() {
            break;
        }
    }
    // SAFETY: Mapped above, and not used any more.
    unsafe { bindings::drm_gem_vunmap(gem, &mut map) };
    ret
}

/// Fills an object with words that are different in each place, and for each seed.
pub(crate) fn fill<T: TtmObject>(object: &gem::ttm::Object<T>, seed: u64) -> Result {
    let mut words = KVec::from_elem(0u64, PAGE_SIZE / 8, GFP_KERNEL)?;

    each_page(object, |page, to, is_iomem| {
        for (index, at) in words.iter_mut().enumerate() {
            *at = word(seed, page * PAGE / 8 + index as u64);
        }
        // SAFETY: A page is mapped there, and `words` has as many bytes.
        unsafe {
            if is_iomem {
                bindings::memcpy_toio(to, words.as_ptr().cast(), PAGE_SIZE);
            } else {
                bindings::memcpy(to, words.as_ptr().cast(), PAGE_SIZE);
            }
        }
        Ok(())
    })
}

/// Returns whether an object has the words of [`fill`], or zeroes if there is no seed.
pub(crate) fn holds<T: TtmObject>(object: &gem::ttm::Object<T>, seed: Option<u64>) -> Result<bool> {
    let mut words = KVec::from_elem(0u64, PAGE_SIZE / 8, GFP_KERNEL)?;
    let mut same = true;

    each_page(object, |page, from, is_iomem| {
        // SAFETY: As in `fill()`.
        unsafe {
            if is_iomem {
                bindings::memcpy_fromio(words.as_mut_ptr().cast(), from, PAGE_SIZE);
            } else {
                bindings::memcpy(words.as_mut_ptr().cast(), from, PAGE_SIZE);
            }
        }
        for (index, at) in words.iter().enumerate() {
            let expected = seed.map_or(0, |seed| word(seed, page * PAGE / 8 + index as u64));

            same &= *at == expected;
        }
        Ok(())
    })?;
    Ok(same)
}

/// Returns the physical addresses of the pages of an object in system memory.
pub(crate) fn frames(object: &Object) -> Result<KVec<u64>> {
    let mut frames = KVec::new();

    each_page(object, |_, addr, is_iomem| {
        if is_iomem {
            return Err(EINVAL);
        }
        // SAFETY: A page is mapped there.
        let pfn = unsafe { bindings::vmalloc_to_pfn(addr) };
        frames.push(pfn as u64 * PAGE, GFP_KERNEL)?;
        Ok(())
    })?;
    Ok(frames)
}

/// Returns the physical address that a device reaches at a DMA address.
pub(crate) fn behind(pdev: &pci::Device<device::Bound>, addr: u64) -> u64 {
    let dev: &device::Device<device::Bound> = pdev.as_ref();

    // SAFETY: The device, a transparent wrapper, is valid and bound, and so its domain stays.
    unsafe {
        let raw = core::ptr::from_ref(dev).cast_mut().cast();
        let domain = bindings::iommu_get_domain_for_dev(raw);

        if domain.is_null() {
            addr
        } else {
            bindings::iommu_iova_to_phys(domain, addr)
        }
    }
}

/// A device that is suspended and cannot be resumed, until the value is dropped.
pub(crate) struct Asleep<'a>(&'a device::Device);

impl<'a> Asleep<'a> {
    /// Marks a device as suspended that only the test uses.
    pub(crate) fn new(dev: &'a device::Device) -> Self {
        let raw = raw_device(dev);

        // SAFETY: The device is valid. Nothing but its state changes.
        unsafe {
            bindings::__pm_runtime_disable(raw, true);
            bindings::__pm_runtime_set_status(raw, bindings::rpm_status_RPM_SUSPENDED as u32);
        }
        Self(dev)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        let raw = raw_device(self.0);

        // SAFETY: As in `new()`, which this undoes.
        unsafe {
            bindings::__pm_runtime_set_status(raw, bindings::rpm_status_RPM_ACTIVE as u32);
            bindings::pm_runtime_enable(raw);
        }
    }
}

fn raw_device(dev: &device::Device) -> *mut bindings::device {
    // `Device` is a transparent wrapper.
    core::ptr::from_ref(dev)
        .cast::<bindings::device>()
        .cast_mut()
}

fn raw_pci(pdev: &pci::Device) -> *mut bindings::pci_dev {
    // SAFETY: The device is a PCI device.
    unsafe { kernel::container_of!(raw_device(pdev.as_ref()), bindings::pci_dev, dev) }
}

/// Makes a device look as if it was removed by surprise, until the value is dropped.
pub(crate) struct Gone(*mut bindings::pci_dev, u32);

impl Gone {
    pub(crate) fn new(pdev: &pci::Device) -> Self {
        let raw = raw_pci(pdev);

        // SAFETY: The device is valid. Nothing else reports errors of it.
        unsafe {
            let before = (*raw).error_state;

            (*raw).error_state = bindings::pci_channel_io_perm_failure;
            Self(raw, before)
        }
    }
}

// SAFETY: The device is valid until the test is over.
unsafe impl Send for Gone {}

impl Drop for Gone {
    fn drop(&mut self) {
        // SAFETY: The device is valid until the test is over.
        unsafe { (*self.0).error_state = self.1 };
    }
}

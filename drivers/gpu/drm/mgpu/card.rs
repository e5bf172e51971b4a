// SPDX-License-Identifier: GPL-2.0

//! The DRM driver of the auxiliary device.

use kernel::{
    auxiliary,
    device::{
        self,
        DeviceContext, //
    },
    drm::{
        self,
        devres::RegistrationInit,
        gem::{
            self,
            peer,
            ttm::PinShares, //
        },
        ioctl,
        queue::Queue,
        ttm::{
            CopyQueue,
            CpuView, //
        }, //
    },
    pci,
    prelude::*,
    sync::Arc, //
};

use crate::{
    bind,
    compute::ComputeEngine,
    contexts::Contexts,
    copy,
    core::{
        ApiOf,
        BAR,
        NAME, //
    },
    debugfs,
    engine::{
        self,
        CopyEngine, //
    },
    exec,
    file::File,
    gem::{
        Bo,
        BoData, //
    },
    gpu::Gpu,
    module_parameters,
    MODULE, //
};

/// The DRM driver and driver of the auxiliary device.
pub(crate) struct Driver;

/// The DRM device.
pub(crate) type Device<Ctx = drm::Normal> = drm::Device<Driver, Ctx>;

/// Data of the DRM device. It may outlive the binding of the driver.
#[pin_data]
pub(crate) struct Data {
    /// The TTM device. It places objects in VRAM and in system memory.
    #[pin]
    pub(crate) ttm: gem::ttm::Device<BoData>,
}

/// Data of the bound driver. The fields are dropped in this order.
pub(crate) struct Bound<'a> {
    /// The compute engine. It works on virtual addresses. Moves depend on its jobs.
    pub(crate) compute: ComputeEngine<'a>,
    /// The copy engine for moves and copies of objects, with the CPU's view of the aperture.
    pub(crate) engine: CopyEngine<'a>,
    /// The address spaces. The drop of this field ends all of them.
    _spaces: Spaces,
    pub(crate) gpu: Arc<Gpu>,
    /// The PCI device.
    pub(crate) pdev: &'a pci::Device<device::Bound>,
    _notifier: Notifier,
}

/// Reports failures to the DRM device until it is dropped.
struct Notifier(Arc<Gpu>);

impl Notifier {
    fn new(gpu: Arc<Gpu>, drm: &Device) -> Self {
        gpu.recovery.reporter.set_card(Some(drm.into()));
        Self(gpu)
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.0.recovery.reporter.set_card(None);
    }
}

/// Ends all address spaces when it is dropped, also those of open files. All jobs have ended by
/// then.
struct Spaces(Arc<Contexts>);

impl Drop for Spaces {
    fn drop(&mut self) {
        self.0.end_all();
    }
}

/// The initializer of [`Bound`].
struct Init(Arc<Gpu>);

impl RegistrationInit<Driver> for Init {
    fn init<'a>(
        self,
        adev: &'a auxiliary::Device<device::Bound>,
        drm: drm::devres::Unregistered<'_, 'a, Driver>,
    ) -> impl PinInit<Bound<'a>, Error> {
        let pdev: &pci::Device<device::Bound> = adev.parent().try_into()?;

        Ok(Bound {
            compute: ComputeEngine(engine::new_ring(adev.as_ref(), &self.0)?),
            engine: CopyEngine {
                ring: engine::new_ring(adev.as_ref(), &self.0)?,
                view: CpuView::with_scratch(
                    drm.ttm.map_bar(adev, MODULE)?,
                    self.0.aperture.clone(),
                )?,
                recovery: self.0.recovery.clone(),
            },
            _spaces: Spaces(self.0.contexts.clone()),
            gpu: self.0.clone(),
            pdev,
            // Set before processes have objects that a failure or a reset could affect.
            _notifier: Notifier::new(self.0, &drm),
        })
    }
}

kernel::auxiliary_device_table!(
    AUX_TABLE,
    <Driver as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(MODULE, NAME), ())]
);

impl auxiliary::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = drm::devres::Registration<Self>;

    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &AUX_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<device::Core<'_>>,
        _info: &'bound (),
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let adev: &auxiliary::Device<device::Bound> = adev;
        let gpu = &adev.registration_data::<ApiOf>()?.get_ref().gpu;
        gpu.begin_jobs()?;
        let vram = gpu.vram.clone();
        let visible = gpu.aperture.len().min(vram.size());
        let drm = drm::UnregisteredDevice::<Self>::new(
            adev,
            try_pin_init!(Data {
                ttm <- gem::ttm::Device::new(adev, BAR, visible, vram),
            }),
        )?;

        drm.ttm.set_pin_shares(&PinShares {
            all: module_parameters::pin_percent.value(),
            client: module_parameters::client_pin_percent.value(),
            unrevocable: module_parameters::unrevocable_percent.value(),
        });
        drm::devres::Registration::new(adev, drm, Init(gpu.clone()), 0)
    }
}

#[vtable]
impl drm::Driver for Driver {
    type Data = Data;
    type RegistrationData<'a> = Bound<'a>;
    type File = File;
    type Object = Bo;
    type ParentDevice<Ctx: DeviceContext> = auxiliary::Device<Ctx>;

    const INFO: drm::DriverInfo = drm::DriverInfo {
        major: 1,
        minor: 0,
        patchlevel: 0,
        name: c"mgpu",
        desc: c"A GPU that is modelled outside of QEMU",
    };
    const FEAT_RENDER: bool = true;
    const FEAT_SYNCOBJ: bool = true;
    const FEAT_SYNCOBJ_TIMELINE: bool = true;

    fn show_fdinfo(dev: &Device<drm::Registered>, file: &drm::File<File>, p: &mut drm::Printer) {
        let inner = file.inner().get_ref();
        let (jobs, copies) = (inner.jobs().get(), inner.copies().get());

        dev.registration_data_with(|bound| p.pdev(bound.pdev));
        p.engine(c"compute", jobs.map_or(0, Queue::busy_ns));
        p.engine(c"copy", copies.map_or(0, CopyQueue::busy_ns));
        let visible = gem::ttm::show_memory_stats::<BoData>(file, p);

        p.size(c"mgpu", c"visible", c"vram0", visible);
        p.size(c"mgpu", c"pinned", c"vram0", inner.pins().pinned());
    }

    fn unplug(bound: &Bound<'_>) {
        // Ends the waits of ioctls for jobs. The jobs may depend on other devices and the unplug
        // waits for these ioctls.
        bound.compute.0.close();
        bound.engine.ring.close();
    }

    fn debugfs_init(dir: &drm::debugfs::Dir<'_, Self>) {
        peer::debugfs::add_files::<BoData>(dir);
        gem::ttm::debugfs::add_files::<BoData>(dir);
        dir.add::<debugfs::Inject>();
        dir.add::<debugfs::Reports>();
        dir.add::<debugfs::State>();
        dir.add::<debugfs::Vms>();
    }

    kernel::declare_drm_ioctls! {
        (MGPU_GETPARAM, drm_mgpu_getparam, ioctl::RENDER_ALLOW, File::getparam),
        (MGPU_GEM_CREATE, drm_mgpu_gem_create, ioctl::RENDER_ALLOW, File::gem_create),
        (
            MGPU_GEM_MMAP_OFFSET,
            drm_mgpu_gem_mmap_offset,
            ioctl::RENDER_ALLOW,
            File::gem_mmap_offset
        ),
        (
            MGPU_PEER_ATTACHMENTS,
            drm_peer_attachments,
            ioctl::RENDER_ALLOW,
            peer::ioctl::attachments::<BoData>,
            Ioctl
        ),
        (MGPU_GEM_INFO, drm_mgpu_gem_info, ioctl::RENDER_ALLOW, File::gem_info),
        (
            MGPU_PEER_IMPORT_INFO,
            drm_peer_import_info,
            ioctl::RENDER_ALLOW,
            gem::ttm::ioctl::import_info::<BoData>,
            Ioctl
        ),
        (
            MGPU_GEM_COPY,
            drm_mgpu_gem_copy,
            ioctl::RENDER_ALLOW,
            copy::gem_copy,
            Ioctl
        ),
        (
            MGPU_PEER_QUERY,
            drm_peer_query,
            ioctl::RENDER_ALLOW,
            peer::ioctl::query::<BoData>,
            Ioctl
        ),
        (MGPU_VM_CREATE, drm_mgpu_vm_create, ioctl::RENDER_ALLOW, bind::vm_create),
        (MGPU_VM_DESTROY, drm_mgpu_vm_destroy, ioctl::RENDER_ALLOW, bind::vm_destroy),
        (MGPU_VM_BIND, drm_mgpu_vm_bind, ioctl::RENDER_ALLOW, bind::vm_bind, Ioctl),
        (MGPU_EXEC, drm_mgpu_exec, ioctl::RENDER_ALLOW, exec::exec, Ioctl),
        (MGPU_VM_FAILURES, drm_mgpu_vm_failures, ioctl::RENDER_ALLOW, bind::vm_failures),
        (
            MGPU_PEER_FLUSH,
            drm_peer_flush,
            ioctl::RENDER_ALLOW,
            peer::ioctl::flush::<BoData>,
            Ioctl
        ),
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Probe and the data of the bound driver.

use kernel::{
    device::{
        self,
        Core,
        DeviceContext, //
    },
    dma::DmaMask,
    drm::{
        self,
        devres::RegistrationInit,
        gem::{
            self,
            peer,
            ttm::{
                Content,
                PinShares, //
            }, //
        },
        ioctl,
        pagemap,
        ttm::OpCtx,
        vram::{
            Allocation,
            Allocator, //
        }, //
    },
    new_mutex,
    pci::{
        self,
        p2pdma::BarPages, //
    },
    prelude::*,
    sizes::SZ_1K,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use crate::{
    copy,
    file::File,
    gem::{
        Bo,
        BoData, //
    },
    hw::{
        Engine,
        Ivshmem,
        Variant, //
    },
    layout,
    module_parameters,
    svm::{
        self,
        Svm, //
    },
    vm::{
        self,
        Mapped,
        Spaces, //
    }, //
};

pub(crate) struct VvramDriver;

/// The DRM device of this driver.
pub(crate) type VvramDevice<Ctx = drm::Normal> = drm::Device<VvramDriver, Ctx>;

/// Data of the DRM device. It may outlive the binding of the driver.
#[pin_data]
pub(crate) struct VvramData {
    /// Allocations to keep objects out of parts of VRAM for tests.
    _holes: KVVec<Allocation>,
    /// The TTM device. It places objects in VRAM and in system memory.
    #[pin]
    pub(crate) ttm: gem::ttm::Device<BoData>,
    /// The mappings of objects in the address spaces of clients.
    pub(crate) mapped: Arc<Mapped>,
}

/// Data of the bound driver. The fields are dropped in this order.
pub(crate) struct BoundData<'a> {
    /// The device-private memory of processes. It moves back before VRAM becomes inaccessible.
    pub(crate) svm: Option<pagemap::Registration<'a, Svm>>,
    /// The struct pages of the BAR, if any.
    pub(crate) pages: Option<BarPages<'a>>,
    /// The engine for accesses to VRAM. It is dropped when all of its work is done.
    pub(crate) engine: Arc<dyn Engine + 'a>,
    /// [`VvramData::mapped`].
    pub(crate) mapped: Arc<Mapped>,
}

/// The initializer of [`BoundData`] for a kind of device. The struct pages of its BAR are included
/// if it has some.
struct Bind<'a> {
    variant: &'static dyn Variant,
    pages: Option<&'a BarPages<'a>>,
    vram: Arc<Allocator>,
    /// The size of the VRAM visible to the CPU and peers, in bytes.
    visible: u64,
}

impl RegistrationInit<VvramDriver> for Bind<'_> {
    fn init<'a>(
        self,
        pdev: &'a pci::Device<device::Bound>,
        drm: drm::devres::Unregistered<'_, 'a, VvramDriver>,
    ) -> impl PinInit<BoundData<'a>, Error> {
        let pages = self.pages.map(|pages| pages.of(pdev)).transpose()?;
        let engine = self.variant.engine(drm.ttm.map_bar(pdev, c"vvram")?)?;
        let memory = svm::Memory {
            vram: self.vram,
            engine: engine.clone(),
        };

        Ok(BoundData {
            svm: svm::register(&drm, pages.clone(), self.visible, memory)?,
            pages,
            engine,
            mapped: drm.mapped.clone(),
        })
    }
}

kernel::pci_device_table!(
    PCI_TABLE,
    <VvramDriver as pci::Driver>::IdInfo,
    [(
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, 0x1110),
        &Ivshmem as &dyn Variant
    )]
);

type Card = drm::devres::Registration<VvramDriver>;

/// The data of a bound device.
#[pin_data]
pub(crate) struct Probed<'bound> {
    variant: &'static dyn Variant,
    /// The struct pages of the BAR, if any. They stay when the device is reset.
    pages: Option<BarPages<'bound>>,
    /// The DRM device, or [`None`] while the device is reset.
    #[pin]
    card: Mutex<Option<Card>>,
}

/// Returns whether VRAM keeps its content while the device is suspended. The memory of this device
/// does. The content counts as lost with the parameter `lossy_suspend`.
fn content() -> Content {
    if module_parameters::lossy_suspend.value() == 0 {
        Content::Kept
    } else {
        Content::Lost
    }
}

impl Probed<'_> {
    /// Moves or saves the content of VRAM that must not stay there while the device is suspended.
    fn suspend(&self, ctx: &mut OpCtx) -> Result {
        match &*self.card.lock() {
            Some(card) => {
                // A runtime suspend finds no such memory because it keeps the device active.
                card.with_data(|bound| bound.svm.as_ref().map_or(Ok(()), |svm| svm.evict_all()))
                    .unwrap_or(Ok(()))?;
                card.device().ttm.suspend(content(), ctx)
            }
            None => Ok(()),
        }
    }

    /// Restores the content saved by [`Self::suspend`].
    fn resume(&self) -> Result {
        match &*self.card.lock() {
            Some(card) => card.device().ttm.resume(),
            None => Ok(()),
        }
    }

    /// Overwrites VRAM if its content counts as lost.
    fn lose_content(&self) {
        if content() == Content::Kept {
            return;
        }
        if let Some(card) = &*self.card.lock() {
            card.with_data(|bound| bound.engine.lose_content());
        }
    }
}

/// Creates struct pages for the BAR of VRAM unless the parameter `struct_pages` is 0.
///
/// The driver works without them. There are none if the BAR is too small or a process has mapped
/// some of them before the driver could take them.
fn make_pages<'a>(
    pdev: &'a pci::Device<Core<'_>>,
    variant: &'static dyn Variant,
) -> Option<BarPages<'a>> {
    if module_parameters::struct_pages.value() == 0 {
        return None;
    }

    let bar = variant.vram_bar();
    let pages = pdev
        .add_p2pdma_pages(bar)
        .and_then(|()| pdev.p2pdma_provider(bar)?.take_pages());
    match &pages {
        Ok(pages) => dev_info!(
            pdev,
            "{} KiB of BAR {} have struct pages, which take {} KiB\n",
            pages.len() / SZ_1K as u64,
            bar,
            pages.cost() / SZ_1K as u64
        ),
        Err(e) => dev_info!(pdev, "no struct pages for BAR {}: {:?}\n", bar, e),
    }
    pages.ok()
}

/// Creates the DRM device of a PCI device.
fn make_card(
    pdev: &pci::Device<device::Bound>,
    variant: &'static dyn Variant,
    pages: Option<&BarPages<'_>>,
) -> Result<Card> {
    let vram_size = variant.vram_size(pdev)?;
    let cpu_visible = match module_parameters::visible_kib.value() {
        0 => variant.cpu_visible_size(pdev)?,
        kib => kib
            .saturating_mul(SZ_1K as u64)
            .min(variant.cpu_visible_size(pdev)?),
    };

    let vram = layout::allocator(vram_size, variant.cpu_visible_size(pdev)?)?;
    let of_objects = vram.clone();
    let drm = drm::UnregisteredDevice::<VvramDriver>::new(
        pdev,
        try_pin_init!(VvramData {
            _holes: layout::holes(&of_objects)?,
            ttm <- gem::ttm::Device::new(pdev, variant.vram_bar(), cpu_visible, of_objects),
            mapped: Mapped::new()?,
        }),
    )?;
    drm.ttm.set_pin_shares(&PinShares {
        all: module_parameters::pin_percent.value(),
        client: module_parameters::client_pin_percent.value(),
        unrevocable: module_parameters::unrevocable_percent.value(),
    });
    let bind = Bind {
        variant,
        pages,
        vram,
        visible: cpu_visible,
    };
    let card = Card::new(pdev, drm, bind, 0)?;

    dev_info!(
        pdev,
        "{}: {} KiB of VRAM, {} KiB of it in BAR {} at {:#x}\n",
        variant.name(),
        vram_size / SZ_1K as u64,
        cpu_visible / SZ_1K as u64,
        variant.vram_bar(),
        pdev.resource_start(variant.vram_bar())?
    );
    Ok(card)
}

impl pci::Driver for VvramDriver {
    type IdInfo = &'static dyn Variant;
    type Data<'bound> = Probed<'bound>;

    const AUTOSUSPEND_MS: Option<u32> = Some(1000);
    const HANDLES_RESET: bool = true;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    // An imported buffer may be at any address, in the BAR of another device for example.
    const DMA_MASK: Option<DmaMask> = Some(DmaMask::new::<64>());

    const DMA_MAX_SEG_SIZE: Option<u32> = Some(u32::MAX);

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let variant = *info.ok_or(ENODEV)?;

            pdev.enable_device_mem()?;
            pdev.enable_p2pdma()?;

            // This comes before the BAR is mapped because its struct pages would make a later
            // mapping of it uncached.
            let pages = make_pages(pdev, variant);
            let card = make_card(pdev, variant, pages.as_ref())?;
            Ok(try_pin_init!(Probed {
                variant,
                pages,
                card <- new_mutex!(Some(card), "vvram::card"),
            }))
        })
    }

    fn runtime_suspend<'bound>(
        _pdev: &'bound pci::Device<device::Bound>,
        this: Pin<&Self::Data<'bound>>,
    ) -> Result {
        // Does not wait for objects in use. In this case the device is not suspended.
        this.suspend(&mut OpCtx::without_waiting())?;
        this.lose_content();
        Ok(())
    }

    fn runtime_resume<'bound>(
        _pdev: &'bound pci::Device<device::Bound>,
        this: Pin<&Self::Data<'bound>>,
    ) -> Result {
        this.resume()
    }

    fn suspend<'bound>(
        _pdev: &'bound pci::Device<device::Bound>,
        this: Pin<&Self::Data<'bound>>,
    ) -> Result {
        this.suspend(&mut OpCtx::uninterruptible())
    }

    // All peers are suspended by now, so none of them writes to pinned objects any more.
    fn suspend_late<'bound>(
        _pdev: &'bound pci::Device<device::Bound>,
        this: Pin<&Self::Data<'bound>>,
    ) -> Result {
        this.suspend(&mut OpCtx::uninterruptible())?;
        this.lose_content();
        Ok(())
    }

    fn resume_early<'bound>(
        _pdev: &'bound pci::Device<device::Bound>,
        this: Pin<&Self::Data<'bound>>,
    ) -> Result {
        this.resume()
    }

    // No saved content is left unless the system did not sleep.
    fn resume<'bound>(
        _pdev: &'bound pci::Device<device::Bound>,
        this: Pin<&Self::Data<'bound>>,
    ) -> Result {
        if let Some(card) = &*this.card.lock() {
            card.device().ttm.undo_suspend();
        }
        Ok(())
    }

    // A reset unplugs the DRM device and creates a new one. The content of VRAM is lost and no
    // address of VRAM from before the reset stays valid. Memory of processes in VRAM is moved back
    // before because it does not belong to the device. If a device does not answer any more, this
    // memory is lost and the driver fills the pages instead.
    fn reset_prepare<'bound>(_pdev: &'bound pci::Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        let card = this.card.lock().take();

        // The drop waits for non-revocable importers, so the lock is not held.
        drop(card);
    }

    fn reset_done<'bound>(pdev: &'bound pci::Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        match make_card(pdev, this.variant, this.pages.as_ref()) {
            Ok(card) => *this.card.lock() = Some(card),
            Err(e) => dev_err!(pdev, "no device after the reset: {:?}\n", e),
        }
    }
}

#[vtable]
impl drm::Driver for VvramDriver {
    type Data = VvramData;
    type RegistrationData<'a> = BoundData<'a>;
    type File = File;
    type Object = Bo;
    type ParentDevice<Ctx: DeviceContext> = pci::Device<Ctx>;

    const INFO: drm::DriverInfo = drm::DriverInfo {
        major: 1,
        minor: 0,
        patchlevel: 0,
        name: c"vvram",
        desc: c"VRAM behind a PCI BAR",
    };
    const FEAT_RENDER: bool = true;
    const FEAT_SYNCOBJ: bool = true;
    const FEAT_SYNCOBJ_TIMELINE: bool = true;

    fn show_fdinfo(
        _dev: &VvramDevice<drm::Registered>,
        file: &drm::File<File>,
        p: &mut drm::Printer,
    ) {
        let visible = gem::ttm::show_memory_stats::<BoData>(file, p);

        p.size(c"vvram", c"visible", c"vram0", visible);
        p.size(c"vvram", c"pinned", c"vram0", file.inner().pins().pinned());
    }

    fn unplug(bound: &BoundData<'_>) {
        // Ends the waits of ioctls for copies to buffers of other devices, because the unplug waits
        // for these ioctls.
        bound.engine.close();
    }

    fn debugfs_init(dir: &drm::debugfs::Dir<'_, Self>) {
        peer::debugfs::add_files::<BoData>(dir);
        gem::ttm::debugfs::add_files::<BoData>(dir);
        dir.add::<Spaces>();
        dir.add::<svm::Usage>();
    }

    kernel::declare_drm_ioctls! {
        (VVRAM_GETPARAM, drm_vvram_getparam, ioctl::RENDER_ALLOW, File::getparam),
        (VVRAM_GEM_CREATE, drm_vvram_gem_create, ioctl::RENDER_ALLOW, File::gem_create),
        (
            VVRAM_GEM_MMAP_OFFSET,
            drm_vvram_gem_mmap_offset,
            ioctl::RENDER_ALLOW,
            File::gem_mmap_offset
        ),
        (
            VVRAM_PEER_ATTACHMENTS,
            drm_peer_attachments,
            ioctl::RENDER_ALLOW,
            peer::ioctl::attachments::<BoData>,
            Ioctl
        ),
        (VVRAM_GEM_INFO, drm_vvram_gem_info, ioctl::RENDER_ALLOW, File::gem_info),
        (
            VVRAM_PEER_IMPORT_INFO,
            drm_peer_import_info,
            ioctl::RENDER_ALLOW,
            gem::ttm::ioctl::import_info::<BoData>,
            Ioctl
        ),
        (
            VVRAM_GEM_COPY,
            drm_vvram_gem_copy,
            ioctl::RENDER_ALLOW,
            copy::gem_copy,
            Ioctl
        ),
        (
            VVRAM_PEER_QUERY,
            drm_peer_query,
            ioctl::RENDER_ALLOW,
            peer::ioctl::query::<BoData>,
            Ioctl
        ),
        (VVRAM_VM_BIND, drm_vvram_vm_bind, ioctl::RENDER_ALLOW, vm::bind, Ioctl),
        (VVRAM_VM_READ, drm_vvram_vm_read, ioctl::RENDER_ALLOW, vm::read, Ioctl),
        (VVRAM_SVM_MIGRATE, drm_vvram_svm_range, ioctl::RENDER_ALLOW, svm::migrate, Ioctl),
        (VVRAM_SVM_EVICT, drm_vvram_svm_range, ioctl::RENDER_ALLOW, svm::evict, Ioctl),
        (
            VVRAM_PEER_FLUSH,
            drm_peer_flush,
            ioctl::RENDER_ALLOW,
            peer::ioctl::flush::<BoData>,
            Ioctl
        ),
    }
}

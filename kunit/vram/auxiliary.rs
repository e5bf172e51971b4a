// SPDX-License-Identifier: GPL-2.0

//! A DRM device below an auxiliary device, as in a GPU driver that is split in two: VRAM belongs to
//! the PCI device of the core driver, which makes the auxiliary device.

use crate::bench::{
    self,
    with_device,
    BAR, //
};
use core::ptr;
use kernel::{
    auxiliary,
    bindings,
    device::{
        self,
        Bound,
        Core, //
    },
    driver,
    drm::{
        self,
        devres::RegistrationInit,
        gem::{
            self,
            ttm::TtmObject, //
        },
        ttm::{
            CpuEngine,
            CpuRing,
            OpCtx,
            Place, //
        },
        vram::{
            Allocator,
            Domain,
            Ranges, //
        }, //
    },
    module::this_module,
    page::PAGE_SIZE,
    pci,
    prelude::*,
    sync::aref::ARef,
    types::CovariantForLt, //
};

type Object = gem::ttm::Object<Bo>;

const NAME: &CStr = c"vram";
const MODULE: &CStr = c"vram_kunit";

/// The data that the core driver hands to the auxiliary driver.
struct Api<'a> {
    pdev: &'a pci::Device<Bound>,
}

type ApiOf = CovariantForLt!(Api<'_>);

/// A test that needs the auxiliary device, which is being probed, and the PCI device.
type Body = fn(&auxiliary::Device<Core<'_>>, &pci::Device<Bound>) -> Result;

kernel::sync::global_lock! {
    // SAFETY: Initialized by `init()`, which the module calls before a suite runs.
    unsafe(uninit) static TURN: Mutex<(Option<Body>, Result)> = (None, Ok(()));
}

/// Prepares the suite. Called once, by the module.
pub(crate) fn init() {
    // SAFETY: Called exactly once.
    unsafe { TURN.init() };
}

/// The driver of the auxiliary device: a test runs in its probe.
struct Probe;

kernel::auxiliary_device_table!(
    AUX_TABLE,
    <Probe as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(MODULE, NAME), ())]
);

impl auxiliary::Driver for Probe {
    type IdInfo = ();
    type Data<'bound> = Self;

    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &AUX_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<Core<'_>>,
        _info: &'bound (),
    ) -> impl PinInit<Self, Error> + 'bound {
        let body = TURN.lock().0.take().ok_or(ENODEV)?;
        let result = adev
            .registration_data::<ApiOf>()
            .and_then(|api| body(adev, api.pdev));

        TURN.lock().1 = result;
        Ok(Self)
    }
}

/// Runs a test in the probe of an auxiliary device, which `make` makes, and removes, for the PCI
/// device.
fn in_probe(body: Body, make: bench::Body) -> Result {
    *TURN.lock() = (Some(body), Err(ENXIO));
    let driver = KBox::pin_init(
        driver::Registration::<auxiliary::Adapter<Probe>>::new(
            MODULE,
            this_module::<crate::LocalModule>(),
        ),
        GFP_KERNEL,
    )?;

    with_device(make)?;
    drop(driver);
    TURN.lock().1
}

/// Runs a test with an auxiliary device of the PCI device, and removes both afterwards.
fn with_auxiliary(body: Body) -> Result {
    in_probe(body, |pdev| {
        let api = Api { pdev };
        // SAFETY: The value is dropped below.
        let made = unsafe {
            auxiliary::Registration::<ApiOf>::new_with_lt(pdev.as_ref(), NAME, 0, MODULE, api)
        }?;

        drop(made);
        Ok(())
    })
}

/// The same with an auxiliary device as a driver in C makes it, which has no data.
fn without_data(body: Body) -> Result {
    in_probe(body, |pdev| {
        let parent: &device::Device<Core<'_>> = pdev.as_ref();

        // SAFETY: The parent is valid, it is bound until this returns, and the names are static.
        let made = unsafe {
            bindings::auxiliary_device_create(
                ptr::from_ref(parent).cast_mut().cast(),
                MODULE.as_char_ptr(),
                NAME.as_char_ptr(),
                ptr::null_mut(),
                0,
            )
        };
        if made.is_null() {
            return Err(ENOMEM);
        }
        // SAFETY: The device was just made.
        unsafe { bindings::auxiliary_device_destroy(made.cast()) };
        Ok(())
    })
}

struct Vram<'a> {
    engine: CpuEngine<'a>,
}

struct Init;

impl RegistrationInit<Driver> for Init {
    fn init<'a>(
        self,
        adev: &'a auxiliary::Device<Bound>,
        drm: drm::devres::Unregistered<'_, 'a, Driver>,
    ) -> impl PinInit<Vram<'a>, Error> {
        Ok(Vram {
            engine: CpuEngine::new(drm.ttm.map_bar(adev, MODULE)?)?,
        })
    }
}

peer_object! {
    struct Bo(());
}

impl TtmObject for Bo {
    fn ttm(data: &Data) -> &drm::gem::ttm::Device<Self> {
        &data.ttm
    }

    fn domain(&self) -> Domain {
        Domain::Either
    }

    type Engine<'a, 'bound: 'a> = &'a CpuEngine<'bound>;
    type Ring = CpuRing;

    fn engine<'a, 'bound: 'a>(vram: &'a Vram<'bound>, _index: usize) -> &'a CpuEngine<'bound> {
        &vram.engine
    }

    fn flush(vram: &Vram<'_>, ranges: &Ranges) {
        vram.engine.flush(ranges);
    }
}

#[pin_data]
struct Data {
    #[pin]
    ttm: drm::gem::ttm::Device<Bo>,
}

driver! { auxiliary, Data, Vram, Object, c"vram_kunit_aux", c"VRAM in BAR 2 of the parent" }

type Card = drm::devres::Registration<Driver>;

fn card(adev: &auxiliary::Device<Bound>, pdev: &pci::Device<Bound>) -> Result<Card> {
    let size = pdev.resource_len(BAR)?;
    let drm = drm::UnregisteredDevice::<Driver>::new(
        adev,
        try_pin_init!(Data {
            ttm <- drm::gem::ttm::Device::new(adev, BAR, size, Allocator::new(0..size)?),
        }),
    )?;

    drm.ttm.set_pin_limit(size);
    Card::new(adev, drm, Init, 0)
}

/// Makes an object of two pages in VRAM.
fn object(card: &Card) -> Result<ARef<Object>> {
    Object::new(
        card.device(),
        2 * PAGE_SIZE,
        &[Place::VRAM],
        &mut OpCtx::uninterruptible(),
        (),
    )
}

#[kunit_tests(vram_auxiliary)]
mod tests {
    use super::*;
    use crate::{
        bench::{
            export,
            fill,
            holds,
            validate,
            Asleep, //
        },
        importer::{
            map,
            prompt,
            DIR, //
        }, //
    };
    use kernel::{
        dma_buf::Attachment,
        drm::{
            gem::peer::{
                attachments,
                Outcome,
                Path,
                Reason, //
            },
            vram::MemType, //
        }, //
    };

    /// Data of another type, with the same layout as that of the device.
    #[expect(dead_code)]
    struct Other<'a>(&'a pci::Device<Bound>);

    type OtherOf = CovariantForLt!(Other<'_>);

    /// A driver that asks for data of another type gets none.
    #[test]
    fn data_has_one_type() -> Result {
        with_auxiliary(|adev, pdev| {
            check_eq!(adev.registration_data::<OtherOf>().err(), Some(EINVAL));
            check_eq!(
                adev.registration_data_with::<OtherOf, _>(|_| ()),
                Err(EINVAL)
            );
            check!(ptr::eq(
                adev.registration_data::<ApiOf>()?.get_ref().pdev,
                pdev
            ));
            Ok(())
        })
    }

    /// A driver that asks for the data of a device that has none gets none.
    #[test]
    fn device_without_data() -> Result {
        // The driver asks before it calls this.
        check_eq!(without_data(|_, _| Ok(())), Err(ENOENT));
        Ok(())
    }

    /// Moves, peers and runtime PM guards use the PCI device, to which VRAM belongs.
    #[test]
    fn vram_is_of_the_pci_device() -> Result {
        with_auxiliary(|adev, pdev| {
            let card = card(adev, pdev)?;
            let object = object(&card)?;
            fill(&object, 1)?;
            validate(&object, &[Place::TT])?;
            check!(holds(&object, Some(1))?);
            // The engine is the CPU, which needs no DMA addresses.
            check_eq!(card.device().ttm.dma_mapped(), 0);
            validate(&object, &[Place::VRAM])?;
            check!(holds(&object, Some(1))?);

            let buf = export(&object)?;
            let asleep = Asleep::new(pdev.as_ref());
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            check_eq!(
                attachments::<Bo>(&object)?[0].outcome,
                Outcome::system(Reason::Suspended)
            );
            drop((at, asleep));

            let at = Attachment::new(buf, pdev.as_ref(), prompt())?;
            let now = attachments::<Bo>(&object)?;
            check_eq!(now[0].outcome, Outcome::peer(Path::PeerBus));
            let place = object
                .reserve(false)?
                .vram()
                .and_then(|vram| vram.offset(0));
            at.with(|at| {
                let first = at.map(DIR)?.iter().next().map(|entry| entry.dma_address());

                check_eq!(first, Some(pdev.resource_start(BAR)? + place.ok_or(ENXIO)?));
                Ok(())
            })
        })
    }

    /// VRAM is accessible while the auxiliary device is suspended.
    #[test]
    fn parent_may_be_suspended() -> Result {
        with_auxiliary(|adev, pdev| {
            let card = card(adev, pdev)?;
            let object = object(&card)?;
            let buf = export(&object)?;
            let _asleep = Asleep::new(adev.as_ref());
            let at = Attachment::new(buf, pdev.as_ref(), prompt())?;

            check_eq!(
                attachments::<Bo>(&object)?[0].outcome,
                Outcome::peer(Path::PeerBus)
            );
            map(&at)?;
            check_eq!(object.reserve(false)?.mem_type(), Some(MemType::Vram));
            fill(&object, 2)?;
            check!(holds(&object, Some(2))?);
            Ok(())
        })
    }

    /// The unbinding of the auxiliary driver revokes the buffers.
    #[test]
    fn unplug_takes_everything_back() -> Result {
        with_auxiliary(|adev, pdev| {
            let card = card(adev, pdev)?;
            let object = object(&card)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            map(&at)?;

            drop(card);
            at.with(|at| {
                check!(at.mapping().is_none());
                check_eq!(at.map(DIR).err(), Some(ENODEV));
                Ok(())
            })?;
            check_eq!(
                Attachment::new(buf, pdev.as_ref(), prompt()).err(),
                Some(ENODEV)
            );
            check_eq!(validate(&object, &[Place::TT]), Err(ENODEV));
            Ok(())
        })
    }
}

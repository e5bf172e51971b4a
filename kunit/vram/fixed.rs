// SPDX-License-Identifier: GPL-2.0

//! A device with page tables whose objects never move: it is told when it is unplugged.

use crate::bench::{
    with_device,
    BAR,
    PAGE, //
};
use kernel::{
    device::{
        Bound,
        DeviceContext, //
    },
    drm::{
        self,
        devres::RegistrationInit,
        gem::{
            self,
            mappings::mapping_hooks,
            peer::{
                self,
                PeerObject, //
            },
            vram::VramObject,
            Held,
            Mappings, //
        },
        vram::{
            Allocator,
            Ranges,
            Window, //
        }, //
    },
    pci,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

type Object = gem::vram::Object<Bo>;

/// How often the driver was told of objects, and of how many bytes.
struct Told {
    evicted: Atomic<u64>,
    zapped: Atomic<u64>,
    bytes: Atomic<u64>,
}

struct Vram<'a> {
    exports: peer::Exports<'a, Bo>,
    window: Window<'a>,
    told: Arc<Told>,
}

struct Init(Arc<Told>);

impl RegistrationInit<Driver> for Init {
    fn init<'a>(
        self,
        pdev: &'a pci::Device<Bound>,
        _drm: &drm::UnregisteredDevice<Driver>,
    ) -> impl PinInit<Vram<'a>, Error> {
        Ok(Vram {
            exports: peer::exports(pdev, BAR)?,
            window: Window::new(pdev, BAR, c"vram_kunit")?,
            told: self.0,
        })
    }
}

struct Bo;

static OPS: peer::Ops<Bo> = peer::Ops::new();

impl gem::DriverObject for Bo {
    type Driver = Driver;
    type Args = ();

    const PRIME: gem::PrimeHooks<Self> = peer::hooks();

    fn new(_dev: &drm::Device<Driver>, _size: usize, _args: ()) -> impl PinInit<Self, Error> {
        Ok::<_, Error>(Self)
    }
}

impl Mappings for Bo {
    fn evicted<'a>(vram: &'a Vram<'a>, _object: &Held<'_, Object>) {
        vram.told.evicted.add(1, Relaxed);
    }

    fn zap<'a>(vram: &'a Vram<'a>, object: &Held<'_, Object>) {
        let bytes: u64 = object
            .object()
            .ranges()
            .ranges()
            .iter()
            .map(|r| r.len)
            .sum();

        vram.told.zapped.add(1, Relaxed);
        vram.told.bytes.add(bytes, Relaxed);
    }
}

impl VramObject for Bo {
    const MAPPINGS: gem::MappingHooks<Self> = mapping_hooks();

    fn vram(data: &Data) -> &gem::vram::Device<Self> {
        &data.vram
    }

    fn clear<'a>(vram: &'a Vram<'a>, ranges: &Ranges) -> Result {
        vram.window.clear(ranges)
    }

    fn flush<'a>(vram: &'a Vram<'a>, ranges: &Ranges) {
        vram.window.flush(ranges);
    }
}

impl PeerObject for Bo {
    type Class = Object;

    const OPS: &'static peer::Ops<Self> = &OPS;

    fn exports<'a>(vram: &'a Vram<'a>) -> &'a peer::Exports<'a, Self> {
        &vram.exports
    }
}

struct Data {
    vram: gem::vram::Device<Bo>,
}

struct File;

impl drm::file::DriverFile for File {
    type Driver = Driver;

    fn open(_dev: &drm::Device<Driver>) -> Result<Pin<KBox<Self>>> {
        Ok(KBox::new(Self, GFP_KERNEL)?.into())
    }
}

struct Driver;

#[vtable]
impl drm::Driver for Driver {
    type Data = Data;
    type RegistrationData<'a> = Vram<'a>;
    type File = File;
    type Object = Object;
    type ParentDevice<Ctx: DeviceContext> = pci::Device<Ctx>;

    const INFO: drm::DriverInfo = drm::DriverInfo {
        major: 1,
        minor: 0,
        patchlevel: 0,
        name: c"vram_kunit",
        desc: c"VRAM that nothing leaves",
    };
    const IOCTLS: &'static [drm::ioctl::DrmIoctlDescriptor] = &[];
}

#[kunit_tests(vram_fixed)]
mod tests {
    use super::*;

    #[test]
    fn unplug_is_told_once_for_each_object() -> Result {
        with_device(|pdev| {
            let pdev: &pci::Device<Bound> = pdev;
            let size = pdev.resource_len(BAR)?;
            let told = Arc::new(
                Told {
                    evicted: Atomic::new(0),
                    zapped: Atomic::new(0),
                    bytes: Atomic::new(0),
                },
                GFP_KERNEL,
            )?;
            let vram = gem::vram::Device::new(Allocator::new(0..size)?)?;
            let drm = drm::UnregisteredDevice::<Driver>::new(pdev, Ok(Data { vram }))?;

            gem::vram::Device::<Bo>::setup(&drm, pdev, BAR, size)?;
            let card = drm::devres::Registration::new(pdev, drm, Init(told.clone()), 0)?;
            let first = Object::new(card.device(), PAGE as usize, ())?;
            let gone = Object::new(card.device(), PAGE as usize, ())?;
            let second = Object::new(card.device(), 3 * PAGE as usize, ())?;

            drop(gone);
            check_eq!(told.evicted.load(Relaxed), 0);
            drop(card);
            check_eq!(told.evicted.load(Relaxed), 2);
            check_eq!(told.zapped.load(Relaxed), 2);
            check_eq!(told.bytes.load(Relaxed), 4 * PAGE);
            drop((first, second));
            check_eq!(told.zapped.load(Relaxed), 2);
            Ok(())
        })
    }
}

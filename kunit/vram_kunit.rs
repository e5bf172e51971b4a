// SPDX-License-Identifier: GPL-2.0

//! KUnit suites for exporters and memory of a device, mostly for what happens when something fails.
//!
//! They bring drivers for QEMU's `ivshmem-plain` and for `edu`, which must not have other ones: see
//! [`bench`] and [`edu`].

use kernel::prelude::*;

/// Ends the test with an error if a condition does not hold, and logs its line.
///
/// Unlike `assert!`, it returns from the test, which runs in a probe: the locks and allocations of
/// the test are released.
macro_rules! check {
    ($condition:expr) => {
        if !$condition {
            pr_err!(
                "{}:{}: does not hold: {}\n",
                file!(),
                line!(),
                stringify!($condition)
            );
            return Err(EPROTO);
        }
    };
}

/// As [`check`], for two values that have to be equal.
macro_rules! check_eq {
    ($left:expr, $right:expr) => {
        match (&$left, &$right) {
            (left, right) => {
                if *left != *right {
                    pr_err!(
                        "{}:{}: {} is {:?}, not {:?}\n",
                        file!(),
                        line!(),
                        stringify!($left),
                        left,
                        right
                    );
                    return Err(EPROTO);
                }
            }
        }
    };
}

/// Defines `Driver`, a DRM driver without ioctls, whose files have no data.
macro_rules! driver {
    ($vis:vis $parent:ident, $data:ty, $loaded:ident, $object:ty, $name:literal, $desc:literal) => {
        $vis struct File;

        impl kernel::drm::file::DriverFile for File {
            type Driver = Driver;

            fn open(_dev: &kernel::drm::Device<Driver>) -> Result<Pin<KBox<Self>>> {
                Ok(KBox::new(Self, GFP_KERNEL)?.into())
            }
        }

        $vis struct Driver;

        #[vtable]
        impl kernel::drm::Driver for Driver {
            type Data = $data;
            type RegistrationData<'a> = $loaded<'a>;
            type File = File;
            type Object = $object;
            type ParentDevice<Ctx: kernel::device::DeviceContext> = kernel::$parent::Device<Ctx>;

            const INFO: kernel::drm::DriverInfo = kernel::drm::DriverInfo {
                major: 1,
                minor: 0,
                patchlevel: 0,
                name: $name,
                desc: $desc,
            };
            const IOCTLS: &'static [kernel::drm::ioctl::DrmIoctlDescriptor] = &[];
        }
    };
}

/// Defines `Bo`, the driver's part of an object, which peers may access.
macro_rules! peer_object {
    ($vis:vis struct Bo($args:ty); $($more:item)*) => {
        $vis struct Bo($args);

        impl kernel::drm::gem::DriverObject for Bo {
            type Driver = Driver;
            type Args = $args;

            fn new(
                _dev: &kernel::drm::Device<Driver>,
                _size: usize,
                args: $args,
            ) -> impl PinInit<Self, Error> {
                Ok::<_, Error>(Self(args))
            }
        }

        impl kernel::drm::gem::peer::PeerObject for Bo {
            type Class = Object;

            const OPS: &'static kernel::drm::gem::peer::Ops<Self> = kernel::peer_ops!(Bo);

            $($more)*
        }
    };
}

#[cfg(CONFIG_RUST_DRM_PAGEMAP)]
#[path = "vram/anonymous.rs"]
mod anonymous;
#[path = "vram/aperture.rs"]
mod aperture;
#[path = "vram/aperture_cpu.rs"]
mod aperture_cpu;
#[path = "vram/auxiliary.rs"]
mod auxiliary;
#[path = "vram/bench.rs"]
mod bench;
#[path = "vram/dma.rs"]
mod dma;
#[cfg(all(CONFIG_RUST_DRM_PAGEMAP, CONFIG_RUST_HMM))]
#[path = "vram/edu.rs"]
mod edu;
#[path = "vram/engine.rs"]
mod engine;
#[path = "vram/fence.rs"]
mod fence;
#[path = "vram/fixed.rs"]
mod fixed;
#[cfg(CONFIG_RUST_DRM_GPUVM)]
#[path = "vram/gpuvm.rs"]
mod gpuvm;
#[cfg(all(CONFIG_RUST_DRM_PAGEMAP, CONFIG_RUST_HMM))]
#[path = "vram/hmm.rs"]
mod hmm;
#[path = "vram/importer.rs"]
mod importer;
#[path = "vram/loss.rs"]
mod loss;
#[path = "vram/lru.rs"]
mod lru;
#[path = "vram/mappings.rs"]
mod mappings;
#[path = "vram/memory.rs"]
mod memory;
#[path = "vram/misuse.rs"]
mod misuse;
#[cfg(CONFIG_RUST_DRM_PAGEMAP)]
#[path = "vram/pagemap.rs"]
mod pagemap;
#[path = "vram/pages.rs"]
mod pages;
#[path = "vram/place.rs"]
mod place;
#[path = "vram/policy_exec.rs"]
mod policy_exec;
#[path = "vram/private.rs"]
mod private;
#[path = "vram/query.rs"]
mod query;
#[path = "vram/signal.rs"]
mod signal;
#[path = "vram/store.rs"]
mod store;
#[path = "vram/tt.rs"]
mod tt;
#[path = "vram/waits.rs"]
mod waits;
#[path = "vram/windows.rs"]
mod windows;
#[path = "vram/worker.rs"]
mod worker;

module! {
    type: VramKunit,
    name: "vram_kunit",
    authors: ["The vvram developers"],
    description: "KUnit suites for VRAM and its exporters",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
    params: {
        slower: u32 {
            default: 1,
            description: "Factor by which the host is slower than usual (default: 1)",
        },
    },
}

struct VramKunit;

impl kernel::Module for VramKunit {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        auxiliary::init();
        bench::init();
        #[cfg(all(CONFIG_RUST_DRM_PAGEMAP, CONFIG_RUST_HMM))]
        edu::init();
        Ok(Self)
    }
}

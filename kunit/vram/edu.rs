// SPDX-License-Identifier: GPL-2.0

//! QEMU's `edu`, a device other than the one with VRAM, which accesses memory by DMA.

use crate::{
    bench::{
        with_device,
        PAGE, //
    },
    worker::limit, //
};
use kernel::{
    device::{
        Bound,
        Core, //
    },
    dma::{
        Coherent,
        DmaMask, //
    },
    driver,
    io::{
        poll::read_poll_timeout,
        Io, //
    },
    module::this_module,
    pci,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Delta, //
};

/// The registers of the DMA engine, and the address at which it finds the buffer of the device.
const SOURCE: usize = 0x80;
const DESTINATION: usize = 0x88;
const COUNT: usize = 0x90;
const COMMAND: usize = 0x98;
const END: usize = 0xa0;
const BUFFER: u64 = 0x40000;

const RUN: u64 = 1;
const FROM_BUFFER: u64 = 2;

/// A test that needs both devices; the one with VRAM is being probed.
pub(crate) type Body = fn(&pci::Device<Core<'_>>, &Edu<'_>) -> Result;

/// The size of the buffer of the device.
const PIECE: u64 = 4096;

/// `edu`, bound to a driver, with a page of memory that the CPU sees as well.
pub(crate) struct Edu<'a> {
    pub(crate) pdev: &'a pci::Device<Bound>,
    bar: pci::Bar<'a, END>,
    memory: Coherent<[u8]>,
    body: Body,
}

impl Edu<'_> {
    /// Moves as much as the buffer of the device has to it, or from there.
    fn run(&self, addr: u64, from_buffer: bool) -> Result {
        let (source, destination, direction) = if from_buffer {
            (BUFFER, addr, FROM_BUFFER)
        } else {
            (addr, BUFFER, 0)
        };

        self.bar.try_write64(source, SOURCE)?;
        self.bar.try_write64(destination, DESTINATION)?;
        self.bar.try_write64(PIECE, COUNT)?;
        self.bar.try_write64(RUN | direction, COMMAND)?;
        read_poll_timeout(
            || self.bar.try_read64(COMMAND),
            |command| command & RUN == 0,
            Delta::from_millis(10),
            Delta::from_millis(limit().into()),
        )
        .map(|_| ())
    }

    /// Makes the device copy a page from one DMA address to another one. Does not allocate.
    pub(crate) fn copy(&self, from: u64, to: u64) -> Result {
        for at in (0..PAGE / PIECE).map(|piece| piece * PIECE) {
            self.run(from + at, false)?;
            self.run(to + at, true)?;
        }
        Ok(())
    }

    /// Returns the DMA address of the memory that the CPU sees.
    pub(crate) fn memory(&self) -> u64 {
        self.memory.dma_address()
    }

    /// Writes to the memory that the CPU sees.
    pub(crate) fn put(&self, bytes: &[u8]) {
        self.memory.copy_from_slice(bytes);
    }

    /// Reads the memory that the CPU sees.
    pub(crate) fn get(&self) -> Result<KVec<u8>> {
        let mut bytes = KVec::from_elem(0u8, PAGE as usize, GFP_KERNEL)?;

        self.memory.copy_to_slice(&mut bytes);
        Ok(bytes)
    }
}

/// The next test, and the result of the last one.
struct Turn {
    body: Option<Body>,
    result: Result,
}

kernel::sync::global_lock! {
    // SAFETY: Initialized by `init()`, which the module calls before a suite runs.
    unsafe(uninit) static TURN: Mutex<Turn> = Turn { body: None, result: Ok(()) };
}

/// The address of the [`Edu`] that a test has; the bench takes a function, and no data.
static CURRENT: Atomic<usize> = Atomic::new(0);

/// Prepares the devices. Called once, by the module.
pub(crate) fn init() {
    // SAFETY: Called exactly once.
    unsafe { TURN.init() };
}

/// Runs a test with `edu` and the device with VRAM, which have no driver before and after it.
///
/// # Errors
///
/// `ENXIO` if one of them is not there, or has a driver, and what the test returns.
pub(crate) fn with_edu(body: Body) -> Result {
    *TURN.lock() = Turn {
        body: Some(body),
        result: Err(ENXIO),
    };

    let driver = KBox::pin_init(
        driver::Registration::<pci::Adapter<Probe>>::new(
            c"vram_kunit_edu",
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
    EDU_TABLE,
    <Probe as pci::Driver>::IdInfo,
    [(
        pci::DeviceId::from_id(pci::Vendor::from_raw(0x1234), 0x11e8),
        ()
    )]
);

impl Probe {
    fn run(pdev: &pci::Device<Core<'_>>, body: Body) -> Result {
        pdev.enable_device_mem()?;
        pdev.set_master();

        let edu = Edu {
            pdev,
            bar: pdev.iomap_region_sized::<END>(0, c"vram_kunit")?,
            memory: Coherent::<u8>::zeroed_slice(pdev.as_ref(), PAGE as usize, GFP_KERNEL)?,
            body,
        };

        CURRENT.store(core::ptr::from_ref(&edu) as usize, Relaxed);
        let result = with_device(|vram| {
            // SAFETY: The device is there until this has returned, and nothing else stores.
            let edu = unsafe { &*(CURRENT.load(Relaxed) as *const Edu<'_>) };

            (edu.body)(vram, edu)
        });
        CURRENT.store(0, Relaxed);
        result
    }
}

impl pci::Driver for Probe {
    type IdInfo = ();
    type Data<'bound> = Self;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &EDU_TABLE;
    const DMA_MASK: Option<DmaMask> = Some(DmaMask::new::<64>());

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound ()>,
    ) -> impl PinInit<Self, Error> + 'bound {
        if pdev.vendor_id().as_raw() != 0x1234 || pdev.device_id() != 0x11e8 {
            return Err(ENODEV);
        }

        // If there is a second device, the first one has run the test.
        let body = TURN.lock().body.take().ok_or(ENODEV)?;
        let result = Self::run(pdev, body);

        TURN.lock().result = result;
        Ok(Self)
    }
}

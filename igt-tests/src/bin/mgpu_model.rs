// SPDX-License-Identifier: GPL-2.0

//! The modelled GPU without its driver: it reports a broken rule, which other tests rely on.

use std::fs;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use vvram_tests::fixture::patterns;
use vvram_tests::iommu::{is_ram, physical, Way};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::mgpu::replug;
use vvram_tests::misc;
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::rebind::Unbound;
use vvram_tests::{check, check_eq, check_ok, fail, igt_main, Need, Outcome, Stop, SysError};

// Registers of 64 bits, and pairs of registers of 32 bits, by their offsets.
const ID_VERSION: usize = 0x000;
const VRAM_SIZE: usize = 0x008;
const APERTURE_SIZE: usize = 0x010;
const RINGS_CONTEXTS: usize = 0x018;
const STATUS_PAGE: usize = 0x020;
const CONTEXT_INVALIDATE: usize = 0x040;
const RESET_INJECT: usize = 0x048;
const REPORTS_CHECK: usize = 0x050;
const RING_BASE: usize = 0x100;
const RING_ENTRIES_DOORBELL: usize = 0x108;

const REMOVE: u64 = 7;
const EXPECT_REPORTS: u64 = 9;
const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;
const ONES: u64 = u64::MAX;

const LIMIT: Duration = Duration::from_secs(20);

/// A GPU without a driver, whose registers and aperture are mapped.
struct Gpu {
    pci: PciDevice,
    registers: Map,
    aperture: Bar,
    /// The drop of this binds the driver again, if there was one.
    unbound: Option<Unbound>,
}

impl Gpu {
    fn all() -> Vec<PciDevice> {
        PciDevice::all(0x1234, 0x11f0)
    }

    fn open(pci: PciDevice) -> Result<Self, Stop> {
        let unbound = match pci.driver() {
            Some(_) => Some(Unbound::new(&pci)?),
            None => None,
        };
        let folder = PathBuf::from("/sys/bus/pci/devices").join(pci.name());
        let path = folder.join("enable");
        fs::write(&path, "1")
            .map_err(|error| SysError::io(format!("writing 1 to {}", path.display()), &error))?;
        let path = folder.join("resource0");
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file =
            file.map_err(|error| SysError::io(format!("open({})", path.display()), &error))?;
        Ok(Self {
            registers: Map::new(file.as_raw_fd(), 0, PAGE)?,
            aperture: Bar::open(&pci)?,
            pci,
            unbound,
        })
    }

    fn get(&self, register: usize) -> u64 {
        self.registers.read(register / 8)
    }

    fn set(&self, register: usize, value: u64) {
        self.registers.write(register / 8, value);
    }

    fn inject(&self, what: u64, argument: u64) {
        // The other half writes zero to RESET, which resets nothing.
        self.set(RESET_INJECT, (what | argument << 16) << 32);
    }

    /// Returns the number of reports, after a check of the aperture.
    fn reports(&self) -> u64 {
        self.set(REPORTS_CHECK, 0);
        self.get(REPORTS_CHECK) & 0xffff_ffff
    }
}

/// Runs a test for each of the two GPUs.
fn each(test: fn(&Gpu) -> Outcome) -> Outcome {
    let found = Gpu::all();
    check_eq!(found.len(), 2, "modelled GPUs");
    for pci in found {
        test(&Gpu::open(pci)?)?;
    }
    Ok(())
}

fn identity(gpu: &Gpu) -> Outcome {
    check_eq!(gpu.get(ID_VERSION), 1 << 32 | 0x5550_474d, "ID, VERSION");
    let vram = gpu.get(VRAM_SIZE);
    if !vram.is_power_of_two() || !(256 << 20..=64 << 30).contains(&vram) {
        fail!("{vram:#x} bytes of VRAM");
    }
    check_eq!(
        gpu.get(APERTURE_SIZE),
        gpu.aperture.len(),
        "size of the aperture"
    );
    check_eq!(gpu.get(RINGS_CONTEXTS), 512 << 32 | 2, "RINGS, CONTEXTS");
    gpu.set(STATUS_PAGE, 0x12_3456_7000);
    check_eq!(gpu.get(STATUS_PAGE), 0x12_3456_7000, "STATUS_PAGE");
    gpu.pci.reset()?;
    check_eq!(
        gpu.get(STATUS_PAGE),
        0,
        "STATUS_PAGE after a function level reset"
    );
    Ok(())
}

fn poison(gpu: &Gpu) -> Outcome {
    let (map, before) = (gpu.aperture.map(), gpu.reports());
    for page in [0, 1, map.pages() / 2, map.pages() - 1] {
        check_eq!(map.read(page * PAGE / 8), POISON, "page {page}");
        check_eq!(map.byte((page + 1) * PAGE - 1), 0xa5, "end of page {page}");
    }
    check_eq!(gpu.reports(), before, "reports");
    Ok(())
}

fn reported(gpu: &Gpu) -> Outcome {
    let map = gpu.aperture.map();
    let before = gpu.reports();
    gpu.inject(EXPECT_REPORTS, 2);
    for (count, page) in [7, map.pages() - 1].into_iter().enumerate() {
        let last = (page + 1) * PAGE / 8 - 1;
        map.write(last, 0);
        check_eq!(map.read(last), 0, "the word that was written");
        check_eq!(gpu.reports(), before + count as u64 + 1, "reports");
        check_eq!(map.read(last), POISON, "the word after the report");
        check_eq!(
            gpu.reports(),
            before + count as u64 + 1,
            "reports after that"
        );
    }
    Ok(())
}

/// An access to the bus: its name, and a function that makes the device do it at an address. None
/// of them needs other memory of the device.
type Access = (&'static str, fn(&Gpu, u64));

const ACCESSES: [Access; 2] = [
    ("a write", |gpu, address| {
        gpu.set(STATUS_PAGE, address);
        // Of no address: the device only writes the number of the invalidation to the status page.
        gpu.set(CONTEXT_INVALIDATE, 7 << 32);
    }),
    ("a read", |gpu, address| {
        gpu.set(RING_BASE, address);
        // A ring of 8 entries, one of which was written. There is no status page for the fault.
        gpu.set(RING_ENTRIES_DOORBELL, 8 | 1 << 32);
    }),
];

/// The device accesses memory of this process, which it may not: each access is reported once, and
/// is not done.
fn refused(gpu: &Gpu, master: bool) -> Outcome {
    let page = Map::anonymous(PAGE)?;
    let (x, _) = patterns();
    page.fill(x);
    let address = physical(&page, 0)?;
    let range = (address, PAGE as u64);
    check!(is_ram(range)?, "{address:#x} is no memory");
    if master {
        let found = Way::of(&gpu.pci)?.resolve(&[range]);
        check!(
            found.is_err(),
            "the IOMMU leads {address:#x} to {found:x?} without a driver"
        );
    }
    let mut want = gpu.reports();
    gpu.inject(EXPECT_REPORTS, ACCESSES.len() as u64);
    for (name, access) in ACCESSES {
        // A reset clears all registers but the number of reports.
        gpu.pci.reset()?;
        gpu.pci.set_master(master)?;
        access(gpu, address);
        want += 1;
        let reported = misc::poll(LIMIT, || (gpu.reports() >= want).then_some(()));
        check!(reported.is_some(), "{name} at {address:#x} is not reported");
    }
    gpu.pci.reset()?;
    gpu.pci.set_master(false)?;
    gpu.inject(EXPECT_REPORTS, 0);
    check_eq!(gpu.reports(), want, "reports of both accesses");
    check_ok!(page.verify(x), "the device has written to memory");
    Ok(())
}

/// The page is mapped for no device: only the IOMMU is between a device that is a bus master and
/// the page.
fn unmapped() -> Outcome {
    if !Gpu::all().iter().all(PciDevice::translated) {
        return Err(Stop::needs(Need::Iommu));
    }
    each(|gpu| refused(gpu, true))
}

/// A removal by surprise is followed by an unplug, and the device is plugged in again.
fn removed() -> Outcome {
    let Some(pci) = Gpu::all().pop() else {
        fail!("there is no modelled GPU");
    };
    let driver = pci.driver();
    let mut gpu = Gpu::open(pci.clone())?;
    gpu.inject(REMOVE, 0);
    let gone = misc::poll(LIMIT, || (gpu.get(ID_VERSION) == ONES).then_some(()));
    check!(gone.is_some(), "ID reads as before");
    check_eq!(gpu.get(REPORTS_CHECK), ONES, "REPORTS");
    let config = pci.config()?;
    check_eq!(config[..4], [0xff; 4], "vendor and device");
    if let Some(unbound) = gpu.unbound.take() {
        unbound.keep();
    }
    drop(gpu);

    replug(&pci, driver.as_deref(), LIMIT)?;
    let gpu = Gpu::open(pci)?;
    identity(&gpu)?;
    poison(&gpu)
}

igt_main! {
    "identity", "registers say what the device is, and a reset clears them", || each(identity);
    "poison", "what is not mapped in the aperture is poison", || each(poison);
    "reported", "a write to what is not mapped is reported", || each(reported), changes: [Reports];
    "unmapped", "an access to memory that the IOMMU does not map for the device is reported", unmapped, changes: [Reports];
    "not-master", "an access with bus mastering off is reported", || each(|gpu| refused(gpu, false)), changes: [Reports];
    "removed", "a device that is removed by surprise reads as ones, and can be plugged in again", removed;
}

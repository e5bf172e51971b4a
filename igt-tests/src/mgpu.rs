// SPDX-License-Identifier: GPL-2.0

//! The modelled GPU. The ioctls that it shares with vvram have the same numbers and arguments.

use std::fs;
use std::time::Duration;

use crate::debugfs::{Counter, DebugFs};
use crate::drm::{path_name, reason_name, DmaBuf, Drm, Gem};
use crate::fixture::{placed, Expect};
use crate::map::{Map, PAGE};
use crate::misc;
use crate::pci::PciDevice;
use crate::peer::{Mode, Peer};
use crate::qmp::Monitor;
use crate::rebind;
use crate::{uapi, Outcome, Stop, SysError};

/// Name of the PCI driver, of the module, and of the DRM driver.
pub const DRIVER: &str = "mgpu";

/// What windows can have of the aperture, in bytes.
pub const PARAM_APERTURE_SIZE: u32 = 1;

/// The size of the part of the aperture that no window uses, in bytes.
pub const SCRATCH: u64 = 32 * PAGE as u64;

/// How long a job may take in these tests before its ring is reset, in ms.
pub const TIMEOUT: &str = "timeout_ms=700";

/// How long the device may take for an invalidation in some tests, in ms.
const SOON: &str = "invalidate_ms=1000";

/// The number of the ring of the copy engine.
pub const COPY: u32 = 0;
/// The number of the ring of the compute engine.
pub const COMPUTE: u32 = 1;

/// An error that the device makes on request.
#[derive(Clone, Copy, Debug)]
pub enum Error {
    /// The next operation hangs.
    Hang = 1,
    /// The next operation faults.
    Fault = 2,
    /// The next interrupt is not raised.
    Lost = 3,
    /// The next fence raises its interrupt before its value is there.
    Early = 4,
    /// As many of the next invalidations as the argument says, or one, are not done.
    NoInvalidate = 5,
    /// Each entry of the ring takes so many ms longer.
    Slow = 6,
    /// The device is removed by surprise.
    Removed = 7,
    /// The next operation is delayed by so many ms.
    Late = 8,
    /// Resets of the ring are not done.
    NoRingReset = 10,
    /// The next so many resets of the device are not done.
    NoReset = 11,
    /// Operations of the ring hang until a reset by the PCI core.
    Lifeless = 12,
    /// The chaos of the device draws the numbers of another seed, which has this number.
    Seed = 13,
}

/// The registers of a device about its chaos: what it does at random, and its interface permits.
#[derive(Debug)]
pub struct Chaos(Map);

impl Chaos {
    /// How many kinds of lies the device counts.
    pub const LIES: usize = 9;
    /// That it has kept that nothing is mapped, which only jobs notice that fault.
    pub const NOT_MAPPED: usize = 0;
    /// That it has lost a write in a reset.
    pub const LOST: usize = 4;

    /// Maps the registers.
    pub fn of(pci: &PciDevice) -> Result<Self, SysError> {
        Ok(Self(pci.map_bar(0, 0, PAGE as u64)?))
    }

    /// The seed of the numbers, or 0 if the device does all in order.
    pub fn seed(&self) -> u64 {
        self.0.read(0x058 / 8)
    }

    /// How often it has told each lie.
    pub fn lies(&self) -> [u64; Self::LIES] {
        std::array::from_fn(|lie| {
            let pair = self.0.read(0x080 / 8 + lie / 2);
            pair >> (lie % 2 * 32) & 0xffff_ffff
        })
    }
}

/// An open file of a modelled GPU.
#[derive(Debug)]
pub struct Mgpu {
    /// The DRM file.
    pub drm: Drm,
    /// The PCI device.
    pub pci: PciDevice,
    device: String,
    /// The number of reports when it was opened.
    reports: u64,
}

impl Mgpu {
    /// Opens the render node.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none.
    #[track_caller]
    pub fn open(pci: &PciDevice) -> Result<Self, Stop> {
        let (drm, device) = Drm::open_split(DRIVER, pci)?;
        let mut this = Self {
            drm,
            pci: pci.clone(),
            device,
            reports: 0,
        };
        this.reports = this.reports()?;
        Ok(this)
    }

    /// Opens the render node of the first GPU.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none.
    #[track_caller]
    pub fn first() -> Result<Self, Stop> {
        match PciDevice::mgpus().first() {
            Some(pci) => Self::open(pci),
            None => Err(Stop::fail("there is no modelled GPU")),
        }
    }

    /// Opens the render nodes of the first two GPUs.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there are not so many.
    #[track_caller]
    pub fn pair() -> Result<[Self; 2], Stop> {
        match PciDevice::mgpus().as_slice() {
            [a, b, ..] => Ok([Self::open(a)?, Self::open(b)?]),
            other => Err(Stop::fail(format_args!(
                "expected two modelled GPUs, saw {other:?}"
            ))),
        }
    }

    /// The files of the driver in debugfs.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there are none.
    #[track_caller]
    pub fn debugfs(&self) -> Result<DebugFs, Stop> {
        DebugFs::open(&PciDevice::named(&self.device))
    }

    /// The auxiliary device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// How often the device has lost its state in D3hot.
    pub fn power_losses(&self) -> Result<u64, SysError> {
        let registers = self.pci.map_bar(0, 0, PAGE as u64)?;
        Ok(registers.read(0x060 / 8) & 0xffff_ffff)
    }

    /// Requests an error of the copy engine.
    #[track_caller]
    pub fn inject(&self, error: Error, argument: u32) -> Outcome {
        self.inject_into(COPY, error, argument)
    }

    /// Requests an error of a ring.
    #[track_caller]
    pub fn inject_into(&self, ring: u32, error: Error, argument: u32) -> Outcome {
        let text = format!("{} {ring} {argument}", error as u32);
        Ok(self.debugfs()?.write("inject", &text)?)
    }

    /// How many rules the driver has broken so far.
    #[track_caller]
    pub fn reports(&self) -> Result<u64, Stop> {
        let text = self.debugfs()?.read("reports")?;
        match text.trim().parse() {
            Ok(reports) => Ok(reports),
            Err(_) => Err(Stop::fail(format_args!("{text:?} is no number"))),
        }
    }

    /// What windows can have of the aperture, in bytes.
    pub fn aperture(&self) -> Result<u64, SysError> {
        self.drm.getparam(PARAM_APERTURE_SIZE)
    }

    /// Fills the aperture: makes an object of its size, and has a peer map all of it. A peer that
    /// pins needs a driver that permits it: see [`Impatient::pinning`].
    ///
    /// # Errors
    ///
    /// Any error of a call, or if some of the aperture is free.
    pub fn fill_aperture(&self, mode: Mode) -> Result<(Gem<'_>, DmaBuf, Peer), Stop> {
        let all = self.drm.create(self.aperture()?)?;
        let buffer = all.export()?;
        let holder = Peer::open()?;
        holder.attach_and_map(&buffer, mode)?;
        check_eq!(self.drm.counter(Counter::ApertureFree)?, 0, "free aperture");
        Ok((all, buffer, holder))
    }

    /// Returns how many moves the CPU has done that the engine had failed to do.
    pub fn done_again(&self) -> Result<u64, SysError> {
        self.drm.counter(Counter::DoneAgain)
    }

    /// Moves an object to a place, even if it need not move.
    #[track_caller]
    pub fn force(&self, object: &Gem<'_>, place: &str) -> Outcome {
        Ok(self.debugfs()?.force(object.info()?.id, place)?)
    }

    /// Waits until no window is left.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that takes too long.
    #[track_caller]
    pub fn await_no_window(&self) -> Outcome {
        let all = self.aperture()?;
        let done = misc::poll(Duration::from_secs(10), || {
            (self.drm.counter(Counter::ApertureFree).ok()? == all).then_some(())
        });
        check!(
            done.is_some(),
            "{} of {all} bytes of the aperture are free",
            self.drm.counter(Counter::ApertureFree)?
        );
        Ok(())
    }

    /// Checks that the driver has broken no rule since the file was opened: for the end of a
    /// subtest.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the device has something to report.
    #[track_caller]
    pub fn clean(&self) -> Outcome {
        check_eq!(
            self.reports()?,
            self.reports,
            "reports of {}",
            self.pci.name()
        );
        Ok(())
    }
}

/// The driver, loaded with another timeout. The drop of this loads it with the default again.
///
/// Must be made before files of the driver are opened, so that it is dropped after they are closed.
#[derive(Debug)]
pub struct Impatient(());

impl Impatient {
    /// Reloads the driver. No file of it may be open.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that does not work.
    #[track_caller]
    pub fn new() -> Result<Self, Stop> {
        Self::with(&[TIMEOUT])
    }

    /// As [`Self::new`], with a shorter limit for invalidations, too. If one is not done, the
    /// driver does not reset the device.
    #[track_caller]
    pub fn with_invalidations() -> Result<Self, Stop> {
        Self::with(&[TIMEOUT, SOON, "invalidate_reset=0"])
    }

    /// As [`Self::with_invalidations`], for jobs that hang while a test does something.
    #[track_caller]
    pub fn less_with_invalidations() -> Result<Self, Stop> {
        Self::with(&["timeout_ms=4000", SOON, "invalidate_reset=0"])
    }

    /// With a client that may pin as much as the aperture shows.
    #[track_caller]
    pub fn pinning() -> Result<Self, Stop> {
        Self::with(&["pin_percent=100", "client_pin_percent=100"])
    }

    /// As [`Self::new`], with a shorter limit for invalidations, too.
    #[track_caller]
    pub fn with_resets() -> Result<Self, Stop> {
        Self::with(&[TIMEOUT, SOON])
    }

    /// As [`Self::new`], for jobs that hang in any case: with a shorter timeout.
    #[track_caller]
    pub fn hasty() -> Result<Self, Stop> {
        Self::with(&["timeout_ms=200"])
    }

    /// As [`Self::new`], with a timeout that each entry of a slow job meets.
    #[track_caller]
    pub fn less() -> Result<Self, Stop> {
        Self::with(&["timeout_ms=2000"])
    }

    /// As [`Self::new`], with parameters of the module, and the default timeout.
    #[track_caller]
    pub fn with(parameters: &[&str]) -> Result<Self, Stop> {
        rebind::reload(DRIVER, parameters)?;
        Ok(Self(()))
    }

    /// As [`Self::new`], with a timeout that is longer than any test.
    #[track_caller]
    pub fn never() -> Result<Self, Stop> {
        Self::with(&["timeout_ms=1000000"])
    }
}

impl Drop for Impatient {
    fn drop(&mut self) {
        // If a file is still open, the next subtest fails.
        let _ = rebind::reload(DRIVER, &[]);
    }
}

/// Unbinds an auxiliary device from the DRM driver, or binds it.
pub fn set_bound(device: &str, bound: bool) -> Result<(), SysError> {
    let file = if bound { "bind" } else { "unbind" };
    let path = format!("/sys/bus/auxiliary/drivers/{DRIVER}.{DRIVER}/{file}");
    fs::write(&path, device).map_err(|error| SysError::io(path, &error))
}

/// Checks every byte of an object.
///
/// # Errors
///
/// Fails the subtest if one differs.
#[track_caller]
pub fn holds(object: &Gem<'_>, pattern: crate::pattern::Pattern, what: &str) -> Outcome {
    check_ok!(object.map()?.verify(pattern), "{what}");
    Ok(())
}

/// Takes all of VRAM, so that all evictable objects are evicted. Waits until the evictions are
/// done, and checks that the new objects begin with zeroes.
///
/// # Errors
///
/// Fails the subtest if VRAM is left or not zero.
#[track_caller]
pub fn take_all(gpu: &Mgpu) -> Result<Vec<Gem<'_>>, Stop> {
    let drm = &gpu.drm;
    let word = drm.create_flags(PAGE as u64, uapi::CREATE_SYSTEM)?;
    let map = word.map()?;
    let mut taken = Vec::new();
    // The pieces are small enough to have a window, and their halves are whole pages.
    let mut size = 1 << (gpu.aperture()? / 4).ilog2();
    while size >= PAGE as u64 {
        match drm.create(size) {
            Ok(object) => taken.push(object),
            Err(error) if error.errno == libc::ENOSPC => size /= 2,
            Err(error) => return Err(error.into()),
        }
    }
    drm.await_vram_free(0)?;
    for object in &taken {
        map.set(u64::MAX);
        // The copy is done when the object is cleared, which is after the eviction of the old
        // owner.
        drm.copy((object, 0), (&word, 0), 8)?.finish()?;
        check_eq!(map.read(0), 0, "the first word of a new object");
    }
    Ok(taken)
}

/// Fragments VRAM so that `pieces` single pages are free, and returns the objects that take the
/// rest.
pub fn fragment(gpu: &Mgpu, pieces: usize) -> Result<Vec<Gem<'_>>, Stop> {
    let small: Vec<_> = (0..2 * pieces)
        .map(|_| gpu.drm.create(PAGE as u64))
        .collect::<Result<_, _>>()?;
    let mut kept = take_all(gpu)?;
    for (index, object) in small.into_iter().enumerate() {
        if index % 2 == 0 {
            kept.push(object);
        }
    }
    Ok(kept)
}

/// The name of the last GPU in QEMU, and the directory of the sockets.
const LAST: &str = "gpu-b";
const SOCKETS: &str = "/build/sockets";

/// Unplugs the last GPU, and plugs it in again; returns when it is bound to `driver` again.
///
/// # Errors
///
/// Fails the subtest if that takes too long.
#[track_caller]
pub fn replug(pci: &PciDevice, driver: Option<&str>, limit: Duration) -> Outcome {
    let mut monitor = Monitor::open()?;
    monitor.unplug(LAST)?;
    check!(monitor.unplugged(LAST, limit)?, "{LAST} was not unplugged");
    check!(!pci.exists(), "the kernel still has {}", pci.name());
    let socket = format!("\"socket\": {{\"type\": \"unix\", \"path\": \"{SOCKETS}/{LAST}.sock\"}}");
    monitor.plug("vfio-user-pci", LAST, &socket, &["d4", "rp4"])?;
    let back = misc::poll(limit, || {
        // The device appears in sysfs before its BARs have addresses.
        let placed = pci.exists() && pci.bar(0).is_ok_and(|(start, _)| start != 0);
        (placed && pci.driver().as_deref() == driver).then_some(())
    });
    check!(back.is_some(), "{} does not come back", pci.name());
    Ok(())
}

/// Checks that a GPU reaches an object of another one peer to peer, in one piece, and that the object
/// is in VRAM.
///
/// # Errors
///
/// Fails the subtest if that is not so, and any error of the ioctls.
#[track_caller]
pub fn reached(object: &Gem<'_>, import: &Gem<'_>) -> Outcome {
    let info = import.import_info()?;
    check!(
        (info.path, info.reason) == (Expect::get()?.path(), uapi::REASON_NONE),
        "path {}, reason {}",
        path_name(info.path),
        reason_name(info.reason)
    );
    check_eq!(info.segments, 1, "pieces of the mapping");
    placed(object, uapi::PLACEMENT_VRAM)
}

// SPDX-License-Identifier: GPL-2.0

//! Memory of devices in the address space of a process: test_hmm, the kernel's test module of HMM.
//!
//! Its ioctls are those of `lib/test_hmm_uapi.h`.

use std::fs::File;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use crate::drm::ioctl;
use crate::map::{Map, PAGE};
use crate::misc;
use crate::pci::PciDevice;
use crate::rebind::{self, Overridden, Unbound};
use crate::uapi::ioc;
use crate::{Outcome, Stop, SysError};

const MODULE: &str = "test_hmm";
/// The device whose memory is in the BAR of a PCI device.
const IN_BAR: &str = "/dev/hmm_dmirror4";
/// A device whose memory is in no BAR.
const OTHER: &str = "/dev/hmm_dmirror0";

/// `struct hmm_dmirror_cmd`
#[repr(C)]
struct Cmd {
    addr: u64,
    ptr: u64,
    npages: u64,
    cpages: u64,
    faults: u64,
}

const fn request(nr: u64) -> u64 {
    ioc(3, b'H' as u64, nr, size_of::<Cmd>())
}

const READ: u64 = request(0);
const MIGRATE_TO_DEV: u64 = request(2);
const SNAPSHOT: u64 = request(4);
const RELEASE: u64 = request(7);
const FLAGS: u64 = request(8);

/// The device has the DMA of the PCI device with the BAR, which reaches it.
const P2P_DEVICE: u64 = 0x4;
/// One of eight pages of the device has no page in the BAR.
const P2P_HOLES: u64 = 0x8;

const _: () = assert!(SNAPSHOT == 0xc028_4804);

/// The module, unloaded when dropped.
#[derive(Debug)]
struct Module {
    loaded: bool,
}

impl Module {
    fn load() -> Result<Self, Stop> {
        let loaded = Command::new("modprobe").arg(MODULE).status();
        check!(
            loaded.as_ref().is_ok_and(|status| status.success()),
            "modprobe {MODULE}: {loaded:?}"
        );
        Ok(Self { loaded: true })
    }

    /// Unloads the module, unless it stays in use; returns whether it was unloaded.
    fn try_unload(&mut self) -> bool {
        // The release of the files of a process that was killed may take a moment.
        let unloaded = misc::poll(Duration::from_secs(5), || {
            rebind::delete_module(MODULE).ok()
        });
        self.loaded = unloaded.is_none();
        !self.loaded
    }

    /// Unloads it.
    fn unload(mut self) -> Outcome {
        check!(
            self.try_unload(),
            "{MODULE} cannot be unloaded: {:?} users",
            rebind::module_users(MODULE)
        );
        Ok(())
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.loaded {
            self.try_unload();
        }
    }
}

/// test_hmm, which may be bound to the first GPU in place of vvram.
#[derive(Debug)]
pub struct TestHmm {
    // In the order in which they are undone.
    memory: Option<Overridden>,
    module: Module,
    own: Option<Unbound>,
}

impl TestHmm {
    /// Loads it.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it does not load.
    pub fn load() -> Result<Self, Stop> {
        Ok(Self {
            memory: None,
            module: Module::load()?,
            own: None,
        })
    }

    /// Loads it, and binds it to the first GPU, whose BAR then is the memory of a device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it does not load, or cannot be bound to the GPU.
    pub fn with_memory() -> Result<Self, Stop> {
        let gpu = PciDevice::vvram()?;
        let own = Unbound::new(&gpu)?;
        let module = Module::load()?;
        Ok(Self {
            memory: Some(Overridden::new(&gpu, MODULE)?),
            module,
            own: Some(own),
        })
    }

    /// Unbinds it from the GPU.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it is not bound to the GPU, or if the unbind fails.
    pub fn unbind(&mut self) -> Outcome {
        let Some(memory) = self.memory.take() else {
            fail!("{MODULE} has no GPU");
        };
        let gpu = memory.device().clone();
        drop(memory);
        check!(gpu.driver().is_none(), "{MODULE} keeps the GPU");
        Ok(())
    }

    /// Unbinds it from the GPU, unloads it, and binds the GPU to its driver again. The drop does
    /// the same, but ignores errors.
    ///
    /// # Errors
    ///
    /// Fails the subtest if any of that fails.
    pub fn close(mut self) -> Outcome {
        if self.memory.is_some() {
            self.unbind()?;
        }
        self.module.unload()?;
        match self.own {
            Some(own) => own.rebind(),
            None => Ok(()),
        }
    }
}

/// The value in a snapshot of a page that is not populated, or is on another device.
pub const ABSENT: u8 = 0;
/// The value of the zero page, which is read-only.
pub const ZEROES: u8 = 0x11;
/// The flag of a page in the memory of the device.
pub const ON_DEVICE: u8 = 0x20;
/// The flag of a page that the device may write to.
pub const WRITABLE: u8 = 0x02;

/// The mirror of the address space of this process in a device.
#[derive(Debug)]
pub struct Mirror {
    file: File,
}

impl Mirror {
    /// Opens the device whose memory is in a BAR.
    pub fn open() -> Result<Self, SysError> {
        let file = misc::open(IN_BAR.as_ref())?;
        Ok(Self { file })
    }

    /// Opens a device that reaches the memory in the BAR.
    pub fn of_peer(map: &Map) -> Result<Self, SysError> {
        let file = misc::open(OTHER.as_ref())?;
        let mirror = Self { file };
        mirror.set_flags(map, P2P_DEVICE)?;
        Ok(mirror)
    }

    /// Hides some pages of the device from its BAR, until its memory is released.
    ///
    /// # Errors
    ///
    /// Any error of the call; `EBUSY` if the device has memory already.
    pub fn hide_some(&self, map: &Map) -> Result<(), SysError> {
        self.set_flags(map, P2P_HOLES)
    }

    /// Sets flags, which the command takes for a number of pages. The mapping is not used.
    fn set_flags(&self, map: &Map, flags: u64) -> Result<(), SysError> {
        self.call("FLAGS", FLAGS, map, flags, &mut [])?;
        Ok(())
    }

    /// Runs a command on the pages of a mapping, with a buffer for its result; returns the
    /// structure that the kernel fills in.
    fn run(&self, name: &str, request: u64, map: &Map, out: &mut [u8]) -> Result<Cmd, SysError> {
        self.call(name, request, map, map.pages() as u64, out)
    }

    fn call(
        &self,
        name: &str,
        request: u64,
        map: &Map,
        npages: u64,
        out: &mut [u8],
    ) -> Result<Cmd, SysError> {
        let mut cmd = Cmd {
            addr: map.address().as_ptr() as u64,
            ptr: out.as_mut_ptr() as u64,
            npages,
            cpages: 0,
            faults: 0,
        };
        ioctl(self.file.as_raw_fd(), request, &mut cmd, || {
            name.to_string()
        })?;
        Ok(cmd)
    }

    /// Moves all pages to the device.
    ///
    /// # Errors
    ///
    /// Any error of the call; ENOENT if some stay where they are.
    pub fn migrate(&self, map: &Map) -> Result<(), SysError> {
        let mut data = vec![0; map.len()];
        self.run("MIGRATE_TO_DEV", MIGRATE_TO_DEV, map, &mut data)?;
        Ok(())
    }

    /// Returns the bytes that the device reads.
    pub fn read(&self, map: &Map) -> Result<Vec<u8>, SysError> {
        let mut data = vec![0; map.len()];
        self.run("READ", READ, map, &mut data)?;
        Ok(data)
    }

    /// Evicts all pages of the device, of all processes.
    pub fn release(&self, map: &Map) -> Result<(), SysError> {
        self.run("RELEASE", RELEASE, map, &mut [])?;
        Ok(())
    }

    /// Returns the value of each page in a snapshot.
    ///
    /// # Errors
    ///
    /// Fails the subtest, or any error of the call.
    #[track_caller]
    pub fn places(&self, map: &Map) -> Result<Vec<u8>, Stop> {
        let mut seen = vec![0; map.pages()];
        let cmd = self.run("SNAPSHOT", SNAPSHOT, map, &mut seen)?;
        check_eq!(cmd.cpages, map.pages() as u64, "pages of the snapshot");
        Ok(seen)
    }

    /// How many pages of the device page faults have moved to system memory so far.
    pub fn faulted(&self, map: &Map) -> Result<u64, SysError> {
        let mut seen = vec![0; map.pages()];
        Ok(self.run("SNAPSHOT", SNAPSHOT, map, &mut seen)?.faults)
    }

    /// Fails unless exactly these pages are on the device, where it may write to them, and the
    /// others are in system memory.
    ///
    /// # Errors
    ///
    /// Fails the subtest, or any error of the call.
    #[track_caller]
    pub fn check_places(&self, map: &Map, on_device: impl Fn(usize) -> bool) -> Outcome {
        for (page, seen) in self.places(map)?.into_iter().enumerate() {
            let want = WRITABLE | if on_device(page) { ON_DEVICE } else { 0 };
            check_eq!(seen, want, "where page {page} of {} is", map.len() / PAGE);
        }
        Ok(())
    }
}

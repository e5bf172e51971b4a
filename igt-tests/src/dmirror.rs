// SPDX-License-Identifier: GPL-2.0

//! Memory of devices in the address space of a process: test_hmm, the kernel's test module of HMM.
//!
//! Its ioctls are those of `lib/test_hmm_uapi.h`.

use std::fs::File;
use std::fs::OpenOptions;
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

const _: () = assert!(SNAPSHOT == 0xc028_4804);

/// The module, unloaded when dropped.
#[derive(Debug)]
struct Module;

impl Module {
    fn load() -> Result<Self, Stop> {
        let loaded = Command::new("modprobe").arg(MODULE).status();
        check!(
            loaded.as_ref().is_ok_and(|status| status.success()),
            "modprobe {MODULE}: {loaded:?}"
        );
        Ok(Self)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // The files of a process that was killed may take a moment.
        misc::poll(Duration::from_secs(5), || {
            rebind::delete_module(MODULE).ok()
        });
    }
}

/// test_hmm, which may have the first GPU in place of its own driver.
#[derive(Debug)]
pub struct TestHmm {
    // In the order in which they are undone.
    _memory: Option<Overridden>,
    _module: Module,
    _own: Option<Unbound>,
}

impl TestHmm {
    /// Loads it.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it does not load.
    pub fn load() -> Result<Self, Stop> {
        Ok(Self {
            _memory: None,
            _module: Module::load()?,
            _own: None,
        })
    }

    /// Loads it, and gives it the first GPU, whose BAR then is the memory of a device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it does not load, or does not take the GPU.
    pub fn with_memory() -> Result<Self, Stop> {
        let gpu = PciDevice::vvram()?;
        let own = Unbound::new(&gpu)?;
        let module = Module::load()?;
        Ok(Self {
            _memory: Some(Overridden::new(&gpu, MODULE)?),
            _module: module,
            _own: Some(own),
        })
    }
}

/// Which pages are in the memory of the device, as its own page tables would have them.
pub const ON_DEVICE: u8 = 0x20;
/// Which of its pages may be written to.
pub const WRITABLE: u8 = 0x02;

/// What a device sees of the address space of this process.
#[derive(Debug)]
pub struct Mirror {
    file: File,
}

impl Mirror {
    /// Opens the device whose memory is in a BAR.
    ///
    /// # Errors
    ///
    /// Any error of the open.
    pub fn open() -> Result<Self, SysError> {
        let file = OpenOptions::new().read(true).write(true).open(IN_BAR);
        let file = file.map_err(|error| SysError::io(IN_BAR, &error))?;
        Ok(Self { file })
    }

    /// Runs a command on the pages of a mapping, with a buffer for what it says of them; returns
    /// of how many it does.
    fn run(&self, name: &str, request: u64, map: &Map, out: &mut [u8]) -> Result<u64, SysError> {
        let mut cmd = Cmd {
            addr: map.address().as_ptr() as u64,
            ptr: out.as_mut_ptr() as u64,
            npages: map.pages() as u64,
            cpages: 0,
            faults: 0,
        };
        ioctl(self.file.as_raw_fd(), request, &mut cmd, || {
            name.to_string()
        })?;
        Ok(cmd.cpages)
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

    /// What the device reads.
    ///
    /// # Errors
    ///
    /// Any error of the call.
    pub fn read(&self, map: &Map) -> Result<Vec<u8>, SysError> {
        let mut data = vec![0; map.len()];
        self.run("READ", READ, map, &mut data)?;
        Ok(data)
    }

    /// Evicts all pages of the device, of whichever process.
    ///
    /// # Errors
    ///
    /// Any error of the call.
    pub fn release(&self, map: &Map) -> Result<(), SysError> {
        self.run("RELEASE", RELEASE, map, &mut [])?;
        Ok(())
    }

    /// Fails unless exactly these pages are on the device, where it may write to them, and the
    /// others are in system memory.
    ///
    /// # Errors
    ///
    /// Fails the subtest, or any error of the call.
    #[track_caller]
    pub fn check_places(&self, map: &Map, on_device: impl Fn(usize) -> bool) -> Outcome {
        let mut seen = vec![0; map.pages()];
        let count = self.run("SNAPSHOT", SNAPSHOT, map, &mut seen)?;
        check_eq!(count, map.pages() as u64, "pages of the snapshot");
        for (page, seen) in seen.into_iter().enumerate() {
            let want = WRITABLE | if on_device(page) { ON_DEVICE } else { 0 };
            check_eq!(seen, want, "where page {page} of {} is", map.len() / PAGE);
        }
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! avram, the driver that is split in two, in place of vvram.

use std::fs;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::debugfs::DebugFs;
use crate::drm::{
    call, gem_close, nodes, peer_attachments, peer_flush, peer_query, prime_export, prime_import,
    DmaBuf,
};
use crate::misc;
use crate::pci::PciDevice;
use crate::rebind::{self, Overridden, Unbound};
use crate::uapi;
use crate::uapi::{AvramGemCreate, PeerAttachment, PeerFlush, PeerQuery};
use crate::{Stop, SysError};

/// Name of the PCI driver, and of the DRM driver.
pub const DRIVER: &str = "avram";

/// The module, which binds to each such device that has no driver. It is unloaded when this is
/// dropped.
///
/// Must be made before files of the driver are opened, so that it is dropped after they are closed.
#[derive(Debug)]
pub struct Module(());

impl Module {
    /// Loads it.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it is missing.
    #[track_caller]
    pub fn load() -> Result<Self, Stop> {
        let status = Command::new("modprobe").arg(DRIVER).status();
        check!(
            status.as_ref().is_ok_and(|status| status.success()),
            "modprobe {DRIVER}: {status:?}"
        );
        Ok(Self(()))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        misc::poll(Duration::from_secs(5), || {
            match rebind::delete_module(DRIVER) {
                Err(error) if error.errno == libc::EWOULDBLOCK => None,
                _ => Some(()),
            }
        });
    }
}

/// A device that is bound to avram. The drop of this binds it to vvram again.
#[derive(Debug)]
pub struct Split {
    // Dropped in this order.
    overridden: Overridden,
    own: Unbound,
}

impl Split {
    /// Unbinds a device from vvram, and binds it to avram.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the unbind or the bind fails.
    #[track_caller]
    pub fn new(_module: &Module, gpu: &PciDevice) -> Result<Self, Stop> {
        let own = Unbound::new(gpu)?;
        Ok(Self {
            overridden: Overridden::new(gpu, DRIVER)?,
            own,
        })
    }

    /// The PCI device.
    pub fn gpu(&self) -> &PciDevice {
        self.overridden.device()
    }

    /// Unbinds the device from the core driver, and binds it to vvram again.
    ///
    /// # Errors
    ///
    /// Fails the subtest if vvram cannot be bound.
    #[track_caller]
    pub fn undo(self) -> Result<(), Stop> {
        drop(self.overridden);
        self.own.rebind()
    }
}

/// An open file of avram's DRM device.
#[derive(Debug)]
pub struct Card {
    file: File,
    device: String,
}

/// The auxiliary device behind a node in /dev/dri, if it is below a PCI device.
pub(crate) fn auxiliary_of(node: &Path, gpu: &PciDevice) -> Option<String> {
    let link = Path::new("/sys/class/drm")
        .join(node.file_name()?)
        .join("device");
    let path = fs::canonicalize(link).ok()?;
    let parent = path.parent()?.file_name()?.to_string_lossy().into_owned();
    (parent == gpu.name()).then(|| path.file_name().map(|n| n.to_string_lossy().into_owned()))?
}

impl Card {
    /// Opens the render node.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none within five seconds.
    #[track_caller]
    pub fn open(gpu: &PciDevice) -> Result<Self, Stop> {
        let found = misc::poll(Duration::from_secs(5), || {
            nodes("renderD", DRIVER)
                .into_iter()
                .find_map(|(path, file)| Some((auxiliary_of(&path, gpu)?, file)))
        });
        match found {
            Some((device, file)) => Ok(Self { file, device }),
            None => Err(Stop::fail(format_args!(
                "no node in /dev/dri belongs to {DRIVER} and {}",
                gpu.name()
            ))),
        }
    }

    /// Opens the node once more.
    pub fn reopen(&self) -> Result<Self, SysError> {
        let path = format!("/proc/self/fd/{}", self.fd());
        let file = File::options().read(true).write(true).open(&path);
        Ok(Self {
            file: file.map_err(|error| SysError::io(path, &error))?,
            device: self.device.clone(),
        })
    }

    /// The file descriptor.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
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

    /// Creates an object and returns its handle.
    pub fn create(&self, size: u64) -> Result<u32, SysError> {
        let mut argument = AvramGemCreate {
            size,
            ..Default::default()
        };
        self.create_raw(&mut argument)?;
        Ok(argument.handle)
    }

    /// GEM_CREATE with a given argument.
    pub fn create_raw(&self, argument: &mut AvramGemCreate) -> Result<(), SysError> {
        call(self.fd(), uapi::AVRAM_GEM_CREATE, argument, "GEM_CREATE")
    }

    /// Exports an object.
    pub fn export(&self, handle: u32) -> Result<DmaBuf, SysError> {
        prime_export(self.fd(), handle, uapi::DRM_CLOEXEC | uapi::DRM_RDWR)
    }

    /// Imports a dma-buf and returns the handle.
    pub fn import(&self, buffer: &DmaBuf) -> Result<u32, SysError> {
        prime_import(self.fd(), buffer.fd())
    }

    /// Closes a handle.
    pub fn close(&self, handle: u32) -> Result<(), SysError> {
        gem_close(self.fd(), handle)
    }

    /// PEER_ATTACHMENTS: the importers of an object and those that were refused, at most 64.
    pub fn attachments(&self, handle: u32) -> Result<Vec<PeerAttachment>, SysError> {
        let (entries, _) = peer_attachments(self.fd(), uapi::AVRAM_PEER_ATTACHMENTS, handle)?;
        Ok(entries)
    }

    /// PEER_QUERY: the path that a device would get to an object, as an importer of the class of
    /// the flags.
    pub fn query(
        &self,
        handle: u32,
        flags: u32,
        importer: &PciDevice,
    ) -> Result<PeerQuery, SysError> {
        peer_query(self.fd(), uapi::AVRAM_PEER_QUERY, handle, flags, importer)
    }

    /// PEER_FLUSH: returns the order.
    ///
    /// # Errors
    ///
    /// The error of the call.
    pub fn flush(&self, handle: u32) -> Result<u32, SysError> {
        let argument = PeerFlush { handle, order: 0 };

        peer_flush(self.fd(), uapi::AVRAM_PEER_FLUSH, argument)
    }

    /// The auxiliary device that the DRM device belongs to.
    pub fn device(&self) -> &str {
        &self.device
    }
}

/// Unbinds an auxiliary device from the DRM driver, or binds it.
pub fn set_bound(device: &str, bound: bool) -> Result<(), SysError> {
    let file = if bound { "bind" } else { "unbind" };
    let path = format!("/sys/bus/auxiliary/drivers/{DRIVER}.{DRIVER}/{file}");
    fs::write(&path, device).map_err(|error| SysError::io(path, &error))
}

// SPDX-License-Identifier: GPL-2.0

//! An RDMA device and the GPUs whose memory it registers.

use std::fs;

use crate::drm::{path_name, reason_name, Attachment, Drm, Gem};
use crate::fixture::Expect;
use crate::pci::{Bar, PciDevice};
use crate::peer::Mode;
use crate::policy::importer_name;
use crate::verbs::Nic;
use crate::{uapi, Outcome, Stop, SysError};

/// The parameter of soft RoCE that sets the class of importer.
const MODE: &str = "/sys/module/rdma_rxe/parameters/dmabuf_mode";
/// The parameter that sets whether a registration makes a vmap of the buffer.
const VMAP: &str = "/sys/module/rdma_rxe/parameters/dmabuf_vmap";
/// The classes of importers that RDMA devices may be.
pub const CLASSES: [Mode; 3] = [Mode::Pinned, Mode::Revocable, Mode::Dynamic];

/// Makes soft RoCE an importer of a class, for what is registered from then on.
pub fn choose(class: Mode) -> Result<(), SysError> {
    fs::write(MODE, importer_name(class)).map_err(|error| SysError::io(MODE, &error))
}

/// Everything that a test of memory regions works with.
#[derive(Debug)]
pub struct Fabric {
    /// The exporter.
    pub drm: Drm,
    /// VRAM as its BAR shows it.
    pub bar: Bar,
    /// The exporting device.
    pub gpu: PciDevice,
    /// The RDMA device.
    pub nic: Nic,
    /// The importing device.
    pub device: PciDevice,
    /// The expected path between them.
    pub expect: Expect,
}

impl Fabric {
    /// Opens the first GPU and the first RDMA device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if something is missing.
    #[track_caller]
    pub fn open() -> Result<Self, Stop> {
        Self::open_on(PciDevice::vvram()?)
    }

    /// Opens one of several GPUs and the first RDMA device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if something is missing.
    #[track_caller]
    pub fn open_on(gpu: PciDevice) -> Result<Self, Stop> {
        let nic = Nic::open(None)?;
        Ok(Self {
            drm: Drm::open_on(&gpu)?,
            bar: Bar::open(&gpu)?,
            device: nic.pci()?,
            expect: Expect::get()?,
            gpu,
            nic,
        })
    }

    /// As [`Fabric::open`], for tests that need a route.
    ///
    /// # Errors
    ///
    /// Skips the subtest on topologies where the attach is refused.
    #[track_caller]
    pub fn with_route() -> Result<Self, Stop> {
        Expect::get()?.need_route()?;
        Self::open()
    }

    /// Makes the device an importer of a class, for later registrations.
    pub fn choose(&self, class: Mode) -> Result<(), SysError> {
        choose(class)
    }

    /// Makes the first access make the vmap of a buffer instead of the registration, which then
    /// only does the work that a device with DMA would have to do.
    pub fn map_late(&self) -> Result<(), SysError> {
        fs::write(VMAP, "N").map_err(|error| SysError::io(VMAP, &error))
    }

    /// The entry of PEER_ATTACHMENTS for a region in VRAM.
    pub fn in_vram(&self, class: Mode, mapped: bool) -> Attachment {
        self.attachment(class, mapped, self.expect.path(), uapi::REASON_NONE)
    }

    /// The entry of PEER_ATTACHMENTS for a region in system memory.
    pub fn in_system(&self, class: Mode, mapped: bool, reason: u32) -> Attachment {
        self.attachment(class, mapped, uapi::PATH_SYSTEM, reason)
    }

    /// The entry of PEER_ATTACHMENTS for a registration that was refused.
    pub fn refused(&self, class: Mode, reason: u32) -> Attachment {
        let mut entry = self.attachment(class, false, uapi::PATH_REFUSED, reason);
        entry.flags = class.attachment_flags();
        entry
    }

    fn attachment(&self, class: Mode, mapped: bool, path: u32, reason: u32) -> Attachment {
        let mut flags = class.attachment_flags();
        if class.needs_pin() {
            flags |= uapi::ATTACHMENT_PINNED;
        }
        if mapped {
            flags |= uapi::ATTACHMENT_MAPPED;
        }
        Attachment {
            device: self.device.name().to_string(),
            path,
            reason,
            flags,
            distance: self.expect.distance(&self.gpu, &self.device),
        }
    }

    /// Checks that an object has exactly these attachments.
    ///
    /// # Errors
    ///
    /// Fails the subtest if PEER_ATTACHMENTS lists others.
    #[track_caller]
    pub fn check_attached(&self, object: &Gem<'_>, want: &[Attachment]) -> Outcome {
        let list = object.attachments()?;
        if list == want {
            return Ok(());
        }
        let short = |list: &[Attachment]| {
            let names = list
                .iter()
                .map(|entry| {
                    format!(
                        "{} for {}",
                        path_name(entry.path),
                        reason_name(entry.reason)
                    )
                })
                .collect::<Vec<_>>();
            names.join(", ")
        };
        Err(Stop::fail(format_args!(
            "expected {} in {want:?}, PEER_ATTACHMENTS lists {} in {list:?}",
            short(want),
            short(&list)
        )))
    }
}

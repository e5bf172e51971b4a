// SPDX-License-Identifier: GPL-2.0

//! The vvram DRM device, as a program sees it.

use std::fs;
use std::fs::File;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::auxiliary::auxiliary_of;
use crate::compat;
use crate::debugfs::{self, Counter};
use crate::map::{Map, PAGE};
use crate::misc;
use crate::pci::PciDevice;
use crate::syncfile::SyncFile;
use crate::uapi;
use crate::uapi::{
    DmaBufSync, DmaBufSyncFile, DrmGemClose, DrmGemFlink, DrmGemOpen, DrmPrimeHandle, DrmVersion,
    PeerAttachment, PeerAttachments, PeerFlush, PeerImportInfo, PeerQuery, VvramGemCreate,
    VvramGemInfo, VvramGemMmapOffset, VvramGetparam,
};
use crate::{Outcome, Stop, SysError};

/// Name of the driver.
pub const DRIVER: &str = "vvram";

/// The flags of an object that may be in VRAM or in system memory.
pub const EITHER: u32 = uapi::CREATE_VRAM | uapi::CREATE_SYSTEM;

/// Makes an ioctl with an argument.
pub fn ioctl<T>(
    fd: RawFd,
    request: u64,
    argument: &mut T,
    what: impl FnOnce() -> String,
) -> Result<i32, SysError> {
    if compat::is_on() {
        return compat::ioctl(fd, request, argument, what);
    }
    // SAFETY: the argument is valid for reads and writes of its size, which is the size in the
    // number of each request (asserted in uapi.rs).
    let result = unsafe { libc::ioctl(fd, request, std::ptr::from_mut(argument)) };
    if result < 0 {
        return Err(SysError::last(what()));
    }
    Ok(result)
}

/// Makes an ioctl whose errors show its argument.
pub fn call<T: Copy + std::fmt::Debug>(
    fd: RawFd,
    request: u64,
    argument: &mut T,
    name: &str,
) -> Result<(), SysError> {
    let given = *argument;
    ioctl(fd, request, argument, || format!("{name}({given:?})"))?;
    Ok(())
}

/// Makes an ioctl with any address, as a hostile program might.
///
/// # Safety
///
/// The kernel may write to the address: the memory there must be one that the caller may overwrite,
/// or not be mapped at all.
pub unsafe fn ioctl_raw(
    fd: RawFd,
    request: u64,
    argument: u64,
    what: impl FnOnce() -> String,
) -> Result<i32, SysError> {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::ioctl(fd, request, argument) };
    if result < 0 {
        return Err(SysError::last(what()));
    }
    Ok(result)
}

/// Repeats a call as long as it fails with EAGAIN: it has to wait for something that was added
/// while it waited. A program calls drmIoctl(), which does the same.
///
/// # Errors
///
/// Any other error of the call.
pub fn again(mut call: impl FnMut() -> Result<(), SysError>) -> Result<(), SysError> {
    loop {
        match call() {
            Err(error) if error.errno == libc::EAGAIN => {
                REPEATS.fetch_add(1, Ordering::Relaxed);
            }
            ended => return ended,
        }
    }
}

static REPEATS: AtomicU64 = AtomicU64::new(0);

/// How often this process has repeated a call, see [`again`].
pub fn repeats() -> u64 {
    REPEATS.load(Ordering::Relaxed)
}

/// Name of the driver behind a DRM fd.
pub(crate) fn driver_name(fd: RawFd) -> Result<String, SysError> {
    let mut name = [0u8; 32];
    // SAFETY: all-zero is a valid value: null pointers with lengths of zero.
    let mut version: DrmVersion = unsafe { std::mem::zeroed() };
    version.name = name.as_mut_ptr();
    version.name_len = name.len();
    ioctl(fd, uapi::DRM_IOCTL_VERSION, &mut version, || {
        "DRM_IOCTL_VERSION".to_string()
    })?;
    let len = version.name_len.min(name.len());
    Ok(String::from_utf8_lossy(&name[..len]).into_owned())
}

/// Nodes in /dev/dri with a prefix and a driver, in order.
pub(crate) fn nodes(prefix: &str, driver: &str) -> Vec<(PathBuf, File)> {
    let Ok(dir) = fs::read_dir("/dev/dri") else {
        return Vec::new();
    };
    let mut paths: Vec<_> = dir.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with(prefix) {
            continue;
        }
        let Ok(file) = misc::open(&path) else {
            continue;
        };
        if driver_name(file.as_raw_fd()).is_ok_and(|name| name == driver) {
            found.push((path, file));
        }
    }
    found
}

/// The device behind a node in /dev/dri, by its name in sysfs.
fn device_name(path: &Path) -> Option<String> {
    let link = Path::new("/sys/class/drm")
        .join(path.file_name()?)
        .join("device");
    let device = fs::canonicalize(link).ok()?;
    Some(device.file_name()?.to_string_lossy().into_owned())
}

/// Opens a node of a vvram device.
fn node_of(prefix: &str, gpu: &PciDevice) -> Option<(PathBuf, File)> {
    nodes(prefix, DRIVER)
        .into_iter()
        .find(|(path, _)| device_name(path).as_deref() == Some(gpu.name()))
}

/// Opens a node of any DRM driver.
pub fn open_other(driver: &str) -> Option<File> {
    nodes("card", driver).into_iter().next().map(|(_, f)| f)
}

/// An open file of the vvram device.
#[derive(Debug)]
pub struct Drm {
    file: File,
    path: PathBuf,
}

/// One attachment, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the importer.
    pub device: String,
    /// `PATH_*`.
    pub path: u32,
    /// `REASON_*`.
    pub reason: u32,
    /// `ATTACHMENT_*`.
    pub flags: u32,
    /// PCI hops or -1.
    pub distance: i32,
}

impl Attachment {
    /// Whether this is a refusal.
    pub fn refused(&self) -> bool {
        self.path == uapi::PATH_REFUSED
    }
}

/// Name of a path.
pub fn path_name(path: u32) -> String {
    match path {
        uapi::PATH_PEER_BUS => "bus".to_string(),
        uapi::PATH_PEER_HOST_BRIDGE => "host-bridge".to_string(),
        uapi::PATH_SYSTEM => "system".to_string(),
        uapi::PATH_REFUSED => "refused".to_string(),
        uapi::PATH_LINK => "link".to_string(),
        other => format!("path {other}"),
    }
}

/// Name of a reason.
pub fn reason_name(reason: u32) -> String {
    match reason {
        0 => "none",
        1 => "no-opt-in",
        2 => "not-pci",
        3 => "no-route",
        4 => "outside-bar",
        5 => "suspended",
        6 => "other-importer",
        7 => "no-vram",
        8 => "system-only",
        9 => "not-revocable",
        10 => "no-window",
        11 => "encoded",
        16 => "pinned-elsewhere",
        17 => "quota",
        other => return format!("reason {other}"),
    }
    .to_string()
}

/// A name from the kernel, without the NUL bytes at its end.
pub fn text(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

impl Drm {
    /// Opens the render node.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none within five seconds.
    #[track_caller]
    pub fn open() -> Result<Self, Stop> {
        Self::open_on(&PciDevice::vvram()?)
    }

    /// Opens the render node of one of several devices.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none within five seconds.
    #[track_caller]
    pub fn open_on(gpu: &PciDevice) -> Result<Self, Stop> {
        Self::open_node("renderD", gpu)
    }

    /// Opens the card node.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none within five seconds.
    #[track_caller]
    pub fn open_card() -> Result<Self, Stop> {
        Self::open_node("card", &PciDevice::vvram()?)
    }

    #[track_caller]
    fn open_node(prefix: &str, gpu: &PciDevice) -> Result<Self, Stop> {
        let found = misc::poll(Duration::from_secs(5), || node_of(prefix, gpu));
        match found {
            Some((path, file)) => Ok(Self { file, path }),
            None => Err(Stop::fail(format_args!(
                "no /dev/dri/{prefix}* belongs to {DRIVER} and {}: is the module loaded and the device bound?",
                gpu.name()
            ))),
        }
    }

    /// Opens the render node that another driver with the same ioctls has for a PCI device, by its
    /// auxiliary device, and returns the name of that.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none within five seconds.
    #[track_caller]
    pub fn open_split(driver: &str, gpu: &PciDevice) -> Result<(Self, String), Stop> {
        let found = misc::poll(Duration::from_secs(5), || Self::try_open_split(driver, gpu));
        match found {
            Some(found) => Ok(found),
            None => Err(Stop::fail(format_args!(
                "no node in /dev/dri belongs to {driver} and {}",
                gpu.name()
            ))),
        }
    }

    /// As [`Drm::open_split`], if it is there right now.
    pub fn try_open_split(driver: &str, gpu: &PciDevice) -> Option<(Self, String)> {
        nodes("renderD", driver)
            .into_iter()
            .find_map(|(path, file)| {
                let device = auxiliary_of(&path, gpu)?;
                Some((Self { file, path }, device))
            })
    }

    /// Opens a node by its path.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it cannot be opened, or belongs to another driver.
    #[track_caller]
    pub fn open_path(path: &Path) -> Result<Self, Stop> {
        let file = misc::open(path)?;
        let name = driver_name(file.as_raw_fd())?;
        check!(
            name == DRIVER,
            "{} belongs to {name}, not to {DRIVER}",
            path.display()
        );
        Ok(Self {
            file,
            path: path.to_path_buf(),
        })
    }

    /// Opens the render node if it is there right now.
    pub fn try_open() -> Option<Self> {
        Self::try_open_on(&PciDevice::vvram().ok()?)
    }

    /// Opens the render node of one of several devices if it is there right now.
    pub fn try_open_on(gpu: &PciDevice) -> Option<Self> {
        let (path, file) = node_of("renderD", gpu)?;
        Some(Self { file, path })
    }

    /// Opens the same node once more.
    #[track_caller]
    pub fn reopen(&self) -> Result<Self, Stop> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let Some(gpu) = device_name(&self.path) else {
            fail!("{name} belongs to no device");
        };
        Self::open_node(&name, &PciDevice::named(&gpu))
    }

    /// Opens the same node of any driver once more.
    pub fn another(&self) -> Result<Self, SysError> {
        let file = File::options().read(true).write(true).open(&self.path);
        let file = file.map_err(|error| SysError::io(self.path.display().to_string(), &error))?;
        Ok(Self {
            file,
            path: self.path.clone(),
        })
    }

    /// The file descriptor.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The path of the node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a parameter.
    pub fn getparam(&self, param: u32) -> Result<u64, SysError> {
        let mut argument = VvramGetparam {
            param,
            ..Default::default()
        };
        self.getparam_raw(&mut argument)?;
        Ok(argument.value)
    }

    /// GETPARAM with a given argument.
    pub fn getparam_raw(&self, argument: &mut VvramGetparam) -> Result<(), SysError> {
        call(self.fd(), uapi::VVRAM_GETPARAM, argument, "GETPARAM")
    }

    /// Returns a counter of the device, which only root can read.
    pub fn counter(&self, counter: Counter) -> Result<u64, SysError> {
        debugfs::counter(&self.file, counter)
    }

    /// Bytes of VRAM that are free.
    pub fn vram_free(&self) -> Result<u64, SysError> {
        self.counter(Counter::VramFree)
    }

    /// Waits until so many bytes of VRAM are free, because a closed object still exists while work
    /// on it is under way.
    ///
    /// # Errors
    ///
    /// A failure if that takes longer than 10 s.
    #[track_caller]
    pub fn await_vram_free(&self, want: u64) -> Outcome {
        let free = misc::poll(Duration::from_secs(10), || {
            (self.vram_free().ok()? == want).then_some(())
        });
        match free {
            Some(()) => Ok(()),
            None => Err(Stop::fail(format_args!(
                "{} of {want} bytes of VRAM are free",
                self.vram_free()?
            ))),
        }
    }

    /// Creates an object that never leaves VRAM.
    pub fn create(&self, size: u64) -> Result<Gem<'_>, SysError> {
        self.create_flags(size, uapi::CREATE_VRAM)
    }

    /// Creates an object with flags `CREATE_*`.
    pub fn create_flags(&self, size: u64, what: u32) -> Result<Gem<'_>, SysError> {
        self.create_from(VvramGemCreate::new(size, what))
    }

    /// Creates an object from a given argument.
    pub fn create_from(&self, given: VvramGemCreate) -> Result<Gem<'_>, SysError> {
        let mut argument = given;
        self.create_raw(&mut argument)?;
        Ok(Gem {
            drm: self,
            handle: argument.handle,
            size: argument.size,
        })
    }

    /// GEM_CREATE with a given argument.
    pub fn create_raw(&self, argument: &mut VvramGemCreate) -> Result<(), SysError> {
        call(self.fd(), uapi::VVRAM_GEM_CREATE, argument, "GEM_CREATE")
    }

    /// Offset to map an object at.
    pub fn mmap_offset(&self, handle: u32) -> Result<u64, SysError> {
        let mut argument = VvramGemMmapOffset {
            handle,
            ..Default::default()
        };
        self.mmap_offset_raw(&mut argument)?;
        Ok(argument.offset)
    }

    /// GEM_MMAP_OFFSET with a given argument.
    pub fn mmap_offset_raw(&self, argument: &mut VvramGemMmapOffset) -> Result<(), SysError> {
        call(
            self.fd(),
            uapi::VVRAM_GEM_MMAP_OFFSET,
            argument,
            "GEM_MMAP_OFFSET",
        )
    }

    /// Closes a handle.
    pub fn close(&self, handle: u32) -> Result<(), SysError> {
        gem_close(self.fd(), handle)
    }

    /// Exports a handle.
    pub fn export(&self, handle: u32, flags: u32) -> Result<DmaBuf, SysError> {
        prime_export(self.fd(), handle, flags)
    }

    /// Imports a dma-buf fd and returns the handle.
    pub fn import_handle(&self, fd: RawFd) -> Result<u32, SysError> {
        prime_import(self.fd(), fd)
    }

    /// Imports a dma-buf under a handle of its own.
    ///
    /// Importing twice gives the same handle, which must be closed once: use
    /// [`Drm::import_handle`] where the handle is already owned.
    pub fn import(&self, buffer: &DmaBuf) -> Result<Gem<'_>, SysError> {
        let size = buffer.size()?;
        let handle = self.import_handle(buffer.fd())?;
        Ok(Gem {
            drm: self,
            handle,
            size,
        })
    }

    /// PEER_ATTACHMENTS with a given argument.
    pub fn attachments_raw(&self, argument: &mut PeerAttachments) -> Result<(), SysError> {
        peer_attachments_raw(self.fd(), uapi::VVRAM_PEER_ATTACHMENTS, argument)
    }

    /// PEER_FLUSH of vvram with a given argument: returns the order.
    pub fn flush_raw(&self, argument: PeerFlush) -> Result<u32, SysError> {
        peer_flush(self.fd(), uapi::VVRAM_PEER_FLUSH, argument)
    }

    /// PEER_QUERY with a given argument.
    pub fn query_raw(&self, argument: &mut PeerQuery) -> Result<(), SysError> {
        peer_query_raw(self.fd(), uapi::VVRAM_PEER_QUERY, argument)
    }

    /// PEER_QUERY: the path that a device would get to an object, or to VRAM if the handle is 0, as
    /// an importer of the class of the flags.
    pub fn query(
        &self,
        handle: u32,
        flags: u32,
        importer: &PciDevice,
    ) -> Result<PeerQuery, SysError> {
        peer_query(self.fd(), uapi::VVRAM_PEER_QUERY, handle, flags, importer)
    }

    /// GEM_INFO of an object.
    pub fn info(&self, handle: u32) -> Result<VvramGemInfo, SysError> {
        let mut argument = VvramGemInfo {
            handle,
            ..Default::default()
        };
        ioctl(self.fd(), uapi::VVRAM_GEM_INFO, &mut argument, || {
            format!("GEM_INFO(handle={handle})")
        })?;
        Ok(argument)
    }

    /// PEER_IMPORT_INFO with a given argument.
    pub fn import_info_raw(&self, argument: &mut PeerImportInfo) -> Result<(), SysError> {
        let given = *argument;
        again(|| {
            *argument = given;
            ioctl(self.fd(), uapi::VVRAM_PEER_IMPORT_INFO, argument, || {
                format!("PEER_IMPORT_INFO({given:?})")
            })?;
            Ok(())
        })
    }

    /// Lists the attachments of a buffer, refusals last.
    pub fn attachments(&self, handle: u32) -> Result<Vec<Attachment>, SysError> {
        let (entries, _) = self.records(handle)?;
        let decode = |entry: &PeerAttachment| Attachment {
            device: text(&entry.device),
            path: entry.path,
            reason: entry.reason,
            flags: entry.flags,
            distance: entry.distance,
        };
        Ok(entries.iter().map(decode).collect())
    }

    /// The same as the kernel returns it, with the inode of the dma-buf.
    pub fn records(&self, handle: u32) -> Result<(Vec<PeerAttachment>, u64), SysError> {
        peer_attachments(self.fd(), uapi::VVRAM_PEER_ATTACHMENTS, handle)
    }
}

/// ATTACHMENTS of drm_peer.h, which has a number of its own in each driver, with a given argument.
fn peer_attachments_raw(
    drm: RawFd,
    request: u64,
    argument: &mut PeerAttachments,
) -> Result<(), SysError> {
    call(drm, request, argument, "ATTACHMENTS")
}

/// The importers of an object and those that were refused, at most 64, and the inode of its
/// dma-buf.
pub(crate) fn peer_attachments(
    drm: RawFd,
    request: u64,
    handle: u32,
) -> Result<(Vec<PeerAttachment>, u64), SysError> {
    let mut entries = vec![PeerAttachment::default(); 64];
    let mut argument = PeerAttachments {
        handle,
        entry_size: size_of::<PeerAttachment>() as u32,
        count: entries.len() as u32,
        attachments: entries.as_mut_ptr() as u64,
        ..Default::default()
    };
    peer_attachments_raw(drm, request, &mut argument)?;
    entries.truncate(argument.count as usize);
    Ok((entries, argument.inode))
}

/// FLUSH of drm_peer.h with a given argument: returns the order.
///
/// # Errors
///
/// The error of the call.
pub fn peer_flush(drm: RawFd, request: u64, argument: PeerFlush) -> Result<u32, SysError> {
    let mut argument = argument;
    call(drm, request, &mut argument, "FLUSH")?;
    Ok(argument.order)
}

/// QUERY of drm_peer.h with a given argument.
fn peer_query_raw(drm: RawFd, request: u64, argument: &mut PeerQuery) -> Result<(), SysError> {
    call(drm, request, argument, "QUERY")
}

/// PEER_QUERY: the path that a device would get to an object, or to VRAM if the handle is 0, as an
/// importer of the class of the flags.
pub(crate) fn peer_query(
    drm: RawFd,
    request: u64,
    handle: u32,
    flags: u32,
    importer: &PciDevice,
) -> Result<PeerQuery, SysError> {
    let mut argument = PeerQuery {
        handle,
        flags,
        importer: importer.address(),
        ..Default::default()
    };
    peer_query_raw(drm, request, &mut argument)?;
    Ok(argument)
}

/// PRIME_HANDLE_TO_FD on any DRM fd.
pub fn prime_export(drm: RawFd, handle: u32, flags: u32) -> Result<DmaBuf, SysError> {
    let mut argument = DrmPrimeHandle {
        handle,
        flags,
        fd: -1,
    };
    ioctl(
        drm,
        uapi::DRM_IOCTL_PRIME_HANDLE_TO_FD,
        &mut argument,
        || format!("PRIME_HANDLE_TO_FD(handle={handle}, flags={flags:#x})"),
    )?;
    // SAFETY: the kernel made a new fd that nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(argument.fd) };
    Ok(DmaBuf::new(fd))
}

/// PRIME_FD_TO_HANDLE on any DRM fd.
pub fn prime_import(drm: RawFd, fd: RawFd) -> Result<u32, SysError> {
    let mut argument = DrmPrimeHandle {
        fd,
        ..Default::default()
    };
    ioctl(
        drm,
        uapi::DRM_IOCTL_PRIME_FD_TO_HANDLE,
        &mut argument,
        || format!("PRIME_FD_TO_HANDLE(fd={fd})"),
    )?;
    Ok(argument.handle)
}

/// GEM_CLOSE on any DRM fd.
pub fn gem_close(drm: RawFd, handle: u32) -> Result<(), SysError> {
    let mut argument = DrmGemClose { handle, pad: 0 };
    ioctl(drm, uapi::DRM_IOCTL_GEM_CLOSE, &mut argument, || {
        format!("GEM_CLOSE(handle={handle})")
    })?;
    Ok(())
}

impl Drm {
    /// Gives an object a name, by which other clients of the card node find it.
    pub fn flink(&self, object: &Gem<'_>) -> Result<u32, SysError> {
        let mut argument = DrmGemFlink {
            handle: object.handle,
            name: 0,
        };
        ioctl(self.fd(), uapi::DRM_IOCTL_GEM_FLINK, &mut argument, || {
            format!("GEM_FLINK(handle={})", object.handle)
        })?;
        Ok(argument.name)
    }

    /// Opens an object by its name.
    pub fn gem_open(&self, name: u32) -> Result<Gem<'_>, SysError> {
        let mut argument = DrmGemOpen {
            name,
            ..Default::default()
        };
        ioctl(self.fd(), uapi::DRM_IOCTL_GEM_OPEN, &mut argument, || {
            format!("GEM_OPEN(name={name})")
        })?;
        Ok(Gem {
            drm: self,
            handle: argument.handle,
            size: argument.size,
        })
    }
}

/// A GEM handle, closed when dropped.
#[derive(Debug)]
pub struct Gem<'a> {
    drm: &'a Drm,
    handle: u32,
    size: u64,
}

impl Gem<'_> {
    /// The handle.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Where it is.
    pub fn info(&self) -> Result<VvramGemInfo, SysError> {
        self.drm.info(self.handle)
    }

    /// How the device reaches the buffer that was imported.
    pub fn import_info(&self) -> Result<PeerImportInfo, SysError> {
        let mut argument = PeerImportInfo {
            handle: self.handle,
            ..Default::default()
        };
        self.drm.import_info_raw(&mut argument)?;
        Ok(argument)
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.size as usize / PAGE
    }

    /// Maps all of it.
    pub fn map(&self) -> Result<Map, SysError> {
        let offset = self.drm.mmap_offset(self.handle)?;
        Map::new(self.drm.fd(), offset, self.size as usize)
    }

    /// Exports it, readable and writable.
    pub fn export(&self) -> Result<DmaBuf, SysError> {
        self.drm
            .export(self.handle, uapi::DRM_CLOEXEC | uapi::DRM_RDWR)
    }

    /// Lists its attachments.
    pub fn attachments(&self) -> Result<Vec<Attachment>, SysError> {
        self.drm.attachments(self.handle)
    }

    /// The same as the kernel returns it, with the inode of the dma-buf.
    pub fn records(&self) -> Result<(Vec<PeerAttachment>, u64), SysError> {
        self.drm.records(self.handle)
    }

    /// Closes the handle and reports errors, which dropping does not.
    pub fn close(self) -> Result<(), SysError> {
        let (drm, handle) = (self.drm, self.handle);
        std::mem::forget(self);
        drm.close(handle)
    }

    /// Returns the handle without closing it.
    pub fn leak(self) -> u32 {
        let handle = self.handle;
        std::mem::forget(self);
        handle
    }
}

impl Drop for Gem<'_> {
    fn drop(&mut self) {
        // The device may be gone, and the handle with it.
        let _ = self.drm.close(self.handle);
    }
}

/// A dma-buf fd.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
}

impl DmaBuf {
    /// Takes over an fd.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// The file descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// lseek(2).
    pub fn seek(&self, offset: i64, whence: i32) -> Result<u64, SysError> {
        // SAFETY: a plain system call on an fd that is open.
        let at = unsafe { libc::lseek(self.fd(), offset, whence) };
        u64::try_from(at)
            .map_err(|_| SysError::last(format!("lseek(dma-buf, {offset}, whence={whence})")))
    }

    /// Size in bytes.
    pub fn size(&self) -> Result<u64, SysError> {
        let size = self.seek(0, libc::SEEK_END)?;
        self.seek(0, libc::SEEK_SET)?;
        Ok(size)
    }

    /// Inode number, which is the identity of a dma-buf.
    pub fn inode(&self) -> Result<u64, SysError> {
        let fail = |error: std::io::Error| SysError::io("fstat(dma-buf)", &error);
        let fd = self.fd.try_clone().map_err(fail)?;
        let meta = File::from(fd).metadata().map_err(fail)?;
        Ok(meta.ino())
    }

    /// Returns whether no fence of the buffer is pending: poll(2) for writing, without a wait.
    pub fn is_idle(&self) -> Result<bool, SysError> {
        let mut poll = libc::pollfd {
            fd: self.fd(),
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: one valid structure.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        if ready < 0 {
            return Err(SysError::last("poll(dma-buf)".to_string()));
        }
        Ok(poll.revents & libc::POLLOUT != 0)
    }

    /// The devices that are attached to it, as `dma_buf/bufinfo` lists them.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it is not listed.
    #[track_caller]
    pub fn attached(&self) -> Result<Vec<String>, Stop> {
        const LIST: &str = "/sys/kernel/debug/dma_buf/bufinfo";
        let inode = format!("{:08}", self.inode()?);
        let text = fs::read_to_string(LIST).map_err(|error| SysError::io(LIST, &error))?;
        let mut lines = text
            .lines()
            .skip_while(|line| line.split('\t').nth(5) != Some(inode.as_str()))
            .skip_while(|line| line.trim() != "Attached Devices:");
        check!(lines.next().is_some(), "{LIST} does not have inode {inode}");
        Ok(lines
            .take_while(|line| !line.starts_with("Total"))
            .map(|line| line.trim().to_string())
            .collect())
    }

    /// Maps all of it.
    pub fn map(&self) -> Result<Map, SysError> {
        Map::new(self.fd(), 0, self.size()? as usize)
    }

    /// A sync file of the fences that an access with these flags has to wait for.
    pub fn sync_file(&self, flags: u64) -> Result<SyncFile, SysError> {
        let mut argument = DmaBufSyncFile {
            flags: flags as u32,
            fd: -1,
        };
        let request = uapi::DMA_BUF_IOCTL_EXPORT_SYNC_FILE;
        ioctl(self.fd(), request, &mut argument, || {
            format!("DMA_BUF_IOCTL_EXPORT_SYNC_FILE(flags={flags:#x})")
        })?;
        // SAFETY: the kernel made a new fd that nothing else owns.
        Ok(SyncFile::new(unsafe { OwnedFd::from_raw_fd(argument.fd) }))
    }

    /// Returns which poll(2) events are set, or become set within the time.
    pub fn poll(&self, events: i16, limit: Duration) -> Result<i16, SysError> {
        misc::poll_fd(self.fd(), events, limit)
    }

    /// DMA_BUF_IOCTL_SYNC.
    pub fn sync(&self, flags: u64) -> Result<(), SysError> {
        let mut argument = DmaBufSync { flags };
        ioctl(self.fd(), uapi::DMA_BUF_IOCTL_SYNC, &mut argument, || {
            format!("DMA_BUF_IOCTL_SYNC(flags={flags:#x})")
        })?;
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The edu device as an importer.

use std::fs;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use crate::compat;
use crate::drm::{ioctl, DmaBuf};
use crate::map::PAGE64;
use crate::misc;
use crate::uapi;
use crate::uapi::{
    EduPeerAttach, EduPeerFinish, EduPeerMeasure, EduPeerSegment, EduPeerStatus, EduPeerSubmit,
    EduPeerTable, EduPeerTransfer,
};
use crate::{Stop, SysError};

const PREFIX: &str = "edu-peer-";

/// The class of an importer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Without importer ops.
    Static,
    /// Its mapping may be invalidated at any time.
    Dynamic,
    /// Pinned and not revocable, as most RDMA devices.
    Pinned,
    /// Pinned until revoked.
    Revocable,
    /// As dynamic, but without peer-to-peer memory.
    NoP2p,
    /// The CPU in place of the device, without an attachment.
    Cpu,
    /// As dynamic, but an invalidated mapping is unmapped only before the next one, or at the
    /// detach.
    Late,
}

impl Mode {
    /// The number in the uAPI.
    pub fn number(self) -> u32 {
        match self {
            Self::Static => uapi::EDU_PEER_MODE_STATIC,
            Self::Dynamic => uapi::EDU_PEER_MODE_DYNAMIC,
            Self::Pinned => uapi::EDU_PEER_MODE_PINNED,
            Self::Revocable => uapi::EDU_PEER_MODE_REVOCABLE,
            Self::NoP2p => uapi::EDU_PEER_MODE_NO_P2P,
            Self::Cpu => uapi::EDU_PEER_MODE_CPU,
            Self::Late => uapi::EDU_PEER_MODE_LATE,
        }
    }

    /// The status flags of such an importer once its buffer is gone.
    pub fn revoked_flags(self) -> u32 {
        match self {
            Self::Revocable => uapi::EDU_PEER_STATUS_ATTACHED | uapi::EDU_PEER_STATUS_REVOKED,
            _ => uapi::EDU_PEER_STATUS_ATTACHED,
        }
    }

    /// The flags of PEER_ATTACHMENTS for an importer of this class.
    pub fn attachment_flags(self) -> u32 {
        let dynamic = uapi::ATTACHMENT_DYNAMIC;
        let revocable = uapi::ATTACHMENT_REVOCABLE;
        let peer = uapi::ATTACHMENT_PEER2PEER;
        match self {
            Self::Static | Self::Cpu => 0,
            Self::Dynamic | Self::Revocable | Self::Late => dynamic | revocable | peer,
            Self::Pinned => dynamic | peer,
            Self::NoP2p => dynamic | revocable,
        }
    }

    /// Whether a mapping needs a pin.
    pub fn needs_pin(self) -> bool {
        matches!(self, Self::Pinned | Self::Revocable)
    }
}

/// An open file of the peer.
#[derive(Debug)]
pub struct Peer {
    file: File,
    name: String,
}

/// The PCI names of all peers.
pub fn names() -> Vec<String> {
    let Ok(dir) = fs::read_dir("/dev") else {
        return Vec::new();
    };
    let name = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix(PREFIX).map(str::to_string)
    };
    let mut found: Vec<_> = dir.flatten().filter_map(name).collect();
    found.sort();
    found
}

/// Checks a scatter table by itself.
pub fn check_table(table: &[EduPeerSegment], size: u64) -> Result<(), String> {
    if table.is_empty() {
        return Err("the scatter table is empty".to_string());
    }
    let mut sum = 0u64;
    let mut sorted = Vec::with_capacity(table.len());
    for (index, segment) in table.iter().enumerate() {
        let (start, length) = (segment.dma_address, segment.length);
        if length == 0 || length % PAGE64 != 0 || start % PAGE64 != 0 {
            return Err(format!(
                "segment {index} is not whole pages: {length:#x} bytes at {start:#x}"
            ));
        }
        let Some(end) = start.checked_add(length) else {
            return Err(format!(
                "segment {index} wraps: {length:#x} bytes at {start:#x}"
            ));
        };
        sum = sum.saturating_add(length);
        sorted.push((start, end));
    }
    if sum != size {
        return Err(format!(
            "the lengths of {} segments sum to {sum:#x}, the buffer has {size:#x} bytes",
            table.len()
        ));
    }
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        if pair[0].1 > pair[1].0 {
            return Err(format!(
                "segments overlap: {:#x}..{:#x} and {:#x}..{:#x}",
                pair[0].0, pair[0].1, pair[1].0, pair[1].1
            ));
        }
    }
    Ok(())
}

impl Peer {
    /// Opens the first peer.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none within five seconds.
    #[track_caller]
    pub fn open() -> Result<Self, Stop> {
        match misc::poll(Duration::from_secs(5), || names().into_iter().next()) {
            Some(name) => Ok(Self::open_name(&name)?),
            None => Err(Stop::fail(format_args!(
                "no /dev/{PREFIX}*: is edu_peer loaded and the device bound?"
            ))),
        }
    }

    /// Opens a peer by PCI name.
    pub fn open_name(name: &str) -> Result<Self, SysError> {
        let path = PathBuf::from(format!("/dev/{PREFIX}{name}"));
        let file = misc::open(&path)?;
        Ok(Self {
            file,
            name: name.to_string(),
        })
    }

    /// Opens another file of the same peer.
    pub fn reopen(&self) -> Result<Self, SysError> {
        Self::open_name(&self.name)
    }

    /// PCI name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file descriptor.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Attaches a buffer and returns its size.
    pub fn attach(&self, buffer: &DmaBuf, mode: Mode) -> Result<u64, SysError> {
        let mut argument = EduPeerAttach {
            fd: buffer.fd(),
            mode: mode.number(),
            ..Default::default()
        };
        let given = argument;
        ioctl(self.fd(), uapi::EDU_PEER_IOC_ATTACH, &mut argument, || {
            format!("EDU_PEER_IOC_ATTACH({mode:?}, {given:?})")
        })?;
        Ok(argument.size)
    }

    pub(crate) fn simple(&self, request: u64, what: &str) -> Result<(), SysError> {
        if compat::is_on() {
            compat::ioctl(self.fd(), request, &mut (), || what.to_string())?;
            return Ok(());
        }
        // SAFETY: these requests take no argument.
        let result = unsafe { libc::ioctl(self.fd(), request, 0) };
        if result < 0 {
            return Err(SysError::last(what));
        }
        Ok(())
    }

    /// Detaches.
    pub fn detach(&self) -> Result<(), SysError> {
        self.simple(uapi::EDU_PEER_IOC_DETACH, "EDU_PEER_IOC_DETACH")
    }

    /// Pins.
    pub fn pin(&self) -> Result<(), SysError> {
        self.simple(uapi::EDU_PEER_IOC_PIN, "EDU_PEER_IOC_PIN")
    }

    /// Unpins.
    pub fn unpin(&self) -> Result<(), SysError> {
        self.simple(uapi::EDU_PEER_IOC_UNPIN, "EDU_PEER_IOC_UNPIN")
    }

    /// Maps.
    pub fn map(&self) -> Result<(), SysError> {
        self.simple(uapi::EDU_PEER_IOC_MAP, "EDU_PEER_IOC_MAP")
    }

    /// Pins if the mode needs it, then maps.
    pub fn pin_and_map(&self, mode: Mode) -> Result<(), SysError> {
        if mode.needs_pin() {
            self.pin()?;
        }
        self.map()
    }

    /// Attaches, pins if the mode needs it, then maps.
    pub fn attach_and_map(&self, buffer: &DmaBuf, mode: Mode) -> Result<(), SysError> {
        self.attach(buffer, mode)?;
        self.pin_and_map(mode)
    }

    /// Unmaps.
    pub fn unmap(&self) -> Result<(), SysError> {
        self.simple(uapi::EDU_PEER_IOC_UNMAP, "EDU_PEER_IOC_UNMAP")
    }

    /// TRANSFER with a given argument.
    ///
    /// # Safety
    ///
    /// As for [`crate::drm::ioctl_raw`]: the kernel may write to the address.
    pub unsafe fn transfer_raw(&self, argument: &mut EduPeerTransfer) -> Result<(), SysError> {
        let given = *argument;
        ioctl(self.fd(), uapi::EDU_PEER_IOC_TRANSFER, argument, || {
            format!(
                "EDU_PEER_IOC_TRANSFER(offset={:#x}, length={:#x}, direction={})",
                given.offset, given.length, given.direction
            )
        })?;
        Ok(())
    }

    fn transfer(
        &self,
        offset: u64,
        data: u64,
        length: u64,
        direction: u32,
    ) -> Result<(), SysError> {
        let mut argument = EduPeerTransfer {
            offset,
            length,
            data,
            direction,
            pad: 0,
        };
        // SAFETY: both callers pass memory of this length; the caller for a read passes a mutable
        // slice, which the kernel writes to.
        unsafe { self.transfer_raw(&mut argument)? };
        if argument.length != length {
            return Err(SysError::new(
                format!(
                    "EDU_PEER_IOC_TRANSFER(offset={offset:#x}) moved {} of {length} bytes, which",
                    argument.length
                ),
                0,
            ));
        }
        Ok(())
    }

    /// Makes the device read from the buffer.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl, or a transfer that has moved fewer bytes.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), SysError> {
        let length = data.len() as u64;
        self.transfer(
            offset,
            data.as_mut_ptr() as u64,
            length,
            uapi::EDU_PEER_DIRECTION_READ,
        )
    }

    /// Makes the device write to the buffer.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl, or a transfer that has moved fewer bytes.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), SysError> {
        let length = data.len() as u64;
        self.transfer(
            offset,
            data.as_ptr() as u64,
            length,
            uapi::EDU_PEER_DIRECTION_WRITE,
        )
    }

    /// Starts a read of up to 64 KiB of the buffer by the device.
    pub fn submit_read(&self, offset: u64, length: usize) -> Result<(), SysError> {
        self.submit(offset, 0, length, uapi::EDU_PEER_DIRECTION_READ)
    }

    /// Starts a write of up to 64 KiB to the buffer by the device.
    pub fn submit_write(&self, offset: u64, data: &[u8]) -> Result<(), SysError> {
        let address = data.as_ptr() as u64;
        self.submit(offset, address, data.len(), uapi::EDU_PEER_DIRECTION_WRITE)
    }

    fn submit(&self, offset: u64, data: u64, len: usize, direction: u32) -> Result<(), SysError> {
        let mut argument = EduPeerSubmit {
            offset,
            length: len as u64,
            data,
            direction,
            flags: 0,
        };
        ioctl(self.fd(), uapi::EDU_PEER_IOC_SUBMIT, &mut argument, || {
            format!("EDU_PEER_IOC_SUBMIT({len} bytes at {offset:#x}, direction={direction})")
        })?;
        Ok(())
    }

    /// Waits for the submitted transfer, and returns how many bytes were moved.
    fn finish(&self, data: &mut [u8], direction: u32) -> Result<u64, SysError> {
        let mut argument = EduPeerFinish {
            data: data.as_mut_ptr() as u64,
            room: data.len() as u64,
            direction,
            ..Default::default()
        };
        ioctl(self.fd(), uapi::EDU_PEER_IOC_FINISH, &mut argument, || {
            format!("EDU_PEER_IOC_FINISH(direction={direction})")
        })?;
        Ok(argument.moved)
    }

    /// Waits for a read that was submitted.
    pub fn finish_read(&self, data: &mut [u8]) -> Result<u64, SysError> {
        self.finish(data, uapi::EDU_PEER_DIRECTION_READ)
    }

    /// Waits for a write that was submitted, and returns how many bytes were moved.
    pub fn finish_write(&self) -> Result<u64, SysError> {
        self.finish(&mut [], uapi::EDU_PEER_DIRECTION_WRITE)
    }

    /// The scatter table of the mapping.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl, or two calls that disagree.
    pub fn table(&self) -> Result<Vec<EduPeerSegment>, SysError> {
        let mut argument = EduPeerTable::default();
        let what = || "EDU_PEER_IOC_TABLE".to_string();
        ioctl(self.fd(), uapi::EDU_PEER_IOC_TABLE, &mut argument, what)?;
        let count = argument.count;
        let mut segments = vec![EduPeerSegment::default(); count as usize];
        argument = EduPeerTable {
            segments: segments.as_mut_ptr() as u64,
            count,
            pad: 0,
        };
        ioctl(self.fd(), uapi::EDU_PEER_IOC_TABLE, &mut argument, what)?;
        if argument.count != count {
            return Err(SysError::new(
                format!(
                    "EDU_PEER_IOC_TABLE counted {count}, then {} entries, which",
                    argument.count
                ),
                0,
            ));
        }
        Ok(segments)
    }

    /// Times maps and unmaps.
    pub fn measure(&self, rounds: u32) -> Result<EduPeerMeasure, SysError> {
        let mut argument = EduPeerMeasure {
            rounds,
            ..Default::default()
        };
        self.measure_raw(&mut argument)?;
        Ok(argument)
    }

    /// MEASURE with a given argument.
    pub fn measure_raw(&self, argument: &mut EduPeerMeasure) -> Result<(), SysError> {
        let rounds = argument.rounds;
        ioctl(self.fd(), uapi::EDU_PEER_IOC_MEASURE, argument, || {
            format!("EDU_PEER_IOC_MEASURE(rounds={rounds})")
        })?;
        Ok(())
    }

    /// The state of this file's attachment.
    pub fn status(&self) -> Result<EduPeerStatus, SysError> {
        let mut argument = EduPeerStatus::default();
        ioctl(self.fd(), uapi::EDU_PEER_IOC_STATUS, &mut argument, || {
            "EDU_PEER_IOC_STATUS".to_string()
        })?;
        Ok(argument)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(dma_address: u64, length: u64) -> EduPeerSegment {
        EduPeerSegment {
            dma_address,
            length,
        }
    }

    #[test]
    fn tables() {
        let good = [segment(0x3000, 0x1000), segment(0x1000, 0x2000)];
        assert_eq!(check_table(&good, 0x3000), Ok(()));
        assert!(check_table(&good, 0x4000).is_err());
        assert!(check_table(&[], 0).is_err());
        let overlap = [segment(0x1000, 0x2000), segment(0x2000, 0x1000)];
        assert!(check_table(&overlap, 0x3000).is_err());
        assert!(check_table(&[segment(0x1001, 0x1000)], 0x1000).is_err());
        assert!(check_table(&[segment(0x1000, 0)], 0).is_err());
        assert!(check_table(&[segment(!0xfff, 0x2000)], 0x2000).is_err());
    }
}

// SPDX-License-Identifier: GPL-2.0

//! dma-bufs of system memory, from the system heap.

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::drm::{ioctl, DmaBuf};
use crate::uapi::{self, DmaHeapAllocation};
use crate::Stop;

/// Allocates `size` bytes.
///
/// # Errors
///
/// Skips the subtest if there is no system heap, fails it if there is no memory.
pub fn allocate(size: u64) -> Result<DmaBuf, Stop> {
    const HEAP: &str = "/dev/dma_heap/system";
    let Ok(heap) = OpenOptions::new().read(true).write(true).open(HEAP) else {
        skip!("{HEAP} cannot be opened");
    };
    let mut argument = DmaHeapAllocation {
        len: size,
        fd_flags: libc::O_RDWR as u32 | libc::O_CLOEXEC as u32,
        ..Default::default()
    };
    ioctl(
        heap.as_raw_fd(),
        uapi::DMA_HEAP_IOCTL_ALLOC,
        &mut argument,
        || "DMA_HEAP_IOCTL_ALLOC".to_string(),
    )?;
    // SAFETY: the kernel made a new fd that nothing else owns.
    Ok(DmaBuf::new(unsafe {
        OwnedFd::from_raw_fd(argument.fd as i32)
    }))
}

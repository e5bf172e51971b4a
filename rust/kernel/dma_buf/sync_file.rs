// SPDX-License-Identifier: GPL-2.0

//! Sync files.
//!
//! A sync file stands for a fence in userspace: it can be polled, merged with others, and passed to
//! drivers that are to wait for the fence.
//!
//! C header: [`include/linux/sync_file.h`](srctree/include/linux/sync_file.h)

use super::fence::AnyFence;
use crate::{
    bindings,
    fs::{
        file::FileDescriptorReservation,
        File, //
    },
    prelude::*,
    sync::aref::ARef, //
};
use core::ptr::NonNull;

/// A file that stands for a fence, `struct sync_file`.
///
/// # Invariants
///
/// The file is that of a sync file, and nobody else has a file descriptor for it.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::{
///         fence::{
///             FenceContext,
///             FenceContextOps, //
///         },
///         sync_file::SyncFile, //
///     },
///     fs::file::{
///         flags,
///         FileDescriptorReservation, //
///     },
///     prelude::*, //
/// };
///
/// struct Ring;
///
/// impl FenceContextOps for Ring {
///     const DRIVER_NAME: &'static CStr = c"driver";
///     type Data = ();
/// }
///
/// let job = FenceContext::<Ring>::new(c"ring")?.new_fence_allocation(())?.new_fence();
///
/// // What can fail comes first; the file descriptor is there when nothing can.
/// let fd = FileDescriptorReservation::get_unused_fd_flags(flags::O_CLOEXEC)?;
/// let fd = SyncFile::new(job.fence())?.install(fd);
///
/// // Another driver is given the file descriptor.
/// let fence = SyncFile::fence_of(fd)?;
/// assert!(fence.parts().map(|part| part.seqno()).eq([job.fence().seqno()]));
/// // It may be passed on as it is, whether it is a container or not.
/// drop(SyncFile::new(&fence)?);
/// job.signal(Ok(()));
/// assert!(fence.is_signaled());
///
/// # // SAFETY: Nobody else knows the file descriptor.
/// # assert_eq!(unsafe { kernel::bindings::close_fd(fd as u32) }, 0);
/// assert_eq!(SyncFile::fence_of(fd).err(), Some(EINVAL));
/// # Ok::<(), Error>(())
/// ```
pub struct SyncFile(ARef<File>);

impl SyncFile {
    /// Makes a file for `fence`. May sleep.
    ///
    /// Mirrors `sync_file_create()`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory.
    #[inline(never)]
    pub fn new(fence: &AnyFence) -> Result<Self> {
        // SAFETY: The fence is valid; the sync file takes a reference of its own.
        let sync_file = unsafe { bindings::sync_file_create(fence.as_raw()) };
        let sync_file = NonNull::new(sync_file).ok_or(ENOMEM)?;

        // SAFETY: The sync file is valid, and its file lives as long.
        let file = unsafe { (*sync_file.as_ptr()).file };
        // INVARIANT: It was just made. The only reference to the file passes to the value, so
        // dropping that frees the sync file.
        // SAFETY: The file is valid, has no descriptor, and is not used by `fdget_pos()`.
        Ok(Self(unsafe {
            ARef::from_raw(NonNull::new_unchecked(file.cast()))
        }))
    }

    /// Gives the file to the current task, under the file descriptor that was reserved, which is
    /// returned.
    #[inline]
    pub fn install(self, fd: FileDescriptorReservation) -> i32 {
        // CAST: File descriptors fit an `int`.
        let number = fd.reserved_fd() as i32;

        fd.fd_install(self.0);
        number
    }

    /// Returns the fence of a sync file of the current task.
    ///
    /// Mirrors `sync_file_get_fence()`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `fd` is not open, or not a sync file.
    #[inline(never)]
    pub fn fence_of(fd: i32) -> Result<ARef<AnyFence>> {
        // SAFETY: The function has no requirements.
        let fence = unsafe { bindings::sync_file_get_fence(fd) };
        let fence = NonNull::new(fence).ok_or(EINVAL)?;

        // SAFETY: The fence is valid and comes with a reference.
        Ok(unsafe { AnyFence::from_owned(fence) })
    }
}

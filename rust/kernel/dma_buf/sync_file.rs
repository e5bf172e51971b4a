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
use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};

/// A file that will stand for a fence, `struct sync_file`, and has none yet.
///
/// It is made before the work whose fence it gets, because nothing may fail after the work has
/// begun.
///
/// # Invariants
///
/// `sync_file` is valid. The value owns the only reference to its file, which has no descriptor.
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
/// // Steps that can fail come first; the file descriptor is installed when nothing can fail.
/// let fd = FileDescriptorReservation::get_unused_fd_flags(flags::O_CLOEXEC)?;
/// let file = SyncFile::new()?;
///
/// let job = FenceContext::<Ring>::new(c"ring")?.new_fence_allocation(())?.new_fence();
/// let fd = file.install(fd, job.fence());
///
/// // Another driver is given the file descriptor.
/// let fence = SyncFile::fence_of(fd)?;
/// assert!(fence.parts().map(|part| part.seqno()).eq([job.fence().seqno()]));
/// assert!(!fence.is_signaled());
/// job.signal(Ok(()));
/// assert!(fence.is_signaled());
///
/// # // SAFETY: No other code knows the file descriptor.
/// # assert_eq!(unsafe { kernel::bindings::close_fd(fd as u32) }, 0);
/// assert_eq!(SyncFile::fence_of(fd).err(), Some(EINVAL));
/// // A file that is not used is freed.
/// drop(SyncFile::new()?);
/// # Ok::<(), Error>(())
/// ```
pub struct SyncFile(NonNull<bindings::sync_file>);

// SAFETY: The value has the only reference to the file, which may be released from any task.
unsafe impl Send for SyncFile {}

impl SyncFile {
    /// Makes a file without a fence. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory.
    #[inline(never)]
    pub fn new() -> Result<Self> {
        // SAFETY: The function has no requirements, and returns a valid fence with a reference.
        let stub = unsafe { bindings::dma_fence_get_stub() };
        // SAFETY: The fence is valid. The sync file takes a reference of its own.
        let sync_file = unsafe { bindings::sync_file_create(stub) };

        // SAFETY: The reference is not needed any more.
        unsafe { bindings::dma_fence_put(stub) };
        // INVARIANT: The file was just made, with a reference.
        Ok(Self(NonNull::new(sync_file).ok_or(ENOMEM)?))
    }

    /// Lets the file stand for `fence`, and gives it to the current task under `fd`, whose number
    /// is returned.
    #[inline(never)]
    pub fn install(self, fd: FileDescriptorReservation, fence: &AnyFence) -> i32 {
        // CAST: File descriptors fit an `int`.
        let number = fd.reserved_fd() as i32;
        let sync_file = ManuallyDrop::new(self).0.as_ptr();

        // The fence that `new()` gave the file in its place has signalled.
        // SAFETY: By the type invariant the file is valid and has no other user, so nothing reads
        // its fence, and no callback was added to that. Each fence is valid; the file gives up its
        // reference to the old one, and gets a new one to the other.
        let file = unsafe {
            let old = (*sync_file).fence;

            (*sync_file).fence = bindings::dma_fence_get(fence.as_raw());
            bindings::dma_fence_put(old);
            (*sync_file).file
        };

        // SAFETY: The file is valid, has no descriptor, and is not used by `fdget_pos()`. Its only
        // reference passes to the `ARef`.
        fd.fd_install(unsafe { ARef::<File>::from_raw(NonNull::new_unchecked(file.cast())) });
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

impl Drop for SyncFile {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the value owns the reference; dropping it frees the sync
        // file.
        unsafe { bindings::fput((*self.0.as_ptr()).file) };
    }
}

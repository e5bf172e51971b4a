// SPDX-License-Identifier: GPL-2.0

//! A buffer shared by an exporter and its importers.
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

use crate::{
    bindings,
    dma::DataDirection,
    dma_resv::DmaResv,
    error::{
        from_err_ptr,
        to_result, //
    },
    fs::file::FileDescriptorReservation,
    prelude::*,
    sync::aref::{
        ARef,
        AlwaysRefCounted, //
    },
    types::Opaque, //
};
use core::ptr::NonNull;

/// The size of the name of a buffer in bytes, with the NUL at its end: `DMA_BUF_NAME_LEN`.
pub const NAME_LEN: usize = 32;

/// A buffer shared between devices, `struct dma_buf`.
///
/// # Invariants
///
/// `self.0` is a valid `struct dma_buf`. Every [`ARef`] to it owns a reference to its file.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::DmaBuf,
///     prelude::*, //
/// };
///
/// /// The size of the buffer behind a file descriptor that userspace passed in.
/// fn size_of(fd: i32) -> Result<usize> {
///     Ok(DmaBuf::from_fd(fd)?.size())
/// }
///
/// assert_eq!(size_of(-1), Err(EBADF));
/// ```
#[repr(transparent)]
pub struct DmaBuf(Opaque<bindings::dma_buf>);

// SAFETY: A dma-buf may be used and released from any task.
unsafe impl Send for DmaBuf {}

// SAFETY: The C side synchronizes all methods taking `&self`.
unsafe impl Sync for DmaBuf {}

// SAFETY: A dma-buf is reference counted through its file.
unsafe impl AlwaysRefCounted for DmaBuf {
    fn inc_ref(&self) {
        // SAFETY: A shared reference implies a nonzero reference count.
        unsafe { bindings::get_dma_buf(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller owns the reference dropped here.
        unsafe { bindings::dma_buf_put(obj.cast().as_ptr()) };
    }
}

impl DmaBuf {
    /// Turns a pointer to a `struct dma_buf` into a reference.
    ///
    /// # Safety
    ///
    /// `ptr` must point to a `struct dma_buf` valid for `'a`. The reference must not be turned into
    /// an [`ARef`] if the file of the dma-buf is being released.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(ptr: *mut bindings::dma_buf) -> &'a Self {
        // SAFETY: `DmaBuf` is a transparent wrapper and the caller promises validity.
        unsafe { &*ptr.cast() }
    }

    /// Returns the pointer to the C structure.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::dma_buf {
        self.0.get()
    }

    /// Returns the buffer behind a file descriptor of the current task.
    ///
    /// Mirrors `dma_buf_get()`.
    ///
    /// # Errors
    ///
    /// - `EBADF` if `fd` is not open.
    /// - `EINVAL` if it is not a dma-buf.
    pub fn from_fd(fd: i32) -> Result<ARef<Self>> {
        // SAFETY: The function has no requirements; it returns a valid pointer or an error.
        let ptr = from_err_ptr(unsafe { bindings::dma_buf_get(fd) })?;

        // SAFETY: `ptr` is valid and comes with a reference; the `ARef` takes it over.
        Ok(unsafe { ARef::from_raw(NonNull::new_unchecked(ptr.cast())) })
    }

    /// Installs a file descriptor for the buffer in the current task. The descriptor then owns
    /// `this`.
    ///
    /// `flags` are `O_CLOEXEC` or 0. Mirrors `dma_buf_fd()`.
    ///
    /// # Errors
    ///
    /// `EMFILE` if the task has too many open files.
    ///
    /// See [`exporter`](super::exporter) for an example.
    pub fn into_fd(this: ARef<Self>, flags: u32) -> Result<i32> {
        let fd = FileDescriptorReservation::get_unused_fd_flags(flags)?;

        Ok(Self::install(this, fd))
    }

    /// Installs a file descriptor reserved in the current task. The descriptor then owns `this`.
    ///
    /// For an export whose other steps cannot be undone. Mirrors `dma_buf_fd_install()`.
    pub fn install(this: ARef<Self>, fd: FileDescriptorReservation) -> i32 {
        // CAST: File descriptors fit an `int`.
        let number = fd.reserved_fd() as i32;

        // SAFETY: The file descriptor is reserved in the current task because its type is not
        // `Send`. It takes the reference to the valid dma-buf. Neither is used any more.
        unsafe { bindings::dma_buf_fd_install(this.as_raw(), number) };
        let _ = ARef::into_raw(this);
        core::mem::forget(fd);
        number
    }

    /// Returns the size of the buffer in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        // SAFETY: By the type invariant the dma-buf is valid; its size never changes.
        unsafe { (*self.as_raw()).size }
    }

    /// Returns the name set by userspace with `DMA_BUF_SET_NAME`, padded with at least one NUL
    /// byte.
    ///
    /// Takes the spinlock of the name.
    pub fn name(&self) -> [u8; NAME_LEN] {
        let mut buf = [0; NAME_LEN];
        let raw = self.as_raw();

        // SAFETY: By the type invariant the dma-buf is valid. The lock guards its name: null or a
        // string.
        unsafe {
            bindings::spin_lock(&raw mut (*raw).name_lock);
            if !(*raw).name.is_null() {
                let name = CStr::from_char_ptr((*raw).name).to_bytes();
                let len = name.len().min(NAME_LEN - 1);

                buf[..len].copy_from_slice(&name[..len]);
            }
            bindings::spin_unlock(&raw mut (*raw).name_lock);
        }
        buf
    }

    /// Returns the number of references: file descriptors, userspace mappings, importers and code
    /// working with the buffer. It may change at any time.
    ///
    /// # Safety
    ///
    /// There must be a reference to the file of the buffer, such as that of an attached importer:
    /// the file may be gone while an `O_PATH` descriptor keeps the dentry and so the buffer.
    pub(crate) unsafe fn references(&self) -> usize {
        // SAFETY: The dma-buf is valid by the type invariant and its file by the safety
        // requirements.
        unsafe { bindings::file_count((*self.as_raw()).file) as usize }
    }

    /// Returns the reservation of the buffer.
    ///
    /// A GEM object and its dma-buf share one.
    #[inline]
    pub fn resv(&self) -> &DmaResv {
        // SAFETY: By the type invariant the dma-buf is valid; its reservation never changes and
        // lives at least as long.
        unsafe { DmaResv::from_raw((*self.as_raw()).resv) }
    }

    /// Prepares the buffer for CPU access and waits for work conflicting with `dir`.
    ///
    /// The reservation must not be held. Mirrors `dma_buf_begin_cpu_access()`.
    ///
    /// # Errors
    ///
    /// The error of the exporter, or `ERESTARTSYS` if a signal ends the wait.
    pub fn begin_cpu_access(&self, dir: DataDirection) -> Result {
        // SAFETY: By the type invariant the dma-buf is valid.
        to_result(unsafe { bindings::dma_buf_begin_cpu_access(self.as_raw(), dir.into()) })
    }

    /// Ends an access begun by [`Self::begin_cpu_access`].
    ///
    /// The reservation must not be held. Mirrors `dma_buf_end_cpu_access()`.
    ///
    /// # Errors
    ///
    /// The error of the exporter.
    pub fn end_cpu_access(&self, dir: DataDirection) -> Result {
        // SAFETY: By the type invariant the dma-buf is valid.
        to_result(unsafe { bindings::dma_buf_end_cpu_access(self.as_raw(), dir.into()) })
    }
}

/// Converts a direction passed by C code to the Rust type.
pub(crate) fn direction(raw: bindings::dma_data_direction) -> DataDirection {
    match raw {
        bindings::dma_data_direction::DMA_TO_DEVICE => DataDirection::ToDevice,
        bindings::dma_data_direction::DMA_FROM_DEVICE => DataDirection::FromDevice,
        bindings::dma_data_direction::DMA_BIDIRECTIONAL => DataDirection::Bidirectional,
        _ => DataDirection::None,
    }
}

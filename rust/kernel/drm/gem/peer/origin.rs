// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The exporter of a buffer: its client and process as of the export.
//!
//! The process may exit or pass its file descriptors to others while importers still use the
//! buffer. An operator has to find out the origin of the buffer.

use super::{
    importers::cut,
    Name, //
};
use crate::{
    bindings,
    dma_buf::DmaBuf,
    drm::{
        self,
        file::DriverFile,
        gem::IntoGEMObject, //
    },
    error::{
        from_err_ptr,
        from_result, //
    },
    fs::file::FileDescriptorReservation,
    prelude::*,
    str::CStr,
    sync::aref::{
        ARef,
        AlwaysRefCounted, //
    },
    task::Pid, //
};
use core::ptr::NonNull;

/// A client (an open file of a DRM device) at the time of an export.
#[derive(Clone, Copy)]
pub struct Client {
    /// The number of the client, as `drm-client-id` in fdinfo. 0 if there is no client.
    pub id: u64,
    /// The name set by the client itself, as `drm-client-name` in fdinfo. Truncated to fit.
    pub name: Name,
}

impl Client {
    /// No client.
    pub const NONE: Self = Self {
        id: 0,
        name: [0; super::NAME_LEN],
    };

    /// Returns the client of an open file.
    ///
    /// Takes the mutex of the client's name and no other lock under it.
    pub fn of<F: DriverFile>(file: &drm::File<F>) -> Self {
        let file = file.as_raw();

        // SAFETY: The file is open. Its number does not change. The mutex guards its name, which is
        // null or a string.
        unsafe {
            let lock = &raw mut (*file).client_name_lock;

            bindings::mutex_lock(lock);
            let name = (*file).client_name;
            let name = if name.is_null() {
                [0; super::NAME_LEN]
            } else {
                cut(CStr::from_char_ptr(name))
            };
            bindings::mutex_unlock(lock);

            Self {
                id: (*file).client_id,
                name,
            }
        }
    }
}

/// The process behind the export of a buffer or the mapping of an object for direct I/O.
#[derive(Clone, Copy)]
pub(in crate::drm::gem) struct Process {
    /// The PID of the process in the initial namespace.
    pub(in crate::drm::gem) pid: Pid,
    /// The `comm` of the first thread of the process, NUL terminated.
    pub(in crate::drm::gem) comm: [u8; COMM_LEN],
}

// CAST: It is small.
const COMM_LEN: usize = bindings::TASK_COMM_LEN as usize;

impl Process {
    /// Returns the process of the current task.
    pub(in crate::drm::gem) fn current() -> Self {
        let task = current!();
        let leader = task.group_leader();
        // SAFETY: The task is valid. The name may change during the copy, which may then be a
        // mixture of both names. There is no lock, as for `get_task_comm()`, and the last byte is
        // always NUL.
        let comm = unsafe { (&raw const (*leader.as_ptr()).comm).read_volatile() };

        Self {
            pid: task.tgid(),
            comm,
        }
    }
}

/// Exports the object behind a handle as `drm_gem_prime_handle_to_fd()` does, after `note` has
/// recorded the client on it.
///
/// If the handle is closed in between and reused for another object, the handle is looked up again:
/// `note` was not called for this object.
///
/// # Safety
///
/// Called by the DRM core with a valid `fd` and with a device and an open file of `D`, whose
/// objects are of class `O`.
pub(in crate::drm::gem) unsafe fn handle_to_fd<D, O>(
    dev: *mut bindings::drm_device,
    file: *mut bindings::drm_file,
    handle: u32,
    flags: u32,
    fd: *mut c_int,
    note: impl Fn(&drm::File<D::File>, &O) -> Result,
) -> c_int
where
    D: drm::Driver,
    O: IntoGEMObject + AlwaysRefCounted,
{
    from_result(|| {
        // The file descriptor is reserved first because the export is not undone if there is none.
        let number = FileDescriptorReservation::get_unused_fd_flags(flags)?;
        // SAFETY: The file is open and of `D`.
        let client = unsafe { drm::File::from_raw(file) };

        let buf = loop {
            // SAFETY: The file is open.
            let gem = unsafe { bindings::drm_gem_object_lookup(file, handle) };
            if gem.is_null() {
                return Err(ENOENT);
            }
            // SAFETY: Objects of the driver are of class `O`; the lookup took a reference.
            let obj = unsafe {
                let obj: &O = IntoGEMObject::from_raw(gem);
                ARef::from_raw(obj.into())
            };

            note(client, &obj)?;

            // SAFETY: As promised by the caller. The returned reference is taken over.
            let buf: ARef<DmaBuf> = unsafe {
                let buf = bindings::drm_gem_prime_handle_to_dmabuf(dev, file, handle, flags);

                ARef::from_raw(NonNull::new_unchecked(from_err_ptr(buf)?.cast()))
            };
            if is_buffer_of(&buf, &*obj) {
                break buf;
            }
            // In each round the process may have put another object behind the handle.
            if current!().signal_pending() {
                return Err(ERESTARTSYS);
            }
        };

        // SAFETY: As promised by the caller.
        unsafe { *fd = DmaBuf::install(buf, number) };
        Ok(0)
    })
}

/// Returns whether a dma-buf belongs to an object: the object was exported as it or imported from
/// it.
fn is_buffer_of<O: IntoGEMObject>(buf: &DmaBuf, obj: &O) -> bool {
    let gem = obj.as_raw();

    // SAFETY: The object is valid. Its attachment does not change and is valid as long as the
    // object is. The object may forget its dma-buf in between because the last handle was closed.
    // Then the pointer is null; it is only compared.
    unsafe {
        let attachment = (*gem).import_attach;

        buf.as_raw()
            == if attachment.is_null() {
                (&raw const (*gem).dma_buf).read_volatile()
            } else {
                (*attachment).dmabuf
            }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The file callbacks called by debugfs.
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h)

use super::{
    File,
    MAX_WRITE, //
};
use crate::{
    bindings,
    drm,
    error::from_result,
    prelude::*,
    seq_file::SeqFile,
    uaccess::UserSlice, //
};

/// A [`File`] without its type.
pub(super) struct Raw {
    name: &'static CStr,
    show: Option<unsafe fn(*mut bindings::drm_device, &SeqFile) -> Result>,
    write: Option<unsafe fn(*mut bindings::drm_device, &str) -> Result>,
}

impl Raw {
    pub(super) const fn of<F: File>() -> Self {
        Self {
            name: F::NAME,
            show: if F::HAS_SHOW { Some(show::<F>) } else { None },
            write: if F::HAS_WRITE { Some(write::<F>) } else { None },
        }
    }
}

/// # Safety
///
/// `drm` must be a registered device of the driver of `F`.
unsafe fn show<F: File>(drm: *mut bindings::drm_device, m: &SeqFile) -> Result {
    // SAFETY: As promised by the caller.
    F::show(unsafe { drm::Device::from_raw(drm) }, m)
}

/// # Safety
///
/// `drm` must be a registered device of the driver of `F`.
unsafe fn write<F: File>(drm: *mut bindings::drm_device, text: &str) -> Result {
    // SAFETY: As promised by the caller.
    F::write(unsafe { drm::Device::from_raw(drm) }, text)
}

const FOPS: bindings::file_operations = bindings::file_operations {
    open: Some(open_callback),
    read: Some(bindings::seq_read),
    write: Some(write_callback),
    llseek: Some(bindings::seq_lseek),
    release: Some(bindings::single_release),
    ..pin_init::zeroed()
};

/// Not generic and not inlined, so that the table stays in the kernel image: an open file may refer
/// to it for longer than the module exists.
///
/// # Safety
///
/// `drm` must be a valid device of the driver of `file`, with a debugfs directory.
#[inline(never)]
pub(super) unsafe fn add(drm: *mut bindings::drm_device, file: &'static Raw) {
    let mut mode = 0;
    if file.show.is_some() {
        mode |= 0o400;
    }
    if file.write.is_some() {
        mode |= 0o200;
    }

    // SAFETY: The strings and the table are valid. The callbacks use the device and `file`, which
    // is a part of the module, only while the device is registered: the file is removed before the
    // device and its driver are gone, and the removal waits for the callbacks.
    unsafe {
        bindings::debugfs_create_file_full(
            file.name.as_char_ptr(),
            mode,
            (*drm).debugfs_root,
            drm.cast(),
            core::ptr::from_ref(file).cast(),
            const { &FOPS },
        );
    }
}

/// Calls `f` with the device and the description of a file while the device is registered.
///
/// # Safety
///
/// `file` must be an open file created by [`add`].
unsafe fn with_file(
    file: *mut bindings::file,
    f: impl FnOnce(*mut bindings::drm_device, &Raw) -> Result,
) -> Result {
    let mut idx = 0;

    // SAFETY: The file is open. Its inode has the data passed by `add`.
    let (drm, raw) = unsafe {
        (
            (*(*file).f_inode).i_private.cast::<bindings::drm_device>(),
            bindings::debugfs_get_aux(file).cast::<Raw>(),
        )
    };

    // SAFETY: The file was not removed yet and the removal waits for the callback. So the device is
    // valid.
    if !unsafe { bindings::drm_dev_enter(drm, &mut idx) } {
        return Err(ENODEV);
    }
    // SAFETY: The device is registered. Hence the driver is bound and the module is loaded.
    let ret = f(drm, unsafe { &*raw });
    // SAFETY: The section was entered above.
    unsafe { bindings::drm_dev_exit(idx) };
    ret
}

/// # Safety
///
/// Called by debugfs to open a file created by [`add`].
unsafe extern "C" fn open_callback(
    _inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    // SAFETY: The file is valid.
    unsafe { bindings::single_open(file, Some(show_callback), core::ptr::null_mut()) }
}

/// # Safety
///
/// Called for a `struct seq_file` opened by [`open_callback`].
unsafe extern "C" fn show_callback(seq: *mut bindings::seq_file, _: *mut c_void) -> c_int {
    from_result(|| {
        // SAFETY: The `seq_file` has a pointer to its open file.
        let file = unsafe { (*seq).file };

        // SAFETY: The file is open and was created by `add`.
        unsafe {
            with_file(file.cast_mut(), |drm, raw| {
                let show = raw.show.ok_or(EINVAL)?;

                // SAFETY: The device is registered and of the driver of the file. Only this task
                // uses the `seq_file`.
                show(drm, SeqFile::from_raw(seq))
            })
        }?;
        Ok(0)
    })
}

/// # Safety
///
/// Called by debugfs with an open file created by [`add`] and a range of userspace.
unsafe extern "C" fn write_callback(
    file: *mut bindings::file,
    from: *const c_char,
    count: usize,
    _pos: *mut bindings::loff_t,
) -> isize {
    let run = || -> Result {
        let mut buf = [0; MAX_WRITE];
        let text = buf.get_mut(..count).ok_or(EINVAL)?;

        UserSlice::new(UserPtr::from_ptr(from.cast_mut().cast()), count)
            .reader()
            .read_slice(text)?;
        let text = core::str::from_utf8(text).map_err(|_| EINVAL)?;

        // SAFETY: As promised by the caller.
        unsafe {
            with_file(file, |drm, raw| {
                let write = raw.write.ok_or(EINVAL)?;

                // SAFETY: The device is registered and of the driver of the file.
                write(drm, text.strip_suffix('\n').unwrap_or(text))
            })
        }
    };

    match run() {
        // CAST: The count is at most `MAX_WRITE`.
        Ok(()) => count as isize,
        Err(e) => e.to_errno() as isize,
    }
}

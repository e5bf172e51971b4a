// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Files of a DRM device in debugfs.
//!
//! They are in the directory `dri/<name of the parent device>`. A driver describes each file by a
//! type that implements [`File`] and adds it in [`drm::Driver::debugfs_init`].
//!
//! The callbacks of a file run while the device is registered. An unregistration waits for them.
//! After that, an open file returns `EIO`, or `ENODEV` while the device is being removed. An open
//! file keeps neither the device nor the module, because closing it uses neither.
//!
//! # Examples
//!
//! ```
//! use kernel::{
//!     drm::{
//!         self,
//!         Registered, //
//!     },
//!     prelude::*,
//!     seq_file::SeqFile,
//!     seq_print, //
//! };
//!
//! /// Shows the version of a driver.
//! struct Version<D>(core::marker::PhantomData<D>);
//!
//! #[vtable]
//! impl<D: drm::Driver> drm::debugfs::File for Version<D> {
//!     type Driver = D;
//!
//!     const NAME: &'static CStr = c"version";
//!
//!     fn show(_dev: &drm::Device<D, Registered>, m: &SeqFile) -> Result {
//!         seq_print!(m, "{}.{}\n", D::INFO.major, D::INFO.minor);
//!         Ok(())
//!     }
//! }
//!
//! /// The part of `debugfs_init` of a driver.
//! fn debugfs_init<D: drm::Driver>(dir: &drm::debugfs::Dir<'_, D>) {
//!     dir.add::<Version<D>>();
//! }
//! ```
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h)

use crate::{
    bindings,
    drm::{
        self,
        Registered, //
    },
    error::VTABLE_DEFAULT_ERROR,
    prelude::*,
    seq_file::SeqFile, //
};
use core::marker::PhantomData;

#[cfg(CONFIG_DEBUG_FS)]
mod fops;

/// The maximum number of bytes in one write to a file, including a newline.
pub const MAX_WRITE: usize = 64;

/// A file in the debugfs directory of a DRM device.
///
/// See the [module](self) for an example.
#[vtable]
pub trait File {
    /// The driver of the device.
    type Driver: drm::Driver;

    /// The name of the file.
    const NAME: &'static CStr;

    /// Prints the content of the file.
    ///
    /// May be called more than once for one `read()`. May sleep.
    ///
    /// # Errors
    ///
    /// Returned to the reader.
    fn show(dev: &drm::Device<Self::Driver, Registered>, m: &SeqFile) -> Result {
        let _ = (dev, m);
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Handles a write to the file.
    ///
    /// `text` is the whole of one `write()` without a newline at its end. May sleep.
    ///
    /// # Errors
    ///
    /// Returned to the writer.
    fn write(dev: &drm::Device<Self::Driver, Registered>, text: &str) -> Result {
        let _ = (dev, text);
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// The debugfs directory of a device during its registration.
///
/// # Invariants
///
/// `drm` is a valid device of `D` with a debugfs directory.
pub struct Dir<'a, D: drm::Driver> {
    #[cfg_attr(not(CONFIG_DEBUG_FS), expect(dead_code))]
    drm: *mut bindings::drm_device,
    _p: PhantomData<&'a drm::Device<D>>,
}

impl<D: drm::Driver> Dir<'_, D> {
    /// Adds a file. Only root may read or write it.
    ///
    /// As usual in debugfs, failures are not reported.
    pub fn add<F: File<Driver = D>>(&self) {
        #[cfg(CONFIG_DEBUG_FS)]
        // SAFETY: By the type invariant. The description is of a file of `D`.
        unsafe {
            fops::add(self.drm, const { &fops::Raw::of::<F>() })
        }
    }
}

/// The `debugfs_init` callback of a `struct drm_driver`.
///
/// # Safety
///
/// Called by the DRM core with the first minor of a device of `D` during its registration.
pub(crate) unsafe extern "C" fn init_callback<D: drm::Driver>(minor: *mut bindings::drm_minor) {
    // INVARIANT: The minor has a valid device with a debugfs directory.
    D::debugfs_init(&Dir {
        // SAFETY: The minor is valid.
        drm: unsafe { (*minor).dev },
        _p: PhantomData,
    });
}

/// Parses a number consisting of digits only.
pub(crate) fn number(text: &str) -> Result<u64> {
    if text.starts_with('+') {
        return Err(EINVAL);
    }
    text.parse().map_err(|_| EINVAL)
}

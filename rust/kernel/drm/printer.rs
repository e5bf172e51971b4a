// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The output stream of the DRM core for the statistics of a file.
//!
//! C header: [`include/drm/drm_print.h`](srctree/include/drm/drm_print.h)

use crate::{
    bindings,
    prelude::*,
    types::Opaque, //
};
#[cfg(CONFIG_PCI)]
use crate::{
    device,
    pci, //
};

/// An output stream of DRM, `struct drm_printer`.
///
/// # Invariants
///
/// The structure is valid and no other code uses it.
#[repr(transparent)]
pub struct Printer(Opaque<bindings::drm_printer>);

impl Printer {
    /// # Safety
    ///
    /// `p` must be valid for `'a` and no other code may use it during that time.
    pub(crate) unsafe fn from_raw<'a>(p: *mut bindings::drm_printer) -> &'a mut Self {
        // INVARIANT: By the safety requirements.
        // SAFETY: By the safety requirements; `Printer` is a transparent wrapper.
        unsafe { &mut *p.cast() }
    }

    pub(crate) fn as_raw(&mut self) -> *mut bindings::drm_printer {
        self.0.get()
    }

    /// Prints `<prefix>-<stat>-<region>` with a size in bytes in the format of fdinfo.
    ///
    /// Whole KiB or MiB are printed as such. Mirrors `drm_fdinfo_print_size()`. For the driver's
    /// own keys the prefix is the name of the driver. The keys with `drm` are specified.
    pub fn size(&mut self, prefix: &CStr, stat: &CStr, region: &CStr, bytes: u64) {
        // SAFETY: The printer is valid and the strings are NUL terminated.
        unsafe {
            bindings::drm_fdinfo_print_size(
                self.as_raw(),
                prefix.as_char_ptr(),
                stat.as_char_ptr(),
                region.as_char_ptr(),
                bytes,
            )
        }
    }

    /// Prints `drm-engine-<name>`: how long the engine has worked for the client in nanoseconds.
    pub fn engine(&mut self, name: &CStr, ns: u64) {
        // SAFETY: The printer is valid and the arguments are those of the format.
        unsafe {
            bindings::drm_printf(
                self.as_raw(),
                c"drm-engine-%s:\t%llu ns\n".as_char_ptr(),
                name.as_char_ptr(),
                ns,
            )
        }
    }

    /// Prints `drm-pdev` for a driver whose DRM device is not directly below the PCI device. The
    /// DRM core prints it for all others.
    #[cfg(CONFIG_PCI)]
    pub fn pdev(&mut self, pdev: &pci::Device<device::Bound>) {
        let name = pdev.as_ref().name();

        // SAFETY: The printer is valid and the arguments are those of the format.
        unsafe {
            bindings::drm_printf(
                self.as_raw(),
                c"drm-pdev:\t%s\n".as_char_ptr(),
                name.as_char_ptr(),
            )
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Device coredumps, for failed devices.
//!
//! Userspace finds a dump in `/sys/class/devcoredump`, reads it and removes it by a write. A device
//! has one dump at a time. A second dump is discarded if the first one has not been removed. A dump
//! is removed automatically after five minutes. It refers to nothing of the driver, so it may be
//! read after the driver is gone.
//!
//! Drivers select `CONFIG_WANT_DEV_COREDUMP`. Without `CONFIG_DEV_COREDUMP` all dumps are
//! discarded.
//!
//! C header: [`include/linux/devcoredump.h`](srctree/include/linux/devcoredump.h)

use crate::{
    bindings,
    device::Device,
    fmt::{
        self,
        Write, //
    },
    prelude::*, //
};

/// A growing text.
struct Text(VVec<u8>);

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0
            .extend_from_slice(s.as_bytes(), GFP_KERNEL)
            .map_err(|_| fmt::Error)
    }
}

/// Creates a dump of `dev` with `bytes`. Sleeps.
///
/// An empty dump is not created. Discarding a dump is not reported.
pub fn dump(dev: &Device, bytes: VVec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let (data, len, _) = bytes.into_raw_parts();

    // SAFETY: The device is valid. The bytes were allocated by vmalloc(). The function owns them
    // from here on.
    unsafe { bindings::dev_coredumpv(dev.as_raw(), data.cast(), len, GFP_KERNEL.as_raw()) };
}

/// Creates a dump of `dev` from a printed value. Sleeps.
///
/// # Errors
///
/// `ENOMEM` if memory runs out or printing the value fails.
///
/// # Examples
///
/// ```
/// use kernel::{
///     devcoredump,
///     device,
///     faux,
///     fmt,
///     prelude::*, //
/// };
///
/// /// The state of a ring that hangs.
/// struct Hung {
///     ring: u32,
///     at: u32,
/// }
///
/// impl fmt::Display for Hung {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         writeln!(f, "ring {} hangs at entry {}", self.ring, self.at)
///     }
/// }
///
/// let faux = faux::Registration::new(c"devcoredump_example", None)?;
/// let parent: &faux::Device<device::Bound> = faux.as_ref();
/// let dev: &device::Device<device::Bound> = parent.as_ref();
///
/// devcoredump::print(dev, &Hung { ring: 0, at: 12 })?;
/// // This dump is discarded, because the first one was not read.
/// devcoredump::print(dev, &Hung { ring: 1, at: 3 })?;
/// # Ok::<(), Error>(())
/// ```
pub fn print(dev: &Device, what: &impl fmt::Display) -> Result {
    // The text grows if the dump is larger.
    let mut text = Text(VVec::with_capacity(crate::page::PAGE_SIZE, GFP_KERNEL)?);

    text.write_fmt(fmt!("{}", what)).map_err(|_| ENOMEM)?;
    dump(dev, text.0);
    Ok(())
}

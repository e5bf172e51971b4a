// SPDX-License-Identifier: GPL-2.0

//! Dumps of devices that have failed.
//!
//! Userspace finds a dump in `/sys/class/devcoredump`, reads it, and removes it by a write. There is
//! one of each device at a time: one that is made while another was not removed is thrown away. It
//! is removed by itself after five minutes. A dump has nothing of the driver, which may be gone when
//! it is read.
//!
//! Without `CONFIG_DEV_COREDUMP`, which drivers select by `CONFIG_WANT_DEV_COREDUMP`, all dumps are
//! thrown away.
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

/// Text that grows.
struct Text(VVec<u8>);

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0
            .extend_from_slice(s.as_bytes(), GFP_KERNEL)
            .map_err(|_| fmt::Error)
    }
}

/// Makes a dump of `dev` of some bytes. Sleeps.
///
/// An empty dump is none. That it was thrown away is not told.
pub fn dump(dev: &Device, bytes: VVec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let (data, len, _) = bytes.into_raw_parts();

    // SAFETY: The device is valid. The bytes are of vmalloc(), and owned by the function from here on.
    unsafe { bindings::dev_coredumpv(dev.as_raw(), data.cast(), len, GFP_KERNEL.as_raw()) };
}

/// Makes a dump of `dev` that is a text. Sleeps.
///
/// # Errors
///
/// `ENOMEM` if memory runs out, also where the value says that it cannot be printed.
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
/// /// What is known of a ring that hangs.
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
/// // Thrown away, as nobody has read the first one.
/// devcoredump::print(dev, &Hung { ring: 1, at: 3 })?;
/// # Ok::<(), Error>(())
/// ```
pub fn print(dev: &Device, what: &impl fmt::Display) -> Result {
    // The usual size of a dump, or less.
    let mut text = Text(VVec::with_capacity(crate::page::PAGE_SIZE, GFP_KERNEL)?);

    text.write_fmt(fmt!("{}", what)).map_err(|_| ENOMEM)?;
    dump(dev, text.0);
    Ok(())
}

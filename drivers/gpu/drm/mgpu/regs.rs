// SPDX-License-Identifier: GPL-2.0

//! The registers.
//!
//! An access takes long because it leaves the virtual machine, so the driver reads the status page
//! instead where it can. Registers can be accessed until the driver is unbound. If the device is
//! gone, reads return all ones. A register of 64 bits is two of 32 bits. The lower half comes
//! first.

use kernel::{
    io::{
        poll::read_poll_timeout,
        register,
        register::Array,
        Io, //
    },
    pci::{
        self,
        Bar,
        DevresBar, //
    },
    prelude::*,
    time::Delta, //
};

use crate::MODULE;

/// The BAR of the registers.
const BAR: u32 = 0;

/// The number of used bytes of the BAR.
const SIZE: usize = 0x1000;

/// The number of rings.
pub(crate) const RINGS: usize = 2;

/// How long a reset may take.
const RESET_TIME: Delta = Delta::from_secs(5);

register! {
    /// Identifies the device.
    ID(u32) @ 0x000 {}
    /// The version of the interface.
    VERSION(u32) @ 0x004 {}
    /// The size of VRAM in bytes.
    VRAM_SIZE(u32)[2] @ 0x008 {}
    /// The size of the aperture in bytes.
    APERTURE_SIZE(u32)[2] @ 0x010 {}
    /// The bus address of the status page.
    STATUS_PAGE(u32)[2] @ 0x020 {}
    /// The bus address of the table of contexts.
    CONTEXT_TABLE(u32)[2] @ 0x028 {}
    /// The first address of the next invalidation.
    INVALIDATE_START(u32)[2] @ 0x030 {}
    /// The number of bytes of the next invalidation.
    INVALIDATE_SIZE(u32)[2] @ 0x038 {}
    /// The context of the next invalidation.
    INVALIDATE_CONTEXT(u32) @ 0x040 {}
    /// Starts the invalidation, with its number.
    INVALIDATE(u32) @ 0x044 {}
    /// A bit for each ring and one for the whole device.
    RESET(u32) @ 0x048 {}
    /// Requests an error.
    INJECT(u32) @ 0x04c {}
    /// The number of interface rules broken by the driver.
    REPORTS(u32) @ 0x050 {}
    /// Makes the device check for broken rules.
    CHECK(u32) @ 0x054 {}
    /// The lower half of the bus address of a ring.
    RING_BASE_LOW(u32)[2, stride = 0x20] @ 0x100 {}
    /// The upper half of the bus address of a ring.
    RING_BASE_HIGH(u32)[2, stride = 0x20] @ 0x104 {}
    /// The number of entries of a ring.
    RING_ENTRIES(u32)[2, stride = 0x20] @ 0x108 {}
    /// The number of entries written to a ring so far.
    RING_DOORBELL(u32)[2, stride = 0x20] @ 0x10c {}
}

/// The number of registers in a dump.
pub(crate) const SHOWN: usize = 10;

/// The value of [`ID`].
const MGPU: u32 = 0x5550_474d;

/// The bit of [`RESET`] for the whole device.
const ALL: u32 = 1 << 31;

/// Writes a register of 64 bits.
macro_rules! write64 {
    ($bar:expr, $register:ident, $value:expr) => {{
        let value: u64 = $value;

        // CAST: The lower half and the upper one.
        $bar.write($register::at(0), $register::from(value as u32));
        $bar.write($register::at(1), $register::from((value >> 32) as u32));
    }};
}

/// Reads a register of 64 bits.
macro_rules! read64 {
    ($bar:expr, $register:ident) => {
        u64::from($bar.read($register::at(0)).into_raw())
            | u64::from($bar.read($register::at(1)).into_raw()) << 32
    };
}

/// The registers of a device.
pub(crate) struct Regs(DevresBar<SIZE>);

impl Regs {
    /// Maps the registers.
    ///
    /// # Errors
    ///
    /// - `ENODEV` for another device or another version of the interface.
    /// - Those of [`pci::Device::iomap_region_sized`].
    pub(crate) fn new(pdev: &pci::Device<kernel::device::Bound>) -> Result<Self> {
        let bar = pdev.iomap_region_sized::<SIZE>(BAR, MODULE)?;
        let (id, version) = ((&bar).read(ID).into_raw(), (&bar).read(VERSION).into_raw());

        if (id, version) != (MGPU, 1) {
            dev_err!(pdev, "unknown device {:#x}, version {}\n", id, version);
            return Err(ENODEV);
        }
        Ok(Self(bar.into_devres()?))
    }

    fn with<R>(&self, f: impl FnOnce(&Bar<'_, SIZE>) -> R) -> Result<R> {
        self.0.try_access_with(f).ok_or(ENODEV)
    }

    /// Returns whether the device does not answer any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.with(|bar| bar.read(ID).into_raw())
            .is_ok_and(|id| id == u32::MAX)
    }

    /// Returns the size of VRAM and of the aperture in bytes.
    pub(crate) fn sizes(&self) -> Result<(u64, u64)> {
        self.with(|bar| (read64!(bar, VRAM_SIZE), read64!(bar, APERTURE_SIZE)))
    }

    /// Sets the bus addresses of the status page and of the table of contexts.
    pub(crate) fn set_memory(&self, status: u64, contexts: u64) -> Result {
        self.with(|bar| {
            write64!(bar, STATUS_PAGE, status);
            write64!(bar, CONTEXT_TABLE, contexts);
        })
    }

    /// Sets the location of a ring. The ring begins with its first entry.
    pub(crate) fn set_ring(&self, ring: usize, base: u64, entries: u32) -> Result {
        let (low, high, len) = (
            RING_BASE_LOW::try_at(ring).ok_or(EINVAL)?,
            RING_BASE_HIGH::try_at(ring).ok_or(EINVAL)?,
            RING_ENTRIES::try_at(ring).ok_or(EINVAL)?,
        );

        self.with(|bar| {
            // CAST: The lower half and the upper one.
            bar.write(low, RING_BASE_LOW::from(base as u32));
            bar.write(high, RING_BASE_HIGH::from((base >> 32) as u32));
            bar.write(len, RING_ENTRIES::from(entries));
        })
    }

    /// Rings the doorbell of a ring. `written` is its number of entries written so far.
    pub(crate) fn ring_doorbell(&self, ring: usize, written: u32) -> Result {
        let at = RING_DOORBELL::try_at(ring).ok_or(EINVAL)?;

        self.with(|bar| bar.write(at, RING_DOORBELL::from(written)))
    }

    /// Makes the device invalidate translations and then write `number` to the status page.
    ///
    /// Must be called by one task at a time.
    pub(crate) fn invalidate(&self, context: u32, start: u64, size: u64, number: u32) -> Result {
        self.with(|bar| {
            write64!(bar, INVALIDATE_START, start);
            write64!(bar, INVALIDATE_SIZE, size);
            bar.write_reg(INVALIDATE_CONTEXT::from(context));
            bar.write_reg(INVALIDATE::from(number));
        })
    }

    /// Resets a ring. The ring does no DMA after a success. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is gone or its driver unbound. `ETIMEDOUT` if the reset takes too
    /// long.
    pub(crate) fn reset_ring(&self, ring: usize) -> Result {
        self.reset(1 << ring)
    }

    /// Resets the whole device. Sleeps.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::reset_ring`].
    pub(crate) fn reset_all(&self) -> Result {
        self.reset(ALL)
    }

    fn reset(&self, bits: u32) -> Result {
        let read = || self.with(|bar| bar.read(RESET).into_raw());
        let is_done = |left: &u32| left & bits == 0 || *left == u32::MAX;

        self.with(|bar| bar.write_reg(RESET::from(bits)))?;
        let left = match read_poll_timeout(read, is_done, Delta::from_micros(100), RESET_TIME) {
            // The task may have been preempted for all of the time, so read once more.
            Err(e) if e == ETIMEDOUT => read()?,
            ret => ret?,
        };
        match left {
            u32::MAX => Err(ENODEV),
            left if is_done(&left) => Ok(()),
            _ => Err(ETIMEDOUT),
        }
    }

    /// Returns the names and the values of registers for finding the cause of a hang or failure.
    ///
    /// # Errors
    ///
    /// `ENODEV` after the driver was unbound.
    pub(crate) fn shown(&self) -> Result<[(&'static str, u64); SHOWN]> {
        self.with(|bar| {
            let entries = |ring| {
                RING_ENTRIES::try_at(ring).map_or(0, |at| u64::from(bar.read(at).into_raw()))
            };
            let base = |ring| {
                let (Some(low), Some(high)) =
                    (RING_BASE_LOW::try_at(ring), RING_BASE_HIGH::try_at(ring))
                else {
                    return 0;
                };

                u64::from(bar.read(low).into_raw()) | u64::from(bar.read(high).into_raw()) << 32
            };

            [
                ("ID", u64::from(bar.read(ID).into_raw())),
                ("VERSION", u64::from(bar.read(VERSION).into_raw())),
                ("STATUS_PAGE", read64!(bar, STATUS_PAGE)),
                ("CONTEXT_TABLE", read64!(bar, CONTEXT_TABLE)),
                ("RESET", u64::from(bar.read(RESET).into_raw())),
                ("REPORTS", u64::from(bar.read(REPORTS).into_raw())),
                ("RING_BASE[0]", base(0)),
                ("RING_ENTRIES[0]", entries(0)),
                ("RING_BASE[1]", base(1)),
                ("RING_ENTRIES[1]", entries(1)),
            ]
        })
    }

    /// Requests an error, see Documentation/gpu/mgpu.rst.
    pub(crate) fn inject(&self, what: u8, ring: u8, argument: u16) -> Result {
        let value = u32::from(what) | u32::from(ring) << 8 | u32::from(argument) << 16;

        self.with(|bar| bar.write_reg(INJECT::from(value)))
    }

    /// Returns the number of interface rules broken by the driver so far.
    pub(crate) fn reports(&self) -> Result<u32> {
        self.with(|bar| {
            bar.write_reg(CHECK::from(1));
            bar.read(REPORTS).into_raw()
        })
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The CPU mapping of VRAM.
//!
//! C header: [`include/linux/pci.h`](srctree/include/linux/pci.h)

use super::Ranges;
use crate::{
    bindings,
    container_of,
    device::Bound,
    pci,
    prelude::*,
    sizes::SZ_1M, //
};
use core::{
    ops::Range,
    ptr::NonNull, //
};

/// How many bytes are written before other tasks may use the processor.
const SET_AT_ONCE: usize = SZ_1M;

/// A memory BAR mapped write-combined into the kernel for the CPU.
///
/// The mapping of the whole BAR also makes the architecture map it write-combined into processes.
///
/// # Examples
///
/// A driver that maps its VRAM:
///
/// ```
/// use kernel::{
///     device::Core,
///     driver,
///     drm::vram::BarMapping,
///     module::this_module,
///     pci,
///     prelude::*, //
/// };
///
/// struct Example;
///
/// kernel::pci_device_table!(
///     PCI_TABLE,
///     <Example as pci::Driver>::IdInfo,
///     [(pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, 0x1110), ())]
/// );
///
/// impl pci::Driver for Example {
///     type IdInfo = ();
///     type Data<'bound> = Self;
///
///     const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;
///
///     fn probe<'bound>(
///         pdev: &'bound pci::Device<Core<'_>>,
///         _info: Option<&'bound ()>,
///     ) -> impl PinInit<Self, Error> + 'bound {
///         pdev.enable_device_mem()?;
///
///         assert_eq!(BarMapping::new(pdev, 6, c"example").err(), Some(EINVAL));
///         let vram = BarMapping::new(pdev, 2, c"example")?;
///         assert_eq!(vram.len(), pdev.resource_len(2)?);
///
///         // One window at a time.
///         assert_eq!(BarMapping::new(pdev, 2, c"example").err(), Some(EBUSY));
///
///         dev_info!(pdev, "the CPU sees VRAM\n");
///         Ok(Self)
///     }
/// }
///
/// // The driver binds to each such device that has no driver, until the value is dropped.
/// let driver = KBox::pin_init(
///     driver::Registration::<pci::Adapter<Example>>::new(
///         c"window_example",
///         this_module::<crate::LocalModule>(),
///     ),
///     GFP_KERNEL,
/// )?;
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// BAR `bar` of `pdev` is requested, and `addr` is the mapping of its `len` bytes.
pub struct BarMapping<'a> {
    pdev: &'a pci::Device<Bound>,
    bar: i32,
    addr: NonNull<c_void>,
    len: u64,
}

// SAFETY: The methods need no synchronization. They return constants or access I/O memory, and no
// code relies on the content of this memory.
unsafe impl Send for BarMapping<'_> {}

// SAFETY: As for `Send`.
unsafe impl Sync for BarMapping<'_> {}

impl<'a> BarMapping<'a> {
    /// Requests BAR `bar` and maps it. `name` is shown in `/proc/iomem`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such BAR or it is empty.
    /// - `EBUSY` if it is in use.
    /// - `ENOMEM` if it cannot be mapped.
    #[inline(never)]
    pub fn new(pdev: &'a pci::Device<Bound>, bar: u32, name: &'static CStr) -> Result<Self> {
        if bar >= bindings::PCI_STD_NUM_BARS {
            return Err(EINVAL);
        }

        let len = pdev.resource_len(bar)?;
        if len == 0 {
            return Err(EINVAL);
        }

        let raw = raw_pci(pdev);
        // CAST: Below `PCI_STD_NUM_BARS`.
        let bar = bar as i32;

        // SAFETY: `pdev` is valid, `bar` is a standard BAR, and `name` is static.
        if unsafe { bindings::pci_request_region(raw, bar, name.as_char_ptr()) } != 0 {
            return Err(EBUSY);
        }

        // SAFETY: As above; the region was just requested.
        let Some(addr) = NonNull::new(unsafe { bindings::pci_iomap_wc(raw, bar, 0) }) else {
            // SAFETY: The region was requested above.
            unsafe { bindings::pci_release_region(raw, bar) };
            return Err(ENOMEM);
        };

        // INVARIANT: The BAR was requested and mapped above.
        Ok(Self {
            pdev,
            bar,
            addr,
            len,
        })
    }

    /// Returns the size of the BAR in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the BAR is empty. It never is.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the mapping.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.addr.as_ptr()
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &'a crate::device::Device<Bound> {
        self.pdev.as_ref()
    }

    /// Returns the device.
    pub(crate) fn as_pci(&self) -> *mut bindings::pci_dev {
        raw_pci(self.pdev)
    }

    /// Writes `byte` to the whole BAR, as a loss of power may. Sleeps because a BAR may have many
    /// gigabytes.
    pub fn fill(&self, byte: u8) {
        // CAST: The size of a mapping has less than 64 bits.
        self.set(0..self.len as usize, byte);
    }

    /// Writes `byte` to a part of the BAR. The part must be inside the BAR.
    #[inline(never)]
    fn set(&self, range: Range<usize>, byte: u8) {
        for at in range.clone().step_by(SET_AT_ONCE) {
            let to = self.addr.as_ptr().wrapping_byte_add(at);

            // SAFETY: By the type invariant the whole BAR is mapped. No code relies on the content
            // of VRAM.
            unsafe {
                bindings::memset_io(to, byte.into(), SET_AT_ONCE.min(range.end - at));
                bindings::cond_resched();
            }
        }
    }

    /// Reads the BAR at `at`.
    ///
    /// Others may write to it meanwhile, as to all shared memory.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the bytes are not inside the BAR.
    #[inline(never)]
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result {
        if at > self.len || to.len() as u64 > self.len - at {
            return Err(EINVAL);
        }

        // SAFETY: By the type invariant the whole BAR is mapped; the bytes are inside of it.
        unsafe {
            bindings::memcpy_fromio(
                to.as_mut_ptr().cast(),
                // CAST: The size of a mapping has less than 64 bits.
                self.addr.as_ptr().wrapping_byte_add(at as usize),
                to.len(),
            );
        }
        Ok(())
    }

    /// Clears the VRAM of an object. The zeroes have arrived when this returns. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a part of it is not inside the BAR.
    #[inline(never)]
    pub fn clear(&self, vram: &Ranges) -> Result {
        if !vram.is_in_bar(self.len) {
            return Err(EINVAL);
        }

        for range in vram.shown() {
            // CAST: The size of a mapping has less than 64 bits.
            let (offset, len) = (range.offset as usize, range.len as usize);

            self.set(offset..offset + len, 0);
        }
        self.flush(vram);
        Ok(())
    }

    /// Waits until writes of this CPU to the BAR have arrived, through any window of an aperture.
    #[inline(never)]
    pub fn flush_all(&self) {
        // SAFETY: By the type invariant the BAR is mapped, and is not empty.
        unsafe { flush(self.addr.as_ptr()) };
    }

    /// Waits until writes of this CPU to an object in VRAM have arrived.
    ///
    /// Does nothing unless all of the object is inside the BAR.
    #[inline(never)]
    pub fn flush(&self, vram: &Ranges) {
        if !vram.is_in_bar(self.len) {
            return;
        }
        if let Some(at) = vram.last(self.addr.as_ptr()) {
            // SAFETY: By the type invariant the whole BAR is mapped, and it has all of the ranges.
            unsafe { flush(at) };
        }
    }
}

/// Waits until writes of the CPU to I/O memory have arrived, so that others can read them.
///
/// # Safety
///
/// `at` must be the address of a mapped byte of that memory.
pub(crate) unsafe fn flush(at: *mut c_void) {
    // Write-combining buffers keep data until they are flushed. Writes that have left them are
    // posted: they may be on their way when a peer reads by another path. The answer to a read
    // comes after all writes before it.
    // SAFETY: A barrier has no requirements; by the safety requirements the address is valid.
    unsafe {
        bindings::wmb();
        bindings::readb(at);
    }
}

impl Drop for BarMapping<'_> {
    fn drop(&mut self) {
        let raw = raw_pci(self.pdev);

        // SAFETY: By the type invariant the BAR is mapped and requested.
        unsafe {
            bindings::pci_iounmap(raw, self.addr.as_ptr());
            bindings::pci_release_region(raw, self.bar);
        }
    }
}

fn raw_pci(pdev: &pci::Device<Bound>) -> *mut bindings::pci_dev {
    let dev: &crate::device::Device<Bound> = pdev.as_ref();

    // SAFETY: The device of a `pci::Device` is embedded in a `struct pci_dev`.
    unsafe { container_of!(dev.as_raw(), bindings::pci_dev, dev) }
}

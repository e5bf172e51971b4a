// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Access by the CPU to GEM objects that live in a PCI BAR.
//!
//! A driver maps the BAR with [`Window::new`], implements [`IoMemObject`], and sets
//! [`DriverObject::CPU`] to [`hooks`]. Its objects can then be mapped into processes, through the
//! DRM file and through a dma-buf, and into the kernel; all mappings are write-combined.
//!
//! # Locking and unbind
//!
//! The fault handler runs with the `mmap_lock` held and inserts addresses inside a
//! [`RegistrationGuard`](drm::RegistrationGuard) only. Unplugging the DRM device waits for these
//! guards and then removes all mappings of processes, so nothing of the BAR is mapped when the
//! driver is unbound; later accesses end in `SIGBUS`. A mapping of the kernel cannot be taken away.
//! Those that were made through a dma-buf are waited for by [`Exports`], like the mappings of
//! importers.
//!
//! [`Exports`]: crate::dma_buf::Exports
//!
//! C headers: [`include/drm/drm_gem.h`](srctree/include/drm/drm_gem.h),
//! [`include/linux/mm.h`](srctree/include/linux/mm.h)

use super::{
    CpuHooks,
    DriverAllocImpl,
    DriverObject,
    IntoGEMObject, //
};
use crate::{
    bindings,
    container_of,
    device::Bound,
    drm,
    error::from_result,
    mm::virt,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    pci,
    prelude::*, //
};
use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};

/// How many pages one fault maps at most.
const FAULT_AROUND: usize = 16;

/// A memory BAR that the CPU sees, mapped write-combined into the kernel.
///
/// The mapping of the whole BAR also makes the architecture map it write-combined into processes.
///
/// # Examples
///
/// A driver that clears its VRAM before anybody sees it:
///
/// ```
/// use kernel::{
///     device::Core,
///     driver,
///     drm::gem::iomem::Window,
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
///         assert_eq!(Window::new(pdev, 6, c"example").err(), Some(EINVAL));
///         let vram = Window::new(pdev, 2, c"example")?;
///         assert_eq!(vram.len(), pdev.resource_len(2)?);
///
///         // One at a time.
///         assert_eq!(Window::new(pdev, 2, c"example").err(), Some(EBUSY));
///
///         vram.clear(0, vram.len())?;
///         assert_eq!(vram.clear(vram.len(), 1), Err(EINVAL));
///
///         dev_info!(pdev, "VRAM is clear\n");
///         Ok(Self)
///     }
/// }
///
/// // Binds to each such device that has no driver, until it is dropped.
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
/// - BAR `bar` of `pdev` is requested, and `addr` is the mapping of its `len` bytes.
/// - `start..start + len` are the physical addresses of the BAR.
pub struct Window<'a> {
    pdev: &'a pci::Device<Bound>,
    bar: i32,
    addr: NonNull<c_void>,
    start: u64,
    len: u64,
}

// SAFETY: The methods do not need synchronization: they write to I/O memory, whose content nobody
// relies on, or return constants.
unsafe impl Send for Window<'_> {}

// SAFETY: As for `Send`.
unsafe impl Sync for Window<'_> {}

impl<'a> Window<'a> {
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

        let start = pdev.resource_start(bar)?;
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

        // INVARIANT: Requested and mapped above.
        Ok(Self {
            pdev,
            bar,
            addr,
            start,
            len,
        })
    }

    /// Returns the size of the BAR in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Tells whether the BAR is empty, which it is not.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes zeroes to `len` bytes at `offset`. Sleeps.
    ///
    /// The zeroes have arrived at the device, and can be read by others, when the method returns.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is not inside the BAR.
    #[inline(never)]
    pub fn clear(&self, offset: u64, len: u64) -> Result {
        self.phys(offset, len)?;
        if len == 0 {
            return Ok(());
        }

        // CAST: Inside the BAR, which is mapped into the address space of the kernel.
        // SAFETY: By the type invariant the whole BAR is mapped, and the range is inside.
        unsafe {
            bindings::memset_io(
                self.addr.as_ptr().wrapping_byte_add(offset as usize),
                0,
                len as usize,
            )
        };

        // Write-combining buffers keep data until they are flushed. What left them is posted: it may
        // be on its way when a peer, which takes another one, reads. The answer to a read comes
        // after all writes before it.
        // OVERFLOW: The range is not empty and inside the BAR.
        // SAFETY: A barrier has no requirements, and the byte is the last one of the range.
        unsafe {
            bindings::wmb();
            bindings::readb(
                self.addr
                    .as_ptr()
                    .wrapping_byte_add((offset + len - 1) as usize),
            );
        }
        Ok(())
    }

    /// Returns the physical address of `len` bytes at `offset`.
    fn phys(&self, offset: u64, len: u64) -> Result<u64> {
        if offset.checked_add(len).ok_or(EINVAL)? > self.len {
            return Err(EINVAL);
        }

        // OVERFLOW: The BAR ends inside the physical address space.
        Ok(self.start + offset)
    }
}

impl Drop for Window<'_> {
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

/// A GEM object that lives in a BAR.
///
/// See [`peer`](super::peer) for an example.
pub trait IoMemObject:
    DriverObject<Driver: drm::Driver<Object: IntoGEMObject + Deref<Target = Self>>>
{
    /// Returns the BAR, which the driver keeps in its registration data.
    fn window<'a>(reg: &'a <Self::Driver as drm::Driver>::RegistrationData<'a>) -> &'a Window<'a>;

    /// Calls `f` with offset in the BAR and length of each block of the object, in the order of the
    /// object, until it fails.
    ///
    /// Offsets and lengths are multiples of the page size, and the lengths add up to the size of
    /// the object. Blocks may lie outside of the BAR; the CPU then has no access to them. Called
    /// from the fault handler: must not take a lock that is held while memory is allocated.
    ///
    /// # Errors
    ///
    /// What `f` returns.
    fn for_each_block(&self, f: &mut dyn FnMut(u64, u64) -> Result) -> Result;
}

/// Returns the callbacks for [`DriverObject::CPU`].
pub const fn hooks<T: IoMemObject>() -> CpuHooks<T> {
    // INVARIANT: The callbacks expect objects of the class `DriverAllocImpl<T>`.
    CpuHooks {
        mmap: Some(mmap_callback::<T>),
        vmap: Some(vmap_callback::<T>),
        vunmap: Some(vunmap_callback),
        vm_ops: &VmOps::<T>::TABLE,
        _p: PhantomData,
    }
}

struct VmOps<T>(PhantomData<T>);

impl<T: IoMemObject> VmOps<T> {
    const TABLE: bindings::vm_operations_struct = bindings::vm_operations_struct {
        open: Some(bindings::drm_gem_vm_open),
        close: Some(bindings::drm_gem_vm_close),
        fault: Some(fault_callback::<T>),
        ..pin_init::zeroed()
    };
}

/// Calls `f` with the registration data of the device of `obj`.
///
/// # Errors
///
/// `ENODEV` if the device is not registered any more, and what `f` returns.
///
/// # Safety
///
/// `obj` must be a valid GEM object of a device of `T::Driver` that was registered.
unsafe fn with_window<T: IoMemObject, R>(
    obj: *mut bindings::drm_gem_object,
    f: impl FnOnce(&Window<'_>) -> Result<R>,
) -> Result<R> {
    // SAFETY: The device of a valid GEM object is valid, and by the safety requirements it is of
    // `T::Driver` and was registered.
    let dev: &drm::Device<T::Driver, drm::Ioctl> = unsafe { drm::Device::from_raw((*obj).dev) };

    dev.registration_guard()
        .ok_or(ENODEV)?
        .registration_data_with(|reg| f(T::window(reg)))
}

/// Calls `f` with the physical address of each page of the object from page `first` on, until it
/// returns `false`.
fn for_each_page<T: IoMemObject>(
    obj: &T,
    window: &Window<'_>,
    first: usize,
    mut f: impl FnMut(u64) -> Result<bool>,
) -> Result {
    // CAST: Sizes of objects fit `u64`.
    let mut skip = (first as u64) << PAGE_SHIFT;
    let mut done = false;

    obj.for_each_block(&mut |offset, len| {
        if done || skip >= len {
            skip = skip.saturating_sub(len);
            return Ok(());
        }

        let phys = window.phys(offset, len)?;
        while skip < len && !done {
            // OVERFLOW: The block is inside the BAR.
            done = !f(phys + skip)?;
            skip += PAGE_SIZE as u64;
        }
        skip = 0;
        Ok(())
    })
}

/// # Safety
///
/// Called by the DRM core with an object of the class `DriverAllocImpl<T>`, and the area of an
/// `mmap()` that is under way.
unsafe extern "C" fn mmap_callback<T: IoMemObject>(
    obj: *mut bindings::drm_gem_object,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    from_result(|| {
        // SAFETY: Only objects of registered devices have handles or are exported.
        unsafe { with_window::<T, _>(obj, |_| Ok(())) }?;

        // SAFETY: The area is being set up, so nobody else accesses it.
        let flags = unsafe { (*vma).__bindgen_anon_2.vm_flags };

        // A private mapping would have to be copied when it is written to, and there are no pages
        // to copy.
        if flags & (virt::flags::SHARED | virt::flags::MAYWRITE) == virt::flags::MAYWRITE {
            return Err(EINVAL);
        }

        let flags = flags
            | virt::flags::PFNMAP
            | virt::flags::IO
            | virt::flags::DONTEXPAND
            | virt::flags::DONTDUMP;

        // SAFETY: The area is being set up, so nobody else accesses it. These are the flags of an
        // area that consists of page frame numbers, and its fault handler inserts these only.
        unsafe {
            (*vma).__bindgen_anon_2.vm_flags = flags;
            (*vma).vm_page_prot = bindings::pgprot_decrypted(bindings::pgprot_writecombine(
                bindings::vm_get_page_prot(flags),
            ));
        }
        Ok(0)
    })
}

/// # Safety
///
/// Called by the memory management with a fault in an area that [`mmap_callback`] set up.
unsafe extern "C" fn fault_callback<T: IoMemObject>(
    vmf: *mut bindings::vm_fault,
) -> bindings::vm_fault_t {
    // SAFETY: The fault and its area are valid.
    let (vma, address, pgoff, end) = unsafe {
        let vmf = &(*vmf).__bindgen_anon_1;

        (
            vmf.vma,
            vmf.address,
            vmf.pgoff,
            (*vmf.vma).__bindgen_anon_1.__bindgen_anon_1.vm_end,
        )
    };
    // SAFETY: The DRM core sets the object as the private data of the area, which holds a reference
    // to it.
    let obj = unsafe { (*vma).vm_private_data.cast::<bindings::drm_gem_object>() };
    // SAFETY: The object is valid and of the class `DriverAllocImpl<T>`.
    let data: &DriverAllocImpl<T> = unsafe { IntoGEMObject::from_raw(obj) };
    // Offsets in the file start at the fake offset of the object.
    // SAFETY: The object is valid.
    let first = pgoff.wrapping_sub(unsafe { (*obj).vma_node.vm_node.start } as usize);

    // `address` is that of a page below `end`.
    let max = FAULT_AROUND.min((end - address) >> PAGE_SHIFT);
    let mut ret = bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    let mut count = 0;

    // SAFETY: Only objects of registered devices are mapped.
    let res = unsafe {
        with_window::<T, _>(obj, |window| {
            for_each_page::<T>(data, window, first, |phys| {
                // SAFETY: The address is inside the area, which has `VM_PFNMAP` and is not a
                // private one that can be written to. `phys` is a page of the object. The guard
                // that `with_window` holds makes an unplug wait, which removes it again.
                let one = bindings::vmf_insert_pfn(
                    vma,
                    address + (count << PAGE_SHIFT),
                    (phys >> PAGE_SHIFT) as usize,
                );

                // The result is that of the page that is asked for; others are a bonus.
                if count == 0 {
                    ret = one;
                }
                count += 1;
                Ok(one == bindings::vm_fault_reason_VM_FAULT_NOPAGE && count < max)
            })
        })
    };

    // The device is gone, or the page is outside of the BAR; a later block is none of our concern.
    if res.is_err() && count == 0 {
        return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    }
    ret
}

/// # Safety
///
/// Called with an object of the class `DriverAllocImpl<T>`, with its reservation held.
unsafe extern "C" fn vmap_callback<T: IoMemObject>(
    obj: *mut bindings::drm_gem_object,
    map: *mut bindings::iosys_map,
) -> c_int {
    from_result(|| {
        // SAFETY: The object is valid and of the class `DriverAllocImpl<T>`.
        let data: &DriverAllocImpl<T> = unsafe { IntoGEMObject::from_raw(obj) };
        // SAFETY: The object is valid.
        let count = unsafe { (*obj).size } >> PAGE_SHIFT;
        let mut pfns = KVVec::with_capacity(count, GFP_KERNEL)?;

        // SAFETY: Only objects of registered devices have handles or are exported.
        unsafe {
            with_window::<T, _>(obj, |window| {
                for_each_page::<T>(data, window, 0, |phys| {
                    pfns.push((phys >> PAGE_SHIFT) as usize, GFP_KERNEL)?;
                    Ok(true)
                })?;

                let addr = vmap(&pfns)?;
                // SAFETY: The caller passes a structure that it wants to have filled.
                *map = bindings::iosys_map {
                    __bindgen_anon_1: bindings::iosys_map__bindgen_ty_1 {
                        vaddr_iomem: addr.as_ptr(),
                    },
                    is_iomem: true,
                };
                Ok(0)
            })
        }
    })
}

/// Maps pages of I/O memory, which need not be contiguous, write-combined into the kernel.
#[inline(never)]
fn vmap(pfns: &[usize]) -> Result<NonNull<c_void>> {
    // `vmap_pfn()` is for addresses without a `struct page` and warns about others. A BAR has no
    // pages, unless somebody made it device memory.
    // SAFETY: The function has no requirements.
    let has_page = |&pfn| unsafe { bindings::pfn_valid(pfn) } != 0;
    if pfns.iter().any(has_page) {
        return Err(EOPNOTSUPP);
    }

    // SAFETY: The array is valid for its length and not written to.
    let addr = unsafe {
        bindings::vmap_pfn(
            pfns.as_ptr().cast_mut(),
            pfns.len().try_into()?,
            bindings::pgprot_decrypted(bindings::pgprot_writecombine(bindings::pgprot_kernel())),
        )
    };
    NonNull::new(addr).ok_or(ENOMEM)
}

/// # Safety
///
/// Called with what [`vmap_callback`] filled in, which is not used any more.
unsafe extern "C" fn vunmap_callback(
    _obj: *mut bindings::drm_gem_object,
    map: *mut bindings::iosys_map,
) {
    // SAFETY: By the safety requirements this is an address that `vmap_pfn()` returned.
    unsafe { bindings::vunmap((*map).__bindgen_anon_1.vaddr_iomem) };
}

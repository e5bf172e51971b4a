// SPDX-License-Identifier: GPL-2.0

//! Access to memory past the tested layers: to the memory at a DMA address, and to the memory of a
//! process that has mapped a buffer.

use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    dma_buf::DmaBuf,
    error::to_result,
    mm::MmWithUser,
    page::PAGE_SIZE,
    prelude::*,
    sync::aref::ARef,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};

/// Returns the physical address that a device accesses at a DMA address, and whether an IOMMU is in
/// between.
#[cfg(CONFIG_IOMMU_API)]
pub(crate) fn translate(dev: &Device<Bound>, addr: u64) -> (u64, bool) {
    // SAFETY: The device is valid, and bound, so that its domain stays.
    unsafe {
        let domain = bindings::iommu_get_domain_for_dev(core::ptr::from_ref(dev).cast_mut().cast());

        if domain.is_null() {
            (addr, false)
        } else {
            (bindings::iommu_iova_to_phys(domain, addr), true)
        }
    }
}

#[cfg(not(CONFIG_IOMMU_API))]
pub(crate) fn translate(_dev: &Device<Bound>, addr: u64) -> (u64, bool) {
    (addr, false)
}

/// System memory at a physical address, at which a device would access it.
pub(crate) struct Physical(*mut c_void);

impl Physical {
    /// Maps a page.
    ///
    /// # Errors
    ///
    /// `EFAULT` if there is none.
    pub(crate) fn new(addr: u64) -> Result<Self> {
        // SAFETY: The function checks the address.
        let map = unsafe {
            // CAST: A small number.
            bindings::memremap(addr, PAGE_SIZE, bindings::MEMREMAP_WB as c_ulong)
        };

        if map.is_null() {
            return Err(EFAULT);
        }
        Ok(Self(map))
    }

    /// Reads the first bytes.
    pub(crate) fn read(&self) -> [u8; 8] {
        // SAFETY: A page is mapped there, at its beginning.
        unsafe { self.0.cast::<[u8; 8]>().read_volatile() }
    }

    /// Writes the first bytes.
    pub(crate) fn write(&self, bytes: [u8; 8]) {
        // SAFETY: A page is mapped there, at its beginning, of a buffer of the test.
        unsafe { self.0.cast::<[u8; 8]>().write_volatile(bytes) }
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: This is what `memremap()` has returned.
        unsafe { bindings::memunmap(self.0) };
    }
}

/// Returns how many pages the system has available for allocations.
pub(crate) fn available_pages() -> usize {
    // SAFETY: The function has no requirements.
    // CAST: The number is not negative.
    unsafe { bindings::si_mem_available() as usize }
}

/// Whether the writes of a process go to the buffer.
#[derive(Clone, Copy)]
pub(crate) enum Sharing {
    Shared = 1,
    Private = 2,
}

/// The result of an access by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The access succeeds.
    Works,
    /// The process gets SIGBUS.
    Sigbus,
    /// The access fails in another way.
    Fails(bindings::vm_fault_t),
}

/// A buffer that is mapped into the process of a test, which has no other memory.
pub(crate) struct Mapped {
    buf: ARef<DmaBuf>,
    addr: usize,
    len: usize,
}

impl Mapped {
    /// Maps pages of a buffer from the page `first` on, to be read and written.
    ///
    /// # Errors
    ///
    /// What `mmap()` returns.
    pub(crate) fn new(buf: &DmaBuf, first: usize, count: usize, sharing: Sharing) -> Result<Self> {
        // `PROT_READ` and `PROT_WRITE`.
        const PROT: usize = 1 | 2;
        let len = count * PAGE_SIZE;

        let raw: *mut bindings::dma_buf = core::ptr::from_ref(buf).cast_mut().cast();

        // SAFETY: A test is a thread of the kernel, which the process is made for. The file of the
        // buffer is valid.
        let addr = unsafe {
            to_result(bindings::kunit_attach_mm())?;
            bindings::vm_mmap(
                (*raw).file,
                0,
                len,
                PROT,
                sharing as usize,
                first * PAGE_SIZE,
            )
        };

        // CAST: The highest addresses are negative errors.
        match addr as isize {
            error @ -4095..0 => Err(Error::from_errno(error as i32)),
            _ => Ok(Self {
                buf: buf.into(),
                addr,
                len,
            }),
        }
    }

    fn slice(&self, offset: usize, len: usize) -> UserSlice {
        UserSlice::new(UserPtr::from_addr(self.addr + offset), len)
    }

    /// Reads as the process does.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process cannot.
    pub(crate) fn read(&self, offset: usize) -> Result<[u8; 8]> {
        self.slice(offset, 8).reader().read()
    }

    /// Writes as the process does.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process cannot.
    pub(crate) fn write(&self, offset: usize, bytes: [u8; 8]) -> Result {
        self.slice(offset, 8).writer().write(&bytes)
    }

    /// Makes the process fault at an offset, as if the page was not mapped.
    ///
    /// # Errors
    ///
    /// `EFAULT` if there is no mapping at that address.
    pub(crate) fn fault(&self, offset: usize) -> Result<Access> {
        // SAFETY: The thread has the memory of the process, since `new()`.
        let mm = unsafe { MmWithUser::from_raw((*bindings::get_current()).mm) };
        let lock = mm.mmap_read_lock();
        let area = lock.vma_lookup(self.addr + offset).ok_or(EFAULT)?;

        // SAFETY: The area is valid while the lock is held. Without flags the lock stays held.
        let ret = unsafe {
            bindings::handle_mm_fault(area.as_ptr(), self.addr + offset, 0, core::ptr::null_mut())
        };
        Ok(match ret {
            0 | bindings::vm_fault_reason_VM_FAULT_NOPAGE => Access::Works,
            bindings::vm_fault_reason_VM_FAULT_SIGBUS => Access::Sigbus,
            other => Access::Fails(other),
        })
    }

    /// Returns the buffer.
    pub(crate) fn dma_buf(&self) -> &DmaBuf {
        &self.buf
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: The thread has the memory of the process, in which this was mapped.
        unsafe { bindings::vm_munmap(self.addr, self.len) };
    }
}

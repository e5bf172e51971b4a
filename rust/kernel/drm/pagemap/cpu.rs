// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Copies by the CPU instead of an engine of the device.
//!
//! The CPU accesses system memory as the device would. It follows the DMA address through an IOMMU
//! or to a bounce buffer.

use super::segments::{
    Direction,
    Peer,
    Segment,
    Segments, //
};
use crate::{
    bindings,
    device::Device,
    dma::DataDirection,
    drm::vram::BarMapping,
    page::PAGE_SIZE,
    prelude::*, //
};

impl Segments<'_> {
    /// Copies all pieces by the CPU. The memory of the device is visible to the CPU in `window`;
    /// `bar_offset` converts an offset in that memory to one in the window. May sleep.
    ///
    /// # Errors
    ///
    /// `EIO` if a page is not in the window or there is no memory at a DMA address.
    #[inline(never)]
    pub fn copy_by_cpu(
        self,
        window: &BarMapping<'_>,
        bar_offset: impl Fn(u64) -> Option<u64>,
    ) -> Result {
        copy(self, window, &bar_offset)
    }
}

fn copy(
    segments: Segments<'_>,
    window: &BarMapping<'_>,
    bar_offset: &dyn Fn(u64) -> Option<u64>,
) -> Result {
    let (dev, direction) = (segments.dma_device(), segments.direction());
    // The offset of the last page of the window, if it has a page.
    let end = window.len().checked_sub(PAGE_SIZE as u64).ok_or(EIO)?;
    let mut last = None;

    for Segment { offset, len, peer } in segments {
        for at in (0..len).step_by(PAGE_SIZE) {
            // OVERFLOW: A segment is inside the memory of the device.
            let shown = bar_offset(offset + at as u64)
                .filter(|shown| *shown <= end)
                .ok_or(EIO)?;
            // CAST: The size of a mapping has less than 64 bits.
            let vram = window.as_ptr().wrapping_byte_add(shown as usize);

            // SAFETY: The window has a page there. It belongs to the pieces while they are copied.
            // So does the page of system memory, which is mapped for the device.
            unsafe {
                match (peer, direction) {
                    (Peer::Zero, _) => bindings::memset_io(vram, 0, PAGE_SIZE),
                    (Peer::Dma(addr), Direction::ToDevice) => {
                        let ram = memory_at(dev, addr.wrapping_add(at as u64))?;

                        bindings::memcpy_toio(vram, ram, PAGE_SIZE);
                    }
                    (Peer::Dma(addr), Direction::ToRam) => {
                        let addr = addr.wrapping_add(at as u64);
                        let ram = memory_at(dev, addr)?;

                        bindings::memcpy_fromio(ram, vram, PAGE_SIZE);
                        keep_written(dev, addr);
                    }
                }
                bindings::cond_resched();
            }
            last = Some(vram);
        }
    }

    if let (Some(vram), Direction::ToDevice) = (last, direction) {
        // SAFETY: The address is one of the window.
        unsafe { crate::drm::vram::flush(vram) };
    }
    Ok(())
}

/// Makes the unmap of a page for a device keep the data written to it by the CPU.
///
/// The page is mapped for writes of the device. If the device is not coherent, the unmap discards
/// the CPU cache lines of the page.
///
/// # Safety
///
/// As for [`memory_at`]. The address must be that of a page mapped for writes of the device.
unsafe fn keep_written(dev: &Device, addr: u64) {
    // Mappings by `dma_iova_link()` are unknown to the checks of DMA_API_DEBUG. These complain
    // about a call without effect for a coherent device.
    // SAFETY: As the caller promises.
    unsafe {
        if !bindings::dev_is_dma_coherent(dev.as_raw()) {
            bindings::dma_sync_single_for_device(
                dev.as_raw(),
                addr,
                PAGE_SIZE,
                DataDirection::FromDevice.into(),
            );
        }
    }
}

/// Returns the kernel address of the memory at a DMA address of a device.
///
/// # Safety
///
/// The address must be one of a mapping of system memory for the device. It must not be unmapped
/// meanwhile.
unsafe fn memory_at(dev: &Device, addr: u64) -> Result<*mut c_void> {
    // SAFETY: As the caller promises, the device is bound. So its domain stays.
    let phys = unsafe {
        match domain(dev) {
            Some(domain) => bindings::iommu_iova_to_phys(domain, addr),
            None => bindings::dma_to_phys(dev.as_raw(), addr),
        }
    };

    if phys == 0 {
        return Err(EIO);
    }
    // SAFETY: The address is in system memory. All system memory is mapped on 64-bit machines.
    Ok(unsafe { bindings::phys_to_virt(phys) })
}

/// Returns the domain of the IOMMU translating for a device.
#[cfg(CONFIG_IOMMU_API)]
fn domain(dev: &Device) -> Option<*mut bindings::iommu_domain> {
    // SAFETY: The device is valid.
    let domain = unsafe { bindings::iommu_get_domain_for_dev(dev.as_raw()) };

    (!domain.is_null()).then_some(domain)
}

#[cfg(not(CONFIG_IOMMU_API))]
fn domain(_dev: &Device) -> Option<*mut bindings::iommu_domain> {
    None
}

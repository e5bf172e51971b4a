// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Copies of bytes from one object to another.
//!
//! A [`Blit`] is work for the engine of a device, as a [`Transfer`](super::Transfer) is. It begins
//! and ends at any byte. One side may be the buffer of another device.
//!
//! # Locking
//!
//! A blit is done and dropped while others may wait for its fence, so it takes no lock then. A
//! worker later takes the reservation of a buffer of another device to unmap the buffer.
//!
//! C header: [`include/linux/iosys-map.h`](srctree/include/linux/iosys-map.h)

use super::transfer::{
    pause,
    Memory,
    Pages,
    Side, //
};
use crate::{
    bindings,
    dma::DataDirection,
    dma_buf::{
        vmap::VMap,
        DmaBuf, //
    },
    dma_resv::LockedResv,
    impl_has_work,
    iosys_map::IosysMap,
    new_work,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    workqueue::{
        self,
        Work,
        WorkItem, //
    }, //
};
use core::mem::ManuallyDrop;

/// A CPU access to a buffer of another device. Dropping it ends the access.
pub(crate) struct CpuAccess {
    buf: ARef<DmaBuf>,
    dir: DataDirection,
    ended: Atomic<bool>,
}

impl CpuAccess {
    /// Begins the access and waits for work conflicting with `dir`. No reservation may be held here
    /// or when the value is dropped.
    pub(crate) fn begin(buf: &DmaBuf, dir: DataDirection) -> Result<Arc<Self>> {
        buf.begin_cpu_access(dir)?;
        let access = Self {
            buf: buf.into(),
            dir,
            ended: Atomic::new(false),
        };

        // Without memory the value is dropped, which ends the access.
        Ok(Arc::new(access, GFP_KERNEL)?)
    }

    /// Ends the access unless it has ended: devices see the writes of the CPU when this returns.
    ///
    /// The exporter takes the reservation, so it must not be held.
    pub(crate) fn end(&self) {
        if !self.ended.xchg(true, Relaxed) {
            // An error cannot be reported to a caller: the bytes are where the exporter has mapped
            // the buffer.
            let _ = self.buf.end_cpu_access(self.dir);
        }
    }
}

impl Drop for CpuAccess {
    fn drop(&mut self) {
        self.end();
    }
}

/// A buffer of another device, mapped into the kernel (vmap) until the value is dropped or a little
/// longer: a worker unmaps it, so the value may be dropped with reservations held.
///
/// All of the buffer is mapped, even to copy one byte, because dma-buf has no mapping of a part.
/// Concurrent copies share a mapping: the core maps for the first user and counts the others. The
/// mapping is not kept between copies because it is a pin and no callback revokes it. It would
/// count against the exporter's limit of pins and make the exporter refuse importers that cannot
/// reach the buffer where it is. It would also keep the exporter's device active and hold up its
/// unbind, for an importer that may never copy again.
pub(crate) struct VmappedImport(ManuallyDrop<Pin<KBox<GiveBack>>>);

#[pin_data]
struct GiveBack {
    // Dropped before the access ends.
    map: VMap,
    _access: Arc<CpuAccess>,
    #[pin]
    work: Work<GiveBack>,
}

impl_has_work! {
    impl HasWork<Self> for GiveBack { self.work }
}

impl WorkItem for GiveBack {
    type Pointer = Pin<KBox<Self>>;

    fn run(this: Pin<KBox<Self>>) {
        drop(this);
    }
}

impl VmappedImport {
    /// Maps a buffer whose reservation is held.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `resv` is not the reservation of the buffer or the exporter has no mappings
    ///   for the kernel.
    /// - `ENOMEM` if memory runs out.
    /// - The errors of the exporter.
    // Not inlined into modules: the lock class and its name stay in the kernel crate.
    #[inline(never)]
    pub(crate) fn new(access: Arc<CpuAccess>, resv: &mut LockedResv<'_>) -> Result<Self> {
        let memory = KBox::<GiveBack>::new_uninit(GFP_KERNEL)?;
        let map = VMap::new_locked(access.buf.clone(), resv)?;

        // The initialization cannot fail because the memory is allocated.
        Ok(Self(ManuallyDrop::new(memory.write_pin_init(
            pin_init!(
                GiveBack {
                    map,
                    _access: access,
                    work <- new_work!("drm::ttm::GiveBack::work"),
                }
            ),
        )?)))
    }

    /// Returns the mapping.
    #[inline]
    pub(super) fn map(&self) -> &VMap {
        &self.0.map
    }
}

impl Drop for VmappedImport {
    fn drop(&mut self) {
        // SAFETY: The value is not used after this.
        let item = unsafe { ManuallyDrop::take(&mut self.0) };

        workqueue::system_long().enqueue(item);
    }
}

/// Bytes to be copied from one object to another or to another place of the same object.
///
/// # Invariants
///
/// - Both sides have `size` bytes from their offset on. These do not overlap.
/// - A side in system memory has all of its pages as long as the value exists.
pub struct Blit {
    from: Side,
    from_at: usize,
    to: Side,
    to_at: usize,
    size: usize,
}

// SAFETY: By the type invariant the pages stay, and any task may access them.
unsafe impl Send for Blit {}

// SAFETY: As for `Send`.
unsafe impl Sync for Blit {}

impl Blit {
    /// # Safety
    ///
    /// - Both sides must have `size` bytes from their offset on. These must not overlap.
    /// - A side in system memory must have all of its pages as long as the value exists.
    pub(crate) unsafe fn new(from: (Side, usize), to: (Side, usize), size: usize) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            from: from.0,
            from_at: from.1,
            to: to.0,
            to_at: to.1,
            size,
        }
    }

    /// Returns the source of the copy and the offset of the first byte.
    #[inline]
    pub fn from(&self) -> (Memory<'_>, usize) {
        // SAFETY: By the type invariant.
        (unsafe { self.from.memory() }, self.from_at)
    }

    /// Returns the target of the copy and the offset of the first byte.
    #[inline]
    pub fn to(&self) -> (Memory<'_>, usize) {
        // SAFETY: By the type invariant.
        (unsafe { self.to.memory() }, self.to_at)
    }

    /// Returns how many bytes are copied.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns whether a BAR of `len` bytes shows all VRAM of both sides.
    pub(super) fn is_in_bar(&self, len: u64) -> bool {
        [self.from().0, self.to().0]
            .into_iter()
            .all(|memory| memory.is_in_bar(len))
    }

    /// Does the copy by the CPU. Does not allocate memory.
    ///
    /// # Safety
    ///
    /// `vram` must be the address of VRAM with all ranges of both sides mapped.
    pub(super) unsafe fn by_cpu(&self, vram: *mut c_void) {
        /// How many bytes are copied before other tasks may use the processor.
        const MOST: usize = 1 << 20;

        let mut done = 0;

        while done < self.size {
            let from = Chunk::new(self.from().0, self.from_at + done, vram);
            let to = Chunk::new(self.to().0, self.to_at + done, vram);
            let len = from.len.min(to.len).min(self.size - done).min(MOST);
            if len == 0 {
                // The bytes are outside a side. The type invariant excludes this.
                return;
            }

            // SAFETY: Both are mapped for at least `len` bytes, which do not overlap. No code has a
            // reference to this memory.
            unsafe { copy_bytes(to.map, from.map, len) };
            done += len;
            pause();
        }
    }

    /// Returns the address of a written byte of I/O memory, or [`None`] if none was written.
    pub(super) fn written(&self, vram: *mut c_void) -> Option<*mut c_void> {
        let to = Chunk::new(self.to().0, self.to_at, vram);

        to.map.is_iomem().then(|| to.map.addr())
    }
}

/// A contiguous mapped piece of one side. Mapped pages are unmapped in the reverse order.
struct Chunk {
    map: IosysMap,
    len: usize,
    is_page: bool,
}

impl Chunk {
    /// Maps the contiguous piece beginning at `at`, or nothing if `at` is outside.
    fn new(memory: Memory<'_>, at: usize, vram: *mut c_void) -> Self {
        let (addr, len, is_iomem, is_page) = match memory {
            Memory::Vram(ranges) => {
                // CAST: Offsets have 64 bits.
                let (offset, len) = ranges.bar_piece(at as u64).unwrap_or_default();

                (
                    vram.wrapping_byte_add(offset as usize),
                    len as usize,
                    true,
                    false,
                )
            }
            Memory::Pages(pages) => Self::page(pages, at),
            Memory::Mapped(map) => {
                let addr = map.as_map().addr().wrapping_byte_add(at);
                let len = map.dma_buf().size().saturating_sub(at);

                (addr, len, map.is_iomem(), false)
            }
            // Such a buffer has no address for the CPU: see `Memory::is_in_bar()`.
            Memory::Peer(_) => (core::ptr::null_mut(), 0, false, false),
        };

        // SAFETY: Users of the address rely on it being mapped for the life of the value only.
        let map = unsafe {
            if is_iomem {
                IosysMap::from_iomem(addr)
            } else {
                IosysMap::from_sysmem(addr)
            }
        };
        Self { map, len, is_page }
    }

    fn page(pages: Pages<'_>, at: usize) -> (*mut c_void, usize, bool, bool) {
        let Some(&page) = pages.as_slice().get(at >> PAGE_SHIFT) else {
            return (core::ptr::null_mut(), 0, false, false);
        };
        let skip = at % PAGE_SIZE;

        // SAFETY: The page is valid. `drop()` unmaps it.
        let addr = unsafe { bindings::kmap_local_page(page) };
        (addr.wrapping_byte_add(skip), PAGE_SIZE - skip, false, true)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if self.is_page {
            // SAFETY: The address is inside the page that was mapped last.
            unsafe { bindings::kunmap_local(self.map.addr()) };
        }
    }
}

/// Copies bytes between any kinds of memory.
///
/// `drm_memcpy_from_wc()` only copies multiples of the size of its buffer.
///
/// # Safety
///
/// Both must be mapped for at least `len` bytes, which do not overlap.
unsafe fn copy_bytes(to: IosysMap, from: IosysMap, len: usize) {
    const BOUNCE: usize = 256;

    let (to_addr, from_addr) = (to.addr(), from.addr());
    // SAFETY: By the safety requirements. The buffer has room for the bytes copied to it.
    unsafe {
        match (to.is_iomem(), from.is_iomem()) {
            // Not `copy_nonoverlapping()`: others may write to the memory meanwhile.
            (false, false) => {
                bindings::memcpy(to_addr, from_addr, len);
            }
            (true, false) => bindings::memcpy_toio(to_addr, from_addr, len),
            (false, true) => bindings::memcpy_fromio(to_addr, from_addr, len),
            (true, true) => {
                let mut bounce = [0u8; BOUNCE];

                for done in (0..len).step_by(BOUNCE) {
                    let some = BOUNCE.min(len - done);
                    let buf = bounce.as_mut_ptr().cast();

                    bindings::memcpy_fromio(buf, from_addr.wrapping_byte_add(done), some);
                    bindings::memcpy_toio(to_addr.wrapping_byte_add(done), buf, some);
                }
            }
        }
    }
}
